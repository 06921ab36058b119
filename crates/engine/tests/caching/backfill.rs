//! Splits that began before the decision are stored too, as far as the backfill buffer holds their rows.

use std::sync::Arc;

use caju_cache::{Cache, CacheOptions};
use caju_engine::{CachePlan, LeasedSplit, SplitModes, TaskOptions, run_task};
use caju_runtime::{CpuPool, SystemClock};
use caju_testkit::faulty::{Fault, Faults, Op, Rule};

use crate::common::{Fixed, How};
use crate::damage::faulty_with;
use crate::rows::{Pair, Row, cache_with, place, rows_of};

const SPLITS: u64 = 48;

async fn pair() -> Pair {
    let steps = "  - filter: 'id % 3 <> 1'\n  - with_columns: { a: 'id * 2' }\n  - autocache: a\n  \
                 - with_columns: { b: 'a + 1' }\n  - autocache: b\n  - batch: 7\n";
    let rows = SPLITS * 2048;
    let pair =
        Pair::yaml(&format!("source: {{ range: {{ start: 0, end: {rows} }} }}\nsteps:\n{steps}")).await;
    assert_eq!(pair.splits.len() as u64, SPLITS);
    pair
}

fn how(epoch: u64) -> How {
    How { batch_rows: 1000, epoch, ..How::default() }
}

/// One epoch that decides at a split.
async fn decided(pair: &Pair, cache: &Arc<Cache>, from: u64, plan: &CachePlan) -> (Vec<Row>, SplitModes) {
    decided_in(pair, cache, 0, from, plan).await
}

async fn decided_in(
    pair: &Pair,
    cache: &Arc<Cache>,
    epoch: u64,
    from: u64,
    plan: &CachePlan,
) -> (Vec<Row>, SplitModes) {
    let plan = Arc::new(plan.clone());
    let undecided = How { undecided: true, ..how(epoch) };
    pair.planned(cache, undecided, |index, _| (index >= from).then(|| Arc::clone(&plan))).await
}

