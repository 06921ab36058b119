//! Processes that die or are missing.

use std::net::TcpListener;
use std::time::Duration;

use caju_tests::cluster::Server;
use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline, Process};
use serde_json::{Value, json};

/// Rows that cost CPU time, in many splits.
fn slow_range(rows: u64) -> Pipeline {
    Pipeline::of(json!({ "range": rows }), json!([{ "burn": { "per_row": "50us" } }, { "batch": 100 }]))
}

fn plain_range(rows: u64) -> Pipeline {
    Pipeline::of(json!({ "range": rows }), json!([{ "batch": 100 }]))
}

/// Rows that came out of the last stages of all jobs so far.
fn rows_made(status: &Value) -> u64 {
    let last = |j: &Value| j["stages"].as_array()?.last()?["rows_out"].as_u64();
    status["jobs"].as_array().map_or(0, |jobs| jobs.iter().filter_map(last).sum())
}

/// Waits until workers have made rows: the epoch is in its middle.
fn wait_for_rows(cluster: &Cluster) {
    cluster.wait_for_status("rows", |s| (rows_made(s) > 0).then_some(()));
}

#[test]
fn a_killed_worker_costs_no_row_and_doubles_none() {
    let rows = 100_000;
    let mut cluster = Cluster::start(2);
    let p = slow_range(rows);
    let read = cluster.start_read(&p, &["--report", "r.json"]);
    wait_for_rows(&cluster);
    let killed = cluster.workers.remove(0);
    killed.process.signal("KILL");
    read.wait().expect_code(0);
    let report = Report::load(&p.folder().join("r.json"));
    assert_eq!(report.rows(), [rows]);
    assert_eq!(report.checksums(), plain_range(rows).report(&[]).checksums());
    cluster.stop();
}

/// A task that follows a lost one counts the rows again that users have taken already.
#[test]
fn a_counted_epoch_has_its_rows_whatever_worker_dies() {
    let even = json!({ "filter": "id % 2 = 0" });
    let counted = json!([even, { "take": 15_000 }, { "batch": 7 }]);
    let skipped = json!([even, { "skip": 3_000 }, { "take": 12_000 }, { "batch": 7 }]);
    let batches = json!([{ "batch": { "size": 7, "drop_remainder": true } }]);
    for (steps, deterministic) in [(counted, false), (skipped, false), (batches, true)] {
        let pipeline = |cost: &str| {
            let mut all = vec![json!({ "burn": { "per_row": cost } })];
            all.extend(steps.as_array().unwrap().iter().cloned());
            Pipeline::new(&json!({
                "source": { "range": 40_000 },
                "steps": all,
                "deterministic": deterministic,
            }))
        };
        let expected = pipeline("0us").report(&[]);
        let mut cluster = Cluster::start(1);
        let p = pipeline("50us");
        let read = cluster.start_read(&p, &["--report", "r.json"]);
        cluster.wait_for_status("rows", |s| (s["jobs"][0]["served"]["rows"].as_u64()? > 4_000).then_some(()));
        cluster.workers.remove(0).process.signal("KILL");
        cluster.add_worker(&[]);
        read.wait().expect_code(0);
        let report = Report::load(&p.folder().join("r.json"));
        assert_eq!((report.rows(), report.batches()), (expected.rows(), expected.batches()), "{steps}");
        assert_eq!(report.checksums(), expected.checksums(), "{steps}");
        cluster.stop();
    }
}

#[test]
fn a_worker_that_comes_later_takes_over() {
    let rows = 40_000;
    let mut cluster = Cluster::start(1);
    let p = slow_range(rows);
    let read = cluster.start_read(&p, &["--report", "r.json"]);
    wait_for_rows(&cluster);
    let killed = cluster.workers.remove(0);
    killed.process.signal("KILL");
    cluster.add_worker(&[]);
    read.wait().expect_code(0);
    let report = Report::load(&p.folder().join("r.json"));
    assert_eq!(report.checksums(), plain_range(rows).report(&[]).checksums());
    cluster.stop();
}

#[test]
fn a_drained_worker_ends_and_its_splits_go_elsewhere() {
    let rows = 60_000;
    let mut cluster = Cluster::start(2);
    let p = slow_range(rows);
    let read = cluster.start_read(&p, &["--report", "r.json"]);
    wait_for_rows(&cluster);
    cluster.workers.remove(0).terminate().expect_code(0);
    read.wait().expect_code(0);
    let report = Report::load(&p.folder().join("r.json"));
    assert_eq!(report.checksums(), plain_range(rows).report(&[]).checksums());
    cluster.stop();
}

