//! The answers of `caju cache` for people.

use std::fmt::Write as _;
use std::time::Duration;

use caju_cache::{Inspection, SnapshotInfo, Usage};
use caju_pipeline::{DatasetDef, describe};
use caju_runtime::SystemClock;
use caju_types::{Fingerprint, format_bytes, format_count, format_duration};

use crate::text::table;

/// Digits of a shortened fingerprint: enough to distinguish the snapshots of a cache.
const SHORT_DIGITS: usize = 12;
/// The most characters of a line. Longer ones are truncated.
const WIDTH: usize = 110;
/// The most parts, or objects, that are listed one by one.
pub(super) const MAX_LISTED: usize = 20;

/// The first digits of a fingerprint.
pub(in crate::commands) fn short(of: Fingerprint) -> String {
    of.to_string().chars().take(SHORT_DIGITS).collect()
}

/// How long ago something was, in a readable unit.
pub(in crate::commands) fn ago(unix_s: Option<f64>) -> String {
    let Some(then) = unix_s else { return "never".into() };
    let past = SystemClock::shared().unix_time().as_secs_f64() - then;
    let days = past / 86400.0;
    match past {
        ..1.0 => "just now".into(),
        ..172_800.0 => format!("{} ago", format_duration(Duration::from_secs_f64(past.round()))),
        _ => format!("{days:.0} days ago"),
    }
}

/// `caju cache ls`.
pub(super) fn list(url: &str, usage: &Usage, snapshots: &[SnapshotInfo]) -> String {
    let plural = |n: u64| if n == 1 { "" } else { "s" };
    let count = snapshots.len() as u64;
    let head = format!(
        "{url}: {count} snapshot{}, {} in {} object{}",
        plural(count),
        format_bytes(usage.bytes),
        format_count(usage.objects),
        plural(usage.objects)
    );
    if snapshots.is_empty() {
        return head;
    }
    let names =
        ["snapshot", "rows", "bytes", "read for it", "splits", "written as", "jobs", "last use", "CPU saved"];
    let mut rows = vec![names.map(String::from)];
    rows.extend(snapshots.iter().map(row));
    let table = table(&rows);
    let mut lines = table.lines();
    let mut out = format!("{head}\n\n{}\n", lines.next().unwrap_or_default());
    for (line, snapshot) in lines.zip(snapshots) {
        let _ = writeln!(out, "{line}\n      {}", cut(&what(snapshot)));
    }
    out
}

fn row(s: &SnapshotInfo) -> [String; 9] {
    let pinned = if s.pinned { " pinned" } else { "" };
    [
        format!("{}{pinned}", short(s.fingerprint)),
        format_count(s.rows),
        format_bytes(s.bytes),
        if s.source_bytes > 0 { format_bytes(s.source_bytes) } else { "-".into() },
        s.splits_text(),
        encodings(s),
        s.jobs.len().to_string(),
        ago(s.last_use_unix_s),
        if s.saved_cpu_s > 0.0 { seconds(s.saved_cpu_s) } else { "-".into() },
    ]
}

fn encodings(s: &SnapshotInfo) -> String {
    let all: Vec<String> = s.encodings.iter().map(ToString::to_string).collect();
    if all.is_empty() { "-".into() } else { all.join(", ") }
}

/// The pipeline that wrote it, and its stages.
fn what(s: &SnapshotInfo) -> String {
    let stages = s.prefix.split_whitespace().collect::<Vec<_>>().join(" ");
    match (s.name.is_empty(), stages.is_empty()) {
        (true, true) => {
            "(no manifest of it says what it is: the next job that stores rows of it will)".into()
        }
        (true, false) => stages,
        (false, _) => format!("{}: {stages}", s.name),
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(WIDTH) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text.to_string(),
    }
}

pub(super) fn seconds(s: f64) -> String {
    format_duration(Duration::try_from_secs_f64(s).unwrap_or_default())
}

