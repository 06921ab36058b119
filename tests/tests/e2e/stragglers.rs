//! A worker without progress at the end of an epoch, long before it counts as lost.

use std::time::{Duration, Instant};

use caju_tests::epoch_end::{Measured, Setup};
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

/// `--num-consumers`: a worker without progress at the end of an epoch delays consumers no longer than other readers, and
/// they have equally many elements.
#[test]
fn the_last_splits_of_a_slow_worker_are_taken_over_in_jobs_with_consumers() {
    let timeout = format!("{}s", WORKER_TIMEOUT.as_secs());
    let cluster = Cluster::start_with(3, &["--worker-timeout", &timeout, "--straggler-factor", "2"], &[]);
    let mut p =
        Pipeline::of(json!({ "csv": { "path": "*.csv" } }), json!([{ "sleep": { "per_row": "5ms" } }]));
    for file in 0..60 {
        let rows: String = (0..10).map(|row| format!("{}\n", file * 10 + row)).collect();
        p = p.with_file(&format!("{file:02}.csv"), format!("id\n{rows}").as_bytes());
    }
    let wanted = p.report(&[]);
    let consumer = |index: &str, report: &str| {
        let more = ["--job", "train", "--num-consumers", "2", "--consumer-index", index, "--report", report];
        cluster.start_read(&p, &more)
    };
    let readers = [consumer("0", "0.json"), consumer("1", "1.json")];
    cluster.wait_for_status("splits of every worker", |s| {
        let job = s["jobs"].as_array()?.first()?;
        (job["splits_leased"].as_u64()? >= 12).then_some(())
    });
    cluster.workers[0].process.signal("STOP");
    for reader in readers {
        reader.wait_at_most(WORKER_TIMEOUT / 2).expect_code(0);
    }
    cluster.workers[0].process.signal("CONT");
    let reports = ["0.json", "1.json"].map(|name| Report::load(&p.folder().join(name)));
    assert_eq!(reports.each_ref().map(|r| r.rows()[0]), [300, 300]);
    let checksum = |r: &Report| u128::from_str_radix(&r.checksums()[0], 16).unwrap();
    let sum = reports.iter().fold(0, |sum: u128, r| sum.wrapping_add(checksum(r)));
    assert_eq!(sum, checksum(&wanted), "every row once");
    cluster.stop();
}

/// `--slowdown`, `--straggler-factor`: with one of three workers at a twentieth of the speed an epoch is much shorter if the
/// others take its last splits over. Both epochs run here and now, so the comparison holds on a busy machine.
#[test]
fn a_slow_worker_costs_little_if_others_take_its_last_splits_over() {
    let setup = |straggler_factor| Setup {
        fast: 2,
        slowdown: Some(20),
        files: 20,
        rows_per_file: 20,
        per_row: Duration::from_millis(10),
        straggler_factor,
    };
    let (alone, helped) = (setup(0).measure(), setup(2).measure());
    // A split takes the slow worker 4 s, and two of them are with it at the end.
    assert!(alone.wall >= Duration::from_secs(4), "{alone:?}");
    assert!(helped.wall < alone.wall.mul_f64(0.9), "{helped:?} is not much shorter than {alone:?}");
}

/// Measures an epoch until it is as wanted, three times at most: other work on the machine only makes it longer.
#[track_caller]
fn assert_reached(setup: &Setup, is_wanted: impl Fn(&Measured) -> bool) {
    let mut missed = Vec::new();
    for _ in 0..3 {
        let measured = setup.measure();
        if is_wanted(&measured) {
            return;
        }
        missed.push(measured);
    }
    panic!("{setup:?} gave {missed:?}");
}

/// A split of one second takes the slow worker ten, as long as the whole epoch should last.
#[test]
fn one_of_four_workers_at_a_tenth_of_the_speed_costs_little() {
    /// Beginning and end of an epoch, of debug builds on a machine with other work.
    const ALLOWANCE: Duration = Duration::from_secs(1);
    let setup = Setup {
        fast: 3,
        slowdown: Some(10),
        files: 31,
        rows_per_file: 100,
        per_row: Duration::from_millis(10),
        straggler_factor: 3,
    };
    assert_reached(&setup, |m| m.wall <= m.ideal.mul_f64(1.3) + ALLOWANCE);
}

#[test]
fn the_last_hundredth_of_an_epoch_is_as_short_with_eight_workers_as_with_one() {
    const ROWS_PER_SPLIT: u32 = 100;
    let per_row = Duration::from_millis(10);
    let setup = |workers: usize| Setup {
        fast: workers,
        slowdown: None,
        files: 8 * workers,
        rows_per_file: ROWS_PER_SPLIT as usize,
        per_row,
        straggler_factor: 3,
    };
    // A split of one second, and a second for nine debug builds on a machine with other work. A worker that had three of the last
    // splits for itself, while the others are idle, would take longer.
    let allowance = per_row * ROWS_PER_SPLIT + Duration::from_secs(1);
    assert_reached(&setup(1), |m| m.tail <= allowance);
    assert_reached(&setup(8), |m| m.tail <= allowance);
}
