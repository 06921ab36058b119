//! The tasks of this worker: started for their first reader, steered by the dispatcher, and abandoned when the worker leaves.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use caju_engine::SharingWindow;
use caju_proto::{ticket, v1};
use caju_runtime::{CpuPool, LockRank, OrderedMutex, Tasks, rss_bytes};
use caju_types::{ClientId, Error, Result, Secret, TaskId};

use crate::attachment::Attachment;
use crate::body_files::BodyFiles;
use crate::caches::Caches;
use crate::config::WorkerConfig;
use crate::identity::Identity;
use crate::pipelines::Pipelines;
use crate::running::RunningTask;
use crate::tasks::TaskTable;
use crate::tuning::Tuning;

/// All tasks of a worker, with what they share.
pub(crate) struct Manager {
    pub(crate) identity: Arc<Identity>,
    pub(crate) config: WorkerConfig,
    pub(crate) pipelines: Pipelines,
    /// The datasets whose boundaries are being learnt.
    pub(crate) learning: OrderedMutex<BTreeSet<String>>,
    pub(crate) caches: Arc<Caches>,
    /// Rows that tasks of several jobs read.
    pub(crate) window: Arc<SharingWindow>,
    /// Bodies of frames for several readers of this host.
    pub(crate) body_files: Arc<BodyFiles>,
    /// The name of the socket at which readers of this host get rows in shared memory; empty: they get none.
    pub(crate) same_host_socket: OnceLock<String>,
    pub(crate) pool: CpuPool,
    pub(crate) tuning: Tuning,
    /// The lock of the artificial stages, which run one at a time per worker.
    pub(crate) one_at_a_time: Arc<tokio::sync::Mutex<()>>,
    pub(crate) tasks: TaskTable,
    pub(crate) reported_io: OrderedMutex<v1::IoStats>,
    /// The number of tasks that were started.
    pub(crate) started: Arc<AtomicU64>,
    pub(crate) group: Tasks,
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
    pub(crate) fn check(&self, id: TaskId, secret: Option<&Secret>) -> Result<()> {
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
        (pool, window): (CpuPool, Arc<SharingWindow>),
        group: Tasks,
    ) -> Self {
        let caches = config.caches.clone().unwrap_or_else(|| {
            Caches::new(Arc::clone(&config.stores), config.cache.clone(), Arc::clone(&config.clock))
        });
        Self {
            identity,
            tuning: Tuning::new(&config, &pool),
            body_files: BodyFiles::new(config.shared_memory_bytes, config.sharing.backlog_bytes),
            same_host_socket: OnceLock::new(),
            window,
            caches,
            config,
            pipelines,
            learning: OrderedMutex::new(LockRank::leaf("the boundaries that are learnt"), BTreeSet::new()),
            pool,
            one_at_a_time: Arc::default(),
            tasks: TaskTable::default(),
            reported_io: OrderedMutex::new(LockRank::leaf("the reported I/O"), v1::IoStats::default()),
            started: Arc::default(),
            group,
        }
    }

    /// Bytes in shared memory that are held for further readers of this host, and their bound; 0 where there is none.
    pub(crate) fn shared_memory(&self) -> (u64, u64) {
        self.same_host_socket.get().map_or((0, 0), |_| self.body_files.usage())
    }

    /// Memory and caches of this process.
    pub(crate) fn usage(&self) -> v1::WorkerUsage {
        let (tiers, shared) = (self.caches.tiers(), self.window.usage());
        let (file_bytes, file_limit_bytes) = self.shared_memory();
        v1::WorkerUsage {
            rss_bytes: rss_bytes(),
            memory_tier_bytes: tiers.memory_bytes,
            memory_tier_limit: tiers.memory_limit,
            disk_tier_bytes: tiers.disk_bytes,
            disk_tier_limit: tiers.disk_limit,
            threads_busy_s: self.pool.busy().as_secs_f64(),
            threads: self.pool.running_threads() as u64,
            sharing: Some(v1::SharingUsage {
                bytes: shared.bytes,
                limit_bytes: shared.limit_bytes,
                peak_bytes: shared.peak_bytes,
                hits: shared.hits,
                misses: shared.misses,
                evicted_unread: shared.evicted_unread,
                file_bytes,
                file_limit_bytes,
                disk_bytes: shared.disk_bytes,
                disk_limit_bytes: shared.disk_limit_bytes,
                spilled_bytes: shared.spilled_bytes,
                read_back: shared.read_back,
                spill_errors: shared.spill_errors,
            }),
        }
    }

