//! The description of a dataset: its source, its stages and its hints.
//!
//! A [`DatasetDef`] is plain data. It defines the rows, not where or when they are computed. The engine binds it to run it.
//! Sibling modules read it (YAML, JSON), validate it and compute fingerprints.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::boundaries::Boundaries;
use crate::reorder::Reorder;

/// A pipeline definition. It is immutable, and named by its fingerprint.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetDef {
    /// A name for display. It is not part of the fingerprint.
    pub name: Option<String>,
    /// The source of the rows.
    pub source: SourceDef,
    /// The stages, in order.
    pub stages: Vec<StageDef>,
    /// Settings of the whole definition.
    pub options: Options,
}

/// Settings of a whole definition.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// The seed from which stages without a seed derive theirs, unless the job has one; 0 if absent.
    pub seed: Option<u64>,
    /// The handling of rows that fail.
    pub on_error: OnError,
    /// Whether the order of rows and the rows of each batch are the same in every run, at the cost of some speed.
    pub deterministic: bool,
    /// Whether rows are read only from a snapshot at a hint. The source is not accessed at all.
    pub cache_only: bool,
    /// Whether stages may run in another order than the written one; none: they may not.
    pub reorder: Option<Reorder>,
}

impl Default for Options {
    fn default() -> Self {
        Self { seed: None, on_error: OnError::Fail, deterministic: false, cache_only: false, reorder: None }
    }
}

/// The handling of a row whose data is bad. I/O errors always fail the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The job fails with an error that names file, row and stage.
    Fail,
    /// The row is dropped and counted. The job fails once more than `limit` rows of an epoch were dropped.
    Skip {
        /// The most rows of one epoch that may be dropped.
        limit: u64,
    },
}

/// The source of rows.
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
    /// Rows in the definition itself, as an Arrow IPC stream.
    Memory {
        /// The bytes of an Arrow IPC stream.
        ipc: bytes::Bytes,
    },
    /// Rows in the memory of the process that computes them, named by their content.
    InlineTable {
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
    /// One row from the rows of several datasets. The datasets must be aligned, else the definition is refused.
    Zip(Vec<DatasetDef>),
    /// The rows of a save.
    Load {
        /// The folder or URL of the save. A relative path was resolved against the pipeline file.
        path: String,
        /// Whether to wait for a save that is not finished.
        wait: bool,
    },
}

/// Files of one format.
#[derive(Debug, Clone, PartialEq)]
pub struct FileSource {
    /// The format of the files.
    pub format: FileFormat,
    /// URLs or paths, which may contain globs (`*`, `?`, `[a-z]`, `**`, `{a,b}`). Relative paths were resolved against the
    /// pipeline file.
    pub paths: Vec<String>,
    /// How a file's version is determined.
    pub version: VersionRule,
    /// The nominal bytes of a split. Smaller files are not split.
    pub split_bytes: u64,
    /// Which of the files are read; none: all.
    pub shard: Option<FileShard>,
}

/// Every n-th file of a source, in the order of the listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileShard {
    /// The number of shards; none (`HINT`): in processing mode `hint` the number of configured workers.
    pub num_shards: Option<u64>,
    /// The shard; none (`HINT`): the worker's position. Without effect if `num_shards` is `HINT`.
    pub index: Option<u64>,
}

/// The default limit of `on_error: skip`, in rows per epoch.
pub const DEFAULT_SKIP_LIMIT: u64 = 1000;

/// The default nominal size of a split, in bytes.
pub const DEFAULT_SPLIT_BYTES: u64 = 16 << 20;

/// How the version of a source file is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionRule {
    /// From the listing: e-tag, or size, mtime and ctime on local files.
    Listed,
    /// From a hash of the content, for which every file is read once.
    Content,
}

/// The format of a file, and the options of its reader.
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
        /// The expected extensions; those of the first samples if absent.
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
    /// One JSON object per line.
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
    /// No compression.
    None,
    /// Gzip.
    Gzip,
    /// Zstandard.
    Zstd,
}

/// The type of a column in a definition.
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
    /// Whether the feature is null if a record lacks it. Otherwise a missing value is an error, and a missing list is empty.
    pub optional: bool,
}

/// The number of values of a feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FeatureShape {
    /// Exactly one.
    Scalar,
    /// Exactly this many: a fixed-size list.
    Fixed(u32),
    /// Any number: a list.
    List,
}

/// A user's Python function. `code` identifies it, and `payload` is the function in a form that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonFunction {
    /// What it makes from a row.
    pub kind: PythonKind,
    /// Its name, for messages. It is not part of the fingerprint.
    pub name: String,
    /// A digest of the code, or of a version that the user gave.
    pub code: String,
    /// Whether it takes a dict of arrays instead of a dict per row.
    pub batched: bool,
    /// Whether it draws random numbers by the row's key (`caju.rng()`).
    pub random: bool,
    /// A generator other than `caju.rng()` from which it draws: a row that is computed again gets other draws. It is not part
    /// of the fingerprint.
    pub draws_from: Option<String>,
    /// The packed function. It is not part of the fingerprint.
    pub payload: bytes::Bytes,
    /// The columns of its result, as an Arrow IPC stream without rows; empty for a filter.
    pub schema: bytes::Bytes,
    /// The time that it may take for a row, or for a batch if it takes batches; the server's timeout if absent. It is not
    /// part of the fingerprint.
    pub timeout: Option<Duration>,
    /// The columns that it gets; all if absent.
    pub reads: Option<Vec<String>>,
    /// The columns that a `map` or `flat_map` passes on as they are, for [`Reorder`]. They are not part of the fingerprint.
    pub keeps: Vec<String>,
}

