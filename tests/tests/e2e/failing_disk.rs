//! A dispatcher whose disk fails at any operation on its state folder: it ends with a message that names the folder, or goes on,
//! and no row is lost or doubled once it is started again on a good disk.
//!
//! A library in front of the C library makes the operations fail (`tests/shims/failing_disk.c`).
//! `CAJU_DISK_FAULTS=all cargo test -p caju-tests --test e2e failing_disk` tries every operation.
#![cfg(target_os = "linux")]

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use caju_tests::binary::caju_binary;
use caju_tests::cluster::Server;
use caju_tests::pipeline::Report;
use caju_tests::{Pipeline, Process};
use serde_json::json;

/// Operations that fail by default, of those of an epoch.
const PLACES: usize = 9;
const ROWS: u64 = 10_240;

/// The library, built once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let file =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("failing_disk-{}.so", std::process::id()));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/shims/failing_disk.c");
        let built = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-o"])
            .arg(&file)
            .args([source, "-ldl"])
            .status();
        assert!(built.expect("a C compiler").success());
        file
    })
}

fn pipeline() -> Pipeline {
    Pipeline::of(json!({ "range": ROWS }), json!([{ "burn": { "per_row": "30us" } }, { "batch": 100 }]))
}

/// An epoch, with a dispatcher on a disk of which one operation fails.
struct Run<'a> {
    journal: &'a str,
    kind: &'a str,
    at: usize,
    checksums: &'a [String],
}

impl Run<'_> {
    fn dispatcher(&self, folder: &Path, address: &str) -> Process {
        let mut command = Command::new(caju_binary());
        command.args(["dispatcher", "--listen", address, "--state-dir", "state", "--journal", self.journal]);
        command.current_dir(folder).env_remove("CAJU_CONFIG").env("LD_PRELOAD", library());
        command
            .env("FAILING_DISK_DIR", folder.join("state"))
            .env("FAILING_DISK_LOG", folder.join("operations"));
        command.env("FAILING_DISK_KIND", self.kind).env("FAILING_DISK_AT", self.at.to_string());
        Process::start(command, format!("a dispatcher with {} at operation {}", self.kind, self.at))
    }

    /// The number of operations, and whether the dispatcher ended by itself.
    fn run(&self) -> (usize, bool) {
        eprintln!("{self}");
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        fs::create_dir(folder.join("state")).unwrap();
        // An address of this process alone: nobody takes the port while the dispatcher is started again.
        let [_, high, middle, low] = std::process::id().to_be_bytes();
        let port = TcpListener::bind((Ipv4Addr::new(127, high, middle, low), 0)).unwrap();
        let address = port.local_addr().unwrap().to_string();
        drop(port);
        let pipeline = pipeline();
        let first = self.dispatcher(&folder, &address);
        let worker = Process::caju(&folder, &["worker", "--dispatcher", &address, "--listen", "127.0.0.1:0"]);
        let args = ["read", "pipeline.yaml", "--dispatcher", &address, "--job", "j", "--report", "r.json"];
        let mut read = Process::caju(pipeline.folder(), &args);
        let mut first = Some(first);
        let mut second = None;
        let read = loop {
            match read.ended_within(Duration::from_millis(20)) {
                Ok(ended) => break ended,
                Err(running) => read = running,
            }
            if first.as_ref().is_some_and(Process::has_ended) {
                self.check_end(first.take());
                let args = ["--listen", &address, "--state-dir", "state", "--journal", self.journal];
                second = Some(Server::start(&folder, "dispatcher", &args));
            }
        };
        read.expect_code(0);
        let report = Report::load(&pipeline.folder().join("r.json"));
        assert_eq!((report.rows(), report.checksums().as_slice()), (vec![ROWS], self.checksums), "{self}");
        worker.signal("TERM");
        worker.wait();
        let has_ended = second.is_some();
        match (first, second) {
            (Some(first), _) => {
                first.signal("TERM");
                let ended = first.wait();
                assert!(ended.code == Some(0) || ended.stderr.contains("state"), "{self}: {}", ended.stderr);
            }
            (None, Some(second)) => drop(second.terminate().expect_code(0)),
            (None, None) => unreachable!("a dispatcher that ended is followed by another one"),
        }
        (fs::metadata(folder.join("operations")).unwrap().len() as usize, has_ended)
    }

    fn check_end(&self, dispatcher: Option<Process>) {
        let ended = dispatcher.expect("it has ended").wait();
        assert!(ended.code != Some(0), "{self}: {}", ended.stderr);
        let said = ended.stderr.lines().any(|line| line.contains("error") && line.contains("state"));
        assert!(said && !ended.stderr.contains("panicked"), "{self}: {}", ended.stderr);
    }
}

impl std::fmt::Display for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} at operation {}", self.journal, self.kind, self.at)
    }
}

fn each_operation_fails(journal: &str) {
    let checksums = pipeline().report(&[]).checksums();
    let run = |kind, at| Run { journal, kind, at, checksums: &checksums }.run();
    let (operations, has_ended) = run("eio", 0);
    assert!(operations > 20 && !has_ended, "{operations} operations without a fault");
    #[expect(clippy::disallowed_methods, reason = "a test with a long form")]
    let all = std::env::var("CAJU_DISK_FAULTS").is_ok_and(|v| v == "all");
    let step = if all { 1 } else { operations.div_ceil(PLACES) };
    let (mut tried, mut ended) = (0, 0);
    for (k, at) in (1..=operations).step_by(step).enumerate() {
        let kinds = ["eio", "enospc", "short"];
        for kind in kinds.iter().enumerate().filter(|(i, _)| all || i % 3 == k % 3).map(|(_, kind)| kind) {
            tried += 1;
            ended += usize::from(run(kind, at).1);
        }
    }
    eprintln!("{journal}: {tried} faults, {ended} of which ended the dispatcher");
    assert!(ended > 0, "no fault had an effect");
}

#[test]
fn each_operation_of_a_sled_journal_may_fail() {
    each_operation_fails("sled");
}

#[test]
fn each_operation_of_a_redb_journal_may_fail() {
    each_operation_fails("redb");
}
