//! The rows that the user has taken: those that it got before it asked for more. They are reported to the dispatcher as
//! acknowledged; all other rows of this reader go to other readers if it vanishes.
//!
//! A reader that ends before its epoch does gives back what its user was not handed: [`Acks::close`] fixes the boundary: the
//! element that the user has in hand then counts as taken, and no further one is handed out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use caju_wire::{Chunk, Run};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::element_count::ElementCount;

/// The acknowledgements of one reader.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    inner: Mutex<Inner>,
    /// How far the user is in the handed chunk, as [`Progress`] in one word: user and session agree on it without a lock.
    of_handed: AtomicU64,
    /// The user has asked for rows.
    asked: AtomicBool,
    notify: Notify,
}

/// How far the user is in a chunk that it is handed element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Progress {
    /// Rows that it has taken, from the chunk's beginning; 32 bits.
    taken: u64,
    /// Rows of the element in hand; 31 bits.
    in_hand: u64,
    /// Nothing more is handed out.
    closed: bool,
}

impl Progress {
    /// The bit of `closed`: the highest one of the word, above both numbers.
    const CLOSED: u64 = 1 << 63;
    /// The most rows that `taken` holds: the lower 32 bits of the word.
    const MAX_TAKEN: u64 = (1 << 32) - 1;
    /// The most rows that `in_hand` holds: the 31 bits between `taken` and `closed`. An element is a batch at
    /// most, and Arrow counts the rows of a batch in 31 bits.
    const MAX_IN_HAND: u64 = (1 << 31) - 1;

    fn of_word(word: u64) -> Self {
        let (taken, in_hand) = (word & Self::MAX_TAKEN, (word >> 32) & Self::MAX_IN_HAND);
        Self { taken, in_hand, closed: word & Self::CLOSED != 0 }
    }

    /// Numbers that do not fit are cut: rows that are not said to be taken come again, and none is lost.
    fn word(taken: u64, in_hand: u64) -> u64 {
        taken.min(Self::MAX_TAKEN) | in_hand.min(Self::MAX_IN_HAND) << 32
    }
}

/// What the user took since the last call of [`Acks::draw`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Drawn {
    /// The rows.
    pub(crate) runs: Vec<Run>,
    /// Elements that the user took since the reader began, padding included.
    pub(crate) elements: u64,
}

/// What is left of the chunk that the user is handed element by element: it has not got it so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkRemainder {
    pub(crate) rows: u64,
    pub(crate) elements: u64,
    pub(crate) bytes: u64,
    pub(crate) is_padding: bool,
}

#[derive(Debug, Default)]
struct Inner {
    /// The chunk that the user holds: its runs, its elements, and how many of its rows came through the merger.
    handed: Vec<Run>,
    handed_elements: ElementCount,
    handed_merged: u64,
    handed_bytes: u64,
    /// The user got the whole chunk at once.
    whole: bool,
    /// Rows of `handed` that were taken out already, from its beginning.
    drawn: u64,
    /// Rows that were taken and not reported yet.
    pending: Vec<Run>,
    /// Elements that were taken.
    elements: u64,
    arrived: u64,
    taken: u64,
    /// Rows that went through the merger, which reorders, and were not taken yet.
    merging: u64,
    took_any: bool,
    closed: bool,
}

impl Inner {
    fn take(&mut self, rows: u64) {
        self.elements += self.handed_elements.advance(rows);
        // Padding has no runs, and nothing to acknowledge.
        let rows = rows.min(self.handed_rows());
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

    fn handed_rows(&self) -> u64 {
        self.handed.iter().map(|r| r.len).sum()
    }
}

impl Acks {
    /// Rows that were not received before have arrived.
    pub(crate) fn arrived(&self, rows: u64) {
        self.inner.lock().arrived += rows;
    }

    /// Rows have entered the merger.
    pub(crate) fn merging(&self, rows: u64) {
        self.inner.lock().merging += rows;
    }

    /// Rows that the user never gets because the pipeline drops short batches count as taken. False if the reader is closed:
    /// then they go to others.
    #[must_use]
    pub(crate) fn dropped<'a>(&self, runs: impl Iterator<Item = &'a Run>) -> bool {
        let mut inner = self.inner.lock();
        if inner.closed {
            return false;
        }
        for run in runs {
            inner.taken += run.len;
            inner.merging = inner.merging.saturating_sub(run.len);
            inner.pending.push(*run);
        }
        true
    }

