//! What a run of stages demands of each resource, per source row.

use crate::profile::Stage;

/// Sums and maxima over a run of stages.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Span {
    pub(crate) cpu_s: f64,
    pub(crate) io_bytes: f64,
    /// The largest service time over parallelism, and the stage that has it.
    pub(crate) stall_s: f64,
    pub(crate) stall_stage: usize,
    /// The stages' times one after the other, for the policy that adds them up.
    pub(crate) summed_s: f64,
}

impl Span {
    /// With one more stage, which runs this many times per row.
    pub(crate) fn and(self, i: usize, s: &Stage, cluster: (f64, f64), times: f64) -> Self {
        let (workers, cores) = cluster;
        let stall = s.max_parallelism.map_or(0.0, |p| s.service_s_per_row / (workers * p));
        let (stall_s, stall_stage) =
            if stall > self.stall_s { (stall, i) } else { (self.stall_s, self.stall_stage) };
        Self {
            cpu_s: self.cpu_s + times * s.cpu_s_per_row,
            io_bytes: self.io_bytes + times * s.io_bytes_per_row,
            stall_s,
            stall_stage,
            summed_s: self.summed_s + s.service_s_per_row / s.max_parallelism.map_or(cores, |p| p.min(cores)),
        }
    }
}
