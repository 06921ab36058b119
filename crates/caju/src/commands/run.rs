//! `caju run`: dispatcher, workers and reader in this process.

use std::sync::Arc;
use std::time::Duration;

use caju_client::{Client, ClientConfig};
use caju_dispatcher::{Dispatcher, DispatcherConfig, DispatcherHandle, Timers};
use caju_engine::source::SourceContext;
use caju_engine::wire::LocalWorkers;
use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, IoCounters, Stores};
use caju_types::Result;
use caju_worker::{Worker, WorkerConfig, WorkerHandle};

use super::catalog::EngineCatalog;
use super::epochs::{Epochs, Outcome};
use super::{check, shared};
use crate::cli::{EpochArgs, Global, RunArgs};

/// Within one process silence means a busy machine, not a lost worker.
const SILENCE: Duration = Duration::from_secs(120);
/// Often enough for a lively progress bar.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Runs a pipeline file.
///
/// # Errors
/// A wrong file, and what the job fails with.
pub(crate) async fn run(global: &Global, args: &RunArgs) -> Result<()> {
    let def = shared::read_pipeline(&args.file)?;
    let pool = shared::cpu_pool(args.cpu_threads)?;
    let stores = Arc::new(shared::stores(None)?);
    let job = Job {
        def: &def,
        workers: args.workers,
        epochs: &args.epochs,
        quiet: global.quiet,
        cpu_before: Duration::ZERO,
    };
    let outcome = Box::pin(embedded(job, stores, pool)).await?;
    shared::finish(&check::title(&def, &args.file), &outcome, &args.epochs, global.quiet)
}

/// What to run in this process.
pub(crate) struct Job<'a> {
    pub(crate) def: &'a DatasetDef,
    pub(crate) workers: u32,
    pub(crate) epochs: &'a EpochArgs,
    pub(crate) quiet: bool,
    /// CPU time of this process that belongs to something else.
    pub(crate) cpu_before: Duration,
}

/// Starts a cluster of this process alone, reads the epochs, and stops it.
///
/// # Errors
/// What the job fails with.
pub(crate) async fn embedded(job: Job<'_>, stores: Arc<Stores>, pool: CpuPool) -> Result<Outcome> {
    let io = Arc::new(IoCounters::new());
    let cluster = Cluster::start(job.workers, stores, &pool, &io).await?;
    let config = ClientConfig { local: cluster.local.clone(), ..ClientConfig::default() };
    let outcome = async {
        let client = Client::connect(&cluster.dispatcher.address().to_string(), config).await?;
        let epochs = Epochs {
            client: &client,
            def: job.def,
            job: "run".to_string(),
            args: job.epochs,
            quiet: job.quiet,
            pool,
            cpu_before: job.cpu_before,
            io: Some(io),
        };
        Box::pin(epochs.read()).await
    }
    .await;
    cluster.stop().await;
    outcome
}

/// A dispatcher and its workers, all here.
struct Cluster {
    dispatcher: DispatcherHandle,
    workers: Vec<WorkerHandle>,
    local: LocalWorkers,
}

impl Cluster {
    async fn start(workers: u32, stores: Arc<Stores>, pool: &CpuPool, io: &Arc<IoCounters>) -> Result<Self> {
        let registry = shared::registry();
        let ctx = SourceContext::new(Arc::clone(&stores), Arc::clone(io));
        let timers = Timers {
            heartbeat: HEARTBEAT,
            worker_timeout: SILENCE,
            client_timeout: SILENCE,
            drain: Duration::from_secs(2),
            ..Timers::default()
        };
        let catalog = Arc::new(EngineCatalog::new(registry.clone(), ctx));
        let dispatcher =
            Dispatcher::start(DispatcherConfig { timers, ..DispatcherConfig::default() }, catalog).await?;
        let local = LocalWorkers::new();
        let mut cluster = Self { dispatcher, workers: Vec::new(), local };
        for _ in 0..workers {
            let config = WorkerConfig {
                pool: Some(pool.clone()),
                io: Arc::clone(io),
                registry: registry.clone(),
                local: cluster.local.clone(),
                ..WorkerConfig::new(cluster.dispatcher.address().to_string(), Arc::clone(&stores))
            };
            cluster.workers.push(Worker::start(config).await?);
        }
        Ok(cluster)
    }

    async fn stop(self) {
        for worker in self.workers {
            worker.shutdown().await;
        }
        self.dispatcher.shutdown().await;
    }
}
