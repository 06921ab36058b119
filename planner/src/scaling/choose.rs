//! Which number of workers is taken.

use super::curve::{Curve, Point};

/// Rates that differ by less than this fraction count as the same: no measurement would show the difference.
pub(super) const SAME_RATE: f64 = 0.005;

/// Costs that differ by a smaller fraction differ by rounding alone.
const SAME_COST: f64 = 1e-6;

/// The position of the chosen point: the cheapest epoch if there are prices; of those the highest rate; of those the
/// fewest workers. Without prices it is the fewest workers where no row reaches the consumers.
pub(super) fn choose(curve: &Curve<'_>) -> usize {
    if curve.delivers_nothing && curve.points.iter().all(|p| p.cost_per_epoch.is_none()) {
        return 0;
    }
    let cost = |p: &Point| p.cost_per_epoch.unwrap_or(0.0);
    let least = curve.points.iter().map(cost).fold(f64::INFINITY, f64::min);
    let cheap = |p: &Point| cost(p) <= least * (1.0 + SAME_COST);
    let fastest = curve.points.iter().filter(|p| cheap(p)).map(|p| p.s_per_row).fold(f64::INFINITY, f64::min);
    let fast = |p: &Point| p.s_per_row * (1.0 - SAME_RATE) <= fastest;
    curve.points.iter().position(|p| cheap(p) && fast(p)).unwrap_or(0)
}
