//! KEDA's and the horizontal pod autoscaler's part, played by a client of KEDA's protocol that starts and ends real workers.

use std::time::{Duration, Instant};

use caju_proto::externalscaler::external_scaler_client::ExternalScalerClient;
use caju_proto::externalscaler::{GetMetricsRequest, ScaledObjectRef};
use caju_tests::pipeline::Report;
use caju_tests::{Cluster, Pipeline};
use serde_json::json;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Relative deviation that the autoscaler ignores.
const TOLERANCE: f64 = 0.1;
/// The window whose highest wish counts where replicas are taken away: 300 s in Kubernetes, at a hundredth here.
const STABILISATION: Duration = Duration::from_secs(3);

/// The horizontal pod autoscaler with its defaults, between 1 and `most` replicas.
struct Autoscaler {
    most: u64,
    wishes: Vec<(Instant, u64)>,
}

impl Autoscaler {
    /// The replicas after it has seen a metric, of which each replica is to have `each` (an AverageValue target).
    fn decide(&mut self, now: Instant, replicas: u64, metric: f64, each: f64) -> u64 {
        let ratio = metric / (each * replicas as f64);
        let wanted = match (ratio - 1.0).abs() <= TOLERANCE {
            true => replicas,
            false => (metric / each).ceil() as u64,
        };
        self.wishes.push((now, wanted));
        self.wishes.retain(|(at, _)| now.duration_since(*at) <= STABILISATION);
        let stable = self.wishes.iter().map(|(_, n)| *n).max().unwrap_or(wanted);
        // At most twice as many, or four more.
        let up = (2 * replicas).max(replicas + 4);
        if wanted > replicas { wanted.min(up).min(self.most) } else { stable.min(replicas).max(1) }
    }
}

/// KEDA, which starts the first replica and ends the last one, and asks for the metric of the autoscaler.
struct Keda {
    scaler: ExternalScalerClient<Channel>,
    autoscaler: Autoscaler,
}

impl Keda {
    async fn wish(&mut self, replicas: u64) -> u64 {
        let object = ScaledObjectRef { name: "caju-worker".into(), ..Default::default() };
        let active = self.scaler.is_active(object.clone()).await.unwrap().into_inner().result;
        if !active || replicas == 0 {
            return u64::from(active);
        }
        let spec =
            self.scaler.get_metric_spec(object.clone()).await.unwrap().into_inner().metric_specs.remove(0);
        let request = GetMetricsRequest { scaled_object_ref: Some(object), metric_name: spec.metric_name };
        let value = match self.scaler.get_metrics(request).await {
            Ok(answer) => answer.into_inner().metric_values.remove(0),
            // The dispatcher has just started. Without a metric the autoscaler changes nothing.
            Err(e) if e.code() == Code::Unavailable => return replicas,
            Err(e) => panic!("{e}"),
        };
        self.autoscaler.decide(Instant::now(), replicas, value.metric_value_float, spec.target_size_float)
    }
}

/// The tolerance, the limit of a rise and the stabilisation window of a fall, with numbers at which each of them matters.
#[test]
fn the_formula_of_the_autoscaler_is_that_of_kubernetes() {
    let begin = Instant::now();
    let at = |seconds: f64| begin + Duration::from_secs_f64(seconds);
    let mut autoscaler = Autoscaler { most: 40, wishes: Vec::new() };
    let rise: Vec<u64> = (0..5)
        .scan(1, |replicas, _| {
            *replicas = autoscaler.decide(at(0.0), *replicas, 33.0, 1.0);
            Some(*replicas)
        })
        .collect();
    assert_eq!(rise, [5, 10, 20, 33, 33], "four more, or twice as many");
    // 30 is within a tenth of 33, and 29 is not. It falls when the higher wishes are older than the window.
    assert_eq!(autoscaler.decide(at(3.5), 33, 30.0, 1.0), 33);
    assert_eq!(autoscaler.decide(at(4.0), 33, 29.0, 1.0), 33);
    assert_eq!(autoscaler.decide(at(7.0), 33, 29.0, 1.0), 29);
    assert_eq!(autoscaler.decide(at(8.0), 29, 99.0, 1.0), 40, "no more than the most");
}

