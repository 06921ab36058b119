//! `bucket_by_length` with boundaries that a worker learns: the same for all processes, whatever happens to some of them.

use std::fs;

use caju_tests::cluster::Cluster;
use caju_tests::pipeline::{Pipeline, Report};
use caju_tests::process::caju_in;
use serde_json::{Value, json};

const ROWS: i64 = 6_000;

fn learning(rows: u64) -> Value {
    json!({ "quantiles": 4, "rows": rows })
}

fn bucket(boundaries: &Value) -> Value {
    json!({ "bucket_by_length": { "length": "n", "boundaries": boundaries, "batch_sizes": 10, "pad": false } })
}

/// Rows of lengths 0 to 96, by the quantiles of the first 2,000.
fn learns(above: &Value) -> Pipeline {
    let lengths = json!({ "with_columns": { "n": "id * 7919 % 97" } });
    Pipeline::of(json!({ "range": ROWS }), json!([above, lengths, bucket(&learning(2_000))]))
}

/// Quick rows.
fn quick() -> Value {
    json!({ "select": ["id"] })
}

/// The boundaries in a report.
#[track_caller]
fn boundaries(report: &Value) -> Value {
    let all = report["boundaries"].as_array().unwrap_or_else(|| panic!("no boundaries: {report}"));
    assert_eq!(all.len(), 1);
    all[0]["boundaries"].clone()
}

/// What learning gives: quarters of the lengths of the first 2,000 rows.
fn expected() -> Value {
    let mut lengths: Vec<i64> = (0..2_000).map(|id| id * 7919 % 97).collect();
    lengths.sort_unstable();
    json!([lengths[500], lengths[1_000], lengths[1_500]])
}

fn loaded(p: &Pipeline, name: &str) -> Value {
    Report::load(&p.folder().join(name)).0
}

#[test]
fn workers_consumers_epochs_and_a_dispatcher_that_restarts_have_the_same_boundaries() {
    let mut cluster = Cluster::start_with(2, &["--state-dir", "state"], &[]);
    let p = learns(&quick());
    let running: Vec<_> = (0..3)
        .map(|index| {
            let (index, report) = (index.to_string(), format!("consumer-{index}.json"));
            let args =
                ["--job", "train", "--num-consumers", "3", "--consumer-index", &index, "--balance", "bucket"];
            let more = ["--uneven", "pad", "--epochs", "2", "--report", &report];
            cluster.start_read(&p, &[&args[..], &more].concat())
        })
        .collect();
    for process in running {
        process.wait().expect_code(0);
    }
    let reports: Vec<Value> = (0..3).map(|i| loaded(&p, &format!("consumer-{i}.json"))).collect();
    let whole = cluster.report(&p, &["--job", "whole"]);
    for epoch in 0..2 {
        let of = |r: &Value, name: &str| r["epochs"][epoch][name].clone();
        assert!(reports.iter().all(|r| of(r, "rounds") == of(&reports[0], "rounds")), "{reports:?}");
        let checksum =
            |r: &Value| u128::from_str_radix(of(r, "rows_checksum").as_str().unwrap(), 16).unwrap();
        let sum = reports.iter().fold(0u128, |sum, r| sum.wrapping_add(checksum(r)));
        let want = u128::from_str_radix(&whole.checksums()[0], 16).unwrap();
        assert_eq!(sum, want, "epoch {epoch}: every row once");
    }
    let status = cluster.status();
    let shown = &status["jobs"][0]["boundaries"];
    assert_eq!(*shown, json!([{ "step": 2, "boundaries": expected(), "rows": 2_000 }]));
    cluster.dispatcher.process.signal("KILL");
    cluster.dispatcher.process.wait_for_end();
    cluster.return_dispatcher();
    let after = cluster.report(&p, &["--job", "after"]);
    let computed = p.report(&[]);
    let reports = reports.into_iter().chain([whole.0, after.0.clone(), computed.0.clone()]);
    for report in reports {
        assert_eq!(boundaries(&report), expected());
        assert_eq!(report["fingerprint"], after.0["fingerprint"]);
    }
    assert_eq!(after.checksums(), computed.checksums());
    // They are those that a user may give.
    let lengths = json!({ "with_columns": { "n": "id * 7919 % 97" } });
    let given = Pipeline::of(json!({ "range": ROWS }), json!([quick(), lengths, bucket(&expected())]));
    let given = given.report(&[]);
    assert_eq!(given.0["fingerprint"], after.0["fingerprint"]);
    assert!(given.0.get("boundaries").is_none(), "nothing was learnt");
    cluster.stop();
}

