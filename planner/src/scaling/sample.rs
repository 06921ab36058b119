//! What the dispatcher has measured of a job, and what the job asks for.

use std::collections::BTreeMap;

use caju_types::JobPriority;

/// The workers in the processes of a job's readers. They run in any case, so the target counts only the workers that are
/// needed in addition.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LocalWorkers {
    /// Their number.
    pub count: u64,
    /// Their seconds since the job began, as [`JobSample::busy_s`].
    pub busy_s: f64,
    /// What one of them is worth, in workers that the target counts: a fourth, if it has a fourth of their cores.
    pub worth: f64,
}

/// What a job has done since it began.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobSample {
    /// The iteration: counters begin with it.
    pub iteration: u64,
    /// The job's name.
    pub job: String,
    /// Its priority and weight among other jobs.
    pub priority: JobPriority,
    /// Rows that its workers computed in `busy_s`: given out, in the buffers of their stages, or computed again after a loss
    /// although readers had them.
    pub rows: u64,
    /// Seconds of the workers that the target counts, added up, in which they worked. While their output was full, or they had
    /// no split, these are only the seconds in which they computed ahead.
    pub busy_s: f64,
    /// The workers that the target counts and that have computed rows for it. A worker that still loads what it needs is none of
    /// them: the rows that it will bring are not known.
    pub workers: u64,
    /// The workers in its readers' own processes.
    pub local: LocalWorkers,
    /// Per reader: rows that its user took, and the seconds in which it waited and did not wait.
    pub readers: BTreeMap<u64, (u64, f64, f64)>,
    /// Workers have all its splits: a further worker would get none, and those that have few are slower than they could be.
    pub is_ending: bool,
    /// The most workers that can work for it at once, such as one for a pipeline whose rows one task computes; none if there is no
    /// such limit, or if it is not known yet.
    pub most_workers: Option<u64>,
    /// Seconds for which no reader has asked for rows, where none has taken any.
    pub readers_idle_s: f64,
}

impl JobSample {
    /// The workers in its readers' processes, in workers that the target counts.
    pub(super) fn local_workers(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
        let count = self.local.count as f64;
        count * self.local.worth
    }

    /// All that work for it, in workers that the target counts.
    pub(super) fn all_workers(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
        let counted = self.workers as f64;
        counted + self.local_workers()
    }
}
