//! Options of sources and flags of commands do what the documentation says. `scripts/check-house` holds that each one is
//! named by a test; here are those that no other test has.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use caju_tests::binary::{IMAGES, ROWS, caju_binary, sample_images, sample_table};
use caju_tests::cluster::Server;
use caju_tests::{Cluster, Pipeline, Process, caju_in, files};
use serde_json::{Value, json};
use tempfile::tempdir;

/// A source of files with options, one for each kind of source, over sample data in `folder`.
fn sources(folder: &Path) -> Vec<(&'static str, PathBuf, u64)> {
    let (images, table) = (sample_images(), sample_table());
    let copied = |from: PathBuf, name: &str| {
        let to = folder.join(name);
        std::fs::create_dir_all(&to).unwrap();
        for file in std::fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
        to
    };
    let arrow = folder.join("arrow");
    let args = ["gen", "table", "--out", arrow.to_str().unwrap(), "--count", "20000", "--shards", "2"];
    caju_in(folder, &[&args[..], &["--format", "arrow", "--quiet"]].concat()).expect_code(0);
    // Parquet is cut at row groups, which this generator makes of 16,384 rows.
    let parquet = folder.join("parquet");
    let args = ["gen", "table", "--out", parquet.to_str().unwrap(), "--count", "20000", "--shards", "1"];
    caju_in(folder, &[&args[..], &["--format", "parquet", "--quiet"]].concat()).expect_code(0);
    let class = std::fs::read_dir(images.join("files")).unwrap().map(|c| c.unwrap().path());
    let photos: Vec<PathBuf> = class
        .filter(|c| c.is_dir())
        .flat_map(|c| std::fs::read_dir(c).unwrap())
        .map(|f| f.unwrap().path())
        .collect();
    let flat = folder.join("images");
    std::fs::create_dir_all(&flat).unwrap();
    for photo in &photos {
        std::fs::copy(photo, flat.join(photo.file_name().unwrap())).unwrap();
    }
    vec![
        ("tfrecord", copied(images.join("tfrecord"), "tfrecord"), IMAGES),
        ("parquet", parquet, 20_000),
        ("arrow", arrow, 20_000),
        ("webdataset", copied(images.join("webdataset"), "webdataset"), IMAGES),
        ("csv", copied(table.join("csv"), "csv"), ROWS),
        ("json", copied(table.join("json"), "json"), ROWS),
        ("images", flat, photos.len() as u64),
    ]
}

fn source(kind: &str, folder: &Path, more: Value) -> Value {
    let mut options = json!({ "path": format!("{}/", folder.display()) });
    options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ kind: options })
}

/// `split`: a smaller size cuts the same files into more pieces.
#[test]
fn every_source_of_files_is_cut_by_split() {
    let folder = tempdir().unwrap();
    for (kind, files, rows) in sources(folder.path()) {
        let splits = |size: &str| {
            let report = Pipeline::of(source(kind, &files, json!({ "split": size })), json!([])).report(&[]);
            assert_eq!(report.rows(), [rows], "{kind}, split: {size}");
            report.splits(0)[0]
        };
        let (large, small) = (splits("64MiB"), splits("128KiB"));
        assert!(small > large, "{kind}: {large} splits of 64 MiB, {small} of 128 KiB");
    }
}

/// `version`: with `listed` a file with another time is another file; with `content` its bytes decide.
#[test]
fn every_source_of_files_knows_its_version_by_time_or_by_content() {
    let folder = tempdir().unwrap();
    for (kind, files, rows) in sources(folder.path()) {
        for version in ["listed", "content"] {
            let p = Pipeline::of(source(kind, &files, json!({ "version": version })), json!(["autocache"]));
            let run = |time: u64| {
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(time);
                for file in std::fs::read_dir(&files).unwrap().map(|f| f.unwrap().path()) {
                    File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
                }
                let report = p.report(&["--policy", "full", "--cache", "cache"]);
                assert_eq!(report.rows(), [rows], "{kind}, version: {version}");
                report.splits(0)
            };
            let ([_, stored, _], [_, again, read]) = (run(1_500_000_000), run(1_600_000_000));
            assert!(stored > 0, "{kind}, version: {version}");
            let expected = if version == "content" { (0, stored) } else { (stored, 0) };
            assert_eq!((again, read), expected, "{kind}, version: {version}");
        }
    }
}

