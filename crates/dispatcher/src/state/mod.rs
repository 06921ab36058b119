//! The state of the control plane, pure: no clock, no I/O, no randomness.
//!
//! It changes only through [`State::apply`]. What an event *means* is decided elsewhere (the `control` modules,
//! and [`follow_ups`] for what must follow from any change); what was decided is an [`Update`], and the
//! updates are the journal: applying them again, in order, gives the same state.

mod accounting;
mod acknowledged;
mod attempt;
mod cache_plan;
mod completed;
mod dataset;
mod even;
mod failure;
mod feed;
mod follow;
mod forget;
mod iteration;
mod iteration_updates;
mod learnt;
mod leases;
mod losses;
mod mode;
mod readers;
mod remainders;
mod resume;
mod round_order;
mod rounds;
mod saves;
mod sharing;
mod task;
mod update;
mod worker;

use std::collections::{BTreeMap, BTreeSet};

use caju_autocache::fixed_hint;
use caju_engine::ShardBy;
use caju_types::{ClientId, DatasetId, Fingerprint, IterationId, JobName, RowRanges, TaskId, WorkerId};
use serde::{Deserialize, Serialize};

pub use accounting::{LostReader, Missing};
pub use acknowledged::{Acknowledged, AcknowledgedRows};
pub use attempt::{Attempt, AttemptKey, AttemptRelation, MAX_RANKS};
pub use caju_autocache::{HintDef, Policy, SplitModes};
pub use dataset::{Dataset, Job, JobSpec};
pub use even::{Consumers, Even, describe_steps};
pub use failure::Failure;
pub use feed::{Feed, FeedId, Lease, SplitRecord, next_digest};
pub use follow::{LossLimits, follow_ups, owed_tasks};
pub use iteration::{Iteration, Member, READERS_NOTIFIED};
pub use learnt::{Learnt, StageBoundaries};
pub use mode::Mode;
pub use readers::TargetWorkers;
pub use remainders::{Remainder, RemainderAssignment, RemainderElement, RemainderPiece};
pub use resume::{FallbackState, FallbackStates, Resume, ResumedShards};
pub use round_order::{KnownOrder, RoundStep, span};
pub use saves::{Save, SaveStage, SaveTarget, SaveTotals};
pub use sharing::{SharedCounts, Sharing};
pub use task::{Task, TaskState};
pub use update::Update;
pub use worker::{COLOCATED, Worker, WorkerState};

/// Fields that came later are left out where they say nothing new: what is written stays what older versions wrote.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Everything that the dispatcher must not forget.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The next identifier for tasks, clients and iterations.
    pub next_id: u64,
    /// The first identifier of this journal. Lower ones were given out by a dispatcher whose state is lost; 0: not known,
    /// in journals of older versions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub founded_id: u64,
    /// The next identifier for workers; small, since people type them.
    pub next_worker: u64,
    /// Registered datasets.
    pub datasets: BTreeMap<DatasetId, Dataset>,
    /// Jobs.
    pub jobs: BTreeMap<JobName, Job>,
    /// Iterations that somebody reads, or read lately.
    pub iterations: BTreeMap<IterationId, Iteration>,
    /// Workers.
    pub workers: BTreeMap<WorkerId, Worker>,
    /// Saves, by URL: those that run, and how the last ones ended.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub saves: BTreeMap<String, Save>,
    /// Boundaries that were learnt, by the identity of the definition that learns them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub learnt: BTreeMap<Fingerprint, Learnt>,
    /// Where each task of [`State::iterations`] is found.
    pub task_index: BTreeMap<TaskId, IterationId>,
    /// The iterations that changed since this set was last taken; not part of the state proper.
    #[serde(skip)]
    touched: Touched,
}

/// Bookkeeping that two equal states may differ in.
#[derive(Debug, Clone, Default)]
struct Touched(BTreeSet<IterationId>);

