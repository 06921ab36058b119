//! A pipeline that comes back starts from what was measured the last time; one that joins others adopts their decision.

use std::sync::Arc;
use std::time::Duration;

use caju_cache::Remembered;
use caju_engine::CachePlan;
use caju_planner::{Choice, Decision, Encoding, Horizon, Profile, plan, policy_by_name};
use caju_runtime::log_failure;
use caju_types::{DatasetId, Error, IterationId, JobName, Result, hash128};

use super::planning::{Settled, chosen, epochs_left, expected_jobs};
use super::{Core, Txn};
use crate::measured::{A_REST, Found, Stored, existing, usable};
use crate::state::{Dataset, Hint, Job, Policy, State};

/// How long a store may take to say what is known of a pipeline.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the first batch of a job may wait for a decision by that.
const FIRST_BATCH: Duration = Duration::from_millis(500);
/// A cluster whose workers or cores differ by a larger share is another one: what is held up by cores there may not be
/// here.
const SAME_CLUSTER: f64 = 0.1;

impl Core {
    /// What can be found out for a decision before the first row.
    pub(super) async fn prepare_decision(self: &Arc<Self>, id: IterationId, of: &DatasetId) -> Result<()> {
        let Some((job, epoch)) = self.look(|state| undecided(state, id)).await? else { return Ok(()) };
        if !self.has_cache() || !self.planning.lock().looks(id) {
            return Ok(());
        }
        let recalls = job.policy == Policy::Auto && !job.profile_only;
        if recalls && self.adopt(id).await? {
            return Ok(());
        }
        let Some(dataset) = self.look(|state| state.datasets.get(of).cloned()).await? else { return Ok(()) };
        if dataset.hints.iter().all(|h| h.no_set.is_some()) {
            self.planning.lock().found(id, Stored::default());
            return Ok(());
        }
        let before = if recalls { self.before(&job.name, &dataset).await } else { None };
        let known = before.is_some();
        let (me, (told, recalled)) = (Arc::clone(self), tokio::sync::oneshot::channel::<()>());
        self.tasks.background_graceful("looking for an earlier plan", log_failure, async move {
            let asked = Asked { id, epoch, job, dataset };
            tokio::select! {
                () = me.recall(&asked, before) => {}
                () = me.tasks.stopped() => {}
            }
            drop(told);
            Ok(())
        });
        // What is decided by then spares the first task its probes. A large cache is listed while rows are on their way.
        if known {
            tokio::select! {
                _ = recalled => {}
                () = self.clock.sleep(FIRST_BATCH) => {}
            }
        }
        Ok(())
    }

    /// Takes the decision of another job that runs the same pipeline now, if one has decided.
    async fn adopt(&self, id: IterationId) -> Result<bool> {
        self.commit(|txn| Ok(self.adopts(txn, id, false))).await
    }

    /// The same within a step: jobs that began together find each other when the first one decides. Who has measured for itself
    /// adopts only what somebody stores: that a pipeline is fast enough for another reader is not its own finding.
    pub(super) fn adopts(&self, txn: &mut Txn<'_>, id: IterationId, measured: bool) -> bool {
        let Some((job, epoch)) = undecided(txn.state, id) else { return false };
        if job.policy != Policy::Auto || job.profile_only {
            return false;
        }
        let runs = |j: &&Job| txn.state.iterations.values().any(|i| i.job == j.name && i.is_running());
        let same = |j: &&Job| {
            let like =
                (j.seed, &j.encoding, j.mode, &j.policy) == (job.seed, &job.encoding, job.mode, &job.policy);
            j.dataset == job.dataset && like && !j.profile_only && j.name != job.name
        };
        let Some(dataset) = txn.state.datasets.get(&job.dataset) else { return false };
        let before = self.planning.lock().before(&job.name);
        let epochs = epochs_left(job.epochs, epoch, before.as_deref());
        let suits = |j: &&Job| {
            let useful = !measured || j.plan.is_some();
            useful
                && suits(j, dataset, epochs).unwrap_or_else(|error| {
                    tracing::debug!(job = %job.name, %error, "another job's decision is not adopted");
                    false
                })
        };
        let mut jobs = txn.state.jobs.values().filter(|j| j.decision.is_some()).filter(same);
        let Some(other) = jobs.find(|j| runs(j) && suits(j)).cloned() else { return false };
        let (Some(decision), Some(profile)) = (other.decision, other.profile) else { return false };
        let reason = format!("adopted from job `{}`, which runs the same pipeline", other.name);
        self.carry_out(txn, &job.name, Settled { plan: other.plan, decision, profile, reason: &reason });
        true
    }

