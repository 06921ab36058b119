//! Writing a part beside the stream of rows, and giving up writing when it makes no sense any more.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use arrow_array::RecordBatch;
use caju_cache::{Committed, PartFacts, PartWriter};
use caju_runtime::{Clock, caught, log_failure};
use caju_types::{Error, ErrorKind, Result};
use caju_wire::batch_bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::kept::own;
use super::{Book, OpenWriter, TaskCache, WAITING};

/// Failures in a row after which the store is left alone for the rest of the task. Each of them was a
/// request that was tried several times.
const FAILURES: u32 = 3;

/// How long the splits of a task may be held up by their writers before it matters how fast these are: stores have
/// hiccups.
const HICCUP: Duration = Duration::from_secs(2);

/// How long the splits of a task were held up by the writers of their parts, against how long they may be (design,
/// section 5.5): rows may come as slowly as a store takes them that is half as fast as the decision assumed. A store that
/// is slow, but not slower than rows come, holds nothing up.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    bytes: u64,
    /// Seconds, of all splits together.
    seconds: f64,
}

impl Pace {
    /// How long a split may wait until so many bytes more are taken, while so many splits write and the store was to
    /// take so many bytes per second of all of them.
    pub(super) fn patience(&self, assumed_bytes_per_s: u64, bytes: u64, writers: usize) -> Duration {
        let held = self.0.lock();
        let half = (assumed_bytes_per_s as f64 / 2.0).max(1.0);
        let due = (held.bytes + bytes) as f64 / half - held.seconds / writers.max(1) as f64;
        Duration::try_from_secs_f64((HICCUP.as_secs_f64() + due).max(0.0)).unwrap_or(Duration::MAX)
    }

    /// Waits for a writer to take something of so many bytes, no longer than may be; none if it took longer.
    pub(super) async fn keep<T>(
        &self,
        assumed_bytes_per_s: Option<u64>,
        bytes: u64,
        writers: usize,
        clock: &dyn Clock,
        taken: impl Future<Output = T>,
    ) -> Option<T> {
        let Some(assumed) = assumed_bytes_per_s else { return Some(taken.await) };
        let (patience, start) = (self.patience(assumed, bytes, writers), clock.now());
        let taken = tokio::select! {
            biased;
            taken = taken => Some(taken),
            () = clock.sleep(patience) => None,
        };
        self.took(bytes, clock.now().saturating_sub(start));
        taken
    }

    /// So many bytes more are about to be written, and hold up whoever comes behind them.
    pub(super) fn expect(&self, bytes: u64) {
        self.took(bytes, Duration::ZERO);
    }

    fn took(&self, bytes: u64, time: Duration) {
        let mut held = self.0.lock();
        held.bytes += bytes;
        held.seconds += time.as_secs_f64();
    }
}

/// What a split sends to the writer of its part.
pub(super) enum Piece {
    Rows(RecordBatch),
    /// All rows were sent.
    End {
        skipped: u64,
        source_bytes: u64,
    },
}

/// What is said of a writer that is given up.
pub(super) fn too_slow() -> Error {
    Error::deadline("the store took less than half of what the decision assumed")
}

/// Writes a part from what is sent. Whether it counts now.
pub(super) async fn write_part(
    writer: PartWriter,
    queue: mpsc::Receiver<Piece>,
    cost: impl Fn(u64) -> f64,
) -> Result<bool> {
    Ok(matches!(write_rows(writer, queue, cost).await?, Some(Committed::Ours(_))))
}

/// Writes a part to its end; none if that never came.
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

/// The way to the writer of a split's part.
#[derive(Clone)]
pub(super) struct WriterOf {
    pub(super) pieces: mpsc::Sender<Piece>,
    /// What the store was to take of this worker; none: whatever it takes.
    pub(super) assumed_bytes_per_s: Option<u64>,
    /// Stops the writer where it is.
    pub(super) given_up: CancellationToken,
}

