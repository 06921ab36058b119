//! Hints behind cross-split stages: each task writes one part, of all its splits. The parts count only if together they
//! cover every split of the listing once.

use std::collections::HashMap;
use std::sync::Arc;

use caju_cache::{Committed, Member, PartMeta, PutOutcome, SetOutcome, Snapshot, SplitName, SplitSetDigest};
use caju_runtime::caught;
use caju_types::{Error, Result, SplitKey, hash128};
use caju_wire::Chunk;
use tokio::sync::{Mutex, mpsc};

use super::counters::SplitCounters;
use super::hints::TaskHints;
use super::part::{OpenPart, Opened, discard_if_lost, is_loss};
use super::part_sender::{PartItem, QUEUED_BATCHES, write_rows};
use super::part_writers::PartWriters;
use super::provenance::{ProvenanceDecoder, ProvenanceEncoder, with_provenance};
use super::snapshots::TaskSnapshots;
use super::stored_splits::StoredSplits;
use crate::cache_plan::{CachePlan, GroupLease, SetPlan, SetTarget, name_in_set};
use crate::context::TaskContext;
use crate::lease::LeasedSplit;

/// A task's part of a set: written while rows pass the hint, or read instead of computing.
pub(super) struct TaskSet {
    pub(super) hints: Arc<TaskHints>,
    pub(super) snapshots: Arc<TaskSnapshots>,
    pub(super) writers: Arc<PartWriters>,
    pub(super) counters: Arc<SplitCounters>,
    pub(super) ctx: Arc<TaskContext>,
    pub(super) state: Mutex<SetState>,
}

/// What this task writes of a set.
#[derive(Default)]
pub(super) enum SetState {
    /// No lease asked for a set yet.
    #[default]
    Idle,
    /// Rows go to a part.
    Writing(Box<SetPart>),
    /// The last row has passed the hint; the writer takes from here what the part covers, and how many rows these splits have.
    Ended(Vec<SplitName>, Vec<u64>),
    /// This task's part can never count: some split is not wholly computed here, or storing failed.
    Aborted,
}

pub(super) struct SetPart {
    hint: usize,
    target: SetTarget,
    covers: Vec<SplitName>,
    numbers: HashMap<u64, u32>,
    encoder: ProvenanceEncoder,
    items: mpsc::Sender<PartItem>,
}

impl TaskSet {
    /// Adds a split that this task computes to its part of the set.
    pub(super) async fn enter(self: &Arc<Self>, lease: &LeasedSplit, hint: usize, plan: &CachePlan) {
        let mut state = self.state.lock().await;
        let target = match &plan.set {
            Some(SetPlan::Write(target)) if plan.put && lease.done.is_empty() => target,
            _ => return abort(&mut state, "some of its splits are not stored"),
        };
        if matches!(*state, SetState::Idle) {
            self.ctx.sizes.keep();
            match self.start(lease.index, hint, target, plan).await {
                Ok(part) => *state = SetState::Writing(Box::new(part)),
                Err(e) => {
                    self.writers.breaker.record_failure(&e, "storing rows");
                    return abort(&mut state, "it cannot be stored");
                }
            }
        }
        match &mut *state {
            SetState::Writing(part) if part.hint == hint && part.target == *target => {
                let number = u32::try_from(part.covers.len()).unwrap_or(u32::MAX);
                part.numbers.insert(lease.index, number);
                part.covers.push(SplitName(name_in_set(&lease.split)));
            }
            SetState::Aborted => {}
            other => abort(other, "its splits have different plans"),
        }
    }

    /// Claims the part and starts its writer. `first`: the first split of the part.
    async fn start(
        self: &Arc<Self>,
        first: u64,
        hint: usize,
        target: &SetTarget,
        plan: &CachePlan,
    ) -> Result<SetPart> {
        let (cache, bound) = (self.snapshots.cache()?, self.hints.get(hint)?);
        let shape = bound.set.clone().ok_or_else(|| Error::internal("a hint is no place for a set"))?;
        let snapshot = cache.snapshot(&target.id);
        let mut description = self.snapshots.description(bound, plan);
        description.splits = Some(target.whole.splits);
        let schema = with_provenance(&self.snapshots.stored_schema(bound), &shape);
        self.snapshots.mark_used(&snapshot);
        // The key is unique in the attempt: no other task of the attempt begins with this split. A split that is run
        // again after its task was lost is not stored.
        let name = format!("{} {} {first}", target.attempt, cache.writer_id());
        let key = SplitKey(hash128(name.as_bytes()));
        let writer = match snapshot.put(key, &description, Arc::clone(&schema), plan.encoding).await? {
            PutOutcome::Writer(writer) => writer,
            _ => return Err(Error::internal("a part of a set has a key that was given out before")),
        };
        let (items, queue) = mpsc::channel(QUEUED_BATCHES);
        let open = self.writers.register().ok_or_else(|| Error::cancelled("the task is over"))?;
        let (me, of, cut) = (Arc::clone(self), target.clone(), shape.cut);
        self.writers.spawn("the writer of a part of a set", async move {
            let _open = open;
            let compute_cpu_s = |rows| me.hints.cpu_s_per_row_above(hint) * rows as f64;
            let writing = caught("the writer of a part of a set", write_rows(*writer, queue, compute_cpu_s));
            let written = Box::pin(writing).await.and_then(|written| written);
            match me.add_to_set(&snapshot, &of, cut, key, written).await {
                Ok(()) => me.writers.breaker.record_success(),
                Err(e) => me.writers.breaker.record_failure(&e, "storing rows"),
            }
            Ok(())
        });
        let encoder = ProvenanceEncoder::new(schema, &shape);
        let (covers, numbers) = (Vec::new(), HashMap::new());
        Ok(SetPart { hint, target: target.clone(), covers, numbers, encoder, items })
    }

