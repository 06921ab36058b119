//! A dispatcher and workers as processes.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::pipeline::{Pipeline, Report};
use crate::process::{Ended, Process, TEST_TIMEOUT, caju_in};

const OPERATOR_SECRET: &str = "operator-secret";

/// A server process that listens.
#[derive(Debug)]
pub struct Server {
    /// The process.
    pub process: Process,
    /// Where it listens.
    pub address: String,
}

impl Server {
    /// Starts a server (`role` is `dispatcher` or `worker`) and waits for its first line.
    pub fn start(folder: &Path, role: &str, args: &[&str]) -> Self {
        let mut all = vec![role];
        all.extend(args);
        let process = Process::caju(folder, &all);
        let line = process.first_line();
        let address = line
            .strip_prefix(&format!("caju {role} listening on "))
            .unwrap_or_else(|| panic!("an unexpected first line of the {role}: {line}"))
            .to_string();
        Self { process, address }
    }

    /// Asks it to end (SIGTERM) and waits.
    pub fn terminate(self) -> Ended {
        self.process.signal("TERM");
        self.process.wait()
    }
}

fn start_dispatcher(folder: &Path, listen: &str, args: &[String]) -> Server {
    let mut all = vec!["--listen", listen];
    all.extend(args.iter().map(String::as_str));
    Server::start(folder, "dispatcher", &all)
}

/// A dispatcher and its workers, each a process, on free ports of the loopback. Timers are quick: silence of
/// two seconds loses a worker.
#[derive(Debug)]
pub struct Cluster {
    folder: TempDir,
    dispatcher_args: Vec<String>,
    /// The dispatcher.
    pub dispatcher: Server,
    /// The workers that were not taken away.
    pub workers: Vec<Server>,
}

impl Cluster {
    /// Starts a dispatcher and the given number of workers, which may read anything below the file system's root.
    pub fn start(workers: usize) -> Self {
        Self::start_with(workers, &[], &[])
    }

    /// The same with more arguments for the dispatcher and for each worker.
    pub fn start_with(workers: usize, dispatcher_args: &[&str], worker_args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join(OPERATOR_SECRET).display().to_string();
        let mut args = vec!["--heartbeat", "100ms", "--allow", "/", "--allow-write", "/"];
        args.extend(["--operator-secret-file", &secret]);
        if !dispatcher_args.contains(&"--worker-timeout") {
            args.extend(["--worker-timeout", "2s"]);
        }
        args.extend(dispatcher_args);
        let dispatcher_args: Vec<String> = args.into_iter().map(String::from).collect();
        let dispatcher = start_dispatcher(folder.path(), "127.0.0.1:0", &dispatcher_args);
        let mut cluster = Self { folder, dispatcher_args, dispatcher, workers: Vec::new() };
        for _ in 0..workers {
            cluster.add_worker(worker_args);
        }
        cluster
    }

    /// Starts a dispatcher under the address and with the arguments of the one that was killed before.
    pub fn return_dispatcher(&mut self) {
        let address = self.dispatcher.address.clone();
        self.dispatcher = start_dispatcher(self.folder.path(), &address, &self.dispatcher_args);
    }

    /// The folder in which the servers run: relative paths of their arguments begin there.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts one more worker.
    pub fn add_worker(&mut self, args: &[&str]) {
        let mut all =
            vec!["--dispatcher", &self.dispatcher.address, "--listen", "127.0.0.1:0", "--allow", "/"];
        all.extend(["--allow-write", "/"]);
        if !args.contains(&"--cpu-threads") {
            all.extend(["--cpu-threads", "1"]);
        }
        all.extend(args);
        let worker = Server::start(self.folder.path(), "worker", &all);
        self.workers.push(worker);
    }

    /// The file with the operator's secret.
    pub fn operator_secret_file(&self) -> String {
        self.folder.path().join(OPERATOR_SECRET).display().to_string()
    }

    /// The dispatcher's address.
    pub fn address(&self) -> &str {
        &self.dispatcher.address
    }

    /// Starts `caju read` on a pipeline.
    pub fn start_read(&self, pipeline: &Pipeline, args: &[&str]) -> Process {
        let mut all = vec!["read", "pipeline.yaml", "--dispatcher", self.address()];
        all.extend(args);
        Process::caju(pipeline.folder(), &all)
    }

    /// Runs `caju read` to its end.
    pub fn read(&self, pipeline: &Pipeline, args: &[&str]) -> Ended {
        self.start_read(pipeline, args).wait()
    }

    /// Runs `caju read` with a report, which must succeed.
    #[track_caller]
    pub fn report(&self, pipeline: &Pipeline, args: &[&str]) -> Report {
        let mut all = vec!["--report", "read-report.json"];
        all.extend(args);
        self.read(pipeline, &all).expect_code(0);
        Report::load(&pipeline.folder().join("read-report.json"))
    }

    /// What `caju status --format json` says.
    #[track_caller]
    pub fn status(&self) -> Value {
        let args = ["status", "--dispatcher", self.address(), "--format", "json"];
        let ended = caju_in(self.folder.path(), &args);
        ended.expect_code(0);
        serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {}", ended.stdout))
    }

    /// Asks for the status until it is as wanted. Each question is a process, so this does not spin.
    #[track_caller]
    pub fn wait_for_status<T>(&self, what: &str, wanted: impl Fn(&Value) -> Option<T>) -> T {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let status = self.status();
            if let Some(out) = wanted(&status) {
                return out;
            }
            assert!(Instant::now() < deadline, "the status never showed {what}: {status:#}");
        }
    }

    /// Ends all processes by SIGTERM; each must drain and end with code 0.
    pub fn stop(self) {
        for worker in self.workers {
            worker.process.signal("TERM");
            worker.process.wait_at_most(Duration::from_secs(40)).expect_code(0);
        }
        self.dispatcher.terminate().expect_code(0);
    }
}
