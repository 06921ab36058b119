//! Hints in a running task: what is stored there, and what is read instead of computed.
//!
//! The dispatcher decides *which* hint is used and how ([`CachePlan`]); the task finds out split by split what
//! there is. A split with a part is read (`get`), one without is computed, and stored if the plan says so
//! (`put`) and nobody else is storing it. Nothing that goes wrong with the cache ends the task: the split is
//! computed then.

mod part;
mod put;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_cache::{
    Cache, Encoding, PartIndex, PartMeta, PartWriter, PutOutcome, ReadOptions, Snapshot, SnapshotDescription,
};
use caju_types::{Error, Fingerprint, Result, SplitKey};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, mpsc};

use crate::context::TaskContext;
use crate::probing::{Findings, Prober};
use crate::source::Split;
pub(crate) use part::OpenPart;
use part::{Opened, given_up, is_loss, schema_for_people, stored_schema};
use put::{Breaker, Piece, write_part};

/// What an iteration does at one hint. Travels with leases, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePlan {
    /// The hint's name.
    pub hint: String,
    /// The fingerprint of the stages above it, by the definition. A job with a seed of its own stores what is
    /// drawn above the hint under another one.
    pub prefix: Fingerprint,
    /// Whether splits without a part are stored.
    pub put: bool,
    /// How parts are written.
    pub encoding: Encoding,
    /// The share of splits that is stored, in thousandths: which ones is a matter of their keys alone.
    #[serde(default = "all")]
    pub share: u32,
}

fn all() -> u32 {
    CachePlan::ALL
}

impl CachePlan {
    /// The share that means every split.
    pub const ALL: u32 = 1000;

    /// A plan that stores and reads every split.
    pub fn whole(hint: &str, prefix: Fingerprint, encoding: Encoding) -> Self {
        Self { hint: hint.to_string(), prefix, put: true, encoding, share: Self::ALL }
    }

    /// A fraction from 0 to 1 as a share.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
    pub fn share_of(fraction: f64) -> u32 {
        (fraction.clamp(0.0, 1.0) * f64::from(Self::ALL)).round() as u32
    }

    /// Whether a split without a part is stored.
    fn stores(&self, key: SplitKey) -> bool {
        self.put && key.folded() % u64::from(Self::ALL) < u64::from(self.share)
    }
}

/// How many splits of a task were computed, stored, and read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SplitModes {
    /// Computed, not stored.
    pub compute: u64,
    /// Computed and stored.
    pub put: u64,
    /// Read from a snapshot.
    pub get: u64,
}

/// A hint of a bound pipeline that has only split-local stages above it.
#[derive(Debug, Clone)]
pub(crate) struct BoundHint {
    pub(crate) name: String,
    pub(crate) schema: SchemaRef,
    /// Its index among the stages of the definition.
    pub(crate) stage: usize,
    /// The definition of the stages above it, for people who look into the snapshot.
    pub(crate) definition: serde_json::Value,
    /// The same in a few words.
    pub(crate) prefix: String,
    /// What the fingerprint is a hash of.
    pub(crate) canonical: serde_json::Value,
    /// The fingerprint of the stages above it: with the job's seed, in a task.
    pub(crate) fingerprint: Fingerprint,
    /// The same by the definition alone.
    pub(crate) planned: Fingerprint,
    /// Whether something above it draws anew each epoch.
    pub(crate) random: bool,
    /// Stages above it draw at positions below this one.
    pub(crate) position: u32,
    /// The source's columns, where their types were found from the first rows of some file: other files may
    /// show other types, and then other values.
    pub(crate) found_columns: Option<String>,
}

impl BoundHint {
    /// The hint for a job with this seed: what is drawn above it depends on that.
    pub(crate) fn seeded(mut self, seed: u64) -> Self {
        if let Some((canonical, fingerprint)) = caju_pipeline::reseeded(&self.canonical, seed)
            && fingerprint != self.planned
        {
            self.fingerprint = fingerprint;
            self.canonical = canonical;
            if let Some(definition) = self.definition.as_object_mut() {
                definition.insert("seed".into(), seed.into());
            }
        }
        self
    }
}

/// Batches that wait for the writer of a part; beyond that the split waits for it.
const WAITING: usize = 2;

/// The cache as one task sees it.
pub(crate) struct TaskCache {
    cache: Option<Arc<Cache>>,
    hints: Vec<BoundHint>,
    pipeline: String,
    job: String,
    /// Parts that are there are read although nobody has decided yet.
    reads_hits: bool,
    ctx: Arc<TaskContext>,
    prober: Option<Arc<Prober>>,
    /// Whether parts are written and read, or the store failed too often.
    puts: Breaker,
    gets: Breaker,
    snapshots: Mutex<HashMap<Fingerprint, Arc<OnceCell<Option<SnapshotView>>>>>,
    books: Mutex<Books>,
    writers: caju_runtime::Tasks,
    open_writers: tokio::sync::watch::Sender<usize>,
    compute: AtomicU64,
    put: AtomicU64,
    get: AtomicU64,
}

