//! Which readers read which tasks.
//!
//! Every reader reads every task, with two exceptions: an Arrow Flight reader reads the task of its worker alone, and a
//! task that is *local only* is read by the readers in its worker's own process. Who does not read a task is not asked
//! for it: it neither has to read it to its end nor to report what it received of it.

use std::collections::BTreeSet;

use caju_types::{ClientId, WorkerId};
use serde::{Deserialize, Serialize};

use super::{Iteration, Task, TaskState, Worker};

/// From which workers the readers of a job read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetWorkers {
    /// From all, but from those with the tag [`COLOCATED`](super::COLOCATED) in their own process only.
    #[default]
    Auto,
    /// From all that they reach.
    Any,
    /// From those in their own processes alone.
    Local,
}

impl TargetWorkers {
    /// The name in flags and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            TargetWorkers::Auto => "auto",
            TargetWorkers::Any => "any",
            TargetWorkers::Local => "local",
        }
    }
}

impl Iteration {
    /// Whether a reader reads a task.
    pub fn reads(&self, client: ClientId, task: &Task) -> bool {
        match self.members.get(&client).and_then(|m| m.flight) {
            Some(worker) => worker == task.worker,
            None => !task.local_only || self.is_local(client, task.worker),
        }
    }

    /// The readers of our own kind that read a task.
    pub fn readers_of<'a>(&'a self, task: &'a Task) -> impl Iterator<Item = ClientId> + 'a {
        self.own_members().filter(|c| self.reads(*c, task))
    }

    /// Whether some reader would read from a worker.
    pub fn is_readable(&self, worker: &Worker) -> bool {
        let local_only = worker.is_local_only(self.target);
        self.members.iter().any(|(client, member)| match member.flight {
            Some(own) => own == worker.id,
            None => !local_only || self.is_local(*client, worker.id),
        })
    }

    fn is_local(&self, client: ClientId, worker: WorkerId) -> bool {
        self.locals.get(&client).is_some_and(|own| own.contains(&worker))
    }

    /// Whether a running task has lost its last reader, while the epoch has others.
    pub(super) fn is_deserted(&self, task: &Task) -> bool {
        task.state == TaskState::Active
            && !self.members.is_empty()
            && !self.members.keys().any(|c| self.reads(*c, task))
    }

    /// Enters workers of a reader's own process.
    pub(super) fn add_locals(&mut self, client: ClientId, workers: &[WorkerId]) {
        if workers.is_empty() || !self.members.contains_key(&client) {
            return;
        }
        let known: &mut BTreeSet<WorkerId> = self.locals.entry(client).or_default();
        known.extend(workers);
        self.version += 1;
    }
}
