//! The cache never shows (I1): what is stored at a hint and read again gives the rows that would have been
//! computed, with the same provenance, however much of it is there and whatever is wrong with it.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, unreachable_pub, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;

mod damage;
mod differential;
mod ends;
mod generated;
mod kept;
mod probes;
mod rows;
mod sets;
mod skips;
