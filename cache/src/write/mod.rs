//! Writing a part: encode, upload while encoding, commit.

mod encode;
mod sink;
mod upload;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use caju_runtime::{Tasks, blocking, log_failure};
use caju_types::{Error, Result};

use crate::admission::AdmissionRequest;
use crate::cache::Cache;
use crate::commit::Committed;
use crate::layout::Generation;
use crate::manifest::SnapshotDescription;
use crate::record::{PartFacts, PartMeta, microseconds, milliseconds, sealed_bytes};
use crate::schema::schema_hash;
use crate::state::{OwnClaim, SnapshotState};
use crate::tags;
use caju_autocache::{Compression, Encoding, Format};
use encode::Encoder;
pub(crate) use upload::UPLOADS_IN_FLIGHT;
use upload::Upload;

/// Bytes that a record or a manifest takes in addition to its content, at most.
const ENVELOPE_BYTES: u64 = 256;
/// Batches from this many bytes on are compressed on a thread that may block: compressing them would delay other tasks.
const MIN_OFFLOAD_BYTES: usize = 64 << 10;

/// Encodes rows as a whole file, in pieces.
pub(crate) fn encode_all(
    schema: &SchemaRef,
    rows: &[RecordBatch],
    encoding: Encoding,
    block_bytes: usize,
) -> Result<Vec<Bytes>> {
    let mut encoder = Encoder::new(schema, encoding, block_bytes, Vec::new())?;
    let mut file = Vec::new();
    for batch in rows {
        file.extend(encoder.write(batch)?);
    }
    file.extend(encoder.finish()?.ready);
    Ok(file)
}

/// Writes one part. The part counts only after [`PartWriter::finish`]. A writer that is dropped before leaves nothing.
///
/// A writer holds the bytes of about three upload requests in memory, whatever the part's size.
pub struct PartWriter {
    open: Option<Open>,
    schema: SchemaRef,
    encoding: Encoding,
    rows: u64,
    bytes: u64,
    compute_cpu_s: Option<f64>,
}

/// The right to write a part.
pub(crate) struct Writing {
    pub(crate) claim: OwnClaim,
    pub(crate) generation: Generation,
    /// The snapshot's description, where no manifest has it yet.
    pub(crate) describe: Option<Arc<SnapshotDescription>>,
}

/// What has to be released when the writer ends.
struct Open {
    cache: Arc<Cache>,
    state: Arc<SnapshotState>,
    claim: OwnClaim,
    generation: Generation,
    describe: Option<Arc<SnapshotDescription>>,
    /// Bytes that were reserved for the part, its record, and its entries in manifests.
    reserved: u64,
    encoder: Option<Encoder>,
    upload: Upload,
    path: String,
    /// The commit was begun. Whether it succeeded may be unknown, so the part's object has to stay.
    committing: bool,
}

