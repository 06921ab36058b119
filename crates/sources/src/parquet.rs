//! Parquet: row groups as splits, column chunks fetched in one request each row group, footers cached.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, DictionaryArray, Int32Array, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use caju_types::{Error, Result};
use futures::future::BoxFuture;
use parking_lot::Mutex;
use parquet::DecodeResult;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowPredicate, ArrowPredicateFn, ArrowReaderMetadata, ArrowReaderOptions, RowFilter,
};
use parquet::arrow::push_decoder::{ParquetPushDecoder, ParquetPushDecoderBuilder};
use parquet::basic::{Encoding, EncodingMask};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    PageIndexPolicy, ParquetMetaData, ParquetMetaDataPushDecoder, RowGroupMetaData,
};
use parquet::schema::types::SchemaDescriptor;

use crate::context::SourceContext;
use crate::file::SourceFile;
use crate::file_columns::{FileColumns, file_order};
use crate::files::Format;
use crate::parquet_bounds::{ReadBounds, check_footer, check_footer_length, check_rows, footer_start};
use crate::parquet_types::{arrow_schema_of, damaged, file_schema, plain_type};
use crate::row_groups::{GroupSize, groups_of, pack};
use crate::source::{ReadOptions, RowPredicate};
use crate::split::{FileRef, Split, SplitRange};
use crate::split_reader::{Rows, SplitReader, batch_of, open_rows};

/// Bytes at the end of a file that are read first; they hold most footers.
const TAIL_BYTES: u64 = 64 << 10;
/// The least bytes that a Parquet file has: two magics and the footer's length.
const LEAST_BYTES: u64 = 12;

/// Parquet files.
#[derive(Debug)]
pub(crate) struct Parquet {
    columns: FileColumns,
}

impl Parquet {
    /// Finds the schema in the footer of a file.
    pub(crate) async fn discover(
        ctx: &SourceContext,
        file: &FileRef,
        columns: Option<&[String]>,
    ) -> Result<Self> {
        let footer = footer(ctx, &SourceFile::new(ctx, file)?).await?;
        let schema = arrow_schema_of(&footer, &file.url)?;
        Ok(Self { columns: FileColumns::found(schema, columns, &file.url)? })
    }

    /// Uses a known schema without reading a file.
    pub(crate) fn with_schema(schema: SchemaRef, columns: Option<&[String]>) -> Self {
        Self { columns: FileColumns::known(schema, columns.is_some()) }
    }
}

/// A file's footer, from the cache if it was read before.
async fn footer(ctx: &SourceContext, file: &Arc<SourceFile>) -> Result<Arc<ParquetMetaData>> {
    if let Some(footer) = ctx.caches.footer(&file.file) {
        return Ok(footer);
    }
    let (size, url) = (file.size(), &file.file.url);
    if size < LEAST_BYTES {
        return Err(Error::data_loss(format!("{url}: has {size} bytes: too short for a Parquet file")));
    }
    let bad = |e: ParquetError| damaged(url, &e);
    let mut decoder =
        ParquetMetaDataPushDecoder::try_new(size).map_err(bad)?.with_page_index_policy(PageIndexPolicy::Skip);
    let tail = size.saturating_sub(TAIL_BYTES)..size;
    let bytes = file.read(tail.clone()).await?;
    let start = footer_start(&bytes, size);
    if let Some(start) = start {
        check_footer_length(url, size - 8 - start, TAIL_BYTES, ctx.limits.chunk_bytes)?;
    }
    check_footer(url, start, size, tail.start, &bytes)?;
    decoder.push_range(tail, bytes).map_err(bad)?;
    loop {
        match decoder.try_decode().map_err(bad)? {
            DecodeResult::Data(metadata) => {
                check_rows(url, &metadata)?;
                let metadata = Arc::new(metadata);
                ctx.caches.insert_footer(&file.file, Arc::clone(&metadata));
                return Ok(metadata);
            }
            DecodeResult::NeedsData(ranges) => {
                if ranges.iter().any(|r| r.end > size || r.start >= r.end) {
                    return Err(Error::data_loss(format!(
                        "{url}: the file is damaged: its footer is out of bounds"
                    )));
                }
                let data = file.read_ranges(ranges.clone()).await?;
                for (range, bytes) in ranges.iter().zip(&data) {
                    check_footer(url, start, size, range.start, bytes)?;
                }
                decoder.push_ranges(ranges, data).map_err(bad)?;
            }
            DecodeResult::Finished => return Err(Error::internal(format!("{url}: no footer"))),
        }
    }
}

