//! The command line: commands, options and their meaning.

mod bench;
mod cache;
mod mistakes;
mod plan;
mod sample;
mod save;
mod scale;
mod service;
#[cfg(test)]
mod tests;
mod tuned;
mod up;

use std::path::PathBuf;
use std::time::Duration;

use caju_cache::Encoding;
use caju_client::{Balance, Compression, TransferProtocol};
use caju_proto::v1::{ProcessingMode, TargetWorkers};
use clap::builder::NonEmptyStringValueParser;
use clap::builder::ValueHint;
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};

use crate::rank::Launcher;
pub(crate) use bench::{
    BenchArgs, BenchCommand, DispatcherBenchArgs, DispatcherPart, ExactlyOnceArgs, JournalArgs, OneTrial,
    PoliciesArgs, ProfilingOverheadArgs, StateBenchArgs,
};
pub(crate) use cache::{CacheArgs, CacheCommand, CacheRoot, ExplainArgs, OutputFormat, ProfileArgs};
pub(crate) use mistakes::mistake;
pub(crate) use plan::{PlanArgs, PlanFormat};
pub(crate) use sample::{DEFAULT_DIR, GenArgs, QuickstartArgs};
pub(crate) use save::SaveArgs;
pub(crate) use scale::ScaleArgs;
use service::ReadWaitArgs;
pub(crate) use service::{
    CacheRequestArgs, ConnectionArgs, DispatcherArgs, DispatcherSettings, ServeArgs, StatusArgs,
    StatusFormat, StoreArgs, WorkerArgs, WorkerCommand,
};
pub(crate) use tuned::{ComputeArgs, CpuThreads, TunedArgs};
pub(crate) use up::{UpArgs, WorkerCount};

const EXAMPLES: &str = "\
Try it:
  caju quickstart                                  sample photos, then three epochs of a training pipeline
  caju gen images --out data/photos --count 2000 --format tfrecord
  caju check examples/pipelines/imagenet-train.yaml
  caju run examples/pipelines/imagenet-train.yaml --epochs 2 --report run.json
  caju run examples/pipelines/imagenet-train.yaml --epochs 3 --cache data/cache
  caju explain examples/pipelines/imagenet-train.yaml --cache data/cache

As separate processes, on one machine or many:
  caju up --allow data/                            a dispatcher, and as many workers as readers need
  caju dispatcher --listen 127.0.0.1:7070 --allow data/
  caju worker --dispatcher 127.0.0.1:7070 --allow data/
  caju read examples/pipelines/imagenet-train.yaml --dispatcher 127.0.0.1:7070
  caju status --dispatcher 127.0.0.1:7070

Every option --some-name can also be set as CAJU_SOME_NAME, or in the file of --config: some-name under [COMMAND].
Exit codes: 0 done, 2 your input is wrong, 3 the environment is in the way, 4 `caju cache verify` found damage, \
1 a defect of caju.";

/// Input data for machine learning: described once, computed by workers, read by training jobs
#[derive(Debug, Parser)]
#[command(name = "caju", version, after_help = EXAMPLES, arg_required_else_help = true)]
#[command(subcommand_required = true, disable_help_subcommand = true, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Settings file, in TOML. No file is read that is not named here or in CAJU_CONFIG
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// What to log on standard error: error, warn, info, debug, trace, or per crate: caju_worker=debug
    #[arg(long, global = true, value_name = "LEVEL", default_value = "warn")]
    pub(crate) log: String,
    /// No progress and no summary; errors only
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) bounds: BoundArgs,
}

