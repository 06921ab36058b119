//! The memory tier and the disk tier: copies of blocks, verified ones in memory, unverified ones on a local disk.

use std::collections::{BTreeMap, HashMap};
use std::fs::Metadata;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use caju_runtime::OrderedMutex;
use caju_runtime::stores::open_file;
use caju_types::hash128;

use crate::locks;

/// From this age on, a file that is being written is one that its process left over.
const LEFT_OVER_AFTER: Duration = Duration::from_secs(600);

/// The identity of a block: a hash of its root and its part's path, and its number in the part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockKey {
    part: u128,
    number: u32,
}

impl BlockKey {
    pub(crate) fn new(root: &str, path: &str, number: usize) -> Self {
        let part = hash128(format!("{root} {path}").as_bytes());
        Self { part, number: u32::try_from(number).unwrap_or(u32::MAX) }
    }
}

/// Verified blocks in memory, bounded in bytes.
#[derive(Debug)]
pub(crate) struct MemoryTier {
    blocks: moka::sync::Cache<BlockKey, Bytes>,
    capacity: u64,
}

impl MemoryTier {
    /// A tier of at capacity `capacity` bytes; none for 0.
    pub(crate) fn new(capacity: u64) -> Option<Self> {
        (capacity > 0).then(|| {
            let blocks = moka::sync::Cache::builder()
                .max_capacity(capacity)
                .weigher(|_, block: &Bytes| u32::try_from(block.len()).unwrap_or(u32::MAX))
                .build();
            Self { blocks, capacity }
        })
    }

    pub(crate) fn get(&self, key: &BlockKey) -> Option<Bytes> {
        self.blocks.get(key)
    }

    pub(crate) fn insert(&self, key: BlockKey, block: &Bytes) {
        // One block must not evict capacity of the others.
        if block.len() as u64 <= self.capacity / 4 {
            self.blocks.insert(key, block.clone());
            // moka evicts in pending tasks: running them here keeps the bound.
            self.blocks.run_pending_tasks();
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.blocks.weighted_size()
    }
}

/// Blocks as files of a local folder. The least recently used block is evicted first. A block that is read from it is
/// verified like one from the store, so that nothing in the folder has to be trusted.
#[derive(Debug)]
pub(crate) struct DiskTier {
    folder: PathBuf,
    capacity: u64,
    state: Arc<OrderedMutex<DiskState>>,
}

#[derive(Debug, Default)]
struct DiskState {
    bytes: u64,
    turn: u64,
    files: HashMap<BlockKey, (u64, u64)>,
    order: BTreeMap<u64, BlockKey>,
}

impl DiskState {
    fn touch(&mut self, key: BlockKey, bytes: u64) {
        self.remove(&key);
        self.turn += 1;
        self.files.insert(key, (self.turn, bytes));
        self.order.insert(self.turn, key);
        self.bytes += bytes;
    }

    fn remove(&mut self, key: &BlockKey) -> bool {
        let Some((turn, bytes)) = self.files.remove(key) else { return false };
        self.order.remove(&turn);
        self.bytes -= bytes;
        true
    }
}

impl DiskTier {
    /// Opens a folder, and creates it if it does not exist. Blocks that it has already are used again. Blocking.
    pub(crate) fn open(folder: PathBuf, capacity: u64) -> std::io::Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let mut state = DiskState::default();
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            // Other workers of the machine write and evict blocks meanwhile: a file may be gone.
            let Some(metadata) = unless_gone(entry.metadata())? else { continue };
            match name.to_str().and_then(parse) {
                Some(key) if metadata.is_file() => state.touch(key, metadata.len()),
                None if name.to_str().is_some_and(|n| n.ends_with(".new")) && is_left_over(&metadata) => {
                    unless_gone(std::fs::remove_file(entry.path()))?;
                }
                _ => {}
            }
        }
        let state = Arc::new(OrderedMutex::new(locks::DISK_TIER, state));
        let tier = Self { folder, capacity, state };
        tier.shrink();
        Ok(tier)
    }

    /// A block of this many bytes, unverified. A file of another length is removed, and is not read. Blocking.
    pub(crate) fn get(&self, key: &BlockKey, bytes: u64) -> Option<Bytes> {
        if !self.state.lock().files.contains_key(key) {
            return None;
        }
        match read_block(&self.file(key), bytes) {
            Ok(block) => {
                self.state.lock().touch(*key, bytes);
                Some(block)
            }
            Err(_) => {
                self.remove(key);
                None
            }
        }
    }

    /// Adds a block. Blocking. A full or broken disk is no error: the tier is only an optimisation.
    pub(crate) fn insert(&self, key: BlockKey, block: &Bytes) {
        let bytes = block.len() as u64;
        if bytes > self.capacity / 4 || self.state.lock().files.contains_key(&key) {
            return;
        }
        let (file, new) = (self.file(&key), self.folder.join(format!("{}.new", name(&key))));
        let written = std::fs::write(&new, block).and_then(|()| std::fs::rename(&new, &file));
        if let Err(error) = written {
            tracing::debug!(%error, file = %file.display(), "a block was not written to the disk tier");
            drop(std::fs::remove_file(&new));
            return;
        }
        self.state.lock().touch(key, bytes);
        self.shrink();
    }

    /// Removes a damaged block. Blocking.
    pub(crate) fn remove(&self, key: &BlockKey) {
        if self.state.lock().remove(key) {
            drop(std::fs::remove_file(self.file(key)));
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    fn shrink(&self) {
        loop {
            let oldest = {
                let mut state = self.state.lock();
                if state.bytes <= self.capacity {
                    return;
                }
                let Some(key) = state.order.first_key_value().map(|(_, k)| *k) else { return };
                state.remove(&key);
                key
            };
            drop(std::fs::remove_file(self.file(&oldest)));
        }
    }

    fn file(&self, key: &BlockKey) -> PathBuf {
        self.folder.join(name(key))
    }
}

fn unless_gone<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}

