//! Runs a dataset definition over splits: stages, provenance and profiling.
//!
//! [`bind`] turns a definition into a [`BoundPipeline`]; [`run_task`] runs it over the splits that a
//! [`SplitFeed`] leases, and yields [`Chunk`](caju_wire::Chunk)s of rows with their provenance.

mod bind;
mod busy;
mod cache_plan;
mod caching;
mod context;
mod hidden;
mod hint;
mod learning;
mod lease;
mod probing;
mod row;
mod row_checks;
mod shard;
mod shard_numbers;
mod sharing;
mod split_sizes;
mod stats;
mod stream;
mod task;
mod typename;

pub use bind::{BoundPipeline, Hints, SetBase, StageOrder, bind, bind_with};
pub use busy::BusyClock;
pub use cache_plan::{
    CachePlan, GroupLease, SavePlan, SetPlan, SetTarget, SplitModes, name_in_set, name_in_set_of, set_id,
};
pub use learning::learn_boundaries;
pub use lease::{LeasedSplit, SplitFeed};
pub use probing::{Findings, HintParts, HintProbe};
pub use row_checks::{RowChecks, RowChecksum};
pub use shard::{ListingDigest, Shard, ShardBy, ShardSplits};
pub use sharing::{
    Demand, FullOutput, SharedCounts, SharingJob, SharingLag, SharingMember, SharingPoint, SharingSettings,
    SharingWindow, SpillFolder, WindowUsage,
};
pub use stats::TaskStats;
pub use task::{ReadLimit, TaskOptions, TaskRun, default_readers, run_task};
pub use typename::type_name;
