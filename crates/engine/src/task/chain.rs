//! Chaining the steps of a pipeline into one stream.

use std::sync::Arc;

use caju_runtime::{budget, catch};
use caju_types::Result;
use caju_wire::Chunk;
use futures::stream::{self, StreamExt};

use super::concurrent::Order;
use super::hint::{Numbering, at_hint, at_set, at_sharing_point, without_marks};
use super::pay::simulate_cost;
use super::prefetch::prefetched;
use super::rows::rows;
use super::shard::{shard_stage, sharded};
use super::{Item, Items};
use crate::bind::{BoundPipeline, BranchKind, ShardStep, Step, StreamOp};
use crate::caching::TaskCache;
use crate::context::TaskContext;
use crate::row::{RowOp, RowStage};
use crate::row_checks::diverged;
use crate::sharing::{END, Flights};
use crate::stats::TaskStats;
use crate::stream::{Batch, BatchEnd, Bucket, Flow, Mix, Shuffle, Skip, StreamStage, Take, Unbatch};

/// The random position of a sampling source, apart from those of stages.
const SAMPLE_POSITION: u32 = u32::MAX;

/// Chains the steps of a pipeline behind its source.
pub(super) fn build(
    pipeline: &Arc<BoundPipeline>,
    source: Items,
    ctx: &Arc<TaskContext>,
    (cache, sharing): (&Arc<TaskCache>, Option<&Arc<Flights>>),
    ordered: bool,
) -> Items {
    let steps = &pipeline.root.steps;
    // A `shard` behind a sampling source divides its rows in the order in which they are drawn.
    let sampled = matches!(pipeline.root.kind, BranchKind::Sample { .. });
    let drawn = |s: &Step| sampled && matches!(s, Step::Shard(shard) if shard.stats.is_some());
    let first_stream = steps.iter().position(|s| is_stream(s) || drawn(s)).unwrap_or(steps.len());
    let (local, streaming) = steps.split_at(first_stream);
    let local_items = local_part(local, source, ctx, (cache, sharing), ordered);
    let checked = check_rows(local_items, stages_of(local), ctx);
    let items = sized(checked, ctx);
    let order = if ordered { Order::Input } else { Order::Any };
    // Rows that readers already have are dropped where splits end, unless elements are counted below: then
    // they must be counted too. A promised order is that of all rows: there they pass every stream stage.
    let (last_count, mixes_in_order) = (last_count(pipeline, streaming), mixes_in_order(pipeline));
    let mut items = if last_count.is_none() && !mixes_in_order { drop_done(items, ctx) } else { items };
    if let BranchKind::Sample { weights, seed } = &pipeline.root.kind {
        let of = Arc::clone(ctx);
        let mix = Mix::new(weights.clone(), ctx.stream_seed(SAMPLE_POSITION, *seed), move |s| of.child_of(s));
        let repeats = streaming.iter().any(|s| matches!(s, Step::Repeat));
        items = run_stream_stage(Box::new(mix), "source sample".into(), items, repeats, &ctx.stats);
        if last_count.is_none() && mixes_in_order {
            items = drop_done(items, ctx);
        }
    }
    // Stages above the last `repeat` restart with every repetition.
    let mut repeats = streaming.iter().filter(|s| matches!(s, Step::Repeat)).count();
    let mut run: Vec<Arc<RowStage>> = Vec::new();
    for (i, step) in streaming.iter().enumerate() {
        if let Step::Rows(r) = step {
            run.push(Arc::clone(r));
            continue;
        }
        items = rows(std::mem::take(&mut run), items, ctx, order);
        match step {
            Step::Repeat => {
                repeats -= 1;
                if repeats == 0 {
                    items =
                        items.filter(|i| std::future::ready(!matches!(i, Ok(Item::EndOfRepetition)))).boxed();
                }
            }
            Step::Hint(hint) => items = at_set(*hint, items, cache),
            Step::Shard(shard) => items = run_shard(*shard, items, ctx, repeats > 0),
            Step::Cost { cost, burn, stats } => items = simulate_cost(items, ctx, *cost, *burn, *stats),
            Step::Prefetch { elements, stats } => items = prefetched(items, *elements, *stats, ctx),
            Step::Stream { op, stats } => {
                let (stage, holds) = (stream_stage(op, ctx), holds(op));
                let stage = Counted { stage, ctx: Arc::clone(ctx), stats: *stats, holds };
                let place = ctx.stats.stage(*stats).place();
                items = run_stream_stage(Box::new(stage), place, items, repeats > 0, &ctx.stats);
            }
            Step::Rows(_) => {}
        }
        if last_count == Some(i) {
            items = drop_done(items, ctx);
        }
    }
    rows(run, items, ctx, order)
}

