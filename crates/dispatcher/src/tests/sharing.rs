//! Tasks of jobs that share get first what is in the window of their worker, then what no other job was given, then the rest.

use std::collections::BTreeSet;

use caju_proto::{split_name, v1};
use caju_types::{ErrorKind, IterationId, Result};
use serde_json::{Value, json};

use super::fake::{World, indices, lost, open_request, run};

/// A task of a job that shares, on a worker.
struct Sharer {
    task: u64,
    worker: u64,
    client: u64,
    iteration: u64,
    requests: u64,
}

impl Sharer {
    async fn open(world: &World, def: &Value, job: &str, worker: u64) -> Self {
        let request = v1::OpenIterationRequest { sharing: "exact".into(), ..open_request(def, job) };
        let opened = world.core.epochs.open_iteration(request).await.unwrap();
        let task = opened.tasks.iter().find(|t| t.worker_id == worker).unwrap().task_id;
        Self { task, worker, client: opened.client_id, iteration: opened.iteration_id, requests: 0 }
    }

    /// Asks for splits, with these ones in the worker's window.
    async fn ask(&mut self, world: &World, want: u32, window: &[u64]) -> Result<Vec<u64>> {
        self.request(world, want, window, &[]).await
    }

    /// Asks for splits, with those in the worker's window and those that it skips. The request is sent twice, and the answers are equal.
    async fn request(&mut self, world: &World, want: u32, window: &[u64], skips: &[u64]) -> Result<Vec<u64>> {
        self.requests += 1;
        let name = |i: &u64| split_name(&json!({ "i": i, "v": 0 }).to_string());
        let request = v1::NextSplitsRequest {
            task_id: self.task,
            worker_id: self.worker,
            want,
            wait_ms: 60_000,
            request_no: self.requests,
            secret: world.worker_secret(self.worker),
            shared_splits: window.iter().map(name).collect(),
            sharing_points: vec![11],
            skipped_splits: skipped(skips),
            asks_for_lagging: true,
            ..Default::default()
        };
        let answer = world.core.splits.next_splits(request.clone()).await?;
        let again = world.core.splits.next_splits(request).await?;
        assert_eq!(again, answer, "a repeated request gets the same splits");
        Ok(indices(&answer))
    }

    async fn all(&mut self, world: &World) -> Vec<u64> {
        let mut all = Vec::new();
        loop {
            match self.ask(world, 3, &[]).await.unwrap() {
                none if none.is_empty() => return all,
                more => all.extend(more),
            }
        }
    }
}

#[test]
fn a_late_job_goes_on_with_the_others_and_ends_with_what_it_missed() {
    run(async {
        let mut world = World::new();
        let worker = world.worker("w:1").await;
        let def = json!({"splits": 12});
        let mut early = Sharer::open(&world, &def, "early", worker).await;
        assert_eq!(early.ask(&world, 8, &[]).await.unwrap(), (0..8).collect::<Vec<_>>());
        let mut late = Sharer::open(&world, &def, "late", worker).await;
        // First the splits in the window, the oldest first, then splits that no task was given.
        assert_eq!(late.ask(&world, 2, &[6, 7]).await.unwrap(), [6, 7]);
        assert_eq!(late.ask(&world, 1, &[6, 7]).await.unwrap(), [8]);
        assert_eq!(early.ask(&world, 1, &[8]).await.unwrap(), [8]);
        assert_eq!(early.ask(&world, 1, &[]).await.unwrap(), [9]);
        // A dispatcher that starts again knows what each job was given, and gives the rest in another order.
        world.restart();
        let mut rest = late.all(&world).await;
        rest.sort_unstable();
        assert_eq!(rest, [0, 1, 2, 3, 4, 5, 9, 10, 11]);
        assert_eq!(early.all(&world).await, [10, 11]);
    });
}

