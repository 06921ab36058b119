//! Running the stages over the stream of elements: each takes chunks in, gives chunks out, and is counted.

use std::sync::Arc;

use caju_runtime::{budget, catch};
use caju_types::{Error, Result, format_bytes};
use caju_wire::Chunk;
use futures::stream::{self, StreamExt};

use super::shard::shard_stage;
use super::{Item, Items};
use crate::bind::{ShardStep, StreamOp};
use crate::context::TaskContext;
use crate::stats::TaskStats;
use crate::stream::{
    Batch, BatchEnd, Bucket, Flow, Shuffle, Skip, StreamStage, Take, Unbatch, WaitLimit, max_buffer_memory,
};

/// Runs a cross-split stage over the stream of elements. With `restarts`, the end of a repetition empties it.
pub(super) fn run_stream_op(
    op: &StreamOp,
    stats: usize,
    items: Items,
    ctx: &Arc<TaskContext>,
    restarts: bool,
) -> Items {
    let stage = Counted::new(stream_stage(op, ctx), ctx, stats, holds(op));
    let place = ctx.stats.stage(stats).place();
    run_stream_stage(Box::new(stage), place, items, restarts, &ctx.stats)
}

/// Runs a `shard` over the stream of elements.
pub(super) fn run_shard(shard: ShardStep, items: Items, ctx: &Arc<TaskContext>, restarts: bool) -> Items {
    const PLACE: &str = "the shards of processing mode `data`";
    let stage = match shard_stage(shard, ctx) {
        Ok(stage) => stage,
        Err(e) => return stream::iter([Err(e)]).boxed(),
    };
    match shard.stats {
        Some(stats) => {
            let place = ctx.stats.stage(stats).place();
            let stage = Counted::new(Box::new(stage), ctx, stats, false);
            run_stream_stage(Box::new(stage), place, items, restarts, &ctx.stats)
        }
        None => run_stream_stage(Box::new(stage), PLACE.into(), items, restarts, &ctx.stats),
    }
}

