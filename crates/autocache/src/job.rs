//! The autocache decision of one job.

use std::collections::BTreeMap;

use caju_planner::{Choice, Decision, Policy, Profile, plan};
use caju_types::{IterationId, Result, TaskId};

use crate::PlanRecord;
use crate::choice::{cache_plan, reads_existing};
use crate::coverage::{Coverage, CoverageState};
use crate::event::{Action, Event};
use crate::facts::{ClusterFacts, Decided, EpochReport, IterationFacts, JobSpec, Peer, TaskStage, demand};
use crate::hint::HintDef;
use crate::horizon::{epochs_left, expected_jobs};
use crate::profile_builder::{Measurements, Pipeline};
use crate::replan::{ReplanState, replan};
use crate::report::{StageKind, TaskReport};
use crate::timing::{Observations, is_another_probe_worth_it, is_due, is_probing_over, may_try};
use crate::warm_start::{decide_by_record, suits};

/// Iterations of a job that wait for a decision at once. Identifiers grow, so that the oldest iteration has the smallest.
const MAX_WAITING: usize = 16;

/// What is known of an iteration that waits for a decision.
#[derive(Debug, Default)]
struct Waiting {
    tasks: BTreeMap<TaskId, TaskReport>,
    /// Tasks that ended, whatever later facts say of them: facts of two tasks may be gathered concurrently.
    ended: Vec<TaskId>,
    observations: Observations,
    /// None before the storage is checked.
    coverage: Option<CoverageState>,
}

/// The autocache decision of one job: events in, actions out.
///
/// It keeps no time and draws nothing at random, so that the same events give the same actions. Its owner feeds the events
/// of the job in the order in which they happen, and carries out the actions.
///
/// ```
/// use caju_autocache::{Autocache, Event, JobSpec, ReplanState};
/// # use caju_types::{IterationId, JobName};
/// let mut job = Autocache::default();
/// let spec = JobSpec {
///     name: JobName("train".into()),
///     policy: "auto".parse()?,
///     encoding: None,
///     epochs: Some(90),
///     profile_only: false,
///     each_worker_reads_all: false,
///     snapshot_budget_bytes: None,
/// };
/// let (hints, random_stages, replan) = (Vec::new(), Vec::new(), ReplanState::default());
/// job.apply(Event::JobOpened { job: Box::new(spec), hints, random_stages, decided: None, replan });
/// // Without hints the storage need not be checked.
/// let actions = job.apply(Event::IterationOpened { iteration: IterationId(1), epoch: 0, peers: Vec::new() });
/// assert!(actions.is_empty());
/// # Ok::<(), caju_types::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Autocache {
    job: Option<JobSpec>,
    hints: Vec<HintDef>,
    random_stages: Vec<String>,
    decided: Option<Decided>,
    replan: ReplanState,
    record: Option<PlanRecord>,
    iterations: BTreeMap<IterationId, Waiting>,
}

impl Autocache {
    /// Takes an event, and says what follows from it. Events before [`Event::JobOpened`] have no effect.
    pub fn apply(&mut self, event: Event) -> Vec<Action> {
        if let Event::JobOpened { job, hints, random_stages, decided, replan } = event {
            self.open(*job, hints, random_stages, decided, replan);
            return Vec::new();
        }
        let Some(job) = self.job.take() else { return Vec::new() };
        let actions = self.apply_to(&job, event);
        self.job = Some(job);
        actions
    }

    /// What was decided.
    pub fn decided(&self) -> Option<&Decided> {
        self.decided.as_ref()
    }

    /// Whether a check of the storage for an iteration is still of use.
    pub fn awaits_coverage(&self, iteration: IterationId) -> bool {
        let waiting = self.iterations.get(&iteration);
        waiting.is_some_and(|w| matches!(w.coverage, Some(CoverageState::Pending(_))))
    }

    /// What is known from earlier jobs of the pipeline.
    pub fn plan_record(&self) -> Option<&PlanRecord> {
        self.record.as_ref()
    }

    fn open(
        &mut self,
        job: JobSpec,
        mut hints: Vec<HintDef>,
        random_stages: Vec<String>,
        decided: Option<Decided>,
        replan: ReplanState,
    ) {
        if job.each_worker_reads_all {
            for hint in hints.iter_mut().filter(|h| h.is_set()) {
                hint.not_storable.get_or_insert_with(|| {
                    "it stands below a cross-split stage, and every worker reads all splits by itself".into()
                });
            }
        }
        (self.hints, self.random_stages, self.decided, self.replan) = (hints, random_stages, decided, replan);
        self.job = Some(job);
    }

