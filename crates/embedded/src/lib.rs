//! A whole cluster in one process: what `caju run` starts, for every program that wants to read a pipeline
//! without servers of its own.
//!
//! The rooms are the same as in a distributed cluster; only chunks are handed over in memory.
//!
//! ```no_run
//! # async fn example(def: caju_pipeline::DatasetDef) -> caju_types::Result<()> {
//! use std::sync::Arc;
//! use caju_client::{ClientConfig, ReadRequest};
//! use caju_embedded::{Cluster, ClusterConfig};
//! use caju_runtime::{CpuPool, Stores};
//! let cluster = Cluster::start(ClusterConfig::new(Arc::new(Stores::default()), CpuPool::new(4)?)).await?;
//! let client = cluster.client(ClientConfig::default()).await?;
//! let mut reader = client.read(ReadRequest::of(def)).await?;
//! while let Some(element) = reader.next().await? {
//!     println!("{} rows", element.batch.num_rows());
//! }
//! cluster.stop().await;
//! # Ok(()) }
//! ```

mod saves;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use caju_cache::CacheOptions;
use caju_client::{Client, ClientConfig};
use caju_dispatcher::{Dispatcher, DispatcherConfig, DispatcherHandle, EngineCatalog, Timers};
use caju_engine::source::{SourceContext, SourceLimits};
use caju_kernels::{Limits, Registry};
use caju_runtime::{CpuPool, IoCounters, Stores, SystemClock};
use caju_types::Result;
use caju_wire::{IN_PROCESS, LocalWorkers};
use caju_worker::{Caches, Worker, WorkerConfig, WorkerHandle};

pub use saves::SaveDriver;

/// Within one process silence means a busy machine, not a lost worker.
const SILENCE: Duration = Duration::from_secs(120);
/// Often enough for a lively progress bar.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// How long calls may take to end when the cluster stops.
const DRAIN: Duration = Duration::from_secs(2);

/// What a cluster is started with.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Workers; all compute on the same threads.
    pub workers: u32,
    /// Threads that compute.
    pub pool: CpuPool,
    /// Where sources are read from.
    pub stores: Arc<Stores>,
    /// Counts what is read.
    pub io: Arc<IoCounters>,
    /// The functions of expressions.
    pub registry: Registry,
    /// Where snapshots are; nothing is stored without it.
    pub cache_url: Option<String>,
    /// The settings of the cache.
    pub cache: CacheOptions,
    /// `host:port` at which other processes reach the dispatcher, and the host at which they reach the workers. Without
    /// one nothing listens, and only this process can use the cluster.
    pub listen: Option<String>,
    /// Where its workers are entered: a list of its own, or one that several clusters of the process share.
    pub local: LocalWorkers,
    /// A folder to record the autocache events of each job in; none: they are not recorded.
    pub record_autocache_events: Option<PathBuf>,
}

impl ClusterConfig {
    /// One worker, with the functions that come with caju.
    pub fn new(stores: Arc<Stores>, pool: CpuPool) -> Self {
        Self {
            workers: 1,
            pool,
            stores,
            io: Arc::new(IoCounters::new()),
            registry: Registry::new(Limits::default()),
            cache_url: None,
            cache: CacheOptions::default(),
            listen: None,
            local: LocalWorkers::new(),
            record_autocache_events: None,
        }
    }
}

/// A dispatcher and its workers, all here. Dropping it stops them without a word; [`Cluster::stop`] takes leave.
#[derive(Debug)]
pub struct Cluster {
    dispatcher: DispatcherHandle,
    saves: SaveDriver,
    workers: Vec<WorkerHandle>,
    caches: Arc<Caches>,
    config: ClusterConfig,
}

