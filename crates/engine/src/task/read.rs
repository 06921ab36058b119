//! Reading leased splits: several at a time, in order or as they come.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use arrow_array::RecordBatch;
use caju_cache::Cache;
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc;

use super::room::{Place, Room};
use super::zip::{Side, zipped};
use super::{Item, Items, LeasedSplit, SplitFeed};
use crate::bind::{BoundPipeline, Branch, BranchKind, Step};
use crate::caching::{Entry, OpenPart, StoredGroup, TaskCache};
use crate::chunk::{Chunk, Elements, Run, batch_bytes};
use crate::context::TaskContext;
use crate::source::{ReadOptions, Split, SplitRange, child_split};
use crate::stats::{READER, SplitReads};
use caju_runtime::Tasks;

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
}

/// The rows of all leased splits, as chunks of one run each, with the end of every repetition marked.
pub(super) fn read_splits(reader: Reader, feed: Box<dyn SplitFeed>, tasks: Tasks) -> Items {
    let reading = reader.reading;
    let reader = Arc::new(reader);
    // One queue of queues: in order there is one per split, else one per repetition that all its readers share.
    let (queues, mut queue) = mpsc::channel(Cache::answers_at_once(Cache::requests_at_once(reading.readers)));
    let lead = Arc::clone(&reader);
    drop(tasks.clone().spawn(lead.distribute(feed, queues, tasks.clone())));
    let stream = stream::poll_fn(move |cx| queue.poll_recv(cx));
    let items = stream
        .map(|mut rx: mpsc::Receiver<Result<Item>>| stream::poll_fn(move |cx| rx.poll_recv(cx)))
        .flatten();
    items.boxed()
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
        Self { pipeline, ctx, cache, reading, local }
    }

    /// How rows are read that enter at a stage, by its place among the figures.
    fn reading(&self, stage: usize) -> Reading {
        let stages = self.ctx.stats.snapshot();
        let end = self.local.min(stages.len());
        self.reading.sized(stages.get(stage..end).unwrap_or_default())
    }

    /// Leases splits and starts their readers, never more than `readers` at once.
    async fn distribute(
        self: Arc<Self>,
        mut feed: Box<dyn SplitFeed>,
        queues: mpsc::Sender<mpsc::Receiver<Result<Item>>>,
        tasks: Tasks,
    ) {
        let mut room = Room::for_readers(self.reading.readers);
        let mut leases: VecDeque<LeasedSplit> = VecDeque::new();
        let mut repetition: Option<u32> = None;
        let mut shared: Option<mpsc::Sender<Result<Item>>> = None;
        loop {
            let Some(mut place) = room.next().await else { return };
            if leases.is_empty() {
                match feed.next(1).await {
                    Ok(Some(more)) => leases.extend(more),
                    Ok(None) => break,
                    Err(e) => return refuse(e, shared.take(), &queues).await,
                }
            }
            let Some(lease) = leases.pop_front() else {
                continue;
            };
            let group = match &lease.group {
                Some(group) => match self.gather(lease.clone(), group.of, &mut leases, &mut feed).await {
                    Ok(Some(read)) => Some(read),
                    // Its splits are computed like any others.
                    Ok(None) => continue,
                    Err(e) => return refuse(e, shared.take(), &queues).await,
                },
                None => None,
            };
            if repetition.is_some_and(|r| r != lease.split.repetition) {
                shared = None;
                if mark_end(&queues).await.is_err() {
                    return;
                }
            }
            repetition = Some(lease.split.repetition);
            self.ctx.register(lease.index, &lease.split, &lease.done);
            let out = match &shared {
                Some(tx) => tx.clone(),
                None => {
                    let depth = if self.reading.ordered { READY } else { self.reading.readers * READY };
                    let (tx, rx) = mpsc::channel(depth);
                    if queues.send(rx).await.is_err() {
                        return;
                    }
                    if !self.reading.ordered {
                        shared = Some(tx.clone());
                    }
                    tx
                }
            };
            let requests = self.cache.requests_for(&lease).filter(|_| group.is_none());
            if room.fit(&mut place, requests).await.is_none() {
                return;
            }
            let me = Arc::clone(&self);
            let reads = SplitReads::of(Arc::clone(&self.ctx.stats));
            drop(tasks.spawn(READER.scope(reads, async move {
                match group {
                    Some(group) => me.get_group(group, &out, place).await,
                    None => me.read_one(lease, &out, place).await,
                }
            })));
        }
        drop(shared.take());
        if repetition.is_some() {
            mark_end(&queues).await.ok();
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
            return Ok(Some(Group { hint, part, first: all[0].index }));
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
    async fn get_group(&self, mut group: Group, out: &mpsc::Sender<Result<Item>>, mut place: Place) {
        let counters = self.ctx.stats.stage(self.cache.figures(group.hint));
        let reading = self.reading(self.cache.figures(group.hint));
        place.shrink(group.part.requests());
        loop {
            let serving = counters.serving();
            let Some(chunks) = counters.polled(group.part.next()).await else { break };
            drop(serving);
            place.shrink(group.part.requests());
            let chunks = match chunks {
                Ok(chunks) => chunks,
                Err(e) => {
                    let e = Error::cancelled(format!(
                        "a stored part cannot be read any more ({}): its splits are computed",
                        e.message()
                    ));
                    out.send(Err(e)).await.ok();
                    return;
                }
            };
            for chunk in chunks.into_iter().flat_map(|c| parts(c, reading)) {
                counters.moved(chunk.rows(), chunk.rows(), chunk.bytes());
                if out.send(Ok(Item::Entry { hint: group.hint, chunk })).await.is_err() {
                    return;
                }
            }
        }
        if let Err(e) = self.ctx.count_stored_skips(group.first, group.part.skipped()) {
            out.send(Err(e)).await.ok();
        }
    }

    /// Sends the rows of one split; an error ends the stream.
    async fn read_one(&self, lease: LeasedSplit, out: &mpsc::Sender<Result<Item>>, mut place: Place) {
        match self.cache.enter(&lease).await {
            Entry::Skip => {}
            Entry::Compute => {
                self.compute(&lease, out).await;
            }
            Entry::Put | Entry::Keep => {
                if self.compute(&lease, out).await {
                    self.cache.was_read(lease.index, READER.try_with(|reads| reads.bytes()).unwrap_or(0));
                    out.send(Ok(Item::EndOfSplit(lease.index))).await.ok();
                }
            }
            Entry::Get { hint, part } => {
                if let Some(rows) = self.get(hint, part, &lease, out, &mut place).await {
                    self.cache.resume(lease.index, hint, rows);
                    self.compute(&lease, out).await;
                }
            }
        }
    }

    /// Sends the rows of a part; the number of those sent if the part turns out to be damaged.
    async fn get(
        &self,
        hint: usize,
        mut part: Box<OpenPart>,
        lease: &LeasedSplit,
        out: &mpsc::Sender<Result<Item>>,
        place: &mut Place,
    ) -> Option<u64> {
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
            let Ok(batch) = batch else { return Some(ordinal) };
            counters.moved(batch.num_rows(), batch.num_rows(), batch_bytes(&batch));
            for batch in pieces(&batch, reading) {
                let len = batch.num_rows() as u64;
                let run = Run { split: lease.index, start: ordinal, len };
                ordinal += len;
                let item = Item::Entry { hint, chunk: Chunk::rows_of(batch, vec![run]) };
                if counters.polled(out.send(Ok(item))).await.is_err() {
                    return None;
                }
            }
        }
        if let Err(e) = self.ctx.count_stored_skips(lease.index, part.skipped()) {
            out.send(Err(e)).await.ok();
        }
        None
    }

    /// Sends the rows of a split from its source; false if the stream ended before the split.
    async fn compute(&self, lease: &LeasedSplit, out: &mpsc::Sender<Result<Item>>) -> bool {
        if self.pipeline.def().options.cache_only {
            out.send(Err(not_stored(lease))).await.ok();
            return false;
        }
        let counters = self.ctx.stats.source();
        let mut rows = self.open(&self.pipeline.root, &lease.split, lease.index);
        let mut ordinal = lease.split.trim.map_or(0, |t| t.0);
        loop {
            let serving = counters.serving();
            let next = counters.polled(rows.next()).await;
            drop(serving);
            let item = match next {
                None => return true,
                Some(Err(e)) => Err(e),
                Some(Ok(batch)) if batch.num_rows() == 0 => continue,
                Some(Ok(batch)) => {
                    let len = batch.num_rows() as u64;
                    counters.moved(batch.num_rows(), batch.num_rows(), batch_bytes(&batch));
                    let run = Run { split: lease.index, start: ordinal, len };
                    ordinal += len;
                    Ok(Item::Chunk(Chunk::rows_of(batch, vec![run])))
                }
            };
            let failed = item.is_err();
            let wait = Instant::now();
            if counters.polled(out.send(item)).await.is_err() || failed {
                return false;
            }
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
                let batches = branch.source.read(split, &options);
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
    /// The lease of one of its splits.
    first: u64,
}

fn with_schema(batch: RecordBatch, schema: &arrow_schema::SchemaRef) -> Result<RecordBatch> {
    RecordBatch::try_new(Arc::clone(schema), batch.columns().to_vec())
        .map_err(|e| Error::invalid(format!("the datasets of a combinator disagree: {e}")))
}

fn failed(message: &'static str) -> BoxStream<'static, Result<RecordBatch>> {
    stream::once(async move { Err(Error::internal(message)) }).boxed()
}

/// Ends the stream with an error.
async fn refuse(
    e: Error,
    shared: Option<mpsc::Sender<Result<Item>>>,
    queues: &mpsc::Sender<mpsc::Receiver<Result<Item>>>,
) {
    drop(shared);
    let (tx, rx) = mpsc::channel(1);
    drop(tx.send(Err(e)).await);
    drop(queues.send(rx).await);
}

async fn mark_end(queues: &mpsc::Sender<mpsc::Receiver<Result<Item>>>) -> Result<(), ()> {
    let (tx, rx) = mpsc::channel(1);
    tx.send(Ok(Item::EndOfRepetition)).await.map_err(drop)?;
    queues.send(rx).await.map_err(drop)
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
