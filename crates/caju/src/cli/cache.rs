//! Arguments of `caju cache`, `caju explain` and `caju profile`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, ValueHint};
use clap::{Args, Subcommand, ValueEnum};

use super::ReorderArgs;
use super::service::{CacheLeaseArgs, CacheRequestArgs, duration, size};
use super::tuned::ComputeArgs;

/// `caju cache`.
#[derive(Debug, Clone, Args)]
#[command(
    disable_help_subcommand = true,
    after_help = "\
Examples:
  caju cache ls --cache /data/caju-cache
  caju cache inspect f5938fad --cache s3://bucket/cache
  caju cache verify --cache /data/caju-cache
  caju cache gc --dry-run --budget 500GiB --ttl 30d --cache /data/caju-cache
  caju cache rm f5938fad --cache /data/caju-cache

A snapshot is named by its fingerprint, or by first digits that no other one shares. See docs/caching.md."
)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    pub(crate) command: CacheCommand,
}

/// The commands on a cache.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum CacheCommand {
    /// List the snapshots: their content, their jobs, and the CPU time that they saved
    Ls(CacheRoot),
    /// Show one snapshot in full: stages, columns, parts
    Inspect {
        /// The snapshot: the first digits of its fingerprint
        #[arg(value_name = "FINGERPRINT", value_parser = NonEmptyStringValueParser::new())]
        fingerprint: String,
        #[command(flatten)]
        root: CacheRoot,
    },
    /// Read every part again and check it; exit code 4 and a list if anything is damaged
    Verify {
        /// Only this snapshot
        #[arg(value_name = "FINGERPRINT", value_parser = NonEmptyStringValueParser::new())]
        fingerprint: Option<String>,
        /// Drop damaged parts, so that jobs compute and store them again. Of a save nothing is dropped
        #[arg(long)]
        repair: bool,
        #[command(flatten)]
        root: CacheRoot,
    },
    /// Delete what is expired, orphaned, superseded or over the budget
    Gc {
        /// Only print what would be deleted
        #[arg(long)]
        dry_run: bool,
        /// The largest size of the cache, as 500GiB: the least useful parts are deleted until it fits
        #[arg(long, value_name = "SIZE", value_parser = size)]
        budget: Option<u64>,
        /// Delete snapshots that were not used for this long
        #[arg(long, value_name = "TIME", value_parser = duration)]
        ttl: Option<Duration>,
        /// Keep younger objects: they may belong to a writer that is still running
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = duration)]
        grace: Duration,
        #[command(flatten)]
        lease: CacheLeaseArgs,
        #[command(flatten)]
        root: CacheRoot,
    },
    /// Delete snapshots. Jobs that need them compute and store the rows again
    Rm {
        /// The snapshots: the first digits of each fingerprint
        #[arg(value_name = "FINGERPRINT", required = true, value_parser = NonEmptyStringValueParser::new())]
        fingerprints: Vec<String>,
        /// Also snapshots that a process reads or writes now
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        root: CacheRoot,
    },
    /// Keep a snapshot from being evicted, expired or removed
    Pin {
        /// The snapshot: the first digits of its fingerprint
        #[arg(value_name = "FINGERPRINT", value_parser = NonEmptyStringValueParser::new())]
        fingerprint: String,
        #[command(flatten)]
        root: CacheRoot,
    },
    /// Remove the pin of a snapshot
    Unpin {
        /// The snapshot: the first digits of its fingerprint
        #[arg(value_name = "FINGERPRINT", value_parser = NonEmptyStringValueParser::new())]
        fingerprint: String,
        #[command(flatten)]
        root: CacheRoot,
    },
}

/// The cache, and the format of the answer.
#[derive(Debug, Clone, Args)]
pub(crate) struct CacheRoot {
    /// The cache: a folder or URL
    #[arg(long, value_name = "URL", value_hint = ValueHint::DirPath)]
    pub(crate) cache: String,
    /// Text for people, or JSON for programs
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: OutputFormat,
    #[command(flatten)]
    pub(crate) requests: CacheRequestArgs,
}

/// The format of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Tables and sentences
    Text,
    /// One JSON object
    Json,
}

/// `caju explain`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju explain pipeline.yaml --cache /data/caju-cache
  caju explain pipeline.yaml --dispatcher 127.0.0.1:7070 --job run-1

For each autocache(): whether its rows are stored (all, some or none of the splits), and what differs from the \
nearest snapshot. With a dispatcher also the last decision of the job.")]
pub(crate) struct ExplainArgs {
    /// Pipeline file (YAML or JSON)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// The cache: a folder or URL. The dispatcher's by default
    #[arg(long, value_name = "URL", value_hint = ValueHint::DirPath)]
    pub(crate) cache: Option<String>,
    /// Address of a dispatcher, for its cache and its jobs' decisions
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) dispatcher: Option<String>,
    /// The job. By default the latest one that reads this pipeline
    #[arg(long, value_name = "NAME", requires = "dispatcher", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) job: Option<String>,
    /// The job's seed, if it is not the pipeline's own: it enters the fingerprints of random stages
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) order: ReorderArgs,
    /// Text for people, or JSON for programs
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: OutputFormat,
    /// How long to try to reach a dispatcher that does not answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) connect_timeout: Duration,
    #[command(flatten)]
    pub(crate) cache_requests: CacheRequestArgs,
}

/// `caju profile`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju profile pipeline.yaml > profile.json
  caju profile pipeline.yaml --epochs 90 --cache s3://bucket/cache --out profile.json
  caju plan profile.json --policy hint:resized

One epoch is computed in this process, and nothing is kept: every encoding is probed at every autocache(). With --out \
the decision that follows from the profile is printed too.")]
pub(crate) struct ProfileArgs {
    /// Pipeline file (YAML or JSON)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Write the profile (caju.profile/v1, JSON) to this file instead of standard output
    #[arg(long, value_name = "PROFILE.json", value_hint = ValueHint::FilePath)]
    pub(crate) out: Option<PathBuf>,
    /// Where rows would be stored, to measure that store: a folder or URL. A temporary folder by default
    #[arg(long, value_name = "URL", value_hint = ValueHint::DirPath)]
    pub(crate) cache: Option<String>,
    /// The largest size of the cache, as 500GiB
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) cache_budget: Option<u64>,
    /// Epochs of the job, over which storing has to pay. 10 by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: Option<u64>,
    /// Seed of everything random. By default the pipeline's own, else 0
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
    /// Workers inside this process; they share its CPU threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: u32,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
}
