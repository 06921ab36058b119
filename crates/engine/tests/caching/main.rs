//! Caching is invisible: rows that are read from a hint are the rows that would have been computed, with the same
//! provenance, whatever parts exist and whatever damage they have.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, unreachable_pub, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod backfill;
mod damage;
mod differential;
mod ends;
mod generated;
mod probes;
mod reordered;
mod rows;
mod sets;
mod shared;
mod skipped_columns;
mod skips;
