//! Casts whose result would not fit its type: errors of their row, as integers that do not fit are.

use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::{DataType, Float32Type, Float64Type, TimestampMicrosecondType};
use caju_types::ErrorKind;

use super::*;

fn numbers() -> RecordBatch {
    let x = [Some(1.5), Some(1e39), None, Some(f64::NEG_INFINITY), Some(f64::NAN)];
    let s = [Some("1.5"), Some("-1e39"), None, Some("-Infinity"), Some("nan")];
    let huge = ["1.5", "1e399", "2", "inf", "NaN"];
    let l = x.map(|v| Some(vec![Some(0.5), v]));
    batch([
        ("x", Arc::new(Float64Array::from_iter(x)) as ArrayRef),
        ("s", Arc::new(StringArray::from_iter(s))),
        ("huge", Arc::new(StringArray::from_iter_values(huge))),
        ("i", Arc::new(Int64Array::from(vec![1, 70_000, 3, 4, 5]))),
        ("l", Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(l))),
    ])
}

fn floats(of: &ArrayRef) -> Vec<Option<f32>> {
    of.as_primitive::<Float32Type>().iter().collect()
}

#[test]
fn a_finite_number_that_would_become_infinite_is_an_error_of_its_row() {
    let b = numbers();
    for (sql, row, what) in [
        ("cast(x as real)", 1, "1e39 does not fit Float32"),
        ("x::real", 1, "1e39 does not fit Float32"),
        ("arrow_cast(x, 'Float32')", 1, "1e39 does not fit Float32"),
        ("arrow_cast(i, 'Float16')", 1, "70000 does not fit Float16"),
        ("cast(s as real)", 1, "-1e39 does not fit Float32"),
        ("cast(huge as double)", 1, "1e399 does not fit Float64"),
        ("cast(1e39 as real)", 0, "1e39 does not fit Float32"),
        ("cast('1e399' as double)", 0, "1e399 does not fit Float64"),
        ("cast(l as real[])", 1, "a value does not fit List("),
        ("arrow_cast(l, 'LargeList(Float32)')", 1, "a value does not fit LargeList("),
        ("arrow_cast(named_struct('a', x), 'Struct(\"a\": Float32)')", 1, "a value does not fit Struct("),
        ("arrow_cast(arrow_cast(s, 'Dictionary(Int32, Utf8)'), 'Float32')", 1, "-1e39 does not fit Float32"),
    ] {
        let e = try_eval(&b, sql).expect_err(sql);
        assert_eq!((e.row, e.error.kind()), (Some(row), ErrorKind::InvalidArgument), "{sql}: {e}");
        assert!(e.error.message().contains(what) && e.error.message().contains("wider type"), "{sql}: {e}");
    }
}

#[test]
fn infinite_values_and_values_that_are_no_numbers_pass() {
    let b = numbers();
    let last = b.slice(2, 3);
    for sql in ["cast(x as real)", "cast(s as real)", "try_cast(x as real)"] {
        let y = floats(&eval(&last, sql));
        assert_eq!(y[..2], [None, Some(f32::NEG_INFINITY)], "{sql}");
        assert!(y[2].is_some_and(f32::is_nan), "{sql}");
    }
    let y = eval(&last, "cast(l as real[])");
    assert_eq!(floats(&y.as_list::<i32>().value(1)), [Some(0.5), Some(f32::NEG_INFINITY)]);
    // Arithmetic of floats gives infinite values, as everywhere.
    assert_eq!(eval(&b, "1e308 * 10.0").as_primitive::<Float64Type>().value(0), f64::INFINITY);
    // Digits may be lost.
    assert_eq!(floats(&eval(&b, "cast(0.1 as real)"))[0], Some(0.1));
}

/// As for other values that cannot be cast.
#[test]
fn try_cast_gives_null_for_a_number_that_does_not_fit() {
    let b = numbers();
    for sql in ["try_cast(x as real)", "try_cast(s as real)", "arrow_try_cast(x, 'Float32')"] {
        let y = floats(&eval(&b, sql));
        assert_eq!(y[..4], [Some(1.5), None, None, Some(f32::NEG_INFINITY)], "{sql}");
    }
    let y = eval(&b, "try_cast(l as real[])");
    assert_eq!(floats(&y.as_list::<i32>().value(1)), [Some(0.5), None]);
    assert_eq!(floats(&y.as_list::<i32>().value(3)), [Some(0.5), Some(f32::NEG_INFINITY)]);
    assert!(eval(&b, "try_cast(1e39 as real)").is_null(0));
}

