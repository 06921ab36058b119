//! Arguments of `caju bench`.

use std::path::PathBuf;
use std::time::Duration;

use caju_cache::Encoding;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueEnum, ValueHint};

use super::tuned::ComputeArgs;

/// `caju bench`.
#[derive(Debug, Clone, Args)]
#[command(disable_help_subcommand = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) command: BenchCommand,
}

/// What is measured.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum BenchCommand {
    /// Run a pipeline under every caching policy, and show how far each is from the best one
    Policies(Box<PoliciesArgs>),
    /// Measure what it costs to measure the time of every stage
    #[command(alias = "taps")]
    ProfilingOverhead(ProfilingOverheadArgs),
    /// Measure the databases of the dispatcher's journal, and kill a process that writes one
    #[command(hide = true)]
    Journal(JournalArgs),
    /// Measure a dispatcher under simulated workers and clients
    #[command(hide = true)]
    Dispatcher(DispatcherBenchArgs),
    /// Measure what exactly-once delivery with a journal on disk costs
    #[command(hide = true)]
    ExactlyOnce(ExactlyOnceArgs),
    /// Measure the states of the readers of a job of many splits
    #[command(hide = true)]
    State(StateBenchArgs),
}

/// `caju bench policies`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju bench policies pipeline.yaml --epochs 4 --repeats 3
  caju bench policies pipeline.yaml --repeats 1 --refine-rounds 6 --cold-only
  caju bench policies pipeline.yaml --policies compute,auto --out result.json --plot result.svg
  AWS_ENDPOINT_URL=http://127.0.0.1:9000 caju bench policies pipeline.yaml --scratch s3://bucket/bench

Each trial has a process of its own with a fresh cluster: a cold job with an empty cache, then a warm job on the cache \
that it left. Trials alternate, so that drift of the machine does not favour one policy. `oracle` is the best measured \
policy among those that decide nothing. Regret is the time lost against it in the same round, over the whole horizon: \
the median of the rounds, and its interval in nine of ten cases. Object stores take their credentials from the \
environment, as --cache of `caju run` does.")]
pub(crate) struct PoliciesArgs {
    /// Pipeline file (YAML or JSON)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Policies to run; by default compute, every hint, cachew and auto
    #[arg(long, value_name = "P,P", value_delimiter = ',', value_parser = super::policy)]
    pub(crate) policies: Vec<String>,
    /// Epochs of each job
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
    /// Epochs of the job for which policies are compared. Epochs that are not measured count like the last ones (the
    /// median of the last half). --epochs by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) horizon: Option<u64>,
    /// Rounds: how often every policy is run
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeats: u32,
    /// Further rounds of auto and of the policies within a quarter of the best, which is where precision matters
    #[arg(long, alias = "finals", value_name = "N", default_value_t = 0)]
    pub(crate) refine_rounds: u32,
    /// Leave the warm jobs out
    #[arg(long)]
    pub(crate) cold_only: bool,
    /// How parts are written under the policies that decide nothing
    #[arg(long, value_name = "FORMAT/CODEC", value_parser = super::encoding)]
    pub(crate) encoding: Option<Encoding>,
    /// The most that a cache may hold
    #[arg(long, value_name = "SIZE", value_parser = super::service::size)]
    pub(crate) cache_budget: Option<u64>,
    /// Place of the caches: a folder, or a URL such as s3://bucket/prefix to measure that store. Each cache has a name of
    /// its own there, and is removed after its trials. The system's temporary folder by default
    #[arg(long, value_name = "DIR|URL", value_hint = ValueHint::DirPath,
          value_parser = NonEmptyStringValueParser::new())]
    pub(crate) scratch: Option<String>,
    /// Keep the caches in memory, throttled like a remote store: bytes per second of each request
    #[arg(long, value_name = "SIZE", value_parser = super::service::size, conflicts_with = "scratch")]
    pub(crate) store_bandwidth: Option<u64>,
    /// Likewise: the least time that each request takes
    #[arg(long, value_name = "DURATION", value_parser = super::service::duration, conflicts_with = "scratch")]
    pub(crate) store_latency: Option<Duration>,
    /// How long the reader works on each element before it asks for the next one, as a training step does
    #[arg(long, value_name = "DURATION", value_parser = super::service::duration)]
    pub(crate) step: Option<Duration>,
    /// Workers inside this process
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: u32,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// Write every trial and the summary (caju.policies/v1, JSON)
    #[arg(long, value_name = "OUT.json", value_hint = ValueHint::FilePath)]
    pub(crate) out: Option<PathBuf>,
    /// Run one trial of one policy and print it as JSON; the command starts itself so
    #[arg(long, hide = true, value_name = "POLICY@ROUND", value_parser = one)]
    pub(crate) trial: Option<OneTrial>,
    /// Draw the time of the whole job under each policy
    #[arg(long, value_name = "OUT.svg|png", value_hint = ValueHint::FilePath)]
    pub(crate) plot: Option<PathBuf>,
}

/// One policy in one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OneTrial {
    pub(crate) policy: String,
    pub(crate) round: u32,
}

fn one(text: &str) -> Result<OneTrial, String> {
    let (policy, round) = text.rsplit_once('@').ok_or("it has no round")?;
    Ok(OneTrial {
        policy: super::policy(policy)?,
        round: round.parse().map_err(|e| format!("its round: {e}"))?,
    })
}

/// `caju bench profiling-overhead`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  caju bench profiling-overhead pipeline.yaml --repeats 9

