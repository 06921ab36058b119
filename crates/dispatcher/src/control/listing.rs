//! One listing of splits.

use caju_autocache::{CachePlan, Document};
use caju_engine::Shard;
use caju_types::{DatasetId, IterationId};

use crate::splits::{Issued, SkippedSplits};
use crate::state::FeedId;

/// What a provider's filler must know.
pub(super) struct Listing {
    pub(super) feed: FeedId,
    pub(super) issued: Issued,
    pub(super) skipped_splits: SkippedSplits,
    pub(super) dataset: DatasetId,
    pub(super) job_seed: u64,
    pub(super) epoch: u64,
    pub(super) slot: Option<u32>,
    /// In a static mode: which splits are listed.
    pub(super) shard: Option<Shard>,
    pub(super) iteration: IterationId,
    pub(super) plan: Option<Document<CachePlan>>,
}
