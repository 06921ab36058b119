//! Probes: what storing some rows would cost, found out by doing it with a few of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use caju_runtime::{Tasks, thread_cpu_time};
use caju_types::{Error, Fingerprint, Result, SplitKey};
use futures::future::{join_all, try_join_all};
use object_store::path::Path;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::{Deserialize, Serialize};
use tokio_util::task::AbortOnDropHandle;
use xxhash_rust::xxh3::xxh3_128;

use crate::Cache;
use crate::encoding::{Encoding, Format};
use crate::mmap::Map;
use crate::record::PartMeta;
use crate::store::Root;
use crate::write::{IN_FLIGHT, encode_all};

/// How old a probe's object is that nobody is going to remove any more: its process has ended. Probes take seconds.
const FORSAKEN: Duration = Duration::from_secs(600);
/// How often each thread decodes a probe; the middle time counts, the lesser one of two. A few rows are decoded in
/// microseconds, and the first time takes several times as long as the second.
const DECODES: usize = 2;
/// Bytes that are written before each of them: rows come from the store and not from a core's cache.
const FORGET: usize = 3 << 20;
/// The most copies of a probe that are written side by side.
const MOST_WRITES: usize = 8;
/// A byte of each page is looked at, so that it is there.
const PAGE: usize = 4096;

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
    /// under way. That moves many times their bytes, and a few in a round of probes are enough.
    pub weighs: bool,
}

impl ProbeTask {
    /// Copies that are written, and requests that read one, side by side: those that the task would have under way.
    fn requests(self) -> (usize, usize) {
        ((self.readers * IN_FLIGHT).clamp(1, MOST_WRITES), Cache::requests_at_once(self.readers))
    }
}

impl Cache {
    /// Encodes rows, writes them to the store under a name of their own, reads them back, decodes them on as many threads as
    /// the task has, and removes them. A probe that a crash leaves behind is removed
    /// by [`Cache::forget_probes`] and by the collection.
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
        let Moved { fetched, mapped, fetch_cpu, store, write, read } =
            self.moved(&mut spent, file, task).await?;
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

impl Cache {
    /// Writes a file to the store, reads it back and removes it.
    async fn moved(
        self: &Arc<Self>,
        spent: &mut Duration,
        file: Vec<Bytes>,
        task: ProbeTask,
    ) -> Result<Moved> {
        let bytes = file.iter().map(Bytes::len).sum::<usize>() as u64;
        let name = || self.root.layout.probe(&self.root.unique("probe"));
        let (all_writes, all_reads) = task.requests();
        let (writes, requests) = if task.weighs { (all_writes, all_reads) } else { (1, 1) };
        let paths: Vec<Path> = (0..writes).map(|_| name()).collect();
        let written = Written::new(self, paths.clone());
        let first = paths.first().cloned().unwrap_or_else(name);
        let moved = async {
            let (mut puts, mut gets) = (Requests::of(all_writes), Requests::of(all_reads));
            let write = polled(spent, self.written(&mut puts, &paths, &file, task.weighs)).await?;
            drop(file);
            let local = self.root.local_path(&first).filter(|_| self.options.mmap);
            let (mapped, before) = (local.is_some(), *spent);
            let (fetched, read) = match local {
                Some(file) => {
                    let readers = if task.weighs { task.readers.max(1) } else { 1 };
                    blocking(spent, move || read_mapped(&file, bytes, readers)).await?
                }
                None => self.read_ranged(spent, &mut gets, &first, bytes, requests).await?,
            };
            // What fetching takes is a part of reading; pages are mapped by the decoding.
            let each = (*spent - before) / u32::try_from(requests).unwrap_or(u32::MAX);
            let fetch_cpu = if mapped { Duration::ZERO } else { each };
            let (write, read) = if task.weighs { (write, read) } else { (0.0, 0.0) };
            let store = if mapped { Duration::ZERO } else { puts.took + gets.took };
            Ok(Moved { fetched, mapped, fetch_cpu, store, write, read })
        };
        let moved = moved.await;
        written.remove().await?;
        moved
    }

