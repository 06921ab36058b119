//! Saves whose dispatcher and workers die: they continue by themselves, and every row is stored
//! once.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use caju_tests::binary::caju_binary;
use caju_tests::cluster::Server;
use caju_tests::pipeline::Report;
use caju_tests::process::TEST_TIMEOUT;
use caju_tests::{Cluster, Pipeline, Process, caju_in};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

fn sum(report: &Report) -> u128 {
    report.checksums().iter().fold(0, |n, c| n.wrapping_add(u128::from_str_radix(c, 16).unwrap()))
}

fn expected(p: &Pipeline) -> u128 {
    sum(&p.report(&["--policy", "compute"]))
}

fn load(path: &str, steps: Value) -> Pipeline {
    Pipeline::of(json!({ "load": { "path": path } }), steps)
}

fn parts(folder: &Path) -> usize {
    let mut out = 0;
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => out += parts(&path),
            false => out += usize::from(path.extension().is_some_and(|e| e == "commit")),
        }
    }
    out
}

/// Looks at a folder until there is something to see; there is no event to wait for.
fn watch(what: &str, until: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !until() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(2));
    }
}

/// A dispatcher with a state folder, which is started again under its address, and workers.
struct Lab {
    folder: TempDir,
    dispatcher: Option<Server>,
    address: String,
    workers: Vec<Option<Server>>,
    env: Vec<(String, String)>,
}

impl Lab {
    fn start(workers: usize, env: Vec<(String, String)>) -> Self {
        let folder = tempdir().unwrap();
        let mut lab =
            Self { folder, dispatcher: None, address: "127.0.0.1:0".into(), workers: Vec::new(), env };
        lab.dispatcher();
        lab.workers = (0..workers).map(|_| Some(lab.worker())).collect();
        lab
    }

    fn server(&self, role: &str, args: &[&str]) -> Server {
        let mut command = Command::new(caju_binary());
        command.arg(role).args(args).args([
            "--allow",
            "/",
            "--allow-write",
            "/",
            "--allow-write",
            "s3://bucket",
        ]);
        command.current_dir(self.folder.path()).env_remove("CAJU_CONFIG");
        command.envs(self.env.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        let process = Process::start(command, format!("caju {role}"));
        let address = process.first_line().rsplit(' ').next().unwrap().to_string();
        Server { process, address }
    }

    fn dispatcher(&mut self) {
        let listen = self.address.clone();
        let args = ["--listen", &listen, "--state-dir", "state", "--heartbeat", "100ms"];
        let more = ["--worker-timeout", "2s", "--client-timeout", "2s"];
        let server = self.server("dispatcher", &[&args[..], &more].concat());
        self.address.clone_from(&server.address);
        self.dispatcher = Some(server);
    }

    fn worker(&self) -> Server {
        self.server("worker", &["--dispatcher", &self.address, "--cpu-threads", "1"])
    }

    /// `kill -9`, and a new one in its place.
    fn kill_dispatcher(&mut self) {
        self.dispatcher.take().unwrap().process.signal("KILL");
        self.dispatcher();
    }

    fn kill_worker(&mut self, i: usize) {
        self.workers[i].take().unwrap().process.signal("KILL");
        self.workers[i] = Some(self.worker());
    }

    fn save(&self, p: &Pipeline, to: &str, args: &[&str]) {
        let all = ["save", "pipeline.yaml", "--to", to, "--dispatcher", &self.address];
        caju_in(p.folder(), &[&all[..], args].concat()).expect_code(0);
    }

    fn status(&self) -> Value {
        let args = ["status", "--dispatcher", &self.address, "--format", "json"];
        let ended = caju_in(self.folder.path(), &args);
        ended.expect_code(0);
        serde_json::from_str(&ended.stdout).unwrap()
    }

    fn finished(&self, saves: usize) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let status = self.status();
            let list = status["saves"].as_array().unwrap();
            assert!(!list.iter().any(|s| s["state"] == "failed"), "{list:?}");
            if list.len() == saves && list.iter().all(|s| s["state"] == "finished") {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "never finished: {list:?}, {}, {}",
                status["workers"],
                status["jobs"]
            );
        }
    }

    fn stop(mut self) {
        for worker in self.workers.drain(..).flatten() {
            worker.terminate().expect_code(0);
        }
        self.dispatcher.take().unwrap().terminate().expect_code(0);
    }
}

fn slow(source: Value) -> Pipeline {
    Pipeline::of(source, json!([{ "burn": { "per_row": "100us" } }, { "with_columns": { "x": "id * 3" } }]))
}

