//! The number of workers of a running cluster, again and again: samples in, a target out.
//!
//! Every few seconds the dispatcher hands over what it has measured so far ([`ScalingEvent`]). The difference to the previous
//! sample is a window. It gives the rows per second of a worker's time, and the rate at which readers take rows while they do
//! not wait. The second rate divided by the first is the number of workers that a job needs. Times come with the events.
//!
//! What is learned: where more workers did not bring the rows that they should have brought, something that they share is
//! the bottleneck. The job then asks for no more than reach the rate that was seen, until a worker's own rate changes, or
//! these workers do not reach it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::pool::{JobShare, PoolJob, scale_pool, share, whole};
use super::range::TargetRange;
use super::{DEFAULT_MAX_WORKERS, WorkerLimits};
use crate::format::{count, percent, rate};

/// A reader whose own time is a smaller fraction than this waits nearly always: how fast it could be is not known.
const MIN_OWN_FRACTION: f64 = 0.02;

/// Where the demand is not known, the target is at most this many times the workers that work: more of them show.
const MAX_GROWTH: f64 = 4.0;

/// The weight of the newest window in the running means, so that one odd window does not change the target by much.
const NEWEST: f64 = 0.5;

/// A worker's rate that changed by more than this fraction is another pipeline, such as one that reads a snapshot from now
/// on: the mean begins again.
const OTHER_PIPELINE: f64 = 0.3;

/// Readers that wait for a smaller fraction of their time do not need more rows.
const SATISFIED_WAIT: f64 = 0.02;

/// Readers that wait for a larger fraction of their time get the number that was computed, whatever the error.
const MAX_WAIT: f64 = 0.05;

/// Added workers that bring less than this fraction of the rows that were predicted are not the bottleneck.
const MIN_MARGINAL_GAIN: f64 = 0.3;

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

/// The workers in the processes of a job's readers. They run in any case, so the target counts only the workers that are
/// needed in addition.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LocalWorkers {
    /// Their number.
    pub count: u64,
    /// Their seconds since the job began, as [`JobSample::busy_s`].
    pub busy_s: f64,
    /// What one of them is worth, in workers that the target counts: a fourth, if it has a fourth of their cores.
    pub worth: f64,
}

/// How a job stands to others where the workers are too few for all.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Precedence {
    /// Jobs of a higher priority are served first.
    pub priority: i32,
    /// Its fraction of the workers, relative to those of other jobs of the same priority; above 0.
    pub weight: f64,
}

impl Default for Precedence {
    fn default() -> Self {
        Self { priority: 0, weight: 1.0 }
    }
}

/// What a job has done since it began.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobSample {
    /// The iteration: counters begin with it.
    pub iteration: u64,
    /// The job's name.
    pub job: String,
    /// How it stands to other jobs.
    pub precedence: Precedence,
    /// Rows that its workers gave out.
    pub rows: u64,
    /// Seconds of the workers that the target counts, added up, in which they could compute: not those in which their output
    /// was full, or in which they had no split.
    pub busy_s: f64,
    /// The workers that work for it and that the target counts.
    pub workers: u64,
    /// The workers in its readers' own processes.
    pub local: LocalWorkers,
    /// Per reader: rows that its user took, and the seconds in which it waited and did not wait.
    pub readers: BTreeMap<u64, (u64, f64, f64)>,
    /// Workers have all its splits: a further worker would get none, and those that have few are slower than they could be.
    pub is_ending: bool,
}

impl JobSample {
    /// The workers in its readers' processes, in workers that the target counts.
    fn local_workers(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
        let count = self.local.count as f64;
        count * self.local.worth
    }

