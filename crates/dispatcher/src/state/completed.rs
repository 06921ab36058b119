//! Splits of running tasks that are complete: users have taken every row of them, or a task has skipped them.

use caju_autocache::{CachePlan, SetPlan};
use caju_types::{ClientId, TaskId};

use super::{Iteration, Lease, TaskState};

impl Iteration {
    /// Whether users had taken every row of a split before its task ended.
    pub fn is_complete(&self, split: u64) -> bool {
        self.completed.contains(split)
    }

    /// Whether a lease may end before its task does, when its rows are taken. Not where a task writes them to its part of a set:
    /// if it is lost, they are in none, and a set without them must not be committed. Nor where the rows come from a part of a set:
    /// all of its splits come back together if the task is lost, and a part is read with the leases of all. Nor where readers do not
    /// acknowledge.
    pub fn may_complete(&self, lease: &Lease) -> bool {
        let writes = |plan: &CachePlan| plan.save.is_some() || matches!(plan.set, Some(SetPlan::Write(_)));
        let writes_set = self.plan_of(lease).is_some_and(|plan| plan.value().is_none_or(writes));
        let is_alone = lease.group.is_none() && !writes_set;
        self.completes_splits && self.failure.is_none() && !self.flight_readers && is_alone
    }

    /// Splits of a running task are complete.
    pub(super) fn complete_splits(
        &mut self,
        id: TaskId,
        splits: &[u64],
        emitted: u64,
        taken: &[(ClientId, u64)],
    ) {
        let Some(task) = self.tasks.get_mut(&id).filter(|t| t.state == TaskState::Active) else { return };
        for split in splits {
            task.leases.remove(split);
            task.received.remove(split);
            task.sizes.remove(split);
            self.completed.insert(*split, split.saturating_add(1));
        }
        task.completed_rows = task.completed_rows.saturating_add(emitted);
        self.forget_acknowledged(splits.iter());
        self.add_rows_done(taken);
    }

    /// Those of these splits that their task may skip: it has them, it can be reported to, and no reader has rows of them.
    pub fn may_skip(&self, task: TaskId, splits: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let Some(task) = self.tasks.get(&task).filter(|t| !t.is_lost() && !t.is_done()) else {
            return Vec::new();
        };
        let is_whole = |split: &u64| task.leases.get(split).is_some_and(|lease| lease.done.is_empty());
        splits.iter().filter(|(split, _)| is_whole(split)).copied().collect()
    }

    /// A task has skipped splits. That is final: a task that ran one of them later might deliver rows that are counted as skipped.
    pub(super) fn skip_splits(&mut self, id: TaskId, splits: &[(u64, u64)]) {
        let skipped = self.may_skip(id, splits);
        let Some(task) = self.tasks.get_mut(&id) else { return };
        for (split, rows) in skipped {
            task.leases.remove(&split);
            task.received.remove(&split);
            task.sizes.remove(&split);
            self.completed.insert(split, split.saturating_add(1));
            let shared = self.shared.get_or_insert_default();
            shared.skipped_rows = shared.skipped_rows.saturating_add(rows);
        }
    }
}
