//! `caju.run/v1`, the report of a run for programs. `docs/report.md` describes every field.

use std::io::Write;
use std::path::Path;

use caju_client::Incomplete;
use caju_planner::Decision;
use caju_proto::v1::{JobStatus, SharedUse};
use caju_types::{Error, Result};
use serde::{Deserialize, Serialize};

/// The whole report.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct RunReport {
    pub(crate) schema: &'static str,
    pub(crate) fingerprint: String,
    pub(crate) epochs: Vec<EpochReport>,
    /// The planner's decision. None where nothing was decided.
    pub(crate) decision: Option<Decision>,
    /// The boundaries that were learnt, stage by stage. Absent if no stage learns them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) boundaries: Vec<BoundariesReport>,
    /// Why no row was stored although the policy asks for it.
    pub(crate) not_stored: Option<String>,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) cpu_s: f64,
}

/// One epoch.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct EpochReport {
    pub(crate) epoch: u64,
    pub(crate) rows: u64,
    pub(crate) batches: u64,
    pub(crate) wall_s: f64,
    pub(crate) rows_per_s: f64,
    pub(crate) first_batch_s: f64,
    /// From 99 % of the rows to the end.
    #[serde(default)]
    pub(crate) tail_s: f64,
    pub(crate) wait_s: f64,
    /// None with `--no-checksum`.
    pub(crate) rows_checksum: Option<String>,
    pub(crate) source_bytes_read: u64,
    pub(crate) cache_bytes_read: u64,
    pub(crate) cache_bytes_written: u64,
    pub(crate) splits: SplitsReport,
    /// What was shared with other jobs. Absent for a job that shares nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shared: Option<SharedReport>,
    /// Rows that no reader of the job has, or that lost readers took. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) incomplete: Option<IncompleteReport>,
    /// Bytes of the delivered rows, for the summary only.
    #[serde(skip)]
    pub(crate) bytes: u64,
    /// Bytes of rows that came over sockets, compressed ones as they came.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) received_bytes: u64,
    /// Bytes of rows that came in shared memory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) mapped_bytes: u64,
    /// Rows of `rows` that repeat those of another consumer of the job.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) padded_rows: u64,
    /// Rounds that this consumer took part in. None without `--balance`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rounds: Option<u64>,
    /// Of `wait_s`: the element had arrived, and other consumers did not have theirs of the same round. None without
    /// `--balance`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) consumer_wait_s: Option<f64>,
    /// Elements of the job that no consumer got.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) surplus_elements: u64,
    /// Rows skipped under `on_error: skip`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) rows_skipped: u64,
    /// File, row and reason of the first of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) first_skips: Vec<String>,
    /// How the source differs from that of the epoch before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source_changed: Option<String>,
}

/// Why an epoch is incomplete.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct IncompleteReport {
    /// Rows that are missing.
    pub(crate) rows_missing: u64,
    /// Splits with rows that were sent and acknowledged by no reader.
    pub(crate) splits: u64,
    /// The reasons.
    pub(crate) why: String,
    /// Rows that lost readers took.
    pub(crate) rows_taken_by_lost_readers: u64,
    /// More rows may be missing, or come twice: which rows a lost reader took is not known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) rows_unknown: bool,
}

impl From<Incomplete> for IncompleteReport {
    fn from(i: Incomplete) -> Self {
        Self {
            rows_missing: i.rows_missing,
            splits: i.splits,
            why: i.why,
            rows_taken_by_lost_readers: i.rows_taken_by_lost_readers,
            rows_unknown: i.rows_unknown,
        }
    }
}

/// What a job that shares computed and got. Its figures are lower bounds where `unknown` says so.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedReport {
    /// None if no figure is known.
    #[serde(flatten)]
    pub(crate) counts: Option<SharedCounts>,
    /// What is not known of the figures, and why. None if they are exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unknown: Option<String>,
}

/// What the tasks of a job that shares computed, and what they read from the windows of their workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedCounts {
    /// Rows that the job's own tasks computed, counted at the first place at which rows are shared.
    pub(crate) computed_rows: u64,
    /// Rows that other jobs had computed.
    pub(crate) window_rows: u64,
    /// Splits with such rows.
    pub(crate) window_hits: u64,
    /// Of these: splits whose remaining rows the job's own tasks computed.
    pub(crate) taken_over: u64,
    /// Rows of the epoch that the job did not get, counted at the last place at which they were shared: 0 under `exact`.
    pub(crate) skipped: u64,
    /// Bytes that its readers got in shared memory and that a task of another job had put there.
    #[serde(default)]
    pub(crate) reused_bytes: u64,
    /// Of `window_hits`: splits of which its tasks read rows back from a worker's disk.
    #[serde(default)]
    pub(crate) read_back: u64,
}

