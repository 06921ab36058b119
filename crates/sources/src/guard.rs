//! Checks on the reading of every format: a panic of a decoder is an error that names the file, and a split must have the
//! number of rows that its file states.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use arrow_array::RecordBatch;
use caju_runtime::Caught;
use caju_types::{Error, Result};
use futures::stream::{self, BoxStream, Stream, StreamExt};

use crate::source::{ReadOptions, RowPredicate, SkipFn, Source};
use crate::split::Split;
use crate::split_reader::failed;

/// The rows of a split from [`Source::read`]. Panics become errors, and the rows are counted.
///
/// The stream fails if there are more rows than the split's file states, or fewer at its end.
pub fn read_split(
    source: &dyn Source,
    split: &Split,
    options: &ReadOptions,
) -> BoxStream<'static, Result<RecordBatch>> {
    let place = split.describe();
    if split.trim.is_some() && has_predicates(source, options) {
        return failed(Error::internal(format!(
            "{place}: rows of it were chosen by their numbers, which a predicate of its reader changes"
        )));
    }
    let (options, expected) = Expected::of(source, split, options);
    let rows = match caju_runtime::catch(&place, || source.read(split, &options)) {
        Ok(rows) => rows,
        Err(e) => failed(e),
    };
    let of = place.clone();
    let rows = Caught::new(rows, move |panic: &str| undecodable(&of, panic));
    match expected {
        Some(expected) => Counted { rows, expected, place, over: false }.boxed(),
        None => rows.boxed(),
    }
}

/// Whether the source drops rows while it reads them. It gets no split with a `trim` then: where rows are chosen by their
/// numbers, filters are stages.
fn has_predicates(source: &dyn Source, options: &ReadOptions) -> bool {
    source.filters() && !options.predicates.is_empty()
}

/// Runs the discovery of a file's schema or splits; a panic in it is an error that names the file.
///
/// # Errors
/// Those of the work; `DataLoss` for a panic.
pub(crate) async fn planned<T>(url: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut result = Caught::new(Box::pin(stream::once(work)), |panic: &str| undecodable(url, panic));
    result.next().await.unwrap_or_else(|| Err(Error::internal(format!("{url}: nothing was found"))))
}

fn undecodable(place: &str, panic: &str) -> Error {
    Error::data_loss(format!(
        "{place}: the file is damaged, or this version cannot read it: its decoder gave up: {panic}; write the file \
         again, or leave it out of `path`"
    ))
}

/// The rows that a split must have.
struct Expected {
    rows: u64,
    /// Rows so far: those of the batches, or those that the first predicate saw.
    seen: Arc<AtomicU64>,
    /// Rows are counted at the predicate, not in the batches.
    by_predicate: bool,
    /// Bad rows that were skipped.
    skipped: Arc<AtomicU64>,
}

impl Expected {
    /// The known number of rows of a split, and the options that count them; none if it is not known.
    fn of(source: &dyn Source, split: &Split, options: &ReadOptions) -> (ReadOptions, Option<Self>) {
        let mut options = options.clone();
        let by_predicate = has_predicates(source, &options);
        let Some(rows) = split.trimmed_rows() else { return (options, None) };
        let (seen, skipped) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        if let Some(first) = options.predicates.first_mut().filter(|_| by_predicate) {
            *first = counting(first, &seen);
        }
        if let Some(skip) = options.skip.take() {
            options.skip = Some(counting_skips(skip, &skipped));
        }
        (options, Some(Self { rows, seen, by_predicate, skipped }))
    }

    /// Counts a batch.
    ///
    /// # Errors
    /// There are more rows than there can be.
    fn count(&self, place: &str, batch: &RecordBatch) -> Result<()> {
        if !self.by_predicate {
            self.seen.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        }
        let seen = self.seen.load(Ordering::Relaxed);
        if seen > self.rows { Err(self.differs(place, seen)) } else { Ok(()) }
    }

    /// # Errors
    /// There were fewer rows than there must be.
    fn finish(&self, place: &str) -> Result<()> {
        let (seen, skipped) = (self.seen.load(Ordering::Relaxed), self.skipped.load(Ordering::Relaxed));
        if seen <= self.rows && seen + skipped >= self.rows { Ok(()) } else { Err(self.differs(place, seen)) }
    }

    fn differs(&self, place: &str, seen: u64) -> Error {
        let how = if seen > self.rows { "at least " } else { "" };
        Error::data_loss(format!(
            "{place}: the file is damaged: it says that {} rows are there, and {how}{seen} were read; write the file \
             again, or leave it out of `path`",
            self.rows
        ))
    }
}

fn counting(predicate: &RowPredicate, seen: &Arc<AtomicU64>) -> RowPredicate {
    let (test, seen) = (Arc::clone(&predicate.test), Arc::clone(seen));
    let test = Arc::new(move |batch: &RecordBatch| {
        seen.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        test(batch)
    });
    RowPredicate { columns: predicate.columns.clone(), test }
}

fn counting_skips(skip: SkipFn, skipped: &Arc<AtomicU64>) -> SkipFn {
    let skipped = Arc::clone(skipped);
    Arc::new(move |e| {
        skipped.fetch_add(1, Ordering::Relaxed);
        skip(e);
    })
}

/// A stream that counts its batches.
struct Counted<S> {
    rows: S,
    expected: Expected,
    place: String,
    over: bool,
}

impl<S: Stream<Item = Result<RecordBatch>> + Unpin> Stream for Counted<S> {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let me = &mut *self;
        if me.over {
            return Poll::Ready(None);
        }
        let item = match ready!(me.rows.poll_next_unpin(cx)) {
            Some(Ok(batch)) => Some(me.expected.count(&me.place, &batch).map(|()| batch)),
            Some(Err(e)) => Some(Err(e)),
            None => me.expected.finish(&me.place).err().map(Err),
        };
        me.over = !matches!(item, Some(Ok(_)));
        Poll::Ready(item)
    }
}

#[cfg(test)]
#[path = "guard_tests.rs"]
mod tests;
