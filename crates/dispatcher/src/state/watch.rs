//! Whether a decision holds what it promised.
//!
//! Pure: epochs go in, at most one change of mind comes out. What an epoch showed is held against the decision by planning
//! anew with the rates that options really had; only if that says the same thing twice in a row, and clearly, is the
//! decision changed. What was left is not forgotten: its rate is known now. And there are few changes in all, so that
//! nothing can flap.

use serde::{Deserialize, Serialize};

use super::Modes;

/// Another option counts only in so many epochs in a row.
const IN_A_ROW: u32 = 2;
/// A job changes its mind so often at most.
pub(super) const MOST_CHANGES: usize = 3;
/// Shares of splits that differ by less are the same.
const SAME_SHARE: f64 = 0.1;
/// After so many epochs in a row that did not come to what was decided, what they have come to is what it gives: the rows
/// find no room, say, or cannot be written.
const UNREACHED: u32 = 3;

/// What an epoch of a job showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochFacts {
    /// Rows that were delivered.
    pub rows: u64,
    /// Milliseconds from its opening to its end.
    pub ms: u64,
    /// How its splits were run.
    pub modes: Modes,
    /// Whether its readers had to wait: else they set the pace, and the epoch says nothing about ours.
    pub waited: bool,
    /// Workers that ran it.
    pub workers: u64,
}

impl EpochFacts {
    /// The share of the splits that was read.
    pub fn read_share(&self) -> f64 {
        let Modes { compute, put, get, .. } = self.modes;
        get as f64 / (compute + put + get).max(1) as f64
    }
}

/// How fast an option was that a job ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tried {
    /// The planner's choice, as JSON.
    pub choice: String,
    /// Delivered rows per 1000 seconds.
    pub rate: u64,
}

/// What is remembered of a job's epochs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// The best rate of computing seen, in delivered rows per 1000 seconds.
    pub computed: Option<u64>,
    /// The last rate of reading under the present decision, likewise.
    pub read: Option<u64>,
    /// Epochs in a row that spoke for another option.
    pub slow: u32,
    /// Whether the mind was changed before it was remembered what was left.
    pub given_up: bool,
    /// What was read under decisions that were changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<Tried>,
    /// How often the mind was changed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub changes: u32,
    /// Epochs in a row in which less, or more, was read than was decided.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unreached: u32,
    /// Workers that ran the epochs of these rates; 0 before the first.
    #[serde(default, skip_serializing_if = "is_none")]
    pub workers: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_none(n: &u64) -> bool {
    *n == 0
}

