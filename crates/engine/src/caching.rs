//! Hints in a running task: what is stored there, and what is read instead of computed.
//!
//! The dispatcher decides *which* hint is used and how ([`CachePlan`]); the task finds out split by split what
//! there is. A split with a part is read (`get`), one without is computed, and stored if the plan says so
//! (`put`) and nobody else is storing it. Nothing that goes wrong with the cache ends the task: the split is
//! computed then.

mod bound;
mod kept;
mod origin;
mod part;
mod plan;
mod put;
mod save;
mod set;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arrow_schema::SchemaRef;
use caju_cache::{Cache, PartIndex, PartMeta, PutOutcome, ReadOptions, Snapshot, SnapshotDescription};
use caju_types::{Error, Fingerprint, Result};
use parking_lot::Mutex;
use tokio::sync::{OnceCell, Semaphore};

use crate::context::TaskContext;
use crate::probing::{Findings, Prober};
use crate::source::Split;
use crate::task::LeasedSplit;
pub(crate) use bound::{BoundHint, SetShape, set_base};
use kept::Kept;
pub(crate) use part::OpenPart;
use part::{Opened, given_up, is_loss, schema_for_people, stored_schema};
pub use plan::{CachePlan, GroupLease, SetPlan, SetTarget, SplitModes, cover, set_id};
use put::{Breaker, Pace, WriterOf};
use save::SaveFailure;
pub use save::SavePlan;
pub(crate) use set::StoredGroup;
use set::Writing;

/// Batches that wait for the writer of a part; beyond that the split waits for it.
const WAITING: usize = 2;

/// The cache as one task sees it.
pub(crate) struct TaskCache {
    cache: Option<Arc<Cache>>,
    hints: Vec<BoundHint>,
    pipeline: String,
    job: String,
    /// The task begins before anybody has decided: parts that are there are read, and rows are kept for the decision.
    undecided: bool,
    /// What was decided then.
    decided: OnceLock<Option<CachePlan>>,
    ctx: Arc<TaskContext>,
    prober: Option<Arc<Prober>>,
    /// Whether parts are written and read, or the store failed too often.
    puts: Breaker,
    gets: Breaker,
    pace: Pace,
    /// How parts are read.
    read: ReadOptions,
    snapshots: Mutex<HashMap<Fingerprint, Arc<OnceCell<Option<SnapshotView>>>>>,
    books: Mutex<Books>,
    set: tokio::sync::Mutex<Writing>,
    writers: caju_runtime::Tasks,
    open_writers: tokio::sync::watch::Sender<usize>,
    compute: AtomicU64,
    put: AtomicU64,
    get: AtomicU64,
    fell_back: AtomicU64,
    kept: AtomicU64,
    /// Why a save cannot go on, if this task is one's.
    save_failure: SaveFailure,
}

struct SnapshotView {
    snapshot: Snapshot,
    index: PartIndex,
}

/// The splits on their way, by lease.
#[derive(Default)]
struct Books {
    open: HashMap<u64, Book>,
    /// Rows that a decision may want.
    kept: Kept,
    /// The stream is over. What its readers still begin would never get an end.
    closed: bool,
}

/// A split on its way to a hint at which something happens to it.
struct Book {
    hint: usize,
    /// Rows below this ordinal were read from a part that then turned out to be damaged.
    skip_below: u64,
    /// Bytes of the source that were read for it, once all were.
    source_bytes: u64,
    writer: Option<WriterOf>,
}

/// Counts as a writer that is open as long as it lives: the end of the task waits for it, however it ends.
struct OpenWriter(Arc<TaskCache>);

impl OpenWriter {
    fn of(cache: &Arc<TaskCache>) -> Self {
        cache.open_writers.send_modify(|n| *n += 1);
        Self(Arc::clone(cache))
    }
}

impl Drop for OpenWriter {
    fn drop(&mut self) {
        self.0.open_writers.send_modify(|n| *n -= 1);
    }
}

/// One split in so many is computed before the decision, whatever there is to read.
const COMPARED: u64 = 8;

/// How a split starts.
pub(crate) enum Entry {
    /// From the source.
    Compute,
    /// From the source; what arrives at the hint is stored, and the hint wants to hear of the split's end.
    Put,
    /// The same, where it is not decided yet whether that is stored which arrives.
    Keep,
    /// Not at all: a save has it, or cannot have it now.
    Skip,
    /// At a hint, from a part.
    Get { hint: usize, part: Box<OpenPart> },
}

