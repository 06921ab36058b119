//! Consumers of a task that are behind the others, as the dispatcher says.

use std::sync::atomic::{AtomicBool, Ordering};

use caju_runtime::Condition;
use parking_lot::Mutex;

/// What a task knows of consumers that are behind. The feed and the heartbeats learn of them, and the dealer serves them.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    /// Elements that each consumer is to get before the next round.
    promised: Mutex<Vec<u64>>,
    /// The dispatcher says who gets the next elements.
    must_ask: AtomicBool,
    changed: Condition,
}

impl Behind {
    /// Some consumers are behind: the dispatcher says who gets the next elements.
    pub(crate) fn ask(&self) {
        self.must_ask.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Whether the dispatcher is to be asked now. What it is asked from now on, it answers by what it knows then.
    pub(crate) fn take_ask(&self) -> bool {
        self.must_ask.swap(false, Ordering::AcqRel)
    }

    /// Waits until the dispatcher is to be asked.
    pub(crate) async fn asking(&self) {
        self.changed.wait_until(|| self.must_ask.load(Ordering::Acquire)).await;
    }

    /// Each consumer is to get its number of elements before the next round.
    pub(crate) fn promise(&self, counts: &[u64]) {
        let mut promised = self.promised.lock();
        let consumers = promised.len().max(counts.len());
        promised.resize(consumers, 0);
        promised.iter_mut().zip(counts).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
    }

    /// What was promised and not given.
    pub(crate) fn promised(&self) -> Vec<u64> {
        self.promised.lock().clone()
    }

    /// Gives what was promised, as long as there are elements.
    pub(crate) fn serve<T>(&self, mut next: impl FnMut() -> Option<T>) -> Vec<(usize, T)> {
        let mut served = Vec::new();
        for (consumer, promised) in self.promised.lock().iter_mut().enumerate() {
            while *promised > 0 {
                let Some(element) = next() else { return served };
                served.push((consumer, element));
                *promised -= 1;
            }
        }
        served
    }
}
