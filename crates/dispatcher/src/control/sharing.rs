//! Which splits a task of a job that shares gets next.
//!
//! A worker computes a split once for all jobs that share it, as long as its rows are in the worker's window. So a task gets
//! first what is in the window of its worker, then splits that no task of another such job was given, and last what it has
//! missed. Nothing of this is in the journal: after a restart tasks get the same splits in another order.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use caju_proto::{split_name, v1};
use caju_types::{Error, IterationId, Result, WorkerId, did_you_mean};

use super::Txn;
use super::fairness::fair_count;
use crate::splits::SharedProvider;
use crate::state::{Dataset, Feed, FeedId, Iteration, Job, Mode, Sharing, SplitRecord, State, Task, Update};

/// The most splits of which an iteration remembers that its tasks were given them: about 12 MiB. An endless `repeat` has no
/// end of them. A job for which such a split is still to come computes it, whether or not a window has it.
const MAX_GIVEN: usize = if cfg!(test) { 40 } else { 262_144 };

/// Splits that wait in the feed of a job that shares, beyond which it gets these before all others until half of them are left.
/// Under an endless `repeat` a job that is slower than the others falls behind without end, and each split that waits takes
/// memory and a place in the journal.
const MAX_WAITING: usize = if cfg!(test) { 20 } else { 131_072 };

/// Jobs that share rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SharingGroup {
    /// Their number.
    pub(super) jobs: u64,
    /// The last sharing point that a job has in common with all others, by its position in the pipeline.
    pub(super) last_point: usize,
}

/// The iterations whose tasks share rows, by what their workers said.
#[derive(Debug, Default)]
pub(super) struct SharingIterations {
    iterations: BTreeMap<IterationId, SharingIteration>,
}

#[derive(Debug, Default)]
struct SharingIteration {
    /// Names of the places of its pipeline at which its rows are shared, from the source on.
    points: Vec<u64>,
    given: GivenSplits,
    /// Splits that wait in its feed, by name.
    waiting: HashMap<u64, u64>,
    /// More than [`MAX_WAITING`] splits have waited, and it gets these before all others until half of them are left.
    catches_up: bool,
}

/// The splits that the tasks of an iteration were given last.
#[derive(Debug, Default)]
struct GivenSplits {
    /// By name, with the worker of the last task that was given it.
    workers: HashMap<u64, WorkerId>,
    /// The names in the order in which they were given first.
    order: VecDeque<u64>,
}

impl GivenSplits {
    fn insert(&mut self, name: u64, worker: WorkerId) {
        if self.workers.insert(name, worker).is_none() {
            self.order.push_back(name);
        }
        while self.order.len() > MAX_GIVEN {
            let forgotten = self.order.pop_front();
            forgotten.and_then(|name| self.workers.remove(&name));
        }
    }

    /// The worker of the last task that was given a split.
    fn worker(&self, name: u64) -> Option<WorkerId> {
        self.workers.get(&name).copied()
    }
}

impl SharingIterations {
    /// A task asks for splits.
    pub(super) fn on_request(&mut self, iteration: IterationId, request: &v1::NextSplitsRequest) {
        if !request.sharing_points.is_empty() {
            let known = self.iterations.entry(iteration).or_default();
            known.points.clone_from(&request.sharing_points);
        }
    }

    /// A task got the splits of its last answer.
    pub(super) fn leased(&mut self, iteration: IterationId, task: &Task) {
        let Some(known) = self.iterations.get_mut(&iteration) else { return };
        let leases = task.last_answer.iter().filter_map(|index| task.leases.get(index));
        for lease in leases {
            let name = split_name(&lease.split);
            known.waiting.remove(&name);
            known.given.insert(name, task.worker);
        }
    }

    /// Forgets an iteration that was removed.
    pub(super) fn forget(&mut self, iteration: IterationId) {
        self.iterations.remove(&iteration);
    }

