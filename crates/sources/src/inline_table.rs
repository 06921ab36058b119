//! Tables in the memory of this process, which definitions name by a hash of their content instead of carrying the rows.
//!
//! Only workers and dispatchers of the same process find them. A table stays registered as long as a handle of it exists, its
//! [`InlineTable`]: that of the caller that registered it, or of a task that reads it.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Weak};

use arrow::ipc::reader::StreamDecoder;
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::{ArrowError, Schema, SchemaRef};
use bytes::Bytes;
use caju_pipeline::{ContentHasher, content_name};
use caju_runtime::catch;
use caju_types::{Error, ErrorKind, Result, hash128};
use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use crate::ipc_bounds::{check_stream, depth_error};

/// The tables of each name: a copy of the rows, and the memory of somebody else that has the same rows.
static TABLES: LazyLock<Mutex<HashMap<String, Vec<Weak<InlineTable>>>>> = LazyLock::new(Mutex::default);

/// A table in memory: an Arrow IPC stream and the batches over its bytes, or the batches of somebody else.
#[derive(Debug)]
pub struct InlineTable {
    stream: TableStream,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    rows: u64,
    hash: u128,
}

/// The Arrow IPC stream of a table.
enum TableStream {
    Bytes(Bytes),
    /// It is written when it is needed.
    Written {
        name: String,
        bytes: u64,
        write: Box<WriteIpc>,
    },
}

impl fmt::Debug for TableStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Written { name, bytes, .. } => write!(f, "{bytes} bytes of {name}, not written"),
        }
    }
}

/// Writes the Arrow IPC stream of a table; the same bytes whenever it is called.
pub type WriteIpc = dyn Fn(&mut dyn Write) -> Result<()> + Send + Sync;

/// Digests of a stream that is written to it.
#[derive(Default)]
struct Digests {
    name: ContentHasher,
    hash: Xxh3,
    bytes: u64,
}

