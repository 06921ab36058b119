//! Why the rows of a save could not be stored.

use caju_runtime::OrderedMutex;
use caju_types::{Error, ErrorKind, Result};

use super::locks;

/// The first permanent failure to store rows of a save: a full disk, a place that may not be written, columns that an
/// encoding cannot hold. A save has nothing to fall back on, so the failure ends the task.
#[derive(Debug)]
pub(super) struct SaveFailure(OrderedMutex<State>);

impl Default for SaveFailure {
    fn default() -> Self {
        Self(OrderedMutex::new(locks::SAVE_FAILURE, State::default()))
    }
}

#[derive(Debug, Default)]
struct State {
    is_save: bool,
    failure: Option<Error>,
}

impl SaveFailure {
    /// The task is one of a save: failures are recorded from now on.
    pub(super) fn enable(&self) {
        self.0.lock().is_save = true;
    }

    /// Records a failure, if the task is one of a save and a retry cannot help.
    pub(super) fn record(&self, error: &Error) {
        let transient = [ErrorKind::Unavailable, ErrorKind::DeadlineExceeded, ErrorKind::Cancelled];
        let mut state = self.0.lock();
        if state.is_save && !transient.contains(&error.kind()) {
            state.failure.get_or_insert_with(|| error.clone());
        }
    }

    /// Takes the failure.
    ///
    /// # Errors
    /// The first failure that was recorded; once.
    pub(super) fn take(&self) -> Result<()> {
        self.0.lock().failure.take().map_or(Ok(()), Err)
    }
}
