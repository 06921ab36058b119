//! A part that turns bad in its middle: the split is computed from there on, and no row is lost or duplicated.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::ipc::writer::StreamWriter;
use caju_cache::{Cache, CacheOptions};
use caju_engine::CachePlan;
use caju_pipeline::{DatasetDef, SourceDef};
use caju_runtime::{Stores, SystemClock};
use caju_testkit::clock::ManualClock;
use caju_testkit::faulty::{Fault, Faults, Op, Rule, faulty_store};
use futures::TryStreamExt;
use object_store::ObjectStoreExt;

use crate::common::How;
use crate::generated::{put, rich};
use crate::rows::{Pair, cache, cache_with, place};

/// One split of many blocks.
async fn pair(steps: &str, rows: usize) -> Pair {
    let yaml = format!("source: {{ range: {{ start: 0, end: 1, step: 1 }} }}\nsteps:\n{steps}");
    let mut def = DatasetDef::from_yaml(&yaml, None).unwrap();
    let batch = rich(0, rows, 11);
    let mut out = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    out.write(&batch).unwrap();
    def.source = SourceDef::Memory { ipc: out.into_inner().unwrap().into() };
    Pair::bind(&def).await.unwrap()
}

fn how(epoch: u64) -> How {
    How { batch_rows: 100, epoch, ..How::default() }
}

/// A cache with faults in front of its store.
async fn faulty(root: &str, faults: &Faults) -> Arc<Cache> {
    faulty_with(root, faults, CacheOptions { memory_tier_bytes: 0, ..CacheOptions::default() }).await
}

pub async fn faulty_with(root: &str, faults: &Faults, options: CacheOptions) -> Arc<Cache> {
    let inner = Stores::default().resolve(root).unwrap();
    let stores = Stores::default();
    stores.register(&inner.url.root(), Arc::new(faulty_store(inner.store, faults.clone()))).unwrap();
    let options = CacheOptions {
        block_bytes: options.block_bytes.min(4 << 10),
        read_bytes: options.read_bytes.min(16 << 10),
        retry_base: std::time::Duration::from_micros(10),
        ..options
    };
    Cache::open(&stores, root, options, SystemClock::shared(), "shaky".into()).await.unwrap()
}

async fn flip(root: &str, thousandth: usize) {
    let at = Stores::default().resolve(root).unwrap();
    let all: Vec<_> = at.store.list(Some(&at.path)).try_collect().await.unwrap();
    let part = |n: &str| n.ends_with(".arrow") || n.ends_with(".parquet");
    let path = all.into_iter().map(|o| o.location).find(|l| part(l.as_ref())).unwrap();
    let mut bytes = at.store.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
    let place = bytes.len() * thousandth / 1000;
    bytes[place] ^= 16;
    at.store.put(&path, bytes.into()).await.unwrap();
}

