//! The queue between a split and the writer of its part.

use arrow_array::RecordBatch;
use caju_cache::{Committed, PartFacts, PartWriter};
use caju_types::{Error, Result};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Batches that may wait for the writer of a part. A split whose queue is full waits for its writer.
pub(super) const QUEUED_BATCHES: usize = 2;

/// What a split sends to the writer of its part.
pub(super) enum PartItem {
    Rows(RecordBatch),
    /// All rows were sent.
    End {
        skipped: u64,
        source_bytes: u64,
    },
}

/// The sending end of the queue. A writer whose senders are dropped before the end aborts its part.
#[derive(Clone)]
pub(super) struct PartSender {
    pub(super) items: mpsc::Sender<PartItem>,
    /// The rate at which the decision assumed that this worker's store writes; none: the rate is not checked.
    pub(super) assumed_bytes_per_s: Option<u64>,
    /// Stops the writer where it is.
    pub(super) cancel: CancellationToken,
}

/// The error of a writer that exceeded its stall budget.
pub(super) fn too_slow() -> Error {
    Error::deadline("the store took less than half of what the decision assumed")
}

/// Writes a part from a queue. Whether the part was committed by this writer.
pub(super) async fn write_part(
    writer: PartWriter,
    queue: mpsc::Receiver<PartItem>,
    compute_cpu_s: impl Fn(u64) -> f64,
) -> Result<bool> {
    Ok(matches!(write_rows(writer, queue, compute_cpu_s).await?, Some(Committed::Ours(_))))
}

/// Writes a part to its end; none if the queue closed before the end. `compute_cpu_s` gives the CPU seconds that
/// computing the given number of rows takes.
pub(super) async fn write_rows(
    mut writer: PartWriter,
    mut queue: mpsc::Receiver<PartItem>,
    compute_cpu_s: impl Fn(u64) -> f64,
) -> Result<Option<Committed>> {
    let mut facts = PartFacts::default();
    while let Some(item) = queue.recv().await {
        match item {
            PartItem::Rows(batch) => {
                facts.rows += batch.num_rows() as u64;
                writer.write(&batch).await?;
            }
            PartItem::End { skipped, source_bytes } => {
                facts.skipped = skipped;
                facts.source_bytes = source_bytes;
                facts.compute_cpu_s = compute_cpu_s(facts.rows);
                return writer.finish(facts).await.map(Some);
            }
        }
    }
    writer.abort().await;
    Ok(None)
}
