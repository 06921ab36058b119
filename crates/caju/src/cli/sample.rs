//! `caju gen` and `caju quickstart`.

use std::path::PathBuf;

use clap::builder::ValueHint;
use clap::{Args, ValueEnum};

/// What kind of rows.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Kind {
    /// JPEG photos of about 500x375 pixels and 110 KB: columns id, image, label
    Images,
    /// A Criteo-like table: label, I1..I13, C1..C26
    Table,
    /// Documents of very different lengths: columns id, text, label
    Text,
}

impl From<Kind> for caju_samples::Kind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Images => Self::Images,
            Kind::Table => Self::Table,
            Kind::Text => Self::Text,
        }
    }
}

/// A file format of sample data.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Format {
    /// TFRecord files of tf.train.Example
    Tfrecord,
    /// Parquet files
    Parquet,
    /// Tar files of samples (images: .jpg and .cls; text: .txt and .cls)
    Webdataset,
    /// One JPEG per image, in a folder per class
    Files,
    /// Comma-separated values with a header
    Csv,
    /// One JSON object a line
    Json,
    /// Arrow IPC files
    Arrow,
}

impl From<Format> for caju_samples::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Tfrecord => Self::Tfrecord,
            Format::Parquet => Self::Parquet,
            Format::Webdataset => Self::Webdataset,
            Format::Files => Self::Files,
            Format::Csv => Self::Csv,
            Format::Json => Self::Json,
            Format::Arrow => Self::Arrow,
        }
    }
}

/// `caju gen`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  caju gen images --out data/photos --count 10000 --format tfrecord,parquet
  caju gen table --out s3://bucket/clicks --count 5000000 --format parquet --shards 16
  caju gen text --out data/text --count 100000 --seed 7 --format json

One format is written into DIR, several into DIR/FORMAT. The same kind, count and seed give the same bytes.
  images   tfrecord, parquet, webdataset, files, arrow
  table    parquet, tfrecord, csv, json, arrow
  text     parquet, tfrecord, webdataset, csv, json, arrow")]
pub(crate) struct GenArgs {
    /// What to generate
    #[arg(value_name = "KIND")]
    pub(crate) kind: Kind,
    /// Folder to write into: a path, or a URL (file, s3, gs, az)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) out: String,
    /// Rows to generate
    #[arg(long, value_name = "N")]
    pub(crate) count: u64,
    /// Seed: another one gives other rows
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// One format or several, separated by commas
    #[arg(
        long,
        value_name = "FORMAT",
        value_delimiter = ',',
        default_value = "parquet",
        hide_possible_values = true
    )]
    pub(crate) format: Vec<Format>,
    /// Files per format. By default their number follows from --count
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=99_999))]
    pub(crate) shards: Option<u64>,
    /// CPU threads; the number of cores by default. Does not change the data
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cpu_threads: Option<u32>,
    /// Replace the sample data of an earlier run, as recorded in _caju_gen.json there. Other files stay
    #[arg(long)]
    pub(crate) overwrite: bool,
}

/// The default folder of `caju quickstart`.
pub(crate) const DEFAULT_DIR: &str = "data/quickstart";

/// `caju quickstart`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Generates 2,000 photos in TFRecord under --dir (about 215 MB) unless they are there. Reads three epochs of \
a training pipeline on them: decode, resize, random crop, random flip, shuffle, batch. The first epoch measures at which \
of two hints storing rows pays, and the later ones read the stored rows (about 130 MB) from --cache. To stay \
below 500 MB of memory it computes on at most 8 threads, and keeps 64 MiB of stored rows in memory (`caju run`: 256 MiB).

Examples:
  caju quickstart
  caju quickstart --print-pipeline > my.yaml       # the pipeline, to change it for your own data")]
pub(crate) struct QuickstartArgs {
    /// Folder of the sample data
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR, value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Photos to generate
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: u64,
    /// Epochs to read
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
    /// Where rows are stored for later epochs and runs: a folder or URL. The name of --dir with `-cache` by default
    #[arg(long, value_name = "URL")]
    pub(crate) cache: Option<String>,
    /// Print the pipeline file with its comments, and do nothing else. Its paths are below --dir
    #[arg(long)]
    pub(crate) print_pipeline: bool,
    /// Replace other sample data in --dir. In the default folder that is done without this flag
    #[arg(long)]
    pub(crate) overwrite: bool,
}
