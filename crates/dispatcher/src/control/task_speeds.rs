//! How fast tasks go through their splits, by the reports of workers.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_types::{IterationId, TaskId};

use crate::state::{Iteration, Task};

/// How fast the tasks went through their splits.
#[derive(Debug, Default)]
pub(super) struct TaskSpeeds {
    by_iteration: BTreeMap<IterationId, BTreeMap<TaskId, TaskSpeed>>,
}

/// How fast one task went through its splits.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskSpeed {
    /// When it got its first split, by the monotonic clock.
    pub(super) began: Duration,
    /// When it was first seen to have emitted everything.
    pub(super) ended: Option<Duration>,
    /// The splits that it got, without those that it skipped: they take no time.
    pub(super) splits: u32,
    /// Rows that it has emitted by its worker's last report, and when that count was first reported.
    pub(super) rows: u64,
    pub(super) progress: Duration,
}

impl TaskSpeed {
    fn begun(now: Duration) -> Self {
        Self { began: now, ended: None, splits: 0, rows: 0, progress: now }
    }

    fn busy(&self, now: Duration) -> Duration {
        self.ended.unwrap_or(now).saturating_sub(self.began)
    }

    /// The time that a split took; of a running task the least that it can be.
    pub(super) fn per_split(&self, now: Duration) -> Duration {
        self.busy(now) / self.splits.max(1)
    }

    pub(super) fn rows_per_s(&self, now: Duration) -> f64 {
        self.rows as f64 / self.busy(now).as_secs_f64().max(1e-3)
    }
}

impl TaskSpeeds {
    /// A task got splits.
    pub(super) fn leased(&mut self, iteration: IterationId, task: TaskId, splits: usize, now: Duration) {
        let tasks = self.by_iteration.entry(iteration).or_default();
        let speed = tasks.entry(task).or_insert(TaskSpeed::begun(now));
        speed.splits = speed.splits.saturating_add(u32::try_from(splits).unwrap_or(u32::MAX));
    }

    /// A task skipped splits.
    pub(super) fn skipped(&mut self, iteration: IterationId, task: TaskId, splits: usize) {
        if let Some(speed) = self.by_iteration.get_mut(&iteration).and_then(|tasks| tasks.get_mut(&task)) {
            speed.splits = speed.splits.saturating_sub(u32::try_from(splits).unwrap_or(u32::MAX));
        }
    }

    /// A worker reports how many rows a task has emitted.
    pub(super) fn emitted(&mut self, iteration: IterationId, task: TaskId, rows: u64, now: Duration) {
        if let Some(speed) = self.by_iteration.get_mut(&iteration).and_then(|tasks| tasks.get_mut(&task))
            && rows > speed.rows
        {
            (speed.rows, speed.progress) = (rows, now);
        }
    }

    /// The speed of a task that got splits.
    pub(super) fn of(&self, task: TaskId, iteration: &Iteration) -> Option<&TaskSpeed> {
        self.by_iteration.get(&iteration.id)?.get(&task).filter(|p| p.splits > 0)
    }

    /// Computes the speeds for an iteration at its end: they are not needed before.
    pub(super) fn observe(&mut self, iteration: &Iteration, now: Duration) {
        let Some(tasks) = self.by_iteration.get_mut(&iteration.id) else { return };
        tasks.retain(|id, speed| {
            let Some(task) = iteration.tasks.get(id) else { return false };
            if has_finished(task) && speed.ended.is_none() {
                speed.ended = Some(now);
            }
            !task.is_lost()
        });
    }

    /// Forgets an iteration that was removed.
    pub(super) fn forget(&mut self, iteration: IterationId) {
        self.by_iteration.remove(&iteration);
    }
}

/// Whether a task has no work any more. One that keeps what is left at its end, for equally many elements of all consumers,
/// waits for the other tasks.
pub(super) fn has_finished(task: &Task) -> bool {
    task.is_over() || task.remainder.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_splits_take_no_time_of_a_task() {
        let (mut speeds, iteration, task) = (TaskSpeeds::default(), IterationId(1), TaskId(2));
        let now = Duration::from_secs(8);
        let per_split = |speeds: &TaskSpeeds| speeds.by_iteration[&iteration][&task].per_split(now);
        speeds.skipped(iteration, task, 1);
        speeds.leased(iteration, task, 16, Duration::ZERO);
        assert_eq!(per_split(&speeds), Duration::from_millis(500));
        speeds.skipped(iteration, task, 12);
        assert_eq!(per_split(&speeds), Duration::from_secs(2));
    }
}
