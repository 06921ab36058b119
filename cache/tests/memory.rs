//! A test of its own process: it measures the memory of it.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod common;

use caju_cache::*;
use common::*;
use futures::StreamExt;

/// The binary's: the C library's keeps an arena per thread, and the figure would be that of the threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A part many times the size of all buffers is written and read inside them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_bounded_whatever_the_part() {
    let folder = tempfile::tempdir().unwrap();
    for (mmap, encoding) in [(false, "arrow/none"), (true, "arrow/none"), (false, "parquet/none")] {
        let options = CacheOptions { mmap, memory_tier_bytes: 0, ..CacheOptions::default() };
        let root = format!("file://{}/{mmap}-{encoding}", folder.path().display());
        let cache = open_with(&root, options).await;
        let snapshot = cache.snapshot(&fp(1));
        let batch = wide(16, 64 << 10, 1);
        let mut part = writer(&snapshot, split(0), &batch.schema(), common::encoding(encoding)).await;
        let before = caju_runtime::rss_bytes();
        let mut most = 0;
        for _ in 0..200 {
            part.write(&batch).await.unwrap();
            most = most.max(caju_runtime::rss_bytes().saturating_sub(before));
        }
        let committed = part.finish(facts(200 * 16)).await.unwrap();
        let meta = committed.meta();
        assert!(meta.bytes > 200 << 20);
        assert!(most < 128 << 20, "writing {encoding}: {} MiB", most >> 20);
        let mut reader = snapshot.open_part(meta, ReadOptions::default()).await.unwrap();
        let before = caju_runtime::rss_bytes();
        let (mut most, mut rows) = (0, 0);
        while let Some(batch) = reader.next().await {
            rows += batch.unwrap().num_rows();
            most = most.max(caju_runtime::rss_bytes().saturating_sub(before));
        }
        assert_eq!(rows, 200 * 16);
        // Mapped pages are the system's and count as resident.
        assert!(mmap || most < 128 << 20, "reading {encoding}: {} MiB", most >> 20);
    }
}
