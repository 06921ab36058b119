//! Arguments of the servers, dispatcher and worker, and of `caju status`.

use std::path::PathBuf;
use std::time::Duration;

use caju_dispatcher::journal::JournalKind;
use caju_engine::SharingLag;
use clap::builder::NonEmptyStringValueParser;
use clap::builder::ValueHint;
use clap::{Args, Subcommand, ValueEnum};

use super::tuned::{CpuThreads, TunedArgs};

/// A duration with a unit, as an argument.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    caju_types::parse_duration(text).map_err(|e| e.to_string())
}

/// A size with a unit, as an argument.
pub(super) fn size(text: &str) -> Result<u64, String> {
    caju_types::parse_bytes(text).map_err(|e| e.to_string())
}

/// The bound of a frame: a worker sends small elements together, in frames of some hundred KiB.
pub(super) fn frame_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes < 1 << 20 => {
            Err("at least 1MiB, because a worker sends small elements together".to_string())
        }
        bytes => Ok(bytes),
    }
}

/// A bound in bytes. With 0 nothing would pass.
pub(super) fn bound(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err("at least 1 byte".to_string()),
        bytes => Ok(bytes),
    }
}

/// What a server may read, write and run.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArgs {
    /// Folder or URL below which this server may read. Repeat for several. Without it the server reads nothing
    #[arg(long, value_name = "URL")]
    pub(crate) allow_read: Vec<String>,
    /// Short for --allow-read
    #[arg(long, value_name = "URL")]
    pub(crate) allow: Vec<String>,
    /// Folder or URL below which saves may be written. Repeat for several. The cache needs none
    #[arg(long, value_name = "URL")]
    pub(crate) allow_write: Vec<String>,
    /// Run Python functions of readers with this interpreter, which has the package caju. A program that reaches the dispatcher
    /// may then run code on the workers. Give dispatcher and workers the same
    #[arg(long, value_name = "PYTHON")]
    pub(crate) allow_python: Option<String>,
    /// Environment variables of this server that Python functions see, beyond the few that an interpreter needs
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "allow_python")]
    pub(crate) python_env: Vec<String>,
}

/// Bounds of the connections of a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConnectionArgs {
    /// The most open connections. Each takes a file descriptor
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// The most concurrent calls of one gRPC connection
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connection_calls: u32,
    /// How long a new connection may take for its first request
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(crate) handshake_timeout: Duration,
    /// How long a gRPC connection may stay open without a call
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    pub(crate) idle_timeout: Duration,
    /// How long the bytes of one request may take to arrive
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = duration)]
    pub(crate) request_timeout: Duration,
    /// The largest accepted message, such as a definition with its rows
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub(crate) message_bytes: u64,
}

/// How a process reaches the store of a cache.
#[derive(Debug, Clone, Args)]
pub(crate) struct CacheRequestArgs {
    /// How long one request to the store of the cache may take before it is made again. The first one, which looks whether there
    /// is a cache, is an error
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(crate) cache_request_timeout: Duration,
}

/// When another process that uses a cache counts as dead.
#[derive(Debug, Clone, Args)]
pub(crate) struct CacheLeaseArgs {
    /// How long a process that stores rows may give no sign of life before others store them without it. Give all processes that
    /// use a cache the same
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration)]
    pub(crate) cache_lease: Duration,
}

/// Where a server listens and how it stops.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// Write HOST:PORT to this file once the server listens
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) address_file: Option<PathBuf>,
    /// Allow an address that other machines can reach, although there is no authentication
    #[arg(long)]
    pub(crate) insecure: bool,
    /// After SIGTERM or Ctrl-C: how long running work may continue. A second signal ends the process at once
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) drain_timeout: Duration,
    /// End at once when standard input ends. For a process that starts this one with a pipe: if it is killed, the pipe closes
    #[arg(long)]
    pub(crate) until_stdin_ends: bool,
}

/// What holds a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JournalDatabase {
    /// A log-structured tree
    Sled,
    /// A copy-on-write tree in one file
    Redb,
}

impl From<JournalDatabase> for JournalKind {
    fn from(database: JournalDatabase) -> Self {
        match database {
            JournalDatabase::Sled => Self::Sled,
            JournalDatabase::Redb => Self::Redb,
        }
    }
}

/// `caju dispatcher`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju dispatcher --allow data/
  caju dispatcher --listen 0.0.0.0:7070 --insecure --state-dir /var/lib/caju --allow-read s3://bucket/train
  caju dispatcher --allow data/ --allow-write saves/

