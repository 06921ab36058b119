//! Readers that come back to a dispatcher that lost its state, and what readers know of each other for that.

use std::time::Duration;

use caju_proto::v1;
use caju_types::{ErrorKind, Secret, TakenRows};
use serde_json::{Value, json};

use super::fake::{World, open_request, run};

const S: Duration = Duration::from_secs(1);

fn taken(splits: std::ops::Range<u64>) -> TakenRows {
    let mut taken = TakenRows::default();
    taken.add_whole_range(splits.start, splits.end);
    taken
}

/// What a reader of the lost iteration 5 sends, that knew of readers 7 and 8.
async fn back(w: &World, def: &Value, reader: u64, taken: &TakenRows) -> v1::OpenIterationRequest {
    let fingerprint = w.core.epochs.open_iteration(open_request(def, "other")).await.unwrap().fingerprint;
    let state = v1::ReaderState {
        fingerprint,
        iteration_id: 5,
        readers: vec![reader],
        all_readers: vec![7, 8],
        taken: taken.encode().into(),
        ..Default::default()
    };
    v1::OpenIterationRequest {
        states: vec![state],
        reattached_client: reader,
        client_secret: vec![3; Secret::BYTES].into(),
        ..open_request(def, "j")
    }
}

/// The time passes in which readers that the others do not know of may come back. What the first of these readers is answered then.
async fn others_awaited(w: &World, readers: &[&v1::OpenIterationResponse]) -> v1::ClientHeartbeatResponse {
    let mut clients = Vec::new();
    for open in readers {
        let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
        assert!(view.states_missing == 1 && view.tasks.is_empty(), "{view:?}");
        clients.push((open.client_id, open.iteration_id));
    }
    w.silence(S * 6, &[(1, "a:1")], &clients).await;
    w.beat(clients[0].0, clients[0].1, &[], &[]).await
}

#[test]
fn an_epoch_goes_on_when_all_readers_that_are_known_have_come_back() {
    run(async {
        let mut w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let first = w.core.epochs.open_iteration(back(&w, &def, 7, &taken(0..2)).await).await.unwrap();
        assert!(first.tasks.is_empty() && first.states_missing == 1);
        // The answer was lost on its way.
        let again = w.core.epochs.open_iteration(back(&w, &def, 7, &taken(0..2)).await).await.unwrap();
        assert_eq!((again.client_id, again.client_secret), (first.client_id, first.client_secret.clone()));
        let stranger = v1::OpenIterationRequest {
            client_secret: vec![4; Secret::BYTES].into(),
            ..back(&w, &def, 7, &taken(0..2)).await
        };
        assert_eq!(
            w.core.epochs.open_iteration(stranger).await.unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
        w.restart();
        let second = w.core.epochs.open_iteration(back(&w, &def, 8, &taken(4..5)).await).await.unwrap();
        assert_eq!(second.iteration_id, first.iteration_id);
        let view = others_awaited(&w, &[&second, &first]).await;
        let union = TakenRows::decode(&view.resumed).unwrap();
        assert_eq!(union.whole().iter().collect::<Vec<_>>(), [(0, 2), (4, 5)]);
        assert!(view.states_missing == 0 && !view.tasks.is_empty());
    });
}

/// The first reader stood still from before the second one came until the dispatcher lost its state, and calls first.
#[test]
fn a_reader_that_stood_still_does_not_go_on_before_one_that_it_does_not_know_has_come_back() {
    run(async {
        let mut w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let mut first = back(&w, &def, 7, &taken(0..2)).await;
        first.states[0].all_readers = vec![7];
        let first = w.core.epochs.open_iteration(first).await.unwrap();
        assert!(first.tasks.is_empty() && first.states_missing == 1);
        w.silence(S * 4, &[(1, "a:1")], &[(first.client_id, first.iteration_id)]).await;
        w.restart();
        let second = w.core.epochs.open_iteration(back(&w, &def, 8, &taken(4..5)).await).await.unwrap();
        let view = others_awaited(&w, &[&second, &first]).await;
        let union = TakenRows::decode(&view.resumed).unwrap();
        assert_eq!(union.whole().iter().collect::<Vec<_>>(), [(0, 2), (4, 5)]);
        assert!(view.states_missing == 0 && !view.tasks.is_empty());
    });
}

/// Two of three consumers come back, and the third one comes for the first time.
#[test]
fn a_consumer_that_had_got_nothing_gets_what_the_others_had_got_before() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8, "batch": 2});
        let mut opened = Vec::new();
        for (index, (client, elements)) in (0..).zip([(7, 3), (8, 5)]) {
            let mut request = back(&w, &def, client, &taken(client - 7..client - 6)).await;
            (request.num_consumers, request.consumer_index) = (3, index);
            request.states[0].steps = vec![v1::ConsumerSteps { consumer: index, elements }];
            opened.push(w.core.epochs.open_iteration(request).await.unwrap());
        }
        let new = v1::OpenIterationRequest { num_consumers: 3, consumer_index: 2, ..open_request(&def, "j") };
        opened.push(w.core.epochs.open_iteration(new).await.unwrap());
        let id = caju_types::IterationId(opened[0].iteration_id);
        let state = w.core.snapshot();
        let iteration = &state.iterations[&id];
        let before: Vec<u64> =
            opened.iter().map(|o| iteration.steps_before(caju_types::ClientId(o.client_id))).collect();
        assert_eq!(before, [3, 5, 0]);
        assert_eq!(iteration.even.as_ref().map(|even| even.lag.clone()), Some(vec![2, 0, 5]));
    });
}

