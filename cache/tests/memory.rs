//! Measures the memory of its own process, so this is the only test in it.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
#![allow(unsafe_code, reason = "an allocator that counts")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use caju_cache::*;
use common::*;
use futures::StreamExt;

/// Counts allocated bytes that were not freed yet. Memory that the allocator keeps for later does not count.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn live() -> usize {
    LIVE.load(Ordering::Relaxed)
}

/// A part many times as large as all buffers is written and read within them.
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
        let before = live();
        let mut most = 0;
        for _ in 0..200 {
            part.write(&batch).await.unwrap();
            most = most.max(live().saturating_sub(before));
        }
        let committed = part.finish(facts(200 * 16)).await.unwrap();
        let meta = committed.meta();
        assert!(meta.bytes > 200 << 20);
        assert!(most < 96 << 20, "writing {encoding}: {} MiB", most >> 20);
        let mut reader = snapshot.open_part(meta, ReadOptions::default()).await.unwrap();
        let before = live();
        let (mut most, mut rows) = (0, 0);
        while let Some(batch) = reader.next().await {
            rows += batch.unwrap().num_rows();
            most = most.max(live().saturating_sub(before));
        }
        assert_eq!(rows, 200 * 16);
        assert!(most < 96 << 20, "reading {encoding}: {} MiB", most >> 20);
    }
}
