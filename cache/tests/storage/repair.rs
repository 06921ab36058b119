//! Repairs delete damaged objects, and collections delete orphans.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use caju_cache::*;
use caju_runtime::Stores;
use object_store::{ObjectStore, ObjectStoreExt, path::Path};
use serde_json::json;

struct Raw(Arc<dyn ObjectStore>, String);

impl Raw {
    fn of(root: &str) -> Self {
        let at = Stores::default().resolve(root).unwrap();
        Self(at.store, at.path.to_string())
    }

    fn path(&self, name: &str) -> Path {
        Path::parse(format!("{}/v1/{name}", self.1)).unwrap()
    }

    async fn get(&self, name: &str) -> Vec<u8> {
        self.0.get(&self.path(name)).await.unwrap().bytes().await.unwrap().to_vec()
    }

    async fn put(&self, name: &str, bytes: Vec<u8>) {
        self.0.put(&self.path(name), bytes.into()).await.unwrap();
    }

    async fn flip(&self, name: &str) {
        let mut bytes = self.get(name).await;
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        self.put(name, bytes).await;
    }
}

async fn named(root: &str, text: &str) -> Vec<String> {
    let all = objects(root).await.into_iter().map(|o| o.trim_start_matches("v1/").to_string());
    all.filter(|o| o.contains(text)).collect()
}

async fn store(root: &str, of: u128, keys: std::ops::Range<u128>) {
    let cache = open(root).await;
    for key in keys {
        let snapshot = cache.snapshot(&fp(of));
        if !snapshot.index().await.unwrap().contains(&split(key)) {
            put(&snapshot, split(key), &[rich(50, key as u64)], Encoding::default()).await;
        }
    }
    cache.close(Duration::from_secs(5)).await.unwrap();
}

/// As `caju cache gc --grace 0s` when all processes are gone.
fn sweeping() -> CacheOptions {
    CacheOptions { orphan_grace: Duration::ZERO, lease_ttl: Duration::ZERO, ..hasty() }
}

#[tokio::test]
async fn damaged_splits_are_deleted_and_can_be_stored_again() {
    let root = memory_root();
    store(&root, 1, 0..6).await;
    store(&root, 2, 0..2).await;
    let raw = Raw::of(&root);
    // A split has an older part below the newest one.
    let cache = open(&root).await;
    let before = cache.snapshot(&fp(1)).index().await.unwrap();
    cache.snapshot(&fp(1)).discard(before.get(&split(5)).unwrap(), "for the test").await.unwrap();
    store(&root, 1, 5..6).await;
    let index = cache.snapshot(&fp(1)).index().await.unwrap();
    let part = |key: u128| index.get(&split(key)).unwrap().path.clone();
    raw.flip(&part(0)).await;
    raw.put(&part(1), raw.get(&part(2)).await).await;
    raw.0.delete(&raw.path(&part(3))).await.unwrap();
    raw.flip(&part(5)).await;
    let record = named(&root, &split(4).to_string()).await.into_iter().find(|n| n.ends_with(".commit"));
    raw.put(&record.unwrap(), b"junk".to_vec()).await;
    let manifest = named(&root, "1/manifest-").await.pop().unwrap();
    raw.put(&manifest, b"{\"seal\":\"junk".to_vec()).await;

    let fresh = open(&root).await;
    let found = fresh.verify(None).await.unwrap();
    assert_eq!((found.damaged.len(), found.dropped.len()), (6, 0), "{found}");
    let report = fresh.repair(None).await.unwrap();
    for damage in &found.damaged {
        assert!(report.damaged.contains(damage), "{damage:?} is not in {report}");
        let gone = report.dropped.iter().any(|d| d.object == damage.object);
        assert!(gone || damage.why.contains("missing"), "{damage:?} stayed: {report}");
    }
    assert!(report.to_string().contains(&format!("dropped: {}", part(0))), "{report}");
    let again = open(&root).await;
    assert!(again.verify(None).await.unwrap().is_clean());
    assert!(again.repair(None).await.unwrap().dropped.is_empty());
    let left: Vec<_> = again.snapshot(&fp(1)).index().await.unwrap().iter().map(|(k, _)| *k).collect();
    assert_eq!(left, [split(2)]);
    assert_eq!(again.snapshot(&fp(2)).index().await.unwrap().len(), 2, "nobody touched that one");
    store(&root, 1, 0..6).await;
    let cache = open(&root).await;
    let report = cache.verify(None).await.unwrap();
    assert_eq!((report.is_clean(), report.parts), (true, 8), "{report}");
    for (key, meta) in cache.snapshot(&fp(1)).index().await.unwrap().iter() {
        let seed = (0..6).find(|k| split(*k) == *key).unwrap();
        assert_same(&read(&cache.snapshot(&fp(1)), meta).await.unwrap(), &rich(50, seed as u64));
    }
}

