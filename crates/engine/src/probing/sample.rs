//! Sampled rows of a hint, for its probes.

use std::time::Duration;

use arrow_array::RecordBatch;
use caju_wire::{batch_bytes, part_bytes};

/// The size of a sample.
#[derive(Debug, Clone, Copy)]
struct Size {
    bytes: usize,
    rows: usize,
    /// The least number of chunks that rows are taken from, so that one unusual split does not decide.
    chunks: usize,
    /// The most chunks, however small they are.
    most_chunks: usize,
}

/// The sample of a first probe: small, so that the probe comes soon.
const FIRST: Size = Size { bytes: 768 << 10, rows: 4096, chunks: 3, most_chunks: 16 };
/// The sample of later probes: about one block of a part. Compressors allocate their buffers per block, at the same cost for
/// few rows as for many, and data that fits a core's cache is decompressed faster.
const FURTHER: Size = Size { bytes: 4 << 20, rows: 20480, chunks: 3, most_chunks: 32 };

/// How long an incomplete sample is waited for, from its first rows on. With slow rows the decision would otherwise come too
/// late for most of the epoch.
const FILL_TIMEOUT: Duration = Duration::from_secs(1);

/// The rows of a probe.
#[derive(Debug, Clone, Default)]
pub(super) struct Rows {
    pub(super) batches: Vec<RecordBatch>,
    /// Their bytes before encoding, as the fraction of the bytes that the stage above the hint counts: a slice of lists
    /// reports the bytes of its whole batch.
    pub(super) raw_bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Sample {
    /// Batches with their bytes.
    rows: Vec<(RecordBatch, u64)>,
    /// The number of batches that a first probe takes.
    first: usize,
    /// Bytes of the sample; a small chunk counts as a minimum of bytes.
    bytes: usize,
    /// The time of the first rows.
    since: Option<Duration>,
}

impl Sample {
    /// How often a probe checks whether its sample timed out.
    pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(250);

    /// Samples a few of the rows; whether it took any.
    pub(super) fn offer(&mut self, rows: &[RecordBatch], now: Duration) -> bool {
        let mut takes = false;
        for batch in rows.iter().filter(|b| b.num_rows() > 0) {
            let first = self.bytes < FIRST.bytes;
            let size = if first { FIRST } else { FURTHER };
            if self.bytes >= size.bytes {
                break;
            }
            takes = true;
            self.since.get_or_insert(now);
            let per_row = batch_bytes(batch).div_ceil(batch.num_rows()).max(1);
            let wanted = size.bytes.div_ceil(size.chunks).div_ceil(per_row).clamp(1, size.rows / size.chunks);
            let part = batch.slice(0, wanted.min(batch.num_rows()));
            self.bytes += (part.num_rows() * per_row).max(size.bytes / size.most_chunks);
            let raw = part_bytes(batch, &part) as u64;
            self.rows.push((part, raw));
            if first {
                self.first = self.rows.len();
            }
        }
        takes
    }

    /// The rows of a probe if the sample is complete, timed out, or `over`: no more rows will come.
    pub(super) fn rows(&self, again: bool, now: Duration, over: bool) -> Option<Rows> {
        let enough = if again { FURTHER } else { FIRST };
        let waited = self.since.is_some_and(|since| now.saturating_sub(since) >= FILL_TIMEOUT);
        let rows = if again { &self.rows } else { self.rows.get(..self.first)? };
        (self.bytes >= enough.bytes || waited || over).then(|| Rows {
            batches: rows.iter().map(|(batch, _)| batch.clone()).collect(),
            raw_bytes: rows.iter().map(|(_, raw)| raw).sum(),
        })
    }

    /// Drops all rows, and accepts no further ones.
    pub(super) fn clear(&mut self) {
        (self.rows, self.first, self.bytes) = (Vec::new(), 0, usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{ArrayRef, BinaryArray, FixedSizeBinaryArray, ListArray};

    use super::*;

    /// Rows of 64 KiB each.
    fn batch(rows: usize) -> RecordBatch {
        let row = vec![7u8; 64 << 10];
        let column = FixedSizeBinaryArray::try_from_iter((0..rows).map(|_| &row)).unwrap();
        RecordBatch::try_from_iter([("x", Arc::new(column) as ArrayRef)]).unwrap()
    }

    fn count(rows: Option<Rows>) -> Option<usize> {
        rows.map(|all| all.batches.iter().map(RecordBatch::num_rows).sum())
    }

    #[test]
    fn a_first_probe_comes_soon_and_later_ones_have_a_block() {
        let (now, later) = (Duration::from_secs(5), Duration::from_secs(6));
        let mut sample = Sample::default();
        assert_eq!(count(sample.rows(false, later, false)), None);
        assert_eq!(count(sample.rows(false, later, true)), Some(0), "no row will ever come");
        for chunks in 1..=2 {
            sample.offer(&[batch(100)], now);
            assert_eq!(count(sample.rows(false, now, false)), None, "{chunks} chunks");
            assert_eq!(count(sample.rows(false, later, false)), Some(chunks * 4), "waited for");
        }
        sample.offer(&[batch(100)], now);
        assert_eq!(count(sample.rows(false, now, false)), Some(12));
        assert_eq!(count(sample.rows(true, now, false)), None);
        for _ in 0..10 {
            sample.offer(&[batch(100)], now);
        }
        assert_eq!(count(sample.rows(false, now, false)), Some(12), "always the same rows");
        let further = count(sample.rows(true, now, false)).unwrap();
        assert!((64..96).contains(&further), "4 MiB, and not much more: {further}");
    }

    #[test]
    fn a_slice_of_lists_has_its_part_of_the_bytes() {
        let lists = (0..1024).map(|i| Some(vec![Some(i); 1024]));
        let column = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
        let batch = RecordBatch::try_from_iter([("x", Arc::new(column) as ArrayRef)]).unwrap();
        let mut sample = Sample::default();
        sample.offer(std::slice::from_ref(&batch), Duration::ZERO);
        let all = sample.rows(false, Duration::ZERO, true).unwrap();
        let (rows, bytes) = (all.batches[0].num_rows() as u64, batch_bytes(&batch) as u64);
        assert!(rows < 512, "a small part: {rows}");
        assert_eq!(all.raw_bytes, bytes * rows / 1024);
    }

    #[test]
    fn large_rows_have_their_own_bytes() {
        let column = BinaryArray::from_iter_values((0..64usize).map(|i| vec![0u8; (64 - i) << 10]));
        let batch = RecordBatch::try_from_iter([("x", Arc::new(column) as ArrayRef)]).unwrap();
        let mut sample = Sample::default();
        sample.offer(std::slice::from_ref(&batch), Duration::ZERO);
        let all = sample.rows(false, Duration::ZERO, true).unwrap();
        let rows = all.batches[0].num_rows();
        assert!(rows < 32, "the first ones: {rows}");
        let own: usize = (0..rows).map(|i| (64 - i) << 10).sum();
        assert!(all.raw_bytes.abs_diff(own as u64) < 1024, "{} of {own}", all.raw_bytes);
    }

    #[test]
    fn many_small_chunks_end_it() {
        let mut sample = Sample::default();
        for _ in 0..100 {
            sample.offer(&[batch(1)], Duration::ZERO);
        }
        let now = Duration::ZERO;
        assert_eq!(count(sample.rows(false, now, false)), Some(12));
        assert_eq!(sample.rows(true, now, false).map(|all| all.batches.len() <= 48), Some(true));
    }
}
