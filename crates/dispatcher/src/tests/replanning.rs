//! Epochs are compared with the decision, and a decision that was wrong is changed.

use std::time::Duration;

use caju_autocache::Document;
use caju_planner::{Choice, Decision, Profile, plan};
use caju_proto::v1;
use caju_types::{DatasetId, JobName, JobPriority};
use serde_json::{Value, json};

use super::fake::{World, run};
use crate::state::{Job, JobSpec, Mode, Policy, Sharing, TargetWorkers, Update};

/// The golden profile `design-example` with a second hint, at which rows are five times as large.
fn profile() -> Profile {
    let text = include_str!("../../../../tests/golden_plans/design-example.profile.json");
    let mut value: Value = serde_json::from_str(text).unwrap();
    value["cluster"]["network_bytes_per_s_per_worker"] = Value::Null;
    value["stages"].as_array_mut().unwrap().push(json!({
        "name": "decode", "io_bytes_per_row": 0, "cpu_s_per_row": 0.004, "service_s_per_row": 0.004,
        "out_rows_per_row": 1.0, "out_bytes_per_row": 500_000, "random": false
    }));
    value["hints"].as_array_mut().unwrap().push(json!({
        "name": "decoded", "after_stage": "decode", "encodings": [
            {"format": "arrow", "compression": "none", "bytes_per_row": 150_000, "encode_cpu_s_per_row": 1e-5,
             "decode_cpu_s_per_row": 1e-5}]
    }));
    Profile::from_json(&value.to_string()).unwrap()
}

/// A job that decided by a profile, and whose epochs run as given.
struct Replanned {
    world: World,
    worker: u64,
    epoch: u64,
    /// Whether its reader is one of Arrow Flight, and for how many seconds rows waited for it.
    flight: Option<f64>,
}

impl Replanned {
    async fn decided(profile: &Profile) -> Self {
        let world = World::new();
        let worker = world.worker("w:1").await;
        let dataset = world.open(&definition(), "other").await;
        assert!(!dataset.finished);
        let decision = plan(profile, &Policy::Auto).unwrap();
        let job = JobName("j".into());
        world
            .core
            .context
            .commit(|txn| {
                let id: DatasetId = txn.state.datasets.keys().next().unwrap().clone();
                txn.apply(Update::JobCreated {
                    job: job.clone(),
                    spec: JobSpec {
                        dataset: id,
                        seed: 0,
                        mode: Mode::Dynamic,
                        anonymous: false,
                        policy: Policy::Auto,
                        encoding: None,
                        epochs: Some(90),
                        profile_only: false,
                        save: None,
                        target: TargetWorkers::Auto,
                        shard_by: None,
                        consumers: None,
                        sharing: Sharing::Off,
                        priority: JobPriority::default(),
                    },
                });
                txn.apply(Update::Decided {
                    job: job.clone(),
                    plan: (decision.choice != Choice::Compute).then(|| Document::from_text("{}")),
                    decision: decision.clone().into(),
                    profile: profile.clone().into(),
                });
                Ok(())
            })
            .await
            .unwrap();
        Self { world, worker, epoch: 0, flight: None }
    }

    fn job(&self) -> Job {
        self.world.core.snapshot().jobs[&JobName("j".into())].clone()
    }

    fn decision(&self) -> Decision {
        self.job().decision.unwrap().read().unwrap().clone()
    }

    /// One more epoch that runs as decided, at the given number of rows per second for ten seconds.
    async fn epoch(&mut self, rows_per_s: u64) -> Decision {
        self.epoch_of(rows_per_s, Vec::new()).await
    }

    /// The same with what the stages did.
    async fn epoch_of(&mut self, rows_per_s: u64, stages: Vec<v1::StageStats>) -> Decision {
        let reads = u64::from(self.decision().choice != Choice::Compute);
        let modes = v1::SplitModes { compute: (1 - reads) * 4, get: reads * 4, ..Default::default() };
        self.epoch_in(rows_per_s, stages, modes).await
    }

    /// The same with how the splits were run.
    async fn epoch_in(
        &mut self,
        rows_per_s: u64,
        mut stages: Vec<v1::StageStats>,
        modes: v1::SplitModes,
    ) -> Decision {
        let request = v1::OpenIterationRequest {
            epoch: self.epoch,
            flight: self.flight.is_some(),
            flight_worker_id: self.flight.map_or(0, |_| self.worker),
            ..super::fake::open_request(&definition(), "j")
        };
        self.epoch += 1;
        let opened = self.world.open_flight(request).await.unwrap();
        let task = opened.tasks[0].task_id;
        for no in 1.. {
            if self.world.next(task, self.worker, no, 4).await.unwrap().end {
                break;
            }
        }
        self.world.clock.advance(Duration::from_secs(10));
        let waited = v1::ClientHeartbeatRequest {
            client_id: opened.client_id,
            iteration_id: opened.iteration_id,
            wait_fraction: 0.9,
            secret: opened.client_secret.clone(),
            ..Default::default()
        };
        if self.flight.is_none() {
            self.world.core.clients.client_heartbeat(waited).await.unwrap();
        }
        let output = v1::StageStats {
            name: "output".into(),
            kind: v1::StageKind::Output.into(),
            rows_out: rows_per_s * 10,
            wait_out_s: self.flight.unwrap_or(0.0),
            ..Default::default()
        };
        stages.push(output);
        let ended = v1::FinishTaskRequest {
            task_id: task,
            worker_id: self.worker,
            stages,
            modes: Some(modes),
            secret: self.world.worker_secret(self.worker),
            ..Default::default()
        };
        self.world.core.workers.finish_task(ended).await.unwrap();
        if self.flight.is_none() {
            self.world.beat(opened.client_id, opened.iteration_id, &[task], &[]).await;
            self.world.close(opened.client_id, opened.iteration_id, Vec::new()).await;
        }
        self.decision()
    }
}

