//! What the user has taken: rows that it got before it asked for more. They are what the dispatcher hears as
//! acknowledged; whatever else this reader holds goes to others if it vanishes (I3).

use std::sync::atomic::{AtomicU64, Ordering};

use caju_wire::Run;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// The account of one reader.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    inner: Mutex<Inner>,
    /// Rows of the handed chunk that the user has taken, counted from its beginning.
    of_handed: AtomicU64,
    notify: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    /// The chunk that the user has in hand: its runs, and how many of its rows wait in the merger's account.
    handed: Vec<Run>,
    handed_merged: u64,
    /// Rows of `handed` that were taken out already, from its beginning.
    drawn: u64,
    /// Rows that were taken and not reported yet.
    pending: Vec<Run>,
    arrived: u64,
    taken: u64,
    /// Rows that went through the merger, which reorders, and were not taken yet.
    merging: u64,
    took_any: bool,
}

impl Inner {
    fn take(&mut self, rows: u64) {
        let (mut skip, mut left) = (self.drawn, rows.saturating_sub(self.drawn));
        self.drawn += left;
        self.taken += left;
        for run in &self.handed {
            let skipped = skip.min(run.len);
            let len = left.min(run.len - skipped);
            skip -= skipped;
            left -= len;
            if len > 0 {
                self.pending.push(Run { split: run.split, start: run.start + skipped, len });
            }
            if left == 0 {
                break;
            }
        }
    }
}

impl Acks {
    /// Fresh rows came in.
    pub(crate) fn arrived(&self, rows: u64) {
        self.inner.lock().arrived += rows;
    }

    /// Rows are in the merger from now on.
    pub(crate) fn merging(&self, rows: u64) {
        self.inner.lock().merging += rows;
    }

    /// Rows that the user will never see because the pipeline drops short batches: they count as taken.
    pub(crate) fn dropped<'a>(&self, runs: impl Iterator<Item = &'a Run>) {
        let mut inner = self.inner.lock();
        for run in runs {
            inner.taken += run.len;
            inner.merging = inner.merging.saturating_sub(run.len);
            inner.pending.push(*run);
        }
    }

    /// Rows that came a second time and that the user has, or will get, from elsewhere.
    pub(crate) fn came_twice(&self, runs: &[Run]) {
        self.inner.lock().pending.extend_from_slice(runs);
    }

    /// The user asks for more: it has taken what it had in hand. From now on it has this chunk in hand.
    pub(crate) fn hand(&self, runs: &[Run], merged: bool) {
        let mut inner = self.inner.lock();
        inner.handed.clear();
        inner.handed.extend_from_slice(runs);
        inner.drawn = 0;
        inner.handed_merged = if merged { runs.iter().map(|r| r.len).sum() } else { 0 };
        self.of_handed.store(0, Ordering::Release);
    }

    /// The user asks for the next element of the chunk in hand: it has taken this many rows of it.
    pub(crate) fn taken_of_handed(&self, rows: u64) {
        // The first rows matter: from now on this reader cannot vanish without loss.
        if self.of_handed.swap(rows, Ordering::AcqRel) == 0 && rows > 0 {
            self.first();
        }
    }

    fn first(&self) {
        let mut inner = self.inner.lock();
        if !inner.took_any {
            inner.took_any = true;
            drop(inner);
            self.notify.notify_one();
        }
    }

    /// The user asks for more than the chunk in hand: it has taken all of it.
    pub(crate) fn taken_handed(&self) {
        let mut inner = self.inner.lock();
        let rows = inner.handed.iter().map(|r| r.len).sum();
        inner.take(rows);
        inner.merging = inner.merging.saturating_sub(inner.handed_merged);
        inner.handed_merged = 0;
        inner.handed.clear();
        inner.drawn = 0;
        self.of_handed.store(0, Ordering::Release);
        drop(inner);
        if rows > 0 {
            self.first();
        }
    }

    /// The user waits: the dispatcher may be waiting for what it took.
    pub(crate) fn user_waits(&self) {
        self.notify.notify_one();
    }

    /// Waits until the dispatcher should hear of rows at once.
    pub(crate) async fn news(&self) {
        self.notify.notified().await;
    }

    /// Rows that came in so far.
    pub(crate) fn arrived_rows(&self) -> u64 {
        self.inner.lock().arrived
    }

    /// Whether the user took everything that had come in when this number of rows had.
    pub(crate) fn is_taken(&self, arrived: u64) -> bool {
        let inner = self.inner.lock();
        inner.merging == 0 && inner.taken >= arrived
    }

    /// Whether the user took everything that came in.
    pub(crate) fn is_all_taken(&self) -> bool {
        let inner = self.inner.lock();
        inner.merging == 0 && inner.taken >= inner.arrived
    }

    /// Rows that the user took since the last call.
    pub(crate) fn draw(&self) -> Vec<Run> {
        let mut inner = self.inner.lock();
        let rows = self.of_handed.load(Ordering::Acquire);
        inner.take(rows);
        std::mem::take(&mut inner.pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, len: u64) -> Run {
        Run { split: 1, start, len }
    }

    #[test]
    fn rows_are_taken_when_more_is_asked_for() {
        let acks = Acks::default();
        acks.arrived(10);
        acks.hand(&[run(0, 4), run(20, 2)], false);
        assert!(acks.draw().is_empty(), "the user has them in hand");
        acks.taken_of_handed(5);
        assert_eq!(acks.draw(), [run(0, 4), run(20, 1)]);
        acks.taken_of_handed(5);
        assert!(acks.draw().is_empty());
        acks.taken_handed();
        assert_eq!(acks.draw(), [run(21, 1)]);
        assert!(acks.is_taken(6) && !acks.is_taken(7) && !acks.is_all_taken());
        acks.hand(&[run(4, 4)], false);
        acks.taken_handed();
        assert!(acks.is_all_taken());
        assert_eq!(acks.draw(), [run(4, 4)]);
    }

    #[test]
    fn rows_in_the_merger_are_not_taken_by_taking_others() {
        let acks = Acks::default();
        acks.arrived(8);
        acks.merging(3);
        acks.hand(&[run(0, 5)], false);
        acks.taken_handed();
        assert!(!acks.is_taken(5), "nobody knows which of them came first");
        acks.hand(&[run(5, 3)], true);
        assert!(!acks.is_taken(8));
        acks.taken_handed();
        assert!(acks.is_taken(8));
        acks.arrived(2);
        acks.merging(2);
        acks.dropped([run(8, 2)].iter());
        assert!(acks.is_all_taken());
    }

    #[tokio::test]
    async fn the_first_rows_are_news() {
        let acks = Acks::default();
        acks.hand(&[run(0, 4)], false);
        acks.taken_of_handed(1);
        acks.news().await;
        acks.taken_of_handed(2);
        acks.taken_handed();
        assert!(futures::poll!(Box::pin(acks.news())).is_pending());
        acks.user_waits();
        acks.news().await;
    }
}
