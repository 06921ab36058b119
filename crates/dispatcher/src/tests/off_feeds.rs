//! Epochs under `off` that go on from states: which workers get feeds.

use std::time::Duration;

use caju_proto::v1;
use caju_types::{IterationId, Listed, Secret, TakenRows};
use serde_json::json;

use super::fake::{World, indices, open_request, run};
use crate::state::{FeedId, next_digest};

/// A reader of an earlier iteration, and another one.
const READER: u64 = 71;
const OTHER: u64 = 72;

/// What a reader sends whose state needs those of these readers.
async fn behind(w: &World, taken: &TakenRows, all_readers: &[u64], reader: u64) -> v1::OpenIterationRequest {
    let definition = json!({"splits": 2});
    let fingerprint = w.open(&definition, "other").await.fingerprint;
    let state = v1::ReaderState {
        fingerprint,
        iteration_id: 70,
        mode: v1::ProcessingMode::Off.into(),
        readers: vec![reader],
        all_readers: all_readers.to_vec(),
        taken: taken.encode().into(),
        ..Default::default()
    };
    v1::OpenIterationRequest {
        states: vec![state],
        mode: v1::ProcessingMode::Off.into(),
        ..open_request(&definition, "j")
    }
}

/// Rows of one feed: its first split is listed, and all of it is taken or nothing.
fn of_feed(feed: FeedId, is_taken: bool) -> TakenRows {
    let mut taken = TakenRows::default();
    let digest = next_digest(0, &json!({"i": 0, "v": 0}).to_string());
    taken.set_listed(feed.0, Listed { count: 1, digest });
    if is_taken {
        taken.add_whole(feed.index(0));
    }
    taken
}

/// The numbers of the feeds of an epoch.
fn feeds(w: &World, open: &v1::OpenIterationResponse) -> Vec<u32> {
    let state = w.core.snapshot();
    state.iterations[&IterationId(open.iteration_id)].feeds.keys().map(|feed| feed.0).collect()
}

/// The splits of the only task of a reader.
async fn splits_of_task(w: &World, open: &v1::OpenIterationResponse, worker: u64) -> Vec<u64> {
    let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
    let [task] = &view.tasks[..] else { panic!("one task is expected: {view:?}") };
    let mut splits = Vec::new();
    for no in 1.. {
        let answer = w.next(task.task_id, worker, no, 9).await.unwrap();
        if answer.end {
            break;
        }
        splits.extend(indices(&answer));
    }
    splits
}

#[test]
fn a_state_from_before_the_first_worker_is_the_start_under_off() {
    run(async {
        let mut w = World::new();
        let request = behind(&w, &TakenRows::default(), &[], READER).await;
        let open = w.core.epochs.open_iteration(request.clone()).await.unwrap();
        assert!(open.states_missing == 0 && open.tasks.is_empty(), "{open:?}");
        w.restart();
        let worker = w.worker("a:1").await;
        assert_eq!(splits_of_task(&w, &open, worker).await, [0, 1]);
        assert_eq!(feeds(&w, &open), [0]);
        // Workers that are there get their feeds at once.
        let w = World::new();
        w.worker("a:1").await;
        w.worker("b:1").await;
        let open = w.core.epochs.open_iteration(request).await.unwrap();
        assert_eq!((open.tasks.len(), feeds(&w, &open)), (2, vec![0, 1]));
    });
}

#[test]
fn a_state_that_names_feeds_keeps_them_under_off() {
    run(async {
        for is_taken in [false, true] {
            let w = World::new();
            w.worker("a:1").await;
            let worker = w.worker("b:1").await;
            let request = behind(&w, &of_feed(FeedId(1), is_taken), &[READER], READER).await;
            let open = w.core.epochs.open_iteration(request).await.unwrap();
            assert_eq!((open.tasks.len(), feeds(&w, &open)), (1, vec![1]));
            let left: Vec<u64> = (u64::from(is_taken)..2).map(|split| FeedId(1).index(split)).collect();
            assert_eq!(splits_of_task(&w, &open, worker).await, left);
        }
    });
}

/// One reader had seen no worker. The state of the other one names the feed.
#[test]
fn no_worker_gets_a_feed_under_off_before_all_states_are_there() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        w.worker("b:1").await;
        let first = behind(&w, &TakenRows::default(), &[READER, OTHER], READER).await;
        let first = w.core.epochs.open_iteration(first).await.unwrap();
        assert_eq!((first.states_missing, feeds(&w, &first)), (1, vec![]));
        let second = behind(&w, &of_feed(FeedId(1), true), &[READER, OTHER], OTHER).await;
        let second = w.core.epochs.open_iteration(second).await.unwrap();
        assert_eq!((second.iteration_id, second.states_missing), (first.iteration_id, 0));
        assert_eq!(feeds(&w, &first), [1]);
    });
}

#[test]
fn a_reader_under_off_that_waits_for_the_first_worker_gets_its_rows_after_a_lost_state() {
    run(async {
        let w = World::new();
        let request = v1::OpenIterationRequest {
            reattached_client: READER,
            client_secret: vec![3; Secret::BYTES].into(),
            ..behind(&w, &TakenRows::default(), &[READER], READER).await
        };
        let open = w.core.epochs.open_iteration(request).await.unwrap();
        assert!(open.states_missing == 1 && open.tasks.is_empty(), "{open:?}");
        w.silence(Duration::from_secs(6), &[], &[(open.client_id, open.iteration_id)]).await;
        let worker = w.worker("a:1").await;
        assert_eq!(splits_of_task(&w, &open, worker).await, [0, 1]);
    });
}
