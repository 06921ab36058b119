//! The rounds of a task whose consumers read in rounds: one element for each consumer, of one class and of one shape.
//!
//! The elements of a task that are of one class of `bucket_by_length` make rounds in the order in which they come. Lists that
//! the pipeline padded to the longest of their batch are padded to the longest of the round. Batches with fewer rows than the
//! others, where the rows of a task end, make rounds of their own. With `tokens` the rows of a
//! window of batches are put into other batches first ([`crate::packing`]).
//!
//! Every consumer gets its elements of a task in the order of the task's rounds. Which task's round comes next is agreed
//! upon at the dispatcher.

use std::collections::{BTreeMap, VecDeque};

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use caju_pipeline::{DatasetDef, StageOp};
use caju_proto::v1;
use caju_types::{Error, Result};
use caju_wire::{Chunk, Elements, Padding, RoundMark, pad_to_lengths};

use crate::packing::{items_per_row, pack};

/// Rounds whose rows are packed together. More of them balance better, and wait longer for the first.
const WINDOW_ROUNDS: usize = 8;
/// Rounds that are packed together where rows are elements by themselves: a batch of one row cannot be balanced, but rows of
/// like lengths can meet.
const WINDOW_ROUNDS_OF_ROWS: usize = 256;
/// The most rows that are packed together, unless one round has more.
const WINDOW_ROWS: usize = 65_536;
/// The most bytes of rows that wait to be packed together, unless one round has more: as many as the elements that wait for
/// readers by default.
const WINDOW_BYTES: usize = 64 << 20;

/// The rounds of one task.
pub(crate) struct Rounds {
    consumers: usize,
    /// How batches are padded; none if they are not.
    padding: Option<Padding>,
    /// The rows of a full batch of each class, or of all classes; empty if elements are rows.
    batch_sizes: Vec<u64>,
    /// Elements that fill no round yet, one per chunk, by class.
    classes: BTreeMap<Class, VecDeque<Chunk>>,
    /// With `tokens`: elements that wait to be packed.
    window: Option<Window>,
    /// Rows that fill no batch.
    remainder_rows: Vec<Chunk>,
    /// At the end of the task: the elements that fill no round.
    remainder_elements: Vec<Chunk>,
}

/// Elements that may share a round. A batch with fewer rows than its stage asks for, as one is where rows of a task end, is
/// apart from the full ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Class {
    /// The class of `bucket_by_length`.
    bucket: Option<u32>,
    is_short: bool,
}

/// Elements whose rows are packed together. Some have fewer rows than a full one: where rows of a task end, and those of which
/// consumers had some rows when they went on from their states.
#[derive(Default)]
struct Window {
    elements: VecDeque<Chunk>,
    rows: usize,
    bytes: usize,
}

impl Window {
    fn push(&mut self, element: Chunk) {
        self.rows += element.rows();
        self.bytes += element.bytes();
        self.elements.push_back(element);
    }

    /// Takes the first rows, as one piece; none if that is no row.
    fn take_rows(&mut self, rows: usize) -> Result<Option<Chunk>> {
        let mut taken: Vec<Chunk> = Vec::new();
        let mut missing = rows;
        while missing > 0
            && let Some(mut element) = self.elements.pop_front()
        {
            if element.rows() > missing {
                let rest = element.slice_rows(missing, element.rows() - missing);
                self.elements.push_front(Chunk { elements: one_element(rest.rows()), ..rest });
                element = element.slice_rows(0, missing);
            }
            missing -= element.rows();
            taken.push(element);
        }
        self.rows -= rows - missing;
        self.bytes = self.elements.iter().map(Chunk::bytes).sum();
        if taken.is_empty() {
            return Ok(None);
        }
        let pieces = taken.iter().flat_map(|e| e.pieces.iter().cloned()).collect();
        let runs = taken.iter().flat_map(|e| e.runs.iter().copied()).collect();
        let all =
            Chunk { pieces, runs, elements: Elements::Rows, remainder: false, round: RoundMark::default() };
        Ok(Some(Chunk { pieces: vec![all.concat()?], ..all }))
    }
}

/// A batch of this number of rows.
fn one_element(rows: usize) -> Elements {
    Elements::Lengths(vec![u32::try_from(rows).unwrap_or(u32::MAX)])
}

