//! Saves: every split gets its part, and no row goes further.

use std::sync::Arc;

pub use caju_autocache::SavePlan;
use caju_cache::PutOutcome;
use caju_types::{Error, ErrorKind, Result};
use parking_lot::Mutex;

use super::{CachePlan, Entry, TaskCache};
use crate::source::Split;

impl TaskCache {
    /// Computes and stores a split that has no part; all others are passed over.
    pub(super) async fn enter_save(
        self: &Arc<Self>,
        index: u64,
        split: &Split,
        plan: &CachePlan,
        save: &SavePlan,
    ) -> Entry {
        self.save_failure.watch();
        let Some(hint) = self.hints.iter().position(|h| h.name == plan.hint) else { return Entry::Skip };
        let view = self.view(hint).await;
        let Some(view) = view.get().and_then(Option::as_ref) else { return Entry::Skip };
        if view.index.contains(&split.key) || self.puts.is_off() {
            return Entry::Skip;
        }
        match self.claim(view, hint, split, plan).await {
            Ok(PutOutcome::Exists(_)) => Entry::Skip,
            Ok(PutOutcome::Busy { writer }) => {
                tracing::debug!(split = %split.key, %writer, "another writer saves this split");
                Entry::Skip
            }
            Ok(PutOutcome::Writer(mut writer)) => {
                if let Some(bytes) = save.chunk_bytes {
                    writer.set_chunk_bytes(bytes);
                }
                if self.start_writer(index, hint, *writer, None) { Entry::Put } else { Entry::Skip }
            }
            Err(e) => {
                self.puts.failed(&e, "saving rows");
                self.save_failure.record(&e);
                Entry::Skip
            }
        }
    }
}

/// The first failure to store rows of a save that trying again does not help: a full disk, a place that may not be
/// written, columns that an encoding cannot hold. A save has nothing to fall back on, so it ends the task.
#[derive(Debug, Default)]
pub(super) struct SaveFailure(Mutex<Watched>);

#[derive(Debug, Default)]
struct Watched {
    is_save: bool,
    failure: Option<Error>,
}

impl SaveFailure {
    /// The task is one of a save.
    fn watch(&self) {
        self.0.lock().is_save = true;
    }

    /// Takes note of a failure, if the task is one of a save.
    pub(super) fn record(&self, error: &Error) {
        let passing = [ErrorKind::Unavailable, ErrorKind::DeadlineExceeded, ErrorKind::Cancelled];
        let mut watched = self.0.lock();
        if watched.is_save && !passing.contains(&error.kind()) {
            watched.failure.get_or_insert_with(|| error.clone());
        }
    }

    /// Ends the task, if it has to.
    pub(super) fn take(&self) -> Result<()> {
        self.0.lock().failure.take().map_or(Ok(()), Err)
    }
}
