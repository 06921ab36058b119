//! Which rows were received, so that none is delivered twice and none is lost (I3).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use caju_engine::Run;
use caju_proto::v1;
use caju_types::{RowRanges, TaskId};

/// A set of row ordinals of one split, fast for rows that come in order and for shuffled ones.
///
/// Rows that continue the `head` extend it; others are bits, which the head swallows when it reaches them.
#[derive(Debug, Clone, Default)]
pub(crate) struct RowSet {
    head: (u64, u64),
    words: BTreeMap<u64, u64>,
}

fn mask(from: u64, to: u64) -> u64 {
    // Bits from..to of a word, 0 <= from < to <= 64.
    let high = if to == 64 { u64::MAX } else { (1 << to) - 1 };
    high & !((1 << from) - 1)
}

impl RowSet {
    /// Adds `start..end`.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if self.head.0 == self.head.1 {
            self.head = (start, end);
        } else if start == self.head.1 {
            self.head.1 = end;
        } else {
            for (word, bits) in words(start, end) {
                *self.words.entry(word).or_default() |= bits;
            }
        }
        self.swallow();
    }

    fn swallow(&mut self) {
        while let Some(bits) = self.words.get(&(self.head.1 / 64)) {
            let (word, at) = (self.head.1 / 64, self.head.1 % 64);
            let n = u64::from((!(bits >> at)).trailing_zeros()).min(64 - at);
            if n == 0 {
                return;
            }
            let left = bits & !mask(at, at + n);
            if left == 0 {
                self.words.remove(&word);
            } else {
                self.words.insert(word, left);
            }
            self.head.1 += n;
            if at + n < 64 {
                return;
            }
        }
    }

    /// Whether any row of `start..end` is in the set.
    pub(crate) fn intersects(&self, start: u64, end: u64) -> bool {
        if start >= end {
            return false;
        }
        let (s, e) = self.head;
        if s < e && start < e && s < end {
            return true;
        }
        let (first, last) = (start / 64, (end - 1) / 64);
        self.words.range(first..=last).any(|(&word, &bits)| {
            let (from, to) = (start.max(word * 64) - word * 64, end.min(word * 64 + 64) - word * 64);
            from < to && bits & mask(from, to) != 0
        })
    }

    /// The set as ranges.
    pub(crate) fn ranges(&self) -> RowRanges {
        let mut out = RowRanges::default();
        for (&word, &bits) in &self.words {
            let (mut bits, mut at) = (bits, word * 64);
            while bits != 0 {
                let skip = u64::from(bits.trailing_zeros());
                at += skip;
                bits >>= skip;
                let n = u64::from((!bits).trailing_zeros());
                out.insert(at, at + n);
                at += n;
                bits = if n == 64 { 0 } else { bits >> n };
            }
        }
        out.insert(self.head.0, self.head.1);
        out
    }

    fn extend(&mut self, other: &RowSet) {
        for (s, e) in other.ranges().iter() {
            for (a, b) in self.missing_in(s, e) {
                self.insert(a, b);
            }
        }
    }

    /// The parts of `start..end` that are not in the set.
    fn missing_in(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        if self.intersects(start, end) { self.ranges().missing_in(start, end) } else { vec![(start, end)] }
    }
}

fn words(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    (start / 64..=(end - 1) / 64).map(move |word| {
        let base = word * 64;
        (word, mask(start.max(base) - base, (end - base).min(64)))
    })
}

/// Which of a chunk's rows are new.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fresh {
    /// All.
    All,
    /// These, as (offset, length) within the chunk; perhaps none.
    Parts(Vec<(u64, u64)>),
}

/// Everything that was received, by split, and by task while the task may still be lost.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    splits: HashMap<u64, Vec<Share>>,
}

/// The rows of one split that came from one task; from any that is over, if no task is named. A split is with
/// one task at a time, so there are few.
#[derive(Debug)]
struct Share {
    task: Option<TaskId>,
    rows: RowSet,
}

impl Receipts {
    /// Enters the rows of a chunk and says which of them were not received before.
    pub(crate) fn receive(&mut self, task: TaskId, runs: &[Run]) -> Fresh {
        let mut parts: Option<Vec<(u64, u64)>> = None;
        let mut at = 0;
        for run in runs {
            let end = run.start.saturating_add(run.len);
            let shares = self.splits.entry(run.split).or_default();
            let known = shares.iter().any(|s| s.rows.intersects(run.start, end));
            let own = match shares.iter().position(|s| s.task == Some(task)) {
                Some(own) => own,
                None => {
                    shares.push(Share { task: Some(task), rows: RowSet::default() });
                    shares.len() - 1
                }
            };
            if known {
                // All before this run was new.
                let parts = parts.get_or_insert_with(|| if at > 0 { vec![(0, at)] } else { Vec::new() });
                let mut missing = vec![(run.start, end)];
                for share in shares.iter() {
                    missing = missing.into_iter().flat_map(|(s, e)| share.rows.missing_in(s, e)).collect();
                }
                for (s, e) in missing {
                    shares[own].rows.insert(s, e);
                    parts.push((at + (s - run.start), e - s));
                }
            } else {
                shares[own].rows.insert(run.start, end);
                if let Some(parts) = &mut parts {
                    parts.push((at, run.len));
                }
            }
            at += run.len;
        }
        parts.map_or(Fresh::All, Fresh::Parts)
    }

