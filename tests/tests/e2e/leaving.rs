//! A dispatcher that gets SIGTERM: present readers end their epoch, no other one begins, and nothing holds up its end. A reader
//! that gets SIGTERM or Ctrl-C leaves its epoch, and `caju run` stops.

use std::time::{Duration, Instant};

use caju_tests::cluster::Cluster;
use caju_tests::pipeline::{Pipeline, Report};
use caju_tests::process::{Process, caju};
use serde_json::{Value, json};

const ROWS: u64 = 100_000;
/// The end of a process whose peers do not answer. Far less than the drain timeouts below, and far more than a busy
/// machine needs.
const PROMPT: Duration = Duration::from_secs(25);

/// Rows that cost CPU time, in many splits.
fn slow(rows: u64) -> Pipeline {
    Pipeline::of(json!({ "range": rows }), json!([{ "burn": { "per_row": "50us" } }, { "batch": 100 }]))
}

fn job(status: &Value) -> Option<&Value> {
    status["jobs"].as_array()?.first()
}

/// A reader in the middle of an epoch.
fn reader_in_the_middle(cluster: &Cluster, p: &Pipeline) -> Process {
    let reader = cluster.start_read(p, &["--job", "train", "--report", "r.json"]);
    cluster.wait_for_status("rows", |s| {
        let rows = job(s)?["stages"].as_array()?.last()?["rows_out"].as_u64()?;
        (rows > 5_000).then_some(())
    });
    reader
}

#[test]
fn readers_in_the_middle_of_an_epoch_end_it_and_no_other_epoch_begins() {
    let cluster = Cluster::start_with(1, &["--drain-timeout", "80s"], &[]);
    let p = slow(ROWS);
    let reader = reader_in_the_middle(&cluster, &p);
    cluster.dispatcher.process.signal("TERM");
    cluster.dispatcher.process.wait_for_error_line("dispatcher: leaving within ");
    let other = Pipeline::of(json!({ "range": 10 }), json!([]));
    let late = cluster.read(&other, &["--connect-timeout", "500ms"]);
    late.expect_code(3).expect_error(&["shutting down"]);
    reader.wait().expect_code(0);
    assert_eq!(Report::load(&p.folder().join("r.json")).rows(), [ROWS]);
    cluster.dispatcher.process.wait_at_most(PROMPT).expect_code(0);
    for worker in cluster.workers {
        worker.process.signal("TERM");
        worker.process.wait().expect_code(0);
    }
}

#[test]
fn a_reader_that_is_interrupted_leaves_its_rows_to_others_at_once() {
    // A reader that is only missed after the client timeout would hold up the other one for as long.
    let cluster = Cluster::start_with(1, &["--client-timeout", "10min"], &[]);
    let p = slow(ROWS);
    for signal in ["INT", "TERM"] {
        let reader = reader_in_the_middle(&cluster, &p);
        reader.signal(signal);
        reader.wait().expect_code(3).expect_error(&[signal, "the reader has left the epoch", "--state FILE"]);
    }
    let other = cluster.read(&p, &["--job", "train", "--report", "other.json"]);
    other.expect_code(0);
    let rows = Report::load(&p.folder().join("other.json")).rows();
    assert!(rows[0] > 0 && rows[0] < ROWS, "what others had not taken: {rows:?}");
    cluster.stop();
}

#[test]
fn a_run_that_is_interrupted_reports_its_epochs_and_removes_its_cache() {
    let steps =
        json!([{ "map": { "id": "id" } }, { "autocache": "hint" }, { "burn": { "per_row": "20us" } }]);
    let p = Pipeline::of(json!({ "range": 20_000 }), steps);
    let temporary = p.folder().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = std::process::Command::new(caju_tests::binary::caju_binary());
    command.args(["run", p.path().to_str().unwrap(), "--epochs", "100000", "--report", "r.json"]);
    command.args(["--log", "caju_worker=info"]);
    command.current_dir(p.folder()).env("TMPDIR", &temporary).env_remove("CAJU_CONFIG");
    let run = Process::start(command, "caju run".to_owned());
    // The first epoch is over when a task of the second one starts.
    let line = run.wait_for_error_line("epoch=1");
    assert!(line.contains("task started"), "{line}");
    let is_cache = |f: &std::fs::DirEntry| f.file_name().to_string_lossy().starts_with("caju-cache-");
    let caches = || std::fs::read_dir(&temporary).unwrap().map(Result::unwrap).filter(is_cache).count();
    assert_eq!(caches(), 1, "a private cache");
    run.signal("INT");
    run.wait().expect_code(3).expect_error(&["SIGINT: stopped", "not read to its end"]);
    let rows = Report::load(&p.folder().join("r.json")).rows();
    let (last, whole) = rows.split_last().unwrap();
    assert!(!whole.is_empty() && whole.iter().all(|rows| *rows == 20_000) && *last <= 20_000, "{rows:?}");
    assert_eq!(caches(), 0, "it is removed");
}

