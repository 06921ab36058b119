//! Reading stages.

use std::collections::BTreeMap;

use caju_types::{Error, Result, did_you_mean};
use serde_json::Value;

use super::args::{Args, At};
use crate::binary;
use crate::boundaries::{Boundaries, DEFAULT_LEARNING_ROWS, Quantiles};
use crate::def::{Cost, DEFAULT_SHUFFLE_BYTES, Feature, FeatureShape, PythonFunction, PythonKind, StageOp};
use crate::spelling::{FEATURE_TYPES, HINT, stage_example};
use crate::write::round_scalar;

/// Reads one step. `hints` is the number of hints above it, which gives the default name of a hint.
pub(super) fn read(at: &At<'_>, hints: usize) -> Result<StageOp> {
    let (name, inner) = name_and_value(at)?;
    let Some(name) = StageOp::NAMES.into_iter().find(|n| *n == name) else {
        let mut hint = did_you_mean(name, StageOp::NAMES);
        if hint.is_empty() {
            hint = format!("; known are {}", StageOp::NAMES.join(", "));
        }
        return Err(Error::invalid(format!("unknown stage `{name}` at {}{hint}", at.path)));
    };
    match name {
        "map" => return Ok(StageOp::Map(expressions(&inner, name)?)),
        "with_columns" => return Ok(StageOp::WithColumns(expressions(&inner, name)?)),
        _ => {}
    }
    let mut args = Args::new(inner, short_argument(name), stage_example(name))?;
    let op = match name {
        "parse_example" | "select" | "filter" | "unnest" | "flat_map" => row_stage(name, &mut args)?,
        "sleep" | "burn" | "inflate" | "autocache" => cost_or_hint(name, &mut args, hints)?,
        "python" => python(&mut args)?,
        "batch" | "padded_batch" | "bucket_by_length" => batch_stage(name, &mut args)?,
        _ => stream_stage(name, &mut args)?,
    };
    args.finish()?;
    Ok(op)
}

/// Reads `shuffle: { .. }` or, for stages without required arguments, the bare name.
fn name_and_value<'a>(at: &At<'a>) -> Result<(&'a str, At<'a>)> {
    const NOTHING: &Value = &Value::Null;
    if let Some(name) = at.value.as_str() {
        return Ok((name, At { path: crate::place::join(&at.path, name), value: NOTHING }));
    }
    if let Some(found) = at.single() {
        return Ok(found);
    }
    match at.value.as_object() {
        Some(map) if map.len() > 1 => {
            let keys: Vec<_> = map.keys().take(4).map(|k| format!("`{k}`")).collect();
            Err(at.error(format!(
                "a step is one stage, found the keys {}; begin each stage with its own `- `, and indent \
                 arguments deeper than the stage's name",
                keys.join(", ")
            )))
        }
        _ => Err(at.wrong("a stage such as `batch: 256`")),
    }
}

/// The argument that a bare value gives.
fn short_argument(stage: &str) -> Option<&'static str> {
    Some(match stage {
        "select" => "columns",
        "filter" => "expr",
        "unnest" => "column",
        "autocache" => "name",
        "shuffle" | "prefetch" => "buffer",
        "repeat" | "take" | "skip" => "count",
        "batch" | "padded_batch" => "size",
        _ => return None,
    })
}

fn expressions(at: &At<'_>, stage: &str) -> Result<Vec<(String, String)>> {
    let expected = format!("columns and expressions as in `{}`", stage_example(stage));
    at.entries(&expected)?.into_iter().map(|(name, e)| Ok((name, e.expression()?))).collect()
}

fn row_stage(name: &str, args: &mut Args<'_>) -> Result<StageOp> {
    Ok(match name {
        "parse_example" => {
            let column = args.get("column").map_or(Ok("record".to_owned()), |a| a.text("a column's name"))?;
            let features =
                args.need("features")?.entries("features as in `{ image: bytes, label: int64 }`")?;
            let features =
                features.into_iter().map(|(n, at)| Ok((n, feature(&at)?))).collect::<Result<_>>()?;
            StageOp::ParseExample { column, features }
        }
        "select" => StageOp::Select(args.need("columns")?.texts("a list of columns")?),
        "filter" => StageOp::Filter(args.need("expr")?.expression()?),
        "unnest" => StageOp::Unnest { column: args.need("column")?.text("a column's name")? },
        _ => StageOp::FlatMap {
            name: args.need("name")?.text("the new column's name")?,
            expr: args.need("expr")?.expression()?,
        },
    })
}

