//! Deciding what to store, while the first epoch runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use caju_cache::{Encoding, Remembered};
use caju_engine::{CachePlan, SetPlan};
use caju_planner::{
    Choice, DEFAULT_EPOCHS, Decision, Encoding as PlanEncoding, Existing, Hint, Policy, Profile, at_stake,
    margins, plan, policy_by_name,
};
use caju_proto::v1;
use caju_types::{Error, IterationId, JobName, Result, TaskId};

use super::leases::splits_total;
use super::{Core, Txn};
use crate::measured::{Measured, Stored, StoredSet, named};
use crate::state::{Dataset, Iteration, Job, Mode, State, TaskState, Update};

/// Measurements shorter than this are start-up, not work.
const LEAST_S: f64 = 0.9;
/// After so long, or so much of the epoch, the best choice so far is taken.
const LONGEST_S: f64 = 20.0;
const LARGEST_SHARE: f64 = 0.08;
/// And so long a hint has at least to show rows, and the store to answer for every encoding.
const PROBES_S: f64 = 5.0;
/// Jobs of which it is known what was before them.
const MOST_RECALLED: usize = 1024;
/// The most jobs that are expected of a pipeline that came back again and again.
const MOST_JOBS: u64 = 10;
/// How many times longer everything else must take for a choice to stand before every encoding was tried: then
/// those that are missing cannot change more than how its rows are written.
const CLEAR: f64 = 1.3;
/// How far the figures of a single try may be off. Of several it is their mean that counts.
const OFF: f64 = 0.35;
/// Tries of which more would tell nothing new.
const MANY_TRIES: usize = 3;
/// How likely it is that they are off as far as that, and just in the way that matters.
const LIKELY: f64 = 0.25;
/// Looks that are remembered; the newest count.
const LOOKS: usize = 12;
/// A client that waits more than this share of its time does not show how fast it could be. What it does between two
/// waits takes longer than it would alone where it shares its cores with workers that compute, so that little can be
/// inferred from little.
const BLIND: f64 = 0.25;

/// What was measured of the iterations that wait for a decision.
#[derive(Debug, Default)]
pub(crate) struct Planning {
    tasks: BTreeMap<IterationId, BTreeMap<TaskId, v1::TaskProfile>>,
    looks: BTreeMap<IterationId, Looks>,
    /// Whole sets that were found for them.
    pub(super) sets: BTreeMap<IterationId, Vec<StoredSet>>,
    /// And what is stored split by split.
    stored: BTreeMap<IterationId, Stored>,
    /// What is known from earlier jobs of their pipelines.
    before: BTreeMap<JobName, Arc<Remembered>>,
}

/// A decision, ready to be journaled.
pub(super) struct Settled<'a> {
    pub(super) plan: Option<Arc<str>>,
    pub(super) decision: Arc<str>,
    pub(super) profile: Arc<str>,
    pub(super) reason: &'a str,
}

/// What stretches of an epoch said, each for itself.
#[derive(Debug, Default)]
struct Looks {
    last: Measured,
    decisions: VecDeque<Decision>,
}

impl Planning {
    /// What is known from earlier jobs of a job's pipeline.
    pub(super) fn before(&self, job: &JobName) -> Option<Arc<Remembered>> {
        self.before.get(job).cloned()
    }

    /// Takes what is known. It only makes a start better, so that it may be forgotten.
    pub(super) fn recall(&mut self, job: JobName, known: Arc<Remembered>) {
        if self.before.len() >= MOST_RECALLED {
            self.before.clear();
        }
        self.before.insert(job, known);
    }

    /// Whether the caller is the first who looks what is stored for an iteration. Then a decision waits for it.
    pub(super) fn looks(&mut self, iteration: IterationId) -> bool {
        let first = !self.stored.contains_key(&iteration);
        self.stored.entry(iteration).or_insert(Stored::Awaited(0));
        first
    }

