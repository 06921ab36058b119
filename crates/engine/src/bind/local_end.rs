//! The end of a pipeline's split-local stages, as sharing and its fingerprint need it.

use caju_kernels::Registry;
use caju_pipeline::{DatasetDef, StageOp};
use caju_types::{Fingerprint, Result};

use super::plan::SplitPlan;
use super::steps::Step;
use super::{Branch, found_columns};

/// The end of the split-local stages, if rows can be shared there.
#[derive(Debug, Clone)]
pub(crate) struct LocalEnd {
    /// What the fingerprint is a hash of.
    pub(crate) canonical: serde_json::Value,
    /// The fingerprint of the stages above, by the definition alone.
    pub(crate) fingerprint: Fingerprint,
    /// Whether a stage above draws again each epoch.
    pub(crate) random: bool,
    /// The source's columns, where their types were inferred.
    pub(crate) found_columns: Option<String>,
    /// The number of the definition's stages above.
    pub(crate) stages: usize,
}

/// The end of the split-local stages; none where a task sees only some rows of a split.
pub(super) fn of(
    def: &DatasetDef,
    registry: &Registry,
    root: &Branch,
    plan: &SplitPlan,
) -> Result<Option<LocalEnd>> {
    if plan.planned() > 0 || plan.has_stride() || root.steps.iter().any(|s| matches!(s, Step::Shard(_))) {
        return Ok(None);
    }
    // A `prefetch` changes no rows.
    let mixes = |op: &StageOp| !op.is_split_local() && !matches!(op, StageOp::Prefetch(_));
    let stages = def.stages.iter().position(|s| mixes(&s.op)).unwrap_or(def.stages.len());
    let (canonical, fingerprint, random) = caju_pipeline::prefix_at(def, stages, registry)?;
    let found_columns = found_columns(def, root);
    Ok(Some(LocalEnd { canonical, fingerprint, random, found_columns, stages }))
}
