use std::sync::Arc;

use arrow::array::*;
use arrow::datatypes::*;

use super::*;

fn table() -> RecordBatch {
    let s = StructArray::from(vec![(
        Arc::new(Field::new("Name", DataType::Utf8, true)),
        Arc::new(StringArray::from(vec![Some("x"), None, Some("z")])) as ArrayRef,
    )]);
    let list = ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(1), Some(2)]),
        None,
        Some(vec![Some(7)]),
    ]);
    batch([
        ("x", Arc::new(Int32Array::from(vec![Some(0), None, Some(2)])) as ArrayRef),
        ("X", Arc::new(StringArray::from(vec![Some("upper"), None, Some("CASE")]))),
        ("label", Arc::new(Int64Array::from(vec![Some(99), Some(100), None]))),
        ("image/encoded", Arc::new(BinaryArray::from(vec![Some(b"a".as_ref()), None, Some(b"")]))),
        ("S", Arc::new(s)),
        ("list", Arc::new(list)),
        ("user", Arc::new(StringArray::from(vec!["ann", "bob", "cid"]))),
    ])
}

#[test]
fn arithmetic_over_nulls() {
    let b = table();
    let y = eval(&b, "ln(x + 1)");
    assert_eq!(
        y.as_primitive::<Float64Type>().iter().collect::<Vec<_>>(),
        [Some(0.0), None, Some(3f64.ln())]
    );
    let y = eval(&b, "label < 100");
    assert_eq!(y.as_boolean().iter().collect::<Vec<_>>(), [Some(true), Some(false), None]);
    let y = eval(&b, "coalesce(x, 0)");
    assert_eq!(y.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(0), Some(0), Some(2)]);
    let y = eval(&b, "cast(x as float)");
    assert_eq!(y.as_primitive::<Float32Type>().iter().collect::<Vec<_>>(), [Some(0.0), None, Some(2.0)]);
    let y = eval(&b, "CAST(ln(greatest(coalesce(x, 0), 0) + 1) AS real)");
    assert!((y.as_primitive::<Float32Type>().value(2) - 3f32.ln()).abs() < 1e-6);
    assert_eq!(y.null_count(), 0);
}

#[test]
fn strings_lists_structs_and_names() {
    let b = table();
    let text =
        |sql: &str| eval(&b, sql).as_string::<i32>().iter().map(|s| s.map(str::to_owned)).collect::<Vec<_>>();
    let some = |s: &str| Some(s.to_owned());
    assert_eq!(text("lower(X)"), [some("upper"), None, some("case")]);
    assert_eq!(text("regexp_replace(X, '[A-Z]+', '-')"), [some("upper"), None, some("-")]);
    assert_eq!(text("S.Name"), [some("x"), None, some("z")]);
    assert_eq!(text("S['Name']"), [some("x"), None, some("z")]);
    assert_eq!(text("\"S\".\"Name\""), [some("x"), None, some("z")]);
    assert_eq!(
        text("case when x = 0 then 'null' when x is null then X else 'many' end"),
        [some("null"), None, some("many")]
    );
    assert_eq!(text("upper(user)"), [some("ANN"), some("BOB"), some("CID")]);
    let n = eval(&b, "array_length(list)");
    assert_eq!(n.as_primitive::<UInt64Type>().iter().collect::<Vec<_>>(), [Some(2), None, Some(1)]);
    let n = eval(&b, "list[1] + 1");
    assert_eq!(n.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(2), None, Some(8)]);
    let n = eval(&b, "array_append(list, 3)");
    assert_eq!(n.as_list::<i32>().value(0).as_primitive::<Int64Type>().values(), &[1, 2, 3]);
    assert_eq!(eval(&b, "\"image/encoded\"").as_binary::<i32>().value(0), b"a");
}

#[test]
fn constants_become_columns() {
    let b = table();
    assert_eq!(eval(&b, "1 + 1").as_primitive::<Int64Type>().values(), &[2, 2, 2]);
    assert_eq!(eval(&b, "'a' || 'b'").as_string::<i32>().value(2), "ab");
    assert_eq!(eval(&b, "null").len(), 3);
    let none = RecordBatch::try_new_with_options(
        Arc::new(Schema::empty()),
        vec![],
        &RecordBatchOptions::new().with_row_count(Some(4)),
    )
    .unwrap();
    assert_eq!(eval(&none, "7").len(), 4);
    assert_eq!(eval(&none, "uniform()").len(), 4);
}

