//! One bound in bytes for all queues of a process.
//!
//! Each queue has a bound of its own, which a tuner may change, and all bounds together stay within that of the memory. A queue
//! that holds more than a lowered bound counts with what it holds: other queues get these bytes when it has given them out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The memory that queues share.
#[derive(Debug)]
pub struct QueueMemory {
    limit_bytes: usize,
    next: AtomicU64,
    bounds: Mutex<Vec<Weak<QueueBound>>>,
}

/// The bound of one queue, what the queue holds, and who waited for it. The memory has it back when it is dropped.
#[derive(Debug)]
pub struct QueueBound {
    id: u64,
    first: usize,
    state: Mutex<BoundState>,
    /// An item may enter.
    pub(crate) writable: Notify,
}

#[derive(Debug)]
struct BoundState {
    bound: usize,
    held: usize,
    full: Waited,
    empty: Waited,
}

/// Time for which somebody waited.
#[derive(Debug, Default)]
struct Waited {
    sum: Duration,
    since: Option<Instant>,
}

impl Waited {
    fn begin(&mut self) {
        self.since.get_or_insert_with(Instant::now);
    }

    fn end(&mut self) {
        self.sum += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
    }

    fn so_far(&self) -> Duration {
        self.sum + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

/// A queue, as its memory sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueUse {
    /// Identifies the queue among those of its memory.
    pub id: u64,
    /// Its bound in bytes.
    pub bound_bytes: usize,
    /// The bound that was asked for when it was made.
    pub first_bytes: usize,
    /// Bytes that it holds.
    pub held_bytes: usize,
    /// Time for which it was full and a producer waited.
    pub full: Duration,
    /// Time for which it was empty and a consumer waited.
    pub empty: Duration,
}

impl QueueMemory {
    /// Memory for queues that hold `limit_bytes` together.
    pub fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self { limit_bytes, next: AtomicU64::new(0), bounds: Mutex::default() })
    }

    /// Memory without a limit, for queues that are bounded one by one.
    pub fn unlimited() -> Arc<Self> {
        Self::new(usize::MAX)
    }

    /// The limit in bytes.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// A bound for one more queue: this many bytes, or as many as are free; at least 1, so that one item always fits.
    pub fn bound(&self, bytes: usize) -> Arc<QueueBound> {
        let mut bounds = self.bounds.lock();
        bounds.retain(|bound| bound.strong_count() > 0);
        let free = self.limit_bytes.saturating_sub(used(&bounds));
        let bound = QueueBound::new(self.next.fetch_add(1, Ordering::Relaxed), bytes, free);
        bounds.push(Arc::downgrade(&bound));
        bound
    }

    /// The queues that there are.
    pub fn queues(&self) -> Vec<QueueUse> {
        self.bounds.lock().iter().filter_map(Weak::upgrade).map(|bound| bound.usage()).collect()
    }

    /// Changes bounds, by the identifiers of queues. First some are lowered, and then others are raised as far as bytes are
    /// free.
    pub fn set(&self, wanted: impl Fn(u64) -> Option<usize>) {
        let bounds = self.bounds.lock();
        let all: Vec<_> = bounds.iter().filter_map(Weak::upgrade).collect();
        let changed = || all.iter().filter_map(|bound| Some((bound, wanted(bound.id)?)));
        for (bound, to) in changed() {
            let mut state = bound.state.lock();
            state.bound = state.bound.min(to.max(1));
        }
        let mut free = self.limit_bytes.saturating_sub(used(&bounds));
        for (bound, to) in changed() {
            let mut state = bound.state.lock();
            // What it holds beyond its bound is not free.
            let taken = state.bound.max(state.held);
            let more = to.saturating_sub(taken).min(free);
            if to > state.bound {
                state.bound = to.min(taken + more);
            }
            free -= more;
            drop(state);
            bound.writable.notify_one();
        }
    }
}

fn used(bounds: &[Weak<QueueBound>]) -> usize {
    let taken = |bound: Arc<QueueBound>| {
        let state = bound.state.lock();
        state.bound.max(state.held)
    };
    bounds.iter().filter_map(Weak::upgrade).map(taken).fold(0, usize::saturating_add)
}

