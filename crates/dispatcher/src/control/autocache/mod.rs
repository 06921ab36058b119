//! The autocache decisions of all jobs: events in, actions carried out.
//!
//! [`caju_autocache::Autocache`] decides for one job and is pure. Here its events are made of the state, of reports and of
//! what the storage says, and its actions become updates. Planning runs under the lock of one job's decision, never under
//! the lock of the state: that lock is taken before, for the facts, and after, for the updates.

mod carry_out;
mod event_log;
mod facts;
mod reports;
mod storage;
mod warm_start;

use std::cell::Cell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use caju_autocache::{Action, Autocache, Event, PlanRecord};
use caju_proto::v1;
use caju_runtime::{OrderedGuard, OrderedMutex};
use caju_types::{IterationId, JobName, Result, TaskId};

use super::Txn;
use super::context::{Context, IterationObserver};
use super::datasets::Datasets;
use super::listings::Providers;
use super::snapshots::Snapshots;
use crate::locks;
use crate::state::State;
use carry_out::carry_out;
use event_log::EventLog;
pub(super) use facts::EndedTask;
use facts::Facts;
use reports::task_report;

/// The decisions of jobs with iterations. They are made again of the state when they are missing.
#[derive(Debug)]
pub(super) struct JobDecisions {
    jobs: OrderedMutex<HashMap<JobName, Arc<OrderedMutex<JobDecision>>>>,
    /// Where events are recorded.
    log_dir: Option<Arc<Path>>,
}

/// The decision of one job.
#[derive(Debug, Default)]
pub(super) struct JobDecision {
    autocache: Autocache,
    is_open: bool,
    log: Option<EventLog>,
}

impl JobDecision {
    fn apply(&mut self, at_ms: u64, event: Event) -> Vec<Action> {
        if let Some(log) = &mut self.log {
            log.write(at_ms, &event);
        }
        self.autocache.apply(event)
    }
}

impl JobDecisions {
    pub(super) fn new(log_dir: Option<&Path>) -> Self {
        let jobs = OrderedMutex::new(locks::DECISIONS, HashMap::new());
        Self { jobs, log_dir: log_dir.map(Arc::from) }
    }

    fn find(&self, job: &JobName) -> Option<Arc<OrderedMutex<JobDecision>>> {
        self.jobs.lock().get(job).cloned()
    }

    fn find_or_create(&self, job: &JobName) -> Arc<OrderedMutex<JobDecision>> {
        let mut jobs = self.jobs.lock();
        let new = || {
            let log = self.log_dir.as_deref().map(|dir| EventLog::of(dir, job));
            let decision = JobDecision { log, ..JobDecision::default() };
            Arc::new(OrderedMutex::new(locks::DECISION, decision))
        };
        Arc::clone(jobs.entry(job.clone()).or_insert_with(new))
    }
}

impl IterationObserver for JobDecisions {
    /// Forgets the decisions of jobs without iterations.
    fn removed(&self, _id: IterationId, state: &State) {
        let mut jobs = self.jobs.lock();
        jobs.retain(|job, _| state.iterations.values().any(|i| i.job == *job));
    }
}

/// Decides for jobs, and carries out what was decided.
pub(super) struct Decisions {
    context: Arc<Context>,
    datasets: Arc<Datasets>,
    snapshots: Arc<Snapshots>,
    providers: Arc<Providers>,
    jobs: Arc<JobDecisions>,
}

/// What a step of the control plane carries out of a decision.
pub(super) struct Planned {
    job: Option<JobName>,
    actions: Vec<Action>,
    carried_out: Cell<bool>,
}

impl Planned {
    /// Makes the actions updates of this step.
    pub(super) fn carry_out(&self, txn: &mut Txn<'_>) {
        self.carried_out.set(true);
        if let Some(job) = &self.job {
            carry_out(txn, job, &self.actions);
        }
    }
}

impl Decisions {
    pub(super) fn new(
        context: Arc<Context>,
        datasets: Arc<Datasets>,
        snapshots: Arc<Snapshots>,
        providers: Arc<Providers>,
        jobs: Arc<JobDecisions>,
    ) -> Self {
        Self { context, datasets, snapshots, providers, jobs }
    }

    /// The present facts, for events.
    fn facts<'a>(&'a self, state: &'a State) -> Facts<'a> {
        Facts { state, reports: &self.context.reports, providers: &self.providers }
    }

