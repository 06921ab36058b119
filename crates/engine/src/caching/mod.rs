//! Hints in a running task: which rows are stored there, and which are read instead of computed.
//!
//! The dispatcher decides *which* hint is used and how ([`CachePlan`]); the task finds out split by split which parts
//! exist. A split with a part is read (`get`). A split without one is computed, and stored (`put`) if the plan says so and
//! no other writer stores it. No failure of the cache ends the task, unless a split may not be computed: it is computed then.
//!
//! The module `locks` states the order in which locks are taken.

mod backfill;
mod backfill_buffer;
mod circuit_breaker;
mod counters;
mod decision;
mod hints;
mod in_flight;
mod locks;
mod part;
mod part_sender;
mod part_stream;
mod part_writers;
mod provenance;
mod save;
mod save_failure;
mod set;
mod snapshots;
mod stall_budget;
mod stored_splits;

use std::fmt;
use std::sync::Arc;

use caju_cache::{Cache, PutOutcome};
use caju_runtime::OrderedMutex;
use caju_sources::Split;
use caju_types::Result;
use caju_wire::Chunk;

use crate::cache_plan::{CachePlan, SplitModes};
use crate::context::TaskContext;
use crate::hint::BoundHint;
use crate::lease::LeasedSplit;
use crate::probing::{Findings, Prober};
use backfill_buffer::BackfillBuffer;
use counters::SplitCounters;
use decision::LateDecision;
use hints::TaskHints;
use in_flight::{InFlight, InFlightSplit};
pub(crate) use part::OpenPart;
use part::Opened;
use part_writers::PartWriters;
use save_failure::SaveFailure;
pub(crate) use set::StoredGroup;
use set::{SetState, TaskSet};
use snapshots::TaskSnapshots;

/// Before the decision one of this many splits is computed although it has a part, so that computing and reading can be
/// compared.
const COMPUTED_ONE_IN: u64 = 8;

/// What a task needs to use the cache.
pub(crate) struct CacheOptions {
    /// Where snapshots are, if there are any.
    pub(crate) cache: Option<Arc<Cache>>,
    /// The hints of the pipeline, for the job's seed.
    pub(crate) hints: Vec<BoundHint>,
    /// The pipeline's name.
    pub(crate) pipeline: String,
    /// The job's name.
    pub(crate) job: String,
    /// The task begins before the decision: existing parts are read, and rows are buffered for the decision.
    pub(crate) undecided: bool,
    /// Splits that the task reads at once.
    pub(crate) readers: usize,
}

/// The cache as one task uses it.
pub(crate) struct TaskCache {
    hints: Arc<TaskHints>,
    snapshots: Arc<TaskSnapshots>,
    writers: Arc<PartWriters>,
    counters: Arc<SplitCounters>,
    set: Arc<TaskSet>,
    in_flight: OrderedMutex<InFlight>,
    decision: LateDecision,
    prober: Option<Arc<Prober>>,
    save_failure: SaveFailure,
    ctx: Arc<TaskContext>,
}

/// How a split starts.
pub(crate) enum Entry {
    /// From the source.
    Compute,
    /// From the source; its rows are stored at the hint, which must see the split's end.
    Put { hint: usize },
    /// From the source; its rows are buffered at hints until it is decided whether they are stored.
    Buffer,
    /// Not at all: a save has its part, which `skipped` bad rows were left out of.
    Saved { skipped: u64 },
    /// Not at all: a save cannot store it now.
    Skip,
    /// At a hint, from a part.
    Get { hint: usize, part: Box<OpenPart> },
}

impl fmt::Debug for TaskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskCache").field("modes", &self.modes()).finish_non_exhaustive()
    }
}

impl TaskCache {
    pub(crate) fn new(options: CacheOptions, ctx: Arc<TaskContext>, prober: Option<Arc<Prober>>) -> Self {
        let CacheOptions { cache, hints, pipeline, job, undecided, readers } = options;
        let mut in_flight = InFlight::default();
        if let Some(cache) = cache.as_ref().filter(|_| undecided) {
            let limit_bytes = cache.options().memory_tier_bytes;
            in_flight.backfill = BackfillBuffer::new(
                limit_bytes,
                cache.options().decision_wait,
                Arc::clone(cache.backfill_bytes()),
                hints.len(),
            );
        }
        let hints = Arc::new(TaskHints::new(hints, Arc::clone(&ctx)));
        let snapshots = TaskSnapshots::new(cache, pipeline, job, ctx.frozen_draw(0), readers);
        let (snapshots, counters) = (Arc::new(snapshots), Arc::<SplitCounters>::default());
        let writers = Arc::new(PartWriters::new(Arc::clone(&ctx.clock)));
        let set = Arc::new(TaskSet {
            hints: Arc::clone(&hints),
            snapshots: Arc::clone(&snapshots),
            writers: Arc::clone(&writers),
            counters: Arc::clone(&counters),
            ctx: Arc::clone(&ctx),
            state: tokio::sync::Mutex::new(SetState::default()),
        });
        Self {
            hints,
            snapshots,
            writers,
            counters,
            set,
            in_flight: OrderedMutex::new(locks::IN_FLIGHT, in_flight),
            decision: LateDecision::new(undecided),
            prober,
            save_failure: SaveFailure::default(),
            ctx,
        }
    }

