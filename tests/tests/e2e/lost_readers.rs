//! Readers that are killed or make no progress: the others get their rows, or an error that says how many are missing.

use caju_tests::cluster::Cluster;
use caju_tests::pipeline::{Pipeline, Report};
use caju_tests::process::Process;
use serde_json::{Value, json};

const ROWS: u64 = 150_000;

/// Rows that cost CPU time, in many splits.
fn slow() -> Pipeline {
    Pipeline::of(json!({ "range": ROWS }), json!([{ "burn": { "per_row": "50us" } }, { "batch": 100 }]))
}

fn cluster() -> Cluster {
    Cluster::start_with(2, &["--client-timeout", "2s"], &[])
}

fn job(status: &Value) -> Option<&Value> {
    status["jobs"].as_array()?.first()
}

/// Waits until readers have taken rows.
fn wait_for_rows(cluster: &Cluster) {
    cluster.wait_for_status("rows", |s| {
        let rows = job(s)?["stages"].as_array()?.last()?["rows_out"].as_u64()?;
        (rows > 20_000).then_some(())
    });
}

fn start(cluster: &Cluster, p: &Pipeline, report: &str, more: &[&str]) -> Process {
    let mut args = vec!["--job", "train", "--report", report];
    args.extend(more);
    cluster.start_read(p, &args)
}

fn report(p: &Pipeline, name: &str) -> Report {
    Report::load(&p.folder().join(name))
}

/// Rows that a report has, those that are missing by its word, and those that lost readers took.
fn account(report: &Report) -> (u64, u64, u64) {
    let incomplete = &report.epochs("incomplete")[0];
    let number = |key: &str| incomplete[key].as_u64().unwrap_or(0);
    (report.rows()[0], number("rows_missing"), number("rows_taken_by_lost_readers"))
}

#[test]
fn a_reader_that_is_killed_and_started_again_at_once_is_reported_what_is_missing() {
    let cluster = cluster();
    let p = slow();
    let first = start(&cluster, &p, "first.json", &[]);
    wait_for_rows(&cluster);
    first.signal("KILL");
    let again = start(&cluster, &p, "again.json", &[]).wait();
    again.expect_code(3).expect_error(&[
        "incomplete",
        "vanished after its user had taken",
        "--lost-readers allow",
    ]);
    let (rows, missing, taken) = account(&report(&p, "again.json"));
    assert!(missing > 0 && rows > 0);
    assert_eq!((rows + missing, missing), (ROWS, taken), "every row is with one of them");
    let state = cluster.wait_for_status("the state", |s| Some(job(s)?["state"].clone()));
    assert_eq!(state, "incomplete");
    cluster.stop();
}

#[test]
fn a_reader_that_is_started_again_later_is_refused_unless_it_accepts_the_loss() {
    let cluster = cluster();
    let p = slow();
    let first = start(&cluster, &p, "first.json", &[]);
    wait_for_rows(&cluster);
    first.signal("KILL");
    cluster.wait_for_status("no reader", |s| (job(s)?["clients"] == 0).then_some(()));
    let again = start(&cluster, &p, "again.json", &[]).wait();
    again.expect_code(3).expect_error(&["is incomplete", "another job name", "--lost-readers allow"]);
    start(&cluster, &p, "allowed.json", &["--lost-readers", "allow"]).wait().expect_code(0);
    let (rows, missing, taken) = account(&report(&p, "allowed.json"));
    assert_eq!((rows + taken, missing), (ROWS, 0));
    // Another job reads everything.
    let whole = cluster.report(&p, &["--job", "other"]);
    assert_eq!(whole.rows(), [ROWS]);
    assert!(whole.epochs("incomplete")[0].is_null());
    cluster.stop();
}

/// A cluster that needs longer to miss a reader than the remainder of an epoch takes, as with the default timeouts.
fn patient_cluster() -> Cluster {
    Cluster::start_with(2, &["--client-timeout", "20s"], &[])
}

#[test]
fn a_reader_that_is_killed_near_the_end_is_missed_before_the_epoch_ends() {
    let cluster = patient_cluster();
    let p = slow();
    let first = start(&cluster, &p, "first.json", &[]);
    wait_for_rows(&cluster);
    first.signal("KILL");
    let again = start(&cluster, &p, "again.json", &[]).wait();
    again.expect_code(3).expect_error(&["incomplete", "vanished after its user had taken"]);
    let (rows, missing, taken) = account(&report(&p, "again.json"));
    assert_eq!((rows + missing, missing), (ROWS, taken), "every row is with one of them");
    cluster.stop();
}

#[test]
fn a_reader_that_stands_still_near_the_end_is_missed_before_the_epoch_ends() {
    let cluster = patient_cluster();
    let p = slow();
    let (stopped, other) = (start(&cluster, &p, "stopped.json", &[]), start(&cluster, &p, "other.json", &[]));
    cluster.wait_for_status("both readers", |s| (job(s)?["clients"] == 2).then_some(()));
    wait_for_rows(&cluster);
    stopped.signal("STOP");
    other.wait().expect_code(3).expect_error(&["incomplete", "vanished after its user had taken"]);
    let (rows, missing, taken) = account(&report(&p, "other.json"));
    assert_eq!((rows + missing, missing), (ROWS, taken));
    stopped.signal("KILL");
    cluster.stop();
}

#[test]
fn a_reader_that_stands_still_is_expelled_and_the_other_one_gets_what_it_did_not_take() {
    let cluster = cluster();
    let p = slow();
    let (stopped, other) = (start(&cluster, &p, "stopped.json", &[]), start(&cluster, &p, "other.json", &[]));
    cluster.wait_for_status("both readers", |s| (job(s)?["clients"] == 2).then_some(()));
    wait_for_rows(&cluster);
    stopped.signal("STOP");
    let other = other.wait();
    other.expect_code(3).expect_error(&["incomplete", "vanished after its user had taken"]);
    let (rows, missing, taken) = account(&report(&p, "other.json"));
    assert!(missing > 0);
    assert_eq!((rows + missing, missing), (ROWS, taken), "what was in its window came to the other one");
    stopped.signal("CONT");
    stopped.wait().expect_code(3).expect_error(&["client timeout of 2"]);
    cluster.stop();
}

#[test]
fn two_readers_of_a_job_end_well_together() {
    let cluster = cluster();
    let p = slow();
    let (one, two) = (start(&cluster, &p, "one.json", &[]), start(&cluster, &p, "two.json", &[]));
    one.wait().expect_code(0);
    two.wait().expect_code(0);
    assert_eq!(report(&p, "one.json").rows()[0] + report(&p, "two.json").rows()[0], ROWS);
    cluster.wait_for_status("the end", |s| (job(s)?["state"] == "finished").then_some(()));
    cluster.stop();
}
