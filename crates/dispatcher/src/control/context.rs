//! What every part of the control plane uses: the settings, the clock, the state with its journal, what peers report, and who
//! waits for changes of an iteration.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use caju_runtime::{Clock, Tasks};
use caju_types::{Error, IterationId, Result};
use tokio::sync::watch;

use super::notifiers::Notifiers;
use super::peer_reports::PeerReports;
use super::process::Process;
use super::store::{Numbers, Store, Txn};
use crate::config::DispatcherConfig;
use crate::journal::Journal;
use crate::state::{Iteration, State, Update};

/// A part that keeps something for each iteration, outside the state. It is called under the lock of the state.
pub(super) trait IterationObserver: Send + Sync {
    /// The iteration changed. One that does not run any more has ended or was removed.
    fn changed(&self, _id: IterationId, _is_running: bool) {}

    /// The iteration was removed from the state.
    fn removed(&self, id: IterationId, state: &State);
}

/// What every part of the control plane uses.
///
/// A step decides under the lock of the state ([`Context::commit`]), which takes microseconds. Its result leaves when what was
/// decided, and all that it rests on, is durable.
pub(crate) struct Context {
    pub(crate) config: DispatcherConfig,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tasks: Tasks,
    pub(super) process: Process,
    pub(super) store: Store,
    pub(super) notifiers: Notifiers,
    pub(super) reports: PeerReports,
    observers: Vec<Arc<dyn IterationObserver>>,
    #[cfg(test)]
    task_lists: crate::tests::TaskLists,
}

impl Context {
    /// The context on what a journal holds, and those who have to know of changed iterations, in the order in which they are called.
    ///
    /// # Errors
    /// Those of the operator's secret and of the journal.
    pub(super) fn new(
        config: DispatcherConfig,
        clock: Arc<dyn Clock>,
        journal: Box<dyn Journal>,
        replayed: Vec<Vec<Update>>,
        observers: Vec<Arc<dyn IterationObserver>>,
    ) -> Result<Arc<Self>> {
        let is_new = replayed.is_empty();
        let process = Process::start(&config, clock.as_ref())?;
        let context = Arc::new(Self {
            process,
            store: Store::open(journal, replayed, &config)?,
            notifiers: Notifiers::default(),
            reports: PeerReports::new(Arc::clone(&clock), config.timers.clone()),
            observers,
            tasks: Tasks::new(),
            #[cfg(test)]
            task_lists: crate::tests::TaskLists::default(),
            config,
            clock,
        });
        if is_new {
            let base_id = context.process.first_id()?;
            context.transact(|txn| txn.apply(Update::Founded { base_id }));
        }
        Ok(context)
    }

    /// Makes a step under the lock of the state; the result, and the numbers that must be durable before the result is reported.
    pub(super) fn step<R>(&self, decide: impl FnOnce(&mut Txn<'_>) -> R) -> (R, Numbers) {
        self.store.transact(decide, |state, touched| self.notify(state, touched))
    }

    /// The same as [`Context::step`], for a result that may depend on anything.
    pub(super) fn transact<R>(&self, decide: impl FnOnce(&mut Txn<'_>) -> R) -> (R, u64) {
        let (result, numbers) = self.step(decide);
        (result, numbers.all)
    }

    /// Makes a step and waits until it is durable, whether it turned out well or not.
    pub(crate) async fn commit<R>(&self, decide: impl FnOnce(&mut Txn<'_>) -> Result<R>) -> Result<R> {
        let (result, number) = self.transact(decide);
        self.store.durable(number).await?;
        result
    }

    /// Reads the state, and waits until what was read is durable.
    pub(super) async fn read_durable<R>(&self, read: impl FnOnce(&State) -> R) -> Result<R> {
        let (result, number) = self.transact(|txn| read(txn.state));
        self.store.durable(number).await?;
        Ok(result)
    }

    /// The same as [`Context::read_durable`], for a result that does not depend on which splits are leased: it does not wait for
    /// leases of others to be durable. Leases come in thousands a second.
    pub(super) async fn read_durable_except_leases<R>(&self, read: impl FnOnce(&State) -> R) -> Result<R> {
        let (result, numbers) = self.step(|txn| read(txn.state));
        self.store.durable(numbers.except_leases).await?;
        Ok(result)
    }

    /// Notifies the waiters of changed iterations, and the parts that keep something for them.
    fn notify(&self, state: &State, touched: &BTreeSet<IterationId>) {
        #[cfg(test)]
        self.task_lists.check(state, touched);
        for id in touched {
            let iteration = state.iterations.get(id);
            let is_running = iteration.is_some_and(Iteration::is_running);
            self.observers.iter().for_each(|observer| observer.changed(*id, is_running));
            self.notifiers.notify(*id);
            if iteration.is_none() {
                self.notifiers.forget(*id);
                self.reports.lock().forget(*id);
                self.observers.iter().for_each(|observer| observer.removed(*id, state));
            }
        }
    }

    /// Waits for news of an iteration until a deadline of the monotonic clock; false at the deadline.
    ///
    /// # Errors
    /// `Unavailable` when the dispatcher shuts down.
    pub(super) async fn wait(&self, news: &mut watch::Receiver<()>, deadline: Duration) -> Result<bool> {
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
    pub(super) fn deadline(&self, wait_ms: u64) -> Duration {
        self.clock.now() + Duration::from_millis(wait_ms).min(self.config.timers.longest_poll)
    }

    /// A name for something of one user alone, never given before.
    pub(crate) fn unique_name(&self, prefix: &str) -> String {
        self.process.unique_name(prefix)
    }

    /// Milliseconds since the Unix epoch.
    pub(super) fn unix_ms(&self) -> u64 {
        u64::try_from(self.clock.unix_time().as_millis()).unwrap_or(0)
    }

    /// How often peers send heartbeats.
    pub(super) fn heartbeat_ms(&self) -> u64 {
        u64::try_from(self.config.timers.heartbeat.as_millis()).unwrap_or(u64::MAX)
    }
}
