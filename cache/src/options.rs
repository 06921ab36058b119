//! The settings of a cache.

use std::path::PathBuf;
use std::time::Duration;

use caju_types::{Error, Result, format_bytes};

/// The settings of one process's handle on a cache root. Sizes are in bytes.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// The most bytes that all objects of the root may take together; unlimited if absent.
    pub budget_bytes: Option<u64>,
    /// The time without use after which a collection removes a snapshot; none are removed if absent.
    pub ttl: Option<Duration>,
    /// The lease's life: a writer whose lease object did not change for this time is taken for dead.
    pub lease_ttl: Duration,
    /// The age below which a collection does not delete unreferenced objects.
    pub orphan_grace: Duration,
    /// The capacity of the memory tier, which has verified blocks of parts; 0 for none.
    pub memory_tier_bytes: u64,
    /// The local folder of the disk tier, which has blocks of remote parts, and its capacity in bytes.
    pub disk_tier: Option<(PathBuf, u64)>,
    /// The bytes of one upload request. A writer holds about three times as many.
    pub part_buffer_bytes: usize,
    /// The bytes at which a block of a part is closed. A block is the unit of checking and of the tiers.
    pub block_bytes: usize,
    /// The most bytes of one read request.
    pub read_bytes: u64,
    /// How often a request is made in all, if it fails. Clients of remote stores retry safe requests themselves.
    pub attempts: u32,
    /// The wait before the first retry. It doubles with each further retry, with jitter.
    pub retry_base: Duration,
    /// The time after which a request without an answer counts as failed.
    pub request_timeout: Duration,
    /// How long the first epoch's rows are buffered until it is decided where to store them. A decision takes 20 seconds at most;
    /// one that stores nothing does not come with any lease.
    pub decision_wait: Duration,
    /// Whether parts are mapped into memory instead of read, where that is safe: see [`caju_runtime::MappedFile`].
    pub mmap: bool,
    /// The most bytes of a block of a part, and of the decompressed buffers of one record batch. A part whose record or
    /// file claims more counts as damaged: no memory is allocated for it.
    pub max_block_bytes: u64,
    /// Commit records without a manifest at which they are folded into a new manifest.
    pub fold_after: usize,
    /// The time for which a listing of the whole root is used as its size.
    pub usage_refresh: Duration,
    /// Whether nothing is written below the root, not even leases of readers. For saves, whose parts are never evicted.
    pub read_only: bool,
}

/// The smallest budget in bytes. One small part takes about as much, with its record, its manifest, and the leases of its
/// readers and writers.
pub const MIN_BUDGET_BYTES: u64 = 16 << 10;

impl CacheOptions {
    /// Refuses a budget within which nothing could ever be stored.
    ///
    /// # Errors
    /// `InvalidArgument`, which names the smallest budget.
    pub fn check_budget(budget_bytes: Option<u64>) -> Result<()> {
        match budget_bytes.filter(|b| *b < MIN_BUDGET_BYTES) {
            None => Ok(()),
            Some(budget) => Err(Error::invalid(format!(
                "a cache budget of {} is too small to hold a single part and its records: give at least {}, or no \
                 cache at all",
                format_bytes(budget),
                format_bytes(MIN_BUDGET_BYTES)
            ))),
        }
    }
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            budget_bytes: None,
            ttl: None,
            lease_ttl: Duration::from_secs(20),
            orphan_grace: Duration::from_secs(3600),
            memory_tier_bytes: 256 << 20,
            disk_tier: None,
            part_buffer_bytes: 8 << 20,
            block_bytes: 2 << 20,
            read_bytes: 8 << 20,
            attempts: 4,
            retry_base: Duration::from_millis(100),
            request_timeout: Duration::from_secs(60),
            decision_wait: Duration::from_secs(30),
            mmap: true,
            max_block_bytes: 1 << 30,
            fold_after: 64,
            usage_refresh: Duration::from_secs(30),
            read_only: false,
        }
    }
}
