//! Arrow IPC parts: checked blocks to record batches, without validating or copying what was checked.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::reader::FileDecoder;
use arrow::ipc::{Block, root_as_footer};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::{ArrowError, Schema, SchemaRef};
use bytes::Bytes;
use caju_runtime::blocking;
use caju_types::{Error, Result};
use futures::stream::{StreamExt, TryStreamExt};
use tokio::sync::Semaphore;

use super::ahead::Ahead;
use super::blocks::{Blocks, damaged};
use super::{Opened, ReadOptions, check_tags, original_schema};
use crate::encoding::Compression;
use crate::record::PartMeta;

/// What stands at the end of the file.
pub(super) struct Footer {
    pub(super) schema: SchemaRef,
    version: arrow::ipc::MetadataVersion,
    batches: Vec<Block>,
}

fn guarded<T>(meta: &PartMeta, work: impl FnOnce() -> Result<T, ArrowError>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(damaged(meta, e)),
        Err(_) => Err(damaged(meta, "its metadata make no sense")),
    }
}

impl Footer {
    /// Reads the last block of a part.
    fn parse(meta: &PartMeta, last: &Bytes) -> Result<(Self, HashMap<String, String>)> {
        let bad = |why: &str| damaged(meta, why);
        let end = last.len().checked_sub(10).ok_or_else(|| bad("its footer is cut"))?;
        let (head, tail) = last.split_at(end);
        if &tail[4..] != b"ARROW1" {
            return Err(bad("it does not end like an Arrow file"));
        }
        let length = tail.first_chunk::<4>().map_or(-1, |n| i32::from_le_bytes(*n));
        let start = usize::try_from(length).ok().and_then(|n| end.checked_sub(n));
        let start = start.ok_or_else(|| bad("its footer is out of bounds"))?;
        let footer = root_as_footer(&head[start..]).map_err(|e| damaged(meta, e))?;
        let schema = footer.schema().ok_or_else(|| bad("it has no schema"))?;
        let schema = guarded(meta, || Ok(Arc::new(fb_to_schema(schema))))?;
        let batches = footer.recordBatches().map(|b| b.iter().copied().collect()).unwrap_or_default();
        let pairs = footer.custom_metadata().into_iter().flatten();
        let tags = pairs.filter_map(|kv| Some((kv.key()?.to_string(), kv.value()?.to_string()))).collect();
        Ok((Self { schema, version: footer.version(), batches }, tags))
    }
}

/// What decodes the blocks of one part.
struct Decoder {
    meta: Arc<PartMeta>,
    decoder: FileDecoder,
    /// The place of every wanted column among the decoded ones, which come in the file's order.
    order: Option<Vec<usize>>,
    schema: SchemaRef,
}

/// Opens a part.
pub(super) async fn open(blocks: Arc<Blocks>, options: ReadOptions) -> Result<Opened> {
    let meta = Arc::clone(&blocks.meta);
    let last = blocks.count() - 1;
    // A small part is one request; of a larger one the first groups come with the footer.
    let mut ahead = Ahead::new(&blocks, &options);
    let mut groups = blocks.groups(0..last);
    let (tail, small) = if blocks.groups(0..last + 1).len() == 1 {
        groups.clear();
        let mut all = blocks.get_whole(&options).await?;
        (all.pop(), Some(all))
    } else {
        let known = match &options.chunks {
            None => groups.len(),
            Some(chunks) => usize::from(chunks.start == 0),
        };
        ahead.want(groups.drain(..known.min(groups.len())));
        (blocks.get(last..last + 1).await?.pop(), None)
    };
    let tail = tail.ok_or_else(|| damaged(&meta, "it is empty"))?;
    let (footer, tags) = Footer::parse(&meta, &tail)?;
    check_tags(&meta, |key| tags.get(key).map(String::as_str))?;
    let whole = original_schema(&meta, &footer.schema, tags.get(crate::TAG_SCHEMA).map(String::as_str))?;
    let wanted = options.chunks.clone().unwrap_or(0..footer.batches.len());
    let places = place_batches(&blocks, footer.batches.get(wanted).unwrap_or_default())?;
    let decoder = Arc::new(Decoder::new(&meta, &footer, &whole, &options)?);
    let schema = Arc::clone(&decoder.schema);
    groups.retain(|group| group.clone().any(|i| places.get(i).is_some_and(|p| !p.is_empty())));
    ahead.want(groups);
    let (left, decoding) = (ahead.left(), Arc::clone(&blocks.cache.decoding));
    let places = Arc::new(places);
    let fetched = futures::stream::try_unfold(ahead, |mut ahead| async move {
        let next = ahead.next().await?;
        Ok::<_, Error>(next.map(|group| (group, ahead)))
    });
    let batches = futures::stream::iter(small.map(|all| Ok((0, all))))
        .chain(fetched)
        .map_ok(move |(start, data)| {
            let (decoder, places) = (Arc::clone(&decoder), Arc::clone(&places));
            let blocks = data.into_iter().enumerate().map(move |(i, block)| {
                (Arc::clone(&decoder), places.get(start + i).cloned().unwrap_or_default(), block)
            });
            futures::stream::iter(blocks.map(Ok::<_, Error>))
        })
        .try_flatten()
        .and_then(move |(decoder, places, block)| decode(Arc::clone(&decoding), decoder, places, block))
        .map_ok(|batches| futures::stream::iter(batches.into_iter().map(Ok)))
        .try_flatten()
        .boxed();
    Ok(Opened { schema, batches, left })
}

