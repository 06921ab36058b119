//! What `auto` does with pipelines that come back, that run side by side, and whose hints see few rows or none.

use std::fs;

use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline, caju_in, files};
use serde_json::{Value, json};

/// Rows that take so long each, one at a time, and a hint behind that.
fn slow(rows: u64, per_row: &str, more: Value) -> Pipeline {
    let mut steps = vec![json!({ "sleep": { "per_row": per_row } }), json!("autocache")];
    steps.extend(more.as_array().cloned().unwrap_or_default());
    Pipeline::of(json!({ "range": rows }), Value::from(steps))
}

fn auto(p: &Pipeline, epochs: &str, more: &[&str]) -> Report {
    p.report(&[&["--policy", "auto", "--cache", "cache", "--epochs", epochs], more].concat())
}

fn decision(report: &Report) -> &Value {
    &report.0["decision"]
}

fn reason(report: &Report) -> &str {
    decision(report)["reason"].as_str().unwrap_or("no decision")
}

/// Bytes written in the first epoch: leases and notes of who reads take a few hundred, a probe takes thousands.
fn written(report: &Report) -> u64 {
    report.epochs("cache_bytes_written")[0].as_u64().unwrap()
}

#[test]
fn a_pipeline_that_comes_back_is_not_measured_again() {
    let p = slow(3000, "500us", json!([{ "batch": 10 }]));
    let first = auto(&p, "3", &[]);
    assert_eq!(decision(&first)["choice"]["kind"], "materialize", "{}", reason(&first));
    let stored = first.splits(2)[2];
    assert_eq!(first.splits(2), [0, 0, stored], "{:#}", first.0);
    // Another process: it knows at once, reads everything, and tries out nothing.
    let second = auto(&p, "1", &[]);
    assert_eq!(second.splits(0), [0, 0, stored], "{:#}", second.0);
    assert!(written(&second) < 1000, "no probe: {:#}", second.0);
    assert!(reason(&second).contains("stored already"), "{}", reason(&second));
    assert_eq!(first.checksums()[0], second.checksums()[0]);
    // Without the parts the old profile still holds: they are stored again, without a second thought.
    caju_in(p.folder(), &["cache", "ls", "--cache", "cache"]).expect_code(0);
    for file in files::below(&p.folder().join("cache")) {
        if file.contains("/parts/") {
            fs::remove_file(p.folder().join("cache").join(file)).unwrap();
        }
    }
    let third = auto(&p, "3", &[]);
    assert_eq!(third.splits(0), [0, stored, 0], "{:#}", third.0);
    assert!(
        !third.0["epochs"][0]["splits"]["kept"].is_number(),
        "decided before the first row: {:#}",
        third.0
    );
    // And the profile is one that the planner takes: the same decision comes out of it.
    let plans = p.folder().join("cache/v1/plans");
    let [record] = &files::below(&plans)[..] else { panic!("{:?}", files::below(&plans)) };
    let record: Value = serde_json::from_str(&fs::read_to_string(plans.join(record)).unwrap()).unwrap();
    assert_eq!((&record["schema"], &record["jobs"]), (&json!("caju.remembered/v1"), &json!(3)));
    fs::write(p.folder().join("profile.json"), record["profile"].to_string()).unwrap();
    let planned = caju_in(p.folder(), &["plan", "profile.json"]);
    planned.expect_code(0);
    let planned: Value = serde_json::from_str(&planned.stdout).unwrap();
    assert_eq!(&planned["options"], &decision(&third)["options"]);
}

/// Ten files of two hundred rows, each of which takes a millisecond, and a hint behind that.
fn of_files(first: u64) -> Pipeline {
    let steps = json!([{ "sleep": { "per_row": "1ms" } }, "autocache", { "batch": 10 }]);
    let mut p = Pipeline::of(json!({ "json": { "path": "rows-*.jsonl" } }), steps);
    for file in 0..10 {
        p = p.with_file(&format!("rows-{file}.jsonl"), lines(first + 200 * file).as_bytes());
    }
    p
}

fn lines(first: u64) -> String {
    (first..first + 200).map(|id| format!("{{\"id\": {id}}}\n")).collect()
}