struct SnapshotView {
    snapshot: Snapshot,
    index: PartIndex,
}

/// The splits on their way, by lease.
#[derive(Default)]
struct Books {
    open: HashMap<u64, Book>,
    /// The stream is over. What its readers still begin would never get an end.
    closed: bool,
}

/// A split on its way to a hint at which something happens to it.
struct Book {
    hint: usize,
    /// Rows below this ordinal were read from a part that then turned out to be damaged.
    skip_below: u64,
    writer: Option<mpsc::Sender<Piece>>,
}

/// One split in so many is computed before the decision, whatever there is to read.
const COMPARED: u64 = 8;

/// How a split starts.
pub(crate) enum Entry {
    /// From the source.
    Compute,
    /// From the source; what arrives at the hint is stored, and the hint wants to hear of the split's end.
    Put,
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
            reads_hits: false,
            ctx,
            prober,
            puts: Breaker::default(),
            gets: Breaker::default(),
            snapshots: Mutex::default(),
            books: Mutex::default(),
            writers: caju_runtime::Tasks::new(),
            open_writers: tokio::sync::watch::Sender::new(0),
            compute: AtomicU64::new(0),
            put: AtomicU64::new(0),
            get: AtomicU64::new(0),
        }
    }

    /// The same where parts that are there are read even before anybody has decided.
    pub(crate) fn reading_hits(mut self, reads: bool) -> Self {
        self.reads_hits = reads;
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

    /// Decides how a split starts, and opens what it needs.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        index: u64,
        split: &Split,
        plan: Option<&CachePlan>,
    ) -> Entry {
        let entry = match plan {
            // Half of a split is no part, and rows of a part are counted from its beginning.
            _ if split.trim.is_some() => Entry::Compute,
            Some(plan) => self.enter_planned(index, split, plan).await,
            None if self.reads_hits => self.enter_hit(index, split).await,
            None => Entry::Compute,
        };
        match entry {
            Entry::Compute => self.compute.fetch_add(1, Ordering::Relaxed),
            Entry::Get { .. } => self.get.fetch_add(1, Ordering::Relaxed),
            // Counted when the part is committed.
            Entry::Put => 0,
        };
        entry
    }

    /// Before the decision: the part nearest to the end, if the split has one. A few splits are computed all
    /// the same, so that there is something to compare with.
    async fn enter_hit(&self, index: u64, split: &Split) -> Entry {
        if index.is_multiple_of(COMPARED) {
            return Entry::Compute;
        }
        for hint in (0..self.hints.len()).rev() {
            let view = self.view(hint).await;
            let Some(view) = view.get().and_then(Option::as_ref) else { continue };
            let Some(meta) = view.index.get(&split.key).cloned() else { continue };
            if let Opened::Part(part) = self.open(view, hint, meta).await {
                return Entry::Get { hint, part };
            }
        }
        Entry::Compute
    }

    async fn enter_planned(self: &Arc<Self>, index: u64, split: &Split, plan: &CachePlan) -> Entry {
        let key = split.key;
        let Some(hint) = self.hints.iter().position(|h| h.name == plan.hint) else { return Entry::Compute };
        if self.hints[hint].planned != plan.prefix {
            let ours = self.hints[hint].planned;
            tracing::warn!(hint = %plan.hint, %ours, theirs = %plan.prefix, "the dispatcher means another prefix");
            return Entry::Compute;
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
        if !plan.stores(key) || self.puts.is_off() {
            return Entry::Compute;
        }
        match self.claim(view, hint, split, plan).await {
            Ok(PutOutcome::Exists(meta)) => match self.open(view, hint, meta).await {
                Opened::Part(part) => Entry::Get { hint, part },
                Opened::Unusable | Opened::Bad => Entry::Compute,
            },
            Ok(PutOutcome::Writer(writer)) => {
                if self.start_writer(index, hint, *writer) {
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
        match view.snapshot.open_part(&meta, ReadOptions::default()).await {
            Ok(reader) => {
                self.gets.worked();
                let schema = Arc::clone(&hint.schema);
                let part = OpenPart::new(reader, meta, view.snapshot.clone(), schema);
                match part.unfit(hint) {
                    None => Opened::Part(Box::new(part)),
                    Some(why) => {
                        tracing::debug!(hint = %hint.name, why, "a part is not for this job; rows are computed");
                        Opened::Unusable
                    }
                }
            }
            Err(e) if is_loss(&e) => {
                given_up(&view.snapshot, &meta, &e).await;
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
        let description = SnapshotDescription {
            name: self.pipeline.clone(),
            prefix: bound.prefix.clone(),
            definition: bound.definition.clone(),
            canonical: bound.canonical.clone(),
            schema: schema_for_people(&bound.schema),
            encoding: plan.encoding.to_string(),
            ..SnapshotDescription::default()
        };
        let schema = stored_schema(bound, self.ctx.draw(split.repetition));
        self.uses(&view.snapshot);
        view.snapshot.put(split.key, &description, schema, plan.encoding).await
    }

    /// Tells the snapshot who uses it, for `caju cache ls`.
    fn uses(&self, snapshot: &Snapshot) {
        if !self.job.is_empty() {
            snapshot.used_by(&self.job);
        }
    }

    /// Rows of the split go to a task of their own, which encodes and uploads while the split goes on; false
    /// if the stream is over.
    fn start_writer(self: &Arc<Self>, index: u64, hint: usize, writer: PartWriter) -> bool {
        let (pieces, queue) = mpsc::channel(WAITING);
        let mut books = self.books.lock();
        if books.closed {
            return false;
        }
        books.open.insert(index, Book { hint, skip_below: 0, writer: Some(pieces) });
        self.open_writers.send_modify(|n| *n += 1);
        drop(books);
        let me = Arc::clone(self);
        drop(self.writers.spawn(async move {
            let cost = |rows| me.cpu_above(hint) * rows as f64;
            let counted = match write_part(writer, queue, cost).await {
                Ok(true) => {
                    me.puts.worked();
                    &me.put
                }
                Ok(false) => &me.compute,
                Err(e) => {
                    me.puts.failed(&e, "storing rows");
                    &me.compute
                }
            };
            counted.fetch_add(1, Ordering::Relaxed);
            me.open_writers.send_modify(|n| *n -= 1);
        }));
        true
    }

    /// CPU seconds that the stages above a hint took per row that reached it, so far.
    fn cpu_above(&self, hint: usize) -> f64 {
        let Some(last) = self.hints.get(hint).map(|h| h.stage) else { return 0.0 };
        let stages = self.ctx.stats.snapshot();
        let above = &stages[..(last + 1).min(stages.len())];
        let rows = above.iter().rev().map(|s| s.rows_out).find(|r| *r > 0).unwrap_or(0);
        if rows == 0 { 0.0 } else { above.iter().map(|s| s.cpu_s).sum::<f64>() / rows as f64 }
    }

    /// Waits until every part whose split has ended is committed or given up.
    pub(crate) async fn settled(&self) {
        // What has no end by now never gets one: `take` stopped the stream above it.
        self.close_books();
        let mut open = self.open_writers.subscribe();
        open.wait_for(|n| *n == 0).await.ok();
    }

    fn close_books(&self) {
        let mut books = self.books.lock();
        books.closed = true;
        books.open.clear();
    }

    /// Stops the writers where they are.
    pub(crate) fn stop(&self) {
        self.close_books();
        self.writers.stop();
    }

    /// The first `rows` rows behind the hint are with the stages below already; they came from a part with
    /// these draws, and so must the others.
    pub(crate) fn resume(&self, index: u64, hint: usize, rows: u64, draw: Option<u64>) {
        if let (Some(draw), Some(bound)) = (draw, self.hints.get(hint)) {
            self.ctx.freeze(index, draw, bound.position);
        }
        self.get.fetch_sub(1, Ordering::Relaxed);
        self.compute.fetch_add(1, Ordering::Relaxed);
        self.books.lock().open.insert(index, Book { hint, skip_below: rows, writer: None });
    }

    /// Rows of a split that arrive at a hint: stored if they should be. Returns how many of the first
    /// ordinals the stages below have already.
    pub(crate) async fn pass(&self, hint: usize, index: u64, rows: &[RecordBatch]) -> u64 {
        if let Some(prober) = &self.prober {
            prober.offer(hint, rows);
        }
        let (skip, writer) = match self.books.lock().open.get(&index) {
            Some(book) if book.hint == hint => (book.skip_below, book.writer.clone()),
            _ => return 0,
        };
        if let Some(writer) = writer {
            for batch in rows.iter().filter(|b| b.num_rows() > 0) {
                if writer.send(Piece::Rows(batch.clone())).await.is_err() {
                    self.books.lock().open.remove(&index);
                    break;
                }
            }
        }
        skip
    }

    /// All rows of a split have passed.
    pub(crate) async fn end(&self, hint: usize, index: u64) {
        let book = {
            let mut books = self.books.lock();
            if books.open.get(&index).is_none_or(|b| b.hint != hint) {
                return;
            }
            books.open.remove(&index)
        };
        if let Some(writer) = book.and_then(|b| b.writer) {
            let skipped = self.hints.get(hint).map_or(0, |h| self.ctx.skipped_above(index, h.stage));
            writer.send(Piece::End { skipped }).await.ok();
        }
    }
}
