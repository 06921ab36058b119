//! Probes of hints: while a task computes, a few rows at each hint are stored in each candidate encoding, read back and
//! removed. The planner learns from them what storing would cost on this machine, on this store, with these rows.

mod sample;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow_array::RecordBatch;
use caju_cache::{Cache, Compression, Encoding, Format, Probe, ProbeTask};
use caju_runtime::{Clock, LockRank, OrderedMutex, Tasks, log_failure};
use caju_types::Error;
use tokio::sync::watch;

use crate::hint::BoundHint;
use sample::{Rows, Sample};

/// The fraction of the task's CPU time, and of the time of its store requests, that probes may take.
const QUOTA: f64 = 0.03;
/// How often a probe that exceeds its quota checks again.
const QUOTA_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long the end of a task that exists for its probes waits for them.
const FINISH_TIMEOUT: Duration = Duration::from_secs(120);

/// Encodings whose bytes differ by less than this factor count as equally large.
const EQUAL_BYTES: f64 = 1.02;
/// The factor of CPU time that two encodings must differ by to be distinct. It is more than two probes of the same encoding
/// differ by.
const DISTINCT_CPU: f64 = 2.0;

/// How often each encoding is probed at each hint: the spread of the probes gives their error.
const ROUNDS: usize = 3;

/// How often the store's bandwidth is measured in all: a busy worker makes single measurements too slow.
const STORE_MEASUREMENTS: usize = 5;

/// The encodings that are probed, the ones with the least CPU time first.
const CANDIDATES: [Encoding; 4] = [
    Encoding { format: Format::Arrow, compression: Compression::None },
    Encoding { format: Format::Arrow, compression: Compression::Lz4 },
    Encoding { format: Format::Arrow, compression: Compression::Zstd },
    Encoding { format: Format::Parquet, compression: Compression::Zstd },
];

/// The result of one probe at one hint.
#[derive(Debug, Clone, PartialEq)]
pub struct HintProbe {
    /// The hint's name.
    pub hint: String,
    /// The measurements.
    pub probe: Probe,
    /// Bytes of its rows before they were encoded.
    pub raw_bytes: u64,
}

/// An encoding in which a hint's snapshot has parts already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HintParts {
    /// The hint's name.
    pub hint: String,
    /// How they are written.
    pub encoding: Encoding,
}

/// The results of a task's probes so far.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// Probes, in the order in which they were made.
    pub probes: Vec<HintProbe>,
    /// The hints and encodings of which parts exist, once the snapshots were listed.
    pub parts: Option<Vec<HintParts>>,
    /// Whether every encoding was probed at every hint.
    pub complete: bool,
}

/// What probes have spent of the task's resources.
#[derive(Debug, Default)]
struct Spent {
    cpu_s: f64,
    /// Seconds of requests to the store.
    store_s: f64,
    /// How often the store's bandwidth was measured.
    store_measurements: usize,
}

/// The cost of a row in an encoding: the mean of its probes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Costs {
    bytes: f64,
    encode_s: f64,
    decode_s: f64,
}

impl Costs {
    fn of(probes: &[HintProbe], hint: &str, encoding: Encoding) -> Option<Self> {
        let (mut sum, mut rows) = (Self::default(), 0);
        let attempts =
            || probes.iter().filter(|p| p.hint == hint && p.probe.encoding == encoding).map(|p| p.probe);
        // Probes with at least half the rows of the largest one count; smaller ones are less exact.
        let most = attempts().map(|p| p.rows).max()?;
        for probe in attempts().filter(|p| p.rows.saturating_mul(2) >= most) {
            rows += probe.rows;
            sum.bytes += probe.bytes as f64;
            sum.encode_s += probe.encode_cpu_s;
            sum.decode_s += probe.decode_cpu_s;
        }
        let per_row = |total: f64| total / rows as f64;
        let Self { bytes, encode_s, decode_s } = sum;
        (rows > 0).then(|| Self {
            bytes: per_row(bytes),
            encode_s: per_row(encode_s),
            decode_s: per_row(decode_s),
        })
    }

    /// Whether this costs no more than the other in anything, and distinctly less to read.
    fn dominates(self, other: Self) -> bool {
        self.bytes <= other.bytes * EQUAL_BYTES
            && self.encode_s <= other.encode_s * DISTINCT_CPU
            && self.decode_s * DISTINCT_CPU <= other.decode_s
    }
}