The first line on standard output is: caju dispatcher listening on HOST:PORT")]
pub(crate) struct DispatcherArgs {
    /// The workers that may register, in order: worker k of n has shard k of n in the processing modes file, data,
    /// file_or_data and hint. A port may be %port% (any port), and * is any address. Without it any worker may register
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub(crate) workers: Vec<String>,
    #[command(flatten)]
    pub(crate) settings: DispatcherSettings,
}

/// The settings of a dispatcher, in a process of its own or in `caju up`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DispatcherSettings {
    /// Address to listen on; port 0 takes any free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7070")]
    pub(crate) listen: String,
    /// Folder of the journal. Without it a restart forgets the jobs
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
    /// Database of the journal in --state-dir. A journal that another one holds is carried over
    #[arg(long, value_name = "DATABASE", default_value = "sled")]
    pub(crate) journal: JournalDatabase,
    /// Where rows are stored for later epochs and jobs: a folder or URL that every worker reaches
    #[arg(long, value_name = "URL")]
    pub(crate) cache: Option<String>,
    /// The largest size of the cache, as 500GiB. The least useful snapshots are evicted for new ones
    #[arg(long, value_name = "SIZE", requires = "cache", value_parser = size)]
    pub(crate) cache_budget: Option<u64>,
    #[command(flatten)]
    pub(crate) cache_requests: CacheRequestArgs,
    #[command(flatten)]
    pub(crate) cache_lease: CacheLeaseArgs,
    /// A worker that is silent for this long is lost, and its splits go to other workers
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(crate) worker_timeout: Duration,
    /// A reader that is silent for this long is expelled: rows that it did not take go to the other readers of its job
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(crate) client_timeout: Duration,
    /// How long a job waits while there is no worker before it fails
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    pub(crate) worker_wait: Duration,
    /// At the end of an epoch, idle workers take over the splits of a worker whose rows per second are less than theirs divided
    /// by this number, or that makes no progress for this number of times their time for a split; 0: never
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) straggler_factor: u32,
    /// How long the consumers of a job (--num-consumers) wait for those of them that have not come before the epoch fails
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub(crate) consumer_wait: Duration,
    /// How long a reader at the end of its epoch waits for another reader of the job whose user takes no rows. A reader whose
    /// user takes rows is waited for: if it dies, the rest of its rows go to the one that waits
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) reader_wait: Duration,
    /// File with the secret that `caju worker drain` must present. Written if it does not exist. By default operator-secret
    /// in --state-dir. Without both no worker can be drained remotely
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) operator_secret_file: Option<PathBuf>,
    /// The most bytes of one name: of a job, a dataset, an attempt, a worker's address or tag, the URL of a save
    #[arg(long, value_name = "SIZE", default_value = "1KiB", value_parser = size)]
    pub(crate) max_name_bytes: u64,
    /// The most registered datasets. Beyond that the least recently used are forgotten
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_datasets: u32,
    /// The most memory of the definitions and schemas of all datasets
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub(crate) max_dataset_bytes: u64,
    /// The most remembered jobs. Beyond that the least recently used are forgotten
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_jobs: u32,
    /// The most epochs of one job that are kept. Beyond that those that are over are forgotten, the oldest first
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_job_epochs: u32,
    /// The most readers of all epochs together
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_readers: u32,
    /// The most registered workers. Beyond that lost ones are forgotten, the one lost first before others
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_worker_registrations: u32,
    /// How long an unused job, with its finished epochs, and an unused dataset without a name are remembered
    #[arg(long, value_name = "TIME", default_value = "168h", value_parser = duration)]
    pub(crate) forget_after: Duration,
    /// Folder to record the autocache events of each job in, for `caju plan --replay`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) record_autocache_events: Option<PathBuf>,
    /// How long an epoch without a reader, and a job whose last reader has left, are kept for a reader that comes back
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = duration)]
    pub(crate) job_gc_timeout: Duration,
    /// How long boundaries of bucket_by_length that no reader asks for any more wait for a worker that learns them
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) boundaries_gc_timeout: Duration,
    /// How often the dispatcher looks for silent workers and readers, and for stragglers
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = duration)]
    pub(crate) check_interval: Duration,
    /// The fewest workers that the target of `caju status` names, also while no job runs. 0 by default, and 1 with `caju up`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=10_000))]
    pub(crate) min_workers: Option<u64>,
    /// The most workers that the target of `caju status` names. 100 by default, and with `caju up` as many as the cores are
    /// enough for
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) max_workers: Option<u64>,
    /// How often the target is computed; 0s: never
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(crate) scaling_interval: Duration,
    /// How long fewer workers must have been enough before the target falls
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) scale_down_after: Duration,
    /// A second port, for GET /metrics (Prometheus) and GET /healthz; port 0 takes any free one
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) http_listen: Option<String>,
    /// The most open connections of --http-listen. A further one closes one whose request has not arrived, or the oldest one
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) http_connections: u32,
    /// Workers that die with one split until the epoch fails, and the error names the split and its file. Likewise workers that
    /// die while they learn the same boundaries
    #[arg(long, alias = "split-losses", value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) max_split_losses: u32,
    /// Connections between readers and each worker that break in a row without a row until the epoch fails. After a quarter of
    /// them splits go to other workers first
    #[arg(long, alias = "connection-losses", value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connection_losses: u32,
    /// Heartbeats that a worker misses until another process may take its address, and until the target of workers counts
    /// without it
    #[arg(long, alias = "missed-heartbeats", value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) worker_missed_heartbeats: u32,
    /// Heartbeats that a reader misses until it counts as gone for those that begin from a state or come as its consumer
    #[arg(long, alias = "silent-heartbeats", value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) reader_missed_heartbeats: u32,
    /// How long a lost worker is listed in the status
    #[arg(long, alias = "worker-memory", value_name = "TIME", default_value = "1h", value_parser = duration)]
    pub(crate) lost_worker_retention: Duration,
    /// How long one write of the journal may take before the dispatcher ends with an error
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) journal_timeout: Duration,
    /// How long a job or a status call waits for the store of --cache before it goes on without what is stored there
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub(crate) cache_wait: Duration,
    /// How long the dispatcher may take to update a manifest in --cache, in the background
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) cache_update_timeout: Duration,
    /// How often workers and readers report
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub(crate) heartbeat: Duration,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    #[command(flatten)]
    pub(crate) limits: ConnectionArgs,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
}

