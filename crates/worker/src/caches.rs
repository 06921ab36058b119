//! The cache roots that this process has open.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use caju_cache::{Cache, CacheOptions};
use caju_runtime::{Clock, IoSnapshot, LockRank, OrderedMutex, Stores};
use caju_types::{Error, Result};
use tokio::sync::OnceCell;

/// Roots are opened when a task first needs them, and shared by all tasks and workers of the process, so that
/// they share one lease, one memory tier and one budget.
pub struct Caches {
    stores: Arc<Stores>,
    options: CacheOptions,
    clock: Arc<dyn Clock>,
    open: OrderedMutex<HashMap<String, Root>>,
    /// Counters of closed roots.
    closed: OrderedMutex<IoSnapshot>,
    /// Distinguishes caches of one process that were opened concurrently.
    opened: AtomicU64,
    /// Why the last attempt to open a root failed.
    last_error: OrderedMutex<Option<Error>>,
}

/// The memory tiers and disk tiers of a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tiers {
    /// Blocks in memory.
    pub memory_bytes: u64,
    /// The most of these; 0 where parts are mapped.
    pub memory_limit: u64,
    /// Blocks on a local disk.
    pub disk_bytes: u64,
    /// The most of these; 0 without a disk tier.
    pub disk_limit: u64,
}

/// Roots that stay open although no task uses them: the cache, and some saves.
const MAX_UNUSED: usize = 4;
/// How long closing a root, which releases its lease, may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Default)]
struct Root {
    cell: Arc<OnceCell<Arc<Cache>>>,
    /// The order of its last use: higher is later.
    used: u64,
}

impl Root {
    /// Whether a task uses it, or is opening it.
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.cell) > 1 || self.cell.get().is_some_and(|cache| Arc::strong_count(cache) > 1)
    }
}

impl fmt::Debug for Caches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caches").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Caches {
    /// No root is open yet.
    pub fn new(stores: Arc<Stores>, options: CacheOptions, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            stores,
            options,
            clock,
            open: OrderedMutex::new(LockRank::leaf("the open cache roots"), HashMap::new()),
            closed: OrderedMutex::new(LockRank::leaf("the counters of closed roots"), IoSnapshot::default()),
            opened: AtomicU64::new(0),
            last_error: OrderedMutex::new(LockRank::leaf("the last error of a root"), None),
        })
    }

    /// The cache with this root, which may hold the given number of bytes from now on: a dispatcher that was started again may
    /// have another budget.
    ///
    /// # Errors
    /// `PermissionDenied` for a root that may not be written; those of [`Cache::open`]. The next call retries.
    pub async fn get(&self, url: &str, budget: Option<u64>) -> Result<Arc<Cache>> {
        self.stores.resolve_to_write(url)?;
        let (cell, unused) = self.enter(url);
        for cache in unused {
            self.end(&cache, CLOSE_TIMEOUT).await;
        }
        let budget_bytes = budget.or(self.options.budget_bytes);
        let open = || async {
            let clock = Arc::clone(&self.clock);
            let options = CacheOptions { budget_bytes, ..self.options.clone() };
            Cache::open(&self.stores, url, options, clock, self.writer_id()).await
        };
        let opened = cell.get_or_try_init(open).await.cloned();
        let opened = opened.and_then(|cache| cache.set_budget(budget_bytes).map(|()| cache));
        *self.last_error.lock() = opened.as_ref().err().cloned();
        opened
    }

    /// Why rows were last not stored: a root could not be opened, or a part could not be written.
    pub fn last_error(&self) -> Option<Error> {
        let opening = self.last_error.lock().clone();
        opening.or_else(|| self.all().iter().find_map(|cache| cache.put_failure()))
    }

    /// The slot of a root, and the roots that are closed to limit their number: every save has a root of its own.
    fn enter(&self, url: &str) -> (Arc<OnceCell<Arc<Cache>>>, Vec<Arc<Cache>>) {
        let mut open = self.open.lock();
        let root = open.entry(url.to_string()).or_default();
        root.used = self.opened.fetch_add(1, Ordering::Relaxed);
        let cell = Arc::clone(&root.cell);
        let mut unused: Vec<(u64, String)> =
            open.iter().filter(|(_, r)| !r.is_used()).map(|(url, r)| (r.used, url.clone())).collect();
        unused.sort_unstable();
        let over = unused.len().saturating_sub(MAX_UNUSED);
        let over = unused.into_iter().take(over);
        let closed = over.filter_map(|(_, url)| open.remove(&url)?.cell.get().cloned()).collect();
        (cell, closed)
    }

    /// Closes a root that was removed from the list.
    async fn end(&self, cache: &Cache, bound: Duration) {
        if let Err(error) = cache.close(bound).await {
            tracing::warn!(root = cache.url(), %error, "a cache was not closed in order");
        }
        add(&mut self.closed.lock(), cache.counters().snapshot());
    }

    /// A name that no other process has or had.
    fn writer_id(&self) -> String {
        let n = self.opened.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        format!("{pid}-{:x}-{n}", self.clock.unix_time().as_nanos())
    }

    /// Requests and bytes at the stores of all roots so far.
    pub fn io(&self) -> IoSnapshot {
        let mut sum = *self.closed.lock();
        self.all().iter().for_each(|cache| add(&mut sum, cache.counters().snapshot()));
        sum
    }

    /// Bytes in the memory tiers and in the disk tiers of the open roots, and the capacities of both.
    pub fn tiers(&self) -> Tiers {
        let mut sum = Tiers::default();
        for cache in self.all() {
            let ((memory, disk), (memory_limit, disk_limit)) = (cache.tier_bytes(), cache.tier_limits());
            sum.memory_bytes += memory;
            sum.disk_bytes += disk;
            sum.memory_limit += memory_limit;
            sum.disk_limit += disk_limit;
        }
        sum
    }

    fn all(&self) -> Vec<Arc<Cache>> {
        self.open.lock().values().filter_map(|r| r.cell.get().cloned()).collect()
    }

    /// Releases leases and completes pending writes, within `bound`.
    pub async fn close(&self, bound: Duration) {
        let all: Vec<_> = std::mem::take(&mut *self.open.lock()).into_values().collect();
        for cache in all.iter().filter_map(|r| r.cell.get()) {
            self.end(cache, bound).await;
        }
    }
}

