//! The priority and the weight that a reader asks for its job.

use caju_proto::v1;
use caju_types::{Error, JobPriority, Result};

use crate::state::Job;

/// The largest weight. Weights are kept in thousandths.
const MAX_WEIGHT: f64 = 1e6;

/// The priority and weight that a reader asks for. It may leave out both: then those of an existing job fit.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestedPriority {
    level: Option<i32>,
    weight_milli: Option<u32>,
}

impl RequestedPriority {
    /// # Errors
    /// `InvalidArgument` for a weight that means nothing.
    pub(super) fn parse(request: &v1::OpenIterationRequest) -> Result<Self> {
        let weight_milli = |weight: f64| {
            if !(0.001..=MAX_WEIGHT).contains(&weight) {
                return Err(Error::invalid(format!(
                    "weight {weight}: expected a number from 0.001 to {MAX_WEIGHT}"
                )));
            }
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 1e9")]
            Ok((weight * 1000.0).round() as u32)
        };
        Ok(Self { level: request.priority, weight_milli: request.weight.map(weight_milli).transpose()? })
    }

    /// The priority of a new job.
    pub(super) fn of_new_job(self) -> JobPriority {
        let default = JobPriority::default();
        JobPriority {
            level: self.level.unwrap_or(default.level),
            weight_milli: self.weight_milli.unwrap_or(default.weight_milli),
        }
    }

    /// Whether a job that is there has what is asked for.
    ///
    /// # Errors
    /// `AlreadyExists` that names the difference.
    pub(super) fn check(self, job: &Job) -> Result<()> {
        let own = job.spec.priority;
        let differ = |what: &str, theirs: String, ours: String| {
            Err(Error::already_exists(format!(
                "job `{}` has the {what} {theirs}, not {ours}; take another job name, or leave the {what} out",
                job.name
            )))
        };
        if let Some(level) = self.level.filter(|level| *level != own.level) {
            return differ("priority", own.level.to_string(), level.to_string());
        }
        match self.weight_milli.filter(|w| *w != own.weight_milli) {
            Some(weight_milli) => {
                let ours = JobPriority { weight_milli, ..own }.weight();
                differ("weight", own.weight().to_string(), ours.to_string())
            }
            None => Ok(()),
        }
    }
}
