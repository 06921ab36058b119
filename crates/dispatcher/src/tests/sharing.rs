//! Tasks of jobs that share get first what is in the window of their worker, then what no other job was given, then the rest.

use caju_proto::{split_name, v1};
use caju_types::{ErrorKind, Result};
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
        let opened = world.core.open_iteration(request).await.unwrap();
        let task = opened.tasks.iter().find(|t| t.worker_id == worker).unwrap().task_id;
        Self { task, worker, client: opened.client_id, iteration: opened.iteration_id, requests: 0 }
    }

    /// Asks for splits, with these ones in the worker's window.
    async fn ask(&mut self, world: &World, want: u32, window: &[u64]) -> Result<Vec<u64>> {
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
            asks_for_behind: true,
        };
        let answer = world.core.next_splits(request.clone()).await?;
        let again = world.core.next_splits(request).await?;
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
            w.core.open_iteration(request).await
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