    fn apply_to(&mut self, job: &JobSpec, event: Event) -> Vec<Action> {
        match event {
            Event::JobOpened { .. } => Vec::new(),
            Event::IterationOpened { iteration, epoch, peers } => {
                self.iteration_opened(job, iteration, epoch, &peers)
            }
            Event::PlanRecordRead { record } => {
                self.record = Some(*record);
                Vec::new()
            }
            Event::StorageCheckProgressed { iteration, splits, sets } => {
                self.storage_check_progressed(iteration, splits, sets);
                Vec::new()
            }
            Event::StorageChecked { iteration, epoch, coverage, cluster } => {
                self.storage_checked(job, iteration, epoch, coverage, cluster)
            }
            Event::TaskReported { iteration, report } => self.on_report(job, &iteration, *report, false),
            Event::TaskEnded { iteration, report } => self.on_report(job, &iteration, *report, true),
            Event::EpochEnded { epoch } => self.on_epoch_ended(job, &epoch),
        }
    }

    fn is_undecided(&self, job: &JobSpec) -> bool {
        job.policy.is_planned() && self.decided.is_none()
    }

    /// What is known of an iteration. Of too many the oldest is forgotten.
    fn waiting(&mut self, iteration: IterationId) -> &mut Waiting {
        if self.iterations.len() >= MAX_WAITING && !self.iterations.contains_key(&iteration) {
            self.iterations.pop_first();
        }
        self.iterations.entry(iteration).or_default()
    }

    fn iteration_opened(
        &mut self,
        job: &JobSpec,
        iteration: IterationId,
        epoch: u64,
        peers: &[Peer],
    ) -> Vec<Action> {
        if !self.is_undecided(job) {
            return Vec::new();
        }
        let waiting = self.waiting(iteration);
        if waiting.coverage.is_some() {
            return Vec::new();
        }
        waiting.coverage = Some(CoverageState::Pending(Coverage::default()));
        let starts_warm = job.policy == Policy::Auto && !job.profile_only;
        let mut actions = Vec::new();
        if starts_warm && self.adopts(job, epoch, peers, false, &mut actions) {
            return actions;
        }
        if self.hints.iter().all(|h| !h.is_storable()) {
            self.waiting(iteration).coverage = Some(CoverageState::default());
            return actions;
        }
        actions.push(Action::CheckStorage { iteration, read_plan_record: starts_warm });
        actions
    }

    fn storage_check_progressed(
        &mut self,
        iteration: IterationId,
        splits: Option<u64>,
        sets: Option<Vec<crate::StoredSet>>,
    ) {
        let coverage = self.iterations.get_mut(&iteration).and_then(|i| i.coverage.as_mut());
        if let Some(CoverageState::Pending(so_far)) = coverage {
            so_far.splits = splits.or(so_far.splits);
            if let Some(sets) = sets {
                so_far.sets = sets;
            }
        }
    }

    /// Keeps what was found, and decides by the plan record if there is one.
    fn storage_checked(
        &mut self,
        job: &JobSpec,
        iteration: IterationId,
        epoch: u64,
        coverage: Coverage,
        cluster: ClusterFacts,
    ) -> Vec<Action> {
        if !self.is_undecided(job) {
            return Vec::new();
        }
        if let Some(waiting) = self.iterations.get_mut(&iteration) {
            waiting.coverage = Some(CoverageState::Known(coverage.clone()));
        }
        let Some(record) = self.record.as_ref().filter(|_| job.policy == Policy::Auto && !job.profile_only)
        else {
            return Vec::new();
        };
        match decide_by_record(job, &self.hints, epoch, record, &coverage, cluster) {
            Ok(Some(decided)) => {
                let reason = decided.decision.value().map(|d| d.reason.clone()).unwrap_or_default();
                vec![self.decide(decided, reason)]
            }
            Ok(None) => vec![Action::debug("the plan record does not fit; the job measures for itself")],
            Err(error) => vec![Action::debug(format!("the job measures for itself: {error}"))],
        }
    }

    fn on_report(
        &mut self,
        job: &JobSpec,
        facts: &IterationFacts,
        report: TaskReport,
        ended: bool,
    ) -> Vec<Action> {
        if !self.is_undecided(job) {
            return Vec::new();
        }
        let waiting = self.waiting(facts.iteration);
        if ended && !waiting.ended.contains(&report.task) {
            waiting.ended.push(report.task);
        }
        waiting.tasks.insert(report.task, report);
        let mut actions = Vec::new();
        self.try_decide(job, facts, ended, &mut actions);
        actions
    }

