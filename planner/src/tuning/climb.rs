//! One number that is raised while that brings rows, and lowered when it is not needed.

use super::trial::{Move, Verdict};
use super::{ThreadSample, TunedJob, TuningSample};

/// Steps in a row that must ask for a higher number before it is tried. One step alone may be a coincidence.
const STEPS_TO_RAISE: u32 = 2;
/// Steps in a row that must ask for a lower number before it is tried. It may be long, because a number that is too high costs
/// memory and no rows.
const STEPS_TO_LOWER: u32 = 10;
/// Steps without a trial after a first trial that brought nothing: 4 seconds of half-second steps. Each further one doubles them.
const FIRST_HOLD: u32 = 8;
/// The most steps without a trial: a minute of half-second steps. Trials in vain then take less than a tenth of the time.
const MAX_HOLD: u32 = 120;

/// The least fraction of the threads that rows hold, when threads are too few. Below it a free thread is there for the next row.
const MIN_HELD_IF_TOO_FEW: f64 = 0.85;
/// The least fraction of their time that held threads wait for something other than a core, when threads are too few. Two
/// threads that wait for a quarter of their time leave a quarter of two cores idle; less than this is worth no trial.
const MIN_WAITING_IF_TOO_FEW: f64 = 0.15;
/// The least fraction of the cores that is idle, when threads or readers are too few. More of them can use no more than that.
const MIN_IDLE_CORES: f64 = 0.15;
/// The largest fraction of the threads that would keep all cores busy, when threads are too many. The remainder waits for a core.
/// It is far below 1 so that a number that was just raised is not lowered.
const MAX_NEEDED_IF_TOO_MANY: f64 = 0.7;
/// The largest fraction of the threads that rows hold, or of their time that readers read, when they are too many. Half of the
/// number then does as much, and the number is halved.
const MAX_USED_IF_TOO_MANY: f64 = 0.5;
/// The least fraction of the readers that read or wait for the stages, when the number of readers is what limits. Between two
/// splits a reader waits for a lease.
const MIN_ACTIVE_READERS: f64 = 0.6;
/// The least fraction of their time that readers wait for the store, when readers are too few. The rest goes to batches that wait
/// for the stages.
const MIN_READING_IF_TOO_FEW: f64 = 0.8;
/// The largest fraction of the time that the output waits for consumers, when readers are too few. Above it the consumers may be
/// the limit.
const MAX_CONSUMER_WAIT: f64 = 0.1;

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
    let is_busy = threads.busy >= MIN_HELD_IF_TOO_FEW * count;
    // The optimum of the linear program: as many threads as keep all cores busy.
    let available = (threads.wanted + idle).min(sample.cores);
    let optimum = (count * available / threads.wanted.max(1e-9)).ceil();
    if is_busy && waiting >= MIN_WAITING_IF_TOO_FEW && idle >= MIN_IDLE_CORES * sample.cores {
        let percent = (100.0 * waiting).round();
        let why = format!("{value} threads wait for {percent} % of their time, and {idle:.1} cores are idle");
        return Need::More(optimum as usize, why);
    }
    if is_busy && optimum <= MAX_NEEDED_IF_TOO_MANY * count {
        return Need::Less(optimum as usize, format!("{value} threads wait for cores"));
    }
    if threads.busy < MAX_USED_IF_TOO_MANY * count {
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
    let at_limit = all >= MIN_ACTIVE_READERS * count;
    if at_limit
        && reading >= MIN_READING_IF_TOO_FEW
        && job.consumer_wait < MAX_CONSUMER_WAIT
        && idle >= MIN_IDLE_CORES * sample.cores
    {
        let percent = (100.0 * reading).round();
        let why = format!(
            "{value} readers wait for the store for {percent} % of their time, and {idle:.1} cores are idle"
        );
        return Need::More(usize::MAX, why);
    }
    if at_limit && reading < MAX_USED_IF_TOO_MANY {
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
    pub(super) fn propose(&mut self, need: Need, is_measured: bool) -> Option<usize> {
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
