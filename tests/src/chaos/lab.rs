//! The processes of a round.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::plan::{Action, CLIENT_TIMEOUT_MS, Group, Mode, Plan, WORKER_TIMEOUT_MS};
use super::proxy::{Proxy, free_port};
use super::reader::Settings;
use super::verify::{self, Rules, Taken};
use super::{Fixture, copy_folder, logs};
use crate::binary::chaos_reader;
use crate::process::{PATIENCE, Process, caju_in};

/// The file with the reader's last state.
const CHECKPOINT: &str = "checkpoint.json";
/// How long a process may take to drain and end.
const STOP: Duration = Duration::from_secs(40);

/// A server behind a proxy.
#[derive(Debug)]
struct Behind {
    port: u16,
    proxy: Proxy,
    process: Option<Process>,
}

impl Behind {
    fn new() -> Self {
        let port = free_port();
        Self { port, proxy: Proxy::start(port), process: None }
    }

    fn signal(&self, name: &str) {
        if let Some(process) = &self.process {
            process.signal(name);
        }
    }
}

#[derive(Debug)]
struct Reader {
    process: Process,
    /// What it took.
    ledger: PathBuf,
    /// Its place among the readers.
    index: usize,
}

/// A cluster with the readers of one job.
pub(super) struct Lab {
    folder: TempDir,
    /// The folder of the sources.
    sources: String,
    plan: Plan,
    dispatcher: Behind,
    workers: Vec<Behind>,
    readers: Vec<Reader>,
    /// The places and ledgers of readers that were killed.
    killed: Vec<(usize, PathBuf)>,
    /// The logs of processes that have ended.
    past: Vec<(String, String)>,
}

