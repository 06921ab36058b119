//! A pipeline that comes back starts from what was measured the last time; one that joins others adopts their decision.

use std::sync::Arc;
use std::time::Duration;

use caju_cache::Remembered;
use caju_planner::{Choice, Horizon, Profile, plan, policy_by_name};
use caju_types::{DatasetId, Error, IterationId, JobName, Result, hash128};
use serde_json::Value;

use super::planning::{Settled, chosen, epochs_left, expected_jobs};
use super::{Core, Txn};
use crate::measured::{A_REST, Found, existing, usable};
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
        let before = if recalls { self.before(&job.name, &dataset).await } else { None };
        let known = before.is_some();
        let (me, (told, recalled)) = (Arc::clone(self), tokio::sync::oneshot::channel::<()>());
        drop(self.tasks.spawn_graceful(async move {
            let asked = Asked { id, epoch, job, dataset };
            tokio::select! {
                () = me.recall(&asked, before) => {}
                () = me.tasks.stopped() => {}
            }
            drop(told);
        }));
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
        self.commit(|txn| Ok(self.adopts(txn, id))).await
    }

    /// The same within a step: jobs that began together find each other when the first one decides.
    pub(super) fn adopts(&self, txn: &mut Txn<'_>, id: IterationId) -> bool {
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
        let epochs = epochs_left(&job, epoch, None);
        let suits = |j: &&Job| {
            suits(j, dataset, epochs).unwrap_or_else(|error| {
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
            epochs: epochs_left(job, *epoch, Some(before)),
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
        let Some(iteration) = state.iterations.get(&id).filter(|i| i.is_finished()) else { return };
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
        let reached = job.epochs.is_none().then_some(iteration.epoch + 1);
        if !is_new(&format!("plan {} {} {reached:?} {text}", dataset.identity, job.name)) {
            return;
        }
        // Who says how rows are written learns nothing of other encodings.
        let profile: Option<Value> = serde_json::from_str(text).ok().filter(|_| job.encoding.is_none());
        let (me, definition, epochs) = (Arc::clone(self), dataset.identity, job.epochs);
        let listed = iteration.feeds.values().all(|f| f.exhausted);
        let splits = self.describing.count(id).filter(|_| listed);
        let (workers, cores) = cluster(state);
        drop(self.tasks.spawn_graceful(async move {
            let root = &me.config.cache_url;
            let remember = async {
                let known = Remembered::recall(&stores, root, definition).await?.unwrap_or_default();
                let new = Remembered {
                    profile: profile.map(|p| completed(p, known.profile.as_ref())).or(known.profile),
                    epochs: epochs.or(known.epochs),
                    reached: reached.max(known.reached),
                    jobs: known.jobs + u64::from(first),
                    splits: splits.or(known.splits),
                    cores: Some(cores).filter(|_| workers > 0).or(known.cores),
                    ..known
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
        }));
    }
}

/// A profile with the encodings of an earlier one at hints where only that was weighed in which something was stored: a job
/// that finds nothing there has a choice. Where none are known, what was stored stays as a sign of it.
fn completed(profile: Value, before: Option<&Value>) -> Value {
    let text = |v: &Value| Profile::from_json(&v.to_string());
    let (Ok(mut new), Some(Ok(before))) = (text(&profile), before.map(text)) else { return profile };
    // Who tried nothing out has nothing to tell.
    if new.hints.iter().any(|h| h.encodings.is_empty()) {
        return serde_json::from_str(&before.to_json()).unwrap_or(profile);
    }
    let Profile { existing, hints, .. } = &mut new;
    existing.retain(|x| {
        let mut known = before.hints.iter().filter(|h| h.name == x.hint && h.encodings.len() > 1);
        let hint = hints.iter_mut().find(|h| h.name == x.hint).zip(known.next());
        hint.map(|(hint, known)| hint.encodings.clone_from(&known.encodings)).is_none()
    });
    serde_json::from_str(&new.to_json()).unwrap_or(profile)
}

/// Whether a job's decision suits another one of its kind with so many epochs left. What somebody stores is read by all; but
/// that it is not worth it holds only for who has as few epochs, and only if it was weighed.
fn suits(other: &Job, dataset: &Dataset, epochs: Option<u64>) -> Result<bool> {
    if other.plan.is_some() {
        return Ok(true);
    }
    let mut profile = Profile::from_json(other.profile.as_deref().unwrap_or_default())?;
    let weighed = |h: &Hint| profile.hints.iter().any(|p| p.name == h.name && !p.encodings.is_empty());
    if !dataset.hints.iter().filter(|h| h.no_set.is_none()).all(weighed) {
        return Ok(false);
    }
    profile.horizon.epochs = epochs;
    let mine = plan(&profile, policy_by_name(&other.policy.to_string())?.as_ref())?;
    Ok(mine.choice == Choice::Compute)
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
    use caju_planner::{Encoding, Existing};

    use super::*;

    #[test]
    fn what_was_stored_once_limits_nobody_once_it_is_gone() {
        let text = include_str!("../../../../tests/golden_plans/design-example.profile.json");
        let mut full = Profile::from_json(text).unwrap();
        let name = full.hints[0].name.clone();
        let other = Encoding { compression: "lz4".into(), ..full.hints[0].encodings[0].clone() };
        full.hints[0].encodings.push(other);
        assert!(full.existing.is_empty());
        let mut bound = full.clone();
        bound.hints[0].encodings.truncate(1);
        let Encoding { format, compression, .. } = bound.hints[0].encodings[0].clone();
        bound.existing.push(Existing { hint: name, format, compression, fraction: 1.0 });
        let value = |p: &Profile| serde_json::from_str::<Value>(&p.to_json()).unwrap();
        assert_eq!(completed(value(&bound), Some(&value(&full))), value(&full));
        for nothing in [None, Some(&value(&bound)), Some(&Value::Null)] {
            assert_eq!(completed(value(&bound), nothing), value(&bound));
        }
        assert_eq!(completed(value(&full), Some(&value(&bound))), value(&full));
        let mut untried = full.clone();
        untried.hints[0].encodings.clear();
        assert_eq!(completed(value(&untried), Some(&value(&full))), value(&full));
    }
}
