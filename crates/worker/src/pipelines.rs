//! A cache of bound pipelines, for the next task of the same dataset.

use std::collections::VecDeque;
use std::sync::Arc;

use caju_engine::{BoundPipeline, Hints, ShardBy, TaskOptions, bind_with, learn_boundaries};
use caju_kernels::Registry;
use caju_pipeline::{DatasetDef, LearntBoundaries};
use caju_proto::v1::{BoundariesToLearn, TaskDef};
use caju_sources::SourceContext;
use caju_types::{Error, Result, hash128};
use caju_wire::schema_from_ipc;
use parking_lot::Mutex;

/// The most bound pipelines: epochs of a few jobs alternate, and more are not worth their memory.
const MAX_PIPELINES: usize = 16;

/// Binds definitions, and caches the last ones.
pub(crate) struct Pipelines {
    registry: Registry,
    ctx: SourceContext,
    recent: Mutex<VecDeque<(u128, Arc<BoundPipeline>)>>,
}

impl Pipelines {
    pub(crate) fn new(registry: Registry, ctx: SourceContext) -> Self {
        Self { registry, ctx, recent: Mutex::default() }
    }

    /// The bound pipeline of a task, with the columns that the dispatcher found in its sources. An older dispatcher sends none for a
    /// combinator: its datasets then have the columns that their files have now, and are bound again for each task.
    ///
    /// # Errors
    /// Those of binding, and `FailedPrecondition` if this worker's fingerprint differs from the dispatcher's, as with another
    /// version of caju.
    pub(crate) async fn get(&self, task: &TaskDef) -> Result<Arc<BoundPipeline>> {
        // A fingerprint covers neither the location of the data nor its columns, so it does not identify a dataset.
        let key = hash128(task.definition_json.as_bytes()) ^ hash128(&task.source_schema_ipc).rotate_left(64);
        // Rows are shared at hints, too.
        let has_hints = task.caching || !task.sharing.is_empty();
        let key = key ^ u128::from(has_hints) ^ hash128(task.shard_by.as_bytes()).rotate_left(32);
        if let Some(found) = self.find(key) {
            return Ok(found);
        }
        let text = task.definition_json.clone();
        let read = move || DatasetDef::from_json_str(&text);
        let def = self.registry.run_isolated("reading the definition", read).await?;
        let schema = schema_from_ipc(&task.source_schema_ipc)?.filter(|s| !s.fields().is_empty());
        let has_columns = schema.is_some() || def.source.children().is_empty();
        let hints = if has_hints { Hints::Active } else { Hints::Ignored };
        let bound =
            Arc::new(bind_with(&def, &self.registry, &self.ctx, schema, hints, shard_by(task)?).await?);
        let ours = bound.fingerprint().to_string();
        if !task.fingerprint.is_empty() && ours != task.fingerprint {
            return Err(Error::failed_precondition(format!(
                "this worker computes fingerprint {ours} where the dispatcher means {}; run the same version of caju on \
                 both",
                task.fingerprint
            )));
        }
        if has_columns {
            let mut recent = self.recent.lock();
            recent.push_back((key, Arc::clone(&bound)));
            if recent.len() > MAX_PIPELINES {
                recent.pop_front();
            }
        }
        Ok(bound)
    }

    /// The boundaries that stages of a definition learn from its rows.
    ///
    /// # Errors
    /// Those of binding and of the rows, naming the stage.
    pub(crate) async fn learn(
        &self,
        order: &BoundariesToLearn,
        options: &TaskOptions,
    ) -> Result<Vec<LearntBoundaries>> {
        let text = order.definition_json.clone();
        let read = move || DatasetDef::from_json_str(&text);
        let def = self.registry.run_isolated("reading the definition", read).await?;
        let schema = schema_from_ipc(&order.source_schema_ipc)?.filter(|s| !s.fields().is_empty());
        learn_boundaries(&def, &self.registry, &self.ctx, schema, options).await
    }

    fn find(&self, key: u128) -> Option<Arc<BoundPipeline>> {
        let mut recent = self.recent.lock();
        let at = recent.iter().position(|(k, _)| *k == key)?;
        let found = recent.remove(at)?;
        let pipeline = Arc::clone(&found.1);
        recent.push_back(found);
        Some(pipeline)
    }
}

/// What the task's processing mode divides; none: nothing.
///
/// # Errors
/// `FailedPrecondition` for a mode that this version does not know.
pub(crate) fn shard_by(task: &TaskDef) -> Result<Option<ShardBy>> {
    if task.shard_by.is_empty() {
        return Ok(None);
    }
    ShardBy::from_name(&task.shard_by).map(Some).ok_or_else(|| {
        Error::failed_precondition(format!(
            "this worker does not know shards by `{}`; run the same version of caju as the dispatcher",
            task.shard_by
        ))
    })
}
