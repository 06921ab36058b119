//! How many losses and missed heartbeats count, as the settings say.

use std::time::Duration;

use caju_proto::v1;
use serde_json::json;

use super::fake::{World, indices, lost, run};
use crate::state::LossLimits;

const S: Duration = Duration::from_secs(1);

fn with_losses(losses: LossLimits) -> World {
    World::with(|config| crate::config::DispatcherConfig { losses, ..config })
}

#[test]
fn an_epoch_fails_after_as_many_lost_connections_as_are_set() {
    run(async {
        for connections in [1, 4] {
            let w = with_losses(LossLimits { connections, ..LossLimits::default() });
            w.worker("nowhere:1").await;
            let open = w.open(&json!({"splits": 1}), "j").await;
            let mut task = open.tasks[0].task_id;
            for _ in 1..connections {
                let view = w.beat(open.client_id, open.iteration_id, &[], &[lost(task, &[])]).await;
                assert!(view.failure.is_none());
                task = view.tasks[0].task_id;
            }
            let view = w.beat(open.client_id, open.iteration_id, &[], &[lost(task, &[])]).await;
            assert!(view.failure.unwrap().message.contains("clients cannot read from worker-1"));
        }
    });
}

/// A quarter of the losses that end an epoch, rounded up.
#[test]
fn workers_with_lost_connections_get_no_task_while_there_are_others() {
    run(async {
        for (connections, avoided_after) in [(10, 3), (4, 1)] {
            let w = with_losses(LossLimits { connections, ..LossLimits::default() });
            w.worker("a:1").await;
            let open = w.open(&json!({"splits": 1, "single": true}), "j").await;
            w.worker("b:1").await;
            let mut task = open.tasks[0].clone();
            for _ in 0..avoided_after {
                assert_eq!(task.address, "a:1");
                let view = w.beat(open.client_id, open.iteration_id, &[], &[lost(task.task_id, &[])]).await;
                task = view.tasks.into_iter().find(|t| !t.lost).unwrap();
            }
            assert_eq!(task.address, "b:1", "after {avoided_after} lost connections of {connections}");
        }
    });
}

#[test]
fn an_epoch_fails_after_as_many_deaths_with_one_split_as_are_set() {
    run(async {
        for splits in [2, 5] {
            let w = with_losses(LossLimits { splits, ..LossLimits::default() });
            let open = w.open(&json!({"splits": 1, "path": "bad.arrow"}), "bad").await;
            for n in 0..splits {
                let worker = w.worker(&format!("w{n}:1")).await;
                let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
                assert!(view.failure.is_none(), "{n} workers died: {:?}", view.failure);
                let task = view.tasks.iter().find(|t| !t.lost).unwrap().task_id;
                w.next(task, worker, 1, 1).await.unwrap();
                w.beat(open.client_id, open.iteration_id, &[], &[lost(task, &[])]).await;
                w.silence(S * 7, &[], &[(open.client_id, open.iteration_id)]).await;
            }
            let failure = w.beat(open.client_id, open.iteration_id, &[], &[]).await.failure.unwrap();
            let says = format!("was lost with {splits} workers that died");
            assert!(failure.message.contains(&says), "{failure:?}");
        }
    });
}

/// A process that hangs at a split each time is silent, and comes back: without a bound it would do so for ever.
#[test]
fn a_split_at_which_a_process_hangs_again_and_again_fails_its_epoch() {
    run(async {
        let w = with_losses(LossLimits { splits: 2, ..LossLimits::default() });
        let open = w.open(&json!({"splits": 1, "path": "slow.arrow"}), "j").await;
        for n in 0..2 {
            let worker = w.worker("a:1").await;
            let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
            assert!(view.failure.is_none(), "hung {n} times: {:?}", view.failure);
            let task = view.tasks.iter().find(|t| !t.lost).unwrap().task_id;
            w.next(task, worker, 1, 1).await.unwrap();
            w.beat(open.client_id, open.iteration_id, &[], &[lost(task, &[])]).await;
            w.silence(S * 7, &[], &[(open.client_id, open.iteration_id)]).await;
        }
        w.worker("a:1").await;
        let failure = w.beat(open.client_id, open.iteration_id, &[], &[]).await.failure.unwrap();
        assert!(failure.message.contains("was lost with 2 workers that died"), "{failure:?}");
    });
}

