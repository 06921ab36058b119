//! What every database of a journal shares: records are numbered without gaps and counted outside of the database, and
//! what a file system says becomes an error of ours.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use caju_types::{Error, Result};

use super::codec::{self, Encoder};
use crate::state::Update;

/// The file next to the database's own that counts the records.
const COUNT: &str = "caju-records";

/// The numbers of a journal's records.
///
/// A database may silently drop its last records when it finds damage. Therefore the number of the next record is also
/// in a file of its own.
#[derive(Debug)]
pub(super) struct Records {
    /// The folder of the journal, for errors.
    folder: PathBuf,
    next: u64,
    count: fs::File,
    encoder: Encoder,
}

impl Records {
    /// The numbering of the journal in `folder`, which exists. [`Records::decode`] finds the next number.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let mut options = fs::File::options();
        options.read(true).write(true).create(true).truncate(false);
        let count = options.open(folder.join(COUNT)).map_err(|e| io_error(folder, &e))?;
        Ok(Self { folder: folder.to_path_buf(), next: 0, count, encoder: Encoder::new()? })
    }

    /// The stored form of a group.
    ///
    /// # Errors
    /// `Internal` for a group that cannot be written.
    pub(super) fn encode(&mut self, group: &[Update]) -> Result<Vec<u8>> {
        self.encoder.encode(group)
    }

    /// The number of the next record.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// The groups in all records of the database, which are given in their order.
    ///
    /// # Errors
    /// `DataLoss` if one is missing or damaged.
    pub(super) fn decode<B: AsRef<[u8]>>(
        &mut self,
        records: impl Iterator<Item = Result<(u64, B)>>,
    ) -> Result<Vec<Vec<Update>>> {
        let (out, next) = decode(&self.folder, records)?;
        self.next = next;
        let counted = read_count(&self.count);
        if self.next < counted {
            let (left, lost) = (out.len(), counted - self.next);
            let what =
                format!("{left} records of at least {counted} can be read, and the last {lost} are lost");
            return Err(damaged(&self.folder, &what));
        }
        Ok(out)
    }

    /// All records before `next` are durable. The note may be behind after a loss of power, never ahead.
    pub(super) fn written(&mut self, next: u64) -> Result<()> {
        self.next = next;
        let note = [next.to_le_bytes(), (!next).to_le_bytes()].concat();
        self.count.write_all_at(&note, 0).map_err(|e| io_error(&self.folder, &e))
    }
}

/// The groups in records that are given in their order, and the number after the last one.
///
/// # Errors
/// `DataLoss` if one is missing or damaged.
pub(super) fn decode<B: AsRef<[u8]>>(
    folder: &Path,
    records: impl Iterator<Item = Result<(u64, B)>>,
) -> Result<(Vec<Vec<Update>>, u64)> {
    let mut out = Vec::new();
    let mut expected: Option<u64> = None;
    for record in records {
        let (number, value) = record?;
        if expected.is_some_and(|e| e != number) {
            return Err(damaged(folder, &format!("records before number {number} are missing")));
        }
        expected = Some(number.saturating_add(1));
        out.push(codec::decode(value.as_ref()).map_err(|e| e.context(folder.display()))?);
    }
    Ok((out, expected.unwrap_or(0)))
}

/// The records that were durable when that was last noted; 0 where nothing, or nothing whole, is noted.
fn read_count(file: &fs::File) -> u64 {
    let (mut number, mut inverse) = ([0; 8], [0; 8]);
    let read = file.read_exact_at(&mut number, 0).and_then(|()| file.read_exact_at(&mut inverse, 8));
    let (number, inverse) = (u64::from_le_bytes(number), u64::from_le_bytes(inverse));
    if read.is_ok() && number == !inverse { number } else { 0 }
}

/// The error of a journal that is not what was written.
pub(super) fn damaged(folder: &Path, what: &str) -> Error {
    Error::data_loss(format!("journal {}: {what}", folder.display()))
}

/// The error of a journal that another process has open.
pub(super) fn in_use(folder: &Path) -> Error {
    Error::failed_precondition(format!(
        "journal {}: another dispatcher has it open; stop that one or give another --state-dir",
        folder.display()
    ))
}

/// What a file system said about a journal, as an error that says what to do.
pub(super) fn io_error(path: &Path, e: &io::Error) -> Error {
    let place = path.display();
    match e.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Error::permission_denied(
            format!("{place}: {e}; give a --state-dir that the dispatcher may write"),
        ),
        io::ErrorKind::StorageFull => {
            Error::exhausted(format!("{place}: {e}; make room or give another --state-dir"))
        }
        // What databases make of bytes that they do not understand.
        io::ErrorKind::InvalidData
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::UnexpectedEof
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::AlreadyExists
        | io::ErrorKind::Other => damaged(path, &e.to_string()),
        _ => Error::unavailable(format!("{place}: {e}")),
    }
}
