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
//! | the task is lost, the client is present | those that it received of the task, by its report | [`super::Lease::done`], and [`super::Lease::held`] until its user took them |
//! | the client leaves, or its epoch ends | those that it received and does not give back, by its report | [`Task::received`] of every task that is not done, [`super::Lease::done`] |
//! | the client is expelled | those that its user took, by its acknowledgements, of every task that is not done | the same |
//! | the dispatcher restarts | as before; the client sends its acknowledgements again before anything is compared, and those that were answered are known without it | the journal |
//! | the client is expelled before it has done so, and its acknowledgements are not in the journal because an older version wrote that | not known: the epoch is incomplete for every reader | [`LostReader::unknown`] |
//!
//! A task whose lease lost delivered rows in this way ran as if they were delivered, so it is lost too. A client whose
//! user took every row of a task exempts that task from this, and from nothing else.
//!
//! A split is *complete*, and its lease ends, when the users of clients have taken as many rows of it as it has, while its task
//! runs. A task may run for as long as its job, as under an endless `repeat`, and what is known of its splits must not grow. A
//! task that counts rows keeps its leases: one that follows it has to count the same rows.
//!
//! A task is compared once its worker and every client have said all: `taken by users = emitted + delivered before`,
//! split by split, as sets of rows. Rows that a present client only holds are not taken.

use std::collections::{BTreeMap, BTreeSet};

use caju_autocache::{CachePlan, Document, SplitModes};
use caju_engine::ShardBy;
use caju_types::{
    ClientId, DatasetId, IterationId, JobName, ReadingBase, ReadingBases, RowRanges, Secret, TaskId, WorkerId,
};
use serde::{Deserialize, Serialize};

use super::{
    Acknowledged, Attempt, Even, Failure, Feed, FeedId, LostReader, Missing, Mode, Resume, SharedCounts,
    TargetWorkers, Task, TaskState, Worker,
};

/// The most readers of an iteration that are all notified at once when a further one has come, or one of them has taken its first rows:
/// their states name it then, and they know whose states are needed if the dispatcher loses its own. The readers of a larger
/// job are notified by the answers to their next heartbeats: each with a long list of tasks for each other reader would be gigabytes.
pub const READERS_NOTIFIED: usize = 16;

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
    /// The number of workers that have these shards in turn; 0: each shard has a worker of its own. An epoch that goes on
    /// from a state keeps its shards, and the dispatcher may have another list of workers.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub num_workers: u32,
    /// Whether one task at a time must see all splits of a feed.
    pub exclusive: bool,
    /// Grows with every change that is reported to clients.
    pub version: u64,
    /// When it began, in milliseconds since the Unix epoch.
    pub opened_ms: u64,
    /// Its readers.
    pub members: BTreeMap<ClientId, Member>,
    /// What readers acknowledged of splits that are not done.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub acknowledged: BTreeMap<ClientId, Acknowledged>,
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
    /// How often in a row each client lost its connection to a worker that seemed to live, without a row of it. A client that
    /// left does not count: it may have broken its connections itself.
    pub strikes: BTreeMap<WorkerId, BTreeMap<ClientId, u32>>,
    /// Why the last task was lost.
    pub last_loss: Option<String>,
    /// Rows dropped under `on_error: skip`.
    pub rows_skipped: u64,
    /// How its source differs from that of the epoch before, in words. None if it does not, or if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_changed: Option<String>,
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
    /// What ended tasks computed and read from the windows of their workers; none if they shared nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<SharedCounts>,
    /// Tasks with splits that are lost, or whose workers are gone, without a report of their end.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub unreported_tasks: u64,
    /// How the splits of ended tasks were run.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub modes: SplitModes,
    /// It failed.
    pub failure: Option<Failure>,
    /// Rows that tasks emitted and no client acknowledged.
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
    /// Whether a split can be complete before its task ends. Not where a task that follows a lost one needs all splits again: it
    /// counts rows, keeps their order, or skips bad ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub completes_splits: bool,
    /// Splits that were complete before their tasks ended.
    #[serde(default, skip_serializing_if = "RowRanges::is_empty")]
    pub completed: RowRanges,
    /// What was taken before it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Box<Resume>>,
    /// The launch of the user's program that restored its beginning, if its readers say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun_by: Option<Box<Attempt>>,
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
    /// The version of the iteration with which it came: readers that have seen it know of this one.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub since: u64,
    /// Its number at a dispatcher that lost its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<ClientId>,
    /// A consumer that came without a state, and whose user has not asked for an element: it may leave, and come again with a
    /// state. It reads no task until then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_load: bool,
    /// The version of the iteration since which its user may have its first element in hand; 0 before that.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub takes_since: u64,
    /// Which rank of its attempt it is, if it restored states and says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// The call with which it came: the same call again is answered as the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<Secret>,
    /// All that it acknowledged is in the journal. Not so of readers that joined while an older version ran.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_journaled: bool,
}

