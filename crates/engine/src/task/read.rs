//! Reading leased splits: several at a time, in order or as they come.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::RecordBatch;
use caju_cache::Cache;
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt};

use super::ends::{Leases, with_ends};
use super::room::{Place, Room};
use super::zip::{Side, zipped};
use super::{Item, Items, LeasedSplit, SplitFeed};
use crate::bind::{BoundPipeline, Branch, BranchKind, Step};
use crate::caching::{Entry, OpenPart, StoredGroup, TaskCache};
use crate::chunk::{Chunk, Elements, Run, batch_bytes};
use crate::context::TaskContext;
use crate::source::{ReadOptions, Split, SplitRange, child_split, read_split};
use crate::stats::{READER, SplitReads};
use caju_runtime::{Receiver, Sender, Tasks, caught, channel, log_failure};

/// How splits are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) batch_rows: usize,
    pub(super) batch_bytes: usize,
    pub(super) readers: usize,
    /// Keep the order of leases; else rows of different splits come as they are read.
    pub(super) ordered: bool,
}

/// Batches that one reader may have ready.
const READY: usize = 2;

/// Reads the splits of a task.
pub(super) struct Reader {
    pipeline: Arc<BoundPipeline>,
    ctx: Arc<TaskContext>,
    cache: Arc<TaskCache>,
    reading: Reading,
    /// Where the figures of the stages end that see one split at a time.
    local: usize,
    /// The splits that were leased and have not ended.
    open: Leases,
}

/// What hands out splits is called this in errors.
const HANDING_OUT: &str = "handing out splits";

/// The rows of all leased splits, as chunks of one run each, with the end of every split and repetition marked. The
/// stream ends only when the feed has said that no split is left and every reader that it has finished.
pub(super) fn read_splits(reader: Reader, feed: Box<dyn SplitFeed>, tasks: Tasks) -> Items {
    let reading = reader.reading;
    let reader = Arc::new(reader);
    // One queue of queues: in order there is one per split, else one per repetition that all its readers share.
    let depth = Cache::answers_at_once(Cache::requests_at_once(reading.readers));
    let (queues, queue) = channel(HANDING_OUT, depth);
    let lead = Arc::clone(&reader);
    tasks.background(HANDING_OUT, log_failure, lead.distribute(feed, queues, tasks.clone()));
    let items = queue.flat_map(|rx| match rx {
        Ok(rx) => rx.left_stream(),
        Err(e) => stream::iter([Err(e)]).right_stream(),
    });
    with_ends(items.boxed(), reader.open.clone())
}

impl Reader {
    pub(super) fn new(
        pipeline: Arc<BoundPipeline>,
        ctx: Arc<TaskContext>,
        cache: Arc<TaskCache>,
        reading: Reading,
    ) -> Self {
        let streams = pipeline.root.steps.iter().filter_map(|s| match s {
            Step::Stream { stats, .. } => Some(*stats),
            _ => None,
        });
        let local = streams.min().unwrap_or(usize::MAX);
        Self { pipeline, ctx, cache, reading, local, open: Leases::default() }
    }

    /// How rows are read that enter at a stage, by its place among the figures.
    fn reading(&self, stage: usize) -> Reading {
        let stages = self.ctx.stats.snapshot();
        let end = self.local.min(stages.len());
        self.reading.sized(stages.get(stage..end).unwrap_or_default())
    }

    /// Hands out splits until none is left, and says how that ended.
    async fn distribute(
        self: Arc<Self>,
        feed: Box<dyn SplitFeed>,
        queues: Sender<Receiver<Item>>,
        tasks: Tasks,
    ) -> Result<()> {
        // The queue that the readers of a repetition share ends as this does.
        let mut shared = None;
        let handing_out = self.hand_out(feed, &queues, &mut shared, &tasks);
        match caught(HANDING_OUT, handing_out).await.and_then(|ended| ended) {
            Ok(()) => queues.finish(),
            Err(e) => {
                if let Some(shared) = shared {
                    shared.fail(e.clone()).await;
                }
                queues.fail(e).await;
            }
        }
        Ok(())
    }

