//! The processes: alone and together.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::path::Path;

use common::{Server, caju, fails, ok, run, stderr};
use serde_json::Value;

const RANGE: &str = "name: counting\nsource: { range: { start: 0, end: 5000 } }\nsteps: [ { map: { x: id * 2 } }, { batch: 64 } ]\n";

fn file(dir: &Path, name: &str, text: &str) -> String {
    std::fs::write(dir.join(name), text).unwrap();
    name.to_string()
}

fn report(dir: &Path, name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join(name)).unwrap()).unwrap()
}

#[test]
fn run_reads_every_row_and_reports() {
    let dir = tempfile::tempdir().unwrap();
    let f = file(dir.path(), "p.yaml", RANGE);
    let out = ok(dir.path(), &["run", &f, "--epochs", "2", "--workers", "2", "--report", "r.json"]);
    assert!(out.contains("counting: 10,000 rows"), "{out}");
    let r = report(dir.path(), "r.json");
    assert_eq!(r["schema"], "caju.run/v1");
    assert_eq!(r["epochs"].as_array().unwrap().len(), 2);
    for (i, e) in r["epochs"].as_array().unwrap().iter().enumerate() {
        assert_eq!((&e["epoch"], &e["rows"]), (&Value::from(i), &Value::from(5000)));
        // floor(5000 / 64) full batches and one short one.
        assert_eq!(e["batches"], 79, "{e}");
        assert_eq!(e["rows_checksum"].as_str().unwrap().len(), 32);
    }
    assert_eq!(r["epochs"][0]["rows_checksum"], r["epochs"][1]["rows_checksum"]);
    assert!(r["peak_rss_bytes"].as_u64().unwrap() > 1 << 20);
    let silent = run(dir.path(), &["run", &f, "--quiet", "--no-checksum", "--report", "s.json"]);
    assert!(
        silent.status.success() && silent.stdout.is_empty() && silent.stderr.is_empty(),
        "{}",
        stderr(&silent)
    );
    assert!(report(dir.path(), "s.json")["epochs"][0]["rows_checksum"].is_null());
}

#[test]
fn off_gives_every_workers_rows() {
    let dir = tempfile::tempdir().unwrap();
    let f = file(dir.path(), "p.yaml", RANGE);
    ok(dir.path(), &["run", &f, "--workers", "2", "--processing-mode", "off", "--report", "r.json"]);
    assert_eq!(report(dir.path(), "r.json")["epochs"][0]["rows"], 10_000);
}