/// The last stage that counts elements, and therefore also rows that readers already have.
fn last_count(pipeline: &BoundPipeline, streaming: &[Step]) -> Option<usize> {
    let promised = pipeline.def().options.deterministic;
    let counts = |s: &Step| {
        matches!(s, Step::Stream { op: StreamOp::Take(_) | StreamOp::Skip(_), .. } | Step::Shard(_))
            || promised && is_stream(s)
    };
    streaming.iter().rposition(counts)
}

fn mixes_in_order(pipeline: &BoundPipeline) -> bool {
    pipeline.def().options.deterministic && matches!(pipeline.root.kind, BranchKind::Sample { .. })
}

/// Whether rows that readers already have pass no further than to the end of the split-local stages.
pub(super) fn drops_done_first(pipeline: &BoundPipeline) -> bool {
    last_count(pipeline, &pipeline.root.steps).is_none() && !mixes_in_order(pipeline)
}

fn is_stream(step: &Step) -> bool {
    matches!(step, Step::Stream { .. } | Step::Repeat)
}

/// Chains the split-local stages. Where ordinals change above a random stage, chunks pass one by one, in order, to be
/// renumbered; everything between such places runs in parallel.
fn local_part(
    steps: &[Step],
    mut items: Items,
    ctx: &Arc<TaskContext>,
    (cache, sharing): (&Arc<TaskCache>, Option<&Arc<Flights>>),
    ordered: bool,
) -> Items {
    let order = order_of(steps, ctx, ordered, sharing.is_some());
    let mut segment: Vec<Arc<RowStage>> = Vec::new();
    // Below a shard, rows keep the ordinals that they have without it, and draw the same.
    let (mut dirty, mut gaps) = (false, false);
    for step in steps {
        match step {
            Step::Shard(shard) => {
                items = rows(std::mem::take(&mut segment), items, ctx, order);
                items = sharded(*shard, items, ctx);
                gaps = true;
            }
            Step::Rows(stage) => {
                if stage.is_random() && dirty {
                    items = renumber(rows(std::mem::take(&mut segment), items, ctx, order));
                    dirty = false;
                }
                dirty |= stage.changes_ordinals() || ctx.skips();
                segment.push(Arc::clone(stage));
            }
            Step::Cost { cost, burn, stats } => {
                items = rows(std::mem::take(&mut segment), items, ctx, order);
                items = simulate_cost(items, ctx, *cost, *burn, *stats);
            }
            Step::Prefetch { elements, stats } => {
                items = rows(std::mem::take(&mut segment), items, ctx, order);
                items = prefetched(items, *elements, *stats, ctx);
            }
            // Behind a `take` that was planned away. Ordinals are counted as if it were not there.
            Step::Hint(hint) if cache.is_set(*hint) => {
                items = rows(std::mem::take(&mut segment), items, ctx, order);
                items = by_split(at_set(*hint, items, cache));
            }
            Step::Hint(hint) => {
                items = rows(std::mem::take(&mut segment), items, ctx, order);
                items = at_hint(*hint, dirty || gaps, items, cache);
                if let Some(sharing) = sharing {
                    items = at_sharing_point(*hint, items, sharing);
                }
                (dirty, gaps) = (false, false);
            }
            _ => {}
        }
    }
    if sharing.is_none() && steps.iter().any(|s| matches!(s, Step::Hint(_))) {
        items = without_marks(items);
    }
    items = rows(segment, items, ctx, order);
    items = if dirty || gaps { renumber(items) } else { items };
    match sharing {
        Some(sharing) => at_sharing_point(END, items, sharing),
        None => items,
    }
}

