//! What an iteration does at a hint: the cache plan, and how splits are named in sets.

pub use caju_autocache::{CachePlan, GroupLease, SavePlan, SetPlan, SetTarget, SplitModes, set_id};
use caju_sources::Split;
use caju_types::{SplitKey, hash128};

/// The name of a split in a set: its key, with the repetition and the rows that are left of it.
pub fn name_in_set(split: &Split) -> u128 {
    name_in_set_of(split.key, split.repetition, split.trim)
}

/// [`name_in_set`] of a split with this key, repetition and trim.
pub fn name_in_set_of(key: SplitKey, repetition: u32, trim: Option<(u64, u64)>) -> u128 {
    let (skip, take) = trim.unwrap_or((0, u64::MAX));
    hash128(format!("caju.name_in_set/v1 {key} {repetition} {skip} {take}").as_bytes())
}
