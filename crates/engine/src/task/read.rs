//! Reading leased splits: several at a time, in order or as they come.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::RecordBatch;
use caju_runtime::Sender;
use caju_sources::{ReadOptions, Split, SplitRange, child_split, read_split};
use caju_types::{Error, ErrorKind, Result, SplitKey};
use caju_wire::{Chunk, Elements, Run, batch_bytes, plain_bytes};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use super::Item;
use super::chain::drops_done_first;
use super::open_splits::OpenSplits;
use super::read_limiter::ReadPermit;
use super::stored_only::StoredOnly;
use super::zip::{Side, zipped};
use crate::bind::{BoundPipeline, Branch, BranchKind, Step};
use crate::caching::{Entry, OpenPart, StoredGroup, TaskCache};
use crate::context::TaskContext;
use crate::hidden::without_hidden_values;
use crate::lease::LeasedSplit;
use crate::row::RowStage;
use crate::sharing::{Begin, END, Flights, MayShare, Next, SharedRows, entry_index};
use crate::stats::SplitReads;

/// How splits are read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) batch_rows: usize,
    pub(super) batch_bytes: usize,
    /// Splits that are read concurrently at first, and at most.
    pub(super) readers: usize,
    pub(super) max_readers: usize,
    /// Keeps the order of leases; otherwise rows of different splits come in the order in which they are read.
    pub(super) ordered: bool,
}

/// A part of a set that is being read.
pub(super) struct Group {
    pub(super) hint: usize,
    pub(super) part: StoredGroup,
    /// The leases of its splits.
    pub(super) splits: Vec<u64>,
    /// The first of them.
    pub(super) first: LeasedSplit,
}

/// Reads the splits of a task.
pub(super) struct Reader {
    pipeline: Arc<BoundPipeline>,
    pub(super) ctx: Arc<TaskContext>,
    pub(super) cache: Arc<TaskCache>,
    /// The splits whose rows are shared with other jobs; none: the task shares nothing.
    sharing: Option<Arc<Flights>>,
    pub(super) reading: Reading,
    /// The index of the first cross-split stage among the counters.
    local: usize,
    /// Whether a split of which readers have all rows is left out. Where elements are counted, or bad rows are, its rows have to
    /// pass again.
    leaves_out_taken: bool,
    /// The splits that may not be computed.
    pub(super) stored_only: StoredOnly,
    /// The splits that were leased and have not ended.
    pub(super) open: OpenSplits,
}

impl Reader {
    pub(super) fn new(
        pipeline: Arc<BoundPipeline>,
        ctx: Arc<TaskContext>,
        cache: Arc<TaskCache>,
        sharing: Option<Arc<Flights>>,
        reading: Reading,
    ) -> Self {
        let streams = pipeline.root.steps.iter().filter_map(|s| match s {
            Step::Stream { stats, .. } => Some(*stats),
            _ => None,
        });
        let local = streams.min().unwrap_or(usize::MAX);
        let leaves_out_taken = drops_done_first(&pipeline) && !ctx.skips();
        let (stored_only, open) = (StoredOnly::of(&pipeline), OpenSplits::default());
        Self { leaves_out_taken, stored_only, pipeline, ctx, cache, sharing, reading, local, open }
    }

    /// How rows are read that enter at the stage with these counters.
    fn reading(&self, stage: usize) -> Reading {
        let stages = self.ctx.stats.snapshot();
        let end = self.local.min(stages.len());
        self.reading.sized(stages.get(stage..end).unwrap_or_default())
    }

    /// Whether readers have all rows of a split, and none of them has to pass again.
    pub(super) fn leaves_out(&self, lease: &LeasedSplit) -> bool {
        self.leaves_out_taken && lease.is_taken()
    }