/// The kind of a Python function: what it makes from a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PythonKind {
    /// One row per row.
    Map,
    /// Whether to keep the row.
    Filter,
    /// Any number of rows per row.
    FlatMap,
}

impl PythonKind {
    /// The name in pipeline files.
    pub fn as_str(self) -> &'static str {
        match self {
            PythonKind::Map => "map",
            PythonKind::Filter => "filter",
            PythonKind::FlatMap => "flat_map",
        }
    }
}

/// One stage.
#[derive(Debug, Clone, PartialEq)]
pub struct StageDef {
    /// The operator.
    pub op: StageOp,
}

/// The operators. Stages above the first cross-split stage see one split at a time. The others see the rows of all splits as
/// one stream.
#[derive(Debug, Clone, PartialEq)]
pub enum StageOp {
    /// Decodes tf.train.Example records in `column`. The row becomes these features, in this order.
    ParseExample {
        /// The binary column of the records; `record` by default.
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
    /// One row per value of a list column. Other columns are repeated. A null or empty list gives no row.
    Unnest {
        /// The list column.
        column: String,
    },
    /// One row per value of a list expression, in the column `name`. Other columns are repeated.
    FlatMap {
        /// The new column.
        name: String,
        /// An expression that gives a list.
        expr: String,
    },
    /// Waits. One wait at a time per worker.
    Sleep(Cost),
    /// Uses CPU time. One thread at a time per worker.
    Burn(Cost),
    /// Makes the values of a column longer by `factor`, as Cachew's experiments do. Values of binary, string and list columns
    /// are repeated cyclically.
    Inflate {
        /// The column.
        column: String,
        /// At least 1.
        factor: f64,
    },
    /// A user's Python function.
    Python(PythonFunction),
    /// A hint: reusing rows is acceptable here.
    Autocache {
        /// The hint's name; `hint-0`, `hint-1`, ... by default.
        name: String,
    },
    /// Permutes rows (or batches) within a buffer, and the order of splits each epoch.
    Shuffle {
        /// Elements in the buffer.
        buffer: u64,
        /// The seed; derived from the job's if absent.
        seed: Option<u64>,
        /// The most bytes that the buffer may hold.
        max_bytes: u64,
    },
    /// Repeats the rows of all stages above; endlessly if the count is absent.
    Repeat(Option<u64>),
    /// The first n elements, in canonical order.
    Take(u64),
    /// All but the first n elements, in canonical order.
    Skip(u64),
    /// Every n-th element, in canonical order: those whose number, divided by `num_shards`, leaves the remainder `index`.
    Shard {
        /// The number of shards; none (`HINT`): in processing mode `hint` the number of configured workers.
        num_shards: Option<u64>,
        /// The shard; none (`HINT`): the worker's position. Without effect if `num_shards` is `HINT`.
        index: Option<u64>,
    },
    /// Makes one element of n rows.
    Batch {
        /// Rows per batch.
        size: u64,
        /// Whether a short batch at the end is dropped.
        drop_remainder: bool,
    },
    /// Makes one element of n rows. List columns are padded to the longest value of the batch.
    PaddedBatch {
        /// Rows per batch.
        size: u64,
        /// Whether a short batch at the end is dropped.
        drop_remainder: bool,
        /// Fixed lengths of some columns. Longer values are an error.
        lengths: BTreeMap<String, u32>,
        /// The padding values of some columns; 0 or the empty string by default.
        values: BTreeMap<String, serde_json::Value>,
    },
    /// Collects rows by length class. Each full class becomes a padded batch.
    BucketByLength {
        /// An integer expression for the length of a row.
        length: String,
        /// The boundaries of the classes.
        boundaries: Boundaries,
        /// Rows per batch of each class; one number for all classes if the boundaries are learnt.
        batch_sizes: Vec<u64>,
        /// Whether short batches at the end are dropped.
        drop_remainder: bool,
        /// Whether list columns are padded to the longest value of the batch.
        pad: bool,
    },
    /// Makes the rows of a batch single elements again.
    Unbatch,
    /// Up to n elements are computed ahead of the reader.
    Prefetch(u64),
}

/// The default bound of a shuffle buffer, in bytes.
pub const DEFAULT_SHUFFLE_BYTES: u64 = 1 << 30;

/// The cost of an artificial stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Per row.
    PerRow(Duration),
    /// Per batch of the engine (below `batch`: per element).
    PerBatch(Duration),
}

impl StageOp {
    /// The names of all stages in pipeline files, in the order of the documentation.
    pub const NAMES: [&'static str; 22] = [
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
        "shard",
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
            StageOp::Shard { .. } => "shard",
            StageOp::Batch { .. } => "batch",
            StageOp::PaddedBatch { .. } => "padded_batch",
            StageOp::BucketByLength { .. } => "bucket_by_length",
            StageOp::Unbatch => "unbatch",
            StageOp::Prefetch(_) => "prefetch",
        }
    }

    /// Whether the stage is split-local: it sees one split at a time when it is above all cross-split stages.
    pub fn is_split_local(&self) -> bool {
        !matches!(
            self,
            StageOp::Shuffle { .. }
                | StageOp::Repeat(_)
                | StageOp::Take(_)
                | StageOp::Skip(_)
                | StageOp::Shard { .. }
                | StageOp::Batch { .. }
                | StageOp::PaddedBatch { .. }
                | StageOp::BucketByLength { .. }
                | StageOp::Unbatch
                | StageOp::Prefetch(_)
        )
    }

    /// Whether a stage computes rows, and does not only order or group them.
    pub fn computes(&self) -> bool {
        self.is_split_local() && !matches!(self, StageOp::Autocache { .. })
    }
}
