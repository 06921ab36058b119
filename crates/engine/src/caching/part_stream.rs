//! Rows of one split at a hint: they go to the writer of its part while the split is still running.

use std::sync::Arc;

use arrow_array::RecordBatch;
use caju_cache::PartWriter;
use caju_runtime::caught;
use caju_wire::batch_bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::TaskCache;
use super::backfill_buffer::compacted;
use super::in_flight::InFlightSplit;
use super::part_sender::{PartItem, PartSender, QUEUED_BATCHES, too_slow, write_part};

impl TaskCache {
    /// Starts the writer of a split's part, which encodes and uploads in the background; false if the stream of rows is
    /// over.
    pub(super) fn start_writer(
        self: &Arc<Self>,
        index: u64,
        hint: usize,
        writer: PartWriter,
        assumed_bytes_per_s: Option<u64>,
    ) -> bool {
        let (items, queue) = mpsc::channel(QUEUED_BATCHES);
        let cancel = CancellationToken::new();
        let sender = PartSender { items, assumed_bytes_per_s, cancel: cancel.clone() };
        let open = {
            let mut in_flight = self.in_flight.lock();
            let Some(open) = self.writers.register() else { return false };
            in_flight.insert(index, InFlightSplit::stored(hint, sender, 0));
            open
        };
        let me = Arc::clone(self);
        self.writers.spawn("the writer of a part", async move {
            let _open = open;
            let compute_cpu_s = |rows| me.hints.cpu_s_per_row_above(hint) * rows as f64;
            // A panic of the encoder fails the part alone, as an error of the store does.
            let writing = Box::pin(caught("the writer of a part", write_part(writer, queue, compute_cpu_s)));
            let written = cancel.run_until_cancelled_owned(writing).await;
            match written.unwrap_or_else(|| Ok(Err(too_slow()))).and_then(|written| written) {
                Ok(true) => {
                    me.writers.breaker.record_success();
                    me.counters.add_stored();
                }
                Ok(false) => me.counters.add_computed(),
                Err(e) => {
                    me.writers.breaker.record_failure(&e, "storing rows");
                    me.save_failure.record(&e);
                    me.counters.add_fallback();
                    me.counters.add_computed();
                }
            }
            Ok(())
        });
        true
    }

    /// Rows of a split arrive at a hint: they are stored or buffered if they should be. Returns how many of the first
    /// ordinals the stages below have already.
    pub(crate) async fn pass(&self, hint: usize, index: u64, rows: &[RecordBatch]) -> u64 {
        if let Some(prober) = &self.prober {
            prober.offer(hint, rows);
        }
        let mut batches = None;
        let (skip, sender) = loop {
            {
                let mut in_flight = self.in_flight.lock();
                match (in_flight.get(index), batches.take()) {
                    (Some(split), _) if split.hint == hint => break (split.skip_below, split.sender.clone()),
                    (Some(_), _) => return 0,
                    (None, Some(batches)) => {
                        in_flight.backfill.push(hint, index, batches);
                        return 0;
                    }
                    (None, None) if in_flight.backfill.contains(hint, index) => {}
                    (None, None) => return 0,
                }
            }
            // Rows that have to be copied are copied outside the lock.
            batches = Some(rows.iter().filter(|b| b.num_rows() > 0).map(compacted).collect());
        };
        if let Some(sender) = sender {
            self.write(&sender, index, rows).await;
        }
        skip
    }

    /// Rows of a split that another job computed arrive at a hint: they are stored if they should be.
    pub(crate) async fn pass_shared(&self, hint: usize, index: u64, rows: &[RecordBatch]) {
        let sender = {
            let in_flight = self.in_flight.lock();
            in_flight.get(index).filter(|split| split.hint == hint).and_then(|split| split.sender.clone())
        };
        if let Some(sender) = sender {
            self.write(&sender, index, rows).await;
        }
    }

    /// Gives rows to the writer of a part. A writer that accepts no further rows loses its split.
    async fn write(&self, sender: &PartSender, index: u64, rows: &[RecordBatch]) {
        for batch in rows.iter().filter(|b| b.num_rows() > 0) {
            let item = PartItem::Rows(batch.clone());
            if !self.writers.send(sender, batch_bytes(batch) as u64, item).await {
                self.in_flight.lock().remove(index);
                break;
            }
        }
    }

    /// All rows of a split have passed a hint.
    pub(crate) async fn end(&self, hint: usize, index: u64) {
        let split = {
            let mut in_flight = self.in_flight.lock();
            let split = in_flight.take_at(hint, index);
            if split.is_none() && in_flight.backfill.contains(hint, index) {
                in_flight.backfill.end(hint, index, self.hints.skipped_above(hint, index));
            }
            split
        };
        if let Some(InFlightSplit { sender: Some(sender), source_bytes, .. }) = split {
            let skipped = self.hints.skipped_above(hint, index);
            self.writers.send(&sender, 0, PartItem::End { skipped, source_bytes }).await;
            self.writers.limit_finish(&sender);
        }
    }

    /// The source of a split was read to its end, which took `source_bytes`.
    pub(crate) fn source_was_read(&self, index: u64, source_bytes: u64) {
        self.in_flight.lock().set_source_bytes(index, source_bytes);
    }
}