/// The order that the split-local stages must keep. Where rows are renumbered within their split, stored, or shared with other
/// jobs, the rows of a split must stay in order.
fn order_of(steps: &[Step], ctx: &TaskContext, ordered: bool, is_shared: bool) -> Order {
    let numbers = |s: &Step| match s {
        Step::Rows(stage) => stage.changes_ordinals(),
        Step::Hint(_) | Step::Shard(_) => true,
        _ => false,
    };
    match ordered {
        true => Order::Input,
        false if is_shared || ctx.skips() || steps.iter().any(numbers) => Order::PerSplit,
        false => Order::Any,
    }
}

/// Chunks of one split each, as they are above all cross-split stages.
fn by_split(items: Items) -> Items {
    let apart = |item| match item {
        Ok(Item::Chunk(chunk)) => stream::iter(apart(&chunk)).map(|c| Ok(Item::Chunk(c))).left_stream(),
        other => stream::iter([other]).right_stream(),
    };
    items.flat_map(apart).boxed()
}

fn apart(chunk: &Chunk) -> Vec<Chunk> {
    let (mut out, mut at) = (Vec::new(), 0);
    for runs in chunk.runs.chunk_by(|a, b| a.split == b.split) {
        let rows = runs.iter().map(|r| usize::try_from(r.len).unwrap_or(0)).sum();
        out.push(chunk.slice_rows(at, rows));
        at += rows;
    }
    out
}

/// Renumbers the rows of every split consecutively.
fn renumber(items: Items) -> Items {
    let mut numbering = Numbering::default();
    items
        .map(move |item| {
            let mut item = item?;
            if let Item::Chunk(chunk) = &mut item {
                numbering.renumber(chunk);
            }
            Ok(item)
        })
        .boxed()
}

/// The stages that a row's checksum is about, for messages: users' functions, since everything else is a function by
/// construction, or all of them.
fn stages_of(local: &[Step]) -> String {
    let rows = || local.iter().filter_map(|s| if let Step::Rows(r) = s { Some(r) } else { None });
    let users: Vec<&str> = rows().filter(|r| matches!(r.op, RowOp::Python(_))).map(|r| &*r.place).collect();
    let named = if users.is_empty() { rows().map(|r| &*r.place).collect() } else { users };
    if named.is_empty() { "the source".to_string() } else { named.join(" or ") }
}

/// Compares rows of splits that are run again with those of the run before.
fn check_rows(items: Items, stages: String, ctx: &Arc<TaskContext>) -> Items {
    let ctx = Arc::clone(ctx);
    let checked = move |item| match item {
        Ok(Item::Chunk(chunk)) => match ctx.checks.first_difference(&chunk) {
            None => Ok(Item::Chunk(chunk)),
            Some((split, ordinal)) => Err(diverged(&ctx.place(split, ordinal), &stages)),
        },
        other => other,
    };
    items.map(checked).boxed()
}

/// Counts the rows of every split, so that readers learn when they have all of one.
fn sized(items: Items, ctx: &Arc<TaskContext>) -> Items {
    let ctx = Arc::clone(ctx);
    items
        .inspect(move |item| match item {
            Ok(Item::Chunk(chunk)) => ctx.passed(&chunk.runs),
            Ok(Item::EndOfSplit(index)) => ctx.ended(*index),
            _ => {}
        })
        .boxed()
}

/// Drops rows that readers already have, as their leases say.
fn drop_done(items: Items, ctx: &Arc<TaskContext>) -> Items {
    let ctx = Arc::clone(ctx);
    items
        .flat_map(move |item| {
            let out = match item {
                Ok(Item::Chunk(chunk)) => {
                    let (all, left) = (chunk.rows(), ctx.without_done(chunk));
                    ctx.stats.left_out(all - left.iter().map(Chunk::rows).sum::<usize>());
                    left.into_iter().map(|c| Ok(Item::Chunk(c))).collect()
                }
                other => vec![other],
            };
            stream::iter(out)
        })
        .boxed()
}