/// The row groups of a file, by their sizes.
fn group_sizes(footer: &ParquetMetaData, url: &str) -> Result<Vec<GroupSize>> {
    let size = |group: &RowGroupMetaData| {
        let rows = u64::try_from(group.num_rows())
            .map_err(|_| Error::data_loss(format!("{url}: a row group has {} rows", group.num_rows())))?;
        Ok((group.compressed_size().max(0).cast_unsigned(), rows))
    };
    footer.row_groups().iter().map(size).collect()
}

impl Format for Parquet {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.columns.schema)
    }

    fn cut(
        &self,
        ctx: &SourceContext,
        file: FileRef,
        split_bytes: u64,
    ) -> BoxFuture<'static, Result<Vec<Split>>> {
        let (ctx, columns) = (ctx.clone(), self.columns.clone());
        Box::pin(async move {
            let footer = footer(&ctx, &SourceFile::new(&ctx, &file)?).await?;
            columns.places(&file_schema(&footer, &file.url)?, &file.url, plain_type)?;
            pack(&file, &group_sizes(&footer, &file.url)?, split_bytes)
        })
    }

    fn read(&self, ctx: &SourceContext, file: Arc<SourceFile>, split: &Split, options: &ReadOptions) -> Rows {
        let (ctx, columns, options) = (ctx.clone(), self.columns.clone(), options.clone());
        let (range, trim) = (split.range.clone(), split.trim);
        let open = async move {
            let footer = footer(&ctx, &file).await?;
            let bounds = ReadBounds {
                footer: Arc::clone(&footer),
                page_bytes: ctx.limits.chunk_bytes,
                row_group_bytes: ctx.limits.row_group_bytes,
            };
            Reader::open(&columns, file, footer, bounds, &range, trim, &options)
        };
        open_rows(open)
    }

    fn trims(&self) -> bool {
        true
    }

    fn filters(&self) -> bool {
        true
    }

    fn keeps_dictionaries(&self) -> bool {
        true
    }
}

/// The error of a predicate; the decoder passes on its text alone.
type PredicateError = Arc<Mutex<Option<Error>>>;

/// The predicate as the decoder runs it: over the file's columns, in the order of the file.
fn row_predicate(
    predicate: &RowPredicate,
    of_source: &FileColumns,
    places: &[usize],
    descr: &SchemaDescriptor,
    failed: &PredicateError,
) -> Result<Box<dyn ArrowPredicate>> {
    let lost = || Error::internal("a predicate looks at a column that the source does not have");
    let roots: Vec<usize> =
        predicate.columns.iter().map(|&c| places.get(c).copied().ok_or_else(lost)).collect::<Result<_>>()?;
    let schema = of_source.schema.project(&predicate.columns).map_err(|_| lost())?;
    let (schema, order) = (Arc::new(schema), file_order(&roots));
    let (test, failed) = (Arc::clone(&predicate.test), Arc::clone(failed));
    let mask = ProjectionMask::roots(descr, roots);
    Ok(Box::new(ArrowPredicateFn::new(mask, move |batch: RecordBatch| {
        let columns = order.iter().map(|&i| Arc::clone(batch.column(i))).collect();
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns)?;
        test(&batch).map_err(|e| {
            let text = e.to_string();
            *failed.lock() = Some(e);
            ArrowError::ComputeError(text)
        })
    })))
}

