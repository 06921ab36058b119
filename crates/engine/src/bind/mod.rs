//! Binding a definition to its data: finds schemas, plans expressions, and decides what is planned per split.

mod branch;
mod columns;
mod dictionaries;
mod local_end;
mod order;
mod plan;
mod pushdown;
mod sets;
mod steps;

use std::sync::Arc;

use arrow_schema::SchemaRef;
use caju_kernels::Registry;
use caju_pipeline::{DatasetDef, OnError, SourceDef, StageDef, StageOp};
use caju_proto::v1::StageKind;
use caju_sources::{Source, SourceContext, Split, open_source};
use caju_types::{Error, Fingerprint, Result, mix64};
use futures::stream::BoxStream;

pub(crate) use branch::{Branch, BranchKind};
use columns::{common_schema, found_columns, needed_columns, zipped_schema};
use dictionaries::{Kept, Plain};
use order::Bound;
pub use order::StageOrder;
use steps::{Level, PlannedShards};
pub(crate) use steps::{ShardStep, Step, StreamOp};

use crate::hint::{BoundHint, LocalEnd};
use crate::shard::{ListingDigest, Shard, ShardBy, ShardSplits};

/// A definition bound to its data: everything a task needs, shared by all tasks of the dataset.
pub struct BoundPipeline {
    def: DatasetDef,
    fingerprint: Fingerprint,
    pub(crate) root: Branch,
    plan: plan::SplitPlan,
    stats_stages: Vec<(String, StageKind)>,
    hints: Vec<BoundHint>,
    local_end: Option<LocalEnd>,
    chunk_bytes: u64,
}

impl std::fmt::Debug for BoundPipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoundPipeline").field("fingerprint", &self.fingerprint).finish_non_exhaustive()
    }
}

/// Binds a definition: opens its source, finds every stage's schema and plans every expression.
///
/// `source_schema`: [`BoundPipeline::source_schema`] of an earlier binding of the definition; with it no file is read.
///
/// Binding runs on threads of its own, a few definitions at a time and within a deadline ([`Registry::run_isolated`]).
///
/// # Errors
/// `DeadlineExceeded` for a definition that takes too long, `InvalidArgument` naming the stage for a mistake in the
/// definition, and the source's own errors (a missing file, an empty glob).
pub async fn bind(
    def: &DatasetDef,
    registry: &Registry,
    ctx: &SourceContext,
    source_schema: Option<SchemaRef>,
) -> Result<BoundPipeline> {
    bind_with(def, registry, ctx, source_schema, Hints::Ignored, None).await
}

/// What the names of the folders of a hint's sets are derived from.
#[derive(Debug, Clone)]
pub struct SetBase {
    canonical: serde_json::Value,
    planned: Fingerprint,
    variant: String,
}

impl SetBase {
    /// The name for a job with this seed.
    pub fn seeded(&self, seed: u64) -> Fingerprint {
        let reseeded = caju_pipeline::reseeded(&self.canonical, seed);
        crate::hint::set_base(reseeded.map_or(self.planned, |(_, f)| f), &self.variant)
    }
}

/// Whether a bound pipeline can store and read at its hints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hints {
    /// Hints do nothing, and columns and filters are pushed into the source across them.
    Ignored,
    /// Everything above a hint is computed as the hint's prefix says, with all columns and all rows, so that other pipelines
    /// with the same prefix find what they need.
    Active,
}

/// [`bind`], with active hints or without, and for a static processing mode or none.
///
/// # Errors
/// As [`bind`].
pub async fn bind_with(
    def: &DatasetDef,
    registry: &Registry,
    ctx: &SourceContext,
    source_schema: Option<SchemaRef>,
    hints: Hints,
    by: Option<ShardBy>,
) -> Result<BoundPipeline> {
    let registry = &registry.for_definition(def);
    let shared = Arc::new(def.clone());
    let named = {
        let (def, registry) = (Arc::clone(&shared), registry.clone());
        move || {
            caju_pipeline::validate(&def)?;
            caju_pipeline::fingerprint(&def, &registry)
        }
    };
    let fingerprint = registry.run_isolated("reading the definition", named).await?;
    let source = open_source(&def.source, ctx, source_schema).await?;
    let bound = {
        let (registry, keep_hints) = (registry.clone(), hints == Hints::Active);
        move || bind_opened(&shared, &registry, source, fingerprint, keep_hints, by)
    };
    registry.run_isolated("binding the definition", bound).await
}

