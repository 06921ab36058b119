//! The cache roots that this process has open.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use caju_cache::{Cache, CacheOptions};
use caju_runtime::{Clock, IoSnapshot, Stores};
use caju_types::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

/// Roots are opened when a task first needs them, and shared by all tasks and workers of the process, so that
/// they share one lease, one memory tier and one budget.
pub struct Caches {
    stores: Arc<Stores>,
    options: CacheOptions,
    clock: Arc<dyn Clock>,
    open: Mutex<HashMap<String, Arc<OnceCell<Arc<Cache>>>>>,
    /// Tells caches of one process apart that were opened in the same instant.
    opened: AtomicU64,
    /// Why a root could not be opened when that was last tried.
    trouble: Mutex<Option<Error>>,
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
            open: Mutex::default(),
            opened: AtomicU64::new(0),
            trouble: Mutex::default(),
        })
    }

    /// The cache with this root, which may hold so many bytes.
    ///
    /// # Errors
    /// `PermissionDenied` for a root that may not be written; those of [`Cache::open`]. The next call tries again.
    pub async fn get(&self, url: &str, budget: Option<u64>) -> Result<Arc<Cache>> {
        self.stores.resolve_to_write(url)?;
        let cell = Arc::clone(self.open.lock().entry(url.to_string()).or_default());
        let open = || async {
            let clock = Arc::clone(&self.clock);
            let options =
                CacheOptions { budget_bytes: budget.or(self.options.budget_bytes), ..self.options.clone() };
            Cache::open(&self.stores, url, options, clock, self.writer_id()).await
        };
        let opened = cell.get_or_try_init(open).await.cloned();
        *self.trouble.lock() = opened.as_ref().err().cloned();
        opened
    }

    /// Why the root that was last asked for could not be opened; none if it could.
    pub fn trouble(&self) -> Option<Error> {
        self.trouble.lock().clone()
    }

    /// A name that no other process has, living or dead.
    fn writer_id(&self) -> String {
        let n = self.opened.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        format!("{pid}-{:x}-{n}", self.clock.unix_time().as_nanos())
    }

    /// Requests and bytes at the stores of all roots so far.
    pub fn io(&self) -> IoSnapshot {
        let mut sum = IoSnapshot::default();
        for cache in self.all() {
            let io = cache.counters().snapshot();
            sum.reads += io.reads;
            sum.lists += io.lists;
            sum.writes += io.writes;
            sum.deletes += io.deletes;
            sum.bytes_read += io.bytes_read;
            sum.bytes_written += io.bytes_written;
        }
        sum
    }

    fn all(&self) -> Vec<Arc<Cache>> {
        self.open.lock().values().filter_map(|c| c.get().cloned()).collect()
    }

    /// Gives leases back and writes what is left to write, within `bound`.
    pub async fn close(&self, bound: Duration) {
        let all: Vec<_> = std::mem::take(&mut *self.open.lock()).into_values().collect();
        for cache in all.iter().filter_map(|c| c.get()) {
            if let Err(error) = cache.close(bound).await {
                tracing::warn!(root = cache.url(), %error, "a cache was not closed in order");
            }
        }
    }
}