/// One task reads all splits of an epoch in order, and keeps those that it has delivered.
#[test]
fn a_split_that_has_arrived_is_not_to_blame_for_later_deaths() {
    run(async {
        let w = with_losses(LossLimits { splits: 2, ..LossLimits::default() });
        let open = w.open(&json!({"splits": 2, "single": true}), "j").await;
        for n in 0..4 {
            let worker = w.worker(&format!("w{n}:1")).await;
            let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
            assert!(view.failure.is_none(), "{n} workers died: {:?}", view.failure);
            let gone: Vec<_> = view.tasks.iter().filter(|t| t.lost).map(|t| lost(t.task_id, &[])).collect();
            let view = w.beat(open.client_id, open.iteration_id, &[], &gone).await;
            let task = view.tasks.iter().find(|t| !t.lost).unwrap().task_id;
            w.next(task, worker, 1, 1).await.unwrap();
            // The reader has all five rows of split 0 since the first time.
            let report = match n {
                0 => v1::LostTask {
                    sizes: vec![v1::SplitCount { split_index: 0, rows: 5 }],
                    ..lost(task, &[(0, 0, 5)])
                },
                _ => lost(task, &[]),
            };
            w.beat(open.client_id, open.iteration_id, &[], &[report]).await;
            w.silence(S * 7, &[], &[(open.client_id, open.iteration_id)]).await;
        }
        let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
        assert!(view.failure.is_none(), "{:?}", view.failure);
    });
}

/// The worker with the open task may have a slow split, or a reader that takes no rows.
#[test]
fn a_split_that_comes_back_goes_to_an_idle_worker_although_another_task_is_open() {
    run(async {
        let w = World::new();
        let [a, b, c] = [w.worker("a:1").await, w.worker("b:1").await, w.worker("c:1").await];
        let open = w.open(&json!({"splits": 2}), "j").await;
        let task_of = |worker| open.tasks.iter().find(|t| t.worker_id == worker).unwrap().task_id;
        assert_eq!(indices(&w.next(task_of(a), a, 1, 1).await.unwrap()), [0]);
        assert_eq!(indices(&w.next(task_of(b), b, 1, 1).await.unwrap()), [1]);
        assert!(w.next(task_of(c), c, 1, 1).await.unwrap().end);
        w.finish(task_of(c), c).await;
        let view = w.beat(open.client_id, open.iteration_id, &[task_of(c)], &[lost(task_of(a), &[])]).await;
        let old = [task_of(a), task_of(b), task_of(c)];
        let new = view.tasks.iter().find(|t| !old.contains(&t.task_id));
        let new = new.unwrap_or_else(|| panic!("nobody reads split 0: {:?}", view.tasks));
        assert_eq!(indices(&w.next(new.task_id, new.worker_id, 1, 1).await.unwrap()), [0]);
    });
}

/// The list of `--workers` changes: no process has died, and the split is not to blame.
#[test]
fn a_process_that_registers_again_and_again_has_not_died() {
    run(async {
        let w = with_losses(LossLimits { splits: 2, ..LossLimits::default() });
        let open = w.open(&json!({"splits": 1, "path": "good.arrow"}), "j").await;
        for n in 0..4 {
            // It has the secret of the process that registered before.
            let worker = w.worker("a:1").await;
            let view = w.beat(open.client_id, open.iteration_id, &[], &[]).await;
            assert!(view.failure.is_none(), "registered {n} times: {:?}", view.failure);
            let task = view.tasks.iter().find(|t| !t.lost).unwrap().task_id;
            w.next(task, worker, 1, 1).await.unwrap();
            // The same process registers.
            w.worker("a:1").await;
            w.beat(open.client_id, open.iteration_id, &[], &[lost(task, &[])]).await;
        }
    });
}

/// How a worker ends.
#[derive(Debug, Clone, Copy)]
enum End {
    /// It takes no new tasks, and leaves.
    Leaves,
    /// It leaves at once.
    LeavesAtOnce,
    /// It takes no new tasks, and its call to leave does not arrive.
    Drains,
    /// Its process lives and registers again.
    RegistersAgain,
    /// It is silent.
    Dies,
}

impl End {
    async fn of(self, w: &World, worker: u64, reader: (u64, u64)) {
        let drain = async |leaving| {
            let secret = w.worker_secret(worker);
            let request = v1::DrainWorkerRequest { worker_id: worker, secret, leaving };
            w.core.workers.drain_worker(request).await.unwrap();
        };
        if matches!(self, End::Leaves | End::Drains) {
            drain(false).await;
        }
        match self {
            End::Leaves | End::LeavesAtOnce => drain(true).await,
            End::Drains | End::Dies => w.silence(S * 7, &[], &[reader]).await,
            End::RegistersAgain => assert_eq!(w.worker("a:1").await, worker),
        }
    }
}

/// A worker gets the one split, and then ends. The reader reports its broken connection before or after that. Returns the failure
/// of the epoch.
async fn lose_with(w: &World, reader: (u64, u64), end: End, reported_before: bool) -> Option<v1::Failure> {
    let worker = w.worker("a:1").await;
    let view = w.beat(reader.0, reader.1, &[], &[]).await;
    let task = view.tasks.iter().find(|t| !t.lost).unwrap().task_id;
    assert_eq!(indices(&w.next(task, worker, 1, 1).await.unwrap()), [0]);
    if reported_before {
        w.beat(reader.0, reader.1, &[], &[lost(task, &[])]).await;
    }
    end.of(w, worker, reader).await;
    if !reported_before {
        w.beat(reader.0, reader.1, &[], &[lost(task, &[])]).await;
    }
    w.beat(reader.0, reader.1, &[], &[]).await.failure
}