/// `caju worker`.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
#[command(after_help = "\
Examples:
  caju worker --dispatcher 127.0.0.1:7070 --allow data/
  caju worker --dispatcher 10.0.0.1:7070 --listen 10.0.0.2:0 --insecure --allow s3://bucket/train --tags gpu-0
  caju worker drain 3 --dispatcher 10.0.0.1:7070 --operator-secret-file /var/lib/caju/operator-secret

The first line on standard output is: caju worker listening on HOST:PORT")]
pub(crate) struct WorkerArgs {
    #[command(subcommand)]
    pub(crate) command: Option<WorkerCommand>,
    /// Address of the dispatcher
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) dispatcher: Option<String>,
    /// Address to listen on; port 0 takes any free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Address that readers connect to, if it differs from --listen
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// Labels of this worker, separated by commas. Readers in other processes do not read from a worker with the tag COLOCATED unless their job's target is `any`
    #[arg(long, value_name = "TAG", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub(crate) tags: Vec<String>,
    /// CPU threads. `auto`: at first as many as cores, and more while rows wait for something other than a core; `auto:N`: at
    /// first N. A number is not tuned
    #[arg(long, value_name = "auto|auto:N|N", default_value = "auto")]
    pub(crate) cpu_threads: CpuThreads,
    /// How long to try to reach a dispatcher that does not answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) connect_timeout: Duration,
    #[command(flatten)]
    pub(crate) tasks: TaskArgs,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    #[command(flatten)]
    pub(crate) limits: ConnectionArgs,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
}

