//! What a worker changes while it runs: its threads, the splits that it reads concurrently, and the bounds of its queues.
//!
//! The optimum is Plumber's linear program (MLSys 2022): the largest rate `X` for which stage `i` gets `theta_i` cores,
//!
//! ```text
//! maximise X   where   X <= theta_i * rate_i   for each stage that computes `rate_i` rows per second and core,
//!                      sum of theta_i <= cores,
//!                      X * service_i <= parallelism_i   for each stage that runs only so often at once,
//!                      X * bytes <= bandwidth   of the source's store, and   X <= what the consumers take.
//! ```
//!
//! All row stages of a worker run on one pool, so nothing has to divide the cores among them. The program then has a closed form,
//! `X = min(cores / sum of 1 / rate_i, parallelism_i / service_i, bandwidth / bytes, consumers)`, and that is the rate of
//! computing in the planner's [`Model`](crate::Model). What is left to choose is what waits: enough threads that the cores are
//! busy while rows wait for something other than a core, and enough splits being read that the store's latency does not
//! matter. By Little's law both are the optimal rate times the time that a row takes there. [`Tuner`] approaches these numbers
//! from below. It raises the numbers that seem too low, and keeps them if that brings rows.
//!
//! The rule is pure: measurements of one step in, changes and their reasons out.

mod buffers;
mod climb;
#[cfg(test)]
mod tests;
mod trial;

use std::collections::BTreeMap;

use buffers::Buffers;
pub use buffers::{BufferBounds, QueueSample};
use climb::{Climb, readers_needed, threads_needed};
use trial::{Move, Rates, Trial, TunedParameter, Verdict};

/// The limits of what is tuned. A number without limits was given by hand and stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TuningBounds {
    /// The fewest and the most threads that compute.
    pub threads: Option<(usize, usize)>,
    /// The fewest and the most splits that a task reads concurrently.
    pub readers: Option<(usize, usize)>,
    /// The bounds of queues.
    pub buffers: BufferBounds,
}

/// What happened on a worker in one step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TuningSample {
    /// The length of the step in seconds.
    pub seconds: f64,
    /// Cores that the worker may use.
    pub cores: f64,
    /// Cores that the worker and its functions used, or would have used of an idle machine.
    pub wanted_cores: f64,
    /// The threads that compute; none where nobody knows whether they wait.
    pub threads: Option<ThreadSample>,
    /// The jobs with tasks on the worker.
    pub jobs: Vec<TunedJob>,
    /// The queues of these tasks.
    pub queues: Vec<QueueSample>,
}

/// The threads that compute, on the average of the step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ThreadSample {
    /// Threads that were held by rows.
    pub busy: f64,
    /// Of these, threads (or processes that they wait for) that ran on a core or were ready to.
    pub wanted: f64,
}

/// What the tasks of one job did in a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TunedJob {
    /// Its name.
    pub job: String,
    /// Whether the same tasks ran from the start of the step to its end. Otherwise its rows say nothing about the settings.
    pub is_whole: bool,
    /// Rows that passed stages, of all stages together.
    pub rows: f64,
    /// Splits that were being read and waited for their store or were decoded, on the average.
    pub reading: f64,
    /// Splits that were being read and waited for space, on the average.
    pub blocked: f64,
    /// The fraction of the step for which the output waited for the consumers.
    pub consumer_wait: f64,
}

/// What changes after a step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TuningChange {
    /// Threads that compute.
    pub threads: Option<usize>,
    /// Splits that each task of a job reads concurrently, by job.
    pub readers: BTreeMap<String, usize>,
    /// Bounds of queues in bytes, by their identifiers.
    pub queues: BTreeMap<u64, usize>,
}

/// A number that is tuned, and why it is what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunedSetting {
    /// `cpu_threads`, `readers` of a job, or `buffer_bytes`, the sum of the bounds of all queues.
    pub name: &'static str,
    /// The job that it belongs to; none for the whole worker.
    pub job: Option<String>,
    /// The number.
    pub value: u64,
    /// Why.
    pub reason: String,
}

/// Steps for which a job's number is remembered after its last task: ten minutes of half-second steps.
const MEMORY_STEPS: u32 = 1200;

/// Tunes one worker.
///
/// ```
/// use caju_planner::{ThreadSample, TunedJob, Tuner, TuningBounds, TuningSample};
/// let mut tuner = Tuner::new(TuningBounds { threads: Some((2, 32)), ..TuningBounds::default() });
/// // Both threads are held by rows that wait, and the cores are idle.
/// let sample = TuningSample {
///     seconds: 0.5,
///     cores: 2.0,
///     wanted_cores: 0.1,
///     threads: Some(ThreadSample { busy: 2.0, wanted: 0.1 }),
///     jobs: vec![TunedJob { job: "train".into(), is_whole: true, rows: 200.0, ..TunedJob::default() }],
///     ..TuningSample::default()
/// };
/// let changes: Vec<_> = (0..4).filter_map(|_| tuner.step(&sample).threads).collect();
/// assert_eq!(changes, [4]);
/// assert!(tuner.settings()[0].reason.contains("wait"));
/// ```
#[derive(Debug)]
pub struct Tuner {
    bounds: TuningBounds,
    threads: Option<Climb>,
    readers: BTreeMap<String, Climb>,
    buffers: Buffers,
    rates: Rates,
    trial: Option<Trial>,
}