fn cost_or_hint(name: &str, args: &mut Args<'_>, hints: usize) -> Result<StageOp> {
    Ok(match name {
        "sleep" => StageOp::Sleep(cost(args)?),
        "burn" => StageOp::Burn(cost(args)?),
        "inflate" => StageOp::Inflate {
            column: args.need("column")?.text("a column's name")?,
            factor: args.need("factor")?.f64("a number of at least 1")?,
        },
        _ => {
            let name = args.get("name").map(|a| a.text("the hint's name")).transpose()?;
            StageOp::Autocache { name: name.unwrap_or_else(|| format!("hint-{hints}")) }
        }
    })
}

fn python(args: &mut Args<'_>) -> Result<StageOp> {
    let bytes = |at: &At<'_>| {
        let expected = "bytes in base64";
        binary::decode(at.str(expected)?).map(bytes::Bytes::from).ok_or_else(|| at.wrong(expected))
    };
    let kind = args.need("kind")?;
    let expected = "`map`, `filter` or `flat_map`";
    let kind = match kind.str(expected)? {
        "map" => PythonKind::Map,
        "filter" => PythonKind::Filter,
        "flat_map" => PythonKind::FlatMap,
        _ => return Err(kind.wrong(expected)),
    };
    Ok(StageOp::Python(PythonFunction {
        kind,
        name: args.get("name").map_or(Ok("function".to_owned()), |a| a.text("the function's name"))?,
        code: args.need("code")?.text("the digest of the function's code")?,
        batched: args.flag("batched")?,
        random: args.flag("random")?,
        draws_from: args.get("draws_from").map(|a| a.text("the name of a generator")).transpose()?,
        payload: bytes(&args.need("payload")?)?,
        schema: args.get("schema").map_or(Ok(bytes::Bytes::new()), |a| bytes(&a))?,
        timeout: args.get("timeout").map(|a| a.duration()).transpose()?,
        reads: args.get("reads").map(|a| a.texts("a list of columns")).transpose()?,
        keeps: args.get("keeps").map_or(Ok(Vec::new()), |a| a.texts("a list of columns"))?,
    }))
}

fn cost(args: &mut Args<'_>) -> Result<Cost> {
    match (args.get("per_row"), args.get("per_batch")) {
        (Some(at), None) => Ok(Cost::PerRow(at.duration()?)),
        (None, Some(at)) => Ok(Cost::PerBatch(at.duration()?)),
        _ => Err(args.at().error("give either `per_row: 8us` or `per_batch: 200ms`")),
    }
}

fn stream_stage(name: &str, args: &mut Args<'_>) -> Result<StageOp> {
    Ok(match name {
        "shuffle" => StageOp::Shuffle {
            buffer: args.need("buffer")?.positive()?,
            seed: args.get("seed").map(|a| a.count()).transpose()?,
            max_bytes: args.get("max_bytes").map_or(Ok(DEFAULT_SHUFFLE_BYTES), |a| a.size())?,
        },
        "repeat" => StageOp::Repeat(args.get("count").map(|a| a.positive()).transpose()?),
        "take" => StageOp::Take(args.need("count")?.count()?),
        "skip" => StageOp::Skip(args.need("count")?.count()?),
        "shard" => StageOp::Shard {
            num_shards: number_or_hint(&args.need("num_shards")?, |a| a.positive())?,
            index: number_or_hint(&args.need("index")?, |a| a.count())?,
        },
        "prefetch" => StageOp::Prefetch(args.need("buffer")?.positive()?),
        "unbatch" => StageOp::Unbatch,
        // The caller has found the name in the list of stages.
        other => return Err(Error::internal(format!("the stage `{other}` has no reader"))),
    })
}

/// Reads a number, or `HINT`: none.
pub(super) fn number_or_hint(at: &At<'_>, number: impl Fn(&At<'_>) -> Result<u64>) -> Result<Option<u64>> {
    match at.value.as_str() {
        Some(HINT) => Ok(None),
        Some(_) => Err(at.wrong("a number or `HINT`")),
        None => number(at).map(Some),
    }
}

