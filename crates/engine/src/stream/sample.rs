//! `sample`: rows of several datasets, drawn by weight.

use std::collections::VecDeque;

use caju_types::Result;
use caju_wire::{Chunk, push_run};

use super::row_sizes::row_sizes;
use super::{Draws, Flow, StreamStage};

/// Waiting rows beyond which a dataset that has none ready is not waited for any more. They count by their own bytes, one by one:
/// counted by chunks, the rows that are drawn without that dataset would depend on where chunks end, which differs from run to
/// run. A chunk that comes whole is drawn from as if its rows had come one after another.
const MAX_BYTES: u64 = 64 << 20;
/// Rows of one chunk that leaves.
const CHUNK_ROWS: usize = 4096;

/// Draws the dataset of every next row by weight, among those that have rows.
///
/// While every dataset has rows waiting the draws follow the weights exactly. A dataset whose rows are late
/// is waited for until the others hold [`MAX_BYTES`]; one that is used up simply drops out.
pub(crate) struct Sample {
    weights: Vec<f64>,
    draws: Draws,
    waiting: Vec<Waiting>,
    /// Which dataset a split belongs to.
    child_of: Box<dyn Fn(u64) -> usize + Send>,
}

#[derive(Default)]
struct Waiting {
    chunks: VecDeque<Chunk>,
    /// Rows of the first chunk that have left.
    taken: usize,
    /// The bytes of each row that has not left.
    sizes: VecDeque<u64>,
    /// All of these.
    bytes: u64,
}

impl Sample {
    pub(crate) fn new(
        weights: Vec<f64>,
        seed: u64,
        child_of: impl Fn(u64) -> usize + Send + 'static,
    ) -> Self {
        let waiting = weights.iter().map(|_| Waiting::default()).collect();
        Self { weights, draws: Draws::new(seed), waiting, child_of: Box::new(child_of) }
    }

    fn draw(&mut self) -> Option<usize> {
        let ready = |w: &Waiting| !w.chunks.is_empty();
        let total: f64 =
            self.waiting.iter().zip(&self.weights).filter(|(w, _)| ready(w)).map(|(_, x)| x).sum();
        let mut at = self.draws.unit() * total;
        let mut last = None;
        for (i, (w, x)) in self.waiting.iter().zip(&self.weights).enumerate() {
            if ready(w) {
                last = Some(i);
                if at < *x {
                    break;
                }
                at -= x;
            }
        }
        last
    }

    /// Draws rows while `go_on` says so.
    fn emit(&mut self, out: &mut Vec<Chunk>, go_on: impl Fn(&[Waiting]) -> bool) -> Result<()> {
        let mut picked: Vec<Chunk> = Vec::new();
        let mut rows = 0;
        // Consecutive draws from one dataset leave as one slice.
        let mut run: Option<(usize, usize, usize)> = None;
        while go_on(&self.waiting) {
            let Some(i) = self.draw() else { break };
            match &mut run {
                Some((child, _, len)) if *child == i => *len += 1,
                _ => {
                    self.slice(run.take(), &mut picked);
                    run = Some((i, self.waiting[i].taken, 1));
                }
            }
            let w = &mut self.waiting[i];
            w.taken += 1;
            rows += 1;
            w.bytes = w.bytes.saturating_sub(w.sizes.pop_front().unwrap_or(0));
            if w.chunks.front().is_some_and(|c| c.rows() == w.taken) {
                self.slice(run.take(), &mut picked);
                let w = &mut self.waiting[i];
                w.taken = 0;
                w.chunks.pop_front();
            }
            if rows >= CHUNK_ROWS {
                self.slice(run.take(), &mut picked);
                join(std::mem::take(&mut picked), out)?;
                rows = 0;
            }
        }
        self.slice(run.take(), &mut picked);
        join(picked, out)
    }

    fn slice(&self, run: Option<(usize, usize, usize)>, picked: &mut Vec<Chunk>) {
        if let Some((i, start, len)) = run
            && let Some(chunk) = self.waiting[i].chunks.front()
        {
            picked.push(chunk.slice_rows(start, len));
        }
    }
}

fn join(picked: Vec<Chunk>, out: &mut Vec<Chunk>) -> Result<()> {
    let Some(first) = picked.first() else { return Ok(()) };
    let mut all = Chunk::rows_of(first.pieces[0].slice(0, 0), Vec::new());
    all.pieces.clear();
    for c in picked {
        c.runs.iter().for_each(|r| push_run(&mut all.runs, *r));
        all.pieces.extend(c.pieces);
    }
    let batch = all.concat()?;
    out.push(Chunk::rows_of(batch, all.runs));
    Ok(())
}

