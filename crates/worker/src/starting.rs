//! The start of a task: its definition, its pipeline, and the run behind its readers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use caju_cache::{Cache, Encoding};
use caju_engine::{BoundPipeline, Shard, SharingJob, SharingMember, TaskOptions, TaskRun, run_task};
use caju_proto::v1;
use caju_runtime::{LockRank, OrderedMutex, caught};
use caju_types::{Error, ErrorKind, IterationId, JobPriority, Result, Secret, TaskId, hash128};
use caju_wire::Dispatcher;

use crate::body_files::TaskBodies;
use crate::emitted_rows::EmittedRows;
use crate::feed::DispatcherFeed;
use crate::identity::{Registration, refused_as_loss};
use crate::lagging::LaggingConsumers;
use crate::last_batch::LastBatch;
use crate::listing::TaskListing;
use crate::manager::{Credentials, Manager};
use crate::pipelines::shard_by;
use crate::profiling::{ProcessOverhead, Profiled};
use crate::round_robin::{DispatcherCalls, RoundRobin};
use crate::running::{Finished, RunningTask, TaskParts};
use crate::task_output::TaskOutput;

/// The priority of a task's job among the others of this worker. A dispatcher of an earlier version names none.
fn priority(def: &v1::TaskDef) -> JobPriority {
    let default = JobPriority::default().weight_milli;
    JobPriority {
        level: def.priority,
        weight_milli: if def.weight_milli == 0 { default } else { def.weight_milli },
    }
}

/// Names the tasks whose elements may be equal: those of one pipeline, with one seed, in one epoch.
fn body_group(def: &v1::TaskDef) -> u128 {
    hash128(format!("caju.bodies/v1 {} {} {}", def.fingerprint, def.seed, def.epoch).as_bytes())
}

impl Manager {
    /// Starts a task for its first reader.
    ///
    /// # Errors
    /// `PermissionDenied` if the reader's ticket is not for this task, `Cancelled` if the dispatcher does not want the task
    /// here, and the errors of binding the pipeline.
    pub(crate) async fn start(
        self: &Arc<Self>,
        id: TaskId,
        reader: &Credentials<'_>,
    ) -> Result<Arc<RunningTask>> {
        let def = self.definition(id).await?;
        let secret = <[u8; Secret::BYTES]>::try_from(&*def.secret).ok().map(Secret::from_bytes);
        reader.check(id, secret.as_ref())?;
        let pipeline = self.pipeline(id, &def).await?;
        let (lagging, retry_timeout) = (Arc::<LaggingConsumers>::default(), self.config.dispatcher_timeout);
        let sharing = self.share(&def, &pipeline)?;
        let listing = Arc::<TaskListing>::default();
        let emitted_rows =
            Arc::new(OrderedMutex::new(LockRank::leaf("the emitted rows of a task"), EmittedRows::default()));
        let feed = DispatcherFeed::new(
            Arc::clone(&self.identity),
            id,
            retry_timeout,
            Arc::clone(&lagging),
            sharing.clone(),
            Arc::clone(&emitted_rows),
            Arc::clone(&listing),
        );
        let round_robin = match def.num_consumers {
            0 => None,
            _ => {
                let calls = DispatcherCalls { identity: Arc::clone(&self.identity), task: id, retry_timeout };
                Some(RoundRobin::new(calls, &def, Arc::clone(&lagging))?)
            }
        };
        let tasks = self.group.child();
        let schema = pipeline.schema();
        let options = TaskOptions { sharing: sharing.clone(), ..self.options(&def).await? };
        let memory_tier_bytes = options.cache.as_ref().map_or(0, |cache| cache.memory_tier_bytes());
        let run = run_task(&pipeline, Box::new(feed), options);
        let profiled = self.profiled(&def, &run, memory_tier_bytes);
        let consumers = usize::try_from(def.num_consumers).unwrap_or(usize::MAX);
        let output = TaskOutput::new(self.tuning.memory(), self.tuning.buffer_bytes(), consumers);
        let whose = (IterationId(def.iteration_id), def.job.clone(), secret);
        let may_repeat = sharing.is_some() && pipeline.single_task();
        let group = may_repeat.then(|| body_group(&def));
        let bodies = TaskBodies::new(id, Arc::clone(&self.body_files), group);
        let output_pool = self.pool.of_job(&format!("{}\0output", def.job)).with_priority(priority(&def));
        let last_batch = LastBatch::of(pipeline.def());
        let parts =
            TaskParts { profiled, sharing, bodies, output_pool, lagging, emitted_rows, listing, last_batch };
        let running = RunningTask::new(id, whose, schema, &run, output, parts, tasks);
        let running = Arc::new(running);
        tracing::info!(task = %id, job = %def.job, epoch = def.epoch, "task started");
        self.drive(Arc::clone(&running), run, round_robin);
        Ok(running)
    }

