//! Whether this process was forked while threads of caju were running.

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