#[test]
fn apart_they_give_the_rows_that_they_give_together() {
    let dir = tempfile::tempdir().unwrap();
    ok(
        dir.path(),
        &["gen", "table", "--out", "data", "--count", "3000", "--shards", "3", "--format", "parquet"],
    );
    let text = "source: { parquet: { path: \"data/*.parquet\" } }\nsteps: [ { map: { label: label, y: \"coalesce(I1, 0) + 1\", c: C3 } }, { batch: 100 } ]\n";
    let f = file(dir.path(), "p.yaml", text);
    ok(dir.path(), &["run", &f, "--report", "together.json"]);

    let dispatcher = Server::start(
        dir.path(),
        "dispatcher",
        &[
            "--listen",
            "127.0.0.1:0",
            "--allow",
            "data",
            "--address-file",
            "d.txt",
            "--operator-secret-file",
            "operator-secret",
        ],
    );
    assert_eq!(std::fs::read_to_string(dir.path().join("d.txt")).unwrap().trim(), dispatcher.address);
    let at = dispatcher.address.clone();
    let workers: Vec<Server> = (0..2)
        .map(|_| {
            Server::start(dir.path(), "worker", &["--dispatcher", &at, "--allow", "data", "--tags", "a,b"])
        })
        .collect();
    let out = ok(dir.path(), &["read", &f, "--dispatcher", &at, "--job", "j", "--report", "apart.json"]);
    assert!(out.contains("3,000 rows"), "{out}");
    let (together, apart) = (report(dir.path(), "together.json"), report(dir.path(), "apart.json"));
    assert_eq!(together["epochs"][0]["rows_checksum"], apart["epochs"][0]["rows_checksum"]);
    assert_eq!(together["fingerprint"], apart["fingerprint"]);
    assert!(together["epochs"][0]["source_bytes_read"].as_u64().unwrap() > 10_000, "{together}");

    let status: Value =
        serde_json::from_str(&ok(dir.path(), &["status", "--dispatcher", &at, "--format", "json"])).unwrap();
    assert_eq!(status["workers"].as_array().unwrap().len(), 2, "{status}");
    assert_eq!(status["workers"][0]["tags"], serde_json::json!(["a", "b"]));
    assert_eq!(
        (&status["jobs"][0]["job"], &status["jobs"][0]["state"]),
        (&"j".into(), &"finished".into()),
        "{status}"
    );
    let job = &status["jobs"][0];
    assert_eq!((&job["served"]["rows"], &job["splits"]["waiting"]), (&3000.into(), &0.into()), "{status}");
    assert_eq!(job["splits"]["done"], job["splits_total"], "{status}");
    assert!(status["cache"].is_null() && status["workers"][0]["usage"]["rss_bytes"].is_u64(), "{status}");
    let text = ok(dir.path(), &["status", "--dispatcher", &at]);
    assert!(text.contains(&workers[0].address) && text.contains("finished"), "{text}");

    // A drained worker leaves by itself; a signal ends the others.
    let id = status["workers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|w| w["address"] == workers[0].address.as_str())
        .unwrap();
    let number = id["worker_id"].to_string();
    let drain =
        ["worker", "drain", &number, "--dispatcher", &at, "--operator-secret-file", "operator-secret"];
    ok(dir.path(), &drain);
    let mut workers = workers.into_iter();
    assert!(workers.next().unwrap().wait().success());
    for server in workers.chain([dispatcher]) {
        server.signal("-TERM");
        assert!(server.wait().success());
    }
}

#[test]
fn servers_touch_only_what_they_may() {
    let dir = tempfile::tempdir().unwrap();
    ok(dir.path(), &["gen", "text", "--out", "secret", "--count", "5", "--format", "json"]);
    let f = file(dir.path(), "p.yaml", "source: { json: { path: \"secret/*.jsonl\" } }\n");
    let dispatcher = Server::start(dir.path(), "dispatcher", &["--listen", "127.0.0.1:0", "--allow", "open"]);
    let text = fails(dir.path(), &["read", &f, "--dispatcher", &dispatcher.address], 3);
    assert!(text.contains("--allow") && text.contains("secret"), "{text}");
}

#[test]
fn a_port_in_use_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let text = fails(dir.path(), &["dispatcher", "--listen", &address], 3);
    assert!(text.contains(&address) && text.contains("in use"), "{text}");
    let text = fails(dir.path(), &["worker", "--listen", &address, "--dispatcher", "127.0.0.1:1"], 3);
    assert!(text.contains(&address) && text.contains("in use"), "{text}");
}

#[test]
fn a_dispatcher_that_is_not_there_is_reported_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let f = file(dir.path(), "p.yaml", RANGE);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let at = ["--dispatcher", &free, "--connect-timeout", "200ms"];
    for command in [&["read", f.as_str()][..], &["status"], &["worker"], &["worker", "drain", "1"]] {
        let text = fails(dir.path(), &[command, &at].concat(), 3);
        assert!(text.contains(&free), "{command:?}: {text}");
        assert_eq!(text.lines().filter(|l| l.starts_with("error:")).count(), 1, "{text}");
    }
}

#[test]
fn others_may_connect_only_if_the_user_said_so() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["dispatcher", "--listen", "0.0.0.0:0"][..],
        &["worker", "--dispatcher", "127.0.0.1:1", "--listen", "0.0.0.0:0"],
    ] {
        let text = fails(dir.path(), args, 2);
        assert!(text.contains("--insecure"), "{text}");
    }
    let open = Server::start(dir.path(), "dispatcher", &["--listen", "0.0.0.0:0", "--insecure"]);
    assert!(open.address.starts_with("0.0.0.0:"), "{}", open.address);
    open.signal("-INT");
    assert!(open.wait().success());
}

