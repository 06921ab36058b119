//! Saves and loads, by their ids in docs/conformance.md; what happens to them when processes die is in
//! `save_faults`.

use std::path::Path;

use caju_tests::pipeline::Report;
use caju_tests::process::Ended;
use caju_tests::{Cluster, Pipeline, caju, caju_in, files};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

fn range(n: u64, steps: Value) -> Pipeline {
    Pipeline::of(json!({ "range": n }), steps)
}

/// The sum of the checksums of all epochs: a checksum is a sum over rows, so sums can be compared for unions.
fn sum(report: &Report) -> u128 {
    report.checksums().iter().fold(0, |n, c| n.wrapping_add(u128::from_str_radix(c, 16).unwrap()))
}

/// The checksum of a definition's rows, computed here and now.
fn expected(p: &Pipeline) -> u128 {
    sum(&p.report(&["--policy", "compute"]))
}

/// A place for saves.
fn place() -> (TempDir, impl Fn(&str) -> String) {
    let folder = tempdir().unwrap();
    let base = folder.path().to_str().unwrap().to_owned();
    (folder, move |name: &str| format!("{base}/{name}"))
}

/// Runs `caju save`; what it says as JSON.
#[track_caller]
fn save(p: &Pipeline, to: &str, args: &[&str]) -> Value {
    let ended = save_ended(p, to, args);
    ended.expect_code(0);
    serde_json::from_str(&ended.stdout).unwrap()
}

fn save_ended(p: &Pipeline, to: &str, args: &[&str]) -> Ended {
    let all = ["save", "pipeline.yaml", "--to", to, "--format", "json"];
    caju_in(p.folder(), &[&all[..], args].concat())
}

fn load(path: &str, steps: Value) -> Pipeline {
    Pipeline::of(json!({ "load": { "path": path } }), steps)
}

/// Whether the first `n` rows of a save are the first ones of a range: `take` counts in the order of the source.
fn begins_like_a_range(path: &str, n: u64) -> bool {
    expected(&load(path, json!([{ "take": n }]))) == expected(&range(n, json!([])))
}

#[test]
fn sav_01_what_is_saved_is_loaded_and_sft_19() {
    let (_folder, at) = place();
    for (rows, workers) in [(0, "1"), (10, "3"), (10_000, "1"), (10_000, "3")] {
        let p = range(rows, json!([{ "with_columns": { "x": "id * 3" } }]));
        let to = at(&format!("{rows}-{workers}"));
        let saved = save(&p, &to, &["--workers", workers]);
        assert_eq!((&saved["state"], &saved["rows"]), (&json!("finished"), &json!(rows)));
        let report = load(&to, json!([])).report(&["--workers", workers]);
        assert_eq!(report.rows(), [rows]);
        assert_eq!(sum(&report), expected(&p));
        let files = files::below(Path::new(&to));
        assert!(!files.iter().any(|f| f.contains("/claims/") || f.contains("/writers/")), "{files:?}");
        let caju = caju_in(p.folder(), &["cache", "verify", "--cache", &to]);
        if rows > 0 {
            caju.expect_code(0);
        }
    }
    save(&range(5000, json!([])), &at("ordered"), &[]);
    assert!(begins_like_a_range(&at("ordered"), 3000));
}

#[test]
fn sav_02_any_encoding_is_loaded_without_being_named() {
    let (_folder, at) = place();
    let p = range(20, json!([{ "with_columns": { "s": "concat('row ', cast(id as varchar))" } }]));
    let want = expected(&p);
    for encoding in
        ["arrow/none", "arrow/lz4", "arrow/zstd", "parquet/none", "parquet/snappy", "parquet/zstd"]
    {
        let to = at(encoding);
        save(&p, &to, &["--encoding", encoding]);
        assert_eq!(sum(&load(&to, json!([])).report(&[])), want, "{encoding}");
        assert_eq!(sum(&load(&to, json!([{ "select": ["s"] }, { "map": { "s": "s" } }])).report(&[])), {
            expected(&range(20, json!([{ "map": { "s": "concat('row ', cast(id as varchar))" } }])))
        });
    }
    save_ended(&p, &at("gzip"), &["--encoding", "arrow/gzip"]).expect_code(2);
}

