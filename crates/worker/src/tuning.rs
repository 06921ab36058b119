//! Tuning while tasks run: measures each step, asks the planner's rule, and applies what it says.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use caju_engine::{TaskOptions, default_readers};
use caju_kernels::Registry;
use caju_planner::{
    BufferBounds, QueueSample, ThreadSample, TunedJob, Tuner, TuningBounds, TuningChange, TuningSample,
};
use caju_proto::v1;
use caju_runtime::{CpuPool, PoolTuner, PoolUsage, is_simulated, wanted_cpu_time_of};
use caju_types::TaskId;
use caju_wire::{QueueMemory, QueueUse};
use parking_lot::Mutex;

use crate::config::WorkerConfig;
use crate::running::RunningTask;

/// The first bound of a queue in bytes.
const FIRST_BUFFER_BYTES: usize = 64 << 20;
/// What a split that is read holds: a batch that is read and two that wait, of about 2 MiB each.
const READER_BYTES: usize = 6 << 20;
/// The splits that a task reads concurrently hold at most this part of the memory for queues.
const READERS_PART: usize = 4;
/// The most splits that a task reads concurrently: each may hold open a connection and a file.
const MAX_READERS: usize = 64;

/// The numbers of a worker that change while it runs.
pub(crate) struct Tuning {
    /// The splits that a task reads, where they were given by hand.
    readers: Option<usize>,
    max_readers: usize,
    /// The first bound of a queue, and the memory of all of them.
    buffer_bytes: usize,
    memory: Arc<QueueMemory>,
    pool: CpuPool,
    /// None: the number of threads stays as it is.
    threads: Option<PoolTuner>,
    registry: Registry,
    state: Mutex<State>,
}

struct State {
    tuner: Tuner,
    /// What was counted at the end of the last step; none while no task runs.
    last: Option<Counts>,
}

/// What is counted from the start of the process, or of a task or queue.
struct Counts {
    at: Duration,
    pool: PoolUsage,
    process: Duration,
    functions: Duration,
    tasks: HashMap<TaskId, TaskCounts>,
    queues: HashMap<u64, QueueUse>,
}

#[derive(Default)]
struct TaskCounts {
    job: String,
    rows: u64,
    reading_s: f64,
    blocked_s: f64,
    consumer_wait_s: f64,
}

impl Tuning {
    pub(crate) fn new(config: &WorkerConfig, pool: &CpuPool) -> Self {
        let (given, threads) = (config.tuned, pool.tuner());
        let limit_bytes = given.buffer_memory_bytes;
        let first_readers = default_readers(pool.threads());
        let most = (limit_bytes / READERS_PART / READER_BYTES).min(MAX_READERS);
        let max_readers = given.readers.unwrap_or(most.max(first_readers)).max(1);
        let bounds = TuningBounds {
            threads: threads.as_ref().map(|_| (pool.threads(), pool.max_threads())),
            readers: given.readers.is_none().then_some((first_readers, max_readers)),
            buffers: BufferBounds { limit_bytes, may_grow: given.buffer_bytes.is_none() },
        };
        Self {
            readers: given.readers,
            max_readers,
            buffer_bytes: given.buffer_bytes.unwrap_or(FIRST_BUFFER_BYTES),
            memory: QueueMemory::new(limit_bytes),
            pool: pool.clone(),
            threads,
            registry: config.registry.clone(),
            state: Mutex::new(State { tuner: Tuner::new(bounds), last: None }),
        }
    }

    /// The memory of all queues.
    pub(crate) fn memory(&self) -> &Arc<QueueMemory> {
        &self.memory
    }

    /// The first bound of a queue.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// Sets the numbers of a new task.
    pub(crate) fn set(&self, options: &mut TaskOptions) {
        let tuned = self.state.lock().tuner.readers_of(&options.job);
        options.readers = self.readers.or(tuned).unwrap_or(options.readers).max(1);
        options.max_readers = self.max_readers;
        options.buffer_bytes = self.buffer_bytes;
        options.queue_memory = Arc::clone(&self.memory);
    }

    /// Ends a step, at the given time of the worker's clock.
    pub(crate) fn step(&self, tasks: &[Arc<RunningTask>], now: Duration, cores: f64) {
        let mut state = self.state.lock();
        if tasks.is_empty() {
            state.last = None;
            return;
        }
        let counts = self.count(tasks, now);
        let sample = state.last.as_ref().and_then(|last| last.sample(&counts, cores));
        state.last = Some(counts);
        let Some(sample) = sample else { return };
        let change = state.tuner.step(&sample);
        drop(state);
        self.apply(&change, tasks);
    }

    fn apply(&self, change: &TuningChange, tasks: &[Arc<RunningTask>]) {
        if let (Some(tuner), Some(threads)) = (&self.threads, change.threads) {
            tracing::debug!(threads, "the number of CPU threads changes");
            if let Err(error) = tuner.set_threads(threads) {
                tracing::warn!(%error, "the number of CPU threads stays");
            }
            if let Some(functions) = self.registry.python() {
                functions.set_processes(threads);
            }
        }
        for (job, readers) in &change.readers {
            tracing::debug!(job, readers, "the number of splits that are read concurrently changes");
            let of_job = tasks.iter().filter(|task| task.job == *job);
            of_job.for_each(|task| task.read_limit.set_readers(*readers));
        }
        if !change.queues.is_empty() {
            self.memory.set(|id| change.queues.get(&id).copied());
        }
    }

