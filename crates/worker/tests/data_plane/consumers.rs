//! Consumers of a job: all get the same number of elements, however fast they are.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caju_client::{Balance, Consumer, ReadRequest, Reader, Uneven};
use caju_types::{Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::cluster::{Cluster, TEST_TIMEOUT, ids, request};

/// What one consumer got: the ids of its own elements, and those of padding.
#[derive(Default)]
struct Got {
    own: Vec<Vec<i64>>,
    padding: Vec<Vec<i64>>,
}

impl Got {
    fn steps(&self) -> usize {
        self.own.len() + self.padding.len()
    }
}

fn consumer(def: &Value, job: &str, index: u32, count: u32, uneven: Uneven) -> ReadRequest {
    ReadRequest { consumer: Some(Consumer { uneven, ..Consumer::new(index, count) }), ..request(def, job) }
}

/// Reads to the end; consumer 0 works on each element for a while.
async fn read(mut reader: Reader, step: Duration) -> Result<Got> {
    let mut got = Got::default();
    while let Some(e) = reader.next().await? {
        let of = if e.is_padding { &mut got.padding } else { &mut got.own };
        of.push(ids(&e.batch));
        if !step.is_zero() {
            tokio::time::sleep(step).await;
        }
    }
    let padded = reader.stats().padded_elements;
    assert_eq!(padded as usize, got.padding.len());
    Ok(got)
}

async fn epoch(cluster: &Cluster, def: &Value, job: &str, count: u32, uneven: Uneven) -> Vec<Got> {
    let client = cluster.client_with(|c| c.prefetch_bytes = 4 << 10).await;
    let mut readers = Vec::new();
    for index in 0..count {
        readers.push(client.read(consumer(def, job, index, count, uneven)).await.unwrap());
    }
    let slow = |i: usize| if i == 0 { Duration::from_micros(300) } else { Duration::ZERO };
    let reading = readers.into_iter().enumerate().map(|(i, r)| read(r, slow(i)));
    let all = tokio::time::timeout(TEST_TIMEOUT, futures::future::try_join_all(reading)).await;
    all.expect("the epoch must end").unwrap()
}

fn batched(rows: u64, batch: u64, drop_remainder: bool) -> Value {
    json!({"source": {"range": {"start": 0, "end": rows}},
           "steps": [{"shuffle": {"buffer": 100}}, {"batch": {"size": batch, "drop_remainder": drop_remainder}}]})
}

/// All have `steps` elements, and no row comes twice but as padding; the rows that came.
#[track_caller]
fn even(got: &[Got], steps: u64, batch: usize) -> usize {
    let counts: Vec<usize> = got.iter().map(Got::steps).collect();
    assert!(counts.iter().all(|n| *n as u64 == steps), "{counts:?}, not {steps}");
    let own: Vec<i64> = got.iter().flat_map(|g| g.own.concat()).collect();
    let distinct: BTreeSet<i64> = own.iter().copied().collect();
    assert_eq!(distinct.len(), own.len(), "a row came twice");
    let short = got.iter().flat_map(|g| &g.own).filter(|e| e.len() != batch).count();
    assert!(short <= 1, "{short} elements are short");
    for element in got.iter().flat_map(|g| &g.padding) {
        assert!(element.iter().all(|id| distinct.contains(id)), "padding repeats rows of the epoch");
    }
    own.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_rank_gets_as_many_elements_at_any_speed() {
    for (workers, rows, batch, count) in [
        (1, 10_000, 64, 3),
        (3, 10_000, 64, 4),
        (2, 9_984, 64, 4),
        (3, 1_000, 400, 4),
        (2, 0, 8, 2),
        (3, 5_003, 1, 3),
    ] {
        let cluster = Cluster::start(workers).await;
        for drop_remainder in [false, true] {
            let def = batched(rows, batch, drop_remainder);
            let total = if drop_remainder { rows / batch } else { rows.div_ceil(batch) };
            let n = u64::from(count);
            let job = format!("drop-{drop_remainder}");
            let got = epoch(&cluster, &def, &job, count, Uneven::Drop).await;
            even(&got, total / n, batch as usize);
            let client = cluster.client().await;
            let status = client.status().await.unwrap();
            let known = status.jobs.iter().find(|j| j.job == job).unwrap();
            assert_eq!(
                (known.num_consumers, known.surplus_elements),
                (count, total % n),
                "{rows} by {batch}"
            );
            let job = format!("pad-{drop_remainder}");
            let got = epoch(&cluster, &def, &job, count, Uneven::Pad).await;
            let came = even(&got, total.div_ceil(n), batch as usize);
            let kept = if drop_remainder { rows / batch * batch } else { rows };
            assert_eq!(came as u64, kept, "every row reaches somebody");
            let status = client.status().await.unwrap();
            let known = status.jobs.iter().find(|j| j.job == job).unwrap();
            assert_eq!(known.padded_elements, (n - total % n) % n);
            assert_eq!(known.state, "finished");
        }
    }
}

/// The splits behind a `take` are never leased.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_ends_for_all_ranks_where_a_take_ends_it() {
    for (n, (steps, batch, total)) in [
        (json!([{"batch": 16}, {"take": 100}]), 16, 100_u64),
        (json!([{"filter": "id % 2 = 0"}, {"take": 500}, {"batch": 10}]), 10, 50),
        (json!([{"skip": 30}, {"batch": 16}, {"skip": 3}, {"take": 10}]), 16, 10),
    ]
    .into_iter()
    .enumerate()
    {
        let cluster = Cluster::start(2).await;
        let def = json!({"source": {"range": {"start": 0, "end": 20_000}}, "steps": steps});
        let got = epoch(&cluster, &def, &format!("drop-{n}"), 3, Uneven::Drop).await;
        even(&got, total / 3, batch);
        let got = epoch(&cluster, &def, &format!("pad-{n}"), 3, Uneven::Pad).await;
        assert_eq!(even(&got, total.div_ceil(3), batch) as u64, total * batch as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_worker_leaves_no_consumer_lagging() {
    for attempt in 0..3 {
        let mut cluster = Cluster::start(3).await;
        let def = json!({"source": {"range": {"start": 0, "end": 20_000}},
                         "steps": [{"sleep": {"per_row": "10us"}}, {"batch": 32}]});
        let client = cluster.client_with(|c| c.prefetch_bytes = 4 << 10).await;
        let mut readers = Vec::new();
        for index in 0..3 {
            readers.push(client.read(consumer(&def, "job", index, 3, Uneven::Drop)).await.unwrap());
        }
        // In the middle: one has taken some elements.
        let mut first = Got::default();
        for _ in 0..20 * (attempt + 1) {
            first.own.push(ids(&readers[0].next().await.unwrap().unwrap().batch));
            readers[1].next().await.unwrap().map(|e| first.padding.push(ids(&e.batch))).unwrap();
            let e = readers[2].next().await.unwrap().unwrap();
            first.padding.push(ids(&e.batch));
        }
        cluster.workers.remove(0).kill();
        let reading = readers.into_iter().map(|r| read(r, Duration::ZERO));
        let all = tokio::time::timeout(TEST_TIMEOUT, futures::future::try_join_all(reading)).await;
        let got = all.expect("the epoch must end").unwrap();
        let steps: Vec<usize> = got.iter().map(Got::steps).collect();
        assert_eq!(steps, [steps[0]; 3], "20000 rows by 32 are 625 elements, 208 for each");
        assert_eq!(steps[0] + 20 * (attempt + 1), 208);
        let mut rows: Vec<i64> = got.iter().flat_map(|g| g.own.concat()).collect();
        rows.extend(first.own.concat());
        rows.extend(first.padding.concat());
        let n = rows.len();
        assert_eq!(rows.into_iter().collect::<BTreeSet<_>>().len(), n, "no row twice");
    }
}

/// What a lost worker still had is of the consumers that are there. Another one had everything, and has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_lost_after_a_consumer_has_left_at_its_end_leaves_no_consumer_lagging() {
    let mut cluster = Cluster::start(0).await;
    for _ in 0..2 {
        cluster.add(|c| c.tuned.buffer_bytes = Some(64 << 20)).await;
    }
    // More than a reader that takes little holds, and batches that divide the splits: a lost worker that had given out rows of
    // common batches would end the epoch.
    let def = json!({"source": {"range": {"start": 0, "end": 1_638_400}}, "steps": [{"batch": 1024}]});
    let client = cluster.client_with(|c| c.prefetch_bytes = 4 << 10).await;
    let first = client.read(consumer(&def, "job", 0, 2, Uneven::Drop)).await.unwrap();
    let mut second = client.read(consumer(&def, "job", 1, 2, Uneven::Drop)).await.unwrap();
    let mut rows: Vec<Vec<i64>> = Vec::new();
    let one = async { second.next().await.unwrap().map(|e| rows.push(ids(&e.batch))).unwrap() };
    let both = futures::future::join(read(first, Duration::ZERO), one);
    let (first, ()) = tokio::time::timeout(TEST_TIMEOUT, both).await.expect("an end");
    rows.extend(first.unwrap().own);
    cluster.workers.remove(0).kill();
    let second =
        tokio::time::timeout(TEST_TIMEOUT, read(second, Duration::ZERO)).await.expect("an end").unwrap();
    assert_eq!(second.steps(), 799, "as many as the one that has left, with one before");
    rows.extend(second.own);
    let mut rows = rows.concat();
    rows.sort_unstable();
    assert!(rows.iter().copied().eq(0..1_638_400), "every row once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_does_not_come_is_named() {
    let cluster = Cluster::start(1).await;
    let def = batched(100_000, 10, false);
    let client = cluster
        .client_with(|c| (c.prefetch_bytes, c.stall_timeout) = (4 << 10, Duration::from_secs(2)))
        .await;
    let alone = client.read(consumer(&def, "job", 0, 3, Uneven::Drop)).await.unwrap();
    let e = tokio::time::timeout(TEST_TIMEOUT, read(alone, Duration::ZERO)).await.unwrap().err().unwrap();
    assert_eq!(e.kind(), ErrorKind::DeadlineExceeded);
    assert!(e.message().contains("consumer 1 of 3, which has not come"), "{e}");
}

/// A user in Python waits in slices, between which signals are checked.
async fn next_in_slices(reader: &mut Reader) -> Result<Option<caju_client::Element>> {
    loop {
        if let Ok(next) = tokio::time::timeout(Duration::from_millis(20), reader.next()).await {
            return next;
        }
    }
}

/// One process opens two consumers and reads one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_takes_nothing_is_named_within_the_stall_timeout() {
    for balance in [Balance::None, Balance::Bucket] {
        for takes in [0, 3] {
            let cluster = Cluster::start(1).await;
            // More than the reader that takes nothing may hold.
            let def = batched(1_000_000, 1000, false);
            let client = cluster
                .client_with(|c| (c.prefetch_bytes, c.stall_timeout) = (4 << 10, Duration::from_secs(2)))
                .await;
            let consumer = |index| ReadRequest {
                consumer: Some(Consumer { balance, ..Consumer::new(index, 2) }),
                ..request(&def, "job")
            };
            let mut reads = client.read(consumer(0)).await.unwrap();
            let mut stands = client.read(consumer(1)).await.unwrap();
            for _ in 0..takes {
                let both = futures::future::join(next_in_slices(&mut stands), next_in_slices(&mut reads));
                let (one, other) = tokio::time::timeout(TEST_TIMEOUT, both).await.unwrap();
                assert!(one.unwrap().is_some() && other.unwrap().is_some());
            }
            let e = loop {
                match tokio::time::timeout(TEST_TIMEOUT, next_in_slices(&mut reads))
                    .await
                    .expect("a deadline")
                {
                    Ok(element) => {
                        assert!(element.is_some(), "{balance:?}, {takes}: the other one holds it up")
                    }
                    Err(e) => break e,
                }
            };
            assert_eq!(e.kind(), ErrorKind::DeadlineExceeded, "{balance:?}: {e}");
            let said = match takes {
                0 => "consumer 1 of 2, whose user has asked for no element",
                _ => "consumer 1 of 2 (client-",
            };
            assert!(e.message().contains(said), "{balance:?}: {e}");
        }
    }
}

/// Its window is granted again in quarters, so the other one gets nothing for longer than the stall timeout. Its user takes an
/// element now and then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_whose_user_is_slow_is_waited_for() {
    const BOUND: Duration = Duration::from_secs(2);
    let cluster = Cluster::start(1).await;
    let def = batched(400_000, 4000, false);
    let client = cluster.client_with(|c| (c.prefetch_bytes, c.stall_timeout) = (4 << 10, BOUND)).await;
    let mut fast = client.read(consumer(&def, "job", 0, 2, Uneven::Drop)).await.unwrap();
    let mut slow = client.read(consumer(&def, "job", 1, 2, Uneven::Drop)).await.unwrap();
    let has_waited = AtomicBool::new(false);
    let reads = async {
        let mut elements = 0;
        loop {
            let asked = tokio::time::Instant::now();
            let next = next_in_slices(&mut fast).await?;
            has_waited.fetch_or(asked.elapsed() > BOUND, Ordering::Relaxed);
            match next {
                Some(_) => elements += 1,
                None => return Ok::<_, Error>(elements),
            }
        }
    };
    let takes = async {
        let mut elements = 0;
        while slow.next().await?.is_some() {
            elements += 1;
            if !has_waited.load(Ordering::Relaxed) {
                tokio::time::sleep(BOUND / 5).await;
            }
        }
        Ok(elements)
    };
    let both = tokio::time::timeout(TEST_TIMEOUT, futures::future::try_join(reads, takes)).await;
    assert_eq!(both.unwrap().unwrap(), (50, 50));
    assert!(has_waited.into_inner(), "the fast one always got its next element soon");
}

/// A small epoch is computed in full before the second consumer comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_comes_late_finds_its_elements() {
    let cluster = Cluster::start(2).await;
    let def = batched(1000, 10, false);
    let client = cluster.client().await;
    let first = client.read(consumer(&def, "job", 0, 2, Uneven::Drop)).await.unwrap();
    let monitor = first.monitor();
    let late = async {
        while monitor.progress().stats.elements < 40 {
            tokio::task::yield_now().await;
        }
        let second = client.read(consumer(&def, "job", 1, 2, Uneven::Drop)).await.unwrap();
        read(second, Duration::ZERO).await
    };
    let both = futures::future::join(read(first, Duration::ZERO), late);
    let (early, late) = tokio::time::timeout(TEST_TIMEOUT, both).await.unwrap();
    even(&[early.unwrap(), late.unwrap()], 50, 10);
    let again = client.read(consumer(&def, "job", 1, 2, Uneven::Drop)).await.err().unwrap();
    assert!(again.message().contains("already"), "{again}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_agree_about_the_consumers_of_a_job() {
    let cluster = Cluster::start(1).await;
    let def = batched(1000, 10, false);
    let client = cluster.client().await;
    let _first = client.read(consumer(&def, "job", 0, 2, Uneven::Drop)).await.unwrap();
    let refused = |r: Result<Reader>| r.err().unwrap();
    let e = refused(client.read(consumer(&def, "job", 0, 2, Uneven::Drop)).await);
    assert!(e.kind() == ErrorKind::AlreadyExists && e.message().contains("consumer 0 of 2"), "{e}");
    for other in [
        consumer(&def, "job", 1, 3, Uneven::Drop),
        consumer(&def, "job", 1, 2, Uneven::Pad),
        request(&def, "job"),
    ] {
        let e = refused(client.read(other).await);
        assert!(
            e.kind() == ErrorKind::AlreadyExists && e.message().contains("num_consumers 2 and uneven `drop`"),
            "{e}"
        );
    }
    let e = refused(client.read(consumer(&def, "k", 2, 2, Uneven::Drop)).await);
    assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains("consumer_index 2"), "{e}");
    let off = caju_proto::v1::ProcessingMode::Off;
    let e = refused(client.read(ReadRequest { mode: off, ..consumer(&def, "k", 0, 2, Uneven::Drop) }).await);
    assert!(e.message().contains("needs the processing mode `dynamic`"), "{e}");
}