impl Rounds {
    /// The rounds of a definition's elements. `packs`: rows are put into other batches.
    pub(crate) fn new(definition: &DatasetDef, consumers: usize, packs: bool) -> Self {
        let last = definition.stages.iter().rev().find(|s| s.op.makes_batches()).map(|s| &s.op);
        let padding = match last {
            Some(StageOp::BucketByLength { pad: true, .. }) => Some(Padding::default()),
            Some(StageOp::PaddedBatch { values, .. }) => {
                Some(Padding { values: values.clone(), ..Padding::default() })
            }
            _ => None,
        };
        Self {
            consumers: consumers.max(1),
            padding,
            batch_sizes: last.map(batch_sizes).unwrap_or_default(),
            classes: BTreeMap::new(),
            window: packs.then(Window::default),
            remainder_rows: Vec::new(),
            remainder_elements: Vec::new(),
        }
    }

    /// What a chunk of the task's output gives to whom.
    ///
    /// # Errors
    /// `ResourceExhausted` if elements do not fit one Arrow array, and those of padding.
    pub(crate) fn assign(&mut self, chunk: Chunk) -> Result<Vec<(usize, Chunk)>> {
        let mut out = Vec::new();
        if chunk.remainder {
            self.remainder_rows.push(chunk);
        } else if self.window.is_some() {
            for at in 0..chunk.num_elements() {
                self.push_to_window(chunk.pick_elements(&[at])?, &mut out)?;
            }
        } else {
            self.assign_elements(&chunk, &mut out)?;
        }
        Ok(out)
    }

    fn assign_elements(&mut self, chunk: &Chunk, out: &mut Vec<(usize, Chunk)>) -> Result<()> {
        let count = chunk.num_elements();
        let mut at = 0;
        if chunk.elements == Elements::Rows {
            let class = self.class_of(chunk);
            let waiting = self.classes.get(&class).map_or(0, VecDeque::len);
            // Rows in bulk: single ones only where a round was begun, and at the end.
            let first = if waiting > 0 { (self.consumers - waiting).min(count) } else { 0 };
            for row in 0..first {
                self.assign_element(class, chunk.pick_elements(&[row])?, out)?;
            }
            let full = (count - first) / self.consumers * self.consumers;
            for consumer in (0..self.consumers).filter(|_| full > 0) {
                let own: Vec<usize> = (first + consumer..first + full).step_by(self.consumers).collect();
                out.push((consumer, chunk.pick_elements(&own)?));
            }
            at = first + full;
        }
        for element in at..count {
            let element = chunk.pick_elements(&[element])?;
            self.assign_element(self.class_of(&element), element, out)?;
        }
        Ok(())
    }

    /// The class of an element, or of all rows of a chunk.
    fn class_of(&self, element: &Chunk) -> Class {
        let is_short = element.elements != Elements::Rows && element.rows() < self.full_rows(element);
        Class { bucket: element.round.bucket, is_short }
    }

    fn assign_element(&mut self, class: Class, element: Chunk, out: &mut Vec<(usize, Chunk)>) -> Result<()> {
        let waiting = self.classes.entry(class).or_default();
        waiting.push_back(element);
        if waiting.len() >= self.consumers {
            let round: Vec<Chunk> = waiting.drain(..).collect();
            out.extend(self.of_one_shape(round)?.into_iter().enumerate());
        }
        Ok(())
    }

    /// The rows of a full element of a class: 1 where elements are rows.
    fn full_rows(&self, element: &Chunk) -> usize {
        let bucket = element.round.bucket.and_then(|b| usize::try_from(b).ok()).unwrap_or(0);
        let full = self.batch_sizes.get(bucket).or(self.batch_sizes.first()).copied();
        let full = full.filter(|_| element.elements != Elements::Rows).unwrap_or(1);
        usize::try_from(full).unwrap_or(usize::MAX).max(1)
    }

