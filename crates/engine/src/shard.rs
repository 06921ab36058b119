//! Shards: how the static processing modes divide a dataset among the workers of a configured list.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use caju_sources::ShardBy;
use caju_sources::Split;
use caju_types::{Result, mix64};
use futures::stream::{BoxStream, StreamExt};

/// One worker's shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// What is divided.
    pub by: ShardBy,
    /// The number of shards; at least 1.
    pub num_shards: u64,
    /// Which of them; less than `num_shards`.
    pub index: u64,
}

/// The splits of one shard.
pub struct ShardSplits {
    /// In canonical order, found while polled.
    pub splits: BoxStream<'static, Result<Split>>,
    /// Whether a `shuffle` may have them in another order.
    pub permutes: bool,
    /// Names the listing of the source that they come from: shards of one epoch must agree on it.
    pub listed: ListingDigest,
}

/// A rolling hash of all splits of a source that were listed so far.
#[derive(Debug, Clone, Default)]
pub struct ListingDigest(Arc<AtomicU64>);

impl ListingDigest {
    /// The hash now; once the splits have ended it names the whole listing.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Passes the splits on, and adds each of them to the hash.
    pub(crate) fn of(&self, splits: BoxStream<'static, Result<Split>>) -> BoxStream<'static, Result<Split>> {
        let digest = Arc::clone(&self.0);
        splits
            .inspect(move |split| {
                if let Ok(split) = split {
                    digest
                        .store(mix64(digest.load(Ordering::Acquire), split.key.folded()), Ordering::Release);
                }
            })
            .boxed()
    }
}

impl std::fmt::Debug for ShardSplits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardSplits").field("permutes", &self.permutes).finish_non_exhaustive()
    }
}
