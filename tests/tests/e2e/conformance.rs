//! Behaviours that users of such services know, by their ids in docs/conformance.md. Those that look at the
//! order or the values of single elements are in tests/python, which reads as a foreign client.

use caju_tests::cluster::Server;
use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline, caju, caju_in};
use serde_json::{Value, json};
use tempfile::tempdir;

fn range(n: u64, steps: Value) -> Pipeline {
    Pipeline::of(json!({ "range": n }), steps)
}

/// Rows that a `range` divides into many splits: a split of it has at least 1,024.
const MANY: u64 = 30_000;

/// The checksum of a definition's rows, taken in one process.
fn expected(p: &Pipeline) -> u128 {
    sum(&p.report(&["--workers", "1"]))
}

/// The sum of the checksums of all epochs: a checksum is a sum over rows, so sums can be compared for
/// unions.
fn sum(report: &Report) -> u128 {
    report.checksums().iter().fold(0, |n, c| n.wrapping_add(u128::from_str_radix(c, 16).unwrap()))
}

fn times(checksum: u128, n: u128) -> u128 {
    checksum.wrapping_mul(n)
}

/// Several readers at once; each one's report.
fn read_together(cluster: &Cluster, readers: &[(&Pipeline, &[&str])]) -> Vec<Report> {
    let running: Vec<_> = readers
        .iter()
        .enumerate()
        .map(|(i, (p, args))| {
            let report = format!("report-{i}.json");
            let mut all = vec!["--report", &report];
            all.extend(*args);
            (cluster.start_read(p, &all), p.folder().join(&report))
        })
        .collect();
    running
        .into_iter()
        .map(|(process, report)| {
            process.wait().expect_code(0);
            Report::load(&report)
        })
        .collect()
}

#[test]
fn ops_02_off_gives_every_workers_whole_pipeline() {
    let cluster = Cluster::start(3);
    let p = range(10, json!([]));
    let report = cluster.report(&p, &["--processing-mode", "off"]);
    assert_eq!(report.rows(), [30]);
    assert_eq!(sum(&report), times(expected(&p), 3));
    let embedded = p.report(&["--workers", "2", "--processing-mode", "off"]);
    assert_eq!(sum(&embedded), times(expected(&p), 2));
    cluster.stop();
}

#[test]
fn ops_03_the_same_dataset_ten_times() {
    let cluster = Cluster::start(1);
    let p = range(3, json!([]));
    let report = cluster.report(&p, &["--epochs", "10"]);
    assert_eq!(report.rows(), [3; 10]);
    let one = p.report(&["--workers", "1"]).checksums();
    assert_eq!(report.checksums(), vec![one[0].clone(); 10], "each pass is whole");
    cluster.stop();
}

#[test]
fn ops_05_unnamed_jobs_are_independent() {
    let cluster = Cluster::start(1);
    let p = range(10, json!([]));
    for report in read_together(&cluster, &[(&p, &[]), (&p, &[]), (&p, &[])]) {
        assert_eq!(sum(&report), expected(&p));
    }
    cluster.stop();
}

#[test]
fn ops_09_short_batches_are_kept() {
    let cluster = Cluster::start(2);
    let p = range(10, json!([{ "batch": 1000 }]));
    let report = cluster.report(&p, &["--processing-mode", "off"]);
    assert_eq!(report.rows(), [20]);
    assert_eq!(sum(&report), times(expected(&p), 2));
    cluster.stop();
}

#[test]
fn reg_13_other_jobs_share_nothing_and_job_02() {
    let cluster = Cluster::start(1);
    let p = range(10, json!([]));
    let q = range(10, json!([{ "filter": "id >= 0" }]));
    let reports =
        read_together(&cluster, &[(&p, &["--job", "a"]), (&p, &["--job", "b"]), (&q, &[]), (&p, &[])]);
    for report in reports {
        assert_eq!((report.rows(), sum(&report)), (vec![10], expected(&p)));
    }
    cluster.stop();
}