impl Watch {
    /// Rows in milliseconds as a rate.
    pub fn rate(rows: u64, ms: u64) -> u64 {
        let rate = u128::from(rows) * 1_000_000 / u128::from(ms.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// What is remembered after one more epoch under a decision to read this share of the splits (none: to compute), and
    /// whether the epoch shows the rate of the decision: others write, or mix both. Rates of other workers are forgotten.
    #[must_use]
    pub fn after(&self, epoch: EpochFacts, share: Option<f64>) -> (Self, bool) {
        let mut next = self.clone();
        if epoch.rows == 0 || !epoch.waited {
            return (next, false);
        }
        if self.workers != 0 && self.workers != epoch.workers {
            let (changes, given_up) = (self.changes, self.given_up);
            next = Self { changes, given_up, ..Self::default() };
        }
        next.workers = epoch.workers;
        let rate = Self::rate(epoch.rows, epoch.ms);
        let Modes { put, get, .. } = epoch.modes;
        if get + put == 0 {
            next.computed = Some(next.computed.map_or(rate, |r| r.max(rate)));
        }
        let shows = match share {
            Some(share) => put == 0 && get > 0 && (epoch.read_share() - share).abs() < SAME_SHARE,
            None => get + put == 0,
        };
        let reached = shows || share.is_none();
        next.unreached = if reached { 0 } else { next.unreached.saturating_add(1) };
        let shows = shows || next.unreached > UNREACHED;
        if shows && share.is_some() {
            next.read = Some(rate);
        }
        (next, shows)
    }

    /// What is remembered once the epoch was planned anew, and whether the mind is changed now: away from `choice`, to
    /// something else if that is `better`.
    #[must_use]
    pub fn considered(mut self, choice: &str, better: bool) -> (Self, bool) {
        self.slow = if better { self.slow + 1 } else { 0 };
        let changes = self.slow >= IN_A_ROW && self.may_change();
        if changes {
            let rate = self.read.take();
            self.left.extend(rate.map(|rate| Tried { choice: choice.to_string(), rate }));
            self.changes += 1;
            (self.slow, self.unreached) = (0, 0);
        }
        (self, changes)
    }

    fn may_change(&self) -> bool {
        !self.given_up && (self.changes as usize) < MOST_CHANGES
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn epoch(rate: u64, modes: Modes) -> EpochFacts {
        EpochFacts { rows: rate, ms: 1000, modes, waited: true, workers: 1 }
    }

    const READ: Modes = Modes { compute: 0, put: 0, get: 4, fell_back: 0, kept: 0 };
    const COMPUTED: Modes = Modes { compute: 4, put: 0, get: 0, fell_back: 0, kept: 0 };
    const HALF: Modes = Modes { compute: 2, put: 0, get: 2, fell_back: 0, kept: 0 };
    const WRITES: Modes = Modes { compute: 1, put: 2, get: 1, fell_back: 0, kept: 0 };

    #[test]
    fn epochs_show_what_they_ran() {
        let watch = Watch::default();
        let after = |modes, share| watch.after(epoch(1000, modes), share);
        let (computed, shows) = after(COMPUTED, None);
        assert_eq!((computed.computed, computed.read, shows), (Some(1_000_000), None, true));
        let (read, shows) = after(READ, Some(1.0));
        assert_eq!((read.computed, read.read, shows), (None, Some(1_000_000), true));
        assert!(after(HALF, Some(0.5)).1 && !after(HALF, Some(1.0)).1 && !after(READ, Some(0.5)).1);
        for share in [None, Some(1.0), Some(0.25)] {
            let (wrote, shows) = after(WRITES, share);
            assert!(
                !shows && (wrote.computed, wrote.read) == (None, None),
                "writing is no measure of either"
            );
        }
        let idle = EpochFacts { waited: false, ..epoch(10, READ) };
        assert_eq!(watch.after(idle, Some(1.0)), (watch.clone(), false), "its readers set the pace");
        // The best computing counts, and the last reading.
        let (slower, _) = computed.after(epoch(900, COMPUTED), None);
        assert_eq!(slower.computed, Some(1_000_000));
        let (slower, _) = read.after(epoch(900, READ), Some(1.0));
        assert_eq!(slower.read, Some(900_000));
    }

    #[test]
    fn what_is_never_reached_shows_what_it_gives() {
        let mut watch = Watch::default();
        // The first epoch of all is the one in which it is decided.
        for no in 1..=UNREACHED {
            let (next, shows) = watch.after(epoch(1000, WRITES), Some(1.0));
            assert!(!shows && next.read.is_none(), "epoch {no}");
            watch = next;
        }
        let (stuck, shows) = watch.after(epoch(900, WRITES), Some(1.0));
        assert!(shows && stuck.read == Some(900_000), "{stuck:?}");
        let (reached, shows) = watch.after(epoch(5000, READ), Some(1.0));
        assert!(shows && (reached.read, reached.unreached) == (Some(5_000_000), 0), "{reached:?}");
        // Nothing was to be reached.
        let (computes, shows) = watch.after(epoch(1000, HALF), None);
        assert!(!shows && computes.unreached == 0);
    }

    #[test]
    fn rates_are_those_of_the_workers_that_there_are() {
        let (one, _) = Watch::default().after(epoch(1000, COMPUTED), None);
        let two = EpochFacts { workers: 2, ..epoch(900, COMPUTED) };
        let (watch, shows) = Watch { changes: 1, slow: 1, ..one }.after(two, None);
        assert!(shows);
        assert_eq!((watch.computed, watch.workers), (Some(900_000), 2), "one alone had a thousand");
        assert_eq!((watch.changes, watch.slow), (1, 0), "changes are few whoever works");
    }

    #[test]
    fn two_epochs_in_a_row_change_it_and_one_does_not() {
        let (watch, _) = Watch::default().after(epoch(850, READ), Some(1.0));
        let (watch, now) = watch.considered("a", true);
        assert!(!now);
        let (watch, now) = watch.considered("a", false);
        assert!(!now);
        let (watch, now) = watch.considered("a", true);
        assert!(!now);
        let (watch, now) = watch.considered("a", true);
        assert!(now);
        assert_eq!(watch.left, [Tried { choice: "a".into(), rate: 850_000 }]);
        assert_eq!((watch.slow, watch.read), (0, None), "what comes next begins anew");
    }

    proptest! {
        /// Whatever epochs show: changes are few, and two of them are never next to each other.
        #[test]
        fn nothing_flaps(better in proptest::collection::vec(any::<bool>(), 0..60)) {
            let (mut watch, mut changes, mut since) = (Watch::default(), 0, 0);
            for better in better {
                let (next, now) = watch.considered("a", better);
                since += 1;
                if now {
                    prop_assert!(since >= IN_A_ROW && better);
                    (changes, since) = (changes + 1, 0);
                }
                watch = next;
            }
            prop_assert!(changes <= MOST_CHANGES);
        }
    }
}
