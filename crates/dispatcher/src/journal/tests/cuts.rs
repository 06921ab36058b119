//! Crash points: the database is cut, or written in part, at every place that its last records changed.

use std::fs;
use std::path::Path;

use caju_types::ErrorKind;

use super::super::JournalKind;
use crate::state::Update;

/// Records before those that are cut.
const BEFORE: usize = 6;
/// The records that are cut.
const LAST: usize = 3;
/// The most places of a database that are tried, at equal distances among those that changed.
const MOST_PLACES: usize = 250;

fn groups() -> Vec<Vec<Update>> {
    (1..=(BEFORE + LAST) as u64).map(|base_id| vec![Update::Founded { base_id }]).collect()
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|e| e.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The journal before and after the last records, as a crash between writes would find it.
fn two_states(kind: JournalKind, folder: &Path) {
    let at = folder.join("live");
    let (mut journal, _) = kind.open(&at).unwrap();
    let all = groups();
    journal.append(&all[..BEFORE]).unwrap();
    copy(&at, &folder.join("before"));
    for group in &all[BEFORE..] {
        journal.append(std::slice::from_ref(group)).unwrap();
    }
    copy(&at, &folder.join("after"));
}

#[test]
fn a_journal_that_is_cut_anywhere_in_its_last_records_is_whole_up_to_a_record_or_set_aside() {
    for (kind, file) in [(JournalKind::Sled, "db"), (JournalKind::Redb, "db.redb")] {
        let dir = tempfile::tempdir().unwrap();
        two_states(kind, dir.path());
        let read = |state: &str| fs::read(dir.path().join(state).join(file)).unwrap();
        let (mut before, after) = (read("before"), read("after"));
        before.resize(after.len().max(before.len()), 0);
        let changed: Vec<usize> = (0..after.len()).filter(|i| before[*i] != after[*i]).collect();
        let (mut whole, mut refused) = (0, 0);
        for place in changed.iter().copied().step_by(changed.len().div_ceil(MOST_PLACES)) {
            let cut = after[..place].to_vec();
            let torn = [&after[..place], &before[place..]].concat();
            for (how, bytes) in [("cut", cut), ("torn", torn)] {
                // The note of how many records there are is as old as the crash, or newer than what is left.
                for (note, least) in [("before", BEFORE), ("after", BEFORE + LAST)] {
                    let crashed = tempfile::tempdir().unwrap();
                    copy(&dir.path().join(note), crashed.path());
                    fs::write(crashed.path().join(file), &bytes).unwrap();
                    let at = format!("{}: {how} at byte {place}, note of {note}", kind.name());
                    match kind.open(crashed.path()) {
                        Ok((_, found)) => {
                            assert!(found.len() >= least, "{at}: {} records", found.len());
                            assert_eq!(found[..], groups()[..found.len()], "{at}");
                            whole += 1;
                        }
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::DataLoss, "{at}: {e}");
                            refused += 1;
                        }
                    }
                }
            }
        }
        assert!(whole > 0 && refused > 0, "{}: {whole} whole, {refused} refused", kind.name());
    }
}
