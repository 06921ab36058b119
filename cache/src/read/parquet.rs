//! Parquet parts: the parquet crate's decoder over checked blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::task::Context;

use arrow_array::RecordBatch;
use arrow_schema::Schema;
use bytes::{Bytes, BytesMut};
use caju_runtime::{Caught, OrderedMutex, blocking, channel};
use caju_types::{Error, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::{AsyncFileReader, ParquetRecordBatchStreamBuilder};
use parquet::errors::ParquetError;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use tokio::sync::Semaphore;
use tokio_util::sync::PollSemaphore;

use super::blocks::Blocks;
use super::file::{Opened, check_tags, damaged, guarded, original_schema};
use super::options::ReadOptions;
use super::readahead::Readahead;
use crate::{locks, tags};

/// The bytes of a decoded batch, about. The decoder's buffers grow by doubling and are copied each time. That takes longer
/// than decoding where they do not fit a core's cache.
const BATCH_BYTES: u64 = 1 << 20;
/// The most rows of a decoded batch.
const MAX_BATCH_ROWS: u64 = 8192;
/// Decoded batches that may wait for the reader.
const DECODED_BATCHES: usize = 2;

/// Gives the parquet crate ranges of checked blocks. The first error is kept: the parquet crate would flatten it to text.
struct Reader {
    blocks: Arc<Blocks>,
    metadata: Arc<ParquetMetaData>,
    /// Requests of the wanted row groups, in their order. A small part has none: its blocks came with the footer.
    readahead: Readahead,
    /// Fetched blocks: all of a small part, else those of the current row group and what was fetched with them.
    fetched: BTreeMap<usize, Bytes>,
    small: bool,
    error: Arc<OrderedMutex<Option<Error>>>,
}

impl Reader {
    async fn ranges(&mut self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let wanted: BTreeSet<usize> = ranges.iter().flat_map(|r| self.blocks.touching(r)).collect();
        if !self.small {
            // Row groups are read in order: blocks before this one are not needed again.
            let first = wanted.first().copied().unwrap_or(0);
            self.fetched = self.fetched.split_off(&first);
        }
        while wanted.iter().any(|n| !self.fetched.contains_key(n)) {
            let Some((start, blocks)) = self.readahead.next().await? else { break };
            self.fetched.extend(blocks.into_iter().enumerate().map(|(i, block)| (start + i, block)));
        }
        // The decoder asks for no block twice, nor for one that was not announced. If it did, it would wait here.
        for n in wanted {
            if !self.fetched.contains_key(&n) {
                self.fetched.extend(self.blocks.get(n..n + 1).await?.into_iter().map(|block| (n, block)));
            }
        }
        ranges.iter().map(|range| self.cut(range)).collect()
    }

    fn cut(&self, range: &Range<u64>) -> Result<Bytes> {
        let bad = || damaged(&self.blocks.meta, "one of its pages is out of bounds");
        let touching = self.blocks.touching(range);
        let length = usize::try_from(range.end.saturating_sub(range.start)).map_err(|_| bad())?;
        let mut out = BytesMut::with_capacity(length.min(self.blocks.span(&touching)));
        for n in touching.clone() {
            let block = self.fetched.get(&n).ok_or_else(bad)?;
            let start = self.blocks.start(n);
            let from = usize::try_from(range.start.saturating_sub(start)).map_err(|_| bad())?;
            let to = usize::try_from(range.end - start).map_err(|_| bad())?.min(block.len());
            let piece = from.le(&to).then(|| block.slice(from..to)).ok_or_else(bad)?;
            if touching.len() == 1 {
                return Ok(piece);
            }
            out.extend_from_slice(&piece);
        }
        Ok(out.freeze())
    }

    fn keep(&self, error: Error) -> ParquetError {
        let text = error.to_string();
        self.error.lock().get_or_insert(error);
        ParquetError::General(text)
    }
}

impl AsyncFileReader for Reader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, parquet::errors::Result<Bytes>> {
        async move {
            let got = self.ranges(std::slice::from_ref(&range)).await.map_err(|e| self.keep(e))?;
            got.into_iter().next().ok_or_else(|| ParquetError::General("nothing was read".into()))
        }
        .boxed()
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, parquet::errors::Result<Vec<Bytes>>> {
        async move { self.ranges(&ranges).await.map_err(|e| self.keep(e)) }.boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        _: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, parquet::errors::Result<Arc<ParquetMetaData>>> {
        let metadata = Arc::clone(&self.metadata);
        async move { Ok(metadata) }.boxed()
    }
}

/// Opens a part.
pub(super) async fn open(blocks: Arc<Blocks>, options: ReadOptions) -> Result<Opened> {
    let meta = Arc::clone(&blocks.meta);
    let (metadata, small) = footer(&blocks, &options).await?;
    let metadata = Arc::new(metadata);
    let pairs = metadata.file_metadata().key_value_metadata().cloned().unwrap_or_default();
    let tag = |key: &str| pairs.iter().find(|kv| kv.key == key).and_then(|kv| kv.value.as_deref());
    check_tags(&meta, tag)?;
    let arrow =
        guarded(&meta, || ArrowReaderMetadata::try_new(Arc::clone(&metadata), ArrowReaderOptions::new()))?;
    let found = Arc::new(Schema::new_with_metadata(
        arrow.schema().fields().clone(),
        arrow
            .schema()
            .metadata()
            .iter()
            .filter(|(k, _)| !k.starts_with(tags::PREFIX))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect(),
    ));
    let whole = original_schema(&meta, &found, tag(tags::SCHEMA))?;

    let (mut order, mut schema, mut mask) = (None, Arc::clone(&whole), ProjectionMask::all());
    if let Some(wanted) = &options.projection {
        mask = ProjectionMask::roots(arrow.parquet_schema(), wanted.iter().copied());
        let mut sorted = wanted.clone();
        sorted.sort_unstable();
        sorted.dedup();
        order = Some(wanted.iter().map(|w| sorted.partition_point(|s| s < w)).collect::<Vec<_>>());
        schema = Arc::new(whole.project(wanted).map_err(|e| Error::internal(e.to_string()))?);
    }
    let row_groups: Vec<usize> = options.chunks.clone().unwrap_or(0..metadata.num_row_groups()).collect();
    let mut readahead = Readahead::new(&blocks, &options);
    if small.is_none() {
        let groups = || Ok::<_, ParquetError>(groups(&blocks, &metadata, &row_groups, &mask));
        readahead.enqueue(guarded(&meta, groups)?);
    }
    let pending = readahead.pending();
    let error = Arc::new(OrderedMutex::new(locks::READ_FAILURE, None));
    let reader = Reader {
        blocks: Arc::clone(&blocks),
        metadata: Arc::clone(&metadata),
        readahead,
        small: small.is_some(),
        fetched: small.into_iter().flatten().enumerate().collect(),
        error: Arc::clone(&error),
    };
    let stream = guarded(&meta, || {
        ParquetRecordBatchStreamBuilder::new_with_metadata(reader, arrow)
            .with_batch_size(batch_rows(&metadata))
            .with_row_groups(row_groups)
            .with_projection(mask)
            .build()
    })?;
    let (target, part) = (Arc::clone(&schema), Arc::clone(&meta));
    let batches = stream
        .map(move |batch| {
            let batch = batch.map_err(|e| match error.lock().take() {
                Some(e) => e,
                None => damaged(&meta, e),
            })?;
            let batch = match &order {
                Some(order) => batch.project(order).map_err(|e| damaged(&meta, e))?,
                None => batch,
            };
            crate::schema::restored(&batch, &target)
                .map(|batches| stream::iter(batches.into_iter().map(Ok::<_, Error>)))
                .map_err(|e| damaged(&meta, e.message()))
        })
        .try_flatten()
        .boxed();
    let batches = Caught::new(batches, move |panic: &str| damaged(&part, panic)).boxed();
    Ok(Opened { schema, batches: off_runtime(batches, Arc::clone(&blocks.ctx.decoding)), pending })
}

/// The requests for these columns of these row groups, in the order of the file.
fn groups(
    blocks: &Blocks,
    metadata: &ParquetMetaData,
    row_groups: &[usize],
    columns: &ProjectionMask,
) -> Vec<Range<usize>> {
    let mut wanted = BTreeSet::new();
    for group in row_groups.iter().filter_map(|i| metadata.row_groups().get(*i)) {
        let included = |(i, column)| columns.leaf_included(i).then_some(column);
        for column in group.columns().iter().enumerate().filter_map(included) {
            let (start, length) = column.byte_range();
            wanted.extend(blocks.touching(&(start..start.saturating_add(length))));
        }
    }
    let wanted: Vec<usize> = wanted.into_iter().collect();
    let runs = wanted.chunk_by(|a, b| a + 1 == *b);
    let runs = runs.filter_map(|run| Some(*run.first()?..*run.last()? + 1));
    runs.flat_map(|run| blocks.groups(run)).collect()
}

/// Polls a stream that computes as it is polled on a thread that may block, one permit per poll. It ends when the receiver
/// is dropped.
fn off_runtime(
    mut batches: BoxStream<'static, Result<RecordBatch>>,
    decoding: Arc<Semaphore>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let (sender, receiver) = channel("decoding a part", DECODED_BATCHES);
    let handle = tokio::runtime::Handle::current();
    let work = blocking("decoding a part", move || {
        handle.block_on(async move {
            let mut decoding = PollSemaphore::new(decoding);
            let mut next = move |cx: &mut Context<'_>| {
                let _permit = std::task::ready!(decoding.poll_acquire(cx));
                batches.poll_next_unpin(cx)
            };
            while let Some(batch) = std::future::poll_fn(&mut next).await {
                let sent = match batch {
                    Ok(batch) => sender.send(batch).await,
                    Err(e) => return sender.fail(e).await,
                };
                if sent.is_err() {
                    return;
                }
            }
            sender.finish();
        });
    });
    // The channel carries the result, and the thread ends when the receiver is dropped.
    drop(work);
    receiver.boxed()
}

/// The footer, which is the last block of the part. If one request fetches the whole part: all blocks, too.
async fn footer(
    blocks: &Arc<Blocks>,
    options: &ReadOptions,
) -> Result<(ParquetMetaData, Option<Vec<Bytes>>)> {
    let meta = &blocks.meta;
    let last = blocks.count() - 1;
    let small = blocks.groups(0..last + 1).len() == 1;
    let fetched = match small {
        true => blocks.get_whole(options).await?,
        false => blocks.get(last..last + 1).await?,
    };
    let tail = fetched.last().cloned().unwrap_or_default();
    let end = tail.len().checked_sub(8).ok_or_else(|| damaged(meta, "its footer is cut"))?;
    let (head, end_mark) = tail.split_at(end);
    let length = end_mark.first_chunk::<4>().map_or(u32::MAX, |n| u32::from_le_bytes(*n));
    let start = usize::try_from(length).ok().and_then(|n| end.checked_sub(n));
    match start {
        Some(start) if end_mark.ends_with(b"PAR1") => {
            let decoded = guarded(meta, || ParquetMetaDataReader::decode_metadata(&head[start..]))?;
            Ok((decoded, small.then_some(fetched)))
        }
        _ => Err(damaged(meta, "it does not end like a Parquet file")),
    }
}

/// Rows per batch: fewer where rows are wide.
fn batch_rows(metadata: &ParquetMetaData) -> usize {
    let groups = metadata.row_groups().iter();
    let (bytes, rows) = groups.fold((0i64, 0i64), |(bytes, rows), g| {
        (bytes.saturating_add(g.total_byte_size()), rows.saturating_add(g.num_rows()))
    });
    let per_row = u64::try_from(bytes / rows.max(1)).unwrap_or(0).max(1);
    usize::try_from((BATCH_BYTES / per_row).clamp(1, MAX_BATCH_ROWS)).unwrap_or(1)
}
