//! Padding list columns to one length per batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::compute::interleave;
use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float32Array, Float64Array, GenericListArray, Int32Array, Int64Array,
    OffsetSizeTrait, RecordBatch, UInt8Array,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::DataType;
use caju_runtime::budget;
use caju_types::{Error, Result};

use crate::chunk::Chunk;

/// How list columns are padded.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Padding {
    /// Fixed lengths by column; the longest of the batch otherwise.
    pub lengths: BTreeMap<String, u32>,
    /// Padding values by column; 0, false or the empty string otherwise.
    pub values: BTreeMap<String, serde_json::Value>,
}

/// Pads every list column of a chunk that is one element. Columns of other types are not changed, and
/// neither is the schema. A null list becomes a list of padding.
///
/// # Errors
/// `InvalidArgument` if a value is longer than the fixed length, or a padding value does not fit its column.
pub fn pad_batch(chunk: &Chunk, padding: &Padding) -> Result<Chunk> {
    pad_columns(chunk, padding, |_| true)
}

/// Pads those list columns of a chunk that have a fixed length in `padding`.
///
/// # Errors
/// As [`pad_batch`].
pub fn pad_to_lengths(chunk: &Chunk, padding: &Padding) -> Result<Chunk> {
    pad_columns(chunk, padding, |name| padding.lengths.contains_key(name))
}

fn pad_columns(chunk: &Chunk, padding: &Padding, is_padded: impl Fn(&str) -> bool) -> Result<Chunk> {
    let batch = chunk.concat()?;
    let schema = batch.schema();
    let columns = schema
        .fields()
        .iter()
        .zip(batch.columns())
        .map(|(field, column)| {
            let name = field.name();
            let (length, value) = (padding.lengths.get(name).copied(), padding.values.get(name));
            match column.data_type() {
                DataType::List(_) if is_padded(name) => {
                    pad_list(name, column.as_list::<i32>(), length, value)
                }
                DataType::LargeList(_) if is_padded(name) => {
                    pad_list(name, column.as_list::<i64>(), length, value)
                }
                _ => Ok(Arc::clone(column)),
            }
        })
        .collect::<Result<Vec<_>>>()?;
    let padded =
        RecordBatch::try_new(schema, columns).map_err(|e| Error::internal(format!("padding: {e}")))?;
    Ok(Chunk { pieces: vec![padded], ..chunk.clone() })
}

/// The first row of a list column whose value is longer than the fixed length of the column, with the error; none if all fit,
/// and for other columns, which are not padded.
pub fn longer_than(name: &str, column: &ArrayRef, length: u32) -> Option<(usize, Error)> {
    fn first<O: OffsetSizeTrait>(list: &GenericListArray<O>, length: usize) -> Option<(usize, usize)> {
        let items = |row: usize| if list.is_valid(row) { list.value_length(row).as_usize() } else { 0 };
        (0..list.len()).map(|row| (row, items(row))).find(|(_, items)| *items > length)
    }
    let (row, items) = match column.data_type() {
        DataType::List(_) => first(column.as_list::<i32>(), length as usize),
        DataType::LargeList(_) => first(column.as_list::<i64>(), length as usize),
        _ => None,
    }?;
    Some((row, too_long(name, items, length)))
}

fn too_long(name: &str, items: usize, length: u32) -> Error {
    Error::invalid(format!(
        "padded_batch: a value of `{name}` has {items} items, more than its fixed length {length}; truncate it first or raise `lengths.{name}`"
    ))
}

fn pad_list<O: OffsetSizeTrait>(
    name: &str,
    list: &GenericListArray<O>,
    fixed: Option<u32>,
    value: Option<&serde_json::Value>,
) -> Result<ArrayRef> {
    let (DataType::List(item) | DataType::LargeList(item)) = list.data_type() else {
        return Err(Error::internal("padding of a column that is no list"));
    };
    let length_of = |i: usize| if list.is_valid(i) { list.value_length(i).as_usize() } else { 0 };
    let longest = (0..list.len()).map(length_of).max().unwrap_or(0);
    let target = match fixed {
        Some(n) if longest > n as usize => return Err(too_long(name, longest, n)),
        Some(n) => n as usize,
        None => longest,
    };
    let pad = pad_value(name, item.data_type(), value)?;
    let values = budget::product(&[list.len(), target]);
    let width = item.data_type().primitive_width().unwrap_or(PADDED_BYTES);
    let text = budget::product(&[values, pad.get_buffer_memory_size().min(value_bytes(value))]);
    let what = format_args!("padded_batch: {} lists of `{name}` with {target} values each", list.len());
    let bytes = budget::product(&[values, size_of::<(usize, usize)>() + width]).saturating_add(text);
    budget::reserve(bytes as u64, what)?;
    let mut index = Vec::with_capacity(values);
    for i in 0..list.len() {
        let start = list.value_offsets()[i].as_usize();
        let n = length_of(i);
        index.extend((start..start + n).map(|v| (0, v)));
        index.extend(std::iter::repeat_n((1, 0), target - n));
    }
    let bad = |e: arrow::error::ArrowError| Error::internal(format!("padding `{name}`: {e}"));
    let values = interleave(&[list.values().as_ref(), pad.as_ref()], &index).map_err(bad)?;
    let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(target, list.len()));
    Ok(Arc::new(GenericListArray::<O>::try_new(Arc::clone(item), offsets, values, None).map_err(bad)?))
}

