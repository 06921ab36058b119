//! Connecting, and opening readers.

use std::time::Duration;

use caju_proto::{Bytes, v1};
use caju_runtime::random_secret;
use caju_types::{Error, IterationId, Result};
use caju_wire::DispatcherLink;
use tokio::time::Instant;

use crate::config::{Attempt, ClientConfig, DatasetRef, ReadRequest, SaveTo};
use crate::exact::check_exact;
use crate::reader::Reader;
use crate::state::ReaderState;

/// A connection to a dispatcher. Clones share it.
#[derive(Debug, Clone)]
pub struct Client {
    link: DispatcherLink,
    config: ClientConfig,
}

impl Client {
    /// Connects to the dispatcher at `host:port` (or `caju://host:port`), waiting for it as long as the
    /// settings say. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// `InvalidArgument` if the address is none, `Unavailable` if no dispatcher answers.
    pub async fn connect(dispatcher: &str, config: ClientConfig) -> Result<Self> {
        let link = DispatcherLink::over(config.network.clone(), dispatcher)?;
        let probe =
            |mut d: caju_wire::Dispatcher| async move { d.get_status(v1::GetStatusRequest::default()).await };
        link.retry(config.connect_timeout, Duration::ZERO, probe).await?;
        Ok(Self { link, config })
    }

    /// The dispatcher's address.
    pub fn dispatcher(&self) -> &str {
        self.link.address()
    }

    /// The status of the dispatcher, its workers and its jobs.
    ///
    /// # Errors
    /// `Unavailable` if the dispatcher does not answer.
    pub async fn status(&self) -> Result<v1::GetStatusResponse> {
        self.status_of(v1::GetStatusRequest::default()).await
    }

    async fn status_of(&self, request: v1::GetStatusRequest) -> Result<v1::GetStatusResponse> {
        let call = |mut d: caju_wire::Dispatcher| async move { d.get_status(request).await };
        self.link.retry(self.config.connect_timeout, Duration::ZERO, call).await
    }

    /// The final status of an iteration that was read to its end, once its workers have reported. It waits for them at most
    /// `bound`, and not while the job has other readers. `None` if the dispatcher does not know the iteration.
    pub async fn final_status(&self, iteration: IterationId, bound: Duration) -> Option<v1::JobStatus> {
        let until = Instant::now() + bound;
        loop {
            let request = v1::GetStatusRequest { iteration_id: iteration.0 };
            let status = tokio::time::timeout(bound, self.status_of(request)).await.ok()?.ok()?;
            let job = status.jobs.into_iter().find(|j| j.iteration_id == iteration.0)?;
            let over = job.state != "running" && job.tasks == 0 && !job.stages.is_empty();
            if over || job.clients > 0 || Instant::now() > until {
                return Some(job);
            }
            tokio::time::sleep(bound / 50).await;
        }
    }

    /// Registers a definition under a name; an empty name means its fingerprint.
    ///
    /// # Errors
    /// What is wrong with the definition or its source; `AlreadyExists` if another definition has the name.
    pub async fn register(
        &self,
        def: &caju_pipeline::DatasetDef,
        dataset_id: &str,
    ) -> Result<v1::RegisterDatasetResponse> {
        let request = v1::RegisterDatasetRequest {
            definition_json: def.to_json().to_string(),
            dataset_id: dataset_id.to_string(),
        };
        let call = |mut d: caju_wire::Dispatcher| {
            let request = request.clone();
            async move { d.register_dataset(request).await }
        };
        self.link.retry(self.config.connect_timeout, self.config.open_timeout, call).await
    }

    /// The dataset under an identifier: its fingerprint, its schema and its definition.
    ///
    /// # Errors
    /// `NotFound` if nothing is; `Unavailable` if the dispatcher does not answer.
    pub async fn dataset(&self, dataset_id: &str) -> Result<v1::GetDatasetResponse> {
        let call = |mut d: caju_wire::Dispatcher| {
            let request = v1::GetDatasetRequest { dataset_id: dataset_id.to_string() };
            async move { d.get_dataset(request).await }
        };
        self.link.retry(self.config.connect_timeout, Duration::ZERO, call).await
    }

    /// Opens one epoch of a job for reading. Tasks are read from now on, up to the bound in bytes.
    ///
    /// # Errors
    /// What is wrong with the definition or its source; `FailedPrecondition` if the job reads something else
    /// or the epoch is over; `Unavailable` if the dispatcher does not answer.
    pub async fn read(&self, request: ReadRequest) -> Result<Reader> {
        self.open(request, false).await
    }

    /// Opens epoch 0 of a new job that only profiles: everything is computed, every encoding is probed at every hint, and the
    /// dispatcher's status has the profile and the decision when the epoch is over.
    ///
    /// # Errors
    /// As [`Client::read`].
    pub async fn read_to_profile(&self, request: ReadRequest) -> Result<Reader> {
        self.open(request, true).await
    }

