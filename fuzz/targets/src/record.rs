//! What is written about parts: manifests, commit records, claims, leases, sets, uses, plans, listings and saves.
//!
//! The first byte of an input names the kind ([`KINDS`]), the rest is the record, which is sealed here unless it begins
//! with a seal: a seal is a checksum, not a secret. The record lies where its kind lies in a cache that has one part, and
//! everything that reads records runs over it: jobs, `caju cache ls`, `inspect`, `verify` and `gc`. A bad record may hide
//! parts; what is still listed is read, whole or with an error.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use caju_cache::{
    Cache, CacheOptions, Encoding, PutOutcome, ReadOptions, SaveDescription, SnapshotDescription,
    SourceListing, read_plan_record,
};
use caju_runtime::SystemClock;
use caju_types::{Fingerprint, Result, SplitKey, hash128};
use futures::TryStreamExt;
use object_store::ObjectStoreExt;

use crate::environment::{CHUNK_BYTES, STORES, block_on, put, seeds};

/// The snapshot that records are about.
pub const OF: Fingerprint = Fingerprint(0xf0f0);
/// The split that records are about.
pub const SPLIT: SplitKey = SplitKey(0x5eed);
/// A split that has no part.
const OTHER: SplitKey = SplitKey(0x0dd);

/// First bytes of inputs, and where such a record lies; `F` is the snapshot, `S` the split.
const KINDS: [(u8, &str); 9] = [
    (b'm', "v1/F/manifest-00000001.json"),
    (b'c', "v1/F/parts/S-1.commit"),
    (b'l', "v1/F/claims/S-1.json"),
    (b's', "v1/F/set.json"),
    (b'u', "v1/F/uses/fuzz-2.json"),
    (b'w', "v1/writers/fuzz-2.json"),
    (b'p', "v1/plans/F.json"),
    (b'i', "v1/listings/{}.json"),
    (b'v', "save.json"),
];

/// One input's root: the store in memory is shared by the whole process.
static ROOTS: AtomicU64 = AtomicU64::new(0);

/// Where the part lies whose commit record is the seed, and its file.
static PART: LazyLock<(String, Vec<u8>)> = LazyLock::new(|| {
    let (_, data) = seeds("part").into_iter().find(|(name, _)| name == "good-arrow-none").unwrap();
    let len = usize::try_from(u32::from_le_bytes(data[1..5].try_into().unwrap())).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&data[5..5 + len]).unwrap();
    (record["path"].as_str().unwrap().to_string(), data[5 + len..].to_vec())
});

pub(crate) fn one(data: &[u8]) {
    let Some((kind, record)) = data.split_first() else { return };
    let Some((_, path)) = KINDS.iter().find(|(k, _)| k == kind) else { return };
    // A listing is named by its source, which is `{}` here.
    let path = path
        .replace("/F", &format!("/{OF}"))
        .replace("/S-", &format!("/{SPLIT}-"))
        .replace("{}", &format!("{:032x}", hash128(b"{}")));
    let root = format!("memory://fuzz/record-{}", ROOTS.fetch_add(1, Ordering::Relaxed));
    block_on(async {
        put(&format!("{root}/v1/{}", PART.0), &PART.1).await;
        put(&format!("{root}/{path}"), &sealed(record)).await;
        // What is refused is refused with an error; rows are checked below.
        let _refused = everything(&root).await;
        clear(&root).await;
    });
}

fn sealed(record: &[u8]) -> Vec<u8> {
    match record.strip_prefix(b"{") {
        Some(rest) if !record.starts_with(b"{\"seal\":") => {
            [format!("{{\"seal\":\"{:032x}\",", hash128(rest)).as_bytes(), rest].concat()
        }
        _ => record.to_vec(),
    }
}

async fn everything(root: &str) -> Result<()> {
    let options = CacheOptions {
        max_block_bytes: CHUNK_BYTES,
        attempts: 1,
        retry_base: Duration::from_micros(1),
        lease_ttl: Duration::from_millis(1),
        orphan_grace: Duration::ZERO,
        ..CacheOptions::default()
    };
    let cache = Cache::open(&STORES, root, options, SystemClock::shared(), "fuzz".into()).await?;
    let snapshot = cache.snapshot(&OF);
    if let Ok(index) = snapshot.index().await {
        for (_, meta) in index.iter() {
            let Ok(mut part) = snapshot.open_part(meta, ReadOptions::default()).await else { continue };
            let mut rows = 0;
            let ended = loop {
                match part.try_next().await {
                    Ok(Some(batch)) => rows += batch.num_rows() as u64,
                    Ok(None) => break true,
                    Err(_) => break false,
                }
            };
            assert!(!ended || rows == meta.rows, "{rows} rows of a part of {}", meta.rows);
        }
    }
    let _refused = snapshot.set().await;
    let _refused = cache.list().await;
    let _refused = cache.inspect(&OF).await;
    let _refused = cache.usage().await;
    let _refused = cache.verify(None).await;
    for split in [SPLIT, OTHER] {
        let schema = std::sync::Arc::new(arrow_schema::Schema::empty());
        let encoding: Encoding = "arrow/none".parse()?;
        let describe = SnapshotDescription::default();
        if let Ok(PutOutcome::Writer(writer)) = snapshot.put(split, &describe, schema, encoding).await {
            writer.abort().await;
        }
    }
    let _refused = snapshot.fold().await;
    let _refused = cache.gc(false).await;
    let _refused = read_plan_record(&STORES, root, OF).await;
    let _refused = SourceListing::load(&STORES, root, &serde_json::json!({})).await;
    let _refused = SaveDescription::load(&STORES, root).await;
    cache.close(Duration::from_secs(5)).await
}

async fn clear(root: &str) {
    let at = STORES.resolve(root).unwrap();
    let all: Vec<_> = at.store.list(Some(&at.path)).try_collect().await.unwrap();
    for object in all {
        at.store.delete(&object.location).await.unwrap();
    }
}
