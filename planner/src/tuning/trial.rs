//! Comparing the rates before and after a change.

use std::collections::{BTreeMap, VecDeque};

use super::TuningSample;

/// Steps whose rates are averaged before and after a change: rows come in pieces, and three half-second steps have some tens of
/// them.
const WINDOW: u32 = 3;
/// Steps after a change whose rates do not count, because threads and processes start and reads begin: a second.
const SETTLING_STEPS: u32 = 2;
/// The most steps of a trial. A job that ends in between gives no more rates.
const MAX_STEPS: u32 = 30;
/// A higher number is kept if it brings this fraction of the rows that it would bring if rate and number were proportional. A
/// thread may cost a process, and a reader some megabytes.
const MIN_GAIN: f64 = 0.15;
/// The least gain that is not noise.
const NOISE: f64 = 0.04;

/// The rates of jobs in the last steps, with settings that did not change.
#[derive(Debug, Default)]
pub(super) struct Rates {
    last: BTreeMap<String, VecDeque<f64>>,
}

impl Rates {
    pub(super) fn record(&mut self, sample: &TuningSample) {
        self.last.retain(|name, _| sample.jobs.iter().any(|j| j.job == *name));
        for job in sample.jobs.iter().filter(|j| j.is_whole && sample.seconds > 0.0) {
            let last = self.last.entry(job.job.clone()).or_default();
            last.push_back(job.rows / sample.seconds);
            if last.len() > WINDOW as usize {
                last.pop_front();
            }
        }
    }

    /// Whether the rate of a job is known.
    pub(super) fn has(&self, job: &str) -> bool {
        self.last.get(job).is_some_and(is_known)
    }

    /// Whether the rate of no job is known.
    pub(super) fn is_empty(&self) -> bool {
        !self.last.values().any(is_known)
    }

    /// The rates that are known of the jobs that a change concerns. They say nothing about what comes.
    pub(super) fn take(&mut self, concerns: impl Fn(&str) -> bool) -> BTreeMap<String, f64> {
        let all = std::mem::take(&mut self.last);
        let of = all.into_iter().filter(|(job, last)| is_known(last) && concerns(job));
        of.map(|(job, last)| (job, last.iter().sum::<f64>() / last.len() as f64)).collect()
    }
}

fn is_known(last: &VecDeque<f64>) -> bool {
    last.len() >= WINDOW as usize && last.iter().sum::<f64>() > 0.0
}

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Verdict {
    /// It goes on.
    Open,
    /// The number stays; this is the gain in rows, as a fraction.
    Keep(f64),
    /// The number returns to what it was.
    Revert(f64),
    /// The rates were not measured.
    Unknown,
}

/// Which number is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TunedParameter {
    /// The threads of the worker.
    Threads,
    /// The splits that tasks of a job read.
    Readers(String),
}

impl TunedParameter {
    /// Whether it changes the rate of a job.
    pub(super) fn concerns(&self, job: &str) -> bool {
        match self {
            Self::Threads => true,
            Self::Readers(own) => own == job,
        }
    }
}

/// A number that is changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) knob: TunedParameter,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// Numbers that were changed, all up or all down, and whose effect is being measured.
#[derive(Debug)]
pub(super) struct Trial {
    pub(super) moves: Vec<Move>,
    /// Rows per second of jobs before the change.
    before: BTreeMap<String, f64>,
    /// The sum of the rates after it, and how many there are.
    after: BTreeMap<String, (f64, u32)>,
    steps: u32,
}

impl Trial {
    pub(super) fn new(moves: Vec<Move>, before: BTreeMap<String, f64>) -> Self {
        Self { moves, before, after: BTreeMap::new(), steps: 0 }
    }

    /// Takes in a step after the change.
    pub(super) fn observe(&mut self, sample: &TuningSample) -> Verdict {
        self.steps += 1;
        if self.steps <= SETTLING_STEPS {
            return Verdict::Open;
        }
        let jobs = sample.jobs.iter().filter(|j| j.is_whole && sample.seconds > 0.0);
        for job in jobs.filter(|j| self.before.contains_key(&j.job)) {
            let (sum, steps) = self.after.entry(job.job.clone()).or_default();
            *sum += job.rows / sample.seconds;
            *steps += 1;
        }
        let here = sample.jobs.iter().filter(|j| self.before.contains_key(&j.job));
        let measured = |job: &str| self.after.get(job).is_some_and(|(_, steps)| *steps >= WINDOW);
        let is_measured = !self.after.is_empty() && here.clone().all(|j| measured(&j.job));
        if !is_measured && self.steps < MAX_STEPS {
            return Verdict::Open;
        }
        let gains: Vec<f64> = self.after.iter().filter_map(|(job, after)| self.gain(job, *after)).collect();
        if gains.is_empty() {
            return Verdict::Unknown;
        }
        let gain = gains.iter().sum::<f64>() / gains.len() as f64;
        if gain >= self.least_gain() { Verdict::Keep(gain) } else { Verdict::Revert(gain) }
    }

    /// How many more rows a job has, as a fraction; none if too little was measured.
    fn gain(&self, job: &str, (sum, steps): (f64, u32)) -> Option<f64> {
        let before = self.before.get(job).filter(|_| steps >= WINDOW)?;
        Some(sum / f64::from(steps) / before - 1.0)
    }

    /// The rates after the change.
    pub(super) fn rates(&self) -> Rates {
        let rates = |(sum, steps): &(f64, u32)| (0..WINDOW).map(|_| sum / f64::from(*steps)).collect();
        let known = self.after.iter().filter(|(_, (_, steps))| *steps >= WINDOW);
        Rates { last: known.map(|(job, after)| (job.clone(), rates(after))).collect() }
    }

    fn least_gain(&self) -> f64 {
        if self.moves.iter().any(|m| m.to < m.from) {
            return -NOISE;
        }
        let ratio = |m: &Move| m.to as f64 / m.from.max(1) as f64 - 1.0;
        (MIN_GAIN * self.moves.iter().map(ratio).fold(0.0, f64::max)).max(NOISE)
    }
}
