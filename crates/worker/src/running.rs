//! A running task and its readers.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use caju_engine::{CachePlan, Findings, RowChecks, SplitModes, TaskRun, TaskStats};
use caju_proto::v1::{self, SplitCount, StageStats, TaskStatus};
use caju_runtime::Tasks;
use caju_types::{Error, IterationId, Result, Secret, TaskId};
use caju_wire::{Chunk, LocalTask, Run};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::dealer::Dealer;
use crate::outlet::Outlet;
use crate::tally::Tally;

/// A running task. Its output waits in one queue, from which all its readers take chunks, or in one for each consumer.
#[derive(Debug)]
pub(crate) struct RunningTask {
    pub(crate) id: TaskId,
    pub(crate) iteration: IterationId,
    /// The secret that the tickets of its readers are derived from.
    pub(crate) secret: Option<Secret>,
    pub(crate) schema: SchemaRef,
    queue: Outlet,
    counters: Arc<TaskStats>,
    row_checks: Arc<RowChecks>,
    profiled: Option<Profiled>,
    group: Tasks,
    readers: AtomicUsize,
    /// A reader disconnected with rows that it may not have received.
    broken: AtomicBool,
    /// The only possible reader disconnected for good.
    abandoned: AtomicBool,
    changed: Notify,
    rows_out: AtomicU64,
    bytes_out: AtomicU64,
    /// Rows that went out, per split, once all did.
    emitted: OnceLock<Vec<SplitCount>>,
    /// Rows of those that were written to Arrow Flight readers.
    to_flight: Mutex<Tally>,
    /// Splits whose numbers of rows no reader was told yet.
    sized: Mutex<Vec<(u64, u64)>>,
}

/// Splits of which a task remembers the number of rows until a reader is told: 1 MiB. Readers do without those of more.
const MAX_SIZED: usize = 1 << 16;

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
    /// Splits that are read concurrently.
    pub(crate) readers: u64,
    /// Bytes of parts that are cached in memory.
    pub(crate) memory_tier_bytes: u64,
    /// What the process does beside it.
    pub(crate) beside: Beside,
}

/// What the stages' work takes beside their own time, as a part of it: page faults, memory that other threads give back,
/// switching between threads. Of pipelines that decode photos and whose readers do next to nothing it is a tenth.
const SHADOW: f64 = 0.1;

/// CPU time that the process of a task takes beside the task's stages: handing rows to readers, threads that wake each
/// other and, where the reader lives in the same process, what it does with its rows. It takes cores from the stages, and
/// comes with rows whether they are computed or read, as far as the reader keeps up: a process that is busy with something
/// else, while rows wait, is not held up by them. It is known while the task is the only one that began, and until it is
/// decided what to store.
pub(crate) struct Beside {
    start: Duration,
    /// How many tasks had begun, with the one that this is about; none if there were others.
    begun: Option<(Arc<AtomicU64>, u64)>,
    ended: AtomicBool,
    /// The most that it ever was, in nanoseconds: a probe's time is its own only when it is through.
    most: AtomicU64,
}

impl Beside {
    /// From now on, beside the only task, if it is that: of those that are counted here it is the last.
    pub(crate) fn from_now(begun: Option<(Arc<AtomicU64>, u64)>) -> Self {
        Self {
            start: caju_runtime::cpu_time(),
            begun,
            ended: AtomicBool::new(false),
            most: AtomicU64::new(0),
        }
    }

    fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Seconds of it so far, where so many are the task's own and readers kept up for a `share` of the time.
    fn cpu_s(&self, own: f64, share: f64) -> f64 {
        let alone = self.begun.as_ref().is_some_and(|(begun, then)| begun.load(Ordering::Acquire) == *then);
        let now = if alone && !self.ended.load(Ordering::Relaxed) {
            let all = caju_runtime::cpu_time().saturating_sub(self.start).as_secs_f64();
            (all - (1.0 + SHADOW) * own).max(0.0) * share.clamp(0.0, 1.0)
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

/// How a task ended.
#[derive(Debug, Clone)]
pub(crate) struct Finished {
    pub(crate) result: Result<()>,
    pub(crate) stages: Vec<StageStats>,
    pub(crate) rows_skipped: u64,
    pub(crate) first_skips: Vec<String>,
    pub(crate) modes: SplitModes,
    /// Rows that went out, per split; absent unless all did.
    pub(crate) emitted: Option<Vec<SplitCount>>,
    /// Rows of those that were written to Arrow Flight readers, per split.
    pub(crate) to_flight: Vec<SplitCount>,
}

impl RunningTask {
    pub(crate) fn new(
        id: TaskId,
        (iteration, secret): (IterationId, Option<Secret>),
        schema: SchemaRef,
        run: &TaskRun,
        (buffer_bytes, consumers): (usize, usize),
        profiled: Option<Profiled>,
        group: Tasks,
    ) -> Self {
        Self {
            id,
            iteration,
            secret,
            schema,
            queue: Outlet::new(buffer_bytes, consumers),
            counters: run.counters(),
            row_checks: run.row_checks(),
            profiled,
            group,
            readers: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            changed: Notify::new(),
            rows_out: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            emitted: OnceLock::new(),
            to_flight: Mutex::default(),
            sized: Mutex::default(),
        }
    }

    /// Checksums of rows since the last call.
    pub(crate) fn take_checksums(&self) -> Vec<v1::RowChecksum> {
        let of = |c: caju_engine::RowChecksum| v1::RowChecksum {
            task_id: self.id.0,
            split_index: c.split,
            ordinal: c.ordinal,
            checksum: c.checksum,
        };
        self.row_checks.take().into_iter().map(of).collect()
    }

    /// Rows that went out, per split, once all did.
    pub(crate) fn emitted(&self) -> Option<Vec<SplitCount>> {
        self.emitted.get().cloned()
    }

    /// Rows that were written to Arrow Flight readers so far, per split.
    pub(crate) fn to_flight(&self) -> Vec<SplitCount> {
        self.to_flight.lock().counts()
    }

    fn sized(&self, more: Vec<(u64, u64)>) {
        let mut sized = self.sized.lock();
        if sized.len() < MAX_SIZED {
            sized.extend(more);
        }
    }

    /// Splits whose numbers of rows no reader was told yet.
    pub(crate) fn take_sized(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut *self.sized.lock())
    }

    /// An Arrow Flight reader was sent these rows.
    pub(crate) fn sent_to_flight(&self, runs: &[Run]) {
        self.to_flight.lock().add(runs);
    }

    /// How a task ended of which nothing is known but what it has sent.
    pub(crate) fn finished(&self, result: Result<()>) -> Finished {
        Finished {
            result,
            stages: self.stages(),
            rows_skipped: 0,
            first_skips: Vec::new(),
            modes: SplitModes::default(),
            emitted: self.emitted(),
            to_flight: self.to_flight(),
        }
    }

    /// The measurements so far, if the task is profiled.
    pub(crate) fn profile(&self) -> Option<v1::TaskProfile> {
        let profiled = self.profiled.as_ref()?;
        let modes = (profiled.modes)();
        // Without hints or a cache there is nothing to probe.
        let nothing = || Findings { parts: Some(Vec::new()), complete: true, ..Findings::default() };
        let found = (profiled.findings)().unwrap_or_else(nothing);
        let mut stages = self.counters.snapshot();
        let own =
            stages.iter().map(|s| s.cpu_s).chain(found.probes.iter().map(|p| p.probe.spent_cpu_s)).sum();
        let elapsed_s = profiled.started.elapsed().as_secs_f64();
        if let Some(output) = stages.last_mut() {
            output.cpu_s += profiled.beside.cpu_s(own, 1.0 - output.wait_out_s / elapsed_s.max(1e-3));
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
        let (source_bytes, source_s) = self.counters.reads.so_far();
        let (sent_bytes, sent_s) = self.counters.sends.so_far();
        let looked = found.parts.is_some();
        Some(v1::TaskProfile {
            task_id: self.id.0,
            stages,
            probes: probes.collect(),
            looked,
            complete: found.complete,
            elapsed_s,
            threads: profiled.threads,
            computed: modes.compute + modes.put,
            read: modes.get,
            source_bytes,
            source_s,
            source_requests_at_once: profiled.readers,
            memory_tier_bytes: profiled.memory_tier_bytes,
            sent_bytes,
            sent_s,
        })
    }

    /// Takes a decision that came while the task ran: a plan, or that nothing is stored.
    pub(crate) fn decide(&self, plan: Option<&CachePlan>) {
        if let Some(profiled) = &self.profiled {
            profiled.beside.end();
            (profiled.decide)(plan);
        }
    }

    /// Sends something to a reader; the CPU time counts for the output stage.
    pub(crate) async fn sending<F: Future>(&self, send: F) -> F::Output {
        self.counters.output().polled(send).await
    }

    /// Counts bytes that were sent over the network.
    pub(crate) fn sent(&self, bytes: u64, took: Duration) {
        self.counters.sends.add(bytes, took);
    }

    /// Moves the task's output into the queue until its end, then waits until readers have received it.
    pub(crate) async fn pump(
        &self,
        mut run: TaskRun,
        linger: Duration,
        mut dealer: Option<Dealer>,
    ) -> Finished {
        let mut tally = Tally::default();
        let result = tokio::select! {
            r = self.emit(&mut run, &mut tally, dealer.as_mut()) => r,
            () = self.deserted(linger) => Err(Error::cancelled(format!("nobody has read {} for {linger:?}", self.id))),
        };
        let result = match result {
            Ok(()) => {
                // Before the end: whoever sees it may ask.
                self.emitted.get_or_init(|| tally.counts());
                self.queue.close();
                self.delivered(linger).await
            }
            Err(e) => Err(e),
        };
        Finished {
            stages: run.stats(),
            rows_skipped: run.rows_skipped(),
            first_skips: run.first_skips(),
            modes: run.modes(),
            ..self.finished(result)
        }
    }

    /// The outcome of a task whose [`RunningTask::pump`] panicked.
    pub(crate) fn broken(&self, error: Error) -> Finished {
        let modes = self.profiled.as_ref().map(|p| (p.modes)()).unwrap_or_default();
        Finished { modes, ..self.finished(Err(error)) }
    }

    async fn emit(
        &self,
        run: &mut TaskRun,
        tally: &mut Tally,
        mut dealer: Option<&mut Dealer>,
    ) -> Result<()> {
        loop {
            let start = std::time::Instant::now();
            // A chunk is computed when there is space for it: a waiting chunk takes memory too.
            if !self.queue.writable().await {
                return Err(Error::cancelled(format!("{} was stopped", self.id)));
            }
            self.counters.output().waited_out(start.elapsed());
            let next = run.next().await.transpose()?;
            self.sized(run.take_sized());
            let Some(chunk) = next else { break };
            match dealer.as_mut() {
                None => self.put(0, chunk, tally)?,
                Some(dealer) => {
                    dealer.deal(chunk).into_iter().try_for_each(|(to, chunk)| self.put(to, chunk, tally))?;
                }
            }
        }
        match dealer {
            None => Ok(()),
            Some(dealer) => {
                dealer.deal_tail().await?.into_iter().try_for_each(|(to, chunk)| self.put(to, chunk, tally))
            }
        }
    }

    fn put(&self, to: usize, chunk: Chunk, tally: &mut Tally) -> Result<()> {
        self.rows_out.fetch_add(chunk.rows() as u64, Ordering::Relaxed);
        self.bytes_out.fetch_add(chunk.bytes() as u64, Ordering::Relaxed);
        tally.add(&chunk.runs);
        if self.queue.push(to, chunk) {
            return Ok(());
        }
        Err(Error::cancelled(format!("{} was stopped", self.id)))
    }

    /// Waits until nobody has read the task for so long, or its only reader has left for good.
    async fn deserted(&self, linger: Duration) {
        loop {
            self.until(|| self.readers.load(Ordering::Acquire) == 0).await;
            if self.abandoned.load(Ordering::Acquire) {
                return;
            }
            let back = self
                .until(|| self.readers.load(Ordering::Acquire) > 0 || self.abandoned.load(Ordering::Acquire));
            if tokio::time::timeout(linger, back).await.is_err() {
                return;
            }
        }
    }

    /// Waits until readers have received all that was emitted.
    async fn delivered(&self, linger: Duration) -> Result<()> {
        let idle = || self.readers.load(Ordering::Acquire) == 0;
        let abandoned = || self.abandoned.load(Ordering::Acquire);
        let mut until = Instant::now() + linger;
        loop {
            self.until(idle).await;
            if abandoned() {
                return Err(Error::cancelled(format!("the reader of {} left before its end", self.id)));
            }
            if self.queue.is_empty() && !self.broken.load(Ordering::Acquire) {
                return Ok(());
            }
            // Rows wait for a reader to connect, or the dispatcher finds out what a disconnected one received.
            let back = self.until(|| !idle() || abandoned());
            if tokio::time::timeout_at(until, back).await.is_err() {
                // The reader is gone and may have received rows: the dispatcher finds out which rows others need.
                return Err(Error::cancelled(format!("nobody has read {} for {linger:?}", self.id)));
            }
            until = Instant::now() + linger;
        }
    }

    async fn until(&self, condition: impl Fn() -> bool) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if condition() {
                return;
            }
            changed.await;
        }
    }

    /// Stops the task with an error for its readers.
    pub(crate) fn abort(&self, error: Error) {
        self.queue.abort(&error);
        self.group.stop();
    }

    /// Whether everything was emitted, and no reader is known to have lost rows.
    pub(crate) fn is_delivered(&self) -> bool {
        self.queue.is_closed() && self.queue.is_empty() && !self.broken.load(Ordering::Acquire)
    }

    /// Reports the task's failure to its readers.
    pub(crate) fn fail(&self, error: Error) {
        self.queue.abort(&error);
    }

    pub(crate) fn stages(&self) -> Vec<StageStats> {
        self.counters.snapshot()
    }

    pub(crate) fn buffered_bytes(&self) -> usize {
        self.queue.bytes()
    }

    pub(crate) fn status(&self) -> TaskStatus {
        TaskStatus {
            task_id: self.id.0,
            iteration_id: self.iteration.0,
            rows_out: self.rows_out.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            buffered_bytes: self.queue.bytes() as u64,
            stages: self.stages(),
        }
    }

    /// Attaches a reader, or a consumer of its job.
    ///
    /// # Errors
    /// `FailedPrecondition` for a reader that is none of the job's consumers.
    pub(crate) fn attach(self: &Arc<Self>, consumer: Option<u32>) -> Result<Attachment> {
        let at = self.queue.queue_of(consumer)?;
        self.readers.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
        Ok(Attachment { task: Arc::clone(self), at, took: false, received: false, only: false })
    }
}

/// One reader of a task. If it is dropped before [`Attachment::received`], rows may be lost with it.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) task: Arc<RunningTask>,
    /// The queue that it takes from.
    at: usize,
    took: bool,
    received: bool,
    only: bool,
}

