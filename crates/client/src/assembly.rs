//! From what arrives to what the user gets: the order of slots, and full batches from the remainders of tasks.

use std::collections::VecDeque;

use caju_pipeline::DatasetDef;
use caju_types::Result;
use caju_wire::Chunk;

use crate::acks::Acks;
use crate::delivered::Delivered;
use crate::delivery::Delivery;
use crate::merge::Merger;
use crate::shared::{Item, OpenedAgain};
use crate::slot_rotation::SlotRotation;

/// A chunk that is ready for the user.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) chunk: Chunk,
    /// Its rows leave in another order than they arrived in.
    pub(crate) reordered: bool,
    /// With a rotation of slots: the slot whose turn comes behind it.
    pub(crate) turn: Option<u32>,
}

/// What an item of the queue means to the reader, apart from the rows that it made ready.
#[derive(Debug)]
pub(crate) enum Arrival {
    /// Nothing else.
    Rows,
    OpenedAgain(Box<OpenedAgain>),
    End,
}

/// Rows that arrived and are not handed to the user.
#[derive(Debug)]
pub(crate) struct Assembly {
    /// Where the order is promised and each slot has rows of its own.
    rotation: Option<SlotRotation>,
    merger: Option<Merger>,
    /// Merges the padding of consumers.
    pad_merger: Option<Merger>,
    ready: VecDeque<Ready>,
}

impl Assembly {
    pub(crate) fn new(def: &DatasetDef, rotation: Option<SlotRotation>) -> Self {
        Self { rotation, merger: Merger::of(def), pad_merger: Merger::of(def), ready: VecDeque::new() }
    }

    /// For the same definition, with nothing that arrived.
    pub(crate) fn again(&self, rotation: Option<SlotRotation>) -> Self {
        Self {
            rotation,
            merger: self.merger.as_ref().map(Merger::again),
            pad_merger: self.pad_merger.as_ref().map(Merger::again),
            ready: VecDeque::new(),
        }
    }

    /// Whether no chunk is ready.
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    pub(crate) fn pop(&mut self) -> Option<Ready> {
        self.ready.pop_front()
    }

    /// Takes the next item of the queue; `None` is its end. `acks` learns which rows leave in another order, and `delivered`
    /// which ones the pipeline drops.
    ///
    /// # Errors
    /// Those of padding.
    pub(crate) fn accept(
        &mut self,
        item: Option<Item>,
        acks: &Acks,
        delivered: &mut Delivered,
    ) -> Result<Arrival> {
        match (item, &mut self.rotation) {
            (Some(Item::Rows(delivery)), Some(rotation)) => {
                acks.merging(delivery.chunk.rows() as u64);
                rotation.push(delivery);
                self.take_turns();
            }
            (Some(Item::Rows(delivery)), None) => self.merge(delivery, acks)?,
            (Some(Item::SlotEnd(slot)), Some(rotation)) => {
                rotation.end(slot);
                self.take_turns();
            }
            (Some(Item::Slots(slots)), Some(rotation)) => rotation.expect(&slots),
            (Some(Item::SlotEnd(_) | Item::Slots(_)), None) => {}
            (Some(Item::Flush), _) => {
                self.end_rotation();
                self.flush(acks, delivered)?;
            }
            (Some(Item::OpenedAgain(again)), _) => return Ok(Arrival::OpenedAgain(again)),
            (None, _) => {
                self.end_rotation();
                return Ok(Arrival::End);
            }
        }
        Ok(Arrival::Rows)
    }

    /// What has its turn is ready.
    fn take_turns(&mut self) {
        let Some(rotation) = &mut self.rotation else { return };
        let next = std::iter::from_fn(|| rotation.next());
        self.ready.extend(next.map(|(chunk, turn)| Ready { chunk, reordered: true, turn: Some(turn) }));
    }

    fn end_rotation(&mut self) {
        if let Some(rotation) = &mut self.rotation {
            rotation.end_all();
        }
        self.take_turns();
    }

    /// Remainders wait until they fill a batch; everything else is ready.
    fn merge(&mut self, delivery: Delivery, acks: &Acks) -> Result<()> {
        let chunk = delivery.take();
        let is_padding = chunk.is_padding();
        let merger = if is_padding { &mut self.pad_merger } else { &mut self.merger };
        let Some(merger) = merger.as_mut().filter(|_| chunk.remainder) else {
            self.ready.push_back(Ready { chunk, reordered: false, turn: None });
            return Ok(());
        };
        if !is_padding {
            acks.merging(chunk.rows() as u64);
        }
        let mut full = Vec::new();
        merger.push(chunk, &mut full)?;
        self.ready.extend(full.into_iter().map(merged));
        Ok(())
    }

    /// No more rows are expected: remainders are delivered as short batches, or dropped where the pipeline says so.
    fn flush(&mut self, acks: &Acks, delivered: &mut Delivered) -> Result<()> {
        if let Some(merger) = &mut self.merger {
            if merger.drops() && acks.dropped(merger.held().flat_map(|c| &c.runs)) {
                merger.held().for_each(|c| delivered.add(&c.runs));
            }
            self.ready.extend(merger.finish()?.map(merged));
        }
        if let Some(padding) = &mut self.pad_merger {
            self.ready.extend(padding.finish()?.map(merged));
        }
        Ok(())
    }
}

fn merged(chunk: Chunk) -> Ready {
    Ready { chunk, reordered: true, turn: None }
}
