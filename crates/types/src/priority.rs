//! The priority of a job among others that use the same workers.

use serde::{Deserialize, Serialize};

/// How many times as much of a contended worker a job gets as one that is a level below it.
const LEVEL: f64 = 16.0;
/// The most levels that count between two jobs: a job that is far below others still gets a little.
const MAX_LEVELS: usize = 2;

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
        // A weight of 0 is refused where it is given.
        f64::from(self.weight_milli.max(1)) / 1000.0
    }
}

/// What jobs get of a worker's threads that they want at the same time, by their priorities and weights.
///
/// Jobs of one priority divide the threads by their weights. A job gets 16 times as much as any job of the next lower priority,
/// and 256 times as much as those further below, at the least: where weights differ, the smallest one of the higher priority is
/// compared with the largest one of the lower.
///
/// ```
/// use caju_types::{JobPriority, PriorityShares};
/// let job = |level, weight_milli| JobPriority { level, weight_milli };
/// let shares = PriorityShares::among([job(1, 1000), job(1, 3000), job(0, 1000)]);
/// assert_eq!([job(1, 1000), job(1, 3000), job(0, 1000)].map(|j| shares.of(j)), [1.0, 3.0, 1.0 / 16.0]);
/// // A large weight does not make up for a lower priority.
/// let shares = PriorityShares::among([job(1, 1000), job(0, 1_000_000)]);
/// assert_eq!(shares.of(job(0, 1_000_000)), 1.0 / 16.0);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PriorityShares {
    /// The highest priority.
    highest: i32,
    /// By the number of levels below it: what weights are multiplied by.
    factors: [f64; MAX_LEVELS + 1],
}

impl Default for PriorityShares {
    fn default() -> Self {
        Self::among([])
    }
}

impl PriorityShares {
    /// Those of jobs that want threads at the same time.
    pub fn among(jobs: impl IntoIterator<Item = JobPriority> + Clone) -> Self {
        let highest = jobs.clone().into_iter().map(|job| job.level).max().unwrap_or(i32::MIN);
        let mut weights = [(f64::INFINITY, 0.0f64); MAX_LEVELS + 1];
        for job in jobs {
            let (least, most) = &mut weights[levels_below(highest, job.level)];
            (*least, *most) = (least.min(job.weight()), most.max(job.weight()));
        }
        let mut factors = [1.0; MAX_LEVELS + 1];
        // The smallest share of a level that has jobs, as it would be at the level of `below`.
        let mut least_share = f64::INFINITY;
        for (below, (least, most)) in weights.into_iter().enumerate() {
            if below > 0 {
                least_share /= LEVEL;
                factors[below] = factors[below - 1] / LEVEL;
            }
            if most > 0.0 {
                factors[below] = factors[below].min(least_share / most);
                least_share = least_share.min(factors[below] * least);
            }
        }
        Self { highest, factors }
    }

    /// That of one of these jobs, relative to those of the others; above 0.
    pub fn of(&self, job: JobPriority) -> f64 {
        job.weight() * self.factors[levels_below(self.highest, job.level)]
    }
}

/// How many levels a priority is below the highest one, as far as they count.
fn levels_below(highest: i32, level: i32) -> usize {
    let below = i64::from(highest) - i64::from(level);
    usize::try_from(below.max(0)).unwrap_or(MAX_LEVELS).min(MAX_LEVELS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(level: i32, weight_milli: u32) -> JobPriority {
        JobPriority { level, weight_milli }
    }

    #[test]
    fn known_shares() {
        let of = |jobs: &[JobPriority]| {
            let shares = PriorityShares::among(jobs.iter().copied());
            jobs.iter().map(|j| shares.of(*j)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[job(5, 1000)]), [1.0]);
        assert_eq!(of(&[job(i32::MAX, 1000), job(i32::MIN, 1000)]), [1.0, 1.0 / 256.0]);
        assert_eq!(
            of(&[job(2, 1000), job(1, 1000), job(0, 1000), job(-1, 1000)]),
            [1.0, 1.0 / 16.0, 1.0 / 256.0, 1.0 / 256.0]
        );
        assert_eq!(of(&[job(1, 4000), job(0, 2000), job(0, 1000)]), [4.0, 0.125, 0.0625]);
        assert_eq!(PriorityShares::default().of(job(0, 1000)), 1.0);
    }

    proptest! {
        /// No weight makes up for a lower priority, and jobs of one priority divide by their weights.
        #[test]
        fn priorities_come_before_weights(
            jobs in prop::collection::vec((-2i32..=2, 1u32..=1_000_000_000), 1..8),
        ) {
            let jobs: Vec<_> = jobs.into_iter().map(|(level, weight)| job(level, weight)).collect();
            let shares = PriorityShares::among(jobs.iter().copied());
            let highest = jobs.iter().map(|j| j.level).max().unwrap();
            for (a, b) in jobs.iter().flat_map(|a| jobs.iter().map(move |b| (a, b))) {
                let (of_a, of_b) = (shares.of(*a), shares.of(*b));
                prop_assert!(of_a > 0.0 && of_a.is_finite());
                if a.level == b.level {
                    prop_assert!((of_a / of_b / (a.weight() / b.weight()) - 1.0).abs() < 1e-9);
                }
                let [below_a, below_b] = [a, b].map(|j| levels_below(highest, j.level));
                if below_a < below_b {
                    prop_assert!(of_a >= 15.999 * of_b, "{a:?} {of_a} against {b:?} {of_b}");
                }
            }
        }
    }
}