    fn push_to_window(&mut self, element: Chunk, out: &mut Vec<(usize, Chunk)>) -> Result<()> {
        let rounds = if element.elements == Elements::Rows { WINDOW_ROUNDS_OF_ROWS } else { WINDOW_ROUNDS };
        let full = self.full_rows(&element);
        let Some(window) = &mut self.window else { return Ok(()) };
        window.push(element);
        let count = window.rows / full;
        let is_full = count >= rounds.saturating_mul(self.consumers)
            || window.rows >= WINDOW_ROWS
            || window.bytes >= WINDOW_BYTES;
        if is_full && count >= self.consumers {
            self.pack_window(out)?;
        }
        Ok(())
    }

    /// Packs the rows of the window into rounds of full elements. The rows behind the last such round stay.
    fn pack_window(&mut self, out: &mut Vec<(usize, Chunk)>) -> Result<()> {
        let Some(mut window) = self.window.as_mut().map(std::mem::take) else { return Ok(()) };
        let Some(first) = window.elements.front() else { return Ok(()) };
        let (full, are_rows) = (self.full_rows(first), first.elements == Elements::Rows);
        let count = window.rows / full / self.consumers * self.consumers;
        let all = window.take_rows(count.saturating_mul(full))?;
        self.window = Some(window);
        let Some(all) = all else { return Ok(()) };
        let items: Vec<u64> = all.pieces.iter().flat_map(items_per_row).collect();
        for round in pack(&items, &vec![full; count], self.consumers) {
            for (consumer, rows) in round.iter().enumerate() {
                let element = all.pick_elements(rows)?;
                let elements = if are_rows { Elements::Rows } else { one_element(rows.len()) };
                out.push((consumer, Chunk { elements, ..element }));
            }
        }
        Ok(())
    }

    /// The task is at its end: full rounds of elements that waited, and the remainder stays.
    ///
    /// # Errors
    /// As [`Rounds::assign`].
    pub(crate) fn finish(&mut self) -> Result<Vec<(usize, Chunk)>> {
        let mut out = Vec::new();
        self.pack_window(&mut out)?;
        self.remainder_elements = std::mem::take(&mut self.classes).into_values().flatten().collect();
        let mut window = self.window.as_mut().map(std::mem::take).unwrap_or_default();
        while let Some(first) = window.elements.front() {
            let (full, are_rows) = (self.full_rows(first), first.elements == Elements::Rows);
            let Some(element) = window.take_rows(full.min(window.rows))? else { break };
            let elements = if are_rows { Elements::Rows } else { one_element(element.rows()) };
            self.remainder_elements.push(Chunk { elements, ..element });
        }
        Ok(out)
    }

    /// The remainder of the task: its elements, and the number of rows that fill no batch.
    pub(crate) fn remainder(&self) -> (Vec<v1::RemainderElement>, u64) {
        let kind = |element: &Chunk| v1::RemainderElement {
            bucket: element.round.bucket.map_or(0, |b| b.saturating_add(1)),
            widths: self.widths(element),
            rows: element.rows() as u64,
        };
        (
            self.remainder_elements.iter().map(kind).collect(),
            self.remainder_rows.iter().map(|c| c.rows() as u64).sum(),
        )
    }

    /// The items of the longest list of each column in the rows that fill no batch, plus 1; 0 for other columns. Nothing where
    /// the pipeline does not pad.
    pub(crate) fn row_widths(&self) -> Vec<u32> {
        let Some(first) = self.remainder_rows.first().filter(|_| self.padding.is_some()) else {
            return Vec::new();
        };
        let longest = |column: usize| {
            let pieces = self.remainder_rows.iter().flat_map(|chunk| &chunk.pieces);
            pieces
                .flat_map(|piece| list_lengths(piece.column(column)))
                .flatten()
                .max()
                .map_or(0, |n| n.saturating_add(1))
        };
        (0..first.schema().fields().len()).map(longest).collect()
    }

    /// A part of the remainder for one consumer.
    ///
    /// # Errors
    /// `Internal` if the dispatcher names what is not there, and those of padding.
    pub(crate) fn piece(&self, piece: &v1::RemainderPiece) -> Result<Vec<(usize, Chunk)>> {
        let consumer = usize::try_from(piece.consumer).unwrap_or(usize::MAX);
        let index = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let (start, end) = (index(piece.start), index(piece.end));
        let mut chunks = match piece.of_rows {
            true => rows_of(&self.remainder_rows, start, end),
            false => self.remainder_elements.get(start..end).unwrap_or_default().to_vec(),
        };
        if consumer >= self.consumers || chunks.is_empty() {
            return Err(Error::internal(
                "the dispatcher gave out elements that do not exist, or to no consumer",
            ));
        }
        for chunk in &mut chunks {
            *chunk = self.padded(chunk, &piece.pad_to)?;
            chunk.round.remainder_round = piece.round;
            if piece.copy {
                chunk.runs.clear();
            }
        }
        Ok(chunks.into_iter().map(|c| (consumer, c)).collect())
    }

