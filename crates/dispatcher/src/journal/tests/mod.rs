//! The format of the journal and its past; one suite for every database, what happens to damage, and the group commit.

mod conformance;
mod cuts;
mod damage;
#[cfg(target_os = "linux")]
mod priority;
mod writing;

use caju_autocache::{Document, ReplanState};
use caju_types::{ClientId, ErrorKind, Fingerprint, IterationId, JobPriority, TaskId, WorkerId};

use super::{SCHEMA, codec};
use crate::Definition;
use crate::state::{
    Dataset, Failure, FeedId, JobSpec, Mode, Policy, SharedCounts, Sharing, SplitModes, SplitRecord, State,
    TargetWorkers, Update,
};

/// The journal as it was written by the first version; it must be read for ever.
const LATER: &str = include_str!("../../tests/fixtures/journal-v1-snapshots.jsonl");
const FIXTURE: &str = include_str!("../../tests/fixtures/journal-v1.jsonl");

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
        definition: Definition::from_text(r#"{"source":{}}"#),
        schema_ipc: vec![1, 0xab],
        source_schema_ipc: vec![],
        seed: Some(3),
        single_task: false,
        counts_by_file: false,
        deterministic: true,
        skip_limit: Some(10),
        hints: vec![],
        random_stages: vec![],
        cache_only: None,
        unlearnt: None,
    };
    let (job, iteration) = (caju_types::JobName("run-1".into()), IterationId(1001));
    let (worker, client) = (WorkerId(1), ClientId(1002));
    let split =
        |index, text: &str| SplitRecord { index, split: text.into(), group: None, after: None, whole: None };
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
            spec: JobSpec {
                dataset: dataset.id,
                seed: 3,
                mode: Mode::Dynamic,
                anonymous: false,
                policy: Policy::default(),
                encoding: None,
                epochs: None,
                profile_only: false,
                save: None,
                target: TargetWorkers::Auto,
                shard_by: None,
                consumers: None,
                sharing: Sharing::Off,
                priority: JobPriority::default(),
            },
        },
        Update::IterationOpened {
            iteration,
            job,
            epoch: 0,
            at_ms: 1_700_000_000_000,
            num_shards: 0,
            num_workers: 0,
            resume: None,
            attempt: None,
        },
        Update::ClientJoined {
            client,
            iteration,
            flight: None,
            allow_lost: false,
            secret: None,
            local: Vec::new(),
            consumer: None,
            was: None,
            may_load: false,
            rank: None,
            request_id: None,
            is_journaled: false,
        },
        Update::ClientJoined {
            client: ClientId(1003),
            iteration,
            flight: Some(WorkerId(2)),
            allow_lost: false,
            secret: None,
            local: Vec::new(),
            consumer: None,
            was: None,
            may_load: false,
            rank: None,
            request_id: None,
            is_journaled: false,
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
            asks_for_lagging: false,
        },
        Update::ClientLost {
            client,
            task: TaskId(1004),
            received: rows,
            reason: "reset".into(),
            elements: 0,
            sizes: vec![],
        },
        Update::TaskCreated { task: TaskId(1006), iteration, worker, feed: FeedId::SHARED, secret: None },
        Update::FeedExhausted { iteration, feed: FeedId::SHARED, listing: None, source_changed: None },
        Update::Leased {
            task: TaskId(1006),
            request_no: 1,
            fresh: vec![],
            requeued: vec![0],
            end: true,
            asks_for_lagging: false,
        },
        Update::TaskEnded {
            task: TaskId(1006),
            rows_skipped: 2,
            modes: SplitModes::default(),
            emitted: None,
            to_flight: None,
            forgotten: 0,
            shared: None,
        },
        Update::ClientEnded { client, task: TaskId(1006), emitted: None },
        Update::TaskLost { task: TaskId(1005), reason: "told to stop".into(), emitted: None },
        Update::WorkerDraining { worker },
        Update::WorkerLost {
            worker: WorkerId(2),
            reason: "silent".into(),
            at_ms: 1_700_000_001_000,
            left: false,
        },
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
            elements: vec![],
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

/// A group as the first version wrote it. The names in it are those of later versions, too.
fn as_json(group: &[Update]) -> String {
    let updates = serde_json::to_string(group).unwrap();
    format!("{{\"schema\":\"caju.journal/v1\",\"updates\":{updates}}}")
}

fn encode(group: &[Update]) -> Vec<u8> {
    codec::Encoder::new().unwrap().encode(group).unwrap()
}

/// The second version: a line of hexadecimal digits per group.
const SECOND: &str = include_str!("../../tests/fixtures/journal-v2.hex");

