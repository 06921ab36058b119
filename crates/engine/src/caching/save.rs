//! Saves: every split gets its part, and no row is delivered.

use std::sync::Arc;

use caju_cache::PutOutcome;
use caju_runtime::OrderedMutex;
use caju_types::{Error, ErrorKind, Result};

use super::{Entry, TaskCache, locks};
use crate::cache_plan::{CachePlan, SavePlan};
use crate::lease::LeasedSplit;

impl TaskCache {
    /// Computes and stores a split that has no part; skips all others.
    pub(super) async fn enter_save(
        self: &Arc<Self>,
        lease: &LeasedSplit,
        plan: &CachePlan,
        save: &SavePlan,
    ) -> Entry {
        self.save_failure.enable();
        let key = lease.split.key;
        let Some(hint) = self.hints.named(plan) else { return Entry::Skip };
        let Ok(bound) = self.hints.get(hint) else { return Entry::Skip };
        let view = self.snapshots.view(bound).await;
        let Some(view) = view.get().and_then(Option::as_ref) else { return Entry::Skip };
        if view.index.contains(&key) || self.writers.breaker.is_open() {
            return Entry::Skip;
        }
        match self.snapshots.claim(view, bound, key, plan).await {
            Ok(PutOutcome::Exists(_)) => Entry::Skip,
            Ok(PutOutcome::Busy { writer }) => {
                tracing::debug!(split = %key, %writer, "another writer saves this split");
                Entry::Skip
            }
            Ok(PutOutcome::Writer(mut writer)) => {
                if let Some(bytes) = save.chunk_bytes {
                    writer.set_chunk_bytes(bytes);
                }
                if self.start_writer(lease.index, hint, *writer, None) {
                    Entry::Put { hint }
                } else {
                    Entry::Skip
                }
            }
            Err(e) => {
                self.writers.breaker.record_failure(&e, "saving rows");
                self.save_failure.record(&e);
                Entry::Skip
            }
        }
    }
}

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
    fn enable(&self) {
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
