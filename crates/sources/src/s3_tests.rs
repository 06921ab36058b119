//! The same sources over the S3 protocol, against a server in this process.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use caju_pipeline::{Compression, FileFormat};
use caju_runtime::{IoCounters, Stores};
use caju_testkit::s3::S3Server;
use caju_types::ErrorKind;

use crate::context::SourceContext;
use crate::source::ReadOptions;
use crate::test_util::*;
use crate::tfrecord::tests::tfrecord_file;

async fn server() -> (S3Server, SourceContext) {
    let server = S3Server::start(&["bucket"]).await.unwrap();
    let stores = Stores::new(server.options(), None).unwrap();
    let ctx = SourceContext::new(Arc::new(stores), Arc::new(IoCounters::new()));
    (server, ctx)
}

fn parquet(ids: std::ops::Range<i64>, group: usize) -> Vec<u8> {
    let id: ArrayRef = Arc::new(Int64Array::from_iter_values(ids.clone()));
    let square: ArrayRef = Arc::new(Int64Array::from_iter_values(ids.map(|i| i * i)));
    let batch = RecordBatch::try_from_iter([("id", id), ("square", square)]).unwrap();
    let properties = ::parquet::file::properties::WriterProperties::builder()
        .set_max_row_group_row_count(Some(group))
        .build();
    let mut out = Vec::new();
    let mut writer =
        ::parquet::arrow::ArrowWriter::try_new(&mut out, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    out
}

#[tokio::test]
async fn parquet_over_the_wire() {
    let (_server, ctx) = server().await;
    for i in 0..3 {
        put(&ctx, &format!("s3://bucket/data/part {i}.parquet"), parquet(i * 1000..(i + 1) * 1000, 300))
            .await;
    }
    put(&ctx, "s3://bucket/data/readme.txt", "no rows").await;
    let mut def = def(FileFormat::Parquet { columns: None }, "s3://bucket/data/part*.parquet");
    def.split_bytes = 1;
    let source = open(&ctx, &def).await.unwrap();
    assert_eq!(splits(&source).await.unwrap().len(), 12);
    let options = ReadOptions { projection: Some(vec![0]), ..ReadOptions::default() };
    let all = source_rows(&source, &options).await.unwrap().unwrap();
    let want: Vec<i64> = (0..3000).collect();
    assert_eq!(all.column(0).as_primitive::<Int64Type>().values().as_ref(), want);
}

#[tokio::test]
async fn tfrecord_over_the_wire() {
    let (_server, ctx) = server().await;
    let records: Vec<Vec<u8>> = (0..2000u32).map(|i| i.to_le_bytes().repeat(1 + i as usize % 300)).collect();
    let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    put(&ctx, "s3://bucket/a/b.tfrecord", tfrecord_file(&records)).await;
    let mut def = def(FileFormat::TfRecord { compression: Compression::Auto }, "s3://bucket/a/*.tfrecord");
    def.split_bytes = 100_000;
    let all = all_rows(&ctx, &def, &small(100, 50_000)).await.unwrap().unwrap();
    let got: Vec<&[u8]> = all.column(0).as_binary::<i32>().iter().flatten().collect();
    assert_eq!(got, records);
}

#[tokio::test]
async fn another_version_is_not_read() {
    let (_server, ctx) = server().await;
    let url = "s3://bucket/a.tfrecord";
    put(&ctx, url, tfrecord_file(&[&[1; 100]])).await;
    let def = def(FileFormat::TfRecord { compression: Compression::Auto }, url);
    let source = open(&ctx, &def).await.unwrap();
    // A single path is looked up, and the lookup has an e-tag: it distinguishes versions of equal size and
    // second.
    let listed = splits(&source).await.unwrap();
    put(&ctx, url, tfrecord_file(&[&[2; 100]])).await;
    let e = rows(&source, &listed[0], &ReadOptions::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
    assert!(e.message().starts_with("s3://bucket/a.tfrecord: the file changed while it was read"), "{e}");
}

#[tokio::test]
async fn missing_objects_and_bad_credentials_are_named() {
    let (server, ctx) = server().await;
    put(&ctx, "s3://bucket/data/x.tfrecord", tfrecord_file(&[b"x"])).await;
    let format = || FileFormat::TfRecord { compression: Compression::Auto };
    let Err(e) = open(&ctx, &def(format(), "s3://bucket/data/*.tfrec")).await else { panic!() };
    let want = "no file matches s3://bucket/data/*.tfrec; the folder s3://bucket/data holds x.tfrecord";
    assert_eq!((e.kind(), e.message()), (ErrorKind::NotFound, want));
    let mut options = server.options();
    options.insert("aws_secret_access_key".into(), "wrong".into());
    let stores = Arc::new(Stores::new(options, None).unwrap());
    let stranger = SourceContext::new(stores, Arc::new(IoCounters::new()));
    let Err(e) = open(&stranger, &def(format(), "s3://bucket/data/x.tfrecord")).await else { panic!() };
    assert_eq!(e.kind(), ErrorKind::PermissionDenied, "{e}");
    assert!(e.message().contains("check the credentials") && !e.message().contains("wrong"), "{e}");
}
