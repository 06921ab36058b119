//! Which task has a split: an index of the leases in the state, for acknowledgements.
//!
//! Clients acknowledge thousands of splits a second, of thousands of tasks. The index is made from the state when it is first
//! asked for, and again by a dispatcher that starts again; leases add to it, and tasks that are done leave it.

use std::collections::{BTreeMap, HashMap};

use caju_types::{IterationId, TaskId};

use crate::state::{FeedId, Iteration, Task, TaskState};

/// The index, by iteration.
#[derive(Debug, Default)]
pub(super) struct Holders {
    by_iteration: BTreeMap<IterationId, HashMap<u64, TaskId>>,
}

impl Holders {
    fn of(&mut self, iteration: &Iteration) -> &mut HashMap<u64, TaskId> {
        self.by_iteration.entry(iteration.id).or_insert_with(|| {
            let leases = |t: &Task| {
                let id = t.id;
                t.leases.keys().map(move |split| (*split, id)).collect::<Vec<_>>()
            };
            iteration.tasks.values().flat_map(leases).collect()
        })
    }

    /// A task got the splits of its last answer.
    pub(super) fn leased(&mut self, iteration: &Iteration, task: &Task) {
        let id = task.id;
        self.of(iteration).extend(task.last_answer.iter().map(|split| (*split, id)));
    }

    /// A task is done.
    pub(super) fn forget_task(&mut self, iteration: IterationId, task: &Task) {
        if let Some(holders) = self.by_iteration.get_mut(&iteration) {
            for split in task.leases.keys() {
                holders.remove(split);
            }
        }
    }

    /// Forgets an iteration that was removed.
    pub(super) fn forget(&mut self, iteration: IterationId) {
        self.by_iteration.remove(&iteration);
    }

    /// Splits of a running task are complete.
    pub(super) fn forget_splits(&mut self, iteration: IterationId, splits: &[u64]) {
        if let Some(holders) = self.by_iteration.get_mut(&iteration) {
            for split in splits {
                holders.remove(split);
            }
        }
    }

    /// The task that has a split and is not done.
    pub(super) fn task_of<'a>(&mut self, iteration: &'a Iteration, split: u64) -> Option<&'a Task> {
        let holder = self.of(iteration).get(&split)?;
        let has = |t: &&Task| t.state != TaskState::Done && t.leases.contains_key(&split);
        iteration.tasks.get(holder).filter(has)
    }

    /// Whether a split is with a task that is not done, or waits for one.
    pub(super) fn is_open(&mut self, iteration: &Iteration, split: u64) -> bool {
        let pending =
            iteration.feeds.get(&FeedId::of_index(split)).is_some_and(|f| f.pending.contains_key(&split));
        pending || self.task_of(iteration, split).is_some()
    }
}
