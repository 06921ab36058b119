//! The journal in a sled database.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use caju_types::{Error, Result};

use super::{Journal, codec};
use crate::state::Update;

/// The folder inside the state directory. Only this is ever renamed: a state directory given by mistake,
/// somebody's home say, stays as it is.
const FOLDER: &str = "journal-v1";
/// The file next to the database's own that counts the records.
const COUNT: &str = "caju-records";
/// Marks a database as ours.
const FORMAT_KEY: &[u8] = b"format";
/// How long a database that was closed may stay locked.
const CLOSING: Duration = Duration::from_millis(300);
/// Memory for sled's page cache; the journal is read once.
const CACHE_BYTES: u64 = 8 << 20;

/// A journal in a folder of the state directory.
#[derive(Debug)]
pub struct SledJournal {
    // Kept for `flush`, and because the trees die with it.
    db: ::sled::Db,
    groups: ::sled::Tree,
    next: u64,
    path: PathBuf,
    /// Counts the records outside of the database, so that it shows if the database has lost some.
    count: fs::File,
}

impl SledJournal {
    /// Opens or makes the journal in `folder` and reads it.
    ///
    /// # Errors
    /// `FailedPrecondition` if another process has it open, `PermissionDenied` or `Unavailable` if the file
    /// system refuses, `DataLoss` if it is damaged or not a journal.
    pub fn open(folder: &Path) -> Result<(Self, Vec<Vec<Update>>)> {
        // sled panics on some kinds of damage instead of returning an error.
        let opened = catch_unwind(AssertUnwindSafe(|| Self::open_inner(folder)));
        opened.unwrap_or_else(|_| Err(damaged(folder, "the database does not open")))
    }

    fn open_inner(folder: &Path) -> Result<(Self, Vec<Vec<Update>>)> {
        let at = |e: ::sled::Error| classify(folder, e);
        let config = ::sled::Config::new().path(folder).cache_capacity(CACHE_BYTES).flush_every_ms(None);
        let db = open_database(&config).map_err(at)?;
        let meta = db.open_tree("meta").map_err(at)?;
        let groups = db.open_tree("groups").map_err(at)?;
        match meta.get(FORMAT_KEY).map_err(at)? {
            Some(found) if found == codec::SCHEMA.as_bytes() => {}
            Some(found) => {
                let found = String::from_utf8_lossy(&found).into_owned();
                return Err(damaged(folder, &format!("it has the format `{found}`")));
            }
            None if groups.is_empty() && db.tree_names().len() <= 3 && db.is_empty() => {
                meta.insert(FORMAT_KEY, codec::SCHEMA.as_bytes()).map_err(at)?;
                db.flush().map_err(at)?;
            }
            None => return Err(damaged(folder, "it is a database of something else")),
        }
        let mut options = fs::File::options();
        options.read(true).write(true).create(true).truncate(false);
        let count = options.open(folder.join(COUNT)).map_err(|e| io_error(folder, &e))?;
        let mut journal = Self { db, groups, next: 0, path: folder.to_path_buf(), count };
        let replayed = journal.replay()?;
        Ok((journal, replayed))
    }

    /// Notes how many records are durable. It may be behind after a loss of power, never ahead.
    fn write_count(&self) -> Result<()> {
        let note = [self.next.to_le_bytes(), (!self.next).to_le_bytes()].concat();
        self.count.write_all_at(&note, 0).map_err(|e| io_error(&self.path, &e))
    }

    fn io(&self, e: ::sled::Error) -> Error {
        classify(&self.path, e)
    }
}

/// The records that were durable when that was last noted; 0 where nothing, or nothing whole, is noted.
fn read_count(file: &fs::File) -> u64 {
    let (mut number, mut inverse) = ([0; 8], [0; 8]);
    let read = file.read_exact_at(&mut number, 0).and_then(|()| file.read_exact_at(&mut inverse, 8));
    let (number, inverse) = (u64::from_le_bytes(number), u64::from_le_bytes(inverse));
    if read.is_ok() && number == !inverse { number } else { 0 }
}

/// sled gives the failed lock no kind of its own.
fn is_locked(e: &io::Error) -> bool {
    e.to_string().contains("could not acquire lock")
}

