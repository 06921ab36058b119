//! The order in which chunks leave, and what bounds them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use caju_runtime::SystemClock;
use caju_types::Error;
use caju_wire::Run;
use parking_lot::Mutex;

use super::super::EndOfRepetition;
use super::*;

/// What happens to a chunk that is being computed.
enum Event {
    /// It is computed, or fails.
    End(Result<()>),
    /// It is slow at this row, counted from its first one, and gives the others back.
    Slow(usize),
}

type Gate = mpsc::Sender<Event>;

/// The chunks that are being computed, by split and first row.
type Gates = Arc<Mutex<HashMap<(u64, u64), Gate>>>;

/// Work that does what the test says.
struct Gated {
    chunk: Chunk,
    gates: Gates,
    /// How many times more it gives its rows.
    more: u32,
    /// Rows of a slice.
    rows: usize,
    is_computed: bool,
}

impl Gated {
    fn of(&self, offset: usize, len: usize, is_computed: bool) -> Option<Self> {
        let chunk = self.chunk.slice_rows(offset, len);
        let gates = Arc::clone(&self.gates);
        (len > 0).then_some(Self { chunk, gates, is_computed, more: self.more, rows: self.rows })
    }
}

impl Work for Gated {
    async fn next(mut self, slice: Slice<Self>) -> Result<(Chunk, Option<Self>)> {
        if !self.is_computed {
            let (open, mut gate) = mpsc::channel(8);
            self.gates.lock().insert((self.chunk.runs[0].split, self.chunk.runs[0].start), open);
            loop {
                match gate.recv().await {
                    Some(Event::End(outcome)) => break outcome?,
                    None => break,
                    Some(Event::Slow(row)) => {
                        let behind = self.of(row + 1, self.chunk.rows() - row - 1, false);
                        slice.working();
                        slice.give_back(GivenBack { ready: self.of(0, row, true), behind })?;
                        self.chunk = self.chunk.slice_rows(row, 1);
                    }
                }
            }
        }
        let more = self.more;
        let left = Self { more: more.saturating_sub(1), is_computed: true, ..self };
        Ok((left.chunk.clone(), (more > 0).then_some(left)))
    }

    fn cut(self) -> (Self, Option<Self>) {
        let all = self.chunk.rows();
        let rows = self.rows.min(all);
        let rest = self.of(rows, all - rows, false);
        (self.of(0, rows, false).unwrap(), rest)
    }

    fn finished(self) -> Result<Chunk, Self> {
        if self.is_computed { Ok(self.chunk) } else { Err(self) }
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
        Ok(Item::EndOfRepetition(_)) => "end of repetition".into(),
        Ok(Item::Entry { .. }) => "entry".into(),
        Err(e) => format!("error: {}", e.message()),
    }
}

