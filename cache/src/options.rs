//! The settings of a cache.

use std::path::PathBuf;
use std::time::Duration;

use caju_types::{Error, Result, format_bytes};

/// The settings of one process's view of a cache root. Every bound is in bytes, every wait a duration.
#[derive(Debug, Clone)]
pub struct CacheOptions {
    /// The most that all snapshots of the root may take together; unlimited if absent.
    pub budget_bytes: Option<u64>,
    /// Snapshots that nobody used for so long are removed by the collection; kept for ever if absent.
    pub ttl: Option<Duration>,
    /// A writer whose lease object did not change for so long is taken for dead.
    pub lease_ttl: Duration,
    /// Unreferenced objects younger than this are left alone by the collection.
    pub orphan_grace: Duration,
    /// Verified blocks of parts that are kept in memory; 0 for none.
    pub memory_tier_bytes: u64,
    /// A local folder that keeps blocks of remote parts, and the most bytes that it may hold.
    pub disk_tier: Option<(PathBuf, u64)>,
    /// The size of one upload request; a writer holds about three of these.
    pub part_buffer_bytes: usize,
    /// The size from which a block of a part is closed: the unit of checking and of the memory tier.
    pub block_bytes: usize,
    /// The most bytes of one read request.
    pub read_bytes: u64,
    /// How often a failed request is tried in all. The stores themselves retry what they know to be safe.
    pub attempts: u32,
    /// The wait before the first retry; doubled for each next one, with jitter.
    pub retry_base: Duration,
    /// How long one request may take before it counts as failed.
    pub request_timeout: Duration,
    /// Parts are mapped into memory instead of read, where that is safe: see [`caju_runtime::MappedFile`].
    pub mmap: bool,
    /// The largest block of a part, and the most bytes that the buffers of one record batch may have once they are
    /// decompressed. A part whose record or whose file claims more is damaged: no memory is taken for it.
    pub max_block_bytes: u64,
    /// Commit records that may gather before they are folded into a new manifest.
    pub fold_after: usize,
    /// How long the size of the whole root may be remembered before it is listed again.
    pub usage_refresh: Duration,
    /// Nothing is written below the root, not even who reads: for saves, which nobody evicts.
    pub read_only: bool,
}

/// The least budget that makes sense: one small part with its record, its manifest and the leases of who reads and
/// writes it take about as much.
pub const MIN_BUDGET_BYTES: u64 = 16 << 10;

impl CacheOptions {
    /// Refuses a budget under which nothing could ever be stored.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the least budget.
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
            mmap: true,
            max_block_bytes: 1 << 30,
            fold_after: 64,
            usage_refresh: Duration::from_secs(30),
            read_only: false,
        }
    }
}
