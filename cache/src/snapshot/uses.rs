//! What this process read from a snapshot, as it tells the others.

use std::collections::BTreeSet;

use caju_types::Result;
use serde::{Deserialize, Serialize};

use super::SnapshotState;
use crate::Cache;
use crate::record::seal;

/// Jobs that are named.
const JOBS: usize = 1000;

/// The content of an object in `uses/`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Uses {
    #[serde(default)]
    pub(crate) jobs: BTreeSet<String>,
    #[serde(default)]
    pub(crate) rows: u64,
    #[serde(default)]
    pub(crate) saved_cpu_s: f64,
    /// The objects beside it that it sums up: they count no longer, if they are still there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) folds: Vec<String>,
}

impl Uses {
    pub(crate) fn add(&mut self, other: &Self) {
        let room = JOBS.saturating_sub(self.jobs.len());
        self.jobs.extend(other.jobs.iter().take(room).cloned());
        self.rows += other.rows;
        self.saved_cpu_s += other.saved_cpu_s;
    }
}

impl SnapshotState {
    pub(crate) fn used(&self, job: &str, rows: u64, saved_cpu_s: f64) {
        let mut uses = self.uses.lock();
        if !job.is_empty() && uses.0.jobs.len() < JOBS {
            uses.0.jobs.insert(job.to_string());
        }
        uses.0.rows += rows;
        uses.0.saved_cpu_s += saved_cpu_s;
        uses.1 = true;
    }

    /// How many objects say such things, as of the last listing.
    pub(crate) fn uses_seen(&self) -> usize {
        self.known.lock().uses
    }

    /// Writes what this process read, if that changed since the last time.
    pub(crate) async fn flush_uses(&self, cache: &Cache) -> Result<()> {
        let uses = {
            let nothing_stored = self.known.lock().index.is_empty();
            let mut uses = self.uses.lock();
            // A snapshot of which nothing was stored in the end would be nothing but this.
            if nothing_stored && uses.0.rows == 0 {
                return Ok(());
            }
            if !std::mem::take(&mut uses.1) || cache.is_read_only() {
                return Ok(());
            }
            uses.0.clone()
        };
        let path = cache.root.layout.usage(self.of, cache.leases.id());
        cache.root.put(&path, seal(&uses)?.into()).await
    }
}
