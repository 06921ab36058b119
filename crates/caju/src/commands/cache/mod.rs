//! `caju cache`: lists, checks and cleans a cache.

mod collected;
mod show;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use caju_cache::{Cache, CacheOptions, Collection, SaveDescription, SnapshotInfo, VerifyReport};
use caju_runtime::{Stores, SystemClock};
use caju_types::{Error, ErrorKind, Fingerprint, Result, format_bytes, format_count, format_duration};
use serde::Serialize;
use serde_json::{Value, json};

use super::shared;
use crate::cli::{CacheCommand, CacheRequestArgs, CacheRoot, Global, OutputFormat};
use crate::output;
use crate::progress::{Progress, State};

pub(super) use show::{ago, short};

/// The exit code of `caju cache verify` that found damage and did not drop it.
const EXIT_DAMAGED: u8 = 4;

/// How long releasing the cache's lease may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the command, to its exit code.
///
/// # Errors
/// A root that is no cache or cannot be reached, an unknown snapshot, and refused operations.
pub(crate) async fn run(global: &Global, command: &CacheCommand) -> Result<u8> {
    match command {
        CacheCommand::Ls(root) => ls(global, root).await?,
        CacheCommand::Inspect { fingerprint, root } => inspect(global, root, fingerprint).await?,
        CacheCommand::Verify { fingerprint, repair, root } => {
            let whole = verify(global, root, fingerprint.as_deref(), *repair).await?;
            return Ok(if whole { 0 } else { EXIT_DAMAGED });
        }
        CacheCommand::Gc { dry_run, budget, ttl, grace, lease, root } => {
            let options = CacheOptions {
                budget_bytes: *budget,
                ttl: *ttl,
                orphan_grace: *grace,
                lease_ttl: lease.cache_lease,
                ..access(&root.requests)
            };
            gc(global, root, options, *dry_run).await?;
        }
        CacheCommand::Rm { fingerprints, force, root } => rm(global, root, fingerprints, *force).await?,
        CacheCommand::Pin { fingerprint, root } => pin(root, fingerprint, true).await?,
        CacheCommand::Unpin { fingerprint, root } => pin(root, fingerprint, false).await?,
    }
    Ok(0)
}

/// Opens an existing root. A mistyped URL must neither create a cache nor look like an empty one.
///
/// # Errors
/// `NotFound` where there is no cache, and the errors of [`Cache::open`].
pub(super) async fn open(url: &str, options: CacheOptions) -> Result<Arc<Cache>> {
    let url = shared::absolute_url(url)?;
    let stores = shared::stores()?;
    refuse_other_places(&stores, &url, options.request_timeout).await?;
    let clock = SystemClock::shared();
    let writer = format!("tool-{}-{:x}", std::process::id(), clock.unix_time().as_nanos());
    Cache::open(&stores, &url, options, clock, writer).await
}

/// How a command accesses the store of a cache.
fn access(requests: &CacheRequestArgs) -> CacheOptions {
    CacheOptions { request_timeout: requests.cache_request_timeout, ..CacheOptions::default() }
}

/// Options for commands that only read a root, which may belong to another user.
pub(super) fn reading_only(requests: &CacheRequestArgs) -> CacheOptions {
    CacheOptions { read_only: true, ..access(requests) }
}

async fn refuse_other_places(stores: &Stores, url: &str, timeout: Duration) -> Result<()> {
    let at = stores.resolve(url).map_err(|e| e.context("--cache"))?;
    let place = at.local.as_ref().map_or_else(|| at.url.to_string(), |folder| folder.display().to_string());
    let exists = tokio::time::timeout(timeout, Cache::exists(stores, url)).await.unwrap_or_else(|_| {
        let waited = format_duration(timeout);
        Err(Error::deadline(format!(
            "{place}: the store did not answer within {waited} (--cache-request-timeout)"
        )))
    });
    let what = match (exists, &at.local) {
        (Ok(true), _) => return Ok(()),
        (Ok(false), Some(folder)) if folder.is_dir() => "the folder holds none".to_string(),
        (Ok(false), Some(_)) => "there is no such folder".to_string(),
        (Ok(false), None) => "nothing is stored there".to_string(),
        (Err(e), _) if e.kind() == ErrorKind::NotFound => e.message().to_string(),
        (Err(e), _) => return Err(e.context("--cache")),
    };
    Err(Error::not_found(format!(
        "no cache at {place}: {what}; check --cache, or make one with `caju run FILE --cache URL`"
    )))
}

/// The snapshot whose fingerprint begins with these digits.
async fn find(cache: &Arc<Cache>, root: &CacheRoot, digits: &str) -> Result<Fingerprint> {
    let plain = digits.to_ascii_lowercase();
    if plain.len() > 32 || !plain.chars().all(|c| c.is_ascii_hexdigit()) {
        return Err(Error::invalid(format!(
            "`{digits}` is no fingerprint: hexadecimal digits, as `caju cache ls --cache {}` shows them",
            root.cache
        )));
    }
    cache.find(&plain).await.map_err(|e| match e.kind() {
        caju_types::ErrorKind::NotFound => Error::not_found(format!(
            "{}; `caju cache ls --cache {}` lists what there is",
            e.message(),
            root.cache
        )),
        _ => e,
    })
}

