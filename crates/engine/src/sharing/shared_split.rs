//! The rows of one split at one sharing point: appended by the tasks that compute them, read by others.

use std::sync::Arc;

use arrow_array::RecordBatch;
use caju_runtime::OrderedMutex;
use caju_wire::batch_bytes;
use tokio::sync::Notify;

use super::demand::{Demand, HeldBack};
use super::job::SharingJob;
use super::locks;
use super::spill::SpilledBatch;

/// Names the rows of a split at a sharing point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SplitId {
    /// The key of the point.
    pub(super) point: u128,
    /// The split.
    pub(super) split: SplitRef,
}

/// A split, whatever the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SplitRef {
    pub(super) key: u128,
    pub(super) repetition: u32,
}

/// The rows of a split at a point, as far as they were computed.
#[derive(Debug)]
pub(super) struct SharedSplit {
    pub(super) id: SplitId,
    /// The split as leases name it.
    pub(super) name: u64,
    /// Its place in the order of the window.
    pub(super) number: u64,
    /// The job whose task began to compute it.
    pub(super) by: SharingJob,
    rows: OrderedMutex<Rows>,
    /// Rows were added, or none follow.
    pub(super) changed: Notify,
}

#[derive(Debug, Default)]
struct Rows {
    /// Batches in the order of their rows, without gaps. The first ones may be on disk, the others are in memory.
    batches: Vec<Batch>,
    count: u64,
    /// Bytes in memory.
    bytes: u64,
    /// Bytes of all batches, as they are in memory.
    total_bytes: u64,
    /// Writing them to disk failed: it is not tried again.
    stays_in_memory: bool,
    /// Tasks that compute the split.
    writers: Vec<ProducingTask>,
    /// Tasks that read it.
    readers: u32,
    state: State,
}

/// A task that computes a split.
#[derive(Debug)]
struct ProducingTask {
    /// Its number in the window.
    member: u64,
    demand: Arc<Demand>,
    held_back: Arc<HeldBack>,
}

#[derive(Debug)]
enum Batch {
    Memory(RecordBatch),
    Disk(SpilledBatch),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// More rows may come.
    #[default]
    Growing,
    /// These are all rows. `skipped`: rows that `on_error: skip` left out.
    Complete { skipped: u64 },
    /// The window dropped its rows.
    Evicted,
}

/// What a reader finds.
#[derive(Debug)]
pub(crate) enum Next {
    /// Rows.
    Batch(RecordBatch),
    /// All rows were read.
    End {
        /// Rows that were skipped when the split was computed.
        skipped: u64,
    },
    /// The remaining rows do not come: the window dropped them, or no task adds any.
    Unavailable,
    /// None yet.
    Pending,
}

/// What a reader finds in a split.
#[derive(Debug)]
pub(super) enum Found {
    /// This comes next.
    Next(Next),
    /// The next rows are on disk.
    Spilled(SpilledBatch),
}

/// Rows of a split in memory, to be written to disk.
#[derive(Debug)]
pub(super) struct ToSpill {
    /// The index of the first batch.
    first: usize,
    pub(super) batches: Vec<RecordBatch>,
}

impl SharedSplit {
    pub(super) fn new(id: SplitId, name: u64, number: u64, by: SharingJob) -> Self {
        Self {
            id,
            name,
            number,
            by,
            rows: OrderedMutex::new(locks::SPLIT_ROWS, Rows::default()),
            changed: Notify::new(),
        }
    }

    /// Adds the rows from ordinal `start` on that are not there yet. Returns the bytes that were added.
    pub(super) fn add(&self, start: u64, pieces: &[RecordBatch]) -> u64 {
        let mut rows = self.rows.lock();
        let (before, mut at) = (rows.bytes, start);
        for piece in pieces {
            let (first, len) = (at, piece.num_rows() as u64);
            at += len;
            // Rows behind a gap cannot be added: the end shows that they are missing.
            if rows.state != State::Growing || first > rows.count || at <= rows.count {
                continue;
            }
            let known = usize::try_from(rows.count - first).unwrap_or(0);
            let new = piece.slice(known, piece.num_rows() - known);
            rows.bytes += batch_bytes(&new) as u64;
            rows.batches.push(Batch::Memory(new));
            rows.count = at;
        }
        let added = rows.bytes - before;
        rows.total_bytes += added;
        added
    }

    /// Exactly the rows of the split.
    pub(super) fn whole_rows(&self) -> Option<u64> {
        let rows = self.rows.lock();
        matches!(rows.state, State::Complete { .. }).then_some(rows.count)
    }

    /// A task has computed all `rows` rows of the split. False if rows are missing here.
    pub(super) fn finish(&self, rows: u64, skipped: u64) -> bool {
        let mut have = self.rows.lock();
        if have.state == State::Growing && have.count == rows {
            have.state = State::Complete { skipped };
        }
        matches!(have.state, State::Complete { .. })
    }

    /// It leaves the window. Returns the bytes that are freed.
    pub(super) fn remove(&self) -> u64 {
        let mut rows = self.rows.lock();
        rows.state = State::Evicted;
        rows.batches = Vec::new();
        std::mem::take(&mut rows.bytes)
    }

    /// What a reader gets that has `batches` batches.
    pub(super) fn read(&self, batches: usize) -> Found {
        let rows = self.rows.lock();
        Found::Next(match (rows.state, rows.batches.get(batches)) {
            (State::Evicted, _) => Next::Unavailable,
            (_, Some(Batch::Memory(batch))) => Next::Batch(batch.clone()),
            (_, Some(Batch::Disk(batch))) => return Found::Spilled(batch.clone()),
            (State::Complete { skipped }, None) => Next::End { skipped },
            (State::Growing, None) => Next::Pending,
        })
    }

