//! Threads for work that is rare, may take long and may be hostile: binding what somebody sent.

use std::cell::Cell;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use caju_types::{Error, Result, format_duration};
use tokio::sync::{Semaphore, oneshot};

thread_local! {
    static ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs work on threads of its own, a few at a time, each within a deadline: whatever the work is, the threads of the
/// async runtime and of the CPU pool go on. Clones share the bound.
///
/// A thread cannot be stopped. Work that misses its deadline goes on unheard, and counts among the few until it is done.
#[derive(Debug, Clone)]
pub struct Aside {
    name: &'static str,
    places: Arc<Semaphore>,
    timeout: Duration,
    stack_bytes: usize,
}

/// Whether this thread was started by [`Aside::run`]: it has the stack that goes with it.
pub fn is_aside() -> bool {
    ASIDE.get()
}

impl Aside {
    /// At most `at_once` pieces of work at a time, each with `timeout` and a stack of `stack_bytes`. `name` names the
    /// threads.
    pub fn new(name: &'static str, at_once: usize, timeout: Duration, stack_bytes: usize) -> Self {
        Self { name, places: Arc::new(Semaphore::new(at_once.max(1))), timeout, stack_bytes }
    }

    /// Runs `work`; `what` names it in errors. The deadline covers the wait for a free place too. Dropping the future
    /// lets the work run to its end unheard.
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
        let place =
            Arc::clone(&self.places).acquire_owned().await.map_err(|e| Failure::Broken(e.to_string()))?;
        let (tx, rx) = oneshot::channel();
        let job = move || {
            ASIDE.set(true);
            let result = catch_unwind(AssertUnwindSafe(work));
            drop(place);
            // The receiver may be gone: nobody waits any more.
            drop(tx.send(result));
        };
        let thread = std::thread::Builder::new().name(self.name.into()).stack_size(self.stack_bytes);
        thread.spawn(job).map_err(|e| Failure::NoThread(e.to_string()))?;
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
        let aside = Aside::new("test", 1, Duration::from_secs(60), 1 << 20);
        assert!(aside.run("a", || Ok(is_aside())).await.unwrap());
        assert!(!is_aside());
        let e = aside.run("b", || Err::<(), _>(Error::invalid("no"))).await.unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::InvalidArgument, "no"));
        let e = aside.run("c", || -> Result<()> { panic!("boom") }).await.unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::Internal, "c: it panicked; the log has the details"));
        assert_eq!(aside.run("d", || Ok(1)).await.unwrap(), 1);
    }

    /// Work that never ends costs its own caller the deadline, and its place; the runtime's only thread goes on.
    #[tokio::test]
    async fn endless_work_is_given_up() {
        let aside = Aside::new("test", 1, Duration::from_millis(20), 1 << 20);
        let (end, ended) = std::sync::mpsc::sync_channel::<()>(1);
        let work = move || ended.recv().map_err(|e| Error::internal(e.to_string()));
        let e = aside.run("binding `x`", work).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DeadlineExceeded);
        assert!(e.message().starts_with("binding `x` was not done within 20.0 ms"), "{e}");
        // The place is still taken, and given back when the work ends.
        let e = aside.run("binding `y`", || Ok(())).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DeadlineExceeded);
        end.send(()).unwrap();
        while aside.run("binding `z`", || Ok(())).await.is_err() {}
    }
}
