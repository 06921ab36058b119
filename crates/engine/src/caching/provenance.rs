//! The provenance of a set's rows, in columns of the part.
//!
//! Behind a cross-split stage a part holds rows of many splits. A reader of the part must know the split and the ordinal
//! of each row, and which rows form an element.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{UInt32Type, UInt64Type};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_types::{Error, Result};
use caju_wire::{Chunk, Elements, Run, push_run};

use super::stored_splits::StoredSplits;
use crate::hint::SetShape;

/// The number of the row's split in the part's list.
const SPLIT: &str = "caju.split";
/// The row's ordinal in its split.
const ROW: &str = "caju.row";
/// Behind `batch`: the number of the row's element in the part.
const ELEMENT: &str = "caju.element";
/// In an element's number: it is the short batch at a task's end.
const REMAINDER: u32 = 1 << 31;

/// The columns of a hint's rows, followed by the provenance columns.
pub(super) fn with_provenance(schema: &Schema, shape: &SetShape) -> SchemaRef {
    let mut fields: Vec<Arc<Field>> = schema.fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(SPLIT, DataType::UInt32, false)));
    fields.push(Arc::new(Field::new(ROW, DataType::UInt64, false)));
    if shape.batched {
        fields.push(Arc::new(Field::new(ELEMENT, DataType::UInt32, false)));
    }
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Adds the provenance columns to chunks.
#[derive(Debug)]
pub(super) struct ProvenanceEncoder {
    schema: SchemaRef,
    batched: bool,
    elements: u32,
}

impl ProvenanceEncoder {
    pub(super) fn new(schema: SchemaRef, shape: &SetShape) -> Self {
        Self { schema, batched: shape.batched, elements: 0 }
    }

    /// The rows of a chunk with their provenance. `numbers`: the splits' numbers in the part, by lease.
    ///
    /// # Errors
    /// `Internal` for a row of a split without a number, or for rows that form no elements where the hint has batches.
    pub(super) fn encode(&mut self, chunk: &Chunk, numbers: &HashMap<u64, u32>) -> Result<Vec<RecordBatch>> {
        let (mut splits, mut rows) = (Vec::with_capacity(chunk.rows()), Vec::with_capacity(chunk.rows()));
        for run in &chunk.runs {
            let number = numbers
                .get(&run.split)
                .ok_or_else(|| Error::internal("a row at a hint belongs to no split of its task"))?;
            splits.extend(std::iter::repeat_n(*number, usize::try_from(run.len).unwrap_or(0)));
            rows.extend(run.start..run.start + run.len);
        }
        let mut columns: Vec<ArrayRef> =
            vec![Arc::new(UInt32Array::from(splits)), Arc::new(UInt64Array::from(rows))];
        if self.batched {
            columns.push(Arc::new(UInt32Array::from(self.number(chunk)?)));
        }
        let mut at = 0;
        let piece = |piece: &RecordBatch| {
            let len = piece.num_rows();
            let mut all = piece.columns().to_vec();
            all.extend(columns.iter().map(|c| c.slice(at, len)));
            at += len;
            RecordBatch::try_new(Arc::clone(&self.schema), all)
                .map_err(|e| Error::internal(format!("rows at a hint: {e}")))
        };
        chunk.pieces.iter().filter(|p| p.num_rows() > 0).map(piece).collect()
    }

    /// The number of each row's element.
    fn number(&mut self, chunk: &Chunk) -> Result<Vec<u32>> {
        let Elements::Lengths(lengths) = &chunk.elements else {
            return Err(Error::internal("rows at a hint behind `batch` form no batches"));
        };
        let mut numbers = Vec::with_capacity(chunk.rows());
        for len in lengths {
            let number = self.elements % REMAINDER + if chunk.remainder { REMAINDER } else { 0 };
            numbers.extend(std::iter::repeat_n(number, *len as usize));
            self.elements = self.elements.wrapping_add(1);
        }
        Ok(numbers)
    }
}

/// Turns stored rows into chunks again.
pub(crate) struct ProvenanceDecoder {
    schema: SchemaRef,
    shape: SetShape,
    splits: StoredSplits,
    /// The element whose remaining rows may be in the next batch.
    open: Option<(u32, Chunk)>,
}

impl ProvenanceDecoder {
    /// A decoder for a hint of this schema.
    pub(super) fn new(schema: SchemaRef, shape: SetShape, splits: StoredSplits) -> Self {
        Self { schema, shape, splits, open: None }
    }

    /// Numbers of rows of splits that readers have to be sent, since the last call.
    pub(super) fn take_sizes(&mut self) -> Vec<(u64, u64)> {
        self.splits.take_sizes()
    }

    /// The elements that a batch completes.
    ///
    /// # Errors
    /// `DataLoss` for a batch without valid provenance columns, and for more rows of a split than the record of the set says.
    pub(super) fn push(&mut self, batch: &RecordBatch) -> Result<Vec<Chunk>> {
        let wrong = || Error::data_loss("a part of a set has no valid provenance columns");
        let splits = batch.column_by_name(SPLIT).and_then(|c| c.as_primitive_opt::<UInt32Type>());
        let rows = batch.column_by_name(ROW).and_then(|c| c.as_primitive_opt::<UInt64Type>());
        let (Some(splits), Some(rows)) = (splits, rows) else { return Err(wrong()) };
        let mut runs = Vec::new();
        for (split, row) in splits.values().iter().zip(rows.values()) {
            let lease = self.splits.lease_of_next_row(*split)?;
            push_run(&mut runs, Run { split: lease, start: *row, len: 1 });
        }
        let own = batch.columns()[..self.schema.fields().len()].to_vec();
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let own = RecordBatch::try_new_with_options(Arc::clone(&self.schema), own, &options)
            .map_err(|e| Error::data_loss(format!("a part of a set has other columns: {e}")))?;
        let all = Chunk::rows_of(own, runs);
        if !self.shape.batched {
            return Ok(if all.rows() == 0 { Vec::new() } else { vec![all] });
        }
        let elements = batch.column_by_name(ELEMENT).and_then(|c| c.as_primitive_opt::<UInt32Type>());
        self.group(&all, elements.ok_or_else(wrong)?.values())
    }

