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

fn sum(checksum: &str) -> u128 {
    u128::from_str_radix(checksum, 16).unwrap()
}

fn job(status: &Value) -> Option<&Value> {
    status["jobs"].as_array()?.first()
}

/// Rows that have left the last stage, as far as this dispatcher has heard.
fn rows_made(status: &Value) -> Option<u64> {
    job(status)?["stages"].as_array()?.last()?["rows_out"].as_u64()
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

#[test]
fn a_worker_says_that_its_dispatcher_is_gone_and_waits_for_it() {
    let mut cluster = Cluster::start_with(0, &["--state-dir", "state"], &[]);
    cluster.add_worker(&["--dispatcher-timeout", "200ms"]);
    kill(&cluster);
    let said = cluster.workers[0].process.wait_for_error_line("the dispatcher has not answered for");
    assert!(said.contains("registers again"), "{said}");
    cluster.return_dispatcher();
    cluster.wait_for_status("the worker", |s| (s["workers"][0]["state"] == "active").then_some(()));
    cluster.stop();
}

/// `--absence-timeout`: a worker whose dispatcher does not come back ends, and names it.
#[test]
fn a_worker_ends_when_its_dispatcher_is_away_for_the_absence_timeout() {
    let mut cluster = Cluster::start_with(0, &["--state-dir", "state"], &[]);
    cluster.add_worker(&["--absence-timeout", "400ms"]);
    cluster.add_worker(&["--dispatcher-timeout", "400ms"]);
    kill(&cluster);
    let ended = cluster.workers.remove(0).process.wait();
    ended.expect_code(3).expect_error(&[cluster.address(), "has not answered for", "--absence-timeout"]);
    // The other one waits for as long as it runs.
    cluster.workers[0].process.wait_for_error_line("registers again");
    assert!(!cluster.workers[0].process.has_ended());
    drop(cluster);
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

/// A reader of a job with a report of its own.
fn start_reader(cluster: &Cluster, p: &Pipeline, n: usize, more: &[&str]) -> Process {
    let report = format!("r-{n}.json");
    let mut args = vec!["--job", "train", "--report", &report, "--policy", "hint:stored"];
    args.extend(more);
    cluster.start_read(p, &args)
}

/// The rows that readers got together, and the sum of their checksums.
fn together(p: &Pipeline, readers: usize) -> (u64, u128) {
    let of = |n| Report::load(&p.folder().join(format!("r-{n}.json")));
    let add =
        |(rows, all): (u64, u128), r: Report| (rows + r.rows()[0], all.wrapping_add(sum(&r.checksums()[0])));
    (0..readers).map(of).fold((0, 0), add)
}

#[test]
fn without_its_state_a_dispatcher_goes_on_behind_what_the_readers_took() {
    for (how, readers) in [("deleted", 2), ("truncated", 1), ("overwritten", 1), ("overwritten", 2)] {
        let (mut cluster, cache) = cluster(2);
        let p = slow();
        let running: Vec<_> = (0..readers).map(|n| start_reader(&cluster, &p, n, &[])).collect();
        cluster.wait_for_status("rows", |s| {
            (job(s)?["clients"] == readers).then_some(())?;
            rows_made(s).filter(|rows| *rows > ROWS / 10)
        });
        kill(&cluster);
        let state = cluster.folder().join("state");
        spoil(&state, how);
        cluster.return_dispatcher();
        if how != "deleted" {
            cluster.dispatcher.process.wait_for_error_line("it is set aside as");
            assert_eq!(journals(&state, "set-aside").len(), 1, "{how}");
        }
        for reader in running {
            reader.wait().expect_code(0);
        }
        assert_eq!(together(&p, readers), (ROWS, sum(&known()[0])), "{how}: {readers} readers");
        // Parts that were stored are found again.
        let again = ["--job", "again", "--report", "r.json", "--policy", "hint:stored"];
        cluster.read(&p, &again).expect_code(0);
        let report = Report::load(&p.folder().join("r.json"));
        assert_eq!((report.rows(), report.checksums()), (vec![ROWS], known()), "{how}");
        let [computed, put, get] = report.splits(0);
        assert!(get > 0 && computed == 0, "{how}: {computed} {put} {get}");
        let url = cache.path().display().to_string();
        caju_in(p.folder(), &["cache", "verify", "--cache", &url]).expect_code(0);
        cluster.stop();
    }
}

/// A dispatcher that loses its state twice, which never had a folder for it.
#[test]
fn readers_of_a_dispatcher_without_a_state_folder_go_on_whenever_it_restarts() {
    let mut cluster = Cluster::start(2);
    let p = slow();
    let read = cluster.start_read(&p, &["--report", "r.json"]);
    for _ in 0..2 {
        // Counted by this dispatcher.
        cluster.wait_for_status("rows", |s| rows_made(s).filter(|rows| *rows > ROWS / 20));
        kill(&cluster);
        cluster.return_dispatcher();
        cluster.wait_for_status("the reader", |s| (job(s)?["clients"] == 1).then_some(()));
    }
    read.wait().expect_code(0);
    let report = Report::load(&p.folder().join("r.json"));
    assert_eq!((report.rows(), report.checksums()), (vec![ROWS], known()));
    cluster.stop();
}

#[test]
fn a_reader_that_does_not_come_back_after_the_state_was_lost_is_named_unless_lost_readers_are_allowed() {
    for accepts in [false, true] {
        let mut cluster = Cluster::start_with(2, &["--client-timeout", "2s"], &[]);
        let p = slow();
        let more = if accepts { &["--lost-readers", "allow"][..] } else { &[] };
        let start = |n: usize| {
            let report = format!("r-{n}.json");
            cluster.start_read(&p, &[&["--job", "train", "--report", &report], more].concat())
        };
        let (survivor, victim) = (start(0), start(1));
        cluster.wait_for_status("rows", |s| {
            (job(s)?["clients"] == 2).then_some(())?;
            rows_made(s).filter(|rows| *rows > ROWS / 10)
        });
        kill(&cluster);
        victim.signal("KILL");
        victim.wait_for_end();
        cluster.return_dispatcher();
        let ended = survivor.wait();
        if accepts {
            ended.expect_code(0);
            assert_eq!(together(&p, 1), (ROWS, sum(&known()[0])), "what the victim took came again");
        } else {
            let said =
                ["the dispatcher lost its state", "client-", "client timeout of 2", "--lost-readers allow"];
            ended.expect_code(2).expect_error(&said);
        }
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
