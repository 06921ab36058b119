//! A chunk, element by element.

use arrow_array::RecordBatch;
use caju_types::Result;

use crate::{Chunk, Elements};

/// Hands out the elements of a chunk as record batches. Nothing is copied, unless an element lies across
/// pieces.
#[derive(Debug)]
pub struct ElementCursor {
    chunk: Chunk,
    /// Elements handed out.
    elements: usize,
    /// Rows handed out.
    rows: usize,
    total: usize,
    /// Where the next element begins: a piece, and a row of it.
    piece: usize,
    offset: usize,
}

impl ElementCursor {
    /// A cursor before the first element.
    pub fn new(chunk: Chunk) -> Self {
        let total = chunk.rows();
        Self { chunk, elements: 0, rows: 0, total, piece: 0, offset: 0 }
    }

    /// The number of rows of the next element; `None` after the last.
    pub fn next_rows(&self) -> Option<usize> {
        match &self.chunk.elements {
            Elements::Rows => (self.rows < self.total).then_some(1),
            Elements::Lengths(lengths) => lengths.get(self.elements).map(|rows| *rows as usize),
        }
    }

    /// The next element; `None` after the last.
    ///
    /// # Errors
    /// `ResourceExhausted` if an element over several pieces does not fit one Arrow array.
    #[expect(clippy::should_implement_trait, reason = "an iterator would not be `?`-able per element")]
    pub fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(rows) = self.next_rows() else { return Ok(None) };
        self.elements += 1;
        self.rows += rows;
        self.take(rows).map(Some)
    }

    /// The next element as the parts of pieces in which it lies, at least one, without a copy; `None` after the last.
    pub fn next_parts(&mut self) -> Option<Vec<RecordBatch>> {
        let rows = self.next_rows()?;
        self.elements += 1;
        self.rows += rows;
        Some(self.take_parts(rows))
    }

    fn take(&mut self, rows: usize) -> Result<RecordBatch> {
        match self.chunk.pieces.get(self.piece) {
            // Almost every element lies within one piece.
            Some(piece) if rows > 0 && rows < piece.num_rows() - self.offset => {
                let element = piece.slice(self.offset, rows);
                self.offset += rows;
                Ok(element)
            }
            _ => {
                let mut parts = self.take_parts(rows);
                match parts.len() {
                    1 => Ok(parts.swap_remove(0)),
                    _ => Chunk { pieces: parts, ..self.chunk.clone() }.concat(),
                }
            }
        }
    }

    fn take_parts(&mut self, mut rows: usize) -> Vec<RecordBatch> {
        let pieces = &self.chunk.pieces;
        let (mut parts, first) = (Vec::new(), self.piece);
        while rows > 0 && self.piece < pieces.len() {
            let piece = &pieces[self.piece];
            let n = rows.min(piece.num_rows() - self.offset);
            if n > 0 {
                // The whole of a piece needs no slice.
                let whole = n == piece.num_rows();
                parts.push(if whole { piece.clone() } else { piece.slice(self.offset, n) });
            }
            rows -= n;
            self.offset += n;
            if self.offset == piece.num_rows() {
                self.piece += 1;
                self.offset = 0;
            }
        }
        if parts.is_empty() {
            parts.push(pieces[first.min(pieces.len() - 1)].slice(0, 0));
        }
        parts
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small numbers")]
mod tests {
    use std::sync::Arc;

    use arrow::compute::concat_batches;
    use arrow_array::Int64Array;
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use proptest::prelude::*;

    use super::*;
    use crate::RoundMark;

    proptest! {
        /// Elements over any pieces: every row once, in order, in the lengths asked for.
        #[test]
        fn elements_of_any_pieces(pieces in prop::collection::vec(0usize..7, 1..6), cuts in prop::collection::vec(0u32..5, 0..12), flat: bool) {
            let total: usize = pieces.iter().sum();
            let mut at = 0;
            let batches: Vec<_> = pieces.iter().map(|&n| {
                let ids = Int64Array::from_iter_values(at..at + n as i64);
                at += n as i64;
                RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap()
            }).collect();
            let mut lengths: Vec<u32> = Vec::new();
            for c in cuts {
                let left = total as u32 - lengths.iter().sum::<u32>();
                lengths.push(c.min(left));
            }
            lengths.push(total as u32 - lengths.iter().sum::<u32>());
            let elements = if flat { Elements::Rows } else { Elements::Lengths(lengths.clone()) };
            let chunk = Chunk { pieces: batches, runs: vec![], elements, remainder: false, round: RoundMark::default() };
            let (mut current, mut in_parts) = (ElementCursor::new(chunk.clone()), ElementCursor::new(chunk));
            let (mut ids, mut got) = (Vec::new(), Vec::new());
            while let Some(b) = current.next().unwrap() {
                got.push(b.num_rows() as u32);
                let parts = in_parts.next_parts().unwrap();
                prop_assert_eq!(&concat_batches(b.schema_ref(), &parts).unwrap(), &b);
                ids.extend(b.column(0).as_primitive::<Int64Type>().values().iter().copied());
            }
            prop_assert!(in_parts.next_parts().is_none());
            prop_assert_eq!(ids, (0..total as i64).collect::<Vec<_>>());
            prop_assert_eq!(got, if flat { vec![1; total] } else { lengths });
        }
    }
}
