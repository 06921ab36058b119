//! Damage is detected, named and repaired. A failing store is an error within the deadline, never a wrong row.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use arrow_array::RecordBatch;
use caju_cache::*;
use caju_runtime::{Stores, SystemClock};
use caju_testkit::faulty::{Fault, Faults, Op, Rule};
use caju_types::ErrorKind;
use object_store::ObjectStoreExt;
use object_store::path::Path;

/// A root with its raw store, for damaging objects.
struct Site {
    root: String,
    store: Arc<dyn object_store::ObjectStore>,
    base: String,
    mmap: bool,
    _folder: Option<tempfile::TempDir>,
}

impl Site {
    fn all() -> Vec<Site> {
        let files = || {
            let folder = tempfile::tempdir().unwrap();
            (format!("file://{}/c", folder.path().display()), Some(folder))
        };
        let (a, b) = (files(), files());
        [(memory_root(), None, false), (a.0, a.1, true), (b.0, b.1, false), (wire_root(), None, false)]
            .into_iter()
            .map(|(root, folder, mmap)| {
                let at = stores_of(&root).resolve(&root).unwrap();
                Site { root, store: at.store, base: at.path.to_string(), mmap, _folder: folder }
            })
            .collect()
    }

    async fn open(&self) -> Arc<Cache> {
        open_with(&self.root, CacheOptions { mmap: self.mmap, block_bytes: 4000, ..hasty() }).await
    }

    fn path(&self, relative: &str) -> Path {
        Path::parse(format!("{}/v1/{relative}", self.base)).unwrap()
    }

    async fn get(&self, relative: &str) -> Vec<u8> {
        self.store.get(&self.path(relative)).await.unwrap().bytes().await.unwrap().to_vec()
    }

    async fn put(&self, relative: &str, bytes: Vec<u8>) {
        self.store.put(&self.path(relative), bytes.into()).await.unwrap();
    }

    async fn delete(&self, relative: &str) {
        self.store.delete(&self.path(relative)).await.unwrap();
    }

    async fn named(&self, text: &str) -> Vec<String> {
        let all = objects(&self.root).await;
        all.into_iter()
            .filter(|o| o.contains(text))
            .map(|o| o.trim_start_matches("v1/").to_string())
            .collect()
    }
}

/// Acts as a job: reads existing parts, and discards and computes damaged ones. It must never get a wrong row.
async fn epoch(
    cache: &Arc<Cache>,
    key: caju_types::SplitKey,
    want: &RecordBatch,
    encoding: Encoding,
) -> bool {
    let snapshot = cache.snapshot(&fp(1));
    let index = snapshot.index().await.unwrap();
    if let Some(meta) = index.get(&key) {
        match read(&snapshot, meta).await {
            Ok(rows) => {
                assert_same(&rows, want);
                return true;
            }
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::DataLoss | ErrorKind::NotFound), "{e}");
                assert!(e.message().contains(&meta.path), "{e}");
                snapshot.discard(meta, e.message()).await.unwrap();
            }
        }
    }
    let again = put(&snapshot, key, std::slice::from_ref(want), encoding).await;
    assert_same(&read(&snapshot, &again).await.unwrap(), want);
    false
}

#[tokio::test]
async fn damaged_bytes_anywhere() {
    let want = rich(600, 1);
    for site in Site::all() {
        for encoding in [encoding("arrow/none"), encoding("arrow/lz4"), encoding("parquet/zstd")] {
            let key = split(encoding.format as u128 * 10 + encoding.compression as u128);
            let first =
                put(&site.open().await.snapshot(&fp(1)), key, std::slice::from_ref(&want), encoding).await;
            let good = site.get(&first.path).await;
            let mut path = first.path.clone();
            for step in 0..20 {
                let cache = site.open().await;
                let at = (good.len() * step / 20 + step).min(good.len() - 1);
                let mut bad = site.get(&path).await;
                bad[at] ^= 1 << (step % 8);
                site.put(&path, bad).await;
                assert!(!cache.verify(Some(&fp(1))).await.unwrap().is_clean(), "byte {at}");
                assert!(!epoch(&cache, key, &want, encoding).await, "byte {at} of {} {encoding}", good.len());
                assert!(epoch(&cache, key, &want, encoding).await);
                let index = cache.snapshot(&fp(1)).index().await.unwrap();
                path = index.get(&key).unwrap().path.clone();
                assert!(index.get(&key).unwrap().generation as usize >= 2 * step);
            }
        }
    }
}