/// Runs work that may take long, and shows its requests to the store.
async fn watch<F: Future>(global: &Global, cache: &Arc<Cache>, what: &str, work: F) -> F::Output {
    let io = cache.counters();
    let state = || {
        let now = io.snapshot();
        let (requests, read) = (now.reads + now.lists + now.writes + now.deletes, now.bytes_read);
        State {
            text: Some(format!("{} requests, {} read", format_count(requests), format_bytes(read))),
            ..State::default()
        }
    };
    Progress::new(what, global.quiet).watch(work, state).await
}

/// Prints an answer in the requested format.
fn answer(root: &CacheRoot, schema: &str, json: impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
    match root.format {
        OutputFormat::Text => output::say(text().trim_end()),
        OutputFormat::Json => output::say(format_args!("{:#}", with_schema(schema, json)?)),
    }
}

/// A JSON object with the name of its format as its first field.
fn with_schema(schema: &str, json: impl Serialize) -> Result<Value> {
    let value = serde_json::to_value(json).map_err(|e| Error::internal(format!("{schema}: {e}")))?;
    let mut out = serde_json::Map::new();
    out.insert("schema".into(), schema.into());
    if let Value::Object(fields) = value {
        out.extend(fields);
    }
    Ok(Value::Object(out))
}

async fn ls(global: &Global, root: &CacheRoot) -> Result<()> {
    let cache = open(&root.cache, reading_only(&root.requests)).await?;
    let work = async { Ok::<_, Error>((cache.usage().await?, cache.list().await?)) };
    let (usage, mut snapshots) = watch(global, &cache, "listing", work).await?;
    // Last used first.
    snapshots.sort_by(|a, b| {
        b.last_use_unix_s.unwrap_or(0.0).total_cmp(&a.last_use_unix_s.unwrap_or(0.0)).then_with(|| {
            let name = |s: &SnapshotInfo| s.fingerprint;
            name(a).cmp(&name(b))
        })
    });
    let json = json!({"cache": cache.url(), "objects": usage.objects, "bytes": usage.bytes,
                      "snapshots": snapshots});
    answer(root, "caju.snapshots/v1", json, || show::list(cache.url(), &usage, &snapshots))
}

async fn inspect(global: &Global, root: &CacheRoot, digits: &str) -> Result<()> {
    let cache = open(&root.cache, reading_only(&root.requests)).await?;
    let of = find(&cache, root, digits).await?;
    let inspection = watch(global, &cache, "inspecting", cache.inspect(&of)).await?;
    answer(root, "caju.snapshot/v1", &inspection, || show::inspection(&inspection))
}

/// Verifies, and repairs with `repair`. Returns whether no damage is left.
async fn verify(global: &Global, root: &CacheRoot, digits: Option<&str>, repair: bool) -> Result<bool> {
    // Without a memory tier, so that the store itself is read.
    let options = CacheOptions { memory_tier_bytes: 0, ..access(&root.requests) };
    let cache = open(&root.cache, options).await?;
    let chosen = match digits {
        Some(digits) => vec![find(&cache, root, digits).await?],
        None => Vec::new(),
    };
    // No part of a save is dropped: it may be the only copy of its rows.
    let save = repair && SaveDescription::load(&shared::stores()?, cache.url()).await?.is_some();
    let report = verify_all(global, &cache, chosen, repair && !save).await;
    // A reader holds a lease. Left behind, it would make `rm` refuse.
    if let Err(error) = cache.close(CLOSE_TIMEOUT).await {
        tracing::debug!(%error, "the cache was not closed cleanly");
    }
    let report = report?;
    answer(root, "caju.verify/v1", &report, || verified(&report, repair, save))?;
    Ok(report.is_clean() || (repair && !save))
}

/// The report, and what to do about damage.
fn verified(report: &VerifyReport, repair: bool, save: bool) -> String {
    let next = match (report.is_clean(), save, repair) {
        (true, ..) => return report.to_string(),
        (_, true, _) => {
            "this is a save, whose rows no job computes again: nothing was dropped; run `caju save` with its pipeline to \
             this URL again, which replaces what is damaged"
        }
        (_, _, true) => "what is damaged was dropped: jobs that need it compute and store it again",
        _ => {
            "jobs that read what is damaged compute and store it again; `--repair` drops it at once, that of files \
             which are no longer there too"
        }
    };
    format!("{report}\n{next}")
}

