//! Every record exactly once however the file is cut, and what is said about damaged files.

use arrow_array::cast::AsArray;
use caju_pipeline::FileFormat;
use caju_types::ErrorKind;
use proptest::prelude::*;

use super::*;
use crate::test_util::*;

/// A TFRecord file of these records.
pub(crate) fn tfrecord_file(records: &[&[u8]]) -> Vec<u8> {
    encode(&records.iter().map(|r| r.to_vec()).collect::<Vec<_>>())
}

pub(crate) fn encode(records: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for r in records {
        let len = (r.len() as u64).to_le_bytes();
        out.extend(len);
        out.extend(mask(crc32c::crc32c(&len)).to_le_bytes());
        out.extend(r);
        out.extend(mask(crc32c::crc32c(r)).to_le_bytes());
    }
    out
}

fn format() -> FileFormat {
    FileFormat::TfRecord { compression: Compression::Auto }
}

fn values(batch: Option<RecordBatch>) -> Vec<Vec<u8>> {
    batch.map_or_else(Vec::new, |b| {
        b.column(0).as_binary::<i32>().iter().map(|v| v.unwrap().to_vec()).collect()
    })
}

/// Records of which some hold TFRecord files of their own.
fn records() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let plain = prop::collection::vec(any::<u8>(), 0..300);
    let nested =
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 1..20).prop_map(|r| encode(&r));
    prop::collection::vec(prop_oneof![plain, nested], 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn splits_partition_the_records(
        records in records(), split_bytes in 1u64..2000, block in 1u64..3, rows in 1usize..50, local in any::<bool>(),
    ) {
        run(async {
            let mut ctx = context();
            ctx.limits.block_bytes = block * 4096;
            let dir = tempfile::tempdir().unwrap();
            let url = if local { format!("file://{}/a.tfrecord", dir.path().display()) } else { format!("{}/a.tfrecord", fresh()) };
            put(&ctx, &url, encode(&records)).await;
            let mut def = def(format(), &url);
            def.split_bytes = split_bytes;
            let got = values(all_rows(&ctx, &def, &small(rows, 500)).await.unwrap());
            assert_eq!(got, records);
            // In any order, without what earlier reads learned.
            let source = open(&ctx, &def).await.unwrap();
            let splits = splits(&source).await.unwrap();
            let mut parts = Vec::new();
            for split in splits.iter().rev() {
                ctx.caches = Default::default();
                let source = open(&ctx, &def).await.unwrap();
                parts.push(values(crate::test_util::rows(&source, split, &small(rows, 500)).await.unwrap()));
            }
            parts.reverse();
            assert_eq!(parts.concat(), records);
        });
    }
}

#[tokio::test]
async fn a_nested_file_does_not_deceive() {
    // A scan for a valid header from byte 16384 on would find the records inside the payload.
    let inner = encode(&vec![vec![7; 100]; 1000]);
    let records = vec![inner, b"end".to_vec()];
    let ctx = context();
    let url = format!("{}/nested.tfrecord", fresh());
    put(&ctx, &url, encode(&records)).await;
    let mut def = def(format(), &url);
    def.split_bytes = 16 << 10;
    assert_eq!(values(all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap()), records);
}

#[tokio::test]
async fn large_records_are_scanned_by_their_headers() {
    let records: Vec<Vec<u8>> = (0..64u8).map(|i| vec![i; 100_000]).collect();
    let dir = tempfile::tempdir().unwrap();
    let ctx = context();
    let url = format!("file://{}/a.tfrecord", dir.path().display());
    put(&ctx, &url, encode(&records)).await;
    let mut def = def(format(), &url);
    def.split_bytes = 1 << 20;
    let source = open(&ctx, &def).await.unwrap();
    let splits = splits(&source).await.unwrap();
    let before = ctx.io.snapshot();
    let last = values(rows(&source, splits.last().unwrap(), &ReadOptions::default()).await.unwrap());
    let io = ctx.io.snapshot();
    let bytes: usize = last.iter().map(Vec::len).sum();
    assert_eq!(last.last().unwrap()[0], 63);
    assert!(io.bytes_read - before.bytes_read < bytes as u64 + 200_000, "a scan reads headers, not data");
}

