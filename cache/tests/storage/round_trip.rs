//! Written rows are read back equal, in every encoding, on every store.

use std::sync::Arc;

use crate::common::*;
use arrow::compute::{cast, concat_batches};
use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field};
use caju_cache::*;
use caju_types::ErrorKind;
use futures::TryStreamExt;
use proptest::prelude::*;

#[tokio::test]
async fn every_encoding_on_memory_and_files() {
    let folder = tempfile::tempdir().unwrap();
    for root in [memory_root(), format!("file://{}/cache", folder.path().display())] {
        let cache = open(&root).await;
        let snapshot = cache.snapshot(&fp(1));
        let batches = [rich(100, 1), rich(0, 2), rich(2000, 3), rich(1, 4)];
        let want = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
        for (i, encoding) in Encoding::ALL.into_iter().enumerate() {
            let key = split(i as u128);
            let meta = put(&snapshot, key, &batches, encoding).await;
            assert_eq!((meta.rows, meta.encoding), (2101, encoding));
            assert_same(&read(&snapshot, &meta).await.unwrap(), &want);
            let options = ReadOptions { projection: Some(vec![6, 0, 2]), ..ReadOptions::default() };
            let some = read_with(&snapshot, &meta, options).await.unwrap();
            assert_same(&some, &want.project(&[6, 0, 2]).unwrap());
            // Its record is sent as JSON.
            let text = serde_json::to_string(&*meta).unwrap();
            assert_eq!(serde_json::from_str::<PartMeta>(&text).unwrap(), *meta);
        }
        let index = snapshot.index().await.unwrap();
        assert_eq!((index.len(), index.rows()), (7, 7 * 2101));
        // Another process finds the same.
        let other = open(&root).await;
        let index = other.snapshot(&fp(1)).index().await.unwrap();
        assert_eq!(index.len(), 7);
        assert_eq!(index.description().unwrap().name, "test");
        let listed = other.list().await.unwrap();
        assert_eq!((listed.len(), listed[0].splits, listed[0].encodings.len()), (1, 7, 7));
        assert!(other.verify(None).await.unwrap().is_clean());
    }
}

#[tokio::test]
async fn an_empty_split_yields_an_empty_part() {
    let cache = open(&memory_root()).await;
    let snapshot = cache.snapshot(&fp(1));
    for (i, encoding) in Encoding::ALL.into_iter().enumerate() {
        let empty = rich(0, 1);
        let meta = put(&snapshot, split(i as u128), std::slice::from_ref(&empty), encoding).await;
        assert_eq!(meta.rows, 0);
        assert_same(&read(&snapshot, &meta).await.unwrap(), &empty);
    }
}

#[tokio::test]
async fn rows_without_columns_and_wrong_rows() {
    let cache = open(&memory_root()).await;
    let snapshot = cache.snapshot(&fp(1));
    let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(5));
    let schema = std::sync::Arc::new(arrow_schema::Schema::empty());
    let bare = arrow_array::RecordBatch::try_new_with_options(schema, vec![], &options).unwrap();
    let meta = put(&snapshot, split(0), std::slice::from_ref(&bare), encoding("arrow/zstd")).await;
    assert_eq!(read(&snapshot, &meta).await.unwrap().num_rows(), 5);
    let e = snapshot.put(split(1), &describe(), bare.schema(), encoding("parquet/none")).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    // The refusal has left nothing: the split can be put.
    let mut writer = writer(&snapshot, split(1), &numbers(0..1).schema(), encoding("parquet/none")).await;
    assert_eq!(writer.write(&rich(1, 1)).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(writer.finish(facts(7)).await.unwrap_err().kind(), ErrorKind::Internal);
    put(&snapshot, split(1), &[numbers(0..3)], encoding("parquet/lz4")).await;
}

/// Rows with 100 words that no other batch has: as a column, in a struct and in lists. Keys of 8 bits number them.
fn words(batch: usize) -> RecordBatch {
    let narrow = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let word = |i: usize| format!("{batch}-{}", i % 100);
    let mut lists = ListBuilder::new(StringBuilder::new());
    for i in 0..100 {
        lists.append_value([Some(word(i)), Some(word(i + 1))]);
    }
    let lists = cast(&lists.finish(), &DataType::new_list(narrow.clone(), true)).unwrap();
    let word = cast(&StringArray::from_iter_values((0..100).map(word)), &narrow).unwrap();
    let field = Field::new("word", narrow, true);
    let part: ArrayRef = Arc::new(StructArray::new(vec![field].into(), vec![Arc::clone(&word)], None));
    RecordBatch::try_from_iter([("word", word), ("part", part), ("lists", lists)]).unwrap()
}

/// The rows of several batches without dictionaries.
fn spelt_out(batches: &[RecordBatch]) -> RecordBatch {
    let part = DataType::Struct(vec![Field::new("word", DataType::Utf8, true)].into());
    let types = [DataType::Utf8, part, DataType::new_list(DataType::Utf8, true)];
    let plain = |batch: &RecordBatch| {
        let columns = ["word", "part", "lists"].into_iter().zip(batch.columns()).zip(&types);
        let columns = columns.map(|((name, column), to)| (name, cast(column, to).unwrap(), true));
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    };
    let batches: Vec<_> = batches.iter().map(plain).collect();
    concat_batches(&batches[0].schema(), &batches).unwrap()
}

/// Small batches are joined where they are stored. Together they have more values than narrow keys can number.
#[tokio::test]
async fn dictionaries_with_narrow_keys_are_read_back() {
    let cache = open(&memory_root()).await;
    let snapshot = cache.snapshot(&fp(1));
    let batches: Vec<_> = (0..5).map(words).collect();
    for (i, encoding) in Encoding::ALL.into_iter().enumerate() {
        let meta = put(&snapshot, split(i as u128), &batches, encoding).await;
        let part = snapshot.open_part(&meta, ReadOptions::default()).await.unwrap();
        let read: Vec<RecordBatch> = part.try_collect().await.unwrap();
        assert!(read.iter().all(|batch| batch.schema() == batches[0].schema()), "{encoding}");
        assert_same(&spelt_out(&read), &spelt_out(&batches));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_batches_in_any_encoding(
        sizes in prop::collection::vec(0usize..400, 1..6),
        seed in any::<u64>(),
        which in 0usize..7,
        block_bytes in 100usize..40_000,
        read_bytes in 1u64..100_000,
        slice in 0usize..50,
        mmap in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let folder = tempfile::tempdir().unwrap();
            let options = CacheOptions { block_bytes, read_bytes, mmap, memory_tier_bytes: 50_000, ..CacheOptions::default() };
            let cache = open_with(&format!("file://{}", folder.path().display()), options).await;
            let snapshot = cache.snapshot(&fp(1));
            let batches: Vec<_> = sizes.iter().enumerate().map(|(i, n)| {
                let batch = rich(n + slice, seed ^ i as u64);
                batch.slice(slice, *n)
            }).collect();
            let want = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
            let meta = put(&snapshot, split(0), &batches, Encoding::ALL[which]).await;
            for _ in 0..2 {
                assert_same(&read(&snapshot, &meta).await.unwrap(), &want);
            }
        });
    }
}
