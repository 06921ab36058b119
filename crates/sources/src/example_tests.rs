//! The parser against an encoder of our own, and its messages.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, PartialEq)]
enum List {
    Bytes(Vec<Vec<u8>>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
}

fn varint(mut n: u64, out: &mut Vec<u8>) {
    while n >= 0x80 {
        out.push((n as u8) | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn field(number: u64, bytes: &[u8], out: &mut Vec<u8>) {
    varint(number << 3 | 2, out);
    varint(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn feature(list: &List, packed: bool) -> Vec<u8> {
    let (mut inner, mut out) = (Vec::new(), Vec::new());
    let kind = match list {
        List::Bytes(items) => {
            items.iter().for_each(|b| field(1, b, &mut inner));
            1
        }
        List::Floats(items) if packed => {
            field(1, &items.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<_>>(), &mut inner);
            2
        }
        List::Floats(items) => {
            for f in items {
                inner.push(1 << 3 | 5);
                inner.extend(f.to_le_bytes());
            }
            2
        }
        List::Ints(items) => {
            let mut all = Vec::new();
            for &i in items {
                if !packed {
                    varint(1 << 3, &mut inner);
                    varint(i as u64, &mut inner);
                }
                varint(i as u64, &mut all);
            }
            if packed {
                field(1, &all, &mut inner);
            }
            3
        }
    };
    field(kind, &inner, &mut out);
    out
}

fn example(features: &[(&str, List)], packed: bool) -> Vec<u8> {
    let (mut map, mut out) = (Vec::new(), Vec::new());
    for (name, list) in features {
        let mut pair = Vec::new();
        if packed {
            field(1, name.as_bytes(), &mut pair);
        }
        field(2, &feature(list, packed), &mut pair);
        if !packed {
            // Fields may come in any order.
            field(1, name.as_bytes(), &mut pair);
        }
        field(1, &pair, &mut map);
    }
    field(1, &map, &mut out);
    out
}

fn features(list: &[(&str, ColumnType, FeatureShape)]) -> Vec<(String, Feature)> {
    let feature = |t: &ColumnType, s: &FeatureShape| Feature { dtype: *t, shape: s.clone(), optional: false };
    list.iter().map(|(n, t, s)| (n.to_string(), feature(t, s))).collect()
}

/// The same where records may lack them.
fn optional(list: &[(&str, ColumnType, FeatureShape)]) -> Vec<(String, Feature)> {
    features(list).into_iter().map(|(n, f)| (n, Feature { optional: true, ..f })).collect()
}

fn lists() -> impl Strategy<Value = (Vec<Vec<u8>>, Vec<f32>, Vec<i64>)> {
    (
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..4),
        prop::collection::vec(any::<f32>(), 0..6),
        prop::collection::vec(any::<i64>(), 0..6),
    )
}

proptest! {
    #[test]
    fn reads_back_what_was_encoded(
        rows in prop::collection::vec((lists(), any::<bool>(), 0u8..16), 0..20),
    ) {
        let encoded: Vec<Vec<u8>> = rows.iter().map(|((b, f, i), packed, has)| {
            let mut all = vec![("other", List::Ints(vec![7]))];
            // Doubles: the last one counts.
            if has & 8 != 0 { all.push(("i", List::Ints(vec![1, 2]))); }
            if has & 1 != 0 { all.push(("b", List::Bytes(b.clone()))); }
            if has & 2 != 0 { all.push(("f", List::Floats(f.clone()))); }
            if has & 4 != 0 { all.push(("i", List::Ints(i.clone()))); }
            example(&all, *packed)
        }).collect();
        let records = BinaryArray::from_iter_values(&encoded);
        let list = FeatureShape::List;
        let wanted = optional(&[
            ("i", ColumnType::Int64, list.clone()),
            ("b", ColumnType::Bytes, list.clone()),
            ("f", ColumnType::Float32, list),
        ]);
        let columns = parse_example(&records, &wanted).map_err(|(r, e)| TestCaseError::fail(format!("{r}: {e}")))?;
        for (row, ((b, f, i), _, has)) in rows.iter().enumerate() {
            let ints = columns[0].as_list::<i32>();
            prop_assert_eq!(ints.is_null(row), has & 12 == 0);
            let want: &[i64] = if has & 4 != 0 { i } else if has & 8 != 0 { &[1, 2] } else { &[] };
            let got = ints.value(row);
            prop_assert_eq!(got.as_primitive::<Int64Type>().values().as_ref(), want);
            let bytes = columns[1].as_list::<i32>();
            prop_assert_eq!(bytes.is_null(row), has & 1 == 0);
            if has & 1 != 0 {
                let got: Vec<Vec<u8>> = bytes.value(row).as_binary::<i32>().iter().map(|b| b.unwrap().to_vec()).collect();
                prop_assert_eq!(&got, b);
            }
            let floats = columns[2].as_list::<i32>();
            prop_assert_eq!(floats.is_null(row), has & 2 == 0);
            if has & 2 != 0 {
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let got = floats.value(row);
                prop_assert_eq!(bits(got.as_primitive::<Float32Type>().values()), bits(f));
            }
        }
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..60), at in 0usize..60) {
        let mut record = example(&[("b", List::Bytes(vec![vec![1; 20]])), ("i", List::Ints(vec![5]))], true);
        let at = at.min(record.len());
        record.splice(at..at, noise);
        let records = BinaryArray::from_iter_values([record]);
        let wanted = features(&[("b", ColumnType::Bytes, FeatureShape::Scalar), ("i", ColumnType::Int64, FeatureShape::Fixed(1))]);
        drop(parse_example(&records, &wanted));
    }
}

#[test]
fn what_is_lacking_is_null_only_where_it_was_said() {
    let full = example(
        &[("s", List::Ints(vec![1])), ("p", List::Floats(vec![1.0, 2.0])), ("l", List::Ints(vec![3]))],
        true,
    );
    let empty = example(&[("s", List::Ints(vec![])), ("p", List::Floats(vec![]))], true);
    let all = [
        ("s", ColumnType::Int64, FeatureShape::Scalar),
        ("p", ColumnType::Float32, FeatureShape::Fixed(2)),
        ("l", ColumnType::Int64, FeatureShape::List),
    ];
    let records = BinaryArray::from_iter_values([&full, &empty, &vec![]]);
    for column in parse_example(&records, &optional(&all)).unwrap() {
        assert!(column.is_valid(0) && column.is_null(1) && column.is_null(2));
    }
    let lists = &parse_example(&records, &features(&all[2..])).unwrap()[0];
    assert_eq!((lists.null_count(), lists.as_list::<i32>().value_length(2)), (0, 0));
    for (n, want) in [
        (0, "feature `s` is empty in the record, and `parse_example` says int64; "),
        (1, "feature `p` is empty in the record, and `parse_example` says float32[2]; "),
    ] {
        let (row, e) = parse_example(&records, &features(&all[n..=n])).unwrap_err();
        assert!(
            row == 1 && e.message().starts_with(want) && e.message().contains("?`, which gives null"),
            "{e}"
        );
    }
    let (row, e) = parse_example(&records.slice(2, 1), &features(&all)).unwrap_err();
    assert!(row == 0 && e.message().starts_with("feature `s` is not in the record"), "{e}");
    assert_eq!(e.kind(), caju_types::ErrorKind::InvalidArgument);
}

#[test]
fn scalars_and_fixed_lists() {
    let records = BinaryArray::from_iter_values([
        example(&[("s", List::Bytes(vec![b"x".to_vec()])), ("p", List::Floats(vec![1.0, 2.0]))], true),
        example(&[("s", List::Bytes(vec![]))], true),
        vec![],
    ]);
    let wanted = optional(&[
        ("s", ColumnType::Bytes, FeatureShape::Scalar),
        ("p", ColumnType::Float32, FeatureShape::Fixed(2)),
    ]);
    let columns = parse_example(&records, &wanted).unwrap();
    for (column, (name, f)) in columns.iter().zip(&wanted) {
        assert_eq!(column.data_type(), feature_field(name, f).unwrap().data_type());
        assert_eq!(column.null_count(), 2);
    }
    assert_eq!(columns[0].as_binary::<i32>().value(0), b"x");
    let first = columns[1].as_fixed_size_list().value(0);
    assert_eq!(first.as_primitive::<Float32Type>().values().as_ref(), &[1.0, 2.0]);
}

#[test]
fn bad_records_are_named() {
    let good = example(&[("x", List::Ints(vec![1]))], true);
    let two = example(&[("x", List::Ints(vec![1, 2]))], true);
    let text = example(&[("x", List::Bytes(vec![b"1".to_vec()]))], true);
    let cut = good[..good.len() - 1].to_vec();
    let wanted = features(&[("x", ColumnType::Int64, FeatureShape::Scalar)]);
    for (bad, want) in [
        (two, "feature `x` has 2 values, but `parse_example` says 1; give it a shape, or make it a list"),
        (text, "feature `x` holds bytes, but `parse_example` says int64"),
        (cut, "the record is not a valid tf.train.Example: it ends inside a field"),
        (b"<html>".to_vec(), "the record is not a valid tf.train.Example: it has a field of an unknown kind"),
    ] {
        let records = BinaryArray::from_iter_values([&good, &good, &bad, &bad]);
        let (row, e) = parse_example(&records, &wanted).unwrap_err();
        assert_eq!((row, e.message()), (2, want));
    }
    let e = feature_field("x", &features(&[("x", ColumnType::Bool, FeatureShape::Scalar)])[0].1).unwrap_err();
    assert!(e.message().starts_with("feature `x`"), "{e}");
}

/// An integer takes 1 byte on the wire and 8 in memory, an empty byte string 2 and 16.
#[test]
fn long_lists_are_counted_before_they_take_memory() {
    let ints = example(&[("x", List::Ints(vec![1; 100_000]))], true);
    let texts = example(&[("x", List::Bytes(vec![vec![]; 100_000]))], true);
    for (record, dtype, needed) in [(ints, ColumnType::Int64, 800_000), (texts, ColumnType::Bytes, 1_600_000)]
    {
        let records = BinaryArray::from_vec(vec![b"", &record[..]]);
        let features = optional(&[("x", dtype, FeatureShape::List)]);
        let parse = |limit| caju_types::budget::scope(limit, || parse_example(&records, &features));
        assert!(parse(needed + 10_000).is_ok());
        let (row, e) = parse(needed - 1).unwrap_err();
        assert_eq!(row, 1);
        // Lengths count as numbers.
        assert!(
            e.message().starts_with("10000") && e.message().contains(" values of feature `x` needs"),
            "{e}"
        );
    }
    // One long value is one value.
    let image = example(&[("x", List::Bytes(vec![vec![0; 1 << 20]]))], true);
    let features = features(&[("x", ColumnType::Bytes, FeatureShape::Scalar)]);
    let records = BinaryArray::from_vec(vec![&image[..]]);
    assert!(caju_types::budget::scope(4096, || parse_example(&records, &features)).is_ok());
}
