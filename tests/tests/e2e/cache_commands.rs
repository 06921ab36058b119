//! `caju cache`, `caju explain`, `caju profile`: what is stored, whether it is whole, and why.

use std::fs;
use std::path::{Path, PathBuf};

use caju_tests::{Cluster, Ended, Pipeline, caju_in, files};
use serde_json::{Value, json};

/// Rows of one file.
const ROWS: i64 = 200;

/// Three files, a hint after reading and one after a stage.
pub(crate) fn doubled() -> Pipeline {
    let pipeline = Pipeline::new(&definition("id * 2"));
    for n in 0..3 {
        add_file(&pipeline, n);
    }
    pipeline
}

fn definition(expression: &str) -> Value {
    json!({
        "name": "doubling",
        "source": {"parquet": {"path": "data/*.parquet"}},
        "steps": [
            {"autocache": "raw"},
            {"with_columns": {"y": expression}},
            {"autocache": "doubled"},
            {"batch": 32},
        ],
    })
}

fn add_file(pipeline: &Pipeline, n: i64) {
    let folder = pipeline.folder().join("data");
    fs::create_dir_all(&folder).unwrap();
    files::parquet(&folder.join(format!("{n}.parquet")), vec![("id", files::ints(n * ROWS..(n + 1) * ROWS))]);
}

/// Runs it with its rows stored at a hint.
pub(crate) fn store(pipeline: &Pipeline, policy: &str) {
    pipeline.run(&["--cache", "cache", "--policy", policy, "--no-checksum", "--quiet"]).expect_code(0);
}

pub(crate) fn cache(pipeline: &Pipeline, args: &[&str]) -> Ended {
    let all = [&["cache"], args, &["--cache", "cache"]].concat();
    caju_in(pipeline.folder(), &all)
}

pub(crate) fn cache_json(pipeline: &Pipeline, args: &[&str]) -> Value {
    let ended = cache(pipeline, &[args, &["--format", "json"]].concat());
    ended.expect_code(0);
    serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {}", ended.stdout))
}

/// The fingerprint of the only snapshot.
pub(crate) fn only(pipeline: &Pipeline) -> String {
    let list = cache_json(pipeline, &["ls"]);
    let snapshots = list["snapshots"].as_array().unwrap();
    assert_eq!(snapshots.len(), 1, "{list:#}");
    snapshots[0]["fingerprint"].as_str().unwrap().to_string()
}

