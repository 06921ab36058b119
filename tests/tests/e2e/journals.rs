//! The dispatcher's journal in each of its databases: what was finished stays finished, whatever ends the process.

use std::path::Path;
use std::process::Command;

use caju_tests::binary::caju_binary;
use caju_tests::cluster::Server;
use caju_tests::{Pipeline, Process, caju_in};
use serde_json::json;
use tempfile::tempdir;

fn start(folder: &Path, listen: &str, database: &str) -> Server {
    Server::start(folder, "dispatcher", &["--listen", listen, "--state-dir", "state", "--journal", database])
}

fn jobs(folder: &Path, address: &str) -> Vec<String> {
    let status = caju_in(folder, &["status", "--dispatcher", address, "--format", "json", "--all"]);
    status.expect_code(0);
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    status["jobs"].as_array().unwrap().iter().map(|j| j["job"].as_str().unwrap().to_string()).collect()
}

/// The folders of journals in the state directory.
fn journals(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("state")).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|n| n.starts_with("journal")).collect();
    names.sort();
    names
}

#[test]
fn a_dispatcher_that_is_killed_remembers_what_it_answered_in_either_database() {
    for (database, folder_name) in [("sled", "journal-v1"), ("redb", "journal-redb-v1")] {
        let folder = tempdir().unwrap();
        let first = start(folder.path(), "127.0.0.1:0", database);
        let address = first.address.clone();
        let _worker = Server::start(folder.path(), "worker", &["--dispatcher", &address]);
        let p = Pipeline::of(json!({ "range": 1000 }), json!([]));
        let read = |job: &str| {
            caju_in(p.folder(), &["read", "pipeline.yaml", "--dispatcher", &address, "--job", job])
        };
        read("before").expect_code(0);
        first.process.signal("KILL");
        first.process.wait();
        assert_eq!(journals(folder.path()), [folder_name]);
        let second = start(folder.path(), &address, database);
        assert_eq!(jobs(folder.path(), &address), ["before"], "{database}");
        read("after").expect_code(0);
        second.terminate().expect_code(0);
    }
}

#[test]
fn a_journal_is_carried_over_when_the_database_is_changed() {
    let folder = tempdir().unwrap();
    let first = start(folder.path(), "127.0.0.1:0", "sled");
    let address = first.address.clone();
    let _worker = Server::start(folder.path(), "worker", &["--dispatcher", &address]);
    let p = Pipeline::of(json!({ "range": 1000 }), json!([]));
    let read = ["read", "pipeline.yaml", "--dispatcher", &address, "--job", "before"];
    caju_in(p.folder(), &read).expect_code(0);
    first.terminate().expect_code(0);
    for database in ["redb", "sled", "redb"] {
        let next = start(folder.path(), &address, database);
        assert_eq!(jobs(folder.path(), &address), ["before"], "{database}");
        next.terminate().expect_code(0);
    }
    let left = journals(folder.path());
    assert_eq!(left.iter().filter(|n| n.contains(".copied-")).count(), 3, "{left:?}");
    assert!(left.contains(&"journal-redb-v1".to_string()) && !left.contains(&"journal-v1".to_string()));
}

#[test]
fn an_unknown_database_is_the_users_mistake() {
    let folder = tempdir().unwrap();
    let ended = caju_in(folder.path(), &["dispatcher", "--state-dir", "state", "--journal", "rocksdb"]);
    ended.expect_code(2);
    assert!(ended.stderr.contains("rocksdb") && ended.stderr.contains("redb"), "{ended:?}");
}

/// The long form is `caju bench journal --kills 1000`.
#[test]
fn writers_that_are_killed_lose_nothing_that_was_durable() {
    let folder = tempdir().unwrap();
    let args = ["bench", "journal", "--rounds", "1", "--commits", "32", "--kills", "6", "--seed", "3"];
    let ended = caju_in(folder.path(), &args);
    ended.expect_code(0);
    for database in ["sled", "redb"] {
        let all_there = ended.stdout.lines().any(|l| l.starts_with(&format!("{database}: 6 kills, ")));
        let speed = ended.stdout.lines().any(|l| l.starts_with(&format!("{database} ")));
        assert!(all_there && speed, "{ended:?}");
    }
    assert!(ended.stdout.contains("32 commits of one group"), "{}", ended.stdout);
    assert!(ended.stdout.contains("medians of 1 rounds"), "{}", ended.stdout);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it leaves nothing behind");
}

/// The number that a writer of a journal said last, while no file may grow beyond `blocks` of 512 bytes: the write that
/// crosses the limit is short, and the next one fails, as on a full disk. It is killed after the given number of lines in any case.
fn write_until_full(folder: &Path, database: &str, blocks: u64) -> (u64, bool) {
    let line = format!(
        "trap '' XFSZ; ulimit -f {blocks}; exec {} bench journal --journal {database} --append journal",
        caju_binary().display()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &line]).current_dir(folder);
    let writer = Process::start(command, format!("a writer of {database} within {blocks} blocks"));
    let said = writer.wait_for_lines(MOST_LINES);
    let full = said.len() < MOST_LINES;
    writer.signal("KILL");
    writer.wait_for_end();
    (said.last().map_or(0, |l| l.parse().unwrap()), full)
}

/// Durable steps after which a writer is stopped that still has space.
const MOST_LINES: usize = 150;

#[test]
fn a_disk_that_is_full_at_any_write_loses_nothing_that_was_durable() {
    for (database, sizes, step) in [("sled", 2..60, 5), ("redb", 20..38, 2)] {
        let mut full = 0;
        for blocks in sizes.step_by(step) {
            let folder = tempdir().unwrap();
            let (durable, was_full) = write_until_full(folder.path(), database, blocks * 8);
            full += u32::from(was_full);
            let (found, _) = write_until_full(folder.path(), database, 1 << 20);
            assert!(found > durable, "{database}, {blocks}: {found} after {durable}, and it goes on");
        }
        assert!(full > 3, "{database}: the disk was full in {full} runs only");
    }
}
