//! A worker that stands still at the end of an epoch, long before it counts as lost.

use std::time::{Duration, Instant};

use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline};
use serde_json::json;

/// Longer than the test may take: the epoch does not end because the worker was lost.
const WORKER_TIMEOUT: Duration = Duration::from_secs(90);

/// `--straggler-factor`: idle workers take the last splits of a slow one over, and every row comes once.
#[test]
fn idle_workers_take_over_the_last_splits_of_a_slow_one() {
    let timeout = format!("{}s", WORKER_TIMEOUT.as_secs());
    let cluster = Cluster::start_with(3, &["--worker-timeout", &timeout, "--straggler-factor", "2"], &[]);
    let mut p = Pipeline::of(
        json!({ "csv": { "path": "*.csv" } }),
        json!([{ "sleep": { "per_row": "5ms" } }, { "batch": 7 }]),
    );
    for file in 0..60 {
        let rows: String = (0..10).map(|row| format!("{}\n", file * 10 + row)).collect();
        p = p.with_file(&format!("{file:02}.csv"), format!("id\n{rows}").as_bytes());
    }
    let wanted = p.report(&[]);
    let began = Instant::now();
    let reader = cluster.start_read(&p, &["--job", "train", "--report", "read.json"]);
    cluster.wait_for_status("splits of every worker", |s| {
        let job = s["jobs"].as_array()?.first()?;
        (job["splits_leased"].as_u64()? >= 12).then_some(())
    });
    cluster.workers[0].process.signal("STOP");
    reader.wait_at_most(WORKER_TIMEOUT / 2).expect_code(0);
    assert!(began.elapsed() < WORKER_TIMEOUT / 2, "it took {:?}", began.elapsed());
    let report = Report::load(&p.folder().join("read.json"));
    assert_eq!(report.rows(), [600]);
    assert_eq!(report.checksums(), wanted.checksums());
    cluster.workers[0].process.signal("CONT");
    // The worker that woke up is a worker like any other again.
    assert_eq!(cluster.report(&p, &["--job", "again"]).checksums(), wanted.checksums());
    cluster.stop();
}