    /// How the splits were run so far.
    pub(crate) fn modes(&self) -> SplitModes {
        self.counters.modes()
    }

    /// The index of a hint's counters among those of the stages.
    pub(crate) fn stats_index(&self, hint: usize) -> usize {
        self.hints.stats_index(hint)
    }

    /// Whether the hint is behind a cross-split stage.
    pub(crate) fn is_set(&self, hint: usize) -> bool {
        self.hints.is_set(hint)
    }

    /// What probes found so far; none if the task does not probe.
    pub(crate) fn findings(&self) -> Option<Findings> {
        self.prober.as_ref().map(|p| p.findings())
    }

    /// Waits until the probes have finished with the rows that there were.
    pub(crate) async fn probed(&self) {
        if let Some(prober) = &self.prober {
            prober.finish().await;
        }
    }

    /// Requests that reading the part of a split has in flight at once, if the split is known to have a part that makes
    /// requests.
    pub(crate) fn known_requests(&self, lease: &LeasedSplit) -> Option<usize> {
        let plan = lease.cache.as_deref().or_else(|| self.adopted(lease))?;
        let hint = self.hints.planned(plan).filter(|h| !self.hints.is_set(*h) && plan.save.is_none())?;
        self.snapshots.known_requests(self.hints.get(hint).ok()?, lease.split.key)
    }

    /// Decides how a split starts, and opens what it needs.
    pub(crate) async fn enter(self: &Arc<Self>, lease: &LeasedSplit) -> Entry {
        let entry = match lease.cache.as_deref().or_else(|| self.adopted(lease)) {
            Some(plan) => self.enter_planned(lease, plan).await,
            None if self.decision.is_expected() => match self.enter_hit(lease.index, &lease.split).await {
                Entry::Compute => match (self.enter_undecided(lease), self.adopted(lease)) {
                    // The decision arrived while parts were being looked up.
                    (Entry::Compute, Some(plan)) => self.enter_planned(lease, plan).await,
                    (entry, _) => entry,
                },
                entry => entry,
            },
            None => Entry::Compute,
        };
        match entry {
            Entry::Compute | Entry::Buffer => self.counters.add_computed(),
            Entry::Get { .. } | Entry::Saved { .. } | Entry::Skip => self.counters.add_read(1),
            // Counted when the part is committed.
            Entry::Put { .. } => {}
        };
        entry
    }

    /// Before the decision: reads the part at the last hint that has one. A few splits are computed although they have a
    /// part, for comparison.
    async fn enter_hit(&self, index: u64, split: &Split) -> Entry {
        if index.is_multiple_of(COMPUTED_ONE_IN) || split.trim.is_some() {
            return Entry::Compute;
        }
        for hint in (0..self.hints.len()).rev() {
            // A second attempt at this split could not know whether the first one drew again.
            if self.hints.is_random(hint) || self.hints.is_set(hint) {
                continue;
            }
            let Ok(bound) = self.hints.get(hint) else { continue };
            let view = self.snapshots.view(bound).await;
            let Some(view) = view.get().and_then(Option::as_ref) else { continue };
            let Some(meta) = view.index.get(&split.key).cloned() else { continue };
            if let Opened::Part(part) = self.snapshots.open(view, bound, meta).await {
                return Entry::Get { hint, part };
            }
        }
        Entry::Compute
    }

    async fn enter_planned(self: &Arc<Self>, lease: &LeasedSplit, plan: &CachePlan) -> Entry {
        self.decide(Some(plan));
        let Some(hint) = self.hints.planned(plan) else { return without_plan(plan) };
        if self.hints.is_set(hint) {
            self.hints.freeze(hint, lease);
            self.set.enter(lease, hint, plan).await;
            return Entry::Compute;
        }
        // A part has all rows of its split, and its ordinals are counted from the first one.
        if lease.split.trim.is_some() {
            return without_plan(plan);
        }
        if plan.covers(lease.split.key) {
            self.hints.freeze(hint, lease);
        } else if self.hints.is_random(hint) {
            return Entry::Compute;
        }
        match &plan.save {
            Some(save) => self.enter_save(lease, plan, save).await,
            None => self.get_or_put(lease, hint, plan).await,
        }
    }

