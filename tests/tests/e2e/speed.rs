//! The benchmarks of the control plane run, say what they measured, and leave nothing behind. Their figures are in
//! benches/dispatcher/RESULTS.md; bounds that a debug build holds are tested here and in `caju_dispatcher`.

use std::fs;
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

#[test]
fn a_dispatcher_answers_simulated_peers_leases_durably_and_comes_back() {
    let folder = tempdir().unwrap();
    let program = caju_binary().to_str().unwrap();
    let peers =
        ["--workers", "20", "--clients", "20", "--jobs", "2", "--duration", "1s", "--splits-per-s", "200"];
    let leases = ["--splits", "2000", "--leasing-workers", "4", "--lease", "8", "--core", "0"];
    let args = ["bench", "dispatcher", "--parts", "heartbeats,splits,restart", "--heartbeat", "200ms"];
    let more = ["--program", program, "--out", "out.json"];
    caju_in(folder.path(), &[&args[..], &peers[..], &leases[..], &more[..]].concat()).expect_code(0);
    let result = result(folder.path());
    assert_eq!(result["schema"], "caju.dispatcher-bench/v1");
    let answers = |kind: &str| result["heartbeats"][kind]["answers"].as_u64().unwrap();
    assert!(answers("to_workers") >= 20 && answers("leases") > 0, "{result:#}");
    assert!(result["splits"]["splits"].as_u64().unwrap() >= 2000, "{result:#}");
    assert!(result["splits"]["journal_bytes"].as_u64().unwrap() > 0, "{result:#}");
    let s = |key: &str| result["restart"][key].as_f64().unwrap();
    assert!(s("listening_s") <= s("back_s") && s("back_s") <= s("next_lease_s"), "{result:#}");
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
    let program = caju_binary().to_str().unwrap();
    let args = [
        "bench",
        "exactly-once",
        file.to_str().unwrap(),
        "--repeats",
        "2",
        "--program",
        program,
        "--out",
        "out.json",
    ];
    let ended = caju_in(folder.path(), &args);
    ended.expect_code(0);
    assert!(ended.stdout.contains("exactly once takes"), "{}", ended.stdout);
    let result = result(folder.path());
    let rows = result["pairs"].as_array().unwrap().iter().flat_map(|pair| pair.as_array().unwrap());
    assert_eq!(rows.map(|epoch| epoch["rows"].as_u64().unwrap()).collect::<Vec<_>>(), [20_000; 4]);
}
