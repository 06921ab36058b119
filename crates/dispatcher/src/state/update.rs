//! The updates: everything that ever changes the state, and the journal's only content.

use caju_autocache::{CachePlan, Document, ReplanState, SplitModes};
use caju_planner::{Decision, Profile};
use caju_types::{ClientId, DatasetId, IterationId, JobName, RowRanges, Secret, TaskId, WorkerId};
use serde::{Deserialize, Serialize};

use super::{
    AcknowledgedRows, Attempt, Dataset, Failure, FeedId, JobSpec, KnownOrder, Learnt, Remainder,
    RemainderAssignment, Resume, Save, SaveStage, SharedCounts, SplitRecord, State,
};

/// One change of the state. Times and identifiers travel inside, so that a replay is exact.
///
/// Variants and fields are a stored format (`caju.journal/v1`): add optional ones, never rename or remove.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Update {
    /// The first update of a journal. Identifiers start at `base_id`, which grows from one journal to the
    /// next, so that an identifier of a lost journal is never given out again.
    Founded {
        /// The first identifier for tasks, clients and iterations.
        base_id: u64,
    },
    /// A worker came, or came back under its address; then whatever it ran before is lost.
    WorkerRegistered {
        /// Its identifier; the same each time for one address.
        worker: WorkerId,
        /// `host:port` that clients dial.
        address: String,
        /// Enters the seed under `off`; unique among the workers that are not lost.
        slot: u32,
        /// Labels for people.
        tags: Vec<String>,
        /// CPU cores.
        cores: u32,
        /// The version of caju that runs there.
        version: String,
        /// What every call of this incarnation carries.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<Secret>,
        /// It came while another worker may have been dying.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unconfirmed: bool,
    },
    /// A worker is known not to be another one that came back.
    WorkerConfirmed {
        /// Which.
        worker: WorkerId,
        /// Its slot from now on: that of a worker that was lost meanwhile, or its own.
        slot: u32,
    },
    /// No new tasks for this worker.
    WorkerDraining {
        /// Which.
        worker: WorkerId,
    },
    /// A worker is silent, or left: its tasks are lost with it.
    WorkerLost {
        /// Which.
        worker: WorkerId,
        /// Why, for the messages of its tasks.
        reason: String,
        /// When, in milliseconds since the Unix epoch.
        at_ms: u64,
        /// It said that it leaves.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        left: bool,
    },
    /// A worker that was lost long ago is removed.
    WorkerForgotten {
        /// Which.
        worker: WorkerId,
    },
    /// A dataset is known from now on.
    DatasetRegistered {
        /// The dataset.
        dataset: Dataset,
    },
    /// The boundaries of a definition were learnt. They hold until its dataset is forgotten.
    BoundariesLearnt {
        /// Of what, and which.
        learnt: Learnt,
    },
    /// A job is known from now on.
    JobCreated {
        /// Its name.
        job: JobName,
        /// What it does.
        #[serde(flatten)]
        spec: JobSpec,
    },
    /// Something is to be saved, or saved again.
    SaveAdded {
        /// What and where.
        save: Box<Save>,
    },
    /// A save ended.
    SaveEnded {
        /// Its URL.
        url: String,
        /// How.
        stage: SaveStage,
    },
    /// An epoch of a job begins.
    IterationOpened {
        /// Its identifier.
        iteration: IterationId,
        /// The job.
        job: JobName,
        /// The epoch.
        epoch: u64,
        /// When, in milliseconds since the Unix epoch.
        at_ms: u64,
        /// In a static mode: the number of shards, each with a feed of its own.
        #[serde(default, skip_serializing_if = "super::is_default")]
        num_shards: u32,
        /// The number of workers that have these shards, if there are not as many as shards; else 0.
        #[serde(default, skip_serializing_if = "super::is_default")]
        num_workers: u32,
        /// What was taken before it began.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume: Option<Box<Resume>>,
        /// The launch of the user's program that restored the beginning of the epoch.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attempt: Option<Box<Attempt>>,
    },
    /// Further readers gave their states to an iteration that continues from states.
    StatesGiven {
        /// The iteration.
        iteration: IterationId,
        /// The states, as one.
        states: Box<Resume>,
    },
    /// An iteration continues without the states of readers that did not come back after a dispatcher had lost its state.
    StatesGivenUp {
        /// The iteration.
        iteration: IterationId,
    },
    /// Readers that nobody knew of have had time to come back after a dispatcher had lost its state.
    UnknownReadersAwaited {
        /// The iteration.
        iteration: IterationId,
    },
    /// The planner decided what a job stores and reads from now on.
    Decided {
        /// The job.
        job: JobName,
        /// What its iterations do; none: compute.
        plan: Option<Document<CachePlan>>,
        /// The whole decision (`caju.decision/v1`).
        decision: Document<Decision>,
        /// What it rests on (`caju.profile/v1`): planned again, it gives the same bytes.
        profile: Document<Profile>,
    },
    /// An epoch of a job was compared with its decision.
    #[serde(rename = "watched")]
    ReplanStateChanged {
        /// The job.
        job: JobName,
        /// The state from now on.
        #[serde(rename = "watch")]
        replan: ReplanState,
    },
    /// From now on the splits of an iteration are stored and read so.
    Planned {
        /// Which.
        iteration: IterationId,
        /// The plan; none: compute.
        plan: Option<Document<CachePlan>>,
    },
    /// A reader joins an iteration.
    ClientJoined {
        /// The reader.
        client: ClientId,
        /// What it reads.
        iteration: IterationId,
        /// For a Flight reader: the worker whose task it reads.
        flight: Option<WorkerId>,
        /// Whether it accepts that rows went to readers that are lost.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        allow_lost: bool,
        /// What every call of this client carries.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<Secret>,
        /// Workers in its own process.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        local: Vec<WorkerId>,
        /// Which consumer it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        consumer: Option<u32>,
        /// Its number at a dispatcher that lost its state.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        was: Option<ClientId>,
        /// It gets no task until its user asks for an element: it may leave, and come again with a state.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        may_load: bool,
        /// Which rank of its attempt it is, if it restored states and says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rank: Option<u32>,
        /// The call with which it came.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<Secret>,
        /// What it acknowledges is journaled.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        is_journaled: bool,
    },
    /// The user of a client took rows of splits that are not done.
    RowsAcknowledged {
        /// The client.
        client: ClientId,
        /// What it reads.
        iteration: IterationId,
        /// The rows, per split.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        rows: Vec<(u64, AcknowledgedRows)>,
        /// Elements that it has taken of the epoch.
        elements: u64,
    },
    /// The user of a consumer that came without a state has asked for an element.
    ClientAsked {
        /// The client.
        client: ClientId,
        /// What it reads.
        iteration: IterationId,
    },
    /// The user of a client gets its first element when the other readers have been notified of that.
    ClientTakes {
        /// The client.
        client: ClientId,
        /// What it reads.
        iteration: IterationId,
    },
    /// More workers have come in a reader's own process.
    LocalWorkersAdded {
        /// The reader.
        client: ClientId,
        /// What it reads.
        iteration: IterationId,
        /// The workers.
        workers: Vec<WorkerId>,
    },
    /// The user of a client has taken rows: from now on they are lost with the client.
    ClientTook {
        /// The client.
        client: ClientId,
        /// What it reads.
        iteration: IterationId,
    },
    /// A client has read a task to its end, and its user took every row of it.
    ClientTaken {
        /// The client.
        client: ClientId,
        /// The task.
        task: TaskId,
    },
    /// What a task emitted was compared with what clients acknowledged: it is done.
    TaskSettled {
        /// The task.
        task: TaskId,
        /// Rows that no client acknowledged, per split.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        missing: Vec<(u64, u64)>,
        /// Rows of its splits that the users of present clients took: they count if the client vanishes later.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        taken: Vec<(ClientId, u64)>,
    },
    /// The users of readers have taken every row of splits of a running task.
    SplitsCompleted {
        /// The task.
        task: TaskId,
        /// The splits.
        splits: Vec<u64>,
        /// Rows of them that the task emitted.
        emitted: u64,
        /// Rows of them that the users of present clients took.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        taken: Vec<(ClientId, u64)>,
    },
    /// A task has skipped splits: their rows have left its worker's window, and the job gets them from no other task either.
    SplitsSkipped {
        /// The task.
        task: TaskId,
        /// The splits, with their numbers of rows.
        splits: Vec<(u64, u64)>,
    },
    /// An iteration gets a task on a worker.
    TaskCreated {
        /// Its identifier.
        task: TaskId,
        /// The iteration.
        iteration: IterationId,
        /// Where it runs.
        worker: WorkerId,
        /// The row of splits that it draws from.
        feed: FeedId,
        /// What readers of it must know.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<Secret>,
    },
    /// A task's request for splits was answered.
    Leased {
        /// The task.
        task: TaskId,
        /// The number of the request, for retries.
        request_no: u64,
        /// Splits that were never leased before, in the order of the provider.
        fresh: Vec<SplitRecord>,
        /// Splits that waited, by index: they came back from lost tasks, or were set aside.
        requeued: Vec<u64>,
        /// Whether the task was answered that nothing more will come.
        end: bool,
        /// Its worker asks which elements go to lagging consumers.
        #[serde(default, rename = "asks_for_behind", skip_serializing_if = "std::ops::Not::not")]
        asks_for_lagging: bool,
    },
    /// Elements of a task go to lagging consumers.
    #[serde(rename = "behind_served")]
    LaggingServed {
        /// The task.
        task: TaskId,
        /// The number of the request, for retries.
        request_no: u64,
        /// The elements for each consumer; empty if none was lagging.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        counts: Vec<u64>,
    },
    /// Splits are skipped for now: tasks of other jobs that share were given them before. They wait in their feed.
    SplitsSetAside {
        /// The iteration.
        iteration: IterationId,
        /// The feed.
        feed: FeedId,
        /// Splits that were never leased before, in the order of the provider.
        splits: Vec<SplitRecord>,
    },
    /// The provider of a feed has no further split.
    FeedExhausted {
        /// The iteration.
        iteration: IterationId,
        /// The feed.
        feed: FeedId,
        /// In a static mode: a hash of the listing of the whole source.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        listing: Option<u64>,
        /// How the source differs from that of the epoch before, in words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source_changed: Option<String>,
    },
    /// A worker reported that a task has emitted everything.
    TaskEnded {
        /// The task.
        task: TaskId,
        /// Rows dropped under `on_error: skip`.
        rows_skipped: u64,
        /// How its splits were run.
        #[serde(default, skip_serializing_if = "super::is_default")]
        modes: SplitModes,
        /// Rows that it emitted, per split; absent if its worker did not count.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        emitted: Option<Vec<(u64, u64)>>,
        /// Rows that its worker wrote to Arrow Flight readers, per split; absent if its worker did not count.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to_flight: Option<Vec<(u64, u64)>>,
        /// Rows that it emitted of splits that are in no other field: they were complete before.
        #[serde(default, skip_serializing_if = "super::is_default")]
        forgotten: u64,
        /// What it computed and what it read from its worker's window; absent if it shared nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        shared: Option<SharedCounts>,
    },
    /// A worker abandoned a task whose rows are correct, as when it has to stop.
    TaskLost {
        /// The task.
        task: TaskId,
        /// Why.
        reason: String,
        /// Rows that it emitted, per split, if it had emitted all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        emitted: Option<Vec<(u64, u64)>>,
    },
    /// A task is a straggler at the end of its epoch: its splits go to other workers, and it gets no more of this epoch.
    TaskTakenOver {
        /// The task.
        task: TaskId,
        /// Why.
        reason: String,
    },
    /// A client has read a task to its end.
    ClientEnded {
        /// The client.
        client: ClientId,
        /// The task.
        task: TaskId,
        /// Rows that the task emitted, per split, as its worker reported to this client; absent if that was known before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        emitted: Option<Vec<(u64, u64)>>,
    },
    /// A client lost its connection to a task, or was notified that the task is lost.
    ClientLost {
        /// The client.
        client: ClientId,
        /// The task.
        task: TaskId,
        /// Everything that the client has received from it, per split.
        received: Vec<(u64, RowRanges)>,
        /// What the client saw.
        reason: String,
        /// Elements that it has received from it.
        #[serde(default, skip_serializing_if = "super::is_default")]
        elements: u64,
        /// How many rows splits of it have, as far as the client knows.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        sizes: Vec<(u64, u64)>,
    },
    /// A task of a job with consumers has emitted all whole rounds.
    #[serde(rename = "tail_reached")]
    RemainderReported {
        /// The task.
        task: TaskId,
        /// What it keeps.
        #[serde(rename = "tail")]
        remainder: Remainder,
    },
    /// Every task of an iteration has reported its remainder: who gets what.
    #[serde(rename = "tails_dealt")]
    RemaindersAssigned {
        /// The iteration.
        iteration: IterationId,
        /// Who gets what.
        #[serde(rename = "deal")]
        assignment: RemainderAssignment,
    },
    /// A client left an iteration, or fell silent.
    ClientGone {
        /// The client.
        client: ClientId,
        /// What it read.
        iteration: IterationId,
        /// What it has received of tasks that are not over, if it reported that.
        received: Vec<(TaskId, Vec<(u64, RowRanges)>)>,
        /// Tasks that it broke off: what it has not received of them goes to others, and counts against nobody.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        broken_off: Vec<TaskId>,
        /// Why it left, if it gave a reason.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
        /// Rows that count as done because this client received them, and that its user did not take, per split.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        returned: Vec<(u64, RowRanges)>,
        /// It vanished without leaving: the rows that its user had taken by then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vanished: Option<u64>,
        /// It vanished, and its user had taken more rows than it had reported to this dispatcher since its start.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unknown: bool,
        /// Of a consumer: the elements that it has received of tasks that are not over, if it reported that.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        elements: Vec<(TaskId, u64)>,
    },
    /// What a consumer that leaves knows of the order of rounds.
    RoundsKnown {
        /// What it reads.
        iteration: IterationId,
        /// What it knows.
        order: KnownOrder,
    },
    /// An iteration failed, for all its clients.
    IterationFailed {
        /// Which.
        iteration: IterationId,
        /// Why.
        failure: Failure,
    },
    /// The dispatcher was started again with another list of workers: who has the shards of a static mode.
    ShardsReassigned {
        /// The iteration.
        iteration: IterationId,
        /// As in [`Update::IterationOpened`].
        num_workers: u32,
    },
    /// An iteration without readers is removed; its job keeps the outcome.
    IterationDropped {
        /// Which.
        iteration: IterationId,
    },
    /// A dataset that nothing refers to is forgotten.
    DatasetForgotten {
        /// Which.
        dataset: DatasetId,
    },
    /// A job without readers for a long time is forgotten, with the epochs that it has finished.
    JobForgotten {
        /// Which.
        job: JobName,
    },
    /// The whole state, at the head of a compacted journal.
    Snapshot {
        /// The state.
        state: Box<State>,
    },
}