    /// What earlier jobs of a pipeline left behind.
    async fn before(&self, job: &JobName, dataset: &Dataset) -> Option<Arc<Remembered>> {
        let stores = self.catalog.stores()?;
        let recall = Remembered::recall(&stores, &self.config.cache_url, dataset.identity);
        let found = tokio::select! {
            found = recall => found,
            () = self.clock.sleep(PATIENCE) => Err(Error::deadline("the cache's store does not answer")),
        };
        match found {
            Ok(found) => {
                let found = Arc::new(found?);
                self.planning.lock().recall(job.clone(), Arc::clone(&found));
                Some(found)
            }
            Err(error) => {
                tracing::debug!(%job, %error, "what was measured before is not known");
                None
            }
        }
    }

    /// Looks what is stored, and decides by what was measured the last time.
    async fn recall(&self, asked: &Asked, before: Option<Arc<Remembered>>) {
        let Asked { id, job, dataset, .. } = asked;
        let found = self.look_for_stored(*id, dataset, job.seed).await;
        let Some(before) = before else { return };
        match self.decide_again(asked, &before, found).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::debug!(job = %job.name, "what was measured before does not fit; it is measured anew")
            }
            Err(error) => tracing::debug!(job = %job.name, %error, "it is measured anew"),
        }
    }

    async fn decide_again(&self, asked: &Asked, before: &Remembered, found: Found) -> Result<bool> {
        let Asked { id, epoch, job, dataset } = asked;
        let Some(profile) = &before.profile else { return Ok(false) };
        let mut profile = Profile::from_json(&profile.to_string())?;
        // Where something was stored, only its encoding was weighed: that tells little once it is gone.
        let still = |name: &str| {
            let bound = profile.existing.iter().find(|x| x.hint == name);
            let mut there = found.parts.iter().filter(|p| p.hint == name && p.fraction >= A_REST);
            bound.is_none_or(|x| there.any(|p| p.encoding == format!("{}/{}", x.format, x.compression)))
        };
        let whole = |h: &Hint| {
            let encodings = profile.hints.iter().find(|p| p.name == h.name).map(|p| &p.encodings);
            let bound = h.behind.is_none() && !still(&h.name);
            encodings.is_some_and(|e| !e.is_empty() && job.encoding.is_none() && !bound)
        };
        let mut hints = dataset.hints.iter().filter(|h| h.no_set.is_none());
        if !hints.all(whole) || !self.is_like(before, &profile).await? {
            return Ok(false);
        }
        let sets = self.planning.lock().sets.get(id).cloned().unwrap_or_default();
        let sets = sets.iter().filter_map(|s| existing(&s.hint, &s.encoding, 1.0));
        let parts = found.parts.iter().filter_map(|p| existing(&p.hint, &p.encoding, p.fraction));
        profile.existing = usable(sets.chain(parts).collect(), &mut profile.hints, None);
        if profile.hints.iter().any(|h| h.encodings.is_empty()) {
            return Ok(false);
        }
        // Files may have come, or gone.
        if let Some((now, then)) = found.splits.zip(before.splits).filter(|(_, then)| *then > 0) {
            let rows = u128::from(profile.source.rows) * u128::from(now) / u128::from(then);
            profile.source.rows = u64::try_from(rows).unwrap_or(u64::MAX);
        }
        profile.measured.clear();
        profile.budget.snapshot_bytes = self.config.cache_budget.map(|b| b as f64);
        profile.horizon = Horizon {
            epochs: epochs_left(job.epochs, *epoch, Some(before)),
            jobs: Some(expected_jobs(before)).filter(|n| *n > 1),
        };
        let known: Vec<_> = profile.observed.drain(..).collect();
        profile.observed = known.into_iter().filter(|o| is_option(&profile, &o.choice)).collect();
        profile.validate()?;
        let decision = plan(&profile, policy_by_name(&job.policy.to_string())?.as_ref())?;
        let settled = Settled {
            plan: chosen(&decision, &profile, dataset)?,
            decision: decision.to_json().into(),
            profile: profile.to_json().into(),
            reason: &decision.reason,
        };
        self.commit(|txn| {
            if let Some((job, _)) = undecided(txn.state, *id) {
                self.carry_out(txn, &job.name, settled);
            }
            Ok(())
        })
        .await?;
        Ok(true)
    }

    /// Whether the workers are about as many, with about as many cores, as when a profile was measured. Without any they
    /// are yet to come, and it has to do.
    async fn is_like(&self, before: &Remembered, profile: &Profile) -> Result<bool> {
        let (workers, cores) = self.look(cluster).await?;
        let near = |now: u64, then: u64| now.abs_diff(then) as f64 <= SAME_CLUSTER * then as f64;
        let same_cores = before.cores.is_none_or(|then| near(cores, then));
        Ok(workers == 0 || near(workers, profile.cluster.workers) && same_cores)
    }

    /// Once an epoch has ended: remembers what its job decided by, for the next job with the same pipeline.
    pub(super) fn remember_soon(self: &Arc<Self>, state: &State, id: IterationId) {
        let Some(iteration) = state.iterations.get(&id).filter(|i| i.is_drained()) else { return };
        let job = state.jobs.get(&iteration.job).filter(|j| j.policy == Policy::Auto && !j.profile_only);
        let (Some(job), Some(dataset), Some(stores)) =
            (job, state.datasets.get(&iteration.dataset), self.catalog.stores())
        else {
            return;
        };
        if !self.has_cache() || dataset.hints.is_empty() {
            return;
        }
        let text = job.profile.as_deref().unwrap_or_default();
        let is_new = |what: &str| self.describing.is_new(hash128(what.as_bytes()));
        let first = is_new(&format!("job {} {}", dataset.identity, job.name));
        // Of who does not say how many epochs there will be, it counts how many there were.
        let reached = job.epochs.is_none().then_some(iteration.epoch.saturating_add(1));
        if !is_new(&format!("plan {} {} {reached:?} {text}", dataset.identity, job.name)) {
            return;
        }
        // Who says how rows are written learns nothing of other encodings.
        let profile = Profile::from_json(text).ok().filter(|_| job.encoding.is_none());
        let (me, definition, epochs) = (Arc::clone(self), dataset.identity, job.epochs);
        let listed = iteration.feeds.values().all(|f| f.exhausted);
        let splits = self.describing.count(id).filter(|_| listed);
        let (workers, cores) = cluster(state);
        self.tasks.background_graceful("remembering a plan", log_failure, async move {
            let root = &me.config.cache_url;
            let remember = async {
                let known = Remembered::recall(&stores, root, definition).await?.unwrap_or_default();
                let here = Measurement { profile, splits, cores: Some(cores).filter(|_| workers > 0) };
                let new = Remembered {
                    epochs: epochs.or(known.epochs),
                    reached: reached.max(known.reached),
                    jobs: known.jobs + u64::from(first),
                    ..here.after(known)
                };
                new.remember(&stores, root, definition).await
            };
            let told = tokio::select! {
                told = remember => told,
                () = me.clock.sleep(PATIENCE) => Err(Error::deadline("the cache's store does not answer")),
            };
            if let Err(error) = told {
                tracing::debug!(%definition, %error, "what was measured is not remembered");
            }
            Ok(())
        });
    }
}

