//! Snapshots: the dispatcher's own access to the cache, and what it knows of the sources of running iterations.

use std::sync::Arc;
use std::time::Duration;

use caju_autocache::HintDef;
use caju_cache::{Cache, CacheOptions};
use caju_types::{Error, Fingerprint, Result};
use tokio::sync::OnceCell;

use super::context::Context;
use super::known_size::KnownSize;
use super::split_counts::SplitCounts;
use super::written_hashes::WrittenHashes;
use crate::catalog::Catalog;
use crate::definition::Definition;
use crate::state::Dataset;

/// The cache, as the dispatcher uses it.
pub(super) struct Snapshots {
    pub(super) context: Arc<Context>,
    catalog: Arc<dyn Catalog>,
    reader: OnceCell<Arc<Cache>>,
    writer: OnceCell<Arc<Cache>>,
    size: KnownSize,
    /// The splits of running iterations.
    pub(super) counts: Arc<SplitCounts>,
    /// What was written to manifests and plan records.
    pub(super) written: WrittenHashes,
}

impl Snapshots {
    pub(super) fn new(context: Arc<Context>, catalog: Arc<dyn Catalog>, counts: Arc<SplitCounts>) -> Self {
        Self {
            context,
            catalog,
            reader: OnceCell::new(),
            writer: OnceCell::new(),
            size: KnownSize::default(),
            counts,
            written: WrittenHashes::default(),
        }
    }

    /// The snapshot at a hint for a job with this seed.
    pub(super) async fn seeded_prefix(&self, dataset: &Dataset, hint: &HintDef, seed: u64) -> Fingerprint {
        if !hint.random {
            return hint.prefix;
        }
        let own = self.seeded_snapshot(&dataset.definition, &hint.name, seed).await;
        own.unwrap_or(hint.prefix)
    }

    /// The snapshot at a hint of a definition, for a job with this seed; none if that is the definition's own prefix.
    pub(super) async fn seeded_snapshot(
        &self,
        definition: &Definition,
        hint: &str,
        seed: u64,
    ) -> Option<Fingerprint> {
        self.catalog.seeded_snapshot(definition, hint, seed).await
    }

    /// Whether there is a cache.
    pub(super) fn exists(&self) -> bool {
        !self.context.config.cache_url.is_empty()
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
        let options = CacheOptions { read_only: true, ..self.context.config.timers.cache_options() };
        self.reader.get_or_try_init(|| self.open(options, "dispatcher-")).await.cloned()
    }

    /// The cache, to write descriptions into.
    ///
    /// # Errors
    /// Those of opening it.
    pub(super) async fn writer(&self) -> Result<Arc<Cache>> {
        let config = &self.context.config;
        let options = CacheOptions { budget_bytes: config.cache_budget, ..config.timers.cache_options() };
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
        let Context { config, clock, process, .. } = self.context.as_ref();
        let writer = process.unique_name(name);
        Cache::open(&stores, &config.cache_url, options, Arc::clone(clock), writer).await
    }
}
