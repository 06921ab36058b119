//! Splits of running tasks that are complete: users have taken every row of them.

use caju_autocache::{CachePlan, SetPlan};
use caju_types::{ClientId, TaskId};

use super::{Iteration, Lease, TaskState};

impl Iteration {
    /// Whether users had taken every row of a split before its task ended.
    pub fn is_complete(&self, split: u64) -> bool {
        self.completed.contains(split)
    }

    /// Whether a lease may end before its task does, when its rows are taken. Not where a task writes them to its part of a set:
    /// if it is lost, they are in none, and a set without them must not be committed. Nor where readers do not acknowledge.
    pub fn may_complete(&self, lease: &Lease) -> bool {
        let writes = |plan: &CachePlan| plan.save.is_some() || matches!(plan.set, Some(SetPlan::Write(_)));
        let writes_set = self.plan_of(lease).is_some_and(|plan| plan.value().is_none_or(writes));
        self.completes_splits
            && self.failure.is_none()
            && !self.flight_readers
            && !writes_set
            && lease.held.is_empty()
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
}
