//! The readers of a round: how they are started, killed, and started again when they end with an error that the round permits.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use caju_client::{Balance, Uneven};

use super::checkpoints::{self, Checkpoints};
use super::lab::Lab;
use super::plan::{Group, Mode};
use super::reader::Settings;
use super::verify::Taken;
use crate::binary::chaos_reader;
use crate::process::{Process, TEST_TIMEOUT};

/// How often readers may be started again because of errors that the round permits.
const MAX_RECOVERIES: usize = 6;
/// How often ended readers are looked for.
const POLL: Duration = Duration::from_millis(10);
/// What a reader says that the dispatcher has expelled.
const EXPELLED: &str = "client timeout of";
/// What consumers say that go on from their states of one step alone, or that wait for others which have said so.
const OUT_OF_STEP: [&str; 5] = [
    "the consumers are at different steps",
    "cannot be made even",
    "no elements are left",
    "start all consumers again: the epoch begins again when all have left",
    "of these were not given within",
];

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) process: Process,
    /// What it took.
    ledger: PathBuf,
    /// Its place among the readers.
    index: usize,
}

/// The readers of a round.
#[derive(Debug, Default)]
pub(super) struct Readers {
    pub(super) running: Vec<Reader>,
    /// The places and ledgers of readers that have read everything.
    finished: Vec<(usize, PathBuf)>,
    /// The places and ledgers of readers that were killed or expelled, and did not continue from a state.
    lost: Vec<(usize, PathBuf)>,
    /// Consumers that ended because they are out of step.
    out_of_step: BTreeSet<usize>,
    /// How often all consumers were started again.
    launches: usize,
    /// How often readers were started again after an error.
    recoveries: usize,
}

impl Readers {
    /// What all of them took of an epoch.
    pub(super) fn taken(&self, epoch: u64) -> Vec<Taken> {
        let of = |readers: &[(usize, PathBuf)], is_killed| -> Vec<Taken> {
            readers.iter().map(|(seat, path)| Taken::of(path, epoch, *seat, is_killed)).collect()
        };
        [of(&self.finished, false), of(&self.lost, true)].concat()
    }
}

impl fmt::Display for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lost, errors, launches) = (self.lost.len(), self.recoveries, self.launches);
        write!(f, "{lost} readers lost, {errors} permitted errors, {launches} launches from states")
    }
}

impl Lab {
    /// Starts a reader of an index. One that saves states continues from its last one.
    pub(super) fn start_reader(&mut self, index: usize) {
        let saves = self.plan.saves_states();
        let last = self.checkpoints(index).all().into_values().next_back().filter(|_| saves);
        self.start_reader_from(index, last);
    }

    fn start_reader_from(&mut self, index: usize, from: Option<PathBuf>) {
        let saves = self.plan.saves_states();
        let number = if saves { 0 } else { self.readers.lost.len() };
        let place = |n| u32::try_from(n).unwrap();
        let (balance, uneven) = match self.plan.group {
            Group::Rounds(rounds) => (rounds.balance, rounds.uneven),
            _ => (Balance::None, Uneven::Drop),
        };
        let launches = self.readers.launches;
        let settings = Settings {
            dispatcher: self.dispatcher.proxy.address(),
            pipeline: self.path("pipeline.json"),
            epochs: self.plan.epochs(),
            policy: if self.plan.mode == Mode::Compute { "compute" } else { "hint:stored" }.to_string(),
            allows_lost_readers: self.plan.loses_readers(),
            consumer: self.plan.consumers().map(|count| (place(index), place(count))),
            balance,
            uneven,
            trainer: matches!(self.plan.group, Group::Trainers(_)).then(|| format!("trainer-{index}")),
            attempt: (launches > 0).then(|| format!("launch-{launches}")),
            pace_us: self.plan.paces_us[index],
            ledger: self.path(&format!("reader-{index}-{number}.ledger")),
            checkpoints: saves.then(|| self.checkpoints(index)),
            from,
        };
        let mut command = Command::new(chaos_reader());
        command.arg(serde_json::to_string(&settings).unwrap());
        let process = Process::start(command, format!("reader {index}"));
        self.readers.running.push(Reader { process, ledger: settings.ledger, index });
    }

