//! `batch` and `unbatch`.

use caju_types::Result;
use caju_wire::{Chunk, Elements, Padding, RoundMark, Run, pad_batch, push_run};

use super::waiting::{WaitLimit, waiting_bytes};
use super::{Flow, StreamStage};

/// Rows on their way into a batch.
#[derive(Default)]
pub(crate) struct Pending {
    pieces: Vec<arrow_array::RecordBatch>,
    runs: Vec<Run>,
    rows: usize,
    bytes: usize,
}

impl Pending {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The bytes of memory that the rows take.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn add(&mut self, chunk: Chunk) {
        self.rows += chunk.rows();
        self.bytes += waiting_bytes(&chunk);
        self.pieces.extend(chunk.pieces.into_iter().filter(|p| p.num_rows() > 0));
        for run in chunk.runs {
            push_run(&mut self.runs, run);
        }
    }

    /// Adds rows, and returns the element if it has `size` rows then. Rows that are a whole element do not wait.
    pub(crate) fn complete(&mut self, chunk: Chunk, size: usize) -> Option<Chunk> {
        if self.rows == 0 && chunk.rows() == size {
            return Some(element(chunk.pieces, chunk.runs, size));
        }
        self.add(chunk);
        if self.rows == size { self.finish() } else { None }
    }

    /// Everything pending as one element; `None` if there is nothing.
    pub(crate) fn finish(&mut self) -> Option<Chunk> {
        if self.rows == 0 {
            return None;
        }
        let taken = std::mem::take(self);
        Some(element(taken.pieces, taken.runs, taken.rows))
    }
}

/// Rows as one element.
fn element(pieces: Vec<arrow_array::RecordBatch>, runs: Vec<Run>, rows: usize) -> Chunk {
    let elements = Elements::Lengths(vec![u32::try_from(rows).unwrap_or(u32::MAX)]);
    Chunk { pieces, runs, elements, remainder: false, round: RoundMark::default() }
}

/// Makes elements of `size` rows. Full batches inside one chunk are slices of it; a batch over several
/// chunks keeps them as pieces. Nothing is copied, unless lists have to be padded. The rows that wait for a batch are bounded
/// in bytes.
pub(crate) struct Batch {
    size: usize,
    end: BatchEnd,
    padding: Option<Padding>,
    limit: WaitLimit,
    pending: Pending,
}

/// What becomes of the short batch at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchEnd {
    /// It is an element like any other.
    Keep,
    /// It is dropped.
    Drop,
    /// It goes to the reader as a remainder, to be merged with those of other tasks.
    Merge,
}

impl Batch {
    pub(crate) fn new(size: usize, end: BatchEnd, padding: Option<Padding>, limit: WaitLimit) -> Self {
        Self { size: size.max(1), end, padding, limit, pending: Pending::default() }
    }

    fn emit(&self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<()> {
        match &self.padding {
            None => out.push(chunk),
            // It asks the budget of the stage for the padded size before it takes memory.
            Some(padding) => {
                out.push(pad_batch(&chunk, padding).map_err(|e| e.context(&self.limit.place))?);
            }
        }
        Ok(())
    }

    /// With padding every batch is a chunk of its own, since its lists have its own length.
    fn per_chunk(&self, full: usize) -> usize {
        if self.padding.is_some() { full.min(1) } else { full }
    }
}

impl StreamStage for Batch {
    fn held_bytes(&self) -> usize {
        self.pending.bytes()
    }

    fn push(&mut self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<Flow> {
        let rows = chunk.rows();
        let mut at = 0;
        while at < rows {
            if self.pending.rows() == 0 && rows - at >= self.size {
                let full = self.per_chunk((rows - at) / self.size);
                let mut whole = chunk.slice_rows(at, full * self.size);
                whole.round = RoundMark::default();
                let size = u32::try_from(self.size).unwrap_or(u32::MAX);
                whole.elements = Elements::Lengths(vec![size; full]);
                self.emit(whole, out)?;
                at += full * self.size;
            } else {
                let n = (self.size - self.pending.rows()).min(rows - at);
                self.pending.add(chunk.slice_rows(at, n));
                self.limit.check(self.pending.rows(), self.pending.bytes())?;
                at += n;
                if self.pending.rows() == self.size
                    && let Some(full) = self.pending.finish()
                {
                    self.emit(full, out)?;
                }
            }
        }
        Ok(Flow::More)
    }

    fn flush(&mut self, out: &mut Vec<Chunk>) -> Result<()> {
        let Some(mut rest) = self.pending.finish() else { return Ok(()) };
        match self.end {
            BatchEnd::Keep => self.emit(rest, out),
            BatchEnd::Drop => Ok(()),
            BatchEnd::Merge => {
                // The reader pads what it merged.
                rest.remainder = true;
                out.push(rest);
                Ok(())
            }
        }
    }
}

/// Elements become rows again.
pub(crate) struct Unbatch;

impl StreamStage for Unbatch {
    fn push(&mut self, mut chunk: Chunk, out: &mut Vec<Chunk>) -> Result<Flow> {
        chunk.elements = Elements::Rows;
        chunk.remainder = false;
        chunk.round = RoundMark::default();
        out.push(chunk);
        Ok(Flow::More)
    }

