//! What a round does, drawn from its seed.

use std::fmt;

use caju_client::{Balance, Uneven};

use super::dataset::Dataset;
use super::faults::Action;
use super::random::Random;

/// Rounds after which the kinds of readers come again.
const KINDS: u64 = 10;

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

/// Who gets which rows of the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Readers share its rows as they come.
    Share,
    /// One reader, which saves its state from time to time, and continues from it.
    State,
    /// Two consumers, which get equally many elements.
    Consumers,
    /// Trainers, each of which gets all rows. They share the computation, and save their states.
    Trainers(Window),
    /// Consumers that read in rounds, and save their states.
    Rounds(Rounds),
}

/// The window in which workers hold rows for several trainers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// What happens to a trainer that falls behind: the value of `--sharing-lag`.
    pub(super) lag: &'static str,
    /// Bytes of the window.
    pub(super) bytes: u64,
}

/// How consumers read in rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rounds {
    /// What the elements of a round have in common.
    pub(super) balance: Balance,
    /// What happens to the last elements.
    pub(super) uneven: Uneven,
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
    /// Who gets which rows.
    pub(super) group: Group,
    /// How long the user of each reader works on an element, in microseconds.
    pub(super) paces_us: Vec<u64>,
    /// What happens, in the order of its time in milliseconds since the first row.
    pub(super) actions: Vec<(u64, Action)>,
}

impl Plan {
    /// The round of a seed.
    pub(super) fn of(seed: u64) -> Self {
        let mut random = Random::new(seed);
        // 90 seeds in a row have each mode with each dataset and each group.
        let mode = [Mode::Compute, Mode::Put, Mode::Get][usize::try_from(seed % 3).unwrap()];
        let journal = ["sled", "redb"][random.index(2)];
        let (workers, group) = (random.index(3) + 2, Group::draw(seed, &mut random));
        let dataset = match group {
            Group::Rounds(rounds) if rounds.balance == Balance::Bucket => Dataset::Classes,
            Group::Rounds(_) => Dataset::Lists,
            _ => Dataset::FLAT[usize::try_from((seed / 3 + seed) % 3).unwrap()],
        };
        let readers = match group {
            Group::State => 1,
            Group::Share | Group::Consumers => 2,
            Group::Trainers(_) | Group::Rounds(_) => random.index(2) + 2,
        };
        let mut plan = Self {
            seed,
            dataset,
            mode,
            journal,
            workers,
            readers,
            group,
            paces_us: vec![0; readers],
            actions: Vec::new(),
        };
        if let Group::Trainers(_) = group {
            // Trainers that begin late or are slow leave the window.
            for reader in 1..readers {
                plan.paces_us[reader] = random.pick(&[0, 1_000, 5_000]);
                plan.actions.push((random.between(0, 1_500), Action::StartReader(reader)));
            }
        }
        plan.draw_faults(&mut random);
        plan
    }

    /// Readers that are there from the beginning. The other ones begin later.
    pub(super) fn first_readers(&self) -> usize {
        if matches!(self.group, Group::Trainers(_)) { 1 } else { self.readers }
    }

    /// Whether readers save their states, and continue from them.
    pub(super) fn saves_states(&self) -> bool {
        matches!(self.group, Group::State | Group::Trainers(_) | Group::Rounds(_))
    }

    /// The number of consumers, if the readers are such.
    pub(super) fn consumers(&self) -> Option<usize> {
        matches!(self.group, Group::Consumers | Group::Rounds(_)).then_some(self.readers)
    }

    /// Whether rows that a reader's user took may be missing for the other readers.
    pub(super) fn loses_readers(&self) -> bool {
        self.group == Group::Share
            && self.has(|a| matches!(a, Action::KillReader(_) | Action::SleepReader(_)))
    }

    /// Whether the dispatcher loses its journal.
    pub(super) fn loses_state(&self) -> bool {
        self.has(|a| matches!(a, Action::LoseState(_)))
    }

    /// Epochs of the job: rows that are stored are read in the second one.
    pub(super) fn epochs(&self) -> u64 {
        if self.mode == Mode::Put { 2 } else { 1 }
    }

    /// The most tasks of an epoch: workers that come again have others.
    pub(super) fn tasks(&self) -> usize {
        let again = |a: &Action| {
            matches!(
                a,
                Action::AddWorker
                    | Action::ReturnWorker(_)
                    | Action::ContinueWorker(_)
                    | Action::UnstallWorker(_)
                    | Action::UnstallDispatcher
                    | Action::LoseState(_)
            )
        };
        self.workers + self.actions.iter().filter(|(_, a)| again(a)).count()
    }

