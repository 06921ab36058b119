//! Facts: what the control plane knows of a job, its iterations and their epochs, as events carry it.

use caju_planner::{Decision, Policy, Profile};
use caju_types::{IterationId, JobName, TaskId, WorkerId};
use serde::{Deserialize, Serialize};

use crate::document::Document;
use crate::encoding::Encoding;
use crate::plan::{CachePlan, SplitModes};
use crate::report::StageReport;

/// The demand of a client that waits for a larger fraction of its time cannot be inferred. Where such a client shares cores
/// with workers, its own work between two waits takes longer than it would alone, so a short working time says little about
/// its speed.
const MAX_WAIT_FOR_DEMAND: f64 = 0.25;

/// What a job is to the decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Its name.
    pub name: JobName,
    /// Who decides.
    pub policy: Policy,
    /// The only encoding that it may store rows in, if it names one.
    pub encoding: Option<Encoding>,
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
    /// The jobs that run now and share rows with this one; none if there is no other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingFacts>,
}

/// Jobs that share rows while they run: they are one computation, and count as one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharingFacts {
    /// The jobs, this one included.
    pub jobs: u64,
    /// The last hint up to which all of them have the same rows; none where they have the same rows up to the first
    /// cross-split stage.
    pub hint: Option<String>,
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
    /// The jobs that shared rows with this one at the end of the epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sharing: Option<SharingFacts>,
}

/// A decision with what it rests on, and the plan that carries it out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decided {
    /// What iterations do; none: compute.
    pub plan: Option<Document<CachePlan>>,
    /// The decision (`caju.decision/v1`).
    pub decision: Document<Decision>,
    /// What it rests on (`caju.profile/v1`): planned again, it gives the same bytes.
    pub profile: Document<Profile>,
}

impl Decided {
    pub(crate) fn new(plan: Option<CachePlan>, decision: Decision, profile: Profile) -> Self {
        Self { plan: plan.map(Document::new), decision: decision.into(), profile: profile.into() }
    }
}