#[test]
fn job_01_readers_of_one_job_share_its_rows() {
    let cluster = Cluster::start(1);
    let p = range(1000, json!([{ "shuffle": 100 }]));
    let args: &[&str] = &["--job", "shared"];
    let reports = read_together(&cluster, &[(&p, args), (&p, args)]);
    assert_eq!(sum(&reports[0]).wrapping_add(sum(&reports[1])), expected(&p));
    cluster.stop();
}

#[test]
fn job_04_shared_epochs() {
    let cluster = Cluster::start(2);
    let p = range(100, json!([]));
    let args: &[&str] = &["--job", "shared", "--epochs", "3"];
    let reports = read_together(&cluster, &[(&p, args), (&p, args)]);
    assert_eq!(sum(&reports[0]).wrapping_add(sum(&reports[1])), times(expected(&p), 3));
    cluster.stop();
}

#[test]
fn job_06_a_named_job_has_full_epochs() {
    let cluster = Cluster::start(2);
    let p = range(10, json!([]));
    let report = cluster.report(&p, &["--job", "named", "--epochs", "5"]);
    assert_eq!(report.rows(), [10; 5]);
    assert_eq!(report.checksums(), vec![p.report(&["--workers", "1"]).checksums()[0].clone(); 5]);
    cluster.stop();
}

#[test]
fn job_10_two_registrations_of_one_job_and_job_08() {
    let cluster = Cluster::start(2);
    let (p, q) = (range(MANY, json!([])), range(MANY, json!([])));
    let first = cluster.report(&p, &["--job", "one"]);
    let second = cluster.report(&q, &["--job", "one"]);
    assert!(first.splits(0)[0] > 1, "{:?}", first.splits(0));
    assert_eq!(sum(&first).wrapping_add(sum(&second)), expected(&p));
    cluster.stop();
}

#[test]
fn a_job_has_one_definition() {
    let cluster = Cluster::start(1);
    cluster.read(&range(10, json!([])), &["--job", "one"]).expect_code(0);
    let other = cluster.read(&range(11, json!([])), &["--job", "one"]);
    other.expect_code(2).expect_error(&["one"]);
    cluster.stop();
}

#[test]
fn arg_01_an_empty_job_name() {
    let cluster = Cluster::start(0);
    cluster.read(&range(10, json!([])), &["--job", ""]).expect_code(2);
    cluster.stop();
}

#[test]
fn arg_03_an_empty_address() {
    let p = range(10, json!([]));
    caju_in(p.folder(), &["read", "pipeline.yaml", "--dispatcher", ""]).expect_code(2);
    caju(&["worker", "--dispatcher", ""]).expect_code(2);
}

#[test]
fn arg_05_an_unknown_processing_mode() {
    let p = range(10, json!([]));
    let ended = p.run(&["--processing-mode", "invalid"]);
    ended.expect_code(2);
    for part in ["invalid", "dynamic", "off"] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
}

#[test]
fn dyn_01_every_row_once_named_or_not() {
    let cluster = Cluster::start(2);
    let p = range(MANY, json!([]));
    for args in [&[][..], &["--job", "named"]] {
        let report = cluster.report(&p, args);
        assert!(report.splits(0)[0] > 1, "{:?}", report.splits(0));
        assert_eq!((report.rows(), sum(&report)), (vec![MANY], expected(&p)));
    }
    cluster.stop();
}

#[test]
fn dyn_03_flat_map_splits_the_outer_source_only() {
    let cluster = Cluster::start(2);
    let inner = json!([{ "flat_map": { "name": "x", "expr": "make_array(id)" } }, { "map": { "x": "x" } }]);
    let (p, q) = (range(MANY, inner), range(MANY, json!([{ "map": { "x": "id" } }])));
    let report = cluster.report(&p, &[]);
    assert!(report.splits(0)[0] > 1, "{:?}", report.splits(0));
    assert_eq!((report.rows(), sum(&report)), (vec![MANY], expected(&q)));
    cluster.stop();
}

