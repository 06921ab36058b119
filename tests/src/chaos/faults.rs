//! The faults of a round.

use super::dataset::EPOCH_MS;
use super::plan::{Group, Plan};
use super::random::Random;

/// Faults of a round that may lose workers. A split that is lost with three workers that died fails its epoch, by design.
const MAX_LOSSES: usize = 2;
/// The worker timeout of the cluster, in milliseconds.
pub(super) const WORKER_TIMEOUT_MS: u64 = 1_000;
/// The client timeout of the cluster, in milliseconds: readers that are paused for longer are expelled.
pub(super) const CLIENT_TIMEOUT_MS: u64 = 6_000;

/// Something that happens to a process or a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// `kill -9` of a worker.
    KillWorker(usize),
    /// The worker is started again under its address.
    ReturnWorker(usize),
    /// One more worker.
    AddWorker,
    /// SIGSTOP of a worker.
    StopWorker(usize),
    /// SIGCONT of a worker.
    ContinueWorker(usize),
    /// All connections of a worker break.
    CutWorker(usize),
    /// No byte reaches or leaves a worker's port.
    StallWorker(usize),
    /// Bytes reach the worker again.
    UnstallWorker(usize),
    /// `kill -9` of the dispatcher.
    KillDispatcher,
    /// The dispatcher is started again under its address.
    ReturnDispatcher,
    /// SIGSTOP of the dispatcher.
    StopDispatcher,
    /// SIGCONT of the dispatcher.
    ContinueDispatcher,
    /// All connections to the dispatcher break.
    CutDispatcher,
    /// No byte reaches or leaves the dispatcher.
    StallDispatcher,
    /// Bytes reach the dispatcher again.
    UnstallDispatcher,
    /// A trainer begins.
    StartReader(usize),
    /// SIGSTOP of a reader, for less than the client timeout.
    StopReader(usize),
    /// SIGSTOP of a reader, for more than the client timeout.
    SleepReader(usize),
    /// SIGCONT of a reader.
    ContinueReader(usize),
    /// `kill -9` of a reader, and a new one in its place.
    KillReader(usize),
    /// `kill -9` of a reader, and a new one that continues from its last state.
    RestartReader(usize),
    /// `kill -9` of a consumer, which comes back under its index. One that reads in rounds has its last state.
    ReturnConsumer(usize),
    /// `kill -9` of all consumers, and new ones that continue from the states of one round.
    RestartConsumers,
    /// `kill -9` of the dispatcher, whose state folder is damaged then.
    LoseState(Damage),
}

/// What happens to the state folder while the dispatcher is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    /// It is deleted.
    Delete,
    /// Its largest file loses two thirds of its bytes.
    Truncate,
    /// Its largest file has other content.
    Overwrite,
}

impl Plan {
    /// Draws what happens, in the order of time.
    pub(super) fn draw_faults(&mut self, random: &mut Random) {
        let (faults, mut losses) = (random.between(2, 6), 0);
        for _ in 0..faults {
            self.add_fault(random, &mut losses);
        }
        self.add_special_fault(random);
        self.actions.sort_by_key(|(at, _)| *at);
    }

    fn add_fault(&mut self, random: &mut Random, losses: &mut usize) {
        let at = random.between(0, EPOCH_MS * 9 / 10);
        let (worker, reader) = (random.index(self.workers), random.index(self.readers));
        let begin = self.begin_of(reader);
        let mut push = |after: u64, action| self.actions.push((at + after, action));
        let loses = *losses < MAX_LOSSES;
        match random.index(9) {
            0 | 1 if loses => {
                *losses += 1;
                push(0, Action::KillWorker(worker));
                let back =
                    if random.index(3) == 0 { Action::AddWorker } else { Action::ReturnWorker(worker) };
                push(random.between(0, 1_500), back);
            }
            2 if loses => {
                *losses += 1;
                push(0, Action::StopWorker(worker));
                push(random.between(100, WORKER_TIMEOUT_MS * 2), Action::ContinueWorker(worker));
            }
            3 if loses => {
                *losses += 1;
                push(0, Action::StallWorker(worker));
                push(random.between(100, WORKER_TIMEOUT_MS * 2), Action::UnstallWorker(worker));
            }
            4 if loses => {
                *losses += 1;
                push(0, Action::StallDispatcher);
                push(random.between(100, WORKER_TIMEOUT_MS * 2), Action::UnstallDispatcher);
            }
            5 => push(0, Action::CutWorker(worker)),
            6 => push(0, Action::CutDispatcher),
            7 => {
                push(begin, Action::StopReader(reader));
                push(begin + random.between(100, CLIENT_TIMEOUT_MS / 3), Action::ContinueReader(reader));
            }
            8 => {
                push(0, Action::StopDispatcher);
                push(random.between(100, WORKER_TIMEOUT_MS * 2), Action::ContinueDispatcher);
            }
            _ => {
                push(0, Action::KillDispatcher);
                push(random.between(0, 2_000), Action::ReturnDispatcher);
            }
        }
    }

    /// What only rounds of some kind can bear. It comes in the first half of the epoch: a reader that is at its end does not
    /// come back.
    fn add_special_fault(&mut self, random: &mut Random) {
        let (at, reader) = (random.between(0, EPOCH_MS / 2), random.index(self.readers));
        let (at, is_odd) = (at + self.begin_of(reader), self.seed / 10 % 2 == 1);
        match (self.group, self.seed % 10 % 3 + self.seed / 10 % 3) {
            // What a reader took whose dispatcher has lost its state comes again if it does not come back: so it stays.
            (Group::Share, 3) => self.lose_state(random),
            (Group::Share, 1) => self.let_sleep(reader, random),
            (Group::Share, _) => self.actions.push((at, Action::KillReader(reader))),
            (Group::Consumers, 0 | 3) => self.actions.push((at, Action::ReturnConsumer(reader))),
            (Group::Consumers, 1 | 4) => self.let_sleep(reader, random),
            (Group::Consumers, _) => self.lose_state(random),
            (Group::Rounds(_), 0 | 3) => self.actions.push((at, Action::RestartConsumers)),
            (Group::Rounds(_), 1 | 4) => self.actions.push((at, Action::ReturnConsumer(reader))),
            (Group::State | Group::Trainers(_), 0 | 3) | (Group::Rounds(_), _) if is_odd => {
                self.let_sleep(reader, random);
            }
            (Group::State | Group::Trainers(_), 1 | 4) | (Group::Rounds(_), _) => self.lose_state(random),
            (Group::State | Group::Trainers(_), _) => {
                self.actions.push((at, Action::RestartReader(reader)));
                if is_odd {
                    self.lose_state(random);
                }
            }
        }
    }

    fn lose_state(&mut self, random: &mut Random) {
        let at = random.between(0, EPOCH_MS / 2);
        let damage = random.pick(&[Damage::Delete, Damage::Delete, Damage::Truncate, Damage::Overwrite]);
        self.actions.push((at, Action::LoseState(damage)));
        self.actions.push((at + random.between(0, 2_000), Action::ReturnDispatcher));
    }

    /// A reader sleeps for longer than the client timeout. No other fault wakes it.
    fn let_sleep(&mut self, reader: usize, random: &mut Random) {
        self.actions.retain(|(_, a)| !matches!(a, Action::StopReader(_) | Action::ContinueReader(_)));
        let at = self.begin_of(reader) + random.between(0, EPOCH_MS / 2);
        self.actions.push((at, Action::SleepReader(reader)));
        let lasts = CLIENT_TIMEOUT_MS + random.between(1_000, 2_500);
        self.actions.push((at + lasts, Action::ContinueReader(reader)));
    }
}
