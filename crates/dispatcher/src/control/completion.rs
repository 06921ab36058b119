//! The end of the leases of splits whose tasks go on: when users have taken every row of them.

use std::collections::{BTreeMap, BTreeSet};

use caju_pipeline::{StageDef, StageOp};
use caju_proto::v1;
use caju_types::{ClientId, Error, IterationId, Result, TaskId};

use super::Txn;
use super::acknowledgements::taken_by_users;
use super::reports::Reports;
use crate::state::{FeedId, Iteration, Task, TaskState, Update};

/// Repetitions of a source without a row after which an endless `repeat` is an error. Tasks read splits of several repetitions
/// concurrently, and a stage above may draw at random.
const EMPTY_REPETITIONS: u32 = 1000;

/// The most complete splits of one report whose reader is notified of them.
const MAX_NOTIFIED: usize = 1 << 12;

/// Splits of one task that are complete now.
#[derive(Debug, Default)]
struct Completed {
    splits: Vec<u64>,
    emitted: u64,
    taken: BTreeMap<ClientId, u64>,
}

impl Reports {
    /// A reader says the numbers of rows of splits. Those of them that were not known.
    pub(super) fn add_sizes(&mut self, iteration: &Iteration, sizes: &[v1::SplitCount]) -> Vec<u64> {
        let mut news = Vec::new();
        for size in sizes {
            let split = size.split_index;
            let feed = || iteration.feeds.get(&FeedId::of_index(split));
            let waits = || feed().is_some_and(|feed| feed.pending.contains_key(&split));
            let is_open = self.holders.task_of(iteration, split).is_some() || waits();
            if is_open && self.completed_splits.add_size(iteration, split, size.rows) {
                news.push(split);
            }
        }
        news
    }

    /// A reader acknowledged rows of these splits. It is notified of those that are complete.
    pub(super) fn notify_of_complete(
        &mut self,
        iteration: &Iteration,
        client: ClientId,
        splits: impl Iterator<Item = u64>,
    ) {
        for split in splits.take(MAX_NOTIFIED).filter(|split| iteration.is_complete(*split)) {
            self.completed_splits.notify(iteration.id, client, split);
        }
    }

    /// The task of a worker has read splits that have no rows, and none that has.
    ///
    /// # Errors
    /// `InvalidArgument` if the epoch repeats nothing without end.
    pub(super) fn add_empty(&mut self, txn: &mut Txn<'_>, request: &v1::NextSplitsRequest) -> Result<()> {
        let id = TaskId(request.task_id);
        let Some((iteration, task)) = txn.state.task(id) else { return Ok(()) };
        if !iteration.completes_splits {
            return Ok(());
        }
        let iteration_id = iteration.id;
        let reported = request.empty_splits.iter().copied();
        let of_task: BTreeSet<u64> = reported.filter(|split| task.leases.contains_key(split)).collect();
        self.completed_splits.read_empty(id, request.empty_repetition);
        for split in &of_task {
            self.completed_splits.add_size(iteration, *split, 0);
        }
        let runs = |t: &&Task| t.state == TaskState::Active;
        let read = |t: &Task| self.completed_splits.empty_repetition(t.id);
        let is_empty = iteration.takers.is_empty()
            && !iteration.tasks.values().any(Task::is_lost)
            && iteration.tasks.values().filter(runs).all(|t| read(t) >= EMPTY_REPETITIONS);
        let dataset = is_empty.then(|| txn.state.datasets.get(&iteration.dataset)).flatten();
        let definition = dataset.and_then(|d| d.definition.read().ok());
        let is_repeat = |stage: &StageDef| matches!(stage.op, StageOp::Repeat(None));
        if let Some(at) = definition.and_then(|def| def.stages.iter().position(is_repeat)) {
            return Err(Error::invalid(format!(
                "steps[{at}].repeat: the pipeline above it gives no row, so it would repeat nothing without end: no row of \
                 {EMPTY_REPETITIONS} repetitions arrived; check the filters above it and its source"
            )));
        }
        self.complete_splits(txn, iteration_id, &of_task);
        Ok(())
    }

