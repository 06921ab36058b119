//! Writing a part beside the stream of rows, and giving up writing when it makes no sense any more.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arrow_array::RecordBatch;
use caju_cache::{Committed, PartFacts, PartWriter};
use caju_types::{Error, ErrorKind, Result};
use tokio::sync::mpsc;

use super::TaskCache;

/// Failures in a row after which the store is left alone for the rest of the task. Each of them was a
/// request that was tried several times.
const FAILURES: u32 = 3;

/// What a split sends to the writer of its part.
pub(super) enum Piece {
    Rows(RecordBatch),
    End { skipped: u64, source_bytes: u64 },
}

/// Writes a part from what is sent. Whether it counts now.
pub(super) async fn write_part(
    writer: PartWriter,
    queue: mpsc::Receiver<Piece>,
    cost: impl Fn(u64) -> f64,
) -> Result<bool> {
    Ok(matches!(write_rows(writer, queue, cost).await?, Some(Committed::Ours(_))))
}

/// Writes a part from what is sent, to its end; none if that never came.
pub(super) async fn write_rows(
    mut writer: PartWriter,
    mut queue: mpsc::Receiver<Piece>,
    cost: impl Fn(u64) -> f64,
) -> Result<Option<Committed>> {
    let mut facts = PartFacts::default();
    while let Some(piece) = queue.recv().await {
        match piece {
            Piece::Rows(batch) => {
                facts.rows += batch.num_rows() as u64;
                writer.write(&batch).await?;
            }
            Piece::End { skipped, source_bytes } => {
                facts.skipped = skipped;
                facts.source_bytes = source_bytes;
                facts.compute_cpu_s = cost(facts.rows);
                return writer.finish(facts).await.map(Some);
            }
        }
    }
    writer.abort().await;
    Ok(None)
}

impl TaskCache {
    /// A split's source was read to its end, which took so many bytes.
    pub(crate) fn was_read(&self, index: u64, source_bytes: u64) {
        if let Some(book) = self.books.lock().open.get_mut(&index) {
            book.source_bytes = source_bytes;
        }
    }
}

/// Whether a task goes on using the store in one direction. A full cache ends it at once, other failures when
/// they do not end; the next task tries anew.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    failures: AtomicU32,
    off: AtomicBool,
}

impl Breaker {
    pub(super) fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    pub(super) fn worked(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Takes note of a failure, and tells of it: of one that ends it all once.
    pub(super) fn failed(&self, error: &Error, doing: &str) {
        let full = error.kind() == ErrorKind::ResourceExhausted;
        let many = self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES;
        if !full && !many {
            tracing::warn!(%error, "{doing} failed; the split is computed");
        } else if !self.off.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "{doing} is turned off for the rest of this epoch's task; rows are computed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_is_left_alone_at_once_and_a_failing_one_after_a_while() {
        let full = Breaker::default();
        full.failed(&Error::new(ErrorKind::ResourceExhausted, "no room"), "storing");
        assert!(full.is_off());
        let shaky = Breaker::default();
        for _ in 1..FAILURES {
            shaky.failed(&Error::unavailable("503"), "storing");
        }
        assert!(!shaky.is_off());
        shaky.worked();
        shaky.failed(&Error::unavailable("503"), "storing");
        assert!(!shaky.is_off(), "only failures in a row count");
        (1..FAILURES).for_each(|_| shaky.failed(&Error::unavailable("503"), "storing"));
        assert!(shaky.is_off());
    }
}