pub(crate) fn parts(pipeline: &Pipeline, of: &str) -> Vec<PathBuf> {
    let folder = pipeline.folder().join("cache/v1").join(of).join("parts");
    let mut out: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    out.retain(|p| p.extension().is_some_and(|e| e == "arrow"));
    out.sort();
    out
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[test]
fn ls_and_inspect_tell_what_a_snapshot_is() {
    let p = doubled();
    store(&p, "full");
    store(&p, "full");
    let list = cache_json(&p, &["ls"]);
    assert_eq!(list["schema"], "caju.snapshots/v1");
    let s = &list["snapshots"][0];
    assert_eq!((&s["name"], &s["rows"], &s["splits"]), (&"doubling".into(), &600.into(), &3.into()));
    assert_eq!((&s["rows_read"], &s["pinned"]), (&600.into(), &false.into()), "{s:#}");
    assert_eq!(s["jobs"], json!(["run"]), "{s:#}");
    assert_eq!(s["encodings"], json!(["arrow/none"]));
    assert!(s["bytes"].as_u64().unwrap() > 600 * 16 && s["last_use_unix_s"].as_f64().unwrap() > 1.7e9);
    assert!(s["prefix"].as_str().unwrap().ends_with("| with_columns y = id * 2"), "{s:#}");

    let of = only(&p);
    let text = cache(&p, &["ls"]);
    for words in [&of[..12], "600", "arrow/none", "CPU saved", "doubling: parquet", "with_columns y = id * 2"]
    {
        assert!(text.stdout.contains(words), "`{words}` is not in\n{}", text.stdout);
    }
    let inspection = cache_json(&p, &["inspect", &of[..6]]);
    assert_eq!(
        (&inspection["schema"], &inspection["info"]["fingerprint"]),
        (&"caju.snapshot/v1".into(), &of.clone().into())
    );
    assert_eq!(inspection["parts"].as_array().unwrap().len(), 3);
    assert_eq!(inspection["description"]["definition"]["steps"], json!([{"with_columns": {"y": "id * 2"}}]));
    let text = cache(&p, &["inspect", &of.to_uppercase()]).stdout;
    for words in [of.as_str(), "600 in", "0  with_columns      y = id * 2", "y: Int64", ".arrow", "200"] {
        assert!(text.contains(words), "`{words}` is not in\n{text}");
    }
}

#[test]
fn snapshots_are_found_by_their_first_digits() {
    let p = doubled();
    let nothing = cache(&p, &["ls"]);
    nothing.expect_code(2).expect_error(&["no cache at", "there is no such folder", "--cache"]);
    assert!(!p.folder().join("cache").exists(), "looking makes no folder");
    fs::create_dir(p.folder().join("cache")).unwrap();
    cache(&p, &["ls"]).expect_code(2).expect_error(&["the folder holds none"]);
    store(&p, "full");
    let of = only(&p);
    cache(&p, &["inspect", "xyz"]).expect_code(2).expect_error(&["`xyz` is no fingerprint", "caju cache ls"]);
    let other = if of.starts_with('0') { "1" } else { "0" };
    cache(&p, &["rm", &other.repeat(9)]).expect_code(2).expect_error(&["has no snapshot", "caju cache ls"]);
    // A neighbour whose last digit alone differs.
    let last = if of.ends_with('0') { '1' } else { '0' };
    let neighbour = format!("{}{last}", &of[..31]);
    let root = p.folder().join("cache/v1");
    copy_folder(&root.join(&of), &root.join(&neighbour));
    cache(&p, &["pin", &of[..8]]).expect_code(2).expect_error(&["2 snapshots start with", "more digits"]);
    cache(&p, &["pin", &of]).expect_code(0);
}

#[test]
fn verify_finds_damage() {
    let p = doubled();
    store(&p, "full");
    let of = only(&p);
    let clean = cache(&p, &["verify"]);
    clean.expect_code(0);
    assert!(clean.stdout.contains("3 parts of 1 snapshots checked") && clean.stdout.ends_with("0 damaged"));
    let parts = parts(&p, &of);
    let mut bytes = fs::read(&parts[0]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&parts[0], bytes).unwrap();
    let cut = fs::read(&parts[1]).unwrap();
    fs::write(&parts[1], &cut[..cut.len() - 7]).unwrap();
    let bad = cache(&p, &["verify", &of[..10]]);
    bad.expect_code(4);
    for part in &parts[..2] {
        let name = part.file_name().unwrap().to_str().unwrap();
        assert!(bad.stdout.contains(&format!("{name}: ")), "{name} is not in\n{}", bad.stdout);
    }
    assert!(bad.stdout.contains("2 damaged\n") && bad.stderr.is_empty(), "{}{}", bad.stdout, bad.stderr);
    assert!(bad.stdout.contains("--repair"), "{}", bad.stdout);
    let ended = cache(&p, &["verify", "--format", "json"]);
    ended.expect_code(4);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["schema"], "caju.verify/v1");
    assert_eq!((&report["parts"], &report["damaged"].as_array().unwrap().len()), (&3.into(), &2));
    assert_eq!(report["damaged"][0]["fingerprint"], of.as_str());
    // Looking changed nothing, and a job replaces what is damaged.
    store(&p, "full");
    cache(&p, &["verify"]).expect_code(0);
}

#[test]
fn gc_reports_before_it_deletes() {
    let p = doubled();
    store(&p, "full");
    let of = only(&p);
    let stray =
        p.folder().join("cache/v1").join(&of).join("parts").join(format!("{}-feed.arrow", "a".repeat(32)));
    fs::write(&stray, vec![0; 5000]).unwrap();
    let young = cache_json(&p, &["gc", "--dry-run"]);
    assert_eq!((&young["schema"], &young["objects"]), (&"caju.gc/v1".into(), &json!([])));
    let dry = cache_json(&p, &["gc", "--dry-run", "--grace", "0s"]);
    let found = dry["objects"].as_array().unwrap();
    assert!(found.iter().any(|o| o["why"] == "orphaned-part" && o["bytes"] == 5000), "{dry:#}");
    assert!(stray.exists());
    let text = cache(&p, &["gc", "--grace", "0s"]);
    text.expect_code(0);
    assert!(text.stdout.contains("orphaned: parts that no record names"), "{}", text.stdout);
    assert!(!stray.exists());
}

