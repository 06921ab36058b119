//! What the planner chose, and why.

use caju_types::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::choice::Choice;
use crate::policy::Policy;

/// The schema of a serialised [`Decision`].
pub const DECISION_SCHEMA: &str = "caju.decision/v1";

/// One option and what it would give.
///
/// Rows are source rows. Rates and times have nine significant digits, and are `None` (null) if the option
/// is infeasible; its `snapshot_bytes` is then what it would need.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanOption {
    /// Compute, or the snapshot.
    #[serde(flatten)]
    pub choice: Choice,
    /// Whether a random stage is above the hint, so that every epoch repeats its draws; absent for
    /// computing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freezes_random: Option<bool>,
    /// Rows per second of a steady epoch.
    pub rows_per_s: Option<f64>,
    /// What limits it: `cores`, `stage:NAME`, `source_store`, `cache_store`, `network` or `consumer`.
    pub bottleneck: String,
    /// Seconds of a steady epoch.
    pub epoch_s: Option<f64>,
    /// Seconds of the whole horizon, the writing epoch included.
    pub horizon_s: Option<f64>,
    /// Bytes of the snapshot.
    pub snapshot_bytes: u64,
    /// Whether it can be taken.
    pub feasible: bool,
    /// The option in a sentence: what it does, what limits it, why it won or lost.
    pub why: String,
}

/// A choice with every option that it was made from (`caju.decision/v1`).
///
/// ```
/// # let text = include_str!("../../tests/golden_plans/design-example.profile.json");
/// use caju_planner::{Choice, Decision, Policy, Profile, plan};
/// let decision = plan(&Profile::from_json(text)?, &Policy::Auto)?;
/// assert!(matches!(&decision.choice, Choice::Materialize { hint, .. } if hint == "source"));
/// assert_eq!(Decision::from_json(&decision.to_json())?, decision);
/// # Ok::<(), caju_types::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Always [`DECISION_SCHEMA`].
    pub schema: String,
    /// The policy that chose.
    pub policy: Policy,
    /// What it chose; one of the options.
    pub choice: Choice,
    /// Every option: computing first, then by hint in the order of the pipeline, then by encoding.
    pub options: Vec<PlanOption>,
    /// One sentence for a person.
    pub reason: String,
}

/// What every version of a decision has.
#[derive(Deserialize)]
struct Versioned {
    schema: String,
}

impl Decision {
    /// The decision as indented JSON; the same bytes for the same profile and policy.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings, numbers and lists always serialise")
    }

    /// Reads a recorded decision.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not one, or of another version.
    pub fn from_json(text: &str) -> Result<Self> {
        let wrong = |e| Error::invalid(format!("not a {DECISION_SCHEMA}: {e}"));
        // Another version may have other fields and other policies.
        let Versioned { schema } = serde_json::from_str(text).map_err(wrong)?;
        if schema != DECISION_SCHEMA {
            let found = schema.escape_debug();
            return Err(Error::invalid(format!("schema: expected {DECISION_SCHEMA:?}, found \"{found}\"")));
        }
        serde_json::from_str(text).map_err(wrong)
    }

    /// The option that was chosen.
    pub fn chosen(&self) -> Option<&PlanOption> {
        self.options.iter().find(|o| o.feasible && o.choice == self.choice)
    }

    /// The option that computes.
    pub fn compute(&self) -> Option<&PlanOption> {
        self.options.iter().find(|o| o.choice == Choice::Compute)
    }

    /// The first epoch, counted from 1 over all jobs, at whose end the option has taken no longer than
    /// computing; `None` if that never happens, or is unknown because there are no rows or epochs.
    pub fn break_even_epoch(&self, option: &PlanOption) -> Option<u64> {
        break_even(Times::of(self.compute()?)?, Times::of(option)?)
    }
}

/// The two times of an option that define its course.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    epoch_s: f64,
    horizon_s: f64,
}

impl Times {
    pub(crate) fn of(option: &PlanOption) -> Option<Self> {
        Some(Self { epoch_s: option.epoch_s?, horizon_s: option.horizon_s? })
    }
}

/// Computing has no special epoch, so its two times give the number of epochs; an option's horizon then
/// gives its writing epoch.
pub(crate) fn break_even(compute: Times, option: Times) -> Option<u64> {
    let epochs = (compute.horizon_s / compute.epoch_s).round();
    if !epochs.is_finite() || epochs < 1.0 || option.epoch_s >= compute.epoch_s {
        return None;
    }
    let first = option.horizon_s - (epochs - 1.0) * option.epoch_s;
    // The slack absorbs the rounding of the times to nine digits.
    let n = (first - option.epoch_s) / (compute.epoch_s - option.epoch_s) * (1.0 - 1e-6);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is positive")]
    Some(n.ceil().max(1.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(first: f64, epoch_s: f64, epochs: f64) -> Times {
        Times { epoch_s, horizon_s: first + (epochs - 1.0) * epoch_s }
    }

    #[test]
    fn break_even_counts_epochs() {
        let compute = times(100.0, 100.0, 10.0);
        assert_eq!(break_even(compute, times(50.0, 50.0, 10.0)), Some(1));
        assert_eq!(break_even(compute, times(100.0, 50.0, 10.0)), Some(1));
        // After two epochs 160 + 50 against 200, after three 260 against 300.
        assert_eq!(break_even(compute, times(160.0, 50.0, 10.0)), Some(3));
        assert_eq!(break_even(compute, times(150.0, 50.0, 10.0)), Some(2));
        assert_eq!(break_even(compute, times(150.0, 100.0, 10.0)), None);
        assert_eq!(break_even(times(0.0, 0.0, 0.0), times(0.0, 0.0, 0.0)), None);
        assert_eq!(break_even(compute, times(1000.0, 99.0, 10.0)), Some(901));
    }

    #[test]
    fn other_documents_are_refused() {
        for text in ["", "{}", "[1]", r#"{"schema": "caju.decision/v1"}"#] {
            assert!(Decision::from_json(text).unwrap_err().to_string().starts_with("not a caju.decision/v1"));
        }
        let other =
            r#"{"schema": "x", "policy": "", "choice": {"kind": "compute"}, "options": [], "reason": ""}"#;
        assert!(Decision::from_json(other).unwrap_err().to_string().starts_with("schema: expected"));
        let policy = other.replace(r#""x""#, &format!("{DECISION_SCHEMA:?}"));
        assert!(
            Decision::from_json(&policy).unwrap_err().to_string().contains("unknown policy ``"),
            "{policy}"
        );
    }
}
