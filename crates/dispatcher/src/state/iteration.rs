//! An iteration: one epoch of a job, its feeds, tasks and readers.
//!
//! The life of a split: listed by a provider, leased to a task, and done when every client has read that task to
//! its end, its user has taken every row, and what clients acknowledged is what the task emitted. If the task is lost
//! before, the split goes back to its feed with the rows that are delivered, and to another task.
//!
//! # Which rows of a task each client has
//!
//! One rule holds for every way in which a client or a task ends. A row of a split is *delivered* while some client has
//! it, and a task computes exactly the rows of its leases that are not delivered when it gets them. A client has a row
//! from the moment when it receives it until it gives it back:
//!
//! | what happens | rows that the client has afterwards | recorded in |
//! |---|---|---|
//! | the task is lost, the client is present | those that it received of the task, by its report | [`Lease::done`], and [`Lease::held`] until its user took them |
//! | the client leaves, or its epoch ends | those that it received and does not give back, by its report | [`Task::received`] of every task that is not done, [`Lease::done`] |
//! | the client is expelled | those that its user took, by its acknowledgements, of every task that is not done | the same |
//! | the dispatcher restarts | as before; the client sends its acknowledgements again before anything is compared | the journal |
//! | the client is expelled before it has done so | not known: the epoch is incomplete for every reader | [`LostReader::unknown`] |
//!
//! A task whose lease lost delivered rows in this way ran as if they were delivered, so it is lost too. A client whose
//! user took every row of a task exempts that task from this, and from nothing else.
//!
//! A task is compared once its worker and every client have said all: `taken by users = emitted + delivered before`,
//! split by split, as sets of rows. Rows that a present client only holds are not taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use caju_autocache::{CachePlan, Document, SplitModes};
use caju_engine::{Shard, ShardBy};
use caju_types::{ClientId, DatasetId, IterationId, JobName, Secret, TaskId, WorkerId};
use serde::{Deserialize, Serialize};

use super::{Even, Failure, Feed, FeedId, Lease, Mode, Resume, SplitRecord, TargetWorkers, Task, TaskState};

/// Readers up to which all others hear at once that a further one has taken rows, so that their states name it. More readers
/// hear with their next heartbeat: messages to all of them for each of them would be millions.
const TAKERS_TOLD: usize = 64;

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
    /// In a static mode: what its shards divide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_by: Option<ShardBy>,
    /// In a static mode: the number of shards, which all have a feed from the beginning.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub num_shards: u32,
    /// Whether one task at a time must see all splits of a feed.
    pub exclusive: bool,
    /// Grows with every change that is reported to clients.
    pub version: u64,
    /// When it began, in milliseconds since the Unix epoch.
    pub opened_ms: u64,
    /// Its readers.
    pub members: BTreeMap<ClientId, Member>,
    /// From which workers they read.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub target: TargetWorkers,
    /// The workers in each reader's own process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub locals: BTreeMap<ClientId, BTreeSet<WorkerId>>,
    /// In a static mode: the shards that a reader does not read, of those readers that do not read all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub unread: BTreeMap<ClientId, BTreeSet<FeedId>>,
    /// Consumers that get equally many elements; none: readers share them as they come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub even: Option<Even>,
    /// Its tasks; those that are done stay as a record.
    pub tasks: BTreeMap<TaskId, Task>,
    /// Its rows of splits.
    pub feeds: BTreeMap<FeedId, Feed>,
    /// How often each client lost its connection to a worker that seemed to live. A client that left does not
    /// count: it may have broken its connections itself.
    pub strikes: BTreeMap<WorkerId, BTreeMap<ClientId, u32>>,
    /// Why the last task was lost.
    pub last_loss: Option<String>,
    /// Rows dropped under `on_error: skip`.
    pub rows_skipped: u64,
    /// Whether hints may be used: else tasks leave them out, which reads less where nothing is stored.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub caching: bool,
    /// What is stored and read now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Document<CachePlan>>,
    /// Plans before that. Splits that were begun under one of them and came back with some of their rows delivered
    /// go on under it: what is drawn for their other rows must fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<Option<Document<CachePlan>>>,
    /// How the splits of ended tasks were run.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub modes: SplitModes,
    /// It failed.
    pub failure: Option<Failure>,
    /// Rows that tasks emitted and nobody acknowledged.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub missing: Missing,
    /// Readers that vanished after their users had taken rows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_readers: Vec<LostReader>,
    /// Some reader does not accept that rows went to readers that are lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict: bool,
    /// Some reader came by Flight, which acknowledges nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flight_readers: bool,
    /// Splits that were lost with several workers.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub suspects: BTreeSet<u64>,
    /// Workers whose last splits others took over.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub stragglers: BTreeSet<WorkerId>,
    /// Readers whose users took rows, those that left included.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub takers: BTreeSet<ClientId>,
    /// What was taken before it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Box<Resume>>,
}