    /// Adds the part to its set, if it was written. `cut`: a `take` above the hint may end the stream.
    async fn add_to_set(
        &self,
        snapshot: &Snapshot,
        target: &SetTarget,
        cut: bool,
        key: SplitKey,
        written: Result<Option<Committed>>,
    ) -> Result<()> {
        let Some(committed) = written? else { return Ok(()) };
        let (covers, rows) = match &mut *self.state.lock().await {
            SetState::Ended(covers, rows) => (std::mem::take(covers), std::mem::take(rows)),
            _ => return Err(Error::internal("a part of a set ended before its rows")),
        };
        let stored = covers.len() as u64;
        let member = Member { part: key, attempt: committed.meta().attempt.clone(), covers, rows };
        // Behind a `take` one task sees all rows of the prefix, though not all splits.
        let whole = if cut { SplitSetDigest::of(member.covers.iter().map(|n| n.0)) } else { target.whole };
        if snapshot.add_to_set(&target.attempt, whole, member).await? == SetOutcome::Complete {
            tracing::info!(set = %target.id, splits = target.whole.splits, "a set of parts is complete");
        }
        self.counters.computed_became_stored(stored);
        Ok(())
    }

    /// Rows arrive at a hint: they are stored if this task writes a part there.
    pub(super) async fn pass(&self, hint: usize, chunk: &Chunk) {
        let mut state = self.state.lock().await;
        let SetState::Writing(part) = &mut *state else { return };
        if part.hint != hint {
            return;
        }
        let batches = match part.encoder.encode(chunk, &part.numbers) {
            Ok(batches) => batches,
            Err(error) => {
                tracing::error!(%error, "rows at a hint cannot be stored");
                return abort(&mut state, "an error");
            }
        };
        let items = part.items.clone();
        drop(state);
        for batch in batches {
            if items.send(PartItem::Rows(batch)).await.is_err() {
                return abort(&mut *self.state.lock().await, "it cannot be stored");
            }
        }
    }

    /// The last row has passed the hint: no stage below ended the stream before that. `counted`: the rows of splits were counted
    /// above the hint.
    pub(super) async fn end(&self, hint: usize, counted: bool) {
        let mut state = self.state.lock().await;
        if !matches!(&*state, SetState::Writing(part) if part.hint == hint) {
            return;
        }
        if let SetState::Writing(part) = std::mem::take(&mut *state) {
            let skipped = part.numbers.keys().map(|index| self.hints.skipped_above(hint, *index)).sum();
            let sizes = self.ctx.sizes.take_kept();
            let rows = if counted { part.rows_of_splits(&sizes) } else { Vec::new() };
            *state = SetState::Ended(part.covers, rows);
            drop(state);
            // The part has all splits of the task, so it accounts for all that the task read.
            let (source_bytes, _) = self.ctx.stats.reads.so_far();
            part.items.send(PartItem::End { skipped, source_bytes }).await.ok();
        }
    }

    /// Aborts a part that got no end: `take` stopped the stream above it.
    pub(super) async fn settle(&self) {
        let mut state = self.state.lock().await;
        if matches!(*state, SetState::Writing(_)) {
            *state = SetState::Aborted;
        }
    }

