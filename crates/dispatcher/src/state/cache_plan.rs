//! Cache plans of iterations.

use caju_autocache::{CachePlan, Document, SetPlan};

/// A plan that writes a set of parts, without the set; none if it writes none.
pub(super) fn without_set(plan: &Document<CachePlan>) -> Option<Document<CachePlan>> {
    let plan = plan.value()?;
    matches!(plan.set, Some(SetPlan::Write(_))).then(|| plan.clone().without_set().into())
}
