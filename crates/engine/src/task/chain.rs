//! Chaining the steps of a pipeline into one stream.

use std::sync::Arc;

use caju_wire::Chunk;
use futures::stream::{self, StreamExt};

use super::artificial_delay::simulate_cost;
use super::concurrent::Order;
use super::empty_repetition::{refuse_endless_emptiness, watched_step};
use super::hint::{Numbering, at_hint, at_set, at_sharing_point};
use super::prefetch::prefetched;
use super::rows::rows;
use super::shard::sharded;
use super::stream_stage::{run_shard, run_stream_op, run_stream_stage};
use super::{Item, Items};
use crate::bind::{BoundPipeline, BranchKind, Step, StreamOp};
use crate::caching::TaskCache;
use crate::context::TaskContext;
use crate::row::{RowOp, RowStage};
use crate::row_checks::diverged;
use crate::shard_numbers::{CopyNumbers, ShardPlaces};
use crate::sharing::{END, Flights};
use crate::stream::Sample;

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
    let (local, streaming) = local_and_streaming(pipeline);
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
        let sample =
            Sample::new(weights.clone(), ctx.stream_seed(SAMPLE_POSITION, *seed), move |s| of.child_of(s));
        let repeats = streaming.iter().any(|s| matches!(s, Step::Repeat(_)));
        items = run_stream_stage(Box::new(sample), "source sample".into(), items, repeats, &ctx.stats);
        if last_count.is_none() && mixes_in_order {
            items = drop_done(items, ctx);
        }
    }
    // A stage above the last `repeat` restarts with every repetition of its input. The ends that arrive are those of the source.
    let mut repeats = streaming.iter().filter(|s| matches!(s, Step::Repeat(_))).count();
    let mut per = 1u64;
    let watched = watched_step(pipeline, local, streaming, ctx);
    let mut run: Vec<Arc<RowStage>> = Vec::new();
    for (i, step) in streaming.iter().enumerate() {
        if let Step::Rows(r) = step {
            run.push(Arc::clone(r));
            continue;
        }
        items = rows(std::mem::take(&mut run), items, ctx, order);
        if watched == Some(i) {
            items = refuse_endless_emptiness(items, pipeline, ctx);
        }
        match step {
            Step::Repeat(count) => {
                repeats -= 1;
                per = per.saturating_mul(count.unwrap_or(u64::MAX));
                items = ends_of_groups(items, per, repeats == 0);
            }
            Step::Hint(hint) => items = at_set(*hint, true, items, cache),
            Step::Shard(shard) => items = run_shard(*shard, items, ctx, repeats > 0),
            Step::Cost { cost, burn, stats } => items = simulate_cost(items, ctx, *cost, *burn, *stats),
            Step::Prefetch { elements, stats } => items = prefetched(items, *elements, *stats, ctx),
            Step::Stream { op, stats } => items = run_stream_op(op, *stats, items, ctx, repeats > 0),
            Step::Rows(_) => {}
        }
        // Rows of a stored set enter at its hint.
        let enters = matches!(step, Step::Hint(_)) && last_count.is_none_or(|last| last < i);
        if last_count == Some(i) || enters {
            items = drop_done(items, ctx);
        }
    }
    rows(run, items, ctx, order)
}

/// The split-local steps, and those from the first cross-split stage on.
fn local_and_streaming(pipeline: &BoundPipeline) -> (&[Step], &[Step]) {
    let steps = &pipeline.root.steps;
    // A `shard` behind a sampling source divides its rows in the order in which they are drawn.
    let sampled = matches!(pipeline.root.kind, BranchKind::Sample { .. });
    let drawn = |s: &Step| sampled && matches!(s, Step::Shard(shard) if shard.stats.is_some());
    // The rows of jobs that share are those above the checks of a stream stage, which the other jobs do not have.
    let first_stream =
        steps.iter().position(|s| is_stream(s) || is_check(s) || drawn(s)).unwrap_or(steps.len());
    steps.split_at(first_stream)
}

