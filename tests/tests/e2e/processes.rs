//! Dispatcher, workers and readers apart: addresses, permissions, signals.

use caju_tests::binary::{IMAGES, sample_images};
use caju_tests::cluster::Server;
use caju_tests::{Cluster, Pipeline, caju, caju_in};
use serde_json::json;
use tempfile::tempdir;

#[test]
fn two_workers_serve_a_reader() {
    let cluster = Cluster::start(2);
    let p = Pipeline::of(
        json!({ "tfrecord": { "path": sample_images().join("tfrecord/*.tfrecord"), "split": "300KiB" } }),
        json!([{ "batch": 8 }]),
    );
    let report = cluster.report(&p, &["--epochs", "2"]);
    assert_eq!(report.rows(), [IMAGES, IMAGES]);
    assert_eq!(report.batches(), [IMAGES.div_ceil(8), IMAGES.div_ceil(8)]);
    cluster.stop();
}

#[test]
fn the_address_is_the_first_line_and_in_the_file() {
    let folder = tempdir().unwrap();
    let args = ["--listen", "127.0.0.1:0", "--address-file", "address"];
    let server = Server::start(folder.path(), "dispatcher", &args);
    let (host, port) = server.address.rsplit_once(':').unwrap();
    assert_eq!(host, "127.0.0.1");
    assert_ne!(port.parse::<u16>().unwrap(), 0);
    let written = std::fs::read_to_string(folder.path().join("address")).unwrap();
    assert_eq!(written.trim_end(), server.address);
    server.terminate().expect_code(0);
}

#[test]
fn a_port_in_use() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    caju(&["dispatcher", "--listen", &address]).expect_code(3).expect_error(&[&address, "in use"]);
    let dispatcher = Server::start(tempdir().unwrap().path(), "dispatcher", &["--listen", "127.0.0.1:0"]);
    caju(&["worker", "--dispatcher", &dispatcher.address, "--listen", &address])
        .expect_code(3)
        .expect_error(&[&address, "in use"]);
    dispatcher.terminate().expect_code(0);
}

#[test]
fn an_open_address_needs_the_word_insecure() {
    caju(&["dispatcher", "--listen", "0.0.0.0:0"]).expect_code(2).expect_error(&["0.0.0.0", "--insecure"]);
    let folder = tempdir().unwrap();
    let dispatcher = Server::start(folder.path(), "dispatcher", &["--listen", "0.0.0.0:0", "--insecure"]);
    caju(&["worker", "--dispatcher", "127.0.0.1:1", "--listen", "0.0.0.0:0"])
        .expect_code(2)
        .expect_error(&["0.0.0.0", "--insecure"]);
    dispatcher.terminate().expect_code(0);
}

#[test]
fn servers_touch_only_what_is_allowed() {
    let folder = tempdir().unwrap();
    let dispatcher =
        Server::start(folder.path(), "dispatcher", &["--listen", "127.0.0.1:0", "--allow", "somewhere/"]);
    let worker = Server::start(folder.path(), "worker", &["--dispatcher", &dispatcher.address]);
    let p = Pipeline::of(json!({ "tfrecord": sample_images().join("tfrecord/*.tfrecord") }), json!([]));
    caju_in(p.folder(), &["read", "pipeline.yaml", "--dispatcher", &dispatcher.address])
        .expect_code(3)
        .expect_error(&["tfrecord", "--allow"]);
    worker.terminate().expect_code(0);
    dispatcher.terminate().expect_code(0);
    // The same folder can be read once it is named, by either flag.
    for flag in ["--allow", "--allow-read"] {
        let folder_of_images = sample_images();
        let allow = [flag, folder_of_images.to_str().unwrap()];
        let listen = ["--listen", "127.0.0.1:0"];
        let dispatcher = Server::start(folder.path(), "dispatcher", &[&listen[..], &allow].concat());
        let reaches = ["--dispatcher", dispatcher.address.as_str()];
        let worker = Server::start(folder.path(), "worker", &[&reaches[..], &allow].concat());
        caju_in(p.folder(), &[&["read", "pipeline.yaml"][..], &reaches].concat()).expect_code(0);
        worker.terminate().expect_code(0);
        dispatcher.terminate().expect_code(0);
    }
}

