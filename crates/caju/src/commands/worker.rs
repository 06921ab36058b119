//! `caju worker` and `caju worker drain`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use caju_cache::CacheOptions;
use caju_engine::SharingSettings;
use caju_proto::v1;
use caju_types::{Error, Result, Secret};
use caju_wire::{Dispatcher, DispatcherLink};
use caju_worker::{Worker, WorkerConfig};

use super::serve::{Signals, announce, check_listen, drain, until_stdin_ends};
use super::shared;
use crate::cli::{WorkerArgs, WorkerCommand};
use crate::{input_file, output};

/// Serves until a signal arrives or the dispatcher drains the worker; or asks the dispatcher to drain one.
///
/// # Errors
/// A wrong setting, a port in use, a dispatcher that does not answer.
pub(crate) async fn run(args: &WorkerArgs) -> Result<()> {
    match &args.command {
        Some(WorkerCommand::Drain { id, dispatcher, operator_secret_file, connect_timeout }) => {
            drain_worker(*id, dispatcher, operator_secret_file.as_deref(), *connect_timeout).await
        }
        None => until_stdin_ends(&args.serve, Box::pin(serve(args))).await,
    }
}

async fn serve(args: &WorkerArgs) -> Result<()> {
    let Some(dispatcher) = &args.dispatcher else {
        return Err(Error::invalid(
            "caju worker needs --dispatcher HOST:PORT, or CAJU_DISPATCHER; `caju dispatcher` prints its address when it starts",
        ));
    };
    check_listen(&args.listen, args.serve.insecure).await?;
    let mut signals = Signals::new()?;
    let stores = Arc::new(shared::server_stores(&args.stores)?);
    let pool = shared::tuned_pool(args.cpu_threads)?;
    let config = WorkerConfig {
        registry: shared::server_registry(&args.stores, pool.threads()),
        pool: Some(pool),
        ..settings(args, WorkerConfig::new(dispatcher, stores))
    };
    let worker = Worker::start(config).await?;
    announce("worker", worker.address(), &args.serve)?;
    tokio::select! {
        _ = signals.next() => {
            let bound = args.serve.drain_timeout;
            drain(&mut signals, "worker", &args.serve, worker.drain(bound)).await
        }
        () = worker.drained() => {
            output::note("worker: drained, leaving");
            worker.shutdown().await;
            Ok(())
        }
        gone = worker.dispatcher_gone() => {
            worker.shutdown().await;
            Err(gone)
        }
    }
}

/// The settings of the flags, over those that no flag has.
fn settings(args: &WorkerArgs, default: WorkerConfig) -> WorkerConfig {
    WorkerConfig {
        listen: args.listen.clone(),
        connections: shared::connection_limits(&args.limits),
        advertise: args.advertise.clone(),
        tags: args.tags.clone(),
        connect_timeout: args.connect_timeout,
        tuned: shared::tuned_numbers(&args.tasks.tuned),
        dispatcher_timeout: args.tasks.dispatcher_timeout,
        absence_timeout: args.tasks.absence_timeout,
        linger: args.tasks.linger,
        drain_linger: args.tasks.drain_linger,
        failure_report_timeout: args.tasks.failure_report_timeout,
        cache: CacheOptions {
            request_timeout: args.tasks.cache_requests.cache_request_timeout,
            lease_ttl: args.tasks.cache_lease.cache_lease,
            decision_wait: args.tasks.decision_wait,
            disk_tier: args.tasks.cache_disk.clone().map(|folder| (folder, args.tasks.cache_disk_size)),
            ..default.cache.clone()
        },
        silence: args.tasks.reader_silence,
        reader_idle_timeout: args.tasks.reader_idle_timeout,
        flight_open_timeout: args.tasks.flight_open_timeout,
        flight_stall_timeout: args.tasks.flight_stall_timeout,
        ping: args.tasks.ping,
        slowdown: args.tasks.slowdown,
        sharing: sharing(args),
        sharing_spill_dir: args.tasks.sharing_spill_dir.clone(),
        shared_memory_bytes: args.tasks.shared_memory,
        ..default
    }
}

/// How the worker shares computed rows.
fn sharing(args: &WorkerArgs) -> SharingSettings {
    SharingSettings {
        window_bytes: args.tasks.sharing_window,
        backlog_bytes: args.tasks.sharing_backlog,
        lag: args.tasks.sharing_lag,
        spill_bytes: args.tasks.sharing_spill_bytes,
        wait: args.tasks.sharing_wait,
    }
}