#[test]
fn sav_03_repeats_inside_and_sav_22() {
    let (_folder, at) = place();
    let named = json!({ "zip": [
        { "source": { "range": 3 } },
        { "source": { "range": 3 }, "steps": [{ "map": { "s": "concat('s', cast(id as varchar))" } }] },
    ] });
    for (times, workers) in [(1, "1"), (3, "3"), (5, "3")] {
        for (name, source) in [("numbers", json!({ "range": 100 })), ("strings", named.clone())] {
            let p = Pipeline::of(source, json!([{ "repeat": times }]));
            let to = at(&format!("{name}-{times}"));
            save(&p, &to, &["--workers", workers]);
            assert_eq!(
                sum(&load(&to, json!([])).report(&["--workers", workers])),
                expected(&p),
                "{name} {times}"
            );
        }
    }
    let p = range(10, json!([{ "repeat": 0 }]));
    if p.check().code == Some(0) {
        save(&p, &at("never"), &[]);
        assert_eq!(load(&at("never"), json!([])).report(&[]).rows(), [0]);
    }
    let random = range(10, json!([{ "with_columns": { "r": "uniform(0.0, 1.0)" } }, { "repeat": 2 }]));
    save_ended(&random, &at("random"), &[]).expect_code(2).expect_error(&["random", "repeat"]);
}

#[test]
fn sav_05_two_saves_at_once() {
    let (_folder, at) = place();
    let cluster = Cluster::start(3);
    let (p, q) = (range(5000, json!([])), range(4000, json!([{ "map": { "y": "id * 7" } }])));
    for (p, to) in [(&p, at("p")), (&q, at("q"))] {
        let begun = save(p, &to, &["--dispatcher", cluster.address(), "--detach"]);
        assert_ne!(begun["state"], "failed");
    }
    let both = |s: &Value| {
        let saves = s["saves"].as_array()?;
        (saves.len() == 2 && saves.iter().all(|s| s["state"] == "finished")).then_some(())
    };
    cluster.wait_for_status("two finished saves", both);
    let text = caju(&["status", "--dispatcher", cluster.address()]);
    assert!(text.stdout.contains(&at("p")) && text.stdout.contains("finished"), "{}", text.stdout);
    for (p, to) in [(&p, at("p")), (&q, at("q"))] {
        assert_eq!(sum(&cluster.report(&load(&to, json!([])), &[])), expected(p));
    }
    cluster.stop();
}

#[test]
fn sav_06_chunks_in_another_order_and_three_copies() {
    let (_folder, at) = place();
    let p = range(10, json!([]));
    save(&p, &at("s"), &["--chunk-bytes", "1"]);
    let report = load(&at("s"), json!([{ "shuffle": { "buffer": 1 } }, { "repeat": 3 }])).report(&[]);
    assert_eq!(report.rows(), [30]);
    assert_eq!(sum(&report), expected(&p).wrapping_mul(3));
}

#[test]
fn sav_08_zipped_rows_stay_aligned() {
    let (_folder, at) = place();
    let p = Pipeline::of(
        json!({ "zip": [
            { "source": { "range": 200 } },
            { "source": { "range": 200 }, "steps": [{ "map": { "other": "id + 1000" } }] },
        ] }),
        json!([{ "repeat": 3 }]),
    );
    save(&p, &at("s"), &[]);
    let report = load(&at("s"), json!([])).report(&[]);
    assert_eq!((report.rows(), sum(&report)), (vec![600], expected(&p)));
}

#[test]
fn sav_09_nothing_is_there() {
    let (folder, at) = place();
    for wait in [true, false] {
        let p = Pipeline::of(json!({ "load": { "path": at("none"), "wait": wait } }), json!([]));
        p.run(&[]).expect_code(2).expect_error(&["no save at", "none"]);
        let cluster = Cluster::start(1);
        cluster.read(&p, &[]).expect_code(2).expect_error(&["no save at"]);
        cluster.stop();
    }
    assert_eq!(files::below(folder.path()), Vec::<String>::new(), "looking writes nothing");
}

#[test]
fn sav_12_an_infinite_dataset() {
    let (_folder, at) = place();
    save_ended(&range(10, json!(["repeat"])), &at("s"), &[])
        .expect_code(2)
        .expect_error(&["infinite dataset"]);
    let cluster = Cluster::start(0);
    save_ended(&range(10, json!(["repeat"])), &at("s"), &["--dispatcher", cluster.address()])
        .expect_code(2)
        .expect_error(&["infinite dataset"]);
    cluster.stop();
}

