//! The boundaries of `bucket_by_length` that workers learnt.

use caju_types::{DatasetId, Fingerprint};
use serde::{Deserialize, Serialize};

/// What was learnt for one definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Learnt {
    /// The identity of the definition as it was sent, and of the columns found.
    pub definition: Fingerprint,
    /// The XXH3-128 of its JSON, which names its commonest spelling.
    pub spelling: Fingerprint,
    /// The dataset that runs: the definition with these boundaries.
    pub dataset: DatasetId,
    /// The boundaries, stage by stage.
    pub stages: Vec<StageBoundaries>,
}

/// What was learnt for one stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageBoundaries {
    /// Its index in the definition.
    pub stage: u32,
    /// The exclusive upper bounds of all classes but the last.
    pub boundaries: Vec<i64>,
    /// The rows whose lengths were read.
    pub rows: u64,
}
