//! The elements of a chunk that is handed to the user one by one.

use caju_wire::{Chunk, Elements};

/// Counts the elements of a chunk as its rows are taken from the beginning on.
#[derive(Debug)]
pub(crate) struct ElementCount {
    elements: Elements,
    rows: u64,
    /// Elements that are counted, and their rows.
    counted: (usize, u64),
}

impl Default for ElementCount {
    fn default() -> Self {
        Self { elements: Elements::Rows, rows: 0, counted: (0, 0) }
    }
}

impl ElementCount {
    pub(crate) fn of(chunk: &Chunk) -> Self {
        Self { elements: chunk.elements.clone(), rows: chunk.rows() as u64, counted: (0, 0) }
    }

    /// The rows of the chunk.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// The elements that lie behind the first rows of the chunk.
    pub(crate) fn behind(&self, rows: u64) -> u64 {
        match &self.elements {
            Elements::Rows => self.rows.saturating_sub(rows),
            Elements::Lengths(lengths) => {
                let (counted, mut at) = self.counted;
                let starts = lengths.iter().skip(counted).map(|len| {
                    let start = at;
                    at += u64::from(*len);
                    start
                });
                starts.filter(|start| *start >= rows).count() as u64
            }
        }
    }

    /// The first rows of the chunk are taken: the number of further elements that lie in them.
    pub(crate) fn advance(&mut self, rows: u64) -> u64 {
        let rows = rows.min(self.rows);
        let (elements, at) = &mut self.counted;
        match &self.elements {
            Elements::Rows => {
                let before = *at;
                *at = rows.max(before);
                *at - before
            }
            Elements::Lengths(lengths) => {
                let before = *elements;
                while let Some(end) = lengths.get(*elements).map(|len| *at + u64::from(*len))
                    && end <= rows
                {
                    (*elements, *at) = (*elements + 1, end);
                }
                (*elements - before) as u64
            }
        }
    }
}
