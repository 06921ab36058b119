//! Behaviours of snapshots that users of such services know, by their ids in docs/conformance.md.

use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline, caju, caju_in, files};
use serde_json::{Value, json};
use tempfile::tempdir;

/// Three files of numbers and strings with a pipeline on them.
fn on_files(steps: Value) -> Pipeline {
    let p = Pipeline::of(json!({ "parquet": { "path": "data/*.parquet" } }), steps);
    let folder = p.folder().join("data");
    std::fs::create_dir_all(&folder).unwrap();
    for n in 0..3 {
        hundred(&folder.join(format!("{n}.parquet")), n);
    }
    p
}

/// The `n`th hundred of rows.
fn hundred(file: &std::path::Path, n: i64) {
    let names: Vec<String> = (0..100).map(|i| format!("row {n} {i}")).collect();
    let columns = vec![
        ("id", files::ints(n * 100..(n + 1) * 100)),
        ("name", files::strings(names.iter().map(String::as_str))),
    ];
    files::parquet(file, columns);
}

const FULL: [&str; 4] = ["--cache", "cache", "--policy", "full"];

fn full(p: &Pipeline, more: &[&str]) -> Report {
    p.report(&[&FULL[..], more].concat())
}

fn computed(p: &Pipeline) -> Report {
    p.report(&["--policy", "compute"])
}

fn snapshots(p: &Pipeline) -> usize {
    let ended = caju_in(p.folder(), &["cache", "ls", "--cache", "cache", "--format", "json"]);
    ended.expect_code(0);
    let list: Value = serde_json::from_str(&ended.stdout).unwrap();
    list["snapshots"].as_array().unwrap().len()
}

#[test]
fn snp_01_a_second_job_opens_no_source() {
    let p = on_files(json!(["autocache", { "batch": 10 }]));
    let first = full(&p, &[]);
    assert_eq!(first.splits(0), [0, 3, 0]);
    let second = full(&p, &["--epochs", "2"]);
    assert_eq!(second.checksums(), vec![computed(&p).checksums()[0].clone(); 2]);
    assert_eq!((second.splits(0), second.splits(1)), ([0, 0, 3], [0, 0, 3]));
    // The footers neither: how the files were cut is remembered with what is stored.
    assert_eq!(second.epochs("source_bytes_read"), vec![json!(0); 2]);
    std::fs::remove_dir_all(p.folder().join("data")).unwrap();
    p.run(&FULL).expect_code(2).expect_error(&["data"]);
}

#[test]
fn snp_04_different_pipelines_in_one_cache() {
    let p = on_files(json!([{ "filter": "id < 200" }, "autocache"]));
    let q = |n: u64| json!({ "source": { "parquet": { "path": "data/*.parquet" } }, "steps": [{ "filter": format!("id < {n}") }, "autocache"] });
    for n in [200, 201, 10] {
        std::fs::write(p.path(), q(n).to_string()).unwrap();
        assert_eq!(full(&p, &["--epochs", "2"]).rows(), [n, n]);
    }
    assert_eq!(snapshots(&p), 3);
}

#[test]
fn snp_05_equal_pipelines_store_once_and_snp_10() {
    let p = on_files(json!(["autocache", { "shuffle": 50 }]));
    p.check().expect_code(0);
    assert!(!p.folder().join("cache").exists(), "nothing is written before something is read");
    full(&p, &[]);
    let again = full(&p, &[]);
    assert_eq!(again.splits(0), [0, 0, 3]);
    assert_eq!(snapshots(&p), 1);
}

#[test]
fn snp_07_mixed_types_with_repeat_below() {
    let steps = json!([
        { "with_columns": { "half": "id / 2.0", "maybe": "nullif(id % 3, 0)", "list": "make_array(id, id + 1)" } },
        "autocache",
        { "repeat": 10 },
    ]);
    let p = on_files(steps);
    let want = computed(&p);
    assert_eq!(want.rows(), [3000]);
    for _ in 0..2 {
        assert_eq!(full(&p, &[]).checksums(), want.checksums());
    }
    assert_eq!(snapshots(&p), 1);
}

