//! The replan state of a job: what its epochs showed of the decision, and when that changes it.
//!
//! Epochs go in, at most one change of the decision comes out. An epoch is compared with the decision by planning again with
//! the rates that options really had. Only if that says the same thing in two epochs in a row, and clearly, is the decision
//! changed. The rate of the option that was left stays known, and the number of changes is bounded, so that decisions
//! cannot flap.

use std::fmt;

use caju_planner::{Choice, format_rate};
use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::plan::SplitModes;

/// Epochs in a row in which another option must be better before the decision is changed.
const MIN_EPOCHS_IN_A_ROW: u32 = 2;
/// The most changes of one job's decision. A change may cost an epoch that writes. A job whose measurements contradict
/// one another must not change for ever.
const MAX_CHANGES: usize = 3;
/// Fractions of an epoch's splits that differ by less are the same. Hashes of keys choose the splits that are read, so an epoch of
/// a hundred splits may miss the decided fraction by a tenth.
const SAME_FRACTION: f64 = 0.1;
/// Epochs in a row that may miss what was decided. After that the rate they reached counts as the rate of the decision:
/// the rows do not fit the budget, say, or cannot be written.
const MAX_EPOCHS_MISSED: u32 = 3;

/// What an epoch of a job showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochFacts {
    /// Rows that were delivered.
    pub(crate) rows: u64,
    /// Milliseconds from its opening to its end.
    pub(crate) ms: u64,
    /// How its splits were run.
    pub(crate) modes: SplitModes,
    /// Whether its readers had to wait. Else they set the pace, and the epoch says nothing about ours.
    pub(crate) waited: bool,
    /// Workers that ran it.
    pub(crate) workers: u64,
    /// Jobs that shared its rows, itself included.
    pub(crate) sharing_jobs: u64,
}

impl EpochFacts {
    /// The fraction of the splits that was read.
    pub(crate) fn fraction_read(&self) -> f64 {
        self.modes.get as f64 / self.modes.total().max(1) as f64
    }
}

/// What is known, for people.
impl fmt::Display for ReplanState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = |rate: u64| format_rate(rate as f64 / 1000.0);
        let epochs = |n: u32, what: &str| match n {
            0 => None,
            1 => Some(format!("{what} in the last epoch")),
            n => Some(format!("{what} in {n} epochs in a row")),
        };
        let known = [
            self.computed_rate.map(|r| format!("computing gave {} rows/s", rate(r))),
            self.read_rate.map(|r| format!("reading gave {} rows/s", rate(r))),
            epochs(self.epochs_worse, "another option was better"),
            epochs(self.epochs_missed, "more or less was read than was decided"),
            (self.changes > 0).then(|| format!("changes of the decision: {}", self.changes)),
        ];
        let known: Vec<String> = known.into_iter().flatten().collect();
        f.write_str(&if known.is_empty() { "nothing that counts".to_owned() } else { known.join("; ") })
    }
}

/// How fast an option was that a job ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OptionRate {
    /// The planner's choice.
    pub choice: Document<Choice>,
    /// Delivered rows per 1000 seconds.
    pub rate: u64,
}

/// What is known of a job's epochs under its decisions. Part of the journal: serialized names do not change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplanState {
    /// The best rate of computing, in delivered rows per 1000 seconds.
    #[serde(rename = "computed")]
    pub computed_rate: Option<u64>,
    /// The last rate of reading under the present decision, in delivered rows per 1000 seconds.
    #[serde(rename = "read")]
    pub read_rate: Option<u64>,
    /// Epochs in a row in which another option was better.
    #[serde(rename = "slow")]
    pub epochs_worse: u32,
    /// Whether the decision was changed by a version that did not record what was left.
    pub given_up: bool,
    /// The rates of reading under decisions that were changed.
    #[serde(default, rename = "left", skip_serializing_if = "Vec::is_empty")]
    pub left_options: Vec<OptionRate>,
    /// How often the decision was changed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub changes: u32,
    /// Epochs in a row in which less, or more, was read than was decided.
    #[serde(default, rename = "unreached", skip_serializing_if = "is_zero")]
    pub epochs_missed: u32,
    /// Workers that ran the epochs of these rates; 0 before the first.
    #[serde(default, skip_serializing_if = "is_none")]
    pub workers: u64,
    /// Jobs that shared the rows of these epochs, this one included; 0 before the first epoch, and for a job alone.
    #[serde(default, skip_serializing_if = "is_none")]
    pub sharing_jobs: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_none(n: &u64) -> bool {
    *n == 0
}

