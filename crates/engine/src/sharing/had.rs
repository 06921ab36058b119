//! The splits that a task has had: it does not need them again.

use std::collections::{BTreeMap, HashSet};

use super::shared_split::SplitRef;

/// The most splits that are remembered one by one, unless they are of the last two repetitions of the source: about 2 MiB.
const MAX_SPLITS: usize = 65_536;

/// The splits that a task computed or read. A task runs for as long as its job, and an endless `repeat` gives it splits for
/// ever, so splits of earlier repetitions are forgotten: they count as had. The task still gets those that the dispatcher gives
/// it. Other tasks do not wait for it there.
#[derive(Debug, Default)]
pub(super) struct HadSplits {
    by_repetition: BTreeMap<u32, HashSet<u128>>,
    splits: usize,
    /// All splits of the repetitions before this one count as had.
    first: u32,
}

impl HadSplits {
    /// The task begins a split.
    pub(super) fn insert(&mut self, of: SplitRef) {
        if of.repetition < self.first {
            return;
        }
        self.splits += usize::from(self.by_repetition.entry(of.repetition).or_default().insert(of.key));
        while self.splits > MAX_SPLITS
            && self.by_repetition.len() > 2
            && let Some((repetition, keys)) = self.by_repetition.pop_first()
        {
            self.splits -= keys.len();
            self.first = repetition + 1;
        }
    }

    /// Whether the task has begun a split, or counts as if it had.
    pub(super) fn contains(&self, of: &SplitRef) -> bool {
        let is_known = || self.by_repetition.get(&of.repetition).is_some_and(|keys| keys.contains(&of.key));
        of.repetition < self.first || is_known()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_source_takes_no_endless_memory() {
        let split = |key, repetition| SplitRef { key, repetition };
        let mut had = HadSplits::default();
        for repetition in 0..1000 {
            (0..1000).for_each(|key| had.insert(split(key, repetition)));
        }
        assert!(had.by_repetition.values().map(HashSet::len).sum::<usize>() <= MAX_SPLITS);
        assert!(
            had.contains(&split(999, 999))
                && had.contains(&split(0, 999))
                && !had.contains(&split(1000, 999))
        );
        assert!(had.contains(&split(5, 0)) && had.contains(&split(5000, 0)), "forgotten ones count as had");
        had.insert(split(5, 0));
        assert!(!had.by_repetition.contains_key(&0));
    }

    #[test]
    fn all_splits_of_one_repetition_are_remembered() {
        let mut had = HadSplits::default();
        for key in 0..2 * MAX_SPLITS as u128 {
            had.insert(SplitRef { key, repetition: 0 });
        }
        assert!((0..2 * MAX_SPLITS as u128).all(|key| had.contains(&SplitRef { key, repetition: 0 })));
        assert!(!had.contains(&SplitRef { key: 2 * MAX_SPLITS as u128, repetition: 0 }));
    }
}
