//! States of consumers, and consumers that come back in mid-epoch.

use std::time::Duration;

use caju_client::{Client, Consumer, ReadRequest, Reader, ReaderState, Uneven};
use caju_types::{ErrorKind, Result};
use serde_json::{Value, json};

use crate::cluster::{Cluster, TEST_TIMEOUT, drain, ids, request};

/// 300 elements of 10 rows.
fn def() -> Value {
    json!({"source": {"range": {"start": 0, "end": 3000}}, "steps": [{"shuffle": {"buffer": 100}}, {"batch": 10}]})
}

fn consumer(index: u32, count: u32, uneven: Uneven) -> ReadRequest {
    ReadRequest {
        consumer: Some(Consumer { uneven, ..Consumer::new(index, count) }),
        ..request(&def(), "train")
    }
}

/// A client whose readers hold a few elements only, so that none gets far ahead.
async fn client(cluster: &Cluster) -> Client {
    cluster.client_with(|c| c.prefetch_bytes = 4 << 10).await
}

async fn open(client: &Client, count: u32, uneven: Uneven) -> Vec<Reader> {
    let mut readers = Vec::new();
    for index in 0..count {
        readers.push(client.read(consumer(index, count, uneven)).await.unwrap());
    }
    readers
}

async fn step(reader: &mut Reader, rows: &mut Vec<i64>) {
    let next = tokio::time::timeout(TEST_TIMEOUT, reader.next()).await.expect("an element").unwrap();
    rows.extend(ids(&next.expect("it is not the end").batch));
}

/// Reads several readers to their ends: what each got, without padding, and the number of its elements.
async fn finish(readers: Vec<Reader>) -> Result<Vec<(Vec<i64>, usize)>> {
    let all = finish_counting(readers).await?;
    Ok(all.into_iter().map(|(rows, steps, _)| (rows, steps)).collect())
}

/// As [`finish`], with the number of its elements that are padding.
async fn finish_counting(readers: Vec<Reader>) -> Result<Vec<(Vec<i64>, usize, u64)>> {
    let reading = readers.into_iter().map(|mut reader| async move {
        let (mut rows, mut steps, mut copies) = (Vec::new(), 0, 0);
        while let Some(element) = reader.next().await? {
            steps += 1;
            if element.is_padding {
                copies += 1;
            } else {
                rows.extend(ids(&element.batch));
            }
        }
        Ok((rows, steps, copies))
    });
    let all = tokio::time::timeout(TEST_TIMEOUT, futures::future::try_join_all(reading)).await;
    all.expect("the epoch must end")
}

#[track_caller]
fn assert_all_rows(mut rows: Vec<i64>) {
    rows.sort_unstable();
    let twice = rows.windows(2).filter(|w| w[0] == w[1]).count();
    assert!(rows == (0..3000).collect::<Vec<_>>(), "{} rows, {twice} of them twice", rows.len());
}

