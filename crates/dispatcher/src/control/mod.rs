//! The control plane: what a call, a silence or a failure means.
//!
//! [`Core`] is made of parts, each with what it keeps under a lock of its own; `locks` states the order of the locks. A step
//! decides under the lock of the state ([`store::Store`]), which takes microseconds; the answer leaves when what was decided,
//! and all that it rests on, is durable. Who waits for news of an iteration, or for its splits, waits
//! at its notifier.

mod acknowledged_rows;
mod acknowledgements;
mod attempts;
mod autocache;
mod beginnings;
mod cache_size;
mod clients;
mod consumers;
mod datasets;
mod fairness;
mod holders;
mod iterations;
mod jobs;
mod joining;
mod learning;
mod listing;
mod listings;
mod manifests;
mod notifiers;
mod open;
mod peer_reports;
mod policies;
mod precedence;
mod process;
mod reader_calls;
mod reattach;
mod reopen;
mod reports;
mod resume;
mod rounds;
mod row_checksums;
mod saves;
mod scaling;
pub(crate) mod secrets;
mod served;
mod sets;
mod shards;
mod sharing;
mod silence;
mod snapshots;
mod split_counts;
mod splits;
mod status;
mod store;
mod stragglers;
mod targets;
mod task_speeds;
pub(crate) mod usage;
mod workers;
mod written;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use caju_runtime::{Clock, Tasks};
use caju_types::{ClientId, Error, IterationId, Result};
use tokio::sync::watch;

use crate::catalog::Catalog;
use crate::config::DispatcherConfig;
use crate::journal::Journal;
use crate::state::{Iteration, State, Update};
use autocache::AutocacheJobs;
#[cfg(test)]
pub(crate) use clients::task_infos;
use datasets::Datasets;
use learning::Learning;
use listings::Listings;
use notifiers::Notifiers;
use peer_reports::PeerReports;
use process::Process;
use rounds::RoundOrders;
use saves::SaveProgress;
pub use saves::Saves;
use scaling::Scaling;
use snapshots::Snapshots;
use store::Store;
pub(crate) use store::Txn;

/// The longest pause between two checks of the present readers of a dispatcher that drains.
const MAX_DRAIN_POLL: Duration = Duration::from_millis(100);

/// The control plane of one dispatcher.
pub(crate) struct Core {
    pub(crate) config: DispatcherConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tasks: Tasks,
    process: Arc<Process>,
    store: Store,
    notifiers: Notifiers,
    rounds: RoundOrders,
    listings: Listings,
    datasets: Datasets,
    learning: Learning,
    snapshots: Snapshots,
    reports: PeerReports,
    autocache: AutocacheJobs,
    saves: SaveProgress,
    scaling: Scaling,
    #[cfg(test)]
    task_lists: crate::tests::TaskLists,
}

impl Core {
    /// A control plane on what a journal holds.
    ///
    /// # Errors
    /// Those of the operator's secret and of the journal.
    pub(crate) fn new(
        config: DispatcherConfig,
        catalog: Arc<dyn Catalog>,
        clock: Arc<dyn Clock>,
        journal: Box<dyn Journal>,
        replayed: Vec<Vec<Update>>,
    ) -> Result<Arc<Self>> {
        let is_new = replayed.is_empty();
        let process = Arc::new(Process::start(&config, clock.as_ref())?);
        let snapshots =
            Snapshots::new(&config, Arc::clone(&catalog), Arc::clone(&clock), Arc::clone(&process));
        let core = Arc::new(Self {
            store: Store::open(journal, replayed, &config)?,
            autocache: AutocacheJobs::new(config.record_autocache_events.as_deref()),
            reports: PeerReports::new(Arc::clone(&clock), config.timers.clone()),
            notifiers: Notifiers::default(),
            rounds: RoundOrders::default(),
            listings: Listings::default(),
            datasets: Datasets::new(catalog),
            learning: Learning::default(),
            saves: SaveProgress::default(),
            scaling: Scaling::new(&config, clock.now()),
            tasks: Tasks::new(),
            #[cfg(test)]
            task_lists: crate::tests::TaskLists::default(),
            snapshots,
            process,
            config,
            clock,
        });
        if is_new {
            let base_id = core.process.first_id()?;
            core.transact(|txn| txn.apply(Update::Founded { base_id }));
        }
        Ok(core)
    }

    /// A copy of the state.
    #[cfg(test)]
    pub(crate) fn snapshot(&self) -> State {
        self.store.read(State::clone)
    }

    /// Opens no epoch any more.
    pub(crate) fn open_no_more(&self) {
        self.process.drain();
    }

    /// Opens no epoch any more, and waits until no present reader is in the middle of one; false at the bound.
    pub(crate) async fn drain(&self, bound: Duration) -> bool {
        self.open_no_more();
        let until = self.clock.now() + bound;
        let pause = self.config.timers.check_every.min(MAX_DRAIN_POLL);
        while self.is_read() {
            if self.clock.now() >= until {
                return false;
            }
            self.clock.sleep(pause).await;
        }
        true
    }

