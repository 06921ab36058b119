//! `caju worker` and `caju worker drain`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use caju_engine::SharingSettings;
use caju_proto::v1;
use caju_runtime::CpuPool;
use caju_types::{Error, Result, Secret};
use caju_wire::{Dispatcher, DispatcherLink};
use caju_worker::{Worker, WorkerConfig};

use super::serve::{Signals, announce, check_listen, drain, until_stdin_ends};
use super::shared;
use crate::cli::{CpuThreads, WorkerArgs, WorkerCommand};
use crate::output;

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
    let pool = match args.cpu_threads {
        CpuThreads::Auto(first) => CpuPool::elastic(first.unwrap_or_else(shared::cores))?,
        CpuThreads::Given(n) => CpuPool::new(n)?,
    };
    let config = WorkerConfig {
        listen: args.listen.clone(),
        connections: shared::connection_limits(&args.limits),
        advertise: args.advertise.clone(),
        tags: args.tags.clone(),
        pool: Some(pool.clone()),
        connect_timeout: args.connect_timeout,
        readers: args.tasks.split_readers.given(),
        buffer_bytes: args.tasks.buffer.given(),
        buffer_memory_bytes: usize::try_from(args.tasks.buffer_memory).unwrap_or(usize::MAX),
        dispatcher_timeout: args.tasks.dispatcher_timeout,
        linger: args.tasks.linger,
        silence: args.tasks.reader_silence,
        ping: args.tasks.ping,
        slowdown: args.tasks.slowdown,
        sharing: sharing(args),
        sharing_spill_dir: args.tasks.sharing_spill_dir.clone(),
        shared_memory_bytes: args.tasks.shared_memory,
        registry: shared::server_registry(&args.stores, pool.threads()),
        ..WorkerConfig::new(dispatcher, stores)
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

/// Reads the operator's secret, which the dispatcher wrote to a file.
fn operator_secret(path: &Path) -> Result<Secret> {
    let place = format!("--operator-secret-file {}", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::not_found(format!(
            "{place}: no such file; the dispatcher writes it when it starts (operator-secret in its --state-dir)"
        )),
        _ => Error::permission_denied(format!("{place}: {e}")),
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
}