    /// Keeps what a look found, unless it is decided by now; whether somebody wants to know.
    pub(super) fn found(&mut self, iteration: IterationId, stored: Stored) -> bool {
        let known = self.stored.get_mut(&iteration);
        known.map(|known| *known = stored).is_some()
    }

    pub(super) fn forget(&mut self, iteration: IterationId) {
        self.tasks.remove(&iteration);
        self.looks.remove(&iteration);
        self.sets.remove(&iteration);
        self.stored.remove(&iteration);
    }
}

impl Core {
    /// Takes a task's measurements, and decides if they are enough.
    pub(super) async fn hear_profile(&self, profile: v1::TaskProfile) -> Result<()> {
        let task = TaskId(profile.task_id);
        let waiting = |state: &State| {
            let (iteration, _) = state.task(task)?;
            let job = state.jobs.get(&iteration.job)?;
            (job.policy.is_planned() && job.decision.is_none()).then_some(iteration.id)
        };
        let Some(id) = self.look(waiting).await? else { return Ok(()) };
        self.planning.lock().tasks.entry(id).or_default().insert(task, profile);
        self.commit(|txn| {
            self.consider(txn, id, false);
            Ok(())
        })
        .await
    }

    /// Takes the last word of a task that ended.
    pub(super) fn last_profile(&self, txn: &mut Txn<'_>, iteration: IterationId, profile: v1::TaskProfile) {
        let mut planning = self.planning.lock();
        planning.tasks.entry(iteration).or_default().insert(TaskId(profile.task_id), profile);
        drop(planning);
        self.consider(txn, iteration, true);
    }

    /// Decides for an iteration, if what is known is enough. What goes wrong here must not end the epoch.
    fn consider(&self, txn: &mut Txn<'_>, id: IterationId, ended: bool) {
        let Some(case) = Case::of(self, txn.state, id) else { return };
        let last = ended && case.last;
        let measured = &case.measured;
        // Who only wants a profile wants the whole of it. A hint that no row reaches keeps nobody waiting for good.
        let enough = match case.job.profile_only {
            true => last,
            false => last || measured.is_enough(&case.dataset) || is_too_late(measured),
        };
        // Who began together reads what the first one stores.
        if !enough || self.adopts(txn, id, true) {
            return;
        }
        let (profile, decision) = match case.decide() {
            Ok(decided) => decided,
            Err(error) => {
                tracing::warn!(job = %case.job.name, %error, "what was measured makes no profile; rows are computed");
                return;
            }
        };
        if !(self.stands(id, &case, &profile, &decision) || last) {
            return;
        }
        let plan = match chosen(&decision, &profile, &case.dataset) {
            // What is decided is told, and not done.
            _ if case.job.profile_only => None,
            Ok(plan) => plan,
            Err(error) => {
                tracing::warn!(job = %case.job.name, %error, "the planner's choice cannot be carried out");
                None
            }
        };
        let job = case.job.name.clone();
        let settled = Settled {
            plan,
            reason: &decision.reason,
            decision: decision.to_json().into(),
            profile: profile.to_json().into(),
        };
        self.carry_out(txn, &job, settled);
    }

    /// Makes a decision the job's, and that of its running epochs.
    pub(super) fn carry_out(&self, txn: &mut Txn<'_>, job: &JobName, settled: Settled<'_>) {
        let Settled { plan, decision, profile, reason } = settled;
        tracing::info!(%job, "{reason}");
        txn.apply(Update::Decided { job: job.clone(), plan: plan.clone(), decision, profile });
        let running = txn.state.iterations.values().filter(|i| i.job == *job && i.is_running());
        let running: Vec<IterationId> = running.map(|i| i.id).collect();
        // A set covers every split of an epoch or is none: the next one stores it.
        let now = plan.filter(|p| super::sets::plan_of(Some(p.as_ref())).is_none());
        for iteration in running {
            txn.apply(Update::Planned { iteration, plan: now.clone() });
            self.planning.lock().forget(iteration);
        }
    }

