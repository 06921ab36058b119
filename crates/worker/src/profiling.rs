//! What is measured of a task for the planner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use caju_engine::{CachePlan, Findings, ReadLimit, SplitModes, TaskStats};
use caju_proto::v1;
use caju_types::TaskId;

/// Takes a decision: a plan, or that nothing is stored.
pub(crate) type Decide = Box<dyn Fn(Option<&CachePlan>) + Send + Sync>;

/// The measurements of a task that is profiled for the planner.
pub(crate) struct Profiled {
    pub(crate) findings: Box<dyn Fn() -> Option<Findings> + Send + Sync>,
    pub(crate) modes: Box<dyn Fn() -> SplitModes + Send + Sync>,
    /// Takes the decision.
    pub(crate) decide: Decide,
    pub(crate) started: std::time::Instant,
    /// CPU threads; shared threads count by the task's fraction of them.
    pub(crate) threads: f64,
    /// The splits that are read concurrently.
    pub(crate) readers: Arc<ReadLimit>,
    /// Bytes of parts that are cached in memory.
    pub(crate) memory_tier_bytes: u64,
    /// What the process does besides it.
    pub(crate) overhead: ProcessOverhead,
}

/// CPU time that goes with the stages' work and is not counted there, as a fraction of it: page faults, memory that other
/// threads give back, switching between threads. It is a tenth for pipelines that decode photos and whose readers do next to
/// nothing.
const UNCOUNTED_FRACTION: f64 = 0.1;

/// CPU time of a task's process outside the task's stages: handing rows to readers, threads that wake each other and, where
/// the reader lives in the same process, what it does with its rows. This time takes cores from the stages, and comes with
/// rows whether they are computed or read. It counts only while the reader keeps up: while rows wait for the reader, other
/// work of the process does not delay them. It is known while the task is the only one that was started, and until it is
/// decided what to store.
pub(crate) struct ProcessOverhead {
    start: Duration,
    /// How many tasks were started when this one was, with this one; none if others ran.
    started: Option<(Arc<AtomicU64>, u64)>,
    ended: AtomicBool,
    /// The most that it ever was, in nanoseconds: the time of a probe is the task's own only when the probe has ended.
    most: AtomicU64,
}

impl ProcessOverhead {
    /// Measures from now on. `started` counts the worker's tasks, of which this one is the last; none if others run.
    pub(crate) fn from_now(started: Option<(Arc<AtomicU64>, u64)>) -> Self {
        Self {
            start: caju_runtime::cpu_time(),
            started,
            ended: AtomicBool::new(false),
            most: AtomicU64::new(0),
        }
    }

    /// Stops measuring.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Seconds so far. `own_s` is the CPU time of the task's stages and probes; readers kept up for a `fraction` of the time.
    fn cpu_s(&self, own_s: f64, fraction: f64) -> f64 {
        let alone =
            self.started.as_ref().is_some_and(|(started, then)| started.load(Ordering::Acquire) == *then);
        let now = if alone && !self.ended.load(Ordering::Relaxed) {
            let all = caju_runtime::cpu_time().saturating_sub(self.start).as_secs_f64();
            (all - (1.0 + UNCOUNTED_FRACTION) * own_s).max(0.0) * fraction.clamp(0.0, 1.0)
        } else {
            0.0
        };
        let now = u64::try_from(Duration::try_from_secs_f64(now).unwrap_or_default().as_nanos()).unwrap_or(0);
        Duration::from_nanos(self.most.fetch_max(now, Ordering::Relaxed).max(now)).as_secs_f64()
    }
}

impl std::fmt::Debug for Profiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Profiled").field("threads", &self.threads).finish_non_exhaustive()
    }
}

impl Profiled {
    /// The measurements so far.
    pub(crate) fn profile(&self, task: TaskId, counters: &TaskStats) -> v1::TaskProfile {
        let modes = (self.modes)();
        // Without hints or a cache there is nothing to probe.
        let nothing = || Findings { parts: Some(Vec::new()), complete: true, ..Findings::default() };
        let found = (self.findings)().unwrap_or_else(nothing);
        let mut stages = counters.snapshot();
        let own =
            stages.iter().map(|s| s.cpu_s).chain(found.probes.iter().map(|p| p.probe.spent_cpu_s)).sum();
        let elapsed_s = self.started.elapsed().as_secs_f64();
        if let Some(output) = stages.last_mut() {
            output.cpu_s += self.overhead.cpu_s(own, 1.0 - output.wait_out_s / elapsed_s.max(1e-3));
        }
        let probes = found.probes.into_iter().map(|p| v1::HintProbe {
            hint: p.hint,
            encoding: p.probe.encoding.to_string(),
            rows: p.probe.rows,
            bytes: p.probe.bytes,
            encode_cpu_s: p.probe.encode_cpu_s,
            decode_cpu_s: p.probe.decode_cpu_s,
            write_bytes_per_s: p.probe.write_bytes_per_s,
            read_bytes_per_s: p.probe.read_bytes_per_s,
            raw_bytes: p.raw_bytes,
        });
        let (source_bytes, source_s) = counters.reads.so_far();
        let (sent_bytes, sent_s) = counters.sends.so_far();
        v1::TaskProfile {
            task_id: task.0,
            stages,
            probes: probes.collect(),
            parts_listed: found.parts.is_some(),
            complete: found.complete,
            elapsed_s,
            threads: self.threads,
            computed: modes.compute + modes.put,
            read: modes.get,
            source_bytes,
            source_s,
            source_requests_at_once: self.readers.readers() as u64,
            memory_tier_bytes: self.memory_tier_bytes,
            sent_bytes,
            sent_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_outside_its_only_task_is_known() {
        let started = Arc::new(AtomicU64::new(3));
        let overhead =
            |started: Option<&Arc<AtomicU64>>| ProcessOverhead::from_now(started.map(|b| (Arc::clone(b), 3)));
        let (alone, joined, read, other) =
            (overhead(Some(&started)), overhead(None), overhead(Some(&started)), overhead(Some(&started)));
        let end = caju_runtime::thread_cpu_time() + Duration::from_millis(30);
        while caju_runtime::thread_cpu_time() < end {
            std::hint::spin_loop();
        }
        // Other tests of this process may add to it.
        assert!(other.cpu_s(1e6, 1.0) <= 0.0, "what is the task's own does not count");
        let first = alone.cpu_s(0.0, 1.0);
        assert!(first >= 0.03);
        assert!(alone.cpu_s(1.0, 1.0) >= first, "it never gets less");
        assert!(joined.cpu_s(0.0, 1.0) <= 0.0, "of several tasks nobody knows whose it is");
        assert!(read.cpu_s(0.0, -0.1) <= 0.0, "rows waited for their reader");
        started.fetch_add(1, Ordering::AcqRel);
        assert!(other.cpu_s(0.0, 1.0) <= 0.0, "another one began");
        let last = alone.cpu_s(0.0, 1.0);
        alone.end();
        assert!((alone.cpu_s(0.0, 1.0) - last).abs() < 1e-9, "and stays as it was");
    }
}
