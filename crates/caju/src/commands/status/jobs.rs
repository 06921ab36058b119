//! The jobs of a dispatcher as text.

use std::collections::{BTreeMap, BTreeSet};

use caju_planner::Policy;
use caju_proto::v1::{JobStatus, ReaderStatus, StageStats};
use caju_types::{ClientId, format_bytes, format_count};

use super::span;
use crate::commands::bottleneck::advice;
use crate::commands::boundaries;
use crate::commands::decision::{decision, is_undecided, marked_reason, policy};
use crate::commands::setting::{Location, Locations};
use crate::commands::summary::splits;
use crate::report::SplitsReport;
use crate::text::{aligned, table, wrapped};

/// The number of ended jobs that are shown.
const ENDED_JOBS: usize = 10;

/// The running epochs, and the last epoch of each of the [`ENDED_JOBS`] jobs that began last.
pub(super) fn recent(jobs: &[JobStatus]) -> Vec<&JobStatus> {
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

pub(super) fn text(jobs: &[&JobStatus], cache_url: &str) -> String {
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
    for job in jobs.iter().filter(|j| !j.source_changed.is_empty()) {
        let line = format!("{} epoch {}: warning: {}", job.job, job.epoch, job.source_changed);
        out.push_str(&format!("\n{}\n", wrapped(&line, 2)));
    }
    for job in jobs.iter().filter(|j| {
        ["running", "abandoned"].contains(&state(j)) || j.failure.is_some() || j.incomplete.is_some()
    }) {
        out.push_str(&details(job, jobs, cache_url));
    }
    out
}

/// What is stored of a job, the execution modes of its last epoch, and the reason.
fn caching(job: &JobStatus, out: &mut String) {
    if job.policy.is_empty() || policy(job) == Some(Policy::Compute) {
        return;
    }
    let modes = job.modes.unwrap_or_default();
    let ran = splits(SplitsReport {
        compute: modes.compute,
        put: modes.put,
        get: modes.get,
        fell_back: modes.fell_back,
        backfilled: modes.backfilled,
        kept: modes.backfilled,
    });
    let ran = if ran.is_empty() { ran } else { format!("; splits of ended tasks: {ran}") };
    let stored = match job.caching.as_str() {
        "" if is_undecided(job) => "not decided yet",
        "" => "everything is computed",
        caching => caching,
    };
    let head = format!("{} (policy {}): {stored}{ran}", job.job, job.policy);
    out.push_str(&format!("\n{}\n", wrapped(&head, 2)));
    if let Some(decision) = decision(job) {
        out.push_str(&format!("  {}\n", wrapped(&marked_reason(&decision.reason), 2)));
    }
}

/// The stages of a job: their rows and their rates while busy.
fn details(job: &JobStatus, all: &[&JobStatus], cache_url: &str) -> String {
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
        // The status does not say where the source is.
        let locations = Locations { cache: Location::of(cache_url), ..Locations::default() };
        let advice = advice(&job.bottleneck, job, locations);
        out.push_str(&format!(", bottleneck {}: {advice}", job.bottleneck));
    }
    out.push('\n');
    if state(job) == "abandoned" {
        out.push_str(&format!("  {}\n", wrapped(&abandoned(job), 2)));
    }
    progress(job, all, &mut out);
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

/// What is left of an epoch whose readers have all left.
fn abandoned(job: &JobStatus) -> String {
    let splits = job.splits.unwrap_or_default();
    let rows = match (splits.rows_waiting, splits.uncounted) {
        (0, _) => "rows".to_string(),
        (rows, 0) => format!("{} rows", format_count(rows)),
        (rows, _) => format!("at least {} rows", format_count(rows)),
    };
    format!(
        "abandoned: {rows} are with no reader (splits that wait: {}); the next reader of this job gets them",
        format_count(splits.waiting)
    )
}

/// The readers of an epoch that are shown.
const SHOWN_READERS: usize = 10;

/// Where the splits of an epoch are, and how far its readers are: those first whose users take nothing.
fn progress(job: &JobStatus, all: &[&JobStatus], out: &mut String) {
    let (splits, served) = (job.splits.unwrap_or_default(), job.served.unwrap_or_default());
    out.push_str(&format!(
        "  splits: {} waiting, {} running, {} sent, {} done; opened at the source: {}; sent: {} elements, {}\n",
        format_count(splits.waiting),
        format_count(splits.leased),
        format_count(splits.sent),
        format_count(splits.done),
        format_count(served.source_opens),
        format_count(served.elements),
        format_bytes(served.bytes)
    ));
    for learnt in boundaries::of_job(job) {
        out.push_str(&format!("  boundaries: {learnt}\n"));
    }
    sharing(job, all, out);
    if job.readers.is_empty() {
        return;
    }
    if job.workers_wanted > 0 {
        out.push_str(&format!("  workers that would keep its readers busy: {}\n", job.workers_wanted));
    }
    if !job.balance.is_empty() {
        let waits = job
            .readers
            .iter()
            .filter(|r| r.consumer > 0)
            .map(|r| format!("consumer {} {}", r.consumer - 1, span(r.consumer_wait_s)));
        out.push_str(&format!(
            "  rounds ({}): {} taken by all; waited for other consumers: {}\n",
            job.balance,
            format_count(job.rounds),
            waits.take(SHOWN_READERS).collect::<Vec<_>>().join(", ")
        ));
    }
    let mut readers: Vec<&ReaderStatus> = job.readers.iter().collect();
    readers.sort_by(|a, b| b.user_busy_s.total_cmp(&a.user_busy_s).then(b.rows_waiting.cmp(&a.rows_waiting)));
    let head = ["reader", "elements", "rows", "rows/s", "behind", "rows ready", "its user", "silent"];
    let mut rows = vec![head.map(String::from)];
    rows.extend(readers.iter().take(SHOWN_READERS).map(|r| {
        [
            reader(r),
            format_count(r.elements),
            format_count(r.rows),
            format_count(rounded(r.rows_per_s)),
            format_count(r.elements_behind),
            format_count(r.rows_waiting),
            match r.user_busy_s > 0.0 {
                true => format!("busy {}", span(r.user_busy_s)),
                false => format!("waits {:.0} %", 100.0 * r.wait_fraction),
            },
            span(r.silent_s),
        ]
    }));
    out.push_str(&table(&rows));
    if let Some(more) = readers.len().checked_sub(SHOWN_READERS).filter(|more| *more > 0) {
        out.push_str(&format!("  {} more readers: --format json shows them\n", format_count(more as u64)));
    }
}

/// With whom a job shares, what that saved it, and who is the last of them.
fn sharing(job: &JobStatus, all: &[&JobStatus], out: &mut String) {
    if job.sharing.is_empty() {
        return;
    }
    let shared = job.served.and_then(|s| s.shared).unwrap_or_default();
    let with = match job.shares_with.is_empty() {
        true => "no running job".to_string(),
        false => job.shares_with.join(", "),
    };
    let mut line = format!(
        "sharing {} with {with}: {} rows computed, {} rows of {} splits from others",
        job.sharing,
        format_count(shared.computed_rows),
        format_count(shared.window_rows),
        format_count(shared.window_hits)
    );
    if shared.read_back > 0 {
        line += &format!(", {} of these splits in part from disk", format_count(shared.read_back));
    }
    if shared.skipped_rows > 0 {
        line += &format!(", {} rows skipped", format_count(shared.skipped_rows));
    }
    if shared.unreported_tasks > 0 {
        let lost = format_count(shared.unreported_tasks);
        line += &format!(", {lost} tasks lost or taken over without a last report");
    }
    let mapped = job.served.map_or(0, |s| s.mapped_bytes);
    if mapped > 0 {
        let (mapped, reused) = (format_bytes(mapped), format_bytes(shared.reused_bytes));
        line += &format!(", {mapped} in shared memory, of which {reused} are common with others");
    }
    if let Some((epoch, last)) = slowest_reader(job, all) {
        line += &format!(
            "; the slowest reader: {} of {epoch}, with {} rows",
            reader(last),
            format_count(last.rows)
        );
    }
    out.push_str(&format!("  {}\n", wrapped(&line, 2)));
}

/// Of the readers that share with a job, and its own, the one that has the fewest rows, with its epoch; none if there is one
/// reader.
fn slowest_reader<'a>(job: &'a JobStatus, all: &[&'a JobStatus]) -> Option<(String, &'a ReaderStatus)> {
    let name = |j: &JobStatus| format!("{} epoch {}", j.job, j.epoch);
    let others = all.iter().copied().filter(|j| job.shares_with.contains(&name(j)));
    let readers = others.chain([job]).flat_map(|j| j.readers.iter().map(move |r| (j, r)));
    let (count, last) = readers.fold((0, None), |(count, last): (u32, Option<(&JobStatus, _)>), new| {
        let is_behind = last.is_none_or(|(_, known): (_, &ReaderStatus)| new.1.rows < known.rows);
        (count + 1, if is_behind { Some(new) } else { last })
    });
    last.filter(|_| count > 1).map(|(j, r)| (name(j), r))
}

/// A reader's name.
fn reader(r: &ReaderStatus) -> String {
    let client = ClientId(r.client_id);
    match (r.consumer, r.flight) {
        (0, false) => client.to_string(),
        (0, true) => format!("{client} (Flight)"),
        (n, _) => format!("consumer {} ({client})", n - 1),
    }
}

/// Rows per second of busy time, of one thread.
fn rate(s: &StageStats) -> Option<u64> {
    let busy = s.busy_s.max(s.cpu_s);
    (busy > 0.0).then(|| rounded(s.rows_in.max(s.rows_out) as f64 / busy))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate for people; saturates")]
fn rounded(rate: f64) -> u64 {
    rate.round() as u64
}