/// Rows that tasks emitted and nobody acknowledged.
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
    /// Its user had taken more, and nobody knows which rows: the dispatcher was restarted, and the reader vanished before
    /// it had sent all of its acknowledgements again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
}

/// A reader of an iteration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// For a Flight reader: the worker whose task it reads. It sends no heartbeats and leaves with its task.
    pub flight: Option<WorkerId>,
    /// Whether it accepts that rows went to readers that are lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_lost: bool,
    /// Whether its user has taken rows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub took: bool,
    /// Rows of tasks that are done which its user took.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub rows_done: u64,
    /// What every call of it carries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// Which consumer it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<u32>,
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

    /// Whether every row was acknowledged.
    pub fn is_finished(&self) -> bool {
        self.is_settled() && !self.lacks_rows()
    }

    /// Whether it is at its end, and rows are missing.
    pub fn is_incomplete(&self) -> bool {
        self.is_settled() && self.lacks_rows()
    }

    fn lacks_rows(&self) -> bool {
        self.missing.rows > 0 || self.strict && !self.lost_readers.is_empty() || self.has_unknown_rows()
    }

    /// Whether readers vanished of whose users nobody knows which rows they took.
    pub fn has_unknown_rows(&self) -> bool {
        self.lost_readers.iter().any(|r| r.unknown)
    }

    /// Whether it can still deliver rows.
    pub fn is_running(&self) -> bool {
        self.failure.is_none() && !self.is_drained()
    }

    /// The state's name for people.
    pub fn state_name(&self) -> &'static str {
        match () {
            () if self.failure.is_some() => "failed",
            () if self.is_finished() => "finished",
            () if self.is_incomplete() => "incomplete",
            () if self.members.is_empty() => "abandoned",
            () => "running",
        }
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
        let taken = |t: &Task| self.readers_of(t).all(|c| t.taken_by.contains(&c));
        let flight = |w: WorkerId| self.members.values().any(|m| m.flight == Some(w));
        let ready =
            |t: &&Task| t.state == TaskState::Ended && t.is_reported() && taken(t) && !flight(t.worker);
        self.tasks.values().filter(ready).map(|t| t.id).collect()
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
        self.tasks.values().filter(move |t| match &t.state {
            TaskState::Active | TaskState::Ended => self.reads(client, t),
            TaskState::Lost { awaiting } => awaiting.contains(&client),
            TaskState::Done => false,
        })
    }

    /// The name for messages.
    pub fn describe(&self) -> String {
        format!("job `{}` epoch {}", self.job, self.epoch)
    }

    pub(super) fn join(&mut self, client: ClientId, member: Member) {
        self.flight_readers |= member.flight.is_some();
        self.strict |= !member.allow_lost;
        if let (Some(even), Some(consumer)) = (&mut self.even, member.consumer) {
            even.joined.insert(consumer);
            self.version += 1;
        }
        self.members.insert(client, member);
    }

    pub(super) fn client_took(&mut self, client: ClientId) {
        if let Some(member) = self.members.get_mut(&client) {
            member.took = true;
            self.takers.insert(client);
        }
        if self.takers.len() <= TAKERS_TOLD {
            self.version += 1;
        }
    }

    /// Further states of the readers that it goes on from.
    pub(super) fn states_given(&mut self, states: &Resume) {
        if let Some(resume) = &mut self.resume {
            // Whether they fit was found out before.
            drop(resume.extend(states));
        }
        self.begin_if_ready();
        self.version += 1;
    }

    /// Whether it waits for states of readers.
    pub fn awaits_states(&self) -> bool {
        self.resume.as_deref().is_some_and(|r| r.missing() > 0)
    }

    /// Under `off`, the feeds are those that there were.
    pub(super) fn begin_if_ready(&mut self) {
        if let Some(resume) = self.resume.as_deref().filter(|r| self.mode == Mode::Off && r.missing() == 0) {
            for feed in resume.taken.listed().keys() {
                self.feeds.entry(FeedId(*feed)).or_default();
            }
        }
    }

    pub(super) fn create_task(&mut self, task: Task) {
        self.feeds.entry(task.feed).or_default();
        self.tasks.insert(task.id, task);
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
        task.last_behind.clear();
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
                done: self.resume.as_deref().map(|r| r.done_of(record.index)).unwrap_or_default(),
                lost: 0,
                lost_with: BTreeSet::new(),
                held: BTreeMap::new(),
                taken_over: false,
                plan,
                group: record.group.clone(),
            };
            task.leases.insert(record.index, lease);
            task.last_answer.push(record.index);
        }
        if !requeued.is_empty() {
            self.serve_behind(id);
        }
    }

    /// What is stored and read from now on.
    pub(super) fn set_plan(&mut self, mut plan: Option<Document<CachePlan>>) {
        // Rows that were taken before are in no set, and would come again from one.
        if self.resume.is_some()
            && let Some(of_set) = plan.as_ref().and_then(Document::value).filter(|p| p.set.is_some())
        {
            plan = Some(of_set.clone().without_set().into());
        }
        if self.plan != plan {
            let former = std::mem::replace(&mut self.plan, plan);
            self.former.push(former);
        }
    }

    /// The plan under which a lease is run.
    pub fn plan_of(&self, lease: &Lease) -> Option<&Document<CachePlan>> {
        self.former.get(lease.plan).unwrap_or(&self.plan).as_ref()
    }

    pub(super) fn exhaust(&mut self, feed: FeedId, listing: Option<u64>) {
        let feed = self.feeds.entry(feed).or_default();
        feed.exhausted = true;
        feed.listing = listing;
        self.version += 1;
    }

    /// The shard that a feed has; none outside the static modes.
    pub fn shard_of(&self, feed: FeedId) -> Option<Shard> {
        let (num_shards, index) = (u64::from(self.num_shards.max(1)), u64::from(feed.0));
        self.shard_by.map(|by| Shard { by, num_shards, index })
    }

    /// Shards that still need their workers.
    pub fn shards_with_work(&self) -> impl Iterator<Item = FeedId> + '_ {
        let is_static = self.mode.is_static();
        let waited_for = move |(id, f): &(&FeedId, &Feed)| is_static && f.has_work() && self.is_wanted(**id);
        self.feeds.iter().filter(waited_for).map(|(id, _)| *id)
    }

    pub(super) fn task_ended(
        &mut self,
        id: TaskId,
        rows_skipped: u64,
        modes: SplitModes,
        emitted: Option<&Vec<(u64, u64)>>,
        to_flight: Option<&Vec<(u64, u64)>>,
    ) {
        let Some(task) = self.tasks.get_mut(&id) else { return };
        if task.is_lost() || task.reported {
            return;
        }
        task.reported = true;
        if emitted.is_some() {
            task.emitted = emitted.cloned();
        }
        task.to_flight = to_flight.cloned();
        self.rows_skipped += rows_skipped;
        self.modes += modes;
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

    /// A task is done; rows of it that nobody acknowledged are missing.
    pub(super) fn settle_task(&mut self, id: TaskId, missing: &[(u64, u64)], taken: &[(ClientId, u64)]) {
        let Some(task) = self.tasks.get_mut(&id).filter(|t| t.state == TaskState::Ended) else { return };
        task.finish();
        self.missing.add(missing.iter().map(|(_, rows)| *rows));
        for (client, rows) in taken {
            if let Some(member) = self.members.get_mut(client) {
                member.rows_done = member.rows_done.saturating_add(*rows);
            }
        }
        self.version += 1;
    }

    /// Whether every present reader has all that an ended task emitted: its worker is needed no more.
    pub(super) fn is_delivered(&self, task: &Task) -> bool {
        let flight = self.members.values().any(|m| m.flight == Some(task.worker));
        task.state == TaskState::Ended && !flight && self.readers_of(task).all(|c| task.read_by.contains(&c))
    }

    /// The lease of a split, wherever it is.
    pub fn lease_of(&self, index: u64) -> Option<&Lease> {
        let pending = self.feeds.get(&FeedId::of_index(index)).and_then(|f| f.pending.get(&index));
        pending.or_else(|| self.tasks.values().find_map(|t| t.leases.get(&index)))
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