/// Bounds of this process, independent of the pipeline and the data.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Bounds")]
pub(crate) struct BoundArgs {
    /// The most memory that a stage may use for one chunk of rows. Give dispatcher and workers the same
    #[arg(long, global = true, value_name = "SIZE", default_value = "1GiB", value_parser = service::bound)]
    pub(crate) chunk_memory: u64,
    /// The most steps, of about a nanosecond each, that functions such as `levenshtein` may take for one chunk of rows
    #[arg(long, global = true, value_name = "N", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) chunk_steps: u64,
    /// The largest record of a source: a line, a record, a file of an archive, an image file
    #[arg(long, global = true, value_name = "SIZE", default_value = "256MiB", value_parser = service::bound)]
    pub(crate) max_record: u64,
    /// The largest row group of a Parquet file, in the columns that are read. Each split that is read concurrently holds one
    #[arg(long, global = true, value_name = "SIZE", default_value = "2GiB", value_parser = service::bound)]
    pub(crate) row_group_memory: u64,
    /// The most pixels of an image. A pipeline may set less, not more
    #[arg(long, global = true, value_name = "N", default_value_t = 100_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_pixels: u64,
    /// How long checking and planning a pipeline may take
    #[arg(long, global = true, value_name = "TIME", default_value = "10s", value_parser = service::duration)]
    pub(crate) bind_timeout: Duration,
    /// How long a save that is still written may have no new part until those that load it fail
    #[arg(long, global = true, value_name = "TIME", default_value = "5min", value_parser = service::duration)]
    pub(crate) save_wait: Duration,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a pipeline in this process: dispatcher, workers and reader together
    Run(RunArgs),
    /// Read a pipeline through a running dispatcher and its workers
    Read(ReadArgs),
    /// Store the rows of a pipeline under a URL of their own, to be loaded by others
    Save(SaveArgs),
    /// Check a pipeline file: its stages, schema and fingerprint, without running it
    Check(CheckArgs),
    /// Start a dispatcher: the control plane, one per cluster
    Dispatcher(DispatcherArgs),
    /// Start a worker, or drain one: workers compute and serve rows
    Worker(WorkerArgs),
    /// Start a dispatcher and workers on this machine, as many workers as the readers need
    Up(UpArgs),
    /// Show the workers, jobs, rates and bottlenecks of a running dispatcher
    Status(StatusArgs),
    /// Decide what is worth storing, from a measured profile, and explain it
    Plan(PlanArgs),
    /// Compute how many workers a pipeline needs, from a measured profile
    Scale(ScaleArgs),
    /// Measure what each caching policy costs on this pipeline and machine
    Bench(BenchArgs),
    /// Run one epoch and measure what storing rows would gain: a profile for `caju plan`
    Profile(ProfileArgs),
    /// Show which rows of a pipeline are stored, what differs from the nearest snapshot, and what was decided
    Explain(ExplainArgs),
    /// Manage a cache: list, inspect, verify, collect, remove, pin
    Cache(CacheArgs),
    /// Generate sample data: photos, tables or text
    Gen(GenArgs),
    /// Generate sample photos if there are none, and read three epochs of a training pipeline on them
    Quickstart(QuickstartArgs),
}

/// How the rows of an iteration are divided among workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Splits are leased to workers: every row exactly once
    Dynamic,
    /// Every worker runs the whole pipeline
    Off,
    /// Each of n workers has every n-th file of the source
    File,
    /// Each of n workers has every n-th row
    Data,
    /// By file if there are at least n files, else by row
    #[value(name = "file_or_data", alias = "file-or-data")]
    FileOrData,
    /// Each of n workers has its shard where the pipeline has a `shard` with HINT
    Hint,
}

impl Mode {
    /// The mode in a request.
    pub(crate) fn to_proto(self) -> ProcessingMode {
        match self {
            Mode::Dynamic => ProcessingMode::Dynamic,
            Mode::Off => ProcessingMode::Off,
            Mode::File => ProcessingMode::File,
            Mode::Data => ProcessingMode::Data,
            Mode::FileOrData => ProcessingMode::FileOrData,
            Mode::Hint => ProcessingMode::Hint,
        }
    }
}

fn policy(text: &str) -> Result<String, String> {
    text.parse::<caju_planner::Policy>().map(|p| p.to_string()).map_err(|e| e.message().to_string())
}

fn encoding(text: &str) -> Result<Encoding, String> {
    text.parse::<Encoding>().map_err(|e| e.message().to_string())
}

/// In which order stages run.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ReorderArgs {
    /// Run stages that shrink rows earlier, where both orders give the same rows; as `reorder: true` in the pipeline
    #[arg(long)]
    pub(crate) reorder: bool,
    /// The same, with the sizes of rows that a profile of this pipeline has measured (caju.profile/v1)
    #[arg(long, value_name = "PROFILE.json", value_hint = ValueHint::FilePath)]
    pub(crate) reorder_profile: Option<PathBuf>,
}

