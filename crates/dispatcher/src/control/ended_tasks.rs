//! What workers report of tasks at their ends, added up by iteration.

use std::collections::BTreeMap;

use caju_proto::v1::{IoStats, StageStats};
use caju_types::IterationId;

/// Skipped rows of an iteration that are reported one by one; the others are only counted.
const REPORTED_SKIPS: usize = 100;
/// Characters of such a report that are kept.
const REPORTED_CHARS: usize = 500;

/// The sums of the ended tasks of all iterations.
#[derive(Debug, Default)]
pub(super) struct EndedTasks(BTreeMap<IterationId, EndedTaskSums>);

/// What the ended tasks of one iteration did.
#[derive(Debug, Default)]
pub(super) struct EndedTaskSums {
    /// What their stages did.
    pub(super) stages: Vec<StageStats>,
    /// What they moved to and from stores.
    pub(super) io: IoStats,
    /// Why they skipped rows; the first [`REPORTED_SKIPS`].
    pub(super) first_skips: Vec<String>,
}

impl EndedTasks {
    /// Adds the report of one task.
    pub(super) fn add(
        &mut self,
        iteration: IterationId,
        stages: &[StageStats],
        io: Option<IoStats>,
        first_skips: &[String],
    ) {
        let sums = self.0.entry(iteration).or_default();
        caju_proto::add_stages(&mut sums.stages, stages);
        let (sum, io) = (&mut sums.io, io.unwrap_or_default());
        sum.source_bytes_read += io.source_bytes_read;
        sum.cache_bytes_read += io.cache_bytes_read;
        sum.cache_bytes_written += io.cache_bytes_written;
        sum.source_requests += io.source_requests;
        let left = REPORTED_SKIPS.saturating_sub(sums.first_skips.len());
        let shortened = |row: &String| row.chars().take(REPORTED_CHARS).collect();
        sums.first_skips.extend(first_skips.iter().take(left).map(shortened));
    }

    /// The sums of one iteration; none before a task of it has ended.
    pub(super) fn of(&self, iteration: IterationId) -> Option<&EndedTaskSums> {
        self.0.get(&iteration)
    }

    /// What the stages of an iteration did in ended tasks.
    pub(super) fn stages(&self, iteration: IterationId) -> Vec<StageStats> {
        self.of(iteration).map(|sums| sums.stages.clone()).unwrap_or_default()
    }

    /// Drops the sums of an iteration.
    pub(super) fn forget(&mut self, iteration: IterationId) {
        self.0.remove(&iteration);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_add_up_and_the_first_skips_are_kept_shortened() {
        let (mut ended, id) = (EndedTasks::default(), IterationId(1));
        assert!(ended.of(id).is_none());
        let io = IoStats { source_bytes_read: 5, source_requests: 1, ..Default::default() };
        let stages = [StageStats { name: "map".into(), busy_s: 2.0, ..Default::default() }];
        let skips = vec!["x".repeat(2 * REPORTED_CHARS); REPORTED_SKIPS - 1];
        ended.add(id, &stages, Some(io), &skips);
        ended.add(id, &stages, None, &["second".into(), "third".into()]);
        let sums = ended.of(id).unwrap();
        assert_eq!((sums.io.source_bytes_read, sums.io.source_requests), (5, 1));
        assert_eq!(sums.first_skips.len(), REPORTED_SKIPS);
        assert_eq!(sums.first_skips[0].len(), REPORTED_CHARS);
        assert_eq!(sums.first_skips[REPORTED_SKIPS - 1], "second");
        assert!((ended.stages(id)[0].busy_s - 4.0).abs() < 1e-9);
        ended.forget(id);
        assert!(ended.stages(id).is_empty());
    }
}