fn memory(memory_tier_bytes: u64) -> CacheOptions {
    CacheOptions { memory_tier_bytes, ..CacheOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_epoch_computes_nothing() {
    let pair = pair().await;
    let want = pair.computed(how(0)).await;
    for (hint, encoding) in [(0, "arrow/none"), (1, "parquet/zstd")] {
        let cache = cache_with(&place("kept"), memory(64 << 20)).await;
        let plan = pair.hints[hint].plan(encoding);
        let (rows, modes) = decided(&pair, &cache, 32, &plan).await;
        assert_eq!(rows, want);
        assert_eq!((modes.compute, modes.put, modes.fell_back), (0, SPLITS, 0), "{modes:?}");
        assert!((20..=32).contains(&modes.backfilled), "{modes:?}");
        let (rows, modes) = pair.with(&cache, how(1), &plan).await;
        assert_eq!((rows.len(), modes.get), (want.len(), SPLITS));
        assert_eq!(rows, want);
        assert!(cache.verify(None).await.unwrap().is_clean());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn splits_that_exceed_the_buffer_are_computed_again() {
    let pair = pair().await;
    let want = pair.computed(how(0)).await;
    let plan = pair.hints[1].plan("arrow/none");
    let mut runs = Vec::new();
    for _ in 0..20 {
        // A split has some 22 kB at one hint and 33 kB at the other.
        let cache = cache_with(&place("kept"), memory(100 << 10)).await;
        let (rows, modes) = decided(&pair, &cache, 40, &plan).await;
        assert_eq!(rows, want);
        assert_eq!(modes.put + modes.compute, SPLITS, "{modes:?}");
        let (rows, again) = pair.with(&cache, how(1), &plan).await;
        assert_eq!((&rows, again.put, again.get), (&want, modes.compute, modes.put));
        // 100 KiB hold four whole splits. Splits that are read while the decision comes have few rows in the buffer, and are
        // stored as well: their number, up to all forty, depends on the machine. Without the limit it is forty in each run.
        if modes.compute >= 16 {
            return;
        }
        runs.push(modes);
    }
    panic!("the buffer holds more than its limit: {runs:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fraction_of_the_buffered_splits_is_stored() {
    let pair = pair().await;
    let want = pair.computed(how(0)).await;
    let cache = cache_with(&place("kept"), memory(64 << 20)).await;
    let plan = CachePlan { permille: CachePlan::permille_of(0.5), ..pair.hints[0].plan("arrow/none") };
    let (rows, modes) = decided(&pair, &cache, 32, &plan).await;
    assert_eq!(rows, want);
    assert!(modes.put > 0 && modes.compute > 0, "{modes:?}");
    let (rows, again) = pair.with(&cache, how(1), &plan).await;
    assert_eq!((rows, again.get, again.put), (want, modes.put, 0), "{again:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_store_loses_no_rows() {
    let pair = pair().await;
    let want = pair.computed(how(0)).await;
    for fault in [Fault::Error("500"), Fault::Silence] {
        let faults = Faults::new();
        let cache = faulty_with(&place("kept"), &faults, memory(64 << 20)).await;
        let plan = CachePlan { write_bytes_per_s: Some(1 << 30), ..pair.hints[0].plan("arrow/none") };
        faults.add(Rule::new(Op::Put, fault).on(".arrow").always());
        let (rows, modes) = decided(&pair, &cache, 32, &plan).await;
        assert_eq!(rows, want);
        assert_eq!((modes.compute, modes.put), (SPLITS, 0), "{modes:?}");
        faults.clear();
        let (rows, modes) = pair.with(&cache, how(1), &plan).await;
        assert_eq!((rows, modes.put), (want.clone(), SPLITS), "{modes:?}");
    }
}

/// Stored rows are drawn as in epoch 0, whichever task stores them, and when.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_rows_are_buffered_in_epoch_0_alone() {
    let yaml = "source: { range: { start: 0, end: 98304 } }\nsteps:\n  - with_columns: { r: 'uniform(0.0, 1.0)' }\n  \
                - autocache: h\n  - batch: 7\n";
    let pair = Pair::yaml(yaml).await;
    let cache = cache_with(&place("kept"), memory(64 << 20)).await;
    let plan = pair.hints[0].plan("arrow/none");
    let (first, modes) = decided(&pair, &cache, 32, &plan).await;
    assert_eq!((modes.put, modes.compute), (SPLITS, 0), "{modes:?}");
    let (rows, modes) = pair.with(&cache, how(2), &plan).await;
    assert_eq!((modes.get, rows), (SPLITS, first.clone()));

    let late = cache_with(&place("kept"), memory(64 << 20)).await;
    let (own, modes) = decided_in(&pair, &late, 3, 32, &plan).await;
    assert_eq!((modes.backfilled, modes.compute), (0, 32), "{modes:?}");
    assert_ne!(own, first, "what is not stored is drawn by epoch 3");
    let (rows, modes) = pair.with(&late, how(4), &plan).await;
    assert_eq!((modes.put, modes.get, rows), (32, SPLITS - 32, first));
}

/// A task that has leased all its splits gets the decision without a lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_leases_no_more_gets_the_decision() {
    let pair = pair().await;
    let plan = pair.hints[1].plan("arrow/none");
    for (decided, want) in [(Some(&plan), (2, 0)), (None, (0, 2))] {
        let leases = (0u64..2).zip(&pair.splits).map(|(i, s)| LeasedSplit::new(i, s.clone())).collect();
        let mut options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
        options.cache = Some(cache_with(&place("kept"), memory(64 << 20)).await);
        options.probe = true;
        options.batch_rows = 100;
        let mut task = run_task(&pair.kept, Box::new(Fixed(leases)), options);
        let decide = task.decider();
        let first = task.next().await.unwrap().unwrap();
        decide(decided);
        // What is said after that changes nothing.
        decide(Some(&pair.hints[0].plan("parquet/zstd")));
        let mut rows = first.rows();
        while let Some(chunk) = task.next().await {
            rows += chunk.unwrap().rows();
        }
        let modes = task.modes();
        assert_eq!((modes.put, modes.compute), want, "{modes:?}");
        // The other split may begin only now.
        assert!(modes.backfilled <= modes.put && (modes.put == 0 || modes.backfilled > 0), "{modes:?}");
        assert!(rows > 2000, "{rows}");
    }
}

/// Each repetition has its own draws, whatever is decided while it waits to be read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiting_split_is_drawn_as_its_lease_said() {
    let yaml = "source: { range: { start: 0, end: 32768 } }\nsteps:\n  - with_columns: { r: 'uniform(0.0, 1.0)' }\n  \
                - filter: 'r < 0.5'\n  - autocache: h\n  - repeat: 3\n";
    let pair = Pair::yaml(yaml).await;
    let plan = pair.hints[0].plan("arrow/none");
    let mut seen = Vec::new();
    for decided in [None, Some(&plan)] {
        let leases = (0u64..).zip(&pair.splits).map(|(i, s)| LeasedSplit::new(i, s.clone())).collect();
        let mut options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
        options.cache = Some(cache_with(&place("kept"), memory(64 << 20)).await);
        options.probe = true;
        let mut task = run_task(&pair.kept, Box::new(Fixed(leases)), options);
        let decide = task.decider();
        let mut rows = rows_of(&task.next().await.unwrap().unwrap());
        decide(decided);
        while let Some(chunk) = task.next().await {
            rows.extend(rows_of(&chunk.unwrap()));
        }
        rows.sort();
        seen.push(rows);
    }
    assert!(seen[0] == seen[1], "{} rows and {}", seen[0].len(), seen[1].len());
}

/// Ended splits are stored concurrently: the latency of the store does not delay the task's end once per split.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_splits_are_stored_concurrently() {
    let pair = pair().await;
    let faults = Faults::new();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    faults.add(Rule::new(Op::Put, Fault::Gate(Arc::clone(&gate))).on(".arrow").always());
    let leases = (0u64..).zip(&pair.splits).map(|(i, s)| LeasedSplit::new(i, s.clone())).collect();
    let mut options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
    options.cache = Some(faulty_with(&place("kept"), &faults, memory(64 << 20)).await);
    options.probe = true;
    let mut task = run_task(&pair.kept, Box::new(Fixed(leases)), options);
    let (decide, total, mut rows) = (task.decider(), pair.computed(how(0)).await.len(), 0);
    while rows < total {
        rows += task.next().await.unwrap().unwrap().rows();
    }
    decide(Some(&pair.hints[0].plan("arrow/none")));
    // All but the last few have ended by now, and eight of them are under way although none is through.
    let seen = async {
        tokio::time::timeout(std::time::Duration::from_secs(30), faults.wait_fired(8)).await.unwrap();
        gate.add_permits(1000);
    };
    let (end, ()) = tokio::join!(task.next(), seen);
    let modes = task.modes();
    assert!(end.is_none());
    assert_eq!((modes.put, modes.backfilled), (SPLITS, SPLITS), "{modes:?}");
}

/// A split is stored even if the decision comes while its part is looked up, before its rows are buffered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_that_begins_during_the_decision_is_stored() {
    let pair = pair().await;
    let faults = Faults::new();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    faults.add(Rule::new(Op::List, Fault::Gate(Arc::clone(&gate))).always());
    let cache = faulty_with(&place("kept"), &faults, memory(64 << 20)).await;
    // Without the first one, whose part is not looked up.
    let leases = (1u64..).zip(&pair.splits[1..]).map(|(i, s)| LeasedSplit::new(i, s.clone())).collect();
    let mut options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
    options.cache = Some(cache);
    options.probe = true;
    let mut task = run_task(&pair.kept, Box::new(Fixed(leases)), options);
    let decide = task.decider();
    // The probes look for parts, and so does a split.
    tokio::time::timeout(std::time::Duration::from_secs(30), faults.wait_fired(2)).await.unwrap();
    decide(Some(&pair.hints[0].plan("arrow/none")));
    gate.add_permits(10_000);
    while let Some(chunk) = task.next().await {
        chunk.unwrap();
    }
    let modes = task.modes();
    assert_eq!((modes.put, modes.compute), (SPLITS - 1, 0), "{modes:?}");
}

/// Readers are limited by their requests: more small parts are read concurrently from a store with a high latency.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_parts_are_read_concurrently() {
    let pair = pair().await;
    let (root, plan) = (place("kept"), pair.hints[0].plan("arrow/none"));
    let want = pair.computed(how(0)).await;
    let (rows, _) = pair.with(&cache_with(&root, memory(64 << 20)).await, how(0), &plan).await;
    assert_eq!(rows, want);
    let faults = Faults::new();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    // Two requests for each part. The first ones pass: by then it is known what there is.
    faults.add(Rule::new(Op::Get, Fault::Gate(Arc::clone(&gate))).on(".arrow").skip(24).always());
    let far = faulty_with(&root, &faults, memory(0)).await;
    let seen = async {
        // Three readers of two requests each would be six.
        let more = tokio::time::timeout(std::time::Duration::from_secs(30), faults.wait_fired(7)).await;
        assert!(more.is_ok(), "{} requests wait: {:?}", faults.fired(), faults.log());
        gate.add_permits(10_000);
    };
    let ((rows, modes), ()) = tokio::join!(pair.with(&far, how(1), &plan), seen);
    assert_eq!((rows, modes.get), (want, SPLITS), "{modes:?}");
}

