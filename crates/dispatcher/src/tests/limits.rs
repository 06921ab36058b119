//! What others may make the dispatcher remember, and what it forgets.

use std::time::Duration;

use caju_proto::v1;
use caju_types::{DatasetId, ErrorKind, JobName};
use serde_json::json;

use super::fake::{World, open_request, run};
use crate::config::{DispatcherConfig, MemoryLimits};

fn small(memory: MemoryLimits) -> World {
    World::with(|config| DispatcherConfig { memory, ..config })
}

fn registration(path: &str) -> v1::RegisterDatasetRequest {
    let definition_json = json!({ "splits": 1, "path": path }).to_string();
    v1::RegisterDatasetRequest { definition_json, dataset_id: path.to_owned() }
}

#[test]
fn datasets_that_nobody_uses_make_room_the_longest_unused_first() {
    run(async {
        let mut world = small(MemoryLimits { datasets: 3, ..MemoryLimits::default() });
        world.core.datasets.register_dataset(registration("first")).await.unwrap();
        world.clock.advance(Duration::from_secs(1));
        world.open(&json!({"splits": 1, "path": "read"}), "job").await;
        for i in 0..20 {
            world.clock.advance(Duration::from_secs(1));
            world.core.datasets.register_dataset(registration(&format!("d{i}"))).await.unwrap();
        }
        let state = world.core.snapshot();
        let named: Vec<&DatasetId> = state.datasets.keys().filter(|id| id.0.len() < 10).collect();
        assert_eq!(named, [&DatasetId("d18".into()), &DatasetId("d19".into())]);
        assert_eq!(state.datasets.len(), 3, "the one that a job reads is there");
        assert!(state.jobs.contains_key(&JobName("job".into())));
        world.restart();
    });
}

#[test]
fn what_is_in_use_is_kept_and_what_is_new_refused() {
    run(async {
        let world = small(MemoryLimits { datasets: 2, jobs: 2, ..MemoryLimits::default() });
        for job in ["a", "b"] {
            world.open(&json!({"splits": 1, "path": job}), job).await;
        }
        let refused = |path: &str, job: &str| {
            let request = open_request(&json!({"splits": 1, "path": path}), job);
            world.core.epochs.open_iteration(request)
        };
        let e = refused("c", "c").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
        assert!(e.message().contains("--max-datasets"), "{e}");
        let e = refused("a", "c").await.unwrap_err();
        assert!(e.kind() == ErrorKind::ResourceExhausted && e.message().contains("--max-jobs"), "{e}");
        assert_eq!(world.core.snapshot().jobs.len(), 2);
    });
}

/// An epoch that is over is no reason to refuse others, although it is kept for a while.
#[test]
fn epochs_that_are_over_make_room_the_least_recently_used_job_first() {
    run(async {
        let mut world = small(MemoryLimits { datasets: 2, jobs: 2, ..MemoryLimits::default() });
        let worker = world.worker("w:1").await;
        for job in ["first", "second"] {
            world.clock.advance(Duration::from_secs(1));
            let open = world.open(&json!({"splits": 1, "path": job}), job).await;
            let task = open.tasks[0].task_id;
            world.next(task, worker, 1, 1).await.unwrap();
            world.next(task, worker, 2, 1).await.unwrap();
            world.finish(task, worker).await;
            world.close(open.client_id, open.iteration_id, vec![]).await;
        }
        let state = world.core.snapshot();
        assert!(state.iterations.values().all(|i| i.is_finished() && i.members.is_empty()));
        assert_eq!(state.iterations.len(), 2, "they are kept");
        let _third = world.open(&json!({"splits": 1, "path": "third"}), "third").await;
        let state = world.core.snapshot();
        assert_eq!(state.jobs.keys().map(|j| j.0.as_str()).collect::<Vec<_>>(), ["second", "third"]);
        assert_eq!((state.iterations.len(), state.datasets.len()), (2, 2));
        world.restart();
        assert_eq!(world.core.snapshot().jobs.len(), 2);
    });
}

#[test]
fn a_job_has_a_bounded_number_of_epochs() {
    run(async {
        let world = small(MemoryLimits { epochs_per_job: 2, ..MemoryLimits::default() });
        let open = |epoch: u64| {
            let request = open_request(&json!({"splits": 1}), "job");
            world.core.epochs.open_iteration(v1::OpenIterationRequest { epoch, ..request })
        };
        open(0).await.unwrap();
        open(1).await.unwrap();
        let e = open(2).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
        assert!(
            e.message().contains("job `job` has 2 epochs") && e.message().contains("--max-job-epochs"),
            "{e}"
        );
        open(1).await.unwrap();
    });
}

#[test]
fn epochs_that_are_over_make_room_for_those_of_their_job() {
    run(async {
        let world = small(MemoryLimits { epochs_per_job: 1, ..MemoryLimits::default() });
        let worker = world.worker("w:1").await;
        for epoch in 0..3 {
            let request = open_request(&json!({"splits": 1}), "job");
            let open = world
                .core
                .epochs
                .open_iteration(v1::OpenIterationRequest { epoch, ..request })
                .await
                .unwrap();
            let task = open.tasks[0].task_id;
            world.next(task, worker, 1, 1).await.unwrap();
            world.next(task, worker, 2, 1).await.unwrap();
            world.finish(task, worker).await;
            world.close(open.client_id, open.iteration_id, vec![]).await;
            assert_eq!(world.core.snapshot().iterations.len(), 1);
        }
        // It stays known which epochs were read.
        let e =
            world.core.epochs.open_iteration(open_request(&json!({"splits": 1}), "job")).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
    });
}

