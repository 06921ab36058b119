//! How far the splits of a task are listed.

use caju_proto::v1;
use caju_types::Listed;
use parking_lot::Mutex;

/// How far the feed of a task was listed when the dispatcher leased its newest split. States of readers have it: whoever loads
/// one notices that the files of the source have changed.
#[derive(Debug, Default)]
pub(crate) struct TaskListing(Mutex<Option<(u32, Listed)>>);

impl TaskListing {
    /// What an answer with leases says, before a split of the answer is read. An answer that does not say it changes nothing.
    pub(crate) fn update(&self, listed: Option<v1::ListedSplits>) {
        if let Some(l) = listed {
            *self.0.lock() = Some((l.feed, Listed { count: l.count, digest: l.digest }));
        }
    }

    /// The last of them.
    pub(crate) fn get(&self) -> Option<(u32, Listed)> {
        *self.0.lock()
    }
}
