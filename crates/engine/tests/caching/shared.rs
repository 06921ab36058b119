//! Rows that one job computes are stored by another one, which computes them only where the first does not give them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use caju_cache::Cache;
use caju_engine::{
    CachePlan, LeasedSplit, SharingJob, SharingLag, SharingMember, SharingSettings, SharingWindow,
    SplitModes, TaskOptions, TaskRun, run_task,
};
use caju_runtime::{CpuPool, SystemClock};

use crate::common::{Fixed, How};
use crate::generated::put;
use crate::rows::{Pair, Row, cache, place, rows_of};

/// The schema of one column, `id` of int64, as an Arrow IPC stream.
const ID_SCHEMA: &str = "/////3gAAAAQAAAAAAAKAAwACgAJAAQACgAAABAAAAAAAQQACAAIAAAABAAIAAAABAAAAAEAAAAUAAAAEAAUABAAAAAPAAQAAAAIABAAAAAYAAAAIAAAAAAAAAIcAAAACAAMAAQACwAIAAAAQAAAAAAAAAEAAAAAAgAAAGlkAAD/////AAAAAA==";

/// Splits of the source.
const SPLITS: u64 = 6;

/// Rows of a split behind the filter, at most.
const ROWS_OF_SPLIT: u64 = 67;

fn window() -> Arc<SharingWindow> {
    let wait = Duration::from_millis(20);
    let (window_bytes, backlog_bytes) = (1 << 30, 1 << 30);
    let settings = SharingSettings {
        window_bytes,
        backlog_bytes,
        lag: SharingLag::Drop,
        wait,
        ..SharingSettings::default()
    };
    SharingWindow::new(settings, SystemClock::shared())
}

fn join(window: &Arc<SharingWindow>, job: u128, pair: &Pair) -> Arc<SharingMember> {
    let points = pair.kept.sharing_points(0, 0, true);
    window.join(SharingJob { job, epoch: 0, is_relaxed: false }, points)
}

fn task(pair: &Pair, member: &Arc<SharingMember>, stored: Option<(&Arc<Cache>, &CachePlan)>) -> TaskRun {
    let plan = stored.map(|(_, plan)| Arc::new(plan.clone()));
    let leases: VecDeque<_> = (0u64..)
        .zip(&pair.splits)
        .map(|(index, split)| LeasedSplit { cache: plan.clone(), ..LeasedSplit::new(index, split.clone()) })
        .collect();
    let mut options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
    options.batch_rows = 16;
    options.readers = 1;
    options.buffer_bytes = 1;
    options.cache = stored.map(|(cache, _)| Arc::clone(cache));
    options.sharing = Some(Arc::clone(member));
    run_task(&pair.kept, Box::new(Fixed(leases)), options)
}

async fn finish(mut task: TaskRun) -> (Vec<Row>, SplitModes) {
    let mut rows = Vec::new();
    while let Some(chunk) = task.next().await {
        rows.extend(rows_of(&chunk.unwrap()));
    }
    rows.sort();
    (rows, task.modes())
}

async fn files(folder: &str, bad: bool) {
    for file in 0..SPLITS {
        let mut text: String = (0..100).map(|i| format!("{{\"id\": {}}}\n", file * 100 + i)).collect();
        if bad && file == 2 {
            text.push_str("no JSON\n");
        }
        put(&format!("{folder}/{file}.json"), text.into()).await;
    }
}

