//! Helpers of the cache tests.
#![allow(
    dead_code,
    unused_imports,
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::cast_possible_truncation
)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::types::{Float32Type, Int32Type};
use arrow_array::*;
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use caju_cache::*;
use caju_runtime::{Clock, Stores, SystemClock};
pub use caju_testkit::clock::ManualClock;
use caju_testkit::s3::S3Server;
use caju_types::{Fingerprint, SplitKey};
use futures::TryStreamExt;

static NAMES: AtomicU64 = AtomicU64::new(0);

/// A root in memory that no other test uses.
pub fn memory_root() -> String {
    format!("memory://cache-test-{}-{}/a/root", std::process::id(), NAMES.fetch_add(1, Ordering::Relaxed))
}

/// An S3 server on a thread of its own: it outlives every test's runtime.
fn start_server(bucket: &'static str) -> S3Server {
    let start = move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let server = runtime.block_on(S3Server::start(&[bucket])).unwrap();
        std::mem::forget(runtime);
        server
    };
    std::thread::spawn(start).join().unwrap()
}

/// The S3 server of this process.
pub fn server() -> &'static S3Server {
    static SERVER: OnceLock<S3Server> = OnceLock::new();
    SERVER.get_or_init(|| start_server("bucket"))
}

/// The S3 server of this process whose requests tests make fail: its fault is that of all tests.
pub fn faulty_server() -> &'static S3Server {
    static SERVER: OnceLock<S3Server> = OnceLock::new();
    SERVER.get_or_init(|| start_server("faulty"))
}

