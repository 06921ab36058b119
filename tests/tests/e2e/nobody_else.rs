//! What other users cannot do to a process: reach it where no port was asked for, write where it may only read, put its own
//! code in place of ours.

use caju_proto::v1;
use caju_proto::v1::dispatcher_client::DispatcherClient;
use caju_tests::cluster::{Cluster, Server};
use caju_tests::pipeline::Pipeline;
use caju_tests::process::{Process, caju_in};
use caju_tests::sockets::listening;
use serde_json::json;
use tempfile::tempdir;

#[test]
fn processes_that_serve_nobody_listen_nowhere() {
    let slow = json!([{ "sleep": { "per_batch": "30s" } }, { "autocache": "h" }, { "batch": 10 }]);
    let p = Pipeline::of(json!({ "range": 1_000_000 }), slow);
    let saves = tempdir().unwrap();
    let to = saves.path().join("s");
    let commands: [&[&str]; 3] = [
        &["run", "pipeline.yaml", "--workers", "2"],
        &["profile", "pipeline.yaml"],
        &["save", "pipeline.yaml", "--to", to.to_str().unwrap()],
    ];
    for command in commands {
        let process = Process::caju(p.folder(), command);
        // Progress is reported every few seconds, once all processes run.
        process.wait_for_error_line(" after ");
        assert_eq!(listening(process.id()), Vec::<String>::new(), "{command:?}");
    }
    let quickstart = ["quickstart", "--dir", "photos", "--count", "64", "--epochs", "100000"];
    let quickstart = Process::caju(p.folder(), &quickstart);
    // Line 19 is the decision at the end of the first epoch.
    quickstart.wait_for_lines(19);
    assert_eq!(listening(quickstart.id()), Vec::<String>::new());
    let cluster = Cluster::start(1);
    assert_eq!(listening(cluster.dispatcher.process.id()).len(), 1, "what listens is found");
    cluster.stop();
}

/// `--allow-read` and `--allow-write` compare names. docs/cli.md says so: a user who may create links there decides where they
/// lead.
#[test]
fn links_below_allowed_folders_are_followed() {
    let folder = tempdir().unwrap();
    let [data, saves, outside] = ["data", "saves", "outside"].map(|name| {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        path
    });
    std::fs::write(outside.join("t.csv"), "n\n7\n").unwrap();
    for from in [&data, &saves] {
        std::os::unix::fs::symlink(&outside, from.join("link")).unwrap();
    }
    let lists = ["--allow-read", data.to_str().unwrap(), "--allow-write", saves.to_str().unwrap()];
    let dispatcher =
        Server::start(folder.path(), "dispatcher", &[&["--listen", "127.0.0.1:0"][..], &lists].concat());
    let worker = Server::start(
        folder.path(),
        "worker",
        &[&["--dispatcher", dispatcher.address.as_str()][..], &lists].concat(),
    );
    let of = |path: &std::path::Path| Pipeline::of(json!({ "csv": { "path": path } }), json!([]));
    let read =
        |p: &Pipeline| caju_in(p.folder(), &["read", "pipeline.yaml", "--dispatcher", &dispatcher.address]);
    read(&of(&data.join("link/t.csv"))).expect_code(0);
    read(&of(&outside.join("t.csv"))).expect_code(3).expect_error(&["--allow-read"]);
    let p = of(&data.join("link/t.csv"));
    let save = |to: &std::path::Path| {
        let to = to.to_str().unwrap();
        caju_in(p.folder(), &["save", "pipeline.yaml", "--to", to, "--dispatcher", &dispatcher.address])
    };
    save(&saves.join("link/new")).expect_code(0);
    assert!(outside.join("new").is_dir());
    save(&outside.join("other")).expect_code(3).expect_error(&["--allow-write"]);
    worker.terminate().expect_code(0);
    dispatcher.terminate().expect_code(0);
}

#[test]
fn saves_need_a_place_that_may_be_written() {
    let folder = tempdir().unwrap();
    let (data, saves) = (folder.path().join("data"), folder.path().join("saves"));
    std::fs::create_dir_all(&data).unwrap();
    let listen = ["--listen", "127.0.0.1:0", "--allow", folder.path().to_str().unwrap()];
    let write = ["--allow-write", saves.to_str().unwrap()];
    let dispatcher = Server::start(folder.path(), "dispatcher", &[&listen[..], &write].concat());
    let worker = |more: &[&str]| {
        let args = ["--dispatcher", &dispatcher.address, "--allow", folder.path().to_str().unwrap()];
        Server::start(folder.path(), "worker", &[&args[..], more].concat())
    };
    let p = Pipeline::of(json!({ "range": 100 }), json!([]));
    let save = |to: &std::path::Path| {
        let to = to.to_str().unwrap();
        let args = ["save", "pipeline.yaml", "--to", to, "--dispatcher", &dispatcher.address];
        caju_in(p.folder(), &args)
    };
    let strict = worker(&[]);
    save(&data.join("s")).expect_code(3).expect_error(&["--allow-write", "saves"]);
    assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
    // The dispatcher lets it pass; the worker has its own list.
    save(&saves.join("a")).expect_code(3).expect_error(&["--allow-write"]);
    strict.terminate().expect_code(0);
    let open = worker(&write);
    save(&saves.join("b")).expect_code(0);
    open.terminate().expect_code(0);
    dispatcher.terminate().expect_code(0);
}

