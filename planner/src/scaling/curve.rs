//! What each number of workers supplies, and what it costs.

use super::WorkerLimits;
use crate::candidate::{Candidate, Limit};
use crate::choice::Choice;
use crate::model::Model;
use crate::profile::Profile;

/// Numbers that differ by less, relative to their size, are rounded the same.
pub(super) const ROUNDING: f64 = 1e-9;

/// A number of workers.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) workers: u64,
    /// Seconds per source row that the workers and the stores allow.
    pub(super) supply_s: f64,
    /// The largest ceiling of the supply.
    pub(super) supply_limit: Limit,
    /// Seconds per source row, the consumers' demand included.
    pub(super) s_per_row: f64,
    /// The bottleneck, the consumers included.
    pub(super) limit: Limit,
    /// What is stored and read with this number of workers.
    pub(super) choice: Choice,
    /// What an epoch costs, if there are prices.
    pub(super) cost_per_epoch: Option<f64>,
}

/// Every number of workers within the limits.
pub(super) struct Curve<'a> {
    pub(super) profile: &'a Profile,
    pub(super) limits: WorkerLimits,
    /// In order, without gaps; never empty.
    pub(super) points: Vec<Point>,
    /// Seconds per source row that the consumers take at least; 0 if that is unlimited.
    pub(super) demand_s: f64,
    /// Whether the consumers have a demand, and no row reaches them.
    pub(super) delivers_nothing: bool,
}

impl<'a> Curve<'a> {
    pub(super) fn of(profile: &'a Profile, limits: WorkerLimits) -> Self {
        let demand_s = profile.consumer.rows_per_s.map_or(0.0, |rate| delivered_per_row(profile) / rate);
        // The demand of the consumers comes afterwards: which snapshot pays off must not depend on it, or a higher demand
        // could need fewer workers. Rates that were observed belong to another number of workers.
        let mut at = profile.clone();
        at.consumer.rows_per_s = None;
        at.observed.clear();
        let points = (limits.min..=limits.max)
            .map(|workers| {
                at.cluster.workers = workers;
                point(&at, demand_s)
            })
            .collect();
        let delivers_nothing = profile.consumer.rows_per_s.is_some() && delivered_per_row(profile) <= 0.0;
        Self { profile, limits, points, demand_s, delivers_nothing }
    }

    /// The fraction of their time that the consumers wait; none if they have no known demand.
    pub(super) fn wait(&self, point: &Point) -> Option<f64> {
        (self.demand_s > 0.0).then(|| 1.0 - self.demand_s / point.s_per_row)
    }
}

/// Rows that the last stage gives per source row.
pub(super) fn delivered_per_row(profile: &Profile) -> f64 {
    profile.stages.iter().fold(1.0, |rows, s| (rows * s.out_rows_per_row).clamp(0.0, 1e30))
}

fn point(profile: &Profile, demand_s: f64) -> Point {
    let model = Model::new(profile);
    let pays = |c: &&Candidate| pays_off(&model, c);
    let s_per_row = |c: &Candidate| c.steady.s_per_row.max(demand_s);
    let best = model.candidates().iter().filter(pays).map(s_per_row).fold(f64::INFINITY, f64::min);
    // Of options that are equally fast for these consumers the first one is shown: computing, if it is among them.
    let option = model.candidates().iter().filter(pays).find(|c| s_per_row(c) <= best * (1.0 + ROUNDING));
    let (supply_s, supply_limit, choice) = option.map_or((best, Limit::Cores, Choice::Compute), |c| {
        (c.steady.s_per_row, c.steady.limit, model.choice(c.stored))
    });
    let s_per_row = supply_s.max(demand_s);
    let limit = if demand_s >= supply_s { Limit::Consumer } else { supply_limit };
    let cost_per_epoch =
        profile.prices.per_h(profile.cluster.workers).map(|per_h| per_h / 3600.0 * model.rows() * s_per_row);
    let workers = profile.cluster.workers;
    Point { workers, supply_s, supply_limit, s_per_row, limit, choice, cost_per_epoch }
}

/// Whether an option can be taken and is at least as fast as computing over the horizon. What has still to be written
/// is read in the second epoch at the earliest.
fn pays_off(model: &Model<'_>, option: &Candidate) -> bool {
    let Some(stored) = option.stored else { return true };
    let writes = stored.fraction > stored.existing;
    let compute_s = model.candidates().first().map_or(f64::INFINITY, |c| c.horizon_s);
    option.obstacle.is_none()
        && !(writes && model.epochs() < 2.0)
        && option.horizon_s <= compute_s * (1.0 + ROUNDING)
}

/// Whether more workers raise a ceiling.
pub(super) fn is_of_workers(limit: Limit) -> bool {
    matches!(limit, Limit::Cores | Limit::Stage(_) | Limit::Network)
}
