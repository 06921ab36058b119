//! Workers: registration, heartbeats, what a task is, and how it ended.

use std::sync::Arc;
use std::time::Duration;

use caju_autocache::SplitModes;
use caju_proto::v1;
use caju_types::{Error, ErrorKind, Result, Secret, TaskId, WorkerId};
use caju_wire::is_in_process;

use super::autocache::{Decisions, EndedTask, Planned};
use super::context::Context;
use super::learning::Learning;
use super::peer_reports::PeerReports;
use super::served::shared_counts;
use super::shards::{moved_under_flight_readers, slot_for};
use super::snapshots::Snapshots;
use super::splits::running_task;
use super::task_messages::{modes_from_proto, task_def};
use super::usage::admit_worker;
use super::{Txn, secrets};
use crate::config::DispatcherConfig;
use crate::state::{
    Even, Failure, Iteration, Mode, State, TargetWorkers, Task, TaskState, Update, Worker, WorkerState,
};

/// The most tags of a worker. They are in the journal, and in each answer about the workers.
const MAX_TAGS: usize = 64;

/// The calls of workers about themselves and their tasks.
pub(crate) struct Workers {
    pub(super) context: Arc<Context>,
    pub(super) learning: Arc<Learning>,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) decisions: Arc<Decisions>,
}

