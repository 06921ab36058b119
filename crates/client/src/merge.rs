//! Merges the short batches at the ends of tasks into full ones.

use caju_pipeline::{DatasetDef, StageOp};
use caju_types::Result;
use caju_wire::{Chunk, Elements, Padding, RoundMark, pad_batch};

/// Collects remainders, so that one client gets floor(N / n) full batches and at most one short one.
///
/// The tasks applied the stages after the last `batch` already. These work on rows, so it does not matter which rows share a
/// batch. Padding depends on it, so remainders are sent unpadded. Tasks whose stages compute on padded lists send none.
#[derive(Debug)]
pub(crate) struct Merger {
    size: usize,
    drop_remainder: bool,
    padding: Option<Padding>,
    held: Vec<Chunk>,
    rows: usize,
}

impl Merger {
    /// The merger for a definition's last batching stage; `None` if its tasks send no remainders.
    pub(crate) fn of(def: &DatasetDef) -> Option<Self> {
        let last = def.stages.iter().rev().find_map(|s| match &s.op {
            StageOp::Batch { size, drop_remainder } => Some((*size, *drop_remainder, None)),
            StageOp::PaddedBatch { size, drop_remainder, lengths, values } => Some((
                *size,
                *drop_remainder,
                Some(Padding { lengths: lengths.clone(), values: values.clone() }),
            )),
            _ => None,
        });
        let (size, drop_remainder, padding) = last?;
        let size = usize::try_from(size).unwrap_or(usize::MAX).max(1);
        Some(Self { size, drop_remainder, padding, held: Vec::new(), rows: 0 })
    }

    /// A merger for the same definition that has nothing.
    pub(crate) fn again(&self) -> Self {
        Self {
            size: self.size,
            drop_remainder: self.drop_remainder,
            padding: self.padding.clone(),
            held: Vec::new(),
            rows: 0,
        }
    }

    /// Takes a remainder, and appends full batches as soon as there are rows for them.
    ///
    /// # Errors
    /// Those of padding.
    pub(crate) fn push(&mut self, chunk: Chunk, out: &mut impl Extend<Chunk>) -> Result<()> {
        self.rows += chunk.rows();
        self.held.push(chunk);
        while self.rows >= self.size {
            let full = self.take(self.size)?;
            out.extend([full]);
        }
        Ok(())
    }

    /// The short batch at the end, unless short batches are dropped.
    ///
    /// # Errors
    /// Those of padding.
    pub(crate) fn finish(&mut self) -> Result<Option<Chunk>> {
        if self.rows == 0 || self.drop_remainder {
            self.held.clear();
            self.rows = 0;
            return Ok(None);
        }
        self.take(self.rows).map(Some)
    }

    /// Whether rows that do not fill a batch are dropped at the end.
    pub(crate) fn drops(&self) -> bool {
        self.drop_remainder
    }

    /// Remainders that wait to be merged.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Chunk> {
        self.held.iter()
    }

    fn take(&mut self, rows: usize) -> Result<Chunk> {
        let (mut pieces, mut runs, mut have) = (Vec::new(), Vec::new(), 0);
        while have < rows {
            let Some(chunk) = self.held.pop() else { break };
            let n = chunk.rows().min(rows - have);
            let part = chunk.slice_rows(0, n);
            if n < chunk.rows() {
                self.held.push(chunk.slice_rows(n, chunk.rows() - n));
            }
            pieces.extend(part.pieces);
            runs.extend(part.runs);
            have += n;
        }
        self.rows -= have;
        let elements = Elements::Lengths(vec![u32::try_from(have).unwrap_or(u32::MAX)]);
        let chunk = Chunk { pieces, runs, elements, remainder: false, round: RoundMark::default() };
        match &self.padding {
            Some(padding) => pad_batch(&chunk, padding),
            None => Ok(chunk),
        }
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers")]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int64Array, RecordBatch};
    use caju_wire::Run;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn full_batches_and_at_most_one_short(remainders in prop::collection::vec(1usize..9, 0..12), drop_remainder: bool) {
            let size = 9;
            let mut merger = Merger { size, drop_remainder, padding: None, held: Vec::new(), rows: 0 };
            let (mut out, mut at) = (Vec::new(), 0i64);
            for n in remainders {
                let ids = Int64Array::from_iter_values(at..at + n as i64);
                let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap();
                let runs = vec![Run { split: 0, start: at as u64, len: n as u64 }];
                let elements = Elements::Lengths(vec![n as u32]);
                merger.push(Chunk { elements, remainder: true, ..Chunk::rows_of(batch, runs) }, &mut out).unwrap();
                at += n as i64;
            }
            let full = out.len();
            prop_assert!(out.iter().all(|c| c.rows() == size && !c.remainder && c.num_elements() == 1));
            prop_assert_eq!(full, at as usize / size);
            out.extend(merger.finish().unwrap());
            let short = usize::from(!drop_remainder && !(at as usize).is_multiple_of(size));
            prop_assert_eq!(out.len(), full + short);
            if !drop_remainder {
                let mut rows: Vec<u64> = out.iter().flat_map(|c| c.runs.iter().flat_map(|r| r.start..r.start + r.len)).collect();
                rows.sort_unstable();
                prop_assert_eq!(rows, (0..at as u64).collect::<Vec<_>>());
            }
        }
    }
}
