//! Arrow IPC files: record batches as splits, decoded without copies where they are not compressed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::compute::cast;
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::reader::FileDecoder;
use arrow::ipc::{Block, root_as_footer, root_as_message};
use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_schema::{ArrowError, Field, Schema, SchemaRef};
use bytes::Bytes;
use caju_types::{Error, ErrorKind, Result};
use futures::future::BoxFuture;

use crate::context::SourceContext;
use crate::dictionary_keys::with_wide_keys;
use crate::file::SourceFile;
use crate::file_columns::{FileColumns, file_order};
use crate::files::Format;
use crate::ipc_bounds::{check_block, check_byte_order, depth_error, num_nodes};
use crate::parquet_bounds::check_footer_length;
use crate::row_groups::{groups_of, pack};
use crate::source::ReadOptions;
use crate::split::{FileRef, Split, SplitRange};
use crate::split_reader::{Rows, SplitReader, batch_of, open_rows};
use crate::trim::sliced;

/// The magic bytes at the start and the end of every file.
const MAGIC: &[u8; 6] = b"ARROW1";
/// Bytes at the end of a file that are read first; they hold most footers.
const TAIL_BYTES: u64 = 64 << 10;

/// Arrow IPC files.
#[derive(Debug, Clone)]
pub(crate) struct Ipc {
    columns: FileColumns,
}

impl Ipc {
    /// Finds the schema in the footer of a file.
    pub(crate) async fn discover(
        ctx: &SourceContext,
        file: &FileRef,
        columns: Option<&[String]>,
    ) -> Result<Self> {
        let footer = Footer::read(&SourceFile::new(ctx, file)?, ctx.limits.chunk_bytes).await?;
        // Another file may have nulls where this one says that it has none.
        let nullable = |f: &Arc<Field>| {
            f.as_ref().clone().with_nullable(true).with_data_type(with_wide_keys(f.data_type()))
        };
        let schema = Arc::new(Schema::new(footer.schema.fields().iter().map(nullable).collect::<Vec<_>>()));
        Ok(Self { columns: FileColumns::found(schema, columns, &file.url)? })
    }

    /// Uses a known schema without reading a file.
    pub(crate) fn with_schema(schema: SchemaRef, picked: bool) -> Self {
        Self { columns: FileColumns::known(schema, picked) }
    }

    /// The place of every column in a file, which must have the columns of its siblings.
    fn places(&self, found: &Schema, url: &str) -> Result<Vec<usize>> {
        self.columns.places(found, url, with_wide_keys)
    }
}

fn damaged(url: &str, why: impl std::fmt::Display) -> Error {
    let why = why.to_string();
    depth_error(url, &why).unwrap_or_else(|| {
        Error::data_loss(format!("{url}: the file is damaged or is no Arrow IPC file: {why}"))
    })
}

/// Runs a decoder that may panic on damaged bytes.
fn guarded<T>(url: &str, work: impl FnOnce() -> Result<T, ArrowError>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(damaged(url, e)),
        Err(_) => Err(damaged(url, "its metadata make no sense")),
    }
}

/// What a block claims, before the decoder believes it.
fn check(url: &str, block: &Block, data: &[u8], (most, nodes): (u64, usize)) -> Result<()> {
    let metadata = usize::try_from(block.metaDataLength()).map_err(|e| damaged(url, e))?;
    check_block(data, metadata, most, nodes).map_err(|e| match e.kind() {
        ErrorKind::DataLoss => damaged(url, e),
        _ => e.context(format_args!("{url}: the block at byte {}", block.offset())),
    })
}

/// The footer of a file.
struct Footer {
    schema: SchemaRef,
    /// The columns of a record batch, nested ones included.
    nodes: usize,
    version: arrow::ipc::MetadataVersion,
    dictionaries: Vec<Block>,
    batches: Vec<Block>,
    /// Where the footer begins in the file.
    start: u64,
}

/// The length of the schema is within these first bytes.
const HEAD_BYTES: u64 = 96;

/// The most bytes between two messages of a file: padding, or the mark of the end.
const MOST_BETWEEN: u64 = 72;

impl Footer {
    /// Checks that the footer lists all blocks of the file: a truncated list would lose rows silently.
    async fn check_covers(&self, file: &Arc<SourceFile>) -> Result<()> {
        let url = &file.file.url;
        let all = self.dictionaries.iter().chain(&self.batches);
        let mut ranges = all.map(|b| range_of(b, url)).collect::<Result<Vec<_>>>()?;
        ranges.sort_unstable_by_key(|r| r.start);
        let mut end = schema_end(file).await?;
        ranges.push(self.start..self.start);
        for range in ranges {
            if range.start < end || range.start - end > MOST_BETWEEN {
                let what =
                    format!("its footer does not list what lies between the bytes {end} and {}", range.start);
                return Err(damaged(url, what));
            }
            end = range.end;
        }
        Ok(())
    }

