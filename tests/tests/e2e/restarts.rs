//! The dispatcher is killed in the middle of an epoch, with its state and without it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use caju_tests::chaos::proxy::{Proxy, free_port};
use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline, Process, caju_in};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

const ROWS: u64 = 60_000;
/// Within this time of its return workers have registered again and readers report.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// Rows that take time, behind a hint, in 64 splits.
fn steps() -> Value {
    json!([
        { "with_columns": { "x": "id * 3" } },
        { "autocache": "stored" },
        { "sleep": { "per_row": "100us" } },
        { "batch": 50 },
    ])
}

fn slow() -> Pipeline {
    Pipeline::of(json!({ "range": ROWS }), steps())
}

/// The checksum of the known rows.
fn known() -> Vec<String> {
    Pipeline::of(json!({ "range": ROWS }), json!([{ "with_columns": { "x": "id * 3" } }]))
        .report(&[])
        .checksums()
}

/// A cluster with a state folder and a cache, and the folder of the cache.
fn cluster(workers: usize) -> (Cluster, TempDir) {
    let cache = tempdir().unwrap();
    let url = cache.path().display().to_string();
    (Cluster::start_with(workers, &["--state-dir", "state", "--cache", &url], &[]), cache)
}

fn job(status: &Value) -> Option<&Value> {
    status["jobs"].as_array()?.first()
}

/// Rows that have left the last stage, as far as this dispatcher has heard.
fn rows_made(status: &Value) -> Option<u64> {
    job(status)?["stages"].as_array()?.last()?["rows_out"].as_u64()
}

fn start(cluster: &Cluster, p: &Pipeline, more: &[&str]) -> Process {
    let mut args = vec!["--job", "train", "--report", "r.json", "--policy", "hint:stored"];
    args.extend(more);
    cluster.start_read(p, &args)
}

fn kill(cluster: &Cluster) {
    cluster.dispatcher.process.signal("KILL");
    cluster.dispatcher.process.wait_for_end();
}

/// The folders of the state directory whose names contain a text.
fn journals(state: &Path, text: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(state).unwrap().map(|e| e.unwrap().path());
    entries.filter(|p| p.file_name().unwrap().to_string_lossy().contains(text)).collect()
}

#[test]
fn a_dispatcher_that_is_killed_again_and_again_in_an_epoch_costs_no_row_and_no_work() {
    for policy in ["compute", "hint:stored"] {
        let (mut cluster, _cache) = cluster(2);
        let p = slow();
        let read = cluster.start_read(&p, &["--job", "train", "--report", "r.json", "--policy", policy]);
        let mut kills = 0;
        for part in [1, 15, 30, 60, 80] {
            let made = cluster.wait_for_status("rows", |s| {
                let over = job(s)?["state"] != "running";
                rows_made(s).filter(|rows| over || rows * 100 >= ROWS * part)
            });
            if made >= ROWS {
                break;
            }
            kill(&cluster);
            cluster.return_dispatcher();
            kills += 1;
            let back = Instant::now();
            cluster.wait_for_status("workers that report, and the reader", |s| {
                let reports = |w: &Value| w["state"] == "active" && w["tasks"] != json!([]);
                let workers = s["workers"].as_array()?.iter().filter(|w| reports(w)).count();
                let over = job(s)?["state"] != "running";
                (over || workers == 2 && job(s)?["clients"] == 1).then_some(())
            });
            assert!(back.elapsed() < BACK_WITHIN, "{:?}", back.elapsed());
        }
        assert!(kills >= 3, "{policy}: the epoch was over after {kills} kills");
        read.wait().expect_code(0);
        let report = Report::load(&p.folder().join("r.json"));
        assert_eq!((report.rows(), report.checksums()), (vec![ROWS], known()), "{policy}");
        let made = cluster.wait_for_status("the end", |s| {
            let stages = job(s)?["stages"].as_array()?.clone();
            (job(s)?["state"] == "finished" && job(s)?["tasks"] == 0).then_some(stages)
        });
        assert_eq!(made.last().unwrap()["rows_out"], ROWS, "{policy}: nothing is computed twice: {made:?}");
        cluster.stop();
    }
}

