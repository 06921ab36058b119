//! What is known of one iteration: rates over the windows between samples.

use caju_types::PriorityShares;

use super::ceiling::{Before, Ceilings, OTHER_RATE, Window};
use super::load::JobLoad;
use super::sample::JobSample;
use crate::format::{percent, rate};

/// A reader whose own time is a smaller fraction than this waits nearly always: how fast it could be is not known.
const MIN_OWN_FRACTION: f64 = 0.02;
/// Where the demand is not known, the target is at most this many times the workers that work: more of them show.
const MAX_GROWTH: f64 = 4.0;
/// The weight of the newest window in the running means, so that one odd window does not change the target by much.
const NEWEST: f64 = 0.5;
/// The least fraction of its workers that a job counts as getting: the rate of one that gets less is known too badly.
const MIN_FRACTION: f64 = 1e-3;
/// A job that is busy for a smaller fraction of the workers' time takes nothing from others.
const MIN_BUSY: f64 = 0.01;
/// Sums of seconds may differ by this much because they were added in another order.
const ROUNDING_S: f64 = 1e-6;

/// What is known of one iteration.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct IterationRates {
    pub(super) last: JobSample,
    /// The workers of the last window that was measured, with the readers' own.
    pub(super) workers: f64,
    /// Rows per second of a worker that does not wait for readers.
    pub(super) per_worker: Option<f64>,
    /// Whether that mean began again with the last window: the pipeline is changing.
    pub(super) is_changing: bool,
    /// Rows per second that the readers take while they do not wait, and whether that is only a lower bound.
    pub(super) demand: Option<(f64, bool)>,
    /// Rows per second in the last window, and the fraction of the readers' time that they waited.
    pub(super) rate: f64,
    pub(super) wait: f64,
    /// The fraction of its workers' time in which it was busy, which may exceed 1 where the time of rare rows is reported late.
    pub(super) busy: f64,
    /// The busy seconds up to the last sample, also one without rows.
    pub(super) busy_seen_s: f64,
    /// Before the number of workers last rose.
    pub(super) before: Option<Before>,
    /// What limits all workers together.
    pub(super) ceilings: Ceilings,
    /// Seconds of the windows since the last one in which rows came.
    pub(super) without_rows_s: f64,
}

/// What a window has shown.
struct Measured {
    /// Rows that were computed, and the seconds of workers that they took.
    rows: f64,
    busy_s: f64,
    /// Its length.
    window_s: f64,
    /// Whether it says what a worker gives: not at the end of an epoch.
    measures_workers: bool,
}

impl IterationRates {
    /// Takes a sample; the window is what differs from the one before.
    pub(super) fn record(&mut self, job: JobSample, window_s: f64) {
        // The reason names the job also before the first rates.
        self.last.job.clone_from(&job.job);
        self.last.priority = job.priority;
        self.last.most_workers = job.most_workers;
        self.last.readers_idle_s = job.readers_idle_s;
        (self.last.local.count, self.last.local.worth) = (job.local.count, job.local.worth);
        self.ceilings.pass(window_s);
        self.record_busy(&job, window_s);
        if job.rows < self.last.rows || job.busy_s < self.last.busy_s - ROUNDING_S {
            // A worker that is gone, and its counts with it.
            self.last = job;
            self.without_rows_s = 0.0;
            return;
        }
        let window_s = window_s + self.without_rows_s;
        #[expect(clippy::cast_precision_loss, reason = "rates of rows need no exact counts")]
        let rows = (job.rows - self.last.rows) as f64;
        let local_busy_s = (job.local.busy_s - self.last.local.busy_s) * job.local.worth;
        let busy_s = job.busy_s - self.last.busy_s + local_busy_s;
        if rows <= 0.0 || busy_s <= 0.0 || window_s <= 0.0 {
            // Nothing came: a stage or a reader may take longer than the window, which goes on then.
            self.without_rows_s = window_s;
            return;
        }
        self.without_rows_s = 0.0;
        let measures_workers = !job.is_ending || self.per_worker.is_none();
        if let Some(per_worker) = self.per_worker.filter(|_| measures_workers)
            && job.workers > self.last.workers
            && self.workers > 0.0
        {
            // The new workers were there for a part of the window only. Where rows just became more expensive, the rates from
            // before say nothing about what the workers bring.
            if !self.is_changing {
                let before = Before { workers: self.workers, rate: self.rate, per_worker };
                self.before.get_or_insert(before);
            }
            self.last = job;
            return;
        }
        self.measure(&job, Measured { rows, busy_s, window_s, measures_workers });
        self.last = job;
    }

