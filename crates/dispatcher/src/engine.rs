//! The engine behind the dispatcher: what a definition means, and which splits its source has.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;
use caju_engine::source::SourceContext;
use caju_engine::{BoundPipeline, bind};
use caju_kernels::Registry;
use caju_pipeline::{DatasetDef, OnError, StageOp, identity, prefix_fingerprints};
use caju_types::{Error, Result};
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;

use crate::catalog::{Bound, Catalog, ListSplits, SplitShuffle};
use crate::state::Hint;

/// Binds definitions with the engine: what a running dispatcher is started with.
pub struct EngineCatalog {
    registry: Registry,
    ctx: SourceContext,
}

impl EngineCatalog {
    /// A catalog that looks at sources through `ctx`.
    pub fn new(registry: Registry, ctx: SourceContext) -> Self {
        Self { registry, ctx }
    }
}

#[async_trait]
impl Catalog for EngineCatalog {
    async fn bind(&self, definition: &Value, source_schema: Option<SchemaRef>) -> Result<Bound> {
        let def = DatasetDef::from_json(definition)?;
        let identity = identity(&def, &self.registry)?;
        // Combinators have no schema of their own; the journal keeps an empty one for them.
        let known = source_schema.filter(|s| !s.fields().is_empty());
        let bound = Arc::new(Box::pin(bind(&def, &self.registry, &self.ctx, known)).await?);
        let shuffle = def.stages.iter().find_map(|s| match &s.op {
            StageOp::Shuffle { seed, .. } => Some(SplitShuffle { seed: *seed }),
            _ => None,
        });
        let shuffle = shuffle.filter(|_| bound.shuffles_splits());
        Ok(Bound {
            name: def.name.clone(),
            fingerprint: bound.fingerprint(),
            identity,
            schema: bound.schema(),
            source_schema: bound.source_schema().unwrap_or_else(|| Arc::new(Schema::empty())),
            seed: def.options.seed,
            single_task: bound.single_task(),
            deterministic: def.options.deterministic,
            shuffle,
            skip_limit: match def.options.on_error {
                OnError::Fail => None,
                OnError::Skip { limit } => Some(limit),
            },
            random_stages: bound.random_stages(),
            hints: hints(&def, &self.registry)?,
            splits: list(bound),
        })
    }
}

fn hints(def: &DatasetDef, registry: &Registry) -> Result<Vec<Hint>> {
    let stream = def.stages.iter().position(|s| !s.op.is_split_local());
    let hints = prefix_fingerprints(def, registry)?.into_iter().map(|p| {
        let behind = stream.filter(|s| *s < p.stage_index).map(|s| def.stages[s].op.name().to_string());
        Hint { name: p.hint, prefix: p.fingerprint, random: p.random, behind }
    });
    Ok(hints.collect())
}

impl std::fmt::Debug for EngineCatalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineCatalog").finish_non_exhaustive()
    }
}

fn list(bound: Arc<BoundPipeline>) -> ListSplits {
    Arc::new(move || {
        let text = |split| {
            let json = serde_json::to_string(&split);
            futures::future::ready(json.map_err(|e| Error::internal(format!("a split as JSON: {e}"))))
        };
        bound.splits().and_then(text).boxed()
    })
}
