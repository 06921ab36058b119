//! The store's part of a probe: writing and reading its file, and how fast that is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use caju_runtime::stores::open_file;
use caju_runtime::{MappedFile, Tasks, log_failure, thread_cpu_time};
use caju_types::{Error, Result};
use futures::future::{join_all, try_join_all};
use object_store::path::Path;

use super::task::ProbeTask;
use super::timing::{blocking, polled};
use crate::cache::Cache;
use crate::store::Root;

/// How often the store is read when its bandwidth is measured. The fastest time counts: on a busy worker a few bytes easily
/// take half as long again.
const READS: usize = 2;
/// Bytes of a page. One byte of each page of a mapped file is read, so that the page is present.
const PAGE_BYTES: usize = 4096;

impl Cache {
    /// Writes a file to the store, reads it back and removes it.
    pub(super) async fn sample_store(
        self: &Arc<Self>,
        spent: &mut Duration,
        file: Vec<Bytes>,
        task: ProbeTask,
    ) -> Result<StoreSample> {
        let bytes = file.iter().map(Bytes::len).sum::<usize>() as u64;
        let name = || self.ctx.root.layout.probe(&self.ctx.root.unique("probe"));
        let (task_writes, task_reads) = task.requests();
        let (writes, requests) = if task.measures_store { (task_writes, task_reads) } else { (1, 1) };
        let paths: Vec<Path> = (0..writes).map(|_| name()).collect();
        let objects = ProbeObjects::new(self, paths.clone());
        let first = paths.first().cloned().unwrap_or_else(name);
        let sample = async {
            let (mut puts, mut gets) = (RequestTime::of(task_writes), RequestTime::of(task_reads));
            let write =
                polled(spent, self.write_copies(&mut puts, &paths, &file, task.measures_store)).await?;
            drop(file);
            // The cost of fetching is a part of reading. The pages of a mapped file are mapped by the decoding.
            let local = match self.ctx.root.local_path(&first).filter(|_| self.ctx.maps()) {
                Some(file) => {
                    let readers = if task.measures_store { task.readers.max(1) } else { 1 };
                    blocking(spent, move || read_mapped(&file, readers)).await?
                }
                None => None,
            };
            let mapped = local.is_some();
            let (fetched, fetch_cpu, read) = match local {
                Some((bytes, rate)) => (bytes, Duration::ZERO, rate),
                None => self.read_ranged(spent, &mut gets, &first, bytes, requests).await?,
            };
            let (write, read) = if task.measures_store { (write, read) } else { (0.0, 0.0) };
            let store = if mapped { Duration::ZERO } else { puts.took + gets.took };
            Ok(StoreSample { fetched, mapped, fetch_cpu, store, write, read })
        };
        let sample = sample.await;
        objects.remove().await?;
        sample
    }

    /// Writes copies of a file concurrently. Gives their bandwidth together, scaled to the larger requests by which parts
    /// are written.
    async fn write_copies(
        &self,
        requests: &mut RequestTime,
        paths: &[Path],
        file: &[Bytes],
        measures_store: bool,
    ) -> Result<f64> {
        let start = Instant::now();
        if let Some(first) = paths.first().filter(|_| measures_store) {
            self.ctx.root.put_pieces(first, &[Bytes::from_static(b"?")]).await?;
        }
        let latency = start.elapsed();
        let start = Instant::now();
        try_join_all(paths.iter().map(|path| self.ctx.root.put_pieces(path, file))).await?;
        let took = start.elapsed();
        requests.count(1, latency);
        requests.count(paths.len(), took);
        let (bytes, full) = (file.iter().map(Bytes::len).sum::<usize>(), self.ctx.options.part_buffer_bytes);
        Ok(at_full_size(bytes as u64, took, latency, full as u64) * paths.len() as f64)
    }

