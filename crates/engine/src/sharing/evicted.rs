//! The splits that have left a window: what a job under `sharing: relaxed` skips.

use std::collections::{HashMap, VecDeque};

use super::job::SharingJob;
use super::shared_split::SplitId;

/// The most splits that a window remembers after their rows were evicted: about 6 MiB. A split that it does not remember is
/// computed.
const MAX_EVICTED: usize = 65_536;

/// The splits that left a window, the last ones.
#[derive(Debug, Default)]
pub(super) struct EvictedSplits {
    splits: HashMap<SplitId, EvictedSplit>,
    /// In the order of eviction. A split that was evicted twice is listed twice.
    order: VecDeque<SplitId>,
}

#[derive(Debug, Clone, Copy)]
struct EvictedSplit {
    rows: u64,
    /// Who computed it.
    job: u128,
    epoch: u64,
}

impl EvictedSplits {
    /// All rows of a split were evicted. `by`: the job that computed it.
    pub(super) fn add(&mut self, id: SplitId, rows: u64, by: SharingJob) {
        self.splits.insert(id, EvictedSplit { rows, job: by.job, epoch: by.epoch });
        self.order.push_back(id);
        while self.order.len() > MAX_EVICTED {
            let forgotten = self.order.pop_front();
            forgotten.and_then(|id| self.splits.remove(&id));
        }
    }

    /// The rows of a split that a job skips there; none if it does not skip it.
    pub(super) fn skipped(&self, id: &SplitId, job: SharingJob) -> Option<u64> {
        let split = self.splits.get(id).filter(|_| job.is_relaxed)?;
        (split.epoch == job.epoch && split.job != job.job).then_some(split.rows)
    }

    /// Forgets the splits that no task needs to know any more.
    pub(super) fn retain(&mut self, is_known: impl Fn(u128, u64) -> bool) {
        self.splits.retain(|id, split| is_known(id.point, split.epoch));
        self.order.retain(|id| self.splits.contains_key(id));
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared_split::SplitRef;
    use super::*;

    #[test]
    fn the_oldest_ones_are_forgotten() {
        let of = |key| SplitId { point: 1, split: SplitRef { key, repetition: 0 } };
        let job = |job, epoch| SharingJob { job, epoch, is_relaxed: true };
        let mut evicted = EvictedSplits::default();
        for key in 0..MAX_EVICTED as u128 + 1 {
            evicted.add(of(key), 7, job(1, 0));
        }
        assert_eq!((evicted.skipped(&of(0), job(2, 0)), evicted.skipped(&of(1), job(2, 0))), (None, Some(7)));
        assert_eq!(evicted.splits.len(), MAX_EVICTED);
        assert_eq!(evicted.skipped(&of(1), job(1, 0)), None, "its own");
        assert_eq!(evicted.skipped(&of(1), job(2, 1)), None, "another epoch");
        assert_eq!(evicted.skipped(&of(1), SharingJob { is_relaxed: false, ..job(2, 0) }), None);
        evicted.retain(|_, epoch| epoch == 1);
        assert!(evicted.splits.is_empty() && evicted.order.is_empty());
    }
}
