//! Arguments, settings files, exit codes and messages.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use common::{caju, fails, ok, stderr};

/// What `gen` wrote, by its own word.
fn marker(dir: &std::path::Path, out: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(dir.join(out).join("_caju_gen.json")).unwrap()).unwrap()
}

#[test]
fn help_teaches() {
    let dir = tempfile::tempdir().unwrap();
    let help = ok(dir.path(), &["--help"]);
    for word in ["caju quickstart", "--config", "Exit codes", "dispatcher", "status"] {
        assert!(help.contains(word), "{word}: {help}");
    }
    for command in
        ["run", "read", "check", "dispatcher", "worker", "status", "plan", "scale", "gen", "quickstart"]
    {
        let help = ok(dir.path(), &[command, "--help"]);
        assert!(
            help.contains("Usage: caju") && help.contains("Example") || command == "quickstart",
            "{help}"
        );
    }
    assert!(ok(dir.path(), &["--version"]).starts_with("caju 0."));
}

#[test]
fn mistakes_in_arguments_are_the_users() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["runn"][..],
        &["run"],
        &["run", "x.yaml", "--epochs", "0"],
        &["run", "x.yaml", "--policy", "auto"],
        &["gen", "images", "--count", "many", "--out", "x"],
        &["gen", "pictures", "--count", "1", "--out", "x"],
        &["dispatcher", "--worker-timeout", "5"],
        &["worker", "drain", "x"],
        &[],
    ] {
        let output = common::run(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
    }
    let text = fails(dir.path(), &["run", "x.yaml", "--epoks", "2"], 2);
    assert!(text.contains("--epochs"), "{text}");
    let text = fails(dir.path(), &["worker"], 2);
    assert!(text.contains("--dispatcher"), "{text}");
    let text = fails(dir.path(), &["run", "no/such/file.yaml"], 2);
    assert!(text.contains("error: no/such/file.yaml: no such pipeline file"), "{text}");
}

/// Users who installed the binary alone have no examples: what it prints is a file that they can check and run.
#[test]
fn quickstart_prints_its_pipeline() {
    let dir = tempfile::tempdir().unwrap();
    let text = ok(dir.path(), &["quickstart", "--print-pipeline"]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "it generates nothing");
    for words in
        ["# Each record is a tf.train.Example.", "\"data/quickstart/*.tfrecord\"", "- autocache: resized"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let text = ok(dir.path(), &["quickstart", "--print-pipeline", "--dir", "photos"]);
    std::fs::write(dir.path().join("my.yaml"), text).unwrap();
    ok(dir.path(), &["gen", "images", "--out", "photos", "--count", "3", "--format", "tfrecord"]);
    assert!(ok(dir.path(), &["check", "my.yaml"]).contains("pipeline     quickstart"));
    let help = ok(dir.path(), &["quickstart", "--help"]);
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("at most 8 threads") && help.contains("64 MiB"), "{help}");
}

/// A pipeline of eight rows, with these steps above its batches.
fn eight_rows(dir: &std::path::Path, name: &str, steps: &str) {
    let text = format!("source: {{ range: 8 }}\nsteps: [{steps} {{ batch: 2 }}]\n");
    std::fs::write(dir.join(name), text).unwrap();
}

#[test]
fn a_summary_says_why_nothing_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    eight_rows(dir.path(), "plain.yaml", "");
    eight_rows(dir.path(), "hint.yaml", "{ with_columns: { x: id + 1 } }, { autocache: h },");
    let text = ok(dir.path(), &["run", "plain.yaml", "--epochs", "2", "--cache", "stored"]);
    assert!(text.starts_with("plain: 16 rows in 8 batches, 2 epochs"), "{text}");
    assert!(!text.contains("the log says why"), "{text}");
    assert!(!text.contains("store the files nearer") && !text.contains("cache        "), "{text}");
    let text = ok(dir.path(), &["run", "hint.yaml", "--epochs", "1", "--cache", "stored"]);
    assert!(text.contains("cache        no rows stored or read; measurements and records: "), "{text}");
    assert!(!text.contains("stored in") && !text.contains("the log says why"), "{text}");
    let text =
        ok(dir.path(), &["run", "hint.yaml", "--epochs", "3", "--policy", "full", "--cache", "stored"]);
    assert!(text.contains("computed and stored") && text.contains("read from the cache"), "{text}");
    let folder = text.lines().find_map(|l| l.trim().strip_prefix("stored in")).unwrap().trim();
    assert!(folder.ends_with("/parts") && std::path::Path::new(folder).is_dir(), "{folder}: {text}");
}

#[test]
fn errors_about_own_data_say_what_to_change() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("d.csv"), "user,current_date,interval,text\na,2026,1,x\n").unwrap();
    let write = |step: &str| {
        let text = format!("source: {{ csv: {{ path: d.csv }} }}\nsteps:\n  - {step}\n");
        std::fs::write(dir.path().join("p.yaml"), text).unwrap();
    };
    write("parse_example: { features: { a: int64 } }");
    let text = fails(dir.path(), &["check", "p.yaml"], 2);
    assert!(
        text.contains("unknown column `record`; the row has: user, current_date, interval, text"),
        "{text}"
    );
    assert!(text.contains("records of TFRecord files: remove it for other formats"), "{text}");
    write("map: { y: interval }");
    let text = fails(dir.path(), &["check", "p.yaml"], 2);
    assert!(text.contains("write \"interval\" in double quotes, in YAML '\"interval\"'"), "{text}");
    // To the parser these are functions.
    write("map: { y: user, z: current_date, i: '\"interval\"' }");
    ok(dir.path(), &["check", "p.yaml"]);
    write("map: { y: current_user }");
    let text = fails(dir.path(), &["check", "p.yaml"], 2);
    assert!(text.contains("unknown column `current_user` at column 1"), "{text}");
}

