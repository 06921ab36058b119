//! When decisions are made: event logs are replayed, and what follows is compared with files.
//!
//! `tests/events/NAME.jsonl` is a log, as `--record-autocache-events` writes it; `NAME.actions` is what
//! `caju plan --replay` prints for it. After a wanted change: `cargo run -p caju-autocache --example bless_events`, and the
//! difference belongs to the review.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use caju_autocache::{Action, Autocache, describe_replay, read_log};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/events")
}

fn names(extension: &str) -> BTreeSet<String> {
    let files = std::fs::read_dir(folder()).unwrap().map(|f| f.unwrap().path());
    let of_kind = files.filter(|p| p.extension().is_some_and(|e| e == extension));
    of_kind.map(|p| p.file_stem().unwrap().to_string_lossy().into_owned()).collect()
}

fn read(name: &str, extension: &str) -> String {
    std::fs::read_to_string(folder().join(format!("{name}.{extension}"))).unwrap()
}

#[test]
fn every_log_gives_its_actions_at_their_times() {
    let names = names("jsonl");
    assert!(names.len() >= 15, "{names:?}");
    for name in &names {
        let actions = describe_replay(&read(name, "jsonl")).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(actions, read(name, "actions"), "{name}: bless it if that is wanted");
    }
}

#[test]
fn no_actions_are_left_without_their_log() {
    assert_eq!(names("actions"), names("jsonl"));
}

/// A log that is read and written again gives the same actions. (Numbers may differ in their last digit: JSON is read that
/// exactly, and decisions round before.)
#[test]
fn logs_that_are_written_again_give_the_same_actions() {
    for name in names("jsonl") {
        let log = read_log(&read(&name, "jsonl")).unwrap();
        let lines: Vec<String> = log.iter().map(|r| r.to_line().unwrap() + "\n").collect();
        assert_eq!(read_log(&lines.concat()).unwrap().len(), log.len(), "{name}");
        assert_eq!(describe_replay(&lines.concat()).unwrap(), read(&name, "actions"), "{name}");
    }
}

/// A restarted dispatcher continues from the journal: the decision and the replan state.
#[test]
fn a_decision_survives_that_its_job_is_opened_again() {
    let log = read_log(&read("replanning", "jsonl")).unwrap();
    let mut whole = Autocache::default();
    let mut restarted = Autocache::default();
    let mut saved = None;
    for recorded in log {
        if restarted.decided().is_some()
            && let Some(opened) = saved.take()
        {
            restarted = Autocache::default();
            restarted.apply(opened);
        }
        let (left, right) = (whole.apply(recorded.event.clone()), restarted.apply(recorded.event.clone()));
        assert_eq!(left, right, "at {}", recorded.at_ms);
        if let caju_autocache::Event::JobOpened { .. } = &recorded.event {
            saved = Some(recorded.event);
        }
        // What the journal would hold.
        for action in right {
            if let Some(caju_autocache::Event::JobOpened { decided, replan, .. }) = &mut saved {
                match action {
                    Action::Decide { decided: d, .. } | Action::ChangeDecision { decided: d, .. } => {
                        *decided = Some(d);
                    }
                    Action::SaveReplanState { state } => *replan = state,
                    Action::CheckStorage { .. } | Action::Note { .. } => {}
                }
            }
        }
    }
    assert!(whole.decided().is_some() && saved.is_none(), "the job was opened again");
}