    /// Whether a decision is firm: looks at several stretches of the epoch agree that nothing else comes near, or
    /// the time for finding out is over.
    fn stands(&self, id: IterationId, case: &Case, profile: &Profile, decision: &Decision) -> bool {
        let measured = &case.measured;
        let elapsed = measured.elapsed_s();
        let mut planning = self.planning.lock();
        let looks = planning.looks.entry(id).or_default();
        if let Some(stretch) = measured.since(&looks.last) {
            // A stretch of which no profile can be made says nothing.
            if let Ok((_, look)) = case.decide_on(&stretch) {
                looks.decisions.push_back(look);
            }
            if looks.decisions.len() > LOOKS {
                looks.decisions.pop_front();
            }
            looks.last = measured.clone();
        }
        let margins = margins(&decision.choice, looks.decisions.make_contiguous());
        let ahead = if measured.complete() { 1.0 } else { CLEAR };
        // A rival that no look could weigh is not behind.
        let chosen = decision.choice.hint();
        let weighed = |r: Option<&str>| r == chosen || margins.iter().any(|m| m.rival.as_deref() == r);
        let mut rivals = decision.options.iter().filter(|o| o.feasible && o.horizon_s.is_some());
        let all = rivals.all(|o| weighed(o.choice.hint()));
        let settled = all && !looks.decisions.is_empty() && margins.iter().all(|m| m.is_settled(ahead));
        for m in &margins {
            let rival = m.rival.as_deref().unwrap_or("computing");
            tracing::debug!(job = %case.job.name, choice = %decision.choice, rival, ratio = m.ratio, low = m.low, high = m.high, "a look");
        }
        drop(planning);
        let in_time = elapsed >= LEAST_S && (settled || is_late(measured));
        let waits = || {
            let policy = policy_by_name(&case.job.policy.to_string()).ok();
            policy.is_some_and(|policy| is_worth_waiting(measured, profile, decision, policy.as_ref()))
        };
        in_time && (case.last || is_too_late(measured) || !waits())
    }
}

/// Whether hints that were not probed are waited for no longer. In an epoch of few splits a large share begins at once.
fn is_too_late(measured: &Measured) -> bool {
    measured.is_something() && measured.elapsed_s() >= PROBES_S && is_late(measured)
}

/// Whether the time for finding out is over.
fn is_late(measured: &Measured) -> bool {
    let elapsed = measured.elapsed_s();
    let tried = measured.complete() || elapsed >= PROBES_S;
    elapsed >= LONGEST_S || tried && measured.share().is_some_and(|s| s >= LARGEST_SHARE)
}

/// Whether to try the encodings once more: by what may be wrong with the tries so far, another choice may save more in the whole
/// horizon than it costs to compute the rest of this epoch, whose rows are then stored in the next one.
fn is_worth_waiting(
    measured: &Measured,
    profile: &Profile,
    decision: &Decision,
    policy: &dyn Policy,
) -> bool {
    let tries = measured.tries();
    let of = |hint: &str, encoding: &str| tries.get(&(hint, encoding)).copied().unwrap_or(0);
    let off = |hint: &Hint, e: &PlanEncoding| OFF / (of(&hint.name, &named(e)).max(1) as f64).sqrt();
    let Ok(Some(stake)) = at_stake(profile, &decision.choice, policy, off) else { return false };
    // Computing was measured with every row.
    let tries = |choice: &Choice| match choice {
        Choice::Compute => MANY_TRIES,
        Choice::Materialize { hint, format, compression, .. } => of(hint, &format!("{format}/{compression}")),
    };
    let least = tries(&decision.choice).min(tries(&stake.rival));
    let rest = 1.0 - measured.share().unwrap_or(0.0).min(1.0);
    let costs = decision.compute().and_then(|o| o.epoch_s).unwrap_or(0.0) * rest;
    let (choice, rival, seconds) = (&decision.choice, &stake.rival, stake.seconds);
    tracing::debug!(%choice, %rival, tries = least, seconds, costs, "what tries may be wrong about");
    (1..MANY_TRIES).contains(&least) && seconds * LIKELY > costs
}

