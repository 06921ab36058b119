//! A running task and its readers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow_schema::SchemaRef;
use caju_engine::{
    CachePlan, Demand, ReadLimit, RowChecks, SharedCounts, SharingMember, SplitModes, TaskRun, TaskStats,
};
use caju_proto::v1::{self, SplitCount, StageStats, TaskStatus};
use caju_runtime::{CpuPool, LockRank, OrderedMutex, Tasks};
use caju_types::{Error, IterationId, Result, Secret, TaskId};
use caju_wire::{Chunk, Run};

use crate::body_files::TaskBodies;
use crate::emitted_rows::EmittedRows;
use crate::lagging::LaggingConsumers;
use crate::last_batch::LastBatch;
use crate::listing::TaskListing;
use crate::profiling::Profiled;
use crate::readers::{Readers, Received};
use crate::round_robin::RoundRobin;
use crate::sizes::Sizes;
use crate::task_output::TaskOutput;

/// A running task. Its output waits in one queue, from which all its readers take chunks, or in one for each consumer.
#[derive(Debug)]
pub(crate) struct RunningTask {
    pub(crate) id: TaskId,
    pub(crate) iteration: IterationId,
    pub(crate) job: String,
    /// The splits that it reads concurrently.
    pub(crate) read_limit: Arc<ReadLimit>,
    /// The secret that the tickets of its readers are derived from.
    pub(crate) secret: Option<Secret>,
    pub(crate) schema: SchemaRef,
    pub(crate) queue: TaskOutput,
    counters: Arc<TaskStats>,
    row_checks: Arc<RowChecks>,
    profiled: Option<Profiled>,
    /// Its part in the window of shared rows.
    sharing: Option<Arc<SharingMember>>,
    /// Lagging consumers.
    lagging: Arc<LaggingConsumers>,
    /// Threads for its frames, with the priority of its job. They have a queue of their own, so that rows that are there do not
    /// wait for those that are computed.
    pub(crate) output_pool: CpuPool,
    /// What its readers on this host get in shared memory.
    pub(crate) bodies: Arc<TaskBodies>,
    pub(crate) group: Tasks,
    pub(crate) readers: Readers,
    rows_out: AtomicU64,
    bytes_out: AtomicU64,
    elements_out: AtomicU64,
    /// Rows that went out so far, per split.
    emitted_rows: Arc<OrderedMutex<EmittedRows>>,
    /// The same, once all did, and the rows of splits that were forgotten.
    emitted: OnceLock<(Vec<SplitCount>, u64)>,
    /// Rows of those that were written to Arrow Flight readers.
    to_flight: OrderedMutex<EmittedRows>,
    /// The numbers of rows of splits, for readers.
    pub(crate) sizes: Sizes,
    /// How far its splits are listed, for readers.
    pub(crate) listing: Arc<TaskListing>,
    /// What becomes of its last rows, for readers of Arrow Flight.
    pub(crate) last_batch: LastBatch,
    /// Why it failed, from the moment at which that is reported to the dispatcher.
    failure: OnceLock<Error>,
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
    /// Rows of other splits that went out: users had taken all of these splits before.
    pub(crate) forgotten_rows: u64,
    /// Rows of those that were written to Arrow Flight readers, per split.
    pub(crate) to_flight: Vec<SplitCount>,
    /// What it gave out; absent if it did not begin.
    pub(crate) served: Option<v1::TaskServed>,
    /// Splits that it skipped and that the dispatcher does not know of.
    pub(crate) skipped_splits: Vec<SplitCount>,
}

impl Finished {
    /// Of a task that could not begin.
    pub(crate) fn before_it_began(error: Error) -> Self {
        Self {
            result: Err(error),
            stages: Vec::new(),
            rows_skipped: 0,
            first_skips: Vec::new(),
            modes: SplitModes::default(),
            emitted: None,
            forgotten_rows: 0,
            to_flight: Vec::new(),
            served: None,
            skipped_splits: Vec::new(),
        }
    }
}

/// What a task shares with its splits, its readers and other tasks.
pub(crate) struct TaskParts {
    pub(crate) profiled: Option<Profiled>,
    pub(crate) sharing: Option<Arc<SharingMember>>,
    pub(crate) bodies: TaskBodies,
    pub(crate) output_pool: CpuPool,
    pub(crate) lagging: Arc<LaggingConsumers>,
    pub(crate) emitted_rows: Arc<OrderedMutex<EmittedRows>>,
    pub(crate) listing: Arc<TaskListing>,
    pub(crate) last_batch: LastBatch,
}