    /// Gives the bytes of an object, the CPU time of one request for them, and the bandwidth that `at_once` requests have
    /// together. Parts are read by requests that are larger than a probe, for which the latency of the first byte counts
    /// less. So the latency is measured first, by as many requests for one byte: on a busy worker every answer waits for a
    /// core, and a single request would make the store look slow.
    async fn read_ranged(
        self: &Arc<Self>,
        spent: &mut Duration,
        requests: &mut RequestTime,
        path: &Path,
        bytes: u64,
        at_once: usize,
    ) -> Result<(Bytes, Duration, f64)> {
        let (mut latency, mut fastest) = (Duration::ZERO, None::<Answers>);
        for n in 0..if at_once > 1 { READS } else { 1 } {
            if at_once > 1 {
                let first = self.get_concurrently(spent, path, 1.min(bytes), at_once).await?;
                requests.count(at_once, first.slowest());
                latency = if n == 0 { first.third_quartile() } else { first.third_quartile().min(latency) };
            }
            let got = self.get_concurrently(spent, path, bytes, at_once).await?;
            requests.count(at_once, got.slowest());
            tracing::debug!(bytes, at_once, ?latency, took = ?got.third_quartile(), fastest = ?got.times.first(), slowest = ?got.slowest(), "a probe was read");
            if fastest.as_ref().is_none_or(|f| got.third_quartile() < f.third_quartile()) {
                fastest = Some(got);
            }
        }
        let got = fastest.unwrap_or_default();
        let took = got.third_quartile();
        let each = at_full_size(bytes, took, latency.min(took), self.ctx.options.read_bytes);
        let cpu = got.cpu / u32::try_from(at_once).unwrap_or(u32::MAX);
        Ok((got.bytes, cpu, each * at_once as f64))
    }

    /// Reads the beginning of an object by `at_once` concurrent requests.
    async fn get_concurrently(
        self: &Arc<Self>,
        spent: &mut Duration,
        path: &Path,
        bytes: u64,
        at_once: usize,
    ) -> Result<Answers> {
        // On tasks of their own, as the requests for parts are.
        let get = |_| {
            let (me, path) = (Arc::clone(self), path.clone());
            let get = async move {
                let (mut cpu, start) = (Duration::ZERO, Instant::now());
                let got = polled(&mut cpu, me.ctx.root.get_range(&path, 0..bytes)).await;
                got.map(|got| (got, cpu, start.elapsed()))
            };
            self.ctx.tasks.spawn("reading a probe", get)
        };
        let mut all = Answers { times: Vec::with_capacity(at_once), ..Answers::default() };
        for got in join_all((0..at_once).map(get)).await {
            let (got, cpu, took) = got??;
            *spent += cpu;
            all.cpu += cpu;
            all.bytes = got;
            all.times.push(took);
        }
        all.times.sort_unstable();
        Ok(all)
    }
}

/// The answers of concurrent requests.
#[derive(Default)]
struct Answers {
    bytes: Bytes,
    /// CPU time of all requests.
    cpu: Duration,
    /// The time of each request, the fastest first.
    times: Vec<Duration>,
}

impl Answers {
    fn slowest(&self) -> Duration {
        self.times.last().copied().unwrap_or_default()
    }

    /// The third quartile of the times. RequestTime that share a bandwidth take equally long; single late ones are accidents.
    fn third_quartile(&self) -> Duration {
        self.times.get(self.times.len() * 3 / 4).or(self.times.last()).copied().unwrap_or_default()
    }
}

/// The objects of a probe. They are deleted also if the task that the probe is made for ends in the middle.
struct ProbeObjects {
    root: Arc<Root>,
    tasks: Tasks,
    paths: Vec<Path>,
}

impl ProbeObjects {
    fn new(cache: &Cache, paths: Vec<Path>) -> Self {
        Self { root: Arc::clone(&cache.ctx.root), tasks: cache.ctx.tasks.clone(), paths }
    }

    async fn remove(mut self) -> Result<()> {
        self.root.delete_all(self.paths.clone()).await?;
        self.paths.clear();
        Ok(())
    }
}

impl Drop for ProbeObjects {
    fn drop(&mut self) {
        let (root, paths) = (Arc::clone(&self.root), std::mem::take(&mut self.paths));
        // Without a runtime the process is ending. The next process removes stale objects.
        if paths.is_empty() || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        self.tasks.background_graceful("removing a probe", log_failure, async move {
            if let Err(error) = root.delete_all(paths).await {
                tracing::debug!(%error, "a probe's objects could not be deleted; `cache gc` deletes them");
            }
            Ok(())
        });
    }
}