/// A job that waits for a decision.
struct Case {
    job: Job,
    dataset: Dataset,
    measured: Measured,
    /// Whether no task of the iteration runs any more.
    last: bool,
}

impl Case {
    fn of(core: &Core, state: &State, id: IterationId) -> Option<Self> {
        let iteration = state.iterations.get(&id)?;
        let job = state.jobs.get(&iteration.job).filter(|j| j.decision.is_none())?.clone();
        let mut dataset = state.datasets.get(&iteration.dataset)?.clone();
        if job.mode == Mode::Off {
            // Every worker mixes splits by itself: there is no set.
            for hint in dataset.hints.iter_mut().filter(|h| h.behind.is_some()) {
                hint.no_set.get_or_insert_with(|| "every worker mixes splits by itself".into());
            }
        }
        let planning = core.planning.lock();
        // What a lost worker measured, others do again, without its cores.
        let here = |task: &TaskId| iteration.tasks.get(task).is_some_and(|t| !t.is_lost());
        let known = planning.tasks.get(&id)?.iter().filter(|(task, _)| here(task));
        let tasks: Vec<_> = known.map(|(_, profile)| profile.clone()).collect();
        let before = planning.before.get(&job.name).cloned();
        let sets = planning.sets.get(&id).cloned().unwrap_or_default();
        let stored = planning.stored.get(&id).cloned().unwrap_or_default();
        drop(planning);
        // Every worker reads all splits where each mixes them by itself.
        let readers = if job.mode == Mode::Off { iteration.feeds.len() as u64 } else { 1 };
        // Where a `take` ends an epoch, nobody knows of how many splits that is.
        let takes = tasks.iter().flat_map(|t| &t.stages).any(|s| s.name.ends_with(".take"));
        let counted = if takes { 0 } else { stored.splits() * readers };
        let reporting = |t: &&crate::state::Task| tasks.iter().any(|p| p.task_id == t.id.0);
        let mut workers: Vec<_> = iteration.tasks.values().filter(reporting).map(|t| t.worker).collect();
        workers.sort_unstable();
        workers.dedup();
        let measured = Measured {
            workers: workers.len() as u64,
            splits_total: splits_total(core, iteration).max(counted),
            // Rows that somebody only counts show nothing of what a training job would take.
            demand: if job.profile_only { None } else { core.demand(iteration) },
            epochs: epochs_left(job.epochs, iteration.epoch, before.as_deref()),
            jobs: before.as_deref().map(expected_jobs),
            budget: core.config.cache_budget,
            epoch_rows: None,
            ended: iteration
                .tasks
                .values()
                .filter(|t| t.state != TaskState::Active)
                .map(|t| t.id.0)
                .collect(),
            encoding: job.encoding.clone(),
            sets,
            stored,
            tasks,
        };
        let last = !iteration.tasks.values().any(|t| t.state == TaskState::Active);
        Some(Self { job, dataset, measured, last })
    }

    fn decide(&self) -> Result<(Profile, Decision)> {
        self.decide_on(&self.measured)
    }

