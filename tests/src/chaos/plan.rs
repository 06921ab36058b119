//! What a round does, drawn from its seed.

use std::fmt;

use super::dataset::{Dataset, EPOCH_MS};

/// Faults of a round that may lose workers. A split that is lost with three workers that died fails its epoch, by design.
const MAX_LOSSES: usize = 2;
/// The worker timeout of the cluster, in milliseconds.
pub(super) const WORKER_TIMEOUT_MS: u64 = 1_000;
/// The client timeout of the cluster, in milliseconds: readers are paused for less.
pub(super) const CLIENT_TIMEOUT_MS: u64 = 6_000;

/// Random numbers from a seed: SplitMix64.
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    /// The numbers of a seed.
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `from` to below `to`.
    pub(super) fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from).max(1)
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.between(0, len as u64)).unwrap()
    }
}

/// How the splits of a round are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Every row is computed.
    Compute,
    /// Rows are computed and stored in the first epoch, and read in the second one.
    Put,
    /// Rows are read from a snapshot.
    Get,
}

/// How the readers of a round divide the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// They share its rows as they come.
    Share,
    /// One reader, which saves its state from time to time, and continues from it.
    State,
    /// Two consumers, which get equally many elements.
    Consumers,
}

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
    /// SIGSTOP of a reader.
    StopReader(usize),
    /// SIGCONT of a reader.
    ContinueReader(usize),
    /// `kill -9` of a reader, and a new one in its place.
    KillReader(usize),
    /// `kill -9` of the reader, and a new one that continues from its last state.
    RestartReader,
    /// `kill -9` of a consumer, which comes back under its index.
    ReturnConsumer(usize),
    /// `kill -9` of the dispatcher, whose state folder is deleted then.
    LoseState,
}

/// What a round does.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Where it comes from.
    pub(super) seed: u64,
    /// What is read.
    pub(super) dataset: Dataset,
    /// How splits are run.
    pub(super) mode: Mode,
    /// The database of the journal.
    pub(super) journal: &'static str,
    /// Workers at the beginning.
    pub(super) workers: usize,
    /// Readers of the job.
    pub(super) readers: usize,
    /// How they divide the epoch.
    pub(super) group: Group,
    /// What happens, in the order of its time in milliseconds since the first row.
    pub(super) actions: Vec<(u64, Action)>,
}

impl Plan {
    /// The round of a seed.
    pub(super) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mode = [Mode::Compute, Mode::Put, Mode::Get][usize::try_from(seed % 3).unwrap()];
        // Nine seeds in a row have every mode with every dataset.
        let dataset = Dataset::ALL[usize::try_from((seed / 3 + seed) % 3).unwrap()];
        let journal = ["sled", "redb"][random.index(2)];
        let (workers, readers) = (random.index(3) + 2, random.index(2) + 1);
        let (group, readers) = match random.index(4) {
            0 => (Group::State, 1),
            1 => (Group::Consumers, 2),
            _ => (Group::Share, readers),
        };
        let mut plan = Self { seed, dataset, mode, journal, workers, readers, group, actions: Vec::new() };
        let (faults, mut losses) = (random.between(2, 6), 0);
        for _ in 0..faults {
            plan.add_fault(&mut random, &mut losses);
        }
        plan.add_special_fault(&mut random);
        plan.actions.sort_by_key(|(at, _)| *at);
        plan
    }

    fn add_fault(&mut self, random: &mut Random, losses: &mut usize) {
        let at = random.between(0, EPOCH_MS * 9 / 10);
        let (worker, reader) = (random.index(self.workers), random.index(self.readers));
        let mut push = |after: u64, action| self.actions.push((at + after, action));
        let loses = *losses < MAX_LOSSES;
        match random.index(10) {
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
                push(0, Action::StopReader(reader));
                push(random.between(100, CLIENT_TIMEOUT_MS / 3), Action::ContinueReader(reader));
            }
            8 if self.group == Group::Share && self.readers > 1 => push(0, Action::KillReader(reader)),
            9 => {
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
        let loses_state = random.index(2) == 0;
        match self.group {
            Group::State => self.actions.push((at, Action::RestartReader)),
            // Who is back without a state needs what the dispatcher knew of it.
            Group::Consumers if !loses_state => self.actions.push((at, Action::ReturnConsumer(reader))),
            _ => {}
        }
        let kills = self.has(|a| matches!(a, Action::KillReader(_) | Action::ReturnConsumer(_)));
        if loses_state && !kills {
            let at = random.between(0, EPOCH_MS / 2);
            self.actions.push((at, Action::LoseState));
            self.actions.push((at + random.between(0, 2_000), Action::ReturnDispatcher));
        }
    }

    /// Whether a reader is killed: then rows that its user took are missing for the others.
    pub(super) fn kills_readers(&self) -> bool {
        self.has(|a| matches!(a, Action::KillReader(_)))
    }

    /// Whether the dispatcher may not know what a killed reader had acknowledged: it has lost its journal.
    pub(super) fn forgets_acknowledgements(&self) -> bool {
        self.has(|a| *a == Action::LoseState)
    }

    /// Epochs of the job: rows that are stored are read in the second one.
    pub(super) fn epochs(&self) -> u64 {
        if self.mode == Mode::Put { 2 } else { 1 }
    }

    /// Whether the dispatcher is killed.
    pub(super) fn kills_dispatcher(&self) -> bool {
        self.has(|a| *a == Action::KillDispatcher)
    }

    /// Whether some action is of a kind.
    pub(super) fn has(&self, kind: impl Fn(&Action) -> bool) -> bool {
        self.actions.iter().any(|(_, a)| kind(a))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, dataset, mode, journal, workers, readers, group, actions } = self;
        write!(
            f,
            "seed {seed}: {dataset:?}, {mode:?}, {workers} workers, {readers} readers ({group:?}), {journal}:"
        )?;
        for (at, action) in actions {
            write!(f, " {at}ms {action:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_seeds_try_everything() {
        let plans: Vec<Plan> = (0..300).map(Plan::of).collect();
        assert_eq!(plans[7].to_string(), Plan::of(7).to_string());
        let kinds = [
            |a: &Action| matches!(a, Action::KillWorker(_)),
            |a: &Action| matches!(a, Action::AddWorker),
            |a: &Action| matches!(a, Action::StopWorker(_)),
            |a: &Action| matches!(a, Action::StallWorker(_)),
            |a: &Action| matches!(a, Action::CutWorker(_)),
            |a: &Action| *a == Action::KillDispatcher,
            |a: &Action| *a == Action::StopDispatcher,
            |a: &Action| *a == Action::StallDispatcher,
            |a: &Action| *a == Action::CutDispatcher,
            |a: &Action| matches!(a, Action::StopReader(_)),
            |a: &Action| matches!(a, Action::KillReader(_)),
            |a: &Action| *a == Action::RestartReader,
            |a: &Action| matches!(a, Action::ReturnConsumer(_)),
            |a: &Action| *a == Action::LoseState,
        ];
        for (i, kind) in kinds.iter().enumerate() {
            assert!(plans.iter().filter(|p| p.has(kind)).count() >= 10, "kind {i}");
        }
        for dataset in Dataset::ALL {
            for mode in [Mode::Compute, Mode::Put, Mode::Get] {
                let both = |p: &&Plan| p.dataset == dataset && p.mode == mode;
                assert!(plans.iter().filter(both).count() >= 30, "{dataset:?}, {mode:?}");
            }
        }
        assert!(plans.iter().all(|p| p.actions.is_sorted_by_key(|(at, _)| *at)));
    }
}