#[test]
fn a_worker_that_is_killed_while_it_learns_is_replaced() {
    let mut cluster = Cluster::start_with(1, &[], &["--log", "info"]);
    // 2,000 rows take 2 s.
    let p = learns(&json!({ "sleep": { "per_row": "1ms" } }));
    let reading = cluster.start_read(&p, &["--job", "j", "--report", "r.json"]);
    let worker = cluster.workers.remove(0);
    worker.process.wait_for_error_line("learning the boundaries of a dataset");
    worker.process.signal("KILL");
    drop(worker);
    cluster.add_worker(&[]);
    reading.wait().expect_code(0);
    assert_eq!(boundaries(&loaded(&p, "r.json")), expected());
    cluster.stop();
}

#[test]
fn a_reading_goes_on_elsewhere_with_the_boundaries_of_its_state_or_is_refused() {
    let cluster = Cluster::start(2);
    let p = Pipeline::of(
        json!({ "json": "data/*.jsonl" }),
        json!([{ "sleep": { "per_row": "500us" } }, bucket(&learning(1_000))]),
    );
    let data = p.folder().join("data");
    fs::create_dir(&data).unwrap();
    let write = |name: &str, lengths: std::ops::Range<i64>| {
        let rows: String = lengths.map(|n| format!("{{\"n\": {n}}}\n")).collect();
        fs::write(data.join(name), rows).unwrap();
    };
    (0..8).for_each(|i| write(&format!("{i}.jsonl"), i * 500..(i + 1) * 500));
    let file = p.folder().join("state.json");
    let state = file.to_str().unwrap();
    let reader = cluster.start_read(&p, &["--state", state, "--job", "j", "--no-checksum"]);
    cluster.wait_for_status("rows", |s| {
        (s["jobs"].as_array()?.first()?["readers"].as_array()?.first()?["rows"].as_u64()? > 0).then_some(())
    });
    reader.signal("TERM");
    reader.wait().expect_error(&["the state is written"]);
    let written = fs::read_to_string(&file).unwrap();
    let before = serde_json::from_str::<Value>(&written).unwrap()["rows"].as_u64().unwrap();
    let elsewhere = Cluster::start(1);
    let args = ["--state", state, "--resume", "--report", "report.json"];
    elsewhere.read(&p, &args).expect_code(0);
    let report = Report::load(&p.folder().join("report.json"));
    assert_eq!((report.rows()[0], boundaries(&report.0)), (4_000 - before, json!([250, 500, 750])));
    // The state of the end of the epoch is of these boundaries, too.
    elsewhere.read(&p, &[&args[..], &["--epochs", "2"]].concat()).expect_code(0);
    assert_eq!(Report::load(&p.folder().join("report.json")).rows(), [4_000]);
    // Another dispatcher learns from other rows: that is another dataset.
    fs::write(&file, written).unwrap();
    write("0.jsonl", 9_000..9_500);
    let changed = Cluster::start(1);
    // The first one keeps what was learnt.
    let kept = cluster.report(&p, &["--job", "again"]);
    assert_eq!((kept.rows(), boundaries(&kept.0)), (vec![4_000], json!([250, 500, 750])));
    changed.read(&p, &args).expect_code(2).expect_error(&["the state is of the dataset", "boundaries"]);
    for cluster in [cluster, elsewhere, changed] {
        cluster.stop();
    }
}

#[test]
fn what_is_stored_behind_the_stage_is_of_its_boundaries() {
    let steps = json!([bucket(&learning(4_096)), { "autocache": "batches" }]);
    let p = Pipeline::of(json!({ "json": "data/*.jsonl" }), steps);
    let data = p.folder().join("data");
    fs::create_dir(&data).unwrap();
    let write = |name: &str, lengths: i64| {
        let rows: String = (0..lengths).map(|n| format!("{{\"n\": {n}}}\n")).collect();
        fs::write(data.join(name), rows).unwrap();
    };
    (0..3).for_each(|i| write(&format!("{i}.jsonl"), 400));
    let full = ["--cache", "cache", "--policy", "full", "--epochs", "2"];
    let first = p.report(&full);
    let computed = p.report(&["--policy", "compute"]);
    assert_eq!((first.splits(0), first.splits(1)), ([0, 3, 0], [0, 0, 3]));
    assert_eq!(first.checksums(), vec![computed.checksums()[0].clone(); 2]);
    assert_eq!(boundaries(&first.0), json!([100, 200, 300]));
    let again = p.report(&full);
    assert_eq!((again.splits(0), again.checksums()), ([0, 0, 3], first.checksums()));
    let explain = || {
        let ended =
            caju_in(p.folder(), &["explain", "pipeline.yaml", "--cache", "cache", "--format", "json"]);
        ended.expect_code(0);
        serde_json::from_str::<Value>(&ended.stdout).unwrap()
    };
    let explained = explain();
    assert_eq!(
        (boundaries(&explained), &explained["hints"][0]["state"]),
        (json!([100, 200, 300]), &json!("hit"))
    );
    let text = caju_in(p.folder(), &["explain", "pipeline.yaml", "--cache", "cache"]);
    assert!(
        text.stdout.contains("steps[0].bucket_by_length: [100, 200, 300] of 1200 rows"),
        "{}",
        text.stdout
    );
    // Other rows have other boundaries, and nothing of the old ones is read.
    write("0.jsonl", 40);
    let changed = p.report(&full);
    assert_ne!(boundaries(&changed.0), json!([100, 200, 300]));
    assert_eq!(changed.splits(0), [0, 3, 0]);
    assert_eq!(changed.checksums(), vec![p.report(&["--policy", "compute"]).checksums()[0].clone(); 2]);
    assert_eq!(boundaries(&explain()), boundaries(&changed.0));
}

