//! A queue bounded in bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use caju_types::{Error, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::queue_memory::QueueBound;

/// A first-in, first-out queue bounded in bytes, for any number of producers and consumers.
///
/// An item enters when fewer bytes than the bound are queued, so the queue holds at most the bound and one
/// item more, and an item larger than the bound still passes. Producers of large items wait for
/// [`ByteQueue::writable`] before they make the next one.
#[derive(Debug)]
pub struct ByteQueue<T> {
    state: Mutex<State<T>>,
    readable: Notify,
    bound: Arc<QueueBound>,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<(T, usize)>,
    bytes: usize,
    end: Option<Result<()>>,
}

impl<T> ByteQueue<T> {
    /// An empty queue.
    pub fn new(bound_bytes: usize) -> Self {
        Self::within(QueueBound::fixed(bound_bytes))
    }

    /// An empty queue with a bound that may change.
    pub fn within(bound: Arc<QueueBound>) -> Self {
        let state = Mutex::new(State { items: VecDeque::new(), bytes: 0, end: None });
        Self { state, readable: Notify::new(), bound }
    }

    /// Bytes that are queued.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Items that are queued.
    pub fn len(&self) -> usize {
        self.state.lock().items.len()
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the end was set, with items possibly still queued.
    pub fn is_closed(&self) -> bool {
        self.state.lock().end.is_some()
    }

    /// Waits until an item may enter; false if the queue was closed.
    pub async fn writable(&self) -> bool {
        loop {
            let waiting = self.bound.writable.notified();
            tokio::pin!(waiting);
            waiting.as_mut().enable();
            {
                let state = self.state.lock();
                if state.end.is_some() {
                    return false;
                }
                if self.bound.admits(state.bytes) {
                    drop(state);
                    // Another producer may wait for the same notification.
                    self.bound.writable.notify_one();
                    return true;
                }
                self.bound.on_full();
            }
            waiting.await;
        }
    }

    /// Appends an item when it may enter.
    ///
    /// # Errors
    /// The item, if the queue is closed.
    pub async fn push(&self, item: T, bytes: usize) -> Result<(), T> {
        if !self.writable().await {
            return Err(item);
        }
        self.push_now(item, bytes)
    }

    /// Appends an item without waiting, for producers that are bounded by other means.
    ///
    /// # Errors
    /// The item, if the queue is closed.
    pub fn push_now(&self, item: T, bytes: usize) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.end.is_some() {
            return Err(item);
        }
        state.items.push_back((item, bytes));
        state.bytes += bytes;
        self.bound.on_push(state.bytes);
        drop(state);
        self.readable.notify_one();
        Ok(())
    }

    /// The next item, if there is one now.
    pub fn try_pop(&self) -> Option<T> {
        self.try_pop_if(|_, _| true)
    }

    /// The next item, if there is one now and `wanted` accepts it.
    pub fn try_pop_if(&self, wanted: impl FnOnce(&T, usize) -> bool) -> Option<T> {
        let mut state = self.state.lock();
        match state.items.front() {
            Some((item, bytes)) if wanted(item, *bytes) => {}
            _ => return None,
        }
        let (item, bytes) = state.items.pop_front()?;
        state.bytes -= bytes;
        self.bound.on_pop(state.bytes);
        let more = !state.items.is_empty();
        drop(state);
        self.bound.writable.notify_one();
        if more {
            self.readable.notify_one();
        }
        Some(item)
    }

    /// Waits for the next item; `None` at a successful end. Cancelling the wait loses nothing.
    ///
    /// # Errors
    /// The error that the queue was closed with, after the items that came before it.
    pub async fn pop(&self) -> Result<Option<T>> {
        loop {
            let waiting = self.readable.notified();
            tokio::pin!(waiting);
            waiting.as_mut().enable();
            if let Some(item) = self.try_pop() {
                return Ok(Some(item));
            }
            {
                let state = self.state.lock();
                if state.items.is_empty()
                    && let Some(end) = &state.end
                {
                    let end = end.clone();
                    drop(state);
                    self.readable.notify_waiters();
                    return end.map(|()| None);
                }
                if state.items.is_empty() {
                    self.bound.on_empty();
                }
            }
            waiting.await;
        }
    }

