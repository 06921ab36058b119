//! Arguments of `caju save`.

use std::path::PathBuf;
use std::time::Duration;

use caju_cache::Encoding;
use clap::Args;
use clap::builder::ValueHint;

use super::cache::OutputFormat;
use super::service::{duration, size};
use super::tuned::ComputeArgs;

/// `caju save`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju save photos.yaml --to data/saves/photos
  caju save photos.yaml --to s3://bucket/saves/photos --dispatcher 127.0.0.1:7070 --detach
  caju save photos.yaml --to data/saves/photos --encoding parquet/zstd --chunk-bytes 16MiB

A pipeline reads it back with `source: { load: { path: data/saves/photos } }`, also while it is being written.
The same command again continues an interrupted save: stored rows are not computed again.")]
pub(crate) struct SaveArgs {
    /// Pipeline file (YAML or JSON)
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Destination of the rows: a folder or URL of their own, which every worker may write
    #[arg(long, value_name = "URL")]
    pub(crate) to: String,
    /// Address of a dispatcher whose workers save the rows. Without it this process does
    #[arg(long, value_name = "HOST:PORT",
          conflicts_with_all = ["workers", "cpu_threads", "buffer", "buffer_memory", "split_readers"])]
    pub(crate) dispatcher: Option<String>,
    /// Return when the save has begun. The dispatcher continues it
    #[arg(long, requires = "dispatcher")]
    pub(crate) detach: bool,
    /// Encoding of parts: arrow/none (the default), arrow/lz4, arrow/zstd, parquet/none, parquet/snappy, parquet/lz4
    /// or parquet/zstd. A finished save keeps the encoding that it has
    #[arg(long, value_name = "FORMAT/CODEC", value_parser = super::encoding)]
    pub(crate) encoding: Option<Encoding>,
    /// The size of a chunk, the unit in which rows are loaded. At least one row each. A part (the rows of one split)
    /// is one chunk by default
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) chunk_bytes: Option<u64>,
    /// Workers of this process, where there is no dispatcher
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) workers: u32,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// How long to try to reach a dispatcher that does not answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) connect_timeout: Duration,
    /// Text for people, or JSON for programs
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: OutputFormat,
}
