//! The order in which the locks of a window are taken. [`caju_runtime::OrderedMutex`] checks it in builds with debug assertions.

use caju_runtime::LockRank;

/// What is in the window, and its members.
pub(super) const WINDOW: LockRank = LockRank::new(120, "the state of a sharing window");
/// The rows of one split in the window.
pub(super) const SPLIT_ROWS: LockRank = LockRank::new(121, "the rows of a shared split");
/// For how much of the time the rows of a task wait. It is a leaf: no other lock is taken while it is held.
pub(super) const WAITING_SHARE: LockRank = LockRank::leaf("how long the rows of a task wait");
