//! Consumers that die together with their dispatcher.

use std::time::Duration;

use caju_proto::v1;
use caju_types::{IterationId, TakenRows};
use serde_json::json;

use super::fake::{World, lost, open_request, run, split_rows};
use super::restored_beginning;

const S: Duration = Duration::from_secs(1);

fn consumer(index: u32) -> v1::OpenIterationRequest {
    v1::OpenIterationRequest {
        num_consumers: 2,
        consumer_index: index,
        announces_asking: true,
        ..open_request(&json!({"splits": 8, "batch": 2}), "even")
    }
}

/// A consumer that asks for elements; its user has taken these rows and elements.
pub(super) async fn beat(
    w: &World,
    (client, iteration): (u64, u64),
    rows: &[(u64, u64, u64)],
    elements: u64,
) -> v1::ClientHeartbeatResponse {
    let request = v1::ClientHeartbeatRequest {
        client_id: client,
        iteration_id: iteration,
        acknowledged: rows.iter().map(split_rows).collect(),
        elements,
        asks: true,
        takes: true,
        secret: w.client_secret(client, iteration),
        ..Default::default()
    };
    w.core.clients.client_heartbeat(request).await.unwrap()
}

/// Two consumers, of which the first one has taken two elements: the worker, the consumers, and their iteration.
async fn one_has_taken_two(w: &World) -> (u64, [u64; 2], u64) {
    let worker = w.worker("a:1").await;
    let (a, b) = (
        w.core.epochs.open_iteration(consumer(0)).await.unwrap(),
        w.core.epochs.open_iteration(consumer(1)).await.unwrap(),
    );
    let id = a.iteration_id;
    beat(w, (a.client_id, id), &[], 0).await;
    let task = beat(w, (b.client_id, id), &[], 0).await.tasks[0].task_id;
    w.next(task, worker, 1, 4).await.unwrap();
    beat(w, (a.client_id, id), &[(0, 0, 2), (1, 0, 2)], 2).await;
    (worker, [a.client_id, b.client_id], id)
}

#[test]
fn what_a_consumer_acknowledged_is_its_state_when_it_dies_before_its_dispatcher_does() {
    run(async {
        let mut w = World::new();
        let (worker, [_, b], id) = one_has_taken_two(&w).await;
        beat(&w, (b, id), &[(2, 0, 2)], 1).await;
        w.restart();
        w.silence(S * 62, &[(worker, "a:1")], &[(b, id)]).await;
        let state = w.core.snapshot();
        assert!(!state.iterations.contains_key(&IterationId(id)), "the epoch is opened again");
        let again = state.iterations.values().next().expect("the epoch waits for its consumers");
        let resume = again.resume.as_deref().expect("it goes on from states");
        let states = resume.fallback_states.as_deref().expect("what consumers acknowledged is known");
        let own = states.consumers.get(&0).expect("also that of the dead one");
        assert_eq!(own.elements, 2);
        let rows: Vec<(u64, Vec<(u64, u64)>)> =
            own.taken.iter().map(|(split, rows)| (*split, rows.iter().collect())).collect();
        assert_eq!(rows, [(0, vec![(0, 2)]), (1, vec![(0, 2)])]);
        // It comes back under its index alone.
        let back = w.core.epochs.open_iteration(consumer(0)).await.unwrap();
        assert_eq!(back.iteration_id, again.id.0);
        beat(&w, (back.client_id, back.iteration_id), &[], 0).await;
        let state = w.core.snapshot();
        let resume = state.iterations[&again.id].resume.as_deref().expect("as before");
        assert!(resume.taken.rows_of(0).is_some_and(|rows| rows.iter().eq([(0, 2)])));
        assert_eq!(resume.steps_of(0), 2);
    });
}

/// An older version did not journal what the dead consumer had acknowledged. The epoch waited for the client timeout, and ended with
/// the error of a dispatcher that lost its state.
#[test]
fn a_consumer_that_comes_back_without_a_state_ends_the_epoch_if_what_it_took_is_not_known() {
    run(async {
        let mut w = World::new();
        let (worker, [_, b], id) = one_has_taken_two(&w).await;
        w.restart_after_an_older_version();
        w.silence(S * 62, &[(worker, "a:1")], &[(b, id)]).await;
        let back = w.core.epochs.open_iteration(consumer(0)).await.unwrap();
        assert_ne!(back.iteration_id, id, "the epoch is opened again");
        let failure = beat(&w, (back.client_id, back.iteration_id), &[], 0).await.failure.unwrap();
        let said = "consumer 0 came back without a state, and which rows the process before it had taken is not known";
        assert!(failure.message.contains(said), "{failure:?}");
    });
}

