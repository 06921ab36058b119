//! A hint of a bound pipeline, and the form of the rows there.

use arrow_schema::SchemaRef;
use caju_types::{Fingerprint, hash128};

/// A hint of a bound pipeline.
#[derive(Debug, Clone)]
pub(crate) struct BoundHint {
    pub(crate) name: String,
    pub(crate) schema: SchemaRef,
    /// Its index among the stages of the definition.
    pub(crate) stage: usize,
    /// The definition of the stages above it, which the snapshot's manifest shows to people.
    pub(crate) definition: serde_json::Value,
    /// The stages above it in one line.
    pub(crate) prefix: String,
    /// The canonical form that the fingerprint is a hash of.
    pub(crate) canonical: serde_json::Value,
    /// The fingerprint of the stages above it; in a task it includes the job's seed.
    pub(crate) fingerprint: Fingerprint,
    /// The fingerprint by the definition alone.
    pub(crate) planned: Fingerprint,
    /// Whether a stage above it draws again each epoch.
    pub(crate) random: bool,
    /// The random positions of stages above it are below this one.
    pub(crate) position: u32,
    /// The source's columns, if their types were inferred from the first rows of some file: with other files the types may
    /// differ, and then the values.
    pub(crate) found_columns: Option<String>,
    /// Behind a cross-split stage: the form of the rows there.
    pub(crate) set: Option<SetShape>,
}

/// The form of the rows at a hint behind a cross-split stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetShape {
    /// Rows form batches.
    pub(crate) batched: bool,
    /// The lists of each batch are padded to a length of its own.
    pub(crate) padded: bool,
    /// A `take` above it may end the stream: the rows that arrive are complete, though not all splits were read.
    pub(crate) cut: bool,
    /// What the remainder of the pipeline changes in the rows that arrive there.
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

/// What the names of the folders of a prefix's sets are derived from.
pub(crate) fn set_base(prefix: Fingerprint, variant: &str) -> Fingerprint {
    Fingerprint(hash128(format!("{prefix} {variant}").as_bytes()))
}

/// The end of the split-local stages, if rows can be shared there.
#[derive(Debug, Clone)]
pub(crate) struct LocalEnd {
    /// What the fingerprint is a hash of.
    pub(crate) canonical: serde_json::Value,
    /// The fingerprint of the stages above, by the definition alone.
    pub(crate) fingerprint: Fingerprint,
    /// Whether a stage above draws again each epoch.
    pub(crate) random: bool,
    /// The source's columns, where their types were inferred.
    pub(crate) found_columns: Option<String>,
    /// The number of the definition's stages above.
    pub(crate) stages: usize,
}
