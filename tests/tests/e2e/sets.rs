//! Hints behind cross-split stages: parts that are stored, and read, all together or not at all.

use std::fs;
use std::path::PathBuf;

use caju_tests::pipeline::Report;
use caju_tests::process::Process;
use caju_tests::{Cluster, Pipeline, caju_in, files};
use serde_json::{Value, json};

/// Files of numbers with a pipeline on them.
fn on_files(count: i64, steps: Value) -> Pipeline {
    let p = Pipeline::of(json!({ "parquet": { "path": "data/*.parquet" } }), steps);
    fs::create_dir_all(p.folder().join("data")).unwrap();
    (0..count).for_each(|n| add_file(&p, n));
    p
}

fn add_file(p: &Pipeline, n: i64) {
    let path = p.folder().join(format!("data/{n}.parquet"));
    files::parquet(&path, vec![("id", files::ints(n * 100..(n + 1) * 100))]);
}

const FULL: [&str; 4] = ["--cache", "cache", "--policy", "full"];

fn full(p: &Pipeline, more: &[&str]) -> Report {
    p.report(&[&FULL[..], more].concat())
}

fn cache(p: &Pipeline, args: &[&str]) -> Value {
    let all = [&["cache"], args, &["--cache", "cache", "--format", "json"]].concat();
    let ended = caju_in(p.folder(), &all);
    ended.expect_code(0);
    serde_json::from_str(&ended.stdout).unwrap()
}

fn explained(p: &Pipeline) -> Value {
    let ended = caju_in(p.folder(), &["explain", "pipeline.yaml", "--cache", "cache", "--format", "json"]);
    ended.expect_code(0);
    let all: Value = serde_json::from_str(&ended.stdout).unwrap();
    all["hints"][0].clone()
}

fn parts(p: &Pipeline) -> Vec<PathBuf> {
    let folders = fs::read_dir(p.folder().join("cache/v1")).unwrap().map(|e| e.unwrap().path().join("parts"));
    let files = folders.filter_map(|f| fs::read_dir(f).ok()).flatten().map(|e| e.unwrap().path());
    files.filter(|f| f.extension().is_some_and(|e| e == "arrow")).collect()
}

#[test]
fn rows_behind_shuffle_and_batch_are_stored_and_read() {
    let steps =
        json!([{ "shuffle": 50 }, { "batch": 7 }, { "with_columns": { "x": "id * 2" } }, "autocache"]);
    let p = on_files(4, steps);
    let want = p.report(&["--policy", "compute"]);
    for workers in ["1", "2"] {
        fs::remove_dir_all(p.folder().join("cache")).ok();
        let report = full(&p, &["--epochs", "3", "--workers", workers]);
        assert_eq!(report.checksums(), vec![want.checksums()[0].clone(); 3]);
        assert_eq!(report.batches(), vec![want.batches()[0]; 3], "the short batches are merged");
        assert_eq!([0, 1, 2].map(|e| report.splits(e)), [[0, 4, 0], [0, 0, 4], [0, 0, 4]]);
        assert_eq!(report.epochs("source_bytes_read")[1], json!(0));
    }
    // Another process, with another number of workers.
    assert_eq!(full(&p, &["--workers", "3"]).splits(0), [0, 0, 4]);
    let hint = explained(&p);
    assert_eq!(
        (&hint["state"], &hint["cross_split_stage"], &hint["rows"]),
        (&json!("hit"), &json!("shuffle"), &json!(400))
    );
    assert_eq!(cache(&p, &["verify"])["damaged"], json!([]));
    assert_eq!(cache(&p, &["ls"])["snapshots"][0]["splits_total"], 4);
}

