//! Holding what epochs show against what was decided, and changing the decision where it was wrong.
//!
//! Every epoch that ran as decided is planned anew, with the rates that options really had. The planner is a function of
//! its profile alone, so a changed decision is replayed like any other.

use std::collections::BTreeSet;
use std::sync::Arc;

use caju_planner::{
    Choice, Decision, Existing, Measured as Rate, Profile, Source, Stage, plan, policy_by_name,
};
use caju_types::{IterationId, Result};

use super::planning::{chosen, epochs_left};
use super::{Core, Txn};
use crate::measured::stages;
use crate::state::{Dataset, EpochFacts, Iteration, Job, Mode, Modes, Policy, Update, Watch};

/// Readers that wait less than this share of their time set the pace themselves.
const PACED: f64 = 0.1;
/// How much shorter the rest of a job must become for a change to an option that ran before, and to computing, all of whose
/// stages were measured at work,
const BETTER: f64 = 1.1;
/// and to a snapshot of which only a few rows were tried.
const FAR_BETTER: f64 = 1.5;
/// Milliseconds below which an epoch is too short to be held against predictions: starting it takes a part of them.
const SHORT_MS: u64 = 1000;

impl Core {
    /// Holds an epoch that has just ended against its job's decision, once the last of its workers has told how it went:
    /// clients may have read everything before.
    pub(super) fn watch(&self, txn: &mut Txn<'_>, id: IterationId) {
        let told =
            |i: &&Iteration| i.is_drained() && i.tasks.values().all(|t| t.is_lost() || t.is_reported());
        let Some(iteration) = txn.state.iterations.get(&id).filter(told) else { return };
        let Some(job) = txn.state.jobs.get(&iteration.job).filter(|j| j.policy == Policy::Auto) else {
            return;
        };
        let facts = self.facts(iteration);
        let (Some(old), Some(profile)) = (decision(job), recorded(job)) else {
            let (watch, _) = job.watch.after(facts, None);
            return remember(txn, job.name.clone(), watch);
        };
        let (watch, shows) = job.watch.after(facts, share(&old.choice));
        let short = facts.ms < SHORT_MS && watch.computed.is_none();
        if !shows || short {
            return remember(txn, job.name.clone(), watch);
        }
        let before = self.planning.lock().before(&job.name);
        let left = epochs_left(job.epochs, iteration.epoch.saturating_add(1), before.as_deref());
        let profile = with_workers(profile, facts.workers, job.mode == Mode::Off);
        let profile = self.as_it_ran(profile, iteration, txn.state.datasets.get(&iteration.dataset));
        let (watch, change) = match anew(&profile, &old, &watch, left, facts) {
            Ok((profile, new)) => {
                let choice = serde_json::to_string(&old.choice).unwrap_or_default();
                let (watch, changes) = watch.considered(&choice, is_better(&profile, &new, &old.choice));
                (watch, changes.then_some((profile, new)))
            }
            Err(error) => {
                tracing::warn!(job = %job.name, %error, "what its epochs showed makes no profile; the decision stays");
                (watch, None)
            }
        };
        let name = job.name.clone();
        if let Some((profile, new)) = change {
            let plan = txn.state.datasets.get(&iteration.dataset).map(|d| chosen(&new, &profile, d));
            match plan.transpose() {
                Ok(plan) => {
                    tracing::warn!(job = %name, from = %old.choice, to = %new.choice, "{}", new.reason);
                    txn.apply(Update::Decided {
                        job: name.clone(),
                        plan: plan.flatten(),
                        decision: new.to_json().into(),
                        profile: profile.to_json().into(),
                    });
                }
                Err(error) => tracing::warn!(job = %name, %error, "a better choice cannot be carried out"),
            }
        }
        remember(txn, name, watch);
    }

    /// The profile with what this epoch says of its readers, and with the stages' costs of a whole epoch of
    /// computing, if this was one: those of the first second are not those of all rows.
    fn as_it_ran(&self, mut profile: Profile, iteration: &Iteration, dataset: Option<&Dataset>) -> Profile {
        // A reader that an earlier job had may have been a slower one.
        profile.consumer.rows_per_s = self.demand(iteration);
        let observed = self.observed.lock();
        let ended = observed.ended_stages.get(&iteration.id);
        let Modes { compute, put, get, .. } = iteration.modes;
        // All rows left the source, once each: before, it was inferred from the first splits.
        let issued: u64 = iteration.feeds.values().map(|f| f.issued).sum();
        let whole = get == 0 && compute + put == issued;
        let source = ended.and_then(|s| s.first()).zip(profile.stages.first());
        if let Some((read, _)) = source.filter(|(read, s)| whole && read.name == s.name && read.rows_out > 0)
        {
            profile.source.rows = read.rows_out;
        }
        let stages = ended.zip(dataset).filter(|_| put + get == 0).map(|(s, d)| stages(s, d));
        match stages {
            Some(stages) => with_stages(profile, stages),
            None => profile,
        }
    }