/// What a value of varying size takes in addition to its content.
const PADDED_BYTES: usize = 16;

/// The content of a padding value.
fn value_bytes(value: Option<&serde_json::Value>) -> usize {
    value.and_then(serde_json::Value::as_str).map_or(0, str::len)
}

fn pad_value(name: &str, dtype: &DataType, value: Option<&serde_json::Value>) -> Result<ArrayRef> {
    use serde_json::Value;
    let misfit = || {
        let shown = value.map_or_else(|| "(default)".to_string(), Value::to_string);
        Error::invalid(format!(
            "padded_batch: the padding value {shown} does not fit `{name}`, a list of {dtype}"
        ))
    };
    let int = || value.map_or(Some(0), Value::as_i64).ok_or_else(misfit);
    let float = || value.map_or(Some(0.0), Value::as_f64).ok_or_else(misfit);
    let fits = |v: f32| if v.is_finite() { Ok(v) } else { Err(misfit()) };
    let text = || value.map_or(Some(""), Value::as_str).ok_or_else(misfit);
    #[expect(clippy::cast_possible_truncation, reason = "a float32 column's padding is rounded")]
    let array: ArrayRef = match dtype {
        DataType::Int64 => Arc::new(Int64Array::from(vec![int()?])),
        DataType::Int32 => Arc::new(Int32Array::from(vec![i32::try_from(int()?).map_err(|_| misfit())?])),
        DataType::UInt8 => Arc::new(UInt8Array::from(vec![u8::try_from(int()?).map_err(|_| misfit())?])),
        DataType::Float32 => Arc::new(Float32Array::from(vec![fits(float()? as f32)?])),
        DataType::Float64 => Arc::new(Float64Array::from(vec![float()?])),
        DataType::Boolean => {
            Arc::new(BooleanArray::from(vec![value.map_or(Some(false), Value::as_bool).ok_or_else(misfit)?]))
        }
        DataType::Utf8 => {
            let mut b = StringBuilder::new();
            b.append_value(text()?);
            Arc::new(b.finish())
        }
        DataType::Binary => {
            let mut b = BinaryBuilder::new();
            b.append_value(text()?);
            Arc::new(b.finish())
        }
        DataType::Utf8View => Arc::new(arrow_array::StringViewArray::from(vec![text()?])),
        other => {
            return Err(Error::unimplemented(format!(
                "padded_batch cannot pad `{name}`, a list of {other}; cast it first"
            )));
        }
    };
    Ok(array)
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int64Type;
    use arrow_array::{LargeListArray, ListArray};

    use super::*;

    #[test]
    fn lists_with_large_offsets_are_padded_too() {
        let rows = [Some(vec![Some(1), Some(2)]), None];
        let l = LargeListArray::from_iter_primitive::<Int64Type, _, _>(rows);
        let batch = RecordBatch::try_from_iter([("l", Arc::new(l) as ArrayRef)]).unwrap();
        let out = pad_batch(&Chunk::rows_of(batch, vec![]), &Padding::default()).unwrap().concat().unwrap();
        let l = out.column(0).as_list::<i64>();
        assert_eq!((l.value_length(0), l.value_length(1), l.null_count()), (2, 2, 0));
        assert_eq!(l.values().as_primitive::<Int64Type>().values(), &[1, 2, 0, 0]);
    }

    #[test]
    fn lists_get_one_length() {
        let l = ListArray::from_iter_primitive::<Int64Type, _, _>([
            Some(vec![Some(1), Some(2)]),
            None,
            Some(vec![]),
        ]);
        let batch = RecordBatch::try_from_iter([("l", Arc::new(l) as ArrayRef)]).unwrap();
        let chunk = Chunk::rows_of(batch, vec![]);
        let values = BTreeMap::from([("l".to_string(), serde_json::json!(7))]);
        let out = pad_batch(&chunk, &Padding { values, ..Padding::default() }).unwrap();
        let out = out.concat().unwrap();
        let l = out.column(0).as_list::<i32>();
        assert_eq!(l.values().as_primitive::<Int64Type>().values(), &[1, 2, 7, 7, 7, 7]);
        let lengths = BTreeMap::from([("l".to_string(), 2_000_000_000)]);
        let e = pad_batch(&chunk, &Padding { lengths, ..Padding::default() }).unwrap_err();
        assert!(e.message().contains("3 lists of `l` with 2000000000 values each needs"), "{e}");
        let lengths = BTreeMap::from([("l".to_string(), 1)]);
        let e = pad_batch(&chunk, &Padding { lengths, ..Padding::default() }).unwrap_err();
        assert!(e.message().contains("more than its fixed length 1"), "{e}");
    }
}
