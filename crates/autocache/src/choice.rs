//! From the planner's choice to the cache plan that carries it out.

use caju_planner::{Choice, Decision, Existing, Profile};
use caju_types::{Error, Result};

use crate::hint::HintDef;
use crate::{CachePlan, Encoding, SetPlan};

/// The cache plan for a choice; none for computing.
///
/// # Errors
/// `Internal` if the choice names a hint that the pipeline does not have, `InvalidArgument` for an encoding that is not
/// known.
pub(crate) fn cache_plan(
    decision: &Decision,
    profile: &Profile,
    hints: &[HintDef],
) -> Result<Option<CachePlan>> {
    let Choice::Materialize { hint, format, compression, fraction } = &decision.choice else {
        return Ok(None);
    };
    let def = hints.iter().find(|h| h.name == *hint);
    let def =
        def.ok_or_else(|| Error::internal(format!("the planner chose hint `{hint}`, which is not there")))?;
    let encoding = Encoding::named(format, compression)?;
    // An existing snapshot of some splits is read and not extended. Where draws are frozen, only that many splits have
    // them.
    let reads = *fraction < 1.0 && reads_existing(&decision.choice, profile);
    let all = reads && !def.random;
    Ok(Some(CachePlan {
        permille: if all { CachePlan::ALL } else { CachePlan::permille_of(*fraction) },
        put: !reads,
        write_bytes_per_s: assumed_write_rate(decision, profile),
        set: def.is_set().then_some(SetPlan::Open),
        ..CachePlan::whole(hint, def.prefix, encoding)
    }))
}

/// Whether a choice reads what is stored and stores nothing more. Computing does not.
pub(crate) fn reads_existing(choice: &Choice, profile: &Profile) -> bool {
    let Choice::Materialize { hint, format, compression, fraction } = choice else { return false };
    let same = |x: &&Existing| (&x.hint, &x.format, &x.compression) == (hint, format, compression);
    profile.existing.iter().find(same).is_some_and(|x| x.fraction >= *fraction - 1e-9)
}

/// Bytes per second that the decision assumed one worker to write: what the store takes, or the rate at which computing
/// produces encoded rows, whichever is less.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate, not negative")]
fn assumed_write_rate(decision: &Decision, profile: &Profile) -> Option<u64> {
    let Choice::Materialize { hint, format, compression, .. } = &decision.choice else { return None };
    let workers = profile.cluster.workers.max(1) as f64;
    let store = profile.cache_store.write_bytes_per_s?;
    let computed = decision.compute().and_then(|o| o.rows_per_s);
    let encoding = profile.hints.iter().filter(|h| h.name == *hint).flat_map(|h| &h.encodings);
    let encoding = { encoding }.find(|e| e.format == *format && e.compression == *compression);
    let produced = computed.zip(encoding).map_or(f64::INFINITY, |(rows_per_s, e)| {
        let cores = workers * profile.cluster.cores_per_worker;
        e.bytes_per_row / (1.0 / rows_per_s + e.encode_cpu_s_per_row / cores)
    });
    Some((store.min(produced) / workers) as u64)
}