/// Runs a `shard` over the stream of elements.
fn run_shard(shard: ShardStep, items: Items, ctx: &Arc<TaskContext>, restarts: bool) -> Items {
    const PLACE: &str = "the shards of processing mode `data`";
    let stage = match shard_stage(shard, ctx) {
        Ok(stage) => stage,
        Err(e) => return stream::iter([Err(e)]).boxed(),
    };
    match shard.stats {
        Some(stats) => {
            let place = ctx.stats.stage(stats).place();
            let stage = Counted { stage: Box::new(stage), ctx: Arc::clone(ctx), stats, holds: false };
            run_stream_stage(Box::new(stage), place, items, restarts, &ctx.stats)
        }
        None => run_stream_stage(Box::new(stage), PLACE.into(), items, restarts, &ctx.stats),
    }
}

fn stream_stage(op: &StreamOp, ctx: &TaskContext) -> Box<dyn StreamStage> {
    match op {
        StreamOp::Shuffle { place, buffer, max_bytes, seed, position } => {
            Box::new(Shuffle::new(place.clone(), *buffer, *max_bytes, ctx.stream_seed(*position, *seed)))
        }
        StreamOp::Take(n) => Box::new(Take { left: *n }),
        StreamOp::Skip(n) => Box::new(Skip { left: *n }),
        StreamOp::Batch(b) => {
            let end = match (b.merge, b.drop_remainder) {
                (true, _) => BatchEnd::Merge,
                (false, true) => BatchEnd::Drop,
                (false, false) => BatchEnd::Keep,
            };
            Box::new(Batch::new(b.size, end, b.padding.clone()))
        }
        StreamOp::Bucket { place, length, boundaries, sizes, drop_remainder, padding } => {
            Box::new(Bucket::new(
                (**length).clone(),
                place.clone(),
                boundaries.clone(),
                sizes.clone(),
                *drop_remainder,
                padding.clone(),
            ))
        }
        StreamOp::Unbatch => Box::new(Unbatch),
    }
}

/// Whether a stage gives out all rows that it takes in, some of them later.
fn holds(op: &StreamOp) -> bool {
    match op {
        StreamOp::Shuffle { .. } | StreamOp::Batch(_) | StreamOp::Bucket { .. } => true,
        StreamOp::Take(_) | StreamOp::Skip(_) | StreamOp::Unbatch => false,
    }
}

/// A stage whose work is counted.
struct Counted {
    stage: Box<dyn StreamStage>,
    ctx: Arc<TaskContext>,
    stats: usize,
    /// Whether the rows in it are computed.
    holds: bool,
}

impl Counted {
    fn count<T>(
        &mut self,
        rows: usize,
        out: &mut Vec<Chunk>,
        work: impl FnOnce(&mut dyn StreamStage, &mut Vec<Chunk>) -> T,
    ) -> T {
        let counters = self.ctx.stats.stage(self.stats);
        let before = out.len();
        let done = counters.timed(|| budget::scope(self.ctx.chunk_bytes, || work(&mut *self.stage, out)));
        let new = || out.iter().skip(before);
        let rows_out = new().map(Chunk::rows).sum();
        counters.moved(rows, rows_out, new().map(Chunk::bytes).sum());
        if self.holds {
            self.ctx.stats.held(rows, rows_out);
        }
        done
    }
}