impl Workers {
    pub(crate) async fn register_worker(
        &self,
        request: v1::RegisterWorkerRequest,
    ) -> Result<v1::RegisterWorkerResponse> {
        self.context.config.memory.check_name("a worker's address", &request.address)?;
        let valid = request
            .address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p != 0));
        // A worker without a port is read by the readers in its own process.
        if !valid && !is_in_process(&request.address) {
            return Err(Error::invalid(format!(
                "worker address `{}` is not HOST:PORT that clients could dial",
                request.address
            )));
        }
        self.context.config.memory.check_name("a worker's version", &request.version)?;
        if request.tags.len() > MAX_TAGS {
            return Err(Error::invalid(format!(
                "worker {} has {} tags; the most are {MAX_TAGS}",
                request.address,
                request.tags.len()
            )));
        }
        request
            .tags
            .iter()
            .try_for_each(|tag| self.context.config.memory.check_name("a worker's tag", tag))?;
        let now = self.context.clock.now();
        let secret = secrets::of_registration(&request.secret)?;
        let worker = self
            .context
            .commit(|txn| {
                self.context.reports.may_register(txn.state, &request, now)?;
                let id = register(&self.context.config, txn, &request, secret)?;
                self.context.reports.lock().worker_registered(id, now);
                Ok(id)
            })
            .await?;
        tracing::info!("{worker} at {} registered", request.address);
        Ok(v1::RegisterWorkerResponse {
            worker_id: worker.0,
            heartbeat_ms: self.context.heartbeat_ms(),
            secret: secret.to_vec().into(),
            cache_url: self.context.config.cache_url.clone(),
        })
    }

    /// Workers that any process can read from: their identifiers, addresses and secrets. A worker of a journal without secrets
    /// is left out until it registers again, which it does with its next heartbeat.
    pub(crate) async fn active_workers(&self) -> Result<Vec<(WorkerId, String, Secret)>> {
        let open = |w: &&Worker| !w.is_local_only(TargetWorkers::Auto);
        let known = |w: &Worker| Some((w.id, w.address.clone(), w.secret?));
        self.context
            .read_durable(|state| state.active_workers().filter(open).filter_map(known).collect())
            .await
    }

    pub(crate) async fn worker_heartbeat(
        &self,
        request: v1::WorkerHeartbeatRequest,
    ) -> Result<v1::WorkerHeartbeatResponse> {
        let id = WorkerId(request.worker_id);
        let mut answer = self
            .context
            .read_durable_except_leases(|state| -> Result<v1::WorkerHeartbeatResponse> {
                // A dispatcher that was started again may have another list of workers.
                let fits = |w: &Worker| {
                    self.context.config.workers.is_open()
                        || self.context.config.workers.fits(w.slot, &w.address)
                };
                let known = state
                    .workers
                    .get(&id)
                    .filter(|w| !w.is_lost() && w.address == request.address && fits(w));
                if known.is_some() {
                    secrets::worker(state, id, &request.secret)?;
                }
                let has_lagging = |t: &&u64| {
                    let of_task = state.task(TaskId(**t)).and_then(|(iteration, _)| iteration.even.as_ref());
                    of_task.is_some_and(Even::has_lagging)
                };
                let stale = |t: &&u64| !should_run(state, TaskId(**t), id);
                Ok(v1::WorkerHeartbeatResponse {
                    register_again: known.is_none(),
                    cancel_tasks: request.tasks.iter().filter(stale).copied().collect(),
                    draining: known.is_some_and(|w| w.state == WorkerState::Draining),
                    decided: Vec::new(),
                    learn: Vec::new(),
                    lagging_tasks: request.tasks.iter().filter(has_lagging).copied().collect(),
                })
            })
            .await??;
        if answer.register_again {
            // The caller has not shown a secret, so its report is ignored.
            return Ok(answer);
        }
        answer.learn = self.learning.boundaries_to_learn(id, &request);
        {
            let mut reports = self.context.reports.lock();
            let report = reports.workers.entry(id).or_default();
            report.at = self.context.clock.now();
            report.stages = request.stages;
            report.tasks = request.tasks;
            (report.usage, report.usage_at) = (request.usage, report.at);
            report.tuned = request.tuned;
        }
        if !(request.checksums.is_empty() && request.served.is_empty()) {
            self.context.store.read(|state| {
                self.context.reports.on_row_checksums(state, id, &request.checksums);
                self.context.reports.lock().on_served(state, id, &request.served, self.context.clock.now());
            });
        }
        if request.profiles.is_empty() {
            return Ok(answer);
        }
        let profiles = self.context.read_durable(|state| of_worker(state, id, request.profiles)).await?;
        let profiling: Vec<TaskId> = profiles.iter().map(|p| TaskId(p.task_id)).collect();
        for profile in profiles {
            self.decisions.on_task_report(profile).await?;
        }
        if !profiling.is_empty() {
            let plan = |state: &State, id: TaskId| {
                let (iteration, _) = state.task(id)?;
                state.jobs.get(&iteration.job)?.decision.as_ref()?;
                let cache_plan_json = iteration.plan.as_ref().map_or("", |p| p.text()).to_string();
                Some(v1::TaskPlan { task_id: id.0, cache_plan_json })
            };
            answer.decided = self
                .context
                .read_durable(|state| profiling.iter().filter_map(|id| plan(state, *id)).collect())
                .await?;
        }
        Ok(answer)
    }

    pub(crate) async fn get_task(&self, request: v1::GetTaskRequest) -> Result<v1::GetTaskResponse> {
        let (id, worker) = (TaskId(request.task_id), WorkerId(request.worker_id));
        // Before the state is locked: a decision may be planned at this moment.
        let job = self.context.store.read(|state| state.task(id).map(|(iteration, _)| iteration.job.clone()));
        let record = job.and_then(|job| self.decisions.plan_record(&job));
        self.context
            .read_durable(|state| {
                secrets::worker(state, worker, &request.secret)?;
                let (iteration, task) = running_task(state, id, worker)?;
                let task = task_def(&self.context.config, state, iteration, task, record.as_ref())?;
                Ok(v1::GetTaskResponse { task: Some(task) })
            })
            .await?
    }

    pub(crate) async fn finish_task(&self, request: v1::FinishTaskRequest) -> Result<v1::FinishTaskResponse> {
        let (id, worker) = (TaskId(request.task_id), WorkerId(request.worker_id));
        let (result, number) = match &request.failure {
            Some(failure) => self.context.transact(|txn| {
                if has_news(txn.state, id, worker, &request.secret)? {
                    let iteration = txn.state.task_index.get(&id).copied();
                    self.context.reports.lock().skip_splits(txn, id, &request.skipped_splits);
                    fail(txn, &request, failure);
                    // A task of which every reader has everything is compared now.
                    iteration.into_iter().for_each(|id| self.context.reports.lock().settle_tasks(txn, id));
                }
                Ok(())
            }),
            None => {
                let ended = EndedTask {
                    task: id,
                    worker,
                    stages: &request.stages,
                    modes: request.modes.map(modes_from_proto).unwrap_or_default(),
                    profile: request.profile.as_ref().filter(|p| p.task_id == id.0),
                };
                self.decisions.end_task(&ended, |txn, planned| self.finish(txn, &request, &ended, planned))
            }
        };
        self.context.store.durable(number).await?;
        result.map(|()| v1::FinishTaskResponse {})
    }

    /// Enters the end of a task, and what was planned for it.
    fn finish(
        &self,
        txn: &mut Txn<'_>,
        request: &v1::FinishTaskRequest,
        ended: &EndedTask<'_>,
        planned: &Planned,
    ) -> Result<()> {
        let id = ended.task;
        if !has_news(txn.state, id, ended.worker, &request.secret)? {
            return Ok(());
        }
        let Some(iteration_id) = txn.state.task(id).map(|(iteration, _)| iteration.id) else { return Ok(()) };
        {
            let mut reports = self.context.reports.lock();
            reports.on_served(txn.state, ended.worker, request.served.as_slice(), self.context.clock.now());
            reports.served.on_end(iteration_id, id);
            reports.ended_tasks.add(iteration_id, &request.stages, request.io, &request.first_skips);
        }
        self.context.reports.lock().skip_splits(txn, id, &request.skipped_splits);
        end(txn, request, ended.modes);
        self.context.reports.lock().settle_tasks(txn, iteration_id);
        if txn.state.iterations.get(&iteration_id).is_some_and(|i| i.failure.is_none()) {
            planned.carry_out(txn);
        }
        self.snapshots.update_manifest_soon(txn.state, iteration_id);
        self.decisions.write_plan_record_soon(txn.state, iteration_id);
        Ok(())
    }

    /// Whether a call may make a worker leave: its own, or an operator's.
    fn may_drain(&self, worker: &Worker, given: &[u8]) -> Result<()> {
        let operator = self.context.process.operator.is_some_and(|s| s.is(given));
        if operator || worker.secret.is_some_and(|s| s.is(given)) {
            return Ok(());
        }
        Err(Error::permission_denied(match &self.context.process.operator {
            Some(_) => format!(
                "draining {} needs the operator's secret: give --operator-secret-file, a copy of the file \
                 `operator-secret` in the dispatcher's --state-dir (or of its own --operator-secret-file)",
                worker.describe()
            ),
            None => format!(
                "{} cannot be drained from afar: this dispatcher has no operator's secret; start it with --state-dir \
                 or --operator-secret-file, or send the worker SIGTERM",
                worker.describe()
            ),
        }))
    }

    pub(crate) async fn drain_worker(
        &self,
        request: v1::DrainWorkerRequest,
    ) -> Result<v1::DrainWorkerResponse> {
        let (id, at_ms) = (WorkerId(request.worker_id), self.context.unix_ms());
        self.context
            .commit(|txn| {
                let known: Vec<String> = txn.state.workers.values().map(|w| w.describe()).collect();
                let Some(worker) = txn.state.workers.get(&id) else {
                    let known = if known.is_empty() { "none".to_string() } else { known.join(", ") };
                    return Err(Error::not_found(format!("there is no {id}; registered workers: {known}")));
                };
                self.may_drain(worker, &request.secret)?;
                if request.leaving {
                    let reason = format!("{} left", worker.describe());
                    if !worker.is_lost() {
                        txn.apply(Update::WorkerLost { worker: id, reason, at_ms, left: true });
                    }
                    return Ok(v1::DrainWorkerResponse {});
                }
                if worker.is_lost() {
                    return Err(Error::failed_precondition(format!("{} is lost already", worker.describe())));
                }
                if worker.is_active() {
                    txn.apply(Update::WorkerDraining { worker: id });
                }
                Ok(v1::DrainWorkerResponse {})
            })
            .await
    }
}

