//! Chunks: rows with their provenance, and the elements that they form.

use arrow::array::ArrayData;
use arrow::compute::{concat_batches, take_record_batch};
use arrow_array::cast::AsArray;
use arrow_array::types::ByteArrayType;
use arrow_array::{Array, ArrayRef, GenericByteArray, OffsetSizeTrait, RecordBatch, UInt32Array};
use arrow_buffer::ArrowNativeType;
use arrow_schema::{DataType, SchemaRef};
use caju_types::{Error, Result};

/// Consecutive rows of one split's split-local output.
///
/// The ordinal counts the rows that the split-local stages put out for the split. It does not depend on batch sizes, workers
/// or failures, so a set of runs says exactly which rows were delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The split's index in the iteration.
    pub split: u64,
    /// Ordinal of the first row.
    pub start: u64,
    /// Number of rows.
    pub len: u64,
}

/// How the rows of a chunk form elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Every row is one element (above `batch`).
    Rows,
    /// Consecutive rows form elements of these lengths, in rows (below `batch`).
    Lengths(Vec<u32>),
}

impl Elements {
    /// The elements of the given rows, as (offset, length) in ascending order. Empty ones are dropped.
    #[must_use]
    pub fn only_rows(&self, parts: &[(usize, usize)]) -> Self {
        let Self::Lengths(lengths) = self else { return Self::Rows };
        let (mut start, mut first, mut left) = (0usize, 0usize, Vec::with_capacity(lengths.len()));
        for length in lengths {
            let end = start + *length as usize;
            let mut rows = 0usize;
            while let Some(&(offset, len)) = parts.get(first) {
                rows += (offset + len).min(end).saturating_sub(offset.max(start));
                if offset + len > end {
                    break;
                }
                first += 1;
            }
            if rows > 0 {
                left.push(u32::try_from(rows).unwrap_or(u32::MAX));
            }
            start = end;
        }
        Self::Lengths(left)
    }
}

/// The position of a chunk in the rounds of a job whose consumers read in rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundMark {
    /// The class of `bucket_by_length` that all rows belong to; none without that stage.
    pub bucket: Option<u32>,
    /// Of a task's remainder: its place among the last rounds of the epoch, from 1. 0 for everything else.
    pub remainder_round: u64,
}

/// Rows with their provenance.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// The rows in order, in several pieces if a batch was assembled without copying. Never empty; all of one schema.
    pub pieces: Vec<RecordBatch>,
    /// The provenance of exactly the rows of `pieces`, in the same order. Empty for padding: copies of rows that another
    /// consumer of the job gets.
    pub runs: Vec<Run>,
    /// Which rows form elements.
    pub elements: Elements,
    /// Whether this is the short batch at the end of a task, which the reader merges with those of other tasks.
    pub remainder: bool,
    /// Its place in the rounds of consumers.
    pub round: RoundMark,
}

impl Chunk {
    /// A chunk of rows that are elements by themselves.
    pub fn rows_of(batch: RecordBatch, runs: Vec<Run>) -> Self {
        Self {
            pieces: vec![batch],
            runs,
            elements: Elements::Rows,
            remainder: false,
            round: RoundMark::default(),
        }
    }

    /// Whether these rows are copies of rows that another consumer gets.
    pub fn is_padding(&self) -> bool {
        self.runs.is_empty() && self.rows() > 0
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.pieces.iter().map(RecordBatch::num_rows).sum()
    }

    /// The number of elements.
    pub fn num_elements(&self) -> usize {
        match &self.elements {
            Elements::Rows => self.rows(),
            Elements::Lengths(l) => l.len(),
        }
    }

