//! What sharing did.

use std::sync::atomic::{AtomicU64, Ordering};

/// What one task computed itself, and what it read from the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharedCounts {
    /// Rows that the task computed, counted at its first sharing point.
    pub computed_rows: u64,
    /// Rows that it read from the window.
    pub window_rows: u64,
    /// Splits that it read from the window, whole or in part.
    pub window_hits: u64,
    /// Of these, splits of which it read rows back from disk.
    pub read_back: u64,
    /// Of these, splits whose remaining rows it computed itself.
    pub taken_over: u64,
}

/// The counters behind [`SharedCounts`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    computed_rows: AtomicU64,
    window_rows: AtomicU64,
    window_hits: AtomicU64,
    read_back: AtomicU64,
    taken_over: AtomicU64,
}

impl Counters {
    pub(super) fn add_computed(&self, rows: u64) {
        self.computed_rows.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn add_from_window(&self, rows: u64) {
        self.window_rows.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn add_hit(&self) {
        self.window_hits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_read_back(&self) {
        self.read_back.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_taken_over(&self) {
        self.taken_over.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> SharedCounts {
        SharedCounts {
            computed_rows: self.computed_rows.load(Ordering::Relaxed),
            window_rows: self.window_rows.load(Ordering::Relaxed),
            window_hits: self.window_hits.load(Ordering::Relaxed),
            read_back: self.read_back.load(Ordering::Relaxed),
            taken_over: self.taken_over.load(Ordering::Relaxed),
        }
    }
}

/// The state of a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WindowUsage {
    /// Bytes of the rows in it, in memory.
    pub bytes: u64,
    /// The most bytes that it may hold.
    pub limit_bytes: u64,
    /// The most bytes that it held at any time.
    pub peak_bytes: u64,
    /// Splits in it, once per sharing point.
    pub splits: u64,
    /// Splits that tasks read from it so far.
    pub hits: u64,
    /// Splits that tasks computed so far because they were not in it.
    pub misses: u64,
    /// Splits that left it although a running task had not read them.
    pub evicted_unread: u64,
    /// Bytes of the files with rows of it that did not fit in memory.
    pub disk_bytes: u64,
    /// The most bytes of such files; 0: none are written.
    pub disk_limit_bytes: u64,
    /// Bytes that were written to such files so far.
    pub spilled_bytes: u64,
    /// Splits of which tasks read rows back from such files so far, once per task.
    pub read_back: u64,
    /// Files that could not be written or read so far.
    pub spill_errors: u64,
}
