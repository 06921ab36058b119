//! Probes: what storing some rows would cost, found out by doing it with a few of them.

mod store;

use std::sync::Arc;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use caju_runtime::thread_cpu_time;
use caju_types::{Error, Fingerprint, Result, SplitKey};
use futures::future::try_join_all;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::Cache;
use crate::record::PartMeta;
use crate::write::{IN_FLIGHT, encode_all};
use caju_autocache::{Encoding, Format};
use store::Moved;

/// How old a probe's object is that nobody is going to remove any more: its process has ended. Probes take seconds.
const FORSAKEN: Duration = Duration::from_secs(600);
/// How often each thread decodes a probe; the middle time counts, the lesser one of two. A few rows are decoded in
/// microseconds, and the first time takes several times as long as the second.
const DECODES: usize = 2;
/// Bytes that are written before each of them: rows come from the store and not from a core's cache.
const FORGET: usize = 3 << 20;
/// The most copies of a probe that are written side by side.
const MOST_WRITES: usize = 8;

/// What some rows cost in one encoding.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// The encoding.
    pub encoding: Encoding,
    /// Rows that were tried.
    pub rows: u64,
    /// Bytes that they take, without the file's head and end.
    pub bytes: u64,
    /// CPU seconds of encoding them.
    pub encode_cpu_s: f64,
    /// CPU seconds of decoding them as in every epoch: with their check, unless the store's files are mapped.
    pub decode_cpu_s: f64,
    /// CPU seconds of fetching a byte, which is a part of decoding; 0 where files are mapped.
    #[serde(default)]
    pub fetch_cpu_s_per_byte: f64,
    /// Bytes per second at which the store takes parts that several readers of splits write; 0 where that was not tried.
    pub write_bytes_per_s: f64,
    /// Bytes per second at which the store gave them, to several readers at once; 0 where that was not tried.
    pub read_bytes_per_s: f64,
    /// CPU seconds that the probe took in all: what it is held to account for.
    #[serde(default)]
    pub spent_cpu_s: f64,
    /// The same of the store: seconds for which its requests would have been all that the task makes. 0 where files are
    /// mapped.
    #[serde(default)]
    pub spent_store_s: f64,
}

/// The task that a probe is made for: it tries everything as that would do it.
#[derive(Debug, Clone, Copy)]
pub struct ProbeTask {
    /// Threads that decode at the same moment, one for each core at most: they share the memory's bandwidth.
    pub threads: usize,
    /// Splits that it reads at once.
    pub readers: usize,
    /// Whether the store is to be weighed, too: rows are then written and read by as many requests as the task would have
    /// under way. That moves many times their bytes, and a few probes of a task are enough.
    pub weighs: bool,
    /// CPU seconds that fetching a byte took an earlier probe: one that does not weigh the store then leaves it alone, unless
    /// its files are mapped.
    pub fetch_cpu_s_per_byte: Option<f64>,
}

impl ProbeTask {
    /// Copies that are written, and requests that read one, side by side: those that the task would have under way.
    fn requests(self) -> (usize, usize) {
        ((self.readers * IN_FLIGHT).clamp(1, MOST_WRITES), Cache::requests_at_once(self.readers))
    }
}

impl Cache {
    /// Encodes rows, writes them to the store under a name of their own, reads them back, decodes them on as many threads as
    /// the task has, and removes them; of a further one it may be known what the store's part in that is. A probe that a
    /// crash leaves behind is removed by [`Cache::forget_probes`] and by the collection.
    ///
    /// # Errors
    /// `InvalidArgument` if the rows cannot be stored in the encoding, and what the store says.
    pub async fn probe(
        self: &Arc<Self>,
        schema: &SchemaRef,
        rows: &[RecordBatch],
        encoding: Encoding,
        task: ProbeTask,
    ) -> Result<Probe> {
        let (schema, rows) = (Arc::clone(schema), rows.to_vec());
        let block = self.options.block_bytes;
        let count: u64 = rows.iter().map(|b| b.num_rows() as u64).sum();
        let encode = move || {
            let start = thread_cpu_time();
            let file = encode_all(&schema, &rows, encoding, block)?;
            let cpu = thread_cpu_time().saturating_sub(start);
            let empty: usize = encode_all(&schema, &[], encoding, block)?.iter().map(Bytes::len).sum();
            Ok::<_, Error>((file, cpu, empty))
        };
        let mut spent = Duration::ZERO;
        let (file, encode_cpu, empty) = blocking(&mut spent, encode).await?;
        let whole = file.iter().map(Bytes::len).sum::<usize>() as u64;
        let known = task.fetch_cpu_s_per_byte.filter(|_| !task.weighs && !self.maps());
        let Moved { fetched, mapped, fetch_cpu, store, write, read } = match known {
            Some(per_byte) => Moved::not_at_all(&file, per_byte * whole as f64),
            None => self.moved(&mut spent, file, task).await?,
        };
        let decode = move || decoded(&fetched, encoding, !mapped);
        let (decoded, decode_cpu) =
            side_by_side(&mut spent, task.threads.min(crate::cores()), decode).await?;
        if decoded != count {
            return Err(Error::data_loss(format!("a probe of {count} rows was read back as {decoded}")));
        }
        Ok(Probe {
            encoding,
            rows: count,
            bytes: whole.saturating_sub(empty as u64),
            encode_cpu_s: encode_cpu.as_secs_f64(),
            decode_cpu_s: (decode_cpu + fetch_cpu).as_secs_f64(),
            fetch_cpu_s_per_byte: fetch_cpu.as_secs_f64() / whole.max(1) as f64,
            write_bytes_per_s: write,
            read_bytes_per_s: read,
            spent_cpu_s: spent.as_secs_f64(),
            spent_store_s: store.as_secs_f64(),
        })
    }

