//! `caju bench policies`: what it reports, and that its caches are removed.

use std::fs;
use std::process::Command;

use caju_testkit::s3::S3Server;
use caju_tests::binary::caju_binary;
use caju_tests::{Ended, Pipeline, Process, caju_in, files};
use serde_json::{Value, json};

fn tripled() -> Pipeline {
    Pipeline::of(json!({ "range": 6_000 }), json!([{ "with_columns": { "x": "id * 3" } }, "autocache"]))
}

fn result(p: &Pipeline) -> Value {
    serde_json::from_str(&fs::read_to_string(p.folder().join("r.json")).unwrap()).unwrap()
}

#[test]
fn policies_tell_times_bytes_and_what_a_warm_job_gains() {
    let p = tripled();
    let scratch = p.folder().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let url = format!("file://{}", scratch.display());
    let args = ["bench", "policies", "pipeline.yaml", "--policies", "compute,full,compute", "--epochs", "2"];
    let more = ["--repeats", "1", "--out", "r.json", "--scratch", url.as_str()];
    let ended = caju_in(p.folder(), &[&args[..], &more[..]].concat());
    ended.expect_code(0);
    assert_eq!(ended.stderr.matches("round 1 compute cold").count(), 1, "{}", ended.stderr);
    let told = ["cold job", "source read", "cache written", "warm job", "epoch 0", "one round: noise"];
    assert!(told.iter().all(|t| ended.stdout.contains(t)), "{}", ended.stdout);
    assert!(ended.stdout.lines().all(|l| l.chars().count() <= 140), "{}", ended.stdout);

    let result = result(&p);
    let summary = &result["summary"];
    let lines = summary["lines"].as_array().unwrap();
    let policies: Vec<_> = lines.iter().map(|l| l["policy"].as_str().unwrap()).collect();
    assert_eq!(policies, ["compute", "full"]);
    assert!(summary["noise"].is_null() && lines[1]["spread"].is_null(), "{summary:#}");
    let from = |l: &Value| (l["cached_from"].clone(), l["warm_cached_from"].clone());
    assert_eq!(from(&lines[0]), (Value::Null, Value::Null));
    assert_eq!(from(&lines[1]), (1.into(), 0.into()), "{summary:#}");
    assert!(lines.iter().all(|l| l["warm_regret"].is_number()), "{summary:#}");
    assert!(lines[1]["cache_written_bytes"].as_f64().unwrap() > 0.0, "{summary:#}");
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
}

#[test]
fn caches_below_a_url_go_also_when_a_trial_fails() {
    let threads = tokio::runtime::Runtime::new().unwrap();
    let s3 = threads.block_on(S3Server::start(&["bucket"])).unwrap();
    let bench = |p: &Pipeline| -> Ended {
        let mut command = Command::new(caju_binary());
        command.args(["bench", "policies", "pipeline.yaml", "--policies", "full", "--epochs", "2"]);
        command.args(["--repeats", "1", "--scratch", "s3://bucket/bench", "--out", "r.json"]);
        command.current_dir(p.folder()).env_remove("CAJU_CONFIG").env("AWS_ALLOW_HTTP", "true");
        for (name, value) in s3.options() {
            command.env(name.replace("aws_endpoint", "aws_endpoint_url").to_uppercase(), value);
        }
        Process::start(command, "caju bench policies".into()).wait()
    };
    let left = || files::below(&s3.bucket("bucket"));

    let p = tripled();
    bench(&p).expect_code(0);
    let result = result(&p);
    let line = &result["summary"]["lines"][0];
    assert_eq!((&line["cached_from"], &line["warm_cached_from"]), (&1.into(), &0.into()), "{line:#}");
    assert!(line["stored_bytes"].as_f64().unwrap() > 0.0, "{line:#}");
    assert_eq!(left(), Vec::<String>::new());

    let puts = s3.requests().puts;
    let steps = json!([
        { "with_columns": { "x": "id * 3" } },
        "autocache",
        { "with_columns": { "y": "100 / (id - 5500)" } },
    ]);
    let ended = bench(&Pipeline::of(json!({ "range": 6_000 }), steps));
    ended.expect_code(2).expect_error(&["Divide by zero"]);
    assert!(s3.requests().puts > puts + 1, "nothing was stored");
    assert_eq!(left(), Vec::<String>::new());
}

#[test]
fn caches_lie_in_memory_too() {
    let args = ["bench", "policies", "pipeline.yaml", "--policies", "full", "--epochs", "2", "--cold-only"];
    let more = ["--repeats", "1", "--scratch", "memory://bench/caches"];
    let ended = caju_in(tripled().folder(), &[&args[..], &more[..]].concat());
    ended.expect_code(0);
    assert!(ended.stdout.contains("epoch 1") && !ended.stdout.contains("warm"), "{}", ended.stdout);
}

#[test]
fn places_that_are_no_urls_are_refused() {
    let p = tripled();
    for (place, words) in [
        ("s3:///key", "lacks a bucket"),
        ("s4://bucket/key", "did you mean `s3`"),
        ("s3://bucket/../key", "mean nothing in an object's key"),
        ("file://host/key", "three slashes"),
    ] {
        let ended = caju_in(p.folder(), &["bench", "policies", "pipeline.yaml", "--scratch", place]);
        ended.expect_code(2).expect_error(&["--scratch", words]);
    }
}

/// A trial of a million epochs, which ends this soon only because its requester has ended.
#[test]
fn a_trial_ends_with_the_process_that_asked_for_it_and_leaves_no_cache() {
    let p = tripled();
    let scratch = p.folder().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let args = ["bench", "policies", "pipeline.yaml", "--policies", "auto", "--epochs", "1000000"];
    let more = ["--scratch", "scratch", "--log", "caju_dispatcher=info"];
    let bench = Process::caju(p.folder(), &[&args[..], &more[..]].concat());
    bench.wait_for_error_line("control::autocache");
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 1);
    bench.signal("KILL");
    bench.wait();
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
}
