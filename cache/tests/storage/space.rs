//! Space: budgets, evictions, time to live, pins, leases, and orphans of dead processes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use caju_autocache::PlanRecord;
use caju_cache::*;
use caju_runtime::{Stores, SystemClock};
use caju_types::ErrorKind;

async fn fill(cache: &Arc<Cache>, of: u128, key: u128, cpu_s: f64) -> caju_types::Result<Arc<PartMeta>> {
    let batch = wide(10, 10_000, key as u64);
    let snapshot = cache.snapshot(&fp(of));
    let outcome = snapshot.put(split(key), &describe(), batch.schema(), Encoding::default()).await?;
    let PutOutcome::Writer(mut part) = outcome else { panic!("{outcome:?}") };
    if let Err(e) = part.write(&batch).await {
        part.abort().await;
        return Err(e);
    }
    let facts = PartFacts { rows: 10, compute_cpu_s: cpu_s, ..PartFacts::default() };
    Ok(Arc::clone(part.finish(facts).await?.meta()))
}

fn bounded(bytes: u64) -> CacheOptions {
    CacheOptions { budget_bytes: Some(bytes), usage_refresh: Duration::ZERO, ..hasty() }
}

/// Writes as a process that has left and uses nothing any more.
async fn earlier(root: &str, of: u128, parts: std::ops::Range<u128>, cpu_s: f64) {
    let cache = open(root).await;
    for key in parts {
        fill(&cache, of, key, cpu_s).await.unwrap();
    }
    cache.close(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn the_budget_holds_and_the_cheapest_goes_first() {
    let root = memory_root();
    earlier(&root, 1, 0..5, 0.1).await;
    earlier(&root, 2, 0..5, 50.0).await;
    let budget = 1_400_000;
    let cache = open_with(&root, bounded(budget)).await;
    for key in 0..5 {
        fill(&cache, 3, key, 1.0).await.unwrap();
        let used = cache.usage().await.unwrap().bytes;
        assert!(used <= budget, "{used}");
    }
    let kept: Vec<_> = cache.list().await.unwrap().iter().map(|s| s.splits).collect();
    assert_eq!(kept, [3, 5, 5], "only as much as was needed, from where computing is cheap");
    for info in cache.list().await.unwrap() {
        assert!(cache.verify(Some(&info.fingerprint)).await.unwrap().is_clean());
    }
}

#[tokio::test]
async fn a_dry_run_names_what_a_real_one_evicts_and_why() {
    let root = memory_root();
    earlier(&root, 1, 0..4, 2.0).await;
    earlier(&root, 2, 0..4, 0.1).await;
    earlier(&root, 3, 0..4, 0.2).await;
    earlier(&root, 4, 0..2, 0.0).await;
    let all = open(&root).await.usage().await.unwrap().bytes;
    let cache = open_with(&root, bounded(all - 600_000)).await;
    cache.pin(&fp(4)).await.unwrap();
    let plan = cache.gc(true).await.unwrap();
    assert_eq!(cache.usage().await.unwrap().bytes, all + 2, "a dry run changes nothing but the pin");
    // 100 kB and a record each: all of the cheap parts, and as many of the next ones as are needed.
    let of: Vec<u128> = plan.evictions.iter().map(|e| e.snapshot.0).collect();
    assert_eq!(of, [2, 2, 2, 2, 3, 3], "{plan}");
    assert!(plan.evictions.is_sorted_by(|a, b| a.worth_cpu_s_per_gib <= b.worth_cpu_s_per_gib));
    let first = &plan.evictions[0];
    assert_eq!((first.compute_cpu_s, plan.over_budget_bytes), (0.1, 0));
    let per_gib = 0.1 / (first.bytes as f64) * f64::from(1 << 30);
    assert!((first.worth_cpu_s_per_gib / per_gib - 1.0).abs() < 0.05 && first.idle_s < 60.0, "{first:?}");
    assert!(plan.left_bytes <= all - 600_000 && plan.objects.is_empty());
    let done = cache.gc(false).await.unwrap();
    assert_eq!(
        done.evictions.iter().map(|e| &e.part).collect::<Vec<_>>(),
        plan.evictions.iter().map(|e| &e.part).collect::<Vec<_>>()
    );
    assert_eq!((done.bytes, done.left_bytes), (plan.bytes, plan.left_bytes));
    assert!(cache.verify(None).await.unwrap().is_clean());
    // Bytes that cannot be evicted are reported.
    let least = open_with(&root, bounded(MIN_BUDGET_BYTES)).await;
    let plan = least.gc(true).await.unwrap();
    assert!(plan.over_budget_bytes > 150_000, "two pinned parts stay: {plan}");
    assert_eq!(least.gc(false).await.unwrap().over_budget_bytes, plan.over_budget_bytes);
    assert_eq!(least.list().await.unwrap().iter().map(|s| s.splits).collect::<Vec<_>>(), [0, 0, 0, 2]);
}

/// Below a cross-split stage a part is worth nothing without the others.
#[tokio::test]
async fn a_set_goes_as_a_whole_or_stays() {
    let root = memory_root();
    let writer = open(&root).await;
    let whole = SplitSetDigest::of(1..=3);
    for key in 1..=3 {
        let part = fill(&writer, 1, key, 0.1).await.unwrap();
        let (attempt, covers) = (part.attempt.clone(), vec![SplitName(key)]);
        let member = Member { part: split(key), attempt, covers, rows: Vec::new() };
        writer.snapshot(&fp(1)).add_to_set("one", whole, member).await.unwrap();
    }
    writer.close(Duration::from_secs(5)).await.unwrap();
    earlier(&root, 2, 0..2, 5.0).await;
    let all = open(&root).await.usage().await.unwrap().bytes;
    let cache = open_with(&root, bounded(all - 50_000)).await;
    let plan = cache.gc(true).await.unwrap();
    assert!(plan.evictions.iter().all(|e| e.set && e.snapshot == fp(1)), "{plan}");
    assert_eq!(plan.evictions.len(), 3, "{plan}");
    assert_eq!(cache.gc(false).await.unwrap().evictions.len(), 3);
    assert_eq!(cache.list().await.unwrap().iter().map(|s| s.splits).collect::<Vec<_>>(), [0, 2]);
}

#[tokio::test]
async fn a_budget_that_holds_nothing_is_refused_at_the_start() {
    let options = CacheOptions { budget_bytes: Some(MIN_BUDGET_BYTES - 1), ..CacheOptions::default() };
    let root = memory_root();
    let e = Cache::open(&Stores::default(), &root, options, SystemClock::shared(), writer_id())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    assert!(e.message().contains("16.00 KiB"), "{e}");
    assert!(objects(&root).await.is_empty());
}

#[tokio::test]
async fn pinned_and_used_snapshots_stay() {
    let root = memory_root();
    earlier(&root, 1, 0..5, 0.1).await;
    earlier(&root, 2, 0..5, 0.1).await;
    let reader = open(&root).await;
    let index = reader.snapshot(&fp(2)).index().await.unwrap();
    let options = ReadOptions::default();
    let held = reader.snapshot(&fp(2)).open_part(index.get(&split(0)).unwrap(), options).await.unwrap();
    settle().await;
    let cache = open_with(&root, bounded(1_050_000)).await;
    cache.pin(&fp(1)).await.unwrap();
    let e = fill(&cache, 3, 0, 1.0).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ResourceExhausted, "{e}");
    assert!(e.message().contains("raise the budget"), "{e}");
    assert_eq!(cache.list().await.unwrap().iter().map(|s| s.splits).sum::<u64>(), 10);
    // The refusal left nothing.
    let left = objects(&root).await;
    assert!(!left.iter().any(|o| o.contains("claims")), "{left:?}");
    let e = cache.remove(&fp(1), true).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
    let e = cache.remove(&fp(2), false).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
    // The reader ends; the pin ends.
    drop(held);
    reader.close(Duration::from_secs(5)).await.unwrap();
    fill(&cache, 3, 0, 1.0).await.unwrap();
    cache.unpin(&fp(1)).await.unwrap();
    assert!(cache.remove(&fp(1), false).await.unwrap() > 500_000);
    assert!(!objects(&root).await.iter().any(|o| o.contains(&fp(1).to_string())));
    assert_eq!(cache.remove(&fp(1), false).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(
        cache.find("000000000000000000000000000000").await.unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
}

#[tokio::test]
async fn a_part_larger_than_the_budget_is_refused_while_it_is_written() {
    let root = memory_root();
    let options = CacheOptions { block_bytes: 10_000, ..bounded(200_000) };
    let cache = open_with(&root, options).await;
    let snapshot = cache.snapshot(&fp(1));
    let batch = wide(10, 10_000, 1);
    let mut part = writer(&snapshot, split(0), &batch.schema(), Encoding::default()).await;
    let mut written = 0;
    let error = loop {
        match part.write(&batch).await {
            Ok(()) => written += 1,
            Err(e) => break e,
        }
        assert!(written < 10);
    };
    assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error}");
    part.abort().await;
    assert!(objects(&root).await.iter().all(|o| !o.ends_with(".arrow")));
    fill(&cache, 1, 1, 1.0).await.unwrap();
}

#[tokio::test]
async fn unused_snapshots_expire() {
    let root = memory_root();
    earlier(&root, 1, 0..2, 1.0).await;
    earlier(&root, 2, 0..2, 1.0).await;
    let options = CacheOptions { ttl: Some(Duration::ZERO), orphan_grace: Duration::ZERO, ..hasty() };
    let cache = open_with(&root, options).await;
    cache.pin(&fp(2)).await.unwrap();
    let plan = cache.gc(true).await.unwrap();
    assert!(
        plan.dry_run
            && plan
                .objects
                .iter()
                .all(|(o, why, _)| { *why == CollectReason::Expired && o.starts_with(&fp(1).to_string()) }),
        "{plan}"
    );
    assert_eq!(cache.list().await.unwrap().len(), 2, "a dry run changes nothing");
    assert_eq!(plan.expired.iter().map(|e| e.snapshot).collect::<Vec<_>>(), [fp(1)]);
    assert_eq!(plan.expired[0].bytes, plan.bytes);
    let done = cache.gc(false).await.unwrap();
    assert_eq!((done.objects.len(), done.bytes), (plan.objects.len(), plan.bytes));
    let left = cache.list().await.unwrap();
    assert_eq!((left.len(), left[0].fingerprint, left[0].pinned), (1, fp(2), true));
    assert!(cache.gc(false).await.unwrap().objects.is_empty());
}

#[tokio::test]
async fn plan_records_expire() {
    let root = memory_root();
    let stores = Stores::default();
    write_plan_record(&PlanRecord::default(), &stores, &root, fp(7)).await.unwrap();
    let soon = CacheOptions { orphan_grace: Duration::ZERO, ..hasty() };
    let later = CacheOptions { ttl: Some(Duration::from_secs(3600)), ..soon.clone() };
    for options in [soon.clone(), later] {
        let kept = open_with(&root, options).await.gc(false).await.unwrap();
        assert!(kept.objects.is_empty(), "{kept}");
    }
    let cache = open_with(&root, CacheOptions { ttl: Some(Duration::ZERO), ..soon }).await;
    let gone = cache.gc(false).await.unwrap();
    let [(object, CollectReason::ExpiredPlan, _)] = gone.objects.as_slice() else { panic!("{gone}") };
    assert_eq!(*object, format!("plans/{}.json", fp(7)));
    assert!(read_plan_record(&stores, &root, fp(7)).await.unwrap().is_none());
}

#[tokio::test]
async fn orphans_are_collected_after_the_grace() {
    let root = memory_root();
    let dead = open(&root).await;
    let good = fill(&dead, 1, 0, 1.0).await.unwrap();
    let bad = fill(&dead, 1, 1, 1.0).await.unwrap();
    dead.snapshot(&fp(1)).discard(&bad, "for the test").await.unwrap();
    // A writer that vanishes with its part uploaded and its claim held.
    let snapshot = dead.snapshot(&fp(1));
    let part = writer(&snapshot, split(2), &numbers(0..1).schema(), Encoding::default()).await;
    std::mem::forget(part);
    let at =
        Stores::default().resolve(&format!("{root}/v1/{}/parts/{}-dead.arrow", fp(1), split(2))).unwrap();
    object_store::ObjectStoreExt::put(&at.store, &at.path, "junk".into()).await.unwrap();

    let young = open(&root).await;
    assert!(young.gc(false).await.unwrap().objects.is_empty(), "too young");
    let options =
        CacheOptions { orphan_grace: Duration::ZERO, lease_ttl: Duration::from_secs(3600), ..hasty() };
    let waiting = open_with(&root, options).await;
    let done = waiting.gc(false).await.unwrap();
    let names: HashSet<_> = done.objects.iter().map(|(o, why, _)| (o.as_str(), *why)).collect();
    assert_eq!(
        names,
        HashSet::from([(bad.path.as_str(), CollectReason::OrphanedPart)]),
        "its writer may be alive"
    );
    let options = CacheOptions { orphan_grace: Duration::ZERO, lease_ttl: Duration::ZERO, ..hasty() };
    let old =
        Cache::open(&Stores::default(), &root, options, SystemClock::shared(), writer_id()).await.unwrap();
    let done = old.gc(false).await.unwrap();
    let whys: HashSet<_> = done.objects.iter().map(|(_, why, _)| *why).collect();
    assert_eq!(whys, HashSet::from([CollectReason::OrphanedPart, CollectReason::DeadClaim]), "{done}");
    let snapshot = old.snapshot(&fp(1));
    assert_eq!(snapshot.index().await.unwrap().len(), 1);
    assert_eq!(read(&snapshot, &good).await.unwrap().num_rows(), 10);
    assert!(old.verify(None).await.unwrap().is_clean());
    assert!(old.gc(false).await.unwrap().objects.is_empty());
}

/// What object_store's local store leaves when its process is killed in the middle of a part.
#[tokio::test]
async fn half_written_files_are_collected() {
    let folder = tempfile::tempdir().unwrap();
    let root = format!("file://{}", folder.path().display());
    earlier(&root, 1, 0..1, 1.0).await;
    let left = folder.path().join(format!("v1/{}/parts/{}-x.arrow#1", fp(1), split(7)));
    std::fs::write(&left, "half").unwrap();
    assert!(open(&root).await.gc(false).await.unwrap().objects.is_empty());
    let options = CacheOptions { orphan_grace: Duration::ZERO, lease_ttl: Duration::ZERO, ..hasty() };
    let done = open_with(&root, options).await.gc(false).await.unwrap();
    assert_eq!(done.objects.len(), 1, "{done}");
    assert!(!left.exists());
}

#[tokio::test]
async fn use_is_reported() {
    let root = memory_root();
    earlier(&root, 1, 0..3, 2.0).await;
    let cache = open(&root).await;
    let snapshot = cache.snapshot(&fp(1));
    for job in ["job-a", "job-b"] {
        snapshot.record_job(job);
        for (_, meta) in snapshot.index().await.unwrap().iter() {
            read(&snapshot, meta).await.unwrap();
        }
    }
    cache.close(Duration::from_secs(5)).await.unwrap();
    let cache = open(&root).await;
    let info = &cache.list().await.unwrap()[0];
    assert_eq!((info.rows_read, info.saved_cpu_s, info.jobs.len()), (60, 12.0, 2));
    assert!(info.to_string().contains("job-a, job-b"), "{info}");
    let whole = cache.inspect(&fp(1)).await.unwrap();
    assert_eq!((whole.parts.len(), whole.description.prefix.as_str()), (3, "range > map"));
    serde_json::to_string(&whole).unwrap();
    assert_eq!(cache.inspect(&fp(9)).await.unwrap_err().kind(), ErrorKind::NotFound);
}
