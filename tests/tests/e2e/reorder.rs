//! The order in which stages run: `reorder`, `--reorder`, `--reorder-profile`.

use std::fs;

use caju_tests::{Pipeline, caju_in};
use serde_json::{Value, json};

/// A filter below a stage that costs more, and a hint.
fn filtered() -> Pipeline {
    Pipeline::of(
        json!({"range": {"start": 0, "end": 3000, "step": 1}}),
        json!([
            {"with_columns": {"h": "md5(cast(id as varchar))"}},
            {"filter": "id % 10 = 3"},
            {"autocache": "kept"},
            {"with_columns": {"r": "random_int(0, 1000)"}},
            {"batch": 32},
        ]),
    )
}

#[test]
fn another_order_of_stages_is_named_and_gives_the_same_rows() {
    let p = filtered();
    let order = "order        1.filter, 0.with_columns, 2.autocache, 3.with_columns, 4.batch\n  \
                 1.filter runs above 0.with_columns: it drops rows";
    let plain = p.check();
    assert!(!plain.stdout.contains("order  "), "{}", plain.stdout);
    let checked = caju_in(p.folder(), &["check", "pipeline.yaml", "--reorder"]);
    assert!(checked.stdout.contains(order), "{}", checked.stdout);

    // What one order stores, the other one reads.
    for (cache, first, second) in [("a", "", "--reorder"), ("b", "--reorder", "")] {
        let args = |more: &'static str| {
            let all = ["--cache", cache, "--policy", "hint:kept", "--epochs", "2", more];
            all.into_iter().filter(|a| !a.is_empty()).collect::<Vec<_>>()
        };
        let want = p.report(&["--policy", "compute", "--epochs", "1"]);
        let (stored, read) = (p.report(&args(first)), p.report(&args(second)));
        assert_eq!(stored.checksums(), read.checksums(), "{first} {second}");
        assert_eq!(stored.checksums()[0], want.checksums()[0], "{first} {second}");
        assert_eq!((stored.splits(0)[1] > 0, read.splits(0)[2] > 0), (true, true), "{first} {second}");
    }
    let explained = caju_in(p.folder(), &["explain", "pipeline.yaml", "--cache", "a", "--reorder"]);
    assert!(
        explained.stdout.contains(order) && explained.stdout.contains("hit, all"),
        "{}",
        explained.stdout
    );
    let json =
        caju_in(p.folder(), &["explain", "pipeline.yaml", "--cache", "a", "--reorder", "--format", "json"]);
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["order"]["steps"], json!([1, 0, 2, 3, 4]), "{json:#}");
}

#[test]
fn a_profile_says_which_stages_shrink_rows() {
    let p = Pipeline::of(
        json!({"range": {"start": 0, "end": 4000, "step": 1}}),
        json!([
            {"map": {"a": "cast(id as varchar)", "b": "repeat(cast(id as varchar), 50)"}},
            {"with_columns": {"a": "repeat(a, 20)"}},
            {"with_columns": {"b": "substr(b, 1, 2)"}},
            {"autocache": "short"},
        ]),
    );
    let by_types = caju_in(p.folder(), &["check", "pipeline.yaml", "--reorder"]);
    assert!(by_types.stdout.contains("order        as written"), "{}", by_types.stdout);
    caju_in(p.folder(), &["profile", "pipeline.yaml", "--out", "profile.json", "--quiet"]).expect_code(0);
    let by_sizes = caju_in(p.folder(), &["check", "pipeline.yaml", "--reorder-profile", "profile.json"]);
    assert!(
        by_sizes.stdout.contains("2.with_columns runs above 1.with_columns: measured are"),
        "{}",
        by_sizes.stdout
    );
    let rows = |more: &[&str]| p.report(&[&["--policy", "compute"], more].concat()).checksums();
    assert_eq!(rows(&[]), rows(&["--reorder-profile", "profile.json"]));

    fs::write(p.folder().join("other.yaml"), "source: { range: 10 }\nsteps: [ batch: 4 ]\n").unwrap();
    caju_in(p.folder(), &["check", "other.yaml", "--reorder-profile", "profile.json"])
        .expect_code(2)
        .expect_error(&["none of its stages is one of this pipeline", "caju profile"]);
}
