//! Counts of requests: no storms of small reads, one listing per refresh.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use arrow_array::RecordBatch;
use caju_cache::*;
use caju_runtime::{IoSnapshot, Stores, SystemClock};
use caju_testkit::s3::S3Server;
use futures::StreamExt;
use tokio::sync::Semaphore;

fn since(cache: &Cache, before: IoSnapshot) -> IoSnapshot {
    let now = cache.counters().snapshot();
    IoSnapshot {
        reads: now.reads - before.reads,
        lists: now.lists - before.lists,
        writes: now.writes - before.writes,
        deletes: now.deletes - before.deletes,
        bytes_read: now.bytes_read - before.bytes_read,
        bytes_written: now.bytes_written - before.bytes_written,
        syncs: now.syncs - before.syncs,
    }
}

fn no_tiers() -> CacheOptions {
    CacheOptions { memory_tier_bytes: 0, ..CacheOptions::default() }
}

#[tokio::test]
async fn a_small_part_is_one_request() {
    for encoding in Encoding::ALL {
        let root = memory_root();
        let cache = open(&root).await;
        let snapshot = cache.snapshot(&fp(1));
        let first = put(&snapshot, split(0), &[rich(1000, 1)], encoding).await;
        let before = cache.counters().snapshot();
        put(&snapshot, split(1), &[rich(1000, 1)], encoding).await;
        let io = since(&cache, before);
        // A claim, a part, a record, and one read of a record that might exist.
        assert_eq!((io.writes, io.reads, io.lists, io.deletes), (3, 1, 0, 1), "{encoding}");

        let reader = open_with(&root, no_tiers()).await;
        let snapshot = reader.snapshot(&fp(1));
        let before = reader.counters().snapshot();
        read(&snapshot, &first).await.unwrap();
        let io = since(&reader, before);
        assert_eq!((io.reads, io.bytes_read), (1, first.bytes), "{encoding}");
        // Part after part: the lease is written once at most.
        let before = reader.counters().snapshot();
        for _ in 0..5 {
            read(&snapshot, &first).await.unwrap();
        }
        settle().await;
        let io = since(&reader, before);
        assert!(io.reads == 5 && io.writes <= 2, "{io:?}");
        // From memory: no request.
        read(&cache.snapshot(&fp(1)), &first).await.unwrap();
        let before = cache.counters().snapshot();
        read(&cache.snapshot(&fp(1)), &first).await.unwrap();
        assert_eq!(since(&cache, before).reads, 0, "{encoding}");
    }
}

#[tokio::test]
async fn a_large_part_is_few_large_requests() {
    let server = S3Server::start(&["bucket"]).await.unwrap();
    let stores = Stores::new(server.options(), None).unwrap();
    let url = "s3://bucket/cache";
    // A long lease: on a slow machine its renewals would be counted, too.
    let options = CacheOptions { lease_ttl: Duration::from_secs(600), ..no_tiers() };
    let cache = Cache::open(&stores, url, options, SystemClock::shared(), writer_id()).await.unwrap();
    let snapshot = cache.snapshot(&fp(1));
    let batches: Vec<_> = (0..20).map(|i| wide(32, 64 << 10, i)).collect();
    for encoding in [encoding("arrow/none"), encoding("parquet/none")] {
        let key = split(encoding.format as u128);
        let (before, seen) = (cache.counters().snapshot(), server.requests());
        let meta = put(&snapshot, key, &batches, encoding).await;
        let (io, wire) = (since(&cache, before), server.requests());
        let least = meta.bytes.div_ceil(8 << 20);
        assert!(least >= 5, "much larger than one request: {}", meta.bytes);
        assert!(io.writes <= least + 6, "{encoding}: {io:?}");
        let written = (wire.puts + wire.posts) - (seen.puts + seen.posts);
        assert!(written <= least + 8, "{encoding}: {written} requests on the wire to write {}", meta.bytes);
        let before = cache.counters().snapshot();
        assert_eq!(read(&snapshot, &meta).await.unwrap().num_rows(), 640);
        let (io, now) = (since(&cache, before), server.requests());
        assert_eq!(io.bytes_read, meta.bytes, "{encoding}: every byte once");
        assert!(io.reads <= 2 * least + 2, "{encoding}: {io:?} for {}", meta.bytes);
        // The server's own count: retries and split requests of the client would show.
        assert_eq!((now.gets - wire.gets, now.heads - wire.heads), (io.reads, 0), "{encoding}");
    }
    cache.close(Duration::from_secs(10)).await.unwrap();
}

/// A cache in a bucket whose parts are read a megabyte at a time.
async fn with_small_requests(server: &S3Server) -> Arc<Cache> {
    let stores = Stores::new(server.options(), None).unwrap();
    let options = CacheOptions { read_bytes: 1 << 20, block_bytes: 1 << 20, ..no_tiers() };
    Cache::open(&stores, "s3://bucket/cache", options, SystemClock::shared(), writer_id()).await.unwrap()
}

