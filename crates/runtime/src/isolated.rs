//! Threads for work that is rare, may take long and may be hostile: binding definitions of clients.

use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use caju_types::{Error, Result, format_duration};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::simulation::is_simulated;

thread_local! {
    static ISOLATED: Cell<bool> = const { Cell::new(false) };
}

/// Runs work on threads of its own, a bounded number at a time, each within a deadline. Whatever the work does, it blocks
/// neither the async runtime nor the CPU pool. Clones share the bound.
///
/// A thread cannot be stopped. Work that misses its deadline runs on, and its result is dropped. Its permit goes to other work,
/// so that a few pieces of endless work do not keep all others out. Up to eight permits are reissued so; with more endless
/// work the next piece keeps its permit until it ends.
#[derive(Debug, Clone)]
pub struct IsolatedThreads {
    name: &'static str,
    permits: Arc<Semaphore>,
    /// Pieces of work that run on after their deadline, and whose permit was reissued.
    overdue: Arc<AtomicUsize>,
    timeout: Duration,
    stack_bytes: usize,
}

/// Pieces of work that may run on after their permit was reissued. Each may use a core.
const MAX_OVERDUE: usize = 8;

/// Whether this thread was started by [`IsolatedThreads::run`], and so has its stack size.
pub fn on_isolated_thread() -> bool {
    ISOLATED.get()
}

impl IsolatedThreads {
    /// At most `at_once` pieces of work at a time, each with `timeout` and a stack of `stack_bytes`. The threads have the
    /// name `name`.
    pub fn new(name: &'static str, at_once: usize, timeout: Duration, stack_bytes: usize) -> Self {
        let permits = Arc::new(Semaphore::new(at_once.max(1)));
        Self { name, permits, overdue: Arc::default(), timeout, stack_bytes }
    }

    /// Runs `work`. `what` names it in errors. The deadline covers the wait for a permit, too. If the future is dropped, the
    /// work runs to its end and its result is dropped.
    ///
    /// # Errors
    /// Those of `work`; `DeadlineExceeded` naming `what`, `ResourceExhausted` if the system gives no thread, `Internal`
    /// if `work` panics.
    pub async fn run<T, F>(&self, what: impl Display, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T> + Send + 'static,
    {
        let permit_use = Arc::new(PermitUse::new(self));
        match tokio::time::timeout(self.timeout, self.run_unbounded(work, Arc::clone(&permit_use))).await {
            Ok(done) => done.map_err(|e| match e {
                Failure::Work(e) => e,
                Failure::Broken(why) => Error::internal(format!("{what}: {why}")),
                Failure::NoThread(why) => Error::exhausted(format!("{what}: no thread: {why}")),
            }),
            Err(_) => {
                let timeout = format_duration(self.timeout);
                Err(Error::deadline(match permit_use.give_up() {
                    true => format!(
                        "{what} was not done within {timeout}; make it simpler, or raise --bind-timeout"
                    ),
                    false => format!(
                        "{what} could not begin within {timeout}, because others take longer; try again, or raise --bind-timeout"
                    ),
                }))
            }
        }
    }

    async fn run_unbounded<T, F>(&self, work: F, permit_use: Arc<PermitUse>) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T> + Send + 'static,
    {
        let permit =
            Arc::clone(&self.permits).acquire_owned().await.map_err(|e| Failure::Broken(e.to_string()))?;
        let (tx, rx) = oneshot::channel();
        let guard = PermitGuard::new(permit_use, permit);
        let job = move || {
            ISOLATED.set(true);
            let result = catch_unwind(AssertUnwindSafe(work));
            drop(guard);
            // The receiver was dropped if the caller's future was.
            drop(tx.send(result));
        };
        if is_simulated() {
            job();
            ISOLATED.set(false);
        } else {
            let thread = std::thread::Builder::new().name(self.name.into()).stack_size(self.stack_bytes);
            thread.spawn(job).map_err(|e| Failure::NoThread(e.to_string()))?;
        }
        match rx.await {
            Ok(Ok(result)) => result.map_err(Failure::Work),
            Ok(Err(_)) | Err(_) => Err(Failure::Broken("it panicked; the log has the details".into())),
        }
    }
}

/// How one piece of work uses its permit.
struct PermitUse {
    permits: Arc<Semaphore>,
    overdue: Arc<AtomicUsize>,
    state: Mutex<PermitState>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PermitState {
    Waiting,
    Running,
    /// The work runs on after its deadline, and other work has its permit.
    Reissued,
}

impl PermitUse {
    fn new(threads: &IsolatedThreads) -> Self {
        let (permits, overdue) = (Arc::clone(&threads.permits), Arc::clone(&threads.overdue));
        Self { permits, overdue, state: Mutex::new(PermitState::Waiting) }
    }