/// `caju cache inspect`.
pub(super) fn inspection(i: &Inspection) -> String {
    let s = &i.info;
    let mut out = format!("snapshot     {}", s.fingerprint);
    let mut line = |name: &str, text: String| {
        let _ = write!(out, "\n{name:<11}  {text}");
    };
    line("pipeline", if s.name.is_empty() { "-".into() } else { s.name.clone() });
    line("rows", format!("{} in {}, as {}", format_count(s.rows), format_bytes(s.bytes), encodings(s)));
    let splits = s.splits_text();
    line("splits", format!("{splits} stored; `caju explain FILE` compares them with a source"));
    if s.skipped > 0 {
        line("skipped", format!("{} bad rows (on_error: skip)", format_count(s.skipped)));
    }
    line("on disk", format!("{} with records and manifests", format_bytes(s.stored_bytes)));
    let reads = match s.source_bytes {
        0 => String::new(),
        bytes => format!(" and {} of the source", format_bytes(bytes)),
    };
    let worth = format!("{} of CPU time{reads} to compute", seconds(s.compute_cpu_s));
    line(
        "worth",
        format!("{worth}; {} saved so far, {} rows read", seconds(s.saved_cpu_s), format_count(s.rows_read)),
    );
    line("last use", ago(s.last_use_unix_s));
    line("jobs", if s.jobs.is_empty() { "none has read it".into() } else { s.jobs.join(", ") });
    let known =
        if i.description.profile.is_null() { "none" } else { "in its manifest; --format json has it" };
    line("profile", known.into());
    if s.pinned {
        line("pinned", "yes: it is not evicted, expired or removed".into());
    }
    out.push_str("\n\n");
    stages(i, &mut out);
    if let Some(columns) = i.description.schema.as_object() {
        out.push_str("\ncolumns\n");
        for (name, kind) in columns {
            let _ = writeln!(out, "  {name}: {}", kind.as_str().unwrap_or_default());
        }
    }
    parts(i, &mut out);
    out
}

fn stages(i: &Inspection, out: &mut String) {
    out.push_str("stages\n");
    match DatasetDef::from_json(&i.description.definition) {
        Ok(def) => describe(&def).iter().for_each(|l| {
            let _ = writeln!(out, "  {l}");
        }),
        // Another version may have written it.
        Err(_) => {
            let _ = writeln!(out, "  {}", what(&i.info));
        }
    }
}

fn parts(i: &Inspection, out: &mut String) {
    if i.parts.is_empty() {
        return;
    }
    let mut rows = vec![["part", "rows", "bytes", "written as", "by"].map(String::from)];
    rows.extend(i.parts.iter().take(MAX_LISTED).map(|p| {
        let name = p.path.rsplit('/').next().unwrap_or(&p.path);
        let bytes = format_bytes(p.bytes);
        [name.to_string(), format_count(p.rows), bytes, p.encoding.to_string(), p.writer.clone()]
    }));
    let _ = write!(out, "\nparts below v1/{}/parts\n{}", i.info.fingerprint, table(&rows));
    if i.parts.len() > MAX_LISTED {
        let _ = writeln!(out, "  and {} more; --format json has all", i.parts.len() - MAX_LISTED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> SnapshotInfo {
        SnapshotInfo {
            fingerprint: Fingerprint(0xf593_8fad << 96),
            name: "photos".into(),
            prefix: "parquet  a.parquet |      0  with_columns   x = 1".into(),
            encodings: vec!["parquet/zstd".parse().unwrap()],
            rows: 12_345,
            bytes: 3 << 20,
            stored_bytes: 4 << 20,
            splits: 6,
            splits_total: Some(8),
            skipped: 0,
            source_bytes: 1 << 30,
            compute_cpu_s: 12.0,
            last_use_unix_s: None,
            jobs: vec!["run".into(), "read-1".into()],
            rows_read: 24_690,
            saved_cpu_s: 24.0,
            pinned: true,
        }
    }

    #[test]
    fn a_list_says_what_people_ask() {
        let usage = Usage { snapshots: 1, objects: 9, bytes: 4 << 20, budget_bytes: None };
        let text = list("file:///c", &usage, &[info()]);
        for words in [
            "file:///c: 1 snapshot, 4.00 MiB in 9 objects",
            "f5938fad0000",
            "pinned",
            "12,345",
            "1.00 GiB",
            "6 of 8",
            "parquet/zstd",
            "24.00 s",
            "photos: parquet a.parquet | 0 with_columns x = 1",
        ] {
            assert!(text.contains(words), "`{words}` is not in\n{text}");
        }
        assert!(text.lines().all(|l| l.chars().count() <= 120), "{text}");
    }

    #[test]
    fn times_are_reported_from_now() {
        let now = SystemClock::shared().unix_time().as_secs_f64();
        assert_eq!(ago(None), "never");
        assert_eq!(ago(Some(now + 5.0)), "just now");
        assert!(ago(Some(now - 120.0)).contains("min"));
        assert_eq!(ago(Some(now - 86400.0 * 40.0)), "40 days ago");
    }
}