#[test]
fn a_source_that_grew_is_stored_again() {
    let p = on_files(2, json!([{ "repeat": 2 }, { "shuffle": 30 }, "autocache", { "batch": 10 }]));
    assert_eq!(full(&p, &[]).splits(0), [0, 4, 0]);
    add_file(&p, 2);
    assert_eq!(explained(&p)["state"], "miss");
    let report = full(&p, &["--epochs", "2"]);
    assert_eq!(report.rows(), [600, 600]);
    assert_eq!([0, 1].map(|e| report.splits(e)), [[0, 6, 0], [0, 0, 6]]);
    // The smaller source is still known.
    fs::remove_file(p.folder().join("data/2.parquet")).unwrap();
    assert_eq!(full(&p, &[]).splits(0), [0, 0, 4]);
}

#[test]
fn a_damaged_part_costs_the_set_and_no_row() {
    let p = on_files(3, json!([{ "shuffle": 40 }, "autocache", { "batch": 9 }]));
    let want = full(&p, &[]);
    for thousandth in [5, 400, 990] {
        for part in parts(&p) {
            let mut bytes = fs::read(&part).unwrap();
            let at = bytes.len() * thousandth / 1000;
            bytes[at] ^= 8;
            fs::write(&part, bytes).unwrap();
        }
        let report = full(&p, &["--epochs", "3"]);
        assert_eq!(report.checksums(), vec![want.checksums()[0].clone(); 3], "damaged at {thousandth}/1000");
        assert_eq!([1, 2].map(|e| report.splits(e)), [[0, 3, 0], [0, 0, 3]], "damaged at {thousandth}/1000");
    }
}

#[test]
fn a_worker_that_is_killed_costs_the_set_and_no_row() {
    let p = Pipeline::of(
        json!({ "range": 40_000 }),
        json!([{ "sleep": { "per_row": "50us" } }, { "shuffle": 100 }, "autocache"]),
    );
    let root = p.folder().join("cache");
    let args = ["--policy", "full"];
    let mut cluster = Cluster::start_with(2, &["--cache", root.to_str().unwrap()], &[]);
    let reading = cluster.start_read(&p, &[&args[..], &["--report", "out.json"]].concat());
    let some = |s: &Value| s["jobs"][0]["splits_leased"].as_u64().filter(|n| *n > 4);
    cluster.wait_for_status("some splits are leased", some);
    let killed = cluster.workers.remove(0);
    killed.process.signal("KILL");
    reading.wait().expect_code(0);
    let report = Report::load(&p.folder().join("out.json"));
    assert_eq!(report.rows(), [40_000]);
    assert_eq!(report.splits(0)[1..], [0, 0]);
    assert_eq!(explained(&p)["state"], "miss");
    cluster.stop();
}

/// A pipeline whose rows come from a stored set alone.
struct Alone {
    p: Pipeline,
    cluster: Cluster,
    /// The epoch of its job that is disturbed, and the rows of each epoch.
    epoch: u64,
    rows: u64,
    checksum: String,
}

impl Alone {
    /// Rows that a `take` chose behind a `shuffle`: epoch 1 would choose others.
    fn chosen(workers: usize) -> Self {
        Self::stored(workers, json!([{ "shuffle": 3000 }, { "take": 600 }, { "autocache": "h" }]), "1ms", 1)
    }

    /// All rows, without the source.
    fn cache_only(workers: usize) -> Self {
        Self::stored(workers, json!([{ "shuffle": 100 }, { "autocache": "h" }]), "300us", 0)
    }

    fn stored(workers: usize, steps: Value, pause: &str, epoch: u64) -> Self {
        let stored = json!({ "source": { "range": 3000 }, "steps": steps });
        let mut slow = stored.clone();
        let below = [json!({ "sleep": { "per_row": pause } }), json!({ "batch": 10 })];
        slow["steps"].as_array_mut().unwrap().extend(below);
        slow["cache_only"] = json!(epoch == 0);
        let p = Pipeline::new(&slow).with_file("stored.yaml", stored.to_string().as_bytes());
        let root = p.folder().join("cache");
        let cluster = Cluster::start_with(workers, &["--cache", root.to_str().unwrap()], &[]);
        let read = ["read", "stored.yaml", "--dispatcher", cluster.address(), "--report", "stored.json"];
        caju_in(p.folder(), &[&read[..], &["--job", "first", "--policy", "full"]].concat()).expect_code(0);
        let report = Report::load(&p.folder().join("stored.json"));
        let (rows, checksum) = (report.rows()[0], report.checksums()[0].clone());
        Self { p, cluster, epoch, rows, checksum }
    }

