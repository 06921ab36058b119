//! Tests of the control plane as a whole, on a catalog without files.

mod definitions;
mod delivered;
mod exactly_once;
mod failing_journal;
mod failures;
pub(crate) mod fake;
mod flight;
mod incomplete;
mod iterations;
mod lagging;
mod learning;
mod limits;
mod losses;
mod lost_consumers;
mod many_peers;
mod naming;
mod plans;
mod protocol;
mod reattach;
mod recovery;
mod replanning;
mod restored_beginning;
mod resume;
mod scaling;
mod secrets;
mod service;
mod shards;
mod sharing;
mod simulated_scale;
mod speed;
mod stragglers;
mod task_lists;

pub(crate) use task_lists::TaskLists;
