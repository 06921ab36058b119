//! Manifests: what the control plane alone knows of snapshots is written to them at the end of an epoch: how many splits their
//! source has, and the profile under which they were chosen.
//!
//! That happens in the background. A manifest is a description and never the only truth, so that a failure is left to the next
//! epoch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use caju_cache::DescriptionUpdate;
use caju_runtime::{OrderedMutex, log_failure};
use caju_types::{Error, Fingerprint, IterationId, Result, hash128};
use futures::TryStreamExt as _;
use futures::stream::{BoxStream, StreamExt as _};

use super::Core;
use crate::catalog::{Bound, ListedSplit};
use crate::locks;
use crate::state::{SplitModes, State};

/// Splits of one source that are counted. The keys of more would take too much memory.
const MAX_SPLITS: usize = 1 << 22;
/// The most hashes of written updates that are remembered. Beyond that an update may be written again, without effect.
const MAX_WRITTEN: usize = 4096;
/// How much longer it may take once the dispatcher is to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// The splits of running iterations.
pub(super) struct SplitCounts {
    by_iteration: OrderedMutex<HashMap<IterationId, Arc<SplitCount>>>,
}

impl Default for SplitCounts {
    fn default() -> Self {
        Self { by_iteration: OrderedMutex::new(locks::SPLIT_COUNTS, HashMap::new()) }
    }
}

impl SplitCounts {
    /// The count of an iteration, from now on.
    fn begin(&self, iteration: IterationId) -> Arc<SplitCount> {
        Arc::clone(self.by_iteration.lock().entry(iteration).or_default())
    }

    pub(super) fn forget(&self, iteration: IterationId) {
        self.by_iteration.lock().remove(&iteration);
    }

    /// The number of different splits that were listed.
    pub(super) fn of(&self, iteration: IterationId) -> Option<u64> {
        match &*self.by_iteration.lock().get(&iteration)?.0.lock() {
            Seen::Keys(keys) => Some(keys.len() as u64),
            Seen::Count(count) => Some(*count),
            Seen::Unclear => None,
        }
    }

    /// The listing is over: its number is enough.
    pub(super) fn settle(&self, iteration: IterationId) {
        let Some(count) = self.of(iteration) else { return };
        if let Some(of) = self.by_iteration.lock().get(&iteration) {
            *of.0.lock() = Seen::Count(count);
        }
    }
}

/// Hashes of what was written to manifests and plan records.
pub(super) struct Written {
    hashes: OrderedMutex<HashSet<u128>>,
}

impl Default for Written {
    fn default() -> Self {
        Self { hashes: OrderedMutex::new(locks::WRITTEN, HashSet::new()) }
    }
}

impl Written {
    /// Whether something was not written before. It counts as written from now on.
    pub(super) fn is_new(&self, what: u128) -> bool {
        let mut hashes = self.hashes.lock();
        if hashes.len() >= MAX_WRITTEN {
            hashes.clear();
        }
        hashes.insert(what)
    }

    /// What could not be written is written another time.
    fn forget(&self, what: u128) {
        self.hashes.lock().remove(&what);
    }
}

/// The different splits of an iteration: repetitions, and feeds of several workers, list the same ones again.
struct SplitCount(OrderedMutex<Seen>);

#[derive(Debug)]
enum Seen {
    /// While they are listed.
    Keys(HashSet<u64>),
    /// Afterwards.
    Count(u64),
    /// They cannot be distinguished, or are too many.
    Unclear,
}

impl Default for SplitCount {
    fn default() -> Self {
        Self(OrderedMutex::new(locks::SPLIT_COUNT, Seen::Keys(HashSet::new())))
    }
}

impl SplitCount {
    fn add(&self, split: &ListedSplit) {
        let mut seen = self.0.lock();
        let Seen::Keys(keys) = &mut *seen else { return };
        match split.key() {
            Some(key) if keys.len() < MAX_SPLITS => {
                keys.insert(key.folded());
            }
            _ => *seen = Seen::Unclear,
        }
    }
}