#[test]
fn dyn_05_repeat_inside() {
    let cluster = Cluster::start(2);
    let (p, q) = (range(20, json!([{ "repeat": 5 }])), range(20, json!([])));
    let report = cluster.report(&p, &[]);
    assert_eq!(sum(&report), times(expected(&q), 5));
    cluster.stop();
}

#[test]
fn dyn_07_a_repeat_that_ends_starves_nobody() {
    let cluster = Cluster::start(2);
    let (p, once) = (range(20, json!([{ "repeat": 50 }])), range(20, json!([])));
    assert_eq!(sum(&cluster.report(&p, &[])), times(expected(&once), 50));
    cluster.stop();
}

#[test]
fn dyn_09_shuffle_and_repeat() {
    let cluster = Cluster::start(2);
    let (p, q) = (range(20, json!([{ "shuffle": 20 }, { "repeat": 5 }])), range(20, json!([])));
    assert_eq!(sum(&cluster.report(&p, &[])), times(expected(&q), 5));
    cluster.stop();
}

#[test]
fn dyn_10_and_12_zip_is_aligned_or_refused() {
    let b = json!([{ "map": { "b": "id" } }]);
    let zip = |second: Value, matches: &str| {
        let first = json!({ "source": { "range": 200 }, "steps": [{ "map": { "a": "id" } }] });
        Pipeline::of(json!({ "zip": [first, second] }), json!([{ "filter": matches }]))
    };
    let numbers = |n: u64, steps: Value| json!({ "source": { "range": n }, "steps": steps });
    let copies = |n: usize| {
        let ten = json!({ "source": { "range": 10 } });
        json!({ "source": { "concatenate": vec![ten; n] }, "steps": &b })
    };
    let cluster = Cluster::start(3);
    for aligned in [zip(numbers(200, b.clone()), "a = b"), zip(copies(20), "a % 10 = b")] {
        assert_eq!(cluster.report(&aligned, &[]).rows(), [200]);
    }
    let filtered = json!([{ "map": { "b": "id" } }, { "filter": "b < 100" }]);
    // Rows are numbered above the stages of the datasets inside, whatever these drop.
    let inside = numbers(200, json!([{ "filter": "id >= 0" }]));
    let repeated = json!([{ "map": { "b": "id" } }, { "repeat": 20 }]);
    for refused in [
        numbers(1000, b.clone()),
        numbers(200, filtered),
        copies(10),
        copies(21),
        json!({ "source": { "concatenate": [inside] }, "steps": &b }),
        // Of the right length, but a repetition is one of the whole zip.
        numbers(10, repeated),
    ] {
        let p = zip(refused, "a = b");
        p.run(&[]).expect_code(2).expect_error(&["zip"]);
        cluster.read(&p, &[]).expect_code(2).expect_error(&["zip"]);
    }
    cluster.stop();
}

#[test]
fn dyn_17_concatenation() {
    let both = Pipeline::of(
        json!({ "concatenate": [
            { "source": { "range": 100 } },
            { "source": { "range": { "start": 100, "end": 200 } } },
        ] }),
        json!([]),
    );
    let cluster = Cluster::start(3);
    let report = cluster.report(&both, &[]);
    assert_eq!(sum(&report), expected(&range(200, json!([]))));
    cluster.stop();
}

#[test]
fn sta_16_an_empty_dataset_is_an_empty_stream() {
    let cluster = Cluster::start_with(2, &["--workers", "127.0.0.1:%port%,127.0.0.1:%port%"], &[]);
    let nothing = range(0, json!([]));
    let hinted = range(0, json!([{ "shard": { "num_shards": "HINT", "index": "HINT" } }]));
    let files = Pipeline::of(json!({ "csv": "*.csv" }), json!([]))
        .with_file("a.csv", b"id\n")
        .with_file("b.csv", b"id\n");
    for (p, mode) in [
        (&nothing, "dynamic"),
        (&nothing, "data"),
        (&nothing, "file_or_data"),
        (&hinted, "hint"),
        (&files, "file"),
        (&files, "data"),
        (&files, "file_or_data"),
    ] {
        let report = cluster.report(p, &["--processing-mode", mode]);
        assert_eq!(report.rows(), [0], "{mode}");
    }
    cluster.stop();
}

