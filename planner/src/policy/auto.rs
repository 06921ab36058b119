//! The policy `auto`: the shortest horizon, and of equals the one that stores least.

use super::Pick;
use crate::candidate::{Candidate, TIE};
use crate::explain;
use crate::format;
use crate::model::Model;

/// Takes the option with the shortest horizon. Of the options within [`TIE`] of it, takes the one that stores least. Of
/// options that store the same number of bytes (within [`TIE`]), takes the one whose second limit is further away. If these
/// limits are equal too, takes the first option: profiles list the encoding that is cheapest to write first, and single
/// probes cannot rank the read costs of two similar encodings.
pub(super) fn pick(model: &Model<'_>) -> Pick {
    let candidate = best(model, |_| true).unwrap_or(0);
    Pick { candidate, reason: explain::reason(model, candidate) }
}

/// The best of the feasible options that the filter admits.
pub(super) fn best(model: &Model<'_>, admit: impl Fn(usize) -> bool) -> Option<usize> {
    let all = model.candidates();
    let open = || (0..all.len()).filter(|&i| all[i].obstacle.is_none() && admit(i));
    let shortest = open().map(|i| all[i].horizon_s).min_by(f64::total_cmp)?;
    let tied = || open().filter(|&i| all[i].horizon_s <= shortest * (1.0 + TIE));
    let least = tied().map(|i| bytes(&all[i])).min_by(f64::total_cmp)?;
    let small = || tied().filter(|&i| bytes(&all[i]) <= least * (1.0 + TIE));
    // Computing before a snapshot without bytes.
    let compute = small().find(|&i| all[i].stored.is_none());
    let easiest = small().map(|i| all[i].horizon_with_interference_s()).min_by(f64::total_cmp)?;
    compute.or_else(|| small().find(|&i| all[i].horizon_with_interference_s() <= easiest * (1.0 + TIE)))
}

/// At six digits: snapshots that fill the same budget differ by the rounding of their fractions, which must not decide.
fn bytes(c: &Candidate) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "rounded anyway")]
    format::six_digits(c.snapshot_bytes as f64)
}
