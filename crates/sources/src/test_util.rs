//! Helpers of the tests of sources.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::compute::concat_batches;
use arrow_array::RecordBatch;
use caju_pipeline::{DEFAULT_SPLIT_BYTES, FileFormat, FileSource, SourceDef, VersionRule};
use caju_runtime::{IoCounters, Stores};
use caju_types::{Error, ErrorKind, Result};
use futures::TryStreamExt;
use object_store::ObjectStoreExt;

use crate::context::{SourceContext, SourceLimits};
use crate::guard::read_split;
use crate::open::open_source;
use crate::source::{ReadOptions, SkipFn, Source};
use crate::split::Split;

pub(crate) fn context() -> SourceContext {
    SourceContext::new(Arc::new(Stores::default()), Arc::new(IoCounters::new()))
}

/// A context whose records have at most this many bytes.
pub(crate) fn context_of_records(max_record_bytes: u64) -> SourceContext {
    context().with_limits(SourceLimits { max_record_bytes, ..SourceLimits::default() })
}

/// Checks that an error says what is too large, and the option that allows more.
pub(crate) fn assert_names_max_record(error: &Error, url: &str, what: &str) {
    let want = format!("{url}: {what}; if such records belong here, raise --max-record");
    assert_eq!((error.kind(), error.message()), (ErrorKind::DataLoss, want.as_str()));
}

/// A folder in memory that no other test has.
pub(crate) fn fresh() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("memory://source-tests-{}/d", NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) async fn put(ctx: &SourceContext, url: &str, data: impl Into<bytes::Bytes>) {
    let at = ctx.stores.resolve(url).unwrap();
    at.store.put(&at.path, data.into().into()).await.unwrap();
}

pub(crate) fn def(format: FileFormat, path: &str) -> FileSource {
    FileSource {
        format,
        paths: vec![path.to_string()],
        version: VersionRule::Listed,
        split_bytes: DEFAULT_SPLIT_BYTES,
        shard: None,
    }
}

pub(crate) async fn open(ctx: &SourceContext, def: &FileSource) -> Result<Arc<dyn Source>> {
    open_source(&SourceDef::Files(def.clone()), ctx, None).await
}

pub(crate) async fn splits(source: &Arc<dyn Source>) -> Result<Vec<Split>> {
    source.splits().try_collect().await
}

/// All rows of a split in one batch; checks the caps and the known row count.
pub(crate) async fn rows(
    source: &Arc<dyn Source>,
    split: &Split,
    options: &ReadOptions,
) -> Result<Option<RecordBatch>> {
    // Splits travel between processes.
    let split: Split = serde_json::from_str(&serde_json::to_string(split).unwrap()).unwrap();
    let batches: Vec<RecordBatch> = read_split(&**source, &split, options).try_collect().await?;
    assert!(batches.iter().all(|b| b.num_rows() <= options.batch_rows && b.num_rows() > 0));
    let Some(first) = batches.first() else {
        assert_eq!(split.trimmed_rows().unwrap_or(0), 0);
        return Ok(None);
    };
    let all = concat_batches(&first.schema(), &batches).map_err(|e| Error::internal(e.to_string()))?;
    if options.skip.is_none()
        && let Some(n) = split.trimmed_rows()
    {
        assert_eq!(all.num_rows() as u64, n, "{}", split.describe());
    }
    Ok(Some(all))
}

/// All rows of all splits, in order; checks that the keys are unique.
pub(crate) async fn all_rows(
    ctx: &SourceContext,
    def: &FileSource,
    options: &ReadOptions,
) -> Result<Option<RecordBatch>> {
    source_rows(&open(ctx, def).await?, options).await
}

pub(crate) async fn source_rows(
    source: &Arc<dyn Source>,
    options: &ReadOptions,
) -> Result<Option<RecordBatch>> {
    let splits = splits(source).await?;
    let keys: std::collections::HashSet<_> = splits.iter().map(|s| s.key).collect();
    assert_eq!(keys.len(), splits.len(), "two splits share a key");
    let mut parts: Vec<RecordBatch> = Vec::new();
    for split in &splits {
        parts.extend(rows(source, split, options).await?);
    }
    let Some(first) = parts.first() else { return Ok(None) };
    Ok(Some(concat_batches(&first.schema(), &parts).unwrap()))
}

/// Runs a future to its end on a runtime of its own; for property tests.
pub(crate) fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Options with small batches.
pub(crate) fn small(batch_rows: usize, batch_bytes: usize) -> ReadOptions {
    ReadOptions { batch_rows, batch_bytes, ..ReadOptions::default() }
}

/// A sink for skipped rows, and their errors.
pub(crate) fn skips() -> (SkipFn, Arc<parking_lot::Mutex<Vec<String>>>) {
    let errors = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let sink = Arc::clone(&errors);
    (Arc::new(move |e: Error| sink.lock().push(e.to_string())), errors)
}
