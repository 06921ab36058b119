//! Clients: heartbeats with their reports, and leaving.

use std::sync::Arc;

use caju_proto::{ticket, v1};
use caju_types::{ClientId, Error, IterationId, Result, RowRanges, TaskId};

use super::acknowledged_rows::{Reported, rows_of};
use super::acknowledgements;
use super::call_times::ReaderCall;
use super::context::Context;
use super::iterations::Iterations;
use super::listings::Providers;
use super::peer_reports::PeerReports;
use super::reopen::{self, FinalReport};
use super::resume::Facts;
use super::status::decision;
use super::task_messages::modes_to_proto;
use super::{Txn, consumers, secrets, targets};
use crate::config::Timers;
use crate::state::{Iteration, State, TaskState, Update};

/// What a heartbeat of a client changed.
#[derive(Debug, Default)]
struct Recorded {
    /// The client is a reader of its iteration.
    is_member: bool,
    /// Readers that wait may be answered now.
    is_news: bool,
    /// It acknowledged rows that were not acknowledged before.
    acknowledged: bool,
}

/// The calls of readers.
pub(crate) struct Clients {
    pub(super) context: Arc<Context>,
    pub(super) providers: Arc<Providers>,
    pub(super) iterations: Arc<Iterations>,
}

impl Clients {
    pub(crate) async fn client_heartbeat(
        &self,
        request: v1::ClientHeartbeatRequest,
    ) -> Result<v1::ClientHeartbeatResponse> {
        let (client, id) = (ClientId(request.client_id), IterationId(request.iteration_id));
        targets::check_local(&request.local_workers, &self.context.config.memory)?;
        let lost = parse_lost(&request.lost_tasks)?;
        let mut reported = Some(Reported::parse(&request)?);
        let has_rows = reported.as_ref().is_some_and(Reported::has_rows);
        let deadline = self.context.deadline(request.wait_ms);
        let (recorded, numbers) = self.context.step(|txn| {
            self.context.reports.record_heartbeat(txn, &request, &lost, reported.take().unwrap_or_default())
        });
        // What is acknowledged does not come again, whatever becomes of this process. A repeated call waits, too: the first one may
        // have given up before the journal had its rows.
        let acknowledged = recorded.as_ref().is_ok_and(|r| r.acknowledged || has_rows);
        self.context.store.durable(if acknowledged { numbers.all } else { numbers.except_leases }).await?;
        let recorded = recorded?;
        if !recorded.is_member {
            return self
                .context
                .read_durable(|state| unknown(&self.context.config.timers, state, client, id))
                .await;
        }
        if recorded.is_news {
            // Readers that wait to leave are notified that this one lives, and whether its user takes rows.
            self.context.notifiers.notify(id);
        }
        let mut news = self.context.notifiers.subscribe(id);
        loop {
            news.borrow_and_update();
            self.context.reports.record_figures(client, id, &request);
            let has_news =
                self.context.store.read(|state| self.context.reports.has_news(state, client, id, &request));
            if has_news || !self.context.wait(&mut news, deadline).await? {
                self.context.reports.record_figures(client, id, &request);
                return self
                    .context
                    .read_durable_except_leases(|state| self.client_view(state, client, id, &request))
                    .await;
            }
        }
    }

