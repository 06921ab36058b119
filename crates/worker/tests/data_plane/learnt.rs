//! Boundaries of `bucket_by_length` that workers learn: all readers have the same, whatever happens.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use caju_client::{Balance, Consumer, DatasetRef, ReadRequest, Reader, ReaderState};
use caju_pipeline::DatasetDef;
use caju_types::ErrorKind;
use serde_json::{Value, json};

use crate::cluster::{Cluster, TEST_TIMEOUT, drain, ids, range, request};

const ROWS: u64 = 6_000;
/// The rows whose lengths are read.
const FIRST: i64 = 2_000;

fn length(id: i64) -> i64 {
    id * 7919 % 97
}

/// Rows by the quantiles of the first ones: three classes.
fn learns() -> Value {
    bucketed(&json!({ "quantiles": 3, "rows": FIRST }))
}

fn bucketed(boundaries: &Value) -> Value {
    range(
        ROWS,
        &[
            json!({"with_columns": {"n": "id * 7919 % 97"}}),
            json!({"shuffle": {"buffer": 50, "seed": 3}}),
            json!({"bucket_by_length": {"length": "n", "boundaries": boundaries, "batch_sizes": 10, "pad": false}}),
        ],
    )
}

/// What the workers have to learn.
static BOUNDARIES: LazyLock<[i64; 2]> = LazyLock::new(|| {
    let mut lengths: Vec<i64> = (0..FIRST).map(length).collect();
    lengths.sort_unstable();
    [1, 2].map(|k| lengths[k * lengths.len() / 3])
});

fn class(id: i64) -> usize {
    BOUNDARIES.partition_point(|b| *b <= length(id))
}

fn consumer(def: &Value, index: u32, state: Option<ReaderState>) -> ReadRequest {
    let consumer = Some(Consumer { balance: Balance::Bucket, ..Consumer::new(index, 3) });
    ReadRequest { consumer, states: state.into_iter().collect(), ..request(def, "rounds") }
}

/// Opens all consumers concurrently: they wait for one worker.
async fn open(cluster: &Cluster, states: &[ReaderState], epoch: u64) -> Vec<Reader> {
    let (client, def) = (cluster.client().await, learns());
    let open = |index| {
        let state = states.get(index as usize).cloned();
        client.read(ReadRequest { epoch, ..consumer(&def, index, state) })
    };
    futures::future::try_join_all((0..3).map(open)).await.unwrap()
}

/// The next elements of all readers, or all that are left.
async fn take(readers: &mut [Reader], steps: usize) -> Vec<Vec<Vec<i64>>> {
    let taking = readers.iter_mut().map(async |reader: &mut Reader| {
        let mut out = Vec::new();
        while out.len() < steps
            && let Some(e) = reader.next().await?
        {
            out.push(ids(&e.batch));
        }
        Ok::<_, caju_types::Error>(out)
    });
    tokio::time::timeout(TEST_TIMEOUT, futures::future::try_join_all(taking)).await.unwrap().unwrap()
}

/// In each round all elements are of one class, and no row comes twice; the number of rows.
#[track_caller]
fn in_rounds(all: &[Vec<Vec<i64>>]) -> usize {
    for round in 0..all[0].len() {
        let classes: BTreeSet<usize> =
            all.iter().flat_map(|own| own[round].iter().map(|id| class(*id))).collect();
        assert_eq!(classes.len(), 1, "round {round}: classes {classes:?}");
    }
    let rows: Vec<i64> = all.iter().flatten().flatten().copied().collect();
    assert_eq!(rows.iter().collect::<BTreeSet<_>>().len(), rows.len(), "a row came twice");
    rows.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_have_one_class_in_each_epoch_and_behind_states_at_another_dispatcher() {
    let cluster = Cluster::start(3).await;
    for epoch in 0..2 {
        let mut readers = open(&cluster, &[], epoch).await;
        let all = take(&mut readers, usize::MAX).await;
        let rows = in_rounds(&all);
        assert!(rows > 6_000 - 3 * 3 * 10, "epoch {epoch}: {rows} rows");
    }
    let fingerprint = cluster.read(&bucketed(&json!(*BOUNDARIES))).await.fingerprint().to_owned();
    let (mut all, states) = {
        let mut readers = open(&cluster, &[], 2).await;
        assert!(readers.iter().all(|r| r.fingerprint() == fingerprint), "as with given boundaries");
        let all = take(&mut readers, 40).await;
        (all, readers.iter().map(|r| r.state().unwrap()).collect::<Vec<_>>())
    };
    let elsewhere = Cluster::start(1).await;
    let mut readers = open(&elsewhere, &states, 2).await;
    assert!(readers.iter().all(|r| r.fingerprint() == fingerprint));
    for (own, more) in all.iter_mut().zip(take(&mut readers, usize::MAX).await) {
        own.extend(more);
    }
    assert!(in_rounds(&all) > 6_000 - 2 * 3 * 3 * 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_by_id_and_in_other_modes_have_them_too() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    client.register(&DatasetDef::from_json(&learns()).unwrap(), "texts").await.unwrap();
    let by_id =
        ReadRequest { dataset: DatasetRef::Registered("texts".into()), ..request(&learns(), "by-id") };
    let mut rows: Vec<i64> = Vec::new();
    for batch in drain(&mut client.read(by_id).await.unwrap()).await.unwrap() {
        assert_eq!(batch.iter().map(|id| class(*id)).collect::<BTreeSet<_>>().len(), 1);
        rows.extend(batch);
    }
    rows.sort_unstable();
    assert_eq!(rows, (0..6_000).collect::<Vec<i64>>());
    let off = ReadRequest { mode: caju_proto::v1::ProcessingMode::Off, ..request(&learns(), "off") };
    let all = drain(&mut client.read(off).await.unwrap()).await.unwrap();
    assert!(all.iter().all(|batch| batch.iter().map(|id| class(*id)).collect::<BTreeSet<_>>().len() == 1));
    assert_eq!(all.iter().map(Vec::len).sum::<usize>(), 12_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_learnt_and_who_does_not_come_are_errors_by_name() {
    let cluster = Cluster::start(1).await;
    let bad = range(
        100,
        &[
            json!({"with_columns": {"n": "1 / (id - 5)"}}),
            json!({"bucket_by_length": {"length": "n", "boundaries": {"quantiles": 3}, "batch_sizes": 2, "pad": false}}),
        ],
    );
    let e = cluster.client().await.read(request(&bad, "bad")).await.unwrap_err();
    let want = "steps[1].bucket_by_length: its boundaries could not be learnt: steps[0].with_columns";
    assert!(e.message().starts_with(want) && e.message().contains("at the worker"), "{e}");
    // A worker that takes too long.
    let slow = range(
        5_000,
        &[
            json!({"sleep": {"per_row": "2ms"}}),
            json!({"bucket_by_length": {"length": "id", "boundaries": {"quantiles": 3}, "batch_sizes": 2, "pad": false}}),
        ],
    );
    let hasty = cluster.client_with(|c| c.stall_timeout = Duration::from_secs(1)).await;
    let e = hasty.read(request(&slow, "slow")).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DeadlineExceeded);
    assert!(e.message().contains("has not learnt its boundaries within 1"), "{e}");
    // No worker at all.
    let empty = Cluster::start(0).await;
    let alone = empty.client_with(|c| c.worker_timeout = Duration::from_secs(1)).await;
    let e = alone.read(request(&learns(), "alone")).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable);
    assert!(e.message().contains("steps[2].bucket_by_length: no worker learns its boundaries"), "{e}");
}