impl fmt::Debug for TaskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskCache").field("hints", &self.hints).finish_non_exhaustive()
    }
}

impl TaskCache {
    pub(crate) fn new(
        cache: Option<Arc<Cache>>,
        hints: Vec<BoundHint>,
        pipeline: String,
        ctx: Arc<TaskContext>,
        prober: Option<Arc<Prober>>,
    ) -> Self {
        Self {
            cache,
            hints,
            pipeline,
            job: String::new(),
            undecided: false,
            decided: OnceLock::new(),
            ctx,
            prober,
            puts: Breaker::default(),
            gets: Breaker::default(),
            pace: Pace::default(),
            read: ReadOptions::default(),
            snapshots: Mutex::default(),
            books: Mutex::default(),
            set: tokio::sync::Mutex::default(),
            writers: caju_runtime::Tasks::new(),
            open_writers: tokio::sync::watch::Sender::new(0),
            compute: AtomicU64::new(0),
            put: AtomicU64::new(0),
            get: AtomicU64::new(0),
            fell_back: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            save_failure: SaveFailure::default(),
        }
    }

    /// The same for a task that begins before anybody has decided.
    pub(crate) fn undecided(mut self, undecided: bool) -> Self {
        self.undecided = undecided;
        if let Some(cache) = self.cache.as_ref().filter(|_| undecided) {
            let (limit, all) = (cache.options().memory_tier_bytes, Arc::clone(cache.kept_bytes()));
            self.books.get_mut().kept = Kept::up_to(limit, all, self.hints.len());
        }
        self
    }

    /// The same for a task with so many readers.
    pub(crate) fn read_by(mut self, readers: usize) -> Self {
        let turns = Arc::new(Semaphore::new(Cache::requests_at_once(readers)));
        self.read.turns = Some(turns);
        self
    }

    /// The same for a job of that name.
    pub(crate) fn for_job(mut self, job: &str) -> Self {
        self.job = job.to_string();
        self
    }

    pub(crate) fn modes(&self) -> SplitModes {
        SplitModes {
            compute: self.compute.load(Ordering::Relaxed),
            put: self.put.load(Ordering::Relaxed),
            get: self.get.load(Ordering::Relaxed),
            fell_back: self.fell_back.load(Ordering::Relaxed),
            kept: self.kept.load(Ordering::Relaxed),
        }
    }

    /// Which of the stages' figures are a hint's.
    pub(crate) fn figures(&self, hint: usize) -> usize {
        self.hints.get(hint).map_or(0, |h| h.stage + 1)
    }

    /// What probes found out; none if there are none.
    pub(crate) fn findings(&self) -> Option<Findings> {
        self.prober.as_ref().map(|p| p.findings())
    }

    /// Waits until the probes are through, with the rows that there were.
    pub(crate) async fn probed(&self) {
        if let Some(prober) = &self.prober {
            prober.finish().await;
        }
    }

    /// Requests that reading the part of a split has under way, if it is known to have one that makes requests.
    pub(crate) fn requests_for(&self, lease: &LeasedSplit) -> Option<usize> {
        let plan = lease.cache.as_deref().or_else(|| self.adopted(lease))?;
        let hint = self.place(plan).filter(|hint| !self.is_set(*hint) && plan.save.is_none())?;
        let view = Arc::clone(self.snapshots.lock().get(&self.hints[hint].fingerprint)?);
        let index = &view.get()?.as_ref()?.index;
        self.cache.as_ref()?.requests_for(index.get(&lease.split.key)?)
    }

    /// Decides how a split starts, and opens what it needs.
    pub(crate) async fn enter(self: &Arc<Self>, lease: &LeasedSplit) -> Entry {
        let (index, split) = (lease.index, &lease.split);
        let entry = match lease.cache.as_deref().or_else(|| self.adopted(lease)) {
            Some(plan) => self.enter_planned(lease, plan).await,
            None if self.undecided => match self.enter_hit(index, split).await {
                Entry::Compute => match (self.enter_undecided(lease), self.adopted(lease)) {
                    // It was decided while the parts were looked at.
                    (Entry::Compute, Some(plan)) => self.enter_planned(lease, plan).await,
                    (entry, _) => entry,
                },
                entry => entry,
            },
            None => Entry::Compute,
        };
        match entry {
            Entry::Compute | Entry::Keep => self.compute.fetch_add(1, Ordering::Relaxed),
            Entry::Get { .. } | Entry::Skip => self.get.fetch_add(1, Ordering::Relaxed),
            // Counted when the part is committed.
            Entry::Put => 0,
        };
        entry
    }