    /// Leases splits and starts their readers, never more than `readers` at once.
    async fn hand_out(
        self: &Arc<Self>,
        mut feed: Box<dyn SplitFeed>,
        queues: &Sender<Receiver<Item>>,
        shared: &mut Option<Sender<Item>>,
        tasks: &Tasks,
    ) -> Result<()> {
        let mut room = Room::for_readers(self.reading.readers);
        let mut leases: VecDeque<LeasedSplit> = VecDeque::new();
        let mut repetition: Option<u32> = None;
        loop {
            let mut place = room.next().await?;
            if leases.is_empty() {
                match feed.next(1).await? {
                    Some(more) => leases.extend(more),
                    None => break,
                }
            }
            let Some(lease) = leases.pop_front() else {
                continue;
            };
            let group = match &lease.group {
                Some(group) => match self.gather(lease.clone(), group.of, &mut leases, &mut feed).await? {
                    Some(read) => Some(read),
                    // Its splits are computed like any others.
                    None => continue,
                },
                None => None,
            };
            if repetition.is_some_and(|r| r != lease.split.repetition) {
                end_repetition(shared, queues).await?;
            }
            repetition = Some(lease.split.repetition);
            self.ctx.register(lease.index, &lease.split, &lease.done);
            let name = format!("reading {}", lease.split.describe());
            let out = match &*shared {
                Some(shared) => shared.another(name.clone()),
                None if self.reading.ordered => self.queue(name.clone(), READY, queues).await?,
                None => {
                    let depth = self.reading.readers * READY;
                    let all = shared.insert(self.queue(HANDING_OUT.into(), depth, queues).await?);
                    all.another(name.clone())
                }
            };
            let requests = self.cache.requests_for(&lease).filter(|_| group.is_none());
            room.fit(&mut place, requests).await?;
            match &group {
                Some(group) => group.splits.iter().for_each(|index| self.open.begin(*index)),
                None => self.open.begin(lease.index),
            }
            let me = Arc::clone(self);
            let reads = SplitReads::of(Arc::clone(&self.ctx.stats));
            tasks.background(
                name.clone(),
                log_failure,
                READER.scope(reads, async move {
                    let reading = async {
                        match group {
                            Some(group) => me.get_group(group, &out, place).await,
                            None => me.read_one(lease, &out, place).await,
                        }
                    };
                    let outcome = caught(&name, reading).await.and_then(|read| read);
                    out.end(outcome).await;
                    Ok(())
                }),
            );
        }
        if repetition.is_some() {
            end_repetition(shared, queues).await?;
        }
        Ok(())
    }

    /// One more queue of items, behind those that there are.
    async fn queue(
        &self,
        name: String,
        depth: usize,
        queues: &Sender<Receiver<Item>>,
    ) -> Result<Sender<Item>> {
        let (out, items) = channel(name, depth);
        match queues.send(items).await {
            Ok(()) => Ok(out),
            Err(e) => {
                out.finish();
                Err(e)
            }
        }
    }

    /// Collects the leases of all splits whose rows are in one part of a set, and opens the part; none if it cannot
    /// be read: the leases are then put back, to be computed.
    async fn gather(
        &self,
        first: LeasedSplit,
        of: u32,
        leases: &mut VecDeque<LeasedSplit>,
        feed: &mut Box<dyn SplitFeed>,
    ) -> Result<Option<Group>> {
        let mut all = vec![first];
        while all.len() < of as usize {
            if leases.is_empty() {
                let Some(more) = feed.next(of as usize - all.len()).await? else { break };
                leases.extend(more);
            }
            all.extend(leases.pop_front());
        }
        all.iter().for_each(|l| self.ctx.register(l.index, &l.split, &l.done));
        let whole = all.len() == of as usize && all.iter().all(|l| l.group.is_some() && l.done.is_empty());
        if whole && let Some((hint, part)) = self.cache.open_group(&all).await {
            return Ok(Some(Group { hint, part, splits: all.iter().map(|l| l.index).collect() }));
        }
        // In their own order, on which it may depend which rows are counted.
        all.sort_by_key(|l| l.index);
        for lease in all.into_iter().rev() {
            leases.push_front(LeasedSplit { group: None, ..lease });
        }
        Ok(None)
    }