impl PartialEq for Touched {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Touched {}

/// Whether nothing follows from a change, and nobody else waits for it: splits went to a task, or a client acknowledged rows.
/// There are thousands a second.
pub fn has_no_follow_up(update: &Update) -> bool {
    matches!(
        update,
        Update::Leased { end: false, .. }
            | Update::LaggingServed { .. }
            | Update::SplitsSetAside { .. }
            | Update::RowsAcknowledged { .. }
            | Update::SplitsCompleted { .. }
            | Update::SplitsSkipped { .. }
    )
}

/// Whether answers that do not depend on leases wait until an update is durable.
pub fn is_notable(update: &Update) -> bool {
    // Readers forget a split that is complete: a dispatcher that is started again must know it.
    // Workers report a split that they have skipped once.
    !has_no_follow_up(update)
        || matches!(update, Update::SplitsCompleted { .. } | Update::SplitsSkipped { .. })
}

impl State {
    /// The state that a journal amounts to.
    pub fn replay(groups: Vec<Vec<Update>>) -> Self {
        let mut state = Self::default();
        for update in groups.into_iter().flatten() {
            match update {
                Update::Snapshot { state: snapshot } => state = *snapshot,
                update => state.apply(&update),
            }
        }
        state.take_touched();
        state
    }

    /// Applies one change. Changes of unknown things do nothing: a journal cannot make this fail.
    pub fn apply(&mut self, update: &Update) {
        match update {
            Update::Founded { base_id } => {
                self.next_id = self.next_id.max(*base_id).max(1);
                self.founded_id = *base_id;
                self.next_worker = self.next_worker.max(1);
            }
            Update::Snapshot { state } => {
                let touched = std::mem::take(&mut self.touched);
                *self = (**state).clone();
                self.touched = touched;
            }
            Update::WorkerRegistered { .. }
            | Update::WorkerConfirmed { .. }
            | Update::WorkerDraining { .. }
            | Update::WorkerLost { .. }
            | Update::WorkerForgotten { .. } => self.apply_worker(update),
            Update::DatasetRegistered { dataset } => {
                self.datasets.insert(dataset.id.clone(), dataset.clone());
            }
            Update::JobCreated { job, spec } => {
                self.jobs.insert(job.clone(), Job::new(job.clone(), spec.clone()));
            }
            Update::Decided { job, plan, decision, profile } => {
                if let Some(job) = self.jobs.get_mut(job) {
                    job.plan.clone_from(plan);
                    job.decision = Some(decision.clone());
                    job.profile = Some(profile.clone());
                }
            }
            Update::ReplanStateChanged { job, replan } => {
                if let Some(job) = self.jobs.get_mut(job) {
                    job.replan.clone_from(replan);
                }
            }
            Update::SaveAdded { save } => self.add_save(save),
            Update::SaveEnded { url, stage } => self.end_save(url, stage),
            Update::IterationOpened {
                iteration,
                job,
                epoch,
                at_ms,
                num_shards,
                num_workers,
                resume,
                attempt,
            } => {
                let behind = (resume.as_deref(), attempt.clone());
                self.open((*iteration, job, *epoch, *at_ms), (*num_shards, *num_workers), behind);
            }
            Update::IterationDropped { iteration } => self.drop_iteration(*iteration),
            Update::BoundariesLearnt { learnt } => {
                self.learnt.insert(learnt.definition, learnt.clone());
            }
            Update::DatasetForgotten { dataset } => {
                self.datasets.remove(dataset);
                self.learnt.retain(|_, learnt| learnt.dataset != *dataset);
            }
            Update::JobForgotten { job } => {
                self.jobs.remove(job);
            }
            _ => self.apply_iteration(update),
        }
    }