    /// Writes copies of a file side by side; the bandwidth that they have together, as parts would have it, which are
    /// written by larger requests.
    async fn written(
        &self,
        requests: &mut Requests,
        paths: &[Path],
        file: &[Bytes],
        weighs: bool,
    ) -> Result<f64> {
        let start = Instant::now();
        if let Some(first) = paths.first().filter(|_| weighs) {
            self.root.put_pieces(first, &[Bytes::from_static(b"?")]).await?;
        }
        let latency = start.elapsed();
        let start = Instant::now();
        try_join_all(paths.iter().map(|path| self.root.put_pieces(path, file))).await?;
        let took = start.elapsed();
        requests.count(1, latency);
        requests.count(paths.len(), took);
        let (bytes, full) = (file.iter().map(Bytes::len).sum::<usize>(), self.options.part_buffer_bytes);
        Ok(at_full_size(bytes as u64, took, latency, full as u64) * paths.len() as f64)
    }

    /// The bytes of an object, and the bandwidth that so many requests at once have together. Parts are read by requests that
    /// are larger than a probe, so that waiting for the answer's first byte counts less for them. As many ask for that byte
    /// before: on a busy worker every answer waits for a core, which would pass for a slow store.
    async fn read_ranged(
        self: &Arc<Self>,
        spent: &mut Duration,
        requests: &mut Requests,
        path: &Path,
        bytes: u64,
        at_once: usize,
    ) -> Result<(Bytes, f64)> {
        let mut latency = Duration::ZERO;
        if at_once > 1 {
            let first = self.gets(spent, path, 1.min(bytes), at_once).await?;
            requests.count(at_once, first.slowest());
            latency = first.usual();
        }
        let got = self.gets(spent, path, bytes, at_once).await?;
        requests.count(at_once, got.slowest());
        let took = got.usual();
        let each = at_full_size(bytes, took, latency.min(took), self.options.read_bytes);
        Ok((got.bytes, each * at_once as f64))
    }

    /// The beginning of an object, by so many requests at once.
    async fn gets(
        self: &Arc<Self>,
        spent: &mut Duration,
        path: &Path,
        bytes: u64,
        at_once: usize,
    ) -> Result<Got> {
        // On any thread, as those for parts are.
        let get = |_| {
            let (me, path) = (Arc::clone(self), path.clone());
            let get = async move {
                let (mut cpu, start) = (Duration::ZERO, Instant::now());
                let got = polled(&mut cpu, me.root.get_range(&path, 0..bytes)).await;
                got.map(|got| (got, cpu, start.elapsed()))
            };
            AbortOnDropHandle::new(self.tasks.spawn(get))
        };
        let closed = || Error::cancelled("the cache was closed while a probe was read");
        let mut all = Got { bytes: Bytes::new(), times: Vec::with_capacity(at_once) };
        for got in join_all((0..at_once).map(get)).await {
            let (got, cpu, took) =
                got.map_err(|e| Error::internal(format!("a probe: {e}")))?.ok_or_else(closed)??;
            *spent += cpu;
            all.bytes = got;
            all.times.push(took);
        }
        all.times.sort_unstable();
        Ok(all)
    }
}

/// What requests at once gave, and how long each took, the fastest first.
struct Got {
    bytes: Bytes,
    times: Vec<Duration>,
}

impl Got {
    fn slowest(&self) -> Duration {
        self.times.last().copied().unwrap_or_default()
    }

    /// How long three of four took at most: where requests share a bandwidth all take as long, and single ones that are late
    /// are so by accident.
    fn usual(&self) -> Duration {
        self.times.get(self.times.len() * 3 / 4).or(self.times.last()).copied().unwrap_or_default()
    }
}

/// Objects of a probe, which go with it: also if the task that it is made for ends while they are on their way.
struct Written {
    root: Arc<Root>,
    tasks: Tasks,
    paths: Vec<Path>,
}

impl Written {
    fn new(cache: &Cache, paths: Vec<Path>) -> Self {
        Self { root: Arc::clone(&cache.root), tasks: cache.tasks.clone(), paths }
    }