/// Whether a file that is being written is one whose process ended meanwhile. Blocks are some MiB, and written in one piece.
fn is_left_over(metadata: &Metadata) -> bool {
    metadata.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > LEFT_OVER_AFTER))
}

/// Reads a file of this many bytes. Anybody who can write to the folder may have made it longer.
fn read_block(path: &Path, bytes: u64) -> io::Result<Bytes> {
    let mut file = open_file(path)?;
    let length = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    if file.metadata()?.len() != bytes {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut block = vec![0; length];
    file.read_exact(&mut block)?;
    Ok(block.into())
}

fn name(key: &BlockKey) -> String {
    format!("{:032x}-{}.block", key.part, key.number)
}

fn parse(name: &str) -> Option<BlockKey> {
    let (part, number) = name.strip_suffix(".block")?.split_once('-')?;
    Some(BlockKey { part: u128::from_str_radix(part, 16).ok()?, number: number.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn key(n: usize) -> BlockKey {
        BlockKey::new("memory://x", "part", n)
    }

    #[test]
    fn memory_stays_inside_its_bound() {
        assert!(MemoryTier::new(0).is_none());
        let tier = MemoryTier::new(1000).unwrap();
        for n in 0..100 {
            tier.insert(key(n), &Bytes::from(vec![0; 100]));
            assert!(tier.bytes() <= 1000, "{}", tier.bytes());
        }
        tier.insert(key(1000), &Bytes::from(vec![0; 300]));
        assert!(tier.get(&key(1000)).is_none(), "too large a fraction of the tier");
    }

    #[test]
    fn disk_keeps_the_recent_and_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let tier = DiskTier::open(folder.path().join("a/b"), 1000).unwrap();
        for n in 0..10 {
            tier.insert(key(n), &Bytes::from(vec![1; 100]));
        }
        assert!(tier.get(&key(0), 100).is_some());
        tier.insert(key(10), &Bytes::from(vec![1; 100]));
        assert_eq!(tier.bytes(), 1000);
        assert!(tier.get(&key(0), 100).is_some() && tier.get(&key(1), 100).is_none());
        let left_over = folder.path().join("a/b/x.new");
        std::fs::write(&left_over, "junk").unwrap();
        let file = std::fs::File::options().write(true).open(&left_over).unwrap();
        let age = LEFT_OVER_AFTER + Duration::from_secs(1);
        file.set_modified(file.metadata().unwrap().modified().unwrap() - age).unwrap();
        let tier = DiskTier::open(folder.path().join("a/b"), 500).unwrap();
        assert_eq!(tier.bytes(), 500);
        assert_eq!(std::fs::read_dir(folder.path().join("a/b")).unwrap().count(), 5);
        std::fs::remove_dir_all(folder.path().join("a/b")).unwrap();
        for n in 0..11 {
            assert!(tier.get(&key(n), 100).is_none());
        }
        assert_eq!(tier.bytes(), 0);
    }

    /// Workers of one machine share the folder: opening it neither fails nor breaks what others write meanwhile.
    #[test]
    fn a_folder_that_others_write_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("y.new");
        std::fs::write(&new, "half of a block").unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = DiskTier::open(folder.path().to_path_buf(), 2000).unwrap();
                let mut n = 0;
                while !stop.load(Ordering::Relaxed) && n < 100_000 {
                    other.insert(key(n), &Bytes::from(vec![1; 100]));
                    n += 1;
                }
            });
            for _ in 0..300 {
                DiskTier::open(folder.path().to_path_buf(), u64::MAX).unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(new.exists(), "another process may be writing it");
    }

    /// Nothing in the folder has to be trusted, neither the length of a file nor that it is one.
    #[test]
    fn files_that_are_no_blocks_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let tier = DiskTier::open(folder.path().to_path_buf(), u64::MAX).unwrap();
        tier.insert(key(0), &Bytes::from(vec![1; 100]));
        tier.insert(key(1), &Bytes::from(vec![1; 100]));
        let file = std::fs::File::options().write(true).open(tier.file(&key(0))).unwrap();
        file.set_len(1 << 42).unwrap();
        std::fs::remove_file(tier.file(&key(1))).unwrap();
        let made = std::process::Command::new("mkfifo").arg(tier.file(&key(1))).status().unwrap();
        assert!(made.success());
        let again = DiskTier::open(folder.path().to_path_buf(), u64::MAX).unwrap();
        assert_eq!(again.bytes(), 1 << 42, "a pipe is no block");
        for tier in [tier, again] {
            assert!(tier.get(&key(0), 100).is_none() && tier.get(&key(1), 100).is_none());
            assert_eq!(tier.bytes(), 0);
        }
    }
}
