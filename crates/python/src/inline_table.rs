//! Inline tables: rows in Python's memory, as Arrow IPC streams that this process keeps for definitions that refer to them.

use std::io::Write;
use std::sync::Arc;

use arrow::compute::{cast, concat_batches};
use arrow::ipc::reader::StreamReader;
use arrow::ipc::writer::StreamWriter;
use arrow_array::{Array, RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use bytes::Bytes;
use caju_sources::{InlineTable, register_batches, register_inline_table, with_wide_keys};
use caju_types::{Error, Result};
use caju_wire::{schema_from_ipc, schema_to_ipc};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyCapsule};

use crate::capsule::{import_batches, import_schema, schema_capsule};
use crate::column_builder::{Column, build_batch};
use crate::errors::IntoPy;

/// The most rows of an IPC message. A message is the smallest split of a source in memory.
const MESSAGE_ROWS: usize = 8192;
/// The most bytes of an IPC message of several rows. Writing a message takes the same memory once more.
const MESSAGE_BYTES: usize = 16 << 20;

/// The number of rows of an IPC message, for rows of a mean size in bytes.
#[pyfunction]
pub(crate) fn message_rows(row_bytes: usize) -> usize {
    (MESSAGE_BYTES / row_bytes.max(1)).clamp(1, MESSAGE_ROWS)
}

/// Columns as an Arrow IPC stream.
#[pyfunction]
pub(crate) fn ipc_from_columns<'py>(py: Python<'py>, columns: Vec<Column>) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = py.detach(|| write_columns(columns)).into_py(py)?;
    Ok(PyBytes::new(py, &bytes))
}

// ---- tables that definitions refer to ---------------------------------------------------------------------------------

/// Rows that this process keeps for its own definitions, until the last of these objects is dropped.
#[pyclass(frozen, module = "caju._caju", name = "InlineTable")]
pub(crate) struct PyInlineTable {
    /// The name that definitions use.
    #[pyo3(get)]
    sha256: String,
    table: Arc<InlineTable>,
}

#[pymethods]
impl PyInlineTable {
    /// The number of rows.
    #[getter]
    fn num_rows(&self) -> u64 {
        self.table.num_rows()
    }

    /// The size of their Arrow IPC stream in bytes.
    #[getter]
    fn num_bytes(&self) -> u64 {
        self.table.num_bytes()
    }

    /// Their Arrow IPC stream.
    fn ipc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let ipc = py.detach(|| self.table.ipc()).into_py(py)?;
        Ok(PyBytes::new(py, &ipc))
    }

    /// Pickled by value: another process keeps a copy.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        Ok((py.import("caju._caju")?.getattr("register_rows")?, (self.ipc(py)?,)))
    }
}

fn register(py: Python<'_>, stream: impl FnOnce() -> Result<Bytes> + Send) -> PyResult<PyInlineTable> {
    let (sha256, table) = py.detach(|| stream().and_then(register_inline_table)).into_py(py)?;
    Ok(PyInlineTable { sha256, table })
}

/// Keeps the rows of an Arrow IPC stream, over the same bytes.
#[pyfunction]
pub(crate) fn register_rows(py: Python<'_>, ipc: PyBackedBytes) -> PyResult<PyInlineTable> {
    register(py, move || Ok(Bytes::from_owner(ipc)))
}

/// Keeps the rows of columns; columns as in `ipc_from_columns`.
#[pyfunction]
pub(crate) fn register_columns(py: Python<'_>, columns: Vec<Column>) -> PyResult<PyInlineTable> {
    register(py, move || write_columns(columns).map(Bytes::from))
}

/// Keeps the rows of an object of Arrow's PyCapsule interface: a copy of them, or the memory that the object exports. `None` for
/// other objects.
#[pyfunction]
pub(crate) fn register_arrow(object: &Bound<'_, PyAny>, copy: bool) -> PyResult<Option<PyInlineTable>> {
    let (py, Some((schema, batches))) = (object.py(), import_batches(object)?) else { return Ok(None) };
    let (sha256, table) = py
        .detach(|| {
            let (schema, batches) = plain_batches(&schema, batches)?;
            if copy {
                let bytes = batches.iter().map(batch_bytes).sum();
                return register_inline_table(write_batches(&schema, &batches, reserved(bytes))?.into());
            }
            let (of, kept) = (Arc::clone(&schema), batches.clone());
            let write = move |out: &mut dyn Write| write_batches(&of, &kept, out).map(drop);
            register_batches(schema, batches, Box::new(write))
        })
        .into_py(py)?;
    Ok(Some(PyInlineTable { sha256, table }))
}

/// Rows that come in parts, so that memory holds each part once besides the stream that they form.
#[pyclass(frozen, module = "caju._caju")]
pub(crate) struct InlineTableBuilder {
    stream: Mutex<Option<IpcStream<Vec<u8>>>>,
}

#[pymethods]
impl InlineTableBuilder {
    /// An empty stream with `capacity` bytes reserved, whose messages have `message_rows` rows.
    #[new]
    fn new(capacity: usize, message_rows: usize) -> Self {
        Self { stream: Mutex::new(Some(IpcStream::new(reserved(capacity), message_rows))) }
    }

