//! Reconciles the desired tasks of an iteration after every update, and fails an iteration whose losses are fatal.

use std::collections::{BTreeMap, BTreeSet};

use caju_types::{Error, IterationId, TaskId, WorkerId};

use super::{FeedId, Iteration, Lease, Mode, State, TargetWorkers, Task, TaskState, Update, Worker};

/// How many losses an iteration survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossLimits {
    /// Workers that died with one split, after which the split is held to be the cause and the iteration fails. At least 2.
    pub splits: u32,
    /// Lost connections in a row to every worker, none of which brought a row, after which an iteration fails. The readers of an
    /// epoch that cannot reach the workers' addresses have to know it soon.
    pub connections: u32,
}

impl Default for LossLimits {
    fn default() -> Self {
        Self { splits: 3, connections: 10 }
    }
}

impl LossLimits {
    /// Lost connections in a row to a worker after which an iteration prefers other workers: one or two may be an accident of
    /// the network.
    fn connections_to_avoid(self) -> u32 {
        self.connections.div_ceil(4)
    }
}

/// The updates that bring an iteration to its desired state; none if it has that state. After they are applied there are
/// none: the caller need not loop.
pub fn follow_ups(state: &State, id: IterationId, limits: LossLimits) -> Vec<Update> {
    let Some(iteration) = state.iterations.get(&id) else { return Vec::new() };
    let has_readers = iteration.members.values().any(|m| !m.may_load);
    if !has_readers || !iteration.is_running() || iteration.awaits_states() {
        return Vec::new();
    }
    let eligible = eligible_workers(state, iteration);
    if let Some(error) = fatal_loss(state, iteration, &eligible, limits) {
        return vec![Update::IterationFailed { iteration: id, failure: (&error).into() }];
    }
    let wanted = match (iteration.mode, iteration.exclusive) {
        (Mode::Off, _) => off_tasks(state, iteration, &eligible, limits),
        (mode, _) if mode.is_static() => static_tasks(state, iteration, &eligible, limits),
        (_, true) => {
            let unfinished = unfinished_feeds(iteration);
            exclusive_task(state, iteration, FeedId::SHARED, &unfinished, &eligible, None, limits)
        }
        (_, false) => shared_tasks(iteration, &eligible, limits),
    };
    let created = |(k, (worker, feed)): (u64, (WorkerId, FeedId))| Update::TaskCreated {
        task: TaskId(state.next_id + k),
        iteration: id,
        worker,
        feed,
        secret: None,
    };
    (0..).zip(wanted).map(created).collect()
}

/// Active workers that somebody would read from.
fn eligible_workers<'a>(state: &'a State, iteration: &Iteration) -> Vec<&'a Worker> {
    state.active_workers().filter(|w| iteration.is_readable(w)).collect()
}

fn fatal_loss(
    state: &State,
    iteration: &Iteration,
    eligible: &[&Worker],
    limits: LossLimits,
) -> Option<Error> {
    let place = iteration.describe();
    if let Some(error) = no_local_worker(state, iteration, eligible) {
        return Some(error);
    }
    let loss = iteration.last_loss.as_deref().unwrap_or("no reason was given");
    let out_of_reach = |w: &&&Worker| iteration.connection_failures_of(w) >= limits.connections;
    let failed: Vec<&Worker> = eligible.iter().filter(out_of_reach).copied().collect();
    // No other worker has the shard of a worker.
    let is_alone =
        |w: &&Worker| iteration.shards_with_work().any(|shard| iteration.slot_of_shard(shard) == w.slot);
    if !failed.is_empty() && (failed.len() == eligible.len() || failed.iter().any(is_alone)) {
        let workers: Vec<String> = failed.iter().map(|w| w.describe()).collect();
        return Some(Error::unavailable(format!(
            "{place}: clients cannot read from {}: {loss}; check that clients reach the workers' addresses",
            workers.join(", ")
        )));
    }
    let mut suspects =
        iteration.suspects.iter().filter_map(|index| Some((index, iteration.lease_of(*index)?)));
    let (index, lease) = suspects.find(|(_, lease)| deaths(state, lease) >= limits.splits as usize)?;
    Some(Error::unavailable(format!(
        "{place}: split {index} was lost with {} workers that died, and is held to be the cause: {}; the \
         last loss: {loss}; see the workers' logs (out of memory?), and check the file",
        limits.splits, lease.split
    )))
}

