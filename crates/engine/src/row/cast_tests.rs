use std::collections::HashMap;

use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{
    BinaryArray, BooleanArray, Float32Array, Float64Array, Int32Array, Int64Array, NullArray, StringArray,
    TimestampMicrosecondArray, UInt64Array,
};

use super::*;

fn field(data_type: DataType) -> Field {
    Field::new("x", data_type, true)
}

fn tensor(item: DataType, shape: &[usize]) -> Field {
    let n = i32::try_from(shape.iter().product::<usize>()).unwrap();
    let metadata = HashMap::from([
        ("ARROW:extension:name".to_string(), TENSOR.to_string()),
        ("ARROW:extension:metadata".to_string(), serde_json::json!({ "shape": shape }).to_string()),
    ]);
    let item = Arc::new(Field::new("item", item, true));
    field(DataType::FixedSizeList(item, n)).with_metadata(metadata)
}

fn list_of(item: DataType) -> Field {
    field(DataType::List(Arc::new(Field::new("item", item, true))))
}

fn fitted(made: impl Array + 'static, to: DataType) -> Result<ArrayRef, CastError> {
    let from = field(made.data_type().clone());
    cast_column(&(Arc::new(made) as ArrayRef), &from, &field(to))
}

/// The row that is refused.
fn refused(made: impl Array + 'static, to: DataType) -> usize {
    fitted(made, to).unwrap_err().row
}

#[test]
fn what_is_the_same_in_the_other_type_passes() {
    let made = fitted(Int64Array::from(vec![Some(2), None, Some(-3)]), DataType::Float64).unwrap();
    assert_eq!(made.as_primitive::<Float64Type>(), &Float64Array::from(vec![Some(2.0), None, Some(-3.0)]));
    let made = fitted(Int32Array::from(vec![1, -2]), DataType::Int64).unwrap();
    assert_eq!(made.as_primitive::<Int64Type>().values(), &[1, -2]);
    let made = fitted(Float64Array::from(vec![1.0, -0.0]), DataType::Int32).unwrap();
    assert_eq!(made.as_primitive::<Int32Type>().values(), &[1, 0]);
    assert!(fitted(Int64Array::from(vec![0, 1]), DataType::Boolean).is_ok());
    assert!(fitted(BooleanArray::from(vec![true]), DataType::Int64).is_ok());
    assert!(fitted(Float64Array::from(vec![0.1, f64::NAN, f64::INFINITY]), DataType::Float32).is_ok());
    assert!(fitted(StringArray::from(vec!["a"]), DataType::LargeUtf8).is_ok());
}

#[test]
fn whatever_would_change_is_refused_at_its_row() {
    assert_eq!(refused(Float64Array::from(vec![1.0, 1.9]), DataType::Int64), 1);
    assert_eq!(refused(Float64Array::from(vec![1.0, f64::NAN]), DataType::Int64), 1);
    assert_eq!(refused(Float64Array::from(vec![0.0, 9.3e18]), DataType::Int64), 1);
    assert_eq!(refused(Float64Array::from(vec![1.0, 1e300]), DataType::Float32), 1);
    assert_eq!(refused(Int64Array::from(vec![1, 2]), DataType::Boolean), 1);
    assert_eq!(refused(Int64Array::from(vec![1, 300]), DataType::UInt8), 1);
    assert_eq!(refused(Int64Array::from(vec![1, -1]), DataType::UInt64), 1);
    assert_eq!(refused(Int64Array::from(vec![1, (1 << 53) + 1]), DataType::Float64), 1);
    assert_eq!(refused(Int64Array::from(vec![1, i64::MAX]), DataType::Float64), 1);
    assert_eq!(refused(Int64Array::from(vec![1, (1 << 24) + 1]), DataType::Float32), 1);
    assert_eq!(refused(UInt64Array::from(vec![1, u64::MAX]), DataType::Int64), 1);
    assert_eq!(refused(UInt64Array::from(vec![1, u64::MAX]), DataType::Float64), 1);
}

#[test]
fn kinds_never_become_each_other() {
    assert_eq!(refused(StringArray::from(vec![None, Some("5")]), DataType::Int64), 1);
    assert_eq!(refused(Int64Array::from(vec![5]), DataType::Utf8), 0);
    assert_eq!(refused(BinaryArray::from_vec(vec![b"a"]), DataType::Utf8), 0);
    assert_eq!(refused(StringArray::from(vec!["a"]), DataType::Binary), 0);
    assert_eq!(refused(StringArray::from(vec!["2024-01-01"]), DataType::Date32), 0);
    assert_eq!(refused(Int64Array::from(vec![5]), DataType::Timestamp(TimeUnit::Microsecond, None)), 0);
    assert_eq!(refused(Int64Array::from(vec![5]), DataType::Duration(TimeUnit::Microsecond)), 0);
}

