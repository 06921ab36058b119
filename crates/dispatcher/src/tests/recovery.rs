//! Lost workers, lost connections, lost clients, restarts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use caju_proto::v1;
use caju_types::{Error, ErrorKind};
use serde_json::json;

use super::fake::{World, indices, lost, open_request, run};

const S: Duration = Duration::from_secs(1);

#[test]
fn a_silent_workers_splits_go_elsewhere_less_what_was_received() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let open = w.open(&json!({"splits": 8}), "j").await;
        let me = (open.client_id, open.iteration_id);
        let of = |worker| open.tasks.iter().find(|t| t.worker_id == worker).unwrap().task_id;
        let (ta, tb) = (of(a), of(b));
        let leased = indices(&w.next(ta, a, 1, 2).await.unwrap());
        assert_eq!(leased.len(), 2);
        w.silence(S * 6, &[(b, "b:1")], &[me]).await;
        let view = w.beat(me.0, me.1, &[], &[]).await;
        assert!(view.tasks.iter().any(|t| t.task_id == ta && t.lost));

        // Until the client has spoken, the splits stay where they are.
        let rest = indices(&w.next(tb, b, 1, 9).await.unwrap());
        assert!(leased.iter().all(|i| !rest.contains(i)));
        assert_eq!(w.next(ta, a, 2, 1).await.unwrap_err().kind(), ErrorKind::Cancelled);
        let view = w.beat(me.0, me.1, &[], &[lost(ta, &[(leased[0], 0, 10), (99, 0, 5)])]).await;
        assert!(view.tasks.iter().all(|t| t.task_id != ta) && !view.finished);
        let mut back = Vec::new();
        for no in 2.. {
            let answer = w.next(tb, b, no, 9).await.unwrap();
            if answer.end {
                break;
            }
            back.extend(answer.splits);
        }
        let back: Vec<_> = back.iter().filter(|s| leased.contains(&s.index)).collect();
        assert_eq!(back.len(), 2);
        assert_eq!(back[0].done, vec![v1::RowRange { start: 0, end: 10 }]);
        assert!(back[1].done.is_empty());
        w.finish(tb, b).await;
        assert!(w.beat(me.0, me.1, &[tb], &[]).await.finished);
    });
}

#[test]
fn done_rows_add_up_over_attempts() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 1}), "j").await;
        let me = (open.client_id, open.iteration_id);
        let mut task = open.tasks[0].task_id;
        for attempt in 0..3u64 {
            let split = w.next(task, worker, 1, 1).await.unwrap().splits.remove(0);
            let done: Vec<_> = split.done.iter().map(|r| (r.start, r.end)).collect();
            let expected: Vec<_> = (0..attempt).map(|k| (k * 10, k * 10 + 5)).collect();
            assert_eq!(done, expected);
            let view = w.beat(me.0, me.1, &[], &[lost(task, &[(0, attempt * 10, attempt * 10 + 5)])]).await;
            assert_eq!(view.tasks.len(), 1, "a new task on the worker that is left");
            assert_ne!(view.tasks[0].task_id, task);
            task = view.tasks[0].task_id;
        }
    });
}