/// A snapshot is named after the stages, and other data went through the same ones: its parts are no use to these splits.
#[test]
fn what_is_stored_of_other_data_is_not_there() {
    let p = of_files(0);
    let first = auto(&p, "3", &[]);
    assert_eq!(first.splits(2), [0, 0, 10], "{:#}", first.0);
    for file in 0..10 {
        let path = p.folder().join(format!("rows-{file}.jsonl"));
        fs::write(path, lines(1_000_000 + 200 * file)).unwrap();
    }
    let second = auto(&p, "1", &[]);
    assert_eq!(second.splits(0), [10, 0, 0], "nobody would read what is stored: {}", reason(&second));
    assert!(!reason(&second).contains("stored already"), "{}", reason(&second));
    // The same without a memory of it.
    fs::remove_dir_all(p.folder().join("cache/v1/plans")).unwrap();
    let third = auto(&p, "1", &[]);
    assert_eq!(third.splits(0), [10, 0, 0], "{}", reason(&third));
    assert!(!reason(&third).contains("stored already"), "{}", reason(&third));
}

/// Feeds list a few hundred splits ahead: how many rows there are is known nevertheless.
#[test]
fn a_source_of_many_splits_is_planned_as_a_whole() {
    let steps = json!([{ "sleep": { "per_row": "1ms" } }, "autocache", { "batch": 10 }]);
    let mut p = Pipeline::of(json!({ "json": { "path": "rows-*.jsonl" } }), steps);
    for file in 0..1000_u64 {
        let rows: String = (0..6).map(|id| format!("{{\"id\": {}}}\n", 6 * file + id)).collect();
        p = p.with_file(&format!("rows-{file:04}.jsonl"), rows.as_bytes());
    }
    let report = auto(&p, "2", &[]);
    let options = decision(&report)["options"].as_array().unwrap();
    let computing = options.iter().find(|o| o["kind"] == "compute").unwrap();
    let of = |key: &str| computing[key].as_f64().unwrap();
    let rows = of("rows_per_s") * of("epoch_s");
    assert!((4500.0..7500.0).contains(&rows), "6000 rows are planned as {rows}: {computing:#}");
}

/// Rows that a job of one epoch stores are not read again.
#[test]
fn parts_that_are_there_are_read_and_the_rest_is_not_written_for_the_last_epoch() {
    let p = of_files(0);
    let first = auto(&p, "3", &[]);
    assert_eq!(first.splits(2), [0, 0, 10], "{:#}", first.0);
    for file in 4..10 {
        let path = p.folder().join(format!("rows-{file}.jsonl"));
        fs::write(path, lines(1_000_000 + 200 * file)).unwrap();
    }
    let second = auto(&p, "1", &[]);
    assert_eq!(second.splits(0), [6, 0, 4], "{}", reason(&second));
}

#[test]
fn a_damaged_record_of_earlier_jobs_is_no_more_than_a_lost_one() {
    let p = slow(3000, "500us", json!([{ "batch": 10 }]));
    let first = auto(&p, "3", &[]);
    let plans = p.folder().join("cache/v1/plans");
    let record = plans.join(&files::below(&plans)[0]);
    for text in ["", "{}", "nonsense"] {
        fs::write(&record, text).unwrap();
        let again = auto(&p, "3", &[]);
        assert_eq!(again.checksums(), first.checksums());
        assert_eq!(decision(&again)["choice"]["kind"], "materialize", "{}", reason(&again));
    }
}

#[test]
fn one_epoch_alone_stores_nothing_and_tries_nothing_out() {
    let p = slow(2000, "500us", json!([{ "batch": 10 }]));
    let report = auto(&p, "1", &[]);
    assert!(written(&report) < 1000, "{:#}", report.0);
    assert!(reason(&report).contains("Only one epoch is left"), "{}", reason(&report));
}

#[test]
fn a_hint_behind_cross_split_stages_is_an_option() {
    let steps = json!([
        { "sleep": { "per_row": "500us" } },
        { "shuffle": { "buffer": 100, "seed": 3 } },
        { "batch": 10 },
        { "autocache": "late" },
    ]);
    let p = Pipeline::of(json!({ "range": 3000 }), steps);
    let report = auto(&p, "4", &[]);
    assert_eq!(decision(&report)["choice"]["hint"], "late", "{:#}", decision(&report));
    assert_eq!(report.splits(3)[..2], [0, 0], "{:#}", report.0);
    assert!(report.splits(1)[1] > 0, "the second epoch stores it: {:#}", report.0);
    assert_eq!(report.checksums()[0], report.checksums()[3]);
    // The next job finds the set, and reads it from its second epoch on.
    let again = auto(&p, "2", &["--workers", "2"]);
    assert_eq!(again.splits(1)[..2], [0, 0], "{:#}", again.0);
    assert!(reason(&again).contains("stored already"), "{}", reason(&again));
}

