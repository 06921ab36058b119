//! The engine behind [`Catalog`].

use std::sync::Arc;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use caju_engine::bind;
use caju_engine::source::{SourceContext, Split};
use caju_kernels::Registry;
use caju_pipeline::{DatasetDef, OnError, StageOp, identity};
use caju_types::{Error, Result};
use futures::StreamExt as _;
use serde_json::Value;

use crate::catalog::{Bound, Catalog, SplitShuffle};

/// Binds definitions with the engine, reading listings and schemas through the stores of its context.
#[derive(Clone)]
pub struct EngineCatalog {
    registry: Registry,
    sources: SourceContext,
}

impl EngineCatalog {
    /// A catalog over the functions of `registry` and the stores of `sources`.
    pub fn new(registry: Registry, sources: SourceContext) -> Self {
        Self { registry, sources }
    }
}

#[async_trait]
impl Catalog for EngineCatalog {
    async fn bind(&self, definition: &Value, source_schema: Option<SchemaRef>) -> Result<Bound> {
        let def = DatasetDef::from_json(definition)?;
        // Boxed: planning expressions makes a large future.
        let bound = Box::pin(bind(&def, &self.registry, &self.sources, source_schema)).await?;
        let shuffle = def.stages.iter().find_map(|s| match &s.op {
            StageOp::Shuffle { seed, .. } => Some(SplitShuffle { seed: *seed }),
            _ => None,
        });
        let pipeline = Arc::new(bound);
        Ok(Bound {
            fingerprint: pipeline.fingerprint(),
            identity: identity(&def, &self.registry)?,
            schema: pipeline.schema(),
            source_schema: pipeline.source_schema(),
            seed: def.options.seed,
            single_task: pipeline.single_task(),
            deterministic: def.options.deterministic,
            shuffle: shuffle.filter(|_| pipeline.shuffles_splits()),
            skip_limit: match def.options.on_error {
                OnError::Skip { limit } => Some(limit),
                OnError::Fail => None,
            },
            name: def.name,
            splits: Arc::new(move || pipeline.splits().map(|split| to_json(&split?)).boxed()),
        })
    }
}

fn to_json(split: &Split) -> Result<String> {
    serde_json::to_string(split).map_err(|e| Error::internal(format!("a split cannot be written: {e}")))
}

impl std::fmt::Debug for EngineCatalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineCatalog").finish_non_exhaustive()
    }
}