#[test]
fn nothing_is_null_of_every_type_that_has_a_place_for_it() {
    let made = fitted(NullArray::new(2), DataType::Utf8).unwrap();
    assert_eq!((made.null_count(), made.data_type()), (2, &DataType::Utf8));
    let strict = Field::new("x", DataType::Int64, false);
    let made: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    assert_eq!(cast_column(&made, &field(DataType::Int64), &strict).unwrap_err().row, 1);
}

#[test]
fn times_keep_their_instants() {
    let day = 86_400_000_000i64;
    let made = TimestampMicrosecondArray::from(vec![Some(day), None]);
    let zoned = DataType::Timestamp(TimeUnit::Microsecond, Some("Europe/Berlin".into()));
    let there = fitted(made.clone(), zoned.clone()).unwrap();
    assert_eq!(there.data_type(), &zoned);
    let back = cast_column(&there, &field(zoned), &field(made.data_type().clone())).unwrap();
    assert_eq!(back.as_ref(), &made as &dyn Array);
    assert!(fitted(made, DataType::Date32).is_ok());
    assert_eq!(refused(TimestampMicrosecondArray::from(vec![day, day + 1]), DataType::Date32), 1);
    let seconds = DataType::Timestamp(TimeUnit::Second, None);
    assert_eq!(refused(TimestampMicrosecondArray::from(vec![day, day + 1]), seconds), 1);
    let nanos = DataType::Timestamp(TimeUnit::Nanosecond, None);
    assert_eq!(refused(TimestampMicrosecondArray::from(vec![day, i64::MAX / 2]), nanos), 1);
}

fn lists_of(rows: &[Option<&[i64]>]) -> ArrayRef {
    let rows = rows.iter().map(|row| row.map(|r| r.iter().map(|v| Some(*v)).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(rows))
}

#[test]
fn lists_of_one_length_and_tensors_are_each_other() {
    let made = lists_of(&[Some(&[1, 2]), None, Some(&[3, 4])]);
    let to = tensor(DataType::Float64, &[2]);
    let there = cast_column(&made, &list_of(DataType::Int64), &to).unwrap();
    assert_eq!((there.len(), there.null_count(), there.data_type()), (3, 1, to.data_type()));
    let back = cast_column(&there, &to, &list_of(DataType::Int64)).unwrap();
    assert_eq!(back.as_list::<i32>().value(2).as_ref(), made.as_list::<i32>().value(2).as_ref());
    assert!(back.is_null(1));

    let ragged =
        cast_column(&lists_of(&[Some(&[1, 2]), Some(&[3])]), &list_of(DataType::Int64), &to).unwrap_err();
    assert_eq!((ragged.row, ragged.instead.as_deref()), (1, Some("list of float64")));
    let longer = cast_column(&there, &to, &tensor(DataType::Float64, &[3])).unwrap_err();
    assert_eq!((longer.row, longer.instead.as_deref()), (0, Some("list of float64")));
}

#[test]
fn tensors_of_several_dimensions_are_lists_of_lists() {
    let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..12));
    let from = tensor(DataType::Int64, &[2, 3]);
    let DataType::FixedSizeList(item, n) = from.data_type() else { panic!() };
    let made: ArrayRef = Arc::new(FixedSizeListArray::new(Arc::clone(item), *n, values, None));
    let inner = list_of(DataType::Int64).with_name("item");
    let there = cast_column(&made, &from, &field(DataType::List(Arc::new(inner)))).unwrap();
    let row = there.as_list::<i32>().value(1);
    assert_eq!(row.as_list::<i32>().value(1).as_primitive::<Int64Type>().values(), &[9, 10, 11]);
    let back = cast_column(&there, &field(there.data_type().clone()), &from).unwrap();
    assert_eq!(back.as_ref(), made.as_ref());
    let transposed = cast_column(&made, &from, &tensor(DataType::Int64, &[3, 2])).unwrap_err();
    assert!(transposed.why.contains("[2, 3]"), "{}", transposed.why);
}

#[test]
fn a_value_within_a_list_is_refused_at_the_row_of_its_list() {
    let rows = [Some(vec![Some(1.0)]), None, Some(vec![]), Some(vec![Some(2.0), Some(2.5)])];
    let made: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(rows));
    let e = cast_column(&made, &list_of(DataType::Float64), &list_of(DataType::Int64)).unwrap_err();
    assert_eq!((e.row, e.why.as_str(), e.instead.as_deref()), (3, "2.5", Some("list of float64")));
    let tail = made.slice(2, 2);
    assert_eq!(
        cast_column(&tail, &list_of(DataType::Float64), &list_of(DataType::Int64)).unwrap_err().row,
        1
    );
    assert!(cast_column(&made.slice(0, 3), &list_of(DataType::Float64), &list_of(DataType::Int64)).is_ok());
    let narrow = cast_column(&tail, &list_of(DataType::Float64), &list_of(DataType::Float32)).unwrap();
    let last = narrow.as_list::<i32>().value(1);
    assert_eq!(last.as_any().downcast_ref::<Float32Array>().unwrap().values(), &[2.0, 2.5]);
}
