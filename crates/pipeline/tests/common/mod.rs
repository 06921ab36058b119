//! Arbitrary definitions, and a registry of functions that only looks at text.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;
use std::time::Duration;

use caju_pipeline::*;
use caju_types::{Error, Result};
use proptest::prelude::*;

/// Takes every word before a parenthesis for a function. Functions whose names begin with `random` are random.
#[derive(Clone)]
pub(crate) struct FakeFunctions {
    pub(crate) version: u32,
    pub(crate) engines: BTreeMap<String, String>,
    pub(crate) trusts_code: bool,
}

impl Default for FakeFunctions {
    fn default() -> Self {
        let engines =
            [("arrow", "59.3.0"), ("datafusion", "55.0.0"), ("parquet", "59.3.0"), ("zune-jpeg", "0.5.0")];
        let engines = engines.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        Self { version: 1, engines, trusts_code: true }
    }
}

impl FakeFunctions {
    fn calls(sql: &str) -> Vec<String> {
        let mut out: Vec<String> = Vec::new();
        for before in sql.split('(').rev().skip(1) {
            let name: String = before
                .chars()
                .rev()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect::<Vec<_>>()
                .iter()
                .rev()
                .collect();
            if !name.is_empty() && !out.contains(&name) {
                out.push(name);
            }
        }
        out
    }
}

impl Functions for FakeFunctions {
    fn version(&self, sql: &str) -> Result<Vec<(String, u32)>> {
        if sql.contains("nope(") {
            return Err(Error::invalid("unknown function `nope`"));
        }
        Ok(Self::calls(sql).into_iter().map(|n| (n, self.version)).collect())
    }

    fn is_random(&self, sql: &str) -> Result<bool> {
        Ok(Self::calls(sql).iter().any(|n| n.starts_with("random")))
    }

    fn canonical(&self, sql: &str) -> Result<String> {
        Ok(sql.split_whitespace().collect())
    }

    fn engine_versions(&self) -> BTreeMap<String, String> {
        self.engines.clone()
    }

    fn trusts_code(&self) -> bool {
        self.trusts_code
    }

    fn engines_used(&self, sql: &str) -> Result<Vec<String>> {
        let mut out = vec!["arrow".to_owned(), "datafusion".to_owned()];
        if sql.contains("decode_image(") {
            out.push("zune-jpeg".to_owned());
        }
        Ok(out)
    }
}

/// Floats of at most 15 digits, which definitions keep exactly.
fn decimal(min: f64, max: f64) -> impl Strategy<Value = f64> {
    (min..max, 0usize..15)
        .prop_map(move |(x, digits)| format!("{x:.digits$e}").parse::<f64>().unwrap().clamp(min, max))
}

fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z]{1,6}",
        "[a-zA-Z/.é\" :#-]{1,8}".prop_filter("a blank name is refused", |s| !s.trim().is_empty()),
        Just("null".to_owned()),
        Just("1".to_owned()),
        Just("~".to_owned()),
    ]
}

fn sql() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("id + 1".to_owned()),
        Just("true".to_owned()),
        Just("random_flip(random_crop(decode_image( image ), 224,224))".to_owned()),
        Just("case when x > 1\n  then 'a: #b' else \"q\" end".to_owned()),
        "[ -~]{1,20}".prop_filter("an empty expression is refused", |s| !s.trim().is_empty()),
    ]
}

fn named<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T>,
) -> impl Strategy<Value = Vec<(String, T)>> {
    prop::collection::vec((name(), value), 1..4).prop_map(|mut list| {
        let mut seen = std::collections::BTreeSet::new();
        list.retain(|(n, _)| seen.insert(n.clone()));
        list
    })
}

fn names() -> impl Strategy<Value = Vec<String>> {
    named(Just(())).prop_map(|list| list.into_iter().map(|(n, ())| n).collect())
}

fn feature() -> impl Strategy<Value = Feature> {
    let dtype = prop::sample::select(vec![ColumnType::Bytes, ColumnType::Int64, ColumnType::Float32]);
    let shape = prop_oneof![
        Just(FeatureShape::Scalar),
        Just(FeatureShape::List),
        (1u32..1000).prop_map(FeatureShape::Fixed)
    ];
    (dtype, shape, any::<bool>()).prop_map(|(dtype, shape, optional)| Feature { dtype, shape, optional })
}

fn cost() -> impl Strategy<Value = Cost> {
    let duration = prop_oneof![0u64..86_400_000_000_000, (0u64..1000).prop_map(|ms| ms * 1_000_000)];
    (any::<bool>(), duration.prop_map(Duration::from_nanos))
        .prop_map(|(row, d)| if row { Cost::PerRow(d) } else { Cost::PerBatch(d) })
}

fn seed() -> impl Strategy<Value = Option<u64>> {
    prop::option::of(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()])
}

