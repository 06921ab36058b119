//! `caju status`: the workers, jobs and saves of a dispatcher.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use caju_client::{Client, ClientConfig};
use caju_proto::v1::{GetStatusResponse, JobStatus, StageStats, WorkerStatus};
use caju_types::{Result, format_bytes, format_count, format_duration};
use serde_json::{Value, json};

use super::summary::{advice, splits};
use crate::cli::{StatusArgs, StatusFormat};
use crate::output;
use crate::report::SplitsReport;
use crate::text::{aligned, table, wrapped};

/// Prints the status.
///
/// # Errors
/// A dispatcher that does not answer.
pub(crate) async fn run(args: &StatusArgs) -> Result<()> {
    let config = ClientConfig { connect_timeout: args.connect_timeout, ..ClientConfig::default() };
    let status = Client::connect(&args.dispatcher, config).await?.status().await?;
    match args.format {
        StatusFormat::Text => output::say(text(&args.dispatcher, &status, args.all)),
        StatusFormat::Json => output::say(format_args!("{:#}", as_json(&status))),
    }
}

fn text(address: &str, status: &GetStatusResponse, all: bool) -> String {
    let mut out = format!(
        "dispatcher {address}, caju {}, up {}, journal {}",
        status.version,
        span(status.uptime_s),
        if status.journal.is_empty() { "in memory" } else { &status.journal }
    );
    if !status.cache_url.is_empty() {
        out.push_str(&format!(", cache {}", status.cache_url));
    }
    out.push_str("\n\n");
    if status.workers.is_empty() {
        out.push_str("no workers: start one with `caju worker --dispatcher ");
        out.push_str(&format!("{address}`\n"));
    } else {
        out.push_str(&workers(&status.workers));
    }
    out.push('\n');
    if status.jobs.is_empty() {
        out.push_str("no jobs: read something with `caju read FILE --dispatcher ");
        out.push_str(&format!("{address}`"));
    } else {
        let shown: Vec<&JobStatus> = match all {
            true => status.jobs.iter().collect(),
            false => recent(&status.jobs),
        };
        out.push_str(&jobs(&shown));
        if shown.len() < status.jobs.len() {
            let hidden = format_count((status.jobs.len() - shown.len()) as u64);
            out.push_str(&format!("\n{hidden} epochs that are over are not shown; --all shows them\n"));
        }
    }
    if !status.saves.is_empty() {
        let mut rows = vec![["save", "pipeline", "state", "splits", "rows"].map(String::from)];
        rows.extend(status.saves.iter().map(super::save::line));
        out.push('\n');
        out.push_str(&table(&rows));
    }
    out.trim_end().to_string()
}

fn workers(workers: &[WorkerStatus]) -> String {
    let mut rows = vec![["worker", "address", "state", "cores", "tasks", "silent", "tags"].map(String::from)];
    rows.extend(workers.iter().map(|w| {
        [
            w.worker_id.to_string(),
            w.address.clone(),
            w.state.clone(),
            w.cores.to_string(),
            w.tasks.len().to_string(),
            // The heartbeats of a lost worker are ignored.
            if w.state == "lost" { "-".to_string() } else { span(w.silent_s) },
            w.tags.join(","),
        ]
    }));
    table(&rows)
}

/// The number of ended jobs that are shown.
const ENDED_JOBS: usize = 10;

/// The running epochs, and the last epoch of each of the [`ENDED_JOBS`] jobs that began last.
fn recent(jobs: &[JobStatus]) -> Vec<&JobStatus> {
    let under_way = |j: &&JobStatus| state(j) == "running";
    let mut last: BTreeMap<&str, &JobStatus> = BTreeMap::new();
    for job in jobs.iter().filter(|j| !under_way(j)) {
        let kept = last.entry(&job.job).or_insert(job);
        if kept.iteration_id < job.iteration_id {
            *kept = job;
        }
    }
    let mut ended: Vec<&JobStatus> = last.into_values().collect();
    ended.sort_unstable_by_key(|j| std::cmp::Reverse(j.iteration_id));
    ended.truncate(ENDED_JOBS);
    let shown: BTreeSet<u64> = ended.iter().map(|j| j.iteration_id).collect();
    jobs.iter().filter(|j| under_way(j) || shown.contains(&j.iteration_id)).collect()
}

/// The state of an epoch. An epoch whose readers all left before its end is abandoned: it is idle until one returns.
fn state(job: &JobStatus) -> &str {
    match job.state.as_str() {
        "running" if job.clients == 0 && job.tasks == 0 => "abandoned",
        state => state,
    }
}

