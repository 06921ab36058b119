//! Opening an iteration: get or create, and join.

use std::sync::Arc;

use caju_engine::ShardBy;
use caju_proto::{mode_names, v1};
use caju_runtime::random_secret;
use caju_types::{ClientId, DatasetId, Error, IterationId, JobName, Result, Secret, WorkerId, did_you_mean};

use super::acknowledged_rows::Acknowledged;
use super::acknowledgements;
use super::clients::task_infos;
use super::datasets::{difference, find, parse, register};
use super::resume::{Facts, mode_of};
use super::store::draw_secret;
use super::usage::{admit_job, check_name};
use super::{Core, Txn, consumers, resume, secrets, targets};
use crate::catalog::Bound;
use crate::state::{
    Dataset, Iteration, Job, Mode, Policy, Resume, SaveTarget, State, Task, TaskState, Update, Worker,
    owed_tasks,
};

/// Jobs of one client alone are named so, and forgotten with their last iteration.
const ANONYMOUS: &str = "anonymous-";

/// Where the dataset of a request comes from.
enum Wanted {
    /// It is registered.
    Known(DatasetId),
    /// It was bound just now.
    Bound(Arc<Bound>, Box<Dataset>),
}

impl Core {
    pub(crate) async fn open_iteration(
        self: &Arc<Self>,
        mut request: v1::OpenIterationRequest,
    ) -> Result<v1::OpenIterationResponse> {
        if self.process.is_draining() {
            return Err(Error::unavailable("the dispatcher is shutting down; try again when it is back"));
        }
        check_name("a job's name", &request.job)?;
        check_name("a dataset's name", &request.dataset_id)?;
        check_name("a policy", &request.policy)?;
        check_name("an encoding", &request.encoding)?;
        targets::check_local(&request.local_workers)?;
        self.check_save_url(&request).await?;
        if request.job.is_empty() {
            request.job = self.unique_name(ANONYMOUS);
        }
        let resume = resume::parse(&request)?;
        let wanted = self.wanted(&request).await?;
        let shard_by = self.shards_of_new_job(&request, &wanted).await?;
        let (now, unix_ms) = (self.clock.now(), self.unix_ms());
        let (answer, dataset) = self
            .commit(|txn| {
                let dataset = match &wanted {
                    Wanted::Known(id) => find(txn.state, id)?.clone(),
                    Wanted::Bound(_, dataset) => {
                        register(self, txn, (**dataset).clone(), None, Some(&JobName(request.job.clone())))?
                    }
                };
                let job = get_or_create_job(self, txn, &request, &dataset, shard_by)?;
                resume::check(&request, &job, &dataset)?;
                let opened = get_or_create_iteration(self, txn, &request, &job, unix_ms, resume.clone())?;
                let answer = match opened {
                    Some(iteration) => self.join(txn, &request, iteration, now)?,
                    None => over(&request, &job),
                };
                Ok((v1::OpenIterationResponse { heartbeat_ms: self.heartbeat_ms(), ..answer }, dataset))
            })
            .await?;
        if let Wanted::Bound(bound, _) = wanted
            && bound.payloads == dataset.payloads
        {
            self.datasets.keep(&dataset.id, &bound);
        }
        self.prepare_decision(IterationId(answer.iteration_id), &dataset.id).await?;
        Ok(v1::OpenIterationResponse {
            fingerprint: dataset.fingerprint.to_string(),
            schema_ipc: dataset.schema_ipc.into(),
            definition_json: dataset.definition_json,
            ..answer
        })
    }

    /// What the shards of the job divide, if this request makes it.
    async fn shards_of_new_job(
        &self,
        request: &v1::OpenIterationRequest,
        wanted: &Wanted,
    ) -> Result<Option<ShardBy>> {
        let mode = mode_of_message(request.mode)?.unwrap_or(Mode::Dynamic);
        let name = JobName(request.job.clone());
        if self.look(|state| state.jobs.contains_key(&name)).await? {
            return Ok(None);
        }
        let (bound, definition) = match wanted {
            Wanted::Bound(bound, dataset) => (Arc::clone(bound), dataset.definition_json.clone()),
            Wanted::Known(id) => {
                let definition =
                    self.look(|state| find(state, id).map(|d| d.definition_json.clone())).await??;
                (self.bound(id).await?, definition)
            }
        };
        self.shard_by(mode, &definition, &bound).await
    }

