//! `bucket_by_length`: rows of like length share a batch.

use arrow::compute::take_record_batch;
use arrow_array::{Array, UInt32Array};
use caju_kernels::BoundExprs;
use caju_types::{Error, Result};
use caju_wire::{Chunk, Padding, RoundMark, Run, pad_batch, push_run};

use super::batch::Pending;
use super::waiting::WaitLimit;
use super::{Flow, StreamStage};
use crate::row::lengths;

/// Collects rows by length class; each full class becomes a batch. The rows that wait in all classes together are bounded in
/// bytes.
pub(crate) struct Bucket {
    pub(crate) length: BoundExprs,
    pub(crate) limit: WaitLimit,
    /// Upper bounds (exclusive) of all classes but the last, ascending.
    pub(crate) boundaries: Vec<i64>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) drop_remainder: bool,
    pub(crate) padding: Option<Padding>,
    pending: Vec<Pending>,
}

impl Bucket {
    pub(crate) fn new(
        length: BoundExprs,
        limit: WaitLimit,
        boundaries: Vec<i64>,
        sizes: Vec<usize>,
        drop_remainder: bool,
        padding: Option<Padding>,
    ) -> Self {
        let pending = sizes.iter().map(|_| Pending::default()).collect();
        Self { length, limit, boundaries, sizes, drop_remainder, padding, pending }
    }

    fn emit(&self, class: usize, mut chunk: Chunk, out: &mut Vec<Chunk>) -> Result<()> {
        chunk.round = RoundMark { bucket: u32::try_from(class).ok(), ..RoundMark::default() };
        out.push(match &self.padding {
            Some(p) => pad_batch(&chunk, p).map_err(|e| e.context(&self.limit.place))?,
            None => chunk,
        });
        Ok(())
    }

    /// The class of every row; a null length belongs to the first. A row stage above has checked that each row has a class.
    fn classes(&self, chunk: &Chunk) -> Result<Vec<usize>> {
        let mut classes = Vec::with_capacity(chunk.rows());
        for piece in &chunk.pieces {
            let values = self.length.evaluate(piece, None).map_err(|e| e.error.context(&self.limit.place))?;
            let lengths = lengths(&values[0]).map_err(|e| e.error.context(&self.limit.place))?;
            for i in 0..lengths.len() {
                let n = if lengths.is_valid(i) { lengths.value(i) } else { 0 };
                classes.push(self.boundaries.partition_point(|&b| b <= n));
            }
        }
        Ok(classes)
    }
}

/// The given rows of a chunk, in order.
fn pick(chunk: &Chunk, rows: &[u32]) -> Result<Chunk> {
    let batch = chunk.concat()?;
    let out = take_record_batch(&batch, &UInt32Array::from(rows.to_vec()))
        .map_err(|e| Error::internal(format!("bucket: {e}")))?;
    let mut runs = Vec::new();
    let (mut at, mut k) = (0u64, 0usize);
    for run in &chunk.runs {
        while k < rows.len() && u64::from(rows[k]) < at + run.len {
            push_run(&mut runs, Run { split: run.split, start: run.start + u64::from(rows[k]) - at, len: 1 });
            k += 1;
        }
        at += run.len;
    }
    Ok(Chunk::rows_of(out, runs))
}

impl StreamStage for Bucket {
    fn held_bytes(&self) -> usize {
        self.pending.iter().map(Pending::bytes).sum()
    }

