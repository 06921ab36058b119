//! One number that is raised while that brings rows, and lowered when it is not needed.

use super::trial::{Move, Verdict};
use super::{ThreadSample, TunedJob, TuningSample};

/// Steps in a row that must ask for a higher number: one alone may be a coincidence.
const STEPS_TO_RAISE: u32 = 2;
/// Steps in a row that must ask for a lower number. A number that is too high costs memory, and no rows.
const STEPS_TO_LOWER: u32 = 10;
/// Steps for which nothing is tried after a first trial that brought nothing; each further one doubles them.
const FIRST_HOLD: u32 = 8;
/// The most such steps: a minute of half-second steps, so that trials in vain take less than a tenth of the time.
const MAX_HOLD: u32 = 120;

/// Threads are short if this fraction of them is held by rows,
const BUSY: f64 = 0.85;
/// and if this fraction of those waits for something other than a core,
const WAITING: f64 = 0.15;
/// while this fraction of the cores is idle.
const IDLE: f64 = 0.15;
/// Threads are too many if this fraction of them would keep all cores busy: the others wait for a core.
const ENOUGH: f64 = 0.7;
/// Threads or readers of which less than this fraction is busy are too many.
const SPARE: f64 = 0.5;
/// More readers may help if the readers are at their limit, and if they wait for the store for this fraction of their time,
const READING: f64 = 0.8;
/// and if the consumers make the output wait for less than this fraction.
const CONSUMER: f64 = 0.1;

/// What a step says about a number.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Need {
    /// A higher one, up to this, may bring rows.
    More(usize, String),
    /// A lower one, such as this, would do.
    Less(usize, String),
    /// Neither.
    Same,
}

/// Whether more threads may help: those that there are wait, and cores are idle. Or whether fewer would do.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; saturates")]
pub(super) fn threads_needed(value: usize, sample: &TuningSample, threads: &ThreadSample) -> Need {
    let (count, idle) = (value as f64, idle_cores(sample));
    let waiting = (threads.busy - threads.wanted).max(0.0) / threads.busy.max(1e-9);
    let is_busy = threads.busy >= BUSY * count;
    // The optimum of the linear program: as many threads as keep all cores busy.
    let available = (threads.wanted + idle).min(sample.cores);
    let optimum = (count * available / threads.wanted.max(1e-9)).ceil();
    if is_busy && waiting >= WAITING && idle >= IDLE * sample.cores {
        let percent = (100.0 * waiting).round();
        let why = format!("{value} threads wait for {percent} % of their time, and {idle:.1} cores are idle");
        return Need::More(optimum as usize, why);
    }
    if is_busy && optimum <= ENOUGH * count {
        return Need::Less(optimum as usize, format!("{value} threads wait for cores"));
    }
    if threads.busy < SPARE * count {
        return Need::Less(value / 2, format!("rows hold {:.1} of {value} threads", threads.busy));
    }
    Need::Same
}

/// Cores that nobody in the worker's process wants.
fn idle_cores(sample: &TuningSample) -> f64 {
    (sample.cores - sample.wanted_cores).max(0.0)
}

/// Whether more splits should be read concurrently: all readers wait for the store, and neither cores nor consumers are the limit.
pub(super) fn readers_needed(value: usize, sample: &TuningSample, job: &TunedJob) -> Need {
    let (count, all) = (value as f64, job.reading + job.blocked);
    let idle = idle_cores(sample);
    let reading = job.reading / all.max(1e-9);
    // Between two splits a reader waits for a lease.
    let at_limit = all >= 0.6 * count;
    if at_limit && reading >= READING && job.consumer_wait < CONSUMER && idle >= IDLE * sample.cores {
        let percent = (100.0 * reading).round();
        let why = format!(
            "{value} readers wait for the store for {percent} % of their time, and {idle:.1} cores are idle"
        );
        return Need::More(usize::MAX, why);
    }
    if at_limit && reading < SPARE {
        let percent = (100.0 * (1.0 - reading)).round();
        return Need::Less(
            value / 2,
            format!("{value} readers wait for the stages for {percent} % of their time"),
        );
    }
    Need::Same
}

/// A number that is tuned.
#[derive(Debug)]
pub(super) struct Climb {
    pub(super) value: usize,
    pub(super) reason: String,
    /// Steps since the job was here.
    pub(super) away: u32,
    least: usize,
    most: usize,
    /// Steps in a row that asked for more, and for less.
    short: u32,
    spare: u32,
    /// Steps for which nothing is tried.
    hold: u32,
    /// Trials in a row that brought nothing.
    failures: u32,
}

impl Climb {
    pub(super) fn new((least, most): (usize, usize)) -> Self {
        Self {
            value: least,
            reason: "the first number".to_string(),
            away: 0,
            least,
            most: most.max(least),
            short: 0,
            spare: 0,
            hold: 0,
            failures: 0,
        }
    }

    /// Takes in what a step says; the number that is tried next, if one is. `is_measured`: whether the present rate is known.
    pub(super) fn consider(&mut self, need: Need, is_measured: bool) -> Option<usize> {
        self.hold = self.hold.saturating_sub(1);
        (self.short, self.spare) = match &need {
            Need::More(..) => (self.short + 1, 0),
            Need::Less(..) => (0, self.spare + 1),
            Need::Same => (0, 0),
        };
        if self.hold > 0 || !is_measured {
            return None;
        }
        let (to, why) = match need {
            Need::More(optimum, why) if self.short >= STEPS_TO_RAISE => {
                (self.value.saturating_mul(2).min(optimum).min(self.most), why)
            }
            Need::Less(enough, why) if self.spare >= STEPS_TO_LOWER => (enough.max(self.least), why),
            _ => return None,
        };
        if to == self.value || (to < self.value) != (self.short == 0) {
            return None;
        }
        self.reason = format!("{why}; {to} are tried");
        Some(to)
    }

    /// Tries a number.
    pub(super) fn begin_trial(&mut self, to: usize) {
        (self.value, self.short, self.spare) = (to, 0, 0);
    }

    /// Takes in how the trial of a move ended.
    pub(super) fn end_trial(&mut self, tried: &Move, verdict: Verdict) {
        let (from, to) = (tried.from, tried.to);
        match verdict {
            Verdict::Keep(gain) => {
                (self.failures, self.hold) = (0, 0);
                self.reason = match to > from {
                    true => format!("with {to} instead of {from} there were {} more rows", percent(gain)),
                    false => format!("{to} instead of {from} were enough for as many rows"),
                };
            }
            Verdict::Revert(gain) => {
                self.value = from;
                self.hold = (FIRST_HOLD << self.failures.min(8)).min(MAX_HOLD);
                self.failures += 1;
                self.reason = match to > from {
                    true => format!(
                        "{to} instead of {from} brought {} more rows, which is too few",
                        percent(gain)
                    ),
                    false => format!("with {to} instead of {from} there were {} fewer rows", percent(-gain)),
                };
            }
            Verdict::Open | Verdict::Unknown => {
                self.value = from;
                self.hold = FIRST_HOLD;
                self.reason = format!("the job ended before {to} instead of {from} were measured");
            }
        }
    }
}

fn percent(gain: f64) -> String {
    format!("{:.0} %", 100.0 * gain.max(0.0))
}
