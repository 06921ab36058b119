//! How long the writers of parts may stall the stream of rows.

use std::future::Future;
use std::time::Duration;

use caju_runtime::{Clock, OrderedMutex};

use super::locks;

/// How long writers may stall a task's splits before their speed matters. Stores have pauses of this length.
const GRACE: Duration = Duration::from_secs(2);

/// The time for which the splits of a task may wait for the writers of their parts.
///
/// A store may take half the bytes per second that the decision assumed. A store that is slow, but not slower than rows
/// arrive, stalls nothing.
#[derive(Debug)]
pub(super) struct StallBudget(OrderedMutex<Stalled>);

impl Default for StallBudget {
    fn default() -> Self {
        Self(OrderedMutex::new(locks::STALLED, Stalled::default()))
    }
}

#[derive(Debug, Default)]
struct Stalled {
    bytes: u64,
    /// Seconds that splits waited, summed over all splits.
    seconds: f64,
}

impl StallBudget {
    /// How long a split may wait until the store has taken `bytes` more. `assumed_bytes_per_s` is the rate that the
    /// decision assumed for all `writers` together.
    pub(super) fn remaining(&self, assumed_bytes_per_s: u64, bytes: u64, writers: usize) -> Duration {
        let stalled = self.0.lock();
        let half = (assumed_bytes_per_s as f64 / 2.0).max(1.0);
        let due = (stalled.bytes + bytes) as f64 / half - stalled.seconds / writers.max(1) as f64;
        Duration::try_from_secs_f64((GRACE.as_secs_f64() + due).max(0.0)).unwrap_or(Duration::MAX)
    }

    /// Waits until a writer has accepted `bytes`; none if that exceeds the budget. Without an assumed rate the wait is
    /// not limited.
    pub(super) async fn wait<T>(
        &self,
        assumed_bytes_per_s: Option<u64>,
        bytes: u64,
        writers: usize,
        clock: &dyn Clock,
        accepted: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(assumed) = assumed_bytes_per_s else { return Some(accepted.await) };
        let (remaining, start) = (self.remaining(assumed, bytes, writers), clock.now());
        let accepted = tokio::select! {
            biased;
            accepted = accepted => Some(accepted),
            () = clock.sleep(remaining) => None,
        };
        self.record(bytes, clock.now().saturating_sub(start));
        accepted
    }

    /// Extends the budget by the time that `bytes` may take: they are written in front of rows that wait.
    pub(super) fn add_bytes(&self, bytes: u64) {
        self.record(bytes, Duration::ZERO);
    }

    fn record(&self, bytes: u64, waited: Duration) {
        let mut stalled = self.0.lock();
        stalled.bytes += bytes;
        stalled.seconds += waited.as_secs_f64();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a store that takes `bytes_per_s` from three splits at once, each stalled all the time, stays in budget.
    fn survives(assumed: u64, bytes_per_s: u64) -> bool {
        let (budget, second) = (StallBudget::default(), Duration::from_secs(1));
        (0..60).all(|_| {
            let in_budget = budget.remaining(assumed, bytes_per_s / 3, 3) >= second;
            (0..3).for_each(|_| budget.record(bytes_per_s / 3, second));
            in_budget
        })
    }

    #[test]
    fn writers_may_be_half_as_fast_as_assumed_and_no_slower() {
        assert!(survives(900, 900));
        assert!(survives(900, 480));
        assert!(!survives(900, 420));
        assert!(!survives(900, 30));
    }

    #[test]
    fn a_slow_writer_that_stalls_nothing_is_in_budget() {
        let budget = StallBudget::default();
        (0..1000).for_each(|_| budget.record(10, Duration::from_millis(1)));
        assert!(budget.remaining(1 << 30, 10, 1) > Duration::from_millis(900));
    }
}
