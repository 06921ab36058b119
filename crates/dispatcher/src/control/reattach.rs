//! Readers that open their epoch again after the dispatcher lost its state.
//!
//! Each of them says what its user has taken, and which readers it knows of. The epoch goes on when all of these have come: then
//! every row that is left is read once. A reader does not hand out rows before every earlier one knows of it, so no reader is
//! forgotten ([`PeerReports::unnotified`](super::peer_reports::PeerReports::unnotified)). Nobody waits for an earlier reader that is
//! silent, though. Such a one may be the first to come back, and it does not know of those that came meanwhile. So the epoch
//! does not go on before the time has passed after which a reader counts as silent: by then those have called, too.

use std::collections::BTreeSet;
use std::time::Duration;

use caju_types::{Error, IterationId, Result, TakenRows};

use super::reports::Reports;
use super::{Txn, consumers};
use crate::config::Timers;
use crate::state::{Failure, Iteration, Job, Resume, State, Update};

/// The most readers that a message names.
const MAX_NAMED: usize = 8;

/// A reader comes back to an iteration that goes on from states.
///
/// # Errors
/// The failure of the iteration; `DataLoss` if it has begun without this reader.
pub(super) fn join(txn: &mut Txn<'_>, id: IterationId, given: &Resume) -> Result<IterationId> {
    let known = txn.state.iterations.get(&id).and_then(|i| Some((i, i.resume.as_deref()?)));
    let Some((iteration, known)) = known else {
        return Err(Error::internal(format!("{id} vanished while it was opened")));
    };
    if let Some(failure) = &iteration.failure {
        return Err(failure.into());
    }
    if !known.is_of_one_reading_as(given) {
        return Err(too_late(&iteration.describe()));
    }
    if given.given.is_subset(&known.given) {
        // The answer was lost on its way, or another process has given a state in place of this one.
        let is_known = known.has_rows_of(given);
        return if is_known { Ok(id) } else { Err(replaced(&iteration.describe())) };
    }
    if known.missing() > 0 {
        return add(txn, id, given).map(|()| id);
    }
    if known.has_rows_of(given) {
        return Ok(id);
    }
    if !known.reattached {
        // The job has gone back to states that users had stored.
        return Err(replaced(&iteration.describe()));
    }
    let error = too_late(&iteration.describe());
    if iteration.lost_readers.is_empty() {
        // No reader has accepted that.
        txn.apply(Update::IterationFailed { iteration: id, failure: Failure::from(&error) });
    }
    Err(error)
}

/// Adds states to those that an iteration waits for.
///
/// # Errors
/// `InvalidArgument` for states that do not belong together.
pub(super) fn add(txn: &mut Txn<'_>, iteration: IterationId, given: &Resume) -> Result<()> {
    let Some(known) = txn.state.iterations.get(&iteration) else { return Ok(()) };
    // Whether they fit each other is known before anything changes.
    let mut all = known.resume.as_deref().cloned().unwrap_or_default();
    all.extend(given)?;
    if let Some(shards) = given.shards.filter(|s| known.mode.is_static() && s.count != known.num_shards) {
        return Err(Error::invalid(format!(
            "{}: the state is of {} shards, and the epoch has gone on with {}: give the states that all readers of a job \
             have at one step",
            known.describe(),
            shards.count,
            known.num_shards
        )));
    }
    let goes_back = known.strict && known.resume.as_deref().is_some_and(|r| r.is_later_than(given));
    let fits = check_bases(&all)
        .and_then(|()| if goes_back { check_fallback(&all, &given.taken) } else { Ok(()) })
        .and_then(|()| consumers::check_steps(known.even.as_ref().map(|e| &e.consumers), &all.steps));
    if let Err(error) = fits {
        // Readers that come back by themselves cannot bring other states: the others would wait for this one in vain.
        if all.reattached {
            let failure = Failure::from(&error.clone().context(known.describe()));
            txn.apply(Update::IterationFailed { iteration, failure });
        }
        return Err(error);
    }
    txn.apply(Update::StatesGiven { iteration, states: Box::new(given.clone()) });
    Ok(())
}

/// Whether no state is older than what the others say of its reader.
///
/// # Errors
/// `FailedPrecondition` that names the reader.
pub(super) fn check_bases(given: &Resume) -> Result<()> {
    given.outdated().map_or(Ok(()), |outdated| Err(outdated.refused()))
}

/// Checks the states of consumers of which some go on behind what they had acknowledged. With these go all splits that are done, so
/// what another one took of such splits since its state would be missing. `own`: rows of states that consumers gave.
///
/// # Errors
/// `FailedPrecondition` that names the consumer whose state is older.
pub(super) fn check_fallback(all: &Resume, own: &TakenRows) -> Result<()> {
    let Some((consumer, given, had)) = all.consumer_that_went_back() else { return Ok(()) };
    let has_done = all.fallback_states.as_deref().is_none_or(|states| own.contains(&states.whole));
    if all.from_acknowledged.is_empty() || has_done {
        return Ok(());
    }
    Err(Error::failed_precondition(format!(
        "the state of consumer {consumer} has {given} elements, and the process before it had taken {had}, while another consumer \
         came back without a state: which rows are between the two is not known; start all consumers from their states of one \
         step (--lost-readers allow: to go on without these elements)"
    )))
}

