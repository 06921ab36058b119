//! Hints behind stages that mix splits: each task writes one part, of all its splits, and the parts count only when
//! together they cover every split of the listing once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow_schema::Schema;
use caju_cache::{Member, Name, PutOutcome, SetOutcome, Snapshot, Whole};
use caju_runtime::{caught, log_failure};
use caju_types::{Error, Result, SplitKey, hash128};
use caju_wire::Chunk;
use tokio::sync::mpsc;

use super::origin::{Restore, Stamp, with_origin};
use super::part::{Opened, given_up};
use super::plan::{SetPlan, SetTarget, cover};
use super::put::{Piece, write_rows};
use super::{BoundHint, CachePlan, OpenPart, OpenWriter, TaskCache, WAITING, part};
use crate::task::LeasedSplit;

/// What this task writes of a set.
#[derive(Default)]
pub(super) enum Writing {
    /// No lease has asked for it yet.
    #[default]
    Idle,
    /// Rows go to a part.
    Part(Box<Open>),
    /// The hint has seen the end of its rows; the writer takes from here what the part covers.
    Ended(Vec<Name>),
    /// This task's part can never count: some split is not wholly computed here, or storing failed.
    Spoiled,
}

pub(super) struct Open {
    hint: usize,
    target: SetTarget,
    covers: Vec<Name>,
    numbers: HashMap<u64, u32>,
    stamp: Stamp,
    pieces: mpsc::Sender<Piece>,
}

impl TaskCache {
    /// The place of a plan's hint among ours, if plan and pipeline mean the same.
    pub(super) fn place(&self, plan: &CachePlan) -> Option<usize> {
        let hint = self.hints.iter().position(|h| h.name == plan.hint)?;
        let ours = self.hints[hint].planned;
        if ours != plan.prefix {
            tracing::warn!(hint = %plan.hint, %ours, theirs = %plan.prefix, "the dispatcher means another prefix");
            return None;
        }
        Some(hint)
    }

    pub(crate) fn is_set(&self, hint: usize) -> bool {
        self.hints.get(hint).is_some_and(|h| h.set.is_some())
    }

    /// Takes note of a split that this task computes, for the set that it may write.
    pub(super) async fn enter_set(self: &Arc<Self>, lease: &LeasedSplit, hint: usize, plan: &CachePlan) {
        let mut writing = self.set.lock().await;
        let target = match &plan.set {
            Some(SetPlan::Write(target)) if plan.put && lease.done.is_empty() => target,
            _ => return self.spoil(&mut writing, "some of its splits are not stored"),
        };
        if matches!(*writing, Writing::Idle) {
            match self.open_set(lease.index, hint, target, plan).await {
                Ok(open) => *writing = Writing::Part(Box::new(open)),
                Err(e) => {
                    self.puts.failed(&e, "storing rows");
                    return self.spoil(&mut writing, "it cannot be stored");
                }
            }
        }
        match &mut *writing {
            Writing::Part(open) if open.hint == hint && open.target == *target => {
                let number = u32::try_from(open.covers.len()).unwrap_or(u32::MAX);
                open.numbers.insert(lease.index, number);
                open.covers.push(Name(cover(&lease.split)));
            }
            Writing::Spoiled => {}
            other => self.spoil(other, "its splits have different plans"),
        }
    }

    fn spoil(&self, writing: &mut Writing, why: &str) {
        if matches!(writing, Writing::Part(_)) {
            tracing::debug!(why, "the task's part of a set is given up");
        }
        // Without its sender the writer gives up.
        *writing = Writing::Spoiled;
    }

