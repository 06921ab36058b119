//! What sources need from the process: stores, counters, memory limits and caches.

use std::sync::Arc;
use std::time::Duration;

use caju_kernels::Limits;
use caju_runtime::{IoCounters, Stores};

use crate::caches::SourceCaches;
use crate::listing_cache::ListingCache;

/// What sources need from the process they run in. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SourceContext {
    /// Resolves URLs to object stores.
    pub stores: Arc<Stores>,
    /// Counts what is read.
    pub io: Arc<IoCounters>,
    /// Memory limits.
    pub limits: SourceLimits,
    /// Caches of file metadata; share them for the life of the process.
    pub caches: SourceCaches,
    /// The splits of an earlier listing of the source.
    pub listing: ListingCache,
}

impl SourceContext {
    /// A context with default limits and empty caches.
    pub fn new(stores: Arc<Stores>, io: Arc<IoCounters>) -> Self {
        Self {
            stores,
            io,
            limits: SourceLimits::default(),
            caches: SourceCaches::default(),
            listing: ListingCache::default(),
        }
    }

    /// Sets the memory limits.
    #[must_use]
    pub fn with_limits(mut self, limits: SourceLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets the splits of an earlier listing of the source.
    #[must_use]
    pub fn with_listing(mut self, listing: ListingCache) -> Self {
        self.listing = listing;
        self
    }
}

/// Limits of one reader. A task has up to 16 readers at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLimits {
    /// The size of one ranged read of a byte-oriented format.
    pub block_bytes: u64,
    /// The largest single record (a line, a record, a file of an archive, an image file); a longer one is a data error
    /// that names it. A reader can hold it twice.
    pub max_record_bytes: u64,
    /// The most that a compressed record batch of an Arrow file, or a page of a Parquet file, may become in memory. The footers
    /// of such files may not have more bytes either.
    pub chunk_bytes: u64,
    /// The most bytes of a row group of a Parquet file, in the columns that are read. A reader holds one row group.
    pub row_group_bytes: u64,
    /// The time after which a save that has no new part counts as abandoned.
    pub save_wait: Duration,
}

impl SourceLimits {
    /// The source limits of a process with these limits.
    pub fn from_limits(limits: &Limits) -> Self {
        Self {
            block_bytes: 4 << 20,
            max_record_bytes: limits.max_record_bytes,
            chunk_bytes: limits.chunk_bytes,
            row_group_bytes: limits.row_group_bytes,
            save_wait: limits.save_wait,
        }
    }
}

/// What an error about a record above [`SourceLimits::max_record_bytes`] says of the way out.
pub(crate) const RAISE_MAX_RECORD: &str = "if such records belong here, raise --max-record";

impl Default for SourceLimits {
    fn default() -> Self {
        Self::from_limits(&Limits::default())
    }
}
