//! Epochs of static modes that go on with fewer workers than shards.

use caju_types::{ClientId, DatasetId, IterationId, JobName, JobPriority, TaskId, WorkerId};

use crate::state::{
    FeedId, JobSpec, LossLimits, Mode, Policy, Sharing, State, TargetWorkers, Update, follow_ups,
};

const ITERATION: IterationId = IterationId(10);
const CLIENT: ClientId = ClientId(11);
const WORKER: WorkerId = WorkerId(1);

/// An epoch of this number of shards on this number of workers of the list. The first worker and one reader are there.
fn epoch(num_shards: u32, num_workers: u32) -> State {
    let mut state = State::default();
    let spec = JobSpec {
        dataset: DatasetId("d".into()),
        seed: 0,
        mode: Mode::Data,
        anonymous: false,
        policy: Policy::default(),
        encoding: None,
        epochs: None,
        profile_only: false,
        save: None,
        target: TargetWorkers::Auto,
        shard_by: Some(caju_engine::ShardBy::Data),
        consumers: None,
        sharing: Sharing::Off,
        priority: JobPriority::default(),
    };
    let job = JobName("j".into());
    for update in [
        Update::WorkerRegistered {
            worker: WORKER,
            address: "a:1".into(),
            slot: 0,
            tags: Vec::new(),
            cores: 1,
            version: "0.1.0".into(),
            secret: None,
            unconfirmed: false,
        },
        Update::JobCreated { job: job.clone(), spec },
        Update::IterationOpened {
            iteration: ITERATION,
            job,
            epoch: 0,
            at_ms: 0,
            num_shards,
            num_workers,
            resume: None,
            attempt: None,
        },
        Update::ClientJoined {
            client: CLIENT,
            iteration: ITERATION,
            flight: None,
            allow_lost: false,
            secret: None,
            local: Vec::new(),
            consumer: None,
            was: None,
            may_load: false,
            rank: None,
            request_id: None,
            is_journaled: true,
        },
    ] {
        state.apply(&update);
    }
    state
}

/// Applies what follows, and returns the tasks that were created, with their shards; none if the epoch failed.
fn follow(state: &mut State) -> Option<Vec<(TaskId, u32)>> {
    let mut created = Vec::new();
    for update in follow_ups(state, ITERATION, LossLimits::default()) {
        match &update {
            Update::TaskCreated { task, feed, .. } => created.push((*task, feed.0)),
            Update::IterationFailed { .. } => return None,
            _ => {}
        }
        state.apply(&update);
    }
    Some(created)
}

fn lost_connection(task: TaskId) -> Update {
    Update::ClientLost {
        client: CLIENT,
        task,
        received: Vec::new(),
        reason: "reset".into(),
        elements: 0,
        sizes: Vec::new(),
    }
}

#[test]
fn a_worker_has_every_nth_shard_also_after_the_list_has_changed() {
    let mut state = epoch(5, 2);
    let shards = |state: &State| state.iterations[&ITERATION].workers_with_shards();
    assert_eq!(shards(&state), 2);
    let created = follow(&mut state).unwrap();
    assert_eq!(created.iter().map(|(_, shard)| *shard).collect::<Vec<_>>(), [0, 2, 4]);
    state.apply(&Update::ShardsReassigned { iteration: ITERATION, num_workers: 1 });
    let created = follow(&mut state).unwrap();
    assert_eq!(created.iter().map(|(_, shard)| *shard).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(state.iterations[&ITERATION].slot_of_shard(FeedId(3)), 0);
    // More workers than shards.
    state.apply(&Update::ShardsReassigned { iteration: ITERATION, num_workers: 7 });
    assert_eq!(shards(&state), 5);
    state.apply(&Update::ShardsReassigned { iteration: ITERATION, num_workers: 0 });
    assert_eq!((shards(&state), state.iterations[&ITERATION].slot_of_shard(FeedId(3))), (5, 3));
}

#[test]
fn connections_that_are_cut_once_each_do_not_end_an_epoch_whose_shards_have_no_work_left() {
    let mut state = epoch(12, 1);
    let tasks = follow(&mut state).unwrap();
    for feed in state.iterations.get_mut(&ITERATION).unwrap().feeds.values_mut() {
        feed.exhausted = true;
    }
    for (cut, (task, _)) in tasks.into_iter().enumerate() {
        state.apply(&lost_connection(task));
        assert!(follow(&mut state).is_some(), "after {cut} others");
    }
}

#[test]
fn a_worker_that_is_lost_with_many_shards_is_one_lost_connection() {
    let mut state = epoch(10, 1);
    let mut tasks = follow(&mut state).unwrap();
    let limit = LossLimits::default().connections;
    for incident in 1..=limit {
        assert_eq!(tasks.len(), 10, "{incident}");
        for (task, _) in tasks {
            state.apply(&lost_connection(task));
        }
        match follow(&mut state) {
            Some(again) => tasks = again,
            None => return assert_eq!(incident, limit, "the epoch ended early"),
        }
    }
    panic!("an epoch whose workers are out of reach goes on for ever");
}