/// What three consumers took, the same number of elements each, and their states.
async fn stopped(steps: [usize; 3], uneven: Uneven) -> (Vec<i64>, Vec<ReaderState>) {
    let cluster = Cluster::start(2).await;
    let mut readers = open(&client(&cluster).await, 3, uneven).await;
    let mut rows = Vec::new();
    for n in 0..20 {
        for (reader, steps) in readers.iter_mut().zip(steps) {
            if n < steps {
                step(reader, &mut rows).await;
            }
        }
    }
    let through_json = |r: &Reader| ReaderState::from_json(&r.state().unwrap().to_json().unwrap()).unwrap();
    (rows, readers.iter().map(through_json).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_go_on_from_their_states_in_the_same_number() {
    for (steps, uneven) in [([20; 3], Uneven::Drop), ([20; 3], Uneven::Pad), ([5, 20, 9], Uneven::Drop)] {
        let (mut rows, states) = stopped(steps, uneven).await;
        let cluster = Cluster::start(1).await;
        let client = client(&cluster).await;
        let mut readers = Vec::new();
        for (index, state) in (0..).zip(&states) {
            let own = ReadRequest { states: vec![state.clone()], ..consumer(index, 3, uneven) };
            readers.push(client.read(own).await.unwrap());
        }
        let got = finish(readers).await.unwrap();
        let totals: Vec<usize> = got.iter().zip(steps).map(|((_, more), before)| before + more).collect();
        assert!(totals.iter().all(|n| *n == totals[0] && *n >= 100), "all have equally many: {totals:?}");
        rows.extend(got.into_iter().flat_map(|(rows, _)| rows));
        assert_all_rows(rows);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_go_on_from_the_states_of_another_number_of_consumers() {
    // 240 elements are left.
    for (count, each) in [(2, 120), (4, 60), (1, 240)] {
        let (mut rows, states) = stopped([20; 3], Uneven::Drop).await;
        let cluster = Cluster::start(2).await;
        let client = client(&cluster).await;
        let mut readers = Vec::new();
        for index in 0..count {
            let of_all = ReadRequest {
                states: states.clone(),
                states_of_all: true,
                ..consumer(index, count, Uneven::Drop)
            };
            readers.push(client.read(of_all).await.unwrap());
        }
        // In the middle they are stopped again, and a reader that is no consumer reads the remaining rows.
        for reader in &mut readers {
            step(reader, &mut rows).await;
        }
        let again: Vec<ReaderState> = readers.iter().map(|r| r.state().unwrap()).collect();
        assert!(again.iter().all(|s| s.steps.values().eq(&[21])), "{again:?}");
        if count == 2 {
            let elsewhere = Cluster::start(1).await;
            let plain = ReadRequest { states: again, states_of_all: true, ..request(&def(), "plain") };
            let mut plain = elsewhere.client().await.read(plain).await.unwrap();
            rows.extend(drain(&mut plain).await.unwrap().concat());
        } else {
            let got = finish(readers).await.unwrap();
            assert!(got.iter().all(|(_, steps)| *steps == each - 1), "{count}");
            rows.extend(got.into_iter().flat_map(|(rows, _)| rows));
        }
        assert_all_rows(rows);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_of_different_steps_are_refused_for_another_number_of_consumers() {
    let (_, states) = stopped([5, 20, 9], Uneven::Drop).await;
    let cluster = Cluster::start(1).await;
    let of_all = ReadRequest { states, states_of_all: true, ..consumer(0, 2, Uneven::Drop) };
    let e = client(&cluster).await.read(of_all).await.err().unwrap();
    let said = ["different steps", "consumer 0 after 5 elements", "with as many consumers as before"];
    assert!(e.kind() == ErrorKind::InvalidArgument && said.iter().all(|s| e.message().contains(s)), "{e}");
}

/// One consumer of two is lost in mid-epoch, and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_is_gone_comes_back_under_its_index_or_with_its_state() {
    for with_state in [false, true] {
        let cluster = Cluster::start(2).await;
        let client = client(&cluster).await;
        let mut readers = open(&client, 2, Uneven::Drop).await;
        let mut rows = Vec::new();
        for _ in 0..30 {
            step(&mut readers[0], &mut rows).await;
            step(&mut readers[1], &mut rows).await;
        }
        let state = readers[1].state().unwrap();
        let (mut after_state, mut leaves) = (Vec::new(), readers.pop().unwrap());
        for _ in 0..5 {
            step(&mut readers[0], &mut rows).await;
            step(&mut leaves, &mut after_state).await;
        }
        leaves.close().await;
        // The other one waits; what it had before is not lost.
        let mut request = consumer(1, 2, Uneven::Drop);
        if with_state {
            // What was taken behind the state comes again.
            request.states = vec![state];
        } else {
            rows.extend(after_state);
        }
        readers.push(client.read(request).await.unwrap());
        let got = finish(readers).await.unwrap();
        let second = if with_state { 30 } else { 35 };
        assert_eq!(got[0].1 + 35, got[1].1 + second, "{with_state}: equally many of the whole epoch");
        rows.extend(got.into_iter().flat_map(|(rows, _)| rows));
        assert_all_rows(rows);
    }
}

/// A consumer that restored the beginning of the epoch has none of the elements that the process before it took. All consumers end
/// with an error, and read the whole epoch when they are started again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_restored_the_beginning_of_an_epoch_it_had_begun_ends_it_for_all() {
    let cluster = Cluster::start(2).await;
    let client = client(&cluster).await;
    let mut readers = open(&client, 2, Uneven::Drop).await;
    for _ in 0..10 {
        step(&mut readers[0], &mut Vec::new()).await;
        step(&mut readers[1], &mut Vec::new()).await;
    }
    readers.pop().unwrap().close().await;
    let restored = |index| ReadRequest { restored_beginning: true, ..consumer(index, 2, Uneven::Drop) };
    let refused = client.read(restored(1)).await.err().unwrap();
    let other =
        tokio::time::timeout(TEST_TIMEOUT, drain(&mut readers[0])).await.expect("it ends").unwrap_err();
    for e in [refused, other] {
        let said =
            ["consumer 1 of 2 begins the epoch again, of which 10 elements", "start all consumers again"];
        assert!(
            e.kind() == ErrorKind::FailedPrecondition && said.iter().all(|s| e.message().contains(s)),
            "{e}"
        );
    }
    readers.pop().unwrap().close().await;
    let mut readers = Vec::new();
    for index in 0..2 {
        readers.push(client.read(restored(index)).await.unwrap());
    }
    let got = finish(readers).await.unwrap();
    assert_all_rows(got.into_iter().flat_map(|(rows, _)| rows).collect());
}

/// The others are nearly at their ends when one comes back that had got little: the tasks of all workers serve it first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_far_lagging_consumer_that_comes_back_gets_as_many_elements_and_no_copies() {
    for (uneven, rows, each, (surplus, padded)) in [
        (Uneven::Drop, 3000, 100, (0, 0)),
        (Uneven::Drop, 3020, 100, (2, 0)),
        (Uneven::Pad, 3000, 100, (0, 0)),
        (Uneven::Pad, 3010, 101, (0, 2)),
    ] {
        let cluster = Cluster::start(3).await;
        let client = client(&cluster).await;
        let def = json!({"source": {"range": {"start": 0, "end": rows}},
                         "steps": [{"shuffle": {"buffer": 100}}, {"batch": 10}]});
        let consumer =
            |index| ReadRequest { consumer: consumer(index, 3, uneven).consumer, ..request(&def, "train") };
        let mut readers = Vec::new();
        for index in 0..3 {
            readers.push(client.read(consumer(index)).await.unwrap());
        }
        let (mut taken, before) = (Vec::new(), [90, 95, 5]);
        for n in 0..95 {
            for (reader, before) in readers.iter_mut().zip(before) {
                if n < before {
                    step(reader, &mut taken).await;
                }
            }
        }
        readers.pop().unwrap().close().await;
        readers.push(client.read(consumer(2)).await.unwrap());
        let got = finish_counting(readers).await.unwrap();
        let totals: Vec<usize> = got.iter().zip(before).map(|((_, more, _), before)| more + before).collect();
        assert_eq!(totals, [each; 3], "{uneven:?} of {rows} rows");
        let copies: u64 = got.iter().map(|(_, _, copies)| copies).sum();
        taken.extend(got.into_iter().flat_map(|(rows, _, _)| rows));
        let came = taken.len();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!((taken.len(), came), (rows - 10 * surplus, rows - 10 * surplus), "no row twice");
        let status = client.status().await.unwrap();
        assert_eq!(
            (status.jobs[0].surplus_elements, copies),
            (surplus as u64, padded),
            "{uneven:?} of {rows} rows"
        );
        // A reader that did not know yet that the epoch was opened again may have got a copy of before.
        assert!(status.jobs[0].padded_elements <= padded, "{uneven:?} of {rows} rows");
    }
}

/// How consumers continue from their states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loads {
    Own,
    List,
}

/// A consumer comes as an iterator of Python does: it opens the epoch, leaves it, and comes again with its state.
async fn load(client: &Client, index: u32, states: &[ReaderState], loads: Loads) -> Reader {
    let plain = consumer(index, 2, Uneven::Drop);
    client.read(plain.clone()).await.unwrap().close().await;
    let (states, states_of_all) = match loads {
        Loads::Own => (vec![states[index as usize].clone()], false),
        Loads::List => (states.to_vec(), true),
    };
    client.read(ReadRequest { states, states_of_all, ..plain }).await.unwrap()
}

/// What two consumers took, the same number of elements each, and their states.
async fn two_stopped(steps: usize) -> (Vec<i64>, Vec<ReaderState>) {
    let cluster = Cluster::start(2).await;
    let mut readers = open(&client(&cluster).await, 2, Uneven::Drop).await;
    let mut rows = Vec::new();
    for _ in 0..steps {
        step(&mut readers[0], &mut rows).await;
        step(&mut readers[1], &mut rows).await;
    }
    (rows, readers.iter().map(|r| r.state().unwrap()).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_that_load_their_states_one_after_another_go_on_together() {
    for (loads, steps) in [(Loads::Own, 20), (Loads::List, 20), (Loads::Own, 1), (Loads::List, 1)] {
        let (mut rows, states) = two_stopped(steps).await;
        let cluster = Cluster::start(2).await;
        let mut first = load(&client(&cluster).await, 0, &states, loads).await;
        let mut began = 0;
        if loads == Loads::List {
            // It has all states, and begins without the other one.
            for _ in 0..3 {
                step(&mut first, &mut rows).await;
                began += 1;
            }
        } else {
            // Its user waits for an element.
            let asks = tokio::time::timeout(Duration::from_millis(50), first.next()).await;
            assert!(asks.is_err(), "{loads:?}: {asks:?}");
        }
        let second = load(&client(&cluster).await, 1, &states, loads).await;
        let got = finish(vec![first, second]).await.unwrap();
        assert_eq!((got[0].1 + began, got[1].1), (150 - steps, 150 - steps), "{loads:?}");
        rows.extend(got.into_iter().flat_map(|(rows, _)| rows));
        assert_all_rows(rows);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_whose_user_asked_for_nothing_leaves_nothing_behind() {
    let cluster = Cluster::start(2).await;
    let client = client(&cluster).await;
    let mut first = client.read(consumer(0, 2, Uneven::Drop)).await.unwrap();
    let mut rows = Vec::new();
    step(&mut first, &mut rows).await;
    // The other one comes and goes, while the first one reads on.
    for _ in 0..2 {
        client.read(consumer(1, 2, Uneven::Drop)).await.unwrap().close().await;
        step(&mut first, &mut rows).await;
    }
    let second = client.read(consumer(1, 2, Uneven::Drop)).await.unwrap();
    let iteration = first.iteration();
    assert_eq!(second.iteration(), iteration, "nobody had to begin again");
    let got = finish(vec![first, second]).await.unwrap();
    assert_eq!((got[0].1, got[1].1), (147, 150));
    rows.extend(got.into_iter().flat_map(|(rows, _)| rows));
    assert_all_rows(rows);
}

/// A consumer that loaded the states of all and took nothing has the union of them as its state, and so have the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_that_took_nothing_behind_a_list_of_states_give_the_union_each() {
    let (mut rows, mut states) = two_stopped(20).await;
    for _ in 0..2 {
        let cluster = Cluster::start(1).await;
        let client = client(&cluster).await;
        let mut readers = Vec::new();
        for index in 0..2 {
            readers.push(load(&client, index, &states, Loads::List).await);
        }
        states = readers.iter().map(|r| r.state().unwrap()).collect();
        assert_eq!(states[0].readers.len(), 2, "{states:?}");
    }
    let cluster = Cluster::start(2).await;
    let client = client(&cluster).await;
    let mut readers = Vec::new();
    for index in 0..2 {
        readers.push(load(&client, index, &states, Loads::Own).await);
    }
    let got = finish(readers).await.unwrap();
    assert_eq!((got[0].1, got[1].1), (130, 130));
    rows.extend(got.into_iter().flat_map(|(rows, _)| rows));
    assert_all_rows(rows);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_goes_back_to_the_states_of_all_ends_the_reading_of_the_others() {
    let (rows, states) = two_stopped(20).await;
    let cluster = Cluster::start(2).await;
    let client = client(&cluster).await;
    let (mut first, mut second) =
        (load(&client, 0, &states, Loads::List).await, load(&client, 1, &states, Loads::List).await);
    let mut discarded = Vec::new();
    for _ in 0..5 {
        step(&mut first, &mut discarded).await;
        step(&mut second, &mut discarded).await;
    }
    // The second one crashes, and is started again; the first one reads on.
    second.close().await;
    let second = load(&client, 1, &states, Loads::List).await;
    let e = loop {
        match tokio::time::timeout(TEST_TIMEOUT, first.next()).await.expect("an end") {
            Ok(element) => assert!(element.is_some(), "it is not the end"),
            Err(e) => break e,
        }
    };
    assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
    first.close().await;
    let first = load(&client, 0, &states, Loads::List).await;
    let got = finish(vec![first, second]).await.unwrap();
    assert_eq!((got[0].1, got[1].1), (130, 130));
    assert_all_rows(rows.into_iter().chain(got.into_iter().flat_map(|(rows, _)| rows)).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_does_not_come_back_is_named() {
    let wait = Duration::from_millis(500);
    let cluster = Cluster::start_with(2, |c| c.timers.consumer_wait = wait).await;
    let mut readers = open(&client(&cluster).await, 2, Uneven::Drop).await;
    let mut rows = Vec::new();
    step(&mut readers[0], &mut rows).await;
    step(&mut readers[1], &mut rows).await;
    readers.pop().unwrap().close().await;
    let e = finish(readers).await.unwrap_err();
    let said = ["have not come within", ": 1;", "consumer 1 of 2", "is gone before the end of the epoch"];
    assert!(e.kind() == ErrorKind::DeadlineExceeded && said.iter().all(|s| e.message().contains(s)), "{e}");
}
