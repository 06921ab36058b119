//! Rows that Python has in memory: as Arrow IPC streams, and held by this process for definitions that name them.

use std::sync::Arc;

use arrow::array::ArrayData;
use arrow::ipc::reader::StreamReader;
use arrow_array::{
    ArrayRef, BinaryArray, FixedSizeListArray, ListArray, RecordBatch, StringArray, make_array,
};
use arrow_buffer::{BooleanBuffer, Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use caju_engine::source::{self, HeldRows};
use caju_engine::wire::{schema_from_ipc, schema_to_ipc};
use caju_types::{Error, Result};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyTuple};

use crate::errors::IntoPy;
use crate::parts::ipc;
use crate::types::tensor_metadata;

/// Rows of one IPC message: what one split of a source in memory can be cut to.
const ROWS: usize = 8192;

/// The values of a column.
pub(crate) enum Values {
    /// The bytes of an array in C order.
    Raw(PyBackedBytes),
    /// Strings, or nothing.
    Strings(Vec<Option<String>>),
    /// Bytes, or nothing.
    Binaries(Vec<Option<Vec<u8>>>),
    /// The values of all rows one after another, with their type and shape, and where each row's begin; the last
    /// offset is their end.
    Ragged(String, Vec<usize>, Box<Values>, Vec<i32>),
}

impl FromPyObject<'_, '_> for Values {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Raw(bytes.to_owned().into()));
        }
        if let Ok(parts) = object.cast::<PyTuple>() {
            let (dtype, shape, values, offsets): (String, Vec<usize>, Values, Vec<i32>) = parts.extract()?;
            let rising = offsets.first() == Some(&0) && offsets.is_sorted();
            if !rising || offsets.last().and_then(|n| usize::try_from(*n).ok()) != shape.first().copied() {
                return Err(PyValueError::new_err("offsets that do not fit their values"));
            }
            return Ok(Self::Ragged(dtype, shape, Box::new(values), offsets));
        }
        match object.extract() {
            Ok(strings) => Ok(Self::Strings(strings)),
            Err(_) => object.extract().map(Self::Binaries),
        }
    }
}

/// Columns (name, type in NumPy's words, shape, values) as an Arrow IPC stream. The first dimension counts rows;
/// further ones make a tensor.
#[pyfunction]
pub(crate) fn ipc_from_columns<'py>(
    py: Python<'py>,
    columns: Vec<(String, String, Vec<usize>, Values)>,
) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = py.detach(|| write(columns)).into_py(py)?;
    Ok(PyBytes::new(py, &bytes))
}

/// Rows that this process holds for definitions of its own, until the last of these objects is gone.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Rows {
    /// The name by which definitions find them.
    #[pyo3(get)]
    sha256: String,
    held: Arc<HeldRows>,
}

#[pymethods]
impl Rows {
    /// How many rows there are.
    #[getter]
    fn num_rows(&self) -> u64 {
        self.held.num_rows()
    }

    /// Bytes of their Arrow IPC stream.
    #[getter]
    fn num_bytes(&self) -> usize {
        self.held.ipc().len()
    }

    /// Their Arrow IPC stream.
    fn ipc<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.held.ipc())
    }

    /// Another process holds them itself.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        Ok((py.import("caju._caju")?.getattr("hold")?, (self.ipc(py),)))
    }
}

fn held(py: Python<'_>, stream: impl FnOnce() -> Result<Bytes> + Send) -> PyResult<Rows> {
    let (sha256, held) = py.detach(|| stream().and_then(source::hold)).into_py(py)?;
    Ok(Rows { sha256, held })
}

/// Holds the rows of an Arrow IPC stream, over the same bytes.
#[pyfunction]
pub(crate) fn hold(py: Python<'_>, ipc: PyBackedBytes) -> PyResult<Rows> {
    held(py, move || Ok(Bytes::from_owner(ipc)))
}

/// Holds the rows that columns make; columns as in `ipc_from_columns`.
#[pyfunction]
pub(crate) fn hold_columns(
    py: Python<'_>,
    columns: Vec<(String, String, Vec<usize>, Values)>,
) -> PyResult<Rows> {
    held(py, move || write(columns).map(Bytes::from))
}

/// The number of rows of an Arrow IPC stream.
#[pyfunction]
pub(crate) fn ipc_rows(py: Python<'_>, bytes: &[u8]) -> PyResult<usize> {
    count(bytes).into_py(py)
}

