//! Group commit: one thread makes durable whatever has gathered since its last write. Another one compacts the journal, when
//! that is due, while groups are appended.

use std::sync::Arc;
use std::time::Duration;

use caju_runtime::{OrderedMutex, Tasks, Thread, catch, is_simulated, log_failure};
use caju_types::{Error, Result};
use parking_lot::Condvar;
use tokio::sync::{Notify, watch};

use super::{Journal, Stored};
use crate::locks;
use crate::state::{State, Update};

/// When a journal is compacted: a start replays all of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CompactAfter {
    /// Updates since the last snapshot. 200,000 small ones are replayed in well under a second.
    pub(crate) updates: u64,
    /// Bytes since the last snapshot, unless that is larger: then as many bytes as it has. A snapshot is written in whole,
    /// so it is worth writing when it saves reading more than itself. Splits take about 20 bytes each, so this bound is
    /// about 800,000 of them.
    pub(crate) bytes: u64,
}

impl Default for CompactAfter {
    fn default() -> Self {
        Self { updates: 200_000, bytes: 16 << 20 }
    }
}

/// The time that a write takes in a simulation, which has no thread for the journal: that of an `fsync` of a fast disk.
const SIMULATED_WRITE: Duration = Duration::from_millis(1);

/// The write end of a journal. Groups are enqueued under the lock of the state, so that their order is the
/// order of its changes, and awaited outside of it.
pub(crate) struct JournalWriter {
    shared: Arc<Shared>,
    durable: watch::Receiver<Durable>,
    thread: OrderedMutex<Option<Thread<()>>>,
    /// In place of the thread, in a simulation.
    simulated: Tasks,
    description: String,
}

struct Shared {
    // Bounded by its callers: each one waits until its group is durable before it can add another.
    queue: OrderedMutex<Queue>,
    wake: Condvar,
    /// Wakes the writer in a simulation.
    wake_simulated: Notify,
}

impl Default for Shared {
    fn default() -> Self {
        let queue = OrderedMutex::new(locks::JOURNAL_QUEUE, Queue::default());
        Self { queue, wake: Condvar::new(), wake_simulated: Notify::new() }
    }
}

#[derive(Default)]
struct Queue {
    groups: Vec<Vec<Update>>,
    /// Groups ever enqueued.
    enqueued: u64,
    closed: bool,
    /// How a compaction that ran ended: the bytes of the snapshot.
    compacted: Option<Result<u64>>,
}

#[derive(Debug, Clone)]
enum Durable {
    UpTo(u64),
    Failed(Error),
}

impl JournalWriter {
    /// Starts the thread for a journal that holds `updates` updates.
    ///
    /// # Errors
    /// If the system refuses one.
    pub(crate) fn start(journal: Box<dyn Journal>, updates: u64) -> Result<Self> {
        Self::start_with(journal, updates, CompactAfter::default())
    }

    /// Starts a writer with other bounds than the usual ones.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn start_with(
        journal: Box<dyn Journal>,
        updates: u64,
        compact_after: CompactAfter,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (sender, durable) = watch::channel(Durable::UpTo(0));
        let description = journal.describe();
        let theirs = Arc::clone(&shared);
        let mut writer =
            Writer { journal, compact_after, updates, bytes: 0, snapshot_bytes: 0, compacting: None };
        let (mut thread, simulated) = (None, Tasks::new());
        if is_simulated() {
            simulated.background("the journal", log_failure, async move {
                writer.write_simulated(&theirs, &sender).await;
                Ok(())
            });
        } else {
            thread = Some(Thread::spawn("caju-journal", move || {
                // Callers must not wait for a thread that has ended.
                if let Err(e) = catch("the journal's thread", || writer.write_all(&theirs, &sender)) {
                    report(e, &sender);
                }
            })?);
        }
        Ok(Self {
            shared,
            durable,
            thread: OrderedMutex::new(locks::JOURNAL_THREAD, thread),
            simulated,
            description,
        })
    }

    /// Adds a group; the number to wait for.
    pub(crate) fn enqueue(&self, group: Vec<Update>) -> u64 {
        let mut queue = self.shared.queue.lock();
        queue.groups.push(group);
        queue.enqueued += 1;
        self.shared.wake.notify_one();
        self.shared.wake_simulated.notify_one();
        queue.enqueued
    }

    /// The number of the last group; what was read from the state until now is durable with it.
    pub(crate) fn last(&self) -> u64 {
        self.shared.queue.lock().enqueued
    }

    /// Waits until a group is durable.
    ///
    /// # Errors
    /// The journal's, for ever after it has failed once: the state in memory is ahead of what is stored.
    pub(crate) async fn durable(&self, number: u64) -> Result<()> {
        let mut durable = self.durable.clone();
        let reached = |d: &Durable| match d {
            Durable::UpTo(n) => *n >= number,
            Durable::Failed(_) => true,
        };
        match durable.wait_for(reached).await.map(|d| (*d).clone()) {
            Ok(Durable::UpTo(_)) => Ok(()),
            Ok(Durable::Failed(e)) => Err(e),
            Err(_) => Err(Error::unavailable("the dispatcher is shutting down")),
        }
    }

    /// Waits until the journal fails, if it ever does: why.
    pub(crate) async fn failed(&self) -> Error {
        let mut durable = self.durable.clone();
        let found = durable.wait_for(|d| matches!(d, Durable::Failed(_))).await.map(|d| (*d).clone());
        match found {
            Ok(Durable::Failed(e)) => e,
            // It was closed in order.
            _ => std::future::pending().await,
        }
    }

    /// Where the journal is, for people.
    pub(crate) fn describe(&self) -> &str {
        &self.description
    }

    /// Writes what is enqueued and ends the thread.
    pub(crate) fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_one();
        self.simulated.stop();
        if let Some(Err(e)) = self.thread.lock().take().map(Thread::join) {
            log_failure(e);
        }
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        self.close();
    }
}

