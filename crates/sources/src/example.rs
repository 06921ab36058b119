//! Parses tf.train.Example records: a protobuf reader that decodes the wire format directly into columns.
//!
//! An `Example` is a map from feature names to lists of bytes, floats or 64-bit integers. Records are
//! scanned once for the features that are asked for; then each column is built at its exact size.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::NullBufferBuilder;
use arrow_array::{Array, ArrayRef, BinaryArray, FixedSizeListArray, Float32Array, Int64Array, ListArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, FieldRef};
use caju_pipeline::{ColumnType, Feature, FeatureShape};
use caju_runtime::budget;
use caju_types::{Error, Result};

/// The field that a feature becomes: `Binary`, `Int64` or `Float32`, or a list or fixed-size list of them.
///
/// # Errors
/// `InvalidArgument` for any other type.
pub fn feature_field(name: &str, feature: &Feature) -> Result<Field> {
    let item = match feature.dtype {
        ColumnType::Bytes => DataType::Binary,
        ColumnType::Int64 => DataType::Int64,
        ColumnType::Float32 => DataType::Float32,
        other => {
            return Err(Error::invalid(format!(
                "feature `{name}`: a tf.train.Example holds bytes, int64 or float32, not {other:?}; convert it in a `map`"
            )));
        }
    };
    let data_type = match feature.shape {
        FeatureShape::Scalar => item,
        FeatureShape::List => DataType::List(list_item(item)),
        FeatureShape::Fixed(n) => {
            let n = i32::try_from(n).map_err(|_| {
                Error::invalid(format!("feature `{name}`: {n} values are more than a list can have"))
            })?;
            DataType::FixedSizeList(list_item(item), n)
        }
    };
    Ok(Field::new(name, data_type, true))
}

fn list_item(data_type: DataType) -> FieldRef {
    Arc::new(Field::new_list_field(data_type, true))
}

/// Parses serialised Examples into one array per feature, in the order given.
///
/// A feature that a record lacks, or that is empty where values are due, is null if it is `optional`. Otherwise
/// it is an error, and a list is empty, as TensorFlow's `FixedLenFeature` without a default and `VarLenFeature`
/// have it. If a record names a feature twice the last one counts, as there. Packed and unpacked lists are read
/// alike.
///
/// # Errors
/// The first row that cannot be parsed or lacks a feature, and why, naming the feature.
pub fn parse_example(
    records: &BinaryArray,
    features: &[(String, Feature)],
) -> Result<Vec<ArrayRef>, (usize, Error)> {
    let width = features.len();
    let cells = budget::product(&[width, records.len(), size_of::<Cell<'_>>()]);
    let what = format_args!("{} records of {width} features", records.len());
    budget::reserve(cells as u64, what).map_err(|e| (0, e))?;
    let (cells, rows, broken) = scan(records, features);
    let mut columns = Vec::with_capacity(width);
    let mut first: Option<(usize, Error)> = broken;
    for (i, (name, feature)) in features.iter().enumerate() {
        let cells = (0..rows).map(|r| cells[r * width + i]);
        match column(name, feature, cells) {
            Ok(array) => columns.push(array),
            Err((row, e)) if first.as_ref().is_none_or(|(r, _)| row < *r) => first = Some((row, e)),
            Err(_) => {}
        }
    }
    match first {
        Some(e) => Err(e),
        None => Ok(columns),
    }
}

type Cell<'a> = Option<&'a [u8]>;

/// The bytes of every feature's value in every record, up to the first record that is broken.
fn scan<'a>(
    records: &'a BinaryArray,
    features: &[(String, Feature)],
) -> (Vec<Cell<'a>>, usize, Option<(usize, Error)>) {
    let width = features.len();
    let index: HashMap<&[u8], usize> =
        features.iter().enumerate().map(|(i, (n, _))| (n.as_bytes(), i)).collect();
    let mut cells: Vec<Cell<'a>> = vec![None; width * records.len()];
    // Writers put features in the same order into every record: what the n-th entry was last time.
    let mut guesses: Vec<Option<usize>> = Vec::new();
    for row in 0..records.len() {
        let out = &mut cells[row * width..(row + 1) * width];
        let result = if records.is_null(row) {
            Err("it is null".to_string())
        } else {
            scan_record(records.value(row), features, &index, &mut guesses, out).map_err(str::to_string)
        };
        if let Err(why) = result {
            let e = Error::data_loss(format!("the record is not a valid tf.train.Example: {why}"));
            return (cells, row, Some((row, e)));
        }
    }
    (cells, records.len(), None)
}

fn scan_record<'a>(
    record: &'a [u8],
    features: &[(String, Feature)],
    index: &HashMap<&[u8], usize>,
    guesses: &mut Vec<Option<usize>>,
    out: &mut [Cell<'a>],
) -> Result<(), &'static str> {
    let mut entry = 0;
    let mut example = Wire(record);
    while let Some((tag, value)) = example.next()? {
        let (1, Value::Bytes(map)) = (tag, value) else { continue };
        let mut map = Wire(map);
        while let Some((tag, value)) = map.next()? {
            let (1, Value::Bytes(pair)) = (tag, value) else { continue };
            let (key, value) = key_and_value(pair)?;
            if guesses.len() <= entry {
                guesses.push(None);
            }
            let guess = guesses[entry].filter(|&i| features[i].0.as_bytes() == key);
            let found = guess.or_else(|| index.get(key).copied());
            if let Some(i) = found {
                out[i] = value;
            }
            guesses[entry] = found;
            entry += 1;
        }
    }
    Ok(())
}