/// What bounds the tasks of a worker.
#[derive(Debug, Clone, Args)]
pub(crate) struct TaskArgs {
    #[command(flatten)]
    pub(crate) tuned: TunedArgs,
    /// How long tasks continue without the dispatcher before they fail
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(crate) dispatcher_timeout: Duration,
    /// How long the dispatcher may be away before the worker ends with an error. Without it the worker tries to reach the
    /// dispatcher for as long as it runs
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) absence_timeout: Option<Duration>,
    /// How long a task without readers is kept
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) linger: Duration,
    /// How long a worker that drains keeps a task without readers
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub(crate) drain_linger: Duration,
    /// How long a worker tries to report the failure of a task before its readers get the failure
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(crate) failure_report_timeout: Duration,
    #[command(flatten)]
    pub(crate) cache_requests: CacheRequestArgs,
    #[command(flatten)]
    pub(crate) cache_lease: CacheLeaseArgs,
    /// A local folder in which blocks of a cache in an object store are held, too, so that they are read from the store once. It
    /// may be used again after a restart, and by several workers
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) cache_disk: Option<PathBuf>,
    /// With --cache-disk: the most bytes of these blocks, for each worker and cache
    #[arg(long, value_name = "SIZE", default_value = "16GiB", value_parser = size)]
    pub(crate) cache_disk_size: u64,
    /// How long computed rows are held for a first decision where to store them
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) decision_wait: Duration,
    /// How long a reader that is sent rows may take none of them, or may not acknowledge that it has all, before its
    /// connection is closed
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) reader_silence: Duration,
    /// How long a reader that has all the rows for which it has space may want no more of them before its connection is closed
    #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = duration)]
    pub(crate) reader_idle_timeout: Duration,
    /// How long the dispatcher may take to open an epoch for a reader by Arrow Flight, and how long such a reader waits for a
    /// worker that learns boundaries
    #[arg(long, value_name = "TIME", default_value = "2min", value_parser = duration)]
    pub(crate) flight_open_timeout: Duration,
    /// How long a reader by Arrow Flight waits for boundaries that a worker learns
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = duration)]
    pub(crate) flight_stall_timeout: Duration,
    /// Interval of signs of life to readers for which there are no rows yet
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(crate) ping: Duration,
    /// The most bytes of computed rows that are held for other jobs that share them; 0 shares nothing
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub(crate) sharing_window: u64,
    /// The most bytes of these rows that all running jobs have had, for a job that begins later; 0: it computes what it has
    /// missed
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub(crate) sharing_backlog: u64,
    /// What happens to a job that falls behind the window of shared rows: `drop`, it computes what it has missed itself;
    /// `throttle`, the others wait for it, for --sharing-wait at most; or `spill`, it reads what it has missed from files
    #[arg(long, value_name = "drop|throttle|spill", default_value = "drop", value_parser = SharingLag::from_name)]
    pub(crate) sharing_lag: SharingLag,
    /// With --sharing-lag spill: the folder in which the worker has a private folder for these files; that for temporary files by
    /// default
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) sharing_spill_dir: Option<PathBuf>,
    /// With --sharing-lag spill: the most bytes of these files; of rows that do not fit, a job computes what it has missed itself
    #[arg(long, value_name = "SIZE", default_value = "4GiB", value_parser = size)]
    pub(crate) sharing_spill_bytes: u64,
    /// How long a task waits for rows that a task of another job computes before it computes them itself. Shared rows are held
    /// for as long when the last task that shares them has ended
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub(crate) sharing_wait: Duration,
    /// The most bytes of rows in shared memory that are held for further readers on this machine, which get them without a copy;
    /// 0: readers on this machine get their rows over sockets, as all others
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub(crate) shared_memory: u64,
    /// For experiments with a slow worker: the stages `sleep` and `burn` take this many times as long here
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) slowdown: u32,
}

/// How long a reader waits for others, and how far it reads ahead.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReadWaitArgs {
    /// How long the dispatcher may take to open an epoch: it plans the pipeline and lists the beginning of the source
    #[arg(long, value_name = "TIME", default_value = "2min", value_parser = duration)]
    pub(crate) open_timeout: Duration,
    /// How long an epoch continues without the dispatcher before the reader fails
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(crate) dispatcher_timeout: Duration,
    /// How long the reader waits, with nothing left to read, for an epoch that does not end
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = duration)]
    pub(crate) stall_timeout: Duration,
    /// How long to try to connect to a worker before its rows are asked of others
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(crate) dial_timeout: Duration,
    /// How long a worker may send nothing, not even a sign of life, before its rows are asked of others
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) worker_silence: Duration,
    /// Bytes of rows that may be on their way or wait for the reader, over all workers
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub(crate) prefetch: u64,
}

/// Commands on running workers.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Give a worker no new tasks. It leaves when its running tasks are done
    Drain {
        /// The worker's number, as `caju status` shows it
        #[arg(value_name = "ID")]
        id: u64,
        /// Address of the dispatcher
        #[arg(long, value_name = "HOST:PORT")]
        dispatcher: String,
        /// The dispatcher's file with the operator's secret: operator-secret in its --state-dir, or its own
        /// --operator-secret-file
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        operator_secret_file: Option<PathBuf>,
        /// How long to try to reach a dispatcher that does not answer
        #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
        connect_timeout: Duration,
    },
}

/// `caju status`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju status --dispatcher 127.0.0.1:7070
  caju status --dispatcher 127.0.0.1:7070 --format json")]
pub(crate) struct StatusArgs {
    /// Address of the dispatcher
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) dispatcher: String,
    /// Text for people, or JSON for programs
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: StatusFormat,
    /// Show every epoch. By default: running epochs, and the last epoch of the jobs that ended last
    #[arg(long)]
    pub(crate) all: bool,
    /// How long to try to reach a dispatcher that does not answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) connect_timeout: Duration,
}

/// The format of the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusFormat {
    /// Tables
    Text,
    /// One JSON object
    Json,
}
