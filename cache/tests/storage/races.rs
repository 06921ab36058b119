//! At most one part per split, whatever processes write, die, pause and resume.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use caju_cache::*;
use caju_runtime::{Stores, SystemClock};
use caju_testkit::faulty::{Fault, Faults, Op, Rule, faulty_store};
use caju_testkit::s3::S3Server;

const TTL: Duration = Duration::from_secs(20);

enum How {
    Plain(String),
    S3(S3Server),
    Unconditional(String, Faults),
}

impl How {
    async fn open(&self, options: CacheOptions) -> Arc<Cache> {
        let clock = SystemClock::shared();
        match self {
            How::Plain(root) => open_with(root, options).await,
            How::S3(server) => {
                let stores = Stores::new(server.options(), None).unwrap();
                Cache::open(&stores, "s3://bucket/cache", options, clock, writer_id()).await.unwrap()
            }
            How::Unconditional(root, faults) => open_faulty(root, faults, options, clock).await.unwrap(),
        }
    }
}

async fn each() -> (Vec<How>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let faults = Faults::new();
    faults.ignore_conditions();
    let how = vec![
        How::Plain(memory_root()),
        How::Plain(format!("file://{}", folder.path().display())),
        How::S3(S3Server::start(&["bucket"]).await.unwrap()),
        How::Unconditional(memory_root(), faults),
    ];
    (how, folder)
}