    /// The bytes of the rows: the sum of the sliced sizes.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(batch_bytes).sum()
    }

    /// The schema of the rows.
    pub fn schema(&self) -> SchemaRef {
        self.pieces[0].schema()
    }

    /// The rows as one batch; copies only if there are several pieces.
    ///
    /// # Errors
    /// `ResourceExhausted` if the rows do not fit one Arrow array (offset overflow).
    pub fn concat(&self) -> Result<RecordBatch> {
        if let [one] = self.pieces.as_slice() {
            return Ok(one.clone());
        }
        concat_batches(&self.schema(), &self.pieces).map_err(|e| {
            Error::exhausted(format!(
                "a batch of {} rows does not fit one Arrow array: {e}; use a smaller `batch`",
                self.rows()
            ))
        })
    }

    /// Rows `offset..offset + len` without copying. The caller slices chunks of rows, or at the borders of elements.
    #[must_use]
    pub fn slice_rows(&self, offset: usize, len: usize) -> Self {
        let mut pieces = Vec::new();
        let (mut at, end) = (0, offset + len);
        for p in &self.pieces {
            let (s, e) = (offset.max(at), end.min(at + p.num_rows()));
            if s < e {
                pieces.push(p.slice(s - at, e - s));
            }
            at += p.num_rows();
        }
        if pieces.is_empty() {
            pieces.push(self.pieces[0].slice(0, 0));
        }
        Self {
            pieces,
            runs: slice_runs(&self.runs, offset, len),
            elements: Elements::Rows,
            remainder: self.remainder,
            round: self.round,
        }
    }

    /// The given elements, counted from 0, in the given order. Rows that are elements are copied; batches keep their pieces.
    ///
    /// # Errors
    /// `ResourceExhausted` if the rows do not fit one Arrow array (offset overflow).
    pub fn pick_elements(&self, picked: &[usize]) -> Result<Self> {
        let bad = || Error::internal("an element of a chunk is picked that is not there");
        if self.elements == Elements::Rows {
            let index: Option<Vec<u32>> = picked.iter().map(|at| u32::try_from(*at).ok()).collect();
            let batch = self.concat()?;
            let index = index.filter(|all| all.iter().all(|at| (*at as usize) < batch.num_rows()));
            let index = UInt32Array::from(index.ok_or_else(bad)?);
            let rows = take_record_batch(&batch, &index).map_err(|e| {
                Error::exhausted(format!("the rows of a round do not fit one Arrow array: {e}"))
            })?;
            let mut runs = Vec::new();
            let rows_of = |run: &Run| {
                (run.start..run.start + run.len).map({
                    let split = run.split;
                    move |start| Run { split, start, len: 1 }
                })
            };
            let all: Vec<Run> = self.runs.iter().flat_map(rows_of).collect();
            picked.iter().filter_map(|at| all.get(*at)).for_each(|run| push_run(&mut runs, *run));
            return Ok(Self { pieces: vec![rows], runs, ..self.clone() });
        }
        let Elements::Lengths(lengths) = &self.elements else { return Err(bad()) };
        let mut starts = Vec::with_capacity(lengths.len());
        let mut at = 0usize;
        for len in lengths {
            starts.push(at);
            at += *len as usize;
        }
        let (mut pieces, mut runs, mut own) = (Vec::new(), Vec::new(), Vec::with_capacity(picked.len()));
        for element in picked {
            let (Some(start), Some(len)) = (starts.get(*element), lengths.get(*element)) else {
                return Err(bad());
            };
            let part = self.slice_rows(*start, *len as usize);
            pieces.extend(part.pieces);
            part.runs.into_iter().for_each(|run| push_run(&mut runs, run));
            own.push(*len);
        }
        if pieces.is_empty() {
            return Err(bad());
        }
        Ok(Self { pieces, runs, elements: Elements::Lengths(own), ..self.clone() })
    }

    /// The given rows, as (offset, length) in ascending order. Elements keep their remaining rows; empty ones are dropped.
    #[must_use]
    pub fn only_rows(&self, parts: &[(usize, usize)]) -> Option<Self> {
        let (mut pieces, mut runs) = (Vec::new(), Vec::new());
        for &(offset, len) in parts.iter().filter(|p| p.1 > 0) {
            let part = self.slice_rows(offset, len);
            pieces.extend(part.pieces);
            runs.extend(part.runs);
        }
        if pieces.is_empty() {
            return None;
        }
        let elements = self.elements.only_rows(parts);
        Some(Self { pieces, runs, elements, remainder: self.remainder, round: self.round })
    }
}

/// The runs of rows `offset..offset + len`.
pub fn slice_runs(runs: &[Run], offset: usize, len: usize) -> Vec<Run> {
    let (offset, end) = (offset as u64, (offset + len) as u64);
    let mut out = Vec::new();
    let mut at = 0u64;
    for r in runs {
        let (s, e) = (offset.max(at), end.min(at + r.len));
        if s < e {
            push_run(&mut out, Run { split: r.split, start: r.start + (s - at), len: e - s });
        }
        at += r.len;
        if at >= end {
            break;
        }
    }
    out
}

/// Appends a run, merged with the last one if it continues it.
pub fn push_run(runs: &mut Vec<Run>, run: Run) {
    if run.len == 0 {
        return;
    }
    if let Some(last) = runs.last_mut()
        && last.split == run.split
        && last.start + last.len == run.start
    {
        last.len += run.len;
        return;
    }
    runs.push(run);
}

