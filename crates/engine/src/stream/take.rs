//! `take` and `skip` where they could not be planned away: counting elements on a single task. Above a `repeat` each repetition
//! counts by itself.

use caju_types::Result;
use caju_wire::{Chunk, Elements};

use super::{Flow, StreamStage};

/// Rows of the first `n` elements of a chunk.
fn rows_of(chunk: &Chunk, n: usize) -> usize {
    match &chunk.elements {
        Elements::Rows => n,
        Elements::Lengths(l) => l[..n].iter().map(|&r| r as usize).sum(),
    }
}

/// Elements `from..to` of a chunk.
pub(super) fn elements(chunk: &Chunk, from: usize, to: usize) -> Chunk {
    let (s, e) = (rows_of(chunk, from), rows_of(chunk, to));
    let mut out = chunk.slice_rows(s, e - s);
    if let Elements::Lengths(l) = &chunk.elements {
        out.elements = Elements::Lengths(l[from..to].to_vec());
    }
    out
}

/// Lets the first elements of each repetition through.
pub(crate) struct Take {
    count: u64,
    left: u64,
}

impl Take {
    pub(crate) fn new(count: u64) -> Self {
        Self { count, left: count }
    }
}

impl StreamStage for Take {
    fn push(&mut self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<Flow> {
        let n = chunk.num_elements();
        let keep = usize::try_from(self.left).unwrap_or(usize::MAX).min(n);
        self.left -= keep as u64;
        if keep == n {
            out.push(chunk);
        } else if keep > 0 {
            out.push(elements(&chunk, 0, keep));
        }
        Ok(if self.left == 0 { Flow::Done } else { Flow::More })
    }

    fn flush(&mut self, _out: &mut Vec<Chunk>) -> Result<()> {
        self.left = self.count;
        Ok(())
    }
}

/// Drops the first elements of each repetition.
pub(crate) struct Skip {
    count: u64,
    left: u64,
}

impl Skip {
    pub(crate) fn new(count: u64) -> Self {
        Self { count, left: count }
    }
}

impl StreamStage for Skip {
    fn push(&mut self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<Flow> {
        let n = chunk.num_elements();
        let drop = usize::try_from(self.left).unwrap_or(usize::MAX).min(n);
        self.left -= drop as u64;
        if drop == 0 {
            out.push(chunk);
        } else if drop < n {
            out.push(elements(&chunk, drop, n));
        }
        Ok(Flow::More)
    }

    fn flush(&mut self, _out: &mut Vec<Chunk>) -> Result<()> {
        self.left = self.count;
        Ok(())
    }
}
