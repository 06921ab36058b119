//! What may be forgotten: datasets and jobs that nothing refers to.

use std::collections::BTreeSet;

use caju_types::{DatasetId, JobName};

use super::{Dataset, Iteration, Save, State};

impl Dataset {
    /// About what it takes in memory, in bytes.
    pub fn bytes(&self) -> u64 {
        let schemas = self.schema_ipc.len() + self.source_schema_ipc.len();
        let bytes = self.definition.bytes().saturating_add(schemas);
        u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(1024)
    }
}

impl Iteration {
    /// Whether somebody reads it, or may come back to read the remainder of it.
    pub fn is_in_use(&self) -> bool {
        let is_over = self.failure.is_some() || self.is_finished() || self.is_incomplete();
        !self.members.is_empty() || !is_over
    }
}

impl State {
    /// About what all datasets take in memory, in bytes.
    pub fn dataset_bytes(&self) -> u64 {
        self.datasets.values().map(Dataset::bytes).fold(0, u64::saturating_add)
    }

    /// Datasets that neither a job nor a save refers to.
    pub fn unused_datasets(&self) -> impl Iterator<Item = &DatasetId> {
        let of_saves = self.saves.values().filter(|s| Save::is_running(s)).map(|s| &s.dataset);
        let of_jobs = self.jobs.values().map(|j| &j.spec.dataset);
        let of_iterations = self.iterations.values().map(|i| &i.dataset);
        let used: BTreeSet<&DatasetId> = of_saves.chain(of_jobs).chain(of_iterations).collect();
        self.datasets.keys().filter(move |id| !used.contains(id))
    }

    /// Jobs without an epoch that is in use: what may be forgotten when a bound is reached. Some have epochs that are over.
    pub fn unused_jobs(&self) -> impl Iterator<Item = &JobName> {
        let in_use = self.iterations.values().filter(|i| i.is_in_use());
        let read: BTreeSet<&JobName> = in_use.map(|i| &i.job).collect();
        self.jobs.keys().filter(move |name| !read.contains(name))
    }

    /// Jobs of which no epoch is read, or was lately.
    pub fn idle_jobs(&self) -> impl Iterator<Item = &JobName> {
        let read: BTreeSet<&JobName> = self.iterations.values().map(|i| &i.job).collect();
        self.jobs.keys().filter(move |name| !read.contains(name))
    }
}
