//! Checks of single stages.

use std::collections::BTreeMap;
use std::time::Duration;

use caju_types::Result;
use serde_json::Value;

use super::{bad, column, columns, range};
use crate::boundaries::{Boundaries, MAX_LEARNING_ROWS, MAX_LEARNT_CLASSES, Quantiles};
use crate::def::{ColumnType, Cost, Feature, FeatureShape, PythonKind, StageOp};
use crate::place::join;

/// The most rows of a batch: Arrow counts them in 31 bits.
const MAX_BATCH: u64 = i32::MAX as u64;
/// The most elements of a shuffle buffer: more than fit any memory. It only catches nonsense.
const MAX_BUFFER: u64 = 1 << 40;
/// The most prefetched elements: all of them are in memory.
const MAX_PREFETCH: u64 = 1 << 20;
/// The most bytes of a shuffle buffer: 1 PiB. It only catches nonsense.
const MAX_BYTES: u64 = 1 << 50;
/// The largest count: every JSON parser reads integers up to it exactly.
const MAX_COUNT: u64 = 1 << 53;
/// The longest `sleep` or `burn` of one row or batch, and the longest `timeout` of a Python function: a day. It only catches
/// nonsense.
const MAX_COST: Duration = Duration::from_secs(86_400);
/// The largest factor of `inflate`: with it a row of 1 KiB takes about 1 GiB. It only catches nonsense.
const MAX_FACTOR: f64 = 1e6;

pub(super) fn check(op: &StageOp, path: &str) -> Result<()> {
    match op {
        StageOp::ParseExample { column: from, features } => {
            column(&join(path, "column"), from)?;
            check_features(features, &join(path, "features"))
        }
        StageOp::Map(list) | StageOp::WithColumns(list) => {
            columns(path, "column", list.iter().map(|(name, _)| name))?;
            list.iter().try_for_each(|(name, sql)| expression(&join(path, name), sql))
        }
        StageOp::Select(names) => columns(path, "column", names),
        StageOp::Filter(sql) => expression(path, sql),
        StageOp::Unnest { column: name } => column(&join(path, "column"), name),
        StageOp::FlatMap { name, expr } => {
            column(&join(path, "name"), name)?;
            expression(&join(path, "expr"), expr)
        }
        StageOp::Sleep(Cost::PerRow(d) | Cost::PerBatch(d))
        | StageOp::Burn(Cost::PerRow(d) | Cost::PerBatch(d)) => match *d <= MAX_COST {
            true => Ok(()),
            false => Err(bad(path, "a stage that takes more than a day for one piece of work is refused")),
        },
        StageOp::Inflate { column: name, factor } => {
            column(&join(path, "column"), name)?;
            match (1.0..=MAX_FACTOR).contains(factor) {
                true => Ok(()),
                false => Err(range(&join(path, "factor"), "a number from 1 to 1000000", factor)),
            }
        }
        StageOp::Python(f) => match f.schema.is_empty() == (f.kind == PythonKind::Filter) {
            true if f.timeout.is_some_and(|t| t.is_zero() || t > MAX_COST) => {
                Err(bad(&join(path, "timeout"), "must be more than nothing and at most a day, such as 60s"))
            }
            true if f.kind == PythonKind::Filter && !f.keeps.is_empty() => {
                Err(bad(&join(path, "keeps"), "a filter keeps all columns; leave it out"))
            }
            true => {
                let reads = f.reads.iter().flatten();
                reads.chain(&f.keeps).try_for_each(|name| column(path, name))
            }
            false => {
                Err(bad(path, "`schema` says what a map or flat_map makes, and a filter makes nothing new"))
            }
        },
        StageOp::Autocache { name } => hint_name(name, path),
        op => stream(op, path),
    }
}

fn stream(op: &StageOp, path: &str) -> Result<()> {
    match op {
        StageOp::Shuffle { buffer, max_bytes, .. } => {
            within(&join(path, "buffer"), *buffer, 1, MAX_BUFFER)?;
            within(&join(path, "max_bytes"), *max_bytes, 1, MAX_BYTES)
        }
        StageOp::Repeat(count) => count.map_or(Ok(()), |n| within(path, n, 1, MAX_COUNT)),
        StageOp::Take(n) | StageOp::Skip(n) => within(path, *n, 0, MAX_COUNT),
        StageOp::Shard { num_shards, index } => shard(*num_shards, *index, path),
        StageOp::Prefetch(n) => within(path, *n, 1, MAX_PREFETCH),
        StageOp::Batch { size, .. } => within(&join(path, "size"), *size, 1, MAX_BATCH),
        StageOp::PaddedBatch { size, lengths, values, .. } => {
            within(&join(path, "size"), *size, 1, MAX_BATCH)?;
            padding(lengths, values, path)
        }
        StageOp::BucketByLength { length, boundaries, batch_sizes, .. } => {
            expression(&join(path, "length"), length)?;
            buckets(boundaries, batch_sizes, path)
        }
        _ => Ok(()),
    }
}

