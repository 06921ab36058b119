//! More behaviours of snapshots and their stores, by their ids in docs/conformance.md: parts and their sizes,
//! interrupted passes, failing stores, folders side by side.

use std::path::PathBuf;
use std::process::Command;

use caju_tests::binary::caju_binary;
use caju_tests::pipeline::Report;
use caju_tests::process::Ended;
use caju_tests::{Pipeline, Process, caju_in, files};
use serde_json::{Value, json};

const FULL: [&str; 4] = ["--cache", "cache", "--policy", "full"];

/// The files of parts below a pipeline's cache.
fn parts(p: &Pipeline) -> Vec<PathBuf> {
    let Ok(snapshots) = std::fs::read_dir(p.folder().join("cache/v1")) else { return Vec::new() };
    let inside = snapshots.flatten().filter_map(|e| std::fs::read_dir(e.path().join("parts")).ok());
    let files = inside.flat_map(|entries| entries.flatten().map(|e| e.path()));
    files.filter(|f| f.extension().is_some_and(|e| e == "arrow")).collect()
}

fn numbers(file: &std::path::Path, from: i64, rows: i64) {
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    files::parquet(file, vec![("id", files::ints(from..from + rows))]);
}

/// With a deleted source: not found, unless the job says that stored rows are enough.
#[test]
fn snp_01_cache_only_reads_without_the_source() {
    let p = Pipeline::of(json!({ "range": 1 }), json!([]));
    (0..3).for_each(|n| numbers(&p.folder().join(format!("data/{n}.parquet")), n * 100, 100));
    let def = |more: Value, below: Value| {
        let mut def = json!({
            "source": { "parquet": { "path": "data/*.parquet" } },
            "steps": [{ "with_columns": { "x": "id * 2 + uniform(0.0, 1.0)" } }, "autocache", below, { "batch": 10 }],
            "deterministic": true,
        });
        def.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        std::fs::write(p.path(), def.to_string()).unwrap();
    };
    let noise = json!({ "with_columns": { "y": "uniform(0.0, 1.0)" } });
    def(json!({}), noise.clone());
    p.run(&["--cache-only", "--cache", "cache"]).expect_code(2).expect_error(&[
        "cache_only",
        "does not know",
        "store",
    ]);
    let stored = p.report(&[&FULL[..], &["--epochs", "2"]].concat());
    std::fs::rename(p.folder().join("data"), p.folder().join("elsewhere")).unwrap();
    p.run(&FULL).expect_code(2).expect_error(&["data"]);
    // The same rows in the same order, random stages below included.
    let alone = p.report(&["--cache", "cache", "--cache-only", "--epochs", "2"]);
    assert_eq!(alone.checksums(), stored.checksums());
    assert_eq!((alone.splits(0), alone.epochs("source_bytes_read")[0].clone()), ([0, 0, 3], json!(0)));
    // As a setting of the pipeline, with other stages below.
    def(json!({ "cache_only": true }), json!({ "filter": "id < 150" }));
    assert_eq!(p.report(&["--cache", "cache"]).rows(), [150]);
    // Nothing else will do.
    p.run(&["--cache", "cache", "--policy", "compute"])
        .expect_code(3)
        .expect_error(&["cache_only", "compute"]);
    p.run(&["--cache", "elsewhere-too"]).expect_code(2).expect_error(&["cache_only", "does not know"]);
    let part = parts(&p).pop().unwrap();
    std::fs::remove_file(part).unwrap();
    p.run(&["--cache", "cache"]).expect_code(2).expect_error(&["cache_only", ".parquet", "not stored"]);
    let no_hint = Pipeline::of(json!({ "range": 10 }), json!([]));
    no_hint.run(&["--cache", "cache", "--cache-only"]).expect_code(2).expect_error(&["autocache"]);
}