    /// The elements of a round, padded to one shape.
    fn of_one_shape(&self, round: Vec<Chunk>) -> Result<Vec<Chunk>> {
        if self.padding.is_none() {
            return Ok(round);
        }
        let widths: Vec<Vec<u32>> = round.iter().map(|element| self.widths(element)).collect();
        let columns = widths.first().map_or(0, Vec::len);
        let widest: Vec<u32> = (0..columns)
            .map(|column| {
                let of = || widths.iter().map(|w| w.get(column).copied().unwrap_or(0));
                if of().any(|width| width == 0) { 0 } else { of().max().unwrap_or(0) }
            })
            .collect();
        round.iter().map(|element| self.padded(element, &widest)).collect()
    }

    /// An element whose lists have these numbers of items, plus 1, where these are not 0.
    fn padded(&self, element: &Chunk, to: &[u32]) -> Result<Chunk> {
        let Some(padding) = &self.padding else { return Ok(element.clone()) };
        let widths = self.widths(element);
        let schema = element.schema();
        let differ = schema.fields().iter().zip(widths.iter().zip(to)).filter(|(_, (own, to))| own < to);
        let lengths = differ.map(|(field, (_, to))| (field.name().clone(), to - 1)).collect();
        let padding = Padding { lengths, values: padding.values.clone() };
        if padding.lengths.is_empty() { Ok(element.clone()) } else { pad_to_lengths(element, &padding) }
    }

    /// Items that every list of a column has, plus 1; 0 where they differ, or are no lists. Where the pipeline does not pad
    /// nothing has a width.
    fn widths(&self, element: &Chunk) -> Vec<u32> {
        if self.padding.is_none() {
            return Vec::new();
        }
        let width = |column: usize| {
            let mut widths = element.pieces.iter().flat_map(|piece| list_lengths(piece.column(column)));
            let first = widths.next().flatten();
            first.filter(|width| widths.all(|w| w == Some(*width))).map_or(0, |width| width.saturating_add(1))
        };
        (0..element.schema().fields().len()).map(width).collect()
    }
}

/// The rows of the full batches of a stage, of each class or of all.
fn batch_sizes(op: &StageOp) -> Vec<u64> {
    match op {
        StageOp::Batch { size, .. } | StageOp::PaddedBatch { size, .. } => vec![*size],
        StageOp::BucketByLength { batch_sizes, .. } => batch_sizes.clone(),
        _ => Vec::new(),
    }
}

/// The items of each list of a column; one `None` for a column without lists.
fn list_lengths(column: &ArrayRef) -> Vec<Option<u32>> {
    let rows = 0..column.len();
    match column.data_type() {
        DataType::List(_) => {
            let list = column.as_list::<i32>();
            rows.map(|row| u32::try_from(list.value_length(row)).ok()).collect()
        }
        DataType::LargeList(_) => {
            let list = column.as_list::<i64>();
            rows.map(|row| u32::try_from(list.value_length(row)).ok()).collect()
        }
        _ => vec![None],
    }
}

/// Rows `start..end` of chunks that follow each other, as parts of a batch.
pub(crate) fn rows_of(chunks: &[Chunk], start: usize, end: usize) -> Vec<Chunk> {
    let mut at = 0;
    let parts = chunks.iter().filter_map(|chunk| {
        let (from, to) = (start.max(at), end.min(at + chunk.rows()));
        let part = (from < to).then(|| chunk.slice_rows(from - at, to - from));
        at += chunk.rows();
        part.map(|p| Chunk { elements: one_element(to.saturating_sub(from)), ..p })
    });
    parts.collect()
}

#[cfg(test)]
#[path = "rounds_tests.rs"]
mod tests;