impl std::fmt::Debug for PartWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartWriter")
            .field("encoding", &self.encoding)
            .field("rows", &self.rows)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl PartWriter {
    pub(crate) fn new(
        cache: Arc<Cache>,
        state: Arc<SnapshotState>,
        writing: Writing,
        schema: SchemaRef,
        encoding: Encoding,
    ) -> Result<Self> {
        let Writing { claim, generation, describe } = writing;
        let (ctx, of, split) = (&cache.ctx, state.of, claim.split());
        let entries = tags::identity(of, split, claim.attempt()).map(|(key, value)| (key.to_string(), value));
        let encoder = Encoder::new(&schema, encoding, ctx.options.block_bytes, entries.into())?;
        let path = ctx.root.layout.part(of, split, claim.attempt(), encoding.format);
        let relative = ctx.root.layout.relative(&path).unwrap_or_default().to_string();
        let upload =
            Upload::new(Arc::clone(&ctx.root), ctx.tasks.clone(), path, ctx.options.part_buffer_bytes);
        let open = Open {
            cache,
            state,
            claim,
            generation,
            describe,
            reserved: 0,
            encoder: Some(encoder),
            upload,
            path: relative,
            committing: false,
        };
        Ok(Self { open: Some(open), schema, encoding, rows: 0, bytes: 0, compute_cpu_s: None })
    }

    /// Writes chunks of about `bytes` bytes of rows, at least one row each, that can be read one by one: see
    /// [`ReadOptions::chunks`](crate::ReadOptions::chunks). It has to be called before the first row. A chunk is at most
    /// half as large as a block may be ([`CacheOptions::max_block_bytes`](crate::CacheOptions::max_block_bytes)).
    pub fn set_chunk_bytes(&mut self, bytes: u64) {
        let Some(open) = &mut self.open else { return };
        let bytes = bytes.min(open.cache.ctx.options.max_block_bytes / 2);
        if let Some(encoder) = &mut open.encoder {
            encoder.set_chunk_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
    }

    /// Whether the cache has a budget, so that the worth of the rows matters: see [`PartWriter::costs`].
    pub fn is_bounded(&self) -> bool {
        self.open.as_ref().is_some_and(|o| o.cache.ctx.budget.limit().is_some())
    }

    /// Sets the CPU seconds that computing the rows took so far, including those of the next [`PartWriter::write`]. Where
    /// the budget is short, they decide whether parts of other snapshots are evicted for this one. Without them the part
    /// is assumed to be worth as much as others of its snapshot.
    pub fn costs(&mut self, compute_cpu_s: f64) {
        self.compute_cpu_s = Some(compute_cpu_s);
    }

    /// Adds rows.
    ///
    /// # Errors
    /// `InvalidArgument` for rows of another schema, `ResourceExhausted` over the budget or on a full disk,
    /// and the errors of the store. After an error only [`PartWriter::abort`] may be called.
    pub async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.schema_ref().fields() != self.schema.fields() {
            return Err(Error::invalid(format!(
                "a batch of {} was given to a part of {}",
                batch.schema_ref(),
                self.schema
            )));
        }
        let Some(open) = &mut self.open else { return Err(ended()) };
        let mut encoder = open.encoder.take().ok_or_else(ended)?;
        let is_expensive =
            self.encoding.format == Format::Parquet || self.encoding.compression != Compression::None;
        let ready = if is_expensive && batch.get_array_memory_size() >= MIN_OFFLOAD_BYTES {
            let batch = batch.clone();
            let work = move || {
                let ready = encoder.write(&batch);
                (encoder, ready)
            };
            let (back, ready) = encoding(work).await?;
            encoder = back;
            ready?
        } else {
            encoder.write(batch)?
        };
        open.encoder = Some(encoder);
        self.rows += batch.num_rows() as u64;
        self.push(ready).await
    }

    async fn push(&mut self, ready: Vec<Bytes>) -> Result<()> {
        let pushed = self.upload_all(ready).await;
        if let (Err(e), Some(open)) = (&pushed, &self.open) {
            open.cache.ctx.record_put_failure(e);
        }
        pushed
    }

    async fn upload_all(&mut self, ready: Vec<Bytes>) -> Result<()> {
        let Some(open) = &mut self.open else { return Err(ended()) };
        for block in ready {
            let bytes = block.len() as u64;
            self.bytes += bytes;
            let cost = self.compute_cpu_s.map(|cpu_s| (cpu_s, self.bytes));
            let newcomer = AdmissionRequest { of: open.state.of, cost };
            open.cache.admission.reserve(bytes, newcomer, false).await?;
            open.reserved += bytes;
            open.upload.push(block).await?;
        }
        Ok(())
    }

    /// Reserves bytes for the part's record, and for its entries in the two manifests that are kept.
    async fn reserve_records(&mut self, meta: &PartMeta) -> Result<()> {
        let Some(open) = &mut self.open else { return Err(ended()) };
        if open.cache.ctx.budget.limit().is_none() {
            return Ok(());
        }
        let description = match &open.describe {
            Some(describe) => sealed_bytes(describe.as_ref())? + ENVELOPE_BYTES,
            None => 0,
        };
        let record = sealed_bytes(meta)? + ENVELOPE_BYTES;
        let bytes = 3 * record + 2 * description;
        let newcomer = AdmissionRequest { of: open.state.of, cost: Some((meta.compute_cpu_s(), meta.bytes)) };
        open.cache.admission.reserve(bytes, newcomer, true).await?;
        open.reserved += bytes;
        Ok(())
    }

    /// Rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Encoded bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Completes the part and commits it, unless another part of the split counts already.
    ///
    /// # Errors
    /// As [`PartWriter::write`]; `Internal` if `facts` counts other rows than were written. Then nothing
    /// is left behind.
    pub async fn finish(mut self, facts: PartFacts) -> Result<Committed> {
        let result = self.complete(facts).await;
        match result {
            Ok(committed) => {
                if let Some(open) = self.open.take() {
                    // Finished even if the caller is dropped: a claim that stays would block its split.
                    let tasks = open.cache.ctx.tasks.clone();
                    let release = async move { open.claim.release(&open.cache.ctx).await };
                    run_to_end(&tasks, "releasing a claim", release).await;
                }
                Ok(committed)
            }
            Err(e) => {
                if let Some(open) = &self.open {
                    open.cache.ctx.record_put_failure(&e);
                }
                self.abort().await;
                Err(e)
            }
        }
    }

    async fn complete(&mut self, facts: PartFacts) -> Result<Committed> {
        if facts.rows != self.rows {
            return Err(Error::internal(format!(
                "a part was finished as {} rows, but {} were written",
                facts.rows, self.rows
            )));
        }
        self.compute_cpu_s = Some(facts.compute_cpu_s);
        let encoder = self.open.as_mut().and_then(|o| o.encoder.take()).ok_or_else(ended)?;
        let encoded = encoding(move || encoder.finish()).await??;
        self.push(encoded.ready).await?;
        let Some(open) = &self.open else { return Err(ended()) };
        let meta = PartMeta {
            fingerprint: open.state.of,
            split: open.claim.split(),
            path: open.path.clone(),
            attempt: open.claim.attempt().to_string(),
            generation: open.generation,
            writer: open.cache.ctx.leases.id().to_string(),
            encoding: self.encoding,
            rows: self.rows,
            bytes: self.bytes,
            checksum: format!("{:032x}", encoded.checksum),
            blocks: encoded.blocks,
            chunks: encoded.chunks,
            schema_hash: schema_hash(&self.schema),
            skipped: facts.skipped,
            source_bytes: facts.source_bytes,
            compute_cpu_us: microseconds(facts.compute_cpu_s),
            created_unix_ms: milliseconds(open.cache.ctx.root.clock.unix_time()),
        };
        self.reserve_records(&meta).await?;
        let Some(open) = &mut self.open else { return Err(ended()) };
        open.upload.finish().await?;
        if let Some(describe) = open.describe.take()
            && let Err(error) = open.state.describe(&open.cache.ctx, &describe).await
        {
            // A snapshot without a description can be used all the same.
            tracing::warn!(%error, "the manifest of a snapshot could not be written");
        }
        open.committing = true;
        let committed = open.state.commit(&open.cache.ctx, meta).await.inspect_err(|e| {
            // After a refusal the record certainly does not exist.
            open.committing = crate::retry::is_transient(e);
        })?;
        if let Committed::Lost(winner) = &committed {
            tracing::debug!(split = %winner.split, winner = winner.writer, "another writer committed the split first");
            open.upload.abort().await;
            open.cache.ctx.budget.cancel(open.reserved);
        } else {
            open.cache.ctx.budget.commit(open.reserved);
        }
        Ok(committed)
    }

    /// Abandons the part, and deletes what was written of it.
    pub async fn abort(mut self) {
        if let Some(open) = self.open.take() {
            // Finished even if the caller is dropped in the meantime, as a stopped task is.
            let tasks = open.cache.ctx.tasks.clone();
            run_to_end(&tasks, "abandoning a part", abandon(open)).await;
        }
    }
}

impl Drop for PartWriter {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        // Without a runtime the object stays until it is collected.
        if tokio::runtime::Handle::try_current().is_ok() {
            let tasks = open.cache.ctx.tasks.clone();
            tasks.background("abandoning a part", log_failure, async move {
                abandon(open).await;
                Ok(())
            });
        }
    }
}

/// Runs work to its end even if the caller is dropped, as long as the cache is not closed.
async fn run_to_end(tasks: &Tasks, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
    let token = tasks.token();
    let work = async move { token.run_until_cancelled_owned(work).await.unwrap_or_default() };
    tasks.spawn_graceful(name, work).await.unwrap_or_else(log_failure);
}

async fn abandon(mut open: Open) {
    // If the commit failed after all, the part is collected later.
    if !open.committing {
        open.upload.abort().await;
        open.cache.ctx.budget.cancel(open.reserved);
    } else {
        // Its bytes may stay in the store.
        open.cache.ctx.budget.commit(open.reserved);
    }
    open.claim.release(&open.cache.ctx).await;
}

fn ended() -> Error {
    Error::internal("a part was written to after it had ended or failed")
}

async fn encoding<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    blocking("encoding a part", work).await
}
