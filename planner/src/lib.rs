//! The planner: a measured [`Profile`] in, a [`Decision`] and its explanation out; and how many workers it takes ([`scale`]).
//!
//! At every `autocache` hint a pipeline may be cut: its output there is stored once and read in every later
//! epoch. The planner predicts the rate of every such option and of computing, adds up the horizon that is
//! left, and takes at most one. It is a pure function: no clock, randomness, environment, logging or I/O, so
//! that a recorded profile gives the same decision, byte for byte, whenever it is replayed.
//!
//! # The model
//! A pipeline is overlapped, so an option's rate is the smallest of its ceilings: the cores over the CPU
//! that is still needed, each remaining stage's parallelism over its service time, the bandwidths of the
//! two stores and of the network over their bytes, and the consumer's own demand. A horizon is one writing
//! epoch (none for a snapshot that exists) and steady epochs after it. A byte budget that holds only a fraction
//! of the rows gives an option in which that fraction is read and the remainder computed. The shortest horizon
//! wins; within 2 % ([`TIE`]) the option that stores least, and of those that store as much the one whose second limit is further away.
//!
//! ```
//! use caju_planner::{Choice, Policy, Profile, plan};
//!
//! let profile = Profile::from_json(include_str!("../../tests/golden_plans/design-example.profile.json"))?;
//! let decision = plan(&profile, &Policy::Auto)?;
//! assert!(matches!(&decision.choice, Choice::Materialize { hint, .. } if hint == "source"));
//! println!("{}", decision.to_text());
//! println!("{}", decision.to_json());
//! # Ok::<(), caju_types::Error>(())
//! ```

mod candidate;
mod choice;
mod confidence;
mod decision;
mod explain;
mod format;
mod model;
mod plan;
mod policy;
mod profile;
mod reported_times;
mod scaling;
mod span;
mod text;
mod tuning;

pub use candidate::{Candidate, Limit, Obstacle, SnapshotOption, TIE, TimePerRow};
pub use choice::Choice;
pub use confidence::{Margin, ProbeErrorLoss, margins, probe_error_loss};
pub use decision::{DECISION_SCHEMA, Decision, PlanOption};
pub use explain::MEASURED_PREFIX;
pub use format::rate as format_rate;
pub use model::Model;
pub use plan::plan;
pub use policy::{POLICIES, Pick, Policy, gluster_read_ms};
pub use profile::{
    Budget, CacheStore, Cluster, Consumer, DEFAULT_EPOCHS, DEFAULT_JOBS, Encoding, Existing, Hint, Horizon,
    Measured, PROFILE_SCHEMA, Prices, Profile, Schema, Sharing, Source, SourceStore, Stage,
};
pub use reported_times::ReportedTimes;
pub use scaling::{
    CachewScaler, DEFAULT_MAX_WORKERS, Hpa, JobSample, JobShare, LocalWorkers, PoolJob, PoolScaling,
    SCALING_POLICIES, SCALING_SCHEMA, Scaling, ScalingCandidate, ScalingEvent, ScalingLoop, ScalingPolicy,
    ScalingSample, ScalingSettings, ScalingTarget, TargetRange, WorkerLimits, scale, scale_pool,
};
pub use tuning::{
    BufferBounds, QueueSample, ThreadSample, TunedJob, TunedSetting, Tuner, TuningBounds, TuningChange,
    TuningSample,
};
