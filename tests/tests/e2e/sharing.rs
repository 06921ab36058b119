//! Jobs of several `caju read` that share computed rows.

use std::path::Path;
use std::time::{Duration, Instant};

use caju_tests::files::below;
use caju_tests::{Cluster, Pipeline};
use serde_json::{Value, json};

/// Rows so wide that a reader without progress delays its epoch: 20 splits of 2 MB.
fn wide() -> Pipeline {
    let steps = json!([{ "with_columns": { "pad": "repeat('x', 2000)", "x": "uniform(0.0, 1.0)" } }, { "batch": 50 }]);
    Pipeline::of(json!({ "range": 20_000 }), steps)
}

/// The same rows, computed so slowly that a job is not over before it is paused: 2 s a worker.
fn paced() -> Pipeline {
    let steps = json!([{ "sleep": { "per_row": "100us" } }, { "with_columns": { "pad": "repeat('x', 2000)", "x": "uniform(0.0, 1.0)" } },
        { "batch": 50 }]);
    Pipeline::of(json!({ "range": 20_000 }), steps)
}

fn start(cluster: &Cluster, p: &Pipeline, report: &str, more: &[&str]) -> caju_tests::process::Process {
    let mut args = vec!["--sharing", "exact", "--prefetch", "1MiB", "--report", report];
    args.extend(more);
    cluster.start_read(p, &args)
}

fn epoch(p: &Pipeline, report: &str) -> Value {
    let text = std::fs::read(p.folder().join(report)).unwrap();
    serde_json::from_slice::<Value>(&text).unwrap()["epochs"][0].clone()
}

/// The sum of a field of `shared`.
fn sum(epochs: &[Value], field: &str) -> u64 {
    epochs.iter().map(|e| e["shared"][field].as_u64().unwrap()).sum()
}

/// `--sharing`, `--trainer-id`, `--sharing-window`, `--sharing-backlog`: one trainer is paused, the other one
/// computes the rows for both, and each gets all of them.
#[test]
fn what_one_trainer_computed_the_other_one_reads() {
    let window = ["--sharing-window", "1GiB", "--sharing-backlog", "1GiB", "--sharing-wait", "200ms"];
    let worker = [&["--buffer", "1MiB"], &window[..]].concat();
    let cluster = Cluster::start_with(1, &[], &worker);
    let p = paced();
    let whole = p.report(&[]).checksums();
    let still = start(&cluster, &p, "one.json", &["--job", "trials", "--trainer-id", "one"]);
    cluster.wait_for_status("rows of the first trainer", |s| {
        (s["jobs"][0]["readers"][0]["rows"].as_u64()? > 0).then_some(())
    });
    still.signal("STOP");
    start(&cluster, &p, "two.json", &["--job", "trials", "--trainer-id", "two"]).wait().expect_code(0);
    let status = cluster.status();
    let job = status["jobs"].as_array().unwrap().iter().find(|j| j["job"] == "trials@one").unwrap();
    assert_eq!((&job["sharing"], &job["state"]), (&json!("exact"), &json!("running")));
    still.signal("CONT");
    still.wait().expect_code(0);
    let epochs = ["one.json", "two.json"].map(|report| epoch(&p, report));
    for e in &epochs {
        assert_eq!((&e["rows"], &e["rows_checksum"]), (&json!(20_000), &json!(whole[0])), "{e}");
        assert_eq!(e["shared"]["skipped"], 0);
    }
    let computed = sum(&epochs, "computed_rows");
    assert!((20_000..30_000).contains(&computed), "{computed} rows were computed: {epochs:?}");
    assert!(sum(&epochs, "window_hits") > 0 && sum(&epochs, "window_rows") > 10_000, "{epochs:?}");
    let usage = &cluster.status()["workers"][0]["usage"]["sharing"];
    assert!(usage["hits"].as_u64().unwrap() > 0 && usage["limit_bytes"] == 1u64 << 30, "{usage}");
    cluster.stop();
}

