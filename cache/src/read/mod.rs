//! Reading a part: checked blocks, decoded as a stream of record batches.

mod ahead;
mod arrow;
pub(crate) mod blocks;
mod lengths;
mod parquet;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use caju_runtime::{Caught, caught};
use caju_types::{Error, ErrorKind, Result};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use tokio::sync::Semaphore;

use crate::Cache;
use crate::lease::Hold;
use crate::record::PartMeta;
use crate::snapshot::SnapshotState;
pub(crate) use arrow::decode_file as decode_arrow;
use blocks::{Blocks, damaged};
use caju_autocache::Format;

/// Requests for one part that are under way at once.
const PREFETCH: usize = 4;
/// The least number of requests for parts that a worker has under way, if there is so much to read.
const LEAST_REQUESTS: usize = 16;

/// How a part is read.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// The columns wanted, by their places, in this order; all if absent.
    pub projection: Option<Vec<usize>>,
    /// Only these of the part's chunks ([`PartMeta::chunks`]); all if absent.
    pub chunks: Option<std::ops::Range<usize>>,
    /// Requests in flight; one reader holds about this many requests' bytes. A store gives one connection a part of its
    /// bandwidth only.
    pub prefetch: usize,
    /// Of several readers: the requests that they have under way at once, whose answers nobody has to have taken. Without it
    /// each has as many as `prefetch` says.
    pub turns: Option<Arc<Semaphore>>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { projection: None, chunks: None, prefetch: PREFETCH, turns: None }
    }
}

/// The rows of one part, as a stream of record batches in the order in which they were written.
///
/// Every block is checked before anything in it is decoded, so that a row that comes out is a row that was
/// written. Decoding validates all the same: checksums are no secret, and a part may come from anybody. At the end the rows are counted: a stream that ends without an error was the whole part.
pub struct PartReader {
    meta: Arc<PartMeta>,
    schema: SchemaRef,
    batches: BoxStream<'static, Result<RecordBatch>>,
    /// Requests whose answers nobody has taken yet; none where the file is mapped.
    left: Option<Arc<AtomicUsize>>,
    rows: u64,
    /// The rows that there must be.
    expected: u64,
    ended: bool,
    /// Where the reading is counted; none for tools.
    counted: Option<Arc<SnapshotState>>,
    /// Keeps the snapshot from being evicted while it is read.
    _hold: Hold,
}

impl std::fmt::Debug for PartReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartReader")
            .field("path", &self.meta.path)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}

impl PartReader {
    pub(crate) async fn open(
        cache: &Arc<Cache>,
        meta: &PartMeta,
        options: ReadOptions,
        counted: Option<Arc<SnapshotState>>,
    ) -> Result<Self> {
        let meta = Arc::new(meta.clone());
        let hold = cache.hold_for_reading(meta.fingerprint);
        let expected = match &options.chunks {
            None => meta.rows,
            Some(wanted) => meta
                .chunks
                .get(wanted.clone())
                .ok_or_else(|| Error::internal(format!("part {} has no chunks {wanted:?}", meta.path)))?
                .iter()
                .try_fold(0u64, |sum, rows| sum.checked_add(*rows))
                .ok_or_else(|| damaged(&meta, "its record contradicts itself"))?,
        };
        let blocks = Arc::new(Blocks::open(cache, &meta).await.map_err(|e| gone(&meta, e))?);
        let mapped = blocks.is_mapped();
        // Decoders may panic on bytes that make no sense: the part is damaged then, and is replaced.
        let opening = async {
            match meta.encoding.format {
                Format::Arrow => arrow::open(blocks, options).await,
                Format::Parquet => parquet::open(blocks, options).await,
            }
        };
        let opened = caught("its decoder", opening).await;
        let opened = opened.unwrap_or_else(|e| Err(damaged(&meta, e.message())));
        let Opened { schema, batches, left } = opened.map_err(|e| gone(&meta, e))?;
        let of = Arc::clone(&meta);
        let batches = Caught::new(batches, move |panic: &str| damaged(&of, panic)).boxed();
        let left = (!mapped).then_some(left);
        Ok(Self { meta, schema, batches, left, rows: 0, expected, ended: false, counted, _hold: hold })
    }

    /// The schema of the batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The part.
    pub fn meta(&self) -> &Arc<PartMeta> {
        &self.meta
    }

    /// Requests that the rest of it can have under way at once, at most [`Cache::REQUESTS`]: towards its end a part takes
    /// less and less of what a store can give, and the next one should be asked for. None where the file is mapped.
    pub fn requests(&self) -> Option<usize> {
        self.left.as_ref().map(|left| left.load(Ordering::Relaxed).min(Cache::REQUESTS))
    }
}

