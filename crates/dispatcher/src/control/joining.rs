//! A reader joins an iteration.

use std::collections::BTreeSet;
use std::time::Duration;

use caju_proto::v1;
use caju_runtime::random_secret;
use caju_types::{ClientId, Error, IterationId, Result, Secret, WorkerId, did_you_mean};

use super::acknowledgements;
use super::clients::task_infos;
use super::context::Context;
use super::resume::{Facts, mode_of};
use super::store::draw_secret;
use super::usage::admit_reader;
use super::{Txn, attempts, consumers, secrets, targets};
use crate::state::{
    Attempt, AttemptRelation, FeedId, Iteration, Job, State, Task, TaskState, Update, Worker, owed_tasks,
};

/// The reader of a request.
struct Reader {
    client: ClientId,
    /// Whether it has an identifier already: it reads another epoch, or its answer was lost on the way.
    is_known: bool,
    /// Its identifier before the dispatcher lost its state, or before its epoch was opened again.
    was: Option<ClientId>,
    /// The worker that an Arrow Flight reader reads from.
    flight: Option<WorkerId>,
}

/// Adds the reader of a request to an iteration, if it does not read it yet.
///
/// # Errors
/// `FailedPrecondition` for a reader that cannot read this iteration, `Unavailable` if the worker of a Flight ticket is lost,
/// `InvalidArgument` for a request that cannot be read.
pub(super) fn join(
    context: &Context,
    txn: &mut Txn<'_>,
    request: &v1::OpenIterationRequest,
    id: IterationId,
    now: Duration,
) -> Result<v1::OpenIterationResponse> {
    let reader = identify(txn.state, request, id)?;
    if !txn.state.is_member(reader.client, id) {
        add_reader(context, txn, request, id, &reader)?;
    }
    txn.settle();
    let client = reader.client;
    match reader.flight {
        Some(worker) => remove_without_task(txn, client, id, worker),
        None => context.reports.lock().on_client_call(id, client, now),
    }
    let answer = describe(txn.state, client, id)?;
    let unnotified = match txn.state.iterations.get(&id) {
        Some(iteration) => context.reports.unnotified(&context.reports.lock(), iteration, client),
        None => 0,
    };
    Ok(v1::OpenIterationResponse { unnotified, ..answer })
}

/// Enters a reader, and the tasks that workers owe it.
fn add_reader(
    context: &Context,
    txn: &mut Txn<'_>,
    request: &v1::OpenIterationRequest,
    id: IterationId,
    reader: &Reader,
) -> Result<()> {
    let Reader { client, is_known, was, flight } = *reader;
    let allow_lost = allow_lost(request)?;
    if let Some(iteration) = txn.state.iterations.get(&id) {
        may_join(iteration, allow_lost)?;
        may_share(iteration, flight.is_some())?;
        flight.map_or(Ok(()), |worker| has_one_feed(txn.state, iteration, worker))?;
    }
    let target = txn.state.iterations.get(&id).map(|i| i.target).unwrap_or_default();
    let local = targets::local_workers(txn.state, request, target)?;
    if let Some(iteration) = txn.state.iterations.get(&id).filter(|_| flight.is_none()) {
        targets::has_shard(txn.state, iteration, &local).map_err(|e| match request.reattached_client {
            0 => e,
            // Its worker has not registered again.
            _ => Error::unavailable(e.message()),
        })?;
    }
    let consumer = match txn.state.iterations.get(&id) {
        Some(iteration) => consumers::index(iteration, request, &local)?,
        None => None,
    };
    admit_reader(&context.config.memory, txn.state)?;
    // Its user says when it asks for elements: until then it may load a state.
    let may_load = consumer.is_some() && request.states.is_empty() && request.announces_asking;
    // A consumer that restores nothing joins the epoch of another launch, too. Its rank is none of that launch.
    let given = attempts::of_consumer(request)?;
    let is_of_other =
        |i: &Iteration| Attempt::relation(i.attempt(), given.as_ref()) == AttemptRelation::Other;
    let rank = match txn.state.iterations.get(&id).is_some_and(is_of_other) {
        true => None,
        false => attempts::rank(request)?,
    };
    txn.apply(Update::ClientJoined {
        client,
        iteration: id,
        flight,
        allow_lost,
        secret: Some(secret_of(request, is_known || was.is_some())?),
        local,
        consumer,
        was,
        may_load,
        rank,
        request_id: request_id(request)?,
        is_journaled: true,
    });
    if flight.is_none() {
        context.reports.lock().complete.insert((id, client));
    }
    for mut update in owed_tasks(txn.state, id, flight) {
        draw_secret(&mut update);
        txn.apply(update);
    }
    Ok(())
}

