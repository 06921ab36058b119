//! Blocks of a part. Every block is checked before it is given out.

use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use bytes::Bytes;
use caju_runtime::stores::{is_settled, local_version, open_file};
use caju_runtime::{MappedFile, blocking};
use caju_types::{Error, ErrorKind, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::path::Path;
use tokio::sync::OwnedSemaphorePermit;
use xxhash_rust::xxh3::xxh3_64;

use super::file::damaged;
use super::options::ReadOptions;
use crate::commit::is_consistent;
use crate::context::Context;
use crate::record::PartMeta;
use crate::tier::BlockKey;
use crate::verified::{BlockChecks, FileChecks, FileVersion};

/// The blocks of one part.
#[derive(Debug)]
pub(crate) struct Blocks {
    pub(crate) ctx: Arc<Context>,
    pub(crate) meta: Arc<PartMeta>,
    path: Path,
    /// The offset of every block, and the end of the last one.
    starts: Vec<u64>,
    mapped: Option<Mapped>,
}

#[derive(Debug)]
struct Mapped {
    bytes: Bytes,
    checks: FileChecks,
}

impl Blocks {
    /// Finds the file of a part. The length of a mapped file is checked here. In other stores the first response has the
    /// length.
    pub(crate) async fn open(ctx: &Arc<Context>, meta: &Arc<PartMeta>) -> Result<Self> {
        if !is_consistent(meta) {
            return Err(damaged(meta, "its record contradicts itself"));
        }
        // Anybody may have written the record, and memory for a block is allocated by the size in it.
        let max = ctx.options.max_block_bytes;
        if let Some(large) = meta.blocks.iter().map(|b| b.bytes).find(|bytes| *bytes > max) {
            return Err(damaged(
                meta,
                format!(
                    "its record names a block of {large} bytes, and {max} are the most that is read at once"
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
        let path = ctx.root.layout.absolute(&meta.path);
        let mapped = match ctx.root.local_path(&path).filter(|_| ctx.maps()) {
            Some(file) => map(ctx, meta, file).await?,
            None => None,
        };
        Ok(Self { ctx: Arc::clone(ctx), meta: Arc::clone(meta), path, starts, mapped })
    }

    pub(crate) fn count(&self) -> usize {
        self.meta.blocks.len()
    }

    pub(crate) fn is_mapped(&self) -> bool {
        self.mapped.is_some()
    }

    fn checks(&self, block: usize) -> Option<&BlockChecks> {
        self.mapped.as_ref()?.checks.get(block)
    }

    /// Whether all batches of a block were decoded with validation before. Its bytes have not changed since.
    pub(crate) fn is_validated(&self, block: usize) -> bool {
        self.checks(block).is_some_and(BlockChecks::is_validated)
    }

    /// Records that all batches of a block were decoded with validation.
    pub(crate) fn set_validated(&self, block: usize) {
        if let Some(checks) = self.checks(block) {
            checks.set_validated();
        }
    }

    /// The offset of a block in the file.
    pub(crate) fn start(&self, block: usize) -> u64 {
        self.starts.get(block).copied().unwrap_or(self.meta.bytes)
    }

    /// The blocks that overlap a range of bytes.
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
        let max = self.ctx.options.read_bytes.max(1);
        let mut out = Vec::new();
        let mut first = blocks.start;
        while first < blocks.end {
            let mut end = first + 1;
            while end < blocks.end && self.start(end + 1) - self.start(first) <= max {
                end += 1;
            }
            out.push(first..end);
            first = end;
        }
        out
    }

    /// Like `get`, on a task of its own: the response is received even while no reader polls for it. The request starts
    /// when it has its permit.
    pub(crate) fn prefetch(
        self: &Arc<Self>,
        blocks: Range<usize>,
        permit: Option<BoxFuture<'static, Option<OwnedSemaphorePermit>>>,
    ) -> impl Future<Output = Result<Vec<Bytes>>> + Send + use<> {
        let source = Arc::clone(self);
        if self.mapped.is_some() {
            return async move { source.get(blocks).await }.left_future();
        }
        let get = async move {
            let _permit = match permit {
                Some(permit) => permit.await,
                None => None,
            };
            source.get(blocks).await
        };
        let answer = self.ctx.tasks.spawn(format!("reading part {}", self.meta.path), get);
        async move { answer.await? }.right_future()
    }

    /// All blocks, as one request that waits for its permit.
    pub(crate) async fn get_whole(&self, options: &ReadOptions) -> Result<Vec<Bytes>> {
        let _permit = match options.limiter.clone().filter(|_| self.mapped.is_none()) {
            Some(limiter) => limiter.acquire_owned().await.ok(),
            None => None,
        };
        self.get(0..self.count()).await
    }

    /// Consecutive blocks, checked. Blocks of one group take at most one request.
    pub(crate) async fn get(&self, blocks: Range<usize>) -> Result<Vec<Bytes>> {
        if let Some(mapped) = &self.mapped {
            return self.get_mapped(mapped, blocks).await;
        }
        let mut out: Vec<Option<Bytes>> = Vec::with_capacity(blocks.len());
        for n in blocks.clone() {
            out.push(self.block_in_tiers(n).await?);
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
        let mut unchecked = Vec::new();
        for n in blocks {
            let place = usize::try_from(self.start(n)).ok().zip(usize::try_from(self.start(n + 1)).ok());
            let Some((start, end)) = place else { return Err(damaged(&self.meta, "it is too large")) };
            let block = mapped.bytes.slice(start..end);
            self.ctx.root.io.add_read(block.len() as u64);
            if !mapped.checks.get(n).is_some_and(BlockChecks::has_checksum) {
                unchecked.push((n, block.clone()));
            }
            out.push(block);
        }
        if !unchecked.is_empty() {
            // Not on a thread of the runtime: the first access waits for the disk, and hashing takes CPU time.
            let (meta, checks) = (Arc::clone(&self.meta), Arc::clone(&mapped.checks));
            let check = move || {
                unchecked.iter().try_for_each(|(n, block)| {
                    check(&meta, *n, block)?;
                    if let Some(checks) = checks.get(*n) {
                        checks.set_checksum();
                    }
                    Ok(())
                })
            };
            blocking("checking a part", check).await??;
        }
        Ok(out)
    }

    fn key(&self, n: usize) -> BlockKey {
        BlockKey::new(self.ctx.root.url(), &self.meta.path, n)
    }

    /// A block from the memory tier or the disk tier.
    async fn block_in_tiers(&self, n: usize) -> Result<Option<Bytes>> {
        let key = self.key(n);
        if let Some(block) = self.ctx.memory.as_ref().and_then(|m| m.get(&key)) {
            return Ok(Some(block));
        }
        let Some(disk) = self.ctx.disk.clone() else { return Ok(None) };
        let bytes = self.start(n + 1) - self.start(n);
        let found =
            blocking("reading the disk tier", move || disk.get(&key, bytes).map(|block| (block, disk))).await;
        let Ok(Some((block, disk))) = found else { return Ok(None) };
        if check(&self.meta, n, &block).is_err() {
            drop(blocking("clearing the disk tier", move || disk.remove(&key)).await);
            return Ok(None);
        }
        if let Some(memory) = &self.ctx.memory {
            memory.insert(key, &block);
        }
        Ok(Some(block))
    }

    /// Blocks from the store, in one request. After a mismatch they are fetched once more before the part counts as
    /// damaged.
    async fn fetch(&self, blocks: Range<usize>) -> Result<Vec<Bytes>> {
        match self.fetch_once(blocks.clone()).await {
            Err(e) if e.kind() == ErrorKind::DataLoss => self.fetch_once(blocks).await,
            other => other,
        }
    }

    async fn fetch_once(&self, blocks: Range<usize>) -> Result<Vec<Bytes>> {
        let first = blocks.start;
        let lengths: Vec<u64> = blocks.map(|n| self.start(n + 1) - self.start(n)).collect();
        let fetched = self.ctx.root.get_pieces(&self.path, self.start(first), &lengths).await?;
        if fetched.object_bytes != self.meta.bytes {
            let is = fetched.object_bytes;
            return Err(damaged(&self.meta, format!("it has {is} bytes instead of {}", self.meta.bytes)));
        }
        for (i, block) in fetched.pieces.iter().enumerate() {
            check(&self.meta, first + i, block)?;
        }
        self.put_in_tiers(first, &fetched.pieces).await;
        Ok(fetched.pieces)
    }

    /// Puts blocks into the tiers. Every block has an allocation of its own, so that none keeps its neighbours alive.
    async fn put_in_tiers(&self, first: usize, blocks: &[Bytes]) {
        if let Some(memory) = &self.ctx.memory {
            for (i, block) in blocks.iter().enumerate() {
                memory.insert(self.key(first + i), block);
            }
        }
        if let Some(disk) = self.ctx.disk.clone() {
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

/// Maps the file of a part. None where that is unsafe or impossible: the file is read then.
async fn map(ctx: &Arc<Context>, meta: &Arc<PartMeta>, path: std::path::PathBuf) -> Result<Option<Mapped>> {
    let (meta, files, clock) = (Arc::clone(meta), ctx.verified.clone(), Arc::clone(&ctx.root.clock));
    let work = move || {
        let io = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::NotFound => {
                Error::not_found(format!("part {} is gone: it was evicted or removed", meta.path))
            }
            // A pipe, a device or a folder.
            std::io::ErrorKind::InvalidData => damaged(&meta, e),
            _ => Error::unavailable(format!("part {}: {e}", meta.path)),
        };
        let file = open_file(&path).map_err(io)?;
        let Some(map) = MappedFile::new(file).map_err(io)? else { return Ok(None) };
        // From here on the bytes cannot change.
        let metadata = map.metadata();
        let version = local_version(metadata);
        if version.0 != meta.bytes {
            return Err(damaged(&meta, format!("it has {} bytes instead of {}", version.0, meta.bytes)));
        }
        let fresh = || Arc::new(meta.blocks.iter().map(|_| BlockChecks::default()).collect());
        let file = FileVersion {
            blocks: meta.blocks.clone(),
            device: metadata.dev(),
            inode: metadata.ino(),
            version,
        };
        let checks = match is_settled(metadata, clock.as_ref()) {
            true => files.get_or_insert(file, fresh),
            false => fresh(),
        };
        Ok(Some(Mapped { bytes: Bytes::from_owner(map), checks }))
    };
    blocking("mapping a part", work).await?
}
