//! Runs a dataset definition over splits: sources, stages, provenance and profiling taps.
//!
//! [`bind`] turns a definition into a [`BoundPipeline`]; [`run_task`] runs it over the splits that a
//! [`SplitFeed`] leases, and yields [`Chunk`]s of rows that know where they came from.

mod bind;
mod caching;
mod context;
mod probing;
mod row;
pub mod source;
mod stats;
mod stream;
mod task;
mod typename;

pub use bind::{BoundPipeline, Hints, SetBase, bind, bind_with};
pub use caching::{CachePlan, GroupLease, SavePlan, SetPlan, SetTarget, SplitModes, cover, set_id};
pub use probing::{Findings, HintParts, HintProbe};
pub use stats::TaskStats;
pub use task::{LeasedSplit, SplitFeed, TaskOptions, TaskRun, run_task};
pub use typename::type_name;
