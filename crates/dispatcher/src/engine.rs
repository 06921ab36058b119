//! The engine behind the dispatcher: what a definition means, and which splits its source has.

use std::sync::Arc;
use std::time::Duration;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use caju_autocache::HintDef;
use caju_cache::SourceListing;
use caju_engine::{BoundPipeline, SetBase, ShardSplits, bind};
use caju_kernels::Registry;
use caju_pipeline::{
    DatasetDef, LearntBoundaries, OnError, StageOp, canonical_text, identity, prefix_fingerprints, reseeded,
};
use caju_runtime::{IsolatedThreads, Stores, SystemClock};
use caju_sources::{ListingCache, SourceContext, Split};
use caju_types::{Error, Fingerprint, Result};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::catalog::{Bound, Catalog, ListShards, ListSplits, ListedSplit, ShardListing, SplitShuffle};
use crate::config::Timers;
use crate::definition::Definition;

/// Binds definitions with the engine: what a running dispatcher is started with.
pub struct EngineCatalog {
    registry: Registry,
    ctx: SourceContext,
    /// The cache root; empty without one.
    cache_url: String,
    /// How long the end of a listing waits until it is recorded there.
    cache_wait: Duration,
}

impl EngineCatalog {
    /// A catalog that opens sources through `ctx`.
    pub fn new(registry: Registry, ctx: SourceContext) -> Self {
        Self { registry, ctx, cache_url: String::new(), cache_wait: Timers::default().cache_wait }
    }

    /// This catalog, with listings of sources recorded below a cache root, for jobs that say `cache_only`.
    #[must_use]
    pub fn with_cache(mut self, url: &str) -> Self {
        self.cache_url = url.to_string();
        self
    }

    /// This catalog, with another bound on the wait for the cache's store at the end of a listing.
    #[must_use]
    pub fn with_cache_wait(mut self, wait: Duration) -> Self {
        self.cache_wait = wait;
        self
    }

    /// The source of a definition as it was when it was last listed.
    async fn recorded_listing(&self, def: &DatasetDef) -> Result<SourceListing> {
        if def.hints().is_empty() {
            return Err(Error::invalid(
                "`cache_only`: the pipeline has no `autocache` at which rows could be stored; put one into `steps`",
            ));
        }
        if self.cache_url.is_empty() {
            return Err(Error::failed_precondition("`cache_only`: there is no cache to read from; give one"));
        }
        let mut listing = None;
        for of in [part_of_source(def), Some(source_of(def))].into_iter().flatten() {
            if listing.is_none() {
                let stored = SourceListing::load(&self.ctx.stores, &self.cache_url, &of).await?;
                listing = stored.filter(|l| !l.columns.fields().is_empty());
            }
        }
        listing.ok_or_else(|| {
            Error::not_found(format!(
                "`cache_only`: {} does not know what this source held: let a job store its rows there first, with the \
                 same source and paths (datasets of several sources cannot be read so)",
                self.cache_url
            ))
        })
    }

    /// The recorded listing of a source whose rows may be stored, as far as it is still valid: the splits of its unchanged
    /// files, and its columns if its first file is unchanged. These are not read from the source again.
    async fn valid_recorded_listing(&self, def: &DatasetDef) -> (SourceContext, Option<SchemaRef>) {
        let ctx = self.ctx.clone();
        if self.cache_url.is_empty() || def.hints().is_empty() {
            return (ctx, None);
        }
        let Ok(Some(listing)) = SourceListing::load(&ctx.stores, &self.cache_url, &source_of(def)).await
        else {
            return (ctx, None);
        };
        let splits = listing.splits.iter().map(|s| serde_json::from_str::<Split>(s));
        let Ok(splits) = splits.collect::<Result<Vec<_>, _>>() else { return (ctx, None) };
        let ctx = ctx.with_listing(ListingCache::from_listing(splits));
        // An error occurs again, with its place, when the source is opened.
        let same = ctx.first_file_is_unchanged(&def.source).await.unwrap_or(false);
        let columns = same.then(|| Arc::new(listing.columns)).filter(|c| !c.fields().is_empty());
        (ctx, columns)
    }

    /// The recorder for the source of a definition whose rows may be stored; none for others.
    fn recorder(&self, def: &DatasetDef, bound: &BoundPipeline) -> Option<ListingRecorder> {
        if self.cache_url.is_empty() || def.hints().is_empty() {
            return None;
        }
        let (stores, root) = (Arc::clone(&self.ctx.stores), self.cache_url.clone());
        Some(ListingRecorder {
            stores,
            root,
            source: source_of(def),
            part: part_of_source(def),
            columns: bound.source_columns()?,
            wait: self.cache_wait,
        })
    }
}

/// A definition's source alone, as JSON.
fn source_of(def: &DatasetDef) -> Value {
    def.to_json().get("source").cloned().unwrap_or_default()
}

