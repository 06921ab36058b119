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
use crate::measured::{Stored, StoredParts};
use crate::state::{Dataset, Hint};

/// What was found out of an iteration's splits.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Found {
    /// What is stored of them, split by split.
    pub(super) parts: Vec<StoredParts>,
    /// How many there are, if that had to be known.
    pub(super) splits: Option<u64>,
}

impl Core {
    /// Looks what is stored at the hints of an iteration about which nothing is decided, and keeps it for the decision. What
    /// cannot be found out is taken not to be there.
    pub(super) async fn look_for_stored(
        &self,
        id: IterationId,
        dataset: &Dataset,
        seed: u64,
        counted: bool,
    ) -> Found {
        let look = async {
            let bound = self.bound(&dataset.id).await?;
            if !bound.set_bases.is_empty() {
                self.look_for_sets(id, &bound, seed).await;
            }
            self.parts_of(dataset, &bound, seed, counted).await
        };
        let found = look.await.unwrap_or_else(|error| {
            tracing::warn!(iteration = %id, %error, "what is stored cannot be found out; it is not counted on");
            Found::default()
        });
        self.planning.lock().found(id, Stored::Known(found.parts.clone()));
        found
    }

    async fn parts_of(&self, dataset: &Dataset, bound: &Bound, seed: u64, counted: bool) -> Result<Found> {
        let mut indexes: Vec<(&Hint, PartIndex)> = Vec::new();
        for hint in dataset.hints.iter().filter(|h| h.behind.is_none()) {
            let snapshot = self.reading_cache().await?.snapshot(&self.seeded(dataset, hint, seed));
            let index = snapshot.index().await?;
            if !index.is_empty() {
                indexes.push((hint, index));
            }
        }
        if indexes.is_empty() && !counted {
            return Ok(Found::default());
        }
        let mut sums: BTreeMap<(&str, String), u64> = BTreeMap::new();
        let (mut splits, mut all) = ((bound.splits)(), 0u64);
        while let Some(split) = splits.try_next().await? {
            all += 1;
            let Ok(Key { key }) = serde_json::from_str(&split) else { continue };
            for (hint, index) in &indexes {
                if let Some(part) = index.get(&key) {
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
