//! Hints behind cross-split stages: whether there is a complete set for the splits of the source.

use std::sync::Arc;

use caju_cache::{Cache, SplitSetDigest};
use caju_engine::{BoundPipeline, name_in_set, set_id};
use caju_kernels::Registry;
use caju_types::Result;
use futures::TryStreamExt;

use super::state::HintState;

/// Finds the set of a hint.
pub(super) async fn find(
    bound: &BoundPipeline,
    registry: &Registry,
    cache: &Arc<Cache>,
    splits: u64,
    hint: &mut HintState,
) -> Result<()> {
    hint.no_set = bound.no_set(hint.prefix.stage_index);
    let base = bound.set_base(registry, &hint.prefix.hint)?;
    let Some(base) = base.filter(|_| hint.no_set.is_none()) else { return Ok(()) };
    // These include repetitions, which the list of splits does not.
    let names: Vec<u128> = bound.splits().map_ok(|s| name_in_set(&s)).try_collect().await?;
    let id = set_id(base.seeded(bound.def().options.seed.unwrap_or(0)), SplitSetDigest::of(names));
    hint.set = Some(id);
    let snapshot = cache.snapshot(&id);
    let Some(set) = snapshot.set().await? else { return Ok(()) };
    let index = snapshot.index().await?;
    if set.is_in(&index) {
        (hint.stored, hint.parts) = (splits, set.members.len() as u64);
        (hint.rows, hint.bytes) = (index.rows(), index.bytes());
    }
    Ok(())
}
