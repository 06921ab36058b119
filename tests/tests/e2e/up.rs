//! `caju up`: a dispatcher and worker processes that follow its target, are replaced when they die, and end with it.

use std::path::Path;
use std::time::{Duration, Instant};

use caju_client::{Client, ClientConfig, ReadRequest};
use caju_pipeline::DatasetDef;
use caju_tests::cluster::Server;
use caju_tests::pipeline::{Pipeline, Report};
use caju_tests::process::{Process, TEST_TIMEOUT};
use serde_json::{Value, json};

/// Quick timers, and sources anywhere.
const TIMERS: [&str; 8] =
    ["--listen", "127.0.0.1:0", "--heartbeat", "100ms", "--worker-timeout", "2s", "--allow", "/"];

fn up(folder: &Path, args: &[&str]) -> Server {
    Server::start(folder, "up", &[&TIMERS, args].concat())
}

/// The process of a worker, when it listens.
fn worker(up: &Server, number: u64) -> u32 {
    let line = up.process.wait_for_error_line(&format!("up: worker {number} listens on "));
    line.rsplit_once(", process ").unwrap().1.parse().unwrap()
}

fn kill(process: u32) {
    let status = std::process::Command::new("kill").args(["-KILL", &process.to_string()]).status().unwrap();
    assert!(status.success());
}

/// Whether a process runs. One that has ended and was not waited for by its new parent does not.
fn runs(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Files of numbers, on which a worker sleeps 5 ms per row.
fn numbers(files: u64, rows_per_file: u64) -> (Pipeline, Value) {
    let steps = json!([{ "sleep": { "per_row": "5ms" } }, { "batch": 10 }]);
    let mut pipeline = Pipeline::of(json!({ "csv": { "path": "*.csv" } }), steps.clone());
    for file in 0..files {
        let ids = file * rows_per_file..(file + 1) * rows_per_file;
        let rows: String = ids.map(|id| format!("{id}\n")).collect();
        pipeline = pipeline.with_file(&format!("{file:04}.csv"), format!("id\n{rows}").as_bytes());
    }
    let path = pipeline.folder().join("*.csv").display().to_string();
    (pipeline, json!({ "source": { "csv": { "path": path } }, "steps": steps }))
}

fn read(pipeline: &Pipeline, address: &str, report: &str) -> Process {
    let args = ["read", "pipeline.yaml", "--dispatcher", address, "--job", "train", "--report", report];
    Process::caju(pipeline.folder(), &args)
}

/// `--workers auto` between `--min-workers` and `--max-workers`: a reader that waits for rows gets more worker processes, and
/// one that takes its time fewer; the workers that leave take no rows with them. Options of workers come from `[worker]`.
#[test]
fn worker_processes_follow_the_target_without_loss_of_rows() {
    let folder = tempfile::tempdir().unwrap();
    // Workers must not compute far ahead of a slow reader.
    std::fs::write(folder.path().join("caju.toml"), "[worker]\nbuffer = \"1KiB\"\n").unwrap();
    let scaling = ["--scaling-interval", "500ms", "--scale-down-after", "1s"];
    let size = ["--workers", "auto", "--min-workers", "1", "--max-workers", "3", "--cpu-threads", "1"];
    let more = ["--config", "caju.toml", "--address-file", "address"];
    let up = up(folder.path(), &[&scaling[..], &size, &more].concat());
    let file = std::fs::read_to_string(folder.path().join("address")).unwrap();
    assert_eq!(file.trim(), up.address, "workers do not write their addresses there");
    let (_pipeline, def) = numbers(500, 10);
    let def = DatasetDef::from_json_str(&def.to_string()).unwrap();
    let ids = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let config = ClientConfig { prefetch_bytes: 1024, ..ClientConfig::default() };
        let client = Client::connect(&up.address, config).await.unwrap();
        let mut reader =
            client.read(ReadRequest { job: "train".into(), ..ReadRequest::of(def) }).await.unwrap();
        let (mut ids, mut slow) = (Vec::new(), false);
        while let Some(element) = reader.next().await.unwrap() {
            let column =
                arrow::compute::cast(element.batch.column(0), &arrow::datatypes::DataType::Int64).unwrap();
            ids.extend(
                column.as_any().downcast_ref::<arrow_array::Int64Array>().unwrap().values().iter().copied(),
            );
            let said = up.process.errors();
            slow = said.contains("up: worker 3 listens on ") && !said.contains(" has left");
            if slow {
                // The user's work: one worker gives 20 batches in this time.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        assert!(!slow, "the epoch was too short for a worker to leave in it: {}", up.process.errors());
        reader.close().await;
        ids
    });
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..5000).collect::<Vec<i64>>(), "{}", up.process.errors());
    for line in ["up: 3 of 3 workers run", "more drain; 1 epoch is read", "up: worker 3 has left"] {
        assert!(up.process.errors().contains(line), "`{line}`: {}", up.process.errors());
    }
    let workers: Vec<u32> = (1..=3).map(|number| worker(&up, number)).collect();
    up.terminate().expect_code(0);
    assert!(workers.iter().all(|w| !runs(*w)));
}

