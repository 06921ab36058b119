//! Static processing modes: what a job's shards divide, and which worker has which.

use std::collections::BTreeSet;

use caju_engine::{Shard, ShardBy};
use caju_pipeline::SourceDef;
use caju_sources::has_files;
use caju_types::{Error, Result, WorkerId};
use futures::StreamExt;

use crate::catalog::Bound;
use crate::config::DispatcherConfig;
use crate::definition::Definition;
use crate::state::{Failure, Iteration, Job, Mode, Resume, State, Update};
use crate::workers::WorkerList;

/// The most shards of one worker in an epoch that goes on from a state of a cluster with more workers. Each of them is a task,
/// and a connection of each reader.
const MAX_SHARDS_PER_WORKER: u32 = 64;

/// The number of shards of an epoch that begins now; 0 outside the static modes.
pub(super) fn num_shards(workers: &WorkerList, mode: Mode) -> u32 {
    match mode.is_static() {
        true => u32::try_from(workers.len()).unwrap_or(u32::MAX),
        false => 0,
    }
}

/// The shards of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EpochShards {
    /// How many there are; 0 outside the static modes.
    pub(super) count: u32,
    /// The number of workers that have them in turn; 0: each shard has a worker of its own.
    pub(super) workers: u32,
}

/// The shards of an epoch that begins now: one per worker of the list. An epoch that goes on from a state keeps its own, since
/// the rows that were taken are numbered by them.
///
/// # Errors
/// `NotFound` for a static mode without a list of workers; `InvalidArgument` for a state of too many shards for the
/// list.
pub(super) fn of_epoch(config: &DispatcherConfig, job: &Job, resume: Option<&Resume>) -> Result<EpochShards> {
    let mode = job.spec.mode;
    let workers = num_shards(&config.workers, mode);
    if mode.is_static() && workers == 0 {
        return Err(Error::not_found(format!(
            "job `{}` runs in processing mode `{mode}`, and the dispatcher has no list of workers any more; start it with \
             --workers",
            job.name
        )));
    }
    let kept = resume.and_then(|r| r.shards).filter(|kept| mode.is_static() && kept.count != workers);
    kept.map_or(Ok(EpochShards { count: workers, workers: 0 }), |kept| kept_by(workers, kept.count))
}

/// The shards of a state on another number of workers. There is at least one worker.
fn kept_by(workers: u32, count: u32) -> Result<EpochShards> {
    let per_worker = count.div_ceil(workers);
    if per_worker > MAX_SHARDS_PER_WORKER {
        return Err(Error::invalid(format!(
            "the state is of {} shards, so each of the {workers} workers of the list would have {per_worker}; the most is \
             {MAX_SHARDS_PER_WORKER}: start the dispatcher with at least {} --workers",
            count,
            count.div_ceil(MAX_SHARDS_PER_WORKER)
        )));
    }
    Ok(EpochShards { count, workers })
}

/// Running epochs whose shards belong to the positions of another list: a dispatcher may be started again with more or fewer
/// workers.
pub(super) fn reassigned(config: &DispatcherConfig, state: &State) -> Vec<Update> {
    // A stream of an Arrow Flight reader has one shard, and its ticket names one worker.
    let may_change = |i: &&Iteration| i.mode.is_static() && i.is_running() && !i.flight_readers;
    let reassigned = state.iterations.values().filter(may_change).filter_map(|iteration| {
        let listed = num_shards(&config.workers, iteration.mode);
        let num_workers = if listed == iteration.num_shards { 0 } else { listed };
        let differs = listed > 0 && num_workers != iteration.num_workers;
        let is_too_much = || iteration.num_shards.div_ceil(listed) > MAX_SHARDS_PER_WORKER;
        (differs && !is_too_much())
            .then_some(Update::ShardsReassigned { iteration: iteration.id, num_workers })
    });
    reassigned.collect()
}

/// The failures of epochs that Arrow Flight readers read, after a worker has got another position of the list. Each ticket is
/// for one worker, so the rows of a shard that another one has now would come in no stream, and each stream would end well.
pub(super) fn moved_under_flight_readers(state: &State) -> Vec<Update> {
    let is_concerned = |i: &&Iteration| i.mode.is_static() && i.is_running() && i.flight_readers;
    let error = Error::failed_precondition(
        "a worker has another place in the list of --workers than when Arrow Flight readers began to read its shard; ask for the \
         flight's info again and read under another job name",
    );
    let failed = |i: &Iteration| Update::IterationFailed { iteration: i.id, failure: Failure::from(&error) };
    state.iterations.values().filter(is_concerned).map(failed).collect()
}

