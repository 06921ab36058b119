//! From which workers a reader reads.

use std::collections::BTreeSet;

use caju_proto::v1;
use caju_types::{ClientId, Error, IterationId, Result, WorkerId};

use super::Txn;
use crate::config::MemoryLimits;
use crate::state::{Iteration, Job, State, TargetWorkers, Update, Worker};

/// The most workers of its own process that a client may name; a process has a few.
const MAX_LOCAL_WORKERS: usize = 4096;

/// Checks the addresses of the workers in a client's own process.
///
/// # Errors
/// `InvalidArgument` for too many of them, or too long ones.
pub(super) fn check_local(addresses: &[String], limits: &MemoryLimits) -> Result<()> {
    if addresses.len() > MAX_LOCAL_WORKERS {
        return Err(Error::invalid(format!(
            "a client names {} workers of its own process, and {MAX_LOCAL_WORKERS} are the most",
            addresses.len()
        )));
    }
    addresses.iter().try_for_each(|address| limits.check_name("a worker's address", address))
}

/// What a reader asks for; nothing if it takes the job as it is.
///
/// # Errors
/// `InvalidArgument` for a number that means nothing.
pub(super) fn wanted(request: &v1::OpenIterationRequest) -> Result<Option<TargetWorkers>> {
    match v1::TargetWorkers::try_from(request.target_workers) {
        Ok(v1::TargetWorkers::Unspecified) => Ok(None),
        Ok(v1::TargetWorkers::Auto) => Ok(Some(TargetWorkers::Auto)),
        Ok(v1::TargetWorkers::Any) => Ok(Some(TargetWorkers::Any)),
        Ok(v1::TargetWorkers::Local) => Ok(Some(TargetWorkers::Local)),
        Err(_) => Err(Error::invalid(format!(
            "target_workers {} is not known; `auto`, `any` or `local`",
            request.target_workers
        ))),
    }
}

/// A target as messages say it.
pub(super) fn to_proto(target: TargetWorkers) -> v1::TargetWorkers {
    match target {
        TargetWorkers::Auto => v1::TargetWorkers::Auto,
        TargetWorkers::Any => v1::TargetWorkers::Any,
        TargetWorkers::Local => v1::TargetWorkers::Local,
    }
}

/// Whether a reader may read a job as it asks.
///
/// # Errors
/// `AlreadyExists` if the job has another target.
pub(super) fn check_job(job: &Job, target: Option<TargetWorkers>) -> Result<()> {
    match target.filter(|t| *t != job.spec.target) {
        Some(target) => Err(Error::already_exists(format!(
            "job `{}` runs with target_workers `{}`, not `{}`; take another job name, or leave target_workers out",
            job.name,
            job.spec.target.as_str(),
            target.as_str()
        ))),
        None => Ok(()),
    }
}

/// The workers of a client's own process that are registered here. A reader of a job with the target LOCAL needs one.
///
/// # Errors
/// `InvalidArgument` if it has none, `Unavailable` if a reader of a dispatcher that lost its state has none yet: both have to
/// come back. `FailedPrecondition` for an Arrow Flight reader, which never has one.
pub(super) fn local_workers(
    state: &State,
    request: &v1::OpenIterationRequest,
    target: TargetWorkers,
) -> Result<Vec<WorkerId>> {
    let local = registered(state, &request.local_workers);
    if target != TargetWorkers::Local {
        return Ok(local);
    }
    if request.flight {
        return Err(Error::failed_precondition(format!(
            "job `{}` runs with target_workers `local`, and an Arrow Flight reader has no worker in its own process; \
             take another job name",
            request.job
        )));
    }
    if local.iter().any(|id| state.workers.get(id).is_some_and(Worker::is_active)) {
        return Ok(local);
    }
    if request.reattached_client != 0 {
        return Err(Error::unavailable(
            "the worker in the reader's own process has not registered at this dispatcher again, which lost its state",
        ));
    }
    Err(Error::invalid(
        "no local worker is found: target_workers LOCAL reads from workers in the reader's own process alone, and none of \
         them is registered at this dispatcher; start one there (Python: caju.start_worker), or read from ANY",
    ))
}

/// Whether a reader of a static mode reads some shard, with these workers in its own process.
///
/// # Errors
/// `InvalidArgument` if it reads none.
pub(super) fn has_shard(state: &State, iteration: &Iteration, local: &[WorkerId]) -> Result<()> {
    let own: BTreeSet<WorkerId> = local.iter().copied().collect();
    let shards = iteration.num_shards as usize;
    // An epoch that goes on with fewer shards than workers has none for the last ones.
    let is_listed = |w: &Worker| !w.is_lost() && w.slot < iteration.num_workers;
    let has_local = || own.iter().any(|id| state.workers.get(id).is_some_and(is_listed));
    let leaves_workers_out = iteration.num_workers > iteration.num_shards && has_local();
    if shards == 0 || leaves_workers_out || iteration.shards_unread_by(&state.workers, &own).len() < shards {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{}: static sharding requires local workers: each of the {shards} configured workers is read in its own process \
         alone (its tag is COLOCATED, or target_workers is LOCAL), and none is in this one; start one here, or read with \
         target_workers ANY",
        iteration.describe()
    )))
}

/// Enters the workers that have come in a client's process since it joined.
pub(super) fn update_local(txn: &mut Txn<'_>, client: ClientId, id: IterationId, addresses: &[String]) {
    let Some(iteration) = txn.state.iterations.get(&id) else { return };
    let known = iteration.locals.get(&client);
    let is_new = |id: &WorkerId| known.is_none_or(|k| !k.contains(id));
    let workers: Vec<_> = registered(txn.state, addresses).into_iter().filter(is_new).collect();
    if !workers.is_empty() {
        txn.apply(Update::LocalWorkersAdded { client, iteration: id, workers });
    }
}

fn registered(state: &State, addresses: &[String]) -> Vec<WorkerId> {
    addresses.iter().filter_map(|a| state.worker_at(a)).filter(|w| !w.is_lost()).map(|w| w.id).collect()
}