    /// The user asks for more: it has taken the chunk that it held, and holds this one from now on, as a whole or element by
    /// element. False if the reader is closed: then the user gets nothing more.
    #[must_use]
    pub(crate) fn hand(&self, chunk: &Chunk, merged: bool, whole: bool) -> bool {
        let mut inner = self.inner.lock();
        if inner.closed {
            return false;
        }
        inner.handed.clear();
        inner.handed.extend_from_slice(&chunk.runs);
        inner.handed_elements = ElementCount::of(chunk);
        inner.handed_bytes = chunk.bytes() as u64;
        inner.drawn = 0;
        inner.whole = whole;
        inner.handed_merged = if merged { inner.handed_rows() } else { 0 };
        self.of_handed.store(0, Ordering::Release);
        true
    }

    /// The user asks for the next element, of the given number of rows, of the chunk that it holds: it has taken the rows
    /// before it. False if the reader is closed: then the user does not get the element.
    #[must_use]
    pub(crate) fn hand_next(&self, taken: u64, next: u64) -> bool {
        let before = self.of_handed.swap(Progress::word(taken, next), Ordering::AcqRel);
        let before = Progress::of_word(before);
        if before.closed {
            self.of_handed.fetch_or(Progress::CLOSED, Ordering::AcqRel);
            return false;
        }
        // The first rows are reported at once: from now on this reader cannot vanish without loss.
        if before.taken == 0 && taken > 0 {
            self.first();
        }
        true
    }

    fn first(&self) {
        let mut inner = self.inner.lock();
        if !inner.took_any {
            inner.took_any = true;
            drop(inner);
            self.notify.notify_one();
        }
    }

    /// The user asks for more than the chunk that it holds: it has taken all of it. False if the reader is closed: then the
    /// user has taken what it was handed until then.
    pub(crate) fn taken_handed(&self) -> bool {
        let mut inner = self.inner.lock();
        if inner.closed {
            return false;
        }
        let rows = inner.handed_rows();
        inner.take(u64::MAX);
        inner.handed_elements = ElementCount::default();
        inner.merging = inner.merging.saturating_sub(inner.handed_merged);
        inner.handed_merged = 0;
        inner.handed.clear();
        inner.drawn = 0;
        self.of_handed.store(0, Ordering::Release);
        drop(inner);
        if rows > 0 {
            self.first();
        }
        true
    }

    /// Stops handing out elements. The element that the user has in hand counts as taken: the user asks for another one only
    /// to get the end.
    pub(crate) fn close(&self) {
        let mut inner = self.inner.lock();
        let progress = Progress::of_word(self.of_handed.fetch_or(Progress::CLOSED, Ordering::AcqRel));
        if !std::mem::replace(&mut inner.closed, true) {
            let rows = if inner.whole { u64::MAX } else { progress.taken + progress.in_hand };
            inner.take(rows);
        }
    }

    /// Stops handing out elements because the user could not use what it has in hand: its code panicked, or the element could not
    /// be converted. The element does not count as taken, and goes to other readers.
    pub(crate) fn give_back(&self) {
        let mut inner = self.inner.lock();
        let progress = Progress::of_word(self.of_handed.fetch_or(Progress::CLOSED, Ordering::AcqRel));
        self.of_handed.store(Progress::word(progress.taken, 0) | Progress::CLOSED, Ordering::Release);
        if !std::mem::replace(&mut inner.closed, true) && !inner.whole {
            inner.take(progress.taken);
        }
    }

    /// The user waits for rows, and the dispatcher may wait for acknowledgements.
    pub(crate) fn user_waits(&self) {
        self.asked.store(true, Ordering::Release);
        self.notify.notify_one();
    }

    /// The session has something to report at once.
    pub(crate) fn report_soon(&self) {
        self.notify.notify_one();
    }

    /// Whether the user has ever asked for rows.
    pub(crate) fn has_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Waits until rows should be reported to the dispatcher at once.
    pub(crate) async fn report_due(&self) {
        self.notify.notified().await;
    }

    /// Rows that arrived so far.
    pub(crate) fn arrived_rows(&self) -> u64 {
        self.inner.lock().arrived
    }

    /// Whether the user took all of the first `arrived` rows.
    pub(crate) fn is_taken(&self, arrived: u64) -> bool {
        let inner = self.inner.lock();
        inner.merging == 0 && inner.taken >= arrived
    }

