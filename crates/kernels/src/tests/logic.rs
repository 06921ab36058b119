use arrow::array::{Array, AsArray, BooleanArray, Float64Array, Int64Array};
use arrow::datatypes::Float64Type;
use proptest::prelude::*;

use super::*;

/// The value of a side for one row: none is null. An error is a division by zero.
type Side = Result<Option<bool>, ()>;

fn greater(x: Option<i64>) -> Side {
    Ok(x.map(|x| x > 0))
}

fn divided(x: Option<i64>) -> Side {
    match x {
        Some(0) => Err(()),
        x => Ok(x.map(|x| 100 / x > 0)),
    }
}

/// SQL's `and` (decided by false) or `or` (decided by true): the right side counts only where the left one does not decide.
fn combined(decisive: bool, left: Side, right: impl FnOnce() -> Side) -> Side {
    let left = left?;
    if left == Some(decisive) {
        return Ok(left);
    }
    let right = right()?;
    Ok(if right == Some(decisive) { right } else { left.and(right) })
}

type Row = (Option<i64>, Option<i64>, Option<i64>);

/// What a row gives alone.
type OfRow = fn(&Row) -> Side;

/// `x + 0 in (z, 5, 100 / y)`: the addition keeps DataFusion from writing it as `or` itself.
fn in_items((x, y, z): &Row) -> Side {
    let equal = |item: Option<i64>| Ok(x.zip(item).map(|(x, item)| x == item));
    let divided = || match y {
        Some(0) => Err(()),
        y => equal(y.map(|y| 100 / y)),
    };
    combined(true, combined(true, equal(*z), || equal(Some(5))), divided)
}

const EXPRESSIONS: [(&str, OfRow); 6] = [
    ("x + 0 in (z, 5, 100 / y)", in_items),
    ("x + 0 not in (z, 5, 100 / y)", |row| in_items(row).map(|found| found.map(|found| !found))),
    ("x > 0 and 100 / y > 0", |(x, y, _)| combined(false, greater(*x), || divided(*y))),
    ("x > 0 or 100 / y > 0", |(x, y, _)| combined(true, greater(*x), || divided(*y))),
    ("(x > 0 or 100 / y > 0) and 100 / z > 0", |(x, y, z)| {
        combined(false, combined(true, greater(*x), || divided(*y)), || divided(*z))
    }),
    ("x > 0 or (y > 0 and 100 / z > 0)", |(x, y, z)| {
        combined(true, greater(*x), || combined(false, greater(*y), || divided(*z)))
    }),
];

fn table(rows: &[Row]) -> RecordBatch {
    let column =
        |of: fn(&Row) -> Option<i64>| Arc::new(rows.iter().map(of).collect::<Int64Array>()) as ArrayRef;
    // A column that no side reads has another type where a side is computed for some rows.
    let text: arrow::array::StringArray = rows.iter().map(|_| Some("unread")).collect();
    batch([("text", Arc::new(text)), ("x", column(|r| r.0)), ("y", column(|r| r.1)), ("z", column(|r| r.2))])
}

proptest! {
    #[test]
    fn a_side_is_computed_for_the_rows_that_need_it(
        rows in prop::collection::vec(
            (prop::option::of(-1i64..2), prop::option::of(-1i64..2), prop::option::of(-1i64..2)),
            1..40,
        ),
    ) {
        let all = table(&rows);
        for (sql, of_row) in EXPRESSIONS {
            let wanted: Vec<Side> = rows.iter().map(of_row).collect();
            match try_eval(&all, sql) {
                Ok(found) => {
                    let found = found.as_any().downcast_ref::<BooleanArray>().unwrap();
                    prop_assert_eq!(found.iter().map(Ok).collect::<Vec<Side>>(), wanted, "{}", sql);
                }
                Err(e) => prop_assert!(e.row.is_some_and(|row| wanted[row].is_err()), "{}: {:?}", sql, e.row),
            }
        }
    }
}