#[tokio::test]
async fn truncated_missing_swapped_and_foreign_parts() {
    let (want, other) = (rich(600, 1), rich(600, 2));
    for site in Site::all() {
        for encoding in [encoding("arrow/none"), encoding("parquet/none")] {
            let cache = site.open().await;
            let (a, b) = (split(encoding.format as u128 * 2), split(encoding.format as u128 * 2 + 1));
            epoch(&cache, a, &want, encoding).await;
            epoch(&cache, b, &other, encoding).await;
            let foreign = put(&cache.snapshot(&fp(2)), a, &[rich(600, 3)], encoding).await;
            for round in 0..7 {
                let index = cache.snapshot(&fp(1)).index().await.unwrap();
                let (pa, pb) = (&index.get(&a).unwrap().path, &index.get(&b).unwrap().path);
                let (ba, bb) = (site.get(pa).await, site.get(pb).await);
                match round {
                    0 => site.put(pa, ba[..ba.len() / 2].to_vec()).await,
                    1 => site.put(pa, ba[..ba.len() - 1].to_vec()).await,
                    2 => site.put(pa, Vec::new()).await,
                    3 => site.delete(pa).await,
                    4 => site.put(pa, [ba.clone(), vec![0; 10]].concat()).await,
                    5 => site.put(pa, bb.clone()).await,
                    _ => site.put(pa, site.get(&foreign.path).await).await,
                }
                let fresh = site.open().await;
                assert!(!fresh.verify(Some(&fp(1))).await.unwrap().is_clean(), "round {round}");
                assert!(!epoch(&fresh, a, &want, encoding).await, "round {round}");
                // The process that had the part in its index and memory detects the damage, too, or has the rows.
                for (key, rows) in [(a, &want), (b, &other)] {
                    epoch(&cache, key, rows, encoding).await;
                }
                assert!(epoch(&site.open().await, a, &want, encoding).await);
            }
        }
    }
}

/// The record of a part of another fingerprint, with its bytes: all is valid but the name.
#[tokio::test]
async fn foreign_and_old_records() {
    for site in Site::all() {
        let cache = site.open().await;
        let want = rich(50, 1);
        epoch(&cache, split(0), &want, Encoding::default()).await;
        put(&cache.snapshot(&fp(2)), split(0), &[rich(50, 2)], Encoding::default()).await;
        let records = site.named(".commit").await;
        assert_eq!(records.len(), 2);
        let own = site.get(&records[0]).await;
        let old = String::from_utf8(own.clone()).unwrap().replace("\"kind\":\"part\"", "\"kind\":\"chunk\"");
        for bad in
            [site.get(&records[1]).await, old.into_bytes(), own[..own.len() / 2].to_vec(), b"junk".to_vec()]
        {
            // In place of the newest record of the split.
            let newest =
                site.named("1/parts").await.into_iter().filter(|n| n.ends_with(".commit")).max().unwrap();
            site.put(&newest, bad).await;
            let fresh = site.open().await;
            for manifest in site.named("manifest-").await {
                site.delete(&manifest).await;
            }
            assert!(fresh.snapshot(&fp(1)).index().await.unwrap().is_empty());
            assert!(!epoch(&fresh, split(0), &want, Encoding::default()).await);
            assert!(epoch(&site.open().await, split(0), &want, Encoding::default()).await);
        }
    }
}

#[tokio::test]
async fn manifests_are_expendable() {
    for site in Site::all() {
        let cache = site.open().await;
        let want = rich(20, 1);
        for i in 0..10 {
            epoch(&cache, split(i), &want, Encoding::default()).await;
        }
        cache.snapshot(&fp(1)).fold().await.unwrap();
        let manifests = site.named("manifest-").await;
        assert_eq!(manifests.len(), 2);
        let newest = manifests.last().unwrap();
        let whole = site.get(newest).await;
        for cut in [0, 1, 50, whole.len() / 2, whole.len() - 1] {
            site.put(newest, whole[..cut].to_vec()).await;
            let fresh = site.open().await;
            assert_eq!(fresh.snapshot(&fp(1)).index().await.unwrap().len(), 10, "cut at {cut}");
            assert_eq!(fresh.verify(None).await.unwrap().damaged.len(), 1);
        }
        // A manifest that names a missing part.
        site.put(newest, whole).await;
        let index = cache.snapshot(&fp(1)).index().await.unwrap();
        site.delete(&index.get(&split(3)).unwrap().path).await;
        let fresh = site.open().await;
        assert_eq!(fresh.snapshot(&fp(1)).index().await.unwrap().len(), 9);
        assert!(!epoch(&fresh, split(3), &want, Encoding::default()).await);
        // No manifest at all.
        for manifest in site.named("manifest-").await {
            site.delete(&manifest).await;
        }
        let fresh = site.open().await;
        let snapshot = fresh.snapshot(&fp(1));
        assert_eq!(snapshot.index().await.unwrap().len(), 10);
        epoch(&fresh, split(11), &want, Encoding::default()).await;
        assert_eq!(snapshot.index().await.unwrap().description().unwrap().name, "test");
        assert_eq!(site.open().await.list().await.unwrap()[0].name, "test");
    }
}

