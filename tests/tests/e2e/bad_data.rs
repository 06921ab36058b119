//! Bad input in files: one clear error that names the file, the row and the stage, and the right exit code.

use caju_tests::binary::sample_images;
use caju_tests::files::{self, example, ints, parquet, png_header, strings, tfrecord};
use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline};
use serde_json::{Value, json};

/// Decodes `image` of an example per record.
fn decoding(steps: Value) -> Vec<Value> {
    let mut all = vec![
        json!({ "parse_example": { "features": { "image": "bytes", "label": "int64" } } }),
        json!({ "map": { "image": "resize(decode_image(image), 32, 32)", "label": "label" } }),
    ];
    all.extend(steps.as_array().unwrap().iter().cloned());
    all
}

/// A pipeline over `data.tfrecord` in its folder.
fn images(records: &[Vec<u8>], options: Value) -> Pipeline {
    let mut definition = json!({
        "source": { "tfrecord": "data.tfrecord" },
        "steps": decoding(json!([{ "batch": 4 }])),
    });
    for (key, value) in options.as_object().unwrap() {
        definition[key] = value.clone();
    }
    Pipeline::new(&definition).with_file("data.tfrecord", &tfrecord(records))
}

/// Whole photos, by name.
fn photos(count: usize) -> Vec<Vec<u8>> {
    let folder = sample_images().join("files");
    let mut paths = Vec::new();
    for class in std::fs::read_dir(folder).unwrap() {
        let class = class.unwrap().path();
        if class.is_dir() {
            paths.extend(std::fs::read_dir(class).unwrap().map(|f| f.unwrap().path()));
        }
    }
    paths.retain(|p| p.extension().is_some_and(|e| e == "jpg"));
    paths.sort();
    paths.iter().take(count).map(|p| std::fs::read(p).unwrap()).collect()
}

#[test]
fn missing_file() {
    let p = Pipeline::of(json!({ "parquet": "nowhere/data.parquet" }), json!([]));
    p.run(&[]).expect_code(2).expect_error(&["nowhere/data.parquet", "no such file"]);
}

#[test]
fn empty_glob() {
    let p = Pipeline::of(json!({ "tfrecord": "nowhere/*.tfrecord" }), json!([]));
    p.run(&[]).expect_code(2).expect_error(&["nowhere/*.tfrecord", "no file"]);
}

#[test]
fn truncated_tfrecord() {
    let mut bytes = tfrecord([b"one", b"two", b"six"]);
    bytes.truncate(bytes.len() - 5);
    let p =
        Pipeline::of(json!({ "tfrecord": "data.tfrecord" }), json!([])).with_file("data.tfrecord", &bytes);
    p.run(&[]).expect_code(2).expect_error(&["data.tfrecord", "record 2", "truncated"]);
}

#[test]
fn wrong_crc() {
    let mut bytes = tfrecord([b"one", b"two", b"six"]);
    let second = bytes.len() / 3 + 12;
    bytes[second] ^= 1;
    let p =
        Pipeline::of(json!({ "tfrecord": "data.tfrecord" }), json!([])).with_file("data.tfrecord", &bytes);
    p.run(&[]).expect_code(2).expect_error(&["data.tfrecord", "checksum"]);
}

#[test]
fn a_bad_row_is_reported_once() {
    let p = Pipeline::of(json!({ "range": 5 }), json!([{ "map": { "x": "id / 0" } }]));
    let ended = p.run(&["--quiet"]);
    ended.expect_code(2).expect_error(&["steps[0].map", "column `x`", "Divide by zero"]);
    assert_eq!(ended.stderr.trim().lines().count(), 1, "one error, one line: {}", ended.stderr);
}

