//! The hints of one task, found by their index or by a plan.

use std::sync::Arc;

use caju_types::{Error, Result};

use crate::cache_plan::CachePlan;
use crate::context::TaskContext;
use crate::hint::BoundHint;
use crate::lease::LeasedSplit;

/// The bound hints of a task's pipeline, by their index.
pub(super) struct TaskHints {
    hints: Vec<BoundHint>,
    ctx: Arc<TaskContext>,
}

impl TaskHints {
    pub(super) fn new(hints: Vec<BoundHint>, ctx: Arc<TaskContext>) -> Self {
        Self { hints, ctx }
    }

    pub(super) fn len(&self) -> usize {
        self.hints.len()
    }

    /// The hint at an index.
    ///
    /// # Errors
    /// `Internal` for an index that is not one of this task's.
    pub(super) fn get(&self, hint: usize) -> Result<&BoundHint> {
        self.hints.get(hint).ok_or_else(|| Error::internal("a hint is not bound"))
    }

    /// The index of the hint that a plan names.
    pub(super) fn named(&self, plan: &CachePlan) -> Option<usize> {
        self.hints.iter().position(|h| h.name == plan.hint)
    }

    /// The index of a plan's hint, if plan and pipeline agree about the stages above it.
    pub(super) fn planned(&self, plan: &CachePlan) -> Option<usize> {
        let hint = self.named(plan)?;
        let ours = self.hints.get(hint)?.planned;
        if ours != plan.prefix {
            tracing::warn!(hint = %plan.hint, %ours, theirs = %plan.prefix, "the plan is for another prefix");
            return None;
        }
        Some(hint)
    }

    /// Whether the hint is behind a cross-split stage, where rows are stored as a set of parts.
    pub(super) fn is_set(&self, hint: usize) -> bool {
        self.hints.get(hint).is_some_and(|h| h.set.is_some())
    }

    /// Whether stages above the hint draw again each epoch.
    pub(super) fn is_random(&self, hint: usize) -> bool {
        self.hints.get(hint).is_some_and(|h| h.random)
    }

    /// The index of the hint's counters among those of the stages.
    pub(super) fn stats_index(&self, hint: usize) -> usize {
        self.hints.get(hint).map_or(0, |h| h.stage + 1)
    }

    /// Whether the rows of a split's first repetition are the same at a hint before a decision to store them as after it.
    pub(super) fn draws_as_stored(&self, hint: usize) -> bool {
        !self.is_random(hint) || self.ctx.draws_as_frozen()
    }

    /// Makes the stages above a hint draw as in epoch 0 for this split. Stored rows are drawn this way by every task that
    /// computes the split. Rows that are computed and not stored must be equal to stored ones, so they are drawn this way
    /// too.
    pub(super) fn freeze(&self, hint: usize, lease: &LeasedSplit) {
        let Some(bound) = self.hints.get(hint).filter(|h| h.random) else { return };
        // Repetitions share the part of a split; a set has the rows of every repetition.
        let repetition = if bound.set.is_some() { lease.split.repetition } else { 0 };
        self.ctx.freeze(lease.index, self.ctx.frozen_draw(repetition), bound.position);
    }

    /// CPU seconds that the stages above a hint took so far, per row that reached the hint.
    pub(super) fn cpu_s_per_row_above(&self, hint: usize) -> f64 {
        let Some(last) = self.hints.get(hint).map(|h| h.stage) else { return 0.0 };
        let stages = self.ctx.stats.snapshot();
        let above = &stages[..(last + 1).min(stages.len())];
        let rows = above.iter().rev().map(|s| s.rows_out).find(|r| *r > 0).unwrap_or(0);
        if rows == 0 { 0.0 } else { above.iter().map(|s| s.cpu_s).sum::<f64>() / rows as f64 }
    }

    /// Rows of a lease that were skipped above a hint.
    pub(super) fn skipped_above(&self, hint: usize, index: u64) -> u64 {
        self.hints.get(hint).map_or(0, |h| self.ctx.skipped_above(index, h.stage))
    }
}
