//! The status for people: workers, jobs and their progress.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use caju_autocache::{CachePlan, Document};
use caju_planner::{Profile, ReportedTimes};
use caju_proto::v1;
use caju_types::{ClientId, IterationId, JobName, Result, TaskId, WorkerId};

use super::context::Context;
use super::learnt_boundaries::boundaries_of;
use super::listings::Providers;
use super::peer_reports::PeerReports;
use super::reports::Reports;
use super::saves::SaveCalls;
use super::scaling::Scaling;
use super::snapshots::Snapshots;
use super::task_messages::{modes_to_proto, sharing_name};
use crate::state::{Iteration, Job, Member, State, Task, TaskState, Worker};

/// Describes the whole cluster.
pub(crate) struct Status {
    pub(super) context: Arc<Context>,
    pub(super) providers: Arc<Providers>,
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) saves: Arc<SaveCalls>,
    pub(super) scaling: Arc<Scaling>,
}

impl Status {
    pub(crate) async fn get_status(&self) -> Result<v1::GetStatusResponse> {
        let cache = self.snapshots.cache_size().await;
        let now = self.context.clock.now();
        self.context
            .read_durable(|state| {
                let (by_worker, profiles) =
                    (ByWorker::of(state, &self.context.reports.lock()), Profiles::of(state));
                v1::GetStatusResponse {
                    version: env!("CARGO_PKG_VERSION").to_string(),
                    uptime_s: now.saturating_sub(self.context.process.started).as_secs_f64(),
                    workers: state
                        .workers
                        .values()
                        .map(|w| self.context.reports.worker_status(&by_worker, w))
                        .collect(),
                    jobs: state.iterations.values().map(|i| self.job_status(state, &profiles, i)).collect(),
                    saves: state.saves.values().map(|s| self.saves.status(s)).collect(),
                    cache_url: self.context.config.cache_url.clone(),
                    journal: self.context.store.describe_journal().to_string(),
                    configured_workers: self.context.config.workers.entries().to_vec(),
                    cache,
                    scaling: self.scaling.status(&self.context.config.timers),
                }
            })
            .await
    }

    /// The status of one epoch, without anything else. Readers ask for it at the end of their epochs: its cost does not grow with the
    /// other epochs and jobs.
    pub(crate) async fn get_epoch_status(&self, id: IterationId) -> Result<v1::GetStatusResponse> {
        self.context
            .read_durable(|state| {
                let known = state.iterations.get(&id);
                let jobs = known.map(|i| self.job_status(state, &Profiles::of_job(state, &i.job), i));
                v1::GetStatusResponse {
                    version: env!("CARGO_PKG_VERSION").to_string(),
                    jobs: jobs.into_iter().collect(),
                    ..Default::default()
                }
            })
            .await
    }

