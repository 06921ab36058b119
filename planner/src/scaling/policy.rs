//! Rules that set the number of workers: ours, and those that it is compared with.

use std::fmt;
use std::str::FromStr;

use caju_types::{Error, Result, did_you_mean};

use super::{WorkerLimits, scale};
use crate::profile::Profile;

/// The names that [`ScalingPolicy`] is read from.
pub const SCALING_POLICIES: [&str; 3] = ["auto", "hpa", "cachew"];

/// Fraction of the target within which Kubernetes' horizontal pod autoscaler does not change the number, so that rounding has
/// no effect.
const HPA_TOLERANCE: f64 = 0.1 + 1e-9;

/// The most steps that a rule is followed for: it may alternate between two numbers for ever.
const MAX_STEPS: usize = 64;

/// What a rule sees of a number of workers that ran.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingSample {
    /// The fraction of the workers' cores that was busy, 0 to 1.
    pub cpu_utilization: f64,
    /// Seconds that a consumer took for a batch, its waits included.
    pub batch_s: f64,
}

/// The rule that sets the number of workers.
///
/// ```
/// use caju_planner::ScalingPolicy;
/// assert_eq!("hpa".parse::<ScalingPolicy>()?, ScalingPolicy::Hpa { target_utilization: 0.8 });
/// assert_eq!("hpa:0.5".parse::<ScalingPolicy>()?.to_string(), "hpa:0.5");
/// # Ok::<(), caju_types::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum ScalingPolicy {
    /// Computed from the profile, in one step ([`scale`]).
    #[default]
    Auto,
    /// Kubernetes' horizontal pod autoscaler on CPU utilisation.
    Hpa {
        /// The utilisation that it aims at, as a fraction.
        target_utilization: f64,
    },
    /// The rule of the Cachew paper (ATC'22).
    Cachew,
}

impl ScalingPolicy {
    /// The numbers of workers that the rule sets one after the other, beginning with the profile's own, until it sets no other
    /// one. `measure` says how a number runs.
    ///
    /// # Errors
    /// As [`scale`].
    pub fn steps(
        &self,
        profile: &Profile,
        limits: WorkerLimits,
        mut measure: impl FnMut(u64) -> ScalingSample,
    ) -> Result<Vec<u64>> {
        let present = limits.clamp(profile.cluster.workers);
        let mut steps = vec![present];
        let mut cachew = CachewScaler::new(present);
        for _ in 0..MAX_STEPS {
            let now = steps.last().copied().unwrap_or(present);
            let next = match self {
                Self::Auto => scale(profile, limits)?.workers,
                Self::Hpa { target_utilization } => {
                    Hpa { target_utilization: *target_utilization }.desired(now, measure(now).cpu_utilization)
                }
                Self::Cachew => cachew.on_batch_time(measure(now).batch_s),
            };
            let next = limits.clamp(next);
            if next == now {
                break;
            }
            steps.push(next);
        }
        Ok(steps)
    }
}

impl fmt::Display for ScalingPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Hpa { target_utilization } => write!(f, "hpa:{target_utilization}"),
            Self::Cachew => f.write_str("cachew"),
        }
    }
}

impl FromStr for ScalingPolicy {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => return Ok(Self::Auto),
            // The target of Kubernetes' own examples and of `kubectl autoscale`.
            "hpa" => return Ok(Self::Hpa { target_utilization: 0.8 }),
            "cachew" => return Ok(Self::Cachew),
            _ => {}
        }
        let target = name.strip_prefix("hpa:").and_then(|t| t.parse::<f64>().ok());
        match target.filter(|t| *t > 0.0 && *t <= 1.0) {
            Some(target_utilization) => Ok(Self::Hpa { target_utilization }),
            None => Err(Error::invalid(format!(
                "unknown scaling policy `{}`; the policies are {} and hpa:UTILISATION (above 0, at most 1){}",
                name.escape_debug(),
                SCALING_POLICIES.join(", "),
                did_you_mean(name, SCALING_POLICIES)
            ))),
        }
    }
}

/// The rule of Kubernetes' horizontal pod autoscaler, without its limits on how fast it may change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hpa {
    /// The utilisation of the requested CPU that it aims at, as a fraction.
    pub target_utilization: f64,
}

