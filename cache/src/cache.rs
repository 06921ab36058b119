//! A process's handle on a cache root.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use caju_runtime::{Clock, IoCounters, Stores, log_failure};
use caju_types::{Error, Fingerprint, Result};

use crate::admission::Admission;
use crate::context::Context;
use crate::options::CacheOptions;
use crate::read::PREFETCH;
use crate::record::PartMeta;
use crate::state::{SnapshotState, Snapshots};
use crate::tier::MemoryTier;

/// The least number of read requests that a worker has in flight, as long as there is enough to read.
const MIN_REQUESTS: usize = 16;

/// One process's handle on one cache root.
#[derive(Debug)]
pub struct Cache {
    pub(crate) ctx: Arc<Context>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) admission: Admission,
    backfill: Arc<AtomicU64>,
}

impl Cache {
    /// The most requests that one reader of a part has in flight. A store gives one connection only a part of its
    /// bandwidth.
    pub const REQUESTS: usize = PREFETCH;

    /// Opens a cache root and finds out whether its store honours conditional puts (two small writes).
    ///
    /// `writer_id` names this process in leases and records. It must be unique among living *and* dead processes:
    /// build it from the host, the process id and the start time.
    ///
    /// A root that the store refuses to have written is opened all the same, with a warning: what is stored there is
    /// read, and nothing is stored ([`Cache::is_read_only`]).
    ///
    /// # Errors
    /// `InvalidArgument` for a bad URL, id or budget, `Unavailable` and so on if the store does not answer.
    pub async fn open(
        stores: &Stores,
        url: &str,
        options: CacheOptions,
        clock: Arc<dyn Clock>,
        writer_id: String,
    ) -> Result<Arc<Cache>> {
        let ctx = Arc::new(Context::open(stores, url, options, clock, writer_id).await?);
        let snapshots = Arc::new(Snapshots::new(Arc::clone(&ctx)));
        let admission = Admission::new(Arc::clone(&ctx), Arc::clone(&snapshots));
        let cache = Arc::new(Cache { ctx, snapshots, admission, backfill: Arc::default() });
        cache.write_usage_regularly();
        Ok(cache)
    }

    /// Requests and bytes at the store, so far. Reading from the memory or disk tier does not count.
    pub fn counters(&self) -> Arc<IoCounters> {
        Arc::clone(&self.ctx.root.io)
    }

    /// The root's URL.
    pub fn url(&self) -> &str {
        self.ctx.root.url()
    }

    /// Sets the byte budget that holds from now on, where the options had another one.
    ///
    /// # Errors
    /// `InvalidArgument` for a budget within which nothing could be stored. The one before it holds on.
    pub fn set_budget(&self, budget_bytes: Option<u64>) -> Result<()> {
        CacheOptions::check_budget(budget_bytes)?;
        self.ctx.budget.set_limit(budget_bytes);
        Ok(())
    }

    /// Whether nothing is written below the root: as the options say, or because the store refuses it.
    pub fn is_read_only(&self) -> bool {
        self.ctx.is_read_only()
    }

    /// Why this process last failed to store a part. None if it never failed, or if the options make the root read only.
    pub fn put_failure(&self) -> Option<Error> {
        self.ctx.put_failure()
    }

    /// The id of this process in leases and records.
    pub fn writer_id(&self) -> &str {
        self.ctx.leases.id()
    }

    /// The settings.
    pub fn options(&self) -> &CacheOptions {
        &self.ctx.options
    }

    /// Bytes of rows that tasks hold until it is decided whether these rows are stored. Every task counts its bytes here.
    /// All tasks together hold at most the capacity of the memory tier.
    pub fn backfill_bytes(&self) -> &Arc<AtomicU64> {
        &self.backfill
    }