/// The rows that a stage of one job cannot take are not missing in another job that shares the stages above it.
#[test]
fn rows_that_one_job_skips_below_the_shared_stages_are_not_missing_in_another() {
    let window = ["--sharing-window", "1GiB", "--sharing-backlog", "1GiB", "--sharing-wait", "30s"];
    let pipeline = |batch: Value| {
        let list = json!({ "with_columns": { "l": "case when id % 100 = 40 then [1, 2, 3] else [1] end" } });
        let def = json!({ "source": { "range": 100_000 }, "steps": [list, batch], "on_error": { "skip": { "limit": 1000 } } });
        Pipeline::new(&def)
    };
    let padded = pipeline(json!({ "padded_batch": { "size": 10, "lengths": { "l": 2 } } }));
    let length = "1 / (cast(array_length(l) as bigint) - 3)";
    let bucket = pipeline(
        json!({ "bucket_by_length": { "length": length, "boundaries": [5], "batch_sizes": 10, "pad": false } }),
    );
    let plain = pipeline(json!({ "batch": 10 }));
    for jobs in [[&padded, &plain], [&bucket, &plain], [&plain, &padded], [&plain, &bucket]] {
        let cluster = Cluster::start_with(1, &[], &window);
        for (i, p) in jobs.into_iter().enumerate() {
            let report = format!("{i}.json");
            start(&cluster, p, &report, &["--job", &format!("job{i}")]).wait().expect_code(0);
            let e = epoch(p, &report);
            let skipped = if std::ptr::eq(p, &plain) { 0 } else { 1000 };
            assert_eq!(
                (&e["rows"], e["rows_skipped"].as_u64().unwrap_or(0)),
                (&json!(100_000 - skipped), skipped),
                "{e}"
            );
            assert!(i == 0 || e["shared"]["window_hits"].as_u64().unwrap() > 0, "they share: {e}");
        }
        cluster.stop();
    }
}

/// `--sharing-wait`: with `throttle` a job waits for one that is behind for this time, and no longer.
#[test]
fn the_sharing_wait_bounds_the_wait_for_a_paused_job() {
    let window = ["--sharing-window", "1MiB", "--sharing-lag", "throttle", "--sharing-wait", "5s"];
    let cluster = Cluster::start_with(1, &[], &[&["--buffer", "1MiB"], &window[..]].concat());
    let p = paced();
    let paused = start(&cluster, &p, "one.json", &["--job", "one"]);
    cluster.wait_for_status("rows of the first job", |s| {
        (s["jobs"][0]["readers"][0]["rows"].as_u64()? > 0).then_some(())
    });
    paused.signal("STOP");
    let began = Instant::now();
    start(&cluster, &p, "two.json", &["--job", "two"]).wait().expect_code(0);
    // 2 s are the default.
    assert!(began.elapsed() >= Duration::from_secs(5), "{:?}", began.elapsed());
    paused.signal("CONT");
    paused.wait().expect_code(0);
    cluster.stop();
}

/// `--sharing-lag`: with a window of half a split, and with none, every job gets its epoch.
#[test]
fn jobs_that_share_end_with_any_window() {
    for (window, lag) in
        [("1MiB", "throttle"), ("1MiB", "drop"), ("1MiB", "spill"), ("0", "spill"), ("0", "drop")]
    {
        let worker =
            ["--buffer", "1MiB", "--sharing-window", window, "--sharing-lag", lag, "--sharing-wait", "100ms"];
        let cluster = Cluster::start_with(2, &[], &worker);
        let p = wide();
        let whole = p.report(&[]).checksums();
        let readers = ["a", "b", "c"].map(|job| start(&cluster, &p, &format!("{job}.json"), &["--job", job]));
        for reader in readers {
            reader.wait().expect_code(0);
        }
        for job in ["a", "b", "c"] {
            let e = epoch(&p, &format!("{job}.json"));
            assert_eq!(e["rows_checksum"], json!(whole[0]), "window {window}, lag {lag}, job {job}: {e}");
        }
        let usage = &cluster.status()["workers"][0]["usage"]["sharing"];
        assert!(usage["peak_bytes"].as_u64().unwrap() <= 1 << 20, "window {window}, lag {lag}: {usage}");
        cluster.stop();
    }
}

/// A worker whose window has space for less than half of [`paced`], and that spills to a folder.
fn spilling(place: &Path) -> Vec<String> {
    let worker = "--buffer 1MiB --sharing-window 16MiB --sharing-wait 500ms --sharing-lag spill --sharing-spill-bytes 20MiB";
    let place = ["--sharing-spill-dir".to_string(), place.display().to_string()];
    worker.split(' ').map(String::from).chain(place).collect()
}

/// Starts a job and pauses it, and reads another one to its end.
fn lagging(cluster: &Cluster, p: &Pipeline, [slow, quick]: [&str; 2]) -> caju_tests::process::Process {
    let paused = start(cluster, p, &format!("{slow}.json"), &["--job", slow]);
    cluster.wait_for_status("rows of the slow job", |s| {
        let job = s["jobs"].as_array()?.iter().find(|j| j["job"] == slow)?;
        (job["readers"][0]["rows"].as_u64()? > 0).then_some(())
    });
    paused.signal("STOP");
    start(cluster, p, &format!("{quick}.json"), &["--job", quick]).wait().expect_code(0);
    paused
}

/// The files with spilled rows below a folder.
fn spilled(place: &Path) -> Vec<String> {
    below(place).into_iter().filter(|file| file.ends_with(".arrows")).collect()
}

