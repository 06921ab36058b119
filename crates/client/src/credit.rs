//! Credits: the bytes that workers may send.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// The smallest window of a task, in bytes.
const LEAST_WINDOW: usize = 1 << 20;

/// The memory for prefetched rows that all tasks of a reader share.
#[derive(Debug)]
pub(crate) struct Shares {
    total: usize,
    tasks: AtomicUsize,
}

impl Shares {
    pub(crate) fn new(total: usize) -> Self {
        Self { total, tasks: AtomicUsize::new(0) }
    }

    pub(crate) fn join(&self) {
        self.tasks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self) {
        self.tasks.fetch_sub(1, Ordering::Relaxed);
    }

    /// The window of one task, in bytes.
    pub(crate) fn window(&self) -> u64 {
        let tasks = self.tasks.load(Ordering::Relaxed).max(1);
        (self.total / tasks).max(LEAST_WINDOW) as u64
    }
}

/// The credit of one connection: arriving rows use it up, and rows that the user takes return it.
#[derive(Debug)]
pub(crate) struct Credit {
    shares: Arc<Shares>,
    window: AtomicU64,
    held: AtomicU64,
    freed: AtomicU64,
    notify: Notify,
    end: AtomicU64,
}

/// What is sent to the worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CreditGrant {
    /// Bytes that are free again, and bytes by which the window shrinks.
    Bytes { bytes: u64, shrink: u64 },
    /// Everything was received.
    Ack,
    /// Nothing: the connection is over.
    Over,
}

const ACK: u64 = 1;
const OVER: u64 = 2;

impl Credit {
    pub(crate) fn new(shares: Arc<Shares>) -> Self {
        let window = AtomicU64::new(shares.window());
        Self {
            shares,
            window,
            held: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            notify: Notify::new(),
            end: AtomicU64::new(0),
        }
    }

    /// The window at the beginning.
    pub(crate) fn window(&self) -> u64 {
        self.window.load(Ordering::Relaxed)
    }

    /// Bytes have arrived.
    pub(crate) fn arrived(&self, bytes: u64) {
        self.held.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The user has taken the rows. Small amounts are collected, unless the worker may be waiting for them.
    pub(crate) fn free(&self, bytes: u64) {
        let held = self.held.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        let freed = self.freed.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if held == 0 || freed * 4 >= self.window() {
            self.notify.notify_one();
        }
    }

    /// The stream has ended; `ack`: successfully.
    pub(crate) fn finish(&self, ack: bool) {
        self.end.store(if ack { ACK } else { OVER }, Ordering::Release);
        self.notify.notify_one();
    }

    /// Waits for something to send.
    pub(crate) async fn next(&self) -> CreditGrant {
        loop {
            match self.end.load(Ordering::Acquire) {
                ACK => return CreditGrant::Ack,
                OVER => return CreditGrant::Over,
                _ => {}
            }
            let bytes = self.freed.swap(0, Ordering::Relaxed);
            if bytes > 0 {
                let (window, target) = (self.window(), self.shares.window());
                let shrink = window.saturating_sub(target);
                self.window.fetch_sub(shrink, Ordering::Relaxed);
                return CreditGrant::Bytes { bytes, shrink };
            }
            self.notify.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn windows_shrink_with_more_tasks_and_credit_is_collected() {
        let shares = Arc::new(Shares::new(64 << 20));
        shares.join();
        let credit = Credit::new(Arc::clone(&shares));
        assert_eq!(credit.window(), 64 << 20);
        shares.join();
        credit.arrived(100);
        credit.arrived(100);
        credit.free(100);
        assert!(futures::poll!(Box::pin(credit.notify.notified())).is_pending(), "not worth a frame");
        credit.free(100);
        assert_eq!(credit.next().await, CreditGrant::Bytes { bytes: 200, shrink: 32 << 20 });
        assert_eq!(credit.window(), 32 << 20);
        credit.finish(true);
        assert_eq!(credit.next().await, CreditGrant::Ack);
    }
}