#[test]
fn a_tar_that_is_cut_off_within_a_padding() {
    let member = |name: &str| {
        let mut h = vec![0u8; 512];
        h[..name.len()].copy_from_slice(name.as_bytes());
        h[124..136].copy_from_slice(b"00000000001\0");
        h[156] = b'0';
        h[148..156].copy_from_slice(b"        ");
        let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
        h[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        h.push(b'x');
        h.resize(1024, 0);
        h
    };
    let whole = [member("a.txt"), member("b.txt"), vec![0; 1024]].concat();
    let cut = |n: usize| {
        Pipeline::of(json!({ "webdataset": "data.tar" }), json!([])).with_file("data.tar", &whole[..n])
    };
    cut(1700).run(&[]).expect_code(2).expect_error(&["data.tar", "byte 1024", "the file ends inside it"]);
    assert_eq!(cut(whole.len()).report(&[]).rows(), [2]);
    // Cut off between two members: it cannot be distinguished from an archive without an end mark.
    cut(2048).run(&[]).expect_code(2).expect_error(&["data.tar", "end mark", "append 1,024 zero bytes"]);
}

#[test]
fn not_a_tfrecord() {
    let p = Pipeline::of(json!({ "tfrecord": "data.tfrecord" }), json!([]))
        .with_file("data.tfrecord", b"<html><body>404 not found, and some more text</body></html>");
    p.run(&[]).expect_code(2).expect_error(&["data.tfrecord"]);
}

#[test]
fn not_a_parquet_file() {
    let p = Pipeline::of(json!({ "parquet": "data.parquet" }), json!([]))
        .with_file("data.parquet", b"hello, world");
    p.run(&[]).expect_code(2).expect_error(&["data.parquet"]);
}

#[test]
fn jpeg_that_is_cut_off() {
    let mut photos = photos(3);
    let half = photos[1].len() / 2;
    photos[1].truncate(half);
    let records: Vec<_> = photos.iter().map(|p| example(p, 1)).collect();
    images(&records, json!({})).run(&[]).expect_code(2).expect_error(&[
        "data.tfrecord",
        "row 1",
        "steps[1].map",
        "image",
    ]);
}

#[test]
fn jpeg_that_is_html() {
    let records = [example(&photos(1)[0], 1), example(b"<!DOCTYPE html><html><body>no</body></html>", 2)];
    images(&records, json!({})).run(&[]).expect_code(2).expect_error(&[
        "data.tfrecord",
        "row 1",
        "steps[1].map",
        "not an image",
        "<!DOCTYPE",
    ]);
}

#[test]
fn image_bomb() {
    let records = [example(&png_header(30_000, 30_000), 1)];
    images(&records, json!({})).run(&[]).expect_code(2).expect_error(&[
        "data.tfrecord",
        "row 0",
        "30000",
        "pixels",
    ]);
}

#[test]
fn bad_rows_are_the_same_error_through_the_processes() {
    let mut photos = photos(2);
    photos[1].truncate(1000);
    let records: Vec<_> = photos.iter().map(|p| example(p, 1)).collect();
    let cluster = Cluster::start(1);
    let p = images(&records, json!({}));
    cluster.read(&p, &[]).expect_code(2).expect_error(&["data.tfrecord", "row 1", "steps[1].map"]);
    cluster.stop();
}

#[test]
fn parquet_files_that_differ() {
    let p = Pipeline::of(json!({ "parquet": "*.parquet" }), json!([]));
    parquet(&p.folder().join("a.parquet"), vec![("id", ints(0..4)), ("x", ints(0..4))]);
    parquet(&p.folder().join("b.parquet"), vec![("id", ints(0..2)), ("x", strings(["u", "v"]))]);
    p.run(&[]).expect_code(2).expect_error(&["b.parquet", "x", "Utf8", "Int64"]);
}

#[test]
fn parquet_file_that_lacks_a_column() {
    let p = Pipeline::of(json!({ "parquet": "*.parquet" }), json!([]));
    parquet(&p.folder().join("a.parquet"), vec![("id", ints(0..4)), ("x", ints(0..4))]);
    parquet(&p.folder().join("b.parquet"), vec![("id", ints(0..2))]);
    p.run(&[]).expect_code(2).expect_error(&["b.parquet", "x"]);
}

#[test]
fn skipped_rows_are_counted_and_the_rest_is_delivered() {
    let mut records: Vec<_> = photos(5).iter().map(|p| example(p, 1)).collect();
    records[1] = example(b"<html>", 1);
    records[3] = example(&png_header(30_000, 30_000), 1);
    let p = images(&records, json!({ "on_error": "skip" }));
    let report = p.report(&[]);
    assert_eq!(report.rows(), [3]);
    let ended = p.run(&[]);
    ended.expect_code(0);
    assert!(ended.stdout.contains("2 rows skipped") || ended.stderr.contains("2 rows skipped"), "{ended:?}");
}

#[test]
fn too_many_skipped_rows_fail() {
    let records: Vec<_> = (0..5).map(|_| example(b"<html>", 1)).collect();
    let p = images(&records, json!({ "on_error": { "skip": { "limit": 3 } } }));
    p.run(&[]).expect_code(2).expect_error(&["3", "on_error", "data.tfrecord"]);
}

#[test]
fn skipping_does_not_cover_missing_files() {
    let p = Pipeline::new(&json!({ "source": { "parquet": "nowhere.parquet" }, "on_error": "skip" }));
    p.run(&[]).expect_code(2).expect_error(&["nowhere.parquet"]);
}

#[test]
fn skipping_a_record_with_a_wrong_checksum() {
    let mut bytes = tfrecord([b"one", b"two", b"six"]);
    let second = bytes.len() / 3 + 12;
    bytes[second] ^= 1;
    let p = Pipeline::new(&json!({ "source": { "tfrecord": "data.tfrecord" }, "on_error": "skip" }))
        .with_file("data.tfrecord", &bytes);
    assert_eq!(p.report(&[]).rows(), [2]);
}

#[test]
fn feature_of_another_type() {
    let p = Pipeline::of(
        json!({ "tfrecord": "data.tfrecord" }),
        json!([{ "parse_example": { "features": { "image": "float32" } } }]),
    )
    .with_file("data.tfrecord", &tfrecord([example(b"x", 1)]));
    p.run(&[]).expect_code(2).expect_error(&["data.tfrecord", "row 0", "image", "float"]);
}

#[test]
fn record_that_is_no_example() {
    let p = Pipeline::of(
        json!({ "tfrecord": "data.tfrecord" }),
        json!([{ "parse_example": { "features": { "image": "bytes" } } }]),
    )
    .with_file("data.tfrecord", &tfrecord([&example(b"x", 1)[..], b"\xff\xff\xff\xff\xff no protobuf"]));
    p.run(&[]).expect_code(2).expect_error(&["data.tfrecord", "row 1", "steps[0].parse_example"]);
}

#[test]
fn features_that_a_record_lacks_are_reported() {
    let data = tfrecord([&example(b"x", 1)[..], b""]);
    let with = |label: &str, on_error: Value| {
        let features = json!({ "image": "bytes?", "label": label });
        let p = Pipeline::new(&json!({
            "source": { "tfrecord": "data.tfrecord" },
            "steps": [{ "parse_example": { "features": features } }],
            "on_error": on_error,
        }));
        p.with_file("data.tfrecord", &data)
    };
    let lacking = with("int64", json!("fail")).run(&[]);
    lacking.expect_code(2).expect_error(&["data.tfrecord", "row 1", "feature `label`", "`int64?`"]);
    assert_eq!(with("int64", json!("skip")).report(&[]).rows(), [1]);
    assert_eq!(with("int64?", json!("fail")).report(&[]).rows(), [2]);
}

#[test]
fn nulls_where_text_should_be_are_not_errors() {
    let p = Pipeline::of(json!({ "parquet": "a.parquet" }), json!([{ "map": { "x": "coalesce(s, '')" } }]));
    let column = std::sync::Arc::new(arrow_array::StringArray::from(vec![Some("a"), None]));
    files::parquet(&p.folder().join("a.parquet"), vec![("s", column)]);
    assert_eq!(p.report(&[]).rows(), [2]);
}

/// Nothing else is wrong with such an epoch: it is whole, and has fewer rows than the one before.
#[test]
fn a_file_that_vanishes_between_two_epochs_is_in_report_summary_and_status() {
    let cluster = Cluster::start(1);
    let p = Pipeline::of(json!({ "csv": { "path": "*.csv" } }), json!([]));
    let p = p.with_file("a.csv", b"id\n1\n2\n").with_file("b.csv", b"id\n3\n");
    let state = ["--job", "j", "--state", "state.json", "--horizon", "9"];
    let first = cluster.report(&p, &[&state[..], &["--epochs", "1"]].concat());
    assert_eq!((first.rows(), first.epochs("source_changed")), (vec![3], vec![Value::Null]));
    std::fs::remove_file(p.folder().join("b.csv")).unwrap();
    let changed = "the source has 1 splits, and had 2 in epoch 0: its files changed between the epochs";
    let again = ["--epochs", "2", "--report", "again.json"];
    let ended = cluster.read(&p, &[&state[..], &again].concat());
    ended.expect_code(0);
    assert!(ended.stdout.contains("warning") && ended.stdout.contains("had 2 in"), "{}", ended.stdout);
    let second = Report::load(&p.folder().join("again.json"));
    assert_eq!((second.rows(), second.epochs("source_changed")), (vec![2], vec![json!(changed)]));
    let status = cluster.status();
    let jobs = status["jobs"].as_array().unwrap();
    let found: Vec<_> = jobs.iter().map(|j| (&j["epoch"], &j["source_changed"])).collect();
    assert!(found.contains(&(&json!(1), &json!(changed))), "{found:?}");
    cluster.stop();
}