    /// Rows that arrived so far, and those of them that the user has taken.
    pub(crate) fn progress(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let handed = Progress::of_word(self.of_handed.load(Ordering::Acquire)).taken;
        let undrawn = if inner.closed { 0 } else { handed.saturating_sub(inner.drawn) };
        (inner.arrived, inner.taken + undrawn)
    }

    /// What the user has not got of the chunk that it is handed element by element.
    pub(crate) fn remainder(&self) -> ChunkRemainder {
        let inner = self.inner.lock();
        let all = inner.handed_elements.rows();
        if inner.whole || all == 0 {
            return ChunkRemainder::default();
        }
        let progress = Progress::of_word(self.of_handed.load(Ordering::Acquire));
        let got = progress.taken.saturating_add(progress.in_hand).min(all);
        let rows = all - got;
        ChunkRemainder {
            rows,
            elements: inner.handed_elements.behind(got),
            bytes: u64::try_from(u128::from(inner.handed_bytes) * u128::from(rows) / u128::from(all))
                .unwrap_or(u64::MAX),
            is_padding: inner.handed.is_empty(),
        }
    }

    /// Whether the user took all rows that arrived.
    pub(crate) fn is_all_taken(&self) -> bool {
        let inner = self.inner.lock();
        inner.merging == 0 && inner.taken >= inner.arrived
    }

