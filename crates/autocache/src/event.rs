//! What happens to a job, as far as the autocache decision is concerned, and what follows from it.

use std::fmt;

use caju_planner::{Choice, Decision, Policy};
use caju_types::{IterationId, JobName, TaskId, WorkerId};
use serde::{Deserialize, Serialize};

use crate::PlanRecord;
use crate::coverage::{Coverage, StoredSet};
use crate::hint::HintDef;
use crate::job::Decided;
use crate::plan::SplitModes;
use crate::replan::ReplanState;
use crate::report::{StageReport, TaskReport};

/// A client that waits for a larger fraction of its time does not show how fast it could be. Where it shares its cores with
/// workers, what it does between two waits takes longer than it would alone, so that little can be inferred from little.
const MAX_WAIT_FOR_DEMAND: f64 = 0.25;

/// What a job is to the decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Its name.
    pub name: JobName,
    /// Who decides.
    pub policy: Policy,
    /// The only encoding that it may store rows in, if it names one.
    pub encoding: Option<String>,
    /// Epochs that it announced.
    pub epochs: Option<u64>,
    /// Whether it only measures: everything is computed, and the decision at the end of an epoch is reported and not
    /// carried out.
    pub profile_only: bool,
    /// Whether each worker reads all splits (processing mode `off`).
    pub each_worker_reads_all: bool,
    /// Bytes that the cache may hold.
    pub snapshot_budget_bytes: Option<u64>,
}

/// What a task is to the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFacts {
    /// The task.
    pub task: TaskId,
    /// Where it runs.
    pub worker: WorkerId,
    /// How far it is.
    pub stage: TaskStage,
}

/// How far a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskStage {
    /// It runs.
    Active,
    /// It has emitted everything.
    Ended,
    /// It was lost with its worker.
    Lost,
}

/// What the control plane knows of an iteration besides its reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IterationFacts {
    /// The iteration.
    pub iteration: IterationId,
    /// The epoch of the job.
    pub epoch: u64,
    /// Its tasks.
    pub tasks: Vec<TaskFacts>,
    /// Splits of all its feeds as far as they are listed; 0 while that is not known.
    pub splits_listed: u64,
    /// How often an epoch reads each split: once, or once per worker under `off`.
    pub readings: u64,
    /// What its clients reported.
    pub clients: Vec<ClientFacts>,
    /// Decisions of running jobs with the same pipeline, seed, encoding, mode and policy.
    pub peers: Vec<Peer>,
}

/// What a client reported of itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ClientFacts {
    /// The fraction of its time that its user waited for rows.
    pub wait_fraction: f64,
    /// Rows that it takes per second.
    pub rows_per_s: f64,
}

/// *Delivered* rows per second that these clients would take if they never waited; none if that cannot be inferred.
pub(crate) fn demand(clients: &[ClientFacts]) -> Option<f64> {
    if clients.iter().any(|c| c.wait_fraction > MAX_WAIT_FOR_DEMAND || c.rows_per_s <= 0.0) {
        return None;
    }
    let sum: f64 = clients.iter().map(|c| c.rows_per_s / (1.0 - c.wait_fraction)).sum();
    (sum > 0.0).then_some(sum)
}

/// The decision of a running job with the same pipeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// The other job.
    pub job: JobName,
    /// What it decided.
    pub decided: Decided,
}

/// The workers that take tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFacts {
    /// Their number.
    pub workers: u64,
    /// The cores of all of them.
    pub cores: u64,
}

/// How an epoch went, once all its workers have reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// The iteration.
    pub iteration: IterationId,
    /// The epoch of the job.
    pub epoch: u64,
    /// When it was opened, in milliseconds since the Unix epoch.
    pub opened_ms: u64,
    /// When its last task was reported, in milliseconds since the Unix epoch.
    pub ended_ms: u64,
    /// What its stages did, over all tasks.
    pub stages: Vec<StageReport>,
    /// How its splits were run.
    pub modes: SplitModes,
    /// Splits that were handed out.
    pub splits_issued: u64,
    /// Tasks that were not lost.
    pub tasks: u64,
    /// Workers that ran them.
    pub workers: u64,
    /// What its clients reported.
    pub clients: Vec<ClientFacts>,
}

