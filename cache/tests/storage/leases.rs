//! The lease of a process is gone when the process has ended.

use std::time::Duration;

use crate::common::*;
use caju_cache::{CacheOptions, Encoding, PutOutcome};
use caju_runtime::SystemClock;
use caju_testkit::faulty::{Fault, Faults, Op, Rule};

async fn leases(root: &str) -> usize {
    objects(root).await.iter().filter(|name| name.contains("writers/")).count()
}

/// A process reads, and ends while its lease is being written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_in_flight_does_not_outlive_the_lease() {
    let root = memory_root();
    let writer = open(&root).await;
    let meta = put(&writer.snapshot(&fp(1)), split(1), &[numbers(0..10)], encoding("arrow/none")).await;
    writer.close(Duration::from_secs(5)).await.unwrap();
    assert_eq!(leases(&root).await, 0);

    let faults = Faults::new();
    let options = CacheOptions { retry_base: Duration::from_millis(300), ..CacheOptions::default() };
    let reader = open_faulty(&root, &faults, options, SystemClock::shared()).await.unwrap();
    // The store carries the write out, but the answer is lost: the writer tries again.
    faults.add(Rule::new(Op::Put, Fault::LostAnswer).on("writers/"));
    read(&reader.snapshot(&fp(1)), &meta).await.unwrap();
    faults.wait_fired(1).await;
    reader.close(Duration::from_secs(5)).await.unwrap();
    assert_eq!(leases(&root).await, 0);
}

/// A process that was killed long ago is not taken for a live one, even by a short job that finds its claims.
#[tokio::test]
async fn splits_of_a_writer_that_died_long_ago_are_taken_over_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let slow = CacheOptions { lease_ttl: Duration::from_secs(36_000), ..CacheOptions::default() };
    let dead = open_with(root, slow).await;
    let name = dead.writer_id().to_owned();
    let rows = numbers(0..10);
    let part = writer(&dead.snapshot(&fp(1)), split(1), &rows.schema(), encoding("arrow/none")).await;
    // As if the process was killed: nothing is released, and the lease is not renewed.
    std::mem::forget(part);
    std::mem::forget(dead);
    let living = open(root).await;
    let outcome =
        living.snapshot(&fp(1)).put(split(1), &describe(), rows.schema(), Encoding::default()).await;
    assert!(matches!(outcome.unwrap(), PutOutcome::Busy { .. }), "its lease is fresh");

    let lease = folder.path().join(format!("v1/writers/{name}.json"));
    let hour_ago = std::fs::metadata(&lease).unwrap().modified().unwrap() - Duration::from_secs(3600);
    std::fs::File::open(&lease).unwrap().set_modified(hour_ago).unwrap();
    let later = open(root).await;
    let outcome = later.snapshot(&fp(1)).put(split(1), &describe(), rows.schema(), Encoding::default()).await;
    assert!(matches!(outcome.unwrap(), PutOutcome::Writer(_)), "the store says that nobody renews the lease");
}
