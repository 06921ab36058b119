//! Sources: where rows come from (design §3).
//!
//! [`open_source`] turns a [`SourceDef`] into a [`Source`], which lists [`Split`]s lazily, in canonical
//! order, and reads the rows of one split as a stream of capped record batches. Reads are bound to the
//! version of the file that was listed: a file that changed since is an error, never other rows.

mod cache;
mod combine;
mod csv;
mod example;
mod feed;
mod file;
mod files;
mod guard;
mod held;
mod images;
mod ipc;
mod ipc_bounds;
mod json;
mod known;
mod lines;
mod load;
mod parquet;
mod parquet_bounds;
mod plain;
mod sniff;
mod split;
mod tar;
#[cfg(test)]
mod test_util;
mod tfrecord;
mod thrift;
mod trim;
mod walk;
mod webdataset;
mod zip;

use std::fmt;
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use caju_kernels::Limits;
use caju_pipeline::{DatasetDef, FileFormat, FileSource, SourceDef};
use caju_runtime::{IoCounters, Stores};
use caju_types::{Error, Result};
use futures::future::BoxFuture;
use futures::stream::{BoxStream, StreamExt};

pub use cache::SourceCaches;
pub use example::{feature_field, parse_example};
pub use guard::read_split;
pub use held::{HeldRows, hold};
pub use known::KnownFiles;
pub use split::{FileRef, FileVersion, KeyHasher, Split, SplitRange, split_key};

/// What sources need from the process they run in. Cheap to clone.
#[derive(Debug, Clone)]
pub struct SourceContext {
    /// Resolves URLs to object stores.
    pub stores: Arc<Stores>,
    /// Counts what is read.
    pub io: Arc<IoCounters>,
    /// Bounds of memory.
    pub limits: SourceLimits,
    /// What readers remember of files; share it for the life of the process.
    pub caches: SourceCaches,
    /// What an earlier listing of the source that is opened says.
    pub known: KnownFiles,
}

impl SourceContext {
    /// A context with default limits and empty caches.
    pub fn new(stores: Arc<Stores>, io: Arc<IoCounters>) -> Self {
        Self {
            stores,
            io,
            limits: SourceLimits::default(),
            caches: SourceCaches::default(),
            known: KnownFiles::default(),
        }
    }

    /// The same with other bounds of memory.
    #[must_use]
    pub fn within(mut self, limits: SourceLimits) -> Self {
        self.limits = limits;
        self
    }

    /// The same for a source of which an earlier listing is known.
    #[must_use]
    pub fn knowing(mut self, known: KnownFiles) -> Self {
        self.known = known;
        self
    }

    /// Whether a source begins with the file with which its known listing did: then it has the same columns.
    ///
    /// # Errors
    /// What listing it says.
    pub async fn begins_as_known(&self, def: &SourceDef) -> Result<bool> {
        let SourceDef::Files(files) = def else { return Ok(false) };
        Ok(self.known.begins_with(&first_file(files, self).await?))
    }
}

/// Bounds of memory of one reader. A task has up to 16 readers at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLimits {
    /// The size of one ranged read of a byte-oriented format.
    pub block_bytes: u64,
    /// The largest single record (a line, a record, a file of an archive, an image file); a longer one is a data error
    /// that names it. A reader can hold it twice.
    pub max_record_bytes: u64,
    /// The most that a compressed record batch of an Arrow file, or a page of a Parquet file, may become in memory.
    pub chunk_bytes: u64,
}

impl SourceLimits {
    /// The bounds of a process, as far as sources go.
    pub fn of(limits: &Limits) -> Self {
        Self {
            block_bytes: 4 << 20,
            max_record_bytes: limits.max_record_bytes,
            chunk_bytes: limits.chunk_bytes,
        }
    }
}

impl Default for SourceLimits {
    fn default() -> Self {
        Self::of(&Limits::default())
    }
}

/// Called for every row that is passed over under `on_error: skip`, with the error.
pub type SkipFn = Arc<dyn Fn(Error) + Send + Sync>;

/// One boolean per row of a batch.
pub type RowTest = Arc<dyn Fn(&RecordBatch) -> Result<BooleanArray> + Send + Sync>;

/// Decides which rows are wanted, from the columns that it names.
#[derive(Clone)]
pub struct RowPredicate {
    /// Indices of the columns of [`Source::schema`] that it looks at, ascending.
    pub columns: Vec<usize>,
    /// One boolean per row of a batch of exactly these columns, in this order; null is false.
    pub test: RowTest,
}