/// What happens to one job. Times are inside, so that a replay is exact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// The job is there: new, or known from the journal.
    JobOpened {
        /// The job.
        job: Box<JobSpec>,
        /// The hints of its pipeline, from the source down.
        hints: Vec<HintDef>,
        /// The stages whose output differs from epoch to epoch, by the names of their reports.
        random_stages: Vec<String>,
        /// What it decided earlier.
        decided: Option<Decided>,
        /// What its epochs showed.
        replan: ReplanState,
    },
    /// An epoch of the job is opened.
    IterationOpened {
        /// The iteration.
        iteration: IterationId,
        /// The epoch of the job.
        epoch: u64,
        /// Decisions of running jobs with the same pipeline.
        peers: Vec<Peer>,
    },
    /// The plan record of the pipeline was read.
    PlanRecordRead {
        /// The record.
        record: Box<PlanRecord>,
    },
    /// The check of the storage goes on.
    StorageCheckProgressed {
        /// The iteration.
        iteration: IterationId,
        /// Splits that were counted so far.
        splits: Option<u64>,
        /// Complete sets that were found; absent if nothing new is known.
        sets: Option<Vec<StoredSet>>,
    },
    /// The storage was checked.
    StorageChecked {
        /// The iteration.
        iteration: IterationId,
        /// The epoch of the job.
        epoch: u64,
        /// What is stored.
        coverage: Coverage,
        /// The workers by then.
        cluster: ClusterFacts,
    },
    /// A running task reported what it measured.
    TaskReported {
        /// Its iteration.
        iteration: IterationFacts,
        /// The report.
        report: Box<TaskReport>,
    },
    /// A task ended. It counts as ended in the facts.
    TaskEnded {
        /// Its iteration.
        iteration: IterationFacts,
        /// Its final report.
        report: Box<TaskReport>,
    },
    /// An epoch ended, and all its workers have reported.
    EpochEnded {
        /// How it went.
        epoch: Box<EpochReport>,
    },
}

/// What follows from an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Look for what is stored at the hints, for a decision before the first row.
    CheckStorage {
        /// For this iteration.
        iteration: IterationId,
        /// Whether the plan record is wanted, too.
        read_plan_record: bool,
    },
    /// The decision of the job and of its running epochs.
    Decide {
        /// What was decided.
        decided: Decided,
        /// Why, for the log.
        reason: String,
    },
    /// Another decision of the job, from its next epoch on.
    ChangeDecision {
        /// The choice that is left.
        from: Choice,
        /// What was decided.
        decided: Decided,
    },
    /// What the job's epochs showed, to be journaled.
    SaveReplanState {
        /// The state.
        state: ReplanState,
    },
    /// Something for the log.
    Note {
        /// How much it matters.
        level: NoteLevel,
        /// One sentence.
        text: String,
    },
}

/// How much a note matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoteLevel {
    /// Something does not work as it should.
    Warning,
    /// For whoever looks for the reason of a decision.
    Debug,
}

impl Action {
    pub(crate) fn debug(text: impl Into<String>) -> Self {
        Self::Note { level: NoteLevel::Debug, text: text.into() }
    }

    pub(crate) fn warning(text: impl Into<String>) -> Self {
        Self::Note { level: NoteLevel::Warning, text: text.into() }
    }
}

/// One line.
impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CheckStorage { iteration, read_plan_record } => {
                let record = if *read_plan_record { " and read the plan record" } else { "" };
                write!(f, "check the storage for {iteration}{record}")
            }
            Self::Decide { decided, reason } => write!(f, "decide {}: {reason}", choice_of(decided)),
            Self::ChangeDecision { from, decided } => {
                let why = decided.decision.value().map_or("", |d: &Decision| &d.reason);
                write!(f, "change the decision from {from} to {}: {why}", choice_of(decided))
            }
            Self::SaveReplanState { state } => write!(
                f,
                "save the replan state: computed {:?}, read {:?}, worse {}, missed {}, changes {}",
                state.computed_rate, state.read_rate, state.epochs_worse, state.epochs_missed, state.changes
            ),
            Self::Note { level: NoteLevel::Warning, text } => write!(f, "warning: {text}"),
            Self::Note { level: NoteLevel::Debug, text } => write!(f, "note: {text}"),
        }
    }
}

fn choice_of(decided: &Decided) -> String {
    let choice = decided.decision.value().map(|d| d.choice.to_string());
    let plan = match &decided.plan {
        Some(_) => "",
        None if choice.as_deref() == Some("compute") => "",
        None => " (not carried out)",
    };
    format!("{}{plan}", choice.as_deref().unwrap_or("?"))
}
