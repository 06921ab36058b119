//! Files that hold nothing where some bytes must be, and files whose versions only their contents show.

use caju_pipeline::{Compression, FileFormat, FileSource, VersionRule};
use caju_types::{Error, ErrorKind};

use crate::source::ReadOptions;
use crate::split::{FileVersion, Split, SplitRange};
use crate::test_util::*;

fn formats() -> [(&'static str, FileFormat); 4] {
    let compression = Compression::Auto;
    [
        ("tfrecord", FileFormat::TfRecord { compression }),
        ("tar", FileFormat::WebDataset { compression, columns: Some(vec!["jpg".into()]) }),
        ("csv", FileFormat::Csv { header: true, delimiter: ',', schema: None, compression }),
        ("jsonl", FileFormat::Json { schema: None, compression }),
    ]
}

/// The first file of each format, for the columns of the source; its name says that it is not compressed.
fn good(extension: &str) -> Vec<u8> {
    match extension {
        "tfrecord" => crate::tfrecord::tests::tfrecord_file(&[b"x"]),
        "tar" => vec![0; 1024],
        "csv" => b"n\n1\n".to_vec(),
        _ => b"{\"n\":1}\n".to_vec(),
    }
}

#[tokio::test]
async fn a_compressed_file_of_no_bytes_is_truncated() {
    for (extension, format) in formats() {
        for (suffix, codec) in [("gz", "gzip"), ("zst", "zstd")] {
            let ctx = context();
            let folder = fresh();
            put(&ctx, &format!("{folder}/a.{extension}"), good(extension)).await;
            let url = format!("{folder}/b.{extension}.{suffix}");
            put(&ctx, &url, Vec::new()).await;
            let e = all_rows(&ctx, &def(format.clone(), &folder), &ReadOptions::default()).await.unwrap_err();
            let want = format!(
                "{url}: the file has 0 bytes, which is no {codec} file: the file is truncated or is still being written"
            );
            assert_eq!((e.kind(), e.message()), (ErrorKind::DataLoss, want.as_str()));
            // The only file of a source: for some formats the search for columns fails first.
            let e = all_rows(&ctx, &def(format.clone(), &url), &ReadOptions::default()).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::DataLoss, "{e}");
            assert!(e.message().starts_with(&url) && e.message().contains("truncated"), "{e}");
        }
    }
}

/// A folder has the compressed files that `compression: auto` reads.
#[test]
fn the_extensions_of_folders_have_all_compressions() {
    for (_, format) in formats() {
        let all = crate::files::extensions(&format);
        let plain = all.iter().filter(|e| !e.contains('.') && **e != "tgz");
        for (plain, suffix) in
            plain.flat_map(|plain| ["gz", "gzip", "zst", "zstd"].map(|suffix| (plain, suffix)))
        {
            let name = format!("{plain}.{suffix}");
            assert!(all.contains(&name.as_str()), "{name}");
        }
    }
}

#[tokio::test]
async fn a_plain_file_of_no_bytes_has_no_rows() {
    let (_, tfrecord) = formats().into_iter().next().unwrap();
    let ctx = context();
    let url = format!("{}/a.tfrecord", fresh());
    put(&ctx, &url, Vec::new()).await;
    assert!(all_rows(&ctx, &def(tfrecord, &url), &ReadOptions::default()).await.unwrap().is_none());
}

/// A source under `version: content` that is cut into pieces of this size.
fn by_content(format: FileFormat, url: &str, split_bytes: u64) -> FileSource {
    FileSource { version: VersionRule::Content, split_bytes, ..def(format, url) }
}

/// The split as if its store gave no versions of its files.
fn without_validators(mut split: Split) -> Split {
    let forget = |version: &mut FileVersion| {
        assert!(version.content_hash.is_some());
        (version.etag, version.mtime_ns, version.ctime_ns) = (None, None, None);
    };
    split.file.iter_mut().for_each(|file| forget(&mut file.version));
    if let SplitRange::Files(files) = &mut split.range {
        files.iter_mut().for_each(|file| forget(&mut file.version));
    }
    split
}

fn assert_other_content(error: &Error, url: &str) {
    let want = format!("{url}: the file changed while it was read (its content is another one)");
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error}");
    assert!(error.message().starts_with(&want), "{error}");
}

#[tokio::test]
async fn a_file_known_by_its_content_alone_is_hashed_behind_each_split() {
    let (ctx, options) = (context(), ReadOptions::default());
    let (_, csv) = formats().into_iter().nth(2).unwrap();
    let url = format!("{}/a.csv", fresh());
    put(&ctx, &url, format!("n\n{}", "1\n".repeat(1000))).await;
    let source = open(&ctx, &by_content(csv, &url, 500)).await.unwrap();
    let listed: Vec<_> = splits(&source).await.unwrap().into_iter().map(without_validators).collect();
    assert_eq!(listed.len(), 4);
    let mut read = 0;
    for split in &listed {
        read += rows(&source, split, &options).await.unwrap().unwrap().num_rows();
    }
    assert_eq!(read, 1000);
    // As many bytes, with a change in the last piece alone.
    put(&ctx, &url, format!("n\n{}2\n", "1\n".repeat(999))).await;
    let first = Split { trim: Some((0, 3)), ..listed[0].clone() };
    for split in listed.iter().chain([&first]) {
        assert_other_content(&rows(&source, split, &options).await.unwrap_err(), &url);
    }
    // Rows that cannot be read are not to blame.
    put(&ctx, &url, format!("n\n{}", "x\n".repeat(1000))).await;
    assert_other_content(&rows(&source, &listed[0], &options).await.unwrap_err(), &url);
}

#[tokio::test]
async fn images_known_by_their_contents_alone_are_hashed_as_they_are_read() {
    let (ctx, options) = (context(), ReadOptions::default());
    let url = format!("{}/1.jpg", fresh());
    put(&ctx, &url, vec![1; 100]).await;
    let source = open(&ctx, &by_content(FileFormat::Images, &url, 500)).await.unwrap();
    let split = without_validators(splits(&source).await.unwrap().remove(0));
    assert_eq!(rows(&source, &split, &options).await.unwrap().unwrap().num_rows(), 1);
    put(&ctx, &url, vec![2; 100]).await;
    assert_other_content(&rows(&source, &split, &options).await.unwrap_err(), &url);
}
