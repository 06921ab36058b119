//! Stored rows that somebody else can write to, or that could not be stored: never a signal, never wrong rows, never
//! silence.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use caju_testkit::s3::{S3Server, ServerFault};
use caju_tests::pipeline::Report;
use caju_tests::process::TEST_TIMEOUT;
use caju_tests::{Pipeline, Process, caju_in, files};
use serde_json::{Value, json};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::cache_commands::doubled;
use crate::cache_conformance::with_env;

fn numbers(cost: &str) -> Pipeline {
    Pipeline::of(
        json!({ "range": 12_000 }),
        json!([
            { "burn": { "per_row": cost } },
            { "with_columns": { "text": "lpad(cast(id % 10000 as varchar), 4, '0')" } },
            { "autocache": "h" },
            { "batch": 100 },
        ]),
    )
}

fn below(root: &Path, extension: &str) -> Vec<String> {
    files::below(root).into_iter().filter(|f| f.ends_with(extension)).collect()
}

/// Looks at a folder until there is something to see; there is no event to wait for.
fn watch(what: &str, until: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !until() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn parts_that_are_cut_under_a_running_job_are_computed() {
    let p = numbers("20us");
    let want = p.report(&["--policy", "compute"]).checksums().remove(0);
    let root = p.folder().join("cache");
    let args = [
        "run",
        "pipeline.yaml",
        "--policy",
        "hint:h",
        "--cache",
        "cache",
        "--epochs",
        "8",
        "--report",
        "r.json",
    ];
    let run = Process::caju(p.folder(), &args);
    let done = p.folder().join("r.json");
    let cut = Cell::new(0);
    watch("the end of the run", || {
        for part in below(&root, ".arrow") {
            // Gone, if the job has replaced it.
            let Ok(file) = std::fs::OpenOptions::new().write(true).open(&part) else { continue };
            file.set_len(file.metadata().unwrap().len() / 3).unwrap();
            cut.set(cut.get() + 1);
        }
        done.exists()
    });
    run.wait().expect_code(0);
    let report = Report::load(&done);
    assert_eq!(report.checksums(), vec![want; 8]);
    assert!(cut.get() > 0, "there were parts to cut");
}

/// Changes a part of a root as somebody would who knows how its records are made.
fn forge(root: &Path, part: &str, change: impl Fn(&mut [u8])) {
    let mut bytes = std::fs::read(part).unwrap();
    change(&mut bytes);
    std::fs::write(part, &bytes).unwrap();
    for record in below(root, ".commit").into_iter().chain(below(root, ".json")) {
        let text = std::fs::read_to_string(&record).unwrap();
        let mut value: Value = serde_json::from_str(&text).unwrap();
        if adapt(&mut value, part, &bytes) {
            value.as_object_mut().unwrap().remove("seal");
            let rest = serde_json::to_string(&value).unwrap()[1..].to_owned();
            std::fs::write(&record, format!("{{\"seal\":\"{:032x}\",{rest}", xxh3_128(rest.as_bytes())))
                .unwrap();
        }
    }
}

/// Puts the checksums of these bytes wherever the part is described.
fn adapt(value: &mut Value, part: &str, bytes: &[u8]) -> bool {
    let ours = value.get("path").and_then(Value::as_str).is_some_and(|path| part.ends_with(path));
    if ours && value.get("blocks").is_some() {
        let mut at = 0;
        for block in value["blocks"].as_array_mut().unwrap() {
            let end = at + usize::try_from(block[0].as_u64().unwrap()).unwrap();
            block[1] = json!(format!("{:016x}", xxh3_64(&bytes[at..end])));
            at = end;
        }
        value["checksum"] = json!(format!("{:032x}", xxh3_128(bytes)));
        return true;
    }
    match value {
        Value::Array(items) => items.iter_mut().fold(false, |any, v| adapt(v, part, bytes) | any),
        Value::Object(fields) => fields.values_mut().fold(false, |any, v| adapt(v, part, bytes) | any),
        _ => false,
    }
}

/// Lets texts of four letters begin somewhere else.
fn lie(bytes: &mut [u8]) {
    let offsets: Vec<u8> = (0..10i32).flat_map(|i| (4 * i).to_le_bytes()).collect();
    let at = bytes.windows(offsets.len()).position(|w| w == offsets).unwrap();
    for i in 100..500 {
        bytes[at + 4 * i..at + 4 * i + 4]
            .copy_from_slice(&(1_000_000_000 + i32::try_from(i).unwrap()).to_le_bytes());
    }
}

#[test]
fn forged_parts_are_computed_again_and_forged_saves_are_refused() {
    let p = numbers("0us");
    let want = p.report(&["--policy", "compute"]).checksums().remove(0);
    let cached = ["--policy", "hint:h", "--cache", "cache", "--epochs", "2"];
    p.report(&cached);
    let root = p.folder().join("cache");
    forge(&root, &below(&root, ".arrow")[0], lie);
    let again = p.report(&cached);
    assert_eq!(again.checksums(), vec![want; 2]);

    caju_in(p.folder(), &["save", "pipeline.yaml", "--to", "saved"]).expect_code(0);
    let root = p.folder().join("saved");
    let part = below(&root, ".arrow").remove(0);
    let loaded = Pipeline::of(json!({ "load": { "path": root } }), json!([]));
    loaded.run(&[]).expect_code(0);
    forge(&root, &part, lie);
    let name = Path::new(&part).file_name().unwrap().to_str().unwrap();
    loaded.run(&[]).expect_code(2).expect_error(&[name, "damaged"]);
}

#[test]
fn a_forced_policy_that_stores_nothing_says_so() {
    let p = numbers("0us").with_file("file", b"");
    let args = ["--policy", "hint:h", "--cache", "file/cache", "--report", "report.json"];
    let ended = p.run(&args);
    ended.expect_code(0);
    let words = ended.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("but nothing was stored") && words.contains("file/cache"), "{}", ended.stdout);
    let report = Report::load(&p.folder().join("report.json"));
    assert!(report.0["not_stored"].as_str().unwrap().contains("file/cache"), "{}", report.0);
    let quiet = p.run(&[&args[..], &["--quiet"]].concat());
    assert!(quiet.stderr.contains("warning: nothing was stored"), "{}", quiet.stderr);
    caju_in(p.folder(), &["save", "pipeline.yaml", "--to", "file/save"]).expect_code(3);
    assert!(p.report(&["--policy", "hint:h"]).0["not_stored"].is_null());
}

