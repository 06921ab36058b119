//! What `caju quickstart` says around the epochs.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use caju_planner::Choice;
use caju_types::format_duration;

use crate::commands::decision::measured_and_estimated;
use crate::report::{EpochReport, RunReport};
use crate::text::wrapped;

/// What happens in the next minute.
pub(super) fn introduction(epochs: u64) -> String {
    if epochs < 2 {
        return "A single epoch follows. It computes every row and stores none, because no later epoch would read them."
            .to_owned();
    }
    wrapped(
        &format!(
            "{epochs} epochs follow. At each `autocache` hint rows may be stored and read again by later epochs. The first \
             epoch measures whether that is faster than computing them, and at which hint."
        ),
        0,
    )
}

/// What was gained, where the stored rows are, and what to do next. `snapshot` is the folder of the stored rows, if
/// there are any.
pub(super) fn conclusion(report: &RunReport, cache: &str, snapshot: Option<&str>) -> String {
    let mut out = String::new();
    let gained = gain(&report.epochs).into_iter().chain(stored_late(&report.epochs));
    let sentences: Vec<String> = gained.chain(measured_and_estimated(report)).collect();
    if !sentences.is_empty() {
        let _ = write!(out, "\n{}\n", wrapped(&sentences.join(" "), 0));
    }
    if from_earlier_run(&report.epochs) {
        let text = "An earlier run stored these rows, so this one read them from its first epoch on.";
        let _ = write!(out, "\n{text}\nTo see the decision again, remove {cache}\n");
    }
    let stored = report.epochs.iter().any(|e| e.splits.put + e.splits.get > 0);
    if let Some(parts) = snapshot.filter(|_| stored) {
        let _ = write!(out, "\n{}\n", stored_rows(report, cache, parts));
    }
    let _ = write!(out, "\n{}", own_data(&command()));
    out
}

/// How the user runs this binary.
fn command() -> String {
    let Ok(binary) = std::env::current_exe() else { return "caju".to_owned() };
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let searched: Vec<PathBuf> = std::env::split_paths(&searched).collect();
    command_for(&binary, &searched, &std::env::current_dir().unwrap_or_default())
}

/// `caju` if the binary has this name and is in a folder of the search path, else the path of the binary.
fn command_for(binary: &Path, searched: &[PathBuf], working_folder: &Path) -> String {
    let is_searched = searched.iter().any(|folder| binary.parent() == Some(folder));
    if is_searched && binary.file_stem().is_some_and(|name| name == "caju") {
        return "caju".to_owned();
    }
    let path = match binary.strip_prefix(working_folder) {
        // Shells look up a name without a folder in the search path only.
        Ok(name) if name.components().count() == 1 => Path::new(".").join(name),
        Ok(below) => below.to_owned(),
        Err(_) => binary.to_owned(),
    };
    path.display().to_string()
}

fn own_data(caju: &str) -> String {
    format!(
        "For your own data print the pipeline into a file
  {caju} quickstart --print-pipeline > my.yaml
and change
{OWN_DATA}
Then run
  {caju} check my.yaml
  {caju} run my.yaml --epochs 3 --cache data/my-cache"
    )
}

const OWN_DATA: &str = "  source         the format and the paths of your files: { parquet: { path: \"s3://bucket/train/*.parquet\" } };
                 the other formats are csv, json, arrow, tfrecord, webdataset, and images (a folder of them)
  parse_example  your features, if you read TFRecord files; delete it for Parquet, CSV, JSON lines and the others
  map            the names of your columns
  with_columns   what your model needs: docs/functions.md lists the functions of expressions, and
                 docs/python/README.md shows how to use functions in Python
  autocache      keep a hint where your model may see the same values in every epoch";