    /// Signals a reader, unless it has ended or has not begun.
    pub(super) fn signal_reader(&self, index: usize, name: &str) {
        self.readers.running.iter().filter(|r| r.index == index).for_each(|r| r.process.signal(name));
    }

    /// Kills a reader and starts it again, unless it has ended.
    pub(super) fn replace_reader(&mut self, index: usize) {
        if matches!(self.plan.group, Group::Rounds(_)) && self.checkpoints(index).all().is_empty() {
            // What the consumer has taken is in no state.
            return self.restart_consumers();
        }
        let is_alive = |r: &Reader| r.index == index && !r.process.has_ended();
        let Some(at) = self.readers.running.iter().position(is_alive) else { return };
        let reader = self.readers.running.remove(at);
        self.kill("reader", Some(reader.process));
        if !self.plan.saves_states() {
            self.readers.lost.push((index, reader.ledger));
        }
        self.start_reader(index);
    }

    /// Kills all consumers, unless all have ended, and starts them again from their states of the last round of which all have
    /// one.
    pub(super) fn restart_consumers(&mut self) {
        if self.readers.running.iter().all(|r| r.process.has_ended()) {
            return;
        }
        for reader in std::mem::take(&mut self.readers.running) {
            self.kill("reader", Some(reader.process));
        }
        self.launch_again();
    }

    /// Starts all consumers from their states of one round.
    fn launch_again(&mut self) {
        self.readers.finished.clear();
        self.readers.out_of_step.clear();
        self.readers.launches += 1;
        let all: Vec<Checkpoints> = (0..self.plan.readers).map(|index| self.checkpoints(index)).collect();
        let step = checkpoints::last_common(&all);
        for (index, own) in all.iter().enumerate() {
            let from = own.go_back(step.unwrap_or_default());
            self.start_reader_from(index, from);
        }
    }

    fn checkpoints(&self, index: usize) -> Checkpoints {
        Checkpoints::new(&self.path("."), index)
    }

    /// Waits until all readers have read everything. Those that end with an error that the round permits are started again.
    pub(super) fn wait_for_readers(&mut self) -> Result<(), String> {
        let mut deadline = Instant::now() + TEST_TIMEOUT;
        while !self.readers.running.is_empty() {
            let Some(at) = self.readers.running.iter().position(|r| r.process.has_ended()) else {
                if Instant::now() > deadline {
                    let open: Vec<_> = self.readers.running.iter().map(|r| r.index).collect();
                    return Err(format!("the readers {open:?} did not end within {TEST_TIMEOUT:?}"));
                }
                std::thread::park_timeout(POLL);
                continue;
            };
            deadline = Instant::now() + TEST_TIMEOUT;
            self.on_end(at)?;
            if self.readers.running.is_empty() && !self.readers.out_of_step.is_empty() {
                self.launch_again();
            }
        }
        Ok(())
    }

    /// A reader has ended.
    fn on_end(&mut self, at: usize) -> Result<(), String> {
        let Reader { process, ledger, index } = self.readers.running.remove(at);
        let ended = process.wait_at_most(TEST_TIMEOUT);
        self.past.push(("reader".into(), ended.stderr.clone()));
        if ended.code == Some(0) {
            self.readers.finished.push((index, ledger));
            return Ok(());
        }
        self.readers.recoveries += 1;
        let error = ended.stderr.lines().find(|line| line.starts_with("error: ")).unwrap_or("no error");
        let (is_expelled, group) = (error.contains(EXPELLED), self.plan.group);
        if self.readers.recoveries > MAX_RECOVERIES {
            return Err(format!("reader {index} is the last of too many that end with an error: {error}"));
        }
        match group {
            Group::Rounds(_) if OUT_OF_STEP.iter().any(|said| error.contains(said)) => {
                self.readers.out_of_step.insert(index);
            }
            Group::Share if is_expelled => self.readers.lost.push((index, ledger)),
            Group::Consumers if is_expelled => {
                self.readers.lost.push((index, ledger));
                self.start_reader(index);
            }
            _ if is_expelled => self.start_reader(index),
            _ => return Err(format!("reader {index} ended with {:?}: {error}", ended.code)),
        }
        Ok(())
    }
}
