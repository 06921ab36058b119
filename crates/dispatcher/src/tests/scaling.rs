//! The target of workers: what is sampled, and who is notified.

use std::time::Duration;

use caju_planner::ScalingSettings;
use caju_proto::externalscaler::external_scaler_server::ExternalScaler;
use caju_proto::externalscaler::{GetMetricsRequest, ScaledObjectRef};
use caju_proto::v1;
use futures::StreamExt as _;
use serde_json::json;
use tonic::{Code, Request};

use super::fake::{World, open_request};
use crate::keda::KedaScaler;

/// A worker that gives 100 rows/s, and a reader that could take 350.
struct Running {
    world: World,
    worker: u64,
    address: &'static str,
    client: u64,
    iteration: u64,
    task: u64,
    seconds: u64,
    rows: u64,
    /// Rows of these that the worker computed again after a loss, and readers had.
    again: u64,
    busy_s: f64,
    /// Milliseconds of each second in which the reader waits for other consumers.
    consumer_wait_ms_per_s: u64,
}

impl Running {
    async fn new() -> Self {
        Self::on("a:1", v1::TargetWorkers::Auto).await
    }

    /// With the worker at an address, read by a job with a target.
    async fn on(address: &'static str, target: v1::TargetWorkers) -> Self {
        Self::of(address, target, &json!({ "splits": 1000 })).await
    }

    /// With the worker at an address, read by a job with a definition and a target. The worker has reported its first row.
    async fn of(address: &'static str, target: v1::TargetWorkers, definition: &serde_json::Value) -> Self {
        let mut running = Self::opened(address, target, definition).await;
        running.rows = 1;
        running.report(1).await;
        running
    }

    /// Before the worker has reported anything.
    async fn opened(
        address: &'static str,
        target: v1::TargetWorkers,
        definition: &serde_json::Value,
    ) -> Self {
        let world = World::with(|mut config| {
            config.scaling =
                ScalingSettings { scale_down_after: Duration::from_secs(10), ..ScalingSettings::default() };
            config
        });
        let worker = world.worker(address).await;
        let request = v1::OpenIterationRequest {
            priority: Some(7),
            weight: Some(3.0),
            target_workers: target.into(),
            local_workers: vec![address.to_owned()],
            ..open_request(definition, "train")
        };
        let opened = world.core.epochs.open_iteration(request).await.unwrap();
        let (client, iteration, task) = (opened.client_id, opened.iteration_id, opened.tasks[0].task_id);
        Self {
            world,
            worker,
            address,
            client,
            iteration,
            task,
            seconds: 0,
            rows: 0,
            again: 0,
            busy_s: 0.0,
            consumer_wait_ms_per_s: 0,
        }
    }

    /// A report of the worker, of this number of rows.
    async fn report(&self, busy_rows: u64) {
        let served = v1::TaskServed {
            task_id: self.task,
            rows: busy_rows.saturating_sub(self.again),
            busy_rows,
            busy_s: self.busy_s,
            ..Default::default()
        };
        let heartbeat = v1::WorkerHeartbeatRequest {
            worker_id: self.worker,
            address: self.address.into(),
            secret: self.world.worker_secret(self.worker),
            tasks: vec![self.task],
            served: vec![served],
            ..Default::default()
        };
        self.world.core.workers.worker_heartbeat(heartbeat).await.unwrap();
    }

    /// A window of five seconds in which the worker gives the given number of rows per busy second, and the reader takes 350 at most. The
    /// target after it.
    async fn window(&mut self, per_worker: u64) -> u64 {
        let rate = per_worker.min(350);
        self.seconds += 5;
        self.rows += 5 * rate;
        self.busy_s += 5.0 * rate as f64 / per_worker as f64;
        self.world.clock.advance(Duration::from_secs(5));
        self.report(self.rows).await;
        // A reader says its means since it was opened.
        let rows_per_s = self.rows as f64 / self.seconds as f64;
        let consumer_wait_ms = self.consumer_wait_ms_per_s * self.seconds;
        let heartbeat = v1::ClientHeartbeatRequest {
            client_id: self.client,
            iteration_id: self.iteration,
            secret: self.world.client_secret(self.client, self.iteration),
            rows: self.rows,
            rows_per_s,
            wait_fraction: 1.0 - rows_per_s / 350.0,
            consumer_wait_ms,
            ..Default::default()
        };
        self.world.core.clients.client_heartbeat(heartbeat).await.unwrap();
        self.world.core.scaling.sample_for_scaling();
        self.world.core.scaling.scaling_target().borrow().workers
    }
}

