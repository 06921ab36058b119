//! Checks of sources.

use std::collections::HashSet;

use caju_types::Result;

use super::{bad, child, columns, range, stage};
use crate::def::{FileFormat, FileSource, SourceDef};
use crate::path;
use crate::place::join;

/// The most bytes of a nominal split: 1 PiB. It only catches nonsense.
const MAX_SPLIT_BYTES: u64 = 1 << 50;

pub(super) fn check(source: &SourceDef, path: &str, depth: usize) -> Result<()> {
    let name = source.name();
    let path = join(path, name);
    match source {
        SourceDef::Files(files) => check_files(files, &path, depth),
        SourceDef::Range { start, end, step } => check_range(*start, *end, *step, &path),
        SourceDef::Memory { ipc } if ipc.is_empty() => Err(bad(&join(&path, "ipc"), "it holds no bytes")),
        SourceDef::Memory { .. } | SourceDef::InlineTable { .. } => Ok(()),
        SourceDef::Concatenate(list) | SourceDef::Zip(list) => {
            if list.is_empty() {
                return Err(bad(&path, "it holds no dataset; give at least one"));
            }
            list.iter().enumerate().try_for_each(|(i, d)| child(d, name, &format!("{path}[{i}]"), depth + 1))
        }
        SourceDef::Sample { datasets, weights, .. } => {
            check_weights(weights, datasets.len(), &path)?;
            let child_path = |i| format!("{path}.datasets[{i}]");
            datasets.iter().enumerate().try_for_each(|(i, d)| child(d, name, &child_path(i), depth + 1))
        }
        SourceDef::Load { path: folder, .. } => path::check(folder).map_err(|e| bad(&join(&path, "path"), e)),
    }
}

fn check_weights(weights: &[f64], datasets: usize, path: &str) -> Result<()> {
    if datasets == 0 {
        return Err(bad(&join(path, "datasets"), "it holds no dataset; give at least one"));
    }
    if weights.len() != datasets {
        let found = format!("{} for {datasets} datasets", weights.len());
        return Err(range(&join(path, "weights"), "one weight per dataset", found));
    }
    for (i, w) in weights.iter().enumerate() {
        if !(w.is_finite() && *w > 0.0) {
            return Err(range(&format!("{path}.weights[{i}]"), "a positive number", w));
        }
    }
    let sum: f64 = weights.iter().sum();
    if !sum.is_finite() {
        return Err(range(&join(path, "weights"), "weights whose sum is a number", sum));
    }
    Ok(())
}

fn check_range(start: i64, end: i64, step: i64, path: &str) -> Result<()> {
    if step == 0 {
        return Err(range(&join(path, "step"), "a number other than 0 (negative to count down)", step));
    }
    let rows = (i128::from(end) - i128::from(start)) / i128::from(step);
    if rows >= i128::from(i64::MAX) {
        return Err(bad(path, format!("{rows} rows are more than 64 bits count; choose a nearer end")));
    }
    Ok(())
}

fn check_files(files: &FileSource, path: &str, depth: usize) -> Result<()> {
    if files.paths.is_empty() {
        return Err(bad(&join(path, "path"), "it names no file; give a path, a pattern or a URL"));
    }
    let mut seen = HashSet::new();
    for text in &files.paths {
        path::check(text).map_err(|e| bad(&join(path, "path"), e))?;
        if !seen.insert(text) {
            let why = format!(
                "`{text}` is given twice; name it once, or `concatenate` two datasets to read it twice"
            );
            return Err(bad(&join(path, "path"), why));
        }
    }
    if !(1..=MAX_SPLIT_BYTES).contains(&files.split_bytes) {
        return Err(range(&join(path, "split"), "a size of 1 byte to 1024 TiB", files.split_bytes));
    }
    if let Some(of) = files.shard {
        let path = join(path, "shard");
        stage::shard(of.num_shards, of.index, &path)?;
        if of.num_shards.is_none() && depth > 0 {
            return Err(bad(&path, "`HINT` is for the outermost source; put a `shard` into `steps`"));
        }
    }
    match &files.format {
        FileFormat::Parquet { columns: Some(names) }
        | FileFormat::Arrow { columns: Some(names) }
        | FileFormat::WebDataset { columns: Some(names), .. } => {
            columns(&join(path, "columns"), "column", names)
        }
        FileFormat::Csv { delimiter, .. }
            if !delimiter.is_ascii() || matches!(delimiter, '\n' | '\r' | '"' | '\0') =>
        {
            let found = format!("{delimiter:?}");
            Err(range(&join(path, "delimiter"), "one ASCII character that is no quote or line break", found))
        }
        FileFormat::Csv { schema: Some(schema), .. } | FileFormat::Json { schema: Some(schema), .. } => {
            columns(&join(path, "schema"), "column", schema.iter().map(|(name, _)| name))
        }
        _ => Ok(()),
    }
}
