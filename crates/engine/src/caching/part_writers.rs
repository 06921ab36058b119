//! The background writers of a task's parts.

use std::future::Future;
use std::sync::Arc;

use caju_runtime::{Clock, Tasks, log_failure};
use caju_types::Result;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::circuit_breaker::CircuitBreaker;
use super::part_sender::{PartItem, PartSender};
use super::stall_budget::StallBudget;

/// The writers of one task: their background work, how many are open, and whether the store keeps up.
pub(super) struct PartWriters {
    tasks: Tasks,
    open: watch::Sender<OpenCount>,
    pub(super) stall_budget: StallBudget,
    pub(super) breaker: CircuitBreaker,
    clock: Arc<dyn Clock>,
}

#[derive(Debug, Default)]
struct OpenCount {
    writers: usize,
    /// The stream of rows is over: no writer begins any more.
    closed: bool,
}

/// Counts as an open writer until it is dropped. The end of the task waits for all open writers.
pub(super) struct OpenWriter(Arc<PartWriters>);

impl Drop for OpenWriter {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| open.writers -= 1);
    }
}

impl PartWriters {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            tasks: Tasks::new(),
            open: watch::Sender::new(OpenCount::default()),
            stall_budget: StallBudget::default(),
            breaker: CircuitBreaker::default(),
            clock,
        }
    }

    /// Registers a writer; none if the stream of rows is over.
    pub(super) fn register(self: &Arc<Self>) -> Option<OpenWriter> {
        let registered = self.open.send_if_modified(|open| {
            open.writers += usize::from(!open.closed);
            !open.closed
        });
        registered.then(|| OpenWriter(Arc::clone(self)))
    }

    /// No writer begins from now on.
    pub(super) fn close(&self) {
        self.open.send_modify(|open| open.closed = true);
    }

    /// Waits until no writer is open.
    pub(super) async fn settled(&self) {
        self.open.subscribe().wait_for(|open| open.writers == 0).await.ok();
    }

    /// Stops all writers where they are.
    pub(super) fn stop(&self) {
        self.tasks.stop();
    }

    /// Runs a writer in the background.
    pub(super) fn spawn(
        &self,
        name: &'static str,
        writing: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        self.tasks.background(name, log_failure, writing);
    }

    /// Sends an item to the writer of a part; false if the writer has ended, or is cancelled because it is too slow.
    pub(super) async fn send(&self, sender: &PartSender, bytes: u64, item: PartItem) -> bool {
        let writers = self.open.borrow().writers;
        let accepted = sender.items.send(item);
        let waited =
            self.stall_budget.wait(sender.assumed_bytes_per_s, bytes, writers, &*self.clock, accepted);
        match waited.await {
            Some(sent) => sent.is_ok(),
            None => {
                sender.cancel.cancel();
                false
            }
        }
    }

    /// Cancels a writer that has all its rows if it does not finish within the stall budget.
    pub(super) fn limit_finish(&self, sender: &PartSender) {
        let Some(assumed) = sender.assumed_bytes_per_s else { return };
        let remaining = self.stall_budget.remaining(assumed, 0, self.open.borrow().writers);
        let (clock, sender) = (Arc::clone(&self.clock), sender.clone());
        self.spawn("the deadline of a writer", async move {
            tokio::select! {
                () = sender.items.closed() => {}
                () = clock.sleep(remaining) => sender.cancel.cancel(),
            }
            Ok(())
        });
    }

    /// Cancels writers that together have `bytes` to write if that takes longer than the stall budget.
    pub(super) fn limit_all(&self, assumed_bytes_per_s: u64, bytes: u64, cancel: CancellationToken) {
        let remaining = self.stall_budget.remaining(assumed_bytes_per_s, bytes, 1);
        let clock = Arc::clone(&self.clock);
        self.spawn("the deadline of backfill writers", async move {
            clock.sleep(remaining).await;
            cancel.cancel();
            Ok(())
        });
    }
}