Profiling reads the thread's CPU clock and the wall clock twice for every piece of a stage's work. Epochs with and \
without it alternate, and each pair gives a ratio of CPU times. Rows and bytes are counted in any case.")]
pub(crate) struct ProfilingOverheadArgs {
    /// Pipeline file (YAML or JSON)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Pairs of epochs
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeats: u32,
    /// CPU threads; the number of cores by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cpu_threads: Option<u32>,
}

/// `caju bench journal`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju bench journal --dir /var/lib/caju
  caju bench journal --rounds 0 --kills 1000

A commit is what a dispatcher does before it answers: groups of updates, durable on the disk below --dir. Databases \
alternate. A kill is SIGKILL, at a random moment, to a process that commits and now and then compacts; afterwards the \
journal must hold everything that the process had called durable, in order, and nothing that was not written.")]
pub(crate) struct JournalArgs {
    /// Databases to measure
    #[arg(long, value_name = "DATABASE", value_delimiter = ',', default_value = "sled,redb")]
    pub(crate) journal: Vec<super::service::JournalDatabase>,
    /// Folder on the disk that is meant; journals lie in folders of their own in it and are removed
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Rounds of commits
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) rounds: u32,
    /// Commits of one group each in a round, and as many groups again, 16 to a commit
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(16..))]
    pub(crate) commits: u64,
    /// Kills of each database
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) kills: u32,
    /// Chooses the moments of the kills
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write to the journal in this folder until killed
    #[arg(long, hide = true, value_name = "DIR")]
    pub(crate) append: Option<PathBuf>,
}

/// `caju bench exactly-once`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  caju bench exactly-once pipeline.yaml --repeats 9 --dir /var/lib/caju

Two clusters of a dispatcher and a worker stand by, and epochs of them alternate. The dispatcher of one has its journal below \
--dir, and the reader tracks and acknowledges rows. The other one has its journal in memory, and its reader does neither.")]
pub(crate) struct ExactlyOnceArgs {
    /// Pipeline file (YAML or JSON)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Pairs of epochs
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) repeats: u32,
    /// Folder on the disk that is meant; what is written there is removed
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Program of the workers, this one by default: another build of caju
    #[arg(long, value_name = "CAJU", value_hint = ValueHint::FilePath)]
    pub(crate) program: Option<PathBuf>,
    /// Write the result (caju.exactly-once-bench/v1, JSON)
    #[arg(long, value_name = "OUT.json", value_hint = ValueHint::FilePath)]
    pub(crate) out: Option<PathBuf>,
}

/// `caju bench state`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example:
  caju bench state --splits 1000000 --readers 8

Readers of one job read a source of tiny splits from workers of this process, and each takes its state twenty times.")]
pub(crate) struct StateBenchArgs {
    /// Splits of the job
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) splits: u32,
    /// Readers that share the job
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) readers: u32,
    /// Workers in this process
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: u32,
    /// Folder for the source; what is written there is removed
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Write the result (caju.state-bench/v1, JSON)
    #[arg(long, value_name = "OUT.json", value_hint = ValueHint::FilePath)]
    pub(crate) out: Option<PathBuf>,
}

/// What `caju bench dispatcher` measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DispatcherPart {
    /// Answers to heartbeats of many workers and clients
    Heartbeats,
    /// Splits that are leased durably
    Splits,
    /// The start on the journal that the part `splits` left
    Restart,
}

/// `caju bench dispatcher`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju bench dispatcher --core 0
  caju bench dispatcher --parts heartbeats --splits-per-s 20000 --duration 30s
  caju bench dispatcher --parts splits,restart --splits 1000000 --out result.json

Workers and clients are simulated over loopback TCP, one connection each; the dispatcher is a process of its own with its \
journal below --dir. --core pins it to one core by `taskset`, so that the simulation has the others. A client waits for \
news as a real one does, and the time of its answer counts from the end of this wait. Part `restart` kills the dispatcher \
of part `splits` by SIGKILL and starts it again.")]
pub(crate) struct DispatcherBenchArgs {
    /// Parts to run, in their order
    #[arg(long, value_name = "PART", value_delimiter = ',', default_value = "heartbeats,splits,restart")]
    pub(crate) parts: Vec<DispatcherPart>,
    /// Simulated workers
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) workers: u32,
    /// Simulated clients
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) clients: u32,
    /// Jobs that the clients share
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) jobs: u32,
    /// Interval of heartbeats
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = super::service::duration)]
    pub(crate) heartbeat: Duration,
    /// How long heartbeats are measured
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = super::service::duration)]
    pub(crate) duration: Duration,
    /// Splits that are leased per second while heartbeats are measured
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) splits_per_s: u32,
    /// Splits that part `splits` leases
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) splits: u32,
    /// Workers of part `splits`, each with one lease after another
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) leasing_workers: u32,
    /// Splits of one lease
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) lease: u32,
    /// Database of the journal
    #[arg(long, value_name = "DATABASE", default_value = "sled")]
    pub(crate) journal: super::service::JournalDatabase,
    /// Folder on the disk that is meant; what is written there is removed
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Program that is measured, this one by default: another build of caju, to compare with
    #[arg(long, value_name = "CAJU", value_hint = ValueHint::FilePath)]
    pub(crate) program: Option<PathBuf>,
    /// Core of the dispatcher; without it the system chooses
    #[arg(long, value_name = "N")]
    pub(crate) core: Option<u32>,
    /// Write the result (caju.dispatcher-bench/v1, JSON)
    #[arg(long, value_name = "OUT.json", value_hint = ValueHint::FilePath)]
    pub(crate) out: Option<PathBuf>,
}