    fn apply_worker(&mut self, update: &Update) {
        match update {
            Update::WorkerRegistered { worker, address, slot, tags, cores, version, secret, unconfirmed } => {
                self.next_worker = self.next_worker.max(worker.0 + 1);
                let known = self.workers.get(worker);
                // A process that registers again has not died: the splits that it had are not to blame. One that was lost was
                // silent: a split at which it hangs each time may be.
                let same_process =
                    known.is_some_and(|w| !w.is_lost() && w.secret.is_some() && w.secret == *secret);
                let before = known.map_or(0, |w| w.incarnation);
                let died = !same_process && !known.is_some_and(Worker::ends_in_order);
                let how = if same_process { "registered again" } else { "started again" };
                self.lose_worker(*worker, died, &format!("{worker} at {address} {how}"), false);
                let registered = Worker {
                    id: *worker,
                    address: address.clone(),
                    incarnation: before + 1,
                    slot: *slot,
                    tags: tags.clone(),
                    cores: *cores,
                    version: version.clone(),
                    state: WorkerState::Active,
                    secret: *secret,
                    left: false,
                    unconfirmed: *unconfirmed,
                };
                self.workers.insert(*worker, registered);
            }
            Update::WorkerConfirmed { worker, slot } => {
                if let Some(w) = self.workers.get_mut(worker) {
                    w.unconfirmed = false;
                    w.slot = *slot;
                }
            }
            Update::WorkerDraining { worker } => {
                if let Some(w) = self.workers.get_mut(worker).filter(|w| w.is_active()) {
                    w.state = WorkerState::Draining;
                }
            }
            Update::WorkerLost { worker, reason, at_ms, left } => {
                let mut died = !*left;
                if let Some(w) = self.workers.get_mut(worker) {
                    died &= !w.ends_in_order();
                    w.left = *left;
                    w.state = WorkerState::Lost { at_ms: *at_ms };
                }
                self.lose_worker(*worker, died, reason, *left);
            }
            Update::WorkerForgotten { worker } => {
                let died = !self.workers.get(worker).is_some_and(Worker::ends_in_order);
                self.lose_worker(*worker, died, "the worker is gone", false);
                self.workers.remove(worker);
            }
            _ => {}
        }
        self.iterations.values_mut().for_each(|i| i.note_unread_shards(&self.workers));
        // Who is there decides who gets tasks, everywhere.
        self.touched.0.extend(self.iterations.keys().copied());
    }

    /// Every iteration loses a worker. If it has not died, no split is to blame for its end, nor for a connection to it that broke
    /// before.
    fn lose_worker(&mut self, worker: WorkerId, died: bool, reason: &str, left: bool) {
        let incarnation = self.workers.get(&worker).map_or(0, |w| w.incarnation);
        for iteration in self.iterations.values_mut() {
            if !died {
                iteration.withdraw_blame(worker, incarnation);
            }
            iteration.worker_lost(worker, died.then_some(incarnation), reason, left);
        }
    }

    fn open(
        &mut self,
        (id, job, epoch, opened_ms): (IterationId, &JobName, u64, u64),
        (num_shards, num_workers): (u32, u32),
        (resume, attempt): (Option<&Resume>, Option<Box<Attempt>>),
    ) {
        let Some(of) = self.jobs.get(job) else { return };
        let (dataset, mode, target) = (of.spec.dataset.clone(), of.spec.mode, of.spec.target);
        let even = of.spec.consumers.clone().map(Even::new);
        let decided_against = of.decision.is_some() && of.plan.is_none();
        let useful = |d: &Dataset| {
            let planned = of.spec.policy.is_planned() && !mode.has_feed_per_worker();
            d.hints.iter().any(|h| !h.is_set() || planned && h.is_storable())
                || fixed_hint(&of.spec.policy, &d.hints).is_ok_and(|h| h.is_some())
        };
        let shard_by = resume.and_then(|r| r.shards?.by).or(of.spec.shard_by);
        // Rows of a shard that is cut by rows are no whole splits.
        let whole_splits = matches!(shard_by, None | Some(ShardBy::File));
        // States of an epoch that drew as stored rows are drawn need the hint, whatever is decided now.
        let needs_hint =
            resume.and_then(|r| r.draws.as_deref()).is_some_and(|draws| !draws.frozen_at.is_empty());
        let may_cache = of.spec.policy != Policy::Compute
            && !decided_against
            && self.datasets.get(&dataset).is_some_and(useful);
        let caching = whole_splits && (may_cache || needs_hint);
        self.next_id = self.next_id.max(id.0 + 1);
        let single_task = self.datasets.get(&dataset).is_some_and(|d| d.single_task);
        let exclusive = mode.has_feed_per_worker() || single_task;
        // A shard that is cut by rows counts them over all of its splits; a file shard does where a stage counts rows.
        let counts_by_file = self.datasets.get(&dataset).is_some_and(|d| d.counts_by_file);
        let recount = single_task || !whole_splits || shard_by == Some(ShardBy::File) && counts_by_file;
        let resume = resume.map(|r| Box::new(Resume { recount, ..r.clone() }));
        // A task that follows a lost one counts all rows again, and skips all bad rows again: it needs every split.
        let reads_again = |d: &Dataset| d.counts_by_file || d.deterministic || d.skip_limit.is_some();
        let completes_splits =
            !exclusive && whole_splits && self.datasets.get(&dataset).is_some_and(|d| !reads_again(d));
        let mut iteration = Iteration {
            id,
            job: job.clone(),
            epoch,
            dataset,
            mode,
            shard_by,
            num_shards,
            num_workers,
            exclusive,
            version: 1,
            opened_ms,
            members: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            target,
            locals: BTreeMap::new(),
            unread: BTreeMap::new(),
            even,
            tasks: BTreeMap::new(),
            feeds: (0..num_shards).map(|shard| (FeedId(shard), Feed::default())).collect(),
            strikes: BTreeMap::new(),
            last_loss: None,
            rows_skipped: 0,
            source_changed: None,
            shared: None,
            unreported_tasks: 0,
            caching,
            plan: None,
            former: Vec::new(),
            modes: SplitModes::default(),
            failure: None,
            missing: Missing::default(),
            lost_readers: Vec::new(),
            strict: false,
            flight_readers: false,
            suspects: BTreeSet::new(),
            stragglers: BTreeSet::new(),
            takers: BTreeSet::new(),
            completes_splits,
            completed: RowRanges::default(),
            resume,
            begun_by: attempt,
        };
        iteration.begin_if_ready();
        self.iterations.insert(id, iteration);
        self.touched.0.insert(id);
    }

