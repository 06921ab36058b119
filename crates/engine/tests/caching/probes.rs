//! What probes cost the task that runs concurrently.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use caju_cache::{Cache, Compression, Encoding, Format, Probe, ProbeTask};
use caju_engine::{LeasedSplit, TaskOptions, TaskRun, run_task};
use caju_runtime::{CpuPool, Stores, SystemClock};
use caju_testkit::faulty::{Fault, Faults, Op, Rule};
use futures::TryStreamExt;

use crate::common::Fixed;
use crate::damage::faulty_with;
use crate::rows::{Pair, cache_with, place};

const PLAIN: Encoding = Encoding { format: Format::Arrow, compression: Compression::None };

/// Never more than 3 % of the time that the task's threads had so far, but for one probe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_keep_within_their_share() {
    let cache = cache_with(&place("probes"), Default::default()).await;
    assert!(within_their_share(cache, None, 0, |p| (p.spent_cpu_s, 2.0)).await >= 3);
}

/// Nor of the requests that the task may have under way, once everything was tried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_keep_within_their_share_of_a_far_store() {
    assert!(within_their_share(far(10).await, Some(PLAIN), 2, |p| (p.spent_store_s, 1.0)).await >= 3);
}

/// Until then what weighing the store takes keeps no single request waiting: the second probe would come after seven seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_tries_do_not_wait_for_a_weighing() {
    assert!(within_their_share(far(100).await, None, 8, |p| (p.spent_store_s, 1.0)).await >= 2);
}

/// And it is tried again although the next weighing is seconds away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_tries_do_not_wait_for_a_weighing() {
    let (mut tries, mut weighings) = (0, 0);
    tried_while(far(100).await, Some(PLAIN), "300us", |_, probes| {
        tries = probes.len();
        weighings = probes.iter().filter(|p| p.read_bytes_per_s > 0.0).count();
        if tries < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })
    .await;
    assert!(
        tries >= 3 && weighings == 1,
        "two hints, and then one of them again: {tries} tries, {weighings}"
    );
}

/// No row reaches the second hint before nine tenths of all have passed the first one, which is tried meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hint_whose_rows_come_late_keeps_the_others_from_nothing() {
    let yaml = "source: { range: { start: 0, end: 98304 } }\nsteps:\n  - with_columns: { t: \"lpad(cast(id as varchar), 500, 'x')\" }\n  \
                - autocache: early\n  - burn: { per_row: 60us }\n  - filter: \"id >= 90000\"\n  - autocache: late\n  - batch: 100\n";
    let cache = cache_with(&place("probes"), Default::default()).await;
    let pair = Pair::yaml(yaml).await;
    let leases = (0u64..).zip(&pair.splits).map(|(i, s)| LeasedSplit::new(i, s.clone())).collect();
    let mut options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
    (options.cache, options.probe, options.batch_rows) = (Some(cache), true, 500);
    let mut task = run_task(&pair.kept, Box::new(Fixed(leases)), options);
    task.next().await.unwrap().unwrap();
    let early: Vec<_> = task.findings().unwrap().probes.into_iter().filter(|p| p.hint == "early").collect();
    assert!(early.len() >= 2, "{early:?}");
}

/// Once it is decided, nothing is tried any more: half of the rows are still to come, and two rounds of tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_ends_the_probes() {
    let yaml = "source: { range: { start: 0, end: 98304 } }\nsteps:\n  - with_columns: { t: \"lpad(cast(id as varchar), 500, 'x')\" }\n  \
                - autocache: a\n  - burn: { per_row: 30us }\n  - batch: 100\n";
    let pair = Pair::yaml(yaml).await;
    let leases = (0u64..).zip(&pair.splits).map(|(i, s)| LeasedSplit::new(i, s.clone())).collect();
    let mut options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
    options.cache = Some(cache_with(&place("probes"), Default::default()).await);
    (options.probe, options.batch_rows) = (true, 500);
    let mut task = run_task(&pair.kept, Box::new(Fixed(leases)), options);
    let decide = task.decider();
    let tries = |task: &TaskRun| task.findings().unwrap().probes.len();
    let (mut at_decision, mut rows) = (None, 0);
    while let Some(chunk) = task.next().await {
        rows += chunk.unwrap().rows();
        if at_decision.is_none() && tries(&task) >= 1 {
            decide(None);
            at_decision = Some((tries(&task), rows));
        }
    }
    let (then, rows) = at_decision.expect("the first probe comes with the first rows");
    assert!(rows < 98304 / 2, "too late to show anything: {rows}");
    // One may have been under way.
    assert!(tries(&task) <= then + 1, "{then} and then {}", tries(&task));
}

/// A task that ends takes its probes' objects with it, those that are on their way included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_is_cut_off_leaves_nothing_behind() {
    let (root, faults) = (place("probes"), Faults::new());
    faults.add(Rule::new(Op::Get, Fault::Silence).on("/probes/").always());
    let cache = faulty_with(&root, &faults, Default::default()).await;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    let rows = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let (schema, task) = (
        rows.schema(),
        ProbeTask { threads: 2, readers: 2, measures_store: true, fetch_cpu_s_per_byte: None },
    );
    // All is written when the first read begins, which never ends.
    let written = async {
        faults.wait_fired(1).await;
        assert!(!probes_at(&root).await.is_empty());
    };
    tokio::select! {
        probe = cache.probe(&schema, std::slice::from_ref(&rows), PLAIN, task) => panic!("{probe:?}"),
        () = written => {}
    }
    cache.close(Duration::from_secs(30)).await.unwrap();
    assert_eq!(probes_at(&root).await, Vec::<String>::new());
}

