//! What clients acknowledged: the rows that their users took.

use std::collections::HashMap;

use caju_proto::v1;
use caju_types::{RowRanges, RowSet};

/// Rows that the user of one client took, per split.
#[derive(Debug, Default)]
pub(crate) struct Acknowledged {
    /// Nothing is missing here: the client joined this process, or has sent all of it again.
    pub(super) complete: bool,
    pub(super) splits: HashMap<u64, Rows>,
}

/// Rows of one split: ranges, and shuffled ones as bits.
#[derive(Debug, Default)]
pub(super) struct Rows {
    ranges: RowRanges,
    scattered: RowSet,
}

impl Rows {
    pub(super) fn union(&self) -> RowRanges {
        let mut all = self.scattered.ranges();
        all.extend(&self.ranges);
        all
    }

    pub(super) fn len(&self) -> u64 {
        if self.scattered.is_empty() { self.ranges.len() } else { self.union().len() }
    }
}

impl Acknowledged {
    /// Those of a client that joins now.
    pub(super) fn complete() -> Self {
        Self { complete: true, splits: HashMap::new() }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    pub(super) fn of(&self, split: u64) -> RowRanges {
        self.splits.get(&split).map(Rows::union).unwrap_or_default()
    }

    pub(super) fn total(&self) -> u64 {
        self.splits.values().map(Rows::len).sum()
    }

    /// Adds what a heartbeat brings; all of it, if it says so.
    pub(super) fn add(&mut self, rows: &[v1::SplitRows], all: bool) {
        self.complete |= all;
        for of_split in rows {
            let known = self.splits.entry(of_split.split_index).or_default();
            for range in &of_split.rows {
                known.ranges.insert(range.start, range.end);
            }
            for (word, bits) in of_split.words.iter().zip(&of_split.bits) {
                known.scattered.insert_word(*word, *bits);
            }
        }
    }
}
