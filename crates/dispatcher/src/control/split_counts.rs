//! How many different splits the source of a running iteration has listed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use caju_runtime::OrderedMutex;
use caju_types::IterationId;

use super::context::IterationObserver;
use crate::catalog::ListedSplit;
use crate::locks;
use crate::state::State;

/// Splits of one source that are counted. The keys of more would take too much memory.
const MAX_SPLITS: usize = 1 << 22;

/// The splits of running iterations.
pub(super) struct SplitCounts {
    by_iteration: OrderedMutex<HashMap<IterationId, Arc<SplitCount>>>,
}

impl Default for SplitCounts {
    fn default() -> Self {
        Self { by_iteration: OrderedMutex::new(locks::SPLIT_COUNTS, HashMap::new()) }
    }
}

impl SplitCounts {
    /// The count of an iteration, from now on.
    pub(super) fn begin(&self, iteration: IterationId) -> Arc<SplitCount> {
        Arc::clone(self.by_iteration.lock().entry(iteration).or_default())
    }

    /// The number of different splits that were listed.
    pub(super) fn of(&self, iteration: IterationId) -> Option<u64> {
        match &*self.by_iteration.lock().get(&iteration)?.0.lock() {
            Seen::Keys(keys) => Some(keys.len() as u64),
            Seen::Count(count) => Some(*count),
            Seen::Unclear => None,
        }
    }

    /// The listing is over: its number is enough.
    fn settle(&self, iteration: IterationId) {
        let Some(count) = self.of(iteration) else { return };
        if let Some(of) = self.by_iteration.lock().get(&iteration) {
            *of.0.lock() = Seen::Count(count);
        }
    }
}

impl IterationObserver for SplitCounts {
    fn changed(&self, id: IterationId, is_running: bool) {
        if !is_running {
            self.settle(id);
        }
    }

    fn removed(&self, id: IterationId, _state: &State) {
        self.by_iteration.lock().remove(&id);
    }
}

/// The different splits of an iteration: repetitions, and feeds of several workers, list the same ones again.
pub(super) struct SplitCount(OrderedMutex<Seen>);

#[derive(Debug)]
enum Seen {
    /// While they are listed.
    Keys(HashSet<u64>),
    /// Afterwards.
    Count(u64),
    /// They cannot be distinguished, or are too many.
    Unclear,
}

impl Default for SplitCount {
    fn default() -> Self {
        Self(OrderedMutex::new(locks::SPLIT_COUNT, Seen::Keys(HashSet::new())))
    }
}

impl SplitCount {
    pub(super) fn add(&self, split: &ListedSplit) {
        let mut seen = self.0.lock();
        let Seen::Keys(keys) = &mut *seen else { return };
        match split.key() {
            Some(key) if keys.len() < MAX_SPLITS => {
                keys.insert(key.folded());
            }
            _ => *seen = Seen::Unclear,
        }
    }
}
