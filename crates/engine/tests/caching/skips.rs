//! Rows skipped under `on_error: skip` are skipped, and counted, also when they are read from a part.

use std::collections::VecDeque;
use std::sync::Arc;

use caju_engine::{LeasedSplit, TaskOptions, run_task};
use caju_runtime::{CpuPool, SystemClock};

use crate::common::{Fixed, How};
use crate::generated::put;
use crate::rows::{Pair, Row, cache, place, rows_of};

/// Rows and how many were skipped.
async fn run(pair: &Pair, root: &str, limited: bool) -> Result<(Vec<Row>, u64), String> {
    let plan = Arc::new(pair.hints[0].plan("parquet/zstd"));
    let leases: VecDeque<_> = (0u64..)
        .zip(&pair.splits)
        .map(|(index, split)| LeasedSplit {
            cache: Some(Arc::clone(&plan)),
            ..LeasedSplit::new(index, split.clone())
        })
        .collect();
    let mut options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
    options.cache = Some(cache(root).await);
    let mut task = run_task(&pair.kept, Box::new(Fixed(leases)), options);
    let mut out = Vec::new();
    while let Some(chunk) = task.next().await {
        match chunk {
            Ok(chunk) => out.extend(rows_of(&chunk)),
            Err(e) => return Err(e.to_string()),
        }
    }
    out.sort();
    assert!(!limited, "the limit was kept");
    Ok((out, task.rows_skipped()))
}

fn yaml(folder: &str, limit: u64) -> String {
    format!(
        "
source: {{ json: {{ path: '{folder}/*.json', schema: {{ id: int64, d: int64 }} }} }}
steps:
  - with_columns: {{ q: '100 / d' }}
  - autocache: h
  - with_columns: {{ z: '100 / (d - 1)' }}
on_error: {{ skip: {{ limit: {limit} }} }}
"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn skips_of_a_part_count_when_it_is_read() {
    let folder = place("skips");
    // Two lines that are no JSON, three rows that divide by zero above the hint, one below it.
    let first = "{\"id\": 1, \"d\": 2}\nbroken\n{\"id\": 2, \"d\": 0}\n{\"id\": 3, \"d\": 1}\n";
    let second = "{\"id\": 4, \"d\": 0}\n{\"id\": 5, \"d\": 5}\n{\"id\": 6, \"d\": 0}\nbroken\n";
    put(&format!("{folder}/1.json"), first.into()).await;
    put(&format!("{folder}/2.json"), second.into()).await;
    let pair = Pair::yaml(&yaml(&folder, 10)).await;
    let root = place("cache");
    let want = pair.computed(How::default()).await;
    assert_eq!(want.len(), 2);
    let (put, skipped) = run(&pair, &root, false).await.unwrap();
    assert_eq!((&put, skipped), (&want, 6));
    let snapshot = cache(&root).await.snapshot(&pair.hints[0].prefix);
    let index = snapshot.index().await.unwrap();
    let mut recorded: Vec<u64> = index.iter().map(|(_, m)| m.skipped).collect();
    recorded.sort_unstable();
    assert_eq!(recorded, [2, 3], "what is above the hint, split by split");
    let before = pair.io.snapshot().bytes_read;
    let (get, skipped) = run(&pair, &root, false).await.unwrap();
    assert_eq!((&get, skipped), (&want, 6));
    assert_eq!(pair.io.snapshot().bytes_read, before);
    // Another limit is the same prefix; it holds for what was skipped long ago, too.
    let strict = Pair::yaml(&yaml(&folder, 4)).await;
    assert_eq!(strict.hints[0].prefix, pair.hints[0].prefix);
    let e = run(&strict, &root, true).await.unwrap_err();
    assert!(e.contains("more than 4 bad rows"), "{e}");
}
