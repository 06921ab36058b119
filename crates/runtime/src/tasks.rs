//! Supervised tasks and shutdown: no task outlives its group, and every failure is reported.
//!
//! A task ends in one of three ways: its future returns, its future panics, or the task is stopped or aborted. The last two
//! are errors that name the task. Such an error goes to the caller that awaits the [`Task`], or to the observer of
//! [`Tasks::background`], or else to the log. `tokio::spawn`, `JoinSet` and `spawn_blocking` guarantee nothing like that:
//! `clippy.toml` and `scripts/check-house` ban them outside this crate.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use caju_types::{Error, ErrorKind, Result};
use futures::FutureExt;
use futures::future::{Either, ready as done};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::panics::{catch, caught};
use crate::simulation::is_simulated;

/// The name of a task in errors, such as `reader of file:///data/a.parquet`.
pub type TaskName = Cow<'static, str>;

/// A group of tasks with one stop signal. Clones share the group.
///
/// [`Tasks::shutdown`] gives the stop signal, which ends [`Tasks::stopped`], and waits for all tasks within a bound.
#[derive(Debug, Clone, Default)]
pub struct Tasks {
    token: CancellationToken,
    tracker: TaskTracker,
}

/// A task of a group. Awaiting it gives the result of its future.
///
/// Dropping the handle of [`Tasks::spawn`] aborts the task. A task of [`Tasks::spawn_graceful`] runs on; a later panic of
/// it is logged.
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
    token: CancellationToken,
}

impl Tasks {
    /// An empty group.
    pub fn new() -> Self {
        Self::default()
    }

    /// A group that stops when this one stops, or earlier.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { token: self.token.child_token(), tracker: self.tracker.clone() }
    }

    /// Runs a future as a task of this group. When the group stops or the handle is dropped, the future is dropped at its
    /// next await.
    pub fn spawn<F>(&self, name: impl Into<TaskName>, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (name, token) = (name.into(), self.token.clone());
        let supervised = supervised(name.clone(), token, future);
        self.start(name, supervised, true)
    }

    /// Runs a future that observes the stop signal itself and finishes its work. It runs on if the handle is dropped.
    pub fn spawn_graceful<F>(&self, name: impl Into<TaskName>, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let name = name.into();
        let of = name.clone();
        self.start(name, async move { caught(&of, future).await }, false)
    }

    /// Runs a future without awaiting its result. `on_failure` gets the error that the future returns, `Internal` if the
    /// future panics or the task is aborted, and `Cancelled` if the task is stopped with its group. A task that ends with its
    /// runtime was aborted, unless its group was stopped before.
    ///
    /// [`log_failure`] is the observer for work on which nothing depends.
    pub fn background<F, O>(&self, name: impl Into<TaskName>, on_failure: O, future: F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
        O: FnOnce(Error) + Send + 'static,
    {
        let (name, token) = (name.into(), self.token.clone());
        let mut observer = Observer::new(name.clone(), token.clone(), on_failure);
        let _detached = self.tracker.spawn(async move {
            let ended = supervised(name, token, future).await;
            observer.ended(ended.and_then(|result| result));
        });
    }

    /// Like [`Tasks::background`], for a future that observes the stop signal itself and finishes its work.
    pub fn background_graceful<F, O>(&self, name: impl Into<TaskName>, on_failure: O, future: F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
        O: FnOnce(Error) + Send + 'static,
    {
        let name = name.into();
        let mut observer = Observer::new(name.clone(), self.token.clone(), on_failure);
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
            // If the handle was dropped, a result is dropped, but a failure is logged.
            if let Err(Err(e)) = sender.send(supervised.await) {
                log_failure(e);
            }
        });
        Task { name, outcome, abort: handle.abort_handle(), aborts_on_drop, token: self.token.clone() }
    }

    /// Gives the stop signal without waiting.
    pub fn stop(&self) {
        self.token.cancel();
    }

    /// Whether the stop signal was given.
    pub fn is_stopped(&self) -> bool {
        self.token.is_cancelled()
    }

    /// Waits for the stop signal.
    pub async fn stopped(&self) {
        self.token.cancelled().await;
    }

    /// The stop signal as a token.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Gives the stop signal and waits for every task of the group. False if some tasks still run after `bound`.
    pub async fn shutdown(&self, bound: Duration) -> bool {
        self.token.cancel();
        self.tracker.close();
        tokio::time::timeout(bound, self.tracker.wait()).await.is_ok()
    }
}

/// Starts blocking work on a thread that may block. The future waits for the result. If the future is dropped, the work
/// runs to its end and its result is dropped.
///
/// # Errors
/// `Internal`, with `name`, if the work panics; `Cancelled` if the runtime shuts down before it begins.
pub fn blocking<T, W>(name: impl Into<TaskName>, work: W) -> impl Future<Output = Result<T>> + Send + Unpin
where
    T: Send + 'static,
    W: FnOnce() -> T + Send + 'static,
{
    let name = name.into();
    if is_simulated() {
        return Either::Left(done(catch(&name, work)));
    }
    let of = name.clone();
    #[expect(clippy::disallowed_methods, reason = "this is the wrapper")]
    let running = tokio::task::spawn_blocking(move || catch(&of, work));
    Either::Right(running.map(move |ended| match ended {
        Ok(result) => result,
        Err(_) => Err(Error::cancelled(format!("{name} was cancelled: the process is ending"))),
    }))
}

/// The observer for work on which nothing depends: logs a failure as an error. A stop is no failure.
pub fn log_failure(error: Error) {
    match error.kind() {
        ErrorKind::Cancelled => tracing::debug!(%error, "a task was stopped"),
        _ => tracing::error!(%error, "a task failed"),
    }
}

async fn supervised<F: Future>(name: TaskName, token: CancellationToken, future: F) -> Result<F::Output> {
    match token.run_until_cancelled_owned(caught(&name, future)).await {
        Some(ended) => ended,
        None => Err(stopped(&name)),
    }
}

fn stopped(name: &str) -> Error {
    Error::cancelled(format!("{name} was stopped"))
}

/// The error of a task that was dropped before its end. A runtime that ends drops the tasks that have not observed their stop
/// signal yet: these were stopped, not aborted.
fn dropped(name: &str, token: &CancellationToken) -> Error {
    if token.is_cancelled() {
        return stopped(name);
    }
    Error::internal(format!("{name} was aborted before its end"))
}

/// Reports a failure once, even if the task is dropped before its end.
struct Observer<O: FnOnce(Error)> {
    name: TaskName,
    token: CancellationToken,
    on_failure: Option<O>,
}

impl<O: FnOnce(Error)> Observer<O> {
    fn new(name: TaskName, token: CancellationToken, on_failure: O) -> Self {
        Self { name, token, on_failure: Some(on_failure) }
    }

    fn ended(&mut self, result: Result<()>) {
        if let (Some(on_failure), Err(e)) = (self.on_failure.take(), result) {
            on_failure(e);
        }
    }
}

impl<O: FnOnce(Error)> Drop for Observer<O> {
    fn drop(&mut self) {
        let error = dropped(&self.name, &self.token);
        self.ended(Err(error));
    }
}

impl<T> Task<T> {
    /// The task's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Aborts the task. Awaiting it then gives an error, unless it had ended before.
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
        Poll::Ready(outcome.unwrap_or_else(|_| Err(dropped(&self.name, &self.token))))
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
