//! The stream of a part's rows.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_runtime::{Caught, caught};
use caju_types::{Error, Result};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};

use super::blocks::Blocks;
use super::file::{Opened, damaged, gone};
use super::options::{PREFETCH, ReadOptions};
use super::{arrow, parquet};
use crate::context::Context;
use crate::lease::Hold;
use crate::record::PartMeta;
use crate::state::SnapshotState;
use caju_autocache::Format;

/// The rows of one part, as a stream of record batches in the order in which they were written.
///
/// Every block is checked before anything in it is decoded, so that every row of the stream was written by the part's
/// writer. Decoding validates, too: checksums are no secret, and anybody may have written the part. At the end the rows
/// are counted: a stream that ends without an error was the whole part.
pub struct PartReader {
    meta: Arc<PartMeta>,
    schema: SchemaRef,
    batches: BoxStream<'static, Result<RecordBatch>>,
    /// Requests whose answers were not taken yet; none where the file is mapped.
    pending: Option<Arc<AtomicUsize>>,
    rows: u64,
    /// The rows that the part's record promises.
    expected: u64,
    ended: bool,
    /// Where the rows are counted as used; none for tools.
    usage: Option<Arc<SnapshotState>>,
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
        ctx: &Arc<Context>,
        meta: &PartMeta,
        options: ReadOptions,
        usage: Option<Arc<SnapshotState>>,
    ) -> Result<Self> {
        let meta = Arc::new(meta.clone());
        let hold = ctx.hold_for_reading(meta.fingerprint);
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
        let blocks = Arc::new(Blocks::open(ctx, &meta).await.map_err(|e| gone(&meta, e))?);
        let mapped = blocks.is_mapped();
        // Decoders may panic on invalid bytes. The part is damaged then, and is replaced.
        let opening = async {
            match meta.encoding.format {
                Format::Arrow => arrow::open(blocks, options).await,
                Format::Parquet => parquet::open(blocks, options).await,
            }
        };
        let opened = caught("its decoder", opening).await;
        let opened = opened.unwrap_or_else(|e| Err(damaged(&meta, e.message())));
        let Opened { schema, batches, pending } = opened.map_err(|e| gone(&meta, e))?;
        let of = Arc::clone(&meta);
        let batches = Caught::new(batches, move |panic: &str| damaged(&of, panic)).boxed();
        let pending = (!mapped).then_some(pending);
        Ok(Self { meta, schema, batches, pending, rows: 0, expected, ended: false, usage, _hold: hold })
    }

    /// The schema of the batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The part.
    pub fn meta(&self) -> &Arc<PartMeta> {
        &self.meta
    }

    /// Requests that the remainder of the part can have in flight, at most [`Cache::REQUESTS`](crate::Cache::REQUESTS);
    /// none where the file is mapped. Towards its end a part takes less and less of a store's bandwidth: time to open the
    /// next part.
    pub fn requests(&self) -> Option<usize> {
        self.pending.as_ref().map(|pending| pending.load(Ordering::Relaxed).min(PREFETCH))
    }
}

impl Stream for PartReader {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
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
                if let Some(state) = &self.usage {
                    state.record_use("", self.rows, self.meta.compute_cpu_s());
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
