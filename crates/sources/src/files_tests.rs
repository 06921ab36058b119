//! Files that hold nothing where some bytes must be.

use caju_pipeline::{Compression, FileFormat};
use caju_types::ErrorKind;

use crate::source::ReadOptions;
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
