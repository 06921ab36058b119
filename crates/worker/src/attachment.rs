//! One reader of a task.

use std::sync::Arc;

use caju_types::{ClientId, Error, Result};
use caju_wire::{Chunk, SplitFacts};

use crate::running::RunningTask;
use crate::sizes::SentRows;

/// One reader of a task. If it is dropped before [`Attachment::received`], rows may be lost with it.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) task: Arc<RunningTask>,
    /// The queue that it takes from.
    at: usize,
    took: bool,
    received: bool,
    only: bool,
    /// The client and the number of its connection, where it may connect again without having received anything.
    connection: Option<(ClientId, u64)>,
    /// What it was sent of splits whose numbers of rows it does not know.
    sent: SentRows,
}

impl Attachment {
    /// Attaches a reader, or a consumer of the task's job.
    ///
    /// # Errors
    /// `FailedPrecondition` for a reader that is none of the job's consumers.
    pub(crate) fn new(task: &Arc<RunningTask>, consumer: Option<u32>) -> Result<Self> {
        let at = task.queue.queue_of(consumer)?;
        task.readers.enter();
        Ok(Self {
            task: Arc::clone(task),
            at,
            took: false,
            received: false,
            only: false,
            connection: None,
            sent: SentRows::default(),
        })
    }

    /// Marks this reader as the only possible one: the task ends with it.
    pub(crate) fn only(mut self) -> Self {
        self.only = true;
        self
    }

    /// Makes this the connection of a client that may have closed an earlier one before it received anything.
    pub(crate) fn over_network(mut self, client: ClientId) -> Self {
        self.connection = Some((client, self.task.readers.connect(client)));
        self
    }

    /// The next chunk; `None` at the end. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// The task's failure; `Unavailable` if rows were lost with an earlier connection of the same client, which has to read
    /// them from another worker.
    pub(crate) async fn next(&mut self) -> Result<Option<Chunk>> {
        let chunk = self.task.queue.pop(self.at).await?;
        if let Some((client, _)) = self.connection.filter(|(c, _)| self.task.readers.has_lost_rows(*c)) {
            self.count(chunk.as_ref());
            return Err(Error::unavailable(format!(
                "rows of {} were sent to {client} on a connection that broke before they arrived",
                self.task.id
            )));
        }
        self.count(chunk.as_ref());
        Ok(chunk)
    }

    /// Notes whether rows were taken.
    fn count(&mut self, chunk: Option<&Chunk>) {
        let Some(chunk) = chunk else { return };
        self.took = true;
        if self.task.readers.are_several() {
            self.sent.add(&chunk.runs);
        }
        if let Some((client, connection)) = self.connection {
            self.task.readers.on_taken(client, connection);
        }
    }

    /// The next chunk, if there is one now and `wanted` accepts it.
    pub(crate) fn next_if(&mut self, wanted: impl FnOnce(&Chunk, usize) -> bool) -> Option<Chunk> {
        let chunk = self.task.queue.pop_if(self.at, wanted);
        self.count(chunk.as_ref());
        chunk
    }

    /// What this reader does not know of the splits of its chunks, and can use.
    pub(crate) fn take_split_facts(&mut self) -> SplitFacts {
        let sized = match self.task.readers.are_several() {
            true => self.task.sizes.take_for(&mut self.sent),
            false => self.task.sizes.take_all(),
        };
        SplitFacts { sized, listed: self.task.listing.get() }
    }

    /// The reader has received everything that it took.
    pub(crate) fn received(&mut self) {
        self.received = true;
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.task.readers.leave(!self.received && self.took, !self.received && self.only);
    }
}
