//! Splits whose rows come from what is stored, and from nowhere else.
//!
//! Under `cache_only` no source is read. Where stages count rows behind a `shuffle` or of a `sample`, a stored set has the rows
//! that they chose when it was written. Another epoch chooses others. So an epoch that is read from such a set computes no split.

use caju_types::{Error, Result};

use crate::bind::BoundPipeline;
use crate::cache_plan::{CachePlan, SetPlan};
use crate::lease::LeasedSplit;

/// Which splits of a task may not be computed.
pub(super) struct StoredOnly {
    cache_only: bool,
    /// The hints at which stages choose the rows of a stored set.
    chosen_at: Vec<String>,
}

impl StoredOnly {
    pub(super) fn of(pipeline: &BoundPipeline) -> Self {
        let def = pipeline.def();
        let hints = def.hints().into_iter();
        let chosen = hints.filter(|hint| pipeline.chooses_in_drawn_order(hint.stage_index));
        Self { cache_only: def.options.cache_only, chosen_at: chosen.map(|hint| hint.name).collect() }
    }

    /// Whether the rows of a split come from a stored set, and from nowhere else.
    pub(super) fn is_from_set_alone(&self, lease: &LeasedSplit) -> bool {
        self.cache_only || self.is_chosen(lease)
    }

    /// Whether a split is read from a stored set whose rows stages chose.
    fn is_chosen(&self, lease: &LeasedSplit) -> bool {
        let reads_set = |plan: &&CachePlan| matches!(plan.set, Some(SetPlan::Read { .. }));
        lease.cache.as_deref().filter(reads_set).is_some_and(|plan| self.chosen_at.contains(&plan.hint))
    }

    /// Checks that a split may be computed, or read from a part of its own.
    ///
    /// # Errors
    /// `FailedPrecondition` for one of an epoch whose rows a stored set has chosen.
    pub(super) fn check_split(&self, lease: &LeasedSplit) -> Result<()> {
        match self.is_chosen(lease) {
            true => Err(self.unreadable(lease, "the lease names no part")),
            false => Ok(()),
        }
    }

    /// Checks that the source of a split may be read.
    ///
    /// # Errors
    /// `NotFound` under `cache_only`: the split has no part.
    pub(super) fn check_source(&self, lease: &LeasedSplit) -> Result<()> {
        if !self.cache_only {
            return Ok(());
        }
        let file = lease.split.file.as_ref().map_or_else(|| "the source".to_string(), |f| f.url.to_string());
        Err(Error::not_found(format!(
            "`cache_only`: rows of {file} (split {}) are not stored at the hint, or no longer; run the job without \
             `cache_only` once, where its source is there",
            lease.index
        )))
    }

    /// The error of a part of a set that cannot be read, where nothing may be computed instead. `first`: the part's first split.
    pub(super) fn unreadable(&self, first: &LeasedSplit, why: &str) -> Error {
        let hint = first.cache.as_deref().map_or("", |plan| plan.hint.as_str());
        let what = format!("rows stored at hint `{hint}` cannot be read (from split {}: {why})", first.index);
        if self.is_chosen(first) {
            return Error::failed_precondition(format!(
                "{what}, and stages that count rows chose them behind a `shuffle` or of a `sample` when they were stored: computed \
                 now, they would be others; read the epoch again under another job name"
            ));
        }
        Error::not_found(format!(
            "`cache_only`: {what}; run the job without `cache_only` once, where its source is there"
        ))
    }
}
