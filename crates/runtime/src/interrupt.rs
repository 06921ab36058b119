//! Ends work on CPU threads once no caller waits for it.
//!
//! A closure on a thread of the CPU pool cannot be cancelled from outside. [`Interrupt::scope`] marks the work of one owner on the
//! current thread, and long work calls [`check`] between its rows: an error after [`Interrupt::stop`].
//!
//! ```
//! use caju_runtime::interrupt::{Interrupt, check};
//! let ended = Interrupt::default();
//! ended.scope(|| check().unwrap());
//! ended.stop();
//! ended.scope(|| check().unwrap_err());
//! check().unwrap();
//! ```

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use caju_types::{Error, Result};

thread_local! {
    static CURRENT: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

/// Whether the work of an owner, such as a task, has become useless. Clones are the same flag.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    stopped: Arc<AtomicBool>,
}

/// Restores the outer scope when the inner one ends, even by a panic.
struct Restore(Option<Interrupt>);

impl Drop for Restore {
    fn drop(&mut self) {
        let outer = self.0.take();
        CURRENT.with_borrow_mut(|current| *current = outer);
    }
}

impl Interrupt {
    /// Ends the work in all scopes of this flag at their next [`check`].
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Runs `work`, which ends early once [`Interrupt::stop`] was called. In a scope within a scope only the inner one counts.
    pub fn scope<T>(&self, work: impl FnOnce() -> T) -> T {
        let outer = CURRENT.with_borrow_mut(|current| current.replace(self.clone()));
        let _restore = Restore(outer);
        work()
    }
}

/// Whether to continue. Outside of a scope work always continues.
///
/// # Errors
/// `Cancelled` if the owner of the current scope has ended.
pub fn check() -> Result<()> {
    let stopped = |i: &Interrupt| i.stopped.load(Ordering::Acquire);
    if CURRENT.with_borrow(|current| current.as_ref().is_some_and(stopped)) {
        return Err(Error::cancelled("the task has ended"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_nest_and_end_with_a_panic() {
        let (outer, inner) = (Interrupt::default(), Interrupt::default());
        outer.stop();
        outer.scope(|| {
            inner.scope(|| check().unwrap());
            check().unwrap_err();
        });
        drop(std::panic::catch_unwind(|| outer.scope(|| panic!("boom"))));
        check().unwrap();
    }
}