/// The settings of a task's probes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probing {
    /// The only encoding in which the job may store rows, if it names one.
    pub(crate) encoding: Option<Encoding>,
    /// Whether only existing parts are probed, because nothing would read what the job stores.
    pub(crate) stored_only: bool,
    /// The task's CPU threads.
    pub(crate) threads: usize,
    /// Cores that the task may count on; at most its threads.
    pub(crate) cores: f64,
    /// Splits that the task reads concurrently.
    pub(crate) readers: usize,
}

/// Probes the hints of one task.
pub(crate) struct Prober {
    cache: Arc<Cache>,
    hints: Vec<BoundHint>,
    clock: Arc<dyn Clock>,
    probing: Probing,
    samples: OrderedMutex<Vec<Sample>>,
    findings: OrderedMutex<Findings>,
    arrived: tokio::sync::Notify,
    /// No more rows will come.
    over: AtomicBool,
    /// The results are not needed any more.
    stopped: AtomicBool,
    finished: watch::Sender<bool>,
}

impl Prober {
    /// Starts probing in the background of a task.
    pub(crate) fn start(
        cache: Arc<Cache>,
        hints: Vec<BoundHint>,
        clock: Arc<dyn Clock>,
        probing: Probing,
        tasks: &Tasks,
    ) -> Arc<Self> {
        let samples = hints.iter().map(|_| Sample::default()).collect();
        let me = Arc::new(Self {
            cache,
            hints,
            clock,
            probing,
            samples: OrderedMutex::new(LockRank::leaf("the samples of a prober"), samples),
            findings: OrderedMutex::new(LockRank::leaf("the findings of a prober"), Findings::default()),
            arrived: tokio::sync::Notify::new(),
            over: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            finished: watch::Sender::new(false),
        });
        let prober = Arc::clone(&me);
        let failing = Arc::clone(&me);
        let on_failure = move |e: Error| {
            log_failure(e);
            // No further result will come.
            failing.findings.lock().complete = true;
            failing.finished.send_replace(true);
        };
        tasks.background("the probes of the cache's store", on_failure, async move {
            prober.list_parts().await;
            let tidy = async {
                if let Err(error) = prober.cache.remove_stale_probes().await {
                    tracing::debug!(%error, "probes of earlier tasks were not removed");
                }
            };
            tokio::join!(prober.run(), tidy);
            Ok(())
        });
        me
    }

    pub(crate) fn findings(&self) -> Findings {
        self.findings.lock().clone()
    }

    /// Makes the remaining probes with the rows that there were, regardless of the quota, and waits for them.
    pub(crate) async fn finish(&self) {
        self.over.store(true, Ordering::Release);
        self.arrived.notify_one();
        let mut finished = self.finished.subscribe();
        tokio::select! {
            _ = finished.wait_for(|f| *f) => {}
            () = self.clock.sleep(FINISH_TIMEOUT) => tracing::warn!("probes of the cache's store took too long"),
        }
    }

    /// Stops probing: the decision was made.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.arrived.notify_one();
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Samples a few of the rows that pass a hint.
    pub(crate) fn offer(&self, hint: usize, rows: &[RecordBatch]) {
        if self.is_stopped() {
            return;
        }
        let takes = |sample: &mut Sample| sample.offer(rows, self.clock.now());
        if self.samples.lock().get_mut(hint).is_some_and(takes) {
            self.arrived.notify_one();
        }
    }

    async fn list_parts(&self) {
        let mut found: Vec<HintParts> = Vec::new();
        for hint in &self.hints {
            let index = match self.cache.snapshot(&hint.fingerprint).index().await {
                Ok(index) => index,
                Err(error) => {
                    tracing::warn!(hint = %hint.name, %error, "the cache cannot be listed");
                    continue;
                }
            };
            for (_, meta) in index.iter() {
                let parts = HintParts { hint: hint.name.clone(), encoding: meta.encoding };
                if !found.contains(&parts) {
                    found.push(parts);
                }
            }
        }
        self.findings.lock().parts = Some(found);
    }

    async fn run(&self) {
        let start = self.clock.now();
        let mut spent = Spent::default();
        for round in 0..ROUNDS {
            self.round(round > 0, start, &mut spent).await;
            self.findings.lock().complete = true;
            // If the quota of the store is spent, its measurements come after all probes.
            if spent.store_s <= self.quota_s(start) {
                self.measure_store(1, start, &mut spent).await;
            }
        }
        self.measure_store(STORE_MEASUREMENTS, start, &mut spent).await;
        self.samples.lock().iter_mut().for_each(Sample::clear);
        self.finished.send_replace(true);
    }