/// A root in an S3 server that no other test uses.
pub fn wire_root() -> String {
    format!("s3://bucket/test-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// A root in the faulty S3 server that no other test uses.
pub fn faulty_wire_root() -> String {
    format!("s3://faulty/test-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// The stores that can open a root.
pub fn stores_of(root: &str) -> Stores {
    if root.starts_with("s3://faulty/") {
        return Stores::new(faulty_server().options(), None).unwrap();
    }
    if root.starts_with("s3:") { Stores::new(server().options(), None).unwrap() } else { Stores::default() }
}

pub fn writer_id() -> String {
    format!("writer-{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

pub fn fp(n: u128) -> Fingerprint {
    Fingerprint(n)
}

pub fn split(n: u128) -> SplitKey {
    SplitKey(0xabc0 + n)
}

pub async fn open(root: &str) -> Arc<Cache> {
    open_with(root, CacheOptions::default()).await
}

pub async fn open_with(root: &str, options: CacheOptions) -> Arc<Cache> {
    Cache::open(&stores_of(root), root, options, SystemClock::shared(), writer_id()).await.unwrap()
}

/// Rows with numbers, strings, lists, structs, tensors, booleans and nulls, made from a seed.
pub fn rich(rows: usize, seed: u64) -> RecordBatch {
    let at = |i: usize| caju_types::mix64(seed, i as u64);
    let null = |i: usize, k: u64| at(i) % k == 0;
    let ints = Int64Array::from_iter((0..rows).map(|i| (!null(i, 5)).then_some(at(i) as i64)));
    let floats = Float32Array::from_iter_values((0..rows).map(|i| f32::from_bits(at(i) as u32)));
    let text =
        StringArray::from_iter((0..rows).map(|i| (!null(i, 7)).then(|| "ü".repeat((at(i) % 9) as usize))));
    let bytes =
        BinaryArray::from_iter_values((0..rows).map(|i| at(i).to_le_bytes().repeat((at(i) % 40) as usize)));
    let bools = BooleanArray::from_iter((0..rows).map(|i| (!null(i, 3)).then_some(at(i) % 2 == 0)));
    let mut lists = ListBuilder::new(StringBuilder::new());
    for i in 0..rows {
        for k in 0..at(i) % 4 {
            lists.values().append_option((k % 3 != 1).then(|| format!("{k}-{}", at(i))));
        }
        lists.append(!null(i, 6));
    }
    let inner = Field::new_list_field(DataType::Float32, false);
    let values: Float32Array = (0..rows * 6).map(|i| Some(i as f32)).collect();
    let tensor = FixedSizeListArray::new(Arc::new(inner.clone()), 6, Arc::new(values), None);
    let tensor_field = Field::new("tensor", DataType::FixedSizeList(Arc::new(inner), 6), false)
        .with_metadata(HashMap::from([
            ("ARROW:extension:name".to_string(), "arrow.fixed_shape_tensor".to_string()),
            ("ARROW:extension:metadata".to_string(), r#"{"shape":[2,3]}"#.to_string()),
        ]));
    let part = StructArray::new(
        vec![Field::new("a", DataType::Int32, true), Field::new("b", DataType::Utf8, true)].into(),
        vec![
            Arc::new(Int32Array::from_iter((0..rows).map(|i| (!null(i, 4)).then_some(i as i32)))),
            Arc::new(StringArray::from_iter((0..rows).map(|i| Some(i.to_string())))),
        ],
        Some(NullBuffer::from_iter((0..rows).map(|i| !null(i, 8)))),
    );
    let shades: DictionaryArray<Int32Type> =
        (0..rows).map(|i| (!null(i, 9)).then_some(["red", "green", "blue"][(at(i) % 3) as usize])).collect();
    let columns: Vec<(Field, ArrayRef)> = vec![
        (Field::new("ints", DataType::Int64, true), Arc::new(ints)),
        (Field::new("floats", DataType::Float32, false), Arc::new(floats)),
        (Field::new("text", DataType::Utf8, true), Arc::new(text)),
        (Field::new("bytes", DataType::Binary, false), Arc::new(bytes)),
        (Field::new("bools", DataType::Boolean, true), Arc::new(bools)),
        (Field::new("lists", DataType::new_list(DataType::Utf8, true), true), Arc::new(lists.finish())),
        (tensor_field, Arc::new(tensor)),
        (Field::new("part", part.data_type().clone(), true), Arc::new(part)),
        (Field::new("shades", shades.data_type().clone(), true), Arc::new(shades)),
    ];
    let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let schema = Schema::new(fields).with_metadata(HashMap::from([("kept".into(), "yes".into())]));
    RecordBatch::try_new(Arc::new(schema), arrays).unwrap()
}

/// Rows of one column of numbers.
pub fn numbers(range: std::ops::Range<i64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from_iter_values(range));
    RecordBatch::try_from_iter([("n", column)]).unwrap()
}

/// Rows of incompressible floats, `row_bytes` each.
pub fn wide(rows: usize, row_bytes: usize, seed: u64) -> RecordBatch {
    let n = row_bytes / 4;
    let values = (0..rows * n).map(|i| Some(caju_types::mix64(seed, i as u64) as u32 as f32));
    let values = PrimitiveArray::<Float32Type>::from_iter(values);
    let field = Arc::new(Field::new_list_field(DataType::Float32, true));
    let list: ArrayRef = Arc::new(FixedSizeListArray::new(field, n as i32, Arc::new(values), None));
    RecordBatch::try_from_iter([("wide", list)]).unwrap()
}

pub fn describe() -> SnapshotDescription {
    SnapshotDescription { name: "test".into(), prefix: "range > map".into(), ..Default::default() }
}

pub fn facts(rows: u64) -> PartFacts {
    PartFacts { rows, skipped: 0, source_bytes: 100, compute_cpu_s: 1.0 }
}

pub fn encoding(text: &str) -> Encoding {
    text.parse().unwrap()
}

/// The writer of a split that no other process writes.
pub async fn writer(
    snapshot: &Snapshot,
    key: SplitKey,
    schema: &SchemaRef,
    encoding: Encoding,
) -> PartWriter {
    match snapshot.put(key, &describe(), Arc::clone(schema), encoding).await.unwrap() {
        PutOutcome::Writer(w) => *w,
        other => panic!("{other:?}"),
    }
}

/// Writes a part from batches.
pub async fn put(
    snapshot: &Snapshot,
    key: SplitKey,
    batches: &[RecordBatch],
    encoding: Encoding,
) -> Arc<PartMeta> {
    let mut writer = writer(snapshot, key, &batches[0].schema(), encoding).await;
    for batch in batches {
        writer.write(batch).await.unwrap();
    }
    let rows = batches.iter().map(|b| b.num_rows() as u64).sum();
    match writer.finish(facts(rows)).await.unwrap() {
        Committed::Ours(meta) => meta,
        lost => panic!("{lost:?}"),
    }
}

/// All rows of a part in one batch.
pub async fn read(snapshot: &Snapshot, meta: &PartMeta) -> caju_types::Result<RecordBatch> {
    read_with(snapshot, meta, ReadOptions::default()).await
}

pub async fn read_with(
    snapshot: &Snapshot,
    meta: &PartMeta,
    options: ReadOptions,
) -> caju_types::Result<RecordBatch> {
    let reader = snapshot.open_part(meta, options).await?;
    let schema = Arc::clone(reader.schema());
    let batches: Vec<_> = reader.try_collect().await?;
    Ok(arrow::compute::concat_batches(&schema, &batches).unwrap())
}

/// Asserts that two batches are equal. Floats are compared by their bits, as rows from a cache must be those that are computed.
pub fn assert_same(a: &RecordBatch, b: &RecordBatch) {
    assert_eq!(a.schema(), b.schema());
    assert_eq!(a.num_rows(), b.num_rows());
    for (x, y) in a.columns().iter().zip(b.columns()) {
        if let (Some(x), Some(y)) =
            (x.as_any().downcast_ref::<Float32Array>(), y.as_any().downcast_ref::<Float32Array>())
        {
            let bits = |a: &Float32Array| a.values().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(x), bits(y));
        } else {
            assert_eq!(x, y);
        }
    }
}

/// A cache over a store with injected faults. Several may share one `(root, faults)`.
pub async fn open_faulty(
    root: &str,
    faults: &caju_testkit::faulty::Faults,
    options: CacheOptions,
    clock: Arc<dyn Clock>,
) -> caju_types::Result<Arc<Cache>> {
    let inner = stores_of(root).resolve(root).unwrap();
    let stores = Stores::default();
    let faulty = caju_testkit::faulty::faulty_store(inner.store, faults.clone());
    stores.register(&inner.url.root(), Arc::new(faulty)).unwrap();
    Cache::open(&stores, root, options, clock, writer_id()).await
}

/// The names of all objects below a root.
pub async fn objects(root: &str) -> Vec<String> {
    let at = stores_of(root).resolve(root).unwrap();
    let listed: Vec<_> = at.store.list(Some(&at.path)).try_collect().await.unwrap();
    let mut names: Vec<_> = listed
        .into_iter()
        .map(|o| {
            o.location.as_ref().strip_prefix(at.path.as_ref()).unwrap().trim_start_matches('/').to_string()
        })
        .collect();
    names.sort();
    names
}

/// Lets spawned tasks run until they wait for something.
pub async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Options with retries that take no time.
pub fn hasty() -> CacheOptions {
    CacheOptions { retry_base: Duration::from_micros(10), ..CacheOptions::default() }
}