#[tokio::test]
async fn the_target_follows_what_workers_and_readers_report() {
    let mut running = Running::new().await;
    assert_eq!([running.window(100).await, running.window(100).await], [4, 4]);
    let status = running.world.core.status.get_status().await.unwrap().scaling.unwrap();
    assert_eq!(status.target_workers, 4);
    assert!(
        status.reason.contains("`train` takes 350 rows/s, of which a worker gives 100"),
        "{}",
        status.reason
    );
    let train = v1::JobWorkers { job: "train".into(), workers: 4, priority: 7, weight: 3.0, share: 3.5 };
    assert_eq!(status.jobs, [train]);
    // From now on rows are read from a snapshot, in half the time: fewer workers, in the same epoch.
    let mut targets = Vec::new();
    for _ in 0..4 {
        targets.push(running.window(200).await);
    }
    assert_eq!(targets, [4, 4, 2, 2]);
    running.world.close(running.client, running.iteration, Vec::new()).await;
    let core = &running.world.core;
    let mut after = Vec::new();
    for _ in 0..3 {
        core.scaling.sample_for_scaling();
        after.push(core.scaling.scaling_target().borrow().workers);
        running.world.clock.advance(Duration::from_secs(5));
    }
    assert_eq!(after, [2, 2, 0]);
}

/// After a loss, workers compute rows again that the reader holds, and give out few: they are as fast as before.
#[tokio::test]
async fn rows_that_are_computed_again_after_a_loss_change_no_target() {
    let mut running = Running::new().await;
    assert_eq!([running.window(100).await, running.window(100).await], [4, 4]);
    for _ in 0..3 {
        running.again += 450;
        assert_eq!(running.window(100).await, 4);
    }
    let status = running.world.core.status.get_status().await.unwrap().scaling.unwrap();
    assert!(status.reason.contains("of which a worker gives 100"), "{}", status.reason);
}

/// A worker in the reader's own process runs in any case: the target counts only the workers that are needed in addition. While
/// there is no other worker, it counts as one; then it counts by its cores.
#[tokio::test]
async fn workers_in_readers_are_not_in_the_target() {
    let mut running = Running::on("memory://reader", v1::TargetWorkers::Auto).await;
    assert_eq!([running.window(100).await, running.window(100).await], [3, 3]);
    // It has two cores, and those that start have eight: it is worth a quarter of one, which gives 400 rows/s.
    let request = v1::RegisterWorkerRequest { address: "b:1".into(), cores: 8, ..Default::default() };
    running.world.core.workers.register_worker(request).await.unwrap();
    let mut targets = Vec::new();
    for _ in 0..4 {
        targets.push(running.window(100).await);
    }
    assert_eq!(targets.last(), Some(&1), "{targets:?}");
    // Alone it is enough for a slow reader.
    let mut enough = Running::on("memory://reader", v1::TargetWorkers::Auto).await;
    assert_eq!([enough.window(400).await, enough.window(400).await], [0, 0]);
    let status = enough.world.core.status.get_status().await.unwrap().scaling.unwrap();
    assert!(status.reason.contains("of which the readers' own cores are 1.0"), "{}", status.reason);
    let train = &status.jobs[0];
    assert_eq!((train.priority, train.weight, train.share), (7, 3.0, 0.0), "also where no worker is needed");
}

/// A reader that reports nothing, as one by Arrow Flight, shows no rates: its job keeps the workers that run.
#[tokio::test]
async fn jobs_whose_readers_report_nothing_keep_the_workers_that_run() {
    let world = World::new();
    let workers = [("a:1", world.worker("a:1").await), ("b:1", world.worker("b:1").await)];
    world.core.scaling.sample_for_scaling();
    assert_eq!(world.core.scaling.scaling_target().borrow().workers, 0, "no job runs");
    world.core.epochs.open_iteration(open_request(&json!({ "splits": 10 }), "train")).await.unwrap();
    for _ in 0..10 {
        world.clock.advance(Duration::from_secs(5));
        for (address, worker_id) in workers {
            let (address, secret) = (address.to_owned(), world.worker_secret(worker_id));
            let heartbeat = v1::WorkerHeartbeatRequest { worker_id, address, secret, ..Default::default() };
            world.core.workers.worker_heartbeat(heartbeat).await.unwrap();
        }
        world.core.scaling.sample_for_scaling();
        assert_eq!(world.core.scaling.scaling_target().borrow().workers, 2);
    }
}

