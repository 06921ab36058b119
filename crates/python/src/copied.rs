//! Columns of numbers that are copied to the memory of another library, straight from the parts in which the rows came.

use arrow::compute::concat;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::Buffer;
use arrow_schema::{DataType, Field};
use caju_runtime::copy_parts;
use caju_types::{Error, Result};
use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::PySystemError;
use pyo3::prelude::*;

use crate::types::tensor_shape;

/// Bytes of a column below which an array of Python's own is quicker than a call that asks for memory.
const MIN_BYTES: usize = 64 << 10;

/// The numbers of a large column, from the parts in which its rows came.
pub(crate) struct Values {
    /// The shape of the array: rows first.
    shape: Vec<usize>,
    /// NumPy's name of the type.
    dtype: &'static str,
    parts: Vec<Buffer>,
}

impl Values {
    /// The values of a column; `None` if it is small, has nulls, or is none of numbers or of tensors of them.
    ///
    /// # Errors
    /// Those of the shape of tensors.
    pub(crate) fn of(field: &Field, arrays: &[&ArrayRef]) -> Result<Option<Self>> {
        let mut shape = vec![arrays.iter().map(|a| a.len()).sum()];
        let mut field = field;
        while let DataType::FixedSizeList(item, size) = field.data_type() {
            let size = usize::try_from(*size).unwrap_or(0);
            shape.extend(tensor_shape(field)?.unwrap_or_else(|| vec![size]));
            field = item;
        }
        let (Some(dtype), Some(width)) = (dtype(field.data_type()), field.data_type().primitive_width())
        else {
            return Ok(None);
        };
        if shape.iter().fold(width, |bytes, n| bytes.saturating_mul(*n)) < MIN_BYTES {
            return Ok(None);
        }
        let parts = arrays.iter().map(|array| values_of(array)).collect::<Option<_>>();
        Ok(parts.map(|parts| Self { shape, dtype, parts }))
    }

    /// Copies the values to memory that `allocate(shape, dtype)` gives, together with what is returned. Releases the interpreter.
    ///
    /// # Errors
    /// Those of `allocate`; `SystemError` if the memory is not as large as the values, or cannot be written.
    pub(crate) fn copy_to<'py>(
        &self,
        py: Python<'py>,
        allocate: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (value, memory): (Bound<'py, PyAny>, Bound<'py, PyArray1<u8>>) =
            allocate.call1((self.shape.clone(), self.dtype))?.extract()?;
        let mut memory = memory.try_readwrite().map_err(|e| PySystemError::new_err(e.to_string()))?;
        let (to, bytes) = (memory.as_slice_mut()?, self.parts.iter().map(Buffer::len).sum::<usize>());
        if to.len() != bytes {
            return Err(PySystemError::new_err(format!(
                "{} bytes of memory for {:?} values of {}, which have {bytes}",
                to.len(),
                self.shape,
                self.dtype
            )));
        }
        let parts: Vec<&[u8]> = self.parts.iter().map(Buffer::as_slice).collect();
        py.detach(|| copy_parts(to, &parts));
        Ok(value)
    }
}

/// The memory of the values of an array, or of the lists of fixed size in it; `None` if there are nulls.
fn values_of(array: &ArrayRef) -> Option<Buffer> {
    let mut array = ArrayRef::clone(array);
    while let Some(list) = array.as_fixed_size_list_opt() {
        let size = usize::try_from(list.value_length()).ok()?;
        if list.null_count() > 0 {
            return None;
        }
        let values = list.values().slice(usize::try_from(list.value_offset(0)).ok()?, list.len() * size);
        array = values;
    }
    let data = array.to_data();
    let width = data.data_type().primitive_width()?;
    let values = data.buffers().first().filter(|_| data.null_count() == 0)?;
    Some(values.slice_with_length(data.offset() * width, data.len() * width))
}

/// The parts of a column as one array.
///
/// # Errors
/// `ResourceExhausted` if the rows do not fit one Arrow array.
pub(crate) fn joined(field: &Field, arrays: &[&ArrayRef]) -> Result<ArrayRef> {
    if let [one] = arrays {
        return Ok(ArrayRef::clone(one));
    }
    let arrays: Vec<&dyn Array> = arrays.iter().map(|a| a.as_ref()).collect();
    concat(&arrays).map_err(|e| {
        Error::exhausted(format!(
            "column `{}` of a batch of {} rows does not fit one Arrow array: {e}; use a smaller `batch`",
            field.name(),
            arrays.iter().map(|a| a.len()).sum::<usize>()
        ))
    })
}

/// NumPy's name of a type whose values are numbers in memory, of the same size there.
fn dtype(of: &DataType) -> Option<&'static str> {
    Some(match of {
        DataType::Int8 => "int8",
        DataType::Int16 => "int16",
        DataType::Int32 => "int32",
        DataType::Int64 => "int64",
        DataType::UInt8 => "uint8",
        DataType::UInt16 => "uint16",
        DataType::UInt32 => "uint32",
        DataType::UInt64 => "uint64",
        DataType::Float16 => "float16",
        DataType::Float32 => "float32",
        DataType::Float64 => "float64",
        _ => return None,
    })
}
