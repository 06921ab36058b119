//! The locks of an open cache, and their order.
//!
//! 1. The locks of tokio's, which are held across awaits and have no rank. `Admission::turn` is taken before
//!    `SnapshotState::refreshing`, since an eviction lists the snapshots that it may evict. Whoever holds
//!    `SnapshotState::refreshing`, `SnapshotState::folding` or `Leases::writing` takes no other one of them.
//! 2. The locks below. Each is a leaf: it is released before another one is taken, and before an await. They have one rank,
//!    so that [`caju_runtime::OrderedMutex`] finds every thread that takes two of them, in builds with debug assertions. A
//!    task that awaits with one of them does not compile, because it could not move to another thread.

use caju_runtime::LockRank;

/// Behind the locks of the dispatcher and of the engine's tasks, which call the cache.
const LEAF: u16 = 130;

/// The states of all snapshots.
pub(crate) const SNAPSHOTS: LockRank = LockRank::new(LEAF, "the snapshots of a cache");
/// The listing of one snapshot, with its records.
pub(crate) const LISTING: LockRank = LockRank::new(LEAF, "the listing of a snapshot");
/// The splits of one snapshot that this process writes.
pub(crate) const WRITTEN_SPLITS: LockRank = LockRank::new(LEAF, "the splits of a snapshot that are written");
/// What this process read of one snapshot.
pub(crate) const USAGE: LockRank = LockRank::new(LEAF, "the usage of a snapshot");
/// The claim that one writer creates.
pub(crate) const CLAIM: LockRank = LockRank::new(LEAF, "the claim of a writer");
/// The snapshots that this process uses.
pub(crate) const USED_SNAPSHOTS: LockRank = LockRank::new(LEAF, "the snapshots in a lease");
/// The leases of other processes.
pub(crate) const OBSERVED_LEASES: LockRank = LockRank::new(LEAF, "the observed leases");
/// Claims that are to be deleted.
pub(crate) const STALE_CLAIMS: LockRank = LockRank::new(LEAF, "the stale claims");
/// The size of the root.
pub(crate) const ROOT_SIZE: LockRank = LockRank::new(LEAF, "the size of a cache root");
/// The snapshots that were refused for lack of space.
pub(crate) const REFUSED_SNAPSHOTS: LockRank = LockRank::new(LEAF, "the snapshots without space");
/// Why a part was last not stored.
pub(crate) const PUT_FAILURE: LockRank = LockRank::new(LEAF, "the last failure of a put");
/// The files of the disk tier.
pub(crate) const DISK_TIER: LockRank = LockRank::new(LEAF, "the files of a disk tier");
/// The error that ends one reader of a Parquet file.
pub(crate) const READ_FAILURE: LockRank = LockRank::new(LEAF, "the failure of a Parquet reader");
/// Roots that cannot be written, for warnings.
pub(crate) const UNWRITABLE_ROOTS: LockRank = LockRank::new(LEAF, "the roots that cannot be written");
