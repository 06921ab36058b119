//! Caches whose processes die, whose store is full, and which several clusters share: rows are right in every
//! epoch, and what is stored is whole.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use caju_tests::binary::caju_binary;
use caju_tests::cluster::Server;
use caju_tests::pipeline::Report;
use caju_tests::process::TEST_TIMEOUT;
use caju_tests::{Cluster, Pipeline, Process, caju_in, files};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

/// Rows of the ranges here: twelve splits.
const ROWS: u64 = 12_000;
const SPLITS: u64 = 12;

/// Rows that cost CPU time and are stored; the same ones for every `n`, under a prefix of its own.
fn stored(n: u64, cost: &str) -> Pipeline {
    Pipeline::of(
        json!({ "range": ROWS }),
        json!([
            { "burn": { "per_row": cost } },
            { "with_columns": { "x": "id * 3" } },
            { "filter": format!("id > -{}", n + 1) },
            { "autocache": "h" },
            { "batch": 100 },
        ]),
    )
}

/// The checksum of those rows.
fn expected() -> String {
    let p = Pipeline::of(json!({ "range": ROWS }), json!([{ "with_columns": { "x": "id * 3" } }]));
    p.report(&["--policy", "compute"]).checksums().remove(0)
}

fn root(folder: &TempDir) -> String {
    folder.path().join("cache").to_str().unwrap().to_string()
}

fn parts(root: &str) -> Vec<String> {
    files::below(Path::new(root)).into_iter().filter(|f| f.ends_with(".arrow")).collect()
}