    /// `chunk_bytes` bounds the footer.
    async fn read(file: &Arc<SourceFile>, chunk_bytes: u64) -> Result<Self> {
        let (size, url) = (file.size(), file.file.url.clone());
        if size < 24 {
            return Err(damaged(&url, format!("it has only {size} bytes")));
        }
        let from = size.saturating_sub(TAIL_BYTES);
        let mut tail = file.read(from..size).await?;
        let (head, magic) = tail.split_at(tail.len() - 6);
        let Some(length) = head.last_chunk::<4>().filter(|_| magic == MAGIC) else {
            return Err(damaged(
                &url,
                "it does not end with ARROW1 (a stream without a footer, or a truncated file?)",
            ));
        };
        let length = u64::try_from(i32::from_le_bytes(*length)).unwrap_or(u64::MAX);
        if length > size - 18 {
            return Err(damaged(&url, "its footer is out of bounds"));
        }
        check_footer_length(&url, length, TAIL_BYTES, chunk_bytes)?;
        let start = size - 10 - length;
        if start < from {
            tail = file.read(start..size).await?;
        } else {
            #[expect(clippy::cast_possible_truncation, reason = "within a buffer in memory")]
            let at = (start - from) as usize;
            tail = tail.slice(at..);
        }
        let bytes = &tail[..tail.len() - 10];
        let footer = root_as_footer(bytes).map_err(|e| damaged(&url, e))?;
        let schema = footer.schema().ok_or_else(|| damaged(&url, "it has no schema"))?;
        let nodes = num_nodes(&schema);
        check_byte_order(&schema).map_err(|e| e.context(&url))?;
        let schema = guarded(&url, || Ok(Arc::new(fb_to_schema(schema))))?;
        let blocks = |list: Option<Vec<Block>>| -> Result<Vec<Block>> {
            let list = list.unwrap_or_default();
            for b in &list {
                if block_range(b).is_none_or(|r| r.end > size) {
                    return Err(damaged(&url, "one of its blocks is out of bounds"));
                }
            }
            Ok(list)
        };
        Ok(Self {
            schema,
            nodes,
            version: footer.version(),
            dictionaries: blocks(footer.dictionaries().map(|d| d.iter().copied().collect()))?,
            batches: blocks(footer.recordBatches().map(|d| d.iter().copied().collect()))?,
            start,
        })
    }
}

/// Where the schema ends that a file begins with.
async fn schema_end(file: &Arc<SourceFile>) -> Result<u64> {
    let head = file.read(0..HEAD_BYTES.min(file.size())).await?;
    // ARROW1 is padded to 8 bytes or to 64. Then there are a continuation marker and the length; old files have the
    // length alone.
    let words = head.chunks_exact(4).zip((0u64..).step_by(4)).skip(2);
    let mut message = words.filter_map(|(word, at)| Some((<[u8; 4]>::try_from(word).ok()?, at)));
    let length = message.find(|(word, _)| !matches!(word, [0, 0, 0, 0] | [0xff, 0xff, 0xff, 0xff]));
    let (length, at) = length.ok_or_else(|| damaged(&file.file.url, "it does not begin with a schema"))?;
    Ok(at + 4 + u64::from(u32::from_le_bytes(length)))
}

/// Where a block is.
fn block_range(b: &Block) -> Option<std::ops::Range<u64>> {
    let start = u64::try_from(b.offset()).ok()?;
    let metadata = u64::try_from(b.metaDataLength()).ok().filter(|n| *n >= 8)?;
    let end = start.checked_add(metadata)?.checked_add(u64::try_from(b.bodyLength()).ok()?)?;
    Some(start..end)
}

fn range_of(b: &Block, url: &str) -> Result<std::ops::Range<u64>> {
    block_range(b).ok_or_else(|| damaged(url, "one of its blocks is out of bounds"))
}

/// Where a block is that may be read as a whole: it has at most `most` bytes.
fn admitted(b: &Block, url: &str, most: u64) -> Result<std::ops::Range<u64>> {
    let range = range_of(b, url)?;
    let bytes = range.end - range.start;
    if bytes > most {
        return Err(Error::new(
            ErrorKind::ResourceExhausted,
            format!(
                "{url}: the block at byte {} has {bytes} bytes, more than the {most} that a chunk of work may take; write \
             the file with smaller record batches, or raise --chunk-memory",
                range.start
            ),
        ));
    }
    Ok(range)
}

/// The number of rows of a record batch, from its metadata.
fn rows_of(metadata: &Bytes, url: &str) -> Result<u64> {
    // A continuation marker, then the length; old files have the length alone.
    let skip = if metadata.starts_with(&[0xff; 4]) { 8 } else { 4 };
    let message = root_as_message(metadata.get(skip..).unwrap_or(&[])).map_err(|e| damaged(url, e))?;
    let batch = message.header_as_record_batch().ok_or_else(|| damaged(url, "a block is no record batch"))?;
    u64::try_from(batch.length()).map_err(|e| damaged(url, e))
}