#[test]
fn snp_09_an_endless_repeat_over_a_snapshot_that_is_being_finished() {
    let steps =
        json!(["autocache", { "shuffle": 16 }, { "batch": 16 }, "repeat", { "take": 30 }, { "prefetch": 2 }]);
    let p = Pipeline::of(json!({ "range": 16 }), steps);
    for _ in 0..2 {
        assert_eq!(full(&p, &[]).batches(), [30]);
    }
}

#[test]
fn snp_11_policies_are_exact() {
    let p =
        on_files(json!([{ "autocache": "a" }, { "with_columns": { "x": "id + 1" } }, { "autocache": "b" }]));
    let run = |policy: &str| p.report(&["--cache", "cache", "--policy", policy]).splits(0);
    assert_eq!(run("compute"), [3, 0, 0]);
    assert_eq!(run("hint:a"), [0, 3, 0]);
    assert_eq!(run("hint:b"), [0, 3, 0], "one hint never reads another one's");
    assert_eq!(run("source"), [0, 0, 3]);
    assert_eq!(run("compute"), [3, 0, 0], "compute never reads");
    p.run(&["--cache", "cache", "--policy", "hint:c"]).expect_code(2).expect_error(&["hint:c", "a, b"]);
    assert_eq!(snapshots(&p), 2);
}

#[test]
fn snp_13_any_encoding_any_number_of_workers_and_sto_15() {
    let p = on_files(
        json!([{ "with_columns": { "list": "make_array(name, null)" } }, "autocache", { "batch": 7 }]),
    );
    let want = computed(&p).checksums();
    let encodings =
        ["arrow/none", "arrow/lz4", "arrow/zstd", "parquet/none", "parquet/snappy", "parquet/zstd"];
    for (i, encoding) in encodings.iter().enumerate() {
        let workers = ["1", "2", "4"][i % 3];
        let cache = format!("cache-{i}");
        let args = ["--cache", &cache, "--policy", "full", "--encoding", encoding, "--workers", workers];
        let report = p.report(&[&args[..], &["--epochs", "2"]].concat());
        assert_eq!(report.checksums(), [&want[..], &want[..]].concat(), "{encoding}");
        assert_eq!(report.splits(1), [0, 0, 3], "{encoding}");
    }
    p.run(&["--cache", "cache", "--encoding", "arrow/gzip"]).expect_code(2);
}

#[test]
fn snp_14_the_order_of_keys_is_no_difference() {
    let p = on_files(json!([]));
    let texts = [
        "source: { concatenate: [ { source: { range: { start: 0, end: 50 } } }, { source: { range: { end: 150, start: 100 } } } ] }\nsteps: [ { map: { a: id, b: 'id * 2' } }, autocache ]\n",
        "steps: [ { map: { b: 'id*2', a: 'id' } }, autocache ] # the same\nsource: { concatenate: [ { source: { range: { end: 50, start: 0 } } }, { source: { range: { start: 100, end: 150 } } } ] }\n",
    ];
    for text in texts {
        std::fs::write(p.path(), text).unwrap();
        assert_eq!(full(&p, &[]).rows(), [100]);
    }
    assert_eq!(full(&p, &[]).splits(0), [0, 0, 2]);
    assert_eq!(snapshots(&p), 1);
}

#[test]
fn snp_18_a_stage_behind_a_finished_snapshot() {
    let p = on_files(json!(["autocache"]));
    full(&p, &[]);
    let more = json!({
        "source": { "parquet": { "path": "data/*.parquet" } },
        "steps": ["autocache", { "filter": "id % 2 = 0" }, { "with_columns": { "y": "id * 5" } }],
    });
    std::fs::write(p.path(), more.to_string()).unwrap();
    let report = full(&p, &[]);
    assert_eq!(report.splits(0), [0, 0, 3]);
    assert_eq!((report.rows(), report.checksums()), (vec![150], computed(&p).checksums()));
}

#[test]
fn sto_08_parts_removed_by_hand_are_made_again() {
    let p = on_files(json!(["autocache"]));
    let want = full(&p, &[]).checksums();
    let root = p.folder().join("cache/v1");
    let snapshot =
        std::fs::read_dir(&root).unwrap().flatten().find(|e| e.path().join("parts").exists()).unwrap();
    for file in std::fs::read_dir(snapshot.path().join("parts")).unwrap().flatten() {
        std::fs::remove_file(file.path()).unwrap();
    }
    let report = full(&p, &["--epochs", "2"]);
    assert_eq!(report.checksums(), [&want[..], &want[..]].concat());
    assert_eq!((report.splits(0), report.splits(1)), ([0, 3, 0], [0, 0, 3]));
    caju_in(p.folder(), &["cache", "verify", "--cache", "cache"]).expect_code(0);
}

