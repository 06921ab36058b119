//! Row stages over many chunks at once.
//!
//! As many chunks are computed at once as there are CPU threads, and one more. A computed chunk leaves when its order allows it
//! ([`Order`]). Until then it waits, within a bound in bytes, and its thread computes another chunk. A slow chunk therefore
//! delays the chunks that must follow it and no others, and occupies one thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use caju_types::{Error, Result};
use caju_wire::Chunk;
use futures::future::BoxFuture;
use futures::stream::{self, FuturesUnordered, StreamExt};

use super::rows::RowWork;
use super::{Item, Items};
use crate::context::TaskContext;
use crate::row::RowStage;

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
    let ctx = Arc::clone(ctx);
    let start = move |chunk| RowWork::new(Arc::clone(&stages), Arc::clone(&ctx), chunk);
    concurrent(items, start, order, at_once, most_bytes)
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

fn concurrent<W: Work>(
    items: Items,
    start: impl Fn(Chunk) -> W + Send + 'static,
    order: Order,
    at_once: usize,
    most_bytes: usize,
) -> Items {
    let window = Window { order, next: 0, slots: BTreeMap::new(), bytes: 0 };
    let at_work = Concurrent {
        items,
        start,
        is_input_over: false,
        at_once,
        most_bytes,
        running: FuturesUnordered::new(),
        window,
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

/// An item that leaves, with the work that is left of it and the place of that work.
type Leaving<W> = (Result<Item>, Option<(u64, W)>);

/// What computing gives: a chunk and the work that is left.
type Computed<W> = Result<(Chunk, Option<W>)>;

struct Concurrent<W, F> {
    items: Items,
    start: F,
    is_input_over: bool,
    at_once: usize,
    /// Bytes of computed chunks that may wait before no further chunk is begun.
    most_bytes: usize,
    running: FuturesUnordered<BoxFuture<'static, (u64, Computed<W>)>>,
    window: Window<W>,
}

impl<W: Work, F: Fn(Chunk) -> W> Concurrent<W, F> {
    async fn next(&mut self) -> Option<Result<Item>> {
        loop {
            // Threads get new work before a computed chunk leaves: what is below may take its time with it.
            while self.advance().await {}
            if let Some((item, rest)) = self.window.leave() {
                if let Some((number, work)) = rest {
                    self.run(number, work);
                }
                return Some(item);
            }
            if self.is_input_over && self.running.is_empty() {
                return self.window.unfinished().map(Err);
            }
            let admits = self.admits();
            tokio::select! {
                Some((number, computed)) = self.running.next(), if !self.running.is_empty() => {
                    self.window.computed(number, computed);
                }
                item = self.items.next(), if admits => self.admit(item),
            }
        }
    }

    /// Takes in what is there already. Whether a chunk was computed, so that there may be room for more.
    async fn advance(&mut self) -> bool {
        while self.admits() {
            match futures::poll!(self.items.next()) {
                Poll::Ready(item) => self.admit(item),
                Poll::Pending => break,
            }
        }
        match futures::poll!(self.running.next()) {
            Poll::Ready(Some((number, computed))) => {
                self.window.computed(number, computed);
                true
            }
            Poll::Ready(None) | Poll::Pending => false,
        }
    }

    fn admits(&self) -> bool {
        !self.is_input_over
            && self.running.len() < self.at_once
            && self.window.bytes < self.most_bytes
            && self.window.slots.len() < MOST_ITEMS
    }

    fn admit(&mut self, item: Option<Result<Item>>) {
        match item {
            Some(Ok(Item::Chunk(chunk))) => {
                let number = self.window.admit(Slot::of_chunk(&chunk));
                let work = (self.start)(chunk);
                self.run(number, work);
            }
            Some(item) => {
                self.is_input_over = item.is_err();
                self.window.admit(Slot::of_other(item));
            }
            None => self.is_input_over = true,
        }
    }

    fn run(&mut self, number: u64, work: W) {
        self.running.push(Box::pin(async move { (number, work.next().await) }));
    }
}

/// The items that were taken from the input and have not left, by their numbers in it.
struct Window<W> {
    order: Order,
    next: u64,
    slots: BTreeMap<u64, Slot<W>>,
    /// Bytes of the chunks that are computed.
    bytes: usize,
}

struct Slot<W> {
    kind: Kind,
    /// The splits of its rows.
    splits: Vec<u64>,
    /// None while it is being computed.
    ready: Option<(Result<Item>, Option<W>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rows,
    EndOfSplit,
    /// It leaves after everything before it, and before everything after it.
    Barrier,
}

impl<W> Slot<W> {
    fn of_chunk(chunk: &Chunk) -> Self {
        Self { kind: Kind::Rows, splits: splits_of(chunk), ready: None }
    }

    fn of_other(item: Result<Item>) -> Self {
        let (kind, splits) = match &item {
            Ok(Item::EndOfSplit(split)) => (Kind::EndOfSplit, vec![*split]),
            Ok(Item::Chunk(chunk) | Item::Entry { chunk, .. }) => (Kind::Rows, splits_of(chunk)),
            Ok(Item::EndOfRepetition) | Err(_) => (Kind::Barrier, Vec::new()),
        };
        Self { kind, splits, ready: Some((item, None)) }
    }
}

/// The splits of a chunk, once each where their rows are not mixed. Where rows of splits are mixed no split ends.
fn splits_of(chunk: &Chunk) -> Vec<u64> {
    let mut splits: Vec<u64> = chunk.runs.iter().map(|r| r.split).collect();
    splits.dedup();
    splits
}

fn bytes_of(item: &Result<Item>) -> usize {
    match item {
        Ok(Item::Chunk(chunk) | Item::Entry { chunk, .. }) => chunk.bytes(),
        Ok(Item::EndOfSplit(_) | Item::EndOfRepetition) | Err(_) => 0,
    }
}

impl<W> Window<W> {
    fn admit(&mut self, slot: Slot<W>) -> u64 {
        let number = self.next;
        if let Some((item, _)) = &slot.ready {
            self.bytes += bytes_of(item);
        }
        self.next += 1;
        self.slots.insert(number, slot);
        number
    }

    fn computed(&mut self, number: u64, computed: Computed<W>) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        slot.ready = Some(match computed {
            Ok((chunk, rest)) => (Ok(Item::Chunk(chunk)), rest),
            Err(e) => (Err(e), None),
        });
        if let Some((item, _)) = &slot.ready {
            self.bytes += bytes_of(item);
        }
    }

    /// An item that may leave, with the work that is left of it. That work keeps the item's place.
    fn leave(&mut self) -> Option<Leaving<W>> {
        let number = self.first_to_leave()?;
        let slot = self.slots.get_mut(&number)?;
        let (item, rest) = slot.ready.take()?;
        self.bytes = self.bytes.saturating_sub(bytes_of(&item));
        if rest.is_none() {
            self.slots.remove(&number);
        }
        Some((item, rest.map(|work| (number, work))))
    }

    /// Why the end of the input is no end: items that nobody computes have not left.
    fn unfinished(&self) -> Option<Error> {
        let number = self.slots.keys().next()?;
        Some(Error::internal(format!(
            "{} items of a row stage were never computed, the first of them item {number}: rows may be missing",
            self.slots.len()
        )))
    }

    fn first_to_leave(&self) -> Option<u64> {
        let mut before: Vec<u64> = Vec::new();
        for (i, (number, slot)) in self.slots.iter().enumerate() {
            let is_ready = slot.ready.is_some();
            if i == 0 && is_ready {
                return Some(*number);
            }
            if self.order == Order::Input || slot.kind == Kind::Barrier {
                return None;
            }
            let follows = self.order == Order::PerSplit || slot.kind == Kind::EndOfSplit;
            if is_ready && !(follows && slot.splits.iter().any(|s| before.contains(s))) {
                return Some(*number);
            }
            if before.last() != slot.splits.last() {
                before.extend(&slot.splits);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use arrow_array::{ArrayRef, Int64Array, RecordBatch};
    use caju_wire::Run;
    use parking_lot::Mutex;
    use tokio::sync::oneshot;

    use super::*;

    /// Work that waits until the test lets its rows go.
    struct Gated {
        chunk: Chunk,
        gate: oneshot::Receiver<Result<()>>,
        more: u32,
    }

    impl Work for Gated {
        async fn next(self) -> Result<(Chunk, Option<Self>)> {
            self.gate.await.unwrap_or(Ok(()))?;
            let (rest, gate) = oneshot::channel();
            drop(rest);
            let left = Self { chunk: self.chunk.clone(), gate, more: self.more.saturating_sub(1) };
            Ok((self.chunk, (self.more > 0).then_some(left)))
        }
    }

    fn chunk(split: u64, start: u64) -> Item {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..4));
        let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
        Item::Chunk(Chunk::rows_of(batch, vec![Run { split, start, len: 4 }]))
    }

    fn name(item: Result<Item>) -> String {
        match item {
            Ok(Item::Chunk(c)) => format!("{}/{}", c.runs[0].split, c.runs[0].start),
            Ok(Item::EndOfSplit(split)) => format!("end of {split}"),
            Ok(Item::EndOfRepetition) => "end of repetition".into(),
            Ok(Item::Entry { .. }) => "entry".into(),
            Err(e) => format!("error: {}", e.message()),
        }
    }

    type Gate = oneshot::Sender<Result<()>>;

    /// The stages at work on these items, with one gate for each chunk, and the names of what left.
    struct Bench {
        items: Items,
        gates: Arc<Mutex<HashMap<(u64, u64), Gate>>>,
    }

    impl Bench {
        fn new(items: Vec<Result<Item>>, order: Order, most_bytes: usize) -> Self {
            Self::with(items, order, 3, most_bytes, 0)
        }

        fn with(
            items: Vec<Result<Item>>,
            order: Order,
            at_once: usize,
            most_bytes: usize,
            more: u32,
        ) -> Self {
            let gates = Arc::new(Mutex::new(HashMap::new()));
            let to = Arc::clone(&gates);
            let start = move |chunk: Chunk| {
                let (open, gate) = oneshot::channel();
                to.lock().insert((chunk.runs[0].split, chunk.runs[0].start), open);
                Gated { chunk, gate, more }
            };
            let items =
                concurrent(stream::iter(items).boxed(), start, order, at_once, most_bytes).fuse().boxed();
            Self { items, gates }
        }

        fn open(&self, split: u64, start: u64) {
            self.open_with(split, start, Ok(()));
        }

        fn open_with(&self, split: u64, start: u64, outcome: Result<()>) {
            let gate = self.gates.lock().remove(&(split, start)).expect("the chunk was begun");
            gate.send(outcome).expect("it is awaited");
        }

        /// What leaves now, until something has to be computed first.
        async fn out(&mut self) -> Vec<String> {
            let mut out = Vec::new();
            while let Poll::Ready(Some(item)) = futures::poll!(self.items.next()) {
                out.push(name(item));
            }
            out
        }

        fn begun(&self) -> usize {
            self.gates.lock().len()
        }
    }

    fn items() -> Vec<Result<Item>> {
        [
            chunk(1, 0),
            chunk(2, 0),
            Item::EndOfSplit(2),
            chunk(1, 4),
            Item::EndOfSplit(1),
            Item::EndOfRepetition,
            chunk(3, 0),
            Item::EndOfSplit(3),
        ]
        .into_iter()
        .map(Ok)
        .collect()
    }

    #[tokio::test]
    async fn a_slow_chunk_delays_its_own_split_only() {
        let mut bench = Bench::new(items(), Order::PerSplit, 1 << 20);
        assert!(bench.out().await.is_empty());
        bench.open(2, 0);
        assert_eq!(bench.out().await, ["2/0", "end of 2"]);
        bench.open(1, 4);
        assert!(bench.out().await.is_empty(), "it follows the first rows of its split");
        bench.open(3, 0);
        assert!(bench.out().await.is_empty(), "another repetition waits for the end of this one");
        bench.open(1, 0);
        assert_eq!(bench.out().await, ["1/0", "1/4", "end of 1", "end of repetition", "3/0", "end of 3"]);
    }

    #[tokio::test]
    async fn without_an_order_a_slow_chunk_delays_nothing_but_the_end_of_its_split() {
        let mut bench = Bench::new(items(), Order::Any, 1 << 20);
        assert!(bench.out().await.is_empty());
        bench.open(2, 0);
        assert_eq!(bench.out().await, ["2/0", "end of 2"]);
        bench.open(1, 4);
        assert_eq!(bench.out().await, ["1/4"]);
        bench.open(1, 0);
        assert_eq!(bench.out().await, ["1/0", "end of 1", "end of repetition"]);
        bench.open(3, 0);
        assert_eq!(bench.out().await, ["3/0", "end of 3"]);
    }

    #[tokio::test]
    async fn the_order_of_the_input_is_kept_where_it_is_asked_for() {
        let mut bench = Bench::new(items(), Order::Input, 1 << 20);
        assert!(bench.out().await.is_empty());
        for (split, start) in [(2, 0), (1, 4)] {
            bench.open(split, start);
            assert!(bench.out().await.is_empty());
        }
        bench.open(3, 0);
        bench.open(1, 0);
        let all = ["1/0", "2/0", "end of 2", "1/4", "end of 1", "end of repetition", "3/0", "end of 3"];
        assert_eq!(bench.out().await, all);
    }

    #[tokio::test]
    async fn chunks_that_wait_are_bounded_in_bytes_and_the_running_ones_in_number() {
        let many: Vec<_> = (0..20).map(|i| Ok(chunk(1, 4 * i))).collect();
        let mut bench = Bench::new(many, Order::PerSplit, 70);
        assert!(bench.out().await.is_empty());
        assert_eq!(bench.begun(), 3);
        bench.open(1, 4);
        assert!(bench.out().await.is_empty());
        assert_eq!(bench.begun(), 3, "32 bytes wait: another chunk is begun");
        bench.open(1, 8);
        bench.open(1, 12);
        assert!(bench.out().await.is_empty());
        assert_eq!(bench.begun(), 2, "96 bytes wait: no further chunk is begun");
        bench.open(1, 0);
        assert_eq!(bench.out().await, ["1/0", "1/4", "1/8", "1/12"]);
        assert_eq!(bench.begun(), 3);
    }

    #[tokio::test]
    async fn the_pieces_of_a_chunk_keep_its_place() {
        let two = vec![Ok(chunk(1, 0)), Ok(chunk(1, 4)), Ok(Item::EndOfSplit(1))];
        let mut bench = Bench::with(two, Order::PerSplit, 3, 1 << 20, 2);
        assert!(bench.out().await.is_empty());
        bench.open(1, 4);
        assert!(bench.out().await.is_empty());
        bench.open(1, 0);
        assert_eq!(bench.out().await, ["1/0", "1/0", "1/0", "1/4", "1/4", "1/4", "end of 1"]);
    }

    #[tokio::test]
    async fn errors_come_in_their_place_and_are_the_end() {
        for order in [Order::Input, Order::PerSplit, Order::Any] {
            let mut bench = Bench::new(items(), order, 1 << 20);
            assert!(bench.out().await.is_empty());
            bench.open_with(1, 0, Err(Error::data_loss("bad row")));
            assert_eq!(bench.out().await, ["error: bad row"], "{order:?}");
            assert!(matches!(futures::poll!(bench.items.next()), Poll::Ready(None)));
        }
        let mut failed = items();
        failed.truncate(2);
        failed.push(Err(Error::unavailable("the store is away")));
        let mut bench = Bench::new(failed, Order::Any, 1 << 20);
        assert!(bench.out().await.is_empty(), "rows that were read before are delivered before");
        bench.open(1, 0);
        bench.open(2, 0);
        assert_eq!(bench.out().await, ["1/0", "2/0", "error: the store is away"]);
    }
}