#[test]
fn a_worker_that_lost_a_connection_and_ends_in_order_later_has_not_died() {
    run(async {
        for end in [End::Leaves, End::LeavesAtOnce, End::Drains, End::RegistersAgain] {
            for reported_before in [true, false] {
                let w = with_losses(LossLimits { splits: 2, ..LossLimits::default() });
                let open = w.open(&json!({"splits": 1, "path": "good.arrow"}), "j").await;
                let reader = (open.client_id, open.iteration_id);
                for n in 1..=4 {
                    let failure = lose_with(&w, reader, end, reported_before).await;
                    assert!(failure.is_none(), "{end:?} {n} times, {reported_before}: {failure:?}");
                }
            }
        }
    });
}

#[test]
fn a_worker_that_ends_in_order_takes_no_death_of_another_process_back() {
    run(async {
        for end in [End::Leaves, End::Drains, End::RegistersAgain] {
            let w = with_losses(LossLimits { splits: 2, ..LossLimits::default() });
            let open = w.open(&json!({"splits": 1, "path": "bad.arrow"}), "j").await;
            let reader = (open.client_id, open.iteration_id);
            assert!(lose_with(&w, reader, End::Dies, true).await.is_none());
            assert!(lose_with(&w, reader, end, true).await.is_none(), "{end:?}");
            let failure = lose_with(&w, reader, End::Dies, true).await.unwrap();
            assert!(failure.message.contains("was lost with 2 workers that died"), "{end:?}: {failure:?}");
        }
    });
}

/// Its task had ended, so it is not lost with the worker.
#[test]
fn a_reader_that_misses_rows_of_a_worker_that_has_left_blames_no_split() {
    run(async {
        let w = with_losses(LossLimits { splits: 2, ..LossLimits::default() });
        let open = w.open(&json!({"splits": 1, "path": "good.arrow"}), "j").await;
        let reader = (open.client_id, open.iteration_id);
        for n in 1..=4 {
            let worker = w.worker("a:1").await;
            let view = w.beat(reader.0, reader.1, &[], &[]).await;
            let task = view.tasks.iter().find(|t| !t.lost).unwrap().task_id;
            let leased = w.next(task, worker, 1, 9).await.unwrap();
            assert_eq!(indices(&leased), [0]);
            assert!(leased.end || w.next(task, worker, 2, 9).await.unwrap().end);
            w.finish_counted(task, worker, Some(&[(0, 5)])).await;
            End::LeavesAtOnce.of(&w, worker, reader).await;
            let view = w.beat(reader.0, reader.1, &[], &[lost(task, &[])]).await;
            assert!(view.failure.is_none(), "it left {n} times: {:?}", view.failure);
        }
    });
}

#[test]
fn the_address_of_a_worker_is_free_after_as_many_missed_heartbeats_as_are_set() {
    run(async {
        for missed in [3, 12] {
            let w = World::with(|mut config| {
                config.timers.worker_missed_heartbeats = missed;
                config.timers.worker_timeout = S * 20;
                config
            });
            w.worker("a:1").await;
            let take = || v1::RegisterWorkerRequest { address: "a:1".into(), ..Default::default() };
            // Not before half of the worker timeout.
            let bound = S * missed.max(10);
            w.silence(bound, &[], &[]).await;
            w.core.workers.register_worker(take()).await.unwrap_err();
            w.silence(S, &[], &[]).await;
            w.core.workers.register_worker(take()).await.unwrap();
        }
    });
}

#[test]
fn a_lost_worker_is_listed_for_the_time_that_is_set() {
    run(async {
        let w = World::with(|mut config| {
            config.timers.lost_worker_retention = S * 30;
            config
        });
        w.worker("a:1").await;
        let listed = || w.core.snapshot().workers.len();
        w.silence(S * 30, &[], &[]).await;
        assert_eq!(listed(), 1, "it is lost since some seconds before");
        w.silence(S * 10, &[], &[]).await;
        assert_eq!(listed(), 0);
    });
}

#[test]
fn a_reader_is_silent_after_as_many_missed_heartbeats_as_are_set() {
    run(async {
        for silent in [2, 8] {
            let w = World::with(|mut config| {
                config.timers.reader_missed_heartbeats = silent;
                config
            });
            w.worker("a:1").await;
            let def = json!({"splits": 8});
            let (first, second) = (w.open(&def, "j").await, w.open(&def, "j").await);
            assert_eq!(first.iteration_id, second.iteration_id);
            let second = (second.client_id, second.iteration_id);
            let unnotified = async || w.beat(second.0, second.1, &[], &[]).await.unnotified;
            w.silence(S * silent, &[(1, "a:1")], &[second]).await;
            assert_eq!(unnotified().await, 1);
            w.silence(S, &[(1, "a:1")], &[second]).await;
            assert_eq!(unnotified().await, 0);
        }
    });
}
