//! `caju dispatcher`.

use std::sync::Arc;
use std::time::Duration;

use caju_dispatcher::{
    Dispatcher, DispatcherConfig, DispatcherHandle, EngineCatalog, MemoryLimits, Timers, WorkerList,
    state::LossLimits,
};
use caju_embedded::SaveDriver;
use caju_planner::{DEFAULT_MAX_WORKERS, ScalingSettings, WorkerLimits};
use caju_runtime::IoCounters;
use caju_sources::{SourceContext, SourceLimits};
use caju_types::{Error, Result};
use caju_wire::LocalWorkers;

use super::serve::{Signals, announce, check_listen, drain, until_stdin_ends};
use super::shared;
use crate::cli::{DispatcherArgs, DispatcherSettings};
use crate::output;

/// The shortest interval of checks: each check visits all workers, readers and epochs.
const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Serves until a signal arrives.
///
/// # Errors
/// A wrong setting, a port in use, a state folder that cannot be used.
pub(crate) async fn run(args: &DispatcherArgs) -> Result<()> {
    until_stdin_ends(&args.settings.serve, Box::pin(serve(args))).await
}

async fn serve(args: &DispatcherArgs) -> Result<()> {
    let settings = &args.settings;
    let mut signals = Signals::new()?;
    let workers = WorkerList::new(args.workers.clone()).map_err(|e| e.context("--workers"))?;
    let limits = (settings.min_workers.unwrap_or(0), settings.max_workers.unwrap_or(DEFAULT_MAX_WORKERS));
    let server = Server::start(settings, workers, limits).await?;
    server.announce("dispatcher", settings)?;
    tokio::select! {
        _ = signals.next() => {}
        // Clients and workers try to reach it for a while, so it can be restarted with another disk meanwhile.
        failure = server.dispatcher.failed() => {
            server.shutdown().await;
            return Err(failure);
        }
    }
    drain(&mut signals, "dispatcher", &settings.serve, server.drain()).await
}

/// A dispatcher in this process, with what drives its saves.
pub(super) struct Server {
    pub(super) dispatcher: DispatcherHandle,
    saves: SaveDriver,
}

impl Server {
    /// Starts a dispatcher whose target of workers is within these limits.
    ///
    /// # Errors
    /// A wrong setting, a port in use, a state folder that cannot be used.
    pub(super) async fn start(
        settings: &DispatcherSettings,
        workers: WorkerList,
        limits: (u64, u64),
    ) -> Result<Self> {
        check(settings, limits).await?;
        let config = config(settings, workers, limits)?;
        let stores = shared::server_stores(&settings.stores)?;
        stores.allow_cache(&config.cache_url)?;
        let ctx = SourceContext::new(Arc::new(stores), Arc::new(IoCounters::new()))
            .with_limits(SourceLimits::from_limits(&shared::limits()));
        let registry = shared::server_registry(&settings.stores, 1);
        let catalog = Arc::new(
            EngineCatalog::new(registry, ctx)
                .with_cache(&config.cache_url)
                .with_cache_wait(config.timers.cache_wait),
        );
        let dispatcher = Dispatcher::start(config, catalog).await?;
        let saves = SaveDriver::start(&dispatcher, LocalWorkers::new());
        Ok(Self { dispatcher, saves })
    }

    /// Prints the addresses.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub(super) fn announce(&self, role: &str, settings: &DispatcherSettings) -> Result<()> {
        announce(role, self.dispatcher.address(), &settings.serve)?;
        match self.dispatcher.http_address() {
            Some(http) => output::say(format_args!("caju dispatcher serves http://{http}/metrics")),
            None => Ok(()),
        }
    }

    /// Shuts down in order; false if work was still running when the time of the settings was over.
    pub(super) async fn drain(self) -> bool {
        self.saves.stop().await;
        self.dispatcher.drain().await
    }

    /// Ends without waiting for readers.
    pub(super) async fn shutdown(self) {
        self.saves.stop().await;
        self.dispatcher.shutdown().await;
    }
}

async fn check(settings: &DispatcherSettings, (min_workers, max_workers): (u64, u64)) -> Result<()> {
    check_listen(&settings.listen, settings.serve.insecure).await?;
    if let Some(http) = &settings.http_listen {
        check_listen(http, settings.serve.insecure).await.map_err(|e| e.context("--http-listen"))?;
    }
    // The limits are those of `caju scale`; here no worker is needed while no job runs.
    WorkerLimits::new(min_workers.max(1), max_workers)?;
    if !settings.scaling_interval.is_zero() && settings.scaling_interval < settings.heartbeat * 2 {
        return Err(Error::invalid(
            "--scaling-interval must be at least twice --heartbeat, or a sample has no news of some workers; 0s computes no target",
        ));
    }
    if settings.heartbeat > settings.client_timeout {
        return Err(Error::invalid(
            "--client-timeout must be at least --heartbeat, or every reader counts as gone between two of them",
        ));
    }
    if settings.heartbeat * 2 > settings.worker_timeout {
        return Err(Error::invalid(
            "--worker-timeout must be at least twice --heartbeat, or a worker is lost between two of them",
        ));
    }
    Ok(())
}

