//! Checks of sources.

use std::collections::HashSet;

use caju_types::Result;

use super::{bad, child, columns, range, stage};
use crate::def::{DatasetDef, FileFormat, FileSource, SourceDef, StageOp};
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
            let place = |i| format!("{path}[{i}]");
            list.iter().enumerate().try_for_each(|(i, d)| child(d, name, &place(i), (depth + 1, false)))
        }
        SourceDef::Sample { datasets, weights, .. } => {
            check_weights(weights, datasets.len(), &path)?;
            let child_path = |i| format!("{path}.datasets[{i}]");
            // Only the outermost `sample` draws row by row.
            let at = (depth + 1, depth == 0);
            datasets.iter().enumerate().try_for_each(|(i, d)| child(d, name, &child_path(i), at))?;
            if !datasets.iter().any(|d| matches!(d.ops().last(), Some(StageOp::Repeat(_)))) {
                return Ok(());
            }
            datasets.iter().enumerate().try_for_each(|(i, d)| knows_rows(d, &child_path(i)))
        }
        SourceDef::Load { path: folder, .. } => path::check(folder).map_err(|e| bad(&join(&path, "path"), e)),
    }
}

/// Checks a dataset of a `sample` of which one is repeated. Its splits come as the weights say, by their numbers of rows.
fn knows_rows(def: &DatasetDef, path: &str) -> Result<()> {
    const WHY: &str = "a `sample` with a `repeat` inside of it follows its weights by the rows of each split";
    if !def.source.knows_rows() {
        return Err(bad(
            &join(path, "source"),
            format!(
                "{WHY}, and how many rows the splits of this source have shows only when they are read; use Parquet or Arrow \
                 files, images, `range` or rows in memory, or put `repeat` after the `sample`"
            ),
        ));
    }
    let changes = |op: &&StageOp| !op.keeps_rows() && !matches!(op, StageOp::Repeat(_));
    let mut ops = def.ops().enumerate();
    match ops.find(|(_, op)| changes(op)) {
        None => Ok(()),
        Some((i, op)) => Err(bad(
            &format!("{path}.steps[{i}].{}", op.name()),
            format!("{WHY}, which `{0}` changes; put `{0}` after the `sample`", op.name()),
        )),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A definition with a `sample` of these datasets, of equal weights.
    fn sample(datasets: &[&str], steps: &str) -> Result<DatasetDef> {
        let weights = vec!["1"; datasets.len()].join(", ");
        let datasets = datasets.join(", ");
        let source = format!("{{ sample: {{ datasets: [ {datasets} ], weights: [ {weights} ] }} }}");
        DatasetDef::from_yaml(&format!("source: {source}\nsteps: [ {steps} ]\n"), None)
    }

    const ENDLESS: &str = "{ source: { range: 9 }, steps: [ { map: { id: id } }, repeat ] }";
    const TWICE: &str = "{ source: { range: 9 }, steps: [ repeat: 2 ] }";
    const ONCE: &str = "{ source: { range: 9 } }";

    #[test]
    fn an_epoch_with_an_endless_dataset_ends_with_a_take() {
        for (datasets, steps, is_endless) in [
            ([ENDLESS, ONCE], "batch: 2", true),
            ([ONCE, ENDLESS], "batch: 2", true),
            ([ENDLESS, ONCE], "take: 3", false),
            ([TWICE, ONCE], "autocache, repeat: 2", false),
        ] {
            assert_eq!(sample(&datasets, steps).unwrap().is_endless(), is_endless, "{datasets:?} {steps}");
        }
    }

    #[test]
    fn what_a_repeated_dataset_of_a_sample_may_be() {
        let csv = "{ source: { csv: /x.csv }, steps: [ repeat ] }";
        let filtered = "{ source: { range: 9 }, steps: [ { filter: 'id > 1' }, repeat: 2 ] }";
        let early = "{ source: { range: 9 }, steps: [ repeat, { map: { id: id } } ] }";
        let nested = format!("{{ source: {{ sample: {{ datasets: [ {ENDLESS} ], weights: [ 1 ] }} }} }}");
        let rows = "a `sample` with a `repeat` inside of it follows its weights by the rows of each split";
        for (datasets, steps, want) in [
            ([ONCE, csv], "", format!("source.sample.datasets[1].source: {rows}, and how many rows")),
            (
                ["{ source: { csv: /x.csv } }", TWICE],
                "",
                format!("source.sample.datasets[0].source: {rows}, and how many rows"),
            ),
            (
                [filtered, ONCE],
                "",
                format!(
                    "source.sample.datasets[0].steps[0].filter: {rows}, which `filter` changes; put `filter` after the `sample`"
                ),
            ),
            (
                [ONCE, early],
                "",
                "source.sample.datasets[1].steps[0].repeat: a `repeat` of a dataset inside `sample` must be its last step"
                    .to_owned(),
            ),
            (
                [ONCE, nested.as_str()],
                "",
                "source.sample.datasets[0].steps[1].repeat: a dataset inside `sample` may hold only".to_owned(),
            ),
            (
                [ONCE, ENDLESS],
                "take: 3, autocache",
                "steps[1].autocache: the `repeat` at source.sample.datasets[1] never ends".to_owned(),
            ),
            (
                [ENDLESS, ONCE],
                "repeat: 2",
                "steps[0].repeat: the `repeat` at source.sample.datasets[0] never ends".to_owned(),
            ),
        ] {
            let e = sample(&datasets, steps).unwrap_err();
            assert!(e.message().contains(&want), "{datasets:?} {steps}\n  gives  {e}\n  wanted {want}");
        }
    }
}