    fn job_status(&self, state: &State, profiles: &Profiles, iteration: &Iteration) -> v1::JobStatus {
        let dataset = state.datasets.get(&iteration.dataset);
        let reports = self.context.reports.lock();
        let stages = reports.stages(iteration);
        let bottleneck = reports.bottleneck(iteration, &stages);
        let ended = reports.ended_tasks.of(iteration.id);
        let first_skips = ended.map(|sums| sums.first_skips.clone()).unwrap_or_default();
        let io = ended.map(|sums| sums.io);
        let readers = readers(&reports, iteration, self.context.clock.now());
        let job = state.jobs.get(&iteration.job);
        let shared = job.and_then(|job| reports.served.shared(iteration, job));
        let served = v1::TaskServed { shared, ..reports.served.of_iteration(iteration.id) };
        let workers_wanted = workers_wanted(&reports, iteration);
        let others = reports.sharing.others(state, iteration.id);
        let shares_with = others.map(|i| format!("{} epoch {}", i.job, i.epoch)).collect();
        let in_rounds = iteration.even.as_ref().filter(|e| e.is_in_rounds());
        let rounds = in_rounds.map_or(0, |_| reports.taken_by_all(iteration));
        drop(reports);
        let splits_total = self.providers.splits_total(iteration);
        // A task that a client has read to its end runs on until its worker has reported.
        let running =
            iteration.tasks.values().filter(|t| t.state == TaskState::Active || t.is_over() && !t.reported);
        let balance = in_rounds.map_or("", |e| e.consumers.balance.as_str());
        v1::JobStatus {
            rows_skipped: iteration.rows_skipped,
            source_changed: iteration.source_changed.clone().unwrap_or_default(),
            job: iteration.job.0.clone(),
            dataset_id: iteration.dataset.0.clone(),
            pipeline: dataset.and_then(|d| d.name.clone()).unwrap_or_default(),
            iteration_id: iteration.id.0,
            epoch: iteration.epoch,
            state: iteration.state_name().to_string(),
            splits_total,
            splits_leased: iteration.splits_leased(),
            clients: count(iteration.members.len()),
            tasks: count(running.count()),
            mode: iteration.mode.as_str().to_string(),
            target_workers: iteration.target.as_str().to_string(),
            num_consumers: iteration.even.as_ref().map_or(0, |e| e.consumers.count),
            surplus_elements: iteration.even.as_ref().map_or(0, |e| e.surplus),
            padded_elements: iteration.even.as_ref().map_or(0, |e| e.padded),
            balance: balance.to_string(),
            rounds,
            failure: iteration.failure.as_ref().map(Into::into),
            bottleneck,
            stages,
            decision_json: decision(state, iteration),
            incomplete: super::acknowledgements::incomplete(iteration, None),
            profile_json: profiles.of_epoch(iteration),
            policy: state.jobs.get(&iteration.job).map(|j| j.spec.policy.to_string()).unwrap_or_default(),
            modes: Some(modes_to_proto(iteration.modes)),
            caching: iteration.plan.as_ref().map(describe).unwrap_or_default(),
            boundaries: boundaries_of(state, &iteration.dataset),
            encoding: iteration
                .plan
                .as_ref()
                .and_then(|plan| plan.value().map(|plan| plan.encoding.to_string()))
                .unwrap_or_default(),
            io,
            first_skips,
            shard_by: iteration.shard_by.map_or("", |by| by.as_str()).to_string(),
            num_shards: iteration.num_shards,
            readers,
            splits: Some(split_states(iteration, splits_total)),
            served: Some(served),
            workers_wanted,
            sharing: state.jobs.get(&iteration.job).map(sharing_name).unwrap_or_default(),
            shares_with,
        }
    }
}

/// The tasks that each worker runs, and what it gave out: all tasks are looked at once, and not once for each worker.
struct ByWorker {
    running: BTreeMap<WorkerId, Vec<(IterationId, TaskId)>>,
    served: BTreeMap<WorkerId, v1::TaskServed>,
}

impl ByWorker {
    fn of(state: &State, reports: &Reports) -> Self {
        let mut running: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let tasks = state.iterations.values().flat_map(|i| i.tasks.values().map(|t| (i.id, t)));
        for (iteration, task) in tasks.filter(|(_, t)| t.state == TaskState::Active) {
            running.entry(task.worker).or_default().push((iteration, task.id));
        }
        Self { running, served: reports.served.of_workers() }
    }
}

/// How many epochs of a job come with the job's profile, which takes some KiB to describe.
const PROFILED_EPOCHS: usize = 8;

/// The profiles of jobs as JSON, for the last epochs of each.
struct Profiles(BTreeMap<JobName, (u64, String)>);

impl Profiles {
    fn of(state: &State) -> Self {
        Self::of_epochs(state, state.iterations.values())
    }

    fn of_job(state: &State, job: &JobName) -> Self {
        Self::of_epochs(state, state.iterations.values().filter(|i| i.job == *job))
    }

