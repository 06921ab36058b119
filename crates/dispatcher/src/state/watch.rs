//! Whether a decision holds what it promised.
//!
//! Pure: epochs go in, at most one change of mind comes out. A snapshot that turns out slower than computing,
//! twice in a row and clearly, is given up; after that the job computes to its end. So nothing can flap.

use serde::{Deserialize, Serialize};

use super::Modes;

/// Reading must be slower than computing by this much, in percent, to count.
const CLEARLY: u64 = 10;
/// And in so many epochs in a row.
const IN_A_ROW: u32 = 2;

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
}

/// What is remembered of a job's epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// The best rate of computing seen, in rows per 1000 seconds.
    pub computed: Option<u64>,
    /// The last rate of reading, likewise.
    pub read: Option<u64>,
    /// Epochs in a row that read clearly slower than computing went.
    pub slow: u32,
    /// Whether the decision was given up.
    pub given_up: bool,
}

impl Watch {
    /// Rows in milliseconds as a rate.
    pub fn rate(rows: u64, ms: u64) -> u64 {
        let rate = u128::from(rows) * 1_000_000 / u128::from(ms.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// After one more epoch: what is remembered, and whether the decision is given up now.
    #[must_use]
    pub fn after(self, epoch: EpochFacts) -> (Self, bool) {
        let mut next = self;
        if epoch.rows == 0 || !epoch.waited {
            return (next, false);
        }
        let rate = Self::rate(epoch.rows, epoch.ms);
        match epoch.modes {
            Modes { put: 0, get: 0, .. } => {
                next.computed = Some(self.computed.map_or(rate, |r| r.max(rate)));
            }
            Modes { compute: 0, put: 0, .. } => {
                next.read = Some(rate);
                let slow = self.computed.is_some_and(|c| rate < c - c / 100 * CLEARLY);
                next.slow = if slow { self.slow + 1 } else { 0 };
            }
            // Mixed epochs, and those that write, are no measure of either.
            _ => {}
        }
        let give_up = next.slow >= IN_A_ROW && !self.given_up;
        next.given_up |= give_up;
        (next, give_up)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn epoch(rate: u64, modes: Modes) -> EpochFacts {
        EpochFacts { rows: rate, ms: 1000, modes, waited: true }
    }

    const READ: Modes = Modes { compute: 0, put: 0, get: 4, fell_back: 0, kept: 0 };
    const COMPUTED: Modes = Modes { compute: 4, put: 0, get: 0, fell_back: 0, kept: 0 };

    #[test]
    fn a_slow_snapshot_is_given_up_after_two_epochs() {
        let (w, _) = Watch::default().after(epoch(1000, COMPUTED));
        let (w, now) = w.after(epoch(850, READ));
        assert!(!now);
        let (w, now) = w.after(epoch(850, READ));
        assert!(now && w.given_up);
    }

    #[test]
    fn noise_and_slow_readers_change_nothing() {
        let (mut w, _) = Watch::default().after(epoch(1000, COMPUTED));
        for rate in [850, 950, 850, 1200, 850, 1000] {
            let (next, now) = w.after(epoch(rate, READ));
            assert!(!now);
            w = next;
        }
        let idle = EpochFacts { waited: false, ..epoch(10, READ) };
        for _ in 0..5 {
            let (next, now) = w.after(idle);
            assert!(!now);
            w = next;
        }
    }

    proptest! {
        #[test]
        fn the_mind_is_changed_at_most_once(
            epochs in proptest::collection::vec((1u64..3000, 0u8..3, any::<bool>()), 0..60)
        ) {
            let mut watch = Watch::default();
            let mut changes = 0;
            for (rate, kind, waited) in epochs {
                let modes = match kind {
                    0 => COMPUTED,
                    1 => READ,
                    _ => Modes { compute: 1, put: 2, get: 1, fell_back: 0, kept: 0 },
                };
                let (next, now) = watch.after(EpochFacts { waited, ..epoch(rate, modes) });
                changes += u32::from(now);
                watch = next;
            }
            prop_assert!(changes <= 1);
        }
    }
}
