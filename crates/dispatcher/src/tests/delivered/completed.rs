//! Splits of which users have taken every row: their leases end while their task runs.

use caju_proto::v1;
use caju_types::{ClientId, ErrorKind, IterationId, TaskId};
use serde_json::json;

use super::Two;
use crate::state::Lease;
use crate::tests::fake::{World, lost, run, split_rows};

/// A heartbeat that says what the user took, and how many rows splits have.
async fn says(
    t: &Two,
    client: u64,
    rows: &[(u64, u64, u64)],
    sizes: &[(u64, u64)],
    seen: u64,
) -> v1::ClientHeartbeatResponse {
    let count = |(split_index, rows): &(u64, u64)| v1::SplitCount { split_index: *split_index, rows: *rows };
    let request = v1::ClientHeartbeatRequest {
        client_id: client,
        iteration_id: t.iteration,
        acknowledged: rows.iter().map(split_rows).collect(),
        sizes: sizes.iter().map(count).collect(),
        completed_seen: seen,
        secret: t.w.client_secret(client, t.iteration),
        ..Default::default()
    };
    t.w.core.clients.client_heartbeat(request).await.unwrap()
}

/// The splits that the task of an iteration has, and what is known of rows that the two clients acknowledged.
fn leases(t: &Two) -> (Vec<u64>, [u64; 2]) {
    let state = t.w.core.snapshot();
    let iteration = &state.iterations[&IterationId(t.iteration)];
    let leases = iteration.tasks[&TaskId(t.task)].leases.keys().copied().collect();
    let total = |client| iteration.acknowledged_by(ClientId(client)).map_or(0, |a| a.total());
    (leases, [total(t.a), total(t.b)])
}

#[test]
fn a_split_is_complete_when_users_have_taken_as_many_rows_as_it_has() {
    run(async {
        let mut t = Two::new(3, "").await;
        says(&t, t.a, &[(0, 0, 3), (1, 0, 5), (2, 0, 4)], &[(0, 5), (2, 5)], 0).await;
        assert_eq!(
            leases(&t).0,
            [0, 1, 2],
            "two rows of split 0 are missing, and the size of split 1 is not known"
        );
        let answer = says(&t, t.b, &[(0, 3, 5)], &[(0, 5)], 0).await;
        assert_eq!((leases(&t), answer.completed), ((vec![1, 2], [9, 0]), vec![0]));
        // A size alone is news, too. The answer lists what the reader does not know, until it knows it.
        for seen in [0, 0, 2] {
            let answer = says(&t, t.a, &[], &[(1, 5)], seen).await;
            let expected = if seen == 0 { vec![0, 1] } else { Vec::new() };
            assert_eq!((answer.completed, answer.completed_up_to), (expected, 2));
        }
        assert_eq!(leases(&t), (vec![2], [4, 0]));
        // Rows that are reported again, because an answer was lost, are not kept. Their reader is notified again.
        let answer = says(&t, t.b, &[(0, 3, 5)], &[(0, 5)], 1).await;
        assert_eq!((leases(&t).1, answer.completed), ([4, 0], vec![0]));
        t.w.restart();
        let state = t.w.core.snapshot();
        let iteration = &state.iterations[&IterationId(t.iteration)];
        assert_eq!(iteration.completed.iter().collect::<Vec<_>>(), [(0, 2)]);
        assert_eq!(iteration.members[&ClientId(t.a)].rows_done, 8);
    });
}

/// A part of a set is read with the leases of all of its splits, also by the task that follows a lost one.
#[test]
fn the_leases_of_a_part_of_a_set_end_with_their_task() {
    run(async {
        let t = Two::new(1, "").await;
        let state = t.w.core.snapshot();
        let iteration = &state.iterations[&IterationId(t.iteration)];
        let lease = &iteration.tasks[&TaskId(t.task)].leases[&0];
        assert!(iteration.may_complete(lease));
        let of_part = Lease { group: Some("a part".into()), ..lease.clone() };
        assert!(!iteration.may_complete(&of_part));
    });
}

#[test]
fn a_task_whose_splits_were_complete_ends_as_any_other() {
    run(async {
        let t = Two::new(2, "").await;
        says(&t, t.a, &[(0, 0, 5), (1, 0, 2)], &[(0, 5)], 0).await;
        t.take(t.a, &[], &[t.task]).await;
        t.take(t.b, &[(1, 2, 5)], &[t.task]).await;
        // Its worker was notified of split 0, and forgot it.
        let request = v1::FinishTaskRequest {
            task_id: t.task,
            worker_id: t.worker,
            secret: t.w.worker_secret(t.worker),
            counted: true,
            splits_out: vec![v1::SplitCount { split_index: 1, rows: 5 }],
            forgotten_rows: 5,
            ..Default::default()
        };
        t.w.core.workers.finish_task(request).await.unwrap();
        says(&t, t.a, &[(0, 0, 5), (1, 0, 2)], &[], 0).await;
        says(&t, t.b, &[(1, 2, 5)], &[], 0).await;
        assert_eq!(t.state(), "finished");
    });
}

