//! A pipeline that comes back starts from what was measured the last time; one that joins others adopts their decision.

use std::sync::Arc;
use std::time::Duration;

use caju_cache::{PartIndex, Remembered};
use caju_planner::{Consumer, Existing, Horizon, Profile, plan, policy_by_name};
use caju_types::{DatasetId, Error, IterationId, JobName, Result, hash128};

use super::Core;
use super::planning::{Settled, chosen, epochs_left, expected_jobs};
use crate::catalog::Bound;
use crate::state::{Dataset, Hint, Job, Policy, State};

/// How long a store may take to say what is known of a pipeline.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the first batch of a job may wait for a decision by that.
const FIRST_BATCH: Duration = Duration::from_millis(500);

impl Core {
    /// What can be found out for a decision before the first row.
    pub(super) async fn prepare_decision(self: &Arc<Self>, id: IterationId, of: &DatasetId) -> Result<()> {
        let undecided = |state: &State| undecided(state, id).cloned();
        let Some(job) = self.look(undecided).await? else { return Ok(()) };
        if !self.has_cache() || !self.planning.lock().looks_for_sets(id) {
            return Ok(());
        }
        if job.policy == Policy::Auto && self.adopt(id).await? {
            return Ok(());
        }
        let Some(dataset) = self.look(|state| state.datasets.get(of).cloned()).await? else { return Ok(()) };
        let before = match job.policy {
            Policy::Auto => self.before(&job.name, &dataset).await,
            _ => None,
        };
        let bound = self.bound.lock().get(of).cloned();
        let known = before.is_some();
        let (me, (told, recalled)) = (Arc::clone(self), tokio::sync::oneshot::channel::<()>());
        drop(self.tasks.spawn_graceful(async move {
            tokio::select! {
                () = me.recall(id, &job, &dataset, bound, before) => {}
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
        self.commit(|txn| {
            let Some(job) = undecided(txn.state, id).cloned() else { return Ok(false) };
            let runs = |j: &&Job| txn.state.iterations.values().any(|i| i.job == j.name && i.is_running());
            let same = |j: &&Job| {
                let like = (j.seed, &j.encoding, j.mode, &j.policy)
                    == (job.seed, &job.encoding, job.mode, &job.policy);
                j.dataset == job.dataset && like && !j.profile_only && j.name != job.name
            };
            let Some(other) =
                txn.state.jobs.values().filter(|j| j.decision.is_some()).filter(same).find(runs)
            else {
                return Ok(false);
            };
            let reason = format!("adopted from job `{}`, which runs the same pipeline", other.name);
            let (Some(decision), Some(profile)) = (other.decision.clone(), other.profile.clone()) else {
                return Ok(false);
            };
            let settled = Settled { plan: other.plan.clone(), decision, profile, reason: &reason };
            self.carry_out(txn, &job.name, settled);
            Ok(true)
        })
        .await
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
    async fn recall(
        &self,
        id: IterationId,
        job: &Job,
        dataset: &Dataset,
        bound: Option<Arc<Bound>>,
        before: Option<Arc<Remembered>>,
    ) {
        if let Some(bound) = bound.filter(|b| !b.set_bases.is_empty()) {
            self.look_for_sets(id, &bound, job.seed).await;
        }
        let Some(before) = before else { return };
        match self.decide_again(id, job, dataset, &before).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::debug!(job = %job.name, "what was measured before does not fit; it is measured anew")
            }
            Err(error) => tracing::debug!(job = %job.name, %error, "it is measured anew"),
        }
    }

    async fn decide_again(
        &self,
        id: IterationId,
        job: &Job,
        dataset: &Dataset,
        before: &Remembered,
    ) -> Result<bool> {
        let Some(profile) = &before.profile else { return Ok(false) };
        let mut profile = Profile::from_json(&profile.to_string())?;
        let whole = |h: &Hint| {
            let encodings = profile.hints.iter().find(|p| p.name == h.name).map(|p| &p.encodings);
            encodings.is_some_and(|e| !e.is_empty() && job.encoding.is_none())
        };
        if !dataset.hints.iter().filter(|h| h.no_set.is_none()).all(whole) {
            return Ok(false);
        }
        profile.existing = self.stored(id, job, dataset, &profile).await?;
        let read_as = |hint: &str| profile.existing.iter().find(|e| e.hint == hint);
        for hint in &mut profile.hints {
            if let Some(there) = read_as(&hint.name) {
                hint.encodings.retain(|e| (&e.format, &e.compression) == (&there.format, &there.compression));
                if hint.encodings.is_empty() {
                    return Ok(false);
                }
            }
        }
        profile.measured.clear();
        profile.consumer = Consumer::default();
        profile.budget.snapshot_bytes = self.config.cache_budget.map(|b| b as f64);
        profile.horizon = Horizon {
            epochs: epochs_left(job, 0, Some(before)),
            jobs: Some(expected_jobs(before)).filter(|n| *n > 1),
        };
        let known: Vec<_> = profile.observed.drain(..).collect();
        profile.observed = known.into_iter().filter(|o| is_option(&profile, o.choice.hint())).collect();
        profile.validate()?;
        let decision = plan(&profile, policy_by_name(&job.policy.to_string())?.as_ref())?;
        let settled = Settled {
            plan: chosen(&decision, &profile, dataset)?,
            decision: decision.to_json().into(),
            profile: profile.to_json().into(),
            reason: &decision.reason,
        };
        self.commit(|txn| {
            if let Some(name) = undecided(txn.state, id).map(|j| j.name.clone()) {
                self.carry_out(txn, &name, settled);
            }
            Ok(())
        })
        .await?;
        Ok(true)
    }

    /// The snapshots that are there, as shares of the rows of the last time.
    async fn stored(
        &self,
        id: IterationId,
        job: &Job,
        dataset: &Dataset,
        profile: &Profile,
    ) -> Result<Vec<Existing>> {
        let mut found = Vec::new();
        let sets = self.planning.lock().sets.get(&id).cloned().unwrap_or_default();
        for hint in &dataset.hints {
            let set = sets.iter().find(|s| s.hint == hint.name);
            let (encoding, fraction) = match (set, &hint.behind) {
                (Some(set), _) => (set.encoding.clone(), 1.0),
                (None, Some(_)) => continue,
                (None, None) => {
                    let seeded = self.seeded(dataset, hint, job.seed);
                    let index = self.reading_cache().await?.snapshot(&seeded).index().await?;
                    let Some((encoding, rows)) = most_common(&index) else { continue };
                    (encoding, (rows as f64 / rows_at(profile, &hint.name)).min(1.0))
                }
            };
            let Some((format, compression)) = encoding.split_once('/') else { continue };
            let (format, compression) = (format.to_string(), compression.to_string());
            found.push(Existing { hint: hint.name.clone(), format, compression, fraction });
        }
        Ok(found)
    }

    fn seeded(&self, dataset: &Dataset, hint: &Hint, seed: u64) -> caju_types::Fingerprint {
        let seeded = || {
            let definition = serde_json::from_str(&dataset.definition_json).ok()?;
            self.catalog.seeded_snapshot(&definition, &hint.name, seed)
        };
        hint.random.then(seeded).flatten().unwrap_or(hint.prefix)
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
        if !is_new(&format!("plan {} {} {text}", dataset.identity, job.name)) {
            return;
        }
        let profile: Option<serde_json::Value> = serde_json::from_str(text).ok();
        let (me, definition, epochs) = (Arc::clone(self), dataset.identity, job.epochs);
        drop(self.tasks.spawn_graceful(async move {
            let root = &me.config.cache_url;
            let remember = async {
                let known = Remembered::recall(&stores, root, definition).await?.unwrap_or_default();
                let new = Remembered {
                    profile: profile.or(known.profile),
                    epochs: epochs.or(known.epochs),
                    jobs: known.jobs + u64::from(first),
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

/// The job of an iteration, if it waits for a decision.
fn undecided(state: &State, id: IterationId) -> Option<&Job> {
    let job = state.jobs.get(&state.iterations.get(&id)?.job)?;
    (job.policy.is_planned() && job.decision.is_none() && !job.profile_only).then_some(job)
}

fn is_option(profile: &Profile, hint: Option<&str>) -> bool {
    hint.is_none_or(|name| profile.hints.iter().any(|h| h.name == name))
}

/// The encoding of most parts, and how many rows they have.
fn most_common(index: &PartIndex) -> Option<(String, u64)> {
    let mut sums: Vec<(String, u64)> = Vec::new();
    for (_, part) in index.iter() {
        let encoding = part.encoding.to_string();
        match sums.iter_mut().find(|s| s.0 == encoding) {
            Some(sum) => sum.1 += part.rows,
            None => sums.push((encoding, part.rows)),
        }
    }
    sums.into_iter().max_by_key(|s| s.1)
}

/// Rows of an epoch at a hint.
fn rows_at(profile: &Profile, hint: &str) -> f64 {
    let after = profile.hints.iter().find(|h| h.name == hint).map(|h| h.after_stage.as_str());
    let mut rows = profile.source.rows as f64;
    for stage in &profile.stages {
        rows *= stage.out_rows_per_row;
        if Some(stage.name.as_str()) == after {
            break;
        }
    }
    rows.max(1.0)
}
