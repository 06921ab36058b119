//! Which rows each client has when clients and tasks end in every way, and that sums are compared as sets of rows.

use std::sync::Arc;
use std::time::Duration;

use caju_proto::v1;
use caju_runtime::Tasks;
use caju_types::{ErrorKind, IterationId};
use serde_json::json;

use super::fake::{World, lost, open_request, run, split_rows};

const S: Duration = Duration::from_secs(1);

/// Two readers of a job with one task, of which every split is leased.
struct Two {
    w: World,
    worker: u64,
    iteration: u64,
    task: u64,
    a: u64,
    b: u64,
}

impl Two {
    async fn new(splits: u64, lost_readers: &str) -> Self {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let definition = json!({ "splits": splits });
        let request = || v1::OpenIterationRequest {
            lost_readers: lost_readers.into(),
            ..open_request(&definition, "j")
        };
        let a = w.core.open_iteration(request()).await.unwrap();
        let b = w.core.open_iteration(request()).await.unwrap();
        let (iteration, task) = (a.iteration_id, a.tasks[0].task_id);
        let this = Self { w, worker, iteration, task, a: a.client_id, b: b.client_id };
        this.lease(task).await;
        this
    }

    /// Leases every split of a task; the rows of each that are delivered already.
    async fn lease(&self, task: u64) -> Vec<(u64, Vec<(u64, u64)>)> {
        let mut all = Vec::new();
        for no in 1.. {
            let answer = self.w.next(task, self.worker, no, 9).await.unwrap();
            if answer.end {
                break;
            }
            let done = |s: &v1::SplitLease| s.done.iter().map(|r| (r.start, r.end)).collect();
            all.extend(answer.splits.iter().map(|s| (s.index, done(s))));
        }
        all
    }

    async fn beat(&self, client: u64) -> v1::ClientHeartbeatResponse {
        self.w.beat(client, self.iteration, &[], &[]).await
    }

    async fn take(
        &self,
        client: u64,
        rows: &[(u64, u64, u64)],
        taken: &[u64],
    ) -> v1::ClientHeartbeatResponse {
        self.w.take(client, self.iteration, rows, taken).await
    }

    /// One client is silent until it is expelled.
    async fn expel_all_but(&self, client: u64) {
        self.w.silence(S * 62, &[(self.worker, "a:1")], &[(client, self.iteration)]).await;
    }

    /// The task that a client may read.
    async fn next_task(&self, client: u64) -> u64 {
        let view = self.beat(client).await;
        view.tasks.iter().find(|t| !t.lost && !t.ended).unwrap_or_else(|| panic!("{view:?}")).task_id
    }

    fn state(&self) -> String {
        self.w.core.snapshot().iterations[&IterationId(self.iteration)].state_name().to_string()
    }
}

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
        let first = w.core.open_iteration(request()).await.unwrap();
        let (iteration, task) = (first.iteration_id, first.tasks[0].task_id);
        let t = Two { w, worker, iteration, task, a: first.client_id, b: 0 };
        t.lease(task).await;
        t.w.finish_counted(task, worker, Some(&[(0, 5), (1, 5)])).await;
        t.take(t.a, &[(0, 0, 5)], &[]).await;
        t.w.silence(S * 20, &[(worker, "a:1")], &[(t.a, iteration)]).await;
        // Every row was sent to it, and it has called since. It is killed, and its job starts again.
        let second = t.w.core.open_iteration(request()).await.unwrap();
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
            Tasks::new().spawn("a call", async move { core.client_heartbeat(request).await.unwrap() })
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
            let status = t.w.core.get_status().await.unwrap();
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
    t.w.core.client_heartbeat(request).await.unwrap();
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
        t.w.core.client_heartbeat(again(t.a, &[(0, 0, 5)])).await.unwrap();
        t.w.core.client_heartbeat(again(t.b, &[(0, 5, 8)])).await.unwrap();
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
            failure: Some((&caju_types::Error::cancelled("told to stop")).into()),
            secret: t.w.worker_secret(t.worker),
            counted: true,
            splits_out: vec![v1::SplitCount { split_index: 0, rows: 10 }],
            flight_counted: true,
            ..Default::default()
        };
        t.w.core.finish_task(request).await.unwrap();
        assert_eq!(t.beat(t.a).await.incomplete.map(|i| i.rows_missing), Some(2));
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
        let a = w.core.open_iteration(open_request(&definition, "j")).await.unwrap();
        let local =
            v1::OpenIterationRequest { local_workers: vec!["b:1".into()], ..open_request(&definition, "j") };
        let b = w.core.open_iteration(local).await.unwrap();
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

#[test]
fn a_reader_that_dies_right_after_a_restart_is_fatal_if_an_older_version_had_its_acknowledgements() {
    run(async {
        let mut t = Two::new(2, "allow").await;
        t.take(t.a, &[(0, 0, 5)], &[]).await;
        t.w.restart_after_an_older_version();
        t.expel_all_but(t.b).await;
        let view = t.w.beat(t.b, t.iteration, &[], &[lost(t.task, &[])]).await;
        let told = view.incomplete.expect("which rows its user took is not known");
        assert!(told.fatal && told.rows_unknown, "also for readers that accept a known loss: {told:?}");
        assert!(told.why.contains("some of them come twice"), "{}", told.why);
        let request = v1::OpenIterationRequest {
            lost_readers: "allow".into(),
            ..open_request(&json!({"splits": 2}), "j")
        };
        let e = t.w.core.open_iteration(request).await.unwrap_err();
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
        t.w.core.client_heartbeat(all).await.unwrap();
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
        t.w.core.client_heartbeat(all).await.unwrap();
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
        t.w.core.client_heartbeat(request(vec![scattered])).await.unwrap();
        let invented = (1..500_000).map(|split| split_rows(&(split, 0, 9))).collect();
        t.w.core.client_heartbeat(request(invented)).await.unwrap();
        for bad in [(0, 0, u64::MAX), (0, 7, 3)] {
            let e = t.w.core.client_heartbeat(request(vec![split_rows(&bad)])).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        }
        // Everybody is looked at as before.
        t.w.silence(S * 3, &[(t.worker, "a:1")], &[(t.a, t.iteration), (t.b, t.iteration)]).await;
        assert_eq!(t.state(), "running");
    });
}
