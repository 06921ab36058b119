//! Tables in the memory of this process, which definitions name by a hash of their content instead of carrying the rows.
//!
//! Only workers and dispatchers of the same process find them. A table stays registered as long as a handle of it exists, its
//! [`InlineTable`]: that of the caller that registered it, or of a task that reads it.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use arrow::ipc::reader::StreamDecoder;
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::{ArrowError, Schema, SchemaRef};
use bytes::Bytes;
use caju_pipeline::content_name;
use caju_runtime::catch;
use caju_types::{Error, ErrorKind, Result, hash128};
use parking_lot::Mutex;

use crate::ipc_bounds::check_stream;

static TABLES: LazyLock<Mutex<HashMap<String, Weak<InlineTable>>>> = LazyLock::new(Mutex::default);

/// A table in memory: an Arrow IPC stream, and the batches over its bytes.
#[derive(Debug)]
pub struct InlineTable {
    ipc: Bytes,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    rows: u64,
    hash: u128,
}

impl InlineTable {
    /// Reads the stream; the batches share its bytes where these are aligned, as those of writers are. `max_bytes` bounds
    /// the decompressed size of a batch.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are no Arrow IPC stream, `DataLoss` and `ResourceExhausted` for what its batches
    /// claim.
    pub(crate) fn read(ipc: Bytes, max_bytes: u64) -> Result<Self> {
        let bad = |e: ArrowError| {
            Error::invalid(format!("source memory: the rows are not a valid Arrow IPC stream: {e}"))
        };
        check_stream(&ipc, max_bytes).map_err(|e| e.context("source memory"))?;
        // The decoder panics over some schemas that were made by hand.
        let decoded = catch("decoding the rows", || Self::decode(&ipc));
        let (schema, batches) = decoded.and_then(|d| d.map_err(bad)).map_err(|e| match e.kind() {
            ErrorKind::Internal => Error::invalid(format!("source memory: {}", e.message())),
            _ => e,
        })?;
        let rows = batches.iter().map(|b| b.num_rows() as u64).sum();
        Ok(Self { schema, batches, rows, hash: hash128(&ipc), ipc })
    }

    fn decode(ipc: &Bytes) -> Result<(SchemaRef, Vec<RecordBatch>), ArrowError> {
        let mut decoder = StreamDecoder::new();
        let (mut batches, mut rest) = (Vec::new(), Buffer::from(ipc.clone()));
        while !rest.is_empty() {
            match decoder.decode(&mut rest)? {
                Some(batch) => batches.push(batch),
                None => break,
            }
        }
        decoder.finish()?;
        let schema = match (decoder.schema(), ipc.is_empty()) {
            (Some(schema), _) => schema,
            (None, true) => Arc::new(Schema::empty()),
            (None, false) => return Err(ArrowError::IpcError("it ends before its schema".into())),
        };
        Ok((schema, batches))
    }

    /// The Arrow IPC stream.
    pub fn ipc(&self) -> &Bytes {
        &self.ipc
    }

    /// The schema of the rows.
    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    /// The rows in batches.
    pub fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }

    /// The number of rows.
    pub fn num_rows(&self) -> u64 {
        self.rows
    }

    pub(crate) fn hash(&self) -> u128 {
        self.hash
    }
}

/// Registers the rows of an Arrow IPC stream until the last handle is dropped, and returns their name. Definitions refer
/// to them as the source `memory: { sha256: NAME }`.
///
/// # Errors
/// `InvalidArgument` if the bytes are no Arrow IPC stream.
pub fn register_inline_table(ipc: Bytes) -> Result<(String, Arc<InlineTable>)> {
    let name = content_name(&ipc);
    if let Some(rows) = TABLES.lock().get(&name).and_then(Weak::upgrade) {
        return Ok((name, rows));
    }
    // The rows are the process's own, so their size is not limited here.
    let rows = Arc::new(InlineTable::read(ipc, u64::MAX)?);
    let mut tables = TABLES.lock();
    tables.retain(|_, rows| rows.strong_count() > 0);
    tables.insert(name.clone(), Arc::downgrade(&rows));
    Ok((name, rows))
}

/// The registered table of a name.
///
/// # Errors
/// `FailedPrecondition` if this process has no table of that name.
pub(crate) fn find(name: &str) -> Result<Arc<InlineTable>> {
    TABLES.lock().get(name).and_then(Weak::upgrade).ok_or_else(|| {
        Error::failed_precondition(format!(
            "source memory: this process has no rows {name}: they are held by another process, or were dropped; write \
             them to storage, or put them into the definition (memory: {{ ipc: ... }})"
        ))
    })
}

#[cfg(test)]
mod tests {
    use arrow::ipc::writer::StreamWriter;
    use arrow_array::record_batch;

    use super::*;

    fn stream() -> Vec<u8> {
        let batch = record_batch!(("a", Int64, [1, 2, 3]), ("s", Utf8, ["x", "y", "z"])).unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    }

    #[test]
    fn rows_are_found_while_somebody_holds_them() {
        let (name, rows) = register_inline_table(stream().into()).unwrap();
        assert_eq!((rows.num_rows(), rows.batches().len()), (6, 2));
        let (again, same) = register_inline_table(stream().into()).unwrap();
        assert!(again == name && Arc::ptr_eq(&rows, &same));
        drop(rows);
        let reading = find(&name).unwrap();
        drop((same, reading));
        let gone = find(&name).unwrap_err();
        assert!(gone.message().contains("another process"), "{gone}");
    }

    #[test]
    fn batches_share_the_bytes_of_the_stream() {
        let bytes = Bytes::from(stream());
        let rows = InlineTable::read(bytes.clone(), u64::MAX).unwrap();
        let column = rows.batches()[0].column(0).to_data();
        let at = column.buffers()[0].as_ptr();
        assert!(bytes.as_ptr_range().contains(&at));
    }

    #[test]
    fn cut_streams_are_refused() {
        let whole = stream();
        for end in [1, 7, 50, whole.len() / 2] {
            let error = InlineTable::read(whole[..end].to_vec().into(), u64::MAX).unwrap_err();
            assert!(error.message().starts_with("source memory"), "{end}: {error}");
        }
    }
}