fn definition() -> Value {
    json!({"splits": 4, "hints": ["source", "decoded"]})
}

fn hint(decision: &Decision) -> Option<&str> {
    decision.choice.hint()
}

#[test]
fn a_decision_that_keeps_its_promise_stays() {
    run(async {
        let mut w = Replanned::decided(&profile()).await;
        let first = w.decision();
        assert_eq!(hint(&first), Some("decoded"));
        let promised = first.options.iter().find(|o| o.choice == first.choice).unwrap().rows_per_s.unwrap();
        assert!((promised - 3800.0).abs() < 1.0, "{promised}");
        for percent in [100, 90, 80, 105, 85, 100, 95] {
            let now = w.epoch(38 * percent).await;
            assert_eq!(now, first, "{percent} %");
        }
        assert_eq!(w.job().replan.changes, 0);
        assert!(w.job().replan.read_rate.is_some());
    });
}

#[test]
fn a_slow_choice_is_left_and_the_change_can_be_replayed() {
    run(async {
        let mut w = Replanned::decided(&profile()).await;
        let first = w.decision();
        // A twentieth of what was promised. Computing never ran, and is predicted at ten times that.
        assert_eq!(w.epoch(190).await, first, "one epoch is none");
        let second = w.epoch(190).await;
        assert_eq!(second.choice, Choice::Compute, "{second:?}");
        assert!(
            second.reason.starts_with("Measured, not predicted: reading decoded arrow/none gave 190 rows/s."),
            "{}",
            second.reason
        );
        let job = w.job();
        assert_eq!((job.plan.clone(), job.replan.changes, job.replan.left_options.len()), (None, 1, 1));
        let replayed = plan(job.profile.as_ref().unwrap().read().unwrap(), &Policy::Auto);
        assert_eq!(replayed.unwrap().to_json(), **job.decision.as_ref().unwrap().text(), "byte for byte");
        // It stays with that, fast or slow, as long as nothing that is known is better.
        for rate in [2500, 2600, 1000, 2500, 2500, 900, 900] {
            assert_eq!(w.epoch(rate).await, second);
        }
        let mut world = w.world;
        world.restart();
    });
}

/// What the stages of an epoch did in which decoding took so long.
fn decoding(cpu_s_per_row: f64) -> Vec<v1::StageStats> {
    let stage = |name: &str, rows_in, cpu_s_per_row: f64| v1::StageStats {
        name: name.into(),
        rows_in,
        rows_out: 4000,
        bytes_out: 4000 * 500_000,
        cpu_s: 4000.0 * cpu_s_per_row,
        busy_s: 4000.0 * cpu_s_per_row,
        ..Default::default()
    };
    vec![stage("read", 0, 2e-5), stage("decode", 4000, cpu_s_per_row)]
}

/// A profile by which computing is best: the cache's store looks slow.
fn slow_store() -> Profile {
    let mut profile = profile();
    profile.cache_store.read_bytes_per_s = Some(1.0e8);
    profile
}

fn predicted(d: &Decision, name: Option<&str>) -> f64 {
    d.options.iter().find(|o| o.choice.hint() == name).unwrap().rows_per_s.unwrap()
}

#[test]
fn a_stage_that_turns_out_expensive_is_a_reason_to_store_behind_it() {
    run(async {
        let mut w = Replanned::decided(&slow_store()).await;
        let first = w.decision();
        assert_eq!(first.choice, Choice::Compute);
        // The first rows were easy; those of the whole epoch take eight cores 20 ms each.
        for _ in 0..2 {
            w.epoch_of(399, decoding(0.02)).await;
        }
        let second = w.decision();
        assert_eq!(hint(&second), Some("decoded"), "{second:?}");
        assert!((predicted(&second, None) - 399.0).abs() < 1.0, "as it ran: {second:?}");
        // Reading is no faster: back to what is known to be as good, and no further.
        for rate in [200; 12] {
            w.epoch(rate).await;
        }
        assert_eq!(w.decision().choice, Choice::Compute);
        assert_eq!(w.job().replan.changes, 2, "{:?}", w.job().replan);
        assert!(w.decision().reason.contains("computing gave 399 rows/s"), "{}", w.decision().reason);
    });
}