    /// Ends the queue behind the queued items; the first end counts.
    pub fn close(&self, end: Result<()>) {
        {
            let mut state = self.state.lock();
            if state.end.is_none() {
                state.end = Some(end);
            }
        }
        self.wake_all();
    }

    /// Drops the queued items and ends the queue with an error; the first error counts.
    pub fn abort(&self, error: Error) {
        let dropped = {
            let mut state = self.state.lock();
            if !matches!(state.end, Some(Err(_))) {
                state.end = Some(Err(error));
            }
            state.bytes = 0;
            self.bound.on_pop(0);
            std::mem::take(&mut state.items)
        };
        drop(dropped);
        self.wake_all();
    }

    fn wake_all(&self) {
        self.bound.on_end();
        self.readable.notify_waiters();
        self.readable.notify_one();
        self.bound.writable.notify_waiters();
        self.bound.writable.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn bounded_in_bytes_and_ends() {
        let q = Arc::new(ByteQueue::new(10));
        q.push(1, 100).await.unwrap();
        assert!(tokio::time::timeout(std::time::Duration::from_millis(5), q.writable()).await.is_err());
        let waiter = {
            let q = Arc::clone(&q);
            async move { q.push(2, 1).await }
        };
        let (pushed, popped) = tokio::join!(waiter, q.pop());
        pushed.unwrap();
        assert_eq!(popped.unwrap(), Some(1));
        q.close(Ok(()));
        assert_eq!(q.push(3, 1).await, Err(3));
        assert_eq!(q.pop().await.unwrap(), Some(2));
        assert_eq!(q.pop().await.unwrap(), None);
        assert_eq!(q.pop().await.unwrap(), None);
        let q = ByteQueue::<u8>::new(1);
        q.push(1, 1).await.unwrap();
        q.abort(Error::cancelled("gone"));
        assert_eq!(q.bytes(), 0);
        assert!(q.pop().await.is_err());
    }

    #[tokio::test]
    async fn a_queue_says_who_waited_and_a_raised_bound_lets_producers_in() {
        let memory = crate::QueueMemory::new(100);
        let q = Arc::new(ByteQueue::within(memory.bound(10)));
        q.push(1, 10).await.unwrap();
        let waits = || memory.queues().first().map(|q| (q.full, q.empty)).unwrap_or_default();
        let pushing = q.push(2, 10);
        tokio::pin!(pushing);
        assert!(futures::poll!(pushing.as_mut()).is_pending());
        std::thread::park_timeout(std::time::Duration::from_millis(5));
        assert!(waits().0 >= std::time::Duration::from_millis(5) && waits().1.is_zero(), "{:?}", waits());
        memory.set(|_| Some(30));
        pushing.await.unwrap();
        q.pop().await.unwrap();
        q.pop().await.unwrap();
        let full = waits().0;
        let popping = q.pop();
        tokio::pin!(popping);
        assert!(futures::poll!(popping.as_mut()).is_pending());
        std::thread::park_timeout(std::time::Duration::from_millis(5));
        assert!(waits().1 >= std::time::Duration::from_millis(5) && waits().0 == full, "{:?}", waits());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn many_producers_and_consumers_lose_nothing() {
        let q = Arc::new(ByteQueue::new(7));
        let mut producers = tokio::task::JoinSet::new();
        for p in 0..4u64 {
            let q = Arc::clone(&q);
            producers.spawn(async move {
                for i in 0..500u64 {
                    q.push(p * 500 + i, 3).await.unwrap();
                }
            });
        }
        let mut consumers = tokio::task::JoinSet::new();
        for _ in 0..3 {
            let q = Arc::clone(&q);
            consumers.spawn(async move {
                let mut got = Vec::new();
                while let Some(x) = q.pop().await.unwrap() {
                    got.push(x);
                }
                got
            });
        }
        producers.join_all().await;
        q.close(Ok(()));
        let mut all: Vec<u64> = consumers.join_all().await.into_iter().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (0..2000).collect::<Vec<_>>());
    }
}
