//! The target of workers, from real processes to `caju status`, Prometheus and KEDA.

use std::io::Read;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use caju_proto::externalscaler::external_scaler_client::ExternalScalerClient;
use caju_proto::externalscaler::{GetMetricsRequest, ScaledObjectRef};
use caju_tests::http::get;
use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline, caju};
use serde_json::{Value, json};

/// The names in the first column of the table of docs/metrics.md.
fn documented_metrics() -> Vec<String> {
    let page = include_str!("../../../docs/metrics.md");
    let rows = page.lines().filter_map(|l| l.strip_prefix("| `")?.split('|').next());
    rows.flat_map(|cell| cell.split('`').filter(|w| w.starts_with("caju_")).map(str::to_owned)).collect()
}

fn target(status: &Value) -> Option<u64> {
    status["scaling"]["target_workers"].as_u64()
}

/// `--scaling-interval`, `--max-workers`, `--min-workers`, `--scale-down-after`, `--http-listen`: a reader that waits for one
/// worker raises the target to the limit, and its end brings it down.
#[test]
fn a_waiting_reader_raises_the_target_and_its_end_lowers_it() {
    let mut cluster = Cluster::start_with(
        1,
        &[
            "--scaling-interval",
            "500ms",
            "--min-workers",
            "1",
            "--max-workers",
            "3",
            "--scale-down-after",
            "1s",
            // A reader that is killed does not take leave.
            "--client-timeout",
            "2s",
            "--http-listen",
            "127.0.0.1:0",
            "--handshake-timeout",
            "1s",
        ],
        &[],
    );
    let lines = cluster.dispatcher.process.wait_for_lines(2);
    let http = lines[1].strip_prefix("caju dispatcher serves http://").unwrap();
    let http = http.strip_suffix("/metrics").unwrap().to_string();
    assert_eq!(get(&http, "GET", "/healthz"), ("HTTP/1.1 200 OK".into(), "ok\n".into()));
    assert_eq!(get(&http, "GET", "/nothing").0, "HTTP/1.1 404 Not Found");
    assert_eq!(get(&http, "POST", "/metrics").0, "HTTP/1.1 405 Method Not Allowed");
    // `--handshake-timeout`: a connection without a request is closed.
    let mut silent = TcpStream::connect(&http).unwrap();
    assert_eq!(silent.read(&mut [0; 16]).unwrap(), 0);
    assert_eq!(target(&cluster.status()), Some(1));

    let p = Pipeline::of(
        json!({ "range": { "start": 0, "end": 10_000_000 } }),
        json!([{ "sleep": { "per_row": "2ms" } }, { "batch": 50 }]),
    );
    let reader = cluster.start_read(&p, &["--job", "train"]);
    let reason = cluster.wait_for_status("a target of three workers", |s| {
        (target(s)? == 3).then(|| s["scaling"]["reason"].as_str().unwrap().to_string())
    });
    assert!(reason.contains("These are the most allowed: `train` takes"), "{reason}");
    let text = caju(&["status", "--dispatcher", cluster.address()]).stdout;
    assert!(text.contains("target: 3 workers. These are"), "{text}");

    // The worker says what it tunes half a second after the task began. The target has a metric once workers and readers had the
    // time to report after the dispatcher's start.
    let metrics = cluster.wait_for_status("the metrics of what the worker tunes", |_| {
        let (_, metrics) = get(&http, "GET", "/metrics");
        ["caju_worker_split_readers{", "caju_target_workers 3"]
            .iter()
            .all(|m| metrics.contains(m))
            .then_some(metrics)
    });
    for line in
        ["caju_target_workers 3", "caju_workers 1", "caju_epochs_active 1", "# TYPE caju_workers gauge"]
    {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }
    assert!(metrics.contains("caju_job_target_workers{job=\"train\"} "), "{metrics}");
    for name in documented_metrics() {
        // There is no cache.
        assert_ne!(metrics.contains(&name), name.starts_with("caju_cache_"), "{name}: {metrics}");
    }
    for line in metrics.lines().filter(|l| !l.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(documented_metrics().iter().any(|n| n == name), "docs/metrics.md does not have {name}");
    }
    assert!(metrics.ends_with("# EOF\n"), "{metrics}");

    // KEDA asks the dispatcher's own port.
    let address = format!("http://{}", cluster.address());
    let (active, workers) = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let mut keda = ExternalScalerClient::connect(address).await.unwrap();
        let object = ScaledObjectRef { name: "caju-worker".into(), ..Default::default() };
        let active = keda.is_active(object.clone()).await.unwrap().into_inner().result;
        let spec = keda.get_metric_spec(object.clone()).await.unwrap().into_inner().metric_specs.remove(0);
        let request = GetMetricsRequest { scaled_object_ref: Some(object), metric_name: spec.metric_name };
        let value = keda.get_metrics(request).await.unwrap().into_inner().metric_values.remove(0);
        (active, value.metric_value_float / spec.target_size_float)
    });
    assert_eq!((active, workers), (true, 3.0));

    cluster.add_worker(&[]);
    cluster.add_worker(&[]);
    cluster.wait_for_status("three workers that work for the job, and the same target", |s| {
        let job = s["jobs"].as_array()?.first()?;
        (job["tasks"].as_u64()? == 3 && target(s)? == 3).then_some(())
    });
    reader.signal("TERM");
    drop(reader.wait());
    let ended = Instant::now();
    cluster.wait_for_status("the fewest workers", |s| (target(s)? == 1).then_some(()));
    // By default the target falls after 30 s.
    assert!(ended.elapsed() < Duration::from_secs(25), "{:?}", ended.elapsed());
    assert_eq!(cluster.status()["scaling"]["reason"], "No job runs.");
    cluster.stop();
}

