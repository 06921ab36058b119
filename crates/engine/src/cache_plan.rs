//! What an iteration does at a hint: the cache plan, and how splits are named in sets.

pub use caju_autocache::{CachePlan, GroupLease, SavePlan, SetPlan, SetTarget, SplitModes, set_id};
use caju_sources::Split;
use caju_types::hash128;

/// The name of a split in a set: its key, with the repetition and the rows that are left of it.
pub fn cover(split: &Split) -> u128 {
    let (skip, take) = split.trim.unwrap_or((0, u64::MAX));
    hash128(format!("caju.cover/v1 {} {} {skip} {take}", split.key, split.repetition).as_bytes())
}
