//! Writes the seeds that take caju's own writers: frames, messages, parts and records. `fuzz/seeds.py` calls it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a tool that fails has to say where")]

use std::sync::Arc;

use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, Float32Array, Int64Array, ListArray, RecordBatch, StringArray};
use bytes::Bytes;
use caju_autocache::PlanRecord;
use caju_cache::{
    Cache, CacheOptions, Committed, Encoding, PartFacts, PutOutcome, ReadOptions, SnapshotDescription,
    write_plan_record,
};
use caju_fuzz::{CALLS, OF, PEER_CALLS, SPLIT, corpus, part_input};
use caju_proto::v1;
use caju_runtime::{Stores, SystemClock};
use caju_types::{Error, SplitKey};
use caju_wire::frame::{CreditHeader, EmptyHeader, ErrorHeader, Kind, OpenHeader};
use caju_wire::{Chunk, Elements, RoundMark, Run};
use caju_wire::{FrameWriter, encode_chunk, encode_schema, schema_to_ipc};
use futures::TryStreamExt;
use object_store::ObjectStoreExt;
use prost::Message;

const ROOT: &str = "memory://seeds/root";
const ENCODINGS: [&str; 7] = [
    "arrow/none",
    "arrow/lz4",
    "arrow/zstd",
    "parquet/none",
    "parquet/snappy",
    "parquet/lz4",
    "parquet/zstd",
];

fn save(target: &str, name: &str, data: &[u8]) {
    let folder = corpus(target);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join(name), data).unwrap();
}