    /// The other iterations that share rows with this one and run.
    pub(super) fn others<'a>(
        &'a self,
        state: &'a State,
        iteration: IterationId,
    ) -> impl Iterator<Item = &'a Iteration> + 'a {
        self.related(state, iteration).filter_map(|(id, _)| state.iterations.get(&id))
    }

    /// The jobs that share rows with the one of this iteration now; none if there is no other one.
    pub(super) fn group(&self, state: &State, iteration: IterationId) -> Option<SharingGroup> {
        let own = &self.iterations.get(&iteration)?.points;
        let job = |id: &IterationId| state.iterations.get(id).map(|i| &i.job);
        let mine = job(&iteration)?;
        // A job whose readers have left shares nothing any more.
        let is_read = |id: &IterationId| {
            state.iterations.get(id).is_some_and(|i| i.job != *mine && i.own_members().next().is_some())
        };
        let others: Vec<_> = self.related(state, iteration).filter(|(id, _)| is_read(id)).collect();
        let jobs: HashSet<_> = others.iter().filter_map(|(id, _)| job(id)).collect();
        let last_point = others.iter().filter_map(|(_, other)| last_common(own, &other.points)).min()?;
        Some(SharingGroup { jobs: jobs.len() as u64 + 1, last_point })
    }

    fn related<'a>(
        &'a self,
        state: &'a State,
        iteration: IterationId,
    ) -> impl Iterator<Item = (IterationId, &'a SharingIteration)> + 'a {
        let own = self.iterations.get(&iteration).map(|known| &known.points);
        let runs = |id: &IterationId| state.iterations.get(id).is_some_and(Iteration::is_running);
        let others = self.iterations.iter().filter(move |(id, _)| **id != iteration && runs(id));
        let related =
            others.filter(move |(_, other)| own.is_some_and(|own| last_common(own, &other.points).is_some()));
        related.map(|(id, other)| (*id, other))
    }

    /// The splits that wait in a feed, by name.
    fn waiting(&mut self, iteration: IterationId, feed: &Feed) -> &HashMap<u64, u64> {
        let known = self.iterations.entry(iteration).or_default();
        // Splits of lost tasks come back without a word.
        if known.waiting.len() != feed.pending.len() {
            let named = feed.pending.iter().map(|(index, lease)| (split_name(&lease.split), *index));
            known.waiting = named.collect();
        }
        &known.waiting
    }

    /// Chooses splits for a task, at most `want`.
    fn choose(
        &mut self,
        state: &State,
        iteration: &Iteration,
        feed: FeedId,
        provider: Option<&SharedProvider>,
        (request, want): (&v1::NextSplitsRequest, usize),
    ) -> Choice {
        let Some(known) = iteration.feeds.get(&feed) else { return Choice::default() };
        let listed = provider.map(|p| p.names()).unwrap_or_default();
        let places: HashMap<u64, usize> = match request.shared_splits.is_empty() {
            true => HashMap::new(),
            false => listed.iter().enumerate().map(|(at, name)| (*name, at)).collect(),
        };
        let mut choice = Choice::default();
        let own = self.iterations.entry(iteration.id).or_default();
        own.catches_up = known.pending.len() >= if own.catches_up { MAX_WAITING / 2 } else { MAX_WAITING };
        let may_wait = !own.catches_up;
        let waiting = self.waiting(iteration.id, known);
        for name in &request.shared_splits {
            match waiting.get(name) {
                Some(index) if choice.waiting.contains(index) => {}
                Some(index) => choice.waiting.push(*index),
                None => choice.listed.extend(places.get(name).filter(|_| may_wait)),
            }
            if choice.waiting.len() + choice.listed.len() >= want {
                break;
            }
        }
        if !choice.is_empty() {
            choice.listed.sort_unstable();
            choice.listed.dedup();
            choice.passed = choice.listed.last().map_or(0, |last| last + 1);
            return choice;
        }
        let others: Vec<&SharingIteration> = self.related(state, iteration.id).map(|(_, o)| o).collect();
        let is_given = |name: &u64| others.iter().any(|other| other.given.worker(*name).is_some());
        let left = provider.and_then(|p| p.left()).unwrap_or(usize::MAX);
        if may_wait {
            let fresh = listed.iter().enumerate().filter(|(_, name)| !is_given(name)).map(|(at, _)| at);
            choice.listed.extend(fresh.take(fair_count(iteration, feed, want, left)));
            if let Some(last) = choice.listed.last() {
                choice.passed = last + 1;
                return choice;
            }
            // The others were given all of these; they wait until the others are at their ends.
            choice.passed = listed.len();
        }
        let count = fair_count(iteration, feed, want, known.pending.len());
        if is_relaxed(state, iteration) {
            // Its worker knows that it computed them, and skips those that have left its window.
            let here = Some(WorkerId(request.worker_id));
            let is_here = |name: &u64| others.iter().any(|other| other.given.worker(*name) == here);
            let names = self.iterations.get(&iteration.id).map(|known| &known.waiting);
            let mut indices: Vec<u64> =
                names.into_iter().flatten().filter(|(n, _)| is_here(n)).map(|(_, i)| *i).collect();
            indices.sort_unstable();
            choice.waiting.extend(indices.into_iter().take(count));
        }
        if choice.waiting.is_empty() {
            choice.waiting.extend(known.pending.keys().take(count));
        }
        if choice.waiting.is_empty() && !listed.is_empty() {
            choice.listed.extend(0..fair_count(iteration, feed, want, left).min(listed.len()));
        }
        choice
    }
}

