//! The items that are under way, and which of them may leave.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use caju_types::{Error, Result};
use caju_wire::Chunk;

use super::super::Item;
use super::slice::{Computed, Progress, SLOW, SliceIndex};

/// The shortest wait for a slice to become slow, because time passes between two checks.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// In which order computed chunks leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::task) enum Order {
    /// The order of the input.
    Input,
    /// Chunks of one split leave in the order of the input, and splits do not wait for each other.
    PerSplit,
    /// No order between chunks. The slices of a chunk leave in their order, except that slow ones are passed.
    Any,
}

/// An item that leaves, with the work that is left of it and the index of that work.
pub(super) type Leaving<W> = (Result<Item>, Option<(SliceIndex, W)>);

/// The items that were taken from the input and have not left, by their numbers in it.
pub(super) struct Window<W> {
    order: Order,
    next: u64,
    slots: BTreeMap<u64, Slot<W>>,
    /// Bytes of the chunks that are computed.
    bytes: usize,
    /// Items that are cut into several slices.
    cut: usize,
}

/// An item of the input: a chunk in one or more slices, or something else.
pub(super) struct Slot<W> {
    kind: Kind,
    /// The splits of its rows.
    splits: Vec<u64>,
    /// Its slices that have not left, in their order. One, unless it is a slow chunk.
    slices: Vec<Pending<W>>,
    next_slice: u32,
}

/// A slice that has not left.
struct Pending<W> {
    number: u32,
    progress: Progress,
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
        Self::new(Kind::Rows, splits_of(chunk), None)
    }

    pub(super) fn of_other(item: Result<Item>) -> Self {
        let (kind, splits) = match &item {
            Ok(Item::EndOfSplit(split)) => (Kind::EndOfSplit, vec![*split]),
            Ok(Item::Chunk(chunk) | Item::Entry { chunk, .. }) => (Kind::Rows, splits_of(chunk)),
            Ok(Item::EndOfRepetition(_)) | Err(_) => (Kind::Barrier, Vec::new()),
        };
        Self::new(kind, splits, Some((item, None)))
    }

    fn new(kind: Kind, splits: Vec<u64>, ready: Option<(Result<Item>, Option<W>)>) -> Self {
        let only = Pending { number: 0, progress: Progress::default(), ready };
        Self { kind, splits, slices: vec![only], next_slice: 1 }
    }

    fn index_of(&self, number: u32) -> Option<usize> {
        self.slices.iter().position(|s| s.number == number)
    }

    /// The first slice that may leave if the item may.
    fn first_ready(&self, order: Order) -> Option<usize> {
        for (i, slice) in self.slices.iter().enumerate() {
            if slice.ready.is_some() {
                return Some(i);
            }
            if order != Order::Any || slice.slow_in() != Some(Duration::ZERO) {
                return None;
            }
        }
        None
    }
}

impl<W> Pending<W> {
    /// The time until it is slow; none while it is not being computed.
    fn slow_in(&self) -> Option<Duration> {
        self.progress.lock().map(|since| SLOW.saturating_sub(since.elapsed()))
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
        Ok(Item::EndOfSplit(_) | Item::EndOfRepetition(_)) | Err(_) => 0,
    }
}

impl<W> Window<W> {
    pub(super) fn new(order: Order) -> Self {
        Self { order, next: 0, slots: BTreeMap::new(), bytes: 0, cut: 0 }
    }

    /// The number of items.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of the chunks that are computed and have not left.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes in the next item of the input.
    pub(super) fn admit(&mut self, slot: Slot<W>) -> SliceIndex {
        let number = self.next;
        self.bytes += slot
            .slices
            .iter()
            .filter_map(|s| s.ready.as_ref())
            .map(|(item, _)| bytes_of(item))
            .sum::<usize>();
        self.next += 1;
        self.slots.insert(number, slot);
        (number, 0)
    }

    /// A new slice directly behind another one of its item; none if that one has left.
    pub(super) fn insert_behind(&mut self, index: SliceIndex) -> Option<SliceIndex> {
        self.insert(index, 1)
    }

