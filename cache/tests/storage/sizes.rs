//! Objects of any size in the places of records and parts: they are damaged, and are refused before they are read.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use caju_autocache::PlanRecord;
use caju_cache::*;
use caju_runtime::{Stores, SystemClock};
use caju_testkit::faulty::{Fault, Faults, Op, Rule, faulty_store};
use caju_types::{ErrorKind, Fingerprint};
use object_store::ObjectStoreExt;
use serde_json::json;

/// The size that objects claim to have: 4 TiB. No machine allocates that much.
const CLAIMED: u64 = 1 << 42;
/// The snapshot that has an open set.
const OPEN_SET: u128 = 1;
/// The snapshot that has a complete set.
const WHOLE_SET: u128 = 2;

fn source() -> serde_json::Value {
    json!({"of": "sizes"})
}

fn listing() -> SourceListing {
    let splits = vec![json!({"key": split(0)}).to_string()];
    SourceListing::new(source(), arrow_schema::Schema::empty(), splits)
}

fn save() -> SaveDescription {
    let save = json!({
        "schema": SaveDescription::SCHEMA, "fingerprint": fp(OPEN_SET), "definition": null, "columns": null,
        "arrow_schema": null, "encoding": Encoding::default(), "copies": 1, "state": "finished",
    });
    serde_json::from_value(save).unwrap()
}

/// Adds a part that covers the split to a set of two splits, or of one.
async fn add_to_set(cache: &Arc<Cache>, of: u128, whole: &[u128]) -> SetOutcome {
    let snapshot = cache.snapshot(&fp(of));
    let index = snapshot.index().await.unwrap();
    let attempt = index.get(&split(0)).unwrap().attempt.clone();
    let member = Member { part: split(0), attempt, covers: vec![SplitName(1)], rows: vec![50] };
    let digest = SplitSetDigest::of(whole.iter().copied());
    snapshot.add_to_set("ab", digest, member).await.unwrap()
}

/// Writes a root that has every kind of record. The writer of a split stays alive, with its claim and its lease.
async fn fill(stores: &Stores, root: &str) -> (Arc<Cache>, PartWriter) {
    let cache = open(root).await;
    for of in [OPEN_SET, WHOLE_SET] {
        let snapshot = cache.snapshot(&fp(of));
        put(&snapshot, split(0), &[rich(50, 1)], encoding("arrow/none")).await;
        snapshot.record_job("job");
        let meta = snapshot.index().await.unwrap().get(&split(0)).unwrap().as_ref().clone();
        read(&snapshot, &meta).await.unwrap();
    }
    assert_eq!(add_to_set(&cache, OPEN_SET, &[1, 2]).await, SetOutcome::Open);
    assert_eq!(add_to_set(&cache, WHOLE_SET, &[1]).await, SetOutcome::Complete);
    cache.close(Duration::from_secs(5)).await.unwrap();
    listing().store(stores, root).await.unwrap();
    write_plan_record(&PlanRecord::default(), stores, root, fp(OPEN_SET)).await.unwrap();
    save().replace(stores, root).await.unwrap();
    let cache = open(root).await;
    let (snapshot, schema) = (cache.snapshot(&fp(OPEN_SET)), rich(1, 1).schema());
    let busy = writer(&snapshot, split(9), &schema, Encoding::default()).await;
    (cache, busy)
}

/// Uses everything that reads records. None of it may fail.
async fn use_all(cache: &Arc<Cache>) {
    for of in [OPEN_SET, WHOLE_SET] {
        let snapshot = cache.snapshot(&fp(of));
        snapshot.index().await.unwrap();
        snapshot.set().await.unwrap();
        snapshot.fold().await.unwrap();
        for key in [7, 9] {
            let schema = rich(1, 1).schema();
            let put = snapshot.put(split(key), &describe(), schema, Encoding::default()).await.unwrap();
            if let PutOutcome::Writer(writer) = put {
                writer.abort().await;
            }
        }
        cache.inspect(&fp(of)).await.unwrap();
    }
    assert_eq!(cache.list().await.unwrap().len(), 2);
    cache.verify(None).await.unwrap();
    cache.gc(true).await.unwrap();
    cache.gc(false).await.unwrap();
}

/// A root whose objects with this text in their names claim to be large, and the faults by which they do.
async fn claiming(text: &str) -> (String, Stores, Faults, (Arc<Cache>, PartWriter)) {
    let (root, stores, faults) = (memory_root(), Stores::default(), Faults::new());
    let kept = fill(&stores_of(&root), &root).await;
    let inner = stores_of(&root).resolve(&root).unwrap();
    let faulty = faulty_store(inner.store, faults.clone());
    stores.register(&inner.url.root(), Arc::new(faulty)).unwrap();
    faults.add(Rule::new(Op::Get, Fault::Size(CLAIMED)).on(text).always());
    (root, stores, faults, kept)
}

#[tokio::test]
async fn records_are_refused_by_their_size() {
    for text in [".json", "/manifest-", ".commit", "/claims/", "/set.json", "/sets/", "/uses/", "/writers/"] {
        let (root, stores, faults, _kept) = claiming(text).await;
        let options = CacheOptions { orphan_grace: Duration::ZERO, ..hasty() };
        let cache = Cache::open(&stores, &root, options, SystemClock::shared(), writer_id()).await.unwrap();
        use_all(&cache).await;
        if text == "/sets/" {
            assert_eq!(add_to_set(&cache, OPEN_SET, &[1, 2]).await, SetOutcome::Open);
        }
        assert!(faults.fired() > 0, "{text}");
    }
}