    /// Before the decision: the part nearest to the end, if the split has one. A few splits are computed all
    /// the same, so that there is something to compare with.
    async fn enter_hit(&self, index: u64, split: &Split) -> Entry {
        if index.is_multiple_of(COMPARED) || split.trim.is_some() {
            return Entry::Compute;
        }
        for hint in (0..self.hints.len()).rev() {
            // Nobody could tell a second attempt at this split whether the first one drew anew.
            if self.hints[hint].random || self.is_set(hint) {
                continue;
            }
            let view = self.view(hint).await;
            let Some(view) = view.get().and_then(Option::as_ref) else { continue };
            let Some(meta) = view.index.get(&split.key).cloned() else { continue };
            if let Opened::Part(part) = self.open(view, hint, meta).await {
                return Entry::Get { hint, part };
            }
        }
        Entry::Compute
    }

    async fn enter_planned(self: &Arc<Self>, lease: &LeasedSplit, plan: &CachePlan) -> Entry {
        let (index, split, key) = (lease.index, &lease.split, lease.split.key);
        self.decide(Some(plan));
        let Some(hint) = self.place(plan) else { return self.without(plan) };
        if self.is_set(hint) {
            self.freeze(hint, lease);
            self.enter_set(lease, hint, plan).await;
            return Entry::Compute;
        }
        // Half of a split is no part, and rows of a part are counted from its beginning.
        if split.trim.is_some() {
            return self.without(plan);
        }
        if plan.covers(key) {
            self.freeze(hint, lease);
        } else if self.hints[hint].random {
            return Entry::Compute;
        }
        if let Some(save) = &plan.save {
            return self.enter_save(index, split, plan, save).await;
        }
        let view = self.view(hint).await;
        let Some(view) = view.get().and_then(Option::as_ref) else { return Entry::Compute };
        let known = view.index.get(&key).cloned();
        if let Some(meta) = known {
            match self.open(view, hint, meta).await {
                Opened::Part(part) => return Entry::Get { hint, part },
                Opened::Unusable => return Entry::Compute,
                Opened::Bad => {}
            }
        }
        if !plan.stores(key) || self.puts.is_off() || self.is_read_only() {
            return Entry::Compute;
        }
        match self.claim(view, hint, split, plan).await {
            Ok(PutOutcome::Exists(meta)) => match self.open(view, hint, meta).await {
                Opened::Part(part) => Entry::Get { hint, part },
                Opened::Unusable | Opened::Bad => Entry::Compute,
            },
            Ok(PutOutcome::Writer(writer)) => {
                if self.start_writer(index, hint, *writer, plan.write_bytes_per_s) {
                    Entry::Put
                } else {
                    Entry::Compute
                }
            }
            Ok(PutOutcome::Busy { writer }) => {
                tracing::debug!(split = %key, %writer, "another writer stores this split");
                Entry::Compute
            }
            Err(e) => {
                self.puts.failed(&e, "storing rows");
                Entry::Compute
            }
        }
    }