#[test]
fn only_what_is_named_is_read() {
    let b = table();
    let bound = registry()
        .bind("s", &[("a".into(), "label + 1".into()), ("b".into(), "x + label".into())], &b.schema())
        .unwrap();
    assert_eq!(bound.columns(), [0, 2]);
    assert!(!bound.is_random());
    assert_eq!(bound.fields()[0].name(), "a");
    let out = bound.evaluate(&b, None).unwrap();
    assert_eq!(out.len(), 2);
    assert!(bound.evaluate(&b.project(&[0]).unwrap(), None).is_err());
    // Simplified, it is `label`. Its text still needs `x` where it is bound.
    let bound = registry()
        .bind("s", &[("a".into(), "case when true then label else x end".into())], &b.schema())
        .unwrap();
    assert_eq!(
        (bound.columns(), bound.passed(), bound.computed_from()),
        (&[0, 2][..], vec![Some(2)], vec![0, 2])
    );
    let bound = registry().bind("s", &[("a".into(), "label".into())], &b.schema()).unwrap();
    assert_eq!((bound.columns(), bound.computed_from()), (&[2][..], vec![]));
}

#[test]
fn predicates() {
    let b = table();
    let p = registry().bind_predicate("steps[1].filter", "label < 100 and x >= 0", &b.schema()).unwrap();
    let y = p.evaluate(&b, None).unwrap();
    assert_eq!(y[0].as_boolean().iter().collect::<Vec<_>>(), [Some(true), Some(false), None]);
    let e = registry().bind_predicate("steps[1].filter", "label + 1", &b.schema()).unwrap_err();
    assert_eq!(e.to_string(), "steps[1].filter: `label + 1` is Int64, and a condition must be boolean");
}

/// Sharing subexpressions changes no value, and a failing branch that is not taken does not fail because another expression
/// has it, too.
#[test]
fn common_subexpressions() {
    let b = table();
    let exprs = [
        ("a", "ln(x + 1) * 2"),
        ("b", "ln(x + 1) + length(lower(X))"),
        ("c", "case when x <> 0 then 10 / x else 0 end"),
        ("d", "case when x <> 0 then 10 / x + 1 else 1 end"),
        ("e", "upper(lower(X))"),
        ("f", "concat(lower(X), lower(X))"),
    ];
    let named: Vec<_> = exprs.iter().map(|(n, s)| ((*n).to_owned(), (*s).to_owned())).collect();
    let together = registry().bind("s", &named, &b.schema()).unwrap().evaluate(&b, None).unwrap();
    for (array, (_, sql)) in together.iter().zip(exprs) {
        assert_eq!(array, &eval(&b, sql), "{sql}");
    }
}

/// The items of `in` behind the first are computed for rows that equal none before: also where two columns share one.
#[test]
fn items_that_two_columns_share_are_computed_where_they_are_needed() {
    let one = || Arc::new(Int64Array::from(vec![1, 1])) as ArrayRef;
    let zero = Arc::new(Int64Array::from(vec![0, 0]));
    let b = batch([("x", one()), ("z", one()), ("y", zero as ArrayRef)]);
    let named = [("a", "x in (1, 2, 3, 10 / y)"), ("b", "z in (1, 2, 3, 10 / y)")];
    let named: Vec<_> = named.map(|(n, s)| (n.to_owned(), s.to_owned())).into();
    let together = registry().bind("s", &named, &b.schema()).unwrap().evaluate(&b, None).unwrap();
    assert!(together.iter().all(|column| column.as_boolean().true_count() == 2));
}

/// The error of a row names the row, even if the expression sees only some rows of the batch.
#[test]
fn failing_rows_are_found() {
    let x: Int64Array = (0..1000).map(|i| Some(i64::from(i != 637))).collect();
    let t: StringArray = (0..1000).map(|i| Some(if i == 801 { "abc" } else { "12" })).collect();
    let b = batch([("x", Arc::new(x) as ArrayRef), ("t", Arc::new(t))]);
    let e = try_eval(&b, "10 / x").unwrap_err();
    assert_eq!(e.row, Some(637));
    assert_eq!(e.error.to_string(), "column `y`: Divide by zero error");
    assert!(e.error.is_data_error());
    let e = try_eval(&b, "cast(t as int)").unwrap_err();
    assert_eq!(e.row, Some(801), "{e}");
    let e = try_eval(&b, "case when t = 'abc' then one_hot(7, 3) else one_hot(1, 3) end").unwrap_err();
    assert_eq!(
        (e.row, e.error.to_string()),
        (Some(801), "column `y`: one_hot: 7 is not a class from 0 to 2".into())
    );
}

/// A float holds 15 digits: a literal that is read as one before it becomes a decimal loses the others.
#[test]
fn long_literals_become_exact_decimals() {
    let b = table();
    for (literal, p, s) in [
        ("99999999999999999999999999999999999999", 38, 0),
        ("-99999999999999999999999999999999999999", 38, 0),
        ("123456789012345678.901234567890123456", 36, 18),
        ("1.25", 3, 2),
    ] {
        let y = eval(&b, &format!("cast({literal} as decimal({p}, {s}))"));
        assert_eq!(arrow::util::display::array_value_to_string(&y, 0).unwrap(), literal);
        let y = eval(&b, &format!("({literal})::numeric({p}, {s})"));
        assert_eq!(arrow::util::display::array_value_to_string(&y, 0).unwrap(), literal);
    }
}
