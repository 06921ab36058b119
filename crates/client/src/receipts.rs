//! The rows that were received, so that none is delivered twice and none is lost.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use caju_proto::v1;
use caju_types::{RowRanges, RowSet, TaskId};
use caju_wire::Run;

/// The rows of a chunk that were not received before.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NewRows {
    /// All.
    All,
    /// These, as (offset, length) within the chunk; perhaps none.
    Parts(Vec<(u64, u64)>),
}

/// The rows that a reader which ends before its epoch keeps, and those that it gives back.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct FinalReceipts {
    /// Rows that the user took, by task, of tasks that may still be lost.
    pub(crate) received: Vec<v1::LostTask>,
    /// Rows that came, from any task, and that the user did not take.
    pub(crate) returned: Vec<v1::SplitRows>,
    /// Tasks with such rows that may still be lost.
    pub(crate) incomplete: BTreeSet<TaskId>,
}

/// Everything that was received, by split, and by task while the task may still be lost.
#[derive(Debug, Default)]
pub(crate) struct Receipts {
    splits: HashMap<u64, Vec<Share>>,
    /// Complete splits: users of this reader and of others have taken every row. Rows of them that come are not new.
    completed: RowRanges,
    /// Tasks with rows of these that may still be lost.
    tasks: BTreeSet<TaskId>,
}

/// The rows of one split that came from one task, or from any task that is over. One task at a time has a split, so there are
/// few entries per split.
#[derive(Debug)]
struct Share {
    task: Option<TaskId>,
    rows: RowSet,
}

