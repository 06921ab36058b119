//! The in-flight splits of a task: which hint their rows are stored at, and by which writer.

use std::collections::HashMap;

use super::backfill_buffer::BackfillBuffer;
use super::part_sender::PartSender;

/// The splits whose rows are on their way to a hint, by lease.
#[derive(Default)]
pub(super) struct InFlight {
    splits: HashMap<u64, InFlightSplit>,
    /// Rows of splits that began before the decision.
    pub(super) backfill: BackfillBuffer,
}

/// A split on its way to a hint at which its rows are stored, or dropped in part.
pub(super) struct InFlightSplit {
    pub(super) hint: usize,
    /// Rows below this ordinal were read from a part that then turned out to be damaged.
    pub(super) skip_below: u64,
    /// Bytes of the source that were read for the split, once all were read.
    pub(super) source_bytes: u64,
    pub(super) sender: Option<PartSender>,
}

impl InFlightSplit {
    /// A split whose rows go to the writer of its part.
    pub(super) fn stored(hint: usize, sender: PartSender, source_bytes: u64) -> Self {
        Self { hint, skip_below: 0, source_bytes, sender: Some(sender) }
    }

    /// A split whose first rows were read from its part already.
    pub(super) fn resumed(hint: usize, skip_below: u64) -> Self {
        Self { hint, skip_below, source_bytes: 0, sender: None }
    }
}

impl InFlight {
    pub(super) fn insert(&mut self, index: u64, split: InFlightSplit) {
        self.splits.insert(index, split);
    }

    pub(super) fn get(&self, index: u64) -> Option<&InFlightSplit> {
        self.splits.get(&index)
    }

    /// Removes a split, which drops its sender.
    pub(super) fn remove(&mut self, index: u64) {
        self.splits.remove(&index);
    }

    /// Removes a split if it is on its way to this hint.
    pub(super) fn take_at(&mut self, hint: usize, index: u64) -> Option<InFlightSplit> {
        self.splits.get(&index).is_some_and(|s| s.hint == hint).then(|| self.splits.remove(&index))?
    }

    /// The source of a split was read to its end.
    pub(super) fn set_source_bytes(&mut self, index: u64, source_bytes: u64) {
        self.backfill.set_source_bytes(index, source_bytes);
        if let Some(split) = self.splits.get_mut(&index) {
            split.source_bytes = source_bytes;
        }
    }

    /// Drops all splits and all buffered rows.
    pub(super) fn clear(&mut self) {
        self.splits.clear();
        self.backfill.clear();
    }
}
