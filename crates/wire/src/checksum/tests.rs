use std::sync::Arc;

use arrow::compute::{cast, concat_batches};
use arrow_array::types::{Float32Type, Int32Type, Int64Type};
use arrow_array::*;
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field};
use proptest::prelude::*;

use super::*;

fn batch(columns: Vec<ArrayRef>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().enumerate().map(|(i, c)| (format!("c{i}"), c, true)),
    )
    .unwrap()
}

fn sum(b: &RecordBatch) -> String {
    let mut s = RowsChecksum::default();
    s.update(b).unwrap();
    s.hex()
}

fn of(column: impl Array + 'static) -> String {
    sum(&batch(vec![Arc::new(column)]))
}

/// The encoding is a promise to other programs: these bytes are what docs/report.md says.
#[test]
fn the_encoding_is_pinned() {
    let rows = batch(vec![
        Arc::new(Int64Array::from(vec![Some(7), None])),
        Arc::new(StringArray::from(vec![Some("caju"), Some("")])),
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), Some(2)]),
            Some(vec![Some(3), None]),
        ])),
    ]);
    let mut first = vec![1];
    first.extend(7i64.to_le_bytes());
    first.push(1);
    first.extend(4u64.to_le_bytes());
    first.extend(b"caju");
    first.push(1);
    first.extend(2u64.to_le_bytes());
    first.push(0);
    first.extend(1i32.to_le_bytes());
    first.extend(2i32.to_le_bytes());
    let mut second = vec![0, 1];
    second.extend(0u64.to_le_bytes());
    second.push(1);
    second.extend(2u64.to_le_bytes());
    second.extend([1, 1]);
    second.extend(3i32.to_le_bytes());
    second.push(0);
    let want = hash128(&first).wrapping_add(hash128(&second));
    assert_eq!(sum(&rows), format!("{want:032x}"));
    assert_eq!(RowsChecksum::default().hex(), "0".repeat(32));
}

#[test]
fn kinds_of_one_value_agree() {
    let texts = StringArray::from(vec![Some("a"), None, Some("a longer one than twelve bytes"), Some("a")]);
    let want = of(texts.clone());
    for other in [
        DataType::LargeUtf8,
        DataType::Utf8View,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::BinaryView,
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
    ] {
        let array = cast(&texts, &other).unwrap();
        assert_eq!(sum(&batch(vec![array])), want, "{other}");
    }
    let list =
        FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>([Some([Some(1.0), Some(2.0)]), None], 2);
    let as_list =
        cast(&list, &DataType::List(Arc::new(Field::new("item", DataType::Float32, true)))).unwrap();
    assert_eq!(of(list), sum(&batch(vec![as_list])));
}

#[test]
fn a_dictionary_without_values_holds_nulls() {
    let dictionary = |keys: Vec<Option<i8>>| {
        DictionaryArray::<types::Int8Type>::new(keys.into(), Arc::new(StringArray::from(Vec::<&str>::new())))
    };
    assert_eq!(of(dictionary(vec![None, None])), of(StringArray::from(vec![None::<&str>, None])));
    // Lists without items.
    let list = |items: ArrayRef| {
        let field = Arc::new(Field::new("item", items.data_type().clone(), true));
        ListArray::new(field, arrow_buffer::OffsetBuffer::from_lengths([0, 0]), items, None)
    };
    let texts = StringArray::from(Vec::<&str>::new());
    assert_eq!(of(list(Arc::new(dictionary(vec![])))), of(list(Arc::new(texts))));
}

#[test]
fn what_differs_shows() {
    let sums = [
        of(Int64Array::from(vec![1, 2])),
        of(Int64Array::from(vec![1, 2, 2])),
        of(Int64Array::from(vec![Some(1), Some(2), None])),
        of(Int32Array::from(vec![1, 2])),
        of(StringArray::from(vec!["1", "2"])),
        of(BooleanArray::from(vec![true, false])),
        of(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1)]), Some(vec![Some(2)])])),
        of(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![]), None])),
        of(NullArray::new(2)),
    ];
    for (i, a) in sums.iter().enumerate() {
        for b in &sums[i + 1..] {
            assert_ne!(a, b);
        }
    }
}

#[test]
fn nans_are_equal_and_zeros_are_not() {
    let odd = f32::from_bits(0xFFC1_2345);
    assert_eq!(of(Float32Array::from(vec![f32::NAN, 1.0])), of(Float32Array::from(vec![odd, 1.0])));
    assert_ne!(of(Float32Array::from(vec![0.0])), of(Float32Array::from(vec![-0.0])));
    let tensor = |v: f32| {
        FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
            [Some((0..2000).map(|i| Some(if i == 9 { v } else { 1.0 })))],
            2000,
        )
    };
    assert_eq!(of(tensor(f32::NAN)), of(tensor(odd)));
    assert_ne!(of(tensor(f32::NAN)), of(tensor(2.0)));
}