#[test]
fn splits_of_a_killed_run_are_stored_by_the_next_one() {
    let p = numbers("50us");
    let args = ["run", "pipeline.yaml", "--policy", "hint:h", "--cache", "cache"];
    let run = Process::caju(p.folder(), &args);
    watch("a claim", || files::below(p.folder()).iter().any(|f| f.contains("/claims/")));
    run.signal("KILL");
    drop(run.wait());
    let next = p.report(&["--policy", "hint:h", "--cache", "cache"]);
    let splits = &next.0["epochs"][0]["splits"];
    assert_eq!(splits["compute"], json!(0), "{splits}");
}

/// The store serves reads and refuses writes, as for a user who may only read a bucket.
#[test]
fn a_cache_that_cannot_be_written_is_read_and_each_process_warns_once() {
    let threads = tokio::runtime::Runtime::new().unwrap();
    let s3 = threads.block_on(S3Server::start(&["bucket"])).unwrap();
    let env: Vec<_> = s3.options().into_iter().map(|(k, v)| (k.to_uppercase(), v)).collect();
    let p = doubled();
    let caju = |args: &[&str]| {
        let ended = with_env(&p, &env, &[args, &["--cache", "s3://bucket/cache"]].concat());
        ended.expect_code(0);
        ended
    };
    let run = |args: &[&str]| {
        let ended = caju(&[&["run", "pipeline.yaml", "--report", "r.json"], args].concat());
        (Report::load(&p.folder().join("r.json")), ended.stderr.matches("the cache is read only").count())
    };
    let (stored, warnings) = run(&["--policy", "full"]);
    let want = stored.checksums();
    assert_eq!((stored.splits(0), warnings), ([0, 3, 0], 0));
    let objects = files::below(&s3.bucket("bucket"));
    s3.inject(ServerFault::Denied, &["PUT", "POST", "DELETE"], 1, 0);

    let json = |args: &[&str]| -> Value {
        let ended = caju(&[args, &["--format", "json"]].concat());
        serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {}", ended.stdout))
    };
    let list = json(&["cache", "ls"]);
    let of = list["snapshots"][0]["fingerprint"].as_str().unwrap();
    assert_eq!(list["snapshots"][0]["rows"], json!(600));
    assert_eq!(json(&["cache", "inspect", of])["parts"].as_array().unwrap().len(), 3);
    assert_eq!(json(&["cache", "verify"])["parts"], json!(3));
    let hints = json(&["explain", "pipeline.yaml"])["hints"].clone();
    assert_eq!((&hints[0]["state"], &hints[1]["state"]), (&json!("miss"), &json!("hit")));

    let (read, warnings) = run(&["--policy", "full"]);
    assert_eq!((read.checksums(), read.splits(0), warnings), (want.clone(), [0, 0, 3], 1));
    assert!(read.0["not_stored"].is_null(), "{}", read.0);
    // What is not stored is computed, and the report says why it stays so.
    let (computed, warnings) = run(&["--policy", "hint:raw"]);
    assert_eq!((computed.checksums(), computed.splits(0), warnings), (want.clone(), [3, 0, 0], 1));
    let why = computed.0["not_stored"].as_str().unwrap();
    assert!(why.contains("s3://bucket/cache") && why.contains("cannot be written"), "{why}");
    std::fs::remove_dir_all(p.folder().join("data")).unwrap();
    let (alone, warnings) = run(&["--cache-only"]);
    assert_eq!((alone.checksums(), alone.splits(0), warnings), (want, [0, 0, 3], 1));
    assert!(s3.requests().failed > 0 && files::below(&s3.bucket("bucket")) == objects, "nothing was written");
}
