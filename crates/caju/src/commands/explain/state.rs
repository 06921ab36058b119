//! What is stored at each hint of a pipeline.

use std::collections::BTreeMap;

use caju_cache::SnapshotInfo;
use caju_pipeline::PrefixFingerprint;
use caju_proto::v1::JobStatus;
use caju_types::{Fingerprint, SplitKey};

use super::diff::Difference;
use crate::report::BoundariesReport;

/// What is stored of a pipeline.
pub(super) struct Explanation {
    pub(super) pipeline: String,
    pub(super) fingerprint: Fingerprint,
    pub(super) cache: String,
    pub(super) splits: Vec<Listed>,
    /// The order in which the stages run, for people: nothing unless another order than the written one is allowed.
    pub(super) order: Vec<String>,
    /// The order in which the stages run, as indices of `steps`.
    pub(super) run_order: Vec<usize>,
    /// The boundaries that stages have learnt.
    pub(super) boundaries: Vec<BoundariesReport>,
    pub(super) hints: Vec<HintState>,
    pub(super) job: Option<JobStatus>,
}

/// A split of the source.
pub(super) struct Listed {
    pub(super) key: SplitKey,
    pub(super) place: String,
    /// Whether a `take` or `skip` reads only some of its rows. Such a split is computed each time.
    pub(super) cut: bool,
}

/// What is stored at a hint.
pub(super) struct HintState {
    pub(super) prefix: PrefixFingerprint,
    /// The first cross-split stage above it, if any. Its parts are then stored and read as one set.
    pub(super) cross_split_stage: Option<String>,
    /// Why nothing can be stored there.
    pub(super) no_set: Option<String>,
    /// The identity of the set of these splits.
    pub(super) set: Option<Fingerprint>,
    /// Splits of this source that have a part.
    pub(super) stored: u64,
    /// All parts of the snapshot.
    pub(super) parts: u64,
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// Files with splits without a part, and the number of these splits.
    pub(super) missing: BTreeMap<String, u64>,
    pub(super) nearest: Option<Nearest>,
}

impl HintState {
    /// `hit`, `partial`, `miss`, or `not_storable` where nothing can be stored.
    pub(super) fn name(&self, splits: usize) -> &'static str {
        match (&self.no_set, self.stored) {
            (Some(_), _) => "not_storable",
            (None, 0) => "miss",
            (None, n) if n == splits as u64 => "hit",
            _ => "partial",
        }
    }
}

/// The most similar snapshot of another prefix.
pub(super) struct Nearest {
    pub(super) info: SnapshotInfo,
    pub(super) differences: Vec<Difference>,
}