async fn faulty(faults: &Faults) -> (Arc<Cache>, String) {
    let root = memory_root();
    let options = CacheOptions { memory_tier_bytes: 0, block_bytes: 4000, ..hasty() };
    let cache = open_faulty(&root, faults, options, SystemClock::shared()).await.unwrap();
    (cache, root)
}

#[tokio::test]
async fn transient_faults_are_retried() {
    let want = rich(600, 1);
    for encoding in [encoding("arrow/none"), encoding("parquet/none")] {
        for op in [Op::Put, Op::Get, Op::List, Op::Delete, Op::Any] {
            for (skip, fault) in (0..12).flat_map(|s| {
                [
                    (s, Fault::Error("503 SlowDown")),
                    (s, Fault::Error("500 Internal Server Error")),
                    (s, Fault::LostAnswer),
                    (s, Fault::Cut(700)),
                    (s, Fault::Short(700)),
                    (s, Fault::Flip(700)),
                ]
            }) {
                let content = matches!(fault, Fault::Short(_) | Fault::Flip(_));
                if content && op != Op::Get {
                    continue;
                }
                let faults = Faults::new();
                let (cache, _) = faulty(&faults).await;
                let snapshot = cache.snapshot(&fp(1));
                let rule = Rule::new(op, fault.clone()).skip(skip);
                // Wrong content is transient only where a checksum detects it.
                faults.add(if content { rule.on(".arrow").skip(0) } else { rule });
                let meta = put(&snapshot, split(0), std::slice::from_ref(&want), encoding).await;
                for _ in 0..3 {
                    assert_same(&read(&snapshot, &meta).await.unwrap(), &want);
                }
                assert_eq!(snapshot.index().await.unwrap().len(), 1);
            }
        }
    }
}

#[tokio::test]
async fn a_permanent_failure_is_an_error_in_time() {
    let want = rich(600, 1);
    let faults = Faults::new();
    let (cache, root) = faulty(&faults).await;
    let snapshot = cache.snapshot(&fp(1));
    let meta = put(&snapshot, split(0), std::slice::from_ref(&want), Encoding::default()).await;
    faults.add(Rule::new(Op::Any, Fault::Error("503 SlowDown")).always());
    let unavailable = |e: &caju_types::Error| assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    unavailable(&read(&snapshot, &meta).await.unwrap_err());
    unavailable(&snapshot.index().await.unwrap_err());
    let schema = want.schema();
    unavailable(
        &snapshot.put(split(1), &describe(), Arc::clone(&schema), Encoding::default()).await.unwrap_err(),
    );
    // The retry budget is spent: failures are quick now.
    let before = faults.log().len();
    for _ in 0..30 {
        unavailable(&snapshot.index().await.unwrap_err());
    }
    assert!(faults.log().len() - before < 60, "{}", faults.log().len() - before);
    faults.clear();
    // The store works again, and a refused put has left nothing that blocks another one.
    assert_same(&read(&snapshot, &meta).await.unwrap(), &want);
    put(&snapshot, split(1), std::slice::from_ref(&want), Encoding::default()).await;

    // A full disk in the middle of a part.
    for op in [Op::Put, Op::Upload, Op::Piece, Op::Complete] {
        let mut part = writer(&snapshot, split(2), &wide(1, 8, 0).schema(), Encoding::default()).await;
        faults.add(Rule::new(op, Fault::NoSpace).on("/parts/").always());
        let mut result = Ok(());
        for i in 0..8 {
            result = part.write(&wide(1 << 19, 8, i)).await;
            if result.is_err() {
                break;
            }
        }
        let error = match result {
            Err(e) => {
                part.abort().await;
                e
            }
            Ok(()) => part.finish(facts(8 << 19)).await.unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{op:?}: {error}");
        faults.clear();
        let left = objects(&root).await;
        assert_eq!(left.iter().filter(|o| o.ends_with(".arrow")).count(), 2, "{op:?}: {left:?}");
        assert_eq!(left.iter().filter(|o| o.contains("claims")).count(), 0, "{op:?}: {left:?}");
    }
    cache.close(Duration::from_secs(5)).await.unwrap();
}

#[tokio::test]
async fn silence_ends_at_the_deadline() {
    let faults = Faults::new();
    let clock = Arc::new(ManualClock::default());
    let root = memory_root();
    let options = CacheOptions { attempts: 1, ..CacheOptions::default() };
    let cache = open_faulty(&root, &faults, options, Arc::clone(&clock) as _).await.unwrap();
    faults.add(Rule::new(Op::List, Fault::Silence));
    let snapshot = cache.snapshot(&fp(1));
    let (result, ()) = tokio::join!(snapshot.index(), async {
        faults.wait_fired(1).await;
        clock.advance(Duration::from_secs(61));
    });
    let e = result.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::DeadlineExceeded, "{e}");
    assert!(e.message().contains("did not answer within"), "{e}");
    assert!(snapshot.index().await.unwrap().is_empty());
}

