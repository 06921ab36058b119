//! `caju explain`: which rows of a pipeline are stored, and why the others are not.

mod diff;
mod learning;
mod sets;
mod state;
mod text;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use caju_cache::{Cache, SnapshotInfo};
use caju_client::{Client, ClientConfig};
use caju_engine::BoundPipeline;
use caju_kernels::Registry;
use caju_pipeline::{DatasetDef, PrefixFingerprint, StageOp, canonical_text, prefix_fingerprints};
use caju_proto::v1::{GetStatusResponse, JobStatus};
use caju_runtime::IoCounters;
use caju_sources::{SourceContext, Split};
use caju_types::{Error, Fingerprint, Result, did_you_mean, format_count};
use futures::StreamExt;
use serde_json::Value;

use self::diff::{Difference, compare};
use self::state::{Explanation, HintState, Listed, Nearest};
use super::{cache, check, order, pipeline_file, shared};
use crate::cli::{ExplainArgs, Global, OutputFormat};
use crate::output;
use crate::progress::{Progress, State};
use crate::report::BoundariesReport;

/// Prints what is stored, and the last decision.
///
/// # Errors
/// What is wrong with the file or its source, a missing cache, a dispatcher that does not answer, an unknown job.
pub(crate) async fn run(global: &Global, args: &ExplainArgs) -> Result<()> {
    let mut def = pipeline_file::read(&args.file)?;
    if let Some(seed) = args.seed {
        def = def.with_seed(seed);
    }
    order::allow(&mut def, &args.order)?;
    let registry = shared::registry();
    let status = match &args.dispatcher {
        Some(address) => Some(status(address, args.connect_timeout).await?),
        None => None,
    };
    let url = cache_url(args, status.as_ref())?;
    let cache = cache::open(&url, cache::reading_only(&args.cache_requests)).await?;
    let ctx = SourceContext::new(Arc::new(shared::stores()?), Arc::new(IoCounters::new()));
    let running = Box::pin(learning::running(def, &registry, &ctx, status.as_ref())).await;
    let (def, learnt) = running.map_err(pipeline_file::in_file(&args.file))?;
    let binding = Box::pin(caju_engine::bind(&def, &registry, &ctx, None));
    let bound = binding.await.map_err(pipeline_file::in_file(&args.file))?;
    let job = match &status {
        Some(status) => job_of(status, args.job.as_deref(), &def, bound.fingerprint())?,
        None => None,
    };
    // Without an end nothing can be stored.
    let splits = match bound.def().source.endless_dataset() {
        Some(_) => Vec::new(),
        None => list(global, &bound).await?,
    };
    let mut hints = hints(global, &def, &registry, &cache, &splits).await?;
    for hint in hints.iter_mut().filter(|h| h.cross_split_stage.is_some()) {
        sets::find(&bound, &registry, &cache, splits.len() as u64, hint).await?;
    }
    let explanation = Explanation {
        pipeline: check::title(&def, &args.file),
        fingerprint: bound.fingerprint(),
        cache: cache.url().to_string(),
        splits,
        order: bound.order().lines(&def),
        run_order: bound.order().stages.clone(),
        boundaries: learnt.into_iter().map(BoundariesReport::from).collect(),
        hints,
        job,
    };
    match args.format {
        OutputFormat::Text => output::say(text::text(&explanation, args.dispatcher.is_some())?.trim_end()),
        OutputFormat::Json => output::say(format_args!("{:#}", text::json(&explanation))),
    }
}

async fn status(address: &str, timeout: std::time::Duration) -> Result<GetStatusResponse> {
    let config = ClientConfig { connect_timeout: timeout, ..ClientConfig::default() };
    Client::connect(address, config).await?.status().await
}

fn cache_url(args: &ExplainArgs, status: Option<&GetStatusResponse>) -> Result<String> {
    match (&args.cache, status) {
        (Some(url), _) => Ok(url.clone()),
        (None, Some(status)) if !status.cache_url.is_empty() => Ok(status.cache_url.clone()),
        (None, Some(_)) => Err(Error::failed_precondition(
            "this dispatcher has no cache, so nothing is stored; start it with `--cache URL`, or name a cache with \
             --cache",
        )),
        (None, None) => Err(Error::invalid("say where to look: --cache URL, or --dispatcher HOST:PORT")),
    }
}

/// The job with this name, else the latest one of this pipeline.
fn job_of(
    status: &GetStatusResponse,
    name: Option<&str>,
    def: &DatasetDef,
    fingerprint: Fingerprint,
) -> Result<Option<JobStatus>> {
    let digits = fingerprint.to_string();
    let ours = |j: &&JobStatus| match name {
        Some(name) => j.job == name,
        None => j.dataset_id.starts_with(&digits) || def.name.as_ref().is_some_and(|n| *n == j.pipeline),
    };
    let found = status.jobs.iter().filter(ours).max_by_key(|j| j.iteration_id).cloned();
    match (found, name) {
        (None, Some(name)) => {
            let near = did_you_mean(name, status.jobs.iter().map(|j| j.job.as_str()));
            Err(Error::not_found(format!(
                "the dispatcher knows no job `{name}`{near}; `caju status` lists them"
            )))
        }
        (found, _) => Ok(found),
    }
}