    /// Takes a window in which rows came, and whose workers were there for all of it.
    fn measure(&mut self, job: &JobSample, measured: Measured) {
        let Measured { rows, busy_s, window_s, measures_workers } = measured;
        let workers = job.all_workers();
        let (demand, wait) = self.demand_of(job);
        self.rate = rows / window_s;
        self.wait = wait;
        if let Some((rate, bound)) = demand {
            self.demand = Some((mean(self.demand.map(|d| d.0), rate), bound));
        }
        let is_first = self.per_worker.is_none();
        if measures_workers {
            self.is_changing = self.per_worker.is_some_and(|before| is_other(before, rows / busy_s));
            (self.per_worker, self.workers) = (Some(mean(self.per_worker, rows / busy_s)), workers);
        }
        if is_first {
            // The epoch began somewhere in the window, or before it, if the dispatcher has been restarted.
            self.rate = rows / busy_s * workers;
        }
        let window = Window {
            workers,
            rate: self.rate,
            per_worker: self.per_worker.unwrap_or(rows / busy_s),
            demand: self.demand.map_or(f64::INFINITY, |(rate, _)| rate),
            demand_now: demand.map_or(f64::INFINITY, |(rate, _)| rate),
            wait,
            is_steady: measures_workers && !is_first,
        };
        let before = if window.is_steady { self.before.take() } else { None };
        self.ceilings.record(&window, before);
    }

    /// How busy its workers were for it since the last sample. Where rows are rare, a mean over several.
    fn record_busy(&mut self, job: &JobSample, window_s: f64) {
        let busy_s = job.busy_s + job.local.busy_s * job.local.worth;
        let newly_s = (busy_s - self.busy_seen_s).max(0.0);
        let workers = job.all_workers();
        self.busy_seen_s = busy_s;
        if !(workers > 0.0 && window_s > 0.0) {
            return;
        }
        let busy = newly_s / (workers * window_s);
        let has_rows = job.rows > self.last.rows && self.without_rows_s <= 0.0;
        let is_known = self.per_worker.is_some();
        self.busy =
            if has_rows || !is_known { busy.min(1.0) } else { self.busy + NEWEST * (busy - self.busy) };
    }

    /// What the readers would take, and whether that is a lower bound; and the fraction of their time that they waited.
    pub(super) fn demand_of(&self, job: &JobSample) -> (Option<(f64, bool)>, f64) {
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

    /// How it loads the workers, where jobs get these shares of them.
    pub(super) fn load(&self, shares: &PriorityShares) -> JobLoad {
        JobLoad { share: shares.of(self.last.priority), busy: self.busy.clamp(0.0, 1.0) }
    }

    /// Whether it wants threads now and then: others share them with it.
    pub(super) fn is_busy(&self) -> bool {
        self.busy > MIN_BUSY
    }

    /// The workers that it keeps busy if its readers do not wait, as a fractional number. `fraction` is what it gets of a worker
    /// while others use it, too.
    pub(super) fn need(&self, fraction: f64) -> Option<f64> {
        let (per_worker, (demand, bound)) = (self.per_worker?, self.demand?);
        let need = demand / rate_alone(per_worker, fraction);
        let need = if bound { need.min(MAX_GROWTH * self.workers.max(1.0)) } else { need };
        let need = need.min(self.ceilings.workers().unwrap_or(f64::INFINITY));
        Some(need.min(self.most_workers()))
    }

    /// The most workers that can work for it at once.
    #[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
    fn most_workers(&self) -> f64 {
        self.last.most_workers.map_or(f64::INFINITY, |most| most.max(1) as f64)
    }

    /// What is left of a need beyond the workers in the readers' own processes.
    pub(super) fn beyond_local(&self, need: f64) -> f64 {
        (need - self.last.local_workers()).max(0.0)
    }

    /// The workers that it is given before it has shown what it needs: one, or it would never show it. The workers in the
    /// readers' own processes show it as well.
    pub(super) fn first_need(&self) -> f64 {
        if self.last.local_workers() > 0.0 { 0.0 } else { 1.0 }
    }

    /// What it takes, what a worker gives it, and the need that follows, for a person.
    pub(super) fn describe(&self, need: f64, fraction: f64) -> String {
        let (demand, bound) = self.demand.unwrap_or_default();
        let alone = rate_alone(self.per_worker.unwrap_or(0.0), fraction);
        if let Some(ceiling) = self.ceilings.rate() {
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
        let bounded = match demand / alone {
            unbounded if need >= self.most_workers() && unbounded > need + 0.05 => {
                format!("{unbounded:.1} workers, of which no more can work for it at once than ")
            }
            // The numbers have one decimal.
            unbounded if unbounded > need + 0.05 => {
                format!("{unbounded:.1} workers, bounded to {MAX_GROWTH:.0} times those that work: ")
            }
            _ => String::new(),
        };
        format!(
            "takes {at_least}{} rows/s, of which a worker gives {}: {bounded}{need:.1} workers{local} (its readers wait {} of \
             their time)",
            rate(demand),
            rate(alone),
            percent(self.wait)
        )
    }
}

/// A worker's rate for a job alone: a worker that is busy for other jobs, too, gives it a fraction of that.
fn rate_alone(per_worker: f64, fraction: f64) -> f64 {
    per_worker / fraction.max(MIN_FRACTION)
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
    (new / before - 1.0).abs() > OTHER_RATE
}