    /// A task has skipped splits: their leases end.
    pub(super) fn skip_splits(&mut self, txn: &mut Txn<'_>, task: TaskId, splits: &[v1::SplitCount]) {
        let Some((iteration, _)) = txn.state.task(task) else { return };
        let splits: Vec<(u64, u64)> = splits.iter().map(|s| (s.split_index, s.rows)).collect();
        let splits = iteration.may_skip(task, &splits);
        if splits.is_empty() {
            return;
        }
        let id = iteration.id;
        let indexes: Vec<u64> = splits.iter().map(|(split, _)| *split).collect();
        self.holders.forget_splits(id, &indexes);
        self.completed_splits.complete(id, task, &indexes);
        self.task_speeds.skipped(id, task, indexes.len());
        txn.apply(Update::SplitsSkipped { task, splits });
    }

    /// A task got splits. Users may have taken all rows of some that come back from a lost task: rows that were on their way when
    /// its worker died, and were taken since.
    pub(super) fn complete_leased(&mut self, txn: &mut Txn<'_>, id: TaskId) {
        let Some((iteration, task)) = txn.state.task(id).filter(|(i, _)| i.completes_splits) else { return };
        let returned = |split: &&u64| task.leases.get(split).is_some_and(|lease| !lease.done.is_empty());
        let splits: BTreeSet<u64> = task.last_answer.iter().filter(returned).copied().collect();
        if !splits.is_empty() {
            self.complete_splits(txn, iteration.id, &splits);
        }
    }

    /// Ends the leases of those of these splits of which users have taken all rows.
    pub(super) fn complete_splits(&mut self, txn: &mut Txn<'_>, id: IterationId, splits: &BTreeSet<u64>) {
        let Some(iteration) = txn.state.iterations.get(&id) else { return };
        let mut by_task: BTreeMap<TaskId, Completed> = BTreeMap::new();
        for &split in splits {
            let Some(task) = self.holders.task_of(iteration, split) else { continue };
            let size = self.completed_splits.size_if_taken(iteration, task, split);
            let Some(Taken { emitted, by }) = size.and_then(|size| all_taken(iteration, task, split, size))
            else {
                continue;
            };
            let completed = by_task.entry(task.id).or_default();
            completed.splits.push(split);
            completed.emitted = completed.emitted.saturating_add(emitted);
            for (client, rows) in by {
                let sum = completed.taken.entry(client).or_default();
                *sum = sum.saturating_add(rows);
                self.completed_splits.notify(id, client, split);
            }
        }
        for (task, Completed { splits, emitted, taken }) in by_task {
            self.holders.forget_splits(id, &splits);
            self.completed_splits.complete(id, task, &splits);
            txn.apply(Update::SplitsCompleted { task, splits, emitted, taken: taken.into_iter().collect() });
        }
    }
}

/// Who took the rows of a complete split.
struct Taken {
    /// Rows that its task emitted.
    emitted: u64,
    /// Rows that the users of present clients took.
    by: Vec<(ClientId, u64)>,
}

/// Whether users have taken all rows of a split, each of them once.
fn all_taken(iteration: &Iteration, task: &Task, split: u64, size: u64) -> Option<Taken> {
    let lease = task.leases.get(&split).filter(|lease| iteration.may_complete(lease))?;
    if task.state != TaskState::Active {
        return None;
    }
    let acknowledged = || iteration.own_members().filter_map(|c| Some((c, iteration.acknowledged_by(c)?)));
    let (taken, doubled) = taken_by_users(acknowledged().map(|(_, known)| known), task, Some(lease), split);
    (taken == size && doubled == 0).then(|| Taken {
        emitted: size.saturating_sub(lease.done.len()),
        by: acknowledged()
            .map(|(c, known)| (c, known.of(split).len()))
            .filter(|(_, rows)| *rows > 0)
            .collect(),
    })
}
