//! The order of the control plane's locks. A thread takes them from the top down; see [`caju_runtime::OrderedMutex`].

use caju_runtime::LockRank;

/// The decision of one job: planning runs under it, and reads and changes the state. A thread holds one at a time.
pub(super) const DECISION: LockRank = LockRank::new(10, "the autocache decision of a job");
/// The state.
pub(super) const STATE: LockRank = LockRank::new(20, "the state");
/// When datasets and jobs were last used.
pub(super) const USAGE: LockRank = LockRank::new(30, "the usage of datasets and jobs");
/// Listings of splits.
pub(super) const LISTINGS: LockRank = LockRank::new(40, "the listings of splits");
/// Those who wait for news of iterations.
pub(super) const NOTIFIERS: LockRank = LockRank::new(50, "the notifiers of iterations");
/// Where the orders of rounds are found.
pub(super) const ROUNDS: LockRank = LockRank::new(55, "the orders of rounds");
/// What workers and clients report.
pub(super) const REPORTS: LockRank = LockRank::new(60, "the reports of workers and clients");
/// Where the decisions of jobs are found.
pub(super) const DECISIONS: LockRank = LockRank::new(70, "the decisions of all jobs");
/// The splits of iterations, for manifests.
pub(super) const SPLIT_COUNTS: LockRank = LockRank::new(80, "the counts of splits");
/// The splits of one iteration.
pub(super) const SPLIT_COUNT: LockRank = LockRank::new(81, "the count of an iteration's splits");
/// What was written to manifests and plan records.
pub(super) const WRITTEN: LockRank = LockRank::new(82, "what was written to manifests");
/// Bound definitions.
pub(super) const BOUND: LockRank = LockRank::new(90, "the bound definitions");
/// How far saves are.
pub(super) const SAVES: LockRank = LockRank::new(91, "the progress of saves");
/// The size of the cache.
pub(super) const CACHE_SIZE: LockRank = LockRank::new(92, "the size of the cache");
/// The loop that computes the target of workers.
pub(super) const SCALING: LockRank = LockRank::new(93, "the target of workers");
