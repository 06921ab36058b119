//! Counts the rows that a task emits, per split.

use std::collections::HashMap;

use caju_proto::v1::SplitCount;
use caju_wire::Run;

/// Splits up to this position of their feed are counted in a table, which costs a row of a shuffle next to nothing.
/// The table has 8 bytes per split.
const MAX_TABLE_SPLITS: u64 = 1 << 20;

/// Rows that a task emitted, per split.
#[derive(Debug, Default)]
pub(crate) struct EmittedRows {
    /// What all indices in the table have in common: the number of the feed.
    base: Option<u64>,
    table: Vec<u64>,
    others: HashMap<u64, u64>,
    /// Rows of splits that were forgotten.
    forgotten: u64,
}

impl EmittedRows {
    /// Counts the rows of a chunk.
    pub(crate) fn add(&mut self, runs: &[Run]) {
        for run in runs {
            *self.count_of(run.split) += run.len;
        }
    }

    /// Readers have taken every row of these splits: only the sum of their rows is kept.
    pub(crate) fn forget(&mut self, splits: &[u64]) {
        for split in splits {
            self.forgotten += match self.position(*split).filter(|at| *at < self.table.len()) {
                Some(at) => std::mem::take(&mut self.table[at]),
                None => self.others.remove(split).unwrap_or(0),
            };
        }
    }

    /// Rows of splits that were forgotten: they are not in [`EmittedRows::counts`].
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// The place of a split in the table; none: it is counted elsewhere, or nothing was counted.
    fn position(&self, split: u64) -> Option<usize> {
        let position = split.checked_sub(self.base?).filter(|p| *p < MAX_TABLE_SPLITS)?;
        usize::try_from(position).ok()
    }

    fn count_of(&mut self, split: u64) -> &mut u64 {
        self.base.get_or_insert(split - split % MAX_TABLE_SPLITS);
        match self.position(split) {
            Some(at) => {
                if at >= self.table.len() {
                    self.table.resize(at + 1, 0);
                }
                &mut self.table[at]
            }
            None => self.others.entry(split).or_default(),
        }
    }

    /// The counts, without splits that have no rows.
    pub(crate) fn counts(&self) -> Vec<SplitCount> {
        let base = self.base.unwrap_or(0);
        let table = (base..).zip(self.table.iter().copied());
        let all = table.chain(self.others.iter().map(|(split, rows)| (*split, *rows)));
        all.filter(|(_, rows)| *rows > 0)
            .map(|(split_index, rows)| SplitCount { split_index, rows })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_counted_per_split_near_and_far() {
        let mut emitted_rows = EmittedRows::default();
        let (near, far) = ((3u64 << 40) + 5, (3u64 << 40) + MAX_TABLE_SPLITS + 1);
        let run = |split, len| Run { split, start: 0, len };
        emitted_rows.add(&[run(near, 2), run(far, 1), run(near, 3)]);
        emitted_rows.add(&[run(near + 1, 4), run(0, 7)]);
        let mut counts: Vec<(u64, u64)> =
            emitted_rows.counts().into_iter().map(|c| (c.split_index, c.rows)).collect();
        counts.sort_unstable();
        assert_eq!(counts, [(0, 7), (near, 5), (near + 1, 4), (far, 1)]);
        assert!(EmittedRows::default().counts().is_empty());
    }
}