/// What a job measured, and of what.
struct Measurement {
    profile: Option<Profile>,
    splits: Option<u64>,
    cores: Option<u64>,
}

impl Measurement {
    /// What is remembered from now on. A profile goes with the splits and the cores that it is of.
    fn after(self, known: Remembered) -> Remembered {
        // Who tried nothing out has nothing to tell.
        let tried = |p: &Profile| p.hints.iter().all(|h| !h.encodings.is_empty());
        let Some(new) = self.profile.filter(|p| tried(p) || known.profile.is_none()) else { return known };
        let before = known.profile.as_ref().and_then(|p| Profile::from_json(&p.to_string()).ok());
        let new = match before.filter(|_| known.cores == self.cores) {
            Some(before) => completed(new, &before),
            None => new,
        };
        let profile = serde_json::from_str(&new.to_json()).ok();
        Remembered { profile, splits: self.splits, cores: self.cores, ..known }
    }
}

/// A profile with what an earlier one of the same cluster knows of encodings that were not weighed, because something was
/// stored in another one: a job that finds nothing there has a choice. Where nothing is known of them, what was stored stays
/// as a sign of that.
fn completed(mut new: Profile, before: &Profile) -> Profile {
    let Profile { existing, hints, .. } = &mut new;
    existing.retain(|x| {
        let mut known = before.hints.iter().filter(|h| h.name == x.hint && h.encodings.len() > 1);
        let Some((hint, known)) = hints.iter_mut().find(|h| h.name == x.hint).zip(known.next()) else {
            return true;
        };
        for other in &known.encodings {
            let same = |e: &Encoding| (&e.format, &e.compression) == (&other.format, &other.compression);
            if !hint.encodings.iter().any(same) {
                hint.encodings.push(other.clone());
            }
        }
        false
    });
    new
}

/// Whether a job's decision suits another one of its kind with so many epochs left. A snapshot that somebody stores as a whole
/// is read by all; anything else holds only for who would decide the same, and only if all was weighed.
fn suits(other: &Job, dataset: &Dataset, epochs: Option<u64>) -> Result<bool> {
    let written = |text: &str| {
        serde_json::from_str::<CachePlan>(text).is_ok_and(|p| p.put && p.share == CachePlan::ALL)
    };
    if other.plan.as_deref().is_some_and(written) {
        return Ok(true);
    }
    let mut profile = Profile::from_json(other.profile.as_deref().unwrap_or_default())?;
    let weighed = |h: &Hint| profile.hints.iter().any(|p| p.name == h.name && !p.encodings.is_empty());
    if !dataset.hints.iter().filter(|h| h.no_set.is_none()).all(weighed) {
        return Ok(false);
    }
    profile.horizon.epochs = epochs;
    // Its own reader may be a faster one.
    profile.consumer.rows_per_s = None;
    let decided = Decision::from_json(other.decision.as_deref().unwrap_or_default())?;
    Ok(plan(&profile, policy_by_name(&other.policy.to_string())?.as_ref())?.choice == decided.choice)
}

