//! One suite for every journal, the format's past, and what happens to damage.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use caju_types::{ClientId, ErrorKind, Fingerprint, IterationId, TaskId, WorkerId};

use super::sled::open_database;
use super::{Journal, JournalWriter, MemoryJournal, SCHEMA, SledJournal, codec, open_state_dir};
use caju_autocache::{Document, ReplanState};

use crate::state::{Dataset, Failure, FeedId, Mode, Policy, SplitModes, SplitRecord, State, Update};

/// The journal as it was written by the first version; it must be read for ever.
const LATER: &str = include_str!("../tests/fixtures/journal-v1-snapshots.jsonl");
const FIXTURE: &str = include_str!("../tests/fixtures/journal-v1.jsonl");

/// One update of every kind; a snapshot of the state in the middle of them is the last.
fn every_update() -> Vec<Update> {
    let mut updates = plain_updates();
    let mut state = State::default();
    updates[..18].iter().for_each(|u| state.apply(u));
    state.take_touched();
    updates.push(Update::Snapshot { state: Box::new(state) });
    updates
}

fn plain_updates() -> Vec<Update> {
    let dataset = Dataset {
        id: "images".to_string().into_id(),
        fingerprint: Fingerprint(7),
        identity: Fingerprint(8),
        payloads: None,
        name: Some("imagenet".into()),
        definition_json: r#"{"source":{}}"#.into(),
        schema_ipc: vec![1, 0xab],
        source_schema_ipc: vec![],
        seed: Some(3),
        single_task: false,
        deterministic: true,
        skip_limit: Some(10),
        hints: vec![],
        random_stages: vec![],
    };
    let (job, iteration) = (caju_types::JobName("run-1".into()), IterationId(1001));
    let (worker, client) = (WorkerId(1), ClientId(1002));
    let split = |index, text: &str| SplitRecord { index, split: text.into(), group: None };
    let rows = vec![(0, [(0, 5), (7, 9)].into_iter().collect())];
    vec![
        Update::Founded { base_id: 1000 },
        Update::WorkerRegistered {
            worker,
            address: "10.0.0.1:7071".into(),
            slot: 0,
            tags: vec!["gpu".into()],
            cores: 8,
            version: "0.1.0".into(),
            secret: None,
            unconfirmed: false,
        },
        Update::WorkerRegistered {
            worker: WorkerId(2),
            address: "10.0.0.2:7071".into(),
            slot: 1,
            tags: vec![],
            cores: 8,
            version: "0.1.0".into(),
            secret: None,
            unconfirmed: false,
        },
        Update::DatasetRegistered { dataset: dataset.clone() },
        Update::JobCreated {
            job: job.clone(),
            dataset: dataset.id,
            seed: 3,
            mode: Mode::Dynamic,
            anonymous: false,
            policy: Policy::default(),
            encoding: None,
            epochs: None,
            profile_only: false,
            save: None,
        },
        Update::IterationOpened { iteration, job, epoch: 0, at_ms: 1_700_000_000_000 },
        Update::ClientJoined { client, iteration, flight: None, allow_lost: false, secret: None },
        Update::ClientJoined {
            client: ClientId(1003),
            iteration,
            flight: Some(WorkerId(2)),
            allow_lost: false,
            secret: None,
        },
        Update::TaskCreated { task: TaskId(1004), iteration, worker, feed: FeedId::SHARED, secret: None },
        Update::TaskCreated {
            task: TaskId(1005),
            iteration,
            worker: WorkerId(2),
            feed: FeedId::SHARED,
            secret: None,
        },
        Update::Leased {
            task: TaskId(1004),
            request_no: 1,
            fresh: vec![split(0, r#"{"a":1}"#), split(1, r#"{"a":2}"#)],
            requeued: vec![],
            end: false,
        },
        Update::ClientLost { client, task: TaskId(1004), received: rows, reason: "reset".into() },
        Update::TaskCreated { task: TaskId(1006), iteration, worker, feed: FeedId::SHARED, secret: None },
        Update::FeedExhausted { iteration, feed: FeedId::SHARED },
        Update::Leased { task: TaskId(1006), request_no: 1, fresh: vec![], requeued: vec![0], end: true },
        Update::TaskEnded {
            task: TaskId(1006),
            rows_skipped: 2,
            modes: SplitModes::default(),
            emitted: None,
            to_flight: None,
        },
        Update::ClientEnded { client, task: TaskId(1006), emitted: None },
        Update::TaskLost { task: TaskId(1005), reason: "told to stop".into(), emitted: None },
        Update::WorkerDraining { worker },
        Update::WorkerLost { worker: WorkerId(2), reason: "silent".into(), at_ms: 1_700_000_001_000 },
        Update::WorkerForgotten { worker: WorkerId(2) },
        Update::ClientGone {
            client,
            iteration,
            received: vec![(TaskId(1006), vec![])],
            broken_off: vec![],
            reason: String::new(),
            returned: vec![],
            vanished: None,
            unknown: false,
        },
        Update::IterationFailed {
            iteration,
            failure: Failure { kind: "data loss".into(), message: "x: bad".into() },
        },
        Update::IterationDropped { iteration },
    ]
}

trait IntoId {
    fn into_id(self) -> caju_types::DatasetId;
}

impl IntoId for String {
    fn into_id(self) -> caju_types::DatasetId {
        caju_types::DatasetId(self)
    }
}

fn state_of(groups: &[Vec<Update>]) -> State {
    let mut state = State::default();
    groups.iter().flatten().for_each(|u| state.apply(u));
    state
}

/// What every journal must do. `reopen` gives the journal that a new process would find.
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
    journal.replace(std::slice::from_ref(&snapshot)).unwrap();
    let more = vec![Update::Founded { base_id: 9 }, Update::WorkerDraining { worker: WorkerId(1) }];
    journal.append(std::slice::from_ref(&more)).unwrap();
    assert_eq!(journal.replay().unwrap(), vec![vec![snapshot.clone()], more.clone()]);
    journal = reopen(journal);
    let found = journal.replay().unwrap();
    assert_eq!(found, vec![vec![snapshot], more]);
    assert_eq!(state_of(&found[..1]), state);
    journal.append(&groups[..1]).unwrap();
    journal = reopen(journal);
    assert_eq!(journal.replay().unwrap().len(), 3);
    assert!(!journal.describe().is_empty());
}

#[test]
fn memory_conforms() {
    let journal = MemoryJournal::default();
    let shared = journal.clone();
    conforms(Box::new(journal), move |_| Box::new(shared.clone()));
}

#[test]
fn sled_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let open = || SledJournal::open(&dir.path().join("j")).unwrap().0;
    conforms(Box::new(open()), |old| {
        drop(old);
        Box::new(open())
    });
}