/// Readers that read from workers of their own processes alone have none left. A worker that is silent may come back, with the
/// process that both are in.
fn no_local_worker(state: &State, iteration: &Iteration, eligible: &[&Worker]) -> Option<Error> {
    let runs = |t: &Task| t.state == TaskState::Active;
    if iteration.target != TargetWorkers::Local || !eligible.is_empty() || iteration.tasks.values().any(runs)
    {
        return None;
    }
    let locals = iteration.locals.values().flatten();
    let may_return = |id: &WorkerId| state.workers.get(id).is_some_and(|w| w.is_lost() && !w.left);
    if locals.clone().any(may_return) {
        return None;
    }
    let name = |id: &WorkerId| state.workers.get(id).map_or_else(|| id.to_string(), Worker::describe);
    let gone: BTreeSet<String> = locals.map(name).collect();
    let gone: Vec<String> = gone.into_iter().collect();
    Some(Error::cancelled(format!(
        "{}: no longer available: {}; target_workers LOCAL reads from workers in the readers' own processes alone, and \
         none of them is left",
        iteration.describe(),
        gone.join(", ")
    )))
}

/// With how many workers that died since a split was lost. A worker that lives only lost a connection. `lost_with` has no workers
/// that left: see [`Iteration::withdraw_blame`].
fn deaths(state: &State, lease: &Lease) -> usize {
    let died = |(worker, incarnation): &&(WorkerId, u32)| {
        state.workers.get(worker).is_none_or(|w| w.is_lost() || w.incarnation != *incarnation)
    };
    lease.lost_with.iter().filter(died).count()
}

/// Every worker draws from one feed; a worker whose task has got the end gets another task for splits that came back.
fn shared_tasks(iteration: &Iteration, eligible: &[&Worker], limits: LossLimits) -> Vec<(WorkerId, FeedId)> {
    let feed = iteration.feeds.get(&FeedId::SHARED);
    if feed.is_some_and(|f| !f.has_work()) {
        return Vec::new();
    }
    let open = iteration.tasks.values().filter(|t| t.is_open());
    let busy: BTreeSet<WorkerId> = open.map(|t| t.worker).collect();
    // An open task may not ask for a split for long: it has a slow one, or its reader takes no rows.
    let room = match feed {
        Some(f) if f.exhausted => f.pending.len(),
        _ => usize::MAX,
    };
    let idle = preferred(iteration, eligible, limits).into_iter().filter(|w| !busy.contains(&w.id));
    idle.take(room).map(|w| (w.id, FeedId::SHARED)).collect()
}

/// Feeds with a task that runs, or that is lost and whose splits are not back yet.
fn unfinished_feeds(iteration: &Iteration) -> BTreeSet<FeedId> {
    let unfinished = |t: &&Task| matches!(t.state, TaskState::Active | TaskState::Lost { .. });
    iteration.tasks.values().filter(unfinished).map(|t| t.feed).collect()
}

/// One task at a time sees the whole feed.
fn exclusive_task(
    state: &State,
    iteration: &Iteration,
    feed: FeedId,
    unfinished: &BTreeSet<FeedId>,
    eligible: &[&Worker],
    slot: Option<u32>,
    limits: LossLimits,
) -> Vec<(WorkerId, FeedId)> {
    if iteration.feeds.get(&feed).is_some_and(|f| !f.has_work()) || unfinished.contains(&feed) {
        return Vec::new();
    }
    let load = load(state);
    let busy = |w: &Worker| load.get(&w.id).copied().unwrap_or(0);
    let best = preferred(iteration, eligible, limits)
        .into_iter()
        .min_by_key(|w| (slot != Some(w.slot), busy(w), w.slot));
    best.map(|w| (w.id, feed)).into_iter().collect()
}

