//! How many workers should run: samples of what workers and readers report go to the planner's loop, and its target comes back.
//!
//! The loop ([`caju_planner::ScalingLoop`]) is pure. Here its samples are made of the last reports. The target is not in the
//! journal. After a start workers and readers have the worker timeout to come back, and the first sample after that gives a
//! target that others may follow.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caju_planner::{JobSample, LocalWorkers, ScalingEvent, ScalingLoop, ScalingTarget};
use caju_proto::v1;
use caju_runtime::{OrderedMutex, catch};
use caju_types::WorkerId;
use tokio::sync::watch;

use super::context::Context;
use super::learning::Learning;
use super::reports::{ClientReport, Reports};
use super::served::ServedByWorker;
use crate::config::Timers;
use crate::locks;
use crate::state::{Feed, FeedId, Iteration, Mode, State, TargetWorkers, TaskState, Worker};

/// The loop, and its last target.
pub(crate) struct Scaling {
    context: Arc<Context>,
    learning: Arc<Learning>,
    planner: OrderedMutex<ScalingLoop>,
    target: watch::Sender<ScalingTarget>,
    /// When workers and readers have had the time to report after the start, by the monotonic clock.
    reported_by: Duration,
    /// Whether a sample was taken after that.
    is_known: AtomicBool,
}

impl Scaling {
    pub(super) fn new(context: Arc<Context>, learning: Arc<Learning>) -> Self {
        let Context { config, clock, .. } = context.as_ref();
        let planner = ScalingLoop::new(config.scaling);
        let target = watch::Sender::new(planner.target().clone());
        Self {
            planner: OrderedMutex::new(locks::SCALING, planner),
            target,
            reported_by: clock.now() + config.timers.worker_timeout,
            is_known: AtomicBool::new(false),
            learning,
            context,
        }
    }

    /// The target in a status; none if no target is computed.
    pub(super) fn status(&self, timers: &Timers) -> Option<v1::ScalingStatus> {
        if timers.scaling_interval.is_zero() {
            return None;
        }
        let target = self.target.borrow();
        let job = |(i, (job, workers)): (usize, &(String, u64))| {
            let share = target.shares.get(i);
            let (priority, weight) = share.map_or((0, 1.0), |s| (s.priority, s.weight));
            let (job, share) = (job.clone(), share.map_or(0.0, |s| (s.workers * 1000.0).round() / 1000.0));
            v1::JobWorkers { job, workers: *workers, priority, weight, share }
        };
        Some(v1::ScalingStatus {
            target_workers: target.workers,
            reason: target.reason.clone(),
            jobs: target.jobs.iter().enumerate().map(job).collect(),
        })
    }
}

impl Scaling {
    /// Samples at intervals, until the dispatcher stops.
    pub(crate) async fn scale_regularly(self: Arc<Self>) {
        loop {
            self.context.clock.sleep(self.context.config.timers.scaling_interval).await;
            if let Err(error) = catch("a sample for the target of workers", || self.sample_for_scaling()) {
                tracing::error!(%error, "the target of workers is computed again later");
            }
        }
    }

    /// Takes one sample, and publishes the target that follows.
    pub(crate) fn sample_for_scaling(&self) {
        let at = self.context.clock.now();
        let (workers, threads_busy, jobs) = self.context.store.read(|state| {
            let mut reports = self.context.reports.lock();
            let threads_busy = threads_busy(state, &mut reports);
            let running = state.iterations.values().filter(is_scaled);
            let is_silent = |id: WorkerId| is_silent(&self.context.config.timers, &reports, id, at);
            let counted =
                state.active_workers().filter(|w| !w.is_in_reader() && !is_silent(w.id)).count() as u64;
            let jobs: Vec<_> = running.map(|i| sample(state, &reports, i, is_silent)).collect();
            (counted, threads_busy, jobs)
        });
        // Readers that wait for boundaries have no epoch yet, and need a worker.
        let jobs = jobs.into_iter().chain(self.learning.samples(at)).collect();
        let mut planner = self.planner.lock();
        let target = planner.apply(ScalingEvent::Sampled { at, workers, threads_busy, jobs }).clone();
        drop(planner);
        let before = self.target.borrow().workers;
        if target.workers != before {
            tracing::info!(
                workers = target.workers,
                before,
                "the target of workers changed: {}",
                target.reason
            );
        }
        if at >= self.reported_by {
            self.is_known.store(true, Ordering::Release);
        }
        self.target.send_replace(target);
    }

