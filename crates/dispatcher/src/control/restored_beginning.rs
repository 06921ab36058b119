//! Readers that restored a state in which nothing of the epoch was taken: of the end of the epoch before, or none at all.
//!
//! A state within an epoch names the iteration that it is of, so a reader that gives it goes back. One that begins an epoch
//! names none: the epoch was opened after the state was written, by a launch of the program that has been killed since. What
//! that launch took is read again ([`begins_again`]), as it is behind a state within the epoch. A reader of a launch that runs
//! joins it.

use caju_proto::v1;
use caju_types::{Error, IterationId, JobName, Result};

use super::context::Context;
use super::{Txn, attempts};
use crate::state::{Attempt, AttemptRelation, Failure, Iteration, Job, Update};

/// A reader that restored the beginning of an epoch.
#[derive(Debug, Clone)]
pub(super) struct RestoredBeginning {
    /// The launch of the program that restored it, if the reader says so.
    pub(super) attempt: Option<Attempt>,
    /// An iteration that its launch has opened.
    after: Option<IterationId>,
    /// The iteration whose readers have all been silent for some heartbeats.
    silent: Option<IterationId>,
}

impl RestoredBeginning {
    /// Whether all readers of the iteration are silent.
    pub(super) fn finds_silence(&self) -> bool {
        self.silent.is_some()
    }

    /// Whether it is known which iterations belong to its launch.
    fn names_launch(&self) -> bool {
        self.attempt.is_some() || self.after.is_some()
    }
}

/// Whether the epoch begins again for a reader that restored its beginning.
///
/// # Errors
/// `FailedPrecondition` for a reader of an attempt that another one has replaced, for one whose attempt has read the epoch to
/// its end, and for one without an attempt if the epoch has its end.
pub(super) fn begins_again(
    job: &Job,
    epoch: u64,
    iteration: Option<&Iteration>,
    given: &RestoredBeginning,
) -> Result<bool> {
    let Some(iteration) = iteration else {
        if let Some(attempt) = &given.attempt {
            attempts::check_over(job, epoch, attempt)?;
        }
        // An iteration from before that of the launch was read by an earlier launch.
        let is_earlier = job.read_by.get(&epoch).zip(given.after).is_some_and(|(read, after)| *read <= after);
        let is_over = job.finished.contains(epoch) && given.attempt.is_none() && !is_earlier;
        let was_read = [&job.finished, &job.incomplete, &job.abandoned].iter().any(|e| e.contains(epoch));
        return Ok(was_read && !is_over);
    };
    let is_silent = iteration.own_members().next().is_none() || given.silent == Some(iteration.id);
    match Attempt::relation(iteration.attempt(), given.attempt.as_ref()) {
        AttemptRelation::Former => Err(attempts::replaced(iteration, given.attempt.as_ref())),
        AttemptRelation::Other => Ok(true),
        AttemptRelation::Same => {
            // A rank that comes again goes back with all the others.
            Ok(is_silent && attempts::comes_again(iteration, given.attempt.as_ref(), |_| false))
        }
        AttemptRelation::Unknown if given.after.is_some_and(|after| iteration.id > after) => Ok(false),
        // Without attempts a reader that comes late cannot be distinguished from one of a later launch, if the epoch has its end. The state
        // says that all rows are left, so nothing is no answer.
        AttemptRelation::Unknown if iteration.is_finished() => match given.names_launch() && is_silent {
            true => Ok(true),
            false => Err(attempts::read_already(&job.name, epoch)),
        },
        // A reader that was killed before it could report what it took may hold rows until it is expelled.
        AttemptRelation::Unknown => {
            let was_read = !iteration.takers.is_empty() || !iteration.members.is_empty();
            Ok(is_silent && was_read || given.silent == Some(iteration.id))
        }
    }
}

