//! Parts in chunks of a given size: chunks read one by one are the whole part. And a root that is only read.

use crate::common::*;
use arrow_array::RecordBatch;
use caju_cache::*;
use futures::TryStreamExt;
use proptest::prelude::*;

async fn chunked(snapshot: &Snapshot, batches: &[RecordBatch], encoding: Encoding, bytes: u64) -> PartMeta {
    let outcome = snapshot.put(split(0), &describe(), batches[0].schema(), encoding).await.unwrap();
    let PutOutcome::Writer(mut writer) = outcome else { panic!("{outcome:?}") };
    writer.set_chunk_bytes(bytes);
    for batch in batches {
        writer.write(batch).await.unwrap();
    }
    let rows = batches.iter().map(|b| b.num_rows() as u64).sum();
    writer.finish(facts(rows)).await.unwrap().meta().as_ref().clone()
}

async fn rows(snapshot: &Snapshot, meta: &PartMeta, chunks: std::ops::Range<usize>) -> Vec<RecordBatch> {
    let options = ReadOptions { chunks: Some(chunks), ..ReadOptions::default() };
    snapshot.open_part(meta, options).await.unwrap().try_collect().await.unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]
    #[test]
    fn chunks_one_by_one_are_the_whole(
        sizes in prop::collection::vec(0usize..50, 1..4),
        seed in any::<u64>(),
        which in 0usize..7,
        bytes in prop_oneof![Just(1u64), 100u64..100_000],
        block_bytes in 100usize..40_000,
        read_bytes in 1u64..100_000,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let options = CacheOptions { block_bytes, read_bytes, memory_tier_bytes: 50_000, ..CacheOptions::default() };
            let cache = open_with(&memory_root(), options).await;
            let snapshot = cache.snapshot(&fp(1));
            let batches: Vec<_> = sizes.iter().enumerate().map(|(i, n)| rich(*n, seed ^ i as u64)).collect();
            let want = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
            let meta = chunked(&snapshot, &batches, Encoding::ALL[which], bytes).await;
            assert_eq!(meta.chunks.iter().sum::<u64>() as usize, want.num_rows());
            assert!(bytes > 1 || meta.chunks.iter().all(|n| *n == 1), "one row per chunk: {:?}", meta.chunks);
            let mut all = Vec::new();
            for (i, n) in meta.chunks.iter().enumerate() {
                let got = rows(&snapshot, &meta, i..i + 1).await;
                assert_eq!(got.iter().map(RecordBatch::num_rows).sum::<usize>() as u64, *n);
                all.extend(got);
            }
            let all = arrow::compute::concat_batches(&want.schema(), &all).unwrap();
            assert_same(&all, &want);
            let half = meta.chunks.len() / 2;
            let mut halves = rows(&snapshot, &meta, 0..half).await;
            halves.extend(rows(&snapshot, &meta, half..meta.chunks.len()).await);
            assert_same(&arrow::compute::concat_batches(&want.schema(), &halves).unwrap(), &want);
            assert_same(&read(&snapshot, &meta).await.unwrap(), &want);
        });
    }
}

#[tokio::test]
async fn a_read_only_cache_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let root = root.to_str().unwrap();
    let batch = rich(100, 3);
    {
        let cache = open(root).await;
        chunked(&cache.snapshot(&fp(1)), std::slice::from_ref(&batch), Encoding::default(), 500).await;
        cache.close(std::time::Duration::from_secs(5)).await.unwrap();
    }
    let files = || {
        let mut all: Vec<_> = walk(folder.path())
            .into_iter()
            .map(|f| (std::fs::metadata(&f).unwrap().modified().unwrap(), f))
            .collect();
        all.sort();
        all
    };
    let before = files();
    let cache = open_with(root, CacheOptions { read_only: true, ..CacheOptions::default() }).await;
    let snapshot = cache.snapshot(&fp(1));
    let meta = snapshot.index().await.unwrap().get(&split(0)).unwrap().as_ref().clone();
    assert_same(&read(&snapshot, &meta).await.unwrap(), &batch);
    cache.close(std::time::Duration::from_secs(5)).await.unwrap();
    assert_eq!(files(), before);
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() => out.extend(walk(&path)),
            path => out.push(path),
        }
    }
    out
}
