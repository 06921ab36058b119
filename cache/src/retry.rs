//! Trying again: backoff with jitter, a deadline per request, and a budget for the whole cache.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use caju_runtime::Clock;
use caju_types::{Error, ErrorKind, Result, mix64};

/// A retry costs so much of the budget; a success gives 1 back.
const COST: i64 = 10;
/// What the budget starts with and never exceeds: 20 retries.
const FULL: i64 = 20 * COST;

/// Runs requests with retries. When many requests fail, the budget is soon spent and every failure is
/// final at once: a store that is down is found out quickly instead of being beaten.
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
        let budget = AtomicI64::new(FULL);
        Self { clock, attempts: attempts.max(1), base, timeout, budget, seed, draws: AtomicU64::new(0) }
    }

    /// Runs `request` until it succeeds, fails for good, or the attempts or the budget are spent.
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
            if !transient(&error) {
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
        // Between half of the step and all of it.
        step.mul_f64(0.5 + 0.5 * (draw >> 11) as f64 / (1u64 << 53) as f64)
    }

    fn spend(&self) -> bool {
        let take = |left: i64| (left >= COST).then_some(left - COST);
        self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }

    fn refund(&self) {
        let give = |left: i64| (left < FULL).then_some(left + 1);
        // At the full mark there is nothing to give back.
        let _ = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, give);
    }
}

/// Whether trying again may help.
pub(crate) fn transient(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded)
}
