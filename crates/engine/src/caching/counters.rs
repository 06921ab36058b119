//! How many splits a task computed, stored and read.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache_plan::SplitModes;

/// The counters behind [`SplitModes`]. A split counts once, in the mode that it had in the end.
#[derive(Debug, Default)]
pub(super) struct SplitCounters {
    compute: AtomicU64,
    put: AtomicU64,
    get: AtomicU64,
    fell_back: AtomicU64,
    backfilled: AtomicU64,
}

impl SplitCounters {
    /// The counts so far.
    pub(super) fn modes(&self) -> SplitModes {
        SplitModes {
            compute: self.compute.load(Ordering::Relaxed),
            put: self.put.load(Ordering::Relaxed),
            get: self.get.load(Ordering::Relaxed),
            fell_back: self.fell_back.load(Ordering::Relaxed),
            backfilled: self.backfilled.load(Ordering::Relaxed),
        }
    }

    pub(super) fn add_computed(&self) {
        self.compute.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_stored(&self) {
        self.put.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_read(&self, splits: u64) {
        self.get.fetch_add(splits, Ordering::Relaxed);
    }

    /// A split was begun to be stored, and is computed after all.
    pub(super) fn add_fallback(&self) {
        self.fell_back.fetch_add(1, Ordering::Relaxed);
    }

    /// A split counted as read, and its part turned out to be damaged.
    pub(super) fn read_became_computed(&self) {
        self.get.fetch_sub(1, Ordering::Relaxed);
        self.compute.fetch_add(1, Ordering::Relaxed);
    }

    /// These splits counted as computed until their part was committed.
    pub(super) fn computed_became_stored(&self, splits: u64) {
        self.compute.fetch_sub(splits, Ordering::Relaxed);
        self.put.fetch_add(splits, Ordering::Relaxed);
    }

    /// A split that began before the decision was stored from the backfill buffer.
    pub(super) fn add_backfilled(&self) {
        self.computed_became_stored(1);
        self.backfilled.fetch_add(1, Ordering::Relaxed);
    }
}
