//! The planner's documents in the status of a job.

use std::fmt::Write as _;

use caju_planner::{Decision, MEASURED_PREFIX, Policy, format_rate};
use caju_proto::v1::JobStatus;

use crate::report::{EpochReport, RunReport};

/// The decision of a job. None if there is none yet, or if it is of a version that this binary does not know.
pub(crate) fn decision(job: &JobStatus) -> Option<Decision> {
    Decision::from_json(&job.decision_json).ok()
}

/// A decision or profile of a job for programs: the dispatcher's JSON unchanged, so that fields of later versions pass
/// through. Null if there is none.
pub(crate) fn recorded_json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// The policy of a job. None if the job has none, or one that this binary does not know.
pub(crate) fn policy(job: &JobStatus) -> Option<Policy> {
    job.policy.parse().ok()
}

/// Whether a job's policy decides by measurements, and has not decided yet.
pub(crate) fn is_undecided(job: &JobStatus) -> bool {
    job.decision_json.is_empty() && policy(job).is_some_and(|p| p.is_planned())
}

/// What the rates and times of a reason are.
const ESTIMATE: &str = "Estimate of the planner, for workers while nothing else runs, without start-up, probing and the reader: ";

/// The reason of a decision with its estimates marked as such.
pub(crate) fn marked_reason(reason: &str) -> String {
    let (measured, estimated) = match reason.strip_prefix(MEASURED_PREFIX).and_then(|r| r.split_once(". ")) {
        Some((measured, estimated)) => (format!("{MEASURED_PREFIX}{measured}. "), estimated),
        None => (String::new(), reason),
    };
    // A reason without a rate estimates nothing.
    let label = if estimated.contains("rows/s") { ESTIMATE } else { "" };
    format!("{measured}{label}{estimated}")
}

/// The measured rates of the first epoch and of the last one, in a sentence. None without an epoch.
pub(crate) fn measured_rates(epochs: &[EpochReport]) -> Option<String> {
    let rate = |e: &EpochReport| format!("{} rows/s in epoch {}", format_rate(e.rows_per_s), e.epoch);
    let (first, last) = (epochs.first()?, epochs.last()?);
    let last = if epochs.len() > 1 { format!(" and {}", rate(last)) } else { String::new() };
    Some(format!("Measured: {}{last}.", rate(first)))
}

/// The measured rates with those that the planner had estimated. None if nothing was decided.
pub(crate) fn measured_and_estimated(report: &RunReport) -> Option<String> {
    let decision = report.decision.as_ref()?;
    let mut out = measured_rates(&report.epochs)?;
    let rate = |option: &caju_planner::PlanOption| option.rows_per_s.map(format_rate);
    let compute = decision.compute().and_then(rate)?;
    let _ = write!(out, " The planner's estimate for the workers alone: {compute} rows/s by computing");
    if let Some(read) = decision.chosen().filter(|o| o.choice.hint().is_some()).and_then(rate) {
        let _ = write!(out, " and {read} rows/s by reading stored rows");
    }
    out.push('.');
    Some(out)
}

#[cfg(test)]
pub(crate) mod tests {
    use caju_planner::{Choice, DECISION_SCHEMA, PlanOption, Policy};

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

    /// An option with a rate.
    pub(crate) fn option(choice: Choice, rows_per_s: f64) -> PlanOption {
        PlanOption {
            choice,
            freezes_random: None,
            rows_per_s: Some(rows_per_s),
            bottleneck: "cores".into(),
            epoch_s: None,
            horizon_s: None,
            snapshot_bytes: 0,
            feasible: true,
            why: String::new(),
        }
    }

    #[test]
    fn estimates_are_marked_and_measured_rates_are_not() {
        let marked = marked_reason("Computing gives 100 rows/s, limited by the workers' cores.");
        assert!(
            marked.starts_with("Estimate of the planner, for workers while nothing else runs"),
            "{marked}"
        );
        assert!(marked.ends_with("the reader: Computing gives 100 rows/s, limited by the workers' cores."));
        let marked =
            marked_reason("Measured, not predicted: computing gave 90 rows/s. Computing gives 100 rows/s.");
        assert!(
            marked.starts_with("Measured, not predicted: computing gave 90 rows/s. Estimate of the planner"),
            "{marked}"
        );
        let nothing = "Nothing is left to run, so nothing is stored.";
        assert_eq!(marked_reason(nothing), nothing);
    }

    #[test]
    fn policies_are_read_from_the_status() {
        let of = |policy: &str| JobStatus { policy: policy.into(), ..JobStatus::default() };
        assert!(is_undecided(&of("auto")) && is_undecided(&of("cachew")));
        for policy in ["", "compute", "full", "hint:auto", "later"] {
            assert!(!is_undecided(&of(policy)), "{policy}");
        }
        let decided = JobStatus { decision_json: "{}".into(), ..of("auto") };
        assert!(!is_undecided(&decided));
    }
}