/// One task computes the rows of some pipelines, and a second worker would get none.
#[tokio::test]
async fn a_job_of_one_task_asks_for_one_worker() {
    let definition = json!({ "splits": 1000, "single": true });
    let mut running = Running::of("a:1", v1::TargetWorkers::Auto, &definition).await;
    assert_eq!([running.window(100).await, running.window(100).await], [1, 1]);
    let status = running.world.core.status.get_status().await.unwrap().scaling.unwrap();
    assert!(status.reason.contains("no more can work for it at once than 1.0 workers"), "{}", status.reason);
}

/// More workers do not help a consumer that waits for the others of its job.
#[tokio::test]
async fn waiting_for_other_consumers_asks_for_no_workers() {
    let mut running = Running::new().await;
    // It gets 100 rows/s and waits 5/7 of its time, of which 3/7 are for other consumers: it would take 140.
    running.consumer_wait_ms_per_s = 3000 / 7;
    assert_eq!([running.window(100).await, running.window(100).await], [2, 2]);
    let status = running.world.core.status.get_status().await.unwrap().scaling.unwrap();
    assert!(status.reason.contains("`train` takes 140 rows/s"), "{}", status.reason);
}

/// A worker whose functions load for half a minute computes 100 rows per second afterwards, and not 14.
#[tokio::test]
async fn the_time_in_which_a_worker_loads_says_nothing_about_rows() {
    let mut running = Running::opened("a:1", v1::TargetWorkers::Auto, &json!({ "splits": 1000 })).await;
    running.busy_s = 30.0;
    running.report(0).await;
    running.rows = 3;
    running.report(3).await;
    assert_eq!([running.window(100).await, running.window(100).await], [4, 4]);
    let status = running.world.core.status.get_status().await.unwrap().scaling.unwrap();
    assert!(status.reason.contains("of which a worker gives 100"), "{}", status.reason);
}

/// More workers elsewhere are of no use to a job that reads from those in its own processes alone.
#[tokio::test]
async fn jobs_that_read_local_workers_alone_ask_for_none() {
    let mut running = Running::on("memory://reader", v1::TargetWorkers::Local).await;
    assert_eq!([running.window(100).await, running.window(100).await], [0, 0]);
}

#[tokio::test]
async fn keda_gets_the_target() {
    let mut running = Running::new().await;
    let keda = KedaScaler::new(std::sync::Arc::clone(&running.world.core));
    let object = || Request::new(ScaledObjectRef::default());
    let mut active = keda.stream_is_active(object()).await.unwrap().into_inner();
    assert!(active.next().await.unwrap().unwrap().result, "a job runs");
    running.window(100).await;
    assert!(keda.is_active(object()).await.unwrap().into_inner().result);

    let spec = keda.get_metric_spec(object()).await.unwrap().into_inner().metric_specs.remove(0);
    assert_eq!((spec.target_size, spec.target_size_float), (1, 1.0), "one per worker");
    // KEDA numbers the metrics of its triggers.
    for name in [spec.metric_name.clone(), format!("s0-{}", spec.metric_name)] {
        let request = GetMetricsRequest { scaled_object_ref: None, metric_name: name.clone() };
        let value =
            keda.get_metrics(Request::new(request)).await.unwrap().into_inner().metric_values.remove(0);
        assert_eq!((value.metric_name, value.metric_value, value.metric_value_float), (name, 4, 4.0));
    }
    let request = GetMetricsRequest { scaled_object_ref: None, metric_name: "queue".into() };
    assert_eq!(keda.get_metrics(Request::new(request)).await.unwrap_err().code(), Code::NotFound);
    running.world.core.context.tasks.stop();
    assert!(active.next().await.is_none(), "it ends with the dispatcher");
}