/// Claims expire at once here: all processes write, and one commit counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_writers_of_one_split_commit_one_part() {
    let (stores, _folder) = each().await;
    for how in &stores {
        let options = CacheOptions { lease_ttl: Duration::ZERO, ..hasty() };
        let mut running = tokio::task::JoinSet::new();
        let gate = Arc::new(tokio::sync::Barrier::new(8));
        for i in 0..8i64 {
            let cache = how.open(options.clone()).await;
            let gate = Arc::clone(&gate);
            running.spawn(async move {
                let batch = numbers(i * 100..i * 100 + 50);
                let snapshot = cache.snapshot(&fp(1));
                let mut part = writer(&snapshot, split(1), &batch.schema(), Encoding::default()).await;
                part.write(&batch).await.unwrap();
                gate.wait().await;
                (i, part.finish(facts(50)).await.unwrap(), cache)
            });
        }
        let done = running.join_all().await;
        let ours: Vec<_> = done.iter().filter(|d| matches!(d.1, Committed::Ours(_))).collect();
        let conditional = !matches!(how, How::Unconditional(..));
        if conditional {
            assert_eq!(ours.len(), 1);
        }
        let reader = how.open(CacheOptions::default()).await;
        let snapshot = reader.snapshot(&fp(1));
        let index = snapshot.index().await.unwrap();
        let winner = index.get(&split(1)).unwrap();
        for (_, outcome, _) in done.iter().filter(|_| conditional) {
            assert_eq!(outcome.meta(), winner);
        }
        let i = done.iter().find(|d| d.2.writer_id() == winner.writer).unwrap().0;
        assert_same(&read(&snapshot, winner).await.unwrap(), &numbers(i * 100..i * 100 + 50));
        // The losers' objects are deleted.
        if conditional {
            let scan = reader.inspect(&fp(1)).await.unwrap();
            assert!(scan.info.stored_bytes < 3 * winner.bytes, "{}", scan.info.stored_bytes);
        }
        for (_, _, cache) in done {
            cache.close(TTL).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_let_one_of_eight_write() {
    let (stores, _folder) = each().await;
    for how in &stores {
        let mut running = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let cache = how.open(hasty()).await;
            running.spawn(async move {
                let snapshot = cache.snapshot(&fp(1));
                let schema = numbers(0..1).schema();
                let outcome = snapshot.put(split(1), &describe(), schema, Encoding::default()).await.unwrap();
                (matches!(outcome, PutOutcome::Writer(_)), outcome, cache)
            });
        }
        let done = running.join_all().await;
        let writers = done.iter().filter(|d| d.0).count();
        assert!(writers == 1 || matches!(how, How::Unconditional(..)) && writers >= 1, "{writers}");
        // A writer that aborts leaves nothing, and the next one may write.
        for (_, outcome, cache) in done {
            if let PutOutcome::Writer(w) = outcome {
                w.abort().await;
            }
            cache.close(TTL).await.unwrap();
        }
        let next = how.open(hasty()).await;
        let snapshot = next.snapshot(&fp(1));
        assert!(snapshot.index().await.unwrap().is_empty());
        put(&snapshot, split(1), &[numbers(0..10)], Encoding::default()).await;
        let outcome = snapshot.put(split(1), &describe(), numbers(0..1).schema(), Encoding::default()).await;
        assert!(matches!(outcome.unwrap(), PutOutcome::Exists(_)));
    }
}

async fn outcome(cache: &Arc<Cache>) -> PutOutcome {
    let schema = numbers(0..1).schema();
    cache.snapshot(&fp(1)).put(split(1), &describe(), schema, Encoding::default()).await.unwrap()
}

async fn open_at(root: &str, clock: &Arc<ManualClock>) -> Arc<Cache> {
    let clock = Arc::clone(clock) as Arc<dyn caju_runtime::Clock>;
    let options = CacheOptions { lease_ttl: TTL, request_timeout: Duration::from_secs(1 << 30), ..hasty() };
    Cache::open(&stores_of(root), root, options, clock, writer_id()).await.unwrap()
}

#[tokio::test]
async fn a_paused_writer_is_skipped_and_loses() {
    let folder = tempfile::tempdir().unwrap();
    for root in [memory_root(), format!("file://{}/c", folder.path().display()), wire_root()] {
        paused_in(root).await;
    }
}

async fn paused_in(root: String) {
    let (frozen, clock) = (Arc::new(ManualClock::default()), Arc::new(ManualClock::default()));
    // The clocks of two machines may differ.
    frozen.advance(Duration::from_secs(1_000_000));
    let paused = open_at(&root, &frozen).await;
    let other = open_at(&root, &clock).await;
    let PutOutcome::Writer(mut part) = outcome(&paused).await else { panic!() };
    part.write(&numbers(0..10)).await.unwrap();
    let PutOutcome::Busy { writer } = outcome(&other).await else { panic!() };
    assert_eq!(writer, paused.writer_id());
    clock.advance(TTL - Duration::from_secs(1));
    assert!(matches!(outcome(&other).await, PutOutcome::Busy { .. }));
    clock.advance(Duration::from_secs(4));
    let PutOutcome::Writer(mut mine) = outcome(&other).await else { panic!() };
    mine.write(&numbers(0..10)).await.unwrap();
    let committed = mine.finish(facts(10)).await.unwrap();
    let Committed::Ours(meta) = committed else { panic!() };
    assert_eq!(part.finish(facts(10)).await.unwrap(), Committed::Lost(Arc::clone(&meta)));
    let parts: Vec<_> = objects(&root).await.into_iter().filter(|o| o.ends_with(".arrow")).collect();
    assert_eq!(parts, [format!("v1/{}", meta.path)]);
    assert!(matches!(outcome(&paused).await, PutOutcome::Exists(m) if m == meta));
}

#[tokio::test]
async fn a_living_writer_keeps_its_claim() {
    let root = memory_root();
    let clock = Arc::new(ManualClock::default());
    let (writer, other) = (open_at(&root, &clock).await, open_at(&root, &clock).await);
    let PutOutcome::Writer(part) = outcome(&writer).await else { panic!() };
    for _ in 0..20 {
        settle().await;
        clock.advance(TTL / 3 + Duration::from_millis(1));
        settle().await;
        assert!(matches!(outcome(&other).await, PutOutcome::Busy { .. }));
    }
    // It closes its cache: no process waits for its lease.
    part.abort().await;
    let PutOutcome::Writer(_) = outcome(&other).await else { panic!() };
}

#[tokio::test]
async fn a_process_that_left_is_not_waited_for() {
    let root = memory_root();
    let clock = Arc::new(ManualClock::default());
    let (leaving, other) = (open_at(&root, &clock).await, open_at(&root, &clock).await);
    let PutOutcome::Writer(part) = outcome(&leaving).await else { panic!() };
    std::mem::forget(part);
    leaving.close(TTL).await.unwrap();
    assert!(matches!(outcome(&other).await, PutOutcome::Writer(_)));
}

/// A claim whose deletion failed is deleted later, and does not block others for as long as its writer lives.
#[tokio::test]
async fn a_stale_claim_is_deleted_later() {
    let root = memory_root();
    let clock = Arc::new(ManualClock::default());
    let faults = Faults::new();
    let options = CacheOptions {
        lease_ttl: TTL,
        request_timeout: Duration::from_secs(1 << 30),
        attempts: 1,
        ..hasty()
    };
    let writer = open_faulty(&root, &faults, options, Arc::clone(&clock) as _).await.unwrap();
    let other = open_at(&root, &clock).await;
    let PutOutcome::Writer(part) = outcome(&writer).await else { panic!() };
    faults.add(Rule::new(Op::Delete, Fault::Error("503 SlowDown")).on("claims"));
    part.abort().await;
    // Cancelled in the middle of claiming: the store has the claim, and the writer does not know.
    faults.add(Rule::new(Op::Put, Fault::LostAnswer).on("claims"));
    faults.add(Rule::new(Op::Get, Fault::Silence).on("claims"));
    let snapshot = writer.snapshot(&fp(1));
    let claiming = snapshot.put(split(2), &describe(), numbers(0..1).schema(), Encoding::default()).await;
    assert!(claiming.is_err());
    let claims = async || objects(&root).await.into_iter().filter(|o| o.contains("claims")).count();
    assert_eq!(claims().await, 2);
    assert!(matches!(outcome(&other).await, PutOutcome::Busy { .. }));
    faults.clear();
    settle().await;
    clock.advance(TTL / 2);
    settle().await;
    assert_eq!(claims().await, 0);
    assert!(matches!(outcome(&other).await, PutOutcome::Writer(_)));
}

/// The stores on which writers are killed.
enum Scene {
    Memory,
    Files(tempfile::TempDir),
    S3(S3Server),
}

impl Scene {
    fn stores(&self, faults: &Faults, seed: u64) -> (Stores, String) {
        let (stores, root) = match self {
            Scene::Memory => (Stores::default(), format!("memory://kills-{}/{seed}", std::process::id())),
            Scene::Files(folder) => (Stores::default(), format!("file://{}/{seed}", folder.path().display())),
            Scene::S3(server) => {
                (Stores::new(server.options(), None).unwrap(), format!("s3://bucket/{seed}"))
            }
        };
        let inner = stores.resolve(&root).unwrap();
        stores.register(&inner.url.root(), Arc::new(faulty_store(inner.store, faults.clone()))).unwrap();
        (stores, root)
    }
}

/// Kills a writer at its n-th request, and lets another process continue. No torn part is served, and no row is lost or
/// duplicated.
async fn kill(scene: &Scene, seed: u64) -> bool {
    let faults = Faults::new();
    let (stores, root) = scene.stores(&faults, seed);
    let clock = Arc::new(ManualClock::default());
    let options = CacheOptions {
        lease_ttl: TTL,
        request_timeout: Duration::from_secs(1 << 30),
        fold_after: 2,
        block_bytes: 1000,
        ..hasty()
    };
    let victim =
        Cache::open(&stores, &root, options.clone(), SystemClock::shared(), writer_id()).await.unwrap();
    let n = caju_types::mix64(seed, 1) % 40;
    // Half of the kills come after the store has carried the request out.
    let (fault, last) = if seed.is_multiple_of(2) { (Fault::Silence, 1) } else { (Fault::LostAnswer, 2) };
    faults.add(Rule::new(Op::Any, fault).skip(n));
    faults.add(Rule::new(Op::Any, Fault::Silence).skip(n).always());
    let snapshot = victim.snapshot(&fp(1));
    let encoding = Encoding::ALL[usize::try_from(seed % 7).unwrap()];
    let write = async {
        for i in 0..5 {
            put(&snapshot, split(i), &[numbers(0..500), numbers(500..1000)], encoding).await;
        }
    };
    let killed = tokio::select! {
        () = write => false,
        () = faults.wait_fired(last) => true,
    };
    drop(snapshot);
    drop(victim);
    let (heirs, _) = scene.stores(&Faults::new(), seed);
    if seed.is_multiple_of(3) {
        // Only cancelled, not dead: its clean-up runs concurrently.
        faults.clear();
    }

    let heir = Cache::open(&heirs, &root, options, Arc::clone(&clock) as _, writer_id()).await.unwrap();
    let snapshot = heir.snapshot(&fp(1));
    for i in 0..5 {
        for round in 0..3 {
            let schema = numbers(0..1).schema();
            match snapshot.put(split(i), &describe(), schema, Encoding::default()).await.unwrap() {
                PutOutcome::Exists(_) => break,
                PutOutcome::Busy { .. } => {
                    assert_eq!(round, 0, "seed {seed}");
                    clock.advance(TTL * 2);
                    settle().await;
                }
                PutOutcome::Writer(mut w) => {
                    w.write(&numbers(0..1000)).await.unwrap();
                    assert!(matches!(w.finish(facts(1000)).await.unwrap(), Committed::Ours(_)));
                    break;
                }
            }
        }
    }
    let index = snapshot.index().await.unwrap();
    assert_eq!(index.len(), 5, "seed {seed}");
    for (_, meta) in index.iter() {
        assert_same(&read(&snapshot, meta).await.unwrap(), &numbers(0..1000));
    }
    assert!(heir.verify(None).await.unwrap().is_clean(), "seed {seed}");
    killed
}

#[tokio::test]
async fn writers_killed_at_random_moments() {
    let mut killed = 0;
    for seed in 0..200 {
        killed += u32::from(kill(&Scene::Memory, seed).await);
    }
    assert!(killed > 150, "{killed}");
}

#[tokio::test]
async fn writers_killed_at_random_moments_on_files() {
    let scene = Scene::Files(tempfile::tempdir().unwrap());
    let mut killed = 0;
    for seed in 0..200 {
        killed += u32::from(kill(&scene, seed).await);
    }
    assert!(killed > 150, "{killed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_killed_at_random_moments_on_s3() {
    let scene = Scene::S3(S3Server::start(&["bucket"]).await.unwrap());
    let mut killed = 0;
    for seed in 0..16 {
        killed += u32::from(kill(&scene, seed).await);
    }
    assert!(killed > 9, "{killed}");
}
