//! The priority of the threads that compact a journal.

use std::sync::Arc;

use caju_types::Result;
use parking_lot::Mutex;

use super::super::writer::CompactAfter;
use super::super::{EncodedGroup, Journal, JournalWriter, MemoryJournal, StoredGroups};
use super::writing::{TIMEOUT, run};
use crate::state::Update;

/// The nice value of the calling thread, from -20 to 19.
fn nice() -> i64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The thread's name, in parentheses, may contain anything. The nice value is the 19th field, and the third follows the name.
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(16).unwrap().parse().unwrap()
}

/// A journal that notes the nice values of the threads that read it and that replace it.
struct NotedJournal {
    journal: MemoryJournal,
    seen: Arc<Mutex<Vec<i64>>>,
}

impl Journal for NotedJournal {
    fn replay(&mut self) -> Result<Vec<Vec<Update>>> {
        self.journal.replay()
    }
    fn append(&mut self, groups: &[Vec<Update>]) -> Result<u64> {
        self.journal.append(groups)
    }
    fn stored(&self) -> Result<Box<dyn StoredGroups>> {
        Ok(Box::new(NotedStored { stored: self.journal.stored()?, seen: Arc::clone(&self.seen) }))
    }
    fn describe(&self) -> String {
        "noted".into()
    }
}

struct NotedStored {
    stored: Box<dyn StoredGroups>,
    seen: Arc<Mutex<Vec<i64>>>,
}

impl StoredGroups for NotedStored {
    fn read(&mut self) -> Result<Vec<Vec<Update>>> {
        self.seen.lock().push(nice());
        self.stored.read()
    }
    fn replace(&mut self, group: &EncodedGroup) -> Result<u64> {
        self.seen.lock().push(nice());
        self.stored.replace(group)
    }
}

/// The nice values of the compaction that follows one more update in a journal that has `stored` already.
fn nice_values(stored: u64, compact_after: CompactAfter) -> Vec<i64> {
    let seen: Arc<Mutex<Vec<i64>>> = Arc::default();
    let journal = NotedJournal { journal: MemoryJournal::default(), seen: Arc::clone(&seen) };
    let writer = JournalWriter::start_with(Box::new(journal), stored, TIMEOUT, compact_after).unwrap();
    run(async {
        writer.durable(writer.enqueue(vec![Update::Founded { base_id: 7 }])).await.unwrap();
    });
    writer.close();
    std::mem::take(&mut *seen.lock())
}

/// On one core the calls of workers and readers wait for a compaction of their own priority. Appending waits for the database
/// while a snapshot is written, which therefore has the usual priority.
#[test]
fn a_snapshot_is_made_at_a_low_priority_and_written_at_the_usual_one() {
    let usual = nice();
    let low = (usual + 10).min(19);
    let updates = CompactAfter { updates: 10, bytes: u64::MAX };
    assert!(nice_values(9, updates).is_empty(), "it is not compacted yet");
    assert_eq!(nice_values(10, updates), [low, usual]);
    let one = MemoryJournal::default().append(&[vec![Update::Founded { base_id: 7 }]]).unwrap();
    assert_eq!(nice_values(0, CompactAfter { updates: u64::MAX, bytes: one - 1 }), [low, usual]);
}

/// Calls that use all cores leave little to a thread of low priority. The journal must not grow for ever.
#[test]
fn a_journal_that_has_grown_to_four_times_its_bound_is_compacted_at_the_usual_priority() {
    let usual = nice();
    let low = (usual + 10).min(19);
    let updates = CompactAfter { updates: 10, bytes: u64::MAX };
    assert_eq!(nice_values(39, updates), [low, usual]);
    assert_eq!(nice_values(40, updates), [usual, usual]);
    assert_eq!(nice_values(0, CompactAfter { updates: u64::MAX, bytes: 1 }), [usual, usual]);
}