async fn bad_in_its_middle(steps: &str) {
    let pair = pair(steps, 3000).await;
    let hint = &pair.hints[0];
    for encoding in ["arrow/none", "arrow/zstd", "parquet/zstd"] {
        for thousandth in [50, 300, 600, 900, 999] {
            let root = place("damage");
            let plan = hint.plan(encoding);
            let (stored, modes) = pair.with(&cache(&root).await, how(0), &plan).await;
            assert_eq!(modes.put, 1);
            flip(&root, thousandth).await;
            // Another epoch: what is drawn above the hint is the part's, before the damage and after it.
            let (rows, modes) = pair.with(&cache(&root).await, how(3), &plan).await;
            assert_eq!(rows.len(), stored.len(), "{encoding}, damaged at {thousandth}/1000");
            if !hint.random || modes.compute == 1 {
                assert_eq!(rows, stored, "{encoding}, damaged at {thousandth}/1000");
            }
            let (_, healed) = pair.with(&cache(&root).await, how(4), &plan).await;
            assert_eq!(healed.compute, 0, "{encoding}: the hole is filled: {healed:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_only_pass() {
    bad_in_its_middle("  - with_columns: { a: 'id * 2' }\n  - autocache: h\n  - filter: 'id % 2 = 0'\n")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_dropped_and_repeated() {
    let steps = "  - filter: 'id % 3 <> 1'\n  - unnest: { column: tags }\n  - autocache: h\n  - batch: 7\n";
    bad_in_its_middle(steps).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draws_above_the_hint_are_those_of_the_part() {
    let steps = "  - filter: 'random_int(0, 100) < 70'\n  - with_columns: { r: 'uniform(0.0, 1.0)' }\n  - autocache: h\n";
    let pair = pair(steps, 12_000).await;
    let hint = &pair.hints[0];
    assert!(hint.random);
    let mut resumed = 0;
    for thousandth in [100, 600, 700, 800, 900] {
        let root = place("damage");
        let plan = hint.plan("arrow/none");
        let (stored, _) = pair.with(&cache(&root).await, how(0), &plan).await;
        flip(&root, thousandth).await;
        let mut only_read = plan.clone();
        only_read.put = false;
        let (rows, _) = pair.with(&cache(&root).await, how(3), &only_read).await;
        // A part that is bad from its first block on is not read at all: everything is drawn again.
        if rows.first() == stored.first() {
            assert_eq!(rows, stored, "damaged at {thousandth}/1000");
            resumed += 1;
        }
    }
    assert!(resumed > 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_fails_in_the_middle_of_a_part() {
    let pair = pair("  - with_columns: { a: 'id * 2' }\n  - autocache: h\n", 12_000).await;
    let plan = pair.hints[0].plan("arrow/none");
    let root = place("faulty");
    let (stored, _) = pair.with(&cache(&root).await, how(0), &plan).await;
    let faults = Faults::new();
    let shaky = faulty(&root, &faults).await;
    faults.add(Rule::new(Op::Get, Fault::Error("503 SlowDown")).on(".arrow").skip(3).always());
    let (rows, modes) = pair.with(&shaky, how(1), &plan).await;
    assert!(faults.fired() > 0, "{:?}", faults.log());
    assert_eq!(rows, stored);
    assert_eq!((modes.compute, modes.get), (1, 0));
    faults.clear();
    let (rows, modes) = pair.with(&shaky, how(2), &plan).await;
    assert_eq!(rows, stored);
    assert_eq!(modes.get, 1, "a store that fails harms no part");
}

/// A task stops storing rows where the store takes less than half the bytes per second that the decision assumed. The tasks'
/// time passes only when the store has fallen silent, so that a busy machine is never taken for a slow store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_falls_silent_holds_nobody_up_for_long() {
    let clock = Arc::new(ManualClock::default());
    let mut pair = pair("  - with_columns: { a: 'id * 2' }\n  - autocache: h\n", 12_000).await;
    pair.clock = Arc::clone(&clock) as _;
    let want = pair.computed(how(0)).await;
    let root = place("silent");
    let faults = Faults::new();
    let cache = faulty(&root, &faults).await;
    let plan = CachePlan { write_bytes_per_s: Some(1 << 30), ..pair.hints[0].plan("arrow/none") };
    faults.add(Rule::new(Op::Put, Fault::Silence).on(".arrow").always());
    let time_passes = async {
        faults.wait_fired(1).await;
        loop {
            clock.advance(Duration::from_secs(1));
            tokio::task::yield_now().await;
        }
    };
    let (rows, modes) = tokio::select! {
        done = pair.with(&cache, how(0), &plan) => done,
        () = time_passes => unreachable!(),
    };
    assert_eq!(rows, want);
    assert_eq!((modes.compute, modes.put, modes.fell_back), (1, 0, 1));
    // The hole is filled by the next epoch.
    faults.clear();
    let (rows, modes) = pair.with(&cache, how(1), &plan).await;
    assert_eq!(rows, want);
    assert_eq!((modes.put, modes.fell_back), (1, 0), "nothing is left behind that would be in the way");
    let (rows, modes) = pair.with(&cache, how(2), &plan).await;
    assert_eq!((rows, modes.get), (want, 1));
}

/// The file of a part is cut while rows are read from it: a mapped one must not end the process with a signal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_that_shrink_under_their_readers_are_computed() {
    let pair = pair("  - with_columns: { a: 'id * 2' }\n  - autocache: h\n", 12_000).await;
    let plan = pair.hints[0].plan("arrow/none");
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_str().unwrap().to_owned();
    for mmap in [true, false] {
        let options = CacheOptions { mmap, memory_tier_bytes: 0, ..CacheOptions::default() };
        let cache = cache_with(&root, options).await;
        let (want, _) = pair.with(&cache, how(0), &plan).await;
        // The rows are read through to the end: first a few, then the file shrinks.
        let stopped = Arc::new(AtomicBool::new(false));
        let (path, done) = (folder.path().to_path_buf(), Arc::clone(&stopped));
        let shrinker = std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                for part in parts(&path) {
                    if let Ok(file) = std::fs::OpenOptions::new().write(true).open(&part) {
                        let half = file.metadata().unwrap().len() / 2;
                        file.set_len(half).unwrap();
                    }
                }
            }
        });
        for epoch in 1..4 {
            assert_eq!(pair.with(&cache, how(epoch), &plan).await.0, want, "mapped: {mmap}");
        }
        stopped.store(true, Ordering::Relaxed);
        shrinker.join().unwrap();
    }
}

/// The files of all parts below a folder.
fn parts(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(parts(&path));
        } else if path.extension().is_some_and(|e| e == "arrow") {
            found.push(path);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_cache_stores_nothing_and_loses_nothing() {
    let yaml = "source: { range: { start: 0, end: 30000, step: 1 } }\nsteps:\n  - autocache: h\n";
    let pair = Pair::yaml(yaml).await;
    let plan = pair.hints[0].plan("arrow/none");
    let want = pair.computed(How::default()).await;
    let root = place("full");
    let options = CacheOptions { budget_bytes: Some(20_000), ..CacheOptions::default() };
    let small = cache_with(&root, options).await;
    let (rows, modes) = pair.with(&small, How::default(), &plan).await;
    assert_eq!(rows, want);
    assert!(modes.put < 3 && modes.compute > 20, "{modes:?}");
    let (rows, _) = pair.with(&small, How::default(), &plan).await;
    assert_eq!(rows, want);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_found_in_other_files_do_not_mix() {
    let folder = place("types");
    put(&format!("{folder}/b.csv"), b"id,code\n1,01\n2,02\n".to_vec()).await;
    let yaml = |files: &str| {
        format!(
            "source: {{ csv: {{ path: '{folder}/{files}' }} }}\nsteps:\n  - map: {{ s: \"concat(code, '')\" }}\n  - autocache: h\n"
        )
    };
    // Alone, the codes of `b` are numbers; behind `a` they are text.
    let alone = Pair::yaml(&yaml("b.csv")).await;
    let root = place("cache");
    let (numbers, _) =
        alone.with(&cache(&root).await, How::default(), &alone.hints[0].plan("arrow/none")).await;
    put(&format!("{folder}/a.csv"), b"id,code\n0,x1\n".to_vec()).await;
    let both = Pair::yaml(&yaml("*.csv")).await;
    assert_eq!(alone.hints[0].prefix, both.hints[0].prefix);
    let plan = both.hints[0].plan("arrow/none");
    let want = both.computed(How::default()).await;
    let (rows, modes) = both.with(&cache(&root).await, How::default(), &plan).await;
    assert_eq!(rows, want);
    assert_eq!((modes.get, modes.compute, modes.put), (0, 1, 1));
    // And no part was discarded.
    let (rows, modes) = alone.with(&cache(&root).await, How::default(), &plan).await;
    assert_eq!(rows, numbers);
    assert_eq!(modes.get, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_with_other_seeds_share_no_draws() {
    let yaml = "
source: { range: { start: 0, end: 3000, step: 1 } }
steps: [ { with_columns: { r: 'uniform(0.0, 1.0)' } }, { autocache: h } ]
";
    let pair = Pair::yaml(yaml).await;
    let plan = pair.hints[0].plan("arrow/none");
    let root = place("cache");
    for seed in [0, 9] {
        let how = How { seed, ..How::default() };
        let want = pair.computed(how).await;
        let (rows, modes) = pair.with(&cache(&root).await, how, &plan).await;
        assert_eq!(rows, want, "seed {seed}");
        assert_eq!(modes.get, 0, "seed {seed} finds nothing of another one");
        let (rows, modes) = pair.with(&cache(&root).await, how, &plan).await;
        assert_eq!(rows, want);
        assert_eq!(modes.put + modes.compute, 0);
    }
    // The same seed, said in the definition.
    let seeded = Pair::yaml(&format!("{yaml}seed: 9\n")).await;
    let how = How { seed: 9, ..How::default() };
    let (_, modes) = seeded.with(&cache(&root).await, how, &seeded.hints[0].plan("arrow/none")).await;
    assert_eq!(modes.put + modes.compute, 0, "a seed is a seed, wherever it was said");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stores_nothing_and_loses_nothing() {
    let yaml = "source: { range: { start: 0, end: 30000, step: 1 } }\nsteps:\n  - autocache: h\n";
    let pair = Pair::yaml(yaml).await;
    let plan = pair.hints[0].plan("arrow/none");
    let root = place("disk");
    let faults = Faults::new();
    let disk = faulty(&root, &faults).await;
    faults.add(Rule::new(Op::Put, Fault::NoSpace).on("parts/").always());
    let (rows, modes) = pair.with(&disk, How::default(), &plan).await;
    assert_eq!(rows, pair.computed(How::default()).await);
    assert_eq!((modes.put, modes.get), (0, 0));
    assert!(faults.fired() < 20, "storing is given up: {} failures", faults.fired());
    faults.clear();
    let (_, modes) = pair.with(&disk, How::default(), &plan).await;
    assert_eq!(modes.compute, 0, "and taken up again in the next epoch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repetitions_share_what_was_drawn_and_each_has_all_rows() {
    let yaml = "
source: { range: { start: 0, end: 3000, step: 1 } }
steps: [ { filter: 'random_int(0, 10) < 7' }, { with_columns: { r: 'uniform(0.0, 1.0)' } }, { autocache: h }, { repeat: 3 } ]
";
    let pair = Pair::yaml(yaml).await;
    let n = pair.splits.len() as u64 / 3;
    let once = Pair::yaml(&yaml.replace(", { repeat: 3 }", "")).await.computed(How::default()).await;
    let plan = pair.hints[0].plan("arrow/none");
    let root = place("cache");
    for (epoch, workers) in [(0, 2), (1, 1), (5, 3)] {
        let how = How { epoch, workers, ..How::default() };
        let (rows, modes) = pair.with(&cache(&root).await, how, &plan).await;
        for repetition in 0..3 {
            let of = rows.iter().filter(|r| r.0.0 / n == repetition);
            let of: Vec<_> = of.map(|((split, row), v)| ((split % n, *row), v.clone())).collect();
            assert_eq!(of, once, "epoch {epoch}, repetition {repetition}");
        }
        assert_eq!(modes.put, if epoch == 0 { n } else { 0 });
    }
}
