//! Under `on_error: skip` the rows of a pipeline depend on its definition and its data alone. Hints and policies decide which
//! columns of the source are read, and the values of columns that no stage needs are checked all the same.

use std::collections::VecDeque;
use std::sync::Arc;

use caju_engine::{CachePlan, Hints, LeasedSplit, bind_with};
use caju_kernels::{Limits, Registry};
use caju_pipeline::DatasetDef;
use caju_runtime::SystemClock;
use caju_types::RowRanges;
use futures::TryStreamExt;

use crate::common::{How, context};
use crate::generated::put;
use crate::rows::{Pair, Row, cache, place, run};

/// Formats in which a value may be no value of its column.
const FORMATS: [&str; 2] = ["csv", "json"];

/// The columns of a file, with their types.
type Columns<'a> = &'a [(&'a str, &'a str)];

/// The columns of a small file.
const NOTES: Columns<'static> = &[("id", "int64"), ("note", "int64")];

/// The text of a file. `rows`: values as JSON has them.
fn text(format: &str, columns: Columns<'_>, rows: &[Vec<String>]) -> String {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let json = |values: &Vec<String>| {
        let pairs = names.iter().zip(values).map(|(name, value)| format!("\"{name}\": {value}"));
        format!("{{{}}}\n", pairs.collect::<Vec<_>>().join(", "))
    };
    let csv = |values: &Vec<String>| values.join(",").replace('"', "") + "\n";
    match format {
        "csv" => std::iter::once(names.join(",") + "\n").chain(rows.iter().map(csv)).collect(),
        _ => rows.iter().map(json).collect(),
    }
}

/// A source of one file.
async fn source(format: &str, columns: Columns<'_>, rows: &[Vec<String>]) -> String {
    let folder = place("skipped-columns");
    put(&format!("{folder}/1.{format}"), text(format, columns, rows).into_bytes()).await;
    let schema: Vec<String> = columns.iter().map(|(name, of)| format!("{name}: {of}")).collect();
    format!("{{ {format}: {{ path: '{folder}/*.{format}', schema: {{ {} }} }} }}", schema.join(", "))
}

/// A source of four rows, of which the second one has a bad value in the column `note`.
async fn notes(format: &str) -> String {
    let row = |(id, note): (u64, &str)| vec![id.to_string(), note.to_owned()];
    let rows = [(1, "5"), (2, "\"oops\""), (3, "7"), (4, "8")].map(row);
    source(format, NOTES, &rows).await
}

fn yaml(source: &str, steps: &[&str]) -> String {
    let steps: Vec<String> = steps.iter().map(|step| format!("{{ {step} }}")).collect();
    format!("source: {source}\nsteps: [ {} ]\non_error: skip\n", steps.join(", "))
}

/// The rows under a policy that stores and then reads them at a hint.
async fn stored_and_read(pair: &Pair, plan: &CachePlan, how: How) -> [Vec<Row>; 2] {
    let root = place("cache");
    let (stored, modes) = pair.with(&cache(&root).await, how, plan).await;
    assert_eq!(modes.put, pair.splits.len() as u64, "{modes:?}");
    let (read, modes) = pair.with(&cache(&root).await, how, plan).await;
    assert_eq!(modes.get, pair.splits.len() as u64, "{modes:?}");
    [stored, read]
}

/// The rows of an `auto` job that has not decided yet, or has decided to store nothing: its hints are there, and have no plan.
async fn undecided(pair: &Pair, how: How) -> Vec<Row> {
    let how = How { undecided: true, ..how };
    pair.planned(&cache(&place("cache")).await, how, |_, _| None).await.0
}