/// Five of a hundred requests fail: all results are still correct.
#[tokio::test]
async fn random_faults() {
    let want = rich(300, 1);
    for seed in 0..50 {
        let faults = Faults::new();
        let (cache, root) = faulty(&faults).await;
        faults.at_random(50, seed + 1);
        let snapshot = cache.snapshot(&fp(1));
        for i in 0..10 {
            let meta =
                put(&snapshot, split(i), std::slice::from_ref(&want), Encoding::ALL[seed as usize % 7]).await;
            assert_same(&read(&snapshot, &meta).await.unwrap(), &want);
        }
        faults.clear();
        let parts = objects(&root).await.into_iter().filter(|o| o.ends_with(".commit")).count();
        assert_eq!((snapshot.index().await.unwrap().len(), parts), (10, 10));
    }
}

/// Damage over the S3 protocol: an error for a range beyond a short object is damage, not a failure of the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_parts_over_the_wire() {
    let server = caju_testkit::s3::S3Server::start(&["bucket"]).await.unwrap();
    let stores = Stores::new(server.options(), None).unwrap();
    let options = CacheOptions { memory_tier_bytes: 0, read_bytes: 1 << 20, block_bytes: 500_000, ..hasty() };
    let clock = SystemClock::shared();
    let cache = Cache::open(&stores, "s3://bucket/c", options, clock, writer_id()).await.unwrap();
    let want: Vec<_> = (0..8).map(|i| wide(50, 10_000, i)).collect();
    for encoding in [encoding("arrow/none"), encoding("parquet/none")] {
        let snapshot = cache.snapshot(&fp(encoding.format as u128));
        let mut meta = put(&snapshot, split(0), &want, encoding).await;
        for step in 0..8 {
            let file = server.bucket("bucket").join("c/v1").join(&meta.path);
            let good = std::fs::read(&file).unwrap();
            let at = good.len() * (2 * step + 1) / 16;
            let mut bad = good.clone();
            match step % 2 {
                0 => bad.truncate(at),
                _ => bad[at] ^= 1,
            }
            std::fs::write(&file, bad).unwrap();
            let e = read(&snapshot, &meta).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::DataLoss, "{encoding} {step}: {e}");
            snapshot.discard(&meta, e.message()).await.unwrap();
            assert!(snapshot.index().await.unwrap().is_empty());
            meta = put(&snapshot, split(0), &want, encoding).await;
            assert_eq!(read(&snapshot, &meta).await.unwrap().num_rows(), 400);
        }
    }
}

/// The text of an error has the name of the object and more, such as the time that it took.
#[tokio::test]
async fn an_error_that_only_looks_like_that_of_a_short_object_costs_no_part() {
    let want = rich(600, 1);
    let faults = Faults::new();
    let (cache, _) = faulty(&faults).await;
    let snapshot = cache.snapshot(&fp(1));
    let meta = put(&snapshot, split(0), std::slice::from_ref(&want), Encoding::default()).await;
    let text = "error sending request for url (http://host/long-range/part), after 10 retries in 1.416s: 503";
    faults.add(Rule::new(Op::Get, Fault::Error(text)).on("/parts/").always());
    let e = read(&snapshot, &meta).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
    faults.clear();
    assert_same(&read(&snapshot, &meta).await.unwrap(), &want);
}
