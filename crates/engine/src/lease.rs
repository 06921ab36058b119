//! Leases: the splits that a task was given to run.

use std::sync::Arc;

use async_trait::async_trait;
use caju_sources::Split;
use caju_types::{Result, RowRanges};

use crate::cache_plan::{CachePlan, GroupLease};

/// One lease of a split.
#[derive(Debug, Clone)]
pub struct LeasedSplit {
    /// The split's index in the iteration.
    pub index: u64,
    /// What to read.
    pub split: Split,
    /// Rows of its split-local output that readers already have.
    pub done: RowRanges,
    /// Checksums of rows in `done`, as an earlier run gave them: ordinal and checksum.
    pub checksums: Vec<(u64, u64)>,
    /// What to store and to read; none: compute.
    pub cache: Option<Arc<CachePlan>>,
    /// The part of a set that has all rows of this split and of the splits that are leased with it.
    pub group: Option<GroupLease>,
    /// A hash of the split as the dispatcher describes it: equal in all jobs that read the split. 0: not known.
    pub name: u64,
}

impl LeasedSplit {
    /// A split that no task began before, to be computed.
    pub fn new(index: u64, split: Split) -> Self {
        Self {
            index,
            split,
            done: RowRanges::default(),
            checksums: Vec::new(),
            cache: None,
            group: None,
            name: 0,
        }
    }
}

/// Where a task's splits come from.
#[async_trait]
pub trait SplitFeed: Send {
    /// The next leases, at most `want`; waits for at least one. `None`: no split is left for this task.
    ///
    /// # Errors
    /// Any error that ends the task: the dispatcher was unreachable for too long, or the iteration failed.
    async fn next(&mut self, want: usize) -> Result<Option<Vec<LeasedSplit>>>;
}
