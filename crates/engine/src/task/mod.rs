//! Running a task: several readers read splits, row stages run on the CPU pool, cross-split stages run in the order of the
//! stream, and every queue between them is bounded.

mod artificial_delay;
mod batch_size;
mod chain;
mod concurrent;
mod distribute;
mod empty_repetition;
mod hint;
mod open_splits;
mod prefetch;
mod read;
mod read_limiter;
mod rows;
mod shard;
mod stored_only;
mod stream_stage;
mod zip;

use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_cache::{Cache, Encoding};
use caju_proto::v1::StageStats;
use caju_runtime::{Clock, CpuPool, Tasks};
use caju_types::{Error, Result};
use caju_wire::{Chunk, QueueMemory};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
pub use read_limiter::ReadLimit;

use crate::bind::BoundPipeline;
use crate::cache_plan::{CachePlan, SplitModes};
use crate::caching::{CacheOptions, TaskCache};
use crate::context::TaskContext;
use crate::lease::SplitFeed;
use crate::probing::{Findings, Prober, Probing};
use crate::row_checks::RowChecks;
use crate::shard::Shard;
use crate::sharing::{END, Flights, SharingMember};
use crate::stats::TaskStats;

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
    /// In a static processing mode: the task's shard.
    pub shard: Option<Shard>,
    /// Keep the canonical order of rows.
    pub deterministic: bool,
    /// The threads that compute.
    pub pool: CpuPool,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// The most rows of the first batches of the engine. Later batches are larger if rows are narrow and cheap to compute,
    /// and smaller if stages make rows much larger.
    pub batch_rows: usize,
    /// The nominal source bytes of a batch of the engine.
    pub batch_bytes: usize,
    /// The first bound of each queue: of what a `prefetch` stage holds computed ahead, and of computed chunks that wait for
    /// earlier ones; one chunk always fits.
    pub buffer_bytes: usize,
    /// The memory that these queues share with those of other tasks.
    pub queue_memory: Arc<QueueMemory>,
    /// Splits that are read concurrently at first.
    pub readers: usize,
    /// The most that [`TaskRun::read_limit`] may be set to.
    pub max_readers: usize,
    /// The lock of the artificial stages, one per worker.
    pub one_at_a_time: Arc<tokio::sync::Mutex<()>>,
    /// How many times as long as their definition says the artificial stages take; 1: as long.
    pub slowdown: u32,
    /// Where snapshots are, if there are any.
    pub cache: Option<Arc<Cache>>,
    /// Whether to probe in the background what storing would cost at each hint.
    pub probe: bool,
    /// With `probe`: whether the task exists for its probes. It then ends when all probes are made, with the rows that there
    /// were.
    pub probe_to_end: bool,
    /// With `probe`: the only encoding in which rows may be stored; none: all candidates are probed.
    pub probe_encoding: Option<Encoding>,
    /// With `probe`: whether only hints with parts are probed, in the encodings of these: for a job that would not read what
    /// it stores.
    pub probe_stored_only: bool,
    /// Cores that the task may count on if its threads are more than that, or shared; probes are limited to a fraction of
    /// them. None: one per thread.
    pub cores: Option<f64>,
    /// The task's part in the window of rows that jobs share; none: it shares nothing.
    pub sharing: Option<Arc<SharingMember>>,
    /// Whether the times of stages are measured. Only a benchmark of the profiling overhead turns that off.
    pub profiling: bool,
}

impl TaskOptions {
    /// The defaults for a pool and a clock: seed 0, epoch 0.
    pub fn new(pool: CpuPool, clock: Arc<dyn Clock>) -> Self {
        let readers = default_readers(pool.threads());
        Self {
            job: String::new(),
            seed: 0,
            epoch: 0,
            slot: None,
            shard: None,
            deterministic: false,
            pool,
            clock,
            batch_rows: 8192,
            batch_bytes: 2 << 20,
            buffer_bytes: 64 << 20,
            queue_memory: QueueMemory::unlimited(),
            readers,
            max_readers: readers,
            one_at_a_time: Arc::default(),
            slowdown: 1,
            cache: None,
            probe: false,
            probe_to_end: false,
            probe_encoding: None,
            probe_stored_only: false,
            cores: None,
            sharing: None,
            profiling: true,
        }
    }
}

