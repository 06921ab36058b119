//! Rows that a lost reader took, or that a reader of a lost task only holds.

use caju_proto::v1;
use serde_json::json;

use super::{S, Two};
use crate::tests::fake::{World, lost, open_request, run};

#[test]
fn the_rows_of_an_expelled_reader_count_in_tasks_that_it_had_finished() {
    run(async {
        let t = Two::new(1, "allow").await;
        t.take(t.a, &[(0, 0, 6)], &[t.task]).await;
        t.w.silence(S * 62, &[(t.worker, "a:1")], &[(t.b, t.iteration)]).await;
        let view = t.beat(t.b).await;
        assert!(view.tasks.iter().all(|t| !t.lost), "its user took all it had: nothing comes again");
        t.take(t.b, &[(0, 6, 10)], &[t.task]).await;
        t.w.finish_counted(t.task, t.worker, Some(&[(0, 10)])).await;
        let view = t.beat(t.b).await;
        assert!(
            view.accounted && view.incomplete.is_none(),
            "six rows were taken by a reader that left: {view:?}"
        );
        assert_eq!(t.state(), "finished");
    });
}

#[test]
fn rows_that_an_expelled_reader_took_do_not_come_again_when_its_task_is_lost() {
    run(async {
        let t = Two::new(2, "allow").await;
        t.take(t.a, &[(0, 0, 6)], &[t.task]).await;
        t.expel_all_but(t.b).await;
        let report = lost(t.task, &[(0, 6, 8)]);
        t.take(t.b, &[(0, 6, 8)], &[]).await;
        t.w.beat(t.b, t.iteration, &[], &[report]).await;
        let again = t.next_task(t.b).await;
        assert_eq!(t.lease(again).await, [(0, vec![(0, 8)]), (1, vec![])], "six rows are taken");
        t.w.finish_counted(again, t.worker, Some(&[(0, 2), (1, 5)])).await;
        let view = t.take(t.b, &[(0, 8, 10), (1, 0, 5)], &[again]).await;
        assert!(view.accounted && !view.incomplete.is_some_and(|i| i.fatal));
        assert_eq!(t.state(), "finished");
    });
}

#[test]
fn rows_that_a_reader_only_holds_are_not_taken() {
    run(async {
        let t = Two::new(1, "").await;
        t.w.beat(t.a, t.iteration, &[], &[lost(t.task, &[(0, 0, 6)])]).await;
        t.w.beat(t.b, t.iteration, &[], &[lost(t.task, &[])]).await;
        let again = t.next_task(t.b).await;
        assert_eq!(t.lease(again).await, [(0, vec![(0, 6)])]);
        t.take(t.b, &[(0, 6, 10)], &[again]).await;
        // Its user has taken four of the six rows, and it says that it has taken all.
        t.take(t.a, &[(0, 0, 4)], &[again]).await;
        t.w.finish_counted(again, t.worker, Some(&[(0, 4)])).await;
        let missing = t.beat(t.b).await.incomplete.expect("nobody has taken two of the rows");
        assert_eq!(missing.rows_missing, 2);
        assert_eq!(t.state(), "incomplete");
    });
}

