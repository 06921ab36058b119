//! The order in which chunks leave, and what bounds them.

use std::collections::HashMap;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use caju_types::Error;
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
        Self::with(items, order, 3, most_bytes, 0, usize::MAX)
    }

    /// With slices of the given number of rows.
    fn sliced(items: Vec<Result<Item>>, order: Order, at_once: usize, rows: usize) -> Self {
        Self::with(items, order, at_once, 1 << 20, 0, rows)
    }

    fn with(
        items: Vec<Result<Item>>,
        order: Order,
        at_once: usize,
        most_bytes: usize,
        more: u32,
        slice_rows: usize,
    ) -> Self {
        let gates = Arc::new(Mutex::new(HashMap::new()));
        let to = Arc::clone(&gates);
        let start = move |chunk: Chunk| {
            let (open, gate) = oneshot::channel();
            to.lock().insert((chunk.runs[0].split, chunk.runs[0].start), open);
            Gated { chunk, gate, more }
        };
        let limits = Limits { at_once, most_bytes, pace: Arc::new(Pace::fixed(slice_rows)) };
        let items = concurrent(stream::iter(items).boxed(), start, order, limits).fuse().boxed();
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
    let mut bench = Bench::with(two, Order::PerSplit, 3, 1 << 20, 2, usize::MAX);
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

#[tokio::test]
async fn slices_of_a_chunk_leave_when_their_order_allows_it() {
    let mut bench = Bench::sliced(items(), Order::Any, 8, 1);
    assert!(bench.out().await.is_empty());
    assert_eq!(bench.begun(), 8, "all threads have rows of the first two chunks");
    for row in [1, 2, 3] {
        bench.open(1, row);
        assert_eq!(bench.out().await, [format!("1/{row}")], "the slow first row delays none of its chunk");
    }
    assert_eq!(bench.begun(), 8, "and each of them made way for another one");
    for row in 4..8 {
        bench.open(1, row);
        assert_eq!(bench.out().await, [format!("1/{row}")]);
    }
    bench.open(1, 0);
    assert_eq!(bench.out().await, ["1/0", "end of 1"]);
    let mut bench = Bench::sliced(items(), Order::PerSplit, 8, 2);
    assert!(bench.out().await.is_empty());
    bench.open(1, 2);
    bench.open(2, 0);
    assert_eq!(bench.out().await, ["2/0"]);
    bench.open(1, 0);
    assert_eq!(bench.out().await, ["1/0", "1/2"]);
}

#[test]
fn a_chunk_is_cut_between_elements_and_not_into_crumbs() {
    let Item::Chunk(rows) = chunk(1, 0) else { panic!("rows") };
    let lengths = |c: &Chunk| match &c.elements {
        Elements::Rows => vec![1; c.rows()],
        Elements::Lengths(lengths) => lengths.clone(),
    };
    let (first, left) = cut(rows.clone(), 1);
    assert_eq!((first.rows(), first.runs[0].start), (1, 0));
    let left = left.unwrap();
    assert_eq!((left.rows(), left.runs[0].start), (3, 1));
    assert!(cut(rows.clone(), 3).1.is_none(), "a single row is no slice of its own where three are");
    assert!(cut(rows.clone(), usize::MAX).1.is_none());
    let batches = Chunk { elements: Elements::Lengths(vec![1, 2, 1]), ..rows };
    let (first, left) = cut(batches.clone(), 2);
    let left = left.unwrap();
    assert_eq!((lengths(&first), lengths(&left)), (vec![1, 2], vec![1]));
    assert_eq!((first.rows(), left.rows(), left.runs[0].start), (3, 1, 3));
    let one = Chunk { elements: Elements::Lengths(vec![4]), ..batches };
    assert!(cut(one, 1).1.is_none());
}