#[test]
fn a_reader_that_answers_no_longer_does_not_hold_up_the_end() {
    let cluster = Cluster::start_with(1, &["--drain-timeout", "80s"], &[]);
    let p = slow(ROWS);
    let reader = reader_in_the_middle(&cluster, &p);
    reader.signal("STOP");
    let asked = Instant::now();
    cluster.dispatcher.process.signal("TERM");
    cluster.dispatcher.process.wait_at_most(Duration::from_secs(85)).expect_code(0);
    assert!(asked.elapsed() < PROMPT, "{:?}", asked.elapsed());
}

#[test]
fn readers_that_need_longer_than_the_drain_timeout_are_left_behind() {
    let cluster = Cluster::start_with(1, &["--drain-timeout", "1s"], &[]);
    let p = slow(20 * ROWS);
    let _reader = reader_in_the_middle(&cluster, &p);
    let asked = Instant::now();
    cluster.dispatcher.process.signal("TERM");
    let ended = cluster.dispatcher.process.wait();
    ended.expect_code(3).expect_error(&["work was still going on after --drain-timeout 1.00 s"]);
    assert!(asked.elapsed() < PROMPT, "{:?}", asked.elapsed());
}

#[test]
fn a_second_signal_ends_the_dispatcher_at_once() {
    let cluster = Cluster::start_with(1, &["--drain-timeout", "80s"], &[]);
    let p = slow(20 * ROWS);
    let _reader = reader_in_the_middle(&cluster, &p);
    let asked = Instant::now();
    cluster.dispatcher.process.signal("TERM");
    cluster.dispatcher.process.wait_for_error_line("leaving within");
    cluster.dispatcher.process.signal("TERM");
    let ended = cluster.dispatcher.process.wait();
    ended.expect_error(&["a second signal (SIGTERM)"]);
    assert!(asked.elapsed() < PROMPT, "{:?}", asked.elapsed());
}

#[test]
fn a_worker_in_the_middle_of_slow_rows_that_nobody_reads_any_more_leaves_at_once() {
    for is_asked_by_command in [false, true] {
        let long = ["--drain-timeout", "80s", "--linger", "80s"];
        let cluster = Cluster::start_with(1, &["--client-timeout", "80s"], &long);
        let p = Pipeline::of(json!({ "range": 1_000_000 }), json!([{ "sleep": { "per_row": "100ms" } }]));
        let reader = cluster.start_read(&p, &["--job", "train"]);
        cluster.wait_for_status("rows", |s| (s["jobs"][0]["served"]["elements"].as_u64()? > 0).then_some(()));
        reader.signal("KILL");
        reader.wait_for_end();
        let id = cluster.status()["workers"][0]["worker_id"].as_u64().unwrap().to_string();
        let asked = Instant::now();
        if is_asked_by_command {
            let secret = cluster.operator_secret_file();
            let address = cluster.address();
            caju(&["worker", "drain", &id, "--dispatcher", address, "--operator-secret-file", &secret])
                .expect_code(0);
        } else {
            cluster.workers[0].process.signal("TERM");
        }
        for worker in cluster.workers {
            worker.process.wait_at_most(Duration::from_secs(85)).expect_code(0);
        }
        assert!(asked.elapsed() < PROMPT, "by command: {is_asked_by_command}: {:?}", asked.elapsed());
    }
}

#[test]
fn a_job_without_a_worker_fails_after_the_dispatchers_worker_wait() {
    let cluster = Cluster::start_with(0, &["--worker-wait", "700ms"], &[]);
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    let asked = Instant::now();
    let ended = cluster.read(&p, &[]);
    ended.expect_code(3).expect_error(&["no worker has been there for 700", "caju worker --dispatcher"]);
    assert!(asked.elapsed() < PROMPT, "the reader's own bound is a minute: {:?}", asked.elapsed());
    cluster.stop();
}

#[test]
fn a_reader_that_never_saw_a_worker_gives_up_after_its_own_worker_wait() {
    let cluster = Cluster::start(0);
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    let asked = Instant::now();
    let ended = cluster.read(&p, &["--worker-wait", "700ms"]);
    ended.expect_code(3).expect_error(&[
        "no worker registered",
        cluster.address(),
        "caju worker --dispatcher",
    ]);
    assert!(asked.elapsed() < PROMPT, "the dispatcher's bound is two minutes: {:?}", asked.elapsed());
    cluster.stop();
}

/// The wait is for a worker, not for rows: with one that comes in time the job continues.
#[test]
fn a_worker_that_comes_within_the_wait_is_waited_for() {
    let mut cluster = Cluster::start_with(0, &["--worker-wait", "80s"], &[]);
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    let reader = cluster.start_read(&p, &["--worker-wait", "80s"]);
    reader.wait_for_error_line("waiting for a worker");
    cluster.add_worker(&[]);
    reader.wait().expect_code(0);
    cluster.stop();
}