/// A part that is nearly read does not use the store fully: the next part is requested while its last rows come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_part_is_requested_before_the_last_one_ends() {
    let steps =
        "  - with_columns: { a: \"concat(cast(id as string), repeat('x', 2500))\" }\n  - autocache: a\n";
    let source = "source: { range: { start: 0, end: 24576 } }";
    // Batches hold as many bytes as they may, so that they do not grow where the machine is fast: a part has ten.
    let how = |epoch| How { batch_rows: 110, batch_bytes: 200 << 10, ..how(epoch) };
    let pair = Pair::yaml(&format!("{source}\nsteps:\n{steps}")).await;
    let (root, plan) = (place("kept"), pair.hints[0].plan("arrow/none"));
    let want = pair.computed(how(0)).await;
    // Each of them is a request, and not all parts fit side by side.
    let small = || CacheOptions { block_bytes: 4 << 10, ..memory(0) };
    let (rows, modes) = pair.with(&cache_with(&root, small()).await, how(0), &plan).await;
    assert!(rows == want && modes.put >= 12, "{modes:?}");
    let gated = |permits: usize| {
        let (faults, gate) = (Faults::new(), Arc::new(tokio::sync::Semaphore::new(permits)));
        faults.add(Rule::new(Op::Get, Fault::Gate(Arc::clone(&gate))).on(".arrow").always());
        (faults, gate)
    };
    let (open, _gate) = gated(1_000_000);
    pair.with(&faulty_with(&root, &open, small()).await, how(1), &plan).await;
    let all = open.fired();
    assert!(all > modes.put * 8, "{all} requests, {modes:?}");
    let (faults, gate) = gated(0);
    let one_by_one = async {
        // The buffer fits 16; while parts end together, three readers alone would have down to 6.
        const AT_ONCE: u64 = 10;
        // At first it is not known how large parts are, and at last there are none to ask for.
        const EDGE: u64 = 64;
        gate.add_permits(EDGE as usize);
        for answered in EDGE..=all - EDGE {
            let wait = faults.wait_fired(answered + AT_ONCE);
            let seen = tokio::time::timeout(std::time::Duration::from_secs(30), wait).await;
            assert!(seen.is_ok(), "after {answered} answers {} requests of {all} were made", faults.fired());
            gate.add_permits(1);
        }
        gate.add_permits(1000);
    };
    let far = faulty_with(&root, &faults, small()).await;
    let ((rows, modes), ()) = tokio::join!(pair.with(&far, how(1), &plan), one_by_one);
    assert!(rows == want && modes.compute == 0, "{modes:?}");
}