    fn start(&self, report: &str) -> Process {
        let epochs = (self.epoch + 1).to_string();
        let args = ["--job", "train", "--policy", "full", "--epochs", &epochs, "--report", report];
        self.cluster.start_read(&self.p, &args)
    }

    /// Waits until readers have some rows of the epoch. The addresses of the workers that have tasks.
    fn some_rows(&self, readers: u64) -> Vec<String> {
        let is_read = |j: &&Value| j["job"] == "train" && j["epoch"] == self.epoch && j["clients"] == readers;
        self.cluster.wait_for_status("some rows of the epoch", |s| {
            let job = s["jobs"].as_array()?.iter().find(is_read)?;
            let rows = job["stages"].as_array()?.last()?["rows_out"].as_u64()?;
            let busy = s["workers"].as_array()?.iter().filter(|w| w["tasks"] != json!([]));
            let busy: Vec<String> = busy.filter_map(|w| w["address"].as_str().map(Into::into)).collect();
            (rows > 60 && !busy.is_empty()).then_some(busy)
        })
    }

    fn report(&self, name: &str) -> Report {
        Report::load(&self.p.folder().join(name))
    }

    fn a_worker_is_killed(mut self) {
        let reading = self.start("out.json");
        let busy = self.some_rows(1);
        let at = self.cluster.workers.iter().position(|w| busy.contains(&w.address)).unwrap();
        let killed = self.cluster.workers.remove(at);
        killed.process.signal("KILL");
        reading.wait().expect_code(0);
        let report = self.report("out.json");
        let epochs = report.rows().len();
        assert_eq!(report.rows(), vec![self.rows; epochs]);
        assert_eq!(report.checksums(), vec![self.checksum.clone(); epochs]);
        assert_eq!(report.splits(epochs - 1)[..2], [0, 0], "nothing is computed");
        self.cluster.stop();
    }

    fn a_reader_leaves(self) {
        let (stays, leaves) = (self.start("stays.json"), self.start("leaves.json"));
        self.some_rows(2);
        leaves.signal("INT");
        leaves.wait();
        stays.wait().expect_code(0);
        let reports = [self.report("stays.json"), self.report("leaves.json")];
        let epochs = reports.iter().flat_map(|r| r.0["epochs"].as_array().unwrap());
        let rows = epochs.filter(|e| e["epoch"] == self.epoch).map(|e| e["rows"].as_u64().unwrap());
        assert_eq!(rows.sum::<u64>(), self.rows, "of both readers");
        self.cluster.stop();
    }
}

#[test]
fn a_worker_that_is_killed_changes_no_row_that_a_set_chose() {
    Alone::chosen(2).a_worker_is_killed();
}

#[test]
fn a_reader_that_leaves_changes_no_row_that_a_set_chose() {
    Alone::chosen(1).a_reader_leaves();
}

#[test]
fn an_epoch_without_the_source_goes_on_from_its_set_after_a_worker_was_killed() {
    Alone::cache_only(2).a_worker_is_killed();
}

#[test]
fn an_epoch_without_the_source_goes_on_from_its_set_after_a_reader_left() {
    Alone::cache_only(1).a_reader_leaves();
}

#[test]
fn what_cannot_be_stored_is_said() {
    let p = on_files(2, json!(["repeat", "autocache", { "take": 10 }]));
    p.run(&FULL).expect_code(2).expect_error(&["`repeat` at steps[0] never ends"]);
    let p = on_files(2, json!([{ "batch": 5 }, "autocache"]));
    let off = [&FULL[..], &["--processing-mode", "off"]].concat();
    p.run(&off).expect_code(2).expect_error(&["outside processing mode `dynamic`", "`batch`"]);
}