    fn client_view(
        &self,
        state: &State,
        client: ClientId,
        id: IterationId,
        request: &v1::ClientHeartbeatRequest,
    ) -> v1::ClientHeartbeatResponse {
        let Some(iteration) = state.iterations.get(&id).filter(|i| i.members.contains_key(&client)) else {
            return unknown(&self.context.config.timers, state, client, id);
        };
        let mut reports = self.context.reports.lock();
        let acknowledged = reports.has_all_of(id, client);
        let accounted = self.context.reports.may_leave(&reports, iteration, client);
        let others_take = self.context.reports.others_take(&reports, iteration, client);
        let stages =
            reports.recent_stages(iteration, self.context.clock.now(), self.context.config.timers.heartbeat);
        let slowest = consumers::slowest(&reports, iteration, client);
        let unnotified = self.context.reports.unnotified(&reports, iteration, client);
        let (completed, completed_up_to) =
            reports.completed_splits.for_client(id, client, request.completed_seen);
        drop(reports);
        let facts = Facts::of(iteration, request.knows_resumed, request.known_readers);
        let same_tasks = request.knows_tasks && request.seen_version == iteration.version;
        let has_begun_behind_states = iteration.resume.is_some() && facts.states_missing == 0;
        let lists_slots =
            has_begun_behind_states && iteration.takes_turns(state.datasets.get(&iteration.dataset));
        let slots = iteration.slots_of(client).filter(|_| lists_slots);
        v1::ClientHeartbeatResponse {
            slots: slots.map(|feed| feed.0).collect(),
            draws: state
                .datasets
                .get(&iteration.dataset)
                .and_then(|dataset| iteration.draws(dataset))
                .map(|draws| (&draws).into()),
            listed: facts.listed,
            readers: facts.readers,
            present: facts.present,
            taking: facts.taking,
            unnotified,
            steps: iteration.steps_before(client),
            reattach: false,
            resumed: facts.resumed.into(),
            bases: facts.bases,
            readings: facts.readings,
            states_missing: facts.states_missing,
            missing_states: facts.missing_states,
            version: iteration.version,
            tasks: if same_tasks { Vec::new() } else { task_infos(state, iteration, client) },
            same_tasks,
            finished: iteration.is_drained_for(client),
            accounted,
            incomplete: acknowledgements::incomplete(iteration, iteration.members.get(&client)),
            acknowledge_all: !acknowledged,
            failure: iteration.failure.as_ref().map(Into::into),
            unknown: false,
            splits_total: self.providers.splits_total(iteration),
            splits_leased: iteration.splits_leased(),
            stages,
            modes: Some(modes_to_proto(iteration.modes)),
            // Of interest to clients of older versions alone.
            decision_json: if request.knows_tasks { String::new() } else { decision(state, iteration) },
            slowest,
            others_take,
            completed,
            completed_up_to,
        }
    }

    pub(crate) async fn close_client(
        &self,
        request: v1::CloseClientRequest,
    ) -> Result<v1::CloseClientResponse> {
        let (client, iteration) = (ClientId(request.client_id), IterationId(request.iteration_id));
        let lost = parse_lost(&request.received)?;
        let elements = lost.iter().filter(|l| l.elements > 0).map(|l| (l.task, l.elements)).collect();
        let received = lost.into_iter().map(|l| (l.task, l.received)).collect();
        let broken_off = request.broken_off.iter().copied().map(TaskId).collect();
        let reason = request.reason.clone();
        let returned = request.returned.iter().map(rows_of).collect::<Result<Vec<_>>>()?;
        let last = final_report(&request)?;
        let mut order = super::rounds::known_order(request.rounds.as_ref())?;
        let unix_ms = self.context.unix_ms();
        self.context
            .commit(|txn| {
                let known = match txn.state.iterations.get(&iteration) {
                    Some(iteration) => secrets::is_client(iteration, client, &request.secret)?,
                    None => false,
                };
                if known && reopen::is_early_leave(txn.state, iteration, client) {
                    let resume = txn.state.iterations.get(&iteration).map(|known| {
                        let why = reopen::why(known, client, &reason);
                        reopen::resume(
                            &self.context.reports.lock(),
                            (txn.state, known),
                            (client, &last),
                            &why,
                        )
                    });
                    return resume
                        .map_or(Ok(()), |r| reopen::reopen(&self.iterations, txn, iteration, r, unix_ms));
                }
                if known {
                    if request.elements > 0 {
                        took(txn, client, iteration);
                    }
                    let (vanished, unknown) = (None, false);
                    if let Some(order) = order.take() {
                        txn.apply(Update::RoundsKnown { iteration, order });
                    }
                    txn.apply(Update::ClientGone {
                        client,
                        iteration,
                        received,
                        broken_off,
                        reason,
                        returned,
                        vanished,
                        unknown,
                        elements,
                    });
                    let mut reports = self.context.reports.lock();
                    reports.record_leave(iteration, request.elements);
                    reports.settle_tasks(txn, iteration);
                }
                Ok(())
            })
            .await?;
        let mut reports = self.context.reports.lock();
        reports.clients.remove(&(iteration, client));
        reports.complete.remove(&(iteration, client));
        drop(reports);
        Ok(v1::CloseClientResponse {})
    }
}

