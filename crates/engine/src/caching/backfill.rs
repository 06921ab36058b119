//! Buffering the rows of splits that begin before the decision, and storing them when it comes.

use std::sync::Arc;

use caju_cache::PutOutcome;
use caju_runtime::caught;
use caju_sources::Split;
use caju_types::Result;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::backfill_buffer::BufferCharge;
use super::in_flight::InFlightSplit;
use super::part_sender::{PartItem, PartSender, QUEUED_BATCHES, too_slow, write_part};
use super::part_writers::OpenWriter;
use super::{Entry, TaskCache};
use crate::cache_plan::CachePlan;
use crate::lease::LeasedSplit;

/// Background writers of the splits that ended before the decision. With more of them, splits that are still running
/// would get too little of the store's bandwidth.
const BACKFILL_WRITERS: usize = 8;

/// A split that is stored from its buffered rows and from those that still come.
struct BackfillSplit {
    index: u64,
    split: Split,
    cancel: CancellationToken,
    queue: mpsc::Receiver<PartItem>,
    charge: BufferCharge,
    /// Dropped when the writer has ended, however it ends.
    _open: OpenWriter,
}

impl TaskCache {
    /// How a split starts before the decision: its rows are buffered if they may become a part.
    pub(super) fn enter_undecided(&self, lease: &LeasedSplit) -> Entry {
        let split = &lease.split;
        if split.trim.is_some() || split.repetition > 0 || self.writers.breaker.is_open() {
            return Entry::Compute;
        }
        let mut in_flight = self.in_flight.lock();
        let buffer = &mut in_flight.backfill;
        if !buffer.is_active(self.ctx.clock.now()) {
            return Entry::Compute;
        }
        let hints =
            (0..self.hints.len()).filter(|h| self.hints.draws_as_stored(*h) && !self.hints.is_set(*h));
        buffer.begin(lease.index, split, hints);
        Entry::Buffer
    }

    /// The plan that was decided since a split was leased, if the split's rows are the same with and without it.
    pub(super) fn adopted(&self, lease: &LeasedSplit) -> Option<&CachePlan> {
        let plan = self.decision.plan().filter(|_| lease.group.is_none())?;
        let hint = self.hints.planned(plan)?;
        // Stored rows are drawn as in the first repetition.
        let same =
            !self.hints.is_random(hint) || lease.split.repetition == 0 && self.hints.draws_as_stored(hint);
        (same && !self.hints.is_set(hint)).then_some(plan)
    }

    /// Takes a decision: the rows that are buffered at the plan's hint are stored, all others are dropped. Only the first
    /// decision counts.
    pub(crate) fn decide(self: &Arc<Self>, plan: Option<&CachePlan>) {
        if !self.decision.is_pending() {
            return;
        }
        if let Some(prober) = &self.prober {
            prober.stop();
        }
        let mut in_flight = self.in_flight.lock();
        let mut buffer = std::mem::take(&mut in_flight.backfill);
        let planned = plan.and_then(|p| Some((p, self.hints.planned(p)?)));
        if !self.decision.set(planned.map(|(p, _)| p.clone())) {
            return;
        }
        let Some((plan, hint)) = planned else { return };
        let all = CancellationToken::new();
        let (mut ended, mut open, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (index, buffered, rows, charge) in buffer.take_hint(hint) {
            if !plan.stores(buffered.split.key) {
                continue;
            }
            let Some(writer) = self.writers.register() else { return };
            let (items, queue) = mpsc::channel(rows.batches.len() + QUEUED_BATCHES);
            rows.batches.into_iter().for_each(|b| drop(items.try_send(PartItem::Rows(b))));
            // Splits that have ended are cancelled together, splits that are still running by their own stall budget.
            let cancel = if rows.skipped.is_some() { all.child_token() } else { CancellationToken::new() };
            let split = buffered.split;
            let backfill =
                BackfillSplit { index, split, cancel: cancel.clone(), queue, charge, _open: writer };
            let source_bytes = buffered.source_bytes;
            if let Some(skipped) = rows.skipped {
                items.try_send(PartItem::End { skipped, source_bytes }).ok();
                bytes += rows.bytes;
                ended.push(backfill);
            } else {
                let sender = PartSender { items, assumed_bytes_per_s: plan.write_bytes_per_s, cancel };
                open.push(backfill);
                in_flight.insert(index, InFlightSplit::stored(hint, sender, source_bytes));
            }
        }
        drop(in_flight);
        tracing::debug!(hint = %plan.hint, ended = ended.len(), open = open.len(), "buffered rows are stored");
        let mut lists: Vec<Vec<BackfillSplit>> = open.into_iter().map(|split| vec![split]).collect();
        lists.extend(dealt(ended, BACKFILL_WRITERS));
        for list in lists {
            let (me, plan) = (Arc::clone(self), plan.clone());
            self.writers.spawn("storing rows of before the decision", async move {
                for split in list {
                    me.store_backfill(hint, split, &plan).await;
                }
                Ok(())
            });
        }
        // Splits that have ended delay only the end of the task; together they may take as long as their bytes.
        if let Some(assumed) = plan.write_bytes_per_s.filter(|_| bytes > 0) {
            self.writers.limit_all(assumed, bytes, all);
        }
    }

    async fn store_backfill(&self, hint: usize, backfill: BackfillSplit, plan: &CachePlan) {
        let BackfillSplit { index, split, cancel, queue, charge, _open } = backfill;
        let writing = self.write_backfill(hint, &split, queue, &cancel, charge.bytes, plan);
        match caught("the writer of a part", writing).await.and_then(|written| written) {
            Ok(true) => {
                self.writers.breaker.record_success();
                self.counters.add_backfilled();
            }
            Ok(false) => {}
            Err(e) => {
                self.writers.breaker.record_failure(&e, "storing rows");
                self.counters.add_fallback();
            }
        }
        self.in_flight.lock().take_at(hint, index);
    }

    /// Stores a split from its buffered rows and those that still come. Whether the part was committed by this task.
    async fn write_backfill(
        &self,
        hint: usize,
        split: &Split,
        queue: mpsc::Receiver<PartItem>,
        cancel: &CancellationToken,
        bytes: u64,
        plan: &CachePlan,
    ) -> Result<bool> {
        let bound = self.hints.get(hint)?;
        let view = self.snapshots.view(bound).await;
        let Some(view) = view.get().and_then(Option::as_ref) else { return Ok(false) };
        if view.index.contains(&split.key) || self.writers.breaker.is_open() || cancel.is_cancelled() {
            return Ok(false);
        }
        let PutOutcome::Writer(writer) = self.snapshots.claim(view, bound, split.key, plan).await? else {
            return Ok(false);
        };
        // Rows that wait behind the buffered ones may wait as long as these take.
        self.writers.stall_budget.add_bytes(bytes);
        let compute_cpu_s = |rows| self.hints.cpu_s_per_row_above(hint) * rows as f64;
        let writing = Box::pin(write_part(*writer, queue, compute_cpu_s));
        cancel.run_until_cancelled(writing).await.unwrap_or_else(|| Err(too_slow()))
    }
}

/// Deals splits out to at most `lists` lists, none of which is empty.
fn dealt(splits: Vec<BackfillSplit>, lists: usize) -> Vec<Vec<BackfillSplit>> {
    let mut dealt: Vec<Vec<BackfillSplit>> = Vec::new();
    for (i, split) in splits.into_iter().enumerate() {
        match dealt.get_mut(i % lists) {
            Some(list) => list.push(split),
            None => dealt.push(vec![split]),
        }
    }
    dealt
}
