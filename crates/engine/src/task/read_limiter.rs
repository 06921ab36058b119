//! Limits the splits that a task reads concurrently.

use std::sync::Arc;

use caju_cache::Cache;
use caju_types::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The number of splits that a task reads concurrently. A tuner changes it while the task runs.
#[derive(Debug)]
pub struct ReadLimit {
    requests: Arc<Semaphore>,
    /// Requests that one reader may hold at most.
    per_reader: usize,
    max_readers: usize,
    size: Mutex<Size>,
}

#[derive(Debug)]
struct Size {
    readers: usize,
    /// Requests that were taken from the limit and that readers still hold.
    owed: usize,
}

impl ReadLimit {
    pub(super) fn new(readers: usize, max_readers: usize) -> Arc<Self> {
        let all = Cache::answers_at_once(Cache::requests_at_once(readers));
        Arc::new(Self {
            requests: Arc::new(Semaphore::new(all)),
            per_reader: (all / readers.max(1)).max(1),
            max_readers: max_readers.max(readers),
            size: Mutex::new(Size { readers, owed: 0 }),
        })
    }

    /// The number of splits.
    pub fn readers(&self) -> usize {
        self.size.lock().readers
    }

    /// Reads this many splits from now on, at least one and at most as many as the task was started for. Splits that are being
    /// read are read to their end.
    pub fn set_readers(&self, readers: usize) {
        let readers = readers.clamp(1, self.max_readers);
        let mut size = self.size.lock();
        if readers >= size.readers {
            let more = (readers - size.readers) * self.per_reader;
            let paid = size.owed.min(more);
            size.owed -= paid;
            self.requests.add_permits(more - paid);
        } else {
            size.owed += (size.readers - readers) * self.per_reader;
        }
        size.readers = readers;
        drop(size);
        self.settle();
    }

    /// Takes back what readers have returned of the requests that are owed.
    fn settle(&self) {
        let mut size = self.size.lock();
        if size.owed > 0 {
            size.owed -= self.requests.forget_permits(size.owed);
        }
    }
}

/// Limits concurrent reads of splits by the answers to store requests that they hold, those to come included. More small
/// parts, and more parts that are nearly read, are read concurrently from a store with a high latency.
pub(super) struct ReadLimiter {
    limit: Arc<ReadLimit>,
    /// Requests of a split that is computed, or whose part is not known: the most that one reader may hold.
    max_requests: usize,
    /// Requests of the last split, which are expected of the next one.
    expected: usize,
}

/// The right to read one split; returned when it is dropped.
pub(super) struct ReadPermit(OwnedSemaphorePermit);

impl ReadLimiter {
    pub(super) fn new(limit: Arc<ReadLimit>) -> Self {
        let max_requests = limit.per_reader;
        Self { limit, max_requests, expected: max_requests }
    }

    /// Waits until one more split may be read.
    ///
    /// # Errors
    /// `Internal` if the limiter is closed, which does not happen while the task lives.
    pub(super) async fn acquire(&self) -> Result<ReadPermit> {
        self.limit.settle();
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
        Arc::clone(&self.limit.requests)
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
        let mut limiter = ReadLimiter::new(ReadLimit::new(2, 2));
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
        assert_eq!(limiter.limit.requests.available_permits(), 3);
        // A split that is computed after small parts waits for more requests.
        let mut permit = limiter.acquire().await.unwrap();
        assert!(limiter.resize(&mut permit, None).now_or_never().is_none());
        permits.clear();
        limiter.resize(&mut permit, None).await.unwrap();
        drop((permit, next));
        assert_eq!(limiter.limit.requests.available_permits(), 32);
    }

    /// Starts as many readers of splits that are computed as may be.
    async fn start_all(limiter: &mut ReadLimiter, permits: &mut Vec<ReadPermit>) -> usize {
        while let Some(Ok(mut permit)) = limiter.acquire().now_or_never() {
            limiter.resize(&mut permit, None).await.unwrap();
            permits.push(permit);
        }
        permits.len()
    }

    #[tokio::test]
    async fn the_number_of_concurrent_reads_may_be_changed() {
        let limit = ReadLimit::new(3, 12);
        let (mut limiter, mut permits) = (ReadLimiter::new(Arc::clone(&limit)), Vec::new());
        assert_eq!(start_all(&mut limiter, &mut permits).await, 3);
        limit.set_readers(8);
        assert_eq!(start_all(&mut limiter, &mut permits).await, 8);
        limit.set_readers(100);
        assert_eq!((start_all(&mut limiter, &mut permits).await, limit.readers()), (12, 12));
        // Those that run are read to their end, and then no others begin.
        limit.set_readers(2);
        permits.truncate(5);
        assert_eq!(start_all(&mut limiter, &mut permits).await, 5);
        permits.clear();
        assert_eq!(start_all(&mut limiter, &mut permits).await, 2);
        // What is owed counts when the limit rises again.
        limit.set_readers(1);
        limit.set_readers(4);
        assert_eq!(start_all(&mut limiter, &mut permits).await, 4);
    }

    /// A raised limit wakes the one who waits for it.
    #[tokio::test]
    async fn a_raised_limit_lets_a_waiting_reader_begin() {
        let limit = ReadLimit::new(1, 2);
        let (mut limiter, mut permits) = (ReadLimiter::new(Arc::clone(&limit)), Vec::new());
        start_all(&mut limiter, &mut permits).await;
        let mut waiting = std::pin::pin!(limiter.acquire());
        assert!(waiting.as_mut().now_or_never().is_none());
        limit.set_readers(2);
        assert!(waiting.now_or_never().is_some());
    }
}