/// Binds a definition to its opened source.
fn bind_opened(
    def: &DatasetDef,
    registry: &Registry,
    source: Arc<dyn Source>,
    fingerprint: Fingerprint,
    keep_hints: bool,
    by: Option<ShardBy>,
) -> Result<BoundPipeline> {
    let plan = plan::SplitPlan::of(def, by);
    let shards = PlannedShards { data: plan.data_shard(), has_stride: plan.has_stride() };
    let level = Level {
        depth: 0,
        keep_hints,
        shards,
        in_zip: None,
        skips: !matches!(def.options.on_error, OnError::Fail),
    };
    let mut root = bind_branch(def, registry, source, String::new(), level)?;
    plan.finish_steps(def, &mut root.steps);
    let stats_stages = std::iter::once(("source".to_string(), StageKind::Source))
        .chain(root.order.stages.iter().map(|&i| {
            let op = &def.stages[i].op;
            (format!("{i}.{}", op.name()), stage_kind(op))
        }))
        .chain(std::iter::once(("output".to_string(), StageKind::Output)))
        .collect();
    let hints = if keep_hints { bound_hints(def, registry, &root, &plan)? } else { Vec::new() };
    let local_end = local_end::of(def, registry, (&root.steps, found_columns(def, &root)), &plan)?;
    let (def, chunk_bytes) = (def.clone(), registry.limits().chunk_bytes);
    Ok(BoundPipeline { def, fingerprint, root, plan, stats_stages, hints, local_end, chunk_bytes })
}

/// What a stage is to the planner and to advice about bottlenecks.
fn stage_kind(op: &StageOp) -> StageKind {
    match op {
        StageOp::ParseExample { .. } => StageKind::Parse,
        StageOp::Autocache { .. } => StageKind::Hint,
        StageOp::Sleep(_) | StageOp::Burn(_) => StageKind::Serial,
        StageOp::Take(_) => StageKind::Take,
        StageOp::Shuffle { .. }
        | StageOp::Skip(_)
        | StageOp::Shard { .. }
        | StageOp::Batch { .. }
        | StageOp::PaddedBatch { .. }
        | StageOp::BucketByLength { .. }
        | StageOp::Unbatch => StageKind::CrossSplit,
        _ => StageKind::Rows,
    }
}

fn bound_hints(
    def: &DatasetDef,
    registry: &Registry,
    root: &Branch,
    plan: &plan::SplitPlan,
) -> Result<Vec<BoundHint>> {
    let prefixes = caju_pipeline::prefix_fingerprints(def, registry)?;
    let bound = |(hint, prefix): (caju_pipeline::Hint, caju_pipeline::PrefixFingerprint)| {
        let definition = caju_pipeline::prefix_json(def, &hint.name)?;
        let (fingerprint, random) = (prefix.fingerprint, prefix.random);
        let prefix = in_one_line(&caju_pipeline::describe(&DatasetDef::from_json(&definition)?));
        let canonical = caju_pipeline::canonical_text(def, hint.stage_index, registry)?;
        let canonical = serde_json::from_str(&canonical)
            .map_err(|e| Error::internal(format!("the canonical text of a prefix is not JSON: {e}")))?;
        let schema = Arc::clone(&root.schemas[hint.stage_index]);
        let stage = hint.stage_index;
        let position = u32::try_from(def.stage_position_without_hints(stage)).unwrap_or(u32::MAX);
        Ok(BoundHint {
            name: hint.name,
            schema,
            stage,
            definition,
            prefix,
            canonical,
            fingerprint,
            planned: fingerprint,
            random,
            position,
            found_columns: found_columns(def, root),
            set: sets::shape(def, stage, plan),
        })
    };
    def.hints().into_iter().zip(prefixes).map(bound).collect()
}

/// The lines of a described definition in one line, without their numbers and columns.
fn in_one_line(lines: &[String]) -> String {
    let short = |line: &String| {
        let words = line.split_whitespace();
        let numbered = words.clone().next().is_some_and(|w| w == "source" || w.parse::<u32>().is_ok());
        words.skip(usize::from(numbered)).collect::<Vec<_>>().join(" ")
    };
    lines.iter().map(short).collect::<Vec<_>>().join(" | ")
}