/// What is done to the state folder while the dispatcher is away.
fn spoil(state: &Path, how: &str) {
    let database = journals(state, "journal").remove(0).join("db");
    match how {
        "deleted" => std::fs::remove_dir_all(state).unwrap(),
        "truncated" => {
            let file = std::fs::File::options().write(true).open(database).unwrap();
            file.set_len(file.metadata().unwrap().len() / 3).unwrap();
        }
        _ => std::fs::write(database, "this is no database").unwrap(),
    }
}

#[test]
fn without_its_state_a_running_epoch_fails_as_data_loss_and_the_service_goes_on() {
    for how in ["deleted", "truncated", "overwritten"] {
        let (mut cluster, cache) = cluster(2);
        let p = slow();
        let first = start(&cluster, &p, &[]);
        cluster.wait_for_status("rows", |s| rows_made(s).filter(|rows| *rows > ROWS / 10));
        kill(&cluster);
        let state = cluster.folder().join("state");
        spoil(&state, how);
        cluster.return_dispatcher();
        if how != "deleted" {
            cluster.dispatcher.process.wait_for_error_line("it is set aside as");
            assert_eq!(journals(&state, "set-aside").len(), 1, "{how}");
        }
        let failed = first.wait();
        failed.expect_code(2).expect_error(&[
            "the dispatcher lost its state",
            "read it again",
            "--state-dir",
        ]);
        cluster.wait_for_status("both workers", |s| {
            let active = s["workers"].as_array()?.iter().filter(|w| w["state"] == "active").count();
            (active == 2).then_some(())
        });
        // The same job again, on the same workers: every row once, and parts that were stored are found again.
        start(&cluster, &p, &[]).wait().expect_code(0);
        let report = Report::load(&p.folder().join("r.json"));
        assert_eq!((report.rows(), report.checksums()), (vec![ROWS], known()), "{how}");
        let [computed, put, get] = report.splits(0);
        assert!(get > 0 && computed == 0 && put > 0, "{how}: {computed} {put} {get}");
        let url = cache.path().display().to_string();
        caju_in(p.folder(), &["cache", "verify", "--cache", &url]).expect_code(0);
        cluster.stop();
    }
}

/// A proxy accepts connections for a worker that is dead, and closes them at once.
#[test]
fn workers_behind_proxies_that_die_together_are_waited_for() {
    let cluster = Cluster::start(0);
    let ports = [free_port(), free_port()];
    let proxies = ports.map(Proxy::start);
    let add = |cluster: &Cluster, i: usize| {
        let (listen, advertise) = (format!("127.0.0.1:{}", ports[i]), proxies[i].address());
        let mut args = vec!["worker", "--dispatcher", cluster.address(), "--listen", &listen];
        args.extend(["--advertise", &advertise, "--cpu-threads", "1", "--connect-timeout", "60s"]);
        Process::caju(cluster.folder(), &args)
    };
    let workers = [add(&cluster, 0), add(&cluster, 1)];
    workers.iter().for_each(|w| drop(w.first_line()));
    let p = slow();
    let read = cluster.start_read(&p, &["--report", "r.json"]);
    cluster.wait_for_status("rows", |s| rows_made(s).filter(|rows| *rows > 0));
    for worker in workers {
        worker.signal("KILL");
        worker.wait_for_end();
    }
    let again = add(&cluster, 0);
    read.wait().expect_code(0);
    let report = Report::load(&p.folder().join("r.json"));
    assert_eq!((report.rows(), report.checksums()), (vec![ROWS], known()));
    again.signal("TERM");
    again.wait_at_most(Duration::from_secs(40)).expect_code(0);
    cluster.stop();
}

#[test]
fn a_dispatcher_without_a_state_folder_says_so_to_running_readers() {
    let mut cluster = Cluster::start(1);
    let p = slow();
    let read = cluster.start_read(&p, &[]);
    cluster.wait_for_status("rows", |s| rows_made(s).filter(|rows| *rows > 0));
    kill(&cluster);
    cluster.return_dispatcher();
    read.wait().expect_code(2).expect_error(&["the dispatcher lost its state", "--state-dir"]);
    cluster.stop();
}
