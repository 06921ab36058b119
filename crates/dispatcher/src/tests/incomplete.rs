//! What was handed out and what was acknowledged: sums at the end of epochs, and readers that vanish.

use std::time::Duration;

use caju_proto::v1;
use caju_types::{Error, ErrorKind};
use serde_json::json;

use super::fake::{World, lost, open_request, run, timers};
use crate::config::{DispatcherConfig, Timers};

const S: Duration = Duration::from_secs(1);

/// Leases every split of a task and says that nothing more comes.
async fn lease_all(w: &World, task: u64, worker: u64) {
    for no in 1.. {
        if w.next(task, worker, no, 9).await.unwrap().end {
            return;
        }
    }
}

fn state_of(w: &World, iteration: u64) -> String {
    let state = w.core.snapshot();
    state.iterations[&caju_types::IterationId(iteration)].state_name().to_string()
}

#[test]
fn an_epoch_is_finished_when_every_row_was_acknowledged() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 2}), "j").await;
        let (me, task) = ((open.client_id, open.iteration_id), open.tasks[0].task_id);
        lease_all(&w, task, worker).await;
        w.finish_counted(task, worker, Some(&[(0, 5), (1, 5)])).await;
        let view = w.beat(me.0, me.1, &[task], &[]).await;
        assert!(view.finished && !view.accounted, "the user has not taken the rows");
        assert_eq!(state_of(&w, me.1), "running");
        let view = w.take(me.0, me.1, &[(0, 0, 5)], &[]).await;
        assert!(!view.accounted);
        let view = w.take(me.0, me.1, &[(1, 0, 5)], &[task]).await;
        assert!(view.accounted && view.incomplete.is_none());
        assert_eq!(state_of(&w, me.1), "finished");
    });
}

#[test]
fn rows_that_nobody_acknowledged_make_an_epoch_incomplete() {
    run(async {
        let mut w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 2}), "j").await;
        let (me, task) = ((open.client_id, open.iteration_id), open.tasks[0].task_id);
        lease_all(&w, task, worker).await;
        w.take(me.0, me.1, &[(0, 0, 5), (1, 0, 2)], &[task]).await;
        // The worker reports three rows more than this client has: another client has them.
        w.finish_counted(task, worker, Some(&[(0, 5), (1, 5)])).await;
        let view = w.beat(me.0, me.1, &[], &[]).await;
        let missing = view.incomplete.unwrap();
        assert!(view.accounted && missing.fatal);
        assert_eq!((missing.rows_missing, missing.splits), (3, 1));
        assert!(missing.why.contains("3 rows of 1 splits"), "{}", missing.why);
        assert_eq!(state_of(&w, me.1), "incomplete");
        w.restart();
        assert_eq!(state_of(&w, me.1), "incomplete");
        w.close(me.0, me.1, Vec::new()).await;
        let e = w.core.epochs.open_iteration(open_request(&json!({"splits": 2}), "j")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
        w.silence(S * 302, &[(worker, "a:1")], &[]).await;
        let e = w.core.epochs.open_iteration(open_request(&json!({"splits": 2}), "j")).await.unwrap_err();
        assert!(e.message().contains("ended incomplete"), "{e}");
    });
}

/// A job of two readers of which the first one vanishes; what the second one finds then.
struct TwoReaders {
    w: World,
    worker: u64,
    stays: v1::OpenIterationResponse,
}

impl TwoReaders {
    /// The one that vanishes took these rows of what it had received.
    async fn one_vanishes(took: &[(u64, u64, u64)], allow: bool) -> Self {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let lost_readers = if allow { "allow" } else { "" }.to_string();
        let request = v1::OpenIterationRequest { lost_readers, ..open_request(&json!({"splits": 2}), "j") };
        let goes = w.core.epochs.open_iteration(request.clone()).await.unwrap();
        let stays = w.core.epochs.open_iteration(request).await.unwrap();
        let task = goes.tasks[0].task_id;
        lease_all(&w, task, worker).await;
        if !took.is_empty() {
            w.take(goes.client_id, goes.iteration_id, took, &[]).await;
        }
        w.silence(S * 62, &[(worker, "a:1")], &[(stays.client_id, stays.iteration_id)]).await;
        let this = Self { w, worker, stays };
        let view = this.beat().await;
        assert!(view.tasks.iter().any(|t| t.task_id == task && t.lost), "its tasks are fenced: {view:?}");
        let expelled = this.w.beat(goes.client_id, goes.iteration_id, &[], &[]).await;
        let why = Error::from(expelled.failure.as_ref().unwrap());
        assert!(expelled.unknown && why.message().contains("client timeout of 1 min 0 s"), "{why}");
        // The other one had received the first three rows of split 1.
        this.w.beat(this.stays.client_id, this.stays.iteration_id, &[], &[lost(task, &[(1, 0, 3)])]).await;
        this
    }

