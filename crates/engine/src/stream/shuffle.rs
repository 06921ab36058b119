//! `shuffle`: a buffer from which every next element is drawn at random, as tf.data does.

use arrow::compute::interleave_record_batch;
use arrow_array::RecordBatch;
use caju_pipeline::DEFAULT_SHUFFLE_BYTES;
use caju_types::{Error, Result, format_bytes};
use caju_wire::{Chunk, Elements, Run, batch_bytes, push_run};

use super::waiting::{overhead_bytes, piece_bytes};
use super::{Draws, Flow, StreamStage};

/// The most rows of one chunk that leaves the buffer at its end.
const CHUNK_ROWS: usize = 8192;
/// The nominal bytes of one chunk that leaves the buffer at its end.
const CHUNK_BYTES: usize = 8 << 20;
/// Held batches are rewritten once they pin this much more than the rows that are still waiting.
const SLACK_BYTES: usize = 64 << 20;

/// The most memory of one buffer, in multiples of the memory limit of one chunk (`--chunk-memory`): 16 GiB by default. It
/// admits the buffers that a large machine has memory for, and a definition cannot raise it.
const MAX_BUFFER_CHUNKS: u64 = 16;

/// The most memory of one buffer, whatever `max_bytes` of a definition is: the elements, and what the buffer notes about each.
/// It is never less than the default of `max_bytes`.
pub(crate) fn max_buffer_memory(chunk_bytes: u64) -> usize {
    let bytes = chunk_bytes.saturating_mul(MAX_BUFFER_CHUNKS).max(DEFAULT_SHUFFLE_BYTES);
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Permutes elements within a buffer of `capacity`.
pub(crate) struct Shuffle {
    place: String,
    capacity: usize,
    /// The bound of the definition, on the bytes of the elements.
    max_bytes: usize,
    /// The bound of the server, on all memory of the buffer.
    max_memory: usize,
    draws: Draws,
    rows: RowBuffer,
    /// Memory of `rows`.
    row_bytes: usize,
    batches: Vec<Chunk>,
    batch_bytes: usize,
    /// Memory of `batches` besides the values of their rows.
    batch_overhead: usize,
}

impl Shuffle {
    pub(crate) fn new(
        place: String,
        capacity: usize,
        max_bytes: usize,
        max_memory: usize,
        seed: u64,
    ) -> Self {
        Self {
            place,
            capacity: capacity.max(1),
            max_bytes,
            max_memory,
            draws: Draws::new(seed),
            rows: RowBuffer::default(),
            row_bytes: 0,
            batches: Vec::new(),
            batch_bytes: 0,
            batch_overhead: 0,
        }
    }

    /// Compares `held` elements of `bytes` and their overhead with both bounds. The error is about the smaller one.
    fn check(&self, bytes: usize, overhead: usize, held: usize) -> Result<()> {
        let memory = bytes.saturating_add(overhead);
        let by_definition = bytes > self.max_bytes && self.max_bytes <= self.max_memory;
        if !by_definition && memory <= self.max_memory {
            return Ok(());
        }
        let counted = if by_definition { bytes } else { memory };
        let full = counted as f64 / held.max(1) as f64 * self.capacity as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate for a message"
        )]
        let full = full as u64;
        let most = format_bytes(self.max_memory as u64);
        let server =
            format!("{most}, the most that this server gives a shuffle buffer whatever its `max_bytes` is");
        let (bound, remedy) = match by_definition {
            true if full <= self.max_memory as u64 => {
                (format_bytes(self.max_bytes as u64), "set `max_bytes` to that, use".to_owned())
            }
            true => (format_bytes(self.max_bytes as u64), format!("that is more than {server}; use")),
            false => (server, "raise --chunk-memory, use".to_owned()),
        };
        Err(Error::exhausted(format!(
            "{}: {held} of {} elements fill the shuffle buffer's {bound}; the whole buffer needs about {}: {remedy} a smaller \
             `buffer`, or shuffle before the rows grow (above decode_image, say)",
            self.place,
            self.capacity,
            format_bytes(full),
        )))
    }

    /// Elements below `batch`: each is a unit.
    fn push_elements(&mut self, chunk: &Chunk, lengths: &[u32], out: &mut Vec<Chunk>) -> Result<()> {
        let mut at = 0;
        for &n in lengths {
            let mut one = chunk.slice_rows(at, n as usize);
            one.elements = Elements::Lengths(vec![n]);
            at += n as usize;
            self.batch_bytes += one.bytes();
            self.batch_overhead += overhead_bytes(&one);
            if self.batches.len() < self.capacity {
                self.batches.push(one);
            } else {
                let i = self.draws.below(self.batches.len());
                let old = std::mem::replace(&mut self.batches[i], one);
                self.batch_bytes -= old.bytes();
                self.batch_overhead -= overhead_bytes(&old);
                out.push(old);
            }
        }
        self.check(self.batch_bytes, self.batch_overhead, self.batches.len())
    }
}

impl StreamStage for Shuffle {
    fn held_bytes(&self) -> usize {
        self.row_bytes + self.batch_bytes + self.batch_overhead
    }

