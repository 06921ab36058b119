//! Stops using a store that keeps failing.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use caju_types::{Error, ErrorKind};

/// Consecutive failures after which the breaker opens. Each of them is a request that was retried several times.
const MAX_FAILURES: u32 = 3;

/// Whether a task may continue to write to the store, or to read from it.
///
/// A full cache or a missing permission opens the breaker at once, other failures open it when they are consecutive. It
/// stays open until the end of the task; the next task starts with a closed one.
#[derive(Debug, Default)]
pub(super) struct CircuitBreaker {
    failures: AtomicU32,
    open: AtomicBool,
}

impl CircuitBreaker {
    /// Whether the store is not used any more.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    pub(super) fn record_success(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Counts and logs a failure. `doing` names the operation in the log, such as `storing rows`. The failure that opens
    /// the breaker is logged once; failures after it are not.
    pub(super) fn record_failure(&self, error: &Error, doing: &str) {
        let permanent = matches!(error.kind(), ErrorKind::ResourceExhausted | ErrorKind::PermissionDenied);
        let repeated = self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_FAILURES;
        if !permanent && !repeated {
            tracing::warn!(%error, "{doing} failed; the split is computed");
        } else if !self.open.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "{doing} is turned off for the remainder of this task; rows are computed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_opens_it_at_once_and_consecutive_failures_open_it_later() {
        let full = CircuitBreaker::default();
        full.record_failure(&Error::new(ErrorKind::ResourceExhausted, "no room"), "storing");
        assert!(full.is_open());
        let shaky = CircuitBreaker::default();
        for _ in 1..MAX_FAILURES {
            shaky.record_failure(&Error::unavailable("503"), "storing");
        }
        assert!(!shaky.is_open());
        shaky.record_success();
        shaky.record_failure(&Error::unavailable("503"), "storing");
        assert!(!shaky.is_open(), "only consecutive failures count");
        (1..MAX_FAILURES).for_each(|_| shaky.record_failure(&Error::unavailable("503"), "storing"));
        assert!(shaky.is_open());
    }
}