    /// Opens the part of a set that these leases name, if it can be read, and if they are all leases that it covers, in any order.
    pub(super) async fn open_group(&self, leases: &[LeasedSplit]) -> Option<(usize, StoredGroup)> {
        let (group, plan) = leases.first().and_then(|l| Some((l.group.as_ref()?, l.cache.as_deref()?)))?;
        if !are_all_of(group, leases) {
            return None;
        }
        let hint = self.hints.planned(plan)?;
        let (bound, cache) = (self.hints.get(hint).ok()?, self.snapshots.cache().ok()?);
        let shape = bound.set.clone()?;
        if self.snapshots.breaker.is_open() {
            return None;
        }
        let snapshot = cache.snapshot(&group.set);
        let meta = match part_meta(&snapshot, group.part).await {
            Ok(meta) => meta.filter(|m| m.attempt == group.attempt),
            Err(e) => {
                self.snapshots.breaker.record_failure(&e, "reading stored rows");
                return None;
            }
        };
        let Some(meta) = meta else {
            discard_set(&snapshot, "one of its parts is gone").await;
            return None;
        };
        let schema = with_provenance(&bound.schema, &shape);
        match self.snapshots.open_as(&snapshot, bound, meta, schema).await {
            Opened::Part(part) => {
                self.snapshots.mark_used(&snapshot);
                self.counters.add_read(leases.len() as u64);
                let splits = StoredSplits::of(leases);
                let decoder = ProvenanceDecoder::new(Arc::clone(&bound.schema), shape, splits);
                Some((hint, StoredGroup { part: *part, decoder, snapshot, ctx: Arc::clone(&self.ctx) }))
            }
            Opened::Unusable => None,
            Opened::Bad => {
                discard_set(&snapshot, "one of its parts is damaged").await;
                None
            }
        }
    }
}

impl SetPart {
    /// How many rows each of its splits has, in the order of their numbers. Empty if that is not known of all: a `take` may end the
    /// stream within a split.
    fn rows_of_splits(&self, sizes: &HashMap<u64, u64>) -> Vec<u64> {
        let mut rows = vec![None; self.covers.len()];
        for (index, number) in &self.numbers {
            if let Some(rows) = rows.get_mut(*number as usize) {
                *rows = sizes.get(index).copied();
            }
        }
        rows.into_iter().collect::<Option<Vec<u64>>>().unwrap_or_default()
    }
}

/// Whether leases are those of all splits of one part.
fn are_all_of(part: &GroupLease, leases: &[LeasedSplit]) -> bool {
    let is_of_part = |of: &&GroupLease| {
        (of.set, of.part, of.of) == (part.set, part.part, part.of) && of.attempt == part.attempt
    };
    let number = |lease: &LeasedSplit| lease.group.as_ref().filter(is_of_part).map(|of| of.at);
    let Some(mut numbers) = leases.iter().map(number).collect::<Option<Vec<u32>>>() else { return false };
    numbers.sort_unstable();
    numbers.len() == part.of as usize && (0u32..).zip(numbers).all(|(at, number)| at == number)
}

/// Gives up the task's part. The writer aborts when its sender is dropped.
fn abort(state: &mut SetState, why: &str) {
    if matches!(state, SetState::Writing(_)) {
        tracing::debug!(why, "the task's part of a set is given up");
    }
    *state = SetState::Aborted;
}

async fn part_meta(snapshot: &Snapshot, key: SplitKey) -> Result<Option<Arc<PartMeta>>> {
    if let Some(known) = snapshot.cached_part(&key) {
        return Ok(Some(known));
    }
    Ok(snapshot.index().await?.get(&key).cloned())
}

async fn discard_set(snapshot: &Snapshot, why: &str) {
    if let Err(error) = snapshot.discard_set(why).await {
        tracing::warn!(%error, "a set could not be discarded");
    }
}

/// A part of a set that is read back into the stream.
pub(crate) struct StoredGroup {
    part: OpenPart,
    decoder: ProvenanceDecoder,
    snapshot: Snapshot,
    ctx: Arc<TaskContext>,
}

impl StoredGroup {
    /// Rows that were skipped when the part was computed.
    pub(crate) fn skipped(&self) -> u64 {
        self.part.skipped()
    }

    /// Requests that the remainder of the part can have in flight at once; none if the part is mapped into memory.
    pub(crate) fn requests(&self) -> Option<usize> {
        self.part.requests()
    }

    /// The next elements; `None` at the end.
    ///
    /// # Errors
    /// The part is damaged or out of reach. A damaged set was discarded; elements that came before are right.
    pub(crate) async fn next(&mut self) -> Option<Result<Vec<Chunk>>> {
        match self.part.next().await {
            Some(batch) => {
                let chunks = match batch {
                    Ok(batch) => self.decoder.push(&batch),
                    Err(e) => Err(e),
                };
                match &chunks {
                    Ok(_) => self.ctx.sizes.add_stored(self.decoder.take_sizes()),
                    Err(e) if is_loss(e) => {
                        discard_if_lost(&self.snapshot, self.part.meta(), e).await;
                        discard_set(&self.snapshot, e.message()).await;
                    }
                    Err(_) => {}
                }
                Some(chunks)
            }
            None => {
                self.ctx.sizes.add_stored(self.decoder.take_sizes());
                self.decoder.finish().map(|last| Ok(vec![last]))
            }
        }
    }
}