impl Receipts {
    /// Records the rows of a chunk, and returns those that were not received before.
    pub(crate) fn receive(&mut self, task: TaskId, runs: &[Run]) -> NewRows {
        let mut parts: Option<Vec<(u64, u64)>> = None;
        let mut at = 0;
        for run in runs {
            let end = run.start.saturating_add(run.len);
            if self.completed.contains(run.split) {
                parts.get_or_insert_with(|| if at > 0 { vec![(0, at)] } else { Vec::new() });
                at += run.len;
                continue;
            }
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
                // All rows before this run were new.
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
        parts.map_or(NewRows::All, NewRows::Parts)
    }

    /// What was received from a task.
    pub(crate) fn of_task(&self, task: TaskId) -> Vec<v1::SplitRows> {
        let rows =
            |set: &RowSet| set.ranges().iter().map(|(start, end)| v1::RowRange { start, end }).collect();
        let own = |shares: &Vec<Share>| shares.iter().find(|s| s.task == Some(task)).map(|s| rows(&s.rows));
        let mut out: Vec<_> = self
            .splits
            .iter()
            .filter_map(|(&split_index, shares)| {
                Some(v1::SplitRows { split_index, rows: own(shares)?, ..Default::default() })
            })
            .collect();
        out.sort_by_key(|s| s.split_index);
        out
    }

    /// Divides the received rows into those that the user took, by the reader's acknowledgements, and the others.
    pub(crate) fn at_end(&self, acknowledged: &HashMap<u64, RowSet>) -> FinalReceipts {
        let mut receipts = FinalReceipts::default();
        let mut received: BTreeMap<TaskId, Vec<v1::SplitRows>> = BTreeMap::new();
        let mut splits: Vec<_> = self.splits.iter().collect();
        splits.sort_by_key(|(split, _)| **split);
        for (&split, shares) in splits {
            let taken = acknowledged.get(&split).map(RowSet::ranges).unwrap_or_default();
            let mut returned = RowRanges::default();
            for share in shares {
                let mut of_user = share.rows.ranges();
                let mut others = of_user.clone();
                others.subtract(&taken);
                of_user.subtract(&others);
                returned.extend(&others);
                if let Some(task) = share.task {
                    received.entry(task).or_default().push(ranges_to_proto(split, &of_user));
                    if !others.is_empty() {
                        receipts.incomplete.insert(task);
                    }
                }
            }
            if !returned.is_empty() {
                receipts.returned.push(ranges_to_proto(split, &returned));
            }
        }
        for task in &self.tasks {
            received.entry(*task).or_default();
        }
        let of_task =
            |(task, received): (TaskId, _)| v1::LostTask { task_id: task.0, received, ..Default::default() };
        receipts.received = received.into_iter().map(of_task).collect();
        receipts
    }

    /// Tasks that may still be lost.
    pub(crate) fn tasks(&self) -> BTreeSet<TaskId> {
        self.splits.values().flatten().filter_map(|s| s.task).chain(self.tasks.iter().copied()).collect()
    }

    /// Users of this reader and of others have taken every row of splits.
    pub(crate) fn complete(&mut self, splits: &[u64]) {
        for split in splits {
            let shares = self.splits.remove(split).unwrap_or_default();
            self.tasks.extend(shares.iter().filter_map(|s| s.task));
            self.completed.insert(*split, split.saturating_add(1));
        }
    }

    /// A task is over, or its loss was reported: its rows are received for good.
    pub(crate) fn settle(&mut self, task: TaskId) {
        self.tasks.remove(&task);
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

/// Rows of a split as ranges.
fn ranges_to_proto(split_index: u64, rows: &RowRanges) -> v1::SplitRows {
    let rows = rows.iter().map(|(start, end)| v1::RowRange { start, end }).collect();
    v1::SplitRows { split_index, rows, ..Default::default() }
}

/// Rows of a split in a message: one range, and the remainder as bits, which is short for shuffled rows.
pub(crate) fn to_proto(split_index: u64, rows: &RowSet) -> v1::SplitRows {
    let (head, words) = rows.parts();
    let (words, bits) = words.unzip();
    let range = v1::RowRange { start: head.0, end: head.1 };
    v1::SplitRows { split_index, rows: vec![range], words, bits }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever comes twice, from whichever task, every row is fresh exactly once.
        #[test]
        fn every_row_is_fresh_once(chunks in prop::collection::vec((0u64..3, prop::collection::vec((0u64..3, 0u64..80, 1u64..30), 1..5)), 1..20), settle in 0usize..20) {
            let mut receipts = Receipts::default();
            let mut model = BTreeSet::new();
            for (i, (task, runs)) in chunks.iter().enumerate() {
                let runs: Vec<Run> = runs.iter().map(|&(split, start, len)| Run { split, start, len }).collect();
                let rows: Vec<(u64, u64)> = runs.iter().flat_map(|r| (r.start..r.start + r.len).map(|o| (r.split, o))).collect();
                let fresh: Vec<(u64, u64)> = match receipts.receive(TaskId(*task), &runs) {
                    NewRows::All => rows.clone(),
                    NewRows::Parts(p) => p.into_iter().flat_map(|(s, n)| rows[s as usize..(s + n) as usize].to_vec()).collect(),
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
    fn a_reader_that_ends_early_gives_back_what_its_user_did_not_take() {
        let mut receipts = Receipts::default();
        let run = |split, start, len| Run { split, start, len };
        receipts.receive(TaskId(1), &[run(0, 0, 6)]);
        receipts.settle(TaskId(1));
        receipts.receive(TaskId(2), &[run(0, 6, 4), run(1, 0, 3)]);
        receipts.receive(TaskId(3), &[run(2, 0, 2)]);
        let acknowledged: HashMap<u64, RowSet> = [(0, (0, 4)), (0, (6, 7)), (2, (0, 2))].into_iter().fold(
            HashMap::new(),
            |mut all: HashMap<u64, RowSet>, (split, (start, end))| {
                all.entry(split).or_default().insert(start, end);
                all
            },
        );
        let receipts = receipts.at_end(&acknowledged);
        let rows = |split, rows: &[(u64, u64)]| ranges_to_proto(split, &rows.iter().copied().collect());
        assert_eq!(receipts.returned, [rows(0, &[(4, 6), (7, 10)]), rows(1, &[(0, 3)])], "of any task");
        let of = |task_id, received| v1::LostTask { task_id, received, ..Default::default() };
        assert_eq!(
            receipts.received,
            [of(2, vec![rows(0, &[(6, 7)]), rows(1, &[])]), of(3, vec![rows(2, &[(0, 2)])])]
        );
        assert_eq!(receipts.incomplete, BTreeSet::from([TaskId(2)]));
    }

    #[test]
    fn long_runs_in_order_stay_one_range() {
        let mut r = Receipts::default();
        for i in 0..1000 {
            assert_eq!(r.receive(TaskId(1), &[Run { split: 4, start: i * 8192, len: 8192 }]), NewRows::All);
        }
        assert_eq!(
            r.of_task(TaskId(1)),
            vec![v1::SplitRows {
                split_index: 4,
                rows: vec![v1::RowRange { start: 0, end: 8_192_000 }],
                ..Default::default()
            }]
        );
    }
}
