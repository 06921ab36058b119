//! A chunk on its way to the user, and the bytes that it holds until it is taken.

use std::collections::BTreeMap;
use std::sync::Arc;

use caju_runtime::Condition;
use caju_wire::{Chunk, Elements};
use parking_lot::Mutex;

use crate::credit::Credit;

/// A chunk on its way to the user.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) chunk: Chunk,
    /// The slot that it came from.
    pub(crate) slot: u32,
    bytes: u64,
    credit: Option<Arc<Credit>>,
    held: Option<Arc<QueuedBytes>>,
}

/// Bytes that wait for their turn, of the tasks of workers in this process: these have no credit.
#[derive(Debug, Default)]
pub(crate) struct QueuedBytes {
    by_slot: Mutex<BTreeMap<u32, u64>>,
    freed: Condition,
}

impl QueuedBytes {
    fn add(&self, slot: u32, bytes: u64) {
        *self.by_slot.lock().entry(slot).or_default() += bytes;
    }

    fn free(&self, slot: u32, bytes: u64) {
        if let Some(held) = self.by_slot.lock().get_mut(&slot) {
            *held = held.saturating_sub(bytes);
        }
        self.freed.notify_all();
    }

    /// Waits until a slot holds less than its part of `bound` bytes.
    pub(crate) async fn below(&self, slot: u32, bound: usize) {
        let is_below = || {
            let by_slot = self.by_slot.lock();
            let part = bound as u64 / by_slot.len().max(1) as u64;
            by_slot.get(&slot).is_none_or(|held| *held < part.max(1))
        };
        self.freed.wait_until(is_below).await;
    }
}

impl Delivery {
    /// A chunk that has arrived. Its bytes are held until it is taken: of its connection's credit, or in this process of what
    /// waits for its turn.
    pub(crate) fn new(
        slot: u32,
        chunk: Chunk,
        bytes: u64,
        credit: Option<&Arc<Credit>>,
        held: Option<&Arc<QueuedBytes>>,
    ) -> Self {
        if let Some(held) = held {
            held.add(slot, bytes);
        }
        Self { chunk, slot, bytes, credit: credit.map(Arc::clone), held: held.map(Arc::clone) }
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the bytes as credit, although the chunk stays in memory.
    pub(crate) fn without_credit(self) -> Self {
        let slot = self.slot;
        Self { chunk: self.take(), slot, bytes: 0, credit: None, held: None }
    }

    /// Splits the first elements off, with their part of the bytes. At least one element stays.
    pub(crate) fn split_front(&mut self, elements: usize) -> Self {
        let chunk = &self.chunk;
        let total = chunk.rows();
        let (front, back) = match &chunk.elements {
            Elements::Rows => (Elements::Rows, Elements::Rows),
            Elements::Lengths(lengths) => {
                let (front, back) = lengths.split_at(elements.min(lengths.len()));
                (Elements::Lengths(front.to_vec()), Elements::Lengths(back.to_vec()))
            }
        };
        let rows = match &front {
            Elements::Rows => elements.min(total),
            Elements::Lengths(lengths) => lengths.iter().map(|rows| *rows as usize).sum(),
        };
        let bytes = self.bytes * rows as u64 / total.max(1) as u64;
        let part = Self {
            chunk: Chunk { elements: front, ..chunk.slice_rows(0, rows) },
            slot: self.slot,
            bytes,
            credit: self.credit.clone(),
            held: self.held.clone(),
        };
        self.chunk = Chunk { elements: back, ..chunk.slice_rows(rows, total - rows) };
        self.bytes -= bytes;
        part
    }

    /// Takes the chunk, and returns its bytes as credit.
    pub(crate) fn take(self) -> Chunk {
        if let Some(credit) = &self.credit {
            credit.free(self.bytes);
        }
        if let Some(held) = &self.held {
            held.free(self.slot, self.bytes);
        }
        self.chunk
    }
}
