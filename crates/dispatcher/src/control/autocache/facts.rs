//! The facts of events: what the state and the last reports say of a job, an iteration or an epoch.

use std::collections::BTreeSet;

use caju_autocache::{
    ClientFacts, ClusterFacts, Decided, EpochReport, Event, IterationFacts, JobSpec, Peer, SharingFacts,
    SplitModes, TaskFacts, TaskStage,
};
use caju_proto::v1;
use caju_types::{IterationId, JobName, TaskId, WorkerId};

use super::reports::{stage_report, task_report};
use crate::config::DispatcherConfig;
use crate::control::listings::Providers;
use crate::control::peer_reports::PeerReports;
use crate::state::{Feed, FeedId, Iteration, Job, Mode, Policy, State, Task, TaskState};

/// A task that its worker reports as ended.
pub(in crate::control) struct EndedTask<'a> {
    pub(in crate::control) task: TaskId,
    pub(in crate::control) worker: WorkerId,
    pub(in crate::control) stages: &'a [v1::StageStats],
    pub(in crate::control) modes: SplitModes,
    pub(in crate::control) profile: Option<&'a v1::TaskProfile>,
}

/// Where the facts of events are.
pub(super) struct Facts<'a> {
    pub(super) state: &'a State,
    pub(super) reports: &'a PeerReports,
    pub(super) providers: &'a Providers,
}

impl Facts<'_> {
    /// The present facts of an iteration.
    pub(super) fn iteration(&self, id: IterationId) -> Option<IterationFacts> {
        let iteration = self.state.iterations.get(&id)?;
        let job = self.state.jobs.get(&iteration.job)?;
        let task = |t: &Task| TaskFacts { task: t.id, worker: t.worker, stage: stage(t) };
        Some(IterationFacts {
            iteration: id,
            epoch: iteration.epoch,
            tasks: iteration.tasks.values().map(task).collect(),
            splits_listed: self.providers.splits_total(iteration),
            readings: if reads_all(job.spec.mode) { iteration.feeds.len() as u64 } else { 1 },
            clients: self.clients(id),
            peers: peers(self.state, job),
            sharing: self.sharing(iteration),
        })
    }

    fn clients(&self, id: IterationId) -> Vec<ClientFacts> {
        let reports = self.reports.lock();
        let mine = reports.clients.iter().filter(|((i, _), _)| *i == id);
        mine.map(|(_, c)| ClientFacts { wait_fraction: c.wait_fraction, rows_per_s: c.rows_per_s }).collect()
    }

    /// The jobs that share rows with the one of an iteration; none if there is no other one.
    fn sharing(&self, iteration: &Iteration) -> Option<SharingFacts> {
        let group = self.reports.lock().sharing.group(self.state, iteration.id)?;
        let hints = &self.state.datasets.get(&iteration.dataset)?.hints;
        // Points are at the hints above the first cross-split stage, and in front of that stage.
        let hint = hints.iter().filter(|h| !h.is_set()).nth(group.last_point).map(|h| h.name.clone());
        Some(SharingFacts { jobs: group.jobs, hint })
    }

    /// What the end of a task means: its final report, and the end of the epoch if this was the last report.
    pub(super) fn task_ended(&self, ended: &EndedTask<'_>, now_ms: u64) -> Vec<Event> {
        let Some((of, task)) = self.state.task(ended.task) else { return Vec::new() };
        if task.is_lost() || task.reported || task.worker != ended.worker || of.failure.is_some() {
            return Vec::new();
        }
        let mut events = Vec::new();
        if let Some(profile) = ended.profile
            && let Some(mut facts) = self.iteration(of.id)
        {
            for task in facts.tasks.iter_mut().filter(|t| t.task == ended.task) {
                task.stage = TaskStage::Ended;
            }
            let report = Box::new(task_report(profile.clone()));
            events.push(Event::TaskEnded { iteration: facts, report });
        }
        if is_last_report(of, task) {
            events.push(Event::EpochEnded { epoch: Box::new(self.epoch_report(of, ended, now_ms)) });
        }
        events
    }

    fn epoch_report(&self, iteration: &Iteration, ended: &EndedTask<'_>, now_ms: u64) -> EpochReport {
        let mut stages = self.reports.lock().ended_tasks.stages(iteration.id);
        caju_proto::add_stages(&mut stages, ended.stages);
        let mut modes = iteration.modes;
        modes += ended.modes;
        let ran: Vec<&Task> = iteration.tasks.values().filter(|t| !t.is_lost()).collect();
        let workers: BTreeSet<WorkerId> = ran.iter().map(|t| t.worker).collect();
        EpochReport {
            iteration: iteration.id,
            epoch: iteration.epoch,
            opened_ms: iteration.opened_ms,
            ended_ms: now_ms,
            stages: stages.into_iter().map(stage_report).collect(),
            modes,
            splits_issued: iteration.feeds.values().map(|f| f.issued).sum(),
            tasks: ran.len() as u64,
            workers: workers.len() as u64,
            clients: self.clients(iteration.id),
            sharing: self.sharing(iteration),
        }
    }
}

