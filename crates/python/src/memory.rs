//! Rows that Python has in memory: as Arrow IPC streams, and held by this process for definitions that name them.

use std::sync::Arc;

use arrow::array::ArrayData;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, Int64Array, ListArray, NullArray,
    RecordBatch, StringArray, StructArray, make_array,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use bytes::Bytes;
use caju_sources::{InlineTable, register_inline_table};
use caju_types::{Error, Result};
use caju_wire::{schema_from_ipc, schema_to_ipc};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::errors::IntoPy;
use crate::parts::ipc;
use crate::types::tensor_metadata;

/// The most rows of one IPC message: what one split of a source in memory can be cut to.
const ROWS: usize = 8192;
/// The most bytes of one IPC message of several rows. Writing a message takes as much memory once more.
const MESSAGE_BYTES: usize = 16 << 20;

/// Rows of one IPC message, for rows of a mean size.
#[pyfunction]
pub(crate) fn message_rows(row_bytes: usize) -> usize {
    (MESSAGE_BYTES / row_bytes.max(1)).clamp(1, ROWS)
}

/// A column on its way from Python: `caju._columns.Column`.
pub(crate) struct Column {
    name: String,
    kind: String,
    /// The first dimension counts rows; further ones make a tensor.
    shape: Vec<usize>,
    values: Values,
    /// The rows that are null as a whole: a byte each, not 0.
    absent: Option<PyBackedBytes>,
}

enum Values {
    /// The bytes of an array in C order, and a byte for each value, not 0 where it is null.
    Raw(PyBackedBytes, Option<PyBackedBytes>),
    Strings(Vec<Option<String>>),
    Binaries(Vec<Option<PyBackedBytes>>),
    /// The values of all rows one after another, and where each row's begin; the last offset is their end.
    Ragged(Box<Column>, Vec<i32>),
    Struct(Vec<Column>),
    Nothing,
}

impl FromPyObject<'_, '_> for Column {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        let (name, kind, shape, values, absent): (
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
            "null" => Values::Nothing,
            "ragged" => {
                let (flat, offsets): (Column, Vec<i32>) = values.extract()?;
                let rising = offsets.first() == Some(&0) && offsets.is_sorted();
                if !rising
                    || offsets.last().and_then(|n| usize::try_from(*n).ok()) != flat.shape.first().copied()
                {
                    return Err(PyValueError::new_err("offsets that do not fit their values"));
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
        Ok(Self { name, kind, shape, values, absent })
    }
}

/// Columns as an Arrow IPC stream.
#[pyfunction]
pub(crate) fn ipc_from_columns<'py>(py: Python<'py>, columns: Vec<Column>) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = py.detach(|| write(columns)).into_py(py)?;
    Ok(PyBytes::new(py, &bytes))
}

/// Rows that this process holds for definitions of its own, until the last of these objects is gone.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct Rows {
    /// The name by which definitions find them.
    #[pyo3(get)]
    sha256: String,
    held: Arc<InlineTable>,
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
    let (sha256, held) = py.detach(|| stream().and_then(register_inline_table)).into_py(py)?;
    Ok(Rows { sha256, held })
}

/// Holds the rows of an Arrow IPC stream, over the same bytes.
#[pyfunction]
pub(crate) fn hold(py: Python<'_>, ipc: PyBackedBytes) -> PyResult<Rows> {
    held(py, move || Ok(Bytes::from_owner(ipc)))
}

/// Holds the rows that columns make; columns as in `ipc_from_columns`.
#[pyfunction]
pub(crate) fn hold_columns(py: Python<'_>, columns: Vec<Column>) -> PyResult<Rows> {
    held(py, move || write(columns).map(Bytes::from))
}

/// Rows that come piece by piece, so that each is in memory once besides the stream that they become.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct RowsBuilder {
    stream: Mutex<Option<Stream>>,
}