impl PeerReports {
    /// Enters what a client reports.
    fn record_heartbeat(
        &self,
        txn: &mut Txn<'_>,
        request: &v1::ClientHeartbeatRequest,
        lost: &[Lost],
        reported: Reported,
    ) -> Result<Recorded> {
        let (client, id) = (ClientId(request.client_id), IterationId(request.iteration_id));
        let known = match txn.state.iterations.get(&id) {
            Some(iteration) => secrets::is_client(iteration, client, &request.secret)?,
            None => false,
        };
        if !(known && report(txn, client, id, request, lost)) {
            return Ok(Recorded::default());
        }
        targets::update_local(txn, client, id, &request.local_workers);
        enter_progress(txn, client, id, request);
        let mut reports = self.lock();
        let taken = &request.taken_tasks;
        let took = reported.has_rows() || !taken.is_empty();
        let acknowledged = reports.acknowledge(txn, (client, id), reported, request)?;
        let iteration = txn.state.iterations.get(&id);
        let is_at_end = iteration.is_some_and(|i| acknowledgements::is_at_end(&reports, i, client));
        reports.record_call(id, client, ReaderCall { now: self.now(), took, is_at_end });
        // A reader at its end may have waited for this call.
        // Of a consumer any call is enough; a user that takes rows is waited for.
        let is_sign = (!took || iteration.is_some_and(|i| i.even.is_some()))
            && !is_at_end
            && iteration.is_some_and(Iteration::is_drained)
            && reports.has_reader_at_end(id);
        let is_awaited =
            reports.record_seen(id, client, request.seen_version, request.elements, request.awaits_notices);
        Ok(Recorded { is_member: true, is_news: is_sign || is_awaited, acknowledged })
    }
}

/// The answer to a client that is no reader of what it reads.
fn unknown(timers: &Timers, state: &State, client: ClientId, id: IterationId) -> v1::ClientHeartbeatResponse {
    // An identifier that this journal has not given out is one of a lost journal, or of its lost end.
    let is_lost = client.0 < state.founded_id || client.0 >= state.next_id;
    let reopened = state.iterations.values().find(|i| i.awaits_reader(id, client));
    let (reattach, error) = match reopened.and_then(|i| i.resume.as_deref()) {
        _ if is_lost => (true, lost_state(client)),
        Some(resume) => (true, Error::unavailable(resume.reopen_reason.clone())),
        None => (false, expelled(timers, client, state.iterations.contains_key(&id))),
    };
    v1::ClientHeartbeatResponse {
        unknown: true,
        failure: Some((&error).into()),
        reattach,
        ..Default::default()
    }
}

/// Why a client reads an iteration no longer. An iteration that is there has expelled it.
fn expelled(timers: &Timers, client: ClientId, is_there: bool) -> Error {
    let timeout = caju_types::format_duration(timers.client_timeout);
    let (why, way_out) = match is_there {
        true => (
            format!(
                "it was silent for longer than the client timeout of {timeout} (it stood still, or its network did), and \
                 rows that it did not take go to other readers of the job"
            ),
            "read the epoch again under another job name, or raise the dispatcher's --client-timeout",
        ),
        false => (
            "the epoch was opened again from a state under the same job name, or it ended and was forgotten since"
                .to_owned(),
            "start the reader again from its last state, or read under another job name",
        ),
    };
    Error::failed_precondition(format!("{client} is no reader of this epoch any more: {why}; {way_out}"))
}

/// Which rows readers have was in the lost state: only they know it now. Readers before version 0.2 do not say it, and end
/// with this error.
fn lost_state(client: ClientId) -> Error {
    Error::data_loss(format!(
        "the dispatcher lost its state: {client} joined this epoch at a dispatcher whose --state-dir is gone, damaged or \
         another one, or that had none; which rows the readers of the job have is not known, so the epoch cannot go on; \
         read it again from its beginning, and give the dispatcher a --state-dir that outlives it; stored snapshots are \
         not affected"
    ))
}

/// What a reader that leaves reports that its user took.
fn final_report(request: &v1::CloseClientRequest) -> Result<FinalReport> {
    let rows = request.received.iter().flat_map(|l| &l.received).map(rows_of).collect::<Result<Vec<_>>>()?;
    Ok(FinalReport { rows, elements: request.elements })
}

/// Enters that the user of a client asks for elements, and gets some.
fn enter_progress(
    txn: &mut Txn<'_>,
    client: ClientId,
    id: IterationId,
    request: &v1::ClientHeartbeatRequest,
) {
    let member = |txn: &Txn<'_>| txn.state.iterations.get(&id).and_then(|i| i.members.get(&client)).copied();
    if request.asks {
        if member(txn).is_some_and(|m| m.may_load) {
            txn.apply(Update::ClientAsked { client, iteration: id });
        }
        reopen::use_fallback_state(txn, client, id);
    }
    if request.takes && member(txn).is_some_and(|m| m.takes_since == 0) {
        txn.apply(Update::ClientTakes { client, iteration: id });
    }
}

