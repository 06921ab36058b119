//! Cache plans of iterations.

use caju_autocache::{CachePlan, Document, SetPlan};
use caju_types::EpochDraws;

use super::{Dataset, Iteration, Lease};

impl Iteration {
    /// Whether the rows of a lease come from a stored set, and from nowhere else: a task that follows a lost one reads its part
    /// again.
    pub(super) fn is_from_set_alone(&self, lease: &Lease) -> bool {
        let plan = self.plan_of(lease).and_then(Document::value);
        lease.group.is_some() && plan.is_some_and(CachePlan::reads_set_alone)
    }

    /// How random stages draw; none in epoch 0, where no hint changes a row, unless its rows are those that a stored set chose.
    pub fn draws(&self, dataset: &Dataset) -> Option<EpochDraws> {
        self.draws_under(self.plan.as_ref(), dataset)
    }

    /// As [`Iteration::draws`], under another plan.
    pub fn draws_under(&self, plan: Option<&Document<CachePlan>>, dataset: &Dataset) -> Option<EpochDraws> {
        let draws = self.all_draws(plan, dataset);
        (self.epoch > 0 || draws.chosen_by_set).then_some(draws)
    }

    fn all_draws(&self, plan: Option<&Document<CachePlan>>, dataset: &Dataset) -> EpochDraws {
        let plan = plan.and_then(Document::value).filter(|_| self.caching);
        let hint = plan.and_then(|plan| dataset.hints.iter().find(|h| h.random && h.name == plan.hint));
        let (Some(plan), Some(hint)) = (plan, hint) else { return EpochDraws::default() };
        // Epoch 0 has the rows that it computes, as long as it is not known that there is a set.
        let may_be_read = || {
            self.epoch > 0 || self.resume.as_deref().is_some_and(|resume| resume.goes_on_from_set(&plan.hint))
        };
        let (chosen_by_set, set_attempt) = match &plan.set {
            Some(SetPlan::Read { attempt, .. }) if hint.chooses => (true, attempt.clone()),
            // Before it is known whether there is a set, there may be one.
            Some(SetPlan::Open) if hint.chooses && may_be_read() => (true, String::new()),
            _ => (false, String::new()),
        };
        EpochDraws { frozen_at: plan.hint.clone(), permille: plan.permille, chosen_by_set, set_attempt }
    }
}

/// A plan that writes a set of parts, without the set; none if it writes none.
pub(super) fn without_set(plan: &Document<CachePlan>) -> Option<Document<CachePlan>> {
    let plan = plan.value()?;
    matches!(plan.set, Some(SetPlan::Write(_))).then(|| plan.clone().without_set().into())
}
