//! Snapshots: the dispatcher's own access to the cache, and what it knows of the sources of running iterations.

use std::sync::Arc;
use std::time::Duration;

use caju_cache::{Cache, CacheOptions};
use caju_runtime::Clock;
use caju_types::{Error, Result};
use tokio::sync::OnceCell;

use super::cache_size::KnownSize;
use super::manifests::{SplitCounts, Written};
use super::process::Process;
use crate::catalog::Catalog;
use crate::config::DispatcherConfig;

/// The cache, as the dispatcher uses it.
pub(super) struct Snapshots {
    /// Empty without a cache.
    url: String,
    budget_bytes: Option<u64>,
    catalog: Arc<dyn Catalog>,
    clock: Arc<dyn Clock>,
    process: Arc<Process>,
    reader: OnceCell<Arc<Cache>>,
    writer: OnceCell<Arc<Cache>>,
    size: KnownSize,
    /// The splits of running iterations.
    pub(super) counts: SplitCounts,
    /// What was written to manifests and plan records.
    pub(super) written: Written,
}

impl Snapshots {
    pub(super) fn new(
        config: &DispatcherConfig,
        catalog: Arc<dyn Catalog>,
        clock: Arc<dyn Clock>,
        process: Arc<Process>,
    ) -> Self {
        Self {
            url: config.cache_url.clone(),
            budget_bytes: config.cache_budget,
            catalog,
            clock,
            process,
            reader: OnceCell::new(),
            writer: OnceCell::new(),
            size: KnownSize::default(),
            counts: SplitCounts::default(),
            written: Written::default(),
        }
    }

    /// Whether there is a cache.
    pub(super) fn exists(&self) -> bool {
        !self.url.is_empty()
    }

    /// The size of the cache, as far as it is known.
    pub(super) fn size(&self) -> &KnownSize {
        &self.size
    }

    /// The cache, to look into.
    ///
    /// # Errors
    /// Those of opening it.
    pub(super) async fn reader(&self) -> Result<Arc<Cache>> {
        let options = CacheOptions { read_only: true, ..CacheOptions::default() };
        self.reader.get_or_try_init(|| self.open(options, "dispatcher-")).await.cloned()
    }

    /// The cache, to write descriptions into.
    ///
    /// # Errors
    /// Those of opening it.
    pub(super) async fn writer(&self) -> Result<Arc<Cache>> {
        let options = CacheOptions { budget_bytes: self.budget_bytes, ..CacheOptions::default() };
        self.writer.get_or_try_init(|| self.open(options, "describing-")).await.cloned()
    }

    /// Closes what is open of the cache: its lease is released, so that nobody has to wait until it expires.
    pub(super) async fn close(&self, bound: Duration) {
        for cache in [self.reader.get(), self.writer.get()].into_iter().flatten() {
            if let Err(error) = cache.close(bound).await {
                tracing::warn!(root = cache.url(), %error, "the dispatcher's cache was not closed in order");
            }
        }
    }

    /// Opens the cache without a memory tier: the dispatcher reads records and no rows.
    async fn open(&self, options: CacheOptions, name: &str) -> Result<Arc<Cache>> {
        let stores = self
            .catalog
            .stores()
            .ok_or_else(|| Error::failed_precondition("this dispatcher reaches no storage"))?;
        let options = CacheOptions { memory_tier_bytes: 0, ..options };
        let writer = self.process.unique_name(name);
        Cache::open(&stores, &self.url, options, Arc::clone(&self.clock), writer).await
    }
}