#[tokio::test]
async fn a_part_comes_while_nobody_waits_for_it() {
    let server = S3Server::start(&["bucket"]).await.unwrap();
    let cache = with_small_requests(&server).await;
    let snapshot = cache.snapshot(&fp(1));
    let batches: Vec<_> = (0..12).map(|i| wide(32, 64 << 10, i)).collect();
    for encoding in [encoding("arrow/none"), encoding("parquet/none")] {
        let meta = put(&snapshot, split(encoding.format as u128), &batches, encoding).await;
        let before = server.requests().gets;
        let mut reader = snapshot.open_part(&meta, ReadOptions::default()).await.unwrap();
        let mut rows = reader.next().await.unwrap().unwrap().num_rows();
        // The footer and the first group were requested so far. Four more groups are requested although no rows are taken:
        // the decoded group does not count, and row groups do not matter.
        let asked = async {
            while server.requests().gets < before + 6 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap();
        while let Some(batch) = reader.next().await {
            rows += batch.unwrap().num_rows();
        }
        assert_eq!(rows, 12 * 32, "{encoding}");
    }
    cache.close(Duration::from_secs(10)).await.unwrap();
}

/// A request holds its permit until its answer arrives, whether the answer is taken or not. Permits are given in order.
#[tokio::test]
async fn readers_share_permits_that_answers_release() {
    let server = S3Server::start(&["bucket"]).await.unwrap();
    let cache = with_small_requests(&server).await;
    let snapshot = cache.snapshot(&fp(1));
    let batches: Vec<_> = (0..12).map(|i| wide(32, 64 << 10, i)).collect();
    let few = [wide(8, 64 << 10, 0)];
    let asked = async |gets: u64| {
        while server.requests().gets < gets {
            tokio::task::yield_now().await;
        }
    };
    for (encoding, batches, small) in [
        (encoding("arrow/none"), &batches[..], false),
        (encoding("parquet/none"), &batches[..], false),
        (encoding("arrow/zstd"), &few[..], true),
        (encoding("parquet/zstd"), &few[..], true),
    ] {
        let key = split(u128::from(small) << 8 | encoding.format as u128);
        let meta = put(&snapshot, key, batches, encoding).await;
        assert_eq!(meta.bytes < 1 << 20, small, "{encoding}: {}", meta.bytes);
        let limiter = Arc::new(Semaphore::new(1));
        let options = ReadOptions { limiter: Some(Arc::clone(&limiter)), ..ReadOptions::default() };
        let others = Arc::clone(&limiter).acquire_owned().await.unwrap();
        let before = server.requests().gets;
        let mut read = std::pin::pin!(async {
            let mut reader = snapshot.open_part(&meta, options).await.unwrap();
            let rows = reader.next().await.unwrap().unwrap().num_rows();
            (reader, rows)
        });
        for _ in 0..1000 {
            assert!(futures::poll!(read.as_mut()).is_pending(), "{encoding}");
            tokio::task::yield_now().await;
        }
        let footer = u64::from(!small);
        assert_eq!(server.requests().gets - before, footer, "{encoding}: out of turn");
        drop(others);
        let (mut reader, mut rows) = read.await;
        if !small {
            tokio::time::timeout(Duration::from_secs(60), asked(before + 6)).await.unwrap();
        }
        while let Some(batch) = reader.next().await {
            rows += batch.unwrap().num_rows();
        }
        let all: usize = batches.iter().map(RecordBatch::num_rows).sum();
        assert_eq!((rows, limiter.available_permits()), (all, 1), "{encoding}");
    }
    cache.close(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn a_refresh_is_one_listing() {
    let root = memory_root();
    let cache = open(&root).await;
    let snapshot = cache.snapshot(&fp(1));
    for i in 0..70 {
        put(&snapshot, split(i), &[numbers(0..10)], Encoding::default()).await;
    }
    snapshot.index().await.unwrap();
    let before = cache.counters().snapshot();
    assert_eq!(snapshot.index().await.unwrap().len(), 70);
    let io = since(&cache, before);
    assert_eq!((io.lists, io.reads), (1, 0));

    // Another process: a manifest covers the first 64 commits, and the others are read one by one.
    let other = open(&root).await;
    let before = other.counters().snapshot();
    assert_eq!(other.snapshot(&fp(1)).index().await.unwrap().len(), 70);
    let io = since(&other, before);
    assert!(io.lists == 1 && io.reads <= 1 + 6, "{io:?}");
    cache.close(Duration::from_secs(10)).await.unwrap();
    let third = open(&root).await;
    let before = third.counters().snapshot();
    assert_eq!(third.snapshot(&fp(1)).index().await.unwrap().len(), 70);
    let io = since(&third, before);
    assert_eq!((io.lists, io.reads), (1, 1), "all folded");
    // New commits cost one read each.
    put(&other.snapshot(&fp(1)), split(100), &[numbers(0..10)], Encoding::default()).await;
    let before = third.counters().snapshot();
    assert_eq!(third.snapshot(&fp(1)).index().await.unwrap().len(), 71);
    let io = since(&third, before);
    assert_eq!((io.lists, io.reads), (1, 1));
}

#[tokio::test]
async fn the_disk_tier_spares_the_store_and_is_not_trusted() {
    let root = memory_root();
    let folder = tempfile::tempdir().unwrap();
    let options = || CacheOptions {
        memory_tier_bytes: 0,
        disk_tier: Some((folder.path().to_path_buf(), 10 << 20)),
        block_bytes: 20_000,
        ..CacheOptions::default()
    };
    let cache = open_with(&root, options()).await;
    let batches: Vec<_> = (0..10).map(|i| rich(1500, i)).collect();
    let want = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
    for encoding in [encoding("arrow/none"), encoding("parquet/none")] {
        let snapshot = cache.snapshot(&fp(encoding.format as u128));
        let meta = put(&snapshot, split(0), &batches, encoding).await;
        assert!(meta.blocks.len() > 3);
        read(&snapshot, &meta).await.unwrap();
        // Another process with the same folder.
        let second = open_with(&root, options()).await;
        let snapshot = second.snapshot(&fp(encoding.format as u128));
        let before = second.counters().snapshot();
        assert_same(&read(&snapshot, &meta).await.unwrap(), &want);
        assert_eq!(since(&second, before).reads, 0, "{encoding}");
        for entry in std::fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[0] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
        assert_same(&read(&snapshot, &meta).await.unwrap(), &want);
        assert!(since(&second, before).reads > 0, "{encoding}");
    }
    assert!(cache.tier_bytes().1 <= 10 << 20);
}