#[test]
fn sto_17_sizes_as_people_write_them() {
    let folder = tempdir().unwrap();
    std::fs::write(folder.path().join("p.yaml"), "source: { range: 10 }\n").unwrap();
    for (text, code) in [("100kb", 0), ("75MiB", 0), ("1.39gb", 0), ("12kbb", 2), ("", 2)] {
        caju_in(folder.path(), &["run", "p.yaml", "--cache", "cache", "--cache-budget", text])
            .expect_code(code);
    }
}

#[test]
fn another_seed_finds_no_draws_of_the_first() {
    let p = on_files(json!([{ "with_columns": { "r": "uniform(0.0, 1.0)" } }, "autocache"]));
    let zero = full(&p, &[]);
    let one = full(&p, &["--seed", "1"]);
    assert_eq!(one.splits(0), [0, 3, 0]);
    assert_ne!(zero.checksums(), one.checksums());
    assert_eq!(one.checksums(), p.report(&["--policy", "compute", "--seed", "1"]).checksums());
    assert_eq!(full(&p, &["--seed", "1"]).splits(0), [0, 0, 3]);
}

#[test]
fn skips_are_counted_again_when_they_are_read() {
    let p = on_files(json!([]));
    let with = |limit: u64| {
        json!({
            "source": { "parquet": { "path": "data/*.parquet" } },
            "steps": [{ "with_columns": { "q": "100 / (id % 50)" } }, "autocache"],
            "on_error": { "skip": { "limit": limit } },
        })
    };
    std::fs::write(p.path(), with(10).to_string()).unwrap();
    let report = full(&p, &["--epochs", "2"]);
    assert_eq!((report.rows(), report.splits(1)), (vec![294, 294], [0, 0, 3]));
    std::fs::write(p.path(), with(5).to_string()).unwrap();
    p.run(&FULL).expect_code(2).expect_error(&["5", "bad rows"]);
}

#[test]
fn a_cluster_stores_for_the_next_one() {
    let p = on_files(json!(["autocache", { "batch": 10 }]));
    let root = p.folder().join("shared");
    let path = p.folder().join("data/*.parquet");
    let definition =
        json!({ "source": { "parquet": { "path": path } }, "steps": ["autocache", { "batch": 10 }] });
    std::fs::write(p.path(), definition.to_string()).unwrap();
    for want in [[0, 3, 0], [0, 0, 3]] {
        let cluster = Cluster::start_with(2, &["--cache", root.to_str().unwrap()], &[]);
        let report = cluster.report(&p, &["--policy", "full"]);
        assert_eq!(report.splits(0), want);
        cluster.stop();
    }
    caju(&["cache", "verify", "--cache", root.to_str().unwrap()]).expect_code(0);
}

/// What `caju cache inspect` says of the only snapshot.
fn inspected(p: &Pipeline) -> Value {
    let ask = |args: &[&str]| {
        let ended =
            caju_in(p.folder(), &[&["cache"], args, &["--cache", "cache", "--format", "json"]].concat());
        ended.expect_code(0);
        serde_json::from_str::<Value>(&ended.stdout).unwrap()
    };
    let list = ask(&["ls"]);
    assert_eq!(list["snapshots"].as_array().unwrap().len(), 1, "{list:#}");
    ask(&["inspect", list["snapshots"][0]["fingerprint"].as_str().unwrap()])
}

