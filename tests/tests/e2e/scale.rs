//! `caju scale`: the golden answers by the real binary, limits, formats and bad profiles.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use caju_tests::binary::caju_binary;
use caju_tests::{Ended, caju, caju_in};
use serde_json::Value;

fn golden(name: &str) -> String {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden_scaling");
    folder.join(name).to_str().unwrap().to_string()
}

fn scale(args: &[&str]) -> Ended {
    caju(&[&["scale"], args].concat())
}

#[test]
fn golden_scalings_give_the_same_bytes() {
    let mut compared = 0;
    for entry in fs::read_dir(golden(".")).unwrap() {
        let path = entry.unwrap().path().to_str().unwrap().to_string();
        let Some(stem) = path.strip_suffix(".profile.json") else { continue };
        let ended = scale(&[&path, "--min-workers", "1", "--max-workers", "12", "--format", "json"]);
        ended.expect_code(0);
        assert_eq!(
            ended.stdout + "\n",
            fs::read_to_string(format!("{stem}.scaling.json")).unwrap(),
            "{path}"
        );
        assert_eq!(ended.stderr, "");
        compared += 1;
    }
    assert!(compared >= 15, "{compared} profiles");
}

#[test]
fn limits_and_formats_of_scale() {
    let profile = golden("cores.profile.json");
    let mut command = Command::new(caju_binary());
    command.args(["scale", "-"]).stdin(File::open(&profile).unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success());
    // Not a terminal: the answer is for programs.
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["schema"], &answer["workers"]), (&"caju.scaling/v1".into(), &5.into()));
    assert_eq!(answer["candidates"].as_array().unwrap().len(), 100);

    let text = scale(&[&profile, "--format", "text", "--min-workers", "2", "--max-workers", "4"]);
    text.expect_code(0);
    assert!(text.stdout.contains("\n*       4   8,000            11 %"), "{}", text.stdout);
    assert!(
        text.stdout.lines().last().unwrap().contains("about 5 workers would be needed"),
        "{}",
        text.stdout
    );

    scale(&[&profile, "--max-workers", "0"])
        .expect_code(2)
        .expect_error(&["--max-workers 0", "--min-workers 1"]);
    scale(&[&profile, "--min-workers", "0"]).expect_code(2).expect_error(&["--min-workers 0", ">= 1"]);
    scale(&[&profile, "--format", "yaml"]).expect_code(2);
}

#[test]
fn profiles_that_cannot_be_scaled() {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(golden("cachew-figure6a.profile.json")).unwrap();
    let bad = text.replace("\"worker_per_h\": 0.38", "\"worker_per_h\": \"a lot\"");
    assert_ne!(text, bad);
    fs::write(folder.path().join("bad.json"), bad).unwrap();
    for (file, words) in [
        ("none.json", &["none.json: no such profile"][..]),
        ("bad.json", &["bad.json: prices.worker_per_h: expected a number >= 0, found \"a lot\""]),
    ] {
        let ended = caju_in(folder.path(), &["scale", file]);
        ended.expect_code(2).expect_error(words);
        assert_eq!((ended.stdout.as_str(), ended.stderr.lines().count()), ("", 1), "{}", ended.stderr);
    }
}