    /// Adapts threads, readers and queues to what tasks do, step by step, for as long as the worker runs.
    pub(crate) async fn tune(&self) {
        loop {
            self.config.clock.sleep(self.config.tuning_step).await;
            self.tuning.step(&self.running(), self.config.clock.now(), self.process_cores());
        }
    }

    /// Attaches a reader to a task, and starts the task if it does not run.
    ///
    /// # Errors
    /// `PermissionDenied` if the reader's ticket is not for this task, `Cancelled` if the dispatcher does not want the task
    /// here, `Unavailable` if this worker is leaving, and the errors of binding the pipeline.
    pub(crate) async fn open(self: &Arc<Self>, id: TaskId, reader: &Credentials<'_>) -> Result<Found> {
        if let Some(result) = self.tasks.past(id, |secret| reader.check(id, secret).is_ok()) {
            return result.map(|()| Found::Over);
        }
        let may_start = || if self.group.is_stopped() { Err(self.leaving()) } else { Ok(()) };
        let starting = self.tasks.enter(id, may_start)?;
        let running = starting.get_or_start(Box::pin(self.start(id, reader))).await?;
        reader.check(id, running.secret.as_ref())?;
        Ok(Found::Running(Attachment::new(running, reader.consumer)?))
    }

    fn leaving(&self) -> Error {
        Error::unavailable(format!("the worker at {} is leaving", self.identity.address))
    }

    /// Stops a task that the dispatcher does not want here any more, with an error for its readers. A task whose readers have
    /// received everything ends by itself, with its report.
    pub(crate) fn unwanted(&self, id: TaskId) {
        if let Some(running) = self.tasks.get(id).filter(|task| !task.is_delivered()) {
            let error = Error::cancelled(format!("the dispatcher does not want {id} here any more"));
            self.cancel(&running, error);
        }
    }

    /// Passes on a decision to a running task.
    pub(crate) fn decided(&self, decided: &v1::TaskPlan) {
        let Some(running) = self.tasks.get(TaskId(decided.task_id)) else { return };
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

    /// Some consumers of a task are lagging.
    pub(crate) fn on_lagging_consumers(&self, id: TaskId) {
        if let Some(running) = self.tasks.get(id) {
            running.on_lagging_consumers();
        }
    }

    fn cancel(&self, running: &RunningTask, error: Error) {
        let error = running.failure().cloned().unwrap_or(error);
        running.abort(error.clone());
        self.tasks.end(running.id, Err(error));
    }

    /// The tasks that run, with their counters.
    pub(crate) fn running(&self) -> Vec<Arc<RunningTask>> {
        self.tasks.running()
    }

    /// Takes no new tasks from now on.
    pub(crate) fn drain(&self) {
        self.identity.drain();
        self.tasks.notify_all();
    }

    /// Waits until no new tasks are taken.
    pub(crate) async fn draining(&self) {
        self.tasks.wait_until(|| self.identity.is_draining()).await;
    }

    /// Waits until no task is left.
    pub(crate) async fn idle(&self) {
        self.tasks.idle().await;
    }

    /// Gives up every task and reports that to the dispatcher, so that other workers continue them at once.
    pub(crate) async fn give_up(&self, reason: &str) {
        for task in self.running() {
            self.give_up_task(&task, reason).await;
        }
    }

    /// Abandons each task that runs now and has no reader for `linger`.
    pub(crate) async fn give_up_unread(&self, linger: Duration) {
        let unread = self.running().into_iter().map(|task| async move {
            task.readers.gone(linger).await;
            let runs = self.tasks.get(task.id).is_some_and(|present| Arc::ptr_eq(&present, &task));
            if runs && !task.is_delivered() {
                self.give_up_task(&task, &format!("{} has no reader, and its worker drains", task.id)).await;
            }
        });
        futures::future::join_all(unread).await;
    }

    async fn give_up_task(&self, task: &RunningTask, reason: &str) {
        let error = Error::cancelled(reason);
        task.abort(error.clone());
        let finished = task.finished(Err(error.clone()));
        self.report(task.id, &finished, None, Duration::from_millis(500)).await;
        // After the report, because a caller that waits for the end of all tasks may cancel this.
        self.tasks.end(task.id, Err(error));
    }

    /// Closes the caches that are this worker's own.
    pub(crate) async fn close_caches(&self, bound: Duration) {
        if self.config.caches.is_none() {
            self.caches.close(bound).await;
        }
    }

    /// Drops every task without a report.
    pub(crate) fn abandon(&self) {
        for task in self.running() {
            self.cancel(&task, self.leaving());
        }
    }
}