    /// Whether nothing can be stored, which the cache has said when it was opened.
    fn is_read_only(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.is_read_only())
    }

    async fn view(&self, hint: usize) -> Arc<OnceCell<Option<SnapshotView>>> {
        let BoundHint { name, fingerprint, .. } = &self.hints[hint];
        let cell = Arc::clone(self.snapshots.lock().entry(*fingerprint).or_default());
        let load = || async {
            let snapshot = self.cache.as_ref()?.snapshot(fingerprint);
            match snapshot.index().await {
                Ok(index) => {
                    if !index.is_empty() {
                        self.uses(&snapshot);
                    }
                    Some(SnapshotView { snapshot, index })
                }
                Err(e) => {
                    tracing::warn!(hint = %name, error = %e, "the cache cannot be read; rows are computed");
                    None
                }
            }
        };
        cell.get_or_init(load).await;
        cell
    }

    async fn open(&self, view: &SnapshotView, hint: usize, meta: Arc<PartMeta>) -> Opened {
        if self.gets.is_off() {
            return Opened::Unusable;
        }
        let hint = &self.hints[hint];
        self.open_as(&view.snapshot, hint, meta, Arc::clone(&hint.schema)).await
    }

    /// Opens a part for columns of which the hint's are the first.
    async fn open_as(
        &self,
        snapshot: &Snapshot,
        hint: &BoundHint,
        meta: Arc<PartMeta>,
        schema: SchemaRef,
    ) -> Opened {
        match snapshot.open_part(&meta, self.read.clone()).await {
            Ok(reader) => {
                self.gets.worked();
                let part = OpenPart::new(reader, Arc::clone(&meta), snapshot.clone(), schema);
                let draw = hint.random.then(|| self.ctx.frozen_draw(0));
                match part.unfit(hint) {
                    None if part.is_drawn_with(draw) => Opened::Part(Box::new(part)),
                    None => {
                        let e = Error::data_loss("its rows were drawn otherwise than they are now");
                        given_up(snapshot, &meta, &e).await;
                        Opened::Bad
                    }
                    Some(why) => {
                        tracing::debug!(hint = %hint.name, why, "a part is not for this job; rows are computed");
                        Opened::Unusable
                    }
                }
            }
            Err(e) if is_loss(&e) => {
                given_up(snapshot, &meta, &e).await;
                Opened::Bad
            }
            Err(e) => {
                self.gets.failed(&e, "reading stored rows");
                Opened::Unusable
            }
        }
    }

    async fn claim(
        &self,
        view: &SnapshotView,
        hint: usize,
        split: &Split,
        plan: &CachePlan,
    ) -> Result<PutOutcome> {
        let bound = self.hints.get(hint).ok_or_else(|| Error::internal("a hint is not bound"))?;
        let description = self.description(bound, plan);
        let schema = stored_schema(bound, self.ctx.frozen_draw(0));
        self.uses(&view.snapshot);
        view.snapshot.put(split.key, &description, schema, plan.encoding).await
    }

    fn description(&self, bound: &BoundHint, plan: &CachePlan) -> SnapshotDescription {
        SnapshotDescription {
            name: self.pipeline.clone(),
            prefix: bound.prefix.clone(),
            definition: bound.definition.clone(),
            canonical: bound.canonical.clone(),
            schema: schema_for_people(&bound.schema),
            encoding: plan.encoding.to_string(),
            ..SnapshotDescription::default()
        }
    }

    /// What is drawn above a hint whose rows are stored is drawn as in epoch 0, whoever computes the split, and
    /// whether it is stored this time or not: computed rows and stored ones are the same.
    fn freeze(&self, hint: usize, lease: &LeasedSplit) {
        let Some(bound) = self.hints.get(hint).filter(|h| h.random) else { return };
        // Repetitions share the part of a split; a set has its rows as often as the prefix put them out.
        let repetition = if bound.set.is_some() { lease.split.repetition } else { 0 };
        self.ctx.freeze(lease.index, self.ctx.frozen_draw(repetition), bound.position);
    }

    /// How a split starts that a plan does not mean.
    fn without(&self, plan: &CachePlan) -> Entry {
        if plan.save.is_some() { Entry::Skip } else { Entry::Compute }
    }

    /// Tells the snapshot who uses it, for `caju cache ls`.
    fn uses(&self, snapshot: &Snapshot) {
        if !self.job.is_empty() {
            snapshot.used_by(&self.job);
        }
    }

    /// Waits until every part whose split has ended is committed or given up.
    ///
    /// # Errors
    /// Of a save, once: why rows could not be stored, unless trying again may help.
    pub(crate) async fn settled(&self) -> Result<()> {
        // What has no end by now never gets one: `take` stopped the stream above it.
        self.close_books();
        {
            let mut set = self.set.lock().await;
            if matches!(*set, Writing::Part(_)) {
                *set = Writing::Spoiled;
            }
        }
        let mut open = self.open_writers.subscribe();
        open.wait_for(|n| *n == 0).await.ok();
        self.save_failure.take()
    }

    fn close_books(&self) {
        let mut books = self.books.lock();
        books.closed = true;
        books.open.clear();
        books.kept.clear();
    }

    /// Stops the writers where they are.
    pub(crate) fn stop(&self) {
        self.close_books();
        self.writers.stop();
    }

    /// The first `rows` rows behind the hint are with the stages below already: they came from a part.
    pub(crate) fn resume(&self, index: u64, hint: usize, rows: u64) {
        self.get.fetch_sub(1, Ordering::Relaxed);
        self.compute.fetch_add(1, Ordering::Relaxed);
        let book = Book { hint, skip_below: rows, source_bytes: 0, writer: None };
        self.books.lock().open.insert(index, book);
    }
}