/// Once it is known what fetching takes, decoding is tried without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_further_try_leaves_the_store_alone() {
    let faults = Faults::new();
    let cache = faulty_with(&place("probes"), &faults, Default::default()).await;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    let rows = RecordBatch::try_from_iter([("id", ids)]).unwrap();
    let schema = rows.schema();
    let probe = |task| cache.probe(&schema, std::slice::from_ref(&rows), PLAIN, task);
    let task = ProbeTask { threads: 1, readers: 1, measures_store: false, fetch_cpu_s_per_byte: None };
    let first = probe(task).await.unwrap();
    assert!(first.spent_store_s > 0.0 && first.fetch_cpu_s_per_byte > 0.0, "{first:?}");
    faults.add(Rule::new(Op::Any, Fault::Error("503 SlowDown")).always());
    let again = ProbeTask { fetch_cpu_s_per_byte: Some(first.fetch_cpu_s_per_byte), ..task };
    let second = probe(again).await.unwrap();
    assert!(
        second.spent_store_s == 0.0 && second.decode_cpu_s > first.fetch_cpu_s_per_byte * first.bytes as f64,
        "{second:?}"
    );
    assert_eq!((second.rows, second.bytes), (first.rows, first.bytes));
    probe(ProbeTask { measures_store: true, ..again }).await.unwrap_err();
    probe(task).await.unwrap_err();
}

async fn probes_at(root: &str) -> Vec<String> {
    let at = Stores::default().resolve(root).unwrap();
    let all: Vec<_> =
        at.store.list(Some(&at.path)).map_ok(|o| o.location.to_string()).try_collect().await.unwrap();
    all.into_iter().filter(|path| path.contains("/probes/")).collect()
}

/// A cache whose store takes the given number of milliseconds to answer.
async fn far(ms: u64) -> Arc<Cache> {
    let faults = Faults::new();
    for op in [Op::Get, Op::Put] {
        faults.add(Rule::new(op, Fault::Delay(Duration::from_millis(ms), SystemClock::shared())).always());
    }
    faulty_with(&place("probes"), &faults, Default::default()).await
}

/// What the probes of a task spent, but for the last one that cost anything, is checked after each of its chunks against what it
/// had, in units per second; the first ones are free. How many cost anything: with fewer than two nothing is shown.
async fn within_their_share(
    cache: Arc<Cache>,
    only: Option<Encoding>,
    free: usize,
    spent_of: impl Fn(&Probe) -> (f64, f64),
) -> usize {
    let mut tries = 0;
    tried_while(cache, only, "60us", |elapsed, probes| {
        let (costs, per_s): (Vec<f64>, Vec<f64>) = probes.iter().map(&spent_of).filter(|c| c.0 > 0.0).unzip();
        tries = costs.len();
        assert!(probes.is_empty() || tries > 0, "nothing is counted: {probes:?}");
        let Some((last, per_s)) = costs.last().zip(per_s.last()) else { return ControlFlow::Continue(()) };
        let all: f64 = costs.iter().sum();
        let within = tries <= free || all - last <= 0.03 * per_s * elapsed;
        assert!(within, "{all} s in {elapsed} s: {probes:?}");
        ControlFlow::Continue(())
    })
    .await;
    tries
}

/// What was tried of two hints by each of a task's chunks, and the seconds since it began, until it has been seen.
async fn tried_while(
    cache: Arc<Cache>,
    only: Option<Encoding>,
    burn: &str,
    mut see: impl FnMut(f64, &[Probe]) -> ControlFlow<()>,
) {
    let yaml = format!(
        "source: {{ range: {{ start: 0, end: 98304 }} }}\nsteps:\n  - with_columns: {{ t: \"lpad(cast(id as varchar), 500, 'x')\" }}\n  \
         - autocache: a\n  - with_columns: {{ u: \"concat(t, 'y')\" }}\n  - autocache: b\n  - burn: {{ per_row: {burn} }}\n  - batch: 100\n"
    );
    let pair = Pair::yaml(&yaml).await;
    let leases = (0u64..).zip(&pair.splits).map(|(i, s)| LeasedSplit::new(i, s.clone())).collect();
    let mut options = TaskOptions::new(CpuPool::new(2).unwrap(), SystemClock::shared());
    options.cache = Some(cache);
    (options.probe, options.probe_encoding) = (true, only);
    options.batch_rows = 500;
    let mut task = run_task(&pair.kept, Box::new(Fixed(leases)), options);
    let start = Instant::now();
    while let Some(chunk) = task.next().await {
        chunk.unwrap();
        let probes: Vec<_> = task.findings().unwrap().probes.into_iter().map(|p| p.probe).collect();
        if see(start.elapsed().as_secs_f64(), &probes).is_break() {
            return;
        }
    }
}
