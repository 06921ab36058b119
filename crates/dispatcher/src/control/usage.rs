//! What peers may make this process keep: the length of names, and the number of datasets, jobs, epochs, readers and workers.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_types::{DatasetId, Error, JobName, Result, format_bytes, shortened};

use super::Txn;
use crate::config::MemoryLimits;
use crate::state::{Dataset, State, Update, Worker, WorkerState};

impl MemoryLimits {
    /// # Errors
    /// `InvalidArgument` for a name that is too long.
    pub(crate) fn check_name(&self, what: &str, name: &str) -> Result<()> {
        if name.len() <= self.name_bytes {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{what} has {} bytes, and {} are the most: `{}`; take a shorter one, or start the dispatcher with more \
             --max-name-bytes",
            name.len(),
            self.name_bytes,
            shortened(name)
        )))
    }
}

/// When datasets and jobs were last used, by the monotonic clock. What is not here was used before the process started.
#[derive(Debug, Default)]
pub(super) struct Usage {
    datasets: BTreeMap<DatasetId, Duration>,
    jobs: BTreeMap<JobName, Duration>,
}

impl Usage {
    pub(super) fn use_dataset(&mut self, id: &DatasetId, now: Duration) {
        self.datasets.insert(id.clone(), now);
    }

    pub(super) fn use_job(&mut self, name: &JobName, now: Duration) {
        self.jobs.insert(name.clone(), now);
    }

    fn dataset(&self, id: &DatasetId) -> Duration {
        self.datasets.get(id).copied().unwrap_or_default()
    }

    fn job(&self, name: &JobName) -> Duration {
        self.jobs.get(name).copied().unwrap_or_default()
    }

    /// Forgets what was not used for longer than the limit.
    pub(super) fn expired(&mut self, state: &State, limits: &MemoryLimits, now: Duration) -> Vec<Update> {
        // A restart is no reason to forget: the time begins when the process sees a thing first.
        state.datasets.keys().filter(|id| is_anonymous(id, state)).for_each(|id| {
            self.datasets.entry(id.clone()).or_insert(now);
        });
        state.jobs.keys().for_each(|name| {
            self.jobs.entry(name.clone()).or_insert(now);
        });
        // An epoch may take longer than that.
        state.iterations.values().filter(|i| i.is_in_use()).for_each(|i| self.use_job(&i.job, now));
        self.datasets.retain(|id, _| state.datasets.contains_key(id));
        self.jobs.retain(|name, _| state.jobs.contains_key(name));
        let old = |used: Duration| now.saturating_sub(used) > limits.forget_after;
        let jobs = state.idle_jobs().filter(|name| old(self.job(name)));
        let datasets = state.unused_datasets().filter(|id| is_anonymous(id, state) && old(self.dataset(id)));
        let jobs = jobs.map(|job| Update::JobForgotten { job: job.clone() });
        jobs.chain(datasets.map(|dataset| Update::DatasetForgotten { dataset: dataset.clone() })).collect()
    }
}

/// Whether a dataset has no given name: then no reader will ask for it by name.
fn is_anonymous(id: &DatasetId, state: &State) -> bool {
    state.datasets.get(id).is_some_and(|d| id.0.starts_with(&d.fingerprint.to_string()))
}

/// Admits a dataset: unused ones are forgotten until it fits, the longest unused first.
///
/// # Errors
/// `ResourceExhausted` if everything is in use.
pub(super) fn admit_dataset(
    limits: &MemoryLimits,
    uses: &Usage,
    txn: &mut Txn<'_>,
    dataset: &Dataset,
) -> Result<()> {
    if dataset.bytes() > limits.dataset_bytes {
        return Err(Error::exhausted(format!(
            "the definition takes {}, and all datasets together may take {}; keep its rows in files, or start the \
             dispatcher with more --max-dataset-bytes",
            format_bytes(dataset.bytes()),
            format_bytes(limits.dataset_bytes)
        )));
    }
    let before = txn.state.datasets.get(&dataset.id).map_or(0, Dataset::bytes);
    loop {
        let count = txn.state.datasets.len() + usize::from(before == 0);
        let bytes = txn.state.dataset_bytes().saturating_sub(before).saturating_add(dataset.bytes());
        if count <= limits.datasets && bytes <= limits.dataset_bytes {
            return Ok(());
        }
        let unused = txn.state.unused_datasets().filter(|id| **id != dataset.id);
        if let Some(oldest) = unused.min_by_key(|id| uses.dataset(id)).cloned() {
            txn.apply(Update::DatasetForgotten { dataset: oldest });
            continue;
        }
        let Some(oldest) = txn.state.unused_jobs().min_by_key(|name| uses.job(name)).cloned() else {
            return Err(Error::exhausted(format!(
                "the dispatcher holds {} datasets of {}, all of them in use, and may hold {} of {} in all; end jobs, or \
                 start it with more --max-datasets or --max-dataset-bytes",
                txn.state.datasets.len(),
                format_bytes(txn.state.dataset_bytes()),
                limits.datasets,
                format_bytes(limits.dataset_bytes)
            )));
        };
        forget_job(txn, oldest);
    }
}

