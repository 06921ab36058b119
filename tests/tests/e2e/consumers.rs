//! Consumers of a job through `caju read`: the same number of elements for each.

use caju_tests::cluster::Cluster;
use caju_tests::pipeline::{Pipeline, Report};
use caju_tests::process::Process;
use serde_json::{Value, json};

fn start(cluster: &Cluster, p: &Pipeline, index: u32, count: u32, more: &[&str]) -> (Process, String) {
    let (count, report) = (count.to_string(), format!("consumer-{index}.json"));
    let index = index.to_string();
    let mut args = vec!["--num-consumers", &count, "--consumer-index", &index, "--report", &report];
    args.extend(more);
    (cluster.start_read(p, &args), report.clone())
}

/// What each of several consumers reports.
fn read(cluster: &Cluster, p: &Pipeline, count: u32, more: &[&str]) -> Vec<Value> {
    let running: Vec<_> = (0..count).map(|index| start(cluster, p, index, count, more)).collect();
    running
        .into_iter()
        .map(|(process, report)| {
            process.wait().expect_code(0);
            serde_json::from_slice(&std::fs::read(p.folder().join(report)).unwrap()).unwrap()
        })
        .collect()
}

fn sum(reports: &[Value]) -> u128 {
    let of = |r: &Value| u128::from_str_radix(r["epochs"][0]["rows_checksum"].as_str().unwrap(), 16).unwrap();
    reports.iter().fold(0, |sum, r| sum.wrapping_add(of(r)))
}

fn field(reports: &[Value], name: &str) -> Vec<u64> {
    reports.iter().map(|r| r["epochs"][0][name].as_u64().unwrap_or(0)).collect()
}

#[test]
fn consumers_get_the_same_number_of_elements_by_drop_and_by_pad() {
    let cluster = Cluster::start(2);
    let p = Pipeline::of(json!({ "range": 10_000 }), json!([{ "shuffle": 200 }, { "batch": 64 }]));
    // 157 batches, the last one short.
    let dropped = read(&cluster, &p, 3, &["--job", "drop"]);
    assert_eq!(field(&dropped, "batches"), [52, 52, 52]);
    assert_eq!(field(&dropped, "surplus_elements"), [1, 1, 1]);
    let padded = read(&cluster, &p, 3, &["--job", "pad", "--uneven", "pad"]);
    assert_eq!(field(&padded, "batches"), [53, 53, 53]);
    let (rows, copies) = (field(&padded, "rows"), field(&padded, "padded_rows"));
    assert_eq!(rows.iter().sum::<u64>() - copies.iter().sum::<u64>(), 10_000, "every row once, and copies");
    assert!(copies.iter().sum::<u64>() > 0);
    let whole = cluster.report(&p, &[]).checksums();
    assert_eq!(sum(&padded), u128::from_str_radix(&whole[0], 16).unwrap(), "checksums leave padding out");
    let status = cluster.status();
    let job = status["jobs"].as_array().unwrap().iter().find(|j| j["job"] == "pad").unwrap();
    assert_eq!(
        (&job["num_consumers"], &job["padded_elements"], &job["state"]),
        (&json!(3), &json!(2), &json!("finished"))
    );
    cluster.stop();
}

#[test]
fn a_consumer_that_is_killed_ends_the_epoch_of_the_others_and_they_can_start_again() {
    let cluster = Cluster::start_with(1, &["--client-timeout", "2s"], &[]);
    let p =
        Pipeline::of(json!({ "range": 60_000 }), json!([{ "burn": { "per_row": "50us" } }, { "batch": 50 }]));
    let (first, _) = start(&cluster, &p, 0, 2, &["--job", "train"]);
    let (second, _) = start(&cluster, &p, 1, 2, &["--job", "train"]);
    cluster.wait_for_status("rows", |s| {
        let rows = s["jobs"][0]["stages"].as_array()?.last()?["rows_out"].as_u64()?;
        (rows > 2_000).then_some(())
    });
    second.signal("KILL");
    first.wait().expect_code(3).expect_error(&["consumer 1 of 2", "start all consumers again"]);
    let small = Pipeline::of(json!({ "range": 1000 }), json!([{ "batch": 10 }]));
    assert_eq!(field(&read(&cluster, &small, 2, &["--job", "again"]), "batches"), [50, 50]);
    drop(second);
    cluster.stop();
}

#[test]
fn a_consumer_that_does_not_come_is_waited_for_within_the_dispatchers_consumer_wait() {
    let cluster = Cluster::start_with(1, &["--consumer-wait", "500ms"], &[]);
    let p = Pipeline::of(json!({ "range": 100_000 }), json!([{ "batch": 10 }]));
    let (alone, _) = start(&cluster, &p, 1, 3, &["--job", "train"]);
    alone.wait().expect_code(3).expect_error(&["of 3 consumers", "0, 2", "--consumer-wait"]);
    for wrong in [&["--num-consumers", "2"][..], &["--consumer-index", "0"], &["--uneven", "pad"]] {
        cluster.read(&p, wrong).expect_code(2);
    }
    let beyond = cluster.read(&p, &["--job", "j", "--num-consumers", "2", "--consumer-index", "2"]);
    beyond.expect_code(2).expect_error(&["consumer_index 2"]);
    cluster.stop();
}

/// What divides evenly is neither dropped nor repeated, whatever the number of workers, ranks and the batch.
#[test]
fn det_06_what_divides_evenly_comes_exactly_once() {
    for workers in [1, 3] {
        let cluster = Cluster::start(workers);
        for (rows, batch) in [(512, 1), (512, 2), (1024, 2)] {
            let p = Pipeline::of(json!({ "range": rows }), json!([{ "batch": batch }]));
            let job = format!("{rows}-{batch}");
            let reports = read(&cluster, &p, 8, &["--job", &job]);
            assert_eq!(field(&reports, "rows"), [rows / 8; 8]);
            assert_eq!(field(&reports, "surplus_elements"), [0; 8]);
            let whole = Report::load(&{
                cluster.report(&p, &[]);
                p.folder().join("read-report.json")
            });
            assert_eq!(sum(&reports), u128::from_str_radix(&whole.checksums()[0], 16).unwrap());
        }
        cluster.stop();
    }
}
