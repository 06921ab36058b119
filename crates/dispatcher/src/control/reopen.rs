//! The loss of a consumer in mid-epoch: the epoch is opened again behind what every consumer has taken, and waits for it.
//!
//! The others open it again with the states that they hold, as after the loss of the dispatcher's state. The consumer comes
//! back with its own state, or under its index alone: then what it had acknowledged is used as its state. If it restored the
//! beginning of the epoch, and had acknowledged elements, all of them end with an error. Until then nobody gets further
//! elements, since all get equally many. The dispatcher's `--consumer-wait` bounds the wait.

use caju_proto::v1;
use caju_types::{ClientId, Error, IterationId, JobName, Result, RowRanges, TakenRows};

use super::iterations::{Begin, Iterations};
use super::reports::Reports;
use super::{Txn, acknowledgements, attempts, reattach};
use crate::state::{
    Attempt, AttemptRelation, Failure, FallbackState, FallbackStates, Iteration, Resume, State, TaskState,
    Update,
};

/// What a consumer reports as it leaves: what its user has taken beyond what it had acknowledged.
#[derive(Debug, Clone, Default)]
pub(super) struct FinalReport {
    pub(super) rows: Vec<(u64, RowRanges)>,
    pub(super) elements: u64,
}

/// Whether the epoch of a lost reader is opened again: the reader is a consumer that others wait for, and all that have come
/// are there. A consumer that is at its end would not come back.
pub(super) fn must_reopen(state: &State, id: IterationId, client: ClientId) -> bool {
    can_reopen(state, id, client) && state.iterations.get(&id).is_some_and(|i| !i.has_taken_all(client))
}

/// As [`must_reopen`], for a reader that leaves. One that was at its end when a task was lost may not know of the loss yet: it
/// has all that it is to get, and what it received of the task is in its report.
pub(super) fn is_early_leave(state: &State, id: IterationId, client: ClientId) -> bool {
    must_reopen(state, id, client) && state.iterations.get(&id).is_some_and(|i| !i.had_taken_all(client))
}

/// Whether the reader is a consumer without which the epoch can be opened again.
fn can_reopen(state: &State, id: IterationId, client: ClientId) -> bool {
    let Some(iteration) = state.iterations.get(&id).filter(|i| i.failure.is_none()) else { return false };
    let Some(even) = &iteration.even else { return false };
    // One whose user has asked for nothing leaves nothing behind.
    let readers = iteration.members.values().filter(|m| !m.may_load).count();
    iteration.members.get(&client).is_some_and(|m| !m.may_load)
        && iteration.members.len() > 1
        && even.joined.len() == readers
        && !iteration.awaits_states()
        && iteration.missing.rows == 0
}

/// The state from which an epoch goes on that is opened again.
pub(super) fn resume(
    reports: &Reports,
    (state, iteration): (&State, &Iteration),
    gone: (ClientId, &FinalReport),
    why: &str,
) -> Resume {
    let known = iteration.resume.as_deref();
    let fallback_state = |client: ClientId, consumer: u32| {
        if !acknowledgements::knows_rows(reports, iteration, client) {
            return None;
        }
        let acknowledged = iteration.acknowledged_by(client);
        let mut taken: Vec<(u64, RowRanges)> = acknowledged.iter().flat_map(|a| a.splits()).collect();
        let mut elements = acknowledged.map_or(0, |a| a.elements);
        if client == gone.0 {
            taken.extend(gone.1.rows.iter().cloned());
            elements = elements.max(gone.1.elements);
        }
        let before = known.map_or(0, |k| k.steps_of(consumer));
        Some(FallbackState { client, taken, elements: before + elements })
    };
    let whole = whole(iteration);
    let mut states = FallbackStates::default();
    for (client, member) in &iteration.members {
        let Some(consumer) = member.consumer else { continue };
        match fallback_state(*client, consumer).filter(|_| whole.is_some()) {
            Some(state) => drop(states.consumers.insert(consumer, state)),
            None => drop(states.unknown.insert(consumer, *client)),
        }
    }
    states.whole = whole.unwrap_or_default();
    let mut behind = known.map(|k| k.behind.clone()).unwrap_or_default();
    behind.extend(known.map(|k| k.of));
    Resume {
        of: iteration.id,
        behind,
        reattached: true,
        needed: iteration.own_members().collect(),
        reopen_reason: why.to_string(),
        fallback_states: Some(Box::new(states)),
        bases: iteration.bases(),
        attempt: iteration.attempt().cloned().map(Box::new),
        draws: state
            .datasets
            .get(&iteration.dataset)
            .and_then(|dataset| iteration.draws(dataset))
            .map(Box::new),
        ..Resume::default()
    }
}