    /// Decides for an iteration if what is known is enough. An error here must not end the epoch.
    fn try_decide(&mut self, job: &JobSpec, facts: &IterationFacts, ended: bool, actions: &mut Vec<Action>) {
        let Some(mut case) = Case::of(self, job, facts) else { return };
        let last = ended && case.all_ended;
        // Who only wants a profile wants the whole of it.
        let enough = match job.profile_only {
            true => last,
            false => last || may_try(&case.measured, &self.hints),
        };
        // A job that began together with another one reads what the first to decide stores.
        if !enough || self.adopts(job, facts.epoch, &facts.peers, true, actions) {
            return;
        }
        let (profile, decision) = match case.decide(self, job, None) {
            Ok(decided) => decided,
            Err(error) => {
                let text = format!("no profile can be made of the measurements, rows are computed: {error}");
                return actions.push(Action::warning(text));
            }
        };
        if !(case.is_conclusive(self, job, &profile, &decision, actions) || last) {
            return;
        }
        let plan = match cache_plan(&decision, &profile, &self.hints) {
            // The decision is reported and not carried out.
            _ if job.profile_only => None,
            Ok(plan) => plan,
            Err(error) => {
                actions.push(Action::warning(format!("the planner's choice cannot be carried out: {error}")));
                None
            }
        };
        let reason = decision.reason.clone();
        actions.push(self.decide(Decided::new(plan, decision, profile), reason));
    }

    /// Takes the decision of a running job with the same pipeline. A job that has measured for itself adopts only a
    /// decision to store: a decision to compute may depend on the speed of the other job's reader.
    fn adopts(
        &mut self,
        job: &JobSpec,
        epoch: u64,
        peers: &[Peer],
        measured: bool,
        actions: &mut Vec<Action>,
    ) -> bool {
        if job.policy != Policy::Auto || job.profile_only {
            return false;
        }
        let epochs = epochs_left(job.epochs, epoch, self.record.as_ref());
        for peer in peers.iter().filter(|p| !measured || p.decided.plan.is_some()) {
            match suits(peer, job, &self.hints, epochs) {
                Ok(true) => {
                    let reason = format!("adopted from job `{}`, which runs the same pipeline", peer.job);
                    actions.push(self.decide(peer.decided.clone(), reason));
                    return true;
                }
                Ok(false) => {}
                Err(error) => actions.push(Action::debug(format!(
                    "the decision of job `{}` is not adopted: {error}",
                    peer.job
                ))),
            }
        }
        false
    }

    fn decide(&mut self, decided: Decided, reason: String) -> Action {
        self.iterations.clear();
        self.decided = Some(decided.clone());
        Action::Decide { decided, reason }
    }

    /// Compares an epoch with the decision, and changes the decision where it was wrong.
    fn on_epoch_ended(&mut self, job: &JobSpec, epoch: &EpochReport) -> Vec<Action> {
        if job.policy != Policy::Auto {
            return Vec::new();
        }
        let left = epochs_left(job.epochs, epoch.epoch.saturating_add(1), self.record.as_ref());
        let decided = self.decided.as_ref();
        let decided = decided.and_then(|d| d.profile.value().zip(d.decision.value()));
        let from = decided.map_or(Choice::Compute, |(_, decision)| decision.choice.clone());
        let pipeline = Pipeline { hints: &self.hints, random_stages: &self.random_stages };
        let next = replan(job, pipeline, &self.replan, decided, epoch, left);
        let mut actions = Vec::new();
        if let Some(error) = next.error {
            let text = format!("no profile can be made of an epoch, the decision stays: {error}");
            actions.push(Action::warning(text));
        }
        if let Some((profile, decision)) = next.change {
            match cache_plan(&decision, &profile, &self.hints) {
                Ok(plan) => {
                    let decided = Decided::new(plan, decision, profile);
                    self.decided = Some(decided.clone());
                    actions.push(Action::ChangeDecision { from, decided });
                }
                Err(error) => {
                    let text = format!("a better choice cannot be carried out: {error}");
                    actions.push(Action::warning(text));
                }
            }
        }
        if next.state != self.replan {
            self.replan = next.state.clone();
            actions.push(Action::SaveReplanState { state: next.state });
        }
        actions
    }
}

/// A decision that is tried.
struct Case {
    iteration: IterationId,
    measured: Measurements,
    /// Whether no task of the iteration runs any more.
    all_ended: bool,
}

