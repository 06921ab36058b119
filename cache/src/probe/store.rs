//! What the store does with a probe's file, and how fast it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use caju_runtime::{MappedFile, Tasks, log_failure, thread_cpu_time};
use caju_types::{Error, Result};
use futures::future::{join_all, try_join_all};
use object_store::path::Path;

use super::{ProbeTask, blocking, polled};
use crate::Cache;
use crate::store::Root;

/// How often the store is read when it is weighed; the faster one counts. A few bytes on a busy worker are soon late by half.
const READS: usize = 2;
/// A byte of each page is looked at, so that it is there.
const PAGE: usize = 4096;

impl Cache {
    /// Writes a file to the store, reads it back and removes it.
    pub(super) async fn moved(
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
            // What fetching takes is a part of reading; pages are mapped by the decoding.
            let local = match self.root.local_path(&first).filter(|_| self.maps()) {
                Some(file) => {
                    let readers = if task.weighs { task.readers.max(1) } else { 1 };
                    blocking(spent, move || read_mapped(&file, readers)).await?
                }
                None => None,
            };
            let mapped = local.is_some();
            let (fetched, fetch_cpu, read) = match local {
                Some((bytes, rate)) => (bytes, Duration::ZERO, rate),
                None => self.read_ranged(spent, &mut gets, &first, bytes, requests).await?,
            };
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

    /// The bytes of an object, what one request for them takes, and the bandwidth that so many at once have together. Parts
    /// are read by requests that are larger than a probe, so that waiting for the answer's first byte counts less for them.
    /// As many ask for that byte before: on a busy worker every answer waits for a core, which would pass for a slow store.
    async fn read_ranged(
        self: &Arc<Self>,
        spent: &mut Duration,
        requests: &mut Requests,
        path: &Path,
        bytes: u64,
        at_once: usize,
    ) -> Result<(Bytes, Duration, f64)> {
        let (mut latency, mut fastest) = (Duration::ZERO, None::<Got>);
        for n in 0..if at_once > 1 { READS } else { 1 } {
            if at_once > 1 {
                let first = self.gets(spent, path, 1.min(bytes), at_once).await?;
                requests.count(at_once, first.slowest());
                latency = if n == 0 { first.usual() } else { first.usual().min(latency) };
            }
            let got = self.gets(spent, path, bytes, at_once).await?;
            requests.count(at_once, got.slowest());
            tracing::debug!(bytes, at_once, ?latency, took = ?got.usual(), fastest = ?got.times.first(), slowest = ?got.slowest(), "a probe was read");
            if fastest.as_ref().is_none_or(|f| got.usual() < f.usual()) {
                fastest = Some(got);
            }
        }
        let got = fastest.unwrap_or_default();
        let took = got.usual();
        let each = at_full_size(bytes, took, latency.min(took), self.options.read_bytes);
        let cpu = got.cpu / u32::try_from(at_once).unwrap_or(u32::MAX);
        Ok((got.bytes, cpu, each * at_once as f64))
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
            self.tasks.spawn("reading a probe", get)
        };
        let mut all = Got { times: Vec::with_capacity(at_once), ..Got::default() };
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

/// What requests at once gave, and how long each took, the fastest first.
#[derive(Default)]
struct Got {
    bytes: Bytes,
    /// CPU time of all of them.
    cpu: Duration,
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
        self.tasks.background_graceful("removing a probe", log_failure, async move {
            if let Err(error) = root.delete_all(paths).await {
                tracing::debug!(%error, "a probe's objects are left to the collection");
            }
            Ok(())
        });
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
pub(super) struct Moved {
    pub(super) fetched: Bytes,
    pub(super) mapped: bool,
    pub(super) fetch_cpu: Duration,
    /// How long all requests of the task were under way for it, or would have been.
    pub(super) store: Duration,
    /// Bytes per second; 0 where it was one request only.
    pub(super) write: f64,
    pub(super) read: f64,
}

impl Moved {
    /// A file that stays in memory.
    pub(super) fn not_at_all(file: &[Bytes], fetch_cpu_s: f64) -> Self {
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
fn read_mapped(file: &std::path::Path, readers: usize) -> Result<Option<(Bytes, f64)>> {
    let failed = |e: std::io::Error| Error::unavailable(format!("{}: {e}", file.display()));
    let start = thread_cpu_time();
    let mut mapped = Bytes::new();
    for _ in 0..readers {
        let opened = std::fs::File::open(file).map_err(failed)?;
        let Some(map) = MappedFile::new(opened).map_err(failed)? else { return Ok(None) };
        mapped = Bytes::from_owner(map);
        std::hint::black_box(mapped.iter().step_by(PAGE).fold(0u8, |sum, b| sum ^ b));
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
