//! The description of a dataset: its source, its stages and its hints.
//!
//! A [`DatasetDef`] is plain data. It says what the rows are, never where or when they are computed; what
//! runs is bound from it by the engine. Reading (YAML, JSON), checking and fingerprinting are in the sibling
//! modules.

use std::collections::BTreeMap;
use std::time::Duration;

/// A pipeline definition: immutable once made, named by its fingerprint.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetDef {
    /// A name for people; not part of the fingerprint.
    pub name: Option<String>,
    /// Where the rows come from.
    pub source: SourceDef,
    /// What happens to them, in order.
    pub stages: Vec<StageDef>,
    /// Settings of the whole definition.
    pub options: Options,
}

/// Settings of a whole definition.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The seed that stages without one of their own derive theirs from, unless the job gives one; 0.
    pub seed: Option<u64>,
    /// What to do with rows that fail.
    pub on_error: OnError,
    /// Promise the order of rows and the make-up of batches, at the price of some speed.
    pub deterministic: bool,
    /// Rows come from what is stored at a hint, and from nowhere else: the source is not even looked for.
    pub cache_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: None, on_error: OnError::Fail, deterministic: false, cache_only: false }
    }
}

/// What to do with a row whose data is bad (I9). I/O errors always fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The job fails, naming file, row and stage.
    Fail,
    /// The row is dropped and counted, until more than `limit` rows of an epoch were dropped.
    Skip {
        /// The most rows of one epoch that may be dropped; beyond it the job fails.
        limit: u64,
    },
}

/// Where rows come from.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceDef {
    /// Files in an object store.
    Files(FileSource),
    /// Consecutive integers in the column `id` (int64): `start, start + step, ...` below `end`.
    Range {
        /// First value.
        start: i64,
        /// One past the last value (in the direction of `step`).
        end: i64,
        /// Distance between values; not 0.
        step: i64,
    },
    /// Rows held in the definition itself, as an Arrow IPC stream.
    Memory {
        /// The bytes of an Arrow IPC stream.
        ipc: bytes::Bytes,
    },
    /// The same rows, held by the process that computes them and named by their content.
    Held {
        /// The SHA-256 of the Arrow IPC stream in hexadecimal digits, see [`crate::content_name`].
        sha256: String,
    },
    /// The datasets one after another.
    Concatenate(Vec<DatasetDef>),
    /// Rows drawn from the datasets with the given weights until all are used up.
    Sample {
        /// The datasets.
        datasets: Vec<DatasetDef>,
        /// One positive weight per dataset.
        weights: Vec<f64>,
        /// Seed of the draws; derived from the job's if absent.
        seed: Option<u64>,
    },
    /// Rows of the datasets side by side; their rows must be aligned or the definition is refused.
    Zip(Vec<DatasetDef>),
    /// The rows of a save.
    Load {
        /// The folder or URL that the rows were saved to; a relative one was resolved against the pipeline file.
        path: String,
        /// Whether a save that is not finished is waited for.
        wait: bool,
    },
}

/// Files of one format.
#[derive(Debug, Clone, PartialEq)]
pub struct FileSource {
    /// What is in the files.
    pub format: FileFormat,
    /// URLs or paths, each may hold globs (`*`, `?`, `[a-z]`, `**`, `{a,b}`); relative ones were resolved
    /// against the pipeline file.
    pub paths: Vec<String>,
    /// How a file's version is known.
    pub version: VersionRule,
    /// The size below which files are not cut, and the nominal size of a split in bytes.
    pub split_bytes: u64,
}

/// The most rows of an epoch that `on_error: skip` drops unless it says otherwise.
pub const DEFAULT_SKIP_LIMIT: u64 = 1000;

/// The default nominal size of a split.
pub const DEFAULT_SPLIT_BYTES: u64 = 16 << 20;

/// How the version of a source file is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionRule {
    /// From the listing: e-tag, or size, mtime and ctime on local files.
    Listed,
    /// From a hash of the content (reads every file once).
    Content,
}