/// Every worker has a feed of its own, by slot; that of a lost worker moves to another.
fn off_tasks(
    state: &State,
    iteration: &Iteration,
    eligible: &[&Worker],
    limits: LossLimits,
) -> Vec<(WorkerId, FeedId)> {
    let is_new = |w: &&&Worker| !w.unconfirmed && !iteration.feeds.contains_key(&FeedId(w.slot));
    let new = eligible.iter().filter(|w| iteration.adds_feeds() && is_new(w));
    let mut wanted: Vec<_> = new.map(|w| (w.id, FeedId(w.slot))).collect();
    let unfinished = unfinished_feeds(iteration);
    for feed in iteration.feeds.keys() {
        wanted.extend(exclusive_task(state, iteration, *feed, &unfinished, eligible, Some(feed.0), limits));
    }
    wanted
}

/// Every shard has a feed, which only the worker runs that has it by its position in the configured list.
fn static_tasks(
    state: &State,
    iteration: &Iteration,
    eligible: &[&Worker],
    limits: LossLimits,
) -> Vec<(WorkerId, FeedId)> {
    let mut wanted = Vec::new();
    let unfinished = unfinished_feeds(iteration);
    for shard in iteration.shards_with_work() {
        let own: Vec<&Worker> =
            eligible.iter().filter(|w| w.slot == iteration.slot_of_shard(shard)).copied().collect();
        wanted.extend(exclusive_task(state, iteration, shard, &unfinished, &own, None, limits));
    }
    wanted
}

/// Under `off`: tasks for workers that a new reader wants and that never had one. Each worker runs the whole pipeline for the
/// job: the end of the other workers' tasks does not end the epoch.
/// Later [`follow_ups`] see these tasks as any other.
pub fn owed_tasks(state: &State, id: IterationId, flight: Option<WorkerId>) -> Vec<Update> {
    let Some(iteration) = state.iterations.get(&id) else { return Vec::new() };
    if iteration.mode != Mode::Off || iteration.failure.is_some() || !iteration.adds_feeds() {
        return Vec::new();
    }
    let wanted = |w: &&Worker| flight.map_or_else(|| iteration.is_readable(w), |f| f == w.id);
    let wanted = state.active_workers().filter(|w| !w.unconfirmed && wanted(w));
    let owed = wanted.filter(|w| !iteration.feeds.contains_key(&FeedId(w.slot)));
    let created = |(k, w): (u64, &Worker)| Update::TaskCreated {
        task: TaskId(state.next_id + k),
        iteration: id,
        worker: w.id,
        feed: FeedId(w.slot),
        secret: None,
    };
    (0..).zip(owed).map(created).collect()
}

/// Workers that clients can read from and that are no stragglers; all, if there are none such.
fn preferred<'a>(iteration: &Iteration, eligible: &[&'a Worker], limits: LossLimits) -> Vec<&'a Worker> {
    let good = |w: &&&Worker| {
        iteration.connection_failures_of(w) < limits.connections_to_avoid()
            && !iteration.stragglers.contains(&w.id)
    };
    let good: Vec<&Worker> = eligible.iter().filter(good).copied().collect();
    if good.is_empty() { eligible.to_vec() } else { good }
}

/// Unfinished tasks per worker.
fn load(state: &State) -> BTreeMap<WorkerId, usize> {
    let mut load = BTreeMap::new();
    for task in state.iterations.values().flat_map(|i| i.tasks.values()) {
        if task.state == TaskState::Active {
            *load.entry(task.worker).or_default() += 1;
        }
    }
    load
}
