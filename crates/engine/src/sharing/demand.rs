//! What the readers of a task take, as far as tasks have to know that share its rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use caju_runtime::{Clock, OrderedMutex};

use super::locks;

/// Over what time it is averaged whether rows are held back. A reader takes rows in bursts: one batch per step, for example.
const AVERAGED_OVER: Duration = Duration::from_millis(500);

/// For how much of the time rows are held back at a point of a task whose own stages hold them back. Where those stages only take
/// their share of the cores, rows that are computed twice cost more than the wait: so it is high.
const MOSTLY_HELD: f64 = 0.9;

/// What the readers of a task take.
///
/// A task computes as fast as its readers take rows. Another task that reads the same rows from the window would be as slow,
/// also where its own reader could take more. So each task says for how much of the time its output is full, and whether its
/// readers have space for more.
#[derive(Debug)]
pub struct Demand {
    clock: Arc<dyn Clock>,
    output: OrderedMutex<Output>,
    /// The connections whose reader has used less than half of its prefetch.
    starved: AtomicUsize,
}

/// How much of the time an output is full.
#[derive(Debug, Default)]
struct Output {
    is_full: bool,
    /// The share of the time, until `at`.
    share: f64,
    at: Duration,
}

impl Output {
    /// The share until now. Older times count less.
    fn share(&self, now: Duration) -> f64 {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        let kept = (-passed / AVERAGED_OVER.as_secs_f64()).exp();
        self.share * kept + if self.is_full { 1.0 - kept } else { 0.0 }
    }

    fn set(&mut self, is_full: bool, now: Duration) {
        *self = Self { is_full, share: self.share(now), at: now };
    }
}

impl Demand {
    /// The demand of a task whose output is empty, and that has no reader.
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let output = OrderedMutex::new(locks::WAITING_SHARE, Output { at: clock.now(), ..Output::default() });
        Arc::new(Self { clock, output, starved: AtomicUsize::new(0) })
    }

    /// The output of the task is full until the guard is dropped.
    pub fn output_is_full(&self) -> FullOutput<'_> {
        self.output.lock().set(true, self.clock.now());
        FullOutput(self)
    }

    /// One more connection of the task (`true`) or one less has a reader that could hold at least as much as it does.
    pub fn connection_is_starved(&self, is_starved: bool) {
        match is_starved {
            true => self.starved.fetch_add(1, Ordering::Relaxed),
            false => self.starved.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Whether the task mostly waits for its readers.
    pub(super) fn is_full(&self) -> bool {
        self.output.lock().share(self.clock.now()) > 0.5
    }

    /// Whether some reader of the task could take more than it gets. Not while the output is full: then the connection is what
    /// holds rows back, or another consumer.
    pub fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed) > 0 && !self.is_full()
    }
}

/// For how much of the time the rows at one sharing point of a task are held back by the task's own stages below the point.
///
/// Another task that reads the rows there would be as slow as those stages, which it does not have.
#[derive(Debug)]
pub(crate) struct HeldBack {
    clock: Arc<dyn Clock>,
    output: OrderedMutex<Output>,
}

impl HeldBack {
    /// A point at which no row has passed.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        let output = OrderedMutex::new(locks::WAITING_SHARE, Output { at: clock.now(), ..Output::default() });
        Arc::new(Self { clock, output })
    }

    /// Rows have passed, and the stages below do not ask for more (`true`), or they ask again.
    pub(crate) fn set(&self, is_held: bool) {
        self.output.lock().set(is_held, self.clock.now());
    }

    /// Whether rows mostly wait for the stages below.
    pub(super) fn is_held(&self) -> bool {
        self.output.lock().share(self.clock.now()) > MOSTLY_HELD
    }
}

/// Marks the output of a task as full.
#[derive(Debug)]
pub struct FullOutput<'a>(&'a Demand);

impl Drop for FullOutput<'_> {
    fn drop(&mut self) {
        self.0.output.lock().set(false, self.0.clock.now());
    }
}