/// What is in a file, and the options of its reader.
#[derive(Debug, Clone, PartialEq)]
pub enum FileFormat {
    /// TFRecord; one column `record` (binary).
    TfRecord {
        /// Compression of the whole file.
        compression: Compression,
    },
    /// Parquet.
    Parquet {
        /// Columns to read; all if absent.
        columns: Option<Vec<String>>,
    },
    /// Arrow IPC files.
    Arrow {
        /// Columns to read; all if absent.
        columns: Option<Vec<String>>,
    },
    /// Tar files of samples; column `__key__` (string) and one binary column per extension.
    WebDataset {
        /// Compression of the whole file.
        compression: Compression,
        /// The extensions to expect; found from the first samples if absent.
        columns: Option<Vec<String>>,
    },
    /// Comma-separated values.
    Csv {
        /// Whether the first line names the columns.
        header: bool,
        /// The separator.
        delimiter: char,
        /// Names and types of the columns; found from the first rows if absent.
        schema: Option<Vec<(String, ColumnType)>>,
        /// Compression of the whole file.
        compression: Compression,
    },
    /// One JSON object a line.
    Json {
        /// Names and types of the columns; found from the first rows if absent.
        schema: Option<Vec<(String, ColumnType)>>,
        /// Compression of the whole file.
        compression: Compression,
    },
    /// One image per file: columns `path` (string), `image` (binary), `label` (string, the folder's name).
    Images,
}

/// Compression of a whole file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// By the file's extension (`.gz` is gzip, `.zst` zstd), else none.
    Auto,
    /// None.
    None,
    /// Gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

/// The type of a column where a definition names one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// 64-bit integer.
    Int64,
    /// 32-bit integer.
    Int32,
    /// 32-bit float.
    Float32,
    /// 64-bit float.
    Float64,
    /// UTF-8 text.
    String,
    /// Bytes.
    Bytes,
    /// Boolean.
    Bool,
}

/// One feature of a tf.train.Example.
#[derive(Debug, Clone, PartialEq)]
pub struct Feature {
    /// Bytes, Int64 or Float32.
    pub dtype: ColumnType,
    /// A single value, a fixed number of values, or a list.
    pub shape: FeatureShape,
    /// Null where a record lacks it. Otherwise a value that is lacking is an error, and a list is empty.
    pub optional: bool,
}

/// How many values a feature has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeatureShape {
    /// Exactly one.
    Scalar,
    /// Exactly this many: a fixed-size list.
    Fixed(u32),
    /// Any number: a list.
    List,
}

/// A function of the user's own. What it does is named by `code`; `payload` is the same thing in a form that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonFunction {
    /// What it makes of rows.
    pub kind: PythonKind,
    /// For messages; not part of the fingerprint.
    pub name: String,
    /// A digest of the code by value, or of a version that the user gave.
    pub code: String,
    /// Whether it takes a dict of arrays, not a dict per row.
    pub batched: bool,
    /// Whether it draws random numbers by the row's key (`caju.rng()`).
    pub random: bool,
    /// The function, packed; not part of the fingerprint.
    pub payload: bytes::Bytes,
    /// The columns that it makes, as an Arrow IPC stream without rows; empty for a filter.
    pub schema: bytes::Bytes,
    /// How long it may take for a row, or for a batch if it takes batches; the server's own patience if absent. Not part
    /// of the fingerprint.
    pub timeout: Option<std::time::Duration>,
}

/// What a function makes of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PythonKind {
    /// One row of each.
    Map,
    /// Whether to keep each.
    Filter,
    /// Any number of rows of each.
    FlatMap,
}

impl PythonKind {
    /// The word in pipeline files.
    pub fn as_str(self) -> &'static str {
        match self {
            PythonKind::Map => "map",
            PythonKind::Filter => "filter",
            PythonKind::FlatMap => "flat_map",
        }
    }
}

/// One stage: an operator, with the place it has in the definition.
#[derive(Debug, Clone, PartialEq)]
pub struct StageDef {
    /// The operator.
    pub op: StageOp,
}