/// The process in the place of a consumer asks for no element, so the others wait for the client timeout.
#[test]
fn a_consumer_in_whose_place_one_asks_for_nothing_is_named() {
    run(async {
        let w = World::new();
        let (worker, [a, b], id) = one_has_taken_two(&w).await;
        w.silence(S * 31, &[(worker, "a:1")], &[]).await;
        let client_secret = w.client_secret(b, id);
        w.silence(S * 31, &[(worker, "a:1")], &[(b, id)]).await;
        let back = w.core.epochs.open_iteration(consumer(0)).await.unwrap();
        let me = (back.client_id, back.iteration_id);
        let state = v1::ReaderState {
            fingerprint: back.fingerprint,
            iteration_id: id,
            readers: vec![b],
            all_readers: vec![a, b],
            taken: TakenRows::default().encode().into(),
            steps: vec![v1::ConsumerSteps { consumer: 1, elements: 0 }],
            ..Default::default()
        };
        let other = v1::OpenIterationRequest {
            states: vec![state],
            reattached_client: b,
            client_secret,
            ..consumer(1)
        };
        let other = w.core.epochs.open_iteration(other).await.unwrap();
        assert_eq!((other.iteration_id, other.states_missing), (me.1, 1));
        w.silence(S * 62, &[(worker, "a:1")], &[me, (other.client_id, me.1)]).await;
        let failure = w.beat(me.0, me.1, &[], &[]).await.failure.unwrap();
        let said = ["consumer 0 of 2", "is gone before the end of the epoch", "start all consumers again"];
        assert!(said.iter().all(|part| failure.message.contains(part)), "{failure:?}");
        assert!(!failure.message.contains("lost its state"), "{failure:?}");
    });
}

#[test]
fn consumers_that_were_killed_before_they_saved_a_state_begin_the_epoch_again() {
    run(async {
        let w = World::new();
        let (_, _, id) = one_has_taken_two(&w).await;
        // Both are killed. The program is started again from the beginning of the epoch.
        let restored = |index| v1::OpenIterationRequest { restored_beginning: true, ..consumer(index) };
        let first = restored_beginning::open(&w, restored(0), &[]).await.unwrap();
        assert_ne!(first.iteration_id, id);
        let again = w.core.snapshot().iterations[&IterationId(first.iteration_id)].clone();
        assert!(again.resume.is_none(), "it begins behind nothing: {:?}", again.resume);
        let alive = [(first.client_id, first.iteration_id)];
        let second = restored_beginning::open(&w, restored(1), &alive).await.unwrap();
        assert_eq!(second.iteration_id, first.iteration_id);
    });
}

/// One after the other is gone, and the epoch waits for both, behind what they had acknowledged.
#[test]
fn consumers_that_left_one_after_another_begin_the_epoch_again() {
    run(async {
        for (leaves, attempt) in [(true, None), (true, Some("two")), (false, None), (false, Some("two"))] {
            let w = World::new();
            let (worker, [a, b], id) = one_has_taken_two(&w).await;
            beat(&w, (b, id), &[(2, 0, 2)], 1).await;
            match leaves {
                true => {
                    w.close(a, id, Vec::new()).await;
                    let last = w.core.snapshot().iterations.values().last().map(|i| i.id.0).unwrap();
                    w.close(b, last, Vec::new()).await;
                }
                false => {
                    w.silence(S * 31, &[(worker, "a:1")], &[(b, id)]).await;
                    w.silence(S * 62, &[(worker, "a:1")], &[]).await;
                }
            }
            let restored = |index| {
                let request = v1::OpenIterationRequest { restored_beginning: true, ..consumer(index) };
                attempt.map_or(request.clone(), |name| of_launch(name, request))
            };
            let first = restored_beginning::open(&w, restored(0), &[]).await.unwrap();
            let again = w.core.snapshot().iterations[&IterationId(first.iteration_id)].clone();
            assert!(again.resume.is_none() && again.failure.is_none(), "it begins behind nothing");
            let alive = [(first.client_id, first.iteration_id)];
            let second = restored_beginning::open(&w, restored(1), &alive).await.unwrap();
            assert_eq!(second.iteration_id, first.iteration_id);
        }
    });
}

