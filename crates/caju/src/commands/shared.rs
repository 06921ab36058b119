//! Helpers of several commands: stores, CPU threads, paths of the user.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use caju_client::{EventFn, ReaderEvent};
use caju_embedded::{ClusterConfig, TunedNumbers};
use caju_functions::{Environment, Pool, PoolConfig};
use caju_kernels::{Limits, Registry};
use caju_pipeline::DatasetDef;
use caju_runtime::{Access, CpuPool, Stores};
use caju_types::{Error, Result, format_duration};
use caju_wire::ConnectionLimits;

use super::epochs::Outcome;
use super::summary::summary;
use super::{order, pipeline_file};
use crate::cli::{BoundArgs, ComputeArgs, ConnectionArgs, CpuThreads, EpochArgs, StoreArgs, TunedArgs};
use crate::cores::available_cores;
use crate::output;
use crate::report;

/// Stores with the options of the environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`, ...).
///
/// # Errors
/// `InvalidArgument` for an option that a store refuses.
pub(crate) fn stores() -> Result<Stores> {
    Stores::new(store_options(), None)
}

/// Stores of a server, which accesses only what its flags allow.
///
/// # Errors
/// `InvalidArgument` for an `--allow-read` or `--allow-write` that is not a path or URL.
pub(crate) fn server_stores(args: &StoreArgs) -> Result<Stores> {
    let read = args.allow_read.iter().chain(&args.allow);
    let access = Access {
        read: read.map(|a| absolute_url(a)).collect::<Result<_>>()?,
        write: args.allow_write.iter().map(|a| absolute_url(a)).collect::<Result<_>>()?,
    };
    Stores::new(store_options(), Some(access))
}

/// The bounds of a server's connections.
pub(crate) fn connection_limits(args: &ConnectionArgs) -> ConnectionLimits {
    ConnectionLimits {
        connections: args.connections as usize,
        handshake: args.handshake_timeout,
        idle: args.idle_timeout,
        request: args.request_timeout,
        streams: args.connection_calls,
        message_bytes: usize::try_from(args.message_bytes).unwrap_or(usize::MAX),
        ..ConnectionLimits::default()
    }
}

/// The options of object stores in the environment.
pub(crate) fn store_options() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(k, v)| Some((k.into_string().ok()?.to_lowercase(), v.into_string().ok()?)))
        // Only variables of a cloud provider are taken: others, such as proxies, belong to every program.
        .filter(|(k, _)| {
            ["aws_", "google_", "azure_"].iter().any(|p| k.starts_with(p)) && Stores::known_option(k)
        })
        .collect()
}

/// A URL unchanged, or a path as an absolute path.
///
/// # Errors
/// `FailedPrecondition` if there is no working folder.
pub(crate) fn absolute_url(text: &str) -> Result<String> {
    if text.contains("://") {
        return Ok(text.to_string());
    }
    let path = std::path::absolute(text).map_err(|e| Error::failed_precondition(format!("`{text}`: {e}")))?;
    path.to_str()
        .map(String::from)
        .ok_or_else(|| Error::invalid(format!("`{text}`: the path is not UTF-8; rename the folder")))
}

/// A pool with the given number of CPU threads; by default one per core, and more while rows wait.
///
/// # Errors
/// `ResourceExhausted` if the system gives no threads.
pub(crate) fn cpu_pool(threads: Option<u32>) -> Result<CpuPool> {
    match threads {
        Some(n) => CpuPool::new(n.max(1) as usize),
        None => CpuPool::elastic(available_cores()),
    }
}

/// A pool with a number of CPU threads that is tuned, or given.
///
/// # Errors
/// `ResourceExhausted` if the system gives no threads.
pub(crate) fn tuned_pool(threads: CpuThreads) -> Result<CpuPool> {
    match threads {
        CpuThreads::Auto(first) => CpuPool::elastic(first.unwrap_or_else(available_cores)),
        CpuThreads::Given(n) => CpuPool::new(n),
    }
}

