//! What probes cost the task that they run beside.

use std::time::Instant;

use caju_engine::{LeasedSplit, TaskOptions, run_task};
use caju_runtime::{CpuPool, SystemClock};

use crate::common::Fixed;
use crate::rows::{Pair, cache_with, place};

/// Never more than 3 % of the time that the task's threads had so far, but for the probe at hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_keep_within_their_share() {
    let yaml = "source: { range: { start: 0, end: 98304 } }\nsteps:\n  - with_columns: { t: \"lpad(cast(id as varchar), 500, 'x')\" }\n  \
                - autocache: a\n  - with_columns: { u: \"concat(t, 'y')\" }\n  - autocache: b\n  - burn: { per_row: 30us }\n  - batch: 100\n";
    let pair = Pair::yaml(yaml).await;
    let leases = (0u64..).zip(&pair.splits).map(|(i, s)| LeasedSplit::new(i, s.clone())).collect();
    let mut options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
    options.cache = Some(cache_with(&place("probes"), Default::default()).await);
    options.probe = true;
    options.batch_rows = 500;
    let mut task = run_task(&pair.kept, Box::new(Fixed(leases)), options);
    let (start, mut tries) = (Instant::now(), 0);
    while let Some(chunk) = task.next().await {
        chunk.unwrap();
        let elapsed = start.elapsed().as_secs_f64();
        let probes = task.findings().unwrap().probes;
        let spent: f64 = probes.iter().map(|p| p.probe.spent_cpu_s).sum();
        let last = probes.last().map_or(0.0, |p| p.probe.spent_cpu_s);
        assert!(spent - last <= 0.03 * 2.0 * elapsed, "{spent} s of CPU in {elapsed} s: {probes:?}");
        tries = probes.len();
    }
    assert!(tries >= 3, "the test shows nothing: {tries} probes");
}