/// `--sharing-lag spill`, `--sharing-spill-dir`, `--sharing-spill-bytes`: a paused job reads from files what did not fit in memory.
#[test]
fn a_lagging_job_reads_spilled_rows() {
    let place = tempfile::tempdir().unwrap();
    let worker = spilling(place.path());
    let mut cluster = Cluster::start_with(1, &[], &worker.iter().map(String::as_str).collect::<Vec<_>>());
    let p = paced();
    let whole = p.report(&[]).checksums();
    let paused = lagging(&cluster, &p, ["slow", "quick"]);
    let usage = cluster.wait_for_status("spilled rows", |s| {
        let usage = &s["workers"][0]["usage"]["sharing"];
        (usage["disk_bytes"].as_u64()? > 5 << 20).then(|| usage.clone())
    });
    assert_eq!(usage["disk_limit_bytes"], 20 << 20, "{usage}");
    let files = spilled(place.path());
    let bytes: u64 = files.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    assert!(bytes > 5 << 20 && bytes <= 20 << 20, "{bytes} bytes: {files:?}");
    paused.signal("CONT");
    paused.wait().expect_code(0);
    let epochs = ["slow.json", "quick.json"].map(|report| epoch(&p, report));
    for e in &epochs {
        assert_eq!((&e["rows"], &e["rows_checksum"]), (&json!(20_000), &json!(whole[0])), "{e}");
    }
    assert!(sum(&epochs, "read_back") > 0, "{epochs:?}");
    cluster.workers.remove(0).terminate().expect_code(0);
    assert_eq!(below(place.path()), Vec::<String>::new(), "a worker that ends leaves nothing");
    cluster.stop();
}

/// Another worker removes what one that was killed has left, and the lagging job gets its rows there.
#[test]
fn spilled_rows_of_a_killed_worker_are_swept_by_the_next_one() {
    let place = tempfile::tempdir().unwrap();
    let worker = spilling(place.path());
    let worker: Vec<&str> = worker.iter().map(String::as_str).collect();
    let mut cluster = Cluster::start_with(1, &[], &worker);
    let p = paced();
    let whole = p.report(&[]).checksums();
    let paused = lagging(&cluster, &p, ["slow", "quick"]);
    let killed = cluster.workers.remove(0);
    killed.process.signal("KILL");
    killed.process.wait_for_end();
    let left = below(place.path());
    assert!(!spilled(place.path()).is_empty(), "{left:?}");
    cluster.add_worker(&worker);
    let now = below(place.path());
    assert!(!left.iter().any(|file| now.contains(file)), "{left:?} {now:?}");
    paused.signal("CONT");
    paused.wait().expect_code(0);
    assert_eq!(epoch(&p, "slow.json")["rows_checksum"], json!(whole[0]));
    cluster.stop();
}

/// `--sharing-backlog`: a job that shares and is alone takes no more memory than that for it.
#[test]
fn a_job_that_is_alone_fills_no_window() {
    for backlog in ["0", "3MiB"] {
        let cluster = Cluster::start_with(1, &[], &["--sharing-backlog", backlog, "--sharing-wait", "60s"]);
        let p = wide();
        start(&cluster, &p, "alone.json", &["--job", "alone"]).wait().expect_code(0);
        assert_eq!(epoch(&p, "alone.json")["rows"], 20_000);
        let most = if backlog == "0" { 0 } else { 3 << 20 };
        // The worker reports it with a heartbeat.
        let usage = &cluster.wait_for_status("the use of the window", |s| {
            let usage = &s["workers"][0]["usage"]["sharing"];
            (most == 0 || usage["peak_bytes"].as_u64()? > 0).then(|| usage.clone())
        });
        let peak = usage["peak_bytes"].as_u64().unwrap();
        assert!(peak <= most && (peak > 0) == (most > 0), "backlog {backlog}: {usage}");
        cluster.stop();
    }
}

/// The files in memory that a process has open or mapped.
#[cfg(target_os = "linux")]
fn memory_files(pid: u32) -> usize {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let open = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    open.filter(|to| to.to_string_lossy().contains("memfd:caju")).count() + maps.matches("memfd:caju").count()
}

