//! Parquet: row groups as splits, column chunks fetched in one request each row group, footers cached.

use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use caju_types::{Error, Result, did_you_mean};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use parking_lot::Mutex;
use parquet::DecodeResult;
use parquet::arrow::arrow_reader::{
    ArrowPredicate, ArrowPredicateFn, ArrowReaderMetadata, ArrowReaderOptions, RowFilter,
};
use parquet::arrow::push_decoder::{ParquetPushDecoder, ParquetPushDecoderBuilder};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_schema};
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    PageIndexPolicy, ParquetMetaData, ParquetMetaDataPushDecoder, RowGroupMetaData,
};
use parquet::schema::types::SchemaDescriptor;

use crate::context::SourceContext;
use crate::file::SourceFile;
use crate::files::{Format, file_split};
use crate::parquet_bounds::{PageBounds, check_footer, footer_start};
use crate::source::{ReadOptions, RowPredicate};
use crate::split::{FileRef, Split, SplitRange};

/// Bytes at the end of a file that are read first; they hold most footers.
const TAIL_BYTES: u64 = 64 << 10;
/// The least bytes that a Parquet file has: two magics and the footer's length.
const LEAST_BYTES: u64 = 12;

/// Parquet files.
#[derive(Debug)]
pub(crate) struct Parquet {
    schema: SchemaRef,
    /// Only some columns are read: files may have others.
    picked: bool,
    /// The file that the schema is from, if it is known.
    model: Option<String>,
}

impl Parquet {
    /// Finds the schema in the footer of a file.
    pub(crate) async fn discover(
        ctx: &SourceContext,
        file: &FileRef,
        columns: Option<&[String]>,
    ) -> Result<Self> {
        let footer = footer(ctx, &SourceFile::new(ctx, file)?).await?;
        let all = arrow_schema_of(&footer, &file.url)?;
        let schema = match columns {
            None => all,
            Some(columns) => pick(&all, columns, &file.url)?,
        };
        Ok(Self { schema, picked: columns.is_some(), model: Some(file.url.clone()) })
    }

    /// Uses a known schema without reading a file.
    pub(crate) fn with_schema(schema: SchemaRef, columns: Option<&[String]>) -> Self {
        Self { schema, picked: columns.is_some(), model: None }
    }
}

