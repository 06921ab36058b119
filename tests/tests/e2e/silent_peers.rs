//! Peers that accept a connection and say nothing, or take nothing: every wait for one has a deadline that is a setting, and
//! its error names who was waited for. docs/limits.md has the list.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use caju_proto::v1;
use caju_proto::v1::dispatcher_client::DispatcherClient;
use caju_tests::process::{PATIENCE, Process, caju_in};
use caju_tests::{Cluster, Pipeline};
use serde_json::json;
use tempfile::tempdir;

/// A port on which connections are accepted by the system, and nobody says anything.
fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

/// Registers a worker at a dispatcher that is only its address.
fn register(cluster: &Cluster, address: &str) {
    let url = format!("http://{}", cluster.address());
    let request = v1::RegisterWorkerRequest { address: address.to_owned(), cores: 1, ..Default::default() };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = DispatcherClient::connect(url).await.unwrap();
        client.register_worker(request).await.unwrap();
    });
}

fn numbers(rows: u64) -> Pipeline {
    Pipeline::of(json!({ "range": rows }), json!([]))
}

/// Files of ten rows of 10 ms each.
fn slow_files(files: usize) -> Pipeline {
    let mut p =
        Pipeline::of(json!({ "csv": { "path": "*.csv" } }), json!([{ "sleep": { "per_row": "10ms" } }]));
    for file in 0..files {
        p = p.with_file(&format!("{file:04}.csv"), b"id\n0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    }
    p
}

/// `--connect-timeout`: a dispatcher that says nothing is given up, whoever asks it.
#[test]
fn a_silent_dispatcher_is_named_within_the_connect_timeout() {
    let (_listener, address) = silent();
    let p = numbers(10);
    for command in [&["status"][..], &["read", "pipeline.yaml"], &["worker", "--listen", "127.0.0.1:0"]] {
        let began = Instant::now();
        let more = ["--dispatcher", &address, "--connect-timeout", "500ms"];
        let ended = caju_in(p.folder(), &[command, &more].concat());
        ended.expect_code(3).expect_error(&[&address]);
        assert!(began.elapsed() < PATIENCE / 2, "{command:?} took {:?}", began.elapsed());
    }
}

/// `--worker-silence`: a worker that says nothing is lost, and its address is said.
#[test]
fn a_silent_worker_is_named_within_the_silence() {
    let (_listener, address) = silent();
    let cluster = Cluster::start_with(0, &["--worker-timeout", "90s"], &[]);
    register(&cluster, &address);
    let p = numbers(10);
    let reader = cluster.start_read(&p, &["--worker-silence", "300ms"]);
    reader.wait_for_error_line(&format!("worker {address} was lost"));
    let ended = reader.wait_at_most(PATIENCE);
    ended.expect_code(3).expect_error(&[&address]);
    cluster.stop();
}

/// `--dial-timeout`: a worker that cannot be connected to is lost, and its address is said.
#[test]
fn a_worker_that_is_not_there_is_named_within_the_dial_timeout() {
    let (listener, address) = silent();
    drop(listener);
    let cluster = Cluster::start_with(0, &["--worker-timeout", "90s"], &[]);
    register(&cluster, &address);
    let p = numbers(10);
    let began = Instant::now();
    let reader = cluster.start_read(&p, &["--dial-timeout", "100ms"]);
    reader.wait_for_error_line(&format!("worker {address} was lost (cannot connect"));
    reader.wait_at_most(PATIENCE).expect_code(3).expect_error(&[&address]);
    // Ten attempts of five seconds each are what it takes by default.
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    cluster.stop();
}

/// `--ping`: a worker that has no rows yet gives signs of life, more often than `--worker-silence` asks for.
#[test]
fn a_worker_without_rows_gives_signs_of_life() {
    let cluster = Cluster::start_with(1, &[], &["--ping", "200ms"]);
    let p = Pipeline::of(json!({ "range": 2 }), json!([{ "sleep": { "per_row": "3s" } }]));
    let reader = cluster.start_read(&p, &["--worker-silence", "2s", "--report", "read.json"]);
    let ended = reader.wait();
    ended.expect_code(0);
    assert!(!ended.stderr.contains("was lost"), "{}", ended.stderr);
    cluster.stop();
}

/// `--reader-silence`, `--buffer` and `--prefetch`: a reader that takes nothing makes a worker hold what it may and no more,
/// and its connection is closed. When it wakes up it gets everything.
#[test]
fn a_reader_that_takes_nothing_is_cut_off_and_costs_bounded_memory() {
    let bounds = ["--buffer", "256KiB", "--reader-silence", "500ms", "--log", "caju_wire=debug"];
    let cluster = Cluster::start_with(1, &["--client-timeout", "90s"], &bounds);
    let p = numbers(20_000_000);
    let reader = cluster.start_read(&p, &["--job", "train", "--report", "read.json", "--prefetch", "64MiB"]);
    cluster.wait_for_status("rows", |s| s["jobs"][0]["served"]["rows"].as_u64().filter(|rows| *rows > 0));
    reader.signal("STOP");
    // Its window and the system's buffers are full: the worker holds rows.
    let held = cluster.wait_for_status("rows that wait", |s| {
        s["workers"][0]["running"].as_array()?.first()?["buffered_bytes"].as_u64().filter(|bytes| *bytes > 0)
    });
    // One chunk may exceed the bound.
    assert!(held <= (256 << 10) + (8 << 20), "{held}");
    cluster.workers[0].process.wait_for_error_line("nothing was taken for 500ms");
    reader.signal("CONT");
    let ended = reader.wait();
    ended.expect_code(0);
    let report = caju_tests::pipeline::Report::load(&p.folder().join("read.json"));
    assert_eq!(report.rows(), [20_000_000]);
    cluster.stop();
}

/// `--linger`: a task whose reader was killed ends long before the reader counts as gone.
#[test]
fn a_task_that_nobody_reads_ends_after_the_linger_time() {
    let cluster =
        Cluster::start_with(1, &["--client-timeout", "90s"], &["--linger", "300ms", "--log", "info"]);
    let p = slow_files(1000);
    let began = Instant::now();
    let reader = cluster.start_read(&p, &["--job", "train"]);
    let task = |s: &serde_json::Value| s["workers"][0]["running"].as_array().map(Vec::len);
    cluster.wait_for_status("a task", |s| (task(s)? == 1).then_some(()));
    reader.signal("KILL");
    drop(reader.wait());
    cluster.workers[0].process.wait_for_error_line("nobody has read");
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    cluster.stop();
}

/// `--dispatcher-timeout`: a reader whose dispatcher dies goes on for so long, and then says whom it misses.
#[test]
fn a_dispatcher_that_died_is_named_within_the_dispatcher_timeout() {
    let cluster = Cluster::start_with(1, &[], &["--dispatcher-timeout", "1s"]);
    let p = slow_files(1000);
    let reader = cluster.start_read(&p, &["--job", "train", "--dispatcher-timeout", "1s"]);
    cluster.wait_for_status("rows", |s| s["jobs"][0]["served"]["rows"].as_u64().filter(|rows| *rows > 0));
    let address = cluster.address().to_owned();
    cluster.dispatcher.process.signal("KILL");
    // 60 s are the default, and the rows take longer.
    let ended = reader.wait_at_most(Duration::from_secs(50));
    ended.expect_code(3).expect_error(&[&address]);
}

/// `--stall-timeout`: a reader with nothing left to read does not wait for ever for one that stands still.
#[test]
fn an_epoch_that_does_not_end_is_given_up_after_the_stall_timeout() {
    let cluster = Cluster::start_with(1, &["--client-timeout", "90s"], &[]);
    let p = slow_files(40);
    let start =
        |more: &[&str]| -> Process { cluster.start_read(&p, &[&["--job", "train"][..], more].concat()) };
    let stuck = start(&[]);
    let waiting = start(&["--stall-timeout", "1s"]);
    cluster.wait_for_status("two readers with rows", |s| {
        let readers = s["jobs"][0]["readers"].as_array()?;
        let took = readers.iter().filter(|r| r["rows"].as_u64() > Some(0)).count();
        (took == 2).then_some(())
    });
    stuck.signal("STOP");
    let ended = waiting.wait_at_most(Duration::from_secs(80));
    ended.expect_code(3).expect_error(&["nothing to read for", cluster.address()]);
    stuck.signal("KILL");
    drop(stuck.wait());
    cluster.stop();
}

/// `--job-gc-timeout`: an epoch that nobody reads any more is forgotten after this time.
#[test]
fn an_epoch_without_readers_is_forgotten_after_its_time() {
    let cluster = Cluster::start_with(1, &["--job-gc-timeout", "100ms"], &[]);
    assert_eq!(cluster.report(&numbers(10), &["--job", "train"]).rows(), [10]);
    let began = Instant::now();
    cluster.wait_for_status("no jobs", |s| s["jobs"].as_array()?.is_empty().then_some(()));
    assert!(began.elapsed() < PATIENCE);
    cluster.stop();
}

/// `--check-interval`: what is due waits for the next check.
#[test]
fn a_dispatcher_that_seldom_checks_forgets_late() {
    let cluster = Cluster::start_with(1, &["--job-gc-timeout", "1ms", "--check-interval", "1h"], &[]);
    let folder = tempdir().unwrap();
    for job in ["one", "two"] {
        assert_eq!(cluster.report(&numbers(10), &["--job", job]).rows(), [10]);
    }
    let args = ["status", "--dispatcher", cluster.address(), "--all"];
    let shown = caju_in(folder.path(), &args).stdout;
    assert!(shown.contains("one") && shown.contains("two"), "{shown}");
    drop(cluster);
}