fn bind_branch(
    def: &DatasetDef,
    registry: &Registry,
    source: Arc<dyn Source>,
    place: String,
    level: Level,
) -> Result<Branch> {
    let (kind, child_defs): (BranchKind, &[DatasetDef]) = match &def.source {
        SourceDef::Concatenate(c) => (BranchKind::Concatenate, c),
        SourceDef::Sample { datasets, weights, seed } => {
            (BranchKind::Sample { weights: weights.clone(), seed: *seed }, datasets)
        }
        SourceDef::Zip(c) => (BranchKind::Zip, c),
        _ => (BranchKind::Leaf, &[]),
    };
    let below = |i: usize| {
        let in_zip = match kind {
            BranchKind::Zip => Some(mix64(level.in_zip.unwrap_or(0), i as u64 + 1)),
            _ => level.in_zip,
        };
        Level { depth: level.depth + 1, shards: PlannedShards::default(), in_zip, ..level }
    };
    let children = child_defs
        .iter()
        .zip(source.children())
        .enumerate()
        .map(|(i, (d, s))| {
            bind_branch(d, registry, Arc::clone(s), format!("{place}source.datasets[{i}]."), below(i))
        })
        .collect::<Result<Vec<_>>>()?;
    let input = match kind {
        BranchKind::Leaf => source.schema(),
        BranchKind::Zip => zipped_schema(&children, &place)?,
        _ => common_schema(&children, &place)?,
    };
    let bound = |order: &StageOrder, input: &SchemaRef| {
        steps::bind_stages(def, &order.stages, registry, input, &place, level)
    };
    let written = StageOrder::written(def);
    let (mut first, schemas) = bound(&written, &input)?;
    let mut order = written.clone();
    if level.depth == 0 {
        order = StageOrder::of(def, &first, &schemas);
        if !order.is_written() {
            // That it cannot be bound is not expected. The written order can be.
            match bound(&order, &input) {
                Err(e) => {
                    order =
                        StageOrder::refused(def, &format!("the other order cannot be bound: {}", e.message()))
                }
                Ok((steps, reordered)) => {
                    let as_written = Bound { steps: &first, schemas: &schemas };
                    order = order.checked(def, as_written, Bound { steps: &steps, schemas: &reordered });
                    first = if order.is_written() { first } else { steps };
                }
            }
        }
    }
    let ops = order.ops(def);
    let needed = match kind {
        BranchKind::Leaf => needed_columns(&ops, &input, &first, level.keep_hints),
        _ => None,
    };
    let needed: Option<Vec<usize>> = needed.map(|n| n.into_iter().collect());
    let input = match &needed {
        Some(needed) => Arc::new(input.project(needed).map_err(|e| Error::internal(e.to_string()))?),
        None => input,
    };
    let (mut steps, run) = bound(&order, &input)?;
    let schemas = if order.is_written() { run } else { bound(&written, &input)?.1 };
    let push = |steps: &mut Vec<Step>| pushdown::predicates(def, &ops, registry, &source, steps, level.skips);
    let predicates = push(&mut steps)?;
    let keeps = kind == BranchKind::Leaf && level.depth == 0 && source.keeps_dictionaries();
    let plain = Plain { steps, predicates, input: &input, needed: needed.as_deref() };
    let bind = |input: &SchemaRef| bound(&order, input).map(|(steps, _)| steps);
    let Kept { steps, predicates, dictionaries } =
        if keeps { plain.keeping(bind, push) } else { plain.into() };
    Ok(Branch {
        source,
        kind,
        projection: needed,
        predicates,
        dictionaries,
        children,
        steps,
        order,
        schemas,
        in_zip: level.in_zip,
    })
}

impl BoundPipeline {
    /// The definition.
    pub fn def(&self) -> &DatasetDef {
        &self.def
    }

    /// The name of what the definition computes.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The schema of the delivered rows.
    pub fn schema(&self) -> SchemaRef {
        self.root.output()
    }

    /// The source's schema, for binding the definition again elsewhere. For a combinator it holds the schemas of the sources of all
    /// its datasets ([`caju_sources::source_schema`]).
    pub fn source_schema(&self) -> SchemaRef {
        caju_sources::source_schema(self.root.source.as_ref())
    }

    /// The columns of the source; `None` for combinators, whose datasets each have their own.
    pub fn source_columns(&self) -> Option<SchemaRef> {
        (self.root.kind == BranchKind::Leaf).then(|| self.root.source.schema())
    }

    /// The order in which the stages run. It is the written one unless the definition has the setting `reorder`.
    pub fn order(&self) -> &StageOrder {
        &self.root.order
    }

    /// The schemas after the source and after each stage as it is written, hints included.
    pub fn stage_schemas(&self) -> &[SchemaRef] {
        &self.root.schemas
    }