    /// The deadline has passed: the permit goes to other work, unless [`MAX_OVERDUE`] are reissued already. Whether the work had
    /// begun.
    fn give_up(&self) -> bool {
        let mut state = self.state.lock();
        let is_free = |n: usize| (n < MAX_OVERDUE).then_some(n + 1);
        if *state == PermitState::Running
            && self.overdue.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_free).is_ok()
        {
            *state = PermitState::Reissued;
            self.permits.add_permits(1);
        }
        *state != PermitState::Waiting
    }
}

/// Holds a permit while its work runs.
struct PermitGuard {
    permit_use: Arc<PermitUse>,
    permit: Option<OwnedSemaphorePermit>,
}

impl PermitGuard {
    fn new(permit_use: Arc<PermitUse>, permit: OwnedSemaphorePermit) -> Self {
        *permit_use.state.lock() = PermitState::Running;
        Self { permit_use, permit: Some(permit) }
    }
}

impl Drop for PermitGuard {
    fn drop(&mut self) {
        let state = self.permit_use.state.lock();
        match self.permit.take() {
            Some(permit) if *state == PermitState::Reissued => {
                permit.forget();
                self.permit_use.overdue.fetch_sub(1, Ordering::Relaxed);
            }
            permit => drop(permit),
        }
    }
}

enum Failure {
    Work(Error),
    NoThread(String),
    Broken(String),
}

#[cfg(test)]
mod tests {
    use caju_types::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn answers_errors_and_panics_come_back() {
        let threads = IsolatedThreads::new("test", 1, Duration::from_secs(60), 1 << 20);
        assert!(threads.run("a", || Ok(on_isolated_thread())).await.unwrap());
        assert!(!on_isolated_thread());
        let e = threads.run("b", || Err::<(), _>(Error::invalid("no"))).await.unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::InvalidArgument, "no"));
        let e = threads.run("c", || -> Result<()> { panic!("boom") }).await.unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::Internal, "c: it panicked; the log has the details"));
        assert_eq!(threads.run("d", || Ok(1)).await.unwrap(), 1);
    }

    /// Work that never ends costs its own caller the deadline. Its permit goes to others, and comes back when it ends.
    #[tokio::test]
    async fn endless_work_is_given_up_and_keeps_no_other_work_out() {
        let threads = IsolatedThreads::new("test", 1, Duration::from_millis(20), 1 << 20);
        let mut ends = Vec::new();
        for _ in 0..MAX_OVERDUE {
            let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
            ends.push(end);
            let work = move || ended.recv().map_err(|e| Error::internal(e.to_string()));
            let e = threads.run("binding `x`", work).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::DeadlineExceeded);
            assert!(e.message().starts_with("binding `x` was not done within 20.0 ms"), "{e}");
            while threads.run("binding `y`", || Ok(())).await.is_err() {}
        }
        // One more keeps its permit.
        let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
        let work = move || ended.recv().map_err(|e| Error::internal(e.to_string()));
        threads.run("binding `x`", work).await.unwrap_err();
        let e = threads.run("binding `y`", || Ok(())).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DeadlineExceeded);
        assert!(e.message().contains("could not begin within"), "{e}");
        end.send(()).unwrap();
        while threads.run("binding `z`", || Ok(())).await.is_err() {}
        ends.into_iter().for_each(|end| end.send(()).unwrap());
        while threads.overdue.load(Ordering::Relaxed) > 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(threads.permits.available_permits(), 1);
    }
}
