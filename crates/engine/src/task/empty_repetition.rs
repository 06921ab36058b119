//! An endless `repeat` of a pipeline without rows is an error, where one task sees all of it.
//!
//! tf.data ends such a dataset. Here its epoch would never end, because splits are leased for ever and no row arrives.
//!
//! A task decides only what it can know. It must be the single task of the epoch, it must get the splits repetition by
//! repetition, and no stage above may draw at random, so that a repetition without rows means that no repetition has any.

use std::future::ready;
use std::sync::Arc;

use caju_pipeline::StageOp;
use caju_types::{Error, Result};
use futures::stream::StreamExt;

use super::{Item, Items};
use crate::bind::{BoundPipeline, Branch, BranchKind, Step, StreamOp};
use crate::context::TaskContext;

/// Repetitions that must end without a row. The first one may have begun before the task, so the second one decides.
const EMPTY_REPETITIONS: u32 = 2;

/// The index among the steps below the split-local ones above which [`refuse_endless_emptiness`] belongs; none if the task
/// cannot decide. It is the endless `repeat`, or the first `take` or `skip` above it: these count over repetitions.
pub(super) fn watched_step(
    pipeline: &BoundPipeline,
    local: &[Step],
    streaming: &[Step],
    ctx: &TaskContext,
) -> Option<usize> {
    endless_repeat(pipeline)?;
    let sees_all = pipeline.single_task() && !pipeline.shuffles_splits() && ctx.shard.is_none();
    let repeat = streaming.iter().rposition(|s| matches!(s, Step::Repeat(_)))?;
    let counts = |s: &Step| matches!(s, Step::Stream { op: StreamOp::Take(_) | StreamOp::Skip(_), .. });
    let at = streaming.iter().take(repeat).position(counts).unwrap_or(repeat);
    let mut above = local.iter().chain(streaming.iter().take(at));
    let random = above.any(is_random) || has_random_rows(&pipeline.root);
    (sees_all && !random).then_some(at)
}

/// The index of the stage that repeats without end.
fn endless_repeat(pipeline: &BoundPipeline) -> Option<usize> {
    pipeline.def().stages.iter().position(|s| matches!(s.op, StageOp::Repeat(None)))
}

fn is_random(step: &Step) -> bool {
    matches!(step, Step::Rows(stage) if stage.is_random())
}

/// Whether the rows of the source are drawn, or those of datasets nested in it.
fn has_random_rows(branch: &Branch) -> bool {
    let nested = |child: &Branch| child.steps.iter().any(is_random) || has_random_rows(child);
    matches!(branch.kind, BranchKind::Sample { .. }) || branch.children.iter().any(nested)
}

/// The items, with an error in place of a repetition after repetitions without a row.
pub(super) fn refuse_endless_emptiness(
    items: Items,
    pipeline: &BoundPipeline,
    ctx: &Arc<TaskContext>,
) -> Items {
    let place = endless_repeat(pipeline).map_or_else(|| "repeat".into(), |i| format!("steps[{i}].repeat"));
    let stats = Arc::clone(&ctx.stats);
    let (mut has_rows, mut ended) = (false, 0u32);
    let checked = move |item: Result<Item>| {
        match &item {
            Ok(Item::Chunk(chunk) | Item::Entry { chunk, .. }) => has_rows |= chunk.rows() > 0,
            // Only a mark of the next repetition shows that the last one was not cut short.
            Ok(Item::EndOfSplit(_) | Item::EndOfRepetition(_)) if !has_rows && ended >= EMPTY_REPETITIONS => {
                // Rows that readers have already count, too.
                has_rows = stats.has_left_out();
                if !has_rows {
                    return ready(Err(without_rows(&place)));
                }
            }
            Ok(Item::EndOfRepetition(_)) => ended += u32::from(!has_rows),
            _ => {}
        }
        ready(item)
    };
    items.then(checked).boxed()
}

fn without_rows(place: &str) -> Error {
    Error::invalid(format!(
        "{place}: the pipeline above it gives no row, so it would repeat nothing without end: no row of {EMPTY_REPETITIONS} \
         repetitions of all splits arrived; check the filters above it and its source"
    ))
}
