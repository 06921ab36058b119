//! The tasks of this worker: started for their first reader, and reported when they end.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use caju_cache::Cache;
use caju_engine::{Shard, SplitModes, TaskOptions, run_task};
use caju_proto::{ticket, v1};
use caju_runtime::{CpuPool, Tasks, caught};
use caju_types::{ClientId, Error, ErrorKind, IterationId, Result, Secret, TaskId};
use caju_wire::{Dispatcher, LocalTask, LocalWorker};
use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell};

use crate::caches::Caches;
use crate::config::WorkerConfig;
use crate::dealer::{Behind, Dealer, Dispatch};
use crate::feed::DispatcherFeed;
use crate::identity::{Identity, Registration};
use crate::pipelines::{Pipelines, shard_by};
use crate::running::{Attachment, Beside, Finished, Profiled, RunningTask};

/// Ended tasks that are remembered for late readers.
const REMEMBERED: usize = 4096;
/// How long the report of a failure is retried before readers get the failure.
const REPORT: Duration = Duration::from_secs(5);

/// All tasks of a worker.
pub(crate) struct Manager {
    pub(crate) identity: Arc<Identity>,
    pub(crate) config: WorkerConfig,
    pipelines: Pipelines,
    caches: Arc<Caches>,
    pool: CpuPool,
    /// The lock of the artificial stages, which run one at a time per worker.
    one_at_a_time: Arc<tokio::sync::Mutex<()>>,
    tasks: Mutex<HashMap<TaskId, Arc<Slot>>>,
    past: Mutex<VecDeque<Past>>,
    reported_io: Mutex<v1::IoStats>,
    /// The number of tasks that began.
    begun: Arc<AtomicU64>,
    group: Tasks,
    changed: Notify,
}

/// A task that has ended.
struct Past {
    id: TaskId,
    /// Tells it from a task of another dispatcher that got the same identifier.
    secret: Option<Secret>,
    result: Result<()>,
}

/// A task that runs or is being started.
#[derive(Default)]
struct Slot {
    running: OnceCell<Arc<RunningTask>>,
}

/// Removes the slot of a task that failed to start, or whose reader disconnected before.
struct Starting<'a> {
    manager: &'a Manager,
    id: TaskId,
    slot: Arc<Slot>,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        let mut tasks = self.manager.tasks.lock();
        // The list and this reader hold it; a third holder is starting the task now.
        if self.slot.running.get().is_none() && Arc::strong_count(&self.slot) <= 2 {
            tasks.remove(&self.id);
            self.manager.changed.notify_waiters();
        }
    }
}

/// The credentials of a reader for a task.
pub(crate) struct Credentials<'a> {
    pub(crate) client: ClientId,
    pub(crate) ticket: &'a [u8],
    /// Which consumer of the job it is.
    pub(crate) consumer: Option<u32>,
}

impl Credentials<'_> {
    /// Whether the dispatcher gave this reader the right to read a task with this secret.
    fn check(&self, id: TaskId, secret: Option<&Secret>) -> Result<()> {
        if secret.is_some_and(|s| ticket(s, self.client).is(self.ticket)) {
            return Ok(());
        }
        Err(Error::permission_denied(format!(
            "{} has no ticket for {id}: the dispatcher gives one to each reader of the job when it opens the epoch",
            self.client
        )))
    }
}

/// The state in which a reader finds a task.
pub(crate) enum Found {
    /// The task runs.
    Running(Attachment),
    /// It has ended, and everything was received.
    Over,
}