/// Splits that a task on this many threads reads concurrently by default: one more than the threads, so that a
/// split is ready when a thread has ended one.
pub fn default_readers(threads: usize) -> usize {
    (threads + 1).clamp(2, 16)
}

/// How long the end of a short task waits for probes of the few rows that it had: long enough for a local store, too short to
/// be noticed.
const LAST_PROBES: Duration = Duration::from_millis(300);

/// What flows between steps.
pub(crate) enum Item {
    Chunk(Chunk),
    /// Rows of a part, on their way to the hint at which they enter.
    Entry {
        hint: usize,
        chunk: Chunk,
    },
    /// A split has no further rows. Every leased split has this mark, whether it was read or computed.
    EndOfSplit(u64),
    /// All rows of a repetition have passed.
    EndOfRepetition(EndOfRepetition),
}

/// The end of a repetition of the source, of all those that the `repeat` stages make together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndOfRepetition {
    pub(crate) ended: u32,
    /// The one whose rows come next; none at the end of the task.
    pub(crate) next: Option<u32>,
}

impl EndOfRepetition {
    /// Whether this is also the end of a repetition of what stands below a `repeat`: with the `repeat` stages above that one, it
    /// makes `per` repetitions of the source of each.
    pub(crate) fn ends_group_of(self, per: u64) -> bool {
        let group = |repetition: u32| u64::from(repetition).checked_div(per);
        self.next.is_none_or(|next| group(next) != group(self.ended))
    }
}

pub(crate) type Items = BoxStream<'static, Result<Item>>;

/// A running task. Dropping it stops its readers.
pub struct TaskRun {
    items: Items,
    ctx: Arc<TaskContext>,
    cache: Arc<TaskCache>,
    sharing: Option<Arc<Flights>>,
    tasks: Tasks,
    read_limit: Arc<ReadLimit>,
    probe_to_end: bool,
    /// How the task ended; an error is returned again by every later call.
    over: Option<Result<()>>,
}

