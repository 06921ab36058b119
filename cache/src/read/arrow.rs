//! Arrow IPC parts: checked blocks to record batches, without copying.
//!
//! Every batch is validated as it is decoded (offsets, UTF-8, lengths of children). A block's checksum only shows that the
//! block matches its record. Anybody who can write to the root can write both, and arrays with false offsets would read
//! foreign memory. Validation costs nothing where rows are tensors or numbers, and reads each string once. The bytes of a
//! mapped file cannot change unseen: a process validates each of its blocks once.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::reader::FileDecoder;
use arrow::ipc::{Block, root_as_footer};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::{ArrowError, DataType, Schema, SchemaRef};
use bytes::Bytes;
use caju_runtime::blocking;
use caju_types::{Error, Result};
use futures::stream::{StreamExt, TryStreamExt};
use tokio::sync::Semaphore;

use super::blocks::Blocks;
use super::file::{Opened, check_tags, damaged, guarded, original_schema};
use super::options::ReadOptions;
use super::readahead::Readahead;
use crate::record::PartMeta;
use crate::tags;
use caju_autocache::Compression;

/// The footer of the file.
pub(super) struct Footer {
    pub(super) schema: SchemaRef,
    version: arrow::ipc::MetadataVersion,
    batches: Vec<Block>,
}

impl Footer {
    /// Parses the last block of a part: the footer, and the file's metadata.
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
        let schema = guarded(meta, || Ok::<_, ArrowError>(Arc::new(fb_to_schema(schema))))?;
        let batches = footer.recordBatches().map(|b| b.iter().copied().collect()).unwrap_or_default();
        let pairs = footer.custom_metadata().into_iter().flatten();
        let tags = pairs.filter_map(|kv| Some((kv.key()?.to_string(), kv.value()?.to_string()))).collect();
        Ok((Self { schema, version: footer.version(), batches }, tags))
    }
}

/// Decodes the blocks of one part.
struct Decoder {
    meta: Arc<PartMeta>,
    decoder: FileDecoder,
    /// A decoder of the same part without validation.
    trusting: FileDecoder,
    /// Whether validation takes next to no time.
    validates_cheaply: bool,
    /// The index of every wanted column among the decoded ones, which come in the file's order.
    order: Option<Vec<usize>>,
    schema: SchemaRef,
    /// The most bytes that one batch may have once it is decompressed.
    max_batch_bytes: u64,
}

/// Opens a part.
pub(super) async fn open(blocks: Arc<Blocks>, options: ReadOptions) -> Result<Opened> {
    let meta = Arc::clone(&blocks.meta);
    let last = blocks.count() - 1;
    // A small part is one request. Of a larger one the first groups are requested together with the footer.
    let mut readahead = Readahead::new(&blocks, &options);
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
        readahead.enqueue(groups.drain(..known.min(groups.len())));
        (blocks.get(last..last + 1).await?.pop(), None)
    };
    let tail = tail.ok_or_else(|| damaged(&meta, "it is empty"))?;
    let (footer, entries) = Footer::parse(&meta, &tail)?;
    check_tags(&meta, |key| entries.get(key).map(String::as_str))?;
    let whole = original_schema(&meta, &footer.schema, entries.get(tags::SCHEMA).map(String::as_str))?;
    let wanted = options.chunks.clone().unwrap_or(0..footer.batches.len());
    let places = place_batches(&blocks, footer.batches.get(wanted).unwrap_or_default())?;
    let decoder =
        Arc::new(Decoder::new(&meta, &footer, &whole, &options, blocks.ctx.options.max_block_bytes)?);
    let schema = Arc::clone(&decoder.schema);
    let all = options.chunks.is_none() && options.projection.is_none();
    groups.retain(|group| group.clone().any(|i| places.get(i).is_some_and(|p| !p.is_empty())));
    readahead.enqueue(groups);
    let (pending, decoding) = (readahead.pending(), Arc::clone(&blocks.ctx.decoding));
    let places = Arc::new(places);
    let fetched = futures::stream::try_unfold(readahead, |mut readahead| async move {
        let next = readahead.next().await?;
        Ok::<_, Error>(next.map(|group| (group, readahead)))
    });
    let batches = futures::stream::iter(small.map(|all| Ok((0, all))))
        .chain(fetched)
        .map_ok(move |(start, data)| {
            let (decoder, places) = (Arc::clone(&decoder), Arc::clone(&places));
            let fetched = data.into_iter().enumerate().map(move |(i, bytes)| Fetched {
                decoder: Arc::clone(&decoder),
                number: start + i,
                places: places.get(start + i).cloned().unwrap_or_default(),
                bytes,
            });
            futures::stream::iter(fetched.map(Ok::<_, Error>))
        })
        .try_flatten()
        .and_then(move |fetched| fetched.decode(Arc::clone(&blocks), Arc::clone(&decoding), all))
        .map_ok(|batches| futures::stream::iter(batches.into_iter().map(Ok)))
        .try_flatten()
        .boxed();
    Ok(Opened { schema, batches, pending })
}