/// What the thread has.
struct Writer {
    journal: Box<dyn Journal>,
    compact_after: CompactAfter,
    /// Updates since the last snapshot.
    updates: u64,
    /// Bytes since the last snapshot, of those that this process wrote.
    bytes: u64,
    snapshot_bytes: u64,
    /// The compaction that runs.
    compacting: Option<Thread<()>>,
}

impl Writer {
    fn write_all(&mut self, shared: &Arc<Shared>, durable: &watch::Sender<Durable>) {
        let ended = self.write_until_closed(shared, durable);
        let joined = self.compacted();
        let compacted = shared.queue.lock().compacted.take();
        if let Err(e) = ended.and(joined).and(compacted.transpose()) {
            report(e, durable);
        }
    }

    /// Waits for the compaction that runs, if one does.
    fn compacted(&mut self) -> Result<()> {
        self.compacting.take().map_or(Ok(()), Thread::join)
    }

    fn write_until_closed(&mut self, shared: &Arc<Shared>, durable: &watch::Sender<Durable>) -> Result<()> {
        loop {
            let (groups, number, compacted) = {
                let mut queue = shared.queue.lock();
                while queue.groups.is_empty() && !queue.closed && queue.compacted.is_none() {
                    queue.wait(&shared.wake);
                }
                let compacted = queue.compacted.take();
                if queue.groups.is_empty() && compacted.is_none() {
                    return Ok(());
                }
                (std::mem::take(&mut queue.groups), queue.enqueued, compacted)
            };
            if let Some(snapshot_bytes) = compacted {
                self.snapshot_bytes = snapshot_bytes?;
                self.compacted()?;
            }
            if !groups.is_empty() {
                // A panic of the database must not leave callers waiting for a thread that has ended.
                catch("writing the journal", || self.append(&groups)).and_then(|done| done)?;
                durable.send_replace(Durable::UpTo(number));
            }
            self.compact_if_due(shared)?;
        }
    }

    /// The same in a simulation, until it is stopped: what waits then is lost, as with a process that is killed. Nothing is
    /// compacted.
    async fn write_simulated(&mut self, shared: &Shared, durable: &watch::Sender<Durable>) {
        loop {
            tokio::time::sleep(SIMULATED_WRITE).await;
            let (groups, number) = {
                let mut queue = shared.queue.lock();
                (std::mem::take(&mut queue.groups), queue.enqueued)
            };
            if groups.is_empty() {
                shared.wake_simulated.notified().await;
                continue;
            }
            match self.append(&groups) {
                Ok(()) => drop(durable.send_replace(Durable::UpTo(number))),
                Err(e) => return report(e, durable),
            }
        }
    }

    fn append(&mut self, groups: &[Vec<Update>]) -> Result<()> {
        let bytes = self.journal.append(groups)?;
        self.bytes = self.bytes.saturating_add(bytes);
        self.updates += groups.iter().map(|group| group.len() as u64).sum::<u64>();
        Ok(())
    }

    /// Begins to replace a journal that has grown by the state that its updates give. The state comes from a replay, as at
    /// the start of a dispatcher, so the state in use is not locked for a copy.
    fn compact_if_due(&mut self, shared: &Arc<Shared>) -> Result<()> {
        let due = self.updates > self.compact_after.updates
            || self.bytes > self.compact_after.bytes.max(self.snapshot_bytes);
        if !due || self.compacting.is_some() {
            return Ok(());
        }
        let stored = catch("reading the journal", || self.journal.stored()).and_then(|stored| stored)?;
        let theirs = Arc::clone(shared);
        self.compacting = Some(Thread::spawn("caju-compaction", move || {
            let compacted = catch("compacting the journal", || compact(stored)).and_then(|done| done);
            theirs.queue.lock().compacted = Some(compacted);
            theirs.wake.notify_one();
        })?);
        (self.updates, self.bytes) = (0, 0);
        Ok(())
    }
}

/// Fails all waiting callers: no further group becomes durable.
fn report(error: Error, durable: &watch::Sender<Durable>) {
    let e = error.context(
        "the journal cannot be written, and the dispatcher serves nothing without it; remove the cause and \
         start it again: what it answered until now is kept",
    );
    tracing::error!("{e}");
    durable.send_replace(Durable::Failed(e));
}

/// Replaces the stored groups by the state that their updates give. Returns the size of the written state in bytes.
fn compact(mut stored: Box<dyn Stored>) -> Result<u64> {
    let state = State::replay(stored.read()?);
    stored.replace(&[Update::Snapshot { state: Box::new(state) }])
}