/// Both are killed before a state was written, and their launcher starts the program again, which has nothing to restore. What the
/// users had taken was lost in silence: each new process went on behind what the one before it had acknowledged.
#[test]
fn consumers_that_are_all_started_again_without_states_lose_nothing_in_silence() {
    run(async {
        for allow_lost in [false, true] {
            let w = World::new();
            let of = |index| v1::OpenIterationRequest {
                lost_readers: if allow_lost { "allow" } else { "fail" }.into(),
                ..consumer(index)
            };
            let worker = w.worker("a:1").await;
            let (a, b) = (
                w.core.epochs.open_iteration(of(0)).await.unwrap(),
                w.core.epochs.open_iteration(of(1)).await.unwrap(),
            );
            let id = a.iteration_id;
            beat(&w, (a.client_id, id), &[], 0).await;
            let task = beat(&w, (b.client_id, id), &[], 0).await.tasks[0].task_id;
            w.next(task, worker, 1, 4).await.unwrap();
            beat(&w, (a.client_id, id), &[(0, 0, 2), (1, 0, 2)], 2).await;
            w.silence(S * 62, &[(worker, "a:1")], &[]).await;
            let first = w.core.epochs.open_iteration(of(0)).await.unwrap();
            beat(&w, (first.client_id, first.iteration_id), &[], 0).await;
            let second = w.core.epochs.open_iteration(of(1)).await.unwrap();
            assert_eq!(second.iteration_id, first.iteration_id);
            let asks = v1::ClientHeartbeatRequest {
                client_id: second.client_id,
                iteration_id: second.iteration_id,
                asks: true,
                secret: w.client_secret(second.client_id, second.iteration_id),
                ..Default::default()
            };
            let answer = w.core.clients.client_heartbeat(asks).await.unwrap();
            if allow_lost {
                assert_eq!(answer.failure, None);
                assert!(w.core.snapshot().iterations[&IterationId(first.iteration_id)].failure.is_none());
                continue;
            }
            let e = answer.failure.unwrap();
            let wanted = "all consumers were started again without their states, and the processes before them had taken 2 elements";
            assert!(e.message.contains(wanted), "{e:?}");
            // Once more: from the beginning. The launcher has killed the second one, which could not leave.
            w.close(first.client_id, first.iteration_id, Vec::new()).await;
            let there = [(second.client_id, second.iteration_id)];
            let refused = restored_beginning::open(&w, of(0), &there).await.unwrap_err();
            assert!(refused.message().contains(wanted), "a reader may not have seen the error: {refused}");
            let again = restored_beginning::open(&w, of(0), &[]).await.unwrap();
            let iteration = w.core.snapshot().iterations[&IterationId(again.iteration_id)].clone();
            assert!(again.iteration_id != first.iteration_id && iteration.resume.is_none());
        }
    });
}

/// States that fit no epoch of two consumers were refused after the running epoch had been ended for them.
#[test]
fn states_that_are_refused_end_no_epoch() {
    run(async {
        let w = World::new();
        let (_, [a, b], id) = one_has_taken_two(&w).await;
        let fingerprint = w
            .core
            .epochs
            .open_iteration(open_request(&json!({"splits": 8, "batch": 2}), "other"))
            .await
            .unwrap()
            .fingerprint;
        let state = |consumer: u32| v1::ReaderState {
            fingerprint: fingerprint.clone(),
            iteration_id: 90,
            readers: vec![100 + u64::from(consumer)],
            all_readers: (100..104).collect(),
            taken: TakenRows::default().encode().into(),
            steps: vec![v1::ConsumerSteps { consumer, elements: u64::from(consumer) }],
            ..Default::default()
        };
        let states = (0..4).map(state).collect();
        let request = v1::OpenIterationRequest { states, states_of_all: true, num_states: 4, ..consumer(0) };
        let e = restored_beginning::open(&w, request, &[(a, id), (b, id)]).await.unwrap_err();
        assert!(e.message().contains("the states are of different steps"), "{e}");
        let iteration = w.core.snapshot().iterations[&IterationId(id)].clone();
        assert!(iteration.failure.is_none());
        beat(&w, (a, id), &[(0, 0, 2), (1, 0, 2)], 2).await;
    });
}

/// The same request of a launch.
fn of_launch(name: &str, request: v1::OpenIterationRequest) -> v1::OpenIterationRequest {
    let attempt = v1::Attempt { id: name.to_string(), ..Default::default() };
    v1::OpenIterationRequest { attempt: Some(attempt), ..request }
}