/// Two jobs that share the rows at the hint and differ below it.
async fn jobs(folder: &str) -> [Pair; 2] {
    let yaml = |below: &str| {
        format!(
            "
source: {{ json: {{ path: '{folder}/*.json', schema: {{ id: int64 }} }} }}
steps:
  - filter: 'id % 3 <> 0'
  - with_columns: {{ square: 'id * id' }}
  - autocache: h
  - with_columns: {{ below: '{below}' }}
on_error: {{ skip: {{ limit: 10 }} }}
"
        )
    };
    [Pair::yaml(&yaml("square + 1")).await, Pair::yaml(&yaml("square - 1")).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_another_job_computed_are_stored_with_their_cost() {
    let folder = place("shared");
    files(&folder, false).await;
    let [first, second] = jobs(&folder).await;
    let want = [first.computed(How::default()).await, second.computed(How::default()).await];
    let window = window();
    let members = [join(&window, 1, &first), join(&window, 2, &second)];
    let (rows, _) = finish(task(&first, &members[0], None)).await;
    assert_eq!(rows, want[0]);

    let root = place("cache");
    let plan = second.hints[0].plan("arrow/zstd");
    let stored = cache(&root).await;
    let (rows, modes) = finish(task(&second, &members[1], Some((&stored, &plan)))).await;
    assert_eq!(rows, want[1]);
    assert_eq!(modes.put, SPLITS, "{modes:?}");
    // The first splits tell the task what rows cost. All others come from the window, and their parts say that cost, too.
    let computed = members[1].counts().computed_rows;
    assert!(computed > 0 && computed <= 3 * ROWS_OF_SPLIT, "{computed} rows were computed");
    let index = stored.snapshot(&second.hints[0].prefix).index().await.unwrap();
    assert_eq!(index.iter().count() as u64, SPLITS);
    assert!(
        index.iter().all(|(_, part)| part.compute_cpu_s() > 0.0),
        "a part that cost nothing is evicted first"
    );

    let (rows, modes) = second.with(&cache(&root).await, How::default(), &plan).await;
    assert_eq!((rows, modes.get), (want[1].clone(), SPLITS), "what was stored is what would be computed");
}

/// Wherever the job that computes stops: the one that stores delivers every row once, and a part is whole or absent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_that_is_given_up_in_its_middle_is_computed_and_never_stored_twice() {
    let folder = place("shared");
    files(&folder, false).await;
    let [first, second] = jobs(&folder).await;
    let want = second.computed(How::default()).await;
    let plan = second.hints[0].plan("arrow/none");
    let mut given_up = 0;
    for chunks in 0..30 {
        let window = window();
        let members = [join(&window, 1, &first), join(&window, 2, &second)];
        let mut computing = task(&first, &members[0], None);
        let mut has_more = true;
        for _ in 0..chunks {
            has_more = has_more && computing.next().await.is_some();
        }
        let root = place("cache");
        // The reader of the job that computes takes no more rows, so the job stops somewhere behind them.
        let (rows, modes) = finish(task(&second, &members[1], Some((&cache(&root).await, &plan)))).await;
        drop(computing);
        assert_eq!(rows, want, "after {chunks} chunks");
        given_up += SPLITS - modes.put;
        let (rows, modes) = second.with(&cache(&root).await, How::default(), &plan).await;
        assert_eq!(rows, want, "stored after {chunks} chunks: {modes:?}");
    }
    assert!(given_up > 0, "no split was given up in its middle: the test shows nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_with_skipped_rows_is_not_stored_from_the_window() {
    let folder = place("shared");
    files(&folder, true).await;
    let [first, second] = jobs(&folder).await;
    let want = second.computed(How::default()).await;
    let window = window();
    let members = [join(&window, 1, &first), join(&window, 2, &second)];
    finish(task(&first, &members[0], None)).await;
    let root = place("cache");
    let plan = second.hints[0].plan("arrow/none");
    let (rows, modes) = finish(task(&second, &members[1], Some((&cache(&root).await, &plan)))).await;
    assert_eq!((rows, modes.put), (want.clone(), SPLITS - 1));
    // The next epoch computes it, and stores it with the number of its skipped rows.
    let (rows, modes) = second.with(&cache(&root).await, How::default(), &plan).await;
    assert_eq!((rows, modes.put, modes.get), (want, 1, SPLITS - 1));
}

/// A filter that draws from numpy's generator keeps other rows whenever it runs: jobs do not complete each other's splits
/// below it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_below_a_function_that_keeps_others_each_time_are_not_shared() {
    let folder = place("foreign-draws");
    files(&folder, false).await;
    let points = async |kind: &str, draws: &str| {
        let schema = if kind == "filter" { String::new() } else { format!(", schema: '{ID_SCHEMA}'") };
        let yaml = format!(
            "
source: {{ json: {{ path: '{folder}/*.json', schema: {{ id: int64 }} }} }}
steps:
  - autocache: above
  - python: {{ kind: {kind}, code: '0a', payload: 'LQ=='{schema}{draws} }}
"
        );
        Pair::yaml(&yaml).await.kept.sharing_points(0, 0, true).len()
    };
    let draws = ", draws_from: numpy.random.rand";
    for kind in ["map", "filter", "flat_map"] {
        assert_eq!(points(kind, "").await, 2, "{kind}");
        let expected = if kind == "map" { 2 } else { 1 };
        assert_eq!(points(kind, draws).await, expected, "{kind}: only above it");
    }
}
