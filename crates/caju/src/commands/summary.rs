//! The summary of a run for people: what happened, how fast, and what to do about the bottleneck.

use std::fmt::Write as _;
use std::time::Duration;

use caju_planner::Policy;
use caju_proto::v1::JobStatus;
use caju_types::{format_bytes, format_count, format_duration};

use super::bottleneck::bottleneck;
use super::decision::{is_undecided, marked_reason, measured_rates, policy};
use super::epochs::Outcome;
use crate::cores::available_cores;
use crate::report::{EpochReport, SplitsReport};
use crate::text::{aligned, one_line, wrapped};

/// The summary of a run, without a line break at its end.
pub(crate) fn summary(name: &str, outcome: &Outcome) -> String {
    let report = &outcome.report;
    let rows: u64 = report.epochs.iter().map(|e| e.rows).sum();
    let batches: u64 = report.epochs.iter().map(|e| e.batches).sum();
    let mut out = format!(
        "{name}: {} rows in {} {}, {} epoch{}, {}\n\n",
        format_count(rows),
        format_count(batches),
        outcome.elements,
        report.epochs.len(),
        if report.epochs.len() == 1 { "" } else { "s" },
        format_duration(outcome.elapsed)
    );
    epochs_table(&report.epochs, outcome.elements, &mut out);
    let _ = write!(
        out,
        "\n  CPU time     {} of this process{}\n  peak memory  {}",
        seconds(report.cpu_s),
        cores(report.cpu_s, outcome.elapsed, available_cores()),
        format_bytes(report.peak_rss_bytes)
    );
    let read: u64 = report.epochs.iter().map(|e| e.source_bytes_read).sum();
    if read > 0 {
        let _ = write!(out, "\n  source read  {}", format_bytes(read));
    }
    if let Some(text) = cache(outcome) {
        paragraph("cache", &text, &mut out);
    }
    if let Some(folder) = outcome.snapshot.as_ref().filter(|_| !outcome.has_conclusion) {
        // Not wrapped: a path is copied whole.
        let _ = write!(out, "\n  {:<11}  {folder}", "stored in");
    }
    if let Some(job) = outcome.job.as_ref() {
        caching_policy(job, outcome, &mut out);
    }
    if let Some(decision) = &report.decision {
        paragraph("decision", &decision_text(&decision.reason, outcome), &mut out);
    }
    for learnt in &report.boundaries {
        paragraph("boundaries", &learnt.to_string(), &mut out);
    }
    if let Some(empty) = report.epochs.iter().find(|e| e.rows == 0 && e.incomplete.is_none()) {
        paragraph("no rows", &no_rows(empty.epoch, outcome.failure.is_some()), &mut out);
    }
    for epoch in &report.epochs {
        if let Some(changed) = &epoch.source_changed {
            paragraph("warning", &format!("epoch {}: {changed}", epoch.epoch), &mut out);
        }
    }
    let skipped: u64 = report.epochs.iter().map(|e| e.rows_skipped).sum();
    if skipped > 0 {
        let rows = if skipped == 1 { "row" } else { "rows" };
        let _ = write!(out, "\n  on_error     {} {rows} skipped", format_count(skipped));
        let first: Vec<&String> = report.epochs.iter().flat_map(|e| &e.first_skips).collect();
        for row in first.iter().take(SHOWN_SKIPS) {
            let _ = write!(out, "\n               {}", wrapped(&one_line(row), 17));
        }
        if first.len() > SHOWN_SKIPS {
            out.push_str("\n               --report FILE lists the first 100 of each epoch");
        }
    }
    if let Some(job) = outcome.job.as_ref().filter(|_| !outcome.has_conclusion) {
        bottleneck(job, &report.epochs, outcome.locations, &mut out);
    }
    out
}

/// What an epoch without rows means.
fn no_rows(epoch: u64, is_stopped: bool) -> String {
    match is_stopped {
        true => format!("epoch {epoch} was stopped before its first row"),
        false => format!(
            "epoch {epoch} gave none: the source has no rows, the filters leave none, or they fill no batch and `drop_remainder` \
             drops them"
        ),
    }
}

/// The shortest run whose cores are shown. The system counts CPU time in ticks of up to 10 ms, and the time before the first
/// epoch counts, too: within less than 200 ms both are a large part.
const MIN_TIME_FOR_CORES: Duration = Duration::from_millis(200);

/// The cores that were busy on average, in parentheses. Empty if the run was too short, or if the quotient is more than the
/// machine has.
fn cores(cpu_s: f64, elapsed: Duration, available: usize) -> String {
    let cores = cpu_s / elapsed.as_secs_f64().max(1e-9);
    match elapsed >= MIN_TIME_FOR_CORES && cores <= available as f64 {
        true => format!(" ({cores:.1} cores)"),
        false => String::new(),
    }
}

