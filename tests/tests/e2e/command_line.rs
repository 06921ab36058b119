//! Flags, variables, settings files, help.

use caju_tests::{Pipeline, Process, caju, caju_in};
use serde_json::json;
use std::process::Command;

const COMMANDS: [&str; 9] =
    ["run", "read", "check", "dispatcher", "worker", "status", "plan", "gen", "quickstart"];

#[test]
fn help_teaches() {
    let ended = caju(&["--help"]);
    ended.expect_code(0);
    for command in COMMANDS {
        assert!(ended.stdout.contains(command), "`{command}` is not in the help");
        let help = caju(&[command, "--help"]);
        help.expect_code(0);
        assert!(help.stdout.contains("Usage: caju"), "{}", help.stdout);
    }
}

#[test]
fn version_is_reported() {
    let ended = caju(&["--version"]);
    ended.expect_code(0);
    assert!(ended.stdout.starts_with("caju "), "{}", ended.stdout);
}

#[test]
fn unknown_flags_and_commands_are_the_users_mistake() {
    caju(&["rum"]).expect_code(2);
    caju(&["run", "p.yaml", "--epoch", "2"]).expect_code(2);
    caju(&["run", "p.yaml", "--epochs", "0"]).expect_code(2);
    caju(&[]).expect_code(2);
}

#[test]
fn settings_come_from_flags_then_variables_then_the_file() {
    let p = Pipeline::of(json!({ "range": 10 }), json!([])).with_file("caju.toml", b"[run]\nepochs = 2\n");
    let epochs = |flags: &[&str], variable: Option<&str>| {
        let mut command = Command::new(caju_tests::binary::caju_binary());
        command
            .args(["run", "pipeline.yaml", "--report", "r.json", "--config", "caju.toml"])
            .args(flags)
            .current_dir(p.folder());
        if let Some(value) = variable {
            command.env("CAJU_EPOCHS", value);
        }
        Process::start(command, "caju run".into()).wait().expect_code(0);
        caju_tests::pipeline::Report::load(&p.folder().join("r.json")).rows().len()
    };
    assert_eq!(epochs(&[], None), 2);
    assert_eq!(epochs(&[], Some("3")), 3);
    assert_eq!(epochs(&["--epochs", "4"], Some("3")), 4);
}

#[test]
fn an_option_of_a_command_belongs_under_its_name() {
    let p = Pipeline::of(json!({ "range": 10 }), json!([])).with_file("caju.toml", b"epochs = 2\n");
    p.run(&["--config", "caju.toml"])
        .expect_code(2)
        .expect_error(&["caju.toml: epochs", "put it under `[run]`"]);
}

#[test]
fn unknown_settings_are_refused_with_their_place() {
    let p = Pipeline::of(json!({ "range": 10 }), json!([])).with_file("caju.toml", b"[run]\nepoch = 2\n");
    p.run(&["--config", "caju.toml"]).expect_code(2).expect_error(&[
        "caju.toml",
        "epoch",
        "did you mean `epochs`",
    ]);
}

#[test]
fn no_progress_and_no_summary_when_quiet() {
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    let ended = p.run(&["--quiet"]);
    ended.expect_code(0);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
}

#[test]
fn a_report_that_cannot_be_written_is_reported() {
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    let ended = p.run(&["--report", "no/such/folder/r.json"]);
    ended.expect_error(&["no/such/folder/r.json"]);
    assert!(matches!(ended.code, Some(2 | 3)), "{ended:?}");
}

#[test]
fn quickstart_generates_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["quickstart", "--dir", "photos", "--count", "64", "--epochs", "1"];
    let first = caju_in(folder.path(), &args);
    first.expect_code(0);
    // The default is below `data`.
    assert!(folder.path().join("photos").is_dir() && !folder.path().join("data").exists());
    let second = caju_in(folder.path(), &args);
    second.expect_code(0);
    let shown = format!("{}{}", second.stdout, second.stderr);
    assert!(shown.contains("rows"), "no summary: {shown}");
}

/// The first minute with caju: the decision when it is made, what it gained, where the rows are, and what to do next.
#[test]
fn quickstart_shows_what_caju_is_for() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["quickstart", "--dir", "photos", "--count", "600", "--cache", "stored"];
    let first = caju_in(folder.path(), &args);
    first.expect_code(0);
    let words = first.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let at = |text: &str| words.find(text).unwrap_or_else(|| panic!("no `{text}`: {}", first.stdout));
    let order = [
        at("autocache"),
        at("3 epochs follow."),
        at(": decided "),
        at("quickstart: 1,800 rows"),
        at("times as fast as"),
        at("duckdb.sql("),
        at("For your own data"),
    ];
    assert!(order.is_sorted(), "{order:?}: {}", first.stdout);
    // The reason is printed at the moment of the decision alone, and the end compares its estimate with what was measured.
    let (before, after) = words.split_at(at("quickstart: 1,800 rows"));
    assert!(
        before.contains("Estimate of the planner, for workers while nothing else runs"),
        "{}",
        first.stdout
    );
    assert!(!after.contains("limited by") && !after.contains("bottleneck"), "{}", first.stdout);
    assert!(after.contains("Measured: ") && after.contains("The planner's estimate for"), "{}", first.stdout);
    // The folder that it points at has the rows.
    let parts = first.stdout.split("files in ").nth(1).and_then(|t| t.lines().next()).unwrap();
    let files = std::fs::read_dir(parts).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    assert!(files.into_iter().any(|f| f.ends_with(".arrow") || f.ends_with(".parquet")), "{parts}");
    let peak = first.stdout.split("peak memory").nth(1).and_then(|t| t.lines().next()).unwrap().trim();
    let mebibytes: f64 = peak.strip_suffix(" MiB").unwrap_or_else(|| panic!("{peak}")).parse().unwrap();
    // 500 MB.
    assert!(mebibytes < 476.0, "peak memory {peak}");
    // A second run finds the rows, and says so.
    let second = caju_in(folder.path(), &args);
    second.expect_code(0);
    assert!(second.stdout.contains("An earlier run stored these rows"), "{}", second.stdout);
}

#[test]
fn the_profiling_overhead_is_reported() {
    let p = Pipeline::of(json!({ "range": 100_000 }), json!([{ "with_columns": { "x": "id * 2" } }]));
    let ended = caju_in(p.folder(), &["bench", "profiling-overhead", "pipeline.yaml", "--repeats", "2"]);
    ended.expect_code(0);
    let told = ["100,000 rows an epoch, 2 pairs of epochs", "% of CPU time by the fastest epochs"];
    assert!(told.iter().all(|t| ended.stdout.contains(t)), "{ended:?}");
    assert!(ended.stderr.contains("round 2: "), "{ended:?}");
    let none = ["bench", "profiling-overhead", "none.yaml", "--cpu-threads", "1"];
    caju_in(p.folder(), &none).expect_code(2).expect_error(&["none.yaml"]);
}

/// `--client-timeout` and `--worker-timeout` below the interval of heartbeats would lose all workers or readers, so
/// they are refused.
#[test]
fn timeouts_below_the_heartbeat_are_refused() {
    for flag in ["--client-timeout", "--worker-timeout"] {
        let ended = caju(&["dispatcher", "--listen", "127.0.0.1:0", flag, "500ms"]);
        ended.expect_code(2).expect_error(&[flag, "--heartbeat"]);
    }
}