    /// What was received from a task.
    pub(crate) fn of_task(&self, task: TaskId) -> Vec<v1::SplitRows> {
        let rows =
            |set: &RowSet| set.ranges().iter().map(|(start, end)| v1::RowRange { start, end }).collect();
        let own = |shares: &Vec<Share>| shares.iter().find(|s| s.task == Some(task)).map(|s| rows(&s.rows));
        let mut out: Vec<_> = self
            .splits
            .iter()
            .filter_map(|(&split_index, shares)| Some(v1::SplitRows { split_index, rows: own(shares)? }))
            .collect();
        out.sort_by_key(|s| s.split_index);
        out
    }

    /// Tasks that may still be lost.
    pub(crate) fn tasks(&self) -> BTreeSet<TaskId> {
        self.splits.values().flatten().filter_map(|s| s.task).collect()
    }

    /// A task is over, or its loss is reported: its rows count as received for good.
    pub(crate) fn settle(&mut self, task: TaskId) {
        for shares in self.splits.values_mut() {
            let Some(own) = shares.iter().position(|s| s.task == Some(task)) else { continue };
            let share = shares.swap_remove(own);
            match shares.iter_mut().find(|s| s.task.is_none()) {
                Some(settled) => settled.rows.extend(&share.rows),
                None => shares.push(Share { task: None, rows: share.rows }),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_row_set_is_a_set(ops in prop::collection::vec((0u64..400, 0u64..150), 0..40), q in (0u64..500, 0u64..100)) {
            let (mut set, mut model) = (RowSet::default(), BTreeSet::new());
            for (s, n) in ops {
                // Callers insert what is missing only.
                for (a, b) in set.missing_in(s, s + n) {
                    set.insert(a, b);
                }
                model.extend(s..s + n);
                let ranges = set.ranges();
                prop_assert_eq!(ranges.len(), model.len() as u64);
            }
            prop_assert_eq!(set.ranges(), model.iter().map(|&i| (i, i + 1)).collect::<RowRanges>());
            prop_assert_eq!(set.intersects(q.0, q.0 + q.1), (q.0..q.0 + q.1).any(|i| model.contains(&i)));
        }

        /// Whatever comes twice, from whichever task, every row is fresh exactly once.
        #[test]
        fn every_row_is_fresh_once(chunks in prop::collection::vec((0u64..3, prop::collection::vec((0u64..3, 0u64..80, 1u64..30), 1..5)), 1..20), settle in 0usize..20) {
            let mut receipts = Receipts::default();
            let mut model = BTreeSet::new();
            for (i, (task, runs)) in chunks.iter().enumerate() {
                let runs: Vec<Run> = runs.iter().map(|&(split, start, len)| Run { split, start, len }).collect();
                let rows: Vec<(u64, u64)> = runs.iter().flat_map(|r| (r.start..r.start + r.len).map(|o| (r.split, o))).collect();
                let fresh: Vec<(u64, u64)> = match receipts.receive(TaskId(*task), &runs) {
                    Fresh::All => rows.clone(),
                    Fresh::Parts(p) => p.into_iter().flat_map(|(s, n)| rows[s as usize..(s + n) as usize].to_vec()).collect(),
                };
                let want: Vec<(u64, u64)> = rows.into_iter().filter(|r| model.insert(*r)).collect();
                prop_assert_eq!(fresh, want);
                if i == settle {
                    receipts.settle(TaskId(*task));
                    prop_assert!(receipts.of_task(TaskId(*task)).is_empty());
                }
            }
            let held: u64 = (0..3).flat_map(|t| receipts.of_task(TaskId(t))).flat_map(|s| s.rows).map(|r| r.end - r.start).sum();
            prop_assert!(held <= model.len() as u64);
        }
    }

    #[test]
    fn long_runs_in_order_stay_one_range() {
        let mut r = Receipts::default();
        for i in 0..1000 {
            assert_eq!(r.receive(TaskId(1), &[Run { split: 4, start: i * 8192, len: 8192 }]), Fresh::All);
        }
        assert_eq!(
            r.of_task(TaskId(1)),
            vec![v1::SplitRows { split_index: 4, rows: vec![v1::RowRange { start: 0, end: 8_192_000 }] }]
        );
    }
}