fn key_and_value(pair: &[u8]) -> Result<(&[u8], Cell<'_>), &'static str> {
    let (mut key, mut value): (&[u8], Cell<'_>) = (&[], None);
    let mut pair = Wire(pair);
    while let Some((tag, v)) = pair.next()? {
        match (tag, v) {
            (1, Value::Bytes(b)) => key = b,
            (2, Value::Bytes(b)) => value = Some(b),
            _ => {}
        }
    }
    Ok((key, value))
}

/// One value on the wire.
enum Value<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Bytes(&'a [u8]),
    /// Of a type that no field of ours has.
    Other,
}

/// A cursor over the fields of one message.
struct Wire<'a>(&'a [u8]);

const CUT: &str = "it ends inside a field";

impl<'a> Wire<'a> {
    #[inline]
    fn varint(&mut self) -> Result<u64, &'static str> {
        let mut out = 0u64;
        for shift in (0..70).step_by(7) {
            let Some((&byte, rest)) = self.0.split_first() else { return Err(CUT) };
            self.0 = rest;
            out |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(out);
            }
        }
        Err("a number has more than ten bytes")
    }

    #[inline]
    fn take(&mut self, n: u64) -> Result<&'a [u8], &'static str> {
        let at = usize::try_from(n).map_err(|_| CUT)?;
        let (head, rest) = self.0.split_at_checked(at).ok_or(CUT)?;
        self.0 = rest;
        Ok(head)
    }

    #[inline]
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, &'static str> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Other
            }
            2 => {
                let n = self.varint()?;
                Value::Bytes(self.take(n)?)
            }
            5 => Value::Fixed32(self.take(4)?.try_into().map_err(|_| CUT)?),
            _ => return Err("it has a field of an unknown kind"),
        };
        if tag >> 3 == 0 {
            return Err("it has a field without a number");
        }
        Ok(Some((tag >> 3, value)))
    }
}

/// The field numbers of `Feature.kind`.
fn kind_of(dtype: ColumnType) -> (u64, &'static str) {
    match dtype {
        ColumnType::Bytes => (1, "bytes"),
        ColumnType::Float32 => (2, "float32"),
        _ => (3, "int64"),
    }
}

/// Why a value does not become a cell.
enum Bad {
    Wire(&'static str),
    Kind(u64),
}

impl From<&'static str> for Bad {
    fn from(why: &'static str) -> Self {
        Bad::Wire(why)
    }
}

/// Calls `each` for every element of the list in a feature's value. False if there is no list.
fn each_element<'a>(
    value: &'a [u8],
    kind: u64,
    mut each: impl FnMut(Value<'a>) -> Result<(), &'static str>,
) -> Result<bool, Bad> {
    // The last kind counts; lists of the same kind in a row are one list.
    let (mut last, mut run) = (0, value);
    let mut wire = Wire(value);
    loop {
        let before = wire.0;
        let Some((tag, _)) = wire.next()? else { break };
        if (1..=3).contains(&tag) && tag != last {
            (last, run) = (tag, before);
        }
    }
    if last == 0 {
        return Ok(false);
    }
    if last != kind {
        return Err(Bad::Kind(last));
    }
    let mut wire = Wire(run);
    while let Some((tag, list)) = wire.next()? {
        let Value::Bytes(list) = list else {
            if tag == kind {
                return Err(Bad::Wire("a list is not a message"));
            }
            continue;
        };
        if tag != kind {
            continue;
        }
        let mut list = Wire(list);
        while let Some((tag, element)) = list.next()? {
            if tag == 1 {
                each(element)?;
            }
        }
    }
    Ok(true)
}

