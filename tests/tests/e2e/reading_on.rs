//! `caju read --state FILE`: a reader that is stopped, and one that reads on.

use caju_tests::cluster::Cluster;
use caju_tests::pipeline::{Pipeline, Report};
use serde_json::json;

const ROWS: u64 = 60_000;

fn slow() -> Pipeline {
    let steps = json!([{ "burn": { "per_row": "50us" } }, { "shuffle": 500 }, { "batch": 10 }]);
    Pipeline::of(json!({ "range": ROWS }), steps)
}

#[test]
fn a_reader_that_is_stopped_is_read_on_by_another_with_option_state() {
    let cluster = Cluster::start(2);
    let p = slow();
    let file = p.folder().join("state.json");
    let state = file.to_str().unwrap();
    for signal in ["TERM", "INT"] {
        let more = ["--no-checksum", "--job", signal, "--report", "first.json"];
        let reader = cluster.start_read(&p, &[&["--state", state][..], &more].concat());
        cluster.wait_for_status("rows", |s| {
            let job = s["jobs"].as_array()?.iter().find(|j| j["job"] == signal)?;
            (job["readers"].as_array()?.first()?["rows"].as_u64()? > 0).then_some(())
        });
        reader.signal(signal);
        reader.wait().expect_error(&["the state is written"]);
    }
    let written: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let before = written["rows"].as_u64().unwrap();
    assert!(0 < before && before < ROWS && written["exhausted"] == false, "{written}");
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(p.folder().join("first.json")).unwrap()).unwrap();
    // What was in hand or under way when the signal came is not in the state.
    let rows = report["epochs"][0]["rows"].as_u64().unwrap();
    assert!(0 < rows && rows < ROWS, "the report says how far the second reader came: {report}");
    let elsewhere = Cluster::start(1);
    let args = ["--state", state, "--resume", "--report", "report.json", "--epochs", "2"];
    elsewhere.read(&p, &args).expect_code(0);
    assert_eq!(Report::load(&p.folder().join("report.json")).rows(), [ROWS - before, ROWS]);
    // At the end of the last epoch nothing is left.
    elsewhere.read(&p, &args).expect_code(0);
    assert!(Report::load(&p.folder().join("report.json")).rows().is_empty());
    // A state of an epoch's end is of one dataset, seed and mode, too.
    let other = Pipeline::of(json!({ "range": 10 }), json!([]));
    for (pipeline, more, said) in [
        (&other, &[][..], "another dataset"),
        (&p, &["--seed", "77"][..], "another seed"),
        (&p, &["--processing-mode", "off"][..], "another processing mode"),
    ] {
        let args = [&["--state", state, "--epochs", "3"], more].concat();
        elsewhere.read(pipeline, &args).expect_code(2).expect_error(&["state.json", said]);
    }
    assert_eq!(Report::load(&p.folder().join("report.json")).rows().len(), 0);
}

/// A reader that is killed in a later epoch leaves the state of the last epoch's end, which says that nothing of the later one was
/// taken. The next reader with that state reads all of it.
#[test]
fn an_epoch_begins_again_for_the_state_of_the_end_of_the_one_before() {
    let cluster = Cluster::start_with(1, &["--client-timeout", "2s"], &[]);
    let p = Pipeline::of(
        json!({ "range": 5_000 }),
        json!([{ "sleep": { "per_row": "200us" } }, { "batch": 10 }]),
    );
    let file = p.folder().join("state.json");
    let state = file.to_str().unwrap();
    let args = ["--state", state, "--job", "killed", "--epochs", "3", "--report", "report.json"];
    let kill_in_epoch = |epoch: u64| {
        let reader = cluster.start_read(&p, &args);
        cluster.wait_for_status("rows of the epoch", |s| {
            let mut jobs = s["jobs"].as_array()?.iter();
            let job = jobs.find(|j| j["epoch"] == epoch && j["clients"] == 1)?;
            (job["readers"].as_array()?.first()?["rows"].as_u64()? > 0).then_some(())
        });
        reader.signal("KILL");
        drop(reader.wait());
    };
    kill_in_epoch(0);
    assert!(!file.exists(), "no state was written");
    kill_in_epoch(1);
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.contains("\"epoch\":0") && written.contains("\"exhausted\":true"), "{written}");
    // A reader without the state would get the rest of the epoch alone.
    cluster.wait_for_status("the loss of the reader", |s| {
        let mut jobs = s["jobs"].as_array()?.iter();
        jobs.find(|j| j["epoch"] == 1 && j["clients"] == 0).map(|_| ())
    });
    cluster.read(&p, &["--job", "killed", "--epochs", "2"]).expect_error(&["another job name"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), written, "nothing better was written over it");
    cluster.read(&p, &args).expect_code(0);
    let report = Report::load(&p.folder().join("report.json"));
    let whole = Pipeline::of(json!({ "range": 5_000 }), json!([])).report(&[]).checksums();
    assert_eq!((report.rows(), &report.checksums()[0]), (vec![5_000, 5_000], &whole[0]), "epochs 1 and 2");
    // An epoch that was read to its end begins again for another launch alone.
    std::fs::write(&file, &written).unwrap();
    cluster.read(&p, &args).expect_error(&["--attempt"]);
    cluster.read(&p, &[&args[..], &["--attempt", "second"]].concat()).expect_code(0);
    assert_eq!(Report::load(&p.folder().join("report.json")).rows(), [5_000, 5_000]);
    std::fs::write(&file, written.replace("\"rows\":5000", "\"rows\":4999")).unwrap();
    cluster.read(&p, &args).expect_code(2).expect_error(&["state.json", "damaged"]);
    cluster.stop();
}

/// Readers of a later launch begin again, and those of an earlier one are refused, by option attempt.
#[test]
fn a_reader_of_an_earlier_launch_is_refused_with_option_attempt() {
    let cluster = Cluster::start(1);
    let p = Pipeline::of(
        json!({ "range": 5_000 }),
        json!([{ "sleep": { "per_row": "100us" } }, { "batch": 10 }]),
    );
    let file = p.folder().join("state.json");
    let state = file.to_str().unwrap();
    let reader = cluster.start_read(&p, &["--state", state, "--no-checksum", "--job", "stopped"]);
    cluster.wait_for_status("rows", |s| {
        (s["jobs"].as_array()?.first()?["readers"].as_array()?.first()?["rows"].as_u64()? > 0).then_some(())
    });
    reader.signal("TERM");
    reader.wait().expect_error(&["the state is written"]);
    let written = std::fs::read_to_string(&file).unwrap();
    let restore = |attempt| {
        std::fs::write(&file, &written).unwrap();
        cluster.read(&p, &["--state", state, "--job", "restored", "--attempt", attempt])
    };
    restore("first").expect_code(0);
    restore("second").expect_code(0);
    restore("first").expect_error(&["attempt `second`", "came before it"]);
}

#[test]
fn ckp_06_no_state_at_the_path_is_not_found_with_option_resume() {
    let cluster = Cluster::start(1);
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    let missing = p.folder().join("none.json");
    let missing = missing.to_str().unwrap();
    cluster
        .read(&p, &["--state", missing, "--resume"])
        .expect_code(2)
        .expect_error(&["none.json", "no state to continue from"]);
    let damaged = p.folder().join("damaged.json");
    std::fs::write(&damaged, "{}").unwrap();
    let damaged = damaged.to_str().unwrap();
    cluster.read(&p, &["--state", damaged]).expect_code(2).expect_error(&["not a state of a caju reader"]);
}
