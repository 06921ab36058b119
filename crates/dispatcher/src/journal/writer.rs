//! Group commit: one thread makes durable whatever has gathered since its last write. Another one compacts the journal, when
//! that is due, while groups are appended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_runtime::{OrderedMutex, Tasks, Thread, at_low_priority, catch, is_simulated, log_failure};
use caju_types::{Error, Result};
use parking_lot::Condvar;
use tokio::sync::{Notify, watch};

use super::{EncodedGroup, Journal, StoredGroups};
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

/// How many times its bound a journal may reach before a compaction has the usual priority from its beginning. While calls use all
/// cores, a compaction of low priority takes ten times as long, and the journal grows meanwhile. A start replays all of that.
const OVERDUE: u64 = 4;

/// The time that a write takes in a simulation, which has no thread for the journal: that of an `fsync` of a fast disk.
const SIMULATED_WRITE: Duration = Duration::from_millis(1);

/// The write end of a journal. Groups are enqueued under the lock of the state, so that their order is the
/// order of its changes, and awaited outside of it.
pub(crate) struct JournalWriter {
    shared: Arc<Shared>,
    durable: Arc<watch::Sender<Durable>>,
    thread: OrderedMutex<Option<Thread<()>>>,
    write_timeout: Duration,
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
    /// Since when the thread writes, if it does.
    writing: OrderedMutex<Option<Instant>>,
}

impl Default for Shared {
    fn default() -> Self {
        let queue = OrderedMutex::new(locks::JOURNAL_QUEUE, Queue::default());
        let writing = OrderedMutex::new(locks::JOURNAL_WRITING, None);
        Self { queue, wake: Condvar::new(), wake_simulated: Notify::new(), writing }
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
    /// The same, and nothing more comes: the thread has ended in order.
    Closed(u64),
}

/// Groups up to this one are durable, unless the journal has failed.
fn advance(durable: &watch::Sender<Durable>, number: u64) {
    durable.send_if_modified(|d| {
        let goes_on = !matches!(d, Durable::Failed(_));
        if goes_on {
            *d = Durable::UpTo(number);
        }
        goes_on
    });
}

impl JournalWriter {
    /// Starts the thread for a journal that holds `updates` updates. A write that has not ended within `write_timeout` counts as
    /// failed: a disk or a database that hangs would leave a dispatcher that answers nobody.
    ///
    /// # Errors
    /// If the system refuses one.
    pub(crate) fn start(journal: Box<dyn Journal>, updates: u64, write_timeout: Duration) -> Result<Self> {
        Self::start_with(journal, updates, write_timeout, CompactAfter::default())
    }