#[test]
fn a_hint_that_no_row_reaches_keeps_no_decision_waiting() {
    let p = slow(2000, "500us", json!([{ "filter": "id < 0" }, { "autocache": "empty" }, { "batch": 10 }]));
    let report = auto(&p, "3", &[]);
    assert_eq!(report.rows(), [0, 0, 0]);
    assert!(!decision(&report).is_null(), "{:#}", report.0);
    let nothing = auto(&Pipeline::of(json!({ "range": 0 }), json!(["autocache"])), "2", &[]);
    assert!(reason(&nothing).contains("Nothing is left to run"), "{}", reason(&nothing));
}

#[test]
fn an_encoding_that_is_asked_for_is_taken() {
    let p = slow(3000, "500us", json!([{ "batch": 10 }]));
    let report = auto(&p, "3", &["--encoding", "parquet/snappy"]);
    let choice = &decision(&report)["choice"];
    assert_eq!(
        (&choice["format"], &choice["compression"]),
        (&json!("parquet"), &json!("snappy")),
        "{choice:#}"
    );
    // Parts in it are weighed by what reading them costs, though it is no candidate by itself.
    fs::remove_dir_all(p.folder().join("cache/v1/plans")).unwrap();
    let again = auto(&p, "2", &[]);
    let options = decision(&again)["options"].as_array().unwrap();
    let stored: Vec<_> = options.iter().filter(|o| o["kind"] == "materialize").collect();
    assert!(stored.iter().all(|o| o["compression"] == "snappy"), "{options:#?}");
    assert_eq!(again.splits(1)[..2], [0, 0], "{:#}", again.0);
}

#[test]
fn a_job_that_joins_others_adopts_their_decision() {
    let p = slow(30_000, "200us", json!([{ "batch": 10 }]));
    let cache = p.folder().join("cache");
    let cluster = Cluster::start_with(1, &["--cache", cache.to_str().unwrap()], &[]);
    let first = cluster.start_read(&p, &["--job", "first", "--policy", "auto", "--epochs", "2"]);
    let of = |status: &Value, job: &str| {
        status["jobs"].as_array()?.iter().find(|j| j["job"] == job).map(|j| j["decision"].clone())
    };
    let decided =
        cluster.wait_for_status("a decision of the first job", |s| of(s, "first").filter(|d| !d.is_null()));
    let second = cluster.start_read(&p, &["--job", "second", "--policy", "auto", "--epochs", "1"]);
    // The first job may have planned again since, when more of it was measured.
    let (adopted, now) =
        cluster.wait_for_status("the second job", |s| Some((of(s, "second")?, of(s, "first")?)));
    assert!(adopted == decided || adopted == now, "from its first moment: {adopted}, not {decided} or {now}");
    first.wait().expect_code(0);
    second.wait().expect_code(0);
    cluster.stop();
}

/// The decision that storing is not worth it for a single epoch does not apply to a job with more epochs, and a job of one
/// epoch probes nothing.
#[test]
fn a_job_of_many_epochs_does_not_adopt_that_of_one() {
    let p = slow(60_000, "200us", json!([{ "batch": 10 }]));
    let cache = p.folder().join("cache");
    let cluster = Cluster::start_with(1, &["--cache", cache.to_str().unwrap()], &[]);
    let first = cluster.start_read(&p, &["--job", "first", "--policy", "auto", "--epochs", "1"]);
    let of = |status: &Value, job: &str| {
        status["jobs"].as_array()?.iter().find(|j| j["job"] == job).map(|j| j["decision"].clone())
    };
    let decided = |job: &'static str| move |s: &Value| of(s, job).filter(|d| !d.is_null());
    let one = cluster.wait_for_status("a decision of the first job", decided("first"));
    let second = cluster.start_read(&p, &["--job", "second", "--policy", "auto", "--epochs", "3"]);
    let more = cluster.wait_for_status("a decision of the second job", decided("second"));
    assert_ne!(more, one);
    first.wait().expect_code(0);
    second.wait().expect_code(0);
    cluster.stop();
}

