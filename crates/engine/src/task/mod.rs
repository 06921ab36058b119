//! Running a task: splits are read by several readers, row stages run on the CPU pool, stream stages run
//! in the order of the stream, and what comes out is bounded at every step.

mod chain;
mod read;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use caju_proto::v1::StageStats;
use caju_runtime::{Clock, CpuPool, Tasks};
use caju_types::{Result, RowRanges};
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::bind::BoundPipeline;
use crate::chunk::Chunk;
use crate::context::TaskContext;
use crate::source::Split;
use crate::stats::TaskStats;

/// One lease of a split.
#[derive(Debug, Clone)]
pub struct LeasedSplit {
    /// Its index in the iteration.
    pub index: u64,
    /// What to read.
    pub split: Split,
    /// Rows of its split-local output that readers have already.
    pub done: RowRanges,
}

/// Where a task's splits come from.
#[async_trait]
pub trait SplitFeed: Send {
    /// The next leases, at most `want`; waits for at least one. `None`: no split is left for this task.
    ///
    /// # Errors
    /// Whatever ends the task: the dispatcher is gone for too long, the iteration failed.
    async fn next(&mut self, want: usize) -> Result<Option<Vec<LeasedSplit>>>;
}

/// How a task runs.
#[derive(Debug, Clone)]
pub struct TaskOptions {
    /// The job's seed.
    pub seed: u64,
    /// The epoch, which enters every draw.
    pub epoch: u64,
    /// Under `off`: the worker's slot.
    pub slot: Option<u32>,
    /// Keep the canonical order of rows.
    pub deterministic: bool,
    /// Threads that compute.
    pub pool: CpuPool,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The most rows of a batch of the engine.
    pub batch_rows: usize,
    /// The nominal source bytes of a batch of the engine.
    pub batch_bytes: usize,
    /// Splits read at the same time.
    pub readers: usize,
    /// Held by artificial stages; one per worker.
    pub one_at_a_time: Arc<tokio::sync::Mutex<()>>,
}

impl TaskOptions {
    /// The defaults for a pool and a clock: seed 0, epoch 0.
    pub fn new(pool: CpuPool, clock: Arc<dyn Clock>) -> Self {
        let readers = (pool.threads() + 1).clamp(2, 16);
        Self {
            seed: 0,
            epoch: 0,
            slot: None,
            deterministic: false,
            pool,
            clock,
            batch_rows: 8192,
            batch_bytes: 2 << 20,
            readers,
            one_at_a_time: Arc::default(),
        }
    }
}

/// What flows between steps.
pub(crate) enum Item {
    Chunk(Chunk),
    /// Everything of the present repetition has passed.
    EndOfRepetition,
}

pub(crate) type Items = BoxStream<'static, Result<Item>>;

/// A running task. Dropping it stops its readers.
pub struct TaskRun {
    items: Items,
    ctx: Arc<TaskContext>,
    tasks: Tasks,
}

/// Starts a task. Nothing is read before the first call of [`TaskRun::next`]; must be called within a tokio
/// runtime.
pub fn run_task(pipeline: &Arc<BoundPipeline>, feed: Box<dyn SplitFeed>, options: TaskOptions) -> TaskRun {
    let def = pipeline.def();
    let stats = Arc::new(TaskStats::new(pipeline.stats_names().iter().cloned()));
    let deterministic = options.deterministic || def.options.deterministic || pipeline.single_task();
    let ctx = Arc::new(TaskContext::new(
        options.seed,
        options.epoch,
        options.slot,
        def.options.on_error,
        options.pool.clone(),
        Arc::clone(&options.clock),
        stats,
        Arc::clone(&options.one_at_a_time),
    ));
    let tasks = Tasks::new();
    let reading = read::Reading {
        batch_rows: options.batch_rows.max(1),
        batch_bytes: options.batch_bytes.max(1),
        readers: options.readers.max(1),
        ordered: deterministic,
    };
    let source = read::read_splits(Arc::clone(pipeline), feed, reading, Arc::clone(&ctx), tasks.clone());
    let items = chain::build(pipeline, source, &ctx);
    TaskRun { items, ctx, tasks }
}

impl TaskRun {
    /// The next chunk; `None` at the end.
    ///
    /// # Errors
    /// The first error of any stage, naming the stage and, for bad rows, the file and the row. The task is
    /// over then.
    pub async fn next(&mut self) -> Option<Result<Chunk>> {
        let start = Instant::now();
        loop {
            return match self.items.next().await? {
                Ok(Item::EndOfRepetition) => continue,
                Ok(Item::Chunk(chunk)) => {
                    let output = self.ctx.stats.output();
                    output.waited_in(start.elapsed());
                    output.moved(chunk.rows(), chunk.rows(), chunk.bytes());
                    Some(Ok(chunk))
                }
                Err(e) => {
                    self.tasks.stop();
                    Some(Err(e))
                }
            };
        }
    }

    /// The counters, live.
    pub fn counters(&self) -> Arc<TaskStats> {
        Arc::clone(&self.ctx.stats)
    }

    /// What every stage did so far.
    pub fn stats(&self) -> Vec<StageStats> {
        self.ctx.stats.snapshot()
    }

    /// Rows passed over under `on_error: skip`.
    pub fn rows_skipped(&self) -> u64 {
        self.ctx.skipped()
    }
}

impl Drop for TaskRun {
    fn drop(&mut self) {
        self.tasks.stop();
    }
}