    async fn beat(&self) -> v1::ClientHeartbeatResponse {
        self.w.beat(self.stays.client_id, self.stays.iteration_id, &[], &[]).await
    }

    /// Reads what is left; the rows that count as done by then, per split.
    async fn rest(&self) -> Vec<(u64, Vec<(u64, u64)>)> {
        let view = self.beat().await;
        let [task] = &view.tasks[..] else { panic!("{view:?}") };
        let answer = self.w.next(task.task_id, self.worker, 1, 9).await.unwrap();
        assert!(self.w.next(task.task_id, self.worker, 2, 9).await.unwrap().end);
        let done = |s: &v1::SplitLease| s.done.iter().map(|r| (r.start, r.end)).collect::<Vec<_>>();
        let done: Vec<_> = answer.splits.iter().map(|s| (s.index, done(s))).collect();
        let left = |d: &Vec<(u64, u64)>| 5 - d.iter().map(|(s, e)| e - s).sum::<u64>();
        let emitted: Vec<(u64, u64)> = done.iter().map(|(i, d)| (*i, left(d))).collect();
        self.w.finish_counted(task.task_id, self.worker, Some(&emitted)).await;
        let rows: Vec<(u64, u64, u64)> = done
            .iter()
            .flat_map(|(i, d)| {
                let d: caju_types::RowRanges = d.iter().copied().collect();
                d.missing_in(0, 5).into_iter().map(|(s, e)| (*i, s, e)).collect::<Vec<_>>()
            })
            .chain([(1, 0, 3)])
            .collect();
        self.w.take(self.stays.client_id, self.stays.iteration_id, &rows, &[task.task_id]).await;
        done
    }
}

#[test]
fn a_reader_that_vanishes_with_rows_makes_the_epoch_incomplete() {
    run(async {
        let t = TwoReaders::one_vanishes(&[(0, 0, 2)], false).await;
        let e = t.w.core.epochs.open_iteration(open_request(&json!({"splits": 2}), "j")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition);
        for says in ["had taken 2 rows", "another job name", "--lost-readers allow"] {
            assert!(e.message().contains(says), "{e}");
        }
        assert_eq!(t.rest().await, [(0, vec![(0, 2)]), (1, vec![(0, 3)])], "what nobody took comes again");
        let view = t.beat().await;
        let missing = view.incomplete.unwrap();
        assert!(view.accounted && missing.fatal);
        assert_eq!((missing.rows_missing, missing.rows_taken_by_lost_readers), (2, 2));
        assert_eq!(state_of(&t.w, t.stays.iteration_id), "incomplete");
    });
}

/// A dispatcher that stood still, as on a suspended machine, has heard nobody: that is no silence of its peers, whatever of the
/// timeouts is the shortest one.
#[test]
fn a_pause_of_the_dispatcher_expels_nobody() {
    // The timeouts of workers and of readers, and the pause.
    for (worker_timeout, client_timeout, pause) in [(60, 10, 15), (5, 60, 100)] {
        let (worker_timeout, client_timeout) = (S * worker_timeout, S * client_timeout);
        let timers = Timers { worker_timeout, client_timeout, job_gc_timeout: S * 40, ..timers() };
        run(async {
            let w = World::with(|config| DispatcherConfig { timers, ..config });
            let worker = w.worker("a:1").await;
            let left = w.open(&json!({"splits": 2}), "left").await;
            w.close(left.client_id, left.iteration_id, Vec::new()).await;
            let open = w.open(&json!({"splits": 2}), "j").await;
            w.silence(S * 3, &[(worker, "a:1")], &[(open.client_id, open.iteration_id)]).await;
            w.clock.advance(S * pause);
            w.core.liveness.check();
            let state = w.core.snapshot();
            assert!(state.workers.values().all(|worker| !worker.is_lost()));
            let iteration = &state.iterations[&caju_types::IterationId(open.iteration_id)];
            assert_eq!(iteration.members.len(), 1, "no reader is expelled");
            let between = state.iterations.contains_key(&caju_types::IterationId(left.iteration_id));
            assert!(between, "nor is an epoch abandoned whose readers are between two launches");
        });
    }
}