    async fn remove(mut self) -> Result<()> {
        self.root.delete_all(self.paths.clone()).await?;
        self.paths.clear();
        Ok(())
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        let (root, paths) = (Arc::clone(&self.root), std::mem::take(&mut self.paths));
        // Without a runtime the process is at its end; the next one finds them.
        if paths.is_empty() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        drop(self.tasks.spawn_graceful(async move {
            if let Err(error) = root.delete_all(paths).await {
                tracing::debug!(%error, "a probe's objects are left to the collection");
            }
        }));
    }
}

/// Requests of a probe, as a part of those that the task would have under way.
struct Requests {
    all: usize,
    /// How long all of them would have been.
    took: Duration,
}

impl Requests {
    fn of(all: usize) -> Self {
        Self { all, took: Duration::ZERO }
    }

    fn count(&mut self, requests: usize, took: Duration) {
        self.took += took.mul_f64(requests as f64 / self.all.max(1) as f64);
    }
}

/// What became of a probe's file at the store.
struct Moved {
    fetched: Bytes,
    mapped: bool,
    fetch_cpu: Duration,
    /// How long all requests of the task were under way for it, or would have been.
    store: Duration,
    /// Bytes per second; 0 where it was one request only.
    write: f64,
    read: f64,
}

/// Bytes per second of a request of the full size, where one of `bytes` took so long, of which waiting was `latency`.
fn at_full_size(bytes: u64, took: Duration, latency: Duration, full: u64) -> f64 {
    let moving = took.saturating_sub(latency).as_secs_f64().max(0.1 * took.as_secs_f64());
    let waiting = took.as_secs_f64() - moving;
    let times = (full as f64 / bytes.max(1) as f64).max(1.0);
    bytes as f64 * times / (waiting + moving * times).max(1e-6)
}

/// The same of a local file, which parts are mapped from: each reader has its pages mapped, and none copies them. What was
/// just written is in the kernel's memory, so that only work is measured, and not how long the cores of a busy worker
/// kept it waiting: by the clock, a bandwidth that is never short looked a third of what it is.
fn read_mapped(file: &std::path::Path, bytes: u64, readers: usize) -> Result<(Bytes, f64)> {
    let failed = |e: std::io::Error| Error::unavailable(format!("{}: {e}", file.display()));
    let length = usize::try_from(bytes).map_err(|e| Error::internal(e.to_string()))?;
    let start = thread_cpu_time();
    let mut mapped = Bytes::new();
    for _ in 0..readers {
        let map = Map::new(&std::fs::File::open(file).map_err(failed)?, length).map_err(failed)?;
        mapped = Bytes::from_owner(map);
        std::hint::black_box(mapped.iter().step_by(PAGE).fold(0u8, |sum, b| sum ^ b));
    }
    Ok((mapped, rate(bytes * readers as u64, thread_cpu_time().saturating_sub(start))))
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-6)
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
        alive.push(decode_all(file, encoding)?);
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
    let done = tokio::task::spawn_blocking(timed).await;
    let (done, cpu) = done.map_err(|e| Error::internal(format!("a probe: {e}")))?;
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

fn decode_all(file: &Bytes, encoding: Encoding) -> Result<Vec<RecordBatch>> {
    match encoding.format {
        Format::Arrow => crate::read::decode_arrow(&nameless(encoding), file.clone()),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_request_tells_of_a_large_one() {
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-6, "{a} is not {b}");
        let ms = Duration::from_millis;
        // 100 MB/s after 20 ms: a megabyte takes 30 ms, eight take 100.
        near(at_full_size(1_000_000, ms(30), ms(20), 8_000_000), 8e7);
        near(at_full_size(1_000_000, ms(10), ms(0), 8_000_000), 1e8);
        // A first byte that came late by accident does not make the rest infinitely fast.
        near(at_full_size(1_000_000, ms(10), ms(50), 8_000_000), 8e6 / (0.009 + 0.008));
        // A probe as large as a request is what it is.
        near(at_full_size(8_000_000, ms(100), ms(20), 8_000_000), 8e7);
    }
}