/// Records that the user of a client took elements: the states of the other readers name this client, also after it has left.
fn took(txn: &mut Txn<'_>, client: ClientId, iteration: IterationId) {
    let known = txn.state.iterations.get(&iteration).and_then(|i| i.members.get(&client));
    if known.is_some_and(|m| !m.took) {
        txn.apply(Update::ClientTook { client, iteration });
    }
}

struct Lost {
    task: TaskId,
    received: Vec<(u64, RowRanges)>,
    reason: String,
    elements: u64,
    sizes: Vec<(u64, u64)>,
}

fn parse_lost(lost: &[v1::LostTask]) -> Result<Vec<Lost>> {
    let parse = |lost: &v1::LostTask| {
        let received: Result<Vec<_>> = lost.received.iter().map(rows_of).collect();
        Ok(Lost {
            task: TaskId(lost.task_id),
            received: received?,
            reason: lost.reason.clone(),
            elements: lost.elements,
            sizes: lost.sizes.iter().map(|s| (s.split_index, s.rows)).collect(),
        })
    };
    lost.iter().map(parse).collect()
}

/// Enters a client's reports; false if the client does not belong to the iteration. Reports may come twice: what is known
/// changes nothing.
fn report(
    txn: &mut Txn<'_>,
    client: ClientId,
    id: IterationId,
    request: &v1::ClientHeartbeatRequest,
    lost: &[Lost],
) -> bool {
    if !txn.state.is_member(client, id) {
        return false;
    }
    for task in request.ended_tasks.iter().copied().map(TaskId) {
        let news = find(txn.state, id, task, |s, read| match s {
            TaskState::Active | TaskState::Ended => !read.contains(&client),
            TaskState::Done | TaskState::Lost { .. } => false,
        });
        if news {
            let emitted = counts(txn.state, request, task);
            txn.apply(Update::ClientEnded { client, task, emitted });
        }
    }
    for Lost { task, received, reason, elements, sizes } in lost {
        let news = find(txn.state, id, *task, |s, _| match s {
            TaskState::Active | TaskState::Ended => true,
            TaskState::Lost { awaiting } => awaiting.contains(&client),
            TaskState::Done => false,
        });
        if news {
            let reason = lost_reason(txn.state, *task, client, reason);
            let (received, elements, sizes) = (received.clone(), *elements, sizes.clone());
            txn.apply(Update::ClientLost { client, task: *task, received, reason, elements, sizes });
        }
    }
    true
}

/// What a task emitted by its worker's word to this client, where that is not known yet.
fn counts(state: &State, request: &v1::ClientHeartbeatRequest, id: TaskId) -> Option<Vec<(u64, u64)>> {
    let (iteration, task) = state.task(id)?;
    if task.emitted.is_some() {
        return None;
    }
    let counts = request.ended_counts.iter().find(|c| c.task_id == id.0)?;
    let is_own = |split: &u64| task.leases.contains_key(split) || iteration.is_complete(*split);
    let own = counts.splits_out.iter().filter(|c| is_own(&c.split_index));
    Some(own.map(|c| (c.split_index, c.rows)).collect())
}

fn find(
    state: &State,
    id: IterationId,
    task: TaskId,
    is_news: impl FnOnce(&TaskState, &std::collections::BTreeSet<ClientId>) -> bool,
) -> bool {
    state.iterations.get(&id).and_then(|i| i.tasks.get(&task)).is_some_and(|t| is_news(&t.state, &t.read_by))
}

fn lost_reason(state: &State, task: TaskId, client: ClientId, reason: &str) -> String {
    let worker = state.task(task).and_then(|(_, t)| state.workers.get(&t.worker));
    let worker = worker.map_or_else(|| "a worker".to_string(), |w| w.describe());
    format!("{client} lost its connection to {worker}: {reason}")
}

/// The tasks that a client should know of.
pub(crate) fn task_infos(state: &State, iteration: &Iteration, client: ClientId) -> Vec<v1::TaskInfo> {
    // No other reader gets the elements of a task that belong to one consumer.
    let is_read =
        |t: &crate::state::Task| iteration.even.is_none() || t.is_done() || t.read_by.contains(&client);
    let info = |t: &crate::state::Task| v1::TaskInfo {
        task_id: t.id.0,
        worker_id: t.worker.0,
        address: state.workers.get(&t.worker).map(|w| w.address.clone()).unwrap_or_default(),
        ended: t.is_over() && is_read(t),
        lost: t.is_lost(),
        slot: t.feed.0,
        ticket: t.secret.map(|s| ticket(&s, client).to_vec().into()).unwrap_or_default(),
    };
    iteration.tasks_for(client).map(info).collect()
}
