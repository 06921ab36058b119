//! Shards in flight: rows are made on the CPU pool, encoded in order, and streamed to the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use caju_runtime::stores::{Location, store_error};
use caju_runtime::{CpuPool, Stores};
use caju_types::{Error, Result, did_you_mean};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;

use super::encode::{Encoder, Made, encoder};
use super::{Counters, Format, Plan};

/// Written last; says what the folder holds.
const MARKER: &str = "_caju_gen.json";

/// Small objects that are written at once, per shard.
const PUTS: usize = 8;

#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Marker {
    kind: String,
    count: u64,
    seed: u64,
    formats: Vec<String>,
}

impl Marker {
    fn of(plan: &Plan) -> Self {
        Self {
            kind: plan.kind.name().into(),
            count: plan.count,
            seed: plan.seed,
            formats: plan.formats.iter().map(|f| f.name().to_string()).collect(),
        }
    }
}

/// Whether exactly this data was written there, to its end.
///
/// # Errors
/// What the store says, but not `NotFound`.
pub(crate) async fn is_complete(plan: &Plan, stores: &Stores) -> Result<bool> {
    let at = stores.resolve(&plan.out)?;
    match at.store.get(&at.path.clone().join(MARKER)).await {
        Ok(found) => {
            let bytes = found.bytes().await.map_err(|e| store_error(&at.url, e))?;
            Ok(serde_json::from_slice::<Marker>(&bytes).is_ok_and(|m| m == Marker::of(plan)))
        }
        Err(object_store::Error::NotFound { .. }) => Ok(false),
        Err(e) => Err(store_error(&at.url, e)),
    }
}

/// Makes the data.
///
/// # Errors
/// `InvalidArgument` for a format that does not fit the kind, `AlreadyExists` for a folder that is not
/// empty, and what the store says.
pub(crate) async fn write(plan: &Plan, stores: &Stores, pool: &CpuPool, counters: &Counters) -> Result<()> {
    check_formats(plan)?;
    let at = stores.resolve(&plan.out)?;
    make_room(plan, &at).await?;
    let shards = plan.shards();
    let width = usize::try_from(shards).unwrap_or(usize::MAX).min(pool.threads()).max(1);
    // With fewer shards than threads, each shard makes more blocks at once.
    let ahead = (2 * pool.threads()).div_ceil(width);
    let work = |shard| write_shard(Job { plan, at: &at, pool, counters, ahead }, shard);
    stream::iter(0..shards).map(work).buffer_unordered(width).try_collect::<Vec<()>>().await?;
    let marker = serde_json::to_vec_pretty(&Marker::of(plan)).map_err(|e| Error::internal(e.to_string()))?;
    put(&at, MARKER, marker, counters).await
}

fn check_formats(plan: &Plan) -> Result<()> {
    let known = Format::of(plan.kind);
    for format in &plan.formats {
        if !known.contains(format) {
            let names: Vec<_> = known.iter().map(|f| f.name()).collect();
            let near = did_you_mean(format.name(), &names);
            return Err(Error::invalid(format!(
                "--format {}: {} cannot be written as {0}; use one of {}{near}",
                format.name(),
                plan.kind.name(),
                names.join(", ")
            )));
        }
    }
    Ok(())
}

/// Refuses a folder that is not empty; with `overwrite`, removes what `caju gen` writes, and nothing else.
async fn make_room(plan: &Plan, at: &Location) -> Result<()> {
    let mut listing = at.store.list(Some(&at.path));
    while let Some(meta) = listing.next().await {
        let path = meta.map_err(|e| store_error(&at.url, e))?.location;
        if !plan.overwrite {
            return Err(Error::already_exists(format!(
                "{}: not empty (it holds {}); choose another --out, or replace sample data with --overwrite",
                at.url,
                path.filename().unwrap_or_default()
            )));
        }
        if is_ours(&path) {
            at.store.delete(&path).await.map_err(|e| store_error(&at.url, e))?;
        }
    }
    Ok(())
}

/// Whether a file has a name that `caju gen` gives: `part-00000-of-00004.*`, `cNNN/NNNNNN.jpg`, the marker.
fn is_ours(path: &Path) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let name = path.filename().unwrap_or_default();
    let stem = name.split('.').next().unwrap_or_default();
    let parts: Vec<&str> = stem.split('-').collect();
    let shard = matches!(parts.as_slice(), ["part", i, "of", n] if digits(i) && digits(n));
    let folder = path.parts().rev().nth(1).map(|p| p.as_ref().to_string()).unwrap_or_default();
    let image = name.ends_with(".jpg") && digits(stem) && folder.strip_prefix('c').is_some_and(digits);
    shard || image || name == MARKER
}