impl TaskCache {
    /// Rows of the split go to a task of their own, which encodes and uploads while the split goes on; false
    /// if the stream is over.
    pub(super) fn start_writer(
        self: &Arc<Self>,
        index: u64,
        hint: usize,
        writer: PartWriter,
        assumed_bytes_per_s: Option<u64>,
    ) -> bool {
        let (pieces, queue) = mpsc::channel(WAITING);
        let mut books = self.books.lock();
        if books.closed {
            return false;
        }
        let given_up = CancellationToken::new();
        let way = WriterOf { pieces, assumed_bytes_per_s, given_up: given_up.clone() };
        books.open.insert(index, Book { hint, skip_below: 0, source_bytes: 0, writer: Some(way) });
        let open = OpenWriter::of(self);
        drop(books);
        let me = Arc::clone(self);
        self.writers.background("the writer of a part", log_failure, async move {
            let _open = open;
            let cost = |rows| me.cpu_above(hint) * rows as f64;
            // An encoder that panics fails its part, as a store does that refuses it.
            let writing = Box::pin(caught("the writer of a part", write_part(writer, queue, cost)));
            let written = given_up.run_until_cancelled_owned(writing).await;
            let counted = match written.unwrap_or_else(|| Ok(Err(too_slow()))).and_then(|written| written) {
                Ok(true) => {
                    me.puts.worked();
                    &me.put
                }
                Ok(false) => &me.compute,
                Err(e) => {
                    me.puts.failed(&e, "storing rows");
                    me.save_failure.record(&e);
                    me.fell_back.fetch_add(1, Ordering::Relaxed);
                    &me.compute
                }
            };
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        true
    }

    /// CPU seconds that the stages above a hint took per row that reached it, so far.
    pub(super) fn cpu_above(&self, hint: usize) -> f64 {
        let Some(last) = self.hints.get(hint).map(|h| h.stage) else { return 0.0 };
        let stages = self.ctx.stats.snapshot();
        let above = &stages[..(last + 1).min(stages.len())];
        let rows = above.iter().rev().map(|s| s.rows_out).find(|r| *r > 0).unwrap_or(0);
        if rows == 0 { 0.0 } else { above.iter().map(|s| s.cpu_s).sum::<f64>() / rows as f64 }
    }

    /// Rows of a split that arrive at a hint: stored if they should be. Returns how many of the first
    /// ordinals the stages below have already.
    pub(crate) async fn pass(&self, hint: usize, index: u64, rows: &[RecordBatch]) -> u64 {
        if let Some(prober) = &self.prober {
            prober.offer(hint, rows);
        }
        let mut owned = None;
        let (skip, writer) = loop {
            {
                let mut books = self.books.lock();
                match (books.open.get(&index), owned.take()) {
                    (Some(book), _) if book.hint == hint => break (book.skip_below, book.writer.clone()),
                    (Some(_), _) => return 0,
                    (None, Some(owned)) => {
                        books.kept.push(hint, index, owned);
                        return 0;
                    }
                    (None, None) if books.kept.has(hint, index) => {}
                    (None, None) => return 0,
                }
            }
            // Copies, if there must be any, are made outside the lock.
            owned = Some(rows.iter().filter(|b| b.num_rows() > 0).map(own).collect());
        };
        if let Some(writer) = writer {
            for batch in rows.iter().filter(|b| b.num_rows() > 0) {
                let sent = self.send(&writer, batch_bytes(batch) as u64, Piece::Rows(batch.clone()));
                if !sent.await {
                    self.books.lock().open.remove(&index);
                    break;
                }
            }
        }
        skip
    }

    /// Sends something to the writer of a part; false if it has ended, or is ended because it is too slow.
    async fn send(&self, writer: &WriterOf, bytes: u64, piece: Piece) -> bool {
        let writers = *self.open_writers.borrow();
        let taken = writer.pieces.send(piece);
        match self.pace.keep(writer.assumed_bytes_per_s, bytes, writers, &*self.ctx.clock, taken).await {
            Some(sent) => sent.is_ok(),
            None => {
                writer.given_up.cancel();
                false
            }
        }
    }

    /// All rows of a split have passed.
    pub(crate) async fn end(&self, hint: usize, index: u64) {
        let book = {
            let mut books = self.books.lock();
            if books.open.get(&index).is_none_or(|b| b.hint != hint) {
                if books.kept.has(hint, index) {
                    books.kept.end(hint, index, self.skipped_above(hint, index));
                }
                return;
            }
            books.open.remove(&index)
        };
        if let Some(Book { writer: Some(writer), source_bytes, .. }) = book {
            let skipped = self.skipped_above(hint, index);
            self.send(&writer, 0, Piece::End { skipped, source_bytes }).await;
            self.limit(&writer);
        }
    }

    /// What a writer still has to do when all rows were sent may take as long as the pace allows.
    pub(super) fn limit(&self, writer: &WriterOf) {
        let Some(assumed) = writer.assumed_bytes_per_s else { return };
        let patience = self.pace.patience(assumed, 0, *self.open_writers.borrow());
        let (clock, writer) = (Arc::clone(&self.ctx.clock), writer.clone());
        self.writers.background("the deadline of a writer", log_failure, async move {
            tokio::select! {
                () = writer.pieces.closed() => {}
                () = clock.sleep(patience) => writer.given_up.cancel(),
            }
            Ok(())
        });
    }

    fn skipped_above(&self, hint: usize, index: u64) -> u64 {
        self.hints.get(hint).map_or(0, |h| self.ctx.skipped_above(index, h.stage))
    }

    /// A split's source was read to its end, which took so many bytes.
    pub(crate) fn was_read(&self, index: u64, source_bytes: u64) {
        let mut books = self.books.lock();
        books.kept.was_read(index, source_bytes);
        if let Some(book) = books.open.get_mut(&index) {
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
        let full = matches!(error.kind(), ErrorKind::ResourceExhausted | ErrorKind::PermissionDenied);
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

    /// A store that takes so many bytes per second, from three splits at once, each held up all the time.
    fn survives(assumed: u64, bytes_per_s: u64) -> bool {
        let (pace, second) = (Pace::default(), Duration::from_secs(1));
        (0..60).all(|_| {
            let patient = pace.patience(assumed, bytes_per_s / 3, 3) >= second;
            (0..3).for_each(|_| pace.took(bytes_per_s / 3, second));
            patient
        })
    }

    #[test]
    fn writers_may_be_half_as_fast_as_assumed_and_no_slower() {
        assert!(survives(900, 900));
        assert!(survives(900, 480));
        assert!(!survives(900, 420));
        assert!(!survives(900, 30));
    }

    #[test]
    fn a_slow_writer_that_holds_nothing_up_is_none() {
        let pace = Pace::default();
        (0..1000).for_each(|_| pace.took(10, Duration::from_millis(1)));
        assert!(pace.patience(1 << 30, 10, 1) > Duration::from_millis(900));
    }
}
