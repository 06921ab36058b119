//! What tasks emitted is compared with what users took, as sets of rows.

use caju_proto::v1;
use caju_types::ErrorKind;

use super::{S, Two};
use crate::tests::fake::{run, split_rows};

#[test]
fn a_row_that_two_users_took_hides_no_row_that_nobody_took() {
    run(async {
        let t = Two::new(1, "").await;
        t.take(t.a, &[(0, 0, 5)], &[t.task]).await;
        t.take(t.b, &[(0, 0, 5)], &[t.task]).await;
        // The sum of what both took is what was emitted.
        t.w.finish_counted(t.task, t.worker, Some(&[(0, 10)])).await;
        let failure = t.beat(t.a).await.failure.expect("five rows came twice and five are missing");
        assert_eq!(failure.kind, ErrorKind::DataLoss.as_str());
        for says in ["5 rows of split 0", "delivered twice", "another job name"] {
            assert!(failure.message.contains(says), "{failure:?}");
        }
    });
}

#[test]
fn rows_that_no_task_emitted_are_an_error() {
    run(async {
        let t = Two::new(2, "").await;
        t.take(t.a, &[(0, 0, 5), (1, 0, 1)], &[t.task]).await;
        t.take(t.b, &[], &[t.task]).await;
        t.w.finish_counted(t.task, t.worker, Some(&[(0, 5)])).await;
        let failure = t.beat(t.a).await.failure.expect("a row of split 1 came from nowhere");
        assert!(failure.message.contains("1 rows of split 1"), "{failure:?}");
    });
}

/// A reader reports the end of a task, with the counts of its worker.
async fn ends_with_counts(t: &Two, client: u64, rows: &[(u64, u64, u64)], counts: &[(u64, u64)]) {
    let count = |(split_index, rows): &(u64, u64)| v1::SplitCount { split_index: *split_index, rows: *rows };
    let request = v1::ClientHeartbeatRequest {
        client_id: client,
        iteration_id: t.iteration,
        ended_tasks: vec![t.task],
        ended_counts: vec![v1::TaskCounts {
            task_id: t.task,
            splits_out: counts.iter().map(count).collect(),
        }],
        taken_tasks: vec![t.task],
        acknowledged: rows.iter().map(split_rows).collect(),
        secret: t.w.client_secret(client, t.iteration),
        ..Default::default()
    };
    t.w.core.clients.client_heartbeat(request).await.unwrap();
}

#[test]
fn a_worker_that_dies_after_its_last_row_leaves_its_counts_with_the_readers() {
    run(async {
        let mut t = Two::new(1, "").await;
        ends_with_counts(&t, t.a, &[(0, 0, 5)], &[(0, 10), (77, 3)]).await;
        t.take(t.b, &[(0, 5, 8)], &[t.task]).await;
        t.w.restart();
        let again = |client, rows: &[(u64, u64, u64)]| v1::ClientHeartbeatRequest {
            client_id: client,
            iteration_id: t.iteration,
            acknowledged: rows.iter().map(split_rows).collect(),
            acknowledged_all: true,
            secret: t.w.client_secret(client, t.iteration),
            ..Default::default()
        };
        t.w.core.clients.client_heartbeat(again(t.a, &[(0, 0, 5)])).await.unwrap();
        t.w.core.clients.client_heartbeat(again(t.b, &[(0, 5, 8)])).await.unwrap();
        // It is killed and started again: it will never report.
        t.w.worker("a:1").await;
        let missing = t.beat(t.a).await.incomplete.expect("two rows were sent to nobody");
        assert_eq!((missing.rows_missing, missing.splits, missing.fatal), (2, 1, true));
        assert_eq!(t.state(), "incomplete");
    });
}

#[test]
fn a_task_that_is_given_up_after_its_last_row_is_compared_too() {
    run(async {
        let t = Two::new(1, "").await;
        t.take(t.a, &[(0, 0, 5)], &[t.task]).await;
        t.take(t.b, &[(0, 5, 8)], &[t.task]).await;
        let request = v1::FinishTaskRequest {
            task_id: t.task,
            worker_id: t.worker,
            failure: Some((&caju_types::Error::cancelled("asked to stop")).into()),
            secret: t.w.worker_secret(t.worker),
            counted: true,
            splits_out: vec![v1::SplitCount { split_index: 0, rows: 10 }],
            flight_counted: true,
            ..Default::default()
        };
        t.w.core.workers.finish_task(request).await.unwrap();
        assert_eq!(t.beat(t.a).await.incomplete.map(|i| i.rows_missing), Some(2));
    });
}

#[test]
fn acknowledgements_in_a_million_pieces_hold_nobody_up() {
    run(async {
        let t = Two::new(1, "").await;
        // Inserted one by one at the front these take longer than this test may.
        let rows: Vec<v1::RowRange> =
            (0..1_000_000).rev().map(|i| v1::RowRange { start: 5000 * i, end: 5000 * i + 4999 }).collect();
        let request = |acknowledged| v1::ClientHeartbeatRequest {
            client_id: t.a,
            iteration_id: t.iteration,
            acknowledged,
            secret: t.w.client_secret(t.a, t.iteration),
            ..Default::default()
        };
        let scattered = v1::SplitRows { split_index: 0, rows, ..Default::default() };
        t.w.core.clients.client_heartbeat(request(vec![scattered])).await.unwrap();
        let invented = (1..500_000).map(|split| split_rows(&(split, 0, 9))).collect();
        t.w.core.clients.client_heartbeat(request(invented)).await.unwrap();
        for bad in [(0, 0, u64::MAX), (0, 7, 3)] {
            let e = t.w.core.clients.client_heartbeat(request(vec![split_rows(&bad)])).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        }
        // Everybody is looked at as before.
        t.w.silence(S * 3, &[(t.worker, "a:1")], &[(t.a, t.iteration), (t.b, t.iteration)]).await;
        assert_eq!(t.state(), "running");
    });
}