/// Rows that need the right side are not found by evaluating a batch again and again.
#[test]
fn a_batch_in_which_every_second_row_would_fail_is_evaluated_once() {
    let rows: Vec<Row> = (0..8192).map(|i| (Some(i % 2), Some(i % 2), None)).collect();
    let all = table(&rows);
    let bound = bind(&all, "x > 0 and 100 / y > 0").unwrap();
    let once = std::time::Instant::now();
    let found = bound.evaluate(&all, None).unwrap().remove(0);
    let once = once.elapsed();
    assert_eq!(found.as_any().downcast_ref::<BooleanArray>().unwrap().true_count(), 4096);
    // Each row alone, which is what looking for rows that do not fail comes to.
    let alone = std::time::Instant::now();
    for row in 0..8192 {
        bound.evaluate(&all.slice(row, 1), None).unwrap();
    }
    let alone = alone.elapsed();
    assert!(once * 4 < alone, "{once:?} for all rows at once, {alone:?} for each alone");
}

/// `=` finds that `-0.0` is `0.0`, and so does whatever else compares values.
#[test]
fn zeros_of_either_sign_are_equal_everywhere() {
    let zeros: ArrayRef = Arc::new(Float64Array::from(vec![-0.0, 0.0]));
    let ones: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 1.0]));
    let ints: ArrayRef = Arc::new(Int64Array::from(vec![0, 0]));
    let b = batch([("f", zeros), ("one", ones), ("i", ints)]);
    for sql in [
        "f = 0.0",
        "f in (0.0)",
        "f in (0.0, 1.0, 2.0, 3.0, 4.0)",
        "not (f not in (-0.0, 1.0, 2.0, 3.0, 4.0))",
        "f in (one, one + 1, i, one + 2)",
        "case f when 0.0 then true else false end",
        "case f when 2.0 then false when -0.0 then true when 3.0 then false else false end",
        "case f when one then false when one - 1 then true else false end",
        "nullif(f, 0.0) is null",
        "nullif(f, one) = 0",
        "array_has([one, f], 0.0)",
        "array_has([1.0, 0.0], f)",
        "array_has_any([f, 3.0], [0.0])",
        "array_has_all([f, one], [-0.0, 1.0])",
        "array_position([one, f], 0.0) = 2",
        "array_position([one, 0.0], f) = 2",
        "array_length(array_positions([f, one, 0.0], -0.0)) = 2",
        "array_has([[f]], [0.0])",
        "array_length(array_remove_all([f, one, 0.0], 0.0)) = 1",
        "array_length(array_remove([f, one], -0.0)) = 1",
        "array_has(array_replace([f, one], 0.0, 5.0), 5.0)",
        "array_length(array_intersect([f], [0.0])) = 1",
        "array_length(array_distinct([f, 0.0])) = 1",
        "array_length(array_except([f], [0.0])) is null or array_length(array_except([f], [0.0])) = 0",
        "-0.0 in (0.0, 1.0, 2.0, 3.0, 4.0)",
        "nullif(-0.0, 0.0) is null",
    ] {
        let found = eval(&b, sql);
        assert_eq!(found.as_boolean().iter().collect::<Vec<_>>(), [Some(true); 2], "{sql}");
    }
    // Each level of a call is computed once.
    let nested = (0..40).fold("f".to_owned(), |of, i| format!("nullif({of}, {i}.5)"));
    assert_eq!(eval(&b, &nested).null_count(), 0);
    // What is not looked for keeps its sign.
    for sql in [
        "nullif(f, 1.0)",
        "array_remove([f], 1.0)[1]",
        "array_remove([f], 1)[1]",
        "array_remove([f, one], one)[1]",
        "array_replace([f, one], 1, 2.0)[1]",
        "case f when 0.0 then f end",
    ] {
        let found = eval(&b, sql);
        let signs: Vec<_> =
            found.as_primitive::<Float64Type>().values().iter().map(|f| f.is_sign_negative()).collect();
        assert_eq!(signs, [true, false], "{sql}");
    }
}