/// Verifies snapshot by snapshot, to show progress.
async fn verify_all(
    global: &Global,
    cache: &Arc<Cache>,
    chosen: Vec<Fingerprint>,
    repair: bool,
) -> Result<VerifyReport> {
    let listing = watch(global, cache, "listing", cache.list());
    let mut snapshots: Vec<(Fingerprint, u64)> =
        listing.await?.into_iter().map(|s| (s.fingerprint, s.bytes)).collect();
    snapshots.retain(|(of, _)| chosen.is_empty() || chosen.contains(of));
    let total: u64 = snapshots.iter().map(|(_, bytes)| bytes).sum();
    let (done, started, io) = (AtomicU64::new(0), AtomicU64::new(0), cache.counters());
    let before = AtomicU64::new(io.snapshot().bytes_read);
    let state = || {
        // Parts of a remote store are read twice: their bytes as a whole, then their rows.
        let read = io.snapshot().bytes_read.saturating_sub(before.load(Ordering::Relaxed)) / 2;
        let (at, all) = (started.load(Ordering::Relaxed), snapshots.len());
        State {
            done: (done.load(Ordering::Relaxed) + read).min(total),
            total: Some(total.max(1)),
            text: Some(format!("snapshot {at} of {all}, {}", format_bytes(total))),
            ..State::default()
        }
    };
    let work = async {
        let mut sum = VerifyReport::default();
        for (of, bytes) in &snapshots {
            started.fetch_add(1, Ordering::Relaxed);
            let one = if repair { cache.repair(Some(of)).await? } else { cache.verify(Some(of)).await? };
            sum.snapshots += one.snapshots;
            sum.parts += one.parts;
            sum.bytes += one.bytes;
            sum.rows += one.rows;
            sum.damaged.extend(one.damaged);
            sum.dropped.extend(one.dropped);
            done.fetch_add(*bytes, Ordering::Relaxed);
            before.store(io.snapshot().bytes_read, Ordering::Relaxed);
        }
        Ok(sum)
    };
    Progress::new("verifying", global.quiet).watch(work, state).await
}

async fn gc(global: &Global, root: &CacheRoot, options: CacheOptions, dry_run: bool) -> Result<()> {
    let budget = options.budget_bytes;
    let cache = open(&root.cache, options).await.map_err(|e| match e.kind() {
        ErrorKind::InvalidArgument => e.context("--budget, --cache"),
        _ => e,
    })?;
    let collection = watch(global, &cache, "collecting", cache.gc(dry_run)).await?;
    answer(root, "caju.gc/v1", gc_json(&collection)?, || collected::text(&collection))?;
    let over = collection.over_budget_bytes;
    match budget {
        // A dry run has printed it. A real run that does not reach the budget must not look like success.
        Some(budget) if over > 0 && !dry_run => Err(Error::exhausted(format!(
            "{} is still full: {} more than {}, and nothing more may go: the rest is pinned, in use, or records and \
             manifests; raise --budget, unpin or remove snapshots",
            cache.url(),
            format_bytes(over),
            format_bytes(budget)
        ))),
        _ => Ok(()),
    }
}

fn gc_json(collection: &Collection) -> Result<Value> {
    let objects: Vec<Value> = collection
        .objects
        .iter()
        .map(|(object, why, bytes)| json!({"object": object, "why": why, "bytes": bytes}))
        .collect();
    let evicted: u64 = collection.evictions.iter().map(|e| e.bytes).sum();
    let mut json =
        serde_json::to_value(collection).map_err(|e| Error::internal(format!("caju.gc/v1: {e}")))?;
    json["objects"] = objects.into();
    json["evicted_bytes"] = evicted.into();
    Ok(json)
}

async fn rm(global: &Global, root: &CacheRoot, digits: &[String], force: bool) -> Result<()> {
    let cache = open(&root.cache, access(&root.requests)).await?;
    let mut all = Vec::new();
    for digits in digits {
        let of = find(&cache, root, digits).await?;
        if !all.contains(&of) {
            all.push(of);
        }
    }
    let mut removed = Vec::new();
    for of in all {
        let bytes = watch(global, &cache, "removing", cache.remove(&of, force)).await;
        removed.push((of, bytes.map_err(|e| partly(e, &removed))?));
    }
    let list: Vec<Value> =
        removed.iter().map(|(of, bytes)| json!({"fingerprint": of, "bytes": bytes})).collect();
    let text = || {
        let line = |(of, bytes): &(Fingerprint, u64)| {
            format!("removed {}, {} freed\n", short(*of), format_bytes(*bytes))
        };
        removed.iter().map(line).collect()
    };
    answer(root, "caju.rm/v1", json!({"removed": list}), text)
}

/// Adds to an error which snapshots were removed before it.
fn partly(error: Error, removed: &[(Fingerprint, u64)]) -> Error {
    if removed.is_empty() {
        return error;
    }
    let names: Vec<String> = removed.iter().map(|(of, _)| short(*of)).collect();
    Error::new(error.kind(), format!("{} (removed before that: {})", error.message(), names.join(", ")))
}

async fn pin(root: &CacheRoot, digits: &str, on: bool) -> Result<()> {
    let cache = open(&root.cache, access(&root.requests)).await?;
    let of = find(&cache, root, digits).await?;
    if on {
        cache.pin(&of).await?
    } else {
        cache.unpin(&of).await?
    };
    let text = || match on {
        true => {
            format!("{} is pinned: it is not evicted, expired or removed until it is unpinned", short(of))
        }
        false => format!("{} is not pinned any more", short(of)),
    };
    answer(root, "caju.pin/v1", json!({"fingerprint": of, "pinned": on}), text)
}
