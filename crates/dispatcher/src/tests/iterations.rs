//! Opening, reading, ending and forgetting iterations.

use std::time::Duration;

use caju_proto::v1;
use caju_types::ErrorKind;
use serde_json::json;

use super::fake::{World, indices, open_request, run};

#[test]
fn a_client_reads_an_epoch_to_its_end() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 5}), "").await;
        assert!(open.job.starts_with("anonymous-"), "{}", open.job);
        assert_eq!((open.tasks.len(), open.finished), (1, false));
        let task = open.tasks[0].task_id;
        assert_eq!(open.tasks[0].address, "a:1");
        let request =
            v1::GetTaskRequest { task_id: task, worker_id: worker, secret: w.worker_secret(worker) };
        let def = w.core.workers.get_task(request).await.unwrap().task.unwrap();
        assert_eq!((def.epoch, def.seed, def.iteration_id), (0, 0, open.iteration_id));

        let mut seen = Vec::new();
        for no in 1.. {
            let answer = w.next(task, worker, no, 2).await.unwrap();
            if answer.end {
                break;
            }
            seen.extend(indices(&answer));
        }
        assert_eq!(seen, [0, 1, 2, 3, 4]);
        let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
        assert_eq!((view.splits_total, view.splits_leased, view.finished), (5, 5, false));
        w.finish(task, worker).await;
        let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
        assert!(view.finished && view.tasks[0].ended);
        let view = w.beat(open.client_id, open.iteration_id, &[task], &[]).await;
        assert!(view.finished && !view.accounted, "its user has rows to take");
        let view = w.take(open.client_id, open.iteration_id, &[], &[task]).await;
        assert!(view.finished && view.accounted && view.tasks.is_empty());
        w.close(open.client_id, open.iteration_id, Vec::new()).await;
        w.core.liveness.check();
        let state = w.core.snapshot();
        assert!(
            state.iterations.is_empty() && state.jobs.is_empty(),
            "an anonymous job is forgotten at once"
        );
    });
}

#[test]
fn an_empty_source_is_an_epoch_without_rows() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 0}), "j").await;
        let task = open.tasks[0].task_id;
        assert!(w.next(task, worker, 1, 4).await.unwrap().end);
        w.finish(task, worker).await;
        assert!(w.beat(open.client_id, open.iteration_id, &[], &[]).await.finished);
    });
}

#[test]
fn a_retried_request_gets_the_same_splits() {
    run(async {
        let mut w = World::new();
        let worker = w.worker("a:1").await;
        let task = w.open(&json!({"splits": 8}), "j").await.tasks[0].task_id;
        let first = w.next(task, worker, 1, 3).await.unwrap();
        assert_eq!(w.next(task, worker, 1, 3).await.unwrap(), first);
        w.restart();
        assert_eq!(w.next(task, worker, 1, 3).await.unwrap(), first, "after a restart too");
        let second = w.next(task, worker, 2, 3).await.unwrap();
        assert_eq!(indices(&second), [3, 4, 5]);
        let e = w.next(task, worker, 1, 3).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
        let e = w.next(task, worker + 1, 3, 3).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Cancelled);
    });
}

#[test]
fn a_heartbeat_waits_for_news_and_a_new_worker_is_news() {
    run(async {
        let w = World::new();
        let open = w.open(&json!({"splits": 3}), "j").await;
        assert!(open.tasks.is_empty(), "no worker yet");
        let request = v1::ClientHeartbeatRequest {
            client_id: open.client_id,
            iteration_id: open.iteration_id,
            seen_version: open.version,
            wait_ms: 20_000,
            secret: open.client_secret.clone(),
            ..Default::default()
        };
        let waiting = w.core.clients.client_heartbeat(request);
        let (view, worker) = tokio::join!(waiting, w.worker("late:1"));
        let view = view.unwrap();
        assert_eq!((view.tasks.len(), view.tasks[0].worker_id), (1, worker));
        assert!(view.version > open.version);
    });
}

#[test]
fn a_worker_that_joins_gets_a_task_while_splits_are_left() {
    run(async {
        let w = World::new();
        let a = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 4}), "j").await;
        let first = open.tasks[0].task_id;
        w.next(first, a, 1, 1).await.unwrap();
        let b = w.worker("b:1").await;
        let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
        assert_eq!(view.tasks.len(), 2);
        let second = view.tasks.iter().find(|t| t.worker_id == b).unwrap().task_id;
        let mut seen = Vec::new();
        for no in 1.. {
            let answer = w.next(second, b, no, 9).await.unwrap();
            if answer.end {
                break;
            }
            seen.extend(indices(&answer));
        }
        assert_eq!(seen, [1, 2, 3]);
        assert!(w.next(first, a, 2, 1).await.unwrap().end);
        w.worker("c:1").await;
        let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
        assert_eq!(view.tasks.len(), 2, "nothing is left for a third");
    });
}

