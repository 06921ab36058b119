//! Opening an iteration: get or create, and join.

use std::sync::Arc;

use caju_engine::ShardBy;
use caju_proto::v1;
use caju_types::{DatasetId, Error, IterationId, JobName, Result, hash128};

use super::autocache::Decisions;
use super::context::Context;
use super::datasets::{Datasets, RequestedDataset, find_to_open};
use super::iterations::{Iterations, Restored};
use super::jobs::{ANONYMOUS, OfNewJob, mode_of_message};
use super::learning::{Awaited, Learning};
use super::learnt_boundaries::is_learnt_from;
use super::saves::SaveCalls;
use super::shards::{num_shards, shard_by};
use super::snapshots::Snapshots;
use super::usage::admit_reader;
use super::{jobs, joining, restored_beginning, resume, sharing, targets};
use crate::state::{Mode, State};

/// Opens epochs for readers.
pub(crate) struct Epochs {
    pub(super) context: Arc<Context>,
    pub(super) datasets: Arc<Datasets>,
    pub(super) learning: Arc<Learning>,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) decisions: Arc<Decisions>,
    pub(super) iterations: Arc<Iterations>,
    pub(super) saves: Arc<SaveCalls>,
}

impl Epochs {
    pub(crate) async fn open_iteration(
        &self,
        mut request: v1::OpenIterationRequest,
    ) -> Result<v1::OpenIterationResponse> {
        if self.context.process.is_draining() {
            return Err(Error::unavailable("the dispatcher is shutting down; try again when it is back"));
        }
        let limits = &self.context.config.memory;
        limits.check_name("a job's name", &request.job)?;
        limits.check_name("a trainer's id", &request.trainer_id)?;
        limits.check_name("a dataset's name", &request.dataset_id)?;
        let of_dataset = self.job_of_dataset(&request).await?;
        request.job = sharing::job_name(&request, of_dataset)?;
        limits.check_name("a policy", &request.policy)?;
        limits.check_name("an encoding", &request.encoding)?;
        limits
            .check_name("the name of an attempt", request.attempt.as_ref().map_or("", |given| &given.id))?;
        targets::check_local(&request.local_workers, limits)?;
        self.saves.check_save_url(&request).await?;
        if request.job.is_empty() {
            request.job = match joining::request_id(&request)? {
                // The same call again is of the same job.
                Some(id) => format!("{ANONYMOUS}{:032x}", hash128(id.as_bytes())),
                None => self.context.unique_name(ANONYMOUS),
            };
        }
        let mut resume = resume::parse(&request)?;
        let wanted = match self.learning.with_boundaries(self.wanted(&request).await?, &request).await? {
            Awaited::Runs(wanted) => wanted,
            Awaited::Learning(learning) => {
                return Ok(v1::OpenIterationResponse { learning: Some(learning), ..Default::default() });
            }
        };
        let others = resume::await_reader_calls(&self.context, &request, resume.as_ref()).await?;
        let beginning = restored_beginning::restored(&self.context, &request).await?;
        // Where all readers are silent the epoch begins again. It does not go on behind what they had taken.
        let mut deserted = None;
        if beginning.as_ref().is_none_or(|given| !given.finds_silence()) {
            self.iterations.lose_silent_consumer(&request).await?;
            deserted = self.iterations.deserted_failure(&request).await?;
        }
        let of_new_job = self.of_new_job(&request, &wanted).await?;
        if let Some(shards) = resume.as_mut().and_then(|r| r.shards.as_mut()).filter(|s| s.by.is_none()) {
            shards.by = self.shards_of_state(&request, &wanted, shards.count).await?;
        }
        let (now, unix_ms) = (self.context.clock.now(), self.context.unix_ms());
        let (answer, dataset) = self
            .context
            .commit(|txn| {
                if !txn.state.jobs.contains_key(&JobName(request.job.clone())) {
                    // Nothing is left of a job that is refused.
                    admit_reader(&self.context.config.memory, txn.state)?;
                }
                let dataset = match &wanted {
                    RequestedDataset::Known(id) => find_to_open(txn.state, id, &request)?.clone(),
                    RequestedDataset::Bound(bound, dataset) => self.datasets.register(
                        txn,
                        bound,
                        (**dataset).clone(),
                        None,
                        Some(&JobName(request.job.clone())),
                    )?,
                };
                let job = jobs::get_or_create(
                    &self.datasets,
                    &self.snapshots,
                    txn,
                    &request,
                    &dataset,
                    of_new_job,
                )?;
                resume::check(txn.state, &request, &job, &dataset)?;
                let behind = Restored {
                    states: resume.clone(),
                    others: &others,
                    beginning: beginning.as_ref(),
                    deserted,
                };
                let opened = self.iterations.get_or_create(txn, &request, &job, unix_ms, behind)?;
                let answer = match opened {
                    Some(iteration) => joining::join(&self.context, txn, &request, iteration, now)?,
                    None => joining::over(&request, &job),
                };
                Ok((
                    v1::OpenIterationResponse { heartbeat_ms: self.context.heartbeat_ms(), ..answer },
                    dataset,
                ))
            })
            .await?;
        if let RequestedDataset::Bound(bound, _) = wanted
            && bound.payloads == dataset.payloads
        {
            self.datasets.keep(&dataset.id, &bound);
        }
        self.decisions.prepare_decision(IterationId(answer.iteration_id), &dataset.id).await?;
        Ok(v1::OpenIterationResponse {
            fingerprint: dataset.fingerprint.to_string(),
            schema_ipc: dataset.schema_ipc.into(),
            definition_json: dataset.definition.text().to_owned(),
            ..answer
        })
    }

