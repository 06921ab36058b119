//! The memory of rows that wait in a stage, and the bound of those that wait for a batch.

use arrow_array::RecordBatch;
use caju_types::{Error, Result, format_bytes, format_count};
use caju_wire::{Chunk, Run};

/// Bytes of one column of a piece besides its values: the array, its type, and the headers of its buffers. Many pieces of a
/// few narrow rows each, as below a selective filter, take more memory for these than for their values.
const COLUMN_BYTES: usize = 256;

/// Bytes of a piece of rows with this number of columns, besides the values.
pub(super) fn piece_bytes(columns: usize) -> usize {
    size_of::<RecordBatch>() + columns * COLUMN_BYTES
}

/// Bytes of a chunk besides the values of its rows.
pub(super) fn overhead_bytes(chunk: &Chunk) -> usize {
    let pieces: usize = chunk.pieces.iter().map(|p| piece_bytes(p.num_columns())).sum();
    pieces + chunk.runs.len() * size_of::<Run>()
}

/// Bytes of memory of a chunk that waits.
pub(super) fn waiting_bytes(chunk: &Chunk) -> usize {
    chunk.bytes() + overhead_bytes(chunk)
}

/// The bound of the rows that wait for the batches of one stage.
pub(crate) struct WaitLimit {
    /// What errors call the stage.
    pub(crate) place: String,
    /// The most bytes of memory that the rows may take.
    pub(crate) max_bytes: u64,
    /// The argument of the stage that a user may lower.
    pub(crate) argument: &'static str,
}

impl WaitLimit {
    /// `ResourceExhausted` if `rows` rows that take `bytes` may not wait.
    pub(super) fn check(&self, rows: usize, bytes: usize) -> Result<()> {
        if bytes as u64 <= self.max_bytes {
            return Ok(());
        }
        Err(Error::exhausted(format!(
            "{}: {} rows that take {} wait for a full batch, and {} is the most that the work on one chunk may take; use a \
             smaller `{}`, or raise --chunk-memory",
            self.place,
            format_count(rows as u64),
            format_bytes(bytes as u64),
            format_bytes(self.max_bytes),
            self.argument,
        )))
    }
}
