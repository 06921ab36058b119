//! `unnest` and `flat_map`: one row per value of a list.

use std::sync::Arc;

use arrow::compute::take;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_runtime::budget;
use caju_types::{Error, Result};

/// The schema after a list of type `list` became one row per value, and the index of its column `name`. The column keeps
/// its place if the row has a column of that name; otherwise it is the last one.
pub(crate) fn unnested_schema(input: &Schema, name: &str, list: &DataType) -> Result<(SchemaRef, usize)> {
    let item = match list {
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => f.data_type().clone(),
        other => {
            return Err(Error::invalid(format!(
                "`{name}` is {other}, not a list; only a list has values to make rows of"
            )));
        }
    };
    let field = Arc::new(Field::new(name, item, true));
    let mut fields: Vec<_> = input.fields().iter().cloned().collect();
    let at = match input.index_of(name) {
        Ok(i) => {
            fields[i] = field;
            i
        }
        Err(_) => {
            fields.push(field);
            fields.len() - 1
        }
    };
    Ok((Arc::new(Schema::new(fields)), at))
}

/// One output row per value of `list`, and the input row of each; a null or empty list has no output row.
pub(crate) fn unnest(
    batch: &RecordBatch,
    list: &ArrayRef,
    at: usize,
    schema: &SchemaRef,
) -> Result<(RecordBatch, UInt32Array)> {
    let bad = |e: arrow::error::ArrowError| Error::internal(format!("unnest: {e}"));
    reserve(batch, list, at)?;
    let (mut rows, mut values) = (Vec::new(), Vec::new());
    let child: ArrayRef;
    let mut push = |row: usize, start: usize, end: usize| -> Result<()> {
        let too_many = |_| Error::exhausted("unnest makes more than 2^32 rows of one batch");
        let row = u32::try_from(row).map_err(too_many)?;
        for v in start..end {
            rows.push(row);
            values.push(u32::try_from(v).map_err(too_many)?);
        }
        Ok(())
    };
    match list.data_type() {
        DataType::List(_) => {
            let l = list.as_list::<i32>();
            child = Arc::clone(l.values());
            for (i, w) in l.value_offsets().windows(2).enumerate() {
                if l.is_valid(i) {
                    push(i, usize::try_from(w[0]).unwrap_or(0), usize::try_from(w[1]).unwrap_or(0))?;
                }
            }
        }
        DataType::LargeList(_) => {
            let l = list.as_list::<i64>();
            child = Arc::clone(l.values());
            for (i, w) in l.value_offsets().windows(2).enumerate() {
                if l.is_valid(i) {
                    push(i, usize::try_from(w[0]).unwrap_or(0), usize::try_from(w[1]).unwrap_or(0))?;
                }
            }
        }
        DataType::FixedSizeList(_, n) => {
            let l = list.as_fixed_size_list();
            let n = usize::try_from(*n).unwrap_or(0);
            child = Arc::clone(l.values());
            for i in 0..l.len() {
                if l.is_valid(i) {
                    push(i, i * n, (i + 1) * n)?;
                }
            }
        }
        other => return Err(Error::internal(format!("unnest of {other}"))),
    }
    let rows = UInt32Array::from(rows);
    let values = take(&child, &UInt32Array::from(values), None).map_err(bad)?;
    let mut columns = Vec::with_capacity(schema.fields().len());
    for i in 0..schema.fields().len() {
        columns.push(if i == at {
            Arc::clone(&values)
        } else {
            take(batch.column(i), &rows, None).map_err(bad)?
        });
    }
    let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(rows.len()));
    let out = RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options).map_err(bad)?;
    Ok((out, rows))
}

/// Reserves the memory of the output rows: each value of a list comes with a copy of the other columns of its row.
fn reserve(batch: &RecordBatch, list: &ArrayRef, at: usize) -> Result<()> {
    let lengths = |i: usize| match list.data_type() {
        DataType::List(_) => usize::try_from(list.as_list::<i32>().value_length(i)).unwrap_or(0),
        DataType::LargeList(_) => usize::try_from(list.as_list::<i64>().value_length(i)).unwrap_or(0),
        DataType::FixedSizeList(_, n) => usize::try_from(*n).unwrap_or(0),
        _ => 0,
    };
    let lengths: Vec<usize> =
        (0..list.len()).map(|i| if list.is_valid(i) { lengths(i) } else { 0 }).collect();
    let values = lengths.iter().fold(0usize, |a, n| a.saturating_add(*n));
    // The list itself is not copied; two indices and the value are.
    let mut bytes = budget::product(&[values, 2 * size_of::<u32>() + VALUE_BYTES]);
    for (_, column) in batch.columns().iter().enumerate().filter(|(i, _)| *i != at) {
        bytes = bytes.saturating_add(repeated_bytes(column, &lengths));
    }
    budget::reserve(bytes as u64, format_args!("{values} rows of {} lists", list.len()))
}

/// What a value of a list takes at most, where it is no text: those are counted with the list.
const VALUE_BYTES: usize = 16;

/// The bytes of a column with each value as often as said.
fn repeated_bytes(column: &ArrayRef, times: &[usize]) -> usize {
    let each = |of: &dyn Fn(usize) -> usize| {
        times
            .iter()
            .enumerate()
            .fold(0usize, |a, (i, n)| a.saturating_add(of(i).saturating_add(4).saturating_mul(*n)))
    };
    match column.data_type() {
        DataType::Utf8 => each(&|i| usize::try_from(column.as_string::<i32>().value_length(i)).unwrap_or(0)),
        DataType::Binary => {
            each(&|i| usize::try_from(column.as_binary::<i32>().value_length(i)).unwrap_or(0))
        }
        // Others by their average: values of one size, and what is rare.
        _ => {
            let average = column.get_array_memory_size().div_ceil(column.len().max(1));
            each(&|_| average)
        }
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::Int64Array;
    use arrow_array::types::Int64Type;

    use super::*;

    #[test]
    fn null_and_empty_lists_give_no_row() {
        let list: ArrayRef = Arc::new(arrow_array::ListArray::from_iter_primitive::<Int64Type, _, _>([
            Some(vec![Some(1), None]),
            None,
            Some(vec![]),
            Some(vec![Some(4)]),
        ]));
        let id: ArrayRef = Arc::new(Int64Array::from(vec![10, 11, 12, 13]));
        let input = RecordBatch::try_from_iter([("id", id), ("l", Arc::clone(&list))]).unwrap();
        let (schema, at) = unnested_schema(&input.schema(), "l", list.data_type()).unwrap();
        let (out, rows) = unnest(&input, &list, at, &schema).unwrap();
        assert_eq!(rows.values(), &[0, 0, 3]);
        assert_eq!(out.column(0).as_primitive::<Int64Type>().values(), &[10, 10, 13]);
        assert_eq!(
            out.column(1).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(),
            [Some(1), None, Some(4)]
        );
        assert!(unnested_schema(&input.schema(), "id", &DataType::Int64).is_err());
    }
}