impl Cluster {
    /// Starts a dispatcher, then its workers. No port is opened, unless the settings name one. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// `Unavailable` if the address of the settings cannot be listened on.
    pub async fn start(config: ClusterConfig) -> Result<Self> {
        let ctx = SourceContext::new(Arc::clone(&config.stores), Arc::clone(&config.io))
            .within(SourceLimits::of(config.registry.limits()));
        let timers = Timers {
            heartbeat: HEARTBEAT,
            worker_timeout: SILENCE,
            client_timeout: SILENCE,
            drain: DRAIN,
            ..Timers::default()
        };
        let cache_url = config.cache_url.clone().unwrap_or_default();
        let catalog = Arc::new(EngineCatalog::new(config.registry.clone(), ctx).with_cache(&cache_url));
        let dispatcher = DispatcherConfig {
            listen: config.listen.clone().unwrap_or_else(|| IN_PROCESS.to_owned()),
            timers,
            cache_url,
            cache_budget: config.cache.budget_bytes,
            record_autocache_events: config.record_autocache_events.clone(),
            ..DispatcherConfig::default()
        };
        let dispatcher = Dispatcher::start(dispatcher, catalog).await?;
        let caches = Caches::new(Arc::clone(&config.stores), config.cache.clone(), SystemClock::shared());
        let saves = SaveDriver::start(&dispatcher, config.local.clone());
        let mut cluster = Self { dispatcher, saves, workers: Vec::new(), caches, config };
        for _ in 0..cluster.config.workers {
            cluster.add_worker().await?;
        }
        Ok(cluster)
    }

    /// Starts one more worker, which computes on the same threads; its address.
    ///
    /// # Errors
    /// `Unavailable` if the host of the settings cannot be listened on.
    pub async fn add_worker(&mut self) -> Result<String> {
        let ClusterConfig { pool, stores, io, registry, local, .. } = self.config.clone();
        let config = WorkerConfig {
            listen: worker_listen(self.config.listen.as_deref()),
            pool: Some(pool),
            sharers: self.config.workers.max(1),
            io,
            registry,
            local,
            caches: Some(Arc::clone(&self.caches)),
            ..WorkerConfig::new(self.address(), stores)
        };
        let worker = Worker::start(config).await?;
        let address = worker.address().to_owned();
        self.workers.push(worker);
        Ok(address)
    }

    /// The addresses of the workers.
    pub fn workers(&self) -> impl Iterator<Item = &str> {
        self.workers.iter().map(WorkerHandle::address)
    }

    /// The dispatcher's address: `host:port` if the settings named one, else one that only this process can use.
    pub fn address(&self) -> String {
        self.dispatcher.address().to_owned()
    }

    /// The workers, for a [`ClientConfig`] made elsewhere: a client with these reads from them in memory.
    pub fn local(&self) -> LocalWorkers {
        self.config.local.clone()
    }

    /// A client that reads from the workers in memory.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub async fn client(&self, config: ClientConfig) -> Result<Client> {
        Client::connect(&self.address(), ClientConfig { local: self.local(), ..config }).await
    }

    /// Bytes and requests at the cache's store so far.
    pub fn caches(&self) -> Arc<Caches> {
        Arc::clone(&self.caches)
    }

    /// Stops the workers, then the dispatcher, within a few seconds. Readers that are not at their end fail.
    pub async fn stop(self) {
        self.saves.stop().await;
        for worker in self.workers {
            worker.shutdown().await;
        }
        self.caches.close(DRAIN).await;
        self.dispatcher.shutdown().await;
    }
}

/// Where a worker listens: at a free port of the dispatcher's host, if that has one.
fn worker_listen(dispatcher: Option<&str>) -> String {
    match dispatcher.and_then(|address| address.rsplit_once(':')) {
        Some((host, _)) => format!("{host}:0"),
        None => IN_PROCESS.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use caju_client::ReadRequest;
    use caju_pipeline::DatasetDef;
    use serde_json::json;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn two_epochs_are_read_here() {
        let config = ClusterConfig::new(Arc::new(Stores::default()), CpuPool::new(2).unwrap());
        let cluster = Cluster::start(ClusterConfig { workers: 2, ..config }).await.unwrap();
        let client = cluster.client(ClientConfig::default()).await.unwrap();
        let def =
            DatasetDef::from_json(&json!({"source": {"range": 1000}, "steps": [{"batch": 64}]})).unwrap();
        for epoch in 0..2 {
            let request = ReadRequest { job: "j".into(), epoch, ..ReadRequest::of(def.clone()) };
            let mut reader = client.read(request).await.unwrap();
            let mut rows = Vec::new();
            while let Some(element) = reader.next().await.unwrap() {
                rows.push(element.batch.num_rows());
            }
            assert_eq!((rows.len(), rows.iter().sum::<usize>()), (16, 1000));
            reader.close().await;
        }
        cluster.stop().await;
    }
}