/// Two snapshots of three parts: one is expensive to compute, the other one cheap.
pub(crate) fn expensive_and_cheap() -> (Pipeline, [String; 2]) {
    let p = doubled();
    let of = |name: &str, steps: Value| {
        let def =
            json!({ "name": name, "source": { "parquet": { "path": "data/*.parquet" } }, "steps": steps });
        fs::write(p.path(), def.to_string()).unwrap();
        store(&p, "full");
        let list = cache_json(&p, &["ls"]);
        let all = list["snapshots"].as_array().unwrap();
        let one = all.iter().find(|s| s["name"] == name).unwrap_or_else(|| panic!("{list:#}"));
        one["fingerprint"].as_str().unwrap().to_string()
    };
    let wide = json!({ "with_columns": { "text": "repeat('abcdefgh', 30)" } });
    let dear = of("dear", json!([{ "burn": { "per_row": "500us" } }, wide, "autocache"]));
    let cheap = of("cheap", json!([wide, "autocache"]));
    // Who verifies reads, and has given back what says so when it ends: nothing keeps the parts.
    cache(&p, &["verify"]).expect_code(0);
    (p, [dear, cheap])
}

#[test]
fn gc_names_what_a_budget_would_evict_and_why() {
    let (p, [dear, cheap]) = expensive_and_cheap();
    let all = cache_json(&p, &["ls"])["bytes"].as_u64().unwrap();
    let three: u64 = parts(&p, &cheap).iter().map(|f| f.metadata().unwrap().len()).sum();
    // The cheap ones are not enough.
    let budget = (all - three - 10_000).to_string();
    let dry = cache_json(&p, &["gc", "--dry-run", "--budget", &budget]);
    let evictions = dry["evictions"].as_array().unwrap();
    let of: Vec<&str> = evictions.iter().map(|e| e["snapshot"].as_str().unwrap()).collect();
    assert_eq!(of, [&cheap[..], &cheap, &cheap, &dear], "{dry:#}");
    let number = |i: usize, key: &str| evictions[i][key].as_f64().unwrap();
    assert!(number(3, "compute_cpu_s") >= 0.09 && number(0, "compute_cpu_s") < 0.05, "{dry:#}");
    assert!(number(3, "worth_cpu_s_per_gib") > 10.0 * number(2, "worth_cpu_s_per_gib"));
    assert!(number(0, "idle_s") < 600.0);
    let sum: u64 = evictions.iter().map(|e| e["bytes"].as_u64().unwrap()).sum();
    assert_eq!(
        (&dry["evicted_bytes"], &dry["bytes"], &dry["over_budget_bytes"]),
        (&sum.into(), &sum.into(), &0.into())
    );
    assert_eq!((parts(&p, &cheap).len(), parts(&p, &dear).len()), (3, 3), "only told");
    let text = cache(&p, &["gc", "--dry-run", "--budget", &budget]).stdout;
    for words in [
        "4",
        "would be evicted for the budget",
        &cheap[..12],
        &dear[..12],
        "CPU s per GiB",
        ".arrow",
        "4 objects would be deleted",
    ] {
        assert!(text.contains(words), "`{words}` is not in\n{text}");
    }
    // And so it comes.
    let done = cache_json(&p, &["gc", "--budget", &budget]);
    let names = |json: &Value| -> Vec<Value> {
        json["evictions"].as_array().unwrap().iter().map(|e| e["part"].clone()).collect()
    };
    assert_eq!(names(&done), names(&dry));
    assert_eq!((parts(&p, &cheap).len(), parts(&p, &dear).len()), (0, 2));
    assert!(done["left_bytes"].as_u64().unwrap() <= budget.parse().unwrap(), "{done:#}");
    cache(&p, &["verify"]).expect_code(0);
}