#[test]
fn sav_15_limits_of_chunks_and_sav_18() {
    let (_folder, at) = place();
    let p = range(3000, json!([{ "with_columns": { "s": "concat('row ', cast(id as varchar))" } }]));
    let want = expected(&p);
    for encoding in ["arrow/none", "arrow/zstd", "parquet/zstd"] {
        let to = at(&format!("{encoding}-16k"));
        let saved = save(&p, &to, &["--chunk-bytes", "16KB", "--encoding", encoding]);
        assert!((4..=9).contains(&saved["chunks"].as_u64().unwrap()), "{saved}");
        assert_eq!(sum(&load(&to, json!([])).report(&[])), want, "{encoding}");
    }
    let few = range(50, json!([]));
    for encoding in ["arrow/none", "parquet/snappy"] {
        let to = at(&format!("{encoding}-1"));
        let saved = save(&few, &to, &["--chunk-bytes", "1", "--encoding", encoding]);
        assert_eq!(saved["chunks"], 50, "one element per chunk: {saved}");
        assert_eq!(sum(&load(&to, json!([])).report(&["--workers", "3"])), expected(&few), "{encoding}");
    }
}

#[test]
fn sav_19_chunks_are_in_numeric_order() {
    let (_folder, at) = place();
    save(&range(50, json!([])), &at("s"), &["--chunk-bytes", "1"]);
    for n in [2, 11, 49] {
        assert!(begins_like_a_range(&at("s"), n), "the first {n}");
    }
}

#[test]
fn sav_21_sampling_before_and_after() {
    let (_folder, at) = place();
    let child = |i: u64| json!({ "source": { "range": { "start": i * 100, "end": i * 100 + 10 } } });
    for i in 0..3 {
        save(&Pipeline::new(&child(i)), &at(&i.to_string()), &[]);
    }
    let sample = |datasets: Vec<Value>, times: u64| {
        let source = json!({ "sample": { "datasets": datasets, "weights": [1, 1, 1] } });
        Pipeline::of(source, json!([{ "repeat": times }]))
    };
    let computed = sample((0..3).map(child).collect(), 1);
    let loads = (0..3).map(|i| json!({ "source": { "load": { "path": at(&i.to_string()) } } })).collect();
    assert_eq!(sum(&sample(loads, 1).report(&["--workers", "3"])), expected(&computed));
    for times in [1, 3] {
        let p = sample((0..3).map(child).collect(), times);
        let to = at(&format!("mix-{times}"));
        save(&p, &to, &["--workers", "3"]);
        let report = load(&to, json!([])).report(&[]);
        assert_eq!((report.rows(), sum(&report)), (vec![30 * times], expected(&p)));
    }
}

#[test]
fn batches_and_shuffles_are_for_the_load() {
    let (_folder, at) = place();
    let steps = json!([{ "shuffle": 10 }, { "batch": 8 }, { "prefetch": 2 }]);
    let p = range(100, steps.clone());
    let ended = save_ended(&p, &at("s"), &[]);
    ended.expect_code(0);
    assert!(ended.stderr.contains("`shuffle`, `batch`, `prefetch`"), "{}", ended.stderr);
    let report = load(&at("s"), steps).report(&[]);
    assert_eq!((report.batches(), sum(&report)), (vec![13], expected(&p)));
}

#[test]
fn a_save_is_no_place_for_another_one() {
    let (_folder, at) = place();
    save(&range(10, json!([])), &at("s"), &[]);
    save_ended(&range(11, json!([{ "filter": "id > 3" }])), &at("s"), &[])
        .expect_code(2)
        .expect_error(&["another save"]);
    save_ended(&range(10, json!([])), &at("s"), &[]).expect_code(0);
}

#[test]
fn what_is_stored_is_not_computed_again_and_growing_data_is_added() {
    let (_folder, at) = place();
    let p = Pipeline::of(json!({ "parquet": { "path": "data/*.parquet" } }), json!([]));
    let grow = |n: i64| {
        let file = p.folder().join(format!("data/{n}.parquet"));
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        files::parquet(&file, vec![("id", files::ints(n * 100..(n + 1) * 100))]);
    };
    (0..4).for_each(grow);
    save(&p, &at("s"), &[]);
    let before = files::below(Path::new(&at("s")));
    (4..6).for_each(grow);
    let saved = save(&p, &at("s"), &[]);
    assert_eq!((&saved["rows"], &saved["splits_total"]), (&json!(600), &json!(6)));
    let after = files::below(Path::new(&at("s")));
    let parts =
        |all: &[String]| -> Vec<String> { all.iter().filter(|f| f.ends_with(".arrow")).cloned().collect() };
    assert_eq!((parts(&before).len(), parts(&after).len()), (4, 6));
    assert!(parts(&before).iter().all(|f| after.contains(f)), "the first parts are the same files");
    assert_eq!(sum(&load(&at("s"), json!([])).report(&[])), expected(&p));
}

