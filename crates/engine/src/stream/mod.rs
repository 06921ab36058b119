//! Cross-split stages: operators that see the rows of many splits as one stream.
//!
//! Each is a state machine without clocks or locks: rows go in, rows come out, and at the end of a repetition the rows that
//! it holds come out.

mod batch;
mod bucket;
mod draws;
mod row_sizes;
mod sample;
mod shard;
mod shuffle;
mod take;
mod waiting;

pub(crate) use batch::{Batch, BatchEnd, Unbatch};
pub(crate) use bucket::Bucket;
pub(crate) use draws::Draws;
pub(crate) use sample::Sample;
pub(crate) use shard::{Shard, only};
pub(crate) use shuffle::{Shuffle, max_buffer_memory};
pub(crate) use take::{Skip, Take};
pub(crate) use waiting::WaitLimit;

use caju_types::Result;
use caju_wire::Chunk;

/// Whether a stage wants more input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Go on.
    More,
    /// No later row can reach the output: the task may stop reading.
    Done,
}

/// A stage over the stream of chunks.
pub(crate) trait StreamStage: Send {
    /// Takes a chunk, and appends the chunks that are complete to `out`.
    fn push(&mut self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<Flow>;

    /// Appends the rows that the stage holds to `out`: the input, or this repetition of it, is at its end.
    fn flush(&mut self, out: &mut Vec<Chunk>) -> Result<()>;

    /// The bytes of memory that the stage holds.
    fn held_bytes(&self) -> usize {
        0
    }
}