/// The position of the last of a pipeline's sharing points that another one has, too.
fn last_common(own: &[u64], other: &[u64]) -> Option<usize> {
    own.iter().rposition(|point| other.contains(point))
}

/// What a task gets.
#[derive(Debug, Default)]
struct Choice {
    /// Splits that wait, by index.
    waiting: Vec<u64>,
    /// Listed splits, by their place in the listing.
    listed: Vec<usize>,
    /// Listed splits up to the last of these: those that are not chosen wait from now on.
    passed: usize,
}

impl Choice {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.listed.is_empty()
    }
}

/// Splits for a task of a job that shares, by index: they wait in its feed. Listed splits before them wait from now on, too.
/// Empty if the order of splits is the job's own, or if there is none to give.
pub(super) fn take(
    txn: &mut Txn<'_>,
    sharing: &mut SharingIterations,
    (id, feed): (IterationId, FeedId),
    provider: Option<&SharedProvider>,
    (request, want): (&v1::NextSplitsRequest, usize),
) -> Vec<u64> {
    let Some(iteration) = txn.state.iterations.get(&id) else { return Vec::new() };
    let choice = sharing.choose(txn.state, iteration, feed, provider, (request, want));
    let mut chosen = choice.waiting;
    if let Some(provider) = provider.filter(|_| choice.passed > 0) {
        let splits: Vec<SplitRecord> = provider.take(choice.passed);
        chosen.extend(choice.listed.iter().filter_map(|at| splits.get(*at)).map(|record| record.index));
        let named = splits.iter().map(|record| (split_name(&record.split), record.index));
        sharing.iterations.entry(id).or_default().waiting.extend(named);
        txn.apply(Update::SplitsSetAside { iteration: id, feed, splits });
    }
    chosen
}

/// Whether the tasks of an iteration may get its splits in any order, and share them.
pub(super) fn has_free_order(state: &State, iteration: &Iteration) -> bool {
    let is_shared = state.jobs.get(&iteration.job).is_some_and(|job| job.spec.sharing.is_shared());
    // Splits that share a part of a set are given together.
    let has_set = iteration.plan.as_ref().and_then(|p| p.value()).is_some_and(|p| p.set.is_some());
    is_shared && iteration.mode == Mode::Dynamic && !iteration.exclusive && !has_set
}

/// Whether tasks of an iteration may skip splits.
pub(super) fn is_relaxed(state: &State, iteration: &Iteration) -> bool {
    state.jobs.get(&iteration.job).is_some_and(|job| job.spec.sharing == Sharing::Relaxed)
}