    /// Reads the part of a split at a hint if there is one, or stores it if the plan says so.
    async fn get_or_put(self: &Arc<Self>, lease: &LeasedSplit, hint: usize, plan: &CachePlan) -> Entry {
        let key = lease.split.key;
        let Ok(bound) = self.hints.get(hint) else { return Entry::Compute };
        let view = self.snapshots.view(bound).await;
        let Some(view) = view.get().and_then(Option::as_ref) else { return Entry::Compute };
        if let Some(meta) = view.index.get(&key).cloned() {
            match self.snapshots.open(view, bound, meta).await {
                Opened::Part(part) => return Entry::Get { hint, part },
                Opened::Unusable => return Entry::Compute,
                Opened::Bad => {}
            }
        }
        if !plan.stores(key) || self.writers.breaker.is_open() || self.snapshots.is_read_only() {
            return Entry::Compute;
        }
        match self.snapshots.claim(view, bound, key, plan).await {
            Ok(PutOutcome::Exists(meta)) => match self.snapshots.open(view, bound, meta).await {
                Opened::Part(part) => Entry::Get { hint, part },
                Opened::Unusable | Opened::Bad => Entry::Compute,
            },
            Ok(PutOutcome::Writer(writer)) => {
                if self.start_writer(lease.index, hint, *writer, plan.write_bytes_per_s) {
                    Entry::Put { hint }
                } else {
                    Entry::Compute
                }
            }
            Ok(PutOutcome::Busy { writer }) => {
                tracing::debug!(split = %key, %writer, "another writer stores this split");
                Entry::Compute
            }
            Err(e) => {
                self.writers.breaker.record_failure(&e, "storing rows");
                Entry::Compute
            }
        }
    }

    /// The first `rows` rows of a split are with the stages below the hint already: they came from a part that then
    /// turned out to be damaged.
    pub(crate) fn resume(&self, index: u64, hint: usize, rows: u64) {
        self.counters.read_became_computed();
        self.in_flight.lock().insert(index, InFlightSplit::resumed(hint, rows));
    }

    /// Whether the task has computed rows down to a hint. A part records the CPU time of its rows, which decides about its
    /// eviction. A task that only reads rows of other tasks cannot measure that time.
    pub(crate) fn knows_cost_above(&self, hint: usize) -> bool {
        self.hints.cpu_s_per_row_above(hint) > 0.0
    }

    /// Abandons the part of a split whose rows cannot be stored after all.
    pub(crate) fn give_up(&self, index: u64) {
        self.in_flight.lock().remove(index);
    }

    /// Rows arrive at a hint behind a cross-split stage.
    pub(crate) async fn pass_set(&self, hint: usize, chunk: &Chunk) {
        if let Some(prober) = &self.prober {
            prober.offer(hint, &chunk.pieces);
        }
        self.set.pass(hint, chunk).await;
    }

    /// The last row has passed a hint behind a cross-split stage. `counted`: the rows of splits were counted above it.
    pub(crate) async fn end_set(&self, hint: usize, counted: bool) {
        self.set.end(hint, counted).await;
    }

    /// Opens the part of a set that these leases name, if it can be read. They are all leases that it covers.
    pub(crate) async fn open_group(&self, leases: &[LeasedSplit]) -> Option<(usize, StoredGroup)> {
        self.set.open_group(leases).await
    }

    /// Waits until every part whose split has ended is committed or abandoned.
    ///
    /// # Errors
    /// The permanent failure of a save, once.
    pub(crate) async fn settled(&self) -> Result<()> {
        // A split without an end by now never gets one: `take` stopped the stream above it.
        self.close();
        self.set.settle().await;
        self.writers.settled().await;
        self.save_failure.take()
    }

    /// No split enters any more, and no row passes a hint.
    fn close(&self) {
        let mut in_flight = self.in_flight.lock();
        self.writers.close();
        in_flight.clear();
    }

    /// Stops the writers where they are.
    pub(crate) fn stop(&self) {
        self.close();
        self.writers.stop();
    }
}

/// How a split starts that the plan does not cover.
fn without_plan(plan: &CachePlan) -> Entry {
    if plan.save.is_some() { Entry::Skip } else { Entry::Compute }
}
