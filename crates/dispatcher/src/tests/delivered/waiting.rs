//! Readers at their end wait for those whose rows may come back to them.

use std::sync::Arc;

use caju_proto::v1;
use caju_runtime::Tasks;
use serde_json::json;

use super::{S, Two};
use crate::tests::fake::{World, lost, open_request, run};

#[test]
fn a_reader_at_its_end_waits_for_one_that_is_dead_and_reads_its_rows() {
    run(async {
        let t = Two::new(2, "").await;
        // The second one has received rows of split 1, and is dead.
        t.beat(t.b).await;
        let view = t.take(t.a, &[(0, 0, 5)], &[t.task]).await;
        assert!(view.finished && !view.accounted, "what the other one received may come back: {view:?}");
        t.w.silence(S * 50, &[(t.worker, "a:1")], &[(t.a, t.iteration)]).await;
        assert!(!t.beat(t.a).await.accounted);
        t.expel_all_but(t.a).await;
        let view = t.w.beat(t.a, t.iteration, &[], &[lost(t.task, &[(0, 0, 5)])]).await;
        assert!(!view.finished);
        let again = t.next_task(t.a).await;
        assert_eq!(t.lease(again).await, [(0, vec![(0, 5)]), (1, vec![])]);
        t.w.finish_counted(again, t.worker, Some(&[(1, 5)])).await;
        let view = t.take(t.a, &[(1, 0, 5)], &[again]).await;
        assert!(view.accounted && view.incomplete.is_none());
        assert_eq!(t.state(), "finished");
    });
}

#[test]
fn a_reader_at_its_end_waits_for_a_user_that_takes_rows_and_gets_them_if_it_dies() {
    run(async {
        let t = Two::new(2, "allow").await;
        assert!(!t.take(t.a, &[(0, 0, 5)], &[t.task]).await.accounted);
        // Slower than the wait for a user that takes nothing, all in all.
        for row in 0..4 {
            t.w.silence(S * 9, &[(t.worker, "a:1")], &[(t.a, t.iteration), (t.b, t.iteration)]).await;
            t.take(t.b, &[(1, row, row + 1)], &[]).await;
            assert!(
                !t.beat(t.a).await.accounted,
                "the other one's user has taken row {row}, and not the last one"
            );
        }
        t.expel_all_but(t.a).await;
        t.w.beat(t.a, t.iteration, &[], &[lost(t.task, &[(0, 0, 5)])]).await;
        let again = t.next_task(t.a).await;
        assert_eq!(t.lease(again).await, [(0, vec![(0, 5)]), (1, vec![(0, 4)])]);
        t.w.finish_counted(again, t.worker, Some(&[(1, 1)])).await;
        let view = t.take(t.a, &[(1, 4, 5)], &[again]).await;
        assert!(view.accounted, "{view:?}");
    });
}

#[test]
fn a_reader_that_comes_in_the_place_of_a_dead_one_gets_its_rows() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let request = || v1::OpenIterationRequest {
            lost_readers: "allow".into(),
            ..open_request(&json!({ "splits": 2 }), "j")
        };
        let first = w.core.epochs.open_iteration(request()).await.unwrap();
        let (iteration, task) = (first.iteration_id, first.tasks[0].task_id);
        let t = Two { w, worker, iteration, task, a: first.client_id, b: 0 };
        t.lease(task).await;
        t.w.finish_counted(task, worker, Some(&[(0, 5), (1, 5)])).await;
        t.take(t.a, &[(0, 0, 5)], &[]).await;
        t.w.silence(S * 20, &[(worker, "a:1")], &[(t.a, iteration)]).await;
        // Every row was sent to it, and it has called since. It is killed, and its job starts again.
        let second = t.w.core.epochs.open_iteration(request()).await.unwrap();
        let view = t.w.beat(second.client_id, iteration, &[], &[]).await;
        assert!(!view.accounted, "five rows are with nobody: {view:?}");
        t.w.silence(S * 50, &[(worker, "a:1")], &[(second.client_id, iteration)]).await;
        assert!(!t.beat(second.client_id).await.accounted);
        t.w.silence(S * 12, &[(worker, "a:1")], &[(second.client_id, iteration)]).await;
        let view = t.w.beat(second.client_id, iteration, &[], &[lost(task, &[])]).await;
        assert!(!view.finished, "{view:?}");
        let again = t.next_task(second.client_id).await;
        assert_eq!(t.lease(again).await, [(0, vec![(0, 5)]), (1, vec![])]);
    });
}

#[test]
fn nobody_waits_longer_than_the_reader_wait_for_a_user_that_takes_nothing() {
    run(async {
        let t = Two::new(2, "").await;
        // A call that waits here since before the end says nothing about its sender.
        let waits = |client: u64, seen_version: u64| {
            let core = Arc::clone(&t.w.core);
            let request = v1::ClientHeartbeatRequest {
                client_id: client,
                iteration_id: t.iteration,
                seen_version,
                wait_ms: 60_000,
                secret: t.w.client_secret(client, t.iteration),
                ..Default::default()
            };
            Tasks::new().spawn("a call", async move { core.clients.client_heartbeat(request).await.unwrap() })
        };
        t.take(t.a, &[(0, 0, 5)], &[t.task]).await;
        t.w.silence(S * 9, &[(t.worker, "a:1")], &[(t.a, t.iteration), (t.b, t.iteration)]).await;
        let view = t.beat(t.a).await;
        assert!(view.finished && !view.accounted, "the user of the other one may be about to ask");
        t.w.silence(S * 2, &[(t.worker, "a:1")], &[(t.a, t.iteration)]).await;
        let view = t.beat(t.a).await;
        assert!(!view.accounted, "the other one may be dead");
        let waiting = waits(t.a, view.version);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        // It lives, and its user works on its rows, or waits for this one.
        t.beat(t.b).await;
        assert!(waiting.await.unwrap().accounted);
    });
}

#[test]
fn an_abandoned_epoch_counts_the_rows_that_no_reader_has() {
    run(async {
        let t = Two::new(3, "allow").await;
        let splits = async || {
            let status = t.w.core.status.get_status().await.unwrap();
            let splits = status.jobs[0].splits.unwrap();
            (splits.waiting, splits.rows_waiting, splits.uncounted)
        };
        for client in [t.a, t.b] {
            t.w.beat(client, t.iteration, &[t.task], &[]).await;
        }
        t.w.finish_counted(t.task, t.worker, Some(&[(0, 5), (1, 5), (2, 7)])).await;
        t.take(t.a, &[(0, 0, 5)], &[t.task]).await;
        t.w.close(t.a, t.iteration, vec![lost(t.task, &[(0, 0, 5)])]).await;
        assert_eq!(splits().await, (0, 0, 0), "all of them are sent");
        t.take(t.b, &[(1, 0, 2)], &[]).await;
        t.expel_all_but(t.a).await;
        assert_eq!(t.state(), "abandoned");
        assert_eq!(splits().await, (3, 3 + 7, 0));
    });
}

#[test]
fn nobody_waits_for_a_reader_that_has_taken_everything() {
    run(async {
        let t = Two::new(2, "").await;
        t.take(t.b, &[(1, 0, 5)], &[t.task]).await;
        t.w.finish_counted(t.task, t.worker, Some(&[(0, 5), (1, 5)])).await;
        let view = t.take(t.a, &[(0, 0, 5)], &[t.task]).await;
        assert!(view.accounted, "{view:?}");
        assert_eq!(t.state(), "finished");
    });
}