impl Write for Digests {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.name.update(bytes);
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
            depth_error("source memory", &e.to_string()).unwrap_or_else(|| {
                Error::invalid(format!("source memory: the rows are not a valid Arrow IPC stream: {e}"))
            })
        };
        check_stream(&ipc, max_bytes).map_err(|e| e.context("source memory"))?;
        // The decoder panics over some schemas that were made by hand.
        let decoded = catch("decoding the rows", || Self::decode(&ipc));
        let (schema, batches) = decoded.and_then(|d| d.map_err(bad)).map_err(|e| match e.kind() {
            ErrorKind::Internal => Error::invalid(format!("source memory: {}", e.message())),
            _ => e,
        })?;
        let rows = batches.iter().map(|b| b.num_rows() as u64).sum();
        Ok(Self { schema, batches, rows, hash: hash128(&ipc), stream: TableStream::Bytes(ipc) })
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

    /// The Arrow IPC stream. That of [`register_batches`] is written for each call.
    ///
    /// # Errors
    /// `FailedPrecondition` if the rows were changed since they were registered.
    pub fn ipc(&self) -> Result<Bytes> {
        match &self.stream {
            TableStream::Bytes(bytes) => Ok(bytes.clone()),
            TableStream::Written { name, bytes, write } => {
                let mut out = Vec::with_capacity(usize::try_from(*bytes).unwrap_or(0));
                write(&mut out)?;
                if content_name(&out) != *name {
                    return Err(Error::failed_precondition(format!(
                        "source memory: the rows {name} were changed after a dataset was made of them without a copy; make \
                         the dataset again, or let it copy them"
                    )));
                }
                Ok(out.into())
            }
        }
    }

    /// Bytes of the Arrow IPC stream.
    pub fn num_bytes(&self) -> u64 {
        match &self.stream {
            TableStream::Bytes(bytes) => bytes.len() as u64,
            TableStream::Written { bytes, .. } => *bytes,
        }
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

    /// Whether the rows are a copy, which nobody changes.
    fn is_copy(&self) -> bool {
        matches!(self.stream, TableStream::Bytes(_))
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
    // The memory of somebody else may change.
    if let Some(rows) = registered(&name).filter(|rows| rows.is_copy()) {
        return Ok((name, rows));
    }
    // The rows are the process's own, so their size is not limited here.
    let rows = Arc::new(InlineTable::read(ipc, u64::MAX)?);
    enter(&name, &rows);
    Ok((name, rows))
}

/// Registers batches as they are, without a copy. `write` writes them as an Arrow IPC stream, from whose bytes their name is
/// computed. It is called once now, and whenever the stream is needed. Whoever changes the memory of the batches makes a dataset
/// with other rows than its fingerprint says.
///
/// # Errors
/// Those of `write`.
pub fn register_batches(
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    write: Box<WriteIpc>,
) -> Result<(String, Arc<InlineTable>)> {
    let mut digests = Digests::default();
    write(&mut digests)?;
    let Digests { name, hash, bytes } = digests;
    let name = name.name();
    if let Some(rows) = registered(&name) {
        return Ok((name, rows));
    }
    let rows = batches.iter().map(|b| b.num_rows() as u64).sum();
    let stream = TableStream::Written { name: name.clone(), bytes, write };
    let rows = Arc::new(InlineTable { stream, schema, batches, rows, hash: hash.digest128() });
    enter(&name, &rows);
    Ok((name, rows))
}

fn enter(name: &str, rows: &Arc<InlineTable>) {
    let mut tables = TABLES.lock();
    tables.retain(|_, of_name| {
        of_name.retain(|rows| rows.strong_count() > 0);
        !of_name.is_empty()
    });
    tables.entry(name.to_string()).or_default().push(Arc::downgrade(rows));
}

/// A table of a name, a copy if there is one.
fn registered(name: &str) -> Option<Arc<InlineTable>> {
    let tables = TABLES.lock();
    let alive = || tables.get(name).into_iter().flatten().filter_map(Weak::upgrade);
    alive().find(|rows| rows.is_copy()).or_else(|| alive().next())
}

/// The registered table of a name.
///
/// # Errors
/// `FailedPrecondition` if this process has no table of that name.
pub(crate) fn find(name: &str) -> Result<Arc<InlineTable>> {
    registered(name).ok_or_else(|| {
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
    fn batches_are_registered_as_they_are_under_the_name_of_their_stream() {
        let copied = register_inline_table(stream().into()).unwrap();
        let name = copied.0.clone();
        drop(copied);
        let batch = record_batch!(("a", Int64, [1, 2, 3]), ("s", Utf8, ["x", "y", "z"])).unwrap();
        let write =
            |out: &mut dyn Write| out.write_all(&stream()).map_err(|e| Error::internal(e.to_string()));
        let batches = vec![batch.clone(), batch.clone()];
        let (same, rows) = register_batches(batch.schema(), batches, Box::new(write)).unwrap();
        assert_eq!(
            (same.as_str(), rows.num_rows(), rows.num_bytes()),
            (name.as_str(), 6, stream().len() as u64)
        );
        assert_eq!(rows.hash(), hash128(&stream()));
        assert_eq!(rows.ipc().unwrap(), stream());
        let place = |b: &RecordBatch| b.column(0).to_data().buffers()[0].as_ptr();
        assert_eq!(place(&find(&name).unwrap().batches()[1]), place(&batch), "no copy");
        // Whoever asks for a copy gets one, and the tables live as long as their own handles.
        let (_, copy) = register_inline_table(stream().into()).unwrap();
        assert_ne!(place(&copy.batches()[1]), place(&batch));
        assert!(Arc::ptr_eq(&find(&name).unwrap(), &copy));
        drop(copy);
        assert!(Arc::ptr_eq(&find(&name).unwrap(), &rows));
        drop(rows);
        find(&name).unwrap_err();
    }

    #[test]
    fn rows_that_were_changed_are_not_written_under_their_former_name() {
        let value = Arc::new(std::sync::atomic::AtomicU8::new(1));
        let now = Arc::clone(&value);
        let write = move |out: &mut dyn Write| {
            let bytes = [now.load(std::sync::atomic::Ordering::Relaxed)];
            out.write_all(&bytes).map_err(|e| Error::internal(e.to_string()))
        };
        let (_, rows) = register_batches(Arc::new(Schema::empty()), Vec::new(), Box::new(write)).unwrap();
        rows.ipc().unwrap();
        value.store(2, std::sync::atomic::Ordering::Relaxed);
        let e = rows.ipc().unwrap_err();
        assert!(e.message().contains("were changed after a dataset was made"), "{e}");
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
