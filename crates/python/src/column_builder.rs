//! Columns from Python values: the buffers of NumPy arrays and the lists that `caju._columns` makes, as Arrow arrays.

use std::sync::Arc;

use arrow::array::ArrayData;
use arrow::compute::{CastOptions, cast_with_options};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, Int64Array, ListArray, NullArray,
    RecordBatch, StringArray, StructArray, make_array,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use caju_types::{Error, Result};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::types::tensor_metadata;

/// A column from Python: `caju._column.Column`.
pub(crate) struct Column {
    name: String,
    kind: String,
    /// The first dimension counts rows; further ones make a tensor.
    shape: Vec<usize>,
    values: Values,
    /// A byte for each row, which is not 0 where the whole row is null.
    null_rows: Option<PyBackedBytes>,
}

enum Values {
    /// The bytes of an array in C order, and a byte for each value, which is not 0 where the value is null.
    Raw(PyBackedBytes, Option<PyBackedBytes>),
    Strings(Vec<Option<String>>),
    Binaries(Vec<Option<PyBackedBytes>>),
    /// The values of all rows, and the offset of each row's first one; the last offset is the number of values.
    Ragged(Box<Column>, Vec<i32>),
    Struct(Vec<Column>),
    Null,
}

impl FromPyObject<'_, '_> for Column {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let (name, kind, shape, values, null_rows): (
            String,
            String,
            Vec<usize>,
            Bound<'_, PyAny>,
            Option<PyBackedBytes>,
        ) = object.extract()?;
        let values = match kind.as_str() {
            "string" => Values::Strings(values.extract()?),
            "bytes" => Values::Binaries(values.extract()?),
            "struct" => Values::Struct(values.extract()?),
            "null" => Values::Null,
            "ragged" => {
                let (flat, offsets): (Column, Vec<i32>) = values.extract()?;
                let ascending = offsets.first() == Some(&0) && offsets.is_sorted();
                if !ascending
                    || offsets.last().and_then(|n| usize::try_from(*n).ok()) != flat.shape.first().copied()
                {
                    return Err(PyValueError::new_err("the offsets do not fit the values"));
                }
                Values::Ragged(Box::new(flat), offsets)
            }
            _ => match values.cast::<PyBytes>() {
                Ok(bytes) => Values::Raw(bytes.to_owned().into(), None),
                Err(_) => {
                    let (bytes, nulls): (PyBackedBytes, PyBackedBytes) = values.extract()?;
                    Values::Raw(bytes, Some(nulls))
                }
            },
        };
        Ok(Self { name, kind, shape, values, null_rows })
    }
}

/// Columns of one length as a record batch.
///
/// # Errors
/// Those of the columns; `InvalidArgument` if their lengths differ.
pub(crate) fn build_batch(columns: Vec<Column>) -> Result<RecordBatch> {
    let (fields, arrays): (Vec<_>, Vec<_>) =
        columns.into_iter().map(build).collect::<Result<Vec<_>>>()?.into_iter().unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
        .map_err(|e| Error::invalid(format!("the columns do not have one length: {e}")))
}

impl Column {
    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }

    /// Bytes of its values. Proportional to the rows where all rows are of one width.
    pub(crate) fn bytes(&self) -> usize {
        match &self.values {
            Values::Raw(bytes, _) => bytes.len(),
            Values::Strings(list) => list.iter().flatten().map(String::len).sum(),
            Values::Binaries(list) => list.iter().flatten().map(|v| v.len()).sum(),
            Values::Ragged(flat, _) => flat.bytes(),
            Values::Struct(columns) => columns.iter().map(Column::bytes).sum(),
            Values::Null => 0,
        }
    }
}

/// The validity of values that are null where a byte is not 0.
fn validity(nulls: Option<&PyBackedBytes>) -> Option<NullBuffer> {
    nulls.map(|bytes| NullBuffer::from_iter(bytes.iter().map(|b| *b == 0)))
}

