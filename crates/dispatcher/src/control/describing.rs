//! Telling snapshots what the control plane alone knows of them: how many splits their source has, and the profile
//! under which they were chosen.
//!
//! That happens once an epoch has ended, beside everything else. A manifest is a description and never the only
//! truth, so what goes wrong here is left to the next epoch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use caju_cache::{Cache, CacheOptions, SnapshotNews};
use caju_runtime::log_failure;
use caju_types::{Error, Fingerprint, IterationId, Result, SplitKey, hash128};
use futures::TryStreamExt as _;
use futures::stream::{BoxStream, StreamExt as _};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::Core;
use crate::catalog::Bound;
use crate::state::{SplitModes, State};

/// Splits that are counted; a source of more is not told of.
const MOST_SPLITS: usize = 1 << 22;
/// What was told is remembered up to so much; after that it may be told, and found known, once more.
const MOST_TOLD: usize = 4096;
/// How long telling may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// And how much longer once the dispatcher is to stop.
const LAST: Duration = Duration::from_secs(1);

/// What is known of the sources of running iterations, and what was told.
#[derive(Debug, Default)]
pub(super) struct Describing {
    tallies: Mutex<HashMap<IterationId, Arc<Tally>>>,
    told: Mutex<HashSet<u128>>,
    /// The cache, to write into.
    cache: OnceCell<Arc<Cache>>,
}

impl Describing {
    pub(super) fn forget(&self, iteration: IterationId) {
        self.tallies.lock().remove(&iteration);
    }

    pub(super) fn count(&self, iteration: IterationId) -> Option<u64> {
        match &*self.tallies.lock().get(&iteration)?.0.lock() {
            Seen::Keys(keys) => Some(keys.len() as u64),
            Seen::Count(count) => Some(*count),
            Seen::Unclear => None,
        }
    }

    /// The listing is over: its number is enough.
    pub(super) fn settle(&self, iteration: IterationId) {
        let Some(count) = self.count(iteration) else { return };
        if let Some(tally) = self.tallies.lock().get(&iteration) {
            *tally.0.lock() = Seen::Count(count);
        }
    }

    /// Whether it was not told before.
    pub(super) fn is_new(&self, what: u128) -> bool {
        let mut told = self.told.lock();
        if told.len() >= MOST_TOLD {
            told.clear();
        }
        told.insert(what)
    }
}

/// The different splits of an iteration: repetitions, and feeds of several workers, list the same ones again.
#[derive(Debug)]
struct Tally(Mutex<Seen>);

#[derive(Debug)]
enum Seen {
    /// While they are listed.
    Keys(HashSet<u64>),
    /// Afterwards.
    Count(u64),
    /// They cannot be told apart, or are too many.
    Unclear,
}

/// What is read of a split to count it.
#[derive(Deserialize)]
pub(super) struct Key {
    /// What its part is called.
    pub(super) key: SplitKey,
    /// How often all splits were there before.
    #[serde(default)]
    pub(super) repetition: u32,
}

impl Default for Tally {
    fn default() -> Self {
        Self(Mutex::new(Seen::Keys(HashSet::new())))
    }
}

impl Tally {
    fn add(&self, split: &str) {
        let mut seen = self.0.lock();
        let Seen::Keys(keys) = &mut *seen else { return };
        match serde_json::from_str::<Key>(split) {
            Ok(Key { key, .. }) if keys.len() < MOST_SPLITS => {
                keys.insert(key.folded());
            }
            _ => *seen = Seen::Unclear,
        }
    }
}

/// A snapshot, and what there is to tell of it.
struct Finding {
    /// The hint's prefix by the definition.
    prefix: Fingerprint,
    /// Where draws stand above the hint: the definition, the hint and the job's seed.
    drawn: Option<(Arc<str>, String, u64)>,
    news: SnapshotNews,
    /// For telling whether it was told before.
    name: u128,
}