#[test]
fn a_number_in_a_text_that_does_not_fit_a_float64_is_refused() {
    let b = numbers();
    for sql in ["1e399", "x + 1e400", "normalize(decode_image(arrow_cast(s, 'Binary')), mean => 1e999)"] {
        let e = bind_error(&b, sql);
        assert!(e.contains("the number `1e") && e.ends_with("does not fit a float64"), "{sql}: {e}");
    }
    assert!(bind_error(&b, &"9".repeat(400)).contains("does not fit a float64"));
    assert!(eval(&b, "1e308").as_primitive::<Float64Type>().value(0).is_finite());
}

/// The function of Arrow gives a negative number.
#[test]
fn the_bits_of_a_long_text_that_do_not_fit_are_an_error_of_their_row() {
    let b = batch([("n", Arc::new(Int64Array::from(vec![1, 1 << 28])) as ArrayRef)]);
    for sql in ["bit_length(repeat('a', n))", "bit_length(arrow_cast(repeat('a', n), 'Utf8View'))"] {
        let e = try_eval(&b, sql).expect_err(sql);
        assert_eq!((e.row, e.error.kind()), (Some(1), ErrorKind::InvalidArgument), "{sql}: {e}");
        assert!(
            e.error.message().contains("`bit_length` of a text of 268435456 bytes does not fit Int32"),
            "{e}"
        );
    }
    let one_less = batch([("n", Arc::new(Int64Array::from(vec![(1 << 28) - 1])) as ArrayRef)]);
    let y = eval(&one_less, "bit_length(repeat('a', n))");
    assert_eq!(y.as_primitive::<arrow::datatypes::Int32Type>().value(0), i32::MAX - 7);
    let y = eval(&b.slice(1, 1), "bit_length(arrow_cast(repeat('a', n), 'LargeUtf8'))");
    assert_eq!(
        (y.data_type(), y.as_primitive::<arrow::datatypes::Int64Type>().value(0)),
        (&DataType::Int64, 1 << 31)
    );
}

/// DataFusion gives the last time that there is, and 1970 for NaN.
#[test]
fn seconds_that_are_no_time_are_an_error_of_their_row() {
    let b = batch([("x", Arc::new(Float64Array::from(vec![9e9, 1e10, f64::NAN, -1e10])) as ArrayRef)]);
    for row in 1..4 {
        let e = try_eval(&b.slice(row, 1), "to_timestamp(x)").unwrap_err();
        assert_eq!((e.row, e.error.kind()), (Some(0), ErrorKind::InvalidArgument), "{e}");
        assert!(e.error.message().contains("does not fit nanoseconds in 64 bits"), "{e}");
    }
    assert_eq!(try_eval(&b, "to_timestamp(x)").unwrap_err().row, Some(1));
    assert_eq!(eval(&b.slice(0, 1), "to_timestamp(x)").len(), 1);
    assert!(try_eval(&b, "to_timestamp(1e300)").is_err());
}

#[test]
fn a_time_that_a_function_cannot_compute_is_an_error_of_its_row() {
    let seconds = Int64Array::from(vec![Some(0), None, Some(i64::MAX)]);
    let b = batch([("s", Arc::new(seconds) as ArrayRef)]);
    for (sql, row) in [
        ("date_part('year', arrow_cast(s, 'Timestamp(Second, None)'))", 2),
        ("extract(year from arrow_cast(s, 'Timestamp(Second, None)'))", 2),
        ("date_part('year', arrow_cast(9223372036854775807, 'Timestamp(Second, None)'))", 0),
    ] {
        let e = try_eval(&b, sql).expect_err(sql);
        assert_eq!((e.row, e.error.kind()), (Some(row), ErrorKind::InvalidArgument), "{sql}: {e}");
        assert!(e.error.message().contains("9223372036854775807"), "{sql}: {e}");
        let y = eval(&b.slice(0, 2), "date_part('year', arrow_cast(s, 'Timestamp(Second, None)'))");
        assert_eq!(y.as_primitive::<arrow::datatypes::Int32Type>().value(0), 1970);
        assert!(y.is_null(1), "a null stays null");
    }
}

#[test]
fn a_field_of_a_struct_that_the_expression_makes_null_is_null() {
    let b = batch([("i", Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef)]);
    let st = "case when i < 2 then named_struct('x', i, 'in', named_struct('y', i)) end";
    for sql in [
        format!("({st})['x']"),
        format!("get_field({st}, 'x')"),
        format!("({st})['in']['y']"),
        "get_field(nullif(named_struct('x', i), named_struct('x', 2)), 'x') + 0 * i".to_string(),
        "get_field(get_field(named_struct('a', case when i < 2 then named_struct('y', i) end), 'a'), 'y')"
            .into(),
    ] {
        let y = eval(&b, &sql);
        assert!(y.is_null(1), "{sql}: {y:?}");
        assert_eq!(y.as_primitive::<arrow::datatypes::Int64Type>().value(0), 1, "{sql}");
    }
}