    /// Makes the decision of a job ready for events; none if there is no such job.
    fn opened<'a>(
        &self,
        entry: &'a OrderedMutex<JobDecision>,
        job: &JobName,
    ) -> Option<OrderedGuard<'a, JobDecision>> {
        let mut decision = entry.lock();
        if !decision.is_open {
            let opened =
                self.context.store.read(|state| facts::job_opened(state, job, &self.context.config))?;
            decision.apply(self.context.unix_ms(), opened);
            decision.is_open = true;
        }
        Some(decision)
    }

    /// Feeds an event to the decision of a job and carries out what follows. The actions, and the number that must be
    /// durable before they are reported.
    fn on_autocache_event(
        &self,
        job: &JobName,
        event: impl FnOnce(&State) -> Option<Event>,
    ) -> (Vec<Action>, u64) {
        let entry = self.jobs.find_or_create(job);
        let step = |mut decision: OrderedGuard<'_, JobDecision>| {
            let event = self.context.store.read(event)?;
            let actions = decision.apply(self.context.unix_ms(), event);
            let (_, number) = self.context.transact(|txn| carry_out(txn, job, &actions));
            Some((actions, number))
        };
        let done = self.opened(&entry, job).and_then(step);
        done.unwrap_or_else(|| (Vec::new(), self.context.store.last()))
    }

    /// What is known from earlier jobs of a job's pipeline.
    pub(super) fn plan_record(&self, job: &JobName) -> Option<PlanRecord> {
        let decision = self.jobs.find(job)?;
        decision.lock().autocache.plan_record().cloned()
    }

    /// Takes the measurements of a running task, and decides if they are enough.
    pub(super) async fn on_task_report(&self, profile: v1::TaskProfile) -> Result<()> {
        let task = TaskId(profile.task_id);
        let waiting = |state: &State| undecided(state, state.task(task)?.0.id);
        let Some(waiting) = self.context.read_durable(waiting).await? else { return Ok(()) };
        let (_, number) = self.on_autocache_event(&waiting.job, |state| {
            let iteration = self.facts(state).iteration(waiting.iteration)?;
            Some(Event::TaskReported { iteration, report: Box::new(task_report(profile)) })
        });
        self.context.store.durable(number).await
    }

    /// Ends a task by `end`, which has to carry out what is planned, or to refuse the end. The final report of the task and
    /// the end of its epoch are planned before, so that the decision is journaled together with them. The result, and
    /// the number that must be durable before the result is reported.
    pub(super) fn end_task<R>(
        &self,
        ended: &EndedTask<'_>,
        end: impl FnOnce(&mut Txn<'_>, &Planned) -> R,
    ) -> (R, u64) {
        let job = self.context.store.read(|state| planned_job(state, ended.task));
        let entry = job.as_ref().map(|job| self.jobs.find_or_create(job));
        let mut decision = entry.as_ref().zip(job.as_ref()).and_then(|(entry, job)| self.opened(entry, job));
        let mut actions = Vec::new();
        if let Some(decision) = &mut decision {
            let now_ms = self.context.unix_ms();
            for event in self.context.store.read(|state| self.facts(state).task_ended(ended, now_ms)) {
                actions.extend(decision.apply(now_ms, event));
            }
        }
        let planned = Planned { job, actions, carried_out: Cell::new(false) };
        let done = self.context.transact(|txn| end(txn, &planned));
        if let Some(decision) = &mut decision
            && !planned.carried_out.get()
        {
            // The end was refused: what was planned for it does not count.
            decision.is_open = false;
        }
        done
    }
}

/// The job of a task, if its decision is planned.
fn planned_job(state: &State, task: TaskId) -> Option<JobName> {
    let job = state.jobs.get(&state.task(task)?.0.job)?;
    job.spec.policy.is_planned().then(|| job.name.clone())
}

/// An iteration that waits for a decision.
struct Waiting {
    iteration: IterationId,
    job: JobName,
}

fn undecided(state: &State, iteration: IterationId) -> Option<Waiting> {
    let job = state.jobs.get(&state.iterations.get(&iteration)?.job)?;
    let job = (job.spec.policy.is_planned() && job.decision.is_none()).then(|| job.name.clone())?;
    Some(Waiting { iteration, job })
}
