//! Waiting: one tokio runtime per process, alive as long as anything needs it.
//!
//! The threads of the runtime belong to the process that started them. A fork copies memory but not threads, so
//! a child that inherited a live runtime would wait for ever; it gets an error that says what to do instead. A
//! process that had no live runtime when it forked is free to start one in the child.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use caju_types::{Error, Result};
use parking_lot::Mutex;
use pyo3::prelude::*;
use tokio::runtime::Runtime;

use crate::errors::{IntoPy, exception};
use crate::logging;

/// How often a wait looks for Ctrl-C.
const TICK: Duration = Duration::from_millis(50);
/// How long threads may take to end after the last user has gone.
const END: Duration = Duration::from_secs(5);

static SHARED: Mutex<Weak<Held>> = Mutex::new(Weak::new());
static ORPHANED: AtomicBool = AtomicBool::new(false);

/// A share in the process's runtime. The last one to go stops the threads.
#[derive(Clone, Debug)]
pub(crate) struct Share(Arc<Held>);

#[derive(Debug)]
struct Held(Option<Runtime>);

impl Drop for Held {
    fn drop(&mut self) {
        let Some(runtime) = self.0.take() else { return };
        if ORPHANED.load(Ordering::Relaxed) {
            // Its threads are in another process: there is nothing to join.
            std::mem::forget(runtime);
            return;
        }
        released(move || runtime.shutdown_timeout(END));
    }
}

/// Runs a closure without the interpreter, also where this thread may or may not be attached to it.
pub(crate) fn released(f: impl FnOnce() + Send) {
    let mut f = Some(f);
    let attached = Python::try_attach(|py| {
        if let Some(f) = f.take() {
            py.detach(f);
        }
    });
    if let (None, Some(f)) = (attached, f) {
        f();
    }
}

impl Share {
    /// The runtime of this process, started if nobody has.
    ///
    /// # Errors
    /// `FailedPrecondition` in a child that was forked while threads were running; `ResourceExhausted` if the
    /// system gives no threads.
    pub(crate) fn get() -> Result<Self> {
        check_fork()?;
        let mut shared = SHARED.lock();
        if let Some(held) = shared.upgrade() {
            return Ok(Self(held));
        }
        logging::install();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("caju-io")
            .build()
            .map_err(|e| Error::exhausted(format!("cannot start threads: {e}")))?;
        let held = Arc::new(Held(Some(runtime)));
        *shared = Arc::downgrade(&held);
        Ok(Self(held))
    }

    /// Waits for a future with the interpreter released; Ctrl-C drops the future and raises at once.
    ///
    /// # Errors
    /// `KeyboardInterrupt` or what another signal's handler raises; the error of a forked child.
    pub(crate) fn wait<T: Send>(
        &self,
        py: Python<'_>,
        future: impl Future<Output = T> + Send,
    ) -> PyResult<T> {
        let mut future = Box::pin(future);
        loop {
            let turn = py.detach(|| self.tick(future.as_mut())).into_py(py)?;
            logging::deliver(py)?;
            match turn {
                Some(value) => return Ok(value),
                None => py.check_signals()?,
            }
        }
    }

    /// Waits for a future for one tick; `None` if it takes longer.
    ///
    /// # Errors
    /// The error of a forked child.
    pub(crate) fn tick<T>(&self, future: impl Future<Output = T>) -> Result<Option<T>> {
        check_fork()?;
        let Some(runtime) = &self.0.0 else { return Err(Error::cancelled("caju is shutting down")) };
        Ok(runtime.block_on(async { tokio::time::timeout(TICK, future).await.ok() }))
    }

    /// Waits for a future to its end, deaf to signals: for what has a bound of its own.
    pub(crate) fn finish<T: Send>(&self, future: impl Future<Output = T> + Send) -> Option<T> {
        match &self.0.0 {
            Some(runtime) if check_fork().is_ok() => Some(runtime.block_on(future)),
            _ => None,
        }
    }
}

/// Waits for a future that needs the runtime only meanwhile.
///
/// # Errors
/// The future's own, `KeyboardInterrupt`, the error of a forked child.
pub(crate) fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    let share = Share::get().into_py(py)?;
    let done = share.wait(py, future)?;
    // Its end may take a moment, for which others should have the interpreter.
    py.detach(move || drop(share));
    done.map_err(|e| exception(py, &e))
}

/// Whether this process was forked from one whose threads it lacks.
///
/// # Errors
/// `FailedPrecondition` if so.
pub(crate) fn check_fork() -> Result<()> {
    if !ORPHANED.load(Ordering::Relaxed) {
        return Ok(());
    }
    Err(Error::failed_precondition(
        "this process was forked while caju's threads were running in its parent, and threads do not survive a \
         fork; start processes by `spawn` or `forkserver` (multiprocessing.set_start_method(\"spawn\"), \
         DataLoader(..., multiprocessing_context=\"spawn\")), or fork before the first batch is read",
    ))
}

/// Called in a child right after a fork.
#[pyfunction]
pub(crate) fn forked() {
    // A lock may have been held by a thread that is no more; then its runtime was alive too.
    let alive = SHARED.try_lock().is_none_or(|shared| shared.strong_count() > 0);
    if alive {
        ORPHANED.store(true, Ordering::Relaxed);
    }
    logging::forget();
}

/// Whether threads of caju run in this process.
#[pyfunction]
pub(crate) fn runtime_alive() -> bool {
    check_fork().is_ok() && SHARED.lock().strong_count() > 0
}
