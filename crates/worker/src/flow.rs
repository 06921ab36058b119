//! The credit of a connection: how many bytes may be sent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use caju_engine::Demand;
use caju_wire::frame::CreditHeader;
use tokio::sync::Notify;

/// The bytes that may be sent.
pub(crate) struct Flow {
    window: AtomicU64,
    outstanding: AtomicU64,
    credit: Notify,
    /// Who has to know whether the reader could hold more.
    demand: OnceLock<Arc<Demand>>,
    is_starved: AtomicBool,
}

impl Flow {
    pub(crate) fn new(window: u64) -> Self {
        Self {
            window: AtomicU64::new(window.max(1)),
            outstanding: AtomicU64::new(0),
            credit: Notify::new(),
            demand: OnceLock::new(),
            is_starved: AtomicBool::new(false),
        }
    }

    /// From now on the demand of the task knows whether the reader has used less than half of its window.
    pub(crate) fn attach_demand(&self, demand: Arc<Demand>) {
        self.demand.get_or_init(|| demand);
        self.update_hunger();
    }

    /// Waits until something may be sent.
    pub(crate) async fn credit(&self) {
        while !self.may_send() {
            self.credit.notified().await;
        }
    }

    /// Bytes are about to be sent.
    pub(crate) fn take(&self, bytes: u64) {
        self.outstanding.fetch_add(bytes, Ordering::AcqRel);
        self.update_hunger();
    }

    /// The reader has given credit back.
    pub(crate) fn give(&self, header: &CreditHeader) {
        let less = |a: &AtomicU64, n: u64| {
            // A peer that returns more than it has is at zero.
            a.fetch_update(Ordering::AcqRel, Ordering::Acquire, |v| Some(v.saturating_sub(n))).ok();
        };
        less(&self.outstanding, header.bytes);
        less(&self.window, header.shrink_bytes);
        self.update_hunger();
        self.credit.notify_one();
    }

    fn may_send(&self) -> bool {
        let outstanding = self.outstanding.load(Ordering::Acquire);
        outstanding == 0 || outstanding < self.window.load(Ordering::Acquire)
    }

    fn update_hunger(&self) {
        let half = self.window.load(Ordering::Acquire) / 2;
        self.set_starved(self.outstanding.load(Ordering::Acquire) < half);
    }

    fn set_starved(&self, is_starved: bool) {
        let Some(demand) = self.demand.get() else { return };
        if self.is_starved.swap(is_starved, Ordering::AcqRel) != is_starved {
            demand.connection_is_starved(is_starved);
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.set_starved(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_returns_more_than_it_has_is_at_zero() {
        let flow = Flow::new(100);
        flow.take(250);
        assert!(!flow.may_send());
        flow.give(&CreditHeader { bytes: 1000, shrink_bytes: 40 });
        assert!(flow.may_send());
        assert_eq!((flow.outstanding.load(Ordering::Relaxed), flow.window.load(Ordering::Relaxed)), (0, 60));
    }
    /// A task is starved while one of its readers has used less than half of its window.
    #[test]
    fn a_reader_with_half_of_its_window_free_makes_its_task_starved() {
        let demand = Demand::new(caju_runtime::SystemClock::shared());
        let credit = |bytes, shrink_bytes| CreditHeader { bytes, shrink_bytes };
        let (one, other) = (Flow::new(100), Flow::new(100));
        one.take(10);
        one.attach_demand(Arc::clone(&demand));
        assert!(demand.is_starved(), "its window was nearly free when the demand was attached");
        one.take(40);
        assert!(!demand.is_starved());
        one.give(&credit(20, 0));
        assert!(demand.is_starved());
        one.give(&credit(0, 60));
        assert!(!demand.is_starved(), "30 bytes of a window of 40");
        other.attach_demand(Arc::clone(&demand));
        assert!(demand.is_starved());
        drop(other);
        assert!(!demand.is_starved(), "its connection has ended");
    }
}
