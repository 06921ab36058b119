//! Saves to places that refuse them: a clear error, at once.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use caju_cache::{Cache, CacheOptions, Encoding, SaveDescription, SaveState, SnapshotDescription};
use caju_client::{ClientConfig, ReadRequest, SaveTo};
use caju_embedded::{Cluster, ClusterConfig};
use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, Stores, SystemClock};
use caju_testkit::faulty::{Fault, Faults, Op, Rule, faulty_store};
use caju_types::{Fingerprint, SplitKey};
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::{ObjectMeta, ObjectStoreExt};
use serde_json::json;

/// How the save ends: its state, and the kind and message of its failure.
async fn saved(faults: &Faults, encoding: &str, stores: &Arc<Stores>, url: &str) -> (String, String, String) {
    let config = ClusterConfig::new(Arc::clone(stores), CpuPool::new(2).unwrap());
    let cluster = Cluster::start(config).await.unwrap();
    let ended = saved_by(&cluster, encoding, url).await;
    faults.clear();
    cluster.stop().await;
    ended
}

async fn saved_by(cluster: &Cluster, encoding: &str, url: &str) -> (String, String, String) {
    saved_of(cluster, &numbers(), encoding, url).await
}

async fn saved_of(
    cluster: &Cluster,
    def: &DatasetDef,
    encoding: &str,
    url: &str,
) -> (String, String, String) {
    let client = cluster.client(ClientConfig::default()).await.unwrap();
    let mut ends = cluster.ended_saves();
    let to = SaveTo { url: url.into(), chunk_bytes: 0 };
    let ended = async {
        let mut status = client.start_save(def, &to, encoding).await?;
        while status.state == "running" {
            ends.changed().await.expect("the driver of saves runs");
            status = client.save_status(url).await?;
        }
        Ok::<_, caju_types::Error>(status)
    };
    match tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it ends at once") {
        Ok(status) => {
            let failure = status.failure.unwrap_or_default();
            (status.state, failure.kind, failure.message)
        }
        Err(e) => ("refused".into(), e.kind().as_str().into(), e.message().into()),
    }
}

fn numbers() -> DatasetDef {
    DatasetDef::from_json(&json!({"source": {"range": 1000}, "steps": []})).unwrap()
}