/// How much faster the last epoch was than the first.
fn gain(epochs: &[EpochReport]) -> Option<String> {
    let (first, last) = (epochs.first()?, epochs.last()?);
    let computed = first.splits.get == 0;
    let read = last.splits.get > 0 && last.splits.compute + last.splits.put == 0;
    if !computed || !read || last.wall_s <= 0.0 {
        return None;
    }
    let times = times(first.wall_s / last.wall_s);
    let seconds = |s: f64| format_duration(Duration::try_from_secs_f64(s).unwrap_or_default());
    // A decision at the end of a short epoch is carried out in the next one.
    let did = if first.splits.put > 0 { "measured, computed and stored" } else { "measured and computed" };
    Some(format!(
        "Epoch {} read all rows from the snapshot and took {} instead of {}: {times} as fast as epoch {}, which \
         {did} them.",
        last.epoch,
        seconds(last.wall_s),
        seconds(first.wall_s),
        first.epoch,
    ))
}

/// Why an epoch after the decision computed rows. None if none did.
fn stored_late(epochs: &[EpochReport]) -> Option<String> {
    let (first, later) = epochs.split_first()?;
    let late = later.iter().find(|e| e.splits.put > 0 && e.splits.get > 0)?;
    let splits = if late.splits.put == 1 { "split" } else { "splits" };
    Some(format!(
        "Epoch {} stored the {} {splits} that epoch {} had computed before the decision, and read the others.",
        late.epoch, late.splits.put, first.epoch
    ))
}

/// A quotient of two times: `6.2 times`, or `about 22 times`. One more digit above 10 would suggest a precision that the times
/// of two short epochs do not have.
fn times(quotient: f64) -> String {
    if quotient < 9.95 { format!("{quotient:.1} times") } else { format!("about {quotient:.0} times") }
}

fn from_earlier_run(epochs: &[EpochReport]) -> bool {
    epochs.first().is_some_and(|e| e.splits.get > 0)
}

