//! The processes of a round.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use super::plan::{Action, CLIENT_TIMEOUT_MS, Group, Mode, Plan, ROWS, WORKER_TIMEOUT_MS};
use super::proxy::{Proxy, free_port};
use super::{Fixture, checksum, copy_folder, definition, logs};
use crate::process::{PATIENCE, Process, caju_in};

/// The file with the state of the reader.
const STATE: &str = "state.json";
/// Rows of one element: the batch of the definition.
const ROWS_PER_ELEMENT: u64 = 50;
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
    report: PathBuf,
    /// Its place among the readers.
    index: usize,
    /// Rows and elements that it took before it was restarted.
    before: (u64, u64),
}

/// A cluster with the readers of one job.
pub(super) struct Lab {
    folder: TempDir,
    plan: Plan,
    dispatcher: Behind,
    workers: Vec<Behind>,
    readers: Vec<Reader>,
    started: usize,
    /// The logs of processes that are gone.
    past: Vec<(String, String)>,
}

/// What the readers that are left report about an epoch.
#[derive(Debug, Default)]
struct Epoch {
    rows: u64,
    checksum: u128,
    /// Rows that no reader has.
    missing: u64,
    /// Rows that lost readers took.
    lost: u64,
    unknown: bool,
    /// Rows of elements that no consumer got, so that all have equally many.
    surplus: u64,
    /// Elements of the reader that has most.
    most_batches: u64,
    /// Elements of the reader that has fewest.
    least_batches: u64,
    /// Some rows are in no report.
    is_partial: bool,
}