#[test]
fn a_job_may_accept_that_readers_are_lost() {
    run(async {
        let t = TwoReaders::one_vanishes(&[(0, 0, 2)], true).await;
        let request = v1::OpenIterationRequest {
            lost_readers: "allow".into(),
            ..open_request(&json!({"splits": 2}), "j")
        };
        let joins = t.w.core.epochs.open_iteration(request).await.unwrap();
        t.w.close(joins.client_id, joins.iteration_id, Vec::new()).await;
        t.rest().await;
        let view = t.beat().await;
        let reported = view.incomplete.unwrap();
        assert!(view.accounted && !reported.fatal);
        assert_eq!((reported.rows_missing, reported.rows_taken_by_lost_readers), (0, 2));
        assert_eq!(state_of(&t.w, t.stays.iteration_id), "finished");
        let bad = v1::OpenIterationRequest { lost_readers: "alow".into(), ..open_request(&json!({}), "k") };
        let e = t.w.core.epochs.open_iteration(bad).await.unwrap_err();
        assert!(e.message().contains("did you mean `allow`"), "{e}");
    });
}

#[test]
fn a_reader_that_vanishes_with_nothing_costs_nothing() {
    run(async {
        let t = TwoReaders::one_vanishes(&[], false).await;
        let joins = t.w.open(&json!({"splits": 2}), "j").await;
        t.w.close(joins.client_id, joins.iteration_id, Vec::new()).await;
        assert_eq!(t.rest().await, [(0, vec![]), (1, vec![(0, 3)])]);
        assert!(t.beat().await.incomplete.is_none());
        assert_eq!(state_of(&t.w, t.stays.iteration_id), "finished");
    });
}

#[test]
fn rows_that_a_reader_received_of_a_lost_task_and_did_not_take_come_again() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let def = json!({"splits": 1});
        let (goes, stays) = (w.open(&def, "j").await, w.open(&def, "j").await);
        let (iteration, task) = (goes.iteration_id, goes.tasks[0].task_id);
        lease_all(&w, task, worker).await;
        // Its connection broke when it had five rows, of which its user took two.
        w.beat(goes.client_id, iteration, &[], &[lost(task, &[(0, 0, 5)])]).await;
        let view = w.beat(stays.client_id, iteration, &[], &[lost(task, &[])]).await;
        w.take(goes.client_id, iteration, &[(0, 0, 2)], &[]).await;
        let again = view.tasks[0].task_id;
        let split = w.next(again, worker, 1, 9).await.unwrap().splits.remove(0);
        assert_eq!(split.done, vec![v1::RowRange { start: 0, end: 5 }]);
        w.silence(S * 62, &[(worker, "a:1")], &[(stays.client_id, iteration)]).await;
        let view = w.beat(stays.client_id, iteration, &[], &[lost(again, &[])]).await;
        let last = view.tasks[0].task_id;
        let split = w.next(last, worker, 1, 9).await.unwrap().splits.remove(0);
        assert_eq!(split.done, vec![v1::RowRange { start: 0, end: 2 }], "three rows were in its queue");
    });
}