    /// Removes the probes that processes left behind which ended in the middle of one: those older than any probe takes.
    ///
    /// # Errors
    /// What the store says.
    pub async fn forget_probes(&self) -> Result<usize> {
        let probes = self.root.layout.base().join("probes");
        let now = i64::try_from(self.root.clock.unix_time().as_millis()).unwrap_or(i64::MAX);
        let forsaken = i64::try_from(FORSAKEN.as_millis()).unwrap_or(i64::MAX);
        let mut gone = 0;
        for object in self.root.list(&probes).await? {
            if now.saturating_sub(object.modified_ms) > forsaken {
                self.root.delete(&object.path).await?;
                gone += 1;
            }
        }
        Ok(gone)
    }
}

/// Decodes a file several times: its rows, and the CPU time of each.
fn decoded(file: &Bytes, encoding: Encoding, check: bool) -> Result<(u64, Vec<Duration>)> {
    // Rows that are read live for a while: the next ones take memory that nobody had before, page by page.
    let (mut alive, mut times, mut other) = (Vec::new(), Vec::new(), vec![0u8; FORGET]);
    for i in 0..DECODES {
        other.fill(u8::try_from(i).unwrap_or(0));
        std::hint::black_box(&mut other);
        let start = thread_cpu_time();
        // A mapped file is checked once per process, not in every epoch.
        std::hint::black_box(check.then(|| xxh3_128(file)));
        // Nor is it validated more than once.
        alive.push(decode_all(file, encoding, !check && i > 0)?);
        times.push(thread_cpu_time().saturating_sub(start));
    }
    let rows = alive.pop().unwrap_or_default().iter().map(|b| b.num_rows() as u64).sum();
    Ok((rows, times))
}

/// Does the same work on so many threads at once: what it counts, and the middle of its times.
async fn side_by_side<W>(spent: &mut Duration, threads: usize, work: W) -> Result<(u64, Duration)>
where
    W: Fn() -> Result<(u64, Vec<Duration>)> + Send + Sync + Clone + 'static,
{
    let each = (0..threads.max(1)).map(|_| {
        let work = work.clone();
        async move {
            let mut spent = Duration::ZERO;
            let done = blocking(&mut spent, work).await;
            done.map(|done| (spent, done))
        }
    });
    let (mut count, mut times) = (0, Vec::new());
    for (cpu, (rows, each)) in try_join_all(each).await? {
        *spent += cpu;
        count = rows;
        times.extend(each);
    }
    times.sort_unstable();
    Ok((count, times.get(times.len().saturating_sub(1) / 2).copied().unwrap_or_default()))
}

/// Does work on a thread that may wait, and adds its CPU time.
async fn blocking<T: Send + 'static>(
    spent: &mut Duration,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let timed = move || {
        let start = thread_cpu_time();
        let done = work();
        (done, thread_cpu_time().saturating_sub(start))
    };
    let (done, cpu) = caju_runtime::blocking("a probe", timed).await?;
    *spent += cpu;
    done
}

/// Runs a future, and adds the CPU time of its polls.
async fn polled<F: Future>(spent: &mut Duration, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        let start = thread_cpu_time();
        let poll = future.as_mut().poll(cx);
        *spent += thread_cpu_time().saturating_sub(start);
        poll
    })
    .await
}

/// `validated`: these very bytes, which cannot change, were decoded before.
fn decode_all(file: &Bytes, encoding: Encoding, validated: bool) -> Result<Vec<RecordBatch>> {
    match encoding.format {
        Format::Arrow => crate::read::decode_arrow(&nameless(encoding), file.clone(), validated),
        Format::Parquet => {
            let failed = |e: String| Error::internal(format!("a probe cannot be decoded: {e}"));
            // Columns are put together from blocks.
            let file = Bytes::copy_from_slice(file);
            let builder =
                ParquetRecordBatchReaderBuilder::try_new(file).map_err(|e| failed(e.to_string()))?;
            let reader = builder.build().map_err(|e| failed(e.to_string()))?;
            reader.map(|b| b.map_err(|e| failed(e.to_string()))).collect()
        }
    }
}

/// The record that a probe would have if it were a part: for the messages of its decoder.
fn nameless(encoding: Encoding) -> Arc<PartMeta> {
    Arc::new(PartMeta {
        fingerprint: Fingerprint(0),
        split: SplitKey(0),
        path: "probe".into(),
        attempt: String::new(),
        generation: 0,
        writer: String::new(),
        encoding,
        rows: 0,
        bytes: 0,
        checksum: String::new(),
        blocks: Vec::new(),
        chunks: Vec::new(),
        schema_hash: String::new(),
        skipped: 0,
        source_bytes: 0,
        compute_cpu_us: 0,
        created_unix_ms: 0,
    })
}