#[derive(Clone, Copy)]
struct Job<'a> {
    plan: &'a Plan,
    at: &'a Location,
    pool: &'a CpuPool,
    counters: &'a Counters,
    ahead: usize,
}

/// A shard's file in one format.
struct Out {
    folder: String,
    encoder: Box<dyn Encoder>,
    file: Option<BufWriter>,
}

async fn write_shard(job: Job<'_>, shard: u64) -> Result<()> {
    let Job { plan, pool, .. } = job;
    let schema = plan.kind.schema();
    let mut outs = Vec::new();
    for &format in &plan.formats {
        outs.push(open(job, format, shard, encoder(format, plan.kind, &schema)?));
    }
    let rows = plan.shard(shard);
    let (kind, seed, step) = (plan.kind, plan.seed, plan.kind.block_rows());
    let blocks = stream::iter(rows.clone().step_by(usize::try_from(step).unwrap_or(1)))
        .map(|start| {
            let len = usize::try_from(step.min(rows.end - start)).unwrap_or(0);
            pool.run(move || kind.rows(seed, start, len))
        })
        .buffered(job.ahead);
    let mut blocks = std::pin::pin!(blocks);
    while let Some(rows) = blocks.next().await {
        let rows = Arc::new(rows??);
        for out in &mut outs {
            encode(job, out, Some(Arc::clone(&rows))).await?;
        }
        job.counters.rows.fetch_add(rows.num_rows() as u64, Ordering::Relaxed);
    }
    for mut out in outs {
        encode(job, &mut out, None).await?;
        if let Some(mut file) = out.file {
            file.shutdown().await.map_err(|e| io(job.at, &e))?;
        }
    }
    Ok(())
}

fn open(job: Job<'_>, format: Format, shard: u64, encoder: Box<dyn Encoder>) -> Out {
    let folder = if job.plan.formats.len() > 1 { format!("{}/", format.name()) } else { String::new() };
    let name = format!("{folder}part-{shard:05}-of-{:05}.{}", job.plan.shards(), format.extension());
    let file = (format != Format::Files).then(|| {
        BufWriter::with_capacity(Arc::clone(&job.at.store), below(job.at, &name), 8 << 20)
            .with_max_concurrency(4)
    });
    Out { folder, encoder, file }
}

/// Encodes rows (or the end) on the pool, and writes what comes out.
async fn encode(job: Job<'_>, out: &mut Out, rows: Option<Arc<arrow_array::RecordBatch>>) -> Result<()> {
    let mut encoder = std::mem::replace(&mut out.encoder, Box::new(Gone));
    let (encoder, made) = job
        .pool
        .run(move || {
            let mut made = Made::default();
            let result = match rows {
                Some(rows) => encoder.push(&rows, &mut made),
                None => encoder.finish(&mut made),
            };
            result.map(|()| (encoder, made))
        })
        .await??;
    out.encoder = encoder;
    if let Some(file) = &mut out.file
        && !made.bytes.is_empty()
    {
        job.counters.bytes.fetch_add(made.bytes.len() as u64, Ordering::Relaxed);
        file.put(Bytes::from(made.bytes)).await.map_err(|e| store_error(&job.at.url, e))?;
    }
    let folder = &out.folder;
    stream::iter(made.objects)
        .map(
            |(name, bytes)| async move { put(job.at, &format!("{folder}{name}"), bytes, job.counters).await },
        )
        .buffer_unordered(PUTS)
        .try_collect::<Vec<()>>()
        .await?;
    Ok(())
}

async fn put(at: &Location, name: &str, bytes: Vec<u8>, counters: &Counters) -> Result<()> {
    counters.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    at.store.put(&below(at, name), bytes.into()).await.map_err(|e| store_error(&at.url, e))?;
    Ok(())
}

fn below(at: &Location, name: &str) -> Path {
    name.split('/').fold(at.path.clone(), |path, part| path.join(part))
}

fn io(at: &Location, e: &std::io::Error) -> Error {
    Error::unavailable(format!("{}: {e}", at.url))
}

/// Stands in while the encoder is on the pool.
struct Gone;

impl Encoder for Gone {
    fn push(&mut self, _: &arrow_array::RecordBatch, _: &mut Made) -> Result<()> {
        Err(Error::internal("an encoder is used while it works"))
    }

    fn finish(&mut self, _: &mut Made) -> Result<()> {
        Err(Error::internal("an encoder is used while it works"))
    }
}
