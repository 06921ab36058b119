//! Checksums of rows that workers gave: a split that is run again has to give the same rows.
//!
//! They are kept in memory alone. Without them, as after a restart, a split that is run again is not compared.

use std::collections::{BTreeMap, HashMap, VecDeque};

use caju_proto::v1;
use caju_types::RowRanges;

use crate::state::Lease;

/// The most splits of an iteration whose checksums are kept; those that were reported first are dropped. A split has about
/// 15 of them, so this is 20 MB.
const MOST_SPLITS: usize = 1 << 16;

/// The checksums of an iteration.
#[derive(Debug, Default)]
pub(crate) struct RowChecksums {
    /// By split and ordinal.
    splits: HashMap<u64, BTreeMap<u64, u64>>,
    /// The splits in the order of their first report.
    order: VecDeque<u64>,
}

impl RowChecksums {
    pub(super) fn add(&mut self, checksum: &v1::RowChecksum) {
        // Others are never asked for, and a worker must not fill the memory.
        if checksum.ordinal != 0 && !checksum.ordinal.is_power_of_two() {
            return;
        }
        let known = self.splits.contains_key(&checksum.split_index);
        let of_split = self.splits.entry(checksum.split_index).or_default();
        of_split.insert(checksum.ordinal, checksum.checksum);
        if !known {
            self.order.push_back(checksum.split_index);
        }
        if self.order.len() > MOST_SPLITS
            && let Some(first) = self.order.pop_front()
        {
            self.splits.remove(&first);
        }
    }

    /// Those of rows of a split that readers have.
    pub(super) fn of(&self, split: u64, done: &RowRanges) -> Vec<v1::RowChecksum> {
        let of_split = self.splits.get(&split).into_iter().flatten();
        let delivered = of_split.filter(|(ordinal, _)| done.intersects(**ordinal, ordinal.saturating_add(1)));
        delivered
            .map(|(ordinal, checksum)| v1::RowChecksum {
                task_id: 0,
                split_index: split,
                ordinal: *ordinal,
                checksum: *checksum,
            })
            .collect()
    }

    /// Forgets those of splits of which readers have nothing: they may be run under another plan from now on.
    pub(super) fn begin_again<'a>(&mut self, leases: impl Iterator<Item = (&'a u64, &'a Lease)>) {
        for (split, _) in leases.filter(|(_, lease)| lease.done.is_empty()) {
            if let Some(of_split) = self.splits.get_mut(split) {
                of_split.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(split_index: u64, ordinal: u64) -> v1::RowChecksum {
        v1::RowChecksum { task_id: 0, split_index, ordinal, checksum: 100 * split_index + ordinal }
    }

    #[test]
    fn rows_that_readers_have_are_compared_and_memory_is_bounded() {
        let mut checksums = RowChecksums::default();
        for ordinal in 0..9 {
            checksums.add(&checksum(7, ordinal));
        }
        let done = [(0, 1), (4, 9)].into_iter().collect();
        assert_eq!(checksums.of(7, &done), [checksum(7, 0), checksum(7, 4), checksum(7, 8)]);
        assert!(checksums.of(7, &RowRanges::default()).is_empty() && checksums.of(8, &done).is_empty());
        for split in 0..2 * MOST_SPLITS as u64 {
            checksums.add(&checksum(split, 1));
        }
        assert_eq!((checksums.splits.len(), checksums.order.len()), (MOST_SPLITS, MOST_SPLITS));
    }
}