#[test]
fn what_is_allowed_cannot_be_left_by_dots() {
    let folder = tempdir().unwrap();
    let inside = folder.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    let allow = inside.to_str().unwrap();
    let dispatcher =
        Server::start(folder.path(), "dispatcher", &["--listen", "127.0.0.1:0", "--allow", allow]);
    let path = format!("{allow}/../outside.tfrecord");
    std::fs::write(folder.path().join("outside.tfrecord"), caju_tests::files::tfrecord([b"secret"])).unwrap();
    let p = Pipeline::of(json!({ "tfrecord": path }), json!([]));
    let ended = caju_in(p.folder(), &["read", "pipeline.yaml", "--dispatcher", &dispatcher.address]);
    assert!(matches!(ended.code, Some(2 | 3)), "{ended:?}");
    dispatcher.terminate().expect_code(0);
}

#[test]
fn workers_that_are_asked_to_leave_leave() {
    let mut cluster = Cluster::start(2);
    let id = cluster.status()["workers"][0]["worker_id"].as_u64().unwrap().to_string();
    let args = ["worker", "drain", &id, "--dispatcher", cluster.address()];
    caju(&args).expect_code(3).expect_error(&["operator's secret", "--operator-secret-file"]);
    let secret = cluster.operator_secret_file();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&secret).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "only its owner reads it");
    caju(&[&args[..], &["--operator-secret-file", &secret]].concat()).expect_code(0);
    let active = |w: &&serde_json::Value| w["state"] == "active";
    let one =
        |s: &serde_json::Value| (s["workers"].as_array()?.iter().filter(active).count() == 1).then_some(());
    cluster.wait_for_status("one worker", one);
    // The drained one ends by itself; the other one still runs.
    let (mut ended, mut left) = (0, Vec::new());
    for worker in cluster.workers.drain(..) {
        match worker.process.ended_within(std::time::Duration::from_secs(10)) {
            Ok(e) => {
                e.expect_code(0);
                ended += 1;
            }
            Err(process) => left.push(Server { process, address: worker.address }),
        }
    }
    assert_eq!(ended, 1);
    cluster.workers = left;
    cluster.stop();
}

#[test]
fn draining_a_worker_that_is_not_there() {
    let cluster = Cluster::start(0);
    caju(&["worker", "drain", "77", "--dispatcher", cluster.address()]).expect_code(2).expect_error(&["77"]);
    cluster.stop();
}

#[test]
fn the_status_shows_workers_and_jobs() {
    let cluster = Cluster::start(2);
    let p = Pipeline::of(json!({ "range": 1000 }), json!([{ "batch": 10 }]));
    cluster.read(&p, &["--job", "nightly"]).expect_code(0);
    let text = caju(&["status", "--dispatcher", cluster.address()]);
    text.expect_code(0);
    for part in [cluster.workers[0].address.as_str(), &cluster.workers[1].address, "nightly"] {
        assert!(text.stdout.contains(part), "`{part}` is not shown: {}", text.stdout);
    }
    assert_eq!(cluster.status()["workers"].as_array().unwrap().len(), 2);
    cluster.stop();
}

#[test]
fn state_in_a_folder_survives_a_restart() {
    let folder = tempdir().unwrap();
    let start = |listen: &str| {
        Server::start(folder.path(), "dispatcher", &["--listen", listen, "--state-dir", "state"])
    };
    let first = start("127.0.0.1:0");
    let address = first.address.clone();
    let worker = Server::start(folder.path(), "worker", &["--dispatcher", &address]);
    let p = Pipeline::of(json!({ "range": 1000 }), json!([]));
    let read =
        |job: &str| caju_in(p.folder(), &["read", "pipeline.yaml", "--dispatcher", &address, "--job", job]);
    read("before").expect_code(0);
    first.terminate().expect_code(0);
    let second = start(&address);
    let shown = caju(&["status", "--dispatcher", &address, "--all"]).stdout;
    assert!(shown.contains("before"), "{shown}");
    read("after").expect_code(0);
    worker.terminate().expect_code(0);
    second.terminate().expect_code(0);
}
