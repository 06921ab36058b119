//! Parquet, Arrow IPC, images, ranges and combinators: every row once, in order, and clear refusals.

use std::sync::Arc;

use ::parquet::arrow::ArrowWriter;
use ::parquet::file::properties::WriterProperties;
use arrow::ipc::writer::{FileWriter, StreamWriter};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, DictionaryArray, Int64Array, LargeStringArray, RecordBatch, StringArray};
use arrow_schema::{DataType, Schema};
use caju_pipeline::{DatasetDef, FileFormat, Options, SourceDef, StageDef, StageOp};
use caju_types::ErrorKind;
use futures::{StreamExt, TryStreamExt};
use proptest::prelude::*;

use crate::open::open_source;
use crate::source::ReadOptions;
use crate::split::Split;
use crate::test_util::*;

fn table(rows: std::ops::Range<i64>) -> RecordBatch {
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(rows.clone()));
    let name: ArrayRef =
        Arc::new(rows.map(|i| (i % 7 != 0).then(|| format!("name-{}", i % 10))).collect::<StringArray>());
    RecordBatch::try_from_iter([("id", id), ("name", name)]).unwrap()
}

fn to_parquet(batch: &RecordBatch, group: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group)).build();
    let mut writer = ArrowWriter::try_new(&mut out, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
    out
}

fn to_ipc(batch: &RecordBatch, group: usize) -> Vec<u8> {
    let mut writer = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    for at in (0..batch.num_rows()).step_by(group) {
        writer.write(&batch.slice(at, group.min(batch.num_rows() - at))).unwrap();
    }
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

fn parquet_format() -> FileFormat {
    FileFormat::Parquet { columns: None }
}

fn arrow_format() -> FileFormat {
    FileFormat::Arrow { columns: None }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]
    #[test]
    fn splits_partition_the_rows(
        rows in 1i64..500, group in 1usize..100, split_bytes in 1u64..4000, batch in 1usize..80, bytes in 1usize..5000,
        trim in (0u64..120, 0u64..120), local in any::<bool>(),
    ) {
        run(async {
            let ctx = context();
            let dir = tempfile::tempdir().unwrap();
            let folder = if local { format!("file://{}", dir.path().display()) } else { fresh() };
            let want = table(0..rows);
            put(&ctx, &format!("{folder}/a.parquet"), to_parquet(&want, group)).await;
            put(&ctx, &format!("{folder}/a.arrow"), to_ipc(&want, group)).await;
            for (name, format) in [("a.parquet", parquet_format()), ("a.arrow", arrow_format())] {
                let mut def = def(format, &format!("{folder}/{name}"));
                def.split_bytes = split_bytes;
                let source = open(&ctx, &def).await.unwrap();
                let got = source_rows(&source, &small(batch, bytes)).await.unwrap().unwrap();
                assert_eq!(got.columns(), want.columns(), "{name}");
                // Any window of a split's rows.
                let mut split = splits(&source).await.unwrap().swap_remove(0);
                let n = split.rows.unwrap();
                split.trim = Some(trim);
                let got = crate::test_util::rows(&source, &split, &small(batch, bytes)).await.unwrap();
                let len = n.saturating_sub(trim.0).min(trim.1);
                match got {
                    None => assert_eq!(len, 0),
                    Some(b) => assert_eq!(b.columns(), want.slice(trim.0 as usize, len as usize).columns()),
                }
            }
        });
    }

    #[test]
    fn ranges_are_exact(start in any::<i64>(), n in 0i64..300_000, step in prop_oneof![Just(1i64), Just(-3), 1..50i64]) {
        run(async {
            let ctx = context();
            let end = start.saturating_add(n.saturating_mul(step.signum()));
            let def = SourceDef::Range { start, end, step };
            let source = open_source(&def, &ctx, None).await.unwrap();
            let got = source_rows(&source, &small(8192, 1 << 20)).await.unwrap();
            let mut want = Vec::new();
            let mut at = i128::from(start);
            while if step > 0 { at < end.into() } else { at > end.into() } {
                want.push(at as i64);
                at += i128::from(step);
            }
            let got = got.map_or(vec![], |b| b.column(0).as_primitive::<Int64Type>().values().to_vec());
            assert!(got == want, "{start} {end} {step}");
        });
    }
}

