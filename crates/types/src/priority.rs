//! The priority of a job among others that use the same workers.

use serde::{Deserialize, Serialize};

/// How many times as much of a contended worker a job gets as one that is a level below it.
const LEVEL: f64 = 16.0;
/// The most levels that count between two jobs: a job that is far below others still gets a little.
const MAX_LEVELS: i64 = 2;

/// The priority of a job, and its weight among jobs of the same priority. They count where the workers are too few for all
/// jobs, and where several jobs want a worker's threads at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPriority {
    /// The priority. Jobs of a higher one are served first.
    #[serde(rename = "priority")]
    pub level: i32,
    /// The weight in thousandths, above 0.
    pub weight_milli: u32,
}

impl Default for JobPriority {
    fn default() -> Self {
        Self { level: 0, weight_milli: 1000 }
    }
}

impl JobPriority {
    /// The fraction of the workers that the job gets, relative to those of other jobs of the same priority.
    pub fn weight(self) -> f64 {
        f64::from(self.weight_milli) / 1000.0
    }

    /// The fraction of a worker's threads that the job gets, relative to those of other jobs that want them at the same time.
    /// `highest` is the highest priority among them. Each level below it divides the weight by 16, and no more than two levels
    /// count.
    ///
    /// ```
    /// use caju_types::JobPriority;
    /// let urgent = JobPriority { level: 5, ..JobPriority::default() };
    /// assert_eq!((urgent.share_among(5), JobPriority::default().share_among(5)), (1.0, 1.0 / 256.0));
    /// assert_eq!(JobPriority::default().share_among(0), 1.0);
    /// ```
    pub fn share_among(self, highest: i32) -> f64 {
        let below = (i64::from(highest) - i64::from(self.level)).clamp(0, MAX_LEVELS);
        let levels = i32::try_from(below).unwrap_or_default();
        // A weight of 0 is refused where it is given.
        self.weight().max(0.001) / LEVEL.powi(levels)
    }
}