/// Whether an epoch that does not run was read by others meanwhile.
///
/// # Errors
/// `DataLoss` if it was.
pub(super) fn check_over(job: &Job, epoch: u64, given: &Resume) -> Result<()> {
    let was_read = [&job.finished, &job.incomplete, &job.abandoned].iter().any(|e| e.contains(epoch));
    if was_read && !given.taken.is_empty() {
        return Err(too_late(&format!("job `{}` epoch {epoch}", job.name)));
    }
    Ok(())
}

fn too_late(epoch: &str) -> Error {
    Error::data_loss(format!(
        "{epoch}: the dispatcher lost its state, and the epoch went on before this reader came back: rows that its user had \
         taken may have come twice; read the epoch again under another job name"
    ))
}

fn replaced(epoch: &str) -> Error {
    Error::failed_precondition(format!(
        "{epoch} was opened again from a state, or another process has come in the place of this reader: this reading of it is \
         over"
    ))
}

/// Epochs whose other readers have not come back within the client timeout.
pub(super) fn overdue(state: &State, reports: &mut Reports, timers: &Timers, now: Duration) -> Vec<Update> {
    let mut out = Vec::new();
    // Consumers that do not come are another matter.
    let waits = |i: &&Iteration| {
        let awaits = i.resume.as_deref().is_some_and(|r| r.reattached && r.missing() > 0);
        i.failure.is_none() && awaits && i.has_all_consumers()
    };
    let mut waiting = BTreeSet::new();
    for iteration in state.iterations.values().filter(waits) {
        waiting.insert(iteration.id);
        let since = *reports.awaiting_states.entry(iteration.id).or_insert(now);
        if iteration.resume.as_deref().is_some_and(|r| r.awaits_unknown) {
            if now.saturating_sub(since) > timers.silence() {
                out.push(Update::UnknownReadersAwaited { iteration: iteration.id });
            }
            continue;
        }
        if now.saturating_sub(since) <= timers.client_timeout {
            continue;
        }
        if iteration.strict {
            let error = not_back(iteration, timers.client_timeout);
            out.push(Update::IterationFailed { iteration: iteration.id, failure: Failure::from(&error) });
        } else {
            tracing::warn!(
                "{}: {}; {} did not come back, the epoch goes on, and rows that their users took come twice",
                iteration.describe(),
                reopen_reason(iteration).unwrap_or("the dispatcher had lost its state"),
                missing_names(iteration)
            );
            out.push(Update::StatesGivenUp { iteration: iteration.id });
        }
    }
    reports.awaiting_states.retain(|id, _| waiting.contains(id));
    out
}

/// Why the epoch was opened again, if it was so because a consumer is gone; none if the dispatcher lost its state.
fn reopen_reason(iteration: &Iteration) -> Option<&str> {
    let resume = iteration.resume.as_deref()?;
    Some(resume.reopen_reason.as_str()).filter(|reason| !reason.is_empty())
}

/// The error of an epoch some of whose readers have not come back.
fn not_back(iteration: &Iteration, client_timeout: Duration) -> Error {
    let (epoch, names) = (iteration.describe(), missing_names(iteration));
    let timeout = caju_types::format_duration(client_timeout);
    if let Some(reason) = reopen_reason(iteration) {
        return Error::unavailable(format!(
            "{epoch}: {reason}; of the readers of the epoch {names} did not come back within the client timeout of {timeout}, and \
             the processes in their place gave no state and asked for no element: start all consumers again, from their states \
             of one step or without states"
        ));
    }
    Error::data_loss(format!(
        "{epoch}: the dispatcher lost its state, and of the readers of the epoch {names} did not come back within the client \
         timeout of {timeout}: nobody knows which rows their users took, so the epoch cannot go on; read it again under \
         another job name, or accept that such rows come twice with --lost-readers allow (Python: lost_readers=\"allow\")"
    ))
}

fn missing_names(iteration: &Iteration) -> String {
    let resume = iteration.resume.as_deref();
    let missing = resume.map(Resume::missing_readers).unwrap_or_default();
    if missing.is_empty() {
        let count = iteration.even.as_ref().map_or(0, |even| even.consumers.count);
        let without = (0..count).filter(|c| resume.is_none_or(|r| !r.steps.contains_key(c)));
        let named: Vec<String> = without.take(MAX_NAMED).map(|c| c.to_string()).collect();
        return format!("those of consumer {}", named.join(", "));
    }
    let more = missing.len().saturating_sub(MAX_NAMED);
    let named: Vec<String> = missing.iter().take(MAX_NAMED).map(ToString::to_string).collect();
    match more {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