    async fn open_set(
        self: &Arc<Self>,
        first: u64,
        hint: usize,
        target: &SetTarget,
        plan: &CachePlan,
    ) -> Result<Open> {
        let cache = self.cache.as_ref().ok_or_else(|| Error::internal("a set without a cache"))?;
        let bound = self.hints.get(hint).ok_or_else(|| Error::internal("a hint is not bound"))?;
        let shape = bound.set.clone().ok_or_else(|| Error::internal("a hint is no place for a set"))?;
        let snapshot = cache.snapshot(&target.id);
        let mut description = self.description(bound, plan);
        description.splits = Some(target.whole.splits);
        let schema = with_origin(&stored(bound, self.ctx.frozen_draw(0)), &shape);
        self.uses(&snapshot);
        // No other task of the attempt begins with this split: what comes back from a lost one is not stored.
        let name = format!("{} {} {first}", target.attempt, cache.writer_id());
        let key = SplitKey(hash128(name.as_bytes()));
        let writer = match snapshot.put(key, &description, Arc::clone(&schema), plan.encoding).await? {
            PutOutcome::Writer(writer) => writer,
            _ => return Err(Error::internal("a part of a set has a key that was given out before")),
        };
        let (pieces, queue) = mpsc::channel(WAITING);
        let open = {
            let books = self.books.lock();
            if books.closed {
                return Err(Error::cancelled("the task is over"));
            }
            OpenWriter::of(self)
        };
        let (me, of, cut) = (Arc::clone(self), target.clone(), shape.cut);
        self.writers.background("the writer of a part of a set", log_failure, async move {
            let _open = open;
            let cost = |rows| me.cpu_above(hint) * rows as f64;
            let writing = caught("the writer of a part of a set", write_rows(*writer, queue, cost));
            let written = Box::pin(writing).await.and_then(|written| written);
            match me.add(&snapshot, &of, cut, key, written).await {
                Ok(()) => me.puts.worked(),
                Err(e) => me.puts.failed(&e, "storing rows"),
            }
            Ok(())
        });
        let stamp = Stamp::new(schema, &shape);
        Ok(Open { hint, target: target.clone(), covers: Vec::new(), numbers: HashMap::new(), stamp, pieces })
    }

    /// The part is written, or given up: says what it covers.
    async fn add(
        &self,
        snapshot: &Snapshot,
        target: &SetTarget,
        cut: bool,
        key: SplitKey,
        written: Result<Option<caju_cache::Committed>>,
    ) -> Result<()> {
        let Some(committed) = written? else { return Ok(()) };
        let covers = match &mut *self.set.lock().await {
            Writing::Ended(covers) => std::mem::take(covers),
            _ => return Err(Error::internal("a part of a set ended before its rows")),
        };
        let stored = covers.len() as u64;
        let member = Member { part: key, attempt: committed.meta().attempt.clone(), covers };
        // One task saw all that the prefix puts out, though not all splits.
        let whole = if cut { Whole::of(member.covers.iter().map(|n| n.0)) } else { target.whole };
        if snapshot.add_to_set(&target.attempt, whole, member).await? == SetOutcome::Whole {
            tracing::info!(set = %target.id, splits = target.whole.splits, "a set of parts is whole");
        }
        self.compute.fetch_sub(stored, Ordering::Relaxed);
        self.put.fetch_add(stored, Ordering::Relaxed);
        Ok(())
    }

    /// Rows that arrive at a hint behind a stage that mixes splits.
    pub(crate) async fn pass_set(&self, hint: usize, chunk: &Chunk) {
        if let Some(prober) = &self.prober {
            prober.offer(hint, &chunk.pieces);
        }
        let mut writing = self.set.lock().await;
        let Writing::Part(open) = &mut *writing else { return };
        if open.hint != hint {
            return;
        }
        let batches = match open.stamp.stamp(chunk, &open.numbers) {
            Ok(batches) => batches,
            Err(error) => {
                tracing::error!(%error, "rows at a hint cannot be stored");
                return self.spoil(&mut writing, "an error");
            }
        };
        let pieces = open.pieces.clone();
        drop(writing);
        for batch in batches {
            if pieces.send(Piece::Rows(batch)).await.is_err() {
                return self.spoil(&mut *self.set.lock().await, "it cannot be stored");
            }
        }
    }

