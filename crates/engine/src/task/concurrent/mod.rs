//! Work on many chunks at once.
//!
//! As many chunks are computed at once as there are CPU threads, and one more. A computed chunk leaves when its order allows it
//! ([`Order`]). Until then it waits, within a bound in bytes, and its thread computes another chunk. A slow chunk therefore
//! delays the chunks that must follow it and no others, and occupies one thread.
//!
//! A chunk is computed in one piece unless it is slow. A chunk that would take long by what was measured is cut into slices,
//! which several threads compute ([`RowTime`]). A chunk that turns out to be slow while it is computed gives rows back: those
//! that are ready leave, and those that are not begun become slices. Slices of a chunk leave in their order. Where no order is
//! promised a slice that takes longer than [`SLOW`](slice::SLOW) is passed by those behind it.

mod row_time;
mod slice;
#[cfg(test)]
mod tests;
mod window;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use caju_runtime::Clock;
use caju_types::Result;
use caju_wire::{Chunk, QueueBound};
use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered, StreamExt};
use tokio::sync::mpsc;

use super::{Item, Items};
pub(super) use row_time::{RowTime, rows_within};
use slice::{Computed, SliceIndex};
pub(super) use slice::{GivenBack, Slice, Work};
pub(super) use window::Order;
use window::{Slot, Window};

/// The most items in the window, whatever their bytes: each is visited when another one has been computed.
const MOST_ITEMS: usize = 1024;

/// What is computed at once.
pub(super) struct Limits {
    /// Slices that are computed at once, as of now.
    pub(super) at_once: Box<dyn Fn() -> usize + Send>,
    /// Bounds the bytes of computed chunks that may wait before no further slice is begun.
    pub(super) most_bytes: Arc<QueueBound>,
    /// The most slices whose rows can be given back before they are taken over: one per running slice.
    pub(super) given_back: usize,
}

/// Runs the work that `start` begins for each chunk of `items`; other items pass. In every order the end of a split follows the
/// chunks of the split, and the end of a repetition follows all items before it and precedes all items after it.
pub(super) fn concurrent<W: Work>(
    items: Items,
    start: impl Fn(Chunk) -> W + Send + 'static,
    order: Order,
    limits: Limits,
    clock: Arc<dyn Clock>,
) -> Items {
    let (giving_back, given_back) = mpsc::channel(limits.given_back.max(1));
    let at_work = Concurrent {
        items,
        start,
        is_input_over: false,
        limits,
        clock,
        waiting: VecDeque::new(),
        running: FuturesUnordered::new(),
        giving_back,
        given_back,
        window: Window::new(order),
    };
    stream::unfold(Some(at_work), |at_work| async move {
        let mut at_work = at_work?;
        let item = at_work.next().await?;
        // Nothing follows an error.
        let next = item.is_ok().then_some(at_work);
        Some((item, next))
    })
    .boxed()
}

/// Waits until a slice may pass a slow one, if any waits for that.
async fn pass_in(clock: &dyn Clock, time: Option<Duration>) {
    match time {
        Some(time) => clock.sleep(time).await,
        None => std::future::pending().await,
    }
}

struct Concurrent<W, F> {
    items: Items,
    start: F,
    is_input_over: bool,
    limits: Limits,
    clock: Arc<dyn Clock>,
    /// Slices of the window that are not begun, in the order in which they will be.
    waiting: VecDeque<(SliceIndex, W)>,
    running: FuturesUnordered<BoxFuture<'static, (SliceIndex, Computed<W>)>>,
    /// Where running slices give rows back, and where these arrive.
    giving_back: mpsc::Sender<(SliceIndex, GivenBack<W>)>,
    given_back: mpsc::Receiver<(SliceIndex, GivenBack<W>)>,
    window: Window<W>,
}