    fn push(&mut self, chunk: Chunk, out: &mut Vec<Chunk>) -> Result<Flow> {
        if chunk.remainder {
            out.push(chunk);
        } else if let Elements::Lengths(lengths) = &chunk.elements {
            self.push_elements(&chunk, lengths, out)?;
        } else {
            self.rows.push(chunk, self.capacity, &mut self.draws, out)?;
            let (live, overhead) = (self.rows.live_bytes(), self.rows.overhead_bytes());
            self.row_bytes = live + overhead;
            self.check(live, overhead, self.rows.slots.len())?;
        }
        Ok(Flow::More)
    }

    fn flush(&mut self, out: &mut Vec<Chunk>) -> Result<()> {
        self.rows.drain(&mut self.draws, out)?;
        while !self.batches.is_empty() {
            let i = self.draws.below(self.batches.len());
            out.push(self.batches.swap_remove(i));
        }
        (self.row_bytes, self.batch_bytes, self.batch_overhead) = (0, 0, 0);
        Ok(())
    }
}

/// One waiting row.
#[derive(Clone, Copy)]
struct Slot {
    batch: usize,
    row: usize,
    split: u64,
    ordinal: u64,
}

struct BufferedBatch {
    batch: RecordBatch,
    bytes: usize,
    live: usize,
}

/// Waiting rows, as places in the batches that they came in.
#[derive(Default)]
struct RowBuffer {
    held: Vec<BufferedBatch>,
    slots: Vec<Slot>,
    held_bytes: usize,
}

impl RowBuffer {
    /// Bytes of the waiting rows, taking each batch's rows as equally large.
    fn live_bytes(&self) -> usize {
        self.held.iter().map(|h| h.bytes / h.batch.num_rows().max(1) * h.live).sum()
    }

    /// Memory besides the values of the rows.
    fn overhead_bytes(&self) -> usize {
        let columns = self.held.first().map_or(0, |h| h.batch.num_columns());
        self.slots.len() * size_of::<Slot>() + self.held.len() * piece_bytes(columns)
    }

    fn push(&mut self, chunk: Chunk, capacity: usize, draws: &mut Draws, out: &mut Vec<Chunk>) -> Result<()> {
        let mut rows = chunk.runs.iter().flat_map(|r| (r.start..r.start + r.len).map(|o| (r.split, o)));
        let mut leaving = Vec::new();
        for piece in &chunk.pieces {
            let batch = self.held.len();
            let bytes = batch_bytes(piece);
            self.held.push(BufferedBatch { batch: piece.clone(), bytes, live: piece.num_rows() });
            self.held_bytes += bytes;
            for row in 0..piece.num_rows() {
                let (split, ordinal) = rows.next().unwrap_or((u64::MAX, 0));
                let new = Slot { batch, row, split, ordinal };
                if self.slots.len() < capacity {
                    self.slots.push(new);
                } else {
                    let i = draws.below(self.slots.len());
                    leaving.push(std::mem::replace(&mut self.slots[i], new));
                }
            }
        }
        if !leaving.is_empty() {
            out.push(self.gather(&leaving)?);
            self.release(&leaving);
        }
        self.compact()
    }

    fn drain(&mut self, draws: &mut Draws, out: &mut Vec<Chunk>) -> Result<()> {
        let mut slots = std::mem::take(&mut self.slots);
        for i in (1..slots.len()).rev() {
            slots.swap(i, draws.below(i + 1));
        }
        let per_row = self.live_bytes() / slots.len().max(1);
        let step = (CHUNK_BYTES / per_row.max(1)).clamp(1, CHUNK_ROWS);
        for part in slots.chunks(step) {
            out.push(self.gather(part)?);
        }
        self.held.clear();
        self.held_bytes = 0;
        Ok(())
    }

    fn gather(&self, slots: &[Slot]) -> Result<Chunk> {
        let batches: Vec<&RecordBatch> = self.held.iter().map(|h| &h.batch).collect();
        let index: Vec<(usize, usize)> = slots.iter().map(|s| (s.batch, s.row)).collect();
        let batch = interleave_record_batch(&batches, &index)
            .map_err(|e| Error::exhausted(format!("shuffle: {e}; use a smaller `split` or buffer")))?;
        let mut runs = Vec::with_capacity(slots.len());
        for s in slots {
            push_run(&mut runs, Run { split: s.split, start: s.ordinal, len: 1 });
        }
        Ok(Chunk::rows_of(batch, runs))
    }

    /// Forgets the batches of which no row waits any more.
    fn release(&mut self, gone: &[Slot]) {
        for s in gone {
            self.held[s.batch].live -= 1;
        }
        if self.held.iter().all(|h| h.live > 0) {
            return;
        }
        let mut to = vec![usize::MAX; self.held.len()];
        let mut kept = Vec::with_capacity(self.held.len());
        for (i, h) in std::mem::take(&mut self.held).into_iter().enumerate() {
            if h.live > 0 {
                to[i] = kept.len();
                kept.push(h);
            } else {
                self.held_bytes -= h.bytes;
            }
        }
        self.held = kept;
        for s in &mut self.slots {
            s.batch = to[s.batch];
        }
    }