    fn facts(&self, iteration: &Iteration) -> EpochFacts {
        let now = u64::try_from(self.clock.unix_time().as_millis()).unwrap_or(0);
        let observed = self.observed.lock();
        let output = observed.ended_stages.get(&iteration.id).and_then(|s| s.last());
        let mine = observed.clients.iter().filter(|((i, _), _)| *i == iteration.id);
        let ms = now.saturating_sub(iteration.opened_ms);
        let ran: Vec<_> = iteration.tasks.values().filter(|t| !t.is_lost()).collect();
        // Readers of Arrow Flight do not say how long they waited. That rows waited for them shows as much.
        let waited = match mine.map(|(_, c)| c.wait_fraction).reduce(f64::min) {
            Some(least) => least > PACED,
            None => {
                let all_s = ms as f64 / 1000.0 * ran.len().max(1) as f64;
                output.is_none_or(|o| o.wait_out_s < PACED * all_s)
            }
        };
        let workers: BTreeSet<_> = ran.iter().map(|t| t.worker).collect();
        EpochFacts {
            rows: output.map_or(0, |s| s.rows_out),
            ms,
            modes: iteration.modes,
            waited,
            workers: workers.len() as u64,
        }
    }
}

/// The profile of so many workers like those it was measured with. What others ran at is not what these do.
fn with_workers(mut profile: Profile, workers: u64, each_reads_all: bool) -> Profile {
    let before = profile.cluster.workers;
    if workers == 0 || before == workers {
        return profile;
    }
    let times = workers as f64 / before.max(1) as f64;
    let store = &mut profile.cache_store;
    let rates = [
        &mut store.read_bytes_per_s,
        &mut store.write_bytes_per_s,
        &mut profile.source_store.read_bytes_per_s,
    ];
    for rate in rates.into_iter().flatten() {
        *rate *= times;
    }
    if each_reads_all {
        let Source { rows, readings } = profile.source;
        let of_each = (readings.unwrap_or(1) / before.max(1)).max(1);
        let rows = u128::from(rows) * u128::from(workers) / u128::from(before.max(1));
        let rows = u64::try_from(rows).unwrap_or(u64::MAX);
        let readings = of_each.saturating_mul(workers);
        profile.source = Source { rows, readings: Some(readings).filter(|n| *n > 1) };
    }
    profile.cluster.workers = workers;
    profile.observed.clear();
    profile
}

/// The profile with the costs of these stages, if they are the same ones.
fn with_stages(profile: Profile, mut stages: Vec<Stage>) -> Profile {
    let like = |(new, old): (&Stage, &Stage)| {
        new.name == old.name && (new.cpu_s_per_row > 0.0) == (old.cpu_s_per_row > 0.0)
    };
    // Where hints are left out, something may have been pushed into the source.
    if stages.len() != profile.stages.len() || !stages.iter().zip(&profile.stages).all(like) {
        return profile;
    }
    // With the output counts what processes do beside their tasks, which is not in the figures of an epoch that ended.
    if let Some((new, old)) =
        stages.last_mut().zip(profile.stages.last()).filter(|(new, _)| new.name == "output")
    {
        new.clone_from(old);
    }
    Profile { stages, ..profile }
}

fn remember(txn: &mut Txn<'_>, job: caju_types::JobName, watch: Watch) {
    if txn.state.jobs.get(&job).is_some_and(|j| j.watch != watch) {
        txn.apply(Update::Watched { job, watch });
    }
}

fn decision(job: &Job) -> Option<Decision> {
    let text = job.decision.as_deref()?;
    let read = Decision::from_json(text);
    read.inspect_err(|error| tracing::error!(job = %job.name, %error, "a stored decision cannot be read"))
        .ok()
}

fn recorded(job: &Job) -> Option<Profile> {
    let read = Profile::from_json(job.profile.as_deref()?);
    read.inspect_err(|error| tracing::error!(job = %job.name, %error, "a stored profile cannot be read")).ok()
}

/// The share of the splits that is read under a choice.
fn share(choice: &Choice) -> Option<f64> {
    match choice {
        Choice::Compute => None,
        Choice::Materialize { fraction, .. } => Some(*fraction),
    }
}

/// The rates that options of a profile had, in source rows per second.
fn rates(profile: &Profile, choice: &Choice, watch: &Watch) -> Vec<Rate> {
    let delivered: f64 = profile.stages.iter().map(|s| s.out_rows_per_row).product();
    let rate = |choice: Choice, rate: u64| {
        let rows_per_s = rate as f64 / 1000.0 / delivered;
        (rows_per_s.is_finite() && rows_per_s > 0.0).then_some(Rate { choice, rows_per_s })
    };
    let before = watch.left.iter().filter_map(|t| rate(serde_json::from_str(&t.choice).ok()?, t.rate));
    let computed = watch.computed.and_then(|r| rate(Choice::Compute, r));
    let read = watch.read.filter(|_| *choice != Choice::Compute).and_then(|r| rate(choice.clone(), r));
    before.chain(computed).chain(read).collect()
}