/// A dispatcher that starts again in the middle of an epoch knows no number until workers and readers had the time to report: an
/// error keeps the workers that run. The first number that it names keeps them, too.
#[tokio::test]
async fn keda_gets_no_number_before_workers_and_readers_could_report() {
    let mut running = Running::new().await;
    running.window(100).await;
    for address in ["b:1", "c:1", "d:1"] {
        running.world.worker(address).await;
    }
    assert_eq!(running.window(100).await, 4);
    running.world.restart();
    let core = std::sync::Arc::clone(&running.world.core);
    let keda = KedaScaler::new(std::sync::Arc::clone(&core));
    let object = || Request::new(ScaledObjectRef::default());
    let metric = || GetMetricsRequest { scaled_object_ref: None, metric_name: "caju_target_workers".into() };
    let mut active = keda.stream_is_active(object()).await.unwrap().into_inner();
    assert!(active.next().await.unwrap().unwrap().result);
    for _ in 0..4 {
        assert_eq!(keda.get_metrics(Request::new(metric())).await.unwrap_err().code(), Code::Unavailable);
        assert!(keda.is_active(object()).await.unwrap().into_inner().result);
        assert_eq!(core.scaling.known_target(), None);
        running.world.clock.advance(Duration::from_secs(1));
        core.scaling.sample_for_scaling();
    }
    running.world.clock.advance(Duration::from_secs(1));
    core.scaling.sample_for_scaling();
    let value = keda.get_metrics(Request::new(metric())).await.unwrap().into_inner().metric_values.remove(0);
    assert_eq!(value.metric_value, 4);
}

/// A dispatcher without earlier state does not know who comes back, either. It needs a worker once a job runs.
#[tokio::test]
async fn keda_gets_no_number_in_the_first_seconds() {
    let world = World::new();
    let keda = KedaScaler::new(std::sync::Arc::clone(&world.core));
    let metric = || GetMetricsRequest { scaled_object_ref: None, metric_name: "caju_target_workers".into() };
    let object = || Request::new(ScaledObjectRef::default());
    assert_eq!(keda.get_metrics(Request::new(metric())).await.unwrap_err().code(), Code::Unavailable);
    assert!(!keda.is_active(object()).await.unwrap().into_inner().result);
    let mut active = keda.stream_is_active(object()).await.unwrap().into_inner();
    assert!(!active.next().await.unwrap().unwrap().result, "no job runs");
    world.worker("a:1").await;
    world.core.epochs.open_iteration(open_request(&json!({ "splits": 10 }), "train")).await.unwrap();
    assert!(keda.is_active(object()).await.unwrap().into_inner().result);
    world.clock.advance(Duration::from_secs(5));
    world.core.scaling.sample_for_scaling();
    assert!(active.next().await.unwrap().unwrap().result);
    let value = keda.get_metrics(Request::new(metric())).await.unwrap().into_inner().metric_values.remove(0);
    assert_eq!(value.metric_value, 1);
}

/// `scaling_interval` of zero: no target is computed, and the status names none.
#[tokio::test]
async fn without_an_interval_there_is_no_target() {
    let world = World::with(|mut config| {
        config.timers.scaling_interval = Duration::ZERO;
        config
    });
    assert_eq!(world.core.status.get_status().await.unwrap().scaling, None);
}

/// The priority and the weight that a job was opened with are in the status; a reader that gives others is refused.
#[tokio::test]
async fn a_job_has_the_priority_and_the_weight_of_its_first_reader() {
    let world = World::new();
    world.worker("a:1").await;
    let ask = |priority, weight| v1::OpenIterationRequest {
        priority,
        weight,
        ..open_request(&json!({ "splits": 10 }), "train")
    };
    world.core.epochs.open_iteration(ask(Some(-2), Some(2.5))).await.unwrap();
    world.core.epochs.open_iteration(ask(None, None)).await.unwrap();
    world.core.epochs.open_iteration(ask(Some(-2), Some(2.5))).await.unwrap();
    for (priority, weight, text) in [
        (Some(1), None, "job `train` has the priority -2, not 1"),
        (None, Some(2.0), "job `train` has the weight 2.5, not 2"),
        (None, Some(0.0), "weight 0: expected a number from 0.001"),
        (None, Some(f64::NAN), "weight NaN: expected a number"),
    ] {
        let e = world.core.epochs.open_iteration(ask(priority, weight)).await.unwrap_err();
        assert!(e.message().contains(text), "{e}");
    }
    world.clock.advance(Duration::from_secs(5));
    world.core.scaling.sample_for_scaling();
    let status = world.core.status.get_status().await.unwrap().scaling.unwrap();
    assert_eq!((status.jobs[0].priority, status.jobs[0].weight), (-2, 2.5));
}