fn config(
    settings: &DispatcherSettings,
    workers: WorkerList,
    (min_workers, max_workers): (u64, u64),
) -> Result<DispatcherConfig> {
    let timers = Timers {
        heartbeat: settings.heartbeat,
        worker_timeout: settings.worker_timeout,
        client_timeout: settings.client_timeout,
        worker_wait: settings.worker_wait,
        straggler_factor: settings.straggler_factor,
        job_gc_timeout: settings.job_gc_timeout,
        boundaries_gc_timeout: settings.boundaries_gc_timeout,
        check_every: settings.check_interval.max(MIN_CHECK_INTERVAL),
        consumer_wait: settings.consumer_wait,
        reader_wait: settings.reader_wait,
        drain: settings.serve.drain_timeout,
        scaling_interval: settings.scaling_interval,
        worker_missed_heartbeats: settings.worker_missed_heartbeats,
        reader_missed_heartbeats: settings.reader_missed_heartbeats,
        journal_timeout: settings.journal_timeout,
        cache_wait: settings.cache_wait,
        cache_update_timeout: settings.cache_update_timeout,
        cache_request_timeout: settings.cache_requests.cache_request_timeout,
        cache_lease: settings.cache_lease.cache_lease,
        lost_worker_retention: settings.lost_worker_retention,
        ..Timers::default()
    };
    Ok(DispatcherConfig {
        listen: settings.listen.clone(),
        network: caju_wire::Network::default(),
        connections: shared::connection_limits(&settings.limits),
        state_dir: settings.state_dir.clone(),
        journal: settings.journal.into(),
        operator_secret_file: settings.operator_secret_file.clone(),
        cache_url: settings.cache.as_deref().map(shared::absolute_url).transpose()?.unwrap_or_default(),
        timers,
        losses: LossLimits { splits: settings.max_split_losses, connections: settings.max_connection_losses },
        cache_budget: settings.cache_budget,
        memory: MemoryLimits {
            name_bytes: usize::try_from(settings.max_name_bytes).unwrap_or(usize::MAX),
            datasets: settings.max_datasets as usize,
            dataset_bytes: settings.max_dataset_bytes,
            jobs: settings.max_jobs as usize,
            epochs_per_job: settings.max_job_epochs as usize,
            readers: settings.max_readers as usize,
            workers: settings.max_worker_registrations as usize,
            forget_after: settings.forget_after,
        },
        workers,
        record_autocache_events: settings.record_autocache_events.clone(),
        scaling: ScalingSettings {
            min_workers,
            max_workers,
            scale_down_after: settings.scale_down_after,
            ..ScalingSettings::default()
        },
        http_listen: settings.http_listen.clone(),
        http_connections: settings.http_connections as usize,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn config_of(flags: &[&str]) -> DispatcherConfig {
        let line = [&["caju", "dispatcher"], flags].concat();
        let Command::Dispatcher(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("not `dispatcher`")
        };
        config(&args.settings, WorkerList::default(), (0, 100)).unwrap()
    }

    /// What a dispatcher does with these numbers is tested there: `losses`, `a_write_that_does_not_end_is_a_failure_of_the_journal`,
    /// `a_status_call_leaves_out_the_size_of_a_cache_that_does_not_answer`, `a_lost_worker_is_listed_for_the_time_that_is_set`,
    /// `an_update_of_a_manifest_that_hangs_ends_after_its_timeout_and_names_the_snapshot`,
    /// `a_request_of_the_dispatcher_to_a_cache_ends_after_the_cache_request_timeout`,
    /// `boundaries_that_nobody_asks_for_are_not_learnt_after_their_time`, `as_many_http_connections_are_open_as_are_set`.
    #[test]
    fn flags_are_the_settings_of_the_dispatcher() {
        let flags = [
            "--max-split-losses=7",
            "--max-connection-losses=8",
            "--worker-missed-heartbeats=9",
            "--reader-missed-heartbeats=11",
            "--lost-worker-retention=12s",
            "--journal-timeout=13s",
            "--cache-wait=14s",
            "--cache-update-timeout=15s",
            "--cache-request-timeout=16s",
            "--cache-lease=17s",
            "--boundaries-gc-timeout=18s",
            "--http-connections=19",
        ];
        let numbers = |config: &DispatcherConfig| {
            let DispatcherConfig { losses, timers, .. } = config;
            let times = [
                timers.lost_worker_retention,
                timers.journal_timeout,
                timers.cache_wait,
                timers.cache_update_timeout,
                timers.cache_request_timeout,
                timers.cache_lease,
                timers.boundaries_gc_timeout,
            ];
            let counts = [
                losses.splits,
                losses.connections,
                timers.worker_missed_heartbeats,
                timers.reader_missed_heartbeats,
            ];
            (counts, times.map(|t| t.as_secs()), config.http_connections)
        };
        assert_eq!(numbers(&config_of(&flags)), ([7, 8, 9, 11], [12, 13, 14, 15, 16, 17, 18], 19));
        // The names of a version before.
        let former = [
            "--split-losses=7",
            "--connection-losses=8",
            "--missed-heartbeats=9",
            "--silent-heartbeats=11",
            "--worker-memory=12s",
        ];
        let former = [former.as_slice(), &flags[5..]].concat();
        assert_eq!(numbers(&config_of(&former)), numbers(&config_of(&flags)));
        let default = DispatcherConfig::default();
        assert_eq!(numbers(&config_of(&[])), numbers(&default), "the flags' defaults are the library's");
    }
}
