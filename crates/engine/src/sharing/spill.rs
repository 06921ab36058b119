//! Files with rows of the window.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::StreamWriter;
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_schema::SchemaRef;
use caju_runtime::PrivateFolder;
use caju_types::{Error, Result, hash128};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The prefix of the names of folders with spilled rows.
const PREFIX: &str = "caju-spill-";

/// A private folder for rows that do not fit in a window's memory. It is removed with the window. The folder of a process that
/// was killed is removed by the next one that uses the same place.
#[derive(Debug)]
pub struct SpillFolder {
    folder: PrivateFolder,
    limit_bytes: u64,
    /// Bytes of all files, also of those that no task needs and that are not yet removed.
    used_bytes: AtomicU64,
    next_file: AtomicU64,
    /// Files that no task needs.
    unused: Mutex<Vec<UnusedFile>>,
    /// There may be something to write or to remove.
    pub(super) changed: Notify,
    /// An error of writing was logged.
    pub(super) write_failed: AtomicBool,
    /// An error of reading was logged.
    pub(super) read_failed: AtomicBool,
}

#[derive(Debug)]
struct UnusedFile {
    path: PathBuf,
    bytes: u64,
}

impl SpillFolder {
    /// Creates a folder for at most `limit_bytes` bytes in `place`, or in the folder for temporary files. Blocking.
    ///
    /// # Errors
    /// `Unavailable` if no folder can be created there.
    pub fn new(place: Option<&Path>, limit_bytes: u64) -> Result<Self> {
        let place = place.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let mut create = std::fs::DirBuilder::new();
        let created = create.recursive(true).mode(0o700).create(&place);
        let folder = created.and_then(|()| PrivateFolder::new(&place, PREFIX)).map_err(|e| {
            Error::unavailable(format!(
                "no folder for spilled rows can be created in {}: {e}; choose another place with --sharing-spill-dir",
                place.display()
            ))
        })?;
        Ok(Self {
            folder,
            limit_bytes,
            used_bytes: AtomicU64::new(0),
            next_file: AtomicU64::new(0),
            unused: Mutex::default(),
            changed: Notify::new(),
            write_failed: AtomicBool::new(false),
            read_failed: AtomicBool::new(false),
        })
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Bytes of the files, and the most that they may have.
    pub(super) fn usage(&self) -> (u64, u64) {
        (self.used_bytes.load(Ordering::Relaxed), self.limit_bytes)
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.limit_bytes.saturating_sub(self.used_bytes.load(Ordering::Relaxed))
    }

    /// Writes batches to a file, each as an Arrow IPC stream. None if they do not fit. Blocking.
    ///
    /// # Errors
    /// `Unavailable` for errors of the file system, `Internal` for rows that Arrow IPC cannot hold.
    pub(super) fn write(self: &Arc<Self>, batches: &[RecordBatch]) -> Result<Option<Vec<SpilledBatch>>> {
        let number = self.next_file.fetch_add(1, Ordering::Relaxed);
        let path = self.path().join(format!("{number}.arrows"));
        let io = |e: std::io::Error| Error::unavailable(format!("{}: {e}", path.display()));
        let mut out = File::options().write(true).create_new(true).mode(0o600).open(&path).map_err(io)?;
        // Dropping it removes the file.
        let mut file = SpillFile { folder: Arc::clone(self), path: path.clone(), bytes: 0 };
        let mut ranges = Vec::with_capacity(batches.len());
        for batch in batches {
            let encoded = encode(batch)?;
            let (offset, len) = (file.bytes, encoded.len() as u64);
            if !file.grow(len) {
                return Ok(None);
            }
            out.write_all(&encoded).map_err(io)?;
            let range = FileRange { offset, len: encoded.len(), hash: hash128(&encoded) };
            ranges.push((range, batch.schema(), batch.num_rows()));
        }
        let file = Arc::new(file);
        let spilled = |(range, schema, rows)| SpilledBatch { file: Arc::clone(&file), range, schema, rows };
        Ok(Some(ranges.into_iter().map(spilled).collect()))
    }

    pub(super) fn has_unused(&self) -> bool {
        !self.unused.lock().is_empty()
    }

    /// Removes the files that no task needs. Blocking.
    pub(super) fn remove_unused(&self) {
        for file in std::mem::take(&mut *self.unused.lock()) {
            match std::fs::remove_file(&file.path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    // Its bytes still count.
                    tracing::debug!(file = %file.path.display(), %error, "spilled rows cannot be removed");
                }
                _ => {
                    self.used_bytes.fetch_sub(file.bytes, Ordering::Relaxed);
                }
            }
        }
    }
}