#[test]
fn every_client_must_speak_or_leave_before_splits_go_back() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let def = json!({"splits": 1});
        let clients = [w.open(&def, "j").await, w.open(&def, "j").await, w.open(&def, "j").await];
        let iteration = clients[0].iteration_id;
        let task = clients[0].tasks[0].task_id;
        w.next(task, worker, 1, 1).await.unwrap();
        w.finish(task, worker).await;
        let pending = || {
            w.core
                .snapshot()
                .iterations
                .values()
                .map(|i| i.feeds.values().map(|f| f.pending.len()).sum::<usize>())
                .sum::<usize>()
        };
        w.beat(clients[0].client_id, iteration, &[task], &[]).await;
        let view = w.beat(clients[1].client_id, iteration, &[], &[lost(task, &[(0, 3, 6)])]).await;
        assert!(!view.finished, "ended by its worker's word, and lost all the same");
        assert_eq!(pending(), 0);
        let view = w.beat(clients[0].client_id, iteration, &[], &[]).await;
        assert!(
            view.tasks.iter().any(|t| t.task_id == task && t.lost),
            "asked again, though it read to the end"
        );
        w.beat(clients[0].client_id, iteration, &[], &[lost(task, &[(0, 0, 3)])]).await;
        assert_eq!(pending(), 0);
        w.close(clients[2].client_id, iteration, vec![lost(task, &[(0, 8, 9)])]).await;
        assert_eq!(pending(), 1);
        let state = w.core.snapshot();
        let feed = state.iterations.values().next().unwrap().feeds.values().next().unwrap();
        assert_eq!(feed.pending[&0].done.iter().collect::<Vec<_>>(), [(0, 6), (8, 9)]);
    });
}

#[test]
fn a_silent_client_does_not_hold_up_the_others() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let def = json!({"splits": 1});
        let (one, two) = (w.open(&def, "j").await, w.open(&def, "j").await);
        let task = one.tasks[0].task_id;
        w.next(task, worker, 1, 1).await.unwrap();
        w.beat(one.client_id, one.iteration_id, &[], &[lost(task, &[])]).await;
        let me = [(one.client_id, one.iteration_id)];
        w.silence(S * 121, &[(worker, "a:1")], &me).await;
        let view = w.beat(one.client_id, one.iteration_id, &[], &[]).await;
        // What the silent one may have been sent is fenced too.
        let active: Vec<u64> = view.tasks.iter().filter(|t| !t.lost).map(|t| t.task_id).collect();
        assert_eq!(active.len(), 1);
        assert_ne!(active[0], task);
        assert!(w.beat(two.client_id, two.iteration_id, &[], &[]).await.unknown);
    });
}

#[test]
fn a_worker_that_comes_back_is_another() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 2}), "j").await;
        let task = open.tasks[0].task_id;
        w.next(task, worker, 1, 1).await.unwrap();
        assert_eq!(w.worker("a:1").await, worker, "the address keeps its number");
        let beat = |tasks| v1::WorkerHeartbeatRequest {
            worker_id: worker,
            address: "a:1".into(),
            tasks,
            secret: w.worker_secret(worker),
            ..Default::default()
        };
        let answer = w.core.workers.worker_heartbeat(beat(vec![task])).await.unwrap();
        assert_eq!((answer.cancel_tasks, answer.register_again), (vec![task], false));
        let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
        assert!(view.tasks.iter().any(|t| t.task_id == task && t.lost));
        assert!(view.tasks.iter().any(|t| t.task_id != task && !t.lost));

        let other = v1::WorkerHeartbeatRequest { address: "b:1".into(), ..beat(vec![]) };
        assert!(w.core.workers.worker_heartbeat(other).await.unwrap().register_again);
        w.silence(S * 6, &[], &[]).await;
        assert!(
            w.core.workers.worker_heartbeat(beat(vec![])).await.unwrap().register_again,
            "after it was given up"
        );
    });
}

#[test]
fn a_dispatcher_that_stood_still_blames_nobody() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        w.core.liveness.check();
        w.clock.advance(S * 600);
        w.core.liveness.check();
        assert_eq!(w.core.snapshot().active_workers().count(), 1);
    });
}