    /// Rows that the user took since the last call, and all elements.
    pub(crate) fn draw(&self) -> Drawn {
        let mut inner = self.inner.lock();
        if !inner.closed {
            inner.take(Progress::of_word(self.of_handed.load(Ordering::Acquire)).taken);
        }
        Drawn { runs: std::mem::take(&mut inner.pending), elements: inner.elements }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{RecordBatch, UInt64Array};
    use caju_wire::Elements;

    use super::*;

    fn run(start: u64, len: u64) -> Run {
        Run { split: 1, start, len }
    }

    fn chunk(runs: &[Run], elements: Elements) -> Chunk {
        let ids = UInt64Array::from_iter_values(runs.iter().flat_map(|r| r.start..r.start + r.len));
        let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap();
        Chunk { elements, ..Chunk::rows_of(batch, runs.to_vec()) }
    }

    fn hand(acks: &Acks, runs: &[Run], merged: bool, whole: bool) -> bool {
        acks.hand(&chunk(runs, Elements::Rows), merged, whole)
    }

    #[test]
    fn elements_are_taken_when_their_last_rows_are() {
        let acks = Acks::default();
        assert!(acks.hand(&chunk(&[run(0, 6)], Elements::Lengths(vec![2, 3, 1])), false, false));
        let drawn = [(0, 2), (2, 3), (5, 1)].map(|(taken, next)| {
            assert!(acks.hand_next(taken, next));
            acks.draw().elements
        });
        assert_eq!(drawn, [0, 1, 2]);
        acks.taken_handed();
        assert_eq!(acks.draw().elements, 3);
        let padding = Chunk { runs: Vec::new(), ..chunk(&[run(0, 4)], Elements::Lengths(vec![2, 2])) };
        assert!(acks.hand(&padding, false, false) && acks.hand_next(0, 2) && acks.hand_next(2, 2));
        assert_eq!(acks.draw().elements, 4, "padding counts");
        acks.close();
        assert_eq!(acks.draw().elements, 5, "what the user has in hand is taken");
    }

    #[test]
    fn the_rest_of_a_chunk_is_what_the_user_has_not_got() {
        let acks = Acks::default();
        assert_eq!(acks.remainder(), ChunkRemainder::default());
        assert!(acks.hand(&chunk(&[run(0, 6)], Elements::Lengths(vec![2, 0, 3, 1])), false, false));
        let rest = |taken, next| {
            assert!(acks.hand_next(taken, next));
            let ChunkRemainder { rows, elements, .. } = acks.remainder();
            (rows, elements)
        };
        assert_eq!(rest(0, 2), (4, 3));
        acks.draw();
        assert_eq!(rest(2, 3), (1, 1));
        assert_eq!(rest(5, 1), (0, 0));
        acks.taken_handed();
        assert_eq!(acks.remainder(), ChunkRemainder::default());
        assert!(hand(&acks, &[run(0, 4)], false, false) && acks.hand_next(1, 1));
        let rest = acks.remainder();
        assert!((rest.rows, rest.elements) == (2, 2) && rest.bytes > 0 && !rest.is_padding, "{rest:?}");
        assert!(hand(&acks, &[run(0, 4)], false, true));
        assert_eq!(acks.remainder(), ChunkRemainder::default(), "as a whole");
    }

    #[test]
    fn rows_are_taken_when_more_is_asked_for() {
        let acks = Acks::default();
        acks.arrived(10);
        assert!(hand(&acks, &[run(0, 4), run(20, 2)], false, false));
        assert!(acks.draw().runs.is_empty(), "the user has them in hand");
        assert_eq!(acks.progress(), (10, 0));
        assert!(acks.hand_next(5, 1));
        assert_eq!(acks.progress(), (10, 5), "before it is drawn");
        assert_eq!(acks.draw().runs, [run(0, 4), run(20, 1)]);
        assert_eq!(acks.progress(), (10, 5), "and afterwards");
        assert!(acks.hand_next(5, 1));
        assert!(acks.draw().runs.is_empty());
        acks.taken_handed();
        assert_eq!(acks.draw().runs, [run(21, 1)]);
        assert!(acks.is_taken(6) && !acks.is_taken(7) && !acks.is_all_taken());
        assert!(hand(&acks, &[run(4, 4)], false, false));
        acks.taken_handed();
        assert!(acks.is_all_taken());
        assert_eq!(acks.draw().runs, [run(4, 4)]);
    }

    #[test]
    fn rows_in_the_merger_are_not_taken_by_taking_others() {
        let acks = Acks::default();
        acks.arrived(8);
        acks.merging(3);
        assert!(hand(&acks, &[run(0, 5)], false, false));
        acks.taken_handed();
        assert!(!acks.is_taken(5), "nobody knows which of them came first");
        assert!(hand(&acks, &[run(5, 3)], true, false));
        assert!(!acks.is_taken(8));
        acks.taken_handed();
        assert!(acks.is_taken(8));
        acks.arrived(2);
        acks.merging(2);
        assert!(acks.dropped([run(8, 2)].iter()));
        assert!(acks.is_all_taken());
    }

    #[tokio::test]
    async fn the_first_rows_are_news() {
        let acks = Acks::default();
        assert!(hand(&acks, &[run(0, 4)], false, false));
        assert!(acks.hand_next(1, 1));
        acks.report_due().await;
        assert!(acks.hand_next(2, 1));
        acks.taken_handed();
        assert!(futures::poll!(Box::pin(acks.report_due())).is_pending());
        acks.user_waits();
        acks.report_due().await;
    }

    #[test]
    fn what_the_user_has_in_hand_at_the_end_is_taken_and_nothing_else() {
        let acks = Acks::default();
        acks.arrived(20);
        assert!(hand(&acks, &[run(0, 4), run(20, 6)], false, false));
        assert!(acks.hand_next(0, 2) && acks.hand_next(2, 3));
        acks.close();
        assert!(!acks.hand_next(5, 3), "no element");
        assert!(!acks.hand_next(5, 3), "nor at the second attempt");
        acks.taken_handed();
        assert!(!hand(&acks, &[run(30, 10)], false, false), "and no chunk");
        assert_eq!(acks.draw().runs, [run(0, 4), run(20, 1)], "two elements, the second one in hand");
        acks.close();
        assert!(acks.draw().runs.is_empty());

        let acks = Acks::default();
        assert!(hand(&acks, &[run(0, 4)], false, true));
        acks.close();
        assert_eq!(acks.draw().runs, [run(0, 4)], "a chunk that the user got as a whole");
        let acks = Acks::default();
        assert!(hand(&acks, &[run(0, 4), run(20, 6)], false, false));
        assert!(acks.hand_next(0, 2) && acks.hand_next(2, 3));
        acks.give_back();
        acks.close();
        assert_eq!(
            acks.draw().runs,
            [run(0, 2)],
            "the second element, which the user could not use, is not taken"
        );
        assert_eq!(acks.remainder().rows, 8, "it is not in the user's hand either");
        let acks = Acks::default();
        assert!(hand(&acks, &[run(0, 4)], false, true));
        acks.give_back();
        acks.close();
        assert!(acks.draw().runs.is_empty(), "nor is a chunk");
        let word = Progress::word(1 << 40, 1 << 40);
        assert_eq!(Progress::of_word(word).taken, u64::from(u32::MAX), "cut, never wrapped");
        assert!(!Progress::of_word(word).closed);
    }
}
