//! Consumers of a task that got fewer elements than the others, as the dispatcher says.

use std::sync::atomic::{AtomicBool, Ordering};

use caju_runtime::Condition;
use parking_lot::Mutex;

/// What a task knows of lagging consumers. The feed and the heartbeats report them, and the task's `RoundRobin` serves them.
#[derive(Debug, Default)]
pub(crate) struct LaggingConsumers {
    /// Elements that each consumer is to get before the next round.
    owed: Mutex<Vec<u64>>,
    /// The dispatcher has to be asked who gets the next elements.
    query_due: AtomicBool,
    changed: Condition,
}

impl LaggingConsumers {
    /// Some consumers are lagging: the dispatcher has to be asked who gets the next elements.
    pub(crate) fn set_query_due(&self) {
        self.query_due.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Whether the dispatcher has to be asked. A call after this one answers by what the dispatcher knows then.
    pub(crate) fn take_query_due(&self) -> bool {
        self.query_due.swap(false, Ordering::AcqRel)
    }

    /// Waits until the dispatcher has to be asked.
    pub(crate) async fn query_due(&self) {
        self.changed.wait_until(|| self.query_due.load(Ordering::Acquire)).await;
    }

    /// Each consumer is to get this number of elements before the next round.
    pub(crate) fn add_owed(&self, counts: &[u64]) {
        let mut owed = self.owed.lock();
        let consumers = owed.len().max(counts.len());
        owed.resize(consumers, 0);
        owed.iter_mut().zip(counts).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
    }

    /// What each consumer is still to get.
    pub(crate) fn owed(&self) -> Vec<u64> {
        self.owed.lock().clone()
    }

    /// Gives consumers what they are owed, as long as there are elements.
    pub(crate) fn serve<T>(&self, mut next: impl FnMut() -> Option<T>) -> Vec<(usize, T)> {
        let mut served = Vec::new();
        for (consumer, owed) in self.owed.lock().iter_mut().enumerate() {
            while *owed > 0 {
                let Some(element) = next() else { return served };
                served.push((consumer, element));
                *owed -= 1;
            }
        }
        served
    }
}
