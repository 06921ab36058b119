//! States of readers: what was taken before and what is read behind it is the epoch, each row once.

use caju_client::{Attempt, ReadRequest, Reader, ReaderState};
use caju_proto::v1::ProcessingMode;
use caju_types::ErrorKind;
use serde_json::{Value, json};

use crate::cluster::{Cluster, TEST_TIMEOUT, drain, ids, range, request, take_of};

/// Takes a number of elements, and then the state. The reader is closed.
async fn take(mut reader: Reader, elements: usize) -> (Vec<Vec<i64>>, ReaderState) {
    let taken = take_of(&mut reader, elements).await;
    let state = reader.state().unwrap();
    assert!(state.taken.is_listed(), "nothing shows that the files have changed: {state:?}");
    reader.close().await;
    (taken, ReaderState::from_json(&state.to_json().unwrap()).unwrap())
}

fn behind(def: &Value, job: &str, states: &[ReaderState]) -> ReadRequest {
    ReadRequest { states: states.to_vec(), ..request(def, job) }
}

/// What is left behind states, on a cluster of its own.
async fn rest(workers: usize, request: ReadRequest) -> Vec<Vec<i64>> {
    let cluster = Cluster::start(workers).await;
    let mut reader = cluster.client().await.read(request).await.unwrap();
    let rest = drain(&mut reader).await.unwrap();
    assert_eq!(reader.incomplete(), None);
    rest
}

fn sorted(elements: &[Vec<i64>]) -> Vec<i64> {
    let mut all: Vec<i64> = elements.iter().flatten().copied().collect();
    all.sort_unstable();
    all
}

#[track_caller]
fn assert_parts(before: &[Vec<i64>], after: &[Vec<i64>], whole: &[i64]) {
    let both: Vec<Vec<i64>> = before.iter().chain(after).cloned().collect();
    let both = sorted(&both);
    let twice = both.windows(2).filter(|w| w[0] == w[1]).count();
    assert!(both == whole, "{} rows, {twice} of them twice; {} are the epoch", both.len(), whole.len());
}

