//! What the readers of all formats share: a reader becomes a stream of batches, and rows are gathered up to the bounds of one.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::SchemaRef;
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use crate::source::ReadOptions;

/// The rows of a split.
pub(crate) type Rows = BoxStream<'static, Result<RecordBatch>>;

/// Reads the rows of one split.
pub(crate) trait SplitReader: Send + 'static {
    /// The next rows; none at the end of the split. Batches keep to the bounds of the reader's options.
    fn next(&mut self) -> impl Future<Output = Result<Option<Vec<RecordBatch>>>> + Send;
}

/// The rows of a reader that is opened when they are first wanted.
pub(crate) fn open_rows<R: SplitReader>(open: impl Future<Output = Result<R>> + Send + 'static) -> Rows {
    let batches =
        |reader: R| stream::try_unfold(reader, |mut r| async move { Ok(r.next().await?.map(|b| (b, r))) });
    stream::once(open)
        .map_ok(batches)
        .try_flatten()
        .map_ok(|batches| stream::iter(batches.into_iter().map(Ok)))
        .try_flatten()
        .boxed()
}

/// No rows but an error.
pub(crate) fn failed(error: Error) -> Rows {
    stream::once(async move { Err(error) }).boxed()
}

/// A batch of this number of rows, which has a meaning without columns too.
///
/// # Errors
/// `Internal` if the columns do not fit the schema.
pub(crate) fn batch_of(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
        .map_err(|e| Error::internal(e.to_string()))
}

/// Rows for the next batch, up to its bounds. The first row always fits.
#[derive(Debug)]
pub(crate) struct PendingRows<T> {
    max_rows: usize,
    max_bytes: usize,
    rows: Vec<T>,
    bytes: usize,
    /// A row that did not fit, and its bytes: the first one of the batch after that.
    next: Option<(T, usize)>,
}

impl<T> PendingRows<T> {
    /// No rows yet. Offsets within a batch have 31 bits, so it never gets more than 1 GiB by many rows.
    pub(crate) fn new(options: &ReadOptions) -> Self {
        let (max_rows, max_bytes) = (options.batch_rows.max(1), options.batch_bytes.clamp(1, 1 << 30));
        Self { max_rows, max_bytes, rows: Vec::new(), bytes: 0, next: None }
    }

    /// Whether no further row fits.
    pub(crate) fn is_full(&self) -> bool {
        self.rows.len() >= self.max_rows || self.next.is_some()
    }

    /// Adds a row. Must not be called when no further row fits.
    pub(crate) fn push(&mut self, row: T, bytes: usize) {
        if !self.rows.is_empty() && self.bytes + bytes > self.max_bytes {
            self.next = Some((row, bytes));
            return;
        }
        self.bytes += bytes;
        self.rows.push(row);
    }

    /// The rows of a batch.
    pub(crate) fn take(&mut self) -> Vec<T> {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        if let Some((row, bytes)) = self.next.take() {
            self.push(row, bytes);
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_gathered_up_to_the_bounds_of_a_batch() {
        let options = ReadOptions { batch_rows: 3, batch_bytes: 10, ..ReadOptions::default() };
        let mut pending = PendingRows::new(&options);
        let mut batches = Vec::new();
        // 25 bytes fit alone; 4, 6 fill a batch by bytes; 1, 1, 1 by rows; 2 is left.
        for (row, bytes) in [25, 4, 6, 1, 1, 1, 2].into_iter().enumerate() {
            if pending.is_full() {
                batches.push(pending.take());
            }
            pending.push(row, bytes);
        }
        batches.push(pending.take());
        assert_eq!(batches, [vec![0], vec![1, 2], vec![3, 4, 5], vec![6]]);
        assert!(pending.take().is_empty());
    }
}