fn jobs(jobs: &[&JobStatus]) -> String {
    let head = ["job", "pipeline", "epoch", "state", "mode", "splits", "readers", "tasks", "policy"];
    let mut rows = vec![head.map(String::from)];
    let total = |j: &JobStatus| if j.splits_total > 0 { j.splits_total.to_string() } else { "?".into() };
    rows.extend(jobs.iter().map(|j| {
        [
            j.job.clone(),
            j.pipeline.clone(),
            j.epoch.to_string(),
            state(j).to_string(),
            j.mode.clone(),
            format!("{}/{}", j.splits_leased, total(j)),
            j.clients.to_string(),
            j.tasks.to_string(),
            j.policy.clone(),
        ]
    }));
    let mut out = aligned(&rows, 8);
    for (i, job) in jobs.iter().enumerate() {
        // The epochs of a job share its decision, which is shown with the last one.
        if !jobs[i + 1..].iter().any(|later| later.job == job.job) {
            caching(job, &mut out);
        }
    }
    for job in jobs.iter().filter(|j| {
        ["running", "abandoned"].contains(&state(j)) || j.failure.is_some() || j.incomplete.is_some()
    }) {
        out.push_str(&details(job));
    }
    out
}

/// What is stored of a job, the execution modes of its last epoch, and the reason.
fn caching(job: &JobStatus, out: &mut String) {
    if ["", "compute"].contains(&job.policy.as_str()) {
        return;
    }
    let modes = job.modes.unwrap_or_default();
    let ran = splits(SplitsReport {
        compute: modes.compute,
        put: modes.put,
        get: modes.get,
        fell_back: modes.fell_back,
        backfilled: modes.kept,
        kept: modes.kept,
    });
    let ran = if ran.is_empty() { ran } else { format!("; splits of ended tasks: {ran}") };
    let stored = match job.caching.as_str() {
        "" if job.decision_json.is_empty() && ["auto", "cachew"].contains(&job.policy.as_str()) => {
            "not decided yet"
        }
        "" => "everything is computed",
        caching => caching,
    };
    let head = format!("{} (policy {}): {stored}{ran}", job.job, job.policy);
    out.push_str(&format!("\n{}\n", wrapped(&head, 2)));
    let decision: Option<Value> = serde_json::from_str(&job.decision_json).ok();
    if let Some(reason) = decision.as_ref().and_then(|d| d["reason"].as_str()) {
        out.push_str(&format!("  {}\n", wrapped(reason, 2)));
    }
}

/// The stages of a job: their rows and their rates while busy.
fn details(job: &JobStatus) -> String {
    let mut out = format!("\n{} epoch {}", job.job, job.epoch);
    if let Some(f) = &job.failure {
        let message = f.message.lines().collect::<Vec<_>>().join("\n    ");
        out.push_str(&format!("\n  failed: {}: {message}\n", f.kind));
        return out;
    }
    if let Some(i) = &job.incomplete {
        let rows = match i.rows_unknown {
            true => "an unknown number of".to_string(),
            false => format_count(i.rows_missing),
        };
        out.push_str(&format!(
            "\n  {}\n",
            wrapped(&format!("incomplete: {rows} rows are missing: {}", i.why), 2)
        ));
        if job.state == "incomplete" {
            return out;
        }
    }
    if !job.bottleneck.is_empty() {
        out.push_str(&format!(", bottleneck {}: {}", job.bottleneck, advice(&job.bottleneck)));
    }
    out.push('\n');
    let mut rows = vec![
        ["stage", "rows in", "rows out", "bytes out", "busy", "at once", "CPU", "rows/busy s"]
            .map(String::from),
    ];
    rows.extend(job.stages.iter().map(|s| {
        [
            s.name.clone(),
            format_count(s.rows_in),
            format_count(s.rows_out),
            format_bytes(s.bytes_out),
            span(s.busy_s),
            format_count(u64::from(s.at_once)),
            span(s.cpu_s),
            rate(s).map_or("-".into(), format_count),
        ]
    }));
    out.push_str(&table(&rows));
    out
}

/// Rows per second of busy time, of one thread.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate for people; saturates")]
fn rate(s: &StageStats) -> Option<u64> {
    let busy = s.busy_s.max(s.cpu_s);
    (busy > 0.0).then(|| (s.rows_in.max(s.rows_out) as f64 / busy).round() as u64)
}

