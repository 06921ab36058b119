use std::sync::Arc;

use arrow::array::*;
use caju_pipeline::Functions;

use super::*;

fn table() -> RecordBatch {
    batch([
        ("image", Arc::new(BinaryArray::from(vec![b"x".as_ref()])) as ArrayRef),
        ("label", Arc::new(Int64Array::from(vec![1]))),
        ("text", Arc::new(StringArray::from(vec!["a"]))),
        ("image/encoded", Arc::new(BinaryArray::from(vec![b"x".as_ref()]))),
    ])
}

fn check(cases: &[(&str, &str)]) {
    let b = table();
    for (sql, want) in cases {
        assert_eq!(bind_error(&b, sql), format!("steps[0].map.y: {want}"), "{sql}");
    }
}

#[test]
fn unknown_names() {
    check(&[
        (
            "resize(  decode_imag(image), 4, 4)",
            "unknown function `decode_imag` at column 10; did you mean `decode_image`?",
        ),
        (
            "\n lower(\n  lowerr(text))",
            "unknown function `lowerr` at line 3, column 3; did you mean `lower`?",
        ),
        ("lower(user)", "unknown column `user` at column 7 (columns: image, label, text, image/encoded)"),
        ("qqqqqqq(1)", "unknown function `qqqqqqq` at column 1"),
        (
            "1 + labl",
            "unknown column `labl` at column 5; did you mean `label`? (columns: image, label, text, image/encoded)",
        ),
        (
            "Label + 1",
            "unknown column `Label` at column 1; did you mean `label`? (columns: image, label, text, image/encoded)",
        ),
        (
            "decode_image(image/encoded)",
            "unknown column `encoded` at column 20; for the column `image/encoded` write \"image/encoded\" in double quotes (columns: image, label, text, image/encoded)",
        ),
        (
            "random_flip(decode_image(image), probability => 0.5)",
            "`random_flip` at column 1: random_flip has no argument `probability`; write random_flip(image, p => 0.5, key => null)",
        ),
        (
            "hash_bucket(text, 10, nul_as => '')",
            "`hash_bucket` at column 1: hash_bucket has no argument `nul_as`; did you mean `null_as`; write hash_bucket(value, n, null_as => null)",
        ),
        ("__caju_call_0(label)", "unknown function `__caju_call_0` at column 1"),
        ("__caju_key + 1", "`__caju_key` is reserved"),
    ]);
}

#[test]
fn wrong_arguments() {
    check(&[
        (
            "resize(decode_image(image), 4)",
            "`resize` at column 1: resize lacks its argument `width`; write resize(image, height, width)",
        ),
        (
            "resize(decode_image(image), 4, 4, 4)",
            "`resize` at column 1: resize takes 3 arguments by position; write resize(image, height, width)",
        ),
        (
            "resize(decode_image(image), 4, width => 4, height => 4)",
            "`resize` at column 1: `height` of resize is given twice; write resize(image, height, width)",
        ),
        (
            "resize(decode_image(image), height => 4, 4)",
            "`resize` at column 1: an argument without a name follows a named one; write resize(image, height, width)",
        ),
        (
            "resize(decode_image(image), label, 4)",
            "`resize` at column 1: `height` of resize must be a constant integer, and `label` is not known before the rows are read; write resize(image, height, width)",
        ),
        (
            "resize(decode_image(image), 'a', 4)",
            "`resize` at column 1: `height` of resize must be a constant integer, not 'a'; write resize(image, height, width)",
        ),
        (
            "normalize(resize(decode_image(image), 0, 4))",
            "`resize` at column 11: resize: height is 0; it must be from 1 to 65535; write resize(image, height, width)",
        ),
        (
            "resize(decode_image(image), -4, 4)",
            "`resize` at column 1: `height` is -4, which is out of range; write resize(image, height, width)",
        ),
        (
            "tokenize(text, '(')",
            "`tokenize` at column 1: `(` is not a regular expression: unclosed group; write tokenize(text, regex)",
        ),
        (
            "hash_bucket(text, 0)",
            "`hash_bucket` at column 1: `n` must be at least 1; write hash_bucket(value, n, null_as => null)",
        ),
    ]);
}

