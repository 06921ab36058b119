//! The way out of a task: one queue that all its readers share, or one for each consumer of its job.

use caju_types::{Error, Result};
use caju_wire::{ByteQueue, Chunk, QueueMemory};

/// The queues of a task's finished elements, which share one bound at first.
#[derive(Debug)]
pub(crate) struct TaskOutput {
    queues: Vec<ByteQueue<Chunk>>,
    /// The queues belong to consumers.
    has_consumers: bool,
}

impl TaskOutput {
    /// One queue, or with `consumers` one for each.
    pub(crate) fn new(memory: &QueueMemory, first_bytes: usize, consumers: usize) -> Self {
        let count = consumers.max(1);
        let queues = (0..count).map(|_| ByteQueue::within(memory.bound(first_bytes / count))).collect();
        Self { queues, has_consumers: consumers > 0 }
    }

    /// The queue that a reader takes from.
    ///
    /// # Errors
    /// `FailedPrecondition` for a reader that is none of the consumers.
    pub(crate) fn queue_of(&self, consumer: Option<u32>) -> Result<usize> {
        let at = match (self.has_consumers, consumer) {
            (false, None) => Some(0),
            (true, Some(consumer)) => usize::try_from(consumer).ok(),
            _ => None,
        };
        at.filter(|at| *at < self.queues.len()).ok_or_else(|| {
            Error::failed_precondition(format!(
                "this reader says that it is {}, and the task has {}: open the epoch as the job's other readers do",
                consumer.map_or("no consumer".to_string(), |c| format!("consumer {c}")),
                if self.has_consumers { format!("{} consumers", self.queues.len()) } else { "none".to_string() }
            ))
        })
    }

    /// Waits until every queue has space; false if they were closed.
    pub(crate) async fn writable(&self) -> bool {
        self.writable_of(0..self.queues.len()).await
    }

    /// Waits until each of these queues has space; false if they were closed.
    pub(crate) async fn writable_of(&self, queues: impl IntoIterator<Item = usize>) -> bool {
        for queue in queues.into_iter().filter_map(|at| self.queues.get(at)) {
            if !queue.writable().await {
                return false;
            }
        }
        true
    }

    /// Appends a chunk; false if the queues were closed.
    pub(crate) fn push(&self, at: usize, chunk: Chunk) -> bool {
        let bytes = chunk.bytes();
        self.queues.get(at).is_some_and(|q| q.push_now(chunk, bytes).is_ok())
    }

    /// The next chunk of a queue; `None` at its end. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// The failure of the task.
    pub(crate) async fn pop(&self, at: usize) -> Result<Option<Chunk>> {
        match self.queues.get(at) {
            Some(queue) => queue.pop().await,
            None => Ok(None),
        }
    }

    /// The next chunk of a queue, if there is one now and `wanted` accepts it.
    pub(crate) fn pop_if(&self, at: usize, wanted: impl FnOnce(&Chunk, usize) -> bool) -> Option<Chunk> {
        self.queues.get(at)?.try_pop_if(wanted)
    }

    pub(crate) fn close(&self) {
        self.queues.iter().for_each(|q| q.close(Ok(())));
    }

    pub(crate) fn abort(&self, error: &Error) {
        self.queues.iter().for_each(|q| q.abort(error.clone()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queues.iter().all(ByteQueue::is_empty)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queues.iter().all(ByteQueue::is_closed)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.queues.iter().map(ByteQueue::bytes).sum()
    }
}