/// The reader of a request: one that is known by its identifier or by the call that it repeats, or a new one.
fn identify(state: &State, request: &v1::OpenIterationRequest, id: IterationId) -> Result<Reader> {
    let given = Some(ClientId(request.client_id)).filter(|c| c.0 != 0);
    if let Some(client) = given {
        known_client(state, client, &request.client_secret)?;
    }
    let was = Some(ClientId(request.reattached_client)).filter(|c| c.0 != 0);
    // An answer that was lost on its way is given again.
    let iteration = state.iterations.get(&id);
    let reattached = iteration.zip(was).and_then(|(iteration, was)| iteration.reattached(was));
    if let (Some(client), Some(iteration)) = (reattached, iteration) {
        secrets::is_client(iteration, client, &request.client_secret)?;
    }
    let repeated = reattached.or_else(|| iteration?.opened_by(&request.request_id));
    let known = given.or(repeated);
    let flight = flight_worker(state, request)?;
    Ok(Reader { client: known.unwrap_or(ClientId(state.next_id)), is_known: known.is_some(), was, flight })
}

/// The worker that an Arrow Flight reader reads from.
///
/// # Errors
/// `Unavailable` if it is lost.
fn flight_worker(state: &State, request: &v1::OpenIterationRequest) -> Result<Option<WorkerId>> {
    let Some(worker) = request.flight.then_some(WorkerId(request.flight_worker_id)) else { return Ok(None) };
    if state.workers.contains_key(&worker) {
        secrets::worker(state, worker, &request.worker_secret)?;
    }
    if state.workers.get(&worker).is_none_or(Worker::is_lost) {
        return Err(Error::unavailable(format!(
            "{worker} of the ticket is lost; ask for the flight's info again and read under another job name"
        )));
    }
    Ok(Some(worker))
}

/// The secret of a reader. A client that reads several epochs has one secret, and a client that comes back keeps its own.
fn secret_of(request: &v1::OpenIterationRequest, keeps_own: bool) -> Result<Secret> {
    match <[u8; Secret::BYTES]>::try_from(&*request.client_secret) {
        Ok(own) if keeps_own => Ok(Secret::from_bytes(own)),
        _ => random_secret(),
    }
}

/// An Arrow Flight reader for whose worker no task is left gets an empty stream, and no reader stays behind.
fn remove_without_task(txn: &mut Txn<'_>, client: ClientId, id: IterationId, worker: WorkerId) {
    let is_running = |t: &Task| t.worker == worker && t.state == TaskState::Active;
    let has_task = txn.state.iterations.get(&id).is_some_and(|i| i.tasks.values().any(is_running));
    if !has_task {
        txn.apply(Update::client_gone(client, id));
    }
}

