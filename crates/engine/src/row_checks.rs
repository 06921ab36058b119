//! Checksums of a few rows of every split: a split that is run again has to give the rows that it gave before.
//!
//! Readers know rows by split and ordinal. A stage that is no function of its input gives other rows under the same names
//! when a split is run again, and some rows would come twice and others never. So the rows at the ordinals 0, 1, 2, 4, 8 and
//! so on of each split's split-local output are hashed, 21 of the first million; of rows above 16 KiB only the first of each
//! split, since stored images would otherwise take longer to hash than to serve. The worker reports the hashes with its
//! heartbeats, and a later lease of the split has those of rows that readers have already.
//!
//! This finds a function that gives other values for most rows, and a filter that drops other rows, as soon as a checked
//! row comes behind the first difference. It does not find a difference in a few rows between the checked ones.

use std::collections::HashMap;

use caju_runtime::{LockRank, OrderedMutex, OrderedRwLock};
use caju_types::Error;
use caju_wire::Chunk;
use caju_wire::checksum::RowsChecksum;

/// The most checksums that wait for a heartbeat: 384 KiB. Further ones are dropped, and their rows are not checked.
const MOST_UNREPORTED: usize = 16_384;

/// Mean bytes of a chunk's rows above which only the first row of a split is hashed. Hashing a few rows of 150 kB took 40 % of
/// the time of serving a stored split of them.
const LARGE_ROW_BYTES: usize = 16 << 10;

/// The checksum of one row of a split's split-local output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowChecksum {
    /// The split's index in the iteration.
    pub split: u64,
    /// The row.
    pub ordinal: u64,
    /// Half of the canonical checksum of `docs/report.md`.
    pub checksum: u64,
}

/// The checked rows of a task.
#[derive(Debug)]
pub struct RowChecks {
    /// Not taken yet.
    new: OrderedMutex<Vec<RowChecksum>>,
    /// What earlier runs of the splits gave, by split and ordinal.
    expected: OrderedRwLock<HashMap<(u64, u64), u64>>,
}

impl Default for RowChecks {
    fn default() -> Self {
        Self {
            new: OrderedMutex::new(LockRank::leaf("the checksums of rows"), Vec::new()),
            expected: OrderedRwLock::new(LockRank::leaf("the expected checksums of rows"), HashMap::new()),
        }
    }
}

impl RowChecks {
    /// The checksums since the last call.
    pub fn take(&self) -> Vec<RowChecksum> {
        std::mem::take(&mut *self.new.lock())
    }

    /// What an earlier run of a split gave.
    pub(crate) fn expect(&self, split: u64, checksums: &[(u64, u64)]) {
        if !checksums.is_empty() {
            let of_split = checksums.iter().map(|(ordinal, checksum)| ((split, *ordinal), *checksum));
            self.expected.write().extend(of_split);
        }
    }

    /// Notes the rows of a chunk behind the split-local stages. The first one, as split and ordinal, that differs from
    /// that of an earlier run.
    pub(crate) fn first_difference(&self, chunk: &Chunk) -> Option<(u64, u64)> {
        let mut at = 0;
        let has_large_rows = chunk.bytes() > chunk.rows().saturating_mul(LARGE_ROW_BYTES);
        for run in &chunk.runs {
            let end = run.start.saturating_add(run.len);
            for ordinal in checked_in(run.start, if has_large_rows { end.min(1) } else { end }) {
                let Some(checksum) = checksum_of(chunk, at + (ordinal - run.start)) else { continue };
                let expected = self.expected.read().get(&(run.split, ordinal)).copied();
                if expected.is_some_and(|expected| expected != checksum) {
                    return Some((run.split, ordinal));
                }
                let mut new = self.new.lock();
                if new.len() < MOST_UNREPORTED {
                    new.push(RowChecksum { split: run.split, ordinal, checksum });
                }
            }
            at += run.len;
        }
        None
    }
}

/// The error of a row at `place` that differs from that of an earlier run, behind the named stages.
pub(crate) fn diverged(place: &str, stages: &str) -> Error {
    Error::data_loss(format!(
        "{place}: the split was run again after its worker was lost, and this row is another one than before, so rows \
         would come twice or never; {stages} gave another output for the same input: let it depend on nothing but its row \
         (no clock, no random numbers of its own, no state, no order of a set), and read the epoch again"
    ))
}

/// The ordinals from `start` to below `end` whose rows are checked.
fn checked_in(start: u64, end: u64) -> impl Iterator<Item = u64> {
    let zero = (start == 0 && end > 0).then_some(0);
    let first = start.max(1).checked_next_power_of_two();
    let powers = std::iter::successors(first, |n| n.checked_mul(2)).take_while(move |n| *n < end);
    zero.into_iter().chain(powers)
}

/// The checksum of a row of a chunk; none if its type has none.
fn checksum_of(chunk: &Chunk, row: u64) -> Option<u64> {
    let mut row = usize::try_from(row).ok()?;
    for piece in &chunk.pieces {
        if row < piece.num_rows() {
            let mut checksum = RowsChecksum::default();
            checksum.update(&piece.slice(row, 1)).ok()?;
            return u64::try_from(checksum.sum() & u128::from(u64::MAX)).ok();
        }
        row -= piece.num_rows();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn of_large_rows_the_first_one_is_checked() {
        let ordinals = |bytes: usize, start: u64| {
            let column: arrow_array::ArrayRef =
                Arc::new(arrow_array::BinaryArray::from_iter_values((0..6).map(|_| vec![7; bytes])));
            let batch = arrow_array::RecordBatch::try_from_iter([("x", column)]).unwrap();
            let checks = RowChecks::default();
            let chunk = Chunk::rows_of(batch, vec![caju_wire::Run { split: 3, start, len: 6 }]);
            assert_eq!(checks.first_difference(&chunk), None);
            checks.take().iter().map(|c| c.ordinal).collect::<Vec<_>>()
        };
        assert_eq!(ordinals(100, 0), [0, 1, 2, 4]);
        assert_eq!(ordinals(LARGE_ROW_BYTES + 1000, 0), [0]);
        assert!(ordinals(LARGE_ROW_BYTES + 1000, 3).is_empty());
    }

    #[test]
    fn few_rows_are_checked() {
        let of = |start, end| checked_in(start, end).collect::<Vec<_>>();
        assert_eq!(of(0, 9), [0, 1, 2, 4, 8]);
        assert_eq!(of(0, 1), [0]);
        assert_eq!((of(0, 0), of(3, 4), of(5, 8)), (vec![], vec![], vec![]));
        assert_eq!(of(4, 5), [4]);
        assert_eq!(of(0, 1 << 20).len(), 21);
        assert_eq!(of(u64::MAX - 1, u64::MAX), Vec::<u64>::new());
    }
}
