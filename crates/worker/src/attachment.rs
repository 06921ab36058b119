//! One reader of a task.

use std::sync::Arc;

use caju_types::Result;
use caju_wire::Chunk;

use crate::running::RunningTask;

/// One reader of a task. If it is dropped before [`Attachment::received`], rows may be lost with it.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) task: Arc<RunningTask>,
    /// The queue that it takes from.
    at: usize,
    took: bool,
    received: bool,
    only: bool,
}

impl Attachment {
    /// Attaches a reader, or a consumer of the task's job.
    ///
    /// # Errors
    /// `FailedPrecondition` for a reader that is none of the job's consumers.
    pub(crate) fn new(task: &Arc<RunningTask>, consumer: Option<u32>) -> Result<Self> {
        let at = task.queue.queue_of(consumer)?;
        task.readers.enter();
        Ok(Self { task: Arc::clone(task), at, took: false, received: false, only: false })
    }

    /// Marks this reader as the only possible one: the task ends with it.
    pub(crate) fn only(mut self) -> Self {
        self.only = true;
        self
    }

    /// The next chunk; `None` at the end. Cancelling the wait loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Chunk>> {
        let chunk = self.task.queue.pop(self.at).await?;
        self.took |= chunk.is_some();
        Ok(chunk)
    }

    /// The next chunk, if there is one now and `wanted` accepts it.
    pub(crate) fn next_if(&mut self, wanted: impl FnOnce(&Chunk, usize) -> bool) -> Option<Chunk> {
        let chunk = self.task.queue.pop_if(self.at, wanted);
        self.took |= chunk.is_some();
        chunk
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