/// A file of the folder. It becomes unused when this is dropped.
#[derive(Debug)]
struct SpillFile {
    folder: Arc<SpillFolder>,
    path: PathBuf,
    bytes: u64,
}

impl SpillFile {
    /// Takes further bytes of the folder's limit; false if it has not that many left.
    fn grow(&mut self, bytes: u64) -> bool {
        let (used, limit) = (&self.folder.used_bytes, self.folder.limit_bytes);
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
        let fits = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        self.bytes += if fits { bytes } else { 0 };
        fits
    }
}

impl Drop for SpillFile {
    fn drop(&mut self) {
        let file = UnusedFile { path: std::mem::take(&mut self.path), bytes: self.bytes };
        self.folder.unused.lock().push(file);
        self.folder.changed.notify_one();
    }
}

/// Where a batch is in its file.
#[derive(Debug, Clone, Copy)]
struct FileRange {
    offset: u64,
    len: usize,
    /// Of its bytes.
    hash: u128,
}

/// A batch in a file.
#[derive(Debug, Clone)]
pub(super) struct SpilledBatch {
    file: Arc<SpillFile>,
    range: FileRange,
    schema: SchemaRef,
    rows: usize,
}

impl SpilledBatch {
    /// Its bytes in the file.
    pub(super) fn file_bytes(&self) -> u64 {
        self.range.len as u64
    }

    /// Reads the batch. Blocking.
    ///
    /// # Errors
    /// `Unavailable` for errors of the file system, `DataLoss` if the bytes are not those that were written.
    pub(super) fn read(&self) -> Result<RecordBatch> {
        let path = self.file.path.display();
        let io = |e| Error::unavailable(format!("{path}: {e}"));
        let mut bytes = vec![0; self.range.len];
        let file = File::open(&self.file.path).map_err(io)?;
        file.read_exact_at(&mut bytes, self.range.offset).map_err(io)?;
        if hash128(&bytes) != self.range.hash {
            let at = self.range.offset;
            return Err(Error::data_loss(format!("{path}: the bytes from {at} on have another checksum")));
        }
        let batch = decode(bytes, &self.schema)?;
        match batch.num_rows() == self.rows {
            true => Ok(batch),
            false => {
                Err(Error::data_loss(format!("{path}: {} rows in place of {}", batch.num_rows(), self.rows)))
            }
        }
    }
}

/// A batch as an Arrow IPC stream.
fn encode(batch: &RecordBatch) -> Result<Vec<u8>> {
    let written = StreamWriter::try_new(Vec::new(), &batch.schema()).and_then(|mut out| {
        out.write(batch)?;
        out.into_inner()
    });
    written.map_err(|e| Error::internal(format!("rows cannot be written as Arrow IPC: {e}")))
}

/// The batch of an Arrow IPC stream. The schema is that of the batch which was written: the columns have its types.
fn decode(bytes: Vec<u8>, schema: &SchemaRef) -> Result<RecordBatch> {
    let (mut decoder, mut bytes) = (StreamDecoder::new(), Buffer::from_vec(bytes));
    let read = decoder.decode(&mut bytes).and_then(|batch| match batch {
        Some(batch) => {
            let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            let columns = batch.columns().to_vec();
            RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map(Some)
        }
        None => Ok(None),
    });
    match read {
        Ok(Some(batch)) => Ok(batch),
        Ok(None) => Err(Error::data_loss("an Arrow IPC stream without rows")),
        Err(e) => Err(Error::data_loss(format!("a damaged Arrow IPC stream: {e}"))),
    }
}
