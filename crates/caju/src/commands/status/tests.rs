//! What the text and the JSON of a status show.

use caju_planner::Choice;
use caju_proto::v1::{
    CacheSize, JobStatus, ReaderStatus, SharedUse, SharingUsage, SplitStates, StageStats, TaskServed,
    TunedSetting, WorkerStatus, WorkerUsage,
};

use serde_json::{Value, json};

use super::*;
use crate::commands::decision::tests::decision;

#[test]
fn an_idle_dispatcher_says_what_to_do() {
    let text = text("h:1", &GetStatusResponse::default(), false);
    assert!(text.contains("caju worker --dispatcher h:1") && text.contains("caju read FILE"), "{text}");
}

#[test]
fn a_running_job_shows_its_stages() {
    let stage = StageStats {
        name: "1.map".into(),
        rows_in: 500,
        rows_out: 500,
        busy_s: 2.0,
        at_once: 17,
        ..Default::default()
    };
    let job = JobStatus {
        job: "run-1".into(),
        state: "running".into(),
        clients: 1,
        splits_leased: 3,
        splits_total: 9,
        bottleneck: "1.map".into(),
        stages: vec![stage],
        policy: "auto".into(),
        caching: "hint `a` as arrow/none".into(),
        decision_json: decision(Choice::Compute, "Because.").to_json(),
        modes: Some(caju_proto::v1::SplitModes { compute: 2, put: 1, ..Default::default() }),
        ..Default::default()
    };
    let worker =
        WorkerStatus { worker_id: 4, address: "h:2".into(), state: "active".into(), ..Default::default() };
    let status = GetStatusResponse { jobs: vec![job], workers: vec![worker], ..Default::default() };
    let shown = text("h:1", &status, false);
    assert!(
        shown.contains("3/9")
            && shown.contains("bottleneck 1.map")
            && shown.contains("250")
            && shown.contains(" 17 "),
        "{shown}"
    );
    let words_shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in
        ["run-1 (policy auto): hint `a` as arrow/none", "2 computed, 1 computed and stored", "Because."]
    {
        assert!(words_shown.contains(words), "`{words}` is not in\n{shown}");
    }
    let json = json::status(&status);
    assert_eq!(json["jobs"][0]["decision"]["reason"], "Because.");
    assert!(json["jobs"][0]["profile"].is_null());
    assert_eq!(json["jobs"][0]["stages"][0]["rows_out"], 500);
    assert_eq!(json["workers"][0]["state"], "active");
}

fn job(n: u64, name: &str, state: &str) -> JobStatus {
    JobStatus {
        job: name.into(),
        iteration_id: n,
        epoch: n,
        state: state.into(),
        clients: 1,
        ..Default::default()
    }
}

#[test]
fn epochs_that_are_over_are_collapsed() {
    let mut jobs: Vec<JobStatus> = (0..400).map(|n| job(n, &format!("job-{n}"), "finished")).collect();
    jobs.extend((400..430).map(|n| job(n, "long", "finished")));
    jobs.push(job(430, "long", "running"));
    jobs.push(JobStatus { clients: 0, ..job(431, "left", "running") });
    let status = GetStatusResponse { jobs, ..Default::default() };
    let shown = text("h:1", &status, false);
    assert!(shown.lines().count() < 30, "{shown}");
    assert!(shown.contains("job-399") && shown.contains(" 429 ") && !shown.contains(" 428 "), "{shown}");
    assert!(shown.contains(" 430 ") && shown.contains("421 epochs that are over are not shown"), "{shown}");
    let left = shown.lines().find(|l| l.contains(" left ")).unwrap();
    assert!(left.contains("abandoned"), "{left}");
    let all = text("h:1", &status, true);
    assert!(all.contains("job-0 ") && !all.contains("--all"), "{all}");
}

#[test]
fn an_abandoned_epoch_says_what_is_left_of_it() {
    let shown = |rows_waiting, uncounted| {
        let splits = Some(SplitStates { waiting: 3, rows_waiting, uncounted, ..Default::default() });
        let job = JobStatus { clients: 0, splits, ..job(1, "left", "running") };
        let status = GetStatusResponse { jobs: vec![job], ..Default::default() };
        assert_eq!(json::status(&status)["jobs"][0]["splits"]["rows_waiting"], rows_waiting);
        text("h:1", &status, false)
    };
    assert!(shown(1180, 0).contains("abandoned: 1,180 rows are with no reader (splits that wait: 3)"));
    assert!(shown(1180, 1).contains("abandoned: at least 1,180 rows are with no reader"));
    assert!(shown(0, 3).contains("abandoned: rows are with no reader"));
}