/// One fingerprint stands for the same rows, whether or not a pipeline has a hint further up. A job had four rows where it
/// computed them, and three where it read what another job had stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_further_up_changes_no_rows_of_a_prefix() {
    for format in FORMATS {
        let source = notes(format).await;
        let below = ["map: { id: id }", "autocache: ids"];
        let first = Pair::yaml(&yaml(&source, &["autocache: raw", below[0], below[1]])).await;
        let second = Pair::yaml(&yaml(&source, &below)).await;
        assert_eq!(first.hints[1].prefix, second.hints[0].prefix, "{format}");
        let want = second.computed(How::default()).await;
        assert_eq!(want.len(), 3, "{format}");
        let root = place("cache");
        let plan = first.hints[1].plan("arrow/none");
        let (rows, modes) = first.with(&cache(&root).await, How::default(), &plan).await;
        assert_eq!((rows, modes.put), (want.clone(), 1), "{format}");
        let plan = second.hints[0].plan("arrow/none");
        let (rows, modes) = second.with(&cache(&root).await, How::default(), &plan).await;
        assert_eq!((rows, modes.get), (want, 1), "{format}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_changes_no_skipped_rows() {
    for format in FORMATS {
        let pair = Pair::yaml(&yaml(&notes(format).await, &["autocache: h", "map: { id: id }"])).await;
        let want = pair.computed(How::default()).await;
        assert_eq!(want.len(), 3, "{format}");
        assert_eq!(undecided(&pair, How::default()).await, want, "{format}");
        let plan = pair.hints[0].plan("parquet/zstd");
        let all = stored_and_read(&pair, &plan, How::default()).await;
        assert_eq!(all, [want.clone(), want], "{format}");
    }
}

/// A state names rows by their places among the good rows. A row came twice and another one never where the policy changed
/// between the state and the reading that went on from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_goes_on_under_another_policy_where_rows_are_skipped() {
    for format in FORMATS {
        let pair = Pair::yaml(&yaml(&notes(format).await, &["autocache: h", "map: { id: id }"])).await;
        let root = place("cache");
        let plan = pair.hints[0].plan("arrow/zstd");
        let (stored, _) = pair.with(&cache(&root).await, How::default(), &plan).await;
        let computed = pair.computed(How::default()).await;
        let plan = Arc::new(plan);
        for taken in 0..=stored.len() {
            for (had, reads_stored) in [(&stored, false), (&computed, true)] {
                let mut all = had[..taken].to_vec();
                let done: RowRanges = all.iter().map(|((_, row), _)| (*row, row + 1)).collect();
                let stored_at = reads_stored.then(|| Arc::clone(&plan));
                let lease =
                    LeasedSplit { done, cache: stored_at, ..LeasedSplit::new(0, pair.splits[0].clone()) };
                let parts = cache(&root).await;
                let (pipeline, parts) =
                    if reads_stored { (&pair.kept, Some(&parts)) } else { (&pair.plain, None) };
                let leases = VecDeque::from([lease]);
                let (rest, _) = run(pipeline, leases, How::default(), parts, &pair.clock).await.unwrap();
                all.extend(rest);
                all.sort();
                assert_eq!(all, stored, "{format}: {taken} rows before the state, {reads_stored}");
            }
        }
    }
}

/// The datasets of a combinator read the columns that they need, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_datasets_skip_the_same_rows_whatever_they_need() {
    for format in FORMATS {
        let source = notes(format).await;
        let nested =
            format!("{{ concatenate: [ {{ source: {source}, steps: [ {{ map: {{ id: id }} }} ] }} ] }}");
        let plain = Pair::yaml(&yaml(&source, &["map: { id: id }"])).await;
        let want = plain.computed(How::default()).await;
        assert_eq!(want.len(), 3, "{format}");
        let nested = Pair::yaml(&yaml(&nested, &[])).await;
        assert_eq!(nested.computed(How::default()).await, want, "{format}");
    }
}

/// The columns of the file with a bad value in each of them.
const COLUMNS: Columns<'static> =
    &[("id", "int64"), ("n", "int64"), ("x", "float64"), ("flag", "bool"), ("text", "string")];

/// A good row, or one with a bad value in one column.
fn row(id: usize, bad: Option<usize>) -> Vec<String> {
    let mut values =
        vec![id.to_string(), (id % 4).to_string(), format!("{id}.5"), "true".into(), format!("\"t{id}\"")];
    if let Some(column) = bad {
        values[column] = if column == 4 { "[1]".into() } else { "\"oops\"".into() };
    }
    values
}

