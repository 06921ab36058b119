//! Policies of requests, and what an iteration does before anything is decided.

use caju_autocache::{CachePlan, Document, Encoding, HintDef, SavePlan, SetPlan, fixed_hint};
use caju_proto::v1;
use caju_types::{EpochDraws, Error, Result};

use super::snapshots::Snapshots;
use crate::state::{Dataset, Job, Policy};

/// What a request to open an iteration says of caching.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CachingRequest {
    /// None: the job's.
    pub(super) policy: Option<Policy>,
    /// None: the policy chooses.
    pub(super) encoding: Option<Encoding>,
}

impl Snapshots {
    /// The policy of a job that names none.
    pub(super) fn default_policy(&self) -> Policy {
        if self.exists() { Policy::Auto } else { Policy::Compute }
    }

    /// Reads what a request says, and checks it against the dataset.
    pub(super) fn wanted(
        &self,
        request: &v1::OpenIterationRequest,
        dataset: &Dataset,
    ) -> Result<CachingRequest> {
        let encoding = Encoding::optional(&request.encoding)?;
        let policy = match request.policy.as_str() {
            "" => None,
            text => {
                let policy: Policy = text.parse()?;
                if let Some(hint) = fixed_hint(&policy, &dataset.hints)? {
                    set_possible(request, &policy, hint)?;
                }
                Some(if request.save_url.is_empty() { self.within_reach(policy)? } else { policy })
            }
        };
        let policy = if dataset.is_cache_only() { Some(self.stored_only(dataset, policy)?) } else { policy };
        Ok(CachingRequest { policy, encoding })
    }

    /// The policy of a job that may read stored rows alone: a forced one, the last hint's by default.
    fn stored_only(&self, dataset: &Dataset, policy: Option<Policy>) -> Result<Policy> {
        let policy = policy.unwrap_or(Policy::Full);
        let way = "take policy `full`, `source` or `hint:NAME`";
        let why = if dataset.hints.is_empty() {
            "the pipeline has no `autocache` at which rows could be stored"
        } else if !self.exists() {
            "there is no cache; give one with `--cache URL`"
        } else if fixed_hint(&policy, &dataset.hints)?.is_none() {
            way
        } else {
            return Ok(policy);
        };
        Err(Error::failed_precondition(format!("`cache_only` with policy `{policy}`: {why}")))
    }

    /// Without a cache the planner has nothing to choose, and what was forced cannot be done.
    fn within_reach(&self, policy: Policy) -> Result<Policy> {
        match policy {
            Policy::Compute => Ok(policy),
            _ if self.exists() => Ok(policy),
            Policy::Auto | Policy::Cachew => Ok(Policy::Compute),
            _ => Err(Error::failed_precondition(format!(
                "policy `{policy}` stores rows, and this dispatcher has no cache: start it with `--cache URL`, or take \
                 policy `compute`"
            ))),
        }
    }

    /// What an iteration of a job does at first; none: everything is computed.
    pub(super) fn first_plan(
        &self,
        job: &Job,
        dataset: &Dataset,
        draws: Option<&EpochDraws>,
    ) -> Result<Option<Document<CachePlan>>> {
        let plan = self.plan_of_new_epoch(job, dataset)?;
        Ok(match draws {
            Some(draws) => plan_that_draws_alike(plan, dataset, draws),
            None => plan,
        })
    }

    fn plan_of_new_epoch(&self, job: &Job, dataset: &Dataset) -> Result<Option<Document<CachePlan>>> {
        if job.spec.profile_only {
            return Ok(None);
        }
        if job.decision.is_some() {
            return Ok(job.plan.clone());
        }
        let Some(hint) = fixed_hint(&job.spec.policy, &dataset.hints)? else { return Ok(None) };
        let encoding = job.spec.encoding.unwrap_or_default();
        // Behind a cross-split stage only a whole set of parts counts, and whether there is one is found out when
        // the splits are listed.
        let set = hint.is_set().then_some(SetPlan::Open);
        // A set whose rows were chosen is read alone, too, once it is known that there is one. States of computed rows do not go on
        // from it.
        let set_only = hint.is_set() && !hint.chooses && dataset.is_cache_only();
        let save = job.spec.save.as_ref().map(|s| SavePlan { chunk_bytes: s.chunk_bytes });
        let plan = CachePlan { save, set, set_only, ..CachePlan::whole(&hint.name, hint.prefix, encoding) };
        Ok(Some(plan.into()))
    }
}

/// The plan under which random stages draw as they did in the reading of the states: rows are known by their numbers, and other
/// draws give other rows.
fn plan_that_draws_alike(
    plan: Option<Document<CachePlan>>,
    dataset: &Dataset,
    draws: &EpochDraws,
) -> Option<Document<CachePlan>> {
    let of_random_hint = |plan: &CachePlan| dataset.hints.iter().any(|h| h.random && h.name == plan.hint);
    let planned = plan.as_ref().and_then(Document::value).filter(|plan| of_random_hint(plan));
    let draws_alike = match planned {
        Some(plan) => plan.hint == draws.frozen_at && plan.permille == draws.permille,
        None => draws.frozen_at.is_empty(),
    };
    if draws_alike && !draws.chosen_by_set {
        return plan;
    }
    // Rows are read where they are stored, and nothing is stored that the decision does not store.
    let hint = dataset.hints.iter().find(|h| h.name == draws.frozen_at)?;
    let plan = CachePlan::whole(&hint.name, hint.prefix, caju_autocache::Encoding::default());
    let set = draws.chosen_by_set.then_some(SetPlan::Open);
    Some(CachePlan { put: false, permille: draws.permille, set, ..plan }.into())
}

/// Whether the rest of a request lets rows be stored behind a cross-split stage.
fn set_possible(request: &v1::OpenIterationRequest, policy: &Policy, hint: &HintDef) -> Result<()> {
    let Some(stage) = &hint.cross_split_stage else { return Ok(()) };
    let name = &hint.name;
    if !request.save_url.is_empty() {
        return Err(Error::invalid(format!(
            "a save goes split by split, and `{name}` stands behind `{stage}`, whose rows belong to no single split"
        )));
    }
    if !matches!(request.mode(), v1::ProcessingMode::Unspecified | v1::ProcessingMode::Dynamic) {
        return Err(Error::invalid(format!(
            "policy `{policy}`: outside processing mode `dynamic` every worker has a `{stage}` of its own above hint `{name}`, and \
             nothing can be stored there; move the hint above `{stage}`, or take mode `dynamic`"
        )));
    }
    Ok(())
}
