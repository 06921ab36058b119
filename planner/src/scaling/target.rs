//! The number of workers of a running cluster, again and again: samples in, a target out.
//!
//! Every few seconds the dispatcher hands over what it has measured so far ([`ScalingEvent`]). The difference to the previous
//! sample is a window. It gives the rows per second of a worker's time, and the rate at which readers take rows while they do
//! not wait. The second rate divided by the first is the number of workers that a job needs. Times come with the events.
//!
//! What is learned: where more workers did not bring the rows that they should have brought, something that they share is
//! the bottleneck. The job then asks for no more than reach the rate that was seen, also in its later epochs, until a worker's own
//! rate changes, or the rate of all, or more workers are tried once more after some time.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_types::PriorityShares;

use super::ceiling::Ceilings;
use super::known::IterationRates;
use super::pool::{JobShare, PoolJob, scale_pool, share, whole};
use super::range::TargetRange;
use super::sample::JobSample;
use super::{DEFAULT_MAX_WORKERS, WorkerLimits, load};
use crate::format::count;

/// Jobs that hold a larger fraction of the threads wait for threads, and get them by their priorities and weights.
const THREADS_SHORT: f64 = 0.85;
/// Readers that wait for a larger fraction of their time get the number that was computed, whatever the error.
const MAX_WAIT: f64 = 0.05;
/// How long it is remembered, between two epochs of a job, what limits its workers together.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// What the loop is set to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingSettings {
    /// The fewest workers, also while no job runs.
    pub min_workers: u64,
    /// The most workers.
    pub max_workers: u64,
    /// Relative error of the measurements: a target changes where more than this shows that it is wrong.
    pub relative_error: f64,
    /// How long fewer workers must have been enough before the target falls.
    pub scale_down_after: Duration,
}

impl Default for ScalingSettings {
    fn default() -> Self {
        Self {
            min_workers: 0,
            max_workers: DEFAULT_MAX_WORKERS,
            // Windows of some seconds differ by that much on a busy machine.
            relative_error: 0.1,
            // Long against the windows, short against epochs of minutes.
            scale_down_after: Duration::from_secs(30),
        }
    }
}

/// Something that happened to the cluster.
#[derive(Debug, Clone, PartialEq)]
pub enum ScalingEvent {
    /// A regular sample.
    Sampled {
        /// When, by a monotonic clock.
        at: Duration,
        /// Workers that run and that the target counts.
        workers: u64,
        /// The fraction of their CPU threads that jobs held since the sample before; none if it is not known.
        threads_busy: Option<f64>,
        /// The jobs that run.
        jobs: Vec<JobSample>,
    },
}

/// The number of workers that should run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScalingTarget {
    /// The number; 0 while no job runs.
    pub workers: u64,
    /// One sentence for a person.
    pub reason: String,
    /// What each running job would need alone, in the order of the sample; 0 while too little is known.
    pub jobs: Vec<(String, u64)>,
    /// What each of them gets of these workers, in the same order.
    pub shares: Vec<JobShare>,
}

/// The loop. It keeps no time and draws nothing at random: the same events give the same targets.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::time::Duration;
/// use caju_planner::{JobSample, ScalingEvent, ScalingLoop, ScalingSettings};
///
/// let mut scaling = ScalingLoop::new(ScalingSettings::default());
/// assert_eq!(scaling.target().workers, 0);
/// let at = |s: u64| ScalingEvent::Sampled {
///     at: Duration::from_secs(s),
///     workers: 1,
///     threads_busy: None,
///     // The worker gives 100 rows/s. The reader waits three quarters of its time: it could take 400.
///     jobs: vec![JobSample {
///         iteration: 1, job: "train".into(), rows: 100 * s, busy_s: s as f64, workers: 1,
///         readers: BTreeMap::from([(7, (100 * s, 0.75 * s as f64, 0.25 * s as f64))]),
///         ..JobSample::default()
///     }],
/// };
/// scaling.apply(at(5));
/// assert_eq!(scaling.apply(at(10)).workers, 4);
/// ```
#[derive(Debug, Clone, Default)]
pub struct ScalingLoop {
    settings: ScalingSettings,
    jobs: BTreeMap<u64, IterationRates>,
    /// By the names of jobs that ran lately: what limits their workers together, and when that was last known.
    ceilings: BTreeMap<String, (Ceilings, Duration)>,
    at: Duration,
    workers: u64,
    target: ScalingTarget,
    /// Since when fewer workers would be enough.
    fewer_since: Option<Duration>,
    /// Whether jobs held nearly all threads of the workers before the last sample.
    are_threads_short: bool,
    /// The samples since then without that.
    samples_with_free_threads: u32,
}