impl Format for Ipc {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.columns.schema)
    }

    fn cut(
        &self,
        ctx: &SourceContext,
        file: FileRef,
        split_bytes: u64,
    ) -> BoxFuture<'static, Result<Vec<Split>>> {
        let (ctx, me) = (ctx.clone(), self.clone());
        Box::pin(async move {
            let source = SourceFile::new(&ctx, &file)?;
            let footer = Footer::read(&source, ctx.limits.chunk_bytes).await?;
            me.places(&footer.schema, &file.url)?;
            footer.check_covers(&source).await?;
            let mut heads = Vec::with_capacity(footer.batches.len());
            for b in &footer.batches {
                let r = range_of(b, &file.url)?;
                let head = u64::from(b.metaDataLength().unsigned_abs());
                if head > ctx.limits.chunk_bytes.max(TAIL_BYTES) {
                    let why =
                        format!("the metadata of a record batch claim {head} bytes, above --chunk-memory");
                    return Err(damaged(&file.url, why));
                }
                heads.push(r.start..r.start + u64::from(b.metaDataLength().unsigned_abs()));
            }
            let heads = source.read_ranges(heads).await?;
            let mut sizes = Vec::with_capacity(heads.len());
            for (b, head) in footer.batches.iter().zip(&heads) {
                let r = range_of(b, &file.url)?;
                sizes.push((r.end - r.start, rows_of(head, &file.url)?));
            }
            pack(&file, &sizes, split_bytes)
        })
    }

    fn read(&self, ctx: &SourceContext, file: Arc<SourceFile>, split: &Split, options: &ReadOptions) -> Rows {
        let (me, range, options) = (self.clone(), split.range.clone(), options.clone());
        let most = ctx.limits.chunk_bytes;
        let open = async move { Reader::open(me, file, range, options, most).await };
        open_rows(open)
    }
}

struct Reader {
    file: Arc<SourceFile>,
    decoder: FileDecoder,
    /// The blocks that are left, last one first.
    blocks: Vec<Block>,
    schema: SchemaRef,
    order: Vec<usize>,
    options: ReadOptions,
    /// The most bytes of a decoded record batch, and its columns, nested ones included.
    bounds: (u64, usize),
}

impl Reader {
    async fn open(
        ipc: Ipc,
        file: Arc<SourceFile>,
        range: SplitRange,
        options: ReadOptions,
        most: u64,
    ) -> Result<Self> {
        let url = file.file.url.clone();
        let footer = Footer::read(&file, most).await?;
        let places = ipc.places(&footer.schema, &url)?;
        let wanted = options.columns(places.len());
        let schema =
            Arc::new(ipc.columns.schema.project(&wanted).map_err(|e| Error::internal(e.to_string()))?);
        let roots: Vec<usize> = wanted.iter().filter_map(|&i| places.get(i).copied()).collect();
        let order = file_order(&roots);
        let mut sorted = roots;
        sorted.sort_unstable();
        let bounds = (most, footer.nodes);
        let mut decoder =
            FileDecoder::new(Arc::clone(&footer.schema), footer.version).with_projection(sorted);
        for block in &footer.dictionaries {
            let data = file.read(admitted(block, &url, most)?).await?;
            check(&url, block, &data, bounds)?;
            guarded(&url, || decoder.read_dictionary(block, &Buffer::from(data)))?;
        }
        let groups = groups_of(&range, footer.batches.len(), &url)?;
        let mut blocks = footer.batches.get(groups).unwrap_or_default().to_vec();
        blocks.reverse();
        Ok(Self { file, decoder, blocks, schema, order, options, bounds })
    }
}

impl SplitReader for Reader {
    async fn next(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        let Some(block) = self.blocks.pop() else { return Ok(None) };
        let url = self.file.file.url.clone();
        let data = self.file.read(admitted(&block, &url, self.bounds.0)?).await?;
        check(&url, &block, &data, self.bounds)?;
        let batch = guarded(&url, || self.decoder.read_record_batch(&block, &Buffer::from(data)))?;
        let Some(batch) = batch.filter(|b| b.num_rows() > 0) else { return Ok(Some(Vec::new())) };
        let column = |(&i, field): (&usize, &Arc<Field>)| {
            let column = batch.column(i);
            match column.data_type() == field.data_type() {
                true => Ok(Arc::clone(column)),
                false => cast(column, field.data_type()).map_err(|e| damaged(&url, e)),
            }
        };
        let columns = self.order.iter().zip(self.schema.fields()).map(column).collect::<Result<_>>()?;
        let batch = batch_of(&self.schema, columns, batch.num_rows()).map_err(|e| damaged(&url, e))?;
        Ok(Some(sliced(batch, self.options.batch_rows, self.options.batch_bytes)))
    }
}

#[cfg(test)]
#[path = "ipc_tests.rs"]
mod tests;
