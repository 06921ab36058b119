//! `caju plan`: the golden plans by the real binary, bad profiles, formats and plots.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use caju_tests::binary::caju_binary;
use caju_tests::{Ended, caju, caju_in};
use serde_json::Value;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn golden(name: &str) -> String {
    root("tests/golden_plans").join(name).to_str().unwrap().to_string()
}

/// The files of a folder whose names end so, in the order of names.
fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = fs::read_dir(root(folder)).unwrap().map(|e| e.unwrap().path()).collect();
    out.retain(|p| p.to_str().unwrap().ends_with(ending));
    out.sort();
    assert!(out.len() > 5, "{folder}");
    out
}

fn plan(args: &[&str]) -> Ended {
    caju(&[&["plan"], args].concat())
}

#[test]
fn golden_plans_give_the_same_bytes() {
    for decision in files("tests/golden_plans", ".decision.json") {
        let path = decision.to_str().unwrap();
        let stem = path.strip_suffix(".decision.json").unwrap();
        let (stem, policy) = stem.strip_suffix(".cachew").map_or((stem, "auto"), |stem| (stem, "cachew"));
        let ended = plan(&[&format!("{stem}.profile.json"), "--policy", policy, "--format", "json"]);
        ended.expect_code(0);
        assert_eq!(ended.stdout + "\n", fs::read_to_string(&decision).unwrap(), "{path}");
        assert_eq!(ended.stderr, "");
    }
}

#[test]
fn standard_input_is_a_profile_too() {
    let mut command = Command::new(caju_binary());
    command.args(["plan", "-"]).stdin(File::open(golden("design-example.profile.json")).unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success());
    // Not a terminal: the decision is for programs.
    let decision: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(decision["schema"], "caju.decision/v1");
    assert_eq!(decision["choice"]["hint"], "source");
}

#[test]
fn text_is_a_table_with_reasons() {
    let ended = plan(&[&golden("presto-imagenet-hdd.profile.json"), "--format", "text"]);
    ended.expect_code(0);
    let text = &ended.stdout;
    let chosen: Vec<_> = text.lines().filter(|l| l.starts_with("* ")).collect();
    assert_eq!(chosen.len(), 1, "{text}");
    for word in ["resized arrow/none", "1,790", "cores", "179.61 GiB", "epoch 1"] {
        assert!(chosen[0].contains(word), "`{word}` is not in: {}", chosen[0]);
    }
    for word in ["rows/s", "limited by", "storage", "ahead from", "decoded arrow/none: reads"] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    assert!(text.lines().last().unwrap().starts_with("Reading `resized`"), "{text}");
}

#[test]
fn policies_decide() {
    let profile = golden("presto-imagenet-hdd.profile.json");
    for (policy, hint) in [
        ("compute", Value::Null),
        ("source", "concatenated".into()),
        ("full", "centered".into()),
        ("hint:decoded", "decoded".into()),
        ("auto", "resized".into()),
    ] {
        let ended = plan(&[&profile, "--policy", policy]);
        ended.expect_code(0);
        let decision: Value = serde_json::from_str(&ended.stdout).unwrap();
        assert_eq!(decision["choice"]["hint"], hint, "{policy}");
        assert_eq!(decision["policy"], policy);
    }
    plan(&[&profile, "--policy", "atuo"]).expect_code(2).expect_error(&["atuo", "did you mean `auto`"]);
    let unknown = plan(&[&profile, "--policy", "hint:resize"]);
    unknown.expect_code(2).expect_error(&["hint:resize", "did you mean `resized`"]);
    plan(&[&profile, "--format", "yaml"]).expect_code(2);
}

/// The seeds of the fuzz target, with the message that the planner's own test holds for each.
#[test]
fn bad_profiles_are_one_line_with_the_field() {
    let corpus = "fuzz/corpus/profile";
    let messages = fs::read_to_string(root("planner/tests/planner/profile-messages.txt")).unwrap();
    let mut bad = 0;
    for path in files(corpus, ".json") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let ended = plan(&[path.to_str().unwrap()]);
        if name.starts_with("good-") {
            ended.expect_code(0);
            continue;
        }
        let line = messages.lines().find(|l| l.starts_with(&format!("{name}: "))).unwrap();
        ended.expect_code(2).expect_error(&[line]);
        assert_eq!(
            (ended.stdout.as_str(), ended.stderr.lines().count()),
            ("", 1),
            "{name}: {}",
            ended.stderr
        );
        bad += 1;
    }
    assert!(bad > 30, "{bad} bad profiles");
}

#[test]
fn files_that_are_no_profiles() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("latin1.json"), b"{\"schema\": \"\xe9\"}").unwrap();
    fs::write(folder.path().join("zeros.json"), vec![0u8; 100_000]).unwrap();
    for (file, words) in [
        ("none.json", &["none.json: no such profile"][..]),
        (".", &[".: a folder"]),
        ("latin1.json", &["latin1.json", "byte 12 is not UTF-8"]),
        ("zeros.json", &["zeros.json: profile: not valid JSON"]),
    ] {
        caju_in(folder.path(), &["plan", file]).expect_code(2).expect_error(words);
    }
    let too_large = File::create(folder.path().join("large.json")).unwrap();
    too_large.set_len((64 << 20) + 1).unwrap();
    caju_in(folder.path(), &["plan", "large.json"]).expect_code(2).expect_error(&["more than 64.00 MiB"]);
}

#[test]
fn plots_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let profile = golden("figure7-350.profile.json");
    for (name, magic) in [("a.svg", &b"<svg"[..]), ("a.png", b"\x89PNG\r\n\x1a\n"), ("B.PNG", b"\x89PNG")] {
        caju_in(folder.path(), &["plan", &profile, "--plot", name]).expect_code(0);
        let bytes = fs::read(folder.path().join(name)).unwrap();
        assert!(bytes.starts_with(magic), "{name}");
    }
    let svg = fs::read_to_string(folder.path().join("a.svg")).unwrap();
    for word in ["source arrow/none", "2,540 rows/s, limited by stage:sleep", "2,463 measured", "</svg>"] {
        assert!(svg.contains(word), "`{word}` is not in {svg}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left behind");
    // The same profile gives the same picture.
    caju_in(folder.path(), &["plan", &profile, "--plot", "again.svg"]).expect_code(0);
    assert_eq!(fs::read_to_string(folder.path().join("again.svg")).unwrap(), svg);

    for (name, words) in
        [("a.pdf", &["--plot a.pdf", ".svg or .png"][..]), ("no/a.svg", &["--plot no/a.svg"])]
    {
        let ended = caju_in(folder.path(), &["plan", &profile, "--plot", name]);
        ended.expect_code(2).expect_error(words);
        assert_eq!(ended.stdout, "");
    }
}

/// The documentation shows what the binary says.
#[test]
fn the_worked_example_is_up_to_date() {
    let profile = golden("worked-example.profile.json");
    let docs = fs::read_to_string(root("docs/plan.md")).unwrap();
    let ended = plan(&[&profile, "--format", "text"]);
    ended.expect_code(0);
    assert!(docs.contains(&ended.stdout), "docs/plan.md should show:\n{}", ended.stdout);
    let folder = tempfile::tempdir().unwrap();
    caju_in(folder.path(), &["plan", &profile, "--plot", "plan.svg"]).expect_code(0);
    let picture = fs::read_to_string(folder.path().join("plan.svg")).unwrap();
    let kept = fs::read_to_string(root("docs/plan.svg")).unwrap();
    assert!(kept == picture, "docs/plan.svg is old: caju plan {profile} --plot docs/plan.svg");
}