/// Where the rows are, and a line that shows them.
fn stored_rows(report: &RunReport, cache: &str, parts: &str) -> String {
    let format = match report.decision.as_ref().map(|d| &d.choice) {
        Some(Choice::Materialize { format, .. }) => format.as_str(),
        Some(Choice::Compute) | None => "arrow",
    };
    let name = if format == "parquet" { "Parquet" } else { "Arrow" };
    let query = "select label, count(*) as photos from rows group by label order by label";
    format!(
        "The stored rows are ordinary {name} files in {parts}\n\
         To look at them in DuckDB (after `pip install duckdb pyarrow`):\n  \
         python3 -c \"import duckdb, pyarrow.dataset as d; rows = d.dataset('{parts}', format='{format}'); \
         print(duckdb.sql('{query}'))\"\n\
         `{} cache ls --cache {cache}` lists all that is stored.",
        command()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::decision::tests::{decision, option};
    use crate::report::SplitsReport;

    fn epoch(epoch: u64, wall_s: f64, splits: SplitsReport) -> EpochReport {
        EpochReport {
            epoch,
            rows: 2000,
            batches: 16,
            wall_s,
            rows_per_s: 2000.0 / wall_s,
            first_batch_s: 0.1,
            wait_s: 0.1,
            splits,
            ..EpochReport::default()
        }
    }

    fn report(epochs: Vec<EpochReport>) -> RunReport {
        let choice = Choice::Materialize {
            hint: "resized".into(),
            format: "arrow".into(),
            compression: "none".into(),
            fraction: 1.0,
        };
        let mut made = decision(choice.clone(), "Reading is faster.");
        made.options = vec![option(Choice::Compute, 1100.0), option(choice, 1_118_932.0)];
        RunReport { epochs, decision: Some(made), ..RunReport::new() }
    }

    #[test]
    fn a_first_run_reports_the_gain_and_where_the_rows_are() {
        let stored = SplitsReport { put: 14, ..SplitsReport::default() };
        let read = SplitsReport { get: 14, ..SplitsReport::default() };
        let text = conclusion(
            &report(vec![epoch(0, 3.0, stored), epoch(1, 0.1, read)]),
            "/c",
            Some("/c/v1/f/parts"),
        );
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("took 100.0 ms instead of 3.00 s: about 30 times as fast as"), "{text}");
        let rates = "Measured: 667 rows/s in epoch 0 and 20,000 rows/s in epoch 1. The planner's estimate for the workers \
                     alone: 1,100 rows/s by computing and 1,118,932 rows/s by reading stored rows.";
        assert!(words.contains(rates), "{text}");
        assert!(text.contains("Arrow files in /c/v1/f/parts\n") && text.contains("duckdb.sql("), "{text}");
        assert!(text.contains("For your own data") && !text.contains("earlier run"), "{text}");
        for word in
            ["--print-pipeline > my.yaml", "delete it for Parquet, CSV, JSON lines", "docs/python/README.md"]
        {
            assert!(text.contains(word), "{word}: {text}");
        }
        // A test's binary is in no folder of the search path: its path is a command that works.
        let binary = std::env::current_exe().unwrap();
        let name = binary.file_name().unwrap().to_str().unwrap();
        assert!(text.contains(&format!("{name} check my.yaml")), "{text}");
    }

    #[test]
    #[cfg(unix)]
    fn the_command_is_one_that_a_shell_finds() {
        let command = |binary: &str| {
            command_for(Path::new(binary), &["/usr/bin".into(), "/opt/bin".into()], Path::new("/home/me"))
        };
        assert_eq!(command("/opt/bin/caju"), "caju");
        assert_eq!(command("/opt/bin/caju-2"), "/opt/bin/caju-2");
        assert_eq!(command("/home/me/caju"), "./caju");
        assert_eq!(command("/home/me/target/release/caju"), "target/release/caju");
        assert_eq!(command("/srv/caju"), "/srv/caju");
    }

    #[test]
    fn a_large_quotient_has_no_decimals() {
        assert_eq!(
            [times(6.24), times(9.96), times(21.9)],
            ["6.2 times", "about 10 times", "about 22 times"]
        );
    }

    #[test]
    fn the_first_epoch_stored_rows_only_if_it_did() {
        let compute = SplitsReport { compute: 14, ..SplitsReport::default() };
        let put = SplitsReport { put: 14, ..SplitsReport::default() };
        let get = SplitsReport { get: 14, ..SplitsReport::default() };
        let late = [epoch(0, 3.0, compute), epoch(1, 3.0, put), epoch(2, 0.1, get)];
        assert!(gain(&late).unwrap().ends_with("epoch 0, which measured and computed them."));
        assert!(gain(&late[1..]).unwrap().ends_with("epoch 1, which measured, computed and stored them."));
    }

    #[test]
    fn an_epoch_that_stores_the_remainder_is_explained() {
        let splits = |compute, put, get| SplitsReport { compute, put, get, ..SplitsReport::default() };
        let epochs = [splits(4, 8, 0), splits(0, 4, 8), splits(0, 0, 12)];
        let epochs: Vec<_> = (0..).zip(epochs).map(|(n, splits)| epoch(n, 1.0, splits)).collect();
        let why =
            "Epoch 1 stored the 4 splits that epoch 0 had computed before the decision, and read the others.";
        assert_eq!(stored_late(&epochs).as_deref(), Some(why));
        assert_eq!(stored_late(&epochs[..1]), None);
        let text = conclusion(&report(epochs), "/c", Some("/c/v1/f/parts"));
        assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains(why), "{text}");
    }

    #[test]
    fn a_second_run_says_that_the_rows_were_there() {
        let read = SplitsReport { get: 14, ..SplitsReport::default() };
        let text =
            conclusion(&report(vec![epoch(0, 0.1, read), epoch(1, 0.1, read)]), "/c", Some("/c/v1/f/parts"));
        assert!(text.contains("An earlier run stored") && !text.contains("times as fast"), "{text}");
    }

    #[test]
    fn without_a_snapshot_nothing_is_pointed_at() {
        let computed = SplitsReport { compute: 14, ..SplitsReport::default() };
        let text = conclusion(&report(vec![epoch(0, 3.0, computed)]), "/c", None);
        assert!(!text.contains("DuckDB") && text.contains("For your own data"), "{text}");
    }
}
