//! The lease of a process that ends is gone when it has ended.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::time::Duration;

use caju_cache::CacheOptions;
use caju_runtime::SystemClock;
use caju_testkit::faulty::{Fault, Faults, Op, Rule};
use common::*;

async fn leases(root: &str) -> usize {
    objects(root).await.iter().filter(|name| name.contains("writers/")).count()
}

/// A process reads, and ends while what says so is on its way to the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_on_its_way_does_not_outlive_the_lease() {
    let root = memory_root();
    let writer = open(&root).await;
    let meta = put(&writer.snapshot(&fp(1)), split(1), &[numbers(0..10)], encoding("arrow/none")).await;
    writer.close(Duration::from_secs(5)).await.unwrap();
    assert_eq!(leases(&root).await, 0);

    let faults = Faults::new();
    let options = CacheOptions { retry_base: Duration::from_millis(300), ..CacheOptions::default() };
    let reader = open_faulty(&root, &faults, options, SystemClock::shared()).await.unwrap();
    // It is carried out, and the writer does not know: it tries again a little later.
    faults.add(Rule::new(Op::Put, Fault::LostAnswer).on("writers/"));
    read(&reader.snapshot(&fp(1)), &meta).await.unwrap();
    faults.wait_fired(1).await;
    reader.close(Duration::from_secs(5)).await.unwrap();
    assert_eq!(leases(&root).await, 0);
}
