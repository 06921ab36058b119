//! Which readers read which tasks.
//!
//! Every reader reads every task, with two exceptions: an Arrow Flight reader reads the task of its worker alone, and a
//! task that is *local only* is read by the readers in its worker's own process. Who does not read a task is not asked
//! for it: it neither has to read it to its end nor to report what it received of it.

use std::collections::{BTreeMap, BTreeSet};

use caju_types::{ClientId, WorkerId};
use serde::{Deserialize, Serialize};

use super::{Dataset, Feed, FeedId, Iteration, Task, TaskState, Worker};

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
        let member = self.members.get(&client);
        match member.and_then(|m| m.flight) {
            Some(worker) => worker == task.worker,
            None if member.is_some_and(|m| m.may_load) => false,
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
        if self.even.is_some() {
            // Every consumer gets elements of every task.
            let everybody = || self.members.keys().all(|c| self.is_local(*c, worker.id));
            return !self.members.is_empty() && (!local_only || everybody());
        }
        self.members.iter().any(|(client, member)| match member.flight {
            Some(own) => own == worker.id,
            None => !local_only || self.is_local(*client, worker.id),
        })
    }

    fn is_local(&self, client: ClientId, worker: WorkerId) -> bool {
        self.locals.get(&client).is_some_and(|own| own.contains(&worker))
    }

    /// The shards of a static mode that a reader with these workers in its own process does not read: those of workers that
    /// others alone read.
    pub fn shards_unread_by(
        &self,
        workers: &BTreeMap<WorkerId, Worker>,
        own: &BTreeSet<WorkerId>,
    ) -> BTreeSet<FeedId> {
        let readable = |w: &Worker| !w.is_local_only(self.target) || own.contains(&w.id);
        let is_unread = |shard: &FeedId| {
            let mut there = workers.values().filter(|w| w.slot == self.slot_of_shard(*shard)).peekable();
            match there.peek() {
                Some(_) => !there.any(readable),
                None => self.target == TargetWorkers::Local,
            }
        };
        (0..self.num_shards).map(FeedId).filter(is_unread).collect()
    }

    /// Notes which shards each reader does not read, by the workers that are known now.
    pub(super) fn note_unread_shards(&mut self, workers: &BTreeMap<WorkerId, Worker>) {
        if !self.mode.is_static() {
            return;
        }
        let none = BTreeSet::new();
        let own = |c: &ClientId| self.locals.get(c).unwrap_or(&none);
        let unread = self.own_members().map(|c| (c, self.shards_unread_by(workers, own(&c))));
        self.unread = unread.filter(|(_, shards)| !shards.is_empty()).collect();
    }

    /// Whether a reader waits for the rows of a feed; without readers all are waited for.
    pub(super) fn is_wanted(&self, feed: FeedId) -> bool {
        let reads = |c: ClientId| self.unread.get(&c).is_none_or(|u| !u.contains(&feed));
        self.unread.is_empty() || self.own_members().next().is_none() || self.own_members().any(reads)
    }

    /// Whether the order of rows is promised, and that of several feeds.
    pub fn takes_turns(&self, dataset: Option<&Dataset>) -> bool {
        self.mode.has_feed_per_worker() && dataset.is_some_and(|d| d.deterministic)
    }

    /// The feeds that have rows for a reader now: those of running tasks that it reads, and of shards that have none yet.
    pub fn slots_of(&self, client: ClientId) -> impl Iterator<Item = FeedId> + '_ {
        let runs = move |feed: FeedId| {
            self.tasks
                .values()
                .any(|t| t.feed == feed && t.state == TaskState::Active && self.reads(client, t))
        };
        let unread = self.unread.get(&client);
        let waits = move |feed: FeedId| {
            self.mode.is_static()
                && self.feeds.get(&feed).is_some_and(Feed::has_work)
                && unread.is_none_or(|u| !u.contains(&feed))
        };
        self.feeds.keys().copied().filter(move |feed| runs(*feed) || waits(*feed))
    }

    /// Whether two readers may get rows of the same task.
    pub fn share_tasks(&self, a: ClientId, b: ClientId) -> bool {
        let reads = |c: ClientId, feed: &FeedId| self.unread.get(&c).is_none_or(|u| !u.contains(feed));
        self.unread.is_empty() || self.feeds.keys().any(|feed| reads(a, feed) && reads(b, feed))
    }

    /// Whether nothing is left to hand out of what a reader reads, and its tasks have emitted everything.
    pub fn is_drained_for(&self, client: ClientId) -> bool {
        let Some(unread) = self.unread.get(&client) else { return self.is_drained() };
        self.failure.is_none()
            && !self.feeds.iter().any(|(id, feed)| feed.has_work() && !unread.contains(id))
            && self.tasks.values().all(|t| t.is_over() || unread.contains(&t.feed))
    }

    /// Whether a client's user has taken every row that the client will get: all rows were sent, and of every task it
    /// took what the client had of it. It has nothing left to do but leave.
    pub fn has_taken_all(&self, client: ClientId) -> bool {
        let taken = |t: &Task| t.state == TaskState::Done || self.has_taken(client, t);
        self.is_drained_for(client) && self.tasks.values().all(taken)
    }

    /// Whether a client's user had taken every row that the client was to get when tasks were lost that are not settled: it read
    /// each of them to its end. It may be about to leave, by an answer that it got before the loss was reported.
    pub fn had_taken_all(&self, client: ClientId) -> bool {
        let taken = |t: &Task| match &t.state {
            TaskState::Done => true,
            TaskState::Lost { awaiting } => awaiting.contains(&client) && t.taken_by.contains(&client),
            TaskState::Active | TaskState::Ended => t.is_over() && self.has_taken(client, t),
        };
        self.failure.is_none()
            && !self.feeds.is_empty()
            && !self.feeds.values().any(Feed::has_work)
            && self.tasks.values().all(taken)
    }

    /// Whether a client's user has taken all that the client has of a task's splits.
    pub(super) fn has_taken(&self, client: ClientId, task: &Task) -> bool {
        task.taken_by.contains(&client) || !self.reads(client, task) && !self.holds_rows_of(client, task)
    }

    /// Whether a client has rows of a task's splits, from lost tasks that had them before, and its user has not taken all of
    /// these. A client that does not read the task says nothing of it, and still holds them.
    fn holds_rows_of(&self, client: ClientId, task: &Task) -> bool {
        let acknowledged = self.acknowledged_by(client);
        task.leases.iter().any(|(split, lease)| {
            let Some(held) = lease.held.get(&client).filter(|held| !held.is_empty()) else { return false };
            let mut waiting = held.clone();
            acknowledged.into_iter().for_each(|known| waiting.subtract(&known.of(*split)));
            !waiting.is_empty()
        })
    }

    /// Whether the end of some task waits for what a client acknowledges, although the client does not read the task.
    pub fn awaits_rows_of(&self, client: ClientId) -> bool {
        let awaits = |t: &Task| t.state == TaskState::Ended && !self.reads(client, t);
        self.tasks.values().any(awaits)
    }

    /// Whether a running task has lost its last reader, while the epoch has others. No other reader reads the task of a worker in
    /// the reader's own process.
    pub(super) fn is_deserted(&self, task: &Task) -> bool {
        task.state == TaskState::Active
            && (task.local_only || !self.members.is_empty())
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
