//! Hints in a running task: what is stored there, and what is read instead of computed.
//!
//! The dispatcher decides *which* hint is used and how ([`CachePlan`]); the task finds out split by split what
//! there is. A split with a part is read (`get`), one without is computed, and stored if the plan says so
//! (`put`) and nobody else is storing it. Nothing that goes wrong with the cache ends the task: the split is
//! computed then.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_cache::{
    Cache, Committed, Encoding, PartFacts, PartIndex, PartMeta, PartReader, PartWriter, PutOutcome,
    ReadOptions, Snapshot, SnapshotDescription,
};
use caju_types::{Error, ErrorKind, Fingerprint, Result, SplitKey};
use futures::StreamExt;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, mpsc};

use crate::probing::{Findings, Prober};
use crate::stats::TaskStats;

/// What an iteration does at one hint. Travels with leases, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachePlan {
    /// The hint's name.
    pub hint: String,
    /// The fingerprint of the stages above it.
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
    /// The fingerprint of the stages above it.
    pub(crate) fingerprint: Fingerprint,
}

/// Batches that wait for the writer of a part; beyond that the split waits for it.
const WAITING: usize = 2;

/// The cache as one task sees it.
pub(crate) struct TaskCache {
    cache: Option<Arc<Cache>>,
    hints: Vec<BoundHint>,
    pipeline: String,
    stats: Arc<TaskStats>,
    prober: Option<Arc<Prober>>,
    snapshots: Mutex<HashMap<Fingerprint, Arc<OnceCell<Option<SnapshotView>>>>>,
    books: Mutex<HashMap<u64, Book>>,
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

/// A split on its way to a hint at which something happens to it.
struct Book {
    hint: usize,
    /// Rows below this ordinal were read from a part that then turned out to be damaged.
    skip_below: u64,
    writer: Option<mpsc::Sender<Piece>>,
}

enum Piece {
    Rows(RecordBatch),
    End,
}

/// How a split starts.
pub(crate) enum Entry {
    /// From the source.
    Compute,
    /// From the source; what arrives at the hint is stored, and the hint wants to hear of the split's end.
    Put,
    /// At a hint, from a part.
    Get { hint: usize, part: OpenPart },
}

/// A part that is being read.
pub(crate) struct OpenPart {
    reader: PartReader,
    meta: Arc<PartMeta>,
    snapshot: Snapshot,
    schema: SchemaRef,
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
        stats: Arc<TaskStats>,
        prober: Option<Arc<Prober>>,
    ) -> Self {
        Self {
            cache,
            hints,
            pipeline,
            stats,
            prober,
            snapshots: Mutex::default(),
            books: Mutex::default(),
            writers: caju_runtime::Tasks::new(),
            open_writers: tokio::sync::watch::Sender::new(0),
            compute: AtomicU64::new(0),
            put: AtomicU64::new(0),
            get: AtomicU64::new(0),
        }
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
        key: SplitKey,
        plan: Option<&CachePlan>,
    ) -> Entry {
        let entry = match plan {
            Some(plan) => self.enter_planned(index, key, plan).await,
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

    async fn enter_planned(self: &Arc<Self>, index: u64, key: SplitKey, plan: &CachePlan) -> Entry {
        let Some(hint) = self.hints.iter().position(|h| h.name == plan.hint) else { return Entry::Compute };
        let view = self.view(plan).await;
        let Some(view) = view.get().and_then(Option::as_ref) else { return Entry::Compute };
        let known = view.index.get(&key).cloned();
        if let Some(meta) = known
            && let Some(part) = self.open(view, hint, meta).await
        {
            return Entry::Get { hint, part };
        }
        if !plan.stores(key) {
            return Entry::Compute;
        }
        match self.claim(view, hint, key, plan).await {
            Ok(PutOutcome::Exists(meta)) => match self.open(view, hint, meta).await {
                Some(part) => Entry::Get { hint, part },
                None => Entry::Compute,
            },
            Ok(PutOutcome::Writer(writer)) => {
                self.start_writer(index, hint, *writer);
                Entry::Put
            }
            Ok(PutOutcome::Busy { writer }) => {
                tracing::debug!(split = %key, %writer, "another writer stores this split");
                Entry::Compute
            }
            Err(e) => {
                tracing::warn!(split = %key, error = %e, "a split is not cached");
                Entry::Compute
            }
        }
    }

    async fn view(&self, plan: &CachePlan) -> Arc<OnceCell<Option<SnapshotView>>> {
        let cell = Arc::clone(self.snapshots.lock().entry(plan.prefix).or_default());
        let load = || async {
            let snapshot = self.cache.as_ref()?.snapshot(&plan.prefix);
            match snapshot.index().await {
                Ok(index) => Some(SnapshotView { snapshot, index }),
                Err(e) => {
                    tracing::warn!(hint = %plan.hint, error = %e, "the cache cannot be read; rows are computed");
                    None
                }
            }
        };
        cell.get_or_init(load).await;
        cell
    }

    async fn open(&self, view: &SnapshotView, hint: usize, meta: Arc<PartMeta>) -> Option<OpenPart> {
        let schema = Arc::clone(&self.hints.get(hint)?.schema);
        match view.snapshot.open_part(&meta, ReadOptions::default()).await {
            Ok(reader) => Some(OpenPart { reader, meta, snapshot: view.snapshot.clone(), schema }),
            Err(e) => {
                given_up(&view.snapshot, &meta, &e).await;
                None
            }
        }
    }

    async fn claim(
        &self,
        view: &SnapshotView,
        hint: usize,
        key: SplitKey,
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
        view.snapshot.put(key, &description, Arc::clone(&bound.schema), plan.encoding).await
    }

    /// Rows of the split go to a task of their own, which encodes and uploads while the split goes on.
    fn start_writer(self: &Arc<Self>, index: u64, hint: usize, writer: PartWriter) {
        let (pieces, queue) = mpsc::channel(WAITING);
        self.books.lock().insert(index, Book { hint, skip_below: 0, writer: Some(pieces) });
        self.open_writers.send_modify(|n| *n += 1);
        let me = Arc::clone(self);
        drop(self.writers.spawn(async move {
            let cost = |rows| me.cpu_above(hint) * rows as f64;
            let counted = match write_part(writer, queue, cost).await {
                Ok(true) => &me.put,
                Ok(false) => &me.compute,
                Err(e) => {
                    tracing::warn!(error = %e, "a part was not written; the split is computed again next time");
                    &me.compute
                }
            };
            counted.fetch_add(1, Ordering::Relaxed);
            me.open_writers.send_modify(|n| *n -= 1);
        }));
    }

    /// CPU seconds that the stages above a hint took per row that reached it, so far.
    fn cpu_above(&self, hint: usize) -> f64 {
        let Some(last) = self.hints.get(hint).map(|h| h.stage) else { return 0.0 };
        let stages = self.stats.snapshot();
        let above = &stages[..(last + 1).min(stages.len())];
        let rows = above.iter().rev().map(|s| s.rows_out).find(|r| *r > 0).unwrap_or(0);
        if rows == 0 { 0.0 } else { above.iter().map(|s| s.cpu_s).sum::<f64>() / rows as f64 }
    }

    /// Waits until every part whose split has ended is committed or given up.
    pub(crate) async fn settled(&self) {
        // What has no end by now never gets one: `take` stopped the stream above it.
        self.books.lock().clear();
        let mut open = self.open_writers.subscribe();
        open.wait_for(|n| *n == 0).await.ok();
    }

    /// Stops the writers where they are.
    pub(crate) fn stop(&self) {
        self.books.lock().clear();
        self.writers.stop();
    }

    /// The first `rows` rows behind the hint are with the stages below already.
    pub(crate) fn resume(&self, index: u64, hint: usize, rows: u64) {
        self.get.fetch_sub(1, Ordering::Relaxed);
        self.compute.fetch_add(1, Ordering::Relaxed);
        self.books.lock().insert(index, Book { hint, skip_below: rows, writer: None });
    }

    /// Rows of a split that arrive at a hint: stored if they should be. Returns how many of the first
    /// ordinals the stages below have already.
    pub(crate) async fn pass(&self, hint: usize, index: u64, rows: &[RecordBatch]) -> u64 {
        if let Some(prober) = &self.prober {
            prober.offer(hint, rows);
        }
        let (skip, writer) = match self.books.lock().get(&index) {
            Some(book) if book.hint == hint => (book.skip_below, book.writer.clone()),
            _ => return 0,
        };
        if let Some(writer) = writer {
            for batch in rows.iter().filter(|b| b.num_rows() > 0) {
                if writer.send(Piece::Rows(batch.clone())).await.is_err() {
                    self.books.lock().remove(&index);
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
            if books.get(&index).is_none_or(|b| b.hint != hint) {
                return;
            }
            books.remove(&index)
        };
        if let Some(writer) = book.and_then(|b| b.writer) {
            writer.send(Piece::End).await.ok();
        }
    }
}

/// Whether the part counts now.
async fn write_part(
    mut writer: PartWriter,
    mut queue: mpsc::Receiver<Piece>,
    cost: impl Fn(u64) -> f64,
) -> Result<bool> {
    let mut facts = PartFacts::default();
    while let Some(piece) = queue.recv().await {
        match piece {
            Piece::Rows(batch) => {
                facts.rows += batch.num_rows() as u64;
                writer.write(&batch).await?;
            }
            Piece::End => {
                facts.compute_cpu_s = cost(facts.rows);
                return Ok(matches!(writer.finish(facts).await?, Committed::Ours(_)));
            }
        }
    }
    writer.abort().await;
    Ok(false)
}

/// A part that could not be read: one that is damaged is replaced, one that cannot be reached is left alone.
async fn given_up(snapshot: &Snapshot, meta: &PartMeta, e: &Error) {
    tracing::warn!(part = %meta.path, error = %e, "a part cannot be read; its split is computed");
    if matches!(e.kind(), ErrorKind::DataLoss | ErrorKind::NotFound)
        && let Err(e) = snapshot.discard(meta, e.message()).await
    {
        tracing::warn!(part = %meta.path, error = %e, "a damaged part could not be set aside");
    }
}

impl OpenPart {
    /// The next rows in the form that the stages below the hint expect; `None` at the end.
    ///
    /// # Errors
    /// The part is damaged or cannot be reached any more; it was dealt with, and the split has to be computed.
    pub(crate) async fn next(&mut self) -> Option<Result<RecordBatch>> {
        let batch = match self.reader.next().await? {
            Ok(batch) => self.arranged(&batch),
            Err(e) => Err(e),
        };
        if let Err(e) = &batch {
            given_up(&self.snapshot, &self.meta, e).await;
        }
        Some(batch)
    }

    /// Columns are stored by name: two definitions that share a prefix may order them differently.
    fn arranged(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let wrong = |what: String| Error::data_loss(format!("the part {} {what}", self.meta.path));
        let columns = self.schema.fields().iter().map(|f| {
            let column = batch
                .column_by_name(f.name())
                .ok_or_else(|| wrong(format!("has no column `{}`", f.name())))?;
            Ok(Arc::clone(column))
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
            .map_err(|e| wrong(format!("has another schema: {e}")))
    }
}

fn schema_for_people(schema: &arrow_schema::Schema) -> serde_json::Value {
    let fields = schema.fields().iter().map(|f| (f.name().clone(), f.data_type().to_string().into()));
    serde_json::Value::Object(fields.collect())
}