/// An iteration that waits for a decision.
struct Asked {
    id: IterationId,
    epoch: u64,
    job: Job,
    dataset: Dataset,
}

/// The job of an iteration and its epoch, if it waits for a decision.
fn undecided(state: &State, id: IterationId) -> Option<(Job, u64)> {
    let iteration = state.iterations.get(&id)?;
    let job = state.jobs.get(&iteration.job)?;
    (job.policy.is_planned() && job.decision.is_none()).then(|| (job.clone(), iteration.epoch))
}

/// Workers that take tasks, and their cores.
fn cluster(state: &State) -> (u64, u64) {
    let active = state.workers.values().filter(|w| w.is_active());
    active.fold((0, 0), |(n, cores), w| (n + 1, cores + u64::from(w.cores)))
}

/// Whether a profile weighs a choice.
fn is_option(profile: &Profile, choice: &Choice) -> bool {
    let Choice::Materialize { hint, format, compression, .. } = choice else { return true };
    let encodings = profile.hints.iter().filter(|h| h.name == *hint).flat_map(|h| &h.encodings);
    { encodings }.any(|e| (&e.format, &e.compression) == (format, compression))
}

#[cfg(test)]
mod tests {
    use caju_planner::Existing;

    use super::*;

    fn full() -> Profile {
        let text = include_str!("../../../../tests/golden_plans/design-example.profile.json");
        let mut full = Profile::from_json(text).unwrap();
        let other = Encoding { compression: "lz4".into(), ..full.hints[0].encodings[0].clone() };
        full.hints[0].encodings.push(other);
        full
    }

    /// The same after something was stored in the first encoding, which takes other bytes by now.
    fn bound() -> Profile {
        let mut bound = full();
        bound.hints[0].encodings.truncate(1);
        bound.hints[0].encodings[0].bytes_per_row += 7.0;
        let Encoding { format, compression, .. } = bound.hints[0].encodings[0].clone();
        let hint = bound.hints[0].name.clone();
        bound.existing.push(Existing { hint, format, compression, fraction: 1.0 });
        bound
    }

    fn known(profile: &Profile, splits: u64, cores: u64) -> Remembered {
        let profile = serde_json::from_str(&profile.to_json()).ok();
        Remembered { profile, splits: Some(splits), cores: Some(cores), ..Remembered::default() }
    }

    fn measured(profile: Option<Profile>, splits: u64, cores: u64) -> Measurement {
        Measurement { profile, splits: Some(splits), cores: Some(cores) }
    }

    #[test]
    fn what_was_stored_once_limits_nobody_once_it_is_gone() {
        let mut whole = full();
        whole.hints[0].encodings[0] = bound().hints[0].encodings[0].clone();
        let kept = measured(Some(bound()), 20, 8).after(known(&full(), 10, 8));
        assert_eq!(kept, known(&whole, 20, 8), "what was measured last counts");
        // Of other machines nothing is known.
        assert_eq!(measured(Some(bound()), 20, 4).after(known(&full(), 10, 8)), known(&bound(), 20, 4));
        assert_eq!(measured(Some(bound()), 20, 8).after(Remembered::default()), known(&bound(), 20, 8));
        assert_eq!(measured(Some(full()), 20, 8).after(known(&bound(), 10, 8)), known(&full(), 20, 8));
    }

    #[test]
    fn a_profile_stays_with_what_it_is_of() {
        let before = known(&full(), 10, 8);
        let mut untried = full();
        untried.hints[0].encodings.clear();
        for nothing in [None, Some(untried)] {
            assert_eq!(measured(nothing, 1000, 32).after(before.clone()), before);
        }
    }

    #[test]
    fn epochs_that_nobody_announces_are_those_of_the_longest_job() {
        let before = |epochs, reached| Some(Remembered { epochs, reached, ..Remembered::default() });
        let left = |own, epoch, before: Option<Remembered>| epochs_left(own, epoch, before.as_ref());
        assert_eq!(left(Some(5), 2, before(Some(90), Some(90))), Some(3));
        assert_eq!(left(None, 0, None), None);
        assert_eq!(left(None, 0, before(None, Some(3))), None, "it may have been cut off");
        assert_eq!(left(None, 4, before(Some(2), Some(100))), Some(96));
        assert_eq!(left(None, 4, before(Some(2), None)), Some(10), "beyond what was known");
    }
}