#[test]
fn readers_that_do_not_come_back_are_named_or_given_up() {
    run(async {
        for accepts in [false, true] {
            let w = World::new();
            w.worker("a:1").await;
            let def = json!({"splits": 8});
            let lost_readers = if accepts { "allow".to_string() } else { String::new() };
            let request = v1::OpenIterationRequest { lost_readers, ..back(&w, &def, 7, &taken(0..2)).await };
            let open = w.core.epochs.open_iteration(request.clone()).await.unwrap();
            let me = (open.client_id, open.iteration_id);
            w.silence(S * 61, &[(1, "a:1")], &[me]).await;
            let view = w.beat(me.0, me.1, &[], &[]).await;
            match (&view.failure, accepts) {
                (Some(failure), false) => {
                    let known =
                        failure.kind == ErrorKind::DataLoss.as_str() && failure.message.contains("client-8");
                    assert!(known, "{failure:?}");
                }
                (None, true) => {
                    assert!(view.states_missing == 0 && !view.tasks.is_empty(), "{view:?}");
                    let incomplete = view.incomplete.expect("rows of the other one come twice");
                    assert!(
                        !incomplete.fatal
                            && incomplete.why.contains("client-8 of this job did not come back")
                    );
                    // It comes after all: what its user took may come twice, so it may not read along.
                    let late = v1::OpenIterationRequest {
                        lost_readers: "allow".into(),
                        ..back(&w, &def, 8, &taken(4..5)).await
                    };
                    let e = w.core.epochs.open_iteration(late).await.unwrap_err();
                    assert!(
                        e.kind() == ErrorKind::DataLoss
                            && e.message().contains("before this reader came back")
                    );
                    assert!(w.beat(me.0, me.1, &[], &[]).await.failure.is_none());
                }
                (failure, accepts) => panic!("{accepts}: {failure:?}"),
            }
        }
    });
}

