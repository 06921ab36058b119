//! What readers acknowledged before the dispatcher was started again.

use caju_proto::v1;
use caju_types::{ErrorKind, IterationId};
use serde_json::json;

use super::Two;
use crate::tests::fake::{lost, open_request, run, split_rows};

#[test]
fn a_reader_that_dies_right_after_a_restart_is_fatal_if_an_older_version_had_its_acknowledgements() {
    run(async {
        let mut t = Two::new(2, "allow").await;
        t.take(t.a, &[(0, 0, 5)], &[]).await;
        t.w.restart_after_an_older_version();
        t.expel_all_but(t.b).await;
        let view = t.w.beat(t.b, t.iteration, &[], &[lost(t.task, &[])]).await;
        let incomplete = view.incomplete.expect("which rows its user took is not known");
        assert!(
            incomplete.fatal && incomplete.rows_unknown,
            "also for readers that accept a known loss: {incomplete:?}"
        );
        assert!(incomplete.why.contains("some of them come twice"), "{}", incomplete.why);
        let request = v1::OpenIterationRequest {
            lost_readers: "allow".into(),
            ..open_request(&json!({"splits": 2}), "j")
        };
        let e = t.w.core.epochs.open_iteration(request).await.unwrap_err();
        assert!(e.kind() == ErrorKind::FailedPrecondition && !e.message().contains("--lost-readers"), "{e}");
        t.w.restart();
        let again = t.next_task(t.b).await;
        t.lease(again).await;
        t.w.finish_counted(again, t.worker, Some(&[(0, 5), (1, 5)])).await;
        let all = v1::ClientHeartbeatRequest {
            client_id: t.b,
            iteration_id: t.iteration,
            ended_tasks: vec![again],
            taken_tasks: vec![again],
            acknowledged: [(0, 0, 5), (1, 0, 5)].iter().map(split_rows).collect(),
            acknowledged_all: true,
            secret: t.w.client_secret(t.b, t.iteration),
            ..Default::default()
        };
        t.w.core.clients.client_heartbeat(all).await.unwrap();
        assert_eq!(t.state(), "incomplete");
    });
}

#[test]
fn what_a_reader_acknowledged_is_known_when_it_dies_right_after_a_restart_of_the_dispatcher() {
    run(async {
        let mut t = Two::new(2, "allow").await;
        t.take(t.a, &[(0, 0, 3)], &[]).await;
        t.take(t.a, &[(0, 0, 3), (0, 4, 5)], &[]).await;
        t.w.restart();
        t.expel_all_but(t.b).await;
        let view = t.w.beat(t.b, t.iteration, &[], &[lost(t.task, &[])]).await;
        let report = view.incomplete.expect("the rows of the dead reader are missing");
        assert_eq!((report.rows_taken_by_lost_readers, report.rows_unknown, report.fatal), (4, false, false));
        let again = t.next_task(t.b).await;
        assert_eq!(t.lease(again).await, [(0, vec![(0, 3), (4, 5)]), (1, vec![])]);
        t.w.restart();
        t.w.finish_counted(again, t.worker, Some(&[(0, 1), (1, 5)])).await;
        let all = v1::ClientHeartbeatRequest {
            client_id: t.b,
            iteration_id: t.iteration,
            ended_tasks: vec![again],
            taken_tasks: vec![again],
            acknowledged: [(0, 3, 4), (1, 0, 5)].iter().map(split_rows).collect(),
            acknowledged_all: true,
            secret: t.w.client_secret(t.b, t.iteration),
            ..Default::default()
        };
        t.w.core.clients.client_heartbeat(all).await.unwrap();
        assert_eq!(t.state(), "finished");
        let state = t.w.core.snapshot();
        let left = state.iterations[&IterationId(t.iteration)].acknowledged.values().map(|a| a.total());
        assert_eq!(left.sum::<u64>(), 0, "what is done is forgotten");
    });
}

#[test]
fn what_a_lost_reader_took_is_counted_over_restarts_and_tasks() {
    run(async {
        let mut t = Two::new(2, "").await;
        t.take(t.b, &[(1, 0, 2)], &[t.task]).await;
        t.take(t.a, &[(0, 0, 5), (1, 2, 5)], &[t.task]).await;
        t.w.finish_counted(t.task, t.worker, Some(&[(0, 5), (1, 5)])).await;
        assert_eq!(t.state(), "finished");
        let state = t.w.core.snapshot();
        let members = &state.iterations[&IterationId(t.iteration)].members;
        assert_eq!(members.values().map(|m| m.rows_done).collect::<Vec<_>>(), [8, 2]);
        t.w.restart();
    });
}