    /// Starts or resumes saving a definition's rows under a URL; the dispatcher drives the save.
    ///
    /// # Errors
    /// What is wrong with the definition or its source; `AlreadyExists` if the URL has another save.
    pub async fn start_save(
        &self,
        def: &caju_pipeline::DatasetDef,
        to: &SaveTo,
        encoding: &str,
    ) -> Result<v1::SaveStatus> {
        let request = v1::StartSaveRequest {
            definition_json: def.to_json().to_string(),
            url: to.url.clone(),
            encoding: encoding.to_owned(),
            chunk_bytes: to.chunk_bytes,
        };
        let call = |mut d: caju_wire::Dispatcher| {
            let request = request.clone();
            async move { d.start_save(request).await }
        };
        self.link.retry(self.config.connect_timeout, self.config.open_timeout, call).await
    }

    /// The status of the save to a URL.
    ///
    /// # Errors
    /// `NotFound` if the dispatcher knows of none, `Unavailable` if it does not answer.
    pub async fn save_status(&self, url: &str) -> Result<v1::SaveStatus> {
        let call = |mut d: caju_wire::Dispatcher| {
            let request = v1::GetSaveRequest { url: url.to_owned() };
            async move { d.get_save(request).await }
        };
        self.link.retry(self.config.dispatcher_timeout, Duration::ZERO, call).await
    }

    async fn open(&self, request: ReadRequest, profile_only: bool) -> Result<Reader> {
        let (dataset_id, definition_json) = match &request.dataset {
            DatasetRef::Definition(def) => {
                // Before the epoch is opened, which would end a reading of it.
                check_exact(def, &request.states)?;
                (String::new(), def.to_json().to_string())
            }
            DatasetRef::Registered(id) => (id.clone(), String::new()),
        };
        let local_workers = self.config.local.addresses();
        if request.target == v1::TargetWorkers::Local
            && local_workers.is_empty()
            && request.consumer.is_none()
        {
            return Err(Error::invalid(
                "no local worker is found: target_workers LOCAL reads from workers in this process alone, and there is none; \
                 start one (Python: caju.start_worker), or read from ANY",
            ));
        }
        let learns = matches!(&request.dataset, DatasetRef::Definition(def) if def.unlearnt().is_some());
        // Consumers of one launch know each other by its name, whether it restores states or not.
        let names_attempt =
            request.restored_beginning || !request.states.is_empty() || request.consumer.is_some();
        let mut open = v1::OpenIterationRequest {
            dataset_id,
            definition_json,
            job: request.job,
            epoch: request.epoch,
            seed: request.seed.unwrap_or(0),
            has_seed: request.seed.is_some(),
            mode: request.mode.into(),
            has_full_job: false,
            flight: false,
            flight_worker_id: 0,
            client_id: 0,
            policy: request.policy,
            encoding: request.encoding,
            epochs: request.epochs,
            profile_only,
            save_chunk_bytes: request.save.as_ref().map_or(0, |s| s.chunk_bytes),
            save_url: request.save.map(|s| s.url).unwrap_or_default(),
            lost_readers: request.lost_readers.as_str().to_string(),
            client_secret: Bytes::new(),
            worker_secret: Bytes::new(),
            target_workers: request.target.into(),
            local_workers,
            states: request.states.iter().map(ReaderState::to_proto).collect(),
            num_states: request.num_states,
            states_of_all: request.states_of_all && !request.states.is_empty(),
            num_consumers: request.consumer.map_or(0, |c| c.count),
            consumer_index: request.consumer.map_or(0, |c| c.index),
            uneven: request.consumer.map_or("", |c| c.uneven.as_str()).to_string(),
            sharing: request.sharing.as_str().to_string(),
            trainer_id: request.sharing.trainer_id().to_string(),
            balance: request.consumer.map_or("", |c| c.balance.as_str()).to_string(),
            priority: request.priority,
            weight: request.weight,
            reattached_client: 0,
            announces_asking: true,
            attempt: attempt(
                &request.states,
                request.states_of_all,
                request.attempt.filter(|_| names_attempt),
            )?,
            restored_beginning: request.restored_beginning && request.states.is_empty(),
            after_iteration: request.after_iteration,
            request_id: random_secret()?.to_vec().into(),
            boundaries_wait_ms: 0,
        };
        let within = self.config.open_timeouts(self.config.connect_timeout);
        let opened = self.link.open_iteration(&open, &within).await?;
        if learns {
            // A dispatcher that has lost its state goes on with these boundaries.
            open.definition_json.clone_from(&opened.definition_json);
        }
        Reader::start(
            self.link.clone(),
            (self.config.clone(), request.transfer),
            open,
            opened,
            &request.states,
        )
    }
}

/// The attempt of a request that restores states.
///
/// # Errors
/// `InvalidArgument` for states that are not of one reading.
fn attempt(states: &[ReaderState], of_all: bool, given: Option<Attempt>) -> Result<Option<v1::Attempt>> {
    let Some(Attempt { id, rank }) = given else { return Ok(None) };
    let states_digest = match of_all && !states.is_empty() {
        true => ReaderState::union(states)?.digest().to_vec().into(),
        false => Bytes::new(),
    };
    Ok(Some(v1::Attempt { id, states_digest, rank: rank.map_or(0, |rank| rank.saturating_add(1)) }))
}
