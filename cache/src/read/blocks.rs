//! Blocks of a part, checked before anybody sees them.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use caju_runtime::stores::{is_settled, local_version};
use caju_runtime::{MappedFile, blocking};
use caju_types::{Error, ErrorKind, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::path::Path;
use tokio::sync::OwnedSemaphorePermit;
use xxhash_rust::xxh3::xxh3_64;

use super::ReadOptions;
use crate::Cache;
use crate::record::{Block, PartMeta};
use crate::tier::BlockKey;

/// The blocks of one part.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub(crate) cache: Arc<Cache>,
    pub(crate) meta: Arc<PartMeta>,
    path: Path,
    /// Where every block starts, and the end of the last one.
    starts: Vec<u64>,
    mapped: Option<Mapped>,
}

#[derive(Debug)]
struct Mapped {
    bytes: Bytes,
    /// What this process has found out about the blocks, also for other readers of the same file.
    known: Arc<Vec<KnownBlock>>,
}

/// What is known of a block of a mapped file.
#[derive(Debug, Default)]
pub(crate) struct KnownBlock {
    /// It matches its checksum.
    checked: AtomicBool,
    /// All its batches were decoded with validation.
    validated: AtomicBool,
}

/// A file as it was when it was mapped. Whoever changes or replaces it without being root gives it another version: it
/// is remembered only when a later change would show in its times.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileVersion {
    /// The blocks by its record: where they begin, and what they were compared with.
    blocks: Vec<Block>,
    device: u64,
    inode: u64,
    /// Length, modification and change time.
    version: (u64, i64, i64),
}

pub(crate) fn damaged(meta: &PartMeta, why: impl std::fmt::Display) -> Error {
    Error::data_loss(format!("part {} is damaged: {why}", meta.path))
}

impl Blocks {
    /// Finds the file of a part. The length of a mapped file is checked here; in other stores the first answer tells it.
    pub(crate) async fn open(cache: &Arc<Cache>, meta: &Arc<PartMeta>) -> Result<Self> {
        if !crate::manifest::consistent(meta) {
            return Err(damaged(meta, "its record contradicts itself"));
        }
        // A record may come from anybody: memory for a block is taken by what it says.
        let most = cache.options.max_block_bytes;
        if let Some(large) = meta.blocks.iter().map(|b| b.bytes).find(|bytes| *bytes > most) {
            return Err(damaged(
                meta,
                format!(
                    "its record names a block of {large} bytes, and {most} are the most that is read at once"
                ),
            ));
        }
        let mut starts = Vec::with_capacity(meta.blocks.len() + 1);
        let mut at = 0;
        for block in &meta.blocks {
            starts.push(at);
            at += block.bytes;
        }
        starts.push(at);
        let path = cache.root.layout.absolute(&meta.path);
        let mapped = match cache.root.local_path(&path).filter(|_| cache.maps()) {
            Some(file) => map(cache, meta, file).await?,
            None => None,
        };
        Ok(Self { cache: Arc::clone(cache), meta: Arc::clone(meta), path, starts, mapped })
    }

    pub(crate) fn count(&self) -> usize {
        self.meta.blocks.len()
    }

    pub(crate) fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    fn known(&self, block: usize) -> Option<&KnownBlock> {
        self.mapped.as_ref()?.known.get(block)
    }

    /// Whether these very bytes of a block were decoded with validation before, all of them.
    pub(crate) fn is_validated(&self, block: usize) -> bool {
        self.known(block).is_some_and(|known| known.validated.load(Ordering::Acquire))
    }

    /// Remembers that all batches of a block were decoded with validation.
    pub(crate) fn set_validated(&self, block: usize) {
        if let Some(known) = self.known(block) {
            known.validated.store(true, Ordering::Release);
        }
    }

    /// Where a block starts in the file.
    pub(crate) fn start(&self, block: usize) -> u64 {
        self.starts.get(block).copied().unwrap_or(self.meta.bytes)
    }

    /// The blocks that a range of bytes touches.
    pub(crate) fn touching(&self, range: &Range<u64>) -> Range<usize> {
        let first = self.starts.partition_point(|s| *s <= range.start).saturating_sub(1);
        let end = self.starts.partition_point(|s| *s < range.end).min(self.count());
        first..end.max(first)
    }