fn place(name: &str) -> (Faults, Arc<Stores>, String) {
    let (faults, stores) = (Faults::new(), Stores::default());
    let store = faulty_store(Arc::new(InMemory::new()), faults.clone());
    stores.register(&format!("memory://{name}"), Arc::new(store)).unwrap();
    (faults, Arc::new(stores), format!("memory://{name}/here"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_a_save_at_once() {
    let (faults, stores, url) = place("full");
    faults.add(Rule::new(Op::Put, Fault::NoSpace).on("/parts/").always());
    let (state, kind, message) = saved(&faults, "", &stores, &url).await;
    assert_eq!((state.as_str(), kind.as_str()), ("failed", "resource exhausted"), "{message}");
    assert!(message.contains("no space left") && message.contains("memory://full/here"), "{message}");
    // With free space again, the same save continues.
    assert_eq!(saved(&faults, "", &stores, &url).await.0, "finished");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_may_not_be_written_ends_a_save_at_once() {
    let (faults, stores, url) = place("denied");
    faults.add(Rule::new(Op::Put, Fault::Denied).on("/v1/").always());
    let (state, kind, message) = saved(&faults, "", &stores, &url).await;
    assert_eq!((state.as_str(), kind.as_str()), ("failed", "permission denied"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finished_save_keeps_its_encoding() {
    let (faults, stores, url) = place("form");
    assert_eq!(saved(&faults, "parquet/zstd", &stores, &url).await.0, "finished");
    let (state, kind, message) = saved(&faults, "arrow/none", &stores, &url).await;
    assert_eq!((state.as_str(), kind.as_str()), ("refused", "failed precondition"));
    assert!(message.contains("parquet/zstd") && message.contains("arrow/none"), "{message}");
    assert_eq!(saved(&faults, "", &stores, &url).await.0, "finished");
    assert_eq!(saved(&faults, "parquet/zstd", &stores, &url).await.0, "finished");
}

/// `--cache-lease`: what another process stores in the folder of a save stays for as long as that process counts as alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_save_is_cleaned_with_the_lease_of_the_dispatcher() {
    const HOUR: Duration = Duration::from_secs(3600);
    for (lease_ttl, stays) in [(HOUR, true), (Duration::ZERO, false)] {
        let (_, stores, url) = place("lease");
        let config = ClusterConfig::new(Arc::clone(&stores), CpuPool::new(2).unwrap());
        let cache = CacheOptions { lease_ttl, ..CacheOptions::default() };
        let cluster = Cluster::start(ClusterConfig { cache, ..config }).await.unwrap();
        assert_eq!(saved_by(&cluster, "", &url).await.0, "finished");
        let options = CacheOptions { lease_ttl: HOUR, ..CacheOptions::default() };
        let other = Cache::open(&stores, &url, options, SystemClock::shared(), "other".into()).await.unwrap();
        let client = cluster.client(ClientConfig::default()).await.unwrap();
        let schema = client.read(ReadRequest::of(numbers())).await.unwrap().schema();
        let (snapshot, describe) = (other.snapshot(&Fingerprint(7)), SnapshotDescription::default());
        let writing = snapshot.put(SplitKey(1), &describe, schema, Encoding::default()).await.unwrap();
        assert_eq!(saved_by(&cluster, "", &url).await.0, "finished");
        let objects: Vec<_> = stores.resolve(&url).unwrap().store.list(None).try_collect().await.unwrap();
        let is_lease = |o: &ObjectMeta| o.location.as_ref().ends_with("writers/other.json");
        assert_eq!(objects.iter().any(is_lease), stays, "{lease_ttl:?}: {objects:?}");
        drop(writing);
        cluster.stop().await;
    }
}

/// Lines in memory, of which up to `limit` may be bad.
fn lines(name: &str, limit: u64) -> DatasetDef {
    DatasetDef::from_json(&json!({
        "source": {"json": {"path": format!("memory://{name}/data/*.json"), "schema": {"id": "int64"}}},
        "steps": [],
        "on_error": {"skip": {"limit": limit}},
    }))
    .unwrap()
}

async fn put_lines(stores: &Stores, name: &str, file: &str, text: &'static str) {
    let at = stores.resolve(&format!("memory://{name}/data/{file}")).unwrap();
    at.store.put(&at.path, text.into()).await.unwrap();
}

/// How a save of these lines ends in a cluster of its own: its state, and the message of its failure.
async fn saved_lines(stores: &Arc<Stores>, name: &str, limit: u64, url: &str) -> (String, String) {
    let config = ClusterConfig::new(Arc::clone(stores), CpuPool::new(2).unwrap());
    let cluster = Cluster::start(config).await.unwrap();
    let (state, kind, message) = saved_of(&cluster, &lines(name, limit), "", url).await;
    cluster.stop().await;
    assert_eq!(kind, if state == "failed" { "data loss" } else { "" }, "{message}");
    (state, message)
}

/// The parts of a save that failed stay, so the next attempt reads nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_save_with_too_many_bad_rows_fails_each_time() {
    let (_, stores, url) = place("bad");
    put_lines(&stores, "bad", "1.json", "{broken\n").await;
    put_lines(&stores, "bad", "2.json", "{broken\n").await;
    for attempt in 0..3 {
        let (state, message) = saved_lines(&stores, "bad", 1, &url).await;
        assert_eq!(state, "failed", "attempt {attempt}");
        let why = "2 bad rows were skipped, more than the limit of 1";
        assert!(message.contains(why), "attempt {attempt}: {message}");
        let description = SaveDescription::load(&stores, &url).await.unwrap().unwrap();
        assert_eq!((description.state, description.error), (SaveState::Failed, Some(message)));
    }
    // A higher limit belongs to the same save.
    assert_eq!(saved_lines(&stores, "bad", 2, &url).await.0, "finished");
    assert_eq!(SaveDescription::load(&stores, &url).await.unwrap().unwrap().skipped, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_rows_of_stored_splits_count_in_the_next_epoch() {
    let (_, stores, url) = place("grown");
    put_lines(&stores, "grown", "1.json", "{\"id\": 1}\n{broken\n").await;
    assert_eq!(saved_lines(&stores, "grown", 1, &url).await.0, "finished");
    let finished = SaveDescription::load(&stores, &url).await.unwrap().unwrap();
    assert_eq!((finished.rows, finished.skipped), (1, 1));
    put_lines(&stores, "grown", "2.json", "{\"id\": 2}\n{broken\n").await;
    let (state, message) = saved_lines(&stores, "grown", 1, &url).await;
    assert_eq!(state, "failed");
    // The epoch ends, and not only the save behind it.
    assert!(message.contains("bad rows were skipped") && !message.contains("the save to"), "{message}");
    let now = SaveDescription::load(&stores, &url).await.unwrap();
    assert_eq!(now, Some(finished), "what was finished stays");
}

/// A save may be asked for again at any moment, also while what drove it before is ending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_save_that_is_asked_for_again_as_it_ends_ends_again() {
    let (_, stores, url) = place("again");
    let config = ClusterConfig::new(stores, CpuPool::new(2).unwrap());
    let cluster = Cluster::start(config).await.unwrap();
    let client = cluster.client(ClientConfig::default()).await.unwrap();
    let def = DatasetDef::from_json(&json!({"source": {"range": 10}, "steps": []})).unwrap();
    let to = SaveTo { url: url.clone(), chunk_bytes: 0 };
    let all = async {
        for _ in 0..200 {
            let mut status = client.start_save(&def, &to, "").await.unwrap();
            while status.state == "running" {
                tokio::task::yield_now().await;
                status = client.save_status(&url).await.unwrap();
            }
            assert_eq!(status.state, "finished");
        }
    };
    tokio::time::timeout(Duration::from_secs(120), all).await.expect("each save ends");
    cluster.stop().await;
}