/// The standard health service answers at dispatcher and worker, as the probes of the manifests ask for it.
#[test]
fn servers_answer_health_checks() {
    let cluster = Cluster::start(1);
    for address in [cluster.address(), &cluster.workers[0].address] {
        let address = format!("http://{address}");
        let (whole, one, watched) = tokio::runtime::Runtime::new().unwrap().block_on(async {
            let mut health =
                HealthClient::new(Channel::from_shared(address).unwrap().connect().await.unwrap());
            let of = |service: &str| HealthCheckRequest { service: service.into() };
            let whole = health.check(of("")).await.unwrap().into_inner().status();
            let one = health.check(of("caju.v1.Dispatcher")).await.unwrap_err().code();
            let mut watch = health.watch(of("")).await.unwrap().into_inner();
            (whole, one, watch.message().await.unwrap().unwrap().status())
        });
        assert_eq!((whole, one, watched), (ServingStatus::Serving, Code::NotFound, ServingStatus::Serving));
    }
    cluster.stop();
}

/// KEDA's trigger `external-push` listens to this call, and starts the first worker when a job runs.
#[test]
fn keda_learns_when_a_job_begins_and_when_none_runs_any_more() {
    let cluster =
        Cluster::start_with(0, &["--scaling-interval", "200ms", "--scale-down-after", "500ms"], &[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = format!("http://{}", cluster.address());
    let mut keda = runtime.block_on(ExternalScalerClient::connect(address)).unwrap();
    let object = ScaledObjectRef { name: "caju-worker".into(), ..Default::default() };
    let mut answers = runtime.block_on(keda.stream_is_active(object)).unwrap().into_inner();
    let mut next_answer = || {
        let next = async { tokio::time::timeout(Duration::from_secs(60), answers.message()).await };
        runtime.block_on(next).expect("an answer within a minute").unwrap().map(|answer| answer.result)
    };
    assert_eq!(next_answer(), Some(false), "the state as the call begins");
    let p = Pipeline::of(json!({ "range": 10 }), json!([]));
    let reader = cluster.start_read(&p, &["--job", "train"]);
    assert_eq!(next_answer(), Some(true), "a job waits for its first worker");
    reader.signal("INT");
    reader.wait_for_end();
    assert_eq!(next_answer(), Some(false), "its reader has left");
    cluster.stop();
    assert_eq!(next_answer(), None, "the call ends with the dispatcher");
}

/// From no worker to the target and back to none, while a job reads its epoch: each row comes once.
#[test]
fn the_autoscaler_of_kubernetes_follows_the_target() {
    let mut cluster = Cluster::start_with(
        0,
        &["--scaling-interval", "500ms", "--max-workers", "3", "--scale-down-after", "1s"],
        &[],
    );
    let mut p = Pipeline::of(
        json!({ "csv": { "path": "*.csv" } }),
        json!([{ "sleep": { "per_row": "10ms" } }, { "batch": 10 }]),
    );
    for file in 0..60 {
        let rows: String = (0..10).map(|row| format!("{}\n", file * 10 + row)).collect();
        p = p.with_file(&format!("{file:02}.csv"), format!("id\n{rows}").as_bytes());
    }
    let wanted = p.report(&[]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = format!("http://{}", cluster.address());
    let scaler = runtime.block_on(ExternalScalerClient::connect(address)).unwrap();
    let mut keda = Keda { scaler, autoscaler: Autoscaler { most: 3, wishes: Vec::new() } };
    assert_eq!(runtime.block_on(keda.wish(0)), 0, "no job runs");

    let mut reader = Some(cluster.start_read(&p, &["--job", "train", "--report", "read.json"]));
    let (mut path, began) = (vec![0], Instant::now());
    while reader.is_some() || !cluster.workers.is_empty() {
        assert!(began.elapsed() < Duration::from_secs(240), "{path:?}");
        let replicas = cluster.workers.len() as u64;
        let wish = runtime.block_on(keda.wish(replicas));
        for _ in replicas..wish {
            cluster.add_worker(&[]);
        }
        for _ in wish..replicas {
            // The kubelet sends SIGTERM, and waits for the drain.
            cluster.workers.pop().unwrap().terminate().expect_code(0);
        }
        if wish != replicas {
            path.push(wish);
        }
        // KEDA pauses between two questions, too.
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(100)).await });
        reader = reader.take().and_then(|r| match r.has_ended() {
            true => {
                r.wait().expect_code(0);
                None
            }
            false => Some(r),
        });
    }
    assert!(path.starts_with(&[0, 1, 3]) && path.ends_with(&[0]), "{path:?}");
    let report = Report::load(&p.folder().join("read.json"));
    assert_eq!(report.rows(), [600]);
    assert_eq!(report.checksums(), wanted.checksums());
    cluster.stop();
}