/// Checks the numbers of a `shard`.
pub(super) fn shard(num_shards: Option<u64>, index: Option<u64>, path: &str) -> Result<()> {
    let Some(n) = num_shards else { return Ok(()) };
    within(&join(path, "num_shards"), n, 1, MAX_COUNT)?;
    match index {
        Some(i) if i < n => Ok(()),
        Some(i) => Err(range(&join(path, "index"), &format!("an integer from 0 to {}", n - 1), i)),
        None => Err(bad(
            &join(path, "index"),
            format!("index must be between 0 and {}: `HINT` needs `num_shards: HINT`", n - 1),
        )),
    }
}

fn within(path: &str, n: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&n) {
        return Ok(());
    }
    match (n, min) {
        (0, 1) => Err(range(path, "a positive integer", n)),
        _ => Err(range(path, &format!("an integer from {min} to {max}"), n)),
    }
}

fn expression(path: &str, sql: &str) -> Result<()> {
    match sql.trim().is_empty() {
        true => Err(bad(path, "the expression is empty")),
        false => Ok(()),
    }
}

fn hint_name(name: &str, path: &str) -> Result<()> {
    let ok = !name.is_empty()
        && name.len() <= 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    match ok {
        true => Ok(()),
        false => {
            let expected = "a hint's name of 1 to 64 letters, digits, `-`, `_` and `.`";
            Err(range(path, expected, format!("{:?}", name.chars().take(80).collect::<String>())))
        }
    }
}

fn check_features(features: &[(String, Feature)], path: &str) -> Result<()> {
    columns(path, "feature", features.iter().map(|(name, _)| name))?;
    for (name, feature) in features {
        let at = join(path, name);
        if !matches!(feature.dtype, ColumnType::Bytes | ColumnType::Int64 | ColumnType::Float32) {
            let found = format!("`{}`", feature.dtype);
            return Err(range(
                &at,
                "one of `bytes`, `int64`, `float32`, which is all that an example holds",
                found,
            ));
        }
        if let FeatureShape::Fixed(n) = feature.shape {
            length(&at, n)?;
        }
    }
    Ok(())
}

fn length(path: &str, n: u32) -> Result<()> {
    within(path, u64::from(n), 1, MAX_BATCH)
}

fn padding(lengths: &BTreeMap<String, u32>, values: &BTreeMap<String, Value>, path: &str) -> Result<()> {
    for (name, n) in lengths {
        length(&join(&join(path, "lengths"), name), *n)?;
    }
    for (name, value) in values {
        if value.is_null() || value.is_array() || value.is_object() {
            let at = join(&join(path, "values"), name);
            return Err(bad(&at, "expected a number, a text, true or false"));
        }
    }
    let names = lengths.keys().chain(values.keys());
    names.into_iter().try_for_each(|name| column(path, name))
}

fn buckets(boundaries: &Boundaries, batch_sizes: &[u64], path: &str) -> Result<()> {
    let at = join(path, "boundaries");
    let boundaries = match boundaries {
        Boundaries::Given(list) => list,
        Boundaries::Learnt(Quantiles { classes, rows }) => {
            within(&join(&at, "quantiles"), *classes, 2, MAX_LEARNT_CLASSES)?;
            within(&join(&at, "rows"), *rows, 1, MAX_LEARNING_ROWS)?;
            let size = batch_sizes.first().copied().unwrap_or(0);
            return within(&join(path, "batch_sizes"), size, 1, MAX_BATCH);
        }
    };
    if boundaries.is_empty() {
        return Err(bad(&at, "it holds no boundary; give at least one, or use `padded_batch`"));
    }
    if boundaries[0] < 1 || boundaries.windows(2).any(|w| w[0] >= w[1]) {
        return Err(bad(&at, "expected positive lengths, each greater than the one before"));
    }
    let at = join(path, "batch_sizes");
    if batch_sizes.len() != boundaries.len() + 1 {
        let expected = format!("{} sizes, one more than boundaries", boundaries.len() + 1);
        return Err(range(&at, &expected, batch_sizes.len()));
    }
    batch_sizes.iter().enumerate().try_for_each(|(i, n)| within(&format!("{at}[{i}]"), *n, 1, MAX_BATCH))
}
