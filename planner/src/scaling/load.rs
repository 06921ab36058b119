//! How much the jobs that use the same workers slow each other down.

/// The steps of the sum per factor of e. The sum is exact to four digits with two: its terms are smooth.
const STEPS: f64 = 8.0;
/// How far the range of the sum goes below the smallest share, as a power of e: what lies outside is below 1e-5.
const BELOW: f64 = 12.0;
/// How far it goes above the largest share, likewise.
const ABOVE: f64 = 3.5;

/// A job on the workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct JobLoad {
    /// The part of a worker that it gets, relative to the other jobs that want it at the same time.
    pub(super) share: f64,
    /// The fraction of the workers' time in which it wants it.
    pub(super) busy: f64,
}

/// What each of several jobs gets of a worker while it wants it, as a fraction of what it would get alone.
///
/// Workers divide their threads by the shares, and what else jobs wait for equally. Where threads are not short, the larger
/// fraction counts: which of them a job waits for is not known. A need may be taken for too large then, which further workers
/// show, and never for too small because of a priority, which nothing would show.
pub(super) fn fractions(jobs: &[JobLoad], are_threads_short: bool) -> Vec<f64> {
    let equal: Vec<JobLoad> = jobs.iter().map(|job| JobLoad { share: 1.0, ..*job }).collect();
    let by_share = divided(jobs);
    if are_threads_short || equal == jobs {
        return by_share;
    }
    by_share.into_iter().zip(divided(&equal)).map(|(by_share, equal)| by_share.max(equal)).collect()
}

/// What each of several jobs gets of what is divided by their shares, while it wants it.
///
/// Whether another job wants it is taken for independent of whether this one does. A job with the share `w` then gets the mean of
/// `w / (w + S)`, where `S` is the sum of the shares of those others that want it. Since `1 / a` is the integral of `exp(-a x)` over `x`, that is the integral of
/// `w exp(-w x)` times a factor for each other job: `1 - busy + busy exp(-share x)`. It is summed over `ln x`, which makes one
/// sum of all jobs' factors enough for all of them.
fn divided(jobs: &[JobLoad]) -> Vec<f64> {
    let shares = || jobs.iter().map(|job| job.share);
    let (least, most) = (shares().fold(f64::INFINITY, f64::min), shares().fold(0.0, f64::max));
    let alone = vec![1.0; jobs.len()];
    if jobs.len() < 2 || !(least > 0.0 && most.is_finite()) {
        return alone;
    }
    let (from, to) = (-most.ln() - BELOW, -least.ln() + ABOVE);
    let mut sums = vec![0.0; jobs.len()];
    let (mut at, mut factors) = (from, vec![0.0; jobs.len()]);
    while at < to {
        let x = at.exp();
        for (factor, job) in factors.iter_mut().zip(jobs) {
            // A factor of 0 would take away those of the others.
            *factor = (1.0 - job.busy + job.busy * (-job.share * x).exp()).max(f64::MIN_POSITIVE).ln();
        }
        let all: f64 = factors.iter().sum();
        for ((sum, job), factor) in sums.iter_mut().zip(jobs).zip(&factors) {
            *sum += job.share * x * (all - factor - job.share * x).exp() / STEPS;
        }
        at += 1.0 / STEPS;
    }
    sums.into_iter().map(|sum| sum.clamp(0.0, 1.0)).collect()
}

#[cfg(test)]
mod tests {
    use caju_types::rng::RowRng;
    use proptest::prelude::*;

    use super::*;

    fn of(jobs: &[(f64, f64)]) -> Vec<f64> {
        divided(&jobs.iter().map(|(share, busy)| JobLoad { share: *share, busy: *busy }).collect::<Vec<_>>())
    }

    fn is_near(found: &[f64], wanted: &[f64]) -> bool {
        found.len() == wanted.len()
            && found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 0.001 + 0.002 * b)
    }

    #[test]
    fn known_cases() {
        assert!(is_near(&of(&[(1.0, 1.0)]), &[1.0]), "a job alone");
        assert!(is_near(&of(&[(3.0, 1.0), (3.0, 1.0), (3.0, 1.0), (3.0, 1.0)]), &[0.25; 4]), "equal shares");
        assert!(is_near(&of(&[(16.0, 1.0), (1.0, 1.0)]), &[16.0 / 17.0, 1.0 / 17.0]));
        assert!(is_near(&of(&[(1.0, 1.0), (1.0, 0.0)]), &[1.0, 0.5]), "one that wants nothing");
        assert!(is_near(&of(&[(1.0, 1.0), (1.0, 0.5)]), &[0.75, 0.5]));
        assert!(is_near(&of(&[(256e6, 1.0), (1e-3, 1.0)]), &[1.0, 0.0]));
    }

    /// A job that waits for storage is not slowed down by the priority of another one.
    #[test]
    fn a_low_priority_makes_no_need_smaller() {
        let jobs = [JobLoad { share: 1.0, busy: 1.0 }, JobLoad { share: 1.0 / 256.0, busy: 1.0 }];
        assert!(is_near(&fractions(&jobs, false), &[256.0 / 257.0, 0.5]));
        assert!(is_near(&fractions(&jobs, true), &[256.0 / 257.0, 1.0 / 257.0]), "it waits for threads");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        /// The mean over drawn moments, at each of which every job wants the worker or does not.
        #[test]
        fn fractions_are_those_of_drawn_moments(
            jobs in prop::collection::vec((prop::sample::select(vec![0.25, 1.0, 3.0, 16.0]), 0.0f64..=1.0), 1..6),
            seed in any::<u64>(),
        ) {
            const MOMENTS: u32 = 20_000;
            let mut rng = RowRng::new(seed, 0);
            let mut sums = vec![0.0; jobs.len()];
            for _ in 0..MOMENTS {
                let wants: Vec<bool> = jobs.iter().map(|(_, busy)| rng.uniform() < *busy).collect();
                for (at, sum) in sums.iter_mut().enumerate() {
                    let others = jobs.iter().zip(&wants).enumerate();
                    let others: f64 =
                        others.filter(|(other, (_, wants))| *other != at && **wants).map(|(_, (job, _))| job.0).sum();
                    *sum += jobs[at].0 / (jobs[at].0 + others) / f64::from(MOMENTS);
                }
            }
            for (found, drawn) in of(&jobs).into_iter().zip(sums) {
                prop_assert!((found - drawn).abs() < 0.02, "{found} instead of {drawn}");
            }
        }
    }
}