impl Lab {
    pub(super) fn start(plan: Plan, fixture: &Fixture) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if plan.mode == Mode::Get {
            copy_folder(fixture.cache.path(), &folder.path().join("cache"));
        }
        let definition = definition(plan.row_us()).to_string();
        std::fs::write(folder.path().join("pipeline.yaml"), definition).unwrap();
        let (dispatcher, workers) = (Behind::new(), (0..plan.workers).map(|_| Behind::new()).collect());
        let mut lab =
            Self { folder, plan, dispatcher, workers, readers: Vec::new(), started: 0, past: Vec::new() };
        lab.start_dispatcher();
        (0..lab.workers.len()).for_each(|w| lab.start_worker(w));
        (0..lab.plan.readers).for_each(|index| lab.start_reader(index, (0, 0)));
        lab
    }

    fn start_dispatcher(&mut self) {
        if self.dispatcher.process.is_some() {
            return;
        }
        let (listen, cache) =
            (format!("127.0.0.1:{}", self.dispatcher.port), self.folder.path().join("cache"));
        let (worker, client) = (format!("{WORKER_TIMEOUT_MS}ms"), format!("{CLIENT_TIMEOUT_MS}ms"));
        let mut args =
            vec!["dispatcher", "--listen", &listen, "--state-dir", "state", "--heartbeat", "100ms"];
        let cache = cache.display().to_string();
        args.extend(["--cache", &cache, "--journal", self.plan.journal]);
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
        let args = [&args[..], &["--cpu-threads", "1", "--connect-timeout", "60s"]].concat();
        worker.process = Some(Process::caju(self.folder.path(), &args));
    }

    fn start_reader(&mut self, index: usize, before: (u64, u64)) {
        let report = format!("report-{}.json", self.started);
        self.started += 1;
        let address = self.dispatcher.proxy.address();
        let mut args = vec!["read", "pipeline.yaml", "--dispatcher", &address, "--job", "train", "--quiet"];
        args.extend(["--report", &report, "--connect-timeout", "60s", "--policy"]);
        args.push(if self.plan.mode == Mode::Compute { "compute" } else { "hint:stored" });
        args.extend(["--epochs", if self.plan.mode == Mode::Put { "2" } else { "1" }]);
        if self.plan.kills_readers() {
            args.extend(["--lost-readers", "allow"]);
        }
        let (consumer, count) = (index.to_string(), self.plan.readers.to_string());
        match self.plan.group {
            Group::Share => {}
            Group::State if before.0 > 0 => args.extend(["--state", STATE, "--resume"]),
            Group::State => args.extend(["--state", STATE]),
            Group::Consumers => args.extend(["--num-consumers", &count, "--consumer-index", &consumer]),
        }
        let process = Process::caju(self.folder.path(), &args);
        let report = self.folder.path().join(&report);
        self.readers.insert(index.min(self.readers.len()), Reader { process, report, index, before });
    }

    /// SIGTERM of the reader. What it had taken is in its state, from which the next one goes on.
    fn restart_reader(&mut self) {
        let Some(reader) = self.readers.pop() else { return };
        reader.process.signal("TERM");
        reader.process.wait_for_end();
        let errors = reader.process.errors();
        if !errors.contains("the state is written") {
            // It was at its end.
            self.readers.push(reader);
            return;
        }
        self.past.push(("reader".into(), errors));
        let state = std::fs::read_to_string(self.folder.path().join(STATE)).unwrap();
        let state: Value = serde_json::from_str(&state).unwrap();
        let number = |key: &str| state[key].as_u64().unwrap();
        self.start_reader(reader.index, (number("rows"), number("elements")));
    }

    /// The whole round: what happened, in a line.
    pub(super) fn run(&mut self, fixture: &Fixture) -> Result<String, String> {
        self.wait_for_rows();
        let begin = Instant::now();
        for (at, action) in self.plan.actions.clone() {
            let until = begin + Duration::from_millis(at);
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                std::thread::park_timeout(left);
            }
            self.act(action);
        }
        let (mut epochs, mut codes) = (BTreeMap::<u64, Epoch>::new(), Vec::new());
        for reader in std::mem::take(&mut self.readers) {
            let ended = reader.process.wait_at_most(PATIENCE);
            self.past.push(("reader".into(), ended.stderr.clone()));
            codes.push(ended.code);
            add_report(&mut epochs, &reader.report);
            if reader.before.0 > 0 {
                let epoch = epochs.entry(0).or_default();
                epoch.rows += reader.before.0;
                // Its report has the checksum of what it took after that.
                epoch.is_partial = true;
            }
        }
        let wall = begin.elapsed();
        self.check_epochs(&epochs, &codes, fixture)?;
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
            Action::KillReader(r) => {
                if !self.readers[r].process.has_ended() {
                    let reader = self.readers.remove(r);
                    self.kill("reader", Some(reader.process));
                    self.start_reader(r, (0, 0));
                }
            }
            Action::RestartReader => self.restart_reader(),
            Action::ReturnConsumer(r) => {
                let reader = self.readers.remove(r);
                self.kill("reader", Some(reader.process));
                self.start_reader(r, (0, 0));
            }
            Action::LoseState => {
                let process = self.dispatcher.process.take();
                self.kill("dispatcher", process);
                drop(std::fs::remove_dir_all(self.folder.path().join("state")));
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

    fn check_epochs(
        &self,
        epochs: &BTreeMap<u64, Epoch>,
        codes: &[Option<i32>],
        fixture: &Fixture,
    ) -> Result<(), String> {
        let unknown = epochs.values().any(|e| e.unknown);
        let may_fail = unknown && self.plan.kills_readers() && self.plan.kills_dispatcher();
        let fine = |c: &Option<i32>| *c == Some(0) || may_fail && *c == Some(3);
        if !codes.iter().all(fine) {
            return Err(format!("readers ended with {codes:?}: {epochs:?}"));
        }
        let wanted = if self.plan.mode == Mode::Put { 2 } else { 1 };
        if epochs.len() != wanted && !may_fail {
            return Err(format!("{wanted} epochs were wanted: {epochs:?}"));
        }
        for (number, epoch) in epochs {
            if self.plan.has(|a| matches!(a, Action::ReturnConsumer(_))) {
                // Both have equally many: the difference is what the other one had before it was killed.
                let before = (epoch.most_batches - epoch.least_batches) * ROWS_PER_ELEMENT;
                if epoch.rows + before + epoch.surplus == ROWS && epoch.missing == 0 {
                    continue;
                }
                return Err(format!(
                    "epoch {number} has other rows than {ROWS}, or its consumers: {epoch:?}"
                ));
            }
            let whole = epoch.missing == 0 && epoch.rows + epoch.lost + epoch.surplus == ROWS;
            let equal = epoch.is_partial
                || epoch.surplus > 0
                || epoch.lost > 0 && self.plan.kills_readers()
                || epoch.checksum == fixture.checksum;
            let same = whole && equal;
            if !epoch.unknown && !same {
                return Err(format!("epoch {number} has other rows than {ROWS}: {epoch:?}"));
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
        let readers = self.readers.iter().map(|r| ("reader", r.process.errors()));
        let past = self.past.iter().map(|(who, log)| of(who, log));
        past.chain(running.chain(readers).map(|(who, log)| of(who, &log))).collect::<Vec<_>>().join("\n")
    }
}

fn add_report(epochs: &mut BTreeMap<u64, Epoch>, path: &std::path::Path) {
    let Ok(text) = std::fs::read_to_string(path) else { return };
    let report: Value = serde_json::from_str(&text).unwrap();
    for said in report["epochs"].as_array().unwrap() {
        let epoch = epochs.entry(said["epoch"].as_u64().unwrap()).or_default();
        let count = |key: &str| said[key].as_u64().unwrap_or(0);
        epoch.rows += count("rows") - count("padded_rows");
        epoch.surplus = epoch.surplus.max(count("surplus_elements") * ROWS_PER_ELEMENT);
        let is_first = epoch.most_batches == 0;
        epoch.most_batches = epoch.most_batches.max(count("batches"));
        epoch.least_batches =
            if is_first { count("batches") } else { epoch.least_batches.min(count("batches")) };
        // An incomplete epoch has none.
        let sum = said["rows_checksum"].as_str().map_or(0, checksum);
        epoch.checksum = epoch.checksum.wrapping_add(sum);
        let incomplete = &said["incomplete"];
        let number = |key: &str| incomplete[key].as_u64().unwrap_or(0);
        epoch.missing = epoch.missing.max(number("rows_missing"));
        epoch.lost = epoch.lost.max(number("rows_taken_by_lost_readers"));
        epoch.unknown |= incomplete["rows_unknown"] == true;
    }
}
