//! What readers learn about files and want to know again: bounded, shared by the sources of a process.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;
use parquet::file::metadata::ParquetMetaData;

use super::FileRef;

/// Files whose record starts are remembered.
const INDEXED_FILES: usize = 4096;
/// Parquet footers that are remembered.
const FOOTERS: usize = 512;
/// Saves that are kept open.
const SAVES: usize = 64;
/// Record starts remembered of one file: 16 TiB of splits of the default size.
const STARTS: usize = 1 << 20;

/// A map that forgets its oldest entry when it is full.
#[derive(Debug)]
struct Bounded<K, V> {
    map: HashMap<K, V>,
    order: VecDeque<K>,
    most: usize,
}

impl<K: Hash + Eq + Clone, V: Clone> Bounded<K, V> {
    fn new(most: usize) -> Self {
        Self { map: HashMap::new(), order: VecDeque::new(), most }
    }

    fn get(&self, key: &K) -> Option<V> {
        self.map.get(key).cloned()
    }

    fn insert(&mut self, key: K, value: V) {
        if self.map.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
        while self.map.len() > self.most {
            if let Some(old) = self.order.pop_front() {
                self.map.remove(&old);
            }
        }
    }
}

/// What the readers of one process share. Cheap to clone; a clone is the same cache.
#[derive(Clone)]
pub struct SourceCaches {
    starts: Arc<Mutex<Bounded<FileRef, Arc<FileStarts>>>>,
    footers: Arc<Mutex<Bounded<FileRef, Arc<ParquetMetaData>>>>,
    saves: Arc<Mutex<Bounded<String, OpenSave>>>,
}

/// The cache over the root of a save, once it is open.
type OpenSave = Arc<tokio::sync::OnceCell<Arc<caju_cache::Cache>>>;

impl Default for SourceCaches {
    fn default() -> Self {
        Self {
            starts: Arc::new(Mutex::new(Bounded::new(INDEXED_FILES))),
            footers: Arc::new(Mutex::new(Bounded::new(FOOTERS))),
            saves: Arc::new(Mutex::new(Bounded::new(SAVES))),
        }
    }
}

impl fmt::Debug for SourceCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceCaches")
            .field("files", &self.starts.lock().map.len())
            .field("footers", &self.footers.lock().map.len())
            .finish()
    }
}

impl SourceCaches {
    /// What is known about the record starts of a file.
    pub(super) fn starts(&self, file: &FileRef) -> Arc<FileStarts> {
        let mut starts = self.starts.lock();
        if let Some(known) = starts.get(file) {
            return known;
        }
        let fresh = Arc::new(FileStarts::default());
        starts.insert(file.clone(), Arc::clone(&fresh));
        fresh
    }

    /// The save at a URL.
    pub(super) fn save(&self, url: &str) -> OpenSave {
        let mut saves = self.saves.lock();
        if let Some(known) = saves.get(&url.to_owned()) {
            return known;
        }
        let fresh = OpenSave::default();
        saves.insert(url.to_owned(), Arc::clone(&fresh));
        fresh
    }

    pub(super) fn footer(&self, file: &FileRef) -> Option<Arc<ParquetMetaData>> {
        self.footers.lock().get(file)
    }

    pub(super) fn keep_footer(&self, file: &FileRef, footer: Arc<ParquetMetaData>) {
        self.footers.lock().insert(file.clone(), footer);
    }
}

/// A place in a file where a record is known to start: somebody walked there from the file's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Start {
    /// Byte offset.
    pub(super) at: u64,
    /// How many records (of a tar file: samples) lie in front.
    pub(super) record: u64,
}

/// The known record starts of one file at one version.
#[derive(Debug, Default)]
pub(super) struct FileStarts {
    known: Mutex<BTreeMap<u64, u64>>,
    /// Held while walking, so that readers of one file share one walk.
    pub(super) walking: tokio::sync::Mutex<()>,
}

impl FileStarts {
    /// The last known start at or before `at`; the beginning of the file is always known.
    pub(super) fn before(&self, at: u64) -> Start {
        let known = self.known.lock();
        known.range(..=at).next_back().map_or_else(Start::default, |(&at, &record)| Start { at, record })
    }

    /// Remembers a start.
    pub(super) fn learn(&self, start: Start) {
        let mut known = self.known.lock();
        if known.len() < STARTS {
            known.insert(start.at, start.record);
        }
    }
}
