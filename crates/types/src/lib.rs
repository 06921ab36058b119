//! The types that all crates of caju share: identifiers, errors, units, row ranges, hashes, the memory budget of a chunk,
//! and the random numbers of a row.
//!
//! This crate depends on no other crate of the project, does no I/O and makes no decisions. A type belongs here only if at
//! least two crates must agree on it exactly.

pub mod budget;
mod bytes;
mod consumers;
mod draws;
mod error;
mod hash;
mod id;
pub mod json;
mod panic;
mod priority;
mod ranges;
mod rans;
mod reading_bases;
mod rice;
pub mod rng;
mod row_set;
mod secret;
mod suggest;
mod taken_rows;
mod units;

pub use consumers::{Balance, Uneven};
pub use draws::EpochDraws;
pub use error::{Error, ErrorKind, Result};
pub use hash::{Fingerprint, SplitKey, hash128, mix64};
pub use id::{ClientId, DatasetId, IterationId, JobName, TaskId, WorkerId};
pub use panic::panic_text;
pub use priority::{JobPriority, PriorityShares};
pub use ranges::RowRanges;
pub use reading_bases::{OutdatedState, ReadingBase, ReadingBases};
pub use row_set::RowSet;
pub use secret::Secret;
pub use suggest::{did_you_mean, shortened};
pub use taken_rows::{Listed, TakenRows, feed_and_position, split_index};
pub use units::{format_bytes, format_count, format_duration, parse_bytes, parse_duration};
