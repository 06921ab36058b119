//! What becomes known of a snapshot after its first part is in every later manifest.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use caju_cache::{Cache, DescriptionUpdate, Encoding, SnapshotInfo};
use caju_types::mix64;
use serde_json::{Value, json};

fn news(splits: u64, profile: Value) -> DescriptionUpdate {
    DescriptionUpdate { splits: Some(splits), profile }
}

async fn store(cache: &Arc<Cache>, splits: std::ops::Range<u128>) {
    for i in splits {
        put(&cache.snapshot(&fp(1)), split(i), &[numbers(0..10)], Encoding::default()).await;
    }
}

/// The description as a new process reads it.
async fn described(root: &str) -> (SnapshotInfo, Value) {
    let inspection = open(root).await.inspect(&fp(1)).await.unwrap();
    assert_eq!((inspection.description.name.as_str(), inspection.info.name.as_str()), ("test", "test"));
    (inspection.info, inspection.description.profile)
}

async fn manifests(root: &str) -> usize {
    objects(root).await.iter().filter(|name| name.contains("/manifest-")).count()
}

#[tokio::test]
async fn a_manifest_has_what_became_known_later() {
    let root = memory_root();
    let (writer, other) = (open(&root).await, open(&root).await);
    let snapshot = other.snapshot(&fp(1));
    assert!(
        !snapshot.update_description(&news(3, json!({"a": 1}))).await.unwrap(),
        "the snapshot has no part"
    );
    assert_eq!(manifests(&root).await, 0);
    store(&writer, 0..2).await;
    let (info, profile) = described(&root).await;
    assert_eq!((info.splits_text().as_str(), profile), ("2", Value::Null));
    assert_eq!(info.source_bytes, 200);

    assert!(snapshot.update_description(&news(3, json!({"a": 1}))).await.unwrap());
    let (info, profile) = described(&root).await;
    assert_eq!((info.splits_text().as_str(), profile), ("2 of 3", json!({"a": 1})));
    assert!(info.to_string().contains("splits      2 of 3"), "{info}");
    // An update without news writes no manifest.
    let before = objects(&root).await;
    assert!(!snapshot.update_description(&news(3, json!({"a": 1}))).await.unwrap());
    assert!(!snapshot.update_description(&news(2, Value::Null)).await.unwrap());
    assert_eq!(objects(&root).await, before);

    // The writer knows only the first manifest, and folds its records into another one.
    store(&writer, 2..4).await;
    writer.close(Duration::from_secs(5)).await.unwrap();
    let (info, profile) = described(&root).await;
    assert_eq!((info.splits, info.splits_total, profile), (4, Some(3), json!({"a": 1})));
    assert_eq!(info.splits_text(), "4", "more parts than one source has splits");
    assert_eq!(manifests(&root).await, 2);
}

/// Processes that know different manifests put, fold and update in any order: no update is lost.
#[tokio::test]
async fn updates_survive_every_order_of_manifests() {
    for seed in 0..40u64 {
        let root = memory_root();
        let caches = [open(&root).await, open(&root).await, open(&root).await];
        store(&caches[0], 0..1).await;
        let (mut most, mut parts, mut last) = (None, 1, Value::Null);
        for step in 0..12u64 {
            let draw = mix64(seed, step);
            let cache = &caches[(draw >> 8) as usize % 3];
            match draw % 4 {
                0 | 1 => {
                    store(cache, parts..parts + 1).await;
                    parts += 1;
                }
                2 => cache.snapshot(&fp(1)).fold().await.unwrap(),
                _ => {
                    let splits = (draw >> 16) % 20;
                    last = json!({ "step": step });
                    cache.snapshot(&fp(1)).update_description(&news(splits, last.clone())).await.unwrap();
                    most = most.max(Some(splits));
                }
            }
            let (info, profile) = described(&root).await;
            assert_eq!((info.splits_total, info.splits), (most, parts as u64), "seed {seed}, step {step}");
            assert_eq!(profile, last, "seed {seed}, step {step}");
        }
        for cache in caches {
            cache.close(Duration::from_secs(5)).await.unwrap();
        }
        let (info, profile) = described(&root).await;
        assert_eq!((info.splits_total, profile), (most, last), "seed {seed}, at the end");
    }
}