/// The bytes of a feature's value from which on its values are counted before they are read. A chunk has no more bytes of
/// shorter ones than its reader asks for.
const LONG_BYTES: usize = 64 << 10;

/// The number of values in a long list of byte strings or integers, which take 2 bytes or 1 on the wire and 16 or 8 in memory. 0
/// for others.
fn values_of(value: &[u8], kind: u64) -> usize {
    match kind {
        _ if value.len() < LONG_BYTES => 0,
        1 => {
            let mut values = 0;
            // What cannot be read is reported by whoever reads it.
            let _ = each_element(value, kind, |_| {
                values += 1;
                Ok(())
            });
            values
        }
        2 => 0,
        // Each integer ends with a byte without the upper bit.
        _ => value.iter().filter(|b| **b < 0x80).count(),
    }
}

fn reserve<T>(list: &mut Vec<T>, name: &str, values: usize) -> Result<()> {
    let what = format_args!("{values} values of feature `{name}`");
    budget::reserve(budget::bytes_of::<T>(values), what)?;
    list.reserve(values);
    Ok(())
}

/// Builds a column of values: the items, and how they form rows.
struct Items {
    /// End of each row in items.
    ends: Vec<usize>,
    nulls: NullBufferBuilder,
}

fn column<'a>(
    name: &str,
    feature: &Feature,
    cells: impl ExactSizeIterator<Item = Cell<'a>> + Clone,
) -> Result<ArrayRef, (usize, Error)> {
    let (kind, kind_name) = kind_of(feature.dtype);
    let mut slices: Vec<&'a [u8]> = Vec::new();
    let mut floats: Vec<f32> = Vec::new();
    let mut ints: Vec<i64> = Vec::new();
    let mut items =
        Items { ends: Vec::with_capacity(cells.len()), nulls: NullBufferBuilder::new(cells.len()) };
    for (row, cell) in cells.enumerate() {
        let before = slices.len() + floats.len() + ints.len();
        let present = match cell {
            None => false,
            Some(value) => {
                match kind {
                    1 => reserve(&mut slices, name, values_of(value, kind)),
                    2 => Ok(()),
                    _ => reserve(&mut ints, name, values_of(value, kind)),
                }
                .map_err(|e| (row, e))?;
                match kind {
                    1 => each_element(value, kind, |v| push_bytes(v, &mut slices)),
                    2 => each_element(value, kind, |v| push_floats(v, &mut floats)),
                    _ => each_element(value, kind, |v| push_ints(v, &mut ints)),
                }
                .map_err(|bad| (row, explain(name, kind_name, &bad)))?
            }
        };
        let count = slices.len() + floats.len() + ints.len() - before;
        let (want, present) = match feature.shape {
            FeatureShape::Scalar => (Some(1), present && count > 0),
            FeatureShape::Fixed(n) => (Some(n as usize), present && (count > 0 || n == 0)),
            FeatureShape::List => (None, present),
        };
        if present && want.is_some_and(|w| w != count) {
            return Err((row, wrong_count(name, count, want.unwrap_or(0))));
        }
        if !present && want.is_some() && !feature.optional {
            return Err((row, missing(name, feature, cell.is_some())));
        }
        // Nothing in a list is an empty list, unless the difference was asked for.
        let present = present || !feature.optional;
        if !present {
            // In a fixed-size list a null row still has values.
            let fill = want.unwrap_or(0);
            let what = format_args!("a null of {fill} values for feature `{name}`");
            budget::reserve(budget::bytes_of::<&[u8]>(fill), what).map_err(|e| (row, e))?;
            match kind {
                1 => slices.resize(before + fill, &[]),
                2 => floats.resize(before + fill, 0.0),
                _ => ints.resize(before + fill, 0),
            }
        }
        items.nulls.append(present);
        items.ends.push(slices.len() + floats.len() + ints.len());
    }
    let nulls = items.nulls.finish();
    let scalar = feature.shape == FeatureShape::Scalar;
    let item_nulls = if scalar { nulls.clone() } else { None };
    let values: ArrayRef = match kind {
        1 => binary(&slices, item_nulls).map_err(|e| (0, e))?,
        2 => Arc::new(Float32Array::new(ScalarBuffer::from(floats), item_nulls)),
        _ => Arc::new(Int64Array::new(ScalarBuffer::from(ints), item_nulls)),
    };
    assemble(name, feature, values, &items.ends, nulls).map_err(|e| (0, e))
}

