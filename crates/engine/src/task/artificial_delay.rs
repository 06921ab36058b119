//! Runs the artificial stages `sleep` and `burn` over the stream of a task.

use std::sync::Arc;

use caju_pipeline::Cost;
use caju_runtime::{Tasks, caught, channel};
use caju_types::Result;
use caju_wire::Elements;
use futures::stream::{self, StreamExt};
use parking_lot::Mutex;

use super::concurrent::rows_within;
use super::{Item, Items};
use crate::context::TaskContext;
use crate::row::artificial_delay;

/// Computes the items on a task of their own: one item is ready while the next one is computed. Without that a stage
/// that waits without using a CPU would stall all stages above it.
fn readahead(mut items: Items) -> Items {
    const NAME: &str = "the stages above a slow one";
    let (sender, receiver) = channel(NAME, 1);
    let running = Tasks::new().spawn(NAME, async move {
        let passing = async {
            while let Some(item) = items.next().await {
                sender.send(item?).await?;
            }
            Ok(())
        };
        let outcome = caught(NAME, passing).await.and_then(|passed| passed);
        sender.end(outcome).await;
    });
    stream::unfold((receiver, running), |(mut receiver, running)| async move {
        let item = receiver.recv().await?;
        Some((item, (receiver, running)))
    })
    .boxed()
}

/// Delays every chunk by the cost of its rows. Rows that take long leave in slices.
///
/// The delays run on a task of their own. All such stages of a worker take turns. A stage below that did not poll the stream
/// while this one has the turn would stop the others for ever.
pub(super) fn simulate_cost(
    items: Items,
    ctx: &Arc<TaskContext>,
    cost: Cost,
    burn: bool,
    stats: usize,
) -> Items {
    let ctx = Arc::clone(ctx);
    let (slowdown, late) = (ctx.slowdown, Arc::new(Mutex::default()));
    let delayed = readahead(items)
        .flat_map(move |item| stream::iter(slices(item, cost, slowdown)))
        .then(move |item| {
            let (ctx, late) = (Arc::clone(&ctx), Arc::clone(&late));
            async move {
                let item = item?;
                if let Item::Chunk(chunk) = &item {
                    let units = match &chunk.elements {
                        Elements::Rows => 1,
                        Elements::Lengths(l) => l.len(),
                    };
                    artificial_delay(&ctx, &late, cost, burn, chunk.rows(), units, stats).await?;
                    ctx.stats.stage(stats).moved(chunk.rows(), chunk.rows(), chunk.bytes());
                }
                Ok(item)
            }
        })
        .boxed();
    readahead(delayed)
}

/// The rows of a chunk, in slices if they take long together: rows whose delay is over leave before the others are delayed.
fn slices(item: Result<Item>, cost: Cost, slowdown: u32) -> Vec<Result<Item>> {
    let (Ok(Item::Chunk(chunk)), Cost::PerRow(per_row)) = (&item, cost) else { return vec![item] };
    let all = chunk.rows();
    let rows = rows_within(per_row.saturating_mul(slowdown).as_secs_f64(), all);
    if chunk.elements != Elements::Rows || rows >= all {
        return vec![item];
    }
    let slice = |at: usize| Ok(Item::Chunk(chunk.slice_rows(at, rows.min(all - at))));
    (0..all).step_by(rows.max(1)).map(slice).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use caju_wire::{Chunk, Run};

    use super::super::EndOfRepetition;
    use super::*;

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
    fn rows_that_take_long_leave_one_by_one_and_others_together() {
        let starts = |per_row: u64, slowdown| {
            let cost = Cost::PerRow(Duration::from_millis(per_row));
            let slices = slices(Ok(Item::Chunk(chunk())), cost, slowdown);
            let start = |s: &Result<Item>| match s {
                Ok(Item::Chunk(c)) => (c.runs[0].start, c.rows()),
                _ => panic!("rows"),
            };
            slices.iter().map(start).collect::<Vec<_>>()
        };
        assert_eq!(starts(1, 1), [(0, 3)]);
        assert_eq!(starts(2000, 1), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(starts(5, 10), [(0, 1), (1, 1), (2, 1)]);
        assert_eq!(starts(0, 1), [(0, 3)]);
    }

    #[tokio::test]
    async fn what_is_made_ahead_ends_only_when_it_has_ended() {
        let good = || stream::iter([Ok(Item::Chunk(chunk())), Ok(Item::EndOfSplit(0))]);
        assert_eq!(readahead(good().boxed()).collect::<Vec<_>>().await.len(), 2);
        let broken = good().chain(stream::once(async {
            if true {
                panic!("above")
            } else {
                Ok(Item::EndOfRepetition(EndOfRepetition { ended: 0, next: Some(1) }))
            }
        }));
        let got = errors(readahead(broken.boxed())).await;
        assert!(got.len() == 1 && got[0].contains("above"), "{got:?}");
        let failed = good().chain(stream::iter([Err(caju_types::Error::data_loss("damaged"))]));
        assert_eq!(errors(readahead(failed.boxed())).await, ["damaged"]);
    }
}