    fn flush(&mut self, _out: &mut Vec<Chunk>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use proptest::prelude::*;

    use super::*;

    fn chunk(range: std::ops::Range<i64>) -> Chunk {
        let start = range.start.cast_unsigned();
        let len = (range.end - range.start).cast_unsigned();
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(range));
        Chunk::rows_of(RecordBatch::try_from_iter([("id", ids)]).unwrap(), vec![Run { split: 0, start, len }])
    }

    fn limit(max_bytes: u64) -> WaitLimit {
        WaitLimit { place: "steps[1].batch".into(), max_bytes, argument: "batch" }
    }

    /// Ten chunks of 100 rows, pushed into batches of `size`, with a bound of what ten such chunks take less `missing` bytes.
    fn ten_chunks(size: usize, padding: Option<Padding>, missing: usize) -> Result<Vec<Chunk>> {
        let max_bytes = 10 * waiting_bytes(&chunk(0..100)) - missing;
        let mut stage = Batch::new(size, BatchEnd::Keep, padding, limit(max_bytes as u64));
        let mut out = Vec::new();
        for i in 0..10 {
            stage.push(chunk(i * 100..(i + 1) * 100), &mut out)?;
        }
        stage.flush(&mut out)?;
        Ok(out)
    }

    #[test]
    fn rows_that_wait_for_a_batch_are_bounded_in_bytes() {
        for padding in [None, Some(Padding::default())] {
            for size in [1000, 2_000_000_000] {
                let e = ten_chunks(size, padding.clone(), 1).unwrap_err();
                assert_eq!(e.kind(), caju_types::ErrorKind::ResourceExhausted);
                assert!(e.message().starts_with("steps[1].batch: 1,000 rows that take 1"), "{e}");
                assert!(e.message().ends_with("use a smaller `batch`, or raise --chunk-memory"), "{e}");
                let out = ten_chunks(size, padding.clone(), 0).unwrap();
                assert_eq!(out.iter().map(Chunk::rows).collect::<Vec<_>>(), [1000], "within the bound");
            }
            // What has left does not count.
            assert_eq!(ten_chunks(250, padding.clone(), waiting_bytes(&chunk(0..700))).unwrap().len(), 4);
        }
    }

    proptest! {
        /// Whatever the chunks, the elements are the same, and provenance says exactly which rows they are.
        #[test]
        fn elements_do_not_depend_on_chunks(cuts in prop::collection::vec(0i64..30, 0..20), size in 1usize..17) {
            let mut stage = Batch::new(size, BatchEnd::Keep, None, limit(u64::MAX));
            let (mut out, mut at) = (Vec::new(), 0);
            for n in cuts {
                stage.push(chunk(at..at + n), &mut out).unwrap();
                at += n;
            }
            stage.flush(&mut out).unwrap();
            let (mut ids, mut lengths, mut ordinals) = (Vec::new(), Vec::new(), Vec::new());
            for c in out {
                let b = c.concat().unwrap();
                ids.extend(b.column(0).as_primitive::<Int64Type>().values().iter().copied());
                let Elements::Lengths(l) = &c.elements else { panic!("rows after batch") };
                prop_assert_eq!(l.iter().map(|&n| n as usize).sum::<usize>(), c.rows());
                lengths.extend(l.iter().map(|&n| n as usize));
                ordinals.extend(c.runs.iter().flat_map(|r| r.start..r.start + r.len));
            }
            prop_assert_eq!(&ids, &(0..at).collect::<Vec<_>>());
            prop_assert_eq!(ordinals, (0..at.cast_unsigned()).collect::<Vec<_>>());
            let (full, rest) = (ids.len() / size, ids.len() % size);
            let want: Vec<_> = std::iter::repeat_n(size, full).chain((rest > 0).then_some(rest)).collect();
            prop_assert_eq!(lengths, want);
        }
    }
}
