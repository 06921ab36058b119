//! Crash points: the database is cut, or written in part, at every place that its last records changed.
//!
//! `CAJU_CUTS=all cargo test -p caju-dispatcher --lib a_journal_that_is_cut` tries each of these places.

use std::fs;
use std::path::Path;

use caju_types::ErrorKind;
use serde_json::json;

use super::super::{Journal as _, JournalKind, MemoryJournal};
use crate::state::Update;
use crate::tests::fake::{World, lost, run};

/// The most places of a database that are tried in a short run, at equal distances among those that changed.
const MOST_PLACES: usize = 250;

/// What a dispatcher writes in an epoch, and how many of the groups come before its first lease. Behind them are leases, rows
/// that a reader acknowledged, and a lost task whose splits are leased again with the rows that the reader has.
fn groups() -> (Vec<Vec<Update>>, usize) {
    let mut written = MemoryJournal::default();
    run(async {
        let world = World::over(|journal| {
            written = journal.clone();
            Box::new(journal)
        });
        let worker = world.worker("w:1").await;
        let opened = world.open(&json!({"splits": 64}), "j").await;
        let (client, iteration, task) = (opened.client_id, opened.iteration_id, opened.tasks[0].task_id);
        for request in 1..=2 {
            world.next(task, worker, request, 16).await.unwrap();
        }
        let (taken, received) = ([(0, 0, 5000), (1, 7, 9)], [(0, 0, 5001), (1, 0, 9), (2, 3, 4)]);
        world.take(client, iteration, &taken, &[]).await;
        let view = world.beat(client, iteration, &[], &[lost(task, &received)]).await;
        world.next(view.tasks[0].task_id, worker, 1, 16).await.unwrap();
    });
    let all = written.replay().unwrap();
    let has = |group: &[Update], wanted: fn(&Update) -> bool| group.iter().any(wanted);
    let before = all.iter().position(|g| has(g, |u| matches!(u, Update::Leased { .. }))).unwrap();
    let kinds: [fn(&Update) -> bool; 3] = [
        |u| matches!(u, Update::RowsAcknowledged { rows, .. } if !rows.is_empty()),
        |u| matches!(u, Update::ClientLost { received, .. } if !received.is_empty()),
        |u| matches!(u, Update::Leased { requeued, .. } if !requeued.is_empty()),
    ];
    for kind in kinds {
        assert!(all[before..].iter().any(|g| has(g, kind)), "{:?}", &all[before..]);
    }
    assert!(before > 0);
    (all, before)
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

/// The journal before and after the last groups, as a crash between writes would find it.
fn two_states(kind: JournalKind, folder: &Path, (before, last): (&[Vec<Update>], &[Vec<Update>])) {
    let at = folder.join("live");
    let (mut journal, _) = kind.open(&at).unwrap();
    journal.append(before).unwrap();
    copy(&at, &folder.join("before"));
    for group in last {
        journal.append(std::slice::from_ref(group)).unwrap();
    }
    copy(&at, &folder.join("after"));
}

#[test]
fn a_journal_that_is_cut_anywhere_in_its_last_records_is_whole_up_to_a_record_or_set_aside() {
    #[expect(clippy::disallowed_methods, reason = "a test with a long form")]
    let every_place = std::env::var("CAJU_CUTS").is_ok_and(|v| v == "all");
    let (all, first_cut) = groups();
    for (kind, file) in [(JournalKind::Sled, "db"), (JournalKind::Redb, "db.redb")] {
        let dir = tempfile::tempdir().unwrap();
        two_states(kind, dir.path(), all.split_at(first_cut));
        let read = |state: &str| fs::read(dir.path().join(state).join(file)).unwrap();
        let (mut before, after) = (read("before"), read("after"));
        before.resize(after.len().max(before.len()), 0);
        let changed: Vec<usize> = (0..after.len()).filter(|i| before[*i] != after[*i]).collect();
        let step = if every_place { 1 } else { changed.len().div_ceil(MOST_PLACES) };
        let (mut whole, mut refused) = (0, 0);
        for place in changed.iter().copied().step_by(step) {
            let cut = after[..place].to_vec();
            let torn = [&after[..place], &before[place..]].concat();
            for (how, bytes) in [("cut", cut), ("torn", torn)] {
                // The note of how many records there are is as old as the crash, or newer than what is left.
                for (note, least) in [("before", first_cut), ("after", all.len())] {
                    let crashed = tempfile::tempdir().unwrap();
                    copy(&dir.path().join(note), crashed.path());
                    fs::write(crashed.path().join(file), &bytes).unwrap();
                    let at = format!("{}: {how} at byte {place}, note of {note}", kind.name());
                    match kind.open(crashed.path()) {
                        Ok((_, found)) => {
                            assert!(found.len() >= least, "{at}: {} records", found.len());
                            assert!(all.starts_with(&found), "{at}: {found:?}");
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
        let (name, places) = (kind.name(), changed.len());
        eprintln!("{name}: {places} places in steps of {step}: {whole} whole, {refused} refused");
        assert!(whole > 0 && refused > 0, "{name}: {whole} whole, {refused} refused");
    }
}