/// `compression`: by the extension, or as it is said. `columns`: those and no others.
#[test]
fn compression_and_columns_are_what_the_source_says() {
    let images = sample_images();
    let tar = std::fs::read_dir(images.join("webdataset")).unwrap().map(|f| f.unwrap().path());
    let tar =
        std::fs::read(tar.into_iter().find(|f| f.extension().is_some_and(|e| e == "tar")).unwrap()).unwrap();
    for (kind, content) in [
        ("csv", b"id,name\n1,a\n2,b\n".to_vec()),
        ("json", b"{\"id\": 1, \"name\": \"a\"}\n{\"id\": 2, \"name\": \"b\"}\n".to_vec()),
        ("webdataset", tar),
        ("tfrecord", files::tfrecord([b"one", b"two"])),
    ] {
        let run = |name: &str, bytes: &[u8], more: Value| {
            let mut options = json!({ "path": name });
            options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            Pipeline::of(json!({ kind: options }), json!([])).with_file(name, bytes)
        };
        let plain = run("data.odd", &content, json!({ "compression": "none" })).report(&[]);
        let packed = files::gzip(&content);
        let said = run("data.odd", &packed, json!({ "compression": "gzip" })).report(&[]);
        let by_name = run("data.gz", &packed, json!({ "compression": "auto" })).report(&[]);
        assert!(plain.rows()[0] >= 2, "{kind}");
        assert_eq!((plain.checksums(), plain.checksums()), (said.checksums(), by_name.checksums()), "{kind}");
        run("data.odd", &packed, json!({ "compression": "none" })).run(&[]).expect_code(2);
    }
    for (kind, pattern, columns) in [
        ("webdataset", "webdataset/*.tar", json!(["cls"])),
        ("parquet", "parquet/*.parquet", json!(["label"])),
        ("arrow", "arrow/*.arrow", json!(["label"])),
    ] {
        let folder = tempdir().unwrap();
        let root = if kind == "arrow" {
            let out = folder.path().join("arrow");
            let args = ["gen", "images", "--out", out.to_str().unwrap(), "--count", "4", "--format", "arrow"];
            caju_in(folder.path(), &args).expect_code(0);
            folder.path().to_path_buf()
        } else {
            images.clone()
        };
        let p = Pipeline::of(json!({ kind: { "path": root.join(pattern), "columns": columns } }), json!([]));
        let shown = p.check();
        shown.expect_code(0);
        let name = columns[0].as_str().unwrap();
        assert!(shown.stdout.contains(name), "{kind}: {}", shown.stdout);
        assert!(
            !shown.stdout.contains("jpg") && !shown.stdout.contains("  image"),
            "{kind}: {}",
            shown.stdout
        );
    }
}

/// `--horizon`: a job of one epoch stores nothing for itself, unless others read on after it.
#[test]
fn the_horizon_counts_the_epochs_of_others() {
    let steps = json!([{ "burn": { "per_row": "50us" } }, "autocache"]);
    for (args, stored) in [(vec!["--epochs", "1"], false), (vec!["--epochs", "1", "--horizon", "50"], true)] {
        let p = Pipeline::of(json!({ "range": 20_000 }), steps.clone());
        let report = p.report(&[&args[..], &["--cache", "cache", "--no-checksum"]].concat());
        let kind = &report.0["decision"]["choice"]["kind"];
        assert_eq!(kind == "materialize", stored, "{args:?}: {:#}", report.0["decision"]);
    }
}