    /// Adds rows: columns as in `ipc_from_columns`. Every part except the last has a multiple of `message_rows` rows.
    fn add(&self, py: Python<'_>, columns: Vec<Column>) -> PyResult<()> {
        py.detach(|| match self.stream.lock().as_mut() {
            Some(stream) => stream.add(&build_batch(columns)?),
            None => Err(Error::internal("rows are added to a stream that has ended")),
        })
        .into_py(py)
    }

    /// Keeps the rows, and ends the stream.
    fn register(&self, py: Python<'_>) -> PyResult<PyInlineTable> {
        register(py, || match self.stream.lock().take() {
            Some(stream) => stream.finish().map(Bytes::from),
            None => Err(Error::internal("the stream has ended")),
        })
    }
}

// ---- schemas --------------------------------------------------------------------------------------------------------

/// The number of rows of an Arrow IPC stream.
#[pyfunction]
pub(crate) fn ipc_rows(py: Python<'_>, bytes: &[u8]) -> PyResult<usize> {
    let bad = |e| Error::data_loss(format!("not an Arrow IPC stream: {e}"));
    let count = || {
        let reader = StreamReader::try_new(std::io::Cursor::new(bytes), None).map_err(bad)?;
        reader.map(|b| b.map(|b| b.num_rows()).map_err(bad)).sum::<Result<usize>>()
    };
    count().into_py(py)
}

/// The schema of an Arrow IPC stream, as a stream without rows. With `nullable`, every field and every value may be null.
#[pyfunction]
#[pyo3(signature = (bytes, nullable=false))]
pub(crate) fn ipc_schema<'py>(
    py: Python<'py>,
    bytes: &[u8],
    nullable: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let schema = read_schema(bytes).into_py(py)?;
    let schema = match nullable {
        true => Schema::new(schema.fields().iter().map(|f| nullable_field(f)).collect::<Vec<_>>()),
        false => schema.as_ref().clone(),
    };
    Ok(PyBytes::new(py, &schema_to_ipc(&schema).into_py(py)?))
}

/// The schema of an Arrow IPC stream as a capsule.
#[pyfunction]
pub(crate) fn ipc_schema_capsule<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyCapsule>> {
    schema_capsule(py, read_schema(bytes).into_py(py)?.as_ref())
}

/// The schema of an object with `__arrow_c_schema__`, as an Arrow IPC stream without rows.
#[pyfunction]
pub(crate) fn schema_from_arrow<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let schema = import_schema(object)?;
    Ok(PyBytes::new(object.py(), &schema_to_ipc(&schema).into_py(object.py())?))
}

fn read_schema(ipc: &[u8]) -> Result<SchemaRef> {
    Ok(schema_from_ipc(ipc)?.unwrap_or_else(|| Arc::new(Schema::empty())))
}

/// The field with nulls allowed, also among the values of lists, tensors and structs.
fn nullable_field(field: &Field) -> Field {
    let inner = |f: &Field| Arc::new(nullable_field(f));
    let data_type = match field.data_type() {
        DataType::List(item) => DataType::List(inner(item)),
        DataType::FixedSizeList(item, n) => DataType::FixedSizeList(inner(item), *n),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|f| inner(f)).collect()),
        other => other.clone(),
    };
    field.clone().with_data_type(data_type).with_nullable(true)
}

// ---- writing --------------------------------------------------------------------------------------------------------

fn write_error(e: ArrowError) -> Error {
    let message = format!("rows cannot be written as Arrow: {e}");
    match e {
        // Types that the format has no form for, such as a dictionary of a dictionary.
        ArrowError::InvalidArgumentError(_) | ArrowError::NotYetImplemented(_) => {
            Error::unimplemented(format!("{message}; cast the column to another type"))
        }
        _ => Error::internal(message),
    }
}

/// Batches as an Arrow IPC stream.
///
/// # Errors
/// `Unimplemented` for types that the format has no form for.
pub(crate) fn write_ipc(schema: &Schema, batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let mut writer = StreamWriter::try_new(Vec::new(), schema).map_err(write_error)?;
    for batch in batches {
        writer.write(batch).map_err(write_error)?;
    }
    writer.finish().map_err(write_error)?;
    writer.into_inner().map_err(write_error)
}

fn write_columns(columns: Vec<Column>) -> Result<Vec<u8>> {
    if columns.is_empty() {
        return write_ipc(&Schema::empty(), &[]);
    }
    let bytes: usize = columns.iter().map(Column::bytes).sum();
    let rows = columns.first().map_or(0, Column::rows);
    let mut stream = IpcStream::new(reserved(bytes), message_rows(bytes / rows.max(1)));
    stream.add(&build_batch(columns)?)?;
    stream.finish()
}