impl RunningTask {
    pub(crate) fn new(
        id: TaskId,
        (iteration, job, secret): (IterationId, String, Option<Secret>),
        schema: SchemaRef,
        run: &TaskRun,
        queue: TaskOutput,
        TaskParts { profiled, sharing, bodies, output_pool, lagging, emitted_rows, listing, last_batch }: TaskParts,
        group: Tasks,
    ) -> Self {
        Self {
            id,
            iteration,
            job,
            read_limit: run.read_limit(),
            secret,
            schema,
            queue,
            counters: run.counters(),
            row_checks: run.row_checks(),
            profiled,
            sharing,
            lagging,
            bodies: Arc::new(bodies),
            output_pool,
            group,
            readers: Readers::default(),
            rows_out: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            elements_out: AtomicU64::new(0),
            emitted_rows,
            emitted: OnceLock::new(),
            to_flight: OrderedMutex::new(
                LockRank::leaf("the rows for Flight readers"),
                EmittedRows::default(),
            ),
            sizes: Sizes::default(),
            listing,
            last_batch,
            failure: OnceLock::new(),
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
        self.emitted.get().map(|(counts, _)| counts.clone())
    }

    /// What its readers take, for tasks that share its rows; none if it shares nothing.
    pub(crate) fn demand(&self) -> Option<&Arc<Demand>> {
        self.sharing.as_ref().map(|member| member.demand())
    }

    /// Rows that were written to Arrow Flight readers so far, per split.
    pub(crate) fn to_flight(&self) -> Vec<SplitCount> {
        self.to_flight.lock().counts()
    }

    /// An Arrow Flight reader was sent these rows.
    pub(crate) fn sent_to_flight(&self, runs: &[Run]) {
        self.to_flight.lock().add(runs);
    }

    /// Splits that it skipped and that the dispatcher does not know of.
    fn skipped_splits(&self) -> Vec<SplitCount> {
        self.sharing.as_ref().map(|member| split_counts(member.skipped_splits())).unwrap_or_default()
    }

    /// The end of a task that reported nothing but the rows that it sent.
    pub(crate) fn finished(&self, result: Result<()>) -> Finished {
        Finished {
            result,
            stages: self.stages(),
            rows_skipped: 0,
            first_skips: Vec::new(),
            modes: SplitModes::default(),
            emitted: self.emitted(),
            forgotten_rows: self.emitted.get().map_or(0, |(_, forgotten)| *forgotten),
            to_flight: self.to_flight(),
            served: Some(self.served()),
            skipped_splits: self.skipped_splits(),
        }
    }

    /// The measurements so far, if the task is profiled.
    pub(crate) fn profile(&self) -> Option<v1::TaskProfile> {
        self.profiled.as_ref().map(|profiled| profiled.profile(self.id, &self.counters))
    }

    /// Takes a decision that came while the task ran: a plan, or that nothing is stored.
    pub(crate) fn decide(&self, plan: Option<&CachePlan>) {
        if let Some(profiled) = &self.profiled {
            profiled.overhead.end();
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
        mut round_robin: Option<RoundRobin>,
    ) -> Finished {
        let result = tokio::select! {
            r = self.emit(&mut run, round_robin.as_mut()) => r,
            () = self.readers.gone(linger) => Err(self.unread(linger)),
        };
        self.counters.busy.end();
        let result = match result {
            Ok(()) => {
                // Set before the end is published, because code that sees the end may read this.
                self.emitted.get_or_init(|| {
                    let rows = self.emitted_rows.lock();
                    (rows.counts(), rows.forgotten())
                });
                self.queue.close();
                self.received(linger).await
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

    /// Waits until readers have received all that was emitted.
    async fn received(&self, linger: Duration) -> Result<()> {
        match self.readers.until_received(|| self.queue.is_empty(), linger).await {
            Received::All => Ok(()),
            Received::LeftEarly => {
                Err(Error::cancelled(format!("the reader of {} left before its end", self.id)))
            }
            // A reader that has left may have received rows: the dispatcher finds out which rows others need.
            Received::Unread => Err(self.unread(linger)),
        }
    }

    fn unread(&self, linger: Duration) -> Error {
        Error::cancelled(format!("{} had no reader for {linger:?}", self.id))
    }

    /// The outcome of a task whose [`RunningTask::pump`] panicked.
    pub(crate) fn broken(&self, error: Error) -> Finished {
        let modes = self.profiled.as_ref().map(|p| (p.modes)()).unwrap_or_default();
        Finished { modes, ..self.finished(Err(error)) }
    }

    async fn emit(&self, run: &mut TaskRun, mut round_robin: Option<&mut RoundRobin>) -> Result<()> {
        loop {
            let start = std::time::Instant::now();
            let full = self.demand().map(|demand| demand.output_is_full());
            self.counters.busy.set_full(true);
            // A chunk is computed when there is space for it: a waiting chunk takes memory too.
            if !self.has_space(round_robin.as_deref()).await {
                return Err(Error::cancelled(format!("{} was stopped", self.id)));
            }
            drop(full);
            self.counters.busy.set_full(false);
            self.counters.output().waited_out(start.elapsed());
            let next = run.next().await.transpose()?;
            self.sizes.add(run.take_sized());
            let Some(chunk) = next else { break };
            match round_robin.as_mut() {
                None => self.put(0, chunk)?,
                Some(round_robin) => {
                    round_robin
                        .assign(chunk)
                        .await?
                        .into_iter()
                        .try_for_each(|(to, chunk)| self.put(to, chunk))?;
                }
            }
        }
        match round_robin {
            None => Ok(()),
            Some(round_robin) => {
                round_robin.finish()?.into_iter().try_for_each(|(to, chunk)| self.put(to, chunk))?;
                round_robin
                    .assign_remainder()
                    .await?
                    .into_iter()
                    .try_for_each(|(to, chunk)| self.put(to, chunk))
            }
        }
    }

    /// Waits until the next chunk has a place; false if the task was stopped. While consumers are lagging, only their queues
    /// count: another consumer may have a full one, and wait for them.
    async fn has_space(&self, round_robin: Option<&RoundRobin>) -> bool {
        let Some(round_robin) = round_robin else { return self.queue.writable().await };
        tokio::select! {
            is_open = self.queue.writable() => is_open,
            is_open = async {
                self.lagging.query_due().await;
                self.queue.writable_of(round_robin.served()).await
            } => is_open,
        }
    }

    /// Some consumers of the task are lagging.
    pub(crate) fn on_lagging_consumers(&self) {
        self.lagging.set_query_due();
    }

    fn put(&self, to: usize, chunk: Chunk) -> Result<()> {
        self.rows_out.fetch_add(chunk.rows() as u64, Ordering::Relaxed);
        self.bytes_out.fetch_add(chunk.bytes() as u64, Ordering::Relaxed);
        self.elements_out.fetch_add(chunk.num_elements() as u64, Ordering::Relaxed);
        self.emitted_rows.lock().add(&chunk.runs);
        if self.queue.push(to, chunk) {
            return Ok(());
        }
        Err(Error::cancelled(format!("{} was stopped", self.id)))
    }

    /// Stops the task with an error for its readers.
    pub(crate) fn abort(&self, error: Error) {
        self.queue.abort(&error);
        self.group.stop();
    }

    /// Whether everything was emitted, and no reader is known to have lost rows.
    pub(crate) fn is_delivered(&self) -> bool {
        self.queue.is_closed() && self.queue.is_empty() && !self.readers.may_have_lost_rows()
    }

    /// Keeps why the task failed. While that is reported, the dispatcher may say already that the task is not wanted any more: its
    /// readers get the failure then.
    pub(crate) fn failing(&self, error: &Error) {
        let _ = self.failure.set(error.clone());
    }

    /// Why it failed, if it did.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.get()
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

    /// What it gave out so far, and how often it opened splits of the source.
    pub(crate) fn served(&self) -> v1::TaskServed {
        v1::TaskServed {
            task_id: self.id.0,
            elements: self.elements_out.load(Ordering::Relaxed),
            rows: self.rows_out.load(Ordering::Relaxed),
            bytes: self.bytes_out.load(Ordering::Relaxed),
            source_opens: self.counters.source_opens(),
            buffered_bytes: self.queue.bytes() as u64,
            shared: self.sharing.as_ref().map(|member| v1::SharedUse {
                reused_bytes: self.bodies.reused_bytes(),
                ..shared_use(member.counts())
            }),
            mapped_bytes: self.bodies.mapped_bytes(),
            sent_bytes: self.bodies.sent_bytes(),
            busy_s: self.counters.busy.busy().as_secs_f64(),
            busy_rows: self.counters.busy_rows(),
        }
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
}

/// Splits with their numbers of rows.
pub(crate) fn split_counts(splits: Vec<(u64, u64)>) -> Vec<SplitCount> {
    splits.into_iter().map(|(split_index, rows)| SplitCount { split_index, rows }).collect()
}

fn shared_use(counts: SharedCounts) -> v1::SharedUse {
    v1::SharedUse {
        computed_rows: counts.computed_rows,
        window_rows: counts.window_rows,
        window_hits: counts.window_hits,
        read_back: counts.read_back,
        taken_over: counts.taken_over,
        skipped_rows: 0,
        reused_bytes: 0,
        unreported_tasks: 0,
    }
}