/// `--shared-memory`: trainers on the worker's machine map the same batches, and one that is killed frees its share.
#[cfg(target_os = "linux")]
#[test]
fn trainers_of_one_machine_map_one_copy_of_each_batch() {
    for memory in ["64MiB", "0"] {
        let worker = [
            &["--buffer", "1MiB", "--linger", "1s", "--sharing-wait", "200ms", "--sharing-window", "1GiB"][..],
            &["--sharing-backlog", "1GiB", "--shared-memory", memory],
        ];
        let cluster = Cluster::start_with(1, &["--client-timeout", "2s"], &worker.concat());
        // The first job must not be over before it is paused.
        let steps = json!([{ "sleep": { "per_row": "100us" } }, { "with_columns": { "pad": "repeat('x', 2000)" } },
            { "batch": 200 }]);
        let p =
            Pipeline::new(&json!({ "source": { "range": 20_000 }, "steps": steps, "deterministic": true }));
        let whole = p.report(&[]).checksums();
        let killed = start(&cluster, &p, "killed.json", &["--job", "killed"]);
        cluster.wait_for_status("rows of the first trainer", |s| {
            (s["jobs"][0]["readers"][0]["rows"].as_u64()? > 0).then_some(())
        });
        killed.signal("STOP");
        let others = ["a", "b"].map(|job| start(&cluster, &p, &format!("{job}.json"), &["--job", job]));
        for other in others {
            other.wait().expect_code(0);
        }
        let epochs = ["a.json", "b.json"].map(|report| epoch(&p, report));
        let mapped = epochs[0]["mapped_bytes"].as_u64().unwrap_or(0);
        for e in &epochs {
            assert_eq!((&e["rows"], &e["rows_checksum"]), (&json!(20_000), &json!(whole[0])), "{e}");
            assert_eq!(e["mapped_bytes"].as_u64().unwrap_or(0), mapped, "{e}");
        }
        let pid = cluster.workers[0].process.id();
        if memory == "0" {
            assert_eq!((mapped, memory_files(pid)), (0, 0));
        } else {
            // Each batch was put there once, by one of the three.
            assert!(mapped > 40_000_000 && sum(&epochs, "reused_bytes") >= mapped, "{epochs:?}");
            assert!(epochs.iter().all(|e| e["received_bytes"].is_null()), "{epochs:?}");
            assert!(memory_files(pid) > 0, "held for the one that stands still");
        }
        killed.signal("KILL");
        killed.wait();
        cluster.wait_for_status("the end of the task that nobody reads", |s| {
            let worker = &s["workers"][0];
            let held = &worker["usage"]["sharing"];
            let limit = if memory == "0" { 0 } else { 64 << 20 };
            assert_eq!(held["file_limit_bytes"], limit, "{held}");
            (worker["tasks"] == json!([]) && held["file_bytes"] == 0).then_some(())
        });
        assert_eq!(memory_files(pid), 0, "nothing is left of it");
        cluster.stop();
    }
}

/// `--sharing` without `--job`, and a trainer without `--sharing`, are refused with the reason.
#[test]
fn xtr_18_what_names_no_trainer_is_refused() {
    let cluster = Cluster::start(0);
    let p = wide();
    for (args, part) in [
        (&["--sharing", "exact"][..], "--job"),
        (&["--job", "a", "--sharing", "relaxd"], "relaxed"),
        (&["--job", "a", "--trainer-id", "one"], "--sharing"),
        (&["--job", "a", "--sharing", "exact", "--trainer-id", ""], "--trainer-id"),
        (&["--job", "a", "--sharing", "off", "--trainer-id", "one"], "belongs to sharing `exact`"),
    ] {
        let ended = cluster.read(&p, args);
        ended.expect_code(2);
        assert!(ended.stderr.contains(part), "{args:?}: {}", ended.stderr);
    }
    cluster.stop();
}

#[test]
fn xtr_20_jobs_that_share_survive_a_restart_of_the_dispatcher() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().display().to_string();
    let mut cluster = Cluster::start_with(2, &["--state-dir", &folder], &["--sharing-wait", "200ms"]);
    let p =
        Pipeline::of(json!({ "range": 60_000 }), json!([{ "burn": { "per_row": "50us" } }, { "batch": 50 }]));
    let whole = Pipeline::of(json!({ "range": 60_000 }), json!([{ "batch": 50 }])).report(&[]).checksums();
    let readers = ["a", "b"].map(|job| start(&cluster, &p, &format!("{job}.json"), &["--job", job]));
    cluster.wait_for_status("rows of both jobs", |s| {
        let jobs = s["jobs"].as_array()?;
        let rows = |j: &Value| j["readers"][0]["rows"].as_u64();
        (jobs.len() == 2 && jobs.iter().all(|j| rows(j) > Some(5_000))).then_some(())
    });
    cluster.dispatcher.process.signal("KILL");
    cluster.dispatcher.process.wait_for_end();
    cluster.return_dispatcher();
    for reader in readers {
        reader.wait().expect_code(0);
    }
    for job in ["a", "b"] {
        let e = epoch(&p, &format!("{job}.json"));
        assert_eq!((&e["rows"], &e["rows_checksum"]), (&json!(60_000), &json!(whole[0])), "{e}");
        // What tasks did before the restart counts too, or the report says what it does not know.
        let count = |field: &str| e["shared"][field].as_u64().unwrap_or_else(|| panic!("no {field}: {e}"));
        let (computed, window) = (count("computed_rows"), count("window_rows"));
        assert!(computed + window >= 60_000 || e["shared"]["unknown"].is_string(), "{e}");
    }
    cluster.stop();
}