/// Starts a task. Nothing is read before the first call of [`TaskRun::next`]; must be called within a tokio
/// runtime.
pub fn run_task(pipeline: &Arc<BoundPipeline>, feed: Box<dyn SplitFeed>, options: TaskOptions) -> TaskRun {
    let def = pipeline.def();
    let stats = Arc::new(TaskStats::new(pipeline.stats_stages().iter().cloned(), options.profiling));
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
    let buffer = (options.buffer_bytes, Arc::clone(&options.queue_memory));
    let shard = options.shard.map(|s| (s.num_shards, s.index));
    let ctx = ctx.slowed(options.slowdown);
    let ctx = ctx.with_shard(shard).drawing_by(chain::shard_places(pipeline, shard));
    let ctx = Arc::new(ctx.within(pipeline.chunk_bytes(), buffer));
    let tasks = Tasks::new();
    let readers = options.readers.max(1);
    let reading = read::Reading {
        batch_rows: options.batch_rows.max(1),
        batch_bytes: options.batch_bytes.max(1),
        readers,
        max_readers: options.max_readers.max(readers),
        ordered: deterministic,
    };
    let read_limit = ReadLimit::new(readers, reading.max_readers);
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
    let cache = CacheOptions {
        cache: options.cache,
        hints,
        pipeline: name,
        job: options.job,
        undecided: options.probe && !options.probe_to_end,
        readers: options.readers,
    };
    let cache = Arc::new(TaskCache::new(cache, Arc::clone(&ctx), prober));
    let sharing = options.sharing.map(|member| {
        let hints = pipeline.hints().iter().enumerate().map(|(place, hint)| (place, hint.stage));
        let end = pipeline.local_end().map(|end| (END, end.stages));
        Arc::new(Flights::new(member, Arc::clone(&ctx), hints.chain(end).collect()))
    });
    let reader = read::Reader::new(
        Arc::clone(pipeline),
        Arc::clone(&ctx),
        Arc::clone(&cache),
        sharing.clone(),
        reading,
    );
    let source = distribute::read_splits(reader, feed, tasks.clone(), &read_limit);
    let items = match def.unlearnt_place() {
        Some(place) => unlearnt(&place),
        None => chain::build(pipeline, source, &ctx, (&cache, sharing.as_ref()), deterministic),
    };
    let probe_to_end = options.probe_to_end;
    TaskRun { items, ctx, cache, sharing, tasks, read_limit, probe_to_end, over: None }
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
            // The cost of moving items counts for the output; the stages count their own work.
            let Some(item) = self.ctx.stats.output().polled(self.items.next()).await else {
                self.share_no_more();
                // Parts are committed before the task's end is reported.
                if let Err(e) = self.cache.settled().await {
                    self.tasks.stop();
                    return Some(Err(e));
                }
                finish_probes(&self.cache, self.probe_to_end).await;
                self.over = Some(Ok(()));
                return None;
            };
            return match item {
                Ok(Item::EndOfRepetition(_) | Item::EndOfSplit(_) | Item::Entry { .. }) => continue,
                Ok(Item::Chunk(chunk)) => {
                    let output = self.ctx.stats.output();
                    output.waited_in(start.elapsed());
                    output.moved(chunk.rows(), chunk.rows(), chunk.bytes());
                    Some(Ok(chunk))
                }
                Err(e) => {
                    self.ctx.interrupt.stop();
                    self.tasks.stop();
                    self.share_no_more();
                    self.over = Some(Err(e.clone()));
                    Some(Err(e))
                }
            };
        }
    }

    /// Tasks of other jobs do not wait for this one any more.
    fn share_no_more(&self) {
        if let Some(sharing) = &self.sharing {
            sharing.close();
        }
    }

    /// Splits whose numbers of rows are known since the last call, with these numbers: all rows have passed the split-local stages,
    /// or the first one has come from a set whose record says the number. Rows that readers had before are among them.
    pub fn take_sized(&mut self) -> Vec<(u64, u64)> {
        self.ctx.sizes.take()
    }

    /// The splits that are read concurrently, which may be changed while the task runs.
    pub fn read_limit(&self) -> Arc<ReadLimit> {
        Arc::clone(&self.read_limit)
    }

    /// The counters, live.
    pub fn counters(&self) -> Arc<TaskStats> {
        Arc::clone(&self.ctx.stats)
    }

    /// What every stage did so far.
    pub fn stats(&self) -> Vec<StageStats> {
        self.ctx.stats.snapshot()
    }

    /// A function that returns how the splits were run so far.
    pub fn current_modes(&self) -> impl Fn() -> SplitModes + Send + Sync + use<> {
        let cache = Arc::clone(&self.cache);
        move || cache.modes()
    }

    /// A function that takes the decision of a task that began without a plan: a plan, or that nothing is stored. The rows in
    /// the backfill buffer are stored then, or dropped. Leases carry the same plan; this is for tasks that have stopped
    /// leasing.
    pub fn decider(&self) -> impl Fn(Option<&CachePlan>) + Send + Sync + use<> {
        let cache = Arc::clone(&self.cache);
        move |plan| cache.decide(plan)
    }

    /// The rows of splits that are checked when a split is run again.
    pub fn row_checks(&self) -> Arc<RowChecks> {
        Arc::clone(&self.ctx.checks)
    }

    /// What probes found so far; none if the task does not probe.
    pub fn findings(&self) -> Option<Findings> {
        self.cache.findings()
    }

    /// A function that returns what probes found so far.
    pub fn current_findings(&self) -> impl Fn() -> Option<Findings> + Send + Sync + use<> {
        let cache = Arc::clone(&self.cache);
        move || cache.findings()
    }

    /// How the splits were run so far.
    pub fn modes(&self) -> SplitModes {
        self.cache.modes()
    }

    /// Rows skipped under `on_error: skip`.
    pub fn rows_skipped(&self) -> u64 {
        self.ctx.skipped()
    }

    /// Where the first of these rows are, and what is wrong with each; at most 100.
    pub fn first_skips(&self) -> Vec<String> {
        self.ctx.first_skips()
    }
}

/// What comes of a definition whose boundaries are to be learnt first.
fn unlearnt(place: &str) -> Items {
    let e = format!("{place}: its boundaries are not learnt yet; learn them, or give them as a list");
    stream::once(std::future::ready(Err(Error::failed_precondition(e)))).boxed()
}

/// Lets the probes finish with the rows that the task had.
async fn finish_probes(cache: &TaskCache, to_end: bool) {
    if to_end {
        cache.probed().await;
    } else if tokio::time::timeout(LAST_PROBES, cache.probed()).await.is_err() {
        tracing::debug!("the task ended before its probes");
    }
}

impl Drop for TaskRun {
    fn drop(&mut self) {
        self.ctx.interrupt.stop();
        self.cache.stop();
        self.tasks.stop();
        self.share_no_more();
    }
}