impl PeerReports {
    /// Whether a worker may register: only the live worker itself may take its address again.
    fn may_register(&self, state: &State, request: &v1::RegisterWorkerRequest, now: Duration) -> Result<()> {
        let Some(known) = state.worker_at(&request.address) else { return Ok(()) };
        if known.is_lost() || secrets::is_of_worker(known, &request.secret) {
            return Ok(());
        }
        let last_report = self.lock().workers.get(&known.id).map_or(now, |r| r.at);
        let silent = now.saturating_sub(last_report);
        let timeout = self.timers.worker_timeout;
        let alive = self.timers.missed().max(timeout / 2).min(timeout);
        if silent > alive {
            return Ok(());
        }
        // A worker that was killed and started again tries until the dispatcher misses the old one.
        Err(Error::unavailable(format!(
            "{} sent its last heartbeat {:.1} s ago, and its address is not given to another process while it lives; if it died \
             just now, this passes within {}; else take another address (--listen, --advertise)",
            known.describe(),
            silent.as_secs_f64(),
            caju_types::format_duration(alive)
        )))
    }
}

fn register(
    config: &DispatcherConfig,
    txn: &mut Txn<'_>,
    request: &v1::RegisterWorkerRequest,
    secret: Secret,
) -> Result<WorkerId> {
    let known = txn.state.worker_at(&request.address).map(|w| (w.id, w.slot));
    if known.is_none() {
        admit_worker(&config.memory, txn)?;
    }
    let worker = known.map_or(WorkerId(txn.state.next_worker.max(1)), |(id, _)| id);
    let slot = slot_for(config, txn.state, &request.address, worker, known.map(|(_, slot)| slot))?;
    // Under `off` a worker that comes back under another address must not count twice.
    let off = |i: &Iteration| i.mode == Mode::Off && i.is_running() && !i.feeds.is_empty();
    let unconfirmed = known.is_none() && txn.state.iterations.values().any(off);
    txn.apply(Update::WorkerRegistered {
        worker,
        address: request.address.clone(),
        slot,
        tags: request.tags.clone(),
        cores: request.cores,
        version: request.version.clone(),
        secret: Some(secret),
        unconfirmed,
    });
    if known.is_some_and(|(_, was)| was != slot) {
        for update in moved_under_flight_readers(txn.state) {
            txn.apply(update);
        }
    }
    Ok(worker)
}