/// A worker that is killed is replaced, and its rows come once; SIGINT ends all processes. One more death than `--max-restarts`
/// ends the command with an error.
#[test]
fn a_killed_worker_is_replaced_and_too_many_deaths_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let up = up(folder.path(), &["--workers", "2", "--max-restarts", "1"]);
    let (pipeline, _) = numbers(60, 10);
    let wanted = pipeline.report(&[]);
    let workers = [worker(&up, 1), worker(&up, 2)];
    let reader = read(&pipeline, &up.address, "read.json");
    up.process.wait_for_error_line("1 epoch is read");
    kill(workers[1]);
    let said = up.process.wait_for_error_line("up: worker 2 ended by itself");
    assert!(said.contains("signal: 9") && said.ends_with("another one is started"), "{said}");
    let third = worker(&up, 3);
    reader.wait().expect_code(0);
    let report = Report::load(&pipeline.folder().join("read.json"));
    assert_eq!((report.rows(), report.checksums()), (vec![600], wanted.checksums()));

    kill(third);
    let ended = up.process.wait();
    ended.expect_code(3);
    ended.expect_error(&["worker 3 ended by itself", "signal: 9", "more than 1 workers", "--max-restarts"]);
    // The other worker is killed before it can say that its standard input has ended.
    assert!(!ended.stderr.contains("standard input ended"), "{}", ended.stderr);
    assert!(!runs(workers[0]));
}

/// Workers do not outlive the command that started them, however it ends.
#[test]
fn workers_end_with_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let start = || up(folder.path(), &["--workers", "2", "--cpu-threads", "1"]);
    let (killed, stopped) = (start(), start());
    let workers = |of: &Server| [worker(of, 1), worker(of, 2)];
    let (of_killed, of_stopped) = (workers(&killed), workers(&stopped));
    killed.process.signal("KILL");
    // Its standard error is also theirs.
    killed.process.wait_for_end();
    stopped.process.signal("INT");
    stopped.process.wait().expect_code(0);
    let begun = Instant::now();
    while of_killed.iter().chain(&of_stopped).any(|w| runs(*w)) {
        assert!(begun.elapsed() < TEST_TIMEOUT, "some worker lives on");
        std::thread::yield_now();
    }
}

/// `--until-stdin-ends`: servers end when their standard input ends. Without the flag they continue.
#[test]
fn servers_end_with_their_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    // The tests' processes have an empty standard input.
    let dispatcher = Server::start(folder.path(), "dispatcher", &["--listen", "127.0.0.1:0"]);
    for args in [
        &["dispatcher", "--listen", "127.0.0.1:0"][..],
        &["worker", "--dispatcher", &dispatcher.address],
        &["up", "--listen", "127.0.0.1:0", "--workers", "1"],
    ] {
        let ended = Process::caju(folder.path(), &[args, &["--until-stdin-ends"]].concat()).wait();
        // A worker of `up` may say the same there.
        ended.expect_code(3);
        assert!(
            ended.stderr.contains("error: standard input ended (--until-stdin-ends)"),
            "{}",
            ended.stderr
        );
    }
    dispatcher.terminate().expect_code(0);
}

/// The end of standard input stops the tasks of a server, which is no failure of theirs. Whether a task observes its stop signal
/// before the process ends is chance, so each server ends several times.
#[test]
fn an_end_of_standard_input_is_no_failure_of_a_task() {
    let folder = tempfile::tempdir().unwrap();
    let dispatcher = Server::start(folder.path(), "dispatcher", &["--listen", "127.0.0.1:0"]);
    for args in [
        &["up", "--listen", "127.0.0.1:0", "--heartbeat", "100ms", "--workers", "2", "--cpu-threads", "1"][..],
        &["dispatcher", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"],
        &["worker", "--dispatcher", &dispatcher.address, "--cpu-threads", "1"],
    ] {
        for _ in 0..6 {
            let args = [args, &["--until-stdin-ends"]].concat();
            let mut server = Process::caju_with_input(folder.path(), &args);
            server.first_line();
            if args[0] == "up" {
                server.wait_for_error_line("up: 2 of 2 workers run");
            }
            server.end_input();
            let ended = server.wait();
            ended.expect_code(3);
            assert!(!ended.stderr.contains("ERROR"), "{args:?}: {}", ended.stderr);
        }
    }
    dispatcher.terminate().expect_code(0);
}

#[test]
fn mistakes_in_the_arguments_of_up() {
    let folder = tempfile::tempdir().unwrap();
    for (args, part) in [
        (&["--workers", "0"][..], "auto, or a number from 1"),
        (&["--workers", "many"], "auto, or a number from 1"),
        (&["--workers", "2", "--min-workers", "1"], "--workers auto"),
        (&["--min-workers", "3", "--max-workers", "2"], "--max-workers 2 is less than --min-workers 3"),
        (&["--scaling-interval", "0s"], "--scaling-interval 0s"),
        (&["--listen", "0.0.0.0:0", "--insecure"], "listen on an address of this machine"),
    ] {
        let listen: &[&str] = if args.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let ended = Process::caju(folder.path(), &[&["up"], listen, args].concat()).wait();
        ended.expect_code(2);
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
    }
}