/// The numbers of the flags that a worker tunes, or that are given.
pub(crate) fn tuned_numbers(args: &TunedArgs) -> TunedNumbers {
    TunedNumbers {
        readers: args.split_readers.given(),
        buffer_bytes: args.buffer.given(),
        buffer_memory_bytes: usize::try_from(args.buffer_memory).unwrap_or(usize::MAX),
    }
}

/// A cluster in this process that computes with the numbers of the flags. Python functions run in as many busy processes as
/// there are CPU threads.
///
/// # Errors
/// `ResourceExhausted` if the system gives no threads.
pub(crate) fn cluster(args: &ComputeArgs, stores: Arc<Stores>) -> Result<ClusterConfig> {
    Ok(cluster_on(tuned_pool(args.cpu_threads)?, &args.tuned, stores))
}

/// The same on threads that there are.
pub(crate) fn cluster_on(pool: CpuPool, args: &TunedArgs, stores: Arc<Stores>) -> ClusterConfig {
    let (registry, tuned) = (registry_on(pool.threads()), tuned_numbers(args));
    ClusterConfig { registry, tuned, ..ClusterConfig::new(stores, pool) }
}

/// The bounds of the flags. The defaults until the flags are read.
static LIMITS: OnceLock<Limits> = OnceLock::new();

/// Sets the bounds of this process from its flags. The first call counts.
pub(crate) fn set_limits(args: &BoundArgs) {
    LIMITS.get_or_init(|| limits_of(args));
}

fn limits_of(args: &BoundArgs) -> Limits {
    Limits {
        max_pixels: args.max_pixels,
        chunk_bytes: args.chunk_memory,
        chunk_steps: args.chunk_steps,
        max_record_bytes: args.max_record,
        row_group_bytes: args.row_group_memory,
        bind_timeout: args.bind_timeout,
        save_wait: args.save_wait,
    }
}

/// The bounds of this process.
pub(crate) fn limits() -> Limits {
    LIMITS.get().copied().unwrap_or_default()
}

/// The functions of expressions, within the bounds of the process, and Python functions. In a process of the user
/// these run in the user's own environment.
pub(crate) fn registry() -> Registry {
    registry_on(available_cores())
}

/// The same, with Python functions in up to `threads` busy processes.
fn registry_on(threads: usize) -> Registry {
    let pool = PoolConfig { environment: Environment::Inherited, ..PoolConfig::new("python3", threads) };
    Registry::new(limits()).with_python(Pool::new(pool))
}

/// The functions of a server. Python functions need an interpreter, and run in up to `threads` busy processes.
pub(crate) fn server_registry(args: &StoreArgs, threads: usize) -> Registry {
    let registry = Registry::new(limits());
    match &args.allow_python {
        Some(python) => registry.with_python_of_others(Pool::new(PoolConfig {
            environment: Environment::Clean(args.python_env.clone()),
            ..PoolConfig::new(python, threads)
        })),
        None => registry,
    }
}

/// Reads a pipeline file for a job, and applies the job's flags.
///
/// # Errors
/// As [`pipeline_file::read`].
pub(crate) fn read_job(file: &Path, args: &EpochArgs) -> Result<DatasetDef> {
    let mut def = pipeline_file::read(file)?;
    if let Some(path) = &args.report {
        report::check_writable(path, "--report")?;
    }
    if args.cache_only {
        def.options.cache_only = true;
    }
    order::allow(&mut def, &args.order)?;
    Ok(def)
}

/// Prints why a reader waits, every five seconds.
pub(crate) fn events(quiet: bool) -> Option<EventFn> {
    if quiet {
        return None;
    }
    let every = |waited: &Duration| waited.as_secs() % 5 == 2;
    Some(Arc::new(move |event: &ReaderEvent| match event {
        ReaderEvent::WaitingForWorker { waited } if every(waited) => output::note(format_args!(
            "waiting for a worker since {}; start one with `caju worker --dispatcher HOST:PORT`",
            format_duration(*waited)
        )),
        ReaderEvent::TaskLost { address, reason } => {
            output::note(format_args!("worker {address} was lost ({reason}); its rows come from others"));
        }
        ReaderEvent::DispatcherAway { waited } if every(waited) => {
            output::note(format_args!("the dispatcher does not answer since {}", format_duration(*waited)));
        }
        _ => {}
    }))
}