#[pymethods]
impl RowsBuilder {
    /// An empty stream with room for `capacity` bytes, whose messages have `message_rows` rows.
    #[new]
    fn new(capacity: usize, message_rows: usize) -> Self {
        Self { stream: Mutex::new(Some(Stream::new(capacity, message_rows))) }
    }

    /// Adds rows: columns as in `ipc_from_columns`. All pieces but the last have a multiple of `message_rows` rows.
    fn add(&self, py: Python<'_>, columns: Vec<Column>) -> PyResult<()> {
        py.detach(|| match self.stream.lock().as_mut() {
            Some(stream) => stream.add(columns),
            None => Err(Error::internal("rows are added to a stream that has ended")),
        })
        .into_py(py)
    }

    /// Holds the rows; nothing can be added any more.
    fn hold(&self, py: Python<'_>) -> PyResult<Rows> {
        held(py, || match self.stream.lock().take() {
            Some(stream) => stream.finish().map(Bytes::from),
            None => Err(Error::internal("the stream has ended")),
        })
    }
}

/// The number of rows of an Arrow IPC stream.
#[pyfunction]
pub(crate) fn ipc_rows(py: Python<'_>, bytes: &[u8]) -> PyResult<usize> {
    count(bytes).into_py(py)
}

/// The schema of an Arrow IPC stream, as one without rows; with a place for nulls everywhere if `nullable`.
#[pyfunction]
#[pyo3(signature = (bytes, nullable=false))]
pub(crate) fn ipc_schema<'py>(
    py: Python<'py>,
    bytes: &[u8],
    nullable: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let schema = schema_from_ipc(bytes).into_py(py)?.unwrap_or_else(|| Arc::new(Schema::empty()));
    let schema = match nullable {
        true => Schema::new(schema.fields().iter().map(|f| with_nulls(f)).collect::<Vec<_>>()),
        false => schema.as_ref().clone(),
    };
    Ok(PyBytes::new(py, &schema_to_ipc(&schema).into_py(py)?))
}

/// The field with a place for nulls, also among the values of lists, tensors and structs.
fn with_nulls(field: &Field) -> Field {
    let inner = |f: &Field| Arc::new(with_nulls(f));
    let kind = match field.data_type() {
        DataType::List(item) => DataType::List(inner(item)),
        DataType::FixedSizeList(item, n) => DataType::FixedSizeList(inner(item), *n),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|f| inner(f)).collect()),
        other => other.clone(),
    };
    field.clone().with_data_type(kind).with_nullable(true)
}

fn count(bytes: &[u8]) -> Result<usize> {
    let bad = |e| Error::data_loss(format!("not an Arrow IPC stream: {e}"));
    let reader = StreamReader::try_new(std::io::Cursor::new(bytes), None).map_err(bad)?;
    reader.map(|b| b.map(|b| b.num_rows()).map_err(bad)).sum()
}

fn write(columns: Vec<Column>) -> Result<Vec<u8>> {
    if columns.is_empty() {
        return ipc(&Schema::empty(), &[]);
    }
    let bytes: usize = columns.iter().map(Column::bytes).sum();
    let rows = columns.first().and_then(|c| c.shape.first()).copied().unwrap_or(0);
    let mut stream = Stream::new(bytes, message_rows(bytes / rows.max(1)));
    stream.add(columns)?;
    stream.finish()
}

/// An Arrow IPC stream that is being written.
struct Stream {
    capacity: usize,
    message_rows: usize,
    writer: Option<StreamWriter<Vec<u8>>>,
}

impl Stream {
    /// Bytes around the rows of a message, for the size of the stream; too few cost a copy.
    const OVERHEAD: usize = 4096;

    fn new(capacity: usize, message_rows: usize) -> Self {
        Self { capacity, message_rows: message_rows.max(1), writer: None }
    }