    /// When a reader begins.
    pub(super) fn begin_of(&self, reader: usize) -> u64 {
        self.actions.iter().find(|(_, a)| *a == Action::StartReader(reader)).map_or(0, |(at, _)| *at)
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

impl Group {
    /// Ten seeds in a row have six rounds of trainers and of consumers in rounds, and four of the other groups.
    fn draw(seed: u64, random: &mut Random) -> Self {
        let window = |random: &mut Random, lag| {
            Group::Trainers(Window { lag, bytes: random.pick(&[32 << 10, 256 << 10, 1 << 30]) })
        };
        let rounds = |random: &mut Random, balance| {
            Group::Rounds(Rounds { balance, uneven: random.pick(&[Uneven::Drop, Uneven::Pad]) })
        };
        match seed % KINDS {
            0 => window(random, "spill"),
            1 => window(random, "throttle"),
            2 => window(random, "drop"),
            3 => rounds(random, Balance::Bucket),
            4 => rounds(random, Balance::Tokens),
            5 => rounds(
                random,
                if (seed / KINDS).is_multiple_of(2) { Balance::Bucket } else { Balance::Tokens },
            ),
            6 | 7 => Group::Share,
            8 => Group::State,
            _ => Group::Consumers,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, dataset, mode, journal, workers, readers, group, paces_us, actions } = self;
        write!(
            f,
            "seed {seed}: {dataset:?}, {mode:?}, {workers} workers, {readers} readers ({group:?}), {journal}"
        )?;
        if paces_us.iter().any(|us| *us > 0) {
            write!(f, ", {paces_us:?} us per element")?;
        }
        f.write_str(":")?;
        for (at, action) in actions {
            write!(f, " {at}ms {action:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::faults::Damage;

    /// The rounds of which docs/guarantees.md reports.
    fn hundred() -> Vec<Plan> {
        (1..=100).map(Plan::of).collect()
    }

    #[test]
    fn a_hundred_seeds_have_ten_rounds_of_every_kind() {
        let plans = hundred();
        assert_eq!(plans[7].to_string(), Plan::of(8).to_string(), "a seed is a plan");
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
            |a: &Action| matches!(a, Action::SleepReader(_)),
            |a: &Action| matches!(a, Action::KillReader(_)),
            |a: &Action| matches!(a, Action::RestartReader(_)),
            |a: &Action| matches!(a, Action::ReturnConsumer(_)),
            |a: &Action| *a == Action::RestartConsumers,
            |a: &Action| *a == Action::LoseState(Damage::Delete),
            |a: &Action| matches!(a, Action::LoseState(Damage::Truncate | Damage::Overwrite)),
        ];
        for (i, kind) in kinds.iter().enumerate() {
            let rounds = plans.iter().filter(|p| p.has(kind)).count();
            assert!(rounds >= 10, "kind {i}: {rounds} rounds");
        }
        assert!(plans.iter().all(|p| p.actions.is_sorted_by_key(|(at, _)| *at)));
    }

    #[test]
    fn a_hundred_seeds_have_ten_rounds_of_every_group() {
        let plans = hundred();
        let groups: [fn(Group) -> bool; 10] = [
            |g| g == Group::Share,
            |g| g == Group::State,
            |g| g == Group::Consumers,
            |g| matches!(g, Group::Trainers(w) if w.lag == "spill"),
            |g| matches!(g, Group::Trainers(w) if w.lag == "throttle"),
            |g| matches!(g, Group::Trainers(w) if w.lag == "drop"),
            |g| matches!(g, Group::Rounds(r) if r.balance == Balance::Bucket),
            |g| matches!(g, Group::Rounds(r) if r.balance == Balance::Tokens),
            |g| matches!(g, Group::Rounds(r) if r.uneven == Uneven::Drop),
            |g| matches!(g, Group::Rounds(r) if r.uneven == Uneven::Pad),
        ];
        for (i, is_of_group) in groups.iter().enumerate() {
            let rounds = plans.iter().filter(|p| is_of_group(p.group)).count();
            assert!(rounds >= 10, "group {i}: {rounds} rounds");
        }
        for mode in [Mode::Compute, Mode::Put, Mode::Get] {
            for dataset in Dataset::ALL {
                assert!(
                    plans.iter().any(|p| p.dataset == dataset && p.mode == mode),
                    "{dataset:?}, {mode:?}"
                );
            }
        }
    }
}
