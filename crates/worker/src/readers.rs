//! The readers of a task.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use caju_runtime::Condition;
use tokio::time::Instant;

/// Who reads a task now, and what became of those who left.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    count: AtomicUsize,
    /// A reader disconnected with rows that it may not have received.
    lost_rows: AtomicBool,
    /// The only possible reader disconnected for good.
    abandoned: AtomicBool,
    changed: Condition,
}

/// How the wait for the readers of a task ended.
pub(crate) enum Received {
    /// They have received everything.
    All,
    /// The only possible reader left before that.
    LeftEarly,
    /// Nobody came to read what is left.
    Unread,
}

impl Readers {
    /// Whether a reader disconnected with rows that it may not have received.
    pub(crate) fn may_have_lost_rows(&self) -> bool {
        self.lost_rows.load(Ordering::Acquire)
    }

    /// A reader comes.
    pub(crate) fn enter(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_all();
    }

    /// A reader leaves: it may have lost rows with it, or it was the only possible one and has not received everything.
    pub(crate) fn leave(&self, lost_rows: bool, abandons: bool) {
        self.lost_rows.fetch_or(lost_rows, Ordering::AcqRel);
        self.abandoned.fetch_or(abandons, Ordering::AcqRel);
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.changed.notify_all();
    }

    fn are_absent(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// Waits until a reader is there, or none will come; false if that takes longer than `linger`.
    async fn come_back(&self, until: Instant) -> bool {
        let back = self.changed.wait_until(|| !self.are_absent() || self.is_abandoned());
        tokio::time::timeout_at(until, back).await.is_ok()
    }

    /// Waits until nobody has read the task for `linger`, or its only reader has left for good.
    pub(crate) async fn gone(&self, linger: Duration) {
        loop {
            self.changed.wait_until(|| self.are_absent()).await;
            if self.is_abandoned() || !self.come_back(Instant::now() + linger).await {
                return;
            }
        }
    }

    /// Waits until readers have received everything: `is_empty` says that nothing is left for them to take.
    pub(crate) async fn until_received(&self, is_empty: impl Fn() -> bool, linger: Duration) -> Received {
        let mut until = Instant::now() + linger;
        loop {
            self.changed.wait_until(|| self.are_absent()).await;
            if self.is_abandoned() {
                return Received::LeftEarly;
            }
            if is_empty() && !self.may_have_lost_rows() {
                return Received::All;
            }
            // Rows wait for a reader to connect, or the dispatcher finds out what a disconnected one received.
            if !self.come_back(until).await {
                return Received::Unread;
            }
            until = Instant::now() + linger;
        }
    }
}
