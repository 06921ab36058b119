//! Arrow columns as NumPy arrays.
//!
//! | column | array |
//! |---|---|
//! | integers, floats | the same type, over the column's own memory |
//! | tensors and lists of fixed size | one array of (rows, ...), over the column's own memory |
//! | booleans | `bool`, unpacked |
//! | dates, times, durations | `datetime64`, `timedelta64` |
//! | strings, bytes | objects: `str`, `bytes` |
//! | lists, tensors of any shape | objects: one array per row, over the column's own memory |
//! | lists after padding | one array of (rows, length), over the column's own memory |
//! | structs | a dict of arrays |
//!
//! A null is NaN in floats, NaT in dates, `None` among objects; other columns with nulls are masked arrays. The fields of a
//! null struct are null, and in rows the struct is `None`.

use arrow::compute::cast;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType,
    DurationSecondType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, FixedSizeListArray, StructArray, make_array};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow_schema::{DataType, Field, Fields, TimeUnit};
use caju_types::{Error, Result};
use numpy::Element;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PyString};

use crate::arrays::NumPy;
use crate::errors::{IntoPy, exception};
use crate::types::{extension, tensor_shape};

/// Converts columns to arrays.
pub(crate) struct Columns<'py> {
    pub(crate) py: Python<'py>,
    pub(crate) numpy: &'static NumPy,
    /// Lists of equal length throughout a batch become one array, as after padding.
    pub(crate) dense: bool,
    /// Nulls can always be distinguished from values: floats with nulls are masked arrays over NaN, structs with nulls have
    /// a mask of their own. A function that returns the values it got then returns the nulls too.
    pub(crate) nulls_apart: bool,
}