    /// The hint has seen the last of its rows: no stage below made the stream end before.
    pub(crate) async fn end_set(&self, hint: usize) {
        let mut writing = self.set.lock().await;
        if !matches!(&*writing, Writing::Part(open) if open.hint == hint) {
            return;
        }
        if let Writing::Part(open) = std::mem::take(&mut *writing) {
            let stage = self.hints.get(hint).map_or(0, |h| h.stage);
            let skipped = open.numbers.keys().map(|i| self.ctx.skipped_above(*i, stage)).sum();
            *writing = Writing::Ended(open.covers);
            drop(writing);
            // All that the task read: its part has all of its splits.
            let (source_bytes, _) = self.ctx.stats.reads.so_far();
            open.pieces.send(Piece::End { skipped, source_bytes }).await.ok();
        }
    }

    /// The part of a set that these leases name, if it can be read. They are all that it covers.
    pub(crate) async fn open_group(&self, leases: &[LeasedSplit]) -> Option<(usize, StoredGroup)> {
        let (group, plan) = leases.first().and_then(|l| Some((l.group.as_ref()?, l.cache.as_deref()?)))?;
        let hint = self.place(plan)?;
        let (bound, cache) = (self.hints.get(hint)?, self.cache.as_ref()?);
        let shape = bound.set.clone()?;
        if self.gets.is_off() {
            return None;
        }
        let snapshot = cache.snapshot(&group.set);
        let meta = match self.set_part(&snapshot, group.part).await {
            Ok(meta) => meta.filter(|m| m.attempt == group.attempt),
            Err(e) => {
                self.gets.failed(&e, "reading stored rows");
                return None;
            }
        };
        let Some(meta) = meta else {
            self.discard_set(&snapshot, "one of its parts is gone").await;
            return None;
        };
        let schema = with_origin(&bound.schema, &shape);
        match self.open_as(&snapshot, bound, meta, schema).await {
            Opened::Part(part) => {
                self.uses(&snapshot);
                self.get.fetch_add(leases.len() as u64, Ordering::Relaxed);
                let indices = leases.iter().map(|l| l.index).collect();
                let restore = Restore::new(Arc::clone(&bound.schema), shape, indices);
                Some((hint, StoredGroup { part: *part, restore, snapshot }))
            }
            Opened::Unusable => None,
            Opened::Bad => {
                self.discard_set(&snapshot, "one of its parts is damaged").await;
                None
            }
        }
    }

    async fn set_part(
        &self,
        snapshot: &Snapshot,
        key: SplitKey,
    ) -> Result<Option<Arc<caju_cache::PartMeta>>> {
        if let Some(known) = snapshot.known(&key) {
            return Ok(Some(known));
        }
        Ok(snapshot.index().await?.get(&key).cloned())
    }

    async fn discard_set(&self, snapshot: &Snapshot, why: &str) {
        if let Err(error) = snapshot.discard_set(why).await {
            tracing::warn!(%error, "a set could not be set aside");
        }
    }
}

/// The schema under which a set's rows are stored, without their origins.
fn stored(bound: &BoundHint, draw: u64) -> Schema {
    part::stored_schema(bound, draw).as_ref().clone()
}

/// A part of a set on its way back into the stream.
pub(crate) struct StoredGroup {
    part: OpenPart,
    restore: Restore,
    snapshot: Snapshot,
}

impl StoredGroup {
    /// Rows that were passed over when the part was computed.
    pub(crate) fn skipped(&self) -> u64 {
        self.part.skipped()
    }

    /// Requests that the rest of it can have under way at once; none where it is mapped.
    pub(crate) fn requests(&self) -> Option<usize> {
        self.part.requests()
    }

    /// The next elements; `None` at the end.
    ///
    /// # Errors
    /// The part is damaged or out of reach. The set was dealt with; elements that came before are right.
    pub(crate) async fn next(&mut self) -> Option<Result<Vec<Chunk>>> {
        match self.part.next().await {
            Some(batch) => {
                let chunks = match batch {
                    Ok(batch) => self.restore.push(&batch),
                    Err(e) => Err(e),
                };
                if let Err(e) = &chunks
                    && part::is_loss(e)
                {
                    given_up(&self.snapshot, self.part.meta(), e).await;
                    if let Err(error) = self.snapshot.discard_set(e.message()).await {
                        tracing::warn!(%error, "a set could not be set aside");
                    }
                }
                Some(chunks)
            }
            None => self.restore.finish().map(|last| Ok(vec![last])),
        }
    }
}
