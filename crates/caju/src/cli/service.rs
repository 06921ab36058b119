//! Arguments of the processes that stay: dispatcher and worker, and of who asks them.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::builder::ValueHint;
use clap::{Args, Subcommand, ValueEnum};

/// A duration with a unit, as an argument.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    caju_types::parse_duration(text).map_err(|e| e.to_string())
}

/// A size with a unit, as an argument.
pub(super) fn size(text: &str) -> Result<u64, String> {
    caju_types::parse_bytes(text).map_err(|e| e.to_string())
}

/// What a server may touch.
#[derive(Debug, Clone, Args)]
pub(crate) struct StoreArgs {
    /// Folder or URL that this server may read at and below; repeat for several. Nothing without it
    #[arg(long, value_name = "URL")]
    pub(crate) allow_read: Vec<String>,
    /// Short for --allow-read
    #[arg(long, value_name = "URL")]
    pub(crate) allow: Vec<String>,
    /// Folder or URL that saves may be written at and below; repeat for several. The cache needs none
    #[arg(long, value_name = "URL")]
    pub(crate) allow_write: Vec<String>,
    /// Run functions that readers send, with this interpreter, which has the package caju: whoever reaches the
    /// dispatcher may then run code on the workers. For dispatcher and workers alike
    #[arg(long, value_name = "PYTHON")]
    pub(crate) allow_python: Option<String>,
    /// Variables that such functions get of this server's environment, beyond the few that an interpreter needs
    #[arg(long, value_name = "NAME", value_delimiter = ',', requires = "allow_python")]
    pub(crate) python_env: Vec<String>,
}

/// What peers may use of a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct ConnectionArgs {
    /// The most connections at once; each takes a file descriptor
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// The most calls at once on one gRPC connection
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connection_calls: u32,
    /// How long a connection may take to say what it wants
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(crate) handshake_timeout: Duration,
    /// How long a gRPC connection may be open without a call
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    pub(crate) idle_timeout: Duration,
    /// The largest message that is taken, such as a definition with its rows
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    pub(crate) message_bytes: u64,
}

/// Where a server listens and how it stops.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServeArgs {
    /// Write HOST:PORT to this file once the server listens
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) address_file: Option<PathBuf>,
    /// Listen on an address that others can reach, although nobody has to authenticate
    #[arg(long)]
    pub(crate) insecure: bool,
    /// After SIGTERM or Ctrl-C: how long present work may go on. A second signal ends at once
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) drain_timeout: Duration,
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
    /// Address to listen on; port 0 takes any free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7070")]
    pub(crate) listen: String,
    /// Folder of the journal; without it a restart forgets the jobs
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
    /// Where rows are stored for later epochs and jobs: a folder or URL that every worker reaches
    #[arg(long, value_name = "URL")]
    pub(crate) cache: Option<String>,
    /// The most that the cache may hold, as 500GiB; the least useful snapshots make room for new ones
    #[arg(long, value_name = "SIZE", requires = "cache", value_parser = size)]
    pub(crate) cache_budget: Option<u64>,
    /// A worker that was silent for so long is lost, and its splits go elsewhere
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(crate) worker_timeout: Duration,
    /// A reader that was silent for so long is expelled: rows that it did not take go to the other readers of its job
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(crate) client_timeout: Duration,
    /// How long a job waits for a worker while there is none; then it fails
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = duration)]
    pub(crate) worker_wait: Duration,
    /// File with the secret that `caju worker drain` must give; written if it is not there. Without it: operator-secret
    /// in --state-dir; without both nobody can drain workers from afar
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) operator_secret_file: Option<PathBuf>,
    /// The most datasets that are remembered; beyond that the longest unused are forgotten
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_datasets: u32,
    /// The most that definitions and schemas of all datasets may take in memory
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub(crate) max_dataset_bytes: u64,
    /// The most jobs that are remembered; beyond that the longest unused are forgotten
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_jobs: u32,
    /// How long a job that nobody reads is remembered, with the epochs that it has finished, and a dataset without a name
    #[arg(long, value_name = "TIME", default_value = "168h", value_parser = duration)]
    pub(crate) forget_after: Duration,
    /// Folder to record the autocache events of each job in, for `caju plan --replay`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) record_autocache_events: Option<PathBuf>,
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
    /// Address that readers dial, where it differs from the one listened on
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// Names that jobs may ask for, separated by commas
    #[arg(long, value_name = "TAG", value_delimiter = ',', value_parser = NonEmptyStringValueParser::new())]
    pub(crate) tags: Vec<String>,
    /// Threads that compute; the number of cores by default
    #[arg(long, value_name = "N")]
    pub(crate) cpu_threads: Option<u32>,
    /// How long to look for a dispatcher that is not there
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) connect_timeout: Duration,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
    #[command(flatten)]
    pub(crate) limits: ConnectionArgs,
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
}

/// What else can be done with workers.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum WorkerCommand {
    /// Give a worker no new tasks; it leaves when its present ones are done
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
        /// How long to look for a dispatcher that is not there
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
    /// For people, or for programs
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: StatusFormat,
    /// Show every epoch, not only the last of the jobs that ended last
    #[arg(long)]
    pub(crate) all: bool,
    /// How long to look for a dispatcher that is not there
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) connect_timeout: Duration,
}

/// How the status is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum StatusFormat {
    /// Tables
    Text,
    /// One JSON object
    Json,
}
