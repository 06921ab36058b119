//! Stack space for recursive passes over expressions.

use caju_runtime::on_isolated_thread;
use caju_types::Result;

/// Stack bytes of threads that bind expressions. The planner's passes are recursive, with frames of many kilobytes. This is
/// several times what the deepest expression needs that [`parse`](crate::syntax::parse) accepts.
pub(crate) const STACK_BYTES: usize = 64 << 20;

/// Runs `f` with enough stack: on this thread if it was started for binding, else on a new thread, for which this one waits.
/// Async code binds through `Registry::run_isolated`, so that its threads do not wait here.
///
/// # Errors
/// Those of `f`; `ResourceExhausted` if the system gives no thread, `Internal` if `f` panics.
pub(crate) fn with_stack<T: Send>(f: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    if on_isolated_thread() {
        return f();
    }
    caju_runtime::with_stack("binding an expression", STACK_BYTES, f)
}
