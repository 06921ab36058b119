//! How long a task could compute.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The time in which a task could compute: not while its output was full, not while it had no split and waited for one, and not
/// after its last row. Rows by this time are what a worker gives that waits for nobody (the scaling loop divides by it).
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
}

impl Busy {
    fn is_busy(&self) -> bool {
        !(self.is_full || self.is_over || self.awaits_split && self.open_splits == 0)
    }

    fn total(&self, now: Instant) -> Duration {
        let since = if self.is_busy() { now.saturating_duration_since(self.since) } else { Duration::ZERO };
        self.total + since
    }
}

impl Default for BusyClock {
    fn default() -> Self {
        Self::starting(Instant::now())
    }
}

impl BusyClock {
    fn starting(since: Instant) -> Self {
        let (total, is_full, awaits_split, open_splits, is_over) = (Duration::ZERO, false, false, 0, false);
        Self(Mutex::new(Busy { total, since, is_full, awaits_split, open_splits, is_over }))
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

    fn change(&self, now: Instant, change: impl FnOnce(&mut Busy)) {
        let mut busy = self.0.lock();
        (busy.total, busy.since) = (busy.total(now), now);
        change(&mut busy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut Busy);

    #[test]
    fn time_counts_while_nothing_is_waited_for() {
        let start = Instant::now();
        let clock = BusyClock::starting(start);
        let changes: [(&str, Change, u64); 7] = [
            ("it computes", |_| {}, 1),
            ("its output is full, and still is", |busy| busy.is_full = true, 0),
            ("there is space", |busy| busy.is_full = false, 1),
            ("it has no split", |busy| busy.awaits_split = true, 0),
            ("it computes one while it waits for another one", |busy| busy.open_splits = 1, 1),
            (
                "no split is left, and rows are on their way",
                |b| (b.awaits_split, b.open_splits) = (false, 0),
                1,
            ),
            ("it has ended", |busy| busy.is_over = true, 0),
        ];
        let (mut at, mut expected) = (start, Duration::ZERO);
        for (what, change, seconds) in changes {
            clock.change(at, change);
            at += Duration::from_secs(1);
            expected += Duration::from_secs(seconds);
            assert_eq!(clock.0.lock().total(at), expected, "{what}");
        }
    }
}