/// The schema of an Arrow IPC stream, as one without rows.
#[pyfunction]
pub(crate) fn ipc_schema<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let schema = schema_from_ipc(bytes).into_py(py)?.unwrap_or_else(|| Arc::new(Schema::empty()));
    Ok(PyBytes::new(py, &schema_to_ipc(&schema).into_py(py)?))
}

fn count(bytes: &[u8]) -> Result<usize> {
    let bad = |e| Error::data_loss(format!("not an Arrow IPC stream: {e}"));
    let reader = StreamReader::try_new(std::io::Cursor::new(bytes), None).map_err(bad)?;
    reader.map(|b| b.map(|b| b.num_rows()).map_err(bad)).sum()
}

fn write(columns: Vec<(String, String, Vec<usize>, Values)>) -> Result<Vec<u8>> {
    if columns.is_empty() {
        return ipc(&Schema::empty(), &[]);
    }
    let mut fields = Vec::new();
    let mut arrays = Vec::new();
    for (name, dtype, shape, values) in columns {
        let (field, array) = column(&name, &dtype, &shape, values)?;
        fields.push(field);
        arrays.push(array);
    }
    let schema = Arc::new(Schema::new(fields));
    let whole = RecordBatch::try_new(Arc::clone(&schema), arrays)
        .map_err(|e| Error::invalid(format!("the columns do not fit together: {e}")))?;
    let batches: Vec<RecordBatch> = (0..whole.num_rows())
        .step_by(ROWS)
        .map(|at| whole.slice(at, ROWS.min(whole.num_rows() - at)))
        .collect();
    ipc(&schema, &batches)
}

fn column(name: &str, dtype: &str, shape: &[usize], values: Values) -> Result<(Field, ArrayRef)> {
    let [rows, rest @ ..] = shape else {
        return Err(Error::invalid(format!(
            "column `{name}`: a single value; give an array of one value a row"
        )));
    };
    let flat: ArrayRef = match values {
        Values::Strings(list) => Arc::new(StringArray::from(list)),
        Values::Binaries(list) => Arc::new(list.iter().map(|v| v.as_deref()).collect::<BinaryArray>()),
        Values::Raw(bytes) => primitive(name, dtype, shape.iter().product(), bytes)?,
        Values::Ragged(dtype, shape, values, offsets) => {
            let (item, values) = column(name, &dtype, &shape, *values)?;
            let bad = |e| Error::invalid(format!("column `{name}`: {e}"));
            let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
            Arc::new(
                ListArray::try_new(Arc::new(item.with_name("item")), offsets, values, None).map_err(bad)?,
            )
        }
    };
    if rest.is_empty() {
        return Ok((Field::new(name, flat.data_type().clone(), true), flat));
    }
    let size: usize = rest.iter().product();
    let item = Arc::new(Field::new("item", flat.data_type().clone(), false));
    let length = i32::try_from(size)
        .map_err(|_| Error::exhausted(format!("column `{name}`: {size} values a row are too many")))?;
    let list = FixedSizeListArray::try_new_with_length(Arc::clone(&item), length, flat, None, *rows)
        .map_err(|e| Error::invalid(format!("column `{name}`: {e}")))?;
    let kind = DataType::FixedSizeList(item, length);
    let field = Field::new(name, kind, false).with_metadata(tensor_metadata(rest));
    Ok((field, Arc::new(list)))
}

fn primitive(name: &str, dtype: &str, len: usize, bytes: PyBackedBytes) -> Result<ArrayRef> {
    let data_type = match dtype {
        "bool" => {
            let bits = BooleanBuffer::from_iter(bytes.iter().map(|b| *b != 0));
            return Ok(Arc::new(arrow_array::BooleanArray::new(bits, None)));
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
        "datetime64[s]" => DataType::Timestamp(TimeUnit::Second, None),
        "datetime64[ms]" => DataType::Timestamp(TimeUnit::Millisecond, None),
        "datetime64[us]" => DataType::Timestamp(TimeUnit::Microsecond, None),
        "datetime64[ns]" => DataType::Timestamp(TimeUnit::Nanosecond, None),
        other => {
            return Err(Error::invalid(format!(
                "column `{name}`: arrays of {other} cannot be rows; use numbers, booleans, strings, bytes or \
                 datetime64 in s, ms, us or ns"
            )));
        }
    };
    let buffer = Buffer::from(Bytes::from_owner(bytes));
    let data = ArrayData::builder(data_type).len(len).add_buffer(buffer).align_buffers(true).build();
    Ok(make_array(data.map_err(|e| Error::invalid(format!("column `{name}`: {e}")))?))
}
