//! Filters directly below a source that can apply them itself.

use std::sync::Arc;

use arrow::compute::prep_null_mask_filter;
use arrow_array::Array;
use arrow_array::cast::AsArray;
use caju_kernels::Registry;
use caju_pipeline::{DatasetDef, StageOp};
use caju_sources::{RowPredicate, Source};
use caju_types::{Error, Result};

use super::steps::Step;
use crate::row::RowOp;

/// Removes the leading filters from `steps` and returns them as predicates of the source.
///
/// Only filters above all other stages qualify: no stage above them sees ordinals or random draws, and rows below are
/// numbered as they leave the filter in either case. A filter stays a step if a hint above it needs all rows, if `take` or
/// `skip` or `shard` count rows above or below it, or under `on_error: skip`, where the stage must see a row at which the predicate
/// fails.
pub(super) fn predicates(
    def: &DatasetDef,
    ops: &[&StageOp],
    registry: &Registry,
    source: &Arc<dyn Source>,
    steps: &mut Vec<Step>,
    skips: bool,
) -> Result<Vec<RowPredicate>> {
    let counts = def
        .stages
        .iter()
        .any(|s| matches!(s.op, StageOp::Take(_) | StageOp::Skip(_) | StageOp::Shard { .. }));
    if !source.filters() || counts || skips {
        return Ok(Vec::new());
    }
    let schema = source.schema();
    let mut predicates = Vec::new();
    for op in ops.iter().copied() {
        let (StageOp::Filter(sql), Some(Step::Rows(bound))) = (op, steps.first()) else { break };
        let RowOp::Filter(old) = &bound.op else { break };
        if old.is_random() {
            break;
        }
        // Which of the source's columns it reads, by binding it against all of them.
        let place = bound.place.clone();
        let columns = registry.bind_predicate(&place, sql, &schema)?.columns().to_vec();
        if columns.is_empty() {
            break;
        }
        let narrow = schema.project(&columns).map_err(|e| Error::internal(e.to_string()))?;
        let test = registry.bind_predicate(&place, sql, &Arc::new(narrow))?;
        let test = move |batch: &arrow_array::RecordBatch| {
            let values = test.evaluate(batch, None).map_err(|e| e.error.context(&place))?;
            let mask =
                values[0].as_boolean_opt().ok_or_else(|| Error::internal("a filter is not boolean"))?;
            Ok(if mask.null_count() > 0 { prep_null_mask_filter(mask) } else { mask.clone() })
        };
        predicates.push(RowPredicate { columns, test: Arc::new(test) });
        steps.remove(0);
    }
    Ok(predicates)
}