/// Everything that users took of splits that are done, and before the iteration began; none if it is not known.
fn whole(iteration: &Iteration) -> Option<TakenRows> {
    let mut whole = iteration.resume.as_deref().map(|r| r.taken.clone()).unwrap_or_default();
    for (id, feed) in &iteration.feeds {
        let issued = feed.issued_positions()?;
        let mut done: RowRanges =
            issued.iter().map(|(start, end)| (id.index(start), id.index(end))).collect();
        let open = iteration.tasks.values().filter(|t| t.state != TaskState::Done);
        let open = open.flat_map(|t| t.leases.keys()).chain(feed.pending.keys());
        let open: RowRanges = open.map(|split| (*split, split + 1)).collect();
        done.subtract(&open);
        done.iter().for_each(|(start, end)| whole.add_whole_range(start, end));
    }
    Some(whole)
}

/// Opens the epoch of a lost consumer again.
///
/// # Errors
/// Those of opening an epoch.
pub(super) fn reopen(
    iterations: &Iterations,
    txn: &mut Txn<'_>,
    id: IterationId,
    resume: Resume,
    at_ms: u64,
) -> Result<()> {
    let Some(iteration) = txn.state.iterations.get(&id) else { return Ok(()) };
    let epoch = iteration.epoch;
    let Some(job) = txn.state.jobs.get(&iteration.job).cloned() else { return Ok(()) };
    tracing::warn!("{}: {}; the epoch waits for it", iteration.describe(), resume.reopen_reason);
    let failure = Failure::from(&Error::unavailable(resume.reopen_reason.clone()));
    txn.apply(Update::IterationFailed { iteration: id, failure });
    txn.apply(Update::IterationDropped { iteration: id });
    iterations.open_new(txn, &job, epoch, at_ms, Begin::Behind(Box::new(resume))).map(drop)
}

/// A consumer that came back without a state asks for elements: what it had acknowledged is used as its state.
///
/// The epoch of consumers that all come back so ends: the whole program began again, and what its users had taken is lost with the
/// processes. When all have left, the next ones read the epoch from its beginning.
pub(super) fn use_fallback_state(txn: &mut Txn<'_>, client: ClientId, id: IterationId) {
    let Some(iteration) = txn.state.iterations.get(&id).filter(|i| i.failure.is_none()) else { return };
    let consumer = iteration.members.get(&client).and_then(|m| m.consumer);
    let resume = iteration.resume.as_deref().filter(|_| iteration.awaits_states());
    let Some((consumer, resume)) = consumer.zip(resume) else { return };
    let refused = if iteration.strict { refused_fallback(iteration, resume, consumer) } else { None };
    if let Some(error) = refused {
        return txn.apply(Update::IterationFailed { iteration: id, failure: Failure::from(&error) });
    }
    if let Some(states) = resume.fallback_state(consumer) {
        txn.apply(Update::StatesGiven { iteration: id, states: Box::new(states) });
    }
}

/// Why a consumer cannot go on behind what it had acknowledged; none if it can, or gave a state.
fn refused_fallback(iteration: &Iteration, resume: &Resume, consumer: u32) -> Option<Error> {
    let epoch = iteration.describe();
    if resume.is_unknown(consumer) {
        return Some(Error::failed_precondition(format!(
            "{epoch}: consumer {consumer} came back without a state, and which rows the process before it had taken is not known, \
             because an older version of the dispatcher did not record it: start all consumers from their states of one step, or \
             once more without states to read the epoch from its beginning (--lost-readers allow: to go on, with rows that come \
             twice)"
        )));
    }
    let states = resume.fallback_state(consumer)?;
    let elements = resume.elements_of_nobody(consumer);
    if elements > 0 {
        return Some(Error::failed_precondition(format!(
            "{epoch}: all consumers were started again without their states, and the processes before them had taken {elements} elements: \
             start all of them from their states of one step, or once more without states to read the epoch from its beginning \
             (--lost-readers allow: to go on without these elements)"
        )));
    }
    let mut all = resume.clone();
    let fits = all.extend(&states).and_then(|()| reattach::check_fallback(&all, &resume.taken));
    fits.err().map(|error| error.context(epoch))
}

