//! Probes of hints: while a task computes, a few rows at each hint are stored in each candidate encoding, read
//! back and removed, so that the planner knows what storing would cost here, on this store, with these rows.

mod sample;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow_array::RecordBatch;
use caju_cache::{Cache, Compression, Encoding, Format, Probe, ProbeTask};
use caju_runtime::{Clock, Tasks, log_failure};
use caju_types::Error;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::caching::BoundHint;
use sample::{Rows, Sample};

/// The share of the task's CPU time, and of its requests to the store, that probes may take.
const SHARE: f64 = 0.03;
/// How often a probe that must wait for its share looks again.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the end of a task waits for its probes, if they are what it is for.
const PATIENCE: Duration = Duration::from_secs(120);

/// Encodings whose bytes differ by less take as many.
const SAME: f64 = 1.02;
/// How many times as long decoding has to take for no further try to change that: more than two tries are off against each other.
const FAR: f64 = 2.0;

/// How often everything is tried: how much the tries differ says how sure they are.
const ROUNDS: usize = 3;

/// How often the store is weighed in all: a busy worker makes one look slow.
const WEIGHINGS: usize = 5;

/// The encodings that are tried, cheapest first.
const CANDIDATES: [Encoding; 4] = [
    Encoding { format: Format::Arrow, compression: Compression::None },
    Encoding { format: Format::Arrow, compression: Compression::Lz4 },
    Encoding { format: Format::Arrow, compression: Compression::Zstd },
    Encoding { format: Format::Parquet, compression: Compression::Zstd },
];

/// What one probe found out at one hint.
#[derive(Debug, Clone, PartialEq)]
pub struct HintProbe {
    /// The hint's name.
    pub hint: String,
    /// The figures.
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

/// What is known so far.
#[derive(Debug, Clone, Default)]
pub struct Findings {
    /// Probes, in the order in which they were made.
    pub probes: Vec<HintProbe>,
    /// In which encodings there are parts at which hints, once the snapshots were looked at.
    pub parts: Option<Vec<HintParts>>,
    /// Whether there is nothing left to try.
    pub complete: bool,
}

/// What probes took of the task's resources.
#[derive(Debug, Default)]
struct Spent {
    cpu_s: f64,
    /// Seconds of everything that the task asks of the store.
    store_s: f64,
    /// How often it was weighed.
    weighings: usize,
}

/// What a row costs in an encoding, by the mean of its tries.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Costs {
    bytes: f64,
    encode_s: f64,
    decode_s: f64,
}