    /// Sends the rows of a part of a set. If it is damaged the task is given up: what is left of its splits is
    /// computed by another one, since rows say which ones they are wherever they come from.
    async fn get_group(&self, mut group: Group, out: &Sender<Item>, mut place: Place) -> Result<()> {
        let counters = self.ctx.stats.stage(self.cache.figures(group.hint));
        let reading = self.reading(self.cache.figures(group.hint));
        place.shrink(group.part.requests());
        loop {
            let serving = counters.serving();
            let Some(chunks) = counters.polled(group.part.next()).await else { break };
            drop(serving);
            place.shrink(group.part.requests());
            let chunks = chunks.map_err(|e| {
                let why = e.message();
                Error::cancelled(format!(
                    "a stored part cannot be read any more ({why}): its splits are computed"
                ))
            })?;
            for chunk in chunks.into_iter().flat_map(|c| parts(c, reading)) {
                counters.moved(chunk.rows(), chunk.rows(), chunk.bytes());
                out.send(Item::Entry { hint: group.hint, chunk }).await?;
            }
        }
        if let Some(first) = group.splits.first() {
            self.ctx.count_stored_skips(*first, group.part.skipped())?;
        }
        for split in group.splits {
            out.send(Item::EndOfSplit(split)).await?;
        }
        Ok(())
    }

    /// Sends the rows of one split, and then its end.
    async fn read_one(&self, lease: LeasedSplit, out: &Sender<Item>, mut place: Place) -> Result<()> {
        match self.cache.enter(&lease).await {
            Entry::Skip => {}
            Entry::Compute => self.compute(&lease, out).await?,
            Entry::Put | Entry::Keep => {
                self.compute(&lease, out).await?;
                self.cache.was_read(lease.index, READER.try_with(|reads| reads.bytes()).unwrap_or(0));
            }
            Entry::Get { hint, part } => {
                if let Some(rows) = self.get(hint, part, &lease, out, &mut place).await? {
                    self.cache.resume(lease.index, hint, rows);
                    self.compute(&lease, out).await?;
                }
            }
        }
        out.send(Item::EndOfSplit(lease.index)).await
    }

    /// Sends the rows of a part; the number of those sent if the part turns out to be damaged.
    async fn get(
        &self,
        hint: usize,
        mut part: Box<OpenPart>,
        lease: &LeasedSplit,
        out: &Sender<Item>,
        place: &mut Place,
    ) -> Result<Option<u64>> {
        let mut ordinal = 0;
        // Reading is the hint's work, as computing is that of the stages above it.
        let counters = self.ctx.stats.stage(self.cache.figures(hint));
        let reading = self.reading(self.cache.figures(hint));
        place.shrink(part.requests());
        loop {
            let serving = counters.serving();
            let Some(batch) = counters.polled(part.next()).await else { break };
            drop(serving);
            place.shrink(part.requests());
            let Ok(batch) = batch else { return Ok(Some(ordinal)) };
            counters.moved(batch.num_rows(), batch.num_rows(), batch_bytes(&batch));
            for batch in pieces(&batch, reading) {
                let len = batch.num_rows() as u64;
                let run = Run { split: lease.index, start: ordinal, len };
                ordinal += len;
                let item = Item::Entry { hint, chunk: Chunk::rows_of(batch, vec![run]) };
                counters.polled(out.send(item)).await?;
            }
        }
        self.ctx.count_stored_skips(lease.index, part.skipped())?;
        Ok(None)
    }