/// What is read, and what is reported about it.
#[derive(Debug, Clone, Args)]
pub(crate) struct EpochArgs {
    /// Epochs to read
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
    /// Epochs of the whole job, where other readers continue after these. --epochs by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) horizon: Option<u64>,
    /// Seed of everything random. By default the pipeline's own, else 0
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// How the rows are divided among the workers. With `caju read`, all but dynamic and off need the dispatcher's --workers
    #[arg(long, value_name = "MODE", default_value = "dynamic")]
    pub(crate) processing_mode: Mode,
    /// Policy that decides at which autocache() rows are stored: auto, compute, source, full, hint:NAME or cachew. auto
    /// where there is a cache
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    pub(crate) policy: Option<String>,
    /// Encoding of new parts: arrow/none, arrow/lz4, arrow/zstd, parquet/none, parquet/snappy, parquet/lz4 or
    /// parquet/zstd. The policy chooses by default
    #[arg(long, value_name = "FORMAT/CODEC", value_parser = encoding)]
    pub(crate) encoding: Option<Encoding>,
    /// Read stored rows only: the source may have been deleted. From the last autocache(), unless --policy names another
    #[arg(long)]
    pub(crate) cache_only: bool,
    #[command(flatten)]
    pub(crate) order: ReorderArgs,
    /// Write a report (caju.run/v1, JSON)
    #[arg(long, value_name = "OUT.json", value_hint = ValueHint::FilePath)]
    pub(crate) report: Option<PathBuf>,
    /// Leave rows_checksum out of the report: it costs about as much as copying the rows
    #[arg(long)]
    pub(crate) no_checksum: bool,
}

/// `caju run`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju run pipeline.yaml
  caju run pipeline.yaml --epochs 3 --workers 2 --report run.json
  caju run pipeline.yaml --processing-mode off --seed 7")]
pub(crate) struct RunArgs {
    /// Pipeline file (YAML or JSON)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Workers inside this process; they share its CPU threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: u32,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// Where rows are stored for later epochs and jobs: a folder or URL. A private folder for this run by default
    #[arg(long, value_name = "URL")]
    pub(crate) cache: Option<String>,
    /// The largest size of the cache, as 500GiB. The least useful snapshots are evicted for new ones
    #[arg(long, value_name = "SIZE", value_parser = service::size)]
    pub(crate) cache_budget: Option<u64>,
    /// Folder to record the autocache events of each job in, for `caju plan --replay`
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) record_autocache_events: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) epochs: EpochArgs,
}

/// What to do about rows that lost readers took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LostReadersArg {
    /// The epoch ends with an error
    #[default]
    Fail,
    /// The epoch ends as any other
    Allow,
}

/// What happens to the elements that do not fill a last round of consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum UnevenArg {
    /// They are dropped
    #[default]
    Drop,
    /// Some are delivered twice
    Pad,
}

/// What the elements that the consumers of a job get in one round have in common.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BalanceArg {
    /// Nothing
    #[default]
    None,
    /// Worker and class of bucket_by_length
    Bucket,
    /// Worker, and nearly the number of items
    Tokens,
}

impl From<BalanceArg> for Balance {
    fn from(arg: BalanceArg) -> Self {
        match arg {
            BalanceArg::None => Balance::None,
            BalanceArg::Bucket => Balance::Bucket,
            BalanceArg::Tokens => Balance::Tokens,
        }
    }
}

/// From which workers a reader reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum TargetWorkersArg {
    /// All but workers with the tag COLOCATED
    #[default]
    Auto,
    /// All
    Any,
    /// Those in the reader's own process
    Local,
}

impl From<TargetWorkersArg> for TargetWorkers {
    fn from(arg: TargetWorkersArg) -> Self {
        match arg {
            TargetWorkersArg::Auto => Self::Auto,
            TargetWorkersArg::Any => Self::Any,
            TargetWorkersArg::Local => Self::Local,
        }
    }
}

/// `caju read`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju read pipeline.yaml --dispatcher 127.0.0.1:7070
  caju read pipeline.yaml --dispatcher 127.0.0.1:7070 --job run-1 --epochs 3 --report run.json