/// Rows are dealt out to parts by splits, and by nothing that a hint could be told.
#[test]
fn snp_02_parts_are_splits_and_a_hint_takes_no_functions() {
    let p = Pipeline::of(json!({ "range": 12_000 }), json!([{ "autocache": "h" }]));
    let (want, whole) = (p.report(&["--policy", "compute"]).checksums(), p.report(&FULL));
    assert_eq!((whole.checksums(), whole.splits(0)[1] as usize), (want.clone(), parts(&p).len()));
    assert_eq!(p.report(&FULL).checksums(), want);
    let hint = |more: Value| {
        let mut hint = json!({ "name": "h" });
        hint.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Pipeline::of(json!({ "range": 10 }), json!([{ "autocache": hint }])).check()
    };
    hint(json!({})).expect_code(0);
    for key in ["shard_func", "reader_func"] {
        hint(json!({ key: "id % 2" })).expect_code(2).expect_error(&[key, "autocache"]);
    }
}

/// A part holds a split: what was asked for, and at most one element more.
#[test]
fn snp_17_parts_are_no_larger_than_a_split_and_one_element() {
    const ELEMENT: usize = 200 << 10;
    let records: Vec<Vec<u8>> = (0..10u8).map(|i| vec![i; ELEMENT]).collect();
    let run = |split: &str, encoding: &str| {
        let p = Pipeline::of(
            json!({ "tfrecord": { "path": "data.tfrecord", "split": split } }),
            json!(["autocache"]),
        );
        let p = p.with_file("data.tfrecord", &files::tfrecord(&records));
        let report = p.report(&[&FULL[..], &["--encoding", encoding, "--epochs", "2"]].concat());
        assert_eq!(report.rows(), [10, 10]);
        assert_eq!(report.splits(1)[2] as usize, parts(&p).len());
        parts(&p).iter().map(|f| f.metadata().unwrap().len() as usize).collect::<Vec<_>>()
    };
    let raw = run("500KiB", "arrow/none");
    assert!((4..=5).contains(&raw.len()), "{raw:?}");
    // The file's own frame is some kilobytes.
    assert!(raw.iter().all(|bytes| *bytes <= (500 << 10) + ELEMENT + (16 << 10)), "{raw:?}");
    let packed = run("500KiB", "arrow/zstd");
    assert!(packed.len() == raw.len() && packed.iter().all(|bytes| *bytes < 64 << 10), "{packed:?}");
    assert_eq!(run("64MiB", "arrow/zstd").len(), 1);
}

