//! Writing a part: encode, upload while encoding, commit.

mod encode;
mod sink;
mod upload;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use caju_runtime::{Tasks, blocking, log_failure};
use caju_types::{Error, Fingerprint, Result, SplitKey};

use crate::Cache;
use crate::layout::Generation;
use crate::manifest::SnapshotDescription;
use crate::record::{PartFacts, PartMeta, microseconds, milliseconds, seal};
use crate::schema::schema_hash;
use crate::snapshot::{Held, SnapshotState};
use crate::space::Newcomer;
use caju_autocache::{Compression, Encoding, Format};
use encode::Encoder;
pub(crate) use upload::IN_FLIGHT;
use upload::Upload;

/// What a record or a manifest takes beside what it says.
const ENVELOPE: u64 = 256;
/// Batches from this size on are compressed on a thread that may block.
const OFFLOAD: usize = 64 << 10;

/// A whole file with these rows, in pieces.
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

/// What came of finishing a part.
#[derive(Debug, Clone, PartialEq)]
pub enum Committed {
    /// The part counts from now on.
    Ours(Arc<PartMeta>),
    /// Somebody else's part of the same split counts already; our bytes were deleted.
    Lost(Arc<PartMeta>),
}

impl Committed {
    /// The part that counts.
    pub fn meta(&self) -> &Arc<PartMeta> {
        match self {
            Committed::Ours(m) | Committed::Lost(m) => m,
        }
    }
}

/// Writes one part. It counts only after [`PartWriter::finish`]; dropped before, it leaves nothing.
///
/// About three upload requests' worth of bytes are held in memory, whatever the part's size.
pub struct PartWriter {
    open: Option<Open>,
    schema: SchemaRef,
    encoding: Encoding,
    rows: u64,
    bytes: u64,
    compute_cpu_s: Option<f64>,
}

/// The right to write a part, and what goes with it.
pub(crate) struct Writing {
    pub(crate) held: Held,
    pub(crate) generation: Generation,
    /// What the snapshot is, where no manifest says so yet.
    pub(crate) describe: Option<Arc<SnapshotDescription>>,
}

