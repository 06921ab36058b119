//! Replanning: every epoch that ran as decided is planned again, and a decision that was wrong is changed.
//!
//! The profile gets the rates that options really had. The planner is a function of its profile alone, so that a changed
//! decision is replayed like any other.

mod state;

use caju_planner::{Choice, Decision, Existing, Measured, Profile, Source, Stage, plan};
use caju_types::{Error, Result};

use crate::document::Document;
use crate::facts::{EpochReport, JobSpec, demand};
use crate::plan::SplitModes;
use crate::profile_builder::{Pipeline, sharing, stage_costs};
use crate::report::StageKind;
pub(crate) use state::EpochFacts;
pub use state::{OptionRate, ReplanState};

/// Readers that wait for less than this fraction of their time set the pace themselves.
const MIN_WAIT_FRACTION: f64 = 0.1;
/// How many times shorter the remainder of a job must become for a change to an option that ran before, or to computing,
/// all of whose stages were measured while they ran.
const MIN_GAIN_KNOWN: f64 = 1.1;
/// How many times shorter the remainder must become for a change to a snapshot of which only a few rows were probed.
const MIN_GAIN_PREDICTED: f64 = 1.5;
/// Milliseconds below which an epoch is not compared with predictions: its start-up takes a large part of it.
const MIN_EPOCH_MS: u64 = 1000;

/// What an epoch that ended means for the decision.
pub(crate) struct Replanned {
    /// The state from now on.
    pub(crate) state: ReplanState,
    /// The changed decision with its profile.
    pub(crate) change: Option<(Profile, Decision)>,
    /// Why the epoch could not be planned again.
    pub(crate) error: Option<Error>,
}

impl Replanned {
    fn unchanged(state: ReplanState) -> Self {
        Self { state, change: None, error: None }
    }
}

/// Compares an epoch that has ended with the decision that it ran under; none if nothing was decided.
pub(crate) fn replan(
    job: &JobSpec,
    pipeline: Pipeline<'_>,
    state: &ReplanState,
    decided: Option<(&Profile, &Decision)>,
    epoch: &EpochReport,
    epochs_left: Option<u64>,
) -> Replanned {
    let facts = epoch.facts();
    let Some((profile, old)) = decided else { return Replanned::unchanged(state.after(facts, None).0) };
    let (state, shows) = state.after(facts, fraction(&old.choice));
    let short = facts.ms < MIN_EPOCH_MS && state.computed_rate.is_none();
    if !shows || short {
        return Replanned::unchanged(state);
    }
    let profile = with_workers(profile.clone(), facts.workers, job.each_worker_reads_all);
    let profile = with_sharing(profile, epoch);
    let profile = as_it_ran(profile, epoch, pipeline.random_stages);
    match plan_again(&profile, old, &state, epochs_left, facts) {
        Ok((profile, new)) => {
            let better = is_better(&profile, &new, &old.choice);
            let (state, changes) = state.replanned(&old.choice, better);
            Replanned { state, change: changes.then_some((profile, new)), error: None }
        }
        Err(error) => Replanned { error: Some(error), ..Replanned::unchanged(state) },
    }
}

impl EpochReport {
    /// What the epoch showed.
    fn facts(&self) -> EpochFacts {
        let output = self.stages.last();
        let ms = self.ended_ms.saturating_sub(self.opened_ms);
        // Readers of Arrow Flight do not report how long they waited. How long rows waited for them shows as much.
        let waited = match self.clients.iter().map(|c| c.wait_fraction).reduce(f64::min) {
            Some(least) => least > MIN_WAIT_FRACTION,
            None => {
                let all_s = ms as f64 / 1000.0 * self.tasks.max(1) as f64;
                output.is_none_or(|o| o.wait_out_s < MIN_WAIT_FRACTION * all_s)
            }
        };
        EpochFacts {
            rows: output.map_or(0, |s| s.rows_out),
            ms,
            modes: self.modes,
            waited,
            workers: self.workers,
            sharing_jobs: self.sharing.as_ref().map_or(1, |s| s.jobs),
        }
    }
}

/// The profile with what this epoch says of its readers, and with the stages' costs if the whole epoch was computed: the
/// costs of the first second are not those of all rows.
fn as_it_ran(mut profile: Profile, epoch: &EpochReport, random_stages: &[String]) -> Profile {
    // A reader that an earlier job had may have been a slower one.
    profile.consumer.rows_per_s = demand(&epoch.clients);
    let SplitModes { compute, put, get, .. } = epoch.modes;
    // All rows left the source, once each. Before, their number was inferred from the first splits.
    let whole = get == 0 && compute + put == epoch.splits_issued;
    let source = epoch.stages.first().zip(profile.stages.first());
    if let Some((read, _)) = source.filter(|(read, s)| whole && read.name == s.name && read.rows_out > 0) {
        profile.source.rows = read.rows_out;
    }
    if epoch.stages.is_empty() || put + get > 0 {
        return profile;
    }
    let output = epoch.stages.iter().find(|s| s.kind == StageKind::Output).map(|s| s.name.as_str());
    with_stages(profile, stage_costs(&epoch.stages, random_stages), output)
}

/// The profile for this many workers like those it was measured with. Rates that other workers had are dropped.
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

/// The profile with the jobs that shared rows at the end of an epoch. Rates that other numbers of jobs had are dropped.
fn with_sharing(mut profile: Profile, epoch: &EpochReport) -> Profile {
    let jobs = |profile: &Profile| profile.sharing.as_ref().map_or(1, |s| s.jobs);
    let before = jobs(&profile);
    profile.sharing = epoch
        .sharing
        .as_ref()
        .and_then(|facts| sharing(facts, &profile.hints, &profile.stages, &epoch.stages));
    if jobs(&profile) != before {
        profile.observed.clear();
    }
    profile
}

