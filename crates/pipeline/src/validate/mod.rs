//! Validation of a definition without data: numbers are in range, names are unique, and the order of stages is meaningful.

mod source;
mod stage;

use std::collections::BTreeSet;

use caju_types::{Error, Result, did_you_mean};

use crate::def::{DatasetDef, Options, StageOp};
use crate::place::join;
use crate::reorder::Reorder;

/// The most levels of datasets nested in combinators. Reading and checking are recursive.
pub const MAX_DEPTH: usize = 8;

/// The most levels of lists, structs and maps around a column's values. Schemas travel as JSON, whose reader gives up at 128
/// levels: three for a struct, and a few around it. They are stored as Arrow IPC, whose verifier gives up at 64.
pub const MAX_TYPE_LEVELS: usize = 32;

/// The prefixes of the names of internal columns: of expressions and functions, and of stored rows.
const RESERVED_PREFIXES: [&str; 2] = ["__caju", "caju."];

/// The prefix for which a column's name is reserved; none if a user's column may have the name.
pub fn reserved_prefix(name: &str) -> Option<&'static str> {
    RESERVED_PREFIXES.into_iter().find(|prefix| name.starts_with(prefix))
}

/// Checks a definition's structure. Columns, types and functions are checked when it is bound to data.
///
/// Reading a definition checks it. This function is for definitions made in code.
///
/// # Errors
/// `InvalidArgument`, which names the place, as in `steps[3].shuffle.buffer`, and the way out.
///
/// ```
/// # use caju_pipeline::{DatasetDef, StageDef, StageOp, validate};
/// let mut def = DatasetDef::from_yaml("source: { range: 10 }", None)?;
/// def.stages.push(StageDef { op: StageOp::Unbatch });
/// assert!(validate(&def).unwrap_err().to_string().starts_with("steps[0].unbatch: there is no batch above"));
/// # Ok::<(), caju_types::Error>(())
/// ```
pub fn validate(def: &DatasetDef) -> Result<()> {
    source::check(&def.source, "source", 0)?;
    let mut hints = BTreeSet::new();
    for (i, op) in def.ops().enumerate() {
        let path = format!("steps[{i}].{}", op.name());
        stage::check(op, &path)?;
        if let StageOp::Autocache { name } = op
            && !hints.insert(name)
        {
            return Err(bad(
                &path,
                format!("a hint named `{name}` stands above already; give each its own name"),
            ));
        }
    }
    if let Some(reorder) = &def.options.reorder {
        factors(reorder, def)?;
    }
    match def.unlearnt_place().filter(|_| def.options.cache_only) {
        Some(place) => Err(bad(
            &join(&place, "boundaries"),
            "`cache_only` reads no source from whose rows boundaries could be learnt; give them as a list: `caju status` \
             shows those that were learnt",
        )),
        None => order(def),
    }
}

/// Checks that each measured factor is one, and belongs to a stage.
fn factors(reorder: &Reorder, def: &DatasetDef) -> Result<()> {
    let names = def.stage_names();
    for (name, factor) in &reorder.measured {
        let path = join("reorder.measured", name);
        if !names.contains(name) {
            let near = did_you_mean(name, names.iter().map(String::as_str));
            return Err(bad(
                &path,
                format!("there is no such stage{near}; `1.map` is the name of a `map` at steps[1]"),
            ));
        }
        if !(factor.is_finite() && *factor >= 0.0) {
            return Err(bad(&path, format!("expected a number of at least 0, found {factor}")));
        }
    }
    Ok(())
}

