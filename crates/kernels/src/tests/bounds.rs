//! Sizes from definitions and data are compared with the budget of a chunk before memory is allocated.

use std::time::Instant;

use arrow::array::*;
use caju_runtime::{budget, peak_rss_bytes};
use caju_types::ErrorKind;

use super::*;

/// Functions with a budget of 16 MiB per chunk, so that the tests compute little.
fn tight() -> Registry {
    Registry::new(Limits { chunk_bytes: 16 << 20, ..Limits::default() })
}

fn bind_tight(batch: &RecordBatch, sql: &str) -> caju_types::Result<BoundExprs> {
    tight().bind("steps[0].map", &[("y".into(), sql.into())], &batch.schema())
}

fn ids(n: i64) -> RecordBatch {
    let s: StringArray = (0..n).map(|i| Some(format!("text {i}"))).collect();
    let list: ListArray = ListArray::from_iter_primitive::<arrow::datatypes::Int64Type, _, _>(
        (0..n).map(|i| Some(vec![Some(i), Some(i + 1)])),
    );
    batch([
        ("id", Arc::new(Int64Array::from_iter_values(0..n)) as ArrayRef),
        ("s", Arc::new(s)),
        ("l", Arc::new(list)),
    ])
}

/// Each of these once requested many gigabytes, and most of them ended the process.
#[test]
fn values_that_are_too_large_are_errors_of_their_row() {
    let b = ids(3);
    for (sql, what) in [
        ("repeat(s, 2000000000)", "`repeat` needs"),
        ("repeat('x', id * 2000000000)", "`repeat` needs"),
        ("lpad(s, 2000000000)", "`lpad` needs"),
        ("rpad(s, 1500000000, 'ö')", "`rpad` needs"),
        ("concat(lpad('x', 1500000000), lpad('y', 1500000000))", "`lpad` needs"),
        ("lpad('x', 10000000) || lpad('y', 10000000)", "`lpad` needs"),
        ("replace(lpad('x', 1000000), ' ', 'twenty characters are')", "`replace` needs"),
        ("regexp_replace(lpad('x', 1000000), ' ', 'twenty characters are', 'g')", "`regexp_replace` needs"),
        ("array_repeat(s, 1000000000)", "`array_repeat` needs"),
        ("range(0, 4000000000 + id)", "`range` needs"),
        ("generate_series(0, id * 4000000000 + 4000000000)", "`generate_series` needs"),
        (
            "generate_series(date '0001-01-01', date '9999-01-01', interval '1' second)",
            "`generate_series` needs",
        ),
        ("array_resize(l, 1000000000, 0)", "`array_resize` needs"),
        ("array_resize(l, -1)", "the length -1 is negative"),
        ("array_to_string(range(0, 20000), lpad('-', 1000))", "`array_to_string` needs"),
        ("array_to_string(array_repeat(id * 1e-308, 60000), ',')", "`array_to_string` needs"),
        ("truncate(pad(l, 2000000), 1)", "lists of 2,000,000 values"),
    ] {
        let bound = bind_tight(&b, sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let one = b.slice(2, 1);
        let e = bound.evaluate(&one, None).expect_err(sql);
        assert_eq!((e.row, e.error.kind()), (Some(0), ErrorKind::InvalidArgument), "{sql}: {e}");
        assert!(e.error.message().contains(what), "{sql}: {e}");
    }
    assert!(peak_rss_bytes() < 1 << 30, "{}", peak_rss_bytes());
}

/// Types with too wide values are refused before any row is read.
#[test]
fn types_that_are_too_large_do_not_bind() {
    let b = ids(1);
    for (sql, what) in [
        ("one_hot(7, 2000000000)", "`one_hot` gives values of 7.45 GiB each"),
        ("one_hot(id, 2000000000, 'uint8')", "`one_hot` gives values of 1.86 GiB each"),
        ("pad(l, 2000000000)", "`pad` gives values of 14.90 GiB each"),
        ("cast(null as int[2000000000])", "`cast` gives values of 7.45 GiB each"),
        ("arrow_cast(null, 'FixedSizeBinary(2000000000)')", "`cast` gives values of 1.86 GiB each"),
        ("case when id > 0 then one_hot(id, 1000000000) end", "gives values of 3.73 GiB each"),
    ] {
        let e = bind(&b, sql).map(|_| ()).expect_err(sql);
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{sql}: {e}");
        assert!(e.message().starts_with("steps[0].map.y: ") && e.message().contains(what), "{sql}: {e}");
    }
    let pictures = pictures(1);
    let e = bind(&pictures, "resize(decode_image(image), 30000, 20000)").map(|_| ()).unwrap_err();
    assert!(e.message().contains("gives values of 1.68 GiB each"), "{e}");
}

/// If rows are too large only together, the error names no row: the caller evaluates fewer rows.
#[test]
fn batches_that_are_too_large_name_no_row() {
    let b = ids(1000);
    for sql in ["one_hot(id, 100000)", "lpad(s, 100000)", "case when id > 1 then one_hot(id, 100000) end"] {
        let bound = bind_tight(&b, sql).unwrap();
        let e = bound.evaluate(&b, None).expect_err(sql);
        assert_eq!((e.row, e.error.kind()), (None, ErrorKind::ResourceExhausted), "{sql}: {e}");
        assert!(e.error.message().contains("--chunk-memory"), "{e}");
        assert_eq!(bound.evaluate(&b.slice(0, 2), None).unwrap()[0].len(), 2, "{sql}");
    }
}

/// Results within the budget are equal to those without guards.
#[test]
fn guarded_functions_compute_the_same() {
    let b = ids(4);
    let text = |sql: &str| {
        let a = arrow::compute::cast(&eval(&b, sql), &arrow::datatypes::DataType::Utf8).unwrap();
        a.as_string::<i32>().iter().map(|v| v.unwrap_or("null").to_owned()).collect::<Vec<_>>().join("|")
    };
    assert_eq!(text("lpad(s, 8, '-')"), "--text 0|--text 1|--text 2|--text 3");
    assert_eq!(text("lpad(s, -1, '-')"), "|||");
    assert_eq!(text("lpad(s, id - 2, '-')"), "|||t");
    assert_eq!(text("rpad(s, nullif(id - 2, 0))"), "||null|t");
    assert_eq!(text("repeat('ab', id)"), "|ab|abab|ababab");
    assert_eq!(text("concat(s, '/', id)"), "text 0/0|text 1/1|text 2/2|text 3/3");
    assert_eq!(
        text("concat_ws('-', s, cast(id as varchar), 'x')"),
        "text 0-0-x|text 1-1-x|text 2-2-x|text 3-3-x"
    );
    assert_eq!(text("replace(s, 't', 'TT')"), "TTexTT 0|TTexTT 1|TTexTT 2|TTexTT 3");
    assert_eq!(text("regexp_replace(s, '([a-z]+)', '<\\1>')"), "<text> 0|<text> 1|<text> 2|<text> 3");
    assert_eq!(text("array_to_string(range(0, id), ',')"), "|0|0,1|0,1,2");
    assert_eq!(
        text("array_to_string(array_repeat(s, 2), ',')"),
        "text 0,text 0|text 1,text 1|text 2,text 2|text 3,text 3"
    );
    assert_eq!(text("array_to_string(array_resize(l, 3, 9), ',')"), "0,1,9|1,2,9|2,3,9|3,4,9");
    assert_eq!(
        text(
            "cast(array_length(generate_series(date '2026-01-01', date '2026-03-01', interval '1' month)) as varchar)"
        ),
        "3|3|3|3"
    );
    assert_eq!(text("case when id > 1 then s else 'none' end"), "none|none|text 2|text 3");
    assert_eq!(
        text(&format!("case when id > 2 then s else '{}' end", "x".repeat(300))),
        format!("{0}|{0}|{0}|text 3", "x".repeat(300))
    );
}

/// Constants that may be large are not computed while an expression is bound.
#[test]
fn binding_takes_neither_memory_nor_time() {
    let b = ids(1);
    let before = peak_rss_bytes();
    let started = Instant::now();
    for sql in [
        "concat(lpad('x', 1500000000), lpad('y', 1500000000), lpad('z', 1500000000))",
        "array_length(range(0, 1000000000))",
        "repeat(repeat(repeat('x', 1000), 1000), 1000)",
        "case when id > 0 then lpad('x', 900000000) else '' end",
        "character_length(encode(encode(encode(repeat('x', 600000), 'hex'), 'hex'), 'hex'))",
        // Other names of functions: each level doubled what the planner made.
        &format!("{}id{}", "row(".repeat(40), ")".repeat(40)),
        &format!("{}s{}", "btrim(".repeat(40), ")".repeat(40)),
        &format!("{}id{}", "pow(".repeat(40), ", 1)".repeat(40)),
    ] {
        bind(&b, sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
    }
    assert!(peak_rss_bytes() - before < 200 << 20, "{}", peak_rss_bytes() - before);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    // Small constants are computed: an argument may be a sum.
    assert_eq!(
        bind(&b, "one_hot(id, 2 + 3)").unwrap().fields()[0].data_type(),
        &eval(&b, "one_hot(id, 5)").data_type().clone()
    );
}

/// A lambda would run for every value of a list, with the columns that it uses repeated as often, and these would not be
/// charged to the budget. The dialect has no lambdas.
#[test]
fn there_are_no_lambdas() {
    for name in ["array_transform", "array_any_match", "list_filter"] {
        let e = bind_error(&ids(3), &format!("{name}(l, x -> concat(s, x))"));
        assert!(
            e.contains(&format!("`{name}` at column 1 takes a lambda, and expressions have none")),
            "{e}"
        );
    }
}

#[test]
fn a_call_cannot_raise_the_limit_of_the_process() {
    let b = pictures(1);
    let tight = Registry::new(Limits { max_pixels: 100, ..Limits::default() });
    let sql = "decode_image(image, max_pixels => 100000)";
    let bound = tight.bind("here", &[("y".into(), sql.into())], &b.schema()).unwrap();
    let e = bound.evaluate(&b, None).unwrap_err();
    assert!(e.error.message().contains("more than the limit of 100;"), "{e}");
}

#[test]
fn integers_that_do_not_fit_are_errors_of_their_row() {
    let ints = |v: &[i64]| Arc::new(Int64Array::from(v.to_vec())) as ArrayRef;
    let small: Int8Array = vec![Some(100), Some(-128), None].into();
    let b = batch([
        ("a", ints(&[1, i64::MAX, 3])),
        ("b", ints(&[1, 1, i64::MIN])),
        ("t", Arc::new(small) as ArrayRef),
        ("u", Arc::new(UInt64Array::from(vec![0, 1, u64::MAX])) as ArrayRef),
        (
            "d",
            Arc::new(Decimal128Array::from(vec![1, 2, 3]).with_precision_and_scale(38, 0).unwrap())
                as ArrayRef,
        ),
    ]);
    for (sql, row, what) in [
        ("a + 9223372036854775807", 0, "1 + 9223372036854775807 does not fit Int64"),
        ("a + b", 1, "9223372036854775807 + 1 does not fit Int64"),
        ("b - a", 2, "-9223372036854775808 - 3 does not fit Int64"),
        ("a * 2", 1, "9223372036854775807 * 2 does not fit Int64"),
        ("-b", 2, "0 - -9223372036854775808 does not fit Int64"),
        ("9223372036854775807 + 1", 0, "9223372036854775807 + 1 does not fit Int64"),
        ("t * t", 0, "100 * 100 does not fit Int8"),
        ("u - arrow_cast(1, 'UInt64')", 0, "0 - 1 does not fit UInt64"),
        ("a << 62", 1, "9223372036854775807 << 62 does not fit Int64"),
        ("a << 64", 0, "1 << 64 does not fit Int64"),
        ("1 << b", 2, "1 << -9223372036854775808 does not fit Int64"),
        ("a >> 64", 0, "1 >> 64 does not fit Int64"),
        (
            "d + arrow_cast('99999999999999999999999999999999999999', 'Decimal128(38, 0)')",
            0,
            "does not fit Decimal128(38, 0)",
        ),
        (
            "d * arrow_cast('50000000000000000000000000000000000000', 'Decimal128(38, 0)')",
            1,
            "does not fit Decimal128(38, 0)",
        ),
        ("d * arrow_cast('99999999999999999999999999999999999999', 'Decimal128(38, 0)')", 1, "verflow"),
    ] {
        let e = try_eval(&b, sql).expect_err(sql);
        assert_eq!((e.row, e.error.kind()), (Some(row), ErrorKind::InvalidArgument), "{sql}: {e}");
        assert!(e.error.message().contains(what) || e.error.message().contains("does not fit"), "{sql}: {e}");
    }
    let values = |sql: &str| {
        let a = arrow::compute::cast(&eval(&b, sql), &arrow::datatypes::DataType::Int64).unwrap();
        a.as_primitive::<arrow::datatypes::Int64Type>().iter().collect::<Vec<_>>()
    };
    assert_eq!(values("a - 1"), [Some(0), Some(i64::MAX - 1), Some(2)]);
    assert_eq!(values("3 - (a - a)"), [Some(3); 3]);
    assert_eq!(values("a * -1"), [Some(-1), Some(-i64::MAX), Some(-3)]);
    assert_eq!(values("(a % 4) << 2"), [Some(4), Some(12), Some(12)]);
    assert_eq!(values("b >> 1"), [Some(0), Some(0), Some(i64::MIN / 2)]);
    assert_eq!(values("a + null"), [None; 3]);
    // A value under a null does not count.
    assert_eq!(values("nullif(b, -9223372036854775807 - 1) - 1"), [Some(0), Some(0), None]);
    assert_eq!(values("arrow_cast(t, 'Int16') * 2"), [Some(200), Some(-256), None]);
}

/// Every function of DataFusion is either guarded, or known to give at most a few times the size of its arguments, in a time
/// that is linear in them. A new function has to be added to one of the lists.
#[test]
fn every_builtin_is_bounded() {
    const LINEAR: &[&str] = &[
        "abs",
        "acos",
        "acosh",
        "array_add",
        "array_any_value",
        "array_avg",
        "array_compact",
        "array_dims",
        "array_distance",
        "array_distinct",
        "array_element",
        "array_except",
        "array_first",
        "array_has",
        "array_intersect",
        "array_length",
        "array_max",
        "array_min",
        "array_ndims",
        "array_normalize",
        "array_pop_back",
        "array_pop_front",
        "array_position",
        "array_positions",
        "array_product",
        "array_remove",
        "array_remove_all",
        "array_remove_n",
        "array_reverse",
        "array_scale",
        "array_slice",
        "array_sort",
        "array_subtract",
        "array_sum",
        "arrow_cast",
        "arrow_field",
        "arrow_metadata",
        "arrow_try_cast",
        "arrow_typeof",
        "ascii",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "bit_length",
        "cardinality",
        "cast_to_type",
        "cbrt",
        "ceil",
        "character_length",
        "chr",
        "coalesce",
        "contains",
        "cos",
        "cosh",
        "cosine_distance",
        "cot",
        "date_bin",
        "date_part",
        "date_trunc",
        "decode",
        "degrees",
        "digest",
        "empty",
        "ends_with",
        "exp",
        "factorial",
        "find_in_set",
        "flatten",
        "floor",
        "from_unixtime",
        "gcd",
        "get_field",
        "initcap",
        "inner_product",
        "isnan",
        "iszero",
        "lcm",
        "left",
        "ln",
        "log",
        "log10",
        "log2",
        "lower",
        "make_date",
        "make_time",
        "map_entries",
        "map_extract",
        "map_keys",
        "map_values",
        "md5",
        "nanvl",
        "nullif",
        "nvl",
        "nvl2",
        "octet_length",
        "pi",
        "power",
        "radians",
        "reverse",
        "right",
        "round",
        "sha224",
        "sha256",
        "sha384",
        "sha512",
        "signum",
        "sin",
        "sinh",
        "split_part",
        "sqrt",
        "starts_with",
        "substr",
        "substr_index",
        "tan",
        "tanh",
        "to_date",
        "to_hex",
        "to_local_time",
        "to_time",
        "to_timestamp",
        "to_timestamp_micros",
        "to_timestamp_millis",
        "to_timestamp_nanos",
        "to_timestamp_seconds",
        "to_unixtime",
        "trunc",
        "try_cast_to_type",
        "union_extract",
        "union_tag",
        "upper",
        "version",
        "with_metadata",
    ];
    let functions = crate::sql::builtins::scalar_functions();
    let mut unknown: Vec<String> = functions
        .iter()
        .filter(|f| f.signature().volatility == datafusion_expr::Volatility::Immutable)
        .map(|f| f.name().to_owned())
        .filter(|n| {
            crate::guard::rule(n).is_none()
                && crate::guard::steps(n).is_none()
                && !LINEAR.contains(&n.as_str())
        })
        .collect();
    unknown.sort_unstable();
    assert_eq!(unknown, Vec::<String>::new());
}

/// Each of these would take minutes.
#[test]
fn rows_that_take_too_many_steps_are_errors_of_their_row() {
    let b = ids(3);
    for (sql, what) in [
        ("levenshtein(repeat('a', 300001), repeat('b', 300000))", "`levenshtein` needs 90,000,300,000 steps"),
        ("levenshtein(repeat('a', 300001), concat(repeat('b', 300000), s))", "`levenshtein` needs"),
        ("btrim(repeat('a', 5000000), concat(repeat('b', 100000), s))", "`btrim` needs"),
        ("ltrim(repeat('a', 5000000), concat(repeat('b', 100000), s))", "`ltrim` needs"),
        ("rtrim(repeat('a', 5000000), concat(repeat('b', 100000), s))", "`rtrim` needs"),
        ("strpos(repeat('a', 5000000), concat(repeat('a', 2500000), s))", "`strpos` needs"),
        ("array_has_all(range(0, 100000), range(id, 200000))", "`array_has_all` needs"),
        ("array_has_any(range(0, 100000), range(200000, 400000 + id))", "`array_has_any` needs"),
        ("regexp_like(repeat(s, 1000000), '(a|b)*a(a|b){5000}c')", "`regexp_like` needs"),
        ("regexp_count(repeat(s, 1000000), '(a|b)*a(a|b){5000}c')", "`regexp_count` needs"),
        ("tokenize(repeat(s, 1000000), '(a|b)*a(a|b){5000}c')", "`tokenize` needs"),
        ("repeat(s, 1000000) ~ '(a|b)*a(a|b){5000}c'", "matching a pattern needs"),
        ("repeat(s, 1000000) !~* '(a|b)*a(a|b){5000}c'", "matching a pattern needs"),
        ("repeat(s, 1000000) like concat('%a', repeat('_', 5000), 'b')", "matching a pattern needs"),
        ("repeat(s, 1000000) not ilike concat('%a', repeat('_', 5000), 'b')", "matching a pattern needs"),
    ] {
        let bound = bind_tight(&b, sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        let e = bound.evaluate(&b.slice(2, 1), None).expect_err(sql);
        assert_eq!((e.row, e.error.kind()), (Some(0), ErrorKind::InvalidArgument), "{sql}: {e}");
        assert!(e.error.message().contains(what), "{sql}: {e}");
        assert!(e.error.message().contains("--chunk-steps"), "{sql}: {e}");
    }
    assert_eq!(text(&b, "levenshtein(s, 'test 12')"), "3");
    assert_eq!(text(&b, "btrim(s, 'te0')"), "xt ");
    assert_eq!(text(&b, "strpos(repeat('a', 5000000), repeat('a', 2500000))"), "1");
    assert_eq!(text(&b, "strpos(concat(s, 'end'), concat('e', 'nd'))"), "7");
    assert_eq!(text(&b, "s like 't%x_ 0'"), "true");
    assert_eq!(text(&b, "s ~ '^te{1,3}xt'"), "true");
    assert_eq!(text(&b, "array_has_all(l, [0, 1])"), "true");
}

/// Rows that take too many steps together are divided by the caller.
#[test]
fn batches_that_take_too_many_steps_name_no_row() {
    let b = ids(1000);
    let tight = Registry::new(Limits { chunk_steps: 10_000, ..Limits::default() });
    let exprs = [("y".into(), "levenshtein(concat(s, repeat('a', 93)), 'abcdefghij')".into())];
    let bound = tight.bind("steps[0].map", &exprs, &b.schema()).unwrap();
    let e = bound.evaluate(&b, None).unwrap_err();
    assert_eq!((e.row, e.error.kind()), (None, ErrorKind::ResourceExhausted), "{e}");
    assert_eq!(bound.evaluate(&b.slice(0, 5), None).unwrap()[0].len(), 5);
}

/// A pattern of 16 characters takes megabytes when it is compiled.
fn large(i: usize) -> String {
    format!("(a{{1000}}){{100}}{i}")
}

/// A definition could take a gigabyte, and more seconds than binding may take.
#[test]
fn the_patterns_of_a_definition_are_bounded_together() {
    let b = ids(3);
    let pattern = |i: usize| match i % 5 {
        0 => format!("regexp_like(s, '{}')", large(i)),
        1 => format!("regexp_replace(s, '{}', 'x', 'i')", large(i)),
        2 => format!("s ~ '{}'", large(i)),
        3 => format!("s !~* '{}'", large(i)),
        _ => format!("regexp_count('abc', case id when 1 then '{}' end)", large(i)),
    };
    let of_definition = || {
        let def = caju_pipeline::DatasetDef::from_yaml("source: { range: 3 }", None).unwrap();
        registry().for_definition(&def)
    };
    let bind = |registry: &Registry, i: usize| {
        registry.bind(&format!("steps[{i}].map"), &[("y".into(), pattern(i))], &b.schema()).map(drop)
    };
    let registry_ = of_definition();
    let first = (0..100).find(|i| bind(&registry_, *i).is_err()).unwrap();
    assert!((4..40).contains(&first), "{first}");
    let e = bind(&registry_, first).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    assert!(e.message().starts_with(&format!("steps[{first}].map.y: with `")), "{e}");
    assert!(e.message().contains("the regular expressions of the pipeline take more than 64.00 MiB"), "{e}");
    // Stages are bound several times, other definitions have their own bound, and small patterns take nothing.
    bind(&registry_, 0).unwrap();
    bind(&of_definition(), first).unwrap();
    for i in 0..1000 {
        registry_.bind("here", &[("y".into(), format!("s ~ '^te+xt {i}$'"))], &b.schema()).unwrap();
    }
    // Without a definition each expression is bounded.
    let all: Vec<String> = (0..40).map(|i| format!("s ~ '{}'", large(i))).collect();
    assert!(bind_error(&b, &all.join(" or ")).contains("more than 64.00 MiB"));
    assert!(bind_error(&b, "s ~ '(a{1000}){1000}'").contains("takes more than 10.00 MiB"));
}

/// All patterns of a column are compiled at once.
#[test]
fn the_patterns_of_a_column_are_charged() {
    let b = ids(40);
    let computed = "concat('(a{1000}){100}', cast(id as varchar))";
    for (sql, what) in [
        (format!("regexp_like(s, {computed})"), "`regexp_like` needs"),
        (format!("regexp_count(s, {computed})"), "`regexp_count` needs"),
        (format!("s ~ {computed}"), "matching a pattern needs"),
    ] {
        let e = bind_tight(&b, &sql).unwrap().evaluate(&b, None).expect_err(&sql);
        assert_eq!((e.row, e.error.kind()), (None, ErrorKind::ResourceExhausted), "{sql}: {e}");
        assert!(e.error.message().contains(what), "{sql}: {e}");
        assert_eq!(bind_tight(&b, &sql).unwrap().evaluate(&b.slice(0, 1), None).unwrap()[0].len(), 1);
    }
}

/// Compiling them took most of the time that binding may take.
#[test]
fn large_patterns_are_not_compiled_for_constants() {
    let exprs: Vec<(String, String)> = (0..200)
        .map(|i| {
            let pattern = format!("concat('(a{{1000}}){{10', '0}}{i}')");
            (format!("y{i}"), format!("regexp_like('abc', {pattern})"))
        })
        .collect();
    let start = Instant::now();
    let bound = registry().bind("here", &exprs, &ids(1).schema()).unwrap();
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    assert_eq!(bound.fields().len(), 200);
}

/// An expression ends between two of its functions once its task has ended.
#[test]
fn work_ends_with_its_owner() {
    let b = ids(3);
    let bound = bind(&b, "upper(s)").unwrap();
    let ended = caju_runtime::interrupt::Interrupt::default();
    assert_eq!(ended.scope(|| bound.evaluate(&b, None)).unwrap()[0].len(), 3);
    ended.stop();
    let e = ended.scope(|| bound.evaluate(&b, None)).unwrap_err();
    assert_eq!((e.row, e.error.kind()), (None, ErrorKind::Cancelled), "{e}");
}

/// An evaluation has a budget of its own: the remaining budget of the caller does not matter.
#[test]
fn budgets_do_not_add_up_over_evaluations() {
    let b = ids(100);
    budget::scope(1, || {
        for _ in 0..100 {
            assert_eq!(eval(&b, "lpad(s, 1000)").len(), 100);
        }
    });
}

/// Binding computes small constants only: the cost of these grows with the product of two lengths, and each would take
/// minutes.
#[test]
fn costly_constants_are_not_computed_while_binding() {
    let b = ids(3);
    let (long, other) = ("a".repeat(200_000), "b".repeat(200_000));
    for sql in [
        "levenshtein(repeat('a', 300000), repeat('b', 300000))".to_owned(),
        format!("levenshtein('{long}', '{other}')"),
        format!("levenshtein(lpad('a', 12000), concat('{long}', '{other}'))"),
    ] {
        let start = Instant::now();
        bind_tight(&b, &sql).unwrap();
        assert!(start.elapsed().as_secs() < 20, "{:.80} took {:?}", sql, start.elapsed());
    }
    // Small ones are still computed once, and long literals keep their values.
    assert_eq!(text(&b, "upper(concat('a', 'b'))"), "AB");
    assert_eq!(text(&b, &format!("substr('{long}b', 200001)")), "b");
}

/// The value of an expression in the first row.
fn text(b: &RecordBatch, sql: &str) -> String {
    let y = eval(b, sql);
    arrow::util::display::array_value_to_string(&y, 0).unwrap()
}