#[test]
fn a_draining_worker_finishes_and_gets_nothing_new() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let open = w.open(&json!({"splits": 10}), "j").await;
        let task = open.tasks.iter().find(|t| t.worker_id == a).unwrap().task_id;
        w.next(task, a, 1, 1).await.unwrap();
        w.core
            .workers
            .drain_worker(v1::DrainWorkerRequest { worker_id: a, secret: w.worker_secret(a), leaving: false })
            .await
            .unwrap();
        assert!(w.next(task, a, 2, 1).await.unwrap().end, "the other takes the rest");
        let secret = w.worker_secret(a);
        let beat =
            v1::WorkerHeartbeatRequest { worker_id: a, address: "a:1".into(), secret, ..Default::default() };
        assert!(w.core.workers.worker_heartbeat(beat).await.unwrap().draining);
        w.finish(task, a).await;
        let view = w.take(open.client_id, open.iteration_id, &[], &[task]).await;
        assert!(view.tasks.iter().all(|t| t.worker_id == b) && !view.finished);
        let e = w
            .core
            .workers
            .drain_worker(v1::DrainWorkerRequest {
                worker_id: 99,
                secret: caju_proto::Bytes::new(),
                leaving: false,
            })
            .await
            .unwrap_err();
        assert!(e.message().contains("worker-1 at a:1"), "{e}");
    });
}

/// A worker reports the end of a task when its readers have received everything. They may report it after the worker has left.
#[test]
fn a_task_that_has_ended_is_not_lost_with_a_worker_that_leaves() {
    run(async {
        for leaves in [true, false] {
            let w = World::new();
            let a = w.worker("a:1").await;
            let open = w.open(&json!({"splits": 1}), "j").await;
            let (me, task) = ((open.client_id, open.iteration_id), open.tasks[0].task_id);
            let leased = w.next(task, a, 1, 9).await.unwrap();
            assert!(leased.end || w.next(task, a, 2, 9).await.unwrap().end);
            w.finish_counted(task, a, Some(&[(0, 5)])).await;
            if leaves {
                let secret = w.worker_secret(a);
                let leaving = v1::DrainWorkerRequest { worker_id: a, secret, leaving: true };
                w.core.workers.drain_worker(leaving).await.unwrap();
            } else {
                w.silence(S * 60, &[], &[me]).await;
            }
            assert_eq!(
                w.beat(me.0, me.1, &[], &[]).await.finished,
                leaves,
                "a silent worker says nothing of its readers"
            );
            if leaves {
                let view = w.take(me.0, me.1, &[(0, 0, 5)], &[task]).await;
                assert!(view.accounted && view.incomplete.is_none());
            }
        }
    });
}

#[test]
fn a_single_task_that_is_lost_after_its_end_is_run_again_from_the_start() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 9, "single": true}), "j").await;
        let me = (open.client_id, open.iteration_id);
        let task = open.tasks[0].task_id;
        w.next(task, worker, 1, 3).await.unwrap();
        w.finish(task, worker).await;
        assert!(w.beat(me.0, me.1, &[], &[]).await.finished);
        let view = w.beat(me.0, me.1, &[], &[lost(task, &[(0, 0, 4), (1, 0, 2)])]).await;
        assert!(!view.finished);
        let again = view.tasks[0].task_id;
        let answer = w.next(again, worker, 1, 9).await.unwrap();
        assert_eq!(indices(&answer), [0, 1, 2]);
        assert_eq!(answer.splits[1].done, vec![v1::RowRange { start: 0, end: 2 }]);
        assert_eq!(indices(&w.next(again, worker, 2, 2).await.unwrap()), [3, 4], "and further if it wants");
    });
}