    /// Sends the rows of a part of a set. If the part is damaged the task fails, and another task computes the remaining rows
    /// of its splits: the provenance of the rows says which ones were delivered. If none may be computed, the epoch fails.
    pub(super) async fn get_group(
        &self,
        mut group: Group,
        out: &Sender<Item>,
        mut permit: ReadPermit,
    ) -> Result<()> {
        let counters = self.ctx.stats.stage(self.cache.stats_index(group.hint));
        let reading = self.reading(self.cache.stats_index(group.hint));
        permit.shrink(group.part.requests());
        loop {
            let serving = (counters.serving(), self.ctx.stats.busy.reading());
            let Some(chunks) = counters.polled(group.part.next()).await else { break };
            drop(serving);
            permit.shrink(group.part.requests());
            let chunks = chunks.map_err(|e| {
                let why = e.message();
                if self.stored_only.is_from_set_alone(&group.first) && e.kind() != ErrorKind::Cancelled {
                    return self.stored_only.unreadable(&group.first, why);
                }
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
        reads: &SplitReads,
        out: &Sender<Item>,
        mut permit: ReadPermit,
    ) -> Result<()> {
        if self.leaves_out(&lease) {
            self.ctx.taken(lease.index, lease.done.len());
            return out.send(Item::EndOfSplit(lease.index)).await;
        }
        self.stored_only.check_split(&lease)?;
        match self.cache.enter(&lease).await {
            Entry::Skip => {}
            // An earlier attempt left these rows out of the save.
            Entry::Saved { skipped } => self.ctx.count_stored_skips(lease.index, skipped)?,
            Entry::Compute => match self.share(&lease, None, MayShare::Skip).await {
                Begin::Read(rows) => self.follow(rows, &lease, None, out).await?,
                Begin::Compute => self.compute(&lease, out).await?,
                Begin::Skip => {}
            },
            Entry::Put { hint } => match self.share(&lease, None, self.may_store(hint)).await {
                // What another job computes is stored here, and computed only if that job does not give it.
                Begin::Read(rows) => self.follow(rows, &lease, Some(hint), out).await?,
                Begin::Compute | Begin::Skip => {
                    self.compute(&lease, out).await?;
                    self.cache.source_was_read(lease.index, reads.bytes());
                }
            },
            Entry::Buffer => {
                // It is not known where its rows are stored, so they are computed here. Others read them.
                self.share(&lease, None, MayShare::GiveOnly).await;
                self.compute(&lease, out).await?;
                self.cache.source_was_read(lease.index, reads.bytes());
            }
            Entry::Get { hint, part } => {
                if let Begin::Read(rows) = self.share(&lease, Some(hint), MayShare::Read).await {
                    drop(part);
                    self.follow(rows, &lease, None, out).await?;
                } else if let Some(rows) = self.get(hint, part, &lease, out, &mut permit).await? {
                    self.cache.resume(lease.index, hint, rows);
                    self.compute(&lease, out).await?;
                }
            }
        }
        out.send(Item::EndOfSplit(lease.index)).await
    }

    /// Whether a split that is stored at a hint may come from the window.
    fn may_store(&self, hint: usize) -> MayShare {
        if self.cache.knows_cost_above(hint) { MayShare::Store(hint) } else { MayShare::GiveOnly }
    }

    /// How this task comes by the rows of a split below the given hint.
    async fn share(&self, lease: &LeasedSplit, below: Option<usize>, may: MayShare) -> Begin {
        match &self.sharing {
            Some(sharing) => sharing.begin(lease, below, may).await,
            None => Begin::Compute,
        }
    }

    /// Sends rows that another task computes, and computes those that it does not give. `stored_at`: the hint at which they are
    /// stored.
    async fn follow(
        &self,
        mut rows: SharedRows,
        lease: &LeasedSplit,
        stored_at: Option<usize>,
        out: &Sender<Item>,
    ) -> Result<()> {
        let place = rows.place;
        let stage = if place == END { self.local } else { self.cache.stats_index(place) };
        let reading = self.reading(stage);
        let mut ordinal = 0;
        loop {
            match rows.next().await {
                Next::Batch(batch) => {
                    for batch in pieces(&batch, reading) {
                        let len = batch.num_rows() as u64;
                        let run = Run { split: lease.index, start: ordinal, len };
                        ordinal += len;
                        let chunk = Chunk::rows_of(batch, vec![run]);
                        out.send(Item::Entry { hint: entry_index(place), chunk }).await?;
                    }
                }
                Next::End { skipped } => {
                    // A part says how many rows were skipped above its hint, which only the task that skipped them knows.
                    if skipped > 0 && stored_at.is_some() {
                        self.cache.give_up(lease.index);
                    }
                    return self.ctx.count_stored_skips(lease.index, skipped);
                }
                Next::Unavailable | Next::Pending => break,
            }
        }
        drop(rows);
        // The first rows would pass the hint a second time.
        if stored_at == Some(place) {
            self.cache.give_up(lease.index);
        }
        if let Some(sharing) = &self.sharing {
            sharing.take_over(lease.index, place, ordinal);
        }
        self.compute(lease, out).await
    }

    /// Sends the rows of a part. Returns the number of rows that were sent if the part turns out to be damaged.
    async fn get(
        &self,
        hint: usize,
        mut part: Box<OpenPart>,
        lease: &LeasedSplit,
        out: &Sender<Item>,
        permit: &mut ReadPermit,
    ) -> Result<Option<u64>> {
        let mut ordinal = 0;
        // Reading counts for the hint, as computing counts for the stages above it.
        let counters = self.ctx.stats.stage(self.cache.stats_index(hint));
        let reading = self.reading(self.cache.stats_index(hint));
        permit.shrink(part.requests());
        loop {
            let serving = (counters.serving(), self.ctx.stats.busy.reading());
            let Some(batch) = counters.polled(part.next()).await else { break };
            drop(serving);
            permit.shrink(part.requests());
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
        self.stored_only.check_source(lease)?;
        let counters = self.ctx.stats.source();
        let mut rows = self.open(&self.pipeline.root, &lease.split, lease.index);
        let mut ordinal = lease.split.trim.map_or(0, |t| t.0);
        loop {
            let serving = (counters.serving(), self.ctx.stats.busy.reading());
            let next = counters.polled(rows.next()).await;
            drop(serving);
            let Some(batch) = next.transpose()? else { return Ok(()) };
            if batch.num_rows() == 0 {
                continue;
            }
            let len = batch.num_rows() as u64;
            counters.moved(batch.num_rows(), batch.num_rows(), plain_bytes(&batch));
            let run = Run { split: lease.index, start: ordinal, len };
            ordinal += len;
            let wait = Instant::now();
            counters.polled(out.send(Item::Chunk(Chunk::rows_of(batch, vec![run])))).await?;
            counters.waited_out(wait.elapsed());
        }
    }

    /// The rows of a split of a branch, after the stages of the datasets nested in it. `home`: the lease that the split
    /// belongs to.
    fn open(&self, branch: &Branch, split: &Split, home: u64) -> BoxStream<'static, Result<RecordBatch>> {
        match branch.kind {
            BranchKind::Leaf => {
                // Rows inside of a zip are not skipped: it pairs rows by their numbers.
                let skip = (self.ctx.skips() && branch.in_zip.is_none()).then(|| {
                    let ctx = Arc::clone(&self.ctx);
                    let f: caju_sources::SkipFn = Arc::new(move |e| ctx.count_skip(home, &e));
                    f
                });
                let reading = self.reading(0);
                let options = ReadOptions {
                    projection: branch.projection.clone(),
                    batch_rows: reading.batch_rows,
                    batch_bytes: reading.batch_bytes,
                    skip,
                    keep_dictionaries: branch.dictionaries.clone(),
                    predicates: branch.predicates.clone(),
                };
                let ctx = Arc::clone(&self.ctx);
                ctx.stats.source_opened();
                let batches = read_split(&*branch.source, split, &options);
                let checked = move |batch: Result<RecordBatch>| {
                    let batch = without_hidden_values(batch?)?;
                    ctx.check_skips().map(|()| batch)
                };
                batches.map(checked).boxed()
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
        // Random keys come from the split's own key, under an index that no lease has. The datasets of a `zip` may have one split,
        // and draw for themselves.
        let key = SplitKey(split.key.0 ^ u128::from(child.in_zip.unwrap_or(0)));
        let split = Split { key, ..split.clone() };
        let index = u64::MAX ^ key.folded() ^ u64::from(split.repetition).rotate_left(40);
        self.ctx.register_nested(index, &split, home);
        let first = split.trim.map_or(0, |t| t.0);
        let (ctx, ordinals) = (Arc::clone(&self.ctx), vec![first; stages.len()]);
        let work = NestedWork { stages, ctx, split: index, ordinals, left: Vec::new() };
        stream::try_unfold((rows, work), |(mut rows, mut work)| async move {
            loop {
                if let Some(batch) = work.next()? {
                    return Ok(Some((batch, (rows, work))));
                }
                let Some(batch) = rows.try_next().await? else { return Ok(None) };
                work.left.push((0, batch));
            }
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

/// The row stages of a nested dataset at work on one split.
struct NestedWork {
    stages: Vec<Arc<RowStage>>,
    ctx: Arc<TaskContext>,
    /// The index under which the context knows the split.
    split: u64,
    /// The number of each stage's next row.
    ordinals: Vec<u64>,
    /// Rows that are left, the first ones last, each with the first stage that they have not passed.
    left: Vec<(usize, RecordBatch)>,
}

impl NestedWork {
    /// The next rows that have passed all stages; none if no rows are left. Rows that need too much memory at a stage together
    /// pass it in halves.
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        while let Some((at, batch)) = self.left.pop() {
            let Some((stage, ordinal)) = self.stages.get(at).zip(self.ordinals.get_mut(at)) else {
                return Ok(Some(batch));
            };
            let rows = batch.num_rows();
            let run = Run { split: self.split, start: *ordinal, len: rows as u64 };
            match stage.run(&self.ctx, &batch, &[run], None) {
                Ok(made) => {
                    *ordinal += rows as u64;
                    self.left.push((at + 1, made.batch));
                }
                Err(e) if e.kind() == ErrorKind::ResourceExhausted && stage.may_be_cut() && rows > 1 => {
                    let half = rows / 2;
                    self.left.push((at, batch.slice(half, rows - half)));
                    self.left.push((at, batch.slice(0, half)));
                }
                Err(e) => return Err(e),
            }
        }
        Ok(None)
    }
}

/// Slices a batch of a part into batches of the engine's size, without copying: the stages below may make rows much
/// larger.
fn pieces(batch: &RecordBatch, reading: Reading) -> Vec<RecordBatch> {
    let rows = batch.num_rows();
    let step = step(rows, batch_bytes(batch), reading);
    (0..rows).step_by(step).map(|at| batch.slice(at, step.min(rows - at))).collect()
}

/// Slices a chunk of stored rows into chunks of the engine's size. Chunks of batches stay whole.
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