impl Core {
    /// The same splits, counted on their way where there are hints at which they may be stored one by one.
    pub(super) fn tallied(
        &self,
        iteration: IterationId,
        bound: &Bound,
        splits: BoxStream<'static, Result<String>>,
    ) -> BoxStream<'static, Result<String>> {
        if !self.has_cache() || bound.hints.iter().all(|h| h.is_set()) {
            return splits;
        }
        let tally = Arc::clone(self.describing.tallies.lock().entry(iteration).or_default());
        splits.inspect_ok(move |split| tally.add(split)).boxed()
    }

    /// Once an iteration has ended that stored rows or read stored ones: tells their snapshot, in the background.
    pub(super) fn describe_soon(self: &Arc<Self>, state: &State, id: IterationId) {
        let Some(finding) = self.finding(state, id) else { return };
        let me = Arc::clone(self);
        self.tasks.background_graceful("describing a snapshot", log_failure, async move {
            let stopping = async {
                me.tasks.stopped().await;
                me.clock.sleep(LAST).await;
            };
            let told = tokio::select! {
                told = me.tell(&finding) => told,
                () = me.clock.sleep(PATIENCE) => Err(Error::deadline("the cache's store does not answer")),
                () = stopping => Err(Error::cancelled("the dispatcher stops")),
            };
            if let Err(error) = told {
                me.describing.told.lock().remove(&finding.name);
                tracing::debug!(prefix = %finding.prefix, %error, "a snapshot was not described anew");
            }
            Ok(())
        });
    }

    fn finding(&self, state: &State, id: IterationId) -> Option<Finding> {
        let iteration = state.iterations.get(&id).filter(|i| i.is_drained())?;
        let job = state.jobs.get(&iteration.job)?;
        let plan = iteration.plan.as_ref()?.value()?;
        let SplitModes { put, get, .. } = iteration.modes;
        // A set says by itself what it covers, and a save has a description of its own.
        if put + get == 0 || plan.set.is_some() || plan.save.is_some() {
            return None;
        }
        let listed = iteration.feeds.values().all(|f| f.exhausted);
        let splits = self.describing.count(id).filter(|_| listed);
        let profile = super::status::profile_with_rates(job);
        let profile = profile.and_then(|p| serde_json::from_str(p.text()).ok()).unwrap_or_default();
        let news = SnapshotNews { splits, profile };
        if news == SnapshotNews::default() {
            return None;
        }
        let dataset = state.datasets.get(&iteration.dataset)?;
        let draws = dataset.hints.iter().any(|h| h.name == plan.hint && h.random);
        // Rates are told when there are some, and not each time that they change.
        let decided_by = job.profile.as_ref().map_or("", |p| p.text());
        let read = job.replan.read_rate.is_some();
        let text = format!("{} {} {:?} {read} {decided_by}", plan.prefix, job.seed, news.splits);
        let name = hash128(text.as_bytes());
        // Whoever stored something may have begun a snapshot that was removed since it was told.
        if !self.describing.is_new(name) && put == 0 {
            return None;
        }
        let drawn = draws.then(|| (dataset.definition_json.as_str().into(), plan.hint.clone(), job.seed));
        Some(Finding { prefix: plan.prefix, drawn, news, name })
    }

    async fn tell(&self, finding: &Finding) -> Result<()> {
        let seeded = finding.drawn.as_ref().and_then(|(definition, hint, seed)| {
            self.catalog.seeded_snapshot(&serde_json::from_str(definition).ok()?, hint, *seed)
        });
        let of = seeded.unwrap_or(finding.prefix);
        if self.describing_cache().await?.snapshot(&of).tell(&finding.news).await? {
            tracing::debug!(snapshot = %of, splits = finding.news.splits, "a snapshot was described anew");
        }
        Ok(())
    }

    async fn describing_cache(&self) -> Result<Arc<Cache>> {
        let budget_bytes = self.config.cache_budget;
        let open =
            || self.open_cache(CacheOptions { budget_bytes, ..CacheOptions::default() }, "describing-");
        self.describing.cache.get_or_try_init(open).await.cloned()
    }
}
