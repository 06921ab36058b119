//! Draws below a `shard`. No two shards may have the same ones: the rows of two workers would be augmented alike.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use caju_engine::{Hints, LeasedSplit, Shard, ShardBy, TaskOptions, bind_with, run_task};
use caju_kernels::{Limits, Registry};
use caju_pipeline::DatasetDef;
use caju_runtime::{CpuPool, SystemClock};
use futures::TryStreamExt;

use crate::common::{Fixed, context, texts};

/// Rows of two splits.
const RANGE: &str = "{ range: 1500 }";
/// The same rows, whose number in each split is not known before they are read: shards count them.
const ZIP: &str =
    "{ zip: [ { source: { range: 1500 } }, { source: { range: 1500 }, steps: [ { map: { b: id } } ] } ] }";
const FILTER: &str = "{ filter: 'id % 7 < 5' }";
const REPEAT: &str = "{ flat_map: { name: k, expr: '[0, 1, 2]' } }";
const REPEAT_AGAIN: &str = "{ flat_map: { name: l, expr: '[0, 1]' } }";
const SHUFFLE: &str = "{ shuffle: 100 }";
const DRAW: &str = "{ with_columns: { r: 'uniform(0.0, 1.0)' } }";

/// The last column of rows, by the other ones.
type Draws = BTreeMap<String, String>;

fn numbered(num_shards: u64, index: u64) -> String {
    format!("{{ shard: {{ num_shards: {num_shards}, index: {index} }} }}")
}

/// The draws of the rows of a task. `shard`: the number of shards of the processing mode `data`, and which of them.
async fn draws(source: &str, steps: &str, shard: Option<(u64, u64)>, hints: Hints) -> Draws {
    let def = DatasetDef::from_yaml(&format!("source: {source}\nsteps: [ {steps} ]\n"), None).unwrap();
    let registry = Registry::new(Limits::default());
    let by = shard.map(|_| ShardBy::Data);
    let pipeline = Arc::new(bind_with(&def, &registry, &context(), None, hints, by).await.unwrap());
    let shard = shard.map(|(num_shards, index)| Shard { by: ShardBy::Data, num_shards, index });
    let splits = match shard {
        Some(shard) => pipeline.shard_splits(shard).splits,
        None => pipeline.splits(),
    };
    let splits: Vec<_> = splits.try_collect().await.unwrap();
    let leases = (0u64..).zip(splits).map(|(index, split)| LeasedSplit::new(index, split)).collect();
    let mut options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
    (options.shard, options.batch_rows) = (shard, 100);
    let mut task = run_task(&pipeline, Box::new(Fixed(leases)), options);
    let (mut found, mut ordinals) = (Draws::new(), BTreeMap::<u64, Vec<u64>>::new());
    while let Some(chunk) = task.next().await {
        let chunk = chunk.unwrap();
        for run in &chunk.runs {
            ordinals.entry(run.split).or_default().extend(run.start..run.start + run.len);
        }
        for text in texts(&chunk.concat().unwrap()) {
            let (row, draw) = text.rsplit_once('|').unwrap();
            assert!(found.insert(row.to_owned(), draw.to_owned()).is_none(), "{row} comes twice");
        }
    }
    // Rows of a shard are acknowledged by their place among those that the shard has of a split.
    for of_split in ordinals.values_mut().filter(|_| shard.is_some() || steps.contains("shard")) {
        of_split.sort_unstable();
        assert!(of_split.iter().copied().eq(0..of_split.len() as u64), "{steps}: {of_split:?}");
    }
    found
}

/// The draws of all shards. `steps` has a shard as `SHARD`; without that the processing mode `data` divides the rows.
async fn of_all_shards(source: &str, steps: &str, num_shards: u64) -> Draws {
    let mut all = Draws::new();
    for index in 0..num_shards {
        let shard = (!steps.contains("SHARD")).then_some((num_shards, index));
        let steps = steps.replace("SHARD", &numbered(num_shards, index));
        for (row, draw) in draws(source, &steps, shard, Hints::Ignored).await {
            assert!(all.insert(row, draw).is_none(), "a row is in two shards: {steps}");
        }
    }
    all
}