impl<'py> Columns<'py> {
    /// A column as an array, or a struct as a dict of arrays.
    ///
    /// # Errors
    /// `Unimplemented` for types that NumPy does not have.
    pub(crate) fn column(&self, field: &Field, array: &ArrayRef) -> PyResult<Bound<'py, PyAny>> {
        use DataType as T;
        match array.data_type() {
            T::Int8 => self.integers::<Int8Type>(array),
            T::Int16 => self.integers::<Int16Type>(array),
            T::Int32 => self.integers::<Int32Type>(array),
            T::Int64 => self.integers::<Int64Type>(array),
            T::UInt8 => self.integers::<UInt8Type>(array),
            T::UInt16 => self.integers::<UInt16Type>(array),
            T::UInt32 => self.integers::<UInt32Type>(array),
            T::UInt64 => self.integers::<UInt64Type>(array),
            T::Float16 => self.floats::<Float16Type>(array, half_nan()),
            T::Float32 => self.floats::<Float32Type>(array, f32::NAN),
            T::Float64 => self.floats::<Float64Type>(array, f64::NAN),
            T::Boolean => {
                let values = array.as_boolean();
                let bytes = self.bools(values.values())?;
                self.mask(bytes, values.nulls())
            }
            T::Date32 => {
                let days = cast(array, &T::Int32).and_then(|a| cast(&a, &T::Int64));
                self.times::<Int64Type>(&days.map_err(arrow_error).into_py(self.py)?, "datetime64[D]")
            }
            T::Date64 => self.cast_times(array, "datetime64[ms]"),
            T::Time32(unit) | T::Time64(unit) => {
                self.cast_times(array, &format!("timedelta64[{}]", unit_name(*unit)))
            }
            T::Timestamp(unit, _) => {
                let dtype = format!("datetime64[{}]", unit_name(*unit));
                match unit {
                    TimeUnit::Second => self.times::<TimestampSecondType>(array, &dtype),
                    TimeUnit::Millisecond => self.times::<TimestampMillisecondType>(array, &dtype),
                    TimeUnit::Microsecond => self.times::<TimestampMicrosecondType>(array, &dtype),
                    TimeUnit::Nanosecond => self.times::<TimestampNanosecondType>(array, &dtype),
                }
            }
            T::Duration(unit) => {
                let dtype = format!("timedelta64[{}]", unit_name(*unit));
                match unit {
                    TimeUnit::Second => self.times::<DurationSecondType>(array, &dtype),
                    TimeUnit::Millisecond => self.times::<DurationMillisecondType>(array, &dtype),
                    TimeUnit::Microsecond => self.times::<DurationMicrosecondType>(array, &dtype),
                    TimeUnit::Nanosecond => self.times::<DurationNanosecondType>(array, &dtype),
                }
            }
            T::Utf8 => self.strings(array.as_string::<i32>().iter()),
            T::LargeUtf8 => self.strings(array.as_string::<i64>().iter()),
            T::Utf8View => self.strings(array.as_string_view().iter()),
            T::Binary => self.bytes(array.as_binary::<i32>().iter()),
            T::LargeBinary => self.bytes(array.as_binary::<i64>().iter()),
            T::BinaryView => self.bytes(array.as_binary_view().iter()),
            T::FixedSizeBinary(_) => self.bytes(array.as_fixed_size_binary().iter()),
            T::FixedSizeList(item, _) => self.tensor(field, item, array.as_fixed_size_list()),
            T::List(item) => {
                let list = array.as_list::<i32>();
                self.ragged(item, list.values(), list.offsets(), list.nulls(), None)
            }
            T::LargeList(item) => {
                let list = array.as_list::<i64>();
                self.ragged(item, list.values(), list.offsets(), list.nulls(), None)
            }
            T::Struct(_) if extension(field) == Some("arrow.variable_shape_tensor") => {
                self.shaped(field, array.as_struct())
            }
            T::Struct(fields) => self.fields(fields, array.as_struct()),
            T::Dictionary(_, value) => {
                let plain = cast(array, value).map_err(arrow_error).into_py(self.py)?;
                self.column(&Field::new(field.name(), value.as_ref().clone(), true), &plain)
            }
            T::Null => {
                let nulls = PyList::new(self.py, (0..array.len()).map(|_| self.py.None()))?;
                self.numpy.objects(self.py, nulls)
            }
            other => Err(exception(
                self.py,
                &Error::unimplemented(format!(
                    "column `{}` of type {other} has no NumPy type; cast it in a `with_columns`, or take the \
                     batches as Arrow: `.arrow()`",
                    field.name()
                )),
            )),
        }
    }

    /// The first value of a column.
    ///
    /// # Errors
    /// Those of the column.
    pub(crate) fn first(&self, field: &Field, array: &ArrayRef) -> PyResult<Bound<'py, PyAny>> {
        if let DataType::Struct(fields) = array.data_type()
            && extension(field) != Some("arrow.variable_shape_tensor")
        {
            if array.is_null(0) {
                return Ok(self.py.None().into_bound(self.py));
            }
            let out = PyDict::new(self.py);
            for (f, column) in fields.iter().zip(array.as_struct().columns()) {
                out.set_item(f.name(), self.first(f, column)?)?;
            }
            return Ok(out.into_any());
        }
        let value = self.column(field, array)?;
        let Some(mask) = value.getattr_opt("mask")? else { return value.get_item(0) };
        if value.getattr("ndim")?.extract::<usize>()? > 1 {
            return value.get_item(0);
        }
        match mask.get_item(0)?.is_truthy()? {
            true => Ok(self.py.None().into_bound(self.py)),
            false => value.getattr("data")?.get_item(0),
        }
    }

    /// A struct as a dict of its columns.
    fn fields(&self, fields: &Fields, array: &StructArray) -> PyResult<Bound<'py, PyAny>> {
        let nulls = array.nulls().filter(|n| n.null_count() > 0);
        let out = match nulls.filter(|_| self.nulls_apart) {
            None => PyDict::new(self.py),
            Some(nulls) => {
                let out = self.py.import("caju._column")?.getattr("Fields")?.call0()?;
                out.setattr("mask", self.bools(&!nulls.inner())?)?;
                out.cast_into::<PyDict>()?
            }
        };
        for (f, column) in fields.iter().zip(array.columns()) {
            let column = match nulls {
                Some(nulls) => within(column, nulls).into_py(self.py)?,
                None => ArrayRef::clone(column),
            };
            out.set_item(f.name(), self.column(f, &column)?)?;
        }
        Ok(out.into_any())
    }

    fn integers<T: ArrowPrimitiveType<Native: Element>>(
        &self,
        array: &ArrayRef,
    ) -> PyResult<Bound<'py, PyAny>> {
        let values = array.as_primitive::<T>();
        let plain = self.numpy.array::<T::Native>(self.py, &[values.len()], values.values().inner())?;
        self.mask(plain, values.nulls())
    }

    fn floats<T: ArrowPrimitiveType<Native: Element>>(
        &self,
        array: &ArrayRef,
        nan: T::Native,
    ) -> PyResult<Bound<'py, PyAny>> {
        let plain = self.filled::<T>(array, nan)?;
        self.mask(plain, array.nulls().filter(|_| self.nulls_apart))
    }

    /// The values, with `null` in place of nulls.
    fn filled<T: ArrowPrimitiveType<Native: Element>>(
        &self,
        array: &ArrayRef,
        null: T::Native,
    ) -> PyResult<Bound<'py, PyAny>> {
        let values = array.as_primitive::<T>();
        if values.null_count() == 0 {
            return self.numpy.array::<T::Native>(self.py, &[values.len()], values.values().inner());
        }
        let filled: Vec<T::Native> = values.iter().map(|v| v.unwrap_or(null)).collect();
        self.numpy.array::<T::Native>(self.py, &[filled.len()], &Buffer::from_vec(filled))
    }

    fn times<T: ArrowPrimitiveType<Native = i64>>(
        &self,
        array: &ArrayRef,
        dtype: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        // NumPy's NaT is the smallest integer.
        let plain = self.filled::<T>(array, i64::MIN)?;
        self.numpy.view(plain, dtype)
    }

    fn cast_times(&self, array: &ArrayRef, dtype: &str) -> PyResult<Bound<'py, PyAny>> {
        let narrow = matches!(array.data_type(), DataType::Time32(_));
        let ints = match narrow {
            true => cast(array, &DataType::Int32).and_then(|a| cast(&a, &DataType::Int64)),
            false => cast(array, &DataType::Int64),
        };
        self.times::<Int64Type>(&ints.map_err(arrow_error).into_py(self.py)?, dtype)
    }

    fn bools(&self, bits: &BooleanBuffer) -> PyResult<Bound<'py, PyAny>> {
        let bytes: Vec<u8> = bits.iter().map(u8::from).collect();
        self.numpy.array::<bool>(self.py, &[bytes.len()], &Buffer::from_vec(bytes))
    }

    fn mask(&self, array: Bound<'py, PyAny>, nulls: Option<&NullBuffer>) -> PyResult<Bound<'py, PyAny>> {
        match nulls.filter(|n| n.null_count() > 0) {
            None => Ok(array),
            Some(nulls) => {
                let absent = self.bools(&!nulls.inner())?;
                self.numpy.masked(self.py, array, absent)
            }
        }
    }

    fn strings<'a>(&self, values: impl Iterator<Item = Option<&'a str>>) -> PyResult<Bound<'py, PyAny>> {
        let list = PyList::empty(self.py);
        for v in values {
            list.append(v.map(|v| PyString::new(self.py, v)))?;
        }
        self.numpy.objects(self.py, list)
    }

    fn bytes<'a>(&self, values: impl Iterator<Item = Option<&'a [u8]>>) -> PyResult<Bound<'py, PyAny>> {
        let list = PyList::empty(self.py);
        for v in values {
            list.append(v.map(|v| PyBytes::new(self.py, v)))?;
        }
        self.numpy.objects(self.py, list)
    }

    /// One array of (rows, ...) over the values of all rows; with null rows, one array per row.
    fn tensor(&self, field: &Field, item: &Field, list: &FixedSizeListArray) -> PyResult<Bound<'py, PyAny>> {
        let size = usize::try_from(list.value_length()).unwrap_or(0);
        let shape = tensor_shape(field).into_py(self.py)?.unwrap_or_else(|| vec![size]);
        let start = list.offset() * size;
        let values = match list.values().len() == list.len() * size {
            true => ArrayRef::clone(list.values()),
            false => list.values().slice(start, list.len() * size),
        };
        let flat = self.column(item, &values)?;
        let dims: Vec<usize> = std::iter::once(list.len()).chain(shape).collect();
        // In a list of lists, the inner lists add dimensions.
        let inner: Vec<usize> = match flat.getattr_opt("shape")? {
            Some(shape) => shape.extract::<Vec<usize>>()?.split_off(1),
            None => {
                let why =
                    format!("column `{}`: a list of structs; take it as Arrow: `.arrow()`", field.name());
                return Err(exception(self.py, &Error::unimplemented(why)));
            }
        };
        let dims: Vec<usize> = dims.into_iter().chain(inner).collect();
        let whole = flat.call_method1("reshape", (dims,))?;
        match list.nulls().filter(|n| n.null_count() > 0) {
            None => Ok(whole),
            Some(nulls) => {
                let rows = PyList::empty(self.py);
                for (i, valid) in nulls.iter().enumerate() {
                    rows.append(if valid { Some(whole.get_item(i)?) } else { None })?;
                }
                self.numpy.objects(self.py, rows)
            }
        }
    }

    /// One array per row, each a view of the values of all rows; reshaped to `shapes` where these are given.
    fn ragged<O: Copy + TryInto<usize>>(
        &self,
        item: &Field,
        values: &ArrayRef,
        offsets: &[O],
        nulls: Option<&NullBuffer>,
        shapes: Option<&[Vec<usize>]>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let at = |o: O| o.try_into().unwrap_or(0);
        // A slice of a longer list keeps the values of the whole list; only those of the slice are converted.
        let (first, last) = (offsets.first().map_or(0, |o| at(*o)), offsets.last().map_or(0, |o| at(*o)));
        let flat = self.column(item, &values.slice(first, last - first))?;
        let count = offsets.len().saturating_sub(1);
        if self.dense && shapes.is_none() && count > 0 && nulls.is_none_or(|n| n.null_count() == 0) {
            let length = (last - first) / count;
            if offsets.windows(2).all(|pair| at(pair[1]) - at(pair[0]) == length) {
                return flat.call_method1("reshape", ((count, length),));
            }
        }
        let rows = PyList::empty(self.py);
        for (i, pair) in offsets.windows(2).enumerate() {
            if nulls.is_some_and(|n| n.is_null(i)) {
                rows.append(self.py.None())?;
                continue;
            }
            let row = self.slice(&flat, at(pair[0]) - first, at(pair[1]) - first)?;
            match shapes {
                Some(shapes) => rows.append(row.call_method1("reshape", (shapes[i].clone(),))?)?,
                None => rows.append(row)?,
            }
        }
        self.numpy.objects(self.py, rows)
    }

    fn slice(&self, value: &Bound<'py, PyAny>, start: usize, end: usize) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(fields) = value.cast::<PyDict>() {
            let out = PyDict::new(self.py);
            for (name, column) in fields {
                out.set_item(name, self.slice(&column, start, end)?)?;
            }
            return Ok(out.into_any());
        }
        value.get_item(PySlice::new(self.py, start.cast_signed(), end.cast_signed(), 1))
    }

    /// Tensors of different shapes: a struct of the values and the dimensions.
    fn shaped(&self, field: &Field, array: &StructArray) -> PyResult<Bound<'py, PyAny>> {
        let damaged = || {
            let why = format!("column `{}`: a tensor without values and dimensions", field.name());
            exception(self.py, &Error::data_loss(why))
        };
        let (Some(data), Some(dims)) = (array.column_by_name("data"), array.column_by_name("shape")) else {
            return Err(damaged());
        };
        let (Some(data), Some(dims)) = (data.as_list_opt::<i32>(), dims.as_fixed_size_list_opt()) else {
            return Err(damaged());
        };
        let DataType::List(item) = data.data_type() else { return Err(damaged()) };
        let mut shapes = Vec::with_capacity(array.len());
        for i in 0..array.len() {
            let row = dims.value(i);
            let row = row.as_primitive_opt::<Int32Type>().ok_or_else(damaged)?;
            shapes.push(row.values().iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect());
        }
        self.ragged(item, data.values(), data.offsets(), array.nulls(), Some(&shapes))
    }
}

/// A field of a struct, null where the struct is.
fn within(column: &ArrayRef, nulls: &NullBuffer) -> Result<ArrayRef> {
    if matches!(column.data_type(), DataType::Null | DataType::Union(..) | DataType::RunEndEncoded(..)) {
        return Ok(ArrayRef::clone(column));
    }
    let all = NullBuffer::union(column.nulls(), Some(nulls));
    column.to_data().into_builder().nulls(all).build().map(make_array).map_err(arrow_error)
}

fn half_nan() -> <Float16Type as ArrowPrimitiveType>::Native {
    <Float16Type as ArrowPrimitiveType>::Native::NAN
}

fn unit_name(unit: TimeUnit) -> &'static str {
    match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    }
}

#[expect(clippy::needless_pass_by_value, reason = "made for map_err")]
fn arrow_error(e: arrow_schema::ArrowError) -> Error {
    Error::internal(format!("a column could not be converted: {e}"))
}