    /// Starts a writer with other bounds than the usual ones.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn start_with(
        journal: Box<dyn Journal>,
        updates: u64,
        write_timeout: Duration,
        compact_after: CompactAfter,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let durable = Arc::new(watch::Sender::new(Durable::UpTo(0)));
        let sender = Arc::clone(&durable);
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
                close(&sender);
            })?);
        }
        let thread = OrderedMutex::new(locks::JOURNAL_THREAD, thread);
        Ok(Self { shared, durable, thread, write_timeout, simulated, description })
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
        let reached = |d: &Durable| match d {
            Durable::UpTo(n) | Durable::Closed(n) => *n >= number,
            Durable::Failed(_) => true,
        };
        match self.wait_for(reached).await {
            Durable::Failed(e) => Err(e),
            Durable::Closed(n) if n < number => Err(Error::unavailable("the dispatcher is shutting down")),
            _ => Ok(()),
        }
    }

    /// Waits until the journal is in a state, or is closed.
    async fn wait_for(&self, reached: impl Fn(&Durable) -> bool) -> Durable {
        let mut durable = self.durable.subscribe();
        loop {
            let waiting = durable.wait_for(|d| matches!(d, Durable::Closed(_)) || reached(d));
            // The sender is here.
            if let Ok(Ok(found)) = tokio::time::timeout(self.write_timeout / 2, waiting).await {
                return (*found).clone();
            }
            self.give_up_if_stuck();
        }
    }

    /// Fails the journal if a write takes too long.
    fn give_up_if_stuck(&self) {
        let writing = *self.shared.writing.lock();
        if let Some(since) = writing.filter(|since| since.elapsed() > self.write_timeout) {
            let e = Error::deadline(format!(
                "{}: a write has not ended within {:.0?}: the disk or the database hangs",
                self.description,
                since.elapsed()
            ));
            report(e, &self.durable);
        }
    }

    /// Waits until the journal fails, if it ever does: why.
    pub(crate) async fn failed(&self) -> Error {
        match self.wait_for(|d| matches!(d, Durable::Failed(_))).await {
            Durable::Failed(e) => e,
            // It was closed in order.
            _ => std::future::pending().await,
        }
    }

    /// Where the journal is, for people.
    pub(crate) fn describe(&self) -> &str {
        &self.description
    }

    /// Writes what is enqueued and ends the thread. A thread whose write does not end is left to the end of the process.
    pub(crate) fn close(&self) {
        self.shared.queue.lock().closed = true;
        self.shared.wake.notify_one();
        self.simulated.stop();
        if is_simulated() {
            close(&self.durable);
        }
        let thread = self.thread.lock().take();
        let has_failed = matches!(*self.durable.borrow(), Durable::Failed(_));
        if has_failed && self.shared.writing.lock().is_some() {
            std::mem::forget(thread);
        } else if let Some(Err(e)) = thread.map(Thread::join) {
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
                *shared.writing.lock() = Some(Instant::now());
                let written = catch("writing the journal", || self.append(&groups)).and_then(|done| done);
                *shared.writing.lock() = None;
                written?;
                advance(durable, number);
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
                Ok(()) => advance(durable, number),
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
        if !self.has_grown(1) || self.compacting.is_some() {
            return Ok(());
        }
        let is_overdue = self.has_grown(OVERDUE);
        let stored = catch("reading the journal", || self.journal.stored()).and_then(|stored| stored)?;
        let theirs = Arc::clone(shared);
        self.compacting = Some(Thread::spawn("caju-compaction", move || {
            let compacted =
                catch("compacting the journal", || compact(stored, is_overdue)).and_then(|done| done);
            theirs.queue.lock().compacted = Some(compacted);
            theirs.wake.notify_one();
        })?);
        (self.updates, self.bytes) = (0, 0);
        Ok(())
    }

    /// Whether the journal has grown beyond `times` its bound since the last snapshot.
    fn has_grown(&self, times: u64) -> bool {
        let bytes = self.compact_after.bytes.max(self.snapshot_bytes);
        self.updates > self.compact_after.updates.saturating_mul(times)
            || self.bytes > bytes.saturating_mul(times)
    }
}

/// Nothing more becomes durable.
fn close(durable: &watch::Sender<Durable>) {
    durable.send_modify(|d| {
        if let Durable::UpTo(n) = d {
            *d = Durable::Closed(*n);
        }
    });
}

/// Fails all waiting callers: no further group becomes durable. For them the dispatcher is unavailable, whatever the reason: they
/// wait for one that is started again.
fn report(error: Error, durable: &watch::Sender<Durable>) {
    let e = Error::unavailable(error.message()).context(
        "the journal cannot be written, and the dispatcher serves nothing without it; remove the cause and \
         start it again: what it answered until now is kept",
    );
    let is_news = durable.send_if_modified(|d| {
        let is_news = !matches!(d, Durable::Failed(_));
        if is_news {
            *d = Durable::Failed(e.clone());
        }
        is_news
    });
    if is_news {
        tracing::error!("{e}");
    }
}

/// Replaces the stored groups by the state that their updates give. Returns the size of the written state in bytes.
///
/// The snapshot is made at a low priority unless `is_overdue`, so that calls are answered first on a machine with few cores. Only the
/// end of the writer waits for it, when this process answers no more calls: work of other processes on all cores may then slow it
/// down to a tenth. The snapshot is written at the usual priority, because groups that are appended meanwhile wait for the database.
fn compact(mut stored: Box<dyn StoredGroups>, is_overdue: bool) -> Result<u64> {
    let snapshot = match is_overdue {
        true => snapshot(&mut *stored)?,
        false => at_low_priority("caju-snapshot", || snapshot(&mut *stored))?,
    };
    stored.replace(&snapshot)
}

/// The state that groups give.
fn snapshot(stored: &mut dyn StoredGroups) -> Result<EncodedGroup> {
    let state = State::replay(stored.read()?);
    EncodedGroup::new(&[Update::Snapshot { state: Box::new(state) }])
}
