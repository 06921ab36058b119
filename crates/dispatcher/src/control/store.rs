//! The state under its lock, and the journal under the state.

use std::collections::BTreeSet;

use caju_runtime::{OrderedMutex, random_secret};
use caju_types::{Error, IterationId, Result};

use super::locks;
use crate::journal::{Journal, JournalWriter};
use crate::state::{State, Update, follow_ups};

/// Updates after which the journal is compacted.
const COMPACT_AFTER: u64 = 20_000;
/// Bytes after which the journal is compacted, unless the datasets in it are larger.
const COMPACT_AFTER_BYTES: u64 = 64 << 20;

/// The state and its journal. A step decides under the lock, which takes microseconds; its result is reported once it is
/// durable.
pub(super) struct Store {
    inner: OrderedMutex<Inner>,
    journal: JournalWriter,
}

struct Inner {
    state: State,
    updates_since_snapshot: u64,
    bytes_since_snapshot: u64,
}

/// One step: changes are applied as they are made, and journaled together.
pub(crate) struct Txn<'a> {
    pub(crate) state: &'a mut State,
    updates: Vec<Update>,
    touched: BTreeSet<IterationId>,
}

impl Txn<'_> {
    pub(crate) fn apply(&mut self, update: Update) {
        self.state.apply(&update);
        self.updates.push(update);
    }

    /// Applies what must follow from the changes made so far.
    pub(crate) fn settle(&mut self) {
        for id in self.state.take_touched() {
            for mut update in follow_ups(self.state, id) {
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
    pub(super) fn open(journal: Box<dyn Journal>, replayed: &[Vec<Update>]) -> Result<Self> {
        let mut state = State::default();
        replayed.iter().flatten().for_each(|u| state.apply(u));
        state.take_touched();
        let journal = JournalWriter::start(journal)?;
        if replayed.len() as u64 > COMPACT_AFTER / 10 {
            journal.compact(state.clone());
        }
        let inner = Inner { state, updates_since_snapshot: 0, bytes_since_snapshot: 0 };
        Ok(Self { inner: OrderedMutex::new(locks::STATE, inner), journal })
    }

    /// Reads the state. What was read may not be durable yet and is not reported.
    pub(super) fn read<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.inner.lock().state)
    }

    /// Makes a step, then tidies up with the iterations that it touched, still under the lock. The result, and the number
    /// that must be durable before the result is reported.
    pub(super) fn transact<R>(
        &self,
        decide: impl FnOnce(&mut Txn<'_>) -> R,
        tidy: impl FnOnce(&State, &BTreeSet<IterationId>),
    ) -> (R, u64) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut txn = Txn { state: &mut inner.state, updates: Vec::new(), touched: BTreeSet::new() };
        let result = decide(&mut txn);
        txn.settle();
        let Txn { updates, touched, .. } = txn;
        let number = if updates.is_empty() {
            self.journal.last()
        } else {
            inner.updates_since_snapshot += updates.len() as u64;
            inner.bytes_since_snapshot += updates.iter().map(Update::journal_bytes).sum::<u64>();
            self.journal.enqueue(updates)
        };
        if inner.updates_since_snapshot > COMPACT_AFTER
            || inner.bytes_since_snapshot > COMPACT_AFTER_BYTES.max(inner.state.dataset_bytes())
        {
            (inner.updates_since_snapshot, inner.bytes_since_snapshot) = (0, 0);
            self.journal.compact(inner.state.clone());
        }
        tidy(&inner.state, &touched);
        drop(guard);
        (result, number)
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
