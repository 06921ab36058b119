//! Bounded caches that the sources of a process share: record starts, Parquet footers and opened saves.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use caju_runtime::{LockRank, OrderedMutex};
use caju_types::SplitKey;
use parking_lot::Mutex;
use parquet::file::metadata::ParquetMetaData;

use crate::split::FileRef;

/// The most files whose record starts are cached.
const INDEXED_FILES: usize = 4096;
/// The most Parquet footers that are cached.
const FOOTERS: usize = 512;
/// The most saves that stay open.
const SAVES: usize = 64;
/// The most splits whose rows are known, some MiB.
const COUNTED_SPLITS: usize = 1 << 16;
/// The most record starts per file: enough for 16 TiB of splits of the default size.
const STARTS: usize = 1 << 20;

/// A map that evicts its oldest entry when it is full.
#[derive(Debug)]
struct Bounded<K, V> {
    map: HashMap<K, V>,
    order: VecDeque<K>,
    capacity: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Bounded<K, V> {
    fn new(capacity: usize) -> Self {
        Self { map: HashMap::new(), order: VecDeque::new(), capacity }
    }

    fn get(&self, key: &K) -> Option<V> {
        self.map.get(key).cloned()
    }

    fn insert(&mut self, key: K, value: V) {
        if self.map.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
        while self.map.len() > self.capacity {
            if let Some(old) = self.order.pop_front() {
                self.map.remove(&old);
            }
        }
    }

    fn remove(&mut self, key: &K) {
        if self.map.remove(key).is_some() {
            self.order.retain(|other| other != key);
        }
    }
}

/// The caches that the readers of one process share. Cheap to clone; a clone is the same cache.
#[derive(Clone)]
pub struct SourceCaches {
    record_starts: Arc<OrderedMutex<Bounded<FileRef, Arc<RecordIndex>>>>,
    footers: Arc<OrderedMutex<Bounded<FileRef, Arc<ParquetMetaData>>>>,
    saves: Arc<OrderedMutex<Bounded<String, OpenSave>>>,
    rows: Arc<OrderedMutex<Bounded<CountedSplit, u64>>>,
}

/// A split, as the reader with these options reads it: another delimiter gives other rows.
pub(crate) type CountedSplit = (u128, SplitKey);

/// The cache over the root of a save, once it is open.
type OpenSave = Arc<tokio::sync::OnceCell<Arc<caju_cache::Cache>>>;

impl Default for SourceCaches {
    fn default() -> Self {
        Self {
            record_starts: leaf("the record starts of files", INDEXED_FILES),
            footers: leaf("the footers of files", FOOTERS),
            saves: leaf("the open saves", SAVES),
            rows: leaf("the rows of splits", COUNTED_SPLITS),
        }
    }
}

fn leaf<K: Hash + Eq + Clone, V: Clone>(
    name: &'static str,
    capacity: usize,
) -> Arc<OrderedMutex<Bounded<K, V>>> {
    Arc::new(OrderedMutex::new(LockRank::leaf(name), Bounded::new(capacity)))
}

impl fmt::Debug for SourceCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = self.record_starts.lock().map.len();
        let footers = self.footers.lock().map.len();
        f.debug_struct("SourceCaches").field("files", &files).field("footers", &footers).finish()
    }
}

impl SourceCaches {
    /// The record starts of a file that were found so far.
    pub(crate) fn record_index(&self, file: &FileRef) -> Arc<RecordIndex> {
        let mut starts = self.record_starts.lock();
        if let Some(index) = starts.get(file) {
            return index;
        }
        let fresh = Arc::new(RecordIndex::default());
        starts.insert(file.clone(), Arc::clone(&fresh));
        fresh
    }

    /// The save at a URL.
    pub(crate) fn save(&self, url: &str) -> OpenSave {
        let mut saves = self.saves.lock();
        if let Some(save) = saves.get(&url.to_owned()) {
            return save;
        }
        let fresh = OpenSave::default();
        saves.insert(url.to_owned(), Arc::clone(&fresh));
        fresh
    }

    /// The number of rows that an earlier read of a split found.
    pub(crate) fn rows(&self, split: &CountedSplit) -> Option<u64> {
        self.rows.lock().get(split)
    }

    /// Keeps the number of rows of a split.
    pub(crate) fn insert_rows(&self, split: CountedSplit, rows: u64) {
        self.rows.lock().insert(split, rows);
    }

    /// The footer of a Parquet file at this version, if it was read before.
    pub(crate) fn footer(&self, file: &FileRef) -> Option<Arc<ParquetMetaData>> {
        self.footers.lock().get(file)
    }

    /// Caches a footer.
    pub(crate) fn insert_footer(&self, file: &FileRef, footer: Arc<ParquetMetaData>) {
        self.footers.lock().insert(file.clone(), footer);
    }

    /// Drops what is cached of a file at this version: it may have been read from another one.
    pub(crate) fn forget(&self, file: &FileRef) {
        self.record_starts.lock().remove(file);
        self.footers.lock().remove(file);
    }
}

/// The start of a record, as a scan from the file's beginning found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RecordStart {
    /// Byte offset.
    pub(crate) at: u64,
    /// Records (of a tar file: samples) in front of it.
    pub(crate) record: u64,
}

/// The record starts of one file at one version, as far as scans found them.
#[derive(Debug, Default)]
pub(crate) struct RecordIndex {
    /// The number of the record by its offset.
    starts: Mutex<BTreeMap<u64, u64>>,
    /// Locked during a scan, so that the readers of one file share it.
    pub(crate) scanning: tokio::sync::Mutex<()>,
}

impl RecordIndex {
    /// The last start at or before `at`; the beginning of the file is always one.
    pub(crate) fn last_at_or_before(&self, at: u64) -> RecordStart {
        let starts = self.starts.lock();
        starts
            .range(..=at)
            .next_back()
            .map_or_else(RecordStart::default, |(&at, &record)| RecordStart { at, record })
    }

    /// Adds a start.
    pub(crate) fn insert(&self, start: RecordStart) {
        let mut starts = self.starts.lock();
        if starts.len() < STARTS {
            starts.insert(start.at, start.record);
        }
    }
}
