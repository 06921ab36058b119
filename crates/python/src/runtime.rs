//! The tokio runtime of the process, and waiting for it with the interpreter released.
//!
//! There is one runtime, which lives as long as anything uses it. Its threads belong to the process that started them: a
//! fork copies memory but not threads. A child that inherited a live runtime would wait for ever, so it gets an error that
//! says what to do instead. A process without a live runtime may fork, and start one in the child.

use std::sync::{Arc, Weak};
use std::time::Duration;

use caju_types::{Error, Result};
use parking_lot::Mutex;
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::ffi;
use pyo3::prelude::*;
use tokio::runtime::Runtime;

use crate::errors::{IntoPy, exception};
use crate::fork::{check_fork, is_forked, set_forked};
use crate::logging;

/// How often a wait checks for signals. Short enough that Ctrl-C seems immediate.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the runtime's threads may take to end after its last user has ended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

static SHARED: Mutex<Weak<OwnedRuntime>> = Mutex::new(Weak::new());

/// A handle to the process's runtime. Dropping the last one stops the threads.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeHandle(Arc<OwnedRuntime>);

#[derive(Debug)]
struct OwnedRuntime(Option<Runtime>);

impl Drop for OwnedRuntime {
    fn drop(&mut self) {
        let Some(runtime) = self.0.take() else { return };
        if is_forked() {
            // Its threads are in another process: there is nothing to join.
            std::mem::forget(runtime);
            return;
        }
        detached(move || runtime.shutdown_timeout(SHUTDOWN_TIMEOUT));
    }
}

/// Whether Python knows this thread, so that it may be attached to the interpreter.
#[allow(unsafe_code, reason = "asks the interpreter about this thread")]
fn is_python_thread() -> bool {
    // SAFETY: needs no attached thread, and only reads what belongs to this thread.
    !unsafe { ffi::PyGILState_GetThisThreadState() }.is_null()
}

/// Runs a closure without the interpreter, whether this thread is attached to it or not.
pub(crate) fn detached(f: impl FnOnce() + Send) {
    // A thread that Python does not know is not attached. It must not wait for the interpreter either: the thread that
    // holds it may be waiting for this one.
    if !is_python_thread() {
        return f();
    }
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

/// Delivers log records and raises what signal handlers raise, where this thread may do so.
///
/// # Errors
/// `Cancelled`, with the exception of a handler.
pub(crate) fn check_signals() -> Result<()> {
    if !is_python_thread() {
        return Ok(());
    }
    let checked = Python::try_attach(|py| {
        logging::deliver(py).and_then(|()| py.check_signals()).map_err(|e| as_error(py, &e))
    });
    checked.unwrap_or(Ok(()))
}

/// An exception as an error, for callers from which it cannot be raised. A `KeyboardInterrupt` is raised again as soon as
/// the interpreter continues.
#[allow(unsafe_code, reason = "sets the interpreter's signal flag")]
pub(crate) fn as_error(py: Python<'_>, e: &PyErr) -> Error {
    if e.is_instance_of::<PyKeyboardInterrupt>(py) {
        // SAFETY: sets a flag; may be called from any thread.
        unsafe { ffi::PyErr_SetInterrupt() };
        return Error::cancelled("interrupted by Ctrl-C");
    }
    let name = e.get_type(py).name().map_or_else(|_| "an exception".to_owned(), |n| n.to_string());
    Error::cancelled(format!("{name}: {}", e.value(py)))
}

impl RuntimeHandle {
    /// The runtime of this process, started if there is none.
    ///
    /// # Errors
    /// `FailedPrecondition` in a child that was forked while threads were running; `ResourceExhausted` if the
    /// system gives no threads.
    pub(crate) fn get() -> Result<Self> {
        check_fork()?;
        let mut shared = SHARED.lock();
        if let Some(owned) = shared.upgrade() {
            return Ok(Self(owned));
        }
        logging::install();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .thread_name("caju-io")
            .build()
            .map_err(|e| Error::exhausted(format!("cannot start threads: {e}")))?;
        let owned = Arc::new(OwnedRuntime(Some(runtime)));
        *shared = Arc::downgrade(&owned);
        Ok(Self(owned))
    }

    /// Waits for a future with the interpreter released. Ctrl-C drops the future and raises at once.
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
            let done = py.detach(|| self.poll(future.as_mut())).into_py(py)?;
            logging::deliver(py)?;
            match done {
                Some(value) => return Ok(value),
                None => py.check_signals()?,
            }
        }
    }

    /// Waits for a future until signals should be checked; `None` if it takes longer.
    ///
    /// # Errors
    /// The error of a forked child.
    pub(crate) fn poll<T>(&self, future: impl Future<Output = T>) -> Result<Option<T>> {
        check_fork()?;
        let Some(runtime) = &self.0.0 else { return Err(Error::cancelled("caju is shutting down")) };
        Ok(runtime.block_on(async { tokio::time::timeout(SIGNAL_INTERVAL, future).await.ok() }))
    }

    /// Waits for a future to its end without checking signals: for futures that have a timeout of their own.
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
    let runtime = RuntimeHandle::get().into_py(py)?;
    let done = runtime.wait(py, future)?;
    // Stopping threads may take a moment, during which others should have the interpreter.
    py.detach(move || drop(runtime));
    done.map_err(|e| exception(py, &e))
}

/// Called in a child right after a fork.
#[pyfunction]
pub(crate) fn forked() {
    // If the lock is held, a thread that no longer exists held it, so its runtime was alive too.
    let alive = SHARED.try_lock().is_none_or(|shared| shared.strong_count() > 0);
    if alive {
        set_forked();
    }
    logging::discard_pending();
}

/// Whether threads of caju run in this process.
#[pyfunction]
pub(crate) fn runtime_alive() -> bool {
    check_fork().is_ok() && SHARED.lock().strong_count() > 0
}