impl Stream for PartReader {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let next = std::task::ready!(self.batches.as_mut().poll_next(cx));
        let item = match next {
            Some(Ok(batch)) => {
                self.rows += batch.num_rows() as u64;
                if self.rows <= self.expected {
                    return Poll::Ready(Some(Ok(batch)));
                }
                Some(Err(damaged(&self.meta, "it has more rows than its record says")))
            }
            Some(Err(e)) => Some(Err(gone(&self.meta, e))),
            None if self.rows == self.expected => {
                if let Some(state) = &self.counted {
                    state.used("", self.rows, self.meta.compute_cpu_s());
                }
                None
            }
            None => Some(Err(damaged(
                &self.meta,
                format!("it has {} rows, its record says {}", self.rows, self.expected),
            ))),
        };
        self.ended = true;
        Poll::Ready(item)
    }
}

impl Cache {
    /// Requests that a reader of a part has under way at most: what a part is worth of a store's bandwidth.
    pub const REQUESTS: usize = PREFETCH;

    /// Answers, of requests or of those to come, that who has so many requests under way has room for: as many again. What
    /// waits to be decoded would otherwise keep the store idle, wherever decoding takes about as long as fetching.
    pub const fn answers_at_once(requests: usize) -> usize {
        2 * requests
    }

    /// Requests for parts that who reads so many splits at once has under way. Also few readers have some: a store that is
    /// far away gives each request a small part of its bandwidth only.
    pub fn requests_at_once(readers: usize) -> usize {
        (readers * PREFETCH).max(LEAST_REQUESTS)
    }

    /// Bytes of parts that are kept in memory, and not asked for again; none where parts are mapped.
    pub fn memory_tier_bytes(&self) -> u64 {
        if self.maps() { 0 } else { self.options.memory_tier_bytes }
    }

    /// Whether parts are mapped, but for single ones of which the kernel grants no lease.
    pub(crate) fn maps(&self) -> bool {
        self.options.mmap && self.root.is_mappable()
    }

    /// Requests that reading this part has under way; none where parts are mapped.
    pub fn requests_for(&self, part: &PartMeta) -> Option<usize> {
        if self.maps() {
            return None;
        }
        let requests = part.bytes.div_ceil(self.options.read_bytes.max(1));
        Some(usize::try_from(requests).unwrap_or(Self::REQUESTS).clamp(1, Self::REQUESTS))
    }
}

/// A part whose footer was read.
struct Opened {
    /// The schema after projection.
    schema: SchemaRef,
    batches: BoxStream<'static, Result<RecordBatch>>,
    /// Requests whose answers nobody has taken yet.
    left: Arc<AtomicUsize>,
}

/// Runs a library's code over what a file says. Libraries panic over some files that were made by hand.
fn guarded<T, E: std::fmt::Display>(meta: &PartMeta, work: impl FnOnce() -> Result<T, E>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(damaged(meta, e)),
        Err(_) => Err(damaged(meta, "its metadata make no sense")),
    }
}

fn gone(meta: &PartMeta, error: Error) -> Error {
    if error.kind() == ErrorKind::NotFound {
        return Error::not_found(format!("part {} is gone: it was evicted or removed", meta.path));
    }
    error
}

/// Whether a file says that it is the part that its record says.
fn check_tags<'a>(meta: &PartMeta, tag: impl Fn(&str) -> Option<&'a str>) -> Result<()> {
    let want = [
        (crate::TAG_VERSION, crate::layout::VERSION.to_string()),
        (crate::TAG_FINGERPRINT, meta.fingerprint.to_string()),
        (crate::TAG_SPLIT, meta.split.to_string()),
        (crate::TAG_ATTEMPT, meta.attempt.clone()),
    ];
    for (key, want) in want {
        let is = tag(key);
        if is != Some(want.as_str()) {
            let is = is.unwrap_or("nothing");
            return Err(damaged(meta, format!("it is another file: its {key} is {is} instead of {want}")));
        }
    }
    Ok(())
}

/// The schema as the writer was given it: the file's own, or, where that lacks dictionaries, the tagged one.
fn original_schema(meta: &PartMeta, found: &SchemaRef, tagged: Option<&str>) -> Result<SchemaRef> {
    let schema = match tagged {
        None => Arc::clone(found),
        Some(text) => Arc::new(serde_json::from_str::<Schema>(text).map_err(|e| damaged(meta, e))?),
    };
    if crate::schema::schema_hash(&schema) != meta.schema_hash {
        return Err(damaged(meta, "its schema is not the one that its record names"));
    }
    Ok(schema)
}
