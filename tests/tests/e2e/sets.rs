//! Hints behind cross-split stages: parts that are stored, and read, all together or not at all.

use std::fs;
use std::path::PathBuf;

use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline, caju_in, files};
use serde_json::{Value, json};

/// Files of numbers with a pipeline on them.
fn on_files(count: i64, steps: Value) -> Pipeline {
    let p = Pipeline::of(json!({ "parquet": { "path": "data/*.parquet" } }), steps);
    fs::create_dir_all(p.folder().join("data")).unwrap();
    (0..count).for_each(|n| add_file(&p, n));
    p
}

fn add_file(p: &Pipeline, n: i64) {
    let path = p.folder().join(format!("data/{n}.parquet"));
    files::parquet(&path, vec![("id", files::ints(n * 100..(n + 1) * 100))]);
}

const FULL: [&str; 4] = ["--cache", "cache", "--policy", "full"];

fn full(p: &Pipeline, more: &[&str]) -> Report {
    p.report(&[&FULL[..], more].concat())
}

fn cache(p: &Pipeline, args: &[&str]) -> Value {
    let all = [&["cache"], args, &["--cache", "cache", "--format", "json"]].concat();
    let ended = caju_in(p.folder(), &all);
    ended.expect_code(0);
    serde_json::from_str(&ended.stdout).unwrap()
}

fn explained(p: &Pipeline) -> Value {
    let ended = caju_in(p.folder(), &["explain", "pipeline.yaml", "--cache", "cache", "--format", "json"]);
    ended.expect_code(0);
    let all: Value = serde_json::from_str(&ended.stdout).unwrap();
    all["hints"][0].clone()
}

fn parts(p: &Pipeline) -> Vec<PathBuf> {
    let folders = fs::read_dir(p.folder().join("cache/v1")).unwrap().map(|e| e.unwrap().path().join("parts"));
    let files = folders.filter_map(|f| fs::read_dir(f).ok()).flatten().map(|e| e.unwrap().path());
    files.filter(|f| f.extension().is_some_and(|e| e == "arrow")).collect()
}

#[test]
fn rows_behind_shuffle_and_batch_are_stored_and_read() {
    let steps =
        json!([{ "shuffle": 50 }, { "batch": 7 }, { "with_columns": { "x": "id * 2" } }, "autocache"]);
    let p = on_files(4, steps);
    let want = p.report(&["--policy", "compute"]);
    for workers in ["1", "2"] {
        fs::remove_dir_all(p.folder().join("cache")).ok();
        let report = full(&p, &["--epochs", "3", "--workers", workers]);
        assert_eq!(report.checksums(), vec![want.checksums()[0].clone(); 3]);
        assert_eq!(report.batches(), vec![want.batches()[0]; 3], "the short batches are merged");
        assert_eq!([0, 1, 2].map(|e| report.splits(e)), [[0, 4, 0], [0, 0, 4], [0, 0, 4]]);
        assert_eq!(report.epochs("source_bytes_read")[1], json!(0));
    }
    // Another process, with another number of workers.
    assert_eq!(full(&p, &["--workers", "3"]).splits(0), [0, 0, 4]);
    let hint = explained(&p);
    assert_eq!(
        (&hint["state"], &hint["cross_split_stage"], &hint["rows"]),
        (&json!("hit"), &json!("shuffle"), &json!(400))
    );
    assert_eq!(cache(&p, &["verify"])["damaged"], json!([]));
    assert_eq!(cache(&p, &["ls"])["snapshots"][0]["splits_total"], 4);
}

#[test]
fn a_source_that_grew_is_stored_again() {
    let p = on_files(2, json!([{ "repeat": 2 }, { "shuffle": 30 }, "autocache", { "batch": 10 }]));
    assert_eq!(full(&p, &[]).splits(0), [0, 4, 0]);
    add_file(&p, 2);
    assert_eq!(explained(&p)["state"], "miss");
    let report = full(&p, &["--epochs", "2"]);
    assert_eq!(report.rows(), [600, 600]);
    assert_eq!([0, 1].map(|e| report.splits(e)), [[0, 6, 0], [0, 0, 6]]);
    // The smaller source is still known.
    fs::remove_file(p.folder().join("data/2.parquet")).unwrap();
    assert_eq!(full(&p, &[]).splits(0), [0, 0, 4]);
}

#[test]
fn a_damaged_part_costs_the_set_and_no_row() {
    let p = on_files(3, json!([{ "shuffle": 40 }, "autocache", { "batch": 9 }]));
    let want = full(&p, &[]);
    for thousandth in [5, 400, 990] {
        for part in parts(&p) {
            let mut bytes = fs::read(&part).unwrap();
            let at = bytes.len() * thousandth / 1000;
            bytes[at] ^= 8;
            fs::write(&part, bytes).unwrap();
        }
        let report = full(&p, &["--epochs", "3"]);
        assert_eq!(report.checksums(), vec![want.checksums()[0].clone(); 3], "damaged at {thousandth}/1000");
        assert_eq!([1, 2].map(|e| report.splits(e)), [[0, 3, 0], [0, 0, 3]], "damaged at {thousandth}/1000");
    }
}

#[test]
fn a_worker_that_is_killed_costs_the_set_and_no_row() {
    let p = Pipeline::of(
        json!({ "range": 40_000 }),
        json!([{ "sleep": { "per_row": "50us" } }, { "shuffle": 100 }, "autocache"]),
    );
    let root = p.folder().join("cache");
    let args = ["--policy", "full"];
    let mut cluster = Cluster::start_with(2, &["--cache", root.to_str().unwrap()], &[]);
    let reading = cluster.start_read(&p, &[&args[..], &["--report", "out.json"]].concat());
    let some = |s: &Value| s["jobs"][0]["splits_leased"].as_u64().filter(|n| *n > 4);
    cluster.wait_for_status("some splits are leased", some);
    let killed = cluster.workers.remove(0);
    killed.process.signal("KILL");
    reading.wait().expect_code(0);
    let report = Report::load(&p.folder().join("out.json"));
    assert_eq!(report.rows(), [40_000]);
    assert_eq!(report.splits(0)[1..], [0, 0]);
    assert_eq!(explained(&p)["state"], "miss");
    cluster.stop();
}

#[test]
fn what_cannot_be_stored_is_said() {
    let p = on_files(2, json!(["repeat", "autocache", { "take": 10 }]));
    p.run(&FULL).expect_code(2).expect_error(&["`repeat` at steps[0] never ends"]);
    let p = on_files(2, json!([{ "batch": 5 }, "autocache"]));
    let off = [&FULL[..], &["--processing-mode", "off"]].concat();
    p.run(&off).expect_code(2).expect_error(&["outside processing mode `dynamic`", "`batch`"]);
}
