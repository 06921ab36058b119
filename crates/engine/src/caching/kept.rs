//! Rows of splits that began before anything was decided, so that the decision finds them. Without that the first
//! splits of every job, as many as it takes to decide, would be computed a second time, in the second epoch.
//!
//! Rows are kept where they pass a hint, as they are: no copy is made, unless they hold on to much more memory than is
//! theirs. All tasks of a cache together keep as many bytes as its memory tier may hold; where that is not enough, the
//! hint that has most gives up its newest split. Behind random stages rows are kept in epoch 0 alone: what is stored
//! there is drawn as in that one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::{RecordBatch, UInt64Array};
use caju_cache::PutOutcome;
use caju_runtime::{caught, log_failure};
use caju_types::Result;
use caju_wire::batch_bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::put::{Piece, WriterOf, too_slow, write_part};
use super::{Book, CachePlan, Entry, OpenWriter, TaskCache, WAITING};
use crate::source::Split;
use crate::task::LeasedSplit;

/// How long rows are kept for a decision. It takes 20 seconds at most; one that says that nothing is stored does not come
/// with any lease.
const PATIENCE: Duration = Duration::from_secs(30);

/// Memory beyond their own rows that batches may hold on to without being copied.
const SLACK: u64 = 64 << 10;

/// Ended splits that are written side by side.
const LATE_WRITERS: usize = 8;

/// What is kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    splits: BTreeMap<u64, KeptSplit>,
    /// For each hint, by lease.
    hints: Vec<BTreeMap<u64, Rows>>,
    bytes: u64,
    /// What all tasks keep, and how much that may be.
    all: Arc<AtomicU64>,
    limit: u64,
    /// No rows are kept from then on.
    until: Option<Duration>,
}

#[derive(Debug)]
struct KeptSplit {
    split: Split,
    source_bytes: u64,
}

/// The rows of a split at a hint.
#[derive(Debug, Default)]
struct Rows {
    batches: Vec<RecordBatch>,
    bytes: u64,
    /// There are no more; so many were passed over.
    skipped: Option<u64>,
}

/// A split whose rows so far are stored now.
struct Late {
    index: u64,
    split: Split,
    given_up: CancellationToken,
    /// What was kept of it, and what comes behind that.
    queue: mpsc::Receiver<Piece>,
    kept: Charge,
    /// Held until the writer has ended, however it ends.
    _open: OpenWriter,
}