struct Reader {
    file: Arc<SourceFile>,
    decoder: ParquetPushDecoder,
    /// Of the batches that leave, in the order that was asked for.
    schema: SchemaRef,
    /// Where each column of `schema` is in the decoder's batches.
    order: Vec<usize>,
    /// The columns of `schema` that the file has without dictionaries, and that leave with them.
    wrapped: Vec<bool>,
    failed: PredicateError,
    bounds: ReadBounds,
}

impl Reader {
    fn open(
        columns: &FileColumns,
        file: Arc<SourceFile>,
        footer: Arc<ParquetMetaData>,
        bounds: ReadBounds,
        range: &SplitRange,
        trim: Option<(u64, u64)>,
        options: &ReadOptions,
    ) -> Result<Self> {
        let url = file.file.url.clone();
        let bad = |e: ParquetError| damaged(&url, &e);
        let found = file_schema(&footer, &url)?;
        let places = columns.places(&found, &url, plain_type)?;
        let wanted = options.columns(columns.schema.fields().len());
        // The types that the decoder reads the file's columns as.
        let mut hint: Vec<Field> = found
            .fields()
            .iter()
            .map(|f| f.as_ref().clone().with_data_type(plain_type(f.data_type())))
            .collect();
        let groups: Vec<usize> = groups_of(range, footer.num_row_groups(), &url)?.collect();
        let mut wrapped = Vec::with_capacity(wanted.len());
        let mut fields = Vec::with_capacity(wanted.len());
        let mut roots = Vec::with_capacity(wanted.len());
        for &i in &wanted {
            let (Some(field), Some(&at)) = (columns.schema.fields().get(i), places.get(i)) else {
                return Err(Error::internal(format!("{url}: there is no column {i} to read")));
            };
            let mut field = field.as_ref().clone();
            let keeps = options.keep_dictionaries.contains(&i) && field.data_type() == &DataType::Utf8;
            let has_dictionary = keeps && has_dictionary(&footer, &groups, at);
            if keeps {
                let kept = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
                field = field.with_data_type(kept.clone());
                if has_dictionary {
                    hint[at] = hint[at].clone().with_data_type(kept);
                }
            }
            wrapped.push(keeps && !has_dictionary);
            fields.push(field);
            roots.push(at);
        }
        let hint = Schema::new_with_metadata(hint, found.metadata().clone());
        let reader_options = ArrowReaderOptions::new().with_schema(Arc::new(hint));
        let metadata = ArrowReaderMetadata::try_new(Arc::clone(&footer), reader_options).map_err(bad)?;
        let failed = PredicateError::default();
        let predicates = options
            .predicates
            .iter()
            .map(|p| row_predicate(p, columns, &places, metadata.parquet_schema(), &failed))
            .collect::<Result<Vec<_>>>()?;
        let mask = ProjectionMask::roots(metadata.parquet_schema(), roots.iter().copied());
        // The decoder holds the columns of predicates until it has those of the projection.
        let mut held = mask.clone();
        predicates.iter().for_each(|predicate| held.union(predicate.projection()));
        bounds.check_groups(&url, file.size(), &groups, trim, &held)?;
        let most_rows = batch_rows(groups.iter().map(|&g| footer.row_group(g)), &mask, options);
        let mut builder = ParquetPushDecoderBuilder::new_with_metadata(metadata)
            .with_row_groups(groups)
            .with_projection(mask)
            .with_batch_size(most_rows);
        if let Some((skip, take)) = trim {
            let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
            builder = builder.with_offset(size(skip)).with_limit(size(take));
        }
        if !predicates.is_empty() {
            builder = builder.with_row_filter(RowFilter::new(predicates));
        }
        // The decoder gives the columns in the order of the file.
        let order = file_order(&roots);
        Ok(Self {
            decoder: builder.build().map_err(bad)?,
            file,
            schema: Arc::new(Schema::new(fields)),
            order,
            wrapped,
            failed,
            bounds,
        })
    }
}