    /// Probes every encoding at every hint once. Further rounds probe only encodings that may win, and only while the task
    /// runs.
    async fn round(&self, again: bool, start: Duration, spent: &mut Spent) {
        let mut left = if again { self.contenders() } else { self.candidates() };
        while let Some((encoding, hint, rows)) = self.next_probe(&mut left, again).await {
            if rows.batches.is_empty() {
                continue;
            }
            // The first probe measures the store for all. The other probes of the first round do not wait for the time that
            // this took; probes of later rounds make no requests.
            let measures = spent.store_measurements == 0;
            if !self.wait_for_quota(start, spent, measures).await || again && self.is_over() {
                return;
            }
            self.probe(spent, encoding, hint, &rows, measures).await;
        }
    }

    /// Measures the store up to `times` times, within the quota and [`STORE_MEASUREMENTS`] in all.
    async fn measure_store(&self, times: usize, start: Duration, spent: &mut Spent) {
        for _ in 0..times.min(STORE_MEASUREMENTS.saturating_sub(spent.store_measurements)) {
            let mut any = self.candidates();
            let Some((encoding, hint, rows)) = self.next_probe(&mut any, false).await else { return };
            if !self.wait_for_quota(start, spent, true).await || self.is_over() || rows.batches.is_empty() {
                return;
            }
            self.probe(spent, encoding, hint, &rows, true).await;
        }
    }

    /// Waits until the quota allows a probe, which measures the store or does not. Whether its result is still needed.
    async fn wait_for_quota(&self, start: Duration, spent: &Spent, measures: bool) -> bool {
        while !self.is_over() && !self.is_stopped() && !self.is_within_quota(start, spent, measures) {
            self.clock.sleep(QUOTA_POLL_INTERVAL).await;
        }
        !self.is_stopped()
    }

    async fn probe(&self, spent: &mut Spent, encoding: Encoding, hint: usize, rows: &Rows, measures: bool) {
        let Probing { threads, readers, .. } = self.probing;
        let bound = &self.hints[hint];
        let before = self.clock.now();
        let fetch_cpu_s_per_byte = self.fetch_cpu_s_per_byte(&bound.name, encoding);
        let task = ProbeTask { threads, readers, measures_store: measures, fetch_cpu_s_per_byte };
        spent.store_s += match self.cache.probe(&bound.schema, &rows.batches, encoding, task).await {
            Ok(probe) => {
                spent.cpu_s += probe.spent_cpu_s;
                spent.store_measurements += usize::from(measures);
                let (hint, raw_bytes) = (bound.name.clone(), rows.raw_bytes);
                self.findings.lock().probes.push(HintProbe { hint, probe, raw_bytes });
                probe.spent_store_s
            }
            // An encoding that cannot hold these columns is no option. A store that fails is no option either, and the failure
            // is no measurement of it.
            Err(error) => {
                tracing::debug!(hint = %bound.name, %encoding, %error, "a probe failed");
                let took = self.clock.now().saturating_sub(before).as_secs_f64();
                spent.cpu_s += took;
                took
            }
        };
    }

    /// CPU seconds to fetch a byte in an encoding, as its first probe measured them for the later ones.
    fn fetch_cpu_s_per_byte(&self, hint: &str, encoding: Encoding) -> Option<f64> {
        let findings = self.findings.lock();
        let mut attempts = findings.probes.iter().filter(|p| p.hint == hint);
        attempts.find(|p| p.probe.encoding == encoding).map(|p| p.probe.fetch_cpu_s_per_byte)
    }

    /// All probes of a round: each encoding at the hints at which it is an option.
    fn candidates(&self) -> Vec<(Encoding, usize)> {
        let hints = |encoding| {
            let hints = 0..self.hints.len();
            hints.filter(move |hint| self.is_candidate(*hint, encoding)).map(move |hint| (encoding, hint))
        };
        self.encodings().into_iter().flat_map(hints).collect()
    }

    /// The probes of a later round: without encodings that another encoding of their hint dominates. A hint's encodings are
    /// probed one after another, so that a short disturbance of the machine affects all of them.
    fn contenders(&self) -> Vec<(Encoding, usize)> {
        let findings = self.findings.lock().clone();
        let of = |encoding, hint: usize| Costs::of(&findings.probes, &self.hints[hint].name, encoding);
        let stored = |encoding, hint: usize| {
            let part = HintParts { hint: self.hints[hint].name.clone(), encoding };
            findings.parts.iter().flatten().any(|p| *p == part)
        };
        let mut all = self.candidates();
        let rivals = all.clone();
        let dominated = |encoding, hint| {
            // An encoding that failed will fail again.
            let Some(costs) = of(encoding, hint) else { return true };
            let others = rivals.iter().filter(|(e, h)| *h == hint && *e != encoding);
            others.filter_map(|(e, h)| of(*e, *h)).any(|other| other.dominates(costs))
        };
        all.retain(|(encoding, hint)| stored(*encoding, *hint) || !dominated(*encoding, *hint));
        all.sort_by_key(|(_, hint)| *hint);
        all
    }

