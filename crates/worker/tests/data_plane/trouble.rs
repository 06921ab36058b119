//! Workers that die, readers that leave, and bad input.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use caju_client::{Client, ClientConfig, ReaderEvent};
use caju_types::ErrorKind;
use caju_worker::{Worker, WorkerConfig};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::cluster::{Cluster, TEST_TIMEOUT, assert_once, drain, ids, range, request};

const ROWS: i64 = 30_000;

fn slow(size: u64) -> serde_json::Value {
    // Slow enough that there is a middle of the epoch.
    range(
        ROWS as u64,
        &[json!({"sleep": {"per_row": "20us"}}), json!({"batch": {"size": size, "drop_remainder": false}})],
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_workers_cost_no_row_and_double_none() {
    let mut cluster = Cluster::start(3).await;
    let losses = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&losses);
    let client = cluster
        .client_with(|c| {
            c.dial_timeout = Duration::from_millis(200);
            c.on_event = Some(Arc::new(move |e| {
                if matches!(e, ReaderEvent::TaskLost { .. }) {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }));
        })
        .await;
    let mut reader = client.read(request(&slow(48), "")).await.unwrap();
    let mut elements = Vec::new();
    for kill_at in [3_000, 9_000] {
        let mut have = elements.iter().map(Vec::len).sum::<usize>();
        while have < kill_at {
            let e = tokio::time::timeout(TEST_TIMEOUT, reader.next()).await.unwrap().unwrap().unwrap();
            have += e.batch.num_rows();
            elements.push(ids(&e.batch));
        }
        cluster.workers.remove(0).kill();
    }
    elements.extend(drain(&mut reader).await.unwrap());
    assert!(losses.load(Ordering::Relaxed) >= 1, "a task was lost on the way");
    let short = elements.iter().filter(|e| e.len() != 48).count();
    assert_eq!(short, 0, "30,000 = 625 full batches, whoever died");
    assert_once(elements, ROWS);
    assert_eq!(reader.stats().duplicate_rows, 0, "nothing was even sent twice");
}

/// Every element of a definition, in order. The worker that runs its one task is killed `kills` times meanwhile.
async fn in_order(def: &serde_json::Value, workers: usize, kills: usize) -> Vec<Vec<i64>> {
    let mut cluster = Cluster::start(workers).await;
    let client = cluster.client_with(|c| c.dial_timeout = Duration::from_millis(200)).await;
    let mut reader = client.read(request(def, "")).await.unwrap();
    let mut elements = Vec::new();
    for _ in 0..kills {
        for _ in 0..30 {
            let e = tokio::time::timeout(TEST_TIMEOUT, reader.next()).await.unwrap().unwrap().unwrap();
            elements.push(ids(&e.batch));
        }
        let busy = cluster.workers.iter().position(|w| !w.tasks().is_empty()).expect("a task runs");
        cluster.workers.remove(busy).kill();
    }
    elements.extend(drain(&mut reader).await.unwrap());
    elements
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_deterministic_order_and_batches_are_the_same_whoever_dies() {
    let shuffled = |seed: u64| {
        let steps = json!([
            {"sleep": {"per_row": "20us"}}, {"shuffle": {"buffer": 500, "seed": seed}}, {"batch": {"size": 48}},
        ]);
        json!({"source": {"range": {"start": 0, "end": ROWS, "step": 1}}, "steps": steps, "deterministic": true})
    };
    let whole = in_order(&shuffled(7), 1, 0).await;
    assert!(whole.iter().all(|e| e.len() == 48), "30,000 = 625 full batches");
    assert_eq!(in_order(&shuffled(7), 3, 2).await, whole, "after two kills");
    assert_ne!(in_order(&shuffled(8), 2, 0).await, whole);
    assert_once(whole, ROWS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_are_counted_stay_whole_whoever_dies() {
    let def = range(
        ROWS as u64,
        &[json!({"sleep": {"per_row": "20us"}}), json!({"batch": 7}), json!({"take": 900})],
    );
    let whole = in_order(&def, 1, 0).await;
    assert_eq!(whole.concat(), (0..6300).collect::<Vec<i64>>());
    assert_eq!(in_order(&def, 2, 1).await, whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_leaves_hands_its_work_over() {
    let mut cluster = Cluster::start(2).await;
    let mut reader = cluster.read(&slow(10)).await;
    let mut elements = Vec::new();
    for _ in 0..100 {
        elements.push(ids(&reader.next().await.unwrap().unwrap().batch));
    }
    let leaving = cluster.workers.remove(0);
    let (_, rest) = tokio::join!(leaving.drain(Duration::from_millis(50)), drain(&mut reader));
    elements.extend(rest.unwrap());
    assert_once(elements, ROWS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_leaving_reader_did_not_take_goes_to_the_others() {
    let cluster = Cluster::start(2).await;
    let client = cluster.client().await;
    let def = slow(25);
    let mut a = client.read(request(&def, "job")).await.unwrap();
    let mut b = client.read(request(&def, "job")).await.unwrap();
    let mut elements = Vec::new();
    for _ in 0..40 {
        elements.push(ids(&a.next().await.unwrap().unwrap().batch));
    }
    a.close().await;
    elements.extend(drain(&mut b).await.unwrap());
    assert_once(elements, ROWS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_one_clear_error() {
    let cluster = Cluster::start(2).await;
    let steps = [json!({"map": {"id": "cast(concat('x', cast(id as varchar)) as bigint)"}})];
    let mut reader = cluster.read(&range(5000, &steps)).await;
    let e = drain(&mut reader).await.unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::InvalidArgument | ErrorKind::DataLoss), "{:?}: {e}", e.kind());
    assert!(e.message().contains("map"), "the stage is named: {e}");
    let again = drain(&mut reader).await.unwrap_err();
    assert_eq!(again.message(), e.message(), "it stays failed");
    let unknown = range(10, &[json!({"map": {"y": "nosuch"}})]);
    let e = cluster.client().await.read(request(&unknown, "")).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn absent_dispatchers_and_workers_are_named() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = ClientConfig { connect_timeout: Duration::from_millis(100), ..ClientConfig::default() };
    let e = Client::connect(&port.to_string(), config).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable);
    assert!(e.message().contains(&format!("no dispatcher at {port}")), "{e}");

    let cluster = Cluster::start(0).await;
    let mut config = WorkerConfig::new(port.to_string(), Arc::clone(&cluster.stores));
    config.connect_timeout = Duration::from_millis(100);
    let e = Worker::start(config).await.unwrap_err();
    assert!(e.message().contains("no dispatcher at"), "{e}");

    let client = cluster.client_with(|c| c.worker_timeout = Duration::from_millis(150)).await;
    let mut reader = client.read(request(&range(10, &[]), "")).await.unwrap();
    let e = drain(&mut reader).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable);
    assert!(e.message().contains("no worker registered") && e.message().contains("caju worker"), "{e}");

    let mut config = WorkerConfig::new(cluster.address(), Arc::clone(&cluster.stores));
    config.listen = cluster.address();
    let e = Worker::start(config).await.unwrap_err();
    assert!(e.message().contains("in use"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_on_the_port_harm_nobody() {
    let cluster = Cluster::start(1).await;
    let address = cluster.workers[0].address().to_string();
    for bytes in [
        &b"CAJU garbage that is no frame at all............"[..],
        b"C",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01",
    ] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        drop(tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut answer)).await.unwrap());
    }
    let mut reader = cluster.read(&range(2000, &[])).await;
    assert_once(drain(&mut reader).await.unwrap(), 2000);
}

/// Forwards connections to `target`; the first ones are cut after the given numbers of bytes from there. `swallows`: none of these reach
/// the client.
async fn flaky_proxy(target: String, cuts: Vec<u64>, swallows: bool) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let tasks = caju_runtime::Tasks::new();
    let forward = async move {
        let mut cuts = cuts.into_iter();
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let worker = tokio::net::TcpStream::connect(&target).await.unwrap();
            let limit = cuts.next();
            tasks.background("a connection", caju_runtime::log_failure, async move {
                let (mut up, mut to_client) = client.into_split();
                let (from_worker, mut to_worker) = worker.into_split();
                let mut from_worker = from_worker.take(limit.unwrap_or(u64::MAX));
                if swallows && limit.is_some() {
                    let mut sink = tokio::io::sink();
                    tokio::select! {
                        _ = tokio::io::copy(&mut up, &mut to_worker) => {}
                        _ = tokio::io::copy(&mut from_worker, &mut sink) => {}
                    }
                    return Ok(());
                }
                tokio::select! {
                    _ = tokio::io::copy(&mut up, &mut to_worker) => {}
                    _ = tokio::io::copy(&mut from_worker, &mut to_client) => {}
                }
                Ok(())
            });
        }
    };
    let all = caju_runtime::Tasks::new();
    all.background("a flaky proxy", caju_runtime::log_failure, forward);
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_within_a_frame_cost_no_row() {
    let mut cluster = Cluster::start(0).await;
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let proxy = flaky_proxy(port.clone(), vec![10, 700, 5_000, 40_001], false).await;
    cluster
        .add(|c| {
            c.listen = port;
            c.advertise = Some(proxy);
        })
        .await;
    let def = range(ROWS as u64, &[json!({"batch": {"size": 100, "drop_remainder": true}})]);
    let mut reader = cluster.read(&def).await;
    let elements = drain(&mut reader).await.unwrap();
    assert!(elements.iter().all(|e| e.len() == 100));
    assert_once(elements, ROWS);
}

/// A client that has received nothing connects again, and does not know that rows were on their way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_before_the_first_frame_arrives_cost_no_row() {
    let mut cluster = Cluster::start(0).await;
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let proxy = flaky_proxy(port.clone(), vec![5_000], true).await;
    cluster
        .add(|c| {
            c.listen = port;
            c.advertise = Some(proxy);
        })
        .await;
    let mut reader = cluster.read(&range(ROWS as u64, &[json!({"batch": 100})])).await;
    assert_once(drain(&mut reader).await.unwrap(), ROWS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dispatcher_that_stays_away_is_an_error_in_time() {
    let mut cluster = Cluster::start(0).await;
    cluster.add(|c| c.dispatcher_timeout = Duration::from_millis(300)).await;
    let client = cluster.client_with(|c| c.dispatcher_timeout = Duration::from_millis(300)).await;
    let mut reader = client.read(request(&slow(100), "")).await.unwrap();
    let mut rows = reader.next().await.unwrap().unwrap().batch.num_rows();
    let Cluster { dispatcher, workers, .. } = cluster;
    dispatcher.shutdown().await;
    let e = loop {
        match tokio::time::timeout(TEST_TIMEOUT, reader.next()).await.unwrap() {
            Ok(Some(e)) => rows += e.batch.num_rows(),
            Ok(None) => panic!("a silent end after {rows} rows"),
            Err(e) => break e,
        }
    };
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    assert!(e.message().contains("dispatcher"), "{e}");
    drop(workers);
}

/// A clock whose wait of 77 ms panics: so does a task that runs a `sleep` of that length.
#[derive(Debug)]
struct Faulty(Arc<dyn caju_runtime::Clock>);

#[async_trait::async_trait]
impl caju_runtime::Clock for Faulty {
    fn now(&self) -> Duration {
        self.0.now()
    }

    fn unix_time(&self) -> Duration {
        self.0.unix_time()
    }

    async fn sleep(&self, duration: Duration) {
        assert!(duration != Duration::from_millis(77), "the clock broke down");
        self.0.sleep(duration).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_panics_fails_its_epoch_for_every_reader() {
    let mut cluster = Cluster::start(0).await;
    cluster.add(|config| config.clock = Arc::new(Faulty(Arc::clone(&config.clock)))).await;
    let def = range(1000, &[json!({"batch": {"size": 1000}}), json!({"sleep": {"per_batch": "77ms"}})]);
    for attempt in 0..2 {
        let mut reader = cluster.client().await.read(request(&def, &format!("job-{attempt}"))).await.unwrap();
        let e = drain(&mut reader).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Internal, "{e}");
        assert!(e.message().contains("the clock broke down"), "{e}");
    }
    cluster.workers[0].idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_whose_connection_panics_gets_an_error() {
    let cluster = Cluster::start(1).await;
    let client = cluster
        .client_with(|c| {
            c.on_event = Some(Arc::new(|e| {
                assert!(!matches!(e, ReaderEvent::TaskOpened { .. }), "the listener broke down");
            }));
        })
        .await;
    let mut reader = client.read(request(&range(1000, &[]), "")).await.unwrap();
    let e = drain(&mut reader).await.unwrap_err();
    assert!(e.message().contains("the listener broke down"), "{e}");
}
