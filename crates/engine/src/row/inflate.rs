//! `inflate`: makes values longer. The experiments of the Cachew paper use it to make snapshots large.

use std::sync::Arc;

use arrow::compute::take;
use arrow_array::builder::{BinaryBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, FixedSizeListArray, ListArray, UInt32Array};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{DataType, Field};
use caju_runtime::budget;
use caju_types::{Error, Result};

fn longer(len: usize, factor: f64) -> usize {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "lengths are far below 2^52")]
    let n = (len as f64 * factor).round() as usize;
    n.max(len)
}

/// The field of a column after inflation; `InvalidArgument` for types that have no length.
pub(crate) fn inflated_field(field: &Field, factor: f64) -> Result<Field> {
    match field.data_type() {
        DataType::Binary | DataType::Utf8 | DataType::List(_) => Ok(field.clone()),
        DataType::FixedSizeList(item, n) => {
            let n = longer(usize::try_from(*n).unwrap_or(0), factor);
            let n = i32::try_from(n)
                .map_err(|_| Error::invalid("the inflated list has more than 2^31 values"))?;
            Ok(Field::new(field.name(), DataType::FixedSizeList(Arc::clone(item), n), field.is_nullable()))
        }
        other => Err(Error::invalid(format!(
            "`{}` is {other}; inflate works on binary, string, list and fixed-size tensor columns",
            field.name()
        ))),
    }
}

/// Repeats each value cyclically until it is `factor` times as long.
pub(crate) fn inflate(array: &ArrayRef, factor: f64, out: &Field) -> Result<ArrayRef> {
    // The rounding of each value adds one at most; lists are gathered by an index of four bytes a value.
    let bytes = longer(array.get_array_memory_size().saturating_add(array.len()), factor).saturating_mul(2);
    budget::reserve(bytes as u64, format_args!("values {factor} times as long"))?;
    match array.data_type() {
        DataType::Binary => {
            let a = array.as_binary::<i32>();
            let mut b = BinaryBuilder::with_capacity(a.len(), longer(a.value_data().len(), factor));
            for v in a {
                b.append_option(v.map(|v| cycled(v, factor)));
            }
            Ok(Arc::new(b.finish()))
        }
        DataType::Utf8 => {
            let a = array.as_string::<i32>();
            let mut b = StringBuilder::with_capacity(a.len(), longer(a.value_data().len(), factor));
            for v in a {
                b.append_option(v.map(|v| {
                    let chars: Vec<char> = v.chars().collect();
                    chars.iter().cycle().take(longer(chars.len(), factor)).collect::<String>()
                }));
            }
            Ok(Arc::new(b.finish()))
        }
        DataType::List(item) => {
            let a = array.as_list::<i32>();
            let mut index = Vec::new();
            let mut lengths = Vec::with_capacity(a.len());
            for w in a.value_offsets().windows(2) {
                let (s, e) = (w[0], w[1]);
                let n = usize::try_from(e - s).unwrap_or(0);
                let m = if n == 0 { 0 } else { longer(n, factor) };
                lengths.push(m);
                let s = u32::try_from(s).map_err(|_| Error::internal("a list starts below 0"))?;
                index.extend((0..m).map(|i| s + u32::try_from(i % n).unwrap_or(0)));
            }
            let values = gather(a.values(), index)?;
            let list = ListArray::try_new(
                Arc::clone(item),
                OffsetBuffer::from_lengths(lengths),
                values,
                a.nulls().cloned(),
            );
            Ok(Arc::new(list.map_err(|e| Error::internal(format!("inflate: {e}")))?))
        }
        DataType::FixedSizeList(item, n) => {
            let a = array.as_fixed_size_list();
            let DataType::FixedSizeList(_, m) = out.data_type() else {
                return Err(Error::internal("inflate: the bound type is no fixed-size list"));
            };
            let (n, m_len) = (u32::try_from(*n).unwrap_or(0), u32::try_from(*m).unwrap_or(0));
            let rows =
                u32::try_from(a.len()).map_err(|_| Error::internal("a batch has more than 2^32 rows"))?;
            let index = (0..rows)
                .flat_map(|r| (0..m_len).map(move |i| r * n + if n == 0 { 0 } else { i % n }))
                .collect();
            let values = gather(a.values(), index)?;
            let list = FixedSizeListArray::try_new(Arc::clone(item), *m, values, a.nulls().cloned());
            Ok(Arc::new(list.map_err(|e| Error::internal(format!("inflate: {e}")))?))
        }
        other => Err(Error::internal(format!("inflate of {other}"))),
    }
}

fn cycled(v: &[u8], factor: f64) -> Vec<u8> {
    let n = longer(v.len(), factor);
    let mut out = Vec::with_capacity(n);
    while out.len() < n && !v.is_empty() {
        out.extend_from_slice(&v[..v.len().min(n - out.len())]);
    }
    out
}

fn gather(values: &ArrayRef, index: Vec<u32>) -> Result<ArrayRef> {
    take(values, &UInt32Array::from(index), None).map_err(|e| Error::internal(format!("inflate: {e}")))
}

#[cfg(test)]
mod tests {
    use arrow_array::{BinaryArray, StringArray};

    use super::*;

    #[test]
    fn values_grow_by_the_factor() {
        let b: ArrayRef = Arc::new(BinaryArray::from_opt_vec(vec![Some(b"abcd"), None, Some(b"")]));
        let f = Field::new("b", DataType::Binary, true);
        let out = inflate(&b, 2.5, &f).unwrap();
        assert_eq!(out.as_binary::<i32>().value(0), b"abcdabcdab");
        assert!(out.is_null(1) && out.as_binary::<i32>().value(2).is_empty());
        let s: ArrayRef = Arc::new(StringArray::from(vec!["ab"]));
        assert_eq!(
            inflate(&s, 1.5, &Field::new("s", DataType::Utf8, true)).unwrap().as_string::<i32>().value(0),
            "aba"
        );
    }
}