/// A snapshot, and what is to be written to its manifest.
struct ManifestUpdate {
    /// The hint's prefix by the definition.
    prefix: Fingerprint,
    /// Where draws stand above the hint: the definition, the hint and the job's seed.
    drawn: Option<(Arc<str>, String, u64)>,
    news: DescriptionUpdate,
    /// The hash of what is written.
    hash: u128,
}

impl Core {
    /// The same splits. Where hints store split by split, each split is counted as it passes.
    pub(super) fn counted(
        &self,
        iteration: IterationId,
        bound: &Bound,
        splits: BoxStream<'static, Result<ListedSplit>>,
    ) -> BoxStream<'static, Result<ListedSplit>> {
        if !self.snapshots.exists() || bound.hints.iter().all(|h| h.is_set()) {
            return splits;
        }
        let count = self.snapshots.counts.begin(iteration);
        splits.inspect_ok(move |split| count.add(split)).boxed()
    }

    /// Once an iteration has ended that stored rows or read stored ones: updates the manifest of their snapshot, in the background.
    pub(super) fn update_manifest_soon(self: &Arc<Self>, state: &State, id: IterationId) {
        let Some(update) = self.manifest_update(state, id) else { return };
        let me = Arc::clone(self);
        self.tasks.background_graceful("updating a manifest", log_failure, async move {
            let stopping = async {
                me.tasks.stopped().await;
                me.clock.sleep(STOP_TIMEOUT).await;
            };
            let written = tokio::select! {
                written = me.update_manifest(&update) => written,
                () = me.clock.sleep(me.config.timers.cache_update_timeout) => Err(Error::deadline("the cache's store does not answer")),
                () = stopping => Err(Error::cancelled("the dispatcher stops")),
            };
            if let Err(error) = written {
                me.snapshots.written.forget(update.hash);
                tracing::debug!(prefix = %update.prefix, %error, "a manifest was not updated");
            }
            Ok(())
        });
    }

    fn manifest_update(&self, state: &State, id: IterationId) -> Option<ManifestUpdate> {
        let iteration = state.iterations.get(&id).filter(|i| i.is_drained())?;
        let job = state.jobs.get(&iteration.job)?;
        let plan = iteration.plan.as_ref()?.value()?;
        let SplitModes { put, get, .. } = iteration.modes;
        // A set says by itself what it covers, and a save has a description of its own.
        if put + get == 0 || plan.set.is_some() || plan.save.is_some() {
            return None;
        }
        let listed = iteration.feeds.values().all(|f| f.exhausted);
        let splits = self.snapshots.counts.of(id).filter(|_| listed);
        let news = DescriptionUpdate { splits, profile: super::status::profile_value(job) };
        if news == DescriptionUpdate::default() {
            return None;
        }
        let dataset = state.datasets.get(&iteration.dataset)?;
        let draws = dataset.hints.iter().any(|h| h.name == plan.hint && h.random);
        // Rates are written when there are some, and not each time that they change.
        let decided_by = job.profile.as_ref().map_or("", |p| p.text());
        let read = job.replan.read_rate.is_some();
        let text = format!("{} {} {:?} {read} {decided_by}", plan.prefix, job.spec.seed, news.splits);
        let hash = hash128(text.as_bytes());
        // A job that stored something may have begun a snapshot that was removed since its manifest was written.
        if !self.snapshots.written.is_new(hash) && put == 0 {
            return None;
        }
        let drawn =
            draws.then(|| (dataset.definition_json.as_str().into(), plan.hint.clone(), job.spec.seed));
        Some(ManifestUpdate { prefix: plan.prefix, drawn, news, hash })
    }

    async fn update_manifest(&self, update: &ManifestUpdate) -> Result<()> {
        let seeded = match &update.drawn {
            Some((definition, hint, seed)) => self.seeded_snapshot(definition, hint, *seed).await,
            None => None,
        };
        let of = seeded.unwrap_or(update.prefix);
        if self.snapshots.writer().await?.snapshot(&of).update_description(&update.news).await? {
            tracing::debug!(snapshot = %of, splits = update.news.splits, "a manifest was updated");
        }
        Ok(())
    }
}
