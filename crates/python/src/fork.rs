//! Whether this process was forked while threads of caju were running, and what a forked child must leave alone.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use caju_types::{Error, Result};

/// Whether this process was forked from one with a live runtime.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Whether this process was forked from one with a live runtime, whose threads it lacks.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Marks this process as forked from one with a live runtime.
pub(crate) fn set_forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this process may use the runtime.
///
/// # Errors
/// `FailedPrecondition` if it was forked from a process whose threads it lacks.
pub(crate) fn check_fork() -> Result<()> {
    if !is_forked() {
        return Ok(());
    }
    Err(Error::failed_precondition(
        "this process was forked while caju's threads were running in its parent, and threads do not survive a \
         fork; start processes by `spawn` or `forkserver` (multiprocessing.set_start_method(\"spawn\"), \
         DataLoader(..., multiprocessing_context=\"spawn\")), or fork before the first batch is read",
    ))
}

/// A value that only the process that made it drops.
///
/// The drop of a connection wakes a task, which locks the queue of the runtime's threads. In a forked child, a thread that no
/// longer exists may hold that lock, and the child would wait for ever. The drop of a pool would kill processes of the parent. A
/// forked child forgets the value instead.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    value: ManuallyDrop<T>,
    pid: u32,
}

impl<T> OfProcess<T> {
    /// A value of this process.
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), pid: std::process::id() }
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OfProcess<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for OfProcess<T> {
    #[allow(unsafe_code, reason = "drops the value where this process made it")]
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            // SAFETY: nothing uses the value after its only drop, which is this one.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
