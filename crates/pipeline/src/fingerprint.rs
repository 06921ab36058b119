//! Fingerprints: names of what a pipeline computes, the same in every process and on every machine.
//!
//! A fingerprint is a hash of a canonical JSON text. What enters and what does not is a promise to every
//! snapshot that is stored under one, so a change here, however small, needs a new [`SCHEMA`].
//!
//! Enters: the source's kind and the options of its reader; the stages above the hint with their arguments,
//! in canonical spelling; the versions of our stages, of the functions they call, and of the libraries that
//! those depend on; whether bad rows are skipped; the seed, if something above draws from it.
//!
//! Does not enter: paths, listings and split sizes (they are in the split keys, so that growing data and
//! other subsets reuse what fits); names; hints; bounds of memory; the order of keys in maps, columns of
//! `map`, `with_columns` and `features` included, since a row is a set of *named* columns. Who reads a
//! snapshot arranges its columns by name.

use std::collections::{BTreeMap, BTreeSet};

use caju_types::{Error, Fingerprint, Result};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::def::{DatasetDef, FileFormat, OnError, SourceDef, StageOp};
use crate::functions::Functions;
use crate::read::join;
use crate::write;

/// The version of the canonical form.
pub const SCHEMA: &str = "caju.fingerprint/v1";

/// The fingerprint of the stages above one hint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixFingerprint {
    /// The hint's name.
    pub hint: String,
    /// Its index in [`DatasetDef::stages`].
    pub stage_index: usize,
    /// The name of what is stored there.
    pub fingerprint: Fingerprint,
    /// Whether something above the hint draws anew each epoch (a random function, `shuffle`, `sample`), so
    /// that storing it freezes the draws.
    pub random: bool,
}

/// The fingerprint of what the whole definition computes. Like those of prefixes it does not cover the
/// source's paths; [`identity`] names a definition with everything it says.
///
/// # Errors
/// An expression that does not parse, with its place.
pub fn fingerprint(def: &DatasetDef, functions: &dyn Functions) -> Result<Fingerprint> {
    Ok(canonical(def, def.stages.len(), functions, Named::Code)?.fingerprint())
}

/// The fingerprints of the prefixes, one per hint, from the source down.
///
/// # Errors
/// As [`fingerprint`].
pub fn prefix_fingerprints(def: &DatasetDef, functions: &dyn Functions) -> Result<Vec<PrefixFingerprint>> {
    let mut out = Vec::new();
    for hint in def.hints() {
        let prefix = canonical(def, hint.stage_index, functions, Named::in_cache(functions))?;
        out.push(PrefixFingerprint {
            hint: hint.name,
            stage_index: hint.stage_index,
            fingerprint: prefix.fingerprint(),
            random: prefix.random,
        });
    }
    Ok(out)
}

/// The canonical text whose hash is the fingerprint of the first `stages` stages: for `caju explain`, which
/// shows in what two pipelines differ.
///
/// # Errors
/// As [`fingerprint`].
pub fn canonical_text(def: &DatasetDef, stages: usize, functions: &dyn Functions) -> Result<String> {
    Ok(canonical(def, stages.min(def.stages.len()), functions, Named::in_cache(functions))?.text)
}

/// The canonical JSON of [`canonical_text`] for a job that has another seed than the definition, and its
/// fingerprint; none if nothing in it draws from the seed.
pub fn reseeded(canonical: &Value, seed: u64) -> Option<(Value, Fingerprint)> {
    let mut canonical = canonical.clone();
    *canonical.get_mut("seed")? = seed.into();
    let mut text = String::new();
    write_canonical(&canonical, &mut text);
    let fingerprint = hash(&text);
    Some((canonical, fingerprint))
}

/// The name of the definition with everything that it says: paths, hints, order of columns and all settings,
/// but not its name, not the spelling of its expressions, and of functions of the user's own the code's name alone,
/// not the form that runs, which differs from process to process. Two clients share a dataset if these are equal.
///
/// # Errors
/// As [`fingerprint`].
pub fn identity(def: &DatasetDef, functions: &dyn Functions) -> Result<Fingerprint> {
    let computed = fingerprint(def, functions)?;
    let mut plain = def.clone();
    spell(&mut plain, functions)?;
    Ok(hash(&json!(["caju.definition/v1", computed.to_string(), plain.to_json()]).to_string()))
}

/// The definition of the prefix above a hint, in readable form, for manifests: without the hints.
///
/// # Errors
/// `InvalidArgument` if there is no such hint.
pub fn prefix_json(def: &DatasetDef, hint: &str) -> Result<Value> {
    let mut prefix = def.clone();
    prefix.stages.truncate(def.hint(hint)?.stage_index);
    prefix.stages.retain(|s| !matches!(s.op, StageOp::Autocache { .. }));
    Ok(prefix.to_json())
}

