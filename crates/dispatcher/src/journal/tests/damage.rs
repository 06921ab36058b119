//! A journal that is not what was written is reported and set aside, whatever holds it, and never stops the start.

use std::fs;
use std::path::Path;
use std::time::Duration;

use caju_types::ErrorKind;
use redb::{ReadableDatabase as _, TableDefinition};

use super::super::sled::open_database;
use super::super::{JournalKind, codec, open_state_dir};
use super::every_update;
use crate::state::Update;

const NOW: Duration = Duration::from_secs(1000);
const GROUPS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("groups");
const META: TableDefinition<'_, &str, &str> = TableDefinition::new("meta");

/// Changes that another program may make to a database.
#[derive(Debug, Clone)]
enum Change {
    Foreign,
    Format(&'static str),
    Insert(u64, Vec<u8>),
    Remove(u64),
}

/// The file of a database in its folder.
fn file(kind: JournalKind) -> &'static str {
    match kind {
        JournalKind::Sled => "db",
        JournalKind::Redb => "db.redb",
    }
}

/// Changes a database behind the journal's back.
fn tamper(kind: JournalKind, folder: &Path, change: &Change) {
    fs::create_dir_all(folder).unwrap();
    match kind {
        JournalKind::Sled => {
            let db = open_database(&::sled::Config::new().path(folder)).unwrap();
            let tree = |name: &str| db.open_tree(name).unwrap();
            match change {
                Change::Foreign => db.insert("somebody", "else's").map(drop),
                Change::Format(format) => tree("meta").insert("format", *format).map(drop),
                Change::Insert(n, value) => tree("groups").insert(n.to_be_bytes(), value.clone()).map(drop),
                Change::Remove(n) => tree("groups").remove(n.to_be_bytes()).map(drop),
            }
            .unwrap();
            db.flush().unwrap();
        }
        JournalKind::Redb => {
            let db = ::redb::Database::create(folder.join(file(kind))).unwrap();
            let txn = db.begin_write().unwrap();
            match change {
                Change::Foreign => {
                    let table: TableDefinition<'_, &str, &str> = TableDefinition::new("somebody");
                    drop(txn.open_table(table).unwrap().insert("else", "s").unwrap());
                }
                Change::Format(format) => {
                    drop(txn.open_table(META).unwrap().insert("format", *format).unwrap());
                }
                Change::Insert(n, value) => {
                    drop(txn.open_table(GROUPS).unwrap().insert(*n, value.as_slice()).unwrap());
                }
                Change::Remove(n) => drop(txn.open_table(GROUPS).unwrap().remove(*n).unwrap()),
            }
            txn.commit().unwrap();
            assert!(db.begin_read().unwrap().list_tables().unwrap().count() > 0);
        }
    }
}

fn write(kind: JournalKind, folder: &Path, groups: &[Vec<Update>]) {
    let (mut journal, _) = kind.open(folder).unwrap();
    for group in groups {
        journal.append(std::slice::from_ref(group)).unwrap();
    }
}

fn set_aside(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n.contains("set-aside")).collect()
}

/// `about` places at equal distances among the bytes of a file that are not zero.
fn places(bytes: &[u8], about: usize) -> Vec<usize> {
    let used: Vec<usize> = (0..bytes.len()).filter(|i| bytes[*i] != 0).collect();
    used.iter().copied().step_by((used.len() / about).max(1)).collect()
}

#[test]
fn every_flipped_bit_of_the_database_is_reported_or_does_no_harm() {
    let groups: Vec<Vec<Update>> = every_update().into_iter().map(|u| vec![u]).collect();
    for kind in JournalKind::ALL {
        let whole = tempfile::tempdir().unwrap();
        let at = whole.path().join("j");
        write(kind, &at, &groups);
        let bytes = fs::read(at.join(file(kind))).unwrap();
        let mut reported = 0;
        for place in places(&bytes, 24) {
            let copy = tempfile::tempdir().unwrap();
            for entry in fs::read_dir(&at).unwrap().map(|e| e.unwrap()).filter(|e| e.path().is_file()) {
                fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
            }
            let mut flipped = bytes.clone();
            flipped[place] ^= 0x10;
            fs::write(copy.path().join(file(kind)), flipped).unwrap();
            match kind.open(copy.path()) {
                Ok((_, found)) => assert_eq!(found, groups, "{}: byte {place}", kind.name()),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::DataLoss, "{}: byte {place}: {e}", kind.name());
                    reported += 1;
                }
            }
        }
        assert!(reported > 0, "{}: no flip hit a record", kind.name());
    }
}

#[test]
fn lost_records_are_counted() {
    for kind in JournalKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("j");
        write(kind, &at, &[every_update(), every_update(), every_update()]);
        // As after damage: the database ends before its end.
        tamper(kind, &at, &Change::Remove(2));
        let e = kind.open(&at).err().unwrap();
        let is_reported = e.kind() == ErrorKind::DataLoss && e.message().contains("2 records of at least 3");
        assert!(is_reported, "{}: {e}", kind.name());
    }
}

