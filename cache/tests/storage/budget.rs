//! The byte budget: which parts are evicted, that the bound covers all objects, and the messages about it.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use caju_cache::*;
use caju_types::{ErrorKind, Result, format_bytes};

/// A part of one row of the given number of bytes.
async fn fill(cache: &Arc<Cache>, of: u128, key: u128, bytes: usize, cpu_s: f64) -> Result<()> {
    let batch = wide(1, bytes, key as u64);
    let snapshot = cache.snapshot(&fp(of));
    snapshot.record_job("job");
    let outcome = snapshot.put(split(key), &describe(), batch.schema(), Encoding::default()).await?;
    let PutOutcome::Writer(mut part) = outcome else { return Ok(()) };
    if let Err(e) = part.write(&batch).await {
        part.abort().await;
        return Err(e);
    }
    part.finish(PartFacts { rows: 1, compute_cpu_s: cpu_s, ..PartFacts::default() }).await.map(drop)
}

fn bounded(bytes: u64) -> CacheOptions {
    CacheOptions { budget_bytes: Some(bytes), usage_refresh: Duration::ZERO, ..hasty() }
}

/// Acts as a process that stores the parts of a snapshot that fit, and leaves. Gives the number of refused parts.
async fn job(root: &str, options: CacheOptions, of: u128, parts: u128, bytes: usize, cpu_s: f64) -> usize {
    let cache = open_with(root, options).await;
    let mut refused = 0;
    for key in 0..parts {
        match fill(&cache, of, key, bytes, cpu_s).await {
            Ok(()) => {}
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::ResourceExhausted, "{e}");
                refused += 1;
            }
        }
    }
    cache.close(Duration::from_secs(5)).await.unwrap();
    refused
}

async fn splits(root: &str) -> Vec<u64> {
    open(root).await.list().await.unwrap().iter().map(|s| s.splits).collect()
}

async fn used(root: &str) -> u64 {
    open(root).await.usage().await.unwrap().bytes
}

#[tokio::test]
async fn a_worthless_part_evicts_no_valuable_one() {
    let root = memory_root();
    assert_eq!(job(&root, hasty(), 1, 10, 50_000, 1.0).await, 0);
    let budget = used(&root).await + 20_000;
    assert_eq!(job(&root, bounded(budget), 2, 10, 50_000, 0.001).await, 10);
    assert_eq!(splits(&root).await, [10], "nothing is left of what was refused, not even its name");
    let cache = open_with(&root, bounded(budget)).await;
    let e = fill(&cache, 2, 0, 50_000, 0.001).await.unwrap_err();
    for words in ["is full", "are worth 21.2", "worth less than half", "begins at 21", "raise the budget"] {
        assert!(e.message().contains(words), "`{words}` is not in {e}");
    }
    // The valuable part evicts the worthless one, and no more than necessary.
    assert_eq!(job(&root, bounded(budget), 3, 3, 50_000, 10.0).await, 0);
    assert_eq!(splits(&root).await, [7, 3]);
    assert!(used(&root).await <= budget);
}

#[tokio::test]
async fn of_two_alike_snapshots_neither_evicts_the_other() {
    let root = memory_root();
    let budget = 400_000;
    job(&root, bounded(budget), 1, 6, 50_000, 1.0).await;
    // Measured costs are never quite equal.
    for (round, cpu_s) in [1.3, 0.8, 1.1, 1.6].into_iter().enumerate() {
        job(&root, bounded(budget), 2 - round as u128 % 2, 6, 50_000, cpu_s).await;
        let stored = splits(&root).await;
        assert_eq!(stored[0], 6, "round {round}: {stored:?}");
        assert!(used(&root).await <= budget);
    }
}