    /// Bytes of these blocks together.
    pub(crate) fn span(&self, blocks: &Range<usize>) -> usize {
        usize::try_from(self.start(blocks.end).saturating_sub(self.start(blocks.start))).unwrap_or(0)
    }

    /// Groups consecutive blocks into requests of about the configured size.
    pub(crate) fn groups(&self, blocks: Range<usize>) -> Vec<Range<usize>> {
        let most = self.cache.options.read_bytes.max(1);
        let mut out = Vec::new();
        let mut first = blocks.start;
        while first < blocks.end {
            let mut end = first + 1;
            while end < blocks.end && self.start(end + 1) - self.start(first) <= most {
                end += 1;
            }
            out.push(first..end);
            first = end;
        }
        out
    }

    /// As `get`, but blocks of a store are asked for as soon as it is their turn, and come also while nobody waits for them.
    pub(crate) fn get_ahead(
        self: &Arc<Self>,
        blocks: Range<usize>,
        turn: Option<BoxFuture<'static, Option<OwnedSemaphorePermit>>>,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send + use<> {
        let source = Arc::clone(self);
        if self.mapped.is_some() {
            return async move { source.get(blocks).await }.left_future();
        }
        let get = async move {
            let _turn = match turn {
                Some(turn) => turn.await,
                None => None,
            };
            source.get(blocks).await
        };
        let coming = self.cache.tasks.spawn(format!("reading part {}", self.meta.path), get);
        async move { coming.await? }.right_future()
    }

    /// All blocks, as one request that waits for its turn.
    pub(crate) async fn get_whole(&self, options: &ReadOptions) -> Result<Vec<Bytes>> {
        let _turn = match options.turns.clone().filter(|_| self.mapped.is_none()) {
            Some(turns) => turns.acquire_owned().await.ok(),
            None => None,
        };
        self.get(0..self.count()).await
    }

    /// Consecutive blocks, checked. At most one request, if they are one group.
    pub(crate) async fn get(&self, blocks: Range<usize>) -> Result<Vec<Bytes>> {
        if let Some(mapped) = &self.mapped {
            return self.get_mapped(mapped, blocks).await;
        }
        let mut out: Vec<Option<Bytes>> = Vec::with_capacity(blocks.len());
        for n in blocks.clone() {
            out.push(self.near(n).await?);
        }
        let mut n = blocks.start;
        while n < blocks.end {
            let at = n - blocks.start;
            let missing = out[at..].iter().take_while(|b| b.is_none()).count();
            if missing > 0 {
                for (i, block) in self.fetch(n..n + missing).await?.into_iter().enumerate() {
                    out[at + i] = Some(block);
                }
            }
            n += missing.max(1);
        }
        Ok(out.into_iter().flatten().collect())
    }

    async fn get_mapped(&self, mapped: &Mapped, blocks: Range<usize>) -> Result<Vec<Bytes>> {
        let mut out = Vec::with_capacity(blocks.len());
        let mut fresh = Vec::new();
        for n in blocks {
            let place = usize::try_from(self.start(n)).ok().zip(usize::try_from(self.start(n + 1)).ok());
            let Some((start, end)) = place else { return Err(damaged(&self.meta, "it is too large")) };
            let block = mapped.bytes.slice(start..end);
            self.cache.root.io.add_read(block.len() as u64);
            if !mapped.known.get(n).is_some_and(|known| known.checked.load(Ordering::Relaxed)) {
                fresh.push((n, block.clone()));
            }
            out.push(block);
        }
        if !fresh.is_empty() {
            // The first touch waits for the disk, and hashing is work: not on a thread of the runtime.
            let (meta, known) = (Arc::clone(&self.meta), Arc::clone(&mapped.known));
            let check = move || {
                fresh.iter().try_for_each(|(n, block)| {
                    check(&meta, *n, block)?;
                    if let Some(known) = known.get(*n) {
                        known.checked.store(true, Ordering::Relaxed);
                    }
                    Ok(())
                })
            };
            blocking("checking a part", check).await??;
        }
        Ok(out)
    }

    fn key(&self, n: usize) -> BlockKey {
        BlockKey::new(self.cache.root.url(), &self.meta.path, n)
    }

