//! A decision that comes while the task runs.

use std::sync::OnceLock;

use crate::cache_plan::CachePlan;

/// What was decided after a task began without a plan. The first decision counts.
#[derive(Debug, Default)]
pub(super) struct LateDecision {
    expected: bool,
    decided: OnceLock<Option<CachePlan>>,
}

impl LateDecision {
    /// `expected`: the task begins before the decision. Without that no decision is taken.
    pub(super) fn new(expected: bool) -> Self {
        Self { expected, decided: OnceLock::new() }
    }

    /// Whether the task began before the decision.
    pub(super) fn is_expected(&self) -> bool {
        self.expected
    }

    /// Whether a decision is expected and has not come yet.
    pub(super) fn is_pending(&self) -> bool {
        self.expected && self.decided.get().is_none()
    }

    /// The plan that was decided; none before the decision, and none if nothing is stored.
    pub(super) fn plan(&self) -> Option<&CachePlan> {
        self.decided.get()?.as_ref()
    }

    /// Takes a decision; false if there is one already.
    pub(super) fn set(&self, plan: Option<CachePlan>) -> bool {
        self.decided.set(plan).is_ok()
    }
}
