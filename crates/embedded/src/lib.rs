//! A whole cluster in one process, for every program that reads a pipeline without separate servers. `caju run` starts
//! one.
//!
//! Its parts are those of a distributed cluster. Only the transport differs: chunks stay in memory.
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
use caju_dispatcher::{Dispatcher, DispatcherConfig, DispatcherHandle, EngineCatalog, Timers, WorkerList};
use caju_kernels::{Limits, Registry};
use caju_runtime::{CpuPool, IoCounters, Stores, SystemClock};
use caju_sources::{SourceContext, SourceLimits};
use caju_types::Result;
use caju_wire::{IN_PROCESS, LocalWorkers};
pub use caju_worker::TunedNumbers;
use caju_worker::{Caches, Worker, WorkerConfig, WorkerHandle};
use tokio::sync::watch;

pub use saves::SaveDriver;

/// How long a worker or client may be silent. Within one process silence means a busy machine, not a lost peer.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(120);
/// How often workers and clients report: often enough for a progress bar.
const HEARTBEAT: Duration = Duration::from_millis(500);
/// How long calls may take to end when the cluster stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The settings of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Number of workers. All compute on the same threads. In a static processing mode it is the number of shards.
    pub workers: u32,
    /// The CPU threads of all workers.
    pub pool: CpuPool,
    /// The numbers that each worker tunes, or that are given by hand.
    pub tuned: TunedNumbers,
    /// The stores of the sources.
    pub stores: Arc<Stores>,
    /// Counts the bytes and requests of the sources.
    pub io: Arc<IoCounters>,
    /// The functions of expressions.
    pub registry: Registry,
    /// The place of the snapshots. Nothing is stored without it.
    pub cache_url: Option<String>,
    /// The settings of the cache.
    pub cache: CacheOptions,
    /// `host:port` at which other processes reach the dispatcher, and the host at which they reach the workers. Without
    /// one nothing listens, and only this process can use the cluster.
    pub listen: Option<String>,
    /// The list of workers that this process reads from in memory. Several clusters of the process may share one.
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
            tuned: TunedNumbers::default(),
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

/// A dispatcher and its workers in this process. [`Cluster::stop`] stops them in order; dropping it stops them at once.
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
            .with_limits(SourceLimits::from_limits(config.registry.limits()));
        let timers = Timers {
            heartbeat: HEARTBEAT,
            worker_timeout: SILENCE_TIMEOUT,
            client_timeout: SILENCE_TIMEOUT,
            drain: DRAIN_TIMEOUT,
            cache_request_timeout: config.cache.request_timeout,
            cache_lease: config.cache.lease_ttl,
            // The number of workers is fixed when the cluster starts.
            scaling_interval: Duration::ZERO,
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
            workers: WorkerList::first(config.workers),
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

    /// Starts one more worker, which computes on the same threads. Returns its address.
    ///
    /// # Errors
    /// `Unavailable` if the host of the settings cannot be listened on.
    pub async fn add_worker(&mut self) -> Result<String> {
        let worker = self.start_worker().await?;
        Ok(self.join(worker))
    }

    /// Starts a worker that [`Cluster::join`] makes one of this cluster. It does not borrow the cluster, which may be stopped before
    /// the worker has started.
    ///
    /// # Errors
    /// As [`Cluster::add_worker`].
    pub fn start_worker(&self) -> impl Future<Output = Result<WorkerHandle>> + use<> {
        let ClusterConfig { pool, tuned, stores, io, registry, local, .. } = self.config.clone();
        let config = WorkerConfig {
            listen: worker_listen(self.config.listen.as_deref()),
            pool: Some(pool),
            tuned,
            sharers: self.config.workers.max(1),
            io,
            registry,
            local,
            caches: Some(Arc::clone(&self.caches)),
            ..WorkerConfig::new(self.address(), stores)
        };
        Worker::start(config)
    }

    /// The cluster stops a worker of [`Cluster::start_worker`] with its others. Returns the worker's address.
    pub fn join(&mut self, worker: WorkerHandle) -> String {
        let address = worker.address().to_owned();
        self.workers.push(worker);
        address
    }

    /// The addresses of the workers.
    pub fn workers(&self) -> impl Iterator<Item = &str> {
        self.workers.iter().map(WorkerHandle::address)
    }

    /// The dispatcher's address: `host:port` if the settings name one, else one that only this process can use.
    pub fn address(&self) -> String {
        self.dispatcher.address().to_owned()
    }

    /// The workers of this process, for a [`ClientConfig`] of the caller's own: a client with these reads from them in
    /// memory.
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

    /// The caches of the workers, which count the bytes and requests at their stores.
    pub fn caches(&self) -> Arc<Caches> {
        Arc::clone(&self.caches)
    }

    /// The number of saves that ended since the start. A change means that one more save finished or failed.
    pub fn ended_saves(&self) -> watch::Receiver<u64> {
        self.saves.ended()
    }

    /// Stops the workers, then the dispatcher, within a few seconds. Readers in the middle of an epoch fail.
    pub async fn stop(self) {
        self.saves.stop().await;
        for worker in self.workers {
            worker.shutdown().await;
        }
        self.caches.close(DRAIN_TIMEOUT).await;
        self.dispatcher.shutdown().await;
    }
}

/// The address on which a worker listens: a free port of the dispatcher's host, if the dispatcher listens on one.
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
    async fn two_epochs_are_read_in_one_process() {
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

    /// The status of each worker says what it computes with.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn each_worker_computes_with_the_numbers_of_the_settings() {
        let tuned =
            TunedNumbers { readers: Some(1), buffer_bytes: Some(64 << 10), buffer_memory_bytes: 1 << 20 };
        for (tuned, is_given) in [(tuned, true), (TunedNumbers::default(), false)] {
            let config = ClusterConfig::new(Arc::new(Stores::default()), CpuPool::new(2).unwrap());
            let cluster = Cluster::start(ClusterConfig { workers: 2, tuned, ..config }).await.unwrap();
            let client = cluster.client(ClientConfig::default()).await.unwrap();
            // Without an end: how long a step takes depends on the machine.
            let def = json!({"source": {"range": 50_000}, "steps": [{"repeat": null}, {"batch": 1000}]});
            let mut reader =
                client.read(ReadRequest::of(DatasetDef::from_json(&def).unwrap())).await.unwrap();
            let setting = |of: &WorkerHandle, name| of.settings().into_iter().find(|s| s.name == name);
            for worker in &cluster.workers {
                // They are shown when a step of the tuning has seen the task.
                let shown = async {
                    loop {
                        assert!(reader.next().await.unwrap().is_some());
                        let bytes = setting(worker, "buffer_bytes").map_or(0, |s| s.value);
                        match setting(worker, "readers") {
                            Some(readers) if bytes > 0 => return (readers.value, bytes),
                            _ => {}
                        }
                    }
                };
                let shown = tokio::time::timeout(Duration::from_secs(60), shown).await.expect("a step");
                match is_given {
                    true => assert_eq!(shown, (1, 64 << 10)),
                    false => assert!(shown.0 > 1 && shown.1 >= 64 << 20, "{shown:?}"),
                }
                assert_eq!(worker.queues().1, tuned.buffer_memory_bytes);
            }
            reader.close().await;
            cluster.stop().await;
        }
    }
}