async fn drain_worker(
    id: u64,
    dispatcher: &str,
    operator_secret_file: Option<&Path>,
    connect_timeout: Duration,
) -> Result<()> {
    let link = DispatcherLink::new(dispatcher)?;
    let secret = operator_secret_file.map(operator_secret).transpose()?;
    let secret = secret.map(|s| s.to_vec()).unwrap_or_default();
    let call = |mut d: Dispatcher| {
        let request = v1::DrainWorkerRequest { worker_id: id, secret: secret.clone().into(), leaving: false };
        async move { d.drain_worker(request).await }
    };
    link.retry(connect_timeout, Duration::ZERO, call).await?;
    output::say(format_args!("worker {id} gets no new tasks, and leaves when its present ones are done"))
}

/// The largest file of an operator's secret, in bytes: far more than its digits.
const MAX_SECRET_BYTES: u64 = 4 << 10;

/// Reads the operator's secret, which the dispatcher wrote to a file.
fn operator_secret(path: &Path) -> Result<Secret> {
    let place = format!("--operator-secret-file {}", path.display());
    let text = input_file::read_text(path, MAX_SECRET_BYTES).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(format!(
            "{place}: no such file; the dispatcher writes it when it starts (operator-secret in its --state-dir)"
        )),
        _ => input_file::error(&e).context(&place),
    })?;
    Secret::from_hex(text.trim())
        .ok_or_else(|| Error::invalid(format!("{place}: not an operator's secret of 32 hexadecimal digits")))
}

#[cfg(test)]
mod tests {
    use caju_engine::SharingLag;
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    /// What the window does is tested in the engine (`a_full_window_throttles_those_who_are_ahead` and others).
    #[test]
    fn sharing_lag_is_that_of_the_window() {
        let lag = |more: &[&str]| {
            let line = [&["caju", "worker", "--dispatcher", "a:1"], more].concat();
            let Command::Worker(args) = Cli::try_parse_from(line).unwrap().command else {
                panic!("not `worker`")
            };
            sharing(&args).lag
        };
        assert_eq!(lag(&["--sharing-lag", "throttle"]), SharingLag::Throttle);
        assert_eq!(lag(&["--sharing-lag", "spill"]), SharingLag::Spill);
        assert_eq!((lag(&["--sharing-lag", "drop"]), lag(&[])), (SharingLag::Drop, SharingLag::Drop));
    }

    /// What a worker does with these numbers is tested there: `a_worker_that_drains_keeps_a_task_for_the_drain_linger`,
    /// `a_failure_reaches_readers_although_the_dispatcher_is_away`, `a_paused_writer_is_skipped_and_loses`,
    /// `rows_wait_for_a_decision_no_longer_than_its_timeout`, `sto_11_a_store_that_fails_is_tried_again_within_bounds`,
    /// `a_reader_that_wants_no_more_rows_is_cut_off_after_the_reader_idle_timeout`,
    /// `a_flight_client_waits_for_boundaries_no_longer_than_is_set`.
    #[test]
    fn flags_are_the_settings_of_the_worker() {
        let default = || WorkerConfig::new("a:1", Arc::default());
        let of = |flags: &[&str]| {
            let line = [&["caju", "worker", "--dispatcher", "a:1"], flags].concat();
            let Command::Worker(args) = Cli::try_parse_from(line).unwrap().command else {
                panic!("not `worker`")
            };
            settings(&args, default())
        };
        let seconds = |config: &WorkerConfig| {
            let cache = [config.cache.request_timeout, config.cache.lease_ttl, config.cache.decision_wait];
            let readers =
                [config.reader_idle_timeout, config.flight_open_timeout, config.flight_stall_timeout];
            let waits = [config.drain_linger, config.failure_report_timeout];
            let times = [&cache[..], &waits, &readers].concat();
            times.iter().map(Duration::as_secs).collect::<Vec<_>>()
        };
        let flags = [
            "--cache-request-timeout=6s",
            "--cache-lease=7s",
            "--decision-wait=8s",
            "--drain-linger=9s",
            "--failure-report-timeout=11s",
            "--reader-idle-timeout=12s",
            "--flight-open-timeout=13s",
            "--flight-stall-timeout=14s",
        ];
        assert_eq!(seconds(&of(&flags)), [6, 7, 8, 9, 11, 12, 13, 14]);
        assert_eq!(seconds(&of(&[])), seconds(&default()), "the flags' defaults are the library's");
        assert_eq!(of(&["--absence-timeout=15s"]).absence_timeout, Some(Duration::from_secs(15)));
        assert_eq!((of(&[]).absence_timeout, of(&[]).cache.disk_tier), (None, None));
        let disk = of(&["--cache-disk=/fast", "--cache-disk-size=3MiB"]).cache.disk_tier;
        assert_eq!(disk, Some(("/fast".into(), 3 << 20)));
    }
}