impl Case {
    fn of(autocache: &Autocache, job: &JobSpec, facts: &IterationFacts) -> Option<Self> {
        let waiting = autocache.iterations.get(&facts.iteration)?;
        let stage = |task: TaskId, known: TaskStage| match known {
            TaskStage::Active if waiting.ended.contains(&task) => TaskStage::Ended,
            known => known,
        };
        // What a lost worker measured is measured again by others, without its cores.
        let counts = |id: TaskId| facts.tasks.iter().any(|t| t.task == id && t.stage != TaskStage::Lost);
        let tasks: Vec<TaskReport> = waiting.tasks.values().filter(|t| counts(t.task)).cloned().collect();
        let coverage = waiting.coverage.clone().unwrap_or_default();
        // How many splits a `take` leaves is not known.
        let takes = tasks.iter().flat_map(|t| &t.stages).any(|s| s.kind == StageKind::Take);
        let counted = if takes { 0 } else { coverage.splits().saturating_mul(facts.readings) };
        let reports = |id: TaskId| tasks.iter().any(|t| t.task == id);
        let mut workers: Vec<_> = facts.tasks.iter().filter(|t| reports(t.task)).map(|t| t.worker).collect();
        workers.sort_unstable();
        workers.dedup();
        let record = autocache.record.as_ref();
        let ended = facts.tasks.iter().filter(|t| stage(t.task, t.stage) != TaskStage::Active);
        let measured = Measurements {
            workers: workers.len() as u64,
            splits_total: facts.splits_listed.max(counted),
            // A reader that only counts rows says nothing about the demand of a training job.
            demand: if job.profile_only { None } else { demand(&facts.clients) },
            epochs: epochs_left(job.epochs, facts.epoch, record),
            jobs: record.map(expected_jobs),
            sharing: facts.sharing.clone(),
            budget: job.snapshot_budget_bytes,
            epoch_rows: None,
            ended: ended.map(|t| t.task).collect(),
            encoding: job.encoding,
            coverage,
            tasks,
        };
        let all_ended = facts.tasks.iter().all(|t| stage(t.task, t.stage) != TaskStage::Active);
        Some(Self { iteration: facts.iteration, measured, all_ended })
    }

    /// Plans by these measurements, or by all of the case.
    fn decide(
        &self,
        autocache: &Autocache,
        job: &JobSpec,
        window: Option<&Measurements>,
    ) -> Result<(Profile, Decision)> {
        let pipeline = Pipeline { hints: &autocache.hints, random_stages: &autocache.random_stages };
        let mut profile = window.unwrap_or(&self.measured).profile(pipeline);
        profile.validate()?;
        let decision = plan(&profile, &job.policy)?;
        // What is not stored in this epoch is stored in the next one, which leaves one less to read it in. Who only wants a
        // profile gets the number of jobs to come.
        let later = |choice: &Choice| {
            let hint = choice.hint().and_then(|name| autocache.hints.iter().find(|h| h.name == name));
            hint.is_some_and(HintDef::is_set) || self.all_ended
        };
        let written = !job.profile_only && !reads_existing(&decision.choice, &profile);
        match profile.horizon.epochs.filter(|n| *n > 1) {
            Some(epochs) if written && later(&decision.choice) => {
                profile.horizon.epochs = Some(epochs - 1);
                let decision = plan(&profile, &job.policy)?;
                Ok((profile, decision))
            }
            _ => Ok((profile, decision)),
        }
    }

    /// Whether a decision is conclusive: observations of several sample windows agree that no other option comes near, or
    /// the time for deciding is over, and another probe is not worth its cost.
    fn is_conclusive(
        &mut self,
        autocache: &mut Autocache,
        job: &JobSpec,
        profile: &Profile,
        decision: &Decision,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(waiting) = autocache.iterations.get_mut(&self.iteration) else { return false };
        let mut observations = std::mem::take(&mut waiting.observations);
        observations.add(&self.measured, |window| Ok(self.decide(autocache, job, Some(window))?.1));
        let margins = observations.margins(&decision.choice);
        let conclusive = observations.are_conclusive(&margins, decision, &self.measured);
        for m in &margins {
            let (choice, rival) = (&decision.choice, m.rival.as_deref().unwrap_or("computing"));
            let (ratio, low, high) = (m.ratio, m.low, m.high);
            actions.push(Action::debug(format!(
                "observed {choice}: {rival} takes {ratio:.3} times as long ({low:.3} to {high:.3})"
            )));
        }
        if let Some(waiting) = autocache.iterations.get_mut(&self.iteration) {
            waiting.observations = observations;
        }
        is_due(&self.measured, conclusive)
            && (self.all_ended
                || is_probing_over(&self.measured)
                || !is_another_probe_worth_it(&self.measured, profile, decision, &job.policy))
    }
}
