//! Rows of splits that began before the decision, buffered so that the decision can store them. Without the buffer the
//! first splits of every job, as many as it takes to decide, would be computed a second time in the second epoch.
//!
//! Rows are buffered where they pass a hint, without a copy, unless they retain much more memory than is theirs. All tasks
//! of a cache together buffer at most the bytes of its memory tier. When that is exceeded, the hint with the most bytes
//! drops its newest split. Behind random stages rows are buffered in epoch 0 alone, because stored rows are drawn as in
//! epoch 0.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::{RecordBatch, UInt64Array};
use caju_sources::Split;
use caju_wire::batch_bytes;

/// Memory in bytes that a batch may retain in addition to twice its own rows without being copied. Below this a copy
/// costs more than it frees.
const MAX_EXCESS_BYTES: u64 = 64 << 10;

/// The backfill buffer of one task. The buffers of all tasks of a cache share one limit.
#[derive(Debug, Default)]
pub(super) struct BackfillBuffer {
    splits: BTreeMap<u64, BufferedSplit>,
    /// For each hint, the rows by lease.
    hints: Vec<BTreeMap<u64, BufferedRows>>,
    bytes: u64,
    /// Bytes that all tasks buffer.
    total_bytes: Arc<AtomicU64>,
    limit_bytes: u64,
    /// How long rows are buffered for a decision.
    timeout: Duration,
    /// No rows are buffered after this time.
    deadline: Option<Duration>,
}

/// A buffered split.
#[derive(Debug)]
pub(super) struct BufferedSplit {
    pub(super) split: Split,
    pub(super) source_bytes: u64,
}

/// The rows of a split at a hint.
#[derive(Debug, Default)]
pub(super) struct BufferedRows {
    pub(super) batches: Vec<RecordBatch>,
    pub(super) bytes: u64,
    /// The number of skipped rows, once the split has ended.
    pub(super) skipped: Option<u64>,
}

/// Bytes that left the buffer and still count against the limit, until this is dropped.
pub(super) struct BufferCharge {
    total_bytes: Arc<AtomicU64>,
    pub(super) bytes: u64,
}

