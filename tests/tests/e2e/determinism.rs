//! A row is a pure function of the seed, the epoch and its place, and comes once, however the
//! work is spread.

use caju_tests::binary::{IMAGES, sample_images};
use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline};
use serde_json::{Value, json};

/// Everything random at once, over small splits so that many workers share one file.
fn augmented(steps: Value) -> Pipeline {
    let path = sample_images().join("tfrecord/*.tfrecord");
    let mut all = vec![
        json!({ "parse_example": { "features": { "image/encoded": "bytes", "image/class/label": "int64" } } }),
        json!({ "map": {
            "image": "random_flip(random_resized_crop(decode_image(\"image/encoded\"), 24, 24))",
            "label": "\"image/class/label\"",
        } }),
        json!({ "with_columns": { "image": "color_jitter(image, 0.4, 0.4, 0.4, 0.1)" } }),
    ];
    all.extend(steps.as_array().unwrap().iter().cloned());
    Pipeline::of(json!({ "tfrecord": { "path": path, "split": "200KiB" } }), Value::Array(all))
}

fn checksums(p: &Pipeline, args: &[&str]) -> Vec<String> {
    let report = p.report(args);
    assert!(report.rows().iter().all(|r| *r == IMAGES), "{:?}", report.rows());
    report.checksums()
}

#[test]
fn worker_counts_and_threads_change_nothing() {
    let p = augmented(json!([{ "shuffle": 20 }, { "batch": 7 }]));
    let one = checksums(&p, &["--workers", "1", "--cpu-threads", "1", "--epochs", "2"]);
    assert_ne!(one[0], one[1], "two epochs drew the same");
    assert_eq!(one, checksums(&p, &["--workers", "2", "--epochs", "2"]));
    assert_eq!(one, checksums(&p, &["--workers", "5", "--cpu-threads", "3", "--epochs", "2"]));
}

#[test]
fn batch_sizes_and_split_order_change_no_row() {
    let rows = |steps: Value| checksums(&augmented(steps), &[]);
    let plain = rows(json!([]));
    assert_eq!(plain, rows(json!([{ "batch": 1 }])));
    assert_eq!(plain, rows(json!([{ "batch": 60 }, { "prefetch": 2 }])));
    assert_eq!(plain, rows(json!([{ "shuffle": 60 }])));
}

#[test]
fn hints_change_no_row() {
    let plain = augmented(json!([]));
    let path = sample_images().join("tfrecord/*.tfrecord");
    let hinted = Pipeline::of(
        json!({ "tfrecord": { "path": path, "split": "200KiB" } }),
        json!([
            { "parse_example": { "features": { "image/encoded": "bytes", "image/class/label": "int64" } } },
            { "autocache": "source" },
            { "map": {
                "image": "random_flip(random_resized_crop(decode_image(\"image/encoded\"), 24, 24))",
                "label": "\"image/class/label\"",
            } },
            "autocache",
            { "with_columns": { "image": "color_jitter(image, 0.4, 0.4, 0.4, 0.1)" } },
        ]),
    );
    assert_eq!(checksums(&plain, &[]), checksums(&hinted, &[]));
}

#[test]
fn the_seed_is_what_changes_draws() {
    let p = augmented(json!([]));
    let zero = checksums(&p, &[]);
    assert_eq!(zero, checksums(&p, &["--seed", "0"]));
    assert_eq!(zero, checksums(&p, &[]));
    assert_ne!(zero, checksums(&p, &["--seed", "1"]));
}

#[test]
fn pipelines_without_draws_are_alike_in_every_epoch_and_under_every_seed() {
    let p = Pipeline::of(json!({ "range": 5000 }), json!([{ "map": { "x": "id * 3" } }, { "shuffle": 100 }]));
    let sums = p.report(&["--epochs", "3", "--seed", "9"]).checksums();
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[0], sums[2]);
}

#[test]
fn processes_give_what_the_embedded_run_gives() {
    let p = augmented(json!([{ "batch": 8 }]));
    let embedded = checksums(&p, &["--epochs", "2"]);
    let cluster = Cluster::start(2);
    let Report(report) = cluster.report(&p, &["--epochs", "2"]);
    let apart = Report(report.clone());
    assert_eq!(apart.checksums(), embedded);
    assert_eq!(apart.rows(), [IMAGES, IMAGES]);
    assert_eq!(report["fingerprint"], p.report(&[]).0["fingerprint"]);
    cluster.stop();
}

#[test]
fn two_draws_in_one_expression_differ_and_one_key_makes_them_alike() {
    let path = sample_images().join("tfrecord/*.tfrecord");
    let crop = |key: &str| format!("random_crop(decode_image(\"image/encoded\"), 16, 16{key})");
    let same_pixels = |key: &str| {
        let p = Pipeline::of(
            json!({ "tfrecord": path }),
            json!([
                { "parse_example": { "features": { "image/encoded": "bytes" } } },
                { "map": { "a": crop(key), "b": crop(key) } },
                { "filter": "a = b" },
            ]),
        );
        p.report(&[]).rows()[0]
    };
    assert!(same_pixels("") < IMAGES / 4);
    assert_eq!(same_pixels(", key => 'k'"), IMAGES);
}