/// Looks at a folder until there is something to see, or a process has ended; there is no event to wait for.
fn watch(until: impl Fn() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !until() {
        assert!(Instant::now() < deadline, "nothing happened");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

fn verify(root: &str) {
    let folder = tempdir().unwrap();
    caju_in(folder.path(), &["cache", "verify", "--cache", root]).expect_code(0);
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// `CAJU_KILLS=200` makes it the long run.
#[test]
fn workers_killed_while_they_store() {
    let kills: u64 = std::env::var_os("CAJU_KILLS").map_or(24, |n| n.to_str().unwrap().parse().unwrap());
    let want = expected();
    let folder = tempdir().unwrap();
    let root = root(&folder);
    // Each kill may hit the same split, which is not to blame.
    let patient = ["--cache", &root, "--max-split-losses", "100"];
    let mut cluster = Cluster::start_with(2, &patient, &[]);
    let (mut seed, mut done, mut round) = (7, 0, 0);
    while done < kills {
        let p = stored(round, "30us");
        let before = files::below(folder.path()).len() as u64;
        let read = cluster.start_read(&p, &["--epochs", "3", "--policy", "full", "--report", "r.json"]);
        let over = || p.folder().join("r.json").exists();
        for kill in 0..4 {
            // A moment between the first claim and the last commit.
            let moment = before + 1 + kill * 9 + next(&mut seed) % 9;
            watch(|| files::below(folder.path()).len() as u64 >= moment || over());
            if over() {
                break;
            }
            let victim = usize::try_from(next(&mut seed) % 2).unwrap();
            cluster.workers.remove(victim).process.signal("KILL");
            done += 1;
            cluster.add_worker(&[]);
        }
        read.wait().expect_code(0);
        let report = Report::load(&p.folder().join("r.json"));
        assert_eq!(report.rows(), [ROWS; 3], "round {round}");
        assert_eq!(report.checksums(), vec![want.clone(); 3], "round {round}");
        round += 1;
    }
    cluster.stop();
    verify(&root);
}

#[test]
fn a_dispatcher_killed_while_rows_are_stored() {
    let want = expected();
    let folder = tempdir().unwrap();
    let root = root(&folder);
    let start = |listen: &str| {
        let args = ["--listen", listen, "--state-dir", "state", "--cache", &root, "--allow", "/"];
        Server::start(folder.path(), "dispatcher", &args)
    };
    let first = start("127.0.0.1:0");
    let address = first.address.clone();
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let args = ["--dispatcher", &address, "--allow", "/", "--cpu-threads", "1"];
            Server::start(folder.path(), "worker", &args)
        })
        .collect();
    let p = stored(0, "50us");
    let read = |job: &str, report: &str| {
        let args = ["read", "pipeline.yaml", "--dispatcher", &address, "--job", job, "--epochs", "3"];
        let more = ["--policy", "full", "--report", report];
        Process::caju(p.folder(), &[&args[..], &more[..]].concat())
    };
    let reading = read("one", "one.json");
    watch(|| parts(&root).len() > 2);
    first.process.signal("KILL");
    drop(first);
    let second = start(&address);
    reading.wait().expect_code(0);
    let report = Report::load(&p.folder().join("one.json"));
    assert_eq!(report.checksums(), vec![want.clone(); 3]);
    // The truth about snapshots is in the store: without its state a dispatcher finds them again.
    second.process.signal("KILL");
    drop(second);
    std::fs::remove_dir_all(folder.path().join("state")).unwrap();
    let third = start(&address);
    read("two", "two.json").wait().expect_code(0);
    let report = Report::load(&p.folder().join("two.json"));
    assert_eq!(report.checksums(), vec![want; 3]);
    assert_eq!(report.splits(0), [0, 0, SPLITS]);
    for worker in workers {
        worker.terminate().expect_code(0);
    }
    third.terminate().expect_code(0);
    verify(&root);
}

#[test]
fn a_full_cache_stops_storing_and_nothing_else() {
    let folder = tempdir().unwrap();
    let root = root(&folder);
    let cluster = Cluster::start_with(2, &["--cache", &root, "--cache-budget", "40KiB"], &[]);
    let p = stored(0, "20us");
    let report = cluster.report(&p, &["--epochs", "2", "--policy", "full"]);
    assert_eq!(report.checksums(), vec![expected(); 2]);
    assert!(report.splits(1)[0] > SPLITS / 2, "{:?}", report.splits(1));
    cluster.workers[0].process.wait_for_error_line("storing rows is turned off");
    cluster.stop();
    verify(&root);
}

#[test]
fn two_clusters_store_each_split_once() {
    let want = expected();
    let folder = tempdir().unwrap();
    let root = root(&folder);
    let clusters = [(); 2].map(|()| Cluster::start_with(2, &["--cache", &root], &[]));
    let pipelines = [(); 2].map(|()| stored(0, "20us"));
    let args = ["--epochs", "2", "--policy", "full", "--report", "r.json"];
    let readers: Vec<_> = clusters.iter().zip(&pipelines).map(|(c, p)| c.start_read(p, &args)).collect();
    for reader in readers {
        reader.wait().expect_code(0);
    }
    for p in &pipelines {
        let report = Report::load(&p.folder().join("r.json"));
        assert_eq!(report.checksums(), vec![want.clone(); 2]);
    }
    clusters.into_iter().for_each(Cluster::stop);
    let parts = parts(&root);
    let key = |path: &String| {
        let name = Path::new(path).file_name().unwrap().to_str().unwrap();
        name.split('-').next().unwrap().to_string()
    };
    let keys: BTreeSet<String> = parts.iter().map(key).collect();
    assert_eq!((parts.len() as u64, keys.len() as u64), (SPLITS, SPLITS), "{parts:#?}");
    verify(&root);
}

#[test]
fn another_job_reads_what_is_still_being_written() {
    let want = expected();
    let folder = tempdir().unwrap();
    let root = root(&folder);
    let writing = Cluster::start_with(1, &["--cache", &root], &[]);
    let reading = Cluster::start_with(1, &["--cache", &root], &[]);
    let (slow, fast) = (stored(0, "300us"), stored(0, "300us"));
    let args = ["--policy", "full", "--report", "r.json"];
    let first = writing.start_read(&slow, &args);
    watch(|| parts(&root).len() > 3);
    let report = reading.report(&fast, &["--policy", "full"]);
    assert_eq!(report.checksums(), std::slice::from_ref(&want));
    assert!(report.splits(0)[2] >= 2, "{:?}", report.splits(0));
    first.wait().expect_code(0);
    assert_eq!(Report::load(&slow.folder().join("r.json")).checksums(), std::slice::from_ref(&want));
    // What is left over is filled, and then everything is read, wherever it was written.
    reading.report(&fast, &["--policy", "full"]);
    let report = writing.report(&slow, &["--policy", "full"]);
    assert_eq!(report.checksums(), [want]);
    assert_eq!(report.splits(0), [0, 0, SPLITS]);
    writing.stop();
    reading.stop();
    verify(&root);
}

/// Rows of file `n`, version `v`.
fn write_file(p: &Pipeline, n: i64, v: i64) {
    let folder = p.folder().join("data");
    std::fs::create_dir_all(&folder).unwrap();
    let ids = files::ints((0..200).map(|i| n * 1000 + i + v * 100_000));
    files::parquet(&folder.join(format!("{n}.parquet")), vec![("id", ids)]);
}

fn of_files(glob: &str) -> Value {
    json!({
        "source": { "parquet": { "path": glob } },
        "steps": [{ "with_columns": { "x": "id * 2" } }, { "autocache": "h" }, { "batch": 50 }],
    })
}

#[test]
fn files_that_change_come_and_go() {
    let p = Pipeline::new(&of_files("data/*.parquet"));
    (0..4).for_each(|n| write_file(&p, n, 0));
    let run = |p: &Pipeline| {
        let report = p.report(&["--cache", "cache", "--policy", "full"]);
        let computed = p.report(&["--policy", "compute"]);
        assert_eq!(report.checksums(), computed.checksums());
        report.splits(0)
    };
    assert_eq!(run(&p), [0, 4, 0]);
    assert_eq!(run(&p), [0, 0, 4]);
    write_file(&p, 2, 1);
    assert_eq!(run(&p), [0, 1, 3], "a changed file misses for its own splits alone");
    write_file(&p, 9, 0);
    assert_eq!(run(&p), [0, 1, 4], "a new one computes only its own");
    std::fs::remove_file(p.folder().join("data/0.parquet")).unwrap();
    assert_eq!(run(&p), [0, 0, 4], "and one that is gone takes only its own");
    std::fs::write(p.path(), of_files("data/[12].parquet").to_string()).unwrap();
    assert_eq!(run(&p), [0, 0, 2], "some of the files read their parts");
}

/// A server with settings of a store in its environment.
fn server(folder: &Path, role: &str, args: &[&str], env: &[(String, String)]) -> Server {
    let mut command = Command::new(caju_binary());
    command.arg(role).args(args).current_dir(folder).env_remove("CAJU_CONFIG");
    command.envs(env.iter().map(|(k, v)| (k.as_str(), v.as_str())));
    let process = Process::start(command, format!("caju {role}"));
    let line = process.first_line();
    let address = line.rsplit(' ').next().unwrap().to_string();
    Server { process, address }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_killed_while_they_store_in_s3() {
    let s3 = caju_testkit::s3::S3Server::start(&["bucket"]).await.unwrap();
    let env: Vec<_> = s3.options().into_iter().map(|(k, v)| (k.to_uppercase(), v)).collect();
    let bucket = s3.bucket("bucket");
    let work = move || {
        let want = expected();
        let folder = tempdir().unwrap();
        let allow = ["--allow", "/", "--allow", "s3://bucket"];
        let listen = ["--listen", "127.0.0.1:0", "--heartbeat", "100ms", "--worker-timeout", "2s"];
        // Each kill may hit the same split, which is not to blame.
        let cache = ["--cache", "s3://bucket/cache", "--max-split-losses", "100"];
        let dispatcher = server(folder.path(), "dispatcher", &[&listen[..], &allow, &cache].concat(), &env);
        let worker = || {
            let args = ["--dispatcher", &dispatcher.address, "--cpu-threads", "1"];
            server(folder.path(), "worker", &[&args[..], &allow].concat(), &env)
        };
        let mut workers = vec![worker(), worker()];
        let p = stored(0, "50us");
        let args = ["read", "pipeline.yaml", "--dispatcher", &dispatcher.address, "--epochs", "3"];
        let read =
            Process::caju(p.folder(), &[&args[..], &["--policy", "full", "--report", "r.json"]].concat());
        for moment in [3, 9, 16] {
            let limit = Instant::now() + Duration::from_secs(10);
            watch(|| files::below(&bucket).len() >= moment || Instant::now() > limit);
            workers.remove(0).process.signal("KILL");
            workers.push(worker());
        }
        read.wait().expect_code(0);
        let report = Report::load(&p.folder().join("r.json"));
        assert_eq!(report.checksums(), vec![want; 3]);
        for worker in workers {
            worker.terminate().expect_code(0);
        }
        dispatcher.terminate().expect_code(0);
        let mut verify = Command::new(caju_binary());
        verify.args(["cache", "verify", "--cache", "s3://bucket/cache"]).envs(env);
        Process::start(verify, "caju cache verify".into()).wait().expect_code(0);
    };
    #[expect(clippy::disallowed_methods, reason = "a panic of a test is a panic")]
    let done = tokio::task::spawn_blocking(work);
    done.await.unwrap();
    drop(s3);
}
