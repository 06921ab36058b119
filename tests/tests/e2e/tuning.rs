//! Numbers of a worker that are tuned, or given by hand: what the status shows of them, and what they do.

use caju_tests::{Cluster, Pipeline};
use serde_json::{Value, json};

/// A number of the first worker.
fn setting<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    status["workers"][0]["tuning"].as_array()?.iter().find(|s| s["setting"] == name)
}

/// `--split-readers`: the source has no more pieces of work in flight than that.
#[test]
fn as_many_splits_are_read_concurrently_as_the_flag_says() {
    for (readers, most) in [("1", 1), ("auto", u64::MAX)] {
        let cluster = Cluster::start_with(1, &[], &["--split-readers", readers]);
        let mut p =
            Pipeline::of(json!({ "csv": { "path": "*.csv" } }), json!([{ "sleep": { "per_row": "10ms" } }]));
        for file in 0..40 {
            p = p.with_file(&format!("{file:02}.csv"), b"id\n0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n");
        }
        // An epoch of four seconds: the worker says what it tunes half a second after it began.
        let reader = cluster.start_read(&p, &["--job", "train"]);
        let shown = cluster.wait_for_status("readers", |s| setting(s, "readers").cloned());
        reader.wait().expect_code(0);
        let at_once =
            cluster.wait_for_status("the source", |s| s["jobs"][0]["stages"][0]["at_once"].as_u64());
        assert!(at_once >= 1 && at_once <= most, "{at_once} of {readers}");
        match readers {
            "1" => assert_eq!((&shown["value"], &shown["reason"]), (&json!(1), &json!("given by hand"))),
            _ => assert!(shown["value"].as_u64() > Some(1) && shown["job"] == "train", "{shown}"),
        }
        cluster.stop();
    }
}

/// The same in `caju run`, whose recorded events say how many splits its tasks read concurrently.
#[test]
fn a_run_reads_as_many_splits_concurrently_as_the_flag_says() {
    let steps = json!([{ "burn": { "per_row": "50us" } }, "autocache"]);
    let p = Pipeline::of(json!({ "range": 20_000 }), steps);
    for readers in [1, 7] {
        let given = readers.to_string();
        let args = ["--cache", "cache", "--record-autocache-events", "events", "--split-readers", &given];
        p.report(&args);
        let events = std::fs::read_to_string(p.folder().join("events/run.jsonl")).unwrap();
        let (reported, name) =
            (events.matches("\"source_requests_at_once\":").count(), "source_requests_at_once");
        let expected = events.matches(&format!("\"{name}\":{readers},")).count();
        assert!(reported > 0 && reported == expected, "{expected} of {reported} say {readers}: {events}");
        std::fs::remove_dir_all(p.folder().join("events")).unwrap();
        std::fs::remove_dir_all(p.folder().join("cache")).unwrap();
    }
}

/// `--buffer-memory`: the bounds of all queues together. What the queues hold then is tested in the worker
/// (`queues_stay_within_the_memory_of_the_worker`).
#[test]
fn the_memory_of_all_queues_is_bounded() {
    for (more, most) in [(&["--buffer-memory", "64KiB"][..], 64 << 10), (&[][..], 1 << 30)] {
        let cluster = Cluster::start_with(1, &["--client-timeout", "90s"], more);
        let p = Pipeline::of(json!({ "range": 20_000_000 }), json!([{ "batch": 1000 }]));
        let reader = cluster.start_read(&p, &["--job", "train", "--prefetch", "1MiB"]);
        cluster.wait_for_status("rows", |s| s["jobs"][0]["served"]["rows"].as_u64().filter(|rows| *rows > 0));
        reader.signal("STOP");
        let bounds = cluster.wait_for_status("bounds", |s| {
            setting(s, "buffer_bytes")?["value"].as_u64().filter(|bytes| *bytes > 0)
        });
        assert!(bounds <= most && bounds > most / 64, "{bounds} of {most}");
        reader.signal("KILL");
        drop(reader.wait());
        cluster.stop();
    }
}
