//! Sources without files: `range`, and tables in memory.

use std::sync::Arc;

use arrow_array::{Array, Int64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt};

use crate::inline_table::InlineTable;
use crate::source::{ReadOptions, Source};
use crate::split::{KeyHasher, Split, SplitRange};
use crate::split_reader::{Rows, batch_of, failed};
use crate::trim::{sliced, trimmed};

/// Splits of a range, about: enough for some tens of workers.
const RANGE_SPLITS: u64 = 64;
/// The fewest and the most rows of a split of a range. The number is a power of two, so that a range whose end grows mostly
/// keeps its splits.
const RANGE_ROWS: (u64, u64) = (1 << 10, 1 << 18);

/// Rows of an in-memory source per split.
const MEMORY_ROWS: u64 = 1 << 16;

/// `start, start + step, ...` below `end`, in the column `id`.
#[derive(Debug)]
pub(crate) struct RangeSource {
    start: i64,
    step: i64,
    rows: u64,
    schema: SchemaRef,
}

impl RangeSource {
    pub(crate) fn new(start: i64, end: i64, step: i64) -> Result<Self> {
        if step == 0 {
            return Err(Error::invalid("source range: `step` is 0; give a distance between the values"));
        }
        let span =
            if step > 0 { i128::from(end) - i128::from(start) } else { i128::from(start) - i128::from(end) };
        let step_size = i128::from(step.unsigned_abs());
        let rows = if span <= 0 { 0 } else { (span + step_size - 1) / step_size };
        let rows = u64::try_from(rows).map_err(|e| Error::internal(e.to_string()))?;
        let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
        Ok(Self { start, step, rows, schema })
    }
}

/// A split of numbered rows under a key made from `key`.
fn row_split(key: KeyHasher, start: u64, end: u64) -> Split {
    let range = SplitRange::Rows { start, end };
    Split {
        child: Vec::new(),
        repetition: 0,
        key: key.range(&range).finish(),
        file: None,
        range,
        rows: Some(end - start),
        trim: None,
        stride: None,
    }
}

/// The rows `start..end` of a split of numbered rows, after its trim.
fn wanted(split: &Split) -> Result<(u64, u64)> {
    let SplitRange::Rows { start, end } = split.range else {
        return Err(Error::internal(format!("{}: not a split of rows", split.describe())));
    };
    let (skip, take) = split.trim.unwrap_or((0, u64::MAX));
    let start = start.saturating_add(skip).min(end);
    Ok((start, start.saturating_add(take).min(end)))
}

impl Source for RangeSource {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn splits(&self) -> BoxStream<'static, Result<Split>> {
        let (start, step, rows) = (self.start, self.step, self.rows);
        let size = (rows / RANGE_SPLITS).next_power_of_two().clamp(RANGE_ROWS.0, RANGE_ROWS.1);
        stream::iter((0..rows.div_ceil(size)).map(move |i| {
            let (a, b) = (i * size, rows.min((i + 1) * size));
            Ok(row_split(KeyHasher::new("range").value(start).value(step), a, b))
        }))
        .boxed()
    }

    fn read(&self, split: &Split, options: &ReadOptions) -> Rows {
        let (start, end) = match wanted(split) {
            Ok(w) => w,
            Err(e) => return failed(e),
        };
        let (first, step) = (self.start, self.step);
        let most = options.batch_rows.min(options.batch_bytes / 8).max(1) as u64;
        let none = options.projection.as_ref().is_some_and(Vec::is_empty);
        let schema = if none { Arc::new(Schema::empty()) } else { Arc::clone(&self.schema) };
        let batches = (0..(end - start).div_ceil(most)).map(move |i| {
            let a = start + i * most;
            let b = end.min(a + most);
            let rows = usize::try_from(b - a).map_err(|e| Error::internal(e.to_string()))?;
            // Row numbers stay below the number of values, so that no product leaves i64 (modulo 2^64).
            let base = first.wrapping_add(step.wrapping_mul(a.cast_signed()));
            let columns: Vec<Arc<dyn Array>> = if none {
                Vec::new()
            } else {
                let values = (0..rows as i64).map(|k| base.wrapping_add(k.wrapping_mul(step)));
                vec![Arc::new(Int64Array::from_iter_values(values))]
            };
            batch_of(&schema, columns, rows)
        });
        stream::iter(batches).boxed()
    }
}

/// Rows in memory: from the definition, or of a table that this process registered.
#[derive(Debug)]
pub(crate) struct MemorySource {
    rows: Arc<InlineTable>,
}

impl MemorySource {
    pub(crate) fn new(ipc: &Bytes, most: u64) -> Result<Self> {
        Ok(Self { rows: Arc::new(InlineTable::read(ipc.clone(), most)?) })
    }

    pub(crate) fn of(rows: Arc<InlineTable>) -> Self {
        Self { rows }
    }
}

impl Source for MemorySource {
    fn schema(&self) -> SchemaRef {
        self.rows.schema()
    }

    fn splits(&self) -> BoxStream<'static, Result<Split>> {
        let (hash, rows) = (caju_types::SplitKey(self.rows.hash()), self.rows.num_rows());
        stream::iter((0..rows.div_ceil(MEMORY_ROWS)).map(move |i| {
            let (a, b) = (i * MEMORY_ROWS, rows.min((i + 1) * MEMORY_ROWS));
            Ok(row_split(KeyHasher::new("memory").key(hash), a, b))
        }))
        .boxed()
    }

    fn read(&self, split: &Split, options: &ReadOptions) -> Rows {
        let (start, end) = match wanted(split) {
            Ok(w) => w,
            Err(e) => return failed(e),
        };
        let rows = Arc::clone(&self.rows);
        let all = stream::iter((0..rows.batches().len()).map(move |i| Ok(rows.batches()[i].clone()))).boxed();
        let options = options.clone();
        trimmed(all, Some((start, end - start)))
            .flat_map(move |batch| {
                let pieces = batch.and_then(|b| match &options.projection {
                    Some(p) => b.project(p).map_err(|e| Error::internal(e.to_string())),
                    None => Ok(b),
                });
                match pieces {
                    Ok(b) => {
                        let pieces = sliced(b, options.batch_rows, options.batch_bytes);
                        stream::iter(pieces.into_iter().map(Ok).collect::<Vec<_>>())
                    }
                    Err(e) => stream::iter(vec![Err(e)]),
                }
            })
            .boxed()
    }
}
