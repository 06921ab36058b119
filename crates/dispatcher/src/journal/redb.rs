//! The journal in a redb database.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::redb::{Builder, Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use caju_types::{Error, Result};

use super::codec::{self, EncodedGroup};
use super::records::{self, Records, damaged, in_use, io_error, other_format};
use super::{Journal, StoredGroups};
use crate::state::Update;

/// The file of the database in the journal's folder.
const FILE: &str = "db.redb";
/// What the database is: one entry, [`FORMAT_KEY`].
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");
/// Marks a database as ours.
const FORMAT_KEY: &str = "format";
/// Groups by the number of their record.
const GROUPS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("groups");
/// Memory for redb's page cache, in bytes; the journal is read once.
const CACHE_BYTES: usize = 8 << 20;

/// A journal in a folder of the state directory.
#[derive(Debug)]
pub struct RedbJournal {
    db: Arc<Database>,
    records: Records,
    path: PathBuf,
}

impl RedbJournal {
    /// Opens or makes the journal in `folder` and reads it.
    ///
    /// # Errors
    /// `FailedPrecondition` if another process has it open, `PermissionDenied` or `Unavailable` if the file
    /// system refuses, `DataLoss` if it is damaged or not a journal.
    pub fn open(folder: &Path) -> Result<(Self, Vec<Vec<Update>>)> {
        // redb is not meant to panic on damage, and its debug builds do.
        let opened = catch_unwind(AssertUnwindSafe(|| Self::open_inner(folder)));
        opened.unwrap_or_else(|_| Err(damaged(folder, "the database does not open")))
    }

    fn open_inner(folder: &Path) -> Result<(Self, Vec<Vec<Update>>)> {
        let records = Records::open(folder, FILE)?;
        let mut builder = Builder::new();
        // Without the check a file that was changed outside of redb is trusted.
        builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
        let db = builder.create(folder.join(FILE)).map_err(|e| classify(folder, e))?;
        let mut journal = Self { db: Arc::new(db), records, path: folder.to_path_buf() };
        journal.check_format()?;
        let replayed = journal.replay()?;
        Ok((journal, replayed))
    }

    /// Marks a new database as ours.
    ///
    /// # Errors
    /// `DataLoss` if another program wrote it, `FailedPrecondition` if a later version did.
    fn check_format(&self) -> Result<()> {
        let change = self.db.begin_write().map_err(|e| self.error(e))?;
        let is_new = change.list_tables().map_err(|e| self.error(e))?.next().is_none();
        let mut is_former = false;
        {
            let mut meta = change.open_table(META).map_err(|e| self.error(e))?;
            let found = meta.get(FORMAT_KEY).map_err(|e| self.error(e))?.map(|v| v.value().to_string());
            match found {
                Some(found) if found == codec::SCHEMA => {}
                Some(found) if codec::FORMER_SCHEMAS.contains(&found.as_str()) => {
                    meta.insert(FORMAT_KEY, codec::SCHEMA).map_err(|e| self.error(e))?;
                    is_former = true;
                }
                Some(found) => return Err(other_format(&self.path, &found)),
                None if is_new => {
                    meta.insert(FORMAT_KEY, codec::SCHEMA).map_err(|e| self.error(e))?;
                    change.open_table(GROUPS).map_err(|e| self.error(e))?;
                }
                None => return Err(damaged(&self.path, "it is a database of something else")),
            }
        }
        if is_new || is_former {
            change.commit().map_err(|e| self.error(e))
        } else {
            change.abort().map_err(|e| self.error(e))
        }
    }

    /// Writes groups under the next numbers, durably.
    fn write(&mut self, groups: &[Vec<Update>]) -> Result<u64> {
        let change = self.db.begin_write().map_err(|e| self.error(e))?;
        let (mut next, mut bytes) = (self.records.next(), 0);
        {
            let mut table = change.open_table(GROUPS).map_err(|e| self.error(e))?;
            for group in groups {
                let encoded = self.records.encode(group)?;
                bytes += encoded.len() as u64;
                table.insert(next, encoded.as_slice()).map_err(|e| self.error(e))?;
                next += 1;
            }
        }
        change.commit().map_err(|e| self.error(e))?;
        self.records.written(next)?;
        Ok(bytes)
    }

    fn error(&self, e: impl Into<::redb::Error>) -> Error {
        classify(&self.path, e)
    }
}

impl Journal for RedbJournal {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        let read = self.db.begin_read().map_err(|e| self.error(e))?;
        let table = read.open_table(GROUPS).map_err(|e| self.error(e))?;
        let entries = table.iter().map_err(|e| self.error(e))?;
        let path = &self.path;
        self.records.decode(entries.map(|entry| record(path, entry)))
    }

    fn append(&mut self, groups: &[Vec<Update>]) -> Result<u64> {
        self.write(groups)
    }

    fn stored(&self) -> Result<Box<dyn StoredGroups>> {
        let (db, end, path) = (Arc::clone(&self.db), self.records.next(), self.path.clone());
        Ok(Box::new(StoredInRedb { db, end, path }))
    }

    fn describe(&self) -> String {
        format!("redb in {}", self.path.display())
    }
}

/// The records before a number.
struct StoredInRedb {
    db: Arc<Database>,
    end: u64,
    path: PathBuf,
}

impl StoredInRedb {
    fn error(&self, e: impl Into<::redb::Error>) -> Error {
        classify(&self.path, e)
    }
}

impl StoredGroups for StoredInRedb {
    fn read(&mut self) -> Result<Vec<Vec<Update>>> {
        // They are decoded after the transaction: as long as it is open, the file grows with each commit.
        let stored: Vec<Result<(u64, Vec<u8>)>> = {
            let read = self.db.begin_read().map_err(|e| self.error(e))?;
            let table = read.open_table(GROUPS).map_err(|e| self.error(e))?;
            let entries = table.range(..self.end).map_err(|e| self.error(e))?;
            entries.map(|entry| record(&self.path, entry)).collect()
        };
        Ok(records::decode(&self.path, stored.into_iter())?.0)
    }

    fn replace(&mut self, group: &EncodedGroup) -> Result<u64> {
        // It has the number of the last one, so that the numbers have no gap.
        let number = self.end.saturating_sub(1);
        let change = self.db.begin_write().map_err(|e| self.error(e))?;
        {
            let mut table = change.open_table(GROUPS).map_err(|e| self.error(e))?;
            table.retain_in(..number, |_, _| false).map_err(|e| self.error(e))?;
            table.insert(number, group.bytes()).map_err(|e| self.error(e))?;
        }
        change.commit().map_err(|e| self.error(e))?;
        Ok(group.bytes().len() as u64)
    }
}

type Entry<'a> = (::redb::AccessGuard<'a, u64>, ::redb::AccessGuard<'a, &'static [u8]>);

fn record(
    path: &Path,
    entry: std::result::Result<Entry<'_>, ::redb::StorageError>,
) -> Result<(u64, Vec<u8>)> {
    let (number, value) = entry.map_err(|e| classify(path, e))?;
    Ok((number.value(), value.value().to_vec()))
}

fn classify(folder: &Path, e: impl Into<::redb::Error>) -> Error {
    match e.into() {
        ::redb::Error::Io(e) => io_error(folder, &e),
        ::redb::Error::DatabaseAlreadyOpen | ::redb::Error::LockProtocolMismatch => in_use(folder),
        e => damaged(folder, &e.to_string()),
    }
}