/// Flags, then variables, then the file, then the defaults.
#[test]
fn precedence() {
    let dir = tempfile::tempdir().unwrap();
    let toml = "quiet = true\n[gen]\ncount = 5\nseed = 40\nformat = [\"csv\", \"json\"]\n";
    std::fs::write(dir.path().join("caju.toml"), toml).unwrap();
    let out = ok(dir.path(), &["--config", "caju.toml", "gen", "text", "--out", "file"]);
    assert_eq!(out, "", "quiet comes from the file");
    let m = marker(dir.path(), "file");
    assert_eq!(
        (&m["count"], &m["seed"], &m["formats"]),
        (&5.into(), &40.into(), &serde_json::json!(["csv", "json"]))
    );

    let with_variable = |out: &str, args: &[&str]| {
        let output = caju(dir.path())
            .env("CAJU_COUNT", "6")
            .env("CAJU_FORMAT", "json")
            .env("CAJU_QUIET", "false")
            .env("CAJU_CONFIG", "caju.toml")
            .args(["gen", "text", "--out", out])
            .args(args)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(!output.stdout.is_empty(), "the variable beats the file's `quiet`");
        marker(dir.path(), out)
    };
    let m = with_variable("variable", &[]);
    assert_eq!(
        (&m["count"], &m["seed"], &m["formats"]),
        (&6.into(), &40.into(), &serde_json::json!(["json"]))
    );
    let m = with_variable("flag", &["--count", "7", "--seed=1"]);
    assert_eq!(
        (&m["count"], &m["seed"], &m["formats"]),
        (&7.into(), &1.into(), &serde_json::json!(["json"]))
    );
}

/// One in the working folder may be somebody else's: it could name another dispatcher, or an interpreter to run.
#[test]
fn a_settings_file_that_nobody_named_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("caju.toml"), "[gen]\ncount = 5\nnonsense = 1\n").unwrap();
    ok(dir.path(), &["gen", "text", "--out", "a", "--count", "3"]);
    assert_eq!(marker(dir.path(), "a")["count"], 3);
}

#[test]
fn another_settings_file() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("caju.toml"), "[gen]\ncount = 5\n").unwrap();
    std::fs::write(dir.path().join("other.toml"), "[gen]\ncount = 9\n").unwrap();
    ok(dir.path(), &["gen", "text", "--out", "a", "--config", "other.toml"]);
    assert_eq!(marker(dir.path(), "a")["count"], 9);
    ok(dir.path(), &["--config=other.toml", "gen", "text", "--out", "b"]);
    assert_eq!(marker(dir.path(), "b")["count"], 9);
    let text = fails(dir.path(), &["gen", "text", "--out", "c", "--config", "none.toml"], 2);
    assert!(text.contains("none.toml"), "{text}");
}

#[test]
fn mistakes_in_settings_files_name_the_place() {
    let dir = tempfile::tempdir().unwrap();
    for (toml, words) in [
        ("[gen]\ncuont = 5\n", &["gen.cuont", "did you mean `count`"][..]),
        ("[gne]\ncount = 5\n", &["gne", "did you mean `gen`"]),
        ("[gen]\ncount = \"lots\"\n", &["gen.count", "lots"]),
        ("[worker.drain]\nid = 5\n", &["worker.drain.id"]),
        ("[gen\n", &["caju.toml", "line 1"]),
        ("log = { a = 1 }\n", &["log"]),
    ] {
        std::fs::write(dir.path().join("caju.toml"), toml).unwrap();
        let args = ["--config", "caju.toml", "gen", "text", "--out", "x", "--count", "1"];
        let text = fails(dir.path(), &args, 2);
        for word in words {
            assert!(text.contains(word), "{toml}: {text}");
        }
    }
}

#[test]
fn bad_log_filters_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let text = fails(dir.path(), &["gen", "text", "--out", "x", "--count", "1", "--log", "caju=loud"], 2);
    assert!(text.contains("--log"), "{text}");
}

#[test]
fn a_bound_of_nothing_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("p.yaml"), "source: { range: 3 }\n").unwrap();
    for bound in ["--chunk-memory", "--max-record", "--row-group-memory", "--chunk-steps", "--max-pixels"] {
        let text = fails(dir.path(), &["run", "p.yaml", bound, "0"], 2);
        assert!(text.contains(bound), "{text}");
    }
}

#[test]
fn a_report_that_is_a_folder_is_refused_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("p.yaml"), "source: { range: 3 }\n").unwrap();
    for more in [&["run"][..], &["read", "--dispatcher", "127.0.0.1:1"]] {
        let text = fails(dir.path(), &[more, &["p.yaml", "--report", "."]].concat(), 2);
        assert!(text.contains("name a file") && !text.contains("rows"), "{text}");
    }
}