impl StreamStage for Sample {
    fn push(&mut self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<Flow> {
        let child = chunk
            .runs
            .first()
            .map_or(0, |r| (self.child_of)(r.split))
            .min(self.waiting.len().saturating_sub(1));
        if let Some(w) = self.waiting.get_mut(child) {
            for piece in &chunk.pieces {
                let sizes = row_sizes(piece);
                w.bytes = sizes.iter().fold(w.bytes, |sum, size| sum.saturating_add(*size));
                w.sizes.extend(sizes);
            }
            w.chunks.push_back(chunk);
        }
        self.emit(out, |waiting| {
            let all_ready = waiting.iter().all(|w| !w.chunks.is_empty());
            all_ready || waiting.iter().fold(0u64, |sum, w| sum.saturating_add(w.bytes)) > MAX_BYTES
        })?;
        Ok(Flow::More)
    }

    fn flush(&mut self, out: &mut Vec<Chunk>) -> Result<()> {
        self.emit(out, |waiting| waiting.iter().any(|w| !w.chunks.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use caju_wire::Run;

    use super::*;

    fn chunk(split: u64, range: std::ops::Range<i64>) -> Chunk {
        let run =
            Run { split, start: range.start.cast_unsigned(), len: (range.end - range.start).cast_unsigned() };
        let child = i64::try_from(split).unwrap();
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(range.map(|i| child * 10_000 + i)));
        Chunk::rows_of(RecordBatch::try_from_iter([("id", ids)]).unwrap(), vec![run])
    }

    #[test]
    fn draws_follow_the_weights_and_lose_nothing() {
        let mut sample = Sample::new(vec![0.6, 0.3, 0.1], 5, |s| usize::try_from(s).unwrap());
        let mut out = Vec::new();
        for i in 0..10 {
            for s in 0..3 {
                sample.push(chunk(s, i * 100..(i + 1) * 100), &mut out).unwrap();
            }
        }
        sample.flush(&mut out).unwrap();
        let ids: Vec<i64> = out
            .iter()
            .flat_map(|c| c.concat().unwrap().column(0).as_primitive::<Int64Type>().values().to_vec())
            .collect();
        let of = |s: i64, n: usize| ids[..n].iter().filter(|&&i| i / 10_000 == s).count();
        assert!(of(0, 1000) > of(1, 1000) && of(1, 1000) > of(2, 1000));
        assert!((550..650).contains(&of(0, 1000)), "{}", of(0, 1000));
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        let want: Vec<i64> = (0..3).flat_map(|s| (0..1000).map(move |i| s * 10_000 + i)).collect();
        assert_eq!(sorted, want);
        let runs: u64 = out.iter().flat_map(|c| &c.runs).map(|r| r.len).sum();
        assert_eq!(runs, 3000);
    }

    /// The ids in the order of the draws, of rows that come in chunks of this many. Dataset 1 is late, and dataset 2 used up early.
    fn ids_of_chunks(rows: i64) -> Vec<i64> {
        let children = [0, 1, 2, 0, 0, 0, 0, 0, 0, 1, 1];
        let child = move |split: u64| children[usize::try_from(split).unwrap()];
        let mut sample = Sample::new(vec![0.5, 0.4, 0.1], 5, child);
        let mut out = Vec::new();
        for split in 0..11u64 {
            let base = split.cast_signed() * 10_000;
            let mut at = 0;
            while at < 3000 {
                let n = rows.min(3000 - at);
                let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(base + at..base + at + n));
                let pad = |row: i64| "x".repeat(usize::try_from(2000 + row * 7 % 5000).unwrap());
                let pads: ArrayRef = Arc::new(StringArray::from_iter_values((at..at + n).map(pad)));
                let run = Run { split, start: at.cast_unsigned(), len: n.cast_unsigned() };
                let batch = RecordBatch::try_from_iter([("id", ids), ("pad", pads)]).unwrap();
                sample.push(Chunk::rows_of(batch, vec![run]), &mut out).unwrap();
                at += n;
            }
        }
        sample.flush(&mut out).unwrap();
        let ids = |c: &Chunk| c.concat().unwrap().column(0).as_primitive::<Int64Type>().values().to_vec();
        out.iter().flat_map(ids).collect()
    }

    #[test]
    fn the_draws_do_not_depend_on_where_chunks_end() {
        let whole = ids_of_chunks(3000);
        assert_eq!(whole.len(), 33_000);
        let late = whole.iter().position(|id| *id / 10_000 == 9).unwrap();
        assert!(late > 6_000 && late < 27_000, "more than wait at most come before the late rows: {late}");
        for rows in [1, 7, 1000] {
            assert!(ids_of_chunks(rows) == whole, "chunks of {rows} rows");
        }
    }
}