/// How to read a split.
#[derive(Clone)]
pub struct ReadOptions {
    /// Indices of the columns of [`Source::schema`] to read, ascending; all if absent. The batches have
    /// exactly these columns, in this order.
    pub projection: Option<Vec<usize>>,
    /// The most rows of a batch; at least 1.
    pub batch_rows: usize,
    /// The nominal most bytes of a batch; a single larger row is a batch of its own.
    pub batch_bytes: usize,
    /// Under `on_error: skip`: told about every bad row that is passed over. Absent: bad rows are errors.
    pub skip: Option<SkipFn>,
    /// Columns (indices of [`Source::schema`]) for which the reader may keep a dictionary
    /// (`Dictionary(Int32, Utf8)` instead of `Utf8`) where the file has one. Empty by default.
    pub keep_dictionaries: Vec<usize>,
    /// Only the rows that pass all of these are wanted. Sources for which
    /// [`Source::filters`] is false take no notice.
    pub predicates: Vec<RowPredicate>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            projection: None,
            batch_rows: 8192,
            batch_bytes: 8 << 20,
            skip: None,
            keep_dictionaries: Vec::new(),
            predicates: Vec::new(),
        }
    }
}

impl fmt::Debug for ReadOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadOptions")
            .field("projection", &self.projection)
            .field("batch_rows", &self.batch_rows)
            .field("batch_bytes", &self.batch_bytes)
            .field("skip", &self.skip.is_some())
            .field("keep_dictionaries", &self.keep_dictionaries)
            .field("predicates", &self.predicates.len())
            .finish()
    }
}

/// An opened source.
///
/// The streams own what they need: they outlive the borrow of the source.
pub trait Source: Send + Sync {
    /// The schema of the rows. For `concatenate`, `sample` and `zip` of datasets that have stages this is
    /// of no use; see [`Source::children`].
    fn schema(&self) -> SchemaRef;

    /// Splits in canonical (file, range) order, found while the stream is polled.
    fn splits(&self) -> BoxStream<'static, Result<Split>>;

    /// The rows of one split, in order, without rows outside `split.trim`.
    fn read(&self, split: &Split, options: &ReadOptions) -> BoxStream<'static, Result<RecordBatch>>;

    /// Whether [`Source::read`] honours [`ReadOptions::predicates`], and spares work by it.
    fn filters(&self) -> bool {
        false
    }

    /// The opened sources of a combinator's datasets, in the order of the definition; empty for others.
    ///
    /// A split of `concatenate` or `sample` names its child in `split.child[0]`; the engine runs that
    /// child's stages on it. [`child_split`] gives the split as the child knows it.
    fn children(&self) -> &[Arc<dyn Source>] {
        &[]
    }
}

/// The split as the child source `split.child[0]` knows it, with the child's index.
pub fn child_split(split: &Split) -> Option<(usize, Split)> {
    let (&first, rest) = split.child.split_first()?;
    Some((first as usize, Split { child: rest.to_vec(), ..split.clone() }))
}

/// Opens a definition's source, recursively, and finds its schema.
///
/// `schema`: the schema that somebody else found (the dispatcher), trusted without looking at a file.
///
/// # Errors
/// `NotFound` for a missing file or a glob without a match, `InvalidArgument` for files of another shape
/// than the definition says, and what the stores report.
pub async fn open_source(
    def: &SourceDef,
    ctx: &SourceContext,
    schema: Option<SchemaRef>,
) -> Result<Arc<dyn Source>> {
    open(def, ctx, schema).await
}

fn open<'a>(
    def: &'a SourceDef,
    ctx: &'a SourceContext,
    schema: Option<SchemaRef>,
) -> BoxFuture<'a, Result<Arc<dyn Source>>> {
    Box::pin(async move {
        Ok(match def {
            SourceDef::Files(files) => open_files(files, ctx, schema).await?,
            SourceDef::Range { start, end, step } => Arc::new(plain::RangeSource::new(*start, *end, *step)?),
            SourceDef::Memory { ipc } => Arc::new(plain::MemorySource::new(ipc, ctx.limits.chunk_bytes)?),
            SourceDef::Held { sha256 } => Arc::new(plain::MemorySource::of(held::held(sha256)?)),
            SourceDef::Load { path, wait } => {
                Arc::new(load::LoadSource::open(path, *wait, ctx, schema).await?)
            }
            SourceDef::Concatenate(datasets) => {
                let children = open_children(datasets, ctx).await?;
                Arc::new(combine::Concatenated { children })
            }
            SourceDef::Sample { datasets, weights, .. } => {
                if datasets.len() != weights.len() || weights.iter().any(|w| !w.is_finite() || *w <= 0.0) {
                    return Err(Error::invalid("source sample: give one positive weight per dataset"));
                }
                let children = open_children(datasets, ctx).await?;
                Arc::new(combine::Sampled { children, weights: weights.clone() })
            }
            SourceDef::Zip(datasets) => {
                Arc::new(zip::Zipped::new(datasets, open_children(datasets, ctx).await?)?)
            }
        })
    })
}