/// The batches with plain columns. Views become plain strings and bytes, and metadata of the whole schema is dropped: pandas puts
/// its version there.
///
/// # Errors
/// `InvalidArgument` for values that plain columns cannot hold.
fn plain_batches(schema: &Schema, batches: Vec<RecordBatch>) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    let schema = Arc::new(Schema::new(plain_fields(schema.fields())));
    let plain = batches.into_iter().map(|b| plain_batch(&schema, b)).collect::<Result<_>>()?;
    Ok((schema, plain))
}

/// Writes batches of any sizes as a stream of even messages, so that the same rows in other batches give the same bytes.
///
/// # Errors
/// `Internal` if Arrow cannot write them.
fn write_batches<W: Write>(schema: &SchemaRef, batches: &[RecordBatch], out: W) -> Result<W> {
    let bytes: usize = batches.iter().map(batch_bytes).sum();
    let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
    // A power of two: the sum of bytes depends a little on the batches, and this hardly ever does.
    let per_message = 1 << message_rows(bytes / rows.max(1)).ilog2();
    let mut stream = IpcStream::new(out, per_message);
    let (mut pending, mut count) = (Vec::new(), 0);
    for batch in batches {
        let mut at = 0;
        while at < batch.num_rows() {
            let taken = (per_message - count).min(batch.num_rows() - at);
            pending.push(batch.slice(at, taken));
            (at, count) = (at + taken, count + taken);
            if count == per_message {
                stream.add(&concat_batches(schema, &std::mem::take(&mut pending)).map_err(write_error)?)?;
                count = 0;
            }
        }
    }
    // The rest; without rows, a batch that brings the schema.
    if count > 0 || rows == 0 {
        stream.add(&concat_batches(schema, &pending).map_err(write_error)?)?;
    }
    stream.finish()
}

fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap_or(0)).sum()
}

fn plain_fields(fields: &Fields) -> Fields {
    fields.iter().map(|f| Arc::new(f.as_ref().clone().with_data_type(plain_type(f.data_type())))).collect()
}

/// The type with plain strings and bytes in place of views, which several stages do not know, and with keys of dictionaries
/// that hold the values of several batches.
fn plain_type(data_type: &DataType) -> DataType {
    let inner = |f: &Field| Arc::new(f.clone().with_data_type(plain_type(f.data_type())));
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(item) => DataType::List(inner(item)),
        DataType::LargeList(item) => DataType::LargeList(inner(item)),
        DataType::FixedSizeList(item, n) => DataType::FixedSizeList(inner(item), *n),
        DataType::Struct(fields) => DataType::Struct(plain_fields(fields)),
        DataType::Map(entries, sorted) => DataType::Map(inner(entries), *sorted),
        DataType::Dictionary(key, value) => {
            with_wide_keys(&DataType::Dictionary(key.clone(), Box::new(plain_type(value))))
        }
        other => other.clone(),
    }
}

fn plain_batch(schema: &SchemaRef, batch: RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(schema.fields()).map(|(column, field)| {
        let failed = |e| Error::invalid(format!("column `{}`: {e}; give fewer rows per batch", field.name()));
        match column.data_type() == field.data_type() {
            true => Ok(Arc::clone(column)),
            false => cast(column, field.data_type()).map_err(failed),
        }
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .map_err(|e| Error::invalid(format!("the columns do not fit their schema: {e}")))
}

/// A buffer for a stream of rows of this size. If it is too small, it grows by a copy.
fn reserved(bytes: usize) -> Vec<u8> {
    /// Bytes of a stream beyond its rows, but for a 64th of them.
    const OVERHEAD: usize = 4096;
    Vec::with_capacity(bytes.saturating_add(bytes / 64) + OVERHEAD)
}

/// An Arrow IPC stream, while it is written.
struct IpcStream<W: Write> {
    message_rows: usize,
    state: Written<W>,
}

enum Written<W: Write> {
    Nothing(W),
    Schema(Box<StreamWriter<W>>),
    Failed,
}

impl<W: Write> IpcStream<W> {
    fn new(out: W, message_rows: usize) -> Self {
        Self { message_rows: message_rows.max(1), state: Written::Nothing(out) }
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut writer = match std::mem::replace(&mut self.state, Written::Failed) {
            Written::Nothing(out) => {
                Box::new(StreamWriter::try_new(out, &batch.schema()).map_err(write_error)?)
            }
            Written::Schema(writer) => writer,
            Written::Failed => return Err(Error::internal("rows are added to a stream that has failed")),
        };
        for at in (0..batch.num_rows()).step_by(self.message_rows) {
            let rows = self.message_rows.min(batch.num_rows() - at);
            writer.write(&batch.slice(at, rows)).map_err(write_error)?;
        }
        self.state = Written::Schema(writer);
        Ok(())
    }

    fn finish(self) -> Result<W> {
        let mut writer = match self.state {
            Written::Nothing(out) => {
                Box::new(StreamWriter::try_new(out, &Schema::empty()).map_err(write_error)?)
            }
            Written::Schema(writer) => writer,
            Written::Failed => return Err(Error::internal("a stream that has failed ends")),
        };
        writer.finish().map_err(write_error)?;
        writer.into_inner().map_err(write_error)
    }
}