#[test]
fn the_second_format_is_read_and_its_plain_form_still_written() {
    let bytes = |line: &str| -> Vec<u8> {
        let digits: Vec<u32> = line.chars().map(|c| c.to_digit(16).unwrap()).collect();
        digits.chunks(2).map(|d| u8::try_from(d[0] * 16 + d[1]).unwrap()).collect()
    };
    let stored: Vec<Vec<u8>> = SECOND.lines().map(bytes).collect();
    let groups: Vec<Vec<Update>> = stored.iter().map(|g| codec::decode(g).unwrap()).collect();
    let all: Vec<Update> = plain_updates().into_iter().chain(later_updates()).collect();
    assert_eq!(
        groups.concat(),
        [all.clone(), all.clone()].concat(),
        "an old journal must mean what it meant"
    );
    let (plain, compressed) = stored.split_at(all.len());
    assert_eq!(compressed.len(), 1, "the last one is compressed");
    let written: Vec<Vec<u8>> = all.chunks(1).map(encode).collect();
    assert_eq!(written, plain, "a change of the format needs a new version and a new fixture");
}

#[test]
fn every_update_survives_its_encoding() {
    let shared = SharedCounts { computed_rows: 8, window_rows: 16, read_back: 1, ..SharedCounts::default() };
    let ended = Update::TaskEnded {
        task: TaskId(1),
        rows_skipped: 0,
        modes: SplitModes::default(),
        emitted: None,
        to_flight: None,
        forgotten: 0,
        shared: Some(shared),
    };
    let skipped = Update::SplitsSkipped { task: TaskId(1), splits: vec![(3, 1000), (9, 0)] };
    let all = [every_update(), later_updates(), vec![ended, skipped]].concat();
    assert_eq!(codec::decode(&encode(&all)).unwrap(), all);
    for update in all {
        assert_eq!(codec::decode(&encode(std::slice::from_ref(&update))).unwrap(), [update]);
    }
    assert_eq!(codec::decode(&encode(&[])).unwrap(), []);
}

#[test]
fn leases_take_few_bytes() {
    let split = |index: u64| {
        let split = format!(
            "{{\"repetition\":0,\"key\":\"{:032x}\",\"file\":{{\"url\":\"s3://bucket/train/part-{:05}.parquet\",\"size\":\
             134217728,\"version\":\"{:016x}\"}},\"range\":{{\"row_groups\":{{\"first\":{},\"count\":1}}}}}}",
            u128::from(caju_types::mix64(index, 1)) << 64 | u128::from(caju_types::mix64(index, 2)),
            index / 64,
            caju_types::mix64(index / 64, 3),
            index % 64
        );
        SplitRecord { index, split: split.into(), group: None, after: None, whole: None }
    };
    let leased = |from: u64, n: u64| Update::Leased {
        task: TaskId(1),
        request_no: from,
        fresh: (from..from + n).map(split).collect(),
        requeued: vec![],
        end: false,
        asks_for_lagging: false,
    };
    let [one, many] = [1, 64].map(|n| encode(&[leased(0, n)]).len() as u64 / n);
    assert!(one < 300 && many < 50, "{one} and {many} bytes of a split");
}

#[test]
fn the_first_format_is_read_and_its_names_are_still_written() {
    let groups: Vec<Vec<Update>> = FIXTURE.lines().map(|l| codec::decode(l.as_bytes()).unwrap()).collect();
    let (snapshot, plain) = groups.split_last().unwrap();
    assert_eq!(plain.concat(), plain_updates(), "an old journal must mean what it meant");
    let written: Vec<String> = plain_updates().chunks(4).map(as_json).chain([as_json(snapshot)]).collect();
    let fixture: Vec<&str> = FIXTURE.lines().collect();
    assert_eq!(written, fixture, "a change of names needs a new version and a new fixture");
}

#[test]
fn what_is_forgotten_stays_forgotten() {
    let mut state = State::default();
    plain_updates().iter().for_each(|u| state.apply(u));
    let [job, dataset] = [
        Update::JobForgotten { job: caju_types::JobName("run-1".into()) },
        Update::DatasetForgotten { dataset: "images".to_string().into_id() },
    ];
    let written = encode(&[job.clone(), dataset.clone()]);
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
            spec: JobSpec {
                dataset: "images".to_string().into_id(),
                seed: 3,
                mode: Mode::Dynamic,
                anonymous: false,
                policy: Policy::Hint("a".into()),
                encoding: Some("arrow/lz4".parse().unwrap()),
                epochs: Some(3),
                profile_only: true,
                save: None,
                target: TargetWorkers::Auto,
                shard_by: None,
                consumers: None,
                sharing: Sharing::Off,
                priority: JobPriority::default(),
            },
        },
        Update::Planned { iteration, plan: Some(Document::from_text("{}")) },
        Update::TaskEnded {
            task: TaskId(2006),
            rows_skipped: 0,
            modes: SplitModes { compute: 1, put: 2, get: 3, fell_back: 0, backfilled: 0 },
            emitted: None,
            to_flight: None,
            forgotten: 0,
            shared: None,
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
    let text = as_json(&later_updates());
    assert_eq!(codec::decode(LATER.trim_end().as_bytes()).unwrap(), later_updates());
    assert_eq!(text, LATER.trim_end(), "a change of the format needs a new version and a new fixture");
}

