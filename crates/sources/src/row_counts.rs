//! Rows of splits whose files do not state their number, as earlier reads of the process counted them: a later epoch must read
//! as many.
//!
//! A changed file has another version, and splits of other keys. What remains are files that change without one, and stores
//! that answer short.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use arrow_array::RecordBatch;
use caju_types::{Error, Result, hash128};
use futures::stream::{BoxStream, Stream, StreamExt};

use crate::caches::{CountedSplit, SourceCaches};
use crate::source::ReadOptions;
use crate::split::Split;

/// The identity of a reader's options.
pub(crate) fn identity_of(format: &impl std::fmt::Debug) -> u128 {
    hash128(format!("{format:?}").as_bytes())
}

/// The options and the rows of a split, whose number is compared with that of earlier reads, and kept for later ones.
pub(crate) fn compared(
    caches: &SourceCaches,
    format: u128,
    split: &Split,
    options: &ReadOptions,
    read: impl FnOnce(&ReadOptions) -> BoxStream<'static, Result<RecordBatch>>,
) -> BoxStream<'static, Result<RecordBatch>> {
    let is_part = split.trim.is_some() || !options.predicates.is_empty();
    if split.rows.is_some() || is_part {
        return read(options);
    }
    let skipped = Arc::<AtomicU64>::default();
    let mut options = options.clone();
    if let Some(skip) = options.skip.take() {
        let skipped = Arc::clone(&skipped);
        options.skip = Some(Arc::new(move |e| {
            skipped.fetch_add(1, Ordering::Relaxed);
            skip(e);
        }));
    }
    let rows = read(&options);
    let (caches, of, place) = (caches.clone(), (format, split.key), split.describe());
    Compared { rows, caches, of, place, seen: 0, skipped, over: false }.boxed()
}

struct Compared {
    rows: BoxStream<'static, Result<RecordBatch>>,
    caches: SourceCaches,
    of: CountedSplit,
    place: String,
    seen: u64,
    /// Bad rows that were left out.
    skipped: Arc<AtomicU64>,
    over: bool,
}

impl Compared {
    /// # Errors
    /// `FailedPrecondition` if an earlier read found another number of rows.
    fn finish(&self) -> Result<()> {
        let skipped = self.skipped.load(Ordering::Relaxed);
        match self.caches.rows(&self.of) {
            // A skip may stand for several rows.
            Some(before) if self.seen > before || skipped == 0 && self.seen < before => {
                Err(Error::failed_precondition(format!(
                    "{}: {} rows were read, and {before} before, of the same version of the file: it was changed without a \
                     change of its version; set `version: content` for the source, or write changed files under other names",
                    self.place, self.seen
                )))
            }
            Some(_) => Ok(()),
            None if skipped > 0 => Ok(()),
            None => {
                self.caches.insert_rows(self.of, self.seen);
                Ok(())
            }
        }
    }
}

impl Stream for Compared {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let me = &mut *self;
        if me.over {
            return Poll::Ready(None);
        }
        let item = ready!(me.rows.poll_next_unpin(cx));
        me.over = !matches!(item, Some(Ok(_)));
        Poll::Ready(match item {
            Some(Ok(batch)) => {
                me.seen += batch.num_rows() as u64;
                Some(Ok(batch))
            }
            Some(Err(e)) => Some(Err(e)),
            None => me.finish().err().map(Err),
        })
    }
}

#[cfg(test)]
mod tests {
    use caju_pipeline::{Compression, FileFormat};
    use caju_types::{ErrorKind, SplitKey};

    use super::*;
    use crate::test_util::{context, def, open, rows, splits};

    /// A store's version of a file may stay as it is while the file changes: the epoch is no shorter in silence.
    #[tokio::test]
    async fn a_later_epoch_has_the_rows_that_an_earlier_one_had() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        let text = |rows: usize, width: usize| format!("x\n{}", format!("{:0width$}\n", 7).repeat(rows));
        let ctx = context();
        let read = async |header: bool, key| {
            let format =
                FileFormat::Csv { header, delimiter: ',', schema: None, compression: Compression::Auto };
            let source = open(&ctx, &def(format, path.to_str().unwrap())).await.unwrap();
            let mut split = splits(&source).await.unwrap().remove(0);
            // As if the file's version, and with it the key, were those of the first listing.
            split.key = key;
            rows(&source, &split, &ReadOptions::default()).await.map(|rows| rows.map_or(0, |r| r.num_rows()))
        };
        let (one, other) = (SplitKey(1), SplitKey(2));
        std::fs::write(&path, text(100, 3)).unwrap();
        assert_eq!(read(true, one).await.unwrap(), 100);
        assert_eq!(read(true, one).await.unwrap(), 100);
        assert_eq!(read(false, one).await.unwrap(), 101, "another reader's count is another one");
        // As many bytes, in half of the rows.
        std::fs::write(&path, text(50, 7)).unwrap();
        assert_eq!(read(true, other).await.unwrap(), 50);
        let e = read(true, one).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::FailedPrecondition, "{e}");
        for words in ["rows.csv", "50 rows were read, and 100 before", "`version: content`"] {
            assert!(e.message().contains(words), "{e}");
        }
    }
}