impl StreamStage for Counted {
    fn push(&mut self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<Flow> {
        self.count(chunk.rows(), out, |stage, out| stage.push(chunk, out))
    }

    fn flush(&mut self, out: &mut Vec<Chunk>) -> Result<()> {
        self.count(0, out, |stage, out| stage.flush(out))
    }
}

struct Running {
    items: Items,
    stage: Box<dyn StreamStage>,
    /// What errors call the stage.
    place: String,
    /// Whether the end of a repetition empties the stage.
    restarts: bool,
    /// What it has put out, and no stage below has taken.
    ready: std::collections::VecDeque<Item>,
    stats: Arc<TaskStats>,
    over: bool,
}

impl Running {
    /// Runs a step of the stage. A panic is an error, because libraries evaluate expressions here.
    fn step<T>(&mut self, step: impl FnOnce(&mut dyn StreamStage) -> Result<T>) -> Result<T> {
        let stage = &mut *self.stage;
        catch(&self.place, || step(stage)).and_then(|done| done)
    }
}

fn run_stream_stage(
    stage: Box<dyn StreamStage>,
    place: String,
    items: Items,
    restarts: bool,
    stats: &Arc<TaskStats>,
) -> Items {
    let (ready, stats) = (std::collections::VecDeque::new(), Arc::clone(stats));
    let running = Running { items, stage, place, restarts, ready, stats, over: false };
    stream::try_unfold(running, |mut r| async move {
        let mut out = Vec::new();
        loop {
            if let Some(item) = r.ready.pop_front() {
                if let Item::Chunk(chunk) = &item {
                    r.stats.held(0, chunk.rows());
                }
                return Ok(Some((item, r)));
            }
            if r.over {
                return Ok(None);
            }
            let mut end = None;
            match r.items.next().await.transpose()? {
                Some(Item::Chunk(chunk)) => {
                    r.over = r.step(|stage| stage.push(chunk, &mut out))? == Flow::Done
                }
                Some(Item::EndOfRepetition) => {
                    if r.restarts {
                        r.step(|stage| stage.flush(&mut out))?;
                    }
                    end = Some(Item::EndOfRepetition);
                }
                // The rows enter at a hint below; the stage passes them on.
                Some(entry @ Item::Entry { .. }) => r.ready.push_back(entry),
                Some(Item::EndOfSplit(_)) => {}
                None => {
                    r.step(|stage| stage.flush(&mut out))?;
                    r.over = true;
                }
            }
            r.stats.held(out.iter().map(Chunk::rows).sum(), 0);
            r.ready.extend(out.drain(..).filter(|c| c.rows() > 0).map(Item::Chunk));
            r.ready.extend(end);
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use caju_proto::v1::StageKind;
    use caju_wire::Run;

    use super::*;

    /// A stage that breaks down when it is pushed, or flushed.
    struct Broken {
        pushed: bool,
    }

    impl StreamStage for Broken {
        fn push(&mut self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<Flow> {
            assert!(!self.pushed, "byte array offset overflow");
            out.push(chunk);
            Ok(Flow::More)
        }

        fn flush(&mut self, _: &mut Vec<Chunk>) -> Result<()> {
            panic!("nothing to flush")
        }
    }

    fn chunk() -> Chunk {
        let ids: arrow_array::ArrayRef = Arc::new(arrow_array::Int64Array::from_iter_values(0..3));
        let batch = arrow_array::RecordBatch::try_from_iter([("id", ids)]).unwrap();
        Chunk::rows_of(batch, vec![Run { split: 0, start: 0, len: 3 }])
    }

    async fn errors(items: Items) -> Vec<String> {
        let all: Vec<_> = items.collect().await;
        assert!(matches!(all.last(), Some(Err(_))), "the error is the end");
        all.into_iter().filter_map(Result::err).map(|e| e.message().to_string()).collect()
    }

    #[tokio::test]
    async fn a_stage_that_panics_is_an_error_that_names_it() {
        for (pushed, text) in [(true, "byte array offset overflow"), (false, "nothing to flush")] {
            let items = stream::iter([Ok(Item::Chunk(chunk()))]).boxed();
            let place = "steps[2].bucket_by_length".to_string();
            let stats = Arc::new(TaskStats::new([(place.clone(), StageKind::Serial)], true));
            let got =
                errors(run_stream_stage(Box::new(Broken { pushed }), place, items, false, &stats)).await;
            assert_eq!(got, [format!("steps[2].bucket_by_length panicked: {text}")]);
        }
    }
}