/// The operators. Stages up to the first stream stage see one split at a time; the rest see the stream.
#[derive(Debug, Clone, PartialEq)]
pub enum StageOp {
    /// Decodes tf.train.Example records in `column`; the row becomes these features, in the order given.
    ParseExample {
        /// The binary column that holds the records; `record`.
        column: String,
        /// Feature name to its type.
        features: Vec<(String, Feature)>,
    },
    /// The row becomes these expressions.
    Map(Vec<(String, String)>),
    /// These expressions are added to the row, or replace columns of the same name.
    WithColumns(Vec<(String, String)>),
    /// Keeps these columns, in this order.
    Select(Vec<String>),
    /// Keeps the rows for which the expression is true.
    Filter(String),
    /// One row per value of a list column; the other columns repeat. A null or empty list gives no row.
    Unnest {
        /// The list column.
        column: String,
    },
    /// One row per value of a list expression, as column `name`; the other columns repeat.
    FlatMap {
        /// The new column.
        name: String,
        /// An expression that gives a list.
        expr: String,
    },
    /// Waits; one at a time per worker.
    Sleep(Cost),
    /// Burns CPU time; one at a time per worker.
    Burn(Cost),
    /// Makes a column's values longer by `factor`, as Cachew's experiments do: binary, string and list
    /// columns are repeated cyclically.
    Inflate {
        /// The column.
        column: String,
        /// At least 1.
        factor: f64,
    },
    /// A function of the user's own, written in Python.
    Python(PythonFunction),
    /// A hint: reuse is acceptable here.
    Autocache {
        /// Its name; `hint-0`, `hint-1`, ... by default.
        name: String,
    },
    /// Permutes rows (or batches) within a buffer, and the order of splits each epoch.
    Shuffle {
        /// Elements in the buffer.
        buffer: u64,
        /// Its seed; derived from the job's if absent.
        seed: Option<u64>,
        /// The most bytes that the buffer may hold.
        max_bytes: u64,
    },
    /// Repeats everything above it; for ever if the count is absent.
    Repeat(Option<u64>),
    /// The first n elements, in canonical order.
    Take(u64),
    /// All but the first n elements, in canonical order.
    Skip(u64),
    /// n rows become one element.
    Batch {
        /// Rows per batch.
        size: u64,
        /// Whether a short batch at the end is dropped.
        drop_remainder: bool,
    },
    /// n rows become one element; list columns are padded to the longest of the batch.
    PaddedBatch {
        /// Rows per batch.
        size: u64,
        /// Whether a short batch at the end is dropped.
        drop_remainder: bool,
        /// Fixed lengths for some columns; longer values are an error.
        lengths: BTreeMap<String, u32>,
        /// The padding value for some columns; 0 or the empty string by default.
        values: BTreeMap<String, serde_json::Value>,
    },
    /// Rows are collected by length class, and each full class becomes a padded batch.
    BucketByLength {
        /// An integer expression: the length of a row.
        length: String,
        /// Upper bounds (exclusive) of the classes; one class more than bounds.
        boundaries: Vec<i64>,
        /// Rows per batch of each class.
        batch_sizes: Vec<u64>,
        /// Whether short batches at the end are dropped.
        drop_remainder: bool,
        /// Whether list columns are padded to the longest of the batch.
        pad: bool,
    },
    /// A batch becomes its rows.
    Unbatch,
    /// Up to n elements are computed ahead of the reader.
    Prefetch(u64),
}

/// The default bound of a shuffle buffer in bytes.
pub const DEFAULT_SHUFFLE_BYTES: u64 = 1 << 30;

/// What an artificial stage costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// For every row.
    PerRow(Duration),
    /// For every batch of the engine (below `batch`: for every element).
    PerBatch(Duration),
}

impl StageOp {
    /// Every stage's name in pipeline files, in the order of the documentation.
    pub const NAMES: [&'static str; 21] = [
        "parse_example",
        "map",
        "with_columns",
        "select",
        "filter",
        "unnest",
        "flat_map",
        "sleep",
        "burn",
        "inflate",
        "python",
        "autocache",
        "shuffle",
        "repeat",
        "take",
        "skip",
        "batch",
        "padded_batch",
        "bucket_by_length",
        "unbatch",
        "prefetch",
    ];

    /// The stage's name in pipeline files.
    pub fn name(&self) -> &'static str {
        match self {
            StageOp::ParseExample { .. } => "parse_example",
            StageOp::Map(_) => "map",
            StageOp::WithColumns(_) => "with_columns",
            StageOp::Select(_) => "select",
            StageOp::Filter(_) => "filter",
            StageOp::Unnest { .. } => "unnest",
            StageOp::FlatMap { .. } => "flat_map",
            StageOp::Sleep(_) => "sleep",
            StageOp::Burn(_) => "burn",
            StageOp::Inflate { .. } => "inflate",
            StageOp::Python(_) => "python",
            StageOp::Autocache { .. } => "autocache",
            StageOp::Shuffle { .. } => "shuffle",
            StageOp::Repeat(_) => "repeat",
            StageOp::Take(_) => "take",
            StageOp::Skip(_) => "skip",
            StageOp::Batch { .. } => "batch",
            StageOp::PaddedBatch { .. } => "padded_batch",
            StageOp::BucketByLength { .. } => "bucket_by_length",
            StageOp::Unbatch => "unbatch",
            StageOp::Prefetch(_) => "prefetch",
        }
    }

    /// Whether the stage sees one split at a time when it stands above every stream stage.
    pub fn is_split_local(&self) -> bool {
        !matches!(
            self,
            StageOp::Shuffle { .. }
                | StageOp::Repeat(_)
                | StageOp::Take(_)
                | StageOp::Skip(_)
                | StageOp::Batch { .. }
                | StageOp::PaddedBatch { .. }
                | StageOp::BucketByLength { .. }
                | StageOp::Unbatch
                | StageOp::Prefetch(_)
        )
    }
}