/// `--advertise`: readers connect to that address, and not to the one on which the worker listens.
#[test]
fn readers_connect_to_the_advertised_address() {
    let mut cluster = Cluster::start(0);
    // Nothing but the address is needed: the status shows it, and a reader that uses it fails to connect.
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    cluster.add_worker(&["--advertise", &address]);
    let shown =
        cluster.wait_for_status("the worker", |s| s["workers"][0]["address"].as_str().map(String::from));
    assert_eq!(shown, address);
    // The worker announces the same address on its first line.
    assert_eq!(shown, cluster.workers[0].address);
}

/// `--tags`: displayed, and no more.
#[test]
fn tags_are_displayed() {
    let mut cluster = Cluster::start(0);
    cluster.add_worker(&["--tags", "gpu-0,rack-7"]);
    let tags = cluster.wait_for_status("the tags", |s| s["workers"][0]["tags"].as_array().cloned());
    assert_eq!(tags, ["gpu-0", "rack-7"]);
    // Tags change nothing about who gets work.
    let p = Pipeline::of(json!({ "range": 100 }), json!([]));
    assert_eq!(cluster.report(&p, &[]).rows(), [100]);
    cluster.stop();
}

/// `--worker-wait`: how long a reader, and a job, wait for the first worker.
#[test]
fn a_reader_waits_for_a_worker_as_long_as_is_set() {
    let cluster = Cluster::start(0);
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    cluster.read(&p, &["--worker-wait", "200ms"]).expect_code(3).expect_error(&["worker"]);
    // The dispatcher's own wait ends the job of a reader that would wait longer.
    let impatient = Cluster::start_with(0, &["--worker-wait", "200ms"], &[]);
    impatient.read(&p, &["--worker-wait", "10m"]).expect_code(3).expect_error(&["worker"]);
}

/// `--message-bytes`: a larger definition is refused.
#[test]
fn messages_are_bounded() {
    let small = Cluster::start_with(1, &["--message-bytes", "4KiB"], &[]);
    let p = |letters: usize| {
        Pipeline::of(
            json!({ "range": 10 }),
            json!([{ "map": { "x": format!("'{}'", "x".repeat(letters)) } }]),
        )
    };
    assert_eq!(small.report(&p(10), &[]).rows(), [10]);
    small.read(&p(5_000), &[]).expect_code(2).expect_error(&["the limit is: 4096 bytes", "--message-bytes"]);
    assert_eq!(small.report(&p(20), &[]).rows(), [10]);
    small.stop();
}

/// The setting `MAX_CONCURRENT_STREAMS` with which a server begins a connection of HTTP/2.
fn concurrent_calls(address: &str) -> Option<u32> {
    const SETTINGS: u8 = 4;
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], SETTINGS);
    let mut settings = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
    stream.read_exact(&mut settings).unwrap();
    let of = |s: &[u8]| (u16::from_be_bytes([s[0], s[1]]), u32::from_be_bytes([s[2], s[3], s[4], s[5]]));
    settings.chunks_exact(6).map(of).find(|(name, _)| *name == MAX_CONCURRENT_STREAMS).map(|(_, n)| n)
}

/// `--connection-calls`: dispatcher and worker announce to their peers how many concurrent calls a connection may have.
#[test]
fn connections_have_as_many_calls_as_the_setting_says() {
    let cluster = Cluster::start_with(1, &["--connection-calls", "7"], &["--connection-calls", "9"]);
    assert_eq!(concurrent_calls(cluster.address()), Some(7));
    assert_eq!(concurrent_calls(&cluster.workers[0].address), Some(9));
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    assert_eq!(cluster.report(&p, &[]).rows(), [10]);
    cluster.stop();
    let folder = tempdir().unwrap();
    caju_in(folder.path(), &["dispatcher", "--connection-calls", "0"]).expect_code(2);
}