#[test]
fn a_dispatcher_that_is_not_there() {
    let p = plain_range(10);
    // Port 9 is for services that discard; no process listens there.
    let args = ["read", "pipeline.yaml", "--dispatcher", "127.0.0.1:9", "--connect-timeout", "500ms"];
    let ended = caju_tests::caju_in(p.folder(), &args);
    ended.expect_code(3).expect_error(&["127.0.0.1:9"]);
    let args = ["worker", "--dispatcher", "127.0.0.1:9", "--connect-timeout", "500ms"];
    caju_tests::caju(&args).expect_code(3).expect_error(&["127.0.0.1:9"]);
    let args = ["status", "--dispatcher", "127.0.0.1:9", "--connect-timeout", "500ms"];
    caju_tests::caju(&args).expect_code(3).expect_error(&["127.0.0.1:9"]);
}

#[test]
fn a_reader_without_workers_says_what_it_waits_for() {
    let mut cluster = Cluster::start(0);
    let p = plain_range(1000);
    let read = cluster.start_read(&p, &["--report", "r.json"]);
    cluster.wait_for_status("the job", |s| (!s["jobs"].as_array()?.is_empty()).then_some(()));
    read.wait_for_error_line("waiting for a worker");
    cluster.add_worker(&[]);
    read.wait().expect_code(0);
    assert_eq!(Report::load(&p.folder().join("r.json")).rows(), [1000]);
    cluster.stop();
}

#[test]
fn gc_01_a_reader_that_dies_frees_its_tasks() {
    let cluster = Cluster::start_with(1, &["--client-timeout", "1s"], &[]);
    let p = slow_range(10_000_000);
    let read = cluster.start_read(&p, &[]);
    wait_for_rows(&cluster);
    read.signal("KILL");
    let idle = |s: &Value| s["workers"].as_array()?.iter().all(|w| w["tasks"] == json!([])).then_some(());
    cluster.wait_for_status("a worker without tasks", idle);
    cluster.stop();
}

#[test]
fn fto_10_a_dispatcher_that_comes_late_is_awaited() {
    let folder = tempfile::tempdir().unwrap();
    // Not a dispatcher: it shows that the reader calls.
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = port.local_addr().unwrap().to_string();
    let p = plain_range(10);
    let read =
        Process::caju(p.folder(), &["read", "pipeline.yaml", "--dispatcher", &address, "--report", "r.json"]);
    drop(port.accept().unwrap());
    drop(port);
    let read = match read.ended_within(Duration::from_millis(500)) {
        Ok(ended) => panic!("it waits for no dispatcher: {}", ended.stderr),
        Err(read) => read,
    };
    let dispatcher = Server::start(folder.path(), "dispatcher", &["--listen", &address]);
    let worker = Process::caju(folder.path(), &["worker", "--dispatcher", &address]);
    read.wait().expect_code(0);
    let report = Report::load(&p.folder().join("r.json"));
    assert_eq!(report.checksums(), p.report(&["--workers", "1"]).checksums(), "0 to 9");
    worker.signal("TERM");
    worker.wait().expect_code(0);
    dispatcher.terminate().expect_code(0);
}

/// What a lost worker had delivered is not computed again: splits of which readers have all rows are left out.
#[test]
fn splits_that_a_lost_worker_had_delivered_are_not_computed_again() {
    let mut cluster = Cluster::start_with(2, &["--worker-timeout", "3s"], &[]);
    let mut p = Pipeline::of(
        json!({ "csv": { "path": "*.csv" } }),
        json!([{ "sleep": { "per_row": "2ms" } }, { "batch": 7 }]),
    );
    for file in 0..100 {
        let rows: String = (0..20).map(|row| format!("{}\n", file * 20 + row)).collect();
        p = p.with_file(&format!("{file:02}.csv"), format!("id\n{rows}").as_bytes());
    }
    let wanted = p.report(&[]).checksums();
    let reader = cluster.start_read(&p, &["--job", "train", "--report", "read.json"]);
    cluster.wait_for_status("half of the rows", |s| {
        let rows = s["jobs"][0]["readers"][0]["rows"].as_u64()?;
        (rows >= 1000).then_some(())
    });
    cluster.workers.remove(0).process.signal("KILL");
    reader.wait().expect_code(0);
    let report = Report::load(&p.folder().join("read.json"));
    assert_eq!((report.rows(), report.checksums()), (vec![2000], wanted));
    // The stages are those of the worker that is left. It would read all 2,000 rows if the other's splits were run again.
    let computed = cluster.wait_for_status("the stages of the last task", |s| {
        let job = s["jobs"].as_array()?.first()?;
        (job["state"] != "running").then(|| job["stages"][0]["rows_out"].as_u64()).flatten()
    });
    assert!((1..1800).contains(&computed), "the worker that was left read {computed} rows");
    cluster.stop();
}