/// Checks a dataset inside a combinator: all its stages must be split-local, but for a `repeat` at the end of one that may be
/// repeated.
fn child(def: &DatasetDef, combinator: &str, path: &str, (depth, may_repeat): (usize, bool)) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(bad(path, format!("datasets are nested more than {MAX_DEPTH} deep")));
    }
    if def.options != Options::default() {
        return Err(bad(
            path,
            "`seed`, `on_error`, `deterministic`, `cache_only` and `reorder` hold for the whole definition; put them at the top",
        ));
    }
    source::check(&def.source, &join(path, "source"), depth)?;
    for (i, op) in def.ops().enumerate() {
        let at = format!("{path}.steps[{i}].{}", op.name());
        if matches!(op, StageOp::Repeat(_)) && may_repeat {
            if i + 1 < def.stages.len() {
                return Err(bad(
                    &at,
                    format!("a `repeat` of a dataset inside `{combinator}` must be its last step"),
                ));
            }
        } else if matches!(op, StageOp::Autocache { .. }) || !op.is_split_local() {
            return Err(bad(
                &at,
                format!(
                    "a dataset inside `{combinator}` may hold only stages that see one row at a time; put \
                     `{}` after the `{combinator}`, into the outermost `steps`",
                    op.name()
                ),
            ));
        }
        stage::check(op, &at)?;
    }
    Ok(())
}

/// Checks the order of stages.
fn order(def: &DatasetDef) -> Result<()> {
    let mut batched: Option<(usize, &str)> = None;
    let mut endless = def.source.endless_dataset().map(|i| format!("source.sample.datasets[{i}]"));
    for (i, op) in def.ops().enumerate() {
        let name = op.name();
        let path = format!("steps[{i}].{name}");
        match op {
            op if op.makes_batches() => {
                if let Some((at, above)) = batched {
                    return Err(bad(
                        &path,
                        format!(
                            "the elements are batches already, made by `{above}` at steps[{at}]; put `unbatch` \
                             between the two or remove one"
                        ),
                    ));
                }
                batched = Some((i, name));
            }
            StageOp::Unbatch if batched.is_none() => {
                return Err(bad(&path, "there is no batch above it whose rows it could give; remove it"));
            }
            StageOp::Unbatch => batched = None,
            StageOp::Filter(_)
            | StageOp::FlatMap { .. }
            | StageOp::Unnest { .. }
            | StageOp::Python(_)
            | StageOp::ParseExample { .. } => {
                if let Some((at, above)) = batched {
                    return Err(bad(
                        &path,
                        format!(
                            "`{name}` works on single rows, but `{above}` at steps[{at}] has made batches of \
                             them; put it above `{above}`, or `unbatch` first"
                        ),
                    ));
                }
            }
            StageOp::Autocache { .. } | StageOp::Repeat(_) => {
                if let Some(at) = &endless {
                    return Err(bad(&path, never_reached(name, at)));
                }
                if matches!(op, StageOp::Repeat(None)) {
                    endless = Some(format!("steps[{i}]"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn never_reached(name: &str, at: &str) -> String {
    match name {
        "autocache" => format!(
            "the `repeat` at {at} never ends, so what is stored below it would never be whole; put the \
             hint above it, or give `repeat` a count"
        ),
        _ => format!("the `repeat` at {at} never ends, so this one is never reached; remove one of them"),
    }
}

fn bad(path: &str, message: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{path}: {message}"))
}

/// The error for a number out of range.
fn range(path: &str, expected: &str, found: impl std::fmt::Display) -> Error {
    bad(path, format!("expected {expected}, found {found}"))
}

/// Checks the names of columns: at least one, unique, and not reserved.
fn columns<'a>(path: &str, what: &str, names: impl IntoIterator<Item = &'a String>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        column(path, name)?;
        if !seen.insert(name) {
            return Err(bad(path, format!("the column `{name}` is given twice")));
        }
    }
    match seen.is_empty() {
        true => Err(bad(path, format!("it names no {what}; give at least one"))),
        false => Ok(()),
    }
}

fn column(path: &str, name: &str) -> Result<()> {
    if name.trim().is_empty() {
        return Err(bad(path, "a column's name is empty"));
    }
    if let Some(prefix) = reserved_prefix(name) {
        return Err(bad(path, format!("`{name}`: names that begin with `{prefix}` are reserved")));
    }
    Ok(())
}
