//! Threads for work that is rare, may take long and may be hostile: binding definitions of clients.

use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use caju_types::{Error, Result, format_duration};
use tokio::sync::{Semaphore, oneshot};

use crate::simulation::is_simulated;

thread_local! {
    static ISOLATED: Cell<bool> = const { Cell::new(false) };
}

/// Runs work on threads of its own, a bounded number at a time, each within a deadline. Whatever the work does, it blocks
/// neither the async runtime nor the CPU pool. Clones share the bound.
///
/// A thread cannot be stopped. Work that misses its deadline runs on, its result is dropped, and it holds its permit until
/// it ends.
#[derive(Debug, Clone)]
pub struct IsolatedThreads {
    name: &'static str,
    permits: Arc<Semaphore>,
    timeout: Duration,
    stack_bytes: usize,
}

/// Whether this thread was started by [`IsolatedThreads::run`], and so has its stack size.
pub fn on_isolated_thread() -> bool {
    ISOLATED.get()
}

impl IsolatedThreads {
    /// At most `at_once` pieces of work at a time, each with `timeout` and a stack of `stack_bytes`. The threads have the
    /// name `name`.
    pub fn new(name: &'static str, at_once: usize, timeout: Duration, stack_bytes: usize) -> Self {
        Self { name, permits: Arc::new(Semaphore::new(at_once.max(1))), timeout, stack_bytes }
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
        match tokio::time::timeout(self.timeout, self.run_unbounded(work)).await {
            Ok(done) => done.map_err(|e| match e {
                Failure::Work(e) => e,
                Failure::Broken(why) => Error::internal(format!("{what}: {why}")),
                Failure::NoThread(why) => Error::exhausted(format!("{what}: no thread: {why}")),
            }),
            Err(_) => Err(Error::deadline(format!(
                "{what} was not done within {}; make it simpler, or raise --bind-timeout",
                format_duration(self.timeout)
            ))),
        }
    }

    async fn run_unbounded<T, F>(&self, work: F) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: FnOnce() -> Result<T> + Send + 'static,
    {
        let permit =
            Arc::clone(&self.permits).acquire_owned().await.map_err(|e| Failure::Broken(e.to_string()))?;
        let (tx, rx) = oneshot::channel();
        let job = move || {
            ISOLATED.set(true);
            let result = catch_unwind(AssertUnwindSafe(work));
            drop(permit);
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

    /// Work that never ends costs its own caller the deadline, and holds its permit. The runtime's only thread runs on.
    #[tokio::test]
    async fn endless_work_is_given_up() {
        let threads = IsolatedThreads::new("test", 1, Duration::from_millis(20), 1 << 20);
        let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
        let work = move || ended.recv().map_err(|e| Error::internal(e.to_string()));
        let e = threads.run("binding `x`", work).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DeadlineExceeded);
        assert!(e.message().starts_with("binding `x` was not done within 20.0 ms"), "{e}");
        // The permit is held until the work ends.
        let e = threads.run("binding `y`", || Ok(())).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DeadlineExceeded);
        end.send(()).unwrap();
        while threads.run("binding `z`", || Ok(())).await.is_err() {}
    }
}
