//! `caju run`: sources, stages and the report, all in one process.

use caju_tests::Pipeline;
use caju_tests::binary::{IMAGES, ROWS, sample_images, sample_table};
use caju_tests::files::{ints, parquet, strings};
use serde_json::{Value, json};

#[track_caller]
fn rows(source: Value, steps: Value) -> u64 {
    Pipeline::of(source, steps).report(&[]).rows()[0]
}

#[test]
fn every_source_format_gives_every_row() {
    let (images, table) = (sample_images(), sample_table());
    assert_eq!(rows(json!({ "tfrecord": images.join("tfrecord/*.tfrecord") }), json!([])), IMAGES);
    assert_eq!(rows(json!({ "parquet": images.join("parquet/*.parquet") }), json!([])), IMAGES);
    assert_eq!(rows(json!({ "webdataset": images.join("webdataset/*.tar") }), json!([])), IMAGES);
    assert_eq!(rows(json!({ "images": images.join("files/**/*.jpg") }), json!([])), IMAGES);
    assert_eq!(rows(json!({ "parquet": table.join("parquet/*.parquet") }), json!([])), ROWS);
    assert_eq!(rows(json!({ "csv": table.join("csv/*.csv") }), json!([])), ROWS);
    assert_eq!(rows(json!({ "json": table.join("json/*.jsonl") }), json!([])), ROWS);
    assert_eq!(rows(json!({ "range": { "start": 5, "end": 50, "step": 5 } }), json!([])), 9);
}

#[test]
fn formats_of_the_same_photos_give_the_same_rows() {
    let images = sample_images();
    let sum = |source: Value, steps: Value| Pipeline::of(source, steps).report(&[]).checksums();
    let example = json!({ "parse_example": { "features": { "image/encoded": "bytes", "image/class/label": "int64" } } });
    let rename = json!({ "map": { "image": "\"image/encoded\"", "label": "\"image/class/label\"" } });
    let tfrecord = sum(json!({ "tfrecord": images.join("tfrecord/*.tfrecord") }), json!([example, rename]));
    let parquet = sum(
        json!({ "parquet": images.join("parquet/*.parquet") }),
        json!([{ "select": ["image", "label"] }]),
    );
    assert_eq!(tfrecord, parquet);
}

#[test]
fn splits_below_the_file_change_no_row() {
    let path = sample_images().join("tfrecord/*.tfrecord");
    let sum = |split: &str| {
        let p = Pipeline::of(json!({ "tfrecord": { "path": path, "split": split } }), json!([]));
        p.report(&["--workers", "3"]).checksums()
    };
    let whole = sum("1GiB");
    assert_eq!(whole, sum("64KiB"));
    assert_eq!(whole, sum("333KiB"));
}

#[test]
fn a_split_that_is_a_quarter_of_a_tar_changes_no_row() {
    let path = sample_images().join("webdataset/*.tar");
    let sum = |split: &str| {
        let p = Pipeline::of(json!({ "webdataset": { "path": path, "split": split } }), json!([]));
        p.report(&["--workers", "2"]).checksums()
    };
    assert_eq!(sum("1GiB"), sum("300KiB"));
}

#[test]
fn take_and_skip_are_global() {
    let range = json!({ "range": 100_000 });
    for workers in ["1", "3"] {
        let count = |steps: Value| Pipeline::of(range.clone(), steps).report(&["--workers", workers]);
        assert_eq!(count(json!([{ "take": 12_345 }])).rows(), [12_345]);
        assert_eq!(count(json!([{ "skip": 99_990 }])).rows(), [10]);
        let picked = count(json!([{ "skip": 500 }, { "take": 250 }])).checksums();
        let filtered = count(json!([{ "filter": "id >= 500 AND id < 750" }])).checksums();
        assert_eq!(picked, filtered);
    }
}

#[test]
fn remainders_of_tasks_are_merged() {
    let p = Pipeline::of(json!({ "range": 100_000 }), json!([{ "batch": 384 }]));
    for workers in ["1", "2", "5"] {
        let report = p.report(&["--workers", workers]);
        assert_eq!((report.rows(), report.batches()), (vec![100_000], vec![261]), "{workers} workers");
    }
    let p = Pipeline::of(
        json!({ "range": 100_000 }),
        json!([{ "batch": { "size": 384, "drop_remainder": true } }]),
    );
    let report = p.report(&["--workers", "3"]);
    assert_eq!((report.rows(), report.batches()), (vec![260 * 384], vec![260]));
}

