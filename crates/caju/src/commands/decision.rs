//! The planner's documents in the status of a job.

use caju_planner::Decision;
use caju_proto::v1::JobStatus;

/// The decision of a job. None if there is none yet, or if it is of a version that this binary does not know.
pub(crate) fn decision(job: &JobStatus) -> Option<Decision> {
    Decision::from_json(&job.decision_json).ok()
}

/// A decision or profile of a job for programs: the dispatcher's JSON unchanged, so that fields of later versions pass
/// through. Null if there is none.
pub(crate) fn recorded_json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
pub(crate) mod tests {
    use caju_planner::{Choice, DECISION_SCHEMA, Policy};

    use super::*;

    /// A decision without options.
    pub(crate) fn decision(choice: Choice, reason: &str) -> Decision {
        Decision {
            schema: DECISION_SCHEMA.into(),
            policy: Policy::Auto,
            choice,
            options: Vec::new(),
            reason: reason.into(),
        }
    }

    #[test]
    fn a_decision_is_read_once_and_its_json_passes_through() {
        let made = decision(Choice::Compute, "Because.");
        let job = JobStatus { decision_json: made.to_json(), ..JobStatus::default() };
        assert_eq!(super::decision(&job), Some(made));
        let later = r#"{"schema": "caju.decision/v2", "verdict": 1}"#;
        let job = JobStatus { decision_json: later.into(), ..JobStatus::default() };
        assert_eq!(super::decision(&job), None);
        assert_eq!(recorded_json(later)["verdict"], 1);
        assert!(recorded_json("").is_null());
    }
}