    fn of_epochs<'a>(state: &'a State, iterations: impl Iterator<Item = &'a Iteration>) -> Self {
        let mut epochs: BTreeMap<&JobName, Vec<u64>> = BTreeMap::new();
        for iteration in iterations {
            epochs.entry(&iteration.job).or_default().push(iteration.epoch);
        }
        let profiled = epochs.into_iter().filter_map(|(name, mut epochs)| {
            epochs.sort_unstable_by(|a, b| b.cmp(a));
            let first = epochs.get(PROFILED_EPOCHS - 1).or(epochs.last()).copied()?;
            Some((name.clone(), (first, profile_json(state.jobs.get(name)?))))
        });
        Self(profiled.collect())
    }

    fn of_epoch(&self, iteration: &Iteration) -> String {
        let known = self.0.get(&iteration.job).filter(|(first, _)| iteration.epoch >= *first);
        known.map(|(_, profile)| profile.clone()).unwrap_or_default()
    }
}

impl PeerReports {
    fn worker_status(&self, by_worker: &ByWorker, worker: &Worker) -> v1::WorkerStatus {
        let reports = self.lock();
        let report = reports.workers.get(&worker.id);
        let (last_report, usage) = (report.map(|r| r.at), report.and_then(|r| r.usage));
        let tuned = report.map(|r| r.tuned.clone()).unwrap_or_default();
        let here = by_worker.running.get(&worker.id).map(Vec::as_slice).unwrap_or_default();
        let running = here.iter().filter_map(|(i, t)| reports.served.of_task(*i, *t)).collect();
        let served = by_worker.served.get(&worker.id).copied().unwrap_or_default();
        drop(reports);
        v1::WorkerStatus {
            worker_id: worker.id.0,
            address: worker.address.clone(),
            tags: worker.tags.clone(),
            cores: worker.cores,
            silent_s: last_report.map_or(0.0, |at| self.now().saturating_sub(at).as_secs_f64()),
            state: worker.state_name().to_string(),
            tasks: here.iter().map(|(_, t)| t.0).collect(),
            slot: worker.slot,
            served: Some(served),
            usage,
            running,
            tuned,
        }
    }
}

/// The workers that would keep the readers of an iteration busy; 0 while too little is known.
fn workers_wanted(reports: &Reports, iteration: &Iteration) -> u64 {
    let mut times = ReportedTimes::default();
    let workers = reports.served.by_worker(iteration.id);
    for (worker, of) in workers.iter().filter(|(_, of)| of.served.elements > 0) {
        // A report without a time, of a worker that has just begun, is left out.
        drop(times.report_worker(worker.0, of.served.busy_s / of.served.elements as f64));
    }
    for client in iteration.members.keys() {
        let Some(r) = reports.clients.get(&(iteration.id, *client)) else { continue };
        let since_opened = r.rows as f64 / r.rows_per_s;
        // A reader that always waits takes no time itself, so its own speed is not known.
        let own = since_opened * (1.0 - r.wait_fraction).max(MIN_OWN_FRACTION);
        drop(times.report_consumer(client.0, own / r.elements as f64));
    }
    times.advice(workers.len() as u64).unwrap_or(0)
}

/// The least fraction of its time that a reader counts as busy with rows.
const MIN_OWN_FRACTION: f64 = 1e-3;

