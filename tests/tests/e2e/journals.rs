//! The dispatcher's journal in each of its databases: what was finished stays finished, whatever ends the process.

use std::path::Path;

use caju_tests::cluster::Server;
use caju_tests::{Pipeline, caju_in};
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
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "it leaves nothing behind");
}
