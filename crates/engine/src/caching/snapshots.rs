//! The snapshots of a task's hints: their parts are found, opened and claimed here.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use caju_cache::{Cache, PartIndex, PartMeta, PutOutcome, ReadOptions, Snapshot, SnapshotDescription};
use caju_runtime::OrderedMutex;
use caju_types::{Error, Fingerprint, Result, SplitKey};
use tokio::sync::{OnceCell, Semaphore};

use super::circuit_breaker::CircuitBreaker;
use super::locks;
use super::part::{OpenPart, Opened, discard_if_lost, is_loss, schema_for_people, stored_schema};
use crate::cache_plan::CachePlan;
use crate::hint::BoundHint;

/// The cache as one task reads and claims parts in it.
pub(super) struct TaskSnapshots {
    cache: Option<Arc<Cache>>,
    /// The pipeline's name, for the description of a snapshot.
    pipeline: String,
    /// The job's name, for the list of a snapshot's users.
    job: String,
    /// The draws of stored rows: those of epoch 0.
    frozen_draw: u64,
    read: ReadOptions,
    /// Whether the store failed too often to be read.
    pub(super) breaker: CircuitBreaker,
    views: OrderedMutex<HashMap<Fingerprint, Arc<SnapshotCell>>>,
}

/// A snapshot that is opened once per task; none if the cache cannot be read.
pub(super) type SnapshotCell = OnceCell<Option<SnapshotView>>;

/// A snapshot, with the parts that it had when the task first listed it.
pub(super) struct SnapshotView {
    snapshot: Snapshot,
    pub(super) index: PartIndex,
}

impl TaskSnapshots {
    /// `readers`: the splits that the task reads at once, which share the requests to the store.
    pub(super) fn new(
        cache: Option<Arc<Cache>>,
        pipeline: String,
        job: String,
        frozen_draw: u64,
        readers: usize,
    ) -> Self {
        let turns = Arc::new(Semaphore::new(Cache::requests_at_once(readers)));
        let read = ReadOptions { limiter: Some(turns), ..ReadOptions::default() };
        let views = OrderedMutex::new(locks::SNAPSHOTS, HashMap::new());
        let breaker = CircuitBreaker::default();
        Self { cache, pipeline, job, frozen_draw, read, breaker, views }
    }

    /// The cache.
    ///
    /// # Errors
    /// `Internal` for a task without one.
    pub(super) fn cache(&self) -> Result<&Arc<Cache>> {
        self.cache.as_ref().ok_or_else(|| Error::internal("a task without a cache"))
    }

    /// Whether nothing can be stored, as the cache found when it was opened.
    pub(super) fn is_read_only(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.is_read_only())
    }

    /// The snapshot of a hint; its parts are listed once per task.
    pub(super) async fn view(&self, hint: &BoundHint) -> Arc<SnapshotCell> {
        let BoundHint { name, fingerprint, .. } = hint;
        let cell = Arc::clone(self.views.lock().entry(*fingerprint).or_default());
        let load = || async {
            let snapshot = self.cache.as_ref()?.snapshot(fingerprint);
            match snapshot.index().await {
                Ok(index) => {
                    if !index.is_empty() {
                        self.mark_used(&snapshot);
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

    /// Requests that reading the part of a split has in flight at once, if the split is known to have a part that makes
    /// requests.
    pub(super) fn known_requests(&self, hint: &BoundHint, key: SplitKey) -> Option<usize> {
        let view = Arc::clone(self.views.lock().get(&hint.fingerprint)?);
        let index = &view.get()?.as_ref()?.index;
        self.cache.as_ref()?.requests_for(index.get(&key)?)
    }

    /// Opens a part of a hint's snapshot.
    pub(super) async fn open(&self, view: &SnapshotView, hint: &BoundHint, meta: Arc<PartMeta>) -> Opened {
        if self.breaker.is_open() {
            return Opened::Unusable;
        }
        self.open_as(&view.snapshot, hint, meta, Arc::clone(&hint.schema)).await
    }

    /// Opens a part for a schema that begins with the hint's columns.
    pub(super) async fn open_as(
        &self,
        snapshot: &Snapshot,
        hint: &BoundHint,
        meta: Arc<PartMeta>,
        schema: SchemaRef,
    ) -> Opened {
        match snapshot.open_part(&meta, self.read.clone()).await {
            Ok(reader) => {
                self.breaker.record_success();
                let part = OpenPart::new(reader, Arc::clone(&meta), snapshot.clone(), schema);
                let draw = hint.random.then_some(self.frozen_draw);
                match part.mismatch(hint) {
                    None if part.is_drawn_with(draw) => Opened::Part(Box::new(part)),
                    None => {
                        let e = Error::data_loss("its rows were drawn otherwise than they are now");
                        discard_if_lost(snapshot, &meta, &e).await;
                        Opened::Bad
                    }
                    Some(why) => {
                        tracing::debug!(hint = %hint.name, why, "a part is not for this job; rows are computed");
                        Opened::Unusable
                    }
                }
            }
            Err(e) if is_loss(&e) => {
                discard_if_lost(snapshot, &meta, &e).await;
                Opened::Bad
            }
            Err(e) => {
                self.breaker.record_failure(&e, "reading stored rows");
                Opened::Unusable
            }
        }
    }

    /// Asks for the right to write the part of a split.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn claim(
        &self,
        view: &SnapshotView,
        hint: &BoundHint,
        key: SplitKey,
        plan: &CachePlan,
    ) -> Result<PutOutcome> {
        let description = self.description(hint, plan);
        self.mark_used(&view.snapshot);
        view.snapshot.put(key, &description, self.stored_schema(hint), plan.encoding).await
    }

    /// The schema under which a hint's rows are stored.
    pub(super) fn stored_schema(&self, hint: &BoundHint) -> SchemaRef {
        stored_schema(hint, self.frozen_draw)
    }

    /// What a snapshot says of itself.
    pub(super) fn description(&self, hint: &BoundHint, plan: &CachePlan) -> SnapshotDescription {
        SnapshotDescription {
            name: self.pipeline.clone(),
            prefix: hint.prefix.clone(),
            definition: hint.definition.clone(),
            canonical: hint.canonical.clone(),
            schema: schema_for_people(&hint.schema),
            encoding: plan.encoding.to_string(),
            ..SnapshotDescription::default()
        }
    }

    /// Records the job as a user of the snapshot, for `caju cache ls`.
    pub(super) fn mark_used(&self, snapshot: &Snapshot) {
        if !self.job.is_empty() {
            snapshot.record_job(&self.job);
        }
    }
}