impl Lab {
    pub(super) fn start(plan: Plan, fixture: &Fixture) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if plan.mode == Mode::Get {
            copy_folder(&fixture.cache(plan.dataset), &folder.path().join("cache"));
        }
        let row_us = plan.dataset.row_us(plan.workers);
        let definition = plan.dataset.definition(fixture.sources(), row_us).to_string();
        std::fs::write(folder.path().join("pipeline.json"), definition).unwrap();
        let (dispatcher, workers) = (Behind::new(), (0..plan.workers).map(|_| Behind::new()).collect());
        let (readers, killed, past) = (Vec::new(), Vec::new(), Vec::new());
        let sources = fixture.sources().display().to_string();
        let mut lab = Self { folder, sources, plan, dispatcher, workers, readers, killed, past };
        lab.start_dispatcher();
        (0..lab.workers.len()).for_each(|w| lab.start_worker(w));
        (0..lab.plan.readers).for_each(|index| lab.start_reader(index));
        lab
    }

    fn start_dispatcher(&mut self) {
        if self.dispatcher.process.is_some() {
            return;
        }
        let (listen, cache) = (format!("127.0.0.1:{}", self.dispatcher.port), self.path("cache"));
        let (worker, client) = (format!("{WORKER_TIMEOUT_MS}ms"), format!("{CLIENT_TIMEOUT_MS}ms"));
        let mut args =
            vec!["dispatcher", "--listen", &listen, "--state-dir", "state", "--heartbeat", "100ms"];
        let cache = cache.display().to_string();
        args.extend(["--cache", &cache, "--journal", self.plan.journal, "--allow-read", &self.sources]);
        args.extend(["--worker-timeout", &worker, "--client-timeout", &client]);
        let process = Process::caju(self.folder.path(), &args);
        process.first_line();
        self.dispatcher.process = Some(process);
    }

    /// Does not wait for the worker: it registers when the dispatcher has lost the one before it.
    fn start_worker(&mut self, w: usize) {
        let Some(worker) = self.workers.get_mut(w).filter(|w| w.process.is_none()) else { return };
        let listen = format!("127.0.0.1:{}", worker.port);
        let (advertise, dispatcher) = (worker.proxy.address(), self.dispatcher.proxy.address());
        let args = ["worker", "--dispatcher", &dispatcher, "--listen", &listen, "--advertise", &advertise];
        let args =
            [&args[..], &["--cpu-threads", "1", "--connect-timeout", "60s", "--allow-read", &self.sources]]
                .concat();
        worker.process = Some(Process::caju(self.folder.path(), &args));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a reader of an index. A reader with a checkpoint continues the ledger of its predecessor.
    fn start_reader(&mut self, index: usize) {
        let saves = self.plan.group == Group::State;
        let consumers = (self.plan.group == Group::Consumers).then_some(self.plan.readers);
        let settings = Settings {
            dispatcher: self.dispatcher.proxy.address(),
            pipeline: self.path("pipeline.json"),
            epochs: self.plan.epochs(),
            policy: if self.plan.mode == Mode::Compute { "compute" } else { "hint:stored" }.to_string(),
            allows_lost_readers: self.plan.kills_readers(),
            consumer: consumers.map(|n| (u32::try_from(index).unwrap(), u32::try_from(n).unwrap())),
            ledger: self.path(&format!("reader-{index}-{}.ledger", self.killed.len())),
            checkpoint: saves.then(|| self.path(CHECKPOINT)),
        };
        let mut command = Command::new(chaos_reader());
        command.arg(serde_json::to_string(&settings).unwrap());
        let process = Process::start(command, format!("reader {index}"));
        let reader = Reader { process, ledger: settings.ledger, index };
        self.readers.insert(index.min(self.readers.len()), reader);
    }

    /// Kills a reader, unless it has ended. What it took stays in its ledger.
    fn kill_reader(&mut self, at: usize) -> bool {
        if self.readers[at].process.has_ended() {
            return false;
        }
        let reader = self.readers.remove(at);
        self.kill("reader", Some(reader.process));
        if self.plan.group != Group::State {
            self.killed.push((reader.index, reader.ledger));
        }
        true
    }

    /// Waits until the reader has saved a state.
    fn wait_for_checkpoint(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.path(CHECKPOINT).exists() && !self.readers[0].process.has_ended() {
            assert!(Instant::now() < deadline, "no state was ever saved");
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    /// The whole round: what happened, in a line.
    pub(super) fn run(&mut self) -> Result<String, String> {
        self.wait_for_rows();
        let begin = Instant::now();
        for (at, action) in self.plan.actions.clone() {
            let until = begin + Duration::from_millis(at);
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                std::thread::park_timeout(left);
            }
            self.act(action);
        }
        let (mut ledgers, mut codes) = (Vec::new(), Vec::new());
        for reader in std::mem::take(&mut self.readers) {
            let ended = reader.process.wait_at_most(PATIENCE);
            self.past.push(("reader".into(), ended.stderr.clone()));
            codes.push(ended.code);
            ledgers.push((reader.index, reader.ledger));
        }
        let wall = begin.elapsed();
        self.check_epochs(&ledgers, &codes)?;
        self.stop()?;
        self.check_logs()?;
        Ok(format!("{:.1} s, {}", wall.as_secs_f64(), self.plan))
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::KillWorker(w) => {
                let process = self.workers.get_mut(w).and_then(|w| w.process.take());
                self.kill("worker", process);
            }
            Action::ReturnWorker(w) => self.start_worker(w),
            Action::AddWorker => {
                self.workers.push(Behind::new());
                self.start_worker(self.workers.len() - 1);
            }
            Action::StopWorker(w) => self.workers[w].signal("STOP"),
            Action::ContinueWorker(w) => self.workers[w].signal("CONT"),
            Action::CutWorker(w) => self.workers[w].proxy.cut(),
            Action::StallWorker(w) => self.workers[w].proxy.stall(true),
            Action::UnstallWorker(w) => self.workers[w].proxy.stall(false),
            Action::KillDispatcher => {
                let process = self.dispatcher.process.take();
                self.kill("dispatcher", process);
            }
            Action::ReturnDispatcher => self.start_dispatcher(),
            Action::StopDispatcher => self.dispatcher.signal("STOP"),
            Action::ContinueDispatcher => self.dispatcher.signal("CONT"),
            Action::CutDispatcher => self.dispatcher.proxy.cut(),
            Action::StallDispatcher => self.dispatcher.proxy.stall(true),
            Action::UnstallDispatcher => self.dispatcher.proxy.stall(false),
            Action::StopReader(r) => self.readers[r].process.signal("STOP"),
            Action::ContinueReader(r) => self.readers[r].process.signal("CONT"),
            Action::KillReader(r) | Action::ReturnConsumer(r) => {
                if self.kill_reader(r) {
                    self.start_reader(r);
                }
            }
            Action::RestartReader => {
                self.wait_for_checkpoint();
                if self.kill_reader(0) {
                    self.start_reader(0);
                }
            }
            Action::LoseState => {
                let process = self.dispatcher.process.take();
                self.kill("dispatcher", process);
                drop(std::fs::remove_dir_all(self.path("state")));
            }
        }
    }

    fn kill(&mut self, who: &str, process: Option<Process>) {
        let Some(process) = process else { return };
        process.signal("KILL");
        process.wait_for_end();
        self.past.push((who.to_string(), process.errors()));
    }

    /// What the dispatcher says, past the proxy.
    fn status(&self) -> Value {
        let address = format!("127.0.0.1:{}", self.dispatcher.port);
        let ended = caju_in(self.folder.path(), &["status", "--dispatcher", &address, "--format", "json"]);
        ended.expect_code(0);
        serde_json::from_str(&ended.stdout).unwrap()
    }

    fn wait_for_rows(&self) {
        let deadline = Instant::now() + PATIENCE;
        let rows =
            |s: &Value| s["jobs"].as_array()?.first()?["stages"].as_array()?.last()?["rows_out"].as_u64();
        while rows(&self.status()).is_none_or(|rows| rows == 0) {
            assert!(Instant::now() < deadline, "no row was ever made");
        }
    }

    /// Compares what the readers took with the rows of each epoch. `living`: those that were not killed.
    fn check_epochs(&self, living: &[(usize, PathBuf)], codes: &[Option<i32>]) -> Result<(), String> {
        let rules = Rules {
            consumers: if self.plan.group == Group::Consumers { self.plan.readers } else { 0 },
            forgets_acknowledgements: self.plan.forgets_acknowledgements(),
        };
        let rows = self.plan.dataset.rows();
        // Which rows a killed reader took is not known to a dispatcher that was restarted just before: that is an error.
        let mut may_fail = false;
        for epoch in 0..self.plan.epochs() {
            let of = |readers: &[(usize, PathBuf)], is_killed| -> Vec<Taken> {
                readers.iter().map(|(seat, path)| Taken::of(path, epoch, *seat, is_killed)).collect()
            };
            let taken = [of(living, false), of(&self.killed, true)].concat();
            may_fail |= taken.iter().filter_map(|t| t.end).any(|e| e.is_unknown);
            if let Err(problem) = verify::check(&rows, &taken, rules) {
                return Err(format!("epoch {epoch}: {problem}; readers ended with {codes:?}"));
            }
        }
        may_fail &= self.plan.kills_readers() && rules.forgets_acknowledgements;
        match may_fail || codes.iter().all(|code| *code == Some(0)) {
            true => Ok(()),
            false => Err(format!("readers ended with {codes:?}")),
        }
    }

    /// Ends every server in order.
    fn stop(&mut self) -> Result<(), String> {
        let mut problems = Vec::new();
        let servers =
            self.workers.iter_mut().map(|w| ("worker", w)).chain([("dispatcher", &mut self.dispatcher)]);
        for (who, server) in servers {
            let Some(process) = server.process.take() else { continue };
            process.signal("TERM");
            let ended = process.wait_at_most(STOP);
            if ended.code != Some(0) {
                problems.push(format!("a {who} ended with {:?}", ended.code));
            }
            self.past.push((who.to_string(), ended.stderr));
        }
        if problems.is_empty() { self.check_cache() } else { Err(problems.join("\n")) }
    }

    /// What is stored is whole.
    fn check_cache(&self) -> Result<(), String> {
        if self.plan.mode == Mode::Compute {
            return Ok(());
        }
        let verified = caju_in(self.folder.path(), &["cache", "verify", "--cache", "cache"]);
        match verified.code {
            Some(0) => Ok(()),
            _ => Err(format!("the cache is damaged: {}\n{}", verified.stdout, verified.stderr)),
        }
    }

    fn check_logs(&self) -> Result<(), String> {
        let bad = |(who, log): &(String, String)| {
            let lines = logs::unannounced(&self.plan, log);
            (!lines.is_empty()).then(|| format!("{who}: {}", lines.join("\n")))
        };
        let bad: Vec<String> = self.past.iter().filter_map(bad).collect();
        if bad.is_empty() {
            Ok(())
        } else {
            Err(format!("lines that nothing announced:\n{}", bad.join("\n")))
        }
    }

    /// The logs of all processes, those of ended ones first.
    pub(super) fn logs(&self) -> String {
        let of = |who: &str, log: &str| format!("---- {who}\n{log}");
        let servers = self.workers.iter().map(|w| ("worker", w)).chain([("dispatcher", &self.dispatcher)]);
        let running = servers.filter_map(|(who, s)| Some((who, s.process.as_ref()?.errors())));
        let readers = self.readers.iter().map(|r| ("reader", r.process.errors()));
        let past = self.past.iter().map(|(who, log)| of(who, log));
        past.chain(running.chain(readers).map(|(who, log)| of(who, &log))).collect::<Vec<_>>().join("\n")
    }
}
