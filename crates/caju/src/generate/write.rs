//! Shards in flight: rows are made on the CPU pool, encoded in order, and streamed to the store.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use caju_runtime::stores::{Location, store_error};
use caju_runtime::{CpuPool, Stores};
use caju_types::{Error, Result, did_you_mean};
use futures::{StreamExt, stream};
use object_store::ObjectStoreExt;
use object_store::buffered::BufWriter;
use object_store::path::Path;
use tokio::io::AsyncWriteExt;

use super::encode::{Encoder, Made, encoder};
use super::layout::{Layout, MARKER, Marker};
use super::{Counters, Format, Plan, Stop, room};

/// Small objects that are written at once, per shard.
const PUTS: usize = 8;

/// The most rows: their numbers are int64.
const MOST: u64 = i64::MAX.cast_unsigned();

/// Whether exactly this data was written there, to its end.
///
/// # Errors
/// What the store says, but not `NotFound`.
pub(crate) async fn is_complete(plan: &Plan, stores: &Stores) -> Result<bool> {
    let at = stores.resolve(&plan.out)?;
    room::is_new(&at)?;
    Ok(room::marker(&at).await?.is_some_and(|m| m.is_all_of(plan)))
}

/// Makes the data. Whatever ends the work early, what it wrote is removed again.
///
/// # Errors
/// `InvalidArgument` for a format or a count that does not fit, `AlreadyExists` for a folder that is not empty,
/// `Cancelled` after `stop`, and what the store says.
pub(crate) async fn write(
    plan: &Plan,
    stores: &Stores,
    pool: &CpuPool,
    counters: &Counters,
    stop: &Stop,
) -> Result<()> {
    check_formats(plan)?;
    check_count(plan)?;
    let at = stores.resolve(&plan.out)?;
    let new = room::is_new(&at)?;
    room::make_room(plan, &at).await?;
    let before = room::inner_folders(&at);
    let Err(error) = fill(plan, &at, pool, counters, stop).await else { return Ok(()) };
    if let Err(e) = room::clear(&Layout::of(plan), &before, &at).await {
        let text =
            format!("{}; what was written stays there ({}): see --overwrite", error.message(), e.message());
        return Err(Error::new(error.kind(), text));
    }
    if let Some(local) = at.local.filter(|_| new) {
        drop(std::fs::remove_dir(local));
    }
    Err(error)
}

/// Writes the note, the data, and in the note that the data is complete.
async fn fill(plan: &Plan, at: &Location, pool: &CpuPool, counters: &Counters, stop: &Stop) -> Result<()> {
    put(at, MARKER, Marker::of(plan, false).bytes()?, counters).await?;
    let shards = plan.shards();
    let width = usize::try_from(shards).unwrap_or(usize::MAX).min(pool.threads()).max(1);
    // With fewer shards than threads, each shard makes more blocks at once.
    let ahead = (2 * pool.threads()).div_ceil(width);
    let job = Job { plan, at, pool, counters, stop, ahead };
    // A shard that fails stops the others, and they end in order: an upload that is just dropped would stay begun.
    let begun = stream::iter(0..shards).take_while(|_| std::future::ready(!stop.is_set()));
    let mut running = begun.map(|shard| write_shard(job, shard)).buffer_unordered(width);
    let mut failed = None;
    while let Some(done) = running.next().await {
        if let Err(e) = done {
            stop.set();
            failed.get_or_insert(e);
        }
    }
    failed.map_or(Ok(()), Err)?;
    stop.check(at)?;
    put(at, MARKER, Marker::of(plan, true).bytes()?, counters).await
}

fn check_count(plan: &Plan) -> Result<()> {
    if plan.count > MOST {
        return Err(Error::invalid(format!(
            "--count {}: rows are numbered by int64; ask for at most {MOST}",
            plan.count
        )));
    }
    let mute = plan.formats.iter().find(|f| !f.keeps_columns());
    match mute.filter(|_| plan.count == 0) {
        Some(format) => Err(Error::invalid(format!(
            "--count 0: {} files without rows cannot say which columns they have, so nothing could read them; use {}",
            format.name(),
            Format::of(plan.kind)
                .iter()
                .filter(|f| f.keeps_columns())
                .map(|f| f.name())
                .collect::<Vec<_>>()
                .join(" or ")
        ))),
        None => Ok(()),
    }
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

#[derive(Clone, Copy)]
struct Job<'a> {
    plan: &'a Plan,
    at: &'a Location,
    pool: &'a CpuPool,
    counters: &'a Counters,
    stop: &'a Stop,
    ahead: usize,
}

/// A shard's file in one format.
struct Out {
    folder: String,
    encoder: Box<dyn Encoder>,
    file: Option<BufWriter>,
}

async fn write_shard(job: Job<'_>, shard: u64) -> Result<()> {
    let mut outs = open_all(job, shard)?;
    if let Err(e) = fill_shard(job, shard, &mut outs).await {
        for file in outs.iter_mut().filter_map(|out| out.file.as_mut()) {
            // The error that led here is the one to tell of.
            drop(file.abort().await);
        }
        return Err(e);
    }
    let mut done = Ok(());
    for mut file in outs.into_iter().filter_map(|out| out.file) {
        done = match done {
            Ok(()) => file.shutdown().await.map_err(|e| io(job.at, &e)),
            Err(e) => {
                drop(file.abort().await);
                Err(e)
            }
        };
    }
    done
}

fn open_all(job: Job<'_>, shard: u64) -> Result<Vec<Out>> {
    let (kind, schema) = (job.plan.kind, job.plan.kind.schema());
    let formats = job.plan.formats.iter();
    formats.map(|&f| Ok(open(job, f, shard, encoder(f, kind, &schema)?))).collect()
}

async fn fill_shard(job: Job<'_>, shard: u64, outs: &mut [Out]) -> Result<()> {
    let Job { plan, pool, .. } = job;
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
        for out in &mut *outs {
            job.stop.check(job.at)?;
            encode(job, out, Some(Arc::clone(&rows))).await?;
        }
        job.counters.rows.fetch_add(rows.num_rows() as u64, Ordering::Relaxed);
    }
    for out in outs {
        encode(job, out, None).await?;
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
    let puts = stream::iter(made.objects).map(|(name, bytes)| async move {
        put(job.at, &format!("{folder}{name}"), bytes, job.counters).await
    });
    // All of them, also after a failure: none may come later than the removal of what was written.
    puts.buffer_unordered(PUTS).collect::<Vec<_>>().await.into_iter().collect()
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
