//! What of an iteration's splits is stored already, found out beside its first rows.
//!
//! A snapshot's name covers the stages above its hint and not the files below them: other data that went through the
//! same stages lies in the same place. Only parts of splits that the iteration lists are of use to it.

use std::collections::BTreeMap;

use caju_cache::PartIndex;
use caju_types::{IterationId, Result};
use futures::TryStreamExt as _;

use super::Core;
use super::describing::Key;
use crate::catalog::Bound;
use crate::measured::{Found, Stored, StoredParts};
use crate::state::{Dataset, Hint};

/// Splits that are counted between two words of it.
const AT_ONCE: u64 = 1024;

impl Core {
    /// Counts the splits of an iteration about which nothing is decided, looks what of them is stored at its hints, and keeps
    /// both for the decision: its feeds list only so far ahead. What cannot be found out is taken not to be there.
    pub(super) async fn look_for_stored(&self, id: IterationId, dataset: &Dataset, seed: u64) -> Found {
        let look = async {
            let bound = self.bound(&dataset.id).await?;
            if !bound.set_bases.is_empty() {
                self.look_for_sets(id, &bound, seed).await;
            }
            self.parts_of(id, dataset, &bound, seed).await
        };
        let found = look.await.unwrap_or_else(|error| {
            tracing::warn!(iteration = %id, %error, "what is stored cannot be found out; it is not counted on");
            Found::default()
        });
        self.planning.lock().found(id, Stored::Known(found.clone()));
        found
    }

    async fn parts_of(&self, id: IterationId, dataset: &Dataset, bound: &Bound, seed: u64) -> Result<Found> {
        let mut indexes: Vec<(&Hint, PartIndex)> = Vec::new();
        for hint in dataset.hints.iter().filter(|h| h.behind.is_none()) {
            let snapshot = self.reading_cache().await?.snapshot(&self.seeded(dataset, hint, seed));
            let index = snapshot.index().await?;
            if !index.is_empty() {
                indexes.push((hint, index));
            }
        }
        let mut sums: BTreeMap<(&str, String), u64> = BTreeMap::new();
        let (mut splits, mut all) = ((bound.splits)(), 0u64);
        while let Some(split) = splits.try_next().await? {
            let key = serde_json::from_str::<Key>(&split).ok();
            // Repetitions have the parts of the first one, and there may be no end of them.
            if key.as_ref().is_some_and(|k| k.repetition > 0) {
                break;
            }
            all += 1;
            if all.is_multiple_of(AT_ONCE) {
                if !self.planning.lock().found(id, Stored::Awaited(all)) {
                    break;
                }
                // What is in memory is listed without waiting for anything.
                tokio::task::yield_now().await;
            }
            for (hint, index) in &indexes {
                if let Some(part) = key.as_ref().and_then(|k| index.get(&k.key)) {
                    *sums.entry((hint.name.as_str(), part.encoding.to_string())).or_default() += 1;
                }
            }
        }
        let parts = |((hint, encoding), n): ((&str, String), u64)| StoredParts {
            hint: hint.to_string(),
            encoding,
            fraction: n as f64 / all.max(1) as f64,
        };
        Ok(Found { parts: sums.into_iter().map(parts).collect(), splits: Some(all) })
    }

    /// The snapshot at a hint for a job with this seed.
    fn seeded(&self, dataset: &Dataset, hint: &Hint, seed: u64) -> caju_types::Fingerprint {
        let seeded = || {
            let definition = serde_json::from_str(&dataset.definition_json).ok()?;
            self.catalog.seeded_snapshot(&definition, &hint.name, seed)
        };
        hint.random.then(seeded).flatten().unwrap_or(hint.prefix)
    }
}