fn assemble(
    name: &str,
    feature: &Feature,
    values: ArrayRef,
    ends: &[usize],
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    let bad = |e: arrow_schema::ArrowError| Error::internal(format!("feature `{name}`: {e}"));
    let item = list_item(values.data_type().clone());
    Ok(match feature.shape {
        FeatureShape::Scalar => values,
        FeatureShape::Fixed(n) => {
            let n = i32::try_from(n).map_err(|e| Error::invalid(format!("feature `{name}`: {e}")))?;
            Arc::new(
                FixedSizeListArray::try_new_with_length(item, n, values, nulls, ends.len()).map_err(bad)?,
            )
        }
        FeatureShape::List => {
            let offsets = offsets(ends.iter().copied())?;
            Arc::new(ListArray::try_new(item, offsets, values, nulls).map_err(bad)?)
        }
    })
}

fn offsets(ends: impl Iterator<Item = usize>) -> Result<OffsetBuffer<i32>> {
    let mut out = vec![0i32];
    for end in ends {
        out.push(i32::try_from(end).map_err(|_| {
            Error::exhausted("a batch of records holds over 2^31 values; lower the batch bytes of the engine")
        })?);
    }
    Ok(OffsetBuffer::new(ScalarBuffer::from(out)))
}

fn binary(slices: &[&[u8]], nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    let total = slices.iter().map(|s| s.len()).sum();
    let mut values: Vec<u8> = Vec::with_capacity(total);
    let mut end = 0;
    let offsets = offsets(slices.iter().map(|s| {
        end += s.len();
        end
    }))?;
    for s in slices {
        values.extend_from_slice(s);
    }
    let array = BinaryArray::try_new(offsets, Buffer::from_vec(values), nulls)
        .map_err(|e| Error::internal(e.to_string()))?;
    Ok(Arc::new(array))
}

fn push_bytes<'a>(value: Value<'a>, out: &mut Vec<&'a [u8]>) -> Result<(), &'static str> {
    let Value::Bytes(b) = value else { return Err("a list of bytes holds something else") };
    out.push(b);
    Ok(())
}

fn push_floats(value: Value<'_>, out: &mut Vec<f32>) -> Result<(), &'static str> {
    match value {
        Value::Fixed32(b) => out.push(f32::from_le_bytes(b)),
        Value::Bytes(packed) => {
            let (floats, []) = packed.as_chunks::<4>() else {
                return Err("a packed list of floats is cut off");
            };
            out.extend(floats.iter().map(|b| f32::from_le_bytes(*b)));
        }
        _ => return Err("a list of floats holds something else"),
    }
    Ok(())
}

fn push_ints(value: Value<'_>, out: &mut Vec<i64>) -> Result<(), &'static str> {
    match value {
        Value::Varint(n) => out.push(n.cast_signed()),
        Value::Bytes(packed) => {
            let mut packed = Wire(packed);
            while !packed.0.is_empty() {
                out.push(packed.varint()?.cast_signed());
            }
        }
        _ => return Err("a list of integers holds something else"),
    }
    Ok(())
}

fn explain(name: &str, wanted: &str, bad: &Bad) -> Error {
    match bad {
        Bad::Wire(why) => Error::data_loss(format!("feature `{name}`: {why}; the record is damaged")),
        Bad::Kind(kind) => {
            let is =
                ["", "bytes", "float32", "int64"].get(usize::try_from(*kind).unwrap_or(0)).unwrap_or(&"");
            Error::invalid(format!("feature `{name}` holds {is}, but `parse_example` says {wanted}"))
        }
    }
}

fn missing(name: &str, feature: &Feature, empty: bool) -> Error {
    let how = if empty { "is empty in the record" } else { "is not in the record" };
    Error::invalid(format!(
        "feature `{name}` {how}, and `parse_example` says {feature}; where records may lack it, write `{feature}?`, \
         which gives null, and `coalesce(x, 0)` for another value"
    ))
}

fn wrong_count(name: &str, count: usize, want: usize) -> Error {
    let way =
        if want == 1 { "give it a shape, or make it a list" } else { "correct its shape, or make it a list" };
    Error::invalid(format!("feature `{name}` has {count} values, but `parse_example` says {want}; {way}"))
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "test data")]
#[path = "example_tests.rs"]
mod tests;