Readers with one --job share each epoch's rows among them.")]
#[command(group(ArgGroup::new("of_launch").multiple(true).args(["state", "num_consumers", "rank_from_env"])))]
pub(crate) struct ReadArgs {
    /// Pipeline file (YAML or JSON)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Address of the dispatcher
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) dispatcher: String,
    /// Name of the job. Readers with the same name share its rows. A job of its own by default
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) job: Option<String>,
    /// At the end of an epoch of which lost readers of the job took rows: `fail`, or `allow` it and report it. A reader is
    /// lost when it was killed, or silent for the dispatcher's --client-timeout
    #[arg(long, value_name = "fail|allow", default_value = "fail")]
    pub(crate) lost_readers: LostReadersArg,
    /// Keep the reader's state in this file: written at the end of each epoch and on SIGINT or SIGTERM. If it is there,
    /// the reader continues from it, in any mode, with any number of workers
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) state: Option<PathBuf>,
    /// With --state: fail if the file is not there
    #[arg(long, requires = "state")]
    pub(crate) resume: bool,
    /// With --state or --num-consumers: the launch that this reader belongs to. Readers of one launch give the same name, and a
    /// later launch gives another one: it begins the epoch again behind its states, and readers of earlier launches are refused
    #[arg(long, value_name = "NAME", requires = "of_launch", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) attempt: Option<String>,
    /// Number of consumers of the job. All of them get the same number of elements, and each says --consumer-index. Without
    /// it the readers of a job share its elements as they come
    #[arg(long, value_name = "N", requires = "consumer_index", requires = "job", group = "consumers",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) num_consumers: Option<u32>,
    /// Which of the consumers this reader is, from 0
    #[arg(long, value_name = "I", requires = "num_consumers")]
    pub(crate) consumer_index: Option<u32>,
    /// Take --num-consumers and --consumer-index from the launcher that started this process: the number of its processes,
    /// and the rank of this one. `auto` reads the variables of every launcher; those that are set must agree
    #[arg(long, value_name = "LAUNCHER", num_args = 0..=1, require_equals = true, default_missing_value = "auto",
          requires = "job", group = "consumers")]
    pub(crate) rank_from_env: Option<Launcher>,
    /// What happens to the elements that are left when all consumers have had equally many: they are dropped, or the other
    /// consumers get copies of them
    #[arg(long, value_name = "drop|pad", default_value = "drop", requires = "consumers")]
    pub(crate) uneven: UnevenArg,
    /// Share computed rows with other jobs that run concurrently and compute the same rows, down to a common hint at least:
    /// a worker computes them once for all. `exact`: this job gets each row of its epochs once. `relaxed`: it does not get rows
    /// that another job computed in the same epoch and that no worker holds any more; the report counts them. A new job shares
    /// nothing by default
    #[arg(long, value_name = "exact|relaxed|off", requires = "job", value_parser = ["exact", "relaxed", "off"])]
    pub(crate) sharing: Option<String>,
    /// With --sharing exact or relaxed: one of several trainers that read the job under this --job and other ids. Each gets all rows
    #[arg(long, value_name = "ID", requires = "sharing", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) trainer_id: Option<String>,
    /// Priority of the job: where there are too few workers for all jobs, those of a higher priority are served first, and workers
    /// give them 16 times the thread time. 0 for a new job
    #[arg(long, value_name = "N", requires = "job", allow_negative_numbers = true)]
    pub(crate) priority: Option<i32>,
    /// Weight of the job among jobs of the same priority: with 2 it gets twice the workers and the thread time of one with 1, the
    /// default
    #[arg(long, value_name = "X", requires = "job")]
    pub(crate) weight: Option<f64>,
    /// What the n-th elements of all consumers have in common: `bucket`, the class of bucket_by_length and the length of
    /// padded lists; `tokens`, nearly the same number of items in all lists, for which rows are packed. Then the consumers
    /// read concurrently
    #[arg(long, value_name = "none|bucket|tokens", default_value = "none", requires = "consumers")]
    pub(crate) balance: BalanceArg,
    /// From which workers to read: `any`, or `auto`, which leaves out workers with the tag COLOCATED: they are read in their
    /// own processes. `local` reads workers of the reader's process alone, and this command has none
    #[arg(long, value_name = "auto|any|local", default_value = "auto", ignore_case = true)]
    pub(crate) target_workers: TargetWorkersArg,
    /// How rows are compressed on their way from workers: `auto` is lz4 from other machines, and none from this one. Rows that
    /// hardly shrink are sent as they are
    #[arg(long, value_name = "none|auto|lz4|zstd", default_value = "none", value_parser = Compression::of_name)]
    pub(crate) compression: Compression,
    /// The protocol by which rows come: `framed`, over TCP; or `auto`, from workers on this machine in shared memory where
    /// equal jobs share and that works, and else over sockets. `local` is for workers of the reader's process
    #[arg(long, value_name = "auto|framed|local", default_value = "auto", value_parser = TransferProtocol::of_name)]
    pub(crate) data_transfer_protocol: TransferProtocol,
    /// How long to wait for the first worker before the reader fails
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = service::duration)]
    pub(crate) worker_wait: std::time::Duration,
    /// How long to try to reach a dispatcher that does not answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = service::duration)]
    pub(crate) connect_timeout: std::time::Duration,
    /// The largest element that is accepted from a worker, at least 1MiB. A larger one ends the reader with an error
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = service::frame_size)]
    pub(crate) max_frame: u64,
    #[command(flatten)]
    pub(crate) waits: ReadWaitArgs,
    #[command(flatten)]
    pub(crate) epochs: EpochArgs,
}

/// `caju check`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  caju check examples/pipelines/imagenet-train.yaml

Exit code 2 and one clear message if the file is wrong.")]
pub(crate) struct CheckArgs {
    /// Pipeline file (YAML or JSON)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) order: ReorderArgs,
}