/// `--forget-after`: the name of a job that was unused for that long is free for another dataset.
#[test]
fn the_name_of_an_unused_job_is_free_after_its_time() {
    let args = ["--forget-after", "2s", "--job-gc-timeout", "200ms", "--check-interval", "50ms"];
    let cluster = Cluster::start_with(1, &args, &[]);
    let numbers = |n: u64| Pipeline::of(json!({ "range": n }), json!([]));
    assert_eq!(cluster.report(&numbers(10), &["--job", "train"]).rows(), [10]);
    // Lasts for three times the setting, as seen by the dispatcher.
    let slow = Pipeline::of(json!({ "range": 60 }), json!([{ "sleep": { "per_row": "100ms" } }]));
    assert_eq!(cluster.report(&slow, &["--job", "clock"]).rows(), [60]);
    assert_eq!(cluster.report(&numbers(20), &["--job", "train"]).rows(), [20]);
    cluster.stop();
    let folder = tempdir().unwrap();
    let refused = caju_in(folder.path(), &["dispatcher", "--forget-after", "soon"]);
    refused.expect_code(2).expect_error(&["--forget-after", "soon"]);
}

/// `--max-pixels`: larger images are errors, in one process and on workers.
#[test]
fn images_are_bounded_in_pixels() {
    let source = json!({ "webdataset": sample_images().join("webdataset/*.tar") });
    let p = Pipeline::of(source, json!([{ "map": { "image": "resize(decode_image(jpg), 8, 8)" } }]));
    assert_eq!(p.report(&[]).rows(), [IMAGES]);
    let refused = ["more than the limit of 5,000", "max_pixels"];
    p.run(&["--max-pixels", "5000"]).expect_code(2).expect_error(&refused);
    let cluster = Cluster::start_with(1, &[], &["--max-pixels", "5000"]);
    cluster.read(&p, &[]).expect_code(2).expect_error(&refused);
    cluster.stop();
}

/// `burn: { per_batch }` takes the time of a CPU, and `sleep: { per_batch }` takes time alone.
#[test]
fn time_for_each_batch_is_that_of_the_cpu_or_of_the_clock() {
    let run = |stage: &str| {
        let steps = json!([{ stage: { "per_batch": "700ms" } }]);
        let report = Pipeline::of(json!({ "range": 10 }), steps).report(&[]);
        assert_eq!(report.rows(), [10]);
        let epoch = &report.0["epochs"][0];
        (epoch["wall_s"].as_f64().unwrap(), report.0["cpu_s"].as_f64().unwrap())
    };
    let ((burn_s, burn_cpu_s), (sleep_s, sleep_cpu_s)) = (run("burn"), run("sleep"));
    assert!(burn_s >= 0.6 && sleep_s >= 0.7, "{burn_s} s and {sleep_s} s");
    assert!(burn_cpu_s >= 0.6 && burn_cpu_s > sleep_cpu_s, "{burn_cpu_s} s and {sleep_cpu_s} s of a CPU");
}

/// `--no-checksum`: the report has none.
#[test]
fn the_checksum_can_be_left_out() {
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    assert!(p.report(&[]).0["epochs"][0]["rows_checksum"].is_string());
    let report = p.report(&["--no-checksum"]);
    assert_eq!((report.rows(), &report.0["epochs"][0]["rows_checksum"]), (vec![10], &Value::Null));
}

/// `--drain-timeout`: SIGTERM waits no longer for running work.
#[test]
fn running_work_ends_within_the_drain_timeout() {
    let slow = Pipeline::of(
        json!({ "range": 100_000 }),
        json!([{ "sleep": { "per_row": "100ms" } }, { "batch": 1 }]),
    );
    let cluster = Cluster::start_with(0, &[], &[]);
    let folder = tempdir().unwrap();
    let args = ["--dispatcher", cluster.address(), "--listen", "127.0.0.1:0", "--drain-timeout", "300ms"];
    let worker = Server::start(folder.path(), "worker", &args);
    let reader = cluster.start_read(&slow, &["--quiet"]);
    cluster.wait_for_status("a task", |s| {
        s["workers"][0]["tasks"].as_array().filter(|t| !t.is_empty()).map(|_| ())
    });
    // The work would last for hours.
    worker.terminate();
    drop(reader);
}

