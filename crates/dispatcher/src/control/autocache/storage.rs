//! The check of the storage: what of an iteration's splits is stored already, found out alongside its first rows.
//!
//! A snapshot's name covers the stages above its hint and not the files below them: other data that went through the same
//! stages lies in the same place. Only parts of splits that the iteration lists are of use to it.

use std::collections::BTreeMap;

use caju_autocache::{Coverage, Encoding, Event, HintDef, StoredParts, StoredSet};
use caju_cache::PartIndex;
use caju_types::{IterationId, JobName, Result};
use futures::TryStreamExt as _;

use super::Decisions;
use crate::catalog::Bound;
use crate::state::Dataset;

/// Splits that are counted between two reports of progress.
const SPLITS_PER_REPORT: u64 = 1024;

impl Decisions {
    /// Counts the splits of an iteration that waits for a decision, and finds out which of them are stored at its hints.
    /// The feeds of the iteration list only a bounded number of splits ahead. What cannot be found out counts as absent.
    pub(super) async fn check_storage(
        &self,
        id: IterationId,
        job: &JobName,
        dataset: &Dataset,
        seed: u64,
    ) -> Coverage {
        let check = async {
            let bound = self.datasets.bound(&dataset.id).await?;
            let sets = if bound.set_bases.is_empty() {
                Vec::new()
            } else {
                let sets = self.stored_sets(id, &bound, seed).await;
                self.report_progress(id, job, None, Some(sets.clone()));
                sets
            };
            let coverage = self.stored_parts(id, job, dataset, &bound, seed).await?;
            Ok(Coverage { sets, ..coverage })
        };
        let checked: Result<Coverage> = check.await;
        checked.unwrap_or_else(|error| {
            tracing::warn!(iteration = %id, %error, "the storage cannot be checked; nothing is taken to be stored");
            Coverage::default()
        })
    }

    /// Complete sets at the hints of an iteration: reading one is an option without a cost to write it.
    async fn stored_sets(&self, id: IterationId, bound: &Bound, seed: u64) -> Vec<StoredSet> {
        self.snapshots.sets_at(bound, seed).await.unwrap_or_else(|error| {
            tracing::debug!(iteration = %id, %error, "stored sets cannot be looked for");
            Vec::new()
        })
    }

    fn report_progress(
        &self,
        iteration: IterationId,
        job: &JobName,
        splits: Option<u64>,
        sets: Option<Vec<StoredSet>>,
    ) -> bool {
        self.on_autocache_event(job, |_| Some(Event::StorageCheckProgressed { iteration, splits, sets }));
        self.awaits_coverage(job, iteration)
    }

    fn awaits_coverage(&self, job: &JobName, iteration: IterationId) -> bool {
        let decision = self.jobs.find(job);
        decision.is_some_and(|decision| decision.lock().autocache.awaits_coverage(iteration))
    }

    async fn stored_parts(
        &self,
        id: IterationId,
        job: &JobName,
        dataset: &Dataset,
        bound: &Bound,
        seed: u64,
    ) -> Result<Coverage> {
        let mut indexes: Vec<(&HintDef, PartIndex)> = Vec::new();
        for hint in dataset.hints.iter().filter(|h| !h.is_set()) {
            let snapshot = self
                .snapshots
                .reader()
                .await?
                .snapshot(&self.snapshots.seeded_prefix(dataset, hint, seed).await);
            let index = snapshot.index().await?;
            if !index.is_empty() {
                indexes.push((hint, index));
            }
        }
        let mut stored: BTreeMap<(&str, Encoding), u64> = BTreeMap::new();
        let (mut splits, mut all) = ((bound.splits)(), 0u64);
        while let Some(split) = splits.try_next().await? {
            // Repetitions have the parts of the first one, and may have no end.
            if split.repetition() > 0 {
                break;
            }
            all += 1;
            if all.is_multiple_of(SPLITS_PER_REPORT) {
                if !self.report_progress(id, job, Some(all), None) {
                    break;
                }
                // A listing in memory never waits by itself.
                tokio::task::yield_now().await;
            }
            for (hint, index) in &indexes {
                if let Some(part) = split.key().and_then(|key| index.get(&key)) {
                    *stored.entry((hint.name.as_str(), part.encoding)).or_default() += 1;
                }
            }
        }
        let parts = |((hint, encoding), n): ((&str, Encoding), u64)| StoredParts {
            hint: hint.to_string(),
            encoding,
            fraction: n as f64 / all.max(1) as f64,
        };
        let parts = stored.into_iter().map(parts).collect();
        Ok(Coverage { parts, splits: Some(all), ..Coverage::default() })
    }
}