#[test]
fn text_is_tokenised_padded_and_bucketed() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("text");
    let args =
        ["gen", "text", "--out", out.to_str().unwrap(), "--count", "500", "--format", "parquet", "--quiet"];
    caju_tests::caju(&args).expect_code(0);
    let source = json!({ "parquet": out.join("*.parquet") });
    let tokens = json!({ "map": { "tokens": "tokenize(text, '[a-z]+')" } });
    assert_eq!(rows(source.clone(), json!([tokens, { "padded_batch": { "size": 32 } }])), 500);
    let bucket = json!({ "bucket_by_length": { "length": "array_length(tokens)", "boundaries": [20, 100], "batch_sizes": 16 } });
    assert_eq!(rows(source, json!([tokens, bucket])), 500);
}

#[test]
fn the_report_is_as_designed() {
    let p = Pipeline::of(json!({ "parquet": "a.parquet" }), json!([{ "batch": 3 }]));
    parquet(&p.folder().join("a.parquet"), vec![("id", ints(0..10))]);
    let report = p.report(&["--epochs", "2"]).0;
    assert_eq!(report["schema"], "caju.run/v1");
    assert!(report["fingerprint"].as_str().unwrap().len() == 32);
    assert!(report["decision"].is_null());
    assert!(report["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
    assert!(report["cpu_s"].as_f64().unwrap() > 0.0);
    for (i, epoch) in report["epochs"].as_array().unwrap().iter().enumerate() {
        assert_eq!(epoch["epoch"], i);
        assert_eq!(epoch["rows"], 10);
        assert_eq!(epoch["batches"], 4);
        for key in ["wall_s", "rows_per_s", "first_batch_s", "wait_s"] {
            assert!(epoch[key].as_f64().unwrap() >= 0.0, "{key}: {epoch}");
        }
        assert_eq!(epoch["rows_checksum"].as_str().unwrap().len(), 32);
        assert!(epoch["source_bytes_read"].as_u64().unwrap() > 0);
        assert_eq!(
            (epoch["cache_bytes_read"].as_u64(), epoch["cache_bytes_written"].as_u64()),
            (Some(0), Some(0))
        );
        assert!(epoch["splits"]["compute"].as_u64().unwrap() >= 1);
        assert_eq!((&epoch["splits"]["put"], &epoch["splits"]["get"]), (&json!(0), &json!(0)));
    }
}

#[test]
fn only_columns_that_somebody_reads_are_read() {
    let p = |steps: Value| {
        let p = Pipeline::of(json!({ "parquet": "a.parquet" }), steps);
        // Every value differs, so that nothing is saved by a dictionary.
        let texts: Vec<String> = (0..2000).map(|i| format!("{i:04}").repeat(500)).collect();
        let column = strings(texts.iter().map(String::as_str));
        parquet(&p.folder().join("a.parquet"), vec![("id", ints(0..2000)), ("text", column)]);
        p.report(&[]).epochs("source_bytes_read")[0].as_u64().unwrap()
    };
    let (all, one) = (p(json!([])), p(json!([{ "select": ["id"] }])));
    assert!(all > 2000 * 2000, "{all} bytes");
    assert!(one * 10 < all, "{one} of {all} bytes for the smaller column");
    assert_eq!(p(json!([{ "filter": "id >= 0" }, { "map": { "x": "id + 1" } }])), one);
}

#[test]
fn an_empty_dataset_is_an_empty_epoch() {
    assert_eq!(rows(json!({ "range": 0 }), json!([{ "batch": 4 }])), 0);
    assert_eq!(rows(json!({ "range": 10 }), json!([{ "filter": "id > 100" }, { "batch": 4 }])), 0);
}

#[test]
fn ctrl_c_ends_a_run() {
    let p = Pipeline::of(
        json!({ "range": 1_000_000_000 }),
        json!([{ "burn": { "per_row": "10us" } }, { "batch": 10 }]),
    );
    let run = caju_tests::Process::caju(p.folder(), &["run", "pipeline.yaml", "--report", "r.json"]);
    // Plain lines of progress come while it runs.
    run.wait_for_error_line("rows");
    run.signal("INT");
    let ended = run.wait();
    assert_ne!(ended.code, Some(0), "{ended:?}");
}
