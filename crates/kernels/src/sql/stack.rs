//! Room for recursion.

use caju_runtime::on_isolated_thread;
use caju_types::{Error, Result};

/// The planner's passes over an expression are recursive, with frames of many kilobytes; so much holds the
/// deepest expression that [`super::parse`] lets through several times over, whatever thread asks.
pub(crate) const STACK_BYTES: usize = 64 << 20;

/// Runs `f` with enough stack: on this thread if it was started for binding, else on one of its own, for which it waits.
/// Async code binds through [`crate::Registry::aside`], so that none of its threads wait here.
///
/// # Errors
/// Those of `f`; `ResourceExhausted` if the system gives no thread, `Internal` if `f` panics.
pub(crate) fn roomy<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if on_isolated_thread() {
        return f();
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("bind".into()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, f) {
            Err(e) => Err(Error::exhausted(format!("no thread to bind expressions on: {e}"))),
            Ok(running) => running.join().unwrap_or_else(|_| {
                Err(Error::internal("binding an expression panicked; the log has the details"))
            }),
        }
    })
}
