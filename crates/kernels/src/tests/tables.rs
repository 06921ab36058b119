use std::sync::Arc;

use arrow::array::*;
use arrow::compute::cast;
use arrow::datatypes::*;
use proptest::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::*;

fn bucket(bytes: &[u8], n: u64) -> i64 {
    i64::try_from((u128::from(xxh3_64(bytes)) * u128::from(n)) >> 64).unwrap()
}

fn ints(a: &ArrayRef) -> Vec<Option<i64>> {
    a.as_primitive::<Int64Type>().iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The same strings in every layout, sliced or not, fall into the same buckets.
    #[test]
    fn hash_bucket_is_one_function(
        rows in prop::collection::vec(prop::option::of("[a-zé]{0,30}"), 1..50),
        skip in 0usize..10,
        n in 1u32..2_000_000,
    ) {
        let plain: ArrayRef = Arc::new(StringArray::from(rows.clone()));
        let dictionary = DataType::Dictionary(Box::new(DataType::Int16), Box::new(DataType::Utf8));
        let types = [
            DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View, DataType::Binary, DataType::LargeBinary,
            DataType::BinaryView, dictionary,
        ];
        let skip = skip.min(rows.len());
        let want = |null: Option<i64>| -> Vec<Option<i64>> {
            rows[skip..].iter().map(|r| r.as_ref().map(|r| bucket(r.as_bytes(), n.into())).or(null)).collect()
        };
        for t in types {
            let b = batch([("c", cast(&plain, &t).unwrap().slice(skip, rows.len() - skip))]);
            prop_assert_eq!(ints(&eval(&b, &format!("hash_bucket(c, {n})"))), want(None), "{}", t);
            let empty = want(Some(bucket(b"", n.into())));
            if !matches!(t, DataType::Binary | DataType::LargeBinary | DataType::BinaryView) {
                prop_assert_eq!(&ints(&eval(&b, &format!("hash_bucket(coalesce(c, ''), {n})"))), &empty, "{}", t);
            }
            let y = eval(&b, &format!("hash_bucket(c, {n}, null_as => '')"));
            prop_assert_eq!(&ints(&y), &empty, "{}", t);
            prop_assert_eq!(y.null_count(), 0);
        }
    }

    /// Where our function replaces one of DataFusion, the values are equal.
    #[test]
    fn stand_ins_compute_the_same(
        rows in prop::collection::vec(prop::option::of(-4i32..5), 1..40),
        floats in prop::collection::vec(prop::option::of(prop::num::f64::ANY), 40),
    ) {
        let n = rows.len();
        let b = batch([
            ("x", Arc::new(Int32Array::from(rows)) as ArrayRef),
            ("f", Arc::new(Float64Array::from(floats).slice(0, n))),
        ]).slice(n / 4, n - n / 4);
        for sql in [
            "coalesce(x, 0)", "greatest(x, 1)", "least(1, x)", "greatest(f, 0)", "least(-0.0, f)", "coalesce(f, 1)",
            "cast(ln(greatest(coalesce(x, 0), 0) + 1) as real)", "greatest(x, null)", "coalesce(x, f)",
            "greatest(x, 1, f)", "coalesce(null, x, 3)", "coalesce(x, 1.5)", "least(try_cast(f as real), 3)",
            "coalesce(cast(x as smallint), 7)", "coalesce(1, x)",
        ] {
            let theirs = Registry::without_fusion(Limits::default());
            let bound = theirs.bind("s", &[("y".into(), sql.into())], &b.schema()).unwrap();
            let theirs = bound.evaluate(&b, None).unwrap();
            prop_assert_eq!(&theirs[0].to_data(), &eval(&b, sql).to_data(), "{}", sql);
        }
    }

    #[test]
    fn truncate_and_pad_are_slices(
        rows in prop::collection::vec(prop::option::of(prop::collection::vec(prop::option::of(-9i32..9), 0..9)), 1..30),
        n in 0usize..6,
    ) {
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>(rows.clone());
        let skip = rows.len() / 3;
        let b = batch([("l", Arc::new(list) as ArrayRef)]).slice(skip, rows.len() - skip);
        let y = eval(&b, &format!("truncate(l, {n})"));
        let z = eval(&b, &format!("pad(truncate(l, {n}), {n}, -1)"));
        for (i, row) in rows[skip..].iter().enumerate() {
            match row {
                None => prop_assert!(y.is_null(i) && z.is_null(i)),
                Some(row) => {
                    let cut = row[..row.len().min(n)].to_vec();
                    let got = y.as_list::<i32>().value(i);
                    prop_assert_eq!(got.as_primitive::<Int32Type>().iter().collect::<Vec<_>>(), cut.clone());
                    let padded: Vec<_> = cut.into_iter().chain(std::iter::repeat(Some(-1))).take(n).collect();
                    let got = z.as_fixed_size_list().value(i);
                    prop_assert_eq!(got.as_primitive::<Int32Type>().iter().collect::<Vec<_>>(), padded);
                }
            }
        }
    }
}