    /// Whether it has rows in memory, and writing them to disk has not failed before.
    pub(super) fn may_spill(&self) -> bool {
        let rows = self.rows.lock();
        rows.bytes > 0 && !rows.stays_in_memory
    }

    /// The first batches in memory, of about `most` bytes.
    pub(super) fn to_spill(&self, most: u64) -> Option<ToSpill> {
        let rows = self.rows.lock();
        let first = rows.batches.iter().position(|batch| matches!(batch, Batch::Memory(_)))?;
        let (mut batches, mut bytes) = (Vec::new(), 0);
        for batch in rows.batches.iter().skip(first) {
            let Batch::Memory(batch) = batch else { break };
            batches.push(batch.clone());
            bytes += batch_bytes(batch) as u64;
            if bytes >= most {
                break;
            }
        }
        Some(ToSpill { first, batches })
    }

    /// Batches were written to disk, and leave the memory. Returns the bytes that are freed.
    pub(super) fn spilled(&self, from: &ToSpill, written: Vec<SpilledBatch>) -> u64 {
        let mut rows = self.rows.lock();
        let mut freed = 0;
        for (batch, written) in rows.batches.iter_mut().skip(from.first).zip(written) {
            if let Batch::Memory(rows) = batch {
                freed += batch_bytes(rows) as u64;
                *batch = Batch::Disk(written);
            }
        }
        rows.bytes = rows.bytes.saturating_sub(freed);
        freed
    }

    /// Its rows cannot be written to disk.
    pub(super) fn stay_in_memory(&self) {
        self.rows.lock().stays_in_memory = true;
    }

    pub(super) fn is_on_disk(&self) -> bool {
        matches!(self.rows.lock().batches.first(), Some(Batch::Disk(_)))
    }

    pub(super) fn add_writer(&self, member: u64, demand: Arc<Demand>, held_back: Arc<HeldBack>) {
        self.rows.lock().writers.push(ProducingTask { member, demand, held_back });
    }

    /// A task stops computing this split. Returns whether no other task will add its remaining rows.
    pub(super) fn remove_writer(&self, member: u64) -> bool {
        let mut rows = self.rows.lock();
        if let Some(at) = rows.writers.iter().position(|writer| writer.member == member) {
            rows.writers.swap_remove(at);
        }
        rows.writers.is_empty() && rows.state == State::Growing
    }

    /// Whether all tasks that compute it mostly wait for their readers, or for their own stages below the point.
    pub(super) fn is_held_back(&self) -> bool {
        let rows = self.rows.lock();
        let has_writers = rows.state == State::Growing && !rows.writers.is_empty();
        has_writers && rows.writers.iter().all(|w| w.demand.is_full() || w.held_back.is_held())
    }

    pub(super) fn add_reader(&self) {
        self.rows.lock().readers += 1;
    }

    pub(super) fn remove_reader(&self) {
        let mut rows = self.rows.lock();
        rows.readers = rows.readers.saturating_sub(1);
    }

    pub(super) fn is_whole(&self) -> bool {
        matches!(self.rows.lock().state, State::Complete { .. })
    }

    pub(super) fn is_read(&self) -> bool {
        self.rows.lock().readers > 0
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> u64 {
        self.rows.lock().bytes
    }

    /// Bytes of all its rows, also of those on disk, as they are in memory.
    pub(super) fn total_bytes(&self) -> u64 {
        self.rows.lock().total_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array};

    use super::*;

    fn batch(ids: std::ops::Range<i64>) -> RecordBatch {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(ids));
        RecordBatch::try_from_iter([("id", ids)]).unwrap()
    }

    fn split() -> SharedSplit {
        let id = SplitId { point: 1, split: SplitRef { key: 2, repetition: 0 } };
        SharedSplit::new(id, 3, 4, SharingJob { job: 1, epoch: 0, is_relaxed: false })
    }

    fn ids(split: &SharedSplit) -> Vec<i64> {
        let mut out = Vec::new();
        for at in 0.. {
            let Found::Next(Next::Batch(batch)) = split.read(at) else { break };
            out.extend(batch.column(0).as_primitive::<Int64Type>().values());
        }
        out
    }

    #[test]
    fn two_tasks_that_compute_a_split_give_each_row_once() {
        let split = split();
        assert_eq!(split.add(0, &[batch(0..4)]), 32);
        // The other one is behind, then ahead.
        assert_eq!(split.add(0, &[batch(0..2)]), 0);
        assert_eq!(split.add(2, &[batch(2..7)]), 24);
        assert_eq!(split.add(4, &[batch(4..6), batch(6..9)]), 16);
        assert_eq!(ids(&split), (0..9).collect::<Vec<_>>());
        assert!(matches!(split.read(9), Found::Next(Next::Pending)));
        assert!(split.finish(9, 0), "all rows are there");
        assert!(matches!(split.read(9), Found::Next(Next::End { skipped: 0 })));
    }

    #[test]
    fn a_gap_is_no_end() {
        let split = split();
        split.add(0, &[batch(0..2)]);
        assert_eq!(split.add(5, &[batch(5..9)]), 0, "rows behind a gap");
        assert!(!split.finish(9, 0));
        assert!(matches!(split.read(1), Found::Next(Next::Pending)));
    }

    #[test]
    fn a_split_that_left_frees_its_bytes_and_gives_no_rows() {
        let split = split();
        split.add(0, &[batch(0..4)]);
        assert_eq!(split.remove(), 32);
        assert!(matches!(split.read(0), Found::Next(Next::Unavailable)));
        assert_eq!((split.bytes(), split.add(4, &[batch(4..5)])), (0, 0));
        assert!(!split.finish(4, 0));
    }
}