#[test]
fn rows_that_are_emitted_after_a_split_was_complete_are_an_error() {
    run(async {
        let t = Two::new(1, "").await;
        says(&t, t.a, &[(0, 0, 5)], &[(0, 5)], 0).await;
        assert!(leases(&t).0.is_empty());
        t.take(t.a, &[], &[t.task]).await;
        t.take(t.b, &[], &[t.task]).await;
        t.w.finish_counted(t.task, t.worker, Some(&[(0, 6)])).await;
        let failure = t.beat(t.a).await.failure.expect("a sixth row came of a split that has five");
        assert_eq!(failure.kind, ErrorKind::DataLoss.as_str());
        assert!(failure.message.contains("1 rows of split 0"), "{failure:?}");
    });
}

#[test]
fn readers_that_say_different_sizes_complete_nothing() {
    run(async {
        let t = Two::new(1, "").await;
        says(&t, t.b, &[], &[(0, 4)], 0).await;
        says(&t, t.a, &[(0, 0, 4)], &[(0, 5)], 0).await;
        assert_eq!(leases(&t).0, [0]);
    });
}

#[test]
fn a_worker_is_notified_of_complete_splits() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let opened = w.open(&json!({"splits": 9}), "j").await;
        let (client, iteration, task) = (opened.client_id, opened.iteration_id, opened.tasks[0].task_id);
        w.next(task, worker, 1, 2).await.unwrap();
        let request = v1::ClientHeartbeatRequest {
            client_id: client,
            iteration_id: iteration,
            acknowledged: vec![split_rows(&(1, 0, 5))],
            sizes: vec![v1::SplitCount { split_index: 1, rows: 5 }],
            secret: w.client_secret(client, iteration),
            ..Default::default()
        };
        w.core.clients.client_heartbeat(request).await.unwrap();
        for (request_no, completed_seen, expected) in [(2, 0, vec![1]), (3, 0, vec![1]), (4, 1, vec![])] {
            let request = v1::NextSplitsRequest {
                task_id: task,
                worker_id: worker,
                want: 1,
                request_no,
                secret: w.worker_secret(worker),
                completed_seen,
                ..Default::default()
            };
            let answer = w.core.splits.next_splits(request).await.unwrap();
            assert_eq!((answer.splits.len(), answer.completed, answer.completed_up_to), (1, expected, 1));
        }
    });
}

#[test]
fn a_task_that_counts_rows_keeps_its_splits() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        // A task that follows a lost one has to count the same rows again.
        let opened = w.open(&json!({"splits": 3, "single": true}), "j").await;
        let (client, iteration, task) = (opened.client_id, opened.iteration_id, opened.tasks[0].task_id);
        w.next(task, worker, 1, 9).await.unwrap();
        let request = v1::ClientHeartbeatRequest {
            client_id: client,
            iteration_id: iteration,
            acknowledged: vec![split_rows(&(0, 0, 5))],
            sizes: vec![v1::SplitCount { split_index: 0, rows: 5 }],
            secret: w.client_secret(client, iteration),
            ..Default::default()
        };
        let answer = w.core.clients.client_heartbeat(request).await.unwrap();
        assert!(answer.completed.is_empty());
        w.worker("a:1").await;
        let view = w.beat(client, iteration, &[], &[]).await;
        let lost = v1::LostTask { task_id: task, ..Default::default() };
        assert!(view.tasks.iter().any(|t| t.task_id == task && t.lost), "{view:?}");
        let view = w.beat(client, iteration, &[], &[lost]).await;
        let next = view.tasks.iter().find(|t| !t.lost).unwrap();
        let again = w.next(next.task_id, worker, 1, 9).await.unwrap();
        assert_eq!(again.splits.iter().map(|s| s.index).collect::<Vec<_>>(), [0, 1, 2]);
    });
}

#[test]
fn rows_that_a_reader_had_of_a_lost_task_complete_their_split_when_they_are_taken() {
    run(async {
        for taken_before_it_is_leased in [false, true] {
            let mut t = Two::new(3, "").await;
            t.worker = t.w.worker("a:1").await;
            t.w.beat(t.b, t.iteration, &[], &[lost(t.task, &[])]).await;
            let view = t.w.beat(t.a, t.iteration, &[], &[lost(t.task, &[(0, 0, 5)])]).await;
            t.task = view.tasks.iter().find(|task| !task.lost).unwrap().task_id;
            if taken_before_it_is_leased {
                says(&t, t.a, &[(0, 0, 5)], &[(0, 5)], 0).await;
            }
            let leased = t.lease(t.task).await.into_iter().map(|(split, _)| split).collect::<Vec<_>>();
            if taken_before_it_is_leased {
                assert_eq!(leased, [1, 2]);
            } else {
                assert_eq!(
                    (leased, leases(&t).0),
                    (vec![0, 1, 2], vec![0, 1, 2]),
                    "its user may not take them"
                );
                says(&t, t.a, &[(0, 0, 4)], &[(0, 5)], 0).await;
                assert_eq!(leases(&t).0, [0, 1, 2], "one row is left");
                says(&t, t.a, &[(0, 4, 5)], &[], 0).await;
            }
            assert_eq!(leases(&t), (vec![1, 2], [0, 0]));
        }
    });
}
