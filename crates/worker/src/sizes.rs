//! The numbers of rows of a task's splits, for the readers that were sent rows of these.
//!
//! A reader that knows how many rows a split has knows when its user has all of them. Its state then names the split alone, and
//! a reader that reads on behind the state does not open it again. A size that was sent to another reader would help neither of
//! them.

use std::collections::{BTreeMap, HashMap};

use caju_wire::Run;
use parking_lot::Mutex;

/// Splits of which a task remembers the number of rows until its readers know it: about 48 MiB. Readers do without older ones. The
/// rows of as many splits may be in the buffer of a `shuffle`, each of which takes more memory than the number.
const MAX_SPLITS: usize = 1 << 20;
/// Splits of which one reader was sent rows before their number was known. Beyond this number sizes are not sent, because each
/// of these splits is looked up for every chunk.
const MAX_UNKNOWN: usize = 1 << 10;

/// The numbers of rows of a task's splits, until readers know them.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    pending: Mutex<PendingSizes>,
}

/// Numbers of rows that some reader still has to be sent.
#[derive(Debug, Default)]
struct PendingSizes {
    splits: BTreeMap<u64, Size>,
    /// Splits without rows: any reader may know of them.
    empty: Vec<u64>,
}

#[derive(Debug)]
struct Size {
    rows: u64,
    /// Rows whose readers know the number.
    reported: u64,
}

/// The rows that one reader was sent of splits whose numbers of rows it does not know.
#[derive(Debug, Default)]
pub(crate) struct SentRows {
    rows: HashMap<u64, u64>,
}

impl SentRows {
    /// The reader is sent rows.
    pub(crate) fn add(&mut self, runs: &[Run]) {
        for of_split in runs.chunk_by(|a, b| a.split == b.split) {
            let Some(first) = of_split.first() else { continue };
            *self.rows.entry(first.split).or_default() += of_split.iter().map(|r| r.len).sum::<u64>();
        }
    }
}

impl Sizes {
    /// The numbers of rows of further splits.
    pub(crate) fn add(&self, more: Vec<(u64, u64)>) {
        if more.is_empty() {
            return;
        }
        let pending = &mut *self.pending.lock();
        for (split, rows) in more {
            if rows > 0 {
                pending.splits.insert(split, Size { rows, reported: 0 });
            } else if pending.empty.len() < MAX_SPLITS {
                pending.empty.push(split);
            }
        }
        while pending.splits.len() > MAX_SPLITS {
            pending.splits.pop_first();
        }
    }

    /// What the only reader of the task does not know yet.
    pub(crate) fn take_all(&self) -> Vec<(u64, u64)> {
        let pending = std::mem::take(&mut *self.pending.lock());
        let empty = pending.empty.into_iter().map(|split| (split, 0));
        pending.splits.into_iter().map(|(split, size)| (split, size.rows)).chain(empty).collect()
    }

    /// The sizes of splits that one of several readers was sent rows of, as far as they are known now.
    pub(crate) fn take_for(&self, reader: &mut SentRows) -> Vec<(u64, u64)> {
        let pending = &mut *self.pending.lock();
        let mut out: Vec<(u64, u64)> = pending.empty.drain(..).map(|split| (split, 0)).collect();
        reader.rows.retain(|split, sent| {
            let Some(size) = pending.splits.get_mut(split) else { return true };
            size.reported = size.reported.saturating_add(*sent);
            out.push((*split, size.rows));
            if size.reported >= size.rows {
                pending.splits.remove(split);
            }
            false
        });
        if reader.rows.len() > MAX_UNKNOWN {
            reader.rows.clear();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(split: u64, start: u64, len: u64) -> Run {
        Run { split, start, len }
    }

    fn sorted(mut sizes: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn a_size_goes_to_each_reader_that_has_rows_of_the_split_whatever_comes_first() {
        let sizes = Sizes::default();
        let (mut a, mut b) = (SentRows::default(), SentRows::default());
        a.add(&[run(0, 0, 2), run(1, 0, 3), run(1, 3, 1)]);
        assert!(sizes.take_for(&mut a).is_empty());
        sizes.add(vec![(0, 5), (1, 4), (2, 0), (3, 9)]);
        b.add(&[run(0, 2, 3)]);
        assert_eq!(sorted(sizes.take_for(&mut b)), [(0, 5), (2, 0)]);
        assert_eq!(sorted(sizes.take_for(&mut a)), [(0, 5), (1, 4)]);
        assert!(sizes.take_for(&mut a).is_empty() && sizes.take_for(&mut b).is_empty());
        assert_eq!(sizes.pending.lock().splits.keys().collect::<Vec<_>>(), [&3], "the others are forgotten");
        assert_eq!(sizes.take_all(), [(3, 9)]);
    }

    /// The numbers are known when rows enter a buffer, and their readers when rows leave it.
    #[test]
    fn the_rows_of_very_many_splits_may_wait_in_a_buffer() {
        const SPLITS: u64 = 200_000;
        let sizes = Sizes::default();
        let mut readers = [SentRows::default(), SentRows::default()];
        (0..SPLITS).for_each(|split| sizes.add(vec![(split, 2)]));
        for split in 0..SPLITS {
            for (row, reader) in (0..).zip(&mut readers) {
                reader.add(&[run(split, row, 1)]);
                assert_eq!(sizes.take_for(reader), [(split, 2)]);
            }
        }
        assert!(sizes.pending.lock().splits.is_empty());
    }

    #[test]
    fn what_nobody_asks_for_is_bounded() {
        let (sizes, mut reader) = (Sizes::default(), SentRows::default());
        sizes.add((0..MAX_SPLITS as u64 + 5).map(|split| (split, 1)).collect());
        sizes.add((0..MAX_SPLITS as u64 + 5).map(|split| (split + (1 << 40), 0)).collect());
        let pending = sizes.take_all();
        assert_eq!((pending.len(), pending.first()), (2 * MAX_SPLITS, Some(&(5, 1))));
        reader.add(&(0..=MAX_UNKNOWN as u64).map(|split| run(split, 0, 1)).collect::<Vec<_>>());
        assert!(sizes.take_for(&mut reader).is_empty() && reader.rows.is_empty());
    }
}
