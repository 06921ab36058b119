//! What is known of something that workers share and that limits them all, such as a store.

/// Rates that differ by more than this fraction are not the same one, measured twice.
pub(super) const OTHER_RATE: f64 = 0.3;
/// Readers that wait for a smaller fraction of their time do not need more rows.
const SATISFIED_WAIT: f64 = 0.02;
/// Added workers that bring less than this fraction of the rows that were predicted are not the bottleneck.
const MIN_MARGINAL_GAIN: f64 = 0.3;
/// Seconds after which more workers are tried once more: what was the bottleneck may have become faster. They double with each
/// time that it still was.
const FIRST_RETRY_S: f64 = 600.0;
/// The most of these seconds: a try costs a few workers for two samples, and a store may become faster within a training.
const MAX_RETRY_S: f64 = 4.0 * 3600.0;

/// What a job had before its number of workers last rose.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Before {
    pub(super) workers: f64,
    /// Rows per second.
    pub(super) rate: f64,
    /// Rows per second of one worker.
    pub(super) per_worker: f64,
}

/// A window, as far as it says something about a ceiling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Window {
    pub(super) workers: f64,
    /// Rows per second, those of a worker, and those that the readers would take.
    pub(super) rate: f64,
    pub(super) per_worker: f64,
    pub(super) demand: f64,
    /// What the readers would have taken in this window alone, such as little while they validate.
    pub(super) demand_now: f64,
    /// The fraction of their time that the readers waited.
    pub(super) wait: f64,
    /// The workers worked in all of it: the epoch neither begins nor ends in it.
    pub(super) is_steady: bool,
}

/// What limits all workers together, if anything does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ceilings {
    found: Option<Ceiling>,
    /// Seconds after which the next ceiling is forgotten.
    retry_s: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Ceiling {
    /// The most rows per second that any number of workers has given.
    rate: f64,
    /// A worker's rate alone.
    alone: f64,
    /// Seconds since it was found.
    age_s: f64,
}

impl Default for Ceilings {
    fn default() -> Self {
        Self { found: None, retry_s: FIRST_RETRY_S }
    }
}

impl Ceilings {
    /// The most rows per second that any number of workers gives.
    pub(super) fn rate(&self) -> Option<f64> {
        self.found.map(|c| c.rate)
    }

    /// The workers that reach it.
    pub(super) fn workers(&self) -> Option<f64> {
        self.found.map(|c| c.rate / c.alone)
    }

    /// Time passes. A ceiling that was found long ago is forgotten.
    pub(super) fn pass(&mut self, seconds: f64) {
        let Some(ceiling) = &mut self.found else { return };
        ceiling.age_s += seconds;
        if ceiling.age_s >= self.retry_s {
            *self = Self { found: None, retry_s: (2.0 * self.retry_s).min(MAX_RETRY_S) };
        }
    }

    /// Compares a window with what is known, and with what was predicted if it is the first one after workers came.
    pub(super) fn record(&mut self, window: &Window, before: Option<Before>) {
        self.check(window);
        let Some(before) = before else { return };
        let predicted = (before.rate * window.workers / before.workers).min(window.demand);
        let gain = (window.rate - before.rate) / (predicted - before.rate);
        if predicted > before.rate && gain < MIN_MARGINAL_GAIN && window.wait > SATISFIED_WAIT {
            let rate = window.rate.max(before.rate);
            self.found = Some(Ceiling { rate, alone: before.per_worker, age_s: 0.0 });
        }
    }

    /// Forgets a ceiling that the window contradicts.
    fn check(&mut self, window: &Window) {
        let Some(ceiling) = &mut self.found else { return };
        let is_other_pipeline = window.per_worker > ceiling.alone * (1.0 + OTHER_RATE);
        // Workers that were only slow to begin, or a store that stood still for a moment.
        let is_exceeded = window.rate > ceiling.rate * (1.0 + OTHER_RATE);
        // What workers share gives as much to fewer of them, if these are enough and the readers take it. A rate that fell by more was no
        // ceiling, or is none any more.
        let is_reachable = window.workers * ceiling.alone >= ceiling.rate;
        let expected = ceiling.rate.min(window.demand_now);
        let has_fallen = is_reachable && window.rate < expected * (1.0 - OTHER_RATE);
        // Readers that would take more than that, and do not wait.
        let is_satisfied = window.wait < SATISFIED_WAIT && window.demand_now > ceiling.rate;
        ceiling.rate = ceiling.rate.max(if window.is_steady { window.rate } else { 0.0 });
        if is_exceeded || window.is_steady && (is_satisfied || is_other_pipeline || has_fallen) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: f64 = 200.0;

    fn window(workers: f64) -> Window {
        let rate = (100.0 * workers).min(STORE);
        let (demand, demand_now) = (1000.0, 1000.0);
        Window { workers, rate, per_worker: rate / workers, demand, demand_now, wait: 0.8, is_steady: true }
    }

    fn found() -> Ceilings {
        let mut ceilings = Ceilings::default();
        let before = Before { workers: 2.0, rate: 200.0, per_worker: 100.0 };
        ceilings.record(&window(8.0), Some(before));
        assert_eq!((ceilings.rate(), ceilings.workers()), (Some(STORE), Some(2.0)));
        ceilings
    }

    #[test]
    fn workers_that_come_late_end_a_ceiling() {
        let mut ceilings = found();
        ceilings.record(&window(8.0), None);
        assert_eq!(ceilings.rate(), Some(STORE));
        // All eight give their rows now.
        ceilings.record(&Window { rate: 800.0, per_worker: 100.0, ..window(8.0) }, None);
        assert_eq!(ceilings.rate(), None);
    }

    #[test]
    fn a_rate_within_the_error_raises_a_ceiling() {
        let mut ceilings = found();
        ceilings.record(&Window { rate: 220.0, ..window(3.0) }, None);
        assert_eq!(ceilings.rate(), Some(220.0));
    }

    /// Readers that validate take little, which says nothing of the store.
    #[test]
    fn a_pause_of_the_readers_ends_no_ceiling() {
        let mut ceilings = found();
        ceilings.record(&Window { rate: 30.0, demand_now: 30.0, wait: 0.0, ..window(3.0) }, None);
        assert_eq!(ceilings.rate(), Some(STORE));
        ceilings.record(&Window { rate: 30.0, ..window(3.0) }, None);
        assert_eq!(ceilings.rate(), None, "they wait, and get less than the store gave");
    }

    /// The windows in which an epoch begins and ends may exceed a ceiling, and say nothing else.
    #[test]
    fn a_ceiling_is_exceeded_in_any_window() {
        let mut ceilings = found();
        ceilings.record(&Window { rate: 30.0, is_steady: false, ..window(8.0) }, None);
        assert_eq!(ceilings.rate(), Some(STORE));
        ceilings.record(&Window { rate: 800.0, is_steady: false, ..window(8.0) }, None);
        assert_eq!(ceilings.rate(), None);
    }

    #[test]
    fn more_workers_are_tried_again_after_pauses_that_become_longer() {
        let mut ceilings = found();
        let mut forgotten_after = Vec::new();
        for _ in 0..3 {
            let mut seconds = 0.0;
            while ceilings.rate().is_some() {
                ceilings.pass(60.0);
                ceilings.record(&window(2.0), None);
                seconds += 60.0;
            }
            forgotten_after.push(seconds);
            let before = Before { workers: 2.0, rate: 200.0, per_worker: 100.0 };
            ceilings.record(&window(8.0), Some(before));
        }
        assert_eq!(forgotten_after, [600.0, 1200.0, 2400.0]);
    }
}
