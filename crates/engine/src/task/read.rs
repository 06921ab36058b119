//! Reading leased splits: several at a time, in order or as they come.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::RecordBatch;
use caju_runtime::Sender;
use caju_types::{Error, Result};
use caju_wire::{Chunk, Elements, Run, batch_bytes};
use futures::stream::{self, BoxStream, StreamExt};

use super::distribute::Group;
use super::ends::Leases;
use super::room::Place;
use super::zip::{Side, zipped};
use super::{Item, LeasedSplit};
use crate::bind::{BoundPipeline, Branch, BranchKind, Step};
use crate::caching::{Entry, OpenPart, TaskCache};
use crate::context::TaskContext;
use crate::source::{ReadOptions, Split, SplitRange, child_split, read_split};
use crate::stats::READER;

/// How splits are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) batch_rows: usize,
    pub(super) batch_bytes: usize,
    pub(super) readers: usize,
    /// Keep the order of leases; else rows of different splits come as they are read.
    pub(super) ordered: bool,
}

/// Reads the splits of a task.
pub(super) struct Reader {
    pipeline: Arc<BoundPipeline>,
    pub(super) ctx: Arc<TaskContext>,
    pub(super) cache: Arc<TaskCache>,
    pub(super) reading: Reading,
    /// Where the figures of the stages end that see one split at a time.
    local: usize,
    /// The splits that were leased and have not ended.
    pub(super) open: Leases,
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

    /// Sends the rows of a part of a set. If it is damaged the task is given up: what is left of its splits is
    /// computed by another one, since rows say which ones they are wherever they come from.
    pub(super) async fn get_group(
        &self,
        mut group: Group,
        out: &Sender<Item>,
        mut place: Place,
    ) -> Result<()> {
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
    pub(super) async fn read_one(
        &self,
        lease: LeasedSplit,
        out: &Sender<Item>,
        mut place: Place,
    ) -> Result<()> {
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

fn with_schema(batch: RecordBatch, schema: &arrow_schema::SchemaRef) -> Result<RecordBatch> {
    RecordBatch::try_new(Arc::clone(schema), batch.columns().to_vec())
        .map_err(|e| Error::invalid(format!("the datasets of a combinator disagree: {e}")))
}

fn failed(message: &'static str) -> BoxStream<'static, Result<RecordBatch>> {
    stream::once(async move { Err(Error::internal(message)) }).boxed()
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