/// The field and the array of a column.
///
/// # Errors
/// `InvalidArgument` for values that no column can hold, `ResourceExhausted` for rows of too many values.
fn build(column: Column) -> Result<(Field, ArrayRef)> {
    let Column { name, kind, shape, values, null_rows } = column;
    let bad = |e: ArrowError| Error::invalid(format!("column `{name}`: {e}"));
    let [rows, rest @ ..] = shape.as_slice() else {
        return Err(Error::invalid(format!(
            "column `{name}`: a single value; give an array with one value per row"
        )));
    };
    let null_rows = validity(null_rows.as_ref());
    // In a tensor, whole rows may be null; elsewhere a row is one value.
    let own = null_rows.clone().filter(|_| rest.is_empty());
    let bytes = match &values {
        Values::Strings(list) => list.iter().flatten().map(String::len).sum(),
        Values::Binaries(list) => list.iter().flatten().map(|v| v.len()).sum(),
        _ => 0,
    };
    if i32::try_from(bytes).is_err() {
        return Err(Error::exhausted(format!(
            "column `{name}`: {bytes} bytes of text or bytes, and a column of one batch takes at most {}; give fewer rows at once",
            i32::MAX
        )));
    }
    let flat: ArrayRef = match values {
        Values::Strings(list) => Arc::new(StringArray::from(list)),
        Values::Binaries(list) => Arc::new(list.iter().map(|v| v.as_deref()).collect::<BinaryArray>()),
        Values::Null => Arc::new(NullArray::new(*rows)),
        Values::Raw(bytes, nulls) => {
            let nulls = NullBuffer::union(validity(nulls.as_ref()).as_ref(), own.as_ref());
            primitive(&name, &kind, shape.iter().product(), bytes, nulls)?
        }
        Values::Ragged(flat, offsets) => {
            let (item, values) = build(*flat)?;
            let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
            Arc::new(ListArray::try_new(Arc::new(item.with_name("item")), offsets, values, own).map_err(bad)?)
        }
        Values::Struct(columns) => {
            let (fields, arrays): (Vec<_>, Vec<_>) =
                columns.into_iter().map(build).collect::<Result<Vec<_>>>()?.into_iter().unzip();
            Arc::new(StructArray::try_new_with_length(fields.into(), arrays, own, *rows).map_err(bad)?)
        }
    };
    if rest.is_empty() {
        return Ok((Field::new(name, flat.data_type().clone(), true), flat));
    }
    let size: usize = rest.iter().product();
    let length = i32::try_from(size)
        .map_err(|_| Error::exhausted(format!("column `{name}`: {size} values per row are too many")))?;
    let item = Arc::new(Field::new("item", flat.data_type().clone(), flat.null_count() > 0));
    let list = FixedSizeListArray::try_new_with_length(Arc::clone(&item), length, flat, null_rows, *rows)
        .map_err(bad)?;
    let field = Field::new(name.as_str(), DataType::FixedSizeList(item, length), list.null_count() > 0)
        .with_metadata(tensor_metadata(rest));
    Ok((field, Arc::new(list)))
}

fn primitive(
    name: &str,
    kind: &str,
    len: usize,
    bytes: PyBackedBytes,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    let bad = |e: ArrowError| Error::invalid(format!("column `{name}`: {e}"));
    let data_type = match kind {
        "bool" => {
            let bits = BooleanBuffer::from_iter(bytes.iter().map(|b| *b != 0));
            return Ok(Arc::new(BooleanArray::new(bits, nulls)));
        }
        "int8" => DataType::Int8,
        "int16" => DataType::Int16,
        "int32" => DataType::Int32,
        "int64" => DataType::Int64,
        "uint8" => DataType::UInt8,
        "uint16" => DataType::UInt16,
        "uint32" => DataType::UInt32,
        "uint64" => DataType::UInt64,
        "float16" => DataType::Float16,
        "float32" => DataType::Float32,
        "float64" => DataType::Float64,
        // NumPy's days have 64 bits, Arrow's 32.
        "datetime64[D]" => DataType::Int64,
        other => time_type(other).ok_or_else(|| {
            Error::invalid(format!(
                "column `{name}`: arrays of {other} cannot be rows; use numbers, booleans, strings, bytes, datetime64 \
                 or timedelta64"
            ))
        })?,
    };
    let buffer = Buffer::from(Bytes::from_owner(bytes));
    let data = ArrayData::builder(data_type).len(len).add_buffer(buffer).nulls(nulls).align_buffers(true);
    let array = make_array(data.build().map_err(bad)?);
    match kind {
        "datetime64[D]" => days(&array).map_err(bad),
        _ => Ok(array),
    }
}

/// Days since 1970 as a column of dates.
fn days(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    // The integer under a null may not fit into 32 bits.
    let without: Int64Array = array.as_primitive::<Int64Type>().iter().collect();
    let days = cast_with_options(&without, &DataType::Int32, &strict)?;
    cast_with_options(&days, &DataType::Date32, &strict)
}

/// The Arrow type of a NumPy dtype of times or durations, in a unit that both have.
fn time_type(dtype: &str) -> Option<DataType> {
    let (kind, rest) = dtype.split_once('[')?;
    let rest = rest.strip_suffix(']')?;
    let (unit, zone) = rest.split_once(", ").map_or((rest, None), |(unit, zone)| (unit, Some(zone.into())));
    let unit = match unit {
        "s" => TimeUnit::Second,
        "ms" => TimeUnit::Millisecond,
        "us" => TimeUnit::Microsecond,
        "ns" => TimeUnit::Nanosecond,
        _ => return None,
    };
    match kind {
        "datetime64" => Some(DataType::Timestamp(unit, zone)),
        "timedelta64" => Some(DataType::Duration(unit)),
        _ => None,
    }
}
