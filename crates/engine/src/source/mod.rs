//! Sources: where rows come from (design §3).
//!
//! [`open_source`] turns a [`SourceDef`] into a [`Source`], which lists [`Split`]s lazily, in canonical
//! order, and reads the rows of one split as a stream of capped record batches. Reads are bound to the
//! version of the file that was listed: a file that changed since is an error, never other rows.

mod split;

use std::fmt;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use caju_pipeline::SourceDef;
use caju_runtime::{IoCounters, Stores};
use caju_types::{Error, Result};
use futures::stream::BoxStream;

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
}

/// Bounds of memory of one reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLimits {
    /// The size of one ranged read of a byte-oriented format.
    pub block_bytes: u64,
    /// The largest single record; a longer one is a data error that names it.
    pub max_record_bytes: u64,
}

impl Default for SourceLimits {
    fn default() -> Self {
        Self { block_bytes: 4 << 20, max_record_bytes: 1 << 30 }
    }
}

/// Called for every row that is passed over under `on_error: skip`, with the error.
pub type SkipFn = Arc<dyn Fn(Error) + Send + Sync>;

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
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            projection: None,
            batch_rows: 8192,
            batch_bytes: 8 << 20,
            skip: None,
            keep_dictionaries: Vec::new(),
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
    let _ = (def, ctx, schema);
    Err(Error::unimplemented("sources"))
}