/// Something that no stage counts, a reader of one thread say, would hold up rows that are read as well.
#[test]
fn time_that_no_stage_counts_is_no_reason_to_store() {
    run(async {
        let mut w = Replanned::decided(&slow_store()).await;
        let first = w.decision();
        for _ in 0..6 {
            assert_eq!(w.epoch_of(300, decoding(0.004)).await, first);
        }
    });
}

/// The rates of another job stay known: the next one does not try the slow option again.
#[test]
fn rates_of_earlier_jobs_are_known_to_the_next_one() {
    run(async {
        let mut known = profile();
        let slow = plan(&known, &Policy::Auto).unwrap().choice;
        assert_eq!(slow.hint(), Some("decoded"));
        known.observed = vec![caju_planner::Measured { choice: slow, rows_per_s: 190.0 }];
        let mut w = Replanned::decided(&known).await;
        let first = w.decision();
        assert_eq!(first.choice, Choice::Compute, "{}", first.reason);
        for rate in [1990, 2000, 1980, 2000] {
            assert_eq!(w.epoch(rate).await, first);
        }
    });
}

/// A snapshot that does not fit: a part of it is there, and every epoch tries to write the remainder.
#[test]
fn a_snapshot_that_cannot_be_stored_is_given_up() {
    run(async {
        let mut w = Replanned::decided(&profile()).await;
        let first = w.decision();
        assert_eq!(hint(&first), Some("decoded"));
        let short = v1::SplitModes { compute: 4, put: 3, get: 1, ..Default::default() };
        for _ in 0..4 {
            assert_eq!(w.epoch_in(900, Vec::new(), short).await, first, "it may come yet");
        }
        let then = w.epoch_in(900, Vec::new(), short).await;
        assert_eq!(then.choice, Choice::Compute, "{}", then.reason);
        assert!(then.reason.contains("gave 900 rows/s"), "{}", then.reason);
    });
}

/// Readers of Arrow Flight report nothing: how long rows waited for them counts.
#[test]
fn an_epoch_whose_flight_reader_sets_the_pace_shows_nothing() {
    run(async {
        for (waited_s, shows) in [(9.0, false), (0.1, true)] {
            let mut w = Replanned::decided(&profile()).await;
            w.flight = Some(waited_s);
            for _ in 0..2 {
                w.epoch(190).await;
            }
            assert_eq!(w.job().replan.changes == 1, shows, "{waited_s} s: {:?}", w.job().replan);
        }
    });
}

/// Clients read the rows of all workers before the first of these reports its task: that task is not the whole epoch.
#[test]
fn an_epoch_is_replanned_once_all_its_workers_have_reported() {
    run(async {
        let w = Replanned::decided(&profile()).await;
        let other = w.world.worker("w:2").await;
        let opened =
            w.world.core.epochs.open_iteration(super::fake::open_request(&definition(), "j")).await.unwrap();
        let (client, iteration) = (opened.client_id, opened.iteration_id);
        let tasks: Vec<u64> = opened.tasks.iter().map(|t| t.task_id).collect();
        let mut runs = Vec::new();
        for task in &tasks {
            for worker in [w.worker, other] {
                let mut no = 1;
                // No message goes out about a task that runs elsewhere.
                while w.world.next(*task, worker, no, 2).await.is_ok_and(|a| !a.end) {
                    no += 1;
                }
                if w.world.next(*task, worker, no, 2).await.is_ok() {
                    runs.push((*task, worker));
                }
            }
        }
        assert_eq!(runs.len(), 2, "{tasks:?}");
        w.world.clock.advance(Duration::from_secs(10));
        let waited = v1::ClientHeartbeatRequest {
            client_id: client,
            iteration_id: iteration,
            wait_fraction: 0.9,
            secret: w.world.client_secret(client, iteration),
            ..Default::default()
        };
        w.world.core.clients.client_heartbeat(waited).await.unwrap();
        w.world.beat(client, iteration, &tasks, &[]).await;
        w.world.close(client, iteration, Vec::new()).await;
        for (n, (task, worker)) in runs.into_iter().enumerate() {
            assert_eq!(w.job().replan.read_rate, None, "{n} have reported");
            let output = v1::StageStats {
                name: "output".into(),
                kind: v1::StageKind::Output.into(),
                rows_out: 10_000,
                ..Default::default()
            };
            let ended = v1::FinishTaskRequest {
                task_id: task,
                worker_id: worker,
                stages: vec![output],
                secret: w.world.worker_secret(worker),
                modes: Some(v1::SplitModes { get: 2, ..Default::default() }),
                ..Default::default()
            };
            w.world.core.workers.finish_task(ended).await.unwrap();
        }
        assert_eq!(w.job().replan.read_rate, Some(2_000_000), "both together: {:?}", w.job().replan);
    });
}