#[test]
fn fto_11_under_off_a_later_worker_adds_its_rows() {
    let mut cluster = Cluster::start(1);
    let p = range(20_000, json!([{ "burn": { "per_row": "200us" } }, { "batch": 50 }]));
    let read = cluster.start_read(&p, &["--processing-mode", "off", "--report", "r.json"]);
    let made = |s: &Value| s["jobs"][0]["stages"].as_array()?.last()?["rows_out"].as_u64().filter(|n| *n > 0);
    cluster.wait_for_status("rows", made);
    cluster.add_worker(&[]);
    read.wait().expect_code(0);
    assert_eq!(Report::load(&p.folder().join("r.json")).rows(), [40_000]);
    cluster.stop();
}

#[test]
fn tag_08_an_empty_tag() {
    let cluster = Cluster::start(0);
    caju(&["worker", "--dispatcher", cluster.address(), "--tags", "a,,b"])
        .expect_code(2)
        .expect_error(&["tag"]);
    cluster.stop();
}

#[test]
fn tag_02_the_command_reads_colocated_workers_only_with_any() {
    let mut cluster = Cluster::start(1);
    cluster.add_worker(&["--tags", "gpu-0,COLOCATED"]);
    let p = range(10, json!([]));
    for (args, copies) in
        [(&[][..], 1), (&["--target-workers", "AUTO"], 1), (&["--target-workers", "any"], 2)]
    {
        let mut all = vec!["--processing-mode", "off"];
        all.extend(args);
        assert_eq!(cluster.report(&p, &all).rows(), [10 * copies], "{args:?}");
    }
    let local = cluster.read(&p, &["--target-workers", "local"]);
    local.expect_code(2).expect_error(&["no local worker is found", "ANY"]);
    cluster.read(&p, &["--target-workers", "remote"]).expect_code(2).expect_error(&["--target-workers"]);
    cluster.stop();
}

/// Where every worker is colocated with another process, an epoch under `auto` has no worker to read from.
#[test]
fn tags_that_leave_no_worker_are_named() {
    let cluster = Cluster::start_with(1, &["--worker-wait", "500ms"], &["--tags", "colocated"]);
    let p = range(10, json!([]));
    cluster.read(&p, &[]).expect_code(3).expect_error(&["COLOCATED", "ANY"]);
    assert_eq!(cluster.report(&p, &["--target-workers", "any"]).rows(), [10]);
    cluster.stop();
}

#[test]
fn srv_04_the_dispatcher_counts_its_workers() {
    let mut cluster = Cluster::start(0);
    for n in 0..3 {
        assert_eq!(cluster.status()["workers"].as_array().unwrap().len(), n);
        cluster.add_worker(&[]);
    }
    cluster.stop();
}

#[test]
fn srv_01_a_configured_port_is_listened_on() {
    let folder = tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let server = Server::start(folder.path(), "dispatcher", &["--listen", &address]);
    assert_eq!(server.address, address);
    server.terminate().expect_code(0);
}

#[test]
fn det_07_batches_with_and_without_the_last_short_one() {
    for (drop, batches, rows) in [(false, 78, 9867), (true, 77, 77 * 128)] {
        let p = range(9867, json!([{ "batch": { "size": 128, "drop_remainder": drop } }]));
        let report = p.report(&["--workers", "2"]);
        assert_eq!((report.batches(), report.rows()), (vec![batches], vec![rows]));
    }
}

#[test]
fn sto_01_a_missing_source_is_reported_at_once() {
    let cluster = Cluster::start(1);
    let p = Pipeline::of(json!({ "parquet": "nowhere.parquet" }), json!([]));
    cluster.read(&p, &[]).expect_code(2).expect_error(&["nowhere.parquet"]);
    cluster.stop();
}