    fn drop_iteration(&mut self, id: IterationId) {
        let Some(iteration) = self.iterations.remove(&id) else { return };
        self.task_index.retain(|_, i| *i != id);
        self.touched.0.insert(id);
        let Some(job) = self.jobs.get_mut(&iteration.job) else { return };
        job.note_attempt(iteration.epoch, iteration.attempt().filter(|_| iteration.is_finished()));
        if job.spec.anonymous && !self.iterations.values().any(|i| i.job == iteration.job) {
            self.jobs.remove(&iteration.job);
        } else if iteration.is_finished() {
            job.note_finished(iteration.epoch, id);
        } else if iteration.is_incomplete() {
            job.incomplete.insert(iteration.epoch, iteration.epoch + 1);
        } else if iteration.failure.is_none() {
            job.abandoned.insert(iteration.epoch, iteration.epoch + 1);
        }
    }

    /// Takes the identifiers of the iterations that changed, or were dropped, since the last call.
    pub fn take_touched(&mut self) -> BTreeSet<IterationId> {
        std::mem::take(&mut self.touched.0)
    }

    /// A task, with its iteration.
    pub fn task(&self, id: TaskId) -> Option<(&Iteration, &Task)> {
        let iteration = self.iterations.get(self.task_index.get(&id)?)?;
        Some((iteration, iteration.tasks.get(&id)?))
    }

    /// The iteration of a job and epoch.
    pub fn find_iteration(&self, job: &JobName, epoch: u64) -> Option<&Iteration> {
        self.iterations.values().find(|i| i.job == *job && i.epoch == epoch)
    }

    /// The worker that registered under an address.
    pub fn worker_at(&self, address: &str) -> Option<&Worker> {
        self.workers.values().find(|w| w.address == address)
    }

    /// Workers that get new tasks.
    pub fn active_workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values().filter(|w| w.is_active())
    }

    /// The smallest slot that no worker holds that is not lost; `wanted` if it is free.
    pub fn free_slot(&self, wanted: Option<u32>, but: WorkerId) -> u32 {
        let taken: BTreeSet<u32> =
            self.workers.values().filter(|w| w.id != but && !w.is_lost()).map(|w| w.slot).collect();
        match wanted.filter(|s| !taken.contains(s)) {
            Some(slot) => slot,
            None => (0..).find(|s| !taken.contains(s)).unwrap_or(u32::MAX),
        }
    }

    /// Whether a client reads an iteration.
    pub fn is_member(&self, client: ClientId, iteration: IterationId) -> bool {
        self.iterations.get(&iteration).is_some_and(|i| i.members.contains_key(&client))
    }
}
