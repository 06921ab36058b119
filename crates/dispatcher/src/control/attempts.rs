//! The attempts of readers that restore states, as their requests name them.

use caju_proto::v1;
use caju_types::{ClientId, Error, JobName, Result};

use crate::state::{Attempt, AttemptKey, AttemptRelation, Iteration, Job, MAX_RANKS};

/// Bytes of the digest of states.
const DIGEST_BYTES: usize = 16;

/// The attempt of a request, with the rank of its reader; none if it does not say so.
///
/// # Errors
/// `InvalidArgument` for a rank beyond [`MAX_RANKS`] and a digest of another length.
pub(super) fn parse(request: &v1::OpenIterationRequest) -> Result<Option<Attempt>> {
    let Some(given) = request.attempt.as_ref().filter(|a| !a.id.is_empty()) else { return Ok(None) };
    let digest = &given.states_digest;
    // A reader that opens its epoch again after the loss of the dispatcher's state gives a state of its own.
    let fits = request.states_of_all != digest.is_empty() || request.reattached_client != 0;
    if !fits || !digest.is_empty() && digest.len() != DIGEST_BYTES {
        return Err(Error::invalid(format!(
            "attempt `{}`: a digest of {DIGEST_BYTES} bytes belongs to the states of all readers, and to nothing else; this one \
             has {}",
            given.id,
            digest.len()
        )));
    }
    let states = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let key = AttemptKey { id: given.id.clone(), states };
    Ok(Some(Attempt { key, ranks: rank(request)?.into_iter().collect(), former: Vec::new() }))
}

/// The rank of the reader of a request; none if it is not known.
///
/// # Errors
/// `InvalidArgument` for a rank beyond [`MAX_RANKS`].
pub(super) fn rank(request: &v1::OpenIterationRequest) -> Result<Option<u32>> {
    // Consumers name their launch whenever they open an epoch, and other readers where they restore something.
    let names_launch = request.num_consumers > 0 || request.restored_beginning || !request.states.is_empty();
    let given = request.attempt.as_ref().filter(|a| !a.id.is_empty() && names_launch);
    match given.and_then(|a| a.rank.checked_sub(1)) {
        Some(rank) if rank >= MAX_RANKS => {
            Err(Error::invalid(format!("rank {rank} of an attempt: ranks below {MAX_RANKS} are possible")))
        }
        rank => Ok(rank),
    }
}

/// The attempt of a consumer, which names it whenever it opens an epoch; none if the request is of no consumer.
///
/// # Errors
/// Those of [`parse`].
pub(super) fn of_consumer(request: &v1::OpenIterationRequest) -> Result<Option<Attempt>> {
    if request.num_consumers == 0 { Ok(None) } else { parse(request) }
}

/// Checks the launch of a consumer that restores nothing. It joins the epoch: names of launches have no order, so one that another
/// launch has not replaced may be the earlier one.
///
/// # Errors
/// `FailedPrecondition` for a launch that another one has replaced.
pub(super) fn check_not_replaced(iteration: &Iteration, given: Option<&Attempt>) -> Result<()> {
    match Attempt::relation(iteration.attempt(), given) {
        AttemptRelation::Former => Err(replaced(iteration, given)),
        AttemptRelation::Other | AttemptRelation::Same | AttemptRelation::Unknown => Ok(()),
    }
}

/// Whether this rank has joined the iteration before and has ended: then its attempt restores the states again.
pub(super) fn comes_again(
    iteration: &Iteration,
    given: Option<&Attempt>,
    is_alive: impl Fn(ClientId) -> bool,
) -> bool {
    let known = iteration.attempt();
    let rank = given.and_then(|a| a.ranks.first());
    let (Some(known), Some(rank)) = (known, rank) else { return false };
    let is_there =
        |(client, m): (&ClientId, &crate::state::Member)| m.rank == Some(*rank) && is_alive(*client);
    known.ranks.contains(rank) && !iteration.members.iter().any(is_there)
}

/// Whether the attempt of a reader has read an epoch to its end that is forgotten since. A rank that had come to it goes back.
///
/// # Errors
/// `FailedPrecondition` that says so.
pub(super) fn check_over(job: &Job, epoch: u64, attempt: &Attempt) -> Result<()> {
    let Some(known) = job.attempts.get(&epoch) else { return Ok(()) };
    if known.key != attempt.key || attempt.ranks.iter().any(|rank| known.ranks.contains(rank)) {
        return Ok(());
    }
    Err(Error::failed_precondition(format!(
        "job `{}` epoch {epoch} was read to its end by the other ranks of attempt `{}`, behind these states: nothing is left; \
         restore the states under another attempt to read the epoch again",
        job.name, attempt.key.id
    )))
}

/// The error of a reader whose attempt another one has replaced.
pub(super) fn replaced(iteration: &Iteration, given: Option<&Attempt>) -> Error {
    let name = |attempt: Option<&Attempt>| attempt.map_or_else(String::new, |a| a.key.id.clone());
    Error::failed_precondition(format!(
        "{} was opened again by attempt `{}`, and this reader belongs to attempt `{}`, which came before it: its reading is \
         over; restore states under a new attempt to begin again",
        iteration.describe(),
        name(iteration.attempt()),
        name(given)
    ))
}

/// The error of a reader that comes after the end of an epoch.
pub(super) fn read_already(name: &JobName, epoch: u64) -> Error {
    Error::failed_precondition(format!(
        "job `{name}` epoch {epoch} was read to its end already; take another job name to read the data again, or, to go back \
         to a state from before the epoch, name the launch that does (--attempt; Python: load_state_dict(attempt=...))"
    ))
}