/// Only the given snapshot is repaired.
#[tokio::test]
async fn a_repair_keeps_to_what_it_was_asked_for() {
    let root = memory_root();
    store(&root, 1, 0..1).await;
    store(&root, 2, 0..1).await;
    let (raw, cache) = (Raw::of(&root), open(&root).await);
    for part in named(&root, ".arrow").await {
        raw.flip(&part).await;
    }
    let report = cache.repair(Some(&fp(2))).await.unwrap();
    assert_eq!((report.damaged.len(), report.dropped.len()), (1, 2), "{report}");
    assert_eq!(cache.verify(None).await.unwrap().damaged.len(), 1);
}

#[tokio::test]
async fn a_junk_manifest_does_not_stay_the_newest() {
    let root = memory_root();
    store(&root, 1, 0..2).await;
    let raw = Raw::of(&root);
    raw.put(&format!("{}/manifest-00000009.json", fp(1)), b"{\"seal\":\"junk".to_vec()).await;
    assert_eq!(open(&root).await.verify(None).await.unwrap().damaged.len(), 1);
    // The next writer replaces it.
    store(&root, 1, 2..3).await;
    assert!(open(&root).await.verify(None).await.unwrap().is_clean());
    assert!(named(&root, "manifest-").await.last().unwrap().ends_with("manifest-00000010.json"));
    assert_eq!(open(&root).await.list().await.unwrap()[0].name, "test");

    // Without a writer, the collection keeps the newest valid manifests.
    let root = memory_root();
    store(&root, 1, 0..2).await;
    let raw = Raw::of(&root);
    let good = named(&root, "manifest-").await;
    raw.put(&format!("{}/manifest-00000009.json", fp(1)), b"{\"seal\":\"junk".to_vec()).await;
    let cache = open_with(&root, sweeping()).await;
    let plan = cache.gc(true).await.unwrap();
    assert_eq!(plan.objects.len(), 1, "{plan}");
    assert!(plan.objects[0].0.ends_with("manifest-00000009.json"), "{plan}");
    cache.gc(false).await.unwrap();
    assert_eq!(named(&root, "manifest-").await, good);
    assert!(cache.verify(None).await.unwrap().is_clean());
}

/// The manifests are lost. An epoch that only reads then updates a snapshot without a description.
#[tokio::test]
async fn a_snapshot_without_manifests_is_named_again() {
    let root = memory_root();
    store(&root, 1, 0..3).await;
    let raw = Raw::of(&root);
    for manifest in named(&root, "manifest-").await {
        raw.0.delete(&raw.path(&manifest)).await.unwrap();
    }
    let reader = open(&root).await;
    let news = DescriptionUpdate { splits: Some(3), profile: json!({"a": 1}) };
    assert!(reader.snapshot(&fp(1)).update_description(&news).await.unwrap());
    assert_eq!(open(&root).await.list().await.unwrap()[0].name, "");
    // Parts are lost, and stored again.
    let index = reader.snapshot(&fp(1)).index().await.unwrap();
    raw.0.delete(&raw.path(&index.get(&split(1)).unwrap().path)).await.unwrap();
    store(&root, 1, 1..2).await;
    let inspection = open(&root).await.inspect(&fp(1)).await.unwrap();
    assert_eq!((inspection.info.name.as_str(), inspection.info.splits_text().as_str()), ("test", "3 of 3"));
    assert_eq!(inspection.description.profile, json!({"a": 1}));
}

