//! Supervised tasks and shutdown: no task outlives the group that it belongs to, and none fails unseen.
//!
//! A task ends in one of three ways: its future returns, the future panics, or the task is stopped or aborted. The
//! last two are errors that name the task. They reach whoever awaits the [`Task`], or the observer that
//! [`Tasks::background`] is given, or else the log. `tokio::spawn`, `JoinSet` and `spawn_blocking` give no such
//! promise; `clippy.toml` and `scripts/check-house` ban them outside this crate.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use caju_types::{Error, ErrorKind, Result};
use futures::FutureExt;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::panics::{catch, caught};

/// What a task is called in errors: `reader of file:///data/a.parquet`.
pub type TaskName = Cow<'static, str>;

/// A group of tasks with one stop signal. Clones share the group.
///
/// Tasks watch [`Tasks::stopped`]; [`Tasks::shutdown`] signals it and waits, within a bound, for all of them.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    token: CancellationToken,
    tracker: TaskTracker,
}

/// A task of a group. Awaiting it gives what its future returned.
///
/// Dropping the handle of [`Tasks::spawn`] aborts the task. A task of [`Tasks::spawn_graceful`] goes on; if it then
/// panics, the log has it.
///
/// # Errors
/// Awaiting gives `Internal` if the task panicked or was aborted, and `Cancelled` if its group was stopped. Both name
/// the task.
#[must_use = "a task is aborted, or its failure only logged, when its handle is dropped: await it, keep it, or use \
              Tasks::background"]
pub struct Task<T> {
    name: TaskName,
    outcome: oneshot::Receiver<Result<T>>,
    abort: AbortHandle,
    aborts_on_drop: bool,
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

    /// Runs a future as a task of this group. It is dropped at its next await when the group stops or the handle is
    /// dropped.
    pub fn spawn<F>(&self, name: impl Into<TaskName>, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (name, token) = (name.into(), self.token.clone());
        let supervised = supervised(name.clone(), token, future);
        self.start(name, supervised, true)
    }

    /// Runs a future that looks at the stop signal itself and finishes its work in order. It goes on when the handle is
    /// dropped.
    pub fn spawn_graceful<F>(&self, name: impl Into<TaskName>, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let name = name.into();
        let of = name.clone();
        self.start(name, async move { caught(&of, future).await }, false)
    }

    /// Runs a future that nobody awaits. `on_failure` gets the error that it returns, its panic (`Internal`), or the
    /// news that it was stopped with its group (`Cancelled`) or aborted (`Internal`) before its end.
    ///
    /// [`log_failure`] is the observer of work that nothing depends on.
    pub fn background<F, O>(&self, name: impl Into<TaskName>, on_failure: O, future: F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
        O: FnOnce(Error) + Send + 'static,
    {
        let (name, token) = (name.into(), self.token.clone());
        let mut observer = Observer::new(name.clone(), on_failure);
        let _detached = self.tracker.spawn(async move {
            let ended = supervised(name, token, future).await;
            observer.ended(ended.and_then(|result| result));
        });
    }

    /// As [`Tasks::background`], for a future that looks at the stop signal itself and finishes its work in order.
    pub fn background_graceful<F, O>(&self, name: impl Into<TaskName>, on_failure: O, future: F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
        O: FnOnce(Error) + Send + 'static,
    {
        let name = name.into();
        let mut observer = Observer::new(name.clone(), on_failure);
        let _detached = self.tracker.spawn(async move {
            let ended = caught(&name, future).await;
            observer.ended(ended.and_then(|result| result));
        });
    }

    fn start<T: Send + 'static>(
        &self,
        name: TaskName,
        supervised: impl Future<Output = Result<T>> + Send + 'static,
        aborts_on_drop: bool,
    ) -> Task<T> {
        let (sender, outcome) = oneshot::channel();
        let handle = self.tracker.spawn(async move {
            // A result that nobody waits for any more is nobody's; a failure is told all the same.
            if let Err(Err(e)) = sender.send(supervised.await) {
                log_failure(e);
            }
        });
        Task { name, outcome, abort: handle.abort_handle(), aborts_on_drop }
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

/// Runs blocking work on a thread that may wait, at once; the future waits for its result. Dropping the future lets the
/// work run to its end unheard.
///
/// # Errors
/// `Internal`, with `name`, if the work panics; `Cancelled` if the runtime shuts down before it begins.
pub fn blocking<T, W>(name: impl Into<TaskName>, work: W) -> impl Future<Output = Result<T>> + Send + Unpin
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let name = name.into();
    let of = name.clone();
    #[expect(clippy::disallowed_methods, reason = "this is the wrapper")]
    let running = tokio::task::spawn_blocking(move || catch(&of, work));
    running.map(move |ended| match ended {
        Ok(result) => result,
        Err(_) => Err(Error::cancelled(format!("{name} was given up: the process is ending"))),
    })
}

/// The observer of work that nothing depends on: its failure is an error in the log. A stop is no failure.
pub fn log_failure(error: Error) {
    match error.kind() {
        ErrorKind::Cancelled => tracing::debug!(%error, "a task was stopped"),
        _ => tracing::error!(%error, "a task failed"),
    }
}

async fn supervised<F: Future>(name: TaskName, token: CancellationToken, future: F) -> Result<F::Output> {
    match token.run_until_cancelled_owned(caught(&name, future)).await {
        Some(ended) => ended,
        None => Err(Error::cancelled(format!("{name} was stopped"))),
    }
}

fn aborted(name: &str) -> Error {
    Error::internal(format!("{name} was aborted before its end"))
}

/// Tells of a failure once, also if the task is dropped before it could end.
struct Observer<O: FnOnce(Error)> {
    name: TaskName,
    on_failure: Option<O>,
}

impl<O: FnOnce(Error)> Observer<O> {
    fn new(name: TaskName, on_failure: O) -> Self {
        Self { name, on_failure: Some(on_failure) }
    }

    fn ended(&mut self, result: Result<()>) {
        if let (Some(on_failure), Err(e)) = (self.on_failure.take(), result) {
            on_failure(e);
        }
    }
}

impl<O: FnOnce(Error)> Drop for Observer<O> {
    fn drop(&mut self) {
        let error = aborted(&self.name);
        self.ended(Err(error));
    }
}

impl<T> Task<T> {
    /// What the task is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Aborts the task; awaiting it gives an error, unless it had ended.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.abort.is_finished()
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(self.outcome.poll_unpin(cx));
        Poll::Ready(outcome.unwrap_or_else(|_| Err(aborted(&self.name))))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if self.aborts_on_drop {
            self.abort.abort();
        }
    }
}

impl<T> fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "tasks_tests.rs"]
mod tests;
