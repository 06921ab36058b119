//! An iteration: one epoch of a job, its feeds, tasks and readers.
//!
//! The life of a split: listed by a provider, leased to a task, and finished when every client has read that
//! task to its end. If the task is lost before, the split waits until every client has said which of its rows
//! it received, then goes back to its feed with those rows marked as done, and to another task.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caju_types::{ClientId, DatasetId, Error, IterationId, JobName, RowRanges, TaskId, WorkerId};
use serde::{Deserialize, Serialize};

use super::caching::without_set;
use super::{Failure, Feed, FeedId, Lease, Mode, Modes, SplitRecord, Task, TaskState};

/// One epoch of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iteration {
    /// Its identifier.
    pub id: IterationId,
    /// The job.
    pub job: JobName,
    /// The epoch.
    pub epoch: u64,
    /// What is read.
    pub dataset: DatasetId,
    /// How splits are handed out.
    pub mode: Mode,
    /// Whether one task at a time must see all splits of a feed.
    pub exclusive: bool,
    /// Grows with every change that clients should hear of.
    pub version: u64,
    /// When it began, in milliseconds since the Unix epoch.
    pub opened_ms: u64,
    /// Its readers.
    pub members: BTreeMap<ClientId, Member>,
    /// Its tasks; those that are done stay as a record.
    pub tasks: BTreeMap<TaskId, Task>,
    /// Its rows of splits.
    pub feeds: BTreeMap<FeedId, Feed>,
    /// How often each client lost its connection to a worker that seemed to live. A client that left does not
    /// count: it may have broken its connections itself.
    pub strikes: BTreeMap<WorkerId, BTreeMap<ClientId, u32>>,
    /// What was said about the last lost task.
    pub last_loss: Option<String>,
    /// Rows dropped under `on_error: skip`.
    pub rows_skipped: u64,
    /// Whether hints may be used: else tasks leave them out, which reads less where nothing is stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub caching: bool,
    /// What is stored and read now, as the engine's plan in JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Arc<str>>,
    /// Plans before that. Splits that were begun under one of them and came back with some of their rows delivered
    /// go on under it: what is drawn for their other rows must fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<Option<Arc<str>>>,
    /// How the splits of ended tasks were run.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub modes: Modes,
    /// It failed.
    pub failure: Option<Failure>,
}

/// A reader of an iteration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// For a Flight reader: the worker whose task it reads. It sends no heartbeats and leaves with its task.
    pub flight: Option<WorkerId>,
}

impl Iteration {
    /// Whether nothing is left to hand out and every task has emitted everything.
    pub fn is_finished(&self) -> bool {
        self.failure.is_none()
            && !self.feeds.is_empty()
            && !self.feeds.values().any(Feed::has_work)
            && self.tasks.values().all(Task::is_over)
    }

    /// Whether it can still deliver rows.
    pub fn is_running(&self) -> bool {
        self.failure.is_none() && !self.is_finished()
    }