#[test]
fn sft_01_and_sft_08_a_save_survives_its_processes_and_sft_11_and_sft_12() {
    let mut lab = Lab::start(3, Vec::new());
    let p = slow(json!({ "range": 20_000 }));
    let q = slow(json!({ "zip": [
        { "source": { "range": 8000 } },
        { "source": { "range": 8000 }, "steps": [{ "map": { "other": "id + 1" } }] },
    ] }));
    let (a, b) = (lab.folder.path().join("a"), lab.folder.path().join("b"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    lab.save(&p, a, &["--detach"]);
    lab.save(&q, b, &["--detach"]);
    assert!(parts(Path::new(b)) < 8, "the command does not wait for the save");
    for i in 0..3 {
        let before = parts(Path::new(a));
        watch("a new part", || parts(Path::new(a)) > before || parts(Path::new(a)) >= 20);
        lab.workers[i].take().unwrap().process.signal("KILL");
        lab.kill_dispatcher();
        lab.workers[i] = Some(lab.worker());
    }
    lab.finished(2);
    assert_eq!(sum(&load(a, json!([])).report(&[])), expected(&p));
    assert_eq!(sum(&load(b, json!([])).report(&[])), expected(&q));
    // Recovery after the end computes nothing again: one commit record per split.
    let (n, m) = (parts(Path::new(a)), parts(Path::new(b)));
    assert_eq!((n, m), (20, 8));
    lab.kill_dispatcher();
    lab.save(&p, a, &[]);
    lab.finished(2);
    assert_eq!((parts(Path::new(a)), parts(Path::new(b))), (n, m));
    lab.stop();
}

#[test]
fn sft_13_a_nested_pipeline_survives_too() {
    let mut lab = Lab::start(2, Vec::new());
    let p = Pipeline::of(
        json!({ "concatenate": (0..20).map(|i| json!({ "source": { "range": { "start": i * 5, "end": i * 5 + 5 } } })).collect::<Vec<_>>() }),
        json!([{ "burn": { "per_row": "5ms" } }, { "flat_map": { "name": "n", "expr": "range(0, id)" } }]),
    );
    let to = lab.folder.path().join("s");
    let to = to.to_str().unwrap();
    lab.save(&p, to, &["--detach"]);
    watch("a part", || parts(Path::new(to)) > 0);
    lab.kill_worker(0);
    lab.kill_dispatcher();
    lab.finished(1);
    let report = load(to, json!([])).report(&[]);
    assert_eq!((report.rows(), sum(&report)), (vec![4950], expected(&p)));
    lab.stop();
}

#[test]
fn sft_14_a_save_is_loaded_while_it_is_written() {
    let lab = Lab::start(2, Vec::new());
    let p = slow(json!({ "range": 12_000 }));
    let to = lab.folder.path().join("s");
    let to = to.to_str().unwrap();
    lab.save(&p, to, &["--detach"]);
    let q = Pipeline::of(json!({ "load": { "path": to, "wait": false } }), json!([]));
    let early = q.run(&[]);
    let args = ["read", "pipeline.yaml", "--dispatcher", &lab.address, "--report", "r.json"];
    let reader = load(to, json!([{ "repeat": 2 }]));
    caju_in(reader.folder(), &args).expect_code(0);
    let report = Report::load(&reader.folder().join("r.json"));
    assert_eq!((report.rows(), sum(&report)), (vec![24_000], expected(&p).wrapping_mul(2)));
    early.expect_code(2).expect_error(&["still being written"]);
    lab.finished(1);
    assert_eq!(q.report(&[]).rows(), [12_000]);
    lab.stop();
}

/// Its parts come as they appear, an order that may be another one after the restart: then the epoch fails, and is never short.
#[test]
fn a_load_of_an_unfinished_save_is_whole_or_fails_when_the_dispatcher_restarts() {
    let mut lab = Lab::start(2, Vec::new());
    let p = slow(json!({ "range": 60_000 }));
    let to = lab.folder.path().join("s");
    let to = to.to_str().unwrap().to_owned();
    lab.save(&p, &to, &["--detach", "--chunk-bytes", "4KiB"]);
    let reader = load(&to, json!([]));
    let args = ["read", "pipeline.yaml", "--dispatcher", &lab.address, "--report", "r.json"];
    let read = Process::caju(reader.folder(), &args);
    watch("a reader with rows", || {
        let jobs = &lab.status()["jobs"];
        jobs.as_array().unwrap().iter().any(|j| j["readers"][0]["rows"].as_u64() > Some(0))
    });
    lab.kill_dispatcher();
    let ended = read.wait();
    match ended.code {
        Some(0) => assert_eq!(sum(&Report::load(&reader.folder().join("r.json"))), expected(&p)),
        _ => drop(ended.expect_code(3).expect_error(&["source"])),
    }
    lab.finished(1);
    assert_eq!(sum(&load(&to, json!([])).report(&[])), expected(&p));
    lab.stop();
}

/// Files are overwritten between two attempts at a save: who loads it meanwhile gets no row of the files as they were.
#[test]
fn a_save_that_is_begun_again_from_other_files_has_no_rows_of_the_first_ones() {
    let folder = tempdir().unwrap();
    let write = |from: u64| {
        for file in 0..6u64 {
            let line = |row| format!("{{\"id\": {}}}\n", from + 100 * file + row);
            let lines: String = (0..100).map(line).collect();
            std::fs::write(folder.path().join(format!("{file}.jsonl")), lines).unwrap();
        }
    };
    write(0);
    let path = folder.path().join("*.jsonl");
    let p = Pipeline::of(json!({ "json": path }), json!([{ "burn": { "per_row": "5ms" } }]));
    let to = folder.path().join("s");
    let to = to.to_str().unwrap();
    let mut first = Lab::start(1, Vec::new());
    first.save(&p, to, &["--detach"]);
    watch("a part", || parts(Path::new(to)) > 0);
    first.dispatcher.take().unwrap().process.signal("KILL");
    first.workers.remove(0).unwrap().process.signal("KILL");
    assert!(parts(Path::new(to)) < 6, "the save was not finished");
    write(10_000);
    let second = Lab::start(1, Vec::new());
    let other = folder.path().join("0.jsonl");
    let q = Pipeline::of(json!({ "json": other }), json!([{ "burn": { "per_row": "5ms" } }]));
    let args = ["save", "pipeline.yaml", "--to", to, "--dispatcher", &second.address];
    caju_in(q.folder(), &args).expect_error(&["over another source", to]);
    second.save(&p, to, &["--detach"]);
    let reader = load(to, json!([]));
    let read = reader.run(&["--report", "r.json"]);
    match read.code {
        Some(0) => assert_eq!(sum(&Report::load(&reader.folder().join("r.json"))), expected(&p)),
        _ => drop(read.expect_code(3).expect_error(&["are not of the finished save"])),
    }
    second.finished(1);
    assert_eq!(sum(&load(to, json!([])).report(&[])), expected(&p));
    second.stop();
}

/// `--save-wait`: a save whose processes are gone has no new part.
#[test]
fn a_load_gives_up_a_save_without_new_parts_after_the_save_wait() {
    let mut lab = Lab::start(1, Vec::new());
    let p = slow(json!({ "range": 1_000_000 }));
    let to = lab.folder.path().join("s");
    lab.save(&p, to.to_str().unwrap(), &["--detach", "--chunk-bytes", "4KiB"]);
    lab.dispatcher.take().unwrap().process.signal("KILL");
    lab.workers.remove(0).unwrap().process.signal("KILL");
    let reader = load(to.to_str().unwrap(), json!([]));
    let ended = reader.run(&["--save-wait", "1500ms"]);
    ended.expect_code(3).expect_error(&["had no new part for 1.50 s", "caju status", "--save-wait"]);
}

#[test]
fn sft_16_a_worker_that_joins_a_load() {
    let mut cluster = Cluster::start(1);
    let folder = tempdir().unwrap();
    let to = folder.path().join("s");
    let to = to.to_str().unwrap();
    let p = Pipeline::of(json!({ "range": 20_000 }), json!([]));
    caju_in(p.folder(), &["save", "pipeline.yaml", "--to", to]).expect_code(0);
    let q = load(to, json!([{ "burn": { "per_row": "100us" } }]));
    let read = cluster.start_read(&q, &["--report", "r.json"]);
    cluster.wait_for_status("rows", |s| {
        s["jobs"][0]["stages"].as_array()?.iter().any(|s| s["rows_out"].as_u64() > Some(0)).then_some(())
    });
    cluster.add_worker(&[]);
    read.wait().expect_code(0);
    assert_eq!(sum(&Report::load(&q.folder().join("r.json"))), expected(&p));
    cluster.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_save_in_s3_survives_its_worker() {
    let s3 = caju_testkit::s3::S3Server::start(&["bucket"]).await.unwrap();
    let env: Vec<_> = s3.options().into_iter().map(|(k, v)| (k.to_uppercase(), v)).collect();
    let bucket = s3.bucket("bucket");
    let work = move || {
        let mut lab = Lab::start(2, env);
        let p = slow(json!({ "range": 12_000 }));
        lab.save(
            &p,
            "s3://bucket/saves/a",
            &["--detach", "--chunk-bytes", "4KiB", "--encoding", "parquet/zstd"],
        );
        watch("a part", || parts(&bucket) > 2);
        lab.kill_worker(0);
        lab.kill_dispatcher();
        lab.finished(1);
        let reader = load("s3://bucket/saves/a", json!([]));
        let args = ["read", "pipeline.yaml", "--dispatcher", &lab.address, "--report", "r.json"];
        caju_in(reader.folder(), &args).expect_code(0);
        assert_eq!(sum(&Report::load(&reader.folder().join("r.json"))), expected(&p));
        lab.stop();
    };
    #[expect(clippy::disallowed_methods, reason = "a panic of a test is a panic")]
    let done = tokio::task::spawn_blocking(work);
    done.await.unwrap();
    drop(s3);
}
