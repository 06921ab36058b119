//! The checksum of delivered rows. It does not depend on the order of rows, the batches or the workers.
//!
//! It is the wrapping 128-bit sum, over all rows, of xxh3-128 (seed 0) of the row's canonical encoding,
//! written as 32 hexadecimal digits, most significant first. It is a sum and not a xor, so that a duplicate row changes it.
//!
//! # The canonical encoding of a row
//!
//! The columns in the order of the schema, each a *tagged value*. Names and metadata do not enter.
//!
//! - A tagged value is the byte 0 for null, else the byte 1 and the value.
//! - Booleans: one byte, 0 or 1. Integers, decimals, dates, times, timestamps, durations, intervals: their
//!   bytes in the type's width, little-endian. Floats: likewise their bits, every NaN as the quiet NaN
//!   without sign and payload. Fixed-size binary: its bytes.
//! - Strings and binary values (also the large and the view kinds): length as u64 little-endian, then the
//!   bytes.
//! - Lists (also large and fixed-size ones, hence tensors; maps are lists of their entries): the number of
//!   items as u64 little-endian; a byte that is 1 if any item is null, else 0; then the items one after
//!   another, tagged if that byte is 1, bare values if it is 0.
//! - Structs: the fields in order, each tagged. Dictionaries: the value of the key.
//!
//! Padding does not enter: in definitions with `padded_batch` or a padding `bucket_by_length`, trailing items
//! of list columns that equal the padding value are left out, because how many there are depends on which
//! rows share a batch. A null list, which padding turns into a list of padding, counts as an empty one there.

use std::collections::BTreeMap;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryViewArray, RecordBatch};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer};
use arrow_schema::DataType;
use caju_pipeline::{DatasetDef, StageOp};
use caju_types::{Error, Result, hash128};
use xxhash_rust::xxh3::Xxh3;

/// Sums up rows.
///
/// ```
/// # use std::sync::Arc;
/// # use arrow_array::{ArrayRef, Int64Array, RecordBatch};
/// use caju_wire::checksum::RowsChecksum;
///
/// let ids = |v: Vec<i64>| RecordBatch::try_from_iter([("id", Arc::new(Int64Array::from(v)) as ArrayRef)]).unwrap();
/// let (mut a, mut b) = (RowsChecksum::default(), RowsChecksum::default());
/// a.update(&ids(vec![1, 2, 3])).unwrap();
/// b.update(&ids(vec![3])).unwrap();
/// b.update(&ids(vec![2, 1])).unwrap();
/// assert_eq!(a.hex(), b.hex());
/// b.update(&ids(vec![1])).unwrap();
/// assert_ne!(a.hex(), b.hex());
/// ```
#[derive(Debug, Clone, Default)]
pub struct RowsChecksum {
    sum: u128,
    rows: u64,
    padding: Option<BTreeMap<String, serde_json::Value>>,
}

impl RowsChecksum {
    /// The checksum of the rows of a definition, which knows about its padding.
    pub fn for_definition(def: &DatasetDef) -> Self {
        let padding = def.stages.iter().rev().find_map(|s| match &s.op {
            StageOp::PaddedBatch { values, .. } => Some(values.clone()),
            StageOp::BucketByLength { pad: true, .. } => Some(BTreeMap::new()),
            _ => None,
        });
        Self { padding, ..Self::default() }
    }