impl Hpa {
    /// The number that it wants: `ceil(workers x utilisation / target)`, and the same number within a tolerance of 10 %.
    ///
    /// ```
    /// let hpa = caju_planner::Hpa { target_utilization: 0.8 };
    /// assert_eq!((hpa.desired(4, 0.85), hpa.desired(4, 1.0), hpa.desired(4, 0.3)), (4, 5, 2));
    /// ```
    #[expect(clippy::cast_precision_loss, reason = "counts of workers are far below 2^53")]
    pub fn desired(&self, workers: u64, utilization: f64) -> u64 {
        let ratio = utilization / self.target_utilization;
        if (ratio - 1.0).abs() <= HPA_TOLERANCE {
            return workers;
        }
        // Rounding must not ask for one more.
        crate::format::to_u64((workers as f64 * ratio * (1.0 - 1e-9)).ceil())
    }
}

/// One worker more must shorten the batches by more than this fraction for Cachew to continue.
const CACHEW_MIN_GAIN: f64 = 0.07;
/// One worker fewer may lengthen the batches by less than this fraction for Cachew to continue.
const CACHEW_MAX_LOSS: f64 = 0.03;
/// A batch time that changed by a larger fraction is discarded.
const CACHEW_OUTLIER: f64 = 1.2;
/// After this many reports without a change Cachew tries one worker more again.
const CACHEW_RECHECK: u32 = 20;
/// The most workers that Cachew asks for.
const CACHEW_MAX_WORKERS: u64 = 100;

/// What Cachew tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CachewPhase {
    /// No batch time is known.
    First,
    /// A worker was added. Whether one that was added before brought enough.
    Up { gained: bool },
    /// A worker was removed.
    Down,
    /// The number was found. The value counts the reports since then.
    Stable(u32),
}

/// Cachew's autoscaler: one worker at a time, by the batch times of the consumers.
///
/// ```
/// let mut cachew = caju_planner::CachewScaler::new(1);
/// assert_eq!(cachew.on_batch_time(1.0), 2, "one more, to see what it brings");
/// assert_eq!(cachew.on_batch_time(0.5), 3);
/// assert_eq!(cachew.on_batch_time(0.49), 2, "2 % are not worth a worker");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CachewScaler {
    workers: u64,
    phase: CachewPhase,
    batch_s: f64,
}

impl CachewScaler {
    /// Begins with the given number of workers.
    pub fn new(workers: u64) -> Self {
        Self { workers, phase: CachewPhase::First, batch_s: f64::NAN }
    }

    /// The number of workers after the consumers reported the mean time of a batch with the present number.
    pub fn on_batch_time(&mut self, batch_s: f64) -> u64 {
        let change = (batch_s - self.batch_s) / self.batch_s;
        if change.abs() > CACHEW_OUTLIER {
            return self.workers;
        }
        match self.phase {
            CachewPhase::First => self.add(batch_s, false),
            CachewPhase::Up { .. } if change < -CACHEW_MIN_GAIN => self.add(batch_s, true),
            CachewPhase::Up { gained: true } => self.settle(self.workers - 1),
            // The first step up was one too many: perhaps fewer workers than in the beginning are enough, too.
            CachewPhase::Up { gained: false } if self.workers > 2 => {
                self.workers -= 2;
                self.phase = CachewPhase::Down;
            }
            CachewPhase::Up { gained: false } => self.settle(1),
            CachewPhase::Down if change < CACHEW_MAX_LOSS && self.workers > 1 => {
                self.batch_s = batch_s;
                self.workers -= 1;
            }
            CachewPhase::Down if change < CACHEW_MAX_LOSS => self.settle(self.workers),
            CachewPhase::Down => self.settle(self.workers + 1),
            CachewPhase::Stable(n) if n + 1 >= CACHEW_RECHECK => self.add(batch_s, false),
            CachewPhase::Stable(n) => self.phase = CachewPhase::Stable(n + 1),
        }
        self.workers
    }

    /// Tries one worker more, where that is allowed.
    fn add(&mut self, batch_s: f64, gained: bool) {
        self.batch_s = batch_s;
        if self.workers >= CACHEW_MAX_WORKERS {
            return self.settle(CACHEW_MAX_WORKERS);
        }
        self.phase = CachewPhase::Up { gained };
        self.workers += 1;
    }

    fn settle(&mut self, workers: u64) {
        self.workers = workers.max(1);
        self.phase = CachewPhase::Stable(0);
    }
}
