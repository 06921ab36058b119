//! One number of workers for several jobs.
//!
//! Jobs share the workers' cores and network, so what they need of these adds up. A stage with a bounded parallelism runs
//! once per job and worker, so such jobs need at least this number of workers to spread over, whatever else runs there. Where the
//! workers are too few, jobs of a higher priority are served first; jobs of the same priority share what is left, each by
//! its weight, and what one of them does not need goes to the others.

use caju_types::{Error, Result};

use super::WorkerLimits;
use super::choose::SAME_RATE;
use super::curve::delivered_per_row;
use crate::format;
use crate::model::{Model, sharers};
use crate::profile::Profile;

/// What a job needs of the workers.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolJob {
    /// Its name.
    pub name: String,
    /// Jobs of a higher priority are served first.
    pub priority: i64,
    /// Its fraction of the workers, relative to those of other jobs of the same priority; above 0.
    pub weight: f64,
    /// The workers that it would keep busy by itself, as a fractional number, while its consumers do not wait.
    pub busy_workers: f64,
    /// The workers that it must be spread over, because one of its stages runs only so often at once on each.
    pub spread: f64,
}

impl PoolJob {
    /// What a profile's pipeline needs when it computes, at the priority 0 and the weight 1. A pipeline whose consumers'
    /// demand is not known, and that no store limits, needs everything.
    ///
    /// # Errors
    /// `InvalidArgument` if a field of the profile is wrong.
    pub fn of_profile(name: &str, profile: &Profile) -> Result<Self> {
        profile.validate()?;
        // A single worker, so that seconds per row are worker-seconds per row.
        let mut alone = profile.clone().canonical();
        alone.hints.clear();
        alone.existing.clear();
        alone.observed.clear();
        alone.measured.clear();
        alone.cluster.workers = 1;
        let demand_s = alone.consumer.rows_per_s.take().map_or(0.0, |rate| delivered_per_row(&alone) / rate);
        let store = alone.source_store.read_bytes_per_s.take();
        let spread_s = compute_s_per_row(&alone);
        alone.stages.iter_mut().for_each(|s| s.max_parallelism = None);
        // What jobs compute together counts for each of them in part.
        let busy_s = compute_s_per_row(&alone) / sharers(&alone);
        let bytes: f64 = alone.stages.iter().map(|s| s.io_bytes_per_row).sum();
        let pace_s = demand_s.max(store.map_or(0.0, |b| bytes / b));
        let per = |s: f64| if pace_s > 0.0 { s / pace_s } else { f64::INFINITY };
        let (busy_workers, spread) = (per(busy_s), if spread_s > busy_s { per(spread_s) } else { 0.0 });
        Ok(Self { name: name.to_owned(), priority: 0, weight: 1.0, busy_workers, spread })
    }
}

fn compute_s_per_row(profile: &Profile) -> f64 {
    Model::new(profile).candidates().first().map_or(0.0, |c| c.steady.s_per_row)
}

/// What a job gets.
#[derive(Debug, Clone, PartialEq)]
pub struct JobShare {
    /// The job.
    pub name: String,
    /// Its priority.
    pub priority: i64,
    /// Its weight among jobs of the same priority.
    pub weight: f64,
    /// The number of workers that it would need alone.
    pub alone: u64,
    /// The workers' worth of time that it gets.
    pub workers: f64,
    /// The fraction of what it needs that it gets, 0 to 1.
    pub served: f64,
}

/// The number of workers for several jobs.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolScaling {
    /// The number.
    pub workers: u64,
    /// What each job gets, in the order of the jobs.
    pub jobs: Vec<JobShare>,
}