#[test]
fn what_cannot_be_learnt_names_the_stage() {
    let lengths = json!({ "with_columns": { "n": "1 / (id - 5)" } });
    let p = Pipeline::of(json!({ "range": 100 }), json!([lengths, bucket(&learning(50))]));
    let said = [
        "pipeline.yaml",
        "steps[1].bucket_by_length: its boundaries could not be learnt",
        "steps[0].with_columns",
    ];
    p.run(&[]).expect_code(2).expect_error(&said);
    let skips = json!({ "source": { "range": 100 }, "on_error": "skip",
                        "steps": [{ "with_columns": { "n": "1 / (id - 5)" } }, bucket(&learning(50))] });
    assert_eq!(Pipeline::new(&skips).report(&[]).rows(), [99]);
    let only = json!({ "source": { "range": 100 }, "cache_only": true, "steps": ["autocache", bucket(&learning(50))] });
    Pipeline::new(&only)
        .check()
        .expect_code(2)
        .expect_error(&["steps[1].bucket_by_length.boundaries", "`cache_only`"]);
    let empty = Pipeline::of(
        json!({ "range": 100 }),
        json!([{ "with_columns": { "n": "id" } }, { "filter": "id < 0" },
                                                            bucket(&learning(50))]),
    );
    let report = empty.report(&[]);
    assert_eq!((report.rows(), boundaries(&report.0)), (vec![0], json!([1])));
    let summary = learns(&quick()).run(&[]);
    summary.expect_code(0);
    assert!(summary.stdout.contains("boundaries   steps[2].bucket_by_length: ["), "{}", summary.stdout);
}

/// Readers that wait know who learns, and end by their bounds.
#[test]
fn a_reader_waits_within_its_bounds() {
    let mut cluster = Cluster::start(0);
    let p = learns(&quick());
    let said = ["steps[2].bucket_by_length: no worker learns its boundaries", "caju worker --dispatcher"];
    cluster.read(&p, &["--worker-wait", "1s"]).expect_error(&said);
    cluster.add_worker(&[]);
    let slow = learns(&json!({ "sleep": { "per_row": "5ms" } }));
    let ended = cluster.read(&slow, &["--stall-timeout", "1s"]);
    ended.expect_error(&["steps[2].bucket_by_length: worker", "has not learnt its boundaries within 1"]);
    cluster.report(&p, &["--job", "others"]);
    cluster.stop();
}

/// The reader goes on with the boundaries of its epoch: nothing is learnt again for it.
#[test]
fn a_dispatcher_that_loses_its_state_goes_on_with_the_boundaries_of_the_epoch() {
    let mut cluster = Cluster::start(1);
    let p = learns(&json!({ "sleep": { "per_row": "500us" } }));
    let reading = cluster.start_read(&p, &["--job", "j", "--report", "r.json"]);
    cluster.wait_for_status("rows", |s| {
        (s["jobs"].as_array()?.first()?["readers"].as_array()?.first()?["rows"].as_u64()? > 0).then_some(())
    });
    cluster.dispatcher.process.signal("KILL");
    cluster.dispatcher.process.wait_for_end();
    cluster.return_dispatcher();
    cluster.wait_for_status("the job", |s| s["jobs"].as_array()?.first().map(|_| ()));
    assert_eq!(cluster.status()["jobs"][0]["boundaries"], json!([]), "the epoch has given boundaries now");
    reading.wait().expect_code(0);
    let report = Report::load(&p.folder().join("r.json"));
    assert_eq!(report.checksums(), learns(&quick()).report(&[]).checksums());
    cluster.stop();
}