#[test]
fn tables_keep_their_shape_whatever_messages_hold() {
    let failure = caju_proto::v1::Failure {
        kind: "invalid argument".into(),
        message: "raised ValueError\nFile \"x.py\", line 3".into(),
    };
    let save = caju_proto::v1::SaveStatus {
        url: "file:///s".into(),
        state: "failed".into(),
        failure: Some(failure.clone()),
        ..Default::default()
    };
    let lost = WorkerStatus { worker_id: 7, state: "lost".into(), ..Default::default() };
    let jobs = vec![JobStatus { failure: Some(failure), ..job(1, "a", "failed") }];
    let status = GetStatusResponse { jobs, saves: vec![save], workers: vec![lost], ..Default::default() };
    let shown = text("h:1", &status, false);
    let row = shown.lines().find(|l| l.contains("file:///s")).unwrap();
    assert!(row.ends_with("raised ValueError [...]"), "{shown}");
    assert!(shown.contains("raised ValueError\n    File \"x.py\""), "{shown}");
    let worker = shown.lines().find(|l| l.contains("lost")).unwrap();
    assert!(worker.contains(" -") && !worker.contains("us"), "{worker}");
}

#[test]
fn readers_that_take_nothing_come_first() {
    let reader = |n: u64, busy: f64| ReaderStatus {
        client_id: n,
        elements: 10 * n,
        rows_waiting: 77,
        user_busy_s: busy,
        wait_fraction: 0.5,
        ..Default::default()
    };
    let mut readers: Vec<ReaderStatus> = (1..=12).map(|n| reader(n, 0.0)).collect();
    readers.push(ReaderStatus { consumer: 4, elements_behind: 5, consumer_wait_s: 3.0, ..reader(13, 90.0) });
    let served =
        TaskServed { elements: 120, rows: 4321, source_opens: 19, bytes: 5 << 20, ..Default::default() };
    let job = JobStatus {
        readers,
        splits: Some(SplitStates { waiting: 81, leased: 4, sent: 3, done: 12, ..Default::default() }),
        served: Some(served),
        balance: "bucket".into(),
        rounds: 1234,
        ..job(1, "a", "running")
    };
    let usage = WorkerUsage { rss_bytes: 300 << 20, memory_tier_bytes: 7 << 20, ..Default::default() };
    let tuned = |name: &str, job: &str, value| TunedSetting {
        name: name.into(),
        job: job.into(),
        value,
        reason: "it pays".into(),
    };
    let tuned = vec![tuned("cpu_threads", "", 8), tuned("readers", "a", 12)];
    let worker =
        WorkerStatus { worker_id: 4, served: Some(served), usage: Some(usage), tuned, ..Default::default() };
    let cache = CacheSize { bytes: 3 << 30, budget_bytes: 5 << 30, snapshots: 2, age_s: 0.1 };
    let status = GetStatusResponse {
        jobs: vec![job],
        workers: vec![worker],
        cache_url: "s3://c".into(),
        cache: Some(cache),
        ..Default::default()
    };
    let shown = text("h:1", &status, false);
    for words in [
        "cache s3://c (3.00 GiB of 5.00 GiB in 2 snapshots)",
        "splits: 81 waiting, 4 running, 3 sent, 12 done; opened at the source: 19",
        "4,321",
        "rounds (bucket): 1,234 taken by all; waited for other consumers: consumer 3 3",
        "300.00 MiB",
        "waits 50 %",
        "3 more readers",
    ] {
        assert!(shown.contains(words), "`{words}` is not in\n{shown}");
    }
    let at = |words: &str| shown.find(words).unwrap_or_else(|| panic!("`{words}` is not in\n{shown}"));
    assert!(at("consumer 3 (client-13)") < at("client-1 "), "{shown}");
    assert!(shown.contains("busy 1 min 30 s"), "{shown}");
    let json = json::status(&status);
    assert_eq!(json["jobs"][0]["readers"][12]["consumer"], 3);
    assert_eq!(json["jobs"][0]["readers"][12]["consumer_wait_s"], 3.0);
    assert_eq!((&json["jobs"][0]["balance"], &json["jobs"][0]["rounds"]), (&"bucket".into(), &1234.into()));
    assert_eq!(json["jobs"][0]["readers"][0]["rows_waiting"], 77);
    assert_eq!(json["jobs"][0]["splits"]["sent"], 3);
    assert_eq!(json["jobs"][0]["served"]["source_opens"], 19);
    assert_eq!(json["workers"][0]["usage"]["rss_bytes"], 300 << 20);
    let tuning = &json["workers"][0]["tuning"];
    assert_eq!((&tuning[0]["setting"], &tuning[0]["job"]), (&"cpu_threads".into(), &Value::Null));
    assert_eq!((&tuning[1]["job"], &tuning[1]["value"]), (&"a".into(), &12.into()));
    assert_eq!(tuning[1]["reason"], "it pays");
    assert_eq!(json["cache"]["budget_bytes"], 5u64 << 30);
}