fn are_distinct(draws: &Draws) -> bool {
    draws.values().collect::<HashSet<_>>().len() == draws.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_all_shards_have_draws_of_their_own() {
    for (source, steps) in [
        (RANGE, format!("{REPEAT}, {DRAW}")),
        (RANGE, format!("{FILTER}, {REPEAT}, {DRAW}")),
        (RANGE, format!("{SHUFFLE}, {DRAW}")),
        (RANGE, format!("{REPEAT}, {SHUFFLE}, {DRAW}")),
        (RANGE, format!("SHARD, {REPEAT}, {SHUFFLE}, {DRAW}")),
        (RANGE, format!("{FILTER}, SHARD, {{ batch: 7 }}, {DRAW}")),
        (ZIP, format!("{REPEAT}, {DRAW}")),
        (ZIP, format!("{FILTER}, {SHUFFLE}, {DRAW}")),
    ] {
        let rows = of_all_shards(source, &steps, 1).await.len();
        let all = of_all_shards(source, &steps, 3).await;
        assert!(rows > 1000 && all.len() == rows, "{steps}: {} of {rows} rows", all.len());
        assert!(are_distinct(&all), "{source}, {steps}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn split_local_draws_are_the_same_for_each_number_of_shards() {
    for (source, steps) in [
        (RANGE, format!("{FILTER}, {DRAW}")),
        (RANGE, format!("{FILTER}, {REPEAT}, {DRAW}")),
        (RANGE, format!("SHARD, {REPEAT}, {DRAW}")),
        (RANGE, format!("{REPEAT}, SHARD, {DRAW}")),
        (RANGE, format!("{FILTER}, SHARD, {DRAW}")),
        (ZIP, format!("{REPEAT}, {DRAW}")),
    ] {
        let one = of_all_shards(source, &steps, 1).await;
        assert!(are_distinct(&one), "{source}, {steps}");
        assert!(of_all_shards(source, &steps, 2).await == one, "{source}, {steps}");
    }
    let nested = async |outer: u64, inner: u64| {
        let mut all = Draws::new();
        for (i, j) in (0..outer).flat_map(|i| (0..inner).map(move |j| (i, j))) {
            let (above, below) = (numbered(outer, i), numbered(inner, j));
            let steps = format!("{above}, {REPEAT}, {below}, {DRAW}");
            all.extend(draws(RANGE, &steps, None, Hints::Ignored).await);
        }
        all
    };
    let one = nested(1, 1).await;
    assert!(one.len() == 4500 && are_distinct(&one) && nested(2, 2).await == one);
}

/// Where no stage drops or repeats rows, and the rows of splits are known, draws are those without shards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draws_below_a_shuffle_are_those_without_shards() {
    for steps in [format!("{SHUFFLE}, {DRAW}"), format!("{{ skip: 70 }}, {SHUFFLE}, {DRAW}")] {
        let without = draws(RANGE, &steps, None, Hints::Ignored).await;
        assert!(are_distinct(&without), "{steps}");
        for num_shards in [1, 4] {
            assert!(
                of_all_shards(RANGE, &steps, num_shards).await == without,
                "{num_shards} shards: {steps}"
            );
        }
    }
}

/// A hint that is in use counts the rows above it, and the draws below it are those without the hint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_changes_no_draw_of_a_shard() {
    for (steps, shard) in [
        (format!("autocache, {REPEAT}, {DRAW}"), Some((3, 1))),
        (format!("{REPEAT}, autocache, {DRAW}"), Some((3, 1))),
        (format!("{FILTER}, autocache, {}, {DRAW}", numbered(3, 1)), None),
        (format!("{REPEAT}, autocache, {}, {REPEAT_AGAIN}, {DRAW}", numbered(3, 1)), None),
    ] {
        let ignored = draws(RANGE, &steps, shard, Hints::Ignored).await;
        assert!(ignored.len() > 300 && are_distinct(&ignored), "{steps}");
        assert!(draws(RANGE, &steps, shard, Hints::Active).await == ignored, "{steps}");
    }
}