#[tokio::test]
async fn a_large_range_feeds_many_workers_and_its_splits_are_stable() {
    let ctx = context();
    let open = |end| {
        let ctx = ctx.clone();
        async move { open_source(&SourceDef::Range { start: 0, end, step: 1 }, &ctx, None).await.unwrap() }
    };
    let ten: Vec<Split> = splits(&open(10_000_000).await).await.unwrap();
    assert_eq!(ten.len(), 39);
    let more: Vec<Split> = splits(&open(11_000_000).await).await.unwrap();
    assert_eq!(ten[..38], more[..38]);
    assert!(splits(&open(10_000).await).await.unwrap().len() > 5);
}

#[tokio::test]
async fn parquet_reads_only_the_columns_asked_for() {
    let ctx = context();
    let url = format!("{}/a.parquet", fresh());
    let wide: ArrayRef =
        Arc::new((0..10_000).map(|i| Some(format!("{i}").repeat(50))).collect::<StringArray>());
    let thin: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10_000));
    let batch = RecordBatch::try_from_iter([("wide", wide), ("thin", thin)]).unwrap();
    put(&ctx, &url, to_parquet(&batch, 1_000_000)).await;
    let source = open(&ctx, &def(parquet_format(), &url)).await.unwrap();
    let split = splits(&source).await.unwrap().remove(0);
    let before = ctx.io.snapshot();
    let options = ReadOptions { projection: Some(vec![1]), ..ReadOptions::default() };
    let got = rows(&source, &split, &options).await.unwrap().unwrap();
    assert_eq!(got.column(0), batch.column(1));
    let after = ctx.io.snapshot();
    // The footer is known: one request for the one column.
    assert_eq!(after.reads - before.reads, 1);
    assert!(after.bytes_read - before.bytes_read < 100_000);
}

#[tokio::test]
async fn text_has_one_type_and_dictionaries_are_kept_on_request() {
    let ctx = context();
    let folder = fresh();
    let large: ArrayRef = Arc::new(LargeStringArray::from(vec!["a", "b"]));
    let dictionary: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::from_iter(["c", "d"]));
    let plain: ArrayRef = Arc::new(StringArray::from(vec!["e", "f"]));
    for (i, column) in [large, dictionary, plain].into_iter().enumerate() {
        let batch = RecordBatch::try_from_iter([("s", column)]).unwrap();
        put(&ctx, &format!("{folder}/{i}.parquet"), to_parquet(&batch, 10)).await;
    }
    let def = def(parquet_format(), &format!("{folder}/*.parquet"));
    let all = all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap().unwrap();
    assert_eq!(all.column(0).as_ref(), &StringArray::from(vec!["a", "b", "c", "d", "e", "f"]) as &dyn Array);
    let options = ReadOptions { keep_dictionaries: vec![0], ..ReadOptions::default() };
    let all = all_rows(&ctx, &def, &options).await.unwrap().unwrap();
    assert_eq!(all.column(0).as_dictionary::<Int32Type>().len(), 6);
}