    fn decide_on(&self, measured: &Measured) -> Result<(Profile, Decision)> {
        let mut profile = measured.profile(&self.dataset);
        profile.validate()?;
        let policy = policy_by_name(&self.job.policy.to_string())?;
        let decision = plan(&profile, policy.as_ref())?;
        // What is not stored in this epoch is stored in the next one: that is one less to read it in. Who only wants a
        // profile is told of jobs to come.
        let later = |choice: &Choice| {
            let set = choice.hint().and_then(|name| self.dataset.hints.iter().find(|h| h.name == name));
            set.is_some_and(|h| h.behind.is_some()) || self.last
        };
        let written = !self.job.profile_only && !reads_what_is_there(&decision.choice, &profile);
        match profile.horizon.epochs.filter(|n| *n > 1) {
            Some(epochs) if written && later(&decision.choice) => {
                profile.horizon.epochs = Some(epochs - 1);
                let decision = plan(&profile, policy.as_ref())?;
                Ok((profile, decision))
            }
            _ => Ok((profile, decision)),
        }
    }
}

impl Core {
    /// Rows per second that the clients of an iteration would take if they never had to wait.
    pub(super) fn demand(&self, iteration: &Iteration) -> Option<f64> {
        let observed = self.observed.lock();
        let mut sum = 0.0;
        for (_, client) in observed.clients.iter().filter(|((i, _), _)| *i == iteration.id) {
            if client.wait_fraction > BLIND || client.rows_per_s <= 0.0 {
                return None;
            }
            sum += client.rows_per_s / (1.0 - client.wait_fraction);
        }
        (sum > 0.0).then_some(sum)
    }
}

/// Epochs of a job from this one on, if it announced them. Of one that did not, as many are expected as the longest one before it
/// had or announced, if that is known; and beyond these as many as of any job.
pub(super) fn epochs_left(announced: Option<u64>, epoch: u64, before: Option<&Remembered>) -> Option<u64> {
    if let Some(all) = announced {
        return Some(all.saturating_sub(epoch).max(1));
    }
    let before = before?;
    let all = before.epochs.max(before.reached.filter(|n| *n > DEFAULT_EPOCHS))?;
    Some(all.checked_sub(epoch).filter(|left| *left > 0).unwrap_or(DEFAULT_EPOCHS))
}

/// Jobs that will read a pipeline's rows, this one included: as many as there were.
pub(super) fn expected_jobs(before: &Remembered) -> u64 {
    before.jobs.clamp(1, MOST_JOBS)
}

/// The engine's plan for a choice.
pub(super) fn chosen(decision: &Decision, profile: &Profile, dataset: &Dataset) -> Result<Option<Arc<str>>> {
    let Choice::Materialize { hint, format, compression, fraction } = &decision.choice else {
        return Ok(None);
    };
    let known = dataset.hints.iter().find(|h| h.name == *hint);
    let known = known
        .ok_or_else(|| Error::internal(format!("the planner chose hint `{hint}`, which is not there")))?;
    let encoding: Encoding = format!("{format}/{compression}").parse()?;
    // Of a part of the splits that is there nothing more is written. Where draws are frozen, only those of as many splits.
    let reads = *fraction < 1.0 && reads_what_is_there(&decision.choice, profile);
    let share = if reads && !known.random { CachePlan::ALL } else { CachePlan::share_of(*fraction) };
    let plan = CachePlan {
        share,
        put: !reads,
        write_bytes_per_s: assumed_write(decision, profile),
        set: known.behind.as_ref().map(|_| SetPlan::Open),
        ..CachePlan::whole(hint, known.prefix, encoding)
    };
    super::caching::plan_json(&plan).map(Some)
}

/// Whether a choice is to read what is stored, and store nothing more: computing is not.
fn reads_what_is_there(choice: &Choice, profile: &Profile) -> bool {
    let Choice::Materialize { hint, format, compression, fraction } = choice else { return false };
    let same = |x: &&Existing| (&x.hint, &x.format, &x.compression) == (hint, format, compression);
    profile.existing.iter().find(same).is_some_and(|x| x.fraction >= *fraction - 1e-9)
}