impl SharedReport {
    /// What a job's status says at the end of an epoch. None if the job is not known to share.
    ///
    /// `shares`: its reader asked for that. `began_again`: its dispatcher lost its state or a consumer in mid-epoch, and the
    /// status counts only since then.
    pub(crate) fn at_end(job: Option<&JobStatus>, shares: bool, began_again: bool) -> Option<Self> {
        let Some(job) = job else {
            let why = "the dispatcher did not answer at the end of the epoch";
            return shares.then(|| Self { counts: None, unknown: Some(why.to_string()) });
        };
        let mut report = job.served.and_then(|s| s.shared).map(Self::from).unwrap_or_default();
        let mut unknown: Vec<String> = report.unknown.into_iter().collect();
        if began_again {
            unknown.push(
                "the epoch was opened again in its middle, and what was shared before is not counted"
                    .to_string(),
            );
        }
        if job.tasks > 0 {
            unknown.push(format!("{} tasks have not reported their end", job.tasks));
        }
        report.unknown = (!unknown.is_empty()).then(|| unknown.join("; "));
        (report != Self::default() && !job.sharing.is_empty()).then_some(report)
    }
}

impl From<SharedUse> for SharedReport {
    fn from(shared: SharedUse) -> Self {
        let unreported = (shared.unreported_tasks > 0).then(|| {
            format!(
                "{} tasks were lost or taken over without a last report; what they computed and read since the report before is not counted",
                shared.unreported_tasks
            )
        });
        Self { counts: Some(shared.into()), unknown: unreported }
    }
}

impl From<SharedUse> for SharedCounts {
    fn from(shared: SharedUse) -> Self {
        Self {
            computed_rows: shared.computed_rows,
            window_rows: shared.window_rows,
            window_hits: shared.window_hits,
            taken_over: shared.taken_over,
            skipped: shared.skipped_rows,
            reused_bytes: shared.reused_bytes,
            read_back: shared.read_back,
        }
    }
}

/// The boundaries that a `bucket_by_length` learnt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct BoundariesReport {
    /// Its place among the steps.
    pub(crate) step: usize,
    pub(crate) boundaries: Vec<i64>,
    /// Rows whose lengths were read.
    pub(crate) rows: u64,
}

/// Numbers of splits by execution mode.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct SplitsReport {
    pub(crate) compute: u64,
    pub(crate) put: u64,
    pub(crate) get: u64,
    /// Of the computed splits: those whose storing was started and abandoned.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) fell_back: u64,
    /// Of those put: begun before the decision, and stored from the backfill buffer.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) backfilled: u64,
    /// The former name of `backfilled`, written for one more version.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) kept: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl RunReport {
    /// A report without epochs.
    pub(crate) fn new() -> Self {
        Self {
            schema: "caju.run/v1",
            fingerprint: String::new(),
            epochs: Vec::new(),
            decision: None,
            boundaries: Vec::new(),
            not_stored: None,
            peak_rss_bytes: 0,
            cpu_s: 0.0,
        }
    }

    /// Writes the report, completely or not at all.
    ///
    /// # Errors
    /// `PermissionDenied` or `Unavailable` if the file cannot be written, with its name.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text =
            serde_json::to_string_pretty(self).map_err(|e| Error::internal(format!("report: {e}")))? + "\n";
        write_whole(path, &text, "--report")
    }
}

/// Writes a small file under a temporary name and renames it, so that no reader sees half of it.
///
/// # Errors
/// The error of the system, with the option and the file.
pub(crate) fn write_whole(path: &Path, text: &str, option: &str) -> Result<()> {
    write_bytes(path, text.as_bytes(), option)
}

/// As [`write_whole`], for a file that is not text.
///
/// # Errors
/// As [`write_whole`].
pub(crate) fn write_bytes(path: &Path, bytes: &[u8], option: &str) -> Result<()> {
    let replace = is_replaced(path);
    let temporary = temporary(path);
    let written = match replace {
        // On the disk before it replaces what was there, which a power loss would take otherwise.
        true => std::fs::File::create(&temporary)
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(&temporary, path)),
        false => std::fs::OpenOptions::new().write(true).truncate(true).open(path).and_then(|mut f| {
            f.write_all(bytes)?;
            f.flush()
        }),
    };
    written.map_err(|e| {
        if replace {
            drop(std::fs::remove_file(&temporary));
        }
        cannot_write(path, option, &e)
    })
}

/// Whether a file can be written, before the work whose outcome it is to hold.
///
/// # Errors
/// As [`write_whole`].
pub(crate) fn check_writable(path: &Path, option: &str) -> Result<()> {
    if path.is_dir() {
        return Err(Error::invalid(format!("{option} {}: this is a folder; name a file", path.display())));
    }
    if !is_replaced(path) {
        return Ok(());
    }
    let temporary = temporary(path);
    std::fs::File::create(&temporary)
        .and_then(|_| std::fs::remove_file(&temporary))
        .map_err(|e| cannot_write(path, option, &e))
}

/// Whether a file is replaced. Only regular files are: a link, a pipe or a device such as /dev/stdout is written to.
fn is_replaced(path: &Path) -> bool {
    std::fs::symlink_metadata(path).map_or(true, |m| m.is_file())
}

/// The file that replaces another one when it is complete.
fn temporary(path: &Path) -> std::path::PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".tmp-{}", std::process::id()));
    path.with_file_name(name)
}