#[test]
fn the_first_format_is_read_and_still_written() {
    let groups: Vec<Vec<Update>> = FIXTURE.lines().map(|l| codec::decode(l.as_bytes()).unwrap()).collect();
    let (snapshot, plain) = groups.split_last().unwrap();
    assert_eq!(plain.concat(), plain_updates(), "an old journal must mean what it meant");
    let encode = |group: &[Update]| String::from_utf8(codec::encode(group).unwrap()).unwrap();
    let written: Vec<String> = plain_updates().chunks(4).map(encode).chain([encode(snapshot)]).collect();
    let fixture: Vec<&str> = FIXTURE.lines().collect();
    assert_eq!(written, fixture, "a change of the format needs a new version and a new fixture");
}

#[test]
fn what_is_forgotten_stays_forgotten() {
    let mut state = State::default();
    plain_updates().iter().for_each(|u| state.apply(u));
    let [job, dataset] = [
        Update::JobForgotten { job: caju_types::JobName("run-1".into()) },
        Update::DatasetForgotten { dataset: "images".to_string().into_id() },
    ];
    let written = codec::encode(&[job.clone(), dataset.clone()]).unwrap();
    assert_eq!(codec::decode(&written).unwrap(), [job.clone(), dataset.clone()]);
    assert_eq!(state.unused_datasets().count(), 0, "the job refers to it");
    state.apply(&job);
    assert_eq!(state.unused_datasets().count(), 1);
    state.apply(&dataset);
    assert!(state.jobs.is_empty() && state.datasets.is_empty());
}

