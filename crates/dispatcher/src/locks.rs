//! The order of the dispatcher's locks. A thread takes them from the top down; see [`caju_runtime::OrderedMutex`].

use caju_runtime::LockRank;

/// The decision of one job: planning runs under it, and reads and changes the state. A thread holds one at a time.
pub(crate) const DECISION: LockRank = LockRank::new(10, "the autocache decision of a job");
/// The state.
pub(crate) const STATE: LockRank = LockRank::new(20, "the state");
/// When datasets and jobs were last used.
pub(crate) const USAGE: LockRank = LockRank::new(30, "the usage of datasets and jobs");
/// Listings of splits.
pub(crate) const LISTINGS: LockRank = LockRank::new(40, "the listings of splits");
/// The boundaries that workers learn.
pub(crate) const LEARNING: LockRank = LockRank::new(45, "the boundaries that workers learn");
/// Those who wait for news of iterations.
pub(crate) const NOTIFIERS: LockRank = LockRank::new(50, "the notifiers of iterations");
/// Where the orders of rounds are found.
pub(crate) const ROUNDS: LockRank = LockRank::new(55, "the orders of rounds");
/// The order of rounds of one iteration.
pub(crate) const ROUND_ORDER: LockRank = LockRank::new(56, "the order of an iteration's rounds");
/// What workers and clients report.
pub(crate) const REPORTS: LockRank = LockRank::new(60, "the reports of workers and clients");
/// Where the decisions of jobs are found.
pub(crate) const DECISIONS: LockRank = LockRank::new(70, "the decisions of all jobs");
/// The splits of iterations, for manifests.
pub(crate) const SPLIT_COUNTS: LockRank = LockRank::new(80, "the counts of splits");
/// The splits of one iteration.
pub(crate) const SPLIT_COUNT: LockRank = LockRank::new(81, "the count of an iteration's splits");
/// What was written to manifests and plan records.
pub(crate) const WRITTEN: LockRank = LockRank::new(82, "what was written to manifests");
/// Bound definitions.
pub(crate) const BOUND: LockRank = LockRank::new(90, "the bound definitions");
/// How far saves are.
pub(crate) const SAVES: LockRank = LockRank::new(91, "the progress of saves");
/// The size of the cache.
pub(crate) const CACHE_SIZE: LockRank = LockRank::new(92, "the size of the cache");
/// The loop that computes the target of workers.
pub(crate) const SCALING: LockRank = LockRank::new(93, "the target of workers");
/// The splits of a feed that can be leased. They are taken under the lock of the state.
pub(crate) const READY_SPLITS: LockRank = LockRank::new(95, "the splits that can be leased");
/// The groups of updates that the journal writes next. They are enqueued under the lock of the state.
pub(crate) const JOURNAL_QUEUE: LockRank = LockRank::new(96, "the queue of the journal");
/// The journal's thread. It is taken to join the thread, and nothing else is taken with it.
pub(crate) const JOURNAL_THREAD: LockRank = LockRank::new(97, "the thread of the journal");
/// Since when the journal is written. Nothing else is taken with it.
pub(crate) const JOURNAL_WRITING: LockRank = LockRank::new(98, "the write of the journal");
