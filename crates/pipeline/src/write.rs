//! Writing a definition. Defaults are written, too, so that the definition reads back equal whatever the reader's defaults.

use std::collections::BTreeMap;

use caju_types::{Error, Result};
use serde_json::{Map, Value, json};

use crate::binary;
use crate::boundaries::{Boundaries, Quantiles};
use crate::def::{
    ColumnType, Cost, DatasetDef, FileFormat, FileShard, FileSource, OnError, PythonFunction, SourceDef,
    StageDef, StageOp,
};
use crate::reorder::Reorder;
use crate::spelling::{HINT, duration_text};

impl DatasetDef {
    /// The JSON form, which is sent to the dispatcher and stored in manifests. [`DatasetDef::from_json`] reads it back to an
    /// equal definition.
    pub fn to_json(&self) -> Value {
        let mut out = self.core();
        if let Some(seed) = self.options.seed {
            out.insert("seed".into(), seed.into());
        }
        let on_error = match self.options.on_error {
            OnError::Fail => json!("fail"),
            OnError::Skip { limit } => json!({ "skip": { "limit": limit } }),
        };
        out.insert("on_error".into(), on_error);
        out.insert("deterministic".into(), self.options.deterministic.into());
        if self.options.cache_only {
            out.insert("cache_only".into(), true.into());
        }
        if let Some(reorder) = &self.options.reorder {
            out.insert("reorder".into(), write_reorder(reorder));
        }
        Value::Object(out)
    }

    /// The YAML form, as in a pipeline file.
    ///
    /// # Errors
    /// `Internal` if the YAML library cannot write the tree. No definition is known to cause that.
    pub fn to_yaml(&self) -> Result<String> {
        serde_norway::to_string(&self.to_json())
            .map_err(|e| Error::internal(format!("a definition could not be written as YAML: {e}")))
    }

    /// Name, source and steps: the fields of a dataset inside another one.
    fn core(&self) -> Map<String, Value> {
        let mut out = Map::new();
        if let Some(name) = &self.name {
            out.insert("name".into(), name.as_str().into());
        }
        out.insert("source".into(), source(&self.source));
        out.insert("steps".into(), self.stages.iter().map(StageDef::to_json).collect());
        out
    }
}

fn write_reorder(reorder: &Reorder) -> Value {
    match reorder.measured.is_empty() {
        true => true.into(),
        false => json!({ "measured": object(reorder.measured.iter().map(|(n, f)| (n.clone(), number(*f)))) }),
    }
}

impl StageDef {
    /// The stage as an item of `steps`: `{"batch": {"size": 256, "drop_remainder": true}}`.
    pub fn to_json(&self) -> Value {
        one(self.op.name(), arguments(&self.op))
    }
}

fn one(name: &str, value: Value) -> Value {
    let mut out = Map::new();
    out.insert(name.to_owned(), value);
    Value::Object(out)
}

/// A number without superfluous digits: `1`, not `1.0`, and no digits beyond the exact ones.
pub(crate) fn number(x: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let x = round(x);
    #[expect(clippy::cast_possible_truncation, reason = "whole and in range")]
    match x.fract() == 0.0 && x.abs() < EXACT {
        true => json!(x as i64),
        false => json!(x),
    }
}

/// Rounds a float to 15 significant digits. JSON parsers differ in the last bit of longer numbers, and a definition must
/// stay equal through every round trip.
pub(crate) fn round(x: f64) -> f64 {
    format!("{x:.14e}").parse().ok().filter(|y: &f64| y.is_finite()).unwrap_or(x)
}

/// Rounds a scalar if it is a float.
pub(crate) fn round_scalar(value: &Value) -> Value {
    match value {
        Value::Number(n) if n.is_f64() => n.as_f64().map_or(Value::Null, |x| json!(round(x))),
        other => other.clone(),
    }
}

fn object<V: Into<Value>>(entries: impl IntoIterator<Item = (String, V)>) -> Value {
    Value::Object(entries.into_iter().map(|(k, v)| (k, v.into())).collect())
}

fn source(source: &SourceDef) -> Value {
    let children = |list: &[DatasetDef]| -> Value { list.iter().map(|d| Value::Object(d.core())).collect() };
    let value = match source {
        SourceDef::Files(files) => file_source(files),
        SourceDef::Range { start, end, step } => json!({ "start": start, "end": end, "step": step }),
        SourceDef::Memory { ipc } => json!({ "ipc": binary::encode(ipc) }),
        SourceDef::InlineTable { sha256 } => json!({ "sha256": sha256 }),
        SourceDef::Concatenate(list) | SourceDef::Zip(list) => children(list),
        SourceDef::Sample { datasets, weights, seed } => {
            let weights: Vec<Value> = weights.iter().map(|w| number(*w)).collect();
            let mut out = json!({ "datasets": children(datasets), "weights": weights });
            if let Some(seed) = seed {
                out["seed"] = json!(seed);
            }
            out
        }
        SourceDef::Load { path, wait } => json!({ "path": path, "wait": wait }),
    };
    one(source.name(), value)
}

fn file_source(files: &FileSource) -> Value {
    let mut out = Map::new();
    let path = match files.paths.as_slice() {
        [one] => json!(one),
        many => json!(many),
    };
    out.insert("path".into(), path);
    out.extend(format_arguments(&files.format));
    out.insert("version".into(), files.version.to_string().into());
    out.insert("split".into(), files.split_bytes.into());
    if let Some(FileShard { num_shards, index }) = files.shard {
        out.insert("shard".into(), shard(num_shards, index));
    }
    Value::Object(out)
}