/// `--python-env`: only with `--allow-python`.
#[test]
fn variables_for_python_need_python() {
    let folder = tempdir().unwrap();
    let refused =
        caju_in(folder.path(), &["worker", "--dispatcher", "127.0.0.1:1", "--python-env", "HF_HOME"]);
    refused.expect_code(2);
    assert!(refused.stderr.contains("--allow-python"), "{}", refused.stderr);
}

/// `--all`: every epoch, where the plain status shows the last one of a job that is over.
#[test]
fn status_shows_every_epoch_if_asked() {
    let cluster = Cluster::start(1);
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    assert_eq!(cluster.report(&p, &["--epochs", "3", "--job", "train"]).rows(), [10; 3]);
    let rows = |more: &[&str]| {
        let args = [&["status", "--dispatcher", cluster.address()][..], more].concat();
        let ended = caju_in(p.folder(), &args);
        ended.expect_code(0);
        ended.stdout.lines().filter(|l| l.contains("train") && l.contains("finished")).count()
    };
    assert_eq!((rows(&[]), rows(&["--all"])), (1, 3));
    cluster.stop();
}

/// `--compression`: fewer bytes come, and the same rows.
#[test]
fn rows_come_compressed_if_asked() {
    let cluster = Cluster::start(1);
    let p = Pipeline::of(json!({ "range": 20_000 }), json!([{ "batch": 1000 }]));
    let read = |more: &[&str]| {
        let report = cluster.report(&p, more);
        let bytes = report.0["epochs"][0]["received_bytes"].as_u64().unwrap();
        (report.checksums(), bytes)
    };
    let (wanted, plain) = read(&[]);
    for name in ["lz4", "zstd", "auto", "none"] {
        let (checksums, bytes) = read(&["--compression", name]);
        assert_eq!(checksums, wanted, "{name}");
        // On one machine `auto` sends rows uncompressed.
        assert_eq!(4 * bytes < 3 * plain, ["lz4", "zstd"].contains(&name), "{name}: {bytes} of {plain}");
    }
    let refused = cluster.read(&p, &["--compression", "foo"]);
    refused.expect_code(2).expect_error(&["no compression `foo`", "zstd"]);
    cluster.stop();
}

/// `--data-transfer-protocol`: rows come by the one that is named, or not at all.
#[test]
fn rows_come_by_the_named_protocol() {
    let cluster = Cluster::start(1);
    let p = Pipeline::of(json!({ "range": 100 }), json!([]));
    assert_eq!(cluster.report(&p, &["--data-transfer-protocol", "framed"]).rows(), [100]);
    let local = cluster.read(&p, &["--data-transfer-protocol", "local"]);
    local.expect_code(3).expect_error(&["is not in this process"]);
    let refused = cluster.read(&p, &["--data-transfer-protocol", "grpc"]);
    refused.expect_code(2).expect_error(&["`grpc` is not available", "framed"]);
    cluster.stop();
}

