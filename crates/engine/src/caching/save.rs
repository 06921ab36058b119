//! Saves: every split gets its part, and no row is delivered.

use std::sync::Arc;

use caju_cache::PutOutcome;

use super::{Entry, TaskCache};
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
        if let Some(meta) = view.index.get(&key) {
            return Entry::Saved { skipped: meta.skipped };
        }
        if self.writers.breaker.is_open() {
            return Entry::Skip;
        }
        match self.snapshots.claim(view, bound, key, plan).await {
            Ok(PutOutcome::Exists(meta)) => Entry::Saved { skipped: meta.skipped },
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
