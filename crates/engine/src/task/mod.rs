//! Running a task: splits are read by several readers, row stages run on the CPU pool, stream stages run
//! in the order of the stream, and what comes out is bounded at every step.

mod chain;
mod distribute;
mod ends;
mod hint;
mod read;
mod room;
mod rows;
mod sizing;
mod zip;

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use caju_cache::{Cache, Encoding};
use caju_proto::v1::StageStats;
use caju_runtime::{Clock, CpuPool, Tasks};
use caju_types::{Result, RowRanges};
use caju_wire::Chunk;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::bind::BoundPipeline;
use crate::caching::{CachePlan, GroupLease, SplitModes, TaskCache};
use crate::context::TaskContext;
use crate::probing::{Findings, Prober, Probing};
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
    /// What to store and to read; none: compute.
    pub cache: Option<Arc<CachePlan>>,
    /// The part of a set in which all its rows are, with those of the splits leased beside it.
    pub group: Option<GroupLease>,
}

impl LeasedSplit {
    /// A split that nobody began before, to be computed.
    pub fn new(index: u64, split: Split) -> Self {
        Self { index, split, done: RowRanges::default(), cache: None, group: None }
    }
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
    /// The job's name, for the list of who uses a snapshot.
    pub job: String,
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
    /// The most rows of a batch of the engine, to begin with: narrow rows that little is done with go in larger ones later,
    /// rows that swell in smaller ones.
    pub batch_rows: usize,
    /// The nominal source bytes of a batch of the engine.
    pub batch_bytes: usize,
    /// Splits read at the same time.
    pub readers: usize,
    /// Held by artificial stages; one per worker.
    pub one_at_a_time: Arc<tokio::sync::Mutex<()>>,
    /// Where snapshots are, if there are any.
    pub cache: Option<Arc<Cache>>,
    /// Whether to find out in the background what storing would cost at each hint.
    pub probe: bool,
    /// With `probe`: whether that is what the task is for. It then ends when everything is found out, with
    /// what rows there were.
    pub probe_to_end: bool,
    /// With `probe`: the only encoding in which rows may be stored; none: the usual candidates are tried.
    pub probe_encoding: Option<Encoding>,
    /// With `probe`: whether only hints are tried that have parts, in their encodings: for a job that would not read what it
    /// stores.
    pub probe_stored_only: bool,
    /// Cores that are the task's own, where its threads are more than that or shared: probes take a share of them. None: one
    /// for each thread.
    pub cores: Option<f64>,
    /// Whether the stages' times are taken. Only a benchmark of what that costs has a reason to say no.
    pub taps: bool,
}

impl TaskOptions {
    /// The defaults for a pool and a clock: seed 0, epoch 0.
    pub fn new(pool: CpuPool, clock: Arc<dyn Clock>) -> Self {
        let readers = (pool.threads() + 1).clamp(2, 16);
        Self {
            job: String::new(),
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
            cache: None,
            probe: false,
            probe_to_end: false,
            probe_encoding: None,
            probe_stored_only: false,
            cores: None,
            taps: true,
        }
    }
}

/// How long the end of a short task may wait for probes of the few rows that it had.
const LAST_PROBES: Duration = Duration::from_millis(300);

/// What flows between steps.
pub(crate) enum Item {
    Chunk(Chunk),
    /// Rows of a part, on their way to the hint at which they enter.
    Entry {
        hint: usize,
        chunk: Chunk,
    },
    /// A split has no further rows. Every leased split has this mark, however its rows came.
    EndOfSplit(u64),
    /// Everything of the present repetition has passed.
    EndOfRepetition,
}

pub(crate) type Items = BoxStream<'static, Result<Item>>;

/// A running task. Dropping it stops its readers.
pub struct TaskRun {
    items: Items,
    ctx: Arc<TaskContext>,
    cache: Arc<TaskCache>,
    tasks: Tasks,
    probe_to_end: bool,
    /// The task is over: with an error, that is given again.
    over: Option<Result<()>>,
}