/// The bytes of a batch's rows; slices count by their own length.
pub fn batch_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|c| column_bytes(c)).sum()
}

/// The bytes of a batch's rows as if each had its own texts: a dictionary of a file, which many batches share, counts by the rows.
pub fn plain_bytes(batch: &RecordBatch) -> usize {
    let of_column = |column: &ArrayRef| match column.as_any_dictionary_opt() {
        Some(dictionary) => {
            let values = dictionary.values();
            column_bytes(dictionary.keys()) + column_bytes(values) * column.len() / values.len().max(1)
        }
        None => column_bytes(column),
    };
    batch.columns().iter().map(of_column).sum()
}

/// The bytes of a slice of a batch. Columns of texts and bytes count by their own length. Nested, dictionary and view columns
/// count by the number of rows, because a slice of lists reports the bytes of all lists.
pub fn part_bytes(batch: &RecordBatch, part: &RecordBatch) -> usize {
    let columns = batch.columns().iter().zip(part.columns());
    let shares = |of: &DataType| {
        let refers = matches!(of, DataType::Dictionary(..) | DataType::Utf8View | DataType::BinaryView);
        refers || of.is_nested() || matches!(of, DataType::RunEndEncoded(..))
    };
    let bytes = columns.map(|(all, some)| match shares(all.data_type()) {
        true => column_bytes(all) * some.len() / all.len().max(1),
        false => column_bytes(some),
    });
    bytes.sum()
}

/// The bytes of a column's own values: [`array_bytes`] without the `ArrayData`, which allocates, where the type is a plain one.
/// Every queue counts the columns of every chunk.
fn column_bytes(column: &dyn Array) -> usize {
    fn own_bytes<T: ByteArrayType>(array: &GenericByteArray<T>) -> usize {
        let offsets = array.value_offsets();
        let values =
            offsets.first().zip(offsets.last()).map_or(0, |(first, last)| last.as_usize() - first.as_usize());
        size_of_val(offsets) + values
    }
    let values = match column.data_type() {
        DataType::Utf8 => own_bytes(column.as_string::<i32>()),
        DataType::LargeUtf8 => own_bytes(column.as_string::<i64>()),
        DataType::Binary => own_bytes(column.as_binary::<i32>()),
        DataType::LargeBinary => own_bytes(column.as_binary::<i64>()),
        of_type => match of_type.primitive_width() {
            Some(width) => width * column.len(),
            None => return array_bytes(&column.to_data()),
        },
    };
    values + column.nulls().map_or(0, |_| column.len().div_ceil(8))
}

/// The bytes of an array's own values. Arrow counts the items of all lists for each slice of them.
fn array_bytes(data: &ArrayData) -> usize {
    let nulls = data.nulls().map_or(0, |_| data.len().div_ceil(8));
    let items = match data.data_type() {
        DataType::List(_) | DataType::Map(..) => items_bytes::<i32>(data),
        DataType::LargeList(_) => items_bytes::<i64>(data),
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or(0);
            let child = data.child_data().first();
            child.map(|c| array_bytes(&c.slice(data.offset() * size, data.len() * size)))
        }
        // Its columns are slices, too.
        DataType::Struct(_) => Some(data.child_data().iter().map(array_bytes).sum()),
        _ => None,
    };
    match items {
        Some(items) => nulls.saturating_add(items),
        None => data
            .get_slice_memory_size()
            .unwrap_or_else(|_| data.get_array_memory_size())
            .saturating_add(viewed_bytes(data)),
    }
}

/// The bytes of the offsets and items of lists; none if their offsets do not fit their items.
fn items_bytes<O: OffsetSizeTrait>(data: &ArrayData) -> Option<usize> {
    let offsets = data.buffers().first().filter(|b| !b.is_empty()).map_or(&[][..], |_| data.buffer::<O>(0));
    let (start, end) = match data.len() {
        0 => (0, 0),
        len => (offsets.first()?.as_usize(), offsets.get(len)?.as_usize()),
    };
    let child = data.child_data().first()?;
    let length = end.checked_sub(start).filter(|_| end <= child.len())?;
    Some((data.len() + 1) * size_of::<O>() + array_bytes(&child.slice(start, length)))
}

