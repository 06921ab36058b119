//! Boundaries that were learnt for `bucket_by_length`, as commands show them.

use caju_pipeline::LearntBoundaries;
use caju_proto::v1::{self, JobStatus};

use crate::report::BoundariesReport;

/// Those of a job.
pub(crate) fn of_job(job: &JobStatus) -> Vec<BoundariesReport> {
    learnt(job).into_iter().map(BoundariesReport::from).collect()
}

/// Those of a job, for its definition.
pub(crate) fn learnt(job: &JobStatus) -> Vec<LearntBoundaries> {
    job.boundaries.iter().map(from_proto).collect()
}

fn from_proto(of: &v1::LearntBoundaries) -> LearntBoundaries {
    let stage = usize::try_from(of.stage).unwrap_or(usize::MAX);
    LearntBoundaries { stage, boundaries: of.boundaries.clone(), rows: of.rows }
}

impl From<LearntBoundaries> for BoundariesReport {
    fn from(learnt: LearntBoundaries) -> Self {
        let LearntBoundaries { stage, boundaries, rows } = learnt;
        Self { step: stage, boundaries, rows }
    }
}

/// Writes `steps[1].bucket_by_length: [12, 40] of 4096 rows`.
impl std::fmt::Display for BoundariesReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { step: stage, boundaries, rows } = self.clone();
        LearntBoundaries { stage, boundaries, rows }.fmt(f)
    }
}