/// A job that is slower than the others falls behind without end under an endless `repeat`. What it has missed comes before
/// all others then.
#[test]
fn what_a_slow_job_has_missed_is_bounded() {
    run(async {
        let world = World::new();
        let worker = world.worker("w:1").await;
        let def = json!({"splits": 100_000});
        let mut fast = Sharer::open(&world, &def, "fast", worker).await;
        let mut slow = Sharer::open(&world, &def, "slow", worker).await;
        let (mut most, mut missed, mut shared_again) = (0, 0, 0);
        let mut had = BTreeSet::new();
        for _ in 0..300 {
            let given = fast.ask(&world, 8, &[]).await.unwrap();
            let next = slow.ask(&world, 1, &given).await.unwrap();
            let is_missed = !given.contains(&next[0]);
            missed += usize::from(is_missed);
            shared_again += usize::from(!is_missed && missed > 0);
            assert!(had.insert(next[0]), "{next:?} comes twice");
            let state = world.core.snapshot();
            let feeds = state.iterations[&IterationId(slow.iteration)].feeds.values();
            most = feeds.map(|feed| feed.pending.len()).fold(most, usize::max);
        }
        // More than 20, with as many as are listed ahead; without the bound it would be 2,100.
        assert!((20..20 + 1024).contains(&most), "{most} splits wait");
        assert!(missed > 150 && shared_again > 1, "{missed}, {shared_again}");
        assert!((0..20).all(|split| had.contains(&split)), "the oldest first: {had:?}");
    });
}

#[test]
fn what_a_lost_task_had_comes_back_to_its_own_job() {
    run(async {
        let world = World::new();
        let worker = world.worker("w:1").await;
        let def = json!({"splits": 6});
        let mut one = Sharer::open(&world, &def, "one", worker).await;
        let mut two = Sharer::open(&world, &def, "two", worker).await;
        assert_eq!(one.ask(&world, 2, &[]).await.unwrap(), [0, 1]);
        assert_eq!(two.ask(&world, 2, &[]).await.unwrap(), [2, 3]);
        world.beat(one.client, one.iteration, &[], &[lost(one.task, &[(1, 0, 3)])]).await;
        let view = world.beat(one.client, one.iteration, &[], &[]).await;
        let next = view.tasks.iter().find(|t| t.task_id != one.task).unwrap().task_id;
        (one.task, one.requests) = (next, 0);
        assert_eq!(one.ask(&world, 1, &[1]).await.unwrap(), [1], "its rows are in the window");
        let mut rest = one.all(&world).await;
        rest.sort_unstable();
        assert_eq!(rest, [0, 2, 3, 4, 5]);
        let mut rest = two.all(&world).await;
        rest.sort_unstable();
        assert_eq!(rest, [0, 1, 4, 5]);
    });
}

#[test]
fn jobs_without_a_common_point_get_their_splits_in_order() {
    run(async {
        let world = World::new();
        let worker = world.worker("w:1").await;
        let mut shares = Sharer::open(&world, &json!({"splits": 4}), "shares", worker).await;
        assert_eq!(shares.ask(&world, 2, &[]).await.unwrap(), [0, 1]);
        let opened = world.open(&json!({"splits": 4}), "alone").await;
        let alone = world.next(opened.tasks[0].task_id, worker, 1, 2).await.unwrap();
        assert_eq!(indices(&alone), [0, 1]);
    });
}

/// `run@a` is the job of trainer `a` of job `run`. A job of that name would divide its rows.
#[test]
fn jobs_that_share_are_not_taken_for_trainers_of_other_jobs() {
    run(async {
        let w = World::new();
        w.worker("a:1").await;
        let open = async |job: &str, trainer: &str, has_full_job: bool| {
            let request = v1::OpenIterationRequest {
                sharing: "exact".into(),
                trainer_id: trainer.into(),
                has_full_job,
                ..open_request(&json!({"splits": 4}), job)
            };
            w.core.epochs.open_iteration(request).await
        };
        let trainer = open("run", "a", false).await.unwrap();
        assert_eq!(trainer.job, "run@a");
        for (job, trainer) in [("run@a", ""), ("run@a", "a"), ("x@y", "z")] {
            let e = open(job, trainer, false).await.unwrap_err();
            assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains("has no `@`"), "{e}");
        }
        // A reader that opens its epoch again gives the name that it was given.
        for named in ["a", ""] {
            let again = open(&trainer.job, named, true).await.unwrap();
            assert_eq!((again.job, again.iteration_id), (trainer.job.clone(), trainer.iteration_id));
        }
    });
}