/// The splits of one repetition of the source, each once.
async fn list(global: &Global, bound: &BoundPipeline) -> Result<Vec<Listed>> {
    let found = AtomicU64::new(0);
    let state = || {
        let text = format!("{} splits", format_count(found.load(Ordering::Relaxed)));
        State { text: Some(text), ..State::default() }
    };
    let work = async {
        let (mut splits, mut seen, mut out) = (bound.splits(), HashSet::new(), Vec::new());
        while let Some(split) = splits.next().await {
            let split = split?;
            if split.repetition > 0 {
                break;
            }
            if seen.insert(split.key) {
                let place = place(&split);
                out.push(Listed { key: split.key, place, cut: split.trim.is_some() });
                found.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(out)
    };
    Progress::new("listing the source", global.quiet).watch(work, state).await
}

/// The file of a split, or a description of a split without a file.
fn place(split: &Split) -> String {
    split.file.as_ref().map_or_else(|| split.describe(), |f| f.url.clone())
}

async fn hints(
    global: &Global,
    def: &DatasetDef,
    registry: &Registry,
    cache: &Arc<Cache>,
    splits: &[Listed],
) -> Result<Vec<HintState>> {
    let prefixes = prefix_fingerprints(def, registry)?;
    let own: HashSet<Fingerprint> = prefixes.iter().map(|p| p.fingerprint).collect();
    let mut others = None;
    let mut out = Vec::new();
    for prefix in prefixes {
        let mut state = stored(def, prefix, cache, splits).await?;
        if state.cross_split_stage.is_none() && state.parts == 0 {
            if others.is_none() {
                let reading = Others::read(cache, registry, &own);
                let progress = Progress::new("comparing snapshots", global.quiet);
                others = Some(progress.watch(reading, State::default).await?);
            }
            let others = others.as_ref().map_or(&[][..], |o| &o.0);
            state.nearest = nearest(def, registry, &state.prefix, others)?;
        }
        out.push(state);
    }
    Ok(out)
}

async fn stored(
    def: &DatasetDef,
    prefix: PrefixFingerprint,
    cache: &Arc<Cache>,
    splits: &[Listed],
) -> Result<HintState> {
    let cross_split_stage = def.stages.iter().take(prefix.stage_index).find(|s| !s.op.is_split_local());
    let mut state = HintState {
        cross_split_stage: cross_split_stage.map(|s| s.op.name().to_string()),
        no_set: None,
        set: None,
        prefix,
        stored: 0,
        parts: 0,
        rows: 0,
        bytes: 0,
        missing: BTreeMap::new(),
        nearest: None,
    };
    if state.cross_split_stage.is_some() {
        return Ok(state);
    }
    let index = cache.snapshot(&state.prefix.fingerprint).index().await?;
    state.parts = index.len() as u64;
    for split in splits {
        match index.get(&split.key).filter(|_| !split.cut) {
            Some(part) => {
                state.stored += 1;
                state.rows += part.rows;
                state.bytes += part.bytes;
            }
            None => *state.missing.entry(split.place.clone()).or_default() += 1,
        }
    }
    Ok(state)
}

/// A snapshot of another prefix, and the canonical text of which its fingerprint is a hash.
struct Other {
    info: SnapshotInfo,
    canonical: Value,
    /// Whether the canonical text was recorded when the snapshot was written.
    exact: bool,
}

struct Others(Vec<Other>);

impl Others {
    async fn read(cache: &Arc<Cache>, registry: &Registry, own: &HashSet<Fingerprint>) -> Result<Self> {
        let mut out = Vec::new();
        for info in cache.list().await? {
            if own.contains(&info.fingerprint) {
                continue;
            }
            let index = cache.snapshot(&info.fingerprint).index().await?;
            let Some(description) = index.description() else { continue };
            let exact = description.canonical.is_object();
            let canonical = if exact {
                description.canonical.clone()
            } else {
                // Manifests of older versions lack it. It is rebuilt with the functions of this version.
                match rebuilt(&description.definition, registry) {
                    Ok(canonical) => canonical,
                    Err(_) => continue,
                }
            };
            out.push(Other { info, canonical, exact });
        }
        Ok(Self(out))
    }
}

fn rebuilt(definition: &Value, registry: &Registry) -> Result<Value> {
    let def = DatasetDef::from_json(definition)?;
    parsed(&canonical_text(&def, def.stages.len(), registry)?)
}

fn parsed(canonical: &str) -> Result<Value> {
    serde_json::from_str(canonical).map_err(|e| Error::internal(format!("a canonical text: {e}")))
}

/// The snapshot with the longest common prefix. Ties: the fewest differences, then the most rows.
fn nearest(
    def: &DatasetDef,
    registry: &Registry,
    prefix: &PrefixFingerprint,
    others: &[Other],
) -> Result<Option<Nearest>> {
    let here = parsed(&canonical_text(def, prefix.stage_index, registry)?)?;
    let steps: Vec<usize> =
        (0..prefix.stage_index).filter(|i| !matches!(def.stages[*i].op, StageOp::Autocache { .. })).collect();
    let compared = others.iter().filter_map(|other| Some((other, compare(&here, &other.canonical, &steps)?)));
    let rank = |(other, c): &(&Other, diff::Comparison)| {
        (c.common, std::cmp::Reverse(c.differences.len()), other.info.rows, other.info.fingerprint)
    };
    Ok(compared.max_by_key(rank).map(|(other, c)| {
        let mut differences = c.differences;
        if differences.is_empty() {
            let why = if other.exact { "an unrecorded version" } else { "an older version" };
            let place =
                format!("the stages are the same; it was written with {why} of a function or library");
            differences.push(Difference { place, here: None, there: None });
        }
        Nearest { info: other.info.clone(), differences }
    }))
}