/// A first pass that was killed leaves whole parts; the next run reads those, computes the others, and gives every
/// row once. (Going on in the middle of a pass needs checkpoints of readers.)
#[test]
fn snp_20_an_interrupted_first_pass_is_no_loss() {
    let steps =
        json!([{ "burn": { "per_row": "100us" } }, { "with_columns": { "x": "id * 3" } }, "autocache"]);
    let p = Pipeline::of(json!({ "range": 12_000 }), steps);
    let plain = Pipeline::of(json!({ "range": 12_000 }), json!([{ "with_columns": { "x": "id * 3" } }]));
    let want = plain.report(&["--policy", "compute"]).checksums();
    let run = Process::caju(p.folder(), &[&["run", "pipeline.yaml", "--quiet"][..], &FULL].concat());
    let deadline = std::time::Instant::now() + caju_tests::process::TEST_TIMEOUT;
    while parts(&p).len() < 3 {
        assert!(std::time::Instant::now() < deadline, "nothing is stored");
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
    run.signal("KILL");
    run.wait();
    let report = p.report(&[&FULL[..], &["--epochs", "2"]].concat());
    assert_eq!(report.checksums(), [&want[..], &want].concat());
    let first = report.splits(0);
    assert!(first[2] >= 1 && first.iter().sum::<u64>() == 12, "{first:?}");
    caju_in(p.folder(), &["cache", "verify", "--cache", "cache"]).expect_code(0);
}

/// `caju` with the settings of a store in its environment.
pub(crate) fn with_env(p: &Pipeline, env: &[(String, String)], args: &[&str]) -> Ended {
    let mut command = Command::new(caju_binary());
    command.args(args).current_dir(p.folder()).env_remove("CAJU_CONFIG");
    command.envs(env.iter().map(|(k, v)| (k.as_str(), v.as_str())));
    Process::start(command, format!("caju {}", args.join(" "))).wait()
}

#[test]
fn sto_11_a_store_that_fails_is_tried_again_within_bounds() {
    const ALL: [&str; 5] = ["GET", "PUT", "POST", "HEAD", "DELETE"];
    let threads = tokio::runtime::Runtime::new().unwrap();
    let s3 = threads.block_on(caju_testkit::s3::S3Server::start(&["bucket"])).unwrap();
    let env: Vec<_> = s3.options().into_iter().map(|(k, v)| (k.to_uppercase(), v)).collect();
    let p =
        Pipeline::of(json!({ "range": 6_000 }), json!([{ "with_columns": { "x": "id * 3" } }, "autocache"]));
    let want = p.report(&["--policy", "compute"]).checksums().remove(0);
    let run = |epochs: &str| {
        let args =
            ["run", "pipeline.yaml", "--cache", "s3://bucket/cache", "--policy", "full", "--epochs", epochs];
        let ended = with_env(&p, &env, &[&args[..], &["--report", "r.json"]].concat());
        ended.expect_code(0);
        (Report::load(&p.folder().join("r.json")), ended)
    };
    // Twice 503, then it works: with every request.
    s3.fail(&ALL, 2, 1);
    let (report, _) = run("2");
    assert_eq!(report.checksums(), vec![want.clone(); 2]);
    assert_eq!((report.splits(0), report.splits(1)), ([0, 6, 0], [0, 0, 6]));
    let failed = s3.requests().failed;
    assert!(failed >= 20, "{failed} requests failed");
    // Storing that never succeeds is abandoned, and the job continues without it.
    s3.fail(&ALL, 1, 0);
    let (report, ended) = run("1");
    assert_eq!((report.checksums(), report.splits(0)), (vec![want], [6, 0, 0]));
    assert!(ended.stderr.contains("the cache cannot be used here"), "{}", ended.stderr);
    let tries = s3.requests().failed - failed;
    assert!((2..200).contains(&tries), "{tries} requests");
    s3.fail(&[], 0, 0);
    with_env(&p, &env, &["cache", "verify", "--cache", "s3://bucket/cache"]).expect_code(0);
}

#[test]
fn sto_14_folders_side_by_side_do_not_mix() {
    let p = Pipeline::of(json!({ "range": 1 }), json!([]));
    numbers(&p.folder().join("data/train/0.parquet"), 0, 100);
    numbers(&p.folder().join("data/train/1.parquet"), 100, 100);
    numbers(&p.folder().join("data/val/0.parquet"), 1000, 50);
    let of = |folder: &str| {
        let path = format!("data/{folder}");
        let def = json!({ "source": { "parquet": { "path": path } },
                          "steps": [{ "with_columns": { "y": "id + 1" } }, "autocache", { "batch": 10 }] });
        std::fs::write(p.path(), def.to_string()).unwrap();
        let report = p.report(&FULL);
        let want = p.report(&["--policy", "compute"]).checksums();
        assert_eq!(report.checksums(), want, "{folder}");
        (report.rows()[0], report.splits(0))
    };
    assert_eq!(of("train"), (200, [0, 2, 0]));
    assert_eq!(of("val"), (50, [0, 1, 0]), "the same stages, and nothing of the other's");
    assert_eq!(of("train"), (200, [0, 0, 2]));
    assert_eq!(of("val"), (50, [0, 0, 1]));
    assert_eq!(of("*/0.parquet"), (150, [0, 0, 2]), "and both, where both are meant");
    assert_eq!(parts(&p).len(), 3, "one snapshot, a part for every split of either");
    std::fs::remove_dir_all(p.folder().join("data/val")).unwrap();
    std::fs::write(
        p.path(),
        json!({ "source": { "parquet": "data/val" }, "steps": ["autocache"] }).to_string(),
    )
    .unwrap();
    p.run(&FULL).expect_code(2).expect_error(&["data/val"]);
}