/// The pipelines of these tests, by number, with the rows of their epochs.
fn pipeline(n: usize) -> (Value, Vec<i64>) {
    let all = |keep: fn(&i64) -> bool| (0..30_000).filter(keep).collect::<Vec<i64>>();
    let of = |steps: &[Value]| range(30_000, steps);
    match n {
        0 => (of(&[json!({"batch": 37})]), all(|_| true)),
        1 => (of(&[json!({"shuffle": 500}), json!({"batch": 100})]), all(|_| true)),
        2 => (
            of(&[json!({"filter": "id % 3 = 0"}), json!({"shuffle": {"buffer": 3000, "seed": 4}})]),
            all(|i| i % 3 == 0),
        ),
        3 => (
            of(&[json!({"batch": 10}), json!("unbatch"), json!({"filter": "id % 7 <> 2"})]),
            all(|i| i % 7 != 2),
        ),
        4 => (
            of(&[json!({"repeat": 2}), json!({"shuffle": 64}), json!({"batch": 64})]),
            (0..60_000).map(|i| i / 2).collect(),
        ),
        5 => (
            of(&[json!({"take": 20_000}), json!({"skip": 900}), json!({"batch": 50})]),
            (900..20_000).collect(),
        ),
        6 => (of(&[json!({"filter": "id % 2 = 0"}), json!({"take": 9_000}), json!({"batch": 64})]), {
            all(|i| i % 2 == 0)[..9_000].to_vec()
        }),
        7 => (
            json!({"source": {"sample": {
                "datasets": [range(9_000, &[json!({"repeat": 2})]), range(10_000, &[json!({"map": {"id": "id + 9000"}})])],
                "weights": [0.6, 0.4],
            }}, "steps": [{"shuffle": 300}, {"batch": 32}]}),
            (0..18_000).map(|i| i / 2).chain(9_000..19_000).collect(),
        ),
        _ => (
            json!({"source": {"sample": {
                "datasets": [range(20_000, &[]), range(10_000, &[json!({"map": {"id": "id + 20000"}})])],
                "weights": [0.5, 0.5],
            }}, "steps": [{"batch": 32}]}),
            all(|_| true),
        ),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ckp_01_before_and_after_a_state_are_the_epoch() {
    for n in 0..9 {
        let (def, whole) = pipeline(n);
        let cluster = Cluster::start(1 + n % 3).await;
        let client = cluster.client().await;
        for k in [0, 1, 30, 120] {
            let (before, state) = take(client.read(request(&def, "")).await.unwrap(), k).await;
            assert_eq!(
                (state.elements, state.rows),
                (before.len() as u64, before.iter().flatten().count() as u64)
            );
            let after = rest(1 + k % 3, behind(&def, "", &[state])).await;
            assert_parts(&before, &after, &whole);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ckp_07_a_state_is_read_on_and_a_state_taken_there_again() {
    let (def, whole) = pipeline(1);
    let (mut all, mut state, mut end) = (Vec::new(), None::<ReaderState>, false);
    for workers in [2, 1, 3, 1, 2] {
        let cluster = Cluster::start(workers).await;
        let request = ReadRequest { states: state.into_iter().collect(), ..request(&def, "same name") };
        let (more, then) = take(cluster.client().await.read(request).await.unwrap(), 70).await;
        end = then.exhausted;
        all.extend(more);
        assert_eq!(then.elements, all.len() as u64);
        state = Some(then);
    }
    assert!(end, "five times 70 elements are more than 300");
    assert_eq!(sorted(&all), whole);
    let state = state.unwrap();
    assert!(rest(1, behind(&def, "", std::slice::from_ref(&state))).await.is_empty(), "nothing is left");
    assert!(state.taken.encode().len() < 200, "the end is a short state: {state:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ckp_03_a_state_goes_back_on_the_same_dispatcher_under_the_same_job() {
    let (def, whole) = pipeline(0);
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let mut first = client.read(request(&def, "train")).await.unwrap();
    let before = take_of(&mut first, 20).await;
    let state = first.state().unwrap();
    let mut more = take_of(&mut first, 50).await;
    // The first reader is still there: it is over with the epoch's second beginning.
    let mut second = client.read(behind(&def, "train", std::slice::from_ref(&state))).await.unwrap();
    let e = loop {
        match tokio::time::timeout(TEST_TIMEOUT, first.next()).await.expect("an end") {
            Ok(element) => more.push(ids(&element.expect("the epoch is not over").batch)),
            Err(e) => break e,
        }
    };
    assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
    // Its state has what it gave, and nothing that it held.
    let last = first.state().unwrap();
    let after = rest(1, behind(&def, "", &[last])).await;
    assert_parts(&[before.clone(), more].concat(), &after, &whole);
    let after = drain(&mut second).await.unwrap();
    assert_parts(&before, &after, &whole);
    second.close().await;
    // And once more, when the epoch was read to its end.
    let mut third = client.read(behind(&def, "train", &[state])).await.unwrap();
    assert_parts(&before, &drain(&mut third).await.unwrap(), &whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ckp_32_a_state_that_was_just_loaded_is_the_same_state() {
    let (def, _) = pipeline(1);
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let (_, state) = take(client.read(request(&def, "")).await.unwrap(), 9).await;
    let mut again = state.clone();
    for _ in 0..10 {
        let reader = client.read(behind(&def, "", &[again])).await.unwrap();
        again = reader.state().unwrap();
        assert_eq!(again, state);
        reader.close().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_of_something_else_is_refused_with_the_reason() {
    let (def, _) = pipeline(0);
    let cluster = Cluster::start(1).await;
    let client = cluster.client().await;
    let (_, state) = take(client.read(request(&def, "")).await.unwrap(), 3).await;
    let one = |change: &dyn Fn(&mut ReaderState)| {
        let mut state = state.clone();
        change(&mut state);
        behind(&def, "", &[state])
    };
    let cases = [
        (one(&|s| s.fingerprint = "ab".repeat(16)), "of the dataset abab"),
        (one(&|s| s.seed = 9), "of the seed 9"),
        (one(&|s| s.epoch = 4), "of epoch 4"),
        (one(&|s| s.mode = "off".into()), "processing mode `off`"),
        (behind(&range(30_000, &[json!({"batch": 38})]), "", std::slice::from_ref(&state)), "of the dataset"),
        (
            behind(&def, "", &[state.clone(), ReaderState { iteration: 77, ..state.clone() }]),
            "not of one reading of one epoch",
        ),
        (ReadRequest { seed: Some(5), ..behind(&def, "", std::slice::from_ref(&state)) }, "of the seed 0"),
        (
            ReadRequest { mode: ProcessingMode::Off, ..behind(&def, "", std::slice::from_ref(&state)) },
            "mode `dynamic`",
        ),
    ];
    for (request, said) in cases {
        let e = client.read(request).await.map(|_| ()).unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains(said), "{said}: {e}");
    }
}

/// Readers of one job that took elements in turn, and then each its state.
async fn take_together(
    cluster: &Cluster,
    request: &ReadRequest,
    readers: usize,
) -> (Vec<Vec<i64>>, Vec<ReaderState>) {
    let (mut all, mut open) = (Vec::new(), Vec::new());
    for _ in 0..readers {
        open.push(cluster.client().await.read(request.clone()).await.unwrap());
    }
    for _ in 0..8 {
        for reader in &mut open {
            all.extend(take_of(reader, 4).await);
        }
    }
    let states = open.iter().map(|r| r.state().unwrap()).collect();
    for mut reader in open {
        take_of(&mut reader, 2).await;
        reader.close().await;
    }
    (all, states)
}

/// The rest of an epoch, by readers with the given states each.
async fn rest_together(
    cluster: &Cluster,
    request: &ReadRequest,
    states: Vec<Vec<ReaderState>>,
) -> Vec<Vec<i64>> {
    let mut open = Vec::new();
    for states in states {
        let request = ReadRequest { states, ..request.clone() };
        open.push(cluster.client().await.read(request).await.unwrap());
    }
    let all = futures::future::join_all(open.iter_mut().map(drain)).await;
    all.into_iter().flat_map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_states_of_all_readers_of_a_step_are_read_on_by_any_number() {
    let (def, whole) = pipeline(1);
    for (before, after, same) in [(3, 3, true), (3, 2, false), (2, 5, false), (1, 4, false)] {
        let request = ReadRequest { num_states: before as u64, ..request(&def, "ranks") };
        let cluster = Cluster::start(2).await;
        let (taken, states) = take_together(&cluster, &request, before).await;
        // On the same dispatcher under the same name, or on another one.
        let elsewhere = Cluster::start(1).await;
        let cluster = if same { &cluster } else { &elsewhere };
        let each: Vec<Vec<ReaderState>> = match same {
            true => states.into_iter().map(|s| vec![s]).collect(),
            false => (0..after).map(|_| states.clone()).collect(),
        };
        let num_states = if same { before as u64 } else { 0 };
        let request = ReadRequest { states_of_all: !same, num_states, ..request };
        let rest = rest_together(cluster, &request, each).await;
        assert_parts(&taken, &rest, &whole);
    }
}

/// A rank that was cut off comes when the others have read the epoch to its end. It gives the same states, in another order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_of_an_attempt_that_comes_after_the_others_gets_the_end() {
    let (def, whole) = pipeline(1);
    let cluster = Cluster::start(2).await;
    let (taken, mut states) = take_together(&cluster, &request(&def, "ranks"), 3).await;
    let restore = |id: &str, rank: u32, states: &[ReaderState]| ReadRequest {
        states: states.to_vec(),
        states_of_all: true,
        attempt: Some(Attempt { id: id.to_string(), rank: Some(rank) }),
        ..request(&def, "again")
    };
    let mut first = cluster.client().await.read(restore("first", 0, &states)).await.unwrap();
    let rest = drain(&mut first).await.unwrap();
    first.close().await;
    assert_parts(&taken, &rest, &whole);
    states.reverse();
    let mut late = cluster.client().await.read(restore("first", 1, &states)).await.unwrap();
    assert_eq!(drain(&mut late).await.unwrap(), Vec::<Vec<i64>>::new());
    late.close().await;
    // The next attempt begins again, and so does a rank that has come before.
    for (attempt, rank) in [("first", 0), ("second", 0)] {
        let mut again = cluster.client().await.read(restore(attempt, rank, &states)).await.unwrap();
        assert_parts(&taken, &drain(&mut again).await.unwrap(), &whole);
        again.close().await;
    }
    let e = cluster.client().await.read(restore("first", 2, &states)).await.unwrap_err();
    assert!(e.message().contains("was opened again by attempt `second`"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_of_two_steps_after_another_are_those_of_the_last() {
    let (def, whole) = pipeline(0);
    let request = ReadRequest { num_states: 2, ..request(&def, "ranks") };
    let cluster = Cluster::start(2).await;
    let (mut taken, mut states) = take_together(&cluster, &request, 2).await;
    for _ in 0..2 {
        let each = states.into_iter().map(|s| vec![s]).collect::<Vec<_>>();
        let mut open = Vec::new();
        for states in each {
            let request = ReadRequest { states, ..request.clone() };
            open.push(cluster.client().await.read(request).await.unwrap());
        }
        // One of them takes nothing: its state is the one that it began with.
        taken.extend(take_of(&mut open[0], 30).await);
        states = open.iter().map(|r| r.state().unwrap()).collect();
        for reader in open {
            reader.close().await;
        }
    }
    let rest = rest_together(&cluster, &request, vec![states]).await;
    assert_parts(&taken, &rest, &whole);
}

/// Of two readers one takes nothing before the first state, and the other one takes nothing between the first state and the
/// second. The number of readers is not given.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_a_reader_that_took_nothing_since_it_restored_names_those_that_did() {
    let (def, whole) = pipeline(0);
    let request = request(&def, "ranks");
    for comes_first in 0..2 {
        let (mut taken, mut states) = (Vec::new(), [None, None]);
        for takes in 0..2 {
            let cluster = Cluster::start(2).await;
            let mut open = Vec::new();
            for state in &states {
                let own = ReadRequest { states: state.iter().cloned().collect(), ..request.clone() };
                open.push(cluster.client().await.read(own).await.unwrap());
            }
            let taker = open[takes].client_number();
            taken.extend(take_of(&mut open[takes], 30).await);
            let idle = &open[1 - takes];
            let knows_taker = async {
                while !idle.state().unwrap().all_readers.contains(&taker) {
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(TEST_TIMEOUT, knows_taker)
                .await
                .expect("the idle reader hears of the other one");
            states = [0, 1].map(|i| Some(open[i].state().unwrap()));
            futures::future::join_all(open.into_iter().map(Reader::close)).await;
        }
        let elsewhere = Cluster::start(1).await;
        let mut again = Vec::new();
        for state in [comes_first, 1 - comes_first].map(|i| states[i].clone().unwrap()) {
            let own = ReadRequest { states: vec![state], ..request.clone() };
            again.push(elsewhere.client().await.read(own).await.unwrap());
        }
        let rest = futures::future::join_all(again.iter_mut().map(drain)).await;
        let rest: Vec<Vec<i64>> = rest.into_iter().flat_map(Result::unwrap).collect();
        assert_parts(&taken, &rest, &whole);
    }
}

/// The number of readers is not given: the states name each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_with_the_first_element_in_hand_name_all_readers() {
    // Rows come slowly, so that several readers wait for them. One that is late may still get none.
    let def = range(20_000, &[json!({"sleep": {"per_row": "20us"}}), json!({"batch": 10})]);
    let (request, whole) = (request(&def, "ranks"), (0..20_000).collect::<Vec<_>>());
    for readers in [2, 5] {
        let cluster = Cluster::start(2).await;
        let (mut open, mut taken) = (Vec::new(), Vec::new());
        for _ in 0..readers {
            open.push(cluster.client().await.read(request.clone()).await.unwrap());
        }
        for reader in &mut open {
            taken.extend(take_of(reader, 1).await);
        }
        let mut states: Vec<ReaderState> = open.iter().map(|r| r.state().unwrap()).collect();
        states.retain(|state| state.elements > 0);
        let all = states.iter().flat_map(|state| state.readers.clone()).collect();
        assert!(states.iter().all(|state| state.all_readers == all), "{all:?}: {states:?}");
        // Each gives its own; the last ones come when the first one waits for an element.
        let elsewhere = Cluster::start(1).await;
        let own = |state: &ReaderState| ReadRequest { states: vec![state.clone()], ..request.clone() };
        let mut first = elsewhere.client().await.read(own(&states[0])).await.unwrap();
        if states.len() > 1 {
            let asks = tokio::time::timeout(std::time::Duration::from_millis(50), first.next()).await;
            assert!(asks.is_err(), "{asks:?}");
        }
        let mut again = vec![first];
        for state in &states[1..] {
            again.push(elsewhere.client().await.read(own(state)).await.unwrap());
        }
        let rest = futures::future::join_all(again.iter_mut().map(drain)).await;
        let rest: Vec<Vec<i64>> = rest.into_iter().flat_map(Result::unwrap).collect();
        assert_parts(&taken, &rest, &whole);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_name_a_reader_that_left_only_if_its_user_took_rows() {
    let (def, _) = pipeline(0);
    for takes in [0, 1] {
        let cluster = Cluster::start(2).await;
        let request = request(&def, "ranks");
        let mut first = cluster.client().await.read(request.clone()).await.unwrap();
        let mut second = cluster.client().await.read(request.clone()).await.unwrap();
        // Rows go to the reader that asks first: a late one may get none.
        let (mine, others) = (take_of(&mut first, 1).await.len(), take_of(&mut second, takes).await.len());
        assert_eq!(first.state().unwrap().all_readers.len(), mine + others);
        second.close().await;
        let more = drain(&mut first).await.unwrap().len();
        assert_eq!(first.state().unwrap().all_readers.len(), usize::from(mine + more > 0) + others);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_epoch_waits_for_all_states_and_says_so() {
    let (def, _) = pipeline(0);
    let cluster = Cluster::start(1).await;
    let request = ReadRequest { num_states: 2, ..request(&def, "ranks") };
    let (_, states) = take_together(&cluster, &request, 2).await;
    let one = ReadRequest { states: vec![states[0].clone()], ..request.clone() };
    let client = cluster.client_with(|c| c.worker_timeout = std::time::Duration::from_millis(300)).await;
    let e = drain(&mut client.read(one.clone()).await.unwrap()).await.unwrap_err();
    assert!(
        e.kind() == ErrorKind::DeadlineExceeded && e.message().contains("1 of these were not given"),
        "{e}"
    );
    // A state that comes when the epoch has begun without it is too late.
    let alone = ReaderState { all_readers: states[0].readers.clone(), ..states[0].clone() };
    let began = ReadRequest { states: vec![alone], num_states: 0, ..request.clone() };
    let first = client.read(began).await.unwrap();
    let late = ReadRequest { states: vec![states[1].clone()], num_states: 0, ..request };
    let e = client.read(late).await.map(|_| ()).unwrap_err();
    assert!(e.kind() == ErrorKind::FailedPrecondition && e.message().contains("without this one"), "{e}");
    first.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_off_the_feeds_that_there_were_are_read_on() {
    let def = range(6_000, &[json!({"filter": "id % 2 = 0"}), json!({"shuffle": 100}), json!({"batch": 16})]);
    for (before, after) in [(2, 1), (1, 3), (3, 3)] {
        let off =
            |states: &[ReaderState]| ReadRequest { mode: ProcessingMode::Off, ..behind(&def, "", states) };
        let cluster = Cluster::start(before).await;
        let (taken, state) = take(cluster.client().await.read(off(&[])).await.unwrap(), 70).await;
        assert_eq!(state.mode, "off");
        let rest = rest(after, off(&[state])).await;
        let each = (0..6_000).filter(|i| i % 2 == 0);
        let whole: Vec<i64> = each.flat_map(|i| std::iter::repeat_n(i, before)).collect();
        let mut both: Vec<i64> = taken.iter().chain(&rest).flatten().copied().collect();
        both.sort_unstable();
        assert_eq!(both.len(), whole.len(), "{before} workers, then {after}");
        assert_eq!(both, whole);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_die_behind_a_state_cost_no_row() {
    let (def, whole) = pipeline(1);
    let cluster = Cluster::start(1).await;
    let (before, state) = take(cluster.client().await.read(request(&def, "")).await.unwrap(), 60).await;
    let mut second = Cluster::start(1).await;
    let mut reader = second.client().await.read(behind(&def, "", &[state])).await.unwrap();
    let some = take_of(&mut reader, 40).await;
    second.workers.remove(0).kill();
    second.add(|_| {}).await;
    let rest = drain(&mut reader).await.unwrap();
    assert_parts(&before, &[some, rest].concat(), &whole);
}