#[test]
fn an_epoch_that_went_on_without_a_reader_fails_when_that_one_comes_back() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let mut alone = back(&w, &def, 7, &taken(0..2)).await;
        alone.states[0].all_readers = vec![7];
        let open = w.core.epochs.open_iteration(alone).await.unwrap();
        assert_eq!(others_awaited(&w, &[&open]).await.states_missing, 0);
        // One that took nothing reads along.
        w.core.epochs.open_iteration(back(&w, &def, 9, &taken(0..1)).await).await.unwrap();
        let e = w.core.epochs.open_iteration(back(&w, &def, 8, &taken(4..5)).await).await.unwrap_err();
        assert!(
            e.kind() == ErrorKind::DataLoss && e.message().contains("before this reader came back"),
            "{e}"
        );
        let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
        assert_eq!(view.failure.unwrap().kind, ErrorKind::DataLoss.as_str());
    });
}

#[test]
fn a_reader_gets_no_row_before_those_that_were_there_know_of_it() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let (first, second) = (w.open(&def, "j").await, w.open(&def, "j").await);
        assert_eq!((first.unnotified, second.unnotified), (0, 1));
        assert_eq!(second.present, [first.client_id, second.client_id]);
        let beat = |client: u64, seen_version: u64| v1::ClientHeartbeatRequest {
            client_id: client,
            iteration_id: first.iteration_id,
            seen_version,
            wait_ms: 60_000,
            awaits_notices: true,
            secret: w.client_secret(client, first.iteration_id),
            ..Default::default()
        };
        let waits = w.core.clients.client_heartbeat(beat(second.client_id, second.version));
        tokio::pin!(waits);
        assert!(futures::poll!(&mut waits).is_pending());
        // The answer to the first reader names both, and its next call confirms it.
        let answer = w.core.clients.client_heartbeat(beat(first.client_id, first.version)).await.unwrap();
        assert_eq!(answer.present, [first.client_id, second.client_id]);
        assert!(futures::poll!(&mut waits).is_pending());
        let knows = v1::ClientHeartbeatRequest { wait_ms: 0, ..beat(first.client_id, answer.version) };
        w.core.clients.client_heartbeat(knows).await.unwrap();
        assert_eq!(waits.await.unwrap().unnotified, 0);
    });
}

#[test]
fn a_reader_gets_no_element_before_the_others_know_that_it_takes_some() {
    run(async {
        let mut w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let (first, second) = (w.open(&def, "j").await, w.open(&def, "j").await);
        let id = first.iteration_id;
        let beat = |w: &World, client: u64, seen_version: u64, takes: bool| v1::ClientHeartbeatRequest {
            client_id: client,
            iteration_id: id,
            seen_version,
            takes,
            secret: w.client_secret(client, id),
            ..Default::default()
        };
        let call = async |w: &World, request| w.core.clients.client_heartbeat(request).await.unwrap();
        let known = call(&w, beat(&w, second.client_id, second.version, false)).await;
        let said = call(&w, beat(&w, first.client_id, known.version, true)).await;
        assert_eq!(
            (said.unnotified, said.taking),
            (1, vec![first.client_id]),
            "the second one is not notified yet"
        );
        let answer = call(&w, beat(&w, second.client_id, known.version, false)).await;
        assert_eq!(answer.taking, [first.client_id]);
        call(&w, beat(&w, second.client_id, answer.version, false)).await;
        // A restarted dispatcher knows it too.
        w.restart();
        let third = w.open(&def, "j").await;
        assert_eq!(third.taking, [first.client_id], "a reader that comes later is notified when it comes");
        call(&w, beat(&w, second.client_id, third.version, false)).await;
        let again = call(&w, beat(&w, first.client_id, third.version, true)).await;
        assert_eq!(again.unnotified, 0);
        // It leaves without having taken an element, so its state is not needed.
        w.close(first.client_id, id, Vec::new()).await;
        let after = call(&w, beat(&w, second.client_id, third.version, false)).await;
        assert!(after.taking.is_empty() && after.readers.is_empty(), "{after:?}");
        let took = v1::CloseClientRequest {
            client_id: third.client_id,
            iteration_id: id,
            elements: 1,
            secret: w.client_secret(third.client_id, id),
            ..Default::default()
        };
        w.core.clients.close_client(took).await.unwrap();
        let after = call(&w, beat(&w, second.client_id, third.version, false)).await;
        assert_eq!(after.readers, [third.client_id]);
    });
}