    /// The last target; none in the first seconds after the start, when workers and readers may not have reported yet.
    pub(crate) fn known_target(&self) -> Option<ScalingTarget> {
        self.is_known.load(Ordering::Acquire).then(|| self.target.borrow().clone())
    }

    /// Whether at least one worker should run. While the target is not known, it should if an epoch is being read, which may be
    /// one from before a restart.
    pub(crate) fn needs_workers(&self) -> bool {
        if self.target.borrow().workers > 0 {
            return true;
        }
        let is_read = |state: &State| state.iterations.values().any(|i| is_scaled(&i));
        !self.is_known.load(Ordering::Acquire) && self.context.store.read(is_read)
    }

    /// The last target, and notices of later ones.
    pub(crate) fn scaling_target(&self) -> watch::Receiver<ScalingTarget> {
        self.target.subscribe()
    }

    /// What runs, for metrics.
    pub(crate) fn cluster_counts(&self) -> ClusterCounts {
        self.context.store.read(|state: &State| ClusterCounts {
            workers: state.active_workers().count() as u64,
            local_workers: state.active_workers().filter(|w| w.is_in_reader()).count() as u64,
            epochs_read: state.iterations.values().filter(|i| is_read(i)).count() as u64,
        })
    }
}

/// What runs in a cluster.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ClusterCounts {
    /// Workers that take tasks.
    pub(crate) workers: u64,
    /// Those of them that run in the processes of readers. The target does not count them.
    pub(crate) local_workers: u64,
    /// Epochs that are being read.
    pub(crate) epochs_read: u64,
}

/// The fraction of the workers' CPU threads that jobs held since the last sample; none if no worker has reported it twice.
fn threads_busy(state: &State, reports: &mut Reports) -> Option<f64> {
    let (mut busy_s, mut all_s) = (0.0, 0.0);
    for worker in state.active_workers().filter(|w| !w.is_in_reader()) {
        let Some(report) = reports.workers.get_mut(&worker.id) else { continue };
        let Some(usage) = report.usage.as_ref().filter(|usage| usage.threads > 0) else { continue };
        let now = (report.usage_at, usage.threads_busy_s);
        if let Some(before) = report.threads_sampled.replace(now) {
            let of_worker = now.0.saturating_sub(before.0).as_secs_f64() * usage.threads as f64;
            // The number of threads may have changed since.
            busy_s += (now.1 - before.1).max(0.0).min(of_worker);
            all_s += of_worker;
        }
    }
    (all_s > 0.0).then(|| busy_s / all_s)
}

/// Whether a worker has missed some heartbeats. It may be dead, and it would count as one that stands idle until the worker
/// timeout.
fn is_silent(timers: &Timers, reports: &Reports, worker: WorkerId, now: Duration) -> bool {
    let silent = |at: Duration| now.saturating_sub(at) > timers.missed();
    reports.workers.get(&worker).is_some_and(|report| silent(report.at))
}

/// Whether readers are in the middle of it. They may take rows for long after all were sent.
fn is_read(iteration: &Iteration) -> bool {
    iteration.failure.is_none() && !iteration.members.is_empty()
}

/// Whether it is read, and more workers help. They do not help a job that is read only from workers in its readers' processes.
fn is_scaled(iteration: &&Iteration) -> bool {
    is_read(iteration) && iteration.target != TargetWorkers::Local
}