    /// Bytes held by the memory tier and by the disk tier.
    pub fn tier_bytes(&self) -> (u64, u64) {
        let memory = self.ctx.memory.as_ref().map_or(0, MemoryTier::bytes);
        (memory, self.ctx.disk.as_ref().map_or(0, |d| d.bytes()))
    }

    /// The capacities of the memory tier and of the disk tier in bytes; 0 for a tier that there is not.
    pub fn tier_limits(&self) -> (u64, u64) {
        (self.memory_tier_bytes(), self.ctx.options.disk_tier.as_ref().map_or(0, |(_, capacity)| *capacity))
    }

    /// The capacity of the memory tier in bytes; 0 where parts are mapped.
    pub fn memory_tier_bytes(&self) -> u64 {
        if self.ctx.maps() { 0 } else { self.ctx.options.memory_tier_bytes }
    }

    /// Answers that fit a reader with `requests` requests in flight: twice as many. Answers that wait to be decoded would
    /// otherwise keep the store idle wherever decoding takes about as long as fetching.
    pub const fn answers_at_once(requests: usize) -> usize {
        2 * requests
    }

    /// Read requests that a task has in flight when it reads `readers` splits at once. There is a lower bound: a remote
    /// store gives each request only a small part of its bandwidth.
    pub fn requests_at_once(readers: usize) -> usize {
        (readers * PREFETCH).max(MIN_REQUESTS)
    }

    /// Requests that reading this part has in flight; none where parts are mapped.
    pub fn requests_for(&self, part: &PartMeta) -> Option<usize> {
        if self.ctx.maps() {
            return None;
        }
        let requests = part.bytes.div_ceil(self.ctx.options.read_bytes.max(1));
        Some(usize::try_from(requests).unwrap_or(Self::REQUESTS).clamp(1, Self::REQUESTS))
    }

    /// Ends this handle's work: folds commit records into manifests, writes usage records, releases the lease and stops
    /// the tasks, all within `bound`. Without it other processes wait for the lease to expire.
    ///
    /// # Errors
    /// The first thing that failed; nothing is lost then.
    pub async fn close(&self, bound: Duration) -> Result<()> {
        let ctx = &self.ctx;
        let work = async {
            if ctx.is_read_only() {
                return Ok(());
            }
            let mut result = Ok(());
            for state in self.snapshots.all() {
                result = result.and(state.fold(ctx).await);
                result = result.and(state.flush_usage(ctx).await);
                result = result.and(state.fold_usage(ctx).await);
            }
            result.and(ctx.leases.remove_stale_claims().await)
        };
        let result = tokio::select! {
            result = work => result,
            () = ctx.root.clock.sleep(bound) => Err(Error::deadline(format!(
                "{}: the cache was not closed in time", ctx.root.url()
            ))),
        };
        ctx.tasks.shutdown(bound).await;
        let ended = tokio::select! {
            ended = ctx.leases.end() => ended,
            () = ctx.root.clock.sleep(bound) => Err(Error::deadline(format!(
                "{}: the lease was not released in time", ctx.root.url()
            ))),
        };
        result.and(ended)
    }

    pub(crate) fn state(&self, of: Fingerprint) -> Arc<SnapshotState> {
        self.snapshots.get(of)
    }

    /// Writes this process's usage records once per lease's life.
    fn write_usage_regularly(&self) {
        if self.is_read_only() {
            return;
        }
        let (snapshots, clock, interval) = (
            Arc::downgrade(&self.snapshots),
            Arc::clone(&self.ctx.root.clock),
            self.ctx.options.lease_ttl.max(Duration::from_secs(1)),
        );
        self.ctx.tasks.background("writing usage records", log_failure, async move {
            loop {
                clock.sleep(interval).await;
                let Some(snapshots) = snapshots.upgrade() else { return Ok(()) };
                for state in snapshots.all() {
                    if let Err(error) = state.flush_usage(snapshots.context()).await {
                        tracing::debug!(%error, "the usage of a snapshot was not recorded");
                    }
                }
            }
        });
    }
}
