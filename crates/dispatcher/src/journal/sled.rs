//! The journal in a sled database.

use std::io;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use caju_types::{Error, Result};

use super::codec::{self, EncodedGroup};
use super::records::{self, Records, damaged, in_use, io_error, other_format};
use super::{Journal, StoredGroups};
use crate::state::Update;

/// The main file of the database in the journal's folder.
const FILE: &str = "db";
/// Marks a database as ours.
const FORMAT_KEY: &[u8] = b"format";
/// How long a database that was closed may stay locked.
const CLOSING: Duration = Duration::from_millis(300);
/// Memory for sled's page cache, in bytes; the journal is read once.
const CACHE_BYTES: u64 = 8 << 20;

/// A journal in a folder of the state directory.
#[derive(Debug)]
pub struct SledJournal {
    // Kept for `flush`, and because the trees die with it.
    db: ::sled::Db,
    trees: Trees,
    records: Records,
    path: PathBuf,
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
        let records = Records::open(folder, FILE)?;
        let config = ::sled::Config::new().path(folder).cache_capacity(CACHE_BYTES).flush_every_ms(None);
        let db = open_database(&config).map_err(at)?;
        let meta = db.open_tree("meta").map_err(at)?;
        let groups = db.open_tree("groups").map_err(at)?;
        match meta.get(FORMAT_KEY).map_err(at)? {
            Some(found) if found == codec::SCHEMA.as_bytes() => {}
            Some(found) if codec::FORMER_SCHEMAS.iter().any(|former| found == former.as_bytes()) => {
                meta.insert(FORMAT_KEY, codec::SCHEMA.as_bytes()).map_err(at)?;
            }
            Some(found) => {
                let found = String::from_utf8_lossy(&found).into_owned();
                return Err(other_format(folder, &found));
            }
            None if groups.is_empty() && db.tree_names().len() <= 3 && db.is_empty() => {
                meta.insert(FORMAT_KEY, codec::SCHEMA.as_bytes()).map_err(at)?;
                db.flush().map_err(at)?;
            }
            None => return Err(damaged(folder, "it is a database of something else")),
        }
        let snapshots = db.open_tree("snapshots").map_err(at)?;
        let trees = Trees { groups, snapshots };
        let mut journal = Self { db, trees, records, path: folder.to_path_buf() };
        let replayed = journal.replay()?;
        Ok((journal, replayed))
    }

    /// Applies changes that end before record number `next`, and makes them durable.
    fn commit(&mut self, batch: ::sled::Batch, next: u64) -> Result<()> {
        self.trees.groups.apply_batch(batch).map_err(|e| self.io(e))?;
        self.db.flush().map_err(|e| self.io(e))?;
        self.records.written(next)
    }

    fn io(&self, e: ::sled::Error) -> Error {
        classify(&self.path, e)
    }
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
        let path = &self.path;
        let stored = self.trees.stored(None).map_err(|e| classify(path, e))?;
        self.records.decode(stored.map(|entry| record(path, entry)))
    }

    fn append(&mut self, groups: &[Vec<Update>]) -> Result<u64> {
        let mut batch = ::sled::Batch::default();
        let (mut next, mut bytes) = (self.records.next(), 0);
        for group in groups {
            let encoded = self.records.encode(group)?;
            bytes += encoded.len() as u64;
            batch.insert(&next.to_be_bytes(), encoded);
            next += 1;
        }
        self.commit(batch, next)?;
        Ok(bytes)
    }

    fn stored(&self) -> Result<Box<dyn StoredGroups>> {
        Ok(Box::new(StoredInSled {
            db: self.db.clone(),
            trees: self.trees.clone(),
            end: self.records.next(),
            path: self.path.clone(),
        }))
    }

    fn describe(&self) -> String {
        format!("sled in {}", self.path.display())
    }
}

/// What holds the records.
#[derive(Debug, Clone)]
struct Trees {
    /// Groups by their numbers.
    groups: ::sled::Tree,
    /// The group that replaces all groups up to its number, and the previous such group until it is removed. In the same tree
    /// as the others, this large group would be written again with each of its neighbours.
    snapshots: ::sled::Tree,
}

impl Trees {
    /// The last snapshot and the groups after it, up to `end`; each under its number.
    fn stored(
        &self,
        end: Option<u64>,
    ) -> ::sled::Result<impl Iterator<Item = ::sled::Result<(::sled::IVec, ::sled::IVec)>> + use<>> {
        let end = end.map_or_else(|| vec![u8::MAX; 9], |end| end.to_be_bytes().to_vec());
        // There are two at most. sled's reverse iterator is not used: it brings a constant of 1 MiB into the binary.
        let mut before = self.snapshots.range(..end.as_slice());
        let snapshot = before.try_fold(None, |_, entry| entry.map(Some))?;
        let from = snapshot.as_ref().map_or(Bound::Unbounded, |(number, _)| Bound::Excluded(number.to_vec()));
        let groups = self.groups.range((from, Bound::Excluded(end)));
        Ok(snapshot.map(Ok).into_iter().chain(groups))
    }
}

/// The records before a number.
struct StoredInSled {
    db: ::sled::Db,
    trees: Trees,
    end: u64,
    path: PathBuf,
}

/// Records that are removed in one step: others write between two steps.
const REMOVED_AT_ONCE: usize = 1024;

impl StoredGroups for StoredInSled {
    fn read(&mut self) -> Result<Vec<Vec<Update>>> {
        let stored = self.trees.stored(Some(self.end)).map_err(|e| classify(&self.path, e))?;
        Ok(records::decode(&self.path, stored.map(|entry| record(&self.path, entry)))?.0)
    }

    fn replace(&mut self, group: &EncodedGroup) -> Result<u64> {
        let io = |e: ::sled::Error| classify(&self.path, e);
        // It has the number of the last one, so that the numbers have no gap, whatever is removed of the others by then.
        let number = self.end.saturating_sub(1).to_be_bytes();
        self.trees.snapshots.insert(number, group.bytes()).map_err(io)?;
        self.db.flush().map_err(io)?;
        loop {
            let mut batch = ::sled::Batch::default();
            let mut removed = 0;
            for key in self.trees.groups.range(..=number).keys().take(REMOVED_AT_ONCE) {
                batch.remove(key.map_err(io)?);
                removed += 1;
            }
            if removed == 0 {
                break;
            }
            self.trees.groups.apply_batch(batch).map_err(io)?;
        }
        for former in self.trees.snapshots.range(..number).keys() {
            self.trees.snapshots.remove(former.map_err(io)?).map_err(io)?;
        }
        Ok(group.bytes().len() as u64)
    }
}

fn record(path: &Path, entry: ::sled::Result<(::sled::IVec, ::sled::IVec)>) -> Result<(u64, ::sled::IVec)> {
    let (key, value) = entry.map_err(|e| classify(path, e))?;
    let key: [u8; 8] = key.as_ref().try_into().map_err(|_| damaged(path, "a key is odd"))?;
    Ok((u64::from_be_bytes(key), value))
}

fn classify(folder: &Path, e: ::sled::Error) -> Error {
    match e {
        ::sled::Error::Io(e) if is_locked(&e) => in_use(folder),
        ::sled::Error::Io(e) => io_error(folder, &e),
        ::sled::Error::Corruption { .. } => damaged(folder, "sled finds damaged data in it"),
        e => damaged(folder, &e.to_string()),
    }
}