/// The profile with the costs of these stages, if they are the same stages. `output` names the stage that delivers.
fn with_stages(profile: Profile, mut stages: Vec<Stage>, output: Option<&str>) -> Profile {
    let like = |(new, old): (&Stage, &Stage)| {
        new.name == old.name && (new.cpu_s_per_row > 0.0) == (old.cpu_s_per_row > 0.0)
    };
    // Where hints are left out, something may have been pushed into the source.
    if stages.len() != profile.stages.len() || !stages.iter().zip(&profile.stages).all(like) {
        return profile;
    }
    // The output's cost includes what processes do besides their tasks. The figures of an ended epoch do not have that.
    for (new, old) in stages.iter_mut().zip(&profile.stages) {
        if output == Some(new.name.as_str()) {
            new.clone_from(old);
        }
    }
    Profile { stages, ..profile }
}

/// The fraction of the splits that is read under a choice.
fn fraction(choice: &Choice) -> Option<f64> {
    match choice {
        Choice::Compute => None,
        Choice::Materialize { fraction, .. } => Some(*fraction),
    }
}

/// The rates that options of a profile had, in source rows per second.
fn rates(profile: &Profile, choice: &Choice, state: &ReplanState) -> Vec<Measured> {
    let delivered: f64 = profile.stages.iter().map(|s| s.out_rows_per_row).product();
    let rate = |choice: Choice, rate: u64| {
        let rows_per_s = rate as f64 / 1000.0 / delivered;
        (rows_per_s.is_finite() && rows_per_s > 0.0).then_some(Measured { choice, rows_per_s })
    };
    let before = state.left_options.iter().filter_map(|o| rate(o.choice.value()?.clone(), o.rate));
    let computed = state.computed_rate.and_then(|r| rate(Choice::Compute, r));
    let read = state.read_rate.filter(|_| *choice != Choice::Compute).and_then(|r| rate(choice.clone(), r));
    before.chain(computed).chain(read).collect()
}

/// The profile of a decision with the rates that options had in the job's epochs added. The rates do not change the
/// decision; a reader of the profile sees how good its predictions were. None if there are none that can be added.
pub fn profile_with_rates(
    profile: &Document<Profile>,
    decision: Option<&Document<Decision>>,
    state: &ReplanState,
) -> Option<Profile> {
    let choice = &decision?.value()?.choice;
    let mut with = profile.value()?.clone();
    with.measured = rates(&with, choice, state);
    with.validate().ok()?;
    Some(with)
}

/// Plans the remainder of a job again.
fn plan_again(
    profile: &Profile,
    old: &Decision,
    state: &ReplanState,
    epochs: Option<u64>,
    facts: EpochFacts,
) -> Result<(Profile, Decision)> {
    let mut profile = profile.clone();
    profile.horizon.epochs = epochs.map(|n| n.max(1));
    // The newest rate of an option counts, also over an earlier job's.
    let ran = rates(&profile, &old.choice, state);
    profile.observed.retain(|known| ran.iter().all(|r| r.choice != known.choice));
    profile.observed.extend(ran);
    if let Choice::Materialize { hint, format, compression, fraction } = &old.choice {
        // By now it is stored, as far as it will be.
        let reached = state.epochs_missed == 0;
        profile.existing.retain(|e| e.hint != *hint);
        profile.existing.push(Existing {
            hint: hint.clone(),
            format: format.clone(),
            compression: compression.clone(),
            fraction: if reached { *fraction } else { fraction.min(facts.fraction_read()) },
        });
    }
    profile.validate()?;
    let new = plan(&profile, &old.policy)?;
    Ok((profile, new))
}

/// Whether the new choice is better than the old one by enough to change to it.
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
    let gain = if ran || new.choice == Choice::Compute { MIN_GAIN_KNOWN } else { MIN_GAIN_PREDICTED };
    let (ours, theirs) = (horizon(&same), horizon(&|c: &Choice| *c == new.choice));
    ours.zip(theirs).is_some_and(|(ours, theirs)| theirs * gain < ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_processes_besides_their_tasks_stay_in_the_profile() {
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
        let then =
            with_stages(first.clone(), vec![stage("read", 1e-6), stage("output", 1e-6)], Some("output"));
        assert_eq!(then.stages, [stage("read", 1e-6), stage("output", 3e-6)]);
        let other =
            with_stages(first.clone(), vec![stage("map", 1e-6), stage("output", 1e-6)], Some("output"));
        assert_eq!(other.stages, first.stages, "other stages");
    }

    #[test]
    fn twice_the_workers_have_twice_the_store() {
        let text = include_str!("../../../../tests/golden_plans/design-example.profile.json");
        let mut one = Profile::from_json(text).unwrap();
        one.observed = vec![Measured { choice: Choice::Compute, rows_per_s: 10.0 }];
        let two = with_workers(one.clone(), 2, false);
        assert_eq!((two.cluster.workers, two.observed.len()), (2, 0));
        assert_eq!(two.cache_store.read_bytes_per_s, one.cache_store.read_bytes_per_s.map(|r| 2.0 * r));
        assert_eq!(with_workers(one.clone(), 1, true), one);
        // Where each worker reads all there are as many rows more, and still as many to store.
        let all = with_workers(one.clone(), 3, true);
        assert_eq!(all.source, Source { rows: 3 * one.source.rows, readings: Some(3) });
        assert_eq!(with_workers(all.clone(), 2, true).source.readings, Some(2));
        assert_eq!(with_workers(all, 1, true).source, one.source);
    }
}