#[tokio::test]
async fn siblings_of_another_schema_are_refused() {
    let ctx = context();
    let batch = table(0..10);
    let ids = |values: ArrayRef| RecordBatch::try_from_iter([("id", values)]).unwrap();
    let texts = RecordBatch::try_from_iter([
        ("id", Arc::new(StringArray::from(vec!["x"])) as ArrayRef),
        ("name", Arc::new(StringArray::from(vec!["x"])) as ArrayRef),
    ])
    .unwrap();
    let lacks = ids(Arc::new(Int64Array::from(vec![1])));
    let twice = RecordBatch::try_from_iter([
        ("id", Arc::clone(lacks.column(0))),
        ("id", Arc::clone(lacks.column(0))),
        ("name", Arc::clone(texts.column(1))),
    ])
    .unwrap();
    for (other, what) in [
        (texts, "column `id` is Utf8 instead of Int64"),
        (lacks, "it has no column `name`"),
        (twice, "it has several columns `id`"),
    ] {
        type Write = fn(&RecordBatch, usize) -> Vec<u8>;
        for (format, extension, write) in
            [(parquet_format(), "parquet", to_parquet as Write), (arrow_format(), "arrow", to_ipc as Write)]
        {
            let folder = fresh();
            put(&ctx, &format!("{folder}/a.{extension}"), write(&batch, 10)).await;
            put(&ctx, &format!("{folder}/b.{extension}"), write(&other, 10)).await;
            let def = def(format, &folder);
            let e = all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap_err();
            let want = format!(
                "{folder}/b.{extension}: its schema differs from that of {folder}/a.{extension}: {what}; give the \
                 source only files of one schema, or name the columns that they share in `columns`"
            );
            assert_eq!((e.kind(), e.message()), (ErrorKind::InvalidArgument, want.as_str()));
        }
    }
    let folder = fresh();
    put(&ctx, &format!("{folder}/a.parquet"), to_parquet(&batch, 10)).await;
    put(&ctx, &format!("{folder}/b.parquet"), to_parquet(&batch.project(&[0]).unwrap(), 10)).await;
    let mut def = def(FileFormat::Parquet { columns: Some(vec!["id".into()]) }, &folder);
    assert_eq!(all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap().unwrap().num_rows(), 20);
    def.format = FileFormat::Parquet { columns: Some(vec!["idd".into()]) };
    let e = all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap_err();
    let want =
        format!("{folder}/a.parquet: has no column `idd`; did you mean `id`?; its columns are id, name");
    assert_eq!(e.message(), want);
}

#[tokio::test]
async fn damaged_columnar_files_are_errors() {
    let ctx = context();
    let batch = table(0..1000);
    for (format, good) in [(parquet_format(), to_parquet(&batch, 100)), (arrow_format(), to_ipc(&batch, 100))]
    {
        let url = format!("{}/x", fresh());
        let mut cases = vec![Vec::from(&b"short"[..]), vec![b'x'; 500], good[..good.len() / 2].to_vec()];
        // Any byte of the end turned around.
        cases.extend((1..400).step_by(7).map(|i| {
            let mut bad = good.clone();
            let at = bad.len() - i;
            bad[at] ^= 0x55;
            bad
        }));
        for (i, bad) in cases.into_iter().enumerate() {
            put(&ctx, &url, bad).await;
            let result = all_rows(&ctx, &def(format.clone(), &url), &ReadOptions::default()).await;
            if let Err(e) = result {
                assert!(e.message().starts_with(&url) && e.is_data_error(), "{e}");
            } else {
                assert!(i > 2);
            }
        }
    }
}

#[tokio::test]
async fn missing_files_and_empty_globs_show_when_a_source_is_opened() {
    let ctx = context();
    let folder = fresh();
    put(&ctx, &format!("{folder}/train.parquet"), to_parquet(&table(0..1), 10)).await;
    for (path, want) in [
        (
            format!("{folder}/train.parque"),
            format!(
                "{folder}/train.parque: no such file or folder; the folder {folder} holds train.parquet; did you mean \
                 `train.parquet`?"
            ),
        ),
        (
            format!("{folder}/*.pq"),
            format!("no file matches {folder}/*.pq; the folder {folder} holds train.parquet"),
        ),
    ] {
        let Err(e) = open(&ctx, &def(parquet_format(), &path)).await else { panic!("{path}") };
        assert_eq!((e.kind(), e.message()), (ErrorKind::NotFound, want.as_str()));
    }
}