/// The profile of a job's decision, with the rates that options had in its epochs beside it: they change nothing, and
/// whoever looks at the profile sees what became of its predictions.
pub(super) fn profile_with_rates(job: &Job) -> Option<Arc<str>> {
    let text = job.profile.clone()?;
    let told = || {
        let mut profile = Profile::from_json(&text).ok()?;
        let choice = Decision::from_json(job.decision.as_deref()?).ok()?.choice;
        profile.measured = rates(&profile, &choice, &job.watch);
        profile.validate().ok()?;
        Some(profile.to_json().into())
    };
    Some(told().unwrap_or(text))
}

/// The rest of a job planned anew.
fn anew(
    profile: &Profile,
    old: &Decision,
    watch: &Watch,
    epochs: Option<u64>,
    facts: EpochFacts,
) -> Result<(Profile, Decision)> {
    let mut profile = profile.clone();
    profile.horizon.epochs = epochs.map(|n| n.max(1));
    // The newest rate of an option counts, be it an earlier job's.
    let ran = rates(&profile, &old.choice, watch);
    profile.observed.retain(|known| ran.iter().all(|r| r.choice != known.choice));
    profile.observed.extend(ran);
    if let Choice::Materialize { hint, format, compression, fraction } = &old.choice {
        // By now it is stored, as far as it will be.
        let reached = watch.unreached == 0;
        profile.existing.retain(|e| e.hint != *hint);
        profile.existing.push(Existing {
            hint: hint.clone(),
            format: format.clone(),
            compression: compression.clone(),
            fraction: if reached { *fraction } else { fraction.min(facts.read_share()) },
        });
    }
    profile.validate()?;
    let new = plan(&profile, policy_by_name(&old.policy)?.as_ref())?;
    Ok((profile, new))
}

/// Whether another choice is so much better than the old one that it is worth a change.
fn is_better(profile: &Profile, new: &Decision, old: &Choice) -> bool {
    let same = |choice: &Choice| match (choice, old) {
        (
            Choice::Materialize { hint, format, compression, .. },
            Choice::Materialize { hint: h, format: f, compression: c, .. },
        ) => (hint, format, compression) == (h, f, c),
        (a, b) => a == b,
    };
    if same(&new.choice) {
        return false;
    }
    let horizon = |wanted: &dyn Fn(&Choice) -> bool| {
        let options = new.options.iter().filter(|o| wanted(&o.choice));
        options.filter_map(|o| o.horizon_s).min_by(f64::total_cmp)
    };
    let ran = profile.observed.iter().any(|r| r.choice == new.choice);
    let by = if ran || new.choice == Choice::Compute { BETTER } else { FAR_BETTER };
    let (ours, theirs) = (horizon(&same), horizon(&|c: &Choice| *c == new.choice));
    ours.zip(theirs).is_some_and(|(ours, theirs)| theirs * by < ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processes_do_beside_their_tasks_stays_in_the_profile() {
        let stage = |name: &str, cpu: f64| Stage {
            name: name.into(),
            io_bytes_per_row: 0.0,
            cpu_s_per_row: cpu,
            service_s_per_row: cpu,
            max_parallelism: None,
            out_rows_per_row: 1.0,
            out_bytes_per_row: 8.0,
            random: false,
        };
        let text = r#"{"schema": "caju.profile/v1", "cluster": {"workers": 1, "cores_per_worker": 2}, "source": {"rows": 9},
            "stages": [{"name": "read", "io_bytes_per_row": 0, "cpu_s_per_row": 1, "service_s_per_row": 1,
                        "out_rows_per_row": 1, "out_bytes_per_row": 8}]}"#;
        let empty = Profile::from_json(text).unwrap();
        let profile = |stages| Profile { stages, ..empty.clone() };
        let first = profile(vec![stage("read", 2e-6), stage("output", 3e-6)]);
        let then = with_stages(first.clone(), vec![stage("read", 1e-6), stage("output", 1e-6)]);
        assert_eq!(then.stages, [stage("read", 1e-6), stage("output", 3e-6)]);
        let other = with_stages(first.clone(), vec![stage("map", 1e-6), stage("output", 1e-6)]);
        assert_eq!(other.stages, first.stages, "other stages");
    }

    #[test]
    fn twice_the_workers_have_twice_the_store() {
        let text = include_str!("../../../../tests/golden_plans/design-example.profile.json");
        let mut one = Profile::from_json(text).unwrap();
        one.observed = vec![Rate { choice: Choice::Compute, rows_per_s: 10.0 }];
        let two = with_workers(one.clone(), 2, false);
        assert_eq!((two.cluster.workers, two.observed.len()), (2, 0));
        assert_eq!(two.cache_store.read_bytes_per_s, one.cache_store.read_bytes_per_s.map(|r| 2.0 * r));
        assert_eq!(with_workers(one.clone(), 1, true), one);
        // Where each reads all there are as many rows more, and still as many to store.
        let all = with_workers(one.clone(), 3, true);
        assert_eq!(all.source, Source { rows: 3 * one.source.rows, readings: Some(3) });
        assert_eq!(with_workers(all.clone(), 2, true).source.readings, Some(2));
        assert_eq!(with_workers(all, 1, true).source, one.source);
    }
}