#[test]
fn a_dispatcher_that_restarted_asks_for_all_that_was_acknowledged() {
    run(async {
        let mut w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 1}), "j").await;
        let (me, task) = ((open.client_id, open.iteration_id), open.tasks[0].task_id);
        lease_all(&w, task, worker).await;
        assert!(!w.take(me.0, me.1, &[(0, 0, 3)], &[]).await.acknowledge_all);
        w.restart();
        w.finish_counted(task, worker, Some(&[(0, 5)])).await;
        let view = w.take(me.0, me.1, &[(0, 3, 5)], &[task]).await;
        assert!(view.acknowledge_all && !view.accounted && view.incomplete.is_none());
        assert_eq!(state_of(&w, me.1), "running", "nothing is compared before all is known");
        let all = v1::ClientHeartbeatRequest {
            client_id: me.0,
            iteration_id: me.1,
            acknowledged: vec![super::fake::split_rows(&(0, 0, 5))],
            acknowledged_all: true,
            secret: open.client_secret.clone(),
            ..Default::default()
        };
        let view = w.core.clients.client_heartbeat(all).await.unwrap();
        assert!(!view.acknowledge_all && view.accounted && view.incomplete.is_none());
        assert_eq!(state_of(&w, me.1), "finished");
    });
}

#[test]
fn a_split_that_kills_three_workers_fails_its_epoch_and_no_other() {
    run(async {
        let w = World::new();
        let open = w.open(&json!({"splits": 1, "path": "bad.arrow"}), "bad").await;
        let other = w.open(&json!({"splits": 3}), "good").await;
        let clients = [(open.client_id, open.iteration_id), (other.client_id, other.iteration_id)];
        for n in 0..3 {
            let address = format!("w{n}:1");
            let worker = w.worker(&address).await;
            let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
            assert!(view.failure.is_none(), "{n} workers died: {:?}", view.failure);
            let task = view.tasks.iter().find(|t| !t.lost).unwrap().task_id;
            w.next(task, worker, 1, 1).await.unwrap();
            // The client notices first.
            w.beat(open.client_id, open.iteration_id, &[], &[lost(task, &[])]).await;
            w.silence(S * 7, &[], &clients).await;
        }
        let failure = w.beat(open.client_id, open.iteration_id, &[], &[]).await.failure.unwrap();
        for says in ["split 0 was lost with 3 workers", "\"i\":0", "job `bad`"] {
            assert!(failure.message.contains(says), "{failure:?}");
        }
        let view = w.beat(other.client_id, other.iteration_id, &[], &[]).await;
        assert!(view.failure.is_none());
    });
}

/// The dispatcher was away for longer than the worker tried to report the end of its task.
#[test]
fn an_epoch_ends_also_if_a_worker_could_not_report_the_end_of_its_task() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 2}), "j").await;
        let (me, task) = ((open.client_id, open.iteration_id), open.tasks[0].task_id);
        lease_all(&w, task, worker).await;
        let view = w.take(me.0, me.1, &[(0, 0, 5), (1, 0, 5)], &[task]).await;
        assert!(!view.accounted, "the report may be under way");
        w.silence(S * 2, &[(worker, "a:1")], &[me]).await;
        assert_eq!(state_of(&w, me.1), "running");
        w.silence(S * 5, &[(worker, "a:1")], &[me]).await;
        let view = w.beat(me.0, me.1, &[], &[]).await;
        assert!(view.accounted && view.incomplete.is_none(), "{view:?}");
        assert_eq!(state_of(&w, me.1), "finished");
    });
}

/// A worker that names the task in its heartbeats is still to report.
#[test]
fn an_end_is_awaited_of_a_worker_that_names_its_task() {
    run(async {
        let w = World::new();
        let worker = w.worker("a:1").await;
        let open = w.open(&json!({"splits": 1}), "j").await;
        let (me, task) = ((open.client_id, open.iteration_id), open.tasks[0].task_id);
        lease_all(&w, task, worker).await;
        w.take(me.0, me.1, &[(0, 0, 5)], &[task]).await;
        for _ in 0..20 {
            let request = v1::WorkerHeartbeatRequest {
                worker_id: worker,
                address: "a:1".into(),
                secret: w.worker_secret(worker),
                tasks: vec![task],
                ..Default::default()
            };
            w.core.workers.worker_heartbeat(request).await.unwrap();
            w.clock.advance(S / 2);
            w.beat(me.0, me.1, &[], &[]).await;
            w.core.liveness.check();
        }
        assert_eq!(state_of(&w, me.1), "running");
        w.finish_counted(task, worker, Some(&[(0, 5)])).await;
        assert_eq!(state_of(&w, me.1), "finished");
    });
}
