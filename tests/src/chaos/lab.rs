//! The processes of a round.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use caju_client::Balance;
use serde_json::Value;
use tempfile::TempDir;

use super::faults::{Action, CLIENT_TIMEOUT_MS, Damage, WORKER_TIMEOUT_MS};
use super::plan::{Group, Mode, Plan};
use super::proxy::{Proxy, free_port};
use super::readers::Readers;
use super::verify::{self, Rules, Taken};
use super::{Fixture, copy_folder, logs};
use crate::process::{Process, TEST_TIMEOUT, caju_in};

/// How long a process may take to drain and end.
const STOP: Duration = Duration::from_secs(40);

/// A server behind a proxy.
#[derive(Debug)]
pub(super) struct Behind {
    port: u16,
    pub(super) proxy: Proxy,
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

/// A cluster with the readers of one job.
pub(super) struct Lab {
    folder: TempDir,
    /// The folder of the sources.
    sources: String,
    pub(super) plan: Plan,
    pub(super) dispatcher: Behind,
    workers: Vec<Behind>,
    pub(super) readers: Readers,
    /// The logs of processes that have ended.
    pub(super) past: Vec<(String, String)>,
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
        let sources = fixture.sources().display().to_string();
        let (readers, past) = (Readers::default(), Vec::new());
        let mut lab = Self { folder, sources, plan, dispatcher, workers, readers, past };
        lab.start_dispatcher();
        (0..lab.workers.len()).for_each(|w| lab.start_worker(w));
        (0..lab.plan.first_readers()).for_each(|index| lab.start_reader(index));
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
        let (window, spilled) = (sharing_flags(self.plan.group), self.folder.path().display().to_string());
        let mut args = [args, window.iter().map(String::as_str).collect()].concat();
        if !window.is_empty() {
            args.extend(["--sharing-spill-dir", &spilled]);
        }
        worker.process = Some(Process::caju(self.folder.path(), &args));
    }

    /// A path in the folder of the round.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
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
        self.wait_for_readers()?;
        let wall = begin.elapsed();
        self.check_epochs()?;
        self.stop()?;
        self.check_logs()?;
        Ok(format!("{:.1} s, {}, {}", wall.as_secs_f64(), self.readers, self.plan))
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
            Action::StartReader(r) => self.start_reader(r),
            Action::StopReader(r) | Action::SleepReader(r) => self.signal_reader(r, "STOP"),
            Action::ContinueReader(r) => self.signal_reader(r, "CONT"),
            Action::KillReader(r) | Action::RestartReader(r) | Action::ReturnConsumer(r) => {
                self.replace_reader(r);
            }
            Action::RestartConsumers => self.restart_consumers(),
            Action::LoseState(damage) => {
                let process = self.dispatcher.process.take();
                self.kill("dispatcher", process);
                damage_state(&self.path("state"), damage);
            }
        }
    }

    /// Kills a process, and waits for its end.
    pub(super) fn kill(&mut self, who: &str, process: Option<Process>) {
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
        let deadline = Instant::now() + TEST_TIMEOUT;
        let rows =
            |s: &Value| s["jobs"].as_array()?.first()?["stages"].as_array()?.last()?["rows_out"].as_u64();
        while rows(&self.status()).is_none_or(|rows| rows == 0) {
            assert!(Instant::now() < deadline, "no row was ever made");
        }
    }

    /// Compares what the readers took with the rows of each epoch.
    fn check_epochs(&self) -> Result<(), String> {
        let rules = Rules {
            consumers: self.plan.consumers().unwrap_or(0),
            balance: match self.plan.group {
                Group::Rounds(rounds) => rounds.balance,
                _ => Balance::None,
            },
            // Each task leaves less than a round.
            unpacked_rounds: self.plan.tasks(),
            classes: self.plan.dataset.classes(),
            forgets_acknowledgements: self.plan.loses_state(),
        };
        let rows = self.plan.dataset.rows();
        for epoch in 0..self.plan.epochs() {
            let taken = self.readers.taken(epoch);
            let jobs: Vec<&[Taken]> = match self.plan.group {
                Group::Trainers(_) => taken.chunks(1).collect(),
                _ => vec![&taken],
            };
            for (job, taken) in jobs.into_iter().enumerate() {
                verify::check(&rows, taken, rules)
                    .map_err(|problem| format!("epoch {epoch} of job {job}: {problem}"))?;
            }
        }
        Ok(())
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
        let readers = self.readers.running.iter().map(|r| ("reader", r.process.errors()));
        let past = self.past.iter().map(|(who, log)| of(who, log));
        past.chain(running.chain(readers).map(|(who, log)| of(who, &log))).collect::<Vec<_>>().join("\n")
    }
}

/// The settings of the window in which workers hold rows for trainers.
fn sharing_flags(group: Group) -> Vec<String> {
    let Group::Trainers(window) = group else { return Vec::new() };
    let bytes = window.bytes.to_string();
    let flags = ["--sharing-window", &bytes, "--sharing-backlog", &bytes, "--sharing-lag", window.lag];
    flags.iter().map(ToString::to_string).chain(["--sharing-wait".into(), "200ms".into()]).collect()
}

/// What happens to the state folder of a dispatcher that is away.
fn damage_state(state: &Path, damage: Damage) {
    let Some(database) = largest_file(state).filter(|_| damage != Damage::Delete) else {
        drop(std::fs::remove_dir_all(state));
        return;
    };
    match damage {
        Damage::Truncate => {
            let file = std::fs::File::options().write(true).open(database).unwrap();
            file.set_len(file.metadata().unwrap().len() / 3).unwrap();
        }
        _ => std::fs::write(database, "this is no database").unwrap(),
    }
}

/// The largest file of a folder and those below it.
fn largest_file(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.map_while(Result::ok);
    let files = entries.filter_map(|entry| {
        let path = entry.path();
        if path.is_dir() { largest_file(&path) } else { Some(path) }
    });
    files.max_by_key(|path| path.metadata().map_or(0, |m| m.len()))
}