/// What a job's tasks computed and read from windows, and how many of them were lost without a last report.
async fn shared(world: &World, job: &str) -> Option<(u64, u64, u64)> {
    let status = world.core.status.get_status().await.unwrap();
    let of_job = status.jobs.into_iter().find(|j| j.job == job).unwrap();
    let shared = of_job.served.unwrap().shared?;
    Some((shared.computed_rows, shared.window_rows, shared.unreported_tasks))
}

/// What a worker says of a task: rows that it computed, and rows that it read from the window.
fn served(task_id: u64, computed_rows: u64, window_rows: u64) -> v1::TaskServed {
    let shared = v1::SharedUse { computed_rows, window_rows, ..Default::default() };
    v1::TaskServed { task_id, shared: Some(shared), ..Default::default() }
}

impl Sharer {
    async fn heartbeat(&self, world: &World, served: v1::TaskServed) {
        let address = world.core.snapshot().workers[&caju_types::WorkerId(self.worker)].address.clone();
        let request = v1::WorkerHeartbeatRequest {
            worker_id: self.worker,
            address,
            secret: world.worker_secret(self.worker),
            tasks: vec![self.task],
            served: vec![served],
            ..Default::default()
        };
        world.core.workers.worker_heartbeat(request).await.unwrap();
    }

    async fn finish(&self, world: &World, served: v1::TaskServed) {
        let request = v1::FinishTaskRequest {
            task_id: self.task,
            worker_id: self.worker,
            secret: world.worker_secret(self.worker),
            served: Some(served),
            ..Default::default()
        };
        world.core.workers.finish_task(request).await.unwrap();
    }
}

#[test]
fn what_ended_tasks_shared_is_known_after_a_restart_in_mid_epoch_and_at_its_end() {
    run(async {
        let mut world = World::new();
        let (a, b) = (world.worker("a:1").await, world.worker("b:1").await);
        let def = json!({"splits": 4});
        let mut first = Sharer::open(&world, &def, "one", a).await;
        let view = world.beat(first.client, first.iteration, &[], &[]).await;
        let task = view.tasks.iter().find(|t| t.worker_id == b).unwrap().task_id;
        let mut second = Sharer { task, worker: b, requests: 0, ..first };
        assert_eq!(shared(&world, "one").await, None, "no task has reported");
        assert_eq!(first.ask(&world, 1, &[]).await.unwrap(), [0]);
        assert_eq!(second.all(&world).await, [1, 2, 3]);
        second.heartbeat(&world, served(second.task, 5, 1)).await;
        first.heartbeat(&world, served(first.task, 10, 3)).await;
        assert_eq!(shared(&world, "one").await, Some((15, 4, 0)));
        second.finish(&world, served(second.task, 6, 1)).await;
        assert_eq!(shared(&world, "one").await, Some((16, 4, 0)));
        world.restart();
        assert_eq!(shared(&world, "one").await, Some((6, 1, 0)), "until the other worker reports again");
        // The worker still lists the task that it has reported.
        second.heartbeat(&world, served(second.task, 6, 1)).await;
        first.heartbeat(&world, served(first.task, 10, 3)).await;
        assert_eq!(shared(&world, "one").await, Some((16, 4, 0)));
        assert!(first.all(&world).await.is_empty());
        first.finish(&world, served(first.task, 11, 4)).await;
        assert_eq!(shared(&world, "one").await, Some((17, 5, 0)));
        world.restart();
        assert_eq!(shared(&world, "one").await, Some((17, 5, 0)));
    });
}

