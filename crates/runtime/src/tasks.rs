//! Owned tasks and shutdown: no task outlives the thing that started it.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A group of tasks with one stop signal. Clones share the group.
///
/// Tasks watch [`Tasks::stopped`]; [`Tasks::shutdown`] signals it and waits, within a bound, for all of them.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    token: CancellationToken,
    tracker: TaskTracker,
}

impl Tasks {
    /// An empty group.
    pub fn new() -> Self {
        Self::default()
    }

    /// A group that stops when this one stops, and may stop before it.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { token: self.token.child_token(), tracker: self.tracker.clone() }
    }

    /// Runs a future as a task of this group. It is dropped at its next await when the group stops.
    pub fn spawn<F>(&self, future: F) -> tokio::task::JoinHandle<Option<F::Output>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let token = self.token.clone();
        self.tracker.spawn(async move { token.run_until_cancelled_owned(future).await })
    }

    /// Runs a future that looks at the stop signal itself and finishes its work in order.
    pub fn spawn_graceful<F>(&self, future: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.tracker.spawn(future)
    }

    /// Signals the stop without waiting.
    pub fn stop(&self) {
        self.token.cancel();
    }

    /// Whether the stop was signalled.
    pub fn is_stopped(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits for the stop signal.
    pub async fn stopped(&self) {
        self.token.cancelled().await;
    }

    /// The stop signal, for code that wants a token.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Stops and waits for every task of the group; false if some were still running at the bound.
    pub async fn shutdown(&self, bound: Duration) -> bool {
        self.token.cancel();
        self.tracker.close();
        tokio::time::timeout(bound, self.tracker.wait()).await.is_ok()
    }
}
