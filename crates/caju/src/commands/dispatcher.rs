//! `caju dispatcher`.

use std::sync::Arc;
use std::time::Duration;

use caju_dispatcher::{Dispatcher, DispatcherConfig, EngineCatalog, MemoryLimits, Timers, WorkerList};
use caju_embedded::SaveDriver;
use caju_planner::{ScalingSettings, WorkerLimits};
use caju_runtime::IoCounters;
use caju_sources::{SourceContext, SourceLimits};
use caju_types::{Error, Result};
use caju_wire::LocalWorkers;

use super::serve::{Signals, announce, check_listen, drain};
use super::shared;
use crate::cli::DispatcherArgs;
use crate::output;

/// The shortest interval of checks: each one looks at all workers, readers and epochs.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Serves until a signal arrives.
///
/// # Errors
/// A wrong setting, a port in use, a state folder that cannot be used.
pub(crate) async fn run(args: &DispatcherArgs) -> Result<()> {
    check_listen(&args.listen, args.serve.insecure).await?;
    if let Some(http) = &args.http_listen {
        check_listen(http, args.serve.insecure).await.map_err(|e| e.context("--http-listen"))?;
    }
    // The limits are those of `caju scale`; here no worker is needed while no job runs.
    WorkerLimits::new(args.min_workers.max(1), args.max_workers)?;
    if !args.scaling_interval.is_zero() && args.scaling_interval < args.heartbeat * 2 {
        return Err(Error::invalid(
            "--scaling-interval must be at least twice --heartbeat, or a sample has no news of some workers; 0s computes no target",
        ));
    }
    if args.heartbeat * 2 > args.worker_timeout {
        return Err(Error::invalid(
            "--worker-timeout must be at least twice --heartbeat, or a worker is lost between two of them",
        ));
    }
    let mut signals = Signals::new()?;
    let timers = Timers {
        heartbeat: args.heartbeat,
        worker_timeout: args.worker_timeout,
        client_timeout: args.client_timeout,
        worker_wait: args.worker_wait,
        straggler_factor: args.straggler_factor,
        job_gc_timeout: args.job_gc_timeout,
        check_every: args.check_interval.max(MIN_CHECK_INTERVAL),
        consumer_wait: args.consumer_wait,
        drain: args.serve.drain_timeout,
        scaling_interval: args.scaling_interval,
        ..Timers::default()
    };
    let config = DispatcherConfig {
        listen: args.listen.clone(),
        network: caju_wire::Network::default(),
        connections: shared::connection_limits(&args.limits),
        state_dir: args.state_dir.clone(),
        journal: args.journal.into(),
        operator_secret_file: args.operator_secret_file.clone(),
        cache_url: args.cache.as_deref().map(shared::absolute_url).transpose()?.unwrap_or_default(),
        timers,
        cache_budget: args.cache_budget,
        memory: MemoryLimits {
            datasets: args.max_datasets as usize,
            dataset_bytes: args.max_dataset_bytes,
            jobs: args.max_jobs as usize,
            forget_after: args.forget_after,
        },
        workers: WorkerList::new(args.workers.clone()).map_err(|e| e.context("--workers"))?,
        record_autocache_events: args.record_autocache_events.clone(),
        scaling: ScalingSettings {
            min_workers: args.min_workers,
            max_workers: args.max_workers,
            scale_down_after: args.scale_down_after,
            ..ScalingSettings::default()
        },
        http_listen: args.http_listen.clone(),
    };
    let stores = shared::server_stores(&args.stores)?;
    stores.allow_cache(&config.cache_url)?;
    let ctx = SourceContext::new(Arc::new(stores), Arc::new(IoCounters::new()))
        .with_limits(SourceLimits::from_limits(&shared::limits()));
    let registry = shared::server_registry(&args.stores, 1);
    let catalog = Arc::new(EngineCatalog::new(registry, ctx).with_cache(&config.cache_url));
    let dispatcher = Dispatcher::start(config, catalog).await?;
    let saves = SaveDriver::start(&dispatcher, LocalWorkers::new());
    announce("dispatcher", dispatcher.address(), &args.serve)?;
    if let Some(http) = dispatcher.http_address() {
        output::say(format_args!("caju dispatcher serves http://{http}/metrics"))?;
    }
    tokio::select! {
        _ = signals.next() => {}
        // Clients and workers try to reach it for a while, so it can be restarted with another disk meanwhile.
        failure = dispatcher.failed() => {
            saves.stop().await;
            dispatcher.shutdown().await;
            return Err(failure);
        }
    }
    let end = async {
        saves.stop().await;
        dispatcher.drain().await
    };
    drain(&mut signals, "dispatcher", &args.serve, end).await
}
