//! The summary of a run for people: what happened, how fast, and what to do about the bottleneck.

use std::fmt::Write as _;
use std::time::Duration;

use caju_cache::{Compression, Encoding, Format};
use caju_proto::v1::{JobStatus, StageKind, StageStats};
use caju_types::{format_bytes, format_count, format_duration};

use super::epochs::Outcome;
use crate::report::{EpochReport, SplitsReport};
use crate::text::{aligned, one_line, wrapped};

/// The summary of a run, without a line break at its end.
pub(crate) fn summary(name: &str, outcome: &Outcome) -> String {
    let report = &outcome.report;
    let rows: u64 = report.epochs.iter().map(|e| e.rows).sum();
    let batches: u64 = report.epochs.iter().map(|e| e.batches).sum();
    let mut out = format!(
        "{name}: {} rows in {} elements, {} epoch{}, {}\n\n",
        format_count(rows),
        format_count(batches),
        report.epochs.len(),
        if report.epochs.len() == 1 { "" } else { "s" },
        format_duration(outcome.elapsed)
    );
    epochs_table(&report.epochs, &mut out);
    let cores = report.cpu_s / outcome.elapsed.as_secs_f64().max(1e-9);
    let _ = write!(
        out,
        "\n  CPU time     {} of this process ({cores:.1} cores)\n  peak memory  {}",
        seconds(report.cpu_s),
        format_bytes(report.peak_rss_bytes)
    );
    let read: u64 = report.epochs.iter().map(|e| e.source_bytes_read).sum();
    if read > 0 {
        let _ = write!(out, "\n  source read  {}", format_bytes(read));
    }
    let (got, put): (u64, u64) =
        report.epochs.iter().fold((0, 0), |(g, p), e| (g + e.cache_bytes_read, p + e.cache_bytes_written));
    if got + put > 0 {
        let mut text = format!("{} written, {} read", format_bytes(put), format_bytes(got));
        if outcome.private_cache {
            text.push_str(", in a private folder of this run; --cache URL keeps it for other runs");
        }
        paragraph("cache", &text, &mut out);
    }
    if let Some(job) = outcome.job.as_ref().filter(|j| !j.policy.is_empty() && j.policy != "compute") {
        let undecided = ["auto", "cachew"].contains(&job.policy.as_str()) && job.decision_json.is_empty();
        let what = match job.caching.as_str() {
            "" if undecided => {
                "nothing was stored, and nothing decided: the pipeline has no `autocache`, or the log says why"
            }
            "" => "nothing is stored",
            caching => caching,
        };
        let failure = report.not_stored.as_ref().map(|why| format!(", but nothing was stored: {why}"));
        paragraph("policy", &format!("{}: {what}{}", job.policy, failure.unwrap_or_default()), &mut out);
    }
    if let Some(decision) = &report.decision {
        paragraph("decision", &decision.reason, &mut out);
    }
    for learnt in &report.boundaries {
        paragraph("boundaries", &learnt.to_string(), &mut out);
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
    if let Some(job) = &outcome.job {
        bottleneck(job, &report.epochs, &mut out);
    }
    out
}

/// Skipped rows that the summary shows.
const SHOWN_SKIPS: usize = 3;

/// A named paragraph of the summary, wrapped.
fn paragraph(name: &str, text: &str, out: &mut String) {
    let _ = write!(out, "\n  {name:<11}  {}", wrapped(text, 15));
}

fn epochs_table(epochs: &[EpochReport], out: &mut String) {
    let head = ["epoch", "rows", "elements", "time", "rows/s", "MB/s", "first", "waited", "splits"]
        .map(String::from);
    let mut rows = vec![head];
    for e in epochs {
        let wall = e.wall_s.max(1e-9);
        rows.push([
            e.epoch.to_string(),
            format_count(e.rows),
            format_count(e.batches),
            seconds(e.wall_s),
            format_count(whole(e.rows_per_s)),
            format!("{:.1}", e.bytes as f64 / 1e6 / wall),
            seconds(e.first_batch_s),
            format!("{:.0} %", 100.0 * (e.wait_s / wall).min(1.0)),
            splits(e.splits),
        ]);
    }
    out.push_str(&aligned(&rows, 8));
}

/// The splits by execution mode, as text.
pub(crate) fn splits(s: SplitsReport) -> String {
    let parts = [(s.compute, "computed"), (s.put, "stored"), (s.get, "from the cache")];
    let some = parts.into_iter().filter(|(n, _)| *n > 0);
    let mut text = some.map(|(n, what)| format!("{} {what}", format_count(n))).collect::<Vec<_>>().join(", ");
    if s.fell_back > 0 {
        let _ = write!(text, " ({} fell back to computing)", format_count(s.fell_back));
    }
    text
}

fn bottleneck(job: &JobStatus, epochs: &[EpochReport], out: &mut String) {
    let last = epochs.last();
    let wait = last.map_or(0.0, |e| e.wait_s / e.wall_s.max(1e-9));
    let reported = job.bottleneck.strip_prefix("stage:").unwrap_or(&job.bottleneck);
    let name = if wait < 0.1 { "consumer" } else { reported };
    if name.is_empty() {
        return;
    }
    let total: f64 = job.stages.iter().map(busy).sum();
    let fraction = job
        .stages
        .iter()
        .find(|s| s.name == name)
        .filter(|_| total > 0.0)
        .map(|s| format!(", {:.0} % of the stages' time", 100.0 * busy(s) / total))
        .unwrap_or_default();
    let _ = write!(out, "\n  bottleneck   {name}{fraction}\n               {}", advice(name, job));
}

fn busy(s: &StageStats) -> f64 {
    s.busy_s.max(s.cpu_s)
}

/// The encoding of parts that costs the least CPU time. Nothing cheaper can be advised to a job that has it.
const CHEAPEST_ENCODING: Encoding = Encoding { format: Format::Arrow, compression: Compression::None };

/// What to do about a bottleneck of a job: `consumer`, or one of its stages with or without `stage:`.
pub(crate) fn advice(bottleneck: &str, job: &JobStatus) -> &'static str {
    if bottleneck == "consumer" {
        return "rows are ready before they are asked for: the reader decides the speed";
    }
    let name = bottleneck.strip_prefix("stage:").unwrap_or(bottleneck);
    match job.stages.iter().find(|s| s.name == name).map_or(StageKind::Unspecified, StageStats::kind) {
        StageKind::Source => {
            "reading is the bottleneck: store the files nearer, select fewer columns, or add workers"
        }
        StageKind::Output => {
            "moving rows is the bottleneck: deliver fewer bytes (uint8 images, fewer columns), or add workers"
        }
        StageKind::Serial => "an artificial cost, which runs one at a time per worker: add workers",
        StageKind::Hint if job.encoding.parse().is_ok_and(|e: Encoding| e == CHEAPEST_ENCODING) => {
            "reading or writing the snapshot is the bottleneck: use a cache nearer by"
        }
        StageKind::Hint => {
            "reading or writing the snapshot is the bottleneck: use a cache nearer by, or a cheaper encoding (arrow/none)"
        }
        StageKind::CrossSplit | StageKind::Take => {
            "it processes all rows of a worker one after another: add workers, or move stages that make rows large below it"
        }
        StageKind::Parse => "parsing is the bottleneck: name fewer features, or add cores or workers",
        StageKind::Rows | StageKind::Unspecified => {
            "this stage computes as fast as it can: add cores or workers, or make it cheaper"
        }
    }
}

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

    use super::*;
    use crate::commands::decision::tests::decision;
    use crate::report::RunReport;
    use crate::text::WIDTH;

    #[test]
    fn a_person_understands_it() {
        let mut report = RunReport::new();
        report.cpu_s = 7.5;
        report.peak_rss_bytes = 300 << 20;
        for epoch in 0..2 {
            report.epochs.push(EpochReport {
                rows_skipped: 0,
                received_bytes: 0,
                mapped_bytes: 0,
                padded_rows: 0,
                rounds: None,
                consumer_wait_s: None,
                surplus_elements: 0,
                first_skips: Vec::new(),
                shared: None,
                incomplete: None,
                epoch,
                rows: 2000,
                batches: 8,
                wall_s: 2.0,
                rows_per_s: 1000.0,
                first_batch_s: 0.3,
                tail_s: 0.0,
                wait_s: 1.9,
                rows_checksum: None,
                source_bytes_read: 220 << 20,
                cache_bytes_read: 0,
                cache_bytes_written: 0,
                splits: SplitsReport::default(),
                bytes: 1_200_000_000,
            });
        }
        let stage = |name: &str, busy_s| StageStats { name: name.into(), busy_s, ..Default::default() };
        let job = JobStatus {
            bottleneck: "stage:1.map".into(),
            stages: vec![stage("source", 1.0), stage("1.map", 3.0)],
            ..Default::default()
        };
        let elapsed = Duration::from_secs(4);
        let text = summary(
            "photos",
            &Outcome { report, job: Some(job), elapsed, private_cache: false, failure: None },
        );
        assert!(text.starts_with("photos: 4,000 rows in 16 elements, 2 epochs, 4.00 s\n"), "{text}");
        assert!(text.contains("1,000  600.0"), "{text}");
        assert!(text.contains("bottleneck   1.map, 75 % of the stages' time"), "{text}");
        assert!(
            text.contains("1.9 cores") && text.contains("300.00 MiB") && text.contains("440.00 MiB"),
            "{text}"
        );
        assert!(text.contains("add cores or workers"), "{text}");
    }

    #[test]
    fn advice_follows_the_kind_of_a_stage_and_not_its_name() {
        let stage = |name: &str, kind: StageKind| StageStats {
            name: name.into(),
            kind: kind.into(),
            ..Default::default()
        };
        let kinds = [
            (StageKind::Source, "reading is the bottleneck"),
            (StageKind::Parse, "name fewer features"),
            (StageKind::Serial, "one at a time per worker"),
            (StageKind::CrossSplit, "one after another"),
            (StageKind::Take, "one after another"),
            (StageKind::Hint, "reading or writing the snapshot"),
            (StageKind::Output, "deliver fewer bytes"),
            (StageKind::Rows, "as fast as it can"),
        ];
        for (kind, words) in kinds {
            // Names that other kinds of stages have.
            for name in ["source", "3.shuffle", "output"] {
                let stages = vec![stage("0.map", StageKind::Rows), stage(name, kind)];
                let text = advice(&format!("stage:{name}"), &JobStatus { stages, ..JobStatus::default() });
                assert!(text.contains(words), "{name} {kind:?}: {text}");
            }
        }
        assert!(advice("consumer", &JobStatus::default()).contains("the reader decides the speed"));
    }

    #[test]
    fn a_cheaper_encoding_is_advised_only_where_there_is_one() {
        let advice_for = |encoding: &str| {
            let stage =
                StageStats { name: "1.autocache".into(), kind: StageKind::Hint.into(), ..Default::default() };
            let job = JobStatus { stages: vec![stage], encoding: encoding.into(), ..JobStatus::default() };
            advice("stage:1.autocache", &job)
        };
        assert!(advice_for("parquet/zstd").contains("nearer by, or a cheaper encoding (arrow/none)"));
        assert!(advice_for("arrow/none").ends_with("use a cache nearer by"), "{}", advice_for("arrow/none"));
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
        let outcome = Outcome {
            report,
            job: Some(job.clone()),
            elapsed: Duration::from_secs(1),
            private_cache: true,
            failure: None,
        };
        let text = summary("photos", &outcome);
        assert!(text.contains("policy       auto: hint `resized` as arrow/none"), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("3,276").count(), 6);
        assert_eq!(
            splits(SplitsReport { compute: 1, get: 1200, ..SplitsReport::default() }),
            "1 computed, 1,200 from the cache"
        );

        let forced = JobStatus { policy: "hint:resized".into(), ..job.clone() };
        let report = RunReport { not_stored: Some("/c: no space left".into()), ..RunReport::new() };
        let failed = Outcome {
            report,
            job: Some(forced),
            elapsed: Duration::ZERO,
            private_cache: false,
            failure: None,
        };
        let text = summary("photos", &failed).replace("\n               ", " ");
        assert!(text.contains("as arrow/none, but nothing was stored: /c: no space left"), "{text}");

        let undecided = JobStatus { caching: String::new(), decision_json: String::new(), ..job };
        let outcome = Outcome { report: RunReport::new(), job: Some(undecided), ..outcome };
        assert!(summary("photos", &outcome).contains("nothing decided"));
    }
}
