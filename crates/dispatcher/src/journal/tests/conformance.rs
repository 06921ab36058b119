//! What every journal must do, whatever holds it.

use std::path::Path;
use std::time::Duration;

use caju_types::{ErrorKind, WorkerId};

use super::super::{EncodedGroup, Journal, JournalKind, MemoryJournal, open_state_dir};
use super::{every_update, state_of};
use crate::state::Update;

/// `reopen` gives the journal that a new process would find.
fn conforms(mut journal: Box<dyn Journal>, reopen: impl Fn(Box<dyn Journal>) -> Box<dyn Journal>) {
    assert_eq!(journal.replay().unwrap(), Vec::<Vec<Update>>::new());
    let groups: Vec<Vec<Update>> = every_update().into_iter().map(|u| vec![u]).collect();
    journal.append(&groups[..3]).unwrap();
    journal.append(&[]).unwrap();
    journal.append(&groups[3..]).unwrap();
    assert_eq!(journal.replay().unwrap(), groups);
    journal = reopen(journal);
    assert_eq!(journal.replay().unwrap(), groups);

    let state = state_of(&groups);
    let snapshot = Update::Snapshot { state: Box::new(state.clone()) };
    let mut stored = journal.stored().unwrap();
    assert_eq!(stored.read().unwrap(), groups);
    let more = vec![Update::Founded { base_id: 9 }, Update::WorkerDraining { worker: WorkerId(1) }];
    journal.append(std::slice::from_ref(&more)).unwrap();
    assert_eq!(stored.read().unwrap(), groups, "what came since is not part of it");
    stored.replace(&EncodedGroup::new(std::slice::from_ref(&snapshot)).unwrap()).unwrap();
    drop(stored);
    assert_eq!(journal.replay().unwrap(), vec![vec![snapshot.clone()], more.clone()]);
    journal = reopen(journal);
    let found = journal.replay().unwrap();
    assert_eq!(found, vec![vec![snapshot], more]);
    assert_eq!(state_of(&found[..1]), state);
    journal.append(&groups[..1]).unwrap();
    journal = reopen(journal);
    assert_eq!(journal.replay().unwrap().len(), 3);
    // A group of megabytes, such as a snapshot with many datasets.
    let large = vec![Update::Decided {
        job: caju_types::JobName("run-1".into()),
        plan: None,
        decision: caju_autocache::Document::from_text("d".repeat(5 << 20)),
        profile: caju_autocache::Document::from_text("{}"),
    }];
    journal.append(std::slice::from_ref(&large)).unwrap();
    journal = reopen(journal);
    assert_eq!(journal.replay().unwrap().last(), Some(&large));
    journal.stored().unwrap().replace(&EncodedGroup::new(&[]).unwrap()).unwrap();
    journal = reopen(journal);
    assert_eq!(journal.replay().unwrap(), [Vec::new()]);
    assert!(!journal.describe().is_empty());
}

#[test]
fn memory_conforms() {
    let journal = MemoryJournal::default();
    let shared = journal.clone();
    conforms(Box::new(journal), move |_| Box::new(shared.clone()));
}

#[test]
fn every_database_conforms() {
    for kind in JournalKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let open = || kind.open(&dir.path().join("j")).unwrap().0;
        assert!(open().describe().starts_with(kind.name()));
        conforms(open(), |old| {
            drop(old);
            open()
        });
    }
}

#[test]
fn a_journal_is_open_in_one_place() {
    for kind in JournalKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let held = kind.open(&dir.path().join("j")).unwrap();
        let e = kind.open(&dir.path().join("j")).err().unwrap();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
        assert!(e.message().contains("another dispatcher has it open"), "{e}");
        drop(held);
        kind.open(&dir.path().join("j")).unwrap();
    }
}

const NOW: Duration = Duration::from_secs(2000);

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn another_database_takes_over_what_the_first_one_holds() {
    for from in JournalKind::ALL {
        let to = JournalKind::ALL.into_iter().find(|k| *k != from).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = open_state_dir(dir.path(), from, NOW).unwrap();
        journal.append(&[every_update(), every_update()]).unwrap();
        drop(journal);
        // A copy that was not finished.
        let unfinished = dir.path().join(format!("{}.copying", to.folder()));
        let (mut half, _) = to.open(&unfinished).unwrap();
        half.append(&[every_update()]).unwrap();
        drop(half);
        let (mut journal, found) = open_state_dir(dir.path(), to, NOW).unwrap();
        assert_eq!(found, [every_update(), every_update()]);
        journal.append(&[every_update()]).unwrap();
        drop(journal);
        assert_eq!(open_state_dir(dir.path(), to, NOW).unwrap().1.len(), 3);
        let copied = format!("{}.copied-2000000", from.folder());
        let mut expected = vec![to.folder().to_string(), copied.clone()];
        expected.sort();
        assert_eq!(names(dir.path()), expected);
        // And back, with what came since.
        assert_eq!(open_state_dir(dir.path(), from, NOW).unwrap().1.len(), 3);
    }
}

#[test]
fn of_two_journals_the_wanted_one_counts() {
    let dir = tempfile::tempdir().unwrap();
    for (kind, groups) in [(JournalKind::Sled, 1), (JournalKind::Redb, 2)] {
        let (mut journal, _) = kind.open(&dir.path().join(kind.folder())).unwrap();
        journal.append(&vec![every_update(); groups]).unwrap();
    }
    assert_eq!(open_state_dir(dir.path(), JournalKind::Redb, NOW).unwrap().1.len(), 2);
    assert_eq!(names(dir.path()), ["journal-redb-v1", "journal-v1.set-aside-2000000"]);
}
