//! The autocache decision: which point of a pipeline is materialised, and when.
//!
//! Pure: no async, clock, randomness, environment, logging or I/O. [`Autocache`] is the decision of one job. What happens
//! to the job goes in as an [`Event`], with its times inside; what follows comes out as [`Action`]s. The dispatcher feeds
//! it and carries the actions out; recorded events give the same actions again.
//!
//! - Tasks report what they measure ([`TaskReport`]). The *profile builder* makes the planner's profile of it.
//! - *Timing* says whether the observations of several sample windows are conclusive, or the time for deciding is over.
//! - A *warm start* decides before the first row: by the [`PlanRecord`] of earlier jobs, or by a running job's decision.
//! - *Replanning* compares every epoch with the decision, and changes it where it was wrong ([`ReplanState`]).
//! - A choice is carried out as a [`CachePlan`], which travels with leases.

mod choice;
mod coverage;
mod document;
mod encoding;
mod event;
mod facts;
mod hint;
mod horizon;
mod job;
mod plan;
mod plan_record;
mod probes;
mod profile_builder;
mod recording;
mod replan;
mod report;
mod timing;
mod warm_start;

pub use coverage::{Coverage, StoredParts, StoredSet};
pub use document::{AsDocument, Document};
pub use encoding::{Compression, Encoding, Format};
pub use event::{Action, Event, NoteLevel};
pub use facts::{
    ClientFacts, ClusterFacts, Decided, EpochReport, IterationFacts, JobSpec, Peer, SharingFacts, TaskFacts,
    TaskStage,
};
pub use hint::{HintDef, fixed_hint};
pub use horizon::is_last_reading;
pub use job::Autocache;
pub use plan::{CachePlan, GroupLease, SavePlan, SetPlan, SetTarget, SplitModes, SplitSetDigest, set_id};
pub use plan_record::{JobSummary, PlanRecord};
pub use recording::{Recorded, describe_replay, read_log, replay};
pub use replan::{OptionRate, ReplanState, profile_with_rates};
pub use report::{ProbeReport, StageKind, StageReport, TaskReport};

pub use caju_planner::Policy;