/// Refuses a consumer that restored the beginning of an epoch, and that had acknowledged elements of it. The epoch was opened
/// again behind these elements, and which rows of whole splits they were is not known: all consumers have to go back.
///
/// # Errors
/// `FailedPrecondition` for this consumer, with which the epoch of the others ends, too.
pub(super) fn refuse_fallback(
    txn: &mut Txn<'_>,
    id: IterationId,
    request: &v1::OpenIterationRequest,
) -> Result<()> {
    let Some(iteration) = txn.state.iterations.get(&id).filter(|i| i.failure.is_none()) else {
        return Ok(());
    };
    let count = iteration.even.as_ref().map_or(0, |even| even.consumers.count);
    let consumer = request.consumer_index;
    let resume = iteration.resume.as_deref().filter(|_| count > 0 && iteration.awaits_states());
    let elements = resume.map_or(0, |r| r.acknowledged_elements(consumer));
    if elements == 0 {
        return Ok(());
    }
    let error = Error::failed_precondition(format!(
        "{}: consumer {consumer} of {count} begins the epoch again, of which {elements} elements were taken by the process before it; \
         the others cannot go back alone, so start all consumers again: the epoch begins again when all have left",
        iteration.describe()
    ));
    txn.apply(Update::IterationFailed { iteration: id, failure: Failure::from(&error) });
    Err(error)
}

/// What a request says of the beginning of its epoch; none if it restored none. Readers of the epoch may have been killed a
/// moment ago: the answer waits until one of them calls, or all have been silent for some heartbeats.
///
/// # Errors
/// Those of the journal, and of attempts.
pub(super) async fn restored(
    context: &Context,
    request: &v1::OpenIterationRequest,
) -> Result<Option<RestoredBeginning>> {
    if !request.restored_beginning {
        return Ok(None);
    }
    if !request.states.is_empty() || request.flight {
        return Err(Error::invalid(
            "a reader that restored the beginning of an epoch goes on from no state within it, and is none of Arrow Flight",
        ));
    }
    let attempt = attempts::parse(request)?;
    let after = Some(IterationId(request.after_iteration)).filter(|after| after.0 > 0);
    let job = JobName(request.job.clone());
    let members = context.read_durable(|state| {
        let iteration = state.find_iteration(&job, request.epoch)?;
        let is_decided = match Attempt::relation(iteration.attempt(), attempt.as_ref()) {
            AttemptRelation::Other | AttemptRelation::Former => true,
            AttemptRelation::Same => !attempts::comes_again(iteration, attempt.as_ref(), |_| false),
            AttemptRelation::Unknown => after.is_some_and(|after| iteration.id > after),
        };
        let is_same = is_decided || iteration.opened_by(&request.request_id).is_some();
        Some((iteration.id, iteration.own_members().collect::<Vec<_>>())).filter(|_| !is_same)
    });
    let Some((id, members)) = members.await? else {
        return Ok(Some(RestoredBeginning { attempt, after, silent: None }));
    };
    if members.is_empty() && is_deserted(context, id).await? {
        tracing::info!("{id}: none of its consumers has come back, and one has restored its beginning");
        return Ok(Some(RestoredBeginning { attempt, after, silent: Some(id) }));
    }
    if !members.is_empty() && !context.reports.any_calls(id, &members).await {
        tracing::info!("{id}: all of its readers are silent, and a reader has restored its beginning");
        return Ok(Some(RestoredBeginning { attempt, after, silent: Some(id) }));
    }
    Ok(Some(RestoredBeginning { attempt, after, silent: None }))
}

/// Whether an epoch was opened again behind what its consumers had acknowledged, and none of them comes back to it within the time of
/// silence.
async fn is_deserted(context: &Context, id: IterationId) -> Result<bool> {
    let timers = &context.config.timers;
    let until = context.clock.now() + timers.silence();
    loop {
        let waits = context.read_durable(|state| {
            let iteration = state.iterations.get(&id)?;
            let resume = iteration.resume.as_deref().filter(|_| iteration.awaits_states())?;
            Some(resume.has_acknowledged_elements() && iteration.own_members().next().is_none())
        });
        if !waits.await?.unwrap_or(false) {
            return Ok(false);
        }
        if context.clock.now() >= until {
            return Ok(true);
        }
        context.clock.sleep(timers.heartbeat).await;
    }
}