#[test]
fn hash_bucket_of_integers() {
    let values: ArrayRef = Arc::new(Int64Array::from(vec![Some(5), None, Some(-3)]));
    for t in [DataType::Int64, DataType::Int32, DataType::Int8] {
        let b = batch([("c", cast(&values, &t).unwrap())]);
        let want =
            [Some(bucket(&5i64.to_le_bytes(), 1000)), None, Some(bucket(&(-3i64).to_le_bytes(), 1000))];
        assert_eq!(ints(&eval(&b, "hash_bucket(c, 1000)")), want);
        let zero = Some(bucket(&0i64.to_le_bytes(), 1000));
        assert_eq!(ints(&eval(&b, "hash_bucket(coalesce(c, 0), 1000)")), [want[0], zero, want[2]]);
    }
    let b = batch([("c", values)]);
    let null = ints(&eval(&b, "hash_bucket(null, 10)"));
    assert_eq!(null, [None, None, None]);
    assert_eq!(ints(&eval(&b, "hash_bucket('caju', 1000)")), [Some(bucket(b"caju", 1000)); 3]);
}

#[test]
fn tokens() {
    let text: ArrayRef =
        Arc::new(StringArray::from(vec![Some("Das Reh, das  springt!"), None, Some(""), Some("é1 ü2")]));
    for t in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View] {
        let b = batch([("t", cast(&text, &t).unwrap())]);
        let y = eval(&b, r"tokenize(t, '\w+')");
        let y = y.as_list::<i32>();
        let words = |i| y.value(i).as_string::<i32>().iter().flatten().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(0), ["Das", "Reh", "das", "springt"]);
        assert!(y.is_null(1) && words(2).is_empty());
        assert_eq!(words(3), ["é1", "ü2"]);
    }
    let b = batch([("t", text)]);
    let y = eval(&b, r"pad(truncate(tokenize(t, '\w+'), 3), 3)");
    let y = y.as_fixed_size_list();
    assert_eq!(y.value(3).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["é1", "ü2", ""]);
    let e = try_eval(&b, r"pad(tokenize(t, '\w+'), 2)").unwrap_err();
    assert_eq!(e.row, Some(0));
    assert_eq!(
        e.error.to_string(),
        "column `y`: pad: a list of 4 values cannot be padded to 2; truncate(list, 2) first"
    );
}

#[test]
fn truncate_strings_and_bytes() {
    let text: ArrayRef = Arc::new(StringArray::from(vec![Some("häuser"), None, Some("ab"), Some("")]));
    for t in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View] {
        let b = batch([("t", cast(&text, &t).unwrap())]);
        let want: ArrayRef = Arc::new(StringArray::from(vec![Some("häu"), None, Some("ab"), Some("")]));
        assert_eq!(&eval(&b, "truncate(t, 3)"), &cast(&want, &t).unwrap());
    }
    for t in [DataType::Binary, DataType::LargeBinary, DataType::BinaryView] {
        let b = batch([("t", cast(&text, &t).unwrap())]);
        let y = cast(&eval(&b, "truncate(t, 2)"), &DataType::Binary).unwrap();
        assert_eq!(y.as_binary::<i32>().value(0), &"häuser".as_bytes()[..2]);
    }
}

#[test]
fn classes_as_vectors() {
    let b = batch([("c", Arc::new(Int32Array::from(vec![Some(2), None, Some(0)])) as ArrayRef)]);
    let bound = bind(&b, "one_hot(c, 3)").unwrap();
    assert_eq!(crate::fixed_shape(&bound.fields()[0]), Some(vec![3]));
    let y = eval(&b, "one_hot(c, 3)");
    let y = y.as_fixed_size_list();
    assert_eq!(y.value(0).as_primitive::<Float32Type>().values(), &[0.0, 0.0, 1.0]);
    assert!(y.is_null(1));
    let y = eval(&b, "one_hot(c, 3, dtype => 'uint8')");
    assert_eq!(y.as_fixed_size_list().value(2).as_primitive::<UInt8Type>().values(), &[1, 0, 0]);
    let e = try_eval(&b, "one_hot(c, 2)").unwrap_err();
    assert_eq!(
        (e.row, e.error.to_string().as_str()),
        (Some(0), "column `y`: one_hot: 2 is not a class from 0 to 1")
    );
    assert!(bind_error(&b, "one_hot(c, 2, 'f16')").contains("must be 'float32' or 'uint8'"));
}