/// The first consumer stands still before the second one comes for the first time: the epoch began again for that one, and the
/// elements of the first one came twice.
#[test]
fn a_consumer_that_comes_late_joins_its_launch_although_the_others_are_silent() {
    run(async {
        for first_restores in [false, true] {
            let w = World::new();
            let worker = w.worker("a:1").await;
            let of_one = |index, restored_beginning| {
                of_launch("one", v1::OpenIterationRequest { restored_beginning, ..consumer(index) })
            };
            let first = w.core.epochs.open_iteration(of_one(0, first_restores)).await.unwrap();
            let (a, id) = (first.client_id, first.iteration_id);
            let task = beat(&w, (a, id), &[], 0).await.tasks[0].task_id;
            w.next(task, worker, 1, 4).await.unwrap();
            beat(&w, (a, id), &[(0, 0, 2)], 1).await;
            let second = restored_beginning::open(&w, of_one(1, true), &[]).await.unwrap();
            assert_eq!(second.iteration_id, id, "it is of the launch whose readers are silent");
        }
    });
}

/// torchrun gives the launch after a crash the name of the one before. A rank that comes again is known by that.
#[test]
fn consumers_that_are_started_again_under_the_same_name_begin_again() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let ranked = |index: u32, restored_beginning| {
            let attempt = v1::Attempt { id: "one".to_string(), rank: index + 1, ..Default::default() };
            v1::OpenIterationRequest { attempt: Some(attempt), restored_beginning, ..consumer(index) }
        };
        let first = w.core.epochs.open_iteration(ranked(0, false)).await.unwrap();
        let (a, id) = (first.client_id, first.iteration_id);
        let second = w.core.epochs.open_iteration(ranked(1, false)).await.unwrap();
        let task = beat(&w, (a, id), &[], 0).await.tasks[0].task_id;
        w.next(task, worker, 1, 4).await.unwrap();
        beat(&w, (a, id), &[(0, 0, 2)], 1).await;
        beat(&w, (second.client_id, id), &[(1, 0, 2)], 1).await;
        // Both are killed, and restore the end of the epoch before.
        let again = restored_beginning::open(&w, ranked(1, true), &[]).await.unwrap();
        assert_ne!(again.iteration_id, id, "what was taken is read again");
        let alive = [(again.client_id, again.iteration_id)];
        let other = restored_beginning::open(&w, ranked(0, true), &alive).await.unwrap();
        assert_eq!(other.iteration_id, again.iteration_id);
    });
}

/// Consumers name their launch also where they restore nothing: the launch that restores the beginning is known to be another one.
#[test]
fn a_launch_that_restores_the_beginning_ends_one_that_restored_nothing() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let restored = |index| v1::OpenIterationRequest { restored_beginning: true, ..consumer(index) };
        let old = w.core.epochs.open_iteration(of_launch("one", consumer(0))).await.unwrap();
        // Names have no order, so one that restores nothing joins: each node may have a launcher of its own.
        let mut other = of_launch("node 2", consumer(1));
        other.attempt.as_mut().unwrap().rank = 2;
        let joined = w.core.epochs.open_iteration(other).await.unwrap();
        assert_eq!(joined.iteration_id, old.iteration_id);
        let iteration = w.core.snapshot().iterations[&IterationId(old.iteration_id)].clone();
        assert!(iteration.attempt().unwrap().ranks.is_empty(), "a rank of another launch");
        let new = w.core.epochs.open_iteration(of_launch("two", restored(0))).await.unwrap();
        assert_ne!(new.iteration_id, old.iteration_id, "at once: nothing depends on who is silent");
        let refused = w.core.epochs.open_iteration(of_launch("one", consumer(1))).await.unwrap_err();
        let wanted = "was opened again by attempt `two`, and this reader belongs to attempt `one`";
        assert!(refused.message().contains(wanted), "{refused}");
        let second = w.core.epochs.open_iteration(of_launch("two", restored(1))).await.unwrap();
        assert_eq!(second.iteration_id, new.iteration_id);
    });
}

