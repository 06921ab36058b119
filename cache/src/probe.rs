//! Probes: what storing some rows would cost, found out by doing it with a few of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use caju_runtime::thread_cpu_time;
use caju_types::{Error, Fingerprint, Result, SplitKey};
use futures::future::try_join_all;
use object_store::path::Path;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use crate::Cache;
use crate::encoding::{Encoding, Format};
use crate::mmap::Map;
use crate::read::PREFETCH;
use crate::record::PartMeta;
use crate::write::encode_all;

/// How old a probe's object is that nobody is going to remove any more: its process has ended. Probes take seconds.
const FORSAKEN: Duration = Duration::from_secs(600);
/// How often a probe is decoded; the least time counts. A few rows are decoded in microseconds, and the first time takes
/// several times as long as the second.
const DECODES: usize = 3;
/// The least number of requests for parts that a worker has under way, if there is so much to read.
const LEAST_REQUESTS: usize = 16;
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
    /// Bytes per second at which the store took them.
    pub write_bytes_per_s: f64,
    /// Bytes per second at which the store gave them, to several readers at once.
    pub read_bytes_per_s: f64,
    /// CPU seconds that the probe took in all: what it is held to account for.
    #[serde(default)]
    pub spent_cpu_s: f64,
}

impl Cache {
    /// Encodes rows, writes them to the store under a name of their own, reads them back by as many requests at once as so
    /// many readers of parts have, and removes them. A probe that a crash leaves behind is removed by [`Cache::forget_probes`] and by the collection.
    ///
    /// # Errors
    /// `InvalidArgument` if the rows cannot be stored in the encoding, and what the store says.
    pub async fn probe(
        self: &Arc<Self>,
        schema: &SchemaRef,
        rows: &[RecordBatch],
        encoding: Encoding,
        readers: usize,
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
        let path = self.root.layout.probe(&self.root.unique("probe"));
        let written = Instant::now();
        polled(&mut spent, self.root.put_pieces(&path, &file)).await?;
        let written = written.elapsed();
        drop(file);
        let local = self.root.local_path(&path).filter(|_| self.options.mmap);
        let mapped = local.is_some();
        let before = spent;
        let read = match local {
            Some(file) => blocking(&mut spent, move || read_mapped(&file, whole, readers)).await,
            None => polled(&mut spent, self.read_ranged(&path, whole, Self::requests_at_once(readers))).await,
        };
        // What fetching takes is a part of reading; pages are mapped by the decoding.
        let fetch_cpu = if mapped { Duration::ZERO } else { (spent - before) / requests(readers) };
        self.root.delete(&path).await?;
        let (fetched, read_bytes_per_s) = read?;
        let decode = move || {
            // Rows that are read live for a while: the next ones take memory that nobody had before, page by page.
            let (mut alive, mut least) = (Vec::new(), Duration::MAX);
            for _ in 0..DECODES {
                let start = thread_cpu_time();
                // A mapped file is checked once per process, not in every epoch.
                std::hint::black_box((!mapped).then(|| xxh3_128(&fetched)));
                alive.push(decode_all(&fetched, encoding)?);
                least = least.min(thread_cpu_time().saturating_sub(start));
            }
            let rows = alive.pop().unwrap_or_default().iter().map(|b| b.num_rows() as u64).sum::<u64>();
            Ok::<_, Error>((rows, least))
        };
        let (decoded, decode_cpu) = blocking(&mut spent, decode).await?;
        if decoded != count {
            return Err(Error::data_loss(format!("a probe of {count} rows was read back as {decoded}")));
        }
        Ok(Probe {
            encoding,
            rows: count,
            bytes: whole.saturating_sub(empty as u64),
            encode_cpu_s: encode_cpu.as_secs_f64(),
            decode_cpu_s: (decode_cpu + fetch_cpu).as_secs_f64(),
            write_bytes_per_s: rate(whole, written),
            read_bytes_per_s,
            spent_cpu_s: spent.as_secs_f64(),
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
    /// Requests that a reader of a part has under way at most: what a part is worth of a store's bandwidth.
    pub const REQUESTS: usize = PREFETCH;

    /// Requests for parts that who reads so many splits at once has under way. Also few readers have some: a store that is
    /// far away gives each request a small part of its bandwidth only.
    pub fn requests_at_once(readers: usize) -> usize {
        (readers * PREFETCH).max(LEAST_REQUESTS)
    }

    /// Requests that reading this part has under way; none where parts are mapped.
    pub fn requests_for(&self, part: &PartMeta) -> Option<usize> {
        if self.options.mmap && self.root.local_path(&self.root.layout.base()).is_some() {
            return None;
        }
        let requests = part.bytes.div_ceil(self.options.read_bytes.max(1));
        Some(usize::try_from(requests).unwrap_or(Self::REQUESTS).clamp(1, Self::REQUESTS))
    }

    /// The bytes of an object, and the bandwidth that so many requests at once have together. Parts are read by requests that
    /// are larger than a probe, so that waiting for the answer's first byte counts less for them.
    async fn read_ranged(&self, path: &Path, bytes: u64, requests: usize) -> Result<(Bytes, f64)> {
        let start = Instant::now();
        self.root.get_range(path, 0..1.min(bytes)).await?;
        let latency = start.elapsed();
        let start = Instant::now();
        let mut got = try_join_all((0..requests).map(|_| self.root.get_range(path, 0..bytes))).await?;
        let took = start.elapsed();
        let last = got.pop().ok_or_else(|| Error::internal("a probe without readers"))?;
        Ok((last, at_full_size(bytes, took, latency, self.options.read_bytes) * requests as f64))
    }
}

/// Bytes per second of a request of the full size, where one of `bytes` took so long, of which waiting was `latency`.
fn at_full_size(bytes: u64, took: Duration, latency: Duration, full: u64) -> f64 {
    let moving = took.saturating_sub(latency).as_secs_f64().max(0.1 * took.as_secs_f64());
    let waiting = took.as_secs_f64() - moving;
    let times = (full as f64 / bytes.max(1) as f64).max(1.0);
    bytes as f64 * times / (waiting + moving * times).max(1e-6)
}

fn requests(readers: usize) -> u32 {
    u32::try_from(Cache::requests_at_once(readers)).unwrap_or(u32::MAX)
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