    /// Finds or binds the dataset. A definition that the job reads already is not bound again.
    async fn wanted(&self, request: &v1::OpenIterationRequest) -> Result<Wanted> {
        match (request.dataset_id.is_empty(), request.definition_json.is_empty()) {
            (false, true) => return Ok(Wanted::Known(DatasetId(request.dataset_id.clone()))),
            (true, false) => {}
            _ => return Err(Error::invalid("give either a dataset's name or a definition")),
        }
        let definition = parse(&request.definition_json)?.to_string();
        let job = JobName(request.job.clone());
        let known = self
            .look(|state| {
                let dataset = state.jobs.get(&job).and_then(|j| state.datasets.get(&j.dataset))?;
                (dataset.definition_json == definition).then(|| dataset.id.clone())
            })
            .await?;
        if let Some(id) = known {
            return Ok(Wanted::Known(id));
        }
        let (bound, dataset) = self.datasets.bind(&definition).await?;
        Ok(Wanted::Bound(bound, Box::new(dataset)))
    }

    fn join(
        &self,
        txn: &mut Txn<'_>,
        request: &v1::OpenIterationRequest,
        id: IterationId,
        now: std::time::Duration,
    ) -> Result<v1::OpenIterationResponse> {
        let given = Some(ClientId(request.client_id)).filter(|c| c.0 != 0);
        if let Some(client) = given {
            known_client(txn.state, client, &request.client_secret)?;
        }
        let client = given.unwrap_or(ClientId(txn.state.next_id));
        let flight = request.flight.then_some(WorkerId(request.flight_worker_id));
        if let Some(worker) = flight.filter(|w| txn.state.workers.contains_key(w)) {
            secrets::worker(txn.state, worker, &request.worker_secret)?;
        }
        if let Some(worker) = flight
            && txn.state.workers.get(&worker).is_none_or(Worker::is_lost)
        {
            return Err(Error::unavailable(format!(
                "{worker} of the ticket is lost; ask for the flight's info again and read under another job name"
            )));
        }
        if !txn.state.is_member(client, id) {
            let allow_lost = allow_lost(request)?;
            if let Some(iteration) = txn.state.iterations.get(&id) {
                may_join(iteration, allow_lost)?;
                may_share(iteration, flight.is_some())?;
            }
            let target = txn.state.iterations.get(&id).map(|i| i.target).unwrap_or_default();
            let local = targets::local_workers(txn.state, request, target)?;
            if let Some(iteration) = txn.state.iterations.get(&id).filter(|_| flight.is_none()) {
                targets::has_shard(txn.state, iteration, &local)?;
            }
            let consumer = match txn.state.iterations.get(&id) {
                Some(iteration) => consumers::index(iteration, request, &local)?,
                None => None,
            };
            // A client that reads several epochs has one secret.
            let secret = match given.and(<[u8; Secret::BYTES]>::try_from(&*request.client_secret).ok()) {
                Some(known) => Secret::from_bytes(known),
                None => random_secret()?,
            };
            let secret = Some(secret);
            txn.apply(Update::ClientJoined {
                client,
                iteration: id,
                flight,
                allow_lost,
                secret,
                local,
                consumer,
            });
            if flight.is_none() {
                self.reports.lock().acknowledged.insert((id, client), Acknowledged::complete());
            }
            for mut update in owed_tasks(txn.state, id, flight) {
                draw_secret(&mut update);
                txn.apply(update);
            }
        }
        txn.settle();
        if let Some(worker) = flight {
            let running = |t: &Task| t.worker == worker && t.state == TaskState::Active;
            let has_task = txn.state.iterations.get(&id).is_some_and(|i| i.tasks.values().any(running));
            if !has_task {
                // Nothing is left for this worker: its stream is empty, and nobody stays behind.
                txn.apply(Update::client_gone(client, id));
            }
        } else {
            self.reports.lock().on_client_call(id, client, now);
        }
        describe(txn.state, client, id)
    }
}

fn describe(state: &State, client: ClientId, id: IterationId) -> Result<v1::OpenIterationResponse> {
    let missing = || Error::internal(format!("{id} vanished while it was opened"));
    let iteration = state.iterations.get(&id).ok_or_else(missing)?;
    if let Some(failure) = &iteration.failure {
        return Err(failure.into());
    }
    let joined = iteration.members.contains_key(&client);
    let facts = Facts::of(iteration, false);
    Ok(v1::OpenIterationResponse {
        listed: facts.listed,
        readers: facts.readers,
        resumed: facts.resumed.into(),
        states_missing: facts.states_missing,
        mode: mode_of(state, iteration).into(),
        client_id: client.0,
        iteration_id: id.0,
        job: iteration.job.0.clone(),
        version: iteration.version,
        tasks: if joined { task_infos(state, iteration, client) } else { Vec::new() },
        finished: iteration.is_drained_for(client),
        client_secret: iteration
            .members
            .get(&client)
            .and_then(|m| m.secret)
            .map_or(Vec::new(), |s| s.to_vec())
            .into(),
        seed: state.jobs.get(&iteration.job).map_or(0, |j| j.seed),
        in_turn: iteration.takes_turns(state.datasets.get(&iteration.dataset)),
        slots: iteration.slots_of(client).map(|feed| feed.0).collect(),
        consumer: iteration.members.get(&client).and_then(|m| m.consumer).map_or(0, |c| c + 1),
        ..Default::default()
    })
}

