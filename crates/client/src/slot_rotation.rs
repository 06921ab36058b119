//! One element of each slot in turn: the order of elements under `deterministic` where each worker has rows of its own.

use std::collections::{BTreeMap, VecDeque};

use caju_wire::{Chunk, Elements};

use crate::delivery::Delivery;

/// What arrived of each slot and is not its turn yet.
///
/// A slot is a worker under `off`, and a shard in a static processing mode. Its own elements are in order. A slot that has
/// ended is left out of the rotation; one that comes later joins it.
#[derive(Debug, Default)]
pub(crate) struct SlotRotation {
    slots: BTreeMap<u32, Slot>,
    /// The slot whose turn it is, or the next one that there is.
    turn: u32,
}

#[derive(Debug, Default)]
struct Slot {
    waiting: VecDeque<Delivery>,
    /// Elements, and their rows, that were taken from the first of `waiting`.
    elements: usize,
    rows: usize,
    over: bool,
}

impl SlotRotation {
    /// The slots of an epoch, all of which are waited for. The first element is of the slot `turn`, or of the next
    /// existing one: a reader that continues from a state begins where the state ends.
    pub(crate) fn new(slots: &[u32], turn: u32) -> Self {
        Self { slots: slots.iter().map(|slot| (*slot, Slot::default())).collect(), turn }
    }

    /// These slots have rows, and are waited for.
    pub(crate) fn expect(&mut self, slots: &[u32]) {
        for slot in slots {
            self.slots.entry(*slot).or_default();
        }
    }

    pub(crate) fn push(&mut self, delivery: Delivery) {
        let slot_rows = self.slots.entry(delivery.slot).or_default();
        slot_rows.over = false;
        slot_rows.waiting.push_back(delivery);
    }

    /// No further rows of a slot will come.
    pub(crate) fn end(&mut self, slot: u32) {
        self.slots.entry(slot).or_default().over = true;
    }

    /// No further rows of any slot will come.
    pub(crate) fn end_all(&mut self) {
        self.slots.values_mut().for_each(|slot_rows| slot_rows.over = true);
    }

    /// The elements whose turn it is, and the slot whose turn comes behind them; none while they have not arrived.
    pub(crate) fn next(&mut self) -> Option<(Chunk, u32)> {
        self.slots.retain(|_, slot_rows| !slot_rows.over || !slot_rows.waiting.is_empty());
        let is_last = self.slots.len() == 1;
        let turn = self.slots.range(self.turn..).map(|(slot, _)| *slot).next();
        let slot = turn.or_else(|| self.slots.keys().next().copied())?;
        let slot_rows = self.slots.get_mut(&slot)?;
        // The last slot delivers all its elements. Before that it is not known whether another slot has ended.
        let chunk = slot_rows.next(if is_last { usize::MAX } else { 1 })?;
        self.turn = slot.saturating_add(1);
        Some((chunk, self.turn))
    }
}

impl Slot {
    /// At most `most` elements.
    fn next(&mut self, most: usize) -> Option<Chunk> {
        let chunk = &self.waiting.front()?.chunk;
        let n = most.min(chunk.num_elements() - self.elements);
        let rows = match &chunk.elements {
            Elements::Rows => n,
            Elements::Lengths(lengths) => {
                lengths[self.elements..self.elements + n].iter().map(|rows| *rows as usize).sum()
            }
        };
        let mut out = chunk.slice_rows(self.rows, rows);
        if let Elements::Lengths(lengths) = &chunk.elements {
            out.elements = Elements::Lengths(lengths[self.elements..self.elements + n].to_vec());
        }
        (self.elements, self.rows) = (self.elements + n, self.rows + rows);
        if self.elements == chunk.num_elements() {
            (self.elements, self.rows) = (0, 0);
            // Its bytes are credit again.
            self.waiting.pop_front().map(Delivery::take);
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::cast::AsArray;
    use arrow_array::types::UInt64Type;
    use arrow_array::{RecordBatch, UInt64Array};
    use caju_wire::Run;

    use super::*;

    fn delivery(slot: u32, ids: std::ops::Range<u64>, lengths: Option<Vec<u32>>) -> Delivery {
        let runs = vec![Run { split: slot.into(), start: ids.start, len: ids.end - ids.start }];
        let ids = UInt64Array::from_iter_values(ids.map(|i| u64::from(slot) * 100 + i));
        let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap();
        let mut chunk = Chunk::rows_of(batch, runs);
        if let Some(lengths) = lengths {
            chunk.elements = Elements::Lengths(lengths);
        }
        Delivery::new(slot, chunk, 0, None, None)
    }

    fn drain(rotation: &mut SlotRotation) -> Vec<Vec<u64>> {
        let next = std::iter::from_fn(|| rotation.next());
        next.map(|(c, _)| {
            let pieces = c.pieces.iter();
            pieces.flat_map(|p| p.column(0).as_primitive::<UInt64Type>().values().to_vec()).collect()
        })
        .collect()
    }

    #[test]
    fn slots_take_turns_whatever_arrives_first() {
        let mut rotation = SlotRotation::new(&[0, 1, 2], 0);
        rotation.push(delivery(2, 0..2, None));
        rotation.push(delivery(0, 0..3, None));
        assert_eq!(drain(&mut rotation), [[0]], "slot 1 is waited for");
        rotation.push(delivery(1, 0..1, None));
        assert_eq!(drain(&mut rotation), [[100], [200], [1]]);
        rotation.end(1);
        assert_eq!(drain(&mut rotation), [[201], [2]]);
        rotation.end(2);
        rotation.push(delivery(0, 3..6, None));
        assert_eq!(drain(&mut rotation), [[3, 4, 5]], "the last slot does not wait");
        rotation.end_all();
        assert!(rotation.next().is_none());
    }

    #[test]
    fn a_rotation_begins_where_another_one_stopped() {
        let rows = |rotation: &mut SlotRotation| {
            (0..3).for_each(|slot| rotation.push(delivery(slot, 0..2, None)));
        };
        let mut whole = SlotRotation::new(&[0, 1, 2], 0);
        rows(&mut whole);
        let turns: Vec<u32> = std::iter::from_fn(|| whole.next()).take(4).map(|(_, turn)| turn).collect();
        assert_eq!(turns, [1, 2, 3, 1]);
        let mut rest = SlotRotation::new(&[0, 1, 2], 2);
        rows(&mut rest);
        assert_eq!(drain(&mut rest)[..4], [[200], [0], [100], [201]]);
        let mut wrapped = SlotRotation::new(&[0, 1, 2], 3);
        rows(&mut wrapped);
        assert_eq!(drain(&mut wrapped)[0], [0], "behind the last slot comes the first one");
    }

    #[test]
    fn batches_stay_whole() {
        let mut rotation = SlotRotation::new(&[0, 1], 0);
        rotation.push(delivery(0, 0..5, Some(vec![2, 3])));
        rotation.push(delivery(1, 0..2, Some(vec![2])));
        rotation.end(1);
        assert_eq!(drain(&mut rotation), [vec![0, 1], vec![100, 101], vec![2, 3, 4]]);
    }
}