/// The consumer has its answer that it may leave. Before it does, the other one reports that the task is lost.
#[test]
fn a_consumer_that_leaves_at_its_end_after_a_task_was_lost_is_not_waited_for() {
    run(async {
        let mut w = World::new();
        let (worker, [a, b], id) = one_has_taken_two(&w).await;
        let task = w.core.snapshot().iterations[&IterationId(id)].tasks.keys().next().unwrap().0;
        w.next(task, worker, 2, 8).await.unwrap();
        w.next(task, worker, 3, 8).await.unwrap();
        let own: Vec<(u64, u64, u64)> = (0..4).map(|split| (split, 0, 2)).collect();
        w.finish_counted(task, worker, Some(&(0..8).map(|split| (split, 2)).collect::<Vec<_>>())).await;
        w.take(a, id, &own, &[task]).await;
        beat(&w, (b, id), &[(4, 0, 2)], 1).await;
        let answer = w.take(a, id, &own, &[task]).await;
        assert!(answer.finished && answer.accounted, "it may leave");
        let of_other = v1::LostTask { elements: 1, ..lost(task, &[(4, 0, 2)]) };
        w.beat(b, id, &[], &[of_other]).await;
        w.restart();
        w.close(a, id, vec![v1::LostTask { elements: 4, ..lost(task, &own) }]).await;
        w.restart();
        let state = w.core.snapshot();
        let iteration = state.iterations.get(&IterationId(id)).expect("it is not opened again");
        assert_eq!((iteration.failure.as_ref(), iteration.absent_consumers().count()), (None, 0));
        assert_eq!(iteration.even.as_ref().unwrap().lag, [0, 3], "the other one gets what it lacks");
        let pending = iteration.feeds.values().flat_map(|feed| &feed.pending);
        let left: Vec<u64> = pending.map(|(_, lease)| lease.done.len()).collect();
        assert_eq!(left, [2, 2, 2, 2, 2, 0, 0, 0], "and nothing else is computed again");
    });
}

/// One of three consumers, which has asked for elements, and its iteration.
async fn one_of_three(w: &World, index: u32) -> (u64, u64) {
    let request = v1::OpenIterationRequest { num_consumers: 3, ..consumer(index) };
    let opened = w.core.epochs.open_iteration(request).await.unwrap();
    beat(w, (opened.client_id, opened.iteration_id), &[], 0).await;
    (opened.client_id, opened.iteration_id)
}

/// One of three consumers never comes. When another one leaves, the epoch is opened again: the wait for the first does not begin
/// with that.
#[test]
fn the_wait_for_a_consumer_goes_on_when_the_epoch_is_opened_again() {
    run(async {
        for comes in [false, true] {
            let w = World::new();
            let worker = [(w.worker("a:1").await, "a:1")];
            let open = async |index| one_of_three(&w, index).await;
            let (first, second) = (open(0).await, open(1).await);
            w.silence(S * 400, &worker, &[first, second]).await;
            w.close(second.0, second.1, Vec::new()).await;
            // The others need a moment to come back.
            w.silence(S, &worker, &[]).await;
            let mut here = vec![open(0).await];
            assert_ne!(here[0].1, first.1, "the epoch is opened again");
            if comes {
                here.push(open(2).await);
            }
            w.silence(S * 199, &worker, &here).await;
            let failure = || w.core.snapshot().iterations[&IterationId(here[0].1)].failure.clone();
            assert_eq!(failure(), None);
            w.silence(S * 3, &worker, &here).await;
            assert_eq!(failure().is_some(), !comes, "one that came is waited for no longer");
            if !comes {
                let error = caju_types::Error::from(&failure().unwrap());
                assert!(
                    error.message().contains("of 3 consumers these have not come within 10 min 0 s: 2;"),
                    "{error}"
                );
                continue;
            }
            w.silence(S * 399, &worker, &here).await;
            let error = caju_types::Error::from(&failure().expect("the one that left is waited for as long"));
            assert!(error.message().contains("these have not come within 10 min 0 s: 1;"), "{error}");
        }
    });
}

/// Nobody reads the epoch for longer than the client timeout: who comes then has not waited yet. A shorter absence counts as none.
#[test]
fn the_wait_for_a_consumer_begins_again_when_nobody_has_read_for_the_client_timeout() {
    run(async {
        for (away, is_forgotten) in [(50, false), (70, true)] {
            let w = World::new();
            let worker = [(w.worker("a:1").await, "a:1")];
            let open = async |index| one_of_three(&w, index).await;
            let (first, second) = (open(0).await, open(1).await);
            w.silence(S * 400, &worker, &[first, second]).await;
            w.close(second.0, second.1, Vec::new()).await;
            w.silence(S * away, &worker, &[]).await;
            let here = [open(0).await, open(1).await];
            assert_eq!(here[0].1, here[1].1);
            w.silence(S * 210, &worker, &here).await;
            let failure = w.core.snapshot().iterations[&IterationId(here[0].1)].failure.clone();
            assert_eq!(failure.is_none(), is_forgotten, "away for {away} s: {failure:?}");
        }
    });
}