    /// Copies the waiting rows together when the batches that they came in pin much more than they need.
    fn compact(&mut self) -> Result<()> {
        let live = self.live_bytes();
        if self.held_bytes <= 2 * live + SLACK_BYTES {
            return Ok(());
        }
        let per_row = live / self.slots.len().max(1);
        let step = (CHUNK_BYTES / per_row.max(1)).clamp(1, CHUNK_ROWS);
        let mut fresh = Vec::new();
        for part in self.slots.chunks(step) {
            fresh.push(self.gather(part)?.concat()?);
        }
        for (i, s) in self.slots.iter_mut().enumerate() {
            (s.batch, s.row) = (i / step, i % step);
        }
        self.held = fresh
            .into_iter()
            .map(|batch| BufferedBatch { bytes: batch_bytes(&batch), live: batch.num_rows(), batch })
            .collect();
        self.held_bytes = self.held.iter().map(|h| h.bytes).sum();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{ArrayRef, Int64Array};

    use super::*;

    fn run(n: i64, buffer: usize, seed: u64, step: i64) -> (Vec<i64>, Vec<u64>) {
        let mut s = Shuffle::new("steps[0].shuffle".into(), buffer, 1 << 30, 1 << 34, seed);
        let (mut out, mut at) = (Vec::new(), 0);
        while at < n {
            let m = step.min(n - at);
            let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(at..at + m));
            let run = Run { split: 3, start: at.cast_unsigned(), len: m.cast_unsigned() };
            s.push(Chunk::rows_of(RecordBatch::try_from_iter([("id", ids)]).unwrap(), vec![run]), &mut out)
                .unwrap();
            at += m;
        }
        s.flush(&mut out).unwrap();
        let ids = out
            .iter()
            .flat_map(|c| c.concat().unwrap().column(0).as_primitive::<Int64Type>().values().to_vec())
            .collect();
        let ordinals =
            out.iter().flat_map(|c| c.runs.clone()).flat_map(|r| r.start..r.start + r.len).collect();
        (ids, ordinals)
    }

    #[test]
    fn permutes_and_keeps_provenance() {
        let (ids, ordinals) = run(1000, 100, 7, 64);
        assert_eq!(ids.iter().map(|i| i.cast_unsigned()).collect::<Vec<_>>(), ordinals);
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert_ne!(ids, sorted);
        assert!(ids[0] < 164, "an element cannot leave before it came in");
        assert_eq!(ids, run(1000, 100, 7, 64).0, "the seed decides");
        assert_eq!(ids, run(1000, 100, 7, 13).0, "the engine's batches do not");
        assert_ne!(ids, run(1000, 100, 8, 64).0);
        assert_eq!(run(10, 1, 7, 3).0, (0..10).collect::<Vec<_>>());
    }

    /// 500 rows of 8 bytes each, in a buffer for a million elements.
    fn filled(elements: Elements, max_bytes: usize, max_memory: usize) -> Result<Flow> {
        let mut s = Shuffle::new("steps[0].shuffle".into(), 1_000_000, max_bytes, max_memory, 1);
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..500));
        let rows = Chunk::rows_of(RecordBatch::try_from_iter([("id", ids)]).unwrap(), vec![]);
        s.push(Chunk { elements, ..rows }, &mut Vec::new())
    }

    #[test]
    fn a_buffer_past_its_bound_names_the_size() {
        let e = filled(Elements::Rows, 1000, 1 << 30).unwrap_err();
        assert!(e.message().contains("fill the shuffle buffer's 1000 B; the whole"), "{e}");
        assert!(e.message().contains("needs about 7.63 MiB: set `max_bytes` to that"), "{e}");
        let e = filled(Elements::Rows, 1000, 5000).unwrap_err();
        assert!(
            e.message().contains("7.63 MiB: that is more than 4.88 KiB, the most that this server"),
            "{e}"
        );
    }

    #[test]
    fn a_definition_cannot_raise_the_bound_of_the_server() {
        const PIB: usize = 1 << 50;
        for elements in [Elements::Rows, Elements::Lengths(vec![5; 100])] {
            let e = filled(elements.clone(), PIB, 4000).unwrap_err();
            assert_eq!(e.kind(), caju_types::ErrorKind::ResourceExhausted);
            assert!(e.message().starts_with("steps[0].shuffle: "), "{e}");
            assert!(
                e.message().contains("3.91 KiB, the most that this server gives a shuffle buffer"),
                "{e}"
            );
            assert!(e.message().contains("raise --chunk-memory"), "{e}");
            filled(elements, PIB, 100_000).unwrap();
        }
        assert_eq!(max_buffer_memory(1 << 30), 16 << 30);
        assert_eq!(max_buffer_memory(1 << 20), 1 << 30, "the default of `max_bytes` fits");
        assert_eq!(max_buffer_memory(u64::MAX), usize::MAX);
    }
}