/// A job that shares rows with a running one plans for both: what both compute is computed once. Alone it plans for itself.
#[test]
fn jobs_that_share_rows_count_as_one_computation() {
    let p = slow(30_000, "200us", json!([{ "with_columns": { "a": "id + 1" } }, { "batch": 10 }]));
    let other = slow(30_000, "200us", json!([{ "with_columns": { "b": "id - 1" } }, { "batch": 10 }]));
    let cache = p.folder().join("cache");
    let cluster =
        Cluster::start_with(1, &["--cache", cache.to_str().unwrap(), "--client-timeout", "3s"], &[]);
    let reason = |job: &'static str| {
        cluster.wait_for_status("a decision", move |s| {
            let job = s["jobs"].as_array()?.iter().find(|j| j["job"] == job)?;
            Some(job["decision"]["reason"].as_str()?.to_string())
        })
    };
    let running = cluster.start_read(&p, &["--job", "running", "--sharing", "exact", "--policy", "compute"]);
    cluster.wait_for_status("rows", |s| (s["jobs"][0]["readers"][0]["rows"].as_u64()? > 0).then_some(()));
    let auto = ["--sharing", "exact", "--policy", "auto", "--epochs", "3"];
    let joins = cluster.start_read(&other, &[&["--job", "joins"], &auto[..]].concat());
    let both = reason("joins");
    assert!(both.starts_with("2 jobs share one computation up to `"), "{both}");
    running.wait().expect_code(0);
    joins.signal("TERM");
    joins.wait();
    cluster.wait_for_status("the end of the reader", |s| {
        let mut jobs = s["jobs"].as_array()?.iter();
        jobs.all(|job| job["readers"].as_array().is_none_or(Vec::is_empty)).then_some(())
    });
    let alone = cluster.start_read(&p, &[&["--job", "alone"], &auto[..]].concat());
    let for_itself = reason("alone");
    assert!(!for_itself.contains("share one computation"), "{for_itself}");
    alone.signal("TERM");
    alone.wait();
    cluster.stop();
}

/// What the decision of a real job saw is recorded, and replayed to the same decision.
#[test]
fn recorded_autocache_events_are_replayed() {
    let p = slow(3000, "500us", json!([{ "batch": 10 }]));
    let report = auto(&p, "3", &["--record-autocache-events", "events"]);
    assert_eq!(decision(&report)["choice"]["kind"], "materialize", "{}", reason(&report));
    let replayed = caju_in(p.folder(), &["plan", "--replay", "events/run.jsonl"]);
    replayed.expect_code(0);
    let choice = &decision(&report)["choice"];
    let named = format!(
        "decide {} {}/{}: {}",
        choice["hint"].as_str().unwrap(),
        choice["format"].as_str().unwrap(),
        choice["compression"].as_str().unwrap(),
        reason(&report)
    );
    assert!(replayed.stdout.contains(&named), "{named}: {}", replayed.stdout);
    // The next job starts warm: it decides before a task reports.
    auto(&p, "1", &["--record-autocache-events", "events"]);
    let log = fs::read_to_string(p.folder().join("events/run.jsonl")).unwrap();
    assert!(
        log.contains("\"kind\":\"plan_record_read\""),
        "the log of the second job follows that of the first"
    );
    // A third job without that plan record measures for itself, and its replay does not know of the jobs before it either.
    fs::remove_dir_all(p.folder().join("cache")).ok();
    let third = p.report(&[
        "--policy",
        "auto",
        "--cache",
        "other-cache",
        "--epochs",
        "3",
        "--record-autocache-events",
        "events",
    ]);
    let replayed = caju_in(p.folder(), &["plan", "--replay", "events/run.jsonl"]);
    replayed.expect_code(0);
    assert!(replayed.stdout.contains(reason(&third)), "{}: {}", reason(&third), replayed.stdout);
    fs::write(p.folder().join("bad.jsonl"), "{}\n").unwrap();
    let bad = caju_in(p.folder(), &["plan", "--replay", "bad.jsonl"]);
    bad.expect_code(2).expect_error(&["bad.jsonl", "line 1", "not a recorded event"]);
}

/// A dispatcher on its own records the events of its jobs, too.
#[test]
fn a_dispatcher_records_autocache_events() {
    let p = slow(300, "500us", json!([{ "batch": 10 }]));
    let (cache, events) = (p.folder().join("cache"), p.folder().join("events"));
    let (cache, events) = (cache.to_str().unwrap(), events.to_str().unwrap());
    let cluster = Cluster::start_with(1, &["--cache", cache, "--record-autocache-events", events], &[]);
    cluster.report(&p, &["--job", "recorded", "--policy", "auto"]);
    let replayed = caju_in(p.folder(), &["plan", "--replay", "events/recorded.jsonl"]);
    replayed.expect_code(0);
    assert!(replayed.stdout.contains(" s  check the storage for epoch 0"), "{}", replayed.stdout);
}