impl QueueBound {
    fn new(id: u64, first: usize, free: usize) -> Arc<Self> {
        let (full, empty) = (Waited::default(), Waited::default());
        let state = Mutex::new(BoundState { bound: first.min(free).max(1), held: 0, full, empty });
        Arc::new(Self { id, first, state, writable: Notify::new() })
    }

    /// A bound that belongs to no memory and does not change.
    pub fn fixed(bytes: usize) -> Arc<Self> {
        Self::new(0, bytes, usize::MAX)
    }

    /// Whether a queue that holds this many bytes may take more. What it holds is counted from then on.
    pub fn admits(&self, held_bytes: usize) -> bool {
        let mut state = self.state.lock();
        state.held = held_bytes;
        held_bytes < state.bound
    }

    /// The bound, what the queue holds, and who waited for it.
    pub fn usage(&self) -> QueueUse {
        let state = self.state.lock();
        QueueUse {
            id: self.id,
            bound_bytes: state.bound,
            first_bytes: self.first,
            held_bytes: state.held,
            full: state.full.so_far(),
            empty: state.empty.so_far(),
        }
    }

    /// An item entered, and the queue holds this many bytes.
    pub(crate) fn on_push(&self, held_bytes: usize) {
        let mut state = self.state.lock();
        state.held = held_bytes;
        state.empty.end();
    }

    /// An item left, and the queue holds this many bytes.
    pub(crate) fn on_pop(&self, held_bytes: usize) {
        let mut state = self.state.lock();
        state.held = held_bytes;
        if held_bytes < state.bound {
            state.full.end();
        }
    }

    /// A producer waits for space.
    pub(crate) fn on_full(&self) {
        self.state.lock().full.begin();
    }

    /// A consumer waits for an item.
    pub(crate) fn on_empty(&self) {
        self.state.lock().empty.begin();
    }

    /// Nobody waits any more.
    pub(crate) fn on_end(&self) {
        let mut state = self.state.lock();
        state.full.end();
        state.empty.end();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_queue_gets_what_is_free() {
        let memory = QueueMemory::new(100);
        let (a, b, c) = (memory.bound(60), memory.bound(60), memory.bound(60));
        let bounds = || [&a, &b, &c].map(|q| q.usage().bound_bytes);
        assert_eq!(bounds(), [60, 40, 1], "one item always fits");
        assert!(a.admits(59) && !a.admits(60));
        // It holds 60 bytes, which nobody else gets before they have left.
        memory.set(|_| Some(33));
        assert_eq!(bounds(), [33, 33, 7]);
        a.on_pop(10);
        memory.set(|_| Some(33));
        assert_eq!(bounds(), [33, 33, 33]);
        drop(b);
        memory.set(|id| (id == 0).then_some(90));
        assert_eq!((a.usage().bound_bytes, c.usage().bound_bytes), (67, 33));
    }

    proptest! {
        /// Whatever is asked for and held: queues that hold no more than they may, and one item each, stay within the limit.
        #[test]
        fn queues_stay_within_their_memory(
            limit in 1usize..10_000,
            steps in prop::collection::vec((0u8..4, 0usize..6, 0usize..5_000), 1..80),
        ) {
            const ITEM: usize = 50;
            let memory = QueueMemory::new(limit);
            let mut queues: Vec<Arc<QueueBound>> = Vec::new();
            for (what, at, bytes) in steps {
                let at = if queues.is_empty() { 0 } else { at % queues.len() };
                match (what, queues.get(at)) {
                    (0, _) if queues.len() < 6 => queues.push(memory.bound(bytes)),
                    (1, Some(queue)) => {
                        let held = queue.usage().held_bytes;
                        if queue.admits(held) {
                            queue.on_push(held + ITEM);
                        }
                    }
                    (2, Some(queue)) => queue.on_pop(queue.usage().held_bytes.saturating_sub(bytes)),
                    (3, Some(_)) => memory.set(|id| (id % 2 == 0).then_some(bytes)),
                    _ => {}
                }
                let all = memory.queues();
                let held: usize = all.iter().map(|q| q.held_bytes).sum();
                prop_assert!(held <= limit + all.len() * (ITEM + 1), "{held} of {limit}: {all:?}");
            }
        }
    }
}