#[test]
fn check_shows_stages_schema_and_fingerprint() {
    let dir = tempfile::tempdir().unwrap();
    ok(dir.path(), &["gen", "images", "--out", "data", "--count", "1", "--format", "parquet"]);
    let text = "name: eval\nsource: { parquet: { path: \"data/*.parquet\" } }\nsteps:\n  - map: { image: \"normalize(center_crop(resize_shorter(decode_image(image), 256), 224, 224))\", label: label }\n  - autocache: done\n  - batch: 8\n";
    let f = file(dir.path(), "p.yaml", text);
    let out = ok(dir.path(), &["check", &f]);
    for word in [
        "pipeline     eval",
        "fingerprint  ",
        "parquet",
        "-> image: float32[224, 224, 3], label: int64",
        "hint `done` at step 1: ",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
}

#[test]
fn wrong_pipelines_are_the_users() {
    let dir = tempfile::tempdir().unwrap();
    for (text, words) in [
        ("source: { range: 9 }\nsteps: [ { suffle: 4 } ]\n", &["suffle", "did you mean `shuffle`"][..]),
        ("source: { range: 9 }\nsteps: [ { map: { x: idd + 1 } } ]\n", &["idd", "did you mean `id`"]),
        ("source: { range: 9 }\nsteps: [ { map: { x: lnn(id) } } ]\n", &["lnn", "did you mean `ln`"]),
        ("source: { range: 9 }\nsteps: [ { batch: 0 } ]\n", &["steps[0].batch", "0"]),
        ("source: { parquet: { path: \"nothing/*.parquet\" } }\n", &["nothing/*.parquet"]),
        ("source: { tfrecord: { path: \"no.tfrecord\" } }\n", &["no.tfrecord"]),
        ("source: [\n", &["p.yaml"]),
    ] {
        let f = file(dir.path(), "p.yaml", text);
        for command in ["check", "run"] {
            let message = fails(dir.path(), &[command, &f], 2);
            for word in words {
                assert!(message.contains(word), "{command} {text}: {message}");
            }
        }
    }
}

/// The files that the documentation points at say what is true: every stage binds to what `gen` makes.
#[test]
fn examples_are_right() {
    let dir = tempfile::tempdir().unwrap();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pipelines");
    let here = dir.path().join("examples/pipelines");
    std::fs::create_dir_all(&here).unwrap();
    for (kind, out, format) in [
        ("images", "data/photos", "tfrecord"),
        ("images", "data/photos-parquet", "parquet"),
        ("images", "data/quickstart", "tfrecord"),
        ("table", "data/clicks", "parquet"),
        ("text", "data/text", "parquet"),
    ] {
        ok(dir.path(), &["gen", kind, "--out", out, "--count", "2", "--format", format]);
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        std::fs::copy(&path, here.join(&name)).unwrap();
        let out = ok(dir.path(), &["check", &format!("examples/pipelines/{name}")]);
        assert!(out.contains(name.trim_end_matches(".yaml")), "{out}");
        names.push(name);
    }
    assert!(names.len() >= 5, "{names:?}");
}

/// A worker in the middle of a task waits for it; a second signal does not.
#[test]
fn a_second_signal_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let f = file(
        dir.path(),
        "p.yaml",
        "source: { range: 1000000 }\nsteps: [ { sleep: { per_row: 100ms } }, { batch: 1 } ]\n",
    );
    let dispatcher = Server::start(dir.path(), "dispatcher", &["--listen", "127.0.0.1:0"]);
    let worker = Server::start(dir.path(), "worker", &["--dispatcher", &dispatcher.address]);
    let mut reader =
        caju(dir.path()).args(["read", &f, "--dispatcher", &dispatcher.address, "--quiet"]).spawn().unwrap();
    loop {
        let status = ok(dir.path(), &["status", "--dispatcher", &dispatcher.address, "--format", "json"]);
        let status: Value = serde_json::from_str(&status).unwrap();
        if status["workers"][0]["tasks"].as_array().is_some_and(|t| !t.is_empty()) {
            break;
        }
    }
    worker.signal("-TERM");
    worker.signal("-INT");
    assert_eq!(worker.wait().code(), Some(3));
    reader.kill().unwrap();
    reader.wait().unwrap();
}
