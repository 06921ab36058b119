//! A gate that is passed once it was opened.

use std::sync::atomic::{AtomicBool, Ordering};

use caju_runtime::Condition;

/// A gate, closed at first. Once open it stays open.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    open: AtomicBool,
    opened: Condition,
}

impl Gate {
    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::Release);
        self.opened.notify_all();
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Waits until it is open.
    pub(crate) async fn pass(&self) {
        self.opened.wait_until(|| self.is_open()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_waits_passes_when_it_opens_and_later() {
        let gate = Gate::default();
        let mut waiting = Box::pin(gate.pass());
        assert!(futures::poll!(&mut waiting).is_pending());
        gate.open();
        waiting.await;
        gate.pass().await;
    }
}