async fn open_children(datasets: &[DatasetDef], ctx: &SourceContext) -> Result<Vec<Arc<dyn Source>>> {
    let mut children = Vec::with_capacity(datasets.len());
    for (i, dataset) in datasets.iter().enumerate() {
        children.push(open(&dataset.source, ctx, None).await.map_err(|e| e.context(format!("dataset {i}")))?);
    }
    Ok(children)
}

/// The first file of a source: errors such as an empty glob show here, before anything runs.
async fn first_file(def: &FileSource, ctx: &SourceContext) -> Result<FileRef> {
    let listed = FileSource { version: caju_pipeline::VersionRule::Listed, ..def.clone() };
    match files::list_files(ctx, &listed).next().await {
        Some(file) => file,
        None => Err(Error::invalid("the source names no files; give `path`")),
    }
}

async fn open_files(
    def: &FileSource,
    ctx: &SourceContext,
    schema: Option<SchemaRef>,
) -> Result<Arc<dyn Source>> {
    let first = match schema {
        Some(_) => None,
        None => Some(first_file(def, ctx).await?),
    };
    Ok(match &def.format {
        FileFormat::TfRecord { compression } => {
            Arc::new(files::FilesSource::new(tfrecord::TfRecord::new(*compression), def, ctx))
        }
        FileFormat::Parquet { columns } => {
            let columns = columns.as_deref();
            let format = match (schema, &first) {
                (Some(schema), _) => parquet::Parquet::with_schema(schema, columns),
                (None, Some(first)) => {
                    guard::planned(&first.url, parquet::Parquet::discover(ctx, first, columns)).await?
                }
                (None, None) => return Err(Error::internal("neither a schema nor a file")),
            };
            Arc::new(files::FilesSource::new(format, def, ctx))
        }
        FileFormat::WebDataset { compression, columns } => {
            let columns = columns.as_deref();
            let format = match (schema, &first) {
                (Some(schema), _) => {
                    webdataset::WebDataset::with_schema(schema, *compression, columns.is_some())
                }
                (None, Some(first)) => {
                    let found = webdataset::WebDataset::discover(ctx, first, *compression, columns);
                    guard::planned(&first.url, found).await?
                }
                (None, None) => return Err(Error::internal("neither a schema nor a file")),
            };
            Arc::new(files::FilesSource::new(format, def, ctx))
        }
        FileFormat::Csv { header, delimiter, schema: given, compression } => {
            let delimiter = u8::try_from(*delimiter).ok().filter(u8::is_ascii).ok_or_else(|| {
                Error::invalid(format!("source csv: the delimiter `{delimiter}` is not an ASCII character"))
            })?;
            let given = given.as_ref().map(|g| lines::given_schema(g, "csv")).transpose()?;
            let text = csv::Csv { header: *header, delimiter };
            let format = lines::Lines::open(ctx, text, *compression, schema.or(given), first.as_ref());
            let format = guard::planned(name_of(first.as_ref()), format).await?;
            Arc::new(files::FilesSource::new(format, def, ctx))
        }
        FileFormat::Json { schema: given, compression } => {
            let given = given.as_ref().map(|g| lines::given_schema(g, "json")).transpose()?;
            let format = lines::Lines::open(ctx, json::Json, *compression, schema.or(given), first.as_ref());
            let format = guard::planned(name_of(first.as_ref()), format).await?;
            Arc::new(files::FilesSource::new(format, def, ctx))
        }
        FileFormat::Arrow { columns } => {
            let format = match (schema, &first) {
                (Some(schema), _) => ipc::Ipc::with_schema(schema, columns.is_some()),
                (None, Some(first)) => {
                    guard::planned(&first.url, ipc::Ipc::discover(ctx, first, columns.as_deref())).await?
                }
                (None, None) => return Err(Error::internal("neither a schema nor a file")),
            };
            Arc::new(files::FilesSource::new(format, def, ctx))
        }
        FileFormat::Images => Arc::new(images::ImagesSource::new(ctx, def)),
    })
}

/// What errors call the file in which a schema is looked for.
fn name_of(first: Option<&FileRef>) -> &str {
    first.map_or("the source", |f| f.url.as_str())
}

/// A TFRecord file, for tests.
#[cfg(test)]
fn tfrecord_file(records: &[&[u8]]) -> Vec<u8> {
    tfrecord::tests::encode(&records.iter().map(|r| r.to_vec()).collect::<Vec<_>>())
}

#[cfg(test)]
mod s3_tests;
#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "test data")]
mod tests;