/// What came with snapshots.
fn later_updates() -> Vec<Update> {
    let (job, iteration) = (caju_types::JobName("run-2".into()), IterationId(2001));
    vec![
        Update::JobCreated {
            job: job.clone(),
            dataset: "images".to_string().into_id(),
            seed: 3,
            mode: Mode::Dynamic,
            anonymous: false,
            policy: Policy::Hint("a".into()),
            encoding: Some("arrow/lz4".into()),
            epochs: Some(3),
            profile_only: true,
            save: None,
        },
        Update::Planned { iteration, plan: Some(Document::from_text("{}")) },
        Update::TaskEnded {
            task: TaskId(2006),
            rows_skipped: 0,
            modes: SplitModes { compute: 1, put: 2, get: 3, fell_back: 0, kept: 0 },
            emitted: None,
            to_flight: None,
        },
        Update::ReplanStateChanged {
            job: job.clone(),
            replan: ReplanState {
                computed_rate: Some(1000),
                read_rate: Some(900),
                epochs_worse: 1,
                ..ReplanState::default()
            },
        },
        Update::Decided {
            job,
            plan: None,
            decision: Document::from_text("{\"a\":1}"),
            profile: Document::from_text("{\"b\":2}"),
        },
    ]
}

#[test]
fn what_came_with_snapshots_is_read_and_still_written() {
    let text = String::from_utf8(codec::encode(&later_updates()).unwrap()).unwrap();
    assert_eq!(codec::decode(LATER.trim_end().as_bytes()).unwrap(), later_updates());
    assert_eq!(text, LATER.trim_end(), "a change of the format needs a new version and a new fixture");
}

#[test]
fn other_formats_and_damage_are_told_apart_from_ours() {
    let newer = br#"{"schema":"caju.journal/v2","updates":[{"unknown":{}}]}"#;
    let e = codec::decode(newer).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DataLoss);
    assert!(e.message().contains("caju.journal/v2") && e.message().contains(SCHEMA), "{e}");
    assert!(codec::decode(b"{\"schema\":").is_err());
    assert!(codec::decode(br#"{"schema":"caju.journal/v1","updates":[{"no_such":1}]}"#).is_err());
}

fn set_aside(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    names.filter(|n| n.contains("set-aside")).collect()
}

#[test]
fn every_flipped_bit_of_the_log_is_reported_or_does_no_harm() {
    let whole = tempfile::tempdir().unwrap();
    let at = whole.path().join("j");
    let groups: Vec<Vec<Update>> = every_update().into_iter().map(|u| vec![u]).collect();
    let (mut journal, _) = SledJournal::open(&at).unwrap();
    groups.iter().for_each(|g| journal.append(std::slice::from_ref(g)).unwrap());
    drop(journal);
    let files = |at: &Path| {
        fs::read_dir(at).unwrap().map(|e| e.unwrap()).filter(|e| e.path().is_file()).collect::<Vec<_>>()
    };
    let log = fs::read(at.join("db")).unwrap();
    let used = log.iter().rposition(|b| *b != 0).unwrap();
    let mut reported = 0;
    for place in (0..used).step_by((used / 24).max(1)) {
        let copy = tempfile::tempdir().unwrap();
        for file in files(&at) {
            fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
        }
        let mut flipped = log.clone();
        flipped[place] ^= 0x10;
        fs::write(copy.path().join("db"), flipped).unwrap();
        match SledJournal::open(copy.path()) {
            Ok((_, found)) => assert_eq!(found, groups, "byte {place} of {used}"),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::DataLoss, "byte {place}: {e}");
                reported += 1;
            }
        }
    }
    assert!(reported > 0, "no flip hit a record");
}

#[test]
fn lost_records_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("j");
    let (mut journal, _) = SledJournal::open(&at).unwrap();
    journal.append(&[every_update(), every_update(), every_update()]).unwrap();
    drop(journal);
    let db = open_database(&::sled::Config::new().path(&at)).unwrap();
    // As after damage: the log ends before its end.
    db.open_tree("groups").unwrap().remove(2_u64.to_be_bytes()).unwrap();
    db.flush().unwrap();
    drop(db);
    let e = SledJournal::open(&at).unwrap_err();
    assert!(e.kind() == ErrorKind::DataLoss && e.message().contains("2 records of at least 3"), "{e}");
}

const NOW: Duration = Duration::from_secs(1000);

