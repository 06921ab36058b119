//! The items that are under way, and which of them may leave.

use std::collections::BTreeMap;

use caju_types::{Error, Result};
use caju_wire::Chunk;

use super::super::Item;
use super::{Computed, Order};

/// Where an item is in the input: its number, and of a slice of a chunk the first row in the chunk.
pub(super) type Place = (u64, usize);

/// An item that leaves, with the work that is left of it and the place of that work.
pub(super) type Leaving<W> = (Result<Item>, Option<(Place, W)>);

/// The items that were taken from the input and have not left, by their numbers in it.
pub(super) struct Window<W> {
    order: Order,
    next: u64,
    slots: BTreeMap<Place, Slot<W>>,
    /// Bytes of the chunks that are computed.
    bytes: usize,
}

pub(super) struct Slot<W> {
    kind: Kind,
    /// The splits of its rows.
    splits: Vec<u64>,
    /// None while it is being computed.
    ready: Option<(Result<Item>, Option<W>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rows,
    EndOfSplit,
    /// It leaves after everything before it, and before everything after it.
    Barrier,
}

impl<W> Slot<W> {
    pub(super) fn of_chunk(chunk: &Chunk) -> Self {
        Self { kind: Kind::Rows, splits: splits_of(chunk), ready: None }
    }

    pub(super) fn of_other(item: Result<Item>) -> Self {
        let (kind, splits) = match &item {
            Ok(Item::EndOfSplit(split)) => (Kind::EndOfSplit, vec![*split]),
            Ok(Item::Chunk(chunk) | Item::Entry { chunk, .. }) => (Kind::Rows, splits_of(chunk)),
            Ok(Item::EndOfRepetition) | Err(_) => (Kind::Barrier, Vec::new()),
        };
        Self { kind, splits, ready: Some((item, None)) }
    }
}

/// The splits of a chunk, once each where their rows are not mixed. Where rows of splits are mixed no split ends.
fn splits_of(chunk: &Chunk) -> Vec<u64> {
    let mut splits: Vec<u64> = chunk.runs.iter().map(|r| r.split).collect();
    splits.dedup();
    splits
}

fn bytes_of(item: &Result<Item>) -> usize {
    match item {
        Ok(Item::Chunk(chunk) | Item::Entry { chunk, .. }) => chunk.bytes(),
        Ok(Item::EndOfSplit(_) | Item::EndOfRepetition) | Err(_) => 0,
    }
}

impl<W> Window<W> {
    pub(super) fn new(order: Order) -> Self {
        Self { order, next: 0, slots: BTreeMap::new(), bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of the chunks that are computed and have not left.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes in the next item of the input.
    pub(super) fn admit(&mut self, slot: Slot<W>) -> Place {
        let place = (self.next, 0);
        if let Some((item, _)) = &slot.ready {
            self.bytes += bytes_of(item);
        }
        self.next += 1;
        self.slots.insert(place, slot);
        place
    }

    /// The chunk at a place was cut in two: the place keeps the first slice. The place of the other one.
    pub(super) fn cut(&mut self, place: Place, first: &Chunk, left: &Chunk) -> Place {
        let next = (place.0, place.1 + first.rows());
        self.slots.insert(place, Slot::of_chunk(first));
        self.slots.insert(next, Slot::of_chunk(left));
        next
    }

    pub(super) fn computed(&mut self, place: Place, computed: Computed<W>) {
        let Some(slot) = self.slots.get_mut(&place) else { return };
        slot.ready = Some(match computed {
            Ok((chunk, rest)) => (Ok(Item::Chunk(chunk)), rest),
            Err(e) => (Err(e), None),
        });
        if let Some((item, _)) = &slot.ready {
            self.bytes += bytes_of(item);
        }
    }

    /// An item that may leave, with the work that is left of it. That work keeps the item's place.
    pub(super) fn leave(&mut self) -> Option<Leaving<W>> {
        let place = self.first_to_leave()?;
        let slot = self.slots.get_mut(&place)?;
        let (item, rest) = slot.ready.take()?;
        self.bytes = self.bytes.saturating_sub(bytes_of(&item));
        if rest.is_none() {
            self.slots.remove(&place);
        }
        Some((item, rest.map(|work| (place, work))))
    }

    /// Why the end of the input is no end: items that nobody computes have not left.
    pub(super) fn unfinished(&self) -> Option<Error> {
        let (number, _) = self.slots.keys().next()?;
        Some(Error::internal(format!(
            "{} items of a row stage were never computed, the first of them item {number}: rows may be missing",
            self.slots.len()
        )))
    }

    fn first_to_leave(&self) -> Option<Place> {
        let mut before: Vec<u64> = Vec::new();
        for (i, (place, slot)) in self.slots.iter().enumerate() {
            let is_ready = slot.ready.is_some();
            if i == 0 && is_ready {
                return Some(*place);
            }
            if self.order == Order::Input || slot.kind == Kind::Barrier {
                return None;
            }
            let follows = self.order == Order::PerSplit || slot.kind == Kind::EndOfSplit;
            if is_ready && !(follows && slot.splits.iter().any(|s| before.contains(s))) {
                return Some(*place);
            }
            if before.last() != slot.splits.last() {
                before.extend(&slot.splits);
            }
        }
        None
    }
}
