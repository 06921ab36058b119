//! What happens to a job, as far as the autocache decision is concerned, and what follows from it.

use std::fmt;

use caju_planner::{Choice, Decision};
use caju_types::IterationId;
use serde::{Deserialize, Serialize};

use crate::PlanRecord;
use crate::coverage::{Coverage, StoredSet};
use crate::facts::{ClusterFacts, Decided, EpochReport, IterationFacts, JobSpec, Peer};
use crate::hint::HintDef;
use crate::replan::ReplanState;
use crate::report::TaskReport;

/// What happens to one job. Times are inside, so that a replay is exact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Event {
    /// A job was opened, or was restored from the journal.
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
    /// The check of the storage made progress.
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
    /// Details that explain a decision, for debugging.
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
            Self::SaveReplanState { state } => write!(f, "save the replan state: {state}"),
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