fn describe(state: &State, client: ClientId, id: IterationId) -> Result<v1::OpenIterationResponse> {
    let missing = || Error::internal(format!("{id} vanished while it was opened"));
    let iteration = state.iterations.get(&id).ok_or_else(missing)?;
    if let Some(failure) = &iteration.failure {
        return Err(failure.into());
    }
    let joined = iteration.members.contains_key(&client);
    let facts = Facts::of(iteration, false, 0);
    let spec = state.jobs.get(&iteration.job).map(|job| &job.spec);
    Ok(v1::OpenIterationResponse {
        listed: facts.listed,
        readers: facts.readers,
        present: facts.present,
        taking: facts.taking,
        steps: iteration.steps_before(client),
        resumed: facts.resumed.into(),
        bases: facts.bases,
        readings: facts.readings,
        states_missing: facts.states_missing,
        missing_states: facts.missing_states,
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
        seed: spec.map_or(0, |spec| spec.seed),
        policy: spec.map(|spec| spec.policy.to_string()).unwrap_or_default(),
        encoding: spec.and_then(|spec| spec.encoding).map(|e| e.to_string()).unwrap_or_default(),
        target_workers: targets::to_proto(iteration.target).into(),
        priority: spec.map(|spec| spec.priority.level),
        weight: spec.map(|spec| spec.priority.weight()),
        sharing: spec.map(|spec| spec.sharing.as_str().to_owned()).unwrap_or_default(),
        shard_by: iteration.shard_by.map_or("", |by| by.as_str()).to_owned(),
        draws: state
            .datasets
            .get(&iteration.dataset)
            .and_then(|dataset| iteration.draws(dataset))
            .map(|draws| (&draws).into()),
        in_turn: iteration.takes_turns(state.datasets.get(&iteration.dataset)),
        slots: iteration.slots_of(client).map(|feed| feed.0).collect(),
        consumer: iteration.members.get(&client).and_then(|m| m.consumer).map_or(0, |c| c + 1),
        ..Default::default()
    })
}

/// The answer to a Flight reader that comes when all is read and forgotten: an empty stream.
pub(super) fn over(request: &v1::OpenIterationRequest, job: &Job) -> v1::OpenIterationResponse {
    v1::OpenIterationResponse {
        job: request.job.clone(),
        finished: true,
        seed: job.spec.seed,
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

/// What identifies the call of a request.
///
/// # Errors
/// `InvalidArgument` for another number of bytes than 16.
pub(super) fn request_id(request: &v1::OpenIterationRequest) -> Result<Option<Secret>> {
    if request.request_id.is_empty() {
        return Ok(None);
    }
    let bytes = <[u8; Secret::BYTES]>::try_from(&*request.request_id).map_err(|_| {
        Error::invalid(format!(
            "the id of a call has {} bytes, and {} are wanted",
            request.request_id.len(),
            Secret::BYTES
        ))
    })?;
    Ok(Some(Secret::from_bytes(bytes)))
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

/// Readers of caju's own kind and Arrow Flight readers do not share an epoch concurrently: what a Flight reader takes
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

/// An Arrow Flight reader reads one task of a worker. Where tasks have feeds of their own, a worker has several of them in an
/// epoch that goes on from a state of more workers, and under `off` after the loss of another worker.
fn has_one_feed(state: &State, iteration: &Iteration, worker: WorkerId) -> Result<()> {
    let Some(worker) = state.workers.get(&worker).filter(|_| iteration.mode.has_feed_per_worker()) else {
        return Ok(());
    };
    let running = iteration.tasks.values().filter(|t| t.worker == worker.id && t.state == TaskState::Active);
    let mut feeds: BTreeSet<FeedId> = running.map(|t| t.feed).collect();
    if iteration.mode.is_static() {
        feeds.extend(iteration.shards_with_work().filter(|s| iteration.slot_of_shard(*s) == worker.slot));
    } else if iteration.adds_feeds() && !iteration.feeds.contains_key(&FeedId(worker.slot)) {
        feeds.insert(FeedId(worker.slot));
    }
    if feeds.len() <= 1 {
        return Ok(());
    }
    Err(Error::failed_precondition(format!(
        "{}: {} has the rows of {} workers, because the epoch goes on from a state of more workers, or others were lost; an \
         Arrow Flight stream has those of one: read this epoch with a client of caju's own, or another epoch",
        iteration.describe(),
        worker.describe(),
        feeds.len()
    )))
}