#[test]
fn a_restarted_dispatcher_goes_on_where_it_was() {
    run(async {
        for def in [json!({"splits": 700}), json!({"splits": 700, "shuffle": 3})] {
            let mut w = World::new();
            let worker = w.worker("a:1").await;
            let open = w.open(&def, "j").await;
            let task = open.tasks[0].task_id;
            let mut seen = Vec::new();
            for no in 1.. {
                if no % 4 == 0 {
                    w.restart();
                }
                let answer = w.next(task, worker, no, 90).await.unwrap();
                if answer.end {
                    break;
                }
                let number = |s: &v1::SplitLease| {
                    let split: serde_json::Value = serde_json::from_str(&s.split_json).unwrap();
                    split["i"].as_u64().unwrap()
                };
                assert!(indices(&answer).is_sorted(), "leased in the order of the epoch");
                seen.extend(answer.splits.iter().map(number));
            }
            let in_order = seen.is_sorted();
            assert_eq!(in_order, def.get("shuffle").is_none());
            seen.sort_unstable();
            assert_eq!(seen, (0..700).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_listing_that_changed_during_a_restart_is_refused() {
    run(async {
        let mut w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 20}), "j").await;
        let task = open.tasks[0].task_id;
        w.next(task, worker, 1, 5).await.unwrap();
        w.catalog.version.store(1, Ordering::Relaxed);
        w.restart();
        let e = w.next(task, worker, 2, 5).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
        assert!(e.message().starts_with("job `j` epoch 0: the source's files changed"), "{e}");
        let failure = w.beat(open.client_id, open.iteration_id, &[], &[]).await.failure.unwrap();
        assert_eq!(failure.message, e.message());
    });
}

#[test]
fn a_worker_that_clients_cannot_reach_does_not_loop_for_ever() {
    run(async {
        let w = World::new();
        w.worker("nowhere:1").await;
        let open = w.open(&json!({"splits": 1}), "j").await;
        let mut task = open.tasks[0].task_id;
        for _ in 0..9 {
            let view = w.beat(open.client_id, open.iteration_id, &[], &[lost(task, &[])]).await;
            task = view.tasks[0].task_id;
        }
        let view = w.beat(open.client_id, open.iteration_id, &[], &[lost(task, &[])]).await;
        let failure = view.failure.unwrap();
        assert!(failure.message.contains("clients cannot read from worker-1 at nowhere:1"), "{failure:?}");
    });
}

#[test]
fn a_connection_that_breaks_again_and_again_does_not_end_an_epoch_that_goes_on() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 1}), "j").await;
        let mut task = open.tasks[0].task_id;
        for row in 0..30 {
            w.next(task, worker, 1, 1).await.unwrap();
            // A row with each connection, but for some.
            let received: &[_] = if row % 3 == 0 { &[] } else { &[(0, row, row + 1)] };
            let view = w.beat(open.client_id, open.iteration_id, &[], &[lost(task, received)]).await;
            assert!(view.failure.is_none(), "after {row}: {view:?}");
            task = view.tasks[0].task_id;
        }
    });
}

#[test]
fn readers_that_leave_early_do_not_discredit_a_worker() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let def = json!({"splits": 3});
        let stays = w.open(&def, "j").await;
        for _ in 0..15 {
            let open = w.open(&def, "j").await;
            let task = open.tasks.iter().find(|t| !t.lost).unwrap().task_id;
            w.beat(open.client_id, open.iteration_id, &[], &[lost(task, &[])]).await;
            w.close(open.client_id, open.iteration_id, Vec::new()).await;
            let view = w.beat(stays.client_id, stays.iteration_id, &[], &[lost(task, &[])]).await;
            assert!(view.failure.is_none() && view.tasks.len() == 1);
        }
    });
}

#[test]
fn after_three_broken_connections_another_worker_is_preferred() {
    run(async {
        let w = World::new();
        let (bad, good) = (w.worker("bad:1").await, w.worker("good:1").await);
        let open = w.open(&json!({"splits": 100}), "j").await;
        for _ in 0..3 {
            let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
            let task = view.tasks.iter().find(|t| t.worker_id == bad).unwrap().task_id;
            w.beat(open.client_id, open.iteration_id, &[], &[lost(task, &[])]).await;
        }
        let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
        assert!(view.tasks.iter().all(|t| t.worker_id == good));
    });
}

