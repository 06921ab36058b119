//! Fingerprints: names of what a pipeline computes, equal in every process and on every machine.
//!
//! A fingerprint is a hash of a canonical JSON text. Stored snapshots rely on what the text contains, so any change here,
//! however small, needs a new [`SCHEMA`].
//!
//! The text contains: the source's kind and the options of its reader; the stages above the hint with their arguments in
//! canonical spelling; the versions of our stages, of the functions that they call, and of the libraries on which those
//! depend; whether bad rows are skipped, and then the version of what makes a row bad; the seed, if anything above the hint
//! draws from it.
//!
//! The text does not contain: paths, listings and split sizes (they are in the split keys, so that growing data and other
//! subsets reuse matching parts); names; hints; memory bounds; the order of keys in maps. The latter include the columns of
//! `map`, `with_columns` and `features`: a row is a set of *named* columns, and a reader of a snapshot orders columns by
//! name.

use std::collections::{BTreeMap, BTreeSet};

use caju_types::{Error, Fingerprint, Result};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::def::{DatasetDef, FileFormat, OnError, SourceDef, StageOp};
use crate::functions::Functions;
use crate::place::join;
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
    /// The fingerprint of the rows that are stored there.
    pub fingerprint: Fingerprint,
    /// Whether anything above the hint draws other random numbers each epoch (a random function, `shuffle`, `sample`), so
    /// that storing rows freezes the draws.
    pub random: bool,
}

/// The fingerprint of what the whole definition computes. Like those of prefixes it does not cover the source's paths.
/// [`identity`] covers the whole definition.
///
/// # Errors
/// An expression that does not parse, with its place.
pub fn fingerprint(def: &DatasetDef, functions: &dyn Functions) -> Result<Fingerprint> {
    Ok(canonical(def, def.stages.len(), functions, CodeIdentity::Code)?.fingerprint())
}

/// The fingerprints of the prefixes, one per hint, in order.
///
/// # Errors
/// As [`fingerprint`].
pub fn prefix_fingerprints(def: &DatasetDef, functions: &dyn Functions) -> Result<Vec<PrefixFingerprint>> {
    let mut out = Vec::new();
    for hint in def.hints() {
        let prefix = canonical(def, hint.stage_index, functions, CodeIdentity::in_cache(functions))?;
        out.push(PrefixFingerprint {
            hint: hint.name,
            stage_index: hint.stage_index,
            fingerprint: prefix.fingerprint(),
            random: prefix.random,
        });
    }
    Ok(out)
}

/// The canonical text whose hash is the fingerprint of the first `stages` stages. `caju explain` shows with it in what two
/// pipelines differ.
///
/// # Errors
/// As [`fingerprint`].
pub fn canonical_text(def: &DatasetDef, stages: usize, functions: &dyn Functions) -> Result<String> {
    Ok(canonical(def, stages.min(def.stages.len()), functions, CodeIdentity::in_cache(functions))?.text)
}

/// The canonical JSON of the first `stages` stages, its fingerprint, and whether anything in it draws other random numbers
/// each epoch.
///
/// # Errors
/// As [`fingerprint`].
pub fn prefix_at(
    def: &DatasetDef,
    stages: usize,
    functions: &dyn Functions,
) -> Result<(Value, Fingerprint, bool)> {
    let found = canonical(def, stages.min(def.stages.len()), functions, CodeIdentity::in_cache(functions))?;
    let json = serde_json::from_str(&found.text)
        .map_err(|e| Error::internal(format!("the canonical text of a prefix is not JSON: {e}")))?;
    Ok((json, found.fingerprint(), found.random))
}

/// The canonical JSON of [`canonical_text`] for a job with another seed than the definition, and its fingerprint. None if
/// nothing in it draws from the seed.
pub fn reseeded(canonical: &Value, seed: u64) -> Option<(Value, Fingerprint)> {
    let mut canonical = canonical.clone();
    *canonical.get_mut("seed")? = seed.into();
    let mut text = String::new();
    write_canonical(&canonical, &mut text);
    let fingerprint = hash(&text);
    Some((canonical, fingerprint))
}

/// The fingerprint of the whole definition: paths, hints, order of columns and all settings, but not its name and not the
/// spelling of its expressions. Of Python functions it covers the digest of the code, not the packed form, which differs
/// from process to process. Two clients share a dataset if these fingerprints are equal.
///
/// # Errors
/// As [`fingerprint`].
pub fn identity(def: &DatasetDef, functions: &dyn Functions) -> Result<Fingerprint> {
    let computed = fingerprint(def, functions)?;
    let mut plain = def.clone();
    spell(&mut plain, functions)?;
    Ok(hash(&json!(["caju.definition/v1", computed.to_string(), plain.to_json()]).to_string()))
}

/// The definition of the prefix above a hint, without hints, in readable form for manifests.
///
/// # Errors
/// `InvalidArgument` if there is no such hint.
pub fn prefix_json(def: &DatasetDef, hint: &str) -> Result<Value> {
    let mut prefix = def.clone();
    prefix.stages.truncate(def.hint(hint)?.stage_index);
    prefix.stages.retain(|s| !matches!(s.op, StageOp::Autocache { .. }));
    // The rows do not depend on it.
    prefix.options.reorder = None;
    Ok(prefix.to_json())
}

/// Removes names from a definition, and gives every expression its canonical spelling.
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

/// A canonical text.
struct Canonical {
    text: String,
    /// Whether anything in it draws other random numbers each epoch.
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
/// What identifies a Python function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CodeIdentity {
    /// The digest of its code, as its definition gives it.
    Code,
    /// The packed function in the form in which it is sent.
    Payload,
}