/// Forgets a job with its epochs, which are over.
fn forget_job(txn: &mut Txn<'_>, job: JobName) {
    let epochs: Vec<_> = txn.state.iterations.values().filter(|i| i.job == job).map(|i| i.id).collect();
    epochs.into_iter().for_each(|iteration| txn.apply(Update::IterationDropped { iteration }));
    // Dropping its last epoch took an anonymous job with it.
    if txn.state.jobs.contains_key(&job) {
        txn.apply(Update::JobForgotten { job });
    }
}

/// Admits a job: of those without an epoch in use, the least recently used is forgotten.
///
/// # Errors
/// `ResourceExhausted` if all are being read.
pub(super) fn admit_job(limits: &MemoryLimits, uses: &Usage, txn: &mut Txn<'_>) -> Result<()> {
    while txn.state.jobs.len() >= limits.jobs.max(1) {
        let Some(oldest) = txn.state.unused_jobs().min_by_key(|name| uses.job(name)).cloned() else {
            return Err(Error::exhausted(format!(
                "the dispatcher has {} jobs that are being read, and may have no more; end some, or start it with more \
                 --max-jobs",
                txn.state.jobs.len()
            )));
        };
        forget_job(txn, oldest);
    }
    Ok(())
}

/// Admits an epoch of a job: those that are over are forgotten, the oldest first. Which epochs are over stays known.
///
/// # Errors
/// `ResourceExhausted` if all are in use.
pub(super) fn admit_epoch(limits: &MemoryLimits, txn: &mut Txn<'_>, job: &JobName) -> Result<()> {
    let most = limits.epochs_per_job.max(1);
    loop {
        let of_job = || txn.state.iterations.values().filter(|i| i.job == *job);
        let count = of_job().count();
        if count < most {
            return Ok(());
        }
        let Some(iteration) = of_job().find(|i| !i.is_in_use()).map(|i| i.id) else {
            return Err(Error::exhausted(format!(
                "job `{job}` has {count} epochs that are being read, and may have no more; finish some, or start the \
                 dispatcher with more --max-job-epochs"
            )));
        };
        txn.apply(Update::IterationDropped { iteration });
    }
}

/// Admits a reader of an epoch.
///
/// # Errors
/// `ResourceExhausted` if there are too many.
pub(super) fn admit_reader(limits: &MemoryLimits, state: &State) -> Result<()> {
    let readers: usize = state.iterations.values().map(|i| i.members.len()).sum();
    if readers < limits.readers.max(1) {
        return Ok(());
    }
    Err(Error::exhausted(format!(
        "the dispatcher has {readers} readers, and may have no more; end some, or start it with more --max-readers"
    )))
}

/// Admits a worker that was not registered before: lost workers are forgotten, the one lost first before others.
///
/// # Errors
/// `ResourceExhausted` if none is lost.
pub(super) fn admit_worker(limits: &MemoryLimits, txn: &mut Txn<'_>) -> Result<()> {
    while txn.state.workers.len() >= limits.workers.max(1) {
        let lost_at = |w: &Worker| match w.state {
            WorkerState::Lost { at_ms } => Some((at_ms, w.id)),
            _ => None,
        };
        let Some((_, worker)) = txn.state.workers.values().filter_map(lost_at).min() else {
            return Err(Error::exhausted(format!(
                "the dispatcher has {} workers, and may have no more; stop some, or start it with more \
                 --max-worker-registrations",
                txn.state.workers.len()
            )));
        };
        txn.apply(Update::WorkerForgotten { worker });
    }
    Ok(())
}