/// The batches in every block, with their offsets in it.
fn place_batches(blocks: &Blocks, batches: &[Block]) -> Result<Vec<Vec<(usize, Block)>>> {
    let mut places = vec![Vec::new(); blocks.count()];
    for batch in batches {
        let bad = || damaged(&blocks.meta, "one of its batches is out of bounds");
        let start = u64::try_from(batch.offset()).map_err(|_| bad())?;
        let length = u64::try_from(batch.metaDataLength()).ok().zip(u64::try_from(batch.bodyLength()).ok());
        let end = length.and_then(|(m, b)| start.checked_add(m)?.checked_add(b)).ok_or_else(bad)?;
        let touching = blocks.touching(&(start..end));
        if touching.len() != 1 || end > blocks.start(touching.end) {
            return Err(bad());
        }
        let at = usize::try_from(start - blocks.start(touching.start)).map_err(|_| bad())?;
        places[touching.start].push((at, *batch));
    }
    Ok(places)
}

async fn decode(
    decoding: Arc<Semaphore>,
    decoder: Arc<Decoder>,
    places: Vec<(usize, Block)>,
    block: Bytes,
) -> Result<Vec<RecordBatch>> {
    if decoder.meta.encoding.compression == Compression::None {
        return decoder.decode(&places, block);
    }
    let permit = decoding.acquire_owned().await;
    let work = move || {
        let _permit = permit;
        decoder.decode(&places, block)
    };
    blocking("decoding a part", work).await?
}

impl Decoder {
    fn new(meta: &Arc<PartMeta>, footer: &Footer, whole: &SchemaRef, options: &ReadOptions) -> Result<Self> {
        let decoder = FileDecoder::new(Arc::clone(&footer.schema), footer.version);
        let (decoder, order, schema) = match &options.projection {
            None => (decoder, None, Arc::clone(whole)),
            Some(wanted) => {
                let mut sorted = wanted.clone();
                sorted.sort_unstable();
                sorted.dedup();
                let order = wanted.iter().map(|w| sorted.partition_point(|s| s < w)).collect();
                let schema: Schema = whole.project(wanted).map_err(|e| Error::internal(e.to_string()))?;
                (decoder.with_projection(sorted), Some(order), Arc::new(schema))
            }
        };
        let decoder = trusted(decoder);
        Ok(Self { meta: Arc::clone(meta), decoder, order, schema })
    }

    fn decode(&self, places: &[(usize, Block)], block: Bytes) -> Result<Vec<RecordBatch>> {
        let buffer = Buffer::from(block);
        let mut out = Vec::with_capacity(places.len());
        for (at, place) in places {
            let message = buffer.slice(*at);
            let batch = guarded(&self.meta, || self.decoder.read_record_batch(place, &message))?;
            let Some(batch) = batch.filter(|b| b.num_rows() > 0) else { continue };
            let batch = match &self.order {
                None => batch,
                Some(order) => guarded(&self.meta, || batch.project(order))?,
            };
            out.push(crate::schema::with_schema(&batch, &self.schema)?);
        }
        Ok(out)
    }
}

/// The rows of a file that was just written and checked: what a probe measures.
pub(crate) fn decode_file(meta: &Arc<PartMeta>, file: Bytes) -> Result<Vec<RecordBatch>> {
    let (footer, _) = Footer::parse(meta, &file)?;
    let decoder = Decoder::new(meta, &footer, &footer.schema, &ReadOptions::default())?;
    let place =
        |b: &Block| Ok((usize::try_from(b.offset()).map_err(|_| damaged(meta, "out of bounds"))?, *b));
    let places = footer.batches.iter().map(place).collect::<Result<Vec<_>>>()?;
    decoder.decode(&places, file)
}

/// Turns validation off.
#[allow(unsafe_code, reason = "validated decoding is three times slower, and these bytes were checked")]
fn trusted(decoder: FileDecoder) -> FileDecoder {
    // SAFETY: blocks reach the decoder only after their checksum was compared with the commit record of a
    // part that this crate's writer made from valid arrays; a store that forges both is outside of what the
    // cache promises.
    unsafe { decoder.with_skip_validation(true) }
}