#[test]
fn other_formats_and_damage_are_distinguished_from_ours() {
    let newer = br#"{"schema":"caju.journal/v9","updates":[{"unknown":{}}]}"#;
    let e = codec::decode(newer).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DataLoss);
    assert!(e.message().contains("caju.journal/v9") && e.message().contains(SCHEMA), "{e}");
    let e = codec::decode(&[9, 0]).unwrap_err();
    assert!(e.kind() == ErrorKind::DataLoss && e.message().contains("form 9"), "{e}");
    let all = every_update();
    for whole in [encode(&all[..1]), encode(&all)] {
        for end in 0..whole.len() {
            assert_eq!(codec::decode(&whole[..end]).unwrap_err().kind(), ErrorKind::DataLoss, "cut at {end}");
        }
        assert!(codec::decode(&[&whole[..], &[0xc0]].concat()).is_err(), "more than a group");
    }
    assert!(codec::decode(b"{\"schema\":").is_err());
    assert!(codec::decode(br#"{"schema":"caju.journal/v1","updates":[{"no_such":1}]}"#).is_err());
}

/// What clients acknowledge came after the fixtures: the names that it is stored under.
#[test]
fn acknowledged_rows_are_stored_under_their_names() {
    let line = concat!(
        r#"{"rows_acknowledged":{"client":1002,"iteration":1001,"#,
        r#""rows":[[3,{"long":[[0,5000]],"short":{"head":[6000,6001],"words":{"100":4}}}]],"elements":7}}"#,
    );
    let update: Update = serde_json::from_str(line).unwrap();
    assert_eq!(serde_json::to_string(&update).unwrap(), line);
    let Update::RowsAcknowledged { rows, .. } = update else { panic!("{line}") };
    let ranges: Vec<(u64, u64)> = rows[0].1.ranges().iter().collect();
    assert_eq!(ranges, [(0, 5_000), (6_000, 6_001), (6_402, 6_403)]);
}

/// So did the priority and the weight of a job.
#[test]
fn a_priority_is_stored_under_its_names() {
    let line = concat!(
        r#"{"job_created":{"job":"run-3","dataset":"images","seed":1,"mode":"dynamic","anonymous":false,"#,
        r#""precedence":{"priority":-2,"weight_milli":2500}}}"#,
    );
    let update: Update = serde_json::from_str(line).unwrap();
    assert_eq!(serde_json::to_string(&update).unwrap(), line);
    assert_eq!(codec::decode(&encode(std::slice::from_ref(&update))).unwrap(), std::slice::from_ref(&update));
    let Update::JobCreated { spec, .. } = update else { panic!("{line}") };
    assert_eq!(spec.priority, JobPriority { level: -2, weight_milli: 2500 });
    assert!((spec.priority.weight() - 2.5).abs() < 1e-9);
}

/// Boundaries that were learnt came after the fixtures, too.
#[test]
fn learnt_boundaries_are_stored_under_their_names_and_go_with_their_dataset() {
    let line = concat!(
        r#"{"boundaries_learnt":{"learnt":{"definition":"00000000000000000000000000000001","#,
        r#""spelling":"00000000000000000000000000000002","dataset":"images","#,
        r#""stages":[{"stage":1,"boundaries":[12,40],"rows":4096}]}}}"#,
    );
    let update: Update = serde_json::from_str(line).unwrap();
    assert_eq!(serde_json::to_string(&update).unwrap(), line);
    let mut state = State::default();
    state.apply(&update);
    let snapshot = Update::Snapshot { state: Box::new(state.clone()) };
    assert_eq!(codec::decode(&encode(std::slice::from_ref(&snapshot))).unwrap(), [snapshot]);
    assert_eq!(state.learnt.len(), 1);
    state.apply(&Update::DatasetForgotten { dataset: "images".to_string().into_id() });
    assert!(state.learnt.is_empty());
}

/// The shards of epochs that go on from states came after the fixtures, too.
#[test]
fn the_shards_of_an_epoch_that_goes_on_are_stored_under_their_names() {
    for line in [
        concat!(
            r#"{"iteration_opened":{"iteration":7,"job":"j","epoch":1,"at_ms":5,"num_shards":5,"num_workers":2,"#,
            r#""resume":{"of":3,"given":[],"needed":[],"shards":{"count":5,"by":"data"},"#,
            r#""taken":{"whole":[],"rows":{},"listed":{}}}}}"#,
        ),
        r#"{"shards_reassigned":{"iteration":7,"num_workers":3}}"#,
    ] {
        let update: Update = serde_json::from_str(line).unwrap();
        assert_eq!(serde_json::to_string(&update).unwrap(), line);
        assert_eq!(codec::decode(&encode(std::slice::from_ref(&update))).unwrap(), [update]);
    }
}