#[test]
fn damage_is_set_aside_and_the_rest_of_the_folder_left_alone() {
    let make = |spoil: &dyn Fn(&Path)| {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("notes.txt"), "mine").unwrap();
        spoil(dir.path());
        let (mut journal, found) = open_state_dir(dir.path(), NOW).unwrap();
        assert_eq!(found, Vec::<Vec<Update>>::new());
        journal.append(&[every_update()]).unwrap();
        drop(journal);
        let (_, found) = open_state_dir(dir.path(), NOW).unwrap();
        assert_eq!(found.len(), 1, "the new journal works");
        assert_eq!(fs::read_to_string(dir.path().join("notes.txt")).unwrap(), "mine");
        set_aside(dir.path())
    };
    assert!(make(&|_| ()).is_empty(), "a folder without a journal is not damage");
    let aside = make(&|dir| fs::write(dir.join("journal-v1"), "a file").unwrap());
    assert_eq!(aside, ["journal-v1.set-aside-1000000"]);

    let write = |dir: &Path| {
        let (mut journal, _) = SledJournal::open(&dir.join("journal-v1")).unwrap();
        journal.append(&[every_update(), every_update()]).unwrap();
    };
    let garbage = make(&|dir| {
        write(dir);
        fs::write(dir.join("journal-v1").join("conf"), "garbage that is no configuration of sled").unwrap();
    });
    assert_eq!(garbage.len(), 1);

    let raw = |dir: &Path| open_database(&::sled::Config::new().path(dir.join("journal-v1"))).unwrap();
    let foreign = make(&|dir| {
        raw(dir).insert("somebody", "else's").unwrap();
    });
    assert_eq!(foreign.len(), 1);
    let newer = make(&|dir| {
        write(dir);
        raw(dir).open_tree("meta").unwrap().insert("format", "caju.journal/v9").unwrap();
    });
    assert_eq!(newer.len(), 1);
    let torn = make(&|dir| {
        write(dir);
        raw(dir).open_tree("groups").unwrap().insert(1u64.to_be_bytes(), "{\"schema\"").unwrap();
    });
    assert_eq!(torn.len(), 1);
    let hole = make(&|dir| {
        write(dir);
        raw(dir)
            .open_tree("groups")
            .unwrap()
            .insert(7u64.to_be_bytes(), codec::encode(&[]).unwrap())
            .unwrap();
    });
    assert_eq!(hole.len(), 1);
}

#[test]
fn a_truncated_or_overwritten_database_never_stops_the_start() {
    for (from, byte) in [(0usize, None), (100, Some(0xffu8)), (0, Some(0)), (40_000, None)] {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("journal-v1");
        let (mut journal, _) = SledJournal::open(&folder).unwrap();
        for _ in 0..50 {
            journal.append(&[every_update()]).unwrap();
        }
        drop(journal);
        let file = folder.join("db");
        let mut bytes = fs::read(&file).unwrap();
        match byte {
            None => bytes.truncate(from),
            Some(b) => bytes[from..].iter_mut().step_by(97).for_each(|x| *x = b),
        }
        fs::write(&file, bytes).unwrap();
        let (mut journal, _) = open_state_dir(dir.path(), NOW).unwrap();
        journal.append(&[every_update()]).unwrap();
    }
}

#[test]
fn a_state_dir_that_is_a_file_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    fs::write(&file, "x").unwrap();
    let e = open_state_dir(&file, NOW).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
    assert!(e.message().contains("--state-dir"), "{e}");
}

/// A journal whose disk is full after a while.
struct Full(u32);

impl Journal for Full {
    fn replay(&mut self) -> caju_types::Result<Vec<Vec<Update>>> {
        Ok(Vec::new())
    }
    fn append(&mut self, _: &[Vec<Update>]) -> caju_types::Result<()> {
        self.0 =
            self.0.checked_sub(1).ok_or_else(|| caju_types::Error::exhausted("/state: no space left"))?;
        Ok(())
    }
    fn replace(&mut self, _: &[Update]) -> caju_types::Result<()> {
        Ok(())
    }
    fn describe(&self) -> String {
        "full".into()
    }
}

#[test]
fn what_cannot_be_written_is_never_told() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let writer = Arc::new(JournalWriter::start(Box::new(Full(1))).unwrap());
        let first = writer.enqueue(vec![]);
        writer.durable(first).await.unwrap();
        let second = writer.enqueue(vec![]);
        let e = writer.durable(second).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
        assert!(e.message().contains("no space left"), "{e}");
        assert!(writer.durable(first).await.is_err(), "nor anything read since");
        assert!(writer.failed().await.message().contains("no space left"));
        writer.close();
    });
}
