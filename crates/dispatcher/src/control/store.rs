//! The state under its lock, and the journal under the state.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use caju_runtime::{OrderedMutex, random_secret};
use caju_types::{Error, IterationId, Result};

use crate::config::DispatcherConfig;
use crate::journal::{Journal, JournalWriter};
use crate::locks;
use crate::state::{LossLimits, State, Update, follow_ups, is_notable};

/// The state and its journal. A step decides under the lock, which takes microseconds; its result is reported once it is
/// durable.
pub(super) struct Store {
    state: OrderedMutex<State>,
    journal: JournalWriter,
    limits: LossLimits,
    /// The number of the last step that somebody waits for: the last one that did more than lease splits.
    last_notable: AtomicU64,
}

/// One step: changes are applied as they are made, and journaled together.
pub(crate) struct Txn<'a> {
    pub(crate) state: &'a mut State,
    limits: LossLimits,
    updates: Vec<Update>,
    touched: BTreeSet<IterationId>,
}

/// The numbers of steps that must be durable before the result of a step is reported.
#[derive(Debug, Clone, Copy)]
pub(super) struct Numbers {
    /// For a result that may depend on anything.
    pub(super) all: u64,
    /// For a result that does not depend on which splits are leased.
    pub(super) except_leases: u64,
}

impl Txn<'_> {
    pub(crate) fn apply(&mut self, update: Update) {
        self.state.apply(&update);
        self.updates.push(update);
    }

    /// Applies what must follow from the changes made so far.
    pub(crate) fn settle(&mut self) {
        for id in self.state.take_touched() {
            for mut update in follow_ups(self.state, id, self.limits) {
                draw_secret(&mut update);
                self.apply(update);
            }
            self.touched.insert(id);
        }
        self.touched.append(&mut self.state.take_touched());
    }
}

/// Updates are pure but for secrets: a new task gets one here. Without random numbers it has none, and nobody can read it.
pub(super) fn draw_secret(update: &mut Update) {
    if let Update::TaskCreated { secret, task, .. } = update {
        match random_secret() {
            Ok(drawn) => *secret = Some(drawn),
            Err(error) => tracing::error!(%task, %error, "a task without a secret cannot be read"),
        }
    }
}

impl Store {
    /// The state that a journal holds.
    ///
    /// # Errors
    /// `ResourceExhausted` if the journal's thread cannot be started.
    pub(super) fn open(
        journal: Box<dyn Journal>,
        replayed: Vec<Vec<Update>>,
        config: &DispatcherConfig,
    ) -> Result<Self> {
        let updates = replayed.iter().map(|group| group.len() as u64).sum();
        let state = State::replay(replayed);
        let journal = JournalWriter::start(journal, updates, config.timers.journal_timeout)?;
        let state = OrderedMutex::new(locks::STATE, state);
        Ok(Self { state, journal, limits: config.losses, last_notable: AtomicU64::new(0) })
    }

    /// Reads the state. What was read may not be durable yet and is not reported.
    pub(super) fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.state.lock())
    }

    /// Makes a step, then tidies up with the iterations that it touched, still under the lock. The result, and the numbers
    /// that must be durable before the result is reported.
    pub(super) fn transact<R>(
        &self,
        decide: impl FnOnce(&mut Txn<'_>) -> R,
        tidy: impl FnOnce(&State, &BTreeSet<IterationId>),
    ) -> (R, Numbers) {
        let mut state = self.state.lock();
        let mut txn =
            Txn { state: &mut state, limits: self.limits, updates: Vec::new(), touched: BTreeSet::new() };
        let result = decide(&mut txn);
        txn.settle();
        let Txn { updates, touched, .. } = txn;
        let is_notable = updates.iter().any(is_notable);
        let all = if updates.is_empty() { self.journal.last() } else { self.journal.enqueue(updates) };
        // Written and read under the lock of the state alone.
        if is_notable {
            self.last_notable.store(all, Ordering::Relaxed);
        }
        let except_leases = self.last_notable.load(Ordering::Relaxed);
        tidy(&state, &touched);
        drop(state);
        (result, Numbers { all, except_leases })
    }

    /// Waits until a step is durable.
    ///
    /// # Errors
    /// Those of the journal.
    pub(super) async fn durable(&self, number: u64) -> Result<()> {
        self.journal.durable(number).await
    }

    /// The number of the last step.
    pub(super) fn last(&self) -> u64 {
        self.journal.last()
    }

    /// The journal's name for people.
    pub(super) fn describe_journal(&self) -> &str {
        self.journal.describe()
    }

    /// Writes what is enqueued; no step can be made afterwards.
    pub(super) fn close(&self) {
        self.journal.close();
    }

    /// Waits until the journal fails, if it ever does.
    pub(super) async fn failed(&self) -> Error {
        self.journal.failed().await
    }
}