/// The columns of a schema that a definition names, in its order.
pub(crate) fn pick(schema: &Schema, columns: &[String], url: &str) -> Result<SchemaRef> {
    let fields = columns
        .iter()
        .map(|name| {
            schema.fields().iter().find(|f| f.name() == name).cloned().ok_or_else(|| {
                let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
                Error::invalid(format!(
                    "{url}: has no column `{name}`{}; its columns are {}",
                    did_you_mean(name, &names),
                    names.join(", ")
                ))
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Schema::new(fields)))
}

fn damaged(url: &str, error: &ParquetError) -> Error {
    let text = error.to_string();
    let text = text.strip_prefix("Parquet error: ").unwrap_or(&text);
    Error::data_loss(format!("{url}: the file is damaged or is no Parquet file: {text}"))
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
    check_footer(url, start, size, tail.start, &bytes)?;
    decoder.push_range(tail, bytes).map_err(bad)?;
    loop {
        match decoder.try_decode().map_err(bad)? {
            DecodeResult::Data(metadata) => {
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

/// The type that a column is read as: one type of text and one of bytes, and no dictionaries, so that files of several
/// writers agree.
fn plain_type(t: &DataType) -> DataType {
    match t {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView => DataType::Binary,
        DataType::Dictionary(_, value) => plain_type(value),
        DataType::List(f) => {
            DataType::List(Arc::new(f.as_ref().clone().with_data_type(plain_type(f.data_type()))))
        }
        other => other.clone(),
    }
}

fn file_schema(footer: &ParquetMetaData, url: &str) -> Result<Schema> {
    let meta = footer.file_metadata();
    parquet_to_arrow_schema(meta.schema_descr(), meta.key_value_metadata()).map_err(|e| damaged(url, &e))
}

/// The schema of a file's rows as we read them: every column nullable, no metadata of the file format.
fn arrow_schema_of(footer: &ParquetMetaData, url: &str) -> Result<SchemaRef> {
    let fields: Fields = file_schema(footer, url)?
        .fields()
        .iter()
        .map(|f| {
            let mut metadata = f.metadata().clone();
            metadata.remove("PARQUET:field_id");
            Field::new(f.name(), plain_type(f.data_type()), true).with_metadata(metadata)
        })
        .collect();
    Ok(Arc::new(Schema::new(fields)))
}

impl Parquet {
    /// Refuses a file that has other columns than its siblings; else the index of every column of the
    /// schema in the file.
    fn check(&self, found: &Schema, url: &str) -> Result<Vec<usize>> {
        let model = self.model.as_deref().unwrap_or("the first file of the source");
        let differs = |what: String| {
            Error::invalid(format!(
                "{url}: its schema differs from that of {model}: {what}; give the source only files of one schema, \
                 or name the columns that they share in `columns`"
            ))
        };
        let mut at = Vec::with_capacity(self.schema.fields().len());
        for want in self.schema.fields() {
            let Some(i) = found.fields().iter().position(|f| f.name() == want.name()) else {
                return Err(differs(format!("it has no column `{}`", want.name())));
            };
            let is = plain_type(found.field(i).data_type());
            if &is != want.data_type() {
                return Err(differs(format!(
                    "column `{}` is {is} instead of {}",
                    want.name(),
                    want.data_type()
                )));
            }
            at.push(i);
        }
        if !self.picked
            && let Some(extra) =
                found.fields().iter().find(|f| self.schema.field_with_name(f.name()).is_err())
        {
            return Err(differs(format!("it has a column `{}`", extra.name())));
        }
        Ok(at)
    }
}

/// Packs consecutive row groups into splits of about `split_bytes`.
fn pack(file: &FileRef, footer: &ParquetMetaData, split_bytes: u64) -> Result<Vec<Split>> {
    let mut splits = Vec::new();
    let (mut first, mut count, mut bytes, mut rows) = (0u32, 0u32, 0u64, 0u64);
    let mut close = |first: u32, count: u32, rows: u64| {
        let all = first == 0 && count as usize == footer.num_row_groups();
        let range = if all { SplitRange::Whole } else { SplitRange::RowGroups { first, count } };
        splits.push(file_split(file, range, Some(rows)));
    };
    for group in footer.row_groups() {
        let size = group.compressed_size().max(0).cast_unsigned();
        if count > 0 && bytes + size / 2 >= split_bytes {
            close(first, count, rows);
            (first, count, bytes, rows) = (first + count, 0, 0, 0);
        }
        count += 1;
        bytes += size;
        rows += u64::try_from(group.num_rows()).map_err(|_| {
            Error::data_loss(format!("{}: a row group has {} rows", file.url, group.num_rows()))
        })?;
    }
    if rows > 0 {
        close(first, count, rows);
    }
    Ok(splits)
}

impl Parquet {
    fn clone_for_check(&self) -> Self {
        Self { schema: Arc::clone(&self.schema), picked: self.picked, model: self.model.clone() }
    }
}

impl Format for Parquet {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn cut(
        &self,
        ctx: &SourceContext,
        file: FileRef,
        split_bytes: u64,
    ) -> BoxFuture<'static, Result<Vec<Split>>> {
        let (ctx, me) = (ctx.clone(), self.clone_for_check());
        Box::pin(async move {
            let footer = footer(&ctx, &SourceFile::new(&ctx, &file)?).await?;
            me.check(&file_schema(&footer, &file.url)?, &file.url)?;
            pack(&file, &footer, split_bytes)
        })
    }

    fn read(
        &self,
        ctx: &SourceContext,
        file: Arc<SourceFile>,
        split: &Split,
        options: &ReadOptions,
    ) -> BoxStream<'static, Result<RecordBatch>> {
        let (ctx, me, options) = (ctx.clone(), self.clone_for_check(), options.clone());
        let (range, trim) = (split.range.clone(), split.trim);
        let open = async move {
            let footer = footer(&ctx, &file).await?;
            let bounds = PageBounds { footer: Arc::clone(&footer), most: ctx.limits.chunk_bytes };
            Reader::open(&me, file, footer, bounds, &range, trim, &options)
        };
        stream::once(open)
            .flat_map(|reader| match reader {
                Ok(reader) => {
                    stream::try_unfold(reader, |mut r| async move { Ok(r.batch().await?.map(|b| (b, r))) })
                        .boxed()
                }
                Err(e) => stream::once(async move { Err(e) }).boxed(),
            })
            .boxed()
    }

    fn trims(&self) -> bool {
        true
    }

    fn filters(&self) -> bool {
        true
    }
}

/// The error of a predicate; the decoder passes on its text alone.
type PredicateError = Arc<Mutex<Option<Error>>>;

/// The predicate as the decoder runs it: over the file's columns, in the order of the file.
fn row_predicate(
    predicate: &RowPredicate,
    parquet: &Parquet,
    places: &[usize],
    descr: &SchemaDescriptor,
    failed: &PredicateError,
) -> Result<Box<dyn ArrowPredicate>> {
    let lost = || Error::internal("a predicate looks at a column that the source does not have");
    let roots: Vec<usize> =
        predicate.columns.iter().map(|&c| places.get(c).copied().ok_or_else(lost)).collect::<Result<_>>()?;
    let schema = parquet.schema.project(&predicate.columns).map_err(|_| lost())?;
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

/// Where each of the given columns is among them in the order of the file.
fn file_order(roots: &[usize]) -> Vec<usize> {
    let mut sorted = roots.to_vec();
    sorted.sort_unstable();
    roots.iter().map(|r| sorted.partition_point(|s| s < r)).collect()
}

struct Reader {
    file: Arc<SourceFile>,
    decoder: ParquetPushDecoder,
    /// Of the batches that leave, in the order that was asked for.
    schema: SchemaRef,
    /// Where each column of `schema` is in the decoder's batches.
    order: Vec<usize>,
    failed: PredicateError,
    bounds: PageBounds,
}

impl Reader {
    fn open(
        parquet: &Parquet,
        file: Arc<SourceFile>,
        footer: Arc<ParquetMetaData>,
        bounds: PageBounds,
        range: &SplitRange,
        trim: Option<(u64, u64)>,
        options: &ReadOptions,
    ) -> Result<Self> {
        let url = file.file.url.clone();
        let bad = |e: ParquetError| damaged(&url, &e);
        let found = file_schema(&footer, &url)?;
        let places = parquet.check(&found, &url)?;
        let wanted: Vec<usize> = match &options.projection {
            Some(p) => p.clone(),
            None => (0..parquet.schema.fields().len()).collect(),
        };
        // What the decoder is told to make of the file's columns.
        let mut hint: Vec<Field> = found
            .fields()
            .iter()
            .map(|f| f.as_ref().clone().with_data_type(plain_type(f.data_type())))
            .collect();
        let mut fields = Vec::with_capacity(wanted.len());
        let mut roots = Vec::with_capacity(wanted.len());
        for &i in &wanted {
            let (Some(field), Some(&at)) = (parquet.schema.fields().get(i), places.get(i)) else {
                return Err(Error::internal(format!("{url}: there is no column {i} to read")));
            };
            let mut field = field.as_ref().clone();
            if options.keep_dictionaries.contains(&i) && field.data_type() == &DataType::Utf8 {
                let kept = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
                field = field.with_data_type(kept.clone());
                hint[at] = hint[at].clone().with_data_type(kept);
            }
            fields.push(field);
            roots.push(at);
        }
        let hint = Schema::new_with_metadata(hint, found.metadata().clone());
        let reader_options = ArrowReaderOptions::new().with_schema(Arc::new(hint));
        let metadata = ArrowReaderMetadata::try_new(Arc::clone(&footer), reader_options).map_err(bad)?;
        let groups: Vec<usize> = match range {
            SplitRange::Whole => (0..footer.num_row_groups()).collect(),
            SplitRange::RowGroups { first, count } => (*first as usize..(*first + *count) as usize).collect(),
            _ => return Err(Error::internal(format!("{url}: not a split of row groups"))),
        };
        if groups.last().is_some_and(|&g| g >= footer.num_row_groups()) {
            return Err(Error::internal(format!("{url}: has no row group {}", groups[groups.len() - 1])));
        }
        let failed = PredicateError::default();
        let predicates = options
            .predicates
            .iter()
            .map(|p| row_predicate(p, parquet, &places, metadata.parquet_schema(), &failed))
            .collect::<Result<Vec<_>>>()?;
        let mask = ProjectionMask::roots(metadata.parquet_schema(), roots.iter().copied());
        let rows = batch_rows(groups.iter().map(|&g| footer.row_group(g)), &mask, options);
        let mut builder = ParquetPushDecoderBuilder::new_with_metadata(metadata)
            .with_row_groups(groups)
            .with_projection(mask)
            .with_batch_size(rows);
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
            failed,
            bounds,
        })
    }

    async fn batch(&mut self) -> Result<Option<RecordBatch>> {
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
                        self.bounds.check(&self.file.file.url, range.start, bytes)?;
                    }
                    self.decoder.push_ranges(ranges, data).map_err(|e| damaged(&self.file.file.url, &e))?;
                }
                DecodeResult::Data(batch) => {
                    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                    let columns = self.order.iter().map(|&i| Arc::clone(batch.column(i))).collect();
                    return RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options)
                        .map(Some)
                        .map_err(|e| Error::internal(format!("{}: {e}", self.file.file.url)));
                }
            }
        }
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
