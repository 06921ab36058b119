//! Numbers that a worker tunes while it runs, on real threads, processes and a slow store.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_schema::{DataType, Field, Schema};
use caju_client::{Client, ClientConfig, ReadRequest, Reader};
use caju_functions::{Environment, Pool, PoolConfig};
use caju_kernels::{Limits, Registry};
use caju_pipeline::{DatasetDef, PythonFunction, PythonKind, StageDef, StageOp};
use caju_runtime::{CpuPool, Stores, SystemClock};
use caju_testkit::faulty::{Fault, Faults, Op, Rule, faulty_store};
use caju_wire::schema_to_ipc;
use caju_worker::WorkerConfig;
use object_store::memory::InMemory;
use object_store::path::Path as ObjectPath;
use object_store::{ObjectStoreExt, PutPayload};
use serde_json::json;

use crate::cluster::{Cluster, TEST_TIMEOUT, range, request};

/// A step in these tests: long enough for some calls, short enough for a test.
const STEP: Duration = Duration::from_millis(250);
/// How long a call of the function waits, whatever its rows are.
const CALL: Duration = Duration::from_millis(100);

/// How long the slow store waits before it answers a read.
const READ: Duration = Duration::from_millis(100);

/// Answers each call with its own rows after [`CALL`], and uses nearly no CPU time: a function that waits for a service.
const WAITING_INTERPRETER: &str = r#"#!/bin/sh
echo '{"ready": true}'
while read -r line; do
  case "$line" in
    *'"call"'*)
      rows=${line#*'"rows":"'}; rows=${rows%%'"'*}
      answer=${line#*'"answer":"'}; answer=${answer%%'"'*}
      sleep 0.1
      cp "$rows" "$answer"
      echo '{"took": 0.1}'
  esac
done
"#;

/// Python functions that run in such a process.
fn waiting_functions(folder: &Path) -> Registry {
    let program = folder.join("interpreter");
    std::fs::write(&program, WAITING_INTERPRETER).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config =
        PoolConfig { environment: Environment::Inherited, ..PoolConfig::new(program.to_str().unwrap(), 2) };
    Registry::new(Limits::default()).with_python(Pool::new(config))
}

/// The rows of small files, which pass the function file by file.
fn through_the_function() -> DatasetDef {
    let mut def = DatasetDef::from_json(&small_files()).unwrap();
    let schema = schema_to_ipc(&Schema::new(vec![Field::new("id", DataType::Int64, false)])).unwrap();
    let function = PythonFunction {
        kind: PythonKind::Map,
        name: "ask".into(),
        code: "0a".into(),
        batched: true,
        random: false,
        draws_from: None,
        payload: bytes::Bytes::from_static(b"-"),
        schema: schema.into(),
        timeout: None,
        reads: None,
        keeps: Vec::new(),
    };
    def.stages.push(StageDef { op: StageOp::Python(function) });
    def
}

/// Rows per second in the last second.
struct Rate {
    began: Instant,
    rows: usize,
}

impl Rate {
    /// Reads until rows come at this rate. Returns the time that this took.
    async fn reach(reader: &mut Reader, rows_per_s: f64) -> Duration {
        let start = Instant::now();
        let mut rate = Self { began: start, rows: 0 };
        let reaching = async {
            loop {
                let element = reader.next().await.unwrap().expect("the epoch is long enough");
                rate.rows += element.batch.num_rows();
                let seconds = rate.began.elapsed().as_secs_f64();
                if seconds >= 1.0 {
                    if rate.rows as f64 / seconds >= rows_per_s {
                        return;
                    }
                    rate = Self { began: Instant::now(), rows: 0 };
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, reaching).await.expect("the rate is reached");
        start.elapsed()
    }
}

/// A cluster with one worker that is changed like this.
async fn with_worker(
    stores: Stores,
    registry: Registry,
    change: impl FnOnce(&mut WorkerConfig),
) -> (Cluster, Client) {
    let mut cluster = Cluster::start_over(Arc::new(stores), registry, |_| {}).await;
    let automatic = |config: &mut WorkerConfig| {
        config.tuned.buffer_bytes = None;
        config.tuning_step = STEP;
        change(config);
    };
    cluster.add(automatic).await;
    let config = ClientConfig { prefetch_bytes: 1 << 20, ..ClientConfig::default() };
    let client = Client::connect(&cluster.address(), config).await.unwrap();
    (cluster, client)
}

fn setting(cluster: &Cluster, name: &str) -> (u64, String) {
    let settings = cluster.workers[0].settings();
    let found = settings.into_iter().find(|s| s.name == name).expect(name);
    (found.value, found.reason)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_grow_until_rows_that_wait_do_not_matter() {
    let folder = tempfile::tempdir().unwrap();
    let pool = CpuPool::elastic(2).unwrap();
    let given = pool.clone();
    let (stores, functions) = (store(3000, None).await, waiting_functions(folder.path()));
    let (cluster, client) = with_worker(stores, functions, |config| config.pool = Some(given)).await;
    let request = ReadRequest { job: "waits".into(), ..ReadRequest::of(through_the_function()) };
    let mut reader = client.read(request).await.unwrap();
    // Two threads make two calls at once at most.
    let two_threads = 2.0 * 10.0 / CALL.as_secs_f64();
    Rate::reach(&mut reader, 3.0 * two_threads).await;
    let (threads, reason) = setting(&cluster, "cpu_threads");
    assert!(threads >= 6 && pool.running_threads() >= 6, "{threads}: {reason}");
    assert!(!reason.is_empty());
    let shown = client.status().await.unwrap().workers[0].tuned.clone();
    assert!(shown.iter().any(|s| s.name == "cpu_threads" && s.value > 2), "{shown:?}");
}

/// Small files in a store that waits before it answers a read.
async fn store(files: usize, delay: Option<Duration>) -> Stores {
    let store = Arc::new(InMemory::new());
    for i in 0..files {
        let rows: String = (0..10).map(|row| format!("{{\"id\": {}}}\n", 10 * i + row)).collect();
        store.put(&ObjectPath::from(format!("{i:05}.jsonl")), PutPayload::from(rows)).await.unwrap();
    }
    let faults = Faults::new();
    if let Some(delay) = delay {
        faults.add(Rule::new(Op::Get, Fault::Delay(delay, SystemClock::shared())).always());
    }
    let stores = Stores::default();
    stores.register("memory://slow", Arc::new(faulty_store(store, faults))).unwrap();
    stores
}

fn small_files() -> serde_json::Value {
    json!({"source": {"json": {"path": "memory://slow/*.jsonl", "schema": {"id": "int64"}}}, "steps": []})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_splits_are_read_until_the_latency_of_their_store_does_not_matter() {
    let registry = Registry::new(Limits::default());
    let (cluster, client) = with_worker(store(6000, Some(READ)).await, registry, |_| {}).await;
    let mut reader = client.read(request(&small_files(), "slow")).await.unwrap();
    // Three readers read a file at a time each.
    let three_readers = 3.0 * 10.0 / READ.as_secs_f64();
    Rate::reach(&mut reader, 3.0 * three_readers).await;
    let (readers, reason) = setting(&cluster, "readers");
    assert!(readers >= 9, "{readers}: {reason}");
    // The pool is not elastic: its threads were given by hand.
    assert_eq!(setting(&cluster, "cpu_threads"), (2, "given by hand".to_string()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_given_by_hand_stay() {
    let registry = Registry::new(Limits::default());
    let (cluster, client) =
        with_worker(store(60, Some(READ)).await, registry, |config| config.tuned.readers = Some(2)).await;
    let mut reader = client.read(request(&small_files(), "slow")).await.unwrap();
    let began = Instant::now();
    while reader.next().await.unwrap().is_some() {}
    // 60 reads of 100 ms, two at a time.
    assert!(began.elapsed() >= Duration::from_secs(3), "{:?}", began.elapsed());
    assert_eq!(setting(&cluster, "readers"), (2, "given by hand".to_string()));
}

/// Four jobs fill their queues, which share one memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_stay_within_the_memory_of_the_worker() {
    const LIMIT: usize = 256 << 10;
    let registry = Registry::new(Limits::default());
    let (cluster, client) = with_worker(Stores::default(), registry, |config| {
        config.tuned.buffer_memory_bytes = LIMIT;
        config.tuning_step = Duration::from_millis(20);
    })
    .await;
    let def = range(10_000_000, &[json!({"batch": 512}), json!({"prefetch": 1000})]);
    let mut readers = Vec::new();
    for job in ["a", "b", "c", "d"] {
        let mut reader = client.read(request(&def, job)).await.unwrap();
        reader.next().await.unwrap();
        readers.push(reader);
    }
    let worker = &cluster.workers[0];
    // Eight engine batches of 256 numbers.
    let one_chunk = 8 * 256 * 8;
    let dividing = async {
        loop {
            for reader in &mut readers {
                reader.next().await.unwrap();
            }
            let (queues, limit) = worker.queues();
            assert_eq!(limit, LIMIT);
            let held: usize = queues.iter().map(|q| q.held_bytes).sum();
            assert!(held <= LIMIT + queues.len() * one_chunk, "{held} bytes: {queues:?}");
            // The first jobs took it all, and gave of it to the others.
            let least = queues.iter().map(|q| q.bound_bytes).min().unwrap();
            if least >= LIMIT / queues.len() / 2 {
                return;
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, dividing).await.expect("the queues divide the memory");
}
