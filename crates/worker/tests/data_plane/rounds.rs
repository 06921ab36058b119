//! Consumers that read in rounds: the n-th elements of all are of one class, and of one task, whatever happens.

use std::collections::BTreeSet;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch};
use caju_client::{Balance, Client, Consumer, ReadRequest, Reader, ReaderState, Uneven};
use caju_proto::v1;
use caju_types::{ErrorKind, Result};
use serde_json::{Value, json};

use crate::cluster::{Cluster, TEST_TIMEOUT, ids, range, request};

/// An element: its ids, the length of its lists where it has some, and whether it is padding.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Got {
    ids: Vec<i64>,
    width: Option<i32>,
    is_padding: bool,
}

fn consumer(def: &Value, index: u32, count: u32, balance: Balance) -> ReadRequest {
    let consumer = Consumer { balance, ..Consumer::new(index, count) };
    ReadRequest { consumer: Some(consumer), ..request(def, "rounds") }
}

async fn open(client: &Client, def: &Value, count: u32, balance: Balance) -> Vec<Reader> {
    let mut readers = Vec::new();
    for index in 0..count {
        readers.push(client.read(consumer(def, index, count, balance)).await.unwrap());
    }
    readers
}

fn got(batch: &RecordBatch, is_padding: bool) -> Got {
    let width = batch.column_by_name("tokens").map(|lists| {
        let lists = lists.as_list::<i32>();
        let width = lists.value_length(0);
        assert!((0..lists.len()).all(|row| lists.value_length(row) == width), "padded to one length");
        width
    });
    Got { ids: ids(batch), width, is_padding }
}

/// The next `steps` elements of a reader, or all that are left.
async fn take(reader: &mut Reader, steps: usize) -> Result<Vec<Got>> {
    let mut out = Vec::new();
    while out.len() < steps
        && let Some(e) = reader.next().await?
    {
        out.push(got(&e.batch, e.is_padding));
    }
    Ok(out)
}

/// The next elements of all readers, which read concurrently.
async fn take_all(readers: &mut [Reader], steps: usize) -> Result<Vec<Vec<Got>>> {
    let taking = readers.iter_mut().map(|r| take(r, steps));
    tokio::time::timeout(TEST_TIMEOUT, futures::future::try_join_all(taking))
        .await
        .expect("reading never blocks")
}

/// Appends what the consumers got later.
fn append(all: &mut Vec<Vec<Got>>, more: Vec<Vec<Got>>) {
    all.resize(more.len(), Vec::new());
    all.iter_mut().zip(more).for_each(|(all, more)| all.extend(more));
}

const BOUNDARIES: [i64; 2] = [30, 60];

fn length(id: i64) -> i64 {
    id * 7919 % 97
}

fn class(id: i64) -> usize {
    BOUNDARIES.partition_point(|b| *b <= length(id))
}

/// Batches of 10 rows of one class of lengths, padded to the longest of each.
fn bucketed(rows: u64) -> Value {
    range(
        rows,
        &[
            json!({"with_columns": {"tokens": "array_repeat(id, id * 7919 % 97 + 1)"}}),
            json!({"shuffle": {"buffer": 50, "seed": 3}}),
            json!({"bucket_by_length": {"length": "id * 7919 % 97", "boundaries": BOUNDARIES, "batch_sizes": 10, "pad": true}}),
        ],
    )
}

/// All consumers have equally many elements, and in each round all are of one class and one shape. The distinct rows.
#[track_caller]
fn in_rounds(all: &[Vec<Got>]) -> usize {
    for (consumer, own) in all.iter().enumerate() {
        assert_eq!(own.len(), all[0].len(), "elements of consumer {consumer}");
    }
    for round in 0..all[0].len() {
        let classes: BTreeSet<usize> =
            all.iter().flat_map(|own| own[round].ids.iter().map(|id| class(*id))).collect();
        let widths: BTreeSet<Option<i32>> = all.iter().map(|own| own[round].width).collect();
        assert_eq!(
            (classes.len(), widths.len()),
            (1, 1),
            "round {round}: classes {classes:?}, widths {widths:?}"
        );
    }
    distinct(all)
}