/// Items below a null list, and values below a null struct, do not exist.
#[test]
fn hidden_values_do_not_show() {
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let hidden = ListArray::new(
        Arc::clone(&item),
        arrow_buffer::OffsetBuffer::from_lengths([2, 1]),
        Arc::new(Int32Array::from(vec![8, 9, 5])),
        Some(NullBuffer::from(vec![false, true])),
    );
    let plain = ListArray::from_iter_primitive::<Int32Type, _, _>([None, Some(vec![Some(5)])]);
    assert_eq!(of(hidden), of(plain));
}

#[test]
fn structs_and_nested_lists() {
    let field = Arc::new(Field::new("x", DataType::Int32, true));
    let inner: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)]));
    let whole = StructArray::from(vec![(Arc::clone(&field), Arc::clone(&inner))]);
    let holed =
        StructArray::new(vec![field].into(), vec![inner], Some(NullBuffer::from(vec![true, true, false])));
    assert_ne!(of(whole.clone()), of(holed));
    assert_eq!(
        sum(&batch(vec![Arc::new(whole.clone())]).slice(1, 2)),
        of(whole.slice(1, 2)),
        "slices of structs count from their own start"
    );
    assert!(
        RowsChecksum::default()
            .update(&batch(vec![Arc::new(
                RunArray::<Int32Type>::try_new(&Int32Array::from(vec![2]), &Int64Array::from(vec![1]))
                    .unwrap()
            )]))
            .unwrap_err()
            .message()
            .contains("c0")
    );
}

#[test]
fn padding_does_not_show() {
    let list = |rows: Vec<Option<Vec<i64>>>| -> RecordBatch {
        let rows = rows.into_iter().map(|r| r.map(|v| v.into_iter().map(Some).collect::<Vec<_>>()));
        batch(vec![Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))])
    };
    let padded = |b: RecordBatch| {
        let mut s =
            RowsChecksum { padding: Some([("c0".to_string(), 9.into())].into()), ..Default::default() };
        s.update(&b).unwrap();
        s.hex()
    };
    let a = padded(list(vec![Some(vec![1, 9, 2]), Some(vec![3]), None]));
    let b = padded(list(vec![Some(vec![1, 9, 2, 9]), Some(vec![3, 9, 9, 9]), Some(vec![9, 9, 9, 9])]));
    assert_eq!(a, b);
    assert_ne!(a, padded(list(vec![Some(vec![1, 9, 2]), Some(vec![3, 0]), None])));
    let large = |rows: Vec<Vec<i64>>| -> RecordBatch {
        let rows = rows.into_iter().map(|r| Some(r.into_iter().map(Some).collect::<Vec<_>>()));
        batch(vec![Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>(rows))])
    };
    let a = padded(large(vec![vec![1, 9, 2], vec![3]]));
    assert_eq!(a, padded(large(vec![vec![1, 9, 2, 9], vec![3, 9, 9, 9]])));
    assert_eq!(a, padded(list(vec![Some(vec![1, 9, 2]), Some(vec![3])])));
}

type Row = (Option<i32>, Option<String>, Vec<Option<u8>>);

proptest! {
    /// Order, batching and slicing never show.
    #[test]
    fn only_the_multiset_of_rows_counts(
        rows in prop::collection::vec((any::<Option<i32>>(), any::<Option<String>>(), prop::collection::vec(any::<Option<u8>>(), 0..5)), 1..40),
        cut in 0usize..40,
    ) {
        let make = |rows: &[Row]| batch(vec![
            Arc::new(Int32Array::from_iter(rows.iter().map(|r| r.0))),
            Arc::new(StringArray::from_iter(rows.iter().map(|r| r.1.as_deref()))),
            Arc::new(ListArray::from_iter_primitive::<arrow_array::types::UInt8Type, _, _>(rows.iter().map(|r| Some(r.2.clone())))),
        ]);
        let whole = make(&rows);
        let cut = cut.min(rows.len());
        let mut parts = RowsChecksum::default();
        let mut other = parts.empty();
        other.update(&whole.slice(cut, rows.len() - cut)).unwrap();
        parts.update(&whole.slice(0, cut)).unwrap();
        parts.add(&other);
        prop_assert_eq!(parts.hex(), sum(&whole));
        let mut turned = rows.clone();
        turned.reverse();
        prop_assert_eq!(sum(&make(&turned)), sum(&whole));
        let twice = concat_batches(&whole.schema(), [&whole, &whole.slice(0, 1)]).unwrap();
        prop_assert_ne!(sum(&twice), sum(&whole));
    }
}