/// The answer to a Flight reader that comes when all is read and forgotten: an empty stream.
fn over(request: &v1::OpenIterationRequest, job: &Job) -> v1::OpenIterationResponse {
    v1::OpenIterationResponse {
        job: request.job.clone(),
        finished: true,
        seed: job.seed,
        ..Default::default()
    }
}

/// A client that joins again, or another epoch, shows that it is the one.
fn known_client(state: &State, client: ClientId, given: &[u8]) -> Result<()> {
    for iteration in state.iterations.values() {
        if secrets::is_client(iteration, client, given)? {
            return Ok(());
        }
    }
    Err(Error::failed_precondition(format!("{client} reads nothing here; open the epoch as a new client")))
}

/// Whether the reader accepts that rows went to readers that are lost.
fn allow_lost(request: &v1::OpenIterationRequest) -> Result<bool> {
    match request.lost_readers.as_str() {
        "" | "fail" => Ok(false),
        "allow" => Ok(true),
        other => {
            let hint = did_you_mean(other, ["fail", "allow"]);
            Err(Error::invalid(format!("lost readers `{other}`{hint}: say `fail` or `allow`")))
        }
    }
}

/// Whether a reader that comes now can get what it expects.
fn may_join(iteration: &Iteration, allow_lost: bool) -> Result<()> {
    let is_lossy = iteration.missing.rows > 0 || iteration.has_unknown_rows();
    if is_lossy || !iteration.lost_readers.is_empty() && !allow_lost {
        return Err(acknowledgements::refuse(iteration));
    }
    Ok(())
}

/// Readers of caju's own kind and Arrow Flight readers do not share an epoch at the same time: what a Flight reader takes
/// it neither acknowledges nor gives back.
fn may_share(iteration: &Iteration, flight: bool) -> Result<()> {
    let (mine, theirs) = match flight {
        true => ("an Arrow Flight reader", "readers of caju's own kind"),
        false => ("a reader of caju's own kind", "Arrow Flight readers"),
    };
    if !iteration.members.values().any(|m| m.flight.is_some() != flight) {
        return Ok(());
    }
    Err(Error::failed_precondition(format!(
        "{} is being read by {theirs}, and {mine} cannot share it with them: take another job name",
        iteration.describe()
    )))
}

/// The processing mode of a message; none if it names none.
///
/// # Errors
/// `InvalidArgument` for a mode that is not known.
pub(super) fn mode_of_message(mode: i32) -> Result<Option<Mode>> {
    match v1::ProcessingMode::try_from(mode) {
        Ok(v1::ProcessingMode::Unspecified) => Ok(None),
        Ok(v1::ProcessingMode::Dynamic) => Ok(Some(Mode::Dynamic)),
        Ok(v1::ProcessingMode::Off) => Ok(Some(Mode::Off)),
        Ok(v1::ProcessingMode::File) => Ok(Some(Mode::File)),
        Ok(v1::ProcessingMode::Data) => Ok(Some(Mode::Data)),
        Ok(v1::ProcessingMode::FileOrData) => Ok(Some(Mode::FileOrData)),
        Ok(v1::ProcessingMode::Hint) => Ok(Some(Mode::Hint)),
        Err(_) => {
            Err(Error::invalid(format!("processing mode {mode} is not known; it is one of {}", mode_names())))
        }
    }
}