fn cannot_write(path: &Path, option: &str, e: &std::io::Error) -> Error {
    let message = format!("{option} {}: {e}", path.display());
    match e.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(format!("{message}; create the folder first")),
        std::io::ErrorKind::PermissionDenied => Error::permission_denied(message),
        _ => Error::unavailable(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_written_through_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "something longer").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_whole(&link, "report", "--report").unwrap();
        assert!(link.is_symlink(), "the link is there still");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "report");
        let e = write_whole(dir.path(), "report", "--report").unwrap_err();
        assert!(e.message().starts_with("--report "), "{e}");
    }

    /// Other programs read these names.
    #[test]
    fn fields_are_as_documented() {
        let mut report = RunReport::new();
        report.epochs.push(EpochReport {
            rows_skipped: 0,
            received_bytes: 0,
            mapped_bytes: 0,
            padded_rows: 0,
            rounds: None,
            consumer_wait_s: None,
            surplus_elements: 0,
            first_skips: Vec::new(),
            source_changed: None,
            incomplete: None,
            epoch: 0,
            rows: 10,
            batches: 2,
            wall_s: 0.5,
            rows_per_s: 20.0,
            first_batch_s: 0.1,
            tail_s: 0.1,
            wait_s: 0.2,
            rows_checksum: None,
            source_bytes_read: 1,
            cache_bytes_read: 0,
            cache_bytes_written: 0,
            splits: SplitsReport { compute: 3, ..SplitsReport::default() },
            shared: None,
            bytes: 99,
        });
        let json = serde_json::to_value(&report).unwrap();
        let keys = |v: &serde_json::Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(
            keys(&json),
            ["schema", "fingerprint", "epochs", "decision", "not_stored", "peak_rss_bytes", "cpu_s"]
        );
        let epoch = [
            "epoch",
            "rows",
            "batches",
            "wall_s",
            "rows_per_s",
            "first_batch_s",
            "tail_s",
            "wait_s",
            "rows_checksum",
            "source_bytes_read",
            "cache_bytes_read",
            "cache_bytes_written",
            "splits",
        ];
        assert_eq!(keys(&json["epochs"][0]), epoch);
        assert_eq!(json["epochs"][0]["splits"], serde_json::json!({"compute": 3, "put": 0, "get": 0}));
    }

    fn job(shared: Option<SharedUse>, tasks: u32) -> JobStatus {
        let served = Some(caju_proto::v1::TaskServed { shared, ..Default::default() });
        JobStatus { sharing: "exact".into(), served, tasks, ..JobStatus::default() }
    }

    #[test]
    fn what_is_shared_is_there_or_the_report_says_what_is_not_known() {
        let shared = |unreported_tasks| {
            let shared = SharedUse { computed_rows: 8, unreported_tasks, ..SharedUse::default() };
            Some(shared)
        };
        let json = |job: Option<&JobStatus>, began_again| {
            serde_json::to_value(SharedReport::at_end(job, true, began_again)).unwrap()
        };
        let exact = json(Some(&job(shared(0), 0)), false);
        let fields = [
            "computed_rows",
            "window_rows",
            "window_hits",
            "taken_over",
            "skipped",
            "reused_bytes",
            "read_back",
        ];
        assert_eq!(exact.as_object().unwrap().keys().collect::<Vec<_>>(), fields);
        for (of, began_again, says) in [
            (job(shared(2), 0), false, "2 tasks were lost or taken over without a last report"),
            (job(shared(0), 1), false, "1 tasks have not reported their end"),
            (job(shared(0), 0), true, "the epoch was opened again in its middle"),
        ] {
            let report = json(Some(&of), began_again);
            assert_eq!(report["computed_rows"], 8, "at least that");
            assert!(report["unknown"].as_str().unwrap().contains(says), "{report}");
            let read: SharedReport = serde_json::from_value(report.clone()).unwrap();
            assert_eq!(serde_json::to_value(read).unwrap(), report);
        }
        let nothing = json(None, false);
        assert_eq!(nothing.as_object().unwrap().keys().collect::<Vec<_>>(), ["unknown"]);
        let nothing = json(Some(&job(None, 0)), true);
        assert_eq!(nothing.as_object().unwrap().keys().collect::<Vec<_>>(), ["unknown"]);
    }

    #[test]
    fn a_job_that_shares_nothing_has_no_section() {
        assert_eq!(SharedReport::at_end(None, false, false), None);
        assert_eq!(
            SharedReport::at_end(Some(&job(None, 0)), true, false),
            None,
            "its workers have no window"
        );
        let alone = JobStatus { sharing: String::new(), ..job(None, 1) };
        assert_eq!(SharedReport::at_end(Some(&alone), false, true), None);
    }

    #[test]
    fn a_missing_folder_is_named() {
        let e = RunReport::new().write(Path::new("/nowhere/at/all/run.json")).unwrap_err();
        assert!(e.message().contains("/nowhere/at/all/run.json"), "{e}");
    }
}
