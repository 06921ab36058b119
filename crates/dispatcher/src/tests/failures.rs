//! Iterations that fail: how that reaches every client, and what fails them.

use std::time::Duration;

use caju_proto::v1;
use caju_types::{Error, ErrorKind, IterationId};
use serde_json::json;

use super::fake::{World, lost, open_request, run};

#[test]
fn a_failure_reaches_every_client_with_its_kind() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let def = json!({"splits": 4});
        let (one, two) = (w.open(&def, "j").await, w.open(&def, "j").await);
        let task = one.tasks[0].task_id;
        w.fail(task, worker, &Error::data_loss("a.tfrecord: record 7: wrong checksum")).await;
        for client in [one.client_id, two.client_id] {
            let failure = w.beat(client, one.iteration_id, &[], &[]).await.failure.unwrap();
            let e = Error::from(&failure);
            assert_eq!(
                (e.kind(), e.message()),
                (ErrorKind::DataLoss, "a.tfrecord: record 7: wrong checksum")
            );
        }
        assert_eq!(w.next(task, worker, 1, 1).await.unwrap_err().kind(), ErrorKind::DataLoss);
        let e = w.core.epochs.open_iteration(open_request(&def, "j")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DataLoss, "while somebody is there, the failure stands");
        w.close(one.client_id, one.iteration_id, Vec::new()).await;
        w.close(two.client_id, one.iteration_id, Vec::new()).await;
        assert_ne!(w.open(&def, "j").await.iteration_id, one.iteration_id, "then one may try again");
    });
}

#[test]
fn a_listing_that_fails_fails_the_iteration() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 2, "list_error": "s3://b/x: no such bucket"}), "j").await;
        let task = open.tasks[0].task_id;
        w.next(task, worker, 1, 9).await.unwrap();
        let mut no = 2;
        let e = loop {
            match w.next(task, worker, no, 9).await {
                Ok(answer) => assert!(!answer.end),
                Err(e) => break e,
            }
            no += 1;
        };
        assert_eq!(e.kind(), ErrorKind::NotFound);
        assert_eq!(e.message(), "job `j` epoch 0: s3://b/x: no such bucket");
        let failure = w.beat(open.client_id, open.iteration_id, &[], &[]).await.failure.unwrap();
        assert_eq!(failure.message, e.message());
    });
}

#[test]
fn a_listing_that_panics_fails_the_iteration() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 2, "list_panic": "a footer of x.parquet"}), "j").await;
        let task = open.tasks[0].task_id;
        let mut no = 1;
        let e = loop {
            match w.next(task, worker, no, 9).await {
                Ok(answer) => assert!(!answer.end && no < 100, "a listing without an end is waited for"),
                Err(e) => break e,
            }
            no += 1;
        };
        assert_eq!(e.kind(), ErrorKind::Internal);
        assert!(e.message().contains("a footer of x.parquet"), "{e}");
        let failure = w.beat(open.client_id, open.iteration_id, &[], &[]).await.failure.unwrap();
        assert_eq!(failure.message, e.message());
    });
}

#[test]
fn too_many_skipped_rows_are_a_failure() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let open = w.open(&json!({"splits": 9, "skip_limit": 5}), "j").await;
        for (worker, skipped) in [(a, 3), (a, 3), (b, 3)] {
            let task = open.tasks.iter().find(|t| t.worker_id == worker).unwrap().task_id;
            let finish = v1::FinishTaskRequest {
                task_id: task,
                worker_id: worker,
                rows_skipped: skipped,
                secret: w.worker_secret(worker),
                ..Default::default()
            };
            w.core.workers.finish_task(finish).await.unwrap();
        }
        let failure = w.beat(open.client_id, open.iteration_id, &[], &[]).await.failure.unwrap();
        assert!(failure.message.contains("6 bad rows were skipped, more than the limit of 5"), "{failure:?}");
    });
}

/// A task that had reported its end is lost before a reader had its rows. The task that runs its splits again skips the same rows.
#[test]
fn skipped_rows_of_splits_that_run_again_count_once() {
    run(async {
        let w = World::new();
        let (a, b) = (w.worker("a:1").await, w.worker("b:1").await);
        let open = w.open(&json!({"splits": 1, "skip_limit": 5}), "j").await;
        let (client, id) = (open.client_id, open.iteration_id);
        let task_of =
            |worker, tasks: &[v1::TaskInfo]| tasks.iter().find(|t| t.worker_id == worker).unwrap().task_id;
        let finish = |worker, task_id| v1::FinishTaskRequest {
            task_id,
            worker_id: worker,
            rows_skipped: 4,
            splits_out: vec![v1::SplitCount { split_index: 0, rows: 6 }],
            secret: w.worker_secret(worker),
            ..Default::default()
        };
        let (first, second) = (task_of(a, &open.tasks), task_of(b, &open.tasks));
        w.next(first, a, 1, 1).await.unwrap();
        w.core.workers.finish_task(finish(a, first)).await.unwrap();
        assert_eq!(w.core.snapshot().iterations[&IterationId(id)].rows_skipped, 4);
        w.silence(Duration::from_secs(62), &[(b, "b:1")], &[(client, id)]).await;
        w.beat(client, id, &[], &[lost(first, &[])]).await;
        assert_eq!(w.core.snapshot().iterations[&IterationId(id)].rows_skipped, 0);
        w.next(second, b, 1, 1).await.unwrap();
        w.core.workers.finish_task(finish(b, second)).await.unwrap();
        let iteration = w.core.snapshot().iterations[&IterationId(id)].clone();
        assert_eq!((iteration.rows_skipped, iteration.failure), (4, None));
    });
}

#[test]
fn without_a_worker_clients_are_reported_after_a_while() {
    run(async {
        let w = World::new();
        let open = w.open(&json!({"splits": 1}), "j").await;
        let me = [(open.client_id, open.iteration_id)];
        w.silence(Duration::from_secs(119), &[], &me).await;
        assert!(w.beat(me[0].0, me[0].1, &[], &[]).await.failure.is_none());
        w.silence(Duration::from_secs(3), &[], &me).await;
        let failure = w.beat(me[0].0, me[0].1, &[], &[]).await.failure.unwrap();
        assert_eq!(failure.kind, "unavailable");
        assert!(failure.message.contains("caju worker --dispatcher"), "{failure:?}");
    });
}