/// Whether a task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Runs the stages on these items, with one gate for each chunk. Returns the names of the items that left.
struct Bench {
    items: Items,
    gates: Gates,
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
        let gates = Gates::default();
        let to = Arc::clone(&gates);
        let start = move |chunk: Chunk| Gated {
            chunk,
            gates: Arc::clone(&to),
            more,
            rows: slice_rows,
            is_computed: false,
        };
        let most_bytes = QueueBound::fixed(most_bytes);
        let limits = Limits { at_once: Box::new(move || at_once), most_bytes, given_back: at_once };
        let items = stream::iter(items).boxed();
        let items = concurrent(items, start, order, limits, SystemClock::shared()).fuse().boxed();
        Self { items, gates }
    }

    fn open(&self, split: u64, start: u64) {
        self.open_with(split, start, Ok(()));
    }

    fn open_with(&self, split: u64, start: u64, outcome: Result<()>) {
        let gate = self.gates.lock().remove(&(split, start)).expect("the chunk was begun");
        gate.try_send(Event::End(outcome)).expect("it is awaited");
    }

    /// The chunk that begins with this row is slow at its row `at`; the others are given back.
    fn slow_at(&self, split: u64, start: u64, at: usize) {
        let mut gates = self.gates.lock();
        let gate = gates.remove(&(split, start)).expect("the chunk was begun");
        gate.try_send(Event::Slow(at)).expect("it is awaited");
        gates.insert((split, start + at as u64), gate);
    }

    /// The next item that leaves.
    async fn next(&mut self) -> String {
        name(self.items.next().await.expect("an item"))
    }

    /// What leaves now, until something has to be computed first. A poll in which rows were given back may end before it sees
    /// them, and then has woken its task: it is polled again.
    async fn out(&mut self) -> Vec<String> {
        let mut out = Vec::new();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        loop {
            woken.0.store(false, Ordering::SeqCst);
            match self.items.poll_next_unpin(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(item)) => out.push(name(item)),
                Poll::Pending if woken.0.load(Ordering::SeqCst) => tokio::task::yield_now().await,
                Poll::Ready(None) | Poll::Pending => return out,
            }
        }
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
        Item::EndOfRepetition(EndOfRepetition { ended: 0, next: Some(1) }),
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
async fn slices_of_a_chunk_leave_in_their_order() {
    for order in [Order::Any, Order::PerSplit, Order::Input] {
        let mut bench = Bench::sliced(items(), order, 8, 2);
        assert!(bench.out().await.is_empty());
        assert_eq!(bench.begun(), 8, "{order:?}: two slices of each chunk");
        bench.open(1, 2);
        assert!(bench.out().await.is_empty(), "{order:?}: it waits for the rows before it");
        bench.open(1, 0);
        assert_eq!(bench.out().await, ["1/0", "1/2"], "{order:?}");
    }
}

#[tokio::test]
async fn a_slow_row_holds_back_itself_alone() {
    let mut bench = Bench::with(items(), Order::Any, 3, 1 << 20, 0, usize::MAX);
    assert!(bench.out().await.is_empty());
    bench.slow_at(1, 0, 2);
    assert_eq!(bench.out().await, ["1/0"], "the two rows before it are ready");
    bench.open(2, 0);
    assert_eq!(bench.out().await, ["2/0", "end of 2"]);
    bench.open(1, 3);
    assert_eq!(bench.next().await, "1/3", "the row behind it passes it");
    bench.open(1, 4);
    assert_eq!(bench.next().await, "1/4");
    assert!(bench.out().await.is_empty(), "the end of the split waits for all of its rows");
    bench.open(1, 2);
    assert_eq!(bench.out().await, ["1/2", "end of 1", "end of repetition"]);
}

#[tokio::test]
async fn where_an_order_is_promised_a_slow_row_is_not_passed_and_others_are_computed() {
    for order in [Order::PerSplit, Order::Input] {
        let mut bench = Bench::with(items(), order, 5, 1 << 20, 0, usize::MAX);
        assert!(bench.out().await.is_empty());
        bench.slow_at(1, 0, 1);
        assert_eq!(bench.next().await, "1/0", "{order:?}");
        bench.open(1, 2);
        let pass = tokio::time::timeout(slice::SLOW * 2, bench.items.next()).await;
        assert!(pass.is_err(), "{order:?}: rows that are ready wait for the slow one");
        bench.open(1, 1);
        assert_eq!(bench.out().await, ["1/1", "1/2"], "{order:?}");
    }
}

#[tokio::test]
async fn a_chunk_is_cut_when_threads_are_free() {
    let mut bench = Bench::with(vec![Ok(chunk(1, 0)), Ok(Item::EndOfSplit(1))], Order::Any, 2, 1 << 20, 0, 1);
    assert!(bench.out().await.is_empty());
    assert_eq!(bench.begun(), 2, "rows 0 and 1: slices of one row");
    bench.open(1, 0);
    bench.open(1, 1);
    assert_eq!(bench.out().await, ["1/0", "1/1"]);
    bench.open(1, 2);
    bench.open(1, 3);
    assert_eq!(bench.out().await, ["1/2", "1/3", "end of 1"]);
}