    /// A block from memory or the local disk.
    async fn near(&self, n: usize) -> Result<Option<Bytes>> {
        let key = self.key(n);
        if let Some(block) = self.cache.memory.as_ref().and_then(|m| m.get(&key)) {
            return Ok(Some(block));
        }
        let Some(disk) = self.cache.disk.clone() else { return Ok(None) };
        let near = blocking("reading the disk tier", move || disk.get(&key).map(|block| (block, disk))).await;
        let Ok(Some((block, disk))) = near else { return Ok(None) };
        if check(&self.meta, n, &block).is_err() {
            drop(blocking("clearing the disk tier", move || disk.remove(&key)).await);
            return Ok(None);
        }
        if let Some(memory) = &self.cache.memory {
            memory.insert(key, &block);
        }
        Ok(Some(block))
    }

    /// Blocks from the store: one request. A mismatch is looked at twice before it is believed.
    async fn fetch(&self, blocks: Range<usize>) -> Result<Vec<Bytes>> {
        match self.fetch_once(blocks.clone()).await {
            Err(e) if e.kind() == ErrorKind::DataLoss => self.fetch_once(blocks).await,
            other => other,
        }
    }

    async fn fetch_once(&self, blocks: Range<usize>) -> Result<Vec<Bytes>> {
        let first = blocks.start;
        let lengths: Vec<u64> = blocks.map(|n| self.start(n + 1) - self.start(n)).collect();
        let fetched = self.cache.root.get_pieces(&self.path, self.start(first), &lengths).await?;
        if fetched.object_bytes != self.meta.bytes {
            let is = fetched.object_bytes;
            return Err(damaged(&self.meta, format!("it has {is} bytes instead of {}", self.meta.bytes)));
        }
        for (i, block) in fetched.pieces.iter().enumerate() {
            check(&self.meta, first + i, block)?;
        }
        self.keep(first, &fetched.pieces).await;
        Ok(fetched.pieces)
    }

    /// Keeps blocks near. Each has memory of its own: none keeps its neighbours in memory unseen.
    async fn keep(&self, first: usize, blocks: &[Bytes]) {
        if let Some(memory) = &self.cache.memory {
            for (i, block) in blocks.iter().enumerate() {
                memory.insert(self.key(first + i), block);
            }
        }
        if let Some(disk) = self.cache.disk.clone() {
            let kept: Vec<_> =
                blocks.iter().enumerate().map(|(i, b)| (self.key(first + i), b.clone())).collect();
            let keep = move || kept.iter().for_each(|(key, block)| disk.insert(*key, block));
            drop(blocking("writing the disk tier", keep).await);
        }
    }
}

/// Compares a block with its checksum in the record.
fn check(meta: &PartMeta, n: usize, block: &Bytes) -> Result<()> {
    let want = meta.blocks.get(n);
    if want.is_some_and(|b| b.bytes == block.len() as u64 && b.checksum == xxh3_64(block)) {
        return Ok(());
    }
    let start: u64 = meta.blocks.iter().take(n).map(|b| b.bytes).sum();
    let end = start + block.len() as u64;
    Err(damaged(meta, format!("bytes {start} to {end} do not match their checksum")))
}

/// Maps the file of a part; none where that is not safe or not possible: then it is read.
async fn map(cache: &Arc<Cache>, meta: &Arc<PartMeta>, path: std::path::PathBuf) -> Result<Option<Mapped>> {
    let (meta, files, clock) = (Arc::clone(meta), cache.known_files.clone(), Arc::clone(&cache.root.clock));
    let work = move || {
        let io = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::not_found(format!("part {} is gone: it was evicted or removed", meta.path))
            }
            _ => Error::unavailable(format!("part {}: {e}", meta.path)),
        };
        let file = File::open(&path).map_err(io)?;
        let Some(map) = MappedFile::new(file).map_err(io)? else { return Ok(None) };
        // From here on the bytes stay as they are.
        let metadata = map.metadata();
        let version = local_version(metadata);
        if version.0 != meta.bytes {
            return Err(damaged(&meta, format!("it has {} bytes instead of {}", version.0, meta.bytes)));
        }
        let fresh = || Arc::new(meta.blocks.iter().map(|_| KnownBlock::default()).collect());
        let file = FileVersion {
            blocks: meta.blocks.clone(),
            device: metadata.dev(),
            inode: metadata.ino(),
            version,
        };
        let known = match is_settled(metadata, clock.as_ref()) {
            true => files.get_with(file, fresh),
            false => fresh(),
        };
        Ok(Some(Mapped { bytes: Bytes::from_owner(map), known }))
    };
    blocking("mapping a part", work).await?
}
