//! The policy `auto`: the shortest horizon, and of equals the one that stores least.

use caju_types::Result;

use super::{Pick, Policy};
use crate::explain;
use crate::model::{Candidate, Model};
use crate::words;

/// Options whose horizons are within this share of the best are a tie.
pub const TIE: f64 = 0.02;

/// Takes the option with the shortest horizon; within [`TIE`] of it the one that stores least.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Auto;

impl Policy for Auto {
    fn name(&self) -> String {
        "auto".into()
    }

    fn pick(&self, model: &Model<'_>) -> Result<Pick> {
        let candidate = best(model, |_| true).unwrap_or(0);
        Ok(Pick { candidate, reason: explain::reason(model, candidate) })
    }
}

/// The best of the feasible options that the filter admits.
pub(super) fn best(model: &Model<'_>, admit: impl Fn(usize) -> bool) -> Option<usize> {
    let all = model.candidates();
    let open = || (0..all.len()).filter(|&i| all[i].obstacle.is_none() && admit(i));
    let shortest = open().map(|i| all[i].horizon_s).min_by(f64::total_cmp)?;
    open().filter(|&i| all[i].horizon_s <= shortest * (1.0 + TIE)).min_by(|&a, &b| cheaper(&all[a], &all[b]))
}

/// Fewer bytes first, computing before a snapshot without bytes, then the shorter horizon.
fn cheaper(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    bytes(a)
        .total_cmp(&bytes(b))
        .then(a.stored.is_some().cmp(&b.stored.is_some()))
        .then(a.horizon_s.total_cmp(&b.horizon_s))
}

/// At six digits: snapshots that fill the same budget differ by the rounding of their shares, which must not
/// decide.
fn bytes(c: &Candidate) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "rounded anyway")]
    words::six_digits(c.snapshot_bytes as f64)
}