#[tokio::test]
async fn a_file_that_two_paths_match_is_refused() {
    let ctx = context();
    let folder = fresh();
    for i in 0..3 {
        put(&ctx, &format!("{folder}/{i}.parquet"), to_parquet(&table(i * 10..i * 10 + 10), 10)).await;
    }
    let mut def = def(parquet_format(), &format!("{folder}/2.parquet"));
    def.paths.push(format!("{folder}/*.parquet"));
    let e = all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap_err();
    let want = format!(
        "{folder}/2.parquet: two paths of the source match this file, `{folder}/2.parquet` and `{folder}/*.parquet`"
    );
    assert!(e.message().starts_with(&want) && e.message().contains("`concatenate`"), "{e}");
}

#[tokio::test]
async fn partition_columns_are_not_lost_without_a_word() {
    let ctx = context();
    let folder = fresh();
    for y in 1..3 {
        put(&ctx, &format!("{folder}/y={y}/a.parquet"), to_parquet(&table(0..10), 10)).await;
    }
    for path in [folder.clone(), format!("{folder}/*/*.parquet"), format!("{folder}/**/*.parquet")] {
        let e = all_rows(&ctx, &def(parquet_format(), &path), &ReadOptions::default()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(
            e.message().starts_with(&format!("{folder}/y=1/a.parquet: ")) && e.message().contains("`y`"),
            "{e}"
        );
    }
    for (path, rows) in [("y=*", 20), ("y=1/a.parquet", 10), ("y=2", 10)] {
        let def = def(parquet_format(), &format!("{folder}/{path}").replace("y=*", "y=*/*"));
        let all = all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap().unwrap();
        assert_eq!(all.num_rows(), rows, "{path}");
    }
}

#[tokio::test]
async fn images_are_grouped() {
    let ctx = context();
    let folder = fresh();
    for (name, size) in
        [("cat/1.jpg", 300), ("cat/2.JPG", 300), ("cat/notes.txt", 9), ("dog/1.png", 5000), ("dog/2.png", 10)]
    {
        put(&ctx, &format!("{folder}/{name}"), vec![size as u8; size]).await;
    }
    let mut def = def(FileFormat::Images, &folder);
    def.split_bytes = 1000;
    let source = open(&ctx, &def).await.unwrap();
    let cuts: Vec<_> = splits(&source).await.unwrap().iter().map(|s| s.rows.unwrap()).collect();
    assert_eq!(cuts, [2, 1, 1]);
    let all = source_rows(&source, &small(10, 400)).await.unwrap().unwrap();
    let labels: Vec<_> = all.column(2).as_string::<i32>().iter().flatten().map(str::to_string).collect();
    assert_eq!(labels, ["cat", "cat", "dog", "dog"]);
    assert_eq!(all.column(0).as_string::<i32>().value(2), format!("{folder}/dog/1.png"));
    assert_eq!(all.column(1).as_binary::<i32>().value(2).len(), 5000);
}

#[tokio::test]
async fn an_image_file_above_the_largest_record_names_the_option() {
    let ctx = context_of_records(1024);
    let url = format!("{}/1.jpg", fresh());
    put(&ctx, &url, vec![0; 3000]).await;
    let e = all_rows(&ctx, &def(FileFormat::Images, &url), &ReadOptions::default()).await.unwrap_err();
    assert_names_max_record(&e, &url, "has 3000 bytes, more than the 1024 that a row may have");
}

fn dataset(source: SourceDef, stages: Vec<StageOp>) -> DatasetDef {
    let stages = stages.into_iter().map(|op| StageDef { op }).collect();
    DatasetDef { name: None, source, stages, options: Options::default() }
}

fn range(start: i64, end: i64) -> DatasetDef {
    dataset(SourceDef::Range { start, end, step: 1 }, vec![])
}

fn memory(batch: &RecordBatch) -> DatasetDef {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    dataset(SourceDef::Memory { ipc: writer.into_inner().unwrap().into() }, vec![])
}

fn ids(batch: &RecordBatch) -> Vec<i64> {
    batch.column(0).as_primitive::<Int64Type>().values().to_vec()
}

#[tokio::test]
async fn rows_in_memory() {
    let ctx = context();
    let batch = table(0..200_000);
    let source = open_source(&memory(&batch).source, &ctx, None).await.unwrap();
    assert_eq!(splits(&source).await.unwrap().len(), 4);
    let all = source_rows(&source, &small(1000, 1 << 20)).await.unwrap().unwrap();
    assert_eq!(all.columns(), batch.columns());
    let Err(e) = open_source(&SourceDef::Memory { ipc: "no".into() }, &ctx, None).await else { panic!() };
    assert!(e.message().starts_with("source memory: the rows are not a valid Arrow IPC stream"), "{e}");
}

#[tokio::test]
async fn concatenated_and_sampled_datasets_keep_their_splits_apart() {
    let ctx = context();
    let nested = dataset(SourceDef::Concatenate(vec![range(10, 20), range(0, 10)]), vec![]);
    let def = SourceDef::Concatenate(vec![range(0, 10), nested, range(0, 10)]);
    let source = open_source(&def, &ctx, None).await.unwrap();
    let children: Vec<_> = splits(&source).await.unwrap().into_iter().map(|s| s.child).collect();
    assert_eq!(children, [vec![0], vec![1, 0], vec![1, 1], vec![2]]);
    // `source_rows` checks that the equal ranges have unequal keys.
    let all = source_rows(&source, &ReadOptions::default()).await.unwrap().unwrap();
    assert_eq!(ids(&all), (0..10).chain(10..20).chain(0..10).chain(0..10).collect::<Vec<_>>());

    let def = SourceDef::Sample {
        datasets: vec![range(0, 8192), range(0, 3072)],
        weights: vec![3.0, 1.0],
        seed: None,
    };
    let source = open_source(&def, &ctx, None).await.unwrap();
    let turns: Vec<u32> = splits(&source).await.unwrap().into_iter().map(|s| s.child[0]).collect();
    assert_eq!(turns, [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1]);
    let all = source_rows(&source, &ReadOptions::default()).await.unwrap().unwrap();
    assert_eq!(all.num_rows(), 8192 + 3072);
}

#[tokio::test]
async fn zipped_rows_are_aligned_or_refused() {
    let ctx = context();
    let url = format!("{}/a.parquet", fresh());
    put(&ctx, &url, to_parquet(&table(0..3000), 700)).await;
    let mut files = def(parquet_format(), &url);
    files.split_bytes = 1;
    let parquet = || dataset(SourceDef::Files(files.clone()), vec![]);
    let renamed = |rows| {
        let b = table(rows);
        let fields = ["x", "y"]
            .iter()
            .zip(b.schema().fields())
            .map(|(n, f)| f.as_ref().clone().with_name(*n))
            .collect::<Vec<_>>();
        memory(&RecordBatch::try_new(Arc::new(Schema::new(fields)), b.columns().to_vec()).unwrap())
    };
    for first in [parquet(), renamed(0..3000)] {
        let second = if first == parquet() { renamed(0..3000) } else { parquet() };
        let def = SourceDef::Zip(vec![first, second, range(0, 3000)]);
        let source = open_source(&def, &ctx, None).await.unwrap();
        let all = source_rows(&source, &small(100, 1 << 20)).await.unwrap().unwrap();
        assert_eq!((all.num_rows(), all.num_columns()), (3000, 5));
        assert_eq!(all.column(0), all.column(2));
        assert_eq!(all.column(0).as_ref(), all.column(4).as_ref());
        let mut split = splits(&source).await.unwrap().swap_remove(0);
        split.trim = Some((10, 5));
        let part = rows(&source, &split, &small(7, 1 << 20)).await.unwrap().unwrap();
        assert_eq!(ids(&part), (10..15).collect::<Vec<_>>());
    }
    let csv = format!("{}/a.csv", fresh());
    put(&ctx, &csv, "a\n1\n").await;
    let csv = def(
        FileFormat::Csv {
            header: true,
            delimiter: ',',
            schema: None,
            compression: caju_pipeline::Compression::Auto,
        },
        &csv,
    );
    let filtered = dataset(range(0, 10).source, vec![StageOp::Filter("id > 1".into())]);
    let inside = dataset(SourceDef::Concatenate(vec![filtered.clone()]), vec![]);
    for (children, want) in [
        (vec![range(0, 10), range(0, 9)], "dataset 1 ends after 9 rows and dataset 0 has more"),
        (vec![range(0, 9), range(0, 10)], "dataset 0 ends after 9 rows and dataset 1 has more"),
        (vec![range(0, 10), filtered], "dataset 1 has a `filter`, behind which row numbers are not known"),
        (vec![inside, range(0, 10)], "dataset 0 has a `filter`, behind which row numbers are not known"),
        (vec![dataset(SourceDef::Files(csv), vec![]), range(0, 1)], "is not known without reading it"),
    ] {
        let e = match open_source(&SourceDef::Zip(children), &ctx, None).await {
            Ok(source) => source.splits().try_collect::<Vec<_>>().await.unwrap_err(),
            Err(e) => e,
        };
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        assert!(e.message().contains(want), "{e}");
    }
}

#[tokio::test]
async fn listing_many_files_does_not_hold_up_the_first_split() {
    let ctx = context();
    let folder = fresh();
    let data = crate::tfrecord::tests::tfrecord_file(&[b"x"]);
    for i in 0..3000 {
        put(&ctx, &format!("{folder}/{i:05}.tfrecord"), data.clone()).await;
    }
    let def = def(
        FileFormat::TfRecord { compression: caju_pipeline::Compression::Auto },
        &format!("{folder}/*.tfrecord"),
    );
    let source = open(&ctx, &def).await.unwrap();
    let before = ctx.io.snapshot();
    let mut splits = source.splits();
    let first = splits.next().await.unwrap().unwrap();
    let after = ctx.io.snapshot();
    assert!(first.file.unwrap().url.ends_with("/00000.tfrecord"));
    assert_eq!((after.lists - before.lists, after.reads - before.reads), (1, 0));
    assert_eq!(splits.count().await, 2999);
    assert_eq!(ctx.io.snapshot().reads, before.reads, "no file is opened to cut TFRecord files");
}

#[tokio::test]
async fn a_given_schema_is_trusted_without_touching_a_file() {
    let ctx = context();
    let schema = Arc::new(Schema::new(vec![arrow_schema::Field::new("id", DataType::Int64, true)]));
    let def = def(parquet_format(), &format!("{}/nothing/*.parquet", fresh()));
    let source = open_source(&SourceDef::Files(def), &ctx, Some(Arc::clone(&schema))).await.unwrap();
    assert_eq!(source.schema(), schema);
    assert_eq!(ctx.io.snapshot(), Default::default());
}

/// A good file with a codec that is not supported is not damaged.
#[tokio::test]
async fn a_parquet_file_in_brotli_is_named_with_the_way_out() {
    use parquet::basic::{BrotliLevel, Compression};
    use parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};
    let good = to_parquet(&table(0..10), 10);
    let footer = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::from(good.clone())).unwrap();
    let groups = footer.row_groups().iter().map(|group| {
        let columns = group.columns().iter().map(|column| {
            let codec = Compression::BROTLI(BrotliLevel::default());
            column.clone().into_builder().set_compression(codec).build().unwrap()
        });
        group.clone().into_builder().set_column_metadata(columns.collect()).build().unwrap()
    });
    let footer = footer.clone().into_builder().set_row_groups(groups.collect()).build();
    let mut bad = good.clone();
    ParquetMetaDataWriter::new(&mut bad, &footer).finish().unwrap();
    let ctx = context();
    let url = format!("{}/x.parquet", fresh());
    put(&ctx, &url, bad).await;
    let e = all_rows(&ctx, &def(parquet_format(), &url), &ReadOptions::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    assert!(e.message().contains("x.parquet") && e.message().contains("compressed by brotli"), "{e}");
}
