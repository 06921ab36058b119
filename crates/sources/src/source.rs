//! The interface of every source: what it lists, and how its rows are read.

use std::fmt;
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use caju_types::{Error, Result};
use futures::stream::BoxStream;

use crate::split::Split;

/// Called for every row that is skipped under `on_error: skip`, with the error.
pub type SkipFn = Arc<dyn Fn(Error) + Send + Sync>;

/// One boolean per row of a batch.
pub type RowTest = Arc<dyn Fn(&RecordBatch) -> Result<BooleanArray> + Send + Sync>;

/// Decides from some columns which rows are read.
#[derive(Clone)]
pub struct RowPredicate {
    /// Indices of the columns of [`Source::schema`] that it reads, ascending.
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
    /// Under `on_error: skip`: called for every bad row that is skipped. Absent: bad rows are errors.
    ///
    /// Which rows are bad does not depend on `projection`: a reader that skips rows checks all columns. A reader without `skip`
    /// may read a row of which a column that is not asked for is bad.
    pub skip: Option<SkipFn>,
    /// Text columns (indices of [`Source::schema`]) that are read as `Dictionary(Int32, Utf8)` instead of `Utf8`, by sources for
    /// which [`Source::keeps_dictionaries`] is true. Empty by default.
    pub keep_dictionaries: Vec<usize>,
    /// Only rows that pass all of these are read. Sources for which [`Source::filters`] is false ignore them.
    pub predicates: Vec<RowPredicate>,
}

impl ReadOptions {
    /// Reports a bad row that is skipped.
    ///
    /// # Errors
    /// The error, unless bad rows are skipped.
    pub(crate) fn skip_or_fail(&self, error: Error) -> Result<()> {
        match &self.skip {
            Some(skip) => {
                skip(error);
                Ok(())
            }
            None => Err(error),
        }
    }

    /// The columns to read, of a source that has this number of them.
    pub(crate) fn columns(&self, columns: usize) -> Vec<usize> {
        self.projection.clone().unwrap_or_else(|| (0..columns).collect())
    }
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
    /// The schema of the rows. For `concatenate`, `sample` and `zip` of datasets that have stages it is not
    /// the schema of their rows; see [`Source::children`].
    fn schema(&self) -> SchemaRef;

    /// Splits in canonical (file, range) order, found while the stream is polled.
    fn splits(&self) -> BoxStream<'static, Result<Split>>;

    /// The rows of one split, in order, without rows outside `split.trim`.
    fn read(&self, split: &Split, options: &ReadOptions) -> BoxStream<'static, Result<RecordBatch>>;

    /// Whether [`Source::read`] applies [`ReadOptions::predicates`].
    fn filters(&self) -> bool {
        false
    }

    /// Whether [`Source::read`] gives the columns of [`ReadOptions::keep_dictionaries`] with dictionaries.
    fn keeps_dictionaries(&self) -> bool {
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
