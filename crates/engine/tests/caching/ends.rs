//! A split that ends early is not stored, and delays no other work.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use caju_cache::{Cache, CacheOptions, SplitSetDigest};
use caju_engine::{LeasedSplit, SetPlan, SetTarget, name_in_set, set_id};
use caju_runtime::{Clock, Stores, SystemClock};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::common::How;
use crate::generated::put;
use crate::rows::{Pair, cache, place, run};

const ROWS: i64 = 1000;

/// A Parquet file whose names are in a dictionary of 40, so that its indices are 6 bits wide.
fn good() -> Vec<u8> {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS));
    let names: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..ROWS).map(|i| format!("name-{}", i % 40))));
    let batch = RecordBatch::try_from_iter([("id", ids), ("name", names)]).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(250)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// One flipped byte makes the parquet crate panic. Neither a short epoch nor a short set or part comes of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_is_an_error_and_nothing_of_it_is_stored() {
    let good = good();
    let (mut panics, folder) = (0, place("ends"));
    for at in (0..good.len()).filter(|at| good[*at] == 6) {
        let mut bad = good.clone();
        bad[at] = 0x40;
        for shuffled in [true, false] {
            let url = format!("{folder}/{at}-{shuffled}.parquet");
            put(&url, bad.clone()).await;
            let above = if shuffled { "{ shuffle: 300 }, " } else { "" };
            let yaml = format!(
                "source: {{ parquet: {{ path: '{url}', split: 1 }} }}\nsteps: [ {above}{{ autocache: h }}, {{ batch: 10 }} ]"
            );
            let Ok(def) = caju_pipeline::DatasetDef::from_yaml(&yaml, None) else { panic!("{yaml}") };
            let Ok(pair) = Pair::bind(&def).await else { continue };
            let hint = pair.hints[0].clone();
            let root = place("ends-cache");
            let cache = cache(&root).await;
            let mut plan = hint.plan("arrow/none");
            let whole = SplitSetDigest::of(pair.splits.iter().map(name_in_set));
            let id = if shuffled {
                let id = set_id(hint.base.as_ref().unwrap().seeded(0), whole);
                plan.set = Some(SetPlan::Write(SetTarget { id, attempt: "a".into(), whole }));
                id
            } else {
                hint.prefix
            };
            let plan = Arc::new(plan);
            let leases: VecDeque<_> = (0u64..)
                .zip(&pair.splits)
                .map(|(i, s)| LeasedSplit {
                    cache: Some(Arc::clone(&plan)),
                    ..LeasedSplit::new(i, s.clone())
                })
                .collect();
            match run(&pair.kept, leases, How::default(), Some(&cache), &pair.clock).await {
                Ok((rows, _)) => assert_eq!(rows.len(), 1000, "byte {at}: a short epoch"),
                Err(e) => {
                    assert!(e.message().contains(&url), "byte {at}: {e}");
                    panics += usize::from(e.message().contains("its decoder gave up"));
                    let snapshot = cache.snapshot(&id);
                    let index = snapshot.index().await.unwrap();
                    if shuffled {
                        assert!(snapshot.set().await.unwrap().is_none(), "byte {at}: a short set");
                    }
                    let stored: u64 = index.iter().map(|(_, meta)| meta.rows).sum();
                    assert!(
                        stored < 1000 && index.iter().all(|(_, meta)| meta.rows == 250),
                        "byte {at}: {stored}"
                    );
                }
            }
        }
    }
    assert!(panics >= 8, "{panics} of the widths of four row groups");
}

/// A clock that breaks down when it is asked for the time of day for the second time from now on: first a writer
/// claims its part, then it commits it.
#[derive(Debug)]
struct Faulty {
    clock: Arc<dyn Clock>,
    left: AtomicI64,
}

#[async_trait::async_trait]
impl Clock for Faulty {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn unix_time(&self) -> Duration {
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        assert!(left > 0, "the clock broke down");
        self.clock.unix_time()
    }

    async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_that_panics_holds_no_task_up() {
    let yaml =
        "source: { range: { start: 0, end: 100, step: 1 } }\nsteps: [ { autocache: h }, { batch: 10 } ]";
    let pair = Pair::yaml(yaml).await;
    assert_eq!(pair.splits.len(), 1);
    let clock = Arc::new(Faulty { clock: SystemClock::shared(), left: AtomicI64::new(1000) });
    let of: Arc<dyn Clock> = Arc::<Faulty>::clone(&clock);
    let options = CacheOptions::default();
    let cache = Cache::open(&Stores::default(), &place("ends"), options, of, "w".into()).await.unwrap();
    clock.left.store(1, Ordering::Relaxed);
    let plan = pair.hints[0].plan("arrow/none");
    let running = pair.with(&cache, How::default(), &plan);
    let (rows, modes) = tokio::time::timeout(Duration::from_secs(60), running).await.expect("the task ends");
    assert_eq!((rows.len(), modes.put, modes.compute, modes.fell_back), (100, 0, 1, 1));
}
