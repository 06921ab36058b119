//! `caju run`: dispatcher, workers and reader in this process.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use caju_cache::CacheOptions;
use caju_client::{ClientConfig, LostReaders};
use caju_embedded::{Cluster, ClusterConfig};
use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, IoCounters, Stores, private_cache};
use caju_types::Result;

use super::epochs::{Consumer, Epochs, Meters, Outcome};
use super::{check, shared};
use crate::cli::{EpochArgs, Global, RunArgs};

/// Runs a pipeline file.
///
/// # Errors
/// A wrong file, and what the job fails with.
pub(crate) async fn run(global: &Global, args: &RunArgs) -> Result<()> {
    let def = shared::read_job(&args.file, &args.epochs)?;
    let pool = shared::cpu_pool(args.cpu_threads)?;
    let stores = Arc::new(shared::stores()?);
    let job = Job {
        def: &def,
        workers: args.workers,
        cache: args.cache.as_deref().map(shared::absolute_url).transpose()?,
        cache_budget: args.cache_budget,
        record_autocache_events: args.record_autocache_events.clone(),
        epochs: &args.epochs,
        quiet: global.quiet,
        consumer: Consumer::default(),
        cpu_before: Duration::ZERO,
    };
    let outcome = Box::pin(embedded(job, stores, pool)).await?;
    shared::finish(&check::title(&def, &args.file), &outcome, &args.epochs, global.quiet)
}

/// What to run in this process.
pub(crate) struct Job<'a> {
    pub(crate) def: &'a DatasetDef,
    pub(crate) workers: u32,
    /// Where snapshots are; a private folder for this run if absent.
    pub(crate) cache: Option<String>,
    pub(crate) cache_budget: Option<u64>,
    /// Where autocache events are recorded, if they are.
    pub(crate) record_autocache_events: Option<PathBuf>,
    pub(crate) epochs: &'a EpochArgs,
    pub(crate) quiet: bool,
    /// What is done with the rows.
    pub(crate) consumer: Consumer,
    /// CPU time of this process that belongs to something else.
    pub(crate) cpu_before: Duration,
}

/// Starts a cluster of this process alone, reads the epochs, and stops it.
///
/// # Errors
/// What the job fails with.
pub(crate) async fn embedded(job: Job<'_>, stores: Arc<Stores>, pool: CpuPool) -> Result<Outcome> {
    let io = Arc::new(IoCounters::new());
    let private = match job.cache {
        None if !job.def.hints().is_empty() => Some(private_cache()?),
        _ => None,
    };
    let cache_url = job.cache.or_else(|| private.as_ref().map(|f| f.path().display().to_string()));
    let config = ClusterConfig {
        workers: job.workers,
        io: Arc::clone(&io),
        cache_url,
        cache: CacheOptions { budget_bytes: job.cache_budget, ..CacheOptions::default() },
        registry: shared::registry(),
        record_autocache_events: job.record_autocache_events,
        ..ClusterConfig::new(stores, pool.clone())
    };
    let cluster = Cluster::start(config).await?;
    let outcome = async {
        let client = cluster.client(ClientConfig::default()).await?;
        let epochs = Epochs {
            client: &client,
            def: job.def,
            job: "run".to_string(),
            args: job.epochs,
            quiet: job.quiet,
            consumer: job.consumer,
            pool,
            cpu_before: job.cpu_before,
            io: Some(Meters { source: io, caches: cluster.caches() }),
            lost_readers: LostReaders::Fail,
        };
        Box::pin(epochs.read()).await
    }
    .await;
    cluster.stop().await;
    outcome.map(|outcome| Outcome { private_cache: private.is_some(), ..outcome })
}