    /// Whether some reader that reported lately is in the middle of an epoch.
    fn is_read(&self) -> bool {
        let (now, alive) = (self.clock.now(), self.config.timers.heartbeat * 3);
        self.store.read(|state| {
            let reports = self.reports.lock();
            let present = |id: IterationId, client: ClientId| {
                reports.clients.get(&(id, client)).is_some_and(|c| now.saturating_sub(c.at) <= alive)
            };
            let read = |i: &Iteration| i.failure.is_none() && i.own_members().any(|c| present(i.id, c));
            state.iterations.values().any(read)
        })
    }

    /// Writes what is enqueued; nothing can be decided afterwards.
    pub(crate) fn close_journal(&self) {
        self.store.close();
    }

    /// Closes the cache in order.
    pub(crate) async fn close_cache(&self, bound: Duration) {
        self.snapshots.close(bound).await;
    }

    /// Waits until the journal fails, if it ever does.
    pub(crate) async fn journal_failed(&self) -> Error {
        self.store.failed().await
    }

    /// Makes a step under the lock of the state; the result, and the number that must be durable before the result is reported.
    fn transact<R>(&self, decide: impl FnOnce(&mut Txn<'_>) -> R) -> (R, u64) {
        let (result, numbers) = self.store.transact(decide, |state, touched| self.tidy(state, touched));
        (result, numbers.all)
    }

    /// Makes a step and waits until it is durable, whether it turned out well or not.
    pub(crate) async fn commit<R>(&self, decide: impl FnOnce(&mut Txn<'_>) -> Result<R>) -> Result<R> {
        let (result, number) = self.transact(decide);
        self.store.durable(number).await?;
        result
    }

    /// Reads the state, and waits until what was read is durable.
    pub(crate) async fn read_durable<R>(&self, read: impl FnOnce(&State) -> R) -> Result<R> {
        let (result, number) = self.transact(|txn| read(txn.state));
        self.store.durable(number).await?;
        Ok(result)
    }

    /// The same as [`Core::commit`], for a result that does not depend on which splits are leased: it does not wait for
    /// leases of others to be durable. Leases come in thousands a second.
    pub(crate) async fn commit_except_leases<R>(
        &self,
        decide: impl FnOnce(&mut Txn<'_>) -> Result<R>,
    ) -> Result<R> {
        let (result, numbers) = self.store.transact(decide, |state, touched| self.tidy(state, touched));
        self.store.durable(numbers.except_leases).await?;
        result
    }

    /// The same as [`Core::read_durable`], for a result that does not depend on which splits are leased.
    pub(crate) async fn read_durable_except_leases<R>(&self, read: impl FnOnce(&State) -> R) -> Result<R> {
        self.commit_except_leases(|txn| Ok(read(txn.state))).await
    }

    /// Notifies the waiters of changed iterations, and drops data of iterations that have ended.
    fn tidy(&self, state: &State, touched: &BTreeSet<IterationId>) {
        #[cfg(test)]
        self.task_lists.check(state, touched);
        for id in touched {
            let iteration = state.iterations.get(id);
            if !iteration.is_some_and(Iteration::is_running) {
                self.listings.stop(*id);
                self.snapshots.counts.settle(*id);
            }
            self.notifiers.notify(*id);
            self.rounds.notify(*id);
            if iteration.is_none() {
                self.notifiers.forget(*id);
                self.rounds.forget(*id);
                self.reports.lock().forget(*id);
                self.autocache.retain_jobs_of(state);
                self.snapshots.counts.forget(*id);
            }
        }
    }

    /// Waits for news of an iteration until a deadline of the monotonic clock; false at the deadline.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher shuts down.
    async fn wait(&self, news: &mut watch::Receiver<()>, deadline: Duration) -> Result<bool> {
        let left = deadline.saturating_sub(self.clock.now());
        if left.is_zero() {
            return Ok(false);
        }
        tokio::select! {
            _ = news.changed() => Ok(true),
            () = self.clock.sleep(left) => Ok(false),
            () = self.tasks.stopped() => Err(Error::unavailable(
                "the dispatcher is shutting down; try again when it is back",
            )),
        }
    }

    /// When a call that wants to wait this long has to answer.
    fn deadline(&self, wait_ms: u64) -> Duration {
        self.clock.now() + Duration::from_millis(wait_ms).min(self.config.timers.longest_poll)
    }

    /// A name for something of one user alone, never given before.
    pub(crate) fn unique_name(&self, prefix: &str) -> String {
        self.process.unique_name(prefix)
    }

    /// Milliseconds since the Unix epoch.
    fn unix_ms(&self) -> u64 {
        u64::try_from(self.clock.unix_time().as_millis()).unwrap_or(0)
    }
}