    /// The state's name for people.
    pub fn state_name(&self) -> &'static str {
        match (&self.failure, self.is_finished()) {
            (Some(_), _) => "failed",
            (None, true) => "finished",
            (None, false) => "running",
        }
    }

    /// Readers of our own kind, which send heartbeats and reports.
    pub fn own_members(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.members.iter().filter(|(_, m)| m.flight.is_none()).map(|(c, _)| *c)
    }

    /// Splits that are with a task, or were.
    pub fn splits_leased(&self) -> u64 {
        self.feeds.values().map(|f| f.issued.saturating_sub(f.pending.len() as u64)).sum()
    }

    /// How often present clients lost their connection to a worker.
    pub fn strikes_of(&self, worker: WorkerId) -> u32 {
        self.strikes.get(&worker).map_or(0, |by_client| by_client.values().sum())
    }

    /// The tasks that a client should know of.
    pub fn tasks_for(&self, client: ClientId) -> impl Iterator<Item = &Task> + '_ {
        let flight = self.members.get(&client).and_then(|m| m.flight);
        self.tasks.values().filter(move |t| match &t.state {
            TaskState::Active | TaskState::Ended => flight.is_none_or(|w| w == t.worker),
            TaskState::Lost { awaiting } => awaiting.contains(&client),
            TaskState::Done => false,
        })
    }

    /// The name for messages.
    pub fn describe(&self) -> String {
        format!("job `{}` epoch {}", self.job, self.epoch)
    }

    pub(super) fn join(&mut self, client: ClientId, flight: Option<WorkerId>) {
        self.members.insert(client, Member { flight });
    }

    pub(super) fn create_task(&mut self, id: TaskId, worker: WorkerId, feed: FeedId) {
        self.feeds.entry(feed).or_default();
        self.tasks.insert(id, Task::new(id, worker, feed));
        self.version += 1;
    }

    pub(super) fn lease(
        &mut self,
        id: TaskId,
        request_no: u64,
        fresh: &[SplitRecord],
        requeued: &[u64],
        end: bool,
    ) {
        let plan = self.former.len();
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let feed = self.feeds.entry(task.feed).or_default();
        task.last_request = request_no;
        task.last_answer.clear();
        task.told_end |= end;
        for index in requeued {
            if let Some(mut lease) = feed.pending.remove(index) {
                if lease.done.is_empty() {
                    lease.plan = plan;
                }
                task.leases.insert(*index, lease);
                task.last_answer.push(*index);
            }
        }
        for record in fresh {
            feed.issue(record);
            let lease = Lease {
                split: Arc::clone(&record.split),
                done: RowRanges::default(),
                lost: 0,
                plan,
                group: record.group.clone(),
            };
            task.leases.insert(record.index, lease);
            task.last_answer.push(record.index);
        }
    }

    /// What is stored and read from now on.
    pub(super) fn set_plan(&mut self, plan: Option<Arc<str>>) {
        if self.plan != plan {
            let former = std::mem::replace(&mut self.plan, plan);
            self.former.push(former);
        }
    }

    /// The plan under which a lease is run.
    pub fn plan_of(&self, lease: &Lease) -> Option<&str> {
        self.former.get(lease.plan).unwrap_or(&self.plan).as_deref()
    }

    pub(super) fn exhaust(&mut self, feed: FeedId) {
        self.feeds.entry(feed).or_default().exhausted = true;
        self.version += 1;
    }

    pub(super) fn task_ended(&mut self, id: TaskId, rows_skipped: u64, modes: Modes) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.is_lost() || task.reported {
            return;
        }
        task.reported = true;
        self.rows_skipped += rows_skipped;
        self.modes += modes;
        let worker = task.worker;
        self.members.retain(|_, m| m.flight != Some(worker));
        self.end(id);
    }

    pub(super) fn client_ended(&mut self, client: ClientId, id: TaskId) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.is_lost() || task.state == TaskState::Done {
            return;
        }
        task.read_by.insert(client);
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
        self.settle_ended(id);
    }

    /// An ended task is done when every client has read it to its end.
    fn settle_ended(&mut self, id: TaskId) {
        let own: BTreeSet<ClientId> = self.own_members().collect();
        let Some(task) = self.tasks.get_mut(&id) else { return };
        let flight = self.members.values().any(|m| m.flight == Some(task.worker));
        if task.state == TaskState::Ended && !flight && own.is_subset(&task.read_by) {
            task.finish();
        }
    }

    /// A client's connection to a task broke, or it heard that the task is lost.
    pub(super) fn client_lost(
        &mut self,
        client: ClientId,
        id: TaskId,
        received: &[(u64, RowRanges)],
        reason: &str,
    ) {
        let Some(task) = self.tasks.get(&id) else { return };
        if !task.is_lost() && task.state != TaskState::Done {
            *self.strikes.entry(task.worker).or_default().entry(client).or_default() += 1;
            self.lose(id, reason);
        }
        let Some(task) = self.tasks.get_mut(&id) else { return };
        task.receive(received);
        if let TaskState::Lost { awaiting } = &mut task.state {
            awaiting.remove(&client);
        }
        self.settle_lost(id);
    }

    /// A client left. Tasks that it broke off are lost, for its rows of them may be: that is nobody's fault.
    pub(super) fn client_gone(
        &mut self,
        client: ClientId,
        received: &[(TaskId, Vec<(u64, RowRanges)>)],
        broken_off: &[TaskId],
        reason: &str,
    ) {
        if self.members.remove(&client).is_none() {
            return;
        }
        for by_client in self.strikes.values_mut() {
            by_client.remove(&client);
        }
        for (id, rows) in received {
            if let Some(task) = self.tasks.get_mut(id) {
                task.receive(rows);
            }
        }
        for id in broken_off {
            let news = self.lose(*id, &format!("{client} left: {reason}"));
            if let Some(task) = self.tasks.get_mut(id).filter(|_| news) {
                task.blameless = true;
            }
        }
        let ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        for id in ids {
            if let Some(TaskState::Lost { awaiting }) = self.tasks.get_mut(&id).map(|t| &mut t.state) {
                awaiting.remove(&client);
            }
            self.settle_lost(id);
            self.settle_ended(id);
        }
        self.version += 1;
    }

    pub(super) fn worker_lost(&mut self, worker: WorkerId, reason: &str) {
        let ids: Vec<TaskId> = self.tasks.values().filter(|t| t.worker == worker).map(|t| t.id).collect();
        for id in ids {
            self.task_lost(id, reason);
        }
        self.strikes.remove(&worker);
    }

    pub(super) fn task_lost(&mut self, id: TaskId, reason: &str) {
        self.lose(id, reason);
        self.settle_lost(id);
    }

    /// A task's rows will not come. Nothing changes, and the answer is false, if that is known or the task is
    /// done.
    fn lose(&mut self, id: TaskId, reason: &str) -> bool {
        let awaiting: BTreeSet<ClientId> = self.own_members().collect();
        let Some(task) = self.tasks.get_mut(&id) else { return false };
        if task.is_lost() || task.state == TaskState::Done {
            return false;
        }
        self.version += 1;
        let worker = task.worker;
        let had_rows = !task.leases.is_empty();
        task.state = TaskState::Lost { awaiting };
        self.last_loss = Some(reason.to_string());
        let flight = self.members.values().any(|m| m.flight == Some(worker));
        if flight && had_rows {
            // Nobody knows which of its rows the Flight reader has: the epoch cannot be made whole.
            self.fail((&flight_loss(&self.describe(), reason)).into());
        } else {
            self.members.retain(|_, m| m.flight != Some(worker));
        }
        true
    }

    /// A lost task's splits go back once every client has said what it received of them.
    fn settle_lost(&mut self, id: TaskId) {
        let settled = |t: &Task| matches!(&t.state, TaskState::Lost { awaiting } if awaiting.is_empty());
        if !self.tasks.get(&id).is_some_and(settled) {
            return;
        }
        let Some(mut task) = self.tasks.remove(&id) else { return };
        let feed = self.feeds.entry(task.feed).or_default();
        feed.closed = false;
        let mut came_back = false;
        for (index, mut lease) in std::mem::take(&mut task.leases) {
            if let Some(rows) = task.received.get(&index) {
                lease.done.extend(rows);
            }
            lease.lost += u32::from(!task.blameless);
            lease.group = None;
            feed.pending.insert(index, lease);
            came_back = true;
        }
        // Rows of splits that are run again may be in a part already: no set can come of this epoch.
        if came_back && let Some(plan) = self.plan.as_deref().and_then(without_set) {
            self.set_plan(Some(plan));
        }
        self.version += 1;
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.failure = Some(failure);
            self.tasks.clear();
            self.feeds.clear();
            self.members.retain(|_, m| m.flight.is_none());
            self.version += 1;
        }
    }
}

fn flight_loss(iteration: &str, reason: &str) -> Error {
    Error::unavailable(format!(
        "{iteration}: {reason}; which of its rows a Flight reader received is not known, so the epoch cannot \
         be made whole: read it again under another job name"
    ))
}
