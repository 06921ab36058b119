//! When consumers are killed, and from which states they go on.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_client::ReaderState;
use parking_lot::Mutex;
use tokio::sync::watch;

/// An epoch, and the number of its elements that a consumer had taken; `u64::MAX`: all of them.
pub(crate) type Step = (u64, u64);

/// A state of a consumer, and what its user had by then.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    pub(crate) state: ReaderState,
    /// The number of parts of its record, and what the last one had.
    pub(crate) parts: usize,
    pub(crate) elements: u64,
    pub(crate) ids: usize,
    pub(crate) shapes: usize,
}

/// How a consumer starts.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    /// How often it was started before.
    pub(crate) generation: u64,
    /// How often all consumers were started again.
    pub(crate) launch: u64,
    /// The state that it goes on from; none: nothing was saved.
    pub(crate) saved: Option<Saved>,
}

/// The consumers of a run.
#[derive(Debug)]
pub(crate) struct Launches {
    inner: Mutex<Inner>,
    changes: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Inner {
    launch: u64,
    consumers: Vec<Consumer>,
}

#[derive(Debug, Clone, Default)]
struct Consumer {
    state: ConsumerState,
    generation: u64,
    /// It has come back by itself since all were started.
    has_returned: bool,
    /// How long it is away before it starts again.
    back: Duration,
    saved: BTreeMap<Step, Saved>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ConsumerState {
    #[default]
    Running,
    /// It has read everything.
    Finished,
    /// It has ended with an error that asks for a start from the states of one step.
    OutOfStep,
}

impl Launches {
    /// Of a number of consumers.
    pub(crate) fn new(consumers: usize) -> Self {
        let inner = Inner { launch: 0, consumers: vec![Consumer::default(); consumers] };
        Self { inner: Mutex::new(inner), changes: watch::Sender::new(()) }
    }

    /// A consumer dies, and comes back with its last state. What one without a state had taken is known to nobody: then all
    /// consumers start again.
    pub(crate) fn kill(&self, consumer: usize, back: Duration) {
        let mut inner = self.inner.lock();
        match inner.consumers.get_mut(consumer).filter(|c| c.state == ConsumerState::Running) {
            Some(own) if own.saved.is_empty() => inner.launch(back),
            Some(own) => (own.generation, own.back, own.has_returned) = (own.generation + 1, back, true),
            None => {}
        }
        drop(inner);
        self.changes.send_replace(());
    }

    /// All consumers die, and go on from their states of the last step of which all have one.
    pub(crate) fn kill_all(&self, back: Duration) {
        let mut inner = self.inner.lock();
        if !inner.is_over() {
            inner.launch(back);
        }
        drop(inner);
        self.changes.send_replace(());
    }

    /// A consumer has read everything.
    pub(crate) fn finish(&self, consumer: usize) {
        self.end(consumer, ConsumerState::Finished);
    }

    /// A consumer has ended with an error that asks for a start from the states of one step.
    pub(crate) fn fall_out_of_step(&self, consumer: usize) {
        self.end(consumer, ConsumerState::OutOfStep);
    }

    fn end(&self, consumer: usize, state: ConsumerState) {
        let mut inner = self.inner.lock();
        inner.consumers.get_mut(consumer).into_iter().for_each(|c| c.state = state);
        let has = |state| inner.consumers.iter().any(|c| c.state == state);
        if !has(ConsumerState::Running) && has(ConsumerState::OutOfStep) {
            inner.launch(Duration::ZERO);
        }
        drop(inner);
        self.changes.send_replace(());
    }

    /// Whether a consumer has come back by itself since all were started.
    pub(crate) fn has_returned(&self, consumer: usize) -> bool {
        self.inner.lock().consumers.get(consumer).is_some_and(|c| c.has_returned)
    }

    /// Whether another consumer has read everything, or has ended with an error.
    pub(crate) fn has_others_that_ended(&self, consumer: usize) -> bool {
        let inner = self.inner.lock();
        inner
            .consumers
            .iter()
            .enumerate()
            .any(|(other, c)| other != consumer && c.state != ConsumerState::Running)
    }

    /// Whether a consumer has ended with an error that asks for a start of all.
    pub(crate) fn awaits_restart(&self) -> bool {
        self.inner.lock().consumers.iter().any(|c| c.state == ConsumerState::OutOfStep)
    }

    /// A consumer saves its state.
    pub(crate) fn save(&self, consumer: usize, step: Step, saved: Saved) {
        if let Some(own) = self.inner.lock().consumers.get_mut(consumer) {
            own.saved.insert(step, saved);
        }
    }

    /// Waits until a consumer of a generation dies or is to start again; false: all consumers have read everything.
    pub(crate) async fn dies(&self, consumer: usize, generation: u64) -> bool {
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            {
                let inner = self.inner.lock();
                if inner.consumers.get(consumer).is_some_and(|c| c.generation != generation) {
                    return true;
                }
                if inner.is_over() {
                    return false;
                }
            }
            if changes.changed().await.is_err() {
                return false;
            }
        }
    }

    /// How long a consumer that died is away.
    pub(crate) fn back(&self, consumer: usize) -> Duration {
        self.inner.lock().consumers.get(consumer).map(|c| c.back).unwrap_or_default()
    }

    /// How a consumer starts now.
    pub(crate) fn start(&self, consumer: usize) -> Start {
        let inner = self.inner.lock();
        let own = inner.consumers.get(consumer);
        Start {
            generation: own.map_or(0, |c| c.generation),
            launch: inner.launch,
            saved: own.and_then(|c| c.saved.values().next_back()).cloned(),
        }
    }
}

impl Inner {
    fn is_over(&self) -> bool {
        self.consumers.iter().all(|c| c.state == ConsumerState::Finished)
    }

    fn launch(&mut self, back: Duration) {
        self.launch += 1;
        let step = self.last_common_step();
        for consumer in &mut self.consumers {
            consumer.saved.retain(|of, _| step.is_some_and(|step| *of <= step));
            (consumer.state, consumer.generation, consumer.back) =
                (ConsumerState::Running, consumer.generation + 1, back);
        }
    }

    fn last_common_step(&self) -> Option<Step> {
        let (first, others) = self.consumers.split_first()?;
        let is_common = |step: &&Step| others.iter().all(|c| c.saved.contains_key(step));
        first.saved.keys().rev().find(is_common).copied()
    }
}