impl ScalingLoop {
    /// Without any sample. The target is the fewest workers.
    pub fn new(settings: ScalingSettings) -> Self {
        let reason = "No job runs.".to_string();
        let target = ScalingTarget { workers: settings.min_workers, reason, ..ScalingTarget::default() };
        Self { settings, target, ..Self::default() }
    }

    /// The present target.
    pub fn target(&self) -> &ScalingTarget {
        &self.target
    }

    /// Takes an event, and returns the target that follows from it.
    pub fn apply(&mut self, event: ScalingEvent) -> &ScalingTarget {
        let ScalingEvent::Sampled { at, workers, threads_busy, jobs } = event;
        let window_s = at.saturating_sub(self.at).as_secs_f64();
        let running: Vec<u64> = jobs.iter().map(|j| j.iteration).collect();
        self.jobs.retain(|iteration, _| running.contains(iteration));
        for job in jobs {
            let known = self.jobs.entry(job.iteration).or_insert_with(|| {
                // An epoch of the job before this one has met the same stores.
                let ceilings = self.ceilings.get(&job.job).map_or_else(Ceilings::default, |(of, _)| *of);
                IterationRates { ceilings, ..IterationRates::default() }
            });
            known.record(job, window_s);
            if known.ceilings == Ceilings::default() {
                self.ceilings.remove(&known.last.job);
            } else {
                self.ceilings.insert(known.last.job.clone(), (known.ceilings, at));
            }
        }
        self.ceilings.retain(|_, (_, known)| at.saturating_sub(*known) < REMEMBERED);
        self.record_threads(threads_busy, workers > self.workers);
        (self.at, self.workers) = (at, workers);
        self.decide(&running);
        &self.target
    }

    /// Whether threads are short is known from several samples: the rates of jobs are means over some, and new workers begin with
    /// free threads.
    fn record_threads(&mut self, busy: Option<f64>, have_workers_come: bool) {
        let Some(busy) = busy else { return };
        if busy > THREADS_SHORT {
            (self.are_threads_short, self.samples_with_free_threads) = (true, 0);
        } else if have_workers_come {
            self.samples_with_free_threads = 0;
        } else {
            self.samples_with_free_threads += 1;
            self.are_threads_short &= self.samples_with_free_threads < 2;
        }
    }

    fn limits(&self) -> WorkerLimits {
        let min = self.settings.min_workers.max(1);
        WorkerLimits::new(min, self.settings.max_workers.max(min)).unwrap_or_default()
    }

    /// The fewest workers while jobs run: one, unless all of them have workers in their readers' own processes.
    fn fewest(&self, known: &[&IterationRates]) -> u64 {
        let is_local = known.iter().all(|k| k.last.local_workers() > 0.0);
        if is_local { self.settings.min_workers.min(self.limits().max()) } else { self.limits().min() }
    }

    fn decide(&mut self, running: &[u64]) {
        if running.is_empty() {
            return self.idle();
        }
        let known: Vec<&IterationRates> = running.iter().filter_map(|i| self.jobs.get(i)).collect();
        let fractions = {
            let busy = known.iter().filter(|k| k.is_busy());
            let shares = PriorityShares::among(busy.map(|k| k.last.priority));
            let loads: Vec<_> = known.iter().map(|k| k.load(&shares)).collect();
            load::fractions(&loads, self.are_threads_short)
        };
        let needs: Vec<Option<f64>> = known.iter().zip(&fractions).map(|(k, of)| k.need(*of)).collect();
        let jobs = (known.iter().zip(&needs))
            .map(|(k, need)| (k.last.job.clone(), need.map_or(0, |need| whole(k.beyond_local(need)))))
            .collect();
        let fewest = self.fewest(&known);
        let total = |factor: f64| {
            let pool = pool(&known, &needs, factor);
            let is_local = pool.iter().all(|job| job.busy_workers <= 0.0);
            let workers = scale_pool(&pool, self.limits()).map_or(self.limits().min(), |p| p.workers);
            if is_local { fewest } else { workers }
        };
        let error = self.settings.relative_error;
        let mut range = TargetRange { low: total(1.0 - error), best: total(1.0), high: total(1.0 + error) };
        let reason = self.reason(&known, &needs, &fractions, range.best);
        let begins = self.target.jobs.is_empty();
        if begins {
            self.fewer_since = None;
        }
        let present =
            if begins { self.workers.max(self.target.workers).max(range.best) } else { self.target.workers };
        if known.iter().any(|k| k.ceilings.rate().is_none() && k.wait > MAX_WAIT) {
            // Readers that wait show that the error does not explain the difference.
            range.low = range.best;
        }
        // Readers that have not asked for long, such as those of a notebook, will not show what they need.
        let idle_s = self.settings.scale_down_after.as_secs_f64();
        let is_known =
            known.iter().zip(&needs).all(|(k, need)| need.is_some() || k.last.readers_idle_s >= idle_s);
        if !is_known {
            // What is not known yet is no reason to take workers away.
            range.high = range.high.max(present);
        }
        let pool = pool(&known, &needs, 1.0);
        let next = ScalingTarget { reason, jobs, ..ScalingTarget::default() };
        self.settle(range, present.clamp(fewest, self.limits().max()), next, is_known);
        self.target.shares = shares(&pool, self.target.workers);
    }