/// The bytes of values that views refer to, which Arrow's sizes leave out. Shorter values are in the views themselves.
fn viewed_bytes(data: &ArrayData) -> usize {
    /// Bytes of the longest value that is in its view: a view has 16 bytes, and 4 of them are the length (Arrow's format).
    const MAX_INLINE: usize = 12;
    match data.data_type() {
        DataType::Utf8View | DataType::BinaryView => {
            // The lower 32 bits of a view are the length of its value.
            let lengths =
                data.buffer::<u128>(0).iter().take(data.len()).map(|view| (*view & 0xffff_ffff) as usize);
            lengths.filter(|length| *length > MAX_INLINE).sum()
        }
        _ => data.child_data().iter().map(viewed_bytes).sum(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::compute::cast;
    use arrow_array::{
        ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Decimal128Array, FixedSizeListArray,
        Int64Array, ListArray, StringArray, StructArray, UInt8Array, new_empty_array,
    };
    use arrow_buffer::OffsetBuffer;
    use arrow_schema::Field;

    use super::*;

    /// Slices of a batch count what the batch counts, together.
    #[test]
    fn slices_of_lists_count_their_own_items() {
        let lists = |rows: usize| {
            let values = Int64Array::from_iter_values(0..(rows * rows) as i64);
            let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(rows, rows));
            let item = Arc::new(Field::new_list_field(DataType::Int64, true));
            ListArray::new(item, offsets, Arc::new(values), None)
        };
        let fixed = |rows: usize| {
            let item = Arc::new(Field::new_list_field(DataType::UInt8, true));
            let values = UInt8Array::from(vec![7; rows * 100]);
            FixedSizeListArray::new(item, 100, Arc::new(values), None)
        };
        let nested = StructArray::from(vec![(
            Arc::new(Field::new("x", lists(64).data_type().clone(), true)),
            Arc::new(lists(64)) as ArrayRef,
        )]);
        let columns: [(ArrayRef, usize); 3] = [
            (Arc::new(lists(64)), 64 * 64 * 8),
            (Arc::new(fixed(64)), 64 * 100),
            (Arc::new(nested), 64 * 64 * 8),
        ];
        for (column, values) in columns {
            let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
            let offsets = batch_bytes(&batch) - values;
            assert!(offsets <= 65 * 4, "{offsets}");
            for rows in [1, 3, 16] {
                let parts: usize =
                    (0..64).step_by(rows).map(|at| batch_bytes(&batch.slice(at, rows.min(64 - at)))).sum();
                assert!((values..=values + 64 * 8).contains(&parts), "{parts} in slices of {rows}");
            }
            assert!(batch_bytes(&batch.slice(5, 0)) <= 8);
        }
    }

    /// The sizes that need no `ArrayData` are those of the `ArrayData`.
    #[test]
    fn columns_of_plain_types_count_as_their_data_does() {
        let texts: Vec<Option<String>> = (0..100).map(|n| (n % 7 != 0).then(|| "x".repeat(n))).collect();
        let text = StringArray::from(texts);
        let of_text = |to: DataType| cast(&text, &to).unwrap();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter((0..100).map(|n| (n % 3 != 0).then_some(n)))),
            Arc::new(UInt8Array::from(vec![7; 100])),
            Arc::new(Decimal128Array::from([Some(1), None].repeat(50))),
            Arc::new(BooleanArray::from(vec![true; 100])),
            of_text(DataType::Utf8),
            of_text(DataType::LargeUtf8),
            of_text(DataType::Binary),
            of_text(DataType::LargeBinary),
            new_empty_array(&DataType::Utf8),
        ];
        for column in columns {
            for (at, rows) in [(0, column.len()), (column.len() / 3, column.len() / 2), (column.len(), 0)] {
                let part = column.slice(at, rows);
                assert_eq!(
                    column_bytes(&part),
                    array_bytes(&part.to_data()),
                    "{} {at} {rows}",
                    part.data_type()
                );
            }
        }
    }

    #[test]
    fn values_behind_views_count() {
        let values: Vec<Vec<u8>> = (0..100).map(|n| vec![n; 1000]).collect();
        let batch = |column: ArrayRef| RecordBatch::try_from_iter([("x", column)]).unwrap();
        let plain = batch(Arc::new(BinaryArray::from_iter_values(&values)));
        let views = batch(Arc::new(BinaryViewArray::from_iter_values(&values)));
        let (plain, of_views) = (batch_bytes(&plain), batch_bytes(&views));
        assert!(
            (100_000..105_000).contains(&of_views) && plain.abs_diff(of_views) < 2_000,
            "{plain}, {of_views}"
        );
        let part = batch_bytes(&views.slice(10, 5));
        assert!((5_000..6_000).contains(&part), "{part}");
        let short = batch(Arc::new(BinaryViewArray::from_iter_values([[1u8; 12]; 10])));
        assert_eq!(batch_bytes(&short), 160 + short.column(0).nulls().map_or(0, |_| 2));
    }
}