/// Whether a worker's report of the end of a task is news. A task that is unknown, lost or reported already needs nothing
/// more: its worker may forget it.
fn has_news(state: &State, id: TaskId, worker: WorkerId, secret: &[u8]) -> Result<bool> {
    let Some((_, task)) = state.task(id).filter(|(_, task)| !task.is_lost() && !task.reported) else {
        return Ok(false);
    };
    secrets::worker(state, task.worker, secret)?;
    Ok(task.worker == worker)
}

/// A task failed, or was abandoned by its worker.
fn fail(txn: &mut Txn<'_>, request: &v1::FinishTaskRequest, failure: &v1::Failure) {
    let (id, worker) = (TaskId(request.task_id), WorkerId(request.worker_id));
    let Some((iteration, _)) = txn.state.task(id) else { return };
    let error = Error::from(failure);
    let update = if error.kind() == ErrorKind::Cancelled {
        // Workers that count no rows of Flight readers send counts that are not whole.
        let (emitted, _) = counts(request);
        let emitted = emitted.filter(|_| request.flight_counted);
        Update::TaskLost { task: id, reason: format!("{worker} gave {id} up: {error}"), emitted }
    } else {
        tracing::warn!("{} failed on {worker}: {error}", iteration.describe());
        Update::IterationFailed { iteration: iteration.id, failure: Failure::from(&error) }
    };
    txn.apply(update);
}

/// A task ended well; too many skipped rows are a failure all the same.
fn end(txn: &mut Txn<'_>, request: &v1::FinishTaskRequest, modes: SplitModes) {
    let (id, rows_skipped) = (TaskId(request.task_id), request.rows_skipped);
    let (emitted, to_flight) = counts(request);
    let shared = request.served.and_then(|s| s.shared).map(shared_counts);
    let forgotten = request.forgotten_rows;
    txn.apply(Update::TaskEnded { task: id, rows_skipped, modes, emitted, to_flight, forgotten, shared });
    let Some((iteration, _)) = txn.state.task(id) else { return };
    let limit = txn.state.datasets.get(&iteration.dataset).and_then(|d| d.skip_limit);
    let (iteration_id, skipped) = (iteration.id, iteration.rows_skipped);
    if let Some(limit) = limit.filter(|l| skipped > *l) {
        let error = too_many_skipped(&iteration.describe(), skipped, limit);
        txn.apply(Update::IterationFailed { iteration: iteration_id, failure: (&error).into() });
    }
}

/// The error of an epoch or a save that skipped more bad rows than its pipeline allows.
pub(super) fn too_many_skipped(what: &str, skipped: u64, limit: u64) -> Error {
    Error::data_loss(format!(
        "{what}: {skipped} bad rows were skipped, more than the limit of {limit}; see the workers' logs for the \
         rows, or raise `on_error: {{ skip: {{ limit: N }} }}`"
    ))
}

/// Whether a worker should continue a task that it reports.
fn should_run(state: &State, id: TaskId, worker: WorkerId) -> bool {
    let keep = |t: &Task| t.worker == worker && matches!(t.state, TaskState::Active | TaskState::Ended);
    state.task(id).is_some_and(|(iteration, task)| iteration.failure.is_none() && keep(task))
}

/// Rows that a task emitted, and those that went to Flight readers, per split; where its worker counts.
type Counts = (Option<Vec<(u64, u64)>>, Option<Vec<(u64, u64)>>);

fn counts(request: &v1::FinishTaskRequest) -> Counts {
    let counts = |of: &[v1::SplitCount]| of.iter().map(|c| (c.split_index, c.rows)).collect();
    (
        request.counted.then(|| counts(&request.splits_out)),
        request.flight_counted.then(|| counts(&request.splits_to_flight)),
    )
}

/// Profiles of tasks that a worker has.
fn of_worker(state: &State, worker: WorkerId, profiles: Vec<v1::TaskProfile>) -> Vec<v1::TaskProfile> {
    let own = |p: &v1::TaskProfile| state.task(TaskId(p.task_id)).is_some_and(|(_, t)| t.worker == worker);
    profiles.into_iter().filter(own).collect()
}
