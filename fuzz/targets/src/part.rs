//! Stored parts in every encoding, through the cache's reader.
//!
//! An input is a byte that says how it is meant, the length of the part's record as four bytes (little endian), the
//! record as JSON, and the part's file. How: with bit 0 set, the record's lengths and checksums are made to fit the file,
//! as somebody would who means harm. Then any file is an error or the number of rows that the record says, and every
//! value in it can be read. Otherwise the file is checked against the record: an error, or exactly the rows that were
//! written.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use caju_cache::{Block, Cache, CacheOptions, PartMeta, ReadOptions, Snapshot};
use caju_runtime::SystemClock;
use caju_types::{Result, hash128};
use caju_wire::checksum::RowsChecksum;
use futures::TryStreamExt;
use xxhash_rust::xxh3::xxh3_64;

use crate::environment::{CHUNK_BYTES, STORES, block_on, put, seeds};

const ROOT: &str = "memory://fuzz/part";

/// The most of a record's bytes that are its own.
const MAX_RECORD_BYTES: usize = 1 << 16;

static CACHE: LazyLock<Arc<Cache>> = LazyLock::new(|| {
    let options = CacheOptions {
        memory_tier_bytes: 0,
        max_block_bytes: CHUNK_BYTES,
        attempts: 1,
        retry_base: Duration::from_micros(1),
        ..CacheOptions::default()
    };
    block_on(Cache::open(&STORES, ROOT, options, SystemClock::shared(), "fuzz".into())).unwrap()
});

/// The sums of the rows of whole seeds, by the record and the file's length.
type Goods = HashMap<(String, usize), (Vec<u8>, String)>;
static GOODS: Mutex<Option<Arc<Goods>>> = Mutex::new(None);

/// An input.
struct Input<'a> {
    forged: bool,
    record: &'a str,
    file: &'a [u8],
}

impl<'a> Input<'a> {
    fn parse(data: &'a [u8]) -> Option<Self> {
        let (how, rest) = data.split_first()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let len = usize::try_from(u32::from_le_bytes(*len)).ok().filter(|n| *n <= MAX_RECORD_BYTES)?;
        let (record, file) = rest.split_at_checked(len)?;
        Some(Self { forged: how & 1 == 1, record: std::str::from_utf8(record).ok()?, file })
    }
}

/// An input that is a whole part.
///
/// # Panics
/// If the record is longer than inputs may have it.
pub fn input(meta: &PartMeta, file: &[u8], forged: bool) -> Vec<u8> {
    let record = serde_json::to_vec(meta).unwrap();
    assert!(record.len() <= MAX_RECORD_BYTES);
    let len = u32::try_from(record.len()).unwrap().to_le_bytes();
    [&[u8::from(forged)][..], &len, &record, file].concat()
}

pub(crate) fn one(data: &[u8]) {
    let Some(input) = Input::parse(data) else { return };
    let Ok(mut meta) = serde_json::from_str::<PartMeta>(input.record) else { return };
    // A record that names another place is refused before it comes to reading it.
    meta.path = format!("{}/parts/{}-{}.{}", meta.fingerprint, meta.split, "fuzz", meta.encoding.format);
    if input.forged {
        meta.bytes = input.file.len() as u64;
        meta.blocks = vec![Block { bytes: meta.bytes, checksum: xxh3_64(input.file) }];
        meta.checksum = format!("{:032x}", hash128(input.file));
    }
    let Ok((rows, sum)) = read(&meta, input.file) else { return };
    assert_eq!(rows, meta.rows, "rows of a part that was read to its end");
    if input.forged {
        return;
    }
    let goods = goods();
    if let Some((good, expected)) = goods.get(&(input.record.to_string(), input.file.len())) {
        assert_eq!(sum, *expected, "the rows of a part; its file differs: {}", good != input.file);
    }
}

fn read(meta: &PartMeta, file: &[u8]) -> Result<(u64, String)> {
    let snapshot = CACHE.snapshot(&meta.fingerprint);
    block_on(read_from(&snapshot, meta, file))
}

async fn read_from(snapshot: &Snapshot, meta: &PartMeta, file: &[u8]) -> Result<(u64, String)> {
    put(&format!("{ROOT}/v1/{}", meta.path), file).await;
    let mut batches = snapshot.open_part(meta, ReadOptions::default()).await?;
    let mut sum = RowsChecksum::default();
    while let Some(batch) = batches.try_next().await? {
        sum.update(&batch)?;
    }
    Ok((sum.rows(), sum.hex()))
}

fn goods() -> Arc<Goods> {
    let mut goods = GOODS.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(goods.get_or_insert_with(|| {
        let mut found = Goods::new();
        for (name, data) in seeds("part") {
            let input = Input::parse(&data).unwrap_or_else(|| panic!("the seed {name} is no input"));
            let mut meta: PartMeta = serde_json::from_str(input.record).unwrap();
            meta.path = format!("{}/parts/{}-good.{}", meta.fingerprint, meta.split, meta.encoding.format);
            let (_, sum) = read(&meta, input.file).unwrap_or_else(|e| panic!("the good seed {name}: {e}"));
            found.insert((input.record.to_string(), input.file.len()), (input.file.to_vec(), sum));
        }
        Arc::new(found)
    }))
}
