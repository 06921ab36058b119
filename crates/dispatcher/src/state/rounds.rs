//! The last rounds of an epoch whose consumers read in rounds.
//!
//! Consumers that read in rounds deliver the elements of all tasks in one order ([`crate::control`] keeps it), so the n-th
//! element of each is of the same round. What fills no round of one task is given out here: elements of one class make
//! rounds with those of other tasks. Their places are numbered, and a consumer delivers them when all consumers have
//! received everything.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use caju_types::{TaskId, Uneven};

use super::{Consumers, Iteration, Remainder, RemainderAssignment, RemainderPiece, Task, TaskState};

/// Gives out elements: those of one class make rounds, of which `first` is the first. Elements with as many rows share
/// rounds, so that one round of a class at most has full ones and some with fewer rows.
pub(super) fn by_class(
    remainders: &[(TaskId, &Remainder)],
    consumers: &Consumers,
    first: u64,
) -> RemainderAssignment {
    let (count, uneven) = (u64::from(consumers.count).max(1), consumers.uneven);
    let mut classes: BTreeMap<Option<u32>, Vec<(usize, u64)>> = BTreeMap::new();
    for (task, (_, remainder)) in remainders.iter().enumerate() {
        for element in 0..remainder.elements {
            classes.entry(kind(remainder, element).and_then(|k| k.bucket)).or_default().push((task, element));
        }
    }
    let mut assignment = RemainderAssignment {
        tasks: remainders.iter().map(|(id, _)| (*id, Vec::new())).collect(),
        ..RemainderAssignment::default()
    };
    let per_round = usize::try_from(count).unwrap_or(usize::MAX);
    for elements in classes.values_mut() {
        let rows = |(task, element): &(usize, u64)| {
            remainders.get(*task).and_then(|(_, remainder)| kind(remainder, *element)).map_or(0, |k| k.rows)
        };
        elements.sort_by_key(|element| Reverse(rows(element)));
        for round in elements.chunks(per_round) {
            let lacks = count - round.len() as u64;
            if lacks > 0 && uneven == Uneven::Drop {
                assignment.surplus += round.len() as u64;
                continue;
            }
            assignment.padded += lacks;
            let pad_to = widest(round.iter().filter_map(|(task, element)| {
                let (_, remainder) = remainders.get(*task)?;
                kind(remainder, *element).map(|k| k.widths.as_slice())
            }));
            for (consumer, (task, element)) in (0..consumers.count.max(1)).zip(round.iter().cycle()) {
                let Some((_, pieces)) = assignment.tasks.get_mut(*task) else { continue };
                pieces.push(RemainderPiece {
                    consumer,
                    of_rows: false,
                    start: *element,
                    end: element + 1,
                    copy: u64::from(consumer) >= round.len() as u64,
                    round: first + assignment.rounds,
                    pad_to: pad_to.clone(),
                });
            }
            assignment.rounds += 1;
        }
    }
    assignment
}

fn kind(remainder: &Remainder, element: u64) -> Option<&super::RemainderElement> {
    remainder.kinds.get(usize::try_from(element).ok()?)
}

/// The widths to which elements are padded to be of one shape: the largest of each column, where all have one.
fn widest<'a>(mut all: impl Iterator<Item = &'a [u32]>) -> Vec<u32> {
    let Some(first) = all.next() else { return Vec::new() };
    all.fold(first.to_vec(), |widest, widths| {
        let both = widest.iter().zip(widths);
        both.map(|(a, b)| if *a == 0 || *b == 0 { 0 } else { *a.max(b) }).collect()
    })
}

/// Numbers what was assigned without classes: the whole elements of each consumer, then the rows that fill batches. All are padded
/// to one shape.
pub(super) fn numbered(
    mut assignment: RemainderAssignment,
    remainders: &[(TaskId, &Remainder)],
    first: u64,
) -> RemainderAssignment {
    let mut pad_to: Vec<u32> = Vec::new();
    for widths in
        remainders.iter().flat_map(|(_, t)| t.kinds.iter().map(|k| &k.widths).chain([&t.row_widths]))
    {
        pad_to.resize(pad_to.len().max(widths.len()), 0);
        pad_to.iter_mut().zip(widths).for_each(|(widest, width)| *widest = (*widest).max(*width));
    }
    assignment.tasks.iter_mut().flat_map(|(_, pieces)| pieces).for_each(|p| p.pad_to.clone_from(&pad_to));
    let mut given: BTreeMap<u32, u64> = BTreeMap::new();
    for piece in assignment.tasks.iter_mut().flat_map(|(_, pieces)| pieces).filter(|p| !p.of_rows) {
        let given = given.entry(piece.consumer).or_default();
        piece.round = first + *given;
        *given += 1;
    }
    let last = given.values().copied().max().unwrap_or(0);
    for piece in assignment.tasks.iter_mut().flat_map(|(_, pieces)| pieces).filter(|p| p.of_rows) {
        piece.round = first + last;
    }
    assignment.rounds = last + 1;
    assignment
}