#[test]
fn what_nobody_reads_is_dropped_and_remembered() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let def = json!({"splits": 1});
        let done = w.open(&def, "done").await;
        let left = w.open(&def, "left").await;
        let task = done.tasks[0].task_id;
        w.next(task, worker, 1, 1).await.unwrap();
        assert!(w.next(task, worker, 2, 1).await.unwrap().end);
        w.finish(task, worker).await;
        for open in [&done, &left] {
            w.close(open.client_id, open.iteration_id, Vec::new()).await;
        }
        w.silence(Duration::from_secs(299), &[(worker, "a:1")], &[]).await;
        assert_eq!(w.core.snapshot().iterations.len(), 2);
        w.silence(Duration::from_secs(3), &[(worker, "a:1")], &[]).await;
        assert_eq!(w.core.snapshot().iterations.len(), 0);
        let e = w.core.epochs.open_iteration(open_request(&def, "done")).await.unwrap_err();
        assert!(e.message().contains("was read to its end already"), "{e}");
        let e = w.core.epochs.open_iteration(open_request(&def, "left")).await.unwrap_err();
        assert!(e.message().contains("left it before its end"), "{e}");
        let beat = v1::WorkerHeartbeatRequest {
            worker_id: worker,
            address: "a:1".into(),
            tasks: vec![task, left.tasks[0].task_id],
            secret: w.worker_secret(worker),
            ..Default::default()
        };
        let answer = w.core.workers.worker_heartbeat(beat).await.unwrap();
        assert_eq!(answer.cancel_tasks.len(), 2);
        assert!(w.beat(left.client_id, left.iteration_id, &[], &[]).await.unknown);
    });
}

#[test]
fn under_off_every_worker_sees_everything_under_its_slot() {
    run(async {
        let w = World::new();
        let workers = [w.worker("a:1").await, w.worker("b:1").await];
        let request = v1::OpenIterationRequest {
            mode: v1::ProcessingMode::Off.into(),
            ..open_request(&json!({"splits": 3, "shuffle": null}), "j")
        };
        let open = w.core.epochs.open_iteration(request).await.unwrap();
        assert_eq!(open.tasks.len(), 2);
        let mut all = Vec::new();
        for (slot, worker) in (0u32..).zip(workers) {
            let task = open.tasks.iter().find(|t| t.worker_id == worker).unwrap().task_id;
            let request =
                v1::GetTaskRequest { task_id: task, worker_id: worker, secret: w.worker_secret(worker) };
            assert_eq!(w.core.workers.get_task(request).await.unwrap().task.unwrap().worker_slot, slot);
            let mut seen = Vec::new();
            for no in 1.. {
                let answer = w.next(task, worker, no, 9).await.unwrap();
                if answer.end {
                    break;
                }
                seen.extend(answer.splits.iter().map(|s| s.split_json.clone()));
                all.extend(indices(&answer));
            }
            seen.sort();
            assert_eq!(seen, [0, 1, 2].map(|i| json!({"i": i, "v": 0}).to_string()));
            w.finish(task, worker).await;
        }
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 6, "lease indices are unique in the iteration");
        assert!(w.beat(open.client_id, open.iteration_id, &[], &[]).await.finished);
    });
}

#[test]
fn a_single_task_ends_the_feed_when_it_has_enough() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let open = w.open(&json!({"splits": 1000, "single": true}), "j").await;
        assert_eq!(open.tasks.len(), 1);
        let (task, worker) = (open.tasks[0].task_id, open.tasks[0].worker_id);
        assert!(worker == a || worker == b);
        assert_eq!(indices(&w.next(task, worker, 1, 2).await.unwrap()), [0, 1]);
        w.finish(task, worker).await;
        let view = w.beat(open.client_id, open.iteration_id, &[task], &[]).await;
        assert!(view.finished, "`take` had enough");
    });
}