impl Iterations {
    /// A consumer that comes under the index of another one waits until that one calls: then the index is taken. If it is
    /// silent for some heartbeats, it is lost, and the new one comes in its place.
    ///
    /// # Errors
    /// Those of the journal.
    pub(super) async fn lose_silent_consumer(&self, request: &v1::OpenIterationRequest) -> Result<()> {
        let Some((id, client)) = self.context.read_durable(|state| holder(state, request)).await? else {
            return Ok(());
        };
        if self.context.reports.any_calls(id, &[client]).await {
            return Ok(());
        }
        let unix_ms = self.context.unix_ms();
        let has_state = !request.states.is_empty();
        self.context.commit(|txn| self.lose_client(txn, id, (client, has_state), unix_ms)).await
    }

    /// A consumer that begins an epoch which has failed gets the failure while a reader is there that may not have seen it. The
    /// iteration whose readers are all silent for some heartbeats: the epoch begins again.
    ///
    /// # Errors
    /// Those of the journal.
    pub(super) async fn deserted_failure(
        &self,
        request: &v1::OpenIterationRequest,
    ) -> Result<Option<IterationId>> {
        let is_new = request.client_id == 0 && request.num_consumers > 0;
        let job = JobName(request.job.clone());
        let failed = |state: &State| {
            let failed = |i: &&Iteration| i.failure.is_some() && !i.members.is_empty();
            let iteration = state.find_iteration(&job, request.epoch).filter(failed)?;
            let is_same = iteration.opened_by(&request.request_id).is_some();
            Some((iteration.id, iteration.own_members().collect::<Vec<_>>())).filter(|_| is_new && !is_same)
        };
        let Some((id, members)) = self.context.read_durable(failed).await? else { return Ok(None) };
        Ok(if self.context.reports.any_calls(id, &members).await { None } else { Some(id) })
    }

    /// A reader that is silent is lost. The one in its place may have a state: then it goes back, also behind the end of the epoch.
    fn lose_client(
        &self,
        txn: &mut Txn<'_>,
        id: IterationId,
        (client, has_state): (ClientId, bool),
        at_ms: u64,
    ) -> Result<()> {
        let Some(iteration) = txn.state.iterations.get(&id).filter(|i| i.members.contains_key(&client))
        else {
            return Ok(());
        };
        let mut reports = self.context.reports.lock();
        if must_reopen(txn.state, id, client) || has_state && can_reopen(txn.state, id, client) {
            let why = why(iteration, client, "it is silent, and another process has come in its place");
            let resume = resume(&reports, (txn.state, iteration), (client, &FinalReport::default()), &why);
            drop(reports);
            return reopen(self, txn, id, resume, at_ms);
        }
        let gone = acknowledgements::vanished(&reports, iteration, client);
        txn.apply(gone);
        reports.settle_tasks(txn, id);
        Ok(())
    }
}

/// The reader that is the consumer as which another one comes.
fn holder(state: &State, request: &v1::OpenIterationRequest) -> Option<(IterationId, ClientId)> {
    let is_new = request.client_id == 0 && request.num_consumers > 0;
    let job = JobName(request.job.clone());
    let iteration = state.find_iteration(&job, request.epoch).filter(|i| is_new && i.failure.is_none())?;
    // The epoch begins again for another launch that restores something, and an earlier launch is refused.
    let attempt = attempts::of_consumer(request).ok().flatten();
    let restores = request.restored_beginning || !request.states.is_empty();
    match Attempt::relation(iteration.attempt(), attempt.as_ref()) {
        AttemptRelation::Former => return None,
        AttemptRelation::Other if restores => return None,
        _ => {}
    }
    // An answer that was lost is given again, and a reader that comes back is not another one.
    if iteration.opened_by(&request.request_id).is_some() {
        return None;
    }
    let was = ClientId(request.reattached_client);
    let mut holders = iteration.members.iter().filter(|(_, m)| m.was.is_none_or(|known| known != was));
    let (client, _) = holders.find(|(_, m)| m.consumer == Some(request.consumer_index))?;
    Some((iteration.id, *client))
}

/// Why a consumer is missed, for messages.
pub(super) fn why(iteration: &Iteration, client: ClientId, reason: &str) -> String {
    let count = iteration.even.as_ref().map_or(0, |e| e.consumers.count);
    let consumer = iteration.members.get(&client).and_then(|m| m.consumer).unwrap_or_default();
    format!("consumer {consumer} of {count} ({client}) is gone before the end of the epoch: {reason}")
}