fn batch_stage(name: &str, args: &mut Args<'_>) -> Result<StageOp> {
    let drop_remainder = args.flag("drop_remainder")?;
    Ok(match name {
        "batch" => StageOp::Batch { size: args.need("size")?.positive()?, drop_remainder },
        "padded_batch" => StageOp::PaddedBatch {
            size: args.need("size")?.positive()?,
            drop_remainder,
            lengths: by_column(args, "lengths", |a| a.u32("a positive integer"))?,
            values: by_column(args, "values", |a| Ok(round_scalar(a.value)))?,
        },
        _ => {
            let length = args.need("length")?.expression()?;
            let boundaries = boundaries(&args.need("boundaries")?)?;
            let batch_sizes = batch_sizes(&args.need("batch_sizes")?, &boundaries)?;
            let pad = args.get("pad").map_or(Ok(true), |a| a.bool())?;
            StageOp::BucketByLength { length, boundaries, batch_sizes, drop_remainder, pad }
        }
    })
}

/// Reads a list of lengths, or `{ quantiles: 4, rows: 4096 }`.
fn boundaries(at: &At<'_>) -> Result<Boundaries> {
    if !at.value.is_object() {
        let list = at.list("a list of lengths, or `{ quantiles: 4 }` to learn them")?;
        return Ok(Boundaries::Given(list.iter().map(|a| a.i64()).collect::<Result<_>>()?));
    }
    let mut args = Args::new(at.clone(), None, "boundaries: { quantiles: 4, rows: 4096 }")?;
    let classes = args.need("quantiles")?.positive()?;
    let rows = args.get("rows").map_or(Ok(DEFAULT_LEARNING_ROWS), |a| a.positive())?;
    args.finish()?;
    Ok(Boundaries::Learnt(Quantiles { classes, rows }))
}

/// Reads one batch size for all classes, or one for each class of given boundaries.
fn batch_sizes(at: &At<'_>, boundaries: &Boundaries) -> Result<Vec<u64>> {
    match (at.value.is_number(), boundaries) {
        (true, Boundaries::Given(list)) => Ok(vec![at.positive()?; list.len() + 1]),
        (true, Boundaries::Learnt(_)) => Ok(vec![at.positive()?]),
        (false, Boundaries::Given(_)) => {
            let list = at.list("a list of batch sizes, one more than boundaries")?;
            list.iter().map(|a| a.positive()).collect()
        }
        (false, Boundaries::Learnt(_)) => Err(at.error(
            "equal quantiles give fewer classes, so learnt boundaries need one batch size for all classes, such as \
             `batch_sizes: 16`; or give the boundaries as a list",
        )),
    }
}

fn by_column<T>(
    args: &mut Args<'_>,
    key: &'static str,
    read: impl Fn(&At<'_>) -> Result<T>,
) -> Result<BTreeMap<String, T>> {
    let Some(at) = args.get(key) else { return Ok(BTreeMap::new()) };
    let entries = at.entries("a map of columns")?;
    entries.into_iter().map(|(name, at)| Ok((name, read(&at)?))).collect()
}

/// Reads `int64`, `int64[]`, `int64[10]`, `int64?`, or `{ dtype: int64, shape: 10, optional: true }`.
fn feature(at: &At<'_>) -> Result<Feature> {
    let expected = "a feature such as `int64`, `float32[10]`, `bytes[]` or `int64?`";
    if at.value.is_object() {
        let mut args = Args::new(at.clone(), None, "label: { dtype: int64, shape: scalar }")?;
        let dtype = args.need("dtype")?.word(FEATURE_TYPES)?;
        let shape = args.get("shape").map_or(Ok(FeatureShape::Scalar), |a| match a.value.as_str() {
            Some("scalar") => Ok(FeatureShape::Scalar),
            Some("list") => Ok(FeatureShape::List),
            _ => Ok(FeatureShape::Fixed(a.u32("`scalar`, `list` or a positive number of values")?)),
        })?;
        let optional = args.get("optional").map_or(Ok(false), |a| a.bool())?;
        args.finish()?;
        return Ok(Feature { dtype, shape, optional });
    }
    let text = at.str(expected)?;
    let (plain, optional) = text.strip_suffix('?').map_or((text, false), |plain| (plain, true));
    let (word, shape) = match plain.strip_suffix(']').and_then(|t| t.split_once('[')) {
        None => (plain, FeatureShape::Scalar),
        Some((word, "")) => (word, FeatureShape::List),
        Some((word, n)) => (word, FeatureShape::Fixed(n.parse().map_err(|_| at.wrong(expected))?)),
    };
    match FEATURE_TYPES.iter().find(|(w, _)| *w == word) {
        Some((_, dtype)) => Ok(Feature { dtype: *dtype, shape, optional }),
        None => {
            let hint = did_you_mean(word, FEATURE_TYPES.iter().map(|(w, _)| *w));
            Err(at.error(format!(
                "expected {expected}, found {:?}{hint}",
                text.chars().take(60).collect::<String>()
            )))
        }
    }
}
