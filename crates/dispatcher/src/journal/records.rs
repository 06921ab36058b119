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
    /// None if the database has lost it.
    count: Option<fs::File>,
    encoder: Encoder,
}

impl Records {
    /// The numbering of the journal in `folder`, which is made if it does not exist. It is opened before `database`, the
    /// database's main file: a database without a count has lost it. [`Records::decode`] reports that, when the lock of the
    /// database shows that no other process has the journal open, and finds the next number.
    ///
    /// # Errors
    /// What the file system refuses.
    pub(super) fn open(folder: &Path, database: &str) -> Result<Self> {
        let failed = |e: io::Error| io_error(folder, &e);
        fs::create_dir_all(folder).map_err(failed)?;
        let path = folder.join(COUNT);
        if !path.exists() && !folder.join(database).exists() {
            create_count(&path).map_err(failed)?;
        }
        let count = match fs::File::options().read(true).write(true).open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            opened => Some(opened.map_err(failed)?),
        };
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
    /// `DataLoss` if one is missing or damaged, or if their count is.
    pub(super) fn decode<B: AsRef<[u8]>>(
        &mut self,
        records: impl Iterator<Item = Result<(u64, B)>>,
    ) -> Result<Vec<Vec<Update>>> {
        let (out, next) = decode(&self.folder, records)?;
        self.next = next;
        let counted = self.count.as_ref().and_then(read_count).ok_or_else(|| {
            // The database may have dropped any of its last records.
            let left = out.len();
            let what = format!(
                "the file `{COUNT}`, which counts its records, is missing or damaged, and {left} can be read"
            );
            damaged(&self.folder, &what)
        })?;
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
        let Some(count) = &self.count else {
            return Err(damaged(&self.folder, "it has no count of its records"));
        };
        count.write_all_at(&note(next), 0).map_err(|e| io_error(&self.folder, &e))
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

/// Makes the file that counts records, whole or not at all. Another process that makes it at the same moment has its own.
fn create_count(path: &Path) -> io::Result<()> {
    let new = path.with_extension(format!("{}.new", std::process::id()));
    let written = fs::File::create(&new).and_then(|file| {
        file.write_all_at(&note(0), 0)?;
        file.sync_all()
    });
    let made = written.and_then(|()| match fs::hard_link(&new, path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // Some file systems have no links. There a process that begins at the same moment may replace the file.
        Err(_) => fs::rename(&new, path),
        linked => linked,
    });
    // A file that is left is no part of the journal.
    fs::remove_file(&new).ok();
    made
}

/// The content of the file that counts records: the number, and its complement.
fn note(next: u64) -> [u8; 16] {
    let mut note = [0; 16];
    note[..8].copy_from_slice(&next.to_le_bytes());
    note[8..].copy_from_slice(&(!next).to_le_bytes());
    note
}

/// The records that were durable when that was last noted; none where nothing whole is noted.
fn read_count(file: &fs::File) -> Option<u64> {
    let (mut number, mut inverse) = ([0; 8], [0; 8]);
    let read = file.read_exact_at(&mut number, 0).and_then(|()| file.read_exact_at(&mut inverse, 8));
    let (number, inverse) = (u64::from_le_bytes(number), u64::from_le_bytes(inverse));
    (read.is_ok() && number == !inverse).then_some(number)
}

/// The error of a journal that is not what was written.
pub(super) fn damaged(folder: &Path, what: &str) -> Error {
    Error::data_loss(format!("journal {}: {what}", folder.display()))
}

/// The error of a database with another mark than [`codec::SCHEMA`]. One of a later version is whole: it is left as it is, for that
/// version.
pub(super) fn other_format(folder: &Path, found: &str) -> Error {
    let version = |schema: &str| schema.strip_prefix(codec::SCHEMA_PREFIX)?.parse::<u32>().ok();
    if version(found) > version(codec::SCHEMA) {
        return Error::failed_precondition(format!(
            "journal {}: a later version of caju wrote it, in the format `{found}`, and this one reads `{}`; start that version, \
             or give another --state-dir: this dispatcher then knows nothing of the former one's jobs",
            folder.display(),
            codec::SCHEMA
        ));
    }
    damaged(folder, &format!("it has the format `{found}`"))
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
