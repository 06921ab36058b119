//! The readers of a task.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use caju_runtime::Condition;
use caju_types::ClientId;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Who reads a task now, and what became of those who left.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    count: AtomicUsize,
    /// How many have come so far.
    entered: AtomicUsize,
    /// A reader disconnected with rows that it may not have received.
    lost_rows: AtomicBool,
    /// The only possible reader disconnected for good.
    abandoned: AtomicBool,
    changed: Condition,
    /// The connections of each client that reads over the network.
    connections: Mutex<BTreeMap<ClientId, Connections>>,
}

/// The connections of one client to a task, of which the last one counts.
///
/// A client connects again when a connection breaks before it has received anything. Rows that were sent by then are lost with
/// the connection, and the client does not know of them.
#[derive(Debug, Default)]
struct Connections {
    /// How many there were.
    count: u64,
    /// The last one took rows.
    took: bool,
    /// An earlier one took rows.
    lost: bool,
}

/// How the wait for the readers of a task ended.
pub(crate) enum Received {
    /// They have received everything.
    All,
    /// The only possible reader left before that.
    LeftEarly,
    /// No reader came for the remaining rows.
    Unread,
}

impl Readers {
    /// Whether a reader disconnected with rows that it may not have received.
    pub(crate) fn may_have_lost_rows(&self) -> bool {
        self.lost_rows.load(Ordering::Acquire)
    }

    /// A reader comes.
    pub(crate) fn enter(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.entered.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_all();
    }

    /// A client connects: the number of its connection.
    pub(crate) fn connect(&self, client: ClientId) -> u64 {
        let mut connections = self.connections.lock();
        let of = connections.entry(client).or_default();
        of.lost |= of.took;
        of.took = false;
        of.count += 1;
        of.count
    }

    /// A connection takes rows. It may be one that the client has abandoned.
    pub(crate) fn on_taken(&self, client: ClientId, connection: u64) {
        let mut connections = self.connections.lock();
        let of = connections.entry(client).or_default();
        if of.count == connection { of.took = true } else { of.lost = true }
    }

    /// Whether rows were sent to a client on a connection before its last one.
    pub(crate) fn has_lost_rows(&self, client: ClientId) -> bool {
        self.connections.lock().get(&client).is_some_and(|of| of.lost)
    }

    /// A reader leaves: it may have lost rows with it, or it was the only possible one and has not received everything.
    pub(crate) fn leave(&self, lost_rows: bool, abandons: bool) {
        self.lost_rows.fetch_or(lost_rows, Ordering::AcqRel);
        self.abandoned.fetch_or(abandons, Ordering::AcqRel);
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.changed.notify_all();
    }

    /// Whether there are several readers.
    pub(crate) fn are_several(&self) -> bool {
        self.count.load(Ordering::Acquire) > 1
    }

    fn are_absent(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }

    /// How many have come so far.
    fn entered(&self) -> usize {
        self.entered.load(Ordering::Acquire)
    }

    /// Waits until a further reader has come than the given number, or none will come; false if that takes until `until`. A
    /// reader in the same process may have come, received everything and left again before this check.
    async fn come_back(&self, entered: usize, until: Instant) -> bool {
        let back = self.changed.wait_until(|| self.entered() != entered || self.is_abandoned());
        tokio::time::timeout_at(until, back).await.is_ok()
    }

    /// Waits until there is no reader. Returns how many have come by then.
    async fn absent(&self) -> usize {
        loop {
            self.changed.wait_until(|| self.are_absent()).await;
            let entered = self.entered();
            // Readers that come from now on are counted.
            if self.are_absent() {
                return entered;
            }
        }
    }

    /// Waits until the task has had no reader for `linger`, or its only reader has left for good.
    pub(crate) async fn gone(&self, linger: Duration) {
        loop {
            let entered = self.absent().await;
            if self.is_abandoned() || !self.come_back(entered, Instant::now() + linger).await {
                return;
            }
        }
    }

    /// Waits until readers have received everything: `is_empty` says that nothing is left for them to take.
    pub(crate) async fn until_received(&self, is_empty: impl Fn() -> bool, linger: Duration) -> Received {
        let mut until = Instant::now() + linger;
        loop {
            let entered = self.absent().await;
            if self.is_abandoned() {
                return Received::LeftEarly;
            }
            if is_empty() && !self.may_have_lost_rows() {
                return Received::All;
            }
            // Rows wait for a reader to connect, or the dispatcher finds out what a disconnected one received.
            if !self.come_back(entered, until).await {
                return Received::Unread;
            }
            until = Instant::now() + linger;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_reader_that_came_and_left_before_anybody_looked_has_received_everything() {
        let readers = Readers::default();
        let is_empty = AtomicBool::new(false);
        let mut waiting =
            Box::pin(readers.until_received(|| is_empty.load(Ordering::Acquire), Duration::from_secs(3600)));
        assert!(futures::poll!(&mut waiting).is_pending(), "rows wait for a reader");
        readers.enter();
        is_empty.store(true, Ordering::Release);
        readers.leave(false, false);
        let ended = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        assert!(matches!(ended, Ok(Received::All)));
    }
}
