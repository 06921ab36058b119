//! `shard` above all cross-split stages: rows pass in the order of their splits, and splits stay apart.

use std::sync::Arc;

use caju_types::{Error, Result};
use caju_wire::Chunk;
use futures::stream::{self, StreamExt};

use super::{Item, Items};
use crate::bind::ShardStep;
use crate::context::TaskContext;
use crate::stream::{Shard, only};

/// The state of a `shard` that counts elements.
///
/// # Errors
/// `InvalidArgument` if its numbers come from the processing mode `hint`, and the task runs in another one.
pub(super) fn shard_stage(shard: ShardStep, ctx: &TaskContext) -> Result<Shard> {
    let Some((num_shards, index)) = shard.numbers.resolve(ctx.shard) else {
        return Err(Error::invalid(
            "`shard` with `HINT` needs processing mode `hint`; take that mode, or give `shard` numbers",
        ));
    };
    Ok(Shard::new(num_shards, index))
}

/// The rows of a shard. They keep their ordinals.
pub(super) fn sharded(shard: ShardStep, items: Items, ctx: &Arc<TaskContext>) -> Items {
    let mut counting = match shard_stage(shard, ctx) {
        Ok(stage) => stage,
        Err(e) => return stream::iter([Err(e)]).boxed(),
    };
    let ctx = Arc::clone(ctx);
    items
        .filter_map(move |item| {
            let out = match item {
                Ok(Item::Chunk(chunk)) => {
                    let counters = shard.stats.map(|stats| ctx.stats.stage(stats));
                    let mut select = || match shard.planned {
                        true => planned(&chunk, &ctx),
                        false => counting.select(&chunk),
                    };
                    let kept = match &counters {
                        Some(counters) => counters.timed(&mut select),
                        None => select(),
                    };
                    if let (Some(counters), Ok(kept)) = (counters, &kept) {
                        counters.moved(chunk.rows(), kept.rows(), kept.bytes());
                    }
                    kept.map(|kept| (kept.rows() > 0).then_some(Item::Chunk(kept))).transpose()
                }
                Ok(Item::EndOfRepetition(ended)) => {
                    counting.restart();
                    Some(Ok(Item::EndOfRepetition(ended)))
                }
                other => Some(other),
            };
            std::future::ready(out)
        })
        .boxed()
}

/// The rows that the splits of a chunk were leased for.
fn planned(chunk: &Chunk, ctx: &TaskContext) -> Result<Chunk> {
    let mut strides: Vec<_> = chunk.runs.iter().map(|r| (r.split, ctx.stride_of(r.split))).collect();
    strides.dedup_by_key(|(split, _)| *split);
    only(chunk, |(split, ordinal), _| {
        let stride = strides.iter().find(|(s, _)| *s == split).and_then(|(_, stride)| *stride);
        stride.is_none_or(|s| s.has(ordinal))
    })
}
