//! The boundaries with which a pipeline runs that learns them.

use caju_engine::{TaskOptions, learn_boundaries};
use caju_kernels::Registry;
use caju_pipeline::{DatasetDef, LearntBoundaries, fingerprint};
use caju_proto::v1::GetStatusResponse;
use caju_runtime::SystemClock;
use caju_sources::SourceContext;
use caju_types::Result;

use crate::commands::{boundaries, shared};

/// The definition that runs, and what was learnt for it: as the latest job of this pipeline has it, else from the rows that are
/// there now.
pub(super) async fn running(
    def: DatasetDef,
    registry: &Registry,
    ctx: &SourceContext,
    status: Option<&GetStatusResponse>,
) -> Result<(DatasetDef, Vec<LearntBoundaries>)> {
    if def.unlearnt().is_none() {
        return Ok((def, Vec::new()));
    }
    let mut jobs: Vec<_> = status.iter().flat_map(|s| &s.jobs).collect();
    jobs.sort_by_key(|job| std::cmp::Reverse(job.iteration_id));
    for job in jobs {
        let learnt = boundaries::learnt(job);
        let Ok(running) = def.with_boundaries(&learnt) else { continue };
        if job.dataset_id.starts_with(&fingerprint(&running, registry)?.to_string()) {
            return Ok((running, learnt));
        }
    }
    let options = TaskOptions::new(shared::cpu_pool(None)?, SystemClock::shared());
    let learnt = Box::pin(learn_boundaries(&def, registry, ctx, None, &options)).await?;
    Ok((def.with_boundaries(&learnt)?, learnt))
}
