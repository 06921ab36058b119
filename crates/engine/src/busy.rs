//! How long a task worked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The time in which a task worked as fast as it can. Rows by this time are what a worker gives that waits for nobody (the
/// scaling loop divides by it).
///
/// All time counts in which the task has a split and its output has space. Without a split, or while the output is full, the
/// stages may still compute ahead. Such time counts by the fraction of the task's threads, readers or turns that are at work, so
/// that it ends when all buffers are full. No time counts after the last row.
#[derive(Debug)]
pub struct BusyClock(Mutex<Busy>);

#[derive(Debug)]
struct Busy {
    /// Until `since`.
    total: Duration,
    since: Instant,
    is_full: bool,
    awaits_split: bool,
    open_splits: usize,
    is_over: bool,
    threads: Concurrency,
    reads: Concurrency,
    turns: Concurrency,
}

/// Pieces of work of one kind.
#[derive(Debug, Clone, Copy, Default)]
struct Concurrency {
    now: usize,
    /// The number at which the task is as fast as it can be.
    most: usize,
}

impl Concurrency {
    fn fraction(self) -> f64 {
        self.now as f64 / self.most.max(1) as f64
    }
}

impl Busy {
    /// The fraction of the present time that counts.
    fn fraction(&self) -> f64 {
        if self.is_over {
            return 0.0;
        }
        let has_no_split = self.awaits_split && self.open_splits == 0;
        if !(self.is_full || has_no_split) {
            return 1.0;
        }
        [self.threads, self.reads, self.turns]
            .into_iter()
            .map(Concurrency::fraction)
            .fold(0.0, f64::max)
            .min(1.0)
    }

    fn total(&self, now: Instant) -> Duration {
        self.total + now.saturating_duration_since(self.since).mul_f64(self.fraction())
    }
}

impl Default for BusyClock {
    fn default() -> Self {
        Self::starting(Instant::now())
    }
}

impl BusyClock {
    fn starting(since: Instant) -> Self {
        let none = Concurrency::default();
        Self(Mutex::new(Busy {
            total: Duration::ZERO,
            since,
            is_full: false,
            awaits_split: false,
            open_splits: 0,
            is_over: false,
            threads: none,
            reads: none,
            turns: none,
        }))
    }

    /// The time so far.
    pub fn busy(&self) -> Duration {
        self.0.lock().total(Instant::now())
    }

    /// Whether the output has no space for a further chunk.
    pub fn set_full(&self, is_full: bool) {
        self.change(Instant::now(), |busy| busy.is_full = is_full);
    }

    /// The task has given out its last row.
    pub fn end(&self) {
        self.change(Instant::now(), |busy| busy.is_over = true);
    }

    /// Whether the task waits for the lease of a split.
    pub(crate) fn set_awaits_split(&self, awaits: bool) {
        self.change(Instant::now(), |busy| busy.awaits_split = awaits);
    }

    /// A split was leased.
    pub(crate) fn split_begins(&self) {
        self.change(Instant::now(), |busy| busy.open_splits += 1);
    }

    /// All rows of a split have passed the split-local stages.
    pub(crate) fn split_ends(&self) {
        self.change(Instant::now(), |busy| busy.open_splits = busy.open_splits.saturating_sub(1));
    }

    /// The splits that the task may read concurrently from now on.
    pub(crate) fn set_readers(&self, readers: usize) {
        self.change(Instant::now(), |busy| busy.reads.most = readers);
    }

    /// A reader waits for rows of its split, until the answer is dropped.
    pub(crate) fn reading(self: &Arc<Self>) -> BusyGuard {
        self.begin(|busy| &mut busy.reads)
    }

    /// Rows are computed on one of this many threads, or wait for one, until the answer is dropped.
    pub(crate) fn computing(self: &Arc<Self>, threads: usize) -> BusyGuard {
        self.change(Instant::now(), |busy| busy.threads.most = threads);
        self.begin(|busy| &mut busy.threads)
    }

    /// Rows pass a stage that works for one chunk at a time, or wait for their turn, until the answer is dropped.
    pub(crate) fn in_turn(self: &Arc<Self>) -> BusyGuard {
        self.begin(|busy| &mut busy.turns)
    }

    fn begin(self: &Arc<Self>, kind: Kind) -> BusyGuard {
        self.change(Instant::now(), |busy| kind(busy).now += 1);
        BusyGuard { clock: Arc::clone(self), kind }
    }

    fn change(&self, now: Instant, change: impl FnOnce(&mut Busy)) {
        let mut busy = self.0.lock();
        (busy.total, busy.since) = (busy.total(now), now);
        change(&mut busy);
    }
}

type Kind = fn(&mut Busy) -> &mut Concurrency;

/// A piece of a task's work, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct BusyGuard {
    clock: Arc<BusyClock>,
    kind: Kind,
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.clock.change(Instant::now(), |busy| {
            let pieces = (self.kind)(busy);
            pieces.now = pieces.now.saturating_sub(1);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Busy);

    #[test]
    fn time_counts_while_the_task_works() {
        let start = Instant::now();
        let clock = BusyClock::starting(start);
        let threads = |now| Concurrency { now, most: 4 };
        let set = |busy: &mut Busy, now| busy.threads = threads(now);
        set(&mut clock.0.lock(), 1);
        // Each with the quarters of a second that count.
        let changes: [(&str, Change, u64); 11] = [
            ("it computes, as fast as one thread alone can", |_| {}, 4),
            ("its output is full, and one of four threads computes ahead", |b| b.is_full = true, 1),
            ("all threads do, and further rows wait for one", |b| b.threads.now = 5, 4),
            ("all buffers are full", |b| b.threads.now = 0, 0),
            ("half of the readers still read", |b| b.reads = Concurrency { now: 1, most: 2 }, 2),
            ("a stage that takes turns is at work", |b| b.turns.now = 1, 4),
            ("nothing is at work any more", |b| (b.reads.now, b.turns.now) = (0, 0), 0),
            ("there is space", |b| b.is_full = false, 4),
            (
                "it has no split, and one of four threads has rows left",
                |b| {
                    (b.awaits_split, b.threads.now) = (true, 1);
                },
                1,
            ),
            ("it computes a split while it waits for another one", |b| b.open_splits = 1, 4),
            ("it has ended", |b| b.is_over = true, 0),
        ];
        let (mut at, mut expected) = (start, Duration::ZERO);
        for (what, change, quarters) in changes {
            clock.change(at, change);
            at += Duration::from_secs(1);
            expected += Duration::from_millis(250 * quarters);
            assert_eq!(clock.0.lock().total(at), expected, "{what}");
        }
    }

    #[test]
    fn work_counts_until_it_is_dropped() {
        let clock = Arc::new(BusyClock::default());
        clock.set_readers(3);
        let work = (clock.reading(), clock.computing(2), clock.in_turn());
        let now = |clock: &BusyClock| {
            let busy = clock.0.lock();
            [busy.reads, busy.threads, busy.turns].map(|pieces| (pieces.now, pieces.most))
        };
        assert_eq!(now(&clock), [(1, 3), (1, 2), (1, 0)]);
        drop(work);
        assert_eq!(now(&clock), [(0, 3), (0, 2), (0, 0)]);
    }
}