/// `--force`: a snapshot that a living process reads is removed only with it.
#[test]
fn a_snapshot_in_use_is_removed_by_force_alone() {
    let p = Pipeline::of(
        json!({ "range": { "start": 0, "end": 200_000 } }),
        json!(["autocache", { "sleep": { "per_row": "1ms" } }, { "batch": 10 }]),
    );
    let stored = Pipeline::of(json!({ "range": { "start": 0, "end": 200_000 } }), json!(["autocache"]));
    let cache = p.folder().join("cache").display().to_string();
    stored.report(&["--policy", "full", "--cache", &cache, "--no-checksum"]);
    let listed = caju_in(p.folder(), &["cache", "ls", "--cache", &cache, "--format", "json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    let digits = listed["snapshots"][0]["fingerprint"].as_str().unwrap().to_string();
    let reader = Process::caju(p.folder(), &["run", "pipeline.yaml", "--policy", "full", "--cache", &cache]);
    reader.wait_for_error_line("rows/s");
    let rm = |more: &[&str]| {
        caju_in(p.folder(), &[&["cache", "rm", &digits, "--cache", &cache][..], more].concat())
    };
    rm(&[]).expect_error(&["--force"]);
    rm(&["--force"]).expect_code(0);
    drop(reader);
}

/// `--store-bandwidth`, `--store-latency` and `--step` make trials as slow as they say; `--refine-rounds` adds rounds.
#[test]
fn a_bench_is_held_to_its_store_and_step() {
    let p = Pipeline::of(
        json!({ "range": 2_000 }),
        json!([{ "with_columns": { "x": "id * 3" } }, "autocache", { "batch": 500 }]),
    );
    let bench = |more: &[&str]| {
        let args =
            ["bench", "policies", "pipeline.yaml", "--policies", "full", "--epochs", "2", "--repeats", "1"];
        caju_in(p.folder(), &[&args[..], &["--cold-only", "--out", "r.json"], more].concat()).expect_code(0);
        let text = std::fs::read_to_string(p.folder().join("r.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let seconds = |r: &Value, epoch: usize| r["trials"][0]["epochs"][epoch]["wall_s"].as_f64().unwrap();
    // Four elements, a tenth of a second each.
    assert!(seconds(&bench(&["--step", "100ms"]), 1) >= 0.4);
    assert!(seconds(&bench(&["--store-latency", "150ms"]), 1) >= 0.15);
    // The part has two columns of 2,000 int64, some 32,000 bytes, in one or two requests.
    assert!(seconds(&bench(&["--store-bandwidth", "16KiB"]), 0) >= 0.5);
    let rounds = bench(&["--refine-rounds", "2"]);
    assert_eq!(rounds["trials"].as_array().unwrap().len(), 3);
}

/// Options and commands that were renamed are known by their former names for one more version.
#[test]
fn former_names_still_work() {
    let folder = tempdir().unwrap();
    let old = ["bench", "policies", "none.yaml", "--finals", "2"];
    caju_in(folder.path(), &old).expect_code(2).expect_error(&["none.yaml"]);
    caju_in(folder.path(), &["bench", "taps", "none.yaml"]).expect_code(2).expect_error(&["none.yaml"]);
    let settings = |text: &str| {
        File::create(folder.path().join("caju.toml")).unwrap().write_all(text.as_bytes()).unwrap();
        caju_in(folder.path(), &["--config", "caju.toml", "bench", "policies", "none.yaml"])
    };
    settings("[bench.policies]\nfinals = 2\n").expect_code(2).expect_error(&["none.yaml"]);
    settings("[bench.policies]\nfinals = \"many\"\n").expect_code(2).expect_error(&["finals", "many"]);
    for (list, count) in [("[2, 3]", "the list has 2"), ("[]", "the list has 0")] {
        let ended = settings(&format!("[bench.policies]\nfinals = {list}\n"));
        ended.expect_code(2).expect_error(&["finals: the option takes one value", count]);
    }
    settings("[bench.policies]\nfinals = [2]\n").expect_code(2).expect_error(&["none.yaml"]);
    settings("[bench.policies]\nfinale = 2\n").expect_code(2).expect_error(&["finale", "unknown setting"]);
    let mut command = Command::new(caju_binary());
    command.args(["bench", "policies", "none.yaml"]).current_dir(folder.path()).env("CAJU_FINALS", "many");
    let ended = Process::start(command, "caju bench policies".into()).wait();
    ended.expect_code(2);
    assert!(ended.stderr.contains("many"), "{}", ended.stderr);
}