/// Stages that need fewer and fewer columns. Every fourth row is bad for the second one.
const STEPS: [&str; 4] = [
    "filter: 'id >= 0'",
    "with_columns: { ratio: '100 / n' }",
    "map: { id: id, ratio: ratio }",
    "filter: 'ratio > 0'",
];

/// The stages with hints above those at these places, and below all of them.
fn with_hints(places: &[usize]) -> Vec<String> {
    let hint = |at: usize| places.contains(&at).then(|| format!("autocache: h{at}"));
    let stages =
        STEPS.iter().enumerate().flat_map(|(at, step)| hint(at).into_iter().chain([(*step).to_owned()]));
    stages.chain(hint(STEPS.len())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_those_of_a_file_without_bad_rows_under_every_policy() {
    let good: Vec<_> = (0..12).map(|id| row(id, None)).collect();
    for (format, bad_columns) in [("csv", 4), ("json", 5)] {
        let bad = |id: usize| (id < bad_columns).then(|| row(100 + id, Some(id)));
        let mixed: Vec<_> = (0..12).flat_map(|id| bad(id).into_iter().chain([row(id, None)])).collect();
        assert_eq!(mixed.len(), good.len() + bad_columns);
        let clean = source(format, COLUMNS, &good).await;
        let want = Pair::yaml(&yaml(&clean, &STEPS)).await.computed(How::default()).await;
        assert_eq!(want.len(), 9, "{format}");
        let source = source(format, COLUMNS, &mixed).await;
        let places: [&[usize]; 7] = [&[], &[0], &[1], &[2], &[3], &[4], &[0, 1, 2, 3, 4]];
        for places in places {
            let steps = with_hints(places);
            let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
            let pair = Pair::yaml(&yaml(&source, &steps)).await;
            for batch_rows in [3, 8192] {
                let how = How { batch_rows, ..How::default() };
                let what = format!("{format}: hints at {places:?}, {batch_rows} rows a batch");
                assert_eq!(pair.computed(how).await, want, "{what}");
                assert_eq!(undecided(&pair, how).await, want, "{what}");
                for hint in &pair.hints {
                    let [stored, read] = stored_and_read(&pair, &hint.plan("arrow/lz4"), how).await;
                    assert_eq!(stored, want, "{what}, stored at {}", hint.name);
                    assert_eq!(read, want, "{what}, read at {}", hint.name);
                }
            }
        }
    }
}

/// A value that no stage needs makes no row too large for a stage that only passes it on: where a hint is active, it is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_value_that_no_stage_needs_makes_no_row_bad() {
    let large = |id: usize| if id == 5 { "x".repeat(400 << 10) } else { "x".into() };
    let rows: Vec<_> = (0..12).map(|id| vec![id.to_string(), format!("\"{}\"", large(id))]).collect();
    let source = source("json", &[("id", "int64"), ("text", "string")], &rows).await;
    let steps =
        ["autocache: h", "filter: 'id >= 0'", "with_columns: { twice: '2 * id' }", "map: { twice: twice }"];
    let def = DatasetDef::from_yaml(&yaml(&source, &steps), None).unwrap();
    let registry = Registry::new(Limits { chunk_bytes: 128 << 10, ..Limits::default() });
    let parts = cache(&place("cache")).await;
    for hints in [Hints::Ignored, Hints::Active] {
        let bound = Arc::new(bind_with(&def, &registry, &context(), None, hints, None).await.unwrap());
        let splits: Vec<_> = bound.splits().try_collect().await.unwrap();
        let leases = (0u64..).zip(splits).map(|(index, split)| LeasedSplit::new(index, split)).collect();
        let (parts, clock) = ((hints == Hints::Active).then_some(&parts), SystemClock::shared());
        let (rows, _) = run(&bound, leases, How::default(), parts, &clock).await.unwrap();
        assert_eq!(rows.len(), 12, "{hints:?}");
    }
}
