//! `batch` and `unbatch`.

use caju_types::Result;
use caju_wire::{Chunk, Elements, Padding, RoundMark, Run, pad_batch, push_run};

use super::{Flow, StreamStage};

/// Rows on their way into a batch.
#[derive(Default)]
pub(crate) struct Pending {
    pieces: Vec<arrow_array::RecordBatch>,
    runs: Vec<Run>,
    rows: usize,
}

impl Pending {
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn add(&mut self, chunk: Chunk) {
        self.rows += chunk.rows();
        self.pieces.extend(chunk.pieces.into_iter().filter(|p| p.num_rows() > 0));
        for run in chunk.runs {
            push_run(&mut self.runs, run);
        }
    }

    /// Everything pending as one element; `None` if there is nothing.
    pub(crate) fn finish(&mut self) -> Option<Chunk> {
        if self.rows == 0 {
            return None;
        }
        let taken = std::mem::take(self);
        let elements = Elements::Lengths(vec![u32::try_from(taken.rows).unwrap_or(u32::MAX)]);
        let round = RoundMark::default();
        Some(Chunk { pieces: taken.pieces, runs: taken.runs, elements, remainder: false, round })
    }
}

/// Makes elements of `size` rows. Full batches inside one chunk are slices of it; a batch over several
/// chunks keeps them as pieces. Nothing is copied, unless lists have to be padded.
pub(crate) struct Batch {
    size: usize,
    end: BatchEnd,
    padding: Option<Padding>,
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
    pub(crate) fn new(size: usize, end: BatchEnd, padding: Option<Padding>) -> Self {
        Self { size: size.max(1), end, padding, pending: Pending::default() }
    }

    fn emit(&self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<()> {
        match &self.padding {
            None => out.push(chunk),
            Some(padding) => out.push(pad_batch(&chunk, padding)?),
        }
        Ok(())
    }

    /// With padding every batch is a chunk of its own, since its lists have its own length.
    fn per_chunk(&self, full: usize) -> usize {
        if self.padding.is_some() { full.min(1) } else { full }
    }
}

impl StreamStage for Batch {
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

    proptest! {
        /// Whatever the chunks, the elements are the same, and provenance says exactly which rows they are.
        #[test]
        fn elements_do_not_depend_on_chunks(cuts in prop::collection::vec(0i64..30, 0..20), size in 1usize..17) {
            let mut stage = Batch::new(size, BatchEnd::Keep, None);
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