    fn add(&mut self, columns: Vec<Column>) -> Result<()> {
        let failed = |e| Error::internal(format!("rows cannot be written as Arrow: {e}"));
        let (fields, arrays): (Vec<_>, Vec<_>) =
            columns.into_iter().map(build).collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let schema = Arc::new(Schema::new(fields));
        let whole = RecordBatch::try_new(Arc::clone(&schema), arrays)
            .map_err(|e| Error::invalid(format!("the columns do not fit together: {e}")))?;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => {
                let out =
                    Vec::with_capacity(self.capacity.saturating_add(self.capacity / 64) + Self::OVERHEAD);
                none.insert(StreamWriter::try_new(out, &schema).map_err(failed)?)
            }
        };
        for at in (0..whole.num_rows()).step_by(self.message_rows) {
            let rows = self.message_rows.min(whole.num_rows() - at);
            writer.write(&whole.slice(at, rows)).map_err(failed)?;
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>> {
        let failed = |e| Error::internal(format!("rows cannot be written as Arrow: {e}"));
        let Some(mut writer) = self.writer else { return ipc(&Schema::empty(), &[]) };
        writer.finish().map_err(failed)?;
        writer.into_inner().map_err(failed)
    }
}

impl Column {
    /// Bytes of its values, for sizes of messages: the same however rows of one width are cut.
    fn bytes(&self) -> usize {
        match &self.values {
            Values::Raw(bytes, _) => bytes.len(),
            Values::Strings(list) => list.iter().flatten().map(String::len).sum(),
            Values::Binaries(list) => list.iter().flatten().map(|v| v.len()).sum(),
            Values::Ragged(flat, _) => flat.bytes(),
            Values::Struct(columns) => columns.iter().map(Column::bytes).sum(),
            Values::Nothing => 0,
        }
    }
}

/// Where a byte is not 0 there is no value.
fn validity(absent: Option<&PyBackedBytes>) -> Option<NullBuffer> {
    absent.map(|bytes| NullBuffer::from_iter(bytes.iter().map(|b| *b == 0)))
}

fn build(column: Column) -> Result<(Field, ArrayRef)> {
    let Column { name, kind, shape, values, absent } = column;
    let bad = |e: ArrowError| Error::invalid(format!("column `{name}`: {e}"));
    let [rows, rest @ ..] = shape.as_slice() else {
        return Err(Error::invalid(format!(
            "column `{name}`: a single value; give an array of one value a row"
        )));
    };
    let absent = validity(absent.as_ref());
    // Of a tensor the rows may be null, of everything else the values are.
    let own = absent.clone().filter(|_| rest.is_empty());
    let flat: ArrayRef = match values {
        Values::Strings(list) => Arc::new(StringArray::from(list)),
        Values::Binaries(list) => Arc::new(list.iter().map(|v| v.as_deref()).collect::<BinaryArray>()),
        Values::Nothing => Arc::new(NullArray::new(*rows)),
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
        .map_err(|_| Error::exhausted(format!("column `{name}`: {size} values a row are too many")))?;
    let item = Arc::new(Field::new("item", flat.data_type().clone(), flat.null_count() > 0));
    let list = FixedSizeListArray::try_new_with_length(Arc::clone(&item), length, flat, absent, *rows)
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
        "datetime64[us, UTC]" => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        // NumPy's days are 64 bits wide.
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
    let filled = array.as_primitive::<Int64Type>();
    // What stands where there is no value fits nowhere.
    let valid: Int64Array = filled.iter().collect();
    let days = cast_with_options(&valid, &DataType::Int32, &strict)?;
    cast_with_options(&days, &DataType::Date32, &strict)
}

/// The type of times and durations in a unit that both NumPy and Arrow have.
fn time_type(dtype: &str) -> Option<DataType> {
    let (kind, rest) = dtype.split_once('[')?;
    let unit = match rest.strip_suffix(']')? {
        "s" => TimeUnit::Second,
        "ms" => TimeUnit::Millisecond,
        "us" => TimeUnit::Microsecond,
        "ns" => TimeUnit::Nanosecond,
        _ => return None,
    };
    match kind {
        "datetime64" => Some(DataType::Timestamp(unit, None)),
        "timedelta64" => Some(DataType::Duration(unit)),
        _ => None,
    }
}