/// The numbers by which stages behind the first cross-split stage draw; none if no shard is above it. `of_task`: the number of
/// shards, and the task's own.
pub(super) fn shard_places(pipeline: &BoundPipeline, of_task: Option<(u64, u64)>) -> Option<ShardPlaces> {
    let (local, streaming) = local_and_streaming(pipeline);
    let numbers = |step: &Step| match step {
        Step::Shard(shard) if shard.planned => Some(None),
        // A task without the numbers of a shard gives no row.
        Step::Shard(shard) => shard.numbers.resolve(of_task).map(Some),
        _ => None,
    };
    let shards: Vec<_> = local.iter().filter_map(numbers).collect();
    // Stages keep the positions at which they are written, and none passes a cross-split stage.
    let position = |step: &Step| if let Step::Rows(stage) = step { Some(stage.position) } else { None };
    let from = streaming.iter().filter_map(position).min()?;
    (!shards.is_empty()).then(|| ShardPlaces::new(from, shards))
}

/// Passes on the ends of every `per` repetitions of the source: those of all that a `repeat` makes of its input. `is_last`: nothing
/// below restarts, and no end is passed on.
fn ends_of_groups(items: Items, per: u64, is_last: bool) -> Items {
    let passes = move |item: &caju_types::Result<Item>| match item {
        Ok(Item::EndOfRepetition(end)) => !is_last && end.ends_group_of(per),
        _ => true,
    };
    items.filter(move |item| std::future::ready(passes(item))).boxed()
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
    matches!(step, Step::Stream { .. } | Step::Repeat(_))
}

fn is_random(step: &Step) -> bool {
    matches!(step, Step::Rows(stage) if stage.is_random())
}

fn is_check(step: &Step) -> bool {
    matches!(step, Step::Rows(stage) if matches!(stage.op, RowOp::Check(_)))
}

/// Chains the split-local stages. Where ordinals change above a random stage, chunks pass one by one, in order, to be
/// renumbered; everything between such places runs in parallel.
///
/// Below a shard, rows keep the ordinals that they have without it, and draw the same. Rows that a filter left keep those of the
/// source there: if they were counted, each number of shards would have other draws, and all shards the same. So rows are counted
/// above a shard, and below it only the copies of a row are numbered.
fn local_part(
    steps: &[Step],
    mut items: Items,
    ctx: &Arc<TaskContext>,
    (cache, sharing): (&Arc<TaskCache>, Option<&Arc<Flights>>),
    ordered: bool,
) -> Items {
    let order = order_of(steps, ctx, ordered, sharing.is_some());
    let mut segment: Vec<Arc<RowStage>> = Vec::new();
    let (mut dirty, mut gaps, mut repeats) = (false, false, false);
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Shard(shard) => {
                items = rows(std::mem::take(&mut segment), items, ctx, order);
                // A planned shard goes by the ordinals of the source, which no stage above it changes.
                if dirty && (repeats || !gaps) && !shard.planned && steps[at..].iter().any(is_random) {
                    items = if gaps { number_copies(items) } else { renumber(items) };
                    (dirty, repeats) = (false, false);
                }
                items = sharded(*shard, items, ctx);
                gaps = true;
            }
            Step::Rows(stage) => {
                if stage.is_random() && dirty && (repeats || !gaps) {
                    items = rows(std::mem::take(&mut segment), items, ctx, order);
                    items = if gaps { number_copies(items) } else { renumber(items) };
                    (dirty, repeats) = (false, false);
                }
                dirty |= stage.changes_ordinals() || ctx.skips();
                repeats |= stage.repeats_rows();
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
                items = by_split(at_set(*hint, false, items, cache));
            }
            Step::Hint(hint) => {
                items = rows(std::mem::take(&mut segment), items, ctx, order);
                // Nothing is stored below a shard: rows draw there as if the hint were absent.
                items = at_hint(*hint, dirty && !gaps, items, cache);
                if let Some(sharing) = sharing {
                    items = at_sharing_point(*hint, items, sharing);
                }
                (dirty, repeats) = (dirty && gaps, repeats && gaps);
            }
            _ => {}
        }
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
            match &mut item {
                Item::Chunk(chunk) => numbering.renumber(chunk),
                Item::EndOfSplit(split) => numbering.end(*split),
                _ => {}
            }
            Ok(item)
        })
        .boxed()
}

/// Numbers the rows that stages below a shard repeated.
fn number_copies(items: Items) -> Items {
    let mut numbers = CopyNumbers::default();
    items
        .map(move |item| {
            let mut item = item?;
            match &mut item {
                Item::Chunk(chunk) => numbers.renumber(chunk),
                Item::EndOfSplit(split) => numbers.end(*split),
                _ => {}
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