#[test]
fn wrong_types() {
    check(&[
        (
            "resize(image, 4, 4)",
            "`resize` at column 1: resize needs an image, and its input is encoded bytes: write resize(decode_image(...)); write resize(image, height, width)",
        ),
        (
            "resize(label, 4, 4)",
            "`resize` at column 1: resize takes an image, not Int64; write resize(image, height, width)",
        ),
        (
            "decode_image(text)",
            "`decode_image` at column 1: decode_image takes the bytes of an image file, not a string; write decode_image(bytes, max_pixels => null, scaled => false)",
        ),
        (
            "grayscale(normalize(decode_image(image)))",
            "`grayscale` at column 1: grayscale works on uint8 images; put it before normalize or to_float",
        ),
        (
            "1 + tokenize(label, 'a')",
            "`tokenize` at column 5: takes a string, not Int64; write tokenize(text, regex)",
        ),
        (
            "hash_bucket(label, 5, null_as => '')",
            "`hash_bucket` at column 1: has a `null_as` of another type than its value, which is Int64; write hash_bucket(value, n, null_as => null)",
        ),
        (
            "uniform(text, 1)",
            "`uniform` at column 1: takes numbers, not Utf8; write uniform(low => 0, high => 1, key => null)",
        ),
    ]);
    let b = table();
    let e = bind_error(&b, "label + image");
    assert!(
        e.starts_with("steps[0].map.y: `label + image`: Cannot coerce arithmetic expression Int64 + Binary"),
        "{e}"
    );
    let e = bind_error(&b, "ln(text, text, text)");
    assert!(e.starts_with("steps[0].map.y: `ln(text, text, text)`: ") && !e.contains('\n'), "{e}");
}

#[test]
fn what_a_row_cannot_be_computed_by() {
    check(&[
        (
            "random() + 1",
            "`random` at column 1 gives another value each time, and a row must not: use uniform(0, 1), which draws from the job's seed; see also normal and random_int",
        ),
        (
            "lower(uuid())",
            "`uuid` at column 7 gives another value each time, and a row must not: use random_int(low, high), which draws from the job's seed",
        ),
        (
            "now()",
            "`now` at column 1 gives another value each time, and a row must not: write the time into the expression, or read it from a column",
        ),
        (
            "current_date",
            "`current_date` at column 1 gives another value each time, and a row must not: write the time into the expression, or read it from a column",
        ),
        (
            "sum(label)",
            "`sum` at column 1 is an aggregate: an expression sees one row; functions such as array_length work within one row",
        ),
        (
            "max(label)",
            "`max` at column 1 is an aggregate: an expression sees one row; `greatest` compares the values of one row",
        ),
        ("row_number()", "`row_number` at column 1 is a window function: an expression sees one row"),
        (
            "lower(text) over ()",
            "`lower` at column 1 is called as a window function: an expression sees one row",
        ),
        ("label in (select 1)", "subqueries are not offered: an expression sees one row"),
        ("(select 1)", "subqueries are not offered: an expression sees one row"),
        (
            "count(*)",
            "`count` at column 1 is an aggregate: an expression sees one row; functions such as array_length work within one row",
        ),
        ("*", "`*` does not parse: expected an expression, found `*` at column 1"),
        ("ln(label", "`ln(label` does not parse: expected ), and the text ends"),
    ]);
    let twice = [("a".to_owned(), "1".to_owned()), ("a".to_owned(), "2".to_owned())];
    let e = registry().bind("steps[2].map", &twice, &table().schema()).unwrap_err();
    assert_eq!(e.to_string(), "steps[2].map: the column `a` is computed twice");
}