#[test]
fn bad_rows_of_a_save_are_reported_and_limited_in_all_attempts() {
    let (_folder, at) = place();
    let broken = b"{broken\n";
    let of = |limit: u64, first: &[u8]| {
        let source = json!({ "json": { "path": "*.json", "schema": { "id": "int64" } } });
        let p = Pipeline::new(&json!({ "source": source, "on_error": { "skip": { "limit": limit } } }));
        p.with_file("1.json", first).with_file("2.json", broken)
    };
    let p = of(2, b"{\"id\": 1}\n{broken\n");
    let saved = save(&p, &at("s"), &[]);
    assert_eq!((&saved["rows"], &saved["rows_skipped"]), (&json!(1), &json!(2)));
    let again = caju_in(p.folder(), &["save", "pipeline.yaml", "--to", &at("s")]);
    assert!(again.expect_code(0).stdout.contains("; 2 bad rows were skipped"), "{}", again.stdout);
    let p = of(1, broken);
    for _ in 0..2 {
        let ended = save_ended(&p, &at("limited"), &[]);
        ended.expect_code(2).expect_error(&["2 bad rows were skipped, more than the limit of 1"]);
    }
}

#[test]
fn damage_is_an_error_that_names_the_part() {
    let (_folder, at) = place();
    save(&range(3000, json!([])), &at("s"), &[]);
    let part = files::below(Path::new(&at("s"))).into_iter().find(|f| f.ends_with(".arrow")).unwrap();
    let mut bytes = std::fs::read(&part).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&part, &bytes).unwrap();
    let name = Path::new(&part).file_name().unwrap().to_str().unwrap();
    let mends = "save the same pipeline again";
    load(&at("s"), json!([])).run(&[]).expect_code(2).expect_error(&[name, mends]);
    std::fs::remove_file(&part).unwrap();
    load(&at("s"), json!([])).run(&[]).expect_code(2).expect_error(&["gone", mends]);
}

#[test]
fn saving_again_mends_what_is_damaged_and_throws_nothing_away() {
    let (_folder, at) = place();
    let p = Pipeline::of(json!({ "parquet": { "path": "data/*.parquet" } }), json!([]));
    std::fs::create_dir_all(p.folder().join("data")).unwrap();
    let file = |n: i64| p.folder().join(format!("data/{n}.parquet"));
    (0..4).for_each(|n| files::parquet(&file(n), vec![("id", files::ints(n * 100..(n + 1) * 100))]));
    let want = expected(&p);
    save(&p, &at("s"), &[]);
    let parts = || files::below(Path::new(&at("s"))).into_iter().filter(|f| f.ends_with(".arrow"));
    let mut harmed = parts();
    for part in harmed.by_ref().take(2) {
        let mut bytes = std::fs::read(&part).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&part, &bytes).unwrap();
    }
    std::fs::remove_file(harmed.next().unwrap()).unwrap();
    load(&at("s"), json!([])).run(&[]).expect_code(2);
    assert_eq!(save(&p, &at("s"), &[])["rows"], json!(400));
    assert_eq!(sum(&load(&at("s"), json!([])).report(&[])), want);
    // Deleting a file removes no rows from the save.
    std::fs::remove_file(file(3)).unwrap();
    save_ended(&p, &at("s"), &[]).expect_code(3).expect_error(&["1 of its 4 splits", "another URL"]);
    assert_eq!(sum(&load(&at("s"), json!([])).report(&[])), want);
}

#[test]
fn sft_03_a_malformed_description_is_refused_by_name() {
    let (_folder, at) = place();
    let p = range(3000, json!([]));
    save(&p, &at("s"), &[]);
    // Foreign files are skipped.
    let folder = Path::new(&at("s")).join("v1");
    for name in ["stream_", "stream_-1", "0123/parts/x.commit", "notes.txt"] {
        let file = folder.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, b"x").unwrap();
    }
    assert_eq!(load(&at("s"), json!([])).report(&[]).rows(), [3000]);
    for text in ["", "{}", "{\"seal\":\"0\"}", "save"] {
        std::fs::write(format!("{}/save.json", at("s")), text).unwrap();
        load(&at("s"), json!([])).run(&[]).expect_code(2).expect_error(&["save.json"]);
        save_ended(&p, &at("s"), &[]).expect_code(2).expect_error(&["save.json"]);
    }
}

#[test]
fn a_save_outside_of_what_is_allowed() {
    let (_folder, at) = place();
    let allowed = tempdir().unwrap();
    let cluster = Cluster::start(0);
    let other = caju_tests::cluster::Server::start(
        allowed.path(),
        "dispatcher",
        &["--listen", "127.0.0.1:0", "--allow", allowed.path().to_str().unwrap()],
    );
    save_ended(&range(10, json!([])), &at("s"), &["--dispatcher", &other.address])
        .expect_code(3)
        .expect_error(&["--allow"]);
    other.terminate().expect_code(0);
    cluster.stop();
}