async fn read_by(root: &str, job: &str) {
    let cache = open(root).await;
    let snapshot = cache.snapshot(&fp(1));
    snapshot.record_job(job);
    for (_, meta) in snapshot.index().await.unwrap().iter() {
        read(&snapshot, meta).await.unwrap();
    }
    cache.close(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn usage_records_are_folded_into_one_object() {
    let root = memory_root();
    store(&root, 1, 0..2).await;
    let raw = Raw::of(&root);
    let told = async || {
        let info = open(&root).await.list().await.unwrap().remove(0);
        (info.rows_read, info.saved_cpu_s, info.jobs, info.last_use_unix_s)
    };
    for round in 0..3 {
        for n in 0..4 {
            read_by(&root, &format!("job-{round}-{n}")).await;
        }
        let before = told().await;
        assert_eq!((before.0, before.2.len()), (400 * (round + 1), 4 * (round as usize + 1)), "{before:?}");
        let objects = named(&root, "/uses/").await;
        assert!(open(&root).await.gc(false).await.unwrap().objects.is_empty(), "too young");
        let kept = raw.get(&objects[0]).await;
        let cache = open_with(&root, sweeping()).await;
        let plan = cache.gc(true).await.unwrap();
        let done = cache.gc(false).await.unwrap();
        assert_eq!((plan.objects.len(), plan.left_bytes), (done.objects.len(), done.left_bytes), "{plan}");
        assert_eq!(named(&root, "/uses/").await.len(), 1);
        assert_eq!(told().await, before, "nothing is forgotten, and nothing looks used");
        // A collection that was killed between writing and deleting.
        raw.put(&objects[0], kept).await;
        let (rows, saved, jobs, _) = told().await;
        assert_eq!((rows, saved, jobs), (before.0, before.1, before.2.clone()));
        cache.gc(false).await.unwrap();
        assert_eq!((named(&root, "/uses/").await.len(), told().await.0), (1, before.0));
    }
}

/// No collection is needed: readers fold usage records when they close the cache.
#[tokio::test]
async fn many_readers_leave_few_objects() {
    let root = memory_root();
    store(&root, 1, 0..1).await;
    for n in 0..40 {
        read_by(&root, &format!("job-{n}")).await;
        assert!(named(&root, "/uses/").await.len() <= 17);
    }
    let info = open(&root).await.list().await.unwrap().remove(0);
    assert_eq!((info.rows_read, info.jobs.len()), (40 * 50, 40));
}

#[tokio::test]
async fn listings_go_with_the_last_rows_of_their_source() {
    let root = memory_root();
    store(&root, 1, 0..2).await;
    store(&root, 2, 1..3).await;
    store(&root, 3, 7..8).await;
    let listing = async |name: &str, keys: &[u128]| {
        let json = |key: &u128| json!({"key": split(*key), "url": name}).to_string();
        let splits = keys.iter().map(json).collect();
        let listing = SourceListing::new(json!({"of": name}), arrow_schema::Schema::empty(), splits);
        listing.store(&Stores::default(), &root).await.unwrap();
    };
    listing("both", &[0, 1, 2]).await;
    listing("one", &[0, 50]).await;
    listing("none", &[60]).await;
    let count = async || named(&root, "listings/").await.len();
    let cache = open_with(&root, sweeping()).await;
    assert!(open(&root).await.gc(false).await.unwrap().objects.is_empty(), "too young");
    let plan = cache.gc(true).await.unwrap();
    assert_eq!(
        plan.objects.iter().map(|o| o.1).collect::<Vec<_>>(),
        [CollectReason::OrphanedListing],
        "{plan}"
    );
    cache.gc(false).await.unwrap();
    assert_eq!(count().await, 2);
    cache.remove(&fp(1), false).await.unwrap();
    assert_eq!(count().await, 1);
    cache.remove(&fp(3), false).await.unwrap();
    assert_eq!(count().await, 1);
    cache.remove(&fp(2), false).await.unwrap();
    assert_eq!(count().await, 0);
}

#[tokio::test]
async fn a_root_with_nothing_below_it_is_no_cache() {
    let stores = Stores::default();
    let root = memory_root();
    assert!(!Cache::exists(&stores, &root).await.unwrap());
    store(&root, 1, 0..1).await;
    assert!(Cache::exists(&stores, &root).await.unwrap());
    assert!(!Cache::exists(&stores, &format!("{root}x")).await.unwrap());
    let folder = tempfile::tempdir().unwrap();
    let root = format!("file://{}/c", folder.path().display());
    assert!(!Cache::exists(&stores, &root).await.unwrap() && !folder.path().join("c").exists());
    store(&root, 1, 0..1).await;
    assert!(Cache::exists(&stores, &root).await.unwrap());
    let server = caju_testkit::s3::S3Server::start(&["bucket"]).await.unwrap();
    let stores = Stores::new(server.options(), None).unwrap();
    let clock = caju_runtime::SystemClock::shared();
    Cache::open(&stores, "s3://bucket/c", hasty(), clock, writer_id())
        .await
        .unwrap()
        .close(Duration::ZERO)
        .await
        .ok();
    for url in ["s3://bucket/tyop", "s3://bucket/c", "s3://nobuck/c"] {
        let found = Cache::exists(&stores, url).await;
        assert!(!matches!(found, Ok(true)), "{url}: {found:?}");
        assert!(found.is_ok() || url.contains("nobuck"), "{url}: {found:?}");
    }
}

/// The next job removes the objects of a killed process's probe. Objects of a probe that may still run stay.
#[tokio::test]
async fn stale_probes_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let root = format!("file://{}", folder.path().display());
    let cache = open(&root).await;
    let raw = Raw::of(&root);
    for name in ["probes/old", "probes/new"] {
        raw.put(name, b"rows".to_vec()).await;
    }
    let old = std::fs::File::options().write(true).open(folder.path().join("v1/probes/old")).unwrap();
    let hour = Duration::from_secs(3600);
    old.set_modified(old.metadata().unwrap().modified().unwrap() - hour).unwrap();
    assert_eq!(cache.remove_stale_probes().await.unwrap(), 1);
    assert_eq!(named(&root, "probes/").await, ["probes/new"]);
    assert_eq!(cache.remove_stale_probes().await.unwrap(), 0);
    // A probe leaves no objects.
    let rows = rich(100, 1);
    let task = ProbeTask { threads: 2, readers: 3, measures_store: true, fetch_cpu_s_per_byte: None };
    let probe = cache.probe(&rows.schema(), &[rows], Encoding::default(), task).await.unwrap();
    assert!(probe.spent_cpu_s >= probe.encode_cpu_s + probe.decode_cpu_s, "{probe:?}");
    assert_eq!(named(&root, "probes/").await, ["probes/new"]);
}
