//! Roots that other users or versions created, own, or write concurrently.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use caju_cache::*;
use caju_runtime::SystemClock;
use caju_testkit::faulty::{Fault, Faults, Op, Rule};
use caju_types::ErrorKind;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

fn records(folder: &Path) -> Vec<PathBuf> {
    let parts = folder.join("v1").join(fp(1).to_string()).join("parts");
    let all = std::fs::read_dir(parts).unwrap().map(|e| e.unwrap().path());
    all.filter(|p| p.extension().is_some_and(|e| e == "commit")).collect()
}

/// Tools that open a folder as a data set skip names with `_`. Earlier versions wrote names without it.
#[tokio::test]
async fn records_are_hidden_from_tools_and_those_of_earlier_versions_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let cache = open(root).await;
    let rows = numbers(0..100);
    let meta =
        put(&cache.snapshot(&fp(1)), split(1), std::slice::from_ref(&rows), encoding("arrow/none")).await;
    drop(cache);
    let record = records(folder.path()).remove(0);
    let name = record.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name.starts_with('_'), "{name}");
    std::fs::rename(&record, record.with_file_name(name.trim_start_matches('_'))).unwrap();

    let cache = open(root).await;
    let snapshot = cache.snapshot(&fp(1));
    assert_eq!(snapshot.index().await.unwrap().get(&split(1)), Some(&meta));
    assert_same(&read(&snapshot, &meta).await.unwrap(), &rows);
    let again = snapshot.put(split(1), &describe(), rows.schema(), Encoding::default()).await.unwrap();
    assert!(matches!(again, PutOutcome::Exists(_)), "{again:?}");
    // It is superseded and collected like any other record.
    snapshot.discard(&meta, "a test").await.unwrap();
    let next = put(&snapshot, split(1), std::slice::from_ref(&rows), encoding("arrow/none")).await;
    assert_eq!(next.generation, meta.generation + 2);
    assert!(cache.verify(None).await.unwrap().is_clean());
}

/// A process that may read a root but not write it still reads stored rows.
#[tokio::test]
async fn a_root_that_cannot_be_written_is_read() {
    let root = memory_root();
    let rows = numbers(0..100);
    let owner = open(&root).await;
    let meta =
        put(&owner.snapshot(&fp(1)), split(1), std::slice::from_ref(&rows), encoding("arrow/none")).await;
    owner.close(Duration::from_secs(5)).await.unwrap();
    let before = objects(&root).await;

    let faults = Faults::new();
    for op in [Op::Put, Op::Upload, Op::Delete, Op::Copy] {
        faults.add(Rule::new(op, Fault::Denied).always());
    }
    let reader = open_faulty(&root, &faults, hasty(), SystemClock::shared()).await.unwrap();
    assert!(reader.is_read_only());
    let snapshot = reader.snapshot(&fp(1));
    assert_eq!(snapshot.index().await.unwrap().get(&split(1)), Some(&meta));
    assert_same(&read(&snapshot, &meta).await.unwrap(), &rows);
    assert_eq!(reader.list().await.unwrap().len(), 1);
    assert!(reader.verify(None).await.unwrap().is_clean());
    let tried = faults.fired();
    let refused = snapshot.put(split(2), &describe(), rows.schema(), Encoding::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    assert_eq!(reader.put_failure().unwrap().kind(), ErrorKind::PermissionDenied);
    reader.close(Duration::from_secs(5)).await.unwrap();
    assert_eq!(faults.fired(), tried, "nothing is tried again and again");
    assert_eq!(objects(&root).await, before);
}

/// A writer commits its part and releases its claim while a collection is between its listing and reading claims.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_is_committed_during_a_collection_stays() {
    let root = memory_root();
    let (writing, collecting) = (Faults::new(), Faults::new());
    let (commit, claim) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    writing.add(Rule::new(Op::Put, Fault::Gate(Arc::clone(&commit))).on(".commit"));
    collecting.add(Rule::new(Op::Get, Fault::Gate(Arc::clone(&claim))).on("claims/"));

    let writer_cache = open_faulty(&root, &writing, hasty(), SystemClock::shared()).await.unwrap();
    let snapshot = writer_cache.snapshot(&fp(1));
    let rows = numbers(0..100);
    let mut part = writer(&snapshot, split(1), &rows.schema(), encoding("arrow/none")).await;
    part.write(&rows).await.unwrap();
    let mut finishing = JoinSet::new();
    finishing.spawn(part.finish(facts(100)));
    writing.wait_fired(1).await;

    let options = CacheOptions { orphan_grace: Duration::ZERO, ..hasty() };
    let collector = open_faulty(&root, &collecting, options, SystemClock::shared()).await.unwrap();
    let mut collection = JoinSet::new();
    collection.spawn(async move { collector.gc(false).await });
    collecting.wait_fired(1).await;
    commit.add_permits(1);
    let Committed::Ours(meta) = finishing.join_next().await.unwrap().unwrap().unwrap() else {
        panic!("nobody else writes")
    };
    claim.add_permits(1);
    let collection = collection.join_next().await.unwrap().unwrap().unwrap();
    assert!(collection.objects.iter().all(|(name, ..)| *name != meta.path), "{collection}");
    let fresh = open(&root).await;
    assert_same(&read(&fresh.snapshot(&fp(1)), &meta).await.unwrap(), &rows);
}

/// Only objects of a save are synced to the disk.
#[tokio::test]
async fn parts_of_a_save_are_on_the_disk_when_they_count() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap();
    let stored = async |n| {
        let cache = open(root).await;
        let rows = numbers(0..100);
        put(&cache.snapshot(&fp(1)), split(n), std::slice::from_ref(&rows), encoding("arrow/none")).await;
        cache.counters().snapshot().syncs
    };
    assert_eq!(stored(1).await, 0, "a cache does not wait");
    std::fs::write(folder.path().join("save.json"), "{}").unwrap();
    // The part and its record, each with its folder.
    assert!(stored(2).await >= 4);
}