impl Attachment {
    /// Marks this reader as the only possible one: the task ends with it.
    pub(crate) fn only(mut self) -> Self {
        self.only = true;
        self
    }

    /// The next chunk; `None` at the end. Cancelling the wait loses nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Chunk>> {
        let chunk = self.task.queue.pop(self.at).await?;
        self.took |= chunk.is_some();
        Ok(chunk)
    }

    /// The next chunk, if there is one now and `wanted` accepts it.
    pub(crate) fn next_if(&mut self, wanted: impl FnOnce(&Chunk, usize) -> bool) -> Option<Chunk> {
        let chunk = self.task.queue.pop_if(self.at, wanted);
        self.took |= chunk.is_some();
        chunk
    }

    /// The reader has received everything that it took.
    pub(crate) fn received(&mut self) {
        self.received = true;
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if !self.received && self.took {
            self.task.broken.store(true, Ordering::Release);
        }
        if !self.received && self.only {
            self.task.abandoned.store(true, Ordering::Release);
        }
        self.task.readers.fetch_sub(1, Ordering::AcqRel);
        self.task.changed.notify_waiters();
    }
}

/// A reader in this process: rows that it takes are received.
#[async_trait]
impl LocalTask for Attachment {
    async fn next(&mut self) -> Result<Option<Chunk>> {
        let chunk = Attachment::next(self).await?;
        self.received |= chunk.is_none();
        Ok(chunk)
    }

    fn emitted(&self) -> Option<Vec<SplitCount>> {
        self.task.emitted()
    }

    fn take_sized(&mut self) -> Vec<(u64, u64)> {
        self.task.take_sized()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_does_beside_its_only_task_is_known() {
        let begun = Arc::new(AtomicU64::new(3));
        let beside = |begun: Option<&Arc<AtomicU64>>| Beside::from_now(begun.map(|b| (Arc::clone(b), 3)));
        let (alone, joined, read, other) =
            (beside(Some(&begun)), beside(None), beside(Some(&begun)), beside(Some(&begun)));
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
        begun.fetch_add(1, Ordering::AcqRel);
        assert!(other.cpu_s(0.0, 1.0) <= 0.0, "another one began");
        let last = alone.cpu_s(0.0, 1.0);
        alone.end();
        assert!((alone.cpu_s(0.0, 1.0) - last).abs() < 1e-9, "and stays as it was");
    }
}