fn row_op() -> impl Strategy<Value = StageOp> {
    prop_oneof![
        (name(), named(feature())).prop_map(|(column, features)| StageOp::ParseExample { column, features }),
        named(sql()).prop_map(StageOp::Map),
        named(sql()).prop_map(StageOp::WithColumns),
        names().prop_map(StageOp::Select),
        sql().prop_map(StageOp::Filter),
        name().prop_map(|column| StageOp::Unnest { column }),
        (name(), sql()).prop_map(|(name, expr)| StageOp::FlatMap { name, expr }),
        cost().prop_map(StageOp::Sleep),
        cost().prop_map(StageOp::Burn),
        (name(), decimal(1.0, 1e6)).prop_map(|(column, factor)| StageOp::Inflate { column, factor }),
        "[a-zA-Z0-9_.-]{1,10}".prop_map(|name| StageOp::Autocache { name }),
    ]
}

fn scalar() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        any::<i64>().prop_map(Into::into),
        any::<bool>().prop_map(Into::into),
        decimal(-1e9, 1e9).prop_map(Into::into),
        "[ -~]{0,5}".prop_map(Into::into),
    ]
}

fn stream_op() -> impl Strategy<Value = StageOp> {
    let padded = (
        1u64..5000,
        any::<bool>(),
        prop::collection::btree_map(name(), 1u32..500, 0..3),
        prop::collection::btree_map(name(), scalar(), 0..3),
    );
    let buckets =
        (sql(), prop::collection::btree_set(1i64..1000, 1..5), 1u64..100, any::<bool>(), any::<bool>());
    let learnt = (sql(), 2u64..1000, 1u64..1_000_000, 1u64..100, any::<bool>());
    prop_oneof![
        (1u64..1 << 40, seed(), 1u64..1 << 50).prop_map(|(buffer, seed, max_bytes)| StageOp::Shuffle {
            buffer,
            seed,
            max_bytes
        }),
        prop::option::of(1u64..1 << 53).prop_map(StageOp::Repeat),
        (0u64..1 << 53).prop_map(StageOp::Take),
        (0u64..1 << 53).prop_map(StageOp::Skip),
        (1u64..1 << 53, 0u64..1 << 53)
            .prop_map(|(n, i)| StageOp::Shard { num_shards: Some(n), index: Some(i % n) }),
        prop::option::of(0u64..1 << 53).prop_map(|index| StageOp::Shard { num_shards: None, index }),
        (1u64..1 << 31, any::<bool>())
            .prop_map(|(size, drop_remainder)| StageOp::Batch { size, drop_remainder }),
        padded.prop_map(|(size, drop_remainder, lengths, values)| StageOp::PaddedBatch {
            size,
            drop_remainder,
            lengths,
            values
        }),
        buckets.prop_map(|(length, at, size, drop_remainder, pad)| StageOp::BucketByLength {
            length,
            batch_sizes: (0..=at.len() as u64).map(|i| size + i).collect(),
            boundaries: Boundaries::Given(at.into_iter().collect()),
            drop_remainder,
            pad,
        }),
        learnt.prop_map(|(length, classes, rows, size, pad)| StageOp::BucketByLength {
            length,
            boundaries: Boundaries::Learnt(Quantiles { classes, rows }),
            batch_sizes: vec![size],
            drop_remainder: pad,
            pad,
        }),
        Just(StageOp::Unbatch),
        (1u64..1 << 20).prop_map(StageOp::Prefetch),
    ]
}

fn file_shard() -> impl Strategy<Value = Option<FileShard>> {
    let shard = (1u64..1 << 53, 0u64..1 << 53)
        .prop_map(|(n, i)| FileShard { num_shards: Some(n), index: Some(i % n) });
    prop::option::of(shard)
}

fn format() -> impl Strategy<Value = FileFormat> {
    let compression = || {
        prop::sample::select(vec![Compression::Auto, Compression::None, Compression::Gzip, Compression::Zstd])
    };
    let columns = || prop::option::of(names());
    let types = vec![
        ColumnType::Int64,
        ColumnType::Int32,
        ColumnType::Float32,
        ColumnType::Float64,
        ColumnType::String,
        ColumnType::Bytes,
        ColumnType::Bool,
    ];
    let schema = move || prop::option::of(named(prop::sample::select(types.clone())));
    let delimiter = prop::sample::select(vec![',', ';', '\t', '|', ' ']);
    prop_oneof![
        compression().prop_map(|compression| FileFormat::TfRecord { compression }),
        columns().prop_map(|columns| FileFormat::Parquet { columns }),
        columns().prop_map(|columns| FileFormat::Arrow { columns }),
        (compression(), columns())
            .prop_map(|(compression, columns)| FileFormat::WebDataset { compression, columns }),
        (any::<bool>(), delimiter, schema(), compression()).prop_map(
            |(header, delimiter, schema, compression)| {
                FileFormat::Csv { header, delimiter, schema, compression }
            }
        ),
        (schema(), compression()).prop_map(|(schema, compression)| FileFormat::Json { schema, compression }),
        Just(FileFormat::Images),
    ]
}

