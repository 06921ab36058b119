//! The counters of each stage of a task, without locks.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caju_proto::v1::{StageKind, StageStats};
use caju_runtime::thread_cpu_time;
use caju_sources::ReadObserver;

use crate::busy::BusyClock;

thread_local! {
    /// CPU time that inner sections counted on this thread since the innermost open section began.
    static COUNTED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Runs a piece of work and returns its own CPU time on this thread: the time of nested sections is theirs alone, so that no
/// time counts for two stages.
fn own_cpu<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let around = COUNTED.replace(Duration::ZERO);
    let start = thread_cpu_time();
    let out = work();
    let all = thread_cpu_time().saturating_sub(start);
    let inside = COUNTED.replace(around + all);
    (out, all.saturating_sub(inside))
}

/// Counters of one stage.
#[derive(Debug, Default)]
pub struct StageCounters {
    name: String,
    kind: StageKind,
    /// Whether times are measured; rows and bytes are always counted.
    profiling: bool,
    rows_in: AtomicU64,
    rows_out: AtomicU64,
    bytes_out: AtomicU64,
    cpu_ns: AtomicU64,
    busy_ns: AtomicU64,
    wait_in_ns: AtomicU64,
    wait_out_ns: AtomicU64,
    /// Pieces of work in flight, and the most at a time.
    in_flight: AtomicU32,
    at_once: AtomicU32,
}

/// A piece of a stage's work in flight; the time until it is dropped is busy time of the stage.
pub(crate) struct Serving<'a> {
    counters: &'a StageCounters,
    start: Instant,
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.counters.in_flight.fetch_sub(1, Ordering::Relaxed);
        add(&self.counters.busy_ns, self.start.elapsed());
    }
}

fn add(counter: &AtomicU64, d: Duration) {
    counter.fetch_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn seconds(counter: &AtomicU64) -> f64 {
    Duration::from_nanos(counter.load(Ordering::Relaxed)).as_secs_f64()
}

impl StageCounters {
    /// The stage's place in the definition, for messages: `steps[3].batch`.
    pub(crate) fn place(&self) -> String {
        match self.name.split_once('.') {
            Some((number, op)) => format!("steps[{number}].{op}"),
            None => self.name.clone(),
        }
    }

    /// Runs a piece of the stage's work on this thread and counts its time.
    pub(crate) fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        if !self.profiling {
            return work();
        }
        let _serving = self.serving();
        let (out, cpu) = own_cpu(work);
        add(&self.cpu_ns, cpu);
        out
    }

    pub(crate) fn moved(&self, rows_in: usize, rows_out: usize, bytes_out: usize) {
        self.rows_in.fetch_add(rows_in as u64, Ordering::Relaxed);
        self.rows_out.fetch_add(rows_out as u64, Ordering::Relaxed);
        self.bytes_out.fetch_add(bytes_out as u64, Ordering::Relaxed);
    }

    /// Runs a future and counts the CPU time of its polls, without the time of nested sections.
    pub async fn polled<F: Future>(&self, future: F) -> F::Output {
        if !self.profiling {
            return future.await;
        }
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| {
            let (poll, cpu) = own_cpu(|| future.as_mut().poll(cx));
            add(&self.cpu_ns, cpu);
            poll
        })
        .await
    }

    /// Adds CPU time that was spent elsewhere for this stage.
    pub(crate) fn used(&self, cpu: Duration) {
        add(&self.cpu_ns, cpu);
    }

    /// Counts the CPU time of handing a piece of the stage's work to this thread, at its start.
    pub(crate) fn handed_over(&self) {
        if self.profiling {
            add(&self.cpu_ns, caju_runtime::handover_cpu_time());
        }
    }

    /// Begins a piece of work, which may wait for something.
    pub(crate) fn serving(&self) -> Serving<'_> {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.at_once.fetch_max(now, Ordering::Relaxed);
        Serving { counters: self, start: Instant::now() }
    }

    pub(crate) fn waited_in(&self, d: Duration) {
        add(&self.wait_in_ns, d);
    }

    /// Counts time that the task waited for space below this stage.
    pub fn waited_out(&self, d: Duration) {
        add(&self.wait_out_ns, d);
    }

    fn snapshot(&self) -> StageStats {
        StageStats {
            name: self.name.clone(),
            rows_in: self.rows_in.load(Ordering::Relaxed),
            rows_out: self.rows_out.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            cpu_s: seconds(&self.cpu_ns),
            busy_s: seconds(&self.busy_ns),
            wait_in_s: seconds(&self.wait_in_ns),
            wait_out_s: seconds(&self.wait_out_ns),
            at_once: self.at_once.load(Ordering::Relaxed),
            kind: self.kind.into(),
        }
    }
}

/// Bytes that were transferred from or to another process or store, and the time that this took.
#[derive(Debug, Default)]
pub struct TransferCounter {
    bytes: AtomicU64,
    ns: AtomicU64,
}

impl TransferCounter {
    /// Counts a transfer.
    pub fn add(&self, bytes: u64, took: Duration) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        add(&self.ns, took);
    }

    /// Bytes and seconds so far.
    pub fn so_far(&self) -> (u64, f64) {
        (self.bytes.load(Ordering::Relaxed), seconds(&self.ns))
    }
}

