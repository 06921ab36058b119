//! What targets share: a runtime, threads for computing, objects in memory, and the seeds.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use caju_kernels::{Limits, Registry};
use caju_runtime::{Access, CpuPool, IoCounters, Stores};
use caju_sources::{SourceContext, SourceLimits};
use object_store::ObjectStoreExt;
use tokio::runtime::{Builder, Runtime};

/// How long one input may take before it counts as a hang. Inputs are some KiB and take milliseconds; the rest is for
/// slow machines and unoptimised builds.
pub const DEADLINE: Duration = Duration::from_secs(30);

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap());

/// Threads for computing, as a worker has them.
pub(crate) static POOL: LazyLock<CpuPool> = LazyLock::new(|| CpuPool::new(2).unwrap());

/// The most memory that one chunk of work may ask for, and the largest record: below the defaults, so that a bound that
/// does not hold shows within [`MOST_BYTES`](crate::MOST_BYTES).
pub(crate) const CHUNK_BYTES: u64 = 64 << 20;
const RECORD_BYTES: u64 = 8 << 20;

/// All functions of expressions.
pub(crate) static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    let limits = Limits { chunk_bytes: CHUNK_BYTES, max_record_bytes: RECORD_BYTES, ..Limits::default() };
    Registry::new(limits)
});

/// What sources need. Nothing is remembered from one input to the next.
pub(crate) fn context() -> SourceContext {
    let context = SourceContext::new(Arc::clone(&STORES), Arc::new(IoCounters::new()));
    context.with_limits(SourceLimits::from_limits(REGISTRY.limits()))
}

/// Stores that reach objects in memory and nothing else: what an input names is not on this machine.
pub(crate) static STORES: LazyLock<Arc<Stores>> = LazyLock::new(|| {
    let access = Access { read: Vec::new(), write: vec!["memory://fuzz".into()] };
    Arc::new(Stores::new(BTreeMap::new(), Some(access)).unwrap())
});

/// Runs a future to its end.
///
/// # Panics
/// If it takes longer than [`DEADLINE`].
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let bounded = async { tokio::time::timeout(DEADLINE, future).await };
    RUNTIME.block_on(bounded).unwrap_or_else(|_| panic!("no answer within {DEADLINE:?}"))
}

/// Puts an object below `memory://fuzz`.
pub(crate) async fn put(url: &str, data: &[u8]) {
    let at = STORES.resolve(url).unwrap();
    at.store.put(&at.path, Bytes::copy_from_slice(data).into()).await.unwrap();
}

/// The folder of a target's seeds.
pub fn corpus(target: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../corpus")).join(target)
}

/// The seeds of a target, with their names, in the order of names.
///
/// # Panics
/// If there are none.
pub fn seeds(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = corpus(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut out: Vec<_> = entries
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()))
        .collect();
    assert!(!out.is_empty(), "{} has no seeds; see fuzz/README.md", folder.display());
    out.sort();
    out
}