    /// No job runs. The next epoch may be about to begin, so the workers are kept for as long as others that are not needed.
    fn idle(&mut self) {
        let (at_least, after) = (self.settings.min_workers, self.settings.scale_down_after);
        if !self.target.jobs.is_empty() {
            self.fewer_since = None;
        }
        let since = *self.fewer_since.get_or_insert(self.at);
        let due = self.target.workers <= at_least || self.at.saturating_sub(since) >= after;
        let workers = if due { at_least } else { self.target.workers };
        let falls =
            format!(" The target falls when that has been so for {}.", caju_types::format_duration(after));
        let reason = format!("No job runs.{}", if due { "" } else { &falls });
        self.target = ScalingTarget { workers, reason, ..ScalingTarget::default() };
    }

    /// Moves the target: up at once, down when fewer workers were enough for long enough. `is_known`: every job has shown what
    /// it needs.
    fn settle(&mut self, range: TargetRange, present: u64, next: ScalingTarget, is_known: bool) {
        let wanted = range.settle(present);
        let workers = if wanted >= present {
            self.fewer_since = None;
            wanted
        } else {
            let since = *self.fewer_since.get_or_insert(self.at);
            let due = self.at.saturating_sub(since) >= self.settings.scale_down_after;
            if due {
                self.fewer_since = None;
            }
            if due { wanted } else { present }
        };
        let after = caju_types::format_duration(self.settings.scale_down_after);
        let held = match workers {
            n if n > wanted => {
                format!(" {wanted} would be enough: the target falls when that has been so for {after}.")
            }
            n if n != range.best && is_known => {
                format!(" {} as measured, which is within the error.", range.best)
            }
            n if n != range.best => " The number stays until every job has shown its rates.".to_string(),
            _ => String::new(),
        };
        self.target = ScalingTarget { workers, reason: next.reason + &held, ..next };
    }

    fn reason(
        &self,
        known: &[&IterationRates],
        needs: &[Option<f64>],
        fractions: &[f64],
        best: u64,
    ) -> String {
        let of_job = |((k, need), fraction): ((&&IterationRates, &Option<f64>), &f64)| match need {
            None => format!("`{}` has shown no rates yet", k.last.job),
            Some(need) => format!("`{}` {}", k.last.job, k.describe(*need, *fraction)),
        };
        let mut jobs: Vec<String> =
            known.iter().zip(needs).zip(fractions).take(SHOWN_JOBS).map(of_job).collect();
        if known.len() > SHOWN_JOBS {
            jobs.push(count((known.len() - SHOWN_JOBS) as u64, "more job"));
        }
        let capped = if best >= self.settings.max_workers { "These are the most allowed: " } else { "" };
        format!("{capped}{}.", jobs.join("; "))
    }
}

/// The jobs with what they need beyond the workers in their readers' processes, times a factor.
fn pool(known: &[&IterationRates], needs: &[Option<f64>], factor: f64) -> Vec<PoolJob> {
    let job = |(k, need): (&&IterationRates, &Option<f64>)| PoolJob {
        name: k.last.job.clone(),
        priority: i64::from(k.last.priority.level),
        weight: k.last.priority.weight(),
        busy_workers: need.map_or_else(|| k.first_need(), |n| k.beyond_local(n * factor)),
        spread: 0.0,
    };
    known.iter().zip(needs).map(job).collect()
}

/// What each job gets of a number of workers.
fn shares(pool: &[PoolJob], workers: u64) -> Vec<JobShare> {
    if workers == 0 {
        return pool.iter().map(|job| share(job, 0)).collect();
    }
    let exactly = WorkerLimits::new(workers, workers).and_then(|limits| scale_pool(pool, limits));
    exactly.map_or_else(|_| Vec::new(), |scaling| scaling.jobs)
}

/// The jobs that a reason describes.
const SHOWN_JOBS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_short_until_two_samples_show_free_ones() {
        let mut scaling = ScalingLoop::default();
        for (busy, have_workers_come, are_short) in [
            (None, false, false),
            (Some(0.9), false, true),
            (None, false, true),
            (Some(0.5), false, true),
            // New workers have free threads.
            (Some(0.5), true, true),
            (Some(0.5), false, true),
            (Some(0.5), false, false),
            (Some(0.8), false, false),
        ] {
            scaling.record_threads(busy, have_workers_come);
            assert_eq!(scaling.are_threads_short, are_short, "{busy:?}");
        }
    }
}
