//! The time of functions that look for all matches of a regular expression is bounded.

use std::time::Instant;

use arrow::array::Int64Array;
use caju_types::ErrorKind;

use super::*;
use crate::guard::{Steps, steps};

/// One row. The texts are computed from its zero, so that they are no constants.
fn zero() -> RecordBatch {
    batch([("zero", Arc::new(Int64Array::from(vec![0])) as ArrayRef)])
}

fn value(sql: &str) -> String {
    arrow::util::display::array_value_to_string(&eval(&zero(), sql), 0).unwrap()
}

/// The same call would take minutes in a release, and hours in a test.
#[test]
fn matches_that_read_their_text_again_and_again_are_errors_of_their_row() {
    let tight = Registry::new(Limits { chunk_steps: 1 << 28, ..Limits::default() });
    let (b, capitals) = (zero(), "repeat('A', 500000 + zero)");
    for (function, args) in [
        ("regexp_count", format!("{capitals}, '.*[^A-Z]|[A-Z]'")),
        ("regexp_count", format!("{capitals}, '.*[^a-z]|[a-z]', 2, 'mi'")),
        ("regexp_count", format!("{capitals}, concat('(?:[^a]*b', substr(')*', 1 + zero))")),
        // The first match from the first character is all of the text.
        ("regexp_count", format!("concat('-', {capitals}, '-'), '-A*-|.*[^-A]|[A-Z]', 2")),
        ("regexp_instr", format!("{capitals}, '(A*y)?', 1, 400000")),
        ("regexp_instr", format!("{capitals}, '.*[^A-Z]|[A-Z]', 2, 400000, 's'")),
        ("regexp_replace", format!("{capitals}, '(?:A.*z|A)', '', 'g'")),
        ("regexp_replace", format!("{capitals}, '(.*[^A-Z]|[A-Z])', '<\\1>', 'gs'")),
        ("regexp_replace", format!("{capitals}, '.*[^A-Z]|[A-Z]', '', concat('g', substr('is', 1 + zero))")),
        ("tokenize", format!("{capitals}, '.*[^A-Z]|[A-Z]'")),
        ("tokenize", format!("{capitals}, '(?s)(.*[^A-Z]|[A-Z])'")),
    ] {
        let sql = format!("{function}({args})");
        let start = Instant::now();
        let bound = tight.bind("steps[0].map", &[("y".into(), sql.clone())], &b.schema());
        let bound = bound.unwrap_or_else(|e| panic!("{sql}: {e}"));
        let e = bound.evaluate(&b, None).expect_err(&sql);
        assert_eq!((e.row, e.error.kind()), (Some(0), ErrorKind::FailedPrecondition), "{sql}: {e}");
        assert!(!e.error.is_data_error(), "which rows are skipped would depend on the machine");
        assert!(e.error.message().contains(&format!("`{function}` needs")), "{sql}: {e}");
        assert!(e.error.message().contains("--chunk-steps"), "{sql}: {e}");
        assert!(start.elapsed().as_secs() < 30, "{sql}: {:?}", start.elapsed());
    }
}

/// One search reads a text once.
#[test]
fn a_single_match_of_any_pattern_is_found() {
    let capitals = "repeat('A', 500000 + zero)";
    for (call, expected) in [
        ("regexp_instr(T, '.*[^A-Z]|[A-Z]')", "1"),
        ("regexp_instr(T, '.*[^A-Z]|[A-Z]', 3)", "3"),
        ("regexp_instr(T, '.*[^A-Z]|([A-Z])', 3, 400000, '', 1)", "3"),
        ("character_length(regexp_replace(T, '.*[^A-Z]|[A-Z]', ''))", "499999"),
        ("character_length(regexp_replace(T, '.*[^A-Z]|[A-Z]', '', 'i'))", "499999"),
        ("regexp_like(T, '.*[^A-Z]|[A-Z]')", "true"),
    ] {
        assert_eq!(value(&call.replace('T', capitals)), expected, "{call}");
    }
}

/// The time of some of these patterns is proven to be linear. That of the others is measured.
#[test]
fn many_matches_of_ordinary_patterns_are_found() {
    // 209,000 bytes.
    let words = "repeat('some-text 123,456, ', 11000 + zero)";
    for (call, expected) in [
        (r"regexp_count(T, '\s+')", "22000"),
        ("regexp_count(T, '[^a-z]+')", "22000"),
        (r"regexp_count(T, '\d{3},\d+')", "11000"),
        (r"regexp_count(T, '(\w+)-(\w+)')", "11000"),
        ("regexp_count(T, '[A-Z]+', 1, 'i')", "22000"),
        (r"regexp_count(T, '(\s+|-)')", "33000"),
        (r"regexp_count(T, '(\s+|-)', 19)", "32998"),
        (r"regexp_count(T, '(\s+|-)', 300000)", "0"),
        (r"regexp_count(T, '^\s+|\s+$')", "1"),
        (r"regexp_count(T, '(?:\d{3},)+')", "11000"),
        (r"regexp_instr(T, '(\s+|-)', 1, 33000)", "209000"),
        (r"regexp_instr(T, '(\s+|-)', 1, 33001)", "0"),
        (r"character_length(regexp_replace(T, '(\s+|-)', '', 'g'))", "176000"),
        (r"character_length(regexp_replace(T, '(\w+)-(\w+)', '\2\1', 'g'))", "198000"),
        (r"character_length(regexp_replace(T, '(\s+|-)', ''))", "208999"),
        (r"array_length(tokenize(T, '\s+'))", "22000"),
        (r"array_length(tokenize(T, '(\s+|-)'))", "33000"),
        (r"array_length(tokenize(T, '^\s+|\s+$'))", "1"),
        (r"substr(array_to_string(tokenize(T, '(\w+|-)'), '/'), 1, 24)", "some/-/text/123/456/some"),
    ] {
        assert_eq!(value(&call.replace('T', words)), expected, "{call}");
    }
    // Nulls are not searched.
    assert_eq!(value(&format!("regexp_count({words}, '(\\s+|-)', nullif(zero, 0))")), "");
    assert_eq!(value(&format!("regexp_count(nullif({words}, {words}), '(\\s+|-)')")), "");
}

/// A new function of regular expressions has to be added here, by whether it looks for one match or for several.
#[test]
fn functions_that_look_for_several_matches_have_their_rule() {
    let of_module = datafusion_functions::regex::functions();
    let all = crate::sql::builtins::scalar_functions();
    let others = all.iter().filter(|f| f.name().contains("regex"));
    let mut names: Vec<String> = of_module.iter().chain(others).map(|f| f.name().to_owned()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names, ["regexp_count", "regexp_instr", "regexp_like", "regexp_match", "regexp_replace"]);
    for name in ["regexp_like", "regexp_match"] {
        assert_eq!(steps(name), Some(Steps::Regexp), "{name}");
    }
    for name in ["regexp_count", "regexp_instr", "regexp_replace"] {
        assert!(matches!(steps(name), Some(Steps::Matches(_))), "{name}");
    }
}