fn stream_stage(op: &StreamOp, ctx: &TaskContext) -> Box<dyn StreamStage> {
    match op {
        StreamOp::Shuffle { place, buffer, max_bytes, seed, position } => {
            let (seed, max_memory) = (ctx.stream_seed(*position, *seed), max_buffer_memory(ctx.chunk_bytes));
            Box::new(Shuffle::new(place.clone(), *buffer, *max_bytes, max_memory, seed))
        }
        StreamOp::Take(n) => Box::new(Take::new(*n)),
        StreamOp::Skip(n) => Box::new(Skip::new(*n)),
        StreamOp::Batch(b) => {
            let end = match (b.merge, b.drop_remainder) {
                (true, _) => BatchEnd::Merge,
                (false, true) => BatchEnd::Drop,
                (false, false) => BatchEnd::Keep,
            };
            let argument = if b.padding.is_some() { "padded_batch" } else { "batch" };
            let limit = WaitLimit { place: b.place.clone(), max_bytes: ctx.chunk_bytes, argument };
            Box::new(Batch::new(b.size, end, b.padding.clone(), limit))
        }
        StreamOp::Bucket { place, length, boundaries, sizes, drop_remainder, padding } => {
            let argument = "batch_sizes";
            let limit = WaitLimit { place: place.clone(), max_bytes: ctx.chunk_bytes, argument };
            Box::new(Bucket::new(
                (**length).clone(),
                limit,
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
    /// The bytes that it holds, as its task knows them.
    held_bytes: u64,
}

impl Counted {
    fn new(stage: Box<dyn StreamStage>, ctx: &Arc<TaskContext>, stats: usize, holds: bool) -> Self {
        Self { stage, ctx: Arc::clone(ctx), stats, holds, held_bytes: 0 }
    }

    /// Compares what all stages of the task hold with their common bound: each has one of its own, and there may be many.
    fn check_held(&mut self) -> Result<()> {
        let held = self.stage.held_bytes() as u64;
        let all = self.ctx.stages_hold(self.held_bytes, held);
        self.held_bytes = held;
        let most = max_buffer_memory(self.ctx.chunk_bytes) as u64;
        if all <= most || all == held {
            return Ok(());
        }
        Err(Error::exhausted(format!(
            "{}: the stages of the pipeline hold rows that take {}, {} of them here, and {} is the most that this server gives \
             them together; use smaller shuffle buffers and batches, or raise --chunk-memory",
            self.ctx.stats.stage(self.stats).place(),
            format_bytes(all),
            format_bytes(held),
            format_bytes(most),
        )))
    }

    fn count<T>(
        &mut self,
        rows: usize,
        out: &mut Vec<Chunk>,
        work: impl FnOnce(&mut dyn StreamStage, &mut Vec<Chunk>) -> Result<T>,
    ) -> Result<T> {
        let counters = self.ctx.stats.stage(self.stats);
        let before = out.len();
        let done = counters.timed(|| budget::scope(self.ctx.chunk_bytes, || work(&mut *self.stage, out)));
        let new = || out.iter().skip(before);
        let rows_out = new().map(Chunk::rows).sum();
        counters.moved(rows, rows_out, new().map(Chunk::bytes).sum());
        if self.holds {
            self.ctx.stats.held(rows, rows_out);
            let done = done?;
            return self.check_held().map(|()| done);
        }
        done
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.ctx.stages_hold(self.held_bytes, 0);
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

pub(super) fn run_stream_stage(
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
                    // The next repetition counts from its beginning, so the rest of this one is only dropped.
                    r.over = r.step(|stage| stage.push(chunk, &mut out))? == Flow::Done && !r.restarts;
                }
                Some(Item::EndOfRepetition(ended)) => {
                    if r.restarts {
                        r.step(|stage| stage.flush(&mut out))?;
                    }
                    end = Some(Item::EndOfRepetition(ended));
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
    use caju_pipeline::OnError;
    use caju_proto::v1::StageKind;
    use caju_runtime::{CpuPool, SystemClock};
    use caju_wire::{QueueMemory, Run};

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

    #[test]
    fn the_stages_of_a_pipeline_have_a_bound_together() {
        let stats = Arc::new(TaskStats::new([("4.shuffle".to_string(), StageKind::Serial)], true));
        let (pool, clock) = (CpuPool::new(1).unwrap(), SystemClock::shared());
        let ctx = TaskContext::new(1, 0, None, OnError::Fail, pool, clock, stats, Arc::default());
        let ctx = Arc::new(ctx.within(1 << 20, (1 << 20, QueueMemory::unlimited())));
        let op = StreamOp::Shuffle {
            place: "steps[4].shuffle".into(),
            buffer: 100,
            max_bytes: 1 << 20,
            seed: None,
            position: 0,
        };
        let push = || {
            let mut stage = Counted::new(stream_stage(&op, &ctx), &ctx, 0, true);
            stage.push(chunk(), &mut Vec::new()).map(|_| ctx.stages_hold(0, 0))
        };
        let held = push().unwrap();
        assert!(held > 24, "three rows of 8 bytes, and what is noted of each: {held}");
        assert_eq!(ctx.stages_hold(0, 0), 0, "a stage that is gone holds nothing");
        let most = max_buffer_memory(1 << 20) as u64;
        ctx.stages_hold(0, most - held);
        push().unwrap();
        ctx.stages_hold(0, 1);
        let e = push().unwrap_err();
        assert_eq!(e.kind(), caju_types::ErrorKind::ResourceExhausted);
        assert!(e.message().starts_with("steps[4].shuffle: the stages of the pipeline hold"), "{e}");
        assert!(
            e.message().contains("smaller shuffle buffers") && e.message().contains("--chunk-memory"),
            "{e}"
        );
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
