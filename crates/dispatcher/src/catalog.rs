//! What the dispatcher needs from the engine: to bind definitions and to list their splits.

use std::fmt;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use caju_autocache::HintDef;
use caju_engine::{ListingDigest, SetBase, Shard, name_in_set_of};
use caju_pipeline::LearntBoundaries;
use caju_runtime::{IsolatedThreads, Stores};
use caju_sources::Split;
use caju_types::{Error, Fingerprint, Result, SplitKey};
use futures::stream::BoxStream;
use serde::Deserialize;

use crate::definition::Definition;

/// Makes sense of definitions. The engine's is behind it in a running dispatcher; tests have one without files.
#[async_trait]
pub trait Catalog: Send + Sync + 'static {
    /// Validates a definition and opens its source. `source_schema` given, with fields: it is trusted, and the source is not opened.
    ///
    /// # Errors
    /// What is wrong with the definition or its source, naming the place.
    async fn bind(&self, definition: &Definition, source_schema: Option<SchemaRef>) -> Result<Bound>;

    /// The snapshot at a hint of a definition for a job with this seed; none if that is the definition's own prefix.
    async fn seeded_snapshot(
        &self,
        _definition: &Definition,
        _hint: &str,
        _seed: u64,
    ) -> Option<Fingerprint> {
        None
    }

    /// The definition that runs: stages have the boundaries that were learnt for them.
    ///
    /// # Errors
    /// `InvalidArgument` naming a stage whose boundaries are missing, or are none.
    async fn with_boundaries(
        &self,
        definition: &Definition,
        learnt: &[LearntBoundaries],
    ) -> Result<Definition>;

    /// Where definitions of calls are read, as they are bound: a few at a time, and on no thread of the runtime.
    fn threads(&self) -> IsolatedThreads;

    /// Where saves may be written; none where there is no storage.
    fn stores(&self) -> Option<Arc<Stores>> {
        None
    }
}

/// A split as it is listed: its JSON, which is journaled and sent to workers unchanged, and what the dispatcher itself uses of
/// it, so that nothing parses the JSON again.
#[derive(Debug, Clone)]
pub struct ListedSplit {
    json: Arc<str>,
    facts: Option<SplitFacts>,
}

/// What the dispatcher uses of a split.
#[derive(Debug, Clone, Copy, Deserialize)]
struct SplitFacts {
    key: Option<SplitKey>,
    #[serde(default)]
    repetition: u32,
    #[serde(default)]
    trim: Option<(u64, u64)>,
}

impl ListedSplit {
    /// A split of an open source.
    ///
    /// # Errors
    /// `Internal` if it cannot be written as JSON.
    pub fn new(split: &Split) -> Result<Self> {
        let json =
            serde_json::to_string(split).map_err(|e| Error::internal(format!("a split as JSON: {e}")))?;
        let facts = SplitFacts { key: Some(split.key), repetition: split.repetition, trim: split.trim };
        Ok(Self { json: json.into(), facts: Some(facts) })
    }

    /// A split that was recorded as JSON. Text that is no split has no [`key`](Self::key).
    pub fn from_json(json: impl Into<Arc<str>>) -> Self {
        let json = json.into();
        Self { facts: serde_json::from_str(&json).ok(), json }
    }

    /// The split as JSON.
    pub fn json(&self) -> &Arc<str> {
        &self.json
    }

    /// The name of its part; none if that is not known.
    pub fn key(&self) -> Option<SplitKey> {
        self.facts.and_then(|f| f.key)
    }

    /// How many times the epoch has had all splits before.
    pub fn repetition(&self) -> u32 {
        self.facts.map_or(0, |f| f.repetition)
    }

    /// Its name in a set of parts.
    ///
    /// # Errors
    /// `Internal` if its key is not known.
    pub fn name_in_set(&self) -> Result<u128> {
        let named = self.facts.and_then(|f| Some(name_in_set_of(f.key?, f.repetition, f.trim)));
        named.ok_or_else(|| Error::internal("a split that was just listed cannot be read"))
    }
}