/// What a reader asks for; none if it says nothing.
///
/// # Errors
/// `InvalidArgument` for another word, and for a trainer id where nothing is shared.
pub(super) fn wanted(request: &v1::OpenIterationRequest) -> Result<Option<Sharing>> {
    let sharing = match request.sharing.as_str() {
        "" => None,
        "off" => Some(Sharing::Off),
        "exact" => Some(Sharing::Exact),
        "relaxed" => Some(Sharing::Relaxed),
        other => {
            let hint = did_you_mean(other, ["exact", "relaxed", "off"]);
            return Err(Error::invalid(format!("sharing `{other}`{hint}: say `exact`, `relaxed` or `off`")));
        }
    };
    if !request.trainer_id.is_empty() && !sharing.is_some_and(Sharing::is_shared) {
        return Err(Error::invalid(format!(
            "trainer_id `{}` belongs to sharing `exact` or `relaxed`, which this reader does not ask for",
            request.trainer_id
        )));
    }
    Ok(sharing)
}

/// The name of the job that a reader reads: each trainer of a job that shares has an iteration of its own. `of_dataset` is the
/// name of the job over its dataset.
///
/// # Errors
/// `InvalidArgument` without a job name, for one that might be that of another job's trainer, and together with consumers.
pub(super) fn job_name(request: &v1::OpenIterationRequest, of_dataset: String) -> Result<String> {
    if !wanted(request)?.is_some_and(Sharing::is_shared) {
        return Ok(of_dataset);
    }
    if request.job.is_empty() {
        return Err(Error::invalid("sharing requires a named job: give it a name, which says who shares"));
    }
    if request.num_consumers > 0 {
        return Err(Error::invalid(
            "num_consumers and sharing exclude each other: consumers divide one epoch, and jobs that share have one each",
        ));
    }
    let trainer = request.trainer_id.as_str();
    // A reader of an older version that opens its epoch again does not say that it gives the name that it was given.
    let is_full = request.has_full_job || request.reattached_client != 0;
    if is_full && (trainer.is_empty() || request.job.ends_with(&format!("@{trainer}"))) {
        return Ok(of_dataset);
    }
    if request.job.contains('@') {
        return Err(Error::invalid(format!(
            "job `{}`: the name of a job that shares has no `@`, because JOB@TRAINER is the job of a trainer; take another name, \
             or name the trainer apart (--trainer-id, in Python trainer_id=)",
            request.job
        )));
    }
    Ok(if trainer.is_empty() { of_dataset } else { format!("{of_dataset}@{trainer}") })
}

/// Whether a job over a dataset can share like that.
///
/// # Errors
/// `InvalidArgument` if rows may not be left out of it.
pub(super) fn check_dataset(sharing: Option<Sharing>, dataset: &Dataset, mode: Option<Mode>) -> Result<()> {
    let why = match mode {
        _ if sharing != Some(Sharing::Relaxed) => return Ok(()),
        _ if dataset.deterministic => "promises the order of all rows (`deterministic`)".to_string(),
        Some(mode) if mode != Mode::Dynamic => format!("divides its rows in processing mode `{mode}`"),
        _ => return Ok(()),
    };
    Err(Error::invalid(format!(
        "sharing `relaxed` leaves rows out, and this job {why}: take sharing `exact`"
    )))
}

/// Whether a job shares as a reader asks.
///
/// # Errors
/// `AlreadyExists` if it does not.
pub(super) fn check_job(job: &Job, wanted: Option<Sharing>) -> Result<()> {
    match wanted.filter(|w| *w != job.spec.sharing) {
        None => Ok(()),
        Some(wanted) => Err(Error::already_exists(format!(
            "job `{}` runs with sharing `{}`, not `{}`; take another job name",
            job.name,
            job.spec.sharing.as_str(),
            wanted.as_str()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_splits_that_were_given_last_are_remembered() {
        let mut given = GivenSplits::default();
        for name in 0..1000 {
            given.insert(name, WorkerId(1));
            given.insert(name, WorkerId(2));
        }
        assert_eq!((given.workers.len(), given.order.len()), (MAX_GIVEN, MAX_GIVEN));
        assert_eq!((given.worker(999), given.worker(0)), (Some(WorkerId(2)), None));
    }
}
