//! Arrow columns as their buffers, from which pyarrow builds arrays without copying.

use arrow_array::{Array, RecordBatch};
use arrow_buffer::{BooleanBufferBuilder, Buffer as Bytes};
use arrow_schema::{DataType, Schema};
use caju_types::{Error, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::errors::IntoPy;
use crate::numpy::Buffer;

/// One array as a tuple: length, null count, offset, buffers (the validity first), children.
///
/// # Errors
/// `MemoryError`.
pub(crate) fn parts<'py>(py: Python<'py>, data: &arrow::array::ArrayData) -> PyResult<Bound<'py, PyTuple>> {
    let owned = |b: Bytes| Bound::new(py, Buffer::new(b)).map(Bound::into_any);
    let buffers = PyList::empty(py);
    match data.nulls().filter(|n| n.null_count() > 0) {
        None => buffers.append(py.None())?,
        Some(nulls) if nulls.offset() == data.offset() => buffers.append(owned(nulls.buffer().clone())?)?,
        Some(nulls) => {
            // The bits of the values and those of the validity may begin at different places; here at one.
            let mut bits = BooleanBufferBuilder::new(data.offset() + nulls.len());
            bits.append_n(data.offset(), false);
            bits.append_buffer(nulls.inner());
            buffers.append(owned(bits.finish().into_inner())?)?;
        }
    }
    for buffer in data.buffers() {
        buffers.append(owned(buffer.clone())?)?;
    }
    let children = PyList::empty(py);
    for child in data.child_data() {
        children.append(parts(py, child)?)?;
    }
    (data.len(), data.null_count(), data.offset(), buffers, children).into_pyobject(py)
}

/// Whether buffers alone say what a type is: no dictionaries, no views, no unions.
pub(crate) fn plain(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(..)
        | DataType::Utf8View
        | DataType::BinaryView
        | DataType::ListView(_)
        | DataType::LargeListView(_)
        | DataType::Union(..)
        | DataType::RunEndEncoded(..) => false,
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
            plain(f.data_type())
        }
        DataType::Struct(fields) => fields.iter().all(|f| plain(f.data_type())),
        _ => true,
    }
}

/// A batch as its columns' buffers; `None` where these do not say it all.
///
/// # Errors
/// `MemoryError`.
pub(crate) fn batch_parts<'py>(
    py: Python<'py>,
    batch: &RecordBatch,
) -> PyResult<Option<Vec<Bound<'py, PyTuple>>>> {
    if !batch.schema_ref().fields().iter().all(|f| plain(f.data_type())) {
        return Ok(None);
    }
    batch.columns().iter().map(|c| parts(py, &c.to_data())).collect::<PyResult<_>>().map(Some)
}

/// A batch as an Arrow IPC stream.
///
/// # Errors
/// `Internal` if Arrow cannot write it.
pub(crate) fn batch_ipc<'py>(py: Python<'py>, batch: &RecordBatch) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = py.detach(|| ipc(&batch.schema(), std::slice::from_ref(batch))).into_py(py)?;
    Ok(PyBytes::new(py, &bytes))
}

/// Batches as an Arrow IPC stream.
///
/// # Errors
/// `Internal` if Arrow cannot write them.
pub(crate) fn ipc(schema: &Schema, batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let failed = |e| Error::internal(format!("rows cannot be written as Arrow: {e}"));
    let mut writer = arrow::ipc::writer::StreamWriter::try_new(Vec::new(), schema).map_err(failed)?;
    for batch in batches {
        writer.write(batch).map_err(failed)?;
    }
    writer.finish().map_err(failed)?;
    writer.into_inner().map_err(failed)
}
