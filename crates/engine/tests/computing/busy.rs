//! What a task reports of its rate: rows where they are computed, and the time in which it works.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Fixed, bound, splits};
use caju_engine::{BoundPipeline, LeasedSplit, TaskOptions, TaskRun, TaskStats, run_task};
use caju_runtime::{CpuPool, SystemClock};

async fn leases(yaml: &str) -> (Arc<BoundPipeline>, Vec<LeasedSplit>) {
    let pipeline = bound(yaml).await.unwrap();
    let splits = splits(&pipeline).await.unwrap();
    let leases = (0..).zip(splits).map(|(index, split)| LeasedSplit::new(index, split)).collect();
    (pipeline, leases)
}

fn start(pipeline: &Arc<BoundPipeline>, leases: Vec<LeasedSplit>) -> (TaskRun, Arc<TaskStats>) {
    let options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
    let task = run_task(pipeline, Box::new(Fixed(leases.into())), options);
    let counters = task.counters();
    (task, counters)
}

/// After the loss of a worker another one computes rows that readers already have, and gives out the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_readers_have_already_count_as_computed() {
    let (pipeline, mut leases) =
        leases("source: { range: { start: 0, end: 5000 } }\nsteps: [{ with_columns: { x: id + 1 } }]").await;
    let all = leases.len() as u64;
    assert!(all > 1, "{all} splits");
    for lease in &mut leases {
        lease.done = std::iter::once((10, 700)).collect();
    }
    let (mut task, counters) = start(&pipeline, leases);
    let mut rows = 0;
    while let Some(chunk) = task.next().await {
        rows += chunk.unwrap().rows() as u64;
    }
    assert_eq!((rows, counters.busy_rows()), (5000 - 690 * all, 5000));
}

/// A task that begins fills its buffers before it gives out much: these rows are computed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_wait_in_a_buffer_count_as_computed() {
    // 2,000 rows in the shuffle when the first ones leave it, and four elements behind the one that is given out.
    for (steps, least) in
        [("[{ shuffle: 2000 }, { batch: 7 }]", 2000), ("[{ batch: 3000 }, { prefetch: 4 }]", 15_000)]
    {
        let (pipeline, leases) =
            leases(&format!("source: {{ range: {{ start: 0, end: 30000 }} }}\nsteps: {steps}")).await;
        let (mut task, counters) = start(&pipeline, leases);
        let mut rows = task.next().await.unwrap().unwrap().rows();
        let filled = async {
            while counters.busy_rows() < least {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), filled).await;
        assert!(waited.is_ok(), "{rows} rows given out, {} computed of {steps}", counters.busy_rows());
        while let Some(chunk) = task.next().await {
            rows += chunk.unwrap().rows();
        }
        assert_eq!((rows, counters.busy_rows()), (30_000, 30_000), "{steps}");
    }
}

/// While the output is full, the stages compute ahead until their buffers are full, too. The rows come out later, in no time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_in_which_a_task_computes_ahead_counts() {
    let steps = "[{ sleep: { per_row: 5ms } }, { batch: 20 }]";
    let (pipeline, leases) =
        leases(&format!("source: {{ range: {{ start: 0, end: 20000 }} }}\nsteps: {steps}")).await;
    let (mut task, counters) = start(&pipeline, leases);
    let mut rows = 0;
    for _ in 0..15 {
        rows += task.next().await.unwrap().unwrap().rows();
        counters.busy.set_full(true);
        // Long enough to compute as far ahead as the buffers allow: about three slices of 50 ms.
        tokio::time::sleep(Duration::from_millis(400)).await;
        counters.busy.set_full(false);
    }
    let stages = task.stats();
    let asleep_s = stages.iter().find(|s| s.name == "0.sleep").unwrap().busy_s;
    let busy_s = counters.busy.busy().as_secs_f64();
    assert!(
        (0.8 * asleep_s..1.2 * asleep_s + 0.1).contains(&busy_s),
        "{busy_s} s of {asleep_s} s, {rows} rows"
    );
}