/// No row comes twice but as padding; the number of rows.
#[track_caller]
fn distinct(all: &[Vec<Got>]) -> usize {
    let own: Vec<i64> = all.iter().flatten().filter(|e| !e.is_padding).flat_map(|e| e.ids.clone()).collect();
    assert_eq!(own.iter().collect::<BTreeSet<_>>().len(), own.len(), "a row came twice");
    own.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cor_01_every_round_is_of_consecutive_rows_of_one_worker() {
    // Chunks of a number of rows that all numbers of consumers divide, of one split at a time: no round lies across two chunks
    // that do not follow each other.
    for (workers, count) in [(1, 1), (1, 2), (1, 5), (3, 1), (3, 2), (3, 5)] {
        let mut cluster = Cluster::start(0).await;
        for _ in 0..workers {
            cluster
                .add(|c| {
                    c.batch_rows = Some(40);
                    c.tuned.readers = Some(1);
                })
                .await;
        }
        let def = json!({"source": {"range": {"start": 0, "end": 4000}},
                         "steps": [{"repeat": {}}]});
        let mut readers = open(&cluster.client().await, &def, count, Balance::Bucket).await;
        let all = take_all(&mut readers, 100).await.unwrap();
        for round in 0..100 {
            let ids: Vec<i64> = all.iter().map(|own| own[round].ids[0]).collect();
            let want: Vec<i64> = (ids[0]..ids[0] + i64::from(count)).collect();
            assert_eq!(ids, want, "{workers} workers, {count} consumers, round {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cor_03_all_batches_of_a_round_are_of_one_class() {
    let cluster = Cluster::start(4).await;
    let mut readers = open(&cluster.client().await, &bucketed(20_000), 15, Balance::Bucket).await;
    let all = take_all(&mut readers, usize::MAX).await.unwrap();
    let rows = in_rounds(&all);
    // Of 2000 batches and some short ones; less than a round of each of three classes is dropped.
    assert!(
        all[0].len() >= 2000 / 15 - 3 && rows > 20_000 - 3 * 15 * 10,
        "{} rounds, {rows} rows",
        all[0].len()
    );
    let client = cluster.client().await;
    let status = client.status().await.unwrap();
    let job = status.jobs.iter().find(|j| j.job == "rounds").unwrap();
    assert_eq!((job.state.as_str(), job.balance.as_str()), ("finished", "bucket"));
    assert!(job.surplus_elements < 3 * 15);
}

/// One consumer gets what fills no batch, too: with `tokens` a batch with fewer rows is left at the end of a task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_consumer_gets_the_short_batch_of_packed_rows() {
    let cluster = Cluster::start(1).await;
    let tokens = json!({"with_columns": {"tokens": "array_repeat(id, 3)"}});
    let mut def = range(1_003, &[tokens, json!({"batch": 10})]);
    def["deterministic"] = json!(true);
    let mut readers = open(&cluster.client().await, &def, 1, Balance::Tokens).await;
    let all = take_all(&mut readers, usize::MAX).await.unwrap();
    let ids: BTreeSet<i64> = all[0].iter().flat_map(|e| e.ids.clone()).collect();
    assert_eq!((all[0].len(), ids.len()), (101, 1_003));
}

/// The splits behind a `take` are never leased.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_end_where_a_take_ends_the_epoch() {
    let mut def = bucketed(20_000);
    def["steps"].as_array_mut().unwrap().push(json!({"take": 60}));
    let cluster = Cluster::start(2).await;
    let mut readers = open(&cluster.client().await, &def, 2, Balance::Bucket).await;
    let all = take_all(&mut readers, usize::MAX).await.unwrap();
    let rows = in_rounds(&all);
    assert!((500..=600).contains(&rows), "{rows} rows of 600");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_rounds_are_of_one_class_with_copies_and_every_row_comes() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let mut readers = Vec::new();
    for index in 0..4 {
        let padded = Consumer { uneven: Uneven::Pad, balance: Balance::Bucket, ..Consumer::new(index, 4) };
        let request = ReadRequest { consumer: Some(padded), ..request(&bucketed(3_003), "rounds") };
        readers.push(client.read(request).await.unwrap());
    }
    let all = take_all(&mut readers, usize::MAX).await.unwrap();
    assert_eq!(in_rounds(&all), 3_003);
    let padded: usize = all.iter().flatten().filter(|e| e.is_padding).count();
    let said: u64 = readers.iter().map(|r| r.stats().padded_elements).sum();
    assert_eq!(padded as u64, said);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_rows_of_several_workers_fill_come_last() {
    // 10,007 rows by 32 are 312 full batches and a short one: two consumers get 156, or 157 with copies.
    for (uneven, each) in [(Uneven::Drop, 156), (Uneven::Pad, 157)] {
        let cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        let def = range(10_007, &[json!({"batch": 32})]);
        let mut readers = Vec::new();
        for index in 0..2 {
            let own = Consumer { uneven, balance: Balance::Bucket, ..Consumer::new(index, 2) };
            readers.push(
                client.read(ReadRequest { consumer: Some(own), ..request(&def, "rounds") }).await.unwrap(),
            );
        }
        let all = take_all(&mut readers, usize::MAX).await.unwrap();
        assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [each; 2]);
        assert!(distinct(&all) >= 312 * 32);
    }
}

/// The batches that rows of several workers fill are padded to one length, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_rounds_of_padded_batches_are_of_one_shape() {
    let tokens = json!({"with_columns": {"tokens": "array_repeat(id, id * 7919 % 97 + 1)"}});
    for batch in [7, 64] {
        let def = range(1_000, &[tokens.clone(), json!({"padded_batch": batch})]);
        let cluster = Cluster::start(3).await;
        let mut readers = open(&cluster.client().await, &def, 3, Balance::Bucket).await;
        let all = take_all(&mut readers, usize::MAX).await.unwrap();
        for round in 0..all[0].len() {
            let widths: BTreeSet<Option<i32>> = all.iter().map(|own| own[round].width).collect();
            assert_eq!(widths.len(), 1, "batches of {batch}, round {round} of {}: {widths:?}", all[0].len());
        }
        assert!(distinct(&all) >= 1_000 - 3 * batch);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cor_08_workers_that_join_begin_with_full_rounds() {
    for added in [1, 3, 10] {
        let mut cluster = Cluster::start(3).await;
        let client = cluster.client().await;
        let mut readers = open(&client, &bucketed(100_000_000), 7, Balance::Bucket).await;
        let mut all = take_all(&mut readers, 25).await.unwrap();
        for _ in 0..added {
            cluster.add(|_| {}).await;
        }
        let begin = std::time::Instant::now();
        loop {
            append(&mut all, take_all(&mut readers, 50).await.unwrap());
            let workers = client.status().await.unwrap().workers;
            let served = |w: &&v1::WorkerStatus| w.served.is_some_and(|s| s.rows > 0);
            if workers.iter().filter(served).count() == 3 + added {
                break;
            }
            assert!(begin.elapsed() < TEST_TIMEOUT, "some worker that joined gives no rows: {workers:?}");
        }
        in_rounds(&all);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_in_rounds_is_whole_whenever_workers_join() {
    for added in [1, 3, 10] {
        let mut cluster = Cluster::start(3).await;
        let mut readers = open(&cluster.client().await, &bucketed(20_000), 7, Balance::Bucket).await;
        let mut all = take_all(&mut readers, 25).await.unwrap();
        for _ in 0..added {
            cluster.add(|_| {}).await;
        }
        append(&mut all, take_all(&mut readers, usize::MAX).await.unwrap());
        let rows = in_rounds(&all);
        assert!(rows > 20_000 - 3 * 7 * 10, "{rows} rows");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_of_a_killed_worker_is_given_to_all_or_to_none() {
    for attempt in 0..3 {
        let mut cluster = Cluster::start(3).await;
        let mut def = bucketed(6_000);
        def["steps"].as_array_mut().unwrap().insert(0, json!({"sleep": {"per_row": "10us"}}));
        let client = cluster.client_with(|c| c.prefetch_bytes = 16 << 10).await;
        let mut readers = open(&client, &def, 3, Balance::Bucket).await;
        let mut all = take_all(&mut readers, 10 + 60 * attempt).await.unwrap();
        cluster.workers.remove(0).kill();
        cluster.add(|_| {}).await;
        append(&mut all, take_all(&mut readers, usize::MAX).await.unwrap());
        let rows = in_rounds(&all);
        assert!(rows > 6_000 - 3 * 3 * 10, "{rows} rows, killed after {} rounds", 10 + 60 * attempt);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_killed_at_the_end_takes_no_half_round_with_it() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client().await;
    let mut readers = open(&client, &bucketed(3_000), 3, Balance::Bucket).await;
    // Nearly all of the rounds: most tasks have reported their remainders, which wait for each other.
    let mut all = take_all(&mut readers, 97).await.unwrap();
    cluster.workers.remove(0).kill();
    append(&mut all, take_all(&mut readers, usize::MAX).await.unwrap());
    let rows = in_rounds(&all);
    assert!(rows > 3_000 - 3 * 3 * 10, "{rows} rows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cor_11_of_one_worker_consumers_get_rows_in_turn() {
    for (rows, count) in [(1000, 5), (1003, 5), (1000, 20), (4, 20), (0, 20)] {
        let cluster = Cluster::start(1).await;
        let mut def = range(rows, &[]);
        def["deterministic"] = json!(true);
        let mut readers = open(&cluster.client().await, &def, count, Balance::Bucket).await;
        let all = take_all(&mut readers, usize::MAX).await.unwrap();
        let n = i64::from(count);
        for (i, own) in (0..n).zip(&all) {
            let got: Vec<i64> = own.iter().flat_map(|e| e.ids.clone()).collect();
            let want: Vec<i64> = (0..rows.cast_signed() / n).map(|r| r * n + i).collect();
            assert_eq!(got, want, "consumer {i} of {count}, {rows} rows");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cor_12_no_round_is_partial_however_slow_a_consumer_is() {
    let mut cluster = Cluster::start(2).await;
    let client = cluster.client_with(|c| c.prefetch_bytes = 8 << 10).await;
    let readers = open(&client, &bucketed(6_000), 5, Balance::Bucket).await;
    let mut added = Vec::new();
    let reading = readers.into_iter().enumerate().map(|(index, mut reader)| async move {
        let mut own = Vec::new();
        loop {
            let more = take(&mut reader, 5).await.unwrap();
            if more.is_empty() {
                return (own, reader.stats());
            }
            own.extend(more);
            // Consumers learn of workers, and ask for elements, at different times.
            tokio::time::sleep(Duration::from_micros(700 * index as u64)).await;
        }
    });
    let joins = async {
        cluster.add(|_| {}).await;
        added.push(cluster.workers.len());
    };
    let (all, ()) =
        tokio::time::timeout(TEST_TIMEOUT, futures::future::join(futures::future::join_all(reading), joins))
            .await
            .expect("the epoch must end");
    let got: Vec<Vec<Got>> = all.iter().map(|(own, _)| own.clone()).collect();
    assert!(in_rounds(&got) > 6_000 - 3 * 5 * 10);
    assert!(all.iter().all(|(_, stats)| stats.consumer_wait <= stats.wait), "a part of the wait");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tokens_the_batches_of_a_round_have_nearly_as_many_items() {
    let cluster = Cluster::start(2).await;
    // Lengths from 1 to 400, most of them short.
    let lists =
        json!({"with_columns": {"tokens": "array_repeat(id, 1 + (id * 7919 % 20) * (id * 104729 % 20))"}});
    let def = range(9_600, &[lists, json!({"batch": 16})]);
    let mut readers = open(&cluster.client().await, &def, 4, Balance::Tokens).await;
    let items = |id: i64| 1 + (id * 7919 % 20) * (id * 104_729 % 20);
    let mut all: Vec<Vec<Vec<i64>>> = vec![Vec::new(); 4];
    let reading = readers.iter_mut().zip(&mut all).map(|(reader, all)| async move {
        while let Some(e) = reader.next().await.unwrap() {
            all.push(ids(&e.batch));
        }
    });
    tokio::time::timeout(TEST_TIMEOUT, futures::future::join_all(reading)).await.expect("the epoch must end");
    assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [150; 4]);
    let rows: BTreeSet<i64> = all.iter().flatten().flatten().copied().collect();
    assert_eq!(rows.len(), 9_600, "every row once");
    assert!(all.iter().flatten().all(|batch| batch.len() == 16));
    let sum = |batch: &Vec<i64>| batch.iter().map(|id| items(*id)).sum::<i64>();
    let slowest: i64 = (0..150).map(|round| all.iter().map(|own| sum(&own[round])).max().unwrap()).sum();
    let perfect = (0..9_600).map(items).sum::<i64>() / 4;
    // Rows that fill no batch of one worker make batches that are not packed.
    assert!(slowest < perfect * 110 / 100, "{slowest} items of the slowest, {perfect} with perfect packing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_go_on_from_the_states_of_one_round() {
    let def = bucketed(6_000);
    for workers in [1, 3] {
        let (mut all, states) = {
            let cluster = Cluster::start(2).await;
            let mut readers = open(&cluster.client().await, &def, 3, Balance::Bucket).await;
            let all = take_all(&mut readers, 40).await.unwrap();
            let states: Vec<ReaderState> = readers.iter().map(|r| r.state().unwrap()).collect();
            (all, states)
        };
        let cluster = Cluster::start(workers).await;
        let client = cluster.client().await;
        let mut readers = Vec::new();
        for (index, state) in (0..).zip(&states) {
            let own =
                ReadRequest { states: vec![state.clone()], ..consumer(&def, index, 3, Balance::Bucket) };
            readers.push(client.read(own).await.unwrap());
        }
        append(&mut all, take_all(&mut readers, usize::MAX).await.unwrap());
        let rows = in_rounds(&all);
        // Rows that the first workers had begun are batched again, which gives some more short batches.
        assert!(rows > 6_000 - 3 * 3 * 10, "{rows} rows");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_gone_comes_back_at_the_step_of_the_others_or_all_are_reported() {
    let def = bucketed(6_000);
    for (steps, goes_on) in [([20, 20], true), ([25, 20], false)] {
        let cluster = Cluster::start(2).await;
        let client = cluster.client().await;
        let mut readers = open(&client, &def, 2, Balance::Bucket).await;
        let mut all = take_all(&mut readers, 20).await.unwrap();
        let (second, mut first) = (readers.pop().unwrap(), readers.pop().unwrap());
        if steps[0] > 20 {
            // The other consumer has received these rounds, and its user has not asked for them.
            all[0].extend(take(&mut first, steps[0] - 20).await.unwrap());
        }
        let before = client.status().await.unwrap().jobs[0].iteration_id;
        second.close().await;
        // The first consumer opens the epoch again before its user asks for more.
        while client.status().await.unwrap().jobs.iter().all(|j| j.iteration_id == before || j.clients == 0) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let back = client.read(consumer(&def, 1, 2, Balance::Bucket)).await.unwrap();
        let mut readers = vec![first, back];
        let rest = take_all(&mut readers, usize::MAX).await;
        if goes_on {
            append(&mut all, rest.unwrap());
            assert!(in_rounds(&all) > 6_000 - 3 * 2 * 10);
        } else {
            let e = rest.unwrap_err();
            let said = ["consumer 0 after 25 elements, consumer 1 after 20", "balance `bucket`"];
            assert!(
                e.kind() == ErrorKind::FailedPrecondition && said.iter().all(|s| e.message().contains(s)),
                "{e}"
            );
        }
    }
}

/// The users of three consumers are at different steps when one of the consumers is lost: both others hear it, whichever of them
/// opens the epoch again first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_that_cannot_go_on_together_all_end_with_the_reason() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let mut readers = open(&client, &bucketed(6_000), 3, Balance::Bucket).await;
    take_all(&mut readers, 20).await.unwrap();
    for (reader, more) in readers.iter_mut().zip([5, 2]) {
        assert_eq!(take(reader, more).await.unwrap().len(), more);
    }
    let before = client.status().await.unwrap().jobs[0].iteration_id;
    readers.pop().unwrap().close().await;
    // Both open the epoch again before their users ask for more.
    let has_failed = async {
        while client
            .status()
            .await
            .unwrap()
            .jobs
            .iter()
            .all(|job| job.iteration_id == before || job.state != "failed")
        {}
    };
    tokio::time::timeout(TEST_TIMEOUT, has_failed).await.expect("the epoch fails for all");
    for reader in &mut readers {
        let ended = tokio::time::timeout(TEST_TIMEOUT, take(reader, usize::MAX)).await.expect("none waits");
        let e = ended.unwrap_err();
        let said = ["consumer 0 after 25 elements", "consumer 1 after 22", "balance `bucket`"];
        assert!(
            e.kind() == ErrorKind::FailedPrecondition && said.iter().all(|s| e.message().contains(s)),
            "{e}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_balanced_is_refused() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let refused =
        async |def: &Value, balance: Balance| client.read(consumer(def, 0, 2, balance)).await.err().unwrap();
    let plain = range(100, &[json!({"batch": 4})]);
    let e = refused(&plain, Balance::Tokens).await;
    assert!(
        e.kind() == ErrorKind::InvalidArgument && e.message().contains("no column is a list or a text"),
        "{e}"
    );
    let e = refused(&bucketed(100), Balance::Tokens).await;
    assert!(e.message().contains("this pipeline pads its batches"), "{e}");
    let sizes =
        json!({"length": "id % 97", "boundaries": BOUNDARIES, "batch_sizes": [8, 4, 2], "pad": false});
    let e = refused(&range(100, &[json!({"bucket_by_length": sizes})]), Balance::Tokens).await;
    assert!(e.message().contains("has another number for each class"), "{e}");
    let mut hint = bucketed(100);
    hint["steps"].as_array_mut().unwrap().push(json!({"autocache": "batches"}));
    let e = refused(&hint, Balance::Bucket).await;
    assert!(e.message().contains("put `autocache` above `bucket_by_length`"), "{e}");
    client.read(consumer(&plain, 0, 2, Balance::Bucket)).await.unwrap();
    let e = refused(&plain, Balance::None).await;
    let said = "num_consumers 2, uneven `drop` and balance `bucket`";
    assert!(e.kind() == ErrorKind::AlreadyExists && e.message().contains(said), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cor_06_workers_of_one_process_alone_are_refused() {
    let cluster = Cluster::start(1).await;
    let target = caju_proto::v1::TargetWorkers::Local;
    for balance in [Balance::None, Balance::Bucket] {
        let request = ReadRequest { target, ..consumer(&bucketed(100), 0, 3, balance) };
        let e = cluster.client().await.read(request).await.err().unwrap();
        let is_refused = e.kind() == ErrorKind::InvalidArgument;
        assert!(
            is_refused && e.message().contains("num_consumers and target_workers `local` exclude"),
            "{e}"
        );
    }
}