/// The batches of every block, with their offsets in the block.
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

/// A fetched block, and the batches in it.
struct Fetched {
    decoder: Arc<Decoder>,
    number: usize,
    places: Vec<(usize, Block)>,
    bytes: Bytes,
}

impl Fetched {
    /// Decodes the batches. `all` says that they are all batches of the block, with all columns.
    async fn decode(
        self,
        blocks: Arc<Blocks>,
        decoding: Arc<Semaphore>,
        all: bool,
    ) -> Result<Vec<RecordBatch>> {
        let (number, decoder) = (self.number, Arc::clone(&self.decoder));
        let validated = blocks.is_validated(number);
        let work = move || decoder.decode(&self.places, self.bytes, validated);
        let uncompressed = self.decoder.meta.encoding.compression == Compression::None;
        let batches = if uncompressed && (validated || self.decoder.validates_cheaply) {
            work()?
        } else {
            let permit = decoding.acquire_owned().await;
            let work = move || {
                let _permit = permit;
                work()
            };
            blocking("decoding a part", work).await??
        };
        if all {
            blocks.set_validated(number);
        }
        Ok(batches)
    }
}

/// Whether the time to validate a column grows with its rows at most, and not with its bytes.
fn validates_cheaply(kind: &DataType) -> bool {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => false,
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => {
            validates_cheaply(f.data_type())
        }
        DataType::Struct(fields) => fields.iter().all(|f| validates_cheaply(f.data_type())),
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) | DataType::Boolean => true,
        other => other.is_primitive(),
    }
}

impl Decoder {
    fn new(
        meta: &Arc<PartMeta>,
        footer: &Footer,
        whole: &SchemaRef,
        options: &ReadOptions,
        max_batch_bytes: u64,
    ) -> Result<Self> {
        let decoder = || FileDecoder::new(Arc::clone(&footer.schema), footer.version);
        let (decoder, trusting, order, schema) = match &options.projection {
            None => (decoder(), decoder(), None, Arc::clone(whole)),
            Some(wanted) => {
                let mut sorted = wanted.clone();
                sorted.sort_unstable();
                sorted.dedup();
                let order = wanted.iter().map(|w| sorted.partition_point(|s| s < w)).collect();
                let schema: Schema = whole.project(wanted).map_err(|e| Error::internal(e.to_string()))?;
                let decoder = || decoder().with_projection(sorted.clone());
                (decoder(), decoder(), Some(order), Arc::new(schema))
            }
        };
        let validates_cheaply = footer.schema.fields().iter().all(|f| validates_cheaply(f.data_type()));
        let (meta, trusting) = (Arc::clone(meta), without_validation(trusting));
        Ok(Self { meta, decoder, trusting, validates_cheaply, order, schema, max_batch_bytes })
    }

    /// Decodes batches of a block. `validated` says that the same bytes were decoded with validation before.
    fn decode(&self, places: &[(usize, Block)], block: Bytes, validated: bool) -> Result<Vec<RecordBatch>> {
        let decoder = if validated { &self.trusting } else { &self.decoder };
        let buffer = Buffer::from(block);
        let mut out = Vec::with_capacity(places.len());
        for (at, place) in places {
            let message = buffer.as_slice().get(*at..).unwrap_or_default();
            super::claims::check(message, place, self.max_batch_bytes).map_err(|e| damaged(&self.meta, e))?;
            let message = buffer.slice(*at);
            let batch = guarded(&self.meta, || decoder.read_record_batch(place, &message))?;
            let Some(batch) = batch.filter(|b| b.num_rows() > 0) else { continue };
            let batch = match &self.order {
                None => batch,
                Some(order) => guarded(&self.meta, || batch.project(order))?,
            };
            let restored = crate::schema::restored(&batch, &self.schema);
            out.extend(restored.map_err(|e| damaged(&self.meta, e.message()))?);
        }
        Ok(out)
    }
}

/// Decodes a file that was just written, for a probe. `validated` as in [`Decoder::decode`].
pub(crate) fn decode_file(meta: &Arc<PartMeta>, file: Bytes, validated: bool) -> Result<Vec<RecordBatch>> {
    let (footer, _) = Footer::parse(meta, &file)?;
    let decoder = Decoder::new(meta, &footer, &footer.schema, &ReadOptions::default(), u64::MAX)?;
    let place =
        |b: &Block| Ok((usize::try_from(b.offset()).map_err(|_| damaged(meta, "out of bounds"))?, *b));
    let places = footer.batches.iter().map(place).collect::<Result<Vec<_>>>()?;
    decoder.decode(&places, file, validated)
}

/// Turns validation off.
#[allow(unsafe_code, reason = "bytes that were validated once need no second validation")]
fn without_validation(decoder: FileDecoder) -> FileDecoder {
    // SAFETY: only bytes reach this decoder that this process has decoded with validation before, whole batches with
    // all their columns. They are those of a mapped file, which cannot change while it is mapped, and which is known by
    // device, inode, length and times that a change in between would have altered (see `FileVersion`).
    unsafe { decoder.with_skip_validation(true) }
}
