//! How many workers a pipeline needs.
//!
//! The model prices every number of workers as it prices every snapshot: the rate is the smallest of the ceilings, some of
//! which grow with the workers (cores, parallelism of stages, network) and some of which do not (stores, the consumer). The
//! answer is therefore computed in one step, without trying the numbers one after the other.

mod ceiling;
mod choose;
mod curve;
mod explain;
mod known;
mod load;
mod policy;
mod pool;
mod range;
mod sample;
mod target;
mod text;

use caju_types::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::format;
use crate::profile::Profile;
use curve::{Curve, Point};

pub use policy::{CachewScaler, Hpa, SCALING_POLICIES, ScalingPolicy, ScalingSample};
pub use pool::{JobShare, PoolJob, PoolScaling, scale_pool};
pub use range::TargetRange;
pub use sample::{JobSample, LocalWorkers};
pub use target::{ScalingEvent, ScalingLoop, ScalingSettings, ScalingTarget};

/// The schema of a serialised [`Scaling`].
pub const SCALING_SCHEMA: &str = "caju.scaling/v1";

/// The most workers that are considered by default: the bound of Cachew's autoscaler.
pub const DEFAULT_MAX_WORKERS: u64 = 100;

/// The highest upper limit: an answer lists every number between the limits.
const HIGHEST_MAX: u64 = 10_000;

/// The numbers of workers that are allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerLimits {
    min: u64,
    max: u64,
}

impl WorkerLimits {
    /// From `min` to `max`, both included.
    ///
    /// # Errors
    /// `InvalidArgument` unless 1 <= `min` <= `max` <= 10,000.
    ///
    /// ```
    /// use caju_planner::WorkerLimits;
    /// let e = WorkerLimits::new(5, 3).unwrap_err();
    /// assert_eq!(e.to_string(), "--max-workers 3 is less than --min-workers 5; raise the one or lower the other");
    /// ```
    pub fn new(min: u64, max: u64) -> Result<Self> {
        if min < 1 {
            return Err(Error::invalid("--min-workers 0: expected a whole number >= 1"));
        }
        if max < min {
            return Err(Error::invalid(format!(
                "--max-workers {max} is less than --min-workers {min}; raise the one or lower the other"
            )));
        }
        if max > HIGHEST_MAX {
            return Err(Error::invalid(format!(
                "--max-workers {max}: expected at most {HIGHEST_MAX}, because the answer lists every number"
            )));
        }
        Ok(Self { min, max })
    }

    /// The fewest workers.
    pub fn min(self) -> u64 {
        self.min
    }

    /// The most workers.
    pub fn max(self) -> u64 {
        self.max
    }

    /// The allowed number next to the given one.
    #[must_use]
    pub fn clamp(self, workers: u64) -> u64 {
        workers.clamp(self.min, self.max)
    }
}

impl Default for WorkerLimits {
    fn default() -> Self {
        Self { min: 1, max: DEFAULT_MAX_WORKERS }
    }
}

/// A number of workers, and what it would give. Rates and costs have nine significant digits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScalingCandidate {
    /// Workers.
    pub workers: u64,
    /// Source rows per second of a steady epoch.
    pub rows_per_s: f64,
    /// The fraction of their time that the consumers wait for rows, 0 to 1; null if the profile has no demand.
    pub consumer_wait: Option<f64>,
    /// What workers and consumers cost in an hour; null without prices.
    pub cost_per_h: Option<f64>,
    /// What an epoch costs; null without prices.
    pub cost_per_epoch: Option<f64>,
    /// What limits the rate: `cores`, `stage:NAME`, `source_store`, `cache_store`, `network` or `consumer`.
    pub bottleneck: String,
    /// The number in a sentence: what limits it, why it was chosen or not.
    pub why: String,
}

/// The number of workers for a pipeline, with every number that was considered (`caju.scaling/v1`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// Always [`SCALING_SCHEMA`].
    pub schema: String,
    /// The chosen number; one of the candidates.
    pub workers: u64,
    /// Every number within the limits, in order.
    pub candidates: Vec<ScalingCandidate>,
    /// One sentence for a person.
    pub reason: String,
}

impl Scaling {
    /// The answer as indented JSON; the same bytes for the same profile and limits.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings, numbers and lists always serialise")
    }

    /// Reads a recorded answer.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not one, or of another version.
    pub fn from_json(text: &str) -> Result<Self> {
        let scaling: Self =
            serde_json::from_str(text).map_err(|e| Error::invalid(format!("not a {SCALING_SCHEMA}: {e}")))?;
        if scaling.schema != SCALING_SCHEMA {
            let found = scaling.schema.escape_debug();
            return Err(Error::invalid(format!("schema: expected {SCALING_SCHEMA:?}, found \"{found}\"")));
        }
        Ok(scaling)
    }

    /// The candidate that was chosen.
    pub fn chosen(&self) -> Option<&ScalingCandidate> {
        self.candidates.iter().find(|c| c.workers == self.workers)
    }
}

/// The number of workers for a pipeline.
///
/// - Without prices it is the fewest workers with which the consumers do not wait. Where they wait whatever the number, because
///   a store is the bottleneck, it is the fewest workers that reach what the store allows.
/// - With prices it is the number with the cheapest epoch; of equally cheap ones the fastest.
///
/// Each number is priced with the snapshot that is fastest with this number of workers, among those that pay off within the
/// horizon: caching and scaling are one choice. The answer does not depend on the profile's own number of workers, so
/// that it is the same again after it was followed.
///
/// # Errors
/// `InvalidArgument` if a field of the profile is wrong.
///
/// ```
/// # let text = include_str!("../../../tests/golden_plans/sleep-bound-stage.profile.json");
/// use caju_planner::{Profile, WorkerLimits, scale};
/// let mut profile = Profile::from_json(text)?;
/// profile.hints.clear();
/// profile.existing.clear();
/// profile.consumer.rows_per_s = Some(1e12);
/// let few = scale(&profile, WorkerLimits::new(1, 4)?)?;
/// assert_eq!((few.workers, few.candidates.len()), (4, 4));
/// # Ok::<(), caju_types::Error>(())
/// ```
pub fn scale(profile: &Profile, limits: WorkerLimits) -> Result<Scaling> {
    profile.validate()?;
    let profile = profile.clone().canonical();
    let curve = Curve::of(&profile, limits);
    let chosen = choose::choose(&curve);
    let candidates = curve.points.iter().map(|p| candidate(&curve, p, chosen)).collect();
    Ok(Scaling {
        schema: SCALING_SCHEMA.into(),
        workers: curve.points.get(chosen).map_or(limits.min, |p| p.workers),
        candidates,
        reason: explain::reason(&curve, chosen),
    })
}

fn candidate(curve: &Curve<'_>, point: &Point, chosen: usize) -> ScalingCandidate {
    let nine = |v: Option<f64>| v.map(format::nine_digits);
    ScalingCandidate {
        workers: point.workers,
        rows_per_s: format::nine_digits(1.0 / point.s_per_row),
        consumer_wait: nine(curve.wait(point)),
        cost_per_h: nine(curve.profile.prices.per_h(point.workers)),
        cost_per_epoch: nine(point.cost_per_epoch),
        bottleneck: point.limit.name(curve.profile),
        why: explain::why(curve, point, chosen),
    }
}
