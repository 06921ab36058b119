//! The order of the locks of a task's cache. A thread takes them from the top down; see [`caju_runtime::OrderedMutex`].
//!
//! None of them is held across an await. What a task writes of a set ([`super::set::TaskSet`]) has a lock of tokio's that is: it
//! comes before all of these.

use caju_runtime::LockRank;

/// The splits that the task reads, and the rows that it buffers of them.
pub(super) const IN_FLIGHT: LockRank = LockRank::new(110, "the splits in flight of a task");
/// The snapshots that the task has opened.
pub(super) const SNAPSHOTS: LockRank = LockRank::new(111, "the snapshots of a task");
/// The time that splits waited for the store.
pub(super) const STALLED: LockRank = LockRank::new(112, "the stall budget of a task");
/// The failure that ends a save.
pub(super) const SAVE_FAILURE: LockRank = LockRank::new(113, "the failure of a save");