impl Iteration {
    /// Whether all rows of the epoch are in tasks whose remainders are assigned. After the loss of a task they are taken
    /// back once every consumer has said what it has of it.
    pub fn has_all_remainders(&self) -> bool {
        let is_assigned = |t: &Task| !t.is_lost() && (t.remainder_pieces.is_some() || t.is_over());
        self.failure.is_none()
            && !self.feeds.values().any(super::Feed::has_work)
            && self.tasks.values().all(is_assigned)
    }

    /// A task was lost whose remainder was assigned. Consumers have delivered all of the last rounds, or nothing of them: what
    /// they have received of them otherwise they drop. So the remainders of all tasks are computed and assigned again.
    pub(super) fn withdraw_remainders(&mut self, lost: &Task) {
        if lost.remainder_pieces.as_ref().is_none_or(Vec::is_empty) {
            return;
        }
        if let Some(even) = &mut self.even {
            (even.surplus, even.padded) = (0, 0);
        }
        let has_pieces = |t: &&Task| {
            let runs = matches!(t.state, TaskState::Active | TaskState::Ended);
            runs && t.remainder_pieces.as_ref().is_some_and(|pieces| !pieces.is_empty())
        };
        let others: Vec<TaskId> = self.tasks.values().filter(has_pieces).map(|t| t.id).collect();
        for id in others {
            self.lose_without_blame(
                id,
                "the last rounds of the epoch are made again, because another task of it was lost",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use caju_types::Balance;

    use super::super::RemainderElement;
    use super::*;

    proptest! {
        /// Whatever is left where: each of the last rounds has one element for every consumer, all of one class and padded
        /// to one width, no element is given out twice but as a copy, and less than a round per class is dropped or copied.
        #[test]
        fn cor_03_the_last_rounds_are_of_one_class_each(
            left in prop::collection::vec(prop::collection::vec((0u32..4, 1u32..9, 1u64..4), 0..12), 0..5),
            count in 1u32..6,
            pad: bool,
        ) {
            let remainders: Vec<Remainder> = left.iter().map(|kinds| Remainder {
                elements: kinds.len() as u64,
                rows: 0,
                batch_rows: 0,
                drop_remainder: false,
                lag: Vec::new(),
                kinds: kinds.iter().map(|(b, w, r)| RemainderElement { bucket: Some(*b), widths: vec![*w], rows: *r }).collect(),
                row_widths: Vec::new(),
                has_spare: false,
            }).collect();
            let remainders: Vec<_> = (1..).map(TaskId).zip(&remainders).collect();
            let uneven = if pad { Uneven::Pad } else { Uneven::Drop };
            let assignment = by_class(&remainders, &Consumers { count, uneven, balance: Balance::Bucket }, 8);
            let mut rounds: BTreeMap<u64, Vec<(u32, u32, Vec<u32>)>> = BTreeMap::new();
            let mut numbers: BTreeMap<(u32, u64), std::collections::BTreeSet<u64>> = BTreeMap::new();
            let mut seen = std::collections::BTreeSet::new();
            for (task, pieces) in &assignment.tasks {
                let kinds = &left[usize::try_from(task.0).unwrap() - 1];
                for p in pieces {
                    let (bucket, width, rows) = kinds[usize::try_from(p.start).unwrap()];
                    prop_assert!(p.end == p.start + 1 && p.pad_to[0] >= width);
                    prop_assert!(p.copy || seen.insert((*task, p.start)), "twice");
                    numbers.entry((bucket, p.round)).or_default().insert(rows);
                    rounds.entry(p.round).or_default().push((p.consumer, bucket, p.pad_to.clone()));
                }
            }
            prop_assert_eq!(rounds.keys().copied().collect::<Vec<_>>(), (8..8 + assignment.rounds).collect::<Vec<_>>());
            for round in rounds.values_mut() {
                round.sort();
                prop_assert_eq!(round.iter().map(|r| r.0).collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
                prop_assert!(round.iter().all(|r| (&r.1, &r.2) == (&round[0].1, &round[0].2)), "{round:?}");
            }
            // Of three numbers of rows, two rounds of a class at most have several.
            for bucket in 0..4 {
                let mixed = numbers.iter().filter(|((of, _), rows)| *of == bucket && rows.len() > 1).count();
                prop_assert!(mixed <= 2, "{mixed} rounds of class {bucket} are mixed: {numbers:?}");
            }
            let total = left.iter().map(Vec::len).sum::<usize>() as u64;
            prop_assert_eq!(seen.len() as u64 + assignment.surplus, total);
            prop_assert!(assignment.surplus <= 4 * u64::from(count - 1) && (pad || assignment.padded == 0));
        }
    }
}