    /// All that work for it, in workers that the target counts.
    fn all_workers(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
        let counted = self.workers as f64;
        counted + self.local_workers()
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

/// What is known of one iteration.
#[derive(Debug, Clone, Default, PartialEq)]
struct Known {
    last: JobSample,
    /// The workers of the last window that was measured, with the readers' own.
    workers: f64,
    /// Rows per second of a worker that does not wait for readers.
    per_worker: Option<f64>,
    /// Whether that mean began again with the last window: the pipeline is changing.
    is_changing: bool,
    /// Rows per second that the readers take while they do not wait, and whether that is only a lower bound.
    demand: Option<(f64, bool)>,
    /// Rows per second in the last window, and the fraction of the readers' time that they waited.
    rate: f64,
    wait: f64,
    /// The fraction of its workers' time in which it was busy.
    busy: f64,
    /// Before the number of workers last rose: that number, the rate, and a worker's rate.
    before: Option<(f64, f64, f64)>,
    /// The most rows per second that any number of workers gives, and a worker's rate alone.
    ceiling: Option<(f64, f64)>,
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
    jobs: BTreeMap<u64, Known>,
    at: Duration,
    workers: u64,
    target: ScalingTarget,
    /// Since when fewer workers would be enough.
    fewer_since: Option<Duration>,
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
        let ScalingEvent::Sampled { at, workers, jobs } = event;
        let window_s = at.saturating_sub(self.at).as_secs_f64();
        let running: Vec<u64> = jobs.iter().map(|j| j.iteration).collect();
        self.jobs.retain(|iteration, _| running.contains(iteration));
        for job in jobs {
            let known = self.jobs.entry(job.iteration).or_default();
            known.record(job, window_s);
        }
        (self.at, self.workers) = (at, workers);
        self.decide(&running);
        &self.target
    }

    fn limits(&self) -> WorkerLimits {
        let min = self.settings.min_workers.max(1);
        WorkerLimits::new(min, self.settings.max_workers.max(min)).unwrap_or_default()
    }

    /// The fewest workers while jobs run: one, unless all of them have workers in their readers' own processes.
    fn fewest(&self, known: &[&Known]) -> u64 {
        let is_local = known.iter().all(|k| k.last.local_workers() > 0.0);
        if is_local { self.settings.min_workers.min(self.limits().max()) } else { self.limits().min() }
    }

    fn decide(&mut self, running: &[u64]) {
        if running.is_empty() {
            return self.idle();
        }
        let known: Vec<&Known> = running.iter().filter_map(|i| self.jobs.get(i)).collect();
        let total_busy: f64 = known.iter().map(|k| k.busy).sum();
        let needs: Vec<Option<f64>> = known.iter().map(|k| k.need(total_busy)).collect();
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
        let reason = self.reason(&known, &needs, range.best);
        let begins = self.target.jobs.is_empty();
        if begins {
            self.fewer_since = None;
        }
        let present =
            if begins { self.workers.max(self.target.workers).max(range.best) } else { self.target.workers };
        if known.iter().any(|k| k.ceiling.is_none() && k.wait > MAX_WAIT) {
            // Readers that wait show that the error does not explain the difference.
            range.low = range.best;
        }
        let is_known = needs.iter().all(Option::is_some);
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

    fn reason(&self, known: &[&Known], needs: &[Option<f64>], best: u64) -> String {
        let of_job = |(k, need): (&&Known, &Option<f64>)| match need {
            None => format!("`{}` has shown no rates yet", k.last.job),
            Some(need) => format!("`{}` {}", k.last.job, k.describe(*need)),
        };
        let mut jobs: Vec<String> = known.iter().zip(needs).take(SHOWN_JOBS).map(of_job).collect();
        if known.len() > SHOWN_JOBS {
            jobs.push(count((known.len() - SHOWN_JOBS) as u64, "more job"));
        }
        let capped = if best >= self.settings.max_workers { "These are the most allowed: " } else { "" };
        format!("{capped}{}.", jobs.join("; "))
    }
}

/// The jobs with what they need beyond the workers in their readers' processes, times a factor.
fn pool(known: &[&Known], needs: &[Option<f64>], factor: f64) -> Vec<PoolJob> {
    let job = |(k, need): (&&Known, &Option<f64>)| PoolJob {
        name: k.last.job.clone(),
        priority: i64::from(k.last.precedence.priority),
        weight: k.last.precedence.weight,
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

impl Known {
    /// Takes a sample; the window is what differs from the one before.
    fn record(&mut self, job: JobSample, window_s: f64) {
        // Known before the first rates: the reason names the job.
        self.last.job.clone_from(&job.job);
        self.last.precedence = job.precedence;
        (self.last.local.count, self.last.local.worth) = (job.local.count, job.local.worth);
        #[expect(clippy::cast_precision_loss, reason = "rates of rows need no exact counts")]
        let rows = job.rows.saturating_sub(self.last.rows) as f64;
        let local_busy_s = (job.local.busy_s - self.last.local.busy_s) * job.local.worth;
        let busy_s = job.busy_s - self.last.busy_s + local_busy_s;
        let workers = job.all_workers();
        if rows <= 0.0 || busy_s <= 0.0 || window_s <= 0.0 {
            // Nothing came: a stage or a reader may take longer than the window.
            return;
        }
        let measures_workers = !job.is_ending || self.per_worker.is_none();
        if let Some(per_worker) = self.per_worker.filter(|_| measures_workers)
            && job.workers > self.last.workers
            && self.workers > 0.0
        {
            // The new workers were there for a part of the window only. Where rows just became more expensive, the rates from
            // before say nothing about what the workers bring.
            if !self.is_changing {
                self.before.get_or_insert((self.workers, self.rate, per_worker));
            }
            self.last = job;
            return;
        }
        let (demand, wait) = self.demand_of(&job);
        self.rate = rows / window_s;
        self.wait = wait;
        self.busy = (busy_s / (workers * window_s)).clamp(0.0, 1.0);
        if let Some((rate, bound)) = demand {
            self.demand = Some((mean(self.demand.map(|d| d.0), rate), bound));
        }
        if measures_workers {
            self.is_changing = self.per_worker.is_some_and(|before| is_other(before, rows / busy_s));
            self.per_worker = Some(mean(self.per_worker, rows / busy_s));
            self.workers = workers;
            self.learn(workers);
        }
        self.last = job;
    }

    /// What the readers would take, and whether that is a lower bound; and the fraction of their time that they waited.
    fn demand_of(&self, job: &JobSample) -> (Option<(f64, bool)>, f64) {
        let (mut demand, mut bound, mut waited, mut lived) = (0.0, false, 0.0, 0.0);
        for (reader, (rows, wait_s, own_s)) in &job.readers {
            let (rows_before, wait_before, own_before) =
                self.last.readers.get(reader).copied().unwrap_or_default();
            let (wait_s, own_s) = ((wait_s - wait_before).max(0.0), (own_s - own_before).max(0.0));
            let all_s = wait_s + own_s;
            if all_s <= 0.0 {
                continue;
            }
            #[expect(clippy::cast_precision_loss, reason = "rates of rows need no exact counts")]
            let rows = rows.saturating_sub(rows_before) as f64;
            bound |= own_s < MIN_OWN_FRACTION * all_s;
            demand += rows / own_s.max(MIN_OWN_FRACTION * all_s);
            (waited, lived) = (waited + wait_s, lived + all_s);
        }
        let wait = if lived > 0.0 { waited / lived } else { 0.0 };
        ((demand > 0.0).then_some((demand, bound)), wait)
    }

    /// Compares what added workers brought with what was predicted for them, a window after they came.
    fn learn(&mut self, workers: f64) {
        let Some(per_worker) = self.per_worker else { return };
        if let Some((_, then)) = self.ceiling
            && (per_worker > then * (1.0 + OTHER_PIPELINE) || self.wait < SATISFIED_WAIT)
        {
            self.ceiling = None;
        }
        if let Some((fewer, rate_before, alone)) = self.before.take() {
            let demand = self.demand.map_or(f64::INFINITY, |(rate, _)| rate);
            let predicted = (rate_before * workers / fewer).min(demand);
            let gain = (self.rate - rate_before) / (predicted - rate_before);
            if predicted > rate_before && gain < MIN_MARGINAL_GAIN && self.wait > SATISFIED_WAIT {
                self.ceiling = Some((self.rate.max(rate_before), alone));
            }
        }
        // What workers share gives as much to fewer of them. A rate that fell by more was no ceiling, or is none any more.
        if self.ceiling.is_some_and(|(rate, _)| self.rate < rate * (1.0 - OTHER_PIPELINE)) {
            self.ceiling = None;
        }
    }

    /// The workers that it keeps busy if its readers do not wait, as a fractional number. `total_busy` is the fraction of
    /// the workers' time in which the jobs were busy, added up.
    fn need(&self, total_busy: f64) -> Option<f64> {
        let (per_worker, (demand, bound)) = (self.per_worker?, self.demand?);
        // A worker that is busy for other jobs, too, gives this one less than it would alone.
        let others = (total_busy - self.busy).max(0.0);
        let need = demand / (per_worker * (1.0 + others));
        let need = if bound { need.min(MAX_GROWTH * self.workers.max(1.0)) } else { need };
        Some(match self.ceiling {
            Some((ceiling, alone)) => need.min(ceiling / alone),
            None => need,
        })
    }

    /// What is left of a need beyond the workers in the readers' own processes.
    fn beyond_local(&self, need: f64) -> f64 {
        (need - self.last.local_workers()).max(0.0)
    }

    /// The workers that it is given before it has shown what it needs: one, or it would never show it. The workers in the
    /// readers' own processes show it as well.
    fn first_need(&self) -> f64 {
        if self.last.local_workers() > 0.0 { 0.0 } else { 1.0 }
    }

    fn describe(&self, need: f64) -> String {
        let (per_worker, (demand, bound)) = (self.per_worker.unwrap_or(0.0), self.demand.unwrap_or_default());
        if let Some((ceiling, _)) = self.ceiling {
            return format!(
                "reached {} rows/s, and more workers did not bring more: something that they share is the bottleneck, so \
                 that its readers wait {} of their time",
                rate(ceiling),
                percent(self.wait)
            );
        }
        let at_least = if bound { "at least " } else { "" };
        let local = match self.last.local_workers() {
            own if own > 0.0 => format!(", of which the readers' own cores are {own:.1}"),
            _ => String::new(),
        };
        format!(
            "takes {at_least}{} rows/s, of which a worker gives {}: {need:.1} workers{local} (its readers wait {} of their time)",
            rate(demand),
            rate(per_worker),
            percent(self.wait)
        )
    }
}

/// A running mean, which begins again where the value has changed by much.
fn mean(before: Option<f64>, new: f64) -> f64 {
    match before {
        Some(old) if !is_other(old, new) => old + NEWEST * (new - old),
        _ => new,
    }
}

/// Whether a rate is too far from the one before to be an error of the measurement.
fn is_other(before: f64, new: f64) -> bool {
    (new / before - 1.0).abs() > OTHER_PIPELINE
}