/// The bytes that were written to the cache and read from it. None if there are none.
fn cache(outcome: &Outcome) -> Option<String> {
    let epochs = &outcome.report.epochs;
    let got: u64 = epochs.iter().map(|e| e.cache_bytes_read).sum();
    let put: u64 = epochs.iter().map(|e| e.cache_bytes_written).sum();
    if got + put == 0 {
        return None;
    }
    let (got, put) = (format_bytes(got), format_bytes(put));
    let stored = epochs.iter().any(|e| e.splits.put > 0);
    let read = epochs.iter().any(|e| e.splits.get > 0);
    let mut text = match (stored, read) {
        (true, _) => format!("{put} written, {got} read"),
        (false, true) => format!("{got} read; no rows stored, {put} of records written"),
        (false, false) => {
            format!("no rows stored or read; measurements and records: {put} written, {got} read")
        }
    };
    if stored && outcome.private_cache {
        text.push_str(", in a private folder of this run; --cache URL keeps it for other runs");
    }
    Some(text)
}

/// What the policy made of a job. Nothing under a policy that stores nothing.
fn caching_policy(job: &JobStatus, outcome: &Outcome, out: &mut String) {
    if job.policy.is_empty() || policy(job) == Some(Policy::Compute) {
        return;
    }
    let what = match (job.caching.as_str(), &outcome.undecided) {
        ("", Some(why)) => why,
        ("", None) if is_undecided(job) => "nothing is decided yet, so nothing is stored",
        ("", None) => "nothing is stored",
        (caching, _) => caching,
    };
    let failure = outcome.report.not_stored.as_ref().map(|why| format!(", but nothing was stored: {why}"));
    paragraph("policy", &format!("{}: {what}{}", job.policy, failure.unwrap_or_default()), out);
}

/// The decision with its moment, and the rates that were measured. A decision that was printed when it was made is not printed
/// again.
fn decision_text(reason: &str, outcome: &Outcome) -> String {
    match &outcome.decided {
        Some(moment) if moment.is_printed => format!("made in {moment}; its reason is printed above"),
        moment => {
            let when = moment.as_ref().map(|m| format!("Made in {m}. ")).unwrap_or_default();
            let measured = measured_rates(&outcome.report.epochs).unwrap_or_default();
            format!("{when}{} {measured}", marked_reason(reason))
        }
    }
}

/// Skipped rows that the summary shows.
const SHOWN_SKIPS: usize = 3;

/// A named paragraph of the summary, wrapped.
fn paragraph(name: &str, text: &str, out: &mut String) {
    let _ = write!(out, "\n  {name:<11}  {}", wrapped(text, 15));
}

fn epochs_table(epochs: &[EpochReport], elements: &str, out: &mut String) {
    let first = if elements == "batches" { "first batch" } else { "first rows" };
    let mut rows = vec![
        ["", "", "", "", "", "", first, "reader", ""].map(String::from),
        ["epoch", "rows", elements, "time", "rows/s", "MiB/s", "after", "waited", "splits"].map(String::from),
    ];
    for e in epochs {
        let wall = e.wall_s.max(1e-9);
        rows.push([
            e.epoch.to_string(),
            format_count(e.rows),
            format_count(e.batches),
            seconds(e.wall_s),
            format_count(whole(e.rows_per_s)),
            format!("{:.1}", e.bytes as f64 / MIB / wall),
            seconds(e.first_batch_s),
            format!("{:.0} %", 100.0 * (e.wait_s / wall).min(1.0)),
            splits(e.splits),
        ]);
    }
    out.push_str(&aligned(&rows, 8));
}

/// The splits by execution mode, as text.
pub(crate) fn splits(s: SplitsReport) -> String {
    let parts = [(s.compute, "computed"), (s.put, "computed and stored"), (s.get, "read from the cache")];
    let some = parts.into_iter().filter(|(n, _)| *n > 0);
    let mut text = some.map(|(n, what)| format!("{} {what}", format_count(n))).collect::<Vec<_>>().join(", ");
    if s.fell_back > 0 {
        let _ = write!(text, " ({} fell back to computing)", format_count(s.fell_back));
    }
    text
}

/// Bytes of a mebibyte.
const MIB: f64 = 1_048_576.0;