impl SplitReader for Reader {
    async fn next(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        loop {
            let step = self.decoder.try_decode().map_err(|e| match self.failed.lock().take() {
                Some(error) => error.context(&self.file.file.url),
                None => damaged(&self.file.file.url, &e),
            })?;
            match step {
                DecodeResult::Finished => return Ok(None),
                DecodeResult::NeedsData(ranges) => {
                    let size = self.file.size();
                    if let Some(r) = ranges.iter().find(|r| r.end > size) {
                        return Err(Error::data_loss(format!(
                            "{}: the file is damaged: bytes {}..{} lie behind its end at {size}",
                            self.file.file.url, r.start, r.end
                        )));
                    }
                    let data = self.file.read_ranges(ranges.clone()).await?;
                    for (range, bytes) in ranges.iter().zip(&data) {
                        self.bounds.check_pages(&self.file.file.url, range.start, bytes)?;
                    }
                    self.decoder.push_ranges(ranges, data).map_err(|e| damaged(&self.file.file.url, &e))?;
                }
                DecodeResult::Data(batch) => {
                    let column = |(&i, &wrap): (&usize, &bool)| match wrap {
                        true => each_its_own_value(batch.column(i)),
                        false => Arc::clone(batch.column(i)),
                    };
                    let columns = self.order.iter().zip(&self.wrapped).map(column).collect();
                    return batch_of(&self.schema, columns, batch.num_rows())
                        .map(|batch| Some(vec![batch]))
                        .map_err(|e| e.context(&self.file.file.url));
                }
            }
        }
    }
}

/// Whether all data pages of a column in these row groups refer to a dictionary, as far as the footer says.
fn has_dictionary(footer: &ParquetMetaData, groups: &[usize], root: usize) -> bool {
    let descr = footer.file_metadata().schema_descr();
    let Some(leaf) = (0..descr.num_columns()).find(|&leaf| descr.get_column_root_idx(leaf) == root) else {
        return false;
    };
    groups.iter().all(|&group| {
        let column = footer.row_group(group).column(leaf);
        let is_coded = |mask: &EncodingMask| {
            mask.is_only(Encoding::RLE_DICTIONARY) || mask.is_only(Encoding::PLAIN_DICTIONARY)
        };
        column.dictionary_page_offset().is_some() && column.page_encoding_stats_mask().is_none_or(is_coded)
    })
}

/// Texts with a dictionary in which each row has a value of its own: nothing is compared, and nothing copied.
fn each_its_own_value(texts: &ArrayRef) -> ArrayRef {
    let keys = (0i32..).take(texts.len()).collect::<Vec<_>>();
    let keys = Int32Array::new(keys.into(), texts.nulls().cloned());
    match DictionaryArray::try_new(keys, Arc::clone(texts)) {
        Ok(dictionary) => Arc::new(dictionary),
        // A batch has fewer rows than there are keys. The schema of the batch is checked, and says what is wrong.
        Err(_) => Arc::clone(texts),
    }
}

/// Rows per batch, so that a batch of average rows stays below the bound in bytes.
fn batch_rows<'a>(
    groups: impl Iterator<Item = &'a RowGroupMetaData>,
    mask: &ProjectionMask,
    options: &ReadOptions,
) -> usize {
    let (mut rows, mut bytes) = (0u128, 0u128);
    for group in groups {
        rows += u128::from(group.num_rows().max(0).cast_unsigned());
        for (i, column) in group.columns().iter().enumerate() {
            if mask.leaf_included(i) {
                let encoded = column.uncompressed_size().max(0);
                let text = column.unencoded_byte_array_data_bytes().unwrap_or(0);
                bytes += u128::from(encoded.max(text).cast_unsigned());
            }
        }
    }
    if rows == 0 || bytes == 0 {
        return options.batch_rows.max(1);
    }
    let by_bytes = options.batch_bytes as u128 * rows / bytes;
    usize::try_from(by_bytes).unwrap_or(usize::MAX).min(options.batch_rows).max(1)
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "test data")]
#[path = "parquet_tests.rs"]
mod tests;