    fn push(&mut self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<Flow> {
        let classes = self.classes(&chunk)?;
        // Full batches by the row that filled them: the order in which they would come row by row.
        let mut full: Vec<(u32, usize, Chunk)> = Vec::new();
        for class in 0..self.sizes.len() {
            let rows: Vec<u32> =
                (0u32..).zip(&classes).filter(|(_, c)| **c == class).map(|(i, _)| i).collect();
            if rows.is_empty() {
                continue;
            }
            let picked = pick(&chunk, &rows)?;
            let mut at = 0;
            while at < rows.len() {
                let n = (self.sizes[class] - self.pending[class].rows()).min(rows.len() - at);
                let part = picked.slice_rows(at, n);
                at += n;
                if let Some(batch) = self.pending[class].complete(part, self.sizes[class]) {
                    full.push((rows[at - 1], class, batch));
                }
            }
        }
        let waiting = |f: fn(&Pending) -> usize| self.pending.iter().map(f).sum();
        self.limit.check(waiting(Pending::rows), waiting(Pending::bytes))?;
        full.sort_unstable_by_key(|(filled, ..)| *filled);
        for (_, class, batch) in full {
            self.emit(class, batch, out)?;
        }
        Ok(Flow::More)
    }

    fn flush(&mut self, out: &mut Vec<Chunk>) -> Result<()> {
        for class in 0..self.sizes.len() {
            if let Some(rest) = self.pending[class].finish()
                && !self.drop_remainder
            {
                self.emit(class, rest, out)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use caju_kernels::{Limits, Registry};
    use proptest::prelude::*;

    use super::*;

    fn chunk(range: std::ops::Range<i64>) -> Chunk {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(range.clone()));
        let len = u64::try_from(range.end - range.start).unwrap();
        let run = Run { split: 0, start: u64::try_from(range.start).unwrap(), len };
        Chunk::rows_of(RecordBatch::try_from_iter([("id", ids)]).unwrap(), vec![run])
    }

    fn limit(max_bytes: u64) -> WaitLimit {
        WaitLimit { place: "steps[1].bucket_by_length".into(), max_bytes, argument: "batch_sizes" }
    }

    /// Chunks of 100 rows of three classes, in batches of `size`, and the bytes that wait at the end. `max_bytes` may wait.
    fn ten_chunks(size: usize, max_bytes: usize) -> Result<(Vec<Chunk>, usize)> {
        let registry = Registry::new(Limits::default());
        let schema = chunk(0..1).schema();
        let length = registry.bind("bucket", &[("length".into(), "id % 3".into())], &schema)?;
        let mut bucket = Bucket::new(length, limit(max_bytes as u64), vec![1, 2], vec![size; 3], false, None);
        let mut out = Vec::new();
        for i in 0..10 {
            bucket.push(chunk(i * 100..(i + 1) * 100), &mut out)?;
        }
        let waiting = bucket.pending.iter().map(Pending::bytes).sum();
        bucket.flush(&mut out)?;
        Ok((out, waiting))
    }

    #[test]
    fn rows_that_wait_in_all_classes_together_are_bounded_in_bytes() {
        let (_, most) = ten_chunks(1_000_000, usize::MAX).unwrap();
        assert!(most > 1000 * size_of::<i64>(), "{most}");
        assert_eq!(ten_chunks(1_000_000, most).unwrap().0.len(), 3, "within the bound");
        let e = ten_chunks(1_000_000, most - 1).unwrap_err();
        assert_eq!(e.kind(), caju_types::ErrorKind::ResourceExhausted);
        assert!(e.message().starts_with("steps[1].bucket_by_length: 1,000 rows that take"), "{e}");
        assert!(e.message().ends_with("use a smaller `batch_sizes`, or raise --chunk-memory"), "{e}");
        // What has left does not count.
        assert_eq!(ten_chunks(50, most / 2).unwrap().0.len(), 21);
    }

    /// The ids of the batches of rows 0 to 99, of which chunks end at `cuts`.
    fn batches(mut cuts: Vec<i64>) -> Vec<Vec<i64>> {
        cuts.extend([0, 100]);
        cuts.sort_unstable();
        cuts.dedup();
        let registry = Registry::new(Limits::default());
        let schema = chunk(0..1).schema();
        let length = registry.bind("bucket", &[("length".into(), "id * 7 % 10".into())], &schema).unwrap();
        let mut bucket = Bucket::new(length, limit(u64::MAX), vec![3, 6], vec![5, 3, 4], false, None);
        let mut out = Vec::new();
        for ends in cuts.windows(2) {
            bucket.push(chunk(ends[0]..ends[1]), &mut out).unwrap();
        }
        bucket.flush(&mut out).unwrap();
        let ids = |c: &Chunk| c.concat().unwrap().column(0).as_primitive::<Int64Type>().values().to_vec();
        out.iter().map(ids).collect()
    }

    proptest! {
        #[test]
        fn batches_and_their_order_do_not_depend_on_chunks(cuts in prop::collection::vec(0i64..100, 0..30)) {
            prop_assert_eq!(batches(cuts), batches((0..100).collect()));
        }
    }
}
