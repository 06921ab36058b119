//! The horizon: how often the rows of a job are still wanted.

use caju_planner::DEFAULT_EPOCHS;

use crate::PlanRecord;

/// The most jobs that are expected to read the rows of a pipeline, however many there were.
const MAX_EXPECTED_JOBS: u64 = 10;

/// Epochs of a job from this one on, if it announced them. A job that did not is expected to have as many as the longest
/// earlier job had or announced, if that is known; beyond these the default number of epochs.
pub(crate) fn epochs_left(announced: Option<u64>, epoch: u64, record: Option<&PlanRecord>) -> Option<u64> {
    if let Some(all) = announced {
        return Some(all.saturating_sub(epoch).max(1));
    }
    let record = record?;
    let all = record.epochs.max(record.reached.filter(|n| *n > DEFAULT_EPOCHS))?;
    Some(all.checked_sub(epoch).filter(|left| *left > 0).unwrap_or(DEFAULT_EPOCHS))
}

/// Jobs that are expected to read a pipeline's rows, this one included: as many as there were.
pub(crate) fn expected_jobs(record: &PlanRecord) -> u64 {
    record.jobs.clamp(1, MAX_EXPECTED_JOBS)
}

/// Whether no later epoch is expected to read the rows of this one again.
pub fn is_last_reading(announced: Option<u64>, epoch: u64, record: Option<&PlanRecord>) -> bool {
    let last = epochs_left(announced, epoch, None).is_some_and(|n| n <= 1);
    last && record.is_none_or(|r| expected_jobs(r) <= 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_that_nobody_announces_are_those_of_the_longest_job() {
        let record = |epochs, reached| Some(PlanRecord { epochs, reached, ..PlanRecord::default() });
        let left = |own, epoch, record: Option<PlanRecord>| epochs_left(own, epoch, record.as_ref());
        assert_eq!(left(Some(5), 2, record(Some(90), Some(90))), Some(3));
        assert_eq!(left(None, 0, None), None);
        assert_eq!(left(None, 0, record(None, Some(3))), None, "it may have been cut off");
        assert_eq!(left(None, 4, record(Some(2), Some(100))), Some(96));
        assert_eq!(left(None, 4, record(Some(2), None)), Some(10), "beyond what was known");
    }
}
