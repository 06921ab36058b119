//! Hints behind cross-split stages: whether rows can be stored there, and in which form they are.

use caju_pipeline::{DatasetDef, StageOp};

use super::plan::SplitPlan;
use crate::hint::SetShape;

/// The form of rows at the hint of a stage; none if only split-local stages are above it.
pub(super) fn shape(def: &DatasetDef, stage: usize, plan: &SplitPlan) -> Option<SetShape> {
    let above = &def.stages[..stage];
    if above.iter().all(|s| s.op.is_split_local()) {
        return None;
    }
    let (mut batched, mut padded, mut counted, mut cut) = (false, false, 0, false);
    let mut merges = String::new();
    for (i, s) in above.iter().enumerate() {
        match &s.op {
            StageOp::Batch { .. } | StageOp::PaddedBatch { .. } => {
                (batched, padded) = (true, matches!(s.op, StageOp::PaddedBatch { .. }));
                let merged = plan.merges(def, i) && !plan.single_task();
                merges.push(if merged { 'm' } else { 's' });
            }
            StageOp::BucketByLength { pad, .. } => (batched, padded) = (true, *pad),
            StageOp::Unbatch => (batched, padded) = (false, false),
            StageOp::Take(_) => {
                cut |= counted >= plan.planned();
                counted += 1;
            }
            StageOp::Skip(_) => counted += 1,
            _ => {}
        }
    }
    let order = if plan.single_task() { "one task" } else { "tasks" };
    Some(SetShape { batched, padded, cut, variant: format!("{order} {merges}") })
}

/// Why rows cannot be stored at the hint of a stage behind a cross-split stage; none if they can.
pub(super) fn refusal(def: &DatasetDef, stage: usize, plan: &SplitPlan) -> Option<String> {
    let (above, below) = def.stages.split_at(stage);
    let cross_split = above.iter().find(|s| !s.op.is_split_local())?.op.name().to_string();
    if above.iter().any(|s| matches!(s.op, StageOp::Shard { .. })) {
        return Some(
            "it stands below a `shard`, where only some of the rows arrive; move it above that".into(),
        );
    }
    if above.iter().any(|s| matches!(s.op, StageOp::Repeat(None))) {
        return Some(
            "it stands below an endless `repeat`, so what arrives there never ends; move it above that"
                .into(),
        );
    }
    if below.iter().any(|s| matches!(s.op, StageOp::Repeat(_))) {
        return Some(format!(
            "it stands between `{cross_split}` and `repeat`; move it above the one or below the other"
        ));
    }
    let shuffled = above.iter().any(|s| matches!(s.op, StageOp::Shuffle { .. }));
    if plan.single_task() && plan.permutes() && !shuffled {
        return Some(format!(
            "it stands between `{cross_split}` and a `shuffle` that has the splits in another order each epoch, where the order \
             of rows counts (`deterministic`, or `take` and `skip`); move it below `shuffle`, or above `{cross_split}`"
        ));
    }
    None
}
