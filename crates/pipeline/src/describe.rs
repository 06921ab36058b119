//! A definition as text for people, one line per stage.

use crate::boundaries::Boundaries;
use crate::def::{
    Cost, DEFAULT_SHUFFLE_BYTES, DEFAULT_SPLIT_BYTES, DatasetDef, SourceDef, StageOp, VersionRule,
};
use crate::spelling::duration_text;
use crate::write::format_arguments;

/// The definition as `caju check` prints it: the source, and then one line per stage with its index in `steps`.
///
/// ```
/// # use caju_pipeline::{DatasetDef, describe};
/// let text = "source: { range: 10 }\nsteps: [ with_columns: { x: id + 1 }, batch: 4 ]";
/// let def = DatasetDef::from_yaml(text, None)?;
/// assert_eq!(describe(&def), [
///     "source  range             0 to 10 by 1",
///     "     0  with_columns      x = id + 1",
///     "     1  batch             4 rows, a short one at the end is kept",
/// ]);
/// # Ok::<(), caju_types::Error>(())
/// ```
pub fn describe(def: &DatasetDef) -> Vec<String> {
    let mut out = Vec::new();
    dataset(def, "", &mut out);
    out
}

fn dataset(def: &DatasetDef, indent: &str, out: &mut Vec<String>) {
    let mut line = |index: &str, name: &str, text: &str| {
        // An expression may span several lines.
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        out.push(format!("{indent}{index:>6}  {name:<16}  {text}").trim_end().to_owned());
    };
    line("source", def.source.name(), &source(&def.source));
    for (i, op) in def.ops().enumerate() {
        line(&i.to_string(), op.name(), &stage(op));
    }
    // The lines of a child follow those of the dataset that contains it.
    for (i, child) in def.source.children().iter().enumerate() {
        out.push(format!("{indent}  dataset {i} of {}:", def.source.name()));
        dataset(child, &format!("{indent}    "), out);
    }
}

fn source(source: &SourceDef) -> String {
    match source {
        SourceDef::Files(files) => {
            let shown = files.paths.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
            let mut text = match files.paths.len() {
                n if n > 3 => format!("{shown} and {} more", n - 3),
                _ => shown,
            };
            for (key, value) in format_arguments(&files.format) {
                // Common defaults are left out.
                if !matches!(
                    (key.as_str(), value.to_string().as_str()),
                    ("compression", "\"auto\"") | ("header", "true") | ("delimiter", "\",\"")
                ) {
                    text.push_str(&format!("  {key} {value}"));
                }
            }
            if files.split_bytes != DEFAULT_SPLIT_BYTES {
                text.push_str(&format!("  split {}", caju_types::format_bytes(files.split_bytes)));
            }
            if let Some(shard) = files.shard {
                text.push_str(&format!("  {}", shard_text(shard.num_shards, shard.index)));
            }
            if files.version != VersionRule::Listed {
                text.push_str(&format!("  version {}", files.version));
            }
            text
        }
        SourceDef::Range { start, end, step } => format!("{start} to {end} by {step}"),
        SourceDef::Memory { ipc } => {
            format!("{} in the definition", caju_types::format_bytes(ipc.len() as u64))
        }
        SourceDef::InlineTable { sha256 } => {
            format!("rows in memory, content {}", &sha256[..sha256.len().min(12)])
        }
        SourceDef::Concatenate(list) => format!("{} datasets one after another", list.len()),
        SourceDef::Zip(list) => format!("{} datasets side by side", list.len()),
        SourceDef::Sample { weights, seed, .. } => {
            let weights: Vec<_> = weights.iter().map(f64::to_string).collect();
            format!("weights {}, {}", weights.join(" : "), seed_text(*seed))
        }
        SourceDef::Load { path, wait: true } => path.clone(),
        SourceDef::Load { path, wait: false } => format!("{path}, only if it is finished"),
    }
}

fn seed_text(seed: Option<u64>) -> String {
    seed.map_or("the job's seed".to_owned(), |s| format!("seed {s}"))
}

fn assignments(list: &[(String, String)]) -> String {
    list.iter().map(|(name, sql)| format!("{name} = {sql}")).collect::<Vec<_>>().join(", ")
}

fn remainder(drop_remainder: bool) -> &'static str {
    if drop_remainder { "a short one at the end is dropped" } else { "a short one at the end is kept" }
}

fn cost(cost: &Cost) -> String {
    match cost {
        Cost::PerRow(d) => format!("{} per row", duration_text(*d)),
        Cost::PerBatch(d) => format!("{} per batch", duration_text(*d)),
    }
}

fn shard_text(num_shards: Option<u64>, index: Option<u64>) -> String {
    let index = index.map_or_else(|| "HINT".to_owned(), |i| i.to_string());
    num_shards.map_or_else(|| "the worker's shard".to_owned(), |n| format!("shard {index} of {n}"))
}

fn stage(op: &StageOp) -> String {
    match op {
        StageOp::ParseExample { column, features } => {
            let features: Vec<_> = features.iter().map(|(name, f)| format!("{name} {f}")).collect();
            format!("{} from {column}", features.join(", "))
        }
        StageOp::Map(list) | StageOp::WithColumns(list) => assignments(list),
        StageOp::Select(columns) => columns.join(", "),
        StageOp::Filter(sql) => sql.clone(),
        StageOp::Unnest { column } => column.clone(),
        StageOp::FlatMap { name, expr } => format!("{name} = each of {expr}"),
        StageOp::Sleep(c) | StageOp::Burn(c) => cost(c),
        StageOp::Inflate { column, factor } => format!("{column} by {factor}"),
        StageOp::Python(f) => {
            let rows = if f.batched { ", batches" } else { "" };
            format!("{} {}{rows}", f.kind.as_str(), f.name)
        }
        StageOp::Autocache { name } => name.clone(),
        StageOp::Shuffle { buffer, seed, max_bytes } => {
            let bound = match *max_bytes {
                DEFAULT_SHUFFLE_BYTES => String::new(),
                bytes => format!(", at most {}", caju_types::format_bytes(bytes)),
            };
            format!("buffer {buffer}, {}{bound}", seed_text(*seed))
        }
        StageOp::Repeat(None) => "for ever".to_owned(),
        StageOp::Repeat(Some(n)) => format!("{n} times"),
        StageOp::Take(n) => format!("the first {n}"),
        StageOp::Skip(n) => format!("all but the first {n}"),
        StageOp::Shard { num_shards, index } => shard_text(*num_shards, *index),
        StageOp::Batch { size, drop_remainder } => format!("{size} rows, {}", remainder(*drop_remainder)),
        StageOp::PaddedBatch { size, drop_remainder, lengths, .. } => {
            let fixed: String = lengths.iter().map(|(name, n)| format!(", {name} to {n}")).collect();
            format!("{size} rows, {}{fixed}", remainder(*drop_remainder))
        }
        StageOp::BucketByLength { length, boundaries, batch_sizes, drop_remainder, pad } => {
            let pad = if *pad { "padded" } else { "not padded" };
            let at = match boundaries {
                Boundaries::Given(list) => format!("{list:?}"),
                Boundaries::Learnt(of) => of.to_string(),
            };
            format!("by {length} at {at}, {batch_sizes:?} rows, {pad}, {}", remainder(*drop_remainder))
        }
        StageOp::Unbatch => String::new(),
        StageOp::Prefetch(n) => format!("{n} ahead"),
    }
}
