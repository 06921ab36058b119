//! `caju run`: dispatcher, workers and reader in this process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use caju_cache::CacheOptions;
use caju_client::{ClientConfig, LostReaders};
use caju_embedded::{Cluster, ClusterConfig};
use caju_pipeline::{DatasetDef, prefix_fingerprints};
use caju_planner::{Choice, Policy};
use caju_runtime::private_cache;
use caju_types::Result;

use super::announce::Announce;
use super::decision::{decision, policy};
use super::epochs::{Consumer, Epochs, Meters, OnSignal, Outcome};
use super::setting::{Location, Locations};
use super::{check, shared};
use crate::cli::{EpochArgs, Global, RunArgs};

/// Runs a pipeline file.
///
/// # Errors
/// A wrong file, and what the job fails with.
pub(crate) async fn run(global: &Global, args: &RunArgs) -> Result<()> {
    let def = shared::read_job(&args.file, &args.epochs)?;
    let cluster = shared::cluster(&args.compute, Arc::new(shared::stores()?))?;
    let job = Job {
        def: &def,
        file: Some(&args.file),
        workers: args.workers,
        cache: args.cache.as_deref().map(shared::absolute_url).transpose()?,
        cache_budget: args.cache_budget,
        record_autocache_events: args.record_autocache_events.clone(),
        cache_memory: None,
        epochs: &args.epochs,
        quiet: global.quiet,
        announce: if global.quiet { Announce::AtEnds } else { Announce::Keep },
        consumer: Consumer::default(),
        cpu_before: Duration::ZERO,
        on_signal: OnSignal::Stop,
    };
    let outcome = Box::pin(embedded(job, cluster)).await?;
    shared::finish(&check::title(&def, &args.file), &outcome, &args.epochs, global.quiet)
}

/// A job of this process.
pub(crate) struct Job<'a> {
    pub(crate) def: &'a DatasetDef,
    /// The file of the definition, for errors; none if no file of the user has it.
    pub(crate) file: Option<&'a Path>,
    pub(crate) workers: u32,
    /// Place of the snapshots. Absent: a private folder of this run.
    pub(crate) cache: Option<String>,
    pub(crate) cache_budget: Option<u64>,
    /// Where autocache events are recorded, if they are.
    pub(crate) record_autocache_events: Option<PathBuf>,
    /// The memory tier of the cache, in bytes. Absent: the default.
    pub(crate) cache_memory: Option<u64>,
    pub(crate) epochs: &'a EpochArgs,
    pub(crate) quiet: bool,
    /// What is done about each decision of the policy when it is made.
    pub(crate) announce: Announce,
    /// What the reader does with the rows.
    pub(crate) consumer: Consumer,
    /// CPU time that this process used before the job.
    pub(crate) cpu_before: Duration,
    /// What SIGTERM and Ctrl-C do.
    pub(crate) on_signal: OnSignal,
}

/// Starts a cluster of these settings within this process, reads the epochs, and stops the cluster.
///
/// # Errors
/// What the job fails with.
pub(crate) async fn embedded(job: Job<'_>, cluster: ClusterConfig) -> Result<Outcome> {
    let (io, pool) = (Arc::clone(&cluster.io), cluster.pool.clone());
    let private = match job.cache {
        None if !job.def.hints().is_empty() => Some(private_cache()?),
        _ => None,
    };
    let cache_url = job.cache.or_else(|| private.as_ref().map(|f| f.path().display().to_string()));
    let defaults = CacheOptions::default();
    let cache = CacheOptions {
        budget_bytes: job.cache_budget,
        memory_tier_bytes: job.cache_memory.unwrap_or(defaults.memory_tier_bytes),
        ..defaults
    };
    let config = ClusterConfig {
        workers: job.workers,
        cache_url: cache_url.clone(),
        cache,
        record_autocache_events: job.record_autocache_events,
        ..cluster
    };
    let cluster = Cluster::start(config).await?;
    let outcome = async {
        let client = cluster.client(ClientConfig::default()).await?;
        let epochs = Epochs {
            client: &client,
            def: job.def,
            file: job.file,
            job: "run".to_string(),
            args: job.epochs,
            quiet: job.quiet,
            consumer: None,
            sharing: caju_client::Sharing::AsJob,
            precedence: (None, None),
            transfer: caju_client::Transfer::default(),
            work: job.consumer,
            pool,
            cpu_before: job.cpu_before,
            io: Some(Meters { source: io, caches: cluster.caches() }),
            lost_readers: LostReaders::Fail,
            target: caju_proto::v1::TargetWorkers::Unspecified,
            announce: job.announce,
            attempt: None,
            state_file: None,
            on_signal: job.on_signal,
        };
        Box::pin(epochs.read()).await
    }
    .await;
    cluster.stop().await;
    let outcome = outcome?;
    let locations = Locations::of(job.def, Some(cache_url.as_deref().unwrap_or("memory:///")));
    let snapshot = match &private {
        Some(_) => None,
        None => cache_url.and_then(|cache| snapshot_folder(job.def, &outcome, &cache)),
    };
    Ok(Outcome { private_cache: private.is_some(), locations, snapshot, ..outcome })
}

/// The folder below the root of a cache with the parts that a run stored or read. None if the run stored and read none.
///
/// The folder of the root is given where the parts are elsewhere: below a cross-split stage, or for a job that runs its
/// stages in another order.
fn snapshot_folder(def: &DatasetDef, outcome: &Outcome, cache: &str) -> Option<String> {
    if !outcome.report.epochs.iter().any(|e| e.splits.put + e.splits.get > 0) {
        return None;
    }
    let job = outcome.job.as_ref()?;
    let hints = def.hints();
    let hint = match policy(job)? {
        Policy::Compute => None,
        Policy::Source => hints.first().map(|h| h.name.clone()),
        Policy::Full => hints.last().map(|h| h.name.clone()),
        Policy::Hint(name) => Some(name),
        Policy::Auto | Policy::Cachew => match decision(job).map(|d| d.choice) {
            Some(Choice::Materialize { hint, .. }) => Some(hint),
            Some(Choice::Compute) | None => None,
        },
    };
    let root = cache.trim_end_matches('/');
    let prefixes = prefix_fingerprints(def, &shared::registry()).ok()?;
    let parts = prefixes
        .iter()
        .find(|p| Some(&p.hint) == hint.as_ref())
        .map(|p| format!("{root}/v1/{}/parts", p.fingerprint))
        .filter(|parts| Location::of(cache) != Location::Folder || Path::new(parts).is_dir());
    Some(parts.unwrap_or_else(|| root.to_owned()))
}
