//! `prefetch`: elements that are computed ahead of the stages below, as tf.data's `prefetch` does.
//!
//! A buffer holds up to the stage's number of elements, and up to its bound in bytes; one chunk always fits. A
//! chunk of rows above `batch` has as many elements as rows, so there the buffer holds at least one chunk.

use std::sync::Arc;
use std::time::Instant;

use caju_runtime::{Tasks, caught};
use caju_types::{Error, Result};
use caju_wire::ByteQueue;
use futures::stream::{self, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Item, Items};
use crate::context::TaskContext;

/// What computes ahead is called this in errors.
const NAME: &str = "the stages above `prefetch`";

/// An item in the buffer, with the elements that it takes of it.
struct Buffered {
    item: Item,
    rows: usize,
    _elements: OwnedSemaphorePermit,
}

/// Computes the items on a task of their own, ahead of their reader. Nothing is computed before the first item is asked for.
pub(super) fn prefetched(items: Items, elements: usize, stats: usize, ctx: &Arc<TaskContext>) -> Items {
    let ctx = Arc::clone(ctx);
    stream::once(async move { start(items, elements, stats, ctx) }).flatten().boxed()
}

fn start(items: Items, elements: usize, stats: usize, ctx: Arc<TaskContext>) -> Items {
    let queue = Arc::new(ByteQueue::within(ctx.queue_bound()));
    let fill = fill(items, elements, stats, Arc::clone(&ctx), Arc::clone(&queue));
    // Dropping the stream stops the task.
    let running = Tasks::new().spawn(NAME, fill);
    stream::try_unfold((queue, running, ctx), |(queue, running, ctx)| async move {
        let next: Option<Buffered> = queue.pop().await?;
        if let Some(buffered) = &next {
            ctx.stats.held(0, buffered.rows);
        }
        Ok(next.map(|buffered| (buffered.item, (queue, running, ctx))))
    })
    .boxed()
}

/// Fills the buffer until the items end or the reader is dropped.
async fn fill(
    mut items: Items,
    elements: usize,
    stats: usize,
    ctx: Arc<TaskContext>,
    queue: Arc<ByteQueue<Buffered>>,
) {
    let most = u32::try_from(elements.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
    let free = Arc::new(Semaphore::new(most as usize));
    let counters = ctx.stats.stage(stats);
    let filling = async {
        while let Some(item) = counters.polled(items.next()).await {
            let item = item?;
            let (rows, bytes, elements) = match &item {
                Item::Chunk(chunk) | Item::Entry { chunk, .. } => {
                    (chunk.rows(), chunk.bytes(), chunk.num_elements())
                }
                Item::EndOfSplit(_) | Item::EndOfRepetition(_) => (0, 0, 0),
            };
            let wait = Instant::now();
            let taken = u32::try_from(elements).unwrap_or(u32::MAX).min(most);
            let _elements = Arc::clone(&free)
                .acquire_many_owned(taken)
                .await
                .map_err(|e| Error::internal(format!("{NAME}: {e}")))?;
            ctx.stats.held(rows, 0);
            // Marks take memory, too.
            let pushed = queue.push(Buffered { item, rows, _elements }, bytes.max(size_of::<Item>())).await;
            counters.waited_out(wait.elapsed());
            if pushed.is_err() {
                return Ok(());
            }
            counters.moved(rows, rows, bytes);
        }
        Ok(())
    };
    let filled: Result<()> = caught(NAME, filling).await.and_then(|filled| filled);
    queue.close(filled);
}