/// Everything that has to be given back when the writer ends.
struct Open {
    cache: Arc<Cache>,
    state: Arc<SnapshotState>,
    held: Held,
    generation: Generation,
    describe: Option<Arc<SnapshotDescription>>,
    /// Room that was taken for the part, its record, and what manifests will say of it.
    charged: u64,
    encoder: Option<Encoder>,
    upload: Upload,
    path: String,
    /// The commit was tried: whether it succeeded may be unknown, so the bytes have to stay.
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
        let Writing { held, generation, describe } = writing;
        let (of, split) = (state.of, held.split());
        let tags = tags(of, split, held.attempt());
        let encoder = Encoder::new(&schema, encoding, cache.options.block_bytes, tags)?;
        let path = cache.root.layout.part(of, split, held.attempt(), encoding.format);
        let relative = cache.root.layout.relative(&path).unwrap_or_default().to_string();
        let root = Arc::clone(&cache.root);
        let upload = Upload::new(root, cache.tasks.clone(), path, cache.options.part_buffer_bytes);
        let open = Open {
            cache,
            state,
            held,
            generation,
            describe,
            charged: 0,
            encoder: Some(encoder),
            upload,
            path: relative,
            committing: false,
        };
        Ok(Self { open: Some(open), schema, encoding, rows: 0, bytes: 0, compute_cpu_s: None })
    }

    /// Makes chunks of about this many bytes of rows, at least one row each, that can be read one by one: see
    /// [`ReadOptions::chunks`](crate::ReadOptions::chunks). To be called before the first row. A chunk is at most half as
    /// large as what is read at once ([`CacheOptions::max_block_bytes`](crate::CacheOptions::max_block_bytes)).
    pub fn set_chunk_bytes(&mut self, bytes: u64) {
        let Some(open) = &mut self.open else { return };
        let bytes = bytes.min(open.cache.options.max_block_bytes / 2);
        if let Some(encoder) = &mut open.encoder {
            encoder.set_chunk_bytes(usize::try_from(bytes).unwrap_or(usize::MAX));
        }
    }

    /// Whether what its rows are worth makes a difference: the cache has a budget.
    pub fn is_bounded(&self) -> bool {
        self.open.as_ref().is_some_and(|o| o.cache.space.is_bounded())
    }

    /// Says how many CPU seconds computing the rows took so far, those of the next [`PartWriter::write`] included. Where
    /// room is short it decides for whom parts of other snapshots go; without it the part is taken for like the others
    /// of its snapshot.
    pub fn costs(&mut self, compute_cpu_s: f64) {
        self.compute_cpu_s = Some(compute_cpu_s);
    }

    /// Adds rows.
    ///
    /// # Errors
    /// `InvalidArgument` for rows of another schema, `ResourceExhausted` over the budget or on a full disk,
    /// and what the store says. After an error only [`PartWriter::abort`] is of use.
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
        let compute =
            self.encoding.format == Format::Parquet || self.encoding.compression != Compression::None;
        let ready = if compute && batch.get_array_memory_size() >= OFFLOAD {
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
            open.cache.failed_to_put(e);
        }
        pushed
    }

    async fn upload_all(&mut self, ready: Vec<Bytes>) -> Result<()> {
        let Some(open) = &mut self.open else { return Err(ended()) };
        for block in ready {
            let bytes = block.len() as u64;
            self.bytes += bytes;
            let cost = self.compute_cpu_s.map(|cpu_s| (cpu_s, self.bytes));
            let newcomer = Newcomer { of: open.state.of, cost };
            open.cache.space.charge(&open.cache, bytes, newcomer, false).await?;
            open.charged += bytes;
            open.upload.push(block).await?;
        }
        Ok(())
    }

    /// Takes room for the part's record, and for what the manifests will say of it: two are kept.
    async fn charge_records(&mut self, meta: &PartMeta) -> Result<()> {
        let Some(open) = &mut self.open else { return Err(ended()) };
        if !open.cache.space.is_bounded() {
            return Ok(());
        }
        let description = match &open.describe {
            Some(describe) => seal(describe.as_ref())?.len() as u64 + ENVELOPE,
            None => 0,
        };
        let record = seal(meta)?.len() as u64 + ENVELOPE;
        let bytes = 3 * record + 2 * description;
        let newcomer = Newcomer { of: open.state.of, cost: Some((meta.compute_cpu_s(), meta.bytes)) };
        open.cache.space.charge(&open.cache, bytes, newcomer, true).await?;
        open.charged += bytes;
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

    /// Completes the part and makes it count, unless another one does already.
    ///
    /// # Errors
    /// As [`PartWriter::write`]; `Internal` if `facts` counts other rows than were written. Then nothing
    /// is left behind.
    pub async fn finish(mut self, facts: PartFacts) -> Result<Committed> {
        let result = self.complete(facts).await;
        match result {
            Ok(committed) => {
                if let Some(open) = self.open.take() {
                    // Carried through if the caller is dropped: a claim that stays would block its split.
                    let tasks = open.cache.tasks.clone();
                    let release = async move { open.held.release(&open.cache).await };
                    carry_through(&tasks, "giving a claim back", release).await;
                }
                Ok(committed)
            }
            Err(e) => {
                if let Some(open) = &self.open {
                    open.cache.failed_to_put(&e);
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
            split: open.held.split(),
            path: open.path.clone(),
            attempt: open.held.attempt().to_string(),
            generation: open.generation,
            writer: open.cache.leases.id().to_string(),
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
            created_unix_ms: milliseconds(open.cache.root.clock.unix_time()),
        };
        self.charge_records(&meta).await?;
        let Some(open) = &mut self.open else { return Err(ended()) };
        open.upload.finish().await?;
        if let Some(describe) = open.describe.take()
            && let Err(error) = open.state.describe(&open.cache, &describe).await
        {
            // A snapshot without a description is worth having.
            tracing::warn!(%error, "the manifest of a snapshot could not be written");
        }
        open.committing = true;
        let committed = open.state.commit(&open.cache, meta).await.inspect_err(|e| {
            // A refusal is an answer: the record is not there.
            open.committing = crate::retry::transient(e);
        })?;
        if let Committed::Lost(winner) = &committed {
            tracing::debug!(split = %winner.split, winner = winner.writer, "another part was faster");
            open.upload.abort().await;
            open.cache.space.release(open.charged);
        } else {
            open.cache.space.settle(open.charged);
        }
        Ok(committed)
    }

    /// Gives the part up: nothing of it stays.
    pub async fn abort(mut self) {
        if let Some(open) = self.open.take() {
            // Carried through if the caller is dropped meanwhile, as a task is that is stopped.
            let tasks = open.cache.tasks.clone();
            carry_through(&tasks, "giving a part up", give_up(open)).await;
        }
    }
}

impl Drop for PartWriter {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        // Without a runtime the collection finds what is left.
        if tokio::runtime::Handle::try_current().is_ok() {
            let tasks = open.cache.tasks.clone();
            tasks.background("giving a part up", log_failure, async move {
                give_up(open).await;
                Ok(())
            });
        }
    }
}

/// Does what is to be done though the caller is dropped meanwhile, as long as the cache is not closed.
async fn carry_through(tasks: &Tasks, name: &'static str, work: impl Future<Output = ()> + Send + 'static) {
    let token = tasks.token();
    let work = async move { token.run_until_cancelled_owned(work).await.unwrap_or_default() };
    tasks.spawn_graceful(name, work).await.unwrap_or_else(log_failure);
}

async fn give_up(mut open: Open) {
    // If the commit failed after all, the collection finds the part.
    if !open.committing {
        open.upload.abort().await;
        open.cache.space.release(open.charged);
    } else {
        // Its bytes may stay.
        open.cache.space.settle(open.charged);
    }
    open.held.release(&open.cache).await;
}

fn ended() -> Error {
    Error::internal("a part was written to after it had ended or failed")
}

/// What a part's file says about itself.
fn tags(of: Fingerprint, split: SplitKey, attempt: &str) -> Vec<(String, String)> {
    vec![
        (crate::TAG_VERSION.into(), crate::layout::VERSION.into()),
        (crate::TAG_FINGERPRINT.into(), of.to_string()),
        (crate::TAG_SPLIT.into(), split.to_string()),
        (crate::TAG_ATTEMPT.into(), attempt.into()),
    ]
}

async fn encoding<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    blocking("encoding a part", work).await
}