/// Opens a database. One that was closed just now is locked for a moment longer: threads of sled hold it until they
/// have noticed.
pub(super) fn open_database(config: &::sled::Config) -> ::sled::Result<::sled::Db> {
    let start = Instant::now();
    loop {
        match config.open() {
            Err(::sled::Error::Io(e)) if is_locked(&e) && start.elapsed() < CLOSING => {
                std::thread::park_timeout(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

impl Journal for SledJournal {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        let mut out = Vec::new();
        let mut expected: Option<u64> = None;
        for entry in self.groups.iter() {
            let (key, value) = entry.map_err(|e| self.io(e))?;
            let key: [u8; 8] = key.as_ref().try_into().map_err(|_| damaged(&self.path, "a key is odd"))?;
            let number = u64::from_be_bytes(key);
            if expected.is_some_and(|e| e != number) {
                return Err(damaged(&self.path, &format!("records before number {number} are missing")));
            }
            expected = Some(number + 1);
            out.push(codec::decode(&value).map_err(|e| e.context(self.path.display()))?);
        }
        self.next = expected.unwrap_or(0);
        let counted = read_count(&self.count);
        if self.next < counted {
            // sled cuts its log at the first damaged byte, and says nothing.
            return Err(damaged(
                &self.path,
                &format!(
                    "{} records of at least {counted} can be read, and the last {} are lost",
                    out.len(),
                    counted - self.next
                ),
            ));
        }
        Ok(out)
    }

    fn append(&mut self, groups: &[Vec<Update>]) -> Result<()> {
        let mut batch = ::sled::Batch::default();
        let mut next = self.next;
        for group in groups {
            batch.insert(&next.to_be_bytes(), codec::encode(group)?);
            next += 1;
        }
        self.groups.apply_batch(batch).map_err(|e| self.io(e))?;
        self.next = next;
        self.db.flush().map_err(|e| self.io(e))?;
        self.write_count()
    }

    fn replace(&mut self, group: &[Update]) -> Result<()> {
        let mut batch = ::sled::Batch::default();
        for key in self.groups.iter().keys() {
            batch.remove(key.map_err(|e| self.io(e))?);
        }
        batch.insert(&self.next.to_be_bytes(), codec::encode(group)?);
        self.groups.apply_batch(batch).map_err(|e| self.io(e))?;
        self.next += 1;
        self.db.flush().map_err(|e| self.io(e))?;
        self.write_count()
    }

    fn describe(&self) -> String {
        format!("sled in {}", self.path.display())
    }
}

fn damaged(folder: &Path, what: &str) -> Error {
    Error::data_loss(format!("journal {}: {what}", folder.display()))
}

fn classify(folder: &Path, e: ::sled::Error) -> Error {
    let place = folder.display();
    match e {
        ::sled::Error::Io(e) if is_locked(&e) => Error::failed_precondition(format!(
            "journal {place}: another dispatcher has it open; stop that one or give another --state-dir"
        )),
        ::sled::Error::Io(e) => io_error(folder, &e),
        e => damaged(folder, &e.to_string()),
    }
}

fn io_error(path: &Path, e: &io::Error) -> Error {
    let place = path.display();
    match e.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Error::permission_denied(
            format!("{place}: {e}; give a --state-dir that the dispatcher may write"),
        ),
        io::ErrorKind::StorageFull => {
            Error::exhausted(format!("{place}: {e}; make room or give another --state-dir"))
        }
        // What sled makes of bytes that it does not understand.
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

/// Opens the journal of a state directory; what is damaged or foreign there is renamed, with a warning, and a
/// new journal begun (I6). `unix_time` names what is set aside.
///
/// # Errors
/// As [`SledJournal::open`], less `DataLoss`; and if the directory cannot be made.
pub fn open_state_dir(dir: &Path, unix_time: Duration) -> Result<(SledJournal, Vec<Vec<Update>>)> {
    fs::create_dir_all(dir).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => Error::failed_precondition(format!(
            "{}: it is not a directory; give another --state-dir",
            dir.display()
        )),
        _ => io_error(dir, &e),
    })?;
    let folder = dir.join(FOLDER);
    let damage = match SledJournal::open(&folder) {
        Err(e) if e.kind() == caju_types::ErrorKind::DataLoss => e,
        other => return other,
    };
    let aside = dir.join(format!("{FOLDER}.set-aside-{}", unix_time.as_millis()));
    fs::rename(&folder, &aside).map_err(|e| io_error(&folder, &e))?;
    tracing::warn!(
        "{damage}; it is set aside as {} and a new journal begun: workers register again by themselves, \
         clients of unfinished jobs have to start their epoch anew",
        aside.display()
    );
    SledJournal::open(&folder)
}
