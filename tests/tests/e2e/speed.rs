//! The benchmarks of the control plane run, say what they measured, and leave nothing behind. Their figures are in
//! benches/dispatcher/RESULTS.md; bounds that a debug build holds are tested here and in `caju_dispatcher`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use caju_tests::binary::caju_binary;
use caju_tests::{Pipeline, caju_in};
use serde_json::{Value, json};
use tempfile::tempdir;

fn result(folder: &Path) -> Value {
    let result = serde_json::from_str(&fs::read_to_string(folder.join("out.json")).unwrap()).unwrap();
    fs::remove_file(folder.join("out.json")).unwrap();
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0, "nothing else is left");
    result
}

/// A program that notes in `marker` that it ran, and runs the binary of this build.
fn noting_program(folder: &Path, marker: &Path) -> String {
    let script = folder.join("program.sh");
    let text =
        format!("#!/bin/sh\necho ran >> {}\nexec {} \"$@\"\n", marker.display(), caju_binary().display());
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script.to_str().unwrap().to_string()
}

#[test]
fn a_dispatcher_answers_simulated_peers_leases_durably_and_comes_back() {
    let (folder, tools) = (tempdir().unwrap(), tempdir().unwrap());
    let marker = tools.path().join("ran");
    let program = noting_program(tools.path(), &marker);
    let peers =
        ["--workers", "20", "--clients", "10", "--jobs", "2", "--duration", "1s", "--splits-per-s", "200"];
    let leases = ["--splits", "2000", "--leasing-workers", "4", "--lease", "8", "--core", "0"];
    let args = ["bench", "dispatcher", "--parts", "heartbeats,splits,restart", "--heartbeat", "200ms"];
    let more = ["--program", &program, "--out", "out.json"];
    caju_in(folder.path(), &[&args[..], &peers[..], &leases[..], &more[..]].concat()).expect_code(0);
    let result = result(folder.path());
    assert_eq!(result["schema"], "caju.dispatcher-bench/v1");
    assert_eq!(fs::read_to_string(marker).unwrap().lines().count(), 3, "one dispatcher per part");
    // What was measured, not what was asked for.
    let heartbeats = &result["heartbeats"];
    let joined = ["workers", "clients", "jobs"].map(|key| heartbeats[key].as_u64().unwrap());
    assert_eq!(joined, [20, 10, 2], "{result:#}");
    assert_eq!(heartbeats["dispatcher_cores"], "0", "{result:#}");
    let answers = |kind: &str| heartbeats[kind]["answers"].as_u64().unwrap();
    // Five intervals of twenty workers; on a busy machine some of the warm-up's three count too.
    assert!((100..=160).contains(&answers("to_workers")), "{result:#}");
    assert!(answers("leases") > 0, "{result:#}");
    let splits = &result["splits"];
    assert_eq!(splits["workers"], 4, "{result:#}");
    let leased = splits["splits"].as_u64().unwrap();
    // Each of the four workers may have one more lease of eight on its way.
    assert!((2000..2000 + 4 * 8).contains(&leased), "{result:#}");
    assert_eq!(leased.div_ceil(splits["leases"]["answers"].as_u64().unwrap()), 8, "{result:#}");
    assert!(splits["journal_bytes"].as_u64().unwrap() > 0, "{result:#}");
    let s = |key: &str| result["restart"][key].as_f64().unwrap();
    assert!(s("listening_s") <= s("back_s") && s("back_s") <= s("next_lease_s"), "{result:#}");
}

#[test]
fn parts_of_the_dispatcher_bench_run_alone() {
    let folder = tempdir().unwrap();
    let args = ["bench", "dispatcher", "--parts", "splits", "--splits", "64", "--leasing-workers", "1"];
    caju_in(folder.path(), &[&args[..], &["--out", "out.json"]].concat()).expect_code(0);
    let result = result(folder.path());
    let parts = ["heartbeats", "splits", "restart"].map(|part| result[part].is_object());
    assert_eq!(parts, [false, true, false], "{result:#}");
}

/// States of a thousand splits, read by two readers: the long form is `caju bench state --splits 1000000`.
#[test]
fn states_of_many_readers_are_measured() {
    let folder = tempdir().unwrap();
    let args =
        ["bench", "state", "--splits", "1000", "--readers", "2", "--workers", "1", "--out", "out.json"];
    caju_in(folder.path(), &args).expect_code(0);
    let result = result(folder.path());
    assert_eq!((&result["splits"], &result["readers"]), (&1000.into(), &2.into()));
    let bytes = result["largest_json_bytes"].as_u64().unwrap();
    assert!(bytes > 100 && bytes < 16 << 10, "{result:#}");
    assert!(result["longest_state_ms"].as_f64().unwrap() < 1_000.0, "{result:#}");
}

#[test]
fn exactly_once_is_compared_with_at_most_once() {
    let p = Pipeline::of(json!({ "range": 20_000 }), json!([{ "batch": 8 }]));
    let folder = tempdir().unwrap();
    let file = p.folder().join("pipeline.yaml");
    let tools = tempdir().unwrap();
    let marker = tools.path().join("ran");
    let program = noting_program(tools.path(), &marker);
    let args = [
        "bench",
        "exactly-once",
        file.to_str().unwrap(),
        "--repeats",
        "2",
        "--program",
        &program,
        "--out",
        "out.json",
    ];
    let ended = caju_in(folder.path(), &args);
    ended.expect_code(0);
    assert!(ended.stdout.contains("exactly once takes"), "{}", ended.stdout);
    assert!(marker.exists(), "the workers are of another program");
    let result = result(folder.path());
    let rows = result["pairs"].as_array().unwrap().iter().flat_map(|pair| pair.as_array().unwrap());
    assert_eq!(rows.map(|epoch| epoch["rows"].as_u64().unwrap()).collect::<Vec<_>>(), [20_000; 4]);
}