/// A snapshot without use for a long time is evicted for one of equal worth, and for an unmeasured one.
#[tokio::test]
async fn unused_parts_are_evicted() {
    for (cpu_s, days, goes) in [(1.0, 0.5, false), (1.0, 1.5, true), (0.0, 0.5, false), (0.0, 1.5, true)] {
        let folder = tempfile::tempdir().unwrap();
        let root = format!("file://{}", folder.path().display());
        job(&root, hasty(), 1, 4, 50_000, cpu_s).await;
        let mut folders = vec![folder.path().join("v1").join(fp(1).to_string())];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).unwrap().flatten() {
                if entry.path().is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                let file = std::fs::File::options().write(true).open(entry.path()).unwrap();
                let age = Duration::from_secs_f64(days * 86_400.0);
                file.set_modified(file.metadata().unwrap().modified().unwrap() - age).unwrap();
            }
        }
        let budget = used(&root).await + 20_000;
        let refused = job(&root, bounded(budget), 2, 2, 50_000, cpu_s).await;
        assert_eq!(refused == 0, goes, "{cpu_s} CPU s, unused for {days} days");
        assert_eq!(splits(&root).await[0], if goes { 2 } else { 4 });
    }
}

/// A part that is refused when much of it is written has evicted nothing.
#[tokio::test]
async fn nothing_is_evicted_for_a_part_that_is_refused_later() {
    let root = memory_root();
    job(&root, hasty(), 1, 2, 50_000, 0.001).await;
    job(&root, hasty(), 2, 6, 50_000, 100.0).await;
    let budget = used(&root).await + 5_000;
    assert_eq!(job(&root, bounded(budget), 3, 1, 300_000, 10.0).await, 1);
    assert_eq!(splits(&root).await, [2, 6]);
}

/// With records, manifests and usage records the root stays within its budget, and fills it.
#[tokio::test]
async fn the_bound_counts_everything_and_is_used() {
    for (budget, part) in
        [(16 << 10, 500), (60 << 10, 700), (60 << 10, 9_000), (300 << 10, 2_000), (300 << 10, 40_000)]
    {
        let root = memory_root();
        for (of, fold_after) in [(1, 64), (2, 3)] {
            // The default time for which the size of the root is used.
            let options = CacheOptions { budget_bytes: Some(budget), fold_after, ..hasty() };
            let cache = open_with(&root, options).await;
            for key in 0..200 {
                let stored = fill(&cache, of, key, part, 1.0).await;
                let now = cache.usage().await.unwrap().bytes;
                assert!(now <= budget, "{now} of {budget} after part {key} of {part} bytes");
                let Err(e) = stored else { continue };
                let whole = format!("{0} of {0}", format_bytes(budget));
                assert!(!e.message().contains(&whole), "{e}");
                break;
            }
            let snapshot = cache.snapshot(&fp(of));
            snapshot.record_job("a job with a name of some length");
            for (_, meta) in snapshot.index().await.unwrap().iter() {
                read(&snapshot, meta).await.unwrap();
            }
            let news = DescriptionUpdate { splits: Some(200), profile: serde_json::json!("p".repeat(2000)) };
            snapshot.update_description(&news).await.unwrap();
            cache.close(Duration::from_secs(5)).await.unwrap();
            let now = used(&root).await;
            assert!(
                now <= budget,
                "{now} of {budget} when snapshot {of} with parts of {part} bytes was closed"
            );
            assert!(!splits(&root).await.is_empty());
        }
        let now = used(&root).await;
        let room = (part as u64 + 6_000).max(budget / 4);
        assert!(now + room > budget, "only {now} of {budget} are used by parts of {part} bytes");
    }
}

/// The message counts stored bytes, not those that are being written.
#[tokio::test]
async fn a_full_cache_reports_correct_numbers() {
    let root = memory_root();
    let budget = 300 << 10;
    let cache = open_with(&root, CacheOptions { block_bytes: 10_000, ..bounded(budget) }).await;
    let snapshot = cache.snapshot(&fp(1));
    let batch = wide(10, 10_000, 1);
    let mut parts = Vec::new();
    for key in 0..5 {
        parts.push(writer(&snapshot, split(key), &batch.schema(), Encoding::default()).await);
    }
    let mut refusal = None;
    for _ in 0..30 {
        for part in &mut parts {
            if refusal.is_none() {
                refusal = part.write(&batch).await.err();
            }
        }
    }
    let e = refusal.unwrap();
    let there = cache.usage().await.unwrap().bytes;
    assert!(there < 3000, "{there}");
    assert!(e.message().contains(&format!("{} of 300.00 KiB are used", format_bytes(there))), "{e}");
    for part in parts {
        part.abort().await;
    }
}