fn leaf() -> impl Strategy<Value = SourceDef> {
    let path = prop_oneof![
        "/[a-z]{1,5}/[a-z*?]{1,5}",
        "(s3|gs|az|memory|file|http)://[a-z]{1,5}/[a-z*{},]{0,8}",
        Just("/with \"quotes\" and: colon #x".to_owned()),
    ];
    let version = prop::sample::select(vec![VersionRule::Listed, VersionRule::Content]);
    prop_oneof![
        3 => (format(), prop::collection::vec(path, 1..4), version, 1u64..1 << 50, file_shard()).prop_map(
            |(format, mut paths, version, split_bytes, shard)| {
                // A path may be given once.
                paths.sort_unstable();
                paths.dedup();
                SourceDef::Files(FileSource { format, paths, version, split_bytes, shard })
            }
        ),
        1 => (any::<i32>(), any::<i64>(), prop_oneof![Just(-3i64), Just(1), Just(7)])
            .prop_map(|(start, end, step)| SourceDef::Range { start: start.into(), end, step })
            .prop_filter("too many rows", |s| caju_pipeline::validate(&with(s.clone())).is_ok()),
        1 => prop::collection::vec(any::<u8>(), 1..40).prop_map(|v| SourceDef::Memory { ipc: v.into() }),
        1 => any::<bool>().prop_map(|wait| SourceDef::Load { path: "s3://bucket/saves/a".into(), wait }),
    ]
}

fn with(source: SourceDef) -> DatasetDef {
    DatasetDef { name: None, source, stages: Vec::new(), options: Options::default() }
}

/// Puts stages below a source, without those that are invalid at their position.
fn build(mut def: DatasetDef, ops: Vec<StageOp>) -> DatasetDef {
    for op in ops {
        def.stages.push(StageDef { op });
        if validate(&def).is_err() {
            def.stages.pop();
        }
    }
    def
}

fn source() -> impl Strategy<Value = SourceDef> {
    leaf().prop_recursive(2, 8, 3, |inner| {
        let not_hint = row_op().prop_filter("no hints inside", |op| !matches!(op, StageOp::Autocache { .. }));
        let child = (prop::option::of(name()), inner, prop::collection::vec(not_hint, 0..3))
            .prop_map(|(name, source, ops)| DatasetDef { name, ..build(with(source), ops) });
        let children = prop::collection::vec(child, 1..4).boxed();
        prop_oneof![
            children.clone().prop_map(SourceDef::Concatenate),
            children.clone().prop_map(SourceDef::Zip),
            (children, seed(), prop::collection::vec(decimal(1e-3, 100.0), 4)).prop_map(
                |(datasets, seed, mut weights)| {
                    weights.truncate(datasets.len());
                    SourceDef::Sample { datasets, weights, seed }
                }
            ),
        ]
    })
}

/// Any valid definition.
pub(crate) fn definition() -> impl Strategy<Value = DatasetDef> {
    let on_error =
        prop_oneof![Just(OnError::Fail), (0u64..1 << 40).prop_map(|limit| OnError::Skip { limit })];
    let flags = (any::<bool>(), any::<bool>());
    let options = (seed(), on_error, flags).prop_map(|(seed, on_error, (deterministic, reorder))| Options {
        seed,
        on_error,
        deterministic,
        cache_only: false,
        reorder: reorder.then(Reorder::default),
    });
    let op = prop_oneof![2 => row_op(), 1 => stream_op()];
    (prop::option::of(name()), source(), prop::collection::vec(op, 0..8), options)
        .prop_map(|(name, source, ops, options)| DatasetDef { name, options, ..build(with(source), ops) })
}

/// Texts and numbers of valid and invalid definitions.
fn atom() -> impl Strategy<Value = serde_json::Value> {
    let words = "name source steps seed on_error deterministic skip limit fail path split version columns schema \
        compression header delimiter start end step ipc datasets weights buffer max_bytes count size drop_remainder \
        lengths values length boundaries batch_sizes pad column features dtype shape factor per_row per_batch expr \
        int64 int64[] bytes[3] 8us 64MiB gzip content s3://b/x /x/*.y x \u{e9}";
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    prop_oneof![
        prop::sample::select(words).prop_map(Into::into),
        scalar(),
        any::<f64>().prop_map(Into::into),
        any::<u64>().prop_map(Into::into),
        Just(serde_json::Value::Null),
        (0u64..3).prop_map(Into::into),
    ]
}

/// Any tree, made of the words of definitions, so that readers get far into it.
pub(crate) fn tree() -> impl Strategy<Value = serde_json::Value> {
    let keys: Vec<String> = StageOp::NAMES
        .iter()
        .chain(&[
            "tfrecord",
            "parquet",
            "csv",
            "webdataset",
            "images",
            "range",
            "memory",
            "concatenate",
            "sample",
            "zip",
        ])
        .chain(&[
            "source", "steps", "path", "columns", "features", "schema", "lengths", "values", "buffer", "skip",
        ])
        .chain(&[
            "count",
            "size",
            "on_error",
            "weights",
            "datasets",
            "boundaries",
            "batch_sizes",
            "length",
            "x",
        ])
        .map(|s| (*s).to_owned())
        .collect();
    atom().prop_recursive(5, 40, 4, move |inner| {
        let key = prop::sample::select(keys.clone());
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::vec((key, inner), 0..4)
                .prop_map(|list| serde_json::Value::Object(list.into_iter().collect())),
        ]
    })
}