#[test]
fn jobs_that_share_are_named_with_what_they_read_of_each_other() {
    let shared = SharedUse {
        computed_rows: 1_500,
        window_rows: 4_500,
        window_hits: 9,
        taken_over: 1,
        skipped_rows: 77,
        reused_bytes: 3 << 20,
        read_back: 2,
        unreported_tasks: 1,
    };
    let served =
        TaskServed { shared: Some(shared), mapped_bytes: 4 << 20, sent_bytes: 12, ..Default::default() };
    let reader = |client_id: u64, rows: u64| ReaderStatus { client_id, rows, ..Default::default() };
    let shares = JobStatus {
        readers: vec![reader(11, 900)],
        sharing: "exact".into(),
        shares_with: vec!["b epoch 0".into(), "c epoch 2".into()],
        served: Some(served),
        ..job(1, "a", "running")
    };
    let behind =
        JobStatus { epoch: 0, readers: vec![reader(12, 850), reader(13, 901)], ..job(3, "b", "running") };
    let sharing = SharingUsage {
        bytes: 7 << 20,
        limit_bytes: 1 << 30,
        hits: 9,
        misses: 3,
        file_bytes: 5 << 20,
        disk_bytes: 6 << 20,
        disk_limit_bytes: 8 << 20,
        spilled_bytes: 9 << 20,
        read_back: 4,
        spill_errors: 1,
        ..Default::default()
    };
    let usage = WorkerUsage { sharing: Some(sharing), ..Default::default() };
    let worker = WorkerStatus { worker_id: 4, usage: Some(usage), ..Default::default() };
    let status = GetStatusResponse {
        jobs: vec![shares, behind, job(2, "d", "running")],
        workers: vec![worker],
        ..Default::default()
    };
    let shown = text("h:1", &status, false);
    let line = "sharing exact with b epoch 0, c epoch 2: 1,500 rows computed, 4,500 rows of 9 splits from others, 2 of these splits in part from disk, 77 rows skipped, 1 tasks lost or taken over without a last report, 4.00 MiB in shared memory, of which 3.00 MiB are common with others; the slowest reader: client-12 of b epoch 0, with 850 rows";
    assert_eq!(shown.matches("sharing").count(), 1, "{shown}");
    let window = "window of shared rows of worker 4: 7.00 MiB of 1.00 GiB; 9 splits read from it, 3 computed, 0 evicted unread";
    assert!(shown.split_whitespace().collect::<Vec<_>>().join(" ").contains(window), "{shown}");
    assert!(shown.split_whitespace().collect::<Vec<_>>().join(" ").contains(line), "{shown}");
    let json = json::status(&status);
    assert_eq!(json["jobs"][0]["served"]["shared"]["window_hits"], 9);
    assert_eq!(json["jobs"][0]["served"]["shared"]["reused_bytes"], 3 << 20);
    assert_eq!(json["jobs"][0]["served"]["mapped_bytes"], 4 << 20);
    assert_eq!(json["jobs"][0]["served"]["sent_bytes"], 12);
    assert_eq!(json["workers"][0]["usage"]["sharing"]["file_bytes"], 5 << 20);
    let of_worker = &json["workers"][0]["usage"]["sharing"];
    assert_eq!(
        (&of_worker["disk_bytes"], &of_worker["disk_limit_bytes"]),
        (&json!(6 << 20), &json!(8 << 20))
    );
    assert_eq!((&of_worker["spilled_bytes"], &of_worker["read_back"]), (&json!(9 << 20), &json!(4)));
    assert_eq!(
        (&of_worker["spill_errors"], &json["jobs"][0]["served"]["shared"]["read_back"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(json["jobs"][0]["shares_with"][1], "c epoch 2");
    assert!(json["jobs"][2]["sharing"].is_null() && json["jobs"][2]["served"].is_null());
    assert_eq!(json["workers"][0]["usage"]["sharing"]["bytes"], 7 << 20);
}