fn get_or_create_job(
    core: &Core,
    txn: &mut Txn<'_>,
    request: &v1::OpenIterationRequest,
    dataset: &Dataset,
    shard_by: Option<ShardBy>,
) -> Result<Job> {
    let name = JobName(request.job.clone());
    let mode = mode_of_message(request.mode)?;
    let target = targets::wanted(request)?;
    let consumers = consumers::wanted(request)?;
    let caching = core.snapshots.wanted(request, dataset)?;
    core.datasets.usage().lock().use_job(&name, core.clock.now());
    if let Some(job) = txn.state.jobs.get(&name) {
        check_job(txn.state, job, dataset, request.has_seed.then_some(request.seed), mode)?;
        targets::check_job(job, target)?;
        consumers::check_job(job, consumers.as_ref())?;
        check_policy(job, caching.policy.as_ref())?;
        check_encoding(job, caching.encoding.as_deref())?;
        if job.epochs.is_some_and(|n| request.epochs > 0 && n != request.epochs) {
            tracing::warn!(
                "a reader of job `{name}` plans for {} epochs, and the job for {}: the job's count stays",
                request.epochs,
                job.epochs.unwrap_or_default()
            );
        }
        return Ok(job.clone());
    }
    let save = (!request.save_url.is_empty()).then(|| SaveTarget {
        url: request.save_url.clone(),
        chunk_bytes: (request.save_chunk_bytes > 0).then_some(request.save_chunk_bytes),
    });
    // Before there is a job: nobody could read it.
    targets::local_workers(txn.state, request, target.unwrap_or_default())?;
    consumers::check_new(consumers.as_ref(), mode.unwrap_or(Mode::Dynamic), target.unwrap_or_default())?;
    admit_job(core, txn)?;
    txn.apply(Update::JobCreated {
        job: name.clone(),
        dataset: dataset.id.clone(),
        seed: if request.has_seed { request.seed } else { dataset.seed.unwrap_or(0) },
        mode: mode.unwrap_or(Mode::Dynamic),
        anonymous: request.job.starts_with(ANONYMOUS) || save.is_some(),
        policy: policy_of(caching.policy, shard_by, || core.snapshots.default_policy())?,
        encoding: caching.encoding,
        epochs: (request.epochs > 0).then_some(request.epochs),
        profile_only: request.profile_only,
        save,
        target: target.unwrap_or_default(),
        shard_by,
        consumers,
    });
    let missing = || Error::internal(format!("job `{name}` vanished while it was opened"));
    txn.state.jobs.get(&name).cloned().ok_or_else(missing)
}

/// The policy of a new job. Where shards are cut by rows, no task has whole splits, and nothing is stored.
fn policy_of(
    wanted: Option<Policy>,
    shard_by: Option<ShardBy>,
    default: impl Fn() -> Policy,
) -> Result<Policy> {
    match (shard_by, wanted) {
        (
            Some(ShardBy::Data | ShardBy::Hint),
            None | Some(Policy::Compute | Policy::Auto | Policy::Cachew),
        ) => Ok(Policy::Compute),
        (Some(by @ (ShardBy::Data | ShardBy::Hint)), Some(policy)) => Err(Error::invalid(format!(
            "policy `{policy}`: with shards by `{}` each worker has only some rows of each split, and nothing can be \
             stored; take policy `compute`, or processing mode `file` or `dynamic`",
            by.as_str()
        ))),
        (_, wanted) => Ok(wanted.unwrap_or_else(default)),
    }
}

fn check_job(
    state: &State,
    job: &Job,
    dataset: &Dataset,
    seed: Option<u64>,
    mode: Option<Mode>,
) -> Result<()> {
    let name = &job.name;
    if job.dataset != dataset.id {
        let (theirs, differ) = match state.datasets.get(&job.dataset) {
            Some(d) => (d.fingerprint.to_string(), difference(d, dataset)),
            None => (job.dataset.to_string(), ""),
        };
        return Err(Error::already_exists(format!(
            "job `{name}` reads the dataset with fingerprint {theirs}, and this one has {}{differ}; take another \
             job name",
            dataset.fingerprint
        )));
    }
    if let Some(seed) = seed.filter(|s| *s != job.seed) {
        return Err(Error::already_exists(format!(
            "job `{name}` runs with seed {}, not {seed}; take another job name, or leave the seed out",
            job.seed
        )));
    }
    if let Some(mode) = mode.filter(|m| *m != job.mode) {
        return Err(Error::already_exists(format!(
            "job `{name}` runs in processing mode `{}`, not `{mode}`; take another job name",
            job.mode
        )));
    }
    Ok(())
}

fn check_policy(job: &Job, policy: Option<&Policy>) -> Result<()> {
    match policy.filter(|p| **p != job.policy) {
        Some(policy) => Err(Error::already_exists(format!(
            "job `{}` runs with policy `{}`, not `{policy}`; take another job name, or leave the policy out",
            job.name, job.policy
        ))),
        None => Ok(()),
    }
}