/// The workers in the processes of an iteration's readers. Each counts by its number of cores, relative to the other workers.
/// While there are no other workers, each counts as one worker.
fn local_workers(state: &State, iteration: &Iteration, busy_s: f64) -> LocalWorkers {
    let active = iteration.tasks.values().filter(|t| t.state == TaskState::Active);
    let active: BTreeSet<WorkerId> = active.map(|t| t.worker).collect();
    let own = active.iter().filter_map(|id| state.workers.get(id)).filter(|w| w.is_in_reader());
    let mean = |(count, cores): (u64, f64), w: &Worker| (count + 1, cores + f64::from(w.cores.max(1)));
    let (count, cores) = own.fold((0, 0.0), mean);
    let (others, of_others) = state.active_workers().filter(|w| !w.is_in_reader()).fold((0, 0.0), mean);
    #[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
    let worth =
        if count == 0 || others == 0 { 1.0 } else { (cores / count as f64) / (of_others / others as f64) };
    LocalWorkers { count, busy_s, worth }
}

/// What an iteration has done so far.
fn sample(
    state: &State,
    reports: &Reports,
    iteration: &Iteration,
    is_silent: impl Fn(WorkerId) -> bool,
) -> JobSample {
    let served = reports.served.by_worker(iteration.id);
    let computed = || served.values().filter_map(|of| Some((of.is_in_reader, of.computed?)));
    let busy_s = |in_reader: bool| computed().filter(|of| of.0 == in_reader).map(|of| of.1.busy_s).sum();
    let active = iteration.tasks.values().filter(|t| t.state == TaskState::Active);
    let has_computed = |of: &ServedByWorker| of.computed.is_some() && !of.is_in_reader;
    let is_counted = |worker: &WorkerId| served.get(worker).is_some_and(has_computed) && !is_silent(*worker);
    let clients = || iteration.members.keys().map(|c| (*c, reports.clients.get(&(iteration.id, *c))));
    let readers = clients().filter_map(|(c, report)| Some((c.0, reader(report?)?))).collect();
    // A reader that has not reported yet may ask at any moment, and one that has taken rows goes on when it has validated.
    let idle_of = |r: &ClientReport| if r.rows == 0 { r.user_busy } else { Duration::ZERO };
    let idle = clients().map(|(_, report)| report.map_or(Duration::ZERO, idle_of)).min();
    let is_ending = !iteration.feeds.is_empty() && !iteration.feeds.values().any(Feed::has_work);
    JobSample {
        iteration: iteration.id.0,
        job: iteration.job.0.clone(),
        priority: state.jobs.get(&iteration.job).map(|job| job.spec.priority).unwrap_or_default(),
        rows: computed().map(|of| of.1.rows).sum(),
        busy_s: busy_s(false),
        workers: active.map(|task| task.worker).filter(is_counted).collect::<BTreeSet<_>>().len() as u64,
        local: local_workers(state, iteration, busy_s(true)),
        readers,
        is_ending,
        most_workers: most_workers(iteration),
        readers_idle_s: idle.unwrap_or_default().as_secs_f64(),
    }
}

/// The most workers that can work for an iteration at once, where that is known: every worker needs a split, or, where the splits
/// are divided among tasks in advance, a task.
fn most_workers(iteration: &Iteration) -> Option<u64> {
    match iteration.mode {
        Mode::Off => None,
        mode if mode.is_static() => {
            Some(u64::from(iteration.workers_with_shards())).filter(|workers| *workers > 0)
        }
        _ if iteration.exclusive => Some(1),
        _ => {
            let feed = iteration.feeds.get(&FeedId::SHARED).filter(|feed| feed.exhausted)?;
            Some(feed.issued.max(1))
        }
    }
}

/// Rows that a reader's user took, and the seconds since it was opened in which it waited for workers, and the others. A reader that
/// waits for other consumers of its job would get no row earlier from more workers.
fn reader(report: &ClientReport) -> Option<(u64, f64, f64)> {
    let elapsed_s = (report.rows_per_s > 0.0).then(|| report.rows as f64 / report.rows_per_s)?;
    let all_wait_s = elapsed_s * report.wait_fraction.clamp(0.0, 1.0);
    let wait_s = (all_wait_s - report.consumer_wait.as_secs_f64()).max(0.0);
    Some((report.rows, wait_s, elapsed_s - wait_s))
}