impl ReplanState {
    /// Rows in milliseconds as rows per 1000 seconds.
    pub(crate) fn rate(rows: u64, ms: u64) -> u64 {
        let rate = u128::from(rows) * 1_000_000 / u128::from(ms.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// The state after one more epoch under a decision to read this fraction of the splits (none: to compute), and whether
    /// the epoch shows the rate of the decision. An epoch that writes, or mixes reading and computing, does not. Rates of
    /// other workers, or with another number of jobs that share rows, are forgotten.
    #[must_use]
    pub(crate) fn after(&self, epoch: EpochFacts, fraction: Option<f64>) -> (Self, bool) {
        let mut next = self.clone();
        if epoch.rows == 0 || !epoch.waited {
            return (next, false);
        }
        let is_other = self.workers != epoch.workers || self.sharing_jobs.max(1) != epoch.sharing_jobs.max(1);
        if self.workers != 0 && is_other {
            let (changes, given_up) = (self.changes, self.given_up);
            next = Self { changes, given_up, ..Self::default() };
        }
        next.workers = epoch.workers;
        next.sharing_jobs = if epoch.sharing_jobs > 1 { epoch.sharing_jobs } else { 0 };
        let rate = Self::rate(epoch.rows, epoch.ms);
        let SplitModes { put, get, .. } = epoch.modes;
        if get + put == 0 {
            next.computed_rate = Some(next.computed_rate.map_or(rate, |r| r.max(rate)));
        }
        let shows = match fraction {
            Some(fraction) => put == 0 && get > 0 && (epoch.fraction_read() - fraction).abs() < SAME_FRACTION,
            None => get + put == 0,
        };
        let reached = shows || fraction.is_none();
        next.epochs_missed = if reached { 0 } else { next.epochs_missed.saturating_add(1) };
        let shows = shows || next.epochs_missed > MAX_EPOCHS_MISSED;
        if shows && fraction.is_some() {
            next.read_rate = Some(rate);
        }
        (next, shows)
    }

    /// The state once the epoch was planned again, and whether the decision is changed now: away from `choice`, if another
    /// option is `better`.
    #[must_use]
    pub(crate) fn replanned(mut self, choice: &Choice, better: bool) -> (Self, bool) {
        self.epochs_worse = if better { self.epochs_worse + 1 } else { 0 };
        let changes = self.epochs_worse >= MIN_EPOCHS_IN_A_ROW && self.may_change();
        if changes {
            let rate = self.read_rate.take();
            let choice = || Document::new(choice.clone());
            self.left_options.extend(rate.map(|rate| OptionRate { choice: choice(), rate }));
            self.changes += 1;
            (self.epochs_worse, self.epochs_missed) = (0, 0);
        }
        (self, changes)
    }

    fn may_change(&self) -> bool {
        !self.given_up && (self.changes as usize) < MAX_CHANGES
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn epoch(rate: u64, modes: SplitModes) -> EpochFacts {
        EpochFacts { rows: rate, ms: 1000, modes, waited: true, workers: 1, sharing_jobs: 1 }
    }

    const READ: SplitModes = SplitModes { compute: 0, put: 0, get: 4, fell_back: 0, backfilled: 0 };
    const COMPUTED: SplitModes = SplitModes { compute: 4, put: 0, get: 0, fell_back: 0, backfilled: 0 };
    const HALF: SplitModes = SplitModes { compute: 2, put: 0, get: 2, fell_back: 0, backfilled: 0 };
    const WRITES: SplitModes = SplitModes { compute: 1, put: 2, get: 1, fell_back: 0, backfilled: 0 };

    #[test]
    fn epochs_show_the_rate_of_what_they_ran() {
        let state = ReplanState::default();
        let after = |modes, fraction| state.after(epoch(1000, modes), fraction);
        let (computed, shows) = after(COMPUTED, None);
        assert_eq!((computed.computed_rate, computed.read_rate, shows), (Some(1_000_000), None, true));
        let (read, shows) = after(READ, Some(1.0));
        assert_eq!((read.computed_rate, read.read_rate, shows), (None, Some(1_000_000), true));
        assert!(after(HALF, Some(0.5)).1 && !after(HALF, Some(1.0)).1 && !after(READ, Some(0.5)).1);
        for fraction in [None, Some(1.0), Some(0.25)] {
            let (wrote, shows) = after(WRITES, fraction);
            assert!(
                !shows && (wrote.computed_rate, wrote.read_rate) == (None, None),
                "writing is no measure of either"
            );
        }
        let idle = EpochFacts { waited: false, ..epoch(10, READ) };
        assert_eq!(state.after(idle, Some(1.0)), (state.clone(), false), "its readers set the pace");
        // The best computing counts, and the last reading.
        let (slower, _) = computed.after(epoch(900, COMPUTED), None);
        assert_eq!(slower.computed_rate, Some(1_000_000));
        let (slower, _) = read.after(epoch(900, READ), Some(1.0));
        assert_eq!(slower.read_rate, Some(900_000));
    }

    #[test]
    fn a_decision_that_is_never_reached_has_the_rate_of_its_epochs() {
        let mut state = ReplanState::default();
        // The first epoch of all is the one in which it is decided.
        for no in 1..=MAX_EPOCHS_MISSED {
            let (next, shows) = state.after(epoch(1000, WRITES), Some(1.0));
            assert!(!shows && next.read_rate.is_none(), "epoch {no}");
            state = next;
        }
        let (stuck, shows) = state.after(epoch(900, WRITES), Some(1.0));
        assert!(shows && stuck.read_rate == Some(900_000), "{stuck:?}");
        let (reached, shows) = state.after(epoch(5000, READ), Some(1.0));
        assert!(shows && (reached.read_rate, reached.epochs_missed) == (Some(5_000_000), 0), "{reached:?}");
        // A decision to compute has no fraction to reach.
        let (computes, shows) = state.after(epoch(1000, HALF), None);
        assert!(!shows && computes.epochs_missed == 0);
    }

    #[test]
    fn rates_of_other_workers_are_forgotten() {
        let (one, _) = ReplanState::default().after(epoch(1000, COMPUTED), None);
        let two = EpochFacts { workers: 2, ..epoch(900, COMPUTED) };
        let (state, shows) = ReplanState { changes: 1, epochs_worse: 1, ..one }.after(two, None);
        assert!(shows);
        assert_eq!((state.computed_rate, state.workers), (Some(900_000), 2), "one alone had a thousand");
        assert_eq!((state.changes, state.epochs_worse), (1, 0), "changes are few whoever works");
    }

    #[test]
    fn two_epochs_in_a_row_change_it_and_one_does_not() {
        let (state, _) = ReplanState::default().after(epoch(850, READ), Some(1.0));
        let (state, now) = state.replanned(&Choice::Compute, true);
        assert!(!now);
        let (state, now) = state.replanned(&Choice::Compute, false);
        assert!(!now);
        let (state, now) = state.replanned(&Choice::Compute, true);
        assert!(!now);
        let (state, now) = state.replanned(&Choice::Compute, true);
        assert!(now);
        assert_eq!(
            state.left_options,
            [OptionRate { choice: Document::new(Choice::Compute), rate: 850_000 }]
        );
        assert_eq!(
            (state.epochs_worse, state.read_rate),
            (0, None),
            "the next decision begins without rates"
        );
    }

    proptest! {
        /// Whatever epochs show: changes are few, and two of them are never next to each other.
        #[test]
        fn decisions_do_not_flap(better in proptest::collection::vec(any::<bool>(), 0..60)) {
            let (mut state, mut changes, mut since) = (ReplanState::default(), 0, 0);
            for better in better {
                let (next, now) = state.replanned(&Choice::Compute, better);
                since += 1;
                if now {
                    prop_assert!(since >= MIN_EPOCHS_IN_A_ROW && better);
                    (changes, since) = (changes + 1, 0);
                }
                state = next;
            }
            prop_assert!(changes <= MAX_CHANGES);
        }
    }
}
