//! `caju gen`.

use std::collections::BTreeMap;
use std::path::Path;

use caju_tests::binary::{IMAGES, SHARDS, sample_images};
use caju_tests::{Pipeline, caju};
use serde_json::json;
use tempfile::tempdir;

/// Every file below a folder, by its relative path.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut out = BTreeMap::new();
    let mut todo = vec![folder.to_path_buf()];
    while let Some(at) = todo.pop() {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_string();
                out.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    out
}

fn generate(kind: &str, out: &Path, args: &[&str]) -> caju_tests::Ended {
    let mut all = vec!["gen", kind, "--out", out.to_str().unwrap()];
    all.extend(args);
    caju(&all)
}

#[test]
fn the_same_seed_gives_the_same_bytes_whatever_the_threads() {
    let folder = tempdir().unwrap();
    for kind in ["images", "table", "text"] {
        let make = |name: &str, seed: &str, threads: &str| {
            let out = folder.path().join(format!("{kind}-{name}"));
            let args =
                ["--count", "40", "--seed", seed, "--cpu-threads", threads, "--format", "parquet,tfrecord"];
            generate(kind, &out, &args).expect_code(0);
            tree(&out)
        };
        let one = make("one", "5", "1");
        assert_eq!(one, make("again", "5", "3"), "{kind}");
        assert_ne!(one, make("other", "6", "1"), "{kind}");
    }
}

#[test]
fn formats_and_shards_lie_where_they_should() {
    let files = tree(&sample_images());
    let count = |folder: &str, ending: &str| {
        files.keys().filter(|f| f.starts_with(folder) && f.ends_with(ending)).count() as u64
    };
    assert_eq!(count("tfrecord/", ".tfrecord"), SHARDS);
    assert_eq!(count("parquet/", ".parquet"), SHARDS);
    assert_eq!(count("webdataset/", ".tar"), SHARDS);
    assert_eq!(count("files/", ".jpg"), IMAGES);
}

#[test]
fn photos_have_the_size_of_photos() {
    let files = tree(&sample_images());
    let sizes: Vec<_> =
        files.iter().filter(|(f, _)| f.ends_with(".jpg")).map(|(_, b)| b.len() as u64).collect();
    let mean = sizes.iter().sum::<u64>() / IMAGES;
    assert!((80_000..140_000).contains(&mean), "the mean is {mean} bytes");
}

#[test]
fn sto_16_what_is_there_is_not_overwritten_unasked() {
    let folder = tempdir().unwrap();
    let out = folder.path().join("t");
    generate("table", &out, &["--count", "10"]).expect_code(0);
    let before = tree(&out);
    generate("table", &out, &["--count", "20"]).expect_code(2).expect_error(&["--overwrite"]);
    assert_eq!(before, tree(&out));
    generate("table", &out, &["--count", "20", "--overwrite"]).expect_code(0);
    assert_ne!(before, tree(&out));
}

/// What `caju gen` notes about the data lies beside it and ends in `.json`.
#[test]
fn patterns_take_the_data_and_not_the_notes_about_it() {
    let p = Pipeline::of(json!({ "json": { "path": "t/*.json*" } }), json!([]));
    generate("table", &p.folder().join("t"), &["--count", "30", "--format", "json"]).expect_code(0);
    assert!(p.folder().join("t/_caju_gen.json").exists());
    assert_eq!(p.report(&[]).rows(), [30]);
}

#[test]
fn a_format_that_does_not_fit_the_kind() {
    let folder = tempdir().unwrap();
    let ended = generate("images", &folder.path().join("x"), &["--count", "1", "--format", "csv"]);
    ended.expect_code(2).expect_error(&["csv", "images"]);
    let ended = generate("images", &folder.path().join("x"), &["--count", "1", "--format", "parket"]);
    ended.expect_code(2);
}
