//! Confidence and hysteresis: when a new number is worth a change.

use caju_types::Result;

use super::{WorkerLimits, scale};
use crate::profile::Profile;

/// The number of workers if the measurements are exact, and if they are off.
///
/// ```
/// use caju_planner::TargetRange;
/// let range = TargetRange { low: 5, best: 6, high: 7 };
/// assert_eq!((range.settle(5), range.settle(7)), (5, 7), "within the error nothing changes");
/// assert_eq!((range.settle(3), range.settle(12)), (6, 6), "beyond it, one step leads to the best number");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetRange {
    /// If the consumers take less by the error than was measured.
    pub low: u64,
    /// As measured.
    pub best: u64,
    /// If the consumers take more by the error.
    pub high: u64,
}

impl TargetRange {
    /// The numbers for a profile whose ratio of demand to the workers' rates is known up to a relative error, 0 to 1.
    ///
    /// # Errors
    /// As [`scale`].
    pub fn of(profile: &Profile, limits: WorkerLimits, relative_error: f64) -> Result<Self> {
        let error = relative_error.clamp(0.0, 0.9);
        let at = |factor: f64| {
            let mut changed = profile.clone();
            changed.consumer.rows_per_s = changed.consumer.rows_per_s.map(|rate| rate * factor);
            scale(&changed, limits).map(|s| s.workers)
        };
        Ok(Self { low: at(1.0 - error)?, best: at(1.0)?, high: at(1.0 + error)? })
    }

    /// The number to go to from the present one: the present one, while the error could explain the difference.
    #[must_use]
    pub fn settle(self, present: u64) -> u64 {
        if (self.low..=self.high).contains(&present) { present } else { self.best }
    }
}