fn span(seconds: f64) -> String {
    format_duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

fn as_json(s: &GetStatusResponse) -> Value {
    let workers: Vec<Value> = s
        .workers
        .iter()
        .map(|w| {
            json!({"worker_id": w.worker_id, "address": w.address, "tags": w.tags, "cores": w.cores,
               "silent_s": w.silent_s, "state": w.state, "tasks": w.tasks, "slot": w.slot})
        })
        .collect();
    let jobs: Vec<Value> = s.jobs.iter().map(job_json).collect();
    json!({"schema": "caju.status/v1", "version": s.version, "uptime_s": s.uptime_s, "workers": workers,
           "jobs": jobs, "saves": s.saves.iter().map(super::save::as_json).collect::<Vec<_>>(), "cache_url": s.cache_url, "journal": s.journal,
           "configured_workers": s.configured_workers})
}

fn job_json(j: &JobStatus) -> Value {
    let stages: Vec<Value> = j
        .stages
        .iter()
        .map(|s| {
            json!({"name": s.name, "rows_in": s.rows_in, "rows_out": s.rows_out, "bytes_out": s.bytes_out,
               "cpu_s": s.cpu_s, "busy_s": s.busy_s, "wait_in_s": s.wait_in_s, "wait_out_s": s.wait_out_s,
               "at_once": s.at_once})
        })
        .collect();
    let failure = j.failure.as_ref().map(|f| json!({"kind": f.kind, "message": f.message}));
    let incomplete = j.incomplete.as_ref().map(|i| {
        json!({"rows_missing": i.rows_missing, "splits": i.splits, "why": i.why,
               "rows_taken_by_lost_readers": i.rows_taken_by_lost_readers, "rows_unknown": i.rows_unknown})
    });
    json!({"job": j.job, "incomplete": incomplete, "dataset_id": j.dataset_id, "pipeline": j.pipeline, "iteration_id": j.iteration_id,
           "epoch": j.epoch, "state": j.state, "mode": j.mode, "splits_total": j.splits_total,
           "splits_leased": j.splits_leased, "clients": j.clients, "tasks": j.tasks, "failure": failure,
           "target_workers": j.target_workers, "num_consumers": j.num_consumers,
           "surplus_elements": j.surplus_elements, "padded_elements": j.padded_elements,
           "bottleneck": j.bottleneck, "stages": stages, "policy": j.policy, "caching": j.caching,
           "shard_by": Some(&j.shard_by).filter(|by| !by.is_empty()), "num_shards": j.num_shards,
           "modes": modes_json(j), "io": io_json(j), "rows_skipped": j.rows_skipped, "first_skips": j.first_skips,
           "decision": document(&j.decision_json), "profile": document(&j.profile_json)})
}

/// The splits of ended tasks by execution mode, as in `caju.run/v1`.
fn modes_json(j: &JobStatus) -> Value {
    let m = j.modes.unwrap_or_default();
    json!({"compute": m.compute, "put": m.put, "get": m.get, "fell_back": m.fell_back, "backfilled": m.kept,
           "kept": m.kept})
}

fn io_json(j: &JobStatus) -> Value {
    let io = j.io.unwrap_or_default();
    json!({"source_bytes_read": io.source_bytes_read, "source_requests": io.source_requests,
           "cache_bytes_read": io.cache_bytes_read, "cache_bytes_written": io.cache_bytes_written})
}

/// A recorded JSON document, or null.
fn document(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_dispatcher_tells_what_to_do() {
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
            decision_json: r#"{"reason": "Because."}"#.into(),
            modes: Some(caju_proto::v1::SplitModes { compute: 2, put: 1, ..Default::default() }),
            ..Default::default()
        };
        let worker = WorkerStatus {
            worker_id: 4,
            address: "h:2".into(),
            state: "active".into(),
            ..Default::default()
        };
        let status = GetStatusResponse { jobs: vec![job], workers: vec![worker], ..Default::default() };
        let shown = text("h:1", &status, false);
        assert!(
            shown.contains("3/9")
                && shown.contains("bottleneck 1.map")
                && shown.contains("250")
                && shown.contains(" 17 "),
            "{shown}"
        );
        for words in ["run-1 (policy auto): hint `a` as arrow/none", "2 computed, 1 stored", "Because."] {
            assert!(shown.contains(words), "`{words}` is not in\n{shown}");
        }
        let json = as_json(&status);
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
        assert!(
            shown.contains(" 430 ") && shown.contains("421 epochs that are over are not shown"),
            "{shown}"
        );
        let left = shown.lines().find(|l| l.contains(" left ")).unwrap();
        assert!(left.contains("abandoned"), "{left}");
        let all = text("h:1", &status, true);
        assert!(all.contains("job-0 ") && !all.contains("--all"), "{all}");
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
}
