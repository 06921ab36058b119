//! Rows of splits that began before anything was decided, so that the decision finds them. Without that the first
//! splits of every job, as many as it takes to decide, would be computed a second time, in the second epoch.
//!
//! Rows are kept where they pass a hint, as they are: no copy is made, and what the stages below let go of stays. All
//! of them together have the bytes of the cache's memory tier, which is empty as long as nothing was stored; where that
//! is not enough, the hint that has most gives up its newest split. Behind random stages rows are kept in epoch 0 alone:
//! what is stored there is drawn as in that one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arrow_array::RecordBatch;
use caju_cache::PutOutcome;
use caju_types::Result;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::put::{Piece, WriterOf, too_slow, write_part};
use super::{Book, CachePlan, Entry, TaskCache, WAITING};
use crate::chunk::batch_bytes;
use crate::source::Split;
use crate::task::LeasedSplit;

/// How long rows are kept for a decision. It takes 20 seconds at most; one that says that nothing is stored does not come
/// with any lease.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    splits: BTreeMap<u64, KeptSplit>,
    /// For each hint, by lease.
    hints: Vec<BTreeMap<u64, Rows>>,
    bytes: u64,
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
    way: WriterOf,
    /// What was kept of it, and what comes behind that.
    queue: mpsc::Receiver<Piece>,
    /// All of it was kept.
    ended: bool,
}

impl Kept {
    /// Nothing yet; later so many bytes at most, at so many hints.
    pub(super) fn up_to(limit: u64, hints: usize) -> Self {
        Self { limit, hints: (0..hints).map(|_| BTreeMap::new()).collect(), ..Self::default() }
    }

    fn begin(&mut self, index: u64, split: &Split, hints: impl Iterator<Item = usize>) {
        self.splits.insert(index, KeptSplit { split: split.clone(), source_bytes: 0 });
        for hint in hints {
            self.hints[hint].insert(index, Rows::default());
        }
    }

    /// Keeps rows of a split that arrive at a hint, if they are still wanted.
    pub(super) fn push(&mut self, hint: usize, index: u64, batches: &[RecordBatch]) {
        let Some(rows) = self.hints.get_mut(hint).and_then(|h| h.get_mut(&index)) else { return };
        for batch in batches.iter().filter(|b| b.num_rows() > 0) {
            let bytes = batch_bytes(batch) as u64;
            rows.batches.push(batch.clone());
            rows.bytes += bytes;
            self.bytes += bytes;
        }
        while self.bytes > self.limit {
            let held = |rows: &BTreeMap<u64, Rows>| rows.values().map(|r| r.bytes).sum::<u64>();
            let Some((_, newest)) =
                self.hints.iter_mut().max_by_key(|h| held(h)).and_then(BTreeMap::pop_last)
            else {
                break;
            };
            self.bytes -= newest.bytes;
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
        let plan = self.decided.get().filter(|_| lease.group.is_none())?;
        let hint = self.place(plan)?;
        (self.draws_as_stored(hint) && !self.is_set(hint)).then_some(plan)
    }

    /// Whether rows at a hint are the same before a decision to store them as after it.
    fn draws_as_stored(&self, hint: usize) -> bool {
        !self.hints[hint].random || self.ctx.draws_as_frozen()
    }

    /// What was decided: what was kept at the plan's hint is stored, everything else is let go. Only the first word counts.
    pub(crate) fn decide(self: &Arc<Self>, plan: Option<&CachePlan>) {
        if !self.undecided || self.decided.get().is_some() {
            return;
        }
        let mut books = self.books.lock();
        let mut kept = std::mem::take(&mut books.kept);
        let Some((plan, hint)) = plan.and_then(|p| Some((p, self.place(p)?))) else { return };
        if self.decided.set(plan.clone()).is_err() || books.closed {
            return;
        }
        let Some(rows) = kept.hints.get_mut(hint).map(std::mem::take) else { return };
        let (mut ended, mut open) = (Vec::new(), Vec::new());
        for (index, rows) in rows {
            let Some(KeptSplit { split, source_bytes }) = kept.splits.remove(&index) else { continue };
            if !plan.stores(split.key) {
                continue;
            }
            // Whoever waits for these rows to be written waits no longer than they may take.
            self.pace.expect(rows.bytes);
            let (pieces, queue) = mpsc::channel(rows.batches.len() + WAITING);
            rows.batches.into_iter().for_each(|b| drop(pieces.try_send(Piece::Rows(b))));
            let given_up = CancellationToken::new();
            let way = WriterOf { pieces, assumed_bytes_per_s: plan.write_bytes_per_s, given_up };
            let late = Late { index, split, way: way.clone(), queue, ended: rows.skipped.is_some() };
            if let Some(skipped) = rows.skipped {
                way.pieces.try_send(Piece::End { skipped, source_bytes }).ok();
                ended.push(late);
            } else {
                books.open.insert(index, Book { hint, skip_below: 0, source_bytes, writer: Some(way) });
                open.push(late);
            }
        }
        self.open_writers.send_modify(|n| *n += ended.len() + open.len());
        drop(books);
        tracing::debug!(hint = %plan.hint, ended = ended.len(), open = open.len(), "rows of before the decision are stored");
        // Those that go on are not held up by those that have ended, which are written one after another.
        let all = open.into_iter().map(|late| vec![late]).chain([ended]);
        for some in all.filter(|some| !some.is_empty()) {
            let (me, plan) = (Arc::clone(self), plan.clone());
            drop(self.writers.spawn(async move {
                for late in some {
                    me.write_late(hint, late, &plan).await;
                    me.open_writers.send_modify(|n| *n -= 1);
                }
            }));
        }
    }

    async fn write_late(self: &Arc<Self>, hint: usize, late: Late, plan: &CachePlan) {
        let Late { index, split, way, queue, ended } = late;
        if ended {
            self.limit(&way);
        }
        let given_up = way.given_up.clone();
        // A writer whose split is given up ends, and a sender of ours would keep it waiting.
        drop(way);
        let writing = Box::pin(self.write_kept(hint, &split, queue, plan));
        match given_up.run_until_cancelled_owned(writing).await.unwrap_or_else(|| Err(too_slow())) {
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
        plan: &CachePlan,
    ) -> Result<bool> {
        let view = self.view(hint).await;
        let Some(view) = view.get().and_then(Option::as_ref) else { return Ok(false) };
        if view.index.contains(&split.key) || self.puts.is_off() {
            return Ok(false);
        }
        let PutOutcome::Writer(writer) = self.claim(view, hint, split, plan).await? else { return Ok(false) };
        let cost = |rows| self.cpu_above(hint) * rows as f64;
        write_part(*writer, queue, cost).await
    }
}