#[test]
fn padding_of_many_types() {
    let l = ListArray::from_iter_primitive::<Float32Type, _, _>([Some(vec![Some(1.5)]), None]);
    let b = batch([("l", Arc::new(l) as ArrayRef)]);
    let y = eval(&b, "pad(l, 3)");
    assert_eq!(y.as_fixed_size_list().value(0).as_primitive::<Float32Type>().values(), &[1.5, 0.0, 0.0]);
    assert_eq!(crate::fixed_shape(&bind(&b, "pad(l, 3)").unwrap().fields()[0]), Some(vec![3]));
    assert!(bind_error(&b, "pad(l, 3, 'x')").contains("pads with 'x' a list of Float32"));
    assert!(bind_error(&b, "pad(1, 3)").contains("takes a list, not Int64"));
    let y = eval(&b, "truncate(pad(l, 3, value => 2), 2)");
    assert_eq!(y.as_fixed_size_list().value(0).as_primitive::<Float32Type>().values(), &[1.5, 2.0]);
}

#[test]
fn random_numbers() {
    let n = 4000;
    let hi: Int64Array = (0..n).map(|i| Some(1 + i % 5)).collect();
    let b = batch([("hi", Arc::new(hi) as ArrayRef)]);
    let u = eval(&b, "uniform(2, 4)");
    let u = u.as_primitive::<Float64Type>().values();
    assert!(u.iter().all(|x| (2.0..4.0).contains(x)));
    assert!((u.iter().sum::<f64>() / n as f64 - 3.0).abs() < 0.05);
    let g = eval(&b, "normal(mean => 10, std => 2)");
    assert!((g.as_primitive::<Float64Type>().iter().flatten().sum::<f64>() / n as f64 - 10.0).abs() < 0.15);
    let i = eval(&b, "random_int(0, hi)");
    let i = i.as_primitive::<Int64Type>().values();
    assert!(i.iter().enumerate().all(|(r, x)| *x >= 0 && *x <= r as i64 % 5));
    assert!(i.contains(&4));
    let e = try_eval(&b, "random_int(hi, 3)").unwrap_err();
    assert_eq!(
        (e.row, e.error.to_string().as_str()),
        (Some(2), "column `y`: random_int: there is no integer from 3 to below 3")
    );
    let e = try_eval(&b, "uniform(hi, 3)").unwrap_err();
    assert_eq!(
        (e.row, e.error.to_string().as_str()),
        (Some(3), "column `y`: uniform: no number can be drawn from 4.0 to below 3.0")
    );
    assert!(try_eval(&b, "uniform(0, 1e308 * 10)").is_err());
    let wide = eval(&b, "uniform(-1.7e308, 1.7e308)");
    assert!(wide.as_primitive::<Float64Type>().values().iter().all(|x| x.is_finite()));
    // Two calls draw different numbers, within an expression and between columns, unless they share a key.
    for (sql, equal) in [
        ("uniform() = uniform()", false),
        ("uniform(key => 'a') = uniform(key => 'a')", true),
        ("uniform(key => 'a') = uniform(key => 'b')", false),
        ("uniform(key => 'a') = uniform()", false),
    ] {
        let y = eval(&b, sql);
        assert_eq!(y.as_boolean().true_count(), if equal { 4000 } else { 0 }, "{sql}");
    }
    let two = |a: &str, b_: &str| {
        let exprs = [("a".to_owned(), a.to_owned()), ("b".to_owned(), b_.to_owned())];
        let bound = registry().bind("s", &exprs, &b.schema()).unwrap();
        let y = bound.evaluate(&b, Some(&keys(4000))).unwrap();
        y[0].as_ref() == y[1].as_ref()
    };
    assert!(!two("uniform()", "uniform()"));
    assert!(two("uniform(key => 'k')", "uniform(key => 'k')"));
}

/// The draws of a column depend only on its own expression: dropping another column changes nothing.
#[test]
fn draws_do_not_depend_on_other_columns() {
    let b = batch([("x", Arc::new(Int64Array::from(vec![1; 50])) as ArrayRef)]);
    let both = [("z".to_owned(), "normal()".to_owned()), ("y".to_owned(), "uniform() + x".to_owned())];
    let bound = registry().bind("s", &both, &b.schema()).unwrap();
    let y = bound.evaluate(&b, Some(&keys(50))).unwrap();
    assert_eq!(&y[1], &eval(&b, "uniform() + x"));
    let e = bound.evaluate(&b, None).unwrap_err();
    assert_eq!(e.error.kind(), caju_types::ErrorKind::Internal);
}