#[test]
fn a_rounding_that_is_no_number_is_an_error_of_its_row() {
    let b = batch([("x", Arc::new(Float64Array::from(vec![Some(2.5), None, Some(1e300)])) as ArrayRef)]);
    for (sql, row) in [
        ("round(x, 309)", 0),
        ("round(x, -400)", 0),
        ("trunc(x, 400)", 0),
        ("round(x, 20)", 2),
        ("round(2.5e0, 309)", 0),
    ] {
        let e = try_eval(&b, sql).expect_err(sql);
        assert_eq!((e.row, e.error.kind()), (Some(row), ErrorKind::InvalidArgument), "{sql}: {e}");
    }
    let y = eval(&b.slice(0, 2), "round(x, 0)");
    assert_eq!(y.as_primitive::<Float64Type>().iter().collect::<Vec<_>>(), [Some(3.0), None]);
    let of_nan = batch([("x", Arc::new(Float64Array::from(vec![f64::NAN, f64::INFINITY])) as ArrayRef)]);
    assert!(try_eval(&of_nan, "round(x, 2)").is_ok(), "what is no number stays so");
}

/// Libraries panic there with overflow checks, and wrap without them.
#[test]
fn a_time_at_the_end_of_its_range_is_an_error_of_its_row() {
    let times = Int64Array::from(vec![0, i64::MIN + 1, i64::MAX]);
    let b = batch([("n", Arc::new(times) as ArrayRef)]);
    let ts = "arrow_cast(n, 'Timestamp(Nanosecond, None)')";
    for (sql, row) in [
        (format!("date_trunc('day', {ts})"), 1),
        ("array_position([n], 1, -9223372036854775807 - 1)".to_string(), 0),
    ] {
        let e = try_eval(&b, &sql).expect_err(&sql);
        assert_eq!((e.row, e.error.kind()), (Some(row), ErrorKind::InvalidArgument), "{sql}: {e}");
        let text = e.error.message();
        assert!(
            text.contains("outside of what the function computes") || text.contains("position"),
            "{sql}: {e}"
        );
    }
}

#[test]
fn padding_with_another_value_is_refused() {
    let b = batch([("i", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]);
    for sql in [
        "pad([i], 2, 1.5)",
        "pad([arrow_cast(i, 'Int32')], 2, 3000000000)",
        "pad([arrow_cast(i, 'Float32')], 2, 1e300)",
    ] {
        let e = bind_error(&b, sql);
        assert!(e.contains("pads with"), "{sql}: {e}");
    }
    eval(&b, "pad([arrow_cast(i, 'Float32')], 2, 0.1)");
    eval(&b, "pad([i], 2, 7)");
}

/// As `docs/pipeline.md` says.
#[test]
fn numbers_of_two_types_are_computed_in_the_wider_one() {
    let b = batch([
        ("i", Arc::new(Int64Array::from(vec![16_777_217])) as ArrayRef),
        ("f", Arc::new(Float32Array::from(vec![16_777_216.0])) as ArrayRef),
        ("big", Arc::new(Int64Array::from(vec![9_007_199_254_740_993])) as ArrayRef),
    ]);
    for (sql, want) in [
        ("i = f", true),
        ("i = cast(f as double)", false),
        ("big = 9007199254740992e0", true),
        ("big = 9007199254740992", false),
    ] {
        assert_eq!(eval(&b, sql).as_boolean().value(0), want, "{sql}");
    }
    assert_eq!(eval(&b, "i + f").data_type(), &DataType::Float32);
    let zoned = "arrow_cast(0, 'Timestamp(Second, Some(\"+02:00\"))')";
    let y = eval(&b, &format!("arrow_cast(7200, 'Timestamp(Second, None)') = {zoned}"));
    assert!(y.as_boolean().value(0), "02:00 is midnight of UTC in that zone");
}

/// The day after 02:30 on 9 March 2024 in New York has no such time.
#[test]
fn an_interval_to_a_local_time_that_is_skipped_says_so() {
    let times =
        TimestampMicrosecondArray::from(vec![1_709_969_400_000_000]).with_timezone("America/New_York");
    let b = batch([("t", Arc::new(times) as ArrayRef)]);
    let e = try_eval(&b, "t + interval '1 day'").unwrap_err().error;
    assert!(e.message().contains("skips or has twice"), "{e}");
    let utc = r#"arrow_cast(t, 'Timestamp(Microsecond, Some("UTC"))') + interval '1 day'"#;
    assert_eq!(eval(&b, utc).as_primitive::<TimestampMicrosecondType>().value(0), 1_710_055_800_000_000);
}