#[test]
fn manifests_say_how_many_splits_there_are_and_what_was_read_for_parts() {
    let p = on_files(json!(["autocache", { "repeat": 2 }, { "batch": 10 }]));
    let first = full(&p, &["--workers", "2"]);
    let read = first.epochs("source_bytes_read")[0].as_u64().unwrap();
    let told = inspected(&p);
    assert_eq!((&told["info"]["splits"], &told["info"]["splits_total"]), (&json!(3), &json!(3)));
    assert!(told["description"]["profile"].is_null(), "nobody measured");
    let parts: Vec<u64> =
        told["parts"].as_array().unwrap().iter().map(|p| p["source_bytes"].as_u64().unwrap()).collect();
    let sum: u64 = parts.iter().sum();
    assert!(parts.iter().all(|n| *n > 0) && sum <= read, "{parts:?} of {read}");
    assert_eq!(told["info"]["source_bytes"], sum);
    // The source grows, and one of its parts is deleted: stored splits are compared with those of
    // the source.
    for n in 3..5 {
        let file = p.folder().join(format!("data/{n}.parquet"));
        std::fs::copy(p.folder().join("data/0.parquet"), file).unwrap();
    }
    full(&p, &[]);
    let told = inspected(&p);
    assert_eq!((&told["info"]["splits"], &told["info"]["splits_total"]), (&json!(5), &json!(5)));
    let part = told["parts"][0]["path"].as_str().unwrap();
    std::fs::remove_file(p.folder().join("cache/v1").join(part)).unwrap();
    let text = caju_in(p.folder(), &["cache", "ls", "--cache", "cache"]).stdout;
    assert!(text.contains("4 of 5"), "{text}");
}

#[test]
fn draws_of_another_seed_are_described_too() {
    let p = on_files(json!([{ "with_columns": { "r": "uniform(0.0, 1.0)" } }, "autocache"]));
    full(&p, &[]);
    full(&p, &["--seed", "1"]);
    let ended = caju_in(p.folder(), &["cache", "ls", "--cache", "cache", "--format", "json"]);
    let list: Value = serde_json::from_str(&ended.stdout).unwrap();
    let totals: Vec<&Value> =
        list["snapshots"].as_array().unwrap().iter().map(|s| &s["splits_total"]).collect();
    assert_eq!(totals, [&json!(3), &json!(3)]);
}

#[test]
fn the_profile_of_a_choice_stands_in_the_manifest() {
    let p = on_files(json!([{ "sleep": { "per_row": "8ms" } }, "autocache", { "batch": 10 }]));
    let report = p.report(&["--cache", "cache", "--policy", "auto", "--epochs", "4"]);
    assert_eq!(report.0["decision"]["choice"]["kind"], "materialize", "{:#}", report.0["decision"]);
    let told = inspected(&p);
    let profile = &told["description"]["profile"];
    assert_eq!(profile["schema"], "caju.profile/v1", "{profile:#}");
    assert_eq!(told["info"]["splits_total"], 3);
    // It is the one by which was chosen.
    std::fs::write(p.folder().join("profile.json"), profile.to_string()).unwrap();
    let planned = caju_in(p.folder(), &["plan", "profile.json"]);
    planned.expect_code(0);
    let planned: Value = serde_json::from_str(&planned.stdout).unwrap();
    assert_eq!(planned["choice"], report.0["decision"]["choice"]);
}

#[test]
fn splits_that_were_all_under_way_at_the_decision_are_stored() {
    // The three are leased at once, and sleep one after another: 12 seconds.
    let p = on_files(json!([{ "sleep": { "per_row": "40ms" } }, "autocache", { "batch": 10 }]));
    let report = p.report(&["--cache", "cache", "--policy", "auto", "--epochs", "2"]);
    assert_eq!(report.splits(0), [0, 3, 0], "{:#}", report.0);
    assert_eq!(report.0["epochs"][0]["splits"]["backfilled"], 3);
    // The former name, for one more version.
    assert_eq!(report.0["epochs"][0]["splits"]["kept"], 3);
    assert_eq!(report.splits(1), [0, 0, 3]);
    assert_eq!(report.checksums()[0], report.checksums()[1]);
}

#[test]
fn a_listing_is_remembered_file_by_file() {
    let p = on_files(json!(["autocache", { "batch": 10 }]));
    full(&p, &[]);
    // One file changes, one comes: these two are opened, and nothing is mixed up.
    let data = p.folder().join("data");
    hundred(&data.join("1.parquet"), 50);
    hundred(&data.join("3.parquet"), 3);
    let again = full(&p, &[]);
    assert_eq!(again.splits(0), [0, 2, 2]);
    assert_eq!(again.checksums(), computed(&p).checksums());
    // A first file with other columns is seen.
    files::parquet(&data.join("0.parquet"), vec![("other", files::ints(0..10))]);
    p.run(&FULL).expect_code(2).expect_error(&["first file", "other"]);
}