#[test]
fn gc_says_when_there_is_no_room_to_be_made() {
    let (p, [dear, cheap]) = expensive_and_cheap();
    cache(&p, &["pin", &dear]).expect_code(0);
    let args = ["gc", "--budget", "20KiB"];
    let dry = cache(&p, &[&args[..], &["--dry-run"]].concat());
    dry.expect_code(0);
    assert!(dry.stdout.contains("over the budget: pinned, in use, or records"), "{}", dry.stdout);
    let ended = cache(&p, &args);
    ended.expect_code(3).expect_error(&["is still full", "pinned", "--budget"]);
    assert!(ended.stdout.contains("3 objects deleted"), "{}", ended.stdout);
    assert_eq!((parts(&p, &cheap).len(), parts(&p, &dear).len()), (0, 3));
}

#[test]
fn gc_names_what_is_expired_and_what_is_orphaned() {
    let (p, [dear, cheap]) = expensive_and_cheap();
    cache(&p, &["pin", &dear]).expect_code(0);
    let dry = cache_json(&p, &["gc", "--dry-run", "--ttl", "0s"]);
    let expired = dry["expired"].as_array().unwrap();
    assert_eq!((expired.len(), &expired[0]["snapshot"]), (1, &cheap.clone().into()), "{dry:#}");
    assert!(expired[0]["idle_s"].as_f64().unwrap() < 600.0);
    let objects = dry["objects"].as_array().unwrap();
    assert!(objects.len() >= 6 && objects.iter().all(|o| o["why"] == "expired"), "{dry:#}");
    let text = cache(&p, &["gc", "--dry-run", "--ttl", "0s"]).stdout;
    assert!(text.contains(&format!("snapshot {}: unused for", &cheap[..12])), "{text}");
    assert_eq!(parts(&p, &cheap).len(), 3);
    cache(&p, &["gc", "--ttl", "0s"]).expect_code(0);
    assert_eq!(only(&p), dear);
}

#[test]
fn sto_07_a_budget_too_small_is_refused_at_the_start() {
    let p = doubled();
    let limits = |args: &[&str]| {
        let ended = caju_in(p.folder(), args);
        ended.expect_code(2).expect_error(&["1.00 KiB", "too small", "at least 16.00 KiB"]);
    };
    limits(&["run", "pipeline.yaml", "--cache", "cache", "--cache-budget", "1KiB"]);
    limits(&["dispatcher", "--listen", "127.0.0.1:0", "--cache", "cache", "--cache-budget", "1KiB"]);
    assert!(!p.folder().join("cache").exists());
    store(&p, "full");
    limits(&["cache", "gc", "--cache", "cache", "--budget", "1KiB"]);
    assert_eq!(parts(&p, &only(&p)).len(), 3);
}

#[test]
fn pinned_snapshots_stay() {
    let p = doubled();
    store(&p, "full");
    let of = only(&p);
    assert_eq!(cache_json(&p, &["pin", &of])["pinned"], true);
    assert!(cache(&p, &["ls"]).stdout.contains("pinned"));
    cache(&p, &["rm", &of]).expect_code(3).expect_error(&["pinned", "unpin"]);
    assert_eq!(cache_json(&p, &["unpin", &of])["pinned"], false);
    let removed = cache_json(&p, &["rm", &of[..12], &of]);
    assert_eq!(removed["removed"].as_array().unwrap().len(), 1, "one snapshot, named twice");
    assert_eq!(cache_json(&p, &["ls"])["snapshots"], json!([]));
    cache(&p, &["rm"]).expect_code(2);
}

