//! Jobs that share.

/// Whose task shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharingJob {
    /// The name of the job, as a number. An epoch that a job reads again, as from a state, is an iteration of its own.
    pub job: u128,
    /// Which epoch of its job that is.
    pub epoch: u64,
    /// Whether the task skips rows that another job computed in the same epoch and that have left the window. Else it computes
    /// them.
    pub is_relaxed: bool,
}

/// What a task may do with a split that it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MayShare {
    /// It computes the rows in any case. Others may read them.
    GiveOnly,
    /// It stores the rows at the hint with this index. It reads rows that others compute only down to there, and gives those
    /// that it computes.
    Store(usize),
    /// It reads rows that others compute, and gives those that it computes.
    Read,
    /// It reads and gives rows as [`Self::Read`], and may leave the split out if its job may.
    Skip,
}