    /// The last element, once all batches were decoded.
    pub(super) fn finish(&mut self) -> Option<Chunk> {
        self.open.take().map(|(number, chunk)| closed(number, chunk))
    }

    fn group(&mut self, all: &Chunk, numbers: &[u32]) -> Result<Vec<Chunk>> {
        let mut out: Vec<Chunk> = Vec::new();
        let mut at = 0;
        while at < numbers.len() {
            let number = numbers[at];
            let len = numbers[at..].iter().take_while(|n| **n == number).count();
            let rows = all.slice_rows(at, len);
            at += len;
            match &mut self.open {
                Some((open, chunk)) if *open == number => {
                    chunk.pieces.extend(rows.pieces);
                    rows.runs.into_iter().for_each(|r| push_run(&mut chunk.runs, r));
                }
                open => {
                    if let Some((number, chunk)) = open.replace((number, rows)) {
                        self.shape.join(&mut out, closed(number, chunk));
                    }
                }
            }
        }
        Ok(out)
    }
}

impl SetShape {
    /// Appends an element to the last chunk if several elements may share one.
    fn join(&self, out: &mut Vec<Chunk>, element: Chunk) {
        let (Some(last), false) = (out.last_mut().filter(|l| !l.remainder), self.padded || element.remainder)
        else {
            return out.push(element);
        };
        let (Elements::Lengths(have), Elements::Lengths(more)) = (&mut last.elements, &element.elements)
        else {
            return out.push(element);
        };
        have.extend(more);
        last.pieces.extend(element.pieces);
        element.runs.into_iter().for_each(|r| push_run(&mut last.runs, r));
    }
}

fn closed(number: u32, mut chunk: Chunk) -> Chunk {
    chunk.elements = Elements::Lengths(vec![u32::try_from(chunk.rows()).unwrap_or(u32::MAX)]);
    chunk.remainder = number >= REMAINDER;
    chunk
}

#[cfg(test)]
mod tests {
    use arrow_array::Int64Array;
    use proptest::prelude::*;

    use super::*;

    fn chunk(ids: Vec<i64>, runs: Vec<Run>, elements: Elements, remainder: bool) -> Chunk {
        let ids: ArrayRef = Arc::new(Int64Array::from(ids));
        let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
        Chunk { elements, remainder, ..Chunk::rows_of(batch, runs) }
    }

    /// The ids and provenance of an element's rows, and whether it is a remainder.
    type Element = (Vec<i64>, Vec<(u64, u64)>, bool);

    fn elements_of(chunks: &[Chunk]) -> Vec<Element> {
        let mut out = Vec::new();
        for c in chunks {
            let ids = c
                .concat()
                .unwrap()
                .column(0)
                .as_primitive::<arrow_array::types::Int64Type>()
                .values()
                .to_vec();
            let provenance: Vec<_> =
                c.runs.iter().flat_map(|r| (r.start..r.start + r.len).map(|o| (r.split, o))).collect();
            let lengths = match &c.elements {
                Elements::Rows => vec![1; ids.len()],
                Elements::Lengths(l) => l.iter().map(|l| *l as usize).collect(),
            };
            let mut at = 0;
            for len in lengths {
                out.push((ids[at..at + len].to_vec(), provenance[at..at + len].to_vec(), c.remainder));
                at += len;
            }
        }
        out
    }

    proptest! {
        /// However the store cuts the rows, elements and provenance come back.
        #[test]
        fn elements_come_back(
            lengths in prop::collection::vec(1usize..6, 1..20),
            cut in 1usize..9,
            batched: bool,
            padded: bool,
            rest: bool,
        ) {
            let shape = SetShape { batched, padded, cut: false, variant: String::new() };
            let (mut chunks, mut at) = (Vec::new(), 0u64);
            let last = lengths.len() - 1;
            for (i, len) in lengths.iter().enumerate() {
                let ids = (at..at + *len as u64).map(u64::cast_signed).collect();
                let runs: Vec<_> = (at..at + *len as u64).map(|o| Run { split: 70 + o % 3, start: o / 3, len: 1 }).collect();
                let elements = if batched { Elements::Lengths(vec![u32::try_from(*len).unwrap()]) } else { Elements::Rows };
                chunks.push(chunk(ids, runs, elements, batched && rest && i == last));
                at += *len as u64;
            }
            let plain = chunks[0].schema();
            let mut encoder = ProvenanceEncoder::new(with_provenance(&plain, &shape), &shape);
            let numbers = HashMap::from([(70, 0), (71, 1), (72, 2)]);
            let stored: Vec<_> = chunks.iter().flat_map(|c| encoder.encode(c, &numbers).unwrap()).collect();
            let stored = arrow::compute::concat_batches(&encoder.schema, &stored).unwrap();
            let splits = StoredSplits::new([70, 71, 72].into_iter().map(|lease| (lease, None)));
            let mut decoder = ProvenanceDecoder::new(plain, shape, splits);
            let mut back = Vec::new();
            for at in (0..stored.num_rows()).step_by(cut) {
                back.extend(decoder.push(&stored.slice(at, cut.min(stored.num_rows() - at))).unwrap());
            }
            back.extend(decoder.finish());
            prop_assert_eq!(elements_of(&back), elements_of(&chunks));
        }
    }
}
