//! How many workers would keep the readers of a job busy.
//!
//! Workers report what an element costs them, and readers what an element may cost at most: the time that their user takes
//! for one. Elements that the users take per second, divided by those that one worker makes, are the workers that it needs.
//! tf.data service's auto-scaler computes the same.

use std::collections::BTreeMap;

use caju_types::{Error, Result};

/// A time further than this many standard deviations from the median is an outlier, as in tf.data service.
const OUTLIER_SIGMAS: f64 = 1.0;
/// One piece of advice asks for at most this many times the present workers. If a user takes almost no time per element, the
/// number of workers that would be enough cannot be measured yet; it shows once some have been added.
const MAX_GROWTH: u64 = 4;

/// The reports about one job. Identifiers are the caller's.
///
/// ```
/// let mut times = caju_planner::ReportedTimes::default();
/// times.report_worker(1, 0.2)?;
/// times.report_consumer(7, 0.025)?;
/// assert_eq!(times.workers_wanted()?, 8);
/// assert_eq!(times.advice(1)?, 4, "one step at a time");
/// # Ok::<(), caju_types::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportedTimes {
    workers: BTreeMap<u64, f64>,
    consumers: BTreeMap<u64, f64>,
}

impl ReportedTimes {
    /// A worker takes this many seconds for an element, while it does not wait for readers.
    ///
    /// # Errors
    /// `InvalidArgument` unless the time is positive.
    pub fn report_worker(&mut self, worker: u64, seconds_per_element: f64) -> Result<()> {
        self.workers.insert(worker, positive("worker", worker, seconds_per_element)?);
        Ok(())
    }

    /// A reader's user takes this many seconds for an element, while it does not wait for rows.
    ///
    /// # Errors
    /// `InvalidArgument` unless the time is positive.
    pub fn report_consumer(&mut self, consumer: u64, seconds_per_element: f64) -> Result<()> {
        self.consumers.insert(consumer, positive("consumer", consumer, seconds_per_element)?);
        Ok(())
    }

    /// Removes a worker that left.
    ///
    /// # Errors
    /// `NotFound` if it has not reported.
    pub fn remove_worker(&mut self, worker: u64) -> Result<()> {
        remove("worker", &mut self.workers, worker)
    }

    /// Removes a reader that left.
    ///
    /// # Errors
    /// `NotFound` if it has not reported.
    pub fn remove_consumer(&mut self, consumer: u64) -> Result<()> {
        remove("consumer", &mut self.consumers, consumer)
    }

    /// The workers that would keep all readers busy, at least one.
    ///
    /// # Errors
    /// `Unavailable` while no worker, or no reader, has reported.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive; saturates")]
    pub fn workers_wanted(&self) -> Result<u64> {
        if self.workers.is_empty() || self.consumers.is_empty() {
            return Err(Error::unavailable(
                "workers and readers have not reported yet what an element costs, or how fast elements are taken",
            ));
        }
        let rates =
            |times: &BTreeMap<u64, f64>| without_outliers(times).into_iter().map(|s| 1.0 / s).sum::<f64>();
        let per_worker = rates(&self.workers) / self.workers.len() as f64;
        // Rounding must not ask for one more.
        let wanted = (rates(&self.consumers) / per_worker * (1.0 - 1e-9)).ceil();
        Ok((wanted as u64).max(1))
    }

    /// The workers that readers need, but at most four times the present ones.
    ///
    /// # Errors
    /// As [`ReportedTimes::workers_wanted`].
    pub fn advice(&self, present: u64) -> Result<u64> {
        Ok(self.workers_wanted()?.min(present.max(1).saturating_mul(MAX_GROWTH)))
    }
}

fn positive(what: &str, id: u64, seconds: f64) -> Result<f64> {
    if seconds > 0.0 && seconds.is_finite() {
        return Ok(seconds);
    }
    Err(Error::invalid(format!("{what} {id}: {seconds} s for an element is no positive time")))
}

fn remove(what: &str, from: &mut BTreeMap<u64, f64>, id: u64) -> Result<()> {
    from.remove(&id).map(|_| ()).ok_or_else(|| Error::not_found(format!("{what} {id} has not reported")))
}

/// The times, with outliers replaced by the median.
fn without_outliers(times: &BTreeMap<u64, f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = times.values().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let n = sorted.len() as f64;
    let middle = sorted.len() / 2;
    let median = match (sorted.len() % 2, sorted.get(middle), sorted.get(middle.saturating_sub(1))) {
        (0, Some(upper), Some(lower)) => f64::midpoint(*upper, *lower),
        (_, Some(middle), _) => *middle,
        _ => return sorted,
    };
    let mean = sorted.iter().sum::<f64>() / n;
    let sigma = (sorted.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / n).sqrt();
    let keep = |t: f64| (t - median).abs() <= OUTLIER_SIGMAS * sigma;
    // With two times the outlier cannot be identified.
    if sorted.len() < 3 {
        return sorted;
    }
    sorted.into_iter().map(|t| if keep(t) { t } else { median }).collect()
}