/// The state of a reader that lives was loaded by another process, and the epoch continues behind it.
#[test]
fn a_reader_in_whose_place_another_process_has_come_does_not_end_its_epoch() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let mut stored = back(&w, &def, 7, &taken(0..2)).await;
        stored.states[0].all_readers = vec![7];
        let stored =
            v1::OpenIterationRequest { reattached_client: 0, client_secret: Default::default(), ..stored };
        let open = w.core.epochs.open_iteration(stored).await.unwrap();
        let e = w.core.epochs.open_iteration(back(&w, &def, 7, &taken(0..3)).await).await.unwrap_err();
        assert!(e.kind() == ErrorKind::FailedPrecondition && e.message().contains("another process"), "{e}");
        assert!(w.beat(open.client_id, open.iteration_id, &[], &[]).await.failure.is_none());
    });
}

#[test]
fn a_reader_that_is_silent_is_not_waited_for() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 8});
        let (first, second) = (w.open(&def, "j").await, w.open(&def, "j").await);
        w.silence(S * 6, &[(1, "a:1")], &[(second.client_id, second.iteration_id)]).await;
        assert_eq!(w.beat(second.client_id, second.iteration_id, &[], &[]).await.unnotified, 0);
        assert_eq!(first.iteration_id, second.iteration_id);
    });
}

/// A reader's state from before the loss of the dispatcher's state, and another one's from after it, miss what the first one took
/// between its state and the loss. The dispatcher that went on knows it, and another one knows it from the later state.
#[test]
fn states_from_before_and_after_the_loss_of_the_dispatchers_state_are_refused_together() {
    run(async {
        for (is_old_first, is_another) in [(true, false), (false, false), (true, true), (false, true)] {
            let w = World::new();
            w.worker("a:1").await;
            let def = json!({"splits": 8});
            let state = |readers: u64, rows: u64, request: v1::OpenIterationRequest| {
                let mut request = request;
                (request.states[0].readers, request.states[0].rows) = (vec![readers], rows);
                request
            };
            let came_back = state(7, 15, back(&w, &def, 7, &taken(0..3)).await);
            let first = w.core.epochs.open_iteration(came_back).await.unwrap();
            let came_back = state(8, 5, back(&w, &def, 8, &taken(4..5)).await);
            let second = w.core.epochs.open_iteration(came_back).await.unwrap();
            assert!(
                second.iteration_id == first.iteration_id && first.bases.is_empty(),
                "it is not complete"
            );
            let bases = others_awaited(&w, &[&first, &second]).await.bases;
            let me = (second.client_id, second.iteration_id);
            assert!(!bases.is_empty() && w.beat(me.0, me.1, &[], &[]).await.bases == bases);
            w.silence(S * 6, &[(1, "a:1")], &[]).await;
            // The program is started again. One reader has saved no state since.
            let w = if is_another { World::new() } else { w };
            let given = |request: v1::OpenIterationRequest| v1::OpenIterationRequest {
                reattached_client: 0,
                client_secret: Default::default(),
                num_states: 2,
                ..request
            };
            let old = given(state(7, 10, back(&w, &def, 7, &taken(0..2)).await));
            let mut new = given(state(second.client_id, 10, back(&w, &def, 8, &taken(0..6)).await));
            new.states[0].iteration_id = second.iteration_id;
            new.states[0].behind = vec![5];
            new.states[0].all_readers = vec![second.client_id];
            new.states[0].bases.clone_from(&bases);
            let [one, two] = if is_old_first { [old, new] } else { [new, old] };
            w.core.epochs.open_iteration(one).await.unwrap();
            let e = w.core.epochs.open_iteration(two).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
            assert!(
                e.message().contains("client-7 has 10 rows, and by the states of others it had 15"),
                "{e}"
            );
        }
    });
}