/// The fingerprint of a definition is made before its columns are known.
#[test]
fn a_word_without_parentheses_is_left_to_the_binding() {
    for word in ["user", "current_date"] {
        assert_eq!(registry().version(word).unwrap(), []);
        assert!(!registry().is_random(word).unwrap());
    }
    assert!(registry().version("now()").unwrap_err().message().contains("gives another value each time"));
    let b = batch([("current_date", Arc::new(StringArray::from(vec!["2026"])) as ArrayRef)]);
    assert_eq!(eval(&b, "current_date").as_string::<i32>().value(0), "2026");
}

/// No text overflows the stack: an expression that is too deep is an error, and others are computed.
/// Types are built and dropped by recursion: a long name of a type would overflow the stack.
#[test]
fn types_that_are_nested_too_deep_are_refused() {
    let b = table();
    let arrow = |n: usize| format!("arrow_cast(null, '{}Int32{}')", "List(".repeat(n), ")".repeat(n));
    let sql = |n: usize| format!("cast(null as int{})", "[]".repeat(n));
    let angles = |n: usize| format!("cast(null as {}int{})", "array<".repeat(n), ">".repeat(n));
    for deepest in [arrow(32), sql(32)] {
        bind(&b, &deepest).unwrap();
    }
    for (sql, what) in [
        (arrow(100), "the type of `arrow_cast`"),
        (arrow(100_000), "the type of `arrow_cast`"),
        (arrow(100).replace("arrow_cast", "ARROW_TRY_CAST"), "the type of `arrow_try_cast`"),
        (sql(33), "the type of a cast"),
        (sql(1900), "the type of a cast"),
        (sql(1900).replace("cast(", "try_cast("), "the type of a cast"),
        (angles(100), "the type of a cast"),
    ] {
        let e = bind_error(&b, &sql);
        let want = format!("steps[0].map.y: {what} is nested deeper than 32 levels");
        assert!(e.starts_with(&want), "{sql:.60}: {e:.300}");
    }
}

#[test]
fn deep_expressions() {
    let b = table();
    let nested = |n: usize| format!("{}label{}", "abs(".repeat(n), ")".repeat(n));
    assert_eq!(eval(&b, &nested(22)).len(), 1);
    assert!(bind_error(&b, &nested(500)).contains("nests more than 50 levels deep"));
    let images = |n: usize| format!("{}decode_image(image){}", "random_flip(".repeat(n), ")".repeat(n));
    bind(&b, &images(20)).unwrap();
    let sum = |n: usize| vec!["label"; n].join(" + ");
    assert_eq!(eval(&b, &sum(140)).len(), 1);
    assert!(bind_error(&b, &sum(300)).contains("a chain of more than 150 operators"));
    assert!(bind_error(&b, &sum(100_000)).contains("more than 4000 words and signs"));
    let cases = |n: usize| format!("case {} else 0 end", "when label = 3 then 4 ".repeat(n));
    assert_eq!(eval(&b, &cases(200)).len(), 1);
}

#[test]
fn lists_of_lists_are_refused_where_numbers_are_expected() {
    let lists = ListArray::from_iter_primitive::<arrow::datatypes::Int64Type, _, _>([Some([Some(1)])]);
    let b = batch([("l", Arc::new(lists) as ArrayRef)]);
    for sql in [
        "array_avg([l])",
        "array_sum([l])",
        "array_product([l])",
        "array_normalize([l])",
        "array_scale([l], 2)",
        "array_add([l], [l])",
        "array_subtract([l], [l])",
        "inner_product([l], [l])",
        "cosine_distance([l], [l])",
        "array_distance([l], [l])",
    ] {
        let e = bind_error(&b, sql);
        assert!(
            e.contains("takes lists of numbers, and") || e.contains("one-dimensional arrays"),
            "{sql}: {e}"
        );
    }
    assert!(bind(&b, "array_avg(l)").is_ok() && bind(&b, "array_avg(flatten([l]))").is_ok());
}
