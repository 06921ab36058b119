//! Definitions of datasets: reading, writing, validation and fingerprints.
//!
//! A [`DatasetDef`] is plain data. It is read from YAML or JSON, with errors that name the place and the way out
//! ([`DatasetDef::from_yaml`], [`DatasetDef::from_json`]). It is written without loss ([`DatasetDef::to_json`]), checked
//! without data ([`validate`]), and named by fingerprints that are equal on every machine ([`fingerprint`],
//! [`prefix_fingerprints`]). Expressions stay text here. Facts about them come through [`Functions`], which `caju-kernels`
//! implements.

mod binary;
mod boundaries;
mod def;
mod describe;
mod fingerprint;
mod functions;
mod learning;
mod path;
mod place;
mod read;
mod reorder;
mod saving;
mod shape;
mod spelling;
mod validate;

mod write;

pub use boundaries::{
    Boundaries, DEFAULT_LEARNING_ROWS, LearntBoundaries, MAX_LEARNING_ROWS, MAX_LEARNT_CLASSES, Quantiles,
};
pub use def::{
    ColumnType, Compression, Cost, DEFAULT_SHUFFLE_BYTES, DEFAULT_SKIP_LIMIT, DEFAULT_SPLIT_BYTES,
    DatasetDef, Feature, FeatureShape, FileFormat, FileShard, FileSource, OnError, Options, PythonFunction,
    PythonKind, SourceDef, StageDef, StageOp, VersionRule,
};
pub use describe::describe;
pub use fingerprint::{
    ContentHasher, PrefixFingerprint, SCHEMA as FINGERPRINT_SCHEMA, canonical_text, content_name,
    fingerprint, identity, prefix_at, prefix_fingerprints, prefix_json, reseeded,
};
pub use functions::Functions;
pub use reorder::Reorder;
pub use saving::{SAVE_HINT, SavedForm};
pub use shape::Hint;
pub use validate::{MAX_DEPTH, MAX_TYPE_LEVELS, reserved_prefix, validate};
