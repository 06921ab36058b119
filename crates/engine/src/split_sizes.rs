//! The numbers of rows of a task's splits: for readers, and for the record of a set.

use std::collections::HashMap;

use caju_runtime::{LockRank, OrderedMutex};

/// Splits without rows whose number of rows waits to be sent to readers: 1 MiB. An endless `repeat` of nothing has any number.
const MAX_EMPTY: usize = 1 << 16;

/// The numbers of rows that the split-local stages put out for splits.
pub(crate) struct SplitSizes(OrderedMutex<Sizes>);

#[derive(Default)]
struct Sizes {
    /// Those that readers have to be sent: split and rows.
    unsent: Vec<(u64, u64)>,
    /// Those of the splits that have ended since [`SplitSizes::keep`], by split.
    kept: Option<HashMap<u64, u64>>,
}

impl Default for SplitSizes {
    fn default() -> Self {
        Self(OrderedMutex::new(LockRank::leaf("the sizes of splits"), Sizes::default()))
    }
}

impl SplitSizes {
    /// All rows of a split have passed the split-local stages.
    pub(crate) fn ended(&self, split: u64, rows: u64) {
        let mut sizes = self.0.lock();
        if let Some(kept) = &mut sizes.kept {
            kept.insert(split, rows);
        }
        // Nobody takes them while no row passes.
        if rows > 0 || sizes.unsent.len() < MAX_EMPTY {
            sizes.unsent.push((split, rows));
        }
    }

    /// Numbers of rows that are known by the record of a set.
    pub(crate) fn add_stored(&self, sizes: Vec<(u64, u64)>) {
        if !sizes.is_empty() {
            self.0.lock().unsent.extend(sizes);
        }
    }

    /// What readers have to be sent since the last call.
    pub(crate) fn take(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.0.lock().unsent)
    }

    /// Keeps the numbers of the splits that end from now on.
    pub(crate) fn keep(&self) {
        self.0.lock().kept.get_or_insert_default();
    }

    /// The numbers that were kept, by split. No more are kept.
    pub(crate) fn take_kept(&self) -> HashMap<u64, u64> {
        self.0.lock().kept.take().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_kept_for_a_set_whatever_readers_take() {
        let sizes = SplitSizes::default();
        sizes.ended(1, 5);
        sizes.keep();
        sizes.ended(2, 0);
        sizes.ended(3, 7);
        sizes.add_stored(vec![(4, 9)]);
        assert_eq!(sizes.take(), [(1, 5), (2, 0), (3, 7), (4, 9)]);
        assert_eq!(sizes.take_kept(), HashMap::from([(2, 0), (3, 7)]), "those that ended since");
        sizes.ended(5, 1);
        assert!(sizes.take_kept().is_empty());
        assert_eq!(sizes.take(), [(5, 1)]);
    }

    #[test]
    fn splits_without_rows_that_nobody_asks_for_are_bounded() {
        let sizes = SplitSizes::default();
        sizes.keep();
        let all = MAX_EMPTY as u64 + 9;
        (0..all).for_each(|split| sizes.ended(split, 0));
        assert_eq!(sizes.take().len(), MAX_EMPTY);
        assert_eq!(sizes.take_kept().len() as u64, all, "a set has all of them");
    }
}