#[test]
fn a_lost_journal_makes_old_identifiers_unknown() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let open = w.open(&json!({"splits": 1}), "j").await;
        let later = World::starting_at(S * 60);
        let answer = later.beat(open.client_id, open.iteration_id, &[], &[]).await;
        let failure = Error::from(answer.failure.as_ref().unwrap());
        assert!(answer.unknown && answer.reattach && failure.kind() == ErrorKind::DataLoss, "{failure}");
        assert!(failure.message().starts_with("the dispatcher lost its state: client-"), "{failure}");
        assert!(failure.message().contains("--state-dir"), "{failure}");
        let mut earlier = World::new();
        earlier.restart();
        let never_given = earlier.beat(u64::MAX, open.iteration_id, &[], &[]).await;
        assert!(never_given.unknown && never_given.reattach, "the end of the journal is lost");
        let known = earlier.open(&json!({"splits": 1}), "j").await;
        let expelled = earlier.beat(known.client_id, open.iteration_id, &[], &[]).await;
        let failure = Error::from(expelled.failure.as_ref().unwrap());
        assert!(failure.kind() == ErrorKind::FailedPrecondition && !expelled.reattach, "{failure}");
        let e = later.next(open.tasks[0].task_id, 1, 1, 1).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Cancelled);
        let e = later
            .core
            .epochs
            .open_iteration(open_request(&json!({"bad": "no such stage"}), "j"))
            .await
            .unwrap_err();
        assert_eq!(e.message(), "no such stage");
    });
}

/// A dispatcher without a journal of its predecessor counts on from the clock, also from one that was set back.
#[test]
fn identifiers_are_not_given_out_twice_when_the_clock_is_set_back() {
    run(async {
        let hour = S * 3600;
        // Started at an hour, a millisecond before it, and half an hour before it, each without a journal.
        let starts = [hour, hour - Duration::from_millis(1), hour / 2];
        let mut given: Vec<(u64, u64)> = Vec::new();
        for start in starts {
            let w = World::starting_at(start);
            w.worker("a:1").await;
            let mut ids = Vec::new();
            for job in 0..50 {
                let open = w.open(&json!({"splits": 1}), &format!("job-{job}")).await;
                ids.extend([open.client_id, open.iteration_id, open.tasks[0].task_id]);
            }
            let range = (*ids.iter().min().unwrap(), *ids.iter().max().unwrap());
            let apart = |other: &(u64, u64)| range.1 < other.0 || other.1 < range.0;
            assert!(given.iter().all(apart), "{range:?} after {given:?}");
            given.push(range);
        }
    });
}

#[test]
fn a_split_that_is_run_again_comes_with_the_checksums_of_rows_that_readers_have() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 2}), "j").await;
        let (task, me) = (open.tasks[0].task_id, (open.client_id, open.iteration_id));
        let first = w.next(task, worker, 1, 2).await.unwrap();
        assert!(first.splits.iter().all(|s| s.checksums.is_empty()));
        let checksum = |task_id, split_index, ordinal| v1::RowChecksum {
            task_id,
            split_index,
            ordinal,
            checksum: 10 * split_index + ordinal,
        };
        let rows = [0, 1, 2, 4, 8, 16].map(|ordinal| checksum(task, 0, ordinal));
        // Neither of a split that the task does not have, nor of a task of another worker.
        let foreign = [checksum(task, 9, 0), checksum(999, 0, 1), checksum(task, 0, 3), checksum(task, 1, 0)];
        let beat = v1::WorkerHeartbeatRequest {
            worker_id: worker,
            address: "a:1".into(),
            secret: w.worker_secret(worker),
            checksums: rows.into_iter().chain(foreign).collect(),
            ..Default::default()
        };
        w.core.workers.worker_heartbeat(beat).await.unwrap();
        let view = w.beat(me.0, me.1, &[], &[lost(task, &[(0, 0, 9)])]).await;
        let again = view.tasks[0].task_id;
        for _ in 0..2 {
            let answer = w.next(again, worker, 1, 2).await.unwrap();
            let of =
                |s: &v1::SplitLease| s.checksums.iter().map(|c| (c.ordinal, c.checksum)).collect::<Vec<_>>();
            let found: Vec<_> = answer.splits.iter().map(of).collect();
            assert_eq!(
                found,
                [vec![(0, 0), (1, 1), (2, 2), (4, 4), (8, 8)], vec![]],
                "also when asked again"
            );
        }
    });
}
