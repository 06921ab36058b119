//! Readahead: requests for the blocks of a part, made before the blocks are needed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use caju_types::Result;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::blocks::Blocks;
use super::options::ReadOptions;

/// Requests groups of blocks in order, a few concurrently. Taking an answer starts the next request, so that fetching and
/// decoding overlap.
pub(super) struct Readahead {
    blocks: Arc<Blocks>,
    /// Groups that were not requested yet.
    queued: VecDeque<Range<usize>>,
    /// Requests whose answers were not taken, each with the number of its first block.
    requested: VecDeque<(usize, BoxFuture<'static, Result<Vec<Bytes>>>)>,
    /// The most such requests.
    max_requested: usize,
    /// Limits the requests of this part and others together.
    limiter: Option<Arc<Semaphore>>,
    pending: Arc<AtomicUsize>,
}

impl Readahead {
    pub(super) fn new(blocks: &Arc<Blocks>, options: &ReadOptions) -> Self {
        Self {
            blocks: Arc::clone(blocks),
            queued: VecDeque::new(),
            requested: VecDeque::new(),
            max_requested: options.prefetch.max(1),
            limiter: options.limiter.clone(),
            pending: Arc::default(),
        }
    }

    /// Adds groups behind those that are queued.
    pub(super) fn enqueue(&mut self, groups: impl IntoIterator<Item = Range<usize>>) {
        self.queued.extend(groups);
        self.request();
        self.publish_pending();
    }

    /// The number of groups that were not taken yet, requested or not. It is kept current.
    pub(super) fn pending(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.pending)
    }

    /// The blocks of the next group, and the number of the first one; none after the last group.
    pub(super) async fn next(&mut self) -> Result<Option<(usize, Vec<Bytes>)>> {
        let Some((start, answer)) = self.requested.pop_front() else { return Ok(None) };
        self.request();
        let blocks = answer.await?;
        self.publish_pending();
        Ok(Some((start, blocks)))
    }

    fn request(&mut self) {
        while self.requested.len() < self.max_requested
            && let Some(group) = self.queued.pop_front()
        {
            let permit = self.limiter.clone().map(permit);
            self.requested.push_back((group.start, self.blocks.prefetch(group, permit).boxed()));
        }
    }

    fn publish_pending(&self) {
        self.pending.store(self.queued.len() + self.requested.len(), Ordering::Relaxed);
    }
}

/// A request's permit. Permits are given in the order of these calls, not in the order in which tasks happen to begin.
fn permit(limiter: Arc<Semaphore>) -> BoxFuture<'static, Option<OwnedSemaphorePermit>> {
    let mut permit = Box::pin(limiter.acquire_owned());
    // The first poll enters the semaphore's queue.
    match (&mut permit).now_or_never() {
        Some(acquired) => std::future::ready(acquired.ok()).boxed(),
        None => permit.map(Result::ok).boxed(),
    }
}