/// A database may drop its last records when it finds damage, so without their count none of them can be trusted.
#[test]
fn a_database_without_a_whole_count_is_not_trusted() {
    type Spoil = fn(&Path, JournalKind);
    let spoils: [(&str, Spoil); 5] = [
        ("the count is cut to nothing", |at, _| fs::write(at.join("caju-records"), "").unwrap()),
        ("the count is removed", |at, _| fs::remove_file(at.join("caju-records")).unwrap()),
        ("the count is of somebody else", |at, _| fs::write(at.join("caju-records"), [7; 16]).unwrap()),
        ("all files are cut to nothing", |at, _| {
            for entry in fs::read_dir(at).unwrap().map(|e| e.unwrap()).filter(|e| e.path().is_file()) {
                fs::write(entry.path(), "").unwrap();
            }
        }),
        ("the database is removed", |at, kind| fs::remove_file(at.join(file(kind))).unwrap()),
    ];
    for kind in JournalKind::ALL {
        for (what, spoil) in spoils {
            let dir = tempfile::tempdir().unwrap();
            let at = dir.path().join(kind.folder());
            write(kind, &at, &[every_update(), every_update()]);
            spoil(&at, kind);
            let e = kind.open(&at).err().unwrap_or_else(|| panic!("{}: {what}", kind.name()));
            assert_eq!(e.kind(), ErrorKind::DataLoss, "{}: {what}: {e}", kind.name());
            let (_, found) = open_state_dir(dir.path(), kind, NOW).unwrap();
            assert_eq!((found.len(), set_aside(dir.path()).len()), (0, 1), "{}: {what}", kind.name());
        }
    }
}

#[test]
fn damage_is_set_aside_and_the_rest_of_the_folder_left_alone() {
    for kind in JournalKind::ALL {
        let make = |spoil: &dyn Fn(&Path)| {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("notes.txt"), "mine").unwrap();
            spoil(&dir.path().join(kind.folder()));
            let (mut journal, found) = open_state_dir(dir.path(), kind, NOW).unwrap();
            assert_eq!(found, Vec::<Vec<Update>>::new());
            journal.append(&[every_update()]).unwrap();
            drop(journal);
            let (_, found) = open_state_dir(dir.path(), kind, NOW).unwrap();
            assert_eq!(found.len(), 1, "the new journal works");
            assert_eq!(fs::read_to_string(dir.path().join("notes.txt")).unwrap(), "mine");
            set_aside(dir.path())
        };
        assert!(make(&|_| ()).is_empty(), "a folder without a journal is not damage");
        let aside = make(&|folder| fs::write(folder, "a file").unwrap());
        assert_eq!(aside, [format!("{}.set-aside-1000000", kind.folder())]);
        let garbage = make(&|folder| {
            write(kind, folder, &[every_update(), every_update()]);
            let file = if kind == JournalKind::Sled { "conf" } else { file(kind) };
            fs::write(folder.join(file), "garbage that is no file of a database").unwrap();
        });
        assert_eq!(garbage.len(), 1);
        assert_eq!(make(&|folder| tamper(kind, folder, &Change::Foreign)).len(), 1);
        for change in [
            Change::Format("caju.journal/v"),
            Change::Format("caju.journal/v0"),
            Change::Format("something/v9"),
            Change::Insert(1, b"{\"schema\"".to_vec()),
            Change::Insert(7, codec::Encoder::new().unwrap().encode(&[]).unwrap()),
        ] {
            let aside = make(&|folder| {
                write(kind, folder, &[every_update(), every_update()]);
                tamper(kind, folder, &change);
            });
            assert_eq!(aside.len(), 1, "{}: {change:?}", kind.name());
        }
    }
}

/// Whoever goes back to an older version, and then to the later one again, has what the later one had written.
#[test]
fn a_journal_of_a_later_version_is_left_to_that_version() {
    for kind in JournalKind::ALL {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(kind.folder());
        write(kind, &folder, &[every_update(), every_update()]);
        tamper(kind, &folder, &Change::Format("caju.journal/v9"));
        let e = open_state_dir(dir.path(), kind, NOW).err().unwrap();
        let says = |word| e.message().contains(word);
        assert!(
            e.kind() == ErrorKind::FailedPrecondition
                && says("caju.journal/v9")
                && says(codec::SCHEMA)
                && says("--state-dir"),
            "{e}"
        );
        tamper(kind, &folder, &Change::Format(codec::SCHEMA));
        let (_, found) = open_state_dir(dir.path(), kind, NOW).unwrap();
        assert_eq!(found.concat().len(), 2 * every_update().len(), "{}: nothing is lost", kind.name());
    }
}

#[test]
fn a_truncated_or_overwritten_database_never_stops_the_start() {
    for kind in JournalKind::ALL {
        for (from, byte) in [(0usize, None), (100, Some(0xffu8)), (0, Some(0)), (40_000, None)] {
            let dir = tempfile::tempdir().unwrap();
            let folder = dir.path().join(kind.folder());
            write(kind, &folder, &vec![every_update(); 50]);
            let file = folder.join(file(kind));
            let mut bytes = fs::read(&file).unwrap();
            match byte {
                None => bytes.truncate(from),
                Some(b) => bytes[from..].iter_mut().step_by(97).for_each(|x| *x = b),
            }
            fs::write(&file, bytes).unwrap();
            let (mut journal, found) = open_state_dir(dir.path(), kind, NOW).unwrap();
            assert!(found.is_empty() && set_aside(dir.path()).len() == 1, "{}: {from} {byte:?}", kind.name());
            journal.append(&[every_update()]).unwrap();
        }
    }
}

#[test]
fn a_damaged_journal_is_not_carried_over() {
    for from in JournalKind::ALL {
        let to = JournalKind::ALL.into_iter().find(|k| *k != from).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(from.folder());
        write(from, &folder, &[every_update()]);
        tamper(from, &folder, &Change::Remove(0));
        assert_eq!(open_state_dir(dir.path(), to, NOW).unwrap().1, Vec::<Vec<Update>>::new());
        assert_eq!(set_aside(dir.path()), [format!("{}.set-aside-1000000", from.folder())]);
    }
}

#[test]
fn a_state_dir_that_is_a_file_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    fs::write(&file, "x").unwrap();
    let e = open_state_dir(&file, JournalKind::default(), NOW).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
    assert!(e.message().contains("--state-dir"), "{e}");
}
