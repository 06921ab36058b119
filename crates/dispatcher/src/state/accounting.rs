//! The end of tasks and of the epoch: what was emitted, what was acknowledged, and what is missing.

use caju_autocache::SplitModes;
use caju_types::{ClientId, TaskId, WorkerId};
use serde::{Deserialize, Serialize};

use super::{Feed, Iteration, SharedCounts, Task, TaskState};

/// What a worker reports of the end of a task; the fields of [`super::Update::TaskEnded`].
pub(super) struct TaskEnd<'a> {
    pub(super) rows_skipped: u64,
    pub(super) modes: SplitModes,
    pub(super) emitted: Option<&'a Vec<(u64, u64)>>,
    pub(super) to_flight: Option<&'a Vec<(u64, u64)>>,
    pub(super) forgotten: u64,
    pub(super) shared: Option<SharedCounts>,
}

/// Rows that tasks emitted and no client acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// How many.
    pub rows: u64,
    /// Splits that they belong to.
    pub splits: u64,
}

impl Missing {
    /// Adds splits with the given numbers of missing rows.
    pub(super) fn add(&mut self, splits: impl Iterator<Item = u64>) {
        for rows in splits {
            self.rows = self.rows.saturating_add(rows);
            self.splits += 1;
        }
    }
}

/// A reader that vanished after its user had taken rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostReader {
    /// Which.
    pub client: ClientId,
    /// Rows that its user had taken, as far as it had reported.
    pub rows: u64,
    /// Its user had taken more, and nobody knows which rows: an older version had joined the reader, which journaled no
    /// acknowledgements, the dispatcher was restarted, and the reader vanished before it had sent all of them again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
    /// It did not come back after a dispatcher had lost its state: the rows that its user took come again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_back: bool,
}

impl Iteration {
    /// Whether nothing is left to hand out and every task has emitted everything. Users may not have taken all of it.
    pub fn is_drained(&self) -> bool {
        self.failure.is_none()
            && !self.feeds.is_empty()
            && !self.feeds.iter().any(|(id, feed)| feed.has_work() && self.is_wanted(*id))
            && self.tasks.values().all(Task::is_over)
    }

    /// Whether all is accounted for: every task was compared with what clients acknowledged.
    fn is_settled(&self) -> bool {
        self.is_drained() && self.tasks.values().all(|t| t.state == TaskState::Done)
    }

    /// Whether every row was acknowledged. Present readers may be at their ends without that: no other reader reads the shard of a
    /// worker in the process of one that left.
    pub fn is_finished(&self) -> bool {
        self.is_settled() && !self.lacks_rows() && !self.feeds.values().any(Feed::has_work)
    }

    /// Whether it is at its end, and rows are missing.
    pub fn is_incomplete(&self) -> bool {
        self.is_settled() && self.lacks_rows()
    }

    fn lacks_rows(&self) -> bool {
        self.missing.rows > 0 || self.strict && !self.lost_readers.is_empty() || self.has_unknown_rows()
    }

    /// Whether readers vanished whose users took rows that are not known.
    pub fn has_unknown_rows(&self) -> bool {
        self.lost_readers.iter().any(|r| r.unknown)
    }

    /// Whether it can still deliver rows.
    pub fn is_running(&self) -> bool {
        self.failure.is_none() && !self.is_drained()
    }

    /// Rows that the users of lost readers had taken.
    pub fn rows_of_lost_readers(&self) -> u64 {
        self.lost_readers.iter().fold(0, |sum: u64, r| sum.saturating_add(r.rows))
    }

    /// Whether the report of some worker is still to come: every reader has read a task to its end, so its worker is
    /// about to say what it emitted.
    pub fn awaits_report(&self) -> bool {
        let read_by_all = |t: &Task| self.readers_of(t).all(|c| t.read_by.contains(&c));
        self.tasks.values().any(|t| t.state != TaskState::Done && !t.is_reported() && read_by_all(t))
    }

    /// Tasks whose rows can be compared with what clients acknowledged: no further report of them will come.
    pub fn to_settle(&self) -> Vec<TaskId> {
        let taken = |t: &Task| self.own_members().all(|c| self.has_taken(c, t));
        let flight = |w: WorkerId| self.flight_readers && self.members.values().any(|m| m.flight == Some(w));
        let ready =
            |t: &&Task| t.state == TaskState::Ended && t.is_reported() && taken(t) && !flight(t.worker);
        self.tasks.values().filter(ready).map(|t| t.id).collect()
    }

    pub(super) fn task_ended(&mut self, id: TaskId, end: &TaskEnd<'_>) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.is_lost() || task.reported {
            return;
        }
        task.reported = true;
        if end.emitted.is_some() {
            task.emitted = end.emitted.cloned();
        }
        task.to_flight = end.to_flight.cloned();
        task.forgotten_rows = Some(end.forgotten);
        task.rows_skipped = end.rows_skipped;
        self.rows_skipped += end.rows_skipped;
        self.modes += end.modes;
        if let Some(shared) = end.shared {
            *self.shared.get_or_insert_default() += shared;
        }
        let worker = task.worker;
        self.members.retain(|_, m| m.flight != Some(worker));
        self.end(id);
    }

    pub(super) fn client_ended(&mut self, client: ClientId, id: TaskId, emitted: Option<&Vec<(u64, u64)>>) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.is_lost() || task.state == TaskState::Done {
            return;
        }
        task.read_by.insert(client);
        if task.emitted.is_none() {
            task.emitted = emitted.cloned();
        }
        self.end(id);
    }

    fn end(&mut self, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.state == TaskState::Active {
            task.state = TaskState::Ended;
            if self.exclusive
                && let Some(feed) = self.feeds.get_mut(&task.feed)
            {
                feed.closed = true;
            }
        }
        self.version += 1;
    }

    /// The user of a client took all that the client had of a task.
    pub(super) fn client_taken(&mut self, client: ClientId, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if !task.is_lost() && task.state != TaskState::Done {
            task.taken_by.insert(client);
            self.version += 1;
        }
    }

    /// A task is done; rows of it that no client acknowledged are missing.
    pub(super) fn settle_task(&mut self, id: TaskId, missing: &[(u64, u64)], taken: &[(ClientId, u64)]) {
        let Some(task) = self.tasks.get_mut(&id).filter(|t| t.state == TaskState::Ended) else { return };
        let splits: Vec<u64> = task.leases.keys().copied().collect();
        task.finish();
        self.forget_acknowledged(splits.iter());
        self.missing.add(missing.iter().map(|(_, rows)| *rows));
        self.add_rows_done(taken);
        self.version += 1;
    }

    /// The users of clients took rows of splits that are accounted for.
    pub(super) fn add_rows_done(&mut self, taken: &[(ClientId, u64)]) {
        for (client, rows) in taken {
            if let Some(member) = self.members.get_mut(client) {
                member.rows_done = member.rows_done.saturating_add(*rows);
            }
        }
    }

    /// Whether every present reader has all that an ended task emitted: its worker is needed no more.
    pub fn is_delivered(&self, task: &Task) -> bool {
        // In this order: each check asks this of every task of every iteration, and most tasks run.
        let flight = || self.flight_readers && self.members.values().any(|m| m.flight == Some(task.worker));
        task.state == TaskState::Ended
            && !flight()
            && self.readers_of(task).all(|c| task.read_by.contains(&c))
    }
}
