//! What was written to manifests and plan records, so that it is not written again.

use std::collections::HashSet;

use caju_runtime::OrderedMutex;

use crate::locks;

/// The most hashes of written updates that are remembered. Beyond that an update may be written again, without effect.
const MAX_WRITTEN: usize = 4096;

/// Hashes of what was written to manifests and plan records.
pub(super) struct WrittenHashes {
    hashes: OrderedMutex<HashSet<u128>>,
}

impl Default for WrittenHashes {
    fn default() -> Self {
        Self { hashes: OrderedMutex::new(locks::WRITTEN, HashSet::new()) }
    }
}

impl WrittenHashes {
    /// Whether something was not written before. It counts as written from now on.
    pub(super) fn is_new(&self, what: u128) -> bool {
        let mut hashes = self.hashes.lock();
        if hashes.len() >= MAX_WRITTEN {
            hashes.clear();
        }
        hashes.insert(what)
    }

    /// What could not be written is written another time.
    pub(super) fn forget(&self, what: u128) {
        self.hashes.lock().remove(&what);
    }
}