fn explain(pipeline: &Pipeline, args: &[&str]) -> Value {
    let all = [&["explain", "pipeline.yaml", "--format", "json"], args].concat();
    let ended = caju_in(pipeline.folder(), &all);
    ended.expect_code(0);
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn explain_reports_what_is_stored() {
    let p = doubled();
    store(&p, "full");
    let all = explain(&p, &["--cache", "cache"]);
    assert_eq!((&all["schema"], &all["splits"]), (&"caju.explain/v1".into(), &3.into()));
    let (raw, whole) = (&all["hints"][0], &all["hints"][1]);
    assert_eq!((&raw["state"], &raw["nearest"]), (&"miss".into(), &Value::Null), "{all:#}");
    assert_eq!((&whole["state"], &whole["stored"], &whole["rows"]), (&"hit".into(), &3.into(), &600.into()));
    assert_eq!(whole["fingerprint"], only(&p).as_str());

    // A new file, and a new version of one: theirs are missing, the others stay.
    add_file(&p, 3);
    files::parquet(&p.folder().join("data/0.parquet"), vec![("id", files::ints(0..7))]);
    let some = &explain(&p, &["--cache", "cache"])["hints"][1];
    assert_eq!((&some["state"], &some["stored"], &some["splits"]), (&"partial".into(), &2.into(), &4.into()));
    let missing: Vec<&String> = some["missing"].as_object().unwrap().keys().collect();
    assert!(
        missing.len() == 2 && missing[0].ends_with("data/0.parquet") && missing[1].ends_with("3.parquet")
    );
    let text = caju_in(p.folder(), &["explain", "pipeline.yaml", "--cache", "cache"]).stdout;
    assert!(
        text.contains("partial, 2 of 4 splits, 400 rows") && text.contains("not stored: file://"),
        "{text}"
    );

    // Another argument above the hint.
    fs::write(p.path(), definition("id * 3").to_string()).unwrap();
    let other = &explain(&p, &["--cache", "cache"])["hints"][1];
    assert_eq!((&other["state"], &other["stored"]), (&"miss".into(), &0.into()));
    let difference = &other["nearest"]["differences"][0];
    assert_eq!(difference["place"], "step 1 (`with_columns`), y", "{other:#}");
    let text = caju_in(p.folder(), &["explain", "pipeline.yaml", "--cache", "cache"]).stdout;
    assert!(
        text.contains("nearest: ") && text.contains("y: `\"id\" * 3` here, `\"id\" * 2` there"),
        "{text}"
    );

    caju_in(p.folder(), &["explain", "pipeline.yaml"])
        .expect_code(2)
        .expect_error(&["--cache URL", "--dispatcher"]);
    caju_in(p.folder(), &["explain", "pipeline.yaml", "--cache", "elsewhere"])
        .expect_code(2)
        .expect_error(&["no cache at"]);
}

#[test]
fn explain_knows_hints_behind_stream_stages() {
    let p = Pipeline::of(
        json!({"range": {"start": 0, "end": 100}}),
        json!([{"shuffle": {"buffer": 10}}, {"autocache": "late"}, {"repeat": null}, {"take": 500}]),
    );
    fs::create_dir_all(p.folder().join("cache/v1")).unwrap();
    let hint = &explain(&p, &["--cache", "cache"])["hints"][0];
    let shuffle = "shuffle".into();
    assert_eq!((&hint["state"], &hint["cross_split_stage"]), (&"not_storable".into(), &shuffle));
    assert_eq!(hint["behind"], shuffle, "the former name is written for one more version");
}

#[test]
fn profile_measures_without_storing() {
    let p = doubled();
    let args = ["profile", "pipeline.yaml", "--cache", "cache", "--epochs", "40", "--out", "profile.json"];
    let ended = caju_in(p.folder(), &args);
    ended.expect_code(0);
    assert!(ended.stdout.contains("policy auto") && ended.stdout.contains("caju plan profile.json"));
    let profile: Value = serde_json::from_slice(&fs::read(p.folder().join("profile.json")).unwrap()).unwrap();
    assert_eq!((&profile["schema"], &profile["source"]["rows"]), (&"caju.profile/v1".into(), &600.into()));
    assert_eq!(profile["horizon"]["epochs"], 40);
    assert_eq!(profile["consumer"]["rows_per_s"], Value::Null);
    let encodings: Vec<usize> = profile["hints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|h| h["encodings"].as_array().unwrap().len())
        .collect();
    assert_eq!(encodings, [4, 4], "few rows are tried in every encoding too: {profile:#}");
    let decision = caju_in(p.folder(), &["plan", "profile.json"]);
    decision.expect_code(0);
    assert!(decision.stdout.contains("caju.decision/v1"));
    assert_eq!(cache_json(&p, &["ls"])["snapshots"], json!([]), "nothing is left in the cache");

    // An existing snapshot is an option; a pipeline without hints and rows has a profile too.
    store(&p, "full");
    let ended = caju_in(p.folder(), &["profile", "pipeline.yaml", "--cache", "cache", "--quiet"]);
    ended.expect_code(0);
    let profile: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(profile["existing"][0]["hint"], "doubled", "{profile:#}");
    assert_eq!(profile["existing"][0]["fraction"], 1.0);
    let plain = Pipeline::of(json!({"range": {"start": 0, "end": 50}}), json!([{"filter": "id < 0"}]));
    let ended = caju_in(plain.folder(), &["profile", "pipeline.yaml", "--workers", "2"]);
    ended.expect_code(0);
    let profile: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&profile["hints"], &profile["source"]["rows"]), (&json!([]), &50.into()));
    let endless = Pipeline::of(json!({"range": {"start": 0, "end": 50}}), json!([{"repeat": null}]));
    let ended = caju_in(endless.folder(), &["profile", "pipeline.yaml"]);
    ended.expect_code(2).expect_error(&["pipeline.yaml: `repeat`", "take"]);
    let bad = Pipeline::of(json!({"range": {"start": 0, "end": 5}}), json!([{"map": {"x": "nope"}}]));
    caju_in(bad.folder(), &["profile", "pipeline.yaml"]).expect_code(2).expect_error(&["nope"]);
}