/// What names the listing of a source that ended where a `take` needed no more of it: the source and the stages up to the last
/// `take`. None for definitions without one, which list the whole source.
fn part_of_source(def: &DatasetDef) -> Option<Value> {
    let (json, source) = (def.to_json(), source_of(def));
    let steps = json.get("steps")?.as_array()?;
    let last = steps.iter().rposition(|step| step.get("take").is_some())?;
    Some(json!({ "source": source, "steps": steps[..=last] }))
}

/// The largest listing that is recorded below the cache root, in bytes. It is held in memory until the listing ends.
const MAX_RECORDED_BYTES: usize = 64 << 20;

/// Records what was listed of a source for an epoch, when the listing has ended.
#[derive(Clone)]
struct ListingRecorder {
    stores: Arc<Stores>,
    root: String,
    source: Value,
    /// What names a listing that a `take` ended early; none without one.
    part: Option<Value>,
    columns: SchemaRef,
    /// How long writing the record may delay the end of the listing.
    wait: Duration,
}

impl ListingRecorder {
    /// The splits of an epoch. Those of the source are recorded as they are before stages choose among them: other definitions
    /// of this source choose others.
    fn record(self, bound: &BoundPipeline) -> BoxStream<'static, Result<Split>> {
        let listed: Arc<Mutex<Option<ListedSplits>>> = Arc::new(Mutex::new(Some(ListedSplits::default())));
        let of_source = {
            let (me, listed) = (self.clone(), Arc::clone(&listed));
            stream::unfold((bound.source_splits(), me, listed), |(mut splits, me, listed)| async move {
                let split = splits.next().await;
                match &split {
                    Some(split) => ListedSplits::add(&mut listed.lock(), split.as_ref().ok()),
                    None => {
                        let whole = listed.lock().take();
                        me.write(&me.source, whole).await;
                    }
                }
                Some((split?, (splits, me, listed)))
            })
            .boxed()
        };
        // The listing of the source has not ended if a `take` needed no more of it.
        let end = async move {
            let begun = listed.lock().take();
            if let Some(part) = &self.part {
                self.write(part, begun).await;
            }
            None
        };
        bound.splits_among(of_source).chain(stream::once(end).filter_map(std::future::ready)).boxed()
    }

    async fn write(&self, of: &Value, listed: Option<ListedSplits>) {
        let Some(ListedSplits { json, .. }) = listed else { return };
        let listing = SourceListing::new(of.clone(), self.columns.as_ref().clone(), json);
        let clock = SystemClock::shared();
        let done = tokio::select! {
            done = listing.store(&self.stores, &self.root) => done,
            () = clock.sleep(self.wait) => Err(Error::deadline("the cache's store does not answer")),
        };
        if let Err(error) = done {
            tracing::debug!(%error, "the listing of a source was not recorded");
        }
    }
}

/// Splits of a source that are to be recorded.
#[derive(Default)]
struct ListedSplits {
    json: Vec<String>,
    bytes: usize,
}

impl ListedSplits {
    /// Adds a split. Nothing is recorded if there was an error, or if the splits are too large together.
    fn add(listed: &mut Option<Self>, split: Option<&Split>) {
        let json = split.and_then(|split| serde_json::to_string(split).ok());
        *listed = listed.take().zip(json).and_then(|(mut listed, json)| {
            listed.bytes += json.len();
            listed.json.push(json);
            (listed.bytes <= MAX_RECORDED_BYTES).then_some(listed)
        });
    }
}

#[async_trait]
impl Catalog for EngineCatalog {
    fn stores(&self) -> Option<Arc<caju_runtime::Stores>> {
        Some(Arc::clone(&self.ctx.stores))
    }

    fn threads(&self) -> IsolatedThreads {
        self.registry.isolated_threads()
    }

    async fn seeded_snapshot(&self, definition: &Definition, hint: &str, seed: u64) -> Option<Fingerprint> {
        let (definition, hint, registry) = (definition.clone(), hint.to_string(), self.registry.clone());
        let name = move || {
            let def = definition.read()?;
            let text = canonical_text(def, def.hint(&hint)?.stage_index, &registry)?;
            let text = serde_json::from_str(&text)
                .map_err(|e| Error::internal(format!("the text of a prefix is not JSON: {e}")))?;
            Ok(reseeded(&text, seed).map(|(_, of)| of))
        };
        let named = self.registry.run_isolated("naming a snapshot of random rows", name).await;
        named.unwrap_or_else(|error| {
            tracing::debug!(%error, "the snapshot of a job's own seed is not known");
            None
        })
    }

    async fn with_boundaries(
        &self,
        definition: &Definition,
        learnt: &[LearntBoundaries],
    ) -> Result<Definition> {
        let (definition, learnt) = (definition.clone(), learnt.to_vec());
        let read = move || Ok(definition.read()?.with_boundaries(&learnt)?.into());
        self.registry.run_isolated("reading the definition", read).await
    }