/// Bytes per second that the decision assumed one worker to write: what the store takes, or what computing brings forth
/// while it pays for encoding, whichever is less.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, not negative")]
fn assumed_write(decision: &Decision, profile: &Profile) -> Option<u64> {
    let Choice::Materialize { hint, format, compression, .. } = &decision.choice else { return None };
    let workers = profile.cluster.workers.max(1) as f64;
    let store = profile.cache_store.write_bytes_per_s?;
    let computed = decision.options.iter().find(|o| o.choice == Choice::Compute).and_then(|o| o.rows_per_s);
    let encoding = profile.hints.iter().filter(|h| h.name == *hint).flat_map(|h| &h.encodings);
    let encoding = { encoding }.find(|e| e.format == *format && e.compression == *compression);
    let brought = computed.zip(encoding).map_or(f64::INFINITY, |(rows_per_s, e)| {
        let cores = workers * profile.cluster.cores_per_worker;
        e.bytes_per_row / (1.0 / rows_per_s + e.encode_cpu_s_per_row / cores)
    });
    Some((store.min(brought) / workers) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a short epoch its share is soon begun, and what compresses best is tried last.
    #[test]
    fn what_was_not_tried_is_waited_for_a_while() {
        let after = |elapsed_s, computed, complete| {
            let task = v1::TaskProfile { elapsed_s, computed, complete, ..Default::default() };
            Measured { tasks: vec![task], splits_total: 100, ..Default::default() }
        };
        assert!(!is_late(&after(1.0, 7, true)));
        assert!(is_late(&after(1.0, 8, true)));
        assert!(!is_late(&after(1.0, 40, false)), "something may be better");
        assert!(is_late(&after(5.0, 40, false)), "but not for long");
        assert!(is_late(&after(20.0, 1, false)));
    }

    /// `lz4` reads by a tenth faster than `zstd`, as far as one try of a few rows can tell.
    #[test]
    fn what_one_try_cannot_tell_apart_is_tried_again_where_that_pays() {
        let encoding = |compression: &str, decode: f64| {
            serde_json::json!({"format": "arrow", "compression": compression, "bytes_per_row": 1000,
                "encode_cpu_s_per_row": 1e-5, "decode_cpu_s_per_row": decode})
        };
        let profile = |epochs: u64, lz4: f64, zstd: f64| {
            let profile = serde_json::json!({
                "schema": "caju.profile/v1", "cluster": {"workers": 1, "cores_per_worker": 2},
                "horizon": {"epochs": epochs}, "source": {"rows": 100_000},
                "stages": [{"name": "read", "io_bytes_per_row": 100, "cpu_s_per_row": 1e-3,
                    "service_s_per_row": 1e-3, "out_rows_per_row": 1, "out_bytes_per_row": 100}],
                "hints": [{"name": "a", "after_stage": "read", "split_local": true,
                    "encodings": [encoding("lz4", lz4), encoding("zstd", zstd)]}]
            });
            Profile::from_json(&profile.to_string()).unwrap()
        };
        let tried = |times: usize| {
            let probe =
                |e: &str| v1::HintProbe { hint: "a".into(), encoding: e.into(), ..Default::default() };
            let probes = (0..times).flat_map(|_| [probe("arrow/lz4"), probe("arrow/zstd")]).collect();
            let task = v1::TaskProfile { computed: 10, probes, ..Default::default() };
            Measured { tasks: vec![task], splits_total: 100, ..Default::default() }
        };
        let waits = |profile: &Profile, times| {
            let auto = policy_by_name("auto").unwrap();
            let decision = plan(profile, auto.as_ref()).unwrap();
            is_worth_waiting(&tried(times), profile, &decision, auto.as_ref())
        };
        let close = profile(100, 1e-4, 1.1e-4);
        assert!(waits(&close, 1));
        assert!(!waits(&close, MANY_TRIES), "more tries tell nothing new");
        assert!(!waits(&close, 0), "nothing was tried");
        assert!(!waits(&profile(3, 1e-4, 1.1e-4), 1), "that would cost more than it saves");
        assert!(!waits(&profile(100, 1e-4, 3e-4), 1), "nothing is in doubt");
    }
}