#[test]
fn the_status_says_how_large_the_cache_is() {
    let cache = tempfile::tempdir().unwrap();
    let cluster = Cluster::start_with(1, &["--cache", cache.path().to_str().unwrap()], &[]);
    let p = Pipeline::of(json!({"range": 1000}), json!([{"autocache": "rows"}, {"batch": 100}]));
    cluster.read(&p, &["--policy", "full", "--epochs", "1"]).expect_code(0);
    // A status that was asked for while rows were stored is the answer for ten seconds.
    let size = cluster.wait_for_status("the size of what was stored", |s| {
        s["cache"]["bytes"].as_u64().filter(|bytes| *bytes > 0)?;
        Some(s["cache"].clone())
    });
    assert_eq!(size["snapshots"], 1, "{size}");
    cluster.stop();
}

/// A decision that was recorded can be made again from the profile that was recorded with it: same bytes.
#[test]
fn recorded_decisions_are_replayed() {
    let cache = tempfile::tempdir().unwrap();
    let cluster = Cluster::start_with(1, &["--cache", cache.path().to_str().unwrap()], &[]);
    // Enough batches for a sample at each hint, and time to try it.
    let p = Pipeline::of(
        json!({"range": {"start": 0, "end": 250_000}}),
        json!([
            {"autocache": "first"},
            {"map": {"x": "id * 3"}},
            {"autocache": "second"},
            {"sleep": {"per_batch": "100ms"}},
            {"batch": 1000},
        ]),
    );
    cluster.read(&p, &["--job", "j", "--epochs", "1", "--no-checksum"]).expect_code(0);
    let status = cluster.status();
    let job = status["jobs"].as_array().unwrap().iter().rfind(|j| j["job"] == "j").unwrap();
    assert_eq!(job["policy"], "auto");
    assert_eq!(job["decision"]["schema"], "caju.decision/v1", "{job:#}");
    fs::write(p.folder().join("profile.json"), job["profile"].to_string()).unwrap();
    let again = caju_in(p.folder(), &["plan", "profile.json", "--format", "json"]);
    again.expect_code(0);
    assert_eq!(again.stdout, format!("{:#}", job["decision"]));

    let explained = explain(&p, &["--dispatcher", cluster.address(), "--job", "j"]);
    assert_eq!(explained["job"]["decision"], job["decision"]);
    let args = ["explain", "pipeline.yaml", "--dispatcher", cluster.address()];
    let text = caju_in(p.folder(), &args).stdout;
    let reason = job["decision"]["reason"].as_str().unwrap();
    assert!(text.contains("job `j`, epoch 0, policy auto") && text.contains(reason), "{text}");
    let unknown = caju_in(p.folder(), &[&args[..], &["--job", "jj"]].concat());
    unknown.expect_code(2).expect_error(&["no job `jj`", "did you mean `j`"]);
    let shown = caju_in(p.folder(), &["status", "--dispatcher", cluster.address()]).stdout;
    assert!(shown.contains("j (policy auto): ") && shown.contains(" snapshots)"), "{shown}");
    let cache = &cluster.status()["cache"];
    // Whether the decision stores rows depends on the machine.
    assert!(
        cache["bytes"].is_u64() && cache["snapshots"].is_u64() && cache["budget_bytes"].is_null(),
        "{cache}"
    );
    cluster.stop();
}