/// What a task is given, as the numbers of the splits.
async fn split_order(definition: &serde_json::Value, workers: usize, losses: u64) -> Vec<u64> {
    let w = World::new();
    let mut ids = Vec::new();
    for i in 0..workers {
        ids.push(w.worker(&format!("w{i}:1")).await);
    }
    let open = w.open(definition, "j").await;
    let (mut seen, mut tasks) = (Vec::new(), open.tasks);
    for loss in 0..=losses {
        assert_eq!(tasks.len(), 1);
        let (task, worker) = (tasks[0].task_id, tasks[0].worker_id);
        seen.clear();
        for no in 1.. {
            let answer = w.next(task, worker, no, 7).await.unwrap();
            if answer.end || (loss < losses && no > 4) {
                break;
            }
            let number = |s: &v1::SplitLease| {
                serde_json::from_str::<serde_json::Value>(&s.split_json).unwrap()["i"].as_u64().unwrap()
            };
            seen.extend(answer.splits.iter().map(number));
        }
        if loss < losses {
            let lost = super::fake::lost(task, &[]);
            tasks = w.beat(open.client_id, open.iteration_id, &[], &[lost]).await.tasks;
        }
    }
    seen
}

#[test]
fn a_single_task_sees_a_new_order_each_epoch_that_is_the_same_everywhere() {
    run(async {
        let definition = json!({"splits": 300, "single": true, "shuffle": 5});
        let order = split_order(&definition, 1, 0).await;
        assert!(!order.is_sorted(), "permuted though one task sees them all");
        assert_eq!(split_order(&definition, 4, 0).await, order, "for every number of workers");
        assert_eq!(split_order(&definition, 2, 3).await, order, "after losses too");
        assert_ne!(split_order(&json!({"splits": 300, "single": true, "shuffle": 6}), 1, 0).await, order);
        let mut sorted = order;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..300).collect::<Vec<_>>());
    });
}

#[test]
fn readers_that_leave_early_are_no_strike_against_a_split() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let stays = w.open(&json!({"splits": 3}), "j").await;
        let mut tasks = stays.tasks.clone();
        // Far more often than a split may be lost before it is held to be the cause.
        for _ in 0..30 {
            let goes = w.open(&json!({"splits": 3}), "j").await;
            let task = tasks[0].task_id;
            assert_eq!(indices(&w.next(task, worker, 1, 9).await.unwrap()), [0, 1, 2]);
            let request = v1::CloseClientRequest {
                client_id: goes.client_id,
                iteration_id: goes.iteration_id,
                received: vec![super::fake::lost(task, &[(1, 0, 4)])],
                broken_off: vec![task],
                reason: "enough".into(),
                secret: goes.client_secret.clone(),
                ..Default::default()
            };
            w.core.clients.close_client(request).await.unwrap();
            let lost = super::fake::lost(task, &[(0, 0, 2)]);
            tasks = w.beat(stays.client_id, stays.iteration_id, &[], &[lost]).await.tasks;
        }
        let state = w.core.snapshot();
        let iteration = state.iterations.values().next().unwrap();
        assert!(iteration.failure.is_none() && iteration.strikes.is_empty());
        let answer = w.next(tasks[0].task_id, worker, 1, 9).await.unwrap();
        assert_eq!(indices(&answer), [0, 1, 2]);
        assert_eq!(answer.splits[0].done, vec![v1::RowRange { start: 0, end: 2 }]);
        assert_eq!(answer.splits[1].done, vec![v1::RowRange { start: 0, end: 4 }]);
    });
}

/// The worker sent the heartbeat before the task ended, and it arrives after the task's end.
#[tokio::test]
async fn a_late_heartbeat_does_not_replace_what_a_task_said_at_its_end() {
    let w = World::new();
    let worker = w.worker("a:1").await;
    let opened = w.open(&json!({"splits": 2}), "train").await;
    let task_id = opened.tasks[0].task_id;
    let served = |rows| v1::TaskServed { task_id, rows, ..Default::default() };
    let secret = w.worker_secret(worker);
    let finish = v1::FinishTaskRequest {
        task_id,
        worker_id: worker,
        secret: secret.clone(),
        served: Some(served(16)),
        ..Default::default()
    };
    w.core.workers.finish_task(finish).await.unwrap();
    let late = v1::WorkerHeartbeatRequest {
        worker_id: worker,
        address: "a:1".into(),
        secret,
        tasks: vec![task_id],
        served: vec![served(11)],
        ..Default::default()
    };
    w.core.workers.worker_heartbeat(late).await.unwrap();
    let status = w.core.status.get_status().await.unwrap();
    assert_eq!(status.jobs[0].served.unwrap().rows, 16);
}