impl Drop for BufferCharge {
    fn drop(&mut self) {
        self.total_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for BackfillBuffer {
    fn drop(&mut self) {
        self.total_bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A batch that retains little more memory than its rows have, with the bytes that it retains. Copies the rows if needed.
pub(super) fn compacted(batch: &RecordBatch) -> (RecordBatch, u64) {
    let retained = |batch: &RecordBatch| batch.get_array_memory_size() as u64;
    if retained(batch) <= 2 * batch_bytes(batch) as u64 + MAX_EXCESS_BYTES {
        return (batch.clone(), retained(batch));
    }
    let rows = UInt64Array::from_iter_values(0..batch.num_rows() as u64);
    match arrow::compute::take_record_batch(batch, &rows) {
        Ok(copy) if retained(&copy) < retained(batch) => {
            let bytes = retained(&copy);
            (copy, bytes)
        }
        _ => (batch.clone(), retained(batch)),
    }
}

impl BackfillBuffer {
    /// An empty buffer for this number of hints. All tasks of a cache share `limit_bytes`, and count in `total_bytes`.
    pub(super) fn new(
        limit_bytes: u64,
        timeout: Duration,
        total_bytes: Arc<AtomicU64>,
        hints: usize,
    ) -> Self {
        let mut buffer = Self::default();
        (buffer.limit_bytes, buffer.timeout, buffer.total_bytes) = (limit_bytes, timeout, total_bytes);
        buffer.hints.resize_with(hints, BTreeMap::new);
        buffer
    }

    /// Whether splits that begin `now` are buffered. The buffer is cleared when the decision timed out.
    pub(super) fn is_active(&mut self, now: Duration) -> bool {
        if self.limit_bytes == 0 {
            return false;
        }
        if now > *self.deadline.get_or_insert(now + self.timeout) {
            self.clear();
            return false;
        }
        true
    }

    /// Buffers a split at these hints from now on.
    pub(super) fn begin(&mut self, index: u64, split: &Split, hints: impl Iterator<Item = usize>) {
        self.splits.insert(index, BufferedSplit { split: split.clone(), source_bytes: 0 });
        for hint in hints {
            self.hints[hint].insert(index, BufferedRows::default());
        }
    }

    /// Buffers rows of a split that arrive at a hint, if the split is still buffered there.
    pub(super) fn push(&mut self, hint: usize, index: u64, batches: Vec<(RecordBatch, u64)>) {
        let Some(rows) = self.hints.get_mut(hint).and_then(|h| h.get_mut(&index)) else { return };
        for (batch, bytes) in batches {
            rows.batches.push(batch);
            rows.bytes += bytes;
            self.bytes += bytes;
            self.total_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        while self.total_bytes.load(Ordering::Relaxed) > self.limit_bytes {
            let bytes = |rows: &BTreeMap<u64, BufferedRows>| rows.values().map(|r| r.bytes).sum::<u64>();
            let Some((_, newest)) =
                self.hints.iter_mut().max_by_key(|h| bytes(h)).and_then(BTreeMap::pop_last)
            else {
                break;
            };
            drop(self.charge(newest.bytes));
        }
    }

    /// All rows of a split have passed a hint.
    pub(super) fn end(&mut self, hint: usize, index: u64, skipped: u64) {
        if let Some(rows) = self.hints.get_mut(hint).and_then(|h| h.get_mut(&index)) {
            rows.skipped = Some(skipped);
        }
    }

    /// Whether rows of a split are buffered at a hint.
    pub(super) fn contains(&self, hint: usize, index: u64) -> bool {
        self.hints.get(hint).is_some_and(|h| h.contains_key(&index))
    }

    /// The source of a split was read to its end.
    pub(super) fn set_source_bytes(&mut self, index: u64, source_bytes: u64) {
        if let Some(split) = self.splits.get_mut(&index) {
            split.source_bytes = source_bytes;
        }
    }

    /// Takes the splits that are buffered at a hint, in the order of their leases. The bytes of each still count against
    /// the limit until its charge is dropped.
    pub(super) fn take_hint(&mut self, hint: usize) -> Vec<(u64, BufferedSplit, BufferedRows, BufferCharge)> {
        let rows = self.hints.get_mut(hint).map(std::mem::take).unwrap_or_default();
        let charged = rows.into_iter().filter_map(|(index, rows)| {
            let charge = self.charge(rows.bytes);
            Some((index, self.splits.remove(&index)?, rows, charge))
        });
        charged.collect()
    }

    /// Drops all rows, and buffers nothing from now on.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn charge(&mut self, bytes: u64) -> BufferCharge {
        self.bytes -= bytes;
        BufferCharge { total_bytes: Arc::clone(&self.total_bytes), bytes }
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn a_few_rows_of_a_large_batch_retain_their_own_bytes() {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
        let texts: ArrayRef =
            Arc::new(StringArray::from_iter_values((0..100_000).map(|i| format!("row {i}"))));
        let large = RecordBatch::try_from_iter([("id", ids), ("text", texts)]).unwrap();
        let (whole, bytes) = compacted(&large);
        assert!(bytes >= batch_bytes(&large) as u64 && bytes < 8_000_000, "{bytes}");
        assert!(Arc::ptr_eq(whole.column(0), large.column(0)), "a whole batch is not copied");
        let few = large.slice(500, 10);
        let (copy, bytes) = compacted(&few);
        assert_eq!(copy, few);
        assert!(bytes < 10_000, "{bytes}");
    }

    fn rows() -> Vec<(RecordBatch, u64)> {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        vec![compacted(&RecordBatch::try_from_iter([("id", ids)]).unwrap())]
    }

    fn split() -> Split {
        Split {
            child: Vec::new(),
            repetition: 0,
            key: caju_types::SplitKey(3),
            file: None,
            range: caju_sources::SplitRange::Whole,
            rows: None,
            trim: None,
            stride: None,
        }
    }

    #[test]
    fn rows_wait_for_a_decision_no_longer_than_its_timeout() {
        let all = Arc::new(AtomicU64::new(0));
        let mut buffer = BackfillBuffer::new(1 << 20, TIMEOUT, Arc::clone(&all), 1);
        let begin = Duration::from_secs(7);
        assert!(buffer.is_active(begin));
        buffer.begin(0, &split(), 0..1);
        buffer.push(0, 0, rows());
        assert!(buffer.is_active(begin + TIMEOUT) && buffer.contains(0, 0));
        assert!(!buffer.is_active(begin + TIMEOUT + Duration::from_millis(1)));
        assert!(!buffer.contains(0, 0));
        assert_eq!(all.load(Ordering::Relaxed), 0, "the memory is free again");
    }

    #[test]
    fn tasks_share_the_limit() {
        let all = Arc::new(AtomicU64::new(0));
        let each = rows()[0].1;
        let (mut one, mut two) = (
            BackfillBuffer::new(3 * each, TIMEOUT, Arc::clone(&all), 1),
            BackfillBuffer::new(3 * each, TIMEOUT, Arc::clone(&all), 1),
        );
        for index in 0..2 {
            one.begin(index, &split(), 0..1);
            one.push(0, index, rows());
            two.begin(index, &split(), 0..1);
            two.push(0, index, rows());
        }
        assert!(one.contains(0, 1) && two.contains(0, 0) && !two.contains(0, 1));
        assert_eq!(all.load(Ordering::Relaxed), 3 * each);
        let charge = one.charge(each);
        drop((one, two));
        assert_eq!(all.load(Ordering::Relaxed), each, "what is being written still counts");
        drop(charge);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }
}