/// Takes names out of a definition and gives every expression its canonical spelling.
fn spell(def: &mut DatasetDef, functions: &dyn Functions) -> Result<()> {
    def.name = None;
    for stage in &mut def.stages {
        for sql in stage.op.expressions_mut() {
            *sql = functions.canonical(sql)?;
        }
        if let StageOp::Python(f) = &mut stage.op {
            f.name.clear();
            f.payload = bytes::Bytes::new();
        }
    }
    def.source.children_mut().iter_mut().try_for_each(|child| spell(child, functions))
}

/// A canonical text and what was learnt on the way.
struct Canonical {
    text: String,
    random: bool,
}

impl Canonical {
    fn fingerprint(&self) -> Fingerprint {
        hash(&self.text)
    }
}

fn hash(text: &str) -> Fingerprint {
    let digest = Sha256::digest(text.as_bytes());
    Fingerprint(digest.iter().take(16).fold(0, |h, byte| h << 8 | u128::from(*byte)))
}

/// What names a function of the user's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    /// What its definition says of its code.
    Code,
    /// The function itself, as it is sent.
    Payload,
}

impl Named {
    /// For what is stored, and read by others.
    fn in_cache(functions: &dyn Functions) -> Self {
        if functions.believes_code() { Named::Code } else { Named::Payload }
    }
}

fn canonical(def: &DatasetDef, stages: usize, functions: &dyn Functions, named: Named) -> Result<Canonical> {
    let mut walk = Walk {
        functions,
        named,
        used: BTreeMap::new(),
        engines: BTreeSet::new(),
        random: false,
        seeded: false,
    };
    let mut out = walk.dataset(def, stages, "")?;
    let versions = functions.engine_versions();
    let engines: Map<String, Value> = walk
        .engines
        .iter()
        .filter_map(|name| versions.get(name).map(|v| (name.clone(), v.as_str().into())))
        .collect();
    out.insert("schema".into(), SCHEMA.into());
    out.insert("functions".into(), json!(walk.used));
    out.insert("engines".into(), engines.into());
    if matches!(def.options.on_error, OnError::Skip { .. }) {
        out.insert("on_error".into(), "skip".into());
    }
    if walk.seeded {
        out.insert("seed".into(), def.options.seed.unwrap_or(0).into());
    }
    // Split by split the order is the file's own; only what is stored behind a stream stage depends on it.
    if def.options.deterministic && stages > def.split_local_len() {
        out.insert("deterministic".into(), true.into());
    }
    let mut text = String::new();
    write_canonical(&Value::Object(out), &mut text);
    Ok(Canonical { text, random: walk.random })
}

/// Walks over a definition and gathers what its parts use.
struct Walk<'f> {
    functions: &'f dyn Functions,
    named: Named,
    used: BTreeMap<String, u32>,
    engines: BTreeSet<String>,
    /// Something draws anew each epoch.
    random: bool,
    /// Something draws from the job's seed.
    seeded: bool,
}

