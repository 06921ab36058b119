//! Group commit: one thread makes durable whatever has gathered since its last write.

use std::sync::Arc;
use std::thread::JoinHandle;

use caju_types::{Error, Result};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::Journal;
use crate::state::{State, Update};

/// The write end of a journal. Groups are enqueued under the lock of the state, so that their order is the
/// order of its changes, and awaited outside of it.
pub(crate) struct JournalWriter {
    shared: Arc<Shared>,
    durable: watch::Receiver<Durable>,
    thread: Mutex<Option<JoinHandle<()>>>,
    description: String,
}

#[derive(Default)]
struct Shared {
    // Bounded by its callers: each one waits until its group is durable before it can add another.
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    entries: Vec<Entry>,
    /// Entries ever enqueued.
    enqueued: u64,
    closed: bool,
}

enum Entry {
    Group(Vec<Update>),
    Snapshot(Box<State>),
}

#[derive(Debug, Clone)]
enum Durable {
    UpTo(u64),
    Failed(Error),
}

impl JournalWriter {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system refuses one.
    pub(crate) fn start(journal: Box<dyn Journal>) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let (sender, durable) = watch::channel(Durable::UpTo(0));
        let description = journal.describe();
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("caju-journal".to_string())
            .spawn(move || write_all(journal, &theirs, &sender))
            .map_err(|e| Error::exhausted(format!("the journal's thread: {e}")))?;
        Ok(Self { shared, durable, thread: Mutex::new(Some(thread)), description })
    }

    /// Adds a group; the number to wait for.
    pub(crate) fn enqueue(&self, group: Vec<Update>) -> u64 {
        self.push(Entry::Group(group))
    }

    /// Puts a snapshot of the state in the place of everything before it.
    pub(crate) fn compact(&self, state: State) {
        self.push(Entry::Snapshot(Box::new(state)));
    }

    fn push(&self, entry: Entry) -> u64 {
        let mut queue = self.shared.queue.lock();
        queue.entries.push(entry);
        queue.enqueued += 1;
        self.shared.wake.notify_one();
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
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the journal's thread panicked");
        }
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        self.close();
    }
}

fn write_all(mut journal: Box<dyn Journal>, shared: &Shared, durable: &watch::Sender<Durable>) {
    loop {
        let (entries, number) = {
            let mut queue = shared.queue.lock();
            while queue.entries.is_empty() && !queue.closed {
                shared.wake.wait(&mut queue);
            }
            if queue.entries.is_empty() {
                return;
            }
            (std::mem::take(&mut queue.entries), queue.enqueued)
        };
        if let Err(e) = write(journal.as_mut(), entries) {
            let e = e.context(
                "the journal cannot be written, and the dispatcher serves nothing without it; mend the cause and start it \
                 again: what it answered until now is kept",
            );
            tracing::error!("{e}");
            durable.send_replace(Durable::Failed(e));
            return;
        }
        durable.send_replace(Durable::UpTo(number));
    }
}

fn write(journal: &mut dyn Journal, entries: Vec<Entry>) -> Result<()> {
    let mut groups = Vec::with_capacity(entries.len());
    for entry in entries {
        match entry {
            Entry::Group(group) => groups.push(group),
            Entry::Snapshot(state) => {
                // It holds all that came before it.
                groups.clear();
                journal.replace(&[Update::Snapshot { state }])?;
            }
        }
    }
    if groups.is_empty() { Ok(()) } else { journal.append(&groups) }
}
