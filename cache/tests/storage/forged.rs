//! Forged parts with valid checksums, as anybody could write them who can write to the root: reading one gives rows or an
//! error that names the part, and does no other harm.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::*;
use arrow_array::{Int64Array, RecordBatch, StringArray};
use caju_cache::*;
use caju_types::{ErrorKind, mix64};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

/// A part in a folder of its own.
struct Part {
    folder: tempfile::TempDir,
    cache: Arc<Cache>,
    meta: PartMeta,
    bytes: Vec<u8>,
}

impl Part {
    async fn of(batch: &RecordBatch, text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = CacheOptions { block_bytes: 4 << 10, memory_tier_bytes: 0, ..CacheOptions::default() };
        let cache = open_with(folder.path().to_str().unwrap(), options).await;
        let meta = put(&cache.snapshot(&fp(1)), split(1), std::slice::from_ref(batch), encoding(text)).await;
        let mut part = Self { folder, cache, meta: meta.as_ref().clone(), bytes: Vec::new() };
        part.bytes = std::fs::read(part.file()).unwrap();
        part
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("v1").join(&self.meta.path)
    }

    /// Reads a part of these bytes, with valid checksums.
    async fn read_as(&self, bytes: &[u8]) -> caju_types::Result<RecordBatch> {
        std::fs::write(self.file(), bytes).unwrap();
        let (mut meta, mut at) = (self.meta.clone(), 0);
        for block in &mut meta.blocks {
            let end = at + block.bytes as usize;
            block.checksum = xxh3_64(&bytes[at..end]);
            at = end;
        }
        meta.checksum = format!("{:032x}", xxh3_128(bytes));
        read(&self.cache.snapshot(&fp(1)), &meta).await
    }

    fn assert_refused(&self, read: caju_types::Result<RecordBatch>) {
        let e = read.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DataLoss, "{e}");
        assert!(e.message().contains(&self.meta.path), "{e}");
    }
}

fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|w| w == what).unwrap()
}

fn four_letters() -> RecordBatch {
    let text = StringArray::from_iter_values((0..1000).map(|i| format!("{i:04}")));
    RecordBatch::try_from_iter([("text", Arc::new(text) as _)]).unwrap()
}

#[tokio::test]
async fn false_offsets_are_refused() {
    let part = Part::of(&four_letters(), "arrow/none").await;
    assert_eq!(part.read_as(&part.bytes).await.unwrap(), four_letters());
    let offsets: Vec<u8> = (0..10i32).flat_map(|i| (4 * i).to_le_bytes()).collect();
    let at = find(&part.bytes, &offsets) + 4 * 100;
    // After the text, far away, before it, and not in order.
    for lie in [4004, i32::MAX - 7, -400, 0] {
        let mut forged = part.bytes.clone();
        forged[at..at + 4].copy_from_slice(&i32::to_le_bytes(lie));
        part.assert_refused(part.read_as(&forged).await);
    }
}

#[tokio::test]
async fn invalid_text_is_refused() {
    for text in ["arrow/none", "parquet/none"] {
        let part = Part::of(&four_letters(), text).await;
        let mut forged = part.bytes.clone();
        let at = find(&forged, b"0500");
        forged[at] = 0xff;
        part.assert_refused(part.read_as(&forged).await);
    }
}

/// The decoder allocates memory by these lengths, and a failed allocation ends the process.
#[tokio::test]
async fn false_lengths_take_no_memory() {
    let numbers = Int64Array::from_iter_values((0..1000).map(|i| i % 7));
    let batch = RecordBatch::try_from_iter([("n", Arc::new(numbers) as _)]).unwrap();
    for text in ["arrow/lz4", "arrow/zstd"] {
        let part = Part::of(&batch, text).await;
        let at = find(&part.bytes, &8000u64.to_le_bytes());
        for lie in [1 << 49, 1 << 31, i64::MAX, -2, 7999] {
            let mut forged = part.bytes.clone();
            forged[at..at + 8].copy_from_slice(&i64::to_le_bytes(lie));
            part.assert_refused(part.read_as(&forged).await);
        }
    }
    let part = Part::of(&batch, "arrow/none").await;
    let snapshot = part.cache.snapshot(&fp(1));
    let mut meta = part.meta.clone();
    let block = &mut meta.blocks[0];
    (block.bytes, meta.bytes) = (block.bytes + (1 << 55), meta.bytes + (1 << 55));
    let file = std::fs::OpenOptions::new().write(true).open(part.file()).unwrap();
    // A sparse file takes no disk space: as large as the file system allows.
    for length in [1 << 55, 1 << 43, 1 << 33] {
        if file.set_len(length).is_ok() {
            meta.bytes = length;
            meta.blocks[0].bytes = length - meta.blocks[1..].iter().map(|b| b.bytes).sum::<u64>();
            break;
        }
    }
    drop(file);
    part.assert_refused(read(&snapshot, &meta).await);
}

/// Some hundred parts with one to three wrong bytes each. Rows may be wrong, since the checksums are forged, too. Nothing
/// else may happen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_with_wrong_bytes_is_refused_or_read() {
    let batch = rich(300, 7);
    for (n, text) in
        ["arrow/none", "arrow/lz4", "arrow/zstd", "parquet/none", "parquet/zstd"].into_iter().enumerate()
    {
        let part = Part::of(&batch, text).await;
        let mut refused = 0;
        for round in 0..120u64 {
            let draw = |k: u64| mix64(round * 64 + n as u64, k);
            let mut forged = part.bytes.clone();
            for k in 0..=draw(0) % 3 {
                let at = draw(10 + k) as usize % forged.len();
                forged[at] ^= 1 << (draw(20 + k) % 8);
            }
            match part.read_as(&forged).await {
                Ok(rows) => assert_eq!(rows.num_rows(), 300),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::DataLoss, "{text}, round {round}: {e}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 0, "{text}");
    }
}

/// Truncating a file while it is read gives the original rows or an error, and does not end the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_that_shrinks_while_it_is_read() {
    use futures::TryStreamExt;
    let folder = tempfile::tempdir().unwrap();
    let batch = rich(5000, 3);
    for mmap in [true, false] {
        let options = CacheOptions {
            mmap,
            block_bytes: 4 << 10,
            read_bytes: 8 << 10,
            memory_tier_bytes: 0,
            ..CacheOptions::default()
        };
        let cache = open_with(folder.path().to_str().unwrap(), options).await;
        let snapshot = cache.snapshot(&fp(1));
        let pieces: Vec<_> = (0..50).map(|i| batch.slice(i * 100, 100)).collect();
        let meta = put(&snapshot, split(u128::from(mmap)), &pieces, encoding("arrow/none")).await;
        let mut reader = snapshot.open_part(&meta, ReadOptions::default()).await.unwrap();
        assert!(reader.try_next().await.unwrap().is_some());
        let file = folder.path().join("v1").join(&meta.path);
        let cut = move || std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(100).unwrap();
        caju_runtime::blocking("cutting the part", cut).await.unwrap();
        let rest: Result<Vec<_>, _> = reader.try_collect().await;
        match rest {
            Ok(_) => assert!(mmap, "what was not read yet is gone"),
            Err(e) => assert_eq!(e.kind(), ErrorKind::DataLoss, "{e}"),
        }
        let e = read(&snapshot, &meta).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DataLoss, "{e}");
    }
}
