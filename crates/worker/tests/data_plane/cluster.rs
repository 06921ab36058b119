//! A dispatcher, workers and clients in one process, over real sockets.

use std::sync::Arc;
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, RecordBatch};
use caju_client::{Client, ClientConfig, ReadRequest, Reader};
use caju_dispatcher::{Catalog, Dispatcher, DispatcherConfig, DispatcherHandle, EngineCatalog, Timers};
use caju_kernels::{Limits, Registry};
use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, IoCounters, Stores};
use caju_sources::SourceContext;
use caju_types::Result;
use caju_wire::LocalWorkers;
use caju_worker::{Worker, WorkerConfig, WorkerHandle};
use serde_json::{Value, json};

/// Long enough for a loaded machine; nothing waits for it to pass.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    pub(crate) dispatcher: DispatcherHandle,
    pub(crate) workers: Vec<WorkerHandle>,
    pub(crate) local: LocalWorkers,
    pub(crate) stores: Arc<Stores>,
    registry: Registry,
    pub(crate) pool: CpuPool,
}

impl Cluster {
    pub(crate) async fn start(workers: usize) -> Self {
        Self::start_with(workers, |_| {}).await
    }

    pub(crate) async fn start_with(workers: usize, change: impl FnOnce(&mut DispatcherConfig)) -> Self {
        let mut cluster =
            Self::start_over(Arc::new(Stores::default()), Registry::new(Limits::default()), change).await;
        for _ in 0..workers {
            cluster.add(|_| {}).await;
        }
        cluster
    }

    /// Without workers, over the given stores and functions.
    pub(crate) async fn start_over(
        stores: Arc<Stores>,
        registry: Registry,
        change: impl FnOnce(&mut DispatcherConfig),
    ) -> Self {
        let ctx = SourceContext::new(Arc::clone(&stores), Arc::new(IoCounters::new()));
        let catalog = EngineCatalog::new(registry.clone(), ctx);
        Self::start_on(Arc::new(catalog), (stores, registry), change).await
    }

    /// As [`Cluster::start_over`], with this catalog.
    pub(crate) async fn start_on(
        catalog: Arc<dyn Catalog>,
        (stores, registry): (Arc<Stores>, Registry),
        change: impl FnOnce(&mut DispatcherConfig),
    ) -> Self {
        let timers = Timers {
            heartbeat: Duration::from_millis(50),
            worker_timeout: Duration::from_millis(800),
            check_every: Duration::from_millis(20),
            ..Timers::default()
        };
        let mut config = DispatcherConfig { timers, ..DispatcherConfig::default() };
        change(&mut config);
        let dispatcher = Dispatcher::start(config, catalog).await.unwrap();
        let pool = CpuPool::new(2).unwrap();
        Self { dispatcher, workers: Vec::new(), local: LocalWorkers::new(), stores, registry, pool }
    }

    pub(crate) fn address(&self) -> String {
        self.dispatcher.address().to_string()
    }

    pub(crate) async fn add(&mut self, change: impl FnOnce(&mut WorkerConfig)) {
        let mut config = WorkerConfig::new(self.address(), Arc::clone(&self.stores));
        config.registry = self.registry.clone();
        config.pool = Some(self.pool.clone());
        config.linger = Duration::from_secs(20);
        config.tuned.buffer_bytes = Some(64 << 10);
        config.batch_rows = Some(256);
        change(&mut config);
        self.workers.push(Worker::start(config).await.unwrap());
    }

    pub(crate) async fn client(&self) -> Client {
        self.client_with(|_| {}).await
    }

    pub(crate) async fn client_with(&self, change: impl FnOnce(&mut ClientConfig)) -> Client {
        let mut config = ClientConfig { prefetch_bytes: 32 << 10, ..ClientConfig::default() };
        change(&mut config);
        Client::connect(&self.address(), config).await.unwrap()
    }

    /// Bytes that wait in the workers' tasks.
    pub(crate) fn buffered(&self) -> usize {
        self.workers.iter().map(WorkerHandle::buffered_bytes).sum()
    }

    pub(crate) async fn read(&self, def: &Value) -> Reader {
        self.client().await.read(request(def, "")).await.unwrap()
    }
}

pub(crate) fn range(rows: u64, steps: &[Value]) -> Value {
    json!({"source": {"range": {"start": 0, "end": rows, "step": 1}}, "steps": steps})
}

pub(crate) fn request(def: &Value, job: &str) -> ReadRequest {
    let def = DatasetDef::from_json(def).unwrap();
    ReadRequest { job: job.to_string(), ..ReadRequest::of(def) }
}

pub(crate) fn ids(batch: &RecordBatch) -> Vec<i64> {
    let column = batch.column_by_name("id").unwrap();
    assert_eq!(column.null_count(), 0);
    column.as_primitive::<Int64Type>().values().to_vec()
}

/// Reads to the end: the ids of every element.
pub(crate) async fn drain(reader: &mut Reader) -> Result<Vec<Vec<i64>>> {
    let all = async {
        let mut out = Vec::new();
        while let Some(e) = reader.next().await? {
            out.push(ids(&e.batch));
        }
        Ok(out)
    };
    tokio::time::timeout(TEST_TIMEOUT, all).await.expect("the epoch must end")
}

/// The next elements of a reader; fewer at its end.
pub(crate) async fn take_of(reader: &mut Reader, elements: usize) -> Vec<Vec<i64>> {
    let mut out = Vec::new();
    while out.len() < elements {
        let next = tokio::time::timeout(TEST_TIMEOUT, reader.next()).await.expect("an element").unwrap();
        let Some(element) = next else { break };
        out.push(ids(&element.batch));
    }
    out
}

#[track_caller]
pub(crate) fn assert_once(elements: impl IntoIterator<Item = Vec<i64>>, rows: i64) {
    let mut all: Vec<i64> = elements.into_iter().flatten().collect();
    all.sort_unstable();
    let n = all.len();
    all.dedup();
    assert_eq!(n, all.len(), "rows came twice");
    let missing: Vec<i64> = (0..rows).filter(|i| all.binary_search(i).is_err()).collect();
    assert!(
        missing.is_empty(),
        "{} rows are missing: {:?}...",
        missing.len(),
        &missing[..missing.len().min(10)]
    );
    assert_eq!(all.len() as i64, rows, "foreign rows");
}