/// How parts are written is the job's: a reader that wants something else takes another job.
fn check_encoding(job: &Job, encoding: Option<&str>) -> Result<()> {
    let Some(encoding) = encoding.filter(|e| job.encoding.as_deref() != Some(*e)) else { return Ok(()) };
    let theirs =
        job.encoding.as_deref().map_or("no encoding of its own".to_string(), |e| format!("encoding `{e}`"));
    Err(Error::already_exists(format!(
        "job `{}` runs with {theirs}, not `{encoding}`; take another job name, or leave the encoding out",
        job.name
    )))
}

/// The iteration to join; none if a Flight reader comes after its end.
fn get_or_create_iteration(
    core: &Core,
    txn: &mut Txn<'_>,
    request: &v1::OpenIterationRequest,
    job: &Job,
    at_ms: u64,
    resume: Option<Resume>,
) -> Result<Option<IterationId>> {
    let (name, epoch) = (&job.name, request.epoch);
    let known = txn.state.find_iteration(name, epoch).map(|i| i.id);
    if let (Some(id), Some(given)) = (known, &resume)
        && let Some(joined) = resume::join(txn, id, given, |client| core.is_heard(id, client))?
    {
        return Ok(Some(joined));
    }
    if resume.is_some() {
        // What readers took since the state was taken is read again, whatever became of it.
        return open_new(core, txn, job, epoch, at_ms, resume).map(Some);
    }
    if let Some(iteration) = txn.state.find_iteration(name, epoch) {
        let id = iteration.id;
        match &iteration.failure {
            None => return Ok(Some(id)),
            Some(failure) if !iteration.members.is_empty() => return Err(failure.into()),
            // Nobody is left who saw it fail: a new attempt begins.
            Some(_) => txn.apply(Update::IterationDropped { iteration: id }),
        }
    }
    if job.finished.contains(epoch) {
        // Under `dynamic` the other endpoints had all rows; under `off` this one's are its own, and which
        // endpoints were read is forgotten.
        let over = request.flight && job.mode == Mode::Dynamic;
        return if over { Ok(None) } else { Err(read_already(name, epoch)) };
    }
    if job.incomplete.contains(epoch) {
        return Err(Error::failed_precondition(format!(
            "job `{name}` epoch {epoch} ended incomplete: rows of it went to readers that vanished, or to none; take \
             another job name, or read another epoch"
        )));
    }
    if job.abandoned.contains(epoch) {
        return Err(Error::failed_precondition(format!(
            "job `{name}` epoch {epoch}: all its readers left it before its end, and it was dropped; take \
             another job name"
        )));
    }
    open_new(core, txn, job, epoch, at_ms, None).map(Some)
}

fn open_new(
    core: &Core,
    txn: &mut Txn<'_>,
    job: &Job,
    epoch: u64,
    at_ms: u64,
    resume: Option<Resume>,
) -> Result<IterationId> {
    let name = &job.name;
    if !txn.state.jobs.contains_key(name) {
        // Dropping the failed iteration took an anonymous job with it.
        let Job {
            name,
            dataset,
            seed,
            mode,
            anonymous,
            policy,
            encoding,
            epochs,
            profile_only,
            save,
            target,
            shard_by,
            consumers,
            ..
        } = job.clone();
        txn.apply(Update::JobCreated {
            job: name,
            dataset,
            seed,
            mode,
            anonymous,
            policy,
            encoding,
            epochs,
            profile_only,
            save,
            target,
            shard_by,
            consumers,
        });
    }
    let iteration = IterationId(txn.state.next_id);
    let num_shards = core.num_shards(job.mode);
    if job.mode.is_static() && num_shards == 0 {
        return Err(Error::not_found(format!(
            "job `{name}` runs in processing mode `{}`, and the dispatcher has no list of workers any more; start it with \
             --workers",
            job.mode
        )));
    }
    resume::check_shards(num_shards, resume.as_ref())?;
    let resume = resume.map(Box::new);
    txn.apply(Update::IterationOpened { iteration, job: name.clone(), epoch, at_ms, num_shards, resume });
    let plan = match txn.state.datasets.get(&job.dataset) {
        Some(dataset) => core.snapshots.first_plan(job, dataset)?,
        None => None,
    };
    if plan.is_some() {
        txn.apply(Update::Planned { iteration, plan });
    }
    Ok(iteration)
}

fn read_already(name: &JobName, epoch: u64) -> Error {
    Error::failed_precondition(format!(
        "job `{name}` epoch {epoch} was read to its end already; take another job name to read the data again"
    ))
}
