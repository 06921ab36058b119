//! Row stages over many chunks at once.
//!
//! As many chunks are computed at once as there are CPU threads, and one more. A computed chunk leaves when its order allows it
//! ([`Order`]). Until then it waits, within a bound in bytes, and its thread computes another chunk. A slow chunk therefore
//! delays the chunks that must follow it and no others, and occupies one thread.
//!
//! Where rows are slow a chunk is cut into slices of some rows, which are computed and leave like chunks: a slow row then
//! delays the few rows of its slice. [`Pace`] measures how many rows that are.

mod pace;
#[cfg(test)]
mod tests;
mod window;

use std::sync::Arc;
use std::task::Poll;

use caju_types::Result;
use caju_wire::{Chunk, Elements};
use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered, StreamExt};

use super::rows::RowWork;
use super::{Item, Items};
use crate::context::TaskContext;
use crate::row::RowStage;
pub(super) use pace::Pace;
use window::{Place, Slot, Window};

/// The most items in the window, whatever their bytes: each is looked at when another one has been computed.
const MOST_ITEMS: usize = 1024;

/// In which order computed chunks leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// The order of the input.
    Input,
    /// Chunks of one split leave in the order of the input, and splits do not wait for each other.
    PerSplit,
    /// No order.
    Any,
}

/// Runs row stages over the chunks of `items` on the CPU pool; other items pass. In every order the end of a split follows the
/// chunks of the split, and the end of a repetition follows all items before it and precedes all items after it.
pub(super) fn rows(stages: Vec<Arc<RowStage>>, items: Items, ctx: &Arc<TaskContext>, order: Order) -> Items {
    if stages.is_empty() {
        return items;
    }
    let stages = Arc::new(stages);
    let (at_once, most_bytes) = (ctx.pool.threads() + 1, ctx.buffer_bytes);
    let (ctx, pace) = (Arc::clone(ctx), Arc::new(Pace::default()));
    let measuring = Arc::clone(&pace);
    let start =
        move |chunk| RowWork::new(Arc::clone(&stages), Arc::clone(&ctx), Arc::clone(&measuring), chunk);
    concurrent(items, start, order, Limits { at_once, most_bytes, pace })
        .filter(|item| std::future::ready(!matches!(item, Ok(Item::Chunk(c)) if c.rows() == 0)))
        .boxed()
}

/// Work that gives chunks one after the other.
pub(super) trait Work: Send + Sized + 'static {
    /// The next chunk, and the work that is left.
    fn next(self) -> impl Future<Output = Result<(Chunk, Option<Self>)>> + Send;
}

impl Work for RowWork {
    fn next(self) -> impl Future<Output = Result<(Chunk, Option<Self>)>> + Send {
        Self::next(self)
    }
}

/// What is computed at once.
struct Limits {
    /// Slices that are computed at once.
    at_once: usize,
    /// Bytes of computed chunks that may wait before no further slice is begun.
    most_bytes: usize,
    /// The rows of a slice.
    pace: Arc<Pace>,
}

fn concurrent<W: Work>(
    items: Items,
    start: impl Fn(Chunk) -> W + Send + 'static,
    order: Order,
    limits: Limits,
) -> Items {
    let at_work = Concurrent {
        items,
        start,
        is_input_over: false,
        limits,
        waiting: None,
        running: FuturesUnordered::new(),
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

/// What computing gives: a chunk and the work that is left.
type Computed<W> = Result<(Chunk, Option<W>)>;

struct Concurrent<W, F> {
    items: Items,
    start: F,
    is_input_over: bool,
    limits: Limits,
    /// The rows of the last chunk of the input that are not begun. Nothing follows them in the window.
    waiting: Option<(Place, Chunk)>,
    running: FuturesUnordered<BoxFuture<'static, (Place, Computed<W>)>>,
    window: Window<W>,
}

impl<W: Work, F: Fn(Chunk) -> W> Concurrent<W, F> {
    async fn next(&mut self) -> Option<Result<Item>> {
        loop {
            // Threads get new work before a computed chunk leaves: what is below may take its time with it.
            while self.advance().await {}
            if let Some((item, rest)) = self.window.leave() {
                if let Some((place, work)) = rest {
                    self.run(place, work);
                }
                return Some(item);
            }
            if self.is_input_over && self.waiting.is_none() && self.running.is_empty() {
                return self.window.unfinished().map(Err);
            }
            let admits = self.admits();
            tokio::select! {
                Some((place, computed)) = self.running.next(), if !self.running.is_empty() => {
                    self.window.computed(place, computed);
                }
                item = self.items.next(), if admits => self.admit(item),
            }
        }
    }

    /// Takes in what is there already. Whether a chunk was computed, so that there may be room for more.
    async fn advance(&mut self) -> bool {
        self.begin();
        while self.admits() {
            match futures::poll!(self.items.next()) {
                Poll::Ready(item) => self.admit(item),
                Poll::Pending => break,
            }
        }
        match futures::poll!(self.running.next()) {
            Poll::Ready(Some((place, computed))) => {
                self.window.computed(place, computed);
                true
            }
            Poll::Ready(None) | Poll::Pending => false,
        }
    }

    fn admits(&self) -> bool {
        !self.is_input_over && self.waiting.is_none() && self.may_begin() && self.window.len() < MOST_ITEMS
    }

    fn may_begin(&self) -> bool {
        self.running.len() < self.limits.at_once && self.window.bytes() < self.limits.most_bytes
    }

    fn admit(&mut self, item: Option<Result<Item>>) {
        match item {
            Some(Ok(Item::Chunk(chunk))) => {
                let place = self.window.admit(Slot::of_chunk(&chunk));
                self.waiting = Some((place, chunk));
                self.begin();
            }
            Some(item) => {
                self.is_input_over = item.is_err();
                self.window.admit(Slot::of_other(item));
            }
            None => self.is_input_over = true,
        }
    }

    /// Begins slices of the waiting rows. A slice is cut when a thread is free, by what is measured until then.
    fn begin(&mut self) {
        while self.may_begin() {
            let Some((place, chunk)) = self.waiting.take() else { return };
            let (first, left) = cut(chunk, self.limits.pace.rows());
            if let Some(left) = left {
                self.waiting = Some((self.window.cut(place, &first, &left), left));
            }
            let work = (self.start)(first);
            self.run(place, work);
        }
    }

    fn run(&mut self, place: Place, work: W) {
        self.running.push(Box::pin(async move { (place, work.next().await) }));
    }
}

/// The first rows of a chunk, at least the given number, and the others. Elements stay whole, and so does a chunk that is not
/// much larger than a slice.
fn cut(chunk: Chunk, rows: usize) -> (Chunk, Option<Chunk>) {
    let all = chunk.rows();
    if all <= rows.saturating_add(rows / 2) {
        return (chunk, None);
    }
    match &chunk.elements {
        Elements::Rows => (chunk.slice_rows(0, rows), Some(chunk.slice_rows(rows, all - rows))),
        Elements::Lengths(lengths) => {
            let (mut at, mut count) = (0, 0);
            for len in lengths {
                (at, count) = (at + *len as usize, count + 1);
                if at >= rows {
                    break;
                }
            }
            let (first, left) = lengths.split_at(count.min(lengths.len()));
            if left.is_empty() {
                return (chunk, None);
            }
            let slice = |offset, len, lengths: &[u32]| Chunk {
                elements: Elements::Lengths(lengths.to_vec()),
                ..chunk.slice_rows(offset, len)
            };
            (slice(0, at, first), Some(slice(at, all - at, left)))
        }
    }
}