#[tokio::test]
async fn compressed_files_are_one_split() {
    use std::io::Write;
    let records: Vec<Vec<u8>> = (0..5000u32).map(|i| i.to_le_bytes().repeat(40)).collect();
    let plain = encode(&records);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&plain[..100_000]).unwrap();
    // Several members in one file are one stream.
    let mut gz = flate2::write::GzEncoder::new(gz.finish().unwrap(), flate2::Compression::fast());
    gz.write_all(&plain[100_000..]).unwrap();
    let mut zst = zstd::encode_all(&plain[..7], 1).unwrap();
    zst.extend(zstd::encode_all(&plain[7..], 1).unwrap());
    let ctx = context();
    let cut = "the compressed data end in the middle: the file is truncated or is still being written";
    let cut_or_changed = "the compressed data end in the middle, or their checksum does not match: the file is truncated, \
                          damaged or still being written";
    for (name, data, wrong) in
        [("a.tfrecord.gz", gz.finish().unwrap(), cut_or_changed), ("a.tfrecord.zst", zst, cut)]
    {
        let url = format!("{}/{name}", fresh());
        put(&ctx, &url, data.clone()).await;
        let mut def = def(format(), &url);
        def.split_bytes = 1000;
        let source = open(&ctx, &def).await.unwrap();
        assert_eq!(splits(&source).await.unwrap().len(), 1);
        assert_eq!(values(source_rows(&source, &ReadOptions::default()).await.unwrap()), records);
        put(&ctx, &url, data[..data.len() - 9].to_vec()).await;
        let e = all_rows(&ctx, &def, &ReadOptions::default()).await.unwrap_err();
        assert_eq!((e.kind(), e.message()), (ErrorKind::DataLoss, format!("{url}: {wrong}").as_str()));
    }
}

async fn error_of(data: Vec<u8>) -> (String, Error) {
    let ctx = context();
    let url = format!("{}/x.tfrecord", fresh());
    put(&ctx, &url, data).await;
    (url.clone(), all_rows(&ctx, &def(format(), &url), &ReadOptions::default()).await.unwrap_err())
}

#[tokio::test]
async fn a_record_above_the_largest_names_the_option() {
    let ctx = context_of_records(1024);
    let url = format!("{}/x.tfrecord", fresh());
    put(&ctx, &url, encode(&[vec![0; 10], vec![1; 3000]])).await;
    let e = all_rows(&ctx, &def(format(), &url), &ReadOptions::default()).await.unwrap_err();
    let name = e.message().split(": the record has").next().unwrap().to_owned();
    assert!(name.starts_with(&url), "{e}");
    assert_names_max_record(
        &e,
        &name,
        "the record has 3000 bytes, more than the 1024 that a record may have",
    );
}

#[tokio::test]
async fn damage_is_named() {
    let records: Vec<Vec<u8>> = (0..10u8).map(|i| vec![i; 84]).collect();
    let good = encode(&records);
    let (url, e) = error_of(good[..950].to_vec()).await;
    let want = format!(
        "{url}: record 9 at byte 900: the file ends inside the record (100 bytes needed, 50 left); \
         it is truncated or is still being written"
    );
    assert_eq!((e.kind(), e.message()), (ErrorKind::DataLoss, want.as_str()));
    let (url, e) = error_of(good[..905].to_vec()).await;
    assert!(e.message().starts_with(&format!("{url}: record 9 at byte 900: the file ends inside")), "{e}");
    let mut bad = good.clone();
    bad[350] ^= 1;
    let (url, e) = error_of(bad).await;
    let want = format!("{url}: record 3 at byte 300: the checksum of the data is wrong; the file is damaged");
    assert_eq!((e.kind(), e.message()), (ErrorKind::DataLoss, want.as_str()));
    let mut bad = good.clone();
    bad[300] ^= 1;
    let (url, e) = error_of(bad).await;
    let want =
        format!("{url}: record 3 at byte 300: the checksum of the length is wrong; the file is damaged");
    assert_eq!(e.message(), want);
    let (url, e) = error_of(b"<html>this is no TFRecord file</html>".to_vec()).await;
    let want = format!(
        "{url}: record 0 at byte 0: the checksum of the length is wrong; the file is damaged, is compressed \
         (set `compression`), or is no TFRecord file"
    );
    assert_eq!(e.message(), want);
}

