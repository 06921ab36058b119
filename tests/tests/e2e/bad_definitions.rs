//! Bad pipeline files: refused before anything runs, with the place and the nearest right word.

use caju_tests::Pipeline;
use caju_tests::files::{ints, parquet};
use serde_json::{Value, json};

/// `caju check` and `caju run` both refuse it, with these words.
#[track_caller]
fn refused(source: Value, steps: Value, words: &[&str]) {
    let p = Pipeline::of(source, steps);
    p.check().expect_code(2).expect_error(words);
    p.run(&[]).expect_code(2).expect_error(words);
}

fn range() -> Value {
    json!({ "range": 10 })
}

#[test]
fn unknown_stage() {
    refused(range(), json!([{ "shufle": 10 }]), &["steps[0]", "shufle", "did you mean `shuffle`"]);
}

#[test]
fn unknown_column() {
    refused(range(), json!([{ "map": { "x": "idd + 1" } }]), &["steps[0].map", "idd", "did you mean `id`"]);
    refused(range(), json!([{ "select": ["ib"] }]), &["steps[0].select", "ib", "did you mean `id`"]);
    refused(range(), json!([{ "filter": "ID > 1" }]), &["steps[0].filter", "ID", "`id`"]);
}

#[test]
fn unknown_function() {
    refused(
        range(),
        json!([{ "map": { "x": "hash_buket(id, 5)" } }]),
        &["steps[0].map", "did you mean `hash_bucket`"],
    );
}

#[test]
fn unknown_argument() {
    refused(
        range(),
        json!([{ "shuffle": { "bufer": 10 } }]),
        &["steps[0].shuffle", "bufer", "did you mean `buffer`"],
    );
    refused(
        json!({ "range": { "end": 10, "stap": 2 } }),
        json!([]),
        &["source.range", "stap", "did you mean `step`"],
    );
}

#[test]
fn unknown_source() {
    refused(json!({ "parket": "a" }), json!([]), &["source", "parket", "did you mean `parquet`"]);
}

#[test]
fn type_error() {
    refused(
        range(),
        json!([{ "with_columns": { "x": "id + upper('a')" } }]),
        &["steps[0].with_columns", "x"],
    );
    refused(range(), json!([{ "map": { "x": "decode_image(id)" } }]), &["steps[0].map", "decode_image"]);
    refused(range(), json!([{ "filter": "id + 1" }]), &["steps[0].filter", "bool"]);
}

#[test]
fn expression_that_does_not_parse() {
    refused(range(), json!([{ "map": { "x": "id + (1" } }]), &["steps[0].map", "x"]);
}

#[test]
fn functions_that_are_not_functions() {
    refused(range(), json!([{ "map": { "x": "random()" } }]), &["steps[0].map", "random"]);
    refused(range(), json!([{ "map": { "x": "now()" } }]), &["steps[0].map", "now"]);
}

#[test]
fn batch_of_size_0() {
    refused(range(), json!([{ "batch": 0 }]), &["steps[0].batch", "0"]);
}

#[test]
fn stages_in_a_wrong_order() {
    refused(range(), json!([{ "batch": 2 }, { "filter": "id > 1" }]), &["steps[1].filter", "batch"]);
    refused(range(), json!([{ "unbatch": {} }]), &["steps[0].unbatch", "batch"]);
    refused(range(), json!(["repeat", { "autocache": "x" }]), &["steps[1].autocache", "repeat"]);
}

#[test]
fn sto_12_unknown_scheme() {
    refused(json!({ "parquet": "ftp://host/a.parquet" }), json!([]), &["ftp"]);
}

#[test]
fn credentials_in_a_url() {
    let p = Pipeline::of(json!({ "parquet": "http://user:sesame@host/a.parquet" }), json!([]));
    let ended = p.check();
    ended.expect_code(2).expect_error(&["credentials"]);
    assert!(!ended.stderr.contains("sesame"), "a password was shown: {}", ended.stderr);
}

#[test]
fn not_yaml() {
    let p = Pipeline::text("source: [");
    p.check().expect_code(2).expect_error(&["pipeline.yaml"]);
}

#[test]
fn a_key_given_twice() {
    let p = Pipeline::text("source: { range: 5 }\nseed: 1\nseed: 2\n");
    p.check().expect_code(2).expect_error(&["seed"]);
}

#[test]
fn no_source() {
    let p = Pipeline::text("steps: []\n");
    p.check().expect_code(2).expect_error(&["source"]);
}

#[test]
fn a_file_that_is_not_there() {
    caju_tests::caju(&["check", "nothing.yaml"]).expect_code(2).expect_error(&["nothing.yaml"]);
    caju_tests::caju(&["run", "nothing.yaml"]).expect_code(2).expect_error(&["nothing.yaml"]);
}

#[test]
fn check_shows_stages_schema_and_fingerprint() {
    let p = Pipeline::of(
        json!({ "parquet": "a.parquet" }),
        json!([{ "with_columns": { "y": "x * 2" } }, { "batch": 2 }]),
    );
    parquet(&p.folder().join("a.parquet"), vec![("x", ints(0..4))]);
    let ended = p.check();
    ended.expect_code(0);
    for part in ["parquet", "with_columns", "batch", "y", "fingerprint"] {
        assert!(ended.stdout.contains(part), "`{part}` is not shown: {}", ended.stdout);
    }
}
