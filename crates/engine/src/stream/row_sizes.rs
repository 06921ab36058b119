//! The bytes of each row: a function of its values, and not of the batch in which it comes.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::DataType;

/// What a value of a type without a known width counts as.
const OTHER_BYTES: u64 = 16;

/// The bytes of each row of a batch.
pub(crate) fn row_sizes(batch: &RecordBatch) -> Vec<u64> {
    let mut sizes = vec![1; batch.num_rows()];
    batch.columns().iter().for_each(|column| add_sizes(column, &mut sizes));
    sizes
}

/// Adds the bytes of each value of a column.
fn add_sizes(column: &ArrayRef, sizes: &mut [u64]) {
    use DataType::{
        Binary, Dictionary, FixedSizeBinary, FixedSizeList, LargeBinary, LargeList, LargeUtf8, List, Map,
        Struct, Utf8,
    };
    // What lies in the place of a null is no value: rows that are read from a part may have something else there.
    let mut add = |of: &dyn Fn(usize) -> u64| {
        let rows = sizes.iter_mut().enumerate().filter(|(row, _)| column.is_valid(*row));
        rows.for_each(|(row, size)| *size = size.saturating_add(of(row)));
    };
    let bytes = |n: usize| n as u64;
    match column.data_type() {
        t if t.primitive_width().is_some() => add(&|_| t.primitive_width().map_or(0, bytes)),
        FixedSizeBinary(width) => add(&|_| u64::try_from(*width).unwrap_or(0)),
        Utf8 => add(&|row| bytes(column.as_string::<i32>().value(row).len())),
        LargeUtf8 => add(&|row| bytes(column.as_string::<i64>().value(row).len())),
        Binary => add(&|row| bytes(column.as_binary::<i32>().value(row).len())),
        LargeBinary => add(&|row| bytes(column.as_binary::<i64>().value(row).len())),
        DataType::Utf8View => add(&|row| bytes(column.as_string_view().value(row).len())),
        DataType::BinaryView => add(&|row| bytes(column.as_binary_view().value(row).len())),
        Struct(_) => column.as_struct().columns().iter().for_each(|field| add_sizes(field, sizes)),
        FixedSizeList(item, length) => {
            let (list, length) = (column.as_fixed_size_list(), usize::try_from(*length).unwrap_or(0));
            match item.data_type().primitive_width() {
                Some(width) => add(&|_| bytes(width.saturating_mul(length))),
                None => {
                    let sums = sums(list.values());
                    let first = usize::try_from(list.value_offset(0)).unwrap_or(0);
                    add(&|row| between(&sums, first + row * length, first + (row + 1) * length));
                }
            }
        }
        List(_) => {
            let (list, sums) = (column.as_list::<i32>(), sums(column.as_list::<i32>().values()));
            let at = |i: usize| usize::try_from(list.value_offsets()[i]).unwrap_or(0);
            add(&|row| between(&sums, at(row), at(row + 1)));
        }
        LargeList(_) => {
            let (list, sums) = (column.as_list::<i64>(), sums(column.as_list::<i64>().values()));
            let at = |i: usize| usize::try_from(list.value_offsets()[i]).unwrap_or(0);
            add(&|row| between(&sums, at(row), at(row + 1)));
        }
        Map(..) => {
            let map = column.as_map();
            let entries: ArrayRef = std::sync::Arc::new(map.entries().clone());
            let sums = sums(&entries);
            let at = |i: usize| usize::try_from(map.value_offsets()[i]).unwrap_or(0);
            add(&|row| between(&sums, at(row), at(row + 1)));
        }
        Dictionary(..) => {
            let dictionary = column.as_any_dictionary();
            if dictionary.values().is_empty() {
                // All keys are null, and there is none that could be looked up.
                return;
            }
            let mut of_values = vec![0; dictionary.values().len()];
            add_sizes(dictionary.values(), &mut of_values);
            let keys = dictionary.normalized_keys();
            add(&|row| keys.get(row).and_then(|key| of_values.get(*key)).copied().unwrap_or(0));
        }
        _ => add(&|_| OTHER_BYTES),
    }
}