    /// Sends the rows of a split from its source.
    async fn compute(&self, lease: &LeasedSplit, out: &Sender<Item>) -> Result<()> {
        if self.pipeline.def().options.cache_only {
            return Err(not_stored(lease));
        }
        let counters = self.ctx.stats.source();
        let mut rows = self.open(&self.pipeline.root, &lease.split, lease.index);
        let mut ordinal = lease.split.trim.map_or(0, |t| t.0);
        loop {
            let serving = counters.serving();
            let next = counters.polled(rows.next()).await;
            drop(serving);
            let Some(batch) = next.transpose()? else { return Ok(()) };
            if batch.num_rows() == 0 {
                continue;
            }
            let len = batch.num_rows() as u64;
            counters.moved(batch.num_rows(), batch.num_rows(), batch_bytes(&batch));
            let run = Run { split: lease.index, start: ordinal, len };
            ordinal += len;
            let wait = Instant::now();
            counters.polled(out.send(Item::Chunk(Chunk::rows_of(batch, vec![run])))).await?;
            counters.waited_out(wait.elapsed());
        }
    }

    /// The rows of a split of a branch, after the stages of the datasets nested in it; `home` is the lease that
    /// the split belongs to.
    fn open(&self, branch: &Branch, split: &Split, home: u64) -> BoxStream<'static, Result<RecordBatch>> {
        match branch.kind {
            BranchKind::Leaf => {
                let skip = self.ctx.skips().then(|| {
                    let ctx = Arc::clone(&self.ctx);
                    let f: crate::source::SkipFn = Arc::new(move |e| ctx.count_skip(home, &e));
                    f
                });
                let reading = self.reading(0);
                let options = ReadOptions {
                    projection: branch.projection.clone(),
                    batch_rows: reading.batch_rows,
                    batch_bytes: reading.batch_bytes,
                    skip,
                    keep_dictionaries: Vec::new(),
                    predicates: branch.predicates.clone(),
                };
                let ctx = Arc::clone(&self.ctx);
                let batches = read_split(&*branch.source, split, &options);
                batches.map(move |b| b.and_then(|b| ctx.check_skips().map(|()| b))).boxed()
            }
            BranchKind::Concatenate | BranchKind::Sample { .. } => self.open_child(branch, split, home),
            BranchKind::Zip => self.open_zip(branch, split, home),
        }
    }

    fn open_child(
        &self,
        branch: &Branch,
        split: &Split,
        home: u64,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let Some((i, inner)) = child_split(split) else {
            return failed("a split of a combinator names no dataset");
        };
        let Some(child) = branch.children.get(i) else {
            return failed("a split names a dataset that is not there");
        };
        let schema = Arc::clone(&branch.schemas[0]);
        let rows = self.open(child, &inner, home);
        let rows = self.nested_stages(child, split, rows, home);
        // Children agree in names and types; metadata and nullability are the first one's.
        rows.map(move |b| b.and_then(|b| with_schema(b, &schema))).boxed()
    }

    /// Runs a nested dataset's row stages over one split, in order.
    fn nested_stages(
        &self,
        child: &Branch,
        split: &Split,
        rows: BoxStream<'static, Result<RecordBatch>>,
        home: u64,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let stages: Vec<_> = child
            .steps
            .iter()
            .filter_map(|s| match s {
                Step::Rows(r) => Some(Arc::clone(r)),
                _ => None,
            })
            .collect();
        if stages.is_empty() {
            return rows;
        }
        // Keys come from the split's own key: an index of its own, apart from those of leases.
        let index = u64::MAX ^ split.key.folded() ^ u64::from(split.repetition).rotate_left(40);
        self.ctx.register_nested(index, split, home);
        let ctx = Arc::clone(&self.ctx);
        let first = split.trim.map_or(0, |t| t.0);
        let stages = Arc::new(stages);
        let ordinals = vec![first; stages.len()];
        rows.scan(ordinals, move |ordinals, batch| {
            let result = batch.and_then(|mut batch| {
                for (stage, next) in stages.iter().zip(ordinals.iter_mut()) {
                    let len = batch.num_rows() as u64;
                    let run = Run { split: index, start: *next, len };
                    *next += len;
                    batch = stage.run(&ctx, &batch, &[run])?.0;
                }
                Ok(batch)
            });
            async move { Some(result) }
        })
        .boxed()
    }

    fn open_zip(&self, branch: &Branch, split: &Split, home: u64) -> BoxStream<'static, Result<RecordBatch>> {
        let SplitRange::Zipped(parts) = &split.range else { return failed("a split of zip has no parts") };
        let sides: Vec<_> = branch
            .children
            .iter()
            .zip(parts)
            .map(|(child, splits)| {
                let streams: Vec<_> = splits
                    .iter()
                    .map(|s| self.nested_stages(child, s, self.open(child, s, home), home))
                    .collect();
                Side::of(stream::iter(streams).flatten().boxed())
            })
            .collect();
        zipped(sides, Arc::clone(&branch.schemas[0]))
    }
}