impl CodeIdentity {
    /// For stored rows, which other users may read.
    fn in_cache(functions: &dyn Functions) -> Self {
        if functions.trusts_code() { CodeIdentity::Code } else { CodeIdentity::Payload }
    }
}

fn canonical(
    def: &DatasetDef,
    stages: usize,
    functions: &dyn Functions,
    named: CodeIdentity,
) -> Result<Canonical> {
    let mut canonicalizer = Canonicalizer {
        functions,
        named,
        used: BTreeMap::new(),
        engines: BTreeSet::new(),
        random: false,
        seeded: false,
    };
    let mut out = canonicalizer.dataset(def, stages, "")?;
    let versions = functions.engine_versions();
    let engines: Map<String, Value> = canonicalizer
        .engines
        .iter()
        .filter_map(|name| versions.get(name).map(|v| (name.clone(), v.as_str().into())))
        .collect();
    out.insert("schema".into(), SCHEMA.into());
    out.insert("functions".into(), json!(canonicalizer.used));
    out.insert("engines".into(), engines.into());
    if matches!(def.options.on_error, OnError::Skip { .. }) {
        out.insert("on_error".into(), "skip".into());
        out.insert("bad_rows".into(), BAD_ROWS_VERSION.into());
    }
    if canonicalizer.seeded {
        out.insert("seed".into(), def.options.seed.unwrap_or(0).into());
    }
    // Rows of one split are in the order of the file. Only rows that are stored below a cross-split stage depend on it.
    if def.options.deterministic && stages > def.split_local_len() {
        out.insert("deterministic".into(), true.into());
    }
    let mut text = String::new();
    write_canonical(&Value::Object(out), &mut text);
    Ok(Canonical { text, random: canonicalizer.random })
}

/// Visits a definition, and gathers what its parts use.
struct Canonicalizer<'f> {
    functions: &'f dyn Functions,
    named: CodeIdentity,
    used: BTreeMap<String, u32>,
    engines: BTreeSet<String>,
    /// Whether anything draws other random numbers each epoch.
    random: bool,
    /// Whether anything draws from the job's seed.
    seeded: bool,
}

impl Canonicalizer<'_> {
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
            SourceDef::InlineTable { sha256 } => {
                self.engine("arrow");
                json!({ "sha256": sha256 })
            }
            SourceDef::Concatenate(list) | SourceDef::Zip(list) => self.datasets(list, &path)?,
            SourceDef::Sample { datasets, weights, seed } => {
                self.random = true;
                self.seeded |= seed.is_none();
                json!({ "datasets": self.datasets(datasets, &join(&path, "datasets"))?, "weights": weights, "seed": seed })
            }
            // The split keys identify the rows: they are made of the parts' checksums.
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
                // Without a header the schema names columns by position, so its order matters.
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
                // A memory bound: the buffer is never shrunk to it.
                if let Value::Object(map) = &mut arguments {
                    map.shift_remove("max_bytes");
                }
            }
            StageOp::Python(f) => {
                self.engine("arrow");
                self.random |= f.random;
                self.seeded |= f.random;
                // The digest of the code identifies the function. The packed form may differ between machines.
                if let Value::Object(map) = &mut arguments {
                    map.shift_remove("payload");
                    if self.named == CodeIdentity::Payload {
                        map.insert("payload_sha256".into(), content_name(&f.payload).into());
                    }
                    map.shift_remove("name");
                    for key in ["timeout", "keeps", "draws_from"] {
                        map.shift_remove(key);
                    }
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

/// The name of rows in memory: the SHA-256 of their Arrow IPC stream in hexadecimal digits. Rows in a process's memory and
/// rows in a definition have equal names, so their datasets have equal fingerprints.
pub fn content_name(ipc: &[u8]) -> String {
    let mut hasher = ContentHasher::default();
    hasher.update(ipc);
    hasher.name()
}

/// [`content_name`] of bytes that come in parts.
#[derive(Debug, Clone, Default)]
pub struct ContentHasher(Sha256);

impl ContentHasher {
    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The name of all bytes.
    pub fn name(self) -> String {
        self.0.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// The current versions of stages and sources whose rows have changed since version 1. The version is raised whenever equal
/// arguments give other rows.
const VERSIONS: &[(&str, u32)] = &[
    // Every column may have nulls, and keys of dictionaries have 32 bits. In version 1 both were as in the first file.
    ("arrow", 2),
    // An empty line of a file of one column is a row. It was left out in version 1. Rows between two quotes that open no
    // value, and those that carriage returns divide, are read. They were lost in version 2.
    ("csv", 3),
    // Timestamps of 96 bits wrapped outside of the nanoseconds of 64 bits in version 1. Seconds with a time zone were in UTC
    // in version 2.
    ("parquet", 3),
    // Values that a record lacks are an error or an empty list. They were nulls in version 1.
    ("parse_example", 2),
    // Stages between two of them count in the repetitions of the upper one together. They counted in each in version 1.
    ("repeat", 2),
    // Each dataset draws for itself. In version 1 those of the same splits drew the same random numbers.
    ("zip", 2),
];

/// The version of what makes a row bad, for pipelines that skip bad rows. The version is raised whenever such a pipeline may skip
/// other rows than before, unless the version of a stage or a source is raised for it.
///
/// In version 1 a value of a CSV or JSON file was checked only if a stage needed its column, and the size of an image file only
/// if a stage needed its bytes. Columns that a stage passed on counted for the largest size of a row if they were read.
const BAD_ROWS_VERSION: u32 = 2;

/// The version of our own code behind a stage or a source.
fn own_version(name: &str) -> u32 {
    VERSIONS.iter().find(|(n, _)| *n == name).map_or(1, |(_, v)| *v)
}

/// Writes JSON with sorted keys, without white space, and with whole floats as integers.
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