impl Walk<'_> {
    fn dataset(&mut self, def: &DatasetDef, stages: usize, path: &str) -> Result<Map<String, Value>> {
        let mut out = Map::new();
        out.insert("source".into(), self.source(&def.source, &join(path, "source"))?);
        let mut list = Vec::new();
        for (i, op) in def.ops().enumerate().take(stages) {
            if !matches!(op, StageOp::Autocache { .. }) {
                let steps = join(path, "steps");
                list.push(self.stage(op, &format!("{steps}[{i}]"))?);
            }
        }
        out.insert("stages".into(), list.into());
        Ok(out)
    }

    fn source(&mut self, source: &SourceDef, path: &str) -> Result<Value> {
        let name = source.name();
        let path = join(path, name);
        let arguments = match source {
            SourceDef::Files(files) => self.format(&files.format),
            SourceDef::Range { start, end, step } => json!({ "start": start, "end": end, "step": step }),
            SourceDef::Memory { ipc } => {
                self.engine("arrow");
                json!({ "sha256": content_name(ipc) })
            }
            SourceDef::Held { sha256 } => {
                self.engine("arrow");
                json!({ "sha256": sha256 })
            }
            SourceDef::Concatenate(list) | SourceDef::Zip(list) => self.datasets(list, &path)?,
            SourceDef::Sample { datasets, weights, seed } => {
                self.random = true;
                self.seeded |= seed.is_none();
                json!({ "datasets": self.datasets(datasets, &join(&path, "datasets"))?, "weights": weights, "seed": seed })
            }
            // What is read is in the keys of the splits: they are made of the parts' checksums.
            SourceDef::Load { .. } => json!({}),
        };
        Ok(json!({ "kind": name, "version": own_version(name), "arguments": arguments }))
    }

    fn datasets(&mut self, list: &[DatasetDef], path: &str) -> Result<Value> {
        let mut out = Vec::new();
        for (i, def) in list.iter().enumerate() {
            out.push(Value::Object(self.dataset(def, def.stages.len(), &format!("{path}[{i}]"))?));
        }
        Ok(out.into())
    }

    fn format(&mut self, format: &FileFormat) -> Value {
        let mut out = write::format_arguments(format);
        match format {
            FileFormat::Parquet { .. } => {
                self.engine("parquet");
                self.engine("arrow");
            }
            FileFormat::Arrow { .. } | FileFormat::Json { .. } => self.engine("arrow"),
            FileFormat::Csv { schema, .. } => {
                self.engine("arrow");
                // Without a header the schema names columns by their place, so its order counts.
                if let Some(schema) = schema {
                    let list: Vec<_> =
                        schema.iter().map(|(name, ty)| json!([name, ty.to_string()])).collect();
                    out.insert("schema".into(), list.into());
                }
            }
            FileFormat::TfRecord { .. } | FileFormat::WebDataset { .. } | FileFormat::Images => {}
        }
        Value::Object(out)
    }

    fn stage(&mut self, op: &StageOp, path: &str) -> Result<Value> {
        let mut plain = op.clone();
        let spelt: Vec<String> = op
            .expressions()
            .into_iter()
            .map(|(place, sql)| self.expression(sql).map_err(|e: Error| e.context(format!("{path}.{place}"))))
            .collect::<Result<_>>()?;
        for (place, text) in plain.expressions_mut().into_iter().zip(spelt) {
            *place = text;
        }
        let mut arguments = write::arguments(&plain);
        match op {
            StageOp::Shuffle { seed, .. } => {
                self.random = true;
                self.seeded |= seed.is_none();
                // A bound of memory: the buffer is never shrunk to it.
                if let Value::Object(map) = &mut arguments {
                    map.shift_remove("max_bytes");
                }
            }
            StageOp::Python(f) => {
                self.engine("arrow");
                self.random |= f.random;
                self.seeded |= f.random;
                // The code names it; its packed form may differ between machines, its name says nothing.
                if let Value::Object(map) = &mut arguments {
                    map.shift_remove("payload");
                    if self.named == Named::Payload {
                        map.insert("payload_sha256".into(), content_name(&f.payload).into());
                    }
                    map.shift_remove("name");
                    map.shift_remove("timeout");
                }
            }
            StageOp::Unnest { .. }
            | StageOp::FlatMap { .. }
            | StageOp::Filter(_)
            | StageOp::Inflate { .. } => {
                self.engine("arrow");
            }
            op if op.makes_batches() => self.engine("arrow"),
            _ => {}
        }
        Ok(json!({ "op": op.name(), "version": own_version(op.name()), "arguments": arguments }))
    }

    fn expression(&mut self, sql: &str) -> Result<String> {
        self.used.extend(self.functions.version(sql)?);
        self.engines.extend(self.functions.engines_used(sql)?);
        if self.functions.is_random(sql)? {
            self.random = true;
            self.seeded = true;
        }
        self.functions.canonical(sql)
    }

    fn engine(&mut self, name: &str) {
        self.engines.insert(name.to_owned());
    }
}

/// The name of rows in memory: the SHA-256 of their Arrow IPC stream in hexadecimal digits. Rows that are held by a
/// process and rows that a definition carries have the same name, so their datasets have the same fingerprint.
pub fn content_name(ipc: &[u8]) -> String {
    Sha256::digest(ipc).iter().map(|b| format!("{b:02x}")).collect()
}

/// Stages and sources of ours whose rows have changed since their first version, with the version they have
/// now. One more whenever the same arguments give other rows (I10).
const CHANGED: &[(&str, u32)] = &[
    // Values that a record lacks are an error, or an empty list; they were nulls.
    ("parse_example", 2),
];

/// The version of our own code behind a stage or a source.
fn own_version(name: &str) -> u32 {
    CHANGED.iter().find(|(n, _)| *n == name).map_or(1, |(_, v)| *v)
}

/// JSON with sorted keys, no white space, and whole floats written as integers.
fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<_, _> = map.iter().collect();
            out.push('{');
            for (i, (key, value)) in sorted.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write_canonical(value, out);
            }
            out.push('}');
        }
        Value::Array(list) => {
            out.push('[');
            for (i, value) in list.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(value, out);
            }
            out.push(']');
        }
        Value::Number(n) if n.is_f64() => {
            out.push_str(&n.as_f64().map_or(Value::Null, write::number).to_string());
        }
        other => out.push_str(&other.to_string()),
    }
}
