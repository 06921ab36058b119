//! Running a definition as several workers would, without a dispatcher: splits are dealt out round robin.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_array::RecordBatch;
use async_trait::async_trait;
use caju_engine::{BoundPipeline, LeasedSplit, SplitFeed, TaskOptions, TaskRun, bind, run_task};
use caju_kernels::{Limits, Registry};
use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, IoCounters, Stores, SystemClock};
use caju_sources::{SourceContext, Split};
use caju_types::Result;
use caju_wire::{Chunk, Elements};
use futures::TryStreamExt;

/// A feed of fixed leases.
pub struct Fixed(pub VecDeque<LeasedSplit>);

#[async_trait]
impl SplitFeed for Fixed {
    async fn next(&mut self, want: usize) -> Result<Option<Vec<LeasedSplit>>> {
        let n = want.min(self.0.len());
        Ok((n > 0).then(|| self.0.drain(..n).collect()))
    }
}

/// How to run.
#[derive(Clone, Copy)]
pub struct How {
    pub workers: usize,
    pub threads: usize,
    pub batch_rows: usize,
    pub batch_bytes: usize,
    pub seed: u64,
    pub epoch: u64,
    pub deterministic: bool,
    /// There is no decision yet about the cache: encodings are probed, and existing parts are read.
    pub undecided: bool,
}

impl Default for How {
    fn default() -> Self {
        Self {
            workers: 1,
            threads: 2,
            batch_rows: 8192,
            batch_bytes: 2 << 20,
            seed: 0,
            epoch: 0,
            deterministic: false,
            undecided: false,
        }
    }
}

pub fn context() -> SourceContext {
    SourceContext::new(Arc::new(Stores::default()), Arc::new(IoCounters::new()))
}

pub async fn bound(yaml: &str) -> Result<Arc<BoundPipeline>> {
    let def = DatasetDef::from_yaml(yaml, None)?;
    Ok(Arc::new(bind(&def, &Registry::new(Limits::default()), &context(), None).await?))
}

pub async fn splits(pipeline: &BoundPipeline) -> Result<Vec<Split>> {
    pipeline.splits().try_collect().await
}

/// All chunks of an iteration, worker after worker.
pub async fn chunks(yaml: &str, how: How) -> Result<Vec<Chunk>> {
    let pipeline = bound(yaml).await?;
    let all = splits(&pipeline).await?;
    let workers = if pipeline.single_task() { 1 } else { how.workers };
    let mut out = Vec::new();
    for w in 0..workers {
        let mine = (0u64..)
            .zip(all.clone())
            .skip(w)
            .step_by(workers)
            .map(|(index, split)| LeasedSplit::new(index, split))
            .collect();
        out.extend(run(&pipeline, mine, how).await?);
    }
    Ok(out)
}

pub async fn run(
    pipeline: &Arc<BoundPipeline>,
    leases: VecDeque<LeasedSplit>,
    how: How,
) -> Result<Vec<Chunk>> {
    let mut task = task(pipeline, leases, &how);
    let mut out = Vec::new();
    while let Some(chunk) = task.next().await {
        let chunk = chunk?;
        let of_runs: u64 = chunk.runs.iter().map(|r| r.len).sum();
        assert_eq!(of_runs, chunk.rows() as u64, "provenance covers the rows");
        if let Elements::Lengths(l) = &chunk.elements {
            assert_eq!(l.iter().map(|&n| n as usize).sum::<usize>(), chunk.rows());
        }
        out.push(chunk);
    }
    Ok(out)
}

/// A task over these splits.
pub fn task(pipeline: &Arc<BoundPipeline>, leases: VecDeque<LeasedSplit>, how: &How) -> TaskRun {
    let mut options = TaskOptions::new(CpuPool::new(how.threads).unwrap(), SystemClock::shared());
    options.batch_rows = how.batch_rows;
    options.batch_bytes = how.batch_bytes;
    options.seed = how.seed;
    options.epoch = how.epoch;
    options.deterministic = how.deterministic;
    run_task(pipeline, Box::new(Fixed(leases)), options)
}

/// Every row as text with its provenance.
pub fn rows(chunks: &[Chunk]) -> Vec<((u64, u64), String)> {
    let mut out = Vec::new();
    for c in chunks {
        let ids = c.runs.iter().flat_map(|r| (r.start..r.start + r.len).map(|o| (r.split, o)));
        out.extend(ids.zip(texts(&c.concat().unwrap())));
    }
    out
}

pub fn texts(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::default().with_null("null");
    let columns: Vec<_> =
        batch.columns().iter().map(|c| ArrayFormatter::try_new(c, &options).unwrap()).collect();
    (0..batch.num_rows())
        .map(|i| columns.iter().map(|c| c.value(i).to_string()).collect::<Vec<_>>().join("|"))
        .collect()
}

pub fn sorted<T: Ord>(mut v: Vec<T>) -> Vec<T> {
    v.sort();
    v
}