/// What is read from the source for one split.
#[derive(Debug)]
pub(crate) struct SplitReads {
    task: Arc<TaskStats>,
    bytes: AtomicU64,
}

impl SplitReads {
    pub(crate) fn of(task: Arc<TaskStats>) -> Arc<Self> {
        Arc::new(Self { task, bytes: AtomicU64::new(0) })
    }

    /// Bytes so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl ReadObserver for SplitReads {
    /// Counts the bytes for the split and for its task.
    fn on_read(&self, bytes: u64, elapsed: Duration) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.task.reads.add(bytes, elapsed);
    }

    fn on_cpu(&self, cpu: Duration) {
        self.task.source().used(cpu);
    }
}

/// Counters of all stages of a task: the source first, the output last.
#[derive(Debug)]
pub struct TaskStats {
    stages: Vec<StageCounters>,
    /// Reads from the source's store: the time is the sum over requests, several of which run concurrently.
    pub reads: TransferCounter,
    /// Rows sent to readers through sockets.
    pub sends: TransferCounter,
    /// How long the task worked.
    pub busy: Arc<BusyClock>,
    /// Rows that stages hold which compute nothing: `shuffle`, `batch`, `bucket_by_length` and `prefetch`.
    held: AtomicI64,
    /// Rows that were computed, and are not given out because readers have them already.
    left_out: AtomicU64,
    /// Splits that the task began to read from the source.
    opens: AtomicU64,
}

impl TaskStats {
    pub(crate) fn new(stages: impl IntoIterator<Item = (String, StageKind)>, profiling: bool) -> Self {
        let stage = |(name, kind)| StageCounters { name, kind, profiling, ..Default::default() };
        let stages = stages.into_iter().map(stage).collect();
        let (reads, sends) = (TransferCounter::default(), TransferCounter::default());
        Self {
            stages,
            reads,
            sends,
            busy: Arc::default(),
            held: AtomicI64::new(0),
            left_out: AtomicU64::new(0),
            opens: AtomicU64::new(0),
        }
    }

    /// A stage that computes nothing took rows in, and gave rows out.
    pub(crate) fn held(&self, rows_in: usize, rows_out: usize) {
        let signed = |rows| i64::try_from(rows).unwrap_or(i64::MAX);
        self.held.fetch_add(signed(rows_in) - signed(rows_out), Ordering::Relaxed);
    }

    /// Rows that readers have already are not given out.
    pub(crate) fn left_out(&self, rows: usize) {
        self.left_out.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Whether there are rows that readers had already.
    pub(crate) fn has_left_out(&self) -> bool {
        self.left_out.load(Ordering::Relaxed) > 0
    }

    /// Rows that were computed in the time of [`TaskStats::busy`]: those that were given out, those that only wait in the
    /// buffer of a stage, and those that readers had already.
    pub fn busy_rows(&self) -> u64 {
        let given_out = self.output().rows_out.load(Ordering::Relaxed);
        let held = self.held.load(Ordering::Relaxed);
        given_out.saturating_add_signed(held).saturating_add(self.left_out.load(Ordering::Relaxed))
    }

    /// Counts a split that is opened at the source.
    pub(crate) fn source_opened(&self) {
        self.opens.fetch_add(1, Ordering::Relaxed);
    }

    /// Splits that the task began to read from the source. Reads of snapshots do not count; of datasets that are combined
    /// each one's split counts.
    pub fn source_opens(&self) -> u64 {
        self.opens.load(Ordering::Relaxed)
    }

    pub(crate) fn stage(&self, index: usize) -> &StageCounters {
        &self.stages[index]
    }

    /// The source's counters.
    pub(crate) fn source(&self) -> &StageCounters {
        &self.stages[0]
    }

    /// The output's counters: `wait_out` is the time for which the reader was the bottleneck.
    pub fn output(&self) -> &StageCounters {
        &self.stages[self.stages.len() - 1]
    }

    /// What was counted so far.
    pub fn snapshot(&self) -> Vec<StageStats> {
        self.stages.iter().map(StageCounters::snapshot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burn(ms: u64) {
        let end = thread_cpu_time() + Duration::from_millis(ms);
        while thread_cpu_time() < end {
            std::hint::spin_loop();
        }
    }

    /// A stage that runs inside of another's poll (a stream stage in the task's, a nested dataset's in the source's) is
    /// counted once.
    #[tokio::test]
    async fn time_is_in_the_figures_of_one_stage_only() {
        let stats =
            TaskStats::new(["inner", "middle", "outer"].map(|name| (name.into(), StageKind::Rows)), true);
        let [inner, middle, outer] = &stats.stages[..] else { panic!("three stages") };
        outer
            .polled(async {
                burn(2);
                for _ in 0..2 {
                    middle.timed(|| {
                        burn(5);
                        inner.timed(|| burn(20));
                    });
                }
                tokio::task::yield_now().await;
                burn(2);
            })
            .await;
        let cpu: Vec<f64> = stats.snapshot().iter().map(|s| s.cpu_s * 1e3).collect();
        for (cpu, want) in cpu.iter().zip([40.0, 10.0, 4.0]) {
            assert!((want..want * 1.25 + 2.0).contains(cpu), "{cpu} of {want} ms: {stats:?}");
        }
    }
}
