//! Writes a set of files: rows are generated on the CPU pool, encoded in order, and streamed to the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use caju_runtime::stores::{Location, store_error};
use caju_runtime::{CpuPool, Stores};
use caju_types::{Error, Result, did_you_mean};
use futures::{StreamExt, stream};
use object_store::ObjectStoreExt;
use object_store::buffered::BufWriter;
use object_store::path::Path;
use tokio::io::AsyncWriteExt;

use crate::encode::{Encoded, Encoder, encoder};
use crate::layout::{Layout, MARKER, Marker};
use crate::{Format, SampleSet, folder};

/// Small objects in flight per shard, in the format of one file per image.
const CONCURRENT_PUTS: usize = 8;

/// The largest number of rows: the `id` column is int64.
const MAX_ROWS: u64 = i64::MAX.cast_unsigned();

/// How far [`write()`] is. Shared with the code that displays it.
#[derive(Debug, Default)]
pub struct WriteProgress {
    rows: AtomicU64,
    bytes: AtomicU64,
}

impl WriteProgress {
    /// Rows generated and bytes written.
    pub fn get(&self) -> (u64, u64) {
        (self.rows.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// Stops [`write()`], which then aborts its uploads and removes what it wrote.
#[derive(Debug, Default)]
pub struct StopFlag(AtomicBool);

impl StopFlag {
    /// Asks for the stop.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn check(&self, at: &Location) -> Result<()> {
        if self.is_set() {
            return Err(Error::cancelled(format!("stopped; nothing that it wrote is left in {}", at.url)));
        }
        Ok(())
    }
}

/// Whether the folder of the set contains exactly these rows, completely.
///
/// # Errors
/// `InvalidArgument` if the path of the folder is a file, and the errors of the store except `NotFound`.
pub async fn is_complete(set: &SampleSet, stores: &Stores) -> Result<bool> {
    let at = stores.resolve(&set.out)?;
    folder::is_absent(&at)?;
    Ok(folder::read_marker(&at).await?.is_some_and(|m| m.is_all_of(set)))
}

/// Generates the files. When an error or `stop` ends the work early, what it wrote is removed again.
///
/// # Errors
/// `InvalidArgument` for a format or a count that does not fit, `AlreadyExists` for a folder that is not empty,
/// `Cancelled` after `stop`, and the errors of the store.
pub async fn write(
    set: &SampleSet,
    stores: &Stores,
    pool: &CpuPool,
    progress: &WriteProgress,
    stop: &StopFlag,
) -> Result<()> {
    check_formats(set)?;
    check_count(set)?;
    let at = stores.resolve(&set.out)?;
    let absent = folder::is_absent(&at)?;
    folder::prepare(set, &at).await?;
    let before = folder::inner_folders(&at);
    let Err(error) = fill(set, &at, pool, progress, stop).await else { return Ok(()) };
    if let Err(e) = folder::remove(&Layout::of(set), &before, &at).await {
        let text =
            format!("{}; what was written stays there ({}): see --overwrite", error.message(), e.message());
        return Err(Error::new(error.kind(), text));
    }
    if let Some(local) = at.local.filter(|_| absent) {
        drop(std::fs::remove_dir(local));
    }
    Err(error)
}

/// Writes the marker, the data, and the marker again when the data is complete.
async fn fill(
    set: &SampleSet,
    at: &Location,
    pool: &CpuPool,
    progress: &WriteProgress,
    stop: &StopFlag,
) -> Result<()> {
    put(at, MARKER, Marker::of(set, false).bytes()?, progress).await?;
    let shards = set.shards();
    let concurrent = usize::try_from(shards).unwrap_or(usize::MAX).min(pool.threads()).max(1);
    // With fewer shards than threads, each shard generates more blocks concurrently.
    let blocks_in_flight = (2 * pool.threads()).div_ceil(concurrent);
    let context = Context { set, at, pool, progress, stop, blocks_in_flight };
    // A shard that fails stops the others. Each aborts its uploads: a dropped upload would stay open in the store.
    let started = stream::iter(0..shards).take_while(|_| std::future::ready(!stop.is_set()));
    let mut running = started.map(|shard| write_shard(context, shard)).buffer_unordered(concurrent);
    let mut failed = None;
    while let Some(done) = running.next().await {
        if let Err(e) = done {
            stop.set();
            failed.get_or_insert(e);
        }
    }
    failed.map_or(Ok(()), Err)?;
    stop.check(at)?;
    put(at, MARKER, Marker::of(set, true).bytes()?, progress).await
}

fn check_count(set: &SampleSet) -> Result<()> {
    if set.count > MAX_ROWS {
        return Err(Error::invalid(format!(
            "--count {}: rows are numbered by int64; ask for at most {MAX_ROWS}",
            set.count
        )));
    }
    let without_columns = set.formats.iter().find(|f| !f.keeps_columns());
    match without_columns.filter(|_| set.count == 0) {
        Some(format) => Err(Error::invalid(format!(
            "--count 0: {} files without rows cannot say which columns they have, so nothing could read them; use {}",
            format.name(),
            Format::of(set.kind)
                .iter()
                .filter(|f| f.keeps_columns())
                .map(|f| f.name())
                .collect::<Vec<_>>()
                .join(" or ")
        ))),
        None => Ok(()),
    }
}

fn check_formats(set: &SampleSet) -> Result<()> {
    let known = Format::of(set.kind);
    for format in &set.formats {
        if !known.contains(format) {
            let names: Vec<_> = known.iter().map(|f| f.name()).collect();
            let near = did_you_mean(format.name(), &names);
            return Err(Error::invalid(format!(
                "--format {}: {} cannot be written as {0}; use one of {}{near}",
                format.name(),
                set.kind.name(),
                names.join(", ")
            )));
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Context<'a> {
    set: &'a SampleSet,
    at: &'a Location,
    pool: &'a CpuPool,
    progress: &'a WriteProgress,
    stop: &'a StopFlag,
    /// Blocks of rows that one shard generates concurrently.
    blocks_in_flight: usize,
}

/// A shard's file in one format.
struct Out {
    folder: String,
    encoder: Box<dyn Encoder>,
    file: Option<BufWriter>,
}

async fn write_shard(context: Context<'_>, shard: u64) -> Result<()> {
    let mut outs = open_all(context, shard)?;
    if let Err(e) = fill_shard(context, shard, &mut outs).await {
        for file in outs.iter_mut().filter_map(|out| out.file.as_mut()) {
            // The first error is the one to report.
            drop(file.abort().await);
        }
        return Err(e);
    }
    let mut done = Ok(());
    for mut file in outs.into_iter().filter_map(|out| out.file) {
        done = match done {
            Ok(()) => file.shutdown().await.map_err(|e| io(context.at, &e)),
            Err(e) => {
                drop(file.abort().await);
                Err(e)
            }
        };
    }
    done
}

fn open_all(context: Context<'_>, shard: u64) -> Result<Vec<Out>> {
    let (kind, schema) = (context.set.kind, context.set.kind.schema());
    let formats = context.set.formats.iter();
    formats.map(|&f| Ok(open(context, f, shard, encoder(f, kind, &schema)?))).collect()
}

async fn fill_shard(context: Context<'_>, shard: u64, outs: &mut [Out]) -> Result<()> {
    let Context { set, pool, .. } = context;
    let rows = set.shard(shard);
    let (kind, seed, step) = (set.kind, set.seed, set.kind.block_rows());
    let blocks = stream::iter(rows.clone().step_by(usize::try_from(step).unwrap_or(1)))
        .map(|start| {
            let len = usize::try_from(step.min(rows.end - start)).unwrap_or(0);
            pool.run(move || kind.rows(seed, start, len))
        })
        .buffered(context.blocks_in_flight);
    let mut blocks = std::pin::pin!(blocks);
    while let Some(rows) = blocks.next().await {
        let rows = Arc::new(rows??);
        for out in &mut *outs {
            context.stop.check(context.at)?;
            encode(context, out, Some(Arc::clone(&rows))).await?;
        }
        context.progress.rows.fetch_add(rows.num_rows() as u64, Ordering::Relaxed);
    }
    for out in outs {
        encode(context, out, None).await?;
    }
    Ok(())
}

fn open(context: Context<'_>, format: Format, shard: u64, encoder: Box<dyn Encoder>) -> Out {
    let folder = if context.set.formats.len() > 1 { format!("{}/", format.name()) } else { String::new() };
    let name = format!("{folder}part-{shard:05}-of-{:05}.{}", context.set.shards(), format.extension());
    let file = (format != Format::Files).then(|| {
        BufWriter::with_capacity(Arc::clone(&context.at.store), below(context.at, &name), 8 << 20)
            .with_max_concurrency(4)
    });
    Out { folder, encoder, file }
}

/// Encodes rows, or the end of the shard, on the pool, and writes the output.
async fn encode(
    context: Context<'_>,
    out: &mut Out,
    rows: Option<Arc<arrow_array::RecordBatch>>,
) -> Result<()> {
    let mut encoder = std::mem::replace(&mut out.encoder, Box::new(Absent));
    let (encoder, encoded) = context
        .pool
        .run(move || {
            let mut encoded = Encoded::default();
            let result = match rows {
                Some(rows) => encoder.push(&rows, &mut encoded),
                None => encoder.finish(&mut encoded),
            };
            result.map(|()| (encoder, encoded))
        })
        .await??;
    out.encoder = encoder;
    if let Some(file) = &mut out.file
        && !encoded.bytes.is_empty()
    {
        context.progress.bytes.fetch_add(encoded.bytes.len() as u64, Ordering::Relaxed);
        file.put(Bytes::from(encoded.bytes)).await.map_err(|e| store_error(&context.at.url, e))?;
    }
    let folder = &out.folder;
    let puts = stream::iter(encoded.objects).map(|(name, bytes)| async move {
        put(context.at, &format!("{folder}{name}"), bytes, context.progress).await
    });
    // All of them are awaited, also after a failure: none may arrive after the removal of what was written.
    puts.buffer_unordered(CONCURRENT_PUTS).collect::<Vec<_>>().await.into_iter().collect()
}

async fn put(at: &Location, name: &str, bytes: Vec<u8>, progress: &WriteProgress) -> Result<()> {
    progress.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    at.store.put(&below(at, name), bytes.into()).await.map_err(|e| store_error(&at.url, e))?;
    Ok(())
}

fn below(at: &Location, name: &str) -> Path {
    name.split('/').fold(at.path.clone(), |path, part| path.join(part))
}

fn io(at: &Location, e: &std::io::Error) -> Error {
    Error::unavailable(format!("{}: {e}", at.url))
}

/// Takes the place of an encoder that is on the pool.
struct Absent;

impl Encoder for Absent {
    fn push(&mut self, _: &arrow_array::RecordBatch, _: &mut Encoded) -> Result<()> {
        Err(Error::internal("an encoder was used while it was on the CPU pool"))
    }

    fn finish(&mut self, _: &mut Encoded) -> Result<()> {
        Err(Error::internal("an encoder was used while it was on the CPU pool"))
    }
}
