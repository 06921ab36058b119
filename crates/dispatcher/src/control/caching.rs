//! What is stored and read: the part of a job's life that hints decide.

use std::sync::Arc;

use caju_cache::Encoding;
use caju_engine::CachePlan;
use caju_proto::v1;
use caju_types::{Error, Result};

use super::Core;
use crate::state::{Dataset, Job, Policy};

/// What a request to open an iteration says about caching.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// None: the job's.
    pub(super) policy: Option<Policy>,
    /// None: the policy chooses.
    pub(super) encoding: Option<String>,
}

impl Core {
    fn has_cache(&self) -> bool {
        !self.config.cache_url.is_empty()
    }

    /// The policy of a job about which nobody said anything.
    pub(super) fn default_policy(&self) -> Policy {
        if self.has_cache() { Policy::Auto } else { Policy::Compute }
    }

    /// Reads what a request says, and checks it against the dataset.
    pub(super) fn wanted_caching(
        &self,
        request: &v1::OpenIterationRequest,
        dataset: &Dataset,
    ) -> Result<Wanted> {
        let encoding = match request.encoding.as_str() {
            "" => None,
            text => Some(text.parse::<Encoding>()?.to_string()),
        };
        let policy = match request.policy.as_str() {
            "" => None,
            text => {
                let policy: Policy = text.parse()?;
                policy.forced(&dataset.hints)?;
                Some(self.within_reach(policy)?)
            }
        };
        Ok(Wanted { policy, encoding })
    }

    /// Without a cache the planner has nothing to choose, and what was forced cannot be done.
    fn within_reach(&self, policy: Policy) -> Result<Policy> {
        match policy {
            Policy::Compute => Ok(policy),
            _ if self.has_cache() => Ok(policy),
            Policy::Auto | Policy::Cachew => Ok(Policy::Compute),
            _ => Err(Error::failed_precondition(format!(
                "policy `{policy}` stores rows, and this dispatcher has no cache: start it with `--cache URL`, or take \
                 policy `compute`"
            ))),
        }
    }

    /// What an iteration of a job does at first; none: everything is computed.
    pub(super) fn first_plan(&self, job: &Job, dataset: &Dataset) -> Result<Option<Arc<str>>> {
        if job.profile_only {
            return Ok(None);
        }
        if job.decision.is_some() {
            return Ok(job.plan.clone());
        }
        let Some(hint) = job.policy.forced(&dataset.hints)? else { return Ok(None) };
        let encoding = match &job.encoding {
            Some(text) => text.parse()?,
            None => Encoding::default(),
        };
        Ok(Some(plan_json(&CachePlan::whole(&hint.name, hint.prefix, encoding))?))
    }
}

/// A plan in the form that leases carry.
pub(super) fn plan_json(plan: &CachePlan) -> Result<Arc<str>> {
    let text = serde_json::to_string(plan).map_err(|e| Error::internal(format!("a plan as JSON: {e}")))?;
    Ok(text.into())
}

/// A plan for people.
pub(super) fn describe(plan: &str) -> String {
    match serde_json::from_str::<CachePlan>(plan) {
        Ok(plan) if plan.share < CachePlan::ALL => {
            format!("{:.0} % of hint `{}` as {}", f64::from(plan.share) / 10.0, plan.hint, plan.encoding)
        }
        Ok(plan) => format!("hint `{}` as {}", plan.hint, plan.encoding),
        Err(_) => plan.to_string(),
    }
}