/// The worker that takes over a lost task is in the process of one reader, so the other one does not read the new task. It still
/// holds rows of the lost one.
#[test]
fn an_epoch_waits_for_rows_that_a_reader_holds_of_a_task_that_it_does_not_read() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let own = w.tagged_worker("b:1", &["COLOCATED"]).await;
        let definition = json!({ "splits": 1 });
        let a = w.core.epochs.open_iteration(open_request(&definition, "j")).await.unwrap();
        let local =
            v1::OpenIterationRequest { local_workers: vec!["b:1".into()], ..open_request(&definition, "j") };
        let b = w.core.epochs.open_iteration(local).await.unwrap();
        let (iteration, task) = (a.iteration_id, a.tasks[0].task_id);
        let t = Two { w, worker, iteration, task, a: a.client_id, b: b.client_id };
        t.lease(task).await;
        t.w.silence(S * 11, &[(own, "b:1")], &[(t.a, iteration), (t.b, iteration)]).await;
        t.w.beat(t.a, iteration, &[], &[lost(task, &[(0, 0, 6)])]).await;
        t.w.beat(t.b, iteration, &[], &[lost(task, &[])]).await;
        let again = t.next_task(t.b).await;
        let view = t.beat(t.a).await;
        assert!(view.tasks.iter().all(|x| x.task_id != again), "{view:?}");
        let answer = t.w.next(again, own, 1, 9).await.unwrap();
        assert_eq!(answer.splits[0].done.iter().map(|r| (r.start, r.end)).collect::<Vec<_>>(), [(0, 6)]);
        t.w.next(again, own, 2, 9).await.unwrap();
        t.take(t.b, &[(0, 6, 10)], &[again]).await;
        t.w.finish_counted(again, own, Some(&[(0, 4)])).await;
        // The user of the first reader has taken nothing so far.
        let view = t.take(t.b, &[], &[again]).await;
        assert!(view.incomplete.is_none() && !view.accounted, "{view:?}");
        assert_eq!(t.state(), "running");
        t.take(t.a, &[(0, 0, 2)], &[]).await;
        assert!(t.beat(t.b).await.incomplete.is_none());
        t.take(t.a, &[(0, 2, 6)], &[]).await;
        let views = [t.beat(t.a).await, t.beat(t.b).await];
        assert!(views.iter().all(|view| view.incomplete.is_none() && view.accounted), "{views:?}");
    });
}

#[test]
fn a_task_that_rows_come_back_to_is_run_again_whoever_has_finished_it() {
    run(async {
        let t = Two::new(2, "allow").await;
        t.w.beat(t.a, t.iteration, &[], &[lost(t.task, &[(0, 0, 6)])]).await;
        t.w.beat(t.b, t.iteration, &[], &[lost(t.task, &[])]).await;
        let again = t.next_task(t.b).await;
        t.lease(again).await;
        t.take(t.a, &[(0, 0, 4)], &[again]).await;
        t.expel_all_but(t.b).await;
        let view = t.beat(t.b).await;
        assert!(
            view.tasks.iter().any(|x| x.task_id == again && x.lost),
            "two rows come back to it: {view:?}"
        );
        t.w.beat(t.b, t.iteration, &[], &[lost(again, &[])]).await;
        let last = t.next_task(t.b).await;
        assert_eq!(t.lease(last).await[0], (0, vec![(0, 4)]));
    });
}

/// The reader left before it knew of the task on its own worker.
#[test]
fn a_task_on_the_worker_of_a_reader_that_left_keeps_no_epoch_open() {
    run(async {
        let w = World::new();
        let own = w.tagged_worker("b:1", &["COLOCATED"]).await;
        let definition = json!({ "splits": 1 });
        let local =
            v1::OpenIterationRequest { local_workers: vec!["b:1".into()], ..open_request(&definition, "j") };
        let b = w.core.epochs.open_iteration(local).await.unwrap();
        assert_eq!(b.tasks.len(), 1);
        w.close(b.client_id, b.iteration_id, Vec::new()).await;
        let worker = w.worker("a:1").await;
        let a = w.core.epochs.open_iteration(open_request(&definition, "j")).await.unwrap();
        assert_eq!(a.iteration_id, b.iteration_id);
        let task = a.tasks.iter().find(|t| t.worker_id == worker).unwrap().task_id;
        w.next(task, worker, 1, 9).await.unwrap();
        assert!(w.next(task, worker, 2, 9).await.unwrap().end);
        w.finish_counted(task, worker, Some(&[(0, 10)])).await;
        let view = w.take(a.client_id, a.iteration_id, &[(0, 0, 10)], &[task]).await;
        let (workers, me) = ([(own, "b:1"), (worker, "a:1")], [(a.client_id, a.iteration_id)]);
        w.silence(S * 2, &workers, &me).await;
        let view = if view.accounted { view } else { w.beat(a.client_id, a.iteration_id, &[], &[]).await };
        assert!(view.accounted && view.incomplete.is_none(), "{view:?}");
    });
}
