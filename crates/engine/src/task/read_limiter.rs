//! Limits the splits that a task reads concurrently.

use std::sync::Arc;

use caju_cache::Cache;
use caju_types::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limits concurrent reads of splits by the answers to store requests that they hold, those to come included. More small
/// parts, and more parts that are nearly read, are read concurrently from a store with a high latency.
pub(super) struct ReadLimiter {
    requests: Arc<Semaphore>,
    /// Requests of a split that is computed, or whose part is not known: the most that one reader may hold.
    max_requests: usize,
    /// Requests of the last split, which are expected of the next one.
    expected: usize,
}

/// The right to read one split; returned when it is dropped.
pub(super) struct ReadPermit(OwnedSemaphorePermit);

impl ReadLimiter {
    /// A limiter for this number of readers.
    pub(super) fn for_readers(readers: usize) -> Self {
        let all = Cache::answers_at_once(Cache::requests_at_once(readers));
        let max_requests = (all / readers.max(1)).max(1);
        Self { requests: Arc::new(Semaphore::new(all)), max_requests, expected: max_requests }
    }

    /// Waits until one more split may be read.
    ///
    /// # Errors
    /// `Internal` if the limiter is closed, which does not happen while the task lives.
    pub(super) async fn acquire(&self) -> Result<ReadPermit> {
        self.requests(self.expected).await.map(ReadPermit)
    }

    /// Resizes a permit to the requests of the split's part; none: to the most.
    pub(super) async fn resize(&mut self, permit: &mut ReadPermit, requests: Option<usize>) -> Result<()> {
        self.expected = requests.map_or(self.max_requests, |n| n.clamp(1, self.max_requests));
        match self.expected.checked_sub(permit.0.num_permits()) {
            Some(more) => permit.0.merge(self.requests(more).await?),
            None => permit.shrink(Some(self.expected)),
        }
        Ok(())
    }

    async fn requests(&self, requests: usize) -> Result<OwnedSemaphorePermit> {
        let requests = u32::try_from(requests).unwrap_or(u32::MAX);
        Arc::clone(&self.requests)
            .acquire_many_owned(requests)
            .await
            .map_err(|e| Error::internal(format!("the limit of concurrent reads: {e}")))
    }
}

impl ReadPermit {
    /// Returns what the remainder of a part does not use, so that the next split is leased in time. The permit of one
    /// request is kept, because decoding takes time too.
    pub(super) fn shrink(&mut self, requests: Option<usize>) {
        let more = requests.and_then(|n| self.0.num_permits().checked_sub(n.max(1)));
        drop(more.and_then(|more| self.0.split(more)));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn concurrent_reads_are_limited() {
        let mut limiter = ReadLimiter::for_readers(2);
        // Computed: two.
        let mut permits = Vec::new();
        while let Some(Ok(mut permit)) = limiter.acquire().now_or_never() {
            limiter.resize(&mut permit, None).await.unwrap();
            permits.push(permit);
        }
        assert_eq!(permits.len(), 2);
        // One turns out to be a part, so another part may be read, or several small ones.
        permits[0].shrink(Some(4));
        assert!(limiter.acquire().now_or_never().is_none(), "it is not known yet");
        drop(permits.pop());
        let mut next = limiter.acquire().await.unwrap();
        limiter.resize(&mut next, Some(4)).await.unwrap();
        let mut small = 0;
        while let Some(Ok(mut permit)) = limiter.acquire().now_or_never() {
            limiter.resize(&mut permit, Some(1)).await.unwrap();
            permits.push(permit);
            small += 1;
        }
        assert_eq!(small, 24, "of 32, 8 are taken");
        // A part that is nearly read returns all but one of its requests.
        next.shrink(Some(0));
        assert_eq!(
            (0..4).filter(|_| limiter.acquire().now_or_never().is_some()).count(),
            4,
            "each is given back at once"
        );
        assert_eq!(limiter.requests.available_permits(), 3);
        // A split that is computed after small parts waits for more requests.
        let mut permit = limiter.acquire().await.unwrap();
        assert!(limiter.resize(&mut permit, None).now_or_never().is_none());
        permits.clear();
        limiter.resize(&mut permit, None).await.unwrap();
        drop((permit, next));
        assert_eq!(limiter.requests.available_permits(), 32);
    }
}