/// Makes a stream of splits in canonical order; found lazily while it is polled.
pub type ListSplits = Arc<dyn Fn() -> BoxStream<'static, Result<ListedSplit>> + Send + Sync>;

/// The splits of one shard, as [`ListSplits`] gives them.
pub struct ShardListing {
    /// The splits, in canonical order.
    pub splits: BoxStream<'static, Result<ListedSplit>>,
    /// Whether a `shuffle` has them in another order each epoch.
    pub permutes: bool,
    /// Names the listing of the whole source.
    pub listed: ListingDigest,
}

/// Makes the listing of a shard.
pub type ListShards = Arc<dyn Fn(Shard) -> ShardListing + Send + Sync>;

/// A definition with its source found.
#[derive(Clone)]
pub struct Bound {
    /// The name in the definition, for people.
    pub name: Option<String>,
    /// The name of what it computes.
    pub fingerprint: Fingerprint,
    /// The name of everything that the definition says, paths included.
    pub identity: Fingerprint,
    /// The name of its functions in Python as they were sent; none if it has none.
    pub payloads: Option<Fingerprint>,
    /// The schema of its elements' rows.
    pub schema: SchemaRef,
    /// The schema of its source. For several sources it holds the schemas of all of them ([`caju_sources::source_schema`]), or has
    /// no fields.
    pub source_schema: SchemaRef,
    /// The seed that the definition gives.
    pub seed: Option<u64>,
    /// Whether one task at a time must see all splits in their order.
    pub single_task: bool,
    /// Whether each file shard must see all of its splits in their order.
    pub counts_by_file: bool,
    /// Whether the definition promises an order.
    pub deterministic: bool,
    /// The first `shuffle`, if there is one.
    pub shuffle: Option<SplitShuffle>,
    /// Whether it permutes the order of splits each epoch; else it is the canonical one.
    pub permutes: bool,
    /// Rows that an epoch may drop under `on_error: skip`; none if rows may not be dropped.
    pub skip_limit: Option<u64>,
    /// Its hints, from the source down.
    pub hints: Vec<HintDef>,
    /// What the sets of parts at hints behind stream stages are named after.
    pub set_bases: Vec<(String, SetBase)>,
    /// The stages, as their figures name them, whose output differs from epoch to epoch.
    pub random_stages: Vec<String>,
    /// Whether the definition says that its source must not be touched.
    pub cache_only: bool,
    /// The first stage whose boundaries are to be learnt; none if the definition runs as it is.
    pub unlearnt: Option<String>,
    /// Its splits.
    pub splits: ListSplits,
    /// Its splits in a static processing mode.
    pub shards: ListShards,
}

/// What may permute the order of splits each epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitShuffle {
    /// The stage's own seed; the job's if absent.
    pub seed: Option<u64>,
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bound").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use caju_engine::name_in_set;
    use caju_sources::SplitRange;

    use super::*;

    #[test]
    fn a_listed_split_has_the_facts_that_its_json_has() {
        let split = Split {
            child: Vec::new(),
            repetition: 3,
            key: SplitKey(7),
            file: None,
            range: SplitRange::Rows { start: 0, end: 9 },
            rows: Some(9),
            trim: Some((2, 5)),
            stride: None,
        };
        let listed = ListedSplit::new(&split).unwrap();
        let again = ListedSplit::from_json(Arc::clone(listed.json()));
        for split_of in [&listed, &again] {
            assert_eq!((split_of.key(), split_of.repetition()), (Some(SplitKey(7)), 3));
            assert_eq!(split_of.name_in_set().unwrap(), name_in_set(&split));
        }
        assert_eq!(serde_json::from_str::<Split>(listed.json()).unwrap(), split);
        let other = ListedSplit::from_json("split 1");
        assert_eq!((other.key(), other.repetition()), (None, 0));
        assert!(other.name_in_set().is_err());
    }
}
