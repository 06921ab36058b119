//! Warm starts: what is found out for a decision before the first row, and the plan record that the next job finds.

use std::sync::Arc;
use std::time::Duration;

use caju_autocache::{Action, Event, JobSummary, PlanRecord};
use caju_cache::{read_plan_record, write_plan_record};
use caju_runtime::log_failure;
use caju_types::{DatasetId, Error, IterationId, JobName, Result, hash128};

use super::facts::{cluster, peers};
use super::{Decisions, undecided};
use crate::state::{Dataset, Iteration, Policy, State};

/// How long the first batch of a job may wait for a decision by a plan record.
const FIRST_BATCH_WAIT: Duration = Duration::from_millis(500);

/// An iteration whose storage is checked.
struct StorageCheck {
    iteration: IterationId,
    epoch: u64,
    job: JobName,
    seed: u64,
    dataset: Dataset,
}

impl Decisions {
    /// Finds out what can be known for a decision before the first row.
    pub(in crate::control) async fn prepare_decision(
        self: &Arc<Self>,
        id: IterationId,
        of: &DatasetId,
    ) -> Result<()> {
        if !self.snapshots.exists() {
            return Ok(());
        }
        let Some(waiting) = self.context.read_durable(|state| undecided(state, id)).await? else {
            return Ok(());
        };
        let (actions, number) = self.on_autocache_event(&waiting.job, |state| {
            let iteration = state.iterations.get(&id)?;
            let peers = peers(state, state.jobs.get(&iteration.job)?);
            Some(Event::IterationOpened { iteration: id, epoch: iteration.epoch, peers })
        });
        self.context.store.durable(number).await?;
        let check = actions.iter().find_map(|action| match action {
            Action::CheckStorage { read_plan_record, .. } => Some(*read_plan_record),
            _ => None,
        });
        let Some(with_record) = check else { return Ok(()) };
        let found = self.context.read_durable(|state| {
            let iteration = state.iterations.get(&id)?;
            let job = state.jobs.get(&iteration.job)?;
            let (epoch, seed, job) = (iteration.epoch, job.spec.seed, job.name.clone());
            let dataset = state.datasets.get(of)?.clone();
            Some(StorageCheck { iteration: id, epoch, job, seed, dataset })
        });
        let Some(check) = found.await? else { return Ok(()) };
        let has_record = with_record && self.read_plan_record(&check.job, &check.dataset).await;
        let (me, (done, checked)) = (Arc::clone(self), tokio::sync::oneshot::channel::<()>());
        self.context.tasks.background_graceful("checking the storage", log_failure, async move {
            tokio::select! {
                () = me.check_and_decide(&check) => {}
                () = me.context.tasks.stopped() => {}
            }
            drop(done);
            Ok(())
        });
        // A decision by then spares the first task its probes. A large cache is listed while rows are on their way.
        if has_record {
            tokio::select! {
                _ = checked => {}
                () = self.context.clock.sleep(FIRST_BATCH_WAIT) => {}
            }
        }
        Ok(())
    }

    /// Reads what earlier jobs of a pipeline left behind; whether there is anything.
    async fn read_plan_record(&self, job: &JobName, dataset: &Dataset) -> bool {
        let Some(stores) = self.datasets.catalog().stores() else { return false };
        let read = read_plan_record(&stores, &self.context.config.cache_url, dataset.identity);
        match self.in_time(read).await {
            Ok(Some(record)) => {
                self.on_autocache_event(job, |_| Some(Event::PlanRecordRead { record: Box::new(record) }));
                true
            }
            Ok(None) => false,
            Err(error) => {
                tracing::debug!(%job, %error, "the plan record cannot be read");
                false
            }
        }
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            () = self.context.clock.sleep(self.context.config.timers.cache_wait) => Err(Error::deadline("the cache's store does not answer")),
        }
    }

    /// Checks the storage, and decides by the plan record if there is one.
    async fn check_and_decide(&self, check: &StorageCheck) {
        let StorageCheck { iteration, epoch, job, seed, dataset } = check;
        let coverage = self.check_storage(*iteration, job, dataset, *seed).await;
        let (_, number) = self.on_autocache_event(job, |state| {
            let (iteration, epoch, cluster) = (*iteration, *epoch, cluster(state));
            Some(Event::StorageChecked { iteration, epoch, coverage, cluster })
        });
        if let Err(error) = self.context.store.durable(number).await {
            tracing::debug!(%job, %error, "a decision is not durable");
        }
    }

    /// Once an epoch has ended: writes what its job decided by, for the next job with the same pipeline.
    pub(in crate::control) fn write_plan_record_soon(self: &Arc<Self>, state: &State, id: IterationId) {
        let Some((definition, name, summary)) = self.job_summary(state, id) else { return };
        let Some(stores) = self.datasets.catalog().stores() else { return };
        let me = Arc::clone(self);
        self.context.tasks.background_graceful("writing a plan record", log_failure, async move {
            let root = &me.context.config.cache_url;
            let write = async {
                let record: PlanRecord =
                    read_plan_record(&stores, root, definition).await?.unwrap_or_default();
                write_plan_record(&record.with(summary), &stores, root, definition).await
            };
            if let Err(error) = me.in_time(write).await {
                tracing::debug!(job = %name, %definition, %error, "a plan record is not written");
            }
            Ok(())
        });
    }

    /// What the job of an ended epoch adds to the record of its pipeline; none if that was written before.
    fn job_summary(
        &self,
        state: &State,
        id: IterationId,
    ) -> Option<(caju_types::Fingerprint, JobName, JobSummary)> {
        let iteration = state.iterations.get(&id).filter(|i| i.is_drained())?;
        let job = state.jobs.get(&iteration.job);
        let job = job.filter(|j| j.spec.policy == Policy::Auto && !j.spec.profile_only)?;
        let dataset = state.datasets.get(&iteration.dataset)?;
        if !self.snapshots.exists() || dataset.hints.is_empty() {
            return None;
        }
        let text = job.profile.as_ref().map_or("", |p| p.text());
        let is_new = |what: &str| self.snapshots.written.is_new(hash128(what.as_bytes()));
        // Jobs that share rows read them together, and count as one: the first by name.
        let stands_for = |other: &Iteration| other.dataset == iteration.dataset && other.job < job.name;
        let is_counted = !self.context.reports.lock().sharing.others(state, id).any(stands_for);
        let first = is_new(&format!("job {} {}", dataset.identity, job.name)) && is_counted;
        // Of a job that announced no epochs those count that it had.
        let reached = job.spec.epochs.is_none().then_some(iteration.epoch.saturating_add(1));
        if !is_new(&format!("plan {} {} {reached:?} {text}", dataset.identity, job.name)) {
            return None;
        }
        // A job that names its encoding has not weighed the others.
        let profile = job.profile.as_ref().and_then(|p| p.value()).filter(|_| job.spec.encoding.is_none());
        let listed = iteration.feeds.values().all(|f| f.exhausted);
        let cluster = cluster(state);
        let summary = JobSummary {
            profile: profile.cloned(),
            splits: self.snapshots.counts.of(id).filter(|_| listed),
            cores: Some(cluster.cores).filter(|_| cluster.workers > 0),
            epochs: job.spec.epochs,
            reached,
            is_new: first,
        };
        Some((dataset.identity, job.name.clone(), summary))
    }
}