impl std::fmt::Debug for Manager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Manager").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Manager {
    pub(crate) fn new(
        identity: Arc<Identity>,
        config: WorkerConfig,
        pipelines: Pipelines,
        pool: CpuPool,
        group: Tasks,
    ) -> Self {
        let caches = config.caches.clone().unwrap_or_else(|| {
            Caches::new(Arc::clone(&config.stores), config.cache.clone(), Arc::clone(&config.clock))
        });
        Self {
            identity,
            caches,
            config,
            pipelines,
            pool,
            one_at_a_time: Arc::default(),
            tasks: Mutex::default(),
            past: Mutex::default(),
            reported_io: Mutex::default(),
            begun: Arc::default(),
            group,
            changed: Notify::new(),
        }
    }

    /// Attaches a reader to a task, and starts the task if it does not run.
    ///
    /// # Errors
    /// `PermissionDenied` if the reader's ticket is not for this task, `Cancelled` if the dispatcher does not want the task
    /// here, `Unavailable` if this worker is leaving, and the errors of binding the pipeline.
    pub(crate) async fn open(self: &Arc<Self>, id: TaskId, reader: &Credentials<'_>) -> Result<Found> {
        let is_it = |past: &&Past| past.id == id && reader.check(id, past.secret.as_ref()).is_ok();
        if let Some(past) = self.past.lock().iter().rev().find(is_it) {
            return past.result.clone().map(|()| Found::Over);
        }
        let slot = {
            let mut tasks = self.tasks.lock();
            match tasks.get(&id) {
                Some(slot) => Arc::clone(slot),
                None if self.group.is_stopped() => return Err(self.leaving()),
                None => {
                    let slot = Arc::new(Slot::default());
                    tasks.insert(id, Arc::clone(&slot));
                    slot
                }
            }
        };
        let starting = Starting { manager: self, id, slot };
        let running = starting.slot.running.get_or_try_init(|| self.start(id, reader)).await?;
        reader.check(id, running.secret.as_ref())?;
        Ok(Found::Running(running.attach(reader.consumer)?))
    }

    fn leaving(&self) -> Error {
        Error::unavailable(format!("the worker at {} is leaving", self.identity.address))
    }

    async fn start(self: &Arc<Self>, id: TaskId, reader: &Credentials<'_>) -> Result<Arc<RunningTask>> {
        let get = async |registration: &Registration| {
            let request = v1::GetTaskRequest {
                task_id: id.0,
                worker_id: registration.id.0,
                secret: registration.secret.clone(),
            };
            let call = |mut d: Dispatcher| {
                let request = request.clone();
                async move { d.get_task(request).await }
            };
            self.identity.link.retry(self.config.dispatcher_timeout, Duration::ZERO, call).await
        };
        let registration = self.identity.registration();
        let answer = match get(&registration).await {
            // A dispatcher without its state knows this worker by a registration whose answer is still under way.
            Err(e)
                if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::Cancelled)
                    && self.identity.has_registered_since(&registration).await =>
            {
                get(&self.identity.registration()).await?
            }
            answer => answer?,
        };
        let def = answer
            .task
            .ok_or_else(|| Error::internal(format!("the dispatcher gave no definition of {id}")))?;
        let secret = <[u8; Secret::BYTES]>::try_from(&*def.secret).ok().map(Secret::from_bytes);
        reader.check(id, secret.as_ref())?;
        let pipeline = match self.pipelines.get(&def).await {
            Ok(pipeline) => pipeline,
            Err(e) => {
                let e = self.named(e);
                // It would fail on every worker: the dispatcher ends the iteration.
                let failed = Finished {
                    result: Err(e.clone()),
                    stages: Vec::new(),
                    rows_skipped: 0,
                    first_skips: Vec::new(),
                    modes: SplitModes::default(),
                    emitted: None,
                    to_flight: Vec::new(),
                };
                self.report(id, &failed, None, REPORT).await;
                return Err(e);
            }
        };
        let (behind, patience) = (Behind::default(), self.config.dispatcher_timeout);
        let feed = DispatcherFeed::new(Arc::clone(&self.identity), id, patience, Arc::clone(&behind));
        let dealer = match def.num_consumers {
            0 => None,
            _ => {
                let dispatch = Dispatch { identity: Arc::clone(&self.identity), task: id, patience };
                Some(Dealer::new(dispatch, &def, behind)?)
            }
        };
        let group = self.group.child();
        let schema = pipeline.schema();
        let mut options = self.options(&def)?;
        options.cache = self.cache(&def).await?;
        options.probe = def.profile;
        options.probe_to_end = def.profile_only;
        options.probe_encoding = def.probe_encoding.parse().ok();
        options.probe_stored_only = def.probe_stored_only;
        let cores = real_cores(self.pool.threads()) / f64::from(self.config.sharers.max(1));
        options.cores = Some(cores);
        options.buffer_bytes = self.config.buffer_bytes;
        let readers = options.readers;
        let memory_tier_bytes = options.cache.as_ref().map_or(0, |cache| cache.memory_tier_bytes());
        let run = run_task(&pipeline, Box::new(feed), options);
        let consumers = usize::try_from(def.num_consumers).unwrap_or(usize::MAX);
        let bytes = (self.config.buffer_bytes, consumers);
        let iteration = IterationId(def.iteration_id);
        let begun = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let alone = self.running().is_empty() && self.config.sharers <= 1;
        let profiled = def.profile.then(|| Profiled {
            findings: Box::new(run.watch_findings()),
            modes: Box::new(run.watch_modes()),
            decide: Box::new(run.decider()),
            started: std::time::Instant::now(),
            threads: cores,
            readers: readers as u64,
            memory_tier_bytes,
            beside: Beside::from_now(alone.then(|| (Arc::clone(&self.begun), begun))),
        });
        let running = RunningTask::new(id, (iteration, secret), schema, &run, bytes, profiled, group.clone());
        let running = Arc::new(running);
        tracing::info!(task = %id, job = %def.job, epoch = def.epoch, "task started");
        let (me, task) = (Arc::clone(self), Arc::clone(&running));
        // The readers get the end or an error in any case.
        let (manager, failing) = (Arc::clone(self), Arc::clone(&running));
        let on_failure = move |e: Error| {
            failing.fail(e.clone());
            // A task that was stopped is removed by its stopper.
            if e.kind() != ErrorKind::Cancelled {
                tracing::error!(task = %id, error = %e, "task failed");
                manager.forget(id, Err(e));
            }
        };
        group.background(id.to_string(), on_failure, async move {
            let finished = match caught(&id.to_string(), task.pump(run, me.config.linger, dealer)).await {
                Ok(finished) => finished,
                Err(e) => task.broken(e),
            };
            me.finish(&task, finished).await;
            Ok(())
        });
        Ok(running)
    }

    fn options(&self, def: &v1::TaskDef) -> Result<TaskOptions> {
        let mut options = TaskOptions::new(self.pool.clone(), Arc::clone(&self.config.clock));
        options.job.clone_from(&def.job);
        options.seed = def.seed;
        options.epoch = def.epoch;
        options.slot = (def.mode() == v1::ProcessingMode::Off).then_some(def.worker_slot);
        options.shard = shard_by(def)?.map(|by| Shard {
            by,
            num_shards: u64::from(def.num_shards.max(1)),
            index: u64::from(def.shard_index),
        });
        options.deterministic = def.deterministic;
        options.one_at_a_time = Arc::clone(&self.one_at_a_time);
        if let Some(rows) = self.config.batch_rows {
            options.batch_rows = rows;
        }
        Ok(options)
    }

    /// The cache of a task; without it everything is computed.
    ///
    /// # Errors
    /// `PermissionDenied` for a root that this worker may not write. It may always write the dispatcher's own cache.
    async fn cache(&self, def: &v1::TaskDef) -> Result<Option<Arc<Cache>>> {
        if !def.caching {
            return Ok(None);
        }
        match self.caches.get(&def.cache_url, (def.cache_budget > 0).then_some(def.cache_budget)).await {
            Ok(cache) => Ok(Some(cache)),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error.context("save")),
            Err(error) => {
                // The target is not this module, because a process with the whole cluster does not log that one.
                tracing::warn!(target: "caju_worker::caches", root = def.cache_url, %error, "the cache cannot be used here; rows are computed");
                Ok(None)
            }
        }
    }

    /// Closes the caches that are this worker's own.
    pub(crate) async fn close_caches(&self, bound: Duration) {
        if self.config.caches.is_none() {
            self.caches.close(bound).await;
        }
    }

    async fn finish(&self, task: &RunningTask, mut finished: Finished) {
        finished.result = finished.result.map_err(|e| self.named(e));
        if let Some(first) = finished.first_skips.first() {
            let rows = finished.rows_skipped;
            tracing::warn!(task = %task.id, rows, first, "bad rows were skipped, as `on_error` says");
        }
        match &finished.result {
            Ok(()) => tracing::info!(task = %task.id, "task ended"),
            Err(e) if e.kind() == ErrorKind::Cancelled => {
                tracing::info!(task = %task.id, reason = %e, "task given up")
            }
            Err(e) => tracing::error!(task = %task.id, error = %e, "task failed"),
        }
        // The failure is reported to the dispatcher before readers get it: they ask the dispatcher what to do.
        let patience = if finished.result.is_ok() { self.config.dispatcher_timeout } else { REPORT };
        self.report(task.id, &finished, task.profile(), patience).await;
        if let Err(e) = &finished.result {
            task.fail(e.clone());
        }
        self.forget(task.id, finished.result);
    }

    /// A failure with the worker's address appended to its first line. Cancelled work is not a failure of this worker.
    fn named(&self, e: Error) -> Error {
        if e.kind() == ErrorKind::Cancelled {
            return e;
        }
        let (line, rest) = e.message().split_at(e.message().find('\n').unwrap_or(e.message().len()));
        Error::new(e.kind(), format!("{line} (at the worker {}){rest}", self.identity.address))
    }

    async fn report(
        &self,
        id: TaskId,
        finished: &Finished,
        profile: Option<v1::TaskProfile>,
        patience: Duration,
    ) {
        let registration = self.identity.registration();
        let request = v1::FinishTaskRequest {
            task_id: id.0,
            worker_id: registration.id.0,
            failure: finished.result.as_ref().err().map(Into::into),
            stages: finished.stages.clone(),
            io: Some(self.io_since()),
            rows_skipped: finished.rows_skipped,
            first_skips: finished.first_skips.clone(),
            modes: Some(v1::SplitModes {
                compute: finished.modes.compute,
                put: finished.modes.put,
                get: finished.modes.get,
                fell_back: finished.modes.fell_back,
                kept: finished.modes.kept,
            }),
            profile,
            secret: registration.secret,
            counted: finished.emitted.is_some(),
            splits_out: finished.emitted.clone().unwrap_or_default(),
            flight_counted: true,
            splits_to_flight: finished.to_flight.clone(),
        };
        let call = |mut d: Dispatcher| {
            let request = request.clone();
            async move { d.finish_task(request).await }
        };
        if let Err(e) = self.identity.link.retry(patience, Duration::ZERO, call).await {
            tracing::warn!(task = %id, error = %e, "the end of a task could not be reported");
        }
    }

    /// Bytes and requests since the last report. Tasks run concurrently, so only their sum can be counted.
    fn io_since(&self) -> v1::IoStats {
        let (source, cache) = (self.config.io.snapshot(), self.caches.io());
        let now = v1::IoStats {
            source_bytes_read: source.bytes_read,
            source_requests: source.reads + source.lists,
            cache_bytes_read: cache.bytes_read,
            cache_bytes_written: cache.bytes_written,
        };
        let last = std::mem::replace(&mut *self.reported_io.lock(), now);
        v1::IoStats {
            source_bytes_read: now.source_bytes_read.saturating_sub(last.source_bytes_read),
            source_requests: now.source_requests.saturating_sub(last.source_requests),
            cache_bytes_read: now.cache_bytes_read.saturating_sub(last.cache_bytes_read),
            cache_bytes_written: now.cache_bytes_written.saturating_sub(last.cache_bytes_written),
        }
    }

    fn forget(&self, id: TaskId, result: Result<()>) {
        let slot = self.tasks.lock().get(&id).cloned();
        let secret = slot.and_then(|slot| slot.running.get()?.secret);
        let mut past = self.past.lock();
        past.push_back(Past { id, secret, result });
        if past.len() > REMEMBERED {
            past.pop_front();
        }
        drop(past);
        self.tasks.lock().remove(&id);
        self.changed.notify_waiters();
    }

    /// Stops a task that the dispatcher does not want here any more, with an error for its readers. A task whose readers have
    /// received everything ends by itself, with its report.
    pub(crate) fn unwanted(&self, id: TaskId) {
        let slot = self.tasks.lock().get(&id).cloned();
        if let Some(running) = slot.as_ref().and_then(|s| s.running.get())
            && !running.is_delivered()
        {
            self.cancel(
                running,
                Error::cancelled(format!("the dispatcher does not want {id} here any more")),
            );
        }
    }

    /// Passes on a decision to a running task.
    pub(crate) fn decided(&self, decided: &v1::TaskPlan) {
        let slot = self.tasks.lock().get(&TaskId(decided.task_id)).cloned();
        let Some(running) = slot.as_ref().and_then(|s| s.running.get()) else { return };
        match decided.cache_plan_json.as_str() {
            "" => running.decide(None),
            text => match serde_json::from_str(text) {
                Ok(plan) => running.decide(Some(&plan)),
                Err(error) => {
                    tracing::warn!(task = %running.id, %error, "a decision that this worker does not understand")
                }
            },
        }
    }

    fn cancel(&self, running: &RunningTask, error: Error) {
        running.abort(error.clone());
        self.forget(running.id, Err(error));
    }

    /// The tasks that run, with their counters.
    pub(crate) fn running(&self) -> Vec<Arc<RunningTask>> {
        let tasks = self.tasks.lock();
        let mut running: Vec<_> = tasks.values().filter_map(|s| s.running.get().cloned()).collect();
        running.sort_by_key(|t| t.id);
        running
    }

    /// Takes no new tasks from now on.
    pub(crate) fn drain(&self) {
        self.identity.drain();
        self.changed.notify_waiters();
    }

    /// Waits until no new tasks are taken.
    pub(crate) async fn draining(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.identity.is_draining() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until no task is left.
    pub(crate) async fn idle(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.tasks.lock().is_empty() {
                return;
            }
            changed.await;
        }
    }

    /// Gives up every task and reports that to the dispatcher, so that other workers continue them at once.
    pub(crate) async fn give_up(&self, reason: &str) {
        let error = Error::cancelled(reason);
        for task in self.running() {
            self.cancel(&task, error.clone());
            let finished = task.finished(Err(error.clone()));
            self.report(task.id, &finished, None, Duration::from_millis(500)).await;
        }
    }

    /// Drops every task without a report.
    pub(crate) fn abandon(&self) {
        for task in self.running() {
            self.cancel(&task, self.leaving());
        }
    }
}

/// This worker, for readers in the same process.
#[derive(Debug)]
pub(crate) struct Here(pub(crate) Arc<Manager>);

#[async_trait]
impl LocalWorker for Here {
    async fn open(
        &self,
        task: TaskId,
        client: ClientId,
        ticket: &[u8],
        consumer: Option<u32>,
    ) -> Result<Box<dyn LocalTask>> {
        Ok(match self.0.open(task, &Credentials { client, ticket, consumer }).await? {
            Found::Running(attachment) => Box::new(attachment),
            Found::Over => Box::new(Over),
        })
    }
}

/// A task whose rows were all received.
struct Over;

#[async_trait]
impl LocalTask for Over {
    async fn next(&mut self) -> Result<Option<caju_wire::Chunk>> {
        Ok(None)
    }

    fn emitted(&self) -> Option<Vec<v1::SplitCount>> {
        None
    }

    fn take_sized(&mut self) -> Vec<(u64, u64)> {
        Vec::new()
    }
}

/// The cores that this number of threads can use.
fn real_cores(threads: usize) -> f64 {
    let there = std::thread::available_parallelism().map_or(threads, std::num::NonZero::get);
    threads.min(there) as f64
}
