//! `caju status`: the workers, jobs and saves of a dispatcher.

mod jobs;
mod json;
#[cfg(test)]
mod tests;

use std::time::Duration;

use caju_client::{Client, ClientConfig};
use caju_proto::v1::{CacheSize, GetStatusResponse, JobStatus, JobWorkers, SharingUsage, WorkerStatus};
use caju_types::{Result, format_bytes, format_count, format_duration};

use crate::cli::{StatusArgs, StatusFormat};
use crate::output;
use crate::text::{table, wrapped};

/// Prints the status.
///
/// # Errors
/// A dispatcher that does not answer.
pub(crate) async fn run(args: &StatusArgs) -> Result<()> {
    let config = ClientConfig { connect_timeout: args.connect_timeout, ..ClientConfig::default() };
    let status = Client::connect(&args.dispatcher, config).await?.status().await?;
    match args.format {
        StatusFormat::Text => output::say(text(&args.dispatcher, &status, args.all)),
        StatusFormat::Json => output::say(format_args!("{:#}", json::status(&status))),
    }
}

/// What each job gets of the target, if there are several with something to tell apart.
fn shares(jobs: &[JobWorkers]) -> String {
    let is_short = |j: &JobWorkers| j.workers > 0 && j.share + 0.05 < j.workers as f64 - 1.0;
    let differs = |j: &JobWorkers| j.priority != 0 || (j.weight - 1.0).abs() > 1e-9;
    if jobs.len() < 2 || !jobs.iter().any(|j| is_short(j) || differs(j)) {
        return String::new();
    }
    let mut rows = vec![["job", "priority", "weight", "needs", "share of the target"].map(String::from)];
    rows.extend(jobs.iter().map(|j| {
        let known = |text: String| if j.workers > 0 { text } else { "?".into() };
        let (needs, share) = (known(j.workers.to_string()), known(format!("{:.1}", j.share)));
        [j.job.clone(), j.priority.to_string(), j.weight.to_string(), needs, share]
    }));
    table(&rows)
}

fn text(address: &str, status: &GetStatusResponse, all: bool) -> String {
    let mut out = format!(
        "dispatcher {address}, caju {}, up {}, journal {}",
        status.version,
        span(status.uptime_s),
        if status.journal.is_empty() { "in memory" } else { &status.journal }
    );
    if !status.cache_url.is_empty() {
        let size = status.cache.map(cache_size).unwrap_or_default();
        out.push_str(&format!(", cache {}{size}", status.cache_url));
    }
    out.push_str("\n\n");
    if status.workers.is_empty() {
        out.push_str("no workers: start one with `caju worker --dispatcher ");
        out.push_str(&format!("{address}`\n"));
    } else {
        out.push_str(&workers(&status.workers));
        out.push_str(&windows(&status.workers));
    }
    if let Some(scaling) = &status.scaling {
        let s = if scaling.target_workers == 1 { "" } else { "s" };
        let target =
            format!("target: {} worker{s}. {}", format_count(scaling.target_workers), scaling.reason);
        out.push_str(&format!("{}\n", wrapped(&target, 0)));
        out.push_str(&shares(&scaling.jobs));
    }
    out.push('\n');
    if status.jobs.is_empty() {
        out.push_str("no jobs: read something with `caju read FILE --dispatcher ");
        out.push_str(&format!("{address}`"));
    } else {
        let shown: Vec<&JobStatus> = match all {
            true => status.jobs.iter().collect(),
            false => jobs::recent(&status.jobs),
        };
        out.push_str(&jobs::text(&shown, &status.cache_url));
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

/// What the cache's root holds.
fn cache_size(size: CacheSize) -> String {
    let of = match size.budget_bytes {
        0 => String::new(),
        budget => format!(" of {}", format_bytes(budget)),
    };
    format!(" ({}{of} in {} snapshots)", format_bytes(size.bytes), format_count(size.snapshots))
}

fn workers(workers: &[WorkerStatus]) -> String {
    let head =
        ["worker", "address", "state", "cores", "tasks", "rows sent", "memory", "cached", "silent", "tags"];
    let mut rows = vec![head.map(String::from)];
    rows.extend(workers.iter().map(|w| {
        let (served, usage) = (w.served.unwrap_or_default(), w.usage.unwrap_or_default());
        let known = |bytes: u64| if w.usage.is_some() { format_bytes(bytes) } else { "-".to_string() };
        [
            w.worker_id.to_string(),
            w.address.clone(),
            w.state.clone(),
            w.cores.to_string(),
            w.tasks.len().to_string(),
            format_count(served.rows),
            known(usage.rss_bytes),
            known(usage.memory_tier_bytes + usage.disk_tier_bytes),
            // The heartbeats of a lost worker are ignored.
            if w.state == "lost" { "-".to_string() } else { span(w.silent_s) },
            w.tags.join(","),
        ]
    }));
    table(&rows)
}

/// The windows of shared rows that are in use.
fn windows(workers: &[WorkerStatus]) -> String {
    let used = workers.iter().filter_map(|w| Some((w.worker_id, w.usage?.sharing?)));
    let used = used.filter(|(_, s)| s.bytes + s.hits + s.misses > 0);
    let line = |(worker, s): (u64, SharingUsage)| {
        let line = format!(
            "window of shared rows of worker {worker}: {} of {}; {} splits read from it, {} computed, {} evicted unread",
            format_bytes(s.bytes),
            format_bytes(s.limit_bytes),
            format_count(s.hits),
            format_count(s.misses),
            format_count(s.evicted_unread)
        );
        format!("{}\n", wrapped(&line, 0))
    };
    used.map(line).collect()
}

fn span(seconds: f64) -> String {
    format_duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}
