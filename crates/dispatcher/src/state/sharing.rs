//! Whether a job shares computed rows with other jobs, and what that gave it.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Whether a job shares computed rows with other jobs that run at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sharing {
    /// It computes its rows itself.
    #[default]
    Off,
    /// Its rows may be computed by other jobs. It gets each of them exactly once.
    Exact,
    /// As `Exact`, but rows that another job computed and that no window has any more are left out.
    Relaxed,
}

impl Sharing {
    /// The name in flags and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Sharing::Off => "off",
            Sharing::Exact => "exact",
            Sharing::Relaxed => "relaxed",
        }
    }

    /// Whether other jobs may compute its rows.
    pub fn is_shared(self) -> bool {
        self != Sharing::Off
    }
}

/// What ended tasks of a job that shares computed themselves, and what they read from the windows of their workers. It is in the
/// journal, because workers report the end of a task once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedCounts {
    /// Rows that they computed, counted at the first place at which rows are shared.
    pub computed_rows: u64,
    /// Rows that tasks of other jobs had computed.
    pub window_rows: u64,
    /// Splits with such rows.
    pub window_hits: u64,
    /// Of these: splits whose remaining rows they computed themselves.
    pub taken_over: u64,
    /// Rows that the job does not get, under `relaxed`: of the splits that its tasks have skipped, running ones included.
    pub skipped_rows: u64,
    /// Bytes in shared memory that a task of another job had put there.
    pub reused_bytes: u64,
    /// Of `window_hits`: splits of which rows were read back from the worker's disk.
    pub read_back: u64,
}

impl AddAssign for SharedCounts {
    fn add_assign(&mut self, more: Self) {
        self.computed_rows = self.computed_rows.saturating_add(more.computed_rows);
        self.window_rows = self.window_rows.saturating_add(more.window_rows);
        self.window_hits = self.window_hits.saturating_add(more.window_hits);
        self.taken_over = self.taken_over.saturating_add(more.taken_over);
        self.skipped_rows = self.skipped_rows.saturating_add(more.skipped_rows);
        self.reused_bytes = self.reused_bytes.saturating_add(more.reused_bytes);
        self.read_back = self.read_back.saturating_add(more.read_back);
    }
}