    /// The first of the remaining probes whose hint has rows, with the rows. Hints behind a large buffer or a selective filter
    /// do not delay the others.
    async fn next_probe(
        &self,
        left: &mut Vec<(Encoding, usize)>,
        again: bool,
    ) -> Option<(Encoding, usize, Rows)> {
        while !left.is_empty() && !self.is_stopped() {
            let arrived = self.arrived.notified();
            let ready = |(at, (_, hint)): (usize, &(Encoding, usize))| Some((at, self.sample(*hint, again)?));
            if let Some((at, rows)) = left.iter().enumerate().find_map(ready) {
                let (encoding, hint) = left.remove(at);
                return Some((encoding, hint, rows));
            }
            tokio::select! {
                () = arrived => {}
                () = self.clock.sleep(Sample::POLL_INTERVAL) => {}
            }
        }
        None
    }

    /// The encodings that are probed at some hint: the candidates, and those of existing parts.
    fn encodings(&self) -> Vec<Encoding> {
        let mut all: Vec<Encoding> = self.probing.encoding.map_or(CANDIDATES.to_vec(), |e| vec![e]);
        for part in self.findings.lock().parts.iter().flatten() {
            if !all.contains(&part.encoding) {
                all.push(part.encoding);
            }
        }
        all
    }

    fn is_candidate(&self, hint: usize, encoding: Encoding) -> bool {
        let name = &self.hints[hint].name;
        let stored = |p: &HintParts| p.hint == *name && p.encoding == encoding;
        let candidate = || self.probing.encoding.map_or(CANDIDATES.contains(&encoding), |e| e == encoding);
        self.findings.lock().parts.iter().flatten().any(stored) || !self.probing.stored_only && candidate()
    }

    /// The quota in seconds of one core, or of the store, since the start.
    fn quota_s(&self, start: Duration) -> f64 {
        self.clock.now().saturating_sub(start).as_secs_f64() * QUOTA
    }

    /// Whether the spent CPU time is within the quota, and with `store` the time of store requests too.
    fn is_within_quota(&self, start: Duration, spent: &Spent, store: bool) -> bool {
        let quota_s = self.quota_s(start);
        spent.cpu_s <= quota_s * self.probing.cores && (!store || spent.store_s <= quota_s)
    }

    /// Sampled rows of a hint for a probe, if there are enough.
    fn sample(&self, hint: usize, again: bool) -> Option<Rows> {
        self.samples.lock().get(hint)?.rows(again, self.clock.now(), self.is_over())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probed(hint: &str, encoding: Encoding, bytes: u64, decode_cpu_s: f64) -> HintProbe {
        let probe = Probe {
            encoding,
            rows: 10,
            bytes,
            encode_cpu_s: 0.01,
            decode_cpu_s,
            fetch_cpu_s_per_byte: 0.0,
            write_bytes_per_s: 0.0,
            read_bytes_per_s: 0.0,
            spent_cpu_s: 0.02,
            spent_store_s: 0.0,
        };
        HintProbe { hint: hint.into(), probe, raw_bytes: 0 }
    }

    #[test]
    fn dominated_encodings_are_not_probed_again() {
        let [plain, lz4, zstd, parquet] = CANDIDATES;
        let probes = [
            probed("a", plain, 1000, 0.001),
            probed("a", lz4, 500, 0.004),
            probed("a", zstd, 300, 0.006),
            probed("a", zstd, 300, 0.008),
            probed("a", parquet, 320, 0.015),
            probed("b", plain, 100, 0.02),
        ];
        let of = |encoding| Costs::of(&probes, "a", encoding).unwrap();
        assert_eq!(Costs::of(&probes, "b", zstd), None);
        // Seven and fifteen milliseconds for ten rows.
        assert!(of(zstd).dominates(of(parquet)));
        assert!(!of(parquet).dominates(of(zstd)));
        for (a, b) in [(plain, lz4), (lz4, plain), (lz4, zstd), (zstd, lz4), (plain, parquet)] {
            assert!(!of(a).dominates(of(b)), "{a} {b}: fewer bytes or less work");
        }
    }
}