/// A batch of a part in the sizes of the engine's batches, without copying: the stages below may make much
/// of every row.
fn pieces(batch: &RecordBatch, reading: Reading) -> Vec<RecordBatch> {
    let rows = batch.num_rows();
    let step = step(rows, batch_bytes(batch), reading);
    (0..rows).step_by(step).map(|at| batch.slice(at, step.min(rows - at))).collect()
}

/// A chunk of stored rows in the sizes of the engine's batches; batches are elements already.
fn parts(chunk: Chunk, reading: Reading) -> Vec<Chunk> {
    if chunk.elements != Elements::Rows {
        return vec![chunk];
    }
    let rows = chunk.rows();
    let step = step(rows, chunk.bytes(), reading);
    (0..rows).step_by(step).map(|at| chunk.slice_rows(at, step.min(rows - at))).collect()
}

fn step(rows: usize, bytes: usize, reading: Reading) -> usize {
    let by_bytes = (rows * reading.batch_bytes).checked_div(bytes).unwrap_or(rows);
    reading.batch_rows.min(by_bytes).max(1)
}

/// A part of a set that is being read.
struct Group {
    hint: usize,
    part: StoredGroup,
    /// The leases of its splits.
    splits: Vec<u64>,
}

fn with_schema(batch: RecordBatch, schema: &arrow_schema::SchemaRef) -> Result<RecordBatch> {
    RecordBatch::try_new(Arc::clone(schema), batch.columns().to_vec())
        .map_err(|e| Error::invalid(format!("the datasets of a combinator disagree: {e}")))
}

fn failed(message: &'static str) -> BoxStream<'static, Result<RecordBatch>> {
    stream::once(async move { Err(Error::internal(message)) }).boxed()
}

/// Marks the end of a repetition, behind the items of all its readers.
async fn end_repetition(shared: &mut Option<Sender<Item>>, queues: &Sender<Receiver<Item>>) -> Result<()> {
    if let Some(shared) = shared.take() {
        shared.finish();
    }
    let (out, items) = channel("the end of a repetition", 1);
    out.send(Item::EndOfRepetition).await?;
    out.finish();
    queues.send(items).await
}

/// The error of a job that may read stored rows alone, at a split that has none.
fn not_stored(lease: &LeasedSplit) -> Error {
    let file = lease.split.file.as_ref().map_or_else(|| "the source".to_string(), |f| f.url.to_string());
    Error::not_found(format!(
        "`cache_only`: rows of {file} (split {}) are not stored at the hint, or no longer; run the job without \
         `cache_only` once, where its source is there",
        lease.index
    ))
}