/// `--scaling-interval`: with `0s` no target is computed.
#[test]
fn a_dispatcher_without_a_scaling_interval_has_no_target() {
    let usual = Cluster::start(0);
    assert!(target(&usual.status()).is_some());
    usual.stop();
    let cluster = Cluster::start_with(0, &["--scaling-interval", "0s"], &[]);
    assert!(cluster.status()["scaling"].is_null());
    cluster.stop();
}

#[test]
fn settings_of_the_target_are_checked() {
    for (args, says) in [
        (&["--min-workers", "5", "--max-workers", "3"][..], "--max-workers 3 is less than --min-workers 5"),
        (&["--scaling-interval", "1s"], "--scaling-interval must be at least twice --heartbeat"),
        (&["--http-listen", "0.0.0.0:0"], "--insecure"),
    ] {
        caju(&[&["dispatcher", "--listen", "127.0.0.1:0"], args].concat())
            .expect_code(2)
            .expect_error(&[says]);
    }
}

/// Two jobs whose expressions keep all threads of one worker busy. When the one with a higher priority or weight ends, the other
/// one is as far as its share of the threads allows.
#[test]
fn a_worker_divides_its_threads_by_the_priorities_and_weights_of_the_jobs() {
    let cluster = Cluster::start_with(1, &[], &["--cpu-threads", "2"]);
    let p = Pipeline::of(
        json!({ "range": { "start": 0, "end": 40_000 } }),
        json!([{ "map": { "hash": "md5(repeat(cast(id as varchar), 2000))" } }, { "batch": 10 }]),
    );
    // A 16th and a third of the rows, and a little before the other job begins.
    for (option, value, rows) in [("--priority", "1", 500..16_000), ("--weight", "3", 6_000..28_000)] {
        let [slower, faster] = ["slower", "faster"].map(|name| format!("{name}{option}"));
        let other = cluster.start_read(&p, &["--job", &slower]);
        let first = cluster.start_read(&p, &["--job", &faster, option, value, "--report", "first.json"]);
        first.wait().expect_code(0);
        let status = cluster.status();
        let of_other =
            status["jobs"].as_array().unwrap().iter().find(|j| j["job"] == slower.as_str()).unwrap();
        let readers = of_other["readers"].as_array().unwrap();
        let found = readers.iter().map(|r| r["rows"].as_u64().unwrap()).sum::<u64>();
        assert!(!readers.is_empty() && rows.contains(&found), "{option} {value}: {found} of 40000");
        other.wait().expect_code(0);
        assert_eq!(Report::load(&p.folder().join("first.json")).rows(), [40_000]);
    }
    cluster.stop();
}

/// `--priority` and `--weight`: they belong to the job, and the status has them with its share of the target.
#[test]
fn the_priority_and_the_weight_of_a_job_are_in_the_status() {
    let cluster = Cluster::start_with(
        1,
        &["--scaling-interval", "500ms", "--max-workers", "1", "--client-timeout", "2s"],
        &[],
    );
    let p = Pipeline::of(
        json!({ "range": { "start": 0, "end": 10_000_000 } }),
        json!([{ "sleep": { "per_row": "2ms" } }, { "batch": 20 }]),
    );
    let first = cluster.start_read(&p, &["--job", "train", "--priority", "1", "--weight", "2.5"]);
    let second = cluster.start_read(&p, &["--job", "sweep", "--priority", "-1"]);
    let jobs = cluster.wait_for_status("the shares of two jobs", |s| {
        let jobs = s["scaling"]["jobs"].as_array()?;
        let is_known = jobs.len() == 2 && jobs.iter().all(|j| j["share"].is_number());
        is_known.then(|| jobs.clone())
    });
    let of = |name: &str| jobs.iter().find(|j| j["job"] == name).unwrap();
    assert_eq!((&of("train")["priority"], &of("train")["weight"]), (&json!(1), &json!(2.5)));
    assert_eq!((&of("sweep")["priority"], &of("sweep")["weight"]), (&json!(-1), &json!(1.0)));
    // Both could use more than the one worker that is allowed.
    assert_eq!((&of("train")["share"], &of("sweep")["share"]), (&json!(1.0), &json!(0.0)));
    let text = caju(&["status", "--dispatcher", cluster.address()]).stdout;
    assert!(text.contains("share of the target"), "{text}");
    cluster
        .read(&p, &["--job", "train", "--priority", "2"])
        .expect_code(2)
        .expect_error(&["job `train` has the priority 1, not 2"]);
    for reader in [first, second] {
        reader.signal("KILL");
        drop(reader.wait());
    }
    cluster.stop();
}