#[test]
fn readers_are_bounded() {
    run(async {
        let world = small(MemoryLimits { readers: 2, ..MemoryLimits::default() });
        world.open(&json!({"splits": 1}), "a").await;
        let second = world.open(&json!({"splits": 1}), "b").await;
        let refused =
            |job: &'static str| world.core.epochs.open_iteration(open_request(&json!({"splits": 1}), job));
        let e = refused("b").await.unwrap_err();
        assert!(e.kind() == ErrorKind::ResourceExhausted && e.message().contains("--max-readers"), "{e}");
        let _e = refused("c").await.unwrap_err();
        assert_eq!(world.core.snapshot().jobs.len(), 2, "nothing is left of what was refused");
        world.close(second.client_id, second.iteration_id, vec![]).await;
        world.open(&json!({"splits": 1}), "a").await;
    });
}

#[test]
fn lost_workers_make_room_for_others() {
    run(async {
        let world = small(MemoryLimits { workers: 2, ..MemoryLimits::default() });
        world.worker("w:1").await;
        let second = world.worker("w:2").await;
        let register = |address: &str| {
            let address = address.to_owned();
            world.core.workers.register_worker(v1::RegisterWorkerRequest { address, ..Default::default() })
        };
        let e = register("w:3").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
        assert!(e.message().contains("--max-worker-registrations"), "{e}");
        // The first one falls silent.
        world.silence(Duration::from_secs(60), &[(second, "w:2")], &[]).await;
        register("w:3").await.unwrap();
        let state = world.core.snapshot();
        let addresses: Vec<&str> = state.workers.values().map(|w| w.address.as_str()).collect();
        assert_eq!(addresses, ["w:2", "w:3"]);
    });
}

#[test]
fn definitions_are_bounded_in_bytes() {
    run(async {
        let world = small(MemoryLimits { dataset_bytes: 40_000, ..MemoryLimits::default() });
        let long = |i: usize| registration(&format!("{i}{}", "x".repeat(900)));
        for i in 0..100 {
            world.core.datasets.register_dataset(long(i)).await.unwrap();
        }
        assert!(world.core.snapshot().dataset_bytes() <= 40_000);
        let mut larger = long(0);
        larger.definition_json = json!({"splits": 1, "path": "x".repeat(50_000)}).to_string();
        larger.dataset_id.clear();
        let e = world.core.datasets.register_dataset(larger).await.unwrap_err();
        assert!(
            e.kind() == ErrorKind::ResourceExhausted && e.message().contains("--max-dataset-bytes"),
            "{e}"
        );
    });
}

#[test]
fn jobs_and_nameless_datasets_are_forgotten_in_time() {
    run(async {
        let mut world =
            small(MemoryLimits { forget_after: Duration::from_secs(600), ..MemoryLimits::default() });
        world.core.datasets.register_dataset(registration("kept")).await.unwrap();
        let open = world.open(&json!({"splits": 1, "path": "read"}), "job").await;
        world.close(open.client_id, open.iteration_id, vec![]).await;
        // First the iteration is removed, which has no readers, then the job and its dataset.
        world.silence(Duration::from_secs(500), &[], &[]).await;
        assert_eq!(world.core.snapshot().jobs.len(), 1);
        world.silence(Duration::from_secs(1300), &[], &[]).await;
        let state = world.core.snapshot();
        assert!(state.jobs.is_empty());
        assert_eq!(state.datasets.keys().collect::<Vec<_>>(), [&DatasetId("kept".into())]);
        world.restart();
    });
}

#[test]
fn names_have_a_length() {
    run(async {
        let world = World::new();
        let long = "n".repeat(1025);
        let e =
            world.core.epochs.open_iteration(open_request(&json!({"splits": 1}), &long)).await.unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.message().len() < 300, "{e}");
        let e = world.core.datasets.register_dataset(registration(&long)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        let e = world.core.datasets.registered_dataset(&DatasetId(long)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    });
}

/// What a worker says of itself is journaled, and is in each answer about the workers.
#[test]
fn what_a_worker_says_of_itself_is_bounded() {
    run(async {
        let w = World::new();
        let request = |tags: usize, version: usize| v1::RegisterWorkerRequest {
            address: "a:1".into(),
            tags: vec!["gpu".into(); tags],
            version: "1".repeat(version),
            ..Default::default()
        };
        for (tags, version, says) in [(65, 1, "65 tags"), (1, 2 << 10, "version")] {
            let e = w.core.workers.register_worker(request(tags, version)).await.unwrap_err();
            assert!(e.kind() == ErrorKind::InvalidArgument && e.message().contains(says), "{e}");
        }
        assert!(w.core.snapshot().workers.is_empty());
        w.core.workers.register_worker(request(64, 100)).await.unwrap();
    });
}