/// The time of a probe's requests, as a fraction of those that the task would have in flight.
struct RequestTime {
    /// RequestTime that the task would have in flight.
    in_flight: usize,
    /// For how long the probe's requests would have been all of them.
    took: Duration,
}

impl RequestTime {
    fn of(in_flight: usize) -> Self {
        Self { in_flight, took: Duration::ZERO }
    }

    fn count(&mut self, requests: usize, took: Duration) {
        self.took += took.mul_f64(requests as f64 / self.in_flight.max(1) as f64);
    }
}

/// A probe's file as the store gave it back, and the speed of the store.
pub(super) struct StoreSample {
    pub(super) fetched: Bytes,
    pub(super) mapped: bool,
    pub(super) fetch_cpu: Duration,
    /// For how long the probe's requests were, or would have been, all requests of the task.
    pub(super) store: Duration,
    /// Bytes per second; 0 if a single request was made.
    pub(super) write: f64,
    /// Bytes per second; 0 if a single request was made.
    pub(super) read: f64,
}

impl StoreSample {
    /// A file that stays in memory, with the CPU seconds that fetching it would take.
    pub(super) fn without_requests(file: &[Bytes], fetch_cpu_s: f64) -> Self {
        Self {
            fetched: file.concat().into(),
            mapped: false,
            fetch_cpu: Duration::try_from_secs_f64(fetch_cpu_s).unwrap_or_default(),
            store: Duration::ZERO,
            write: 0.0,
            read: 0.0,
        }
    }
}

/// Bytes per second of a request of `full` bytes, where one of `bytes` took `took`, including `latency` of waiting.
fn at_full_size(bytes: u64, took: Duration, latency: Duration, full: u64) -> f64 {
    let moving = took.saturating_sub(latency).as_secs_f64().max(0.1 * took.as_secs_f64());
    let waiting = took.as_secs_f64() - moving;
    let times = (full as f64 / bytes.max(1) as f64).max(1.0);
    bytes as f64 * times / (waiting + moving * times).max(1e-6)
}

/// Maps a local file for each reader, and gives it with the bandwidth of that. Every reader's pages are mapped, and none
/// are copied. The file was just written, so it is in the kernel's memory: only work is left to measure. CPU time is
/// measured, not wall time: on a busy worker, waiting for cores made the bandwidth look a third of what it is.
fn read_mapped(file: &std::path::Path, readers: usize) -> Result<Option<(Bytes, f64)>> {
    let failed = |e: std::io::Error| Error::unavailable(format!("{}: {e}", file.display()));
    let start = thread_cpu_time();
    let mut mapped = Bytes::new();
    for _ in 0..readers {
        let opened = open_file(file).map_err(failed)?;
        let Some(map) = MappedFile::new(opened).map_err(failed)? else { return Ok(None) };
        mapped = Bytes::from_owner(map);
        std::hint::black_box(mapped.iter().step_by(PAGE_BYTES).fold(0u8, |sum, b| sum ^ b));
    }
    let took = thread_cpu_time().saturating_sub(start);
    Ok(Some((mapped.clone(), rate(mapped.len() as u64 * readers as u64, took))))
}

fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64().max(1e-6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bandwidth_of_a_small_request_is_scaled_to_a_large_one() {
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-6, "{a} is not {b}");
        let ms = Duration::from_millis;
        // 100 MB/s after 20 ms: a megabyte takes 30 ms, eight take 100.
        near(at_full_size(1_000_000, ms(30), ms(20), 8_000_000), 8e7);
        near(at_full_size(1_000_000, ms(10), ms(0), 8_000_000), 1e8);
        // A first byte that is late by accident does not make the remainder infinitely fast.
        near(at_full_size(1_000_000, ms(10), ms(50), 8_000_000), 8e6 / (0.009 + 0.008));
        // A probe as large as a request is not scaled.
        near(at_full_size(8_000_000, ms(100), ms(20), 8_000_000), 8e7);
    }
}
