//! What the dispatcher does thousands of times a second must not look at everything that it knows. Bounds are those of a debug
//! build on a busy machine; what they catch takes hundreds of times as long. `caju bench dispatcher` has the figures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_proto::v1;
use caju_runtime::SystemClock;
use serde_json::json;

use super::fake::{FakeCatalog, World, run, split_rows};
use crate::config::DispatcherConfig;
use crate::control::Core;
use crate::journal::JournalKind;
use crate::state::{State, Update};

const WORKERS: usize = 1_000;
/// The longest that one lease or heartbeat may take on average.
const LONGEST: Duration = Duration::from_millis(20);

fn each(begin: Instant, calls: usize) -> Duration {
    begin.elapsed() / u32::try_from(calls).unwrap()
}

/// With a task on each of a thousand workers, a step that looks at every pair of them takes half a second.
#[test]
fn leases_and_heartbeats_of_a_thousand_workers_are_quick() {
    run(async {
        let world = World::new();
        for i in 0..WORKERS {
            world.worker(&format!("worker-{i}:1")).await;
        }
        let open = world.open(&json!({"splits": 100_000}), "j").await;
        assert_eq!(open.tasks.len(), WORKERS);
        let state = world.core.snapshot();
        let secret = |worker: u64| state.workers[&caju_types::WorkerId(worker)].secret.unwrap().to_vec();
        let lease = |task: &v1::TaskInfo, request_no: u64| v1::NextSplitsRequest {
            task_id: task.task_id,
            worker_id: task.worker_id,
            want: 8,
            wait_ms: 60_000,
            request_no,
            secret: secret(task.worker_id).into(),
            ..Default::default()
        };
        let begin = Instant::now();
        let mut leased = Vec::new();
        for no in 1..=2 {
            for task in &open.tasks {
                let answer = world.core.splits.next_splits(lease(task, no)).await.unwrap();
                leased.extend(answer.splits.iter().map(|s| s.index));
            }
        }
        assert!(leased.len() > 2 * WORKERS, "{} splits", leased.len());
        assert!(each(begin, 2 * WORKERS) < LONGEST, "{:?} for a lease", each(begin, 2 * WORKERS));

        let beat = |seen_version: u64, splits: &[u64]| v1::ClientHeartbeatRequest {
            client_id: open.client_id,
            iteration_id: open.iteration_id,
            seen_version,
            secret: open.client_secret.clone(),
            acknowledged: splits.iter().map(|split| split_rows(&(*split, 0, 1))).collect(),
            knows_tasks: true,
            ..Default::default()
        };
        // The first rows that a reader takes are news.
        let first = world.core.clients.client_heartbeat(beat(open.version, &leased[..1])).await.unwrap();
        let begin = Instant::now();
        for splits in leased[1..].chunks(16) {
            let answer = world.core.clients.client_heartbeat(beat(first.version, splits)).await.unwrap();
            assert!(answer.same_tasks && answer.version == first.version);
        }
        let beats = leased.len() / 16;
        assert!(each(begin, beats) < LONGEST, "{:?} for a heartbeat", each(begin, beats));
    });
}

/// A client that says that it has the tasks of a version gets them again with another version alone.
#[test]
fn a_list_of_tasks_is_sent_once() {
    run(async {
        let world = World::new();
        world.worker("a:1").await;
        let open = world.open(&json!({"splits": 3}), "j").await;
        let beat = |version: u64, knows_tasks: bool| v1::ClientHeartbeatRequest {
            client_id: open.client_id,
            iteration_id: open.iteration_id,
            seen_version: version,
            secret: open.client_secret.clone(),
            knows_tasks,
            ..Default::default()
        };
        let same = world.core.clients.client_heartbeat(beat(open.version, true)).await.unwrap();
        assert!(same.same_tasks && same.tasks.is_empty() && same.version == open.version);
        let old = world.core.clients.client_heartbeat(beat(open.version, false)).await.unwrap();
        assert!(!old.same_tasks && old.tasks.len() == 1, "clients of older versions get it each time");
        world.worker("b:1").await;
        let other = world.core.clients.client_heartbeat(beat(open.version, true)).await.unwrap();
        assert!(!other.same_tasks && other.tasks.len() == 2 && other.version > open.version);
    });
}

/// Leases wake no reader: a waiting one keeps waiting.
#[test]
fn leases_wake_no_reader() {
    run(async {
        let world = World::new();
        let worker = world.worker("a:1").await;
        let open = world.open(&json!({"splits": 300}), "j").await;
        let task = open.tasks[0].task_id;
        let before = world.core.snapshot();
        assert_eq!(super::fake::indices(&world.next(task, worker, 1, 64).await.unwrap()).len(), 64);
        let after = world.core.snapshot();
        let version = |s: &State| s.iterations.values().map(|i| i.version).max();
        assert_eq!(version(&before), version(&after));
        assert_ne!(before, after, "the splits are with the task");
    });
}

fn journaled(splits: u64) -> Vec<Vec<Update>> {
    let split = |index: u64| crate::state::SplitRecord {
        index,
        split: format!("{{\"repetition\":0,\"key\":\"{index:032x}\",\"range\":{{\"bytes\":[{index},9]}}}}")
            .into(),
        group: None,
        after: None,
        whole: None,
    };
    let lease = |n: u64| {
        vec![Update::Leased {
            task: caju_types::TaskId(0),
            request_no: n + 1,
            fresh: (16 * n..16 * n + 16).map(split).collect(),
            requeued: vec![],
            end: false,
            asks_for_lagging: false,
        }]
    };
    (0..splits / 16).map(lease).collect()
}

/// A start reads its journal once, in time that is linear in it. A second per 100,000 splits is ten times what an unoptimized
/// build takes; a start that looks at every pair of splits takes hours.
#[test]
fn a_dispatcher_with_a_hundred_thousand_journalled_splits_starts_soon() {
    run(async {
        let world = World::new();
        world.worker("a:1").await;
        let open = world.open(&json!({"splits": 200_000}), "j").await;
        let mut groups = vec![vec![Update::Snapshot { state: Box::new(world.core.snapshot()) }]];
        for mut group in journaled(100_000) {
            if let [Update::Leased { task, .. }] = &mut group[..] {
                *task = caju_types::TaskId(open.tasks[0].task_id);
            }
            groups.push(group);
        }
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = JournalKind::default().open(&dir.path().join("j")).unwrap();
        for groups in groups.chunks(512) {
            journal.append(groups).unwrap();
        }
        drop(journal);
        let begin = Instant::now();
        let (journal, found) = JournalKind::default().open(&dir.path().join("j")).unwrap();
        let core = Core::new(
            DispatcherConfig::default(),
            Arc::new(FakeCatalog::default()),
            SystemClock::shared(),
            journal,
            found,
        );
        let core = core.unwrap();
        let took = begin.elapsed();
        let leases = core.snapshot().task(caju_types::TaskId(open.tasks[0].task_id)).unwrap().1.leases.len();
        assert_eq!(leases, 100_000);
        assert!(took < Duration::from_secs(30), "{took:?}");
        core.context.tasks.stop();
        core.close_journal();
    });
}