    /// All splits of an iteration in canonical order, repetitions one after another, found while polled.
    pub fn splits(&self) -> BoxStream<'static, Result<Split>> {
        self.splits_among(self.source_splits())
    }

    /// All splits of the source in canonical order, before stages choose among them.
    pub fn source_splits(&self) -> BoxStream<'static, Result<Split>> {
        self.root.source.splits()
    }

    /// As [`splits`](Self::splits), of a source whose splits are these. They are polled as far as the epoch needs them: a `take`
    /// may not need all.
    pub fn splits_among(
        &self,
        of_source: BoxStream<'static, Result<Split>>,
    ) -> BoxStream<'static, Result<Split>> {
        self.plan.splits(of_source, None)
    }

    /// The splits of one shard of an iteration in a static processing mode.
    pub fn shard_splits(&self, shard: Shard) -> ShardSplits {
        let plan = plan::SplitPlan::of(&self.def, Some(shard.by));
        let listed = ListingDigest::default();
        let splits = plan.splits(listed.of(self.root.source.splits()), Some(shard));
        ShardSplits { splits, permutes: plan.permutes(), listed }
    }

    /// Whether one task at a time must run everything in order: because elements have to be counted (`take`
    /// or `skip` where the counts are not known beforehand), or because the order is promised
    /// (`deterministic`).
    pub fn single_task(&self) -> bool {
        self.plan.single_task()
    }

    /// Whether the rows of a file shard have to be counted in order, although those of the whole dataset need not: `take`,
    /// `skip` and `shard` count the rows of each file shard from zero, so they cannot be planned from the splits.
    pub fn counts_by_file(&self) -> bool {
        plan::SplitPlan::of(&self.def, Some(ShardBy::File)).single_task()
    }

    /// Whether a `shuffle` asks for a new order of splits each epoch. It does not if rows are counted above it (`take` or
    /// `skip` without known row counts), because the counted rows are those of the canonical order.
    pub fn shuffles_splits(&self) -> bool {
        self.plan.permutes()
    }

    /// The names, as in the stages' statistics, of stages whose output differs from epoch to epoch.
    pub fn random_stages(&self) -> Vec<String> {
        let rows = self.root.steps.iter().filter_map(|s| match s {
            Step::Rows(r) if r.is_random() => Some(r.stats),
            _ => None,
        });
        let mut random: Vec<usize> = rows.collect();
        let shuffles = self.def.stages.iter().enumerate();
        random.extend(shuffles.filter(|(_, s)| matches!(s.op, StageOp::Shuffle { .. })).map(|(i, _)| i + 1));
        random.sort_unstable();
        random.into_iter().filter_map(|i| self.stats_stages.get(i).map(|(name, _)| name.clone())).collect()
    }

    /// Why rows cannot be stored at the hint of a stage behind a cross-split stage; none if they can.
    pub fn no_set(&self, stage: usize) -> Option<String> {
        sets::refusal(&self.def, stage, &self.plan)
    }

    /// Whether stages that count rows choose them in an order that each epoch draws for itself: behind a `shuffle` above this
    /// stage, or of a `sample`. Which rows were chosen is known by the stored set alone: computed in another epoch, they are others.
    pub fn chooses_in_drawn_order(&self, stage: usize) -> bool {
        let stages = &self.def.stages;
        let counts =
            |s: &StageDef| matches!(s.op, StageOp::Take(_) | StageOp::Skip(_) | StageOp::Shard { .. });
        let shuffle = stages.iter().take(stage).position(|s| matches!(s.op, StageOp::Shuffle { .. }));
        let is_sampled = matches!(self.root.kind, BranchKind::Sample { .. });
        let drawn_from = if is_sampled { Some(0) } else { shuffle };
        drawn_from.is_some_and(|at| stages.iter().skip(at).any(counts))
    }

    /// What the names of the folders of a hint's sets are derived from; none if only split-local stages are above the hint.
    ///
    /// # Errors
    /// Those of fingerprints.
    pub fn set_base(&self, registry: &Registry, hint: &str) -> Result<Option<SetBase>> {
        let hint = self.def.hint(hint)?;
        let Some(shape) = sets::shape(&self.def, hint.stage_index, &self.plan) else { return Ok(None) };
        let text = caju_pipeline::canonical_text(&self.def, hint.stage_index, registry)?;
        let canonical = serde_json::from_str(&text)
            .map_err(|e| Error::internal(format!("the canonical text of a prefix is not JSON: {e}")))?;
        let planned = caju_pipeline::prefix_fingerprints(&self.def, registry)?;
        let planned = planned.into_iter().find(|p| p.stage_index == hint.stage_index);
        let planned = planned.ok_or_else(|| Error::internal("a hint has no prefix"))?.fingerprint;
        Ok(Some(SetBase { canonical, planned, variant: shape.variant }))
    }

    /// The memory limit of a stage for one chunk, in bytes.
    pub(crate) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// The end of the split-local stages, if rows can be shared there.
    pub(crate) fn local_end(&self) -> Option<&LocalEnd> {
        self.local_end.as_ref()
    }

    /// The active hints.
    pub(crate) fn hints(&self) -> &[BoundHint] {
        &self.hints
    }

    /// The stages as their figures name them, with what they are to the planner.
    pub(crate) fn stats_stages(&self) -> &[(String, StageKind)] {
        &self.stats_stages
    }
}