    /// The job's name in the dispatcher. Readers that give one job name and datasets of other identifiers read other jobs, as
    /// in tf.data service: a job over a dataset with a chosen identifier is named `JOB:DATASET`.
    async fn job_of_dataset(&self, request: &v1::OpenIterationRequest) -> Result<String> {
        if request.job.is_empty() || request.dataset_id.is_empty() || request.has_full_job {
            return Ok(request.job.clone());
        }
        let (job, id) = (JobName(request.job.clone()), DatasetId(request.dataset_id.clone()));
        let is_plain = |state: &State| {
            // A reader that opens its epoch again gives no identifier, and jobs of older versions are named by the job alone.
            let reads_it = state.jobs.get(&job).is_some_and(|j| j.spec.dataset == id);
            reads_it || state.datasets.get(&id).is_none_or(|dataset| !dataset.has_chosen_id())
        };
        let is_plain = self.context.read_durable(is_plain).await?;
        Ok(if is_plain { request.job.clone() } else { format!("{}:{}", request.job, request.dataset_id) })
    }

    /// What has to be known of the job if this request makes it; none if it is there.
    async fn of_new_job(
        &self,
        request: &v1::OpenIterationRequest,
        wanted: &RequestedDataset,
    ) -> Result<Option<OfNewJob>> {
        let mode = mode_of_message(request.mode)?.unwrap_or(Mode::Dynamic);
        let name = JobName(request.job.clone());
        if self.context.read_durable(|state| state.jobs.contains_key(&name)).await? {
            return Ok(None);
        }
        let num_shards = num_shards(&self.context.config.workers, mode);
        Ok(Some(OfNewJob { shard_by: self.shards_divide(request, wanted, mode, num_shards).await? }))
    }

    /// What the shards of a state of an older version divide, which does not say it, where that depends on their number and the
    /// job's epochs have another one.
    async fn shards_of_state(
        &self,
        request: &v1::OpenIterationRequest,
        wanted: &RequestedDataset,
        count: u32,
    ) -> Result<Option<ShardBy>> {
        let mode = request.states.first().map_or(Ok(None), |s| mode_of_message(s.mode))?;
        match mode {
            Some(mode @ Mode::FileOrData) if count != num_shards(&self.context.config.workers, mode) => {
                self.shards_divide(request, wanted, mode, count).await
            }
            _ => Ok(None),
        }
    }

    /// What this number of shards of a dataset divide.
    async fn shards_divide(
        &self,
        request: &v1::OpenIterationRequest,
        wanted: &RequestedDataset,
        mode: Mode,
        num_shards: u32,
    ) -> Result<Option<ShardBy>> {
        let (bound, definition) = match wanted {
            RequestedDataset::Bound(bound, dataset) => (Arc::clone(bound), dataset.definition.clone()),
            RequestedDataset::Known(id) => {
                let found = |state: &State| find_to_open(state, id, request).cloned();
                let dataset = self.context.read_durable(found).await??;
                (self.datasets.binding_of(&dataset).await?, dataset.definition)
            }
        };
        self.datasets.ensure_read(&definition).await?;
        shard_by(num_shards, mode, &definition, &bound).await
    }

    /// Finds or binds the dataset. A definition that the job reads already is not bound again.
    async fn wanted(&self, request: &v1::OpenIterationRequest) -> Result<RequestedDataset> {
        match (request.dataset_id.is_empty(), request.definition_json.is_empty()) {
            (false, true) => return Ok(RequestedDataset::Known(DatasetId(request.dataset_id.clone()))),
            (true, false) => {}
            _ => return Err(Error::invalid("give either a dataset's name or a definition")),
        }
        let definition = self.datasets.definition_of_call(request.definition_json.clone()).await?;
        let job = JobName(request.job.clone());
        let known = self
            .context
            .read_durable(|state| {
                let dataset = state.jobs.get(&job).and_then(|j| state.datasets.get(&j.spec.dataset))?;
                let is_learnt = || is_learnt_from(state, &dataset.id, &definition);
                (dataset.definition == definition || is_learnt()).then(|| dataset.id.clone())
            })
            .await?;
        if let Some(id) = known {
            return Ok(RequestedDataset::Known(id));
        }
        let (bound, dataset) = self.datasets.bind(definition).await?;
        Ok(RequestedDataset::Bound(bound, Box::new(dataset)))
    }
}