#[tokio::test]
async fn a_large_commit_record_is_a_damaged_one() {
    let (root, stores, _, _kept) = claiming(".commit").await;
    let cache = Cache::open(&stores, &root, hasty(), SystemClock::shared(), writer_id()).await.unwrap();
    let report = cache.verify(None).await.unwrap();
    assert_eq!(report.damaged.len(), 2, "{report}");
    assert!(report.damaged.iter().all(|d| d.object.ends_with(".commit") && d.split == Some(split(0))));
}

#[tokio::test]
async fn a_large_manifest_is_a_damaged_one() {
    let (root, stores, faults, _kept) = claiming("/manifest-").await;
    let cache = Cache::open(&stores, &root, hasty(), SystemClock::shared(), writer_id()).await.unwrap();
    let report = cache.verify(None).await.unwrap();
    assert_eq!(report.damaged.len(), 2, "{report}");
    assert!(report.damaged.iter().all(|d| d.object.contains("/manifest-") && d.split.is_none()));
    // The parts are found by their commit records.
    let snapshot = cache.snapshot(&fp(OPEN_SET));
    assert!(snapshot.index().await.unwrap().contains(&split(0)));
    assert!(faults.fired() > 0);
}

#[tokio::test]
async fn records_outside_snapshots_are_refused_by_their_size() {
    let (root, stores, _, _kept) = claiming(".json").await;
    assert_eq!(SourceListing::load(&stores, &root, &source()).await.unwrap(), None);
    assert_eq!(read_plan_record(&stores, &root, fp(OPEN_SET)).await.unwrap(), None);
    let e = SaveDescription::load(&stores, &root).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DataLoss, "{e}");
    for part in [format!("{root}/save.json"), CLAIMED.to_string(), (256u64 << 20).to_string()] {
        assert!(e.message().contains(&part), "{e}");
    }
}

fn files_below(folder: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// A sparse file takes no disk space, so anybody can make one of any length.
#[tokio::test]
async fn sparse_files_in_the_places_of_records() {
    let folder = tempfile::tempdir().unwrap();
    let (root, stores) = (format!("file://{}", folder.path().display()), Stores::default());
    let kept = fill(&stores, &root).await;
    let mut files = Vec::new();
    files_below(folder.path(), &mut files);
    let mut enlarged = 0;
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "json" || e == "commit")) {
        std::fs::File::options().write(true).open(file).unwrap().set_len(CLAIMED).unwrap();
        enlarged += 1;
    }
    // Per snapshot a manifest, a commit record, a usage record, a set or an announcement. One claim and one lease. Three
    // records outside snapshots.
    assert!(enlarged >= 13, "{files:?}");
    use_all(&open(&root).await).await;
    let repaired = open(&root).await.repair(None).await.unwrap();
    assert!(!repaired.dropped.is_empty(), "{repaired}");
    assert!(open(&root).await.verify(None).await.unwrap().is_clean());
    assert_eq!(SaveDescription::load(&stores, &root).await.unwrap_err().kind(), ErrorKind::DataLoss);
    assert_eq!(read_plan_record(&stores, &root, fp(OPEN_SET)).await.unwrap(), None);
    // A job that lists the source again replaces the listing.
    assert_eq!(SourceListing::load(&stores, &root, &source()).await.unwrap(), None);
    listing().store(&stores, &root).await.unwrap();
    assert_eq!(SourceListing::load(&stores, &root, &source()).await.unwrap(), Some(listing()));
    drop(kept);
}

/// A large object keeps no writer from its place.
#[tokio::test]
async fn writers_go_on_behind_large_objects() {
    let root = memory_root();
    let faults = Faults::new();
    let at = stores_of(&root).resolve(&root).unwrap();
    let of: Fingerprint = fp(OPEN_SET);
    for name in [format!("parts/_{}-1.commit", split(0)), format!("claims/{}-1.json", split(0))] {
        let path = format!("{}/v1/{of}/{name}", at.path);
        at.store.put(&object_store::path::Path::from(path.as_str()), "{}".into()).await.unwrap();
        faults.add(Rule::new(Op::Get, Fault::Size(CLAIMED)).on(&path).always());
    }
    let cache = open_faulty(&root, &faults, hasty(), SystemClock::shared()).await.unwrap();
    let snapshot = cache.snapshot(&of);
    let meta = put(&snapshot, split(0), &[rich(50, 1)], encoding("arrow/none")).await;
    assert_eq!(meta.generation, 2);
    assert_same(&read(&snapshot, &meta).await.unwrap(), &rich(50, 1));
}

/// Opening a pipe for reading waits for a process that writes to it.
#[tokio::test]
async fn a_pipe_in_the_place_of_a_part_is_refused() {
    for mmap in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let cache = open_with(root, CacheOptions { mmap, memory_tier_bytes: 0, ..hasty() }).await;
        let snapshot = cache.snapshot(&fp(1));
        let meta = put(&snapshot, split(0), &[rich(50, 1)], encoding("arrow/none")).await;
        let file = folder.path().join("v1").join(&meta.path);
        for replace in ["mkfifo", "mkdir"] {
            drop(std::fs::remove_file(&file));
            assert!(Command::new(replace).arg(&file).status().unwrap().success());
            let read = tokio::time::timeout(Duration::from_secs(20), read(&snapshot, &meta));
            let e = read.await.expect("nothing waits").unwrap_err();
            assert_eq!(e.kind(), ErrorKind::DataLoss, "{e}");
            assert!(e.message().contains(&meta.path) && e.message().contains("not a regular file"), "{e}");
        }
    }
}