/// The options of a format's reader: all that its rows depend on in addition to the files.
pub(crate) fn format_arguments(format: &FileFormat) -> Map<String, Value> {
    let schema = |schema: &Option<Vec<(String, ColumnType)>>| {
        schema.as_ref().map(|s| object(s.iter().map(|(name, ty)| (name.clone(), ty.to_string()))))
    };
    let value = match format {
        FileFormat::TfRecord { compression } => json!({ "compression": compression.to_string() }),
        FileFormat::Parquet { columns } | FileFormat::Arrow { columns } => json!({ "columns": columns }),
        FileFormat::WebDataset { compression, columns } => {
            json!({ "compression": compression.to_string(), "columns": columns })
        }
        FileFormat::Csv { header, delimiter, schema: columns, compression } => json!({
            "header": header,
            "delimiter": delimiter.to_string(),
            "schema": schema(columns),
            "compression": compression.to_string(),
        }),
        FileFormat::Json { schema: columns, compression } => {
            json!({ "schema": schema(columns), "compression": compression.to_string() })
        }
        FileFormat::Images => json!({}),
    };
    match value {
        Value::Object(map) => map.into_iter().filter(|(_, v)| !v.is_null()).collect(),
        _ => Map::new(),
    }
}

fn cost(cost: &Cost) -> Value {
    match cost {
        Cost::PerRow(d) => json!({ "per_row": duration_text(*d) }),
        Cost::PerBatch(d) => json!({ "per_batch": duration_text(*d) }),
    }
}

fn python(f: &PythonFunction) -> Value {
    let mut map = json!({
        "kind": f.kind.as_str(),
        "name": f.name,
        "code": f.code,
        "batched": f.batched,
        "random": f.random,
        "payload": binary::encode(&f.payload),
        "schema": binary::encode(&f.schema),
    });
    if let Some(generator) = &f.draws_from {
        map["draws_from"] = json!(generator);
    }
    if let Some(timeout) = f.timeout {
        map["timeout"] = json!(duration_text(timeout));
    }
    if let Some(reads) = &f.reads {
        map["reads"] = json!(reads);
    }
    if !f.keeps.is_empty() {
        map["keeps"] = json!(f.keeps);
    }
    map
}

/// The arguments of a stage; null if there are none.
pub(crate) fn arguments(op: &StageOp) -> Value {
    match op {
        StageOp::ParseExample { column, features } => json!({
            "column": column,
            "features": object(features.iter().map(|(name, f)| (name.clone(), f.to_string()))),
        }),
        StageOp::Map(list) | StageOp::WithColumns(list) => object(list.iter().cloned()),
        StageOp::Select(columns) => json!(columns),
        StageOp::Filter(expr) => json!(expr),
        StageOp::Unnest { column } => json!({ "column": column }),
        StageOp::FlatMap { name, expr } => json!({ "name": name, "expr": expr }),
        StageOp::Sleep(c) | StageOp::Burn(c) => cost(c),
        StageOp::Inflate { column, factor } => json!({ "column": column, "factor": number(*factor) }),
        StageOp::Python(f) => python(f),
        StageOp::Autocache { name } => json!(name),
        StageOp::Shuffle { buffer, seed, max_bytes } => match seed {
            Some(seed) => json!({ "buffer": buffer, "seed": seed, "max_bytes": max_bytes }),
            None => json!({ "buffer": buffer, "max_bytes": max_bytes }),
        },
        StageOp::Repeat(count) => json!(count),
        StageOp::Take(count) | StageOp::Skip(count) => json!(count),
        StageOp::Shard { num_shards, index } => shard(*num_shards, *index),
        StageOp::Batch { size, drop_remainder } => json!({ "size": size, "drop_remainder": drop_remainder }),
        StageOp::PaddedBatch { size, drop_remainder, lengths, values } => {
            padded_batch(*size, *drop_remainder, lengths, values)
        }
        StageOp::BucketByLength { length, boundaries, batch_sizes, drop_remainder, pad } => {
            let (boundaries, batch_sizes) = classes(boundaries, batch_sizes);
            json!({
                "length": length,
                "boundaries": boundaries,
                "batch_sizes": batch_sizes,
                "drop_remainder": drop_remainder,
                "pad": pad,
            })
        }
        StageOp::Unbatch => Value::Null,
        StageOp::Prefetch(n) => json!(n),
    }
}

/// The boundaries and the batch sizes of a `bucket_by_length`.
fn classes(boundaries: &Boundaries, batch_sizes: &[u64]) -> (Value, Value) {
    match boundaries {
        Boundaries::Given(list) => (json!(list), json!(batch_sizes)),
        Boundaries::Learnt(Quantiles { classes, rows }) => {
            (json!({ "quantiles": classes, "rows": rows }), json!(batch_sizes.first()))
        }
    }
}

fn shard(num_shards: Option<u64>, index: Option<u64>) -> Value {
    json!({ "num_shards": number_or_hint(num_shards), "index": number_or_hint(index) })
}

fn number_or_hint(number: Option<u64>) -> Value {
    number.map_or_else(|| HINT.into(), Value::from)
}

fn padded_batch(
    size: u64,
    drop_remainder: bool,
    lengths: &BTreeMap<String, u32>,
    values: &BTreeMap<String, Value>,
) -> Value {
    let mut out = json!({ "size": size, "drop_remainder": drop_remainder });
    if !lengths.is_empty() {
        out["lengths"] = json!(lengths);
    }
    if !values.is_empty() {
        out["values"] = object(values.iter().map(|(name, v)| (name.clone(), round_scalar(v))));
    }
    out
}
