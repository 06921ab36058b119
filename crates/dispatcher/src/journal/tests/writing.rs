//! The group commit: what is reported is durable, and compaction changes nothing.

use std::sync::Arc;
use std::time::Duration;

use caju_types::{ErrorKind, Result};
use parking_lot::Mutex;

use super::super::writer::CompactAfter;
use super::super::{EncodedGroup, Journal, JournalWriter, MemoryJournal, StoredGroups};
use super::{every_update, state_of};
use crate::state::{State, Update};

/// No write of these tests takes that long.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// A journal whose disk is full after a while.
struct Full(u32);

impl Journal for Full {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        Ok(Vec::new())
    }
    fn append(&mut self, _: &[Vec<Update>]) -> Result<u64> {
        self.0 =
            self.0.checked_sub(1).ok_or_else(|| caju_types::Error::exhausted("/state: no space left"))?;
        Ok(0)
    }
    fn stored(&self) -> Result<Box<dyn StoredGroups>> {
        MemoryJournal::default().stored()
    }
    fn describe(&self) -> String {
        "full".into()
    }
}

pub(super) fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
}

#[test]
fn what_cannot_be_written_is_never_answered() {
    run(async {
        let writer = Arc::new(JournalWriter::start(Box::new(Full(1)), 0, TIMEOUT).unwrap());
        let first = writer.enqueue(vec![]);
        writer.durable(first).await.unwrap();
        let second = writer.enqueue(vec![]);
        let e = writer.durable(second).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable, "callers wait for another dispatcher");
        assert!(e.message().contains("no space left"), "{e}");
        assert!(writer.durable(first).await.is_err(), "nor anything read since");
        assert!(writer.failed().await.message().contains("no space left"));
        writer.close();
    });
}

/// A journal whose database has a defect: what a write does.
struct Defect(fn() -> Result<u64>);

impl Journal for Defect {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        Ok(Vec::new())
    }
    fn append(&mut self, _: &[Vec<Update>]) -> Result<u64> {
        (self.0)()
    }
    fn stored(&self) -> Result<Box<dyn StoredGroups>> {
        MemoryJournal::default().stored()
    }
    fn describe(&self) -> String {
        "state/journal".into()
    }
}

#[test]
fn a_panic_of_the_database_is_a_failure_of_the_journal() {
    run(async {
        let writer =
            JournalWriter::start(Box::new(Defect(|| panic!("a defect of the database"))), 0, TIMEOUT)
                .unwrap();
        let e = writer.durable(writer.enqueue(vec![])).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable);
        assert!(e.message().contains("a defect of the database"), "{e}");
        assert!(writer.failed().await.message().contains("serves nothing without it"));
    });
}

#[test]
fn a_write_that_does_not_end_is_a_failure_of_the_journal() {
    run(async {
        let hangs = || loop {
            std::thread::park();
        };
        let writer = JournalWriter::start(Box::new(Defect(hangs)), 0, Duration::from_millis(50)).unwrap();
        let e = writer.durable(writer.enqueue(vec![])).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unavailable);
        assert!(e.message().contains("state/journal: a write has not ended within"), "{e}");
        assert!(writer.failed().await.message().contains("hangs"));
        // It is not waited for.
        writer.close();
    });
}

fn state_after(updates: &[Update]) -> State {
    let mut state = state_of(&[updates.to_vec()]);
    state.take_touched();
    state
}

/// A journal that is compacted again and again means what it would mean without.
#[test]
fn compaction_changes_nothing_that_a_replay_finds() {
    let updates = every_update();
    for compact_after in [
        CompactAfter { updates: 0, bytes: u64::MAX },
        CompactAfter { updates: 5, bytes: u64::MAX },
        CompactAfter { updates: u64::MAX, bytes: 0 },
    ] {
        run(async {
            let mut journal = MemoryJournal::default();
            let writer =
                JournalWriter::start_with(Box::new(journal.clone()), 0, TIMEOUT, compact_after).unwrap();
            for update in &updates {
                writer.durable(writer.enqueue(vec![update.clone()])).await.unwrap();
            }
            writer.close();
            let found = journal.replay().unwrap();
            // How many groups stand behind the snapshot depends on when the compaction began.
            assert!(matches!(&found[0][..], [Update::Snapshot { .. }]), "{compact_after:?}");
            assert_eq!(state_after(&found.concat()), state_after(&updates), "{compact_after:?}");
        });
    }
}

