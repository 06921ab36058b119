//! Learns the boundaries of `bucket_by_length` from the lengths of the first rows.
//!
//! They depend on the definition and the data alone: rows come in the order of files, splits and rows, with the definition's
//! seed, as in epoch 0. Snapshots are neither read nor written.

use std::sync::Arc;

use arrow::compute::cast;
use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;
use caju_kernels::Registry;
use caju_pipeline::{DatasetDef, LearntBoundaries, Quantiles};
use caju_sources::{SourceContext, Split};
use caju_types::{Error, Result};
use caju_wire::Chunk;
use futures::StreamExt;
use futures::stream::BoxStream;

use crate::bind::bind;
use crate::lease::{LeasedSplit, SplitFeed};
use crate::task::{TaskOptions, run_task};

/// All splits of a dataset, listed as they are asked for.
struct Listed {
    splits: BoxStream<'static, Result<Split>>,
    next: u64,
}

#[async_trait]
impl SplitFeed for Listed {
    async fn next(&mut self, want: usize) -> Result<Option<Vec<LeasedSplit>>> {
        let mut leases = Vec::new();
        while leases.len() < want.max(1) {
            let Some(split) = self.splits.next().await else { break };
            leases.push(LeasedSplit::new(self.next, split?));
            self.next += 1;
        }
        Ok((!leases.is_empty()).then_some(leases))
    }
}

/// Learns the boundaries of all stages of a definition that learn them, one stage after another.
///
/// `source_schema`: as for [`bind`]. Of `options`, what says which rows a task has is set here.
///
/// # Errors
/// Those of the stages above, and of the lengths, naming the stage that learns.
pub async fn learn_boundaries(
    def: &DatasetDef,
    registry: &Registry,
    ctx: &SourceContext,
    source_schema: Option<SchemaRef>,
    options: &TaskOptions,
) -> Result<Vec<LearntBoundaries>> {
    let mut learnt: Vec<LearntBoundaries> = Vec::new();
    let mut def = def.clone();
    while let (Some((stage, quantiles)), Some(place)) = (def.unlearnt(), def.unlearnt_place()) {
        let found = lengths(&def, (stage, quantiles), registry, (ctx, source_schema.clone()), options).await;
        let found = found.map_err(|e| e.context(format!("{place}: its boundaries could not be learnt")))?;
        let rows = found.len() as u64;
        let of_stage = LearntBoundaries { stage, boundaries: quantiles.boundaries(found), rows };
        def.learn(&of_stage)?;
        learnt.push(of_stage);
    }
    Ok(learnt)
}

/// The lengths of the first rows that reach a stage.
async fn lengths(
    def: &DatasetDef,
    (stage, quantiles): (usize, Quantiles),
    registry: &Registry,
    (ctx, source_schema): (&SourceContext, Option<SchemaRef>),
    options: &TaskOptions,
) -> Result<Vec<i64>> {
    let of_rows = def.lengths(stage).ok_or_else(|| Error::internal("the stage has no lengths"))?;
    let pipeline = Arc::new(Box::pin(bind(&of_rows, registry, ctx, source_schema)).await?);
    let feed = Listed { splits: pipeline.splits(), next: 0 };
    let options = TaskOptions {
        seed: def.options.seed.unwrap_or(0),
        epoch: 0,
        slot: None,
        shard: None,
        deterministic: true,
        cache: None,
        probe: false,
        sharing: None,
        ..options.clone()
    };
    let wanted = usize::try_from(quantiles.rows).unwrap_or(usize::MAX);
    let mut task = run_task(&pipeline, Box::new(feed), options);
    let mut lengths = Vec::new();
    while lengths.len() < wanted
        && let Some(chunk) = task.next().await
    {
        append(&mut lengths, &chunk?, wanted)?;
    }
    Ok(lengths)
}

/// Adds the lengths of a chunk until there are `wanted`. A null length counts as 0, as it does for the classes.
fn append(lengths: &mut Vec<i64>, chunk: &Chunk, wanted: usize) -> Result<()> {
    for piece in &chunk.pieces {
        let values = cast(piece.column(0), &DataType::Int64)
            .map_err(|e| Error::invalid(format!("a length is no integer of 64 bits: {e}")))?;
        let values = values.as_primitive::<Int64Type>();
        let left = values.len().min(wanted - lengths.len());
        lengths.extend((0..left).map(|i| if values.is_valid(i) { values.value(i) } else { 0 }));
    }
    Ok(())
}