/// The bytes of the first n values, for each n.
fn sums(values: &ArrayRef) -> Vec<u64> {
    let mut sizes = vec![0; values.len()];
    add_sizes(values, &mut sizes);
    let mut sum = 0u64;
    let ends = sizes.into_iter().map(|size| {
        sum = sum.saturating_add(size);
        sum
    });
    std::iter::once(0).chain(ends).collect()
}

fn between(sums: &[u64], start: usize, end: usize) -> u64 {
    let at = |i: usize| sums.get(i).or(sums.last()).copied().unwrap_or(0);
    at(end).saturating_sub(at(start))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::{Int32Type, Int64Type};
    use arrow_array::{
        BinaryArray, BooleanArray, DictionaryArray, FixedSizeListArray, Int32Array, Int64Array, ListArray,
        StringArray, StringViewArray,
    };
    use arrow_buffer::{NullBuffer, OffsetBuffer};
    use arrow_schema::Field;

    use super::*;

    #[test]
    fn the_size_of_a_row_does_not_depend_on_its_batch() {
        let rows = 100usize;
        let text = |i: usize| "x".repeat(i % 9);
        let lists = (0..rows).map(|i| (i % 5 != 1).then(|| (0..i % 4).map(|v| Some(v as i64))));
        let tensors = Int64Array::from_iter_values(0..rows as i64 * 3);
        let names = StringArray::from_iter_values((0..rows * 2).map(text));
        let item = |t: &DataType| Arc::new(Field::new("item", t.clone(), true));
        let dictionary: DictionaryArray<Int32Type> =
            (0..rows).map(|i| (i % 7 > 0).then(|| ["a", "bb", "cccc"][i % 3])).collect();
        let columns: [(&str, ArrayRef); 8] = [
            ("id", Arc::new(Int64Array::from_iter((0..rows as i64).map(|i| (i % 3 > 0).then_some(i))))),
            ("flag", Arc::new(BooleanArray::from_iter((0..rows).map(|i| Some(i % 2 == 0))))),
            ("text", Arc::new(StringArray::from_iter((0..rows).map(|i| (i % 4 > 0).then(|| text(i)))))),
            ("view", Arc::new(StringViewArray::from_iter_values((0..rows).map(|i| text(i).repeat(3))))),
            ("blob", Arc::new(BinaryArray::from_iter_values((0..rows).map(text)))),
            ("list", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists))),
            ("tensor", Arc::new(FixedSizeListArray::new(item(&DataType::Int64), 3, Arc::new(tensors), None))),
            ("names", Arc::new(FixedSizeListArray::new(item(&DataType::Utf8), 2, Arc::new(names), None))),
        ];
        let kinds: ArrayRef = Arc::new(dictionary);
        let batch = RecordBatch::try_from_iter(columns.into_iter().chain([("kind", kinds)])).unwrap();
        let all = row_sizes(&batch);
        assert!(all.iter().any(|size| *size > 60) && all.iter().all(|size| *size >= 24));
        for (offset, len) in [(0, 7), (13, 1), (50, 50)] {
            assert_eq!(row_sizes(&batch.slice(offset, len)), all[offset..offset + len]);
        }
    }

    #[test]
    fn what_lies_below_nulls_has_no_size() {
        let nulls = NullBuffer::from(vec![true, false, true]);
        let offsets = OffsetBuffer::from_lengths([2, 40, 3]);
        let text: ArrayRef = Arc::new(StringArray::new(offsets, vec![b'x'; 45].into(), Some(nulls)));
        let batch = RecordBatch::try_from_iter([("text", text)]).unwrap();
        assert_eq!(row_sizes(&batch), [3, 1, 4]);
        let keys = Int32Array::from_iter([None, None]);
        let none: ArrayRef = Arc::new(DictionaryArray::new(keys, Arc::new(StringArray::new_null(0))));
        let batch = RecordBatch::try_from_iter([("kind", none)]).unwrap();
        assert_eq!(row_sizes(&batch), [1, 1]);
        assert_eq!(row_sizes(&batch.slice(0, 0)), Vec::<u64>::new());
    }
}
