//! What an iteration does at a hint: the cache plan, and how splits are named in sets.

pub use caju_autocache::{CachePlan, GroupLease, SavePlan, SetPlan, SetTarget, SplitModes, set_id};
use caju_sources::Split;
use caju_types::{SplitKey, hash128};

/// The name of a split in a set: its key, with the repetition and the rows that are left of it.
pub fn cover(split: &Split) -> u128 {
    cover_of(split.key, split.repetition, split.trim)
}

/// [`cover`] of a split with this key, repetition and trim.
pub fn cover_of(key: SplitKey, repetition: u32, trim: Option<(u64, u64)>) -> u128 {
    let (skip, take) = trim.unwrap_or((0, u64::MAX));
    hash128(format!("caju.cover/v1 {key} {repetition} {skip} {take}").as_bytes())
}