/// The fewest workers with which the consumers of no job wait, within the limits, and what each job gets of them.
///
/// # Errors
/// `InvalidArgument` for a weight that is no positive number, or a need that is negative.
///
/// ```
/// use caju_planner::{PoolJob, WorkerLimits, scale_pool};
/// let job = |name: &str, priority, busy_workers| PoolJob {
///     name: name.into(), priority, weight: 1.0, busy_workers, spread: 0.0,
/// };
/// let jobs = [job("train", 0, 2.3), job("eval", 0, 0.4), job("sweep", -1, 5.0)];
/// let all = scale_pool(&jobs, WorkerLimits::default())?;
/// assert_eq!(all.workers, 8);
/// let few = scale_pool(&jobs, WorkerLimits::new(1, 4)?)?;
/// let shares: Vec<f64> = few.jobs.iter().map(|j| j.workers).collect();
/// assert_eq!((few.workers, shares[0], shares[1]), (4, 2.3, 0.4));
/// assert!((shares[2] - 1.3).abs() < 1e-9, "the lowest priority gets what is left");
/// # Ok::<(), caju_types::Error>(())
/// ```
pub fn scale_pool(jobs: &[PoolJob], limits: WorkerLimits) -> Result<PoolScaling> {
    for job in jobs {
        if !(job.weight > 0.0 && job.weight.is_finite()) {
            let (name, weight) = (&job.name, job.weight);
            return Err(Error::invalid(format!(
                "job `{name}`: weight: expected a number > 0, found {weight}"
            )));
        }
        if !(job.busy_workers >= 0.0 && job.spread >= 0.0) {
            return Err(Error::invalid(format!(
                "job `{}`: expected needs >= 0, found {} and {}",
                job.name, job.busy_workers, job.spread
            )));
        }
    }
    let busy: f64 = jobs.iter().map(|j| j.busy_workers).sum();
    let spread = jobs.iter().map(|j| j.spread).fold(0.0, f64::max);
    let workers = limits.clamp(whole(busy.max(spread)));
    let mut shares: Vec<JobShare> = jobs.iter().map(|job| share(job, workers)).collect();
    let mut priorities: Vec<i64> = jobs.iter().map(|j| j.priority).collect();
    priorities.sort_unstable_by(|a, b| b.cmp(a));
    priorities.dedup();
    #[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
    let mut left = workers as f64;
    for priority in priorities {
        let class: Vec<usize> = (0..jobs.len()).filter(|&i| jobs[i].priority == priority).collect();
        for (i, got) in fair(jobs, &class, left) {
            left = (left - got).max(0.0);
            shares[i].workers = got;
            let need = jobs[i].busy_workers;
            let busy = if need > got { got / need } else { 1.0 };
            shares[i].served = shares[i].served.min(busy);
        }
    }
    Ok(PoolScaling { workers, jobs: shares })
}

/// A job's share before anything is divided: limited by what it is spread over.
#[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
pub(super) fn share(job: &PoolJob, workers: u64) -> JobShare {
    let spread = if job.spread > workers as f64 { workers as f64 / job.spread } else { 1.0 };
    let alone = whole(job.busy_workers.max(job.spread));
    let (priority, weight) = (job.priority, job.weight);
    JobShare { name: job.name.clone(), priority, weight, alone, workers: 0.0, served: spread }
}

/// Divides what is left among jobs of one priority by their weights; no job gets more than it needs.
fn fair(jobs: &[PoolJob], class: &[usize], left: f64) -> Vec<(usize, f64)> {
    // Jobs that need least for their weight are served first: workers that they leave over go to the others.
    let per_weight = |i: usize| jobs[i].busy_workers / jobs[i].weight;
    let mut order = class.to_vec();
    order.sort_by(|&a, &b| per_weight(a).total_cmp(&per_weight(b)).then(a.cmp(&b)));
    let mut weights: f64 = order.iter().map(|&i| jobs[i].weight).sum();
    let mut left = left;
    let mut out = Vec::with_capacity(order.len());
    for i in order {
        let quota = left * (jobs[i].weight / weights).min(1.0);
        let got = jobs[i].busy_workers.min(quota);
        (left, weights) = (left - got, weights - jobs[i].weight);
        out.push((i, got));
    }
    out
}

/// The whole number of workers for a fractional need, at least 1.
pub(super) fn whole(need: f64) -> u64 {
    format::to_u64((need * (1.0 - SAME_RATE)).ceil()).max(1)
}
