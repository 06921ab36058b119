//! The spelling of names, types, features and durations in pipeline files.

use std::fmt;
use std::time::Duration;

use crate::def::{
    ColumnType, Compression, Feature, FeatureShape, FileFormat, SourceDef, StageOp, VersionRule,
};

/// Pairs of spelling and value. The first spelling of a value is the one that is written.
pub(crate) type Spellings<T> = [(&'static str, T)];

/// The spelling of a value.
pub(crate) fn spelling_of<T: PartialEq>(words: &Spellings<T>, value: &T) -> &'static str {
    words.iter().find(|(_, v)| v == value).map_or("", |(w, _)| w)
}

pub(crate) const COLUMN_TYPES: &Spellings<ColumnType> = &[
    ("int64", ColumnType::Int64),
    ("int32", ColumnType::Int32),
    ("float32", ColumnType::Float32),
    ("float64", ColumnType::Float64),
    ("string", ColumnType::String),
    ("bytes", ColumnType::Bytes),
    ("bool", ColumnType::Bool),
];

pub(crate) const FEATURE_TYPES: &Spellings<ColumnType> = &[
    ("bytes", ColumnType::Bytes),
    ("int64", ColumnType::Int64),
    ("float32", ColumnType::Float32),
    ("float", ColumnType::Float32),
];

/// A number of `shard` that the processing mode `hint` gives.
pub(crate) const HINT: &str = "HINT";

pub(crate) const COMPRESSIONS: &Spellings<Compression> = &[
    ("auto", Compression::Auto),
    ("none", Compression::None),
    ("gzip", Compression::Gzip),
    ("zstd", Compression::Zstd),
];

pub(crate) const VERSION_RULES: &Spellings<VersionRule> =
    &[("listed", VersionRule::Listed), ("content", VersionRule::Content)];

/// The names of all sources in pipeline files, each with an example, in the order of the documentation.
pub(crate) const SOURCES: [(&str, &str); 13] = [
    ("tfrecord", r#"tfrecord: { path: "data/*.tfrecord" }"#),
    ("parquet", r#"parquet: { path: "data/*.parquet" }"#),
    ("arrow", r#"arrow: { path: "data/*.arrow" }"#),
    ("webdataset", r#"webdataset: { path: "data/*.tar" }"#),
    ("csv", r#"csv: { path: "data/*.csv" }"#),
    ("json", r#"json: { path: "data/*.jsonl" }"#),
    ("images", r#"images: { path: "data/**/*.jpg" }"#),
    ("range", "range: { start: 0, end: 100, step: 1 }"),
    ("memory", "memory: { ipc: <an Arrow IPC stream in base64> }"),
    ("concatenate", "concatenate: [ { source: .. }, { source: .. } ]"),
    ("sample", "sample: { datasets: [ { source: .. }, { source: .. } ], weights: [1, 3] }"),
    ("zip", "zip: [ { source: .. }, { source: .. } ]"),
    ("load", r#"load: { path: "saves/train" }"#),
];

/// An example of a stage, for errors about a missing argument.
pub(crate) fn stage_example(name: &str) -> &'static str {
    match name {
        "parse_example" => "parse_example: { features: { image: bytes, label: int64 } }",
        "map" => r#"map: { x: "ln(x + 1)" }"#,
        "with_columns" => r#"with_columns: { x: "ln(x + 1)" }"#,
        "select" => "select: [image, label]",
        "filter" => r#"filter: "label < 100""#,
        "unnest" => "unnest: tokens",
        "flat_map" => r#"flat_map: { name: token, expr: "tokenize(text)" }"#,
        "sleep" => "sleep: { per_row: 8us }",
        "burn" => "burn: { per_row: 8us }",
        "inflate" => "inflate: { column: image, factor: 2.5 }",
        "python" => r#"python: { kind: map, code: "0a", payload: "AA==", schema: "AA==" }"#,
        "autocache" => "autocache: decoded",
        "shuffle" => "shuffle: { buffer: 2000, seed: 7 }",
        "repeat" => "repeat: 3",
        "take" => "take: 1000",
        "skip" => "skip: 1000",
        "shard" => "shard: { num_shards: 5, index: 1 }",
        "batch" => "batch: { size: 256, drop_remainder: true }",
        "padded_batch" => "padded_batch: { size: 32, lengths: { tokens: 128 } }",
        "bucket_by_length" => {
            r#"bucket_by_length: { length: "array_length(tokens)", boundaries: [32, 64], batch_sizes: [64, 32, 16] }"#
        }
        "unbatch" => "unbatch",
        "prefetch" => "prefetch: 4",
        _ => "batch: 256",
    }
}

impl StageOp {
    /// An example of the stage in a pipeline file.
    pub fn example(&self) -> &'static str {
        stage_example(self.name())
    }
}

impl SourceDef {
    /// The source's name in pipeline files.
    pub fn name(&self) -> &'static str {
        match self {
            SourceDef::Files(f) => f.format.name(),
            SourceDef::Range { .. } => "range",
            SourceDef::Memory { .. } | SourceDef::InlineTable { .. } => "memory",
            SourceDef::Concatenate(_) => "concatenate",
            SourceDef::Sample { .. } => "sample",
            SourceDef::Zip(_) => "zip",
            SourceDef::Load { .. } => "load",
        }
    }
}

impl FileFormat {
    /// The format's name in pipeline files.
    pub fn name(&self) -> &'static str {
        match self {
            FileFormat::TfRecord { .. } => "tfrecord",
            FileFormat::Parquet { .. } => "parquet",
            FileFormat::Arrow { .. } => "arrow",
            FileFormat::WebDataset { .. } => "webdataset",
            FileFormat::Csv { .. } => "csv",
            FileFormat::Json { .. } => "json",
            FileFormat::Images => "images",
        }
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(spelling_of(COLUMN_TYPES, self))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(spelling_of(COMPRESSIONS, self))
    }
}

impl fmt::Display for VersionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(spelling_of(VERSION_RULES, self))
    }
}

/// Writes `int64` for one value, `int64[]` for a list, `int64[10]` for ten values, each with `?` if records may lack it.
impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shape {
            FeatureShape::Scalar => write!(f, "{}", self.dtype),
            FeatureShape::Fixed(n) => write!(f, "{}[{n}]", self.dtype),
            FeatureShape::List => write!(f, "{}[]", self.dtype),
        }?;
        f.write_str(if self.optional { "?" } else { "" })
    }
}

/// Writes a duration exactly, in its largest whole unit: `8us`, `1500ms`, `2s`.
pub(crate) fn duration_text(d: Duration) -> String {
    let ns = d.as_nanos();
    for (unit, size) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if ns.is_multiple_of(size) {
            return format!("{}{unit}", ns / size);
        }
    }
    format!("{ns}ns")
}
