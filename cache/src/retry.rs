//! Retries: backoff with jitter, a deadline per request, and a retry budget for the whole cache.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use caju_runtime::Clock;
use caju_types::{Error, ErrorKind, Result, mix64};

/// What a retry takes from the budget. A success adds 1: so at most one request in ten is a retry in the long run.
const RETRY_COST: i64 = 10;
/// The initial budget, and the largest: 20 retries.
const MAX_BUDGET: i64 = 20 * RETRY_COST;

/// Runs requests with retries. When many requests fail, the budget is soon spent, and every failure is final at once: an
/// unavailable store is reported quickly and is not flooded with requests.
#[derive(Debug)]
pub(crate) struct Retry {
    clock: Arc<dyn Clock>,
    attempts: u32,
    base: Duration,
    timeout: Duration,
    budget: AtomicI64,
    seed: u64,
    draws: AtomicU64,
}

impl Retry {
    pub(crate) fn new(
        clock: Arc<dyn Clock>,
        attempts: u32,
        base: Duration,
        timeout: Duration,
        seed: u64,
    ) -> Self {
        let budget = AtomicI64::new(MAX_BUDGET);
        Self { clock, attempts: attempts.max(1), base, timeout, budget, seed, draws: AtomicU64::new(0) }
    }

    /// Runs `request` until it succeeds, fails permanently, or the attempts or the budget are spent.
    pub(crate) async fn run<T, F, Fut>(&self, what: impl fmt::Display, mut request: F) -> Result<T>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T>>,
    {
        let mut attempt = 1;
        loop {
            let error = match self.within(&what, request()).await {
                Ok(value) => {
                    self.refund();
                    return Ok(value);
                }
                Err(e) => e,
            };
            if !is_transient(&error) {
                return Err(error);
            }
            if attempt >= self.attempts || !self.spend() {
                return Err(Error::new(error.kind(), format!("{} (tried {attempt} times)", error.message())));
            }
            tracing::debug!(%error, attempt, "a request to the cache store failed; trying again");
            self.clock.sleep(self.wait(attempt)).await;
            attempt += 1;
        }
    }

    /// Runs a future under the deadline of one request.
    pub(crate) async fn within<T>(
        &self,
        what: impl fmt::Display,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        tokio::select! {
            biased;
            result = request => result,
            () = self.clock.sleep(self.timeout) => Err(Error::deadline(format!(
                "{what}: the store did not answer within {}",
                caju_types::format_duration(self.timeout)
            ))),
        }
    }

    fn wait(&self, attempt: u32) -> Duration {
        let step = self.base.saturating_mul(1 << (attempt - 1).min(10));
        let draw = mix64(self.seed, self.draws.fetch_add(1, Ordering::Relaxed));
        // Jitter: between half of the step and all of it.
        step.mul_f64(0.5 + 0.5 * (draw >> 11) as f64 / (1u64 << 53) as f64)
    }

    fn spend(&self) -> bool {
        let take = |left: i64| (left >= RETRY_COST).then_some(left - RETRY_COST);
        self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn refund(&self) {
        let give = |left: i64| (left < MAX_BUDGET).then_some(left + 1);
        // A full budget does not grow.
        let _ = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
    }
}

/// Whether a retry may succeed.
pub(crate) fn is_transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded)
}
