//! The order in which a task takes the locks of its cache.
//!
//! 1. The state of its set ([`super::set::TaskSet`]): a lock of tokio's, which has no rank. It is the only one that is held
//!    across an await.
//! 2. The locks below, from the top down. [`caju_runtime::OrderedMutex`] checks their order in builds with debug assertions.
//!
//! Those behind [`IN_FLIGHT`] are leaves: each is released before another one is taken.

use caju_runtime::LockRank;

/// The splits that the task reads, and the rows that it buffers of them.
pub(super) const IN_FLIGHT: LockRank = LockRank::new(110, "the splits in flight of a task");
/// The snapshots that the task has opened.
pub(super) const SNAPSHOTS: LockRank = LockRank::new(111, "the snapshots of a task");
/// The time that splits waited for the store.
pub(super) const STALLED: LockRank = LockRank::new(112, "the stall budget of a task");
/// The failure that ends a save.
pub(super) const SAVE_FAILURE: LockRank = LockRank::new(113, "the failure of a save");