fn seconds(s: f64) -> String {
    format_duration(Duration::try_from_secs_f64(s).unwrap_or_default())
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate for people; saturates")]
fn whole(v: f64) -> u64 {
    v.round() as u64
}

#[cfg(test)]
mod tests {
    use caju_planner::Choice;
    use caju_proto::v1::StageStats;
    use caju_types::Error;

    use super::*;
    use crate::commands::announce::tests::moment;
    use crate::commands::decision::tests::decision;
    use crate::commands::setting::{Location, Locations};
    use crate::report::RunReport;
    use crate::text::WIDTH;

    /// The outcome of a run of one second on a local cache.
    fn outcome(report: RunReport, job: Option<JobStatus>) -> Outcome {
        Outcome {
            report,
            job,
            elapsed: Duration::from_secs(1),
            decided: None,
            undecided: None,
            elements: "batches",
            locations: Locations { source: Location::Folder, cache: Location::Folder },
            private_cache: false,
            has_conclusion: false,
            snapshot: None,
            failure: None,
        }
    }

    fn epoch(epoch: u64, rows_per_s: f64, splits: SplitsReport) -> EpochReport {
        EpochReport {
            epoch,
            rows: 2000,
            batches: 8,
            wall_s: 2.0,
            rows_per_s,
            first_batch_s: 0.3,
            wait_s: 1.9,
            source_bytes_read: 220 << 20,
            splits,
            bytes: 1200 << 20,
            ..EpochReport::default()
        }
    }

    #[test]
    fn a_person_understands_it() {
        let mut report = RunReport::new();
        report.cpu_s = 3.0;
        report.peak_rss_bytes = 300 << 20;
        report.epochs = (0..2).map(|e| epoch(e, 1000.0, SplitsReport::default())).collect();
        let stage = |name: &str, busy_s| StageStats { name: name.into(), busy_s, ..Default::default() };
        let job = JobStatus {
            bottleneck: "stage:1.map".into(),
            stages: vec![stage("source", 1.0), stage("1.map", 3.0)],
            ..Default::default()
        };
        let outcome = Outcome { elapsed: Duration::from_secs(4), ..outcome(report, Some(job)) };
        let text = summary("photos", &outcome);
        assert!(text.starts_with("photos: 4,000 rows in 16 batches, 2 epochs, 4.00 s\n"), "{text}");
        assert!(text.contains("1,000  600.0"), "{text}");
        assert!(text.contains("  MiB/s  ") && text.contains("first batch  reader\n"), "{text}");
        assert!(text.contains("      after  waited"), "{text}");
        assert!(text.contains("bottleneck   1.map in epoch 1, 75 % of the stages' time"), "{text}");
        assert!(
            text.contains("0.8 cores") && text.contains("300.00 MiB") && text.contains("440.00 MiB"),
            "{text}"
        );
        assert!(text.contains("add cores or workers"), "{text}");
        let text = summary("photos", &Outcome { has_conclusion: true, ..outcome });
        assert!(!text.contains("bottleneck") && !text.contains("add cores"), "{text}");
    }

    #[test]
    fn an_epoch_without_rows_says_what_may_be_the_cause() {
        let mut report = RunReport::new();
        report.epochs = vec![EpochReport { rows: 0, batches: 0, ..epoch(0, 0.0, SplitsReport::default()) }];
        let words =
            |outcome: &Outcome| summary("photos", outcome).split_whitespace().collect::<Vec<_>>().join(" ");
        let text = words(&outcome(report.clone(), None));
        assert!(
            text.contains("no rows epoch 0 gave none: the source has no rows, the filters leave none"),
            "{text}"
        );
        let stopped = Outcome { failure: Some(Error::cancelled("SIGINT")), ..outcome(report.clone(), None) };
        assert!(words(&stopped).contains("epoch 0 was stopped before its first row"));
        report.epochs = vec![epoch(0, 10.0, SplitsReport::default())];
        assert!(!words(&outcome(report, None)).contains("no rows"));
    }

    #[test]
    fn a_reader_that_decides_the_speed_is_named_with_its_share() {
        let mut report = RunReport::new();
        report.epochs = vec![EpochReport { wait_s: 0.1, ..epoch(3, 1000.0, SplitsReport::default()) }];
        let text = summary("photos", &outcome(report, Some(JobStatus::default())));
        assert!(
            text.contains("bottleneck   consumer in epoch 3, which waited for rows 5 % of its time"),
            "{text}"
        );
    }

    #[test]
    fn cores_are_shown_only_where_they_are_measured() {
        assert_eq!(cores(1.5, Duration::from_secs(1), 2), " (1.5 cores)");
        assert_eq!(cores(0.05, Duration::from_millis(199), 2), "");
        assert_eq!(cores(4.1, Duration::from_secs(1), 2), "");
    }

    #[test]
    fn bytes_of_a_cache_without_stored_rows_say_what_they_are() {
        let of = |splits: SplitsReport, private_cache: bool| {
            let epoch =
                EpochReport { cache_bytes_written: 2, cache_bytes_read: 2048, ..epoch(0, 1.0, splits) };
            cache(&Outcome {
                private_cache,
                ..outcome(RunReport { epochs: vec![epoch], ..RunReport::new() }, None)
            })
            .unwrap()
        };
        let none = SplitsReport { compute: 3, ..SplitsReport::default() };
        assert_eq!(
            of(none, true),
            "no rows stored or read; measurements and records: 2 B written, 2.00 KiB read"
        );
        let read = SplitsReport { get: 3, ..SplitsReport::default() };
        assert_eq!(of(read, false), "2.00 KiB read; no rows stored, 2 B of records written");
        let stored = SplitsReport { put: 3, ..SplitsReport::default() };
        assert!(of(stored, true).starts_with("2 B written, 2.00 KiB read, in a private folder"));
    }

    #[test]
    fn a_decision_is_an_estimate_with_the_measured_rates_next_to_it() {
        let read = SplitsReport { get: 3, ..SplitsReport::default() };
        let report = RunReport {
            epochs: vec![epoch(0, 1_107.0, SplitsReport::default()), epoch(2, 47_404.0, read)],
            decision: Some(decision(Choice::Compute, "Reading `a` gives 9,000 rows/s.")),
            ..RunReport::new()
        };
        let kept = Outcome {
            decided: Some(moment(0, "after 1.50 s", false)),
            snapshot: Some("/c/v1/f/parts".into()),
            ..outcome(report, None)
        };
        let text = summary("photos", &kept).replace("\n               ", " ");
        assert!(
            text.contains("decision     Made in epoch 0, after 1.50 s. Estimate of the planner, for"),
            "{text}"
        );
        assert!(
            text.contains(
                "the reader: Reading `a` gives 9,000 rows/s. Measured: 1,107 rows/s in epoch 0 and 47,404 rows/s in \
                 epoch 2."
            ),
            "{text}"
        );
        assert!(text.contains("\n  stored in    /c/v1/f/parts\n"), "{text}");
        let printed = Outcome { decided: Some(moment(0, "after 1.50 s", true)), ..kept };
        let text = summary("photos", &printed);
        assert!(
            text.contains("decision     made in epoch 0, after 1.50 s; its reason is printed above"),
            "{text}"
        );
        assert!(!text.contains("9,000"), "{text}");
    }

    #[test]
    fn caching_is_reported_in_lines_that_fit() {
        let mut report = RunReport::new();
        let reason = "Reading `resized` gives 3,276 rows/s, ".repeat(6);
        report.decision = Some(decision(Choice::Compute, &reason));
        let job = JobStatus {
            policy: "auto".into(),
            caching: "hint `resized` as arrow/none".into(),
            decision_json: "{}".into(),
            ..Default::default()
        };
        let outcome = Outcome { private_cache: true, ..outcome(report, Some(job.clone())) };
        let text = summary("photos", &outcome);
        assert!(text.contains("policy       auto: hint `resized` as arrow/none"), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("3,276").count(), 6);
        assert_eq!(
            splits(SplitsReport { compute: 1, get: 1200, ..SplitsReport::default() }),
            "1 computed, 1,200 read from the cache"
        );
        assert_eq!(
            splits(SplitsReport { compute: 4, put: 8, get: 12, ..SplitsReport::default() }),
            "4 computed, 8 computed and stored, 12 read from the cache"
        );

        let forced = JobStatus { policy: "hint:resized".into(), ..job.clone() };
        let report = RunReport { not_stored: Some("/c: no space left".into()), ..RunReport::new() };
        let failed = Outcome { report, job: Some(forced), ..outcome };
        let text = summary("photos", &failed).replace("\n               ", " ");
        assert!(text.contains("as arrow/none, but nothing was stored: /c: no space left"), "{text}");

        let undecided = JobStatus { caching: String::new(), decision_json: String::new(), ..job };
        let outcome = Outcome {
            report: RunReport::new(),
            job: Some(undecided),
            undecided: Some("the pipeline has no `autocache`".into()),
            ..failed
        };
        let text = summary("photos", &outcome);
        assert!(text.contains("policy       auto: the pipeline has no `autocache`"), "{text}");
        let text = summary("photos", &Outcome { undecided: None, ..outcome });
        assert!(text.contains("policy       auto: nothing is decided yet"), "{text}");
    }
}