impl Costs {
    fn of(probes: &[HintProbe], hint: &str, encoding: Encoding) -> Option<Self> {
        let (mut sum, mut rows) = (Self::default(), 0);
        let tries =
            || probes.iter().filter(|p| p.hint == hint && p.probe.encoding == encoding).map(|p| p.probe);
        // Where there are tries of more rows, they tell more.
        let most = tries().map(|p| p.rows).max()?;
        for probe in tries().filter(|p| p.rows.saturating_mul(2) >= most) {
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

    /// Whether this takes no more than the other in anything, and far less to read.
    fn beats(self, other: Self) -> bool {
        self.bytes <= other.bytes * SAME
            && self.encode_s <= other.encode_s * FAR
            && self.decode_s * FAR <= other.decode_s
    }
}

/// What a task's probes are to find out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probing {
    /// The only encoding in which the job may store rows, if it has a say in that.
    pub(crate) encoding: Option<Encoding>,
    /// Whether only what is stored already is of interest: nobody would read what the job stores.
    pub(crate) stored_only: bool,
    /// Threads that the task has to compute.
    pub(crate) threads: usize,
    /// Cores that are its own, as many as its threads at most.
    pub(crate) cores: f64,
    /// Splits that the task reads at once.
    pub(crate) readers: usize,
}

/// Probes the hints of one task.
pub(crate) struct Prober {
    cache: Arc<Cache>,
    hints: Vec<BoundHint>,
    clock: Arc<dyn Clock>,
    probing: Probing,
    samples: Mutex<Vec<Sample>>,
    findings: Mutex<Findings>,
    arrived: tokio::sync::Notify,
    /// No more rows will come.
    over: AtomicBool,
    /// Nobody waits for figures any more.
    stopped: AtomicBool,
    through: watch::Sender<bool>,
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
        let samples = Mutex::new(hints.iter().map(|_| Sample::default()).collect());
        let me = Arc::new(Self {
            cache,
            hints,
            clock,
            probing,
            samples,
            findings: Mutex::default(),
            arrived: tokio::sync::Notify::new(),
            over: AtomicBool::new(false),
            stopped: AtomicBool::new(false),
            through: watch::Sender::new(false),
        });
        let prober = Arc::clone(&me);
        let failing = Arc::clone(&me);
        let on_failure = move |e: Error| {
            log_failure(e);
            // Nobody waits for figures that do not come.
            failing.findings.lock().complete = true;
            failing.through.send_replace(true);
        };
        tasks.background("the probes of the cache's store", on_failure, async move {
            prober.look_for_parts().await;
            let tidy = async {
                if let Err(error) = prober.cache.forget_probes().await {
                    tracing::debug!(%error, "probes that others left behind are still there");
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

    /// Tries everything that is left to try with the rows that there were, without regard to the share.
    pub(crate) async fn finish(&self) {
        self.over.store(true, Ordering::Release);
        self.arrived.notify_one();
        let mut through = self.through.subscribe();
        tokio::select! {
            _ = through.wait_for(|t| *t) => {}
            () = self.clock.sleep(PATIENCE) => tracing::warn!("probes of the cache's store took too long"),
        }
    }

    /// It is decided: what was not tried is tried no more.
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

    /// Keeps a few of the rows that pass a hint.
    pub(crate) fn offer(&self, hint: usize, rows: &[RecordBatch]) {
        if self.is_stopped() {
            return;
        }
        let takes = |sample: &mut Sample| sample.offer(rows, self.clock.now());
        if self.samples.lock().get_mut(hint).is_some_and(takes) {
            self.arrived.notify_one();
        }
    }

    async fn look_for_parts(&self) {
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
            // Where that keeps the other tries waiting, it comes after them.
            if spent.store_s <= self.share(start) {
                self.weigh(1, start, &mut spent).await;
            }
        }
        self.weigh(WEIGHINGS, start, &mut spent).await;
        self.samples.lock().iter_mut().for_each(Sample::clear);
        self.through.send_replace(true);
    }

    /// Tries every encoding at every hint once; where it is not the first time, only those that may win, and only while the task
    /// goes on.
    async fn round(&self, again: bool, start: Duration, spent: &mut Spent) {
        let mut left = if again { self.contenders() } else { self.tries() };
        while let Some((encoding, hint, rows)) = self.next_try(&mut left, again).await {
            if rows.batches.is_empty() {
                continue;
            }
            // The store is the same for all, and weighed by the first one. Until everything was tried once, the few requests of
            // the others do not wait for what that took; then they make none.
            let weighs = spent.weighings == 0;
            if !self.turn(start, spent, weighs).await || again && self.is_over() {
                return;
            }
            self.try_one(spent, encoding, hint, &rows, weighs).await;
        }
    }

    /// Weighs the store so many times, but not more often than it has to be in all, as its share allows.
    async fn weigh(&self, times: usize, start: Duration, spent: &mut Spent) {
        for _ in 0..times.min(WEIGHINGS.saturating_sub(spent.weighings)) {
            let mut any = self.tries();
            let Some((encoding, hint, rows)) = self.next_try(&mut any, false).await else { return };
            if !self.turn(start, spent, true).await || self.is_over() || rows.batches.is_empty() {
                return;
            }
            self.try_one(spent, encoding, hint, &rows, true).await;
        }
    }

    /// Waits until a try may begin, which weighs the store or does not; whether anybody still wants it.
    async fn turn(&self, start: Duration, spent: &Spent, weighs: bool) -> bool {
        while !self.is_over() && !self.is_stopped() && !self.may_go_on(start, spent, weighs) {
            self.clock.sleep(PAUSE).await;
        }
        !self.is_stopped()
    }

    async fn try_one(&self, spent: &mut Spent, encoding: Encoding, hint: usize, rows: &Rows, weighs: bool) {
        let Probing { threads, readers, .. } = self.probing;
        let bound = &self.hints[hint];
        let before = self.clock.now();
        let fetch_cpu_s_per_byte = self.fetch_cpu_s_per_byte(&bound.name, encoding);
        let task = ProbeTask { threads, readers, weighs, fetch_cpu_s_per_byte };
        spent.store_s += match self.cache.probe(&bound.schema, &rows.batches, encoding, task).await {
            Ok(probe) => {
                spent.cpu_s += probe.spent_cpu_s;
                spent.weighings += usize::from(weighs);
                let (hint, raw_bytes) = (bound.name.clone(), rows.raw_bytes);
                self.findings.lock().probes.push(HintProbe { hint, probe, raw_bytes });
                probe.spent_store_s
            }
            // An encoding that cannot hold these columns is no option; a store that fails is none either, and is not
            // weighed by that.
            Err(error) => {
                tracing::debug!(hint = %bound.name, %encoding, %error, "a probe failed");
                let took = self.clock.now().saturating_sub(before).as_secs_f64();
                spent.cpu_s += took;
                took
            }
        };
    }

    /// What fetching a byte takes in an encoding, by its first try; the others have it from there.
    fn fetch_cpu_s_per_byte(&self, hint: &str, encoding: Encoding) -> Option<f64> {
        let findings = self.findings.lock();
        let mut tries = findings.probes.iter().filter(|p| p.hint == hint);
        tries.find(|p| p.probe.encoding == encoding).map(|p| p.probe.fetch_cpu_s_per_byte)
    }

    /// Everything that there is to try: each encoding at the hints at which it is of interest.
    fn tries(&self) -> Vec<(Encoding, usize)> {
        let hints = |encoding| {
            let hints = 0..self.hints.len();
            hints.filter(move |hint| self.is_of_interest(*hint, encoding)).map(move |hint| (encoding, hint))
        };
        self.encodings().into_iter().flat_map(hints).collect()
    }

    /// What is left of it once everything was tried: without those that are behind another encoding of their hint in
    /// everything. A hint's encodings come one after the other: what slows a machine down for a second is to hit all of them.
    fn contenders(&self) -> Vec<(Encoding, usize)> {
        let findings = self.findings.lock().clone();
        let of = |encoding, hint: usize| Costs::of(&findings.probes, &self.hints[hint].name, encoding);
        let stored = |encoding, hint: usize| {
            let part = HintParts { hint: self.hints[hint].name.clone(), encoding };
            findings.parts.iter().flatten().any(|p| *p == part)
        };
        let mut all = self.tries();
        let rivals = all.clone();
        let beaten = |encoding, hint| {
            // What failed will fail again.
            let Some(costs) = of(encoding, hint) else { return true };
            let others = rivals.iter().filter(|(e, h)| *h == hint && *e != encoding);
            others.filter_map(|(e, h)| of(*e, *h)).any(|other| other.beats(costs))
        };
        all.retain(|(encoding, hint)| stored(*encoding, *hint) || !beaten(*encoding, *hint));
        all.sort_by_key(|(_, hint)| *hint);
        all
    }

    /// The first of what is left to try of which there are rows, with them: a hint behind a large buffer, or a filter that
    /// lets little pass, keeps the others from nothing.
    async fn next_try(
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
                () = self.clock.sleep(Sample::LOOK) => {}
            }
        }
        None
    }

    /// Every encoding that is tried at some hint: the candidates, and those in which there are parts.
    fn encodings(&self) -> Vec<Encoding> {
        let mut all: Vec<Encoding> = self.probing.encoding.map_or(CANDIDATES.to_vec(), |e| vec![e]);
        for part in self.findings.lock().parts.iter().flatten() {
            if !all.contains(&part.encoding) {
                all.push(part.encoding);
            }
        }
        all
    }

    fn is_of_interest(&self, hint: usize, encoding: Encoding) -> bool {
        let name = &self.hints[hint].name;
        let stored = |p: &HintParts| p.hint == *name && p.encoding == encoding;
        let candidate = || self.probing.encoding.map_or(CANDIDATES.contains(&encoding), |e| e == encoding);
        self.findings.lock().parts.iter().flatten().any(stored) || !self.probing.stored_only && candidate()
    }

    /// What may have been spent since the start of anything of which a second lasts as long.
    fn share(&self, start: Duration) -> f64 {
        self.clock.now().saturating_sub(start).as_secs_f64() * SHARE
    }

    /// Whether what was spent since the start is within the share, the store included if `all` of it counts.
    fn may_go_on(&self, start: Duration, spent: &Spent, all: bool) -> bool {
        let share = self.share(start);
        spent.cpu_s <= share * self.probing.cores && (!all || spent.store_s <= share)
    }

    /// Rows of a hint for a try, if there are any.
    fn sample(&self, hint: usize, again: bool) -> Option<Rows> {
        self.samples.lock().get(hint)?.rows(again, self.clock.now(), self.is_over())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(hint: &str, encoding: Encoding, bytes: u64, decode_cpu_s: f64) -> HintProbe {
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
    fn what_is_behind_in_everything_is_not_tried_again() {
        let [plain, lz4, zstd, parquet] = CANDIDATES;
        let probes = [
            tried("a", plain, 1000, 0.001),
            tried("a", lz4, 500, 0.004),
            tried("a", zstd, 300, 0.006),
            tried("a", zstd, 300, 0.008),
            tried("a", parquet, 320, 0.015),
            tried("b", plain, 100, 0.02),
        ];
        let of = |encoding| Costs::of(&probes, "a", encoding).unwrap();
        assert_eq!(Costs::of(&probes, "b", zstd), None);
        // Seven and fifteen milliseconds for ten rows.
        assert!(of(zstd).beats(of(parquet)));
        assert!(!of(parquet).beats(of(zstd)));
        for (a, b) in [(plain, lz4), (lz4, plain), (lz4, zstd), (zstd, lz4), (plain, parquet)] {
            assert!(!of(a).beats(of(b)), "{a} {b}: fewer bytes or less work");
        }
    }
}