/// `OpenIteration` names a place to store to as `StartSave` does, and whoever reaches the port may call it.
#[tokio::test(flavor = "multi_thread")]
async fn an_iteration_stores_only_where_a_save_may_be_written() {
    let folder = tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    caju_in(folder.path(), &["gen", "table", "--out", &at("saves/train"), "--count", "1000"]).expect_code(0);
    let listen = ["--listen", "127.0.0.1:0", "--allow", folder.path().to_str().unwrap()];
    let dispatcher =
        Server::start(folder.path(), "dispatcher", &[&listen[..], &["--allow-write", &at("saves")]].concat());
    let mut rpc = DispatcherClient::connect(format!("http://{}", dispatcher.address)).await.unwrap();
    let definition = json!({ "source": { "parquet": at("saves/train") }, "steps": [] }).to_string();
    for (to, why) in [("data", "--allow-write"), ("saves/train/s", "at, above or below the source")] {
        let request = v1::OpenIterationRequest {
            job: "j".into(),
            definition_json: definition.clone(),
            save_url: at(to),
            ..Default::default()
        };
        let e = rpc.open_iteration(request).await.expect_err("a place that may not be written");
        assert!(e.message().contains(why), "{to}: {e}");
        assert!(!folder.path().join(to).exists());
    }
    drop(rpc);
    dispatcher.terminate().expect_code(0);
}

#[test]
fn a_save_never_lies_among_its_sources() {
    let p = Pipeline::of(json!({ "range": 100 }), json!([]));
    let at = |name: &str| p.folder().join(name).to_str().unwrap().to_owned();
    caju_in(p.folder(), &["save", "pipeline.yaml", "--to", &at("data/first"), "--encoding", "parquet/none"])
        .expect_code(0);
    std::fs::create_dir_all(at("train")).unwrap();
    std::os::unix::fs::symlink(at("train"), at("alias")).unwrap();
    caju_in(p.folder(), &["gen", "table", "--out", &at("train"), "--count", "1000"]).expect_code(0);
    for (source, to) in [
        (json!({ "parquet": at("train") }), "train"),
        (json!({ "parquet": at("train") }), "train/deeper"),
        (json!({ "parquet": at("train/*.parquet") }), "train"),
        (json!({ "parquet": at("train/**") }), "train/deeper"),
        (json!({ "parquet": at("train") }), "."),
        (json!({ "parquet": at("train") }), "alias"),
        (json!({ "parquet": at("alias/**") }), "train/deeper"),
        (json!({ "load": { "path": at("data/first") } }), "data/first"),
        (
            json!({ "concatenate": [{ "source": { "range": 3 }, "steps": [{ "select": ["id"] }] },
                                 { "source": { "load": { "path": at("data/first") } } }] }),
            "data",
        ),
    ] {
        let reading = Pipeline::of(source.clone(), json!([]));
        caju_in(reading.folder(), &["save", "pipeline.yaml", "--to", &at(to)])
            .expect_code(2)
            .expect_error(&["at, above or below the source"]);
        assert!(!p.folder().join("train/save.json").exists());
    }
    let apart = Pipeline::of(json!({ "parquet": at("train") }), json!([]));
    caju_in(apart.folder(), &["save", "pipeline.yaml", "--to", &at("train-saved")]).expect_code(0);
}

/// One pipeline's cache or save in a folder that another one reads does not change that one's rows.
#[test]
fn what_is_stored_below_a_folder_is_no_row_of_it() {
    let p = Pipeline::of(json!({ "range": 4000 }), json!([{ "autocache": "h" }]));
    let train = p.folder().join("train");
    let at = train.to_str().unwrap();
    let files = Pipeline::of(json!({ "parquet": at }), json!([]));
    caju_in(p.folder(), &["gen", "table", "--out", at, "--count", "1000"]).expect_code(0);
    let before = files.report(&[]);
    caju_in(
        p.folder(),
        &["run", "pipeline.yaml", "--policy", "hint:h", "--encoding", "parquet/none", "--cache", at],
    )
    .expect_code(0);
    assert!(train.join("v1").is_dir());
    let after = files.report(&[]);
    assert_eq!((before.rows(), before.rows()), (vec![1000], after.rows()));
}

#[test]
fn schemes_of_addresses_are_checked() {
    let cluster = Cluster::start(1);
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    let read = |address: String| caju_in(p.folder(), &["read", "pipeline.yaml", "--dispatcher", &address]);
    for scheme in ["caju", "grpc", "http"] {
        read(format!("{scheme}://{}", cluster.address())).expect_code(0);
    }
    read(format!("grp://{}", cluster.address()))
        .expect_code(2)
        .expect_error(&["`grp` is not a scheme", "`grpc`"]);
    cluster.stop();
}
