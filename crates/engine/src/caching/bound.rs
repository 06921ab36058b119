//! A hint, as binding found it.

use arrow_schema::SchemaRef;
use caju_types::{Fingerprint, hash128};

/// A hint of a bound pipeline.
#[derive(Debug, Clone)]
pub(crate) struct BoundHint {
    pub(crate) name: String,
    pub(crate) schema: SchemaRef,
    /// Its index among the stages of the definition.
    pub(crate) stage: usize,
    /// The definition of the stages above it, for people who look into the snapshot.
    pub(crate) definition: serde_json::Value,
    /// The same in a few words.
    pub(crate) prefix: String,
    /// What the fingerprint is a hash of.
    pub(crate) canonical: serde_json::Value,
    /// The fingerprint of the stages above it: with the job's seed, in a task.
    pub(crate) fingerprint: Fingerprint,
    /// The same by the definition alone.
    pub(crate) planned: Fingerprint,
    /// Whether something above it draws anew each epoch.
    pub(crate) random: bool,
    /// Stages above it draw at positions below this one.
    pub(crate) position: u32,
    /// The source's columns, where their types were found from the first rows of some file: other files may
    /// show other types, and then other values.
    pub(crate) found_columns: Option<String>,
    /// Behind a stage that mixes splits: how rows stand there.
    pub(crate) set: Option<SetShape>,
}

/// How rows stand at a hint behind a stage that mixes splits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetShape {
    /// They form batches.
    pub(crate) batched: bool,
    /// Every batch has its own length of lists.
    pub(crate) padded: bool,
    /// A `take` above it may end the stream: what arrives is all that the prefix puts out, though not all splits were
    /// read.
    pub(crate) cut: bool,
    /// What of the rest of the pipeline shapes what arrives there.
    pub(crate) variant: String,
}

impl BoundHint {
    /// The hint for a job with this seed: what is drawn above it depends on that.
    pub(crate) fn seeded(mut self, seed: u64) -> Self {
        if let Some((canonical, fingerprint)) = caju_pipeline::reseeded(&self.canonical, seed)
            && fingerprint != self.planned
        {
            self.fingerprint = fingerprint;
            self.canonical = canonical;
            if let Some(definition) = self.definition.as_object_mut() {
                definition.insert("seed".into(), seed.into());
            }
        }
        self
    }
}

/// What the folders of the sets of a prefix are named after.
pub(crate) fn set_base(prefix: Fingerprint, variant: &str) -> Fingerprint {
    Fingerprint(hash128(format!("{prefix} {variant}").as_bytes()))
}