/// The present readers of an iteration, by their last reports.
fn readers(reports: &Reports, iteration: &Iteration, now: Duration) -> Vec<v1::ReaderStatus> {
    let report = |client| reports.clients.get(&(iteration.id, client)).copied().unwrap_or_default();
    let most = iteration.members.keys().map(|client| report(*client).elements).max().unwrap_or(0);
    let status = |(client, member): (&ClientId, &Member)| {
        let r = report(*client);
        let silent = if reports.clients.contains_key(&(iteration.id, *client)) {
            now.saturating_sub(r.at)
        } else {
            Duration::ZERO
        };
        // What its user did since the report is not known; most likely it went on.
        let user_busy = if r.user_busy.is_zero() { Duration::ZERO } else { r.user_busy + silent };
        v1::ReaderStatus {
            client_id: client.0,
            consumer: member.consumer.map_or(0, |c| c + 1),
            flight: member.flight.is_some(),
            silent_s: silent.as_secs_f64(),
            elements: r.elements,
            rows: r.rows,
            bytes: r.bytes,
            rows_per_s: r.rows_per_s,
            wait_fraction: r.wait_fraction,
            rows_waiting: r.rows_waiting,
            user_busy_s: user_busy.as_secs_f64(),
            consumer_wait_s: r.consumer_wait.as_secs_f64(),
            elements_behind: if iteration.even.is_some() { most.saturating_sub(r.elements) } else { 0 },
        }
    };
    iteration.members.iter().map(status).collect()
}

/// The splits of an iteration by their states. While its listing goes on, those that are not listed count nowhere.
fn split_states(iteration: &Iteration, total: u64) -> v1::SplitStates {
    let with_tasks = |wanted: fn(&Task) -> bool| -> u64 {
        iteration.tasks.values().filter(|t| wanted(t)).map(|t| t.leases.len() as u64).sum()
    };
    let issued: u64 = iteration.feeds.values().map(|f| f.issued).sum();
    let pending: u64 = iteration.feeds.values().map(|f| f.pending.len() as u64).sum();
    // Readers of a lost task say first what they have of its splits.
    let back = pending + with_tasks(Task::is_lost);
    let (leased, sent) =
        (with_tasks(|t| t.state == TaskState::Active), with_tasks(|t| t.state == TaskState::Ended));
    let is_open = iteration.feeds.values().any(|f| f.has_work());
    let fresh = if is_open { total.saturating_sub(issued) } else { 0 };
    let done = issued.saturating_sub(back + leased + sent);
    let lost = iteration.tasks.values().filter(|t| t.is_lost()).flat_map(|t| t.leases.values());
    let (mut rows_waiting, mut uncounted) = (0u64, fresh);
    for lease in iteration.feeds.values().flat_map(|f| f.pending.values()).chain(lost) {
        match lease.rows {
            Some(rows) => {
                rows_waiting = rows_waiting.saturating_add(rows.saturating_sub(lease.done.len()));
            }
            None => uncounted += 1,
        }
    }
    v1::SplitStates { waiting: fresh + back, leased, sent, done, rows_waiting, uncounted }
}

/// The planner's decision for an iteration's job.
pub(super) fn decision(state: &State, iteration: &Iteration) -> String {
    let decision = state.jobs.get(&iteration.job).and_then(|j| j.decision.as_ref());
    decision.map(|d| d.text().to_string()).unwrap_or_default()
}

/// The profile of a job's decision, with the rates that options had in its epochs; none if there are none that can be added.
fn profile_with_rates(job: &Job) -> Option<Profile> {
    caju_autocache::profile_with_rates(job.profile.as_ref()?, job.decision.as_ref(), &job.replan)
}

/// The profile of a job's decision as a value of JSON; null if there is none, or if it is of another version.
pub(super) fn profile_value(job: &Job) -> serde_json::Value {
    let recorded = || job.profile.as_ref().and_then(|profile| profile.value().cloned());
    profile_with_rates(job).or_else(recorded).map(|profile| profile.to_value()).unwrap_or_default()
}

/// The profile of a job's decision, with the rates that options had in its epochs, as JSON; empty if there is none.
fn profile_json(job: &Job) -> String {
    let recorded = || job.profile.as_ref().map(|profile| profile.text().to_string());
    profile_with_rates(job).map(|profile| profile.to_json()).or_else(recorded).unwrap_or_default()
}

/// A plan for people.
fn describe(plan: &Document<CachePlan>) -> String {
    plan.value().map_or_else(|| plan.text().to_string(), CachePlan::describe)
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