fn add(sum: &mut IoSnapshot, io: IoSnapshot) {
    sum.reads += io.reads;
    sum.lists += io.lists;
    sum.writes += io.writes;
    sum.deletes += io.deletes;
    sum.bytes_read += io.bytes_read;
    sum.bytes_written += io.bytes_written;
    sum.syncs += io.syncs;
}

#[cfg(test)]
mod tests {
    use caju_runtime::SystemClock;

    use super::*;

    #[tokio::test]
    async fn saves_that_are_over_are_closed() {
        let folder = tempfile::tempdir().unwrap();
        let stores = Arc::new(Stores::default());
        let caches = Caches::new(stores, CacheOptions::default(), SystemClock::shared());
        let url = |i: usize| folder.path().join(i.to_string()).to_str().unwrap().to_owned();
        let held = caches.get(&url(0), None).await.unwrap();
        for i in 1..20 {
            drop(caches.get(&url(i), None).await.unwrap());
        }
        // The last one counts as used while it is handed out.
        assert!(caches.all().len() <= MAX_UNUSED + 2, "{}", caches.all().len());
        assert!(Arc::ptr_eq(&held, &caches.get(&url(0), None).await.unwrap()), "what is used stays");
        let before = caches.io();
        caches.close(CLOSE_TIMEOUT).await;
        assert!(caches.io().writes >= before.writes && before.writes > 0);
    }

    #[tokio::test]
    async fn a_root_that_is_open_takes_the_budget_of_a_dispatcher_that_was_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let caches = Caches::new(Arc::new(Stores::default()), CacheOptions::default(), SystemClock::shared());
        let url = folder.path().to_str().unwrap();
        for budget in [None, Some(1 << 30), Some(1 << 20), None] {
            let cache = caches.get(url, budget).await.unwrap();
            assert_eq!(cache.usage().await.unwrap().budget_bytes, budget);
        }
        assert!(caches.get(url, Some(1)).await.is_err());
    }
}