/// What the shards of a new job divide, or those of an epoch that goes on with another number of them; none outside the static modes.
///
/// # Errors
/// `NotFound` without configured workers, and for a source without files that is to be divided by file;
/// `InvalidArgument` for a pipeline that does not fit the mode; those of listing the source.
pub(super) async fn shard_by(
    num_shards: u32,
    mode: Mode,
    definition: &Definition,
    bound: &Bound,
) -> Result<Option<ShardBy>> {
    let Ok(def) = definition.read() else {
        // Only catalogs of tests have definitions of another kind.
        return Ok(None);
    };
    if def.has_shard_hint() && mode != Mode::Hint {
        return Err(Error::invalid(format!(
            "processing mode `{mode}`: the pipeline has a `shard` with `HINT`, which needs processing mode `hint`; \
             take that mode, or give `shard` numbers"
        )));
    }
    if !mode.is_static() {
        return Ok(None);
    }
    if num_shards == 0 {
        return Err(Error::not_found(format!(
            "processing mode `{mode}`: the worker is not in the workers list: this dispatcher has none; start it \
             with --workers HOST:PORT,... (such as `localhost:%port%,localhost:%port%`), or take mode `dynamic`"
        )));
    }
    if def.options.cache_only {
        return Err(Error::invalid(format!(
            "processing mode `{mode}`: `cache_only` reads recorded splits, which have no shards; take mode `dynamic` or \
             `off`"
        )));
    }
    if grows(&def.source) {
        return Err(Error::invalid(format!(
            "processing mode `{mode}`: a save that may still be written has no shards; say `wait: false` in `load`, \
             or take mode `dynamic`"
        )));
    }
    match mode {
        Mode::Data => Ok(Some(ShardBy::Data)),
        Mode::Hint => Ok(Some(ShardBy::Hint)),
        Mode::FileOrData => {
            let by_file = has_files(&def.source) && has_file_for_each(bound, num_shards).await?;
            Ok(Some(if by_file { ShardBy::File } else { ShardBy::Data }))
        }
        _ if has_files(&def.source) => Ok(Some(ShardBy::File)),
        _ => Err(Error::not_found(format!(
            "processing mode `{mode}`: found an unshardable source: the rows of `{}` are not in files of their own; \
             take mode `data` or `file_or_data`",
            def.source.name()
        ))),
    }
}

/// The position of a worker that registers: that of the list, or the next free slot without a list.
///
/// # Errors
/// `FailedPrecondition` for an address that no position fits; `Unavailable` while other workers have all that it fits.
pub(super) fn slot_for(
    config: &DispatcherConfig,
    state: &State,
    address: &str,
    worker: WorkerId,
    known: Option<u32>,
) -> Result<u32> {
    let list = &config.workers;
    if list.is_open() {
        return Ok(state.free_slot(known, worker));
    }
    let holder =
        |slot: u32| state.workers.values().find(|w| w.id != worker && !w.is_lost() && w.slot == slot);
    let mut fitting = list.positions(address).peekable();
    if fitting.peek().is_none() {
        return Err(Error::failed_precondition(format!(
            "worker address `{address}` is not configured: the dispatcher's --workers are {}; add it there, or start \
             the worker with one of these addresses (--listen, --advertise)",
            list.entries().join(", ")
        )));
    }
    let positions: Vec<u32> = fitting.collect();
    let own = known.filter(|slot| positions.contains(slot));
    if let Some(slot) = own.into_iter().chain(positions.iter().copied()).find(|slot| holder(*slot).is_none())
    {
        return Ok(slot);
    }
    let holders = positions.iter().filter_map(|slot| holder(*slot));
    Err(Error::unavailable(format!(
        "every position of --workers that `{address}` fits is taken, by {}; a position is free when its worker has \
         left, or was silent for {}",
        holders.map(|w| w.describe()).collect::<Vec<_>>().join(", "),
        caju_types::format_duration(config.timers.worker_timeout)
    )))
}

/// The error of an epoch whose shards lack their workers.
pub(super) fn lacks_workers(config: &DispatcherConfig, iteration: &Iteration, missing: &[u32]) -> Error {
    let name = |slot: &u32| {
        let entry = usize::try_from(*slot).ok().and_then(|i| config.workers.entries().get(i));
        format!("worker {slot} (`{}`)", entry.map_or("no longer in the list", String::as_str))
    };
    Error::unavailable(format!(
        "{}: {} of the configured workers, whose shard nobody else has, has not been there for {}; start it with \
         `caju worker --dispatcher ADDRESS`",
        iteration.describe(),
        missing.iter().map(name).collect::<Vec<_>>().join(", "),
        caju_types::format_duration(config.timers.worker_wait)
    ))
}

/// Whether a listing of the source may have other splits at another time, in any place.
fn grows(source: &SourceDef) -> bool {
    match source {
        SourceDef::Load { wait, .. } => *wait,
        source => source.children().iter().any(|d| grows(&d.source)),
    }
}

/// Whether each shard has a file: whether the last one has.
async fn has_file_for_each(bound: &Bound, num_shards: u32) -> Result<bool> {
    let num_shards = u64::from(num_shards);
    let last = Shard { by: ShardBy::File, num_shards, index: num_shards - 1 };
    (bound.shards)(last).splits.next().await.transpose().map(|split| split.is_some())
}

/// Positions of workers that are not there, and that have shards with work.
pub(super) fn orphans(state: &State, iteration: &Iteration) -> Vec<u32> {
    let has_worker = |slot: u32| state.workers.values().any(|w| !w.is_lost() && w.slot == slot);
    let slots: BTreeSet<u32> =
        iteration.shards_with_work().map(|shard| iteration.slot_of_shard(shard)).collect();
    slots.into_iter().filter(|slot| !has_worker(*slot)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_too_many_shards_for_the_list_is_refused_with_the_number_that_it_needs() {
        assert_eq!(kept_by(2, 128).unwrap(), EpochShards { count: 128, workers: 2 });
        let e = kept_by(2, 129).unwrap_err();
        assert!(e.message().starts_with("the state is of 129 shards, so each of the 2 workers"), "{e}");
        assert!(e.message().ends_with("at least 3 --workers"), "{e}");
    }
}