/// Starts a task. Nothing is read before the first call of [`TaskRun::next`]; must be called within a tokio
/// runtime.
pub fn run_task(pipeline: &Arc<BoundPipeline>, feed: Box<dyn SplitFeed>, options: TaskOptions) -> TaskRun {
    let def = pipeline.def();
    let stats = Arc::new(TaskStats::new(pipeline.stats_stages().iter().cloned(), options.taps));
    let deterministic = options.deterministic || def.options.deterministic || pipeline.single_task();
    let ctx = TaskContext::new(
        options.seed,
        options.epoch,
        options.slot,
        def.options.on_error,
        options.pool.clone(),
        Arc::clone(&options.clock),
        stats,
        Arc::clone(&options.one_at_a_time),
    );
    let ctx = Arc::new(ctx.within(pipeline.chunk_bytes()));
    let tasks = Tasks::new();
    let reading = read::Reading {
        batch_rows: options.batch_rows.max(1),
        batch_bytes: options.batch_bytes.max(1),
        readers: options.readers.max(1),
        ordered: deterministic,
    };
    let name = def.name.clone().unwrap_or_default();
    let hints: Vec<_> = pipeline.hints().iter().map(|h| h.clone().seeded(options.seed)).collect();
    let prober = options.cache.as_ref().filter(|_| options.probe && !hints.is_empty()).map(|cache| {
        let probing = Probing {
            encoding: options.probe_encoding,
            stored_only: options.probe_stored_only,
            threads: options.pool.threads(),
            cores: options.cores.unwrap_or(options.pool.threads() as f64),
            readers: options.readers,
        };
        Prober::start(Arc::clone(cache), hints.clone(), Arc::clone(&options.clock), probing, &tasks)
    });
    let cache = TaskCache::new(options.cache, hints, name, Arc::clone(&ctx), prober);
    let cache = cache.undecided(options.probe && !options.probe_to_end).for_job(&options.job);
    let cache = Arc::new(cache.read_by(options.readers));
    let reader = read::Reader::new(Arc::clone(pipeline), Arc::clone(&ctx), Arc::clone(&cache), reading);
    let source = distribute::read_splits(reader, feed, tasks.clone());
    let items = chain::build(pipeline, source, &ctx, &cache);
    TaskRun { items, ctx, cache, tasks, probe_to_end: options.probe_to_end, over: None }
}

impl TaskRun {
    /// The next chunk; `None` at the end, which comes only when every split has said that it ended.
    ///
    /// # Errors
    /// The first error of any stage, naming the stage and, for bad rows, the file and the row. The task is
    /// over then, and gives the same error again: it has no end.
    pub async fn next(&mut self) -> Option<Result<Chunk>> {
        match &self.over {
            Some(Ok(())) => return None,
            Some(Err(e)) => return Some(Err(e.clone())),
            None => {}
        }
        let start = Instant::now();
        loop {
            // What moving items costs beside the stages that count for themselves is the output's.
            let Some(item) = self.ctx.stats.output().polled(self.items.next()).await else {
                // What was stored counts before the task's end is told.
                if let Err(e) = self.cache.settled().await {
                    self.tasks.stop();
                    return Some(Err(e));
                }
                finish_probes(&self.cache, self.probe_to_end).await;
                self.over = Some(Ok(()));
                return None;
            };
            return match item {
                Ok(Item::EndOfRepetition | Item::EndOfSplit(_) | Item::Entry { .. }) => continue,
                Ok(Item::Chunk(chunk)) => {
                    let output = self.ctx.stats.output();
                    output.waited_in(start.elapsed());
                    output.moved(chunk.rows(), chunk.rows(), chunk.bytes());
                    Some(Ok(chunk))
                }
                Err(e) => {
                    self.tasks.stop();
                    self.over = Some(Err(e.clone()));
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

    /// How the splits were run, for as long as somebody wants to know.
    pub fn watch_modes(&self) -> impl Fn() -> SplitModes + Send + Sync + use<> {
        let cache = Arc::clone(&self.cache);
        move || cache.modes()
    }

    /// Takes what was decided since the task began without a plan: a plan, or that nothing is stored. What was kept of the
    /// splits so far is stored then, or let go. Leases bring the same plan; this is for tasks that lease no more.
    pub fn decider(&self) -> impl Fn(Option<&CachePlan>) + Send + Sync + use<> {
        let cache = Arc::clone(&self.cache);
        move |plan| cache.decide(plan)
    }

    /// What probes found out so far; none if the task does not probe.
    pub fn findings(&self) -> Option<Findings> {
        self.cache.findings()
    }

    /// The same, for as long as somebody wants to know.
    pub fn watch_findings(&self) -> impl Fn() -> Option<Findings> + Send + Sync + use<> {
        let cache = Arc::clone(&self.cache);
        move || cache.findings()
    }

    /// How the splits were run so far.
    pub fn modes(&self) -> SplitModes {
        self.cache.modes()
    }

    /// Rows passed over under `on_error: skip`.
    pub fn rows_skipped(&self) -> u64 {
        self.ctx.skipped()
    }

    /// Where the first of these rows are, and what is wrong with each; at most 100.
    pub fn first_skips(&self) -> Vec<String> {
        self.ctx.first_skips()
    }
}

/// A task that is over has shown all the rows that there are; probes that wait for more get no more.
async fn finish_probes(cache: &TaskCache, to_end: bool) {
    if to_end {
        cache.probed().await;
    } else if tokio::time::timeout(LAST_PROBES, cache.probed()).await.is_err() {
        tracing::debug!("the task ended before its probes");
    }
}

impl Drop for TaskRun {
    fn drop(&mut self) {
        self.cache.stop();
        self.tasks.stop();
    }
}
