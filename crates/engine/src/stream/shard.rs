//! `shard`: every n-th element, in order.

use arrow::compute::filter_record_batch;
use arrow_array::BooleanArray;
use caju_types::{Error, Result};
use caju_wire::{Chunk, Elements, Run, slice_runs};

use super::take::elements;
use super::{Flow, StreamStage};
use crate::row::RowSelection;

/// Lets the elements of one shard through. The count begins again with each repetition.
pub(crate) struct Shard {
    num_shards: u64,
    index: u64,
    /// Elements so far.
    seen: u64,
}

impl Shard {
    pub(crate) fn new(num_shards: u64, index: u64) -> Self {
        Self { num_shards: num_shards.max(1), index, seen: 0 }
    }

    /// The rows of the shard among a chunk of rows, which are counted.
    pub(crate) fn select(&mut self, chunk: &Chunk) -> Result<Chunk> {
        let (n, k, seen) = (self.num_shards, self.index, self.seen);
        self.seen += chunk.rows() as u64;
        only(chunk, |_, at| (seen + at) % n == k)
    }

    pub(crate) fn restart(&mut self) {
        self.seen = 0;
    }
}

/// The rows of a chunk of rows for which `keep` says so, given the run and the place in the chunk of each.
pub(crate) fn only(chunk: &Chunk, keep: impl Fn((u64, u64), u64) -> bool) -> Result<Chunk> {
    let (mut pieces, mut runs, mut at): (Vec<_>, Vec<Run>, usize) = (Vec::new(), Vec::new(), 0);
    for piece in &chunk.pieces {
        let here = slice_runs(&chunk.runs, at, piece.num_rows());
        let rows = here.iter().flat_map(|r| (r.start..r.start + r.len).map(|ordinal| (r.split, ordinal)));
        let mask: BooleanArray = (at as u64..).zip(rows).map(|(at, row)| Some(keep(row, at))).collect();
        at += piece.num_rows();
        if mask.true_count() == 0 {
            continue;
        }
        let kept = filter_record_batch(piece, &mask).map_err(|e| Error::internal(format!("shard: {e}")))?;
        runs.extend(RowSelection::Mask(mask).runs(&here));
        pieces.push(kept);
    }
    Ok(Chunk { pieces, runs, elements: Elements::Rows, ..chunk.clone() })
}

impl StreamStage for Shard {
    fn push(&mut self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<Flow> {
        if chunk.elements == Elements::Rows {
            out.push(self.select(&chunk)?);
            return Ok(Flow::More);
        }
        for i in 0..chunk.num_elements() {
            if self.seen % self.num_shards == self.index {
                out.push(elements(&chunk, i, i + 1));
            }
            self.seen += 1;
        }
        Ok(Flow::More)
    }

    fn flush(&mut self, _: &mut Vec<Chunk>) -> Result<()> {
        self.restart();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::UInt64Type;
    use arrow_array::{RecordBatch, UInt64Array};

    use super::*;

    fn rows(range: std::ops::Range<u64>) -> Chunk {
        let runs = vec![Run { split: 0, start: range.start, len: range.end - range.start }];
        let ids = UInt64Array::from_iter_values(range);
        Chunk::rows_of(RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap(), runs)
    }

    fn ids(chunks: &[Chunk]) -> Vec<u64> {
        let pieces = chunks.iter().flat_map(|c| &c.pieces);
        pieces.flat_map(|p| p.column(0).as_primitive::<UInt64Type>().values().to_vec()).collect()
    }

    #[test]
    fn every_nth_row_keeps_its_ordinal() {
        let mut shard = Shard::new(5, 3);
        let mut out = Vec::new();
        for range in [0..7, 7..10, 10..20] {
            shard.push(rows(range), &mut out).unwrap();
        }
        assert_eq!(ids(&out), [3, 8, 13, 18]);
        let starts: Vec<u64> = out.iter().flat_map(|c| c.runs.iter().map(|r| r.start)).collect();
        assert_eq!(starts, [3, 8, 13, 18]);
        shard.flush(&mut out).unwrap();
        out.clear();
        shard.push(rows(0..5), &mut out).unwrap();
        assert_eq!(ids(&out), [3], "a repetition counts from 0");
    }

    #[test]
    fn every_nth_batch_stays_whole() {
        let mut shard = Shard::new(2, 1);
        let mut out = Vec::new();
        let batches = Chunk { elements: Elements::Lengths(vec![2, 3, 1, 4]), ..rows(0..10) };
        shard.push(batches, &mut out).unwrap();
        assert_eq!(ids(&out), [2, 3, 4, 6, 7, 8, 9]);
        assert_eq!(out.iter().map(Chunk::num_elements).sum::<usize>(), 2);
    }
}
