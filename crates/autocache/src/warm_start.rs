//! Warm starts: a job decides before its first row, by the plan record of its pipeline or by a decision of a running job.

use caju_planner::{Choice, Decision, Horizon, Profile, plan};
use caju_types::Result;

use crate::PlanRecord;
use crate::choice::cache_plan;
use crate::coverage::{Coverage, MIN_COVERAGE, existing, usable};
use crate::document::Document;
use crate::facts::{ClusterFacts, Decided, JobSpec, Peer};
use crate::hint::HintDef;
use crate::horizon::{epochs_left, expected_jobs};

/// Workers and cores that differ by a larger fraction make another cluster: cores may be the bottleneck in one of them
/// only.
const SAME_CLUSTER: f64 = 0.1;

/// Decides by the plan record of the pipeline, with what is stored by now; none if the record does not fit.
///
/// # Errors
/// Those of the planner, and of a choice that cannot be carried out.
pub(crate) fn decide_by_record(
    job: &JobSpec,
    hints: &[HintDef],
    epoch: u64,
    record: &PlanRecord,
    coverage: &Coverage,
    cluster: ClusterFacts,
) -> Result<Option<Decided>> {
    let Some(known) = &record.profile else { return Ok(None) };
    if !hints_are_weighed(known, hints, coverage, job.encoding.is_some())
        || !is_same_cluster(record, known, cluster)
    {
        return Ok(None);
    }
    let mut profile = known.clone();
    let sets = coverage.sets.iter().map(|s| existing(&s.hint, s.encoding, 1.0));
    let parts = coverage.parts.iter().map(|p| existing(&p.hint, p.encoding, p.fraction));
    profile.existing = usable(sets.chain(parts).collect(), &mut profile.hints, None);
    if profile.hints.iter().any(|h| h.encodings.is_empty()) {
        return Ok(None);
    }
    // Files may have been added or removed.
    if let Some((now, then)) = coverage.splits.zip(record.splits).filter(|(_, then)| *then > 0) {
        let rows = u128::from(profile.source.rows) * u128::from(now) / u128::from(then);
        profile.source.rows = u64::try_from(rows).unwrap_or(u64::MAX);
    }
    profile.measured.clear();
    // The jobs that share rows with this one are known only once it reads.
    profile.sharing = None;
    profile.budget.snapshot_bytes = job.snapshot_budget_bytes.map(|b| b as f64);
    profile.horizon = Horizon {
        epochs: epochs_left(job.epochs, epoch, Some(record)),
        jobs: Some(expected_jobs(record)).filter(|n| *n > 1),
    };
    let observed: Vec<_> = profile.observed.drain(..).collect();
    profile.observed = observed.into_iter().filter(|o| is_option(&profile, &o.choice)).collect();
    profile.validate()?;
    let decision = plan(&profile, &job.policy)?;
    let plan = cache_plan(&decision, &profile, hints)?;
    Ok(Some(Decided::new(plan, decision, profile)))
}

/// Whether every storable hint was weighed with all its encodings. Where something was stored only its encoding was
/// probed, which says little about a cache without these parts. A job that names its encoding measures for itself.
fn hints_are_weighed(
    profile: &Profile,
    hints: &[HintDef],
    coverage: &Coverage,
    names_encoding: bool,
) -> bool {
    let still_there = |name: &str| {
        let bound = profile.existing.iter().find(|x| x.hint == name);
        let mut there = coverage.parts.iter().filter(|p| p.hint == name && p.fraction >= MIN_COVERAGE);
        bound.is_none_or(|x| there.any(|p| p.encoding.is_named(&x.format, &x.compression)))
    };
    let weighed = |h: &HintDef| {
        let encodings = profile.hints.iter().find(|p| p.name == h.name).map(|p| &p.encodings);
        let bound = !h.is_set() && !still_there(&h.name);
        encodings.is_some_and(|e| !e.is_empty() && !names_encoding && !bound)
    };
    hints.iter().filter(|h| h.is_storable()).all(weighed)
}

/// Whether there are about as many workers, with about as many cores, as when the profile was measured. A cluster without
/// workers waits for them, and counts as the same.
fn is_same_cluster(record: &PlanRecord, profile: &Profile, cluster: ClusterFacts) -> bool {
    let near = |now: u64, then: u64| now.abs_diff(then) as f64 <= SAME_CLUSTER * then as f64;
    let same_cores = record.cores.is_none_or(|then| near(cluster.cores, then));
    cluster.workers == 0 || near(cluster.workers, profile.cluster.workers) && same_cores
}

/// Whether a profile weighs a choice.
fn is_option(profile: &Profile, choice: &Choice) -> bool {
    let Choice::Materialize { hint, format, compression, .. } = choice else { return true };
    let encodings = profile.hints.iter().filter(|h| h.name == *hint).flat_map(|h| &h.encodings);
    { encodings }.any(|e| (&e.format, &e.compression) == (format, compression))
}

/// Whether another job's decision suits this one with the given number of epochs left. All jobs can read a snapshot that
/// a job stores completely. Any other decision holds only for a job that would decide the same, and only if every
/// storable hint was weighed.
///
/// # Errors
/// A profile or decision that cannot be read, and those of the planner.
pub(crate) fn suits(peer: &Peer, job: &JobSpec, hints: &[HintDef], epochs: Option<u64>) -> Result<bool> {
    if peer.decided.plan.as_ref().and_then(Document::value).is_some_and(|p| p.stores_all()) {
        return Ok(true);
    }
    let mut profile = peer.decided.profile.read()?.clone();
    let weighed = |h: &HintDef| profile.hints.iter().any(|p| p.name == h.name && !p.encodings.is_empty());
    if !hints.iter().filter(|h| h.is_storable()).all(weighed) {
        return Ok(false);
    }
    profile.horizon.epochs = epochs;
    // This job's reader may be a faster one.
    profile.consumer.rows_per_s = None;
    let decision: &Decision = peer.decided.decision.read()?;
    Ok(plan(&profile, &job.policy)?.choice == decision.choice)
}