#[test]
fn a_task_that_is_lost_without_a_last_report_is_named_in_what_is_shared() {
    run(async {
        let mut world = World::new();
        let worker = world.worker("a:1").await;
        let def = json!({"splits": 4});
        let mut one = Sharer::open(&world, &def, "one", worker).await;
        let opened = world.open(&def, "alone").await;
        one.ask(&world, 2, &[]).await.unwrap();
        one.heartbeat(&world, served(one.task, 10, 0)).await;
        world.beat(one.client, one.iteration, &[], &[lost(one.task, &[])]).await;
        assert_eq!(shared(&world, "one").await, Some((10, 0, 1)), "at least what it said before");
        world.restart();
        assert_eq!(shared(&world, "one").await, Some((0, 0, 1)));
        world.next(opened.tasks[0].task_id, worker, 1, 2).await.unwrap();
        world.beat(opened.client_id, opened.iteration_id, &[], &[lost(opened.tasks[0].task_id, &[])]).await;
        assert_eq!(shared(&world, "alone").await, None, "a job that shares nothing");
    });
}

fn skipped(splits: &[u64]) -> Vec<v1::SplitCount> {
    splits.iter().map(|i| v1::SplitCount { split_index: *i, rows: 100 }).collect()
}

impl Sharer {
    /// Says that it skipped splits, and asks for more.
    async fn skip(&mut self, world: &World, splits: &[u64], want: u32) -> Result<Vec<u64>> {
        self.request(world, want, &[], splits).await
    }
}

/// XTR-22: a split that was skipped is not run again, and one that is run again was not skipped.
#[test]
fn xtr_22_rows_are_skipped_once_whoever_is_lost() {
    run(async {
        let mut world = World::new();
        let (a, b) = (world.worker("a:1").await, world.worker("b:1").await);
        let request = v1::OpenIterationRequest {
            sharing: "relaxed".into(),
            ..open_request(&json!({"splits": 8}), "one")
        };
        let opened = world.core.epochs.open_iteration(request).await.unwrap();
        let of = |worker: u64| {
            let task = opened.tasks.iter().find(|t| t.worker_id == worker).unwrap().task_id;
            let (client, iteration) = (opened.client_id, opened.iteration_id);
            Sharer { task, worker, client, iteration, requests: 0 }
        };
        let (mut one, mut two) = (of(a), of(b));
        let skipped_rows = async |world: &World| {
            let status = world.core.status.get_status().await.unwrap();
            status.jobs[0].served.unwrap().shared.map_or(0, |shared| shared.skipped_rows)
        };
        let mut of_one = Vec::new();
        while of_one.len() < 4 {
            of_one.extend(one.ask(&world, 1, &[]).await.unwrap());
        }
        assert_eq!(of_one, [0, 1, 2, 3]);
        assert_eq!(two.ask(&world, 1, &[]).await.unwrap(), [4]);
        assert_eq!(one.skip(&world, &[1, 2], 1).await.unwrap(), [5]);
        assert_eq!(two.skip(&world, &[0, 4], 1).await.unwrap(), [6]);
        assert_eq!(skipped_rows(&world).await, 300, "split 0 is with the other task");
        // What a task said before it was lost is final. What it says later is not: its splits are with others.
        world.beat(one.client, one.iteration, &[], &[lost(one.task, &[])]).await;
        one.skip(&world, &[3], 1).await.unwrap_err();
        one.finish(&world, served(one.task, 0, 0)).await;
        world.restart();
        assert_eq!(skipped_rows(&world).await, 300);
        let mut rest = two.skip(&world, &[], 1).await.unwrap();
        rest.extend(two.skip(&world, &[rest[0]], 1).await.unwrap());
        rest.extend(two.all(&world).await);
        rest.sort_unstable();
        assert_eq!(rest, [0, 3, 5, 7], "1, 2 and 4 are skipped for good");
        assert_eq!(skipped_rows(&world).await, 400);
        let request = v1::FinishTaskRequest {
            task_id: two.task,
            worker_id: two.worker,
            secret: world.worker_secret(two.worker),
            served: Some(served(two.task, 400, 0)),
            skipped_splits: skipped(&[7]),
            ..Default::default()
        };
        world.core.workers.finish_task(request.clone()).await.unwrap();
        world.core.workers.finish_task(request).await.unwrap();
        assert_eq!(skipped_rows(&world).await, 500);
    });
}