    /// A new slice directly before another one of its item; none if that one has left.
    pub(super) fn insert_before(&mut self, index: SliceIndex) -> Option<SliceIndex> {
        self.insert(index, 0)
    }

    fn insert(&mut self, index: SliceIndex, behind: usize) -> Option<SliceIndex> {
        let slot = self.slots.get_mut(&index.0)?;
        let at = slot.index_of(index.1)? + behind;
        let number = slot.next_slice;
        slot.next_slice += 1;
        // It counts as being computed before a thread begins it, because it waits for others that are slow.
        let progress = Arc::new(parking_lot::Mutex::new(Some(Instant::now())));
        slot.slices.insert(at, Pending { number, progress, ready: None });
        self.cut += usize::from(slot.slices.len() == 2);
        Some((index.0, number))
    }

    /// Where the work on a slice says how far it is.
    pub(super) fn progress(&self, index: SliceIndex) -> Progress {
        let slice = self.slots.get(&index.0).and_then(|slot| slot.slices.get(slot.index_of(index.1)?));
        slice.map(|s| Arc::clone(&s.progress)).unwrap_or_default()
    }

    pub(super) fn computed(&mut self, index: SliceIndex, computed: Computed<W>) {
        let Some(slot) = self.slots.get_mut(&index.0) else { return };
        let Some(slice) = slot.index_of(index.1).and_then(|at| slot.slices.get_mut(at)) else { return };
        let (item, rest) = match computed {
            Ok((chunk, rest)) => (Ok(Item::Chunk(chunk)), rest),
            Err(e) => (Err(e), None),
        };
        self.bytes += bytes_of(&item);
        slice.ready = Some((item, rest));
    }

    /// An item that may leave, with the work that is left of it. That work keeps the item's index.
    pub(super) fn leave(&mut self) -> Option<Leaving<W>> {
        let (number, at) = self.first_to_leave()?;
        let slot = self.slots.get_mut(&number)?;
        let slice = slot.slices.get_mut(at)?;
        let (item, rest) = slice.ready.take()?;
        let index = (number, slice.number);
        self.bytes = self.bytes.saturating_sub(bytes_of(&item));
        if rest.is_none() {
            self.cut -= usize::from(slot.slices.len() == 2);
            slot.slices.remove(at);
            if slot.slices.is_empty() {
                self.slots.remove(&number);
            }
        }
        Some((item, rest.map(|work| (index, work))))
    }

    /// The error if the input ends while items are left that no thread computes.
    pub(super) fn unfinished(&self) -> Option<Error> {
        let number = self.slots.keys().next()?;
        Some(Error::internal(format!(
            "{} items of a row stage were never computed, the first of them item {number}: rows may be missing",
            self.slots.len()
        )))
    }

    /// When to look again whether a slice may pass a slow one: only slices that are ready wait for that.
    pub(super) fn passes_in(&self) -> Option<Duration> {
        if self.cut == 0 || self.order != Order::Any {
            return None;
        }
        let held = |slot: &Slot<W>| {
            let ready = slot.slices.iter().position(|s| s.ready.is_some())?;
            // All slices before it have to be slow. A slice that is not being computed may begin at any time.
            let before = slot.slices.iter().take(ready).map(|s| s.slow_in().unwrap_or(SLOW));
            before.max().map(|wait| wait.max(MIN_WAIT))
        };
        self.slots.values().filter_map(held).min()
    }

    /// The slice that leaves next, by the number of its item and its position among the slices of that.
    fn first_to_leave(&self) -> Option<(u64, usize)> {
        let mut before: Vec<u64> = Vec::new();
        for (i, (number, slot)) in self.slots.iter().enumerate() {
            let follows = self.order == Order::PerSplit || slot.kind == Kind::EndOfSplit;
            let is_free = i == 0
                || slot.kind != Kind::Barrier && !(follows && slot.splits.iter().any(|s| before.contains(s)));
            if is_free && let Some(at) = slot.first_ready(self.order) {
                return Some((*number, at));
            }
            if self.order == Order::Input || slot.kind == Kind::Barrier {
                return None;
            }
            if before.last() != slot.splits.last() {
                before.extend(&slot.splits);
            }
        }
        None
    }
}