/// Bytes that count as kept as long as this lives.
struct Charge {
    all: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A batch that holds on to little more memory than its rows have, and how much that is.
pub(super) fn own(batch: &RecordBatch) -> (RecordBatch, u64) {
    let held = |batch: &RecordBatch| batch.get_array_memory_size() as u64;
    if held(batch) <= 2 * batch_bytes(batch) as u64 + SLACK {
        return (batch.clone(), held(batch));
    }
    let rows = UInt64Array::from_iter_values(0..batch.num_rows() as u64);
    match arrow::compute::take_record_batch(batch, &rows) {
        Ok(copy) if held(&copy) < held(batch) => {
            let bytes = held(&copy);
            (copy, bytes)
        }
        _ => (batch.clone(), held(batch)),
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Kept {
    /// Nothing yet; later as much as brings what all tasks keep up to so many bytes, at so many hints.
    pub(super) fn up_to(limit: u64, all: Arc<AtomicU64>, hints: usize) -> Self {
        let mut kept = Self::default();
        (kept.limit, kept.all) = (limit, all);
        kept.hints.resize_with(hints, BTreeMap::new);
        kept
    }

    /// Bytes go their own way from here.
    fn charge(&mut self, bytes: u64) -> Charge {
        self.bytes -= bytes;
        Charge { all: Arc::clone(&self.all), bytes }
    }

    fn begin(&mut self, index: u64, split: &Split, hints: impl Iterator<Item = usize>) {
        self.splits.insert(index, KeptSplit { split: split.clone(), source_bytes: 0 });
        for hint in hints {
            self.hints[hint].insert(index, Rows::default());
        }
    }

    /// Keeps rows of a split that arrive at a hint, if they are still wanted.
    pub(super) fn push(&mut self, hint: usize, index: u64, batches: Vec<(RecordBatch, u64)>) {
        let Some(rows) = self.hints.get_mut(hint).and_then(|h| h.get_mut(&index)) else { return };
        for (batch, bytes) in batches {
            rows.batches.push(batch);
            rows.bytes += bytes;
            self.bytes += bytes;
            self.all.fetch_add(bytes, Ordering::Relaxed);
        }
        while self.all.load(Ordering::Relaxed) > self.limit {
            let held = |rows: &BTreeMap<u64, Rows>| rows.values().map(|r| r.bytes).sum::<u64>();
            let Some((_, newest)) =
                self.hints.iter_mut().max_by_key(|h| held(h)).and_then(BTreeMap::pop_last)
            else {
                break;
            };
            drop(self.charge(newest.bytes));
        }
    }

    /// A split's rows have all passed a hint.
    pub(super) fn end(&mut self, hint: usize, index: u64, skipped: u64) {
        if let Some(rows) = self.hints.get_mut(hint).and_then(|h| h.get_mut(&index)) {
            rows.skipped = Some(skipped);
        }
    }

    /// Whether rows of a split are kept at a hint.
    pub(super) fn has(&self, hint: usize, index: u64) -> bool {
        self.hints.get(hint).is_some_and(|h| h.contains_key(&index))
    }

    pub(super) fn was_read(&mut self, index: u64, source_bytes: u64) {
        if let Some(split) = self.splits.get_mut(&index) {
            split.source_bytes = source_bytes;
        }
    }

    /// Lets go of everything, and keeps nothing from now on.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl TaskCache {
    /// How a split starts while nobody has decided: its rows are kept, if they may become a part.
    pub(super) fn enter_undecided(&self, lease: &LeasedSplit) -> Entry {
        let split = &lease.split;
        if split.trim.is_some() || split.repetition > 0 || self.puts.is_off() {
            return Entry::Compute;
        }
        let mut books = self.books.lock();
        let (now, kept) = (self.ctx.clock.now(), &mut books.kept);
        if kept.limit == 0 {
            return Entry::Compute;
        }
        if now > *kept.until.get_or_insert(now + PATIENCE) {
            kept.clear();
            return Entry::Compute;
        }
        let hints = (0..self.hints.len()).filter(|h| self.draws_as_stored(*h) && !self.is_set(*h));
        kept.begin(lease.index, split, hints);
        Entry::Keep
    }

    /// What was decided since a split was leased, where its rows are the same under that as they are without.
    pub(super) fn adopted(&self, lease: &LeasedSplit) -> Option<&CachePlan> {
        let plan = self.decided.get()?.as_ref().filter(|_| lease.group.is_none())?;
        let hint = self.place(plan)?;
        // What is stored is drawn as in the first repetition.
        let same = !self.hints[hint].random || lease.split.repetition == 0 && self.draws_as_stored(hint);
        (same && !self.is_set(hint)).then_some(plan)
    }

    /// Whether rows of a split's first repetition are the same at a hint before a decision to store them as after it.
    fn draws_as_stored(&self, hint: usize) -> bool {
        !self.hints[hint].random || self.ctx.draws_as_frozen()
    }

    /// What was decided: what was kept at the plan's hint is stored, everything else is let go. Only the first word counts.
    pub(crate) fn decide(self: &Arc<Self>, plan: Option<&CachePlan>) {
        if !self.undecided || self.decided.get().is_some() {
            return;
        }
        if let Some(prober) = &self.prober {
            prober.stop();
        }
        let mut books = self.books.lock();
        let mut kept = std::mem::take(&mut books.kept);
        let placed = plan.and_then(|p| Some((p, self.place(p)?)));
        if self.decided.set(placed.map(|(p, _)| p.clone())).is_err() || books.closed {
            return;
        }
        let Some((plan, hint)) = placed else { return };
        let Some(rows) = kept.hints.get_mut(hint).map(std::mem::take) else { return };
        let all = CancellationToken::new();
        let (mut ended, mut open, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (index, rows) in rows {
            let charge = kept.charge(rows.bytes);
            let Some(KeptSplit { split, source_bytes }) = kept.splits.remove(&index) else { continue };
            if !plan.stores(split.key) {
                continue;
            }
            let (pieces, queue) = mpsc::channel(rows.batches.len() + WAITING);
            rows.batches.into_iter().for_each(|b| drop(pieces.try_send(Piece::Rows(b))));
            let writer = OpenWriter::of(self);
            // Those that have ended are given up together, those that go on by their own pace.
            let given_up = if rows.skipped.is_some() { all.child_token() } else { CancellationToken::new() };
            let late = Late { index, split, given_up: given_up.clone(), queue, kept: charge, _open: writer };
            if let Some(skipped) = rows.skipped {
                pieces.try_send(Piece::End { skipped, source_bytes }).ok();
                bytes += rows.bytes;
                ended.push(late);
            } else {
                let way = WriterOf { pieces, assumed_bytes_per_s: plan.write_bytes_per_s, given_up };
                open.push(late);
                books.open.insert(index, Book { hint, skip_below: 0, source_bytes, writer: Some(way) });
            }
        }
        drop(books);
        tracing::debug!(hint = %plan.hint, ended = ended.len(), open = open.len(), "rows of before the decision are stored");
        let mut lists: Vec<Vec<Late>> = open.into_iter().map(|late| vec![late]).collect();
        lists.extend(shared_out(ended, LATE_WRITERS));
        for list in lists {
            let (me, plan) = (Arc::clone(self), plan.clone());
            self.writers.background("storing rows of before the decision", log_failure, async move {
                for late in list {
                    me.write_late(hint, late, &plan).await;
                }
                Ok(())
            });
        }
        self.limit_all(plan, bytes, all);
    }

    /// Those that have ended hold nobody up but the task's end; all of them together may take as long as their bytes.
    fn limit_all(&self, plan: &CachePlan, bytes: u64, all: CancellationToken) {
        let Some(assumed) = plan.write_bytes_per_s.filter(|_| bytes > 0) else { return };
        let patience = self.pace.patience(assumed, bytes, 1);
        let clock = Arc::clone(&self.ctx.clock);
        self.writers.background("the deadline of late writers", log_failure, async move {
            clock.sleep(patience).await;
            all.cancel();
            Ok(())
        });
    }

    async fn write_late(&self, hint: usize, late: Late, plan: &CachePlan) {
        let Late { index, split, given_up, queue, kept, _open } = late;
        let writing = self.write_kept(hint, &split, queue, &given_up, kept.bytes, plan);
        match caught("the writer of a part", writing).await.and_then(|written| written) {
            Ok(true) => {
                self.puts.worked();
                self.compute.fetch_sub(1, Ordering::Relaxed);
                self.put.fetch_add(1, Ordering::Relaxed);
                self.kept.fetch_add(1, Ordering::Relaxed);
            }
            Ok(false) => {}
            Err(e) => {
                self.puts.failed(&e, "storing rows");
                self.fell_back.fetch_add(1, Ordering::Relaxed);
            }
        }
        let mut books = self.books.lock();
        if books.open.get(&index).is_some_and(|b| b.hint == hint) {
            books.open.remove(&index);
        }
    }

    /// Stores a split from the rows that it has put out, and those that it still puts out. Whether the part counts.
    async fn write_kept(
        &self,
        hint: usize,
        split: &Split,
        queue: mpsc::Receiver<Piece>,
        given_up: &CancellationToken,
        bytes: u64,
        plan: &CachePlan,
    ) -> Result<bool> {
        let view = self.view(hint).await;
        let Some(view) = view.get().and_then(Option::as_ref) else { return Ok(false) };
        if view.index.contains(&split.key) || self.puts.is_off() || given_up.is_cancelled() {
            return Ok(false);
        }
        let PutOutcome::Writer(writer) = self.claim(view, hint, split, plan).await? else { return Ok(false) };
        // Whoever waits behind these rows waits no longer than they may take.
        self.pace.expect(bytes);
        let cost = |rows| self.cpu_above(hint) * rows as f64;
        let writing = Box::pin(write_part(*writer, queue, cost));
        given_up.run_until_cancelled(writing).await.unwrap_or_else(|| Err(too_slow()))
    }
}

/// Lists of which each has its share, in turn; none is empty.
fn shared_out(all: Vec<Late>, most: usize) -> Vec<Vec<Late>> {
    let mut lists: Vec<Vec<Late>> = Vec::new();
    for (i, late) in all.into_iter().enumerate() {
        match lists.get_mut(i % most) {
            Some(list) => list.push(late),
            None => lists.push(vec![late]),
        }
    }
    lists
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int64Array, StringArray};

    use super::*;

    #[test]
    fn a_few_rows_of_a_large_batch_hold_on_to_themselves_alone() {
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100_000));
        let texts: ArrayRef =
            Arc::new(StringArray::from_iter_values((0..100_000).map(|i| format!("row {i}"))));
        let large = RecordBatch::try_from_iter([("id", ids), ("text", texts)]).unwrap();
        let (whole, bytes) = own(&large);
        assert!(bytes >= batch_bytes(&large) as u64 && bytes < 8_000_000, "{bytes}");
        assert!(Arc::ptr_eq(whole.column(0), large.column(0)), "what is its own is not copied");
        let few = large.slice(500, 10);
        let (copy, bytes) = own(&few);
        assert_eq!(copy, few);
        assert!(bytes < 10_000, "{bytes}");
    }

    #[test]
    fn tasks_share_what_may_be_kept() {
        let all = Arc::new(AtomicU64::new(0));
        let rows = || {
            let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
            vec![own(&RecordBatch::try_from_iter([("id", ids)]).unwrap())]
        };
        let each = rows()[0].1;
        let (mut one, mut two) =
            (Kept::up_to(3 * each, Arc::clone(&all), 1), Kept::up_to(3 * each, Arc::clone(&all), 1));
        let split = Split {
            child: Vec::new(),
            repetition: 0,
            key: caju_types::SplitKey(3),
            file: None,
            range: crate::source::SplitRange::Whole,
            rows: None,
            trim: None,
        };
        for index in 0..2 {
            one.begin(index, &split, 0..1);
            one.push(0, index, rows());
            two.begin(index, &split, 0..1);
            two.push(0, index, rows());
        }
        assert!(one.has(0, 1) && two.has(0, 0) && !two.has(0, 1));
        assert_eq!(all.load(Ordering::Relaxed), 3 * each);
        let charge = one.charge(each);
        drop((one, two));
        assert_eq!(all.load(Ordering::Relaxed), each, "what is being written still counts");
        drop(charge);
        assert_eq!(all.load(Ordering::Relaxed), 0);
    }
}
