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
    /// The number of rows of its split-local output, if that is known.
    pub rows: Option<u64>,
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
            rows: None,
            checksums: Vec::new(),
            cache: None,
            group: None,
            name: 0,
        }
    }

    /// Whether readers have all of its rows.
    pub(crate) fn is_taken(&self) -> bool {
        self.rows.is_some_and(|rows| rows > 0 && self.done.len() == rows)
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

    /// The task has read all of these splits, each with its repetition of the source, and they have no rows. Nothing is reported
    /// once some split of the task had a row: then readers know it.
    fn report_empty(&mut self, _splits: &[(u64, u32)]) {}

    /// Splits of which readers have taken every row, as was learnt since the last call: the task may forget them.
    fn take_completed(&mut self) -> Vec<u64> {
        Vec::new()
    }
}