    /// The task's part in the window of shared rows; none if its job shares nothing, or if none of its rows can be shared.
    ///
    /// # Errors
    /// `FailedPrecondition` for a way of sharing that this version does not know.
    fn share(&self, def: &v1::TaskDef, pipeline: &BoundPipeline) -> Result<Option<Arc<SharingMember>>> {
        match def.sharing.as_str() {
            "" => Ok(None),
            name @ ("exact" | "relaxed") => {
                let points = pipeline.sharing_points(def.seed, def.epoch, def.caching);
                let shares = !points.is_empty() && self.config.sharing.window_bytes > 0;
                let (job, is_relaxed) = (hash128(def.job.as_bytes()), name == "relaxed");
                let job = SharingJob { job, epoch: def.epoch, is_relaxed };
                Ok(shares.then(|| self.window.join(job, points)))
            }
            other => Err(Error::failed_precondition(format!(
                "this worker does not know sharing `{other}`; run the same version of caju as the dispatcher"
            ))),
        }
    }

    /// Asks the dispatcher what a task is.
    async fn definition(&self, id: TaskId) -> Result<v1::TaskDef> {
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
                get(&self.identity.registration()).await
            }
            answer => answer,
        };
        let answer = answer.map_err(|e| refused_as_loss(id, e))?;
        answer.task.ok_or_else(|| Error::internal(format!("the dispatcher gave no definition of {id}")))
    }

    /// Binds the task's definition. A failure is reported: it would come on every worker, so the dispatcher ends the
    /// iteration.
    async fn pipeline(&self, id: TaskId, def: &v1::TaskDef) -> Result<Arc<BoundPipeline>> {
        match self.pipelines.get(def).await {
            Ok(pipeline) => Ok(pipeline),
            Err(e) => {
                let e = self.named(e);
                let failed = Finished::before_it_began(e.clone());
                self.report(id, &failed, None, self.config.failure_report_timeout).await;
                Err(e)
            }
        }
    }

    /// What is measured of a task that is profiled.
    fn profiled(&self, def: &v1::TaskDef, run: &TaskRun, memory_tier_bytes: u64) -> Option<Profiled> {
        let started = self.started.fetch_add(1, Ordering::AcqRel) + 1;
        let alone = self.running().is_empty() && self.config.sharers <= 1;
        def.profile.then(|| Profiled {
            findings: Box::new(run.current_findings()),
            modes: Box::new(run.current_modes()),
            decide: Box::new(run.decider()),
            started: std::time::Instant::now(),
            threads: self.cores(),
            readers: run.read_limit(),
            memory_tier_bytes,
            overhead: ProcessOverhead::from_now(alone.then(|| (Arc::clone(&self.started), started))),
        })
    }

    /// Runs a task to its end in the background. Its readers get the end or an error in any case.
    fn drive(self: &Arc<Self>, running: Arc<RunningTask>, run: TaskRun, round_robin: Option<RoundRobin>) {
        let (id, group) = (running.id, running.group.clone());
        let (manager, failing) = (Arc::clone(self), Arc::clone(&running));
        let on_failure = move |e: Error| {
            failing.fail(e.clone());
            // A task that was stopped is removed by its stopper.
            if e.kind() != ErrorKind::Cancelled {
                tracing::error!(task = %id, error = %e, "task failed");
                manager.tasks.end(id, Err(e));
            }
        };
        let manager = Arc::clone(self);
        group.background(id.to_string(), on_failure, async move {
            let pumped = running.pump(run, manager.config.linger, round_robin);
            let finished = match caught(&id.to_string(), pumped).await {
                Ok(finished) => finished,
                Err(e) => running.broken(e),
            };
            manager.finish(&running, finished).await;
            Ok(())
        });
    }

    /// CPU cores that a task of this worker can use.
    fn cores(&self) -> f64 {
        self.process_cores() / f64::from(self.config.sharers.max(1))
    }

    /// CPU cores that all tasks of this process can use.
    pub(crate) fn process_cores(&self) -> f64 {
        let threads = self.pool.threads();
        let there = std::thread::available_parallelism().map_or(threads, std::num::NonZero::get);
        threads.min(there) as f64
    }

    async fn options(&self, def: &v1::TaskDef) -> Result<TaskOptions> {
        let pool = self.pool.of_job(&def.job).with_priority(priority(def));
        let mut options = TaskOptions::new(pool, Arc::clone(&self.config.clock));
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
        options.slowdown = self.config.slowdown.max(1);
        if let Some(rows) = self.config.batch_rows {
            options.batch_rows = rows;
        }
        options.cache = self.cache(def).await?;
        options.probe = def.profile;
        options.probe_to_end = def.profile_only;
        options.probe_encoding = Encoding::optional(&def.probe_encoding)?;
        options.probe_stored_only = def.probe_stored_only;
        options.cores = Some(self.cores());
        self.tuning.set(&mut options);
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
}