/// What a start has to replay counts from the beginning, and a journal is not compacted for each of its bytes.
#[test]
fn a_journal_is_compacted_when_it_has_grown() {
    let groups = |n: u64| (0..n).map(|_| vec![Update::Founded { base_id: 7 }]).collect::<Vec<_>>();
    let left = |stored: u64, more: u64, compact_after: CompactAfter| {
        let mut journal = MemoryJournal::default();
        journal.append(&groups(stored)).unwrap();
        let writer =
            JournalWriter::start_with(Box::new(journal.clone()), stored, TIMEOUT, compact_after).unwrap();
        run(async {
            for group in groups(more) {
                writer.durable(writer.enqueue(group)).await.unwrap();
            }
        });
        writer.close();
        journal.replay().unwrap().len()
    };
    let updates = CompactAfter { updates: 100, bytes: u64::MAX };
    assert_eq!((left(0, 100, updates), left(0, 101, updates), left(0, 105, updates)), (100, 1, 5));
    assert_eq!((left(99, 1, updates), left(100, 1, updates), left(200, 1, updates)), (100, 1, 1));
    let group_bytes = MemoryJournal::default().append(&groups(1)).unwrap();
    let snapshot_bytes =
        MemoryJournal::default().append(&[vec![Update::Snapshot { state: Box::default() }]]).unwrap();
    assert!(group_bytes < snapshot_bytes);
    let bytes = CompactAfter { updates: u64::MAX, bytes: group_bytes };
    assert_eq!((left(0, 1, bytes), left(0, 2, bytes)), (1, 1));
    assert_eq!(left(0, 3, bytes), 2, "a snapshot of {snapshot_bytes} bytes is not written for {group_bytes}");
}

/// A journal whose compaction waits until the test lets it continue.
struct PausedJournal {
    journal: MemoryJournal,
    may_go: Arc<Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl Journal for PausedJournal {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        self.journal.replay()
    }
    fn append(&mut self, groups: &[Vec<Update>]) -> Result<u64> {
        self.journal.append(groups)
    }
    fn stored(&self) -> Result<Box<dyn StoredGroups>> {
        let may_go = Arc::clone(&self.may_go);
        Ok(Box::new(PausedStored { stored: self.journal.stored()?, may_go }))
    }
    fn describe(&self) -> String {
        "held".into()
    }
}

struct PausedStored {
    stored: Box<dyn StoredGroups>,
    may_go: Arc<Mutex<std::sync::mpsc::Receiver<()>>>,
}

impl StoredGroups for PausedStored {
    fn read(&mut self) -> Result<Vec<Vec<Update>>> {
        // The sender is dropped when the test has ended.
        assert!(self.may_go.lock().recv().is_err());
        self.stored.read()
    }
    fn replace(&mut self, group: &EncodedGroup) -> Result<u64> {
        self.stored.replace(group)
    }
}

#[test]
fn groups_are_durable_while_the_journal_is_compacted() {
    let updates = every_update();
    let (go, may_go) = std::sync::mpsc::sync_channel(1);
    let mut journal = MemoryJournal::default();
    let held = PausedJournal { journal: journal.clone(), may_go: Arc::new(Mutex::new(may_go)) };
    run(async {
        let compact_after = CompactAfter { updates: 3, bytes: u64::MAX };
        let writer = JournalWriter::start_with(Box::new(held), 0, TIMEOUT, compact_after).unwrap();
        // The compaction begins after the fourth update and waits: the others do not wait for it.
        for update in &updates {
            writer.durable(writer.enqueue(vec![update.clone()])).await.unwrap();
        }
        assert_eq!(journal.replay().unwrap().len(), updates.len(), "nothing is compacted yet");
        drop(go);
        writer.close();
    });
    let found = journal.replay().unwrap();
    assert!(found.len() < updates.len() && matches!(&found[0][..], [Update::Snapshot { .. }]));
    assert_eq!(state_after(&found.concat()), state_after(&updates));
}