#[tokio::test]
async fn bad_records_can_be_passed_over() {
    let records: Vec<Vec<u8>> = (0..10u8).map(|i| vec![i; 84]).collect();
    let mut data = encode(&records);
    data[350] ^= 1;
    data.truncate(950);
    let ctx = context();
    let url = format!("{}/x.tfrecord", fresh());
    put(&ctx, &url, data).await;
    let (skip, errors) = skips();
    let options = ReadOptions { skip: Some(skip), ..ReadOptions::default() };
    let got = values(all_rows(&ctx, &def(format(), &url), &options).await.unwrap());
    assert_eq!(got.iter().map(|v| v[0]).collect::<Vec<_>>(), [0, 1, 2, 4, 5, 6, 7, 8]);
    assert_eq!(errors.lock().len(), 2);
}

#[tokio::test]
async fn rows_can_be_counted_without_their_data() {
    let records: Vec<Vec<u8>> = (0..100u8).map(|i| vec![i; 84]).collect();
    let ctx = context();
    let url = format!("{}/x.tfrecord", fresh());
    put(&ctx, &url, encode(&records)).await;
    let options = ReadOptions { projection: Some(vec![]), ..ReadOptions::default() };
    let all = all_rows(&ctx, &def(format(), &url), &options).await.unwrap().unwrap();
    assert_eq!((all.num_rows(), all.num_columns()), (100, 0));
}

#[tokio::test]
async fn a_changed_file_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context();
    let local = format!("file://{}/a.tfrecord", dir.path().display());
    for (url, why) in [
        (local.clone(), "it had 32 bytes and has 37"),
        (format!("{}/x.tfrecord", fresh()), "it is not the version that was listed"),
    ] {
        put(&ctx, &url, encode(&[vec![1; 16]])).await;
        let source = open(&ctx, &def(format(), &url)).await.unwrap();
        let listed = splits(&source).await.unwrap();
        put(&ctx, &url, encode(&[vec![2; 21]])).await;
        let e = rows(&source, &listed[0], &ReadOptions::default()).await.unwrap_err();
        let want = format!(
            "{url}: the file changed while it was read ({why}); start again, and keep source files unchanged \
             during a run"
        );
        assert_eq!((e.kind(), e.message()), (ErrorKind::FailedPrecondition, want.as_str()));
    }
    // The same size: only the times differ.
    put(&ctx, &local, encode(&[vec![3; 16]])).await;
    let source = open(&ctx, &def(format(), &local)).await.unwrap();
    let listed = splits(&source).await.unwrap();
    let old = std::fs::File::options().write(true).open(dir.path().join("a.tfrecord")).unwrap();
    old.set_modified(std::time::UNIX_EPOCH).unwrap();
    let e = rows(&source, &listed[0], &ReadOptions::default()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
}

#[tokio::test]
async fn content_versions_survive_a_touch() {
    let dir = tempfile::tempdir().unwrap();
    let ctx = context();
    for url in [format!("file://{}/a.tfrecord", dir.path().display()), format!("{}/x.tfrecord", fresh())] {
        put(&ctx, &url, encode(&[vec![1; 16]])).await;
        let mut def = def(format(), &url);
        def.version = caju_pipeline::VersionRule::Content;
        let source = open(&ctx, &def).await.unwrap();
        let listed = splits(&source).await.unwrap();
        put(&ctx, &url, encode(&[vec![1; 16]])).await;
        assert_eq!(values(rows(&source, &listed[0], &ReadOptions::default()).await.unwrap()), [vec![1; 16]]);
        assert_eq!(splits(&source).await.unwrap()[0].key, listed[0].key);
        put(&ctx, &url, encode(&[vec![2; 16]])).await;
        let e = rows(&source, &listed[0], &ReadOptions::default()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
    }
}
