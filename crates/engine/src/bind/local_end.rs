//! The end of the split-local stages, where equal pipelines share rows.

use caju_kernels::Registry;
use caju_pipeline::{DatasetDef, StageOp};
use caju_types::Result;

use super::plan::SplitPlan;
use super::steps::Step;
use crate::hint::LocalEnd;

/// The end of the split-local stages; none where a task sees only some rows of a split.
pub(super) fn of(
    def: &DatasetDef,
    registry: &Registry,
    (steps, found_columns): (&[Step], Option<String>),
    plan: &SplitPlan,
) -> Result<Option<LocalEnd>> {
    if plan.planned() > 0 || plan.has_stride() || steps.iter().any(|s| matches!(s, Step::Shard(_))) {
        return Ok(None);
    }
    // A `prefetch` changes no rows.
    let is_cross_split = |op: &StageOp| !op.is_split_local() && !matches!(op, StageOp::Prefetch(_));
    let stages = def.stages.iter().position(|s| is_cross_split(&s.op)).unwrap_or(def.stages.len());
    let (canonical, fingerprint, random) = caju_pipeline::prefix_at(def, stages, registry)?;
    Ok(Some(LocalEnd { canonical, fingerprint, random, found_columns, stages }))
}
