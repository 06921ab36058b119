//! `caju run`: dispatcher, workers and reader in this process.

use std::sync::Arc;
use std::time::Duration;

use caju_cache::CacheOptions;
use caju_client::ClientConfig;
use caju_embedded::{Cluster, ClusterConfig};
use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, IoCounters, Stores};
use caju_types::{Error, Result};

use super::epochs::{Epochs, Meters, Outcome};
use super::{check, shared};
use crate::cli::{EpochArgs, Global, RunArgs};

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
        cache: args.cache.as_deref().map(shared::absolute_url).transpose()?,
        cache_budget: args.cache_budget,
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
    /// Where snapshots are; a private folder for this run if absent.
    pub(crate) cache: Option<String>,
    pub(crate) cache_budget: Option<u64>,
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
    let private = match job.cache {
        None if !job.def.hints().is_empty() => Some(private_folder()?),
        _ => None,
    };
    let cache_url = job.cache.or_else(|| private.as_ref().map(|f| f.folder.path().display().to_string()));
    let config = ClusterConfig {
        workers: job.workers,
        io: Arc::clone(&io),
        cache_url,
        cache: CacheOptions { budget_bytes: job.cache_budget, ..CacheOptions::default() },
        registry: shared::registry(),
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
            pool,
            cpu_before: job.cpu_before,
            io: Some(Meters { source: io, caches: cluster.caches() }),
        };
        Box::pin(epochs.read()).await
    }
    .await;
    cluster.stop().await;
    outcome.map(|outcome| Outcome { private_cache: private.is_some(), ..outcome })
}

/// What the names of private folders begin with.
const PRIVATE: &str = "caju-cache-";
/// In each of them, locked for as long as its owner lives, in whatever container that is.
const OWNER: &str = "owner.lock";

/// A private folder, and the lock that shows that somebody needs it.
pub(super) struct Private {
    pub(super) folder: tempfile::TempDir,
    _owner: std::fs::File,
}

/// Removes the private folders of runs that were killed: those whose lock nobody holds. Best effort: they are in
/// nobody's way but the disk's.
fn sweep(folder: &std::path::Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_str().is_some_and(|n| n.starts_with(PRIVATE)) {
            continue;
        }
        // Without a lock it is not one of ours, or not finished.
        let Ok(owner) = std::fs::File::open(entry.path().join(OWNER)) else { continue };
        if owner.try_lock().is_ok() {
            drop(std::fs::remove_dir_all(entry.path()));
        }
    }
}

/// A folder for the snapshots of one run, removed with it.
pub(super) fn private_folder() -> Result<Private> {
    sweep(&std::env::temp_dir());
    let made = tempfile::Builder::new().prefix(PRIVATE).tempdir().and_then(|folder| {
        let owner = std::fs::File::create(folder.path().join(OWNER))?;
        owner.lock()?;
        Ok(Private { folder, _owner: owner })
    });
    made.map_err(|e| {
        let at = std::env::temp_dir();
        Error::unavailable(format!(
            "no private cache folder can be made in {}: {e}; give one with --cache, or set TMPDIR",
            at.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_whose_owner_is_gone_are_swept() {
        let all = tempfile::tempdir().unwrap();
        let make = |name: &str, owner: bool| {
            let at = all.path().join(name);
            std::fs::create_dir(&at).unwrap();
            owner.then(|| std::fs::File::create(at.join(OWNER)).unwrap())
        };
        let living = make("caju-cache-living", true).unwrap();
        living.lock().unwrap();
        drop(make("caju-cache-dead", true));
        drop(make("caju-cache-of-others", false));
        drop(make("something-else", true));
        sweep(all.path());
        let left = |name: &str| all.path().join(name).exists();
        assert!(left("caju-cache-living") && left("caju-cache-of-others") && left("something-else"));
        assert!(!left("caju-cache-dead"));
    }
}
