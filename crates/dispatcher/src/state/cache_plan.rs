//! Cache plans of iterations.

use caju_autocache::{CachePlan, Document, SetPlan};
use caju_types::EpochDraws;

use super::{Dataset, Iteration};

impl Iteration {
    /// How random stages draw; none in epoch 0, where no hint changes a row.
    pub fn draws(&self, dataset: &Dataset) -> Option<EpochDraws> {
        self.draws_under(self.plan.as_ref(), dataset)
    }

    /// As [`Iteration::draws`], under another plan.
    pub fn draws_under(&self, plan: Option<&Document<CachePlan>>, dataset: &Dataset) -> Option<EpochDraws> {
        if self.epoch == 0 {
            return None;
        }
        let plan = plan.and_then(Document::value).filter(|_| self.caching);
        let hint = plan.and_then(|plan| dataset.hints.iter().find(|h| h.random && h.name == plan.hint));
        let (Some(plan), Some(hint)) = (plan, hint) else { return Some(EpochDraws::default()) };
        let (chosen_by_set, set_attempt) = match &plan.set {
            Some(SetPlan::Read { attempt, .. }) if hint.chooses => (true, attempt.clone()),
            // Before it is known whether there is a set, there may be one.
            Some(SetPlan::Open) if hint.chooses => (true, String::new()),
            _ => (false, String::new()),
        };
        Some(EpochDraws { frozen_at: plan.hint.clone(), permille: plan.permille, chosen_by_set, set_attempt })
    }
}

/// A plan that writes a set of parts, without the set; none if it writes none.
pub(super) fn without_set(plan: &Document<CachePlan>) -> Option<Document<CachePlan>> {
    let plan = plan.value()?;
    matches!(plan.set, Some(SetPlan::Write(_))).then(|| plan.clone().without_set().into())
}
