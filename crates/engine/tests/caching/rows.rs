//! Runs a pipeline with a cache, and compares rows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use caju_cache::{Cache, CacheOptions};
use caju_engine::{
    BoundPipeline, CachePlan, Hints, LeasedSplit, SetBase, SplitModes, TaskOptions, bind, bind_with, run_task,
};
use caju_functions::{Pool, PoolConfig};
use caju_kernels::{Limits, Registry};
use caju_pipeline::{DatasetDef, prefix_fingerprints};
use caju_runtime::{Clock, CpuPool, IoCounters, Stores, SystemClock};
use caju_sources::{SourceContext, Split};
use caju_types::Result;
use caju_wire::Chunk;
use caju_wire::checksum::RowsChecksum;
use futures::TryStreamExt;

use crate::common::{Fixed, How};

static NAMES: AtomicU64 = AtomicU64::new(0);

/// A place in memory that no other test uses.
pub fn place(kind: &str) -> String {
    format!("memory://{kind}-{}-{}/d", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed))
}

/// A cache with small blocks, so that small parts have several.
pub async fn cache(root: &str) -> Arc<Cache> {
    cache_with(root, CacheOptions { memory_tier_bytes: 0, ..CacheOptions::default() }).await
}

pub async fn cache_with(root: &str, options: CacheOptions) -> Arc<Cache> {
    let name = format!("writer-{}", NAMES.fetch_add(1, Ordering::Relaxed));
    let options = CacheOptions {
        block_bytes: 4 << 10,
        read_bytes: 8 << 10,
        retry_base: Duration::from_micros(10),
        ..options
    };
    Cache::open(&Stores::default(), root, options, SystemClock::shared(), name).await.unwrap()
}

/// A row: where it came from, and what it is, floats by their bits.
pub type Row = ((u64, u64), String);

/// A definition bound twice: as if there were no hints, and with them.
pub struct Pair {
    pub plain: Arc<BoundPipeline>,
    pub kept: Arc<BoundPipeline>,
    pub splits: Vec<Split>,
    pub io: Arc<IoCounters>,
    pub hints: Vec<Hint>,
    /// The time of its tasks.
    pub clock: Arc<dyn Clock>,
}

#[derive(Debug, Clone)]
pub struct Hint {
    pub name: String,
    pub prefix: caju_types::Fingerprint,
    /// Something above it draws.
    pub random: bool,
    /// Behind cross-split stages: what its sets are named after.
    pub base: Option<SetBase>,
    /// Why it can have none.
    pub no_set: Option<String>,
}

impl Hint {
    pub fn plan(&self, encoding: &str) -> CachePlan {
        CachePlan::whole(&self.name, self.prefix, encoding.parse().unwrap())
    }
}

impl Pair {
    pub async fn bind(def: &DatasetDef) -> Result<Self> {
        // Functions are bound, and none is called.
        let registry =
            Registry::new(Limits::default()).with_python(Pool::new(PoolConfig::new("no-python", 1)));
        let io = Arc::new(IoCounters::new());
        let ctx = SourceContext::new(Arc::new(Stores::default()), Arc::clone(&io));
        let plain = Arc::new(bind(def, &registry, &ctx, None).await?);
        let schema = Some(plain.source_schema());
        let kept = Arc::new(bind_with(def, &registry, &ctx, schema, Hints::Active, None).await?);
        let splits = kept.splits().try_collect().await?;
        let hints = prefix_fingerprints(def, &registry)?
            .into_iter()
            .map(|p| Hint {
                base: kept.set_base(&registry, &p.hint).unwrap(),
                no_set: kept.no_set(p.stage_index),
                name: p.hint,
                prefix: p.fingerprint,
                random: p.random,
            })
            .collect();
        Ok(Self { plain, kept, splits, io, hints, clock: SystemClock::shared() })
    }

    pub async fn yaml(yaml: &str) -> Self {
        Self::bind(&DatasetDef::from_yaml(yaml, None).unwrap()).await.unwrap()
    }

    /// The rows without any cache.
    pub async fn computed(&self, how: How) -> Vec<Row> {
        let (rows, _) = self.run_on(&self.plain, how, None, |_, _| None).await.unwrap();
        rows
    }

    /// The rows with one plan for all splits.
    pub async fn with(&self, cache: &Arc<Cache>, how: How, plan: &CachePlan) -> (Vec<Row>, SplitModes) {
        let plan = Arc::new(plan.clone());
        self.planned(cache, how, move |_, _| Some(Arc::clone(&plan))).await
    }

    /// The rows with a plan for each split.
    pub async fn planned(
        &self,
        cache: &Arc<Cache>,
        how: How,
        plan: impl Fn(u64, &Split) -> Option<Arc<CachePlan>>,
    ) -> (Vec<Row>, SplitModes) {
        self.run_on(&self.kept, how, Some(cache), plan).await.unwrap()
    }

    /// The same, which may fail.
    pub async fn run_on(
        &self,
        pipeline: &Arc<BoundPipeline>,
        how: How,
        cache: Option<&Arc<Cache>>,
        plan: impl Fn(u64, &Split) -> Option<Arc<CachePlan>>,
    ) -> Result<(Vec<Row>, SplitModes)> {
        let workers = if pipeline.single_task() { 1 } else { how.workers };
        let (mut rows, mut modes) = (Vec::new(), SplitModes::default());
        for worker in 0..workers {
            let leases = (0u64..).zip(&self.splits).skip(worker).step_by(workers);
            let leases: VecDeque<_> = leases
                .map(|(index, split)| LeasedSplit {
                    cache: plan(index, split),
                    ..LeasedSplit::new(index, split.clone())
                })
                .collect();
            let (more, m) = run(pipeline, leases, how, cache, &self.clock).await?;
            rows.extend(more);
            modes.compute += m.compute;
            modes.put += m.put;
            modes.fell_back += m.fell_back;
            modes.get += m.get;
            modes.backfilled += m.backfilled;
        }
        if !how.deterministic {
            rows.sort();
        }
        Ok((rows, modes))
    }
}

pub async fn run(
    pipeline: &Arc<BoundPipeline>,
    leases: VecDeque<LeasedSplit>,
    how: How,
    cache: Option<&Arc<Cache>>,
    clock: &Arc<dyn Clock>,
) -> Result<(Vec<Row>, SplitModes)> {
    let mut options = TaskOptions::new(CpuPool::new(how.threads)?, Arc::clone(clock));
    options.batch_rows = how.batch_rows;
    options.batch_bytes = how.batch_bytes;
    options.seed = how.seed;
    options.epoch = how.epoch;
    options.deterministic = how.deterministic;
    options.cache = cache.cloned();
    options.probe = how.undecided;
    let mut task = run_task(pipeline, Box::new(Fixed(leases)), options);
    let mut out = Vec::new();
    while let Some(chunk) = task.next().await {
        out.extend(rows_of(&chunk?));
    }
    Ok((out, task.modes()))
}

pub fn rows_of(chunk: &Chunk) -> Vec<Row> {
    let batch = chunk.concat().unwrap();
    let ids = chunk.runs.iter().flat_map(|r| (r.start..r.start + r.len).map(|o| (r.split, o)));
    let names: Vec<_> = batch.schema().fields().iter().map(|f| f.name().clone()).collect();
    let value = |i: usize| {
        let mut sum = RowsChecksum::default();
        sum.update(&batch.slice(i, 1)).unwrap();
        format!("{} {}", names.join(","), sum.hex())
    };
    ids.zip((0..batch.num_rows()).map(value)).collect()
}