/// Rows of the kinds that readers treat apart: with nulls, offsets, children and dictionaries.
fn rows() -> RecordBatch {
    let lists = (0..24).map(|i| (i % 5 != 2).then(|| (0..i % 4).map(Some).collect::<Vec<_>>()));
    let colors: DictionaryArray<Int32Type> =
        (0..24).map(|i| ["red", "green", "blue"].get(i % 4).copied()).collect();
    let columns: [(&str, ArrayRef); 5] = [
        ("i", Arc::new((0..24).map(|i| (i % 7 != 3).then_some(i)).collect::<Int64Array>())),
        ("f", Arc::new((0..24u8).map(|i| Some(f32::from(i) / 3.0)).collect::<Float32Array>())),
        ("s", Arc::new((0..24).map(|i| (i % 6 != 5).then(|| "ü".repeat(i % 4))).collect::<StringArray>())),
        ("l", Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ("c", Arc::new(colors)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(n, a)| (n, a, true))).unwrap()
}

async fn frames() {
    let rows = rows();
    let mut out = Vec::new();
    let mut to = FrameWriter::new(&mut out, "a file", std::time::Duration::from_secs(5));
    to.send(
        Kind::Open,
        &OpenHeader { task_id: 3, client_id: 4, window_bytes: 1 << 20, ..Default::default() },
    )
    .await
    .unwrap();
    to.send(Kind::Credit, &CreditHeader { bytes: 4096, shrink_bytes: 1 }).await.unwrap();
    to.send(Kind::Ping, &EmptyHeader {}).await.unwrap();
    to.send(Kind::Schema, &encode_schema(&rows.schema()).unwrap()).await.unwrap();
    let runs = vec![Run { split: 1, start: 0, len: 20 }, Run { split: 2, start: 7, len: 4 }];
    let chunk = Chunk {
        pieces: vec![rows.slice(0, 10), rows.slice(10, 14)],
        runs,
        elements: Elements::Lengths(vec![16, 8]),
        remainder: false,
        round: RoundMark::default(),
    };
    to.write(&encode_chunk(&chunk).unwrap()).await.unwrap();
    let rest = Chunk::rows_of(rows.slice(3, 2), vec![Run { split: 9, start: 3, len: 2 }]);
    to.write(&encode_chunk(&rest).unwrap()).await.unwrap();
    to.send(Kind::End, &EmptyHeader {}).await.unwrap();
    to.send(Kind::Error, &ErrorHeader::from(&Error::data_loss("a file: it is damaged"))).await.unwrap();
    for (name, how) in [("good-checked", 0), ("good-repaired", 1)] {
        save("frame", name, &[&[how][..], &out].concat());
    }
}

fn stages() -> Vec<v1::StageStats> {
    vec![v1::StageStats {
        name: "0.map".into(),
        rows_in: 9,
        rows_out: 9,
        cpu_s: 0.5,
        at_once: 2,
        ..Default::default()
    }]
}

fn profile() -> v1::TaskProfile {
    let probe =
        v1::HintProbe { hint: "h".into(), encoding: "arrow/none".into(), rows: 10, ..Default::default() };
    v1::TaskProfile {
        task_id: 1,
        stages: stages(),
        probes: vec![probe],
        elapsed_s: 1.5,
        ..Default::default()
    }
}

const DEFINITION: &str =
    r#"{"source": {"range": {"start": 0, "end": 100}}, "steps": [{"map": {"x": "id * 2"}}, {"batch": 10}]}"#;

fn messages() {
    let lost = v1::LostTask {
        task_id: 1,
        received: vec![v1::SplitRows {
            split_index: 0,
            rows: vec![v1::RowRange { start: 0, end: 9 }],
            ..Default::default()
        }],
        reason: "the connection broke".into(),
        elements: 0,
        sizes: vec![],
    };
    let failure = v1::Failure { kind: "data loss".into(), message: "a file: it is damaged".into() };
    let definition_json = DEFINITION.to_string();
    let lagging = v1::ServeLaggingRequest { task_id: 1, request_no: 1, elements: 3, ..Default::default() };
    let remainder = v1::AssignRemainderRequest {
        task_id: 1,
        wait_ms: 1,
        elements: 1,
        rows: 3,
        batch_rows: 10,
        lag: vec![1],
        kinds: vec![v1::RemainderElement::default()],
        row_widths: vec![7],
        ..Default::default()
    };
    let rounds = v1::NextRoundsRequest {
        client_id: 1,
        iteration_id: 1,
        wait_ms: 1,
        request_no: 1,
        position: 2,
        waiting: vec![v1::TaskElements { task_id: 1, elements: 4 }],
        recent: vec![v1::RoundStep::default()],
        ..Default::default()
    };
    let boundaries = vec![v1::LearntBoundaries { stage: 0, boundaries: vec![8, 16], rows: 100 }];
    let learnt = v1::ReportBoundariesRequest {
        worker_id: 1,
        dataset: "a".into(),
        stages: boundaries,
        ..Default::default()
    };
    let calls: [(&str, Vec<u8>); 19] = [
        (
            "RegisterWorker",
            v1::RegisterWorkerRequest { address: "127.0.0.1:9".into(), cores: 2, ..Default::default() }
                .encode_to_vec(),
        ),
        (
            "WorkerHeartbeat",
            v1::WorkerHeartbeatRequest {
                worker_id: 1,
                address: "127.0.0.1:9".into(),
                tasks: vec![1],
                stages: stages(),
                profiles: vec![profile()],
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        ("GetTask", v1::GetTaskRequest { task_id: 1, worker_id: 1, ..Default::default() }.encode_to_vec()),
        (
            "NextSplits",
            v1::NextSplitsRequest {
                task_id: 1,
                worker_id: 1,
                want: 2,
                wait_ms: 1,
                request_no: 1,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "FinishTask",
            v1::FinishTaskRequest {
                task_id: 1,
                worker_id: 1,
                failure: Some(failure),
                stages: stages(),
                profile: Some(profile()),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        ("DrainWorker", v1::DrainWorkerRequest { worker_id: 99, ..Default::default() }.encode_to_vec()),
        (
            "RegisterDataset",
            v1::RegisterDatasetRequest { definition_json: definition_json.clone(), dataset_id: "a".into() }
                .encode_to_vec(),
        ),
        ("GetDataset", v1::GetDatasetRequest { dataset_id: "a".into() }.encode_to_vec()),
        (
            "OpenIteration",
            v1::OpenIterationRequest {
                definition_json: definition_json.clone(),
                job: "j".into(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "ClientHeartbeat",
            v1::ClientHeartbeatRequest {
                client_id: 1,
                iteration_id: 1,
                wait_ms: 1,
                lost_tasks: vec![lost.clone()],
                rows_per_s: 2.5,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "CloseClient",
            v1::CloseClientRequest {
                client_id: 1,
                iteration_id: 1,
                received: vec![lost],
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "StartSave",
            v1::StartSaveRequest {
                definition_json,
                url: "memory://fuzz/saves/a".into(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        ("GetSave", v1::GetSaveRequest { url: "memory://fuzz/saves/a".into() }.encode_to_vec()),
        ("GetStatus", Vec::new()),
        ("GetWorkerStatus", Vec::new()),
        ("ServeBehind", lagging.encode_to_vec()),
        ("DealTail", remainder.encode_to_vec()),
        ("NextRounds", rounds.encode_to_vec()),
        ("ReportBoundaries", learnt.encode_to_vec()),
    ];
    for (target, names) in [("message", &CALLS[..]), ("peer", &PEER_CALLS[..])] {
        for (at, name) in (0u8..).zip(names) {
            let (_, body) = calls.iter().find(|(call, _)| call == name).unwrap();
            save(target, &format!("good-{name}"), &[&[at][..], body].concat());
        }
    }
    let schema = schema_to_ipc(&rows().schema()).unwrap();
    save("messages", "good-schema", &schema);
    save("messages", "good-profile", &profile().encode_to_vec());
    let most = v1::StageStats { name: "0.map".into(), rows_in: u64::MAX, ..Default::default() };
    let profile = v1::TaskProfile { stages: vec![most], ..Default::default() };
    save("messages", "large-counts", &profile.encode_to_vec());
    let definition_json = DEFINITION.to_string();
    let task =
        v1::TaskDef { task_id: 1, definition_json, source_schema_ipc: schema.into(), ..Default::default() };
    save("messages", "good-task", &task.encode_to_vec());
    let split = r#"{"file": null, "range": "whole", "key": "0000000000000000000000000000002a", "rows": 5}"#;
    let lease = v1::SplitLease { index: 1, split_json: split.into(), ..Default::default() };
    save("messages", "good-lease", &lease.encode_to_vec());
}

/// A record without its seal, which targets make again.
fn unsealed(record: &Bytes) -> Vec<u8> {
    let begin = br#"{"seal":"00000000000000000000000000000000","#.len();
    [b"{", record.get(begin..).unwrap_or_default()].concat()
}

async fn parts_and_records() {
    let stores = Stores::default();
    let open = async |id: &str| {
        Cache::open(&stores, ROOT, CacheOptions::default(), SystemClock::shared(), id.into()).await.unwrap()
    };
    let at = stores.resolve(ROOT).unwrap();
    let get = async |path: String| {
        let path = object_store::path::Path::parse(format!("{}/v1/{path}", at.path)).unwrap();
        at.store.get(&path).await.unwrap().bytes().await.unwrap()
    };
    let record = async |kind: &str, name: &str, path: String| {
        save("record", name, &[kind.as_bytes(), &unsealed(&get(path).await)].concat());
    };
    let cache = open("fuzz-2").await;
    for (number, encoding) in (0..).zip(ENCODINGS) {
        let name = encoding.replace('/', "-");
        // The first one is the part that records are about.
        let split = SplitKey(SPLIT.0 + number);
        let snapshot = cache.snapshot(&OF);
        let kind: Encoding = encoding.parse().unwrap();
        let describe =
            SnapshotDescription { name: "fuzz".into(), prefix: "range".into(), ..Default::default() };
        let PutOutcome::Writer(mut writer) =
            snapshot.put(split, &describe, rows().schema(), kind).await.unwrap()
        else {
            panic!("{encoding}: the split is taken")
        };
        if split == SPLIT {
            record("l", "good-claim", format!("{OF}/claims/{SPLIT}-1.json")).await;
            record("w", "good-lease", "writers/fuzz-2.json".into()).await;
        }
        writer.write(&rows()).await.unwrap();
        let facts = PartFacts { rows: 24, ..PartFacts::default() };
        let Committed::Ours(meta) = writer.finish(facts).await.unwrap() else { panic!("{encoding}: lost") };
        let file = get(meta.path.clone()).await;
        save("part", &format!("good-{name}"), &part_input(&meta, &file, false));
        save("part", &format!("good-{name}-forged"), &part_input(&meta, &file, true));
        let reader = snapshot.open_part(&meta, ReadOptions::default()).await.unwrap();
        let _read: Vec<RecordBatch> = reader.try_collect().await.unwrap();
        if split == SPLIT {
            record("c", "good-commit", format!("{OF}/parts/{SPLIT}-1.commit")).await;
            snapshot.fold().await.unwrap();
            record("m", "good-manifest", format!("{OF}/manifest-00000001.json")).await;
        }
    }
    let known = PlanRecord { jobs: 1, epochs: Some(3), ..PlanRecord::default() };
    write_plan_record(&known, &stores, ROOT, OF).await.unwrap();
    record("p", "good-plan", format!("plans/{OF}.json")).await;
    cache.close(std::time::Duration::from_secs(5)).await.unwrap();
    let uses = at
        .store
        .list(Some(&at.path))
        .try_filter(|o| futures::future::ready(o.location.as_ref().contains("/uses/")));
    let uses: Vec<_> = uses.try_collect().await.unwrap();
    let path = uses[0].location.as_ref().split_once("/v1/").unwrap().1.to_string();
    record("u", "good-uses", path).await;
    let others: [(&str, &[u8]); 3] = [
        ("good-set", br#"s{"schema":"caju.set/v1","attempt":"a","whole":{"splits":1,"sum":"00"},"members":[]}"#),
        ("good-listing", br#"i{"schema":"caju.listing/v1","source":{},"columns":{"fields":[],"metadata":{}},"splits":[]}"#),
        ("good-save", br#"v{"schema":"caju.save/v1","fingerprint":"f","definition":{},"columns":{},"arrow_schema":{},"encoding":"arrow/none","copies":1,"state":"finished","splits":[]}"#),
    ];
    for (name, data) in others {
        save("record", name, data);
    }
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        frames().await;
        parts_and_records().await;
    });
    messages();
}