impl Tuner {
    /// A tuner that begins with the least of each number.
    pub fn new(bounds: TuningBounds) -> Self {
        Self {
            bounds,
            threads: bounds.threads.map(Climb::new),
            readers: BTreeMap::new(),
            buffers: Buffers::new(bounds.buffers),
            rates: Rates::default(),
            trial: None,
        }
    }

    /// The splits that a new task of a job reads concurrently; none if that number was given by hand.
    pub fn readers_of(&self, job: &str) -> Option<usize> {
        let first = self.bounds.readers?.0;
        Some(self.readers.get(job).map_or(first, |climb| climb.value))
    }

    /// What changes after a step with these measurements.
    pub fn step(&mut self, sample: &TuningSample) -> TuningChange {
        let queues = self.buffers.step(&sample.queues);
        self.meet(sample);
        let changed = match self.trial.take() {
            Some(trial) => self.judge(trial, sample),
            None => {
                self.rates.record(sample);
                self.begin(sample)
            }
        };
        let mut change = TuningChange { queues, ..TuningChange::default() };
        for (knob, to) in changed {
            match knob {
                TunedParameter::Threads => change.threads = Some(to),
                TunedParameter::Readers(job) => drop(change.readers.insert(job, to)),
            }
        }
        change
    }

    /// The numbers that are tuned.
    pub fn settings(&self) -> Vec<TunedSetting> {
        let setting = |name, job: Option<&String>, climb: &Climb| TunedSetting {
            name,
            job: job.cloned(),
            value: climb.value as u64,
            reason: climb.reason.clone(),
        };
        let threads = self.threads.iter().map(|climb| setting("cpu_threads", None, climb));
        let readers = self.readers.iter().map(|(job, climb)| setting("readers", Some(job), climb));
        threads.chain(readers).chain([self.buffers.setting()]).collect()
    }

    /// Knows the jobs of the sample from now on, and forgets those that have been away for long.
    fn meet(&mut self, sample: &TuningSample) {
        let Some(bounds) = self.bounds.readers else { return };
        self.readers.values_mut().for_each(|climb| climb.away += 1);
        for job in &sample.jobs {
            self.readers.entry(job.job.clone()).or_insert_with(|| Climb::new(bounds)).away = 0;
        }
        self.readers.retain(|_, climb| climb.away <= MEMORY_STEPS);
    }

    /// Puts numbers on trial, if others may be better: all that seem too low together, because each of them alone may be no
    /// use; else one that seems too high.
    fn begin(&mut self, sample: &TuningSample) -> Vec<(TunedParameter, usize)> {
        let (mut higher, mut lower) = (Vec::new(), None);
        if let (Some(climb), Some(threads)) = (&mut self.threads, &sample.threads) {
            let need = threads_needed(climb.value, sample, threads);
            let to = climb.propose(need, !self.rates.is_empty());
            sort_move(TunedParameter::Threads, climb, to, (&mut higher, &mut lower));
        }
        for job in &sample.jobs {
            let Some(climb) = self.readers.get_mut(&job.job) else { continue };
            let to = climb.propose(readers_needed(climb.value, sample, job), self.rates.has(&job.job));
            sort_move(TunedParameter::Readers(job.job.clone()), climb, to, (&mut higher, &mut lower));
        }
        let moves = if higher.is_empty() { lower.into_iter().collect() } else { higher };
        if moves.is_empty() {
            return Vec::new();
        }
        let concerns = |job: &str| moves.iter().any(|m: &Move| m.knob.concerns(job));
        let before = self.rates.take(concerns);
        let changed: Vec<_> = moves.iter().map(|m| (m.knob.clone(), m.to)).collect();
        for (knob, to) in &changed {
            if let Some(climb) = self.climb(knob) {
                climb.begin_trial(*to);
            }
        }
        self.trial = Some(Trial::new(moves, before));
        changed
    }

    /// Observes numbers on trial. Returns what they are set to if the trial failed.
    fn judge(&mut self, mut trial: Trial, sample: &TuningSample) -> Vec<(TunedParameter, usize)> {
        let verdict = trial.observe(sample);
        if verdict == Verdict::Open {
            self.trial = Some(trial);
            return Vec::new();
        }
        let is_kept = matches!(verdict, Verdict::Keep(_));
        if is_kept {
            self.rates = trial.rates();
        }
        for m in &trial.moves {
            if let Some(climb) = self.climb(&m.knob) {
                climb.end_trial(m, verdict);
            }
        }
        if is_kept { Vec::new() } else { trial.moves.into_iter().map(|m| (m.knob, m.from)).collect() }
    }

    fn climb(&mut self, knob: &TunedParameter) -> Option<&mut Climb> {
        match knob {
            TunedParameter::Threads => self.threads.as_mut(),
            TunedParameter::Readers(job) => self.readers.get_mut(job),
        }
    }
}

/// Adds a move to those to higher numbers, or makes it the one to a lower number.
fn sort_move(
    knob: TunedParameter,
    climb: &Climb,
    to: Option<usize>,
    (higher, lower): (&mut Vec<Move>, &mut Option<Move>),
) {
    match to.map(|to| Move { knob, from: climb.value, to }) {
        Some(m) if m.to > m.from => higher.push(m),
        Some(m) => drop(lower.get_or_insert(m)),
        None => {}
    }
}