impl<W: Work, F: Fn(Chunk) -> W> Concurrent<W, F> {
    async fn next(&mut self) -> Option<Result<Item>> {
        loop {
            // Threads get new work before a computed chunk leaves: what is below may take its time with it.
            while self.advance().await {}
            if let Some((item, rest)) = self.window.leave() {
                if let Some((index, work)) = rest {
                    self.run(index, work);
                }
                return Some(item);
            }
            if self.is_input_over && self.waiting.is_empty() && self.running.is_empty() {
                return self.window.unfinished().map(Err);
            }
            let admits = self.admits();
            let pass = pass_in(&*self.clock, self.window.passes_in());
            tokio::select! {
                Some((index, computed)) = self.running.next(), if !self.running.is_empty() => {
                    self.computed(index, computed);
                }
                Some((index, given)) = self.given_back.recv() => self.take_back(index, given),
                () = pass => {}
                item = self.items.next(), if admits => self.admit(item),
            }
        }
    }

    /// Takes in everything that is ready. Returns whether a chunk was computed, so that further chunks may fit.
    async fn advance(&mut self) -> bool {
        self.begin();
        while self.admits() {
            match futures::poll!(self.items.next()) {
                Poll::Ready(item) => self.admit(item),
                Poll::Pending => break,
            }
        }
        match futures::poll!(self.running.next()) {
            Poll::Ready(Some((index, computed))) => {
                self.computed(index, computed);
                true
            }
            Poll::Ready(None) | Poll::Pending => self.take_all_back(),
        }
    }

    fn admits(&self) -> bool {
        !self.is_input_over && self.waiting.is_empty() && self.may_begin() && self.window.len() < MOST_ITEMS
    }

    fn may_begin(&self) -> bool {
        self.running.len() < (self.limits.at_once)() && self.limits.most_bytes.admits(self.window.bytes())
    }

    fn admit(&mut self, item: Option<Result<Item>>) {
        match item {
            Some(Ok(Item::Chunk(chunk))) => {
                let index = self.window.admit(Slot::of_chunk(&chunk));
                self.waiting.push_back((index, (self.start)(chunk)));
                self.begin();
            }
            Some(item) => {
                self.is_input_over = item.is_err();
                self.window.admit(Slot::of_other(item));
            }
            None => self.is_input_over = true,
        }
    }

    /// Begins slices of the waiting rows. A slice is cut when a thread is free, by what is measured until then. One is always
    /// computed: rows that are computed may wait for it.
    fn begin(&mut self) {
        while self.may_begin() || self.running.is_empty() {
            let Some((index, work)) = self.waiting.pop_front() else { return };
            let (first, left) = work.cut();
            if let Some(left) = left
                && let Some(next) = self.window.insert_behind(index)
            {
                self.waiting.push_front((next, left));
            }
            self.run(index, first);
        }
    }

    fn run(&mut self, index: SliceIndex, work: W) {
        let slice = Slice::new(index, self.window.progress(index), self.giving_back.clone());
        self.running.push(Box::pin(async move { (index, work.next(slice).await) }));
    }

    fn computed(&mut self, index: SliceIndex, computed: Computed<W>) {
        // Rows that it gave back are before or behind the others: they get an index while that slice still has one.
        self.take_all_back();
        self.window.computed(index, computed);
    }

    /// Takes in all rows that were given back. Whether there were any.
    fn take_all_back(&mut self) -> bool {
        let mut any = false;
        while let Ok((index, given)) = self.given_back.try_recv() {
            self.take_back(index, given);
            any = true;
        }
        any
    }

    fn take_back(&mut self, index: SliceIndex, given: GivenBack<W>) {
        if let Some(behind) = given.behind
            && let Some(next) = self.window.insert_behind(index)
        {
            self.waiting.push_front((next, behind));
        }
        let Some(ready) = given.ready else { return };
        let Some(before) = self.window.insert_before(index) else { return };
        match ready.finished() {
            Ok(chunk) => self.window.computed(before, Ok((chunk, None))),
            Err(work) => self.waiting.push_front((before, work)),
        }
    }
}