/// The present facts of a job, for a decision that begins, or begins again after a restart.
pub(super) fn job_opened(state: &State, job: &JobName, config: &DispatcherConfig) -> Option<Event> {
    let job = state.jobs.get(job)?;
    let dataset = state.datasets.get(&job.spec.dataset)?;
    Some(Event::JobOpened {
        job: Box::new(JobSpec {
            name: job.name.clone(),
            policy: job.spec.policy.clone(),
            encoding: job.spec.encoding,
            epochs: job.spec.epochs,
            profile_only: job.spec.profile_only,
            each_worker_reads_all: reads_all(job.spec.mode),
            snapshot_budget_bytes: config.cache_budget,
        }),
        hints: dataset.hints.clone(),
        random_stages: dataset.random_stages.clone(),
        decided: decided(job),
        replan: job.replan.clone(),
    })
}

/// Whether each worker reads all splits.
fn reads_all(mode: Mode) -> bool {
    mode == Mode::Off
}

fn decided(job: &Job) -> Option<Decided> {
    let (decision, profile) = job.decision.clone().zip(job.profile.clone())?;
    Some(Decided { plan: job.plan.clone(), decision, profile })
}

fn stage(task: &Task) -> TaskStage {
    match task.state {
        TaskState::Active => TaskStage::Active,
        TaskState::Ended | TaskState::Done => TaskStage::Ended,
        TaskState::Lost { .. } => TaskStage::Lost,
    }
}

/// Decisions of running jobs that are like this one.
pub(super) fn peers(state: &State, job: &Job) -> Vec<Peer> {
    if job.spec.policy != Policy::Auto || job.spec.profile_only {
        return Vec::new();
    }
    let runs = |j: &Job| state.iterations.values().any(|i| i.job == j.name && i.is_running());
    let like = |j: &&Job| {
        let same = (j.spec.seed, &j.spec.encoding, j.spec.mode, &j.spec.policy)
            == (job.spec.seed, &job.spec.encoding, job.spec.mode, &job.spec.policy);
        j.decision.is_some()
            && j.spec.dataset == job.spec.dataset
            && same
            && !j.spec.profile_only
            && j.name != job.name
    };
    let peer = |j: &Job| {
        let decided = decided(j)?;
        runs(j).then(|| Peer { job: j.name.clone(), decided })
    };
    state.jobs.values().filter(like).filter_map(peer).collect()
}

/// Workers that take tasks, and their cores.
pub(super) fn cluster(state: &State) -> ClusterFacts {
    let active = state.workers.values().filter(|w| w.is_active());
    let (workers, cores) = active.fold((0, 0), |(n, cores), w| (n + 1, cores + u64::from(w.cores)));
    ClusterFacts { workers, cores }
}

/// Whether an epoch is over, and reported by all its workers, once this task is reported. Clients may have read everything
/// before.
fn is_last_report(iteration: &Iteration, task: &Task) -> bool {
    let closes = |feed: FeedId| iteration.exclusive && feed == task.feed;
    let has_work = |(id, feed): (&FeedId, &Feed)| feed.has_work() && !closes(*id);
    let is_over = |t: &Task| t.id == task.id || t.is_over();
    let is_reported = |t: &Task| t.id == task.id || t.is_lost() || t.is_reported();
    !iteration.feeds.is_empty()
        && !iteration.feeds.iter().any(has_work)
        && iteration.tasks.values().all(|t| is_over(t) && is_reported(t))
}