impl Iteration {
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

    /// The launch of the user's program that restored the states behind which it goes on, or its beginning.
    pub fn attempt(&self) -> Option<&Attempt> {
        let behind = self.resume.as_deref().and_then(|r| r.attempt.as_deref());
        behind.or(self.begun_by.as_deref())
    }

    /// Readers of our own kind, which send heartbeats and reports.
    pub fn own_members(&self) -> impl Iterator<Item = ClientId> + '_ {
        self.members.iter().filter(|(_, m)| m.flight.is_none()).map(|(c, _)| *c)
    }

    /// How often in a row present clients lost their connection to a worker, without a row of it.
    pub fn connection_failures_of(&self, worker: &Worker) -> u32 {
        let strikes: u32 = self.strikes.get(&worker.id).map_or(0, |by_client| by_client.values().sum());
        if strikes == 0 {
            return 0;
        }
        // A client that loses its worker loses each task of it. Shards that have no work left count: their tasks were lost, too.
        let is_its_own =
            |shard: &&FeedId| self.mode.is_static() && self.slot_of_shard(**shard) == worker.slot;
        let shards = self.feeds.keys().filter(is_its_own).count();
        strikes / u32::try_from(shards).unwrap_or(u32::MAX).max(1)
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
        if let (Some(even), Some(consumer)) = (&mut self.even, member.consumer.filter(|_| !member.may_load)) {
            even.joined.insert(consumer);
            self.version += 1;
        }
        // Readers that know of each other know whose states are needed if the dispatcher loses its own.
        if member.flight.is_none() && self.members.len() < READERS_NOTIFIED {
            self.version += 1;
        }
        let behind = self.resume.as_mut().and_then(|r| r.attempt.as_mut());
        if let (Some(attempt), Some(rank)) = (behind.or(self.begun_by.as_mut()), member.rank) {
            attempt.ranks.insert(rank);
        }
        self.members.insert(client, Member { since: self.version, ..member });
    }

    pub(super) fn client_took(&mut self, client: ClientId) {
        if let Some(member) = self.members.get_mut(&client) {
            member.took = true;
            self.takers.insert(client);
        }
        if self.members.len() <= READERS_NOTIFIED {
            self.version += 1;
        }
    }

    /// The user of a consumer that came without a state asks for an element: it reads along from now on.
    pub(super) fn client_asked(&mut self, client: ClientId) {
        let Some(member) = self.members.get_mut(&client).filter(|m| m.may_load) else { return };
        member.may_load = false;
        let consumer = member.consumer;
        if let (Some(even), Some(consumer)) = (&mut self.even, consumer) {
            even.joined.insert(consumer);
        }
        self.version += 1;
    }

    /// The user of a reader is about to get its first element: the states of the others name it from now on.
    pub(super) fn client_takes(&mut self, client: ClientId) {
        let is_notified = self.members.len() <= READERS_NOTIFIED;
        let version = self.version + u64::from(is_notified);
        if let Some(member) = self.members.get_mut(&client).filter(|m| m.takes_since == 0) {
            member.takes_since = version;
            self.version = version;
        }
    }

    /// Whether every consumer is present, or was.
    pub fn has_all_consumers(&self) -> bool {
        self.absent_consumers().next().is_none()
    }

    /// Consumers that have not come.
    pub fn absent_consumers(&self) -> impl Iterator<Item = u32> + '_ {
        let count = self.even.as_ref().map_or(0, |even| even.consumers.count);
        let has_read = |c: &u32| self.even.as_ref().is_some_and(|even| even.joined.contains(c));
        let is_there = |c: &u32| self.members.values().any(|m| m.consumer == Some(*c));
        (0..count).filter(move |c| !has_read(c) && !is_there(c))
    }

    /// Adds further states of readers from which the iteration continues.
    pub(super) fn states_given(&mut self, states: &Resume) {
        if let Some(resume) = &mut self.resume {
            // Whether they fit was found out before.
            drop(resume.extend(states));
        }
        self.begin_if_ready();
        self.version += 1;
    }

    /// The iteration continues without the missing states: rows that those readers took come again.
    pub(super) fn states_given_up(&mut self) {
        let Some(resume) = &mut self.resume else { return };
        let lost = |client| LostReader { client, rows: 0, unknown: false, not_back: true };
        self.lost_readers.extend(resume.missing_readers().into_iter().map(lost));
        resume.give_up_missing();
        self.begin_if_ready();
        self.version += 1;
    }

    /// Readers that nobody knew of have had time to come back.
    pub(super) fn unknown_readers_awaited(&mut self) {
        let Some(resume) = &mut self.resume else { return };
        resume.awaits_unknown = false;
        self.begin_if_ready();
        self.version += 1;
    }

    /// The reader that had this number at a dispatcher that lost its state.
    pub fn reattached(&self, was: ClientId) -> Option<ClientId> {
        self.members.iter().find(|(_, m)| m.was == Some(was)).map(|(client, _)| *client)
    }

    /// The reader that came with a call.
    pub fn opened_by(&self, request_id: &[u8]) -> Option<ClientId> {
        self.members.iter().find(|(_, m)| m.request_id.is_some_and(|id| id.is(request_id))).map(|(c, _)| *c)
    }

    /// Elements that the user of a consumer got before the iteration began.
    pub fn steps_before(&self, client: ClientId) -> u64 {
        let consumer = self.members.get(&client).and_then(|m| m.consumer);
        let resume = self.resume.as_deref().filter(|r| r.missing() == 0);
        consumer.and_then(|c| Some(resume?.steps_of(c))).unwrap_or(0)
    }

    /// What a reading of the epoch that goes on from states of this one has to know of them; see [`Resume::bases`].
    pub fn bases(&self) -> ReadingBases {
        let Some(resume) = self.resume.as_deref() else { return ReadingBases::default() };
        let mut bases = resume.bases.clone();
        bases.retain(&resume.readings());
        if resume.missing() == 0 {
            bases.insert(self.id, ReadingBase { steps: resume.steps.clone(), rows: resume.rows.clone() });
        }
        bases
    }

    /// Whether it waits for the state of a reader of an earlier iteration.
    pub fn awaits_reader(&self, earlier: IterationId, client: ClientId) -> bool {
        self.resume.as_deref().is_some_and(|r| {
            r.reattached && r.of == earlier && r.needed.contains(&client) && !r.given.contains(&client)
        })
    }

    /// Whether it waits for states of readers.
    pub fn awaits_states(&self) -> bool {
        self.resume.as_deref().is_some_and(|r| r.missing() > 0)
    }

    /// Under `off`: whether a worker that has no feed gets one. An epoch that goes on from states has the feeds that they name.
    /// States that name no feed and no row are of the epoch's start.
    pub fn adds_feeds(&self) -> bool {
        let names_nothing = |r: &Resume| r.taken.is_empty() && r.taken.listed().is_empty();
        self.resume.as_deref().is_none_or(|r| r.missing() == 0 && names_nothing(r))
    }

    /// Under `off`, the feeds are those that there were. Consumers that had got fewer elements than others are lagging.
    pub(super) fn begin_if_ready(&mut self) {
        let Some(resume) = self.resume.as_deref_mut().filter(|r| r.missing() == 0) else { return };
        if let Some(even) = &self.even {
            resume.complete_steps(even.consumers.count);
        }
        if self.mode == Mode::Off {
            for feed in resume.taken.listed().keys() {
                self.feeds.entry(FeedId(*feed)).or_default();
            }
        }
        let error = self.even.as_ref().and_then(|even| even.consumers.check_steps(&resume.steps).err());
        if let Some(error) = error {
            let failure = Failure::from(&error.context(self.describe()));
            return self.fail(failure);
        }
        if let Some(even) = &mut self.even {
            even.begin_at(&resume.steps);
        }
    }

    pub(super) fn create_task(&mut self, task: Task) {
        self.feeds.entry(task.feed).or_default();
        self.tasks.insert(task.id, task);
        self.version += 1;
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            self.failure = Some(failure);
            self.tasks.clear();
            self.feeds.clear();
            self.acknowledged.clear();
            self.members.retain(|_, m| m.flight.is_none());
            self.version += 1;
        }
    }
}