    /// Definitions come from clients: work on them runs on threads of its own ([`Registry::run_isolated`]).
    async fn bind(&self, definition: &Definition, source_schema: Option<SchemaRef>) -> Result<Bound> {
        let read = {
            let (definition, registry) = (definition.clone(), self.registry.clone());
            move || identity(definition.read()?, &registry)
        };
        let identity = self.registry.run_isolated("reading the definition", read).await?;
        let def = definition.read()?;
        // Older journals have a schema without fields for combinators.
        let known = source_schema.filter(|s| !s.fields().is_empty());
        let recorded = if def.options.cache_only { Some(self.recorded_listing(def).await?) } else { None };
        let (ctx, columns) = match &recorded {
            Some(listing) => (self.ctx.clone(), Some(Arc::new(listing.columns.clone()))),
            None => self.valid_recorded_listing(def).await,
        };
        let known = if recorded.is_some() { columns } else { known.or(columns) };
        let bound = Arc::new(Box::pin(bind(def, &self.registry, &ctx, known)).await?);
        let found = {
            let (definition, bound, registry) =
                (definition.clone(), Arc::clone(&bound), self.registry.clone());
            move || {
                let def = definition.read()?;
                let hints = hints(def, &registry, &bound)?;
                Ok((hints, set_bases(def, &registry, &bound)?, bound.source_schema()))
            }
        };
        let (hints, set_bases, source_schema) =
            self.registry.run_isolated("naming the hints of the definition", found).await?;
        let shuffle = def.stages.iter().find_map(|s| match &s.op {
            StageOp::Shuffle { seed, .. } => Some(SplitShuffle { seed: *seed }),
            _ => None,
        });
        let permutes = bound.shuffles_splits();
        Ok(Bound {
            name: def.name.clone(),
            fingerprint: bound.fingerprint(),
            identity,
            payloads: self.registry.payloads(def),
            schema: bound.schema(),
            source_schema,
            seed: def.options.seed,
            single_task: bound.single_task(),
            counts_by_file: bound.counts_by_file(),
            deterministic: def.options.deterministic,
            shuffle,
            permutes,
            skip_limit: match def.options.on_error {
                OnError::Fail => None,
                OnError::Skip { limit } => Some(limit),
            },
            random_stages: bound.random_stages(),
            cache_only: def.options.cache_only,
            unlearnt: def.unlearnt_place(),
            hints,
            set_bases,
            shards: list_shards(&bound),
            splits: match recorded {
                Some(listing) => list_recorded(Arc::clone(&bound), listing.splits),
                None => list(Arc::clone(&bound), self.recorder(def, &bound)),
            },
        })
    }
}

fn hints(def: &DatasetDef, registry: &Registry, bound: &BoundPipeline) -> Result<Vec<HintDef>> {
    let stream = def.stages.iter().position(|s| !s.op.is_split_local());
    let hints = prefix_fingerprints(def, registry)?.into_iter().map(|p| {
        let cross_split_stage =
            stream.filter(|s| *s < p.stage_index).map(|s| def.stages[s].op.name().to_string());
        let not_storable = bound.no_set(p.stage_index);
        let chooses = cross_split_stage.is_some() && bound.chooses_in_drawn_order(p.stage_index);
        HintDef {
            name: p.hint,
            prefix: p.fingerprint,
            random: p.random,
            chooses,
            cross_split_stage,
            not_storable,
        }
    });
    Ok(hints.collect())
}

fn set_bases(def: &DatasetDef, registry: &Registry, bound: &BoundPipeline) -> Result<Vec<(String, SetBase)>> {
    let bases =
        def.hints().into_iter().map(|h| Ok(bound.set_base(registry, &h.name)?.map(|base| (h.name, base))));
    bases.filter_map(Result::transpose).collect()
}

impl std::fmt::Debug for EngineCatalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineCatalog").finish_non_exhaustive()
    }
}

fn list_shards(bound: &Arc<BoundPipeline>) -> ListShards {
    let bound = Arc::clone(bound);
    Arc::new(move |shard| {
        let ShardSplits { splits, permutes, listed } = bound.shard_splits(shard);
        ShardListing { splits: splits_of(splits), permutes, listed }
    })
}

fn splits_of(splits: BoxStream<'static, Result<Split>>) -> BoxStream<'static, Result<ListedSplit>> {
    splits.map(|split| ListedSplit::new(&split?)).boxed()
}

fn list(bound: Arc<BoundPipeline>, recorder: Option<ListingRecorder>) -> ListSplits {
    Arc::new(move || {
        splits_of(match recorder.clone() {
            Some(recorder) => recorder.record(&bound),
            None => bound.splits(),
        })
    })
}

/// The splits of an epoch of a source whose splits are recorded.
fn list_recorded(bound: Arc<BoundPipeline>, recorded: Vec<String>) -> ListSplits {
    let recorded: Arc<[String]> = recorded.into();
    Arc::new(move || {
        let (recorded, count) = (Arc::clone(&recorded), recorded.len());
        let read = move |at: usize| {
            let named =
                |e| Error::data_loss(format!("split {at} of the recorded listing of the source: {e}"));
            serde_json::from_str(&recorded[at]).map_err(named)
        };
        splits_of(bound.splits_among(stream::iter(0..count).map(read).boxed()))
    })
}