/// Writes the report of `run` and `read`, and prints the summary.
///
/// # Errors
/// A report that cannot be written.
pub(crate) fn finish(name: &str, outcome: &Outcome, args: &EpochArgs, quiet: bool) -> Result<()> {
    if !quiet {
        output::say(summary(name, outcome))?;
    } else if let Some(why) = &outcome.report.not_stored {
        output::note(format_args!("warning: nothing was stored: {why}"));
    }
    if let Some(path) = &args.report {
        outcome.report.write(path)?;
    }
    outcome.failure.clone().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{BenchCommand, Cli, Command};

    /// The numbers of a command that computes in this process.
    fn compute(line: &[&str]) -> ComputeArgs {
        match Cli::try_parse_from(line).unwrap().command {
            Command::Run(args) => args.compute,
            Command::Save(args) => args.compute,
            Command::Profile(args) => args.compute,
            Command::Bench(args) => match args.command {
                BenchCommand::Policies(args) => args.compute,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// What the workers do with them is tested where the cluster is (`each_worker_computes_with_the_numbers_of_the_settings`).
    #[test]
    fn flags_are_the_numbers_of_the_workers_of_this_process() {
        let given =
            TunedNumbers { readers: Some(3), buffer_bytes: Some(1 << 20), buffer_memory_bytes: 2 << 20 };
        let flags = ["--split-readers=3", "--buffer=1MiB", "--buffer-memory=2MiB", "--cpu-threads=5"];
        let commands: [&[&str]; 4] = [
            &["run", "p.yaml"],
            &["save", "p.yaml", "--to", "s"],
            &["profile", "p.yaml"],
            &["bench", "policies", "p.yaml"],
        ];
        for command in commands {
            let with = |flags: &[&str]| {
                let line = [&["caju"], command, flags].concat();
                cluster(&compute(&line), Arc::default()).unwrap()
            };
            let config = with(&flags);
            assert_eq!((config.tuned, config.pool.threads()), (given, 5), "{command:?}");
            assert!(config.pool.tuner().is_none(), "{command:?}: a number of threads that is given stays");
            let config = with(&["--cpu-threads=auto:3"]);
            assert_eq!((config.tuned, config.pool.threads()), (TunedNumbers::default(), 3), "{command:?}");
            assert!(config.pool.tuner().is_some(), "{command:?}: the threads are tuned");
        }
    }

    /// What each of them bounds is tested with real processes (`tests/tests/e2e/bounds.rs`).
    #[test]
    fn flags_are_the_limits_of_the_process() {
        let of = |flags: &[&str]| {
            let line = [&["caju", "run", "p.yaml"], flags].concat();
            limits_of(&Cli::try_parse_from(line).unwrap().global.bounds)
        };
        assert_eq!(of(&[]), Limits::default(), "the flags' defaults are the library's");
        let given = [
            "--chunk-memory=1KiB",
            "--chunk-steps=2",
            "--max-record=3KiB",
            "--row-group-memory=4KiB",
            "--max-pixels=5",
            "--bind-timeout=6s",
            "--save-wait=7s",
        ];
        let want = Limits {
            chunk_bytes: 1 << 10,
            chunk_steps: 2,
            max_record_bytes: 3 << 10,
            row_group_bytes: 4 << 10,
            max_pixels: 5,
            bind_timeout: Duration::from_secs(6),
            save_wait: Duration::from_secs(7),
        };
        assert_eq!(of(&given), want);
    }

    /// The workers of a dispatcher have numbers of their own.
    #[test]
    fn a_save_on_a_cluster_takes_no_numbers() {
        for flag in
            ["--workers=2", "--cpu-threads=1", "--buffer=1MiB", "--buffer-memory=1MiB", "--split-readers=1"]
        {
            let line = ["caju", "save", "p.yaml", "--to", "s", "--dispatcher", "a:1", flag];
            assert!(Cli::try_parse_from(line).is_err(), "{flag}");
        }
        assert!(Cli::try_parse_from(["caju", "save", "p.yaml", "--to", "s", "--dispatcher", "a:1"]).is_ok());
    }
}
