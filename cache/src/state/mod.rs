//! What this process knows of each snapshot, and how that changes.
//!
//! [`SnapshotState`] holds the records that were read or written. `commits` adds records, `claim` gives the right to
//! write a split, `fold` writes manifests, `usage` counts what was read.

mod claim;
mod commits;
mod fold;
mod index;
mod registry;
mod snapshot_state;
mod usage;

pub(crate) use claim::{ClaimOutcome, OwnClaim};
pub use index::PartIndex;
pub(crate) use registry::Snapshots;
pub(crate) use snapshot_state::SnapshotState;
pub(crate) use usage::fold_usage_records;