    /// Adds the rows of a batch.
    ///
    /// # Errors
    /// `Unimplemented` for a column of a type that is never delivered (unions, run-end encoding).
    pub fn update(&mut self, batch: &RecordBatch) -> Result<()> {
        let schema = batch.schema();
        let columns = schema
            .fields()
            .iter()
            .zip(batch.columns())
            .map(|(field, array)| {
                let mut column =
                    Column::new(array).map_err(|e| e.context(format!("column `{}`", field.name())))?;
                if let Some(values) = &self.padding {
                    column.strip = padding_of(array.data_type(), values.get(field.name()));
                }
                Ok(column)
            })
            .collect::<Result<Vec<_>>>()?;
        let mut row = RowHash::default();
        for i in 0..batch.num_rows() {
            for column in &columns {
                column.tagged(i, &mut row);
            }
            self.sum = self.sum.wrapping_add(row.finish());
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    /// Adds the rows of another sum.
    pub fn add(&mut self, other: &RowsChecksum) {
        self.sum = self.sum.wrapping_add(other.sum);
        self.rows += other.rows;
    }

    /// A sum of no rows that treats padding alike: for parts that are computed apart and added.
    #[must_use]
    pub fn empty(&self) -> Self {
        Self { sum: 0, rows: 0, padding: self.padding.clone() }
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The sum.
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// The sum as 32 hexadecimal digits.
    pub fn hex(&self) -> String {
        format!("{:032x}", self.sum)
    }
}

/// Pieces at least this long are hashed where they lie; shorter ones are gathered first.
const LONG: usize = 1024;

/// The hash of one row after another, over the concatenation of the pieces put in.
#[derive(Default)]
struct RowHash {
    pending: Vec<u8>,
    long: Option<Box<Xxh3>>,
    streaming: bool,
}

impl RowHash {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if bytes.len() < LONG {
            self.pending.extend_from_slice(bytes);
            return;
        }
        let hasher = self.long.get_or_insert_with(|| Box::new(Xxh3::new()));
        if !self.streaming {
            hasher.reset();
            self.streaming = true;
        }
        hasher.update(&self.pending);
        hasher.update(bytes);
        self.pending.clear();
    }

    #[inline]
    fn put_len(&mut self, len: usize) {
        self.pending.extend_from_slice(&(len as u64).to_le_bytes());
    }

    /// The hash of what was put in; ready for the next row.
    fn finish(&mut self) -> u128 {
        let hash = match &mut self.long {
            Some(hasher) if self.streaming => {
                hasher.update(&self.pending);
                hasher.digest128()
            }
            _ => hash128(&self.pending),
        };
        self.streaming = false;
        self.pending.clear();
        hash
    }
}

/// A column, ready to be encoded value by value.
struct Column {
    nulls: Option<NullBuffer>,
    values: Values,
    /// For list columns of padded definitions: the encoding of the padding value, left out at the end.
    strip: Option<Vec<u8>>,
}

enum Values {
    Null,
    Bool(BooleanBuffer),
    Fixed {
        bytes: Buffer,
        width: usize,
        float: bool,
    },
    /// Offsets, one more than values.
    Variable {
        offsets: Vec<usize>,
        bytes: Buffer,
    },
    View(BinaryViewArray),
    /// Offsets into the items.
    List {
        offsets: Vec<usize>,
        items: Box<Column>,
    },
    /// This many items each, the first at the given index.
    FixedList {
        size: usize,
        items: Box<Column>,
    },
    Struct(Vec<Column>),
    Dictionary {
        keys: Vec<usize>,
        values: Box<Column>,
    },
}

fn offsets<O: ArrowNativeType>(offsets: &[O]) -> Vec<usize> {
    offsets.iter().map(|o| o.as_usize()).collect()
}

impl Column {
    fn new(array: &ArrayRef) -> Result<Self> {
        let values = match array.data_type() {
            DataType::Null => Values::Null,
            DataType::Boolean => Values::Bool(array.as_boolean().values().clone()),
            DataType::Utf8 => {
                let a = array.as_string::<i32>();
                Values::Variable { offsets: offsets(a.value_offsets()), bytes: a.values().clone() }
            }
            DataType::LargeUtf8 => {
                let a = array.as_string::<i64>();
                Values::Variable { offsets: offsets(a.value_offsets()), bytes: a.values().clone() }
            }
            DataType::Binary => {
                let a = array.as_binary::<i32>();
                Values::Variable { offsets: offsets(a.value_offsets()), bytes: a.values().clone() }
            }
            DataType::LargeBinary => {
                let a = array.as_binary::<i64>();
                Values::Variable { offsets: offsets(a.value_offsets()), bytes: a.values().clone() }
            }
            DataType::Utf8View => Values::View(array.as_string_view().clone().to_binary_view()),
            DataType::BinaryView => Values::View(array.as_binary_view().clone()),
            DataType::List(_) => {
                let a = array.as_list::<i32>();
                Values::List { offsets: offsets(a.value_offsets()), items: Box::new(Self::new(a.values())?) }
            }
            DataType::LargeList(_) => {
                let a = array.as_list::<i64>();
                Values::List { offsets: offsets(a.value_offsets()), items: Box::new(Self::new(a.values())?) }
            }
            DataType::Map(_, _) => {
                let a = array.as_map();
                let entries: ArrayRef = std::sync::Arc::new(a.entries().clone());
                Values::List { offsets: offsets(a.value_offsets()), items: Box::new(Self::new(&entries)?) }
            }
            DataType::FixedSizeList(_, size) => {
                let a = array.as_fixed_size_list();
                let size = usize::try_from(*size).unwrap_or(0);
                Values::FixedList { size, items: Box::new(Self::new(a.values())?) }
            }
            DataType::Struct(_) => {
                Values::Struct(array.as_struct().columns().iter().map(Self::new).collect::<Result<_>>()?)
            }
            DataType::Dictionary(_, _) => {
                let a = array.as_any_dictionary();
                // The library refuses to read keys of a dictionary without values: all of them are null.
                let keys = if a.values().is_empty() { vec![0; array.len()] } else { a.normalized_keys() };
                Values::Dictionary { keys, values: Box::new(Self::new(a.values())?) }
            }
            other => fixed(array, other)?,
        };
        // A dictionary may hold nulls among its values; its own are those of the keys.
        Ok(Self { nulls: array.nulls().cloned(), values, strip: None })
    }

    #[inline]
    fn is_null(&self, i: usize) -> bool {
        self.nulls.as_ref().is_some_and(|n| n.is_null(i))
            || match &self.values {
                Values::Null => true,
                Values::Dictionary { keys, values } => values.is_null(keys[i]),
                _ => false,
            }
    }

    fn tagged(&self, i: usize, row: &mut RowHash) {
        if self.is_null(i) && self.strip.is_none() {
            row.put(&[0]);
        } else {
            row.put(&[1]);
            self.value(i, row);
        }
    }

    fn value(&self, i: usize, row: &mut RowHash) {
        match &self.values {
            Values::Null => {}
            Values::Bool(bits) => row.put(&[u8::from(bits.value(i))]),
            Values::Fixed { width, .. } => self.run(i, i + 1, *width, row),
            Values::Variable { offsets, bytes } => {
                let bytes = &bytes[offsets[i]..offsets[i + 1]];
                row.put_len(bytes.len());
                row.put(bytes);
            }
            Values::View(a) => {
                let bytes = a.value(i);
                row.put_len(bytes.len());
                row.put(bytes);
            }
            Values::List { offsets, items } => {
                // A null list may have items in the child array, which do not count.
                let end = if self.is_null(i) { offsets[i] } else { offsets[i + 1] };
                items.list(offsets[i], end, self.strip.as_deref(), row);
            }
            Values::FixedList { size, items } => {
                items.list(i * size, (i + 1) * size, self.strip.as_deref(), row);
            }
            Values::Struct(fields) => fields.iter().for_each(|f| f.tagged(i, row)),
            Values::Dictionary { keys, values } => values.value(keys[i], row),
        }
    }

    /// Items `start..end` of a list of which this column holds the items.
    fn list(&self, start: usize, mut end: usize, strip: Option<&[u8]>, row: &mut RowHash) {
        if let Some(pad) = strip {
            while end > start && self.equals(end - 1, pad) {
                end -= 1;
            }
        }
        row.put_len(end - start);
        let any_null = (self.nulls.is_some()
            || matches!(self.values, Values::Null | Values::Dictionary { .. }))
            && (start..end).any(|i| self.is_null(i));
        row.put(&[u8::from(any_null)]);
        match &self.values {
            _ if any_null => (start..end).for_each(|i| self.tagged(i, row)),
            Values::Fixed { width, .. } => self.run(start, end, *width, row),
            _ => (start..end).for_each(|i| self.value(i, row)),
        }
    }

    /// Fixed-width values in one piece.
    fn run(&self, start: usize, end: usize, width: usize, row: &mut RowHash) {
        let Values::Fixed { bytes, float, .. } = &self.values else { return };
        let bytes = &bytes[start * width..end * width];
        if *float && any_nan(bytes, width) {
            row.put(&quiet_nans(bytes, width));
        } else {
            row.put(bytes);
        }
    }

    /// Whether a value's encoding is this one.
    fn equals(&self, i: usize, encoding: &[u8]) -> bool {
        if self.is_null(i) {
            return false;
        }
        if let Values::Fixed { bytes, width, .. } = &self.values {
            return bytes[i * width..(i + 1) * width] == *encoding;
        }
        let mut row = RowHash::default();
        self.value(i, &mut row);
        !row.streaming && row.pending == encoding
    }
}

/// Types whose values lie side by side in one buffer.
fn fixed(array: &ArrayRef, dtype: &DataType) -> Result<Values> {
    let width = match dtype {
        DataType::FixedSizeBinary(n) => usize::try_from(*n).ok(),
        other => other.primitive_width(),
    };
    let Some(width) = width else {
        return Err(Error::unimplemented(format!(
            "rows_checksum of type {dtype}; cast it, or use --no-checksum"
        )));
    };
    let data = array.to_data();
    let bytes = data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width);
    Ok(Values::Fixed { bytes, width, float: dtype.is_floating() })
}

fn any_nan(bytes: &[u8], width: usize) -> bool {
    // No early exit: the loop over whole blocks becomes vector code.
    match width {
        8 => bytes.chunks_exact(8).fold(false, |nan, b| nan | nan64(b)),
        4 => bytes.chunks_exact(4).fold(false, |nan, b| nan | nan32(b)),
        _ => bytes.chunks_exact(2).fold(false, |nan, b| nan | nan16(b)),
    }
}

fn nan64(b: &[u8]) -> bool {
    f64::from_le_bytes(std::array::from_fn(|i| b[i])).is_nan()
}

fn nan32(b: &[u8]) -> bool {
    f32::from_le_bytes(std::array::from_fn(|i| b[i])).is_nan()
}

fn nan16(b: &[u8]) -> bool {
    u16::from_le_bytes([b[0], b[1]]) & 0x7FFF > 0x7C00
}

fn quiet_nans(bytes: &[u8], width: usize) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for b in out.chunks_exact_mut(width) {
        match width {
            8 if nan64(b) => b.copy_from_slice(&0x7FF8_0000_0000_0000u64.to_le_bytes()),
            4 if nan32(b) => b.copy_from_slice(&0x7FC0_0000u32.to_le_bytes()),
            2 if nan16(b) => b.copy_from_slice(&0x7E00u16.to_le_bytes()),
            _ => {}
        }
    }
    out
}

/// The encoding of the padding of a list column; none for columns that padding leaves alone.
#[expect(clippy::cast_possible_truncation, reason = "the padding of a float32 column is rounded likewise")]
fn padding_of(dtype: &DataType, value: Option<&serde_json::Value>) -> Option<Vec<u8>> {
    let (DataType::List(item) | DataType::LargeList(item)) = dtype else { return None };
    let int = value.map_or(Some(0), serde_json::Value::as_i64);
    let float = value.map_or(Some(0.0), serde_json::Value::as_f64);
    let text = value.map_or(Some(""), serde_json::Value::as_str);
    Some(match item.data_type() {
        DataType::Int64 => int?.to_le_bytes().to_vec(),
        DataType::Int32 => i32::try_from(int?).ok()?.to_le_bytes().to_vec(),
        DataType::UInt8 => vec![u8::try_from(int?).ok()?],
        DataType::Float64 => float?.to_le_bytes().to_vec(),
        DataType::Float32 => (float? as f32).to_le_bytes().to_vec(),
        DataType::Boolean => vec![u8::from(value.map_or(Some(false), serde_json::Value::as_bool)?)],
        DataType::Utf8 | DataType::Utf8View | DataType::Binary => {
            let text = text?;
            [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
