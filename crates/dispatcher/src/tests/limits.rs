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
        world.core.register_dataset(registration("first")).await.unwrap();
        world.clock.advance(Duration::from_secs(1));
        world.open(&json!({"splits": 1, "path": "read"}), "job").await;
        for i in 0..20 {
            world.clock.advance(Duration::from_secs(1));
            world.core.register_dataset(registration(&format!("d{i}"))).await.unwrap();
        }
        let state = world.core.snapshot();
        let named: Vec<&DatasetId> = state.datasets.keys().filter(|id| id.0.starts_with('d')).collect();
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
            world.core.open_iteration(request)
        };
        let e = refused("c", "c").await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::ResourceExhausted);
        assert!(e.message().contains("--max-datasets"), "{e}");
        let e = refused("a", "c").await.unwrap_err();
        assert!(e.kind() == ErrorKind::ResourceExhausted && e.message().contains("--max-jobs"), "{e}");
        assert_eq!(world.core.snapshot().jobs.len(), 2);
    });
}

#[test]
fn definitions_are_bounded_in_bytes() {
    run(async {
        let world = small(MemoryLimits { dataset_bytes: 40_000, ..MemoryLimits::default() });
        let long = |i: usize| registration(&format!("{i}{}", "x".repeat(900)));
        for i in 0..100 {
            world.core.register_dataset(long(i)).await.unwrap();
        }
        assert!(world.core.snapshot().dataset_bytes() <= 40_000);
        let mut larger = long(0);
        larger.definition_json = json!({"splits": 1, "path": "x".repeat(50_000)}).to_string();
        larger.dataset_id.clear();
        let e = world.core.register_dataset(larger).await.unwrap_err();
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
        world.core.register_dataset(registration("kept")).await.unwrap();
        let open = world.open(&json!({"splits": 1, "path": "read"}), "job").await;
        world.close(open.client_id, open.iteration_id, vec![]).await;
        // First the iteration goes, which nobody reads, then the job and its dataset.
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
        let e = world.core.open_iteration(open_request(&json!({"splits": 1}), &long)).await.unwrap_err();
        assert!(e.kind() == ErrorKind::InvalidArgument && e.message().len() < 300, "{e}");
        let e = world.core.register_dataset(registration(&long)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
        let e = world.core.registered_dataset(&DatasetId(long)).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument);
    });
}