    /// The present numbers, with their reasons.
    pub(crate) fn settings(&self) -> Vec<v1::TunedSetting> {
        let tuned = self.state.lock().tuner.settings();
        let tuned = tuned.into_iter().map(|s| v1::TunedSetting {
            name: s.name.to_string(),
            job: s.job.unwrap_or_default(),
            value: s.value,
            reason: s.reason,
        });
        let by_hand = |name: &str, value: usize| v1::TunedSetting {
            name: name.to_string(),
            job: String::new(),
            value: value as u64,
            reason: "given by hand".to_string(),
        };
        let threads = self.threads.is_none().then(|| by_hand("cpu_threads", self.pool.running_threads()));
        let readers = self.readers.map(|n| by_hand("readers", n));
        threads.into_iter().chain(readers).chain(tuned).collect()
    }

    fn count(&self, tasks: &[Arc<RunningTask>], at: Duration) -> Counts {
        let of = |task: &Arc<RunningTask>| (task.id, TaskCounts::of(task));
        // A simulation has no threads, and its tasks take no time of the machine.
        let (process, functions) = match is_simulated() {
            true => (Duration::ZERO, Duration::ZERO),
            false => {
                let wanted = wanted_cpu_time_of(std::process::id());
                let functions = self.registry.python().map(|pool| pool.wanted_cpu_time());
                (wanted.unwrap_or_else(caju_runtime::cpu_time), functions.unwrap_or_default())
            }
        };
        Counts {
            at,
            pool: self.pool.usage(),
            process,
            functions,
            tasks: tasks.iter().map(of).collect(),
            queues: self.memory.queues().into_iter().map(|q| (q.id, q)).collect(),
        }
    }
}

impl TaskCounts {
    fn of(task: &RunningTask) -> Self {
        let stages = task.stages();
        let (first, last) = (stages.first(), stages.last());
        Self {
            job: task.job.clone(),
            rows: stages.iter().map(|s| s.rows_out).sum(),
            reading_s: first.map_or(0.0, |s| s.busy_s),
            blocked_s: first.map_or(0.0, |s| s.wait_out_s),
            consumer_wait_s: last.map_or(0.0, |s| s.wait_out_s),
        }
    }
}

impl Counts {
    /// What happened from these counts to later ones; none if no time passed.
    fn sample(&self, later: &Self, cores: f64) -> Option<TuningSample> {
        let seconds = later.at.saturating_sub(self.at).as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let of_time =
            |before: Duration, after: Duration| after.saturating_sub(before).as_secs_f64() / seconds;
        let functions = of_time(self.functions, later.functions);
        let threads = match (self.pool.wanted, later.pool.wanted) {
            (Some(before), Some(after)) => Some(ThreadSample {
                busy: of_time(self.pool.busy, later.pool.busy),
                wanted: of_time(before, after) + functions,
            }),
            _ => None,
        };
        Some(TuningSample {
            seconds,
            cores,
            wanted_cores: of_time(self.process, later.process) + functions,
            threads,
            jobs: self.jobs(later, seconds),
            queues: self.queues(later, seconds),
        })
    }

    fn jobs(&self, later: &Self, seconds: f64) -> Vec<TunedJob> {
        let mut jobs: Vec<TunedJob> = Vec::new();
        for (id, after) in &later.tasks {
            let first = TaskCounts::default();
            let (is_new, before) = self.tasks.get(id).map_or((true, &first), |before| (false, before));
            let at = jobs.iter().position(|j| j.job == after.job).unwrap_or_else(|| {
                jobs.push(TunedJob { job: after.job.clone(), is_whole: true, ..TunedJob::default() });
                jobs.len() - 1
            });
            let Some(job) = jobs.get_mut(at) else { continue };
            job.is_whole &= !is_new;
            job.rows += after.rows.saturating_sub(before.rows) as f64;
            job.reading += (after.reading_s - before.reading_s) / seconds;
            job.blocked += (after.blocked_s - before.blocked_s) / seconds;
            job.consumer_wait =
                job.consumer_wait.max((after.consumer_wait_s - before.consumer_wait_s) / seconds);
        }
        for job in &mut jobs {
            let has_ended =
                |(id, t): (&TaskId, &TaskCounts)| t.job == job.job && !later.tasks.contains_key(id);
            job.is_whole &= !self.tasks.iter().any(has_ended);
        }
        jobs
    }

    fn queues(&self, later: &Self, seconds: f64) -> Vec<QueueSample> {
        let sample = |after: &QueueUse| {
            let before = self.queues.get(&after.id);
            let waited = |of: fn(&QueueUse) -> Duration| {
                of(after).saturating_sub(before.map_or(Duration::ZERO, of)).as_secs_f64() / seconds
            };
            QueueSample {
                id: after.id,
                bound_bytes: after.bound_bytes,
                first_bytes: after.first_bytes,
                full: waited(|q| q.full),
                empty: waited(|q| q.empty),
            }
        };
        later.queues.values().map(sample).collect()
    }
}
